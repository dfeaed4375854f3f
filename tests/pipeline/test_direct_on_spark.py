"""Small batches computed directly by Spark's expressions: the same as by a job, and which are."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace.changelog.schema import CAPTURED
from headrace.changelog.segment import segment_bytes
from headrace.errors import EvaluationTimeout, JobFailed, RowFailed, TooManyFailed
from headrace.pipeline import runner as runner_module
from headrace.pipeline.definition import DeadLetters
from headrace.pipeline.plan.types import segment_schema
from headrace.pipeline.result import Failure, same_results
from headrace.pipeline.runner import SparkRunner
from headrace.pipeline.steps import derive, frame, function, timestamp, where
from headrace.spark_session import direct as direct_module
from headrace.spark_session.direct import DirectPlans
from tests.pipeline.both_ways import Outcome, play
from tests.pipeline.making import (
    ORDERS,
    TRAITS,
    batch,
    delete,
    insert,
    order,
    pipeline,
    row_tuples,
    update,
)
from tests.pipeline.planned import ready
from tests.support.tiers import TIER

if TYPE_CHECKING:
    from headrace.spark_session.session import Spark

pytestmark = pytest.mark.spark

ROUNDS = {"fast": 1, "test": 2, "ci": 5, "nightly": 60}[TIER]
"""Pipelines of eight batches each; `python -m tests.pipeline.both_ways` plays more."""

CHANGES = [
    insert(1, order(1)),
    insert(2, order(2, 0)),
    update(3, order(1), order(1, 5)),
    update(4, order(1, 5), order(9, 5)),
    delete(5, order(9, 5)),
]


@pytest.mark.meets("S6", "S2", "R22")
def test_random_batches_give_the_same_rows_and_failures_both_ways(
    spark: Spark, tmp_path: Path
) -> None:
    outcome = Outcome()
    for seed in range(ROUNDS):
        play(spark, 1_000 + seed, 8, tmp_path, outcome)
    assert outcome.batches == 8 * ROUNDS
    assert outcome.by_job == 0
    assert outcome.rows > 0


@pytest.mark.meets("TRF-03", "R23g")
def test_the_time_of_capture_is_the_same_both_ways_also_of_segments_without_it(
    spark: Spark, tmp_path: Path
) -> None:
    seen = datetime(2026, 1, 2, 3, tzinfo=UTC)
    parts, facts = batch(tmp_path, ORDERS, [insert(1, order(1))], [insert(2, order(2))])
    first = Path(parts[0].paths[0])
    rows = pq.read_table(first)
    first.write_bytes(segment_bytes(rows.append_column(CAPTURED, pa.array([seen]))))
    found = []
    for way in ("direct", "job"):
        what = pipeline(transforms=[timestamp("seen", of="capture")])
        prepared = SparkRunner(spark, small_batches=way).prepare(what, TRAITS)
        result = prepared.rows(parts, facts)
        assert result.direct == (way == "direct")
        found.append(result.rows.column("seen").to_pylist())
    assert found == [[seen, datetime(1970, 1, 1, 0, 0, 0, 2, UTC)]] * 2


@pytest.mark.meets("S2", "S14")
def test_a_row_that_raises_comes_back_beside_the_good_ones_without_a_job(
    spark: Spark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    what = pipeline(filters=[where("qty >= 0")], transforms=[derive(x="100 / qty")])
    prepared = ready(spark, what)
    parts, facts = batch(tmp_path, ORDERS, CHANGES)

    def no_job(*given: object) -> None:
        raise AssertionError("a job ran")

    with monkeypatch.context() as patch:
        patch.setattr(type(spark), "collect", no_job)
        result = prepared.rows(parts, facts)
        # Neither a row that waits for a dead letter nor what follows it is computed.
        fewer = prepared.rows(parts, replace(facts, without=frozenset({(2, 0), (3, 0)})))
    assert result.direct
    cause = {"step": "transform 1", "column": "x"}
    assert result.failures == (Failure((2, 0), "DIVIDE_BY_ZERO", cause),)
    assert row_tuples(result, "id", "x") == [
        ("insert", 1, 1, 50.0),
        ("update", 3, 1, 20.0),
        ("delete", 4, 1, None),
        ("update", 4, 9, 20.0),
        ("delete", 5, 9, None),
    ]
    assert fewer.failures == ()
    assert [commit for _, commit, *_ in row_tuples(fewer)] == [1, 4, 4, 5]


@pytest.mark.meets("S2")
def test_the_limits_of_failing_rows_are_those_of_a_job(spark: Spark, tmp_path: Path) -> None:
    bad = [insert(at, order(at, 0)) for at in range(1, 4)]
    parts, facts = batch(tmp_path, ORDERS, bad)
    transforms = [derive(x="100 / qty")]
    found: list[Any] = []
    for way in ("direct", "job"):
        for on_error, kind in ((DeadLetters(max_per_batch=2), TooManyFailed), ("stop", RowFailed)):
            what = pipeline(transforms=transforms, on_error=on_error)
            prepared = SparkRunner(spark, small_batches=way).prepare(what, TRAITS)
            prepared.output(ORDERS)
            with pytest.raises(kind) as caught:
                prepared.rows(parts, facts)
            found.append((caught.value.code, caught.value.message, caught.value.facts))
    assert found[:2] == found[2:]


def test_explain_says_which_way_a_batch_went_and_shows_its_plan(
    spark: Spark, tmp_path: Path
) -> None:
    parts, facts = batch(tmp_path, ORDERS, CHANGES)
    found = {}
    for way in ("direct", "job"):
        what = pipeline(name=f"explained {way}", filters=[where("qty > 0")])
        prepared = SparkRunner(spark, small_batches=way).prepare(what, TRAITS)
        prepared.rows(parts, facts)
        found[way] = prepared.explain()
    direct, job = found["direct"], found["job"]
    assert (direct.way, direct.jobs, job.way, job.jobs) == ("direct", 0, "job", 1)
    assert (direct.rows_in, direct.rows_out) == (job.rows_in, job.rows_out) == (5, 5)
    assert "LogicalRDD" in direct.plan
    assert "Scan parquet" in job.plan
    assert "directly, without a Spark job" in str(direct)
    assert "by a Spark job" in str(job)


def test_what_is_more_than_filters_and_projections_needs_a_job(
    spark: Spark, tmp_path: Path
) -> None:
    from pyspark.sql import functions as F

    twice: Any = F.udf(lambda value: 2 * value, "int")
    given = [
        pipeline(transforms=[function(lambda row: {"y": 1}, columns={"y": "int"}, reads=["qty"])]),
        pipeline(transforms=[frame(lambda df: df)]),
        pipeline(transforms=[derive(y=twice("qty"))]),
    ]
    parts, facts = batch(tmp_path, ORDERS, [insert(1, order(1))])
    for what in given:
        result = ready(spark, what).rows(parts, facts)
        assert not result.direct
        assert result.rows.num_rows == 1


@pytest.mark.meets("S7")
def test_sessions_in_one_jvm_compute_in_turn(spark: Spark, tmp_path: Path) -> None:
    other = DirectPlans(spark.session, spark.small)
    parts, facts = batch(tmp_path, ORDERS, CHANGES[:1])
    schema = segment_schema(ORDERS, ORDERS.names, None)
    for _ in range(2):
        assert ready(spark, pipeline()).rows(parts, facts).direct
        assert other.evaluator(other.source(schema), schema) is not None


@pytest.mark.meets("S14")
def test_where_the_check_at_the_start_fails_jobs_compute_everything(
    spark: Spark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts, facts = batch(tmp_path, ORDERS, CHANGES[:1])
    for broken in ("no such class", "wrong rows"):
        with monkeypatch.context() as patch:
            if broken == "no such class":
                text = direct_module._SOURCE.read_text().replace("ArrowWriter;", "ArrowWriters;")
            else:
                text = direct_module._SOURCE.read_text().replace(".write(made);", ".finish();")
            source = tmp_path / "DirectEvaluator.java"
            source.write_text(text)
            patch.setattr(direct_module, "_SOURCE", source)
            plans = DirectPlans(spark.session, spark.small)
            patch.setattr(spark, "direct", plans)
            prepared = ready(spark, pipeline())
            result = prepared.rows(parts, facts)
            assert not result.direct
            assert result.rows.num_rows == 1
            assert plans.reason.startswith("the check at the start failed: ")
            assert spark.info().jobs_only == plans.reason
            assert f"by a Spark job; {plans.reason}" in str(prepared.explain())


@pytest.mark.meets("S14")
def test_a_row_that_does_not_end_is_told_by_its_position_and_no_job_tries_it(
    spark: Spark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(direct_module, "STUCK_SECONDS", 0.1)
    # For some rows it takes seconds, but ends: the JVM is that of all tests.
    inner = "aggregate(sequence(1, 10000), 0L, (a, x) -> (a + x * qty) % 7)"
    slow = f"aggregate(sequence(1, qty), 0L, (b, y) -> b + {inner})"
    prepared = ready(spark, pipeline(transforms=[derive(x=slow)]))
    good, bad = order(1, 1), order(2, 900)
    parts, facts = batch(tmp_path, ORDERS, [insert(1, good), insert(8, bad), insert(9, good)])

    def no_job(*given: object) -> None:
        raise AssertionError("a job ran")

    monkeypatch.setattr(type(spark), "collect", no_job)
    with pytest.raises(EvaluationTimeout) as caught:
        prepared.rows(parts, facts)
    assert (caught.value.facts["commit"], caught.value.facts["ordinal"]) == (8, 0)
    assert "row" not in caught.value.facts
    assert not isinstance(caught.value, JobFailed)
    # Other batches are computed, by another object.
    parts, facts = batch(tmp_path, ORDERS, [insert(1, good)])
    assert prepared.rows(parts, facts).rows.num_rows == 1


@pytest.mark.meets("S14")
def test_the_check_by_a_job_finds_the_same(
    spark: Spark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner_module, "CHECK_EVERY", 2)
    what = pipeline(filters=[where("status <> 'void'")], transforms=[derive(x="100 / qty")])
    prepared = ready(spark, what)
    parts, facts = batch(tmp_path, ORDERS, CHANGES)
    first, second = (prepared.rows(parts, facts) for _ in range(2))
    assert first.check is None
    assert second.check is not None
    second.check()
    assert same_results(first, second)
    assert prepared.explain().way == "direct"
