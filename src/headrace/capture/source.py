"""
The contract between a source and the recorder that reads it.

A source is pulled: the recorder's one thread calls it, owns time, and decides what is
flushed when. A source never writes to the log and never acknowledges by itself.
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
    "Baselines",
    "Copy",
    "KeepsSnapshot",
    "Lag",
    "Lists",
    "Maintains",
    "News",
    "PlannedBaseline",
    "Problem",
    "Recordable",
    "Resets",
    "Room",
    "Shares",
    "Source",
    "SourcePosition",
    "SourceSpec",
    "SourceTraits",
    "Tells",
    "Waits",
]


@dataclass(frozen=True, slots=True)
class SourceTraits:
    """What a source can do, as data: read by recorder and planner, never asked by type."""

    lineage: str
    """The kind of its lineages: `sqlite`, `pg`, `log`, `test`."""

    ordering: Literal["total", "per_partition"] = "total"
    resumes: bool = True
    """Whether reading can go on after a restart; otherwise every start is a gap."""

    inserts_replace: bool = False
    """
    Whether an insert may have removed a row of the same key without saying so, as
    SQLite's INSERT OR REPLACE does: a filtered-out row is then deleted if present.
    """

    shares: bool = False
    """Whether it `Shares` its baselines: they can be read in parts, by other processes."""

    tells: bool = False
    """Whether it `Tells` the log more than its changes."""

    maintains: bool = False
    """Whether it `Maintains` what it set up there, besides being read."""

    counts_bytes: bool = False
    """Whether its commits are numbered by the bytes of its own log, which it has to keep."""

    resets: bool = False
    """Whether what is ours there can be removed, and begun anew: whether it `Resets`."""

    waits: bool = False
    """Whether it `Waits` for others in `open`, for hours perhaps."""

    keeps_snapshot: bool = False
    """Whether it `KeepsSnapshot`, so that a copy can begin in the past."""

    lists: bool = False
    """Whether it `Lists` its tables, so that a pattern can stand for them."""

    copy_rows_per_s: float | None = None
    """How many rows a second may be copied of it, of all its tables together; None: any."""


@dataclass(frozen=True, slots=True)
class SourceSpec:
    """A source as plain values, so that a child process can build it again."""

    kind: str
    """The name it is registered under: `sqlite`."""

    name: str
    """The source's id, and the folder of its log."""

    options: Mapping[str, object] = field(repr=False)
    """Printed nowhere: they may hold the way into a database, with its password."""


def reader_of(source: str, data: str | os.PathLike[str]) -> str:
    """Return what tells apart those who read one source: its name and their data directory."""
    return f"{source}@{Path(data).resolve()}"


@dataclass(frozen=True, slots=True)
class Room:
    """What a source holds for us, and has to hold it in, as measured once (R28)."""

    used: int
    """Bytes that it keeps, and would not keep without us."""

    limit: int | None = None
    """The most it may keep: beyond, we lose our place. None: nobody set a limit."""

    unacknowledged: int = 0
    """Of these, bytes since what was acknowledged last (R4)."""

    ours: int = 0
    """Of these again, bytes that it could let go of if all that was read were acknowledged."""

    oldest: str = ""
    """Who at the source itself keeps the greater part from being let go of; empty: nobody."""


@dataclass(frozen=True, slots=True)
class Lag:
    """How far reading is behind the source, as observed."""

    changes: int | None = None
    """Changes captured by the source and not yet read; None where it cannot be told."""

    seconds: float | None = None
    bytes: int | None = None
    """Bytes of the source's own log not yet read; None where it has none."""

    room: Room | None = None
    """Where it was measured since it was asked for last: not every time, it costs something."""


Problem = HeadraceError
"""What `check` finds: an error with its code and remedy, not raised but gathered."""


class Source(Protocol):
    """
    Brings changes of some tables, in commit order.

    *Order*: commits come in the order of their numbers; within one, by ordinal.
    *Duplicates*: after `open(after)` no commit at or before `after` is given.
    *Durability*: none; what was read and not flushed is read again after a restart, so
    `read` must give the same changes with the same positions again.
    *Threads*: all calls but `wake` come from one thread.
    *Nothing to read*: `read` waits up to `wait` seconds and returns None.
    *Shutdown*: `close` may follow any call, also one that raised; it never raises.

    `SourceUnreachable` from any call means "try again later": the recorder closes,
    backs off and opens anew. Every other error stops the recorder.
    """

    @property
    def name(self) -> str:
        """Its id, and the folder of its log."""
        ...

    @property
    def spec(self) -> SourceSpec:
        """What a child process builds it from again."""
        ...

    @property
    def origin(self) -> str:
        """What the log remembers the source by: its kind, a colon, the place it is at."""
        ...

    @property
    def traits(self) -> SourceTraits: ...

    def lineage(self) -> str | None:
        """Return the lineage the source has now, None before it was ever captured."""
        ...

    def describe(self, tables: Sequence[TableName]) -> Mapping[TableName, TableSchema]:
        """
        Return the schema of each table; a missing one raises `TableRefused`.

        The tables named last are those that `open` captures.
        """
        ...

    def check(self, tables: Sequence[TableName]) -> Sequence[Problem]:
        """Return everything that keeps these tables from being captured exactly."""
        ...

    def open(self, after: SourcePosition | str | None) -> SourcePosition:
        """
        Prepare to read what follows `after` (None: from now on) and return where reading begins.

        `after` may come as the text the log kept. If the result is of another lineage,
        history was replaced and the recorder opens an epoch; if it is a later place in
        the same lineage, changes are gone and it records a gap (R1).
        """
        ...

    def read(self, most: int, wait: float) -> Changes | None:
        """
        Return about `most` changes of whole commits, or None after `wait` seconds without.

        Commits in other columns of a table come with the next call.
        """
        ...

    def wake(self) -> None:
        """End the wait of a running `read` early; from any thread, at any time."""
        ...

    def acknowledge(self, upto: str) -> None:
        """Allow the source to forget everything at or before `upto`, as the log kept its text."""
        ...

    def lag(self) -> Lag: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class News:
    """What the log should know of one table, beside its changes."""

    table: TableName
    note: str = ""
    """To be told again by `recall`; empty: nothing new."""

    owed: str = ""
    """In a word or two why rows changed without a change; empty: they did not."""

    missing: bool = False
    """Whether changes are missing as well, as of a table that was left out for a while."""

    problem: Problem | None = None
    """What a person should know, while reading goes on."""


class Tells(Protocol):
    """A source in which things happen that no change speaks of."""

    def claim(self) -> str:
        """Return what it will make and leave at the source: the log keeps it before `open`."""
        ...

    def recall(
        self, notes: Mapping[TableName, str], schemas: Mapping[TableName, TableSchema]
    ) -> None:
        """
        Take what the log kept, before `open`.

        The claim stands under the empty name, beside the newest note of each table; `schemas`
        are the newest of tables that the log has anything of.
        """
        ...

    def synced(self, upto: str) -> None:
        """Hear how far the log is durable: nothing at or before `upto` will be read again."""
        ...

    def news(self) -> Sequence[News]:
        """
        Return what there is to know, once; asked after `open`, `maintain` and every `read`.

        It is written before what was read, and what follows from it is done after: a source
        that is opened anew before it was asked again says the same again.
        """
        ...


class Maintains(Protocol):
    """A source with work to do at the database that no change asks for."""

    def maintain(self) -> float:
        """
        Do what is due, and return in how many seconds to call again.

        Called before the first `read` after `open` or `add`, and from then on before the first
        `read` after that time. The log has the news of `open` by then, and gets those that it
        finds before anything else is read. Changes wait for it: it must not take long.
        """
        ...


class Lists(Protocol):
    """A source that knows which tables it has, and can take one more while it is read."""

    def tables(self) -> Sequence[TableName]:
        """
        Return the tables there are now, by the names a person would write.

        Of those that hold the application's rows; whether each can be captured is for `check`.
        May be called before `open`, and again and again after it.
        """
        ...

    def add(self, table: TableName) -> TableSchema | None:
        """
        Capture one more table from here on, as if `open` had known it; return its schema.

        The others go on without noticing (H2). None: it has to be opened anew for that. Where
        the table cannot be captured that is raised, and everything is as before.
        """
        ...


class Resets(Protocol):
    """A source in which something of ours stands, that can be taken away."""

    def reset(self, after: str | None, *, drop_publication: bool) -> None:
        """
        Remove what is ours; called instead of `open`, before it.

        `after` is where the log ends. The next `open` begins anew: it finds another place
        than that one, and so does every later one should this process die at any instant
        from the first removal on. What is not there is no error, what is not ours is.
        """
        ...


class Waits(Protocol):
    """A source that may have to wait for others before it can be read."""

    on_wait: Callable[[str], object]
    """
    Set by the recorder; called now and then while `open` waits, with whom it waits for.

    It raises where the recorder has something to obey: then `open` is to end with that.
    """


class KeepsSnapshot(Protocol):
    """A source whose copies may be read under a snapshot that was taken before they began."""

    kept_first: Callable[[], int | None]
    """Returns the lowest F that a copy which begins now could get; None: it gets a new one."""


class NotYet(Exception):
    """A baseline cannot begin now, its text says why; no error, it is tried again."""


class Copy(Protocol):
    """
    A baseline under way (R43).

    Iterate its batches, each in the shape of `TableSchema.arrow`; `first` is known with the
    first rows, `last` after the iteration has ended. Rows hold what the table had somewhere
    between the two; applying every change after `first` makes them exact from `last` on.
    """

    schema: TableSchema
    first: int
    """F: the last commit before the first batch was read."""

    last: int
    """H: the last commit when the last batch was read."""

    snapshot: str
    """S: which commits between the two its rows hold, known with the last rows; or empty."""

    expected: int | None
    """About how many rows there are, known with the first batch; None where that is not known."""

    waits: str
    """Whom it waits for before it can begin, as of the batch given last; empty: for nobody."""

    exact: pa.Array | None
    """The marks of the batch given last, in the shape of a segment's `_exact`; None: no marks."""

    def __iter__(self) -> Iterator[pa.RecordBatch]: ...

    def close(self) -> None: ...


class Baselines(Protocol):
    """A source whose baselines the recorder reads itself, between its changes."""

    def baseline(self, table: TableName) -> Copy: ...


class PlannedBaseline(Protocol):
    """
    A baseline in parts that anybody can read, each on a connection of its own.

    All are of one snapshot, which lives as long as this is not closed. `first` and `last`
    are F and H as of a `Copy`, and `snapshot` is S.
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
    """A source whose baselines can be read in parts, by Spark's tasks say."""

    def plan(self, table: TableName) -> PlannedBaseline | None:
        """
        Cut a baseline into parts; None where it is too small to be worth it.

        Raises `NotYet` where it cannot begin now.
        """
        ...

    def read_part(
        self, part: bytes
    ) -> Iterator[tuple[TableSchema, pa.RecordBatch, pa.Array | None]]:
        """
        Read a part, in any process: its rows count only if it comes to its end.

        Each batch comes with the table's schema, and its marks as `Copy.exact` has them.
        """
        ...


class Recordable(Source, Baselines, Protocol):
    """A source as engine and recorder need it today: it reads its own baselines."""
