"""
How old a change is when a table of Delta shows it: 1,000 changes a second, on a large table.

A commit at the source is timed by its writer, right before it. Its rows can be read from the
moment on that the file of a commit of Delta lies in `_delta_log`; how far that one reaches is said
by its own statistics, so that nobody reads the table meanwhile.

The floor is one hand-written MERGE of the rows that a batch of the same round had, into a copy of
the table, taken when the round is over. A change waits for the batch before its own to end, half
of one on average, so twice the floor is little above what can be had by batches of this size.

What compaction is worth depends on what changes. Updates all over a table make a MERGE write all
of its files anew, and there are never many. Rows that are only added leave a file for every batch:
there freshness is paid for by those who read. Both are measured, compacted by default, often and
never, in turn: a round of each before the next of any, so that none has a warmer JVM.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bench.freshness_writer import CHANGES, UPDATES
from bench.harness import Goal, Result, Rounds, ratio_at_most
from bench.session import delta_session
from headrace.capture.sqlite.source import sqlite
from headrace.engine.engine import Engine
from headrace.lake.target import COMPACT_EVERY, table
from headrace.pipeline.definition import Pipeline

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headrace.spark_session.session import Spark

RATE = 1_000
"""Changes a second."""

_OFTEN = 5
"""Commits, so that several compactions fall into a run; the default's first may come after it."""

PATIENCE = 600.0
_LOOK_SECONDS = 0.005
_SEED = 11
_NAMES = ("id", "customer", "status", "total", "note", "batch")


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured."""

    rows: int
    seconds: float
    """Of all rounds together, without the one that warms."""

    rounds: int


FULL, QUICK = Size(1_000_000, 60, 3), Size(100_000, 20, 2)


@dataclass(frozen=True, slots=True)
class Case:
    """What is changed, and how often small files are made few."""

    name: str
    compact_every: int
    updates: int
    """Rows of a commit that were there before; the others are added."""

    goal: Goal | None = None


_CASES = (
    Case("table.freshness.p50", COMPACT_EVERY, UPDATES, ratio_at_most(2)),
    Case("table.freshness.compacted_often.p50", _OFTEN, UPDATES, ratio_at_most(2)),
    Case("table.freshness.not_compacted.p50", 0, UPDATES, ratio_at_most(2)),
    Case("table.freshness.added.p50", COMPACT_EVERY, 0),
    Case("table.freshness.added.compacted_often.p50", _OFTEN, 0),
    Case("table.freshness.added.not_compacted.p50", 0, 0),
)


def run(*, quick: bool) -> list[Result]:
    """Measure all cases, a round of each in turn."""
    size = QUICK if quick else FULL
    with delta_session() as (spark, folder):
        measured = [Measured(case, spark, folder / str(at), size) for at, case in enumerate(_CASES)]
        for number in range(size.rounds + 1):
            for each in measured:
                each.round(warming=number == 0)  # which compiles, on both sides
        return [each.result() for each in measured]


class Measured:
    """A table, its source, and what was seen of it so far."""

    def __init__(self, case: Case, spark: Spark, folder: Path, size: Size) -> None:
        self._case, self._spark, self._folder, self._size = case, spark, folder, size
        folder.mkdir()
        self._shop = Shop(folder / "shop.db", size.rows)
        self._lake = folder / "lake"
        self._rounds = Rounds()
        self._late: list[float] = []
        self._seen: list[Seen] = []
        with self._engine():
            shutil.copytree(self._lake, folder / "by-hand")
        self._hand = ByHand(spark.session.newSession(), folder / "by-hand")

    def round(self, *, warming: bool) -> None:
        """Change rows for a while, and see when they are there."""
        seconds = self._size.seconds / self._size.rounds
        with self._engine(), Watch(self._lake, self._shop.commits) as watch:
            for_so_long = seconds / 2 if warming else seconds
            stamps, seen = self._shop.work(for_so_long, watch, self._case.updates)
        batch = int(statistics.median(each.rows for each in seen if each.rows))
        took = self._hand.merge(self._shop.newest(batch))
        if not warming:
            found = _late(stamps, seen)
            self._late += found
            self._seen += seen
            self._rounds.ours.append(statistics.median(found))
            self._rounds.floor.append(took)

    def result(self) -> Result:
        """Compare the table with its source, and return the figures."""
        case, size, session = self._case, self._size, self._spark.session
        reading = self._shop.check(self._spark, self._lake)
        files = session.sql(f"DESCRIBE DETAIL delta.`{self._lake}`").collect()[0].numFiles
        batches = [each.rows for each in self._seen if each.rows]
        compactions = sum(each.operation == "OPTIMIZE" for each in self._seen)
        by_hand = "one hand-written MERGE of a batch's rows"
        what = "changes" if case.updates else "new rows"
        return replace(
            self._rounds.result(case.name, "ms", case.goal, by_hand),
            note=f"{RATE:,} {what} a second, {size.rows:,} rows;"
            f" p99 {np.quantile(self._late, 0.99):,.0f};"
            f" {60 * len(batches) / size.seconds:.0f} batches a minute, of"
            f" {statistics.median(batches):,.0f} rows; compact_every={case.compact_every}:"
            f" {compactions} compactions, {files} files at the end, read in {reading:,.0f} ms",
            seed=_SEED,
        )

    @contextmanager
    def _engine(self) -> Iterator[None]:
        every = self._case.compact_every
        target = table(path=str(self._lake), mode="merge", compact_every=every)
        kept = Pipeline(sqlite(self._shop.path), "orders", target, name="orders")
        with Engine(kept, data=self._folder / "data", spark=self._spark.session) as engine:
            assert engine.await_ready(PATIENCE)
            yield


@dataclass(frozen=True, slots=True)
class Seen:
    """A commit of Delta."""

    at: float
    """When it was there, in seconds since 1970."""

    operation: str
    rows: int
    """That a MERGE was given; 0 where it is none."""

    reach: int
    """The last commit of the source that it shows."""


class Watch:
    """Sees the commits of a table as they come."""

    def __init__(self, lake: Path, reach: int) -> None:
        self._reach = reach
        self._log = lake / "_delta_log"
        self._next = len(list(self._log.glob("*.json")))
        self._seen: list[Seen] = []
        self._news = threading.Condition()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def until(self, reach: int) -> list[Seen]:
        """Return what came since it was asked last, when it reaches so far."""
        with self._news:
            assert self._news.wait_for(
                lambda: self._seen and self._seen[-1].reach >= reach, PATIENCE
            ), "the table did not come so far"
            found, self._seen = self._seen, []
            return found

    def _look(self) -> None:
        reach = self._reach
        while not self._stop.wait(_LOOK_SECONDS):
            path = self._log / f"{self._next:020d}.json"
            if not path.exists():
                continue
            now = time.time()
            seen = _commit(path, now, reach)
            reach, self._next = seen.reach, self._next + 1
            with self._news:
                self._seen.append(seen)
                self._news.notify_all()


def _commit(path: Path, now: float, reach: int) -> Seen:
    told: dict[str, Any] = {}
    for line in path.read_text().splitlines():
        action = json.loads(line)
        told |= action.get("commitInfo", {})
        most = json.loads(action.get("add", {}).get("stats") or "{}").get("maxValues", {})
        reach = max(reach, int(most.get("batch") or 0))
    rows = int(told.get("operationMetrics", {}).get("numSourceRows", 0))
    return Seen(now, str(told["operation"]), rows, reach)


def _late(stamps: dict[int, float], seen: Sequence[Seen]) -> list[float]:
    """Return how late each commit of the source was there, in milliseconds."""
    numbers = np.array(list(stamps))
    first = np.searchsorted([each.reach for each in seen], numbers)
    shown = np.array([each.at for each in seen])[first]
    late = (shown - np.array(list(stamps.values()))) * 1_000
    # The first fifth warms the path; it is not judged.
    found: list[float] = late[len(late) // 5 :].tolist()
    return found


class ByHand:
    """A copy of the table, and who merges into it by hand."""

    def __init__(self, session: SparkSession, lake: Path) -> None:
        self._session = session
        self._lake = lake

    def merge(self, rows: pa.Table) -> float:
        """Merge rows; return the milliseconds that took."""
        staged = self._lake.with_suffix(".parquet")
        pq.write_table(rows, staged)
        began = time.perf_counter()
        self._session.read.parquet(str(staged)).createOrReplaceTempView("batch")
        self._session.sql(
            f"MERGE INTO delta.`{self._lake}` AS t USING batch AS s ON t.id = s.id"
            " WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
        ).collect()
        return (time.perf_counter() - began) * 1_000


class Shop:
    """A database with a large table, and how it is changed."""

    def __init__(self, path: Path, rows: int) -> None:
        self.path = path
        self.commits = 0
        self._app = sqlite3.connect(path, isolation_level=None, timeout=60)
        self._app.execute("pragma journal_mode = wal")
        self._app.execute("pragma synchronous = normal")
        self._app.execute(
            "create table orders (id integer primary key, customer integer, status text,"
            " total real, note text, batch integer)"
        )
        self._app.execute("begin")
        self._app.executemany(
            "insert into orders values (?, ?, 'new', ?, ?, 0)",
            ((key, key % 1000, key / 100, f"order {key}") for key in range(1, rows + 1)),
        )
        self._app.execute("commit")

    def work(
        self, seconds: float, watch: Watch, updates: int
    ) -> tuple[dict[int, float], list[Seen]]:
        """Change rows for so long; return when each commit was, and what was seen of them."""
        first, count = self.commits + 1, int(seconds * RATE / CHANGES)
        self.commits += count
        arguments = [
            str(self.path),
            str(RATE / CHANGES),
            str(count),
            str(first),
            str(_SEED + first),
            str(updates),
        ]
        done = subprocess.run(
            [sys.executable, "-m", "bench.freshness_writer", *arguments],
            check=True,
            capture_output=True,
            cwd=Path(__file__).parents[1],
        )
        seen = watch.until(self.commits)
        return dict(zip(range(first, first + count), json.loads(done.stdout), strict=True)), seen

    def newest(self, count: int) -> pa.Table:
        """Return the rows that were changed last."""
        rows = self._app.execute(
            f"select {', '.join(_NAMES)} from orders order by batch desc limit ?", (count,)
        ).fetchall()
        return pa.table(dict(zip(_NAMES, map(list, zip(*rows, strict=True)), strict=True)))

    def check(self, spark: Spark, lake: Path) -> float:
        """Compare what readers see with the source; return the milliseconds that they read."""
        asked = "select count(*), sum(id), sum(batch), sum(id * batch) from"
        times = []
        for _ in range(3):
            began = time.perf_counter()
            (found,) = spark.bulk.sql(f"{asked} delta.`{lake}`").collect()
            times.append((time.perf_counter() - began) * 1_000)
        truth = self._app.execute(f"{asked} orders").fetchone()
        assert tuple(found) == truth, f"the table has {tuple(found)}, the source {truth}"
        return statistics.median(times)
