"""
A connection to the user's database: its errors, its rows, our names in it, and places in its log.

The database belongs to the application. So a missing file is never created, the journal
mode is never changed, and no transaction of ours is longer than it must be (R42, R44).

Only the standard library's SQLite is used: two SQLite libraries in one process cancel
each other's file locks, because POSIX drops all locks of a file with the first close.
For the same reason nothing here opens the database file by other means.

Rows are fetched within limits, as SQLite hands them out. Text is decoded by SQLite's own binding
as long as it is UTF-8; the first row that is not makes the same query run once more with a
decoder that takes anything.

A database may have several capture logs side by side, each with triggers, numbers and readers
of its own: one has the names that the engine uses, others are named after their log table
(`CaptureNames`). All names that capture makes, but that of such a log table, begin with the same
prefix, so that they can be distinguished from the application's, and a log by the companion that
has its name in it.

A place in the capture log is a `CapturePosition`. The log table has no AUTOINCREMENT, so a log
that was emptied begins again at 1, and a number alone would then point into another history
unnoticed. So a place also carries a witness, facts about the row it names, and reading on begins
with a check whether that row is still there and the same (R40). This finds a wiped log as well as
a database that was restored from a copy.
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
    SourceRefused,
    SourceUnreachable,
)

# --- the connection -------------------------------------------------------------------------------

LOCK_SECONDS = 5.0
"""How long set-up waits for the application to let go of the database."""

OLDEST = (3, 37, 0)
"""The first SQLite that tells views, virtual and strict tables apart by pragma."""


_T = TypeVar("_T")

_ASCII_LOWER = {code: code + 32 for code in range(ord("A"), ord("Z") + 1)}


def lenient(data: bytes) -> str:
    """Decode a TEXT value; SQLite never checks what an application stores there."""
    # Bytes that are no UTF-8 travel as lone surrogates, and get an exact text (R23f).
    return data.decode(errors="surrogateescape")


def quoted(name: str) -> str:
    """Return `name` as an identifier, whatever it holds."""
    return '"' + name.replace('"', '""') + '"'


def folded(name: str) -> str:
    """Return `name` as SQLite compares names: two that differ only in A to Z are one."""
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
    # A path may hold ? or %: only a quoted URI opens the file that was named.
    uri = f"file:{quote(path)}?mode=rw"
    with speaking(path):
        database = sqlite3.connect(
            uri, uri=True, timeout=timeout, isolation_level=None, check_same_thread=False
        )
        try:
            # The file is looked at here, so that a wrong one is told apart at once.
            database.execute("pragma schema_version").fetchone()
        except sqlite3.Error:
            database.close()
            raise
        return database


@contextmanager
def speaking(path: str) -> Iterator[None]:
    """Translate SQLite's errors; their text is left out, because it can hold values."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        raise _translated(error, path) from error


@contextmanager
def opened(path: str) -> Iterator[sqlite3.Connection]:
    """Connect for the block, in which SQLite's errors are translated."""
    database = connect(path)
    try:
        with speaking(path):
            yield database
    finally:
        database.close()


def pragma(database: sqlite3.Connection, name: str) -> Any:
    """Return what a pragma says."""
    return database.execute(f"pragma {name}").fetchone()[0]


def has_wal(database: sqlite3.Connection) -> bool:
    """Whether readers and writers do not block each other."""
    return bool(pragma(database, "journal_mode") == "wal")


def set_lock_timeout(database: sqlite3.Connection, seconds: float) -> None:
    """Set how long one statement waits for a lock: nothing can end this wait."""
    database.execute(f"pragma busy_timeout = {int(seconds * 1000)}")


def relax_commits(database: sqlite3.Connection) -> None:
    """Commit without an fsync where there is a WAL: only cursors and prunes are written here."""
    # A power cut then costs a batch that comes twice. An fsync under the write lock would cost
    # the application.
    if has_wal(database):
        database.execute("pragma synchronous = normal")


class SchemaWatch:
    """
    Calls `look` the first time, and when the schema is another one than at the last look.

    To be called within a read transaction. If `look` raises, the next call looks again.
    """

    def __init__(self, database: sqlite3.Connection, look: Callable[[], None]) -> None:
        self._database = database
        self._look = look
        self._version = -1

    def __call__(self) -> None:
        version: int = pragma(self._database, "schema_version")
        if version != self._version:
            self._look()
            self._version = version

    def again(self) -> None:
        """Let the next call look, whatever the version."""
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
    """Make sure that something could be made here, and leave no trace of it."""
    database.execute("begin immediate")
    try:
        # The lock alone does not tell: of a read-only file SQLite takes it for reading.
        database.execute("create table __headrace_probe (x)")
    finally:
        database.execute("rollback")


@contextmanager
def writing(database: sqlite3.Connection) -> Iterator[None]:
    """Run the block in one transaction that holds the write lock from its beginning."""
    database.execute("begin immediate")
    try:
        yield
        database.execute("commit")
    finally:
        if database.in_transaction:
            database.execute("rollback")


def busy(error: sqlite3.Error) -> bool:
    """Whether somebody else holds the lock."""
    return _primary(error) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def patiently(work: Callable[[], _T], locked: Callable[[], None] | None) -> _T:
    """
    Do `work`, again and again while somebody else holds the lock.

    Between two attempts `locked` is called: it waits, or raises to give up. Without it the first
    attempt is the only one.
    """
    while True:
        try:
            return work()
        except sqlite3.OperationalError as error:
            if locked is None or not busy(error):
                raise
        locked()


def undecodable(error: sqlite3.Error) -> bool:
    """Whether a TEXT value was not UTF-8; Python raises this one without a code."""
    return isinstance(error, sqlite3.OperationalError) and str(error).startswith("Could not decode")


def _primary(error: sqlite3.Error) -> int | None:
    code: int | None = getattr(error, "sqlite_errorcode", None)
    return None if code is None else code & 0xFF


def _translated(error: sqlite3.DatabaseError, path: str) -> HeadraceError:
    name = getattr(error, "sqlite_errorname", type(error).__name__)
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
            # Our queries are right for the schema they were made for: somebody changed it.
            return SourceUnreachable("A table was altered while it was read", path=path)
    return CaptureError("SQLite reported an error", path=path, error=name)


# --- fetching rows --------------------------------------------------------------------------------

PART_ROWS = 64
"""How many rows are fetched between two looks at the limits, at most."""

LEAST_ROWS = 256
"""Of a query that takes long to begin: it would begin again for every single row."""

Row = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class ReadLimits:
    """How much may be read in one go."""

    most: int
    bytes: int
    until: float
    """By the monotonic clock; a query whose first row comes later than that gets `LEAST_ROWS`."""


def fetch(
    database: sqlite3.Connection, sql: str, values: Sequence[object], limits: ReadLimits
) -> tuple[list[Row], bool]:
    """Return rows up to one of the limits, at least one; with them, whether that was all."""
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
            # Rows may be of many megabytes: as many as may fit, if they are like the last ones.
            fitting = (limits.bytes - size) * len(part) // max(1, weight)
            step = max(1, min(4 * step, PART_ROWS - len(rows) % PART_ROWS, fitting))
    finally:
        cursor.close()


def _size(rows: Sequence[Row], turn: int) -> int:
    """
    Estimate the bytes of `rows`: weighing is dear.

    Few are weighed wholly, of many every sixteenth, other ones each turn.
    """
    every = 16 if len(rows) >= PART_ROWS else 1
    size = sum(
        len(value) if isinstance(value, str | bytes) else 8
        for row in rows[turn % every :: every]
        for value in row
    )
    return size * every


# --- names in the user's database -----------------------------------------------------------------

PREFIX = "__headrace"
"""How the names of everything begin that we make in the user's database."""

EVENTS = (("insert", 0), ("update", 1), ("delete", 2))
"""What triggers are for, and how a log row says it: the numbers of `changelog.change.Op`."""

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
        """Format and uuid."""
        return _sql(self.companion("meta"))

    @property
    def tables(self) -> str:
        """The plans: which columns were captured, by number."""
        return _sql(self.companion("tables"))

    @property
    def readers(self) -> str:
        """Who reads, and how far he is."""
        return _sql(self.companion("readers"))

    def companion(self, name: str) -> str:
        """Return the name of a table beside the log."""
        return f"{self._stem}_{name}"

    def trigger(self, plan: int, event: str) -> str:
        """Return the name of the trigger of a plan."""
        return f"{self._stem}_{plan}_{event}"

    def owns(self, trigger: str) -> bool:
        """Whether a trigger writes into this log."""
        return self.plan_of(trigger) is not None

    def plan_of(self, trigger: str) -> int | None:
        """Return the plan that a trigger was made for; None where it is not of this log."""
        events = "|".join(event for event, _ in EVENTS)
        pattern = rf"{re.escape(self._stem)}_(\d+)_({events})"
        match = re.fullmatch(pattern, trigger, re.IGNORECASE)
        return None if match is None else int(match[1])

    @property
    def _stem(self) -> str:
        return PREFIX if self.log_table == _DEFAULT_LOG else f"{PREFIX}_{self.log_table}"


OURS = CaptureNames()
"""The names that the engine uses."""


def is_ours(name: str, every: frozenset[str]) -> bool:
    """Whether the table called `name` was made by us; `every` are all names, in lower case."""
    lower = name.lower()
    return lower.startswith(PREFIX) or f"{PREFIX}_{lower}_meta" in every


def _sql(name: str) -> str:
    # Bare where it can be: the text of triggers that were made long ago must stay the same.
    return name if _BARE.fullmatch(name) else quoted(name)


# --- places in the capture log --------------------------------------------------------------------

_TEXT = re.compile(r"([0-9a-f]{32})/(0|[1-9][0-9]{0,18})/(-?[0-9]+\.[0-9]+\.[0-9]+)?")


@dataclass(frozen=True, slots=True)
class CapturePosition:
    """A row of the capture log: the last one read."""

    capture: str
    """The capture's uuid, made at set-up: what its numbers mean is known only within it."""

    seq: int
    witness: str = ""
    """Time, table and kind of that row: `ts.tbl.op`."""

    @property
    def lineage(self) -> str:
        """Numbers of two captures do not compare."""
        return f"sqlite/{self.capture}"

    @property
    def commit(self) -> int:
        """Each logged change is a commit: positions do not depend on who reads (R41)."""
        return self.seq

    def __str__(self) -> str:
        return f"{self.capture}/{self.seq}/{self.witness}"

    @classmethod
    def of(cls, capture: str, row: Row) -> CapturePosition:
        """Return the place of a row of the log: seq, ts, tbl, op, and whatever follows."""
        return cls(capture, int(str(row[0])), witness(*row[1:4]))

    @classmethod
    def parse(cls, text: str) -> CapturePosition:
        """Read back what `str()` wrote; anything else raises `BadPosition`."""
        if (match := _TEXT.fullmatch(text)) is None:
            raise BadPosition("The text is not a position in a SQLite capture log", text=text)
        return cls(match[1], int(match[2]), match[3] or "")


def witness(ts: object, tbl: object, op: object) -> str:
    """Return what is remembered of a row."""
    return f"{ts}.{tbl}.{op}"
