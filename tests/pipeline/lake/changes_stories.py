"""Tables that keep what was: truncates in a batch, and baselines among changes."""

from __future__ import annotations

from dataclasses import replace

from headrace.changelog.change import Op
from headrace.changelog.position import Position
from headrace.errors import TargetError
from headrace.lake.target import TableTarget
from headrace.targets.target import Batch
from headrace.testing.contracts import Change, batch, loaded
from headrace.testing.source import TABLE, THINGS
from tests.pipeline.lake.delta_stories import One, refused
from tests.pipeline.lake.stories import StoryEnvironment, story

_WORDS = {
    Op.INSERT: "insert",
    Op.UPDATE: "update",
    Op.DELETE: "delete",
    Op.TRUNCATE: "truncate",
}
EMPTIED: list[Change] = [
    (Op.UPDATE, 5, 1, "uno"),
    (Op.INSERT, 5, 3, "three"),
    (Op.TRUNCATE, 6, 0, None),
    (Op.INSERT, 7, 2, "again"),
    (Op.TRUNCATE, 8, 0, None),
    (Op.INSERT, 9, 4, "four"),
]


def staged(one: One, target: TableTarget, rows: list[Change], whole: Batch) -> Batch:
    """Let executors prepare a batch."""
    made = [
        (None if op is Op.TRUNCATE else key, name, _WORDS[op], str(Position(1, commit)), commit, 0)
        for op, commit, key, name in rows
    ]
    frame = one.env.spark.bulk.createDataFrame(
        made, "id long, name string, _op string, _position string, _commit long, _ordinal int"
    ).selectExpr("*", "timestamp_micros(0) as _time")
    parts = target.stage(TABLE, frame, 1, whole.truncates.get(TABLE))
    empty = whole.tables[TABLE].slice(0, 0)
    return replace(whole, tables={TABLE: empty}, staged={TABLE: parts})


@story
def what_was_before_a_truncate_of_the_same_batch_is_kept(env: StoryEnvironment) -> None:
    for by_executors in (False, True):
        where = env.within(str(by_executors))
        append, history = (One(where.within(mode), mode) for mode in MODES)
        for one in (append, history):
            target = one.begun()
            rows = batch(EMPTIED, 9, first=5, truncate=8)
            target.write(staged(one, target, EMPTIED, rows) if by_executors else rows)
            assert one.versions() == 2
        shown = append.rows("_change_type", "id", order=["_position", "id"])
        assert shown[2:] == [
            ("update_postimage", 1),
            ("insert", 3),
            ("truncate", None),
            ("insert", 2),
            ("truncate", None),
            ("insert", 4),
        ]
        ends = ("_valid_from_position", "_valid_to_position")
        began, ended = (f"substring({name}, 21, 1)" for name in ends)
        assert history.rows("id", "name", began, ended, order=["id", ends[0]]) == [
            (1, "one", "1", "5"),
            (1, "uno", "5", "6"),
            (2, "two", "1", "6"),
            (2, "again", "7", "8"),
            (3, "three", "5", "6"),
            (4, "four", "9", None),
        ]


MODES = ("append", "history")


@story
def rows_end_at_the_first_truncate_though_executors_have_nothing_to_add(
    env: StoryEnvironment,
) -> None:
    one = One(env, "history")
    target = one.begun()
    rows: list[Change] = [(Op.TRUNCATE, 6, 0, None), (Op.TRUNCATE, 8, 0, None)]
    target.write(staged(one, target, rows, batch(rows, 8, first=5, truncate=8)))
    ends = ("substring(_valid_to_position, 21, 1)", "unix_micros(_valid_to)")
    assert one.rows("id", *ends) == [(1, "6", 0), (2, "6", 0)]


@story
def changes_alone_whose_switch_was_not_noted_are_told_once(env: StoryEnvironment) -> None:
    one = One(env, "append")
    for goal in (3, 4):
        target = one.opened()
        loading = target.load(TABLE, 0)
        loading.catch_up(batch([(Op.INSERT, 2, 1, "a"), (Op.DELETE, 3, 1, None)], 3))
        if goal == 4:
            loading.catch_up(batch([(Op.INSERT, 4, 1, "b")], 4, first=4))
        loading.switch(Position(1, goal))
    shown = one.rows("_commit_version", "_change_type", "id", order=["_position"])
    assert shown == [(2, "insert", 1), (3, "delete", 1), (4, "insert", 1)]


@story
def rows_without_a_key_are_told_once_by_a_reload_and_by_one_that_was_not_noted(
    env: StoryEnvironment,
) -> None:
    one = One(env, "append")
    schema = replace(THINGS, key=())
    for goal in (3, 4):
        target = one.opened(schema=schema)
        loading = target.load(TABLE, 1)
        loading.write(loaded({1: "a"}))
        loading.catch_up(batch([(Op.INSERT, 3, 2, "b")], goal, first=2))
        loading.switch(Position(1, goal))
    shown = ("_commit_version", "_change_type", "id")
    order = ("_position", "id")
    begun = [(2, "truncate", None), (2, "insert", 1), (3, "insert", 2)]
    assert one.rows(*shown, order=order) == begun
    # The baseline has what came at 6, and not what came at 7, before it was copied.
    target.write(batch([(Op.INSERT, 6, 3, "c"), (Op.INSERT, 7, 4, "d")], 7, first=5))
    loading = target.load(TABLE, 2)
    loading.write(loaded({1: "a", 2: "b", 3: "c"}))
    loading.catch_up(batch([(Op.INSERT, 7, 4, "d")], 7, first=5))
    target.write(batch([(Op.INSERT, 8, 5, "e")], 8, first=8))
    loading.catch_up(batch([(Op.INSERT, 8, 5, "e")], 8, first=8))
    loading.switch(Position(1, 8))
    assert one.rows(*shown, order=order) == [
        *begun,
        (6, "insert", 3),
        (6, "truncate", None),
        (6, "insert", 1),
        (6, "insert", 2),
        (6, "insert", 3),
        (7, "insert", 4),
        (8, "insert", 5),
    ]
    assert one.opened(Position(1, 8), schema).lost(TABLE) is None


@story
def a_reload_of_rows_with_a_key_removes_none_and_sorts_behind_all(env: StoryEnvironment) -> None:
    one = One(env, "append")
    target = one.begun()
    target.write(batch([(Op.INSERT, 5, 3, "three")], 5, first=4))
    for number in (2, 3):
        loading = target.load(TABLE, number)
        loading.write(loaded({3: "three"}))
        loading.switch(Position(1, 5))
    shown = one.rows("_commit_version", "_change_type", "id", order=["_position", "id"])
    assert shown == [
        (1, "insert", 1),
        (1, "insert", 2),
        (5, "insert", 3),
        (5, "truncate", None),
        (5, "insert", 3),
    ]
    # Only the last had rows at its own positions, those of the one before.
    added = env.kind.only_added(env.spark, one.path)
    assert added[:-1] == [False, True, True]


@story
def one_that_was_taken_over_from_tells_nothing_more(env: StoryEnvironment) -> None:
    one = One(env, "append")
    old = one.begun()
    # Its session has made commits; Delta tells of the last one in it.
    assert old.write(batch([(Op.INSERT, 2, 3, "three")], 2, first=2)) == Position(1, 2)
    new = one.opened(Position(1, 2))
    for commit, id in ((3, 4), (4, 5)):
        new.write(batch([(Op.INSERT, commit, id, "new")], commit, first=commit))
    late = batch([(Op.INSERT, 3, 4, "late")], 3, first=3)
    refused(TargetError, lambda: old.write(late))
    assert old.write(late) == Position(1, 4)
    assert one.rows("id") == [(id,) for id in range(1, 6)]
