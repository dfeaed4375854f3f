"""
What a replay of dead letters costs: from the request to rows that readers see.

An expression fails for every row of some transactions. Then it is corrected, and all are replayed.
The floor is the same number of rows that the corrected expression computes at once.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import headrace as hr
from bench.harness import Result, Rounds, at_least
from headrace.pipeline.definition import DeadLetters
from headrace.targets.memory import IndexedMemory
from headrace.testing import MemorySource

ROWS = 20_000
TRANSACTION = 4_000
PATIENCE = 120.0


def run(*, quick: bool) -> list[Result]:
    """Replay in rounds, each beside its floor."""
    rounds = Rounds()
    rows = ROWS // 2 if quick else ROWS
    for _ in range(1 if quick else 3):
        with TemporaryDirectory() as folder:
            _round(Path(folder) / "data", rows, rounds)
    name, floor = "deadletters.replay_rows_per_s", "the same rows, computed at once"
    return [rounds.result(name, "rows/s", at_least(20_000), floor)]


def _round(data: Path, rows: int, rounds: Rounds) -> None:
    source = MemorySource("shop")
    source.set_supports_resume(True)
    source.set_schema("orders", {"id": "int64", "status": "text"}, key=["id"])
    with hr.Engine(
        _pipeline(source, hr.memory(), "cast", rows), data=data, recorder="thread"
    ) as engine:
        assert engine.await_ready(PATIENCE)
        _insert(source, 0, rows)
        _await(lambda: engine.pipeline_info("orders").dead_letters == rows)
    orders = hr.memory()
    with hr.Engine(
        _pipeline(source, orders, "try_cast", rows), data=data, recorder="thread"
    ) as engine:
        assert engine.await_ready(PATIENCE)
        _insert(source, rows, rows)  # compiles what is compiled once
        _await(lambda: orders.count() == rows)
        begin = time.perf_counter()
        _insert(source, 2 * rows, rows)
        _await(lambda: orders.count() == 2 * rows)
        rounds.floor.append(rows / (time.perf_counter() - begin))
        begin = time.perf_counter()
        outcomes = engine.replay_dead_letters("orders", timeout=PATIENCE)
        rounds.ours.append(rows / (time.perf_counter() - begin))
        assert sum(each.outcome == "applied" for each in outcomes) == rows
        assert orders.count() == 3 * rows


def _pipeline(source: MemorySource, target: IndexedMemory, cast: str, rows: int) -> hr.Pipeline:
    return hr.Pipeline(
        source,
        tables=["orders"],
        target=target,
        name="orders",
        transforms=[hr.derive(number=f"{cast}(status as int)")],
        on_error=DeadLetters(max_per_batch=rows, max_keys=rows),
    )


def _insert(source: MemorySource, first: int, rows: int) -> None:
    for begin in range(first, first + rows, TRANSACTION):
        with source.transaction():
            for key in range(begin, min(begin + TRANSACTION, first + rows)):
                source.emit_insert("orders", {"id": key, "status": "new"})


def _await(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not done():
        assert time.monotonic() < deadline, "the rows did not arrive"
        time.sleep(0.001)
