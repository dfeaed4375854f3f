"""
A trial of a pipeline on a few real rows, before anything is started.

```
 the source ── a few rows ─▶ a segment in a temporary folder ─▶ the pipeline's own plan ─▶ before, after
```

Nothing is set up at the source, nothing is delivered, and no data directory is needed. The rows
go through the plan that an engine would run, as inserts that are identified by their positions.
"""  # noqa: E501 - a picture

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal, TypeAlias

import pyarrow as pa

from headrace.capture.registry import TableSample, sample
from headrace.capture.table_selection import matching, split_table_name
from headrace.changelog.change import Op
from headrace.changelog.position import Position
from headrace.changelog.schema import TableName, TableSchema
from headrace.changelog.segment import segment_bytes
from headrace.changelog.values_json import Image, images, row_values
from headrace.changelog.writer import as_baseline
from headrace.engine.checks import collected_errors
from headrace.errors import HeadraceError, UnknownPipeline
from headrace.pipeline.batch import BatchFacts, PreparedPipeline, Runner, SegmentGroup
from headrace.pipeline.definition import DeadLetters, Pipeline
from headrace.pipeline.result import POSITIONS, JobResult

Outcome: TypeAlias = Literal["passed", "filtered", "failed"]

_EPOCH, _COMMIT = 1, 1
"""The rows get positions of one commit of an imaginary log; their numbers are the ordinals."""


@dataclass(frozen=True, slots=True)
class PreviewRow:
    """The outcome for one row; values have the form of `headrace.changelog.values_json`."""

    row_before: Image
    row_after: Image | None
    """None if a filter left the row out, or it failed."""

    failed: str | None = None
    """The error code if the row cannot be computed; it would be a dead letter."""

    facts: Mapping[str, str] = field(default_factory=dict)
    """Facts of the failure."""

    @property
    def outcome(self) -> Outcome:
        """Whether it passed, was left out by a filter, or failed."""
        if self.failed is not None:
            return "failed"
        return "filtered" if self.row_after is None else "passed"


@dataclass(frozen=True, slots=True)
class TriedTable:
    """The rows of one table."""

    before: TableSchema
    after: TableSchema
    rows: tuple[PreviewRow, ...]

    @property
    def table(self) -> TableName:
        return self.before.table

    def count(self, outcome: Outcome) -> int:
        """Return the number of rows with this outcome."""
        return sum(row.outcome == outcome for row in self.rows)


@dataclass(frozen=True, slots=True)
class Samples:
    """The sample rows that a pipeline is tried on."""

    tables: tuple[TableSample, ...]
    left_out: Mapping[TableName, HeadraceError]
    """Tables that only match a pattern and cannot be read; a start leaves them out, too."""


def take_samples(pipeline: Pipeline, most: int, table: TableName | None = None) -> Samples:
    """
    Return a few rows of each of a pipeline's tables, or of one of them, without Spark.

    Raises the error that keeps a named table from being read, `InvalidConfiguration` with all
    errors in the steps that can be found without Spark, and `UnknownPipeline`.
    """
    matched = matching(pipeline.source, pipeline.tables, [p] if (p := pipeline.patterns) else [])
    found: list[TableSample] = []
    left_out: dict[TableName, HeadraceError] = {}
    with collected_errors() as errors:
        for name in _wanted((*pipeline.tables, *matched), table):
            try:
                taken = sample(pipeline.source, name, most)
                wrong = pipeline.check(taken.schema)
            except HeadraceError as error:
                if name not in matched:
                    raise
                left_out[name] = error
                continue
            if wrong and name in matched:
                left_out[name] = wrong[0]
            elif wrong:
                errors.found += wrong
            else:
                found.append(taken)
    return Samples(tuple(found), left_out)


def try_rows(
    pipeline: Pipeline, samples: Iterable[TableSample], runner: Runner
) -> Iterator[TriedTable]:
    """
    Yield the outcome for the rows of each table, in their order.

    Every failing row is reported, whatever the pipeline's `on_error` is. Raises what `Runner`
    raises for invalid expressions, functions and frames.
    """
    for each in samples:
        twin = _patient(pipeline, each.rows.num_rows)
        rows: tuple[PreviewRow, ...] = ()
        with closing(runner.prepare(twin, pipeline.source.traits)) as prepared:
            output = prepared.output(each.schema)
            if each.rows.num_rows:
                changes = _as_inserts(each)
                with TemporaryDirectory(prefix="headrace-try-") as folder:
                    result = _ran(prepared, each.schema, changes, Path(folder))
                rows = tuple(_outcomes(each.schema, changes, output, result))
        yield TriedTable(each.schema, output, rows)


def _wanted(tables: Sequence[TableName], asked: TableName | None) -> Sequence[TableName]:
    if asked is None and tables:
        return tables
    for name in tables:
        if asked is not None and (
            name == asked or split_table_name(name) == split_table_name(asked)
        ):
            return [name]
    if asked is None:
        raise UnknownPipeline(
            "No table matches the pipeline's patterns",
            remedy="Correct the patterns. headrace validate checks them against the database.",
        )
    raise UnknownPipeline(
        "The pipeline does not have this table",
        remedy=f"Its tables: {', '.join(tables) or 'none'}.",
        table=asked,
    )


def _patient(pipeline: Pipeline, most: int) -> Pipeline:
    """Return the same pipeline with limits so high that failing rows do not stop it."""
    return Pipeline(
        pipeline.source,
        target=pipeline.target,
        tables=[*pipeline.tables, *pipeline.patterns],
        name=pipeline.name,
        filters=pipeline.filters,
        transforms=pipeline.transforms,
        on_error=DeadLetters(max_per_batch=max(1, most), max_keys=max(1, most)),
    )


def _as_inserts(taken: TableSample) -> pa.Table:
    """Return the rows in the form of a segment: like those of a baseline, but with positions."""
    # A copy would have the time at which it begins.
    rows = as_baseline(taken.schema, taken.rows, taken.exact, int(time.time() * 1_000_000))
    count = rows.num_rows
    for name, values in (("_commit", [_COMMIT] * count), ("_ordinal", range(count))):
        index = rows.schema.names.index(name)
        kind = rows.schema.field(index)
        rows = rows.set_column(index, kind, pa.array(values, kind.type))
    return rows


def _ran(
    prepared: PreparedPipeline, schema: TableSchema, changes: pa.Table, folder: Path
) -> JobResult:
    path = folder / "rows.parquet"
    path.write_bytes(segment_bytes(changes))
    count = changes.num_rows
    marked = count - changes.column("_exact").null_count
    part = SegmentGroup(schema, (str(path),), (count,), marked)
    first, last = (Position(_EPOCH, _COMMIT, at) for at in (0, count - 1))
    return prepared.rows([part], BatchFacts(first, last, count, marked=marked))


def _outcomes(
    schema: TableSchema, changes: pa.Table, output: TableSchema, result: JobResult
) -> Iterator[PreviewRow]:
    # By index: a column of the table may have the name of one of ours.
    ops, ordinals = (result.rows.column(at).to_pylist() for at in (0, 2))
    width = len(POSITIONS)
    only = result.rows.select(list(range(width, width + len(output.columns))))
    made = row_values(only, output.columns)
    # If inserts of the source replace rows, a row that does not pass becomes a delete.
    after = {at: row for at, op, row in zip(ordinals, ops, made, strict=True) if op != Op.DELETE}
    failures = {failure.reference[1]: failure for failure in result.failures}
    for at, before in enumerate(images(changes, schema, "after")):
        assert before is not None
        failure = failures.get(at)
        if failure is None:
            yield PreviewRow(before, after.get(at))
        else:
            yield PreviewRow(before, None, failure.code, failure.facts)
