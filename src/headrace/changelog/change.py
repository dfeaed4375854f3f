"""
Changes on their way from a source into the log.

A source returns complete commits, as Arrow tables that already have the columns of a segment:
nothing between the source and the disk looks at single rows.

Until a flush, changes wait in memory as the source delivered them, one group for each table and
schema. They are put in order and joined only when they are written.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.changelog.entries import File
from headrace.changelog.position import Position, SourcePosition
from headrace.changelog.schema import TableSchema
from headrace.errors import BadPosition


class Op(IntEnum):
    """What happened to a row, or to the whole table."""

    INSERT = 0
    UPDATE = 1
    DELETE = 2
    TRUNCATE = 3


@dataclass(frozen=True, slots=True)
class TableChanges:
    """Changes of one table and one schema, in position order."""

    schema: TableSchema
    rows: pa.Table
    """With the columns of `schema.segment`."""


@dataclass(frozen=True, slots=True)
class Changes:
    """One or more complete commits, as a source read them."""

    tables: Sequence[TableChanges]
    """Empty when nothing changed and only the position moved: a heartbeat."""

    upto: SourcePosition
    """The position from which to continue reading after these."""

    ends: bool = True
    """False for a part of a commit too large for memory; True for its last part (R9)."""

    markers: tuple[str, ...] = ()
    """Texts written at the source among the changes, to find out when all before has arrived."""

    @property
    def row_count(self) -> int:
        """Changes in all tables."""
        return sum(table.rows.num_rows for table in self.tables)

    @property
    def byte_count(self) -> int:
        """Bytes of all tables, as Arrow holds them."""
        return sum(table.rows.nbytes for table in self.tables)


@dataclass(frozen=True, slots=True)
class Change:
    """One change as plain values: for sources that read row by row, and for tests."""

    op: Op
    commit: int
    ordinal: int
    time: int
    """Commit time in microseconds since 1970, UTC."""

    before: Mapping[str, object] | None = None
    after: Mapping[str, object] | None = None
    xid: int | None = None


def as_segment(schema: TableSchema, changes: Iterable[Change]) -> pa.Table:
    """
    Return `changes` with the columns of a segment.

    A value that its column cannot hold becomes null, and its exact text is in `_exact`
    under the column's field id, negative for the before image: data can never stop a
    recorder (R23f).
    """
    rows = list(changes)
    exact: list[list[tuple[int, str]] | None] = [None] * len(rows)
    images = []
    for side in ("before", "after"):
        image = [getattr(row, side) for row in rows]
        children = []
        for column in schema.columns:
            values = [None if values is None else values.get(column.name) for values in image]
            array, unrepresentable = column.type.to_arrow(values)
            for index, text in unrepresentable:
                field = column.field if side == "after" else -column.field
                exact[index] = [*(exact[index] or []), (field, text)]
            children.append(array)
        images.append(
            pa.StructArray.from_arrays(
                children,
                fields=list(schema.arrow),
                mask=pa.array([values is None for values in image], pa.bool_()),
            )
        )
    types = {field.name: field.type for field in schema.segment}
    return pa.Table.from_arrays(
        [
            pa.array([int(row.op) for row in rows], types["_op"]),
            pa.array([row.commit for row in rows], types["_commit"]),
            pa.array([row.ordinal for row in rows], types["_ordinal"]),
            pa.array([row.xid for row in rows], types["_xid"]),
            pa.array([row.time for row in rows], pa.int64()).cast(types["_time"]),
            pa.nulls(len(rows), types["_unsent"]),
            pa.array(exact, types["_exact"]),
            *images,
        ],
        schema=schema.segment,
    )


# --- changes that wait for a flush ----------------------------------------------------------------


@dataclass(slots=True)
class _Group:
    """Changes of one table and one schema, which become one segment."""

    schema: TableSchema
    parts: list[pa.Table] = field(default_factory=list)


@dataclass(slots=True)
class UnflushedChanges:
    """The changes appended to the log since its last flush."""

    end: Position
    """The log's end: no change at or before its commit is accepted."""

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
    """Its segments that are already on disk, and that no entry names yet."""

    _groups: list[_Group] = field(default_factory=list)
    _newest: dict[str, _Group] = field(default_factory=dict)
    """The last group of each table."""

    def add(self, changes: Changes) -> None:
        """Add changes: `BadPosition` if the log already has their commits."""
        found = [table for table in changes.tables if table.rows.num_rows]
        for table in found:
            lowest = pc.min(table.rows["_commit"]).as_py()
            if lowest <= self.end.commit:
                raise BadPosition(
                    "Change is not after the end of the log",
                    table=table.schema.table,
                    commit=lowest,
                    end=self.end,
                )
        for table in found:
            self._collect(table.schema, table.rows)
        self.upto = changes.upto
        self.complete = changes.ends
        self.markers += changes.markers

    def alters(self, changes: Changes) -> bool:
        """Whether these have, or may have, other columns than pending changes of their tables."""
        if self.spilled:
            return True  # the columns of what is on disk are not remembered
        groups = ((table.schema, self._newest.get(table.schema.table)) for table in changes.tables)
        return any(group is not None and group.schema != schema for schema, group in groups)

    def _collect(self, schema: TableSchema, rows: pa.Table) -> None:
        # Changes with the schema of the table's newest group are added to it; another schema
        # starts a new group, so that each segment has one schema, and the last is the table's.
        group = self._newest.get(schema.table)
        if group is None or group.schema != schema:
            group = self._newest[schema.table] = _Group(schema)
            self._groups.append(group)
        group.parts.append(rows)
        self.rows += rows.num_rows
        self.bytes += rows.nbytes

    def take(self) -> Iterator[tuple[TableSchema, pa.Table]]:
        """Yield each group's rows in position order, and remove them."""
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
    # Nearly always they are in order already.
    if np.all((steps > 0) | ((steps == 0) & (np.diff(ordinals) >= 0))):
        return rows
    return rows.take(np.lexsort((ordinals, commits)))
