"""Changes in Debezium's envelope: the fields and the values that its documentation names."""

from __future__ import annotations

from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest

from headrace.changelog.change import Change, Op, as_segment
from headrace.changelog.entries import File
from headrace.changelog.ranges import ChangeSlice
from headrace.changelog.schema import TableSchema
from headrace.changelog.values import (
    MAX_INT64,
    MIN_INT64,
    BeyondTime,
    BeyondTimestamp,
    Interval,
    OffsetTime,
    ValueType,
)
from headrace.cli.debezium import Envelopes, values
from tests.changelog.log_making import table

CUSTOMERS = table("customers", id="int64", first_name="text", email="text")
KEYED = TableSchema("customers", CUSTOMERS.columns, CUSTOMERS.key, whole_before=False)
FILE = File(name="x", table="customers", schema=1, rows=1, bytes=1, checksum="")
COMMITTED, READ = 1559033904863769, 1465584025523514

ROW = {"id": 1, "first_name": "Anne", "email": "annek@noanswer.org"}
SOURCE = {"version", "connector", "name", "ts_ms", "ts_us", "ts_ns", "snapshot", "db", "schema"}
SOURCE |= {"table", "txId", "lsn", "xmin", "position"}


def events(change: Change, schema: TableSchema = CUSTOMERS, lineage: str = "pg/7/16384") -> Any:
    envelopes = Envelopes("main", lineage, "postgres", "1.0", lambda: READ)
    piece = ChangeSlice(2, schema, as_segment(schema, [change]), FILE)
    (found,) = envelopes.events(piece)
    return found


def changed(op: Op, **images: Any) -> Change:
    return Change(op, 24023128, 3, COMMITTED, xid=556, **images)


def test_a_create_has_the_fields_of_the_documented_example() -> None:
    (event,) = events(changed(Op.INSERT, after=ROW))
    assert list(event) == ["before", "after", "source", "op", "ts_ms", "ts_us", "ts_ns"]
    assert event["before"] is None
    assert event["after"] == ROW
    assert event["op"] == "c"
    assert (event["ts_ms"], event["ts_us"], event["ts_ns"]) == (
        1465584025523,
        READ,
        READ * 1000,
    )
    assert set(event["source"]) == SOURCE
    assert event["source"] == {
        "version": "1.0",
        "connector": "postgresql",
        "name": "main",
        "ts_ms": 1559033904863,
        "ts_us": COMMITTED,
        "ts_ns": COMMITTED * 1000,
        "snapshot": False,
        "db": "postgres",
        "schema": "public",
        "table": "customers",
        "txId": 556,
        "lsn": 24023128,
        "xmin": None,
        "position": "0002-00000000016e9058-00000003",
    }


def test_an_update_and_a_delete_show_the_key_alone_where_nothing_else_was_sent() -> None:
    (event,) = events(changed(Op.UPDATE, before={"id": 1}, after=ROW), KEYED)
    assert (event["op"], event["before"], event["after"]) == ("u", {"id": 1}, ROW)
    (event,) = events(changed(Op.DELETE, before={"id": 1}), KEYED)
    assert (event["op"], event["before"], event["after"]) == ("d", {"id": 1}, None)
    (event,) = events(changed(Op.UPDATE, after=ROW), KEYED)
    assert (event["op"], event["before"]) == ("u", None)


def test_a_truncate_has_no_row() -> None:
    (event,) = events(changed(Op.TRUNCATE))
    assert list(event) == ["source", "op", "ts_ms", "ts_us", "ts_ns"]
    assert event["op"] == "t"


def test_another_key_is_a_delete_and_a_create() -> None:
    gone, new = events(changed(Op.UPDATE, before={**ROW, "id": 7}, after=ROW))
    assert (gone["op"], gone["before"], gone["after"]) == ("d", {**ROW, "id": 7}, None)
    assert (new["op"], new["before"], new["after"]) == ("c", None, ROW)
    assert gone["source"] == new["source"]


def test_a_table_of_sqlite_has_no_schema_and_its_name_is_taken_whole() -> None:
    odd = TableSchema("a.b", CUSTOMERS.columns, CUSTOMERS.key)
    (event,) = events(changed(Op.INSERT, after=ROW), odd, "sqlite/1c9e")
    source = event["source"]
    assert (source["connector"], source["schema"], source["table"]) == ("sqlite", "", "a.b")
    odd = TableSchema('sales."Big Orders"', CUSTOMERS.columns, CUSTOMERS.key)
    (event,) = events(changed(Op.INSERT, after=ROW), odd)
    assert (event["source"]["schema"], event["source"]["table"]) == ("sales", "Big Orders")


@pytest.mark.meets("R21", "R23f")
def test_what_was_not_sent_and_what_did_not_fit_are_told() -> None:
    rows = as_segment(CUSTOMERS, [changed(Op.UPDATE, after={**ROW, "id": "x", "email": None})])
    place = rows.schema.get_field_index("_unsent")
    rows = rows.set_column(place, "_unsent", pa.array([[3]], rows.schema[place].type))
    envelopes = Envelopes("main", "pg/7/16384", "postgres", "1.0", lambda: READ)
    ((event,),) = envelopes.events(ChangeSlice(1, CUSTOMERS, rows, FILE))
    assert event["after"] == {
        "id": "x",
        "first_name": "Anne",
        "email": "__debezium_unavailable_value",
    }


@pytest.mark.parametrize(
    ("kind", "value", "written"),
    [
        ("int64", 2**53 + 1, 9007199254740993),
        ("float64", float("nan"), "NaN"),
        ("boolean", True, True),
        ("decimal(12,2)", Decimal("1.50"), "1.50"),
        ("numeric", Decimal("NaN"), "NAN"),
        ("numeric", Decimal("-Infinity"), "NEGATIVE_INFINITY"),
        ("bytes", b"bar", "YmFy"),
        ("uuid", UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        ("json", "{}", "{}"),
        ("date", date(1970, 1, 11), 10),
        # The example of the documentation: 2018-06-20 15:13:16.945104.
        ("timestamp", datetime(2018, 6, 20, 15, 13, 16, 945104), 1529507596945104),
        ("timestamp", BeyondTimestamp(MAX_INT64), 9223372036825200000),
        ("timestamp", BeyondTimestamp(MIN_INT64), -9223372036832400000),
        (
            "timestamptz",
            datetime(2018, 6, 20, 15, 13, 16, 945104, tzinfo=UTC),
            "2018-06-20T15:13:16.945104Z",
        ),
        ("time", time(0, 0, 1, 5), 1_000_005),
        ("time", BeyondTime(), 86_400_000_000),
        ("timetz", OffsetTime(3_600_000_000, 7200), "23:00:00.000000Z"),
        # The example of the documentation: P1Y2M3DT4H5M6.78S.
        ("interval", Interval(14, 3, 14_706_780_000), "P1Y2M3DT4H5M6.78S"),
        ("interval", Interval(-1, 0, -500_000), "P0Y-1M0DT0H0M-0.5S"),
        ("interval", Interval(), "P0Y0M0DT0H0M0S"),
        ("variant", b"a", {"bytes": "YQ=="}),
    ],
)
def test_values_stand_as_the_documentation_says(kind: str, value: object, written: object) -> None:
    (found,) = values(ValueType.parse(kind), [value])
    assert found == written
    assert type(found) is type(written)
    assert values(ValueType.parse(kind), [None]) == [None]
