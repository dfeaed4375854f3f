"""
A restart: how long until an engine is ready again that has had a hundred thousand flushes.

Spark is up already; what is measured is the engine's own: opening the log, taking it as its
writer, analysing the plan, and for a target in memory loading the table's baseline and all
changes since. The floor is reading the files of the index once, with nothing made of them.

An engine merges flushes while it is at work, so a restart finds them merged. Such a log is made by
the log's own writer and its own compaction, on a disk that syncs nothing, but for the small files
that the care would have deleted again: those are never written. What a restart finds where
nothing was merged is measured beside, on fewer flushes.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
from msgspec import structs

import headrace as hr
from bench.harness import Goal, Result, Rounds, at_most
from headrace.changelog.change import Changes, Op, TableChanges
from headrace.changelog.compaction import MOST_FILES, Compaction
from headrace.changelog.entries import File, Flush
from headrace.changelog.position import Position
from headrace.changelog.reader import LogWriter
from headrace.changelog.retention import FileDeletion
from headrace.changelog.schema import TableSchema
from headrace.spark_session.session import Spark, start_session
from headrace.storage.disk import RealDisk
from headrace.storage.files import Files
from headrace.targets.target import Target
from headrace.testing.source import MemoryPosition, MemorySource

FLUSHES = 100_000
QUICK_FLUSHES = 10_000
ROWS = 10
"""Of a flush: one that is new, and the others known."""

BASELINE = 100_000
"""Rows of the table when it was copied."""

PATIENCE = 600.0


def alone(*, quick: bool) -> list[Result]:
    """Measure with a Spark of its own."""
    folder = Path(tempfile.mkdtemp(prefix="headrace-bench-"))
    spark = start_session(folder)
    try:
        return run(spark, folder / "restart", quick=quick)
    finally:
        spark.stop()
        shutil.rmtree(folder, ignore_errors=True)


def run(spark: Spark, folder: Path, *, quick: bool) -> list[Result]:
    """Measure a volatile target and a durable one, and a log that nobody has cared for."""
    flushes = QUICK_FLUSHES if quick else FLUSHES
    rounds = 1 if quick else 3
    few = flushes // 10
    cared = _Log(folder / "cared", flushes, merged=True)
    uncared = _Log(folder / "uncared", few, merged=False)
    # Where a job has never run, the first one compiles code for the others.
    uncared.restarted(spark, hr.memory())
    files = cared.segments()
    note = f"{flushes:,} flushes of {ROWS} rows since the baseline, in {files} files"
    durable = _Keys()
    cared.restarted(spark, durable)
    found = [
        _restarts(spark, cared, "spine.restart_s", at_most(10), rounds),
        _restarts(spark, cared, "spine.restart.durable_s", None, rounds, durable),
        _restarts(spark, uncared, "spine.restart.unmerged_s", None, 1),
    ]
    return [
        replace(found[0], note=f"Spark up already; {note}"),
        replace(found[1], note="the same log, all of it taken but the last flush"),
        replace(found[2], note=f"{few:,} flushes of {ROWS} rows, none merged"),
    ]


def _restarts(
    spark: Spark,
    log: _Log,
    name: str,
    goal: Goal | None,
    rounds: int,
    target: Target | None = None,
) -> Result:
    taken = Rounds()
    for _ in range(rounds):
        if target is not None:
            log.flush()
        taken.floor.append(log.read_index())
        taken.ours.append(log.restarted(spark, target or hr.memory()))
    return taken.result(name, "s", goal, "the index's files, read once")


class _Log:
    """A data directory with a log of many flushes of one table."""

    def __init__(self, data: Path, flushes: int, *, merged: bool) -> None:
        self._data = data
        self._files = Files(_NoSync(), str(data))
        self._source = MemorySource("bench")
        self._source.set_supports_resume(True)
        columns = {"id": "int64", "status": "text", "qty": "int64"}
        self._source.set_schema("orders", columns, ["id"])
        self._schema = self._source.describe(["orders"])["orders"]
        self._flushes = self._starts = 0
        self._merged = merged
        data.mkdir(parents=True)
        writer = self._writer()
        writer.begin(MemoryPosition(1, 0), "start", self._source.origin)
        baseline = writer.baseline(self._schema)
        ids = np.arange(1, BASELINE + 1)
        baseline.write(pa.Table.from_arrays(_image(ids), schema=self._schema.arrow))
        baseline.finish(0, 0)
        if merged:
            _Merging(writer, self._schema, flushes).make()
            self._flushes = flushes
        else:
            self._append(writer, flushes)

    def flush(self) -> None:
        """Add one more flush, as if it had come just before the engine went down."""
        self._append(self._writer(), 1)

    def segments(self) -> int:
        """Return how many files there are, of the baseline and of changes."""
        return len(self._files.list("log/bench/segments"))

    def read_index(self) -> float:
        """Return the seconds that it takes to read every file of the index."""
        began = time.perf_counter()
        for path in sorted((self._data / "log" / "bench" / "index").iterdir()):
            path.read_bytes()
        return time.perf_counter() - began

    def restarted(self, spark: Spark, target: Target) -> float:
        """Return the seconds until an engine is ready that Spark stands by for."""
        durable = target.traits.durable
        engine = hr.Engine(
            hr.Pipeline(self._source, "orders", target, name="durable" if durable else "volatile"),
            data=self._data,
            spark=spark.session,
            recorder="thread",
            log=hr.log(compact=self._merged),
        )
        self._starts += 1
        began = time.perf_counter()
        with engine:
            assert engine.await_ready(PATIENCE), engine.pipelines()
            took = time.perf_counter() - began
        held = len(target.keys) if isinstance(target, _Keys) else target.row_count("orders")
        assert held == BASELINE + self._flushes, held
        return took

    def _writer(self) -> LogWriter:
        return LogWriter.open(
            self._files,
            source=self._source.name,
            origin=self._source.origin,
            writer="bench",
            # That of the last engine: the next one has a higher one.
            term=self._starts,
            clock=time.time,
        )

    def _append(self, writer: LogWriter, flushes: int) -> None:
        made = _changes(self._schema, self._flushes + 1, flushes)
        for at in range(flushes):
            self._flushes += 1
            rows = TableChanges(self._schema, made.slice(at * ROWS, ROWS))
            writer.append(Changes([rows], MemoryPosition(1, self._flushes)))
            writer.flush()


class _Merging(Compaction):
    """Makes a log of many flushes that were merged; what was merged away was never written."""

    def __init__(self, log: LogWriter, schema: TableSchema, flushes: int) -> None:
        super().__init__(log)
        self._writer = log
        self._schema = schema
        self._flushes = flushes
        self._rows = _changes(schema, 1, flushes)
        self._begins: dict[str, int] = {}
        """By file, where its rows begin; those of one merge follow one another."""

    def make(self) -> None:
        """Append the flushes, and merge and delete until nothing is worth it any more."""
        log = self._writer
        like = self._write(1)
        for number in range(2, self._flushes + 1):
            # The newest may stay as they are: too few to be merged.
            if number > self._flushes - 4 * MOST_FILES:
                self._write(number)
            else:
                self._enter(number, like)
            if number % MOST_FILES == 0:
                self._merge_all()
        self.restart()
        self._merge_all()
        deleting = FileDeletion(log)
        while deleting.delete(0.0):
            pass
        missing = log.history.names() - set(log.segments.list(""))
        assert not missing, f"{len(missing)} files were never merged"

    def _merge_all(self) -> None:
        while self.advance(self._writer.end, ()) is not None:
            pass

    def _write(self, number: int) -> Flush:
        """Flush a commit."""
        rows = TableChanges(self._schema, self._rows.slice((number - 1) * ROWS, ROWS))
        self._writer.append(Changes([rows], MemoryPosition(1, number)))
        made = self._writer.flush()
        assert made is not None
        self._begins[made.files[0].name] = (number - 1) * ROWS
        return made

    def _enter(self, number: int, like: Flush) -> None:
        """Append the entry of a flush whose file nobody will read."""
        head = self._writer.head()
        name = f"{head['entry']:012x}-1-{like.files[0].schema}.parquet"
        self._begins[name] = (number - 1) * ROWS
        entry = structs.replace(
            like,
            **head,
            first=str(Position(head["epoch"], number)),
            last=str(Position(head["epoch"], number, ROWS - 1)),
            source=str(MemoryPosition(1, number)),
            files=(structs.replace(like.files[0], name=name),),
        )
        self._writer.enter(entry)

    def _one(self, table: str, schema_id: int, files: list[File]) -> File:
        begins = self._begins[files[0].name]
        rows = self._rows.slice(begins, sum(file.rows for file in files))
        stem = f"{self._writer.last_entry + 1:012x}-1-{schema_id}-c"
        made = self._writer.store(stem, self._schema, schema_id, rows)
        self._begins[made.name] = begins
        return made


class _NoSync(RealDisk):
    """A disk that a log is made on in a minute and not in an hour; nobody cuts its power."""

    def sync(self, path: str) -> None: ...

    def sync_folder(self, path: str) -> None: ...


class _Keys(hr.RowTarget):
    """A target that says it is durable, and knows which rows it has."""

    def __init__(self) -> None:
        self.keys: set[object] = set()

    def is_durable(self) -> bool:
        return True

    def on_baseline_row(self, row: Mapping[str, object]) -> None:
        self.keys.add(row["id"])

    def on_insert(self, row: Mapping[str, object]) -> None:
        self.keys.add(row["id"])

    def on_update(self, row: Mapping[str, object], identity: Mapping[str, object]) -> None:
        self.keys.add(row["id"])

    def on_delete(self, identity: Mapping[str, object]) -> None:
        self.keys.discard(identity["id"])

    def on_truncate(self) -> None:
        self.keys.clear()


def _changes(schema: TableSchema, first: int, flushes: int) -> pa.Table:
    """Return the changes of commits from `first` on: of each one insert, and then updates."""
    commits = np.repeat(np.arange(first, first + flushes), ROWS)
    ordinals = np.tile(np.arange(ROWS), flushes)
    inserts = ordinals == 0
    ids = np.where(inserts, BASELINE + commits, (commits * ROWS + ordinals) % BASELINE + 1)
    count = len(ids)
    fields = list(schema.arrow)
    made: dict[str, object] = {
        "_op": np.where(inserts, int(Op.INSERT), int(Op.UPDATE)),
        "_commit": commits,
        "_ordinal": ordinals,
        "_time": np.full(count, time.time_ns() // 1_000),
        "before": pa.StructArray.from_arrays(_image(ids), fields=fields, mask=pa.array(inserts)),
        "after": pa.StructArray.from_arrays(_image(ids, qty=3), fields=fields),
    }
    return pa.Table.from_arrays(
        [
            pa.nulls(count, field.type)
            if field.name not in made
            else pa.array(made[field.name]).cast(field.type)
            for field in schema.segment
        ],
        schema=schema.segment,
    )


def _image(ids: np.ndarray, qty: int = 1) -> list[pa.Array]:
    count = len(ids)
    return [
        pa.array(ids, pa.int64()),
        pa.repeat(pa.scalar("paid"), count),
        pa.repeat(pa.scalar(qty, pa.int64()), count),
    ]
