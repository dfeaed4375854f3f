from __future__ import annotations

from collections.abc import Mapping
from random import Random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.changelog.change import Change, Op, as_segment
from headrace.changelog.schema import TableSchema
from headrace.changelog.segment import describe, read_segment, segment_bytes, verify
from headrace.errors import CorruptSegment, UnknownFormat
from headrace.storage.files import Files
from tests.changelog.log_making import delete, files_on, insert, table, truncate, update

KEYS = st.sampled_from([None, 1, 2.5, "a", b"a", "b"])


def stored(files: Files, schema: TableSchema, rows: list[Change]) -> tuple[pa.Table, pa.Buffer]:
    segment = as_segment(schema, rows)
    data = segment_bytes(segment)
    files.put("a.parquet", data)
    return segment, data


@pytest.fixture
def files() -> Files:
    files = files_on()
    files.make_folder("")
    return files


def test_rows_read_back_as_written_with_their_schema(files: Files) -> None:
    schema = table(id="int64", u="uuid", at="timestamptz", v="variant", n="numeric")
    values: Mapping[str, object] = {"id": 1, "v": 2.5, "n": "12.50"}
    rows, data = stored(files, schema, [Change(Op.INSERT, 1, 0, 5, after=values), delete(2, 1)])
    file = describe("a.parquet", "orders", 1, schema, rows, data)
    read = read_segment(files, file, schema)
    assert read.schema.equals(schema.segment, check_metadata=True)
    assert read.equals(rows)


def test_absent_images_and_empty_ones_stay_apart(files: Files) -> None:
    schema = table()
    rows, data = stored(files, schema, [Change(Op.INSERT, 1, 0, 0, after={}), truncate(2)])
    read = read_segment(files, describe("a.parquet", "orders", 1, schema, rows, data), schema)
    assert read["after"].to_pylist() == [{"id": None, "name": None}, None]


@pytest.mark.meets("P8")
def test_a_segment_is_plain_parquet_in_one_row_group_with_a_format_number() -> None:
    data = segment_bytes(as_segment(table(), [insert(n) for n in range(1, 2_000)]))
    read = pq.ParquetFile(pa.BufferReader(data))
    assert read.metadata.num_row_groups == 1
    assert read.metadata.metadata[b"headrace.format"] == b"1"
    column = read.metadata.row_group(0).column(1)
    assert column.compression == "UNCOMPRESSED"
    assert column.statistics is None
    assert "DICTIONARY" not in str(column.encodings)


def test_the_index_is_told_what_a_segment_holds() -> None:
    schema = table()
    changes = [insert(1), insert(2), update(3, 1), update(4, 9, old=1), delete(5, 2), truncate(6)]
    rows = as_segment(schema, changes)
    data = segment_bytes(rows)
    file = describe("a.parquet", "orders", 7, schema, rows, data)
    assert (file.rows, file.bytes, file.schema) == (6, data.size, 7)
    assert (file.inserts, file.updates, file.deletes, file.truncates) == (2, 2, 1, 1)
    assert file.key_changes == 1
    assert file.checksum.startswith("xxh3:")


@given(st.lists(st.tuples(KEYS, KEYS, st.booleans()), max_size=12))
def test_key_changes_are_those_whose_key_differs(pairs: list[tuple[object, object, bool]]) -> None:
    schema = table(k="variant", name="text")
    rows = [
        Change(
            Op.UPDATE,
            at,
            0,
            0,
            before={"k": old, "name": "x"} if seen else None,
            after={"k": new, "name": "y"},
        )
        for at, (old, new, seen) in enumerate(pairs, 1)
    ]
    segment = as_segment(schema, rows)
    file = describe("a", "t", 1, schema, segment, segment_bytes(segment))
    assert file.key_changes == sum(old != new and seen for old, new, seen in pairs)


def test_a_table_without_a_key_has_no_key_changes() -> None:
    schema = TableSchema("t", table().columns)
    rows = as_segment(schema, [update(1, 1, old=2)])
    assert describe("a", "t", 1, schema, rows, segment_bytes(rows)).key_changes == 0


def test_a_key_column_may_have_a_dot_in_its_name() -> None:
    schema = table(**{"a.b": "int64"})
    change = Change(Op.UPDATE, 1, 0, 0, before={"a.b": 1}, after={"a.b": 2})
    rows = as_segment(schema, [change])
    assert describe("a", "t", 1, schema, rows, segment_bytes(rows)).key_changes == 1


@pytest.mark.meets("P7")
def test_a_changed_byte_is_found_wherever_it_is(files: Files) -> None:
    schema = table()
    rows, data = stored(files, schema, [insert(1)])
    file = describe("a.parquet", "orders", 1, schema, rows, data)
    verify(files, file)
    dice = Random(5)
    for _ in range(50):
        damaged = bytearray(data)
        damaged[dice.randrange(len(damaged))] ^= dice.randrange(1, 256)
        files.put("a.parquet", damaged)
        for look in (lambda: verify(files, file), lambda: read_segment(files, file, schema)):
            with pytest.raises(CorruptSegment) as caught:
                look()
            assert caught.value.facts == {"file": files.path("a.parquet")}


@pytest.mark.meets("P7")
def test_a_truncated_segment_is_reported_by_name(files: Files) -> None:
    schema = table()
    rows, data = stored(files, schema, [insert(1)])
    files.put("a.parquet", bytes(data)[:-1])
    with pytest.raises(CorruptSegment) as caught:
        verify(files, describe("a.parquet", "orders", 1, schema, rows, data))
    assert caught.value.facts["file"] == files.path("a.parquet")
    assert caught.value.facts["size"] == data.size - 1


@pytest.mark.meets("P7")
def test_a_missing_segment_is_reported_by_name(files: Files) -> None:
    schema = table()
    rows, data = stored(files, schema, [insert(1)])
    files.remove("a.parquet")
    with pytest.raises(CorruptSegment) as caught:
        verify(files, describe("a.parquet", "orders", 1, schema, rows, data))
    assert caught.value.facts["file"] == files.path("a.parquet")


@pytest.mark.meets("P8")
def test_a_segment_of_another_format_is_refused_by_name(files: Files) -> None:
    schema = table()
    rows = as_segment(schema, [insert(1)])
    stream = pa.BufferOutputStream()
    with pq.ParquetWriter(stream, rows.schema) as writer:
        writer.add_key_value_metadata({b"headrace.format": b"2"})
        writer.write_table(rows)
    data = stream.getvalue()
    files.put("a.parquet", data)
    with pytest.raises(UnknownFormat) as caught:
        read_segment(files, describe("a.parquet", "orders", 1, schema, rows, data), schema)
    assert caught.value.facts == {"file": files.path("a.parquet"), "format": "2"}
