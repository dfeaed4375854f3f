"""A target around another one, that tells how far it got."""

from __future__ import annotations

import threading
from collections.abc import Mapping

from headrace.changelog.position import ORIGIN, Position
from headrace.changelog.schema import TableName, TableSchema
from headrace.targets.target import Batch, Loading, Target, TargetTraits


class WatchedTarget:
    """Passes everything on; `wait` ends when the other target has come to a commit."""

    def __init__(self, inner: Target) -> None:
        self.inner = inner
        self._at: dict[TableName, Position] = {}
        self._moved = threading.Condition()

    def wait(self, commit: int, timeout: float) -> bool:
        """Wait until every table has taken all up to this commit; False on time-out."""
        with self._moved:
            return self._moved.wait_for(lambda: self.reached.commit >= commit, timeout)

    @property
    def reached(self) -> Position:
        """How far the table is that is behind all others."""
        return min(self._at.values(), default=ORIGIN)

    @property
    def traits(self) -> TargetTraits:
        return self.inner.traits

    def check(self, tables: Mapping[TableName, TableSchema]) -> None:
        self.inner.check(tables)

    def open(
        self, tables: Mapping[TableName, TableSchema], at: Mapping[TableName, Position]
    ) -> None:
        self.inner.open(tables, at)
        self._move({name: at.get(name, ORIGIN) for name in tables})

    def load(self, table: TableName, baseline: int) -> Loading:
        return WatchedLoading(self.inner.load(table, baseline), self, table)

    def write(self, batch: Batch) -> Position:
        upto = self.inner.write(batch)
        self._move(dict.fromkeys(batch.tables, upto))
        return upto

    def row_count(self, table: TableName) -> int | None:
        return self.inner.row_count(table)

    def close(self) -> None:
        self.inner.close()

    def _move(self, to: Mapping[TableName, Position]) -> None:
        with self._moved:
            self._at.update(to)
            self._moved.notify_all()


class WatchedLoading:
    """A baseline on its way into a watched target."""

    def __init__(self, inner: Loading, target: WatchedTarget, table: TableName) -> None:
        self.write = inner.write
        self.catch_up = inner.catch_up
        self.discard = inner.discard
        self._inner = inner
        self._target = target
        self._table = table

    def switch(self, at: Position) -> None:
        self._inner.switch(at)
        self._target._move({self._table: at})
