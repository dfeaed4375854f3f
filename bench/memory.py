"""
What a table in memory costs: bytes a row, rows a second, reads a second.

Rows are those of the design's own trial: eight columns, some 87 bytes of data each. Each
figure stands beside a floor, measured in the same run: what the same machine does with the
same data when nothing is promised.

Times are the process's own CPU seconds, not the clock's: one thread does all the work here,
and who else is busy on the machine is not what is measured.
"""

from __future__ import annotations

import gc
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from bench.harness import Result, at_least, at_most, show
from headrace.changelog.position import ORIGIN, Position
from headrace.changelog.schema import Column, TableSchema
from headrace.changelog.values import ValueType
from headrace.tables import Table
from headrace.targets.memory import IndexedMemory, memory
from headrace.targets.target import Batch

ROWS = 1_000_000
QUICK_ROWS = 200_000
BATCH = 32_768

_KINDS = {
    "id": ValueType("int64"),
    "name": ValueType("text"),
    "email": ValueType("text"),
    "amount": ValueType("decimal", 12, 2),
    "active": ValueType("boolean"),
    "created": ValueType("timestamptz"),
    "score": ValueType("float64"),
    "n": ValueType("int32"),
}


def schema(key: Sequence[str] = ("id",)) -> TableSchema:
    """Return the bench's table."""
    columns = [Column(name, kind, at) for at, (name, kind) in enumerate(_KINDS.items(), 1)]
    return TableSchema("bench", tuple(columns), tuple(key))


def rows(start: int, count: int, *, commit: int, op: int = 0) -> pa.Table:
    """Return `count` rows with ids from `start` on, as changes of one commit."""
    ids = np.arange(start, start + count, dtype=np.int64)
    cents = (ids * 7919) % 1_000_000
    amounts = np.zeros(2 * count, np.int64)
    amounts[::2] = cents
    wide = pa.decimal128(12, 2)
    return pa.table(
        {
            "_op": pa.array(np.full(count, op, np.int8)),
            "_commit": pa.array(np.full(count, commit, np.int64)),
            "_ordinal": pa.array(np.arange(count, dtype=np.int32)),
            "_time": pa.array(np.full(count, 1_700_000_000_000_000), pa.timestamp("us", "UTC")),
            "id": pa.array(ids),
            "name": pa.array([f"customer {n:07d}" for n in ids.tolist()]),
            "email": pa.array([f"c{n:07d}@example.org" for n in ids.tolist()]),
            "amount": pa.Array.from_buffers(wide, count, [None, pa.py_buffer(amounts)]),
            "active": pa.array(ids % 3 == 0),
            "created": pa.array(ids * 1_000_000 + 1_700_000_000_000_000).cast(
                pa.timestamp("us", "UTC")
            ),
            "score": pa.array(ids / 7),
            "n": pa.array((ids % 1000).astype(np.int32)),
        }
    )


def filled(count: int, key: Sequence[str] = ("id",), **options: Any) -> IndexedMemory:
    """Return a target that holds `count` rows."""
    target = memory(**options)
    target.open({"bench": schema(key)}, {})
    target.load("bench", 0).switch(ORIGIN)
    for at, start in enumerate(range(0, count, BATCH), 1):
        target.write(_batch(rows(start, min(BATCH, count - start), commit=at), at))
    return target


def _batch(table: pa.Table, commit: int) -> Batch:
    last = Position(1, commit, max(table.num_rows - 1, 0))
    return Batch(str(commit), 1, Position(1, commit), last, {"bench": table})


def bytes_per_row(count: int) -> list[Result]:
    """Measure the growth of a fresh process, with and without an index."""
    found = []
    for name, index, goal in (("", False, 140), (".indexed", True, 160)):
        command = [sys.executable, "-m", "bench.memory", "child", str(count), str(int(index))]
        answer = subprocess.run(
            command, check=True, capture_output=True, text=True, cwd=Path(__file__).parents[1]
        )
        ours, data = json.loads(answer.stdout.splitlines()[-1])
        found.append(_figure(f"memory.bytes_per_row{name}", ours, data, "B", goal, "lower"))
    return found


def _child(count: int, *, index: bool) -> None:
    options: dict[str, Any] = {"indexes": {"by_n": ["n"]}} if index else {}
    # The rows come batch by batch, as from a pipeline; nothing but the table stays.
    filled(BATCH, **options)
    gc.collect()
    before = _resident()
    target = filled(count, **options)
    sample = rows(0, 1000, commit=1).drop_columns(["_op", "_commit", "_ordinal", "_time"])
    gc.collect()
    pa.default_memory_pool().release_unused()
    grown = (_resident() - before) / target.count()
    print(json.dumps([grown, sample.nbytes / 1000]))


def _resident() -> int:
    status = Path("/proc/self/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) * 1024


def apply_rate(count: int) -> list[Result]:
    """Measure inserts and updates in batches of 32k rows, against copying the same bytes."""
    batches = [
        rows(start, min(BATCH, count - start), commit=at)
        for at, start in enumerate(range(0, count, BATCH), 1)
    ]
    again = [batch.set_column(1, "_commit", _later(batch, len(batches))) for batch in batches]
    size = sum(batch.nbytes for batch in batches)
    data = np.zeros(size, np.uint8)
    copied = _median(lambda: data.copy(), 3)
    found = []
    kinds: list[tuple[str, dict[str, Any], int | None]] = [
        ("memory.apply.rows_per_s", {}, 3_000_000),
        ("memory.apply.indexed.rows_per_s", {"indexes": {"by_n": ["n"]}}, None),
        ("memory.apply.text_int.rows_per_s", {"key": ["name", "id"]}, None),
    ]
    for name, options, goal in kinds:
        seconds = statistics.median(_apply(batches, **options)[1] for _ in range(3))
        found.append(_figure(name, count / seconds, count / copied, "rows/s", goal, "higher"))
    table, _ = _apply(batches)
    seconds = _into(table, again, len(batches))
    name = "memory.apply.updates.rows_per_s"
    found.append(_figure(name, count / seconds, count / copied, "rows/s", None, "higher"))
    return found


def _later(batch: pa.Table, by: int) -> pa.Array:
    return pa.array(batch["_commit"].to_numpy() + by)


def _apply(
    batches: Sequence[pa.Table], *, key: Sequence[str] = ("id",), **options: Any
) -> tuple[Table, float]:
    table = Table(schema(key), **options)
    table.switch(ORIGIN)
    return table, _into(table, batches, 0)


def _into(table: Table, batches: Sequence[pa.Table], after: int) -> float:
    start = time.perf_counter()
    for at, batch in enumerate(batches, after + 1):
        table.apply(batch, epoch=1, upto=Position(1, at, batch.num_rows))
    return time.perf_counter() - start


def small_batch(target: IndexedMemory, count: int) -> list[Result]:
    """Measure a batch of ten updates on the full table."""
    times = []
    commit = 1_000_000
    for n in range(1000):
        commit += 1
        batch = _batch(rows((n * 7919) % (count - 10), 10, commit=commit, op=1), commit)
        start = time.perf_counter()
        target.write(batch)
        times.append(time.perf_counter() - start)
    plain = {n: (n,) for n in range(count)}
    keys = list(range(10))
    floor = _median(lambda: plain.update((key, (key,)) for key in keys), 100)
    median = sorted(times)[len(times) // 2]
    return [_figure("memory.apply.ten_rows_us", median * 1e6, floor * 1e6, "us", 1000, "lower")]


def reads(target: IndexedMemory, count: int) -> list[Result]:
    """Measure `get` and whole rows, against a dict of tuples."""
    keys = np.random.default_rng(1).integers(0, count, 100_000).tolist()
    plain = dict.fromkeys(range(count), (1, "a", "b", Decimal(1), True, datetime.now(UTC), 1.0, 2))
    get, plain_get = target.get, plain.get

    def ours() -> None:
        for key in keys:
            get(key)

    def floor() -> None:
        for key in keys:
            plain_get(key)

    def whole() -> None:
        for key in keys[:20_000]:
            dict(get(key))  # type: ignore[arg-type]

    rate, base = len(keys) / _median(ours, 3), len(keys) / _median(floor, 3)
    full = 20_000 / _median(whole, 3)
    return [
        _figure("memory.get_per_s.int", rate, base, "reads/s", 500_000, "higher"),
        _figure("memory.full_row_per_s", full, base, "rows/s", 100_000, "higher"),
    ]


def composite_reads(count: int) -> list[Result]:
    """Measure `get` by a key of text and integer, and index lookups."""
    target = filled(count, ("name", "id"), indexes={"by_email": ["email"]})
    numbers = np.random.default_rng(2).integers(0, count, 100_000).tolist()
    keys = [(f"customer {n:07d}", n) for n in numbers]
    plain = {(f"customer {n:07d}", n): n for n in range(count)}
    emails = [f"c{n:07d}@example.org" for n in numbers]

    def ours() -> None:
        get = target.get
        for name, number in keys:
            get(name, number)

    def floor() -> None:
        get = plain.get
        for name, number in keys:
            get((name, number))

    def indexed() -> None:
        find = target.lookup_all
        for email in emails:
            find("by_email", email)

    base = len(keys) / _median(floor, 3)
    rate, found = len(keys) / _median(ours, 3), len(keys) / _median(indexed, 3)
    return [
        _figure("memory.get_per_s.text_int", rate, base, "reads/s", 500_000, "higher"),
        _figure("memory.lookup_all_per_s.text", found, base, "reads/s", None, "higher"),
    ]


def run(quick: bool = False) -> list[Result]:
    """Return all figures, by the wall clock, medians of three."""
    count = QUICK_ROWS if quick else ROWS
    found = [*bytes_per_row(count), *apply_rate(count)]
    target = filled(count)
    found += [*reads(target, count), *small_batch(target, count)]
    del target
    return [*found, *composite_reads(count)]


def _figure(
    name: str, ours: float, floor: float, unit: str, goal: float | None, better: str
) -> Result:
    kind = at_least if better == "higher" else at_most
    what = _FLOORS.get(unit, "")
    return Result(name, ours, unit, floor, what, None if goal is None else kind(goal))


_FLOORS = {
    "B": "the same rows as plain Arrow",
    "rows/s": "a copy of the same bytes; for whole rows, a dict of tuples",
    "us": "a dict update of ten tuples",
    "reads/s": "a dict of tuples",
}


def _median(work: Callable[[], object], times: int) -> float:
    taken = []
    for _ in range(times):
        start = time.perf_counter()
        work()
        taken.append(time.perf_counter() - start)
    return statistics.median(taken)


if __name__ == "__main__":
    if sys.argv[1:2] == ["child"]:
        _child(int(sys.argv[2]), index=sys.argv[3] == "1")
    else:
        show(run(quick="--quick" in sys.argv), noisy=False)
