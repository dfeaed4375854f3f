"""A stream: batch after batch from where it stands, and what ends it."""

from __future__ import annotations

import pickle
import time
from dataclasses import replace
from pathlib import Path

import pytest

from headrace.changelog.position import ORIGIN, Position
from headrace.changelog.retention import leases, prune
from headrace.changelog.schema import Column, TableSchema
from headrace.changelog.values import ValueType
from headrace.errors import (
    BadPosition,
    ChangesMissing,
    ColumnsChanged,
    OtherSource,
    PositionExpired,
    Truncated,
)
from headrace.spark_source import source as readers_module
from headrace.spark_source.leases import Held, QueryLease
from headrace.spark_source.offsets import NEWEST_BASELINE, Offset
from tests.changelog.log_making import (
    ORDERS,
    SOURCE,
    At,
    delete,
    insert,
    reading,
    table,
    truncate,
    update,
)
from tests.pipeline.reading.made_log import MadeLog, ids, short

WITH_NOTE = TableSchema(
    "orders", (*ORDERS.columns, Column("note", ValueType("text"), 3, missing="none")), ("id",)
)


@pytest.mark.parametrize(
    "offset",
    [
        Offset(Position(1, 5, 3), lineage="sqlite/x"),
        Offset(Position(1, 5, 3), 7, 100),
        Offset(Position(1, 5, 3), 7),
        Offset(Position(1, 5, 3), since=Position(1, 0, 0)),
        NEWEST_BASELINE,
    ],
)
def test_an_offset_is_read_back_from_a_checkpoint(offset: Offset) -> None:
    assert Offset.parse(offset.as_json()) == offset


@pytest.mark.parametrize("kept", [{}, {"position": "x"}, {"position": str(ORIGIN), "given": "a"}])
def test_an_offset_of_another_source_is_refused(kept: dict[str, object]) -> None:
    with pytest.raises(BadPosition):
        Offset.parse(kept)


def test_a_stream_follows_the_log(log: MadeLog) -> None:
    log.flush(insert(1))
    stream = log.stream()
    assert [ids(batch) for batch in stream.all()] == [[1]]
    assert stream.batch() is None
    log.flush(insert(2), delete(3, 1))
    assert [short(batch) for batch in stream.all()] == [[(2, "insert", 2), (1, "delete", 3)]]


def test_a_batch_holds_whole_flushes_up_to_its_limit(log: MadeLog) -> None:
    for first in (1, 4, 7):
        log.flush(insert(first), insert(first + 1), insert(first + 2))
    log.flush(insert(10))
    sizes = [len(batch) for batch in log.stream(maxRowsPerBatch=4).all()]
    assert sizes == [3, 3, 4]
    # One that is larger than the limit comes whole: nobody sees half a transaction.
    assert [len(batch) for batch in log.stream(maxRowsPerBatch=1).all()] == [3, 3, 3, 1]


def test_a_stream_that_is_started_again_goes_on_and_repeats_its_last_batch(log: MadeLog) -> None:
    log.flush(insert(1))
    log.flush(insert(2))
    stream = log.stream(maxRowsPerBatch=1)
    assert ids(stream.batch() or []) == [1]
    stream.start_again()
    assert ids(stream.again()) == [1]
    assert [ids(batch) for batch in stream.all()] == [[2]]


def test_what_comes_later_is_all_that_latest_gives(log: MadeLog) -> None:
    log.flush(insert(1))
    stream = log.stream(startingPosition="latest")
    assert stream.batch() is None
    log.flush(insert(2))
    assert ids(stream.batch() or []) == [2]


def test_a_stream_may_begin_at_a_place_that_is_still_to_come(log: MadeLog) -> None:
    log.flush(insert(1))
    stream = log.stream(startingVersion=50)
    assert stream.batch() is None
    log.flush(insert(49))
    assert stream.batch() is None
    log.flush(insert(50))
    assert ids(stream.batch() or []) == [50]


def test_changes_of_other_tables_make_no_batches(
    log: MadeLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.flush(insert(1))
    stream = log.stream()
    stream.all()
    items = table("items")
    log.flush(insert(2), schema=items)
    log.writer.heartbeat(At(5))
    assert stream.batch() is None
    # But it moves on in the end: what it stands behind is let go of one day.
    monkeypatch.setattr(readers_module, "IDLE_SECONDS", -1.0)
    assert stream.batch() == []
    assert stream.kept[-1]["position"] == str(reading(log.files).end)


def test_available_now_ends_at_the_end_as_it_was(log: MadeLog) -> None:
    log.flush(insert(1))
    log.flush(insert(2))
    stream = log.stream(maxRowsPerBatch=1)
    stream.reader.prepareForTriggerAvailableNow()
    log.flush(insert(3))
    assert [ids(batch) for batch in stream.all()] == [[1], [2]]


@pytest.mark.meets("R27")
def test_runs_to_the_end_move_past_the_changes_of_other_tables(log: MadeLog) -> None:
    log.flush(insert(1))
    stream = log.stream()

    def run() -> list[list[int]]:
        stream.start_again()
        stream.reader.prepareForTriggerAvailableNow()
        return [ids(batch) for batch in stream.all()]

    assert run() == [[1]]
    for commit in (2, 3):
        log.flush(insert(commit), schema=table("items"))
        # One batch without rows: what it stands behind is let go of before it runs again.
        assert run() == [[]]
        assert run() == []
        prune(log.writer, Position(1, commit, 0))
    log.flush(insert(4))
    assert run() == [[4]]


def test_a_checkpoint_behind_the_logs_end_is_told_where_nothing_was_left_to_do(
    log: MadeLog,
) -> None:
    log.flush(insert(1))
    stream = log.stream()
    stream.all()
    stream.kept.append(Offset(Position(1, 9, 0)).as_json())
    stream.start_again()
    with pytest.raises(ChangesMissing, match="log ends before"):
        stream.batch()
    # A place that is still to come is another matter.
    assert log.stream(startingVersion=50).batch() is None


def test_a_reader_goes_to_the_executors_without_its_log(log: MadeLog) -> None:
    log.flush(insert(1))
    stream = log.stream(reader="me")
    again = pickle.loads(pickle.dumps(stream.reader))
    stream.reader.stop()
    assert again.latestOffset(stream.kept[-1])["position"] == str(Position(1, 1, 0))


def test_without_a_start_the_place_that_was_seen_last_counts(log: MadeLog) -> None:
    log.flush(insert(1))
    reader = log.stream().reader
    end = reader.latestOffset()
    assert end["position"] == str(Position(1, 1, 0))
    reader.partitions(reader.initialOffset(), end)
    assert reader.latestOffset() == end


# --- what ends it -------------------------------------------------------------------------------


def test_all_before_a_truncate_is_given_and_then_it_is_told(log: MadeLog) -> None:
    log.flush(insert(1))
    log.flush(insert(2))
    log.flush(truncate(3), insert(4))
    stream = log.stream()
    assert ids(stream.batch() or []) == [1, 2]
    with pytest.raises(Truncated, match=r"position=0001-0000000000000003.*onTruncate=row"):
        stream.batch()
    stream.start_again(onTruncate="row")
    assert short(stream.batch() or []) == [(None, "truncate", 3), (4, "insert", 4)]


def test_a_new_column_ends_a_stream_which_started_again_has_it(log: MadeLog) -> None:
    log.flush(insert(1))
    stream = log.stream()
    log.flush(insert(2))
    log.flush(replace(insert(3), after={"id": 3, "name": "c", "note": "x"}), schema=WITH_NOTE)
    assert ids(stream.batch() or []) == [1, 2]
    with pytest.raises(ColumnsChanged, match=r"note added.*onSchemaChange=continue"):
        stream.batch()
    stream.start_again()
    assert [row["note"] for row in stream.batch() or []] == ["x"]


def test_a_stream_may_keep_the_columns_it_has(log: MadeLog) -> None:
    log.flush(insert(1))
    stream = log.stream(onSchemaChange="continue")
    chosen = log.stream(columns="name,id")
    log.flush(replace(insert(2), after={"id": 2, "name": "c", "note": "x"}), schema=WITH_NOTE)
    assert [sorted(row)[-2:] for row in stream.batch() or []] == [["id", "name"]] * 2
    # Who chose his columns misses nothing.
    assert ids(chosen.batch() or []) == [1, 2]


def test_rows_from_before_a_column_have_what_such_rows_have_in_it(log: MadeLog) -> None:
    log.flush(insert(1), truncate(2))
    log.flush(replace(insert(3), after={"id": 3, "name": "c", "note": "x"}), schema=WITH_NOTE)
    rows = log.read(onTruncate="row")
    assert [row["note"] for row in rows] == ["none", None, "x"]
    assert ids(log.read(onTruncate="row", where="note = 'none'")) == [1, None]


def test_a_column_is_known_again_under_another_name(log: MadeLog) -> None:
    log.flush(insert(1))
    stream = log.stream()
    renamed = replace(ORDERS, columns=(ORDERS.columns[0], replace(ORDERS.columns[1], name="title")))
    log.flush(replace(insert(2), after={"id": 2, "title": "b"}), schema=renamed)
    assert [row["title"] for row in log.read()] == ["n1", "b"]
    stream.batch()
    with pytest.raises(ColumnsChanged, match="name renamed to title"):
        stream.batch()


def test_a_wider_type_goes_on_only_where_every_value_fits(tmp_path: Path) -> None:
    small, large = table("orders", id="int32"), table("orders", id="int64")
    log = MadeLog(tmp_path)
    log.flush(replace(insert(1), after={"id": 1}), schema=small)
    stream = log.stream(onSchemaChange="continue")
    log.flush(replace(insert(2), after={"id": 2**40}), schema=large)
    with pytest.raises(ColumnsChanged):
        log.read()
    assert ids(log.read(onSchemaChange="continue")) == [1, 2**40]
    assert ids(stream.batch() or []) == [1]
    with pytest.raises(ColumnsChanged, match="id retyped"):
        stream.batch()


def test_a_dropped_column_is_told(log: MadeLog) -> None:
    log.flush(replace(insert(1), after={"id": 1, "name": "a", "note": "x"}), schema=WITH_NOTE)
    stream = log.stream()
    fewer = replace(WITH_NOTE, columns=(WITH_NOTE.columns[0], WITH_NOTE.columns[2]))
    log.flush(replace(insert(2), after={"id": 2, "note": "y"}), schema=fewer)
    stream.batch()
    with pytest.raises(ColumnsChanged, match="name dropped"):
        stream.batch()
    stream.start_again()
    assert [sorted(row)[-2:] for row in stream.batch() or []] == [["id", "note"]]


@pytest.mark.meets("R1")
def test_a_gap_ends_a_stream_and_a_new_epoch_goes_on(log: MadeLog) -> None:
    log.flush(insert(5))
    stream = log.stream()
    log.restart_history(1, "sqlite/other")
    log.flush(insert(2))
    assert ids(stream.batch() or []) == [5]
    with pytest.raises(ChangesMissing, match=r"reason=lineage.*onGap=continue"):
        stream.batch()
    stream.start_again(onGap="continue")
    assert [row["_position"] for row in stream.batch() or []] == [str(Position(2, 2, 0))]


def test_all_before_rows_that_changed_unseen_is_given_and_then_it_is_told(log: MadeLog) -> None:
    log.flush(insert(1))
    log.writer.require_baseline("orders", "partitions")
    log.flush(insert(2))
    stream = log.stream()
    assert ids(stream.batch() or []) == [1]
    with pytest.raises(ChangesMissing, match="reason=partitions"):
        stream.batch()
    stream.start_again(onGap="continue")
    assert ids(stream.batch() or []) == [2]
    log.baseline([{"id": 7, "name": "x"}], 2, 2)
    assert [ids(rows) for rows in log.stream(startingPosition="baseline").all()] == [[7]]


@pytest.mark.meets("R1")
def test_a_checkpoint_of_a_log_that_is_gone_is_refused(log: MadeLog, tmp_path: Path) -> None:
    log.flush(insert(5))
    stream = log.stream()
    stream.all()
    other = MadeLog(tmp_path / "other")
    other.flush(insert(1))
    stream.kept[-1] = {**stream.kept[-1], "lineage": "sqlite/gone"}
    with pytest.raises(OtherSource, match="new checkpoint"):
        stream.batch()


@pytest.mark.meets("R27")
def test_a_stream_that_was_away_too_long_is_told_the_earliest_position(log: MadeLog) -> None:
    for commit in range(1, 6):
        log.flush(insert(commit))
    stream = log.stream(maxRowsPerBatch=1)
    stream.batch()
    prune(log.writer, Position(1, 3, 0))
    with pytest.raises(PositionExpired, match="earliest=0001-0000000000000003-00000001"):
        stream.batch()


# --- a name that holds ----------------------------------------------------------------------------


@pytest.mark.meets("R27")
def test_a_named_stream_has_kept_what_it_has_not_done(log: MadeLog) -> None:
    for commit in range(1, 4):
        log.flush(insert(commit))
    stream = log.stream(maxRowsPerBatch=1, reader="me", lease="1h")

    def held() -> list[Position]:
        return [lease.position for lease in leases(log.files, SOURCE, time.time())]

    assert held() == [Position(1, 0, 0)]
    stream.batch()
    # What was given may be asked for once more.
    assert held() == [Position(1, 0, 0)]
    stream.batch()
    assert held() == [Position(1, 1, 0)]
    stream.start_again()
    stream.reader.stop()
    assert held() == [Position(1, 1, 0)]


def test_a_lease_is_renewed_while_nothing_happens(log: MadeLog) -> None:
    log.flush(insert(1))
    now = [1000.0]
    lease = QueryLease(str(log.data), SOURCE, "me", 30.0, lambda: now[0])
    reader = reading(log.files)
    lease.keep(Held(Position(1, 0, 0)), reader)
    for _ in range(10):
        now[0] += 11
        lease.keep(Held(Position(1, 1, 0)), reader)
        assert [each.position for each in leases(log.files, SOURCE, now[0])] == [Position(1, 0, 0)]
    lease.move(Held(Position(1, 1, 0)), reader)
    assert [each.position for each in leases(log.files, SOURCE, now[0])] == [Position(1, 1, 0)]


# --- from a baseline ------------------------------------------------------------------------------


@pytest.mark.meets("R11", "R12")
def test_a_baseline_comes_first_and_then_every_change_since(log: MadeLog) -> None:
    log.flush(insert(1), insert(2))
    log.baseline([{"id": 1, "name": "a"}, {"id": 2, "name": "b"}], 2, 2)
    log.flush(update(3, 1))
    rows = log.read(startingPosition="baseline")
    assert short(rows) == [(1, "insert", 2), (2, "insert", 2), (1, "update_postimage", 3)]
    assert rows[0]["_commit_timestamp"] is None
    assert rows[0]["_position"] < rows[2]["_position"]
    assert rows[0]["_position"] > str(Position(1, 2, 0))
    batches = log.stream(startingPosition="baseline").all()
    assert [row for batch in batches for row in batch] == rows


@pytest.mark.meets("R11")
def test_changes_that_a_baseline_holds_do_not_come_again(log: MadeLog) -> None:
    log.flush(replace(insert(1), xid=10))
    # S sees 11 and not 12; both were committed between F and H.
    log.flush(replace(insert(2), xid=11), replace(insert(3), xid=12))
    log.baseline([{"id": 1, "name": "n1"}, {"id": 2, "name": "n2"}], 1, 3, snapshot="12:13:12")
    log.flush(replace(insert(4), xid=9))
    wanted = [1, 2, 3, 4]
    assert ids(log.read(startingPosition="baseline")) == wanted
    stream = log.stream(startingPosition="baseline", maxRowsPerBatch=1)
    found = []
    while (rows := stream.batch()) is not None:
        assert stream.again() == rows
        found += ids(rows)
        stream.start_again()
    assert found == wanted


def test_a_stream_waits_for_its_baseline(log: MadeLog) -> None:
    log.flush(insert(1))
    stream = log.stream(startingPosition="baseline", reader="me")
    assert stream.batch() is None
    with pytest.raises(ChangesMissing, match="no baseline"):
        log.read(startingPosition="baseline")
    log.baseline([{"id": key, "name": "x"} for key in range(10)], 1, 1)
    log.flush(insert(2))
    stream.start_again(maxRowsPerBatch=4)
    assert [len(batch) for batch in stream.all()] == [4, 4, 2, 1]


def test_a_newer_baseline_does_not_disturb_who_began_with_an_older_one(log: MadeLog) -> None:
    log.flush(insert(1))
    log.baseline([{"id": key, "name": "x"} for key in range(4)], 1, 1)
    stream = log.stream(startingPosition="baseline", maxRowsPerBatch=2)
    assert ids(stream.batch() or []) == [0, 1]
    log.flush(insert(5))
    log.baseline([{"id": 9, "name": "y"}], 5, 5)
    assert [ids(batch) for batch in stream.all()] == [[2, 3], [5]]


def test_a_baseline_that_is_gone_before_it_was_given_is_told(log: MadeLog) -> None:
    log.flush(insert(1))
    log.baseline([{"id": key, "name": "x"} for key in range(4)], 1, 1)
    stream = log.stream(startingPosition="baseline", maxRowsPerBatch=2)
    stream.batch()
    log.flush(insert(5))
    log.baseline([{"id": 9, "name": "y"}], 5, 5)
    prune(log.writer, Position(1, 5, 0), baselines=[1])
    with pytest.raises(PositionExpired):
        stream.batch()


def test_where_and_columns_hold_for_a_baseline_too(log: MadeLog) -> None:
    log.flush(insert(1))
    log.baseline([{"id": key, "name": f"x{key}"} for key in range(4)], 1, 1)
    log.flush(insert(5))
    found = log.read(startingPosition="baseline", columns="id", where="name <> 'x2'")
    assert ids(found) == [0, 1, 3, 5]
    assert "name" not in found[0]
