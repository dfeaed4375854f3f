"""Commits out of messages: positions, ordinals, images, streams."""

from __future__ import annotations

from unittest.mock import patch

import numpy as np
import pytest

from headrace.capture.postgres.decode.pgoutput import Relation, RelationColumn, RelationLayout
from headrace.capture.postgres.stream import transactions as module
from headrace.capture.postgres.stream.spill import Spill
from headrace.capture.postgres.stream.transactions import RecentCommits, Transactions, widened
from headrace.changelog.change import Changes, Op, UnflushedChanges
from headrace.changelog.position import Position
from headrace.changelog.schema import Column, TableSchema
from headrace.changelog.values import ValueType
from headrace.errors import BadMessage, SchemaChanged
from tests.postgres import messages as m
from tests.postgres.naive import Tables, made, place, relation, rows, taken

KEPT, FULL, OTHER = (m.relation(relation(oid, 0)) for oid in (1, 2, 3))


def row(number: int, note: m.Value = "a", big: m.Value = "b") -> list[m.Value]:
    return [str(number), note, big, "hidden"]


def brief(changes: list[Changes]) -> list[tuple[str, int, int, int]]:
    """Table, op, commit and ordinal of each change."""
    return [(t, r["_op"], r["_commit"], r["_ordinal"]) for t, _, r in rows(changes)]


@pytest.mark.meets("R3", "R5", "PG-20")
def test_many_commits_come_together_each_at_the_end_of_its_record() -> None:
    messages = [m.begin(1, time=5), KEPT, OTHER, m.insert(1, row(1)), m.commit(100, time=5)]
    messages += [m.begin(2), m.insert(1, row(2)), m.insert(3, row(9)), m.delete(1, key=row(2))]
    messages += [m.commit(200)]
    [changes] = taken(made(), messages)
    # The insert into another's table is counted and not given.
    assert brief([changes]) == [
        ("kept", Op.INSERT, 100, 0),
        ("kept", Op.INSERT, 200, 0),
        ("kept", Op.DELETE, 200, 2),
    ]
    assert (changes.upto.commit, changes.ends, len(changes.tables)) == (200, True, 1)
    assert [r["_time"] for _, _, r in rows([changes])] == [5, 0, 0]


@pytest.mark.meets("R6")
@pytest.mark.parametrize(
    ("xid", "around", "wide"),
    [
        (5, 2**32 - 3, 2**32 + 5),
        (2**32 - 3, 2**32 + 5, 2**32 - 3),
        (7, 7, 7),
        (2**32 - 1, 0, 2**32 - 1),
        (3, 9 * 2**32 + 2**31, 9 * 2**32 + 3),
        (4, 9 * 2**32 + 2**31 + 5, 10 * 2**32 + 4),
    ],
)
def test_a_transaction_is_the_one_nearest_to_the_present(xid: int, around: int, wide: int) -> None:
    assert widened(np.array([xid]), around).tolist() == [wide]
    ours = made(around=around)
    [changes] = taken(ours, [m.begin(xid), KEPT, m.insert(1, row(1)), m.commit(9)])
    assert [r["_xid"] for _, _, r in rows([changes])] == [wide]
    assert ours.committed.pairs() == [(9, wide)]


@pytest.mark.meets("R6")
def test_widening_follows_a_connection_that_lives_long() -> None:
    ours = made(around=3)
    for turn, xid in enumerate([2**30, 2**31, 3 * 2**30, 2**32 - 1, 2**30, 2**31], 1):
        taken(ours, [m.begin(xid), m.commit(turn)])
    assert [xid for _, xid in ours.committed.pairs()][-2:] == [2**32 + 2**30, 2**32 + 2**31]


@pytest.mark.meets("R2")
def test_commits_that_the_log_has_are_dropped_and_counted() -> None:
    ours = made(after=200)
    assert taken(ours, [m.begin(1), KEPT, m.insert(1, row(1)), m.commit(100)]) == []
    streamed = [m.stream_start(2, first=True), m.relation(relation(2, 0), xid=2)]
    streamed += [m.insert(2, row(1), xid=2), m.stream_stop(), m.stream_commit(2, 200)]
    assert taken(ours, streamed) == []
    assert ours.dropped == 2
    # What they said of their tables still counts: the server does not say it again.
    found = taken(ours, [m.begin(3), m.insert(1, row(2)), m.insert(2, row(2)), m.commit(300)])
    assert brief(found) == [("kept", Op.INSERT, 300, 0), ("full", Op.INSERT, 300, 1)]
    assert ours.dropped == 2


def test_a_commit_in_two_buffers_waits_for_its_end() -> None:
    ours = made()
    assert ours.idle
    assert taken(ours, [m.begin(1), KEPT, m.insert(1, row(1))]) == []
    assert not ours.idle
    assert taken(ours, [m.insert(1, row(2))]) == []
    found = taken(ours, [m.commit(9), m.begin(2), m.insert(1, row(3)), m.commit(10)])
    assert brief(found) == [("kept", 0, 9, 0), ("kept", 0, 9, 1), ("kept", 0, 10, 0)]
    assert ours.idle


@pytest.mark.meets("R9")
def test_a_large_transaction_in_one_piece_comes_in_parts() -> None:
    ours = made()
    with patch.object(module, "TAIL_BYTES", 100), patch.object(module, "PART_MESSAGES", 4):
        assert taken(ours, [m.begin(9), m.commit(50), m.begin(1), KEPT, m.insert(1, row(0))])
        for number in range(1, 10):
            assert taken(ours, [m.insert(1, row(number))]) == []
        assert not ours.idle
        found = taken(ours, [m.commit(99), m.begin(2), m.commit(100)])
    assert ours.idle
    assert [(each.upto.commit, each.ends) for each in found] == [
        (50, False),
        (50, False),
        (99, True),
        (100, True),
    ]
    assert brief(found) == [("kept", 0, 99, ordinal) for ordinal in range(10)]
    pending = UnflushedChanges(Position(1, 50))
    for each in found[:-2]:
        pending.add(each)
        assert not pending.complete
    pending.add(found[-2])
    assert (pending.complete, pending.rows) == (True, 10)


@pytest.mark.meets("R23d")
def test_a_truncate_is_one_change_of_each_table_at_the_same_place() -> None:
    messages = [m.begin(1), KEPT, FULL, OTHER, m.insert(1, row(1)), m.truncate([1, 3, 2], flags=1)]
    found = taken(made(), [*messages, m.insert(2, row(2)), m.commit(9)])
    assert brief(found) == [
        ("kept", Op.INSERT, 9, 0),
        ("full", Op.TRUNCATE, 9, 1),
        ("kept", Op.TRUNCATE, 9, 1),
        ("full", Op.INSERT, 9, 2),
    ]
    images = [(r["before"], r["after"]) for _, _, r in rows(found) if r["_op"] == Op.TRUNCATE]
    assert images == [(None, None)] * 2


@pytest.mark.meets("R21")
def test_a_value_that_was_not_sent_again_is_marked_unless_the_old_row_has_it() -> None:
    unchanged = m.UNCHANGED
    messages = [m.begin(1), KEPT, FULL]
    messages += [m.update(1, row(1, unchanged, unchanged)), m.update(1, row(1, "x", unchanged))]
    messages += [m.update(1, row(2, "y", unchanged), key=["1", None, None, None])]
    messages += [m.update(2, row(1, unchanged, unchanged), old=row(1, "old note", None))]
    found = [r for _, _, r in rows(taken(made(), [*messages, m.commit(9)]))]
    assert [r["_unsent"] for r in found] == [[2, 3], [3], [3], None]
    assert [r["after"] for r in found] == [
        {"id": 1, "note": None, "big": None},
        {"id": 1, "note": "x", "big": None},
        {"id": 2, "note": "y", "big": None},
        {"id": 1, "note": "old note", "big": None},
    ]
    assert [r["before"] for r in found] == [
        None,
        None,
        {"id": 1, "note": None, "big": None},
        {"id": 1, "note": "old note", "big": None},
    ]


@pytest.mark.meets("R21")
def test_a_key_that_was_not_sent_again_is_that_of_the_old_key() -> None:
    key = RelationColumn("note", 25, -1, True)
    it = Relation(1, "public", "kept", "i", (RelationColumn("id", 20, -1, True), key))
    update = m.update(1, ["2", m.UNCHANGED], key=["1", "large key"])
    [(_, _, found)] = rows(taken(made(), [m.begin(1), m.relation(it), update, m.commit(9)]))
    assert (found["after"], found["_unsent"]) == ({"id": 2, "note": "large key"}, None)


@pytest.mark.meets("R22", "R23")
def test_before_images_hold_what_the_identity_sends() -> None:
    messages = [
        m.begin(1),
        KEPT,
        FULL,
        m.update(1, row(1)),
        m.update(1, row(2), key=row(1)[:1] + [None] * 3),
    ]
    messages += [m.delete(1, key=["2", None, None, None]), m.delete(2, old=row(3))]
    found = rows(taken(made(), [*messages, m.commit(9)]))
    assert [r["before"] for _, _, r in found] == [
        None,
        {"id": 1, "note": None, "big": None},
        {"id": 2, "note": None, "big": None},
        {"id": 3, "note": "a", "big": "b"},
    ]
    assert [r["after"] is None for _, _, r in found] == [False, False, True, True]


@pytest.mark.meets("R23f")
def test_what_a_column_cannot_hold_stands_in_its_mark() -> None:
    messages = [m.begin(1), FULL, m.insert(2, row(1)), m.update(2, row(1), old=row(1))]
    broken = m.update(2, ["new?", "a", "b", "c"], old=["old?", "a", "b", "c"])
    found = rows(taken(made(), [*messages, broken, m.commit(9)]))
    assert [r["_exact"] for _, _, r in found] == [None, None, [(-1, "old?"), (1, "new?")]]
    assert found[2][2]["after"]["id"] is None


@pytest.mark.meets("R6", "R23b")
def test_a_relation_counts_from_its_place_on() -> None:
    wider = m.relation(relation(1, 1))
    messages = [
        m.begin(1),
        KEPT,
        m.insert(1, row(1)),
        wider,
        m.insert(1, ["2", "a", "7", "b", "c"]),
    ]
    messages += [m.commit(9), m.begin(2), KEPT, m.insert(1, row(3)), m.commit(10)]
    changes, later = taken(made(), messages)
    assert [(t.schema.names, t.rows["_ordinal"].to_pylist()) for t in changes.tables] == [
        (("id", "note", "big"), [0]),
        (("id", "note", "extra", "big"), [1]),
    ]
    assert [t.schema.names for t in later.tables] == [("id", "note", "big")]
    assert changes.tables[1].rows["after"].to_pylist() == [
        {"id": 2, "note": "a", "extra": 7, "big": "b"}
    ]


def test_a_relation_that_goes_and_comes_back_is_a_new_one_each_time() -> None:
    wider = m.relation(relation(1, 1))
    wide = m.insert(1, ["2", "a", "7", "b", "c"])
    inserts = [KEPT, m.insert(1, row(1)), wider, wide, KEPT, m.insert(1, row(3))]
    [changes] = taken(made(), [m.begin(1), *inserts, m.commit(9)])
    assert [t.rows["_ordinal"].to_pylist() for t in changes.tables] == [[0], [1], [2]]


def test_commits_before_a_relation_that_cannot_be_taken_are_not_lost() -> None:
    class Strict(Tables):
        def layout(self, relation: Relation) -> RelationLayout | None:
            if len(relation.columns) > 4:
                raise SchemaChanged("Table has other columns", table=relation.table)
            return super().layout(relation)

    ours = Transactions(Strict(), Spill(None), after=0, position_at=place, near_xid=0)
    messages = [m.begin(1), KEPT, m.insert(1, row(1)), m.commit(9), m.begin(2)]
    got = m.received([*messages, m.relation(relation(1, 1)), m.commit(10)])
    found = ours.take(got.buffer, got.starts, got.stops)
    assert brief([next(found)]) == [("kept", 0, 9, 0)]
    with pytest.raises(SchemaChanged):
        next(found)


def test_a_relation_that_says_the_same_again_cuts_nothing() -> None:
    messages = [m.begin(1), KEPT, m.insert(1, row(1)), KEPT, m.insert(1, row(2)), m.commit(9)]
    [changes] = taken(made(), messages)
    assert [table.rows.num_rows for table in changes.tables] == [2]


def test_a_column_that_the_relation_does_not_have_is_null() -> None:
    schema = TableSchema(
        "kept", (Column("gone", ValueType("timestamptz"), 8), Column("id", ValueType("int64"), 1))
    )

    class Other:
        def layout(self, relation: Relation) -> RelationLayout:
            return RelationLayout(schema, (1, None, None, None))

    ours = Transactions(Other(), Spill(None), after=0, position_at=place, near_xid=0)
    [(_, _, found)] = rows(taken(ours, [m.begin(1), KEPT, m.insert(1, row(4)), m.commit(9)]))
    assert found["after"] == {"gone": None, "id": 4}


def test_binary_values_are_read_as_such() -> None:
    messages = [m.begin(1), KEPT, m.insert(1, [m.Binary(bytes(7) + b"\5"), "a", None, None])]
    [(_, _, found)] = rows(taken(made(), [*messages, m.commit(9)]))
    assert found["after"] == {"id": 5, "note": "a", "big": None}


# --- streams -------------------------------------------------------------------------------


def streamed(xid: int, *content: bytes, first: bool = True) -> list[bytes]:
    return [m.stream_start(xid, first=first), *content, m.stream_stop()]


@pytest.mark.meets("R5", "R6")
def test_what_was_rolled_back_within_a_stream_is_not_there_and_not_counted() -> None:
    ours = made()
    kept = m.relation(relation(1, 0), xid=10)
    first = streamed(10, kept, *(m.insert(1, row(n), xid=10 + n % 2) for n in range(4)))
    assert taken(ours, first) == []
    assert ours.idle
    assert ours.streams == 1
    assert taken(ours, [m.stream_abort(10, 11)]) == []
    again = streamed(10, kept, m.insert(1, row(9), xid=12), first=False)
    between = [m.begin(5), KEPT, m.insert(1, row(7)), m.commit(50)]
    found = taken(ours, [*between, *again, m.stream_commit(10, 60, time=8)])
    assert [
        (r["_commit"], r["_ordinal"], r["_xid"], r["after"]["id"]) for _, _, r in rows(found)
    ] == [
        (50, 0, 5, 7),
        (60, 0, 10, 0),
        (60, 1, 10, 2),
        (60, 2, 10, 9),
    ]
    assert ours.streams == 0


@pytest.mark.meets("R6")
def test_relations_of_a_stream_are_its_own_until_it_commits() -> None:
    ours = made()
    wide = ["1", "a", "7", "b", "c"]
    taken(ours, [m.begin(1), KEPT, m.commit(10)])
    altered = m.relation(relation(1, 1), xid=10)
    taken(ours, streamed(10, altered, m.insert(1, wide, xid=10)))
    [before] = taken(ours, [m.begin(2), m.insert(1, row(1)), m.commit(20)])
    assert before.tables[0].schema.names == ("id", "note", "big")
    taken(ours, [m.stream_commit(10, 30)])
    [after] = taken(ours, [m.begin(3), m.insert(1, wide), m.commit(40)])
    assert after.tables[0].schema.names == ("id", "note", "extra", "big")


@pytest.mark.meets("R6")
def test_relations_of_a_stream_that_was_rolled_back_are_forgotten() -> None:
    ours = made()
    taken(ours, streamed(10, m.relation(relation(1, 1), xid=10)))
    taken(ours, [m.stream_abort(10, 10)])
    with pytest.raises(BadMessage):
        taken(ours, [m.begin(3), m.insert(1, row(1)), m.commit(40)])


@pytest.mark.meets("R6")
def test_a_relation_received_after_a_streams_own_outlives_its_commit() -> None:
    ours = made()
    taken(ours, streamed(10, m.relation(relation(1, 0), xid=10)))
    taken(ours, [m.begin(1), m.relation(relation(1, 1)), m.commit(10)])
    taken(ours, [m.stream_commit(10, 20)])
    [after] = taken(ours, [m.begin(3), m.insert(1, ["1", "a", "7", "b", "c"]), m.commit(40)])
    assert after.tables[0].schema.names == ("id", "note", "extra", "big")


@pytest.mark.meets("R9")
def test_a_streamed_transaction_comes_in_parts_and_only_the_last_one_ends_it() -> None:
    ours = made(after=5)
    kept = m.relation(relation(1, 0), xid=10)
    many = [m.insert(1, row(n), xid=10) for n in range(40_000)]
    taken(ours, streamed(10, kept, *many))
    found = taken(ours, [m.stream_commit(10, 60)])
    assert [(each.upto.commit, each.ends) for each in found] == [(5, False), (5, False), (60, True)]
    ordinals = [r["_ordinal"] for _, _, r in rows(found)]
    assert ordinals == list(range(40_000))


def test_a_stream_may_be_cut_anywhere() -> None:
    ours = made()
    kept = m.relation(relation(1, 0), xid=10)
    found = []
    for message in [*streamed(10, kept, m.insert(1, row(1), xid=10)), m.stream_commit(10, 60)]:
        found += taken(ours, [message])
        assert ours.idle
    assert brief(found) == [("kept", 0, 60, 0)]


@pytest.mark.meets("R3")
def test_a_message_outside_transactions_moves_the_position_and_nothing_else() -> None:
    ours = made(after=10)
    alone = m.message(30, "p", b"content", transactional=False)
    [moved] = taken(ours, [m.message(9, "p", b"", transactional=False), alone])
    assert (moved.upto.commit, list(moved.tables), moved.ends) == (30, [], True)
    assert ours.position == 30
    found = taken(ours, [m.begin(1), m.message(35, "p", b"x"), m.commit(40), m.begin(2)])
    assert [each.upto.commit for each in found] == [40]


@pytest.mark.meets("R3", "R5")
def test_markers_come_with_the_commit_they_stand_in_once_and_not_if_it_was_rolled_back() -> None:
    ours = made(after=10)
    run = [
        m.begin(1), m.message(5, "headrace", b"old"), m.commit(10),
        m.message(9, "headrace", b"older", transactional=False),
        m.begin(2), m.message(15, "headrace", b"within"), m.message(16, "p", b"x"), m.commit(20),
        m.message(30, "headrace", b"alone", transactional=False),
    ]  # fmt: skip
    assert [text for each in taken(ours, run) for text in each.markers] == ["within", "alone"]
    streamed = [
        m.stream_start(7, first=True),
        m.message(31, "headrace", b"kept", xid=7),
        m.message(32, "headrace", b"rolled back", xid=8),
        m.stream_stop(),
        m.stream_abort(7, 8),
        m.stream_commit(7, 40),
    ]
    assert [text for each in taken(ours, streamed) for text in each.markers] == ["kept"]


def test_an_empty_commit_moves_the_position() -> None:
    [moved] = taken(made(), [m.begin(1), m.origin(3, "there"), m.type_(5, "s", "t"), m.commit(40)])
    assert (moved.upto.commit, list(moved.tables)) == (40, [])


def test_the_buffer_is_free_when_its_changes_were_read() -> None:
    got = m.received([m.begin(1), KEPT, m.insert(1, row(1)), m.commit(9), m.begin(2)])
    buffer = bytearray(got.buffer)
    ours = made()
    found = list(ours.take(buffer, got.starts, got.stops))
    buffer[:] = b"\xff" * len(buffer)
    buffer.extend(b"resized")
    found += taken(ours, [m.insert(1, row(2)), m.commit(10)])
    assert [r["after"]["id"] for _, _, r in rows(found)] == [1, 2]


def test_nothing_to_take_gives_nothing() -> None:
    assert taken(made(), []) == []


@pytest.mark.meets("H2")
def test_commits_are_remembered_up_to_a_limit() -> None:
    committed = RecentCommits(most=3)
    for turn in range(4):
        committed.add(np.array([10 * turn, 10 * turn + 1]), np.array([turn, 100 + turn]))
    assert committed.pairs() == [(20, 2), (21, 102), (30, 3), (31, 103)]
    assert committed.upto(21).tolist() == [2, 102]
    assert len(committed) == 4
