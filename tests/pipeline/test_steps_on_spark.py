"""Prefix, regex, mask and timestamp on both images, and rows that an expression fails on."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace.changelog.change import Change, Op
from headrace.changelog.schema import CAPTURED
from headrace.changelog.segment import segment_bytes
from headrace.changelog.writer import as_baseline
from headrace.errors import BadExpression, BadTransform
from headrace.pipeline.plan.plan import PipelinePlan
from headrace.pipeline.plan.projection import ChangeImages
from headrace.pipeline.steps import (
    derive,
    drop,
    frame,
    mask,
    prefix,
    regex,
    rename,
    timestamp,
    where,
)
from tests.pipeline.making import (
    ORDERS,
    TRAITS,
    batch,
    delete,
    insert,
    order,
    pipeline,
    table,
    truncate,
    update,
)
from tests.pipeline.planned import Planned, baseline

if TYPE_CHECKING:
    from headrace.spark_session.session import Spark

pytestmark = pytest.mark.spark

PEOPLE = table(("id", "int64"), ("name", "text"))
LOOSE = table(("id", "int64"), ("v", "variant"))


def person(id: int, name: str | None) -> dict[str, Any]:
    return {"id": id, "name": name}


def micros(at: datetime) -> int:
    return (at - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def column_too(as_column: bool) -> list[Any]:
    """A filter that leaves nothing out, but makes a plan go in stages."""
    from pyspark.sql import functions as F

    return [where(F.col("id") > -1)] if as_column else []


@pytest.mark.meets("R22")
@pytest.mark.parametrize("as_column", [False, True], ids=["text", "column"])
@pytest.mark.parametrize("filter_", [prefix("name", "An"), regex("name", "^An+a?")])
def test_a_row_enters_and_leaves_a_filter_of_texts(
    spark: Spark, tmp_path: Path, filter_: Any, as_column: bool
) -> None:
    planned = Planned(spark, PEOPLE, filters=[*column_too(as_column), filter_])
    found = planned.run(
        tmp_path,
        [
            insert(1, person(1, "Anna")),
            insert(2, person(2, "anna")),
            insert(3, person(3, None)),
            update(4, person(2, "anna"), person(2, "Ann")),
            update(5, person(1, "Anna"), person(1, "Bob")),
            update(6, person(2, "Ann"), person(9, "Ann")),
            update(7, person(9, "Ann"), person(9, "Anna")),
            delete(8, person(9, "Anna")),
            delete(9, person(3, None)),
            update(10, person(5, "Ann"), person(6, "Joann")),
        ],
    )
    assert found == [
        ("insert", 1, 1, "Anna"),
        ("insert", 4, 2, "Ann"),
        ("delete", 5, 1, None),
        ("delete", 6, 2, None),
        ("update", 6, 9, "Ann"),
        ("update", 7, 9, "Anna"),
        ("delete", 8, 9, None),
        ("delete", 10, 5, None),
    ]
    assert planned.plan._scan.as_text is not as_column
    rows = [person(1, "Ann"), person(2, None), person(3, "x"), person(4, "Anna")]
    assert planned.baseline(tmp_path, rows) == [(1, "Ann"), (4, "Anna")]


def test_a_pattern_is_found_anywhere_and_nothing_in_it_ends_the_literal(
    spark: Spark, tmp_path: Path
) -> None:
    names = ["it's", "a\\b", "x`y", "100%", "日本語", ""]
    for at, pattern in enumerate(["'s$", r"\\", "`", "%$", "本", "^$"]):
        planned = Planned(spark, PEOPLE, filters=[regex("name", pattern)])
        changes = [insert(n, person(n, name)) for n, name in enumerate(names)]
        assert planned.run(tmp_path, changes) == [("insert", at, at, names[at])]
        planned = Planned(spark, PEOPLE, filters=[prefix("name", names[at])])
        wanted = [name for name in names if name.startswith(names[at])]
        assert [row[3] for row in planned.run(tmp_path, changes)] == wanted


def test_a_bad_pattern_is_refused_before_any_row(spark: Spark) -> None:
    with pytest.raises(BadExpression) as caught:
        PipelinePlan(spark, pipeline(filters=[regex("name", "a(b")]), PEOPLE, TRAITS)
    assert caught.value.message.startswith("Filter 1")


def test_of_a_column_without_a_fixed_type_the_text_is_compared(
    spark: Spark, tmp_path: Path
) -> None:
    values = ["10a", 10, 1.0, b"1", None, "2"]
    changes = [insert(n, {"id": n, "v": v}) for n, v in enumerate(values)]
    for filter_ in (prefix("v", "1"), regex("v", "^1")):
        planned = Planned(spark, LOOSE, filters=[filter_], transforms=[derive(t="v.t"), drop("v")])
        assert planned.run(tmp_path, changes) == [("insert", 0, 0, "10a")]


@pytest.mark.parametrize("as_column", [False, True], ids=["text", "column"])
def test_a_mask_hides_all_but_the_last_characters(
    spark: Spark, tmp_path: Path, as_column: bool
) -> None:
    planned = Planned(
        spark,
        PEOPLE,
        filters=column_too(as_column),
        transforms=[rename(name="card"), mask("card", keep=4), derive(again="id + 1")],
    )
    assert str(planned.plan.output.column("card").type) == "text"
    found = planned.run(
        tmp_path,
        [
            insert(1, person(1, "1234567890")),
            insert(2, person(2, None)),
            insert(3, person(3, "1234")),
            update(4, person(3, "1234"), person(3, "日本語の文字")),
            delete(5, person(3, "x")),
        ],
    )
    assert found == [
        ("insert", 1, 1, "******7890", 2),
        ("insert", 2, 2, None, 3),
        ("insert", 3, 3, "1234", 4),
        ("update", 4, 3, "**語の文字", 4),
        ("delete", 5, 3, None, None),
    ]
    assert planned.plan._scan.as_text is not as_column


def test_a_mask_hides_everything_by_default_and_any_column_of_text(
    spark: Spark, tmp_path: Path
) -> None:
    planned = Planned(
        spark,
        ORDERS,
        transforms=[derive(t="cast(price as string)"), mask("t", "status", with_="'"), drop("qty")],
    )
    assert planned.run(tmp_path, [insert(1, order(1))]) == [
        ("insert", 1, 1, "''''", Decimal("1.50"), "''''")
    ]


def test_only_text_is_masked_derived_or_not(spark: Spark) -> None:
    with pytest.raises(BadTransform) as caught:
        PipelinePlan(spark, pipeline(transforms=[derive(n="qty + 1"), mask("n")]), ORDERS, TRAITS)
    assert caught.value.facts == {"column": "n"}


@pytest.mark.meets("S3", "R23g")
@pytest.mark.parametrize("as_column", [False, True], ids=["text", "column"])
def test_a_timestamp_is_the_time_of_the_commit(
    spark: Spark, tmp_path: Path, as_column: bool
) -> None:
    at = datetime(2026, 1, 2, 3, 4, 5, 678901, UTC)
    planned = Planned(
        spark, PEOPLE, filters=column_too(as_column), transforms=[timestamp("at"), drop("name")]
    )
    assert str(planned.plan.output.column("at").type) == "timestamptz"
    changes = [
        Change(Op.INSERT, 1, 0, micros(at), None, person(1, "a")),
        Change(Op.DELETE, 2, 0, micros(at), person(1, "a"), None),
    ]
    found = planned.run(tmp_path, changes)
    assert found == [("insert", 1, 1, at), ("delete", 2, 1, None)]
    assert planned.run(tmp_path, changes) == found
    assert planned.baseline(tmp_path, [person(1, "a")]) == [(1, None)]
    assert planned.plan._scan.as_text is not as_column


@pytest.mark.meets("TRF-03", "R23g")
@pytest.mark.parametrize("kind", ["text", "column", "frame"])
def test_a_timestamp_is_the_time_of_the_capture_or_of_the_copy(
    spark: Spark, tmp_path: Path, kind: str
) -> None:
    seen, copied = datetime(2026, 1, 2, 3, tzinfo=UTC), datetime(2026, 1, 1, tzinfo=UTC)
    times: list[Any] = [timestamp("at"), timestamp("seen", of="capture"), drop("name")]
    framed: list[Any] = [frame(lambda df: df.select("*"))] if kind == "frame" else []
    planned = Planned(
        spark, PEOPLE, filters=column_too(kind == "column"), transforms=[*framed, *times]
    )
    change = Change(Op.INSERT, 1, 0, micros(copied), None, person(1, "a"))
    assert planned.run(tmp_path, [change]) == [("insert", 1, 1, copied, copied)]
    for path in tmp_path.iterdir():
        rows = pq.read_table(path)
        path.write_bytes(segment_bytes(rows.append_column(CAPTURED, pa.array([seen]))))
        found = planned.collected([str(path)], ChangeImages.MOVES)
        assert found.column(5).to_pylist() == [copied]
        assert found.column(6).to_pylist() == [seen]
    rows = as_baseline(PEOPLE, pa.table([[2], ["b"]], schema=PEOPLE.arrow), None, micros(copied))
    path = tmp_path / "000000000009-1-1-b1-1.parquet"
    path.write_bytes(segment_bytes(rows))
    loaded = planned.collected([str(path)], ChangeImages.BASELINE)
    assert [column.to_pylist() for column in loaded.columns[1:]] == [[2], [copied], [copied]]


def test_a_timestamp_can_be_used_by_what_follows(spark: Spark, tmp_path: Path) -> None:
    at = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    planned = Planned(spark, PEOPLE, transforms=[timestamp("at"), derive(year="year(at)")])
    changes = [Change(Op.INSERT, 1, 0, micros(at), None, person(1, "a")), truncate(0)]
    assert planned.run(tmp_path, changes) == [("insert", 1, 1, "a", at, 2026)]


@pytest.mark.meets("S2")
@pytest.mark.parametrize("kind", ["text", "column", "condition", "image before"])
def test_rows_that_an_expression_fails_on_are_found_among_ten_thousand(
    spark: Spark, tmp_path: Path, kind: str
) -> None:
    from pyspark.sql import functions as F

    kinds: dict[str, dict[str, Any]] = {
        "text": {"transforms": [derive(x="10 div qty"), derive(y="x + 1")]},
        "column": {"transforms": [derive(x=F.lit(10) / F.col("qty")), mask("status")]},
        "condition": {"filters": [prefix("status", "p"), where("10 div qty > 1")]},
        "image before": {"filters": [where("10 div qty > 1")]},
    }
    planned = Planned(spark, ORDERS, **kinds[kind])
    changes = []
    for at in range(10_000):
        bad = {"qty": 0} if at in (17, 9_876) else {}
        if kind == "image before":
            changes.append(update(at, order(at, **bad), order(at)))
        else:
            changes.append(insert(at, order(at, **bad), 3))
    parts, _ = batch(tmp_path, ORDERS, changes)
    found = planned.plan.probe(spark.bulk, parts[0].paths)
    assert found is not None
    ordinal = 0 if kind == "image before" else 3
    assert sorted(row[:2] for row in found.collect()) == [(17, ordinal), (9_876, ordinal)]


@pytest.mark.meets("S2")
def test_a_row_outside_the_filter_is_not_found_to_fail(spark: Spark, tmp_path: Path) -> None:
    planned = Planned(
        spark, ORDERS, filters=[where("qty <> 0")], transforms=[derive(x="10 div qty")]
    )
    parts, _ = batch(tmp_path, ORDERS, [insert(1, order(1, qty=0)), insert(2, order(2, qty=1))])
    found = planned.plan.probe(spark.small, parts[0].paths)
    assert found is not None
    assert found.collect() == []


@pytest.mark.meets("S2")
def test_failing_rows_of_a_baseline_are_found_by_file_and_number(
    spark: Spark, tmp_path: Path
) -> None:
    planned = Planned(spark, ORDERS, transforms=[derive(x="10 div qty")])
    path = baseline(tmp_path, ORDERS, [order(1), order(2), order(3, qty=0)])
    found = planned.plan.probe(spark.small, [path], baseline=True)
    assert found is not None
    assert [row["_place"] for row in found.collect()] == [f"{Path(path).name}/2"]


def test_a_plain_plan_is_still_one_projection(spark: Spark) -> None:
    planned = Planned(
        spark,
        PEOPLE,
        filters=[prefix("name", "a"), regex("name", "b")],
        transforms=[mask("name"), timestamp("at")],
    )
    for shape in ChangeImages:
        stages, around = planned.plan._prepared(shape)
        assert len(stages) == 1
        assert around is None
