"""
The runner of a pipeline's batches on Spark.

A batch is one Spark job over the segments that the index names for it: filtered and transformed on
the executors, collected as Arrow, put in order on the driver; or passed to a function of the user's
as a DataFrame. Rows that cannot be computed are found and left out, and the job runs again without
them (S2).

A baseline can be copied by Spark's tasks. Each task reads a part of the table on a connection of
its own and writes segments itself; what comes back to the driver is a receipt for each (S4). Rows
pass neither through the JVM nor through the driver. Executors need Headrace installed for this, on
one machine as on a cluster.

A target that takes frames is given a batch as one DataFrame: the row's columns under their names,
then `_op`, `_position`, `_commit`, `_ordinal`, `_time`. They are identified by place: a column of
the row may have one of these names, too, unless the target refuses that. Rows are in no order;
`_position` and then `_op` give it: the delete of an old key stands at the position of its row, and
"delete" sorts before "insert" and "update".

An `Explanation` shows users what Spark did for a pipeline's last batch.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import functions as F

from headrace.capture.baselines import Order
from headrace.capture.source import SourceTraits
from headrace.changelog.change import Op
from headrace.changelog.entries import File
from headrace.changelog.schema import TableSchema
from headrace.errors import FunctionFailed, HeadraceError, JobFailed, RowFailed, SparkGone
from headrace.pipeline.baseline_copy import copy_parts
from headrace.pipeline.batch import BatchFacts, Behind, LoadedRows, Runner, SegmentGroup
from headrace.pipeline.definition import Pipeline
from headrace.pipeline.failed_rows import Isolation, Scratch, Workspace
from headrace.pipeline.job import Job, JobInput
from headrace.pipeline.plan.plan import PipelinePlan, Plans, name_of
from headrace.pipeline.plan.projection import ChangeImages
from headrace.pipeline.plan.types import spark_type
from headrace.pipeline.result import (
    POSITIONS,
    Failure,
    JobResult,
    RowReference,
    aligned,
    arranged,
    shaped,
)
from headrace.pipeline.sql import quoted
from headrace.spark_session.errors import running
from headrace.spark_session.session import Spark, SparkInfo

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = [
    "BatchFacts",
    "Explanation",
    "Runner",
    "SegmentGroup",
    "SparkRunner",
]


# --- what Spark did for the last batch ------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Explanation:
    """The last batch of a pipeline: what went in and came out, what it took, and its plan."""

    pipeline: str
    plan: str
    """Spark's physical plan, formatted; names and literals of the pipeline, no rows."""

    jobs: int
    """Spark jobs of this pipeline, among the last 200 that Spark remembers."""

    tasks: int
    last_job_ms: float
    """How long the last batch took, from its first job to its rows."""

    rows_in: int
    rows_out: int | None
    """None where a function took the frame: what it did with it is not known."""

    bytes_in: int

    def __str__(self) -> str:
        out = "" if self.rows_out is None else f" → {self.rows_out:,} out"
        return "\n".join(
            [
                f"Pipeline {self.pipeline}",
                f"  last batch   {self.rows_in:,} rows in{out}, {_sized(self.bytes_in)} read,"
                f" {self.last_job_ms:,.0f} ms",
                f"  remembered   {self.jobs:,} jobs, {self.tasks:,} tasks",
                "",
                self.plan.strip() or "No batch has been computed yet.",
            ]
        )


def _sized(count: int) -> str:
    size = float(count)
    for unit in ("bytes", "KB", "MB"):
        if size < 1000:
            return f"{size:,.0f} {unit}" if unit == "bytes" else f"{size:,.1f} {unit}"
        size /= 1000
    return f"{size:,.1f} GB"


# --- a batch as one DataFrame ---------------------------------------------------------------------


def as_one(
    parts: Sequence[tuple[JobInput, DataFrame]], output: TableSchema, epoch: int
) -> DataFrame:
    """Return the frames of a batch's pieces as one, in the shape of `output`."""
    made = [_changes(piece, frame, output, epoch) for piece, frame in parts]
    return reduce(lambda frame, other: frame.union(other), made)


def as_inserts(parts: Sequence[tuple[JobInput, DataFrame]], output: TableSchema) -> DataFrame:
    """Return the frames of a baseline's piece as one: inserts without positions."""
    made = []
    for piece, frame in parts:
        start = 1
        if piece.shape is not ChangeImages.BASELINE:
            # Copied with numbers for positions, which say nothing outside.
            frame = frame.where(F.col(quoted(frame.columns[0])) == int(Op.INSERT))
            start = len(POSITIONS)
        columns = dict(_row(piece, frame, output, start))
        made.append(
            frame.select(
                *(value.alias(name) for name, value in columns.items()),
                F.lit("insert").alias("_op"),
                F.lit(None).cast("string").alias("_position"),
                F.lit(None).cast("bigint").alias("_commit"),
                F.lit(None).cast("int").alias("_ordinal"),
                F.lit(None).cast("timestamp").alias("_time"),
            )
        )
    return reduce(lambda frame, other: frame.union(other), made)


def _changes(piece: JobInput, frame: DataFrame, output: TableSchema, epoch: int) -> DataFrame:
    op, commit, ordinal, time = (F.col(quoted(name)) for name in frame.columns[:4])
    gone = op == int(Op.DELETE)
    word = F.when(op == int(Op.INSERT), "insert").when(op == int(Op.UPDATE), "update")
    word = word.when(gone, "delete").otherwise("truncate")
    where = {
        "_position": _position(epoch, commit, ordinal),
        "_commit": commit,
        "_ordinal": ordinal,
        "_time": time,
    }
    columns = dict(_row(piece, frame, output, len(POSITIONS)))
    row = {
        # A delete holds its key alone: a row that left the filter still has all its values.
        name: value if name in output.key else F.when(~gone, value)
        for name, value in columns.items()
    }
    told = _struct(row, {"_op": word, **where})
    if piece.shape is not ChangeImages.MOVES:
        return frame.select(F.inline(F.array(told)))
    at = len(POSITIONS) + len(piece.plan.output.columns)
    moved, *old = (F.col(quoted(name)) for name in frame.columns[at : at + 1 + len(output.key)])
    key = dict(zip(output.key, old, strict=True))
    left = {
        column.name: key.get(column.name, F.lit(None)).cast(spark_type(column.type.arrow))
        for column in output.columns
    }
    before = _struct(left, {"_op": F.lit("delete"), **where})
    # One pass over the files, however many keys changed.
    return frame.select(F.inline(F.when(moved, F.array(before, told)).otherwise(F.array(told))))


def _row(
    piece: JobInput, frame: DataFrame, output: TableSchema, start: int
) -> Iterator[tuple[str, Column]]:
    """Yield the columns of `output`; null those that an older version does not have."""
    places = {name: at for at, name in enumerate(piece.plan.output.names, start)}
    for column in output.columns:
        at = places.get(column.name)
        value = F.lit(None) if at is None else F.col(quoted(frame.columns[at]))
        yield column.name, value.cast(spark_type(column.type.arrow))


def _struct(*columns: dict[str, Column]) -> Column:
    return F.struct(*(value.alias(name) for each in columns for name, value in each.items()))


def _position(epoch: int, commit: Column, ordinal: Column) -> Column:
    """Return the text of a position, as `str(Position(…))` gives it."""
    return F.concat(
        F.lit(f"{epoch:04x}-"),
        F.lpad(F.lower(F.hex(commit)), 16, "0"),
        F.lit("-"),
        F.lpad(F.lower(F.hex(ordinal.cast("bigint"))), 8, "0"),
    )


# --- the runner -----------------------------------------------------------------------------------

BASELINE_ROWS = 1_000_000
"""About this many rows of a baseline go through one job: it bounds what the driver holds."""


@dataclass(frozen=True, slots=True)
class _Last:
    """A pipeline's last batch."""

    spark: Spark
    frame: DataFrame | None
    ms: float
    rows_in: int
    rows_out: int | None
    bytes_in: int


@dataclass(slots=True)
class _Work:
    """A batch, or a piece of a baseline, that is being computed."""

    job: Job
    isolation: Isolation
    outputs: Sequence[TableSchema]
    """What the rows of each part look like; the last is what the result looks like."""

    facts: dict[str, Any]
    began: float
    rows_out: int | None = None

    @property
    def ms(self) -> float:
        return (time.perf_counter() - self.began) * 1000

    def collect(self, without: frozenset[RowReference]) -> list[pa.Table]:
        tables, refused = self.job.collect(without)
        self.isolation.admit(refused)
        return tables

    def examined(self, most: int) -> Callable[[frozenset[RowReference]], None]:
        """Return an attempt that only looks at what users' functions make."""
        return lambda without: self.isolation.admit(self.job.examine(without, most + 1))


class SparkRunner:
    """
    The `Runner` of real engines, which `GivesFrames`, too.

    `scratch` is a folder of its own for copies of segments, emptied here; without one they
    go to a temporary folder. Where Spark died, `revive` takes what `renew` gives.
    """

    def __init__(
        self,
        spark: Spark,
        *,
        scratch: Workspace | None = None,
        renew: Callable[[], Spark] | None = None,
    ) -> None:
        self._plans = Plans(spark, renew)
        self._scratch = Scratch(scratch)
        self._last: dict[int, _Last] = {}

    def prepare(self, pipeline: Pipeline, schema: TableSchema, traits: SourceTraits) -> TableSchema:
        with self._plans.alive(pipeline) as spark:
            self._plans.know(pipeline, traits)
            return self._plans.of(spark, pipeline, schema).output

    def needs(self, pipeline: Pipeline, schema: TableSchema) -> frozenset[int]:
        with self._plans.alive(pipeline) as spark:
            return self._plans.of(spark, pipeline, schema).needs

    def rows(
        self, pipeline: Pipeline, parts: Sequence[SegmentGroup], facts: BatchFacts
    ) -> JobResult:
        with self._batch(pipeline, parts, facts) as work:
            tables = work.isolation.settle(work.collect, facts.without)
            took, output = work.ms, work.outputs[-1]
            pairs = zip(tables, work.outputs, strict=True)
            ordered, truncate = arranged(
                [aligned(*pair, output) for pair in pairs], output, every_change=facts.every_change
            )
            work.rows_out = ordered.num_rows
        return JobResult(ordered, truncate, took, facts.rows, work.isolation.failures)

    def baseline(self, pipeline: Pipeline, part: SegmentGroup) -> Iterator[LoadedRows]:
        before: Isolation | None = None
        found: tuple[Failure, ...] = ()
        for chunk in _chunks(part):
            with self._piece(pipeline, part, chunk, before) as work:
                before = work.isolation
                tables = work.isolation.settle(work.collect)
                arrow = work.outputs[-1].arrow
                rows = pa.concat_tables([shaped(table, arrow) for table in tables])
                work.rows_out = rows.num_rows
            new = tuple(each for each in work.isolation.failures if each not in found)
            found += new
            yield LoadedRows(rows, new)

    def give(
        self,
        pipeline: Pipeline,
        parts: Sequence[SegmentGroup],
        facts: BatchFacts,
        behind: Behind,
        take: Callable[[DataFrame], None],
    ) -> tuple[Failure, ...]:
        with self._batch(pipeline, parts, facts) as work:

            def attempt(without: frozenset[RowReference]) -> None:
                with self._scratch.copies() as copies, running(**work.facts):
                    frames = list(work.job.frames(without, copies))
                    take(as_one(frames, work.outputs[-1], facts.first.epoch))

            settle = work.isolation.settle
            if work.job.has_own_code:
                settle(work.examined(pipeline.most_failures), facts.without, behind=behind)
            settle(attempt, facts.without, behind=behind, otherwise=_of_function)
        return work.isolation.failures

    def give_baseline(
        self, pipeline: Pipeline, part: SegmentGroup, take: Callable[[DataFrame, int], None]
    ) -> tuple[Failure, ...]:
        before: Isolation | None = None
        for chunk in _chunks(part):
            with self._piece(pipeline, part, chunk, before) as work:
                before = work.isolation

                def attempt(
                    without: frozenset[RowReference], work: _Work = work, number: int = chunk.number
                ) -> None:
                    with self._scratch.copies() as copies, running(**work.facts):
                        frames = list(work.job.frames(without, copies))
                        take(as_inserts(frames, work.outputs[-1]), number)

                if work.job.has_own_code:
                    work.isolation.settle(work.examined(pipeline.most_failures))
                work.isolation.settle(attempt, otherwise=_of_function)
        return () if before is None else before.failures

    def copy(self, order: Order, numbers: range) -> list[File]:
        """Copy parts of a baseline by tasks of their own."""
        spark = self._plans.spark
        if not spark.alive:
            raise SparkGone("Spark's JVM is dead", table=order.table)
        with running(source=order.source, table=order.table):
            spark.describe_job(f"headrace copy of {order.table} {numbers.start + 1}")
            return copy_parts(spark, order, numbers)

    def cancel(self, pipeline: Pipeline) -> None:
        self._plans.cancel(pipeline)

    def forget(self, pipeline: Pipeline) -> None:
        self._plans.forget(pipeline)
        self._last.pop(id(pipeline), None)

    def explain(self, pipeline: Pipeline) -> Explanation:
        """Return what Spark did for this pipeline's last batch."""
        last = self._last.get(id(pipeline))
        with self._plans.alive(pipeline) as spark, running(pipeline=name_of(pipeline)):
            jobs, tasks, _ = spark.counted(self._plans.tag(pipeline))
            # The frame of a Spark that died cannot be asked any more.
            there = last is not None and last.spark is spark
            plan = spark.explain(last.frame) if last and there and last.frame else ""
        return Explanation(
            pipeline=name_of(pipeline),
            plan=plan,
            jobs=jobs,
            tasks=tasks,
            last_job_ms=last.ms if last else 0.0,
            rows_in=last.rows_in if last else 0,
            rows_out=last.rows_out if last else 0,
            bytes_in=last.bytes_in if last else 0,
        )

    def info(self) -> SparkInfo:
        """Return what runs, counted by Spark itself."""
        return self._plans.spark.info()

    @property
    def spark(self) -> Spark:
        """The Spark in use, dead or alive; another one where it was started again."""
        return self._plans.spark

    @property
    def alive(self) -> bool:
        """Whether Spark runs."""
        return self._plans.spark.alive

    def revive(self) -> bool:
        """Start Spark again where it died and is ours; return whether one runs now."""
        return self._plans.revive()

    def stop(self) -> None:
        """End the Spark that was given, if it is ours, and remove what was left in scratch."""
        self._plans.spark.stop()

    # --- a batch, and the pieces of a baseline ------------------------------------------------

    @contextlib.contextmanager
    def _batch(
        self, pipeline: Pipeline, parts: Sequence[SegmentGroup], facts: BatchFacts
    ) -> Iterator[_Work]:
        if not parts:
            raise JobFailed("A batch without segments")
        told = {"pipeline": name_of(pipeline), "first": facts.first, "last": facts.last}
        with (
            self._running(pipeline, f"{facts.first} to {facts.last}") as spark,
            self._scratch.copies() as copies,
        ):
            pieces = []
            for part in parts:
                plan = self._plans.of(spark, pipeline, part.now, part.schema)
                pieces.append(JobInput(part.schema, plan, tuple(part.paths), _shape(plan, facts)))
            job = Job(spark, self._scratch, copies, pieces, facts.rows, told)
            isolation = Isolation(job, pipeline.most_failures, facts=told)
            if facts.marked or any(part.marked for part in parts):
                marked = job.outside_type()
                isolation.admit(each for each in marked if each.place not in facts.without)
            outputs = [piece.plan.output for piece in pieces]
            work = _Work(job, isolation, outputs, told, time.perf_counter())
            yield work
            self._remember(pipeline, spark, work, facts.rows, sum(map(_size, parts)))

    @contextlib.contextmanager
    def _piece(
        self, pipeline: Pipeline, part: SegmentGroup, chunk: _Chunk, before: Isolation | None
    ) -> Iterator[_Work]:
        """Work on a baseline's piece; its failures count together with those of `before`."""
        told = {"pipeline": name_of(pipeline), "piece": chunk.number}
        with (
            self._running(pipeline, f"baseline {chunk.number}") as spark,
            self._scratch.copies() as copies,
        ):
            plan = self._plans.of(spark, pipeline, part.now, part.schema)
            piece = JobInput(part.schema, plan, chunk.paths, ChangeImages.BASELINE)
            count = chunk.row_count
            job = Job(spark, self._scratch, copies, [piece], count, told, first=chunk.first)
            isolation = before or Isolation(
                job, pipeline.most_failures, named=("segment", "row"), facts=told
            )
            isolation.go_on(job)
            if part.marked:
                isolation.admit(job.outside_type())
            work = _Work(job, isolation, [plan.output], told, time.perf_counter())
            yield work
            self._remember(pipeline, spark, work, count, sum(chunk.sizes))

    @contextlib.contextmanager
    def _running(self, pipeline: Pipeline, text: str) -> Iterator[Spark]:
        """Name and tag the jobs that follow, so that they can be told apart and cancelled."""
        with self._plans.alive(pipeline) as spark, running(pipeline=name_of(pipeline)):
            spark.describe_job(f"headrace {name_of(pipeline)} {text}")
            with spark.tagged(self._plans.tag(pipeline)):
                yield spark

    def _remember(
        self, pipeline: Pipeline, spark: Spark, work: _Work, rows: int, size: int
    ) -> None:
        last = _Last(spark, work.job.frame, work.ms, rows, work.rows_out, size)
        self._last[id(pipeline)] = last


@dataclass(frozen=True, slots=True)
class _Chunk:
    """Segments of a baseline for one job."""

    number: int
    """From 1."""

    first: int
    """The number of its first segment, from 0."""

    paths: tuple[str, ...]
    row_count: int
    sizes: tuple[int, ...]


def _chunks(part: SegmentGroup) -> Iterator[_Chunk]:
    """Yield the segments in groups of about a million rows; where there are none, one group."""
    number, start, total = 1, 0, 0
    for at, count in enumerate(part.row_counts):
        if at > start and total + count > BASELINE_ROWS:
            yield _Chunk(number, start, part.paths[start:at], total, part.sizes[start:at])
            number, start, total = number + 1, at, 0
        total += count
    if start < len(part.paths) or not part.paths:
        yield _Chunk(number, start, part.paths[start:], total, part.sizes[start:])


def _shape(plan: PipelinePlan, facts: BatchFacts) -> ChangeImages:
    """Return the least that these changes need."""
    if facts.key_changes:
        return ChangeImages.MOVES
    if facts.deletes or (facts.updates and plan.filtered):
        return ChangeImages.BOTH
    return ChangeImages.AFTER


def _of_function(error: RowFailed) -> HeadraceError:
    """Return the error of a function whose own expressions fail on a row that is good."""
    return FunctionFailed(
        "The function's own expressions fail on a row of its batch",
        condition=error.facts.get("condition"),
        pipeline=error.facts.get("pipeline"),
    )


def _size(part: SegmentGroup) -> int:
    return sum(part.sizes)
