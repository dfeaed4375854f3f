"""
SQLite capture: what it costs the application, how fast it is read, and from a commit to a record.

Rates and costs are the process's own CPU time, not the clock's: who else is busy on the machine is
not what is measured. What the clock said stands in the note. Rows are eight columns of 228 bytes,
in WAL mode; output goes to a file. Only the latency and the p99 of the application's commits are
times by the clock, as nothing else says what is asked.

What a trigger adds is measured beside JSON triggers of the peer's kind, in the same rounds: a
database without triggers, one with ours and one with theirs, in turn. The floor of a rate is the
same query, fetched as tuples and thrown away.
"""

from __future__ import annotations

import json
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

from bench.harness import Result, Rounds, at_least, at_most, ratio_at_most
from headrace.capture.sqlite import Batch, Capture
from headrace.capture.sqlite.library.handlers import JsonLineHandler
from headrace.capture.sqlite.library.records import RecordFormat
from headrace.capture.sqlite.source import SQLiteSource, sqlite
from headrace.capture.sqlite.tables import MOST_COLUMNS
from headrace.capture.sqlite.triggers import LOG
from headrace.errors import TableRefused

ROWS = 1_000_000
QUICK_ROWS = 100_000
COMMIT_ROWS = 1_000
READ_ROWS = 10_000
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
    bootstrap, drain, cost, read = Rounds(), Rounds(), Rounds(), Rounds()
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
        read.floor.append(drain.floor[-1])
        read.ours.append(rows / _to_arrow(shop).cpu)
    shop.app.close()
    fetched = "the same rows fetched as tuples"

    def note(name: str, peer: str) -> str:
        clock = statistics.median(clocks[name])
        return f"rows a second of CPU; by the clock {clock:,.0f}; {PEER}{peer}"

    return [
        replace(
            bootstrap.result("sqlite.bootstrap.rows_per_s", "rows/s", at_least(550_000), fetched),
            note=note("bootstrap", "119k"),
        ),
        replace(
            drain.result("sqlite.drain.rows_per_s", "rows/s", at_least(100_000), fetched),
            note=note("drain", "52k"),
        ),
        replace(
            cost.result("sqlite.drain.cpu_s_per_million", "CPU s", at_most(4.5), ""),
            note="reading, JSON and acknowledgements; the peer 14",
        ),
        replace(
            read.result("sqlite.read.changes_per_s", "changes/s", at_least(200_000), fetched),
            note="the engine's source: the log to Arrow, a core",
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


def _to_arrow(shop: Shop) -> Timed:
    """Change every row, and read the changes as the recorder does."""
    spec = sqlite(shop.path).spec
    with closing(SQLiteSource(spec, "bench")) as source:
        source.describe(["orders"])
        source.open(None)
        shop.update()
        count = 0

        def drain() -> None:
            nonlocal count
            while (changes := source.read(READ_ROWS, 0.0)) is not None:
                count += sum(part.rows.num_rows for part in changes.tables)

        took = Timed(drain)
        assert count == shop.rows, f"{count} changes of {shop.rows}"
    source.teardown()
    Capture(shop.path, ["orders"], print).setup()
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
            middle.result("sqlite.latency.p50", "ms", at_most(0.3), ""),
            note="with the commit itself; the peer 0.29",
        ),
        replace(
            tail.result("sqlite.latency.p99", "ms", at_most(2), ""),
            note="with the commit itself; the peer 1 on a quiet machine, 20 on a busy one",
        ),
    ]


def _beats(path: Path, count: int) -> list[float]:
    """Write this number of rows, and return how late each came in milliseconds, sorted."""
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


# --- what the application pays --------------------------------------------------------------------

TEXT_COLUMNS = ("id", "customer", "email", "cents", "score", "note", "n", "state")
BLOB_COLUMNS = (*TEXT_COLUMNS[:-1], "raw")
GOALS = {"insert": 1.0, "update": 0.75, "delete": 0.75}
"""Of what JSON triggers add."""


def _row(number: int, last: object) -> tuple[object, ...]:
    return (
        *(number, f"customer {number:07d}", f"c{number:07d}@example.org"),
        *(number * 7919 % 1_000_000, number / 7, "x" * 90, number % 1000, last),
    )


class Paid:
    """A table of the application's with triggers of one kind, or with none."""

    def __init__(
        self,
        folder: Path,
        kind: str,
        columns: tuple[str, ...] = TEXT_COLUMNS,
        *,
        indexed: bool = False,
    ) -> None:
        self.path = folder / f"{kind}.db"
        self.app = sqlite3.connect(self.path, isolation_level=None)
        self.app.execute("pragma journal_mode = wal")
        self.app.execute("pragma synchronous = normal")
        types = ("integer primary key", "text", "text", "integer", "real", "text", "integer")
        last = "blob" if columns is BLOB_COLUMNS else "text"
        declared = zip(columns, (*types, last), strict=True)
        self.app.execute(f"create table orders ({', '.join(map(' '.join, declared))})")
        self._last: object = b"\x07" * 60 if columns is BLOB_COLUMNS else "y" * 60
        self._columns = columns
        if indexed:
            self.app.execute("create unique index by_email on orders (email)")
        if kind == "ours":
            Capture(self.path, ["orders"], print).setup()
        if kind == "peer":
            self._json_triggers()

    def _json_triggers(self) -> None:
        """Create the triggers that `sqlite-cdc` makes, with its time and its log table."""
        self.app.execute(
            "create table __cdc_log (id integer primary key, timestamp text not null,"
            " tablename text not null, operation text not null, before text, after text)"
        )
        # Its sub-second time needs SQLite 3.42; this one costs the same, and is older.
        now = "strftime('%Y-%m-%d %H:%M:%f', 'now')"
        image = ", ".join(
            f"'{name}', " + ("hex({0}." + name + ")" if name == "raw" else "{0}." + name)
            for name in self._columns
        )
        old, new = (f"json_object({image})".format(side) for side in ("OLD", "NEW"))
        for event, before, after in (
            ("insert", "null", new),
            ("update", old, new),
            ("delete", old, "null"),
        ):
            self.app.execute(
                f"create trigger orders__cdc_{event} after {event} on orders begin"
                " insert into __cdc_log (timestamp, tablename, operation, before, after)"
                f" values ({now}, 'orders', '{event.upper()}', {before}, {after}); end"
            )

    def bulk(self, event: str, rows: int) -> float:
        """Write this number of rows, a thousand to a transaction; return the CPU us of each."""
        made = [_row(number, self._last) for number in range(rows)]

        def work() -> None:
            for first in range(0, rows, COMMIT_ROWS):
                last = min(first + COMMIT_ROWS, rows)
                self.app.execute("begin")
                if event == "insert":
                    self.app.executemany(_INSERT, made[first:last])
                else:
                    self.app.execute(f"{_STATEMENTS[event]} >= ? and id < ?", (first, last))
                self.app.execute("commit")

        return Timed(work).cpu / rows * 1e6

    def single(self, event: str, rows: int) -> float:
        """Write this number of rows, each in its own transaction; return the CPU us of each."""
        made = [_row(number, self._last) for number in range(rows)]

        def work() -> None:
            for number in range(rows):
                if event == "insert":
                    self.app.execute(_INSERT, made[number])
                else:
                    self.app.execute(f"{_STATEMENTS[event]} = ?", (number,))

        return Timed(work).cpu / rows * 1e6

    def growth(self, rows: int) -> float:
        """Update this number of rows, and return by how many bytes the file grew for each."""
        self.bulk("insert", rows)
        before = self._pages()
        self.bulk("update", rows)
        return (self._pages() - before) * 4096 / rows

    def _pages(self) -> int:
        return int(self.app.execute("pragma page_count").fetchone()[0])


_INSERT = "insert into orders values (?, ?, ?, ?, ?, ?, ?, ?)"
_STATEMENTS = {
    "update": "update orders set n = n + 1, cents = cents + 1 where id",
    "delete": "delete from orders where id",
}
KINDS = ("plain", "ours", "peer")


def overhead(
    folder: Path, *, bulk_rows: int, single_rows: int, rounds: int, indexed: bool = False
) -> list[Result]:
    """Measure what triggers add to a row, ours and the peer's in turn, `indexed` or not."""
    found = []
    for size, rows in (("bulk", bulk_rows), ("single", single_rows)):
        costs: dict[tuple[str, str], list[float]] = {}
        for number in range(rounds):
            # Another order each time: who comes first has the cold caches.
            for kind in KINDS[number % 3 :] + KINDS[: number % 3]:
                with tempfile.TemporaryDirectory(dir=folder) as inner:
                    paid = Paid(Path(inner), kind, indexed=indexed)
                    for event in GOALS:
                        costs.setdefault((kind, event), []).append(getattr(paid, size)(event, rows))
                    paid.app.close()
        for event, goal in GOALS.items():
            added = Rounds(
                *(
                    [cost - plain for cost, plain in zip(costs[kind, event], base, strict=True)]
                    for base in (costs["plain", event],)
                    for kind in ("ours", "peer")
                )
            )
            name = f"sqlite.overhead.{size}_{event}{'.unique' if indexed else ''}"
            plain = statistics.median(costs["plain", event])
            result = added.result(name, "us", ratio_at_most(goal), "JSON triggers, added a row")
            note = f"CPU added a row; without triggers {plain:.1f}"
            if indexed:
                note += "; with a unique index, of which updates set no column"
            found.append(replace(result, note=note))
    return found


def log_bytes(folder: Path, *, rows: int) -> list[Result]:
    """Measure the bytes of an update in the log, ours over those of JSON triggers."""
    ratios = {}
    for name, columns in (("text", TEXT_COLUMNS), ("blob", BLOB_COLUMNS)):
        sizes = []
        for kind in ("ours", "peer"):
            with tempfile.TemporaryDirectory(dir=folder) as inner:
                paid = Paid(Path(inner), kind, columns)
                sizes.append(paid.growth(rows))
                paid.app.close()
        ratios[name] = (sizes[0] / sizes[1], *sizes)
    said = "an update is {1:.0f} bytes, theirs {2:.0f}"
    return [
        Result(
            *("sqlite.log_bytes_ratio", ratios["text"][0], "of theirs"),
            goal=at_most(0.8),
            note=f"{said.format(*ratios['text'])}",
        ),
        Result(
            *("sqlite.log_bytes_ratio.blob", ratios["blob"][0], "of theirs"),
            goal=at_most(0.55),
            note=f"a row with a blob of 60 bytes: {said.format(*ratios['blob'])}",
        ),
    ]


def wide(folder: Path, *, rows: int, rounds: int) -> list[Result]:
    """Measure an insert into the widest table, up to a thousand columns, that can be captured."""
    measured = Rounds()
    count = 0
    for _ in range(rounds):
        for kind in ("plain", "ours"):
            with tempfile.TemporaryDirectory(dir=folder) as inner:
                path = Path(inner) / "wide.db"
                for count in (1000, min(1000, MOST_COLUMNS)):
                    app = _wide_table(path, count)
                    try:
                        if kind == "ours":
                            Capture(path, ["wide"], print).setup()
                    except TableRefused:
                        app.close()
                        continue
                    break
                into = measured.ours if kind == "ours" else measured.floor
                into.append(_wide_inserts(app, count, rows))
                app.close()
    name = f"sqlite.wide.{count}_columns_us"
    result = measured.result(name, "us", at_most(200), "the same insert without triggers")
    return [replace(result, note="CPU of an insert; the peer about 19,600 with 1000 columns")]


def _wide_table(path: Path, columns: int) -> sqlite3.Connection:
    path.unlink(missing_ok=True)
    app = sqlite3.connect(path, isolation_level=None)
    app.execute("pragma journal_mode = wal")
    app.execute("pragma synchronous = normal")
    more = ", ".join(f"c{number} integer" for number in range(1, columns))
    app.execute(f"create table wide (id integer primary key, {more})")
    return app


def _wide_inserts(app: sqlite3.Connection, columns: int, rows: int) -> float:
    statement = f"insert into wide values ({', '.join('?' * columns)})"
    made = [(number, *range(1, columns)) for number in range(rows)]

    def work() -> None:
        for first in range(0, rows, 100):
            app.execute("begin")
            app.executemany(statement, made[first : first + 100])
            app.execute("commit")

    return Timed(work).cpu / rows * 1e6


PACED_WRITER = """
import sqlite3, sys, time
app = sqlite3.connect(sys.argv[1], isolation_level=None)
app.execute("pragma synchronous = normal")
took = []
due = time.perf_counter()
for number in range(int(sys.argv[3])):
    due += 1 / float(sys.argv[2])
    time.sleep(max(0.0, due - time.perf_counter()))
    begun = time.perf_counter()
    app.execute("insert into beats values (?, ?)", (number, time.time()))
    took.append(time.perf_counter() - begun)
took.sort()
print(took[int(0.99 * len(took))] * 1000)
"""


def writer(folder: Path, *, seconds: float, rounds: int) -> list[Result]:
    """Measure the application's slowest commits, with a capture that reads them and without."""
    p99 = Rounds()
    for number in range(rounds):
        for captured in (True, False) if number % 2 else (False, True):
            with tempfile.TemporaryDirectory(dir=folder) as inner:
                (p99.ours if captured else p99.floor).append(
                    _slowest(Path(inner) / "beats.db", seconds, captured=captured)
                )
    result = p99.result(
        "sqlite.writer.p99_ratio", "ms", ratio_at_most(1.5), "the same without capture"
    )
    return [replace(result, note=f"p99 of a commit, {PACED_RATE:.0f} a second, by the clock")]


PACED_RATE = 200.0


def _slowest(path: Path, seconds: float, *, captured: bool) -> float:
    _beats_table(path).close()
    with _reader(path) if captured else _nothing():
        arguments = [str(path), str(PACED_RATE), str(int(seconds * PACED_RATE))]
        done = subprocess.run(
            [sys.executable, "-c", PACED_WRITER, *arguments],
            check=True,
            capture_output=True,
            text=True,
        )
    return float(done.stdout)


@contextmanager
def _nothing() -> Iterator[None]:
    yield


@contextmanager
def _reader(path: Path) -> Iterator[None]:
    """Capture and read, in another process, as it is beside an application."""
    Capture(path, ["beats"], print).setup()
    program = (
        "import sys; from headrace.capture.sqlite import Capture;"
        "Capture(sys.argv[1], ['beats'], lambda batch: list(batch)).cdc()"
    )
    reader = subprocess.Popen([sys.executable, "-c", program, str(path)])
    try:
        yield
    finally:
        reader.terminate()
        reader.wait(60)


def _beats_table(path: Path) -> sqlite3.Connection:
    app = sqlite3.connect(path, isolation_level=None)
    app.execute("pragma journal_mode = wal")
    app.execute("create table beats (id integer primary key, stamp real)")
    return app


def idle(folder: Path, *, seconds: float) -> list[Result]:
    """Measure what a reader uses while nothing is written."""
    path = folder / "idle.db"
    app = _beats_table(path)
    Capture(path, ["beats"], print).setup()
    begun = threading.Event()
    capture = Capture(path, ["beats"], lambda batch: begun.set())
    app.execute("insert into beats values (1, 0)")
    thread = threading.Thread(target=capture.cdc)
    thread.start()
    begun.wait(60)
    time.sleep(1)
    took = Timed(lambda: time.sleep(seconds))
    capture.close()
    thread.join()
    app.close()
    share = 100 * took.cpu / took.clock
    return [Result("sqlite.idle_cpu_percent", share, "% of a core", goal=at_most(0.5))]


def run(*, quick: bool) -> list[Result]:
    """Measure all of it."""
    rounds = 1 if quick else 3
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        found = []
        for indexed in (False, True):
            found += overhead(
                folder,
                bulk_rows=20_000 if quick else 50_000,
                single_rows=3_000 if quick else 10_000,
                rounds=2 if quick else 6,
                indexed=indexed,
            )
        found += log_bytes(folder, rows=10_000)
        found += wide(folder, rows=300 if quick else 1_000, rounds=rounds)
        found += rates(folder, rows=QUICK_ROWS if quick else ROWS, rounds=rounds)
        found += latency(folder, seconds=3 if quick else 10, rounds=rounds)
        found += writer(folder, seconds=3 if quick else 8, rounds=rounds)
        return found + idle(folder, seconds=3 if quick else 10)


if __name__ == "__main__":
    for result in run(quick="--quick" in sys.argv):
        print(json.dumps([result.name, result.ours, result.floor, result.spread, result.note]))
