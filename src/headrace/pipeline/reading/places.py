"""Where a log lies: a data directory or a bucket, and a source in it."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar
from urllib.parse import unquote, urlsplit

from headrace.changelog.log import LogReader
from headrace.config.nearest import nearest
from headrace.errors import BadDataDirectory, StorageError, UnknownTable, WrongValue
from headrace.pipeline.reading.options import Options
from headrace.storage.files import Files
from headrace.storage.opening import opened as storage_at
from headrace.storage.opening import storage_of
from headrace.storage.places import elsewhere

_POLL_SECONDS = 0.05
_BUCKETS = ("s3", "s3a")

T = TypeVar("T")


def located(options: Options, wait: float) -> tuple[str, str]:
    """
    Return the log's storage, whole, and the source; wait a little for one that just begins.

    `BadDataDirectory` where there is no log, `WrongValue` where there are several.
    """
    place = _place(options.log)
    above, _, last = place.rpartition("/")
    # A source's own folder, as a log lies in its storage: <data>/log/<source>.
    data = above.removesuffix("/log")
    # A bucket may be named log, too: what is left of it is no place.
    folder = data != above and elsewhere(data) == elsewhere(above)
    inside = folder and not _names(storage_at(place), "log")
    if inside:
        if options.source not in (None, last):
            raise WrongValue(
                "The log is of another source",
                option="source",
                remedy="Give the data directory, or leave the option source out.",
            )
        files = storage_at(data)
        names = _until(lambda: [each for each in _sources(files) if each == last] or None, wait)
    else:
        # Asked each time: an engine that just begins notes where its log lies.
        names = _until(lambda: _sources(_storage(place)) or None, wait)
        files = _storage(place)
    if not names:
        raise BadDataDirectory(
            "There is no change log here",
            folder=place,
            remedy="Give the data directory that an engine or hr.record writes to.",
        )
    if inside or (options.source is None and len(names) == 1):
        return files.path(""), names[0]
    if options.source in names:
        return files.path(""), str(options.source)
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
    return LogReader.open(storage_at(data), source)


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


def _storage(place: str) -> Files:
    return storage_at(place) if elsewhere(place) else storage_of(place)


def _sources(files: Files) -> list[str]:
    return [each for each in _names(files, "log") if "index" in _names(files, f"log/{each}")]


def _names(files: Files, folder: str) -> list[str]:
    try:
        return files.list(folder)
    except StorageError:
        # A bucket that cannot be looked into is told of; a path to nowhere is no log.
        if files.local:
            return []
        raise


def _place(text: str) -> str:
    address = urlsplit(text)
    if address.scheme == "file":
        return str(Path(unquote(address.path)).absolute())
    if not elsewhere(text):
        return str(Path(text).expanduser().absolute())
    if address.scheme not in _BUCKETS:
        raise WrongValue(
            "Executors read the log from a folder, or from S3",
            option="log",
            remedy="Give a path that is the same on every machine, or s3://bucket/prefix.",
        )
    return storage_at(text).path("")
