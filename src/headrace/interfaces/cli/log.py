"""`headrace log`: what the log of each source holds, read from the data directory."""

from __future__ import annotations

import json
from dataclasses import is_dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from headrace.errors import HeadraceError, UnknownPipeline
from headrace.interfaces.cli.known import one_of
from headrace.interfaces.cli.log_read import read
from headrace.interfaces.cli.options import (
    config_options,
    data_option,
    json_option,
    storage_option,
)
from headrace.interfaces.cli.where import Place, place_of, recorded

if TYPE_CHECKING:
    from headrace.changelog.inventory import LogInventory
    from headrace.control.store_reading import StoredProgress


@click.group("log", invoke_without_command=True, short_help="Look at the change log.")
@config_options
@data_option
@storage_option
@json_option
@click.option("--source", metavar="SOURCE", help="Of this source alone.")
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
    Show what the change log holds: segments, sizes, positions and times, table by table.

    Reads the data directory; an engine may run there, and is not disturbed. `reached` is how
    far a pipeline's progress is stored; a running engine also tells what the log is kept for.
    A log on S3 is found through the data directory, too, or by --storage without one.
    With --json each line is the log of one source.
    """
    if context.invoked_subcommand is not None:
        return
    place = place_of(config, sets, data, storage)
    found = _read(place, source)
    if as_json:
        for info, progress, size in found:
            told = {**_plain(info), "progress": _plain(progress)}
            told["bytes_on_disk"] = size
            told["kept"] = _kept(place, info.source)
            click.echo(json.dumps(told, ensure_ascii=False))
        return
    if not found:
        click.echo("No log yet.")
        return
    from headrace.interfaces.cli import log_views as views
    from headrace.interfaces.cli.letter_views import console

    out = console()
    for number, (info, progress, size) in enumerate(found):
        if number:
            out.print()
        for part in views.overview(info, progress, size, out.width):
            out.print(part)
        for part in views.kept_view(_kept(place, info.source)):
            out.print(part)


log.add_command(read)


def _read(place: Place, source: str | None) -> list[tuple[LogInventory, list[StoredProgress], int]]:
    # Here and not above: `--help` needs no Arrow, and is slow with it.
    from headrace.changelog.inventory import inventory
    from headrace.changelog.log import LogReader
    from headrace.control.store_reading import stored_progress

    names = recorded(place.files)
    if source is not None:
        if source not in names:
            raise UnknownPipeline(
                "There is no log of this source", source=source, remedy=one_of(names)
            )
        names = [source]
    progress = [] if place.folder is None else stored_progress(place.folder)
    found = []
    for name in names:
        log = LogReader.open(place.files, name)
        info = inventory(log, name)
        # By lineage: what is stored of a pipeline does not name its source.
        mine = [each for each in progress if each.lineage == info.lineage]
        # In a bucket, what the index names: to ask of each file would take long.
        size = _size(Path(place.files.path("log")) / name) if place.files.local else log.size
        found.append((info, mine, size))
    return found


def _kept(place: Place, source: str) -> dict[str, Any] | None:
    """Return what a running engine keeps the log for; None where none runs, or it knows not."""
    from headrace.interfaces.control.client import Control

    if place.folder is None:
        return None
    try:
        return Control.connect(place.folder).call("Log", source=source)
    except HeadraceError:
        return None


def _size(folder: Path) -> int:
    """Return the bytes of a log's files; those that vanish meanwhile do not count."""
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except FileNotFoundError:
            continue
    return total


def _plain(value: Any) -> Any:
    """Return frozen values as JSON takes them: positions as their text, times in ISO 8601."""
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
