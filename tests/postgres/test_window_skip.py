"""
Baselines and changes for a target that keeps every change: each is given once (R11).

Every row counts its own updates, so that whoever adds up what he is given notices a change
that comes twice, one that is missing, and one that comes too early.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

import headrace as hr
from headrace.capture.postgres.definition import postgres
from headrace.changelog.reader import LogReader
from headrace.engine.engine import Engine
from headrace.pipeline.batch import BatchFacts, BlockedRows, SegmentGroup
from headrace.pipeline.definition import Pipeline
from headrace.pipeline.foreach import FrameBatch
from headrace.pipeline.result import Failure
from headrace.storage.disk import RealDisk
from headrace.storage.files import Files
from tests.control.test_frames import Taking
from tests.postgres.servers import Database, wait_until
from tests.support.arrow_runner import ArrowRunner
from tests.support.patience import patience

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from headrace.spark_session.session import Spark

PATIENCE = patience(120)
WRITERS = 4
KEYS = 40


class Ledger:
    """Adds up what it is given, and notes what cannot be."""

    def __init__(self) -> None:
        self.counts: dict[int, int] = {}
        self.baselines: list[int] = []
        self.batches = 0
        """Of changes, since the last baseline."""

        self.wrong: list[str] = []

    def take(self, rows: Sequence[Mapping[str, Any]], batch: FrameBatch) -> None:
        if batch.baseline is not None:
            if batch.baseline not in self.baselines:
                self.baselines.append(batch.baseline)
                self.batches = 0
                self.counts.clear()
            self.counts.update((row["id"], row["n"]) for row in rows)
            return
        for row in rows:
            if (problem := self._apply(row["_op"], row["id"], row["n"])) is not None:
                self.wrong.append(f"{problem} {row['id']} at {row['_commit']} of {batch.id}")
        self.batches += 1

    def _apply(self, op: str, key: int, number: int) -> str | None:
        counts = self.counts
        if op == "truncate":
            counts.clear()
        elif op == "insert":
            if key in counts:
                return "inserted again:"
            counts[key] = number
        elif key not in counts:
            return "not there:"
        elif op == "delete":
            del counts[key]
        else:
            counts[key] += 1
            if counts[key] != number:
                return "counted otherwise:"
        return None


OPS = ("insert", "update", "delete", "truncate")


class Listing(ArrowRunner):
    """Gives changes as lists of rows with their ops, where Spark's runner gives DataFrames."""

    def give(
        self,
        pipeline: Pipeline,
        parts: Sequence[SegmentGroup],
        facts: BatchFacts,
        behind: BlockedRows,
        take: Callable[[Any], None],
    ) -> tuple[Failure, ...]:
        changes = sorted(
            (change for part in parts for change in self._read(part)),
            key=lambda change: (change["_commit"], change["_ordinal"]),
        )
        none = {"id": None, "n": None}
        take(
            [
                {**(change["after"] or change["before"] or none), "_op": OPS[change["_op"]]}
                | {"_commit": change["_commit"]}
                for change in changes
                if (change["_commit"], change["_ordinal"]) not in facts.without
            ]
        )
        return ()

    def give_baseline(
        self,
        pipeline: Pipeline,
        part: SegmentGroup,
        take: Callable[[Any, int], None],
        blocked: BlockedRows | None = None,
    ) -> tuple[Failure, ...]:
        (loaded,) = self.baseline(pipeline, part)
        take(loaded.rows.to_pylist(), 1)
        return ()


class LedgerTarget(Taking):
    """Adds up lists."""

    def __init__(self, ledger: Ledger) -> None:
        super().__init__()
        self._ledger = ledger

    def write_frame(self, frame: Any, batch: FrameBatch) -> None:
        self._ledger.take(frame, batch)


class Writer(threading.Thread):
    """Inserts, updates, deletes and now and then empties, in transactions and savepoints."""

    def __init__(self, database: Database, seed: int, stop: threading.Event) -> None:
        super().__init__()
        self._chance = random.Random(seed)
        self._connection = database.connect()
        self._stop_it = stop
        # Writers wait for each other in a ring now and then: for a second, unless told otherwise,
        # in which nobody writes and reloads meet no commits.
        self._connection.execute("set deadlock_timeout = '10ms'")
        if seed % 2:
            self._connection.execute("set synchronous_commit = off")

    def run(self) -> None:
        while not self._stop_it.is_set():
            with suppress(psycopg.errors.DeadlockDetected), self._connection.transaction():
                for _ in range(self._chance.randint(1, 3)):
                    self._write()

    def _write(self) -> None:
        chance, key = self._chance.random(), self._chance.randrange(KEYS)
        with self._connection.transaction():
            if chance < 0.002:
                self._connection.execute("truncate t")
            elif chance < 0.4:
                self._connection.execute(
                    "insert into t values (%s, 0) on conflict (id) do update set n = t.n + 1", [key]
                )
            elif chance < 0.8:
                self._connection.execute("update t set n = n + 1 where id = %s", [key])
            else:
                self._connection.execute("delete from t where id = %s", [key])


@contextmanager
def writing(database: Database) -> Iterator[None]:
    stop = threading.Event()
    writers = [Writer(database, seed, stop) for seed in range(WRITERS)]
    for writer in writers:
        writer.start()
    try:
        yield
    finally:
        stop.set()
        for writer in writers:
            writer.join(PATIENCE)


def left_out(data: Path, baselines: Sequence[int]) -> int:
    """Return how many recorded changes these baselines held already, between F and H."""
    log = LogReader.open(Files(RealDisk(), str(data)), "shop")
    found = 0
    for number in baselines:
        if (window := log.window("t", number)) is None:
            continue
        batch = log.next_batch("t", window.first, 1 << 40, most_files=1 << 40)
        if batch is not None:
            found += sum(int(window.held(log.rows(file)).sum()) for file in batch.files)
    return found


def followed(database: Database, data: Path, engine: Engine, ledger: Ledger) -> None:
    """Reload under writers until a baseline held what follows it; then compare."""

    assert engine.await_ready(PATIENCE)
    with writing(database):
        until = time.monotonic() + PATIENCE
        while len(ledger.baselines) < 6 or left_out(data, ledger.baselines) <= 5:
            assert time.monotonic() < until, "no baseline held what follows it"
            assert engine.reload("shop", "t", timeout=PATIENCE)
            wait_until(lambda: ledger.batches > 0, PATIENCE)
    truth = dict(database.rows("select id, n from t"))
    wait_until(lambda: ledger.counts == truth or ledger.wrong, PATIENCE)
    assert ledger.wrong == []


@pytest.fixture
def table(database: Database) -> Database:
    database.execute("create table t (id bigint primary key, n bigint)")
    database.execute("alter table t replica identity full")
    database.execute("insert into t select k, 0 from generate_series(1, 20) k")
    return database


@pytest.mark.meets("R11", "H2", "H3", "H5")
def test_a_target_that_keeps_every_change_is_given_each_once(
    table: Database, tmp_path: Path
) -> None:
    ledger = Ledger()
    pipeline = Pipeline(postgres(table.dsn, name="shop"), "t", LedgerTarget(ledger), name="given")
    with Engine(pipeline, data=tmp_path / "data", runner=Listing()) as engine:
        followed(table, tmp_path / "data", engine, ledger)


@pytest.mark.ci
@pytest.mark.spark
@pytest.mark.meets("R11", "R25", "S3")
def test_a_function_for_batches_is_given_each_change_once(
    table: Database, tmp_path: Path, spark: Spark
) -> None:
    ledger = Ledger()

    def take(frame: DataFrame, batch: hr.FrameBatch) -> None:
        rows = frame.orderBy("_position", "_op").toArrow().to_pylist()
        ledger.take(rows, batch)

    source = hr.postgres(table.dsn, name="shop")
    pipeline = hr.Pipeline(source, "t", hr.foreach_batch(take), name="given")
    with hr.Engine(pipeline, data=tmp_path / "data", spark=spark.session) as engine:
        followed(table, tmp_path / "data", engine, ledger)
