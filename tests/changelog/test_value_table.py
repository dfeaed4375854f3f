"""
Every row of the value table: value, Arrow, Parquet, Arrow, value.

Each value is read back as it was, or is unrepresentable and its exact text identifies it (R23f).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from uuid import UUID

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.changelog.schema import Column, TableSchema
from headrace.changelog.segment import parquet_rows, segment_bytes
from headrace.changelog.values import (
    MARKED,
    MAX_INT32,
    MAX_INT64,
    MICROS_PER_DAY,
    MIN_INT32,
    MIN_INT64,
    SHAPES,
    BeyondDate,
    BeyondTime,
    BeyondTimestamp,
    Interval,
    OffsetTime,
    ValueType,
    exact_text,
    from_exact,
    numeric_text,
)
from headrace.errors import BadSchema
from tests.support.tiers import examples

offsets = st.integers(-57_599, 57_599)
int32s = st.integers(MIN_INT32, MAX_INT32)
int64s = st.integers(MIN_INT64, MAX_INT64)
late_days = st.one_of(st.integers(2_932_897, MAX_INT32), st.integers(MIN_INT32, -719_163))
late_micros = st.one_of(
    st.integers(2_932_897 * MICROS_PER_DAY, MAX_INT64),
    st.integers(MIN_INT64, -719_162 * MICROS_PER_DAY - 1),
)
numbers = st.decimals(allow_nan=False, allow_infinity=False)
surrogates = st.text(st.characters(categories=["Cs", "L"]), min_size=1)

FITTING: dict[str, st.SearchStrategy[object]] = {
    "int16": st.integers(-(2**15), 2**15 - 1),
    "int32": int32s,
    "int64": int64s,
    "float32": st.floats(width=32),
    "float64": st.floats(),
    "boolean": st.booleans(),
    "decimal(12,2)": st.decimals(-(10**10) + 1, 10**10 - 1, places=2),
    "decimal(38,0)": st.integers(-(10**38) + 1, 10**38 - 1).map(Decimal),
    "decimal(38,38)": st.integers(-(10**38) + 1, 10**38 - 1).map(lambda n: Decimal(f"{n}E-38")),
    "numeric": st.one_of(
        st.decimals(allow_nan=False),
        st.just(Decimal("NaN")),
        st.integers(-(10**400), 10**400).map(Decimal),
        st.builds(lambda n, e: Decimal(f"{n}E{e}"), st.integers(), st.integers(-9_999, 9_999)),
    ),
    "text": st.text(),
    "json": st.text(),
    "bytes": st.binary(),
    "text_bytes": st.binary(),
    "uuid": st.uuids(),
    "date": st.one_of(st.dates(), late_days.map(BeyondDate)),
    "timestamp": st.one_of(st.datetimes(), late_micros.map(BeyondTimestamp)),
    "timestamptz": st.one_of(
        st.datetimes(
            datetime(1, 1, 2),
            datetime(9999, 12, 30),
            timezones=offsets.map(lambda seconds: timezone(timedelta(seconds=seconds))),
        ),
        late_micros.map(lambda micros: BeyondTimestamp(micros, utc=True)),
    ),
    "time": st.one_of(st.times(), st.just(BeyondTime())),
    "timetz": st.builds(OffsetTime, st.integers(0, MICROS_PER_DAY), offsets),
    "interval": st.builds(Interval, int32s, int32s, int64s),
    "variant": st.one_of(int64s, st.floats(), st.text(), st.binary()),
}
ANYTHING: st.SearchStrategy[object] = st.one_of(
    st.integers(),
    st.floats(),
    st.text(),
    surrogates,
    st.binary(),
    st.booleans(),
    st.decimals(),
    st.uuids(),
    st.dates(),
    st.datetimes(),
    st.datetimes(timezones=st.just(UTC)),
    st.times(),
    st.builds(BeyondDate, late_days | st.integers(MAX_INT32)),
    st.builds(BeyondTimestamp, late_micros | st.integers(MAX_INT64), st.booleans()),
    st.builds(BeyondTime, st.integers(0, 2 * MICROS_PER_DAY)),
    st.builds(OffsetTime, st.integers(0), st.integers()),
    st.builds(Interval, st.integers(), st.integers(), st.integers()),
)
KINDS = sorted(FITTING)
PLAIN = (int, float, str, bytes, bool)


def same(a: object, b: object) -> bool:
    """Say whether two values are one: NaN is NaN, and minus zero is not zero."""
    if isinstance(a, float) and isinstance(b, float):
        return math.copysign(1, a) == math.copysign(1, b) if a == b else a != a and b != b
    if isinstance(a, Decimal) and isinstance(b, Decimal) and a.is_nan():
        return str(a) == str(b)
    return a == b


def through_a_segment(kind: ValueType, array: pa.Array) -> list[object]:
    """Send a column through the bytes of a segment, inside an image as it lies there."""
    schema = TableSchema("t", (Column("v", kind, 1),))
    image = pa.StructArray.from_arrays([array], fields=list(schema.arrow))
    rows, _ = parquet_rows(segment_bytes(pa.table({"after": image})))
    read = rows["after"].combine_chunks().field("v").cast(kind.arrow)
    return kind.from_arrow(read)


def round_trip(text: str, values: Sequence[object]) -> tuple[list[object], dict[int, str]]:
    kind = ValueType.parse(text)
    array, unrepresentable = kind.to_arrow(values)
    assert array.type == kind.arrow
    assert len(array) == len(values)
    return through_a_segment(kind, array), dict(unrepresentable)


def test_every_kind_is_tried() -> None:
    assert {text.partition("(")[0] for text in KINDS} == {*SHAPES, "decimal"}


@pytest.mark.meets("S6")
@pytest.mark.parametrize("text", KINDS)
@examples(30)
@given(data=st.data())
def test_a_value_of_its_kind_comes_back_as_it_was(text: str, data: st.DataObject) -> None:
    values = data.draw(st.lists(st.none() | FITTING[text], max_size=8))
    back, unrepresentable = round_trip(text, values)
    assert unrepresentable == {}
    assert all(map(same, values, back)), (values, back)
    assert [type(a) for a in values] == [type(b) for b in back]


@pytest.mark.slow
@pytest.mark.meets("S6", "R23f")
@pytest.mark.parametrize("text", KINDS)
@examples(30)
@given(data=st.data())
def test_any_value_comes_back_or_is_told_by_its_exact_text(text: str, data: st.DataObject) -> None:
    values = data.draw(st.lists(st.none() | ANYTHING | FITTING[text], max_size=6))
    back, unrepresentable = round_trip(text, values)
    for index, value in enumerate(values):
        if index in unrepresentable:
            assert back[index] is None
            assert unrepresentable[index] == exact_text(value)
            unrepresentable[index].encode()
            if type(value) in PLAIN and value not in surrogate_texts(values):
                assert same(from_exact(unrepresentable[index]), value)
        elif isinstance(value, str) and text.startswith(("decimal", "numeric")):
            assert numeric_text(value) is not None
            assert same(Decimal(value), back[index])
        elif isinstance(value, str) and text == "text_bytes":
            # Bytes smuggled into a text come back as they were; other surrogates as they stand.
            smuggled = all("\udc80" <= c <= "\udcff" for c in value if "\ud800" <= c <= "\udfff")
            how = "surrogateescape" if smuggled else "surrogatepass"
            assert back[index] == value.encode(errors=how)
        else:
            assert same(value, back[index]) or value == back[index]


def surrogate_texts(values: Sequence[object]) -> set[str]:
    """Return the texts that no bytes of a source decode to; their text is exact in bytes only."""
    found = set()
    for value in values:
        if isinstance(value, str):
            try:
                back = value.encode(errors="surrogateescape").decode(errors="surrogateescape")
            except UnicodeEncodeError:
                back = ""
            if back != value:
                found.add(value)
    return found


@pytest.mark.meets("R23f")
@pytest.mark.parametrize(
    ("text", "value", "exact"),
    [
        ("int64", 2**63, "9223372036854775808"),
        ("int64", 1.0, "1.0"),
        ("int64", True, "true"),
        ("int64", "abc", "abc"),
        ("int64", "12", "'12'"),
        ("int64", "it's 'so'", "it's 'so'"),
        ("int64", "'quoted'", "'''quoted'''"),
        ("int64", b"\x00\xff", "X'00FF'"),
        ("int64", math.inf, "inf"),
        ("int64", "inf", "'inf'"),
        ("int16", 40_000, "40000"),
        ("float64", 2**53 + 1, "9007199254740993"),
        ("float32", 0.1, "0.1"),
        ("float32", 1e300, "1e+300"),
        ("boolean", 1, "1"),
        ("text", b"abc", "X'616263'"),
        ("text", "a\udcff", "cast(X'61FF' as text)"),
        ("bytes", "abc", "abc"),
        ("decimal(12,2)", Decimal("1.005"), "1.005"),
        ("decimal(12,2)", Decimal("NaN"), "NaN"),
        ("decimal(12,2)", "12345678901.00", "'12345678901.00'"),
        ("decimal(38,0)", 10**38, "1" + "0" * 38),
        ("numeric", "1_000", "1_000"),
        ("numeric", "\u0661", "\u0661"),
        ("numeric", 1.5, "1.5"),
        ("uuid", "no uuid", "no uuid"),
        ("date", datetime(2026, 1, 2), "2026-01-02 00:00:00"),
        ("date", BeyondDate(2**31), "5881580-07-12"),
        ("timestamp", datetime(2026, 1, 2, tzinfo=UTC), "2026-01-02 00:00:00+00:00"),
        ("timestamptz", datetime(2026, 1, 2), "2026-01-02 00:00:00"),
        ("timestamptz", BeyondTimestamp(2**63, utc=True), "294247-01-10 04:00:54.775808+00"),
        ("time", BeyondTime(2 * MICROS_PER_DAY), "48:00:00"),
        ("interval", Interval(2**31), "2147483648 mons 0 days 00:00:00"),
        ("variant", 2**63, "9223372036854775808"),
        ("variant", "a\udcff", "cast(X'61FF' as text)"),
    ],
)
def test_what_does_not_fit_is_null_with_its_exact_text(
    text: str, value: object, exact: str
) -> None:
    array, unrepresentable = ValueType.parse(text).to_arrow([None, value, None])
    assert unrepresentable == [(1, exact)]
    assert array.null_count == 3


def test_a_number_too_long_for_python_to_print_has_an_exact_text_too() -> None:
    for kind in ("int64", "text", "variant", "decimal(12,2)"):
        assert ValueType.parse(kind).to_arrow([10**5000])[1] == [(0, "1" + "0" * 5000)]
    assert from_exact("1" + "0" * 5000) == 10**5000


@pytest.mark.parametrize(
    ("text", "value", "stored"),
    [
        ("float64", 3, 3.0),
        ("numeric", 5, "5"),
        ("numeric", "-1.50", "-1.50"),
        ("numeric", "1e3", "1000"),
        ("numeric", "infinity", "Infinity"),
        ("numeric", Decimal("1E+200000"), "1E+200000"),
        ("decimal(12,2)", "1.5", Decimal("1.50")),
        ("decimal(12,2)", 7, Decimal("7.00")),
        ("bytes", bytearray(b"abc"), b"abc"),
        ("text_bytes", "a\udcff", b"a\xff"),
        ("time", time(1, 2, 3, 4), 3_723_000_004),
        ("date", BeyondDate(MAX_INT32), None),
    ],
)
def test_what_is_the_same_value_is_taken(text: str, value: object, stored: object) -> None:
    array, unrepresentable = ValueType.parse(text).to_arrow([value])
    assert unrepresentable == []
    if stored is not None:
        assert array.to_pylist() == [stored]


def test_a_time_with_an_offset_of_pythons_becomes_ours() -> None:
    value = time(1, 0, tzinfo=timezone(timedelta(hours=-2)))
    assert round_trip("timetz", [value]) == ([OffsetTime(3_600_000_000, -7200)], {})


@pytest.mark.meets("S6")
def test_infinities_are_the_ends_of_the_stored_integers() -> None:
    days = ValueType("date").to_arrow([BeyondDate(MIN_INT32), BeyondDate(MAX_INT32)])[0]
    micros = [BeyondTimestamp(MIN_INT64), BeyondTimestamp(MAX_INT64)]
    assert days.cast(pa.int32()).to_pylist() == [MIN_INT32, MAX_INT32]
    assert ValueType("timestamp").to_arrow(micros)[0].cast(pa.int64()).to_pylist() == [
        MIN_INT64,
        MAX_INT64,
    ]
    assert [str(value) for value in micros] == ["-infinity", "infinity"]
    assert micros[0].infinite


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (BeyondDate(-719_163), "0001-12-31 BC"),
        (BeyondDate(-735_160), "0044-03-15 BC"),
        (BeyondDate(2_932_897), "10000-01-01"),
        (BeyondTimestamp(-62_135_596_800_000_001), "0001-12-31 23:59:59.999999 BC"),
        (BeyondTimestamp(2_932_897 * MICROS_PER_DAY, utc=True), "10000-01-01 00:00:00+00"),
        (BeyondTime(), "24:00:00"),
        (OffsetTime(1, -3_661), "00:00:00.000001-01:01:01"),
        (Interval(14, -3, -1_500_000), "14 mons -3 days -00:00:01.500000"),
        (Interval(MAX_INT32, MAX_INT32, MAX_INT64), "infinity"),
    ],
)
def test_times_beyond_have_a_text(value: object, text: str) -> None:
    assert str(value) == text


@given(st.integers(-719_162, 2_932_896))
def test_their_calendar_is_pythons_where_both_reach(days: int) -> None:
    assert str(BeyondDate(days)) == (date(1970, 1, 1) + timedelta(days)).isoformat()


@given(st.one_of(st.integers(), st.floats(allow_nan=False), st.text(), st.binary(), st.booleans()))
def test_an_exact_text_tells_the_value(value: object) -> None:
    back = from_exact(exact_text(value))
    assert back == value
    assert type(back) is type(value)


@pytest.mark.parametrize("text", KINDS)
def test_a_types_text_reads_back(text: str) -> None:
    kind = ValueType.parse(text)
    assert str(kind) == text
    assert ValueType.of_field(kind.field("x")) == kind
    if kind.kind not in MARKED:
        assert ValueType.of_arrow(kind.arrow) == kind


@pytest.mark.parametrize(
    "text",
    ["", "int", "Int64", "decimal", "decimal(39,0)", "decimal(3,4)", "decimal(a,b)", "int64(3)",
     "arrow", "arrow()", "arrow(!)", "int64 "],
)  # fmt: skip
def test_text_that_is_no_type_is_refused(text: str) -> None:
    with pytest.raises(BadSchema):
        ValueType.parse(text)


def test_a_type_that_an_expression_made_is_kept_as_it_is() -> None:
    shape = pa.list_(pa.struct([("a", pa.int8())]))
    kind = ValueType.of_arrow(shape)
    assert (kind.kind, kind.arrow) == ("arrow", shape)
    assert ValueType.parse(str(kind)) == kind
    array, unrepresentable = kind.to_arrow([[{"a": 1}], None, "nonsense"])
    assert unrepresentable == [(2, "nonsense")]
    assert kind.from_arrow(array) == [[{"a": 1}], None, None]


def test_a_decoder_takes_what_arrow_gives_and_the_stored_integer() -> None:
    instant = datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC)
    decode = ValueType("timestamptz").decoder()
    array, _ = ValueType("timestamptz").to_arrow([instant])
    assert decode is not None
    assert decode(array[0].as_py()) == decode(array.cast(pa.int64())[0].as_py()) == instant
    decode = ValueType("date").decoder()
    assert decode is not None
    assert decode(date(2026, 1, 2)) == decode(20_455) == date(2026, 1, 2)
    assert ValueType("int64").decoder() is None


def test_uuids_come_back_as_uuids() -> None:
    value = UUID("12345678-1234-5678-1234-567812345678")
    array, _ = ValueType("uuid").to_arrow([value])
    assert array.type == pa.binary(16)
    assert ValueType("uuid").from_arrow(array) == [value]


@pytest.mark.parametrize("text", ["5.289999999999980077913E-18", "1E-39", "-7.5E-38"])
def test_a_decimal_with_more_digits_than_arrow_has_is_not_taken_for_zero(text: str) -> None:
    back, unrepresentable = round_trip("decimal(38,0)", [Decimal(text), Decimal(7)])
    assert back == [None, Decimal(7)]
    assert unrepresentable == {0: exact_text(Decimal(text))}


def test_zeros_behind_the_last_digit_of_a_decimal_do_not_make_it_unfit() -> None:
    text = "1." + "0" * 60
    assert round_trip("decimal(38,0)", [Decimal(text)]) == ([Decimal(1)], {})
