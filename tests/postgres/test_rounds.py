"""Two short rounds with writers, kills and a server that comes and goes."""

from __future__ import annotations

import pytest

from tests.postgres.rounds.plan import STRIKES, Plan, planned
from tests.postgres.rounds.round import play

SEEDS = (13, 21)
"""Short ones: a server that is killed during a reload, and copies that the engine makes itself."""


@pytest.mark.crash
@pytest.mark.meets("P2", "R11", "H1", "H2", "H3", "H4")
@pytest.mark.timeout(280)
@pytest.mark.parametrize("seed", SEEDS)
def test_both_targets_are_exact_whoever_was_killed_when(seed: int) -> None:
    outcome = play(planned(seed))
    assert outcome.error is None, f"{outcome.error}, see {outcome.folder}"


def test_a_seed_is_always_the_same_plan_and_neighbours_take_the_points_in_turn() -> None:
    plans: list[Plan] = [planned(seed) for seed in range(len(STRIKES))]
    assert plans == [planned(seed) for seed in range(len(STRIKES))]
    for plan, strike in zip(plans, STRIKES, strict=True):
        assert strike in [life.armed for life in plan.lives]
