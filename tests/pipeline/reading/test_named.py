"""What a name holds: the part of the log that a query needs, and the baseline it is in."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.changelog.position import ORIGIN, Position
from headrace.changelog.retention import NamedReader, ReaderLease, leases, prune
from headrace.errors import PositionExpired
from headrace.runtime.info import LogOptions
from headrace.runtime.retention import LogRetention
from headrace.storage.files import Files
from tests.changelog.log_making import SOURCE, insert, reading
from tests.pipeline.reading.made_log import MadeLog, ids

FOUR = [{"id": key, "name": "x"} for key in range(4)]


def held(log: MadeLog) -> tuple[Position, tuple[int, ...]]:
    (found,) = leases(log.files, SOURCE, time.time())
    return found.position, found.baselines


def retention_of(log: MadeLog) -> LogRetention:
    """Return the retention of a log without other readers."""
    recording: Any = SimpleNamespace(name=SOURCE, log=reading(log.files), found=[])
    store: Any = SimpleNamespace(needs_of=lambda source: [], positions=set)
    clocks = (time.monotonic, time.time)
    return LogRetention(recording, list, list, store, log.files, LogOptions(keep=0.0), *clocks)


@pytest.mark.meets("R27")
def test_who_waits_for_a_baseline_holds_what_that_may_need(log: MadeLog) -> None:
    for commit in range(1, 6):
        log.flush(insert(commit))
    stream = log.stream(startingPosition="baseline", reader="me", maxRowsPerBatch=1)
    assert held(log) == (ORIGIN, ())
    # It was begun before the log came to where it ends now.
    log.baseline(FOUR[:2], 2, 2)
    assert ids(stream.batch() or []) == [0]
    assert held(log) == (ORIGIN, (1,))
    stream.batch()
    assert held(log) == (Position(1, 2, 2**31 - 1), (1,))
    assert ids(stream.batch() or []) == [3]
    assert held(log) == (Position(1, 2, 2**31 - 1), ())


@pytest.mark.meets("R27")
def test_what_a_killed_batch_needs_is_held_though_a_query_would_begin_elsewhere_now(
    log: MadeLog,
) -> None:
    log.flush(insert(1))
    stream = log.stream(startingPosition="latest", reader="me")
    log.flush(insert(2))
    assert ids(stream.batch() or []) == [2]
    for commit in range(3, 6):
        log.flush(insert(commit))
    stream.start_again()
    # As Spark asks where no batch was ended.
    assert stream.reader.initialOffset()["position"] == str(Position(1, 5, 0))
    assert held(log) == (Position(1, 1, 0), ())
    assert ids(stream.again()) == [2]
    assert ids(stream.batch() or []) == [3, 4, 5]
    assert held(log) == (Position(1, 2, 0), ())


@pytest.mark.meets("R27")
def test_a_newer_baseline_does_not_take_away_the_one_that_a_name_is_in(log: MadeLog) -> None:
    log.flush(insert(1))
    log.baseline(FOUR, 1, 1)
    stream = log.stream(startingPosition="baseline", maxRowsPerBatch=2, reader="me")
    stream.batch()
    log.flush(insert(5))
    log.baseline([{"id": 9, "name": "y"}], 5, 5)
    retention = retention_of(log)
    retention.decide()
    order = retention.decide()
    assert order.drop == ()
    # Started again in the middle, too.
    stream.start_again()
    assert ids(stream.again()) == [0, 1]
    assert [ids(batch) for batch in stream.all()] == [[2, 3], [5]]
    retention.decide()
    assert retention.decide().drop == (1,)


def test_without_a_name_a_baseline_is_let_go_of(log: MadeLog) -> None:
    log.flush(insert(1))
    log.baseline(FOUR, 1, 1)
    stream = log.stream(startingPosition="baseline", maxRowsPerBatch=2)
    stream.batch()
    log.flush(insert(5))
    log.baseline([{"id": 9, "name": "y"}], 5, 5)
    retention = retention_of(log)
    retention.decide()
    drop = retention.decide().drop
    assert drop == (1,)
    prune(log.writer, Position(1, 0, 0), baselines=list(drop))
    with pytest.raises(PositionExpired, match="began with"):
        stream.batch()


def test_who_waits_is_not_ended_by_what_it_does_not_need(log: MadeLog) -> None:
    for commit in range(1, 6):
        log.flush(insert(commit))
    stream = log.stream(startingPosition="baseline", reader="me", lease="1us")
    prune(log.writer, Position(1, 3, 0))
    assert stream.batch() is None
    log.baseline(FOUR, 5, 5)
    assert len(stream.batch() or []) == 4


def test_a_lease_from_before_it_told_of_baselines_is_read(log: MadeLog) -> None:
    NamedReader(log.files, SOURCE, "me", 60.0, lambda: 1000.0).hold(ORIGIN, reading(log.files))
    path = log.data / "log" / SOURCE / "readers" / "me.json"
    path.write_text('{"position":"0001-0000000000000001-00000000","until":2000,"format":1}')
    assert leases(log.files, SOURCE, 0.0) == [ReaderLease("me", Position(1, 1, 0), 2000)]


def test_a_look_at_a_log_asks_for_its_named_readers_once(
    log: MadeLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.flush(insert(1))
    asked: list[str] = []
    listed = Files.list

    def listing(files: Files, folder: str) -> list[str]:
        asked.append(files.path(folder))
        return listed(files, folder)

    retention = retention_of(log)
    monkeypatch.setattr(Files, "list", listing)
    retention.decide()
    assert sum(path.endswith("/readers") for path in asked) == 1
