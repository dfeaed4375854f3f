"""A target that survives everything, fails at every call it has, and never goes back."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field

import pyarrow as pa

from headrace.changelog.position import Position
from headrace.changelog.schema import TableName
from headrace.errors import HeadraceError
from headrace.targets.target import BaselineId
from headrace.testing.target import Effect, ScriptedLoading, ScriptedTarget, TargetDisk
from tests.simulation.database import Violation


@dataclass(slots=True)
class DurableDisk(TargetDisk):
    """What outlives the target, and what happened to it before its rows were loaded anew."""

    earlier: list[list[Effect]] = field(default_factory=list)
    log_lost: bool = False
    """Whether positions may begin anew, with a new log."""

    def repeated(self) -> list[Effect]:
        """Return every effect that happened twice between two baselines."""
        found = []
        for effects in (*self.earlier, self.effects):
            counts = Counter(
                (effect.table, effect.op, effect.key, effect.position) for effect in effects
            )
            found += [Effect(*what) for what, times in counts.items() if times > 1]
        return found


class DurableTarget(ScriptedTarget):
    """A scripted target whose baselines and whose `show` can fail, too."""

    def __init__(self, disk: DurableDisk) -> None:
        super().__init__(disk)
        self.kept = disk
        self._other: dict[str, deque[HeadraceError]] = {}

    def fail(self, call: str, error: HeadraceError) -> None:
        """Let the next such call fail: `load`, `loading`, `switch` or `show`."""
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
        return DurableLoading(self, table)

    def show(self, table: TableName) -> None:
        self.due("show")
        super().show(table)


class DurableLoading(ScriptedLoading):
    """Rows beside the table of a durable target."""

    def __init__(self, target: DurableTarget, table: TableName) -> None:
        super().__init__(target, table)
        self._durable = target
        self._table = table

    def write(self, rows: pa.Table) -> None:
        self._durable.due("loading")
        super().write(rows)

    def switch(self, at: Position) -> None:
        self._durable.due("switch")
        position = self._durable.position(self._table)
        if at < position and not self._durable.kept.log_lost:
            raise Violation(f"a durable target at {position} was loaded anew at {at}")
        super().switch(at)
        disk = self._durable.kept
        disk.log_lost = False
        disk.earlier.append(disk.effects)
        disk.effects = []
