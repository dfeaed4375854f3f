"""Tables and batches for tests, from plain values."""

from collections.abc import Mapping, Sequence

import pyarrow as pa

from headrace.changelog.position import ORIGIN, Position
from headrace.changelog.schema import Column, TableSchema
from headrace.changelog.values import ValueType
from headrace.tables import Table

INSERT, UPDATE, DELETE = 0, 1, 2

Values = Mapping[str, object]
Step = tuple[int, Position, Values]
"""What happened, where, and the row; for a delete its key is enough."""


def table_schema(key: Sequence[str] = ("id",), **kinds: str | ValueType) -> TableSchema:
    columns = [
        Column(name, kind if isinstance(kind, ValueType) else ValueType(kind), at)
        for at, (name, kind) in enumerate(kinds.items(), 1)
    ]
    return TableSchema("orders", tuple(columns), tuple(key))


def row_columns(schema: TableSchema, rows: Sequence[Values]) -> dict[str, pa.Array]:
    columns = {}
    for column in schema.columns:
        array, misfits = column.type.to_arrow([row.get(column.name) for row in rows])
        assert not misfits
        columns[column.name] = array
    return columns


def baseline(schema: TableSchema, rows: Sequence[Values]) -> pa.Table:
    return pa.table(row_columns(schema, rows))


def changes(schema: TableSchema, steps: Sequence[Step]) -> pa.Table:
    """Return steps in the shape of a target's batch."""
    return pa.table(
        {
            "_op": pa.array([op for op, _, _ in steps], pa.int8()),
            "_commit": pa.array([at.commit for _, at, _ in steps], pa.int64()),
            "_ordinal": pa.array([at.ordinal for _, at, _ in steps], pa.int32()),
            "_time": pa.array([0] * len(steps), pa.timestamp("us", "UTC")),
            **row_columns(schema, [row for _, _, row in steps]),
        }
    )


class Writer:
    """Gives every change the next commit, from an empty table on."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self.commit = 0
        table.switch(ORIGIN)

    def put(self, *rows: Values) -> None:
        self.steps(*((INSERT, row) for row in rows))

    def delete(self, *rows: Values) -> None:
        self.steps(*((DELETE, row) for row in rows))

    def steps(self, *steps: tuple[int, Values], truncate: Position | None = None) -> None:
        placed = []
        for op, row in steps:
            self.commit += 1
            placed.append((op, Position(1, self.commit), row))
        self.table.apply(
            changes(self.table.schema, placed),
            epoch=1,
            upto=Position(1, self.commit),
            truncate=truncate,
        )
