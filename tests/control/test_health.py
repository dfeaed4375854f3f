"""Health is observed: live, ready and startup are red for what is wrong, and green again after."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.engine import health, state
from headrace.engine.engine import Engine
from headrace.engine.health import (
    CONDITIONS,
    PIPELINE_STATES,
    SOURCE_STATES,
    HealthCheck,
    TimedCall,
)
from headrace.errors import HeadraceError, NoKey, SourceUnreachable, TargetError
from headrace.runtime import spark as spark_module
from headrace.runtime.model import PipelineState, TableState
from headrace.runtime.spark import FROZEN_SECONDS, SparkWatchdog
from headrace.targets.memory import memory
from headrace.targets.target import Batch
from headrace.testing.target import ScriptedTarget
from tests.support.shop import PATIENCE, Market, await_seen


@pytest.fixture
def market(tmp_path: Path) -> Market:
    return Market(tmp_path)


@pytest.fixture
def free() -> Iterator[threading.Event]:
    """What hangs goes on when this is set, at the end of a test at the latest."""
    event = threading.Event()
    yield event
    event.set()


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a slow machine a look may take a while, and does not hang."""
    monkeypatch.setattr(health, "ANSWER_SECONDS", PATIENCE)


def codes(check: HealthCheck) -> set[tuple[str, str, str]]:
    assert check.ok == (not check.reasons)
    return {(reason.part, reason.name, reason.code) for reason in check.reasons}


def all_green(engine: Engine) -> bool:
    found = engine.health()
    return found.live.ok and found.ready.ok and found.startup.ok


def red(engine: Engine, *wanted: tuple[str, str, str]) -> bool:
    """Wait until ready is red for all these reasons, while live and startup are green."""

    def seen() -> bool:
        found = engine.health()
        return found.live.ok and found.startup.ok and set(wanted) <= codes(found.ready)

    return await_seen(seen)


@pytest.mark.meets("ENG-55")
def test_an_engine_is_stopped_then_green_then_stopped(market: Market) -> None:
    stopped = {("engine", "", "engine_stopped")}
    engine = market.engine(market.pipeline(memory(), name="orders"))
    found = engine.health()
    assert codes(found.live) == codes(found.ready) == codes(found.startup) == stopped
    with engine:
        assert engine.await_ready(PATIENCE)
        assert all_green(engine)
    found = engine.health()
    assert codes(found.live) == codes(found.ready) == codes(found.startup) == stopped


def test_during_a_start_the_engine_is_live_and_nothing_else(market: Market) -> None:
    seen = []

    def step(_text: str) -> None:
        seen.append(engine.health())

    engine = market.engine(market.pipeline(memory()))
    engine._state.options = SimpleNamespace(  # type: ignore[assignment]
        **{name: getattr(engine._state.options, name) for name in engine._state.options.__slots__}
        | {"on_step": step}
    )
    with engine:
        assert engine.await_ready(PATIENCE)
    assert seen
    starting = {("engine", "", "engine_starting")}
    for found in seen:
        assert found.live.ok
        assert codes(found.ready) == codes(found.startup) == starting


@pytest.mark.meets("ENG-55")
def test_a_pause_is_a_reason_until_it_ends(market: Market) -> None:
    with market.engine(market.pipeline(memory(), name="orders")) as engine:
        assert engine.await_ready(PATIENCE)
        engine.pause("orders")
        assert red(engine, ("pipeline", "orders", "pipeline_paused"))
        engine.resume("orders")
        assert await_seen(lambda: all_green(engine))


@pytest.mark.meets("ENG-55")
def test_a_pipeline_that_failed_is_red_with_its_error_and_the_time_of_it(market: Market) -> None:
    target = ScriptedTarget()
    sound = market.pipeline(memory(), name="sound")
    with market.engine(market.pipeline(target, name="orders"), sound) as engine:
        assert engine.await_ready(PATIENCE)
        before = time.time()
        target.reject(NoKey("No key any more", table="orders"))  # not retried
        market.put("orders", 11)
        assert red(engine, ("pipeline", "orders", "tables.no_key"))
        (reason,) = engine.health().ready.reasons
        assert reason.since is not None
        assert before - 1 <= reason.since <= time.time() + 1
        assert "No key any more" in reason.message
        engine.resume("orders")
        assert await_seen(lambda: all_green(engine))


def test_a_batch_that_is_retried_is_red_although_nothing_gave_up(market: Market) -> None:
    target = ScriptedTarget()
    with market.engine(market.pipeline(target, name="orders")) as engine:
        assert engine.await_ready(PATIENCE)
        target.reject(TargetError("The target is away", target="scripted"), times=3)
        market.put("orders", 11)
        assert red(engine, ("pipeline", "orders", "targets.failed"))

        def retried() -> bool:
            engine._state.nudge()  # at once, instead of after a pause
            return all_green(engine)

        assert await_seen(retried)


@pytest.mark.meets("ENG-55")
def test_a_source_that_is_away_is_red_with_its_pipelines(market: Market) -> None:
    with market.engine(market.pipeline(memory(), name="orders")) as engine:
        assert engine.await_ready(PATIENCE)
        market.source.set_away(True)
        market.source.inject_error(SourceUnreachable("The server is away"))
        market.source.wake()
        assert await_seen(lambda: not engine.health().ready.ok)
        found = engine.health()
        assert found.live.ok
        assert {(part, name) for part, name, _ in codes(found.ready)} == {
            ("source", "shop"),
            ("pipeline", "orders"),
        }
        market.source.set_away(False)
        assert await_seen(lambda: all_green(engine))


def test_a_recorder_that_hangs_is_not_ready_and_later_not_live(
    market: Market, free: threading.Event
) -> None:
    hanging = threading.Event()

    def hang(_seconds: float) -> None:
        hanging.set()
        free.wait()

    with market.engine(market.pipeline(memory(), name="orders")) as engine:
        assert engine.await_ready(PATIENCE)
        market.source.set_delay("read", 1.0, sleep=hang)
        market.source.wake()
        assert hanging.wait(PATIENCE)
        recording = engine._state.recordings["shop"]
        clock, ahead = recording._clock, 30.0
        recording._clock = lambda: clock() + ahead
        assert red(engine, ("source", "shop", "source_silent"))
        ahead = health.SILENT_RECORDER_SECONDS + 1
        found = engine.health()
        assert codes(found.live) == {("source", "shop", "recorder_silent")}
        assert not found.ready.ok
        recording._clock = clock
        market.source.set_delay("read", 0.0)
        free.set()
        assert await_seen(lambda: all_green(engine))


class Frozen:
    """Spark that does not answer, or is dead."""

    def __init__(self) -> None:
        self.runs = True

    @property
    def alive(self) -> bool:
        return self.runs

    def revive(self) -> bool:
        return False


@pytest.mark.meets("ENG-55")
def test_a_dead_spark_is_red_and_green_once_it_runs(
    market: Market, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark_module, "_LOOK_SECONDS", 0.01)
    spark, now = Frozen(), [0.0]
    with market.engine(market.pipeline(memory(), name="orders")) as engine:
        assert engine.await_ready(PATIENCE)
        watchdog = SparkWatchdog(spark, engine._state.notify, lambda: now[0])
        engine._state.watchdog = watchdog
        assert all_green(engine)
        spark.runs = False
        assert red(engine, ("spark", "", "spark_down"), ("pipeline", "orders", "spark_down"))
        now[0] += FROZEN_SECONDS
        reason = engine.health().ready.reasons[0]
        assert reason.since is not None
        assert time.time() - reason.since >= FROZEN_SECONDS
        spark.runs = True
        assert await_seen(lambda: all_green(engine))
        # The thread that checks is one of ours: without it nobody would know.
        thread = watchdog._thread
        monkeypatch.setattr(
            watchdog, "_thread", SimpleNamespace(is_alive=lambda: False, join=lambda _: None)
        )
        assert codes(engine.health().live) == {("spark", "", "thread_ended")}
        monkeypatch.setattr(watchdog, "_thread", thread)
        watchdog.stop()


class Unopenable(ScriptedTarget):
    """A target whose open waits for `free`."""

    def __init__(self, free: threading.Event) -> None:
        super().__init__()
        self._open = free

    def open(self, *args: Any) -> None:
        self._open.wait()
        super().open(*args)


@pytest.mark.meets("ENG-55")
def test_a_target_that_is_not_open_yet_is_not_started_and_not_ready(
    market: Market, free: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state, "_OPEN_SECONDS", 0.05)
    with market.engine(market.pipeline(Unopenable(free), name="orders")) as engine:
        wanted = {("pipeline", "orders", "target_opening")}
        # Until the source is connected, that is the reason why it is not ready.
        assert await_seen(lambda: wanted <= codes(engine.health().ready))
        found = engine.health()
        assert found.live.ok
        assert codes(found.startup) == wanted
        free.set()
        assert await_seen(lambda: all_green(engine))


def test_a_target_that_cannot_be_opened_ends_the_start_and_is_not_ready(market: Market) -> None:
    class Refusing(ScriptedTarget):
        def open(self, *args: Any) -> None:
            raise TargetError("The target is away", target="scripted")

    with market.engine(market.pipeline(Refusing(), name="orders")) as engine:
        assert red(engine, ("pipeline", "orders", "targets.failed"))


class Broken(ScriptedTarget):
    """A target with a bug that we did not expect."""

    broken = False

    def write(self, batch: Batch) -> Any:
        if self.broken:
            raise SystemExit("a bug")
        return super().write(batch)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_mistake_in_a_target_is_not_ready_and_no_reason_to_restart_all_others(
    market: Market,
) -> None:
    target = Broken()
    with market.engine(market.pipeline(target, name="orders")) as engine:
        assert engine.await_ready(PATIENCE)
        target.broken = True
        market.put("orders", 11)
        assert red(engine, ("pipeline", "orders", "control.failed"))
        drivers = engine._state.drivers
        assert drivers is not None
        # The same without a failed pipeline: then nothing but a restart brings a thread back.
        drivers._broken.clear()
        ended = {("pipeline", "orders", "thread_ended")}
        assert await_seen(lambda: codes(engine.health().live) == ended)
        drivers._broken.add("orders")
        target.broken = False
        engine.resume("orders")  # starts a new thread
        assert await_seen(lambda: all_green(engine))


def test_a_recorder_whose_thread_ended_is_not_live(
    market: Market, monkeypatch: pytest.MonkeyPatch
) -> None:
    with market.engine(market.pipeline(memory(), name="orders")) as engine:
        assert engine.await_ready(PATIENCE)
        recording = engine._state.recordings["shop"]
        monkeypatch.setattr(type(recording.recorder), "alive", property(lambda self: False))
        assert codes(engine.health().live) == {("source", "shop", "thread_ended")}
        # One that stopped on an error that a person must fix is not ready; it did what it should.
        recording.gave_up = True
        assert engine.health().live.ok
        recording.gave_up = False
        monkeypatch.undo()
        assert all_green(engine)


def test_a_table_that_is_only_recorded_needs_its_baseline(market: Market) -> None:
    market.source.inject_error(SourceUnreachable("Away"), at="baseline", times=10_000)
    engine = Engine(data=market.data, records=[(market.source, ["orders"])], recorder="thread")
    with engine:
        assert await_seen(lambda: not engine.health().ready.ok and engine.health().live.ok)
        assert engine.health().startup.ok
        assert all(part == "source" for part, _, _ in codes(engine.health().ready))


def test_an_engine_without_anything_to_do_says_so(tmp_path: Path) -> None:
    with Engine(data=tmp_path / "data") as engine:
        assert codes(engine.health().ready) == {("engine", "", "engine_idle")}


@pytest.mark.meets("ACC-15")
def test_an_engine_that_hangs_is_red_at_once_and_not_live_when_it_lasts(
    market: Market, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    with market.engine(market.pipeline(memory(), name="orders")) as engine:
        assert engine.await_ready(PATIENCE)
        observer = engine._health
        monkeypatch.setattr(observer, "_observed", TimedCall(observer.observe, lambda: now[0]))
        monkeypatch.setattr(health, "ANSWER_SECONDS", 0.05)
        hangs = {("engine", "", "engine_hangs")}
        with engine._state.readiness._changed:  # every change of state waits for this
            found = engine.health()
            assert (codes(found.ready), found.live.ok, found.startup.ok) == (hangs, True, True)
            now[0] += health.HUNG_SECONDS
            threads = threading.active_count()
            found = engine.health()
            assert codes(found.live) == codes(found.ready) == hangs
            assert threading.active_count() <= threads, "a thread for each look"
        monkeypatch.setattr(health, "ANSWER_SECONDS", PATIENCE)
        assert await_seen(lambda: all_green(engine))


def test_every_state_has_a_word_and_every_condition_a_meaning() -> None:
    own = set(PipelineState) | set(TableState) - {TableState.LIVE}
    assert set(PIPELINE_STATES) == {"streaming", "not_ready", *map(str, own)}
    at_work = {"streaming", "watching"}
    assert {f"source_{each}" for each in SOURCE_STATES if each not in at_work} <= CONDITIONS.keys()
    assert {f"pipeline_{each}" for each in PipelineState} <= CONDITIONS.keys()
    assert {"table_waiting", "table_loading", "table_catching_up"} <= CONDITIONS.keys()
    assert all(meaning and code.islower() for code, meaning in CONDITIONS.items())


def test_a_call_that_raises_raises_for_the_one_who_asked() -> None:
    def fail() -> None:
        raise HeadraceError("No")

    with pytest.raises(HeadraceError):
        TimedCall(fail).result(PATIENCE)
