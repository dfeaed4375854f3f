"""
Changes on their way from a source into the log.

A source hands over whole commits, as Arrow tables already in the shape of a segment:
nothing between the source and the disk looks at single rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum

import pyarrow as pa

from headrace.changelog.position import SourcePosition
from headrace.changelog.schema import TableSchema


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
    """In the shape of `schema.segment`."""


@dataclass(frozen=True, slots=True)
class Changes:
    """One or more whole commits, as a source read them."""

    tables: Sequence[TableChanges]
    """Empty when nothing changed and only the position moved: a heartbeat."""

    upto: SourcePosition
    """Where to read on after these."""

    ends: bool = True
    """False for a part of a commit too large for memory; its last part says True (R9)."""

    markers: tuple[str, ...] = ()
    """Texts that somebody wrote among the changes, to learn when all before has arrived."""

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
    Return `changes` in the shape of a segment.

    A value its column cannot hold becomes null, and its exact text stands in `_exact`
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
            array, misfits = column.type.to_arrow(values)
            for index, text in misfits:
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
