"""What is refused before anything runs, and the report of a row that cannot be computed."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from headrace.errors import BadExpression, JobFailed, RowFailed
from headrace.pipeline.batch import SegmentGroup
from headrace.pipeline.runner import SparkRunner
from headrace.pipeline.steps import derive, where
from tests.pipeline.making import ORDERS, TRAITS, batch, insert, pipeline, row_tuples, run
from tests.pipeline.planned import ready

if TYPE_CHECKING:
    from headrace.spark_session.session import Spark

pytestmark = pytest.mark.spark

DIFFERS = {
    "rand() > 0.5": "Rand",
    "uuid() = status": "Uuid",
    "current_timestamp() > timestamp '2026-01-01'": "CurrentTimestamp",
    "now() is null": "Now",
    "current_date > date '2026-01-01'": "CurrentDate",
    "localtimestamp() is null": "LocalTimestamp",
    "unix_timestamp() > 1": "CurrentTimestamp",
    "current_user() = status": "CurrentUser",
    "cast('now' as timestamp) is null": "Cast",
    "to_date(' Today ') is null": "ParseToDate",
    "timestamp 'now' is null": "Literal",
    "monotonically_increasing_id() > 1": "MonotonicallyIncreasingID",
    "spark_partition_id() = 0": "SparkPartitionID",
    "input_file_name() = status": "InputFileName",
    "id in (select 1)": "InSubquery",
    "exists (select 1)": "Exists",
    "(select max(1)) = id": "ScalarSubquery",
    "sum(qty) > 1": "Aggregate",
    "row_number() over (order by id) = 1": "Window",
}


@pytest.mark.meets("R23g", "S17")
@pytest.mark.parametrize("text", DIFFERS)
def test_what_could_differ_when_a_batch_runs_again_is_refused(spark: Spark, text: str) -> None:
    with pytest.raises(BadExpression) as caught:
        SparkRunner(spark).prepare(pipeline(filters=[where(text)]), TRAITS).output(ORDERS)
    assert caught.value.message.startswith("Filter 1 ")
    assert caught.value.facts["kind"] == DIFFERS[text]
    with pytest.raises(BadExpression) as caught:
        SparkRunner(spark).prepare(pipeline(transforms=[derive(x=text)]), TRAITS).output(ORDERS)
    assert caught.value.message.startswith("Transform 1, x ")


@pytest.mark.meets("R23g", "S17")
def test_the_same_is_refused_of_a_column(spark: Spark) -> None:
    from pyspark.sql import functions as F

    columns: list[Callable[[], Any]] = [
        lambda: F.rand() > 0.5,
        lambda: F.current_timestamp().isNull(),
        lambda: F.sum("qty") > 1,
        lambda: F.lit("now").cast("timestamp").isNull(),
        lambda: F.udf(lambda x: x, "boolean").asNondeterministic()("qty"),
    ]
    for column in columns:
        with pytest.raises(BadExpression):
            SparkRunner(spark).prepare(pipeline(filters=[where(column())]), TRAITS).output(ORDERS)


@pytest.mark.parametrize(
    ("text", "part", "condition"),
    [
        (
            "statsu = 'paid'",
            "uses an unknown column statsu; did you mean status",
            "UNRESOLVED_COLUMN",
        ),
        ("qty >", "is not valid SQL, near end of input", "PARSE_SYNTAX_ERROR"),
        ("qty) or (true", "is not valid SQL", "PARSE_SYNTAX_ERROR"),
        ("nonsense(qty)", "cannot be analysed", "UNRESOLVED_ROUTINE"),
        ("Status = 'paid'", "uses an unknown column Status", "UNRESOLVED_COLUMN"),
        ("after.qty > 1", "uses an unknown column after.qty", "UNRESOLVED_COLUMN"),
        ("_commit > 1", "uses an unknown column _commit", "UNRESOLVED_COLUMN"),
        ("qty + status > date '2026-01-01'", "cannot be analysed", "DATATYPE_MISMATCH"),
    ],
)
def test_an_expression_spark_refuses_is_named_by_its_place(
    spark: Spark, text: str, part: str, condition: str
) -> None:
    with pytest.raises(BadExpression) as caught:
        SparkRunner(spark).prepare(pipeline(filters=[where("true"), where(text)]), TRAITS).output(
            ORDERS
        )
    error = caught.value
    assert error.message.startswith(f"Filter 2 {part}")
    assert str(error.facts["condition"]).startswith(condition)
    assert error.code == "pipeline.bad_expression"
    assert "\n" not in str(error)
    assert error.__cause__ is None


def test_a_condition_must_be_true_or_false(spark: Spark) -> None:
    with pytest.raises(BadExpression) as caught:
        SparkRunner(spark).prepare(pipeline(filters=[where("qty + 1")]), TRAITS).output(ORDERS)
    assert caught.value.message == "Filter 1 has the type int; a condition must be true or false"


@pytest.mark.parametrize("text", ["qty as amount", "null", "qty *"])
def test_a_derived_column_needs_a_value_and_no_name_of_its_own(spark: Spark, text: str) -> None:
    with pytest.raises(BadExpression):
        SparkRunner(spark).prepare(pipeline(transforms=[derive(x=text)]), TRAITS).output(ORDERS)


@pytest.mark.meets("S17")
@pytest.mark.parametrize(
    "text",
    [
        "qty > 1",
        "`qty`>1 -- twice or more",
        "/* how many */ qty /* more */ > 1",
        "qty between 2 and 9 and status like 'p%'",
        "struct(*).qty > 1",
        "exists(array(qty), x -> x > 1)",
        "transform(array(status), qty -> qty)[0] = 'paid' and qty > 1",
        "named_struct('qty', qty).qty > 1",
        "case qty when 1 then false else true end",
        "status = 'qty' or qty > 1",
        "qty > 1 and '日本 qty' <> status",
        "'${env:HOME}' like '$%' and qty > 1",
    ],
)
def test_text_and_column_mean_the_same(spark: Spark, tmp_path: Path, text: str) -> None:
    from pyspark.sql import functions as F

    changes = [
        insert(at, {"id": at, "status": "paid", "qty": at, "price": Decimal(1)}) for at in (1, 2, 3)
    ]
    runner = SparkRunner(spark)
    as_text = pipeline(filters=[where(text)], transforms=[derive(x=text)])
    # A column among them makes the whole pipeline take the other way.
    both = pipeline(
        filters=[where(text), where(F.col("id") > 0)], transforms=[derive(x=F.expr(text))]
    )
    first = row_tuples(run(runner, as_text, tmp_path, ORDERS, changes))
    assert first == row_tuples(run(runner, both, tmp_path, ORDERS, changes))
    assert [id for _, _, id, *_ in first] == [2, 3]


FAILING = {
    "100 / (qty - 1)": "DIVIDE_BY_ZERO",
    "cast(status as int)": "CAST_INVALID_INPUT",
    "qty * 2147483647 * 2": "ARITHMETIC_OVERFLOW",
    "array(1)[qty]": "INVALID_ARRAY_INDEX",
    "to_timestamp(status, 'yyyy')": "CANNOT_PARSE_TIMESTAMP",
    "coalesce(raise_error(status), 1)": "USER_RAISED_EXCEPTION",
}


@pytest.mark.meets("S2")
@pytest.mark.parametrize("text", FAILING)
def test_a_row_that_cannot_be_computed_is_told_by_condition_and_never_by_value(
    spark: Spark, tmp_path: Path, text: str, capfd: pytest.CaptureFixture[str]
) -> None:
    changes = [insert(1, {"id": 1, "status": "secret", "qty": 1, "price": Decimal(1)})]
    with pytest.raises(RowFailed) as caught:
        what = pipeline(transforms=[derive(x=text)], on_error="stop")
        run(SparkRunner(spark), what, tmp_path, ORDERS, changes)
    error = caught.value
    assert str(error.facts["condition"]).split(".")[0].removeprefix("BINARY_") == FAILING[text]
    assert error.facts["pipeline"] == "orders"
    assert "secret" not in str(error)
    assert error.__cause__ is None
    assert capfd.readouterr() == ("", "")


@pytest.mark.meets("S2")
def test_a_filter_that_fails_fails_the_row(spark: Spark, tmp_path: Path) -> None:
    changes = [insert(1, {"id": 1, "status": "x", "qty": 0, "price": Decimal(1)})]
    with pytest.raises(RowFailed) as caught:
        what = pipeline(filters=[where("1 / qty > 0")], on_error="stop")
        run(SparkRunner(spark), what, tmp_path, ORDERS, changes)
    assert caught.value.facts["condition"] == "DIVIDE_BY_ZERO"


@pytest.mark.meets("S2")
def test_a_missing_or_damaged_segment_is_never_blamed_on_a_row(
    spark: Spark, tmp_path: Path
) -> None:
    what = pipeline()
    prepared = ready(spark, what, small_batches="job")
    parts, facts = batch(tmp_path, ORDERS, [insert(1, {"id": 1})])
    missing = SegmentGroup(ORDERS, (str(tmp_path / "missing.parquet"),))
    with pytest.raises(JobFailed) as caught:
        prepared.rows([missing], facts)
    assert caught.value.facts["condition"] == "PATH_NOT_FOUND"
    damaged = Path(parts[0].paths[0])
    damaged.write_bytes(damaged.read_bytes()[:-20])
    with pytest.raises(JobFailed):
        prepared.rows(parts, facts)
