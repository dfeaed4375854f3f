"""
Batches on a real cluster: master, two workers and their executors, all on this machine.

A small one, and a large one that executors write to files, on one executor and on two. What a
remote executor costs is Spark's and stands in the floor: the same scan, filter and
expressions over the same segments, written by hand, in turns with ours on the same cluster.
"""

from __future__ import annotations

import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from bench.harness import Result, Rounds, floor_plus, ratio_at_least
from headrace.capture.source import SourceTraits
from headrace.changelog.change import Change, Op, as_segment
from headrace.changelog.entry import File
from headrace.changelog.position import Position
from headrace.changelog.schema import Column, TableSchema
from headrace.changelog.segment import describe, parquet_rows, segment_bytes
from headrace.changelog.values import ValueType
from headrace.pipeline.batch import BatchFacts, Part
from headrace.pipeline.definition import Pipeline
from headrace.pipeline.runner import SparkRunner
from headrace.pipeline.session import Spark, start_session
from headrace.pipeline.steps import derive, drop, where
from headrace.targets.memory import memory
from headrace.testing.source import MemorySource
from tests.cluster.cluster import Cluster, running_cluster

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ROWS = 10
WARM_JOBS = 150
QUICK_WARM_JOBS = 40
JOBS = 30
"""Of each kind, in a round."""

FILE_ROWS = 100_000
FILES = 20
QUICK_FILES = 6
"""Segments of a large batch."""

_KINDS = {
    "id": "int64",
    "customer_id": "int64",
    "product": "text",
    "qty": "int64",
    "price_cents": "int64",
    "status": "text",
    "card_number": "text",
    "placed_at": "text",
}
ORDERS = TableSchema(
    "orders",
    tuple(Column(name, ValueType(kind), at) for at, (name, kind) in enumerate(_KINDS.items(), 1)),
    ("id",),
)
"""The demo's table."""

_WANTED = (
    *("_op", "_commit", "_ordinal", "_time"),
    *(f"after.`{name}`" for name in ORDERS.names if name != "card_number"),
    "after.qty * after.price_cents as total_cents",
)
"""What is wanted of each row, by hand."""


def run(*, quick: bool) -> list[Result]:
    """Start a cluster, and run the same small batch by hand and by a pipeline, in turns."""
    folder = Path(tempfile.mkdtemp(prefix="headrace-bench-"))
    try:
        began = time.monotonic()
        with running_cluster(folder) as cluster:
            with _session(folder, cluster.conf) as spark:
                ours, floor = _jobs(spark, folder)
                ours()
                up = time.monotonic() - began
                small = _small_job(ours, floor, up, quick=quick)
            return [small, _scaling(cluster, folder, quick=quick)]
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _session(folder: Path, conf: Mapping[str, str]) -> Iterator[Spark]:
    spark = start_session(folder / "data", conf=conf)
    try:
        yield spark
    finally:
        spark.stop()


def _scaling(cluster: Cluster, folder: Path, *, quick: bool) -> Result:
    """Write a large batch from one executor, and from two; ours, and by hand, in turns."""
    paths = _large(folder, QUICK_FILES if quick else FILES)
    speeds: list[Rounds] = []
    for cores in (1, 2):
        with _session(folder, cluster.conf | {"spark.cores.max": str(cores)}) as spark:
            speeds.append(_written(spark, folder, paths, quick=quick))
    one, two = speeds
    rounds = Rounds(
        [faster / slower for faster, slower in zip(two.ours, one.ours, strict=True)],
        [faster / slower for faster, slower in zip(two.floor, one.floor, strict=True)],
    )
    what = "the same rows written by hand, from one executor and from two"
    found = rounds.result("cluster.scaling", "times", ratio_at_least(0.9), what)
    rates = [statistics.median(each.ours) for each in speeds]
    return replace(found, note=f"{rates[0]:,.0f} rows/s by one executor, {rates[1]:,.0f} by two")


def _written(spark: Spark, folder: Path, paths: Sequence[Path], *, quick: bool) -> Rounds:
    """Return how many rows a second executors write."""
    from pyspark.sql.pandas.types import from_arrow_schema

    pipeline, runner = _pipeline(), SparkRunner(spark)
    runner.prepare(pipeline, ORDERS, SourceTraits("test"))
    names = [str(path) for path in paths]
    rows = FILE_ROWS * len(paths)
    facts = BatchFacts.of(
        [_described(path) for path in paths], Position(1, 1), Position(1, FILE_ROWS)
    )
    out = folder / "written"
    reader = spark.bulk.read.schema(from_arrow_schema(ORDERS.segment))

    def write(frame: DataFrame) -> None:
        frame.write.mode("overwrite").parquet(str(out))

    def ours() -> None:
        runner.give(pipeline, [Part(ORDERS, tuple(names))], facts, lambda _: frozenset(), write)

    def by_hand() -> None:
        frame = reader.parquet(*names)
        write(frame.where("after.status <> 'cancelled'").selectExpr(*_WANTED))

    found = Rounds()
    for measured in (False, *([True] * (1 if quick else 3))):
        for job, figures in ((by_hand, found.floor), (ours, found.ours)):
            seconds = _milliseconds(job) / 1_000
            if measured:
                figures.append(rows / seconds)
    return found


def _large(folder: Path, count: int) -> list[Path]:
    """Write segments of many rows, all with the same."""
    changes = [Change(Op.INSERT, at, 0, at, None, _order(at)) for at in range(1, FILE_ROWS + 1)]
    data = segment_bytes(as_segment(ORDERS, changes))
    paths = [folder / f"large-{number}.parquet" for number in range(count)]
    for path in paths:
        path.write_bytes(data)
    return paths


def _described(path: Path) -> File:
    data = path.read_bytes()
    rows, _ = parquet_rows(data)
    return describe(path.name, ORDERS.table, 1, ORDERS, rows.cast(ORDERS.segment), data)


def _small_job(
    ours: Callable[[], int], floor: Callable[[], int], up: float, *, quick: bool
) -> Result:
    for _ in range(QUICK_WARM_JOBS if quick else WARM_JOBS):
        assert ours() == floor() > 0
    rounds = Rounds()
    for _ in range(1 if quick else 3):
        taken: tuple[list[float], list[float]] = ([], [])
        for _ in range(JOBS):
            taken[0].append(_milliseconds(floor))
            taken[1].append(_milliseconds(ours))
        rounds.floor.append(statistics.median(taken[0]))
        rounds.ours.append(statistics.median(taken[1]))
    one = "the same job by hand on the same cluster"
    found = rounds.result("cluster.small_job_ms", "ms", floor_plus(20), one)
    return replace(found, note=f"from nothing to the first job {up:.0f} s")


def _milliseconds(job: Callable[[], object]) -> float:
    began = time.perf_counter()
    job()
    return (time.perf_counter() - began) * 1_000


def _jobs(spark: Spark, folder: Path) -> tuple[Callable[[], int], Callable[[], int]]:
    """Return a batch of the demo's shape (a filter, a column more, one less), twice."""
    from pyspark.sql.pandas.types import from_arrow_schema

    changes = [Change(Op.INSERT, at, 0, at, None, _order(at)) for at in range(1, ROWS + 1)]
    segment = as_segment(ORDERS, changes)
    data = segment_bytes(segment)
    path = folder / "segment.parquet"
    path.write_bytes(data)
    facts = BatchFacts.of(
        [describe(path.name, ORDERS.table, 1, ORDERS, segment, data)],
        Position(1, 1),
        Position(1, ROWS),
    )

    pipeline, runner = _pipeline(), SparkRunner(spark)
    runner.prepare(pipeline, ORDERS, SourceTraits("test"))
    parts = [Part(ORDERS, (str(path),))]

    reader = spark.small.read.schema(from_arrow_schema(ORDERS.segment))

    def by_hand() -> int:
        frame = reader.parquet(str(path)).where("after.status <> 'cancelled'")
        frame = frame.selectExpr(*_WANTED)
        return int(frame.toArrow().num_rows)

    return lambda: runner.rows(pipeline, parts, facts).rows.num_rows, by_hand


def _pipeline() -> Pipeline:
    return Pipeline(
        MemorySource("bench"),
        ORDERS.table,
        memory(),
        filters=[where("status <> 'cancelled'")],
        transforms=[derive(total_cents="qty * price_cents"), drop("card_number")],
    )


def _order(at: int) -> dict[str, object]:
    given = (at, at % 7, "kettle", 2, 3_450, "paid" if at % 5 else "cancelled", "0000-0000", "")
    return dict(zip(ORDERS.names, given, strict=True))
