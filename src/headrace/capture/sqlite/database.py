"""
Connections to the user's database: errors, rows, our names in it, and positions in its log.

The database belongs to the application. So a missing file is never created, the journal
mode is never changed, and our transactions are as short as possible (R42, R44).

Only the standard library's SQLite is used: two SQLite libraries in one process cancel
each other's file locks, because POSIX drops all locks of a file with the first close.
For the same reason nothing here opens the database file in any other way.

Rows are fetched within limits, as SQLite returns them. Text is decoded by Python's `sqlite3` as
long as it is UTF-8; if a row is not, the same query runs once more with a decoder that accepts
any bytes.

A database may have several capture logs, each with its own triggers, numbers and readers: one has
the names that the engine uses, others are named after their log table (`CaptureNames`). All names
that capture creates begin with the same prefix, so that they can be distinguished from the
application's; only a log table with another name does not. It is recognised by its companion
table, whose name contains the log's name.

A position in the capture log is a `CapturePosition`. The log table has no AUTOINCREMENT, so a log
that was emptied starts again at 1, and a number alone would then point into another history
unnoticed. So a position also has facts about the row it names (`row_facts`), and reading continues
only if that row still exists and has the same facts (R40). This detects a log that was emptied as
well as a database that was restored from a copy.
"""

from __future__ import annotations

import os
import re
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

from headrace.errors import (
    BadPosition,
    CaptureError,
    HeadraceError,
    Reopening,
    SourceRefused,
    SourceUnreachable,
)

# --- the connection -------------------------------------------------------------------------------

LOCK_SECONDS = 5.0
"""How long set-up waits for the application to release its lock."""

OLDEST = (3, 37, 0)
"""The first SQLite with a pragma that distinguishes views, virtual and strict tables."""


_T = TypeVar("_T")

_ASCII_LOWER = {code: code + 32 for code in range(ord("A"), ord("Z") + 1)}


def lenient(data: bytes) -> str:
    """Decode a TEXT value; SQLite never checks what an application stores there."""
    # Bytes that are not UTF-8 become lone surrogates, and get an exact text (R23f).
    return data.decode(errors="surrogateescape")


def quoted(name: str) -> str:
    """Return `name` as a quoted identifier, whatever characters it has."""
    return '"' + name.replace('"', '""') + '"'


def folded(name: str) -> str:
    """Return `name` as SQLite compares names: the case of A to Z does not matter."""
    return name.translate(_ASCII_LOWER)


def connect(path: str, timeout: float = LOCK_SECONDS) -> sqlite3.Connection:
    """Open an existing database for reading and writing; never create one."""
    if sqlite3.sqlite_version_info < OLDEST:
        raise SourceRefused(
            "The SQLite library of this Python installation is too old",
            version=sqlite3.sqlite_version,
            remedy="Use a Python with SQLite 3.37 or later.",
        )
    if not Path(path).exists():
        raise SourceRefused("Database not found", path=path, remedy="Check the path.")
    if not Path(path).is_file():
        raise SourceRefused(
            "Path is not a file", path=path, remedy="Use the path of the database file."
        )
    if not os.access(path, os.R_OK):
        raise SourceRefused("No permission to read the database file", path=path)
    # A path may contain ? or %: only a quoted URI opens the right file.
    uri = f"file:{quote(path)}?mode=rw"
    with speaking(path):
        database = sqlite3.connect(
            uri, uri=True, timeout=timeout, isolation_level=None, check_same_thread=False
        )
        try:
            # Read the file here, so that a wrong one is reported at once.
            database.execute("pragma schema_version").fetchone()
        except sqlite3.Error:
            database.close()
            raise
        return database


@contextmanager
def speaking(path: str) -> Iterator[None]:
    """Translate SQLite's errors; their text is left out, because it can contain values."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        raise _translated(error, path) from error


@contextmanager
def opened(path: str) -> Iterator[sqlite3.Connection]:
    """Connect for the duration of the block, in which SQLite's errors are translated."""
    database = connect(path)
    try:
        with speaking(path):
            yield database
    finally:
        database.close()


def pragma(database: sqlite3.Connection, name: str) -> Any:
    """Return the value of a pragma."""
    return database.execute(f"pragma {name}").fetchone()[0]


def has_wal(database: sqlite3.Connection) -> bool:
    """Whether the database is in WAL mode: readers and writers do not block each other."""
    return bool(pragma(database, "journal_mode") == "wal")


def set_lock_timeout(database: sqlite3.Connection, seconds: float) -> None:
    """Set how long one statement waits for a lock; this wait cannot be interrupted."""
    database.execute(f"pragma busy_timeout = {int(seconds * 1000)}")


def relax_commits(database: sqlite3.Connection) -> None:
    """Commit without an fsync in WAL mode: this connection only stores cursors and prunes."""
    # After a power cut a batch may be delivered twice. An fsync under the write lock would slow
    # down the application.
    if has_wal(database):
        database.execute("pragma synchronous = normal")


LOOK_SECONDS = 10.0
"""The longest time between two looks at a schema that has not changed by its version."""


class SchemaWatch:
    """
    Calls `look` the first time, and whenever the schema has changed since the last call.

    The schema's version does not show everything: with `PRAGMA writable_schema` it can be altered
    without a new one. So `look` is also called again after a while, if there are calls at all.

    Must be called within a read transaction. If `look` raises, it is called again next time.
    """

    def __init__(self, database: sqlite3.Connection, look: Callable[[], None]) -> None:
        self._database = database
        self._look = look
        self._version = -1
        self._looked = 0.0
        self._stale = False
        """Whether there was a call since the last look."""

    def __call__(self) -> None:
        version: int = pragma(self._database, "schema_version")
        if version != self._version or self._passed:
            self._look()
            self._version, self._looked, self._stale = version, time.monotonic(), False
        else:
            self._stale = True

    @property
    def current(self) -> bool:
        """Whether the schema has the version that `look` has seen."""
        return bool(pragma(self._database, "schema_version") == self._version)

    @property
    def due(self) -> bool:
        """Whether to call again although nothing has changed since the last call."""
        return self._stale and self._passed

    @property
    def _passed(self) -> bool:
        return time.monotonic() >= self._looked + LOOK_SECONDS

    def again(self) -> None:
        """Let the next call run `look`, whatever the version."""
        self._version = -1


@contextmanager
def reading(database: sqlite3.Connection) -> Iterator[None]:
    """Run the block on one snapshot."""
    database.execute("begin")
    try:
        yield
    finally:
        if database.in_transaction:
            database.execute("rollback")


def probe_writing(database: sqlite3.Connection) -> None:
    """Check that tables can be created here, without leaving anything behind."""
    database.execute("begin immediate")
    try:
        # The lock alone does not show it: SQLite grants a read lock on a read-only file.
        database.execute("create table __headrace_probe (x)")
    finally:
        database.execute("rollback")


@contextmanager
def writing(database: sqlite3.Connection) -> Iterator[None]:
    """Run the block in one transaction that has the write lock from the start."""
    database.execute("begin immediate")
    try:
        yield
        database.execute("commit")
    finally:
        if database.in_transaction:
            database.execute("rollback")


def busy(error: sqlite3.Error) -> bool:
    """Whether another connection holds the lock."""
    return _primary(error) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def patiently(work: Callable[[], _T], locked: Callable[[], None] | None) -> _T:
    """
    Do `work`, and retry it while another connection holds the lock.

    Between two attempts `locked` is called: it waits, or raises to give up. Without it there is
    only one attempt.
    """
    while True:
        try:
            return work()
        except sqlite3.OperationalError as error:
            if locked is None or not busy(error):
                raise
        locked()


def undecodable(error: sqlite3.Error) -> bool:
    """Whether a TEXT value was not UTF-8; Python raises this error without a code."""
    return isinstance(error, sqlite3.OperationalError) and str(error).startswith("Could not decode")


def _primary(error: sqlite3.Error) -> int | None:
    code: int | None = getattr(error, "sqlite_errorcode", None)
    return None if code is None else code & 0xFF


def _translated(error: sqlite3.DatabaseError, path: str) -> HeadraceError:
    name = getattr(error, "sqlite_errorname", type(error).__name__)
    if name == "SQLITE_READONLY_DBMOVED":
        return SourceUnreachable("The database file was replaced", path=path)
    match _primary(error):
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return SourceUnreachable("Database is locked", path=path)
        case sqlite3.SQLITE_NOTADB:
            return SourceRefused("Not a SQLite database", path=path, remedy="Check the path.")
        case sqlite3.SQLITE_CORRUPT:
            return SourceRefused(
                "The database file is corrupt",
                path=path,
                remedy="Run PRAGMA integrity_check, and restore the file from a backup.",
            )
        case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_PERM | sqlite3.SQLITE_AUTH:
            return SourceRefused(
                "The database is read-only, so capture triggers cannot be created",
                path=path,
                remedy="Allow this user to write to the file and to its folder.",
            )
        case sqlite3.SQLITE_CANTOPEN:
            return SourceRefused("The database file cannot be opened", path=path)
        case sqlite3.SQLITE_IOERR | sqlite3.SQLITE_FULL | sqlite3.SQLITE_PROTOCOL:
            return SourceUnreachable(
                "The database file cannot be read or written", path=path, error=name
            )
        case sqlite3.SQLITE_ERROR | sqlite3.SQLITE_SCHEMA:
            # Our queries are valid for the schema they were built for, so it was changed.
            return Reopening("A table was altered while it was read", path=path)
    return CaptureError("SQLite reported an error", path=path, error=name)


# --- fetching rows --------------------------------------------------------------------------------

PART_ROWS = 64
"""Maximum number of rows fetched between two checks of the limits."""

LEAST_ROWS = 256
"""Minimum number of rows of a slow query: otherwise it could run again for every single row."""

Row = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class ReadLimits:
    """How much may be read at once."""

    most: int
    bytes: int
    until: float
    """A monotonic time; a query whose first row comes later still returns `LEAST_ROWS`."""


def fetch(
    database: sqlite3.Connection, sql: str, values: Sequence[object], limits: ReadLimits
) -> tuple[list[Row], bool]:
    """Return rows up to one of the limits, at least one, and whether these were all."""
    try:
        return _fetch(database, sql, values, limits)
    except sqlite3.OperationalError as error:
        if not undecodable(error):
            raise
    database.text_factory = lenient
    try:
        return _fetch(database, sql, values, limits)
    finally:
        database.text_factory = str


def _fetch(
    database: sqlite3.Connection, sql: str, values: Sequence[object], limits: ReadLimits
) -> tuple[list[Row], bool]:
    cursor = database.execute(sql, values)
    rows: list[Row] = []
    size = 0
    step = 1
    least = 0
    try:
        while True:
            part = cursor.fetchmany(step)
            rows += part
            if len(part) < step:
                return rows, len(rows) < limits.most
            weight = _size(part, len(rows) // PART_ROWS)
            size += weight
            late = time.monotonic() >= limits.until
            if late and len(rows) == 1:
                least = LEAST_ROWS
            if len(rows) >= limits.most or size >= limits.bytes or (late and len(rows) >= least):
                return rows, False
            # Rows may have many megabytes: fetch as many as fit if they are like the last ones.
            fitting = (limits.bytes - size) * len(part) // max(1, weight)
            step = max(1, min(4 * step, PART_ROWS - len(rows) % PART_ROWS, fitting))
    finally:
        cursor.close()


_SIZED = (str, bytes)


def _size(rows: Sequence[Row], turn: int) -> int:
    """
    Estimate the bytes of `rows`, because measuring all of them is expensive.

    All rows are measured if there are few, otherwise every sixteenth, shifted with each turn.
    """
    every = 16 if len(rows) >= PART_ROWS else 1
    size = 0
    # A loop, and a tuple of types: this runs for every read, and is three times as fast.
    for row in rows[turn % every :: every]:
        for value in row:
            size += len(value) if isinstance(value, _SIZED) else 8
    return size * every


# --- names in the user's database -----------------------------------------------------------------

PREFIX = "__headrace"
"""The prefix of all names that we create in the user's database."""

EVENTS = (("insert", 0), ("update", 1), ("delete", 2))
"""The events of triggers, with their numbers in a log row: those of `changelog.change.Op`."""

INSERT, UPDATE, DELETE = (number for _, number in EVENTS)

_DEFAULT_LOG = f"{PREFIX}_log"
_BARE = re.compile(r"__[a-z0-9_]+")


@dataclass(frozen=True, slots=True)
class CaptureNames:
    """The names of one capture log and of what belongs to it."""

    log_table: str = _DEFAULT_LOG

    @classmethod
    def of(cls, log_table: str) -> CaptureNames:
        """Return the names for a log table that a user chose."""
        lower = log_table.lower()
        if lower == _DEFAULT_LOG:
            return cls()
        if not log_table.strip() or "\0" in log_table or lower.startswith((PREFIX, "sqlite_")):
            raise SourceRefused(
                "The name of the capture log is not valid",
                log_table=log_table,
                remedy=f"Use a name that begins neither with {PREFIX} nor with sqlite_.",
            )
        return cls(log_table)

    @property
    def log(self) -> str:
        """The log table, as SQL text."""
        return _sql(self.log_table)

    @property
    def meta(self) -> str:
        """The table with format and uuid."""
        return _sql(self.companion("meta"))

    @property
    def tables(self) -> str:
        """The table of plans: which columns were captured, by number."""
        return _sql(self.companion("tables"))

    @property
    def readers(self) -> str:
        """The table of readers and their cursors."""
        return _sql(self.companion("readers"))

    @property
    def stash(self) -> str:
        """The table of rows that REPLACE may be about to remove."""
        return _sql(self.companion("stash"))

    @property
    def rowids(self) -> str:
        """The table that shows whether VACUUM has renumbered rows."""
        return _sql(self.companion("rowids"))

    @property
    def seal(self) -> str:
        """The trigger that is created after all others."""
        return self.companion("seal")

    def companion(self, name: str) -> str:
        """Return the name of a table or trigger that belongs to the log."""
        return f"{self._stem}_{name}"

    def trigger(self, plan: int, event: str) -> str:
        """Return the name of the trigger of a plan."""
        return f"{self._stem}_{plan}_{event}"

    def owns(self, trigger: str) -> bool:
        """Whether a trigger writes into this log."""
        return self.plan_of(trigger) is not None

    def plan_of(self, trigger: str) -> int | None:
        """Return the plan that a trigger was created for; None if it is not of this log."""
        events = "|".join(event for event, _ in EVENTS)
        pattern = rf"{re.escape(self._stem)}_(\d+)_(?:before_|replaced_)?({events})"
        match = re.fullmatch(pattern, trigger, re.IGNORECASE)
        return None if match is None else int(match[1])

    @property
    def _stem(self) -> str:
        return PREFIX if self.log_table == _DEFAULT_LOG else f"{PREFIX}_{self.log_table}"


OURS = CaptureNames()
"""The names that the engine uses."""


def is_ours(name: str, every: frozenset[str]) -> bool:
    """Whether we created the table called `name`; `every` are all names, in lower case."""
    lower = name.lower()
    return lower.startswith(PREFIX) or f"{PREFIX}_{lower}_meta" in every


def _sql(name: str) -> str:
    # Unquoted if possible: the text of triggers from earlier versions must stay the same.
    return name if _BARE.fullmatch(name) else quoted(name)


# --- positions in the capture log -----------------------------------------------------------------

_TEXT = re.compile(r"([0-9a-f]{32})/(0|[1-9][0-9]{0,18})/(-?[0-9]+\.[0-9]+\.[0-9]+)?")


@dataclass(frozen=True, slots=True)
class CapturePosition:
    """The position of a row in the capture log: the last row that was read."""

    capture: str
    """The capture's uuid, created at set-up: its numbers have a meaning only within it."""

    seq: int
    row_facts: str = ""
    """Time, table and operation of that row: `ts.tbl.op`."""

    @property
    def lineage(self) -> str:
        """The lineage: numbers of two captures cannot be compared."""
        return f"sqlite/{self.capture}"

    @property
    def commit(self) -> int:
        """Each logged change is a commit: positions do not depend on the reader (R41)."""
        return self.seq

    def __str__(self) -> str:
        return f"{self.capture}/{self.seq}/{self.row_facts}"

    @classmethod
    def of(cls, capture: str, row: Row) -> CapturePosition:
        """Return the position of a row of the log, which begins with seq, ts, tbl and op."""
        return cls(capture, int(str(row[0])), row_facts(*row[1:4]))

    @classmethod
    def parse(cls, text: str) -> CapturePosition:
        """Read back what `str()` wrote; anything else raises `BadPosition`."""
        if (match := _TEXT.fullmatch(text)) is None:
            raise BadPosition("The text is not a position in a SQLite capture log", text=text)
        return cls(match[1], int(match[2]), match[3] or "")


def row_facts(ts: object, tbl: object, op: object) -> str:
    """Return the facts by which a row is recognised later."""
    return f"{ts}.{tbl}.{op}"
