"""The check of the crash runs finds what it is there to find."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headrace.changelog.position import Position
from headrace.storage.points import POINTS
from tests.crash.check import Effect, Logged, Seen, wrong
from tests.crash.plan import STRIKES, planned
from tests.crash.report import table, too_few
from tests.crash.round import Outcome

ROW = {"id": 1, "customer_id": 2, "status": "paid"}


def logged(number: int) -> Logged:
    return Logged(Position(1, number), 0, None, [number, 2, "paid", "x"])


def at(number: int) -> str:
    return str(Position(1, number))


GOOD = Seen(
    truth={1: ROW},
    rows={1: ROW},
    effects=[Effect("0", "[1]", at(4)), Effect("0", "[2]", at(4)), Effect("0", "[1]", at(5))],
    changes=[logged(4), logged(5), logged(6)],
    diary=[(0, None, [number, 2, "paid", "x"]) for number in (4, 5, 6)],
    begins=3,
    captured=6,
    acknowledged=5,
    kept=1,
    synced=6,
)


def test_what_is_as_it_should_be_passes() -> None:
    assert wrong(GOOD) == []


@pytest.mark.meets("P2")
@pytest.mark.parametrize(
    ("seen", "sentence"),
    [
        (replace(GOOD, rows={}), "row 1 is missing"),
        (replace(GOOD, rows={1: ROW, 2: ROW}), "row 2 should not be there"),
        (replace(GOOD, rows={1: {**ROW, "status": "new"}}), "row 1 is"),
        (replace(GOOD, effects=[*GOOD.effects, GOOD.effects[-1]]), "happened 2 times"),
        (replace(GOOD, effects=GOOD.effects[::-1]), "not in order"),
        (replace(GOOD, changes=[logged(4), logged(6)]), "change 5 is not in the log"),
        (replace(GOOD, changes=[*GOOD.changes, logged(6)]), "do not increase"),
        (replace(GOOD, changes=[*GOOD.changes, logged(6)]), "is in the log 2 times"),
        (replace(GOOD, captured=7, kept=2), "change 7 is not in the log"),
        (replace(GOOD, diary=GOOD.diary[::-1]), "not those of the application"),
        (replace(GOOD, acknowledged=7), "acknowledged 7, synced only 6"),
        (replace(GOOD, kept=0), "forgot changes that were not acknowledged"),
        (replace(GOOD, strays=["0-1-1.parquet"]), "no entry names 0-1-1.parquet"),
    ],
)
def test_each_thing_that_may_go_wrong_is_found(seen: Seen, sentence: str) -> None:
    assert any(sentence in found for found in wrong(seen))


def test_neighbouring_seeds_come_by_every_point() -> None:
    plans = [planned(seed, 0.0) for seed in range(100, 100 + len(STRIKES))]
    assert {plan.kills[0].strike for plan in plans} == set(STRIKES)
    assert plans == [planned(plan.seed, 0.0) for plan in plans]
    assert all(plan.kills[-1].settles for plan in plans)


def test_a_point_that_was_hit_too_rarely_is_told() -> None:
    outcomes = [Outcome(planned(seed, 0.0)) for seed in range(3)]
    for outcome in outcomes:
        outcome.hits.update(POINTS[1:])
    assert too_few(outcomes) == [POINTS[0]]
    outcomes[0].error = "a row is missing"
    assert f"| {POINTS[1]} | 3 | 0 | 1 |" in table(outcomes)
