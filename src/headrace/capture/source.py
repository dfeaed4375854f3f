"""
The contract between a source and the recorder that reads it.

A source is pulled: the recorder's one thread calls it, owns the clock, and decides what is
flushed when. A source never writes to the log and never acknowledges on its own.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

import pyarrow as pa

from headrace.changelog.change import Changes
from headrace.changelog.position import SourcePosition
from headrace.changelog.schema import TableName, TableSchema
from headrace.errors import HeadraceError

__all__ = [
    "LEAST_LIMIT",
    "Baselines",
    "Copy",
    "ExplainsBreaks",
    "KeepsSnapshot",
    "Lag",
    "Lists",
    "Maintains",
    "PlannedBaseline",
    "Problem",
    "Recordable",
    "ReportsNotices",
    "Resets",
    "Room",
    "Shares",
    "Source",
    "SourceNotice",
    "SourcePosition",
    "SourceSpec",
    "SourceTraits",
    "Waits",
]


@dataclass(frozen=True, slots=True)
class SourceTraits:
    """What a source can do, as data: recorder and planner read it instead of testing types."""

    lineage: str
    """The prefix of its lineages: `sqlite`, `pg`, `log`, `test`."""

    ordering: Literal["total", "per_partition"] = "total"
    resumes: bool = True
    """Whether reading can continue after a restart; otherwise every start is a gap."""

    inserts_replace: bool = False
    """
    Whether an insert may have removed a row with the same key without reporting it, as
    SQLite's INSERT OR REPLACE does. A row that is filtered out is then deleted if present.
    """

    shares: bool = False
    """Whether it implements `Shares`: other processes can read its baselines in parts."""

    reports_notices: bool = False
    """Whether it implements `ReportsNotices`: it reports more than changes to the log."""

    maintains: bool = False
    """Whether it implements `Maintains`: what it set up at the database needs regular work."""

    counts_bytes: bool = False
    """Whether a commit's number is a byte offset in its own log, which it retains for us."""

    resets: bool = False
    """Whether it implements `Resets`: what we set up there can be removed and created again."""

    releases: bool = False
    """Whether it implements `Releases`: it can stop keeping changes for us."""

    waits: bool = False
    """Whether it implements `Waits`: `open` may wait for other sessions, even for hours."""

    keeps_snapshot: bool = False
    """Whether it implements `KeepsSnapshot`, so that a copy can begin in the past."""

    lists: bool = False
    """Whether it implements `Lists`, so that patterns can select tables."""

    measures_lag: bool = False
    """Whether `lag` asks the database itself, and returns an `age`."""

    explains_breaks: bool = False
    """Whether it implements `ExplainsBreaks`: why reading did not continue."""

    copy_rows_per_s: float | None = None
    """Maximum number of rows a second for copies, all tables together; None: no limit."""


@dataclass(frozen=True, slots=True)
class SourceSpec:
    """A source as plain values, so that a child process can build it again."""

    kind: str
    """The name it is registered under: `sqlite`."""

    name: str
    """The source's id, and the folder of its log."""

    options: Mapping[str, object] = field(repr=False)
    """Never printed: they may contain a connection string with its password."""


def reader_of(source: str, data: str | os.PathLike[str]) -> str:
    """Return the name of one reader of a source: the source's name and the data directory."""
    return f"{source}@{Path(data).resolve()}"


LEAST_LIMIT = 64 << 20
"""
The lowest limit that follows from the space on a disk.

If something else has filled the disk, removing less than this would not help.
"""


@dataclass(frozen=True, slots=True)
class Room:
    """What a source retains for us, and how much it may retain, as measured once (R28)."""

    used: int
    """Bytes that it retains only because of us."""

    limit: int | None = None
    """The most it may retain; beyond that we lose our position. None: no limit is set."""

    unacknowledged: int = 0
    """The part of `used` after the last acknowledgement (R4)."""

    ours: int = 0
    """The part of `unacknowledged` that would be freed if all that was read were acknowledged."""

    oldest: str = ""
    """What at the source itself keeps most of it from being freed, such as a session; or empty."""


@dataclass(frozen=True, slots=True)
class Lag:
    """How far reading is behind the source, as observed."""

    changes: int | None = None
    """Changes captured by the source and not yet read; None if that is not known."""

    seconds: float | None = None
    bytes: int | None = None
    """Bytes of the source's own log not yet read; None if it has no log."""

    room: Room | None = None
    """None if it was not measured since the last call: a measurement is not free."""

    age: float | None = None
    """
    How many seconds ago everything had been committed that is certain to have been read.

    Found by asking the database itself, never from what was read last. None: not known yet, or
    `measures_lag` is not set.
    """

    silence: float | None = None
    """Seconds since anything was received on the stream; None if the source has no stream."""


Problem = HeadraceError
"""What `check` finds: an error with its code and remedy, which is returned and not raised."""


class Source(Protocol):
    """
    Returns the changes of some tables, in commit order.

    *Order*: commits come in the order of their numbers; changes within a commit, by ordinal.
    *Duplicates*: after `open(after)` no commit at or before `after` is returned.
    *Durability*: none. What was read and not flushed is read again after a restart, so
    `read` must return the same changes with the same positions again.
    *Threads*: all calls except `wake` come from one thread.
    *Nothing to read*: `read` waits up to `wait` seconds and returns None.
    *Shutdown*: `close` may follow any call, also one that raised; it never raises.

    `SourceUnreachable` from any call means "try again later": the recorder closes the source,
    backs off and opens it again. Every other error stops the recorder.
    """

    @property
    def name(self) -> str:
        """The source's id, and the name of the folder with its log."""
        ...

    @property
    def spec(self) -> SourceSpec:
        """The values from which a child process builds the source again."""
        ...

    @property
    def origin(self) -> str:
        """What identifies the database in the log: the kind, a colon, the path or address."""
        ...

    @property
    def traits(self) -> SourceTraits: ...

    def lineage(self) -> str | None:
        """Return the current lineage of the source; None if it was never captured."""
        ...

    def describe(self, tables: Sequence[TableName]) -> Mapping[TableName, TableSchema]:
        """
        Return the schema of each table; a missing table raises `TableRefused`.

        `open` captures the tables of the last call.
        """
        ...

    def check(self, tables: Sequence[TableName]) -> Sequence[Problem]:
        """Return every problem that keeps these tables from being captured exactly."""
        ...

    def open(self, after: SourcePosition | str | None) -> SourcePosition:
        """
        Prepare to read what follows `after` (None: from now on) and return where reading begins.

        `after` may be the text stored in the log. If the result has another lineage, the history
        was replaced and the recorder begins an epoch. If it is a later position in the same
        lineage, changes are lost and the recorder records a gap (R1).
        """
        ...

    def read(self, most: int, wait: float) -> Changes | None:
        """
        Return about `most` changes of whole commits, or None after `wait` seconds without any.

        A commit whose table has other columns than before is returned by the next call.
        """
        ...

    def wake(self) -> None:
        """End the wait of a running `read` early; called from any thread, at any time."""
        ...

    def acknowledge(self, upto: str) -> None:
        """Allow the source to discard everything at or before `upto`, the text from the log."""
        ...

    def lag(self) -> Lag: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class SourceNotice:
    """A notice about one table that is written to the log, in addition to the table's changes."""

    table: TableName
    note: str = ""
    """Stored in the log and passed to `recall` later; empty: nothing new."""

    rebaseline_reason: str = ""
    """Why the table needs a new baseline, in a word or two; empty: it does not."""

    missing: bool = False
    """Whether changes are missing as well, as in a table that was not captured for a while."""

    early: bool = False
    """Whether the note is about the changes of the same read, and must be in the log before any."""

    problem: Problem | None = None
    """A warning for the user, while reading continues."""


def rebaseline_phrase(reason: str) -> str:
    """Return why a table is copied again, for people, from a notice's reason or that of a gap."""
    return _REBASELINE_PHRASES.get(reason, f"the log lacks changes ({reason})" if reason else "")


_REBASELINE_PHRASES = {
    "columns": "its columns were altered",
    "gap": "changes may be missing from the log",
    "left out": "it was not captured for a while",
    "lineage": "the source was restored or replaced",
    "order": "the order of some of its changes is not known",
    "partitions": "its partitions were altered",
    "publication": "its publication was altered for a while",
    "replaced": "another table has taken its name",
    "rewritten": "its rows were rewritten when a column was altered",
    "toast store": "large values that the server did not send are not known",
    "triggers": "its capture triggers were missing for a while, or had to be replaced",
    "type": "a type of its columns was altered",
    "unlogged": "it was rewritten, or unlogged for a while",
}


class ReportsNotices(Protocol):
    """A source that reports events which are not changes of rows."""

    def claim(self) -> str:
        """Return what it will create at the source: the log stores this before `open`; or ""."""
        ...

    def recall(
        self, notes: Mapping[TableName, str], schemas: Mapping[TableName, TableSchema]
    ) -> None:
        """
        Take what the log has stored; called before `open`.

        `notes` has the claim under the empty name, and the newest note of each table. `schemas`
        has the newest schema of each table that is in the log.
        """
        ...

    def synced(self, upto: str) -> None:
        """Take note that the log is durable up to `upto`: nothing before it is read again."""
        ...

    def notices(self) -> Sequence[SourceNotice]:
        """
        Return the new notices, each once; called after `open`, `maintain` and every `read`.

        Notices are written before the changes of that `read`, and acted on afterwards. A source
        that is opened again before the next call returns the same notices again.
        """
        ...


class Maintains(Protocol):
    """A source that has regular work to do at the database, independent of changes."""

    def maintain(self) -> float:
        """
        Do what is due, and return in how many seconds to call again.

        Called before the first `read` after `open` or `add`, and from then on before the first
        `read` after that time. The notices of `open` are in the log by then, and those of this
        call are written before anything else is read. It must not take long: changes wait for it.
        """
        ...


class Lists(Protocol):
    """A source that can list its tables, and add one while it is being read."""

    def tables(self) -> Sequence[TableName]:
        """
        Return the application's tables that exist now, by the names a user would write.

        Whether each of them can be captured is for `check`. May be called before `open`, and any
        number of times after it.
        """
        ...

    def add(self, table: TableName) -> TableSchema | None:
        """
        Capture one more table from here on, as if `open` had known it; return its schema.

        The other tables continue without interruption (H2). None: the source has to be opened
        again for that. If the table cannot be captured, this raises and changes nothing.
        """
        ...


class Resets(Protocol):
    """A source in which we set something up that can be removed."""

    def reset(self, after: str | None, *, drop_publication: bool) -> None:
        """
        Remove what we set up; called while the source is not open.

        `after` is where the log ends. The next `open` must return a position other than `after`,
        and so must every later one, even if this process is killed at any instant after the
        first removal. An object that does not exist is no error; one that is not ours is.
        """
        ...


class Releases(Protocol):
    """A source that keeps changes for us, and can stop that."""

    def release(self) -> None:
        """
        Let the source keep no changes for us; called while it is not open.

        Changes are then missing before the next `open`. Its lineage or position must show that.
        """
        ...


class ExplainsBreaks(Protocol):
    """A source that knows why it could not continue where the log ends."""

    def break_cause(self) -> str:
        """
        Return why the last `open` returned another position than it was given; empty: unknown.

        A sentence without its full stop, which names the object that was lost.
        """
        ...


class Waits(Protocol):
    """A source that may have to wait for other sessions before it can be read."""

    on_wait: Callable[[str], object]
    """
    Set by the recorder; called repeatedly while `open` waits, with what it waits for.

    It raises if the recorder has a command to execute: `open` must then end with that error.
    """


class KeepsSnapshot(Protocol):
    """A source whose copies may be read under a snapshot that was taken before they began."""

    kept_first: Callable[[], int | None]
    """Returns the lowest F that a copy which begins now could get; None: it gets a new one."""


class NotYet(Exception):
    """A baseline cannot begin now, for the reason in its text. Not an error: it is retried."""

    def __init__(
        self, why: str = "The copy is waiting until changes that were made before it are read"
    ) -> None:
        super().__init__(why)


class Copy(Protocol):
    """
    A baseline that is being copied (R43).

    Iterating yields its batches, each in the shape of `TableSchema.arrow`. `first` is known with
    the first rows, `last` after the iteration has ended. Each row is as the table had it at some
    point between the two; applying every change after `first` makes the rows exact from `last` on.
    """

    schema: TableSchema
    first: int
    """F: the last commit before the first batch was read."""

    last: int
    """H: the last commit when the last batch was read."""

    snapshot: str
    """S: which commits between the two its rows contain, known with the last rows; or empty."""

    expected: int | None
    """The approximate number of rows, known with the first batch; None if it is not known."""

    waits: str
    """What it waits for before it can begin, as of the last batch; empty: nothing."""

    exact: pa.Array | None
    """The exact texts of the last batch, in the shape of a segment's `_exact`; None: none."""

    def __iter__(self) -> Iterator[pa.RecordBatch]: ...

    def close(self) -> None: ...


class Baselines(Protocol):
    """A source whose baselines the recorder reads itself, between its changes."""

    def baseline(self, table: TableName) -> Copy: ...


class PlannedBaseline(Protocol):
    """
    A baseline in parts that any process can read, each part on its own connection.

    All parts belong to one snapshot, which exists until this is closed. `first` and `last`
    are F and H as in a `Copy`, and `snapshot` is S.
    """

    schema: TableSchema
    first: int
    last: int
    snapshot: str
    expected: int | None
    parts: Sequence[bytes]

    @property
    def alive(self) -> bool:
        """Whether parts can still be read."""
        ...

    def close(self) -> None: ...


class Shares(Protocol):
    """A source whose baselines can be read in parts, for example by Spark's tasks."""

    def plan(self, table: TableName) -> PlannedBaseline | None:
        """
        Divide a baseline into parts; None if it is too small to be worth it.

        Raises `NotYet` if it cannot begin now.
        """
        ...

    def read_part(
        self, part: bytes
    ) -> Iterator[tuple[TableSchema, pa.RecordBatch, pa.Array | None]]:
        """
        Read a part, in any process; its rows count only if it is read to its end.

        Each batch comes with the table's schema and with its exact texts, as in `Copy.exact`.
        """
        ...


class Recordable(Source, Baselines, Protocol):
    """A source as engine and recorder need it: it reads its own baselines."""
