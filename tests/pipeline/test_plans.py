"""A Spark that dies is replaced once, and plans are made again; with scripted Sparks."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from headrace.errors import BadFrame, SparkGone
from headrace.pipeline import runner as module
from headrace.pipeline.runner import SparkPipeline, SparkRunner
from headrace.pipeline.steps import derive, where
from tests.pipeline.making import ORDERS, TRAITS, pipeline


class Scripted:
    """A Spark that lives until it is told otherwise."""

    def __init__(self) -> None:
        self.alive = True
        self.cancelled: list[str] = []

    def cancel(self, tag: str) -> None:
        self.cancelled.append(tag)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The Sparks that plans were made on, in order."""
    sparks: list[Any] = []

    class Plan:
        def __init__(self, spark: Any, *given: object) -> None:
            sparks.append(spark)
            self.output = object()

        def cancel(self) -> None: ...

        def close(self) -> None: ...

    monkeypatch.setattr(module, "PipelinePlan", Plan)
    return sparks


def planned(prepared: SparkPipeline) -> object:
    """Return something of the plan, by which plans can be told apart."""
    return prepared.output(ORDERS)


@pytest.mark.meets("S2")
def test_after_a_death_batches_fail_until_one_thread_has_revived_it(made: list[Any]) -> None:
    first, second = Scripted(), Scripted()
    asked = threading.Semaphore(0)

    def renew() -> Any:
        asked.release()
        return second

    spark: Any = first
    runner = SparkRunner(spark, renew=renew)
    what = runner.prepare(pipeline(), TRAITS)
    before = planned(what)
    assert planned(what) is before
    first.alive = False
    with pytest.raises(SparkGone):
        planned(what)
    threads = [threading.Thread(target=runner.revive) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert asked.acquire(blocking=False)
    assert not asked.acquire(blocking=False)
    assert planned(what) is not before
    assert made == [first, second]


@pytest.mark.meets("S2")
def test_whatever_goes_wrong_as_spark_dies_is_its_death() -> None:
    spark: Any = Scripted()
    runner = SparkRunner(spark)
    with pytest.raises(ZeroDivisionError), runner.living("orders"):
        raise ZeroDivisionError
    with pytest.raises(SparkGone) as caught, runner.living("orders"):
        spark.alive = False
        raise AssertionError("deep in PySpark")
    assert caught.value.facts == {"error": "AssertionError", "pipeline": "orders"}
    spark.alive = True
    with pytest.raises(KeyboardInterrupt), runner.living("orders"):
        raise KeyboardInterrupt


def test_a_brought_session_that_died_is_not_replaced(made: list[Any]) -> None:
    spark: Any = Scripted()
    runner = SparkRunner(spark)
    what = runner.prepare(pipeline(), TRAITS)
    spark.alive = False
    assert not runner.revive()
    with pytest.raises(SparkGone):
        planned(what)


def test_a_column_cannot_be_made_again(made: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    class Column:
        """Stands for one of PySpark's, which needs a JVM to be made."""

    monkeypatch.setattr("pyspark.sql.Column", Column)
    column: Any = Column()
    first: Any = Scripted()
    second: Any = Scripted()
    runner = SparkRunner(first, renew=lambda: second)
    given = [
        pipeline(filters=[where(column)]),
        pipeline(transforms=[derive(a="1", b=column)]),
        pipeline(filters=[where("qty > 1")], transforms=[derive(a="1")]),
    ]
    prepared = [runner.prepare(what, TRAITS) for what in given]
    for each in prepared:
        planned(each)
    first.alive = False
    assert runner.revive()
    for each in prepared[:2]:
        with pytest.raises(SparkGone) as caught:
            planned(each)
        assert "SQL text" in caught.value.remedy
        # Asked again it is no other: the column is still the old one.
        with pytest.raises(SparkGone):
            planned(each)
    planned(prepared[2])


def test_a_function_of_frames_that_fails_on_a_new_spark_used_something_of_the_old(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first: Any = Scripted()
    second: Any = Scripted()

    class Plan:
        def __init__(self, spark: Any, *given: object) -> None:
            if spark is second:
                raise BadFrame("Transform 1, frame: the function raised")
            self.output = object()

        def close(self) -> None: ...

    monkeypatch.setattr(module, "PipelinePlan", Plan)
    runner = SparkRunner(first, renew=lambda: second)
    what = runner.prepare(pipeline(), TRAITS)
    planned(what)
    first.alive = False
    assert runner.revive()
    with pytest.raises(SparkGone, match="frame function"):
        planned(what)


@pytest.mark.meets("S8")
def test_each_pipeline_has_a_tag_of_its_own() -> None:
    spark: Any = Scripted()
    runner = SparkRunner(spark)
    given = [pipeline(name="a,b"), pipeline(), pipeline(), pipeline()]
    prepared = [runner.prepare(what, TRAITS) for what in given]
    for each in prepared:
        each.cancel()
    tags = ["headrace-a_b", "headrace-orders", "headrace-orders-2", "headrace-orders-3"]
    assert spark.cancelled == tags
    spark.alive = False
    prepared[2].cancel()
    assert spark.cancelled == tags


@pytest.mark.meets("S8")
def test_a_tag_is_free_again_once_its_pipeline_is_closed() -> None:
    spark: Any = Scripted()
    runner = SparkRunner(spark)
    first, second = (runner.prepare(pipeline(), TRAITS) for _ in range(2))
    first.close()
    third = runner.prepare(pipeline(), TRAITS, "orders")
    for each in (second, third):
        each.cancel()
    assert spark.cancelled == ["headrace-orders-2", "headrace-orders"]
