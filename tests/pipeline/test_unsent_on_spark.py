"""Expressions that read a column which an update may leave out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from headrace.errors import UnsentColumn
from headrace.pipeline.runner import SparkRunner
from headrace.pipeline.steps import derive, drop, equals, frame, function, mask, rename, where
from tests.pipeline.making import TRAITS, pipeline
from tests.pipeline.test_unsent import LONG, SENT

if TYPE_CHECKING:
    from headrace.spark_session.session import Spark

pytestmark = [pytest.mark.spark, pytest.mark.meets("R21")]


def test_an_expression_on_such_a_column_is_refused(spark: Spark) -> None:
    from pyspark.sql import functions as F

    runner = SparkRunner(spark)

    def told(**given: Any) -> str:
        # Each a pipeline of its own, which is good where every value is sent.
        runner.prepare(pipeline(**given), TRAITS).output(SENT)
        with pytest.raises(UnsentColumn) as caught:
            runner.prepare(pipeline(**given), TRAITS).output(LONG)
        return caught.value.message.removesuffix(", which an update may leave out")

    assert told(filters=[where("id > 1"), where("note like 'x%'")]) == (
        "Filter 2 reads the column note"
    )
    assert told(filters=[where(F.col("status") == "paid")]) == (
        "Filter 1 may read the columns body, note"
    )
    assert told(transforms=[rename(note="text"), derive(size="length(text) + id")]) == (
        "Transform 2, size reads the column text"
    )
    assert told(transforms=[drop("note"), derive(size=F.length("status"))]) == (
        "Transform 2, size may read the column body"
    )
    assert told(transforms=[drop("note"), frame(lambda df: df)]) == (
        "Transform 2 may read the column body"
    )


def test_a_plan_needs_what_it_reads_or_hands_on(spark: Spark) -> None:
    runner = SparkRunner(spark)
    size = function(lambda row: {"size": 1}, columns={"size": "int"})

    def needs(**given: Any) -> list[str]:
        what = pipeline(**given)
        prepared = runner.prepare(what, TRAITS)
        prepared.output(LONG)
        found = prepared.needs(LONG)
        return [column.name for column in LONG.columns if column.field in found]

    assert needs() == ["id", "status", "note", "body"]
    assert needs(filters=[equals("status", "paid")], transforms=[drop("body", "status")]) == [
        "id",
        "status",
        "note",
    ]
    dropped = drop("note", "body")
    # However far what they make is from the source's own columns.
    assert needs(
        transforms=[dropped, derive(a="upper(status)"), derive(b="a || id"), mask("b"), size]
    ) == ["id", "status"]
    assert needs(transforms=[dropped, frame(lambda df: df)]) == ["id", "status"]
    assert needs(transforms=[derive(note="'none'"), drop("body")]) == ["id", "status"]
