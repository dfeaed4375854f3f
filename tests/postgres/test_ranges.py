"""A plan cuts a table into pages, all of them, and can be sent to others."""

from __future__ import annotations

import pickle
from dataclasses import replace

import pytest

from headrace.capture.postgres.copy import ranges as module
from headrace.capture.postgres.copy.ranges import Range, SelectedColumn, ranges
from headrace.capture.postgres.server.catalog import fingerprint
from headrace.errors import SchemaChanged
from tests.postgres.copies import holding, known
from tests.postgres.servers import Database

PART = Range(
    table="orders",
    oid=1,
    namespace="public",
    leaf='or"ders',
    start=0,
    stop=None,
    filenode=2,
    fingerprint="f",
    snapshot="00000003-0000001B-1",
    columns=(SelectedColumn("id", True), SelectedColumn("Mood", False)),
)


def test_a_range_can_be_sent_to_another_process() -> None:
    assert pickle.loads(pickle.dumps(PART)) == PART


@pytest.mark.parametrize(
    ("start", "stop", "where", "expected"),
    [
        (0, None, "", ""),
        (0, 5, "", " where ctid < '(5,0)'::pg_catalog.tid"),
        (5, None, "", " where ctid >= '(5,0)'::pg_catalog.tid"),
        (0, None, "a or b", " where (a or b)"),
    ],
)
def test_only_the_bounds_there_are_stand_in_the_query(
    start: int, stop: int | None, where: str, expected: str
) -> None:
    query = replace(PART, start=start, stop=stop, where=where).query

    assert query.endswith(f'from only "public"."or""ders"{expected}')


def test_pages_are_counted_where_no_statistics_are(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RANGE_BYTES", 80 << 10)
    database.execute("create table t (id int primary key, v text) with (autovacuum_enabled = off)")
    database.execute("insert into t select g, repeat('x', 100) from generate_series(1, 3000) g")
    table, schema = known(database, "t")
    assert table.leaves[0].pages == 0
    with holding(database) as holder:
        parts = ranges(holder, table, schema)

    assert len(parts) >= 4
    assert parts[0].start == 0
    assert parts[-1].stop is None
    assert {part.snapshot for part in parts} == {holder.id}


@pytest.mark.meets("R16")
def test_the_fingerprint_is_the_catalogues(database: Database) -> None:
    database.execute("create domain cents as numeric(12,2)")
    database.execute(
        "create table t (gone int, id int primary key, c cents, v varchar(5), a int[])"
    )
    database.execute("alter table t drop gone")
    table, schema = known(database, "t")
    with holding(database) as holder:
        [part] = ranges(holder, table, schema)

    assert part.fingerprint == fingerprint(table)


def test_what_rows_keep_elsewhere_makes_ranges_smaller(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RANGE_BYTES", 256 << 10)
    database.execute("create table t (id int primary key, v text)")
    database.execute("alter table t alter v set storage external")
    database.execute("insert into t select g, repeat('x', 8000) from generate_series(1, 1000) g")
    with holding(database) as holder:
        parts = ranges(holder, *known(database, "t"))

    assert len(parts) > 4


def test_columns_that_the_log_does_not_keep_are_not_read(database: Database) -> None:
    database.execute(
        "create table t (id int primary key, v text, g int generated always as (id * 2) stored)"
    )
    with holding(database) as holder:
        [part] = ranges(holder, *known(database, "t"))

    assert [column.name for column in part.columns] == ["id", "v"]


def test_a_column_that_the_log_keeps_and_the_table_has_not_is_a_changed_schema(
    database: Database,
) -> None:
    database.execute("create table t (id int primary key, v text)")
    _, schema = known(database, "t")
    database.execute("alter table t drop v")
    table, _ = known(database, "t")

    with holding(database) as holder, pytest.raises(SchemaChanged):
        ranges(holder, table, schema)
