"""A batch that comes again has the same rows, and what was planned is read whole, or an error."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest

from headrace.changelog.position import Position
from headrace.changelog.retention import leases, prune
from headrace.errors import ChangesMissing, PositionExpired
from headrace.spark_source.source import HeadraceStreamReader
from tests.changelog.log_making import SOURCE, At, insert
from tests.pipeline.reading.made_log import MadeLog, Row, collected, ids, short


def streaming(log: MadeLog, **options: object) -> HeadraceStreamReader:
    source = log.source(**options)
    reader = source.streamReader(source.schema())
    assert isinstance(reader, HeadraceStreamReader)
    return reader


def rows_of(reader: HeadraceStreamReader, start: Any, end: Any) -> list[Row]:
    found: list[Row] = collected(reader, reader.partitions(start, end)).to_pylist()
    return found


def test_a_batch_that_ends_behind_the_log_is_refused(log: MadeLog) -> None:
    log.flush(insert(1))
    stream = log.stream()
    stream.batch()
    beyond = {**stream.kept[0], "position": str(Position(1, 9, 0))}
    with pytest.raises(ChangesMissing, match=r"ends=0001-0000000000000001-00000000"):
        stream.reader.partitions(stream.kept[0], beyond)
    log.flush(insert(5), insert(9))
    assert ids(rows_of(stream.reader, stream.kept[-1], beyond)) == [5, 9]


def test_a_baseline_may_begin_at_a_commit_that_is_still_on_its_way(log: MadeLog) -> None:
    log.flush(insert(1))
    log.baseline([{"id": 1, "name": "a"}], 4, 4)
    stream = log.stream(startingPosition="baseline")
    assert ids(stream.batch() or []) == [1]
    log.flush(insert(4), insert(5))
    assert ids(stream.batch() or []) == [5]


@pytest.mark.meets("R27")
def test_the_first_batch_once_more_has_what_it_had_or_is_told_to_be_gone(log: MadeLog) -> None:
    for commit in range(1, 6):
        log.flush(insert(commit))
    stream = log.stream()
    assert ids(stream.batch() or []) == [1, 2, 3, 4, 5]
    again = streaming(log)
    assert ids(rows_of(again, again.initialOffset(), stream.kept[-1])) == [1, 2, 3, 4, 5]
    prune(log.writer, Position(1, 3, 0))
    again = streaming(log)
    with pytest.raises(PositionExpired, match="earliest=0001-0000000000000003-00000001"):
        again.partitions(again.initialOffset(), stream.kept[-1])


def test_latest_is_the_end_of_when_it_was_first_asked_for(log: MadeLog) -> None:
    log.flush(insert(1))
    reader = streaming(log, startingPosition="latest")
    first = reader.initialOffset()
    log.flush(insert(2))
    end = reader.latestOffset(first, reader.getDefaultReadLimit())
    assert reader.initialOffset() == first
    assert ids(rows_of(reader, first, end)) == [2]
    # A query that was killed in its first batch begins later, and repeats it all the same.
    log.flush(insert(3))
    again = streaming(log, startingPosition="latest")
    assert ids(rows_of(again, again.initialOffset(), end)) == [2]
    assert ids(rows_of(again, end, again.latestOffset(end))) == [3]


def test_a_first_batch_from_a_baseline_stays_one_whatever_is_asked_for_then(log: MadeLog) -> None:
    log.flush(insert(1))
    log.baseline([{"id": 7, "name": "x"}], 1, 1)
    stream = log.stream(startingPosition="baseline")
    assert ids(stream.batch() or []) == [7]
    again = streaming(log, startingPosition="earliest")
    assert ids(rows_of(again, again.initialOffset(), stream.kept[-1])) == [7]


def test_nothing_more_is_said_of_the_beginning_than_once(log: MadeLog) -> None:
    log.flush(insert(1))
    stream = log.stream()
    stream.all()
    log.flush(insert(2))
    stream.all()
    assert [sorted(each) for each in stream.kept] == [
        ["lineage", "position"],
        ["lineage", "position", "since"],
        ["lineage", "position"],
    ]


# --- where Spark does not say where a query stands (4.1) ------------------------------------------


@pytest.mark.parametrize("start", ["baseline", "earliest"])
def test_a_query_that_is_started_again_goes_on_where_it_was(log: MadeLog, start: str) -> None:
    log.flush(insert(1))
    log.baseline([{"id": 1, "name": "a"}], 1, 1)
    log.flush(insert(2))
    stream = log.stream(startingPosition=start)
    assert [key for batch in stream.all() for key in ids(batch)] == [1, 2]
    at = stream.kept[-1]
    again = streaming(log, startingPosition=start)
    end = again.latestOffset()
    assert rows_of(again, at, end) == []
    assert again.latestOffset() == end
    log.flush(insert(3))
    later = again.latestOffset()
    assert ids(rows_of(again, end, later)) == [3]
    # And where there is something new at once.
    log.flush(insert(4))
    third = streaming(log, startingPosition=start)
    assert ids(rows_of(third, later, third.latestOffset())) == [4]


def test_a_name_is_held_where_a_query_turns_out_to_stand(log: MadeLog) -> None:
    for commit in (1, 2):
        log.flush(insert(commit))
    stream = log.stream(reader="me")
    stream.batch()
    stream.reader.stop()
    again = streaming(log, reader="me")

    def held() -> list[Position]:
        return [lease.position for lease in leases(log.files, SOURCE, time.time())]

    # Perhaps it stands before that: what is held stays held until that is known.
    again.latestOffset()
    assert held() == [Position(1, 0, 0)]
    again.latestOffset()
    assert held() == [Position(1, 2, 0)]


def test_a_query_that_still_waits_for_its_baseline_gets_it(log: MadeLog) -> None:
    log.flush(insert(1))
    at = streaming(log, startingPosition="baseline").initialOffset()
    with pytest.raises(ChangesMissing, match="no baseline"):
        streaming(log, startingPosition="baseline").latestOffset()
    log.baseline([{"id": 7, "name": "x"}], 1, 1)
    log.flush(insert(2))
    again = streaming(log, startingPosition="baseline")
    end = again.latestOffset()
    assert ids(rows_of(again, at, end)) == [7, 2]
    log.flush(insert(3))
    assert ids(rows_of(again, end, again.latestOffset())) == [3]


def test_a_query_that_waits_for_a_place_to_come_does_not_go_back(log: MadeLog) -> None:
    log.flush(insert(1))
    at = streaming(log, startingVersion=50).initialOffset()
    again = streaming(log, startingVersion=50)
    assert again.latestOffset() == at
    assert again.partitions(at, at) == []
    log.flush(insert(49), insert(50))
    assert ids(rows_of(again, at, again.latestOffset())) == [50]


# --- all there is, from a baseline ----------------------------------------------------------------


@pytest.mark.meets("R11")
@pytest.mark.parametrize("snapshot", ["12:13:12", ""], ids=["snapshot", "none"])
@pytest.mark.parametrize("begun", [0, 1, 2], ids=["waiting", "in the baseline", "in its window"])
def test_all_there_is_from_a_baseline_ends_where_it_is_exact(
    log: MadeLog, snapshot: str, begun: int
) -> None:
    log.flush(replace(insert(1), xid=10))
    log.flush(replace(insert(2), xid=12))
    rows = [{"id": 1, "name": "a"}, {"id": 4, "name": "d"}]
    # S sees 11, which is committed as 4, and does not see 12, which was committed before.
    log.baseline(rows, 1, 4, snapshot=snapshot)
    stream = log.stream(startingPosition="baseline", maxRowsPerBatch=2 if begun == 2 else 1)
    for _ in range(begun):
        stream.batch()
    stream.start_again()
    stream.reader.prepareForTriggerAvailableNow()
    with pytest.raises(ChangesMissing, match="no baseline of this table yet"):
        stream.batch()
    log.flush(replace(insert(4), xid=11))
    log.flush(replace(insert(5), xid=13))
    found = [row for batch in stream.all() for row in short(batch)]
    assert found[-1] == (5, "insert", 5)
    assert ((4, "insert", 4) in found) == (not snapshot)


def test_all_there_is_does_not_run_on_once_it_is_exact(log: MadeLog) -> None:
    log.flush(insert(1))
    log.baseline([{"id": 1, "name": "a"}], 1, 1)
    stream = log.stream(startingPosition="baseline")
    stream.reader.prepareForTriggerAvailableNow()
    log.writer.heartbeat(At(3))
    log.flush(insert(4))
    assert [ids(batch) for batch in stream.all()] == [[1]]
