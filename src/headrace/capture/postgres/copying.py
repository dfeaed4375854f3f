"""
The rows of a table as a baseline: read by COPY in binary format, range after range.

Every range has a transaction of its own, so that no lock on the table is held for long, and
is compared with its plan afterwards, in that transaction, where the lock keeps the
answer true (R16). A baseline whose table was rewritten is given up and taken anew.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from time import monotonic
from typing import Any, TypeAlias

import numpy as np
import psycopg
import pyarrow as pa
from psycopg import pq

from headrace.capture.postgres.asking import (
    PATIENCE_SECONDS,
    asked,
    importing,
    readable,
    results,
    talking,
)
from headrace.capture.postgres.catalog import CatalogTable
from headrace.capture.postgres.connection import as_bytes
from headrace.capture.postgres.holder import Holder
from headrace.capture.postgres.pieces import pieces
from headrace.capture.postgres.ranges import Range, planned, rewritten, shape_of
from headrace.capture.postgres.rows import TRAILER, batch_of, empty, without_header
from headrace.changelog.schema import TableSchema
from headrace.errors import BadMessage, SchemaChanged, SourceUnreachable

BATCH_ROWS = 20_000
BATCH_BYTES = 16 << 20
CANCEL_SECONDS = 2.0
"""How long a server may take to stop a COPY; it notices the lost connection later anyway."""

Batch: TypeAlias = tuple[pa.RecordBatch, pa.Array | None]
"""Rows in the shape of `TableSchema.arrow`, and their marks in that of a segment's `_exact`."""


def read_range(
    connect: Callable[[], psycopg.Connection[Any]],
    range: Range,
    schema: TableSchema,
    rows_per_s: float | None = None,
) -> Iterator[Batch]:
    """
    Give the rows of a range, over a connection of its own to the snapshot's server.

    With `rows_per_s` batches are small; between them whoever takes them may rest.

    Its rows count only if it comes to its end: then the table was what the plan says.
    `SourceUnreachable` means that it was not, or that the snapshot is gone;
    `SchemaChanged` that its columns are others now.
    """
    with closing(connect()) as connection, _ended(connection):
        for piece in pieces(range, rows_per_s):
            for batch in _read(connection, piece, schema):
                if batch is not None:
                    yield batch


class PostgresCopy:
    """
    A baseline under way: all ranges of a table, one after the other, under one snapshot.

    With `owns_holder` it lets the snapshot go at its end; otherwise others read under it
    too. With `rows_per_s` batches are small, for whoever rests between them. A step waits a
    tenth of a second at most, and then gives a batch without rows.
    """

    def __init__(
        self,
        holder: Holder,
        table: CatalogTable,
        schema: TableSchema,
        *,
        where: str = "",
        owns_holder: bool = True,
        expected: int | None = None,
        rows_per_s: float | None = None,
        passing: Callable[[pa.RecordBatch | None, pa.Array | None], None] | None = None,
    ) -> None:
        """`passing` is called with each batch and its marks, and once without, at the end."""
        self.schema = schema
        self.expected = expected
        self.waits = ""
        self.first = holder.first
        self.last = holder.last
        self.snapshot = str(holder.snapshot)
        self.exact: pa.Array | None = None
        self._holder = holder
        self._table = table
        self._where = where
        self._owns_holder = owns_holder
        self._rows_per_s = rows_per_s
        self._passing = passing
        holder.readers += 1
        self._closed = False
        self._batches = self._all()

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return self._batches

    def close(self) -> None:
        """End its transaction and let its snapshot go; at any time, and more than once."""
        self._batches.close()
        self._leave()

    def _all(self) -> Generator[pa.RecordBatch, None, None]:
        try:
            with closing(self._holder.connect()) as connection, _ended(connection):
                plan = planned(connection, self._holder.id, self._table, self.schema, self._where)
                for part in plan:
                    for batch in [None] if part is None else self._read(connection, part):
                        yield self._given(batch)
                if self._passing is not None:
                    self._passing(None, None)
        finally:
            # Whoever reads to the end, or to an error, need not close.
            self._leave()

    def _read(self, connection: psycopg.Connection[Any], part: Range) -> Iterator[Batch | None]:
        for piece in pieces(part, self._rows_per_s):
            yield from _read(connection, piece, self.schema)

    def _leave(self) -> None:
        if not self._closed:
            self._closed = True
            self._holder.readers -= 1
            if self._owns_holder:
                self._holder.close()

    def _given(self, batch: Batch | None) -> pa.RecordBatch:
        if not self._holder.alive:
            # Ranges that follow could not be read any more; the sooner this is known, the better.
            raise SourceUnreachable("The snapshot is gone", table=self._table.name)
        rows, self.exact = (empty(self.schema), None) if batch is None else batch
        if self._passing is not None:
            self._passing(rows, self.exact)
        return rows


def _read(
    connection: psycopg.Connection[Any], range: Range, schema: TableSchema
) -> Iterator[Batch | None]:
    """Give the rows of a range and verify its plan; None while the server is waited for."""
    binary = [column.binary for column in range.columns]
    with talking(table=range.table):
        if statement := as_bytes(connection):
            yield from asked(connection, statement.decode())
        yield from asked(
            connection,
            f"{importing(range.snapshot)}; set local row_security = off;"
            # One reader shall be one process of the server's, not several.
            " set local max_parallel_workers_per_gather = 0",
        )
        yield from asked(connection, f"copy ({range.query}) to stdout (format binary)")
        held: list[bytes | memoryview] = []
        for rows in _messages(connection):
            if held or not rows:
                yield batch_of(schema, binary, held) if held else None
            held = rows or []
        yield from _verify(connection, range)
        yield from asked(connection, "commit")
    # The last rows, or all of a small table, are given when nothing is locked any more.
    if held:
        yield batch_of(schema, binary, held)


def _messages(
    connection: psycopg.Connection[Any],
) -> Iterator[list[bytes | memoryview] | None]:
    """
    Give the rows of a COPY under way, as many together as make a batch.

    The server sends a row a message. The last message is no row and has nothing that tells
    it from one before the end is known, so each time the latest is kept back.
    """
    pgconn = connection.pgconn
    take = pgconn.get_copy_data
    rows: list[bytes | memoryview] = []
    size = 0
    begun = False
    until = monotonic() + PATIENCE_SECONDS
    while True:
        fresh: list[bytes | memoryview] = []
        # Once a row: nothing else may be in here.
        while (taken := take(1))[0] > 0:
            fresh.append(taken[1])
        if fresh:
            if not begun:
                begun = True
                fresh[0] = without_header(fresh[0])
            rows += fresh if fresh[0] else fresh[1:]
            size += sum(map(len, fresh))
            while len(rows) > 1 and (len(rows) > BATCH_ROWS or size > BATCH_BYTES):
                count = _fitting(rows)
                yield rows[:count]
                rows = rows[count:]
                size = sum(map(len, rows))
                until = monotonic() + PATIENCE_SECONDS
        if taken[0] < 0:
            break
        if (left := until - monotonic()) <= 0:
            yield rows[:-1]
            rows = rows[-1:]
            size = sum(map(len, rows))
            until = monotonic() + PATIENCE_SECONDS
        elif readable(pgconn, left):
            pgconn.consume_input()
    yield from results(connection)
    if not rows or rows.pop() != TRAILER:
        raise BadMessage("A copy of rows ended without its trailer")
    yield rows


def _fitting(rows: list[bytes | memoryview]) -> int:
    """How many rows make a batch: as many as it may have, one at least, and never the latest."""
    sizes = np.cumsum(np.fromiter(map(len, rows), np.int64, len(rows)))
    fit = int(np.searchsorted(sizes, BATCH_BYTES, side="right"))
    return max(1, min(fit, BATCH_ROWS, len(rows) - 1))


def _verify(connection: psycopg.Connection[Any], range: Range) -> Iterator[None]:
    """Compare the table, locked by the COPY before, with the plan."""
    shape = yield from shape_of(connection, range.relation)
    if shape.oid != range.oid:
        raise rewritten(range.table)
    if shape.fingerprint != range.fingerprint:
        raise SchemaChanged("Columns were altered during a copy", table=range.table)
    [found] = yield from asked(connection, f"select pg_catalog.pg_relation_filenode({range.oid})")
    if int(found.get_value(0, 0) or 0) != range.filenode:
        raise rewritten(range.table)


@contextlib.contextmanager
def _ended(connection: psycopg.Connection[Any]) -> Iterator[None]:
    """Call off what is under way at the end: a server that is not sending notices nothing else."""
    try:
        yield
    finally:
        if connection.pgconn.transaction_status == pq.TransactionStatus.ACTIVE:
            with contextlib.suppress(psycopg.Error):
                connection.cancel_safe(timeout=CANCEL_SECONDS)
