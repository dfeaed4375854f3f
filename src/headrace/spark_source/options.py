"""
The options of `.option(name, value)`, checked once, and the log that they lead to.

Spark gives every name in lower case and adds some of its own; ours are compared without regard to
case. An unknown option is an error that names the nearest one: a misspelled `endingVersion` would
otherwise give more rows than were asked for.

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
"""Where reading begins; a number is a commit's, a position and a time are included."""

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
"""What Spark adds by itself; a path is taken for the log where none is named."""

_OF_TABLE: Final = "option."
"""So begin the options of a catalog's table, which has properties of Spark's own besides."""

LEASE_SECONDS: Final = 3600.0
"""For so long a named reader's place is kept after it was last heard of."""

WAIT_SECONDS: Final = 10.0
"""A recorder that was started a moment ago has not written what a table looks like yet."""


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Everything that was asked for."""

    log: str
    """The data directory, or a source's folder in it, as it was given."""

    table: str
    source: str | None = None
    start: Start = "earliest"
    end: End = None
    most_rows: int | None = None
    reader: str | None = None
    lease: float = LEASE_SECONDS
    images: Literal["after", "both"] = "after"
    columns: tuple[str, ...] | None = None
    """The table's columns that are wanted; None: all."""

    where: str | None = None
    marks: bool = False
    on_truncate: Literal["fail", "row", "ignore"] = "fail"
    on_schema_change: Literal["fail", "continue"] = "fail"
    on_gap: Literal["fail", "continue"] = "fail"
    wait: float = WAIT_SECONDS

    def __repr__(self) -> str:
        # Spark prints it; a predicate has values in it.
        shown = (f.name for f in fields(self) if f.name != "where")
        return f"Options({', '.join(f'{name}={getattr(self, name)!r}' for name in shown)})"


_WITHOUT = (
    " In SQL, Spark 4.2 reads a table of a catalog without its options; write instead:"
    " create temporary view … using headrace options (log '…', table '…')."
)


def parse_options(given: Mapping[str, str]) -> ReadOptions:
    """Return what these options say; `UnknownKey`, `MissingKey` or `WrongValue`."""
    named = _named(given)
    without = "" if named else _WITHOUT
    folder = named.pop("log", None) or _path(given)
    if not folder:
        raise MissingKey(
            "Where is the log?",
            option="log",
            remedy='Give the data directory: .option("log", "headrace-data").' + without,
        )
    if not named.get("table"):
        raise MissingKey(
            "Which table?", option="table", remedy='Name it: .option("table", "orders").' + without
        )
    take = named.get
    _check_reader(take("reader"), take("lease"))
    if _flag("pushdown", take("pushdown")):
        # Spark shares the filters it has pushed among all uses of a frame: rows would be missing.
        raise WrongValue(
            "Spark pushes filters in a way that loses rows",
            option="pushdown",
            remedy="Say it with the option where, which reads as little.",
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
        marks=_flag("marks", take("marks")),
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
    """Raise where something was asked for that a DataFrame of `spark.read` cannot do."""
    if options.start == "latest":
        raise WrongValue(
            "What comes later is read by a stream",
            option="startingPosition",
            remedy="Use spark.readStream, or begin at earliest, baseline or a position.",
        )
    if options.most_rows is not None:
        raise WrongValue(
            "Only a stream has batches",
            option="maxRowsPerBatch",
            remedy="Leave it out, or use spark.readStream.",
        )


def check_stream(options: ReadOptions, *, admission: bool) -> None:
    """Raise where something was asked for that a stream cannot do; `admission`: it has limits."""
    if options.end is not None:
        raise WrongValue(
            "A stream does not end at a place",
            option="ending…",
            remedy="Use spark.read for a part; a stream that ends has the trigger availableNow.",
        )
    if options.most_rows is not None and not admission:
        raise WrongValue(
            "This version of Spark asks a source for all there is",
            option="maxRowsPerBatch",
            remedy="Use Spark 4.2 or later, or leave it out.",
        )
    if isinstance(options.start, datetime) and options.start > datetime.now(UTC):
        # What is committed until then would be given, too: a place in the log is no time.
        raise WrongValue(
            "This time is still to come",
            option="startingTimestamp",
            remedy="Begin with startingPosition=latest, and filter: _commit_timestamp >= ….",
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
                "No such option",
                option=key,
                remedy=f"Did you mean {near}?" if near else f"There are: {', '.join(NAMES)}.",
            )
    return found


def _check_reader(name: str | None, lease: str | None) -> None:
    if name is not None and NAME.fullmatch(name) is None:
        raise WrongValue(
            "This is no name of a reader",
            option="reader",
            remedy="Up to 100 letters, digits, dots, dashes and underscores: my-copy.",
        )
    if lease is not None and (name is None or _seconds("lease", lease, 0.0) <= 0):
        raise WrongValue(
            "Nothing is kept for nobody, or for no time",
            option="lease",
            remedy="Give a time, and a name with the option reader.",
        )


def _path(given: Mapping[str, str]) -> str | None:
    return next((value for key, value in given.items() if key.lower() == "path"), None)


def _only(named: Mapping[str, str], side: str) -> tuple[str, str] | None:
    """Return the one option that tells where a part begins or ends."""
    found = [
        (kind, named[f"{side}{kind}"])
        for kind in ("Position", "Version", "Timestamp")
        if named.get(f"{side}{kind}")
    ]
    if len(found) > 1:
        raise WrongValue(
            "Two places at once",
            options=" ".join(f"{side}{kind}" for kind, _ in found),
            remedy="Give one of them.",
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
            f"This is not {what}",
            option=name,
            remedy="Positions stand in the column _position: 0001-00000000000004b4-00000000.",
        ) from None


def _version(name: str, text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) >= 2**63:
        raise WrongValue(
            "This is no version", option=name, remedy="Versions stand in _commit_version: 1204."
        )
    return int(text)


def _time(name: str, text: str) -> datetime:
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        found = None
    if found is None or found.tzinfo is None:
        raise WrongValue(
            "This is no time with its offset from UTC",
            option=name,
            remedy="Write it like 2026-11-15T12:30:00+00:00, or with Z.",
        )
    return found


def _count(name: str, text: str | None) -> int | None:
    if text is None:
        return None
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise WrongValue("This is no number of rows", option=name, remedy="Write 1 or more.")
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
        raise WrongValue("No such choice", option=name, remedy=f"There are: {', '.join(allowed)}.")
    return text.lower()


def _flag(name: str, text: str | None) -> bool:
    return _one(name, text, ("false", "true")) == "true"


def _list(text: str | None) -> tuple[str, ...] | None:
    if text is None:
        return None
    found = tuple(name.strip().strip("`") for name in text.split(",") if name.strip())
    if not found:
        raise WrongValue(
            "No column is named", option="columns", remedy="Name one or more, or leave it out."
        )
    return found


# --- where a log is -------------------------------------------------------------------------------

_POLL_SECONDS = 0.05
_BUCKETS = ("s3", "s3a")

T = TypeVar("T")


def located(options: ReadOptions, wait: float) -> tuple[str, str]:
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
