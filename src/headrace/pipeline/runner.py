"""
Runs a pipeline's batches on Spark.

A batch is one Spark job over the segments that the index names for it: filtered and
transformed on the executors, collected as Arrow, put in order on the driver; or handed to a
function of the user's as a DataFrame. Rows that cannot be computed are found and left out,
and the job runs again without them (S2).
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headrace.capture.parts import Order
from headrace.capture.source import SourceTraits
from headrace.changelog.entry import File
from headrace.changelog.schema import TableSchema
from headrace.errors import FunctionFailed, HeadraceError, JobFailed, RowFailed, SparkGone
from headrace.pipeline.batch import BatchFacts, Behind, Loaded, Part, Runner
from headrace.pipeline.copying import copy_parts
from headrace.pipeline.definition import Pipeline
from headrace.pipeline.explain import Explanation
from headrace.pipeline.failures import running
from headrace.pipeline.frames import as_inserts, as_one
from headrace.pipeline.isolate import Isolation
from headrace.pipeline.jobs import Job, Piece
from headrace.pipeline.plan import Plan
from headrace.pipeline.plans import Plans, name_of
from headrace.pipeline.result import Failure, Place, Result, aligned, arranged, shaped
from headrace.pipeline.scan import Shape
from headrace.pipeline.scratch import Scratch
from headrace.pipeline.session import Spark, SparkInfo
from headrace.pipeline.workspace import Workspace

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["BatchFacts", "Explanation", "Part", "Runner", "SparkRunner"]

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

    def collect(self, without: frozenset[Place]) -> list[pa.Table]:
        tables, refused = self.job.collect(without)
        self.isolation.admit(refused)
        return tables

    def examined(self, most: int) -> Callable[[frozenset[Place]], None]:
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

    def rows(self, pipeline: Pipeline, parts: Sequence[Part], facts: BatchFacts) -> Result:
        with self._batch(pipeline, parts, facts) as work:
            tables = work.isolation.settle(work.collect, facts.without)
            took, output = work.ms, work.outputs[-1]
            pairs = zip(tables, work.outputs, strict=True)
            ordered, truncate = arranged(
                [aligned(*pair, output) for pair in pairs], output, every_change=facts.every_change
            )
            work.rows_out = ordered.num_rows
        return Result(ordered, truncate, took, facts.rows, work.isolation.failures)

    def baseline(self, pipeline: Pipeline, part: Part) -> Iterator[Loaded]:
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
            yield Loaded(rows, new)

    def give(
        self,
        pipeline: Pipeline,
        parts: Sequence[Part],
        facts: BatchFacts,
        behind: Behind,
        take: Callable[[DataFrame], None],
    ) -> tuple[Failure, ...]:
        with self._batch(pipeline, parts, facts) as work:

            def attempt(without: frozenset[Place]) -> None:
                with self._scratch.copies() as copies, running(**work.facts):
                    frames = list(work.job.frames(without, copies))
                    take(as_one(frames, work.outputs[-1], facts.first.epoch))

            settle = work.isolation.settle
            if work.job.has_own_code:
                settle(work.examined(pipeline.most_failures), facts.without, behind=behind)
            settle(attempt, facts.without, behind=behind, otherwise=_of_function)
        return work.isolation.failures

    def give_baseline(
        self, pipeline: Pipeline, part: Part, take: Callable[[DataFrame, int], None]
    ) -> tuple[Failure, ...]:
        before: Isolation | None = None
        for chunk in _chunks(part):
            with self._piece(pipeline, part, chunk, before) as work:
                before = work.isolation

                def attempt(
                    without: frozenset[Place], work: _Work = work, number: int = chunk.number
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
        self, pipeline: Pipeline, parts: Sequence[Part], facts: BatchFacts
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
                pieces.append(Piece(part.schema, plan, tuple(part.paths), _shape(plan, facts)))
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
        self, pipeline: Pipeline, part: Part, chunk: _Chunk, before: Isolation | None
    ) -> Iterator[_Work]:
        """Work on a baseline's piece; its failures count together with those of `before`."""
        told = {"pipeline": name_of(pipeline), "piece": chunk.number}
        with (
            self._running(pipeline, f"baseline {chunk.number}") as spark,
            self._scratch.copies() as copies,
        ):
            plan = self._plans.of(spark, pipeline, part.now, part.schema)
            piece = Piece(part.schema, plan, chunk.paths, Shape.BASELINE)
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


def _chunks(part: Part) -> Iterator[_Chunk]:
    """Yield the segments in groups of about a million rows; where there are none, one group."""
    number, start, total = 1, 0, 0
    for at, count in enumerate(part.row_counts):
        if at > start and total + count > BASELINE_ROWS:
            yield _Chunk(number, start, part.paths[start:at], total, part.sizes[start:at])
            number, start, total = number + 1, at, 0
        total += count
    if start < len(part.paths) or not part.paths:
        yield _Chunk(number, start, part.paths[start:], total, part.sizes[start:])


def _shape(plan: Plan, facts: BatchFacts) -> Shape:
    """Return the least that these changes need."""
    if facts.key_changes:
        return Shape.MOVES
    if facts.deletes or (facts.updates and plan.filtered):
        return Shape.BOTH
    return Shape.AFTER


def _of_function(error: RowFailed) -> HeadraceError:
    """Return the error of a function whose own expressions fail on a row that is good."""
    return FunctionFailed(
        "The function's own expressions fail on a row of its batch",
        condition=error.facts.get("condition"),
        pipeline=error.facts.get("pipeline"),
    )


def _size(part: Part) -> int:
    return sum(part.sizes)
