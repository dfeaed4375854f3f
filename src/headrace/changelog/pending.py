"""
Changes that wait in memory for their flush.

They are kept as the source gave them, one group for each table and schema, and put in
order and together only when they are written.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.changelog.change import Changes
from headrace.changelog.entry import File
from headrace.changelog.position import Position, SourcePosition
from headrace.changelog.schema import TableSchema
from headrace.errors import BadPosition


@dataclass(slots=True)
class _Group:
    """Changes of one table and one schema: one segment to be."""

    schema: TableSchema
    parts: list[pa.Table] = field(default_factory=list)


@dataclass(slots=True)
class Pending:
    """What was appended to the log since its last flush."""

    end: Position
    """The log's end: nothing at or before its commit may come again."""

    upto: SourcePosition | None = None
    complete: bool = True
    rows: int = 0
    bytes: int = 0
    first: Position | None = None
    last: Position | None = None
    begun: int = 0
    time: int = 0
    markers: list[str] = field(default_factory=list)
    spilled: list[File] = field(default_factory=list)
    """Segments of it that are on disk, and that nothing names yet."""

    _groups: list[_Group] = field(default_factory=list)
    _newest: dict[str, _Group] = field(default_factory=dict)
    """Of each table the last of its groups."""

    def add(self, changes: Changes) -> None:
        """Add changes: `BadPosition` where the log has their commits already."""
        found = [table for table in changes.tables if table.rows.num_rows]
        for table in found:
            lowest = pc.min(table.rows["_commit"]).as_py()
            if lowest <= self.end.commit:
                raise BadPosition(
                    "Change is not beyond the end of the log",
                    table=table.schema.table,
                    commit=lowest,
                    end=self.end,
                )
        for table in found:
            self._gather(table.schema, table.rows)
        self.upto = changes.upto
        self.complete = changes.ends
        self.markers += changes.markers

    def alters(self, changes: Changes) -> bool:
        """Whether these are in other columns than those of their tables that wait, or may be."""
        if self.spilled:
            return True  # of what is on disk nobody has kept the columns
        groups = ((table.schema, self._newest.get(table.schema.table)) for table in changes.tables)
        return any(group is not None and group.schema != schema for schema, group in groups)

    def _gather(self, schema: TableSchema, rows: pa.Table) -> None:
        # The newest group of a table takes what has its schema; another schema starts a new
        # one, so that each segment has one, and the log's last one is the table's.
        group = self._newest.get(schema.table)
        if group is None or group.schema != schema:
            group = self._newest[schema.table] = _Group(schema)
            self._groups.append(group)
        group.parts.append(rows)
        self.rows += rows.num_rows
        self.bytes += rows.nbytes

    def take(self) -> Iterator[tuple[TableSchema, pa.Table]]:
        """Yield each group's rows in position order, and keep none of them."""
        groups, self._groups, self._newest, self.bytes = self._groups, [], {}, 0
        for group in groups:
            rows = _in_order(group.parts)
            self._span(rows)
            yield group.schema, rows

    def _span(self, rows: pa.Table) -> None:
        first, last = (
            Position(self.end.epoch, rows["_commit"][at].as_py(), rows["_ordinal"][at].as_py())
            for at in (0, rows.num_rows - 1)
        )
        self.first = first if self.first is None else min(self.first, first)
        self.last = last if self.last is None else max(self.last, last)
        times = pc.min_max(rows["_time"].cast(pa.int64())).as_py()
        if times["min"] is not None:
            self.time = max(self.time, times["max"])
            self.begun = min(self.begun or times["min"], times["min"])


def _in_order(parts: list[pa.Table]) -> pa.Table:
    """Return the parts as one table in position order."""
    rows = pa.concat_tables(parts) if len(parts) > 1 else parts[0]
    commits = rows["_commit"].to_numpy()
    ordinals = rows["_ordinal"].to_numpy()
    steps = np.diff(commits)
    # Nearly always they come in order; then nothing is moved.
    if np.all((steps > 0) | ((steps == 0) & (np.diff(ordinals) >= 0))):
        return rows
    return rows.take(np.lexsort((ordinals, commits)))
