"""A Spark that dies is replaced once, and plans are made again; with Sparks that are scripted."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from headrace.changelog.schema import TableSchema
from headrace.errors import BadFrame, SparkGone
from headrace.pipeline.plan import plan as module
from headrace.pipeline.plan.plan import Plans
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

    def plan(spark: Any, *given: object) -> object:
        sparks.append(spark)
        return object()

    monkeypatch.setattr(module, "PipelinePlan", plan)
    return sparks


def plans(spark: Any, renew: Any = None) -> Plans:
    return Plans(spark, renew)


def plan_of(plans: Plans, what: Any, schema: TableSchema = ORDERS) -> object:
    with plans.alive(what) as spark:
        return plans.of(spark, what, schema)


@pytest.mark.meets("S2")
def test_after_a_death_batches_fail_until_one_thread_has_revived_it(made: list[Any]) -> None:
    first, second = Scripted(), Scripted()
    asked = threading.Semaphore(0)

    def renew() -> Any:
        asked.release()
        return second

    known, what = plans(first, renew), pipeline()
    known.know(what, TRAITS)
    before = plan_of(known, what)
    assert plan_of(known, what) is before
    first.alive = False
    with pytest.raises(SparkGone):
        plan_of(known, what)
    threads = [threading.Thread(target=known.revive) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert asked.acquire(blocking=False)
    assert not asked.acquire(blocking=False)
    assert plan_of(known, what) is not before
    assert made == [first, second]


@pytest.mark.meets("S2")
def test_whatever_goes_wrong_as_spark_dies_is_its_death() -> None:
    spark, what = Scripted(), pipeline(name="orders")
    known = plans(spark)
    with pytest.raises(ZeroDivisionError), known.alive(what):
        raise ZeroDivisionError
    with pytest.raises(SparkGone) as caught, known.alive(what):
        spark.alive = False
        raise AssertionError("deep in PySpark")
    assert caught.value.facts == {"error": "AssertionError", "pipeline": "orders"}
    spark.alive = True
    with pytest.raises(KeyboardInterrupt), known.alive(what):
        raise KeyboardInterrupt


def test_a_brought_session_that_died_is_not_replaced(made: list[Any]) -> None:
    spark: Any = Scripted()
    known, what = plans(spark), pipeline()
    spark.alive = False
    assert not known.revive()
    with pytest.raises(SparkGone):
        plan_of(known, what)


def test_a_column_cannot_be_made_again(made: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    class Column:
        """Stands for one of PySpark's, which needs a JVM to be made."""

    monkeypatch.setattr("pyspark.sql.Column", Column)
    column: Any = Column()
    first, second = Scripted(), Scripted()
    known = plans(first, lambda: second)
    given = [
        pipeline(filters=[where(column)]),
        pipeline(transforms=[derive(a="1", b=column)]),
        pipeline(filters=[where("qty > 1")], transforms=[derive(a="1")]),
    ]
    for what in given:
        known.know(what, TRAITS)
        plan_of(known, what)
    first.alive = False
    assert known.revive()
    for what in given[:2]:
        with pytest.raises(SparkGone) as caught:
            plan_of(known, what)
        assert "SQL text" in caught.value.remedy
        # Asked to prepare again it is no other: the column is still the old one.
        known.know(what, TRAITS)
        with pytest.raises(SparkGone):
            plan_of(known, what)
    plan_of(known, given[2])


def test_a_function_of_frames_that_fails_on_a_new_spark_used_something_of_the_old(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first, second = Scripted(), Scripted()

    def plan(spark: Any, *given: object) -> object:
        if spark is second:
            raise BadFrame("Transform 1, frame: the function raised")
        return object()

    monkeypatch.setattr(module, "PipelinePlan", plan)
    known, what = plans(first, lambda: second), pipeline()
    known.know(what, TRAITS)
    plan_of(known, what)
    first.alive = False
    assert known.revive()
    with pytest.raises(SparkGone, match="function of frames"):
        plan_of(known, what)


@pytest.mark.meets("S8")
def test_each_pipeline_has_a_tag_of_its_own() -> None:
    spark = Scripted()
    known = plans(spark)
    given = [pipeline(name="a,b"), pipeline(), pipeline(), pipeline()]
    for what in given:
        known.know(what, TRAITS)
        known.know(what, TRAITS)
    tags = [known.tag(what) for what in given]
    assert tags == ["headrace-a_b", "headrace-orders", "headrace-orders-2", "headrace-orders-3"]
    known.cancel(given[2])
    known.cancel(pipeline())
    assert spark.cancelled == ["headrace-orders-2"]
    spark.alive = False
    known.cancel(given[2])
    assert spark.cancelled == ["headrace-orders-2"]
