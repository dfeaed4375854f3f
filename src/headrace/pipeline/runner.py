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

An `Explanation` shows users what Spark did for a pipeline's last batch.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headrace.capture.baselines import Order
from headrace.capture.source import SourceTraits
from headrace.changelog.entries import File
from headrace.changelog.schema import TableSchema
from headrace.errors import (
    BadFrame,
    FunctionFailed,
    HeadraceError,
    JobFailed,
    RowFailed,
    SparkGone,
)
from headrace.pipeline.baseline_copy import copy_parts
from headrace.pipeline.batch import (
    BatchFacts,
    Behind,
    LoadedRows,
    PreparedPipeline,
    Runner,
    SegmentGroup,
)
from headrace.pipeline.definition import Pipeline
from headrace.pipeline.failed_rows import Isolation, Scratch, Workspace
from headrace.pipeline.job import Job, JobInput, as_inserts, as_one
from headrace.pipeline.plan.plan import PipelinePlan
from headrace.pipeline.plan.projection import ChangeImages
from headrace.pipeline.result import (
    Failure,
    JobResult,
    RowReference,
    aligned,
    arranged,
    shaped,
)
from headrace.spark_session.errors import running
from headrace.spark_session.session import Spark, SparkInfo

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = [
    "BatchFacts",
    "Explanation",
    "Runner",
    "SegmentGroup",
    "SparkPipeline",
    "SparkRunner",
]


# --- the runner -----------------------------------------------------------------------------------

BASELINE_ROWS = 1_000_000
"""About this many rows of a baseline go through one job: it bounds what the driver holds."""


class SparkRunner:
    """
    The `Runner` of real engines, for any thread.

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
        self.scratch = Scratch(scratch)
        self._spark = spark
        self._renew = renew
        self._lock = threading.Lock()
        self._tags: set[str] = set()

    def prepare(
        self, pipeline: Pipeline, traits: SourceTraits, name: str | None = None
    ) -> SparkPipeline:
        name = name or pipeline.name or (*pipeline.tables, *pipeline.patterns)[0]
        # Spark allows no comma in a tag.
        tag = stem = f"headrace-{name}".replace(",", "_")
        number = 1
        with self._lock:
            while tag in self._tags:
                number += 1
                tag = f"{stem}-{number}"
            self._tags.add(tag)
        return SparkPipeline(self, pipeline, traits, name, tag)

    def release(self, tag: str) -> None:
        """Let another pipeline have a tag."""
        with self._lock:
            self._tags.discard(tag)

    def copy(self, order: Order, numbers: range) -> list[File]:
        """Copy parts of a baseline by tasks of their own."""
        spark = self._spark
        if not spark.alive:
            raise SparkGone("Spark's JVM is dead", table=order.table)
        with running(source=order.source, table=order.table):
            spark.describe_job(f"headrace copy of {order.table} {numbers.start + 1}")
            return copy_parts(spark, order, numbers)

    def explain(self, prepared: PreparedPipeline) -> Explanation:
        """Return what Spark did for a pipeline's last batch."""
        assert isinstance(prepared, SparkPipeline)
        return prepared.explain()

    def info(self) -> SparkInfo:
        """Return what runs, counted by Spark itself."""
        return self._spark.info()

    @property
    def spark(self) -> Spark:
        """The Spark in use, dead or alive; another one where it was started again."""
        return self._spark

    @property
    def alive(self) -> bool:
        """Whether Spark runs."""
        return self._spark.alive

    @contextlib.contextmanager
    def living(self, pipeline: str) -> Iterator[Spark]:
        """Work with a Spark that runs; whatever goes wrong as it dies is `SparkGone`."""
        spark = self._spark
        if not spark.alive:
            # Not revived here: that takes seconds, in which nobody would be told.
            raise SparkGone("Spark's JVM is dead", pipeline=pipeline)
        try:
            yield spark
        except SparkGone:
            raise
        except Exception as error:
            if spark.alive:
                raise
            raise SparkGone(
                "Spark's JVM died", error=type(error).__name__, pipeline=pipeline
            ) from None

    def revive(self) -> bool:
        """Start Spark again where it died and is ours; return whether one runs now."""
        with self._lock:
            if not self._spark.alive and self._renew is not None:
                self._spark = self._renew()
            return self._spark.alive

    def stop(self) -> None:
        """End the Spark that was given, if it is ours, and remove what was left in scratch."""
        self._spark.stop()


class SparkPipeline:
    """
    The `PreparedPipeline` of a `SparkRunner`, which `GivesFrames`, too.

    Its plans, one a version of a table's schema, lie in the JVM they were made in. Where that
    died, every batch fails with `SparkGone` until the runner is revived: then they are made
    again when they are next needed. A `Column` cannot be, because it was the user who made it.
    """

    def __init__(
        self, runner: SparkRunner, pipeline: Pipeline, traits: SourceTraits, name: str, tag: str
    ) -> None:
        self.name = name
        """What it is called in errors and job descriptions."""
        self._runner = runner
        self._scratch = runner.scratch
        self._pipeline = pipeline
        self._traits = traits
        self._tag = tag
        """What its jobs are marked with, and those of no other pipeline."""
        self._first: Spark | None = None
        """The Spark that it was first planned on, where its columns live."""
        self._spark: Spark | None = None
        self._plans: dict[tuple[TableSchema, TableSchema], PipelinePlan] = {}
        """Plans on that Spark: by the schema they are for, and the one segments have."""
        self._last: _Last | None = None

    def rows(self, parts: Sequence[SegmentGroup], facts: BatchFacts) -> JobResult:
        with self._batch(parts, facts) as work:
            tables = work.collect(facts.without)
            took, output = work.ms, work.outputs[-1]
            pairs = zip(tables, work.outputs, strict=True)
            ordered, truncate = arranged(
                [aligned(*pair, output) for pair in pairs], output, every_change=facts.every_change
            )
            work.rows_out = ordered.num_rows
        return JobResult(ordered, truncate, took, facts.rows, work.failures)

    def output(self, schema: TableSchema) -> TableSchema:
        with self._runner.living(self.name) as spark:
            return self._plan(spark, schema).output

    def needs(self, schema: TableSchema) -> frozenset[int]:
        with self._runner.living(self.name) as spark:
            return self._plan(spark, schema).needs

    def baseline(self, part: SegmentGroup) -> Iterator[LoadedRows]:
        before: Isolation | None = None
        found: tuple[Failure, ...] = ()
        for chunk in _chunks(part):
            with self._piece(part, chunk, before) as work:
                tables = work.collect()
                before = work.isolation
                arrow = work.outputs[-1].arrow
                rows = pa.concat_tables([shaped(table, arrow) for table in tables])
                work.rows_out = rows.num_rows
            new = tuple(each for each in work.failures if each not in found)
            found += new
            yield LoadedRows(rows, new)

    def give(
        self,
        parts: Sequence[SegmentGroup],
        facts: BatchFacts,
        behind: Behind,
        take: Callable[[DataFrame], None],
    ) -> tuple[Failure, ...]:
        with self._batch(parts, facts) as work:

            def attempt(without: frozenset[RowReference]) -> None:
                with self._scratch.copies() as copies, running(**work.facts):
                    frames = list(work.job.frames(without, copies))
                    take(as_one(frames, work.outputs[-1], facts.first.epoch))

            work.examine(facts.without, behind)
            settle = work.isolate().settle
            settle(attempt, facts.without, behind=behind, otherwise=_of_function)
        return work.failures

    def give_baseline(
        self, part: SegmentGroup, take: Callable[[DataFrame, int], None]
    ) -> tuple[Failure, ...]:
        before: Isolation | None = None
        for chunk in _chunks(part):
            with self._piece(part, chunk, before) as work:

                def attempt(
                    without: frozenset[RowReference], work: _Work = work, number: int = chunk.number
                ) -> None:
                    with self._scratch.copies() as copies, running(**work.facts):
                        frames = list(work.job.frames(without, copies))
                        take(as_inserts(frames, work.outputs[-1]), number)

                work.examine()
                before = work.isolate()
                before.settle(attempt, otherwise=_of_function)
        return () if before is None else before.failures

    def cancel(self) -> None:
        spark = self._runner.spark
        if spark.alive:
            spark.cancel(self._tag)

    def close(self) -> None:
        self._plans, self._last = {}, None
        self._runner.release(self._tag)

    def explain(self) -> Explanation:
        """Return what Spark did for the last batch."""
        last = self._last
        with self._runner.living(self.name) as spark, running(pipeline=self.name):
            jobs, tasks, _ = spark.counted(self._tag)
            # The frame of a Spark that died cannot be asked any more.
            there = last is not None and last.spark is spark
            plan = spark.explain(last.frame) if last and there and last.frame else ""
        return Explanation(
            pipeline=self.name,
            plan=plan,
            jobs=jobs,
            tasks=tasks,
            last_job_ms=last.ms if last else 0.0,
            rows_in=last.rows_in if last else 0,
            rows_out=last.rows_out if last else 0,
            bytes_in=last.bytes_in if last else 0,
        )

    # --- a batch, and the pieces of a baseline ------------------------------------------------

    @contextlib.contextmanager
    def _batch(self, parts: Sequence[SegmentGroup], facts: BatchFacts) -> Iterator[_Work]:
        if not parts:
            raise JobFailed("A batch without segments")
        told = {"pipeline": self.name, "first": facts.first, "last": facts.last}
        with self._running(f"{facts.first} to {facts.last}") as spark:
            pieces = []
            for part in parts:
                plan = self._plan(spark, part.now, part.schema)
                pieces.append(JobInput(part.schema, plan, tuple(part.paths), _shape(plan, facts)))
            job = Job(spark, self._scratch, pieces, facts.rows, told)
            work = _Work(job, [piece.plan.output for piece in pieces], self._pipeline, told)
            if facts.marked or any(part.marked for part in parts):
                marked = job.outside_type()
                work.isolate().admit(each for each in marked if each.place not in facts.without)
            yield work
            self._remember(spark, work, facts.rows, sum(map(_size, parts)))

    @contextlib.contextmanager
    def _piece(
        self, part: SegmentGroup, chunk: _Chunk, before: Isolation | None
    ) -> Iterator[_Work]:
        """Work on a baseline's piece; its failures count together with those of `before`."""
        told = {"pipeline": self.name, "piece": chunk.number}
        with (
            self._running(f"baseline {chunk.number}") as spark,
            self._scratch.copies() as copies,
        ):
            plan = self._plan(spark, part.now, part.schema)
            piece = JobInput(part.schema, plan, chunk.paths, ChangeImages.BASELINE)
            count = chunk.row_count
            job = Job(spark, self._scratch, [piece], count, told, first=chunk.first, copies=copies)
            if before is not None:
                before.go_on(job)
            work = _Work(job, [plan.output], self._pipeline, told, ("segment", "row"), before)
            if part.marked:
                work.isolate().admit(job.outside_type())
            yield work
            self._remember(spark, work, count, sum(chunk.sizes))

    @contextlib.contextmanager
    def _running(self, text: str) -> Iterator[Spark]:
        """Name and tag the jobs that follow, so that they can be told apart and cancelled."""
        with self._runner.living(self.name) as spark, running(pipeline=self.name):
            spark.describe_job(f"headrace {self.name} {text}")
            with spark.tagged(self._tag):
                yield spark

    def _plan(
        self, spark: Spark, schema: TableSchema, written: TableSchema | None = None
    ) -> PipelinePlan:
        """
        Return the plan over such a table, making it where it is new.

        It reads segments that were `written` with that schema, where it is another one.
        """
        if spark is not self._spark:
            # What was planned lay in a JVM that died.
            self._spark, self._plans = spark, {}
        key = (schema, written or schema)
        if key not in self._plans:
            first = self._first = self._first or spark
            if first is not spark and _holds_columns(self._pipeline):
                raise _died_with_it("a column", self.name)
            try:
                self._plans[key] = PipelinePlan(
                    spark, self._pipeline, schema, self._traits, written
                )
            except BadFrame:
                if first is spark:
                    raise
                raise _died_with_it("what a function of frames uses", self.name) from None
        return self._plans[key]

    def _remember(self, spark: Spark, work: _Work, rows: int, size: int) -> None:
        self._last = _Last(spark, work.job.frame, work.ms, rows, work.rows_out, size)


@dataclass(slots=True)
class _Work:
    """A batch, or a piece of a baseline, that is being computed."""

    job: Job
    outputs: Sequence[TableSchema]
    """What the rows of each part look like; the last is what the result looks like."""

    pipeline: Pipeline
    facts: dict[str, Any]
    named: Sequence[str] = ("commit", "ordinal")
    """What the two numbers of a row's place are called in errors."""

    isolation: Isolation | None = None
    """Where rows that cannot be computed are; None while there are none."""

    began: float = field(default_factory=time.perf_counter)
    rows_out: int | None = None

    @property
    def ms(self) -> float:
        return (time.perf_counter() - self.began) * 1000

    @property
    def failures(self) -> tuple[Failure, ...]:
        return () if self.isolation is None else self.isolation.failures

    def collect(self, without: frozenset[RowReference] = frozenset()) -> list[pa.Table]:
        """Return the rows of each part; those that cannot be computed are found and left out."""
        failed: RowFailed | None = None
        if self.isolation is None:
            try:
                tables, refused = self.job.collect(without)
            except RowFailed as error:
                failed = error
            else:
                if refused:
                    self.isolate().admit(refused)
                return tables
        isolation = self.isolate()
        tables, refused = isolation.settle(self.job.collect, without, after=failed)
        isolation.admit(refused)
        return tables

    def examine(
        self, without: frozenset[RowReference] = frozenset(), behind: Behind | None = None
    ) -> None:
        """Look at what users' functions make, where there are some, before anybody takes it."""
        if self.job.has_own_code:
            isolation, most = self.isolate(), self.pipeline.most_failures + 1
            attempt = partial(self.job.examine, most=most)
            isolation.admit(isolation.settle(attempt, without, behind=behind))

    def isolate(self) -> Isolation:
        """Return the search for rows that fail."""
        if self.isolation is None:
            most = self.pipeline.most_failures
            self.isolation = Isolation(self.job, most, named=self.named, facts=self.facts)
        return self.isolation


@dataclass(frozen=True, slots=True)
class _Last:
    """A pipeline's last batch."""

    spark: Spark
    frame: DataFrame | None
    ms: float
    rows_in: int
    rows_out: int | None
    bytes_in: int


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


def _died_with_it(what: str, pipeline: str) -> SparkGone:
    return SparkGone(
        f"Spark's JVM died, and with it {what} that this pipeline was given",
        remedy="Give the expression as SQL text, which outlives a JVM; or make the pipeline anew"
        " and restart the engine.",
        pipeline=pipeline,
    )


def _holds_columns(step: object) -> bool:
    """Whether something of a JVM is among a pipeline's steps, at any depth."""
    from pyspark.sql import Column

    if isinstance(step, Pipeline):
        return _holds_columns((step.filters, step.transforms))
    if isinstance(step, tuple):
        return any(_holds_columns(each) for each in step)
    if is_dataclass(step) and not isinstance(step, type):
        return any(_holds_columns(getattr(step, field.name)) for field in fields(step))
    return isinstance(step, Column)


def _of_function(error: RowFailed) -> HeadraceError:
    """Return the error of a function whose own expressions fail on a row that is good."""
    return FunctionFailed(
        "The function's own expressions fail on a row of its batch",
        condition=error.facts.get("condition"),
        pipeline=error.facts.get("pipeline"),
    )


def _size(part: SegmentGroup) -> int:
    return sum(part.sizes)


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
