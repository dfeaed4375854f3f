"""Copies that may not go fast, and what is told of how far they are: on a real server."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from headrace.capture.baselines import CopyRate, Order, copy_parts
from headrace.capture.postgres.copy import ranges
from headrace.capture.postgres.copy.ranges import pieces
from headrace.capture.postgres.definition import postgres
from headrace.changelog.entries import File
from headrace.engine.engine import Engine
from headrace.errors import SourceRefused
from headrace.pipeline.definition import Pipeline
from headrace.runtime.info import CopyInfo
from headrace.targets.memory import IndexedMemory, memory
from tests.postgres.copies import copied, holding, known, values
from tests.postgres.servers import Database, wait_until
from tests.support.arrow_runner import ArrowRunner
from tests.support.patience import patience

PATIENCE = patience()
ROWS = 2_000
RATE = 1_000
PIECE = 400


@pytest.fixture
def orders(database: Database) -> Database:
    # Numbers only: tables with large values are for the recorder alone to copy.
    database.execute("create table orders (id bigint primary key, total bigint)")
    database.execute("create table clients (id bigint primary key, note text)")
    database.execute(f"insert into orders select n, n from generate_series(1, {ROWS}) n")
    database.execute("vacuum analyze")
    return database


class Followed:
    """An engine that follows a table with a limit, and one without rows beside it."""

    def __init__(self, database: Database, data: Path, runner: ArrowRunner) -> None:
        self.orders: IndexedMemory = memory()
        self.clients: IndexedMemory = memory()
        source = postgres(database.dsn, name="shop", copy_rows_per_s=RATE)
        self.engine = Engine(
            Pipeline(source, "orders", self.orders, name="orders"),
            Pipeline(source, "clients", self.clients, name="clients"),
            data=data,
            runner=runner,
            recorder="thread",
        )

    def copies(self) -> Sequence[CopyInfo]:
        return self.engine.source_info("shop").copies


class Pause:
    """A rest within a copy that is as long as the test wants it."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.begun = threading.Event()
        self._resting: CopyRate | None = None
        self._after: int | None = None
        self._took = CopyRate.took
        patch.setattr(CopyRate, "took", lambda *given: self._take(*given))

    def after(self, rows: int) -> None:
        self._after = rows

    def end(self) -> None:
        assert self._resting is not None
        self._resting.not_before = 0.0

    def _take(self, pacing: CopyRate, rows: int, now: float) -> None:
        self._took(pacing, rows, now)
        if self._after is None:
            return
        self._after -= rows
        if self._after <= 0:
            self._after, self._resting = None, pacing
            pacing.not_before = now + 3600
            self.begun.set()


@pytest.mark.meets("R14", "R15")
def test_a_copy_keeps_to_its_limit_while_changes_go_through(
    orders: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pause = Pause(monkeypatch)
    followed = Followed(orders, tmp_path / "data", ArrowRunner())
    with followed.engine as engine:
        assert engine.await_ready(PATIENCE)
        assert followed.copies() == ()
        pause.after(PIECE)
        engine.reload("shop", "orders")
        assert pause.begun.wait(PATIENCE)
        ended, before = 0.0, ROWS
        seen: list[CopyInfo] = []
        for key in itertools.count(1):
            orders.execute(f"insert into clients values ({key}, 'new')")
            # In vain, if changes waited for the copy.
            wait_until(lambda key=key: followed.clients.get(key), PATIENCE)  # type: ignore[misc]
            if not (found := followed.copies()):
                break
            seen += found
            if key == 3:
                ended, before = time.monotonic(), seen[-1].rows
                pause.end()
        # Since the pause, which was as long as we liked. After the last piece nobody rests.
        took = time.monotonic() - ended
        assert before < ROWS - PIECE, "too little was left to tell"
        assert took >= (ROWS - before - PIECE) / RATE - 0.2, "the limit was not kept"
        assert engine.reload("shop", "orders", timeout=PATIENCE)
        assert followed.orders.count() == ROWS
    assert {copy.expected for copy in seen} == {ROWS}
    assert [copy.rows for copy in seen] == sorted(copy.rows for copy in seen)
    told = [copy for copy in seen if copy.left_seconds is not None]
    assert told, "never was the time left told"
    left = [(ROWS - copy.rows) / copy.rows_per_s for copy in told]
    assert [copy.left_seconds for copy in told] == pytest.approx(left)


class Tasks(ArrowRunner):
    """Copies parts as Spark's tasks do, one after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.waves = 0

    def copy(self, order: Order, numbers: range) -> list[File]:
        self.waves += 1
        return list(copy_parts(order, numbers))


@pytest.mark.meets("R16", "R20")
def test_tasks_keep_to_their_share_and_progress_is_told(
    orders: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranges, "RANGE_BYTES", 8_192)
    runner = Tasks()
    followed = Followed(orders, tmp_path / "data", runner)
    began = time.monotonic()
    with followed.engine as engine:
        seen: list[CopyInfo] = []
        while not engine.await_ready(0.02):
            seen += [copy for copy in followed.copies() if copy.table == "orders"]
        assert time.monotonic() - began >= (ROWS - PIECE) / RATE - 0.2
        assert followed.orders.count() == ROWS
    assert runner.waves > 1
    assert seen[0].expected == ROWS
    assert any(0 < copy.rows < ROWS and copy.left_seconds is not None for copy in seen)


@pytest.mark.meets("R16")
def test_a_range_is_read_in_pieces_that_are_the_same_rows(orders: Database) -> None:
    table, schema = known(orders, "orders")
    with holding(orders) as holder:
        [whole] = ranges.ranges(holder, table, schema)
        cut = list(pieces(whole, RATE))
    assert len(cut) > 3
    assert [piece.start for piece in cut[1:]] == [piece.stop for piece in cut[:-1]]
    assert (cut[0].start, cut[-1].stop) == (whole.start, whole.stop)
    assert list(pieces(whole, None)) == [whole]
    # What is not counted, and what is empty, has pieces too.
    assert len(list(pieces(replace(whole, rows_per_page=None), RATE))) > 3
    assert len(list(pieces(replace(whole, pages=0), RATE))) == 1


def test_a_table_of_which_nobody_counted_the_rows_has_no_estimate(database: Database) -> None:
    database.execute("create table orders (id bigint primary key, note text)")
    database.execute("insert into orders values (1, 'a')")
    source = postgres(database.dsn, name="shop")
    source.describe(["orders"])
    source.open(None)
    try:
        copy = source.baseline("orders")
        assert len(values(copy.schema, copy)) == 1
        assert copy.expected is None
        database.execute("analyze orders")
        copy = source.baseline("orders")
        assert len(values(copy.schema, copy)) == 1
        assert copy.expected == 1
    finally:
        source.close()
    assert copied(database, "orders") == [(1, "a")]


def test_partitions_are_counted_together(database: Database) -> None:
    database.execute("create table t (id int primary key) partition by range (id)")
    database.execute("create table t1 partition of t for values from (0) to (10)")
    database.execute("create table t2 partition of t for values from (10) to (100)")
    database.execute("insert into t select generate_series(1, 30)")
    source = postgres(database.dsn, name="shop", tables={"t": {}})
    source.describe(["t"])
    source.open(None)
    try:
        database.execute("analyze t1")
        copy = source.baseline("t")
        assert (len(values(copy.schema, copy)), copy.expected) == (30, None)
        database.execute("analyze t2")
        copy = source.baseline("t")
        assert (len(values(copy.schema, copy)), copy.expected) == (30, 30)
    finally:
        source.close()


def test_a_limit_below_a_row_a_second_is_refused() -> None:
    with pytest.raises(SourceRefused, match="copy_rows_per_s must be at least 1"):
        postgres("dbname=shop", copy_rows_per_s=0)
