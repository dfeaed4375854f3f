"""
Batches on a real cluster: master, two workers and their executors, all on this machine.

A small one, and a large baseline that executors prepare for a Delta table, on one executor and on
two. What a remote executor costs is Spark's and stands in the floor: the same scan, filter and
expressions over the same segments, written by hand, in turns with ours on the same cluster.
"""

from __future__ import annotations

import itertools
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from bench.harness import Result, Rounds, floor_plus, ratio_at_least
from headrace.capture.source import SourceTraits
from headrace.changelog.change import Change, Op, as_segment
from headrace.changelog.position import ORIGIN, Position
from headrace.changelog.schema import Column, TableSchema
from headrace.changelog.segment import describe, segment_bytes
from headrace.changelog.values import ValueType
from headrace.lake.formats import DELTA, needs
from headrace.lake.target import table
from headrace.pipeline.batch import BatchFacts, SegmentGroup
from headrace.pipeline.definition import Pipeline
from headrace.pipeline.runner import SparkRunner
from headrace.pipeline.steps import derive, drop, where
from headrace.spark_session.session import Spark, start_session
from headrace.storage.disk import RealDisk
from headrace.storage.files import Files
from headrace.targets.memory import memory
from headrace.targets.target import StagesRows, Target, TargetContext
from headrace.testing.source import MemorySource
from tests.cluster.cluster import Cluster, packed, running_cluster

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

_WANTED_ROW = (
    *(f"after.`{name}`" for name in ORDERS.names if name != "card_number"),
    "after.qty * after.price_cents as total_cents",
)
"""What is wanted of each row, by hand."""

_WANTED = ("_op", "_commit", "_ordinal", "_time", *_WANTED_ROW)
"""The same of each change."""


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
    """Load a large baseline into a table by one executor, and by two; ours, and by hand."""
    paths = _large(folder, QUICK_FILES if quick else FILES)
    # What executors prepare for a table, they prepare with Headrace.
    conf = cluster.conf_with(packed(folder / "environment.tar.gz")) | needs(DELTA)
    speeds: list[Rounds] = []
    for cores in (1, 2):
        with _session(folder, conf | {"spark.cores.max": str(cores)}) as spark:
            speeds.append(_loads(spark, folder / f"by-{cores}", paths, quick=quick))
            assert spark.executors() == (cores, cores), "not the executors that were asked for"
    one, two = speeds
    rounds = Rounds(
        [faster / slower for faster, slower in zip(two.ours, one.ours, strict=True)],
        [faster / slower for faster, slower in zip(two.floor, one.floor, strict=True)],
    )
    what = "the same rows written to a Delta table by hand, from one executor and from two"
    found = rounds.result("cluster.scaling", "times", ratio_at_least(0.9), what)
    rates = [statistics.median(each.ours) for each in speeds]
    by_hand = [statistics.median(each.floor) for each in speeds]
    return replace(
        found,
        note=f"{FILE_ROWS * len(paths):,} rows of a baseline into a Delta table:"
        f" {rates[0]:,.0f} rows/s by one executor of one core, {rates[1]:,.0f} by two;"
        f" by hand {by_hand[0]:,.0f} and {by_hand[1]:,.0f}. All on one machine: driver, master,"
        f" workers and Python share {os.cpu_count()} cores with the executors",
    )


def _loads(spark: Spark, folder: Path, paths: Sequence[Path], *, quick: bool) -> Rounds:
    """Return how many rows a second become a table, from segments to the commit."""
    from pyspark.sql.pandas.types import from_arrow_schema

    data = folder / "data"
    data.mkdir(parents=True)
    target = table(path=str(folder / "table"), staged_from=1, compact_every=0)
    pipeline, runner = _pipeline(target), SparkRunner(spark)
    prepared = runner.prepare(pipeline, SourceTraits("test"))
    schema = prepared.output(ORDERS)
    target.use(TargetContext(lambda: spark, "bench", Files(RealDisk(), str(data)), time.time))
    target.check({ORDERS.table: schema})
    target.open({ORDERS.table: schema}, {ORDERS.table: ORIGIN})
    names = tuple(str(path) for path in paths)
    part = SegmentGroup(ORDERS, names, (FILE_ROWS,) * len(names))
    rows = sum(part.row_counts)
    reader = spark.bulk.read.schema(from_arrow_schema(ORDERS.segment))
    numbers = itertools.count(1)

    def ours() -> None:
        number = next(numbers)
        loading = target.load(ORDERS.table, number)
        assert isinstance(loading, StagesRows)
        assert prepared.give_baseline(part, loading.stage) == ()
        loading.switch(Position(1, number))

    def by_hand() -> None:
        frame = reader.parquet(*names).where("after.status <> 'cancelled'")
        frame = frame.selectExpr(*_WANTED_ROW)
        frame.write.format("delta").mode("overwrite").save(str(folder / "by-hand"))

    found = Rounds()
    for measured in (False, *([True] * (1 if quick else 3))):
        for job, figures in ((by_hand, found.floor), (ours, found.ours)):
            seconds = _milliseconds(job) / 1_000
            if measured:
                figures.append(rows / seconds)
    read = spark.bulk.read.format("delta")
    counts = {read.load(str(folder / name)).count() for name in ("table", "by-hand")}
    assert counts == {rows * 4 // 5}, "rows are missing"
    return found


def _large(folder: Path, count: int) -> list[Path]:
    """Write segments of many rows, each with keys of its own."""
    changes = [Change(Op.INSERT, at, 0, at, None, _order(at)) for at in range(1, FILE_ROWS + 1)]
    segment = as_segment(ORDERS, changes)
    place = segment.schema.get_field_index("after")
    first = segment.column(place).combine_chunks()
    paths = [folder / f"large-{number}.parquet" for number in range(count)]
    for number, path in enumerate(paths):
        ids, *others = first.flatten()
        rows = pa.StructArray.from_arrays(
            [pc.add(ids, number * FILE_ROWS), *others], fields=list(ORDERS.arrow)
        )
        own = segment.set_column(place, segment.schema.field(place), rows)
        path.write_bytes(segment_bytes(own))
    return paths


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

    pipeline, runner = _pipeline(memory()), SparkRunner(spark)
    prepared = runner.prepare(pipeline, SourceTraits("test"))
    prepared.output(ORDERS)
    parts = [SegmentGroup(ORDERS, (str(path),))]

    reader = spark.small.read.schema(from_arrow_schema(ORDERS.segment))

    def by_hand() -> int:
        frame = reader.parquet(str(path)).where("after.status <> 'cancelled'")
        frame = frame.selectExpr(*_WANTED)
        return int(frame.toArrow().num_rows)

    return lambda: prepared.rows(parts, facts).rows.num_rows, by_hand


def _pipeline(target: Target) -> Pipeline:
    return Pipeline(
        MemorySource("bench"),
        ORDERS.table,
        target,
        filters=[where("status <> 'cancelled'")],
        transforms=[derive(total_cents="qty * price_cents"), drop("card_number")],
    )


def _order(at: int) -> dict[str, object]:
    given = (at, at % 7, "kettle", 2, 3_450, "paid" if at % 5 else "cancelled", "0000-0000", "")
    return dict(zip(ORDERS.names, given, strict=True))
