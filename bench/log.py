"""
The log's care: merging small flushes, and opening a log that has had a hundred thousand.

The floor of merging is Arrow alone: the same files read, put together and written in the same
form, without a checksum or an entry. That of opening is a log of a thousand flushes. Both are on
a disk in memory, so that what is measured is ours and not the disk's.
"""

from __future__ import annotations

import io
import time
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq

from bench.harness import Result, Rounds, at_most, ratio_at_least
from headrace.changelog.change import Change, Changes, Op, TableChanges, as_segment
from headrace.changelog.compaction import Compaction
from headrace.changelog.reader import LogReader, LogWriter
from headrace.changelog.schema import Column, TableSchema
from headrace.changelog.values import ValueType
from headrace.storage.files import Files
from headrace.storage.simulation import SimulatedDisk
from tests.changelog.log_making import SOURCE, At, begun, files_on

TABLE = TableSchema(
    "orders",
    (
        Column("id", ValueType("int64"), 1),
        Column("status", ValueType("text"), 2),
        Column("total", ValueType("int64"), 3),
    ),
    ("id",),
)
ROWS = 20
"""Of a flush, as a quiet application makes them."""

FEW = 1_000


def run(*, quick: bool) -> list[Result]:
    """Measure both."""
    return [_compaction(2_000 if quick else 10_000), _opening(5_000 if quick else 100_000)]


def _flush(log: LogWriter, number: int) -> None:
    changes = (
        Change(
            Op.INSERT,
            number,
            ordinal,
            number * 1_000,
            after={"id": number * ROWS + ordinal, "status": "paid", "total": ordinal},
        )
        for ordinal in range(ROWS)
    )
    log.append(Changes([TableChanges(TABLE, as_segment(TABLE, changes))], At(number)))
    log.flush()


def _made(flushes: int) -> tuple[Files, LogWriter]:
    """Return a log with so many flushes of a few rows."""
    files = files_on(SimulatedDisk())
    log = begun(files)
    for number in range(1, flushes + 1):
        _flush(log, number)
    return files, log


def _compaction(flushes: int) -> Result:
    files, log = _made(flushes)
    names = [name for name in log.segments.list("") if name.endswith(".parquet")]
    rounds = Rounds()
    began = time.process_time()
    tables = [pq.read_table(io.BytesIO(log.segments.read(name))) for name in names]
    sink = io.BytesIO()
    pq.write_table(pa.concat_tables(tables), sink, compression="zstd")
    rounds.floor.append(flushes * ROWS / (time.process_time() - began))
    began = time.process_time()
    merged = 0
    compaction = Compaction(log)
    while compaction.advance(log.end, ()) is not None:
        merged += 1
    rounds.ours.append(flushes * ROWS / (time.process_time() - began))
    assert LogReader.open(files, SOURCE).counts().rows == flushes * ROWS
    floor_is = "the same files read and written by Arrow alone"
    found = rounds.result("log.compaction.rows_per_s", "rows/s", ratio_at_least(0.2), floor_is)
    return replace(found, note=f"{flushes:,} flushes of {ROWS} rows became {merged}; CPU time")


def _opening(flushes: int) -> Result:
    rounds = Rounds()
    for count, times in ((FEW, rounds.floor), (flushes, rounds.ours)):
        files, _ = _made(count)
        for _ in range(3):
            began = time.process_time()
            reader = LogReader.open(files, SOURCE)
            times.append(1000 * (time.process_time() - began))
            assert reader.counts().flushes == count
    floor_is = f"a log of {FEW:,} flushes"
    found = rounds.result("log.open_ms", "ms", at_most(1_000), floor_is)
    return replace(found, note=f"{flushes:,} entries, none merged; CPU time")
