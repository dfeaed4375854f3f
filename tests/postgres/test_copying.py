"""A table's rows by COPY are what SELECT gives, or the copy says that it cannot know."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date
from itertools import pairwise
from threading import Thread
from typing import Any

import psycopg
import pytest

from headrace.capture.postgres.copy import ranges, reader
from headrace.capture.postgres.copy.reader import PostgresCopy, read_range
from headrace.errors import NotPermitted, SchemaChanged, SourceUnreachable
from tests.postgres.copies import copied, copy_of, holding, known, sessions, values
from tests.postgres.servers import Database, wait_until

KINDS = {
    "int2": ["-32768", "0", "7"],
    "int4": ["-2147483648", "42"],
    "int8": ["-9223372036854775808", "9223372036854775807"],
    "oid": ["4294967295"],
    "float4": ["1.5", "NaN", "-Infinity"],
    "float8": ["0.1", "1e308", "-0"],
    "bool": ["t", "f"],
    "numeric(10,2)": ["-12345678.90", "0.01", "NaN"],
    "numeric": ["123456789012345678901234567890.123456789", "NaN", "-Infinity"],
    "numeric(38,0)": ["99999999999999999999999999999999999999"],
    "text": ["", "Grüße 🐘", "a\tb\nc"],
    "varchar(9)": ["x"],
    "char(5)": ["ab", ""],
    "name": ["somebody"],
    '"char"': ["z"],
    "bytea": [r"\x00ff10", r"\x"],
    "uuid": ["00000000-0000-0000-0000-0000000000ff"],
    "date": ["2024-02-29", "infinity", "0044-03-15 BC"],
    "timestamp": ["2024-02-29 23:59:59.999999", "-infinity"],
    "timestamptz": ["2024-02-29 23:59:59.5+05:30", "infinity"],
    "time": ["24:00:00", "12:34:56.789"],
    "timetz": ["12:00:00+05:30"],
    "interval": ["1 year 2 mons 3 days 04:05:06.7", "-1 days"],
    "json": ['{"a":  1}'],
    "jsonb": ['{"b": [1, null]}'],
    "money": ["-12.34"],
    "inet": ["10.0.0.1", "10.0.0.0/8"],
    "cidr": ["10.0.0.0/8"],
    "macaddr": ["08:00:2b:01:02:03"],
    "int4[]": ["{1,NULL,3}", "{}", "{{1},{2}}"],
    "text[]": ['{"a b",NULL,"c\\"d"}'],
    "int4range": ["[1,10)", "empty"],
    "point": ["(1.5,2)"],
    "bit(3)": ["101"],
    "tsvector": ["'a' 'cat'"],
    "mood": ["sad", "so so"],
    "pair": ["(1,x)", "(,)"],
    "cents": ["12.34"],
}


def with_every_type(database: Database) -> None:
    """Make a table with a column of each kind, and three rows."""
    database.execute("create type mood as enum ('sad', 'so so')")
    database.execute("create type pair as (a int, b text)")
    database.execute("create domain cents as numeric(12,2)")
    columns = ", ".join(f"c{index} {kind}" for index, kind in enumerate(KINDS))
    database.execute(f"create table t (id int primary key, {columns})")
    for number in range(3):
        texts = [given[number] if number < len(given) else None for given in KINDS.values()]
        places = ", ".join(["%s"] * len(texts))
        database.execute(f"insert into t values ({number}, {places})", *texts)


@pytest.mark.meets("R18", "R23f")
def test_every_type_has_the_text_that_the_server_gives(database: Database) -> None:
    with_every_type(database)

    copy = copy_of(database, "t")
    [batch] = list(copy)
    marks = [None] * 3 if copy.exact is None else copy.exact.to_pylist()

    # What we have goes through the server once more, so that only the value counts.
    for row, exact in zip(values(copy.schema, [batch]), marks, strict=True):
        for column, kind, value in zip(copy.schema.columns[1:], KINDS, row[1:], strict=True):
            ours = dict(exact or []).get(column.field) or _text(value)
            same = database.value(
                f"select {column.name}::text is not distinct from %s::{kind}::text"
                " from t where id = %s",
                ours,
                row[0],
            )
            assert same, (kind, row[0])


def _text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bytes):
        return r"\x" + value.hex()
    return str(value)


def test_texts_are_those_of_the_types_themselves_and_not_of_a_cast(database: Database) -> None:
    database.execute("create table t (id int primary key, a inet, b char(4))")
    database.execute("insert into t values (1, '10.0.0.1', 'x'), (2, null, null)")

    assert sorted(copied(database, "t")) == [(1, "10.0.0.1", "x   "), (2, None, None)]


def test_a_value_that_its_column_cannot_hold_is_marked(database: Database) -> None:
    database.execute("create table t (id int primary key, n numeric(5,1))")
    database.execute("insert into t values (1, 'NaN'), (2, 1.5)")

    copy = copy_of(database, "t")
    [batch] = list(copy)

    assert batch.column("n").null_count == 1
    assert copy.exact is not None
    assert copy.exact.to_pylist() == [[(2, "NaN")], None]


def test_an_empty_table_gives_no_rows(database: Database) -> None:
    database.execute("create table t (id int primary key, v text)")

    assert copied(database, "t") == []
    wait_until(lambda: sessions(database) == 0, what="sessions to end")


@pytest.fixture
def small_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranges, "RANGE_BYTES", 64 << 10)


@pytest.mark.meets("R16", "PG-08")
def test_many_rows_in_several_ranges_are_all_there_once(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranges, "RANGE_BYTES", 2 << 20)
    database.execute("create table t (id int primary key, v text, n numeric(12,2))")
    database.execute(
        "insert into t select g, case when g % 7 <> 0 then 'value ' || g end, g * 1.01"
        " from generate_series(1, 200000) g"
    )
    with holding(database) as holder:
        parts = ranges.ranges(holder, *known(database, "t"))

    found = copied(database, "t")

    assert len(parts) > 3
    assert parts[-1].stop is None
    assert all(one.stop == other.start for one, other in pairwise(parts))
    assert sorted(found) == database.rows("select id, v, n from t order by id")


def test_a_range_can_be_read_by_itself_and_elsewhere(
    database: Database, small_ranges: None
) -> None:
    database.execute("create table t (id int primary key, v text)")
    database.execute("insert into t select g, repeat('x', 100) from generate_series(1, 3000) g")
    table, schema = known(database, "t")
    found = []
    with holding(database) as holder:
        for part in ranges.ranges(holder, table, schema):
            found += values(schema, (rows for rows, _ in read_range(holder.connect, part, schema)))

    assert sorted(found) == database.rows("select * from t order by id")


@pytest.mark.meets("R11", "R14")
def test_rows_committed_after_the_snapshot_are_not_seen(
    database: Database, small_ranges: None
) -> None:
    database.execute("create table t (id int primary key, v text)")
    database.execute("insert into t select g, repeat('x', 100) from generate_series(1, 3000) g")
    copy = copy_of(database, "t")
    batches = iter(copy)
    first = next(batches)
    database.execute("delete from t where id % 2 = 0")
    database.execute("update t set v = 'new'")
    database.execute("insert into t values (0, 'late')")
    database.execute("vacuum t")

    found = values(copy.schema, [first, *batches])

    assert sorted(found) == [(number, "x" * 100) for number in range(1, 3001)]


REWRITES = {
    "vacuum full": "vacuum full t",
    "cluster": "cluster t using t_pkey",
    "truncate": "truncate t",
    "rewriting alter": "alter table t alter v type varchar using upper(v)",
    "added column": "alter table t add w int default 7",
    "dropped column": "alter table t drop v",
    "renamed column": "alter table t rename v to w",
    "swapped columns": "alter table t rename v to w; alter table t rename u to v;"
    " alter table t rename w to u",
    "dropped table": "drop table t",
    "another table of the name": "alter table t rename to o; create table t (like o including all)",
}


@pytest.fixture
def filled(database: Database, small_ranges: None) -> Iterator[Database]:
    database.execute("create table t (id int primary key, u text, v text)")
    database.execute(
        "insert into t select g, 'u', repeat('x', 100) from generate_series(1, 3000) g"
    )
    yield database


@pytest.mark.meets("R16")
@pytest.mark.parametrize("statement", REWRITES.values(), ids=REWRITES)
def test_a_table_that_is_not_the_same_any_more_is_noticed(
    filled: Database, monkeypatch: pytest.MonkeyPatch, statement: str
) -> None:
    monkeypatch.setattr(reader, "BATCH_ROWS", 100)
    copy = copy_of(filled, "t")
    batches = iter(copy)
    while next(batches).num_rows == 0:
        pass
    other = filled.connect()
    thread = Thread(target=_run, args=(other, statement))
    thread.start()
    try:
        # It waits for the range that is being read, and for no more than that.
        wait_until(lambda: _waits(filled, other), what="the statement to wait for its lock")
        with pytest.raises((SourceUnreachable, SchemaChanged)):
            list(batches)
    finally:
        copy.close()
        thread.join()

    wait_until(lambda: sessions(filled) == 0, what="sessions to end")


@pytest.mark.meets("R16")
@pytest.mark.parametrize("statement", REWRITES.values(), ids=REWRITES)
def test_what_happened_between_snapshot_and_plan_is_noticed_too(
    filled: Database, statement: str
) -> None:
    copy = copy_of(filled, "t")
    _run(filled.connect(), statement)

    with pytest.raises((SourceUnreachable, SchemaChanged)):
        list(copy)


def _run(connection: psycopg.Connection[Any], statement: str) -> None:
    for one in statement.split(";"):
        connection.execute(one.encode())


def _waits(database: Database, connection: psycopg.Connection[Any]) -> bool:
    found: bool = database.value(
        "select exists (select from pg_locks where pid = %s and not granted)",
        connection.info.backend_pid,
    )
    return found


@pytest.mark.meets("R16")
def test_partitions_are_read_one_by_one_with_columns_by_name(
    database: Database, small_ranges: None
) -> None:
    database.execute(
        "create table t (id int, day date, v text, primary key (id, day)) partition by range (day)"
    )
    database.execute(
        "create table t1 partition of t for values from ('2024-01-01') to ('2025-01-01')"
    )
    database.execute("create table t2 (v text, gone int, day date not null, id int not null)")
    database.execute("alter table t2 drop gone")
    database.execute("insert into t2 values ('attached', '2025-05-05', 5)")
    database.execute(
        "alter table t attach partition t2 for values from ('2025-01-01') to ('2026-01-01')"
    )
    database.execute(
        "create table t3 partition of t for values from ('2026-01-01') to ('2027-01-01')"
        " partition by list (id)"
    )
    database.execute('create table "t3 One" partition of t3 for values in (6)')
    database.execute("insert into t values (1, '2024-04-04', 'first'), (6, '2026-06-06', 'sub')")

    assert sorted(copied(database, "t")) == [
        (1, date(2024, 4, 4), "first"),
        (5, date(2025, 5, 5), "attached"),
        (6, date(2026, 6, 6), "sub"),
    ]


@pytest.mark.meets("R23c")
def test_a_partition_that_was_attached_before_the_snapshot_is_not_forgotten(
    database: Database,
) -> None:
    database.execute("create table t (id int primary key) partition by list (id)")
    table, schema = known(database, "t")
    database.execute("create table t1 partition of t for values in (1)")
    with holding(database) as holder, pytest.raises(SourceUnreachable, match="Partitions"):
        list(PostgresCopy(holder, table, schema))


def test_rows_of_tables_that_inherit_are_left_to_these(database: Database) -> None:
    database.execute("create table t (id int primary key)")
    database.execute("create table child () inherits (t)")
    database.execute("insert into t values (1)")
    database.execute("insert into child values (2)")

    assert copied(database, "t") == [(1,)]


@pytest.mark.meets("R18", "PG-08")
def test_a_row_filter_holds_for_the_copy_too(database: Database) -> None:
    database.execute("create table t (id int primary key, v text)")
    database.execute("insert into t values (1, 'a'), (2, 'b')")

    assert copied(database, "t", "id > 1 or v is null") == [(2, "b")]


@pytest.mark.meets("R18")
def test_policies_on_rows_are_an_error_and_not_fewer_rows(database: Database) -> None:
    database.execute("create table t (id int primary key)")
    database.execute("insert into t values (1), (2)")
    role = database.role("login")
    database.execute(f"grant select on t to {role}")
    database.execute("alter table t enable row level security")
    database.execute("create policy only_one on t using (id = 1)")
    table, schema = known(database, "t")
    with holding(database) as holder:
        [part] = ranges.ranges(holder, table, schema)
        with pytest.raises(NotPermitted):
            list(read_range(lambda: database.connect(role), part, schema))


def test_names_with_quotes_and_capitals_are_taken_as_they_are(database: Database) -> None:
    database.execute('create schema "S s"')
    database.execute('create table "S s"."T""t" ("I d" int primary key, "select" text)')
    database.execute('insert into "S s"."T""t" values (1, \'x\')')

    assert copied(database, '"S s"."T""t"') == [(1, "x")]


def test_a_copy_gives_a_turn_to_others_while_the_table_is_locked(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.capture.postgres.connection.PATIENCE_SECONDS", 0.01)
    database.execute("create table t (id int primary key)")
    database.execute("insert into t values (1)")
    copy = copy_of(database, "t")
    locker = database.connect()
    locker.execute("begin; lock table t in access exclusive mode")
    batches = iter(copy)

    assert [next(batches).num_rows for _ in range(3)] == [0, 0, 0]
    locker.execute("rollback")
    assert values(copy.schema, batches) == [(1,)]


@pytest.mark.parametrize("steps", [0, 1, 3])
def test_closing_at_any_time_leaves_nothing_open(filled: Database, steps: int) -> None:
    copy = copy_of(filled, "t")
    batches = iter(copy)
    for _ in range(steps):
        next(batches)

    copy.close()
    copy.close()

    wait_until(lambda: sessions(filled) == 0, what="sessions to end")
    assert list(batches) == []


def test_closing_ends_a_query_that_sends_nothing(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "PATIENCE_SECONDS", 0.01)
    monkeypatch.setattr("headrace.capture.postgres.connection.PATIENCE_SECONDS", 0.01)
    database.execute("create table t (id int primary key)")
    database.execute("insert into t values (1)")
    copy = copy_of(database, "t", "pg_sleep(60) is not null")
    batches = iter(copy)
    for _ in range(3):
        assert next(batches).num_rows == 0

    copy.close()

    wait_until(lambda: sessions(database) == 0, 5, what="sessions to end")


def test_a_copy_under_a_shared_snapshot_leaves_it_to_the_others(filled: Database) -> None:
    table, schema = known(filled, "t")
    with holding(filled) as holder:
        one = PostgresCopy(holder, table, schema, owns_holder=False)
        other = PostgresCopy(holder, table, schema, owns_holder=False)
        assert holder.readers == 2
        one.close()
        assert holder.readers == 1
        assert sum(batch.num_rows for batch in other) == 3000
        assert holder.readers == 0
        assert holder.alive


@pytest.mark.meets("R15")
def test_a_copy_whose_snapshot_is_gone_says_so(filled: Database) -> None:
    copy = copy_of(filled, "t")
    batches = iter(copy)
    next(batches)
    filled.execute(
        "select pg_terminate_backend(pid, 5000) from pg_stat_activity"
        " where state = 'idle in transaction' and datname = current_database()"
    )

    with pytest.raises(SourceUnreachable):
        list(batches)


def test_rows_larger_than_a_batch_come_one_by_one(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "BATCH_BYTES", 10_000)
    database.execute("create table t (id int primary key, v text)")
    database.execute(
        "insert into t select g, string_agg(md5(g::text || n), '')"
        " from generate_series(1, 5) g, generate_series(1, 1000) n group by g"
    )
    copy = copy_of(database, "t")
    batches = [batch for batch in copy if batch.num_rows]

    assert [batch.num_rows for batch in batches] == [1] * 5
    assert sorted(values(copy.schema, batches)) == database.rows("select * from t order by id")


def test_batches_have_no_more_rows_than_they_may(
    filled: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "BATCH_ROWS", 7)

    counts = [batch.num_rows for batch in copy_of(filled, "t")]

    assert sum(counts) == 3000
    assert max(counts) == 7
