"""
The contract between a pipeline and its target.

The pipeline's loop calls a target from one thread, with batches in position order. The position
that `write` returns is the only thing that moves a pipeline's progress (invariant 2).

Every target is a `Target`. It declares what else it can do, or needs, by implementing one of the
protocols below. The engine looks for their methods, never for the class of a target.

```
 NeedsSpark     needs settings in a Spark session that the engine starts
 NeedsContext   needs the engine's Spark, the data directory, the fence
 FindsItself    checks at a start whether its tables are as it left them
 TakesMore      accepts another table while it is open
 FollowsSchema  decides what happens when columns change
 TakesFrames    takes DataFrames instead of rows
 StagesFrames   large batches are prepared by executors; StagesRows: rows of a baseline
 Readable       its rows and changes can be read, for example by the API
 ListsRows      lists columns of its rows, and of those being loaded: rows can expire
```
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias, runtime_checkable

import pyarrow as pa

from headrace.changelog.position import Position
from headrace.changelog.schema import TableName, TableSchema
from headrace.storage.files import Files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from headrace.tables import Row
    from headrace.tables.version import TableVersion
    from headrace.targets.memory import ChangeReader

BaselineId = int

SchemaAnswer: TypeAlias = Literal["continue", "reload", "refuse"]
"""What to do after the columns changed: continue, load the table again, or stop."""


@dataclass(frozen=True, slots=True)
class TargetTraits:
    """The properties of a target."""

    type: str
    """Its name in configuration and status: `indexed-memory`."""

    durable: bool
    """False: it is rebuilt from the log at every start, and pins the log (R8)."""

    keyed: bool = True
    """Whether it needs a key, and keeps one row for each key."""

    transactional: bool = True
    """Whether it stores a batch and its position together; if not, intents are stored (R25)."""

    every_change: bool = False
    """Whether it keeps every change: batches include rows before a truncate, and truncates."""

    columns_in_turn: bool = False
    """
    Whether it gets new columns in order, after all changes that were made before.

    Otherwise it gets them at once: older changes then have the newest columns, without the
    values of columns that were dropped since.
    """


@dataclass(frozen=True, slots=True)
class Batch:
    """
    Whole commits of a pipeline, filtered and transformed, in position order.

    Each table has `_op _commit _ordinal _time` and then the row's columns. A delete has
    only the columns of the key. A key change is two rows with one position, the delete of
    the old key first.
    """

    id: str
    """The same for a batch that is computed again."""

    epoch: int
    first: Position
    last: Position
    tables: Mapping[TableName, pa.Table]
    truncates: Mapping[TableName, Position] = field(default_factory=dict)
    """
    The last truncate of a table in this batch; its rows up to there are left out (R23d).

    Not for a target with `every_change`: there these rows and each truncate are in `tables`.
    """

    staged: Mapping[TableName, object] = field(default_factory=dict)
    """For tables whose rows were staged, what `stage` returned; they are not in `tables`."""


class Loading(Protocol):
    """
    The load of a baseline in parallel to the live table; not visible before `switch`.

    The live table continues to take batches meanwhile. *Order*: `write` any number of times,
    then `catch_up` any number of times, then `switch` or `discard`, once; `discard` also if
    `switch` raised. After a crash the load starts again from the log: nothing of it has to
    survive.
    """

    def write(self, rows: pa.Table) -> None:
        """
        Take rows with the columns of the table's schema, without positions, in any order.

        May raise `RowsRefused` for some of them, after it has taken the others.
        """
        ...

    def catch_up(self, batch: Batch) -> None:
        """
        Apply the changes since the baseline (F) to the loaded rows, in position order.

        May raise `RowsRefused`, like `Target.write`.

        The batches have only this table. They may begin before F: changes at or before F are
        already in the rows, and applying them again gives the same rows at H (R11).
        """
        ...

    def switch(self, at: Position) -> None:
        """
        Replace the live rows by the loaded ones, at position `at`, in one step for readers.

        Only called when the loaded rows are exact: H is passed (invariant 7).
        """
        ...

    def discard(self) -> None: ...


class Target(Protocol):
    """
    Takes baselines and batches of a pipeline's tables.

    *Order*: batches come in position order. *Duplicates*: a batch, or a part of it, may
    come again after a crash; applying it twice has the same effect as once, because rows at
    or before the table's position are ignored. *Durability*: `write` returns the position
    up to which everything is as durable as this target makes it.
    *Threads*: one at a time. *Empty batch*: moves the position, nothing else.
    *Shutdown*: `close` once, after the last call. If `open` raises, `close` is called, and later
    `open` again.
    """

    @property
    def traits(self) -> TargetTraits: ...

    def check(self, tables: Mapping[TableName, TableSchema]) -> None:
        """Raise an error if the target cannot hold these tables; called before `open`."""
        ...

    def open(
        self, tables: Mapping[TableName, TableSchema], at: Mapping[TableName, Position]
    ) -> None:
        """Prepare these tables; `at` is the stored progress, `ORIGIN` if there is none."""
        ...

    def load(self, table: TableName, baseline: BaselineId) -> Loading: ...

    def write(self, batch: Batch) -> Position:
        """
        Apply a batch: all tables in `batch.tables`, or none (R26a).

        A table of the pipeline that is not in the batch is not live yet; leave it as it is.

        May raise `RowsRefused` for rows that it will never take, before they or later rows have
        any effect. They become dead letters, with later changes of their keys, and the batch
        comes again without them: rows that already had an effect must not have another one.
        """
        ...

    def row_count(self, table: TableName) -> int | None:
        """Return the number of visible rows, or None if unknown; called from any thread."""
        ...

    def close(self) -> None: ...


# -- what a target needs from the engine ------------------------------------------------


class SparkAccess(Protocol):
    """The engine's Spark, as far as a target uses it."""

    @property
    def own(self) -> bool:
        """Whether the engine started it; False if the user passed a session."""
        ...

    @property
    def alive(self) -> bool: ...

    def setting(self, name: str) -> str | None:
        """Return a setting that Spark was started with."""
        ...

    def another(self, settings: Mapping[str, str]) -> SparkSession:
        """Return another session, for one writer only, with these additional settings."""
        ...


@dataclass(frozen=True, slots=True)
class TargetContext:
    """What the engine gives to a target that needs more than rows."""

    spark: Callable[[], SparkAccess]
    """Returns the current Spark. Call it each time, because Spark may have been restarted."""

    pipeline: str
    files: Files
    """The data directory."""

    clock: Callable[[], float]
    """Seconds since 1970."""

    lineage: Callable[[], str] = lambda: ""
    """The lineage of the source's log."""

    check: Callable[[], None] = lambda: None
    """Raises `Fenced` or `LostLog` if another engine took over."""


@runtime_checkable
class NeedsSpark(Protocol):
    """A target that needs settings in the Spark session that the engine starts."""

    def spark_needs(self) -> Mapping[str, str]:
        """Return the settings; called before anything else."""
        ...


@runtime_checkable
class NeedsContext(Protocol):
    """A target that uses parts of the engine: Spark, the data directory, the fence."""

    def use(self, context: TargetContext) -> None:
        """Take the context, valid until `close`; called at each start, before `check`."""
        ...


# -- what else a target can do ----------------------------------------------------------


@runtime_checkable
class TakesMore(Protocol):
    """A target that accepts another table while it is open."""

    def add(self, table: TableName, schema: TableSchema, at: Position) -> None:
        """
        Prepare a table as `open` does; called from the writing thread, between two batches.

        Raises an error if the target cannot hold the table, and then changes nothing. May be
        called again for a table that it has: its rows stay until a baseline is loaded.
        """
        ...


@runtime_checkable
class FindsItself(Protocol):
    """A durable target that can check whether its tables are as it left them."""

    def lost(self, table: TableName) -> str | None:
        """Return why a table must be loaded again, or None; called after `open`."""
        ...


@runtime_checkable
class FollowsSchema(Protocol):
    """
    A target that decides what happens when the columns of its table change (R23b).

    For other targets the table is loaded again, with its new columns.
    """

    def schema_changed(self, table: TableName, old: TableSchema, new: TableSchema) -> SchemaAnswer:
        """
        Return what to do; called between two batches, from the writing thread.

        After `continue`, batches have the new columns. After `reload`, a baseline with the new
        columns is loaded while readers see the old rows. After `refuse`, the pipeline stops.
        """
        ...


# -- targets that take DataFrames -------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FrameBatch:
    """Describes the DataFrame that a function gets."""

    id: str
    """Unique; the same for a batch that is sent again."""

    pipeline: str
    table: str
    first: Position
    last: Position
    """Where the batch begins and ends; for rows of a baseline, both are where changes follow."""

    baseline: int | None = None
    """
    The number of the rows' baseline; None for changes.

    A baseline replaces everything that was sent for the table before. The baseline of an empty
    table is one piece without rows.
    """

    piece: int | None = None
    """The number of the piece in the baseline, from 1."""

    key: tuple[str, ...] = ()
    """The columns of the table's key, as they are named in the DataFrame."""


@runtime_checkable
class TakesFrames(Protocol):
    """
    A target that takes DataFrames instead of rows.

    *Order*: batches in position order, the tables of one batch one after the other; a
    baseline's pieces before the changes that follow it. *Duplicates*: a batch whose outcome is
    unknown comes again, with the same rows and the same id. *Durability*: the batch is durable
    when the call returns. *Threads*: one at a time. *Errors*: `RowFailed` if a row of the frame
    cannot be computed; it is then called again with a frame without that row. Any other error
    fails the batch. *Rows that cannot be taken*: `RowsRefused`, raised before any effect, with
    rows of the frame by their `_position` or their key; rows of a baseline have only their key.
    They become dead letters, with later changes of their keys, and then the frame comes again
    without them, under the same id. A truncate cannot be refused.
    """

    def write_frame(self, frame: DataFrame, batch: FrameBatch) -> None:
        """Write a batch of one table."""
        ...


@runtime_checkable
class StagesFrames(Protocol):
    """
    A target whose large batches are prepared by executors; it takes smaller ones as rows.

    What `stage` returns comes back in `Batch.staged`, or is dropped. If `stage` is called again
    for the same batch, with a frame without failed rows, the last call counts. Rows of a frame
    are never refused: if `stage` raises `RowsRefused`, the batch fails with a `TargetError`. So
    a target that refuses rows must take all batches as rows.
    """

    @property
    def staged_from(self) -> int:
        """The number of rows from which a batch or a baseline is large."""
        ...

    def stage(
        self, table: TableName, frame: DataFrame, epoch: int, emptied: Position | None
    ) -> object:
        """Let executors prepare a frame from `GivesFrames`; it is not visible yet."""
        ...


@runtime_checkable
class StagesRows(Protocol):
    """A load whose rows executors can prepare. None of them can be refused: see `StagesFrames`."""

    def stage(self, frame: DataFrame, piece: int) -> None:
        """Take a piece of the baseline; replaces the piece if it comes again."""
        ...


@runtime_checkable
class ListsRows(Protocol):
    """
    A target that can list its rows, so that those that have expired are found.

    Its loads are `ListsLoaded`.
    """

    def columns_shown(self, table: TableName) -> TableSchema:
        """Return the columns of the rows: earlier ones until the table was loaded with others."""
        ...

    def list_rows(self, table: TableName, columns: Sequence[str]) -> pa.Table:
        """Return these columns of all rows, as of the last `write`; from the writing thread."""
        ...


@runtime_checkable
class ListsLoaded(Protocol):
    """The load of a target that lists its rows."""

    def list_rows(self, columns: Sequence[str]) -> pa.Table:
        """Return these columns of the rows loaded so far, with the changes since."""
        ...


# -- targets that can be read -----------------------------------------------------------


class ReadableTable(Protocol):
    """A table that can be read from any thread; each call reads one version of it."""

    @property
    def schema(self) -> TableSchema: ...
    @property
    def key(self) -> tuple[str, ...]: ...
    @property
    def indexes(self) -> Mapping[str, Sequence[str]]: ...
    @property
    def position(self) -> Position: ...
    def columns_of(self, index: str | None) -> tuple[str, ...]: ...
    def index_number(self, index: str | None) -> int: ...
    def version(self) -> TableVersion: ...
    def get(self, *key: object) -> Row | None: ...
    def lookup(self, *values: object) -> Row | None: ...
    def lookup_all(self, index: str, *values: object) -> list[Row]: ...
    def all(self) -> Iterator[Row]: ...
    def count(self) -> int: ...
    def changes(self, start: str = "now") -> ChangeReader: ...


@runtime_checkable
class Readable(Protocol):
    """A target whose tables can be read in this process: those in memory."""

    @property
    def tables(self) -> tuple[str, ...]: ...
    def table(self, name: str) -> ReadableTable: ...
