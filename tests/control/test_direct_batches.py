"""Direct batches in an engine: how they are counted, checked by a job, and given up."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from headrace.api.messages import pipeline_fields
from headrace.config.schema import Plain, node_of
from headrace.config.text import SourceLocation
from headrace.engine.engine import Engine
from headrace.engine.from_config import configured
from headrace.errors import EvaluationTimeout, InvalidConfiguration, ResultsDiffer, WrongValue
from headrace.pipeline.batch import BatchFacts, SegmentGroup
from headrace.pipeline.definition import Pipeline
from headrace.pipeline.result import JobResult
from headrace.runtime.model import Stop, decide
from headrace.targets.memory import memory
from tests.support.arrow_runner import ArrowRunner
from tests.support.shop import PATIENCE, Market, await_seen, await_that


class Direct(ArrowRunner):
    """A runner whose batches are direct, with a check for each."""

    check: Callable[[], None] | None = None
    stuck = False
    tries = 0

    def rows(
        self, pipeline: Pipeline, parts: Sequence[SegmentGroup], facts: BatchFacts
    ) -> JobResult:
        self.tries += 1
        if self.stuck:
            raise EvaluationTimeout("A row takes too long to be computed", commit=7, ordinal=0)
        return replace(super().rows(pipeline, parts, facts), direct=True, check=self.check)


@pytest.mark.meets("S14")
def test_direct_batches_are_counted_apart_from_jobs(market: Market) -> None:
    runner, orders = Direct(), memory()
    with market.engine(market.pipeline(orders), runner=runner) as engine:
        assert engine.await_ready(PATIENCE)
        before = engine.pipeline_info("orders")
        market.put("orders", 11)
        assert await_that(engine, lambda: orders.get(11) is not None)
        assert await_seen(lambda: engine.pipeline_info("orders").direct > before.direct)
        info = engine.pipeline_info("orders")
        # The baseline was a job.
        assert info.jobs == before.jobs == 1
        fields = pipeline_fields(info, None, ready=True, rate=None)
        assert (fields["direct"], fields["abandoned"]) == (info.direct, 0)


@pytest.mark.meets("S14")
def test_a_check_runs_once_readers_see_the_rows_and_a_difference_stops_the_pipeline(
    market: Market,
) -> None:
    runner, orders = Direct(), memory()
    seen: list[bool] = []

    def check() -> None:
        seen.append(orders.get(11) is not None)
        raise ResultsDiffer("A batch has another result with a Spark job than without")

    with market.engine(market.pipeline(orders), runner=runner) as engine:
        assert engine.await_ready(PATIENCE)
        runner.check = check
        market.put("orders", 11)
        assert await_that(engine, lambda: engine.pipeline_info("orders").state == "failed")
        assert seen == [True]
        assert isinstance(engine.pipeline_info("orders").error, ResultsDiffer)
        assert not engine.is_ready()
        # The batch is applied and stored: a user who resumes does not get it again.
        tries, runner.check = runner.tries, None
        engine.resume("orders")
        market.put("orders", 12)
        assert await_that(engine, lambda: orders.get(12) is not None)
        assert runner.tries == tries + 1


@pytest.mark.meets("S14")
def test_a_batch_that_was_given_up_is_not_tried_again_by_itself(market: Market) -> None:
    runner, orders = Direct(), memory()
    with market.engine(market.pipeline(orders), runner=runner) as engine:
        assert engine.await_ready(PATIENCE)
        tries, runner.stuck = runner.tries, True
        market.put("orders", 11)
        assert await_that(engine, lambda: engine.pipeline_info("orders").state == "failed")
        info = engine.pipeline_info("orders")
        assert (info.abandoned, runner.tries) == (1, tries + 1)
        assert info.error is not None
        assert info.error.facts["commit"] == 7
        # Only a user's own attempt follows.
        engine.resume("orders")
        assert await_that(engine, lambda: engine.pipeline_info("orders").abandoned == 2)
        assert runner.tries == tries + 2


def test_neither_error_is_temporary() -> None:
    assert decide(EvaluationTimeout("…"), 1) == Stop()
    assert decide(ResultsDiffer("…"), 1) == Stop()


def settings(spark: dict[str, Plain]) -> Plain:
    shop: Plain = {"type": "sqlite", "path": "shop.db", "record": ["orders"]}
    return {"sources": {"shop": shop}, "spark": spark}


def test_how_small_batches_are_computed_is_configured() -> None:
    here = SourceLocation("test.conf", 1)
    by_default = configured(node_of(settings({}), here)).engine()
    by_job = configured(node_of(settings({"small_batches": "job"}), here)).engine()
    ways = [each._state.options.spark.small_batches for each in (by_default, by_job)]
    assert ways == ["direct", "job"]
    with pytest.raises(InvalidConfiguration, match="small_batches"):
        configured(node_of(settings({"small_batches": "never"}), here))
    wrong: dict[str, str] = {"small_batches": "never"}
    with pytest.raises(WrongValue, match="small_batches"):
        Engine(**wrong)  # type: ignore[arg-type]
