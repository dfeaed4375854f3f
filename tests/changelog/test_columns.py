"""Which columns changes are told in, newest or in turn; and that merging keeps turns apart."""

from __future__ import annotations

import pytest

from headrace.changelog import compaction as module
from headrace.changelog import history
from headrace.changelog.compaction import Compaction
from headrace.changelog.history import Turn
from headrace.changelog.position import ORIGIN, Position
from headrace.changelog.reader import LogReader, LogWriter
from headrace.storage.files import Files
from tests.changelog.log_making import (
    At,
    at,
    begun,
    changes,
    commits,
    fill,
    insert,
    reading,
    row_table,
    table,
)

pytestmark = pytest.mark.meets("R23b")

WIDE = table(id="int64", name="text", more="text")
NARROW = table(id="int64")


def turns(log: LogReader, since: int, after: Position) -> list[Turn]:
    """Follow the columns from turn to turn."""
    found = [log.columns_in_turn("orders", since, after)]
    while (until := found[-1].until) is not None:
        found.append(log.columns_in_turn("orders", found[-1].schema, Position.parse(until)))
    return found


def altered(log: LogWriter) -> None:
    """Two flushes in each of three schemas, and one of nothing of ours in between."""
    for number in (1, 2):
        log.append(commits(number))
        log.flush()
    for number in (3, 4):
        log.append(changes([insert(number)], WIDE))
        log.flush()
    log.heartbeat(At(5))
    for number in (6, 7):
        log.append(changes([insert(number)], NARROW))
        log.flush()


def test_turns_end_where_the_step_before_other_columns_ends(files: Files) -> None:
    writer = begun(files)
    altered(writer)
    log = reading(files)
    assert turns(log, 0, ORIGIN) == [
        Turn(1, str(at(2))),
        Turn(2, str(Position(1, 5))),
        Turn(3),
    ]
    assert log.columns_in_turn("orders", 1, at(1)) == Turn(1, str(at(2)))
    assert log.columns_in_turn("orders", 1, at(2)) == Turn(2, str(Position(1, 5)))
    assert log.columns_in_turn("orders", 3, at(7)) == Turn(3)
    assert log.columns("orders", 1) == Turn(3), "the newest, for who does not care for turns"
    assert log.columns_in_turn("orders", 3, at(1)) == Turn(3), "nobody goes back"
    assert log.columns_in_turn("unheard_of", 0, at(1)) == Turn(0)


def test_who_has_passed_a_baseline_has_its_columns(files: Files) -> None:
    writer = begun(files)
    log = reading(files)
    writer.append(commits(1))
    writer.flush()
    copy = writer.baseline(WIDE)
    log.refresh()
    assert log.columns("orders", 1) == Turn(2)
    assert log.columns_in_turn("orders", 0) == Turn(1), "no file has the second ones"
    assert log.columns_in_turn("orders", 1, at(1)) == Turn(1), "more of those may come"
    copy.write(row_table(WIDE, {"id": 1, "name": "a", "more": "b"}))
    copy.finish(1, 2)
    log.refresh()
    assert log.columns_in_turn("orders", 0) == Turn(2)
    assert log.columns_in_turn("orders", 1, ORIGIN) == Turn(1)
    assert log.columns_in_turn("orders", 1, at(1)) == Turn(1)
    assert log.columns_in_turn("orders", 1, at(2)) == Turn(2)


def test_of_a_long_backlog_no_more_is_looked_at_than_a_batch_has(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "_LOOKED_AT", 2)
    writer = begun(files)
    fill(writer, 1, 5)
    writer.append(changes([insert(6)], WIDE))
    writer.flush()
    assert turns(reading(files), 1, ORIGIN) == [
        Turn(1, str(at(2))),
        Turn(1, str(at(4))),
        Turn(1, str(at(5))),
        Turn(2),
    ]


def test_files_tell_whether_their_columns_are_known(files: Files) -> None:
    writer = begun(files)
    altered(writer)
    log = reading(files)
    batch = log.next_batch("orders", ORIGIN, 100)
    assert batch is not None
    for since, known in ((0, 0), (1, 2), (2, 4), (3, 6)):
        for count in range(7):
            later = log.has_later_columns("orders", batch.files[:count], since)
            assert later == (count > known)
    assert not log.has_later_columns("unheard_of", batch.files, 0)


def test_flushes_in_other_columns_are_not_merged_into_one(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LEAST_FLUSHES", 2)
    writer = begun(files)
    altered(writer)
    merging = Compaction(writer)
    while merging.advance(writer.end, ()) is not None:
        pass
    log = reading(files)
    assert len(log.next_batch("orders", ORIGIN, 100).files) == 3  # type: ignore[union-attr]
    assert [turn.schema for turn in turns(log, 0, ORIGIN)] == [1, 2, 3]
