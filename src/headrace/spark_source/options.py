"""
The options of `.option(name, value)`, checked once, and the log that they point to.

Spark passes every name in lower case and adds some of its own, so case is ignored. An unknown
option is an error that suggests the nearest one: a misspelled `endingVersion` would otherwise
return more rows than requested.

A log is found by a data directory or a bucket, and a source in it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Literal, TypeAlias, TypeVar
from urllib.parse import unquote, urlsplit

from headrace.changelog.position import Position
from headrace.changelog.reader import LogReader
from headrace.changelog.retention import NAME
from headrace.config.schema import nearest
from headrace.config.units import duration
from headrace.errors import (
    BadDataDirectory,
    BadPosition,
    MissingKey,
    StorageError,
    UnknownKey,
    UnknownTable,
    WrongValue,
)
from headrace.storage.files import Files
from headrace.storage.locations import elsewhere
from headrace.storage.s3 import opened as storage_at
from headrace.storage.s3 import storage_of

# --- options --------------------------------------------------------------------------------------

Start: TypeAlias = Literal["earliest", "latest", "baseline"] | Position | datetime | int
"""Where reading begins, inclusive; a number is a commit number."""

End: TypeAlias = Position | datetime | int | None

NAMES: Final = (
    "log",
    "source",
    "table",
    "startingPosition",
    "startingVersion",
    "startingTimestamp",
    "endingPosition",
    "endingVersion",
    "endingTimestamp",
    "maxRowsPerBatch",
    "reader",
    "lease",
    "images",
    "columns",
    "where",
    "pushdown",
    "marks",
    "onTruncate",
    "onSchemaChange",
    "onGap",
    "wait",
)
_LOWER: Final = {name.lower(): name for name in NAMES}

_SPARKS: Final = frozenset({"path", "serialization.format"})
"""Options that Spark adds itself; the path is the log if the option log is missing."""

_OF_TABLE: Final = "option."
"""Prefix of the options of a catalog table, which also has properties of Spark's own."""

LEASE_SECONDS: Final = 3600.0
"""How long the log is kept for a named reader after it was last seen."""

WAIT_SECONDS: Final = 10.0
"""A recorder that was just started has not written the table's schema yet."""


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """The checked options of a query."""

    log: str
    """The data directory, or a source's folder in it, as the user wrote it."""

    table: str
    source: str | None = None
    start: Start = "earliest"
    end: End = None
    most_rows: int | None = None
    reader: str | None = None
    lease: float = LEASE_SECONDS
    images: Literal["after", "both"] = "after"
    columns: tuple[str, ...] | None = None
    """The table's columns to return; None for all."""

    where: str | None = None
    markers: bool = False
    """The option `marks`."""

    on_truncate: Literal["fail", "row", "ignore"] = "fail"
    on_schema_change: Literal["fail", "continue"] = "fail"
    on_gap: Literal["fail", "continue"] = "fail"
    wait: float = WAIT_SECONDS

    def __repr__(self) -> str:
        # Spark prints this, and a predicate contains values.
        shown = (f.name for f in fields(self) if f.name != "where")
        return f"Options({', '.join(f'{name}={getattr(self, name)!r}' for name in shown)})"


_WITHOUT = (
    " In SQL, Spark 4.2 reads a catalog table without its options. Use a view instead:"
    " create temporary view … using headrace options (log '…', table '…')."
)


def parse_options(given: Mapping[str, str]) -> ReadOptions:
    """Check and return these options; `UnknownKey`, `MissingKey` or `WrongValue`."""
    named = _named(given)
    without = "" if named else _WITHOUT
    folder = named.pop("log", None) or _path(given)
    if not folder:
        raise MissingKey(
            "The option log is missing",
            option="log",
            remedy='Set it to the data directory: .option("log", "headrace-data").' + without,
        )
    if not named.get("table"):
        raise MissingKey(
            "The option table is missing",
            option="table",
            remedy='Set it to the name of a table: .option("table", "orders").' + without,
        )
    take = named.get
    _check_reader(take("reader"), take("lease"))
    if _flag("pushdown", take("pushdown")):
        # Spark shares pushed filters among all uses of a frame, so that rows would be missing.
        raise WrongValue(
            "pushdown=true is not supported: with pushed filters, Spark can lose rows",
            option="pushdown",
            remedy="Use the option where instead, which reads no more than a pushed filter.",
        )
    return ReadOptions(
        log=folder,
        table=named["table"],
        source=take("source"),
        start=_start(named),
        end=_end(named),
        most_rows=_count("maxRowsPerBatch", take("maxRowsPerBatch")),
        reader=take("reader"),
        lease=_seconds("lease", take("lease"), LEASE_SECONDS),
        images=_one("images", take("images"), ("after", "both")),  # type: ignore[arg-type]
        columns=_list(take("columns")),
        where=take("where") or None,
        markers=_flag("marks", take("marks")),
        on_truncate=_one(  # type: ignore[arg-type]
            "onTruncate", take("onTruncate"), ("fail", "row", "ignore")
        ),
        on_schema_change=_one(  # type: ignore[arg-type]
            "onSchemaChange", take("onSchemaChange"), ("fail", "continue")
        ),
        on_gap=_one("onGap", take("onGap"), ("fail", "continue")),  # type: ignore[arg-type]
        wait=_seconds("wait", take("wait"), WAIT_SECONDS),
    )


def check_batch(options: ReadOptions) -> None:
    """Raise if an option is set that a DataFrame of `spark.read` does not support."""
    if options.start == "latest":
        raise WrongValue(
            "startingPosition=latest is only for streams",
            option="startingPosition",
            remedy="Use spark.readStream, or start at earliest, baseline or a position.",
        )
    if options.most_rows is not None:
        raise WrongValue(
            "maxRowsPerBatch is only for streams",
            option="maxRowsPerBatch",
            remedy="Leave it out, or use spark.readStream.",
        )


def check_stream(options: ReadOptions, *, admission: bool) -> None:
    """Raise if an option is set that a stream does not support; `admission`: Spark has limits."""
    if options.end is not None:
        raise WrongValue(
            "A stream cannot have an end position",
            option="ending…",
            remedy="Use spark.read to read part of the log, or end the stream with"
            " .trigger(availableNow=True).",
        )
    if options.most_rows is not None and not admission:
        raise WrongValue(
            "This version of Spark does not support maxRowsPerBatch",
            option="maxRowsPerBatch",
            remedy="Use Spark 4.2 or later, or leave it out.",
        )
    if isinstance(options.start, datetime) and options.start > datetime.now(UTC):
        # Changes committed before that time would be delivered, too: an offset is not a time.
        raise WrongValue(
            "startingTimestamp must not be in the future for a stream",
            option="startingTimestamp",
            remedy="Use startingPosition=latest, and filter: _commit_timestamp >= ….",
        )


# --- inside --------------------------------------------------------------------------------


def _named(given: Mapping[str, str]) -> dict[str, str]:
    found: dict[str, str] = {}
    if of_table := [key for key in given if key.lower().startswith(_OF_TABLE)]:
        ours = {key: value for key, value in given.items() if key.lower() in _LOWER}
        given = {**ours, **{key[len(_OF_TABLE) :]: given[key] for key in of_table}}
    for key, value in given.items():
        name = _LOWER.get(key.lower())
        if name is not None:
            found[name] = value.strip()
        elif key.lower() not in _SPARKS:
            near = nearest(key, NAMES)
            raise UnknownKey(
                f"There is no option {key}",
                option=key,
                remedy=f"Did you mean {near}?" if near else f"The options are: {', '.join(NAMES)}.",
            )
    return found


def _check_reader(name: str | None, lease: str | None) -> None:
    if name is not None and NAME.fullmatch(name) is None:
        raise WrongValue(
            f"{name!r} is not a valid reader name",
            option="reader",
            remedy="Use up to 100 characters of A-Z, a-z, 0-9, dot, dash and underscore, such as"
            " my-copy.",
        )
    if lease is not None and (name is None or _seconds("lease", lease, 0.0) <= 0):
        raise WrongValue(
            "The option lease must be longer than 0, and needs the option reader",
            option="lease",
            remedy="Set lease to a duration such as 1h, and reader to a name.",
        )


def _path(given: Mapping[str, str]) -> str | None:
    return next((value for key, value in given.items() if key.lower() == "path"), None)


def _only(named: Mapping[str, str], side: str) -> tuple[str, str] | None:
    """Return the one option that says where reading begins or ends."""
    found = [
        (kind, named[f"{side}{kind}"])
        for kind in ("Position", "Version", "Timestamp")
        if named.get(f"{side}{kind}")
    ]
    if len(found) > 1:
        raise WrongValue(
            f"Only one {side} position can be set",
            options=" ".join(f"{side}{kind}" for kind, _ in found),
            remedy="Leave out all of these options but one.",
        )
    return found[0] if found else None


def _start(named: Mapping[str, str]) -> Start:
    found = _only(named, "starting")
    if found is None:
        return "earliest"
    kind, text = found
    if kind == "Position":
        for word in ("earliest", "latest", "baseline"):
            if text.lower() == word:
                return word
        return _position("startingPosition", text, "earliest, latest, baseline or a position")
    return _moment(f"starting{kind}", kind, text)


def _end(named: Mapping[str, str]) -> End:
    found = _only(named, "ending")
    if found is None:
        return None
    kind, text = found
    if kind == "Position":
        return _position("endingPosition", text, "a position")
    return _moment(f"ending{kind}", kind, text)


def _moment(name: str, kind: str, text: str) -> int | datetime:
    return _version(name, text) if kind == "Version" else _time(name, text)


def _position(name: str, text: str, what: str) -> Position:
    try:
        return Position.parse(text)
    except BadPosition:
        raise WrongValue(
            f"{name} must be {what}, not {text!r}",
            option=name,
            remedy="Copy a position from the column _position: 0001-00000000000004b4-00000000.",
        ) from None


def _version(name: str, text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) >= 2**63:
        raise WrongValue(
            f"{name} must be a commit number, not {text!r}",
            option=name,
            remedy="Copy a number from the column _commit_version, such as 1204.",
        )
    return int(text)


def _time(name: str, text: str) -> datetime:
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        found = None
    if found is None or found.tzinfo is None:
        raise WrongValue(
            f"{name} must be a time with a UTC offset, not {text!r}",
            option=name,
            remedy="Write it as 2026-11-15T12:30:00+00:00 or 2026-11-15T12:30:00Z.",
        )
    return found


def _count(name: str, text: str | None) -> int | None:
    if text is None:
        return None
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise WrongValue(
            f"{name} must be a number of rows, not {text!r}",
            option=name,
            remedy="Use a whole number of 1 or more.",
        )
    return int(text)


def _seconds(name: str, text: str | None, default: float) -> float:
    if text is None:
        return default
    try:
        return duration(text)
    except WrongValue as error:
        error.facts = {"option": name, **error.facts}
        raise


def _one(name: str, text: str | None, allowed: tuple[str, ...]) -> str:
    if text is None:
        return allowed[0]
    if text.lower() not in allowed:
        raise WrongValue(
            f"{name} cannot be {text!r}", option=name, remedy=f"Use one of: {', '.join(allowed)}."
        )
    return text.lower()


def _flag(name: str, text: str | None) -> bool:
    return _one(name, text, ("false", "true")) == "true"


def _list(text: str | None) -> tuple[str, ...] | None:
    if text is None:
        return None
    found = tuple(name.strip().strip("`") for name in text.split(",") if name.strip())
    if not found:
        raise WrongValue(
            "The option columns is empty",
            option="columns",
            remedy="List one or more columns, or leave it out to read all.",
        )
    return found


# --- where a log is -------------------------------------------------------------------------------

_POLL_SECONDS = 0.05
_BUCKETS = ("s3", "s3a")

T = TypeVar("T")


def located(options: ReadOptions, wait: float) -> tuple[str, str]:
    """
    Return the log's storage as an absolute path, and the source; wait for a log being created.

    Raises `BadDataDirectory` if there is no log, `WrongValue` if there are several.
    """
    location = _location(options.log)
    above, _, last = location.rpartition("/")
    # The folder of one source, as logs are stored: <data>/log/<source>.
    data = above.removesuffix("/log")
    # A bucket may be named log, too: without its name, the rest is not a location.
    folder = data != above and elsewhere(data) == elsewhere(above)
    inside = folder and not _names(storage_at(location), "log")
    if inside:
        if options.source not in (None, last):
            raise WrongValue(
                f"The option log points to the log of source {last}, not {options.source}",
                option="source",
                remedy="Set log to the data directory, or leave out the option source.",
            )
        files = storage_at(data)
        names = _until(lambda: [each for each in _sources(files) if each == last] or None, wait)
    else:
        # Read each time: an engine that is starting writes the location of its log.
        names = _until(lambda: _sources(_storage(location)) or None, wait)
        files = _storage(location)
    if not names:
        raise BadDataDirectory(
            "The folder contains no change log",
            folder=location,
            remedy="Set the option log to the data directory that an engine or hr.record writes"
            " to.",
        )
    if inside or (options.source is None and len(names) == 1):
        return files.path(""), names[0]
    if options.source in names:
        return files.path(""), str(options.source)
    near = None if options.source is None else nearest(options.source, names)
    raise WrongValue(
        "The data directory has logs of several sources"
        if options.source is None
        else f"The data directory has no log of source {options.source}",
        option="source",
        sources=" ".join(names),
        remedy=f"Did you mean {near}?" if near else "Set the option source to one of them.",
    )


def opened(data: str, source: str) -> LogReader:
    """Open a log for reading."""
    return LogReader.open(storage_at(data), source)


def known_table(log: LogReader, table: str, wait: float) -> None:
    """Wait until the log has a table; `UnknownTable` with the tables that it has."""

    def there() -> bool | None:
        log.refresh()
        return table in log.tables() or None

    if _until(there, wait) is None:
        near = nearest(table, log.tables())
        raise UnknownTable(
            f"The log has no table {table}",
            table=table,
            tables=" ".join(sorted(log.tables())),
            remedy=f"Did you mean {near}?"
            if near
            else "Check the name, and that the engine captures the table.",
        )


def _until(look: Callable[[], T | None], wait: float) -> T | None:
    """Call `look` until it returns something; None if it times out."""
    until = time.monotonic() + wait
    while (found := look()) is None and time.monotonic() < until:
        time.sleep(_POLL_SECONDS)
    return found


wait_for = _until


def _storage(location: str) -> Files:
    return storage_at(location) if elsewhere(location) else storage_of(location)


def _sources(files: Files) -> list[str]:
    return [each for each in _names(files, "log") if "index" in _names(files, f"log/{each}")]


def _names(files: Files, folder: str) -> list[str]:
    try:
        return files.list(folder)
    except StorageError:
        # A bucket that cannot be listed is an error; a path that does not exist has no log.
        if files.local:
            return []
        raise


def _location(text: str) -> str:
    address = urlsplit(text)
    if address.scheme == "file":
        return str(Path(unquote(address.path)).absolute())
    if not elsewhere(text):
        return str(Path(text).expanduser().absolute())
    if address.scheme not in _BUCKETS:
        raise WrongValue(
            f"The option log must be a folder or a location on S3, not {address.scheme}://",
            option="log",
            remedy="Use a path that is the same on every machine, or s3://bucket/prefix.",
        )
    return storage_at(text).path("")
