"""
A table copied into the log by Spark's tasks, against COPY alone and against Spark's own way.

The floor is a binary COPY to /dev/null by as many connections, each with its share of the
table's pages. Spark's own way is `spark.read.jdbc` into Parquet, with as many partitions as
ours has parts.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pyarrow.parquet as pq

from bench.harness import Result, Rounds, ratio_at_least
from bench.postgres_recorder import PATIENCE, Recorded
from bench.postgres_table import Details, Server, after_images, sums_of_columns
from headrace.pipeline.runner import SparkRunner
from headrace.spark_session.session import Spark

FETCH_ROWS = 10_000
"""By itself the JDBC driver would read a whole partition into memory before the first row."""


def run(
    server: Server, table: str, spark: Spark, folder: Path, jdbc: Path | str, *, rounds: int
) -> list[Result]:
    """Copy `table` in all three ways, in turns; `jdbc` is the driver, or why there is none."""
    truth = server.truth(table)
    rows = truth.sums.rows
    connections = spark.session.sparkContext.defaultParallelism
    copies, others = Rounds(), Rounds()
    with Recorded(server.dsn, table, folder / "baseline", runner=SparkRunner(spark)) as recorded:
        recorded.await_streaming()
        recorded.copy()  # starts the workers

        def ours() -> None:
            rate = rows / recorded.copy()
            copies.ours.append(rate)
            others.ours.append(rate)
            found = sums_of_columns(map(after_images, recorded.baseline()))
            assert found == truth, f"the baseline has {found}, SQL {truth}"

        def floor() -> None:
            copies.floor.append(rows / _plain(server, table, connections))

        def other() -> None:
            if isinstance(jdbc, Path):
                parts = max(recorded.planned, connections)
                seconds = _jdbc(server, table, spark, folder / "jdbc", parts, truth)
                others.floor.append(rows / seconds)

        other()  # compiles
        others.floor.clear()
        steps: list[Callable[[], None]] = [floor, ours, other]
        for number in range(rounds):
            for step in steps if number % 2 == 0 else reversed(steps):
                step()
        parts = recorded.planned
    how = f"{parts} parts on Spark" if parts else "small: not cut into parts, no Spark"
    return judged(copies, others, f"{server.transport}; {rows:,} rows, {how}", connections, jdbc)


def judged(
    copies: Rounds, others: Rounds, note: str, connections: int, jdbc: Path | str
) -> list[Result]:
    """Return both figures; without a driver, the second has no floor and is not judged."""
    plain = f"binary COPY to /dev/null, {connections} connections"
    ratio = copies.result("pg.baseline.ratio", "rows/s", ratio_at_least(0.4), plain)
    name = "pg.baseline.vs_jdbc"
    if isinstance(jdbc, Path):
        reading = "spark.read.jdbc into Parquet, as many partitions"
        versus = others.result(name, "rows/s", ratio_at_least(1.5), reading)
        versus = replace(versus, note=note)
    else:
        versus = others.result(name, "rows/s (no JDBC driver)", None, "")
        versus = replace(versus, note=f"not compared: {jdbc}")
    return [replace(ratio, note=note), versus]


def _plain(server: Server, table: str, connections: int) -> float:
    """Copy the table to nowhere; return the seconds until the last connection is done."""
    pages = server.value(f"select pg_relation_size('{table}') / current_setting('block_size')::int")
    bounds = [pages * at // connections for at in range(connections)] + [pages]
    began = time.perf_counter()
    running = []
    for start, stop in pairwise(bounds):
        query = f"select * from {table} where ctid >= '({start},0)' and ctid < '({stop},0)'"
        running.append(
            subprocess.Popen(
                [
                    *(str(server.server.binaries / "psql"), server.dsn, "--no-psqlrc"),
                    *("-c", "set max_parallel_workers_per_gather = 0"),
                    *("-c", f"copy ({query}) to stdout (format binary)"),
                ],
                stdout=subprocess.DEVNULL,
            )
        )
    for process in running:
        assert process.wait(PATIENCE) == 0
    return time.perf_counter() - began


def _jdbc(
    server: Server, table: str, spark: Spark, path: Path, partitions: int, truth: Details
) -> float:
    """Copy the table as Spark does it without us; return the seconds it took."""
    began = time.perf_counter()
    frame = spark.bulk.read.jdbc(
        # The driver speaks TCP only.
        f"jdbc:postgresql://127.0.0.1:{server.server.port}/postgres",
        table,
        column="id",
        lowerBound=1,
        upperBound=truth.sums.rows + 1,
        numPartitions=partitions,
        properties={
            "user": "postgres",
            "driver": "org.postgresql.Driver",
            "fetchsize": str(FETCH_ROWS),
        },
    )
    frame.write.mode("overwrite").parquet(str(path))
    took = time.perf_counter() - began
    found = sums_of_columns(pq.read_table(part) for part in sorted(path.glob("*.parquet")))
    assert found == truth, f"JDBC gave {found}, SQL {truth}"
    return took
