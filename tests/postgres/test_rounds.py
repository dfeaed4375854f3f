"""Rounds with writers, kills and a server that comes and goes: a short one always."""

from __future__ import annotations

import pytest

from tests.postgres.rounds.plan import STRIKES, Plan, planned
from tests.postgres.rounds.round import STRIKE_SECONDS, play
from tests.support.patience import patience

SHORT = (13, 21)
"""Short ones: a server that is killed during a reload, and copies that the engine makes itself."""

SEEDS = [
    SHORT[0],
    pytest.param(SHORT[1], marks=pytest.mark.ci),
    # As many more that every point is come by.
    *(
        pytest.param(seed, marks=pytest.mark.nightly)
        for seed in range(len(STRIKES))
        if seed not in SHORT
    ),
]


@pytest.mark.crash
@pytest.mark.meets("P2", "R11", "H1", "H2", "H3", "H4")
@pytest.mark.parametrize("seed", SEEDS)
def test_both_targets_are_exact_whoever_was_killed_when(seed: int) -> None:
    plan = planned(seed)
    # Of a short one every point must be come by, so nothing depends on how soon that is.
    outcome = play(plan, patience() if seed in SHORT else STRIKE_SECONDS)
    assert outcome.error is None, f"{outcome.error}, see {outcome.folder}"
    if seed in SHORT:
        # Else it would have tested less, and said nothing.
        assert {life.armed for life in plan.lives} <= outcome.hits.keys()


def test_a_seed_is_always_the_same_plan_and_neighbours_take_the_points_in_turn() -> None:
    plans: list[Plan] = [planned(seed) for seed in range(len(STRIKES))]
    assert plans == [planned(seed) for seed in range(len(STRIKES))]
    for plan, strike in zip(plans, STRIKES, strict=True):
        assert strike in [life.armed for life in plan.lives]
