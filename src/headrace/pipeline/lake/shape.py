"""The columns of a table, by what it is to show: the rows, every change, or all that ever was."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, TypeAlias, get_args

import pyarrow as pa

from headrace.changelog.schema import TableSchema
from headrace.errors import BadTable, NoKey, TableError
from headrace.targets.target import SchemaAnswer

Mode: TypeAlias = Literal["merge", "append", "history"]
MODES: tuple[Mode, ...] = get_args(Mode)

_TIME = pa.timestamp("us", "UTC")
CHANGE = (
    ("_change_type", pa.utf8()),
    ("_commit_version", pa.int64()),
    ("_commit_timestamp", _TIME),
    ("_position", pa.utf8()),
)
"""What a change is told by; the words are Spark's own, as `format("headrace")` has them."""

VALID = (
    ("_valid_from", _TIME),
    ("_valid_to", _TIME),
    ("_valid_from_position", pa.utf8()),
    ("_valid_to_position", pa.utf8()),
)
"""From when to when a row of a history was the source's; null: from before, or until now."""

_OURS = {"merge": (), "append": CHANGE, "history": VALID}


def columns_of(mode: Mode) -> frozenset[str]:
    """Return the names of our columns in a table of this mode."""
    return frozenset(name for name, _ in _OURS[mode])


@dataclass(frozen=True)
class Shape:
    """What one table looks like in the lake."""

    mode: Mode
    schema: TableSchema
    key: tuple[str, ...]

    @cached_property
    def columns(self) -> tuple[tuple[str, pa.DataType], ...]:
        """All columns in order: the row's, then ours."""
        own = [(column.name, plain(column.type.arrow)) for column in self.schema.columns]
        return (*own, *_OURS[self.mode])

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all columns, in order."""
        return tuple(name for name, _ in self.columns)

    def with_schema(self, schema: TableSchema) -> Shape:
        """Return the shape of the table with other columns, and with the key that is theirs."""
        return replace(self, schema=schema, key=schema.key)


def shaped(mode: Mode, schema: TableSchema, key: tuple[str, ...] | None) -> Shape:
    """Return the shape of a table; raise what keeps it from being kept so."""
    if schema.key and key and set(key) != set(schema.key):
        raise TableError("Table has a key of its own", remedy="Leave key= out.", table=schema.table)
    if not schema.key and (key or mode != "append"):
        # Without a key at the source a delete does not say which row is gone, nor an update
        # which one was there before.
        raise NoKey(
            "Table has no key, and a lake's table cannot be given one by key="
            if key
            else "Table has no key",
            remedy='Declare a primary key at the source, or use mode="append" without key=.',
            table=schema.table,
        )
    if unknown := [name for name in schema.key if name not in schema.names]:
        raise TableError(
            "The key names no column",
            remedy="Leave the columns of the key in the rows.",
            table=schema.table,
            column=unknown[0],
        )
    taken = [name for name, _ in _OURS[mode] if name in schema.names]
    if taken:
        raise BadTable(
            f"The column {taken[0]} has a name that a table of mode {mode} gives to one of ours",
            remedy=f'Give it another: transforms=[hr.rename({taken[0]}="…")].',
            table=schema.table,
        )
    return Shape(mode, schema, tuple(schema.key))


def answer(mode: Mode, old: TableSchema, new: TableSchema) -> SchemaAnswer:
    """
    Return what becomes of a table whose rows have other columns from now on.

    A table that shows the rows as they are is loaded anew wherever older rows may have a value
    that it does not. One that keeps what was cannot be: it takes more columns, leaves those
    that are gone empty, and refuses another type.
    """
    before = {column.name: column for column in old.columns}
    after = {column.name: column for column in new.columns}
    retyped = [
        name for name in before.keys() & after.keys() if before[name].type != after[name].type
    ]
    if mode != "merge":
        return "refuse" if retyped or (mode == "history" and old.key != new.key) else "continue"
    added = [after[name] for name in after.keys() - before.keys()]
    # A column that a step computes says nothing of what older rows have in it.
    known = all(each.missing is None and not each.rewritten and each.declared for each in added)
    same = not retyped and not (before.keys() - after.keys()) and old.key == new.key
    return "continue" if same and known else "reload"


def plain(type: pa.DataType) -> pa.DataType:
    """Return the type that Spark gives back: it has no binary of a fixed size."""
    return pa.binary() if pa.types.is_fixed_size_binary(type) else type
