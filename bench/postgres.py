"""
Capture from PostgreSQL: against pg_recvlogical, COPY and JDBC, and its own limits.

`python -m bench.postgres --trial 10000 --case drains` tries a case with few rows; what it
prints says whether the case works, not how fast anything is.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
from collections.abc import Collection
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from bench import (
    jdbc,
    postgres_baseline,
    postgres_decoder,
    postgres_drains,
    postgres_latency,
    postgres_memory,
    postgres_toast,
)
from bench.harness import NOISY_FLOOR_MS, Result, show
from bench.postgres_drains import TABLE, Backlog
from bench.postgres_table import TRANSPORTS, Server, running_server
from bench.spine import QUICK_WARM_JOBS, WARM_JOBS, OneJob
from headrace.spark_session.session import Spark, start_session

CASES = ("drains", "decoder", "baseline", "latency", "memory", "toast")
NEED_SPARK = {"drains", "baseline", "latency"}
EACH = (100, 1)
"""Rows in a transaction, of each backlog."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is done."""

    rows: int
    large: int
    rounds: int
    warm_jobs: int
    latency_seconds: float


FULL = Sizes(1_000_000, 5_000_000, 3, WARM_JOBS, 15)
QUICK = Sizes(300_000, 500_000, 1, QUICK_WARM_JOBS, 10)


def trial(rows: int) -> Sizes:
    """Return sizes for finding out whether a case works."""
    return Sizes(rows, 5 * rows, 1, 5, 2)


def run(*, quick: bool) -> tuple[list[Result], bool]:
    """Measure everything; also return whether the machine was noisy."""
    return measure(QUICK if quick else FULL, CASES, "tcp")


def measure(sizes: Sizes, cases: Collection[str], transport: str) -> tuple[list[Result], bool]:
    """Measure some cases over one transport."""
    with ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="headrace-bench-"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        server = stack.enter_context(running_server(transport))
        results: list[Result] = []
        if "memory" in cases:
            results += postgres_memory.run(server, folder, rows=sizes.large)
            server.drop_slots()
            server.execute(f"drop table {postgres_memory.TABLE}")
        if "toast" in cases:
            results += postgres_toast.run(server, folder, updates=sizes.rows // 10)
            server.drop_slots()
            server.execute(f"drop table {postgres_toast.TABLE}")
        if not NEED_SPARK & set(cases):
            return results + _backlogs(server, None, folder, sizes, cases), False
        driver = jdbc.driver() if "baseline" in cases else "not asked for"
        conf = {"spark.jars": str(driver)} if isinstance(driver, Path) else {}
        spark = start_session(folder / "spark", conf=conf)
        stack.callback(spark.stop)
        floor = OneJob(spark, folder)
        floor.warm(sizes.warm_jobs)
        floor.milliseconds()
        results += _backlogs(server, spark, folder, sizes, cases)
        if "baseline" in cases:
            server.create(TABLE)
            server.fill(TABLE, sizes.rows, sizes.rows)
            results += postgres_baseline.run(
                server, TABLE, spark, folder, driver, rounds=sizes.rounds
            )
            server.drop_slots()
        if "latency" in cases:
            results += postgres_latency.run(
                server, spark, folder, floor, rounds=sizes.rounds, seconds=sizes.latency_seconds
            )
        return results, statistics.median(floor.seen) > NOISY_FLOOR_MS


def _backlogs(
    server: Server, spark: Spark | None, folder: Path, sizes: Sizes, cases: Collection[str]
) -> list[Result]:
    """Write each backlog once, for all who read it."""
    found: list[Result] = []
    drained = spark is not None and "drains" in cases
    if not drained and "decoder" not in cases:
        return found
    for each in EACH:
        name = f"{server.transport}.{each}_row{'s' if each > 1 else ''}"
        # Spark's first large jobs compile code for all that follow.
        warm = 1 if each == EACH[0] else 0
        backlog = Backlog(
            server,
            folder / f"backlog-{each}",
            rows=sizes.rows,
            each=each,
            drains=sizes.rounds + warm if drained else 0,
        )
        if "decoder" in cases:
            found += postgres_decoder.run(backlog, folder, name, rounds=sizes.rounds)
        if drained and spark is not None:
            found += postgres_drains.run(backlog, spark, name, rounds=sizes.rounds, warm=warm)
        backlog.close()
    return found


def main() -> int:
    """Try some cases with few rows."""
    parser = argparse.ArgumentParser(prog="bench.postgres")
    parser.add_argument("--trial", type=int, default=10_000, metavar="ROWS")
    parser.add_argument("--case", choices=CASES, action="append", help="all, if none is named")
    parser.add_argument("--transport", choices=TRANSPORTS, default="tcp")
    asked = parser.parse_args()
    results, noisy = measure(trial(asked.trial), asked.case or CASES, asked.transport)
    print(f"A trial with {asked.trial:,} rows: these are no figures.")
    show(results, noisy=noisy)
    for result in results:
        print(f"{result.name}: {'; '.join(filter(None, (result.floor_is, result.note)))}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
