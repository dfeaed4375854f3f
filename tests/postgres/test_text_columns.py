"""The stream's texts as columns: what comes out is what the value mapping makes of the value."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.capture.postgres.cells import CHUNK
from headrace.capture.postgres.text import text_column
from headrace.changelog.exact import exact_text
from headrace.changelog.values import ValueType
from headrace.errors import BadSchema
from tests.postgres.typed_values import KINDS, Kind, as_bytes, column, plain

MANY = CHUNK // 4 + 1
FEW = 40
"""Examples a kind: there are many kinds."""


def texts(kind: Kind, values: list[Any], before: int = 0) -> pa.Array:
    return column([None if v is None else as_bytes(kind.text(v)) for v in values], before)


@pytest.mark.meets("S6", "R23f")
@pytest.mark.parametrize("kind", KINDS, ids=repr)
@settings(max_examples=FEW)
@given(st.data())
def test_a_text_becomes_what_its_value_becomes(kind: Kind, data: st.DataObject) -> None:
    values = data.draw(st.lists(st.none() | kind.values, max_size=12))
    array, misfits = text_column(kind.type, texts(kind, values, data.draw(st.integers(0, 3))))
    expected, expected_misfits = kind.type.to_arrow(values)
    assert plain(array) == plain(expected)
    assert misfits == expected_misfits


@pytest.mark.meets("R23f")
@pytest.mark.parametrize("kind", KINDS, ids=repr)
@settings(max_examples=FEW)
@given(st.data())
def test_one_text_that_is_none_does_not_touch_its_neighbours(
    kind: Kind, data: st.DataObject
) -> None:
    if kind.type.kind in ("text", "json"):
        return
    values = data.draw(st.lists(kind.values, min_size=1, max_size=6))
    garbage = data.draw(st.sampled_from([b"", b"x", b"--1", b"\xff", b" 1", b"1 ", b"\\xf", b"0x"]))
    raw = texts(kind, values).to_pylist()
    place = data.draw(st.integers(0, len(values)))
    array, misfits = text_column(kind.type, column([*raw[:place], garbage, *raw[place:]], 1))
    expected, _ = kind.type.to_arrow([*values[:place], None, *values[place:]])
    assert plain(array) == plain(expected)
    assert (place, exact_text(garbage.decode(errors="surrogateescape"))) in misfits


@pytest.mark.meets("R23f")
@pytest.mark.parametrize("kind", KINDS, ids=repr)
@settings(max_examples=FEW)
@given(values=st.lists(st.none() | st.binary(max_size=45) | st.from_regex(rb"[-+0-9:. eE]{0,42}")))
def test_no_bytes_raise_anything(kind: Kind, values: list[bytes | None]) -> None:
    array, misfits = text_column(kind.type, column(values, 2))
    array.validate(full=True)
    assert array.type == kind.type.arrow
    assert len(array) == len(values)
    unfit = {place for place, _ in misfits}
    assert unfit.isdisjoint(at for at, value in enumerate(values) if value is None)
    for at, found in enumerate(array.is_valid().to_pylist()):
        assert found == (values[at] is not None and at not in unfit)


@settings(max_examples=FEW)
@given(st.data())
@pytest.mark.parametrize("kind", KINDS, ids=repr)
def test_a_damaged_text_is_read_right_or_not_at_all(kind: Kind, data: st.DataObject) -> None:
    """Change one byte of a good text: what is still taken says, as text, what was given."""
    raw = bytearray(as_bytes(kind.text(data.draw(kind.values))))
    if not raw or kind.type.kind in ("text", "json"):
        return
    raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.sampled_from(b"0919 :-.+eEx\xff"))
    alone, alone_misfits = text_column(kind.type, column([bytes(raw)]))
    if not alone_misfits and kind.type.kind in ("date", "timestamp", "timestamptz", "time"):
        (value,) = kind.type.from_arrow(alone)
        # A fraction may have lost its last zeros, or an offset moved the hour to UTC.
        if kind.type.kind != "timestamptz" or raw.endswith((b"+00", b"+00 BC")):
            assert as_bytes(kind.text(value)).rstrip(b"0") == bytes(raw).rstrip(b"0") or b"." in raw
    # Whether alone or in company: the quick way and the slow way agree.
    good = [as_bytes(kind.text(data.draw(kind.values))) for _ in range(3)]
    among, misfits = text_column(kind.type, column([good[0], bytes(raw), *good[1:]]))
    assert plain(among.slice(1, 1)) == plain(alone)
    assert [text for place, text in misfits if place == 1] == [text for _, text in alone_misfits]


@pytest.mark.parametrize("kind", KINDS, ids=repr)
@settings(max_examples=3)
@given(data=st.data())
def test_columns_longer_than_a_chunk_read_the_same(kind: Kind, data: st.DataObject) -> None:
    short = kind.values.filter(lambda v: len(kind.binary(v)) < 99 and len(kind.text(v)) < 99)
    values = data.draw(st.lists(st.none() | short, min_size=4, max_size=5))
    few, _ = text_column(kind.type, texts(kind, values))
    many, _ = text_column(kind.type, texts(kind, values * MANY))
    assert plain(many.slice(len(many) - len(values))) == plain(few)


LIMIT = "294247-01-10 04:00:54.775806"


@pytest.mark.meets("R23f")
@pytest.mark.parametrize(
    ("type", "text", "exact"),
    [
        ("decimal(10,2)", "NaN", "NaN"),
        ("decimal(10,2)", "100000000.00", "100000000.00"),
        ("decimal(10,2)", "1.555", "1.555"),
        ("decimal(38,0)", "9" * 39, "9" * 39),
        ("decimal(38,0)", "1" * 60, "1" * 60),
        ("int16", "32768", "32768"),
        ("int16", "0xFFFF", "0xFFFF"),
        ("int64", "9223372036854775808", "9223372036854775808"),
        ("float64", "1e400", "1" + "0" * 400),
        ("float32", "1e-60", "0." + "0" * 59 + "1"),
        ("float64", "nan(1)", "nan(1)"),
        ("boolean", "1", "'1'"),
        ("text", b"caf\xe9", "cast(X'636166E9' as text)"),
        ("json", b'"\xed\xa0\x80"', "cast(X'22EDA08022' as text)"),
        ("bytes", "\\x0", "\\x0"),
        ("bytes", "\\x0g", "\\x0g"),
        ("uuid", "a0eebc99-9c0b-4ef8-bb6d6bb9bd380a110", "a0eebc99-9c0b-4ef8-bb6d6bb9bd380a110"),
        ("date", "2023-02-29", "2023-02-29"),
        ("date", "0000-01-01", "0000-01-01"),
        ("date", "5900000-01-01", "5900000-01-01"),
        ("timestamp", "294247-01-10 04:00:54.775807", "294247-01-10 04:00:54.775807"),
        ("timestamp", "294276-12-31 23:59:59.5", "294276-12-31 23:59:59.5"),
        ("timestamptz", "294276-12-31 23:59:59.5+00", "294276-12-31 23:59:59.5+00"),
        ("timestamp", "2024-01-01 00:00:00+00", "2024-01-01 00:00:00+00"),
        ("timestamptz", "2024-01-01 00:00:00", "2024-01-01 00:00:00"),
        ("time", "24:00:01", "24:00:01"),
        ("interval", "1 year ", "1 year "),
        ("interval", "@ 1 year ago", "@ 1 year ago"),
        ("interval", "999999999 years", "999999999 years"),
    ],
)
def test_what_a_column_cannot_hold_keeps_its_exact_text(
    type: str, text: str | bytes, exact: str
) -> None:
    for values in ([text], [None, text, None]):
        raw = [None if value is None else as_bytes(value) for value in values]
        array, misfits = text_column(ValueType.parse(type), column(raw, 1))
        assert array.null_count == len(values)
        assert misfits == [(values.index(text), exact)]


def test_the_last_instant_is_read_and_the_one_after_is_not_infinity() -> None:
    array, misfits = text_column(ValueType("timestamp"), column([LIMIT.encode(), b"infinity"]))
    assert array.cast(pa.int64()).to_pylist() == [2**63 - 2, 2**63 - 1]
    assert misfits == []


def test_an_offset_of_another_zone_is_an_instant_all_the_same() -> None:
    array, _ = text_column(ValueType("timestamptz"), column([b"2024-01-01 05:30:00+05:30"]))
    (found,) = ValueType("timestamptz").from_arrow(array)
    assert str(found) == "2024-01-01 00:00:00+00:00"


def test_a_kind_that_no_server_has_is_refused() -> None:
    with pytest.raises(BadSchema):
        text_column(ValueType("variant"), column([]))
