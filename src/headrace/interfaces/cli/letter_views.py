"""
Dead letters as a person reads them: a list, and one in full.

Values are row data, so nothing in them may move the cursor of a terminal or pass for markup.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from headrace.changelog.exact import exact_text
from headrace.pipeline.letter import DeadLetter, behind

SHORT = 40
"""Characters of a key in the list."""

LONG = 2_000
"""Characters of a value in full: more is for `--json`."""

LISTED = 10
"""Positions named of the letters behind one."""

_FILE_WIDTH = 10_000
"""Where the output is no terminal nothing is folded, whatever reads it can cut."""


def console() -> Console:
    """Return where to print; rich itself honours NO_COLOR."""
    found = Console(highlight=False, soft_wrap=False)
    return found if found.is_terminal else Console(highlight=False, width=_FILE_WIDTH)


def letter_list(
    letters: Sequence[DeadLetter], now: datetime, width: int, *, superseded: bool
) -> RenderableType:
    """Return the list: a table, or two lines a letter where that is too wide."""
    table = _table(letters, now, superseded=superseded)
    needed = Console(width=_FILE_WIDTH).measure(table).maximum
    return table if needed <= width else Group(*_lines(letters, now))


def _lines(letters: Sequence[DeadLetter], now: datetime) -> Iterator[Text]:
    for each in letters:
        style = "red" if each.kind == "failed" else "yellow"
        history = f"superseded by a {each.superseded}" if each.superseded else ""
        what = ", ".join(filter(None, (each.code, history)))
        yield Text.assemble(
            f"{each.position}  {each.op}  ", (each.kind, style), f"  {age(each.parked, now)} ago"
        )
        about = f"  {each.pipeline}, table {each.table}, key {_shortened(key_text(each), SHORT)}"
        yield _text(f"{about}: {what}" if what else about)


def _table(letters: Sequence[DeadLetter], now: datetime, *, superseded: bool) -> Table:
    shown = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))
    for name in ("pipeline", "table"):
        shown.add_column(name, overflow="fold")
    shown.add_column("position", no_wrap=True)
    for name in ("key", "op", "kind", "code"):
        shown.add_column(name, overflow="fold")
    shown.add_column("age", justify="right", no_wrap=True)
    if superseded:
        shown.add_column("superseded")
    for each in letters:
        cells = [
            _text(each.pipeline),
            _text(each.table),
            Text(str(each.position)),
            _text(_shortened(key_text(each), SHORT)),
            Text(each.op),
            Text(each.kind, style="red" if each.kind == "failed" else "yellow"),
            _text(each.code),
            Text(age(each.parked, now)),
        ]
        if superseded:
            cells.append(Text(each.superseded or ""))
        shown.add_row(*cells, style="dim" if each.superseded else None)
    return shown


def count_line(letters: Sequence[DeadLetter]) -> str:
    """Return how many there are, and how many keys they hold."""
    held = {
        (each.pipeline, each.table, key)
        for each in letters
        if each.superseded is None
        for key in each.keys
    }
    return f"{_count(len(letters), 'dead letter')}, {_count(len(held), 'key')} held."


def letter_page(
    letter: DeadLetter, letters: Sequence[DeadLetter], now: datetime
) -> Iterator[RenderableType]:
    """Yield one letter in full: why, both images, what is behind it, what to do."""
    yield Text(f"Dead letter {letter.position}", style="bold")
    yield _facts(letter, now)
    yield _images(letter)
    yield from _others(letter, letters)
    yield Text.assemble(("What to do: ", "bold"), _safe(what_to_do(letter)))


def what_to_do(letter: DeadLetter) -> str:
    """Return how a person gets rid of this letter."""
    if letter.superseded is not None:
        return f"nothing, a {letter.superseded} made it history."
    mend = "mend the expression that failed, or the row at its source"
    if letter.kind == "behind":
        mend = "mend what the first letter of this row failed of"
    return (
        f"{mend}; then load the table anew with engine.reload(source, {letter.table!r})."
        " That takes the rows as they are now, and frees their keys."
    )


def age(since: datetime, now: datetime) -> str:
    """Return how long ago that was, in its largest unit."""
    seconds = max(0, int((now - since).total_seconds()))
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"


def key_text(letter: DeadLetter) -> str:
    """Return the key's values."""
    return ", ".join(value_text(value) for value in letter.key)


def value_text(value: object) -> str:
    """Return a value so that text, number and null can be told apart."""
    if value is None:
        return "null"
    return "'null'" if value == "null" else exact_text(value)


# --- inside --------------------------------------------------------------------------------


def _facts(letter: DeadLetter, now: datetime) -> Table:
    told = {
        "pipeline": letter.pipeline,
        "table": letter.table,
        "key": _shortened(key_text(letter), LONG),
        "change": letter.op if letter.baseline is None else f"row of baseline {letter.baseline}",
        "why": letter.code if letter.kind == "failed" else "behind another letter of this row",
        **{f"  {name}": text for name, text in letter.facts.items()},
        "committed": str(letter.time) if letter.time else "not known",
        "set aside": f"{letter.parked} ({age(letter.parked, now)} ago)",
        "lineage": letter.lineage,
    }
    if letter.superseded is not None:
        told["superseded"] = f"by a {letter.superseded}"
    shown = Table(box=None, show_header=False, pad_edge=False)
    shown.add_column(style="dim", no_wrap=True)
    shown.add_column(overflow="fold")
    for name, text in told.items():
        shown.add_row(_text(name), _text(_shortened(text, LONG)))
    return shown


def _images(letter: DeadLetter) -> Table:
    shown = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))
    for name in ("column", "before", "after"):
        shown.add_column(name, overflow="fold")
    names = dict.fromkeys([*(letter.before or {}), *(letter.after or {})])
    for name in names:
        cells = [_cell(image, name) for image in (letter.before, letter.after)]
        changed = letter.before and letter.after and cells[0] != cells[1]
        shown.add_row(_text(name), *map(_text, cells), style="bold" if changed else None)
    return shown


def _cell(image: Mapping[str, object] | None, name: str) -> str:
    if image is None:
        return ""
    if name not in image:
        return "(not sent)"
    return _shortened(value_text(image[name]), LONG)


def _others(letter: DeadLetter, letters: Sequence[DeadLetter]) -> Iterator[Text]:
    """Yield what this letter waits for, and what waits for it."""
    if letter.kind == "behind":
        for other in letters:
            if other.kind == "failed" and letter in behind(other, letters):
                yield Text(f"Behind the letter at {other.position}.")
                break
    followers = behind(letter, letters)
    if not followers:
        yield Text("Nothing is behind it.")
        return
    yield Text(f"Behind it: {_count(len(followers), 'letter')}, to be read in this order.")
    for each in followers[:LISTED]:
        yield Text(f"  {each.position}  {each.op}  {each.code}".rstrip())
    if len(followers) > LISTED:
        yield Text(f"  and {len(followers) - LISTED} more")


def _text(text: str) -> Text:
    return Text(_safe(text))


def _safe(text: str) -> str:
    """Return the text with everything that a terminal would obey written out."""
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode() for each in text
    )


def _shortened(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 1]}…"


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"
