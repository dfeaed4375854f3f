"""Segments from before a table was altered, in the columns that it has now."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from headrace.changelog.schema import Column, TableSchema
from headrace.changelog.values import ValueType
from headrace.pipeline.batch import BatchFacts, SegmentGroup
from headrace.pipeline.runner import SparkRunner
from headrace.pipeline.steps import derive, function, where
from tests.pipeline.making import TRAITS, batch, delete, insert, pipeline, row_tuples, update

if TYPE_CHECKING:
    from headrace.spark_session.session import Spark

pytestmark = [pytest.mark.spark, pytest.mark.meets("R23b")]


def column(name: str, kind: str, field: int, missing: str | None = None) -> Column:
    return Column(name, ValueType.parse(kind), field, missing=missing)


OLD = TableSchema(
    "orders",
    (column("id", "int64", 1), column("no`te", "text", 2), column("qty", "int32", 3)),
    ("id",),
)
NEW = TableSchema(
    "orders",
    (
        column("qty", "int64", 3),
        column("id", "int64", 1),
        column("rem'ark", "text", 2),
        column("state", "text", 4, "it's new"),
        column("paid", "boolean", 5, "t"),
        column("price", "decimal(8,2)", 6, "1.50"),
        column("since", "timestamptz", 7, "2026-01-02 03:04:05+00"),
        column("empty", "date", 8),
    ),
    ("id",),
)


def lifted(parts: list[SegmentGroup]) -> list[SegmentGroup]:
    return [replace(part, newest=NEW) for part in parts]


def test_columns_are_found_by_their_ids_and_older_rows_have_what_the_source_says(
    spark: Spark, tmp_path: Path
) -> None:
    row = {"id": 1, "no`te": "n", "qty": 2}
    parts, facts = batch(
        tmp_path,
        OLD,
        [insert(1, row), update(2, row, {**row, "id": 5}), delete(3, {**row, "id": 5})],
    )
    newer, more = batch(tmp_path, NEW, [insert(4, dict.fromkeys(NEW.names) | {"id": 9})])
    what = pipeline()
    runner = SparkRunner(spark)
    prepared = runner.prepare(what, TRAITS)
    output = prepared.output(NEW)
    every = BatchFacts(
        facts.first, facts.last, 4, updates=1, deletes=1, key_changes=facts.key_changes
    )
    result = prepared.rows(lifted([*parts, *newer]), every)
    assert result.rows.schema.names[4:] == list(output.names) == list(NEW.names)
    names = ("id", "qty", "rem'ark", "state", "paid", "empty")
    assert row_tuples(result, *names) == [
        ("insert", 1, 1, 2, "n", "it's new", True, None),
        ("delete", 2, 1, None, None, None, None, None),
        ("update", 2, 5, 2, "n", "it's new", True, None),
        ("delete", 3, 5, None, None, None, None, None),
        ("insert", 4, 9, None, None, None, None, None),
    ]
    first = result.rows.slice(0, 1).to_pylist()[0]
    assert str(first["price"]) == "1.50"
    assert first["since"].isoformat() == "2026-01-02T03:04:05+00:00"
    [loaded] = prepared.baseline(lifted(parts)[0])
    assert more.rows == 1
    assert loaded.rows.schema == output.arrow


@pytest.mark.parametrize("how", ["text", "column", "function"])
def test_filters_and_transforms_see_the_columns_of_now(
    spark: Spark, tmp_path: Path, how: str
) -> None:
    from pyspark.sql import functions as F

    test: Any = {
        "text": where("state = 'it''s new' and qty > 1"),
        "column": where(F.col("qty") > 1),
        "function": function(lambda row: row["state"] == "it's new" and row["qty"] > 1),
    }[how]
    what = pipeline(filters=[test], transforms=[derive(twice="qty * 2")])
    runner = SparkRunner(spark)
    prepared = runner.prepare(what, TRAITS)
    prepared.output(NEW)
    low, high = ({"id": at, "no`te": "n", "qty": at} for at in (1, 2))
    parts, facts = batch(
        tmp_path, OLD, [insert(1, low), insert(2, high), update(3, low, {**low, "qty": 7})]
    )
    result = prepared.rows(lifted(parts), facts)
    assert row_tuples(result, "id", "twice") == [("insert", 2, 2, 4), ("insert", 3, 1, 14)]


def test_a_row_that_fails_in_an_older_segment_is_found_there(spark: Spark, tmp_path: Path) -> None:
    what = pipeline(transforms=[derive(share="100 div (qty - 1)")])
    runner = SparkRunner(spark)
    prepared = runner.prepare(what, TRAITS)
    prepared.output(NEW)
    rows = [insert(at, {"id": at, "no`te": "n", "qty": at}) for at in (1, 2, 3)]
    parts, facts = batch(tmp_path, OLD, rows)
    result = prepared.rows(lifted(parts), facts)
    assert [failure.reference for failure in result.failures] == [(1, 0)]
    assert row_tuples(result, "id", "share") == [("insert", 2, 2, 100), ("insert", 3, 3, 50)]
    [loaded] = prepared.baseline(lifted(parts)[0])
    assert [failure.reference for failure in loaded.failures] == [(0, 0)]
    assert loaded.rows.num_rows == 2
