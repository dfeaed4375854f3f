"""Which changes behind F a baseline's rows hold."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.changelog.change import Change, Op, as_segment
from headrace.changelog.entries import Baseline
from headrace.changelog.history import BaselineWindow, TransactionSnapshot
from headrace.changelog.position import Position
from headrace.changelog.schema import Column, TableSchema
from headrace.changelog.values import ValueType

SCHEMA = TableSchema("t", (Column("id", ValueType.parse("int64"), 1),), ("id",))
HIGH = 3 << 32
"""Ids have 64 bits, and running servers are beyond the first 32."""


def baseline(first: int, last: int, snapshot: str) -> Baseline:
    return Baseline(
        entry=1,
        writer="w",
        term=1,
        epoch=1,
        table="t",
        baseline=1,
        first=str(Position(1, first, 2**31 - 1)),
        last=str(Position(1, last)),
        rows=0,
        files=(),
        snapshot=snapshot,
    )


@pytest.mark.meets("R11")
@given(
    first=st.integers(0, 12),
    wide=st.integers(1, 12),
    low=st.integers(0, 20),
    span=st.integers(0, 8),
    running=st.sets(st.integers(0, 7)),
    changes=st.lists(st.tuples(st.integers(1, 30), st.integers(-2, 32) | st.none()), max_size=40),
)
def test_a_change_is_held_where_its_commit_is_in_the_window_and_its_transaction_was_seen(
    first: int,
    wide: int,
    low: int,
    span: int,
    running: set[int],
    changes: list[tuple[int, int | None]],
) -> None:
    xmin, xmax = HIGH + low, HIGH + low + span
    snapshot = TransactionSnapshot(
        xmin, xmax, frozenset(xmin + each for each in running if each < span)
    )
    window = BaselineWindow.of(baseline(first, first + wide, str(snapshot)))
    assert window is not None
    assert window.snapshot == snapshot
    rows = as_segment(
        SCHEMA,
        [
            Change(
                Op.INSERT, commit, 0, 0, after={"id": 1}, xid=None if xid is None else HIGH + xid
            )
            for commit, xid in sorted(changes, key=lambda change: change[0])
        ],
    )
    expected = [
        first < row["_commit"] <= first + wide
        and row["_xid"] is not None
        and snapshot.sees(row["_xid"])
        for row in rows.to_pylist()
    ]
    assert window.held(rows).tolist() == expected


def test_a_baseline_without_a_snapshot_or_without_commits_between_f_and_h_has_no_window() -> None:
    assert BaselineWindow.of(baseline(1, 9, "")) is None
    assert BaselineWindow.of(baseline(9, 9, "5:5:")) is None
    assert BaselineWindow.of(baseline(1, 9, "5:5:")) is not None


def test_a_window_is_of_its_epoch_and_ends_with_h() -> None:
    window = BaselineWindow.of(baseline(1, 9, "5:5:"))
    assert window is not None
    assert window.overlaps(Position(1, 9))
    assert not window.overlaps(Position(1, 10))
    assert not window.overlaps(Position(2, 9))
