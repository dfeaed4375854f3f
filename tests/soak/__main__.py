"""
`python -m tests.soak --minutes 15`: an engine under a steady load, watched from outside.

Three pipelines on one source (a filter and a sum with a few rows that fail, a Python
function, a `foreach_batch`), pauses and reloads at random. The log is kept for a minute, and
merged and folded meanwhile. Every few seconds memory, open files and threads of recorder,
driver and JVM are written down, and what the data folder holds. At the end a figure whose
slope over the last two thirds is surely above its limit fails the run; so does a table that
is not equal to its source.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

import headrace as hr
from bench.processes import family, rss_bytes
from tests.soak.slopes import settled, slope

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

RATE = 4.0
"""Commits a second: with three pipelines well above 200 jobs a minute."""

LEAST_JOBS = 200
LOOK_SECONDS = 5.0
PATIENCE_SECONDS = 180.0
"""For the last changes to arrive: a machine that does other things as well may take long."""

KEEP, LEASE = "1m", "30s"
"""So short that many rounds of the log's care fit into a run, and its folder has settled early."""

MEGABYTE = 1 << 20
LIMITS = {"MB": 1.0, "files": 1.0, "threads": 1.0}
"""Growth a minute that is allowed, by unit."""

_SCHEMA = (
    "create table orders (id integer primary key, customer_id integer, status text, qty integer,"
    " discount text)"
)


def main() -> int:
    """Run, print the slopes, and return 1 where something grows."""
    parser = argparse.ArgumentParser(prog="soak")
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="headrace-soak-"))
    try:
        return Soak(folder, asked.seed).run(asked.minutes * 60)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _doubled(row: dict[str, int]) -> dict[str, int]:
    return {"double": 2 * row["qty"]}


class Soak:
    """One run."""

    def __init__(self, folder: Path, seed: int) -> None:
        self._folder = folder
        self._dice = random.Random(seed)
        self._path = folder / "shop.db"
        with contextlib.closing(sqlite3.connect(self._path)) as database:
            database.execute("pragma journal_mode = wal")
            database.execute(_SCHEMA)
        shop = hr.sqlite(self._path)
        self._sums = hr.memory(indexes={"by_customer": ["customer_id"]})
        self._doubles = hr.memory()
        self._given = 0
        self._engine = hr.Engine(
            hr.Pipeline(
                shop,
                "orders",
                self._sums,
                name="sums",
                filters=[hr.equals("status", "paid")],
                transforms=[hr.derive(due="qty * (100 - cast(discount as int))")],
                on_error=hr.DeadLetters(max_keys=100_000),
            ),
            hr.Pipeline(
                shop,
                "orders",
                self._doubles,
                name="doubles",
                transforms=[hr.function(_doubled, columns={"double": "bigint"}, reads=["qty"])],
            ),
            hr.Pipeline(shop, "orders", hr.foreach_batch(self._take), name="given"),
            data=folder / "data",
            log=hr.log(keep=KEEP, lease=LEASE),
        )

    def _take(self, frame: DataFrame, batch: object) -> None:
        self._given += frame.count()

    def run(self, seconds: float) -> int:
        """Load and look for so long; then compare, print and judge."""
        console = Console()
        samples: list[tuple[float, dict[str, float]]] = []
        with self._engine as engine:
            assert engine.await_ready(120)
            jobs = self._jobs()
            with self._load():
                began = time.monotonic()
                acted = 0.0
                while (now := time.monotonic() - began) < seconds:
                    samples.append((now / 60, self._look()))
                    if now - acted > 30:
                        acted = now
                        self._disturb()
                    time.sleep(LOOK_SECONDS)
            minutes = (time.monotonic() - began) / 60
            rate = (self._jobs() - jobs) / minutes
            equal = self._compare(console)
        grows = _judge(samples, console)
        console.print(
            f"{rate:,.0f} jobs a minute over {minutes:.1f} minutes, at least {LEAST_JOBS}"
        )
        return 0 if equal and not grows and rate >= LEAST_JOBS else 1

    @contextlib.contextmanager
    def _load(self) -> Iterator[None]:
        command = [sys.executable, "-m", "tests.soak.writer", str(self._path), str(RATE)]
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, cwd=Path(__file__).parents[2]
        ) as writer:
            try:
                yield
            finally:
                assert writer.stdin is not None
                writer.stdin.write(b"end\n")
                writer.stdin.close()
                writer.wait(30)

    def _disturb(self) -> None:
        """Pause for a moment, or reload; both at random."""
        if self._dice.random() < 0.3:
            self._engine.reload("shop", "orders")
            return
        self._engine.pause()
        time.sleep(self._dice.uniform(0.5, 3))
        self._engine.resume()

    def _jobs(self) -> int:
        info = self._engine.spark_info()
        return info.jobs if info else 0

    def _look(self) -> dict[str, float]:
        driver = os.getpid()
        recorder = self._engine.source_info("shop").recorder_pid or driver
        machine = next(pid for pid in family(driver) if _name(pid) == "java")
        found = {}
        for name, pid in (("driver", driver), ("recorder", recorder), ("jvm", machine)):
            found[f"{name} MB"] = rss_bytes(pid) / MEGABYTE
            found[f"{name} files"] = _entries(f"/proc/{pid}/fd")
            found[f"{name} threads"] = _entries(f"/proc/{pid}/task")
        data = list((self._folder / "data").rglob("*"))
        found["data MB"] = sum(_size(path) for path in data) / MEGABYTE
        # Entries of the index go when two states stand for them: some thousands at a time.
        found["data files (not judged)"] = len(data)
        return found

    def _compare(self, console: Console) -> bool:
        """Wait until all is through, and hold the target against the source."""
        with contextlib.closing(sqlite3.connect(self._path)) as database:
            truth = {row[0]: row[3] for row in database.execute("select * from orders")}
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            # Each time: the last changes may bring a letter that was not there yet.
            held = {letter.key[0] for letter in self._engine.dead_letters("sums")}
            wanted = {key: qty for key, qty in truth.items() if key not in held}
            sums = {row["id"]: row["qty"] for row in self._sums.all() if row["id"] not in held}
            doubles = {row["id"]: row["double"] for row in self._doubles.all()}
            equal = sums == wanted and doubles == {key: 2 * qty for key, qty in truth.items()}
            if equal or time.monotonic() > deadline:
                break
            time.sleep(0.5)
        words = "yes" if equal else "NO"
        if not equal:
            twice = {key: 2 * qty for key, qty in truth.items()}
            for name, want, found in (("sums", wanted, sums), ("doubles", twice, doubles)):
                lag = self._engine.pipeline_info(name).lag_seconds
                console.print(
                    f"{name}: {len(want.keys() - found.keys())} missing,"
                    f" {len(found.keys() - want.keys())} too many,"
                    f" {sum(found[key] != want[key] for key in want.keys() & found.keys())} other,"
                    f" {lag} s behind"
                )
        console.print(
            f"target = source: {words}, {len(wanted):,} rows compared, {len(held)} held by dead"
            f" letters, {self._given:,} rows given to the function"
        )
        return equal


def _judge(samples: list[tuple[float, dict[str, float]]], console: Console) -> list[str]:
    """Print every figure's slope, and return those that grow."""
    table = Table("figure", "first", "last", "slope/min", "surely above", "limit", title="growth")
    grows = []
    minutes = settled([at for at, _ in samples])
    for name in samples[0][1]:
        values = settled([found[name] for _, found in samples])
        found = slope(minutes, values)
        limit = _limit(name)
        bad = limit is not None and found.lower > limit
        if bad:
            grows.append(name)
        table.add_row(
            name,
            f"{values[0]:,.1f}",
            f"{values[-1]:,.1f}",
            f"{found.estimate:+.2f}",
            f"{found.lower:+.2f}",
            "" if limit is None else f"{limit:g}",
            style="red" if bad else "",
        )
    console.print(table)
    return grows


def _limit(name: str, limits: Mapping[str, float] = LIMITS) -> float | None:
    return limits.get(name.split(" ", 1)[1])


def _entries(folder: str) -> int:
    return sum(1 for _ in Path(folder).iterdir())


def _name(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip()
    return ""


def _size(path: Path) -> int:
    with contextlib.suppress(OSError):
        return path.stat().st_size
    return 0


if __name__ == "__main__":
    sys.exit(main())
