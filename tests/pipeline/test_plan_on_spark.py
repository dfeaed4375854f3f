"""What a pipeline's rows look like, and in which order they come."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest

from headrace.changelog.values import BeyondDate, BeyondTimestamp, Interval, ValueType
from headrace.errors import RowFailed
from headrace.pipeline.batch import BatchFacts, SegmentGroup
from headrace.pipeline.runner import SparkRunner
from headrace.pipeline.steps import derive, drop, equals, rename, where
from tests.pipeline.making import (
    ORDERS,
    TRAITS,
    batch,
    delete,
    insert,
    order,
    pipeline,
    row_tuples,
    run,
    table,
    update,
)
from tests.pipeline.planned import ready

if TYPE_CHECKING:
    from headrace.spark_session.session import Spark

pytestmark = pytest.mark.spark


@pytest.mark.meets("S1")
def test_segments_of_very_different_sizes_come_back_in_order(spark: Spark, tmp_path: Path) -> None:
    sizes, segments, commit = [10, 5000, 100, 20000, 1], [], 0
    for size in sizes:
        segments.append([insert(commit + at, order(commit + at)) for at in range(1, size + 1)])
        commit += size
    parts, facts = batch(tmp_path, ORDERS, *segments)
    what = pipeline()
    prepared = ready(spark, what)
    # As they arrive: from more than one partition, and not in order, or this proves nothing.
    arrived = (
        spark.bulk.read.schema("_commit bigint")
        .parquet(*parts[0].paths)
        .selectExpr("_commit", "spark_partition_id() as part")
        .toArrow()
    )
    commits = arrived["_commit"].to_pylist()
    assert len(set(arrived["part"].to_pylist())) >= 2
    assert commits != sorted(commits)
    rows = prepared.rows(parts, facts).rows
    assert rows["_commit"].to_pylist() == list(range(1, sum(sizes) + 1))
    assert rows["id"].to_pylist() == list(range(1, sum(sizes) + 1))


@pytest.mark.meets("S1")
def test_parts_of_two_schema_versions_come_as_one_in_position_order(
    spark: Spark, tmp_path: Path
) -> None:
    wider = table(
        ("id", "int64"), ("status", "text"), ("qty", "int32"), ("price", "decimal(12,2)"),
        ("note", "text"),
    )  # fmt: skip
    old, first = batch(tmp_path, ORDERS, [insert(1, order(1)), insert(4, order(4))])
    new, second = batch(tmp_path, wider, [insert(2, order(2, note="n")), delete(3, order(1))])
    facts = BatchFacts(first.first, first.last, first.rows + second.rows, deletes=second.deletes)
    what = pipeline()
    prepared = ready(spark, what)
    result = prepared.rows([*old, *new], facts)
    assert result.rows.schema.names[4:] == list(wider.names)
    assert row_tuples(result, "id", "note") == [
        ("insert", 1, 1, None),
        ("insert", 2, 2, "n"),
        ("delete", 3, 1, None),
        ("insert", 4, 4, None),
    ]


@pytest.mark.parametrize("as_column", [False, True], ids=["text", "column"])
def test_transforms_apply_in_order(spark: Spark, tmp_path: Path, as_column: bool) -> None:
    from pyspark.sql import functions as F

    total: Any = F.col("amount") * F.col("price") if as_column else "amount * price"
    what = pipeline(
        filters=[where("qty = 2")],
        transforms=[
            rename(qty="amount", id="number"),
            derive(total=total, price="price + 1"),
            drop("status"),
            derive(twice="total * 2", amount="amount + 1"),
        ],
    )
    runner = SparkRunner(spark)
    prepared = runner.prepare(what, TRAITS)
    output = prepared.output(ORDERS)
    assert output.names == ("number", "amount", "price", "total", "twice")
    assert output.key == ("number",)
    changes = [insert(1, order(1)), update(2, order(1), order(1, price=Decimal(3)))]
    result = run(runner, what, tmp_path, ORDERS, [*changes, delete(3, order(1))])
    assert result.rows.schema.names[4:] == list(output.names)
    assert row_tuples(result) == [
        ("insert", 1, 1, 3, Decimal("2.50"), Decimal("3.00"), Decimal("6.00")),
        ("update", 2, 1, 3, Decimal("4.00"), Decimal("6.00"), Decimal("12.00")),
        ("delete", 3, 1, None, None, None, None),
    ]


def test_a_derived_column_has_the_type_that_its_expression_gives(spark: Spark) -> None:
    what = pipeline(
        transforms=[
            derive(
                whole="qty + 1", big="id * 2", real="qty / 2D", text="upper(status)",
                exact="qty * price", yes="qty > 1", day="date '2026-01-01'",
                at="timestamp '2026-01-01 00:00:00Z'", many="array(qty)", raw="x'00'",
            )
        ]
    )  # fmt: skip
    output = SparkRunner(spark).prepare(what, TRAITS).output(ORDERS)
    found = {column.name: str(column.type) for column in output.columns[4:]}
    assert found.pop("many").startswith("arrow(")
    assert found == {
        "whole": "int32",
        "big": "int64",
        "real": "float64",
        "text": "text",
        "exact": "decimal(23,2)",
        "yes": "boolean",
        "day": "date",
        "at": "timestamptz",
        "raw": "bytes",
    }
    assert [column.field for column in output.columns[4:]] == list(range(5, 15))


ODD = [
    "_op",
    "_commit",
    "before",
    "after",
    "a.b",
    "a`b",
    "two words",
    "Id",
    "_hop",
    "0",
    "日本",
    "x'y",
]


@pytest.mark.meets("S6")
@pytest.mark.parametrize("as_column", [False, True], ids=["text", "column"])
def test_a_column_may_have_any_name(spark: Spark, tmp_path: Path, as_column: bool) -> None:
    from pyspark.sql import functions as F

    odd = table(("id", "int64"), *((name, "int64") for name in ODD), key=("id", "a.b"))
    image = {"id": 1} | {name: 10 + at for at, name in enumerate(ODD)}
    quoted = ["`" + name.replace("`", "``") + "`" for name in ODD]
    total: Any = " + ".join(quoted)
    if as_column:
        total = sum((F.col(name) for name in quoted[1:]), F.col(quoted[0]))
    what = pipeline(
        filters=[where(f"{each} is not null") for each in quoted] + [equals("_op", 10)],
        transforms=[
            derive(total=total, **{"after.x": "before"}),
            rename(**{"a.b": "c`d", "Id": "ID"}),
        ],
    )
    changes = [
        insert(1, image),
        update(2, image, image | {"a.b": 99}),
        update(3, image | {"a.b": 99}, image | {"a.b": 99, "_op": 0}),
    ]
    result = run(SparkRunner(spark), what, tmp_path, odd, changes)
    names = result.rows.schema.names[4:]
    assert names == [{"a.b": "c`d", "Id": "ID"}.get(n, n) for n in ["id", *ODD]] + [
        "total",
        "after.x",
    ]
    values = sum(range(10, 10 + len(ODD)))
    assert row_tuples(result, "id", "c`d", "total", "after.x") == [
        ("insert", 1, 1, 14, values, 12),
        ("delete", 2, 1, 14, None, None),
        ("update", 2, 1, 99, values + 85, 12),
        ("delete", 3, 1, 99, None, None),
    ]


TYPES: list[tuple[str, object, object]] = [
    ("int16", -5, 6),
    ("int32", 2**31 - 1, 0),
    ("int64", -(2**63), 2**63 - 1),
    ("float32", 0.5, math.nan),
    ("float64", math.inf, -0.1),
    ("boolean", True, False),
    ("decimal(38,10)", Decimal("1234567890123456789.0123456789"), Decimal(0)),
    ("numeric", Decimal("1.00"), Decimal("NaN")),
    ("numeric", Decimal("1e50"), Decimal("2e50")),
    ("text", "naïve 'quotes' \\ ${HOME} \n\0", ""),
    ("json", '{"a": 1}', "[]"),
    ("bytes", b"\0\xff'", b""),
    ("text_bytes", b"\xff", b"a"),
    ("uuid", UUID(int=7), UUID(int=2**128 - 1)),
    ("date", date(1, 1, 1), date(9999, 12, 31)),
    ("date", BeyondDate(2**31 - 1), BeyondDate(-(2**31))),
    ("timestamp", datetime(1500, 2, 3, 4, 5, 6, 7), datetime(2026, 1, 1)),
    ("timestamptz", datetime(1500, 2, 3, 4, 5, 6, 7, UTC), datetime(2026, 1, 1, tzinfo=UTC)),
    ("timestamptz", BeyondTimestamp(2**63 - 1, utc=True), BeyondTimestamp(-(2**63), utc=True)),
    ("time", time(23, 59, 59, 999_999), time(0)),
    ("variant", 1, "1"),
    ("variant", 9.75, b"9.75"),
    ("variant", "text", 0),
]


@pytest.mark.meets("S6")
@pytest.mark.parametrize(("kind", "value", "other"), TYPES)
def test_a_value_passes_unchanged_and_equals_finds_it(
    spark: Spark, tmp_path: Path, kind: str, value: object, other: object
) -> None:
    plain = table(("id", "int64"), ("v", kind))
    changes = [insert(at, {"id": at, "v": v}) for at, v in enumerate([value, other, None], 1)]
    what = pipeline(filters=[equals("v", value)])
    result = run(SparkRunner(spark), what, tmp_path, plain, changes)
    assert [id for *_, id in row_tuples(result, "id")] == [1]
    passed = run(SparkRunner(spark), pipeline(), tmp_path, plain, changes)
    found = ValueType.parse(kind).from_arrow(passed.rows["v"])
    same: Callable[[object, object], bool] = lambda a, b: a == b or str(a) == str(b) == "nan"  # noqa: E731
    assert (
        all(same(a, b) for a, b in zip(found, [value, other, None], strict=True))
        or kind == "numeric"
    )
    assert passed.rows.schema.field("v").type == plain.column("v").type.arrow


@pytest.mark.parametrize(
    ("value", "ids"),
    [
        (1, [1, 2]),
        (1.0, [1, 2]),
        (True, [1, 2]),
        (Decimal("9.75"), [3]),
        ("1", [4]),
        (b"1", [5]),
        (2**62 + 1, [6]),
        (None, [7]),
        (2**80, []),
    ],
)
def test_equals_compares_a_column_without_type_as_sqlite_does(
    spark: Spark, tmp_path: Path, value: object, ids: list[int]
) -> None:
    loose = table(("id", "int64"), ("v", "variant"))
    values = [1, 1.0, 9.75, "1", b"1", 2**62 + 1, None]
    changes = [insert(at, {"id": at, "v": v}) for at, v in enumerate(values, 1)]
    result = run(
        SparkRunner(spark), pipeline(filters=[equals("v", value)]), tmp_path, loose, changes
    )
    assert [id for *_, id in row_tuples(result, "id")] == ids


def test_expressions_reach_into_a_column_without_type(spark: Spark, tmp_path: Path) -> None:
    loose = table(("id", "int64"), ("v", "variant"))
    changes = [insert(at, {"id": at, "v": v}) for at, v in enumerate([1, 2.5, "three"], 1)]
    what = pipeline(
        filters=[where("coalesce(v.d, v.i) > 1 or v.t is not null")],
        transforms=[derive(n="coalesce(v.d, cast(v.i as double))", t="v.t"), drop("v")],
    )
    result = run(SparkRunner(spark), what, tmp_path, loose, changes)
    assert row_tuples(result) == [("insert", 2, 2, 2.5, None), ("insert", 3, 3, None, "three")]


def test_structs_and_long_keys_pass_as_they_are(spark: Spark, tmp_path: Path) -> None:
    kept = table(("a", "uuid"), ("b", "variant"), ("c", "interval"), key=("a", "b"))
    before = {"a": UUID(int=1), "b": "x", "c": Interval(1, 2, 3)}
    changes = [
        insert(1, before),
        update(2, before, before | {"b": 5}),
        delete(3, before | {"b": 5}),
    ]
    result = run(SparkRunner(spark), pipeline(), tmp_path, kept, changes)
    decoded = [kept.column(n).type.from_arrow(result.rows[n]) for n in kept.names]
    assert list(zip(*decoded, strict=True)) == [
        (UUID(int=1), "x", Interval(1, 2, 3)),
        (UUID(int=1), "x", None),
        (UUID(int=1), 5, Interval(1, 2, 3)),
        (UUID(int=1), 5, None),
    ]


@pytest.mark.parametrize("as_column", [False, True], ids=["text", "column"])
def test_a_baseline_gives_the_rows_that_pass_without_positions(
    spark: Spark, tmp_path: Path, as_column: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyspark.sql import functions as F

    monkeypatch.setattr("headrace.pipeline.runner.BASELINE_ROWS", 5)
    total: Any = F.col("qty") * 2 if as_column else "qty * 2"
    what = pipeline(filters=[where("qty > 1")], transforms=[derive(total=total), drop("price")])
    runner = SparkRunner(spark)
    prepared = runner.prepare(what, TRAITS)
    output = prepared.output(ORDERS)
    segments = [[insert(0, order(s * 10 + at, qty=at)) for at in range(4)] for s in range(4)]
    parts, _ = batch(tmp_path, ORDERS, *segments)
    chunks = [loaded.rows for loaded in prepared.baseline(parts[0])]
    assert len(chunks) == 4
    assert all(chunk.schema == output.arrow for chunk in chunks)
    found = sorted((row["id"], row["total"]) for chunk in chunks for row in chunk.to_pylist())
    assert found == [(s * 10 + at, at * 2) for s in range(4) for at in (2, 3)]


def test_a_large_and_a_small_batch_give_the_same_rows(spark: Spark, tmp_path: Path) -> None:
    what = pipeline(filters=[where("qty < 5")], transforms=[derive(x="qty * price")])
    prepared = ready(spark, what)
    changes = [update(at, order(at, qty=at % 9), order(at, qty=at % 7)) for at in range(1, 200)]
    parts, facts = batch(tmp_path, ORDERS, changes)
    assert spark.fit_for(facts.rows) is spark.small
    small = prepared.rows(parts, facts)
    large = BatchFacts(facts.first, facts.last, 10_000, updates=facts.updates)
    assert spark.fit_for(large.rows) is spark.bulk
    assert prepared.rows(parts, large).rows == small.rows


@pytest.mark.meets("R23f")
def test_a_value_that_its_column_could_not_hold_fails_only_pipelines_that_need_it(
    spark: Spark, tmp_path: Path
) -> None:
    changes = [insert(1, order(1)), insert(2, order(2, qty="many"), 3)]
    runner = SparkRunner(spark)
    with pytest.raises(RowFailed) as caught:
        run(runner, pipeline(on_error="stop"), tmp_path, ORDERS, changes)
    assert "qty" in caught.value.message
    found = {name: caught.value.facts[name] for name in ("condition", "commit", "ordinal")}
    assert found == {"condition": "VALUE_OUTSIDE_TYPE", "commit": 2, "ordinal": 3}
    what = pipeline(on_error="stop")
    prepared = runner.prepare(what, TRAITS)
    prepared.output(ORDERS)
    parts, _ = batch(tmp_path, ORDERS, changes)
    with pytest.raises(RowFailed):
        list(prepared.baseline(replace(parts[0], marked=1)))
    without = run(runner, pipeline(transforms=[drop("qty")]), tmp_path, ORDERS, changes)
    assert [id for *_, id in row_tuples(without, "id")] == [1, 2]


def test_a_part_without_its_key_changes_is_told_by_place(spark: Spark, tmp_path: Path) -> None:
    keyless = table(("a", "text"), ("b", "text"), key=())
    row = {"a": "x", "b": "y"}
    what = pipeline(filters=[equals("a", "x")])
    changes = [insert(1, row), update(2, row, row | {"b": "z"}), delete(3, row)]
    result = run(SparkRunner(spark), what, tmp_path, keyless, changes)
    assert row_tuples(result) == [
        ("insert", 1, "x", "y"),
        ("update", 2, "x", "z"),
        ("delete", 3, None, None),
    ]


def test_a_part_is_read_by_its_schema_alone(spark: Spark, tmp_path: Path) -> None:
    # A file without rows, and one of a table of one column.
    single = table(("id", "int64"))
    parts, facts = batch(tmp_path, single, [], [insert(1, {"id": 1})])
    runner = SparkRunner(spark)
    what = pipeline()
    prepared = runner.prepare(what, TRAITS)
    prepared.output(single)
    assert row_tuples(prepared.rows(parts, facts)) == [("insert", 1, 1)]
    empty = SegmentGroup(single, parts[0].paths[:1], (0,))
    assert prepared.rows([empty], facts).rows.num_rows == 0
