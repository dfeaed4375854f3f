"""
The contract between a pipeline and its target.

The pipeline's loop calls a target from one thread, with batches in position order. What
`write` returns is the only thing that moves a pipeline's progress (invariant 2).

Every target is a `Target`. What else it can do, or needs, it says by having the methods of one of
the protocols below; the engine looks for them and knows no target by its class.

```
 NeedsSpark     settings for a Spark of ours
 NeedsContext   the engine's Spark, the data directory, the fence
 FindsItself    asked at a start whether its tables are still as they were left
 TakesMore      one more table while it is open
 FollowsSchema  asked when columns change
 TakesFrames    DataFrames instead of rows
 StagesFrames   large batches prepared by executors; StagesRows: rows of a baseline
 Readable       rows and changes read by others, as the API does
```
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias, runtime_checkable

import pyarrow as pa

from headrace.changelog.position import Position
from headrace.changelog.schema import TableName, TableSchema
from headrace.storage.files import Files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from headrace.tables import Row
    from headrace.targets.memory import ChangeReader

BaselineId = int

SchemaAnswer: TypeAlias = Literal["continue", "reload", "refuse"]
"""What is to happen after the columns changed: go on, load the table anew, or stop."""


@dataclass(frozen=True, slots=True)
class TargetTraits:
    """What a target can do, as data."""

    type: str
    """Its name in configuration and status: `indexed-memory`."""

    durable: bool
    """False: it is rebuilt from the log at every start, and pins it (R8)."""

    keyed: bool = True
    """Needs a key, and keeps one row for each."""

    transactional: bool = True
    """Takes a batch and its position together; otherwise intents are stored first (R25)."""

    every_change: bool = False
    """Keeps what was: a batch also has what a truncate empties, and each truncate as a row."""

    columns_in_turn: bool = False
    """
    Is told of other columns when their turn comes, behind all changes from before.

    Otherwise at once: changes are then told in the newest, without the values of a column that
    was dropped since.
    """


@dataclass(frozen=True, slots=True)
class Batch:
    """
    Whole commits of a pipeline, filtered and transformed, in position order.

    Each table has `_op _commit _ordinal _time` and then the row's columns. A delete
    holds the key's columns only. A key change is two rows of one position, the delete
    of the old key first.
    """

    id: str
    """The same for a batch that is run again."""

    epoch: int
    first: Position
    last: Position
    tables: Mapping[TableName, pa.Table]
    truncates: Mapping[TableName, Position] = field(default_factory=dict)
    """
    The last truncate of a table in this batch; its rows up to there are left out (R23d).

    Not for a target of `every_change`: there they, and each truncate, are rows in their place.
    """

    staged: Mapping[TableName, object] = field(default_factory=dict)
    """What the target itself made of a table's rows elsewhere, which are not in `tables` then."""


class Loading(Protocol):
    """
    A baseline being loaded beside the live table; nobody sees it before `switch`.

    The live table goes on taking batches meanwhile. *Order*: `write` any number of times,
    then `catch_up` any number of times, then `switch` or `discard`, once; `discard` also where
    `switch` raised. What a crash interrupts is begun anew from the log: nothing of it has to
    survive.
    """

    def write(self, rows: pa.Table) -> None:
        """Take rows in the shape of the table's schema, without positions, in any order."""
        ...

    def catch_up(self, batch: Batch) -> None:
        """
        Apply what was changed since the baseline (F) to the loaded rows, in position order.

        Batches of this table alone. They may begin before F: what is at or before it is in
        the rows, and doing it again ends in the same rows by H (R11).
        """
        ...

    def switch(self, at: Position) -> None:
        """
        Make the loaded rows the table, at position `at`, for readers too, in one step.

        Only called where they are exact: H is passed (invariant 7).
        """
        ...

    def discard(self) -> None: ...


class Target(Protocol):
    """
    Takes baselines and batches of a pipeline's tables.

    *Order*: batches come in position order. *Duplicates*: a batch, or a part of it, may
    come again after a crash; applying it twice has the effect of once, because rows at
    or before the table's position are ignored. *Durability*: `write` returns the
    position up to which everything is as durable as this target ever makes it.
    *Threads*: one at a time. *Empty batch*: moves the position, nothing else.
    *Shutdown*: `close` once, after the last call.
    """

    @property
    def traits(self) -> TargetTraits: ...

    def check(self, tables: Mapping[TableName, TableSchema]) -> None:
        """Raise what keeps these tables from being held; called before `open`."""
        ...

    def open(
        self, tables: Mapping[TableName, TableSchema], at: Mapping[TableName, Position]
    ) -> None:
        """Prepare these tables; `at` is the stored progress, `ORIGIN` where there is none."""
        ...

    def load(self, table: TableName, baseline: BaselineId) -> Loading: ...

    def write(self, batch: Batch) -> Position:
        """
        Take a batch: the tables in `batch.tables`, all together or none (R26a).

        A table of the pipeline that is not in it is not live yet, and stays as it is.
        """
        ...

    def row_count(self, table: TableName) -> int | None:
        """Return the rows readers see now, from any thread; None where that cannot be told."""
        ...

    def close(self) -> None: ...


# -- what a target needs of the engine --------------------------------------------------


class SparkAccess(Protocol):
    """The Spark of an engine, as far as a target uses it."""

    @property
    def own(self) -> bool:
        """Whether it was started by us, and not brought."""
        ...

    @property
    def alive(self) -> bool: ...

    def setting(self, name: str) -> str | None:
        """Return a setting that it was started with."""
        ...

    def another(self, settings: Mapping[str, str]) -> SparkSession:
        """Return a session for one writer alone, with these settings besides."""
        ...


@dataclass(frozen=True, slots=True)
class TargetContext:
    """What an engine gives a target that needs more than rows."""

    spark: Callable[[], SparkAccess]
    """Returns the Spark that runs now; ask each time, because it may have been started again."""

    pipeline: str
    files: Files
    """The data directory."""

    clock: Callable[[], float]
    """Seconds since 1970."""

    lineage: Callable[[], str] = lambda: ""
    """The lineage of the source's log."""

    check: Callable[[], None] = lambda: None
    """Raises `Fenced` or `LostLog` where another engine took over."""


@runtime_checkable
class NeedsSpark(Protocol):
    """A target for which a Spark of ours is started with settings of its own."""

    def spark_needs(self) -> Mapping[str, str]:
        """Return these settings; called before anything else."""
        ...


@runtime_checkable
class NeedsContext(Protocol):
    """A target that works with what the engine has: Spark, the data directory, the fence."""

    def use(self, context: TargetContext) -> None:
        """Take the context, valid until `close`; called at each start, before `check`."""
        ...


# -- what a target may do besides -------------------------------------------------------


@runtime_checkable
class TakesMore(Protocol):
    """A target that takes one more table while it is open; others keep to those they have."""

    def add(self, table: TableName, schema: TableSchema, at: Position) -> None:
        """
        Prepare a table as `open` would have; from the thread that writes, between two batches.

        Raises what keeps it from being held, and then all is as before. A table that is there
        already is given anew: its rows stay until a baseline is loaded.
        """
        ...


@runtime_checkable
class FindsItself(Protocol):
    """A durable target that tells whether its tables are still what was left there."""

    def lost(self, table: TableName) -> str | None:
        """Return why a table must be loaded anew; None: it can go on. Asked after `open`."""
        ...


@runtime_checkable
class FollowsSchema(Protocol):
    """
    A target that is asked when the columns of its table change (R23b).

    Others are given the table anew, and must take it with the columns that it has then.
    """

    def schema_changed(self, table: TableName, old: TableSchema, new: TableSchema) -> SchemaAnswer:
        """
        Say what to do; asked between two batches, from the thread that writes.

        After `continue` batches have the new columns. After `reload` a baseline is loaded
        with them, beside what readers see. After `refuse` the pipeline stops.
        """
        ...


# -- targets that take DataFrames -------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FrameBatch:
    """What a function is told of the frame it is given."""

    id: str
    """The same for a batch that is given again; unique among all others."""

    pipeline: str
    table: str
    first: Position
    last: Position
    """Where the batch begins and ends; for rows of a baseline, both are where changes go on."""

    baseline: int | None = None
    """
    The number of the baseline whose rows these are; None for changes.

    A baseline takes the place of whatever was given of the table before. That of an empty table
    is one piece without rows.
    """

    piece: int | None = None
    """Which piece of the baseline it is, from 1."""


@runtime_checkable
class TakesFrames(Protocol):
    """
    A target that takes DataFrames instead of rows.

    *Order*: batches in position order, the tables of one batch one after the other; a
    baseline's pieces before the changes that follow it. *Duplicates*: a batch whose outcome is
    unknown comes again, the same rows under the same id. *Durability*: what returns is
    durable. *Threads*: one at a time. *Errors*: `RowFailed` where a row of the frame cannot
    be computed: it is then called again with a frame without that row. Anything else fails
    the batch.
    """

    def write_frame(self, frame: DataFrame, batch: FrameBatch) -> None:
        """Take a batch of one table."""
        ...


@runtime_checkable
class StagesFrames(Protocol):
    """
    A target whose large batches are prepared by executors; others it takes as rows.

    What `stage` returns comes back in `Batch.staged`, or is forgotten; called again for the same
    batch, with a frame without rows that failed, the last one counts.
    """

    @property
    def staged_from(self) -> int:
        """So many rows of a batch, or of a baseline, are a large one."""
        ...

    def stage(
        self, table: TableName, frame: DataFrame, epoch: int, emptied: Position | None
    ) -> object:
        """Let executors prepare a frame as `GivesFrames` gives it; nobody sees it yet."""
        ...


@runtime_checkable
class StagesRows(Protocol):
    """A loading whose rows executors may prepare."""

    def stage(self, frame: DataFrame, piece: int) -> None:
        """Take a piece of the baseline; the same piece again takes its place."""
        ...


# -- targets that can be read -----------------------------------------------------------


class ReadableTable(Protocol):
    """A table that can be read from any thread, each call at one version of it."""

    @property
    def schema(self) -> TableSchema: ...
    @property
    def key(self) -> tuple[str, ...]: ...
    @property
    def position(self) -> Position: ...
    def columns_of(self, index: str | None) -> tuple[str, ...]: ...
    def get(self, *key: object) -> Row | None: ...
    def lookup(self, *values: object) -> Row | None: ...
    def lookup_all(self, index: str, *values: object) -> list[Row]: ...
    def all(self) -> Iterator[Row]: ...
    def count(self) -> int: ...
    def changes(self, start: str = "now") -> ChangeReader: ...


@runtime_checkable
class Readable(Protocol):
    """A target whose tables can be read here: those in memory."""

    @property
    def tables(self) -> tuple[str, ...]: ...
    def table(self, name: str) -> ReadableTable: ...
