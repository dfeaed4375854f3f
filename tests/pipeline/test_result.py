from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.pipeline.result import arranged, result_schema
from tests.pipeline.making import table

PAIRS = table(("id", "int64"), ("v", "text"))
INSERT, UPDATE, DELETE, TRUNCATE = 0, 1, 2, 3

Raw = tuple[int, int, int, int | None, str | None]


def made(rows: Sequence[Raw]) -> pa.Table:
    full = [(op, commit, ordinal, 0, id, v) for op, commit, ordinal, id, v in rows]
    columns: list[Any] = list(zip(*full, strict=True)) if rows else [[]] * 6
    types = [field.type for field in result_schema(PAIRS)]
    return pa.table(
        [pa.array(column, type) for column, type in zip(columns, types, strict=True)],
        names=[str(at) for at in range(6)],
    )


def listed(rows: pa.Table) -> list[Raw]:
    columns = [rows.column(at).to_pylist() for at in (0, 1, 2, 4, 5)]
    return list(zip(*columns, strict=True))


positions = st.tuples(st.integers(1, 5), st.integers(0, 3))


@pytest.mark.meets("S1")
@given(st.lists(positions, unique=True), st.integers(0, 5))
def test_rows_come_in_position_order_however_spark_gave_them(
    places: list[tuple[int, int]], cut: int
) -> None:
    rows = [(INSERT, commit, ordinal, commit, "x") for commit, ordinal in places]
    found, truncate = arranged([made(rows[:cut]), made(rows[cut:])], PAIRS)
    assert [(commit, ordinal) for _, commit, ordinal, *_ in listed(found)] == sorted(places)
    assert truncate is None


def test_rows_in_order_are_not_copied() -> None:
    rows = made([(INSERT, 1, 0, 1, "a"), (INSERT, 1, 1, 2, "b")])
    found, _ = arranged([rows], PAIRS)
    assert (
        found.column(5).chunk(0).buffers()[1].address
        == rows.column(5).chunk(0).buffers()[1].address
    )


@pytest.mark.meets("R23d")
@given(
    st.lists(st.tuples(positions, st.sampled_from([INSERT, TRUNCATE])), unique_by=lambda r: r[0])
)
def test_rows_up_to_the_last_truncate_are_left_out(
    changes: list[tuple[tuple[int, int], int]],
) -> None:
    raw = [
        (op, commit, ordinal, None if op == TRUNCATE else 1, None)
        for (commit, ordinal), op in changes
    ]
    found, truncate = arranged([made(raw)], PAIRS)
    truncates = [place for place, op in changes if op == TRUNCATE]
    assert truncate == (max(truncates) if truncates else None)
    expected = sorted(
        place for place, op in changes if op == INSERT and place > max(truncates, default=(0, 0))
    )
    assert [(commit, ordinal) for _, commit, ordinal, *_ in listed(found)] == expected


@pytest.mark.meets("R23")
@given(st.lists(st.booleans(), min_size=1))
def test_a_changed_key_is_a_delete_of_the_old_one_and_then_the_row(moved: list[bool]) -> None:
    rows = made([(UPDATE, at, 0, 100 + at, "v") for at in range(1, len(moved) + 1)])
    rows = rows.append_column("6", pa.array(moved, pa.bool_()))
    rows = rows.append_column("7", pa.array(range(1, len(moved) + 1), pa.int64()))
    found, _ = arranged([rows], PAIRS)
    assert found.schema == result_schema(PAIRS)
    for (_, commit, _, _, _), group in groupby(listed(found), key=lambda row: (0, row[1], 0, 0, 0)):
        row = (UPDATE, commit, 0, 100 + commit, "v")
        gone = (DELETE, commit, 0, commit, None)
        assert list(group) == ([gone, row] if moved[commit - 1] else [row])


def test_a_delete_holds_its_key_and_nothing_else() -> None:
    rows = made([(DELETE, 1, 0, 1, "left the filter"), (INSERT, 2, 0, 2, "b")])
    found, _ = arranged([rows], PAIRS)
    assert listed(found) == [(DELETE, 1, 0, 1, None), (INSERT, 2, 0, 2, "b")]


def test_a_batch_of_which_nothing_passes_has_the_columns_of_the_result() -> None:
    found, truncate = arranged([made([])], PAIRS)
    assert (found.num_rows, found.schema, truncate) == (0, result_schema(PAIRS), None)


@pytest.mark.meets("R23d")
def test_for_who_keeps_every_change_truncates_are_rows_in_their_place() -> None:
    raw = [
        (INSERT, 1, 0, 1, "a"),
        (TRUNCATE, 2, 0, 7, "a step gave it a value"),
        (DELETE, 3, 0, 1, "b"),
        (TRUNCATE, 3, 1, None, None),
        (INSERT, 4, 0, 2, "c"),
    ]
    found, truncate = arranged([made(raw)], PAIRS, every_change=True)
    assert truncate == (3, 1)
    assert listed(found) == [
        (INSERT, 1, 0, 1, "a"),
        (TRUNCATE, 2, 0, None, None),
        (DELETE, 3, 0, 1, None),
        (TRUNCATE, 3, 1, None, None),
        (INSERT, 4, 0, 2, "c"),
    ]
