"""The rows of a batch, one at a time, for targets that are called with each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from headrace.changelog.change import Op
from headrace.changelog.position import Position
from headrace.changelog.schema import Column, TableSchema
from headrace.tables import Row


@dataclass(frozen=True, slots=True)
class RowChange:
    """One change: an upsert with its row, or a delete without."""

    op: Op
    position: Position
    row: Row | None
    identity: Row
    """The key by which the row is known until then: for a key change, the old one."""


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
    Yield what comes after a position, in order.

    A delete and an upsert of one position are one row under another key, and one change.
    """
    values = _readers(table, schema.columns)
    keys = {name: values[name] for name in schema.key}
    ops, commits, ordinals = (
        table.column(name).to_pylist() for name in ("_op", "_commit", "_ordinal")
    )
    at, count = 0, table.num_rows
    while at < count:
        first, place = at, (commits[at], ordinals[at])
        if ops[at] == Op.DELETE and at + 1 < count and place == (commits[at + 1], ordinals[at + 1]):
            at += 1
        position = Position(epoch, *place)
        if position > after:
            row = None if ops[at] == Op.DELETE else Row(values, at)
            # A row that moved is known already, whatever its source called the change.
            op = Op.UPDATE if at > first else Op(ops[at])
            yield RowChange(op, position, row, Row(keys, first))
        at += 1


def _readers(table: pa.Table, columns: Sequence[Column]) -> dict[str, Callable[[int], object]]:
    return {column.name: _Decoded(table.column(column.name), column) for column in columns}


class _Decoded:
    """A column that is decoded when the first row is asked for it, for all of them at once."""

    __slots__ = ("_array", "_column", "_values")

    def __init__(self, array: pa.ChunkedArray, column: Column) -> None:
        self._array = array
        self._column = column
        self._values: list[object] | None = None

    def __call__(self, at: int) -> object:
        if self._values is None:
            self._values = self._column.type.from_arrow(self._array)
        return self._values[at]
