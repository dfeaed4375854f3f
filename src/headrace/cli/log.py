"""
`headrace log`: the contents of the log of each source, read from the data directory.

The views show the contents of a log, and for `headrace log read` its changes, one on each line.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from headrace.cli.common import (
    LogLocation,
    config_options,
    data_option,
    json_option,
    log_location,
    one_of,
    output_console,
    printable,
    recorded,
    storage_option,
    value_text,
)
from headrace.cli.connection import refuse_remote_default
from headrace.cli.log_read import read
from headrace.errors import HeadraceError, UnknownPipeline

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

    from headrace.changelog.ranges import LogInventory, TableInventory
    from headrace.runtime.store import StoredProgress


@click.group("log", invoke_without_command=True, short_help="Show or export the change log.")
@config_options
@data_option
@storage_option
@json_option
@click.option("--source", metavar="SOURCE", help="Only this source.")
@click.pass_context
def log(
    context: click.Context,
    config: Path | None,
    sets: tuple[str, ...],
    data: Path | None,
    storage: str | None,
    as_json: bool,
    source: str | None,
) -> None:
    """
    Show what the change log contains: segments, sizes, positions and times of each table.

    Works with or without a running engine. `reached` is the stored progress of a pipeline. If an
    engine is running, the output also shows what old entries are kept for. A log on S3 is found
    through the data directory, or with --storage if there is none. With --json each line is the
    log of one source.
    """
    if context.invoked_subcommand is not None:
        return
    refuse_remote_default("headrace log", config, sets, data, storage)
    location = log_location(config, sets, data, storage)
    found = _read(location, source)
    if as_json:
        for info, progress, size in found:
            fields = {**_plain(info), "progress": _plain(progress)}
            fields["bytes_on_disk"] = size
            fields["kept"] = _kept(location, info.source)
            click.echo(json.dumps(fields, ensure_ascii=False))
        return
    if not found:
        click.echo("No log yet.")
        return

    out = output_console()
    for number, (info, progress, size) in enumerate(found):
        if number:
            out.print()
        for part in overview(info, progress, size, out.width):
            out.print(part)
        for part in kept_view(_kept(location, info.source)):
            out.print(part)


log.add_command(read)


def _read(
    location: LogLocation, source: str | None
) -> list[tuple[LogInventory, list[StoredProgress], int]]:
    # Imported here: `--help` needs no Arrow, and would be slow with it.
    from headrace.changelog.ranges import inventory
    from headrace.changelog.reader import LogReader
    from headrace.runtime.store import stored_progress

    names = recorded(location.files)
    if source is not None:
        if source not in names:
            raise UnknownPipeline(
                f"There is no log of source {source}", source=source, remedy=one_of(names)
            )
        names = [source]
    progress = [] if location.folder is None else stored_progress(location.folder)
    found = []
    for name in names:
        log = LogReader.open(location.files, name)
        info = inventory(log, name)
        # By lineage: the stored progress of a pipeline does not name its source.
        mine = [each for each in progress if each.lineage == info.lineage]
        # In a bucket, the sizes in the index: asking for each file would take long.
        size = _size(Path(location.files.path("log")) / name) if location.files.local else log.size
        found.append((info, mine, size))
    return found


def _kept(location: LogLocation, source: str) -> dict[str, Any] | None:
    """Return what a running engine keeps the log for; None if no engine answers."""
    from headrace.api.client import Control

    if location.folder is None:
        return None
    try:
        return Control.connect(location.folder).call("Log", source=source)
    except HeadraceError:
        return None


def _size(folder: Path) -> int:
    """Return the bytes of a log's files; files that are deleted meanwhile do not count."""
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except FileNotFoundError:
            continue
    return total


def _plain(value: Any) -> Any:
    """Return frozen values as JSON values: positions as text, times in ISO 8601."""
    from headrace.changelog.position import Position

    if isinstance(value, Position):
        return str(value)
    if isinstance(value, datetime):
        return value.isoformat(timespec="microseconds")
    if is_dataclass(value) and not isinstance(value, type):
        return {name: _plain(getattr(value, name)) for name in value.__dataclass_fields__}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return value


# --- the view of the log --------------------------------------------------------------------------

LONG = 200
"""Maximum characters of a value in a line; `--format json` has the whole value."""

_OPS = {"insert": "green", "update": "yellow", "delete": "red", "truncate": "bold red"}
_POSITION, _TIME, _OP = 30, 26, 8


def overview(
    log: LogInventory, progress: Sequence[StoredProgress], size: int, width: int
) -> Iterator[Text | Table]:
    """Yield one source's log: its range, its tables, and the progress of its pipelines."""
    from rich.console import Console
    from rich.text import Text

    yield Text.assemble((log.source, "bold"), f"  {printable(log.origin)}")
    if log.first is None:
        yield Text("  no entries yet")
        return
    if log.first > log.end:
        yield Text(f"  no changes yet, up to {log.end}")
    else:
        yield Text(f"  {log.first} to {log.end}")
    yield Text(f"  {log.entries:,} entries, {bytes_text(size)} on disk")
    for gap in log.gaps:
        yield Text(f"  gap: continues at {gap.at} ({gap.reason})", style="yellow")
    tables = _tables(log)
    if Console(width=10_000).measure(tables).maximum <= width:
        yield tables
    else:
        yield from _lines(log)
    if progress:
        yield _progress(progress)


def kept_view(kept: Mapping[str, Any] | None) -> Iterator[Text | Table]:
    """Yield what a running engine keeps a log for; nothing if no engine answered."""
    from rich.text import Text

    if kept is None:
        return
    if kept["cap"]:
        yield Text(f"  {kept['percent']:.0f} % of its cap of {bytes_text(kept['cap'])}")
    made = _table("kept for", "whose", "after")
    for pin in kept["pins"]:
        made.add_row(Text(pin["kind"]), Text(printable(pin["whose"])), Text(pin["position"]))
    yield made if kept["pins"] else Text("  no pipeline or reader needs old entries")


def _tables(log: LogInventory) -> Table:
    from rich.text import Text

    made = _table("table", "segments", "changes", "size", "from", "to", "first", "last", "baseline")
    for each in log.tables:
        made.add_row(
            Text(printable(each.table)),
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
    from rich.text import Text

    for each in log.tables:
        yield Text.assemble(
            (printable(each.table), "bold"),
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
    from rich.text import Text

    made = _table("pipeline", "table", "reached", "state", "baseline")
    for each in progress:
        states = [each.state, *(["paused"] * each.paused), *(["released"] * each.set_aside)]
        made.add_row(
            Text(printable(each.pipeline)),
            Text(printable(each.table)),
            Text(str(each.position)),
            Text(", ".join(filter(None, states))),
            Text(str(each.baseline or "")),
        )
    return made


def _table(*names: str) -> Table:
    from rich import box
    from rich.table import Table

    made = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))
    for name in names:
        made.add_column(name, overflow="fold", no_wrap=name in ("first", "last", "reached"))
    return made


def change_header() -> Text:
    """Return the header of the lines of changes."""
    from rich.text import Text

    return Text(f"{'position':{_POSITION}} {'time':{_TIME}} {'op':{_OP}} values", style="bold")


def change_line(change: dict[str, Any]) -> Text:
    """Return a change as one line; for an update, changed values as old → new."""
    from rich.text import Text

    before, after = change["before"] or {}, change["after"] or {}
    cells = []
    for name in dict.fromkeys([*after, *before]):
        old, new = before.get(name), after.get(name)
        if change["op"] == "update" and name in before and name in after and old != new:
            cells.append(f"{name}={_value_text(old)}→{_value_text(new)}")
        else:
            cells.append(f"{name}={_value_text(new if name in after else old)}")
    cells += [f"{name}=(not sent)" for name in change["unsent"]]
    time = str(change["time"] or "").replace("+00:00", "").replace("T", " ")
    return Text.assemble(
        f"{change['position']:{_POSITION}} {time:{_TIME}} ",
        (f"{change['op']:{_OP}}", _OPS[change["op"]]),
        f" {printable('  '.join(cells))}".rstrip(),
    )


def _value_text(value: object) -> str:
    if isinstance(value, dict) and value.keys() == {"bytes"}:
        value = f"base64 {value['bytes']}"
    return value_text(value, LONG)


def bytes_text(count: int) -> str:
    """Return a size in its largest unit."""
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{count} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def time_text(moment: datetime | None) -> str:
    """Return a time in UTC, to the second."""
    return "" if moment is None else moment.strftime("%Y-%m-%d %H:%M:%S")
