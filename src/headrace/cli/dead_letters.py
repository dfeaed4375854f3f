"""
`headrace dead-letters`: the changes that pipelines parked, read from their data directory.

The JSON form loses nothing: every value of a dead letter can be restored from it. Null, true,
false, text, integers from -2^53 to 2^53 and finite floats are plain JSON values; a float always
has a point or an exponent. Any other value is an object with its kind:
`{"kind": "decimal", "value": "1.50"}`.

| kind | value |
|---|---|
| `int` | the digits, as text: beyond 2^53 |
| `float` | `nan`, `inf` or `-inf` |
| `decimal` | its text, with every digit |
| `bytes` | base64 |
| `text_bytes` | base64 of a text that is not UTF-8 |
| `uuid` | its text |
| `date`, `timestamp`, `timestamptz`, `time` | ISO 8601 |
| `timetz` | the text, `micros` since midnight and `offset` in seconds |
| `interval` | the text, `months`, `days` and `micros` |
| `struct` | an object: a row within a row |
| `other` | the text of a value that an expression returned |

A date or time that Python cannot represent is PostgreSQL's text, with `days` or `micros` since
1970 or midnight.

The views are a list of dead letters, and one dead letter in full. Values are row data: nothing in
them may move the cursor of a terminal or be taken for markup.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from headrace.cli.common import (
    FILE_WIDTH,
    check_names,
    command_line,
    data_directory,
    engine_options,
    output_console,
    printable,
    same_engine,
    shortened,
    used_folder,
    value_text,
)

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table
    from rich.text import Text

    from headrace.deadletters.letter import DeadLetter


# --- `headrace dead-letters` ----------------------------------------------------------------------


@click.group("dead-letters", short_help="Show changes that could not be applied.")
def dead_letters() -> None:
    """
    Show dead letters: changes that could not be computed, and later changes of those rows.

    A dead letter holds its row: later changes of the same key wait until a truncate or a reload
    of the table supersedes them. Works with or without a running engine.
    """


@dead_letters.command("list", short_help="List dead letters.")
@click.argument("pipeline", required=False)
@engine_options
@click.option("--table", metavar="TABLE", help="Only this table.")
@click.option("--all", "superseded", is_flag=True, help="Include superseded ones.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON lines with exact values.")
def list_dead_letters(
    pipeline: str | None,
    config: Path | None,
    sets: tuple[str, ...],
    data: Path | None,
    table: str | None,
    superseded: bool,
    as_json: bool,
) -> None:
    """
    List the dead letters of PIPELINE, or of all pipelines, by position.

    With --json each line is a dead letter with the row before and after the change. Null,
    booleans, text, integers up to 2^53 and finite floats are plain JSON values. Any other value
    is an object with its kind: {"kind": "decimal", "value": "1.50"}. The other kinds are int
    (beyond 2^53), float (nan, inf), bytes and text_bytes (base64), uuid, date, timestamp,
    timestamptz and time (ISO 8601), timetz, interval and struct.
    """
    folder = used_folder(data_directory(config, sets, data))
    dead_letters = _read(folder, pipeline, superseded=superseded)
    found = [dead_letter for dead_letter in dead_letters if table in (None, dead_letter.table)]
    if not found:
        _check_names(folder, config, pipeline, table)
    if as_json:
        _echo(dead_letter_line(dead_letter) for dead_letter in found)
        return
    if not found:
        click.echo("No dead letters.")
        return

    console = output_console()
    console.print(dead_letter_list(found, _now(), console.width, superseded=superseded))
    console.print(count_line(found))


@dead_letters.command("show", short_help="Show a dead letter in full, and what to do about it.")
@click.argument("position")
@engine_options
@click.option("--pipeline", metavar="PIPELINE", help="Only this pipeline.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON lines, as list does.")
def show_dead_letter(
    position: str,
    config: Path | None,
    sets: tuple[str, ...],
    data: Path | None,
    pipeline: str | None,
    as_json: bool,
) -> None:
    """
    Show the dead letters at POSITION: the reason, the row before and after, what to do.

    There can be several: one for each pipeline that uses the table, or one for each row of a
    baseline that failed. Rows of a baseline have the position where the baseline begins. With
    --json, "behind" lists the positions of the later changes that wait.
    """
    folder = used_folder(data_directory(config, sets, data))
    dead_letters = _read(folder, pipeline, superseded=True)
    if not dead_letters:
        _check_names(folder, config, pipeline, None)
    found = _at(position, dead_letters)
    if as_json:
        from headrace.deadletters.letter import waiting_changes

        _echo(
            dead_letter_line(
                dead_letter,
                behind=[str(each.position) for each in waiting_changes(dead_letter, dead_letters)],
            )
            for dead_letter in found
        )
        return

    console = output_console()
    for number, dead_letter in enumerate(found):
        if number:
            console.rule()
        for part in dead_letter_page(
            dead_letter, dead_letters, _now(), same_engine(config, sets, data)
        ):
            console.print(part)


def _read(folder: Path, pipeline: str | None, *, superseded: bool) -> tuple[DeadLetter, ...]:
    # Imported here: `--help` needs no Arrow, and would be slow with it.
    from headrace.deadletters.store import read_letters
    from headrace.storage.s3 import storage_of

    return read_letters(storage_of(folder), pipeline, superseded=superseded)


def _check_names(
    folder: Path, config: Path | None, pipeline: str | None, table: str | None
) -> None:
    """Raise for an unknown name: "No dead letters." would hide the typing error."""
    if pipeline is not None or table is not None:
        check_names(folder, config, _read(folder, None, superseded=True), pipeline, table)


def _at(position: str, dead_letters: Sequence[DeadLetter]) -> list[DeadLetter]:
    from headrace.changelog.position import Position
    from headrace.errors import BadPosition

    try:
        wanted = Position.parse(position)
    except BadPosition as error:
        raise click.BadParameter(
            f"{position!r} is not a position such as 0001-00000000000004b4-00000000.",
            param_hint="POSITION",
        ) from error
    found = [dead_letter for dead_letter in dead_letters if dead_letter.position == wanted]
    if not found:
        raise click.BadParameter(
            f"There is no dead letter at {position}; headrace dead-letters list shows all.",
            param_hint="POSITION",
        )
    return found


def _echo(lines: Iterable[str]) -> None:
    for line in lines:
        click.echo(line)


def _now() -> datetime:
    return datetime.now(UTC)


# --- dead letters as JSON -------------------------------------------------------------------------

_PARTS = ("months", "days", "micros", "offset")
"""The numbers of a date or time that Python cannot represent."""


def dead_letter_line(dead_letter: DeadLetter, **more: object) -> str:
    """Return a dead letter as a line of JSON, with the fields in `more`."""
    return json.dumps(
        {**dead_letter_object(dead_letter), **more}, ensure_ascii=False, allow_nan=False
    )


def dead_letter_object(dead_letter: DeadLetter) -> dict[str, Any]:
    """Return a dead letter as plain values."""
    return {
        "pipeline": dead_letter.pipeline,
        "table": dead_letter.table,
        "position": str(dead_letter.position),
        "lineage": dead_letter.lineage,
        "baseline": dead_letter.baseline,
        "op": dead_letter.op,
        "kind": dead_letter.kind,
        "code": dead_letter.code,
        "facts": dict(dead_letter.facts),
        "key": [value_object(value) for value in dead_letter.key],
        "before": _image(dead_letter.before),
        "after": _image(dead_letter.after),
        "time": dead_letter.time.isoformat() if dead_letter.time else None,
        "parked": dead_letter.parked.isoformat(),
        "superseded": dead_letter.superseded,
    }


def value_object(value: object) -> object:
    """Return one value in the form that the module's docstring describes."""
    from headrace.changelog.values_json import by_kind

    return by_kind(value, _with_kind)


def _with_kind(kind: str, value: Any) -> dict[str, object]:
    from headrace.changelog.values_json import kind_text

    text = str(value) if kind in ("float", "decimal") else kind_text(kind, value)
    parts = {name: getattr(value, name) for name in _PARTS if hasattr(value, name)}
    return {"kind": kind, "value": text, **({} if kind == "other" else parts)}


def _image(image: Mapping[str, object] | None) -> dict[str, object] | None:
    if image is None:
        return None
    return {name: value_object(value) for name, value in image.items()}


# --- the view of dead letters ---------------------------------------------------------------------

SHORT = 40
"""Maximum characters of a key in the list."""

LONG = 2_000
"""Maximum characters of a value in the page; `--json` has the whole value."""

LISTED = 10
"""Maximum number of waiting changes that are listed."""


def dead_letter_list(
    dead_letters: Sequence[DeadLetter], now: datetime, width: int, *, superseded: bool
) -> RenderableType:
    """Return the list: a table, or two lines for each dead letter if the table is too wide."""
    from rich.console import Console, Group

    table = _table(dead_letters, now, superseded=superseded)
    needed = Console(width=FILE_WIDTH).measure(table).maximum
    return table if needed <= width else Group(*_lines(dead_letters, now))


def _lines(dead_letters: Sequence[DeadLetter], now: datetime) -> Iterator[Text]:
    from rich.text import Text

    for each in dead_letters:
        style = "red" if each.kind == "failed" else "yellow"
        history = f"superseded by a {each.superseded}" if each.superseded else ""
        what = ", ".join(filter(None, (each.code, history)))
        yield Text.assemble(
            f"{each.position}  {each.op}  ", (each.kind, style), f"  {age(each.parked, now)} ago"
        )
        about = f"  {each.pipeline}, table {each.table}, key {shortened(key_text(each), SHORT)}"
        yield _text(f"{about}: {what}" if what else about)


def _table(dead_letters: Sequence[DeadLetter], now: datetime, *, superseded: bool) -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    shown = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))
    for name in ("pipeline", "table"):
        shown.add_column(name, overflow="fold")
    shown.add_column("position", no_wrap=True)
    for name in ("key", "op", "kind", "code"):
        shown.add_column(name, overflow="fold")
    shown.add_column("age", justify="right", no_wrap=True)
    if superseded:
        shown.add_column("superseded")
    for each in dead_letters:
        cells = [
            _text(each.pipeline),
            _text(each.table),
            Text(str(each.position)),
            _text(shortened(key_text(each), SHORT)),
            Text(each.op),
            Text(each.kind, style="red" if each.kind == "failed" else "yellow"),
            _text(each.code),
            Text(age(each.parked, now)),
        ]
        if superseded:
            cells.append(Text(each.superseded or ""))
        shown.add_row(*cells, style="dim" if each.superseded else None)
    return shown


def count_line(dead_letters: Sequence[DeadLetter]) -> str:
    """Return the number of dead letters and of the keys they hold."""
    held = {
        (each.pipeline, each.table, key)
        for each in dead_letters
        if each.superseded is None
        for key in each.keys
    }
    return f"{_count(len(dead_letters), 'dead letter')}, {_count(len(held), 'key')} held."


def dead_letter_page(
    dead_letter: DeadLetter,
    dead_letters: Sequence[DeadLetter],
    now: datetime,
    options: Sequence[str] = (),
) -> Iterator[RenderableType]:
    """
    Yield one dead letter in full: the reason, both images, what waits for it, what to do.

    `options` make the command that is suggested select the same engine.
    """
    from rich.text import Text

    yield Text(f"Dead letter {dead_letter.position}", style="bold")
    yield _facts(dead_letter, now)
    yield _images(dead_letter)
    yield from _others(dead_letter, dead_letters)
    yield Text.assemble(("What to do: ", "bold"), printable(what_to_do(dead_letter, options)))


def what_to_do(dead_letter: DeadLetter, options: Sequence[str] = ()) -> str:
    """Return how to resolve this dead letter; `options` select the engine."""
    if dead_letter.superseded is not None:
        return f"nothing, it was superseded by a {dead_letter.superseded}."
    failed = "the expression that failed"
    if step := dead_letter.facts.get("step"):
        column = dead_letter.facts.get("column")
        failed = f"the expression of column {column} in {step}" if column else f"the {step}"
    fix = f"fix {failed}, or the row in the source"
    if dead_letter.kind == "behind":
        fix = "fix the cause of the first dead letter of this row"
    reload = command_line("reload", dead_letter.pipeline, "--table", dead_letter.table, *options)
    return (
        f"{fix}. Then copy the table again, which loads the current rows and releases their keys:"
        f" engine.reload(source, {dead_letter.table!r}) in Python, or {reload}"
    )


def age(since: datetime, now: datetime) -> str:
    """Return the time since then, in its largest unit."""
    seconds = max(0, int((now - since).total_seconds()))
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"


def key_text(dead_letter: DeadLetter) -> str:
    """Return the key's values."""
    return ", ".join(exact_value_text(value) for value in dead_letter.key)


def exact_value_text(value: object) -> str:
    """Return a value as text from which text, number, bytes and null can be distinguished."""
    from headrace.changelog.values import exact_text

    return value_text(None if value is None else exact_text(value), None)


# --- parts of the page of a dead letter -----------------------------------------------------------


def _facts(dead_letter: DeadLetter, now: datetime) -> Table:
    from rich.table import Table

    lines = {
        "pipeline": dead_letter.pipeline,
        "table": dead_letter.table,
        "key": shortened(key_text(dead_letter), LONG),
        "change": dead_letter.op
        if dead_letter.baseline is None
        else f"row of baseline {dead_letter.baseline}",
        "why": dead_letter.code
        if dead_letter.kind == "failed"
        else "waits for an earlier dead letter of this row",
        **{f"  {name}": text for name, text in dead_letter.facts.items()},
        "committed": str(dead_letter.time) if dead_letter.time else "not known",
        "parked": f"{dead_letter.parked} ({age(dead_letter.parked, now)} ago)",
        "lineage": dead_letter.lineage,
    }
    if dead_letter.superseded is not None:
        lines["superseded"] = f"by a {dead_letter.superseded}"
    shown = Table(box=None, show_header=False, pad_edge=False)
    shown.add_column(style="dim", no_wrap=True)
    shown.add_column(overflow="fold")
    for name, text in lines.items():
        shown.add_row(_text(name), _text(shortened(text, LONG)))
    return shown


def _images(dead_letter: DeadLetter) -> Table:
    from rich import box
    from rich.table import Table

    shown = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))
    for name in ("column", "before", "after"):
        shown.add_column(name, overflow="fold")
    names = dict.fromkeys([*(dead_letter.before or {}), *(dead_letter.after or {})])
    for name in names:
        cells = [_cell(image, name) for image in (dead_letter.before, dead_letter.after)]
        changed = dead_letter.before and dead_letter.after and cells[0] != cells[1]
        shown.add_row(_text(name), *map(_text, cells), style="bold" if changed else None)
    return shown


def _cell(image: Mapping[str, object] | None, name: str) -> str:
    if image is None:
        return ""
    if name not in image:
        return "(not sent)"
    return shortened(exact_value_text(image[name]), LONG)


def _others(dead_letter: DeadLetter, dead_letters: Sequence[DeadLetter]) -> Iterator[Text]:
    """Yield what this dead letter waits for, and what waits for it."""
    from rich.text import Text

    from headrace.deadletters.letter import waiting_changes

    if dead_letter.kind == "behind":
        for other in dead_letters:
            if other.kind == "failed" and dead_letter in waiting_changes(other, dead_letters):
                yield Text(f"Waits for the dead letter at {other.position}.")
                break
    followers = waiting_changes(dead_letter, dead_letters)
    if not followers:
        yield Text("No later changes are waiting.")
        return
    are = "is" if len(followers) == 1 else "are"
    yield Text(f"{_count(len(followers), 'later change')} {are} waiting, in this order:")
    for each in followers[:LISTED]:
        yield Text(f"  {each.position}  {each.op}  {each.code}".rstrip())
    if len(followers) > LISTED:
        yield Text(f"  and {len(followers) - LISTED} more")


def _text(text: str) -> Text:
    from rich.text import Text

    return Text(printable(text))


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"
