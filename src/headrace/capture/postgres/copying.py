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
from headrace.capture.postgres.copy_socket import CopySocket
from headrace.capture.postgres.holder import Holder
from headrace.capture.postgres.pieces import pieces
from headrace.capture.postgres.ranges import Range, planned, rewritten, shape_of
from headrace.capture.postgres.rows import TRAILER, batch_of, empty, header_size
from headrace.capture.postgres.wires import Messages, is_plain
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
    with closing(Reader(connect())) as reader:
        for batch in reader.read(range, schema, rows_per_s):
            if batch is not None:
                yield batch


class Reader:
    """Reads ranges, one after the other, on a connection that is its own from now on."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self.connection = connection
        self._socket: CopySocket | None = None
        if is_plain(connection.pgconn):
            # A batch may become longer by what comes at once, and is not to be cut for that.
            rows = max(1, BATCH_ROWS * 3 // 4)
            self._socket = CopySocket(connection.pgconn, rows, BATCH_BYTES)

    @property
    def usable(self) -> bool:
        """Whether the connection waits for the next range."""
        idle = self.connection.pgconn.transaction_status == pq.TransactionStatus.IDLE
        return idle and (self._socket is None or self._socket.over)

    def close(self) -> None:
        """Call off what is under way: a server that is not sending notices nothing else."""
        active = self.connection.pgconn.transaction_status == pq.TransactionStatus.ACTIVE
        if self._socket is not None:
            active = active or not self._socket.over
            self._socket.close()
        if active:
            with contextlib.suppress(psycopg.Error):
                self.connection.cancel_safe(timeout=CANCEL_SECONDS)
        self.connection.close()

    def read(
        self, range: Range, schema: TableSchema, rows_per_s: float | None
    ) -> Iterator[Batch | None]:
        """Give the rows of a range and verify its plan; None while the server is waited for."""
        for piece in pieces(range, rows_per_s):
            yield from self._read(piece, schema)

    def _read(self, range: Range, schema: TableSchema) -> Iterator[Batch | None]:
        connection = self.connection
        binary = [column.binary for column in range.columns]
        held: Messages | None = None
        with talking(table=range.table):
            if statement := as_bytes(connection):
                yield from asked(connection, statement.decode())
            yield from asked(
                connection,
                f"{importing(range.snapshot)}; set local row_security = off;"
                # One reader shall be one process of the server's, not several.
                " set local max_parallel_workers_per_gather = 0",
            )
            for rows in self._copied(range):
                if rows is None:
                    yield None if held is None else batch_of(schema, binary, held)
                    held = None
                    continue
                for part in _cut(rows):
                    if held is not None:
                        yield batch_of(schema, binary, held)
                    held = part
            yield from _verify(connection, range)
            yield from asked(connection, "commit")
        # The last rows, or all of a small table, are given when nothing is locked any more.
        if held is not None:
            yield batch_of(schema, binary, held)

    def _copied(self, range: Range) -> Iterator[Messages | None]:
        """Run the COPY of a range."""
        statement = f"copy ({range.query}) to stdout (format binary)"
        if self._socket is not None:
            yield from self._socket.rows(statement, len(range.columns))
        else:
            yield from asked(self.connection, statement)
            yield from _messages(self.connection)


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
            with closing(Reader(self._holder.connect())) as reader:
                plan = planned(
                    reader.connection, self._holder.id, self._table, self.schema, self._where
                )
                for part in plan:
                    for batch in [None] if part is None else self._read(reader, part):
                        yield self._given(batch)
                if self._passing is not None:
                    self._passing(None, None)
        finally:
            # Whoever reads to the end, or to an error, need not close.
            self._leave()

    def _read(self, reader: Reader, part: Range) -> Iterator[Batch | None]:
        return reader.read(part, self.schema, self._rows_per_s)

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


def _messages(connection: psycopg.Connection[Any]) -> Iterator[Messages | None]:
    """
    Give the rows of a COPY under way, by way of libpq.

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
                fresh[0] = memoryview(fresh[0])[header_size(fresh[0]) :]
            rows += fresh if fresh[0] else fresh[1:]
            size += sum(map(len, fresh))
        if taken[0] < 0:
            break
        late = monotonic() >= until
        if late or len(rows) > BATCH_ROWS or size > BATCH_BYTES:
            yield Messages.joined(rows[:-1]) if len(rows) > 1 else None
            rows = rows[-1:]
            size = sum(map(len, rows))
            until = monotonic() + PATIENCE_SECONDS
        elif readable(pgconn, until - monotonic()):
            pgconn.consume_input()
    yield from results(connection)
    if not rows or rows.pop() != TRAILER:
        raise BadMessage("A copy of rows ended without its trailer")
    if rows:
        yield Messages.joined(rows)


def _cut(rows: Messages) -> Iterator[Messages]:
    """Give rows as batches: as many as one may have, and one at least."""
    sizes = np.cumsum(rows.stops - rows.starts)
    first, count = 0, len(sizes)
    while first < count:
        before = sizes[first - 1] if first else 0
        fit = int(np.searchsorted(sizes, before + BATCH_BYTES, side="right"))
        end = max(first + 1, min(fit, first + BATCH_ROWS))
        yield rows.part(first, end)
        first = end


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
