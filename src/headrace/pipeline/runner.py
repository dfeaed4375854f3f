"""
The runner of a pipeline's batches on Spark.

A batch is one Spark job over the segments that the index lists for it. Rows are filtered and
transformed on the executors, collected as Arrow and sorted on the driver, or passed to a user's
function as a DataFrame. Rows that cannot be computed are found and left out, and the job runs again
without them (S2).

A small batch whose plan is only filters and projections is computed directly instead, by the same
expressions and without a job (`spark_session.direct`). One of these batches in a thousand is
computed by a job as well, once its rows are visible, and the two results are compared.

A baseline can be copied by Spark tasks. Each task reads a part of the table on its own connection
and writes segments; the driver gets only a receipt for each (S4). Rows pass neither through the JVM
nor through the driver. Headrace must be installed on the executors for this, on one machine as on a
cluster.

An `Explanation` shows users what Spark did for a pipeline's last batch.

Long because batches, baselines and frames are the same work, with the same search for rows to leave
out.
"""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

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
    ResultsDiffer,
    RowFailed,
    RowsRefused,
    SparkGone,
)
from headrace.pipeline.baseline_copy import copy_parts
from headrace.pipeline.batch import (
    BatchFacts,
    BlockedRows,
    LoadedRows,
    PreparedPipeline,
    Runner,
    SegmentGroup,
)
from headrace.pipeline.definition import Pipeline
from headrace.pipeline.failed_rows import Isolation, Scratch, Workspace
from headrace.pipeline.job import Job, JobInput, as_inserts, as_one, refused_in
from headrace.pipeline.plan.plan import PipelinePlan
from headrace.pipeline.plan.projection import ChangeImages
from headrace.pipeline.result import (
    Failure,
    JobResult,
    RowReference,
    aligned,
    arranged,
    same_results,
    shaped,
)
from headrace.spark_session.direct import Evaluator
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
"""Approximate number of rows of a baseline in one job; limits the memory of the driver."""


SMALL_BATCHES = ("direct", "job")
SmallBatches: TypeAlias = Literal["direct", "job"]
"""How small batches are computed: directly if their plan allows that, or always by a job."""

DIRECT_ROWS = 5_000
DIRECT_BYTES = 1 << 20
"""The largest batch that is computed directly; a job can use all cores for a larger one."""

CHECK_EVERY = 1_000
"""One direct batch in this number is computed by a job as well."""


class SparkRunner:
    """
    The `Runner` of an engine; may be used from any thread.

    `scratch` is a separate folder for copies of segments, and is emptied here; by default they
    go to a temporary folder. If Spark died, `revive` uses the Spark that `renew` returns. Results
    that differ, see `CHECK_EVERY`, are kept in the folder `differences`.
    """

    def __init__(
        self,
        spark: Spark,
        *,
        scratch: Workspace | None = None,
        renew: Callable[[], Spark] | None = None,
        small_batches: SmallBatches = "direct",
        differences: Workspace | None = None,
    ) -> None:
        self.scratch = Scratch(scratch)
        self.small_batches = small_batches
        self.differences = differences
        self._spark = spark
        self._renew = renew
        self._lock = threading.Lock()
        self._tags: set[str] = set()
        self._stopped = False

    def prepare(
        self, pipeline: Pipeline, traits: SourceTraits, name: str | None = None
    ) -> SparkPipeline:
        name = name or pipeline.name or (*pipeline.tables, *pipeline.patterns)[0]
        # Spark does not allow a comma in a tag.
        tag = stem = f"headrace-{name}".replace(",", "_")
        number = 1
        with self._lock:
            while tag in self._tags:
                number += 1
                tag = f"{stem}-{number}"
            self._tags.add(tag)
        return SparkPipeline(self, pipeline, traits, name, tag)

    def release(self, tag: str) -> None:
        """Release a tag, so that another pipeline can use it."""
        with self._lock:
            self._tags.discard(tag)

    def copy(self, order: Order, numbers: range) -> list[File]:
        """Copy parts of a baseline with Spark tasks."""
        spark = self._spark
        if not spark.alive:
            raise SparkGone("The JVM of Spark has exited", table=order.table)
        with running(source=order.source, table=order.table):
            spark.describe_job(f"headrace copy of {order.table} {numbers.start + 1}")
            return copy_parts(spark, order, numbers)

    def explain(self, prepared: PreparedPipeline) -> Explanation:
        """Return what Spark did for a pipeline's last batch."""
        assert isinstance(prepared, SparkPipeline)
        return prepared.explain()

    def info(self) -> SparkInfo:
        """Return the state of Spark, with its own counts."""
        return self._spark.info()

    @property
    def spark(self) -> Spark:
        """The current Spark, dead or alive; another object after a restart."""
        return self._spark

    @property
    def alive(self) -> bool:
        """Whether Spark is running."""
        return self._spark.alive

    @contextlib.contextmanager
    def living(self, pipeline: str) -> Iterator[Spark]:
        """Yield a running Spark; if it dies meanwhile, any error becomes `SparkGone`."""
        spark = self._spark
        if not spark.alive:
            # Do not restart it here: that takes seconds, in which no error would be reported.
            raise SparkGone("The JVM of Spark has exited", pipeline=pipeline)
        try:
            yield spark
        except SparkGone:
            raise
        except Exception as error:
            if spark.alive:
                raise
            raise SparkGone(
                "The JVM of Spark exited", error=type(error).__name__, pipeline=pipeline
            ) from None

    def revive(self) -> bool:
        """Restart Spark if it died and the engine started it; return whether Spark runs."""
        if self._spark.alive or self._renew is None or self._stopped:
            return self._spark.alive
        # Not under the lock, which pipelines need to begin and to end: a start takes seconds.
        renewed = self._renew()
        with self._lock:
            if not self._stopped:
                self._spark = renewed
                return renewed.alive
        renewed.stop()
        return False

    def stop(self) -> None:
        """Stop Spark, if the engine started it, and remove leftover copies."""
        with self._lock:
            self._stopped = True
        self._spark.stop()


class SparkPipeline:
    """
    The `PreparedPipeline` of a `SparkRunner`; it also implements `GivesFrames`.

    Its plans, one for each version of a table's schema, exist in the JVM in which they were
    made. If that dies, every batch fails with `SparkGone` until the runner is revived. Then
    plans are made again when they are next needed. A `Column` cannot be made again, because the
    user created it.
    """

    def __init__(
        self, runner: SparkRunner, pipeline: Pipeline, traits: SourceTraits, name: str, tag: str
    ) -> None:
        self.name = name
        """Its name in errors and job descriptions."""
        self._runner = runner
        self._scratch = runner.scratch
        self._pipeline = pipeline
        self._traits = traits
        self._tag = tag
        """The tag of its jobs; no other pipeline has it."""
        self._first: Spark | None = None
        """The Spark of its first plan, in which the user's `Column`s exist."""
        self._spark: Spark | None = None
        self._plans: dict[tuple[TableSchema, TableSchema], PipelinePlan] = {}
        """Plans on that Spark, by the schema of the table and the schema of the segments."""
        self._last: _Last | None = None
        self._direct_count = 0

    def rows(self, parts: Sequence[SegmentGroup], facts: BatchFacts) -> JobResult:
        small = facts.rows <= DIRECT_ROWS and sum(map(_size, parts)) <= DIRECT_BYTES
        direct = small and self._runner.small_batches == "direct"
        result = self._rows(parts, facts, direct=direct)
        if not result.direct:
            return result
        self._direct_count += 1
        if self._direct_count % CHECK_EVERY:
            return result
        return replace(result, check=partial(self._check, parts, facts, result))

    def _check(self, parts: Sequence[SegmentGroup], facts: BatchFacts, result: JobResult) -> None:
        """Compute a direct batch by a job as well; keep both results and raise if they differ."""
        last = self._last
        again = self._rows(parts, facts, direct=False)
        self._last = last
        if same_results(result, again):
            return
        folder = self._runner.differences or self._runner.scratch.folder.within("differences")
        stem = f"{re.sub(r'[^A-Za-z0-9.-]', '-', self.name)}-{facts.first}"
        for way, rows in (("direct", result.rows), ("job", again.rows)):
            folder.write(f"{stem}-{way}.parquet", rows)
        raise ResultsDiffer(
            "A batch has another result with a Spark job than without",
            pipeline=self.name,
            first=facts.first,
            last=facts.last,
            direct_rows=result.rows.num_rows,
            job_rows=again.rows.num_rows,
            direct_failures=len(result.failures),
            job_failures=len(again.failures),
            folder=folder.location,
        )

    def _rows(self, parts: Sequence[SegmentGroup], facts: BatchFacts, *, direct: bool) -> JobResult:
        with self._batch(parts, facts, direct=direct) as work:
            tables = work.collect(facts.without)
            took, output = work.ms, work.outputs[-1]
            pairs = zip(tables, work.outputs, strict=True)
            ordered, truncate = arranged(
                [aligned(*pair, output) for pair in pairs], output, every_change=facts.every_change
            )
            work.rows_out = ordered.num_rows
        direct = work.job.evaluator is not None
        return JobResult(ordered, truncate, took, facts.rows, work.failures, direct)

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
        blocked: BlockedRows,
        take: Callable[[DataFrame], None],
    ) -> tuple[Failure, ...]:
        with self._batch(parts, facts) as work:

            def attempt(without: frozenset[RowReference]) -> list[Failure]:
                output = work.outputs[-1]
                with self._scratch.copies() as copies, running(**work.facts):
                    frames = list(work.job.frames(without, copies))
                    frame = as_one(frames, output, facts.first.epoch)
                    try:
                        take(frame)
                    except RowsRefused as error:
                        work.isolate().limit_refused(error, output.table)
                        return refused_in(frame, error.rows, output)
                return []

            work.examine(facts.without, blocked)
            work.offer(attempt, facts.without, blocked)
        return work.failures

    def give_baseline(
        self,
        part: SegmentGroup,
        take: Callable[[DataFrame, int], None],
        blocked: BlockedRows | None = None,
    ) -> tuple[Failure, ...]:
        before: Isolation | None = None
        for chunk in _chunks(part):
            with self._piece(part, chunk, before) as work:

                def attempt(
                    without: frozenset[RowReference], work: _Work = work, number: int = chunk.number
                ) -> list[Failure]:
                    output = work.outputs[-1]
                    with self._scratch.copies() as copies, running(**work.facts):
                        frames = list(work.job.frames(without, copies))
                        try:
                            take(as_inserts(frames, output), number)
                        except RowsRefused as error:
                            work.isolate().limit_refused(error, output.table)
                            # Their references are only in copies that have them as positions.
                            placed = list(work.job.frames(without, copies, placed=True))
                            frame = as_one(placed, output, 0).where("_op = 'insert'")
                            return refused_in(frame, error.rows, output, loaded=True)
                    return []

                work.examine()
                before = work.isolate()
                work.offer(attempt, blocked=blocked)
        return () if before is None else before.failures

    def cancel(self) -> None:
        for plan in list(self._plans.values()):
            plan.cancel()
        spark = self._runner.spark
        if spark.alive:
            spark.cancel(self._tag)

    def close(self) -> None:
        self._drop_plans()
        self._last = None
        self._runner.release(self._tag)

    def explain(self) -> Explanation:
        """Return what Spark did for the last batch."""
        last = self._last
        with self._runner.living(self.name) as spark, running(pipeline=self.name):
            jobs, tasks, _ = spark.counted(self._tag)
            # A frame of a Spark that died cannot be explained.
            there = last is not None and last.spark is spark
            plan = ""
            if last and there and last.evaluator is not None:
                plan = last.evaluator.plan
            elif last and there and last.frame:
                plan = spark.explain(last.frame)
        return Explanation(
            pipeline=self.name,
            way="direct" if last is not None and last.evaluator is not None else "job",
            plan=plan,
            jobs=jobs,
            tasks=tasks,
            last_job_ms=last.ms if last else 0.0,
            rows_in=last.rows_in if last else 0,
            rows_out=last.rows_out if last else 0,
            bytes_in=last.bytes_in if last else 0,
            jobs_only=spark.direct.reason if spark.direct is not None else "",
        )

    # --- a batch, and the pieces of a baseline ------------------------------------------------

    @contextlib.contextmanager
    def _batch(
        self, parts: Sequence[SegmentGroup], facts: BatchFacts, *, direct: bool = False
    ) -> Iterator[_Work]:
        if not parts:
            raise JobFailed("The batch has no segments")
        job_facts = {"pipeline": self.name, "first": facts.first, "last": facts.last}
        with self._running(f"{facts.first} to {facts.last}") as spark:
            pieces = []
            for part in parts:
                plan = self._plan(spark, part.now, part.schema)
                pieces.append(JobInput(part.schema, plan, tuple(part.paths), _shape(plan, facts)))
            job = Job(spark, self._scratch, pieces, facts.rows, job_facts, direct=direct)
            work = _Work(job, [piece.plan.output for piece in pieces], self._pipeline, job_facts)
            if facts.marked or any(part.marked for part in parts):
                marked = job.outside_type()
                work.isolate().admit(each for each in marked if each.reference not in facts.without)
            yield work
            self._remember(spark, work, facts.rows, sum(map(_size, parts)))

    @contextlib.contextmanager
    def _piece(
        self, part: SegmentGroup, chunk: _Chunk, before: Isolation | None
    ) -> Iterator[_Work]:
        """Compute a piece of a baseline; its failures are counted with those of `before`."""
        job_facts = {"pipeline": self.name, "piece": chunk.number}
        with (
            self._running(f"baseline {chunk.number}") as spark,
            self._scratch.copies() as copies,
        ):
            plan = self._plan(spark, part.now, part.schema)
            piece = JobInput(part.schema, plan, chunk.paths, ChangeImages.BASELINE)
            count = chunk.row_count
            job = Job(
                spark, self._scratch, [piece], count, job_facts, first=chunk.first, copies=copies
            )
            if before is not None:
                before.go_on(job)
            work = _Work(job, [plan.output], self._pipeline, job_facts, ("segment", "row"), before)
            if part.marked:
                work.isolate().admit(job.outside_type())
            yield work
            self._remember(spark, work, count, sum(chunk.sizes))

    @contextlib.contextmanager
    def _running(self, text: str) -> Iterator[Spark]:
        """Name and tag the jobs that follow, so that they can be recognised and cancelled."""
        with self._runner.living(self.name) as spark, running(pipeline=self.name):
            spark.describe_job(f"headrace {self.name} {text}")
            with spark.tagged(self._tag):
                yield spark

    def _plan(
        self, spark: Spark, schema: TableSchema, written: TableSchema | None = None
    ) -> PipelinePlan:
        """
        Return the plan for this table; make it if there is none yet.

        It reads segments that were `written` with another schema, if that is given.
        """
        if spark is not self._spark:
            # The plans were in a JVM that died.
            self._drop_plans()
            self._spark = spark
        key = (schema, written or schema)
        if key not in self._plans:
            first = self._first = self._first or spark
            if first is not spark and _holds_columns(self._pipeline):
                raise _died_with_it("a Column", self.name)
            try:
                self._plans[key] = PipelinePlan(
                    spark, self._pipeline, schema, self._traits, written
                )
            except BadFrame:
                if first is spark:
                    raise
                raise _died_with_it("a DataFrame in its frame function", self.name) from None
        return self._plans[key]

    def _drop_plans(self) -> None:
        for plan in self._plans.values():
            plan.close()
        self._plans = {}

    def _remember(self, spark: Spark, work: _Work, rows: int, size: int) -> None:
        job = work.job
        self._last = _Last(spark, job.frame, work.ms, rows, work.rows_out, size, job.evaluator)


@dataclass(slots=True)
class _Work:
    """A batch, or a piece of a baseline, while it is computed."""

    job: Job
    outputs: Sequence[TableSchema]
    """The schema of each part's rows; the last is the schema of the result."""

    pipeline: Pipeline
    facts: dict[str, Any]
    named: Sequence[str] = ("commit", "ordinal")
    """The names of the two numbers of a row reference in errors."""

    isolation: Isolation | None = None
    """The search for rows that cannot be computed; None while no row failed."""

    began: float = field(default_factory=time.perf_counter)
    rows_out: int | None = None

    @property
    def ms(self) -> float:
        return (time.perf_counter() - self.began) * 1000

    @property
    def failures(self) -> tuple[Failure, ...]:
        return () if self.isolation is None else self.isolation.failures

    def collect(self, without: frozenset[RowReference] = frozenset()) -> list[pa.Table]:
        """Return the rows of each part; rows that cannot be computed are found and left out."""
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
        self, without: frozenset[RowReference] = frozenset(), blocked: BlockedRows | None = None
    ) -> None:
        """Check the results of users' functions, if any, before a target gets them."""
        if self.job.has_own_code:
            isolation, most = self.isolate(), self.pipeline.most_failures + 1
            attempt = partial(self.job.examine, most=most)
            isolation.admit(isolation.settle(attempt, without, blocked=blocked))

    def offer(
        self,
        attempt: Callable[[frozenset[RowReference]], list[Failure]],
        without: frozenset[RowReference] = frozenset(),
        blocked: BlockedRows | None = None,
    ) -> None:
        """Give a frame to a target, without the rows that it refuses, until it takes it."""
        isolation = self.isolate()
        settle = isolation.settle
        while refused := settle(attempt, without, blocked=blocked, otherwise=_of_function):
            isolation.admit(refused)

    def isolate(self) -> Isolation:
        """Return the search for failing rows."""
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
    evaluator: Evaluator | None
    """What computed it without a job; None if a job did."""


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
    """Yield the segments in groups of about a million rows; one group if there are none."""
    number, start, total = 1, 0, 0
    for at, count in enumerate(part.row_counts):
        if at > start and total + count > BASELINE_ROWS:
            yield _Chunk(number, start, part.paths[start:at], total, part.sizes[start:at])
            number, start, total = number + 1, at, 0
        total += count
    if start < len(part.paths) or not part.paths:
        yield _Chunk(number, start, part.paths[start:], total, part.sizes[start:])


def _shape(plan: PipelinePlan, facts: BatchFacts) -> ChangeImages:
    """Return the smallest shape that these changes need."""
    if facts.key_changes:
        return ChangeImages.MOVES
    if facts.deletes or (facts.updates and plan.filtered):
        return ChangeImages.BOTH
    return ChangeImages.AFTER


def _died_with_it(what: str, pipeline: str) -> SparkGone:
    return SparkGone(
        f"The JVM of Spark exited. The pipeline uses {what}, which was created in it",
        remedy="Write the expression as SQL text, which survives a restart of Spark; or create the"
        " pipeline again and restart the engine.",
        pipeline=pipeline,
    )


def _holds_columns(step: object) -> bool:
    """Return whether the steps of a pipeline contain a `Column`, at any depth."""
    from pyspark.sql import Column

    if isinstance(step, Pipeline):
        return _holds_columns((step.filters, step.transforms))
    if isinstance(step, tuple):
        return any(_holds_columns(each) for each in step)
    if is_dataclass(step) and not isinstance(step, type):
        return any(_holds_columns(getattr(step, field.name)) for field in fields(step))
    return isinstance(step, Column)


def _of_function(error: RowFailed) -> HeadraceError:
    """Return the error for a function whose own expressions fail on a good row."""
    return FunctionFailed(
        "An expression in the function fails on a row of the batch",
        condition=error.facts.get("condition"),
        pipeline=error.facts.get("pipeline"),
    )


def _size(part: SegmentGroup) -> int:
    return sum(part.sizes)


# --- what Spark did for the last batch ------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Explanation:
    """The last batch of a pipeline: rows in and out, the time it took, and its plan."""

    pipeline: str
    way: str
    """`direct` if the last batch was computed without a Spark job, `job` otherwise."""

    plan: str
    """
    Spark's physical plan, formatted; for a direct batch, the optimised plan. Has names and literals
    of the pipeline, but no rows.
    """

    jobs: int
    """Number of Spark jobs of this pipeline, among the last 200 that Spark remembers."""

    tasks: int
    last_job_ms: float
    """Duration of the last batch, until its rows were computed."""

    rows_in: int
    rows_out: int | None
    """None if a function got the frame: what it did with the rows is not known."""

    bytes_in: int
    jobs_only: str = ""
    """Why this Spark computes small batches by jobs, too; empty if it need not."""

    def __str__(self) -> str:
        out = "" if self.rows_out is None else f" → {self.rows_out:,} out"
        why = f"; {self.jobs_only}" if self.jobs_only else ""
        return "\n".join(
            [
                f"Pipeline {self.pipeline}",
                f"  last batch   {self.rows_in:,} rows in{out}, {_sized(self.bytes_in)} read,"
                f" {self.last_job_ms:,.1f} ms",
                f"  computed     {_WAYS[self.way]}{why}",
                f"  remembered   {self.jobs:,} jobs, {self.tasks:,} tasks",
                "",
                self.plan.strip() or "No batch has been computed yet.",
            ]
        )


_WAYS = {"direct": "directly, without a Spark job", "job": "by a Spark job"}


def _sized(count: int) -> str:
    size = float(count)
    for unit in ("bytes", "KB", "MB"):
        if size < 1000:
            return f"{size:,.0f} {unit}" if unit == "bytes" else f"{size:,.1f} {unit}"
        size /= 1000
    return f"{size:,.1f} GB"
