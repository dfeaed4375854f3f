"""A user's Python functions in a plan, on executors."""

from __future__ import annotations

import sys
import threading
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark import cloudpickle

from headrace.errors import BadFunction, BadTransform, JobFailed
from headrace.pipeline.plan.plan import PipelinePlan
from headrace.pipeline.plan.projection import ChangeImages
from headrace.pipeline.runner import SparkRunner
from headrace.pipeline.steps import derive, drop, equals, function, prefix, rename, where
from headrace.spark_session.errors import running
from tests.pipeline.making import (
    ORDERS,
    REPLACING,
    TRAITS,
    batch,
    delete,
    insert,
    pipeline,
    row_tuples,
    run,
    table,
    truncate,
    update,
)
from tests.pipeline.planned import Planned, baseline

if TYPE_CHECKING:
    from headrace.spark_session.session import Spark

pytestmark = pytest.mark.spark

# As a notebook's functions are sent: executors need not have these tests.
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]


def order(id: int, **given: Any) -> dict[str, Any]:
    return {"id": id, "status": "paid", "qty": 2, "price": Decimal("1.50")} | given


def is_large(row: dict[str, Any]) -> bool | None:
    return None if row["qty"] is None else bool(row["qty"] > 5)


def are_large(given: pa.RecordBatch) -> pa.Array:
    return pc.greater(given["qty"], 5)


def total(row: dict[str, Any]) -> dict[str, Any] | None:
    """The example of a function of rows: without a quantity there is no row."""
    if row["qty"] is None:
        return None
    return {"total": float(row["qty"] * row["price"])}


def totals(given: pa.RecordBatch) -> pa.RecordBatch:
    product = pc.multiply(given["qty"].cast(pa.decimal128(10, 0)), given["price"])
    return pa.record_batch({"total": product.cast("double"), "extra": given["id"]})


CROSSING = [
    insert(1, order(1, qty=9)),
    insert(2, order(2, qty=1)),
    insert(3, order(3, qty=None)),
    update(4, order(2, qty=1), order(2, qty=6)),
    update(5, order(1, qty=9), order(1, qty=3)),
    update(6, order(2, qty=6), order(7, qty=6)),
    update(7, order(7, qty=6), order(8, qty=1)),
    delete(8, order(4, qty=8)),
    delete(9, order(5, qty=1)),
]


@pytest.mark.meets("R22", "S10")
@pytest.mark.parametrize("kind", ["rows", "batches"])
def test_a_row_enters_and_leaves_a_filter_in_python(
    spark: Spark, tmp_path: Path, kind: str
) -> None:
    large = function(is_large) if kind == "rows" else function(are_large, batch=True)
    planned = Planned(
        spark, ORDERS, filters=[equals("status", "paid"), large], transforms=[drop("price")]
    )
    assert planned.plan.filtered
    assert planned.plan.reports_failures
    assert not planned.plan.framed
    found = planned.run(tmp_path, CROSSING, [truncate(0)])
    assert planned.truncate == (0, 0)
    assert found == [
        ("insert", 1, 1, "paid", 9),
        ("insert", 4, 2, "paid", 6),
        ("delete", 5, 1, None, None),
        ("delete", 6, 2, None, None),
        ("update", 6, 7, "paid", 6),
        ("delete", 7, 7, None, None),
        ("delete", 8, 4, None, None),
    ]
    assert planned.failures == []
    rows = [order(1, qty=7), order(2), order(3, qty=None)]
    assert planned.baseline(tmp_path, rows) == [(1, "paid", 7)]
    after = planned.run(tmp_path, [insert(1, order(1, qty=9))], shape=ChangeImages.AFTER)
    assert after == [("insert", 1, 1, "paid", 9)]


@pytest.mark.meets("R22", "S10")
def test_none_for_the_new_image_alone_is_a_delete(spark: Spark, tmp_path: Path) -> None:
    planned = Planned(
        spark,
        ORDERS,
        transforms=[
            rename(qty="amount"),
            derive(qty="amount"),
            function(total, columns={"total": "double"}, reads=["qty", "price"]),
            drop("amount", "qty", "price"),
        ],
    )
    assert planned.plan.filtered
    found = planned.run(
        tmp_path,
        [
            insert(1, order(1)),
            insert(2, order(2, qty=None)),
            update(3, order(1), order(1, qty=4)),
            update(4, order(1, qty=4), order(1, qty=None)),
            update(5, order(2, qty=None), order(2)),
            update(6, order(2), order(9)),
            update(7, order(9), order(8, qty=None)),
            delete(8, order(6)),
            delete(9, order(7, qty=None)),
        ],
    )
    assert found == [
        ("insert", 1, 1, "paid", 3.0),
        ("update", 3, 1, "paid", 6.0),
        ("delete", 4, 1, None, None),
        ("insert", 5, 2, "paid", 3.0),
        ("delete", 6, 2, None, None),
        ("update", 6, 9, "paid", 3.0),
        ("delete", 7, 9, None, None),
        ("delete", 8, 6, None, None),
    ]
    rows = [order(1), order(2, qty=None)]
    assert planned.baseline(tmp_path, rows) == [(1, "paid", 3.0)]


@pytest.mark.meets("R22")
def test_where_inserts_replace_a_row_that_is_left_out_is_deleted(
    spark: Spark, tmp_path: Path
) -> None:
    planned = Planned(
        spark, ORDERS, REPLACING, transforms=[function(total, columns={"total": "double"})]
    )
    found = planned.run(tmp_path, [insert(1, order(1, qty=None)), insert(2, order(2))])
    assert [row[:3] for row in found] == [("delete", 1, 1), ("insert", 2, 2)]


@pytest.mark.meets("S10")
def test_a_function_of_batches_gives_columns_and_replaces_some(
    spark: Spark, tmp_path: Path
) -> None:
    def shout(given: pa.RecordBatch) -> pa.RecordBatch:
        return pa.record_batch({"status": pc.utf8_upper(given["status"])})

    planned = Planned(
        spark,
        ORDERS,
        transforms=[
            function(totals, columns={"total": "double"}, batch=True),
            function(shout, columns={"status": "string"}, reads=["status"], batch=True),
            derive(twice="total * 2"),
        ],
    )
    assert not planned.plan.filtered
    assert planned.plan.output.names == ("id", "status", "qty", "price", "total", "twice")
    price = Decimal("1.50")
    found = planned.run(
        tmp_path,
        [insert(1, order(1)), update(2, None, order(1, qty=4)), delete(3, order(1)), truncate(0)],
    )
    assert found == [
        ("insert", 1, 1, "PAID", 2, price, 3.0, 6.0),
        ("update", 2, 1, "PAID", 4, price, 6.0, 12.0),
        ("delete", 3, 1, None, None, None, None, None),
    ]


@pytest.mark.meets("S2", "S10")
@pytest.mark.parametrize("kind", ["filter", "rows", "batches"])
def test_rows_that_a_function_fails_on_are_told_among_ten_thousand(
    spark: Spark, tmp_path: Path, kind: str
) -> None:
    def test(row: dict[str, Any]) -> bool:
        return bool(10 / row["qty"] > 1)

    def ratio(row: dict[str, Any]) -> dict[str, Any]:
        return {"ratio": 10 / row["qty"]}

    def ratios(given: pa.RecordBatch) -> pa.RecordBatch:
        return pa.record_batch({"ratio": pc.divide(10, given["qty"]).cast("double")})

    given: dict[str, Any] = {
        "filter": {"filters": [function(test)]},
        "rows": {"transforms": [function(ratio, columns={"ratio": "double"})]},
        "batches": {"transforms": [function(ratios, columns={"ratio": "double"}, batch=True)]},
    }[kind]
    # A row that fails is reported even if a later filter would leave it out.
    given.setdefault("filters", []).append(where("status = 'paid'"))
    planned = Planned(spark, ORDERS, **given)
    bad = {17, 5_000, 9_999}
    changes = [insert(at, order(at, qty=0 if at in bad else 5), 3) for at in range(10_000)]
    found = planned.run(tmp_path, changes)
    assert len(found) == 9_997
    assert sorted(each["at"] for each in planned.failures) == [(at, 3) for at in sorted(bad)]
    names = {each["function"] for each in planned.failures}
    assert names == {{"filter": "test", "rows": "ratio", "batches": "ratios"}[kind]}
    wanted = "ArrowInvalid" if kind == "batches" else "ZeroDivisionError"
    assert {each["error"] for each in planned.failures} == {wanted}


def test_a_failing_image_before_fails_its_change(spark: Spark, tmp_path: Path) -> None:
    planned = Planned(spark, ORDERS, filters=[function(lambda row: 1 / row["qty"] > 0)])
    changes = [update(1, order(1, qty=0), order(1)), update(2, order(2), order(2, qty=5))]
    assert [row[:3] for row in planned.run(tmp_path, changes)] == [("update", 2, 2)]
    assert [each["at"] for each in planned.failures] == [(1, 0)]


@pytest.mark.meets("S2")
def test_a_failing_row_of_a_baseline_is_told_by_file_and_number(
    spark: Spark, tmp_path: Path
) -> None:
    planned = Planned(spark, ORDERS, filters=[function(lambda row: 1 / row["qty"] > 0)])
    path = baseline(tmp_path, ORDERS, [order(1), order(2, qty=0)])
    rows = planned.collected([path], ChangeImages.BASELINE)
    assert rows.num_rows == 1
    assert [each["place"] for each in planned.failures] == [f"{Path(path).name}/1"]


def test_a_wrong_value_fails_its_row_naming_function_and_column(
    spark: Spark, tmp_path: Path
) -> None:
    def odd(row: dict[str, Any]) -> dict[str, Any]:
        given: dict[int, dict[str, Any]] = {1: {"n": 1}, 2: {"n": 1.5}, 3: {}}
        return given[row["id"]]

    planned = Planned(spark, ORDERS, transforms=[function(odd, columns={"n": "int"})])
    changes = [insert(at, order(at)) for at in (1, 2, 3)]
    assert [row[2] for row in planned.run(tmp_path, changes)] == [1]
    noted = {each["at"][0]: (each["function"], each["error"]) for each in planned.failures}
    assert noted == {2: ("odd", "TypeError"), 3: ("odd", "KeyError")}


@pytest.mark.meets("S10")
def test_each_function_is_called_once_for_a_row_and_image(spark: Spark, tmp_path: Path) -> None:
    log = tmp_path / "calls"
    log.mkdir()

    def note(name: str) -> Any:
        def call(row: dict[str, Any]) -> Any:
            with (log / name).open("a") as file:
                file.write(f"{row['id']} {row['qty']}\n")
            return True if name == "filter" else {"x": row["qty"]}

        return call

    planned = Planned(
        spark,
        ORDERS,
        filters=[function(note("filter")), where("qty < 90")],
        transforms=[function(note("transform"), columns={"x": "int"}), derive(y="x + x")],
    )
    segments = tmp_path / "segments"
    segments.mkdir()
    changes = [
        insert(1, order(1, qty=1)),
        update(2, order(1, qty=1), order(1, qty=2)),
        update(3, order(1, qty=2), order(1, qty=95)),
        delete(4, order(3, qty=3)),
    ]
    planned.run(segments, changes)
    assert sorted((log / "filter").read_text().split("\n")[:-1]) == [
        "1 1", "1 1", "1 2", "1 2", "1 95", "3 3",
    ]  # fmt: skip
    assert sorted((log / "transform").read_text().split("\n")[:-1]) == [
        "1 1", "1 1", "1 2", "1 2", "3 3",
    ]  # fmt: skip


def test_a_function_is_imported_on_the_executor_when_given_by_path(
    spark: Spark, tmp_path: Path
) -> None:
    # Of the standard library, so that executors have it: row → dict(row).
    planned = Planned(
        spark,
        ORDERS,
        transforms=[function("copy:copy", columns={"qty": "int", "price": "decimal(12,2)"})],
    )
    found = planned.run(tmp_path, [insert(1, order(1))])
    assert found == [("insert", 1, 1, "paid", 2, Decimal("1.50"))]


@pytest.mark.parametrize("path", ["no_such_module:f", "copy:no_such_name"])
def test_a_path_that_leads_nowhere_is_refused_at_once(spark: Spark, path: str) -> None:
    with pytest.raises(BadFunction) as caught:
        PipelinePlan(spark, pipeline(filters=[function(path)]), ORDERS, TRAITS)
    assert path in caught.value.message


def test_a_function_that_cannot_be_sent_is_refused_at_once(spark: Spark) -> None:
    lock = threading.Lock()
    with pytest.raises(BadFunction) as caught:
        PipelinePlan(spark, pipeline(filters=[function(lambda row: lock.locked())]), ORDERS, TRAITS)
    assert "cannot be sent" in caught.value.message


@pytest.mark.parametrize("type", ["no_such_type", "int) + (1", "void", "interval month"])
def test_a_type_that_a_column_cannot_have_is_refused(spark: Spark, type: str) -> None:
    what = pipeline(transforms=[function(total, columns={"total": type})])
    with pytest.raises((BadFunction, BadTransform)):
        PipelinePlan(spark, what, ORDERS, TRAITS)


@pytest.mark.meets("S10")
@pytest.mark.parametrize(
    "call",
    [
        lambda given: pa.record_batch({"total": pa.array([1.0])}),
        lambda given: pa.record_batch({"total": given["status"]}),
        lambda given: None,
    ],
    ids=["count", "type", "none"],
)
def test_a_wrong_result_of_a_batch_ends_the_job_naming_the_function(
    spark: Spark, tmp_path: Path, call: Any
) -> None:
    def wrong(given: Any) -> Any:
        return call(given)

    planned = Planned(
        spark, ORDERS, transforms=[function(wrong, columns={"total": "double"}, batch=True)]
    )
    with pytest.raises(BadFunction) as caught, running(pipeline="orders"):
        planned.run(tmp_path, [insert(1, order(1)), insert(2, order(2))])
    assert "The function wrong returned" in caught.value.message
    assert caught.value.facts == {"pipeline": "orders"}


@pytest.mark.meets("S10")
def test_a_function_that_takes_too_long_fails_the_job_and_no_row(
    spark: Spark, tmp_path: Path
) -> None:
    def slow(row: dict[str, Any]) -> bool:
        import threading

        return threading.Event().wait(60)

    planned = Planned(spark, ORDERS, filters=[function(slow, time_limit=0.3)])
    with pytest.raises(JobFailed), running(pipeline="orders"):
        planned.run(tmp_path, [insert(1, order(1))])


@pytest.mark.meets("R23")
def test_a_function_sees_the_key_and_every_kind_of_value(spark: Spark, tmp_path: Path) -> None:
    kinds = table(
        ("id", "int64"), ("at", "timestamptz"), ("raw", "bytes"), ("v", "variant"), ("d", "date"),
    )  # fmt: skip
    from datetime import UTC, date, datetime

    row = {
        "id": 1,
        "at": datetime(2026, 1, 2, tzinfo=UTC),
        "raw": b"\x00",
        "v": "text",
        "d": date(2026, 1, 1),
    }

    def seen(row: dict[str, Any]) -> dict[str, Any]:
        offset = row["at"].utcoffset().total_seconds()
        return {"seen": f"{row['id']} {offset} {row['raw']!r} {row['v']['t']} {row['d']}"}

    planned = Planned(spark, kinds, transforms=[function(seen, columns={"seen": "string"})])
    found = planned.run(tmp_path, [insert(1, row)])
    assert planned.failures == []
    assert found[0][-1] == "1 0.0 b'\\x00' text 2026-01-01"


@pytest.mark.meets("S2")
def test_a_runner_gives_the_rows_and_tells_the_failed_ones(spark: Spark, tmp_path: Path) -> None:
    def ratio(row: dict[str, Any]) -> dict[str, Any]:
        return {"ratio": 10 / row["qty"]}

    what = pipeline(
        filters=[prefix("status", "p")],
        transforms=[
            function(ratio, columns={"ratio": "double"}),
            derive(x="10 div (qty - 5)"),
            drop("status", "price"),
        ],
    )
    changes = [insert(at, order(at, qty=at % 100), 1) for at in range(1, 201)]
    result = run(SparkRunner(spark), what, tmp_path, ORDERS, changes)
    assert result.rows.num_rows == 196
    assert row_tuples(result)[0] == ("insert", 1, 1, 1, 10.0, -2)
    found = [(failure.reference, failure.code) for failure in result.failures]
    assert found == [
        ((5, 1), "DIVIDE_BY_ZERO"),
        ((100, 1), "FUNCTION_FAILED"),
        ((105, 1), "DIVIDE_BY_ZERO"),
        ((200, 1), "FUNCTION_FAILED"),
    ]
    assert result.failures[1].facts["function"] == "ratio"


def test_a_batch_is_read_by_each_session(spark: Spark, tmp_path: Path) -> None:
    planned = Planned(spark, ORDERS, filters=[function(is_large)])
    parts, _ = batch(tmp_path, ORDERS, [insert(at, order(at, qty=at)) for at in range(10)])
    for bulk in (False, True):
        assert planned.collected(parts[0].paths, ChangeImages.AFTER, bulk=bulk).num_rows == 4
