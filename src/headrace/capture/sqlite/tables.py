"""
The user's tables: their columns, and whether they can be captured exactly.

Triggers see every row that a statement writes, with a few exceptions. A table with one of these
is refused, because it could be captured only approximately:

* REPLACE removes rows that collide on a unique index without firing a delete trigger.
  On the key itself this is harmless, since the new row has the same key. On any other
  unique index, or if SQLite treats two spellings as one key, a deleted row would remain.
* An application's own trigger on the table may write the same row again before our
  trigger runs, so that changes are logged in the wrong order. A foreign key of the table
  to itself that cascades updates does the same.
* Generated columns, views and virtual tables have no values of their own to log.
* Without a declared key there is only the rowid, and VACUUM renumbers it (R43).

Two things are not detected: writers that turn triggers off, and writes with an explicit
rowid into a table whose key is another column (R45).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.capture.sqlite.database import PREFIX, is_ours, quoted
from headrace.errors import TableRefused

if TYPE_CHECKING:
    from headrace.changelog.schema import TableSchema

MOST_COLUMNS = 998
"""Both images and our four columns fit into SQLite's limit of 2,000 columns."""

KINDS = ("int64", "float64", "text", "bytes", "variant")
"""The types a column may have; SQLite stores no others."""


@dataclass(frozen=True, slots=True)
class SourceColumn:
    """A column as SQLite declares it."""

    name: str
    declared: str
    nullable: bool
    key: int
    """Its position in the primary key, from 1; 0 if it is not part of the key."""


@dataclass(frozen=True, slots=True)
class SourceTable:
    """A table as SQLite describes it."""

    name: str
    columns: tuple[SourceColumn, ...]
    key: tuple[str, ...]
    collations: tuple[str | None, ...]
    """The collation of each key column; None for an alias of the rowid."""

    has_rowid: bool

    @property
    def fingerprint(self) -> list[tuple[str, str, int]]:
        """What triggers and types depend on; if it changes, a new plan is needed."""
        return [(column.name, column.declared, column.key) for column in self.columns]


def value_kind(declared: str) -> str:
    """
    Return the type for a declared one, whatever values the column has today (S6).

    A declaration is used only if its values have one storage class. DATETIME, BOOLEAN and
    DECIMAL columns contain mixtures in practice.
    """
    word = declared.upper()
    if "INT" in word:
        return "int64"
    if any(part in word for part in ("CHAR", "CLOB", "TEXT")):
        return "text"
    if "BLOB" in word:
        return "bytes"
    if any(part in word for part in ("REAL", "FLOA", "DOUB")):
        return "float64"
    return "variant"


def table_schema(
    table: SourceTable, fields: Mapping[str, int], overrides: Mapping[str, str]
) -> TableSchema:
    """Return the schema of `table`; `overrides` by column, or by `table.column`."""
    # Imported here: they import Arrow, which the library does not need.
    from headrace.changelog.schema import Column, TableSchema
    from headrace.changelog.values import ValueType

    columns = []
    for column in table.columns:
        kind = overrides.get(f"{table.name}.{column.name}") or overrides.get(column.name)
        columns.append(
            Column(
                name=column.name,
                type=ValueType(kind or value_kind(column.declared)),
                field=fields[column.name],
                nullable=column.nullable,
                declared=column.declared,
                # If a column is added later, older rows get its default: read them again.
                rewritten=True,
            )
        )
    return TableSchema(table.name, tuple(columns), table.key)


def table_names(database: sqlite3.Connection) -> list[str]:
    """Return the names of the application's tables."""
    found = [
        name
        for (name,) in database.execute(
            "select name from pragma_table_list "
            "where schema = 'main' and type = 'table' order by name"
        )
    ]
    every = frozenset(name.lower() for name in found)
    return [name for name in found if not name.startswith("sqlite_") and not is_ours(name, every)]


def inspect(database: sqlite3.Connection, name: str) -> SourceTable:
    """Describe the table called `name`; raise `TableRefused` if it cannot be captured."""
    listed = database.execute(
        "select type, wr from pragma_table_list where schema = 'main' and name = ?", (name,)
    ).fetchone()
    if listed is None:
        raise not_found(database, name)
    kind, without_rowid = listed
    if kind == "shadow" or (kind == "table" and name not in table_names(database)):
        raise TableRefused(
            "Internal tables of SQLite and of Headrace cannot be captured", table=name
        )
    if kind != "table":
        noun = "virtual table" if kind == "virtual" else kind
        raise TableRefused(
            f"A {noun} cannot be captured",
            table=name,
            remedy="Leave it out, and capture the tables that it reads from.",
        )
    rows = database.execute(
        'select name, type, "notnull", pk, hidden from pragma_table_xinfo(?)', (name,)
    ).fetchall()
    if any(hidden for *_, hidden in rows):
        raise TableRefused(
            "The table has generated columns, which cannot be captured",
            table=name,
            remedy="Leave the table out, or replace its generated columns by ordinary ones.",
        )
    # An INTEGER PRIMARY KEY is the rowid itself: it has no index, and no nulls.
    alias = not without_rowid and not _key_index(database, name)
    columns = tuple(
        SourceColumn(column, declared, not (notnull or (pk and (without_rowid or alias))), pk)
        for column, declared, notnull, pk, _ in rows
    )
    key = tuple(
        column.name for column in sorted(columns, key=lambda column: column.key) if column.key
    )
    if not key:
        raise TableRefused(
            "The table has no primary key",
            table=name,
            remedy="Declare a primary key, or leave the table out.",
        )
    if len(columns) > MOST_COLUMNS:
        raise TableRefused(
            f"The table has more than {MOST_COLUMNS} columns", table=name, columns=len(columns)
        )
    collations = _key_collations(database, name, key)
    _refuse_rewriters(database, name)
    return SourceTable(name, columns, key, collations, has_rowid=not without_rowid)


def not_found(database: sqlite3.Connection, name: str) -> TableRefused:
    """Return the error for a table that does not exist."""
    names = table_names(database)
    # SQLite ignores the case of names, but every later stage compares them exactly.
    alike = [found for found in names if found.lower() == name.lower()]
    listed = f"Tables in this database: {', '.join(names) or 'none'}."
    remedy = f"Did you mean {alike[0]}?" if alike else listed
    return TableRefused("Table not found", table=name, remedy=remedy)


def _key_index(database: sqlite3.Connection, name: str) -> str | None:
    row = database.execute(
        "select name from pragma_index_list(?) where origin = 'pk'", (name,)
    ).fetchone()
    return None if row is None else str(row[0])


def _key_collations(
    database: sqlite3.Connection, name: str, key: Sequence[str]
) -> tuple[str | None, ...]:
    others = database.execute(
        "select name from pragma_index_list(?) where \"unique\" and origin <> 'pk'", (name,)
    ).fetchone()
    if others is not None:
        raise TableRefused(
            "The table has a unique index other than its key: INSERT OR REPLACE could delete rows"
            " without firing triggers",
            table=name,
            index=others[0],
            remedy="Make the index not unique, or leave the table out.",
        )
    collations: dict[str, str] = dict(
        database.execute(
            "select name, coll from pragma_index_xinfo(?) where key = 1",
            (_key_index(database, name),),
        ).fetchall()
    )
    for column, collation in collations.items():
        if collation.upper() != "BINARY":
            # 'a' and 'A' are one key there and two here: a row that REPLACE deletes would remain.
            raise TableRefused(
                "A key column has a collation other than BINARY",
                table=name,
                column=column,
                collation=collation,
                remedy="Declare the key column COLLATE BINARY, or leave the table out.",
            )
    return tuple(collations.get(column) for column in key)


def _refuse_rewriters(database: sqlite3.Connection, name: str) -> None:
    for (trigger,) in database.execute(
        # A trigger keeps the table's name as it was written, in any case.
        "select name from sqlite_master "
        "where type = 'trigger' and tbl_name = ? collate nocase order by name",
        (name,),
    ).fetchall():
        if not trigger.startswith(PREFIX):
            raise TableRefused(
                "The table has a trigger of the application, which can change the order of changes",
                table=name,
                trigger=trigger,
                remedy="Drop the trigger, or leave the table out.",
            )
    own = database.execute(
        "select count(*) from pragma_foreign_key_list(?) "
        "where lower(\"table\") = lower(?) and on_update not in ('NO ACTION', 'RESTRICT')",
        (name, name),
    ).fetchone()[0]
    if own:
        raise TableRefused(
            "The table has a foreign key to itself that cascades updates",
            table=name,
            remedy="Declare it ON UPDATE RESTRICT or NO ACTION, or leave the table out.",
        )


def column_list(names: Sequence[str], prefix: str = "") -> str:
    """Return quoted names, separated by commas, each after `prefix`."""
    return ", ".join(prefix + quoted(name) for name in names)
