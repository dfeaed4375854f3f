from __future__ import annotations

import pytest

from headrace.changelog.change import Change, Op, as_segment
from tests.changelog.log_making import At, changes, delete, insert, table, truncate, update


def test_changes_become_the_rows_of_a_segment() -> None:
    schema = table()
    rows = as_segment(schema, [insert(5, 1), update(6, 1), delete(7, 1), truncate(8)])
    assert rows.schema.equals(schema.segment)
    assert rows["_op"].to_pylist() == [0, 1, 2, 3]
    assert rows["_commit"].to_pylist() == [5, 6, 7, 8]
    assert rows["before"].to_pylist() == [
        None,
        {"id": 1, "name": "before"},
        {"id": 1, "name": None},
        None,
    ]
    assert rows["after"].to_pylist() == [
        {"id": 1, "name": "n5"},
        {"id": 1, "name": "n6"},
        None,
        None,
    ]
    assert rows["_exact"].null_count == rows["_unsent"].null_count == 4


def test_no_changes_are_an_empty_segment() -> None:
    rows = as_segment(table(), [])
    assert rows.num_rows == 0
    assert rows.schema.equals(table().segment)


@pytest.mark.meets("R23f")
def test_a_value_that_does_not_fit_is_null_and_its_text_is_kept_by_field_id() -> None:
    change = Change(Op.INSERT, 1, 0, 0, after={"id": "abc", "name": b"\xff"})
    rows = as_segment(table(), [change, insert(2)])
    assert rows["after"][0].as_py() == {"id": None, "name": None}
    assert rows["_exact"].to_pylist() == [[(1, "abc"), (2, "X'FF'")], None]


@pytest.mark.meets("R23f")
def test_the_texts_of_a_before_image_stand_under_negative_field_ids() -> None:
    change = Change(Op.UPDATE, 1, 0, 0, before={"id": "old"}, after={"id": "new"})
    assert as_segment(table(), [change])["_exact"].to_pylist() == [[(-1, "old"), (1, "new")]]


def test_changes_count_their_rows_and_bytes() -> None:
    found = changes([insert(1), insert(2)])
    assert found.row_count == 2
    assert found.byte_count > 0
    assert found.upto == At(2)
