"""
A target whose data outlives it, and which fails on command.

Its data is in a `TargetDisk`, which represents an external database: pass the same one to the
next target, and it finds its rows again, with their position. It records every effect, so that a
test can detect one that happened twice.

With `transactional=False` it behaves like a plain queue: it stores no position, so it applies a
batch every time it arrives, and it records every batch.
"""

from __future__ import annotations

import hashlib
import threading
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from headrace.changelog.change import Op
from headrace.changelog.position import ORIGIN, Position
from headrace.changelog.schema import BATCH_META, TableName, TableSchema
from headrace.errors import HeadraceError, NoKey
from headrace.targets.target import BaselineId, Batch, TargetTraits

Key = tuple[object, ...]
Row = dict[str, object]


@dataclass(frozen=True, slots=True)
class Effect:
    """One change that the target applied, which cannot be undone."""

    table: TableName
    op: str
    key: Key
    position: Position


@dataclass(slots=True)
class Kept:
    """One table on the disk: rows and their position, which change together."""

    rows: dict[Key, Row] = field(default_factory=dict)
    position: Position = ORIGIN
    shown: bool = False
    """Whether readers may see it: from the first switch on."""


Sent = tuple[str, Position, Position, str]
"""A batch that arrived: its id, its first and last position, and the hash of its content."""


@dataclass(slots=True)
class TargetDisk:
    """The data of a target, which outlives it."""

    tables: dict[TableName, Kept] = field(default_factory=dict)
    effects: list[Effect] = field(default_factory=list)
    batches: list[Sent] = field(default_factory=list)
    """Every write in order, if the target is not transactional."""

    def duplicates(self) -> list[Effect]:
        """Return every effect that happened more than once: there should be none."""
        return [effect for effect, times in Counter(self.effects).items() if times > 1]


class ScriptedTarget:
    """Keeps one row for each key, on a `TargetDisk`, with faults on command."""

    def __init__(self, disk: TargetDisk | None = None, *, transactional: bool = True) -> None:
        self.disk = disk or TargetDisk()
        self.traits = TargetTraits("scripted", durable=True, transactional=transactional)
        self.calls: Counter[str] = Counter()
        self.stored_progress: dict[TableName, Position] = {}
        """The positions that were passed to `open` and `add`."""
        self._schemas: dict[TableName, TableSchema] = {}
        self._before: deque[HeadraceError] = deque()
        self._after: deque[HeadraceError] = deque()
        self._free = threading.Event()
        self._free.set()
        self.holding = threading.Event()
        """Set while a write is blocked by `hold`."""

    # --- faults --------------------------------------------------------------------------

    def reject(self, error: HeadraceError, times: int = 1) -> None:
        """Make the next `times` writes raise `error` before they apply anything."""
        self._before.extend([error] * times)

    def fail_after_write(self, error: HeadraceError, times: int = 1) -> None:
        """Make the next `times` writes succeed, but raise `error`: the reply is lost."""
        self._after.extend([error] * times)

    def hold(self) -> None:
        """Block writes until `release`."""
        self._free.clear()

    def release(self) -> None:
        """Let blocked writes continue."""
        self._free.set()

    # --- what a test reads ---------------------------------------------------------------

    def rows(self, table: TableName) -> dict[Key, Row]:
        """Return the rows on disk, by key."""
        return dict(self.disk.tables[table].rows) if table in self.disk.tables else {}

    def position(self, table: TableName) -> Position:
        """Return the position of the table on disk."""
        return self.disk.tables[table].position if table in self.disk.tables else ORIGIN

    @property
    def shown(self) -> set[TableName]:
        """The tables that readers may see."""
        return {name for name, kept in self.disk.tables.items() if kept.shown}

    # --- the protocol --------------------------------------------------------------------

    def check(self, tables: Mapping[TableName, TableSchema]) -> None:
        """Refuse tables without a key."""
        for name, schema in tables.items():
            if not schema.key:
                raise NoKey("The table has no key", table=name)

    def open(
        self, tables: Mapping[TableName, TableSchema], at: Mapping[TableName, Position]
    ) -> None:
        """Open the tables on disk, and create missing ones."""
        self.calls["open"] += 1
        self._schemas = dict(tables)
        self.stored_progress = dict(at)
        for name in tables:
            self.disk.tables.setdefault(name, Kept())

    def add(self, table: TableName, schema: TableSchema, at: Position) -> None:
        """Open one more table on disk, or create it."""
        self.calls["add"] += 1
        self.check({table: schema})
        self._schemas[table] = schema
        self.stored_progress[table] = at
        self.disk.tables.setdefault(table, Kept())

    def load(self, table: TableName, baseline: BaselineId) -> ScriptedLoading:
        """Begin to load rows, which are staged until the switch."""
        self.calls["load"] += 1
        return ScriptedLoading(self, table)

    def write(self, batch: Batch) -> Position:
        """Apply a batch with its positions, in one step."""
        self.calls["write"] += 1
        if not self.traits.transactional:
            self.disk.batches.append((batch.id, batch.first, batch.last, digest(batch)))
        if not self._free.is_set():
            self.holding.set()
            self._free.wait()
            self.holding.clear()
        if self._before:
            raise self._before.popleft()
        for name in batch.tables:
            self._take(name, batch)
        if self._after:
            raise self._after.popleft()
        if not self.traits.transactional:
            return batch.last
        return min((self.position(name) for name in batch.tables), default=batch.last)

    def row_count(self, table: TableName) -> int | None:
        """Return the number of rows that readers may see."""
        return len(self.rows(table)) if table in self.shown else 0

    def close(self) -> None:
        """Close the target; the disk remains."""
        self.calls["close"] += 1

    def rows_of(self, schema: TableSchema, rows: pa.Table) -> list[Row]:
        """Return Arrow rows as plain values."""
        columns = {
            column.name: column.type.from_arrow(rows[column.name])
            for column in schema.columns
            if column.name in rows.column_names
        }
        return [
            dict(zip(columns, values, strict=True))
            for values in zip(*columns.values(), strict=True)
        ]

    def _take(self, name: TableName, batch: Batch) -> None:
        kept = self.disk.tables[name]
        effects = self.apply(self._schemas[name], kept, batch)
        self.disk.effects += effects
        if not self.traits.transactional:
            kept.position = ORIGIN

    def apply(self, schema: TableSchema, kept: Kept, batch: Batch) -> list[Effect]:
        """Apply one table of a batch to `kept`; return the effects."""
        effects: list[Effect] = []
        table = schema.table
        emptied = batch.truncates.get(table)
        if emptied is not None and emptied > kept.position:
            kept.rows.clear()
            effects.append(Effect(table, "truncate", (), emptied))
        if (rows := batch.tables.get(table)) is not None:
            # By index: a column of the row may have a name of ours.
            values = self.rows_of(schema, rows.select(list(range(BATCH_META, rows.num_columns))))
            applied = zip(
                *(rows.column(index).to_pylist() for index in range(3)),
                values,
                strict=True,
            )
            for op, commit, ordinal, row in applied:
                at = Position(batch.epoch, commit, ordinal)
                if at <= kept.position:
                    continue  # applied before; a replay changes nothing
                key = tuple(row[name] for name in schema.key)
                if op == Op.DELETE:
                    kept.rows.pop(key, None)
                else:
                    kept.rows[key] = row
                effects.append(Effect(table, "delete" if op == Op.DELETE else "upsert", key, at))
        kept.position = max(kept.position, batch.last)
        return effects


class ScriptedLoading:
    """Rows that are staged until the switch."""

    def __init__(self, target: ScriptedTarget, table: TableName) -> None:
        self._target = target
        self._schema = target._schemas[table]
        self._staged = Kept()

    def write(self, rows: pa.Table) -> None:
        """Add rows."""
        for row in self._target.rows_of(self._schema, rows):
            self._staged.rows[tuple(row[name] for name in self._schema.key)] = row

    def catch_up(self, batch: Batch) -> None:
        """Apply changes to the staged rows, which are not visible and record no effects."""
        self._target.apply(self._schema, self._staged, batch)

    def switch(self, at: Position) -> None:
        """Replace the table by the staged rows."""
        position = at if self._target.traits.transactional else ORIGIN
        kept = Kept(self._staged.rows, position, shown=True)
        self._target.disk.tables[self._schema.table] = kept

    def discard(self) -> None:
        """Discard the staged rows."""
        self._staged = Kept()


def digest(batch: Batch) -> str:
    """Return a hash of the rows and truncates of a batch."""
    tables = {name: rows.to_pylist() for name, rows in sorted(batch.tables.items())}
    content = repr((tables, sorted(batch.truncates.items())))
    return hashlib.sha256(content.encode()).hexdigest()
