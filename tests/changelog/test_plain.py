"""Values as JSON has them: each can be told again by the type of its column."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.changelog.change import Change, Op, as_segment
from headrace.changelog.schema import Column, TableSchema
from headrace.changelog.values import (
    MAX_INT32,
    MAX_INT64,
    MICROS_PER_DAY,
    MIN_INT32,
    MIN_INT64,
    BeyondDate,
    BeyondTime,
    BeyondTimestamp,
    Interval,
    OffsetTime,
    ValueType,
)
from headrace.changelog.values_json import JsonForm, images, plain, row_values, unsent
from tests.changelog.log_making import table
from tests.changelog.test_value_table import FITTING, KINDS, same
from tests.support.tiers import examples

# --- a reader of the form, that knows nothing but what is documented --------------------------

_DATE = re.compile(r"(\d{4,})-(\d\d)-(\d\d)( BC)?")
_STAMP = re.compile(r"(\d{4,}-\d\d-\d\d) (\d\d):(\d\d):(\d\d)(?:\.(\d{6}))?(?:\+00)?( BC)?")
_CLOCK = re.compile(r"(-?)(\d\d+):(\d\d):(\d\d)(?:\.(\d{6}))?")
_OFFSET = re.compile(r"(.*?)([-+])(\d\d):(\d\d)(?::(\d\d))?")
_INTERVAL = re.compile(r"(-?\d+) mons (-?\d+) days (.*)")
_FLOATS = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}


def days_of(text: str) -> int:
    match = _DATE.fullmatch(text)
    assert match
    year, month, day = int(match[1]), int(match[2]), int(match[3])
    year = 1 - year if match[4] else year
    # Whole cycles of 400 years aside, Python knows the calendar.
    cycles, year = divmod(year - 1, 400)
    return date(year + 1, month, day).toordinal() - 719_163 + cycles * 146_097


def micros_of(text: str) -> int:
    match = _CLOCK.fullmatch(text)
    assert match
    seconds = (int(match[2]) * 60 + int(match[3])) * 60 + int(match[4])
    return (seconds * 1_000_000 + int(match[5] or 0)) * (-1 if match[1] else 1)


def as_date(text: str) -> object:
    if "infinity" in text:
        return BeyondDate(MIN_INT32 if text.startswith("-") else MAX_INT32)
    days = days_of(text)
    return date.fromordinal(days + 719_163) if len(text) == 10 else BeyondDate(days)


def as_timestamp(text: str, *, utc: bool) -> object:
    if "infinity" in text:
        return BeyondTimestamp(MIN_INT64 if text.startswith("-") else MAX_INT64, utc)
    if "T" in text:
        return datetime.fromisoformat(text)
    match = _STAMP.fullmatch(text)
    assert match
    day = days_of(match[1] + (match[6] or ""))
    clock = micros_of(f"{match[2]}:{match[3]}:{match[4]}.{match[5] or '000000'}")
    return BeyondTimestamp(day * MICROS_PER_DAY + clock, utc)


def as_timetz(text: str) -> object:
    match = _OFFSET.fullmatch(text)
    assert match
    offset = (int(match[3]) * 60 + int(match[4])) * 60 + int(match[5] or 0)
    return OffsetTime(micros_of(match[1]), -offset if match[2] == "-" else offset)


def as_interval(text: str) -> object:
    if "infinity" in text:
        low = text.startswith("-")
        ends = (MIN_INT32, MIN_INT64) if low else (MAX_INT32, MAX_INT64)
        return Interval(ends[0], ends[0], ends[1])
    match = _INTERVAL.fullmatch(text)
    assert match
    return Interval(int(match[1]), int(match[2]), micros_of(match[3]))


def as_variant(value: Any) -> object:
    if isinstance(value, dict):
        if "bytes" in value:
            return base64.b64decode(value["bytes"])
        return _FLOATS[value["float"]]
    return value


def as_number(value: Any) -> object:
    return _FLOATS[value] if isinstance(value, str) else float(value)


READ: dict[str, Callable[[Any], object]] = {
    "float32": as_number,
    "float64": as_number,
    "decimal": Decimal,
    "numeric": Decimal,
    "bytes": base64.b64decode,
    "text_bytes": base64.b64decode,
    "uuid": UUID,
    "date": as_date,
    "timestamp": lambda text: as_timestamp(text, utc=False),
    "timestamptz": lambda text: as_timestamp(text, utc=True),
    "time": lambda text: BeyondTime() if text == "24:00:00" else time.fromisoformat(text),
    "timetz": as_timetz,
    "interval": as_interval,
    "variant": as_variant,
}


@pytest.mark.meets("S6")
@pytest.mark.parametrize("text", KINDS)
@examples(60)
@given(data=st.data())
def test_every_value_can_be_read_back_from_its_json(text: str, data: st.DataObject) -> None:
    kind = ValueType.parse(text)
    values = data.draw(st.lists(st.none() | FITTING[text], max_size=6))
    array, unrepresentable = kind.to_arrow(values)
    assert not unrepresentable
    written = msgspec.json.encode(plain(kind, kind.from_arrow(array)))
    found = json.loads(written)
    read: Callable[[Any], object] = READ.get(kind.kind, lambda value: value)
    back = [None if value is None else read(value) for value in found]
    assert all(map(same, values, back)), (values, written)
    if kind.kind != "timestamptz":
        assert [type(value) for value in back] == [type(value) for value in values]


@pytest.mark.parametrize(
    ("kind", "value", "written"),
    [
        ("int64", 2**53 + 1, "9007199254740993"),
        ("int64", -(2**63), "-9223372036854775808"),
        ("float64", 1.0, "1.0"),
        ("float64", 0.1 + 0.2, "0.30000000000000004"),
        ("float64", float("nan"), '"NaN"'),
        ("float32", float("-inf"), '"-Infinity"'),
        ("decimal(12,2)", Decimal("1.50"), '"1.50"'),
        ("numeric", Decimal("Infinity"), '"Infinity"'),
        ("numeric", Decimal("1e20"), '"100000000000000000000"'),
        ("bytes", b"\x00\xff", '"AP8="'),
        ("text", 'a"\n', '"a\\"\\n"'),
        ("json", '{"a": 1}', '"{\\"a\\": 1}"'),
        ("timestamp", datetime(2026, 1, 2, 3, 4, 5), '"2026-01-02T03:04:05.000000"'),
        ("timestamptz", BeyondTimestamp(MAX_INT64, utc=True), '"infinity"'),
        ("date", BeyondDate(-719_163), '"0001-12-31 BC"'),
        ("time", BeyondTime(), '"24:00:00"'),
        ("time", time(1, 2, 3), '"01:02:03.000000"'),
        ("timetz", OffsetTime(3_600_000_000, -3600), '"01:00:00-01:00"'),
        ("interval", Interval(14, 3, -1), '"14 mons 3 days -00:00:00.000001"'),
        ("variant", 12, "12"),
        ("variant", "12", '"12"'),
        ("variant", b"12", '{"bytes":"MTI="}'),
        ("variant", float("inf"), '{"float":"Infinity"}'),
    ],
)
def test_the_form_is_the_one_that_is_documented(kind: str, value: object, written: str) -> None:
    assert msgspec.json.encode(plain(ValueType.parse(kind), [value])[0]).decode() == written


def test_what_an_expression_made_is_lists_and_objects_of_such_values() -> None:
    inner = pa.struct([("n", pa.decimal128(5, 2)), ("b", pa.binary())])
    kind = ValueType("arrow", other=pa.list_(inner))
    array = pa.array([[{"n": Decimal("1.50"), "b": b"\x00"}], None], kind.arrow)
    assert plain(kind, kind.from_arrow(array)) == [[{"n": "1.50", "b": "AA=="}], None]


# --- images ---------------------------------------------------------------------------------

WIDE = table("wide", id="int64", name="text", bio="text")


def test_a_value_its_column_could_not_hold_is_its_exact_text() -> None:
    rows = as_segment(
        WIDE,
        [
            Change(
                Op.UPDATE,
                1,
                0,
                5,
                before={"id": "x", "name": "a", "bio": None},
                after={"id": 1, "name": b"\x01", "bio": "b"},
            )
        ],
    )
    assert images(rows, WIDE, "before") == [{"id": {"exact": "x"}, "name": "a", "bio": None}]
    assert images(rows, WIDE, "after") == [{"id": 1, "name": {"exact": "X'01'"}, "bio": "b"}]


@pytest.mark.meets("R21")
def test_a_value_that_was_not_sent_is_not_there_and_is_named() -> None:
    after = {"id": 1, "name": "a", "bio": None}
    rows = as_segment(WIDE, [Change(Op.UPDATE, commit, 0, 5, after=after) for commit in (1, 2)])
    place = rows.schema.get_field_index("_unsent")
    rows = rows.set_column(place, "_unsent", pa.array([None, [3]], rows.schema[place].type))
    assert images(rows, WIDE, "after") == [after, {"id": 1, "name": "a"}]
    assert unsent(rows, WIDE) == [[], ["bio"]]
    marked = images(rows, WIDE, "after", JsonForm(unsent="?"))
    assert marked[1] == {"id": 1, "name": "a", "bio": "?"}


def test_an_image_that_holds_the_key_alone_has_no_other_columns() -> None:
    narrow = TableSchema(WIDE.table, WIDE.columns, WIDE.key, whole_before=False)
    rows = as_segment(narrow, [Change(Op.DELETE, 1, 0, 5, before={"id": 4})])
    assert images(rows, narrow, "before") == [{"id": 4}]
    assert images(rows, narrow, "after") == [None]
    assert images(rows, WIDE, "before") == [{"id": 4, "name": None, "bio": None}]


def test_rows_are_read_by_the_place_of_their_columns() -> None:
    columns = (Column("a.b", ValueType("int64"), 1), Column("_op", ValueType("bytes"), 2))
    rows = pa.table({"x": [1, None], "y": pa.array([b"a", b"b"], pa.binary())})
    assert row_values(rows, columns) == [{"a.b": 1, "_op": "YQ=="}, {"a.b": None, "_op": "Yg=="}]
