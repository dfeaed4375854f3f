"""
Small batches without a Spark job: CPU time a batch, with the same batch by a job as the floor.

The engine's process and the JVM together, from the segment on disk to the rows in Arrow. A filter
of two conditions, all columns, and two derived ones.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from bench.harness import Result, Rounds, ratio_at_most
from bench.processes import cpu_seconds, family
from bench.spine import BigLog
from headrace.capture.source import SourceTraits
from headrace.changelog.position import ORIGIN
from headrace.pipeline.batch import BatchFacts, SegmentGroup
from headrace.pipeline.definition import Pipeline
from headrace.pipeline.runner import SparkRunner
from headrace.pipeline.steps import derive, where
from headrace.spark_session.session import Spark, start_session
from headrace.targets.memory import memory
from headrace.testing.source import MemorySource

SIZES = (1, 10, 100, 1_000)
TURN = 10
"""Batches of one way before it is the other's turn."""


def run(*, quick: bool) -> list[Result]:
    """Measure batches of each size on a Spark of its own."""
    folder = Path(tempfile.mkdtemp(prefix="headrace-bench-"))
    spark = start_session(folder)
    try:
        return _both_ways(spark, folder, quick=quick)
    finally:
        spark.stop()
        shutil.rmtree(folder, ignore_errors=True)


def _both_ways(spark: Spark, folder: Path, *, quick: bool) -> list[Result]:
    turns = 3 if quick else 12
    results = []
    for rows in SIZES:
        direct, job = (
            _batch(spark, folder / f"{way}-{rows}", rows, way) for way in ("direct", "job")
        )
        for way in (direct, job):
            for _ in range(10 * TURN if rows == SIZES[0] else 2 * TURN):
                way()  # warm
        cpu, clock = Rounds(), Rounds()
        for _ in range(turns):
            for way, into, ms in (
                (job, cpu.floor, clock.floor),
                (direct, cpu.ours, clock.ours),
            ):
                used, took = _turn(way)
                into.append(used)
                ms.append(took)
        results += [
            cpu.result(f"spine.direct.cpu_ms.{rows}", "ms", ratio_at_most(0.15), "by a job"),
            clock.result(f"spine.direct.ms.{rows}", "ms", None, "by a job"),
        ]
    return results


def _turn(way: Callable[[], None]) -> tuple[float, float]:
    """Return CPU and clock time of one batch, in milliseconds."""
    processes = family(os.getpid())
    used, began = cpu_seconds(processes), time.perf_counter()
    for _ in range(TURN):
        way()
    took = time.perf_counter() - began
    return 1_000 * (cpu_seconds(processes) - used) / TURN, 1_000 * took / TURN


def _batch(spark: Spark, folder: Path, rows: int, way: str) -> Callable[[], None]:
    """Return what computes a batch of so many rows one way."""
    log = BigLog(folder, rows=rows, flushes=1)
    batch = log.reader.next_batch("bench", ORIGIN, 1 << 40)
    assert batch is not None
    files = batch.files_of("bench")
    part = SegmentGroup(
        log.schema,
        tuple(log.reader.path(file) for file in files),
        tuple(file.rows for file in files),
        sizes=tuple(file.bytes for file in files),
    )
    facts = BatchFacts.of(files, batch.first, batch.last)
    what = Pipeline(
        MemorySource("bench"),
        "bench",
        memory(),
        filters=[where("n >= 0"), where("name <> 'void'")],
        transforms=[derive(total="n * amount", label="concat(name, '/', n)")],
    )
    runner = SparkRunner(spark, small_batches="direct" if way == "direct" else "job")
    prepared = runner.prepare(what, SourceTraits("bench"))
    prepared.output(log.schema)

    def compute() -> None:
        assert prepared.rows([part], facts).direct is (way == "direct")

    return compute
