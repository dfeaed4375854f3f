"""How far a copy is, as shown: rows, rate and the time that is left."""

from __future__ import annotations

import pytest

from headrace.runtime.info import CopyInfo
from headrace.runtime.source_run import WINDOW_SECONDS, Progress
from tests.support.clock import Clock


@pytest.fixture
def clock() -> Clock:
    return Clock(100.0)


@pytest.fixture
def progress(clock: Clock) -> Progress:
    return Progress(clock)


def only(progress: Progress) -> CopyInfo:
    [copy] = progress.copies()
    return copy


def test_rows_rate_and_time_left_are_shown(progress: Progress, clock: Clock) -> None:
    progress.update("orders", 0, 10_000)
    clock.now += 4
    progress.update("orders", 2_000, 10_000)
    assert only(progress) == CopyInfo("orders", 2_000, 10_000, 4.0, 500.0, 16.0)


def test_without_an_estimate_no_time_is_named(progress: Progress, clock: Clock) -> None:
    progress.update("orders", 0, None)
    clock.now += 2
    progress.update("orders", 100, None)
    shown = only(progress)
    assert (shown.rows_per_s, shown.expected, shown.left_seconds) == (50.0, None, None)


def test_an_estimate_that_was_passed_is_dropped(progress: Progress, clock: Clock) -> None:
    progress.update("orders", 0, 50)
    clock.now += 1
    progress.update("orders", 60, 50)
    assert only(progress).expected is None
    assert only(progress).left_seconds is None


def test_a_copy_that_stands_still_is_seen_to(progress: Progress, clock: Clock) -> None:
    progress.update("orders", 0, 1_000)
    clock.now += 1
    progress.update("orders", 100, 1_000)
    clock.now += 9
    assert only(progress).rows_per_s == pytest.approx(10.0)


def test_time_spent_waiting_for_the_first_row_is_not_in_the_rate(
    progress: Progress, clock: Clock
) -> None:
    progress.update("orders", 0, 1_000)
    clock.now += 50
    progress.update("orders", 0, 1_000)
    clock.now += 1
    progress.update("orders", 100, 1_000)
    shown = only(progress)
    assert (shown.rows_per_s, shown.seconds) == (100.0, 51.0)


def test_the_rate_is_that_of_late(progress: Progress, clock: Clock) -> None:
    progress.update("orders", 0, None)
    rows = 0
    for second in range(200):
        clock.now += 1
        rows += 1_000 if second < 100 else 10
        progress.update("orders", rows, None)
    assert only(progress).rows_per_s == pytest.approx(10.0)
    assert WINDOW_SECONDS < 100


def test_a_copy_that_begins_anew_begins_at_nothing(progress: Progress, clock: Clock) -> None:
    progress.update("orders", 500, 1_000)
    clock.now += 10
    progress.update("orders", 20, 1_000)
    assert only(progress) == CopyInfo("orders", 20, 1_000, 0.0, 0.0, None)


def test_what_is_done_or_given_up_is_not_shown(progress: Progress) -> None:
    progress.update("b", 1, None)
    progress.update("a", 1, None)
    assert [copy.table for copy in progress.copies()] == ["a", "b"]
    progress.done("a")
    progress.done("never")
    assert [copy.table for copy in progress.copies()] == ["b"]
    progress.clear()
    assert progress.copies() == ()
