"""
The base class of your own targets, called with one row at a time.

```python
class Names(hr.RowTarget):
    def __init__(self):
        self.names = {}
    def on_baseline_row(self, row):
        self.names[row["id"]] = row["name"]
    def on_insert(self, row):
        self.names[row["id"]] = row["name"]
    def on_update(self, row, identity):
        self.names.pop(identity["id"], None)
        self.names[row["id"]] = row["name"]
    def on_delete(self, identity):
        self.names.pop(identity["id"], None)
    def on_truncate(self):
        self.names.clear()
```

Use it for tables that become Python objects, or for systems with a call for each row. A `Target`,
which gets whole batches, is about ten times faster.
"""

from __future__ import annotations

import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from headrace.changelog.change import Op
from headrace.changelog.position import ORIGIN, Position
from headrace.changelog.schema import BATCH_META, Column, TableName, TableSchema
from headrace.errors import (
    FunctionFailed,
    NoKey,
    RefusedRow,
    RowRefused,
    RowsRefused,
    TableError,
)
from headrace.tables import Row
from headrace.targets.target import BaselineId, Batch, SchemaAnswer, TargetTraits

# --- the rows of a batch, one at a time -----------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RowChange:
    """One change: an upsert with its row, or a delete without a row."""

    op: Op
    position: Position
    row: Row | None
    identity: Row
    """The key of the row before the change."""

    index: int
    """The index of its first row in the batch."""


def rows_in(table: pa.Table, schema: TableSchema) -> Iterator[Row]:
    """Yield the rows of a baseline."""
    values = _readers(table, schema.columns)
    for at in range(table.num_rows):
        yield Row(values, at)


def row_of(values: Mapping[str, object]) -> Row:
    """Return plain values as a row."""
    return Row({name: [value].__getitem__ for name, value in values.items()}, 0)


def changes_in(
    table: pa.Table, schema: TableSchema, epoch: int, after: Position
) -> Iterator[RowChange]:
    """
    Yield the changes after a position, in order.

    A delete and an upsert with the same position are one change: the row has another key.
    """
    own = table.select(list(range(BATCH_META, table.num_columns)))
    values = _readers(own, schema.columns)
    keys = {name: values[name] for name in schema.key}
    ops, commits, ordinals = (table.column(index).to_pylist() for index in range(3))
    at, count = 0, table.num_rows
    while at < count:
        first, reference = at, (commits[at], ordinals[at])
        if (
            ops[at] == Op.DELETE
            and at + 1 < count
            and reference == (commits[at + 1], ordinals[at + 1])
        ):
            at += 1
        position = Position(epoch, *reference)
        if position > after:
            row = None if ops[at] == Op.DELETE else Row(values, at)
            # A row whose key changed exists already, whatever op the source sent.
            op = Op.UPDATE if at > first else Op(ops[at])
            yield RowChange(op, position, row, Row(keys, first), first)
        at += 1


def _readers(table: pa.Table, columns: Sequence[Column]) -> dict[str, Callable[[int], object]]:
    return {column.name: _Decoded(table.column(column.name), column) for column in columns}


class _Decoded:
    """A column that is decoded as a whole when it is first read."""

    __slots__ = ("_array", "_column", "_values")

    def __init__(self, array: pa.ChunkedArray, column: Column) -> None:
        self._array = array
        self._column = column
        self._values: list[object] | None = None

    def __call__(self, at: int) -> object:
        if self._values is None:
            self._values = self._column.type.from_arrow(self._array)
        return self._values[at]


# --- the target -----------------------------------------------------------------------------------


class RowTarget(ABC):
    """
    A base class. Subclasses must implement the row hooks; all others have a default.

    *Tables*: one; for several tables, make a pipeline with its own target for each. *Order*:
    `on_init`, then the baseline's rows, then the changes made meanwhile,
    `on_baseline_complete`, and then every change, in position order. *Duplicates*: none while
    the engine runs. After a crash, the interrupted batch is sent again, with the same
    `batch_id`; a target that stores `position` with its rows can skip what it already has.
    *Loads*: a load begins with `on_truncate`, except the first one of a target that is not
    durable. Rows are missing until the load ends; if readers must not see that, keep the old
    rows until `on_baseline_complete`. *Durability*: a change must be durable when its hook
    returns, at the latest when `on_batch_complete` returns. *Threads*: one at a time. *Errors*:
    if a hook raises, the engine tries again from the same change on, and a baseline from its
    first row; other pipelines continue. *Rows that cannot be taken*: if a hook for a row raises
    `RowRefused` before it has any effect, the row becomes a dead letter, with later changes of
    its key. *Shutdown*: `on_close`, once.

    Rows have every column, and decode a value when it is read; `dict(row)` is a copy to keep.
    """

    position: Position = ORIGIN
    """The position of the current change; `ORIGIN` for rows of a baseline."""

    batch_id: str = ""
    """The id of the current batch; the same if the batch is sent again."""

    schema: TableSchema
    """The table's columns and key, from `on_init` on."""

    _calls: _Calls | None = None

    # --- the thirteen hooks -----------------------------------------------------------------

    def on_init(  # noqa: B027  a default
        self, table: TableName, columns: Sequence[Column]
    ) -> None:
        """
        Prepare; called at every start, before anything else.

        If it raises, `on_close` is called, and after a pause `on_init` again.
        """

    @abstractmethod
    def on_baseline_row(self, row: Row) -> None:
        """Take a row of the baseline. Rows come in no particular order."""

    def on_baseline_complete(self) -> None:  # noqa: B027  a default
        """Make the table visible to readers: it is complete, as of `position`."""

    @abstractmethod
    def on_insert(self, row: Row) -> None:
        """Take a new row, or one that now passes the filter. Replace the row if it exists."""

    @abstractmethod
    def on_update(self, row: Row, identity: Row) -> None:
        """Take the new values of a row; `identity` is its key before the change."""

    @abstractmethod
    def on_delete(self, identity: Row) -> None:
        """Remove a row that was deleted or no longer passes the filter. It may not exist."""

    @abstractmethod
    def on_truncate(self) -> None:
        """Remove all rows."""

    def is_durable(self) -> bool:
        """
        Return whether the rows survive a restart of the engine; called before the start.

        If not, they are loaded again at every start, and the log keeps what that needs (R8).
        """
        return False

    def on_schema_change(self, old: Sequence[Column], new: Sequence[Column]) -> SchemaAnswer:
        """Return what to do after a column change; from now on rows have the new columns."""
        return "reload"

    def export_snapshot(self) -> Iterable[Mapping[str, object]] | None:
        """Return all rows, or None if not possible. Not called yet: for future snapshots."""
        return None

    def restore_snapshot(
        self, info: Mapping[str, object], entries: Iterable[Mapping[str, object]]
    ) -> None:
        """Take the rows of a snapshot. Not called yet: for future snapshots."""
        self.on_truncate()
        for entry in entries:
            self.on_baseline_row(row_of(entry))
        self.on_baseline_complete()

    def supports_consistent_snapshot(self) -> bool:
        """Return whether `export_snapshot` returns one state; called between two batches."""
        return True

    def on_close(self) -> None:  # noqa: B027  a default
        """Release all resources; no other call follows, except `on_init`."""

    # --- one more hook ----------------------------------------------------------------------

    def on_batch_complete(self) -> None:  # noqa: B027  a default
        """Make everything since the last call durable: the engine continues from here."""

    # --- for the engine ---------------------------------------------------------------------

    @property
    def traits(self) -> TargetTraits:
        name = type(self).__name__
        return TargetTraits(
            type=name,
            durable=self.is_durable(),
            transactional=False,
            columns_in_turn=True,
        )

    def check(self, tables: Mapping[TableName, TableSchema]) -> None:
        if len(tables) != 1:
            raise TableError(
                "A RowTarget takes one table",
                remedy="Make one pipeline for each table, each with its own target.",
                tables=sorted(tables),
            )
        for name, schema in tables.items():
            if not schema.key:
                raise NoKey(
                    "The table has no key", remedy="Add a primary key at the source.", table=name
                )

    def open(
        self, tables: Mapping[TableName, TableSchema], at: Mapping[TableName, Position]
    ) -> None:
        ((name, self.schema),) = tables.items()
        # A durable target may have rows of an earlier process; this object those of its last run.
        held = self.is_durable() or (self._calls is not None and self._calls.held)
        self._calls = calls = _Calls(self, held=held, position=at.get(name, ORIGIN))
        calls.call(self.on_init, name, self.schema.columns)

    def load(self, table: TableName, baseline: BaselineId) -> RowLoading:
        return RowLoading(self._opened(), baseline)

    def write(self, batch: Batch) -> Position:
        calls = self._opened()
        if self.schema.table in batch.tables and batch.last > calls.position:
            # During a load the table is incomplete; the load itself delivers these changes.
            if not calls.loading:
                calls.done = max(calls.done, calls.position)
                calls.take(batch)
            calls.position = batch.last
        return max(calls.position, batch.last)

    def schema_changed(self, table: TableName, old: TableSchema, new: TableSchema) -> SchemaAnswer:
        answers: list[SchemaAnswer] = []

        def on_schema_change() -> None:
            answers.append(self.on_schema_change(old.columns, new.columns))

        self._opened().call(on_schema_change)
        if answers[0] != "refuse":
            self.schema = new
        return answers[0]

    def row_count(self, table: TableName) -> int | None:
        return None

    def close(self) -> None:
        if self._calls is not None and not self._calls.closed:
            self._calls.closed = True
            self._calls.call(self.on_close)

    def _opened(self) -> _Calls:
        if self._calls is None:
            raise TableError(
                "The target is not open",
                target=type(self).__name__,
                remedy="Call this only while an engine runs the target's pipeline.",
            )
        return self._calls


class _Calls:
    """The calls of the hooks, and how far they are."""

    def __init__(self, target: RowTarget, *, held: bool, position: Position) -> None:
        self.target = target
        self.held = held
        """Whether the target may have rows."""
        self.position = position
        """The position of the table."""
        self.done = position
        """The last change that was applied; ahead of `position` after a failure."""
        self.load: RowLoading | None = None
        self.loading = False
        """Whether the load has begun to call the target."""
        self.closed = False

    def offer(self, at: int, hook: Callable[..., object], *values: object) -> RefusedRow | None:
        """Call a hook for a row, the one `at` this index; return the row if it is refused."""
        try:
            hook(*values)
        except RowRefused as error:
            facts = {"reason": error.message, **{n: str(v) for n, v in error.facts.items()}}
            return RefusedRow(self.target.schema.table, at, facts=facts)
        except Exception as error:
            raise self._failed(hook, error) from error
        return None

    def call(self, hook: Callable[..., object], *values: object) -> None:
        """Call a hook that is not for a row: `RowRefused` is an error like any other there."""
        try:
            hook(*values)
        except Exception as error:
            raise self._failed(hook, error) from error

    def _failed(self, hook: Callable[..., object], error: Exception) -> FunctionFailed:
        # Its text may contain row values, so it is not part of our error.
        return FunctionFailed(
            "A hook of the target raised an exception",
            table=self.target.schema.table,
            hook=getattr(hook, "__name__", "?"),
            error=type(error).__name__,
            where=_where(error),
        )

    def at(self, position: Position, batch_id: str) -> None:
        self.target.position = position
        self.target.batch_id = batch_id

    def truncate(self) -> None:
        self.call(self.target.on_truncate)
        self.held = False

    def take(self, batch: Batch) -> None:
        """Call the hooks for every change of a batch that is not done yet."""
        target, table = self.target, self.target.schema.table
        emptied = batch.truncates.get(table)
        if emptied is not None and emptied > self.done:
            self.at(emptied, batch.id)
            self.truncate()
            self.done = emptied
        for change in changes_in(batch.tables[table], target.schema, batch.epoch, self.done):
            self.at(change.position, batch.id)
            self.held = True
            if change.row is None:
                refused = self.offer(change.index, target.on_delete, change.identity)
            elif change.op == Op.INSERT:
                refused = self.offer(change.index, target.on_insert, change.row)
            else:
                refused = self.offer(change.index, target.on_update, change.row, change.identity)
            if refused is not None:
                # Later changes of its key must not be applied: the batch comes without them.
                raise RowsRefused.of([refused])
            self.done = change.position
        self.at(batch.last, batch.id)
        self.call(target.on_batch_complete)


class RowLoading:
    """
    The load of a baseline into a `RowTarget`; see `Loading`.

    Rows are not staged: the target is called as they come. A load that is abandoned leaves its
    rows, and the next one begins by removing them.
    """

    def __init__(self, calls: _Calls, baseline: BaselineId) -> None:
        self._calls = calls
        self._baseline = baseline
        calls.load, calls.loading = self, False

    def write(self, rows: pa.Table) -> None:
        if not rows.num_rows:
            return
        calls = self._begun()
        calls.held = True
        hook = calls.target.on_baseline_row
        offered = (
            calls.offer(at, hook, row) for at, row in enumerate(rows_in(rows, calls.target.schema))
        )
        if refused := [each for each in offered if each is not None]:
            raise RowsRefused.of(refused)

    def catch_up(self, batch: Batch) -> None:
        self._begun().take(batch)

    def switch(self, at: Position) -> None:
        calls = self._begun()
        calls.at(at, "")
        if self._baseline:
            calls.call(calls.target.on_baseline_complete)
        calls.position = calls.done = at
        self.discard()

    def discard(self) -> None:
        if self._calls.load is self:
            self._calls.load, self._calls.loading = None, False

    def _begun(self) -> _Calls:
        """Empty the target before the first call."""
        calls = self._calls
        if calls.load is not self:
            raise TableError(
                "The load has ended, or another one has begun",
                table=calls.target.schema.table,
                remedy="Begin a load for each baseline, and use it until it is switched or"
                " discarded.",
            )
        if not calls.loading:
            calls.at(ORIGIN, "")
            # Without a baseline, nothing replaces the rows of a durable target.
            if self._baseline or not calls.target.is_durable():
                if calls.held:
                    calls.truncate()
                calls.done = ORIGIN
            calls.loading = True
        return calls


def _where(error: BaseException) -> str:
    """Return file and line in the hook that raised, without any values."""
    # The first frame is our call.
    frames = traceback.extract_tb(error.__traceback__, limit=2)
    return f"{Path(frames[-1].filename).name}:{frames[-1].lineno}"
