"""A short run of the crash rounds: most points always, in CI all of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headrace.storage.killpoints import EFFECT_DONE, TARGET_WRITTEN
from tests.crash.plan import STRIKES, Kill, planned
from tests.crash.round import Outcome, play
from tests.crash.run import Run

ROUNDS = 12
"""Of every run; `make test-crash` goes on for as long as it is given."""

pytestmark = [pytest.mark.crash, pytest.mark.timeout(3600)]


def told(outcome: Outcome) -> str:
    return f"seed {outcome.plan.seed}: {outcome.error}, see {outcome.folder}"


@pytest.mark.meets("P2", "R8", "R31", "H4")
@pytest.mark.parametrize(
    ("first", "end"),
    [
        pytest.param(0, ROUNDS, id="a_few"),
        pytest.param(ROUNDS, len(STRIKES), id="the_others", marks=pytest.mark.ci),
    ],
)
def test_nothing_is_lost_or_done_twice_whoever_is_killed_when(first: int, end: int) -> None:
    run = Run(first, rounds=end - first)
    wrong = [told(outcome) for outcome in run.play(jobs=2) if outcome.error is not None]
    assert wrong == []
    assert len(run.outcomes) == end - first
    assert any(outcome.hits for outcome in run.outcomes)


@pytest.mark.ci
@pytest.mark.spark
@pytest.mark.meets("S2", "R30")
def test_a_round_with_spark_ends_well_though_rows_fail() -> None:
    plan = planned(STRIKES.index(TARGET_WRITTEN), spark_share=1.0)
    outcome = play(replace(plan, target="memory", tables=("orders",), fails=True))
    assert outcome.error is None, told(outcome)


@pytest.mark.ci
@pytest.mark.spark
@pytest.mark.meets("R25", "S17")
def test_a_function_is_given_the_frame_again_whose_effect_was_not_noted() -> None:
    plan = planned(STRIKES.index(EFFECT_DONE), spark_share=1.0)
    plan = replace(plan, target="frames", fails=True, reload=False, tables=("orders",))
    # The first effect is the baseline's, the second that of a batch of changes.
    outcome = play(replace(plan, kills=(Kill(EFFECT_DONE, 2),)))
    assert outcome.error is None, told(outcome)
    assert outcome.hits[EFFECT_DONE] == 1
