"""
SQLite capture as a library: rows and changes to JSON, and from a commit to a record.

Rates are rows a second of the process's own CPU time, not the clock's: one thread does all the
work, and who else is busy on the machine is not what is measured. What the clock said stands in
the note. Rows are eight columns of 228 bytes, in WAL mode; output goes to a file.

The floor is the same query, fetched as tuples and thrown away.
"""

from __future__ import annotations

import json
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from bench.harness import Result, Rounds, at_least, at_most
from headrace.capture.sqlite import Batch, Capture
from headrace.capture.sqlite.library.handlers import JsonLineHandler
from headrace.capture.sqlite.library.records import RecordFormat
from headrace.capture.sqlite.triggers import LOG

ROWS = 1_000_000
QUICK_ROWS = 100_000
COMMIT_ROWS = 1_000
PEER = "the peer's own binary, on the clock of a quiet machine: "

LATENCY_RATE = 50.0


class Timed:
    """How long something took, by the process's CPU and by the clock."""

    def __init__(self, work: Callable[[], object]) -> None:
        cpu, clock = time.process_time(), time.perf_counter()
        work()
        self.cpu = time.process_time() - cpu
        self.clock = time.perf_counter() - clock


class Shop:
    """A database with one table, and how it is written."""

    def __init__(self, folder: Path, rows: int) -> None:
        self.path = folder / "shop.db"
        self.rows = rows
        self.app = sqlite3.connect(self.path, isolation_level=None)
        self.app.execute("pragma journal_mode = wal")
        self.app.execute("pragma synchronous = normal")
        self.app.execute(
            "create table orders (id integer primary key, customer text, email text,"
            " cents integer, score real, note text, n integer, raw blob)"
        )
        self.commits(
            lambda first, last: self.app.executemany(
                "insert into orders values (?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    (
                        *(number, f"customer {number:07d}", f"c{number:07d}@example.org"),
                        *(number * 7919 % 1_000_000, number / 7, "x" * 90),
                        *(number % 1000, b"\x07" * 60),
                    )
                    for number in range(first, last)
                ),
            )
        )

    def commits(self, write: Callable[[int, int], object]) -> None:
        """Write all rows, a thousand to a transaction."""
        for first in range(0, self.rows, COMMIT_ROWS):
            self.app.execute("begin")
            write(first, min(first + COMMIT_ROWS, self.rows))
            self.app.execute("commit")

    def update(self) -> None:
        """Change every row."""
        self.commits(
            lambda first, last: self.app.execute(
                "update orders set n = n + 1, cents = cents + 1 where id >= ? and id < ?",
                (first, last),
            )
        )

    def fetched(self, query: str) -> Timed:
        """Fetch a query and throw it away."""
        reader = sqlite3.connect(self.path, isolation_level=None)

        def fetch() -> None:
            cursor = reader.execute(query)
            while cursor.fetchmany(256):
                pass

        try:
            return Timed(fetch)
        finally:
            reader.close()


def rates(folder: Path, *, rows: int, rounds: int) -> list[Result]:
    """Measure a bootstrap and the drain of as many updates, to JSON in a file."""
    shop = Shop(folder, rows)
    bootstrap, drain, cost = Rounds(), Rounds(), Rounds()
    clocks: dict[str, list[float]] = {"bootstrap": [], "drain": []}
    Capture(shop.path, ["orders"], print).setup()
    for _ in range(rounds):
        bootstrap.floor.append(rows / shop.fetched("select * from orders").cpu)
        took = _to_file(shop, folder, "bootstrap", expected=rows + 1)
        bootstrap.ours.append(rows / took.cpu)
        clocks["bootstrap"].append(rows / took.clock)
        shop.update()
        drain.floor.append(rows / shop.fetched(f"select * from {LOG} where op < 3").cpu)
        took = _to_file(shop, folder, "cdc", expected=rows)
        drain.ours.append(rows / took.cpu)
        cost.ours.append(took.cpu / rows * 1e6)
        clocks["drain"].append(rows / took.clock)
        _forget(shop)
    shop.app.close()
    fetched = "the same rows fetched as tuples"

    def note(name: str, peer: str) -> str:
        clock = statistics.median(clocks[name])
        return f"rows a second of CPU; by the clock {clock:,.0f}; {PEER}{peer}"

    return [
        replace(
            bootstrap.result("sqlite.bootstrap.rows_per_s", "rows/s", at_least(350_000), fetched),
            note=note("bootstrap", "119k"),
        ),
        replace(
            drain.result("sqlite.drain.rows_per_s", "rows/s", at_least(100_000), fetched),
            note=note("drain", "52k"),
        ),
        replace(
            cost.result("sqlite.drain.cpu_s_per_million", "CPU s", at_most(8), ""),
            note="reading, JSON and acknowledgements; the peer 14",
        ),
    ]


def _to_file(shop: Shop, folder: Path, method: str, *, expected: int) -> Timed:
    """Run one method to its end, with batches of the default size; every record is a line."""
    written = folder / "lines.json"
    count = 0
    with written.open("wb") as file:
        lines = JsonLineHandler(file, RecordFormat())

        def handle(batch: Batch) -> None:
            nonlocal count
            lines(batch)
            count += len(batch)
            if count >= expected and method == "cdc":
                capture.close()

        capture = Capture(shop.path, ["orders"], handle)
        took = Timed(getattr(capture, method))
    with written.open("rb") as text:
        made = sum(1 for _ in text)
        assert made == expected == count, f"{made} lines, {count} records of {expected}"
    return took


def _forget(shop: Shop) -> None:
    """Begin the next round with an empty log."""
    Capture(shop.path, None, print).teardown()
    Capture(shop.path, ["orders"], print).setup()


WRITER = """
import sqlite3, sys, time
app = sqlite3.connect(sys.argv[1], isolation_level=None)
app.execute("pragma synchronous = normal")
due = time.perf_counter()
for number in range(int(sys.argv[3])):
    due += 1 / float(sys.argv[2])
    time.sleep(max(0.0, due - time.perf_counter()))
    app.execute("insert into beats values (?, ?)", (number, time.time()))
"""


def latency(folder: Path, *, seconds: float, rounds: int) -> list[Result]:
    """Measure from a stamp right before a commit to the handler, at fifty commits a second."""
    path = folder / "beats.db"
    app = sqlite3.connect(path, isolation_level=None)
    app.execute("pragma journal_mode = wal")
    app.execute("create table beats (id integer primary key, stamp real)")
    middle, tail = Rounds(), Rounds()
    count = max(20, int(seconds * LATENCY_RATE))
    for _ in range(rounds):
        judged = _beats(path, count)
        middle.ours.append(statistics.median(judged))
        tail.ours.append(judged[int(0.99 * len(judged))])
        app.execute("delete from beats")
    app.close()
    return [
        replace(
            middle.result("sqlite.latency.p50", "ms", at_most(1), ""),
            note=f"with the commit itself; p99 {statistics.median(tail.ours):.1f}; the peer 0.29",
        )
    ]


def _beats(path: Path, count: int) -> list[float]:
    """Write so many rows, and return how late each came in milliseconds, sorted."""
    Capture(path, ["beats"], print).setup()
    late: list[float] = []

    def handle(batch: Batch) -> None:
        now = time.time()
        late.extend((now - float((r.after or {})["stamp"] or 0)) * 1000 for r in batch)
        if len(late) >= count:
            capture.close()

    capture = Capture(path, ["beats"], handle)
    arguments = [str(path), str(LATENCY_RATE), str(count)]
    writer = subprocess.Popen([sys.executable, "-c", WRITER, *arguments])
    capture.cdc()
    assert writer.wait(60) == 0
    Capture(path, None, print).teardown()
    return sorted(late[count // 5 :])  # the first fifth warms the path


def run(*, quick: bool) -> list[Result]:
    """Measure all of it."""
    rounds = 1 if quick else 3
    with tempfile.TemporaryDirectory() as folder:
        found = rates(Path(folder), rows=QUICK_ROWS if quick else ROWS, rounds=rounds)
        return found + latency(Path(folder), seconds=3 if quick else 10, rounds=rounds)


if __name__ == "__main__":
    for result in run(quick="--quick" in sys.argv):
        print(json.dumps([result.name, result.ours, result.floor, result.spread, result.note]))
