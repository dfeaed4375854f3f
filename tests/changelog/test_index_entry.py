from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.changelog.entries import (
    AnyEntry,
    Baseline,
    File,
    Flush,
    Gap,
    Heartbeat,
    Schema,
    SchemaColumn,
    decode,
    encode,
)
from headrace.changelog.position import Position
from headrace.errors import CorruptIndex, UnknownFormat

AT = str(Position(1, 7, 3))
FILE = File("000000000003-1-1.parquet", "orders", 1, 2, 100, "xxh3:0123456789abcdef", inserts=2)
FLUSH = Flush(
    entry=3,
    writer="w",
    term=1,
    epoch=1,
    first=AT,
    last=AT,
    source="7",
    begun=5,
    time=1,
    high_time=2,
    files=(FILE,),
)
ENTRIES: list[AnyEntry] = [
    FLUSH,
    Baseline(
        entry=4,
        writer="w",
        term=1,
        epoch=1,
        table="orders",
        baseline=1,
        first=AT,
        last=AT,
        rows=2,
        files=(FILE,),
    ),
    Gap(
        entry=1,
        writer="w",
        term=1,
        epoch=1,
        lineage="sqlite/ä",
        source="0",
        at=AT,
        reason="start",
        origin="sqlite:/x",
    ),
    Heartbeat(entry=5, writer="w", term=1, epoch=1, last=AT, source="9"),
    Schema(
        entry=2,
        writer="w",
        term=1,
        epoch=1,
        table="orders",
        table_id=1,
        schema_id=1,
        columns=(SchemaColumn("id", "int64", 1, nullable=False, declared="INTEGER"),),
        key=("id",),
    ),
]


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: type(entry).__name__)
def test_an_entry_reads_back_as_it_was(entry: AnyEntry) -> None:
    assert decode(encode(entry)) == entry


@pytest.mark.meets("P8")
@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: type(entry).__name__)
def test_an_entry_is_json_with_its_kind_and_a_format_number(entry: AnyEntry) -> None:
    read = json.loads(encode(entry))
    assert read["format"] == 1
    assert read["kind"] == type(entry).__name__.lower()


@pytest.mark.meets("P8")
@pytest.mark.parametrize("number", ["2", '"1"', "1.0", "null"])
def test_another_format_is_refused_by_its_number(number: str) -> None:
    data = encode(FLUSH).replace(b'"format":1}', f'"format":{number}}}'.encode())
    with pytest.raises(UnknownFormat) as caught:
        decode(data)
    assert caught.value.facts == {"format": number}


def test_an_entry_without_a_format_is_refused() -> None:
    with pytest.raises(UnknownFormat):
        decode(b'{"kind":"heartbeat"}')


@pytest.mark.meets("P7")
@given(st.integers(0, len(encode(FLUSH)) - 1), st.integers(1, 255))
def test_no_changed_byte_goes_unnoticed(place: int, change: int) -> None:
    data = bytearray(encode(FLUSH))
    data[place] ^= change
    with pytest.raises((CorruptIndex, UnknownFormat)):
        decode(bytes(data))


@pytest.mark.meets("P7")
@given(st.binary())
def test_nonsense_is_refused(data: bytes) -> None:
    with pytest.raises((CorruptIndex, UnknownFormat)):
        decode(data)


@pytest.mark.parametrize("size", [0, 1, 40, len(encode(FLUSH)) - 1])
def test_a_shortened_entry_is_refused(size: int) -> None:
    with pytest.raises(CorruptIndex):
        decode(encode(FLUSH)[:size])


def test_spans_and_windows_are_positions() -> None:
    flush, baseline = ENTRIES[:2]
    assert isinstance(flush, Flush)
    assert isinstance(baseline, Baseline)
    assert flush.span == baseline.window == (Position(1, 7, 3), Position(1, 7, 3))
