from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from headrace.storage.killpoints import POINTS
from tests.simulation.__main__ import report
from tests.simulation.failed_seeds import FAILED_SEEDS
from tests.simulation.hooks import staged
from tests.simulation.story import play
from tests.simulation.ttl import FIRST, seeds
from tests.support.seeds import chosen_by_the_commit

ROOT = Path(__file__).parent.parent.parent

SEEDS = 250
"""
The fixed ones, of every run: each mutation in `tests/mutate` that seeds must find is found
by one below 210.
"""

SHARES = 5
"""So few that each comes by every point, and so many that two processes can share them."""

EXPIRING = 60
"""Those with rows that expire."""

CHOSEN = 300
"""Others, which a commit brings with it."""

RULES = pytest.mark.meets(
    "R1", "R8", "R10", "R12", "R23d", "R25", "R26a", "R30", "R31", "R34", "R36", "H3", "S2"
)


@pytest.fixture(autouse=True)
def stage() -> Iterator[None]:
    with staged():
        yield


def play_all(seeds: Iterable[int]) -> Counter[str]:
    total: Counter[str] = Counter()
    for seed in seeds:
        outcome = play(seed)
        assert outcome.error is None, report(outcome)
        total.update(outcome.counts)
    return total


@pytest.mark.slow
@pytest.mark.parametrize("share", range(SHARES))
@RULES
def test_whatever_happens_the_target_ends_up_like_the_source(share: int) -> None:
    total = play_all(range(share, SEEDS, SHARES))
    # Not for nothing: things did go wrong, at every kind of place.
    assert total["power cut"] > 0
    assert total["recorder died"] > 0
    assert total["engine died"] > 0
    assert total["reload done"] > 0
    assert total["paused"] > 0
    assert total["letters that hold"] > 0
    assert total["letters superseded"] > 0
    assert {point for point in POINTS if not total[f"point {point}"]} == set()
    play_all(FAILED_SEEDS[share::SHARES])


@pytest.mark.slow
@pytest.mark.meets("R38")
def test_rows_that_have_expired_never_come_back() -> None:
    total = play_all(seeds(FIRST, EXPIRING))
    assert total["rows expired"] > 0
    assert total["act clock_back"] > 0
    assert total["reload done"] > 0


@pytest.mark.ci
@pytest.mark.process
@pytest.mark.parametrize("share", range(SHARES))
@RULES
def test_seeds_that_nobody_chose_end_well_too(share: int) -> None:
    first = chosen_by_the_commit()
    print(f"seeds {first} to {first + CHOSEN - 1}")
    play_all(range(first + share, first + CHOSEN, SHARES))


@pytest.mark.slow
def test_a_seed_tells_the_same_story_twice() -> None:
    for seed in range(10):
        assert play(seed).digest == play(seed).digest


@pytest.mark.process
def test_a_seed_tells_the_same_story_in_another_process() -> None:
    told = set()
    for hashes in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-m", "tests.simulation", "--seed", "42"],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": "src", "PYTHONHASHSEED": hashes},
            capture_output=True,
            text=True,
            check=True,
        )
        told.add(done.stdout)
    assert told == {f"seed 42 is good ({play(42).digest[:16]})\n"}
