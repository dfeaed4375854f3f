"""What happens in an engine is reported as events: in order, and after its effect."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

import headrace as hr
from headrace.capture.messages import Failed, LagReport, Report, StateReport
from headrace.changelog.position import Position
from headrace.deadletters.store import read_letters
from headrace.errors import (
    RefusedRow,
    RowsRefused,
    SourceUnreachable,
    StorageError,
    TargetError,
)
from headrace.observe.counters import OperationCounts
from headrace.observe.events import (
    AckAdvanced,
    AttemptFailed,
    BaselineCompleted,
    BaselineRowsLoaded,
    BaselineStarted,
    ChangesApplied,
    ChangesReceived,
    DeadLettersWritten,
    Event,
    LagUpdated,
    PipelineStateChanged,
    PolicyTriggered,
    RebaselineTriggered,
    SourceConnected,
    SourceDisconnected,
    SourceStateChanged,
    TableAltered,
)
from headrace.pipeline.definition import DeadLetters
from headrace.runtime.model import Watermark
from headrace.runtime.pipeline_run import IDLE, PipelineRun
from headrace.runtime.source_run import SourceRun
from headrace.runtime.store import ProgressStore
from headrace.storage.files import Files
from headrace.targets.memory import memory
from headrace.targets.target import Batch, Target
from headrace.testing.target import ScriptedTarget
from tests.control.stepping import Stepping
from tests.support.shop import PATIENCE, Market, Shop, await_that


def names(events: Sequence[Event]) -> list[str]:
    return [type(each).__name__ for each in events]


def over(world: Stepping, target: Target) -> PipelineRun:
    return world.run(hr.Pipeline(world.source, "orders", target))


def live(world: Stepping, target: Target) -> PipelineRun:
    """Return a run whose table is live; what it reported so far is forgotten."""
    run = over(world, target)
    world.settle(run)
    world.events.clear()
    return run


class Collector:
    """Takes events; a test waits for one of them."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._changed = threading.Condition()

    def on_event(self, event: Event) -> None:
        with self._changed:
            self.events.append(event)
            self._changed.notify_all()

    def await_one(self, wanted: Callable[[Event], bool]) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: any(map(wanted, self.events)), PATIENCE), (
                self.events
            )


# --- a pipeline -----------------------------------------------------------------------------------


def test_a_table_that_is_loaded_and_followed_is_reported_step_by_step(world: Stepping) -> None:
    world.put(7)
    run = over(world, ScriptedTarget())
    world.settle(run)
    world.put(8)
    world.settle(run)
    run.close()
    assert names(world.events) == [
        "PipelineStateChanged",
        "BaselineStarted",
        "BaselineRowsLoaded",
        "PipelineStateChanged",
        "BaselineCompleted",
        "PipelineStateChanged",
        "ChangesReceived",
        "ChangesApplied",
        "PipelineStateChanged",
    ]
    moves = [(e.old, e.new) for e in world.events if isinstance(e, PipelineStateChanged)]
    assert [moves[0][0], *(new for _, new in moves)] == [
        "",
        "waiting",
        "catching_up",
        "live",
        "stopped",
    ]
    assert all(old == before for (old, _), (_, before) in zip(moves[1:], moves, strict=False))
    times = [each.at for each in world.events]
    assert times == sorted(times)


def test_events_of_a_batch_have_its_counts_by_operation_and_its_position(world: Stepping) -> None:
    run = live(world, ScriptedTarget())
    world.source.emit_insert("orders", {"id": 1, "status": "new"})
    world.source.emit_insert("orders", {"id": 2, "status": "new"})
    world.source.emit_update("orders", {"id": 1, "status": "paid"})
    world.source.emit_delete("orders", 2)
    world.flush()
    world.settle(run)
    received, applied = world.events
    assert isinstance(received, ChangesReceived)
    assert isinstance(applied, ChangesApplied)
    for each in (received, applied):
        assert (each.pipeline, each.table, each.catching_up) == ("orders", "orders", False)
        assert (each.inserts, each.updates, each.deletes, each.truncates) == (2, 1, 1, 0)
    assert received.first < received.last == applied.position == run.reached
    assert 0 <= applied.seconds <= applied.at - received.at + 1
    assert run.delivery.counters.of("orders").counts == OperationCounts(2, 1, 1)


def test_a_baseline_is_reported_with_its_rows_and_its_number(world: Stepping) -> None:
    world.put(7)
    world.put(8)
    run = over(world, ScriptedTarget())
    world.settle(run)
    number = run.members[0].baseline
    [started] = [e for e in world.events if isinstance(e, BaselineStarted)]
    [loaded] = [e for e in world.events if isinstance(e, BaselineRowsLoaded)]
    [completed] = [e for e in world.events if isinstance(e, BaselineCompleted)]
    assert started.baseline == loaded.baseline == completed.baseline == number > 0
    assert (loaded.rows, completed.rows) == (2, 2)
    assert completed.seconds >= 0


def test_changes_since_the_copy_began_are_reported_as_catching_up(world: Stepping) -> None:
    run = over(world, memory())
    world.put(1)
    world.take_baseline()
    world.put(2)
    world.settle(run)
    kinds = (ChangesReceived, ChangesApplied)
    caught = [e for e in world.events if isinstance(e, kinds) and e.catching_up]
    assert names(caught) == ["ChangesReceived", "ChangesApplied"]
    assert names(world.events).index("ChangesApplied") < names(world.events).index(
        "BaselineCompleted"
    )


@pytest.mark.meets("ENG-45")
def test_every_failed_attempt_is_reported_with_its_number_and_the_pause_before_the_next(
    world: Stepping,
) -> None:
    target = ScriptedTarget()
    run = live(world, target)
    errors = [TargetError(f"no. {number}") for number in (1, 2)]
    for error in errors:
        target.reject(error)
    world.put(1)
    pauses = [run.step(), run.step()]
    run.step()
    failed = [e for e in world.events if isinstance(e, AttemptFailed)]
    assert [(e.error, e.attempt, e.retry_seconds) for e in failed] == [
        (errors[0], 1, pauses[0]),
        (errors[1], 2, pauses[1]),
    ]
    assert names(world.events) == [
        *("ChangesReceived", "AttemptFailed") * 2,
        "ChangesReceived",
        "ChangesApplied",
    ]


@pytest.mark.meets("ENG-46")
def test_an_error_that_stops_a_pipeline_is_reported_as_the_policy_that_isolates_it(
    world: Stepping,
) -> None:
    target = ScriptedTarget()
    run = live(world, target)
    error = hr.RowRefused("never")
    target.reject(error)
    world.put(1)
    run.step()
    assert names(world.events) == [
        "ChangesReceived",
        "AttemptFailed",
        "PolicyTriggered",
        "PipelineStateChanged",
    ]
    _, failed, policy, moved = world.events
    assert isinstance(failed, AttemptFailed)
    assert isinstance(policy, PolicyTriggered)
    assert isinstance(moved, PipelineStateChanged)
    assert failed.retry_seconds is None
    assert (policy.policy, policy.error) == ("isolate", error)
    assert (moved.old, moved.new, moved.error) == ("live", "failed", error)
    run.resume()
    back = world.events[-1]
    assert isinstance(back, PipelineStateChanged)
    assert (back.old, back.new, back.error) == ("failed", "live", None)


def test_an_error_from_outside_and_a_stop_by_another_pipeline_are_reported(
    world: Stepping,
) -> None:
    run = live(world, ScriptedTarget())
    stopped, failed = TargetError("of another pipeline"), TargetError("of this one")
    run.halt(stopped)
    for _ in range(2):
        run.fail(failed)
    assert names(world.events) == ["PipelineStateChanged", "PolicyTriggered"]
    moved, policy = world.events
    assert isinstance(moved, PipelineStateChanged)
    assert isinstance(policy, PolicyTriggered)
    assert (moved.new, moved.error) == ("failed", stopped)
    assert (policy.policy, policy.error) == ("isolate", failed)


def test_a_pipeline_that_is_released_from_its_source_is_reported(world: Stepping) -> None:
    run = live(world, ScriptedTarget())
    run.release_source(source="shop")
    run.step()
    [policy] = [e for e in world.events if isinstance(e, PolicyTriggered)]
    assert policy.policy == "release"
    assert policy.error is run.release.why is not None
    [again] = [e for e in world.events if isinstance(e, RebaselineTriggered)]
    assert (again.table, again.reason) == ("orders", "released from its source")


def test_changed_columns_are_reported_once_they_are_followed(world: Stepping) -> None:
    run = live(world, memory())
    world.source.add_column("orders", "note", "text")
    world.source.emit_insert("orders", {"id": 4, "status": "new", "note": "n"})
    world.flush()
    world.settle(run)
    [altered] = [e for e in world.events if isinstance(e, TableAltered)]
    assert (altered.pipeline, altered.source, altered.table) == ("orders", "shop", "orders")
    assert altered.response == "reload"  # from the log: no new copy is needed
    assert altered.old.names == ("id", "status")
    assert altered.new.names == run.members[0].input.names == ("id", "status", "note")


# --- after their effect ---------------------------------------------------------------------------


def test_changes_are_applied_once_the_target_has_them_and_progress_is_stored(
    world: Stepping,
) -> None:
    target = ScriptedTarget()
    run = live(world, target)
    seen: list[tuple[bool, bool]] = []

    def look(event: Event) -> None:
        if isinstance(event, ChangesApplied):
            reached = run.context.store.reached("orders", "orders")
            seen.append((target.position("orders") >= event.position, reached >= event.position))

    world.emit = look
    world.put(1)
    world.settle(run)
    assert seen == [(True, True)]


def test_changes_whose_progress_cannot_be_stored_are_applied_once_it_can(world: Stepping) -> None:
    class Fails(ProgressStore):
        broken = False

        def advance(self, *given: object) -> Position:
            if Fails.broken:
                raise StorageError("the disk is away")
            return super().advance(*given)  # type: ignore[arg-type]

    run = world.run(hr.Pipeline(world.source, "orders", ScriptedTarget()), kind=Fails)
    world.settle(run)
    world.events.clear()
    world.put(1)
    Fails.broken = True
    run.step()
    assert names(world.events) == ["ChangesReceived", "AttemptFailed"]
    Fails.broken = False
    world.put(2)
    world.settle(run)
    applied = [e for e in world.events if isinstance(e, ChangesApplied)]
    assert [e.inserts for e in applied] == [1, 1]


def test_changes_of_a_volatile_target_are_applied_although_nothing_is_stored(
    world: Stepping,
) -> None:
    run = live(world, memory())
    for key in (1, 2):
        world.put(key)
        world.settle(run)
    assert names(world.events) == ["ChangesReceived", "ChangesApplied"] * 2


@pytest.mark.meets("ENG-46", "R30")
def test_dead_letters_are_written_once_they_are_on_disk_and_before_their_batch_is_applied(
    world: Stepping,
) -> None:
    class Refuses(ScriptedTarget):
        def write(self, batch: Batch) -> Position:
            keys = batch.tables["orders"].column("id").to_pylist()
            bad = [RefusedRow("orders", at, "409", {}) for at, key in enumerate(keys) if key == 6]
            if bad:
                raise RowsRefused.of(bad)
            return super().write(batch)

    run = world.run(hr.Pipeline(world.source, "orders", Refuses(), on_error=DeadLetters()))
    world.settle(run)
    world.events.clear()
    stored: list[int] = []

    def look(event: Event) -> None:
        world.events.append(event)
        if isinstance(event, DeadLettersWritten):
            stored.append(len(read_letters(Files(world.disk, "/data"), "orders")))

    world.emit = look
    world.put(6)
    world.settle(run)
    assert stored == [1]
    assert names(world.events) == ["ChangesReceived", "DeadLettersWritten", "ChangesApplied"]
    written = world.events[1]
    assert isinstance(written, DeadLettersWritten)
    assert (written.pipeline, written.table, written.count) == ("orders", "orders", 1)


def test_a_baseline_is_completed_once_the_target_shows_it_and_its_state_is_stored(
    world: Stepping,
) -> None:
    world.put(7)
    target = ScriptedTarget()
    seen: list[object] = []

    def look(event: Event) -> None:
        if isinstance(event, BaselineCompleted):
            store = run.context.store
            seen.extend([target.shown, store.state("orders", "orders"), event.baseline])

    world.emit = look
    run = over(world, target)
    world.settle(run)
    assert seen == [{"orders"}, ("live", seen[2]), seen[2]]


def test_a_reload_is_reported_with_its_reason_once_it_is_stored(world: Stepping) -> None:
    run = live(world, ScriptedTarget())
    stored: list[str] = []

    def look(event: Event) -> None:
        world.events.append(event)
        if isinstance(event, RebaselineTriggered):
            state = run.context.store.state("orders", "orders")
            stored.append("" if state is None else state[0])

    world.emit = look
    run.ask_reload("orders", run.members[0].baseline)
    world.settle(run)
    assert stored == ["reloading"]
    [again] = [e for e in world.events if isinstance(e, RebaselineTriggered)]
    assert (again.source, again.reason) == ("shop", "a new copy was requested")
    assert names(world.events)[-2:] == ["BaselineCompleted", "PipelineStateChanged"]


def test_a_pause_is_reported_once_it_is_stored_and_each_move_once(world: Stepping) -> None:
    run = live(world, ScriptedTarget())
    stored: list[bool] = []

    def look(event: Event) -> None:
        world.events.append(event)
        stored.append(run.context.store.paused("orders"))

    world.emit = look
    run.pause()
    run.pause()
    assert run.step() == IDLE
    run.resume()
    assert stored == [True, False]
    assert [(e.old, e.new) for e in world.events if isinstance(e, PipelineStateChanged)] == [
        ("live", "paused"),
        ("paused", "live"),
    ]


# --- a source -------------------------------------------------------------------------------------


def recording(world: Stepping) -> tuple[SourceRun, list[Event]]:
    events: list[Event] = []
    run = SourceRun("shop", "memory", world.log, lambda: None, lambda: 9.0, emit=events.append)
    return run, events


@pytest.mark.meets("TYP-13")
def test_every_move_of_a_source_is_reported_with_its_reason_and_time(world: Stepping) -> None:
    run, events = recording(world)
    reports: list[Report] = [
        StateReport("connecting"),
        StateReport("waiting", "a transaction"),
        StateReport("waiting", "a transaction, for 5 s"),
        StateReport("streaming"),
        LagReport(changes=None, seconds=None, captured=0),
        StateReport("reconnecting", "the server went away"),
        StateReport("connecting"),
        StateReport("streaming"),
    ]
    for report in reports:
        run.on_report(report)
    run.on_report(Failed.of(SourceUnreachable("no such host"), stops=True))
    run.stop(0)
    assert events == [
        SourceStateChanged("shop", "connecting", "connected", "", 9.0),
        SourceConnected("shop", "memory", 9.0),
        SourceStateChanged("shop", "connected", "streaming", "", 9.0),
        SourceStateChanged("shop", "streaming", "reconnecting", "the server went away", 9.0),
        SourceDisconnected("shop", "the server went away", 9.0),
        SourceStateChanged("shop", "reconnecting", "connected", "", 9.0),
        SourceConnected("shop", "memory", 9.0),
        SourceStateChanged("shop", "connected", "error", "no such host", 9.0),
        SourceDisconnected("shop", "no such host", 9.0),
        SourceStateChanged("shop", "error", "closed", "", 9.0),
    ]


def test_the_lag_is_reported_when_it_changes(world: Stepping) -> None:
    run, events = recording(world)
    for changes in (3, 3, 0):
        run.on_report(LagReport(changes, changes * 1.5, 10, bytes=changes * 8))
    assert events == [LagUpdated("shop", 3, 24, 4.5, 9.0), LagUpdated("shop", 0, 0, 0.0, 9.0)]


@pytest.mark.meets("R8")
def test_an_acknowledgement_is_reported_when_it_advances(world: Stepping) -> None:
    run, events = recording(world)
    world.put(1)
    for _ in range(2):
        run.settle([Watermark(durable=False, settled=world.log.end)])
    assert events == [AckAdvanced("shop", world.log.end, 9.0)]
    assert run.acknowledged == world.log.end


# --- an engine ------------------------------------------------------------------------------------


def test_an_engine_reports_from_the_first_connection_to_the_end_of_its_pipelines(
    market: Market,
) -> None:
    collector = Collector()
    engine = market.engine(market.pipeline(memory()))
    engine.observe(collector)
    with engine:
        assert engine.await_ready(PATIENCE)
        market.put("orders", 50)
        collector.await_one(lambda each: isinstance(each, ChangesApplied))
    found = names(collector.events)
    assert {"SourceConnected", "AckAdvanced", "BaselineCompleted", "ChangesApplied"} <= {*found}
    ends = [e.new for e in collector.events if isinstance(e, PipelineStateChanged)]
    assert ends[-1] == "stopped"
    sources = [e.new for e in collector.events if isinstance(e, SourceStateChanged)]
    assert sources[-1] == "closed"
    # Nothing comes after the stop.
    assert names(collector.events) == found


def test_an_observer_that_hangs_holds_up_neither_work_nor_stop(market: Market) -> None:
    entered, released = threading.Event(), threading.Event()

    class Hangs:
        def on_event(self, event: Event) -> None:
            entered.set()
            released.wait(PATIENCE)

    orders = memory()
    engine = hr.Engine(
        market.pipeline(orders),
        data=market.data,
        runner=market.engine()._state.options.runner,
        recorder="thread",
        observers=[Hangs()],
        shutdown_timeout=0.5,
    )
    with engine:
        assert entered.wait(PATIENCE)
        assert engine.await_ready(PATIENCE)
        market.put("orders", 50)
        assert await_that(engine, lambda: orders.count() == 11)
        [info] = engine.observers()
        assert (info.name, info.delivered) == ("Hangs", 0)
    released.set()


def test_a_handle_removes_an_observer_of_an_engine(market: Market) -> None:
    gone, stays = Collector(), Collector()
    engine = market.engine(market.pipeline(memory()))
    handle = engine.observe(gone, "gone")
    engine.observe(stays)
    handle.remove()
    with engine:
        assert engine.await_ready(PATIENCE)
        assert [each.name for each in engine.observers()] == ["Collector"]
    assert gone.events == []
    assert stays.events


@pytest.mark.process
def test_what_a_recorder_process_reports_reaches_observers_in_its_order(tmp_path: Path) -> None:
    shop, collector = Shop(tmp_path), Collector()
    engine = shop.engine(shop.pipeline(memory()), recorder="process")
    engine.observe(collector)
    with engine:
        assert engine.await_ready(PATIENCE)
        shop.insert(range(100, 102))
        collector.await_one(lambda each: isinstance(each, ChangesApplied) and each.inserts == 2)
    events = [e for e in collector.events if isinstance(e, (SourceStateChanged, SourceConnected))]
    assert names(events)[:2] == ["SourceStateChanged", "SourceConnected"]
    assert events[-1].new == "closed"  # type: ignore[union-attr]
    shop.close()
