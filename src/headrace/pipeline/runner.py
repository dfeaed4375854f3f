"""
Runs a pipeline's batches on Spark.

A batch is one Spark job over the segments that the index names for it: filtered and
transformed on the executors, collected as Arrow, put in order on the driver.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from headrace.capture.source import SourceTraits
from headrace.changelog.schema import TableSchema
from headrace.errors import JobFailed, RowFailed
from headrace.pipeline.batch import BatchFacts, Part, Runner
from headrace.pipeline.definition import Pipeline
from headrace.pipeline.failures import running
from headrace.pipeline.plan import Plan
from headrace.pipeline.result import POSITIONS, Result, arranged, result_schema, shaped
from headrace.pipeline.scan import Shape
from headrace.pipeline.session import Spark

__all__ = ["BatchFacts", "Part", "Runner", "SparkRunner"]

BASELINE_ROWS = 1_000_000
"""About this many rows of a baseline go through one job: it bounds what the driver holds."""


class SparkRunner:
    """The `Runner` of real engines."""

    def __init__(self, spark: Spark) -> None:
        self._spark = spark
        self._traits: dict[int, tuple[Pipeline, SourceTraits]] = {}
        self._plans: dict[tuple[int, TableSchema], Plan] = {}

    def prepare(self, pipeline: Pipeline, schema: TableSchema, traits: SourceTraits) -> TableSchema:
        # The pipeline is kept, so that its id cannot pass to another one.
        self._traits[id(pipeline)] = (pipeline, traits)
        return self._plan(pipeline, schema).output

    def rows(self, pipeline: Pipeline, parts: Sequence[Part], facts: BatchFacts) -> Result:
        if not parts:
            raise JobFailed("A batch without segments")
        plans = [self._plan(pipeline, part.schema) for part in parts]
        for plan, part in zip(plans, parts, strict=True):
            if facts.marked or part.marked:
                _refuse_marked(plan, part)
        output = plans[-1].output
        session = self._spark.fit_for(facts.rows)
        began = time.perf_counter()
        found = []
        with running(pipeline=_name(pipeline), first=facts.first, last=facts.last):
            self._spark.describe_job(f"headrace {_name(pipeline)} {facts.first} to {facts.last}")
            for plan, part in zip(plans, parts, strict=True):
                rows = self._spark.collect(plan.frame(session, part.paths, _shape(plan, facts)))
                found.append(_aligned(rows, plan.output, output))
        took = (time.perf_counter() - began) * 1000
        ordered, truncate = arranged(found, output)
        return Result(ordered, truncate, took, facts.rows)

    def baseline(self, pipeline: Pipeline, part: Part) -> Iterator[pa.Table]:
        plan = self._plan(pipeline, part.schema)
        if part.marked:
            _refuse_marked(plan, part)
        for number, (paths, row_count) in enumerate(_chunks(part), 1):
            session = self._spark.fit_for(row_count)
            with running(pipeline=_name(pipeline), chunk=number):
                self._spark.describe_job(f"headrace {_name(pipeline)} baseline {number}")
                rows = self._spark.collect(plan.frame(session, paths, Shape.BASELINE))
            # The first column only says that the row passed.
            yield shaped(rows.select(list(range(1, rows.num_columns))), plan.output.arrow)

    def _plan(self, pipeline: Pipeline, schema: TableSchema) -> Plan:
        key = (id(pipeline), schema)
        if key not in self._plans:
            _, traits = self._traits[id(pipeline)]
            self._plans[key] = Plan(self._spark, pipeline, schema, traits)
        return self._plans[key]


def _shape(plan: Plan, facts: BatchFacts) -> Shape:
    """Return the least that these changes need."""
    if facts.key_changes:
        return Shape.MOVES
    if facts.deletes or (facts.updates and plan.filtered):
        return Shape.BOTH
    return Shape.AFTER


def _chunks(part: Part) -> Iterator[tuple[list[str], int]]:
    """Yield the segments in groups of about a million rows."""
    paths: list[str] = []
    total = 0
    for path, count in zip(part.paths, part.row_counts, strict=True):
        if paths and total + count > BASELINE_ROWS:
            yield paths, total
            paths, total = [], 0
        paths.append(path)
        total += count
    if paths:
        yield paths, total


def _aligned(rows: pa.Table, have: TableSchema, want: TableSchema) -> pa.Table:
    """Return rows of an older schema's result in the shape of the newest."""
    if have is want or have.columns == want.columns:
        return rows
    places = {name: at for at, name in enumerate(have.names, len(POSITIONS))}
    columns = [rows.column(at) for at in range(len(POSITIONS))]
    for column in want.columns:
        at = places.get(column.name)
        columns.append(
            pa.nulls(rows.num_rows, column.type.arrow) if at is None else rows.column(at)
        )
    extra = rows.columns[len(POSITIONS) + len(have.columns) :]
    schema = [
        *result_schema(want),
        *(pa.field(f"_{at}", each.type) for at, each in enumerate(extra)),
    ]
    return pa.table([*columns, *extra], names=[field.name for field in schema])


def _refuse_marked(plan: Plan, part: Part) -> None:
    """
    Raise `RowFailed` where a value that the result depends on stands only as exact text.

    In the typed column it is null, and passing that on would be a silent change (invariant 6).
    """
    names = {column.field: column.name for column in part.schema.columns}
    for path in part.paths:
        with pq.ParquetFile(path) as file:
            rows = file.read(columns=["_commit", "_ordinal", "_exact"])
        for row in rows.filter(rows["_exact"].is_valid()).to_pylist():
            fields = {field for field, _ in row["_exact"]} & plan.fields
            if fields:
                raise RowFailed(
                    f"A value does not fit the type of its column {names[min(fields)]}",
                    remedy="Declare the column with a wider type at the source, or as text"
                    " in the source's columns, or leave it out of the pipeline.",
                    condition="VALUE_OUTSIDE_TYPE",
                    commit=row["_commit"],
                    ordinal=row["_ordinal"],
                )


def _name(pipeline: Pipeline) -> str:
    return pipeline.name or pipeline.table
