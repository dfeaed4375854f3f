"""`OAMService`: dead letters, and replays of a log, as messages."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration

from headrace.api.status_messages import struct
from headrace.engine.engine import Engine
from headrace.errors import (
    BadPosition,
    BadRequest,
    CannotReplay,
    Forbidden,
    NotRunning,
    PositionExpired,
    UnknownPipeline,
)
from headrace.targets.memory import IndexedMemory, memory
from headrace.v1 import oam_pb2 as v1
from tests.interfaces.callers import Asking
from tests.support.arrow_runner import ArrowRunner
from tests.support.shop import PATIENCE, Market, await_seen, await_that


class Bench:
    """An engine with dead letters of two tables: 2, 3 and 3 again of orders, 4 of items."""

    def __init__(self, folder: Path) -> None:
        self.market = Market(folder, ("orders", "items"))
        self.rows: IndexedMemory = memory()
        self.bad = {"bad"}
        runner = ArrowRunner(fails=lambda _, row: "BROKEN" if row["status"] in self.bad else None)
        pipeline = self.market.pipeline(self.rows, "orders", "items", name="all")
        self.engine: Engine = self.market.engine(pipeline, runner=runner)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    with bench.engine as engine:
        assert engine.await_ready(PATIENCE)
        bench.market.put("orders", 2, status="bad", version=2**60)
        bench.market.put("orders", 3, status="bad", version=1)
        bench.market.put("orders", 3, version=2)
        bench.market.put("items", 4, status="bad")
        assert await_that(engine, lambda: len(engine.dead_letters()) == 4)
        yield bench


@pytest.fixture
def ask(bench: Bench) -> Asking:
    return Asking(bench.engine)


def of(**conditions: Any) -> dict[str, Any]:
    """Return the fields of a request for dead letters of the pipeline."""
    key = [struct({"value": each}).fields["value"] for each in conditions.pop("key", ())]
    return {
        "pipeline_id": "all",
        "selection": v1.DeadLetterSelection(key=key, **conditions),
    }


@pytest.mark.meets("OAM-17")
def test_a_dead_letter_has_both_images_its_key_and_why(bench: Bench, ask: Asking) -> None:
    found = ask("ListDeadLetters", pipeline_id="all")
    assert (found.total_count, found.next_page_token) == (4, "")
    first, second, waits, item = found.entries
    stored = bench.engine.dead_letters()[0]
    assert [each.table for each in found.entries] == ["orders", "orders", "orders", "items"]
    assert 0 <= time.time() - first.timestamp.ToMicroseconds() / 1e6 < 3_600
    assert first.committed.ToMicroseconds() <= first.timestamp.ToMicroseconds()
    assert (first.action, first.position) == ("UPDATE", str(stored.position))
    assert (first.kind, first.code, first.lineage) == ("failed", "BROKEN", "test/1")
    assert first.error_message.startswith("BROKEN")
    assert dict(first.facts) == dict(stored.facts)
    assert dict(first.key) == {"id": 2}
    # An integer that a float cannot hold is text, and the column says how to read it.
    assert dict(first.after) == {"id": 2, "status": "bad", "version": str(2**60)}
    assert first.change_data["new"] == first.after
    assert [(each.name, each.type, each.key) for each in first.columns] == [
        ("id", "int64", True),
        ("status", "text", False),
        ("version", "int64", False),
    ]
    assert first.HasField("before") == (stored.before is not None)
    assert (first.baseline, first.ended_by, first.note) == (0, "", "")
    assert not first.HasField("ended")
    assert (first.editable, item.editable) == (True, True)
    assert (waits.kind, waits.code) != (second.kind, second.code)
    assert waits.error_message


@pytest.mark.meets("OAM-17")
def test_dead_letters_are_listed_by_page_table_code_position_and_key(
    bench: Bench, ask: Asking
) -> None:
    def listed(**fields: Any) -> list[tuple[str, int]]:
        found = ask("ListDeadLetters", **{**of(), **fields})
        return [(each.table, int(each.key["id"])) for each in found.entries]

    everything = [("orders", 2), ("orders", 3), ("orders", 3), ("items", 4)]
    assert listed() == everything
    first = ask("ListDeadLetters", pipeline_id="all", limit=2)
    assert (len(first.entries), first.total_count) == (2, 4)
    second = ask("ListDeadLetters", pipeline_id="all", limit=3, page_token=first.next_page_token)
    assert [each.position for each in (*first.entries, *second.entries)] == [
        str(each.position) for each in bench.engine.dead_letters()
    ]
    assert (second.next_page_token, second.total_count) == ("", 4)
    assert listed(**of(table="items")) == [("items", 4)]
    assert listed(**of(code="BROKEN")) == [("orders", 2), ("orders", 3), ("items", 4)]
    assert listed(**of(position=first.entries[1].position)) == [("orders", 3)]
    assert listed(**of(before=first.entries[1].position)) == [("orders", 2)]
    assert listed(**of(key=[3])) == [("orders", 3), ("orders", 3)]
    assert listed(**of(key=["3"])) == []
    for fields, error in (
        ({"pipeline_id": "none"}, UnknownPipeline),
        ({"limit": -1}, BadRequest),
        ({"page_token": "x"}, BadPosition),
        (of(before="yesterday"), BadRequest),
    ):
        with pytest.raises(error):
            listed(**fields)


@pytest.mark.meets("OAM-17")
def test_one_dead_letter_is_shown_with_those_that_wait_behind_it(bench: Bench, ask: Asking) -> None:
    _, second, third, _ = bench.engine.dead_letters()
    where = {"pipeline_id": "all", "position": str(second.position)}
    found = ask("ShowDeadLetter", **where)
    assert (found.entry.table, found.entry.key["id"]) == ("orders", 3)
    assert [each.position for each in found.waiting] == [str(third.position)]
    key = [struct({"value": 3}).fields["value"]]
    assert ask("ShowDeadLetter", **where, table="orders", key=key) == found
    with pytest.raises(UnknownPipeline, match="no such dead letter"):
        ask("ShowDeadLetter", **where, table="items")
    with pytest.raises(BadRequest, match="position is required"):
        ask("ShowDeadLetter", pipeline_id="all")


@pytest.mark.meets("OAM-17")
def test_dead_letters_are_replayed_or_it_is_said_what_would_happen(
    bench: Bench, ask: Asking
) -> None:
    would = ask("ReplayDeadLetters", **of(), dry_run=True)
    assert (would.replayed, would.succeeded, would.done) == (4, 0, False)
    assert would.failed == 4
    assert would.outcomes[0].outcome == "failed"
    assert would.outcomes[0].code == "BROKEN"
    bench.bad.clear()
    done = ask("ReplayDeadLetters", **of(table="items"), note="fixed", wait=Duration(seconds=60))
    assert (done.replayed, done.succeeded, done.failed, done.done) == (1, 1, 0, True)
    (outcome,) = done.outcomes
    assert (outcome.table, outcome.outcome, outcome.code) == ("items", "applied", "")
    assert outcome.now
    assert outcome.position
    assert bench.rows.table("items").get(4)["status"] == "bad"  # type: ignore[index]
    shown = ask("ListDeadLetters", pipeline_id="all", ended=True).entries
    ended = next(each for each in shown if each.table == "items")
    assert (ended.ended_by, ended.note, ended.editable) == ("replayed", "local: fixed", False)
    assert ended.ended.ToMicroseconds() >= ended.timestamp.ToMicroseconds()
    one = ask("ReplayDeadLetters", **of(key=[2]))
    assert (one.replayed, one.succeeded) == (1, 1)
    with pytest.raises(UnknownPipeline, match="no dead letter of a row with this key"):
        ask("ReplayDeadLetters", **of(key=[77]))


@pytest.mark.meets("OAM-17")
def test_a_dead_letter_is_edited_by_the_types_of_its_columns(bench: Bench, ask: Asking) -> None:
    first, _, _, item = bench.engine.dead_letters()
    where = {"pipeline_id": "all", "position": str(first.position)}
    would = ask("EditDeadLetter", **where, values=struct({"status": "ok"}), dry_run=True)
    assert (would.done, would.outcomes[0].outcome) == (False, "applied")
    assert len(bench.engine.dead_letters()) == 4
    with pytest.raises(BadRequest, match="not a valid int64"):
        ask("EditDeadLetter", **where, values=struct({"version": "one"}))
    values = struct({"status": "ok", "version": str(2**61)})
    key = [struct({"value": 2}).fields["value"]]
    done = ask("EditDeadLetter", **where, values=values, note="typo", table="orders", key=key)
    assert (done.done, done.outcomes[0].outcome) == (True, "applied")
    assert bench.rows.table("orders").get(2) == {"id": 2, "status": "ok", "version": 2**61}
    item_at = {"pipeline_id": "all", "position": str(item.position), "wait": Duration(seconds=9)}
    done = ask("EditDeadLetter", **item_at, values=struct({"status": "ok", "version": 5}))
    assert bench.rows.table("items").get(4) == {"id": 4, "status": "ok", "version": 5}
    with pytest.raises(UnknownPipeline, match="no such dead letter"):
        ask("EditDeadLetter", **where, values=values)
    third = bench.engine.dead_letters()[0]
    with pytest.raises(CannotReplay):
        where = {"pipeline_id": "all", "position": str(third.position)}
        ask("EditDeadLetter", **where, values=struct({"nothing": 1}))


@pytest.mark.meets("OAM-17")
def test_dead_letters_are_purged_or_counted(bench: Bench, ask: Asking) -> None:
    would = ask("PurgeDeadLetters", **of(), dry_run=True)
    assert (would.purged, would.done) == (4, False)
    assert {each.table: (each.dead_letters, each.keys) for each in would.tables} == {
        "orders": (3, 2),
        "items": (1, 1),
    }
    done = ask("PurgeDeadLetters", **of(key=[3]), note="gone")
    assert (done.purged, done.done) == (2, True)
    pipeline = ask("GetPipelineStatus", pipeline_id="all").status
    assert (pipeline.dead_letter_count, pipeline.held_keys) == (2, 2)
    assert dict(pipeline.rows_given_up) == {"orders": 1}
    assert pipeline.notices[0].facts["table"] == "orders"
    assert ask("PurgeDeadLetters", pipeline_id="all").purged == 2
    assert len(bench.engine.dead_letters()) == 0


def test_a_token_for_some_tables_sees_only_dead_letters_of_them(bench: Bench, ask: Asking) -> None:
    items = ask.as_("admin", "items")
    found = items("ListDeadLetters", pipeline_id="all")
    assert (found.total_count, [each.table for each in found.entries]) == (1, ["items"])
    order = str(bench.engine.dead_letters()[0].position)
    with pytest.raises(UnknownPipeline, match="no such dead letter"):
        items("ShowDeadLetter", pipeline_id="all", position=order)
    with pytest.raises(UnknownPipeline):
        items("EditDeadLetter", pipeline_id="all", position=order)
    for name, fields in (
        ("ListDeadLetters", of(table="orders")),
        ("ShowDeadLetter", {"pipeline_id": "all", "position": order, "table": "orders"}),
        ("ReplayDeadLetters", of(table="orders")),
        ("ReplayDeadLetters", of()),
        ("PurgeDeadLetters", of(table="orders")),
        ("PurgeDeadLetters", of()),
        ("PurgeDeadLetters", {**of(), "dry_run": True}),
    ):
        with pytest.raises(Forbidden):
            items(name, **fields)
    assert items("PurgeDeadLetters", **of(table="items")).purged == 1


# -- replays ------------------------------------------------------------------------------


def ended(ask: Asking, id: str) -> Any:
    """Wait for the end of a replay."""
    assert await_seen(lambda: ask("GetReplayStatus", replay_id=id).state != "running")
    return ask("GetReplayStatus", replay_id=id)


@pytest.mark.meets("OAM-18")
def test_a_replay_runs_in_the_background_and_says_how_it_ended(bench: Bench, ask: Asking) -> None:
    bench.bad.clear()
    started = ask("StartReplay", pipeline="all")
    assert (started.accepted, started.path) == (True, "")
    assert started.message == "all is replayed into memory"
    done = ended(ask, started.replay_id)
    assert (done.replay_id, done.state) == (started.replay_id, "completed")
    assert (done.pipeline, done.target, done.path) == ("all", "memory", "")
    assert (done.rows, done.of_rows, done.changes, done.of_changes) == (20, 20, 4, 4)
    assert done.rows_replayed == 24
    assert done.position == str(bench.engine.pipeline_info("all").position)
    assert (done.target_rows, done.failed) == (20, 0)
    assert not done.HasField("error")
    assert done.elapsed.ToMicroseconds() > 0
    assert 0 <= time.time() - done.started_at.ToMicroseconds() / 1e6 < 3_600
    assert not ask("StopReplay", replay_id=started.replay_id).stopped
    later = ask("StartReplay", target_pipeline_id="all", speed="full").replay_id
    ended(ask, later)
    listed = ask("GetReplayStatus").replays
    assert [each.replay_id for each in listed] == [later, started.replay_id]


@pytest.mark.meets("OAM-18")
def test_a_replay_into_files_is_an_administrators_and_stays_in_the_data_directory(
    bench: Bench, ask: Asking
) -> None:
    bench.bad.clear()
    start = str(bench.engine.dead_letters()[0].position)
    fields = {"pipeline": "all", "target": "jsonl:march", "start": start, "end": start}
    with pytest.raises(Forbidden, match="needs the role admin"):
        ask.as_("operate")("StartReplay", **fields)
    with pytest.raises(Forbidden, match="no right to orders"):
        ask.as_("admin", "items")("StartReplay", **fields)
    started = ask("StartReplay", **fields)
    path = bench.engine.data / "replays" / "march"
    assert started.path == str(path)
    done = ended(ask, started.replay_id)
    assert (done.state, done.path, done.changes) == ("completed", str(path), done.of_changes)
    assert '"id":2' in path.read_text().replace(" ", "")
    with pytest.raises(BadRequest, match="already a replay of this name"):
        ask("StartReplay", **fields)
    for target in ("jsonl:-", "jsonl:../x", "jsonl:/tmp/x", "csv:x", "parquet:", "parquet"):
        with pytest.raises(BadRequest, match="must be memory, parquet:NAME or jsonl:NAME"):
            ask("StartReplay", pipeline="all", target=target)


@pytest.mark.meets("OAM-18")
def test_one_replay_runs_at_a_time_and_can_be_stopped(
    bench: Bench, ask: Asking, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.bad.clear()
    reached, go_on = threading.Event(), threading.Event()
    replay = bench.engine.replay

    def slow(*arguments: Any, on_progress: Any, **options: Any) -> Any:
        def wait(progress: Any) -> None:
            reached.set()
            assert go_on.wait(PATIENCE)
            on_progress(progress)

        return replay(*arguments, on_progress=wait, **options)

    monkeypatch.setattr(bench.engine, "replay", slow)
    first = ask("StartReplay", pipeline="all").replay_id
    assert reached.wait(PATIENCE)
    assert ask("GetReplayStatus", replay_id=first).state == "running"
    with pytest.raises(NotRunning, match=f"The replay {first} of all is running"):
        ask("StartReplay", pipeline="all")
    assert ask("StopReplay", replay_id=first).stopped
    go_on.set()
    done = ended(ask, first)
    assert (done.state, done.HasField("target_rows")) == ("stopped", False)


@pytest.mark.meets("OAM-18")
def test_what_a_replay_cannot_do_is_refused_at_once_and_what_fails_is_said(
    bench: Bench, ask: Asking, monkeypatch: pytest.MonkeyPatch
) -> None:
    for fields, message in (
        ({}, "pipeline is required"),
        ({"snapshot_id": "s1", "pipeline": "all"}, "no snapshots to replay"),
        ({"pipeline": "all", "speed": "realtime"}, "at full speed"),
        ({"pipeline": "all", "tables": ["orders"]}, "all tables of its pipeline"),
        ({"pipeline": "all", "start": "monday"}, "neither a position nor a time"),
    ):
        with pytest.raises(BadRequest, match=message):
            ask("StartReplay", **fields)
    with pytest.raises(UnknownPipeline, match="no pipeline none"):
        ask("StartReplay", pipeline="none")
    for name in ("GetReplayStatus", "StopReplay"):
        with pytest.raises(UnknownPipeline, match="no replay all-9"):
            ask(name, replay_id="all-9")
    with pytest.raises(BadRequest, match="replay_id is required"):
        ask("StopReplay")

    def fails(*_: Any, **__: Any) -> Any:
        raise errors.pop()

    errors = [ZeroDivisionError("a bug"), PositionExpired("The log does not go back that far")]
    monkeypatch.setattr(bench.engine, "replay", fails)
    failed = ended(ask, ask("StartReplay", pipeline="all").replay_id)
    assert (failed.state, failed.error.code) == ("error", PositionExpired.code)
    failed = ended(ask, ask("StartReplay", pipeline="all").replay_id)
    assert failed.error.message == "Internal error (ZeroDivisionError)"
