"""
Every type down both ways, on a real server: the stream's text and the copy's binary form.

The text is the one of the wire, `select v` in text format, which is what the output function
writes and the stream sends. Not `v::text`: for inet, boolean and char(n) that is another text.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from datetime import UTC, date, datetime, time
from decimal import Decimal
from uuid import UUID

import psycopg
import pyarrow as pa
import pytest
from psycopg import pq

from headrace.capture.postgres.decode.binary import binary_column
from headrace.capture.postgres.decode.text import text_column
from headrace.capture.postgres.definition import postgres
from headrace.capture.postgres.server.catalog import as_text, sends_binary, value_type
from headrace.changelog.change import Changes
from headrace.changelog.values import (
    MAX_INT32,
    MAX_INT64,
    MIN_INT32,
    MIN_INT64,
    BeyondDate,
    BeyondTime,
    BeyondTimestamp,
    Interval,
    OffsetTime,
    Unrepresentable,
    ValueType,
)
from headrace.embedded.postgres import PostgresServer
from tests.postgres.servers import Database, wait_until
from tests.postgres.typed_values import column, plain

# R18's, at start-up, as the sessions of a source have them.
SESSION = (
    "-c client_encoding=UTF8 -c datestyle=ISO -c intervalstyle=postgres -c timezone=UTC"
    " -c extra_float_digits=3 -c bytea_output=hex -c lc_monetary=C -c search_path=pg_catalog"
)

INFINITY, NAN = float("inf"), float("nan")
FOREVER = Interval(MAX_INT32, MAX_INT32, MAX_INT64)
D = Decimal


class ExactText(str):
    """The exact text of what the column cannot hold."""


HUGE = "1" + "0" * 100_000 + "7." + "3" * 16_383

CASES: list[tuple[str, dict[str, object]]] = [
    ("smallint", {"-32768": -32768, "32767": 32767, "0": 0}),
    ("integer", {"-2147483648": -(2**31), "2147483647": 2**31 - 1}),
    ("bigint", {"-9223372036854775808": -(2**63), "9223372036854775807": 2**63 - 1}),
    ("oid", {"4294967295": 2**32 - 1, "0": 0}),
    (
        "real",
        {
            "NaN": NAN,
            "Infinity": INFINITY,
            "-Infinity": -INFINITY,
            "-0": -0.0,
            "1.17549435e-38": 1.1754943508222875e-38,
            "1e-45": 1.401298464324817e-45,
            "0.1": 0.10000000149011612,
            "3.4028235e38": 3.4028234663852886e38,
            "16777216": 16777216.0,
        },
    ),
    (
        "double precision",
        {
            "NaN": NAN,
            "Infinity": INFINITY,
            "-Infinity": -INFINITY,
            "-0": -0.0,
            "5e-324": 5e-324,
            "0.1": 0.1,
            "1.7976931348623157e308": 1.7976931348623157e308,
            "123456789012345680": 123456789012345680.0,
            "1e21": 1e21,
        },
    ),
    ("boolean", {"true": True, "false": False}),
    ("numeric(10,2)", {"0": D("0.00"), "-99999999.99": D("-99999999.99"), "NaN": ExactText("NaN")}),
    ("numeric(38,0)", {"9" * 38: D("9" * 38), "-" + "9" * 38: D("-" + "9" * 38)}),
    ("numeric(38,38)", {"0." + "9" * 38: D("0." + "9" * 38), "-1e-38": D("-1e-38")}),
    ("numeric(5)", {"12345": D(12345), "-10000": D(-10000), "NaN": ExactText("NaN")}),
    ("numeric(50,3)", {"1e40": D("1" + "0" * 40 + ".000"), "NaN": D("NaN")}),
    ("numeric(3,5)", {"0.00123": D("0.00123")}),
    ("numeric(5,-2)", {"1234567": D("1234600")}),
    (
        "numeric",
        {
            "1.50": D("1.50"),
            "0.000": D("0.000"),
            "10000": D(10000),
            "100000000.0001": D("100000000.0001"),
            "-0.00001": D("-0.00001"),
            "1e-16383": D("1e-16383"),
            "NaN": D("NaN"),
            "Infinity": D("Infinity"),
            "-Infinity": D("-Infinity"),
            HUGE: D(HUGE),
        },
    ),
    ("text", {"": "", "héllo\n\t\\ '\"": "héllo\n\t\\ '\"", "\U0001f40d": "\U0001f40d"}),
    ("varchar(5)", {"ab  ": "ab  "}),
    ("char(5)", {"ab": "ab   ", "": "     "}),
    ("name", {"a name": "a name"}),
    ('"char"', {"a": "a", "": ""}),
    ("json", {'{"a" :  1, "a":2}': '{"a" :  1, "a":2}', "null": "null"}),
    ("jsonb", {'{"b":1,"a":[1.50]}': '{"a": [1.50], "b": 1}', '""': '""', "null": "null"}),
    ("bytea", {"": b"", "\\x00ff5c": b"\x00\xff\\"}),
    ("uuid", {u: UUID(u) for u in ("a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", str(UUID(int=0)))}),
    (
        "date",
        {
            "2024-02-29": date(2024, 2, 29),
            "0001-01-01": date(1, 1, 1),
            "9999-12-31": date(9999, 12, 31),
            "10000-01-01": BeyondDate(2_932_897),
            "0001-12-31 BC": BeyondDate(-719_163),
            "4714-11-24 BC": BeyondDate(-2_440_588),
            "5874897-12-31": BeyondDate(2_145_042_905),
            "infinity": BeyondDate(MAX_INT32),
            "-infinity": BeyondDate(MIN_INT32),
        },
    ),
    (
        "timestamp",
        {
            "2024-02-29 12:34:56.789": datetime(2024, 2, 29, 12, 34, 56, 789_000),
            "1969-12-31 23:59:59.999999": datetime(1969, 12, 31, 23, 59, 59, 999_999),
            "0001-01-01 00:00:00": datetime(1, 1, 1),
            "0001-12-31 23:59:59.5 BC": BeyondTimestamp(-62_135_596_800_500_000),
            "12345-01-01 00:00:00": BeyondTimestamp(327_403_382_400_000_000),
            "294247-01-10 04:00:54.775806": BeyondTimestamp(MAX_INT64 - 1),
            "294247-01-10 04:00:54.775807": ExactText("294247-01-10 04:00:54.775807"),
            "294276-12-31 23:59:59.5": ExactText("294276-12-31 23:59:59.5"),
            "infinity": BeyondTimestamp(MAX_INT64),
            "-infinity": BeyondTimestamp(MIN_INT64),
        },
    ),
    (
        "timestamptz",
        {
            "2024-02-29 12:34:56.789+05:30": datetime(2024, 2, 29, 7, 4, 56, 789_000, UTC),
            "2024-01-01 00:00:00+00": datetime(2024, 1, 1, tzinfo=UTC),
            "4713-01-01 00:00:00+00 BC": BeyondTimestamp(-210_863_520_000_000_000, utc=True),
            "294276-12-31 23:59:59.5+00": ExactText("294276-12-31 23:59:59.5+00"),
            "infinity": BeyondTimestamp(MAX_INT64, utc=True),
            "-infinity": BeyondTimestamp(MIN_INT64, utc=True),
        },
    ),
    (
        "time",
        {
            "00:00:00": time(),
            "23:59:59.999999": time(23, 59, 59, 999_999),
            "12:00:00.5": time(12, 0, 0, 500_000),
            "24:00:00": BeyondTime(),
        },
    ),
    (
        "timetz",
        {
            "12:34:56.5+02": OffsetTime(45_296_500_000, 7200),
            "00:00:00-15:59:59": OffsetTime(0, -57_599),
            "24:00:00+05:30": OffsetTime(86_400_000_000, 19_800),
        },
    ),
    (
        "interval",
        {
            "0": Interval(),
            "1 year 2 mons -3 days 04:05:06.789": Interval(14, -3, 14_706_789_000),
            "-1 year -2 mons +3 days -04:05:06": Interval(-14, 3, -14_706_000_000),
            "-1 day 00:00:01": Interval(0, -1, 1_000_000),
            "178000000 years 2147483647 days": Interval(2_136_000_000, 2_147_483_647, 0),
            "2562047788:00:54.775807": Interval(0, 0, MAX_INT64),
            "-2562047788:00:54.775807": Interval(0, 0, MIN_INT64 + 1),
        },
    ),
    ("money", {"-12.34": "-$12.34"}),
    ("inet", {"10.0.0.1": "10.0.0.1", "10.0.0.1/8": "10.0.0.1/8", "::1": "::1"}),
    ("cidr", {"10.0.0.1/32": "10.0.0.1/32"}),
    ("macaddr", {"08:00:2b:01:02:03": "08:00:2b:01:02:03"}),
    ("bit(3)", {"101": "101"}),
    ("varbit", {"": "", "1": "1"}),
    ("point", {"(1,2.5)": "(1,2.5)"}),
    ("box", {"(1,2),(0,0)": "(1,2),(0,0)"}),
    ("tsvector", {"a b": "'a' 'b'"}),
    ("pg_lsn", {"1/A": "1/A"}),
    ("xid", {"4294967295": "4294967295"}),
    ("regclass", {"pg_class": "pg_class"}),
    ("integer[]", {"{1,NULL,3}": "{1,NULL,3}", "{}": "{}", "[0:1]={1,2}": "[0:1]={1,2}"}),
    ("text[]", {'{"a,b",NULL,"NULL",""}': '{"a,b",NULL,"NULL",""}'}),
    ("bytea[]", {'{"\\\\xff"}': '{"\\\\xff"}'}),
    ("boolean[]", {"{t,f}": "{t,f}"}),
    ("timestamptz[]", {'{"2024-01-01 00:00:00+00"}': '{"2024-01-01 00:00:00+00"}'}),
    ("int4range", {"[1,5]": "[1,6)", "empty": "empty", "(,)": "(,)"}),
    ("int4multirange", {"{[1,3),[5,7)}": "{[1,3),[5,7)}"}),
    ("tstzrange", {"[2024-01-01,)": '["2024-01-01 00:00:00+00",)'}),
    ("public.mood", {"happy": "happy", "so so": "so so"}),
    ("public.pair", {'(1,"a b")': '(1,"a b")', "(,)": "(,)"}),
    ("public.pair[]", {'{"(1,x)"}': '{"(1,x)"}'}),
    ("public.price", {"1.5": D("1.50"), "NaN": ExactText("NaN")}),
    ("public.address", {"10.0.0.1": "10.0.0.1"}),
    ("public.dearer", {"2.5": D("2.50")}),
]

MADE = """
create type public.mood as enum ('happy', 'so so');
create type public.pair as (a integer, b text);
create domain public.price as numeric(10,2);
create domain public.address as inet;
create domain public.dearer as public.price check (value > 1);
"""

BASE = """
with recursive base(type, modifier) as (
  select atttypid, atttypmod from pg_attribute
   where attrelid = 'public.t'::regclass and attname = 'v'
  union all
  select typbasetype, case when modifier = -1 then typtypmod else modifier end
    from base join pg_type on pg_type.oid = type where typtype = 'd')
select type::bigint, modifier from base join pg_type on pg_type.oid = type where typtype <> 'd'
"""


def wire_texts(connection: psycopg.Connection[object], query: str) -> list[bytes | None]:
    found = connection.pgconn.exec_params(query.encode(), None, result_format=pq.Format.TEXT)
    assert found.status == pq.ExecStatus.TUPLES_OK, found.error_message
    return [found.get_value(row, 0) for row in range(found.ntuples)]


def copied(connection: psycopg.Connection[object], expression: str) -> list[bytes | None]:
    query = f"copy (select {expression} from public.t order by n) to stdout (format binary)"
    with connection.cursor().copy(query.encode()) as copy:
        raw = b"".join(bytes(part) for part in copy)
    place = 19 + struct.unpack_from(">i", raw, 15)[0]
    values: list[bytes | None] = []
    while (fields := struct.unpack_from(">h", raw, place)[0]) != -1:
        assert fields == 1
        size = struct.unpack_from(">i", raw, place + 2)[0]
        place += 6
        values.append(None if size < 0 else raw[place : place + size])
        place += max(size, 0)
    return values


def both_ways(
    connection: psycopg.Connection[object],
) -> tuple[ValueType, tuple[pa.Array, Unrepresentable], tuple[pa.Array, Unrepresentable]]:
    """Return the type of `t.v`, and its values as the stream and as the copy would give them."""
    row = connection.execute(BASE.encode()).fetchone()
    assert isinstance(row, tuple)
    oid, modifier = row
    type = value_type(oid, modifier)
    streamed = text_column(
        type, column(wire_texts(connection, "select v from public.t order by n"))
    )
    if sends_binary(oid, modifier):
        return type, streamed, binary_column(type, column(copied(connection, "v")))
    raw = copied(connection, as_text("v"))
    return type, streamed, text_column(type, column(raw))


SINCE_15 = ("numeric(3,5)", "numeric(5,-2)")
"""Scales that are negative, or exceed the precision."""


@pytest.mark.meets("R18", "R23f", "S6")
def test_every_type_is_the_same_streamed_and_copied(database: Database) -> None:
    database.execute(MADE)
    connection = database.connect(options=SESSION)
    for declared, literals in CASES:
        if connection.info.server_version < 150000:
            if declared in SINCE_15:
                continue
            # So long an interval can be had by computing there, and not by its text.
            literals = {text: each for text, each in literals.items() if "2562047788" not in text}
        connection.execute("drop table if exists public.t")
        connection.execute(f"create table public.t (n serial, v {declared})".encode())
        for literal in [None, *literals, None]:
            connection.execute(
                f"insert into public.t (v) values (%s::text::{declared})".encode(), [literal]
            )
        type, streamed, copied_column = both_ways(connection)
        assert plain(streamed[0]) == plain(copied_column[0]), declared
        assert streamed[1] == copied_column[1], declared
        expected = [None, *literals.values(), None]
        values: list[object] = list(type.from_arrow(streamed[0]))
        for place, text in streamed[1]:
            assert values[place] is None
            values[place] = ExactText(text)
        # By their texts: NaN is not NaN, 1.5 is 1.50 and -0.0 is 0.0.
        assert list(map(repr, values)) == list(map(repr, expected)), declared


@pytest.mark.meets("R23f")
def test_an_interval_without_end_is_read_both_ways(database: Database) -> None:
    connection = database.connect(options=SESSION)
    if connection.info.server_version < 170_000:
        pytest.skip("intervals are finite before PostgreSQL 17")
    connection.execute("create table public.t (n serial, v interval)")
    connection.execute("insert into public.t (v) values ('infinity'), ('-infinity')")
    type, streamed, copied_column = both_ways(connection)
    assert plain(streamed[0]) == plain(copied_column[0])
    assert type.from_arrow(streamed[0]) == [FOREVER, Interval(MIN_INT32, MIN_INT32, MIN_INT64)]


@pytest.mark.meets("R18")
def test_a_type_that_no_list_names_is_text_in_both(database: Database) -> None:
    """Whatever base type the server has and can make from a text of its own."""
    connection = database.connect(options=SESSION)
    names = connection.execute(
        "select oid::bigint, format_type(oid, null) from pg_type where typnamespace ="
        " 'pg_catalog'::regnamespace and typtype = 'b' and typcategory <> 'A'"
        " and typname !~ '^(pg_node_tree|pg_ndistinct|pg_dependencies|pg_mcv_list|pg_brin.*|xml)$'"
        " and typname not in ('aclitem', 'gtsvector')"
    ).fetchall()
    assert len(names) > 40
    tried = 0
    for _, name in names:
        connection.execute("drop table if exists public.t")
        connection.execute(f"create table public.t (n serial, v {name})".encode())
        for literal in (
            "1",
            "(1,2)",
            "2024-01-01",
            "1:00",
            "t",
            "[1,2]",
            "a",
            "1.2.3.4",
            "pg_class",
        ):
            try:
                connection.execute(
                    f"insert into public.t (v) values (%s::text::{name})".encode(), [literal]
                )
            except psycopg.Error:
                continue
            tried += 1
        _, streamed, copied_column = both_ways(connection)
        assert plain(streamed[0]) == plain(copied_column[0]), name
        assert streamed[1] == copied_column[1] == [], name
    assert tried > 60


@pytest.mark.meets("R23f")
def test_bytes_that_are_no_text_are_kept_where_the_database_has_no_encoding(
    server: PostgresServer,
) -> None:
    """With UTF8 as the client's encoding such a server refuses to send the row at all."""
    name = f"ascii_{os.getpid()}"
    with psycopg.connect(server.dsn, autocommit=True) as outside:
        outside.execute(f"create database {name} encoding 'SQL_ASCII' template template0".encode())
        try:
            session = SESSION.replace("client_encoding=UTF8", "client_encoding=SQL_ASCII")
            dsn = psycopg.conninfo.make_conninfo(server.dsn, dbname=name, options=session)
            with psycopg.connect(dsn, autocommit=True) as connection:
                connection.execute("create table public.t (n serial, v text)")
                connection.execute(b"insert into public.t (v) values (E'caf\\xe9'), ('fine')")
                _, streamed, copied_column = both_ways(connection)
                assert streamed[0].to_pylist() == copied_column[0].to_pylist() == [None, "fine"]
                assert streamed[1] == copied_column[1] == [(0, "cast(X'636166E9' as text)")]
                connection.execute("set client_encoding = 'UTF8'")
                with pytest.raises(psycopg.errors.CharacterNotInRepertoire):
                    connection.execute("select v from public.t").fetchall()
        finally:
            outside.execute(f"drop database {name} with (force)".encode())


@pytest.fixture
def raw(server: PostgresServer) -> Iterator[Database]:
    made = Database(server, "test_without_encoding")
    with made._outside() as outside:
        outside.execute(
            "create database test_without_encoding template template0 encoding 'SQL_ASCII'"
            " locale 'C'"
        )
    yield made
    made.drop()


@pytest.mark.meets("R23f", "R18")
def test_bytes_that_are_no_text_stop_neither_the_stream_nor_a_copy(raw: Database) -> None:
    app = raw.connect(client_encoding="SQL_ASCII")
    app.execute(b"create table notes (id int primary key, note text)")
    app.execute(b"insert into notes values (1, 'caf\xe9'), (2, 'caf\xc3\xa9')")
    source = postgres(raw.dsn, name="raw")
    source.describe(["notes"])
    source.open(None)
    try:
        copy = source.baseline("notes")
        rows: list[object] = []
        exact: list[object] = []
        for batch in copy:
            rows += batch.column("note").to_pylist()
            exact += [] if copy.exact is None else copy.exact.to_pylist()
        assert rows == [None, "café"]
        app.execute(b"insert into notes values (3, '\xff')")
        app.execute(b"insert into notes values (4, 'plain')")
        found: list[Changes] = []

        def read() -> bool:
            changes = source.read(100, 0.1)
            if changes is not None and changes.tables:
                found.append(changes)
            return bool(sum(t.rows.num_rows for each in found for t in each.tables) == 2)

        wait_until(read)
        streamed = [
            row["after"]["note"]
            for each in found
            for table in each.tables
            for row in table.rows.to_pylist()
        ]
        assert streamed == [None, "plain"]
        marks = [
            row["_exact"]
            for each in found
            for table in each.tables
            for row in table.rows.to_pylist()
        ]
        assert marks[0]
        assert exact[0]
    finally:
        source.close()
        source.teardown()
