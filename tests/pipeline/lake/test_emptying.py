"""Tables that keep what was, and are emptied in the middle of a batch."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.changelog.change import Op
from headrace.changelog.position import Position
from headrace.lake.parts import Receipt, _changes_part
from headrace.lake.rows import (
    Truncation,
    appended_rows,
    begins,
    change_rows,
    emptyings,
    ended,
    history_rows,
    shaped,
    since_emptied,
    versions,
)
from headrace.pipeline.failed_rows import Workspace
from headrace.pipeline.result import result_schema
from headrace.testing.source import THINGS

NOW = datetime(2024, 1, 1, tzinfo=UTC)
HISTORY, APPEND = shaped("history", THINGS, None), shaped("append", THINGS, None)

Change = tuple[Op, int, int, int, str | None]
"""Operation, commit, ordinal, key and name."""


def made(changes: Sequence[Change]) -> pa.Table:
    columns: list[list[Any]] = [
        [int(op) for op, *_ in changes],
        [commit for _, commit, *_ in changes],
        [ordinal for _, _, ordinal, *_ in changes],
        [commit for _, commit, *_ in changes],
        [None if op is Op.TRUNCATE else key for op, _, _, key, _ in changes],
        [name for *_, name in changes],
    ]
    schema = result_schema(THINGS)
    return pa.table(
        [pa.array(each, field.type) for each, field in zip(columns, schema, strict=True)],
        schema=schema,
    )


def position(commit: int, ordinal: int) -> str:
    return str(Position(1, commit, ordinal))


Version = tuple[int, str | None, str, str | None]
"""Key, name, and where it began and ended."""


def merged(
    before: dict[int, str], made_rows: list[dict[str, Any]], first: Truncation | None
) -> list[Version]:
    """Do what `merge_history` says to a history of these rows."""
    found: list[Version] = []
    ends = {row["k0"]: row["c5"] for row in made_rows if not row["added"]}
    assert len(ends) == sum(not row["added"] for row in made_rows)
    for key, name in before.items():
        end = ends.get(key) or (first.for_history(1)[1] if first else None)
        found.append((key, name, "", end))
    return found + [
        (row["c0"], row["c1"], row["c4"], row["c5"]) for row in made_rows if row["added"]
    ]


def expected(before: dict[int, str], changes: Sequence[Change]) -> list[Version]:
    """Go through the changes one by one; a commit leaves the last row of each key."""
    found: list[Version] = []
    there: dict[int, tuple[str | None, str]] = {key: (name, "") for key, name in before.items()}

    def end(key: int, at: str) -> None:
        if key in there:
            name, began = there.pop(key)
            if began[:-9] != at[:-9]:
                found.append((key, name, began, at))

    for op, commit, ordinal, key, name in changes:
        at = position(commit, ordinal)
        match op:
            case Op.TRUNCATE:
                for each in list(there):
                    end(each, at)
            case Op.DELETE:
                end(key, at)
            case _:
                end(key, at)
                there[key] = (name, at)
    return found + [(key, name, began, None) for key, (name, began) in there.items()]


@st.composite
def batches(draw: st.DrawFn) -> list[Change]:
    ops = st.sampled_from([Op.INSERT, Op.UPDATE, Op.DELETE, Op.TRUNCATE])
    drawn = draw(st.lists(st.tuples(st.integers(2, 6), st.integers(0, 3)), unique=True))
    return [
        (op, *at, draw(st.integers(1, 4)), None if op >= Op.DELETE else f"at {at}")
        for at in sorted(drawn)
        for op in [draw(ops)]
    ]


def ends_by_commit(rows: list[Version]) -> list[Version]:
    """Return the rows without the position inside a commit at which they ended."""
    return sorted(((key, name, began, end and end[:-9]) for key, name, began, end in rows), key=str)


@pytest.mark.meets("R23d")
@given(batches())
def test_a_history_has_what_was_there_before_a_truncate(changes: list[Change]) -> None:
    before = {1: "one", 2: "two", 9: "nine"}
    rows = made(changes)
    found = emptyings(rows, None, NOW)
    kept = versions(ended(rows, THINGS, THINGS.key, found), THINGS, THINGS.key)
    first = found[0] if found else None
    made_rows = history_rows(
        kept, HISTORY, 1, emptied=first.reference if first else None
    ).to_pylist()
    assert ends_by_commit(merged(before, made_rows, first)) == ends_by_commit(
        expected(before, changes)
    )


@pytest.mark.meets("R23d")
def test_executors_keep_what_was_there_before_a_truncate(tmp_path: Path) -> None:
    changes: list[Change] = [
        (Op.UPDATE, 2, 0, 1, "uno"),
        (Op.INSERT, 2, 1, 3, "three"),
        (Op.TRUNCATE, 3, 0, 0, None),
        (Op.INSERT, 4, 0, 2, "again"),
        (Op.INSERT, 4, 1, 3, "again"),
        (Op.TRUNCATE, 5, 0, 0, None),
        (Op.INSERT, 6, 0, 3, "last"),
    ]
    before = {1: "one", 2: "two", 9: "nine"}
    found = emptyings(made(changes), None, NOW)
    made_rows = []
    for key in (1, 2, 3):
        # A task has the changes of some keys, and knows of every truncate.
        part = made([each for each in changes if each[3] == key])
        for batch in _changes_part(HISTORY, Workspace(str(tmp_path)), 1, found, part.to_batches()):
            receipt = msgspec.json.decode(batch.column(0)[0].as_py(), type=Receipt)
            made_rows += pq.read_table(receipt.path).to_pylist()
    assert sorted(merged(before, made_rows, found[0]), key=str) == sorted(
        expected(before, changes), key=str
    )


@pytest.mark.meets("R23d")
def test_changes_before_a_truncate_are_told_and_it_stands_in_its_place() -> None:
    rows = made(
        [
            (Op.INSERT, 2, 0, 1, "a"),
            (Op.TRUNCATE, 3, 0, 0, "a step gave it a value"),
            (Op.INSERT, 4, 0, 2, "b"),
        ]
    )
    made_rows = appended_rows(rows, APPEND, 1, Position(1, 3), NOW)
    assert made_rows.equals(change_rows(rows, APPEND, 1))
    assert [(row["c2"], row["c0"], row["c1"]) for row in made_rows.to_pylist()] == [
        ("insert", 1, "a"),
        ("truncate", None, None),
        ("insert", 2, "b"),
    ]
    assert since_emptied(rows).column(1).to_pylist() == [4]


def test_a_truncate_that_no_row_tells_of_is_told_with_a_time() -> None:
    rows = made([(Op.INSERT, 4, 0, 2, "b")])
    made_rows = appended_rows(rows, APPEND, 1, Position(1, 3), NOW).to_pylist()
    assert (made_rows[0]["c2"], made_rows[0]["c4"]) == ("truncate", NOW)
    assert emptyings(rows, Position(1, 3), NOW) == (
        Truncation((3, 0), round(NOW.timestamp() * 1_000_000)),
    )


POSITIONS = st.builds(Position, st.just(1), st.integers(1, 9), st.integers(0, 5))


@given(POSITIONS, st.one_of(st.none(), POSITIONS))
def test_a_baseline_is_told_where_no_change_is(at: Position, first: Position | None) -> None:
    emptied, begins_at = begins(first, at)
    assert str(emptied) < str(begins_at)
    if first is None:
        assert str(at) < str(emptied)
        assert str(begins_at) < str(Position(1, at.commit + 1))
    else:
        assert str(begins_at) < str(Position(1, first.commit))
        assert all(
            str(Position(1, first.commit - 1, int(ordinal))) < str(emptied)
            for ordinal in np.arange(6)
        )
