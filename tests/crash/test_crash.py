"""A short run of the crash rounds: every point once, and kills at any moment."""

from __future__ import annotations

import pytest

from tests.crash.plan import STRIKES, planned
from tests.crash.round import Outcome, play
from tests.crash.run import Run

SECONDS = 50.0
"""For all rounds together; what does not fit on a slow machine is left to the long run."""

pytestmark = pytest.mark.crash


def told(outcome: Outcome) -> str:
    return f"seed {outcome.plan.seed}: {outcome.error}, see {outcome.folder}"


@pytest.mark.meets("P2", "R8", "R31", "H4")
@pytest.mark.timeout(200)
def test_nothing_is_lost_or_done_twice_whoever_is_killed_when() -> None:
    run = Run(0, rounds=2 * len(STRIKES), seconds=SECONDS)
    wrong = [told(outcome) for outcome in run.play(jobs=2) if outcome.error is not None]
    assert wrong == []
    assert run.outcomes


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_a_round_with_spark_ends_well() -> None:
    outcome = play(planned(STRIKES.index("target_written"), spark_share=1.0))
    assert outcome.error is None, told(outcome)
