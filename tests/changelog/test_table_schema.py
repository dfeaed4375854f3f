from __future__ import annotations

import pyarrow as pa
import pytest

from headrace.changelog.schema import Column, TableSchema
from headrace.changelog.values import ValueType
from headrace.errors import BadSchema
from tests.changelog.log_making import table


def test_a_segment_has_our_columns_and_two_images() -> None:
    schema = table(id="int64", at="timestamptz")
    assert schema.segment.names == [
        *["_op", "_commit", "_ordinal", "_xid", "_time", "_unsent", "_exact"],
        *["before", "after"],
    ]
    image = pa.struct([("id", pa.int64()), ("at", pa.timestamp("us", "UTC"))])
    assert schema.segment.field("before").type == schema.segment.field("after").type == image


def test_a_column_may_have_one_of_our_names() -> None:
    schema = table(_op="int64", before="text", after="text")
    assert schema.names == ("_op", "before", "after")
    assert schema.column("before").field == 2


def test_marks_stand_on_the_fields_of_both_images() -> None:
    schema = table(id="uuid")
    assert schema.arrow.field("id").metadata == {b"headrace": b"uuid"}
    assert schema.segment.field("after").type.field("id").metadata == {b"headrace": b"uuid"}


def test_an_unknown_column_is_a_key_error() -> None:
    with pytest.raises(KeyError):
        table().column("none")


@pytest.mark.parametrize(
    ("names", "key"), [([], ()), (["a", "a"], ()), (["a"], ("b",)), (["a"], ("a", "c"))]
)
def test_a_schema_that_cannot_be_is_refused(names: list[str], key: tuple[str, ...]) -> None:
    columns = tuple(Column(name, ValueType("text"), at) for at, name in enumerate(names))
    with pytest.raises(BadSchema):
        TableSchema("orders", columns, key)


def test_schemas_are_equal_by_what_they_say() -> None:
    assert table() == table()
    assert hash(table()) == hash(table())
    assert table() != table(id="int64", name="json")
