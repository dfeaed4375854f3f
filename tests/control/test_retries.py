"""How often a pipeline or a source is tried again, and with what pauses."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest

from headrace.api.handlers import ControlService
from headrace.capture.messages import Retries
from headrace.changelog.position import Position
from headrace.config.schema import Plain, node_of
from headrace.config.text import SourceLocation
from headrace.engine.engine import Engine
from headrace.engine.from_config import configured
from headrace.errors import InvalidConfiguration, JobFailed, TargetError, WrongValue
from headrace.pipeline.batch import BatchFacts, SegmentGroup
from headrace.pipeline.definition import Pipeline
from headrace.pipeline.result import JobResult
from headrace.runtime.model import Again, Stop, decide
from headrace.targets.memory import memory
from headrace.targets.target import Batch
from headrace.testing.target import ScriptedTarget
from tests.support.arrow_runner import ArrowRunner
from tests.support.shop import PATIENCE, Market, await_seen, await_that


class Failing(ArrowRunner):
    """A runner that fails while `away`, and counts its tries."""

    away = False
    tries = 0

    def rows(
        self, pipeline: Pipeline, parts: Sequence[SegmentGroup], facts: BatchFacts
    ) -> JobResult:
        if self.away:
            self.tries += 1
            raise JobFailed("No executors")
        return super().rows(pipeline, parts, facts)


def test_a_pipeline_stops_after_as_many_failures_in_a_row_and_resume_tries_as_often_again(
    market: Market,
) -> None:
    runner, orders = Failing(), memory()
    engine = Engine(
        market.pipeline(orders, name="orders"),
        data=market.data, runner=runner, recorder="thread", retry=Retries(3, 0.01, 0.02),
    )  # fmt: skip
    with engine:
        assert engine.await_ready(PATIENCE)
        runner.away = True
        market.put("orders", 11)
        assert await_that(engine, lambda: engine.pipeline_info("orders").state == "failed")
        assert runner.tries == 3
        assert not engine.await_ready(PATIENCE)
        engine.resume("orders")
        assert await_seen(lambda: runner.tries == 6)
        assert await_that(engine, lambda: engine.pipeline_info("orders").state == "failed")
        runner.away = False
        engine.resume("orders")
        assert engine.await_ready(PATIENCE)
        assert await_seen(lambda: orders.count() == 11)


def test_a_row_that_a_target_refuses_is_shown_and_stops_its_pipeline_alone(market: Market) -> None:
    looked = threading.Event()

    class Refusing(ScriptedTarget):
        tries = 0

        def write(self, batch: Batch) -> Position:
            if any(11 in rows.column("id").to_pylist() for rows in batch.tables.values()):
                self.tries += 1
                if self.tries > 1:
                    looked.wait(PATIENCE)
                raise TargetError("The target takes no such row", target="refusing")
            return super().write(batch)

    orders, seen = memory(), list[tuple[str, str]]()
    engine = Engine(
        market.pipeline(Refusing(), name="refused"), market.pipeline(orders, name="sound"),
        data=market.data, runner=ArrowRunner(), recorder="thread", retry=Retries(3, 0.01, 0.02),
    )  # fmt: skip

    def look() -> bool:
        (refused, _) = ControlService(engine).unary["Status"]({})["pipelines"]
        seen.append((refused["state"], refused["reason"]))
        if refused["reason"].startswith("retrying"):
            looked.set()
        return bool(refused["state"] == "failed")

    with engine:
        assert engine.await_ready(PATIENCE)
        market.put("orders", 11)
        assert await_seen(look)
        market.put("orders", 12)
        assert await_seen(lambda: orders.count() == 12)
        assert engine.is_ready(pipeline="sound")
    why = "The target takes no such row (target refusing)"
    assert ("not_ready", f"retrying: {why}") in seen
    assert seen[-1] == ("failed", why)


def test_a_source_stops_after_as_many_failures_and_is_started_by_resume(market: Market) -> None:
    engine = Engine(
        market.pipeline(memory(), name="orders"),
        data=market.data, runner=ArrowRunner(), recorder="thread",
        reconnect=Retries(2, 0.01, 0.02),
    )  # fmt: skip
    market.source.set_away(True)
    with engine:
        assert await_that(engine, lambda: engine.source_info("shop").state == "failed")
        source = engine.source_info("shop")
        assert source.error is not None
        assert (source.error.code, source.reason) == ("capture.unreachable", "The source is away")
        assert not engine.await_ready(PATIENCE)
        market.source.set_away(False)
        engine.resume(source="shop")
        assert engine.await_ready(PATIENCE)
        # A failure in between does not count with those before.
        market.source.inject_error(source.error)
        market.put("orders", 11)
        assert await_that(engine, lambda: engine.pipeline_info("orders").rows == 11)
        assert engine.await_ready(PATIENCE)


def test_pauses_grow_from_the_first_to_the_longest() -> None:
    retries = Retries(max_attempts=5, first_pause=1.0, longest_pause=3.0)
    error = JobFailed("x")
    found = [decide(error, attempt, retries) for attempt in (1, 2, 3, 4, 5)]
    assert found == [Again(1.0), Again(2.0), Again(3.0), Again(3.0), Stop()]
    assert Retries().exhausted(1_000_000) is False


def test_a_configuration_has_them_for_pipelines_and_for_sources() -> None:
    text: Plain = {
        "sources": {"shop": {"type": "sqlite", "path": "shop.db", "record": ["orders"]}},
        "retry": {"max_attempts": 5, "first_pause": "1s"},
        "reconnect": {"longest_pause": "2m"},
        "shutdown": {"timeout": "10s"},
    }
    read = configured(node_of(text, SourceLocation("headrace.conf", 7, 3)))
    options = read.engine()._state.options
    assert options.retry == Retries(5, 1.0, 30.0)
    assert options.reconnect == Retries(None, None, 120.0)
    assert options.shutdown_timeout == 10.0


@pytest.mark.parametrize("pauses", [(0.0, None), (None, 0.0), (0.001, 1.0)])
def test_a_pause_that_would_not_limit_the_load_is_refused(
    pauses: tuple[float | None, float | None],
) -> None:
    with pytest.raises(WrongValue, match="at least 10 ms"):
        Retries(None, *pauses)


@pytest.mark.parametrize(
    ("section", "key", "least"),
    [
        ("retry", "first_pause", "10ms"),
        ("reconnect", "longest_pause", "10ms"),
        ("shutdown", "timeout", "100ms"),
    ],
)
def test_a_duration_that_is_too_short_is_an_error_of_the_configuration(
    section: str, key: str, least: str
) -> None:
    text: Plain = {
        "sources": {"shop": {"type": "sqlite", "path": "shop.db", "record": ["orders"]}},
        section: {key: "0s"},
    }
    with pytest.raises(InvalidConfiguration, match=f"{section}.{key} must be at least {least}"):
        configured(node_of(text, SourceLocation("headrace.conf", 7, 3)))
