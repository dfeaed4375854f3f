"""`OAMService`: states and events as they happen, for readers that may be slow."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.api.inspection import EventMemory
from headrace.api.watches import (
    MOST_WAITING,
    EventChoice,
    EventWatch,
    StatusWatch,
    event_message,
    number_of,
)
from headrace.changelog.position import Position
from headrace.engine.engine import Engine
from headrace.errors import BadRequest, SourceUnreachable, UnknownPipeline
from headrace.observe.events import (
    AttemptFailed,
    ChangesApplied,
    Event,
    LagUpdated,
    PipelineStateChanged,
    SourceConnected,
    SourceDisconnected,
    SourceStateChanged,
)
from headrace.targets.memory import memory
from headrace.v1 import oam_pb2 as v1
from tests.interfaces.callers import Asking
from tests.support.shop import PATIENCE, Market

AT = Position(1, 7)


@pytest.fixture
def market(tmp_path: Path) -> Market:
    return Market(tmp_path)


@pytest.fixture
def engine(market: Market) -> Iterator[Engine]:
    with market.engine(market.pipeline(memory(), name="orders")) as engine:
        assert engine.await_ready(PATIENCE)
        yield engine


@pytest.fixture
def ask(engine: Engine) -> Asking:
    return Asking(engine)


def until(stream: Iterator[Any], kind: str) -> Any:
    """Return the next message of a kind."""
    return next(each for each in stream if each.WhichOneof("event") == kind)


# -- states -------------------------------------------------------------------------------


@pytest.mark.meets("OAM-04")
def test_states_are_told_as_they_change(engine: Engine, ask: Asking) -> None:
    with ask.stream("WatchStatus", states_only=True) as stream:
        engine.pause("orders")
        change = until(stream, "pipeline_state_change")
        assert 0 <= time.time() - change.timestamp.ToMicroseconds() / 1e6 < 3_600
        state = change.pipeline_state_change
        assert (state.pipeline_id, state.old_name, state.new_name) == (
            *("orders", "streaming"),
            "paused",
        )
        assert (state.old_state, state.new_state) == (
            v1.PIPELINE_STATE_STREAMING,
            v1.PIPELINE_STATE_PAUSED,
        )
        assert not state.HasField("error")
        assert change.skipped == 0
        service = until(stream, "service_state_change").service_state_change
        assert (service.old_state, service.new_state, service.ready) == (
            v1.SERVICE_STATE_STREAMING,
            v1.SERVICE_STATE_PAUSED,
            False,
        )
        engine.resume("orders")
        state = until(stream, "pipeline_state_change").pipeline_state_change
        assert state.old_state == v1.PIPELINE_STATE_PAUSED


@pytest.mark.meets("OAM-04")
def test_a_watch_may_begin_with_the_states_as_they_are(ask: Asking) -> None:
    with ask.stream("WatchStatus", initial=True) as stream:
        source = until(stream, "source_state_change").source_state_change
        assert (source.source_id, source.event_type) == ("shop", "state")
        assert (source.old_state, source.new_state) == ("", "streaming")
        pipeline = until(stream, "pipeline_state_change").pipeline_state_change
        assert pipeline.old_state == v1.PIPELINE_STATE_UNSPECIFIED
        assert pipeline.new_state == v1.PIPELINE_STATE_STREAMING
        service = until(stream, "service_state_change").service_state_change
        assert service.old_state == v1.SERVICE_STATE_UNSPECIFIED
        assert service.new_state == v1.SERVICE_STATE_STREAMING


@pytest.mark.meets("OAM-04")
def test_changes_are_told_by_table_and_kind_with_their_number(market: Market, ask: Asking) -> None:
    with ask.stream("WatchStatus") as stream:
        market.put("orders", 99)
        row = until(stream, "row_change").row_change
        assert (row.pipeline_id, row.schema, row.table) == ("orders", "", "orders")
        assert (row.action, row.count, row.xid) == ("INSERT", 1, 0)
        assert Position.parse(row.position).epoch == 1


@pytest.mark.meets("OAM-04")
def test_a_lost_source_is_told_with_its_reason(market: Market, ask: Asking) -> None:
    with ask.stream("WatchStatus", states_only=True) as stream:
        market.source.set_away(True)
        market.source.inject_error(SourceUnreachable("The server is away"))
        market.source.wake()
        found = until(stream, "source_state_change").source_state_change
        assert found.source_id == "shop"
        while found.event_type != "disconnected":
            found = until(stream, "source_state_change").source_state_change
        assert "away" in found.message
        market.source.set_away(False)
        while found.event_type != "connected":
            found = until(stream, "source_state_change").source_state_change


@pytest.mark.meets("OAM-04")
def test_a_watch_is_of_the_pipelines_and_tables_that_it_names(ask: Asking) -> None:
    with pytest.raises(UnknownPipeline, match="no pipeline order"):
        ask.stream("WatchStatus", pipeline_ids=["order"]).__enter__()
    for fields in ({"pipeline_ids": ["orders"]}, {"tables": ["orders"]}):
        with ask.stream("WatchStatus", initial=True, **fields) as stream:
            until(stream, "pipeline_state_change")
    with ask.stream("WatchStatus", initial=True, tables=["items"]) as stream:
        seen = [next(stream).WhichOneof("event") for _ in range(2)]
        assert seen == ["source_state_change", "service_state_change"]


class Fixed:
    """An engine whose observers get what a test says, at once."""

    def __init__(self) -> None:
        self.watching: StatusWatch
        self.removed = 0

    def observe(self, observer: Any, name: str) -> Any:
        self.watching = observer
        return self

    def remove(self) -> None:
        self.removed += 1


def watched(engine: Any, **asked: Any) -> StatusWatch:
    status = v1.GetStatusResponse(
        state=v1.SERVICE_STATE_STREAMING,
        ready=True,
        sources=[v1.SourceStatus(source_id="shop", phase="streaming")],
        pipelines=[
            v1.PipelineStatus(
                pipeline_id=name,
                state=v1.PIPELINE_STATE_STREAMING,
                state_name="streaming",
                tables=[v1.TableStatus(table="public.orders")],
            )
            for name in ("one", "two")
        ],
    )
    return StatusWatch(engine, lambda: status, v1.WatchStatusRequest(**asked))


def applied(pipeline: str, inserts: int, updates: int = 0) -> ChangesApplied:
    return ChangesApplied(
        pipeline, "public.orders", inserts, updates, 0, 0, AT, False, seconds=0.1, at=2.5
    )


@pytest.mark.meets("OAM-04")
def test_a_slow_reader_gets_the_latest_states_and_how_many_it_missed() -> None:
    engine = Fixed()
    watch = watched(engine)
    states = ("paused", "live")
    for number in range(MOST_WAITING):
        new, old = states[number % 2], states[(number + 1) % 2]
        watch.on_event(PipelineStateChanged("one", old, new, None, at=1.0))
        watch.on_event(applied("two", 2, updates=1))
    watch.on_event(SourceStateChanged("shop", "streaming", "reconnecting", "gone", 3.0))
    watch.on_event(SourceConnected("shop", "test", 3.0))
    watch.on_event(SourceDisconnected("shop", "gone", 3.0))
    found: dict[str, list[Any]] = {}
    for each in watch:
        kind = str(each.WhichOneof("event"))
        found.setdefault(kind, []).append(each)
        if kind == "source_state_change" and each.source_state_change.event_type == (
            "disconnected"
        ):
            watch.close()
    assert sum(map(len, found.values())) <= MOST_WAITING + 3
    rows = [each.row_change for each in found["row_change"]]
    assert sum(each.count for each in rows if each.action == "INSERT") == 2 * MOST_WAITING
    assert sum(each.count for each in rows if each.action == "UPDATE") == MOST_WAITING
    assert (rows[0].schema, rows[0].table, rows[0].position) == ("public", "orders", str(AT))
    states_told = found["pipeline_state_change"]
    told = sum(1 + each.skipped for each in states_told)
    assert told == MOST_WAITING
    assert any(each.skipped for each in states_told)
    # Nothing is between two that are told: each begins where the one before it ended.
    ends = [each.pipeline_state_change for each in states_told]
    assert [each.old_name for each in ends[1:]] == [each.new_name for each in ends[:-1]]
    assert (ends[0].old_name, ends[-1].new_name) == ("streaming", "streaming")
    kinds = [each.source_state_change.event_type for each in found["source_state_change"]]
    assert kinds == ["state", "connected", "disconnected"]
    assert engine.removed == 1


def test_a_watch_of_one_pipeline_leaves_out_what_is_of_others() -> None:
    engine = Fixed()
    watch = watched(engine, pipeline_ids=["two"])
    watch.on_event(PipelineStateChanged("one", "live", "paused", None, at=1.0))
    watch.on_event(applied("one", 1))
    watch.on_event(applied("two", 1))
    first = next(iter(watch))
    assert first.row_change.pipeline_id == "two"
    watch.close()


def test_a_pipeline_that_fails_is_told_with_its_error() -> None:
    watch = watched(Fixed())
    error = SourceUnreachable("Away", host="db1")
    watch.on_event(PipelineStateChanged("one", "live", "failed", error, at=1.0))
    found = next(iter(watch)).pipeline_state_change
    assert found.new_state == v1.PIPELINE_STATE_ERROR
    assert (found.error.code, found.error.facts["host"]) == (error.code, "db1")
    watch.close()


# -- events -------------------------------------------------------------------------------


def test_events_are_listed_without_the_frequent_ones_unless_they_are_named(
    market: Market, engine: Engine, ask: Asking
) -> None:
    with ask.stream("WatchEvents", types=["ChangesApplied"]) as stream:
        market.put("orders", 99)
        applied = next(stream).event
    assert (applied.type, applied.pipeline, applied.table) == ("ChangesApplied", "orders", "orders")
    assert applied.source == ""
    assert applied.fields["inserts"] == 1
    assert applied.text.startswith("pipeline orders, table orders, changes applied: inserts=1")
    assert 0 <= time.time() - applied.time.ToMicroseconds() / 1e6 < 3_600
    assert not applied.HasField("error")
    with ask.stream("WatchEvents") as stream:
        engine.pause("orders")
        paused = next(stream).event
    assert (paused.type, paused.fields["new"]) == ("PipelineStateChanged", "paused")
    assert paused.text == "pipeline orders, state changed: old=live, new=paused"
    listed = ask("ListEvents").events
    assert paused in listed
    assert applied not in listed
    assert applied in ask("ListEvents", types=["ChangesApplied"]).events
    assert list(ask("ListEvents", limit=1).events) == [listed[-1]]
    assert list(ask("ListEvents", after=listed[-1].id).events) == []
    assert list(ask("ListEvents", pipeline="another").events) == []
    assert list(ask("ListEvents", source="another").events) == []
    assert list(ask("ListEvents", pipeline="orders").events)
    with pytest.raises(BadRequest, match="no event Nothing"):
        ask("ListEvents", types=["Nothing"])
    with pytest.raises(BadRequest, match="not the id of an event"):
        ask("ListEvents", after="x")
    with pytest.raises(BadRequest, match="must not be negative"):
        ask("ListEvents", limit=-1)


def lag(changes: int) -> Event:
    return LagUpdated("shop", changes, None, 0.5, float(changes))


def connected(at: float) -> Event:
    return SourceConnected("shop", "test", at)


def chosen(*types: str) -> EventChoice:
    return EventChoice.of(types, "", "")


def test_a_reader_continues_after_the_event_it_had_also_in_another_run() -> None:
    memory = EventMemory()
    for at in range(5):
        memory.on_event(connected(at))
    last = event_message(memory, 3, connected(2)).id
    assert number_of(memory, last) == 3
    watch = EventWatch(memory, chosen(), last)
    assert next(iter(watch)).event.time.seconds == 3
    watch.close()
    again = EventMemory()
    again.run = "another"
    again.on_event(connected(9))
    assert next(iter(EventWatch(again, chosen(), last))).event.time.seconds == 9


def test_a_reader_that_comes_late_is_told_how_many_events_it_missed() -> None:
    memory = EventMemory(most=3)
    watch = EventWatch(memory, chosen(), "")
    stream = iter(watch)
    memory.on_event(connected(0))
    first = next(stream)
    assert (first.event.time.seconds, first.skipped) == (0, 0)
    for at in range(1, 8):
        memory.on_event(connected(at))
        # Those of another kind are neither told nor missed.
        memory.on_event(lag(at))
    found = next(stream)
    assert (found.event.time.seconds, found.skipped) == (5, 4)
    assert next(stream).skipped == 0


def test_frequent_events_do_not_displace_the_others() -> None:
    memory = EventMemory(most=3)
    memory.on_event(connected(1))
    for at in range(100):
        memory.on_event(lag(at))
    found, count = memory.read(0, frequent=False)
    assert ([number for number, _ in found], count) == ([1], 1)
    found, count = memory.read(0, frequent=True)
    assert ([number for number, _ in found], count) == ([1, 99, 100, 101], 101)


def test_a_watch_that_is_closed_ends_while_it_waits() -> None:
    memory = EventMemory()
    watch = EventWatch(memory, chosen(), "")
    watch.close()
    assert list(watch) == []


def test_the_error_of_an_event_is_a_message_and_in_its_sentence() -> None:
    event = AttemptFailed("orders", SourceUnreachable("Away", host="db1"), 2, None, 1.0)
    found = event_message(EventMemory(), 1, event)
    assert (found.error.code, found.pipeline) == (SourceUnreachable.code, "orders")
    assert found.fields["attempt"] == 2
    assert found.text == "pipeline orders, attempt failed: attempt=2: Away (host db1)"
