"""
What became of a table's columns from one schema to the next, and what that means for its rows.

Columns are told apart by their ids, which are never used again: a name may be given to
another column. A change of schema is no change of rows, as far as anybody is told; so it
matters whether rows that the log has are still what the table holds (R23b).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from headrace.changelog.schema import Column, TableSchema

Kind: TypeAlias = Literal["added", "dropped", "renamed", "retyped", "key"]


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing that is not as it was."""

    kind: Kind
    column: str
    """As it was called before; of one that was added, its name."""

    now: str = ""
    """Its new name, or its new type."""

    def __str__(self) -> str:
        return f"{self.column} {self.kind}" + (f" to {self.now}" if self.now else "")


def differences(old: TableSchema, new: TableSchema) -> tuple[Difference, ...]:
    """Return what changed: columns first, in their order, then the key."""
    before = {column.field: column for column in old.columns}
    after = {column.field: column for column in new.columns}
    found: list[Difference] = []
    for field, column in before.items():
        now = after.get(field)
        if now is None:
            found.append(Difference("dropped", column.name))
            continue
        if now.name != column.name:
            found.append(Difference("renamed", column.name, now.name))
        if _retyped(column, now):
            found.append(Difference("retyped", column.name, now.declared or str(now.type)))
    found += [Difference("added", column.name) for f, column in after.items() if f not in before]
    if _key_fields(old) != _key_fields(new):
        found.append(Difference("key", ", ".join(old.key), ", ".join(new.key)))
    return tuple(found)


def keeps_rows(old: TableSchema, new: TableSchema) -> bool:
    """
    Return whether rows recorded under `old` are right under `new`, without being read again.

    A column that is gone, or has another name, leaves them so; one that was added does where
    it is known what older rows have in it. With another type they were rewritten, perhaps by
    an expression; and who takes the place of a column of the same name cannot be told from it
    in what was written in between.
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
    Return a schema whose columns have what is known of older rows from the one before it.

    A source may forget it: PostgreSQL does when the table is written anew.
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
