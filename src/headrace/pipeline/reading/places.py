"""Where a log lies: a data directory and a source in it."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar
from urllib.parse import unquote, urlsplit

from headrace.changelog.log import LogReader
from headrace.config.nearest import nearest
from headrace.errors import BadDataDirectory, UnknownTable, WrongValue
from headrace.pipeline.reading.options import Options
from headrace.storage.disk import RealDisk
from headrace.storage.files import Files

_POLL_SECONDS = 0.05

T = TypeVar("T")


def located(options: Options, wait: float) -> tuple[str, str]:
    """
    Return the data directory, whole, and the source; wait a little for one that just begins.

    `BadDataDirectory` where there is no log, `WrongValue` where there are several.
    """
    folder = _path(options.log)
    parts = (folder.parent.name, folder.name)
    # A source's own folder, as the log lies on disk: <data>/log/<source>.
    inside = parts[0] == "log" and not (folder / "log").is_dir()
    if inside:
        if options.source not in (None, parts[1]):
            raise WrongValue(
                "The log is of another source",
                option="source",
                remedy="Give the data directory, or leave the option source out.",
            )
        _until(lambda: (folder / "index").is_dir() or None, wait)
        data, names = folder.parent.parent, [parts[1]] if (folder / "index").is_dir() else []
    else:
        data = folder
        _until(lambda: _sources(folder) or None, wait)
        names = _sources(folder)
    if not names:
        raise BadDataDirectory(
            "There is no change log here",
            folder=str(folder),
            remedy="Give the data directory that an engine or hr.record writes to.",
        )
    if inside or (options.source is None and len(names) == 1):
        return str(data), names[0]
    if options.source in names:
        return str(data), str(options.source)
    near = None if options.source is None else nearest(options.source, names)
    raise WrongValue(
        "There are logs of several sources"
        if options.source is None
        else "There is no log of this source",
        option="source",
        sources=" ".join(names),
        remedy=f"Did you mean {near}?" if near else "Name one of them with the option source.",
    )


def opened(data: str, source: str) -> LogReader:
    """Open a log for reading."""
    return LogReader.open(Files(RealDisk(), data), source)


def known_table(log: LogReader, table: str, wait: float) -> None:
    """Wait until the log has a table; `UnknownTable` with what it has."""

    def there() -> bool | None:
        log.refresh()
        return table in log.tables() or None

    if _until(there, wait) is None:
        near = nearest(table, log.tables())
        raise UnknownTable(
            "The log has no such table",
            table=table,
            tables=" ".join(sorted(log.tables())),
            remedy=f"Did you mean {near}?" if near else "Record it first, or check the name.",
        )


def _until(look: Callable[[], T | None], wait: float) -> T | None:
    """Look again and again until something is there; None on time-out."""
    until = time.monotonic() + wait
    while (found := look()) is None and time.monotonic() < until:
        time.sleep(_POLL_SECONDS)
    return found


wait_for = _until


def _sources(data: Path) -> list[str]:
    return sorted(each.parent.name for each in data.glob("log/*/index"))


def _path(text: str) -> Path:
    address = urlsplit(text)
    if address.scheme == "file":
        return Path(unquote(address.path)).absolute()
    if address.scheme and "://" in text:
        raise WrongValue(
            "Executors read the log from a folder",
            option="log",
            remedy="Give a path that is the same on every machine.",
        )
    return Path(text).expanduser().absolute()
