"""Every storage class in every declared type, by triggers and by baseline: one value."""

import sqlite3
from pathlib import Path
from typing import Any

import pytest

from headrace.capture.sqlite.source import SQLiteSource, sqlite
from headrace.capture.sqlite.tables import value_kind
from headrace.changelog.values import from_exact
from headrace.testing.contracts import read_all

DECLARED = {
    "i": "integer",
    "r": "real",
    "t": "text",
    "b": "blob",
    "n": "numeric",
    "d": "datetime",
    "o": "boolean",
    "m": "decimal(10, 2)",
    "v": "varchar(20)",
    "x": "",
}
LITERALS = [
    "null",
    "0",
    "-1",
    "9223372036854775807",
    "-9223372036854775808",
    "0.1 + 0.2",
    "1e308",
    "-1.7976931348623157e308",
    "9e999",
    "-9e999",
    "5e-324",
    "''",
    "'text'",
    "'12'",
    "'1.50'",
    "'a' || char(0) || 'b'",
    "'Zürich 🚀'",
    "x''",
    "x'00'",
    "x'ff00'",
    "cast(x'ff41' as text)",
    "cast(x'edb080' as text)",
]


@pytest.fixture
def source(path: Path, app: sqlite3.Connection) -> SQLiteSource:
    columns = ", ".join(f"{name} {declared}" for name, declared in DECLARED.items())
    app.execute(f"create table v (id integer primary key, {columns})")
    made = sqlite(path)
    made.describe(["v"])
    made.open(None)
    return made


@pytest.mark.meets("R23f", "S6")
def test_values_are_exact_and_the_same_by_both_ways(
    source: SQLiteSource, app: sqlite3.Connection
) -> None:
    for number, literal in enumerate(LITERALS):
        values = ", ".join([literal] * len(DECLARED))
        app.execute(f"insert into v values ({number}, {values})")
    changes = source.read(1000, 0)
    assert changes is not None
    (table,) = changes.tables
    copy = source.baseline("v")
    (batch,) = list(copy)
    marks = [dict(row or []) for row in table.rows["_exact"].to_pylist()]
    assert copy.exact is not None
    assert [dict(row or []) for row in copy.exact.to_pylist()] == marks
    after = table.rows["after"].combine_chunks()
    for place, column in enumerate(table.schema.columns):
        assert after.field(place).equals(batch.column(place))
        given = column.type.from_arrow(after.field(place))
        app.text_factory = lambda data: data.decode(errors="surrogateescape")
        true = [value for (value,) in app.execute(f'select "{column.name}" from v order by id')]
        for row, (value, stored) in enumerate(zip(given, true, strict=True)):
            _same(value, stored, marks[row].get(column.field), column.type.kind)
    source.close()


def _same(value: object, stored: Any, mark: str | None, kind: str) -> None:
    if mark is not None:
        assert value is None
        assert from_exact(mark) == stored
        assert type(from_exact(mark)) is type(stored)
    elif kind == "variant" and isinstance(value, bytes) and isinstance(stored, str):
        assert value == stored.encode(errors="surrogateescape")
    else:
        assert value == stored
        assert type(value) is type(stored)


@pytest.mark.meets("S6")
@pytest.mark.parametrize(
    ("declared", "kind"),
    [
        ("INTEGER", "int64"),
        ("bigint", "int64"),
        ("REAL", "float64"),
        ("double precision", "float64"),
        ("FLOAT", "float64"),
        ("TEXT", "text"),
        ("nvarchar(20)", "text"),
        ("CLOB", "text"),
        ("BLOB", "bytes"),
        ("", "variant"),
        ("BOOLEAN", "variant"),
        ("DATETIME", "variant"),
        ("DECIMAL(10,2)", "variant"),
        ("ANY", "variant"),
    ],
)
def test_a_columns_type_follows_its_declaration(declared: str, kind: str) -> None:
    assert value_kind(declared) == kind


def test_columns_can_be_given_another_type(path: Path, app: sqlite3.Connection) -> None:
    app.execute("create table a (id integer primary key, at datetime, n numeric)")
    app.execute("create table b (id integer primary key, at datetime)")
    source = sqlite(path, columns={"a.at": "text", "n": "float64"})
    schemas = source.describe(["a", "b"])
    assert [column.type.kind for column in schemas["a"].columns] == ["int64", "text", "float64"]
    assert schemas["b"].column("at").type.kind == "variant"


def test_a_thousand_updates_of_one_row_are_a_thousand_changes(
    source: SQLiteSource, app: sqlite3.Connection
) -> None:
    app.execute("insert into v (id, t) values (1, 'x')")
    source.read(10, 0)
    app.execute("begin")
    for number in range(1000):
        app.execute("update v set t = ?", ("xy"[number % 2 - 1],))
    app.execute("commit")
    parts = read_all(source)
    assert sum(part.row_count for part in parts) == 1000
    assert [part.ends for part in parts] == [False] * (len(parts) - 1) + [True]
    source.close()
