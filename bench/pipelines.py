"""
Ten pipelines on one source: from a commit to the last of their readers, and at rest.

The floor is ten plain Spark jobs of the same shape, started at once from ten threads: what
the machine needs when nobody stands in between.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import statistics
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from bench.harness import Result, Rounds, at_most
from bench.processes import cpu_seconds, family
from headrace.capture.sqlite.source import sqlite
from headrace.engine.engine import Engine
from headrace.pipeline.definition import Pipeline
from headrace.pipeline.steps import where
from headrace.spark_session.session import Spark
from headrace.targets.memory import IndexedMemory, memory

PIPELINES = 10
PATIENCE = 60.0


def run(spark: Spark, folder: Path, plain: Callable[[], object], *, quick: bool) -> list[Result]:
    """Measure ten at work and ten at rest; `plain` runs one plain job."""
    folder.mkdir()
    path = folder / "shop.db"
    with contextlib.closing(sqlite3.connect(path)) as database:
        database.execute("pragma journal_mode = wal")
        database.execute(
            "create table orders (id integer primary key, customer_id integer, status text,"
            " qty integer, stamp real)"
        )
    source = sqlite(path)
    targets = [memory() for _ in range(PIPELINES)]
    engine = Engine(
        *(
            Pipeline(source, "orders", target, name=f"p{at}", filters=[where(f"qty > {-at}")])
            for at, target in enumerate(targets)
        ),
        data=folder / "data",
        spark=spark.session,
    )
    rounds = Rounds()
    commits = 5 if quick else 15
    with engine, contextlib.closing(sqlite3.connect(path, isolation_level=None)) as database:
        assert engine.await_ready(PATIENCE)
        writer = _Writer(database, targets)
        for _ in range(3 * commits):
            writer.all_done()  # warm
        for _ in range(1 if quick else 3):
            rounds.floor.append(statistics.median(_at_once(plain) for _ in range(commits)))
            rounds.ours.append(statistics.median(writer.all_done() for _ in range(commits)))
        assert all(target.count() == writer.rows for target in targets)
        idle = _idle_cpu(15 if quick else 60)
    return [
        rounds.result(
            "spine.ten_pipelines.all_done", "ms", None, "ten plain jobs from ten threads"
        ),
        Result(
            "spine.ten_pipelines.idle_cpu_percent",
            idle,
            "% of a core",
            goal=at_most(3),
            note="engine, recorder and JVM together, nothing changing",
        ),
    ]


class _Writer:
    """Writes one commit at a time, and waits until all targets have it."""

    def __init__(self, database: sqlite3.Connection, targets: list[IndexedMemory]) -> None:
        self._database = database
        self._left = threading.Semaphore(0)
        self._targets = targets
        self.rows = 0
        for target in targets:
            target.listen(lambda old, new: self._left.release())

    def all_done(self) -> float:
        """Commit one row; return the milliseconds until the last reader has it."""
        self.rows += 1
        began = time.perf_counter()
        self._database.execute(
            "insert into orders values (?, ?, 'paid', 3, ?)",
            (self.rows, self.rows % 50, time.time()),
        )
        for _ in self._targets:
            assert self._left.acquire(timeout=PATIENCE), "a pipeline did not get the row"
        return (time.perf_counter() - began) * 1_000


def _at_once(plain: Callable[[], object]) -> float:
    """Return the milliseconds that ten plain jobs take, started together."""
    with ThreadPoolExecutor(PIPELINES) as pool:
        began = time.perf_counter()
        for job in [pool.submit(plain) for _ in range(PIPELINES)]:
            job.result()
        return (time.perf_counter() - began) * 1_000


def _idle_cpu(seconds: float) -> float:
    ours = family(os.getpid())
    before = cpu_seconds(ours)
    threading.Event().wait(seconds)
    return 100 * (cpu_seconds(ours) - before) / seconds
