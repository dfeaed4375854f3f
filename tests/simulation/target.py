"""
Targets that say what they began with; the durable ones survive everything and fail at every call.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field

import pyarrow as pa

from headrace.changelog.position import ORIGIN, Position
from headrace.changelog.schema import TableName
from headrace.errors import HeadraceError
from headrace.tables import Table
from headrace.targets.memory import IndexedMemory, MemoryLoading
from headrace.targets.target import BaselineId, Batch
from headrace.testing.target import Effect, ScriptedLoading, ScriptedTarget, TargetDisk, digest
from tests.simulation.database import Violation
from tests.simulation.model import Begin, Beginning


@dataclass(frozen=True, slots=True)
class Sent:
    """A batch that a queue took, or a table that was put in the place of what was there."""

    id: str
    """Empty for a table."""

    first: Position
    last: Position
    contents: dict[TableName, str]
    """What each table's share hashes to."""

    log: int
    """How many logs were lost before."""


@dataclass(slots=True)
class DurableDisk(TargetDisk):
    """What outlives the target, and what happened to it before its rows were loaded anew."""

    earlier: list[list[Effect]] = field(default_factory=list)
    began: dict[TableName, Beginning] = field(default_factory=dict)
    """What each table that is shown began with."""
    applied: dict[TableName, Position] = field(default_factory=dict)
    """How far each table is, also where the target itself does not know."""
    sent: list[Sent] = field(default_factory=list)

    def repeated(self) -> list[Effect]:
        """Return every effect that happened twice between two baselines."""
        found = []
        for effects in (*self.earlier, self.effects):
            counts = Counter(
                (effect.table, effect.op, effect.key, effect.position) for effect in effects
            )
            found += [Effect(*what) for what, times in counts.items() if times > 1]
        return found


class WatchedMemory(IndexedMemory):
    """The product's own memory target, which remembers what its tables began with."""

    def __init__(self, begin: Begin) -> None:
        super().__init__()
        self.began: dict[TableName, Beginning] = {}
        self._begin = begin
        self._next: dict[TableName, Beginning] = {}

    def load(self, table: TableName, baseline: BaselineId) -> MemoryLoading:
        self._next[table] = self._begin(table, baseline)
        return super().load(table, baseline)

    def at(self, table: TableName) -> Position:
        """Return the position that readers see."""
        return self.table(table).position

    def seen(self, table: TableName) -> dict[object, dict[str, object]]:
        """Return the rows that readers see, by key."""
        view = self.table(table)
        (key,) = view._rows.schema.key
        return {row[key]: dict(row) for row in view.all()}

    def _switch(self, name: TableName, table: Table, at: Position) -> None:
        super()._switch(name, table, at)
        self.began[name] = self._next[name]


class DurableTarget(ScriptedTarget):
    """A scripted target whose baselines can fail, too."""

    def __init__(self, disk: DurableDisk, begin: Begin, *, transactional: bool = True) -> None:
        super().__init__(disk, transactional=transactional)
        self.kept = disk
        self.begin = begin
        self.superseded = False
        """Whether the engine was taken over from; a database takes nothing old."""
        self._other: dict[str, deque[HeadraceError]] = {}

    @property
    def began(self) -> dict[TableName, Beginning]:
        return self.kept.began

    def at(self, table: TableName) -> Position:
        """Return how far the rows are."""
        return self.kept.applied.get(table, ORIGIN)

    def seen(self, table: TableName) -> dict[object, dict[str, object]]:
        """Return the rows, by key."""
        return {key: row for (key,), row in self.rows(table).items()}

    def fail(self, call: str, error: HeadraceError) -> None:
        """Let the next such call fail: `load`, `loading`, `catch_up`, `switch` or `switched`."""
        self._other.setdefault(call, deque()).append(error)

    def heal(self) -> None:
        """Take every fault away."""
        self._before.clear()
        self._after.clear()
        self._other.clear()

    def due(self, call: str) -> None:
        """Raise what waits for this call."""
        if waiting := self._other.get(call):
            raise waiting.popleft()

    def load(self, table: TableName, baseline: BaselineId) -> DurableLoading:
        self.due("load")
        return DurableLoading(self, table, self.begin(table, baseline))

    def write(self, batch: Batch) -> Position:
        if not self._before:
            self._note(batch)
        return super().write(batch)

    def _note(self, batch: Batch) -> None:
        shares = {
            name: digest(Batch(batch.id, batch.epoch, batch.first, batch.last, {name: rows}))
            for name, rows in batch.tables.items()
        }
        truncates = dict(batch.truncates)
        contents = {name: f"{share} {truncates.get(name)}" for name, share in shares.items()}
        for name in batch.tables:
            began = self.kept.began.get(name)
            if began is None:
                raise Violation(f"a batch for {name}, which has no rows to begin with")
            if began.epoch != batch.epoch:
                raise Violation(f"{name} of epoch {began.epoch} was given {batch.id}")
            self.kept.applied[name] = max(self.at(name), batch.last)
        if self.superseded and self.traits.transactional:
            return
        # A table that was not loaded since may have gone on from a lost log into the next.
        log = max(began.log for began in self.kept.began.values())
        self.kept.sent.append(Sent(batch.id, batch.first, batch.last, contents, log))


class DurableLoading(ScriptedLoading):
    """Rows beside the table of a durable target."""

    def __init__(self, target: DurableTarget, table: TableName, began: Beginning) -> None:
        super().__init__(target, table)
        self._durable = target
        self._table = table
        self._began = began

    def write(self, rows: pa.Table) -> None:
        self._durable.due("loading")
        super().write(rows)

    def catch_up(self, batch: Batch) -> None:
        self._durable.due("catch_up")
        super().catch_up(batch)

    def switch(self, at: Position) -> None:
        self._durable.due("switch")
        disk, table = self._durable.kept, self._table
        began = disk.began.get(table)
        # A log made anew counts from the beginning again.
        if began is not None and began.log == self._began.log and at < self._durable.at(table):
            was = self._durable.at(table)
            raise Violation(f"a durable target at {was} was loaded anew at {at}")
        super().switch(at)
        disk.began[table], disk.applied[table] = self._began, at
        disk.sent.append(Sent("", at, at, {table: ""}, self._began.log))
        disk.earlier.append([each for each in disk.effects if each.table == table])
        disk.effects = [each for each in disk.effects if each.table != table]
        self._durable.due("switched")
