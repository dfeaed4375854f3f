"""Rows that cannot be computed: found, reported and left out; other errors blame no row."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from headrace.changelog.change import Change
from headrace.changelog.values import (
    MAX_INT32,
    MAX_INT64,
    MIN_INT32,
    MIN_INT64,
    BeyondDate,
    BeyondTimestamp,
)
from headrace.errors import JobCancelled, JobFailed, RowFailed, TooManyFailed
from headrace.pipeline.batch import SegmentGroup
from headrace.pipeline.definition import DeadLetters
from headrace.pipeline.failed_rows import Workspace
from headrace.pipeline.plan.plan import PipelinePlan
from headrace.pipeline.result import Failure
from headrace.pipeline.runner import SparkRunner
from headrace.pipeline.steps import derive, function, where
from tests.pipeline.making import (
    ORDERS,
    REPLACING,
    TRAITS,
    batch,
    delete,
    insert,
    order,
    pipeline,
    row_tuples,
    table,
    update,
    written,
)
from tests.pipeline.planned import ready
from tests.support.shop import await_seen
from tests.support.tiers import NIGHTLY

if TYPE_CHECKING:
    from headrace.spark_session.session import Spark

pytestmark = pytest.mark.spark

MANY = 10_000 if NIGHTLY else 1_000


def inserts(count: int, bad: set[int], start: int = 1) -> list[Change]:
    """Orders of which some have a quantity of 0, which nothing can be divided by."""
    return [insert(at, order(at, 0 if at in bad else 2)) for at in range(start, start + count)]


BOTH_WAYS = pytest.mark.parametrize("way", ["probe", "halving"], indirect=True)
SELDOM_HALVING = pytest.mark.parametrize(
    "way", ["probe", pytest.param("halving", marks=pytest.mark.nightly)], indirect=True
)
"""Halving takes a dozen jobs for what one of them finds: two tests of it are enough by day."""


@pytest.fixture
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways to find them: by asking Spark, and where it cannot tell."""
    if request.param == "halving":
        monkeypatch.setattr(PipelinePlan, "probe", lambda *given, **named: None)
    return str(request.param)


@pytest.fixture
def jobs(spark: Spark, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """How many jobs ran, as a list of one number."""
    count = [0]
    collect = type(spark).collect

    def counting(self: Any, frame: Any) -> Any:
        count[0] += 1
        return collect(self, frame)

    monkeypatch.setattr(type(spark), "collect", counting)
    yield count


@pytest.fixture
def sessions(spark: Spark, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The session of every job that ran, in their order."""
    found: list[Any] = []
    collect = type(spark).collect

    def noting(self: Any, frame: Any) -> Any:
        found.append(frame.sparkSession)
        return collect(self, frame)

    monkeypatch.setattr(type(spark), "collect", noting)
    return found


@BOTH_WAYS
@pytest.mark.meets("S2", "R30")
def test_a_failing_row_among_many_is_told_and_the_others_are_there(
    spark: Spark,
    tmp_path: Path,
    way: str,
    jobs: list[int],
    sessions: list[Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Fewer rows by day, and yet those of a large batch: Spark generates code for it.
    monkeypatch.setattr("headrace.spark_session.session.SMALL_ROWS", MANY // 2)
    assert spark.fit_for(MANY) is spark.bulk
    what = pipeline(transforms=[derive(x="100 / qty")])
    scratch = Workspace(str(tmp_path / "scratch"))
    prepared = SparkRunner(spark, scratch=scratch, small_batches="job").prepare(what, TRAITS)
    prepared.output(ORDERS)
    log = tmp_path / "log"
    log.mkdir()
    first = MANY * 6 // 10
    bad = {77, MANY - 1}
    parts, facts = batch(log, ORDERS, inserts(first, bad), inserts(MANY - first, bad, first + 1))
    result = prepared.rows(parts, facts)
    cause = {"step": "transform 1", "column": "x"} if way == "probe" else {}
    assert result.failures == (
        Failure((77, 0), "DIVIDE_BY_ZERO", cause),
        Failure((MANY - 1, 0), "DIVIDE_BY_ZERO", cause),
    )
    commits = result.rows["_commit"].to_pylist()
    assert commits == [at for at in range(1, MANY + 1) if at not in bad]
    # One that fails, one that finds, one without them; or a few dozen.
    most = 2 + 2 * 2 * MANY.bit_length()
    assert jobs[0] == 1 + 1 + 1 if way == "probe" else jobs[0] <= most
    # Halves of it are small; the whole is not, before they are found and without them.
    whole = sessions if way == "probe" else [sessions[0], sessions[-1]]
    assert all(each is spark.bulk for each in whole)
    assert list((tmp_path / "scratch").iterdir()) == []


@SELDOM_HALVING
@pytest.mark.meets("S2")
def test_a_row_fails_by_the_image_before_it_too(spark: Spark, tmp_path: Path, way: str) -> None:
    what = pipeline(filters=[where("100 / qty > 1")])
    prepared = ready(spark, what, small_batches="job")
    changes = [update(at, order(at, 0 if at == 40 else 2), order(at, 4)) for at in range(1, 101)]
    changes.append(delete(101, order(7, 0)))
    parts, facts = batch(tmp_path, ORDERS, changes)
    result = prepared.rows(parts, facts)
    assert [failure.reference for failure in result.failures] == [(40, 0), (101, 0)]
    assert [id for *_, id in row_tuples(result, "id")] == [at for at in range(1, 101) if at != 40]


@BOTH_WAYS
@pytest.mark.meets("S2")
def test_each_row_is_told_with_its_own_condition(spark: Spark, tmp_path: Path, way: str) -> None:
    what = pipeline(
        transforms=[derive(x="100 / qty", y="cast(status as int)", z="qty * 2000000000")]
    )
    prepared = ready(spark, what, small_batches="job")
    rows = [order(1, 1, "5"), order(2, 0, "5"), order(3, 1, "secret"), order(4, 2, "5")]
    parts, facts = batch(tmp_path, ORDERS, [insert(at, row) for at, row in enumerate(rows, 1)])
    result = prepared.rows(parts, facts)
    assert [(failure.reference[0], failure.code) for failure in result.failures] == [
        (2, "DIVIDE_BY_ZERO"),
        (3, "CAST_INVALID_INPUT"),
        (4, "ARITHMETIC_OVERFLOW"),
    ]
    if way == "probe":
        assert [failure.facts for failure in result.failures] == [
            {"step": "transform 1", "column": column} for column in ("x", "y", "z")
        ]
    assert row_tuples(result, "id") == [("insert", 1, 1)]
    assert "secret" not in repr(result.failures)


@pytest.mark.meets("S2", "S6")
def test_a_row_with_times_that_java_does_not_have_is_told_with_its_condition(
    spark: Spark, tmp_path: Path
) -> None:
    timed = table(
        ("id", "int64"), ("qty", "int32"), ("day", "date"), ("at", "timestamp"),
        ("atz", "timestamptz"),
    )  # fmt: skip
    first = {"day": BeyondDate(MIN_INT32), "at": BeyondTimestamp(MIN_INT64)}
    last = {"day": BeyondDate(MAX_INT32), "at": BeyondTimestamp(MAX_INT64)}
    changes = [
        insert(number, {"id": number, "qty": 0, "atz": BeyondTimestamp(at, utc=True), **times})
        for number, (at, times) in enumerate(((MIN_INT64, first), (MAX_INT64, last)), 1)
    ]
    parts, facts = batch(tmp_path, timed, changes)
    found = []
    for way in ("direct", "job"):
        runner = SparkRunner(spark, small_batches=way)
        prepared = runner.prepare(pipeline(transforms=[derive(x="100 / qty")]), TRAITS)
        found.append([(each.reference, each.code) for each in prepared.rows(parts, facts).failures])
    assert found == [[((1, 0), "DIVIDE_BY_ZERO"), ((2, 0), "DIVIDE_BY_ZERO")]] * 2


@pytest.mark.meets("S2")
@pytest.mark.parametrize("traits", [TRAITS, REPLACING], ids=["plain", "replacing"])
@SELDOM_HALVING
def test_a_row_of_a_baseline_is_told_by_segment_and_row_number(
    spark: Spark, tmp_path: Path, way: str, monkeypatch: pytest.MonkeyPatch, traits: Any
) -> None:
    monkeypatch.setattr("headrace.pipeline.runner.BASELINE_ROWS", 60)
    what = pipeline(filters=[where("100 / qty > 30")])
    runner = SparkRunner(spark, scratch=Workspace(str(tmp_path / "scratch")))
    prepared = runner.prepare(what, traits)
    output = prepared.output(ORDERS)
    log = tmp_path / "log"
    log.mkdir()
    segments = [
        [insert(0, order(s * 100 + at, 0 if (s, at) in {(1, 5), (3, 29)} else 2 + at % 2))
         for at in range(30)]
        for s in range(4)
    ]  # fmt: skip
    parts, _ = batch(log, ORDERS, *segments)
    loaded = list(prepared.baseline(parts[0]))
    cause = {"step": "filters"} if way == "probe" else {}
    assert [each.failures for each in loaded] == [
        (Failure((1, 5), "DIVIDE_BY_ZERO", cause),),
        (Failure((3, 29), "DIVIDE_BY_ZERO", cause),),
    ]
    assert all(each.rows.schema == output.arrow for each in loaded)
    ids = sorted(id for each in loaded for id in each.rows["id"].to_pylist())
    bad = {105, 329}
    expected = [s * 100 + at for s in range(4) for at in range(30)]
    assert ids == [id for id in expected if id not in bad and 100 / (2 + id % 2) > 30]
    assert list((tmp_path / "scratch").iterdir()) == []


@pytest.mark.meets("S2")
def test_one_row_too_many_stops_the_pipeline(spark: Spark, tmp_path: Path, jobs: list[int]) -> None:
    runner = SparkRunner(spark, small_batches="job")
    what = pipeline(transforms=[derive(x="100 / qty")])
    prepared = runner.prepare(what, TRAITS)
    prepared.output(ORDERS)
    parts, facts = batch(tmp_path, ORDERS, inserts(200, set(range(1, 22))))
    with pytest.raises(TooManyFailed) as caught:
        prepared.rows(parts, facts)
    assert (caught.value.facts["found"], caught.value.facts["limit"]) == (21, 20)
    assert caught.value.facts["condition"] == "DIVIDE_BY_ZERO"
    assert jobs[0] <= 2 + 21
    allowed = pipeline(transforms=what.transforms, on_error=DeadLetters(max_per_batch=21))
    assert len(runner.prepare(allowed, TRAITS).rows(parts, facts).failures) == 21
    with pytest.raises(TooManyFailed):
        list(prepared.baseline(parts[0]))


@pytest.mark.meets("S2")
def test_a_pipeline_that_is_to_stop_tells_the_row_it_stopped_at(
    spark: Spark, tmp_path: Path
) -> None:
    what = pipeline(transforms=[derive(x="100 / qty")], on_error="stop")
    prepared = ready(spark, what)
    parts, facts = batch(tmp_path, ORDERS, inserts(50, {30}))
    with pytest.raises(RowFailed) as caught:
        prepared.rows(parts, facts)
    assert caught.value.facts["condition"] == "DIVIDE_BY_ZERO"
    assert (caught.value.facts["commit"], caught.value.facts["ordinal"]) == (30, 0)
    with pytest.raises(RowFailed) as caught:
        list(prepared.baseline(parts[0]))
    assert (caught.value.facts["segment"], caught.value.facts["row"]) == (0, 29)


@pytest.mark.meets("R23f", "S2")
def test_a_value_outside_its_type_is_a_failure_without_a_job(
    spark: Spark, tmp_path: Path, jobs: list[int]
) -> None:
    what = pipeline(filters=[where("qty > 0")])
    prepared = ready(spark, what, small_batches="job")
    changes = [
        insert(1, order(1)),
        insert(2, order(2, "many"), 3),
        update(3, order(4, "many"), order(4)),
        delete(4, order(5)),
    ]
    parts, facts = batch(tmp_path, ORDERS, changes)
    result = prepared.rows(parts, facts)
    assert result.failures == (
        Failure((2, 3), "VALUE_OUTSIDE_TYPE", {"column": "qty"}),
        # The filter asks for it of the row before, to tell whether the target has it.
        Failure((3, 0), "VALUE_OUTSIDE_TYPE", {"column": "qty"}),
    )
    assert row_tuples(result, "id") == [("insert", 1, 1), ("delete", 4, 5)]
    assert jobs[0] == 1
    [loaded] = prepared.baseline(replace(parts[0], marked=2))
    assert loaded.failures == (
        Failure((0, 1), "VALUE_OUTSIDE_TYPE", {"column": "qty"}),
        Failure((0, 2), "VALUE_OUTSIDE_TYPE", {"column": "qty"}),
    )


@pytest.mark.meets("R30")
def test_changes_that_are_set_aside_are_not_computed(
    spark: Spark, tmp_path: Path, jobs: list[int]
) -> None:
    what = pipeline(transforms=[derive(x="100 / qty")])
    prepared = ready(spark, what, small_batches="job")
    log = tmp_path / "log"
    log.mkdir()
    parts, facts = batch(log, ORDERS, inserts(10, {4}), inserts(10, set(), 11))
    without = frozenset({(4, 0), (5, 0), (12, 0)})
    result = prepared.rows(parts, replace(facts, without=without))
    assert result.failures == ()
    assert result.rows["_commit"].to_pylist() == [at for at in range(1, 21) if at not in (4, 5, 12)]
    assert jobs[0] == 1


def inverse(row: dict[str, Any]) -> dict[str, Any]:
    return {"x": 100 / row["qty"]}


@pytest.mark.meets("S2", "S10")
def test_rows_that_a_python_function_refuses_are_told_by_the_job_itself(
    spark: Spark, tmp_path: Path, jobs: list[int]
) -> None:
    what = pipeline(
        transforms=[function(inverse, columns={"x": "double"}), derive(y="100 / (qty - 5)")]
    )
    prepared = ready(spark, what)
    parts, facts = batch(tmp_path, ORDERS, inserts(20, {3, 9}), inserts(5, set(), 21))
    result = prepared.rows(parts, facts)
    assert [(each.reference, each.code) for each in result.failures] == [
        ((3, 0), "FUNCTION_FAILED"),
        ((9, 0), "FUNCTION_FAILED"),
    ]
    assert result.failures[0].facts["error"] == "ZeroDivisionError"
    assert result.failures[0].facts["function"] == "inverse"
    assert [id for *_, id in row_tuples(result, "id")] == [
        at for at in range(1, 26) if at not in (3, 9)
    ]
    assert jobs[0] == 1
    [loaded] = prepared.baseline(parts[0])
    assert [each.reference for each in loaded.failures] == [(0, 2), (0, 8)]
    assert loaded.rows.num_rows == 23
    assert jobs[0] == 2
    # And together with a row on which Spark itself fails.
    both, facts = batch(tmp_path, ORDERS, [*inserts(20, {3}), insert(21, order(21, 5))])
    failures = prepared.rows(both, facts).failures
    assert [(each.reference[0], each.code) for each in failures] == [
        (3, "FUNCTION_FAILED"),
        (21, "DIVIDE_BY_ZERO"),
    ]
    [loaded] = prepared.baseline(both[0])
    assert [each.reference for each in loaded.failures] == [(0, 2), (0, 20)]
    assert loaded.rows.num_rows == 19


@pytest.mark.meets("S2", "S10")
def test_a_pipeline_that_is_to_stop_tells_the_row_that_a_python_function_refused(
    spark: Spark, tmp_path: Path
) -> None:
    what = pipeline(transforms=[function(inverse, columns={"x": "double"})], on_error="stop")
    prepared = SparkRunner(spark).prepare(what, TRAITS)
    parts, facts = batch(tmp_path, ORDERS, inserts(20, {3, 9}))
    with pytest.raises(RowFailed) as caught:
        prepared.rows(parts, facts)
    assert caught.value.facts["function"] == "inverse"
    assert (caught.value.facts["commit"], caught.value.facts["ordinal"]) == (3, 0)
    with pytest.raises(RowFailed) as caught:
        list(prepared.baseline(parts[0]))
    assert (caught.value.facts["segment"], caught.value.facts["row"]) == (0, 2)
    with pytest.raises(RowFailed) as caught:
        prepared.give(parts, facts, lambda failures: frozenset(), lambda frame: None)
    assert caught.value.facts["commit"] == 3


@pytest.mark.meets("S8")
def test_a_running_job_is_cancelled(spark: Spark, tmp_path: Path) -> None:
    # It would end by itself, hours later.
    inner = "aggregate(sequence(1, 1000000), 0L, (a, x) -> (a + x * qty) % 7)"
    slow = f"aggregate(sequence(1, 1000000), 0L, (b, y) -> b + y + {inner})"
    runner = SparkRunner(spark, small_batches="job")
    what = pipeline(name="slow", transforms=[derive(x=slow)])
    prepared = runner.prepare(what, TRAITS)
    other = runner.prepare(pipeline(name="other"), TRAITS)
    for each in (prepared, other):
        each.output(ORDERS)
    parts, facts = batch(tmp_path, ORDERS, inserts(100, set()))
    tracker = spark.session.sparkContext._jsc.sc().statusTracker()

    def cancel() -> None:
        assert await_seen(lambda: len(tracker.getActiveJobIds()) > 0)
        prepared.cancel()

    canceller = threading.Thread(target=cancel)
    canceller.start()
    with pytest.raises(JobCancelled):
        prepared.rows(parts, facts)
    canceller.join()
    other.cancel()
    assert other.rows(parts, facts).rows.num_rows == 100


@SELDOM_HALVING
def test_failing_rows_of_two_schema_versions_are_found_in_both(
    spark: Spark, tmp_path: Path, way: str
) -> None:
    wider = table(
        ("id", "int64"), ("status", "text"), ("qty", "int32"), ("price", "decimal(12,2)"),
        ("note", "text"),
    )  # fmt: skip
    old, first = batch(tmp_path, ORDERS, inserts(5, {2}))
    new, second = batch(
        tmp_path, wider, [insert(at, order(at, at - 8) | {"note": "n"}) for at in range(6, 11)]
    )
    facts = replace(first, rows=first.rows + second.rows)
    runner = SparkRunner(spark, small_batches="job")
    prepared = runner.prepare(pipeline(transforms=[derive(x="100 / qty")]), TRAITS)
    prepared.output(wider)
    result = prepared.rows([*old, *new], facts)
    assert [failure.reference for failure in result.failures] == [(2, 0), (8, 0)]
    assert [id for *_, id in row_tuples(result, "id")] == [1, 3, 4, 5, 6, 7, 9, 10]


@pytest.mark.meets("S2")
def test_a_segment_that_cannot_be_read_is_never_blamed_on_rows(
    spark: Spark, tmp_path: Path, jobs: list[int]
) -> None:
    what = pipeline(transforms=[derive(x="100 / qty")])
    prepared = ready(spark, what)
    parts, facts = batch(tmp_path, ORDERS, inserts(5, set()), inserts(5, {8}, 6))
    Path(parts[0].paths[0]).unlink()
    with pytest.raises(JobFailed) as caught:
        prepared.rows(parts, facts)
    assert not isinstance(caught.value, RowFailed)
    narrow = table(("id", "int64"), ("status", "text"), ("qty", "text"), ("price", "text"))
    path, _ = written(tmp_path, narrow, [insert(1, order(1, "x") | {"price": "y"})])
    with pytest.raises(JobFailed) as caught:
        prepared.rows([SegmentGroup(ORDERS, (path,))], facts)
    assert str(caught.value.facts["condition"]).startswith("FAILED_READ_FILE")


def test_what_a_pipeline_did_last_can_be_explained(spark: Spark, tmp_path: Path) -> None:
    what = pipeline(name="explained", filters=[where("qty > 0")])
    prepared = ready(spark, what, small_batches="job")
    assert "No batch has been computed yet" in str(prepared.explain())
    parts, facts = batch(tmp_path, ORDERS, inserts(10, {3}))
    prepared.rows(parts, facts)
    told_ = prepared.explain()
    assert (told_.pipeline, told_.rows_in, told_.rows_out) == ("explained", 10, 9)
    assert told_.jobs == 1
    assert told_.tasks >= 1
    assert told_.bytes_in == Path(parts[0].paths[0]).stat().st_size
    assert told_.last_job_ms > 0
    assert "Scan parquet" in told_.plan
    assert str(told_).startswith("Pipeline explained\n  last batch   10 rows in → 9 out, ")
