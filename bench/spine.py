"""
The spine: log → Spark → memory, and the whole way from a commit to a reader.

One Spark for all of it, warmed by real jobs first. The floor of a latency is one Spark job
of the same shape over one small segment; that of a throughput the same scan to Arrow, with
no target behind it. Latency starts at the time the *writer* stamped into the row, and ends
when a reader's callback has the row.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from bench import memory as rows_of
from bench import own_code, pipelines, restart
from bench.harness import (
    NOISY_FLOOR_MS,
    Result,
    Rounds,
    at_most,
    floor_plus,
    ratio_at_least,
    ratio_at_most,
)
from bench.processes import cpu_seconds, family
from headrace.capture.source import SourceTraits
from headrace.capture.sqlite.source import sqlite
from headrace.changelog.change import Changes, TableChanges
from headrace.changelog.reader import LogReader, LogWriter
from headrace.changelog.schema import TableSchema
from headrace.engine.engine import Engine
from headrace.pipeline.definition import OnError, Pipeline
from headrace.pipeline.runner import SparkRunner
from headrace.pipeline.steps import Transform, derive, drop, where
from headrace.runtime.pipeline_run import IDLE, MOST_ROWS, PipelineRun
from headrace.runtime.run_context import RunContext
from headrace.runtime.store import ProgressStore
from headrace.spark_session.session import Spark, start_session
from headrace.storage.disk import RealDisk
from headrace.storage.files import Files
from headrace.targets.memory import IndexedMemory, memory
from headrace.testing.source import MemorySource

WARM_JOBS = 500
QUICK_WARM_JOBS = 150


@dataclass(frozen=True, slots=True)
class At:
    """A place in a made-up source."""

    commit: int
    lineage: str = "test/bench"

    def __str__(self) -> str:
        return str(self.commit)


def run(*, quick: bool) -> tuple[list[Result], bool]:
    """Measure everything; also return whether the machine was noisy."""
    folder = Path(tempfile.mkdtemp(prefix="headrace-bench-"))
    spark = start_session(folder)
    try:
        floor = OneJob(spark, folder)
        floor.warm(QUICK_WARM_JOBS if quick else WARM_JOBS)
        results = [_bulk(spark, folder, quick=quick)]
        results += _latency(spark, folder, floor, quick=quick)
        results += restart.run(spark, folder / "restart", quick=quick)
        results += pipelines.run(spark, folder / "ten", floor.one, quick=quick)
        results += _own_code(spark, folder, quick=quick)
        one_job = statistics.median(floor.seen)
        results.insert(
            0, Result("floor.one_job_ms", one_job, "ms", note="one Spark job, one segment")
        )
        return results, one_job > NOISY_FLOOR_MS
    finally:
        spark.stop()
        shutil.rmtree(folder, ignore_errors=True)


class OneJob:
    """The floor of a latency: one job of the same shape over one segment of ten rows."""

    def __init__(self, spark: Spark, folder: Path) -> None:
        self._spark = spark
        log = BigLog(folder / "floor", rows=10, flushes=1)
        self._frame = log.plain_frame(spark.small)
        self.seen: list[float] = []

    def warm(self, jobs: int) -> None:
        """Run jobs without counting them: a cold JVM takes three times as long."""
        for _ in range(jobs):
            self._frame().toArrow()

    def one(self) -> None:
        """Run one job."""
        self._frame().toArrow()

    def milliseconds(self, jobs: int = 30) -> float:
        """Return the median of some jobs, now."""
        taken = []
        for _ in range(jobs):
            began = time.perf_counter()
            self._frame().toArrow()
            taken.append((time.perf_counter() - began) * 1_000)
        self.seen.append(statistics.median(taken))
        return self.seen[-1]


class BigLog:
    """A log of its own, with an empty baseline and then nothing but inserts."""

    def __init__(self, folder: Path, *, rows: int, flushes: int) -> None:
        self.files = Files(RealDisk(), str(folder))
        self.schema: TableSchema = rows_of.schema()
        writer = LogWriter.open(
            self.files, source="bench", origin="test:bench", writer="bench", term=1, clock=time.time
        )
        writer.begin(At(0), "start", "test:bench")
        writer.baseline(self.schema).finish(0, 0)
        each = rows // flushes
        for number in range(1, flushes + 1):
            changes = _segment(self.schema, (number - 1) * each, each, number)
            writer.append(Changes([TableChanges(self.schema, changes)], At(number)))
            writer.flush()
        self.reader = LogReader.open(self.files, "bench")
        self.rows = each * flushes

    def plain_frame(self, session: SparkSession) -> Callable[[], DataFrame]:
        """Return what builds the same scan by hand: no filter, no target."""
        from pyspark.sql.pandas.types import from_arrow_schema

        baseline = self.reader.usable_baseline("bench")
        assert baseline is not None
        batch = self.reader.next_batch("bench", baseline.window[0], 1 << 40, None, 1 << 20)
        assert batch is not None
        paths = [self.reader.path(file) for file in batch.files]
        reader = session.read.schema(from_arrow_schema(self.schema.segment))
        wanted = ["_op", "_commit", "_ordinal", "_time"]
        wanted += [f"after.`{name}`" for name in self.schema.names]
        return lambda: reader.parquet(*paths).selectExpr(*wanted)


def _segment(schema: TableSchema, start: int, count: int, commit: int) -> pa.Table:
    """Return inserts in the shape of a segment."""
    flat = rows_of.rows(start, count, commit=commit)
    after = pa.StructArray.from_arrays(
        [flat[name].combine_chunks() for name in schema.names], fields=list(schema.arrow)
    )
    types = {field.name: field.type for field in schema.segment}
    made = {name: flat[name] for name in ("_op", "_commit", "_ordinal", "_time")}
    made |= {name: pa.nulls(count, types[name]) for name in ("_xid", "_unsent", "_exact", "before")}
    made["after"] = after
    return pa.table([made[name] for name in schema.segment.names], schema=schema.segment)


def _bulk(spark: Spark, folder: Path, *, quick: bool) -> Result:
    rows = 300_000 if quick else 1_000_000
    log = BigLog(folder / "bulk", rows=rows, flushes=31)
    plain = log.plain_frame(spark.bulk)
    rounds = Rounds()
    for number in range(2 if quick else 4):
        began = time.perf_counter()
        assert plain().toArrow().num_rows == log.rows
        floor = log.rows / (time.perf_counter() - began)
        ours = log.rows / _through(spark, log, folder / f"bulk-{number}")
        if number:  # the first pass of each compiles code for the others
            rounds.floor.append(floor)
            rounds.ours.append(ours)
    goal = ratio_at_least(0.5)
    return rounds.result("spine.bulk.rows_per_s", "rows/s", goal, "same scan to Arrow, no target")


def _own_code(spark: Spark, folder: Path, *, quick: bool) -> list[Result]:
    through = functools.partial(_through, spark)
    rows = 300_000 if quick else 1_000_000
    # Fewer rows than a drain: a batch with failing rows takes many jobs, and so many batches.
    some = rows // 5
    letters = BigLog(folder / "letters", rows=some, flushes=some // own_code.BATCH)
    functions = BigLog(folder / "functions", rows=rows, flushes=31)
    return [
        own_code.dead_letters(letters, folder, through, quick=quick),
        *own_code.functions(functions, folder, through, quick=quick),
    ]


def _through(
    spark: Spark,
    log: BigLog,
    folder: Path,
    *,
    transforms: Sequence[Transform] = (),
    on_error: OnError | None = None,
    most_rows: int = MOST_ROWS,
    missing: int = 0,
) -> float:
    """Take the whole log to memory, but for what is `missing`; return the seconds it took."""
    folder.mkdir()
    store = ProgressStore.at(folder / "control.sqlite")
    store.take_over()
    target = memory()
    source = MemorySource("bench")
    run_ = PipelineRun(
        "bench",
        "bench",
        Pipeline(source, "bench", target, transforms=transforms, on_error=on_error),
        SourceTraits("test"),
        RunContext(
            log=log.reader,
            runner=SparkRunner(spark),
            store=store,
            files=Files(RealDisk(), str(folder)),
            clock=time.monotonic,
            wall=time.time,
            ask_baseline=lambda table, newer_than: None,
            flush_times=lambda entry: None,
        ),
        most_rows=most_rows,
    )
    run_.prepare({"bench": log.schema})
    run_.open()
    began = time.perf_counter()
    while run_.step() != IDLE:
        assert run_.error is None, run_.error
    took = time.perf_counter() - began
    assert run_.ready, run_.state
    assert target.count() == log.rows - missing
    assert run_.delivery.dead_letters.count == missing
    run_.close()
    store.close()
    return took


class Shop:
    """A SQLite database, an engine on it, and a writer that stamps its rows."""

    def __init__(self, folder: Path, spark: Spark) -> None:
        folder.mkdir()
        self.path = folder / "shop.db"
        with contextlib.closing(sqlite3.connect(self.path)) as database:
            database.execute("pragma journal_mode = wal")
            database.execute(
                "create table orders (id integer primary key, customer_id integer, product text,"
                " qty integer, price_cents integer, status text, card_number text, stamp real)"
            )
        self.target: IndexedMemory = memory(indexes={"by_customer": ["customer_id"]})
        self.late: list[float] = []
        self.engine = Engine(
            Pipeline(
                sqlite(self.path),
                "orders",
                self.target,
                filters=[where("status <> 'cancelled'")],
                transforms=[drop("card_number"), derive(total_cents="qty * price_cents")],
            ),
            data=folder / "data",
            spark=spark.session,
        )

    def measure(self, rate: float, seconds: float) -> list[float]:
        """Write at `rate` commits a second; return commit to reader, in milliseconds."""
        self.late = []
        expected = int(rate * seconds)
        there = threading.Event()

        def heard(old: object, new: object) -> None:
            self.late.append((time.time() - new["stamp"]) * 1_000)  # type: ignore[index]
            if len(self.late) >= expected:
                there.set()

        stop = self.target.listen(heard)
        try:
            subprocess.run(
                [sys.executable, "-m", "bench.writer", str(self.path), str(rate), str(expected)],
                check=True,
                cwd=Path(__file__).parents[1],
            )
            assert there.wait(30), f"{len(self.late)} of {expected} rows became visible"
        finally:
            stop()
        # The first fifth warms the path; it is not judged.
        return sorted(self.late[expected // 5 :])


def _latency(spark: Spark, folder: Path, floor: OneJob, *, quick: bool) -> list[Result]:
    shop = Shop(folder / "latency", spark)
    sparse, busy, tail = Rounds(), Rounds(), Rounds()
    with shop.engine as engine:
        assert engine.await_ready(60)
        shop.measure(100, 10 if quick else 30)  # warm
        idle = _idle_cpu(15 if quick else 60)
        for _ in range(1 if quick else 3):
            one_job = floor.milliseconds()
            late = shop.measure(2, 10 if quick else 20)
            sparse.ours.append(statistics.median(late))
            sparse.floor.append(one_job)
            one_job = floor.milliseconds()
            late = shop.measure(100, 10 if quick else 15)
            busy.ours.append(statistics.median(late))
            tail.ours.append(late[int(0.99 * len(late))])
            busy.floor.append(one_job)
            tail.floor.append(one_job)
        hops = engine.pipelines()[0].hops
        scanned = engine.pipelines()[0]
        assert scanned.jobs >= scanned.batches
        assert scanned.changes == engine.sources()[0].captured, "rows scanned = rows captured"
    by_hop = ", ".join(f"{name} {hop.p50_ms:.0f}" for name, hop in hops.items())
    one = "one Spark job of the same shape"
    note = f"p50 ms by hop at the end: {by_hop}"
    found = [
        sparse.result("spine.latency.sparse.p50", "ms", floor_plus(20), one),
        busy.result("spine.latency.100ps.p50", "ms", ratio_at_most(2.5), one),
        tail.result("spine.latency.100ps.p99", "ms", ratio_at_most(5), one),
    ]
    return [
        found[0],
        replace(found[1], note=note),
        found[2],
        Result(
            "spine.idle_cpu_percent",
            idle,
            "% of a core",
            goal=at_most(3),
            note="engine, recorder and JVM together",
        ),
    ]


def _idle_cpu(seconds: float) -> float:
    """Return what all our processes take while nothing changes, in percent of one core."""
    ours = family(os.getpid())
    before = cpu_seconds(ours)
    threading.Event().wait(seconds)
    return 100 * (cpu_seconds(ours) - before) / seconds
