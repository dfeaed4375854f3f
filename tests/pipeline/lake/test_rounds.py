"""Short rounds from PostgreSQL into Delta, and what their judge sees."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import pytest

from headrace.changelog.position import Position
from headrace.lake.history import FORMAT, CommitNote
from headrace.storage import killpoints
from tests.pipeline.lake.jars import need_delta
from tests.pipeline.lake.rounds.check import broken, different, unsure, wrong
from tests.pipeline.lake.rounds.plan import ALL, Blow, Life, Plan, When, Who, planned
from tests.pipeline.lake.rounds.round import play
from tests.pipeline.lake.rounds.versions import Version
from tests.pipeline.lake.rounds.workload import ACCOUNTS, MONEY, TABLES, Diary, State
from tests.rounds.source import Row

SHORT = Plan(
    0,
    (
        Life(
            armed=Blow(Who.WORKER, killpoints.PART_WRITTEN),
            blow=Blow(Who.RECORDER, When.ANY),
            end=Blow(Who.ENGINE, killpoints.TABLE_COMMITTED),
            nth=1,
            waits=True,
            staged=True,
        ),
        Life(
            armed=Blow(Who.RECORDER, killpoints.BEFORE_ACKNOWLEDGE),
            blow=Blow(Who.JVM, killpoints.TABLE_COMMITTED),
            end=Blow(Who.ENGINE, When.COMMIT),
            nth=1,
            waits=False,
            staged=False,
        ),
    ),
)
"""Everybody is killed once, and around a commit where there is one."""


@pytest.mark.ci
@pytest.mark.crash
@pytest.mark.spark
@pytest.mark.server
@pytest.mark.meets("R24", "P2")
@pytest.mark.timeout(3600)
def test_every_version_of_a_table_is_the_source_at_a_position_whoever_was_killed() -> None:
    need_delta()
    outcome = play(SHORT)
    assert outcome.error is None, f"{outcome.error}, see {outcome.folder}"
    assert outcome.hits.total() > 1
    assert outcome.versions.total() > len(TABLES)


def test_a_seed_is_always_the_same_plan_and_neighbours_take_the_blows_in_turn() -> None:
    plans = [planned(seed) for seed in range(6)]
    assert plans == [planned(seed) for seed in range(6)]
    lives = [life for plan in plans for life in plan.lives]
    assert {blow for life in lives for blow in (life.armed, life.blow, life.end)} == set(ALL)


class Written(Diary):
    """States that are told instead of looked at: the first account's money, commit by commit."""

    def __init__(self, *moneys: int) -> None:
        self.states = [
            cast("State", Told(10 * at, 10 * at + 5, rows(money)))
            for at, money in enumerate(moneys)
        ]


class Told:
    """A state of accounts."""

    def __init__(self, begun: int, ended: int, there: list[Row]) -> None:
        self.begun, self.ended, self._rows = begun, ended, there

    def of(self, table: str) -> list[Row]:
        return self._rows


def rows(money: int) -> list[Row]:
    """Return accounts; what the first has more the second has less."""
    return [
        {"id": id, "money": MONEY + {1: money, 2: -money}.get(id, 0)}
        for id in range(1, ACCOUNTS + 1)
    ]


def version(number: int, money: int, commit: int, batch: str = "b") -> Version:
    at = str(Position(1, commit))
    note = CommitNote(FORMAT, "owner", "writer", number, at, "pg/1", 1, batch)
    return Version(number - 1, "MERGE", note, number, ("id", "money"), rows(money))


def judged(*found: Version) -> list[str]:
    return wrong("accounts", found, Written(0, 5, 9))


def test_a_judge_has_nothing_to_say_of_versions_that_are_the_source() -> None:
    first, second = version(1, 0, 5, "baseline-1"), version(2, 9, 25)
    compacted = replace(first, operation="OPTIMIZE", note=None, transaction=None)
    again = version(3, 9, 25, "baseline-2")
    assert judged(first, compacted, second, again) == []


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ([version(1, 5, 5)], "is not the source at"),
        ([version(1, 0, 5), version(1, 9, 25)], "is commit 1, after 1"),
        ([version(1, 0, 5), version(3, 9, 25)], "is commit 3, after 1"),
        ([version(1, 9, 25), version(2, 9, 25)], "after 0001-"),
        ([version(1, 9, 25), version(2, 5, 15)], "after 0001-"),
        ([replace(version(1, 0, 5), rows=rows(0)[1:])], "there is money of 3900"),
        ([replace(version(1, 0, 5), rows=rows(0) + rows(0)[:1])], "1 rows too many"),
        ([version(1, 0, 5), replace(version(2, 5, 15), note=None)], "is none of ours"),
        ([replace(version(1, 0, 5), note=None)], "has no commit of ours"),
    ],
)
def test_a_judge_finds_what_is_wrong(found: list[Version], said: str) -> None:
    assert any(said in what for what in judged(*found)), judged(*found)


def test_a_judge_takes_either_state_where_a_position_lies_beside_a_commit() -> None:
    assert judged(version(1, 0, 12)) == judged(version(1, 5, 12)) == []
    assert judged(version(1, 9, 12)) != []
    diary = Written(0, 5, 9)
    assert unsure("accounts", [version(1, 5, 12)], diary) == 1, "and tells that it did"
    assert unsure("accounts", [version(1, 5, 15), version(2, 9, 25)], diary) == 0


@pytest.mark.parametrize(
    ("wanted", "there", "said"),
    [
        ([{"id": 1, "more": 3}], [{"id": 1}], ""),
        ([{"id": 1, "more": 4}], [{"id": 1}], "no column more"),
        ([{"id": 1}], [], "1 rows missing: [(1,)]"),
    ],
)
def test_a_column_may_lack_only_where_nobody_has_written_to_it(
    wanted: list[Row], there: list[Row], said: str
) -> None:
    assert different("accounts", wanted, there) == said


@pytest.mark.parametrize(
    ("there", "said"),
    [
        ([(1, 2, 0), (1, 2, 0)], False),
        ([(1, 2, 0)], True),
        ([(1, 2, 0), (1, 2, 1)], True),
    ],
)
def test_rows_of_one_transaction_are_all_there_or_none(
    there: list[tuple[int, int, int]], said: bool
) -> None:
    entries = [
        {"tx": tx, "n": n, "size": size, "revision": revision}
        for n, (tx, size, revision) in enumerate(there)
    ]
    assert bool(broken("entries", entries)) is said
