"""A user's function of a DataFrame: what it gets, and what it must not do."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F

from headrace.capture.source import SourceTraits
from headrace.changelog.change import Change
from headrace.errors import BadFrame, BadTransform, UnknownColumn
from headrace.pipeline.plan.plan import PipelinePlan
from headrace.pipeline.plan.projection import ChangeImages
from headrace.pipeline.runner import SparkRunner
from headrace.pipeline.steps import (
    derive,
    drop,
    equals,
    frame,
    function,
    mask,
    prefix,
    rename,
    timestamp,
    where,
)
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
    run,
    truncate,
    update,
)
from tests.pipeline.planned import Planned

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from headrace.spark_session.session import Spark

pytestmark = pytest.mark.spark


def names(spark: Spark) -> DataFrame:
    """A user's own frame, of his own session."""
    rows = [(1, "one"), (2, "two"), (4, "four"), (9, "nine")]
    return spark.session.createDataFrame(rows, "id bigint, name string")


CHANGES = [
    insert(1, order(1)),
    insert(2, order(3)),
    insert(3, order(2, status="open")),
    update(4, order(2, status="open"), order(2)),
    update(5, order(1), order(1, status="open")),
    update(6, order(2), order(9)),
    update(7, order(9), order(8, status="open")),
    delete(8, order(4)),
    delete(9, order(5, status="open")),
    update(10, order(3), order(3, qty=7)),
]


@pytest.mark.meets("S17", "R22")
@pytest.mark.parametrize("with_function", [False, True], ids=["plain", "function"])
def test_a_left_join_adds_columns_to_every_change(
    spark: Spark, tmp_path: Path, with_function: bool
) -> None:
    dim = names(spark)
    filters: list[Any] = [equals("status", "paid")]
    if with_function:
        filters = [function(lambda row: row["status"] == "paid")]
    planned = Planned(
        spark,
        ORDERS,
        filters=filters,
        transforms=[
            rename(qty="amount"),
            derive(twice="amount * 2"),
            frame(lambda df: df.join(dim, "id", "left")),
            derive(label="concat(name, '!')"),
            mask("name", keep=1),
            drop("price", "status"),
            timestamp("at"),
            rename(id="number"),
        ],
    )
    assert planned.plan.framed
    assert planned.plan.output.names == ("number", "amount", "twice", "name", "label", "at")
    assert planned.plan.output.key == ("number",)
    found = planned.run(tmp_path, CHANGES, [truncate(0, 3)])
    assert planned.truncate == (0, 3)
    assert [row[:-1] for row in found] == [
        ("insert", 1, 1, 2, 4, "**e", "one!"),
        ("insert", 2, 3, 2, 4, None, None),
        ("insert", 4, 2, 2, 4, "**o", "two!"),
        ("delete", 5, 1, None, None, None, None),
        ("delete", 6, 2, None, None, None, None),
        ("update", 6, 9, 2, 4, "***e", "nine!"),
        ("delete", 7, 9, None, None, None, None),
        ("delete", 8, 4, None, None, None, None),
        ("update", 10, 3, 7, 14, None, None),
    ]
    rows = [order(1), order(2, status="open"), order(3)]
    assert [row[:4] for row in planned.baseline(tmp_path, rows)] == [
        (1, 2, 4, "**e"),
        (3, 2, 4, None),
    ]
    assert planned.run(tmp_path, [insert(1, order(7, status="open"))]) == []
    after = planned.run(tmp_path, [insert(1, order(1))], shape=ChangeImages.AFTER)
    assert [row[:3] for row in after] == [("insert", 1, 1)]


@pytest.mark.meets("S17")
def test_the_function_sees_the_op_the_position_and_a_deletes_columns(
    spark: Spark, tmp_path: Path
) -> None:
    seen: list[list[str]] = []

    def look(df: DataFrame) -> DataFrame:
        seen.append(df.columns)
        return df.selectExpr(
            "*", "concat_ws(' ', _op, _commit, _ordinal, status, unix_micros(_time)) as told"
        )

    def noted(planned: Planned, shape: ChangeImages) -> dict[int, str]:
        parts, _ = batch(tmp_path, ORDERS, CHANGES)
        rows = planned.collected(parts[0].paths, shape)
        return dict(zip(rows["1"].to_pylist(), rows.column(8).to_pylist(), strict=True))

    planned = Planned(spark, ORDERS, filters=[where("status = 'paid'")], transforms=[frame(look)])
    ours = ["_op", "_commit", "_ordinal", "_time", "_change"]
    wanted = {
        1: "insert 1 0 paid 1",
        2: "insert 2 0 paid 2",
        4: "insert 4 0 paid 4",
        5: "delete 5 0 paid 5",
        6: "update 6 0 paid 6",
        7: "delete 7 0 paid 7",
        8: "delete 8 0 paid 8",
        10: "update 10 0 paid 10",
    }
    assert noted(planned, ChangeImages.MOVES) == wanted
    assert noted(planned, ChangeImages.BOTH) == wanted
    assert all(columns == ["id", "status", "qty", "price", *ours] for columns in seen)


def test_where_inserts_replace_a_frame_has_the_deletes_of_rows_outside(
    spark: Spark, tmp_path: Path
) -> None:
    dim = names(spark)
    planned = Planned(
        spark,
        ORDERS,
        REPLACING,
        filters=[equals("status", "paid")],
        transforms=[frame(lambda df: df.join(dim, "id", "left"))],
    )
    found = planned.run(tmp_path, [insert(1, order(1, status="open")), insert(2, order(2))])
    assert [row[:3] for row in found] == [("delete", 1, 1), ("insert", 2, 2)]


LOSSY: dict[str, tuple[Callable[[DataFrame, DataFrame], DataFrame], str]] = {
    "inner join": (lambda df, dim: df.join(dim, "id"), "lost 1 rows"),
    "filter": (lambda df, dim: df.where("id = 1"), "lost 2 rows"),
    "nothing": (lambda df, dim: df.where("false"), "lost 3 rows"),
    "explode": (
        lambda df, dim: df.selectExpr("*", "explode(array(1, 2)) as n"),
        "returned 3 rows more than once",
    ),
    "union": (lambda df, dim: df.union(df), "returned 3 rows more than once"),
    "both": (
        lambda df, dim: df.where("id <> 1").union(df.where("id = 2")),
        "lost 1 rows and returned 1 rows more",
    ),
    "key": (lambda df, dim: df.selectExpr("id + 1 as id", "* except (id)"), "changed the key"),
}


@pytest.mark.meets("S17")
@pytest.mark.parametrize("what", LOSSY)
def test_a_function_that_loses_or_makes_rows_is_refused(
    spark: Spark, tmp_path: Path, what: str
) -> None:
    make, words = LOSSY[what]
    dim = names(spark)
    planned = Planned(spark, ORDERS, transforms=[frame(lambda df: make(df, dim))])
    with pytest.raises(BadFrame) as caught:
        planned.run(tmp_path, [insert(at, order(at)) for at in (1, 2, 3)])
    assert words in caught.value.message
    with pytest.raises(BadFrame) as caught:
        planned.baseline(tmp_path, [order(at) for at in (1, 2, 3)])
    assert words in caught.value.message


@pytest.mark.meets("S17", "R23", "R23g")
@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda df: df.drop("_op"), "lost the column _op"),
        (lambda df: df.drop("_change"), "lost the column _change"),
        (lambda df: df.drop("id"), "lost the key column id"),
        (lambda df: df.selectExpr("cast(id as string) id", "* except (id)"), "another type"),
        (lambda df: df.selectExpr("*", "id as qty"), "several columns with the name qty"),
        (lambda df: df.selectExpr("*", "nope"), "uses an unknown column nope"),
        (lambda df: df.selectExpr("*", "rand() as r"), "a random number"),
        (lambda df: df.selectExpr("*", "current_timestamp() as r"), "the clock"),
        (lambda df: df.selectExpr("*", "cast('now' as timestamp) as r"), "current time"),
        (
            lambda df: df.selectExpr("*", "monotonically_increasing_id() as r"),
            "position of a row in the job",
        ),
        (
            lambda df: df.selectExpr("*", "spark_partition_id() as r"),
            "position of a row in the job",
        ),
        (lambda df: None, "must return a DataFrame"),
        (lambda df: df + 1, "raised"),
    ],
)
def test_what_a_function_may_not_do_is_refused_at_once(spark: Spark, make: Any, words: str) -> None:
    with pytest.raises(BadFrame) as caught:
        PipelinePlan(spark, pipeline(transforms=[frame(make)]), ORDERS, TRAITS)
    assert words in caught.value.message


def test_a_subquery_and_a_temporary_name_are_fine_inside_a_frame(
    spark: Spark, tmp_path: Path
) -> None:
    def ask(df: DataFrame) -> DataFrame:
        return df.sparkSession.sql(
            "select *, (select max(x) from values (1), (2) as t(x)) as most from {df}", df=df
        )

    planned = Planned(spark, ORDERS, transforms=[frame(ask), drop("status", "qty", "price")])
    assert planned.run(tmp_path, [insert(1, order(1))]) == [("insert", 1, 1, 2)]


def test_columns_behind_a_frame_are_checked_once_they_are_known(spark: Spark) -> None:
    def add(df: DataFrame) -> DataFrame:
        return df.selectExpr("*", "1 as one")

    PipelinePlan(spark, pipeline(transforms=[frame(add), drop("one")]), ORDERS, TRAITS)
    with pytest.raises(UnknownColumn):
        PipelinePlan(spark, pipeline(transforms=[frame(add), drop("two")]), ORDERS, TRAITS)
    with pytest.raises(BadTransform):
        PipelinePlan(spark, pipeline(transforms=[frame(add), mask("one")]), ORDERS, TRAITS)


@pytest.mark.meets("S2")
def test_rows_that_functions_fail_on_go_round_a_frame(spark: Spark, tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.compute as pc

    def behind(given: pa.RecordBatch) -> pa.RecordBatch:
        if 2 in given["id"].to_pylist():
            raise ValueError("two")
        return pa.record_batch({"next": pc.add(given["id"], 1)})

    planned = Planned(
        spark,
        ORDERS,
        transforms=[
            function(lambda row: {"half": 1 / row["qty"]}, columns={"half": "double"}),
            frame(lambda df: df.selectExpr("*", "half * 2 as whole")),
            function(behind, columns={"next": "bigint"}, batch=True),
            drop("status", "price", "qty"),
        ],
    )
    changes = [insert(1, order(1)), insert(2, order(2)), insert(3, order(3, qty=0)), truncate(0)]
    found = planned.run(tmp_path, changes)
    assert found == [("insert", 1, 1, 0.5, 1.0, 2)]
    failed = sorted((each["at"][0], each["error"]) for each in planned.failures)
    assert failed == [(2, "ValueError"), (3, "ZeroDivisionError")]
    assert planned.plan.probe(spark.small, []) is None


def test_a_frame_is_given_away_without_receipts(spark: Spark, tmp_path: Path) -> None:
    planned = Planned(spark, ORDERS, transforms=[frame(lambda df: df.where("id <> 2"))])
    parts, _ = batch(tmp_path, ORDERS, [insert(1, order(1)), insert(2, order(2)), truncate(0)])
    whole = planned.plan.frame(spark.small, parts[0].paths, ChangeImages.AFTER)
    given = planned.plan.without_receipts(whole, ChangeImages.AFTER)
    assert sorted(row["1"] for row in given.collect()) == [0, 1]
    with pytest.raises(BadFrame):
        planned.plan.checked(
            planned.plan.row_references(whole, ChangeImages.AFTER).toArrow(), ChangeImages.AFTER
        )


@pytest.mark.meets("S17")
def test_a_runner_refuses_a_lossy_frame_collected_or_given(spark: Spark, tmp_path: Path) -> None:
    dim = names(spark)
    runner = SparkRunner(spark)
    what = pipeline(transforms=[frame(lambda df: df.join(dim, "id"))])
    good = [insert(1, order(1)), update(2, order(1), order(2))]
    assert [row[:3] for row in row_tuples(run(runner, what, tmp_path, ORDERS, good))] == [
        ("insert", 1, 1),
        ("delete", 2, 1),
        ("update", 2, 2),
    ]
    prepared = runner.prepare(what, TRAITS)
    parts, facts = batch(tmp_path, ORDERS, [*good, insert(3, order(3))])
    taken: list[int] = []
    with pytest.raises(BadFrame):
        prepared.rows(parts, facts)
    with pytest.raises(BadFrame):
        prepared.give(
            parts, facts, lambda failures: frozenset(), lambda df: taken.append(df.count())
        )
    assert taken == []
    parts, facts = batch(tmp_path, ORDERS, good)
    prepared.give(parts, facts, lambda failures: frozenset(), lambda df: taken.append(df.count()))
    assert taken == [3]


def some_changes(seed: int) -> list[Change]:
    """A history that a table could have: each change begins where the last one ended."""
    chance = random.Random(seed)
    there: dict[int, dict[str, Any]] = {}
    changes: list[Change] = []
    for commit in range(1, 150):
        after = order(
            chance.randrange(12), status=chance.choice(["paid", "open"]), qty=chance.randrange(9)
        )
        if there and chance.random() < 0.7:
            before = there.pop(chance.choice(list(there)))
            if chance.random() < 0.3:
                changes.append(delete(commit, before))
                continue
            if after["id"] in there:
                after["id"] = before["id"]
            changes.append(update(commit, before if chance.random() < 0.9 else None, after))
        elif after["id"] not in there:
            changes.append(insert(commit, after))
        else:
            continue
        there[after["id"]] = after
    return changes


@pytest.mark.meets("R22", "S10", "S17")
@pytest.mark.parametrize("traits", [TRAITS, REPLACING], ids=["plain", "replacing"])
def test_sql_a_function_and_a_frame_agree_on_any_history(
    spark: Spark, tmp_path: Path, traits: SourceTraits
) -> None:
    def paid(row: dict[str, Any]) -> dict[str, Any] | None:
        return {"x": row["qty"] * 2} if row["status"] == "paid" else None

    doubled = [derive(x="cast(qty * 2 as int)")]
    ways: dict[str, dict[str, Any]] = {
        "sql": {"filters": [equals("status", "paid")], "transforms": doubled},
        "column": {"filters": [where(F.col("status") == "paid")], "transforms": doubled},
        "filter": {
            "filters": [function(lambda row: row["status"] == "paid")],
            "transforms": doubled,
        },
        "function": {"transforms": [function(paid, columns={"x": "int"})]},
        "frame": {
            "filters": [equals("status", "paid")],
            "transforms": [frame(lambda df: df.selectExpr("*", "cast(qty * 2 as int) as x"))],
        },
        "all": {
            "filters": [prefix("status", "p")],
            "transforms": [
                function(paid, columns={"x": "int"}, reads=["status", "qty"]),
                frame(lambda df: df.repartition(3)),
            ],
        },
    }
    changes = some_changes(7)
    assert len(changes) > 50
    found = {}
    for name, given in ways.items():
        planned = Planned(spark, ORDERS, traits, **given)
        found[name] = planned.run(tmp_path, changes)
        assert planned.failures == []
    assert len(found["sql"]) > 30
    for name in ways:
        assert found[name] == found["sql"], name
