"""What a change of columns means for rows that are recorded."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.changelog.schema import Column, TableSchema, differences, keeps_rows
from headrace.changelog.values import ValueType

pytestmark = pytest.mark.meets("R23b")

ID = Column("id", ValueType("int64"), 1)
NOTE = Column("note", ValueType("text"), 2, declared="character varying(10)")
OLD = TableSchema("orders", (ID, NOTE), ("id",))


def now(*columns: Column, key: tuple[str, ...] = ("id",)) -> TableSchema:
    return TableSchema("orders", columns, key)


@pytest.mark.parametrize(
    ("new", "told", "kept"),
    [
        (OLD, [], True),
        (now(ID, NOTE, Column("more", ValueType("text"), 3)), ["more added"], True),
        (
            now(ID, NOTE, Column("more", ValueType("text"), 3, missing="x")),
            ["more added"],
            True,
        ),
        (
            now(ID, NOTE, Column("more", ValueType("text"), 3, rewritten=True)),
            ["more added"],
            False,
        ),
        (now(ID), ["note dropped"], True),
        (now(ID, replace(NOTE, name="remark")), ["note renamed to remark"], True),
        (
            now(ID, replace(NOTE, declared="text")),
            ["note retyped to text"],
            False,
        ),
        (now(ID, replace(NOTE, field=3)), ["note dropped", "note added"], False),
        (
            now(replace(ID, type=ValueType("int32")), NOTE),
            ["id retyped to int32"],
            False,
        ),
        (now(ID, NOTE, key=("note",)), ["id key to note"], False),
    ],
)
def test_what_changed_is_told_and_whether_rows_are_still_right(
    new: TableSchema, told: list[str], kept: bool
) -> None:
    assert [str(each) for each in differences(OLD, new)] == told
    assert keeps_rows(OLD, new) is kept


columns = st.builds(
    Column,
    name=st.sampled_from("abc"),
    type=st.sampled_from([ValueType("int64"), ValueType("text")]),
    field=st.integers(2, 5),
    rewritten=st.booleans(),
)
schemas = st.lists(
    columns, max_size=3, unique_by=(lambda column: column.name, lambda column: column.field)
).map(lambda made: TableSchema("orders", (ID, *made), ("id",)))


@given(schemas, schemas)
def test_nothing_is_different_only_between_equal_columns(
    one: TableSchema, other: TableSchema
) -> None:
    if not differences(one, other):
        assert {(c.field, c.name, c.type) for c in one.columns} == {
            (c.field, c.name, c.type) for c in other.columns
        }
        assert keeps_rows(one, other)


@given(schemas, schemas)
def test_where_rows_are_kept_every_value_is_found_by_its_columns_id(
    one: TableSchema, other: TableSchema
) -> None:
    if not keeps_rows(one, other):
        return
    before = {column.field: column for column in one.columns}
    for column in other.columns:
        known = before.get(column.field)
        assert (known is None and not column.rewritten) or (
            known is not None and known.type == column.type
        )
