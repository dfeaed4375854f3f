"""A pause rests a pipeline, whatever it is doing; recording goes on, and nothing is lost."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from headrace.changelog.position import ORIGIN, Position
from headrace.errors import (
    CorruptSegment,
    InvalidConfiguration,
    JobCancelled,
    NotRunning,
    SparkFailed,
)
from headrace.pipeline.batch import BatchFacts, LoadedRows, SegmentGroup
from headrace.pipeline.definition import Pipeline
from headrace.pipeline.result import JobResult
from headrace.runtime import threads
from headrace.targets.memory import memory
from headrace.targets.target import Batch
from headrace.testing.source import MemorySource
from headrace.testing.target import ScriptedTarget
from tests.support.arrow_runner import ArrowRunner
from tests.support.shop import PATIENCE, Market, Shop, await_seen, await_that


class LongJobs(ArrowRunner):
    """A runner whose jobs, once `slow`, last until somebody cancels them."""

    def __init__(self) -> None:
        super().__init__()
        self.slow = False
        self.running = threading.Event()
        self._ended = threading.Event()

    def rows(
        self, pipeline: Pipeline, parts: Sequence[SegmentGroup], facts: BatchFacts
    ) -> JobResult:
        if self.slow:
            self._ended.clear()
            self.running.set()
            assert self._ended.wait(PATIENCE), "nobody cancelled"
            raise JobCancelled("Ended by request")
        return super().rows(pipeline, parts, facts)

    def baseline(self, pipeline: Pipeline, part: SegmentGroup) -> Iterator[LoadedRows]:
        if self.slow:
            self.rows(pipeline, [part], BatchFacts.of([], ORIGIN, ORIGIN))
        return super().baseline(pipeline, part)

    def cancel(self, pipeline: Pipeline) -> None:
        super().cancel(pipeline)
        self._ended.set()


@pytest.mark.meets("R12")
def test_a_paused_pipeline_takes_nothing_while_recording_goes_on(market: Market) -> None:
    orders = memory()
    with market.engine(market.pipeline(orders)) as engine:
        assert engine.await_ready(PATIENCE)
        engine.pause("orders")
        info = engine.pipeline_info("orders")
        assert info.state == "paused"
        assert info.tables[0].state == "live"
        assert not engine.is_ready()
        market.put("orders", 11)
        assert market.recorded(engine)
        assert orders.count() == 10
        assert engine.pipeline_info("orders").lag_seconds
        engine.resume("orders")
        assert engine.await_ready(PATIENCE)
        assert await_that(engine, lambda: orders.count() == 11)
        assert engine.pipeline_info("orders").state == "live"


@pytest.mark.meets("R12")
def test_a_pause_outlives_the_engine(market: Market) -> None:
    target = ScriptedTarget()
    engine = market.engine(market.pipeline(target))
    with engine:
        assert engine.await_ready(PATIENCE)
        engine.pause()
    with engine:
        assert engine.pipeline_info("orders").state == "paused"
        market.put("orders", 11)
        assert market.recorded(engine)
        assert not engine.is_ready()
        assert len(target.rows("orders")) == 10
        engine.resume()
        assert engine.await_ready(PATIENCE)
        assert await_seen(lambda: len(target.rows("orders")) == 11)
    with engine:
        assert engine.await_ready(PATIENCE)
    assert target.disk.duplicates() == []
    assert target.calls["load"] == 1


@pytest.mark.meets("S8")
def test_a_pause_ends_the_job_that_runs_and_the_batch_comes_again(market: Market) -> None:
    runner = LongJobs()
    orders = memory()
    pipeline = market.pipeline(orders)
    with market.engine(pipeline, runner=runner) as engine:
        assert engine.await_ready(PATIENCE)
        runner.slow = True
        market.put("orders", 11)
        assert runner.running.wait(PATIENCE)
        engine.pause("orders")
        assert pipeline in runner.cancelled
        info = engine.pipeline_info("orders")
        assert info.state == "paused"
        assert info.error is None
        assert orders.count() == 10
        runner.slow = False
        engine.resume("orders")
        assert await_that(engine, lambda: orders.count() == 11)
        assert engine.await_ready(PATIENCE)


@pytest.mark.meets("S8", "R12")
def test_a_pause_ends_the_loading_of_a_baseline_too(market: Market) -> None:
    runner = LongJobs()
    runner.slow = True
    target = ScriptedTarget()
    with market.engine(market.pipeline(target), runner=runner) as engine:
        assert runner.running.wait(PATIENCE)
        engine.pause()
        info = engine.pipeline_info("orders")
        assert (info.state, info.tables[0].state, info.error) == ("paused", "loading", None)
        assert target.shown == set()
        runner.slow = False
        engine.resume()
        assert engine.await_ready(PATIENCE)
    assert len(target.rows("orders")) == 10


@pytest.mark.meets("S8")
def test_a_stop_ends_the_job_that_runs_and_that_is_no_failure(
    market: Market, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threads, "_GRACE_SECONDS", 0.05)
    runner = LongJobs()
    target = ScriptedTarget()
    engine = market.engine(market.pipeline(target), runner=runner)
    with engine:
        assert engine.await_ready(PATIENCE)
        runner.slow = True
        market.put("orders", 11)
        assert runner.running.wait(PATIENCE)
    assert runner.cancelled
    assert engine.pipelines()[0].state == "stopped"
    assert engine.pipelines()[0].error is None
    runner.slow = False
    with engine:
        assert await_seen(lambda: len(target.rows("orders")) == 11)
    assert target.disk.duplicates() == []


def test_a_pause_waits_for_a_write_that_has_begun(market: Market) -> None:
    target = ScriptedTarget()
    with market.engine(market.pipeline(target)) as engine:
        assert engine.await_ready(PATIENCE)
        target.hold()
        market.put("orders", 11)
        assert target.holding.wait(PATIENCE)
        pausing = threading.Thread(target=engine.pause)
        pausing.start()
        assert await_seen(lambda: engine.pipeline_info("orders").state == "paused")
        assert pausing.is_alive()
        target.release()
        pausing.join(PATIENCE)
        assert not pausing.is_alive()
        # At rest: what was begun is whole.
        assert len(target.rows("orders")) == 11
        market.put("orders", 12)
        assert market.recorded(engine)
        assert len(target.rows("orders")) == 11


def test_all_pipelines_of_a_source_are_paused_and_no_others(market: Market) -> None:
    other = MemorySource("other")
    other.set_schema("items", {"id": "int64"}, key=["id"])
    orders, more, items = memory(), memory(), memory()
    engine = market.engine(
        market.pipeline(orders, name="first"),
        market.pipeline(more, name="second"),
        Pipeline(other, "items", items),
    )
    with engine:
        assert engine.await_ready(PATIENCE)
        engine.pause(source="shop")
        states = {info.name: info.state for info in engine.pipelines()}
        assert states == {"first": "paused", "second": "paused", "items": "live"}
        other.emit_insert("items", {"id": 1})
        assert await_that(engine, lambda: items.count() == 1)
        assert engine.is_ready(source="other")
        engine.resume(source="shop")
        assert engine.await_ready(PATIENCE)
        with pytest.raises(NotRunning):
            engine.pause(source="nowhere")
        with pytest.raises(NotRunning):
            engine.pause("nothing")
    with pytest.raises(NotRunning):
        engine.pause()


@pytest.mark.meets("R8")
def test_what_a_paused_durable_pipeline_has_not_taken_is_not_acknowledged(market: Market) -> None:
    target, orders = ScriptedTarget(), memory()
    engine = market.engine(
        market.pipeline(target, name="kept"), market.pipeline(orders, name="shown")
    )
    with engine:
        assert engine.await_ready(PATIENCE)
        before = market.source.position.commit
        engine.pause("kept")
        market.put("orders", 11)
        assert await_that(engine, lambda: orders.count() == 11)
        market.put("orders", 12)
        assert await_that(engine, lambda: orders.count() == 12)
        acknowledged = engine.source_info("shop").acknowledged
        assert acknowledged is not None
        assert acknowledged.commit <= before
        engine.resume("kept")
        assert market.source.wait_until_acknowledged(PATIENCE)
    assert len(target.rows("orders")) == 12


@pytest.mark.meets("R8")
def test_nothing_is_acknowledged_before_it_is_known_what_targets_need(market: Market) -> None:
    target = ScriptedTarget()
    with market.engine(market.pipeline(target)) as engine:
        assert engine.await_ready(PATIENCE)
        engine.pause()
        market.put("orders", 11)
        assert market.recorded(engine)
    reported = list(market.source.acknowledged)
    heard = threading.Event()

    class Slow(ArrowRunner):
        """As Spark, that takes seconds to start, while the recorder is at work already."""

        def output(self, *arguments, **named):  # type: ignore[no-untyped-def]
            assert await_seen(lambda: engine.source_info("shop").state == "streaming")
            market.put("orders", 12)
            assert await_seen(lambda: engine.source_info("shop").end.commit >= 2)
            heard.set()
            return super().output(*arguments, **named)

    engine = market.engine(market.pipeline(target), runner=Slow())
    with engine:
        assert heard.is_set()
        assert len(target.rows("orders")) == 10
        assert market.source.acknowledged[len(reported) :] in ([], reported[-1:])
        engine.resume()
        assert market.source.wait_until_acknowledged(PATIENCE)


@pytest.mark.meets("R8")
def test_a_start_that_fails_acknowledges_nothing(market: Market) -> None:
    target = ScriptedTarget()
    with market.engine(market.pipeline(target)) as engine:
        assert engine.await_ready(PATIENCE)
        engine.pause()
        market.put("orders", 11)
        assert market.recorded(engine)
    reported = list(market.source.acknowledged)

    class Broken(ArrowRunner):
        """Fails after the recorder had time to begin."""

        def output(self, *arguments, **named):  # type: ignore[no-untyped-def]
            assert await_seen(lambda: engine.source_info("shop").state == "streaming")
            raise SparkFailed("No plan")

    engine = market.engine(market.pipeline(target, name="orders"), runner=Broken())
    with pytest.raises(InvalidConfiguration):
        engine.start()
    assert market.source.acknowledged[len(reported) :] in ([], reported[-1:])


class Loadable(ScriptedTarget):
    """A target that takes its time to load."""

    def __init__(self) -> None:
        super().__init__()
        self.loading = threading.Event()
        self.go_on = threading.Event()

    def load(self, table: str, baseline: int):  # type: ignore[no-untyped-def]
        self.loading.set()
        assert self.go_on.wait(PATIENCE)
        return super().load(table, baseline)


@pytest.mark.meets("R8")
def test_what_follows_a_baseline_that_is_being_loaded_is_not_acknowledged(market: Market) -> None:
    target, orders = Loadable(), memory()
    engine = market.engine(
        market.pipeline(target, name="kept"), market.pipeline(orders, name="shown")
    )
    with engine:
        assert target.loading.wait(PATIENCE)
        market.put("orders", 11)
        assert await_seen(lambda: orders.row_count("orders") == 11)
        market.put("orders", 12)
        assert await_seen(lambda: orders.row_count("orders") == 12)
        acknowledged = engine.source_info("shop").acknowledged
        target.go_on.set()
        assert acknowledged is None or acknowledged.commit == 0
        assert market.source.wait_until_acknowledged(PATIENCE)
    assert len(target.rows("orders")) == 12


def test_what_is_known_can_be_asked_while_the_engine_starts(market: Market) -> None:
    asked: list[str] = []

    class Curious(ArrowRunner):
        def output(self, *arguments, **named):  # type: ignore[no-untyped-def]
            asked.extend(info.state for info in engine.pipelines())
            return super().output(*arguments, **named)

    engine = market.engine(market.pipeline(memory()), runner=Curious())
    with engine:
        assert asked == ["waiting"]
        assert engine.await_ready(PATIENCE)


def test_resume_tries_again_what_a_person_has_mended(market: Market) -> None:
    target = ScriptedTarget()
    with market.engine(market.pipeline(target)) as engine:
        assert engine.await_ready(PATIENCE)
        target.reject(CorruptSegment("Segment is shorter than recorded", file="x.parquet"))
        market.put("orders", 11)
        assert await_that(engine, lambda: engine.pipeline_info("orders").state == "failed")
        engine.resume("orders")
        assert engine.await_ready(PATIENCE)
        assert engine.pipeline_info("orders").error is None
    assert len(target.rows("orders")) == 11


class Mistaken(ScriptedTarget):
    """A target with a mistake in it, that is mended while the engine runs."""

    wrong = True

    def write(self, batch: Batch) -> Position:
        if self.wrong:
            raise ZeroDivisionError
        return super().write(batch)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_resume_revives_a_pipeline_that_broke_off(market: Market) -> None:
    target = Mistaken()
    with market.engine(market.pipeline(target)) as engine:
        assert engine.await_ready(PATIENCE)
        market.put("orders", 11)
        for _ in range(2):
            assert await_that(engine, lambda: engine.pipeline_info("orders").state == "failed")
            engine.resume("orders")
        assert await_that(engine, lambda: engine.pipeline_info("orders").state == "failed")
        target.wrong = False
        engine.resume("orders")
        assert engine.await_ready(PATIENCE)
    assert len(target.rows("orders")) == 11


def test_a_paused_pipeline_that_never_loaded_loads_when_it_is_resumed(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    orders = memory()
    engine = shop.engine(shop.pipeline(orders))
    with engine:
        assert engine.await_ready(PATIENCE)
        engine.pause()
    with engine:
        assert orders.row_count("orders") is None
        assert not engine.await_ready(0.1)
        engine.resume()
        assert engine.await_ready(PATIENCE)
        assert {row["id"]: dict(row) for row in orders.all()} == shop.truth()
    shop.close()


def test_a_reload_does_not_wait_for_a_pipeline_that_is_paused(market: Market) -> None:
    target = memory()
    with market.engine(market.pipeline(target, name="orders")) as engine:
        assert engine.await_ready(PATIENCE)
        engine.pause("orders")
        assert not engine.reload("shop", "orders", timeout=None)
        engine.resume("orders")
        assert await_seen(lambda: engine.pipeline_info("orders").tables[0].baseline == 2)
