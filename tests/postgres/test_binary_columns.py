"""A copy's binary values as columns: the same as the stream's texts of them."""

from __future__ import annotations

import contextlib
import struct
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.capture.postgres.binary import binary_column, fixed_column
from headrace.capture.postgres.cells import CHUNK
from headrace.changelog.beyond import MICROS_PER_DAY
from headrace.changelog.values import ValueType
from headrace.errors import BadMessage, BadSchema
from tests.postgres.typed_values import KINDS, MICROS_TO_2000, Kind, column, plain

MANY = CHUNK // 4 + 1
FEW = 40
"""Examples a kind: there are many kinds."""


def binaries(kind: Kind, values: list[Any], before: int = 0) -> pa.Array:
    return column([None if v is None else kind.binary(v) for v in values], before)


@pytest.mark.meets("S6", "R18", "R23f")
@pytest.mark.parametrize("kind", KINDS, ids=repr)
@settings(max_examples=FEW)
@given(st.data())
def test_a_binary_value_becomes_what_its_value_becomes(kind: Kind, data: st.DataObject) -> None:
    values = data.draw(st.lists(st.none() | kind.values, max_size=12))
    array, misfits = binary_column(kind.type, binaries(kind, values, data.draw(st.integers(0, 3))))
    expected, expected_misfits = kind.type.to_arrow(values)
    assert plain(array) == plain(expected)
    assert misfits == expected_misfits


@pytest.mark.meets("S6", "R18", "R23f")
@pytest.mark.parametrize("kind", KINDS, ids=repr)
@settings(max_examples=FEW)
@given(st.data())
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

    array, misfits = binary_column(kind.type, column(sent))
    if len(lengths) == 1 and found is not None:
        assert not misfits
        assert found.type == array.type
        assert plain(found) == plain(array)


@pytest.mark.parametrize("kind", KINDS, ids=repr)
@settings(max_examples=3)
@given(data=st.data())
def test_columns_longer_than_a_chunk_read_the_same(kind: Kind, data: st.DataObject) -> None:
    short = kind.values.filter(lambda v: len(kind.binary(v)) < 99 and len(kind.text(v)) < 99)
    values = data.draw(st.lists(st.none() | short, min_size=4, max_size=5))
    few, _ = binary_column(kind.type, binaries(kind, values))
    many, _ = binary_column(kind.type, binaries(kind, values * MANY))
    assert plain(many.slice(len(many) - len(values))) == plain(few)


@pytest.mark.meets("R23f")
@pytest.mark.parametrize("kind", KINDS, ids=repr)
@settings(max_examples=FEW)
@given(values=st.lists(st.none() | st.binary(max_size=40)))
def test_no_bytes_raise_anything_but_a_bad_message(kind: Kind, values: list[bytes | None]) -> None:
    with contextlib.suppress(BadMessage):
        array, misfits = binary_column(kind.type, column(values, 2))
        array.validate(full=True)
        assert array.type == kind.type.arrow
        assert array.null_count == values.count(None) + len(misfits)


SIZES = {"int16": 2, "int32": 4, "float32": 4, "boolean": 1, "date": 4, "uuid": 16}
SIZES |= {"timetz": 12, "interval": 16}


@pytest.mark.parametrize("kind", KINDS, ids=repr)
@settings(max_examples=FEW)
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
    array, misfits = binary_column(kind.type, column(values, 1))
    array.validate(full=True)
    assert array.null_count == values.count(None) + len(misfits)


@pytest.mark.parametrize("kind", KINDS, ids=repr)
def test_a_length_that_no_value_has_is_a_bad_message_without_the_value(kind: Kind) -> None:
    if kind.type.kind in ("text", "json", "bytes"):
        return
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
def test_what_a_column_cannot_hold_keeps_its_exact_text(type: str, raw: bytes, exact: str) -> None:
    alone: list[bytes | None] = [raw]
    for values in (alone, [None, raw, None]):
        array, misfits = binary_column(ValueType.parse(type), column(values, 1))
        assert array.null_count == len(values)
        assert misfits == [(values.index(raw), exact)]


def test_an_oid_is_a_whole_number_without_a_sign() -> None:
    array, _ = binary_column(ValueType("int64"), column([b"\xff\xff\xff\xff", None, bytes(4)]))
    assert array.to_pylist() == [2**32 - 1, None, 0]


def test_json_comes_without_a_version_and_jsonb_with_one() -> None:
    array, _ = binary_column(ValueType("json"), column([b"[1]", None, b"\x01[2]"]))
    assert array.to_pylist() == ["[1]", None, "[2]"]


def test_a_kind_that_no_server_has_is_refused() -> None:
    with pytest.raises(BadSchema):
        binary_column(ValueType("variant"), column([]))
