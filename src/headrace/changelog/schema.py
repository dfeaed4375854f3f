"""
The schema of a table: its columns, their types and its key, and how one schema follows another.

A schema belongs to the log, not to a source: baseline and stream of a table share it,
and so do Spark and the targets. The log defines the names and order of a segment's columns
(`TableSchema.segment`). A user's column may have any name, even one of those, because both
images are structs of their own.

From one schema to the next, columns are identified by their ids, which are never reused: a name
may be given to another column. A change of schema is not reported as a change of rows, so it
matters whether the rows in the log still match the table (R23b).
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, TypeAlias

import pyarrow as pa

from headrace.changelog.values import ValueType
from headrace.errors import BadSchema

TableName: TypeAlias = str
"""A table as its source names it: `orders`, or `public.orders`."""


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its name, its type, and the id that `_unsent` and `_exact` refer to."""

    name: str
    type: ValueType
    field: int
    """Its id within the table, which is never reused."""

    nullable: bool = True
    declared: str = ""
    """The type as the source declares it, for people."""

    missing: str | None = dataclasses.field(default=None, compare=False)
    """The value of rows older than the column, as text that Spark can cast; None: null."""

    rewritten: bool = dataclasses.field(default=False, compare=False)
    """Whether such rows may have any value in it: they were rewritten when it was added."""

    may_be_unsent: bool = dataclasses.field(default=False, compare=False)
    """
    Whether a change may lack its value, which is not stored anywhere (R21).

    This depends on the source's current settings. It is not in the log, so it is never set in
    a schema from a log.
    """


@dataclass(frozen=True)
class TableSchema:
    """A table's columns in order, and which of them are its key."""

    table: TableName
    columns: tuple[Column, ...]
    key: tuple[str, ...] = ()
    """The key's columns, in the key's order; empty if the table has none."""

    whole_before: bool = True
    """
    Whether a before image, if there is one, holds the whole row. Otherwise it holds the key
    at most, and does not show whether a filter was true for the row (R22).
    """

    def __post_init__(self) -> None:
        names = [column.name for column in self.columns]
        if not names or len(set(names)) < len(names):
            raise BadSchema("A table needs columns with distinct names", table=self.table)
        if missing := set(self.key) - set(names):
            raise BadSchema(
                "The key has columns that the table does not have",
                table=self.table,
                columns=sorted(missing),
            )

    @property
    def names(self) -> tuple[str, ...]:
        """The columns' names, in order."""
        return tuple(column.name for column in self.columns)

    def column(self, name: str) -> Column:
        """Return the column called `name`; `KeyError` if there is none."""
        return self._by_name[name]

    @cached_property
    def _by_name(self) -> dict[str, Column]:
        return {column.name: column for column in self.columns}

    @cached_property
    def arrow(self) -> pa.Schema:
        """The row as Arrow: one field per column, all nullable (a delete holds its key only)."""
        return pa.schema([column.type.field(column.name) for column in self.columns])

    @cached_property
    def segment(self) -> pa.Schema:
        """The columns of a segment of this table, in their order on disk."""
        image = pa.struct(list(self.arrow))
        return pa.schema([*META, pa.field("before", image), pa.field("after", image)])

    @cached_property
    def stored(self) -> pa.Schema:
        """The columns of a segment with `CAPTURED`, which the writer of the log adds."""
        return self.segment.append(CAPTURED)


META = (
    pa.field("_op", pa.int8()),
    pa.field("_commit", pa.int64()),
    pa.field("_ordinal", pa.int32()),
    pa.field("_xid", pa.int64()),
    pa.field("_time", pa.timestamp("us", "UTC")),
    pa.field("_unsent", pa.list_(pa.int32())),
    pa.field("_exact", pa.map_(pa.int32(), pa.string())),
)
"""The columns of every change before its two images. `_time` is never an order (R37)."""

CAPTURED = pa.field("_captured", pa.timestamp("us", "UTC"))
"""
When a change was written to the log: the last column of its segment.

It is kept when segments are merged and folded, so that a replay finds the same time (R23g).
Segments of a copy, and those of earlier versions, do not have it.
"""

BATCH_META = 4
"""
How many columns of a batch's rows are ours: `_op _commit _ordinal _time`, the first ones.

They are found by index and never by name, because a column of the row may have the same name.
"""


# --- from one schema to the next ------------------------------------------------------------------

Kind: TypeAlias = Literal["added", "dropped", "renamed", "retyped", "key"]


@dataclass(frozen=True, slots=True)
class SchemaDifference:
    """One difference between two schemas."""

    kind: Kind
    column: str
    """The old name of the column; of an added column, its name."""

    now: str = ""
    """Its new name, or its new type."""

    def __str__(self) -> str:
        return f"{self.column} {self.kind}" + (f" to {self.now}" if self.now else "")


def differences(old: TableSchema, new: TableSchema) -> tuple[SchemaDifference, ...]:
    """Return what changed: columns first, in their order, then the key."""
    before = {column.field: column for column in old.columns}
    after = {column.field: column for column in new.columns}
    found: list[SchemaDifference] = []
    for field, column in before.items():
        now = after.get(field)
        if now is None:
            found.append(SchemaDifference("dropped", column.name))
            continue
        if now.name != column.name:
            found.append(SchemaDifference("renamed", column.name, now.name))
        if _retyped(column, now):
            found.append(SchemaDifference("retyped", column.name, now.declared or str(now.type)))
    found += [
        SchemaDifference("added", column.name) for f, column in after.items() if f not in before
    ]
    if _key_fields(old) != _key_fields(new):
        found.append(SchemaDifference("key", ", ".join(old.key), ", ".join(new.key)))
    return tuple(found)


def keeps_rows(old: TableSchema, new: TableSchema) -> bool:
    """
    Return whether rows recorded under `old` are right under `new`, without being read again.

    They are if a column was dropped or renamed, or was added and its value in older rows is
    known. With another type they were rewritten, perhaps by an expression. A new column with
    the name of a dropped one cannot be distinguished from it in what was written in between.
    """
    before = {column.field: column for column in old.columns}
    names = {column.name: column.field for column in old.columns}
    for column in new.columns:
        known = before.get(column.field)
        if names.get(column.name, column.field) != column.field:
            return False
        if known is None:
            if column.rewritten:
                return False
        elif _retyped(known, column):
            return False
    return _key_fields(old) == _key_fields(new)


def inheriting(schema: TableSchema, before: TableSchema) -> TableSchema:
    """
    Return a schema whose columns have the `missing` values of the previous schema.

    A source may forget them: PostgreSQL does when the table is rewritten.
    """
    known = {column.field: column.missing for column in before.columns}
    columns = (
        replace(column, missing=known[column.field]) if column.field in known else column
        for column in schema.columns
    )
    return replace(schema, columns=tuple(columns))


def _retyped(old: Column, new: Column) -> bool:
    declared = bool(old.declared and new.declared) and old.declared != new.declared
    return old.type != new.type or declared


def _key_fields(schema: TableSchema) -> list[int]:
    return [schema.column(name).field for name in schema.key]
