"""Ending jobs by their tag: those that run, those that are still planned, and no others."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

from headrace.errors import JobCancelled
from headrace.spark_session.errors import running
from tests.support.patience import patience
from tests.support.shop import await_seen

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from headrace.spark_session.session import Spark

pytestmark = pytest.mark.spark

HOURS = 3600 * 10
"""Longer than anybody waits: a job that is over was ended. How soon is measured in `bench/`."""

Job = Callable[["SparkSession"], "DataFrame"]


def asleep(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        time.sleep(HOURS)
        yield batch


def by_sql(session: SparkSession) -> DataFrame:
    return session.range(0, 40_000_000_000_000, 1, 2).where("xxhash64(id) = 1")


def by_function(session: SparkSession) -> DataFrame:
    return session.range(4).mapInArrow(asleep, "id bigint")


def assert_ended(spark: Spark, tag: str, work: Callable[[], object]) -> None:
    """Run tagged work that would go on for hours, and cancel it once Spark says its job runs."""
    tracker = spark.session.sparkContext._jsc.sc().statusTracker()
    asked = threading.Event()

    def cancel() -> None:
        assert await_seen(lambda: len(tracker.getJobIdsForTag(tag)) > 0)
        asked.set()
        spark.cancel(tag)

    canceller = threading.Thread(target=cancel, daemon=True)
    canceller.start()
    with pytest.raises(JobCancelled), running(), spark.tagged(tag):
        work()
    assert asked.is_set()
    canceller.join()


@pytest.mark.meets("S8")
@pytest.mark.parametrize("size", ["small", "bulk"])
@pytest.mark.parametrize("job", [by_sql, by_function])
def test_a_job_that_would_run_for_hours_is_over_when_it_is_cancelled(
    spark: Spark, job: Job, size: str
) -> None:
    frame = job(getattr(spark, size))
    assert_ended(spark, f"hr {job.__name__} {size}", lambda: spark.collect(frame))


@pytest.mark.meets("S8")
def test_a_users_own_job_within_the_block_is_cancelled_with_it(spark: Spark) -> None:
    theirs = spark.session
    assert_ended(spark, "hr own", lambda: by_sql(theirs).count())


def test_a_cancelled_function_gives_its_core_back(spark: Spark) -> None:
    assert_ended(spark, "hr core", lambda: spark.collect(by_function(spark.small)))
    # It would sleep for hours yet: were it still there, nobody would have its core.
    assert spark.small.range(0, 8, 1, 8).toArrow().num_rows == 8


def test_jobs_that_the_block_starts_after_the_request_are_ended_too(spark: Spark) -> None:
    with pytest.raises(JobCancelled), running(), spark.tagged("hr early"):
        spark.cancel("hr early")
        spark.collect(by_sql(spark.small))


def test_a_tag_ends_with_its_block_and_a_request_without_one_does_nothing(spark: Spark) -> None:
    with spark.tagged("hr over"):
        assert spark.small.range(3).toArrow().num_rows == 3
    spark.cancel("hr over")
    assert spark.small.range(3).toArrow().num_rows == 3
    with spark.tagged("hr over"):
        assert spark.small.range(3).toArrow().num_rows == 3
    assert len(spark.session.sparkContext.getJobTags()) == 0


def test_jobs_of_other_tags_and_threads_go_on(spark: Spark) -> None:
    found: list[int] = []
    ready = threading.Event()

    def other() -> None:
        with spark.tagged("hr other"):
            ready.set()
            for _ in range(5):
                found.append(spark.small.range(7).toArrow().num_rows)

    thread = threading.Thread(target=other)
    with pytest.raises(JobCancelled), running(), spark.tagged("hr this"):
        thread.start()
        ready.wait(patience())
        spark.cancel("hr this")
        spark.collect(by_sql(spark.small))
    thread.join()
    assert found == [7] * 5


def test_what_ran_under_a_tag_is_counted(spark: Spark) -> None:
    assert spark.counted("hr never") == (0, 0, 0)
    with spark.tagged("hr counted"):
        spark.small.range(0, 10, 1, 3).toArrow()
        spark.small.range(0, 10, 1, 2).toArrow()
    spark.session.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()
    assert spark.counted("hr counted") == (2, 5, 0)


def test_the_plan_that_ran_is_told(spark: Spark) -> None:
    frame = spark.bulk.range(100).groupBy("id").count()
    assert "isFinalPlan=false" in spark.explain(frame)
    spark.collect(frame)
    told = spark.explain(frame)
    assert "isFinalPlan=true" in told
    assert "Aggregate" in told  # by hash, or since 4.3 by order
