"""
Columns of the stream's texts and of a copy's binary values.

What comes out of either is what the value mapping makes of the value. Every kind of column has
examples of its own: were it drawn with its values, some kind would be left out by each run.
"""

from __future__ import annotations

import contextlib
import struct
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from headrace.capture.postgres.decode.binary import binary_column, fixed_column
from headrace.capture.postgres.decode.text import CHUNK, text_column
from headrace.changelog.values import MICROS_PER_DAY, ValueType, exact_text
from headrace.errors import BadMessage, BadSchema
from tests.postgres.typed_values import KINDS, MICROS_TO_2000, Kind, as_bytes, column, plain
from tests.support.tiers import examples

MANY = CHUNK // 4 + 1

ANY_KIND = pytest.mark.parametrize("kind", KINDS, ids=str)
NO_TEXT = pytest.mark.parametrize(
    "kind", [kind for kind in KINDS if kind.type.kind not in ("text", "json")], ids=str
)


def texts(kind: Kind, values: list[Any], before: int = 0) -> pa.Array:
    return column([None if v is None else as_bytes(kind.text(v)) for v in values], before)


def binaries(kind: Kind, values: list[Any], before: int = 0) -> pa.Array:
    return column([None if v is None else kind.binary(v) for v in values], before)


@pytest.mark.meets("S6", "R18", "R23f")
@ANY_KIND
@examples(10)
@given(data=st.data())
def test_a_text_and_a_binary_value_become_what_their_value_becomes(
    kind: Kind, data: st.DataObject
) -> None:
    values = data.draw(st.lists(st.none() | kind.values, max_size=12))
    before = data.draw(st.integers(0, 3))
    expected, expected_unrepresentable = kind.type.to_arrow(values)
    for array, unrepresentable in (
        text_column(kind.type, texts(kind, values, before)),
        binary_column(kind.type, binaries(kind, values, before)),
    ):
        assert plain(array) == plain(expected)
        assert unrepresentable == expected_unrepresentable


@pytest.mark.slow
@ANY_KIND
@examples(1)
@given(data=st.data())
def test_columns_longer_than_a_chunk_read_the_same(kind: Kind, data: st.DataObject) -> None:
    short = kind.values.filter(lambda v: len(kind.binary(v)) < 99 and len(kind.text(v)) < 99)
    values = data.draw(st.lists(st.none() | short, min_size=4, max_size=5))
    # The first example of any is the plainest, which is nothing but nulls.
    assume(len({kind.text(value) for value in values if value is not None}) > 1)
    for read, made in ((text_column, texts), (binary_column, binaries)):
        few, _ = read(kind.type, made(kind, values))
        many, _ = read(kind.type, made(kind, values * MANY))
        assert plain(many.slice(len(many) - len(values))) == plain(few)


def test_a_kind_that_no_server_has_is_refused() -> None:
    for read in (text_column, binary_column):
        with pytest.raises(BadSchema):
            read(ValueType("variant"), column([]))


# --- texts ---------------------------------------------------------------------------------


@pytest.mark.meets("R23f")
@NO_TEXT
@examples(10)
@given(data=st.data())
def test_one_text_that_is_none_does_not_touch_its_neighbours(
    kind: Kind, data: st.DataObject
) -> None:
    values = data.draw(st.lists(kind.values, min_size=1, max_size=6))
    garbage = data.draw(st.sampled_from([b"", b"x", b"--1", b"\xff", b" 1", b"1 ", b"\\xf", b"0x"]))
    raw = texts(kind, values).to_pylist()
    place = data.draw(st.integers(0, len(values)))
    array, unrepresentable = text_column(
        kind.type, column([*raw[:place], garbage, *raw[place:]], 1)
    )
    expected, _ = kind.type.to_arrow([*values[:place], None, *values[place:]])
    assert plain(array) == plain(expected)
    assert (place, exact_text(garbage.decode(errors="surrogateescape"))) in unrepresentable


@pytest.mark.meets("R23f")
@ANY_KIND
@examples(10)
@given(values=st.lists(st.none() | st.binary(max_size=45) | st.from_regex(rb"[-+0-9:. eE]{0,42}")))
def test_no_bytes_as_text_raise_anything(kind: Kind, values: list[bytes | None]) -> None:
    array, unrepresentable = text_column(kind.type, column(values, 2))
    array.validate(full=True)
    assert array.type == kind.type.arrow
    assert len(array) == len(values)
    unfit = {place for place, _ in unrepresentable}
    assert unfit.isdisjoint(at for at, value in enumerate(values) if value is None)
    for at, found in enumerate(array.is_valid().to_pylist()):
        assert found == (values[at] is not None and at not in unfit)


@pytest.mark.slow
@NO_TEXT
@examples(10)
@given(data=st.data())
def test_a_damaged_text_is_read_right_or_not_at_all(kind: Kind, data: st.DataObject) -> None:
    """Change one byte of a good text: what is still taken says, as text, what was given."""
    raw = bytearray(as_bytes(kind.text(data.draw(kind.values))))
    if not raw:
        return
    raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.sampled_from(b"0919 :-.+eEx\xff"))
    alone, alone_unrepresentable = text_column(kind.type, column([bytes(raw)]))
    if not alone_unrepresentable and kind.type.kind in ("date", "timestamp", "timestamptz", "time"):
        (value,) = kind.type.from_arrow(alone)
        # A fraction may have lost its last zeros, or an offset moved the hour to UTC.
        if kind.type.kind != "timestamptz" or raw.endswith((b"+00", b"+00 BC")):
            assert as_bytes(kind.text(value)).rstrip(b"0") == bytes(raw).rstrip(b"0") or b"." in raw
    # Whether alone or in company: the quick way and the slow way agree.
    good = [as_bytes(kind.text(data.draw(kind.values))) for _ in range(3)]
    among, unrepresentable = text_column(kind.type, column([good[0], bytes(raw), *good[1:]]))
    assert plain(among.slice(1, 1)) == plain(alone)
    assert [text for place, text in unrepresentable if place == 1] == [
        text for _, text in alone_unrepresentable
    ]


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
def test_a_text_that_a_column_cannot_hold_is_kept_exactly(
    type: str, text: str | bytes, exact: str
) -> None:
    for values in ([text], [None, text, None]):
        raw = [None if value is None else as_bytes(value) for value in values]
        array, unrepresentable = text_column(ValueType.parse(type), column(raw, 1))
        assert array.null_count == len(values)
        assert unrepresentable == [(values.index(text), exact)]


def test_the_last_instant_is_read_and_the_one_after_is_not_infinity() -> None:
    array, unrepresentable = text_column(
        ValueType("timestamp"), column([LIMIT.encode(), b"infinity"])
    )
    assert array.cast(pa.int64()).to_pylist() == [2**63 - 2, 2**63 - 1]
    assert unrepresentable == []


def test_an_offset_of_another_zone_is_an_instant_all_the_same() -> None:
    array, _ = text_column(ValueType("timestamptz"), column([b"2024-01-01 05:30:00+05:30"]))
    (found,) = ValueType("timestamptz").from_arrow(array)
    assert str(found) == "2024-01-01 00:00:00+00:00"


# --- binary values --------------------------------------------------------------------------


@pytest.mark.meets("S6", "R18", "R23f")
@ANY_KIND
@examples(10)
@given(data=st.data())
def test_values_read_where_they_lie_are_the_same(kind: Kind, data: st.DataObject) -> None:
    values = data.draw(st.lists(st.none() | kind.values, min_size=1, max_size=12))
    sent = [None if value is None else kind.binary(value) for value in values]
    lengths = {len(raw) for raw in sent if raw is not None} or {8}
    buffer, starts = bytearray(data.draw(st.binary(max_size=3))), []
    for raw in sent:
        starts.append(len(buffer))
        buffer += (raw or b"") + b"?"
    here = np.array([raw is not None for raw in sent])

    found = fixed_column(
        kind.type,
        min(lengths),
        bytes(buffer) + bytes(16),
        np.array(starts),
        None if here.all() else here,
    )

    array, unrepresentable = binary_column(kind.type, column(sent))
    if len(lengths) == 1 and found is not None:
        assert not unrepresentable
        assert found.type == array.type
        assert plain(found) == plain(array)


@pytest.mark.meets("R23f")
@ANY_KIND
@examples(10)
@given(values=st.lists(st.none() | st.binary(max_size=40)))
def test_no_bytes_raise_anything_but_a_bad_message(kind: Kind, values: list[bytes | None]) -> None:
    with contextlib.suppress(BadMessage):
        array, unrepresentable = binary_column(kind.type, column(values, 2))
        array.validate(full=True)
        assert array.type == kind.type.arrow
        assert array.null_count == values.count(None) + len(unrepresentable)


SIZES = {"int16": 2, "int32": 4, "float32": 4, "boolean": 1, "date": 4, "uuid": 16}
SIZES |= {"timetz": 12, "interval": 16}


@pytest.mark.slow
@ANY_KIND
@examples(10)
@given(data=st.data())
def test_bytes_of_the_right_length_raise_nothing(kind: Kind, data: st.DataObject) -> None:
    if kind.type.kind in ("decimal", "numeric"):
        words = st.lists(st.integers(0, 12_000), max_size=12)
        heads = st.tuples(
            st.integers(-12, 12) | st.integers(-(2**15), 2**15 - 1),
            st.sampled_from([0, 0x4000, 0xC000, 0xD000, 0xF000, 1]),
            st.integers(0, 40) | st.integers(0, 0xFFFF),
        )
        made = st.builds(
            lambda head, body: struct.pack(f">HhHH{len(body)}H", len(body), *head, *body),
            heads,
            words,
        )
    else:
        size = SIZES.get(kind.type.kind, 8)
        made = st.binary(min_size=size, max_size=size)
    values = data.draw(st.lists(st.none() | made, max_size=6))
    array, unrepresentable = binary_column(kind.type, column(values, 1))
    array.validate(full=True)
    assert array.null_count == values.count(None) + len(unrepresentable)


def test_a_length_that_no_value_has_is_a_bad_message_without_the_value() -> None:
    for kind in KINDS:
        if kind.type.kind in ("text", "json", "bytes"):
            continue
        with pytest.raises(BadMessage) as caught:
            binary_column(kind.type, column([b"secret!"]))
        assert "secret" not in str(caught.value)


def test_a_number_that_says_another_length_is_a_bad_message() -> None:
    with pytest.raises(BadMessage):
        binary_column(ValueType("numeric"), column([struct.pack(">HhHHH", 2, 0, 0, 0, 1)]))


@pytest.mark.meets("R23f")
@pytest.mark.parametrize(
    ("type", "raw", "exact"),
    [
        ("decimal(10,2)", struct.pack(">HhHH", 0, 0, 0xC000, 0), "NaN"),
        ("decimal(4,0)", struct.pack(">HhHHH", 1, 1, 0, 0, 1), "10000"),
        ("decimal(3,0)", struct.pack(">HhHHH", 1, 0, 0, 0, 1000), "1000"),
        ("decimal(4,1)", struct.pack(">HhHHHH", 2, 0, 0x4000, 2, 7, 2500), "-7.25"),
        ("numeric", struct.pack(">HhHHH", 1, 0, 0, 0, 10000), "X'00010000000000002710'"),
        ("text", b"caf\xe9", "cast(X'636166E9' as text)"),
        ("json", b"\x01\xe9", "cast(X'E9' as text)"),
        ("boolean", b"\x02", "X'02'"),
        ("time", struct.pack(">q", MICROS_PER_DAY + 1), "X'000000141DD76001'"),
        ("date", struct.pack(">i", 2**31 - 2), "X'7FFFFFFE'"),
        (
            "timestamp",
            struct.pack(">q", 2**63 - 1 - MICROS_TO_2000),
            "294247-01-10 04:00:54.775807",
        ),
        (
            "timestamptz",
            struct.pack(">q", 9_223_371_331_200_000_000 - 500_000),
            "294276-12-31 23:59:59.5+00",
        ),
    ],
)
def test_a_binary_value_that_a_column_cannot_hold_is_kept_exactly(
    type: str, raw: bytes, exact: str
) -> None:
    alone: list[bytes | None] = [raw]
    for values in (alone, [None, raw, None]):
        array, unrepresentable = binary_column(ValueType.parse(type), column(values, 1))
        assert array.null_count == len(values)
        assert unrepresentable == [(values.index(raw), exact)]


def test_an_oid_is_a_whole_number_without_a_sign() -> None:
    array, _ = binary_column(ValueType("int64"), column([b"\xff\xff\xff\xff", None, bytes(4)]))
    assert array.to_pylist() == [2**32 - 1, None, 0]


def test_json_comes_without_a_version_and_jsonb_with_one() -> None:
    array, _ = binary_column(ValueType("json"), column([b"[1]", None, b"\x01[2]"]))
    assert array.to_pylist() == ["[1]", None, "[2]"]
