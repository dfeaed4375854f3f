"""The rounds that examine the status: what they take for wrong, what they do, and a short one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from headrace.changelog.position import Position
from tests.postgres.witness.catalog import KINDS as CATALOG
from tests.postgres.witness.catalog import kinds_of
from tests.postgres.witness.plan import BLOWS, DRAWN, KINDS, Fault, blow, planned
from tests.postgres.witness.report import NAMES
from tests.postgres.witness.round import play
from tests.postgres.witness.testimony import ASIDE, FILE, MEMORY, Beat, Beats, Contents, Examiner

NOW = 1000.0
COMMITS = 100
"""Of the journal between two beats, of which there is one in each second."""


def examined(**changed: object) -> list[str]:
    """Return what is wrong with one look, in which all is well but for what is changed."""
    beats = Beats()
    for number in range(1, int(NOW) + 1):
        beats.add(Beat(float(number), number, number * COMMITS, number * COMMITS + 1))
    contents = Contents()
    contents.versions["moods"] = []
    contents.changed("moods", 0.0, [1, 2])
    testimony = Examiner(Path(), {FILE: beats, MEMORY: beats, ASIDE: beats}, contents)
    testimony.examine(look(**changed))
    return [wrong.partition(" ({")[0].partition(": ")[2] for wrong in testimony.false_greens]


def look(**changed: object) -> Mapping[str, Any]:
    pipeline = {
        "ready": True,
        "state": "streaming",
        "own_state": "live",
        "lag_seconds": 0.0,
        "position": str(Position(1, 1000 * COMMITS)),
        "beat": 1000,
        "contents": {"moods": [2, 1]},
    }
    source = {
        "state": "streaming",
        "lag_seconds": 0.0,
        "lag_bytes": 0,
        "current_seconds": 1.0,
        "end": str(Position(1, 1000 * COMMITS)),
    }
    of_source = {name: changed.pop(name) for name in ("end", "current_seconds") if name in changed}
    return {
        "at": NOW,
        "pid": 1,
        "pipelines": {FILE: {**pipeline, **changed}},
        "sources": {"shop": {**source, **of_source}},
    }


def at(beat: int) -> str:
    return str(Position(1, beat * COMMITS))


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({}, []),
        # 5.5 s are granted for what is late, and nothing for what is said to be there.
        ({"beat": 994, "position": at(994)}, []),
        (
            {"beat": 993, "position": at(993)},
            ["is ready with beat 993", "is said to be 0.0 s behind", "is ready at"],
        ),
        ({"beat": 900, "position": at(994)}, ["with beat 900", "0.0 s behind", "is said to be at"]),
        ({"beat": 993, "position": at(993), "ready": False, "state": "not_ready"}, ["0.0 s beh"]),
        (
            {
                "beat": 993,
                "position": at(993),
                "lag_seconds": 7.0,
                "ready": False,
                "state": "not_ready",
            },
            [],
        ),
        ({"ready": False}, ["is streaming and not ready"]),
        ({"contents": {"moods": [1]}}, ["old rows of ['moods']"]),
        ({"contents": {"moods": [1, 2, 3]}}, ["old rows of ['moods']"]),
        ({"end": at(998), "current_seconds": 2.0}, []),
        ({"end": at(998), "current_seconds": 1.0}, ["current_seconds = 1.0"]),
        ({"end": at(990), "current_seconds": 20.0}, ["lag_seconds = 0.0", "lag_bytes = 0"]),
        ({"end": at(990), "current_seconds": None}, ["lag_seconds = 0.0", "lag_bytes = 0"]),
    ],
)
def test_a_status_that_is_not_true_is_found(changed: dict[str, object], said: list[str]) -> None:
    found = examined(**changed)
    assert len(found) == len(said), found
    assert all(each in wrong for each, wrong in zip(said, found, strict=True)), found


def test_a_position_that_falls_is_found() -> None:
    testimony = Examiner(Path(), {FILE: Beats()}, Contents())
    for position in (at(10), at(12), at(11)):
        testimony.examine({**look(position=position, contents={}), "sources": {}})
    assert len(testimony.false_greens) == 1
    assert f"file fell from {at(12)} to {at(11)}" in testimony.false_greens[0]


def test_rows_between_two_versions_are_right_until_a_change_must_have_been_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    contents = Contents()

    def changed(moment: float, rows: list[int] | None) -> None:
        monkeypatch.setattr("time.time", lambda: moment)
        contents.changed("moods", moment, rows)

    changed(0.0, [1, 2, 3])
    assert contents.wrong({"moods": [1, 20, 3]}, 50.0) == ["moods"]
    assert not contents.wrong({"moods": [1, 2, 3]}, 50.0)
    changed(100.0, [1, 20, 30])
    assert not contents.wrong({"moods": [1, 20, 3]}, 101.0)
    assert contents.wrong({"moods": [1, 4, 3]}, 101.0) == ["moods"]
    assert contents.wrong({"moods": [1, 2, 3]}, 200.0) == ["moods"]
    changed(300.0, None)
    assert not contents.wrong({"moods": [1, 20, 30]}, 301.0)
    assert contents.wrong({"moods": []}, 400.0) == ["moods"]


def test_neighbouring_seeds_deal_every_kind_in_turn() -> None:
    rounds = -(-len(KINDS) // BLOWS)
    dealt = [each.kind for seed in range(rounds) for each in planned(seed)]
    assert set(dealt) == set(KINDS)
    assert planned(3) == planned(3)


def test_each_family_of_catalog_changes_is_there_and_each_change_has_a_name() -> None:
    from tests.postgres.catalog_sequences import Sequence_

    assert all(hasattr(Sequence_, f"_{each.removeprefix('catalog: ')}") for each in DRAWN)
    assert kinds_of(["alter publication shop_pub set table a where (id > 9), b, p;"]) == [
        "catalog: row filter"
    ]
    assert set(kinds_of(["create table child () inherits (a);", "-- start"])) < set(NAMES)
    assert len(set(CATALOG.values())) > 20


@pytest.mark.crash
@pytest.mark.ci
@pytest.mark.meets("R18", "R20")
def test_no_status_is_green_and_wrong_while_an_engine_is_suspended_and_its_target_hangs() -> None:
    kinds = (Fault.ENGINE_SUSPENDED_SLOW, Fault.STREAM)
    outcome = play(2, [blow(kind, after=0.1) for kind in kinds], writers=0)
    assert outcome.error is None, f"{outcome.error}, see {outcome.folder}"
    assert outcome.hits.total() >= len(kinds)
    assert outcome.writes["look"] > 0
