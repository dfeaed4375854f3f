"""A short run of the crash rounds: every point once, and kills at any moment."""

from __future__ import annotations

import time

import pytest

from tests.crash.plan import STRIKES, planned
from tests.crash.round import play

SECONDS = 50.0
"""For all rounds together; what does not fit on a slow machine is left to the long run."""

pytestmark = pytest.mark.crash


@pytest.mark.meets("P2")
@pytest.mark.timeout(200)
def test_nothing_is_lost_or_done_twice_whoever_is_killed_when() -> None:
    began = time.monotonic()
    for seed in range(len(STRIKES) * 3):
        if time.monotonic() - began > SECONDS:
            break
        outcome = play(planned(seed, spark_share=0.0))
        assert outcome.error is None, f"seed {seed}: {outcome.error}, see {outcome.folder}"


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_a_round_with_spark_ends_well() -> None:
    outcome = play(planned(STRIKES.index("target_written"), spark_share=1.0))
    assert outcome.error is None, f"{outcome.error}, see {outcome.folder}"
