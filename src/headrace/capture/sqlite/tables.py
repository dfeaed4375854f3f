"""
The user's tables: what they look like, and whether they can be captured exactly.

Triggers see every row that a statement writes, with a few exceptions, and a table with
one of these is refused rather than captured nearly:

* REPLACE removes rows that collide on a unique index without firing a delete trigger.
  On the key itself this is harmless, since the new row takes the key. On any other
  unique index, or where two spellings are one key to SQLite, it leaves a ghost.
* An application's own trigger on the table may write the same row again before our
  trigger runs, so that changes are logged in the wrong order. A foreign key of the table
  to itself that passes updates on does the same.
* Generated columns, views and virtual tables have no values of their own to log.
* Without a declared key there is only the rowid, and VACUUM renumbers it (R43).

What even this cannot see: writers that turn triggers off, and writes with an explicit
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
"""Both images and four columns of ours fit into SQLite's limit of 2,000."""

KINDS = ("int64", "float64", "text", "bytes", "variant")
"""The types a column may have; other than these SQLite does not store."""


@dataclass(frozen=True, slots=True)
class SourceColumn:
    """A column as SQLite declares it."""

    name: str
    declared: str
    nullable: bool
    key: int
    """Its place in the primary key from 1; 0 outside."""


@dataclass(frozen=True, slots=True)
class SourceTable:
    """A table as SQLite describes it."""

    name: str
    columns: tuple[SourceColumn, ...]
    key: tuple[str, ...]
    collations: tuple[str | None, ...]
    """How each key column compares; None for the rowid's alias."""

    has_rowid: bool

    @property
    def fingerprint(self) -> list[tuple[str, str, int]]:
        """What triggers and types depend on; another one needs a new plan."""
        return [(column.name, column.declared, column.key) for column in self.columns]


def value_kind(declared: str) -> str:
    """
    Return the type for a declared one, whatever the column holds today (S6).

    Only declarations whose values are of one storage class are taken at their word.
    DATETIME, BOOLEAN and DECIMAL columns hold mixtures in practice.
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
    # Here and not above: they bring Arrow, and capture as a library needs none.
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
                # A default of one that is added later is in older rows, too: read them again.
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
    """Describe the table called `name`; `TableRefused` with every reason against it."""
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
    """Return what to say of a table that is not there."""
    names = table_names(database)
    # SQLite would accept another case; every later stage compares names as they are.
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
            # 'a' and 'A' are one key there and two here, so REPLACE leaves a ghost.
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
        # A trigger keeps the table's name as it was written there, in whatever case.
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
