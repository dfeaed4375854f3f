"""Plans run without a runner: what a frame of theirs holds, row by row."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.compute as pc

from headrace.capture.source import SourceTraits
from headrace.changelog.change import Change, Op
from headrace.changelog.schema import TableSchema
from headrace.changelog.segment import segment_bytes
from headrace.changelog.writer import as_baseline
from headrace.pipeline.definition import Pipeline
from headrace.pipeline.plan.plan import PipelinePlan
from headrace.pipeline.plan.projection import ChangeImages
from headrace.pipeline.result import JobResult, arranged
from headrace.pipeline.runner import SmallBatches, SparkPipeline, SparkRunner
from tests.pipeline.making import ORDERS, TRAITS, batch, pipeline, row_tuples

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.spark_session.session import Spark


def ready(spark: Spark, what: Pipeline, *, small_batches: SmallBatches = "direct") -> SparkPipeline:
    """Return a pipeline of orders that is prepared on Spark, its output known."""
    prepared = SparkRunner(spark, small_batches=small_batches).prepare(what, TRAITS)
    prepared.output(ORDERS)
    return prepared


class Planned:
    """A plan, and what its batches give."""

    def __init__(
        self, spark: Spark, schema: TableSchema, traits: SourceTraits = TRAITS, **given: Any
    ) -> None:
        self.spark = spark
        self.schema = schema
        self.plan = PipelinePlan(spark, pipeline(**given), schema, traits)
        self.failures: list[dict[str, Any]] = []

    def collected(
        self, paths: Sequence[str], shape: ChangeImages, *, bulk: bool = False
    ) -> pa.Table:
        """The rows of a frame without those that failed, which are noted."""
        session = self.spark.bulk if bulk else self.spark.small
        rows = self.plan.checked(self.spark.collect(self.plan.frame(session, paths, shape)), shape)
        self.failures = []
        if self.plan.reports_failures:
            last = rows.num_columns - 1
            failed = rows.column(last).is_valid()
            for row in rows.filter(failed).to_pylist():
                place = () if shape is ChangeImages.BASELINE else (row["1"], row["2"])
                self.failures.append({"at": place, **json.loads(row["_failed"])})
            rows = rows.filter(pc.invert(failed)).remove_column(last)
        return rows

    def run(
        self, folder: Path, *segments: Sequence[Change], shape: ChangeImages = ChangeImages.MOVES
    ) -> list[tuple[Any, ...]]:
        """Op, commit and columns of the rows that a batch gives, in order."""
        parts, facts = batch(folder, self.schema, *segments)
        rows = self.collected(parts[0].paths, shape, bulk=facts.rows > 5_000)
        ordered, truncate = arranged([rows], self.plan.output)
        self.truncate = truncate
        return row_tuples(JobResult(ordered, truncate, 0.0, facts.rows))

    def baseline(self, folder: Path, rows: Sequence[dict[str, Any]]) -> list[tuple[Any, ...]]:
        """The rows that a baseline gives, in the order of their key."""
        path = baseline(folder, self.schema, rows)
        found = self.collected([path], ChangeImages.BASELINE)
        assert found.column(0).to_pylist() == [int(Op.INSERT)] * found.num_rows
        columns = [column.to_pylist() for column in found.columns[1:]]
        assert len(columns) == len(self.plan.output.columns)
        return sorted(zip(*columns, strict=True), key=lambda row: row[0])


def baseline(folder: Path, schema: TableSchema, rows: Sequence[dict[str, Any]]) -> str:
    """Write a baseline's segment."""
    import pyarrow as pa

    arrays = [
        column.type.to_arrow([row[column.name] for row in rows])[0] for column in schema.columns
    ]
    made = as_baseline(schema, pa.Table.from_arrays(arrays, schema=schema.arrow))
    path = folder / f"{len(list(folder.iterdir())):012x}-b1-1-1.parquet"
    path.write_bytes(segment_bytes(made))
    return str(path)
