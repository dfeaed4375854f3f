"""The log as a person reads it: what it holds, and its changes line by line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from headrace.changelog.inventory import LogInventory, TableInventory
from headrace.control.store_reading import StoredProgress

LONG = 200
"""Characters of a value in a line: more is for `--format json`."""

_OPS = {"insert": "green", "update": "yellow", "delete": "red", "truncate": "bold red"}
_POSITION, _TIME, _OP = 30, 26, 8


def overview(
    log: LogInventory, progress: Sequence[StoredProgress], size: int, width: int
) -> Iterator[Text | Table]:
    """Yield one source's log: what it is, its tables, and how far its pipelines are."""
    yield Text.assemble((log.source, "bold"), f"  {shown(log.origin)}")
    if log.first is None:
        yield Text("  has not begun")
        return
    if log.first > log.end:
        yield Text(f"  no changes yet, up to {log.end}")
    else:
        yield Text(f"  {log.first} to {log.end}")
    yield Text(f"  {log.entries:,} entries, {bytes_text(size)} on disk")
    for gap in log.gaps:
        yield Text(f"  begins anew at {gap.at} ({gap.reason})", style="yellow")
    tables = _tables(log)
    if Console(width=10_000).measure(tables).maximum <= width:
        yield tables
    else:
        yield from _lines(log)
    if progress:
        yield _progress(progress)


def kept_view(kept: Mapping[str, Any] | None) -> Iterator[Text | Table]:
    """Yield what a running engine keeps a log for; nothing where none runs."""
    if kept is None:
        return
    if kept["cap"]:
        yield Text(f"  {kept['percent']:.0f} % of its cap of {bytes_text(kept['cap'])}")
    made = _table("kept for", "whose", "after")
    for pin in kept["pins"]:
        made.add_row(Text(pin["kind"]), Text(shown(pin["whose"])), Text(pin["position"]))
    yield made if kept["pins"] else Text("  kept for nobody")


def _tables(log: LogInventory) -> Table:
    made = _table("table", "segments", "changes", "size", "from", "to", "first", "last", "baseline")
    for each in log.tables:
        made.add_row(
            Text(shown(each.table)),
            Text(f"{each.segments:,}"),
            Text(f"{each.changes:,}"),
            Text(bytes_text(each.bytes)),
            Text(time_text(each.since)),
            Text(time_text(each.until)),
            Text(str(each.first or "")),
            Text(str(each.last or "")),
            Text(_baseline_text(each)),
        )
    return made


def _lines(log: LogInventory) -> Iterator[Text]:
    for each in log.tables:
        yield Text.assemble(
            (shown(each.table), "bold"),
            f"  {each.changes:,} changes, {each.segments:,} segments, {bytes_text(each.bytes)}",
        )
        if each.changes:
            yield Text(f"  {time_text(each.since)} to {time_text(each.until)}")
            yield Text(f"  {each.first} to {each.last}")
        if each.baseline is not None:
            yield Text(f"  baseline {_baseline_text(each)}")


def _baseline_text(table: TableInventory) -> str:
    found = table.baseline
    if found is None:
        return ""
    return f"{found.number}: {found.rows:,} rows, {bytes_text(found.bytes)}, {found.first}"


def _progress(progress: Sequence[StoredProgress]) -> Table:
    made = _table("pipeline", "table", "reached", "state", "baseline")
    for each in progress:
        marks = [each.state, *(["paused"] * each.paused), *(["set aside"] * each.set_aside)]
        made.add_row(
            Text(shown(each.pipeline)),
            Text(shown(each.table)),
            Text(str(each.position)),
            Text(", ".join(filter(None, marks))),
            Text(str(each.baseline or "")),
        )
    return made


def _table(*names: str) -> Table:
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))
    for name in names:
        made.add_column(name, overflow="fold", no_wrap=name in ("first", "last", "reached"))
    return made


def change_header() -> Text:
    """Return what stands over the lines of changes."""
    return Text(f"{'position':{_POSITION}} {'time':{_TIME}} {'op':{_OP}} values", style="bold")


def change_line(change: dict[str, Any]) -> Text:
    """Return a change in a line: of an update, what it was, too, where that is another value."""
    before, after = change["before"] or {}, change["after"] or {}
    cells = []
    for name in dict.fromkeys([*after, *before]):
        old, new = before.get(name), after.get(name)
        if change["op"] == "update" and name in before and name in after and old != new:
            cells.append(f"{name}={value_text(old)}→{value_text(new)}")
        else:
            cells.append(f"{name}={value_text(new if name in after else old)}")
    cells += [f"{name}=(not sent)" for name in change["unsent"]]
    time = str(change["time"] or "").replace("+00:00", "").replace("T", " ")
    return Text.assemble(
        f"{change['position']:{_POSITION}} {time:{_TIME}} ",
        (f"{change['op']:{_OP}}", _OPS[change["op"]]),
        f" {shown('  '.join(cells))}".rstrip(),
    )


def value_text(value: object) -> str:
    """Return a value of a change for a line."""
    match value:
        case None:
            return "null"
        case bool():
            return str(value).lower()
        case {"exact": text} | {"float": text}:
            text = f"{text}"
        case {"bytes": text}:
            text = f"base64 {text}"
        case str():
            text = value
        case _:
            text = str(value)
    return text if len(text) <= LONG else f"{text[: LONG - 1]}…"


def shown(text: str) -> str:
    """Return a text with everything that a terminal would obey written out."""
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode() for each in text
    )


def bytes_text(count: int) -> str:
    """Return a size in its largest unit."""
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{count} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def time_text(moment: datetime | None) -> str:
    """Return a moment in UTC, to the second."""
    return "" if moment is None else moment.strftime("%Y-%m-%d %H:%M:%S")
