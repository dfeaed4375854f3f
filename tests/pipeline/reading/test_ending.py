"""What ends a query: each thing that somebody must decide on, at its own place."""

from __future__ import annotations

import pytest

from headrace.changelog.compaction import Compaction
from headrace.changelog.position import Position
from headrace.changelog.retention import prune
from headrace.errors import ChangesMissing, OtherSource, PositionExpired, Truncated
from headrace.spark_source import source as readers_module
from tests.changelog.log_making import SOURCE, insert, reading, table, truncate
from tests.pipeline.reading.made_log import MadeLog, ids


def test_rows_that_changed_unseen_are_told_each_time(log: MadeLog) -> None:
    for commit, reason in enumerate(("partitions", "columns", "left out"), 1):
        log.flush(insert(commit))
        log.writer.require_baseline("orders", reason)
    log.flush(insert(4))
    stream = log.stream()
    for commit, reason in enumerate(("partitions", "columns", "left out"), 1):
        assert ids(stream.batch() or []) == [commit]
        with pytest.raises(ChangesMissing, match=f"reason={reason}"):
            stream.batch()
        with pytest.raises(ChangesMissing, match=f"reason={reason}"):
            log.read(startingVersion=commit, endingVersion=commit + 1)
        # Somebody decides to go on, and looks at the next one again.
        stream.start_again(onGap="continue", maxRowsPerBatch=1)
        assert ids(stream.batch() or []) == [commit + 1]
        stream.kept.pop()
        stream.kept[-1] = {**stream.kept[-1], "position": str(Position(1, commit, 1))}
        stream.start_again(onGap="fail")
    assert ids(log.read(endingPosition=Position(1, 1, 0))) == [1]


def test_only_rows_of_this_table_count(log: MadeLog) -> None:
    log.flush(insert(1), schema=table("items"))
    log.writer.require_baseline("items", "partitions")
    log.flush(insert(2))
    assert ids(log.read()) == [2]
    prune(log.writer, Position(1, 1, 1))
    assert ids(log.stream().batch() or []) == [2]


def test_a_truncate_in_the_middle_of_a_flush_is_named_by_its_own_place(log: MadeLog) -> None:
    log.flush(insert(1))
    log.flush(insert(2), truncate(3))
    stream = log.stream()
    assert ids(stream.batch() or []) == [1]
    with pytest.raises(Truncated, match="position=0001-0000000000000003-00000000"):
        stream.batch()
    with pytest.raises(Truncated, match="position=0001-0000000000000003-00000000"):
        log.read()


def test_a_query_that_goes_on_past_gaps_does_so_while_nothing_happens(
    log: MadeLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.flush(insert(5))
    stream = log.stream(onGap="continue")
    stream.all()
    log.restart_history(6, "sqlite/other")
    for commit in (7, 8, 9):
        log.flush(insert(commit), schema=table("items"))
    monkeypatch.setattr(readers_module, "IDLE_SECONDS", -1.0)
    assert stream.batch() == []
    assert stream.kept[-1]["position"] == str(reading(log.files).end)
    prune(log.writer, Position(2, 8, 0))
    # And where it is at the end there is nothing to move to.
    assert stream.batch() is None


@pytest.mark.meets("R1")
def test_a_checkpoint_of_a_log_that_is_gone_is_refused_in_every_epoch(log: MadeLog) -> None:
    log.flush(insert(5))
    stream = log.stream(onGap="continue")
    first = stream.kept[-1]
    log.restart_history(6, "sqlite/other")
    log.flush(insert(7))
    for epoch in (1, 2):
        stream.kept[-1] = {"lineage": "sqlite/gone", "position": str(Position(epoch, 6, 0))}
        with pytest.raises(OtherSource, match="new checkpoint"):
            stream.batch()
    # One that was made when the second had begun has the second's lineage.
    for lineage in ("sqlite/other", first["lineage"]):
        stream.kept[-1] = {**first, "lineage": lineage}
        assert ids(stream.batch() or []) == [5]


def test_a_segment_that_was_merged_tells_to_run_it_again(log: MadeLog) -> None:
    for commit in range(1, 41):
        log.flush(insert(commit))
    reader = log.reader(reader="me")
    partitions = reader.partitions()
    before = set((log.data / "log" / SOURCE / "segments").iterdir())
    assert Compaction(log.writer).advance(log.writer.end, ()) is not None
    for segment in before:
        segment.unlink()
    with pytest.raises(PositionExpired, match="Run the query again"):
        list(reader.read(partitions[0]))
    assert ids(log.read()) == list(range(1, 41))
