"""The bytes of a key: stored in dead letters, and therefore a format."""

from __future__ import annotations

from datetime import UTC, date, datetime, time
from decimal import Decimal
from uuid import UUID

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.changelog.change import Change, as_segment
from headrace.changelog.schema import TableSchema
from headrace.changelog.values import BeyondDate, Interval, OffsetTime, ValueType
from headrace.deadletters.keys import packed_keys
from headrace.errors import RowFailed
from headrace.tables.keys import Codec
from tests.changelog.test_value_table import FITTING
from tests.pipeline.making import delete, insert, table, truncate, update
from tests.support.tiers import examples


def keyed(*kinds: str) -> TableSchema:
    """A table whose columns are all its key."""
    names = [f"k{at}" for at in range(len(kinds))]
    return table(*zip(names, kinds, strict=True), key=names)


def packed(schema: TableSchema, *values: object) -> bytes:
    row = dict(zip(schema.names, values, strict=True))
    found = packed_keys(as_segment(schema, [insert(1, row)]), schema).new[0].as_py()
    assert isinstance(found, bytes)
    return found


@pytest.mark.meets("R30")
@pytest.mark.parametrize(
    ("kind", "value", "stored"),
    [
        ("int16", 1, "01 0100000000000000"),
        ("int32", -1, "01 ffffffffffffffff"),
        ("int64", 258, "01 0201000000000000"),
        ("boolean", True, "01 0100000000000000"),
        ("float32", 0.5, "02 000000000000e03f"),
        ("float64", -0.0, "02 0000000000000000"),
        ("float64", float("nan"), "02 000000000000f87f"),
        ("decimal(12,2)", Decimal("-1.50"), "05 06000000 2d3135652d31"),
        ("decimal(38,0)", Decimal(100), "05 03000000 316532"),
        ("numeric", Decimal("1.5"), "05 05000000 3135652d31"),
        ("numeric", Decimal("0.00"), "05 03000000 306530"),
        ("numeric", Decimal("-Infinity"), "05 09000000 2d496e66696e697479"),
        ("text", "aé", "03 03000000 61c3a9"),
        ("text", "", "03 00000000"),
        ("json", "{}", "03 02000000 7b7d"),
        ("bytes", b"\0", "04 01000000 00"),
        ("text_bytes", b"a", "04 01000000 61"),
        ("uuid", UUID(int=1), "04 10000000 00000000000000000000000000000001"),
        ("date", date(1970, 1, 2), "01 0100000000000000"),
        ("date", BeyondDate(-(2**31)), "01 00000080ffffffff"),
        ("timestamp", datetime(1970, 1, 1, 0, 0, 1), "01 40420f0000000000"),
        ("timestamptz", datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC), "01 40420f0000000000"),
        ("time", time(0, 0, 1), "01 40420f0000000000"),
        ("timetz", OffsetTime(1, -1), "07 10000000 0100000000000000 ffffffffffffffff"),
        ("interval", Interval(1, 0, 3), "07 18000000 01" + "00" * 15 + "03" + "00" * 7),
        ("variant", 1, "01 0100000000000000"),
        ("variant", 1.0, "01 0100000000000000"),
        ("variant", 0.5, "02 000000000000e03f"),
        ("variant", "a", "03 01000000 61"),
        ("variant", b"a", "04 01000000 61"),
        ("int64", None, "00"),
        ("text", None, "00"),
        ("variant", None, "00"),
        ("numeric", None, "00"),
        ("int64", "12", "06 04000000 27313227"),
    ],
)  # fmt: skip
def test_the_bytes_of_a_key_stay_as_they_were_once_stored(
    kind: str, value: object, stored: str
) -> None:
    assert packed(keyed(kind), value) == bytes.fromhex(stored.replace(" ", ""))


def test_a_key_of_several_columns_is_their_bytes_in_the_keys_order() -> None:
    schema = table(("a", "text"), ("b", "int16"), key=("b", "a"))
    assert packed(schema, "x", 7) == packed(keyed("int16"), 7) + packed(keyed("text"), "x")


def test_a_list_that_an_expression_made_has_a_key_too() -> None:
    kind = str(ValueType.of_arrow(pa.list_(pa.int8())))
    assert packed(keyed(kind), [1, 2]) == b"\x08\x06\0\0\0[1, 2]"


@pytest.mark.meets("R30")
@pytest.mark.parametrize("kind", sorted(FITTING))
@examples(30)
@given(data=st.data())
def test_two_keys_have_the_same_bytes_if_a_target_takes_them_for_one_row(
    kind: str, data: st.DataObject
) -> None:
    values = data.draw(st.lists(FITTING[kind], min_size=2, max_size=6))
    schema = keyed(kind)
    codec = Codec(schema.columns)
    rows = as_segment(schema, [insert(at, {"k0": value}) for at, value in enumerate(values)])
    ours = packed_keys(rows, schema).new.to_pylist()
    theirs = codec.pack_arrays([rows["after"].combine_chunks().field(0)]).to_pylist()
    for at in range(len(values)):
        for other in range(at):
            assert (ours[at] == ours[other]) == (theirs[at] == theirs[other]), values


@pytest.mark.meets("R30")
@given(
    st.lists(st.tuples(*[st.none() | st.text("a\0\x03", max_size=3)] * 3), min_size=2, max_size=8)
)
def test_no_two_keys_of_several_texts_run_into_one(values: list[tuple[object, ...]]) -> None:
    schema = keyed("text", "text", "text")
    assert len({packed(schema, *each) for each in values}) == len(set(values))


def test_each_image_has_its_key_and_a_missing_one_has_none() -> None:
    schema = table(("id", "int64"), ("v", "text"))
    changes = [insert(1, {"id": 1}), update(2, {"id": 1}, {"id": 2}), delete(3, {"id": 2})]
    keys = packed_keys(as_segment(schema, [*changes, truncate(4)]), schema)
    one, two = (packed(keyed("int64"), number) for number in (1, 2))
    assert keys.old.to_pylist() == [None, one, two, None]
    assert keys.new.to_pylist() == [one, two, None, None]


def test_a_table_without_a_key_is_known_by_its_whole_rows() -> None:
    schema = table(("a", "int64"), ("b", "text"), key=())
    assert packed(schema, 1, "x") == packed(keyed("int64", "text"), 1, "x")


def test_a_column_with_a_dot_in_its_name_can_be_a_key() -> None:
    schema = table(("a.b", "int64"), ("a", "int64"), key=("a.b",))
    rows = as_segment(schema, [insert(1, {"a.b": 7, "a": 1})])
    assert packed_keys(rows, schema).new.to_pylist() == [packed(keyed("int64"), 7)]


@pytest.mark.meets("R23f")
def test_a_key_that_its_column_could_not_hold_is_known_by_its_exact_text() -> None:
    schema = table(("id", "int64"))
    rows = as_segment(
        schema,
        [
            update(1, {"id": "x"}, {"id": "y"}),
            update(2, {"id": 5}, {"id": "x"}),
            insert(3, {"id": 5}),
        ],
    )
    keys = packed_keys(rows, schema)
    assert keys.old[0] == keys.new[1]
    assert keys.old[0] != keys.new[0]
    assert keys.old[1] == keys.new[2]


def unsent(schema: TableSchema, *changes: Change) -> pa.Table:
    """Changes whose first column was not sent after the change."""
    rows = as_segment(schema, changes)
    at = rows.schema.get_field_index("_unsent")
    marks = pa.array([[1]] * len(changes), rows.schema.field(at).type)
    return rows.set_column(at, rows.schema.field(at), marks)


def test_a_key_that_was_not_sent_is_the_one_before() -> None:
    schema = table(("id", "text"), ("v", "text"))
    keys = packed_keys(unsent(schema, update(1, {"id": "a"}, {"v": "x"})), schema)
    assert keys.new[0] == keys.old[0] == pa.scalar(packed(keyed("text"), "a"))


@pytest.mark.meets("R30")
def test_a_key_that_nobody_can_tell_stops_the_pipeline() -> None:
    schema = table(("id", "text"), ("v", "text"))
    with pytest.raises(RowFailed) as caught:
        packed_keys(unsent(schema, update(1, None, {"v": "secret"})), schema)
    assert "secret" not in str(caught.value)


def test_rows_in_several_pieces_and_slices_have_the_same_keys() -> None:
    schema = keyed("text", "int32")
    rows = as_segment(schema, [insert(at, {"k0": f"x{at}", "k1": at}) for at in range(9)])
    pieces = pa.concat_tables([rows.slice(0, 4), rows.slice(4, 5)])
    whole = packed_keys(rows, schema).new
    assert packed_keys(pieces, schema).new.equals(whole)
    assert packed_keys(rows.slice(3, 2), schema).new.equals(whole.slice(3, 2))
