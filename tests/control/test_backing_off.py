"""After a failure a pipeline rests the pause that was decided, whatever arrives meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest

from headrace.engine.engine import Engine
from headrace.errors import JobFailed
from headrace.pipeline.batch import BatchFacts, SegmentGroup
from headrace.pipeline.definition import Pipeline
from headrace.pipeline.result import JobResult
from headrace.runtime import model
from headrace.runtime.threads import Drivers
from headrace.targets.memory import memory
from headrace.testing.target import ScriptedTarget
from tests.support.arrow_runner import ArrowRunner
from tests.support.shop import PATIENCE, Market, await_seen, await_that


class Away(ArrowRunner):
    """A runner whose cluster is away for one pipeline, while `away` is set."""

    def __init__(self, pipeline: str) -> None:
        super().__init__()
        self.tries = 0
        self.away = threading.Event()
        self._pipeline = pipeline

    def rows(
        self, pipeline: Pipeline, parts: Sequence[SegmentGroup], facts: BatchFacts
    ) -> JobResult:
        if self.away.is_set() and pipeline.name == self._pipeline:
            self.tries += 1
            raise JobFailed("No executors")
        return super().rows(pipeline, parts, facts)


@pytest.fixture(autouse=True)
def long_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pause is longer than a test waits: whatever comes earlier did not wait for its end."""
    monkeypatch.setattr(model, "FIRST_PAUSE", 20 * PATIENCE)
    monkeypatch.setattr(model, "LONGEST_PAUSE", 20 * PATIENCE)


def failing(market: Market, engine: Engine, runner: Away) -> None:
    """Let the first batch of `orders` fail."""
    assert engine.await_ready(PATIENCE)
    runner.away.set()
    market.put("orders", 11)
    assert await_that(engine, lambda: engine.pipeline_info("orders").error is not None)


@pytest.mark.meets("R36")
def test_new_entries_of_the_log_do_not_shorten_the_pause_after_a_failure(market: Market) -> None:
    runner = Away("orders")
    other = ScriptedTarget()
    lame = market.pipeline(memory(), name="orders")
    with market.engine(lame, market.pipeline(other, name="others"), runner=runner) as engine:
        failing(market, engine, runner)
        for key in range(12, 42):
            # Each in an entry of its own, which the pipeline beside it was woken by.
            market.put("orders", key)
            assert await_seen(lambda key=key: (key,) in other.rows("orders"))  # type: ignore[misc]
        assert runner.tries == 1


def test_what_another_pipeline_is_asked_for_does_not_shorten_it_either(market: Market) -> None:
    runner = Away("orders")
    other = ScriptedTarget()
    lame = market.pipeline(memory(), name="orders")
    with market.engine(lame, market.pipeline(other, name="others"), runner=runner) as engine:
        failing(market, engine, runner)
        for key in range(12, 22):
            engine.pause("others")
            market.put("orders", key)
            engine.resume("others")
            assert await_seen(lambda key=key: (key,) in other.rows("orders"))  # type: ignore[misc]
        assert runner.tries == 1


def test_a_wish_ends_the_pause_at_once(market: Market) -> None:
    runner = Away("orders")
    orders = memory()
    with market.engine(market.pipeline(orders, name="orders"), runner=runner) as engine:
        failing(market, engine, runner)
        runner.away.clear()
        engine.resume("orders")
        assert await_that(engine, lambda: orders.count() == 11)
        runner.away.set()
        market.put("orders", 12)
        assert await_that(engine, lambda: engine.pipeline_info("orders").error is not None)
        runner.away.clear()
        engine.reload("shop", "orders", timeout=PATIENCE)
        assert await_that(engine, lambda: orders.count() == 12)


def test_a_pause_holds_from_within_the_pause_of_a_failure(market: Market) -> None:
    runner = Away("orders")
    orders = memory()
    with market.engine(market.pipeline(orders, name="orders"), runner=runner) as engine:
        failing(market, engine, runner)
        engine.pause("orders")
        assert engine.pipeline_info("orders").state == "paused"
        assert runner.tries == 1
        runner.away.clear()
        engine.resume("orders")
        assert await_that(engine, lambda: orders.count() == 11)


def test_a_stop_and_a_removal_end_it_at_once(market: Market) -> None:
    runner = Away("orders")
    lame, sound = market.pipeline(memory(), name="orders"), ScriptedTarget()
    with market.engine(lame, market.pipeline(sound, name="others"), runner=runner) as engine:
        failing(market, engine, runner)
        engine.change(drop=["orders"])
        assert [each.name for each in engine.pipelines()] == ["others"]
        runner.away.clear()
        engine.change(add=[market.pipeline(memory(), name="orders")])
        assert await_that(engine, engine.is_ready)
        runner.away.set()
        market.put("orders", 12)
        assert await_that(engine, lambda: engine.pipeline_info("orders").error is not None)
    assert {each.state for each in engine.pipelines()} == {"stopped"}


@pytest.mark.meets("R36")
def test_the_pauses_grow_while_entries_arrive_and_every_attempt_fails(
    market: Market, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model, "FIRST_PAUSE", 1.0)
    monkeypatch.setattr(model, "LONGEST_PAUSE", 32.0)
    pauses: list[float] = []
    turn, enough = threading.Semaphore(0), threading.Event()

    def sit_out(log: object, seconds: float, called: object) -> None:
        pauses.append(seconds)
        if len(pauses) == 8:
            enough.set()
        turn.acquire(timeout=PATIENCE)

    runner = Away("orders")
    other = ScriptedTarget()
    lame = market.pipeline(memory(), name="orders")
    with market.engine(lame, market.pipeline(other, name="others"), runner=runner) as engine:
        assert engine.await_ready(PATIENCE)
        monkeypatch.setattr(Drivers, "_sit_out", staticmethod(sit_out))
        runner.away.set()
        for key in range(11, 20):
            market.put("orders", key)
            assert await_seen(lambda key=key: (key,) in other.rows("orders"))  # type: ignore[misc]
            turn.release()
        assert enough.wait(PATIENCE)
        turn.release(100)
        engine.stop()
    assert pauses[:8] == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 32.0, 32.0]
