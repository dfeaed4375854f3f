"""
How old a change is when a table of Delta shows it: 1,000 changes a second, all over a large table.

A commit at the source is timed by its writer, right before it. Its rows can be read from the
moment on that the file of a commit of Delta lies in `_delta_log`; how far that one reaches is said
by its own statistics, so that nobody reads the table meanwhile.

The floor is one hand-written MERGE of the rows that a batch of the same round had, into a copy of
the table, taken when the round is over. A change waits for the batch before its own to end, half
of one on average, so twice the floor is little above what can be had by batches of this size.
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
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bench.freshness_writer import CHANGES
from bench.harness import Result, Rounds, ratio_at_most
from bench.session import delta_session
from headrace.capture.sqlite.source import sqlite
from headrace.control.engine import Engine
from headrace.pipeline.definition import Pipeline
from headrace.pipeline.lake.target import COMPACT_EVERY, table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headrace.pipeline.session import Spark

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


def run(*, quick: bool) -> list[Result]:
    """Measure with the compaction that is the default, with more of it, and without any."""
    size = QUICK if quick else FULL
    with delta_session() as (spark, folder):
        return [
            _measured("table.freshness.p50", COMPACT_EVERY, spark, folder / "compacted", size),
            _measured("table.freshness.compacted_often.p50", _OFTEN, spark, folder / "often", size),
            _measured("table.freshness.not_compacted.p50", 0, spark, folder / "plain", size),
        ]


def _measured(name: str, compact_every: int, spark: Spark, folder: Path, size: Size) -> Result:
    folder.mkdir()
    shop, lake = Shop(folder / "shop.db", size.rows), folder / "lake"
    kept = Pipeline(
        sqlite(shop.path),
        "orders",
        table(path=str(lake), mode="merge", compact_every=compact_every),
        name="orders",
    )
    rounds, seconds = Rounds(), size.seconds / size.rounds
    late: list[float] = []
    judged: list[Seen] = []
    with Engine(kept, data=folder / "data", spark=spark.session) as engine:
        assert engine.await_ready(PATIENCE)
        shutil.copytree(lake, folder / "by-hand")
        hand = ByHand(spark.session.newSession(), folder / "by-hand")
        with Watch(lake) as watch:
            for number in range(size.rounds + 1):
                stamps, seen = shop.work(seconds / 2 if number == 0 else seconds, watch)
                batch = int(statistics.median(each.rows for each in seen if each.rows))
                took = hand.merge(shop.newest(batch))
                if number:  # the first one compiles, on both sides
                    found = _late(stamps, seen)
                    late += found
                    rounds.ours.append(statistics.median(found))
                    rounds.floor.append(took)
                    judged += seen
        shop.check(spark, lake)
    files = spark.session.sql(f"DESCRIBE DETAIL delta.`{lake}`").collect()[0].numFiles
    by_hand = "one hand-written MERGE of a batch's rows"
    batches = [each.rows for each in judged if each.rows]
    compactions = sum(each.operation == "OPTIMIZE" for each in judged)
    return replace(
        rounds.result(name, "ms", ratio_at_most(2), by_hand),
        note=f"{RATE:,} changes a second over {size.rows:,} rows;"
        f" p99 {np.quantile(late, 0.99):,.0f};"
        f" {60 * len(batches) / size.seconds:.0f} batches a minute, of"
        f" {statistics.median(batches):,.0f} rows; {files} files at the end,"
        f" compact_every={compact_every}, {compactions} compactions meanwhile",
        seed=_SEED,
    )


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

    def __init__(self, lake: Path) -> None:
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
        reach = 0
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
        self._commits = 0
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

    def work(self, seconds: float, watch: Watch) -> tuple[dict[int, float], list[Seen]]:
        """Change rows for so long; return when each commit was, and what was seen of them."""
        first, count = self._commits + 1, int(seconds * RATE / CHANGES)
        self._commits += count
        arguments = [
            str(self.path),
            str(RATE / CHANGES),
            str(count),
            str(first),
            str(_SEED + first),
        ]
        done = subprocess.run(
            [sys.executable, "-m", "bench.freshness_writer", *arguments],
            check=True,
            capture_output=True,
            cwd=Path(__file__).parents[1],
        )
        seen = watch.until(self._commits)
        return dict(zip(range(first, first + count), json.loads(done.stdout), strict=True)), seen

    def newest(self, count: int) -> pa.Table:
        """Return the rows that were changed last."""
        rows = self._app.execute(
            f"select {', '.join(_NAMES)} from orders order by batch desc limit ?", (count,)
        ).fetchall()
        return pa.table(dict(zip(_NAMES, map(list, zip(*rows, strict=True)), strict=True)))

    def check(self, spark: Spark, lake: Path) -> None:
        """Compare what readers see with what the source says."""
        asked = "select count(*), sum(id), sum(batch), sum(id * batch) from"
        (found,) = spark.bulk.sql(f"{asked} delta.`{lake}`").collect()
        truth = self._app.execute(f"{asked} orders").fetchone()
        assert tuple(found) == truth, f"the table has {tuple(found)}, the source {truth}"
