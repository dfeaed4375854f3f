"""Finding the rows that fail, with a job that is only a script."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import FunctionFailed, JobFailed, RowFailed, TooManyFailed
from headrace.pipeline.failed_rows import Isolation, halve
from headrace.pipeline.result import FUNCTION_FAILED, OUTSIDE_TYPE, Failure, RowReference


class Scripted:
    """A job over rows 0 … count-1, some of which fail, each with a condition of its own."""

    def __init__(
        self, count: int, bad: dict[int, str], suspects: Sequence[int] | None = None
    ) -> None:
        self.all = [(at, 0) for at in range(count)]
        self.bad: dict[RowReference, str] = {(at, 0): code for at, code in bad.items()}
        self._suspects = None if suspects is None else [(at, 0) for at in suspects]
        self.runs = 0
        self.asked: list[int] = []
        self.cheap: set[RowReference] = set()
        """Rows whose condition is known without a run."""
        self.found_cheaply: list[RowReference] = []

    def run(self, without: frozenset[RowReference]) -> list[RowReference]:
        kept = self.references(without)
        if (code := self.fails(kept)) is not None:
            raise RowFailed("A row", condition=code)
        return kept

    def alone(self, references: Sequence[RowReference]) -> dict[RowReference, str]:
        self.found_cheaply += [reference for reference in references if reference in self.cheap]
        return {
            reference: self.bad[reference] for reference in references if reference in self.cheap
        }

    def cause(self, reference: RowReference) -> dict[str, str]:
        return {"step": "filters"} if self._suspects and reference in self._suspects else {}

    def suspects(self, without: frozenset[RowReference], most: int) -> list[RowReference] | None:
        self.asked.append(most)
        if self._suspects is None:
            return None
        return [reference for reference in self._suspects if reference not in without][:most]

    def references(self, without: frozenset[RowReference]) -> list[RowReference]:
        return [reference for reference in self.all if reference not in without]

    def fails(self, only: Sequence[RowReference]) -> str | None:
        self.runs += 1
        return next((self.bad[reference] for reference in only if reference in self.bad), None)


def isolation(job: Scripted, most: int = 20) -> Isolation:
    return Isolation(job, most, facts={"pipeline": "orders"})


@pytest.mark.meets("S2")
@given(st.integers(1, 300), st.sets(st.integers(0, 299), max_size=8))
def test_halving_finds_every_row_that_fails_and_its_own_condition(
    count: int, bad: set[int]
) -> None:
    job = Scripted(count, {at: f"CODE_{at}" for at in bad if at < count})
    assert halve(job.all, job.fails, 20) == job.bad
    assert job.runs <= 1 + 2 * max(1, len(job.bad)) * (1 + math.ceil(math.log2(count)))


@pytest.mark.meets("S2")
def test_halving_ten_thousand_rows_takes_about_two_runs_a_level() -> None:
    job = Scripted(10_000, {7: "A", 5_000: "B", 9_999: "C"})
    assert halve(job.all, job.fails, 20, "A") == job.bad
    assert job.runs <= 3 * 2 * 14


def test_halving_stops_once_it_has_found_enough() -> None:
    job = Scripted(1_024, dict.fromkeys(range(1_024), "A"))
    assert list(halve(job.all, job.fails, 3)) == [(0, 0), (1, 0), (2, 0)]
    assert job.runs < 20


def test_halving_blames_nobody_where_rows_fail_only_together() -> None:
    references = [(at, 0) for at in range(64)]
    assert halve(references, lambda only: "A" if len(only) > 8 else None, 20) == {}


@pytest.mark.meets("S2")
def test_what_fails_is_left_out_and_told_and_the_rest_is_computed() -> None:
    job = Scripted(100, {3: "DIVIDE_BY_ZERO", 70: "CAST_INVALID_INPUT"})
    found = isolation(job)
    assert found.settle(job.run) == [reference for reference in job.all if reference not in job.bad]
    assert found.failures == (
        Failure((3, 0), "DIVIDE_BY_ZERO"),
        Failure((70, 0), "CAST_INVALID_INPUT"),
    )


def test_suspects_cost_one_run_each() -> None:
    job = Scripted(10_000, dict.fromkeys(range(10), "A"), suspects=range(10))
    found = isolation(job)
    found.settle(job.run)
    assert len(found.failures) == 10
    assert job.runs == 1 + 10 + 1
    assert job.asked == [21]


def test_a_suspect_whose_condition_is_told_cheaply_costs_no_run() -> None:
    job = Scripted(100, {3: "A", 50: "B", 77: "C"}, suspects=[3, 50, 77])
    job.cheap = {(3, 0), (77, 0)}
    isolation = Isolation(job, 20, facts={})
    isolation.settle(job.run)
    assert [(each.reference[0], each.code) for each in isolation.failures] == [
        (3, "A"),
        (50, "B"),
        (77, "C"),
    ]
    assert job.found_cheaply == [(3, 0), (77, 0)]
    assert job.runs == 3, "the failed one, row 50 alone, and the last"


@pytest.mark.meets("S2")
def test_a_suspect_that_computes_alone_is_not_failed() -> None:
    job = Scripted(100, {5: "A", 60: "B"}, suspects=[4, 5, 6])
    found = isolation(job)
    assert (4, 0) in found.settle(job.run)
    assert [failure.reference for failure in found.failures] == [(5, 0), (60, 0)]
    # Nor is it tried a second time.
    assert job.runs <= 1 + 3 + 1 + 2 * 7 + 1


@pytest.mark.meets("S2")
@pytest.mark.parametrize("suspects", [None, range(21)], ids=["halved", "suspected"])
def test_one_row_too_many_stops_the_pipeline(suspects: range | None) -> None:
    job = Scripted(1_000, dict.fromkeys(range(21), "A"), suspects)
    with pytest.raises(TooManyFailed) as caught:
        isolation(job).settle(job.run)
    assert caught.value.facts == {
        "found": 21, "limit": 20, "condition": "A", "pipeline": "orders",
    }  # fmt: skip
    twenty = Scripted(1_000, dict.fromkeys(range(20), "A"), suspects)
    found = isolation(twenty)
    found.settle(twenty.run)
    assert len(found.failures) == 20


def test_rows_that_failed_in_other_ways_count_in_the_same_limit() -> None:
    job = Scripted(100, {1: "A", 2: "A"})
    found = isolation(job, most=3)
    found.admit([Failure((50, 0), OUTSIDE_TYPE, {"column": "qty"}), Failure((51, 0), "B")])
    with pytest.raises(TooManyFailed):
        found.settle(job.run)


def test_a_row_that_fails_twice_counts_once() -> None:
    found = isolation(Scripted(1, {}), most=1)
    for _ in range(3):
        found.admit([Failure((0, 0), FUNCTION_FAILED, {"function": "f"})])
    assert len(found.failures) == 1


def test_a_pipeline_that_is_to_stop_stops_at_the_first_row_with_its_position() -> None:
    job = Scripted(100, {7: "DIVIDE_BY_ZERO", 8: "B"})
    with pytest.raises(RowFailed) as caught:
        isolation(job, most=0).settle(job.run)
    assert caught.value.facts == {
        "condition": "DIVIDE_BY_ZERO", "commit": 7, "ordinal": 0, "pipeline": "orders",
    }  # fmt: skip
    with pytest.raises(RowFailed, match="column qty"):
        isolation(job, most=0).admit([Failure((1, 0), OUTSIDE_TYPE, {"column": "qty"})])


@pytest.mark.meets("S2")
def test_a_job_that_fails_although_no_row_does_is_tried_again_and_blames_nobody() -> None:
    job = Scripted(10, {})

    def attempt(without: frozenset[RowReference]) -> None:
        raise RowFailed("A row", condition="DIVIDE_BY_ZERO")

    found = isolation(job)
    with pytest.raises(JobFailed) as caught:
        found.settle(attempt)
    assert caught.value.facts["condition"] == "DIVIDE_BY_ZERO"
    assert found.failures == ()
    with pytest.raises(FunctionFailed):
        found.settle(attempt, otherwise=lambda error: FunctionFailed("It was the function"))
    # Where the attempt is more than the job, the job is asked once, and acquitted.
    assert job.runs <= 2 + 2 * 4


def test_an_error_that_is_not_of_a_row_is_not_looked_into() -> None:
    job = Scripted(10, {})

    def attempt(without: frozenset[RowReference]) -> None:
        raise JobFailed("A lost executor")

    with pytest.raises(JobFailed, match="lost executor"):
        isolation(job).settle(attempt)
    assert (job.runs, job.asked) == (0, [])


@pytest.mark.meets("R30")
def test_what_must_go_with_the_failed_rows_is_left_out_with_them() -> None:
    job = Scripted(10, {2: "A"})
    asked: list[tuple[RowReference, ...]] = []

    def behind(failures: Sequence[Failure]) -> frozenset[RowReference]:
        asked.append(tuple(failure.reference for failure in failures))
        return frozenset({(2, 0), (9, 0)})

    without = frozenset({(0, 0)})
    kept = isolation(job).settle(job.run, without, blocked=behind)
    assert kept == [(at, 0) for at in (1, 3, 4, 5, 6, 7, 8)]
    assert asked == [((2, 0),)]
