"""
The decoder alone: from received bytes to commits in columns, with nothing else around it.

The bytes are those of a real stream, received before and kept in memory. Time is the
process's own CPU time, all its threads together, so that the figure is one of a core.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from bench.harness import Result, Rounds, at_least
from bench.postgres_drains import TABLE, Backlog
from bench.postgres_recorder import source_of
from bench.postgres_table import after_images, sums_of_columns
from headrace.capture.postgres.connection import connect
from headrace.capture.postgres.decode.relations import Schemas
from headrace.capture.postgres.position import LsnPosition, parse_lsn
from headrace.capture.postgres.server.catalog import look_up, schema_of
from headrace.capture.postgres.stream.spill import Spill
from headrace.capture.postgres.stream.stream import ReceivedMessages, ReplicationStream
from headrace.capture.postgres.stream.transactions import Transactions

_INSERT = ord("I")
_SECONDS = 60.0


def run(backlog: Backlog, folder: Path, name: str, *, rounds: int) -> list[Result]:
    """Receive a backlog, and decode it again and again."""
    received, start = _receive(backlog)
    layouts = _layouts(backlog)
    # Not timed: compared with SQL, and caches are filled for the passes that are.
    found = sums_of_columns(map(after_images, _decoded(received, layouts, start, folder)))
    assert found == backlog.truth, f"the decoder gave {found}, SQL {backlog.truth}"
    figures = Rounds()
    for _ in range(max(3, rounds)):
        began = time.process_time()
        rows = sum(table.num_rows for table in _decoded(received, layouts, start, folder))
        figures.ours.append(rows / (time.process_time() - began))
        assert rows == backlog.rows
    size = sum(int((part.stops - part.starts).sum()) for part in received) / backlog.rows
    result = figures.result(f"pg.decoder.rows_per_s.{name}", "rows/s", at_least(1e6), "")
    # A message goes in a frame of 5 bytes, behind a head of 25.
    count = sum(len(part.starts) for part in received) / backlog.rows
    # How the stream was cut when it was received: small pieces cost more, there as here.
    pieces = f"received in {len(received):,} pieces"
    note = f"{backlog.rows:,} rows, {size + 30 * count:.0f} B a row on the wire, {pieces}; CPU time"
    return [replace(result, note=note)]


def _receive(backlog: Backlog) -> tuple[list[ReceivedMessages], int]:
    """Return the whole backlog as it came, and where reading began."""
    start = parse_lsn(
        backlog.server.value(
            "select confirmed_flush_lsn::text from pg_replication_slots"
            " where slot_name = 'bench_decoder'"
        )
    )
    options = source_of(backlog.server.dsn).options
    stream = ReplicationStream(connect(options, replication=True), "bench_decoder", start, "bench")
    found: list[ReceivedMessages] = []
    inserts = 0
    with closing(stream):
        until = time.monotonic() + _SECONDS
        while inserts < backlog.rows or stream.received < parse_lsn(backlog.end):
            assert time.monotonic() < until, f"{inserts} of {backlog.rows} rows"
            if (part := stream.receive(1.0)) is not None:
                found.append(part)
                kinds = np.frombuffer(part.buffer, np.uint8)[part.starts]
                inserts += int(np.count_nonzero(kinds == _INSERT))
    return found, start


def _layouts(backlog: Backlog) -> Schemas:
    with connect(source_of(backlog.server.dsn).options) as connection:
        tables = look_up(connection, [TABLE])
    return Schemas((table, schema_of(table)) for table in tables.values())


def _decoded(
    received: list[ReceivedMessages], layouts: Schemas, start: int, folder: Path
) -> Iterator[pa.Table]:
    spill = Spill(folder / "decoder")
    transactions = Transactions(
        layouts,
        spill,
        after=start,
        position_at=lambda lsn: LsnPosition("1", 1, 0, 1, lsn),
        near_xid=1000,
    )
    for part in received:
        for changes in transactions.take(part.buffer, part.starts, part.stops):
            yield from (table.rows for table in changes.tables)
    spill.clear()
