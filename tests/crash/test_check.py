"""The check of the crash runs finds what it is there to find."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headrace.changelog.position import Position
from headrace.storage.killpoints import POINTS
from tests.crash.check import Effect, Letter, Seen, TableSeen, wrong
from tests.crash.looking import Held, lasting, of_queue
from tests.crash.model import Kept, Logged, Start, expected
from tests.crash.plan import STRIKES, planned
from tests.crash.report import table, too_few
from tests.crash.round import Outcome

ROW = {"id": 1, "customer_id": 2, "status": "paid"}
BAD = (2, 5, "paid", "x")
"""A row that cannot be computed."""

START = Start(1, Position(1, 3), [(1, 2, "paid", "x")])


def logged(number: int, key: int = 1) -> Logged:
    row = (key, 2, "paid", "x")
    return Logged("orders", Position(1, number), 1, row, row)


def at(number: int) -> str:
    return str(Position(1, number))


def effect(key: int, number: int) -> Effect:
    return Effect("orders", f"[{key}]", at(number))


CHANGES = [
    logged(4),
    Logged("orders", Position(1, 5), 0, None, BAD),
    Logged("orders", Position(1, 6), 1, BAD, (2, 3, "paid", "x")),
]
FAILED, BEHIND = [Kept(c.position, None, c.before, c.after) for c in CHANGES[1:]]
LETTERS = [Letter(FAILED, "failed", "BAD_ROW"), Letter(BEHIND, "behind", "")]
ORDERS = TableSeen(
    truth={1: ROW, 2: {"id": 2, "customer_id": 3, "status": "paid"}},
    rows={1: ROW},
    expected=expected(START, CHANGES, fails=True),
    letters=LETTERS,
)
GOOD = Seen(
    tables={"orders": ORDERS},
    effects=[effect(1, 4), effect(2, 4), effect(1, 5)],
    changes=CHANGES,
    diary=[(c.table, c.op, c.before, c.after) for c in CHANGES],
    begins=3,
    captured=6,
    acknowledged=5,
    kept=1,
    synced=6,
    code="BAD_ROW",
)


def but(**changed: Any) -> Seen:
    """Return what is seen where the table is otherwise."""
    return replace(GOOD, tables={"orders": replace(ORDERS, **changed)})


def test_what_is_as_it_should_be_passes() -> None:
    assert wrong(GOOD) == []


@pytest.mark.meets("P2")
@pytest.mark.parametrize(
    ("seen", "sentence"),
    [
        (but(rows={}), "orders: row 1 is missing"),
        (but(rows={1: ROW, 3: ROW}), "orders: row 3 should not be there"),
        (but(rows={1: {**ROW, "status": "new"}}), "orders: row 1 is"),
        (but(rows={1: ROW, 2: ROW}), "held row 2 should not be there"),
        (but(letters=LETTERS[1:]), "letter of key 2 at 0001-0000000000000005-00000000 is missing"),
        (but(letters=LETTERS[:1]), "letter of key 2 at 0001-0000000000000006-00000000 is missing"),
        (but(letters=[*LETTERS, LETTERS[1]]), "is there 2 times"),
        (but(letters=[*LETTERS, Letter(replace(FAILED, baseline=1), "", "")]), "should not be"),
        (but(letters=[replace(LETTERS[0], kind="behind", code=""), LETTERS[1]]), "and it failed"),
        (but(letters=[replace(LETTERS[0], code="OTHER"), LETTERS[1]]), "failed with 'OTHER'"),
        (
            but(letters=[replace(LETTERS[0], kept=replace(FAILED, after=(2, 5, "x"))), LETTERS[1]]),
            "should not be",
        ),
        (replace(GOOD, effects=[*GOOD.effects, GOOD.effects[-1]]), "happened 2 times"),
        (replace(GOOD, effects=GOOD.effects[::-1]), "not in order"),
        (replace(GOOD, changes=[CHANGES[0], CHANGES[2]]), "change 5 is not in the log"),
        (replace(GOOD, changes=[*CHANGES, logged(6)]), "do not increase"),
        (replace(GOOD, changes=[*CHANGES, logged(6)]), "is in the log 2 times"),
        (replace(GOOD, captured=7, kept=2), "change 7 is not in the log"),
        (replace(GOOD, diary=GOOD.diary[::-1]), "not those of the application"),
        (replace(GOOD, acknowledged=7), "acknowledged 7, synced only 6"),
        (replace(GOOD, kept=0), "forgot changes that were not acknowledged"),
        (replace(GOOD, strays=["0-1-1.parquet"]), "no entry names 0-1-1.parquet"),
    ],
)
def test_each_thing_that_may_go_wrong_is_found(seen: Seen, sentence: str) -> None:
    found = wrong(seen)
    assert any(sentence in each for each in found), found


def test_a_segment_is_a_stray_only_if_it_never_gets_an_entry() -> None:
    # One is named a look later, another comes meanwhile, and one stays.
    looks = iter([{"merging", "left"}, {"left"}, {"left", "later"}])
    assert lasting(lambda: next(looks, {"left"}), seconds=0.05) == {"left"}
    looks = iter([{"merging"}, set[str]()])
    assert lasting(lambda: next(looks), seconds=60) == set()


@pytest.mark.meets("R30")
def test_a_change_of_key_takes_the_letter_along_and_a_baselines_row_is_one_too() -> None:
    moved = Logged("orders", Position(1, 4), 1, BAD, (3, 2, "paid", "x"))
    later = logged(5, key=3)
    found = expected(Start(7, Position(1, 3), [BAD]), [moved, later, logged(6)], fails=True)
    assert [(kept.baseline, failed) for kept, failed in found.letters.items()] == [
        (7, True),
        (None, False),
        (None, False),
    ]
    assert (found.held, set(found.rows)) == ({2, 3}, {1})
    assert expected(Start(7, Position(1, 3), [BAD]), [moved], fails=False).held == set()


@pytest.mark.meets("R25")
def test_a_queue_is_read_by_ids_and_what_differs_is_told(tmp_path: Path) -> None:
    def batch(first: int, last: int, customer: int) -> dict[str, object]:
        row = {"id": 1, "customer_id": customer, "status": "paid"}
        rows = {"orders": [{"at": at(last), "op": 1, "row": row}]}
        name = f"crash/{at(first)}/{at(last)}"
        return {"id": name, "first": at(first), "last": at(last), "rows": rows}

    def queue(*lines: dict[str, object]) -> Held:
        path = tmp_path / "queue.jsonl"
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        return of_queue(path)

    good = queue({"table": "orders", "at": at(3), "rows": [ROW]}, *[batch(4, 5, 3)] * 2)
    assert (good.wrong, len(good.effects)) == ([], 1)
    assert good.rows["orders"][1]["customer_id"] == 3
    (other,) = queue(batch(4, 5, 3), batch(4, 5, 4)).wrong
    assert "another content" in other
    (overlapping,) = queue(batch(4, 5, 3), batch(4, 6, 3)).wrong
    assert "begins before" in overlapping
    (late,) = queue(batch(4, 5, 3), batch(6, 6, 3), batch(4, 5, 3)).wrong
    assert "came again after" in late


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
