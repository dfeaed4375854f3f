"""
A small batch on a real cluster: master, two workers and their executors, all on this machine.

What a remote executor costs is Spark's and stands in the floor: the same scan, filter and
expressions over the same segment, written by hand, in turns with ours on the same cluster.
"""

from __future__ import annotations

import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from bench.harness import Result, Rounds, floor_plus
from headrace.capture.source import SourceTraits
from headrace.changelog.change import Change, Op, as_segment
from headrace.changelog.position import Position
from headrace.changelog.schema import Column, TableSchema
from headrace.changelog.segment import describe, segment_bytes
from headrace.changelog.values import ValueType
from headrace.pipeline.batch import BatchFacts, Part
from headrace.pipeline.definition import Pipeline
from headrace.pipeline.runner import SparkRunner
from headrace.pipeline.session import Spark, start_session
from headrace.pipeline.steps import derive, drop, where
from headrace.targets.memory import memory
from headrace.testing.source import MemorySource
from tests.cluster.cluster import running_cluster

ROWS = 10
WARM_JOBS = 150
QUICK_WARM_JOBS = 40
JOBS = 30
"""Of each kind, in a round."""

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


def run(*, quick: bool) -> list[Result]:
    """Start a cluster, and run the same small batch by hand and by a pipeline, in turns."""
    folder = Path(tempfile.mkdtemp(prefix="headrace-bench-"))
    try:
        began = time.monotonic()
        with running_cluster(folder) as cluster:
            spark = start_session(folder / "data", conf=cluster.conf)
            try:
                ours, floor = _jobs(spark, folder)
                ours()
                up = time.monotonic() - began
                return [_small_job(ours, floor, up, quick=quick)]
            finally:
                spark.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


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


def _milliseconds(job: Callable[[], int]) -> float:
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

    pipeline = Pipeline(
        MemorySource("bench"),
        ORDERS.table,
        memory(),
        filters=[where("status <> 'cancelled'")],
        transforms=[derive(total_cents="qty * price_cents"), drop("card_number")],
    )
    runner = SparkRunner(spark)
    runner.prepare(pipeline, ORDERS, SourceTraits("test"))
    parts = [Part(ORDERS, (str(path),))]

    reader = spark.small.read.schema(from_arrow_schema(ORDERS.segment))
    wanted = ["_op", "_commit", "_ordinal", "_time"]
    wanted += [f"after.`{name}`" for name in ORDERS.names if name != "card_number"]
    wanted.append("after.qty * after.price_cents as total_cents")

    def by_hand() -> int:
        frame = reader.parquet(str(path)).where("after.status <> 'cancelled'").selectExpr(*wanted)
        return int(frame.toArrow().num_rows)

    return lambda: runner.rows(pipeline, parts, facts).rows.num_rows, by_hand


def _order(at: int) -> dict[str, object]:
    given = (at, at % 7, "kettle", 2, 3_450, "paid" if at % 5 else "cancelled", "0000-0000", "")
    return dict(zip(ORDERS.names, given, strict=True))
