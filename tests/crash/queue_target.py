"""
A target as a plain queue is: it appends what comes, durably, and remembers no position.

So a batch whose outcome was lost is there twice. Whoever reads the queue must be able to tell:
the second one has the id of the first, and the same content (R25).
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from headrace.changelog.change import Op
from headrace.changelog.position import Position
from headrace.changelog.schema import TableName, TableSchema
from headrace.targets.target import Batch, TargetTraits

Line = dict[str, Any]
"""A batch: its `id`, `first`, `last` and `rows`; or a switch: its `table`, `at` and `rows`."""


class QueueTarget:
    """Lines of JSON in a file."""

    traits = TargetTraits(type="queue", durable=True, transactional=False)

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = -1

    def check(self, tables: Mapping[TableName, TableSchema]) -> None: ...

    def open(
        self, tables: Mapping[TableName, TableSchema], at: Mapping[TableName, Position]
    ) -> None:
        if self._path.exists():
            # A line that a kill cut short was never sent.
            whole = self._path.read_bytes().rpartition(b"\n")
            os.truncate(self._path, len(whole[0]) + len(whole[1]))
        self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def load(self, table: TableName, baseline: int) -> QueueLoading:
        return QueueLoading(self, table)

    def write(self, batch: Batch) -> Position:
        self.append(
            {
                "id": batch.id,
                "first": str(batch.first),
                "last": str(batch.last),
                "rows": {name: told(rows, batch.epoch) for name, rows in batch.tables.items()},
            }
        )
        return batch.last

    def append(self, line: Line) -> None:
        data = (json.dumps(line) + "\n").encode()
        while data:
            data = data[os.write(self._file, data) :]
        os.fsync(self._file)

    def row_count(self, table: TableName) -> int | None:
        return None

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


class QueueLoading:
    """A table that is loaded; the queue hears of it as one line, when it is exact."""

    def __init__(self, target: QueueTarget, table: TableName) -> None:
        self._target = target
        self._table = table
        self._rows: dict[int, Line] = {}

    def write(self, rows: pa.Table) -> None:
        self._rows.update({row["id"]: row for row in rows.to_pylist()})

    def catch_up(self, batch: Batch) -> None:
        apply(self._rows, told(batch.tables[self._table], batch.epoch))

    def switch(self, at: Position) -> None:
        self._target.append(
            {"table": self._table, "at": str(at), "rows": list(self._rows.values())}
        )

    def discard(self) -> None:
        self._rows.clear()


def told(rows: pa.Table, epoch: int) -> list[Line]:
    """Return a batch's rows of one table as plain values."""
    return [
        {
            "at": str(Position(epoch, row.pop("_commit"), row.pop("_ordinal"))),
            "op": row.pop("_op"),
            "row": {name: value for name, value in row.items() if name != "_time"},
        }
        for row in rows.to_pylist()
    ]


def apply(rows: dict[int, Line], changes: Sequence[Line]) -> None:
    """Do to rows by id what changes say."""
    for change in changes:
        if change["op"] == Op.DELETE:
            rows.pop(change["row"]["id"], None)
        else:
            rows[change["row"]["id"]] = change["row"]


def read_lines(path: Path) -> list[Line]:
    """Return every whole line there is."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]]
