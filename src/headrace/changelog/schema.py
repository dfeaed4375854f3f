"""
What a table looks like: its columns, their types and its key.

A schema belongs to the log, not to a source: baseline and stream of a table share it,
and so do Spark and the targets. The columns of a segment (`TableSchema.segment`) are ours by
name and order; a user's column may have any name, ours included, because both images
are structs of their own.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import pyarrow as pa

from headrace.changelog.values import ValueType
from headrace.errors import BadSchema

TableName: TypeAlias = str
"""A table as its source names it: `orders`, or `public.orders`."""


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its name, its one type, and the number that marks speak of."""

    name: str
    type: ValueType
    field: int
    """Its id within the table, never reused: `_unsent` and `_exact` name columns by it."""

    nullable: bool = True
    declared: str = ""
    """The type as the source declares it, for people."""

    missing: str | None = dataclasses.field(default=None, compare=False)
    """What rows from before the column have in it, as text that Spark can cast; None: null."""

    rewritten: bool = dataclasses.field(default=False, compare=False)
    """Whether such rows may have anything in it: they were rewritten when it was added."""

    may_be_unsent: bool = dataclasses.field(default=False, compare=False)
    """
    Whether a change may come without its value, which nothing here keeps (R21).

    As the source is set up now: no log holds it, so a schema of a log's never says so.
    """


@dataclass(frozen=True)
class TableSchema:
    """A table's columns in order, and which of them are its key."""

    table: TableName
    columns: tuple[Column, ...]
    key: tuple[str, ...] = ()
    """The key's columns, in the key's order; empty where the table has none."""

    whole_before: bool = True
    """
    Whether a before image, where there is one, holds the whole row. Otherwise it holds the key
    at most, and nobody can tell from it whether a filter was true of the row (R22).
    """

    def __post_init__(self) -> None:
        names = [column.name for column in self.columns]
        if not names or len(set(names)) < len(names):
            raise BadSchema("Columns need a name each", table=self.table)
        if missing := set(self.key) - set(names):
            raise BadSchema("Key names no column", table=self.table, columns=sorted(missing))

    @property
    def names(self) -> tuple[str, ...]:
        """The columns' names, in order."""
        return tuple(column.name for column in self.columns)

    def column(self, name: str) -> Column:
        """Return the column called `name`; `KeyError` where there is none."""
        return self._by_name[name]

    @cached_property
    def _by_name(self) -> dict[str, Column]:
        return {column.name: column for column in self.columns}

    @cached_property
    def arrow(self) -> pa.Schema:
        """The row as Arrow: one field a column, all nullable (a delete holds its key only)."""
        return pa.schema([column.type.field(column.name) for column in self.columns])

    @cached_property
    def segment(self) -> pa.Schema:
        """The columns of a segment of this table, in the order they stand on disk."""
        image = pa.struct(list(self.arrow))
        return pa.schema([*META, pa.field("before", image), pa.field("after", image)])


META = (
    pa.field("_op", pa.int8()),
    pa.field("_commit", pa.int64()),
    pa.field("_ordinal", pa.int32()),
    pa.field("_xid", pa.int64()),
    pa.field("_time", pa.timestamp("us", "UTC")),
    pa.field("_unsent", pa.list_(pa.int32())),
    pa.field("_exact", pa.map_(pa.int32(), pa.string())),
)
"""What every change carries, before its two images. `_time` is never an order (R37)."""
