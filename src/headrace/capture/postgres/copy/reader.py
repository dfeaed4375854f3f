"""
The rows of a table as a baseline: read by COPY in binary format, range after range.

A row of a COPY is the number of its fields, and for each field its length and its bytes; a length
of -1 is a null. Many rows are in one buffer and are split together, column by column: one step
finds a field of all of them. No length is trusted: one that leads out of its row is a `BadMessage`.

libpq returns one row at a time, and that costs more than all other work on a row. So on an
unencrypted connection, the rows are read directly from the socket. The statement bypasses libpq,
from its first byte to the server's ReadyForQuery. In between, libpq believes that the connection
is idle, and afterwards it is idle again.

The head of a message has its length, so each message can be found only from the one before it. But
all rows of a copy begin alike, and offsets that look like a row's head can be found in all bytes
at once. The real heads among them follow each other without a gap, from an offset known to be one.

Every range has a transaction of its own, so that no lock on the table is held for long. It is
compared with its plan at the end of that transaction, while the lock keeps the answer valid (R16).
A baseline whose table was rewritten is abandoned and taken again.

Long because the format of a row, the socket it comes from and the ranges it belongs to are one
path.
"""

from __future__ import annotations

import contextlib
import select
import struct
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from time import monotonic
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import psycopg
import pyarrow as pa
from numpy.typing import NDArray
from psycopg import pq
from psycopg.pq.abc import PGconn

from headrace.capture.postgres.connection import (
    PATIENCE_SECONDS,
    as_bytes,
    asked,
    importing,
    readable,
    results,
    talking,
)
from headrace.capture.postgres.copy.ranges import Range, pieces, planned, rewritten, shape_of
from headrace.capture.postgres.copy.snapshot import HeldSnapshot
from headrace.capture.postgres.decode.binary import binary_column, fixed_column
from headrace.capture.postgres.decode.text import text_column
from headrace.capture.postgres.server.catalog import CatalogTable
from headrace.capture.postgres.stream.wire import (
    HEAD,
    CopyMessages,
    StreamEnded,
    error_field,
    is_plain,
    message,
    message_size,
    open_socket,
    receive,
    require_lengths,
    whole_messages,
)
from headrace.changelog.schema import TableSchema
from headrace.errors import BadMessage, SchemaChanged, SourceUnreachable

# --- rows split, column by column -----------------------------------------------------------------

SIGNATURE = b"PGCOPY\n\xff\r\n\x00"
TRAILER = b"\xff\xff"
_LAYOUT = struct.Struct(">Ii")
_CRITICAL = 0xFFFF_0000
"""Flags that mean that rows have an unknown format."""

Offsets = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class CopyField:
    """The offsets of the values of one column."""

    start: Offsets
    stop: Offsets
    here: npt.NDArray[np.bool_] | None
    """Which rows have a value; None: all."""

    size: int | None
    """The size of each value in bytes, if all have the same; None: unknown."""


def header_size(message: bytes | bytearray | memoryview) -> int:
    """Return the length of a COPY's header, with which the first message begins."""
    start = len(SIGNATURE)
    if bytes(message[:start]) != SIGNATURE or len(message) < start + _LAYOUT.size:
        raise BadMessage("COPY data does not begin with its signature", length=len(message))
    flags, extension = _LAYOUT.unpack_from(message, start)
    start += _LAYOUT.size
    if flags & _CRITICAL or not 0 <= extension <= len(message) - start:
        raise BadMessage("COPY data has an unknown header", flags=flags)
    return start + int(extension)


def batch_of(
    schema: TableSchema, binary: Sequence[bool], rows: CopyMessages
) -> tuple[pa.RecordBatch, pa.Array | None]:
    """
    Return rows as Arrow, and the exact texts of values that their columns cannot hold (R23f).

    `binary` says for each column whether its values are in the type's binary format, or
    texts as PostgreSQL prints them. The result does not refer to the rows' buffer.
    """
    exact_texts: dict[int, dict[int, str]] = {}
    arrays = []
    raw = pa.py_buffer(rows.buffer)
    fields = find_fields(rows, len(schema.columns))
    for column, field, sent in zip(schema.columns, fields, binary, strict=True):
        array = None
        if sent and field.size is not None:
            array = fixed_column(column.type, field.size, rows.buffer, field.start, field.here)
        if array is None:
            decode = binary_column if sent else text_column
            array, unrepresentable = decode(column.type, _collect(raw, field))
            for index, text in unrepresentable:
                exact_texts.setdefault(index, {})[column.field] = text
        arrays.append(array)
    batch = pa.RecordBatch.from_arrays(arrays, schema=schema.arrow)
    return batch, _exact(schema, len(rows.starts), exact_texts) if exact_texts else None


def empty(schema: TableSchema) -> pa.RecordBatch:
    """Return a batch without rows."""
    return pa.RecordBatch.from_pylist([], schema=schema.arrow)


def fields_of(rows: CopyMessages, count: int) -> list[pa.Array]:
    """Return the fields of rows that have `count` each, as one array of bytes per column."""
    raw = pa.py_buffer(rows.buffer)
    return [_collect(raw, field) for field in find_fields(rows, count)]


def find_fields(rows: CopyMessages, count: int) -> list[CopyField]:
    """
    Find the fields of rows that have `count` each; all are within their row.

    Lengths only lead forward. So if the last field of a row ends where the row does, all fields
    are within it. This is checked once, when all fields are found and none is read yet.
    """
    starts, stops = rows.starts, rows.stops
    if len(stops) and stops[-1] > np.iinfo(np.int32).max:
        raise BadMessage("Rows are larger than 2 GiB", length=int(stops[-1]))
    _require(starts + 2 <= stops, starts)
    _require(_view(rows.buffer, ">i2")[starts] == count, starts)
    lengths = _view(rows.buffer, ">i4")
    offset = starts + 2
    found = []
    for _ in range(count):
        try:
            length = lengths[offset].astype(np.int32)
        except IndexError:
            # Only a malformed row leads out of the buffer.
            _require(offset + 4 <= stops, offset)
            raise
        found.append(field := _field(offset, length))
        offset = field.stop
    _require(offset == stops, offset)
    return found


def _field(offset: Offsets, length: npt.NDArray[np.int32]) -> CopyField:
    """Return the field whose lengths are at `offset`, followed by its bytes."""
    start = offset + 4
    least, most = (int(length.min()), int(length.max())) if len(length) else (0, 0)
    if least == most >= 0:
        return CopyField(start, start + most, None, most)
    if least >= 0:
        return CopyField(start, start + length, None, None)
    _require(length >= -1, offset)
    here = length >= 0
    present = length[here]
    size = most if len(present) and int(present.min()) == most else None
    return CopyField(start, start + np.maximum(length, 0), here, size)


def _view(buffer: bytes | bytearray, kind: str) -> npt.NDArray[np.signedinteger]:
    """Return the numbers that begin at every byte, aligned or not."""
    size = max(len(buffer) - np.dtype(kind).itemsize + 1, 0)
    return np.ndarray((size,), kind, buffer, strides=(1,))


def _collect(raw: pa.Buffer, field: CopyField) -> pa.Array:
    """
    Return the bytes of a field's values as an array; null if a row has none.

    Values and the gaps between them alternate in an array over the buffer as it is; every
    second element is taken. Python touches no single value.
    """
    count = len(field.start)
    offsets = np.empty(2 * count + 1, np.int32)
    offsets[0:-1:2] = field.start
    offsets[1::2] = field.stop
    offsets[-1] = field.stop[-1] if count else 0
    both = pa.Array.from_buffers(pa.binary(), 2 * count, [None, pa.py_buffer(offsets), raw])
    values = np.arange(0, 2 * count, 2, dtype=np.int32)
    here = field.here
    return both.take(pa.array(values) if here is None else pa.array(values, mask=~here))


def _require(sound: npt.NDArray[np.bool_], position: Offsets) -> None:
    if not sound.all():
        wrong = int(np.argmin(sound))
        raise BadMessage("Row of COPY data is malformed", offset=int(position[wrong]), row=wrong)


def _exact(schema: TableSchema, count: int, exact_texts: dict[int, dict[int, str]]) -> pa.Array:
    kind = schema.segment.field("_exact").type
    return pa.array(
        [list(exact_texts[row].items()) if row in exact_texts else None for row in range(count)],
        kind,
    )


# --- rows directly from the socket ----------------------------------------------------------------

ACCUMULATE_SECONDS = 0.0005
"""A pause in which rows accumulate: waking up for a few of them costs both sides more."""

FIRST_BYTES = 256 << 10
"""The initial size of a buffer, and how much is scanned at once."""

MOST_RUNS = 64
"""With more gaps than this in one piece, messages are found one by one instead."""

_COPY_DATA = ord("d")
_READY = ord("Z")
_SAYS_NOTHING = b"HcCNSA"
"""CopyOutResponse, CopyDone, CommandComplete, and messages that may come at any time."""


class CopySocket:
    """
    Runs COPY statements, one after the other, on an unencrypted connection, idle in between.

    `rows` yields the rows of one as they arrive, and None while there are none; `over` says
    whether the server has finished it. Two buffers alternate: rows can be read until the rows
    after the next ones are requested.
    """

    def __init__(self, connection: PGconn, most_rows: int, most_bytes: int) -> None:
        """Yield about `most_rows` or `most_bytes` at a time."""
        self.over = True
        self._connection = connection
        self._socket = open_socket(connection)
        self._poll = select.poll()
        self._poll.register(self._socket, select.POLLIN)
        self._fields = 0
        self._most_rows = most_rows
        self._most_bytes = most_bytes
        self._buffer = bytearray(FIRST_BYTES)
        self._other = bytearray()
        self._fill = 0
        self._scanned = 0
        """The offset of the first message that is not complete yet."""

        self._heads: list[Offsets] = []
        self._count = 0
        self._flows = self._begun = self._trailed = False

    def close(self) -> None:
        """Release the connection without closing it."""
        self._socket.close()

    def rows(self, statement: str, fields: int) -> Iterator[CopyMessages | None]:
        """
        Run a COPY, whose rows have this many `fields`, to its end.

        Raises `StreamEnded` if the server aborts it; the connection is then unusable.
        """
        # Makes libpq process what may have arrived in between, so that its buffer is empty.
        self._connection.is_busy()
        self._fields = fields
        self._flows = self._begun = self._trailed = False
        self._send(statement.encode() + b"\0")
        self.over = False
        until = monotonic() + PATIENCE_SECONDS
        while not self.over:
            more = self._receive()
            if not more or self._fill - self._scanned >= FIRST_BYTES:
                self._scan()
            full = self._count >= self._most_rows or self._scanned >= self._most_bytes
            if full or self._ready or (not more and monotonic() >= until):
                yield self._hand_out()
                self._turn()
                until = monotonic() + PATIENCE_SECONDS
            elif not more:
                self._rest(until)
        if not self._trailed:
            raise BadMessage("COPY data ended without its trailer")
        if self._fill:
            # The beginning of a message that libpq would have to process, such as a shutdown.
            self.over = False
            raise StreamEnded

    def _send(self, content: bytes) -> None:
        rest = memoryview(message(b"Q", content))
        poll = select.poll()
        poll.register(self._socket, select.POLLOUT)
        while rest:
            try:
                rest = rest[self._socket.send(rest) :]
            except BlockingIOError:
                poll.poll(PATIENCE_SECONDS * 1000)
            except OSError:
                raise StreamEnded from None

    def _receive(self) -> int:
        """Read what the socket has, or some of it; return the number of bytes."""
        if self._fill == len(self._buffer):
            self._move(bytearray(max(2 * self._fill, self._scanned + self._needed())), 0)
        count = receive(self._socket, self._buffer, self._fill)
        if count is None:
            return 0
        if not count:
            raise StreamEnded
        self._fill += count
        self._flows = True
        return count

    def _rest(self, until: float) -> None:
        """Wait for more: for a moment while rows are arriving, otherwise until they arrive."""
        if self._flows:
            time.sleep(ACCUMULATE_SECONDS)
            if self._poll.poll(0):
                return
        self._poll.poll(max(0.0, until - monotonic()) * 1000)

    def _needed(self) -> int:
        """Return the length of the incomplete message, as far as it is known."""
        return message_size(self._buffer, self._scanned, self._fill)

    def _scan(self) -> None:
        """Find the messages that are complete by now."""
        # Piece by piece, so that the arrays of one piece stay in the processor's cache.
        for start in range(self._scanned, self._fill, FIRST_BYTES):
            stop = min(start + FIRST_BYTES, self._fill)
            if stop - self._scanned < self._needed():
                continue  # a long message is not scanned again with every piece of it
            found, self._scanned = heads_of(self._buffer, self._scanned, stop, self._fields)
            if len(found):
                self._heads.append(found)
                self._count += len(found)

    @property
    def _ready(self) -> bool:
        """Whether the server is ready for the next statement."""
        return bool(self._heads) and self._buffer[self._heads[-1][-1]] == _READY

    def _hand_out(self) -> CopyMessages | None:
        """Return the rows among the messages found."""
        full = self._buffer
        heads = np.concatenate(self._heads) if self._heads else np.empty(0, np.int64)
        self._heads, self._count = [], 0
        if not len(heads):
            return None
        stops = np.append(heads[1:], self._scanned)
        rows = np.frombuffer(full, np.uint8)[heads] == _COPY_DATA
        for at in np.flatnonzero(~rows).tolist():
            self._handle_other(full, int(heads[at]), int(stops[at]))
        starts, stops = heads[rows] + HEAD, stops[rows]
        if len(starts) and not self._begun:
            self._begun = True
            starts[0] += header_size(full[int(starts[0]) : int(stops[0])])
            # The header is a message of its own, or part of the first row's.
            if starts[0] == stops[0]:
                starts, stops = starts[1:], stops[1:]
        if len(starts):
            if self._trailed:
                raise BadMessage("COPY data continues after its trailer")
            if full[int(starts[-1]) : int(stops[-1])] == TRAILER:
                self._trailed = True
                starts, stops = starts[:-1], stops[:-1]
        return CopyMessages(full, starts, stops) if len(starts) else None

    def _turn(self) -> None:
        """Switch to the other buffer; after a very long row, to a small one again."""
        size = len(self._buffer)
        if size > 2 * self._most_bytes:
            size = max(FIRST_BYTES, 2 * (self._fill - self._scanned))
        spare = self._other if len(self._other) == size else bytearray(size)
        self._move(spare, self._scanned)

    def _move(self, to: bytearray, start: int) -> None:
        """Switch to another buffer, and move the bytes from `start` on to it."""
        rest = self._fill - start
        with memoryview(self._buffer) as view:
            to[:rest] = view[start : self._fill]
        self._other, self._buffer = self._buffer, to
        self._fill, self._scanned = rest, self._scanned - start

    def _handle_other(self, buffer: bytearray, at: int, end: int) -> None:
        """Handle a message that is not a row."""
        kind = buffer[at]
        if kind == ord("E"):
            # Only ReadyForQuery follows.
            self.over = True
            raise StreamEnded(error_field(bytes(buffer[at + HEAD : end]), b"C"))
        if kind == _READY:
            self.over = True
        elif kind not in _SAYS_NOTHING:
            raise BadMessage("Unknown kind of message", kind=kind, offset=at)


def heads_of(buffer: bytes | bytearray, start: int, fill: int, fields: int) -> tuple[Offsets, int]:
    """
    Return where the complete messages between `start` and `fill` begin, and where the last ends.

    A message begins at `start`, and most of them are rows with this many `fields`.
    """
    alike = _alike(buffer, start, fill, fields)
    lengths: NDArray[np.uint32] = np.ndarray(
        (max(len(buffer) - 3, 0),), ">u4", buffer, strides=(1,)
    )
    following = alike + 1 + lengths[alike + 1].astype(np.int64)
    gaps = np.append(np.flatnonzero(following[:-1] != alike[1:]), len(alike) - 1)
    if not len(alike) or len(gaps) > MOST_RUNS:
        one_by_one, end = whole_messages(buffer, fill, start)
        require_lengths(one_by_one, end)
        return one_by_one, end
    found: list[Offsets] = []
    at = start
    while at + HEAD <= fill:
        index = int(np.searchsorted(alike, at))
        if index < len(alike) and alike[index] == at:
            last = int(gaps[np.searchsorted(gaps, index)])
            run, end = alike[index : last + 1], int(following[last])
            if end > fill:
                # Only the last message of a run can be incomplete: the others end before it.
                run, end = run[:-1], int(run[-1])
            if not len(run):
                break
            require_lengths(run, end)
            found.append(run)
        else:
            end = at + 1 + int(lengths[at + 1])
            if end > fill:
                break
            found.append(np.array([at]))
            require_lengths(found[-1], end)
        at = end
    return (np.concatenate(found) if found else np.empty(0, np.int64)), at


def _alike(buffer: bytes | bytearray, start: int, fill: int, fields: int) -> Offsets:
    """Return the offsets that look like heads of rows; some may be bytes inside a row."""
    each = np.frombuffer(buffer, np.uint8)[start:fill]
    # The kind, four bytes of length, two of the number of fields.
    looks = each[:-6] == _COPY_DATA
    looks &= each[6:] == fields & 0xFF
    looks &= each[5:-1] == fields >> 8
    found: Offsets = np.flatnonzero(looks)
    # Rows are mostly shorter than 64 kB, and few other bytes have two zeros there.
    found = found[(each[found + 1] == 0) & (each[found + 2] == 0)]
    return found + start


# --- ranges, one after the other ------------------------------------------------------------------

BATCH_ROWS = 20_000
BATCH_BYTES = 16 << 20
CANCEL_SECONDS = 2.0
"""How long to wait for a server to stop a COPY; it notices the closed connection later anyway."""

Batch: TypeAlias = tuple[pa.RecordBatch, pa.Array | None]
"""Rows as `TableSchema.arrow`, and exact texts in the format of a segment's `_exact`."""


def read_range(
    connect: Callable[[], psycopg.Connection[Any]],
    range: Range,
    schema: TableSchema,
    rows_per_s: float | None = None,
) -> Iterator[Batch]:
    """
    Yield the rows of a range, over a connection of its own to the snapshot's server.

    With `rows_per_s` batches are small, so that the caller can pause between them.

    The rows are valid only if the iterator is exhausted: then the table was as planned.
    `SourceUnreachable` means that it was not, or that the snapshot is gone;
    `SchemaChanged` means that its columns have changed.
    """
    with closing(CopyReader(connect())) as reader:
        for batch in reader.read(range, schema, rows_per_s):
            if batch is not None:
                yield batch


class CopyReader:
    """Reads ranges, one after the other, on a connection that it owns from now on."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self.connection = connection
        self._socket: CopySocket | None = None
        if is_plain(connection.pgconn):
            # What arrives at once may make a batch longer, and should not make it be cut.
            rows = max(1, BATCH_ROWS * 3 // 4)
            self._socket = CopySocket(connection.pgconn, rows, BATCH_BYTES)

    @property
    def usable(self) -> bool:
        """Whether the connection is ready for the next range."""
        idle = self.connection.pgconn.transaction_status == pq.TransactionStatus.IDLE
        return idle and (self._socket is None or self._socket.over)

    def close(self) -> None:
        """Cancel a running statement: a server that is not sending notices nothing else."""
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
        """Yield the rows of a range and verify its plan; None while waiting for the server."""
        for piece in pieces(range, rows_per_s):
            yield from self._read(piece, schema)

    def _read(self, range: Range, schema: TableSchema) -> Iterator[Batch | None]:
        connection = self.connection
        binary = [column.binary for column in range.columns]
        held: CopyMessages | None = None
        with talking(table=range.table):
            if statement := as_bytes(connection):
                yield from asked(connection, statement.decode())
            yield from asked(
                connection,
                f"{importing(range.snapshot)}; set local row_security = off;"
                # One reader should use one process of the server, not several.
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
        # The last rows, or all of a small table, are yielded after the lock is released.
        if held is not None:
            yield batch_of(schema, binary, held)

    def _copied(self, range: Range) -> Iterator[CopyMessages | None]:
        """Run the COPY of a range."""
        statement = f"copy ({range.query}) to stdout (format binary)"
        if self._socket is not None:
            yield from self._socket.rows(statement, len(range.columns))
        else:
            yield from asked(self.connection, statement)
            yield from _messages(self.connection)


class PostgresCopy:
    """
    A running baseline: all ranges of a table, one after the other, under one snapshot.

    With `owns_holder` it releases the snapshot at its end; otherwise other copies read under
    it, too. With `rows_per_s` batches are small, so that the caller can pause between them. A
    step waits for a tenth of a second at most, and then yields a batch without rows.
    """

    def __init__(
        self,
        holder: HeldSnapshot,
        table: CatalogTable,
        schema: TableSchema,
        *,
        where: str = "",
        owns_holder: bool = True,
        expected: int | None = None,
        rows_per_s: float | None = None,
        passing: Callable[[pa.RecordBatch | None, pa.Array | None], None] | None = None,
    ) -> None:
        """`passing` is called with each batch and its exact texts, and with None at the end."""
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
        """End its transaction and release its snapshot; at any time, and safe to call again."""
        self._batches.close()
        self._leave()

    def _all(self) -> Generator[pa.RecordBatch, None, None]:
        try:
            with closing(CopyReader(self._holder.connect())) as reader:
                plan = planned(
                    reader.connection, self._holder.id, self._table, self.schema, self._where
                )
                for part in plan:
                    for batch in [None] if part is None else self._read(reader, part):
                        yield self._given(batch)
                if self._passing is not None:
                    self._passing(None, None)
        finally:
            # A caller that reads to the end, or to an error, need not close.
            self._leave()

    def _read(self, reader: CopyReader, part: Range) -> Iterator[Batch | None]:
        return reader.read(part, self.schema, self._rows_per_s)

    def _leave(self) -> None:
        if not self._closed:
            self._closed = True
            self._holder.readers -= 1
            if self._owns_holder:
                self._holder.close()

    def _given(self, batch: Batch | None) -> pa.RecordBatch:
        if not self._holder.alive:
            # The following ranges could not be read any more; it is better to fail early.
            raise SourceUnreachable("The snapshot is gone", table=self._table.name)
        rows, self.exact = (empty(self.schema), None) if batch is None else batch
        if self._passing is not None:
            self._passing(rows, self.exact)
        return rows


def _messages(connection: psycopg.Connection[Any]) -> Iterator[CopyMessages | None]:
    """
    Yield the rows of a running COPY from libpq.

    The server sends one row per message. The last message is not a row, and can be recognized
    only once the end is known, so the latest message is always held back.
    """
    pgconn = connection.pgconn
    take = pgconn.get_copy_data
    rows: list[bytes | memoryview] = []
    size = 0
    begun = False
    until = monotonic() + PATIENCE_SECONDS
    while True:
        fresh: list[bytes | memoryview] = []
        # Runs once per row: keep it minimal.
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
            yield CopyMessages.joined(rows[:-1]) if len(rows) > 1 else None
            rows = rows[-1:]
            size = sum(map(len, rows))
            until = monotonic() + PATIENCE_SECONDS
        elif readable(pgconn, until - monotonic()):
            pgconn.consume_input()
    yield from results(connection)
    if not rows or rows.pop() != TRAILER:
        raise BadMessage("COPY data ended without its trailer")
    if rows:
        yield CopyMessages.joined(rows)


def _cut(rows: CopyMessages) -> Iterator[CopyMessages]:
    """Yield rows as batches: as many rows as allowed, and at least one."""
    sizes = np.cumsum(rows.stops - rows.starts)
    first, count = 0, len(sizes)
    while first < count:
        before = sizes[first - 1] if first else 0
        fit = int(np.searchsorted(sizes, before + BATCH_BYTES, side="right"))
        end = max(first + 1, min(fit, first + BATCH_ROWS))
        yield rows.part(first, end)
        first = end


def _verify(connection: psycopg.Connection[Any], range: Range) -> Iterator[None]:
    """Compare the table, which the COPY has locked, with the plan."""
    shape = yield from shape_of(connection, range.relation)
    if shape.oid != range.oid:
        raise rewritten(range.table)
    if shape.fingerprint != range.fingerprint:
        raise SchemaChanged("Columns were altered during a copy", table=range.table)
    [found] = yield from asked(connection, f"select pg_catalog.pg_relation_filenode({range.oid})")
    if int(found.get_value(0, 0) or 0) != range.filenode:
        raise rewritten(range.table)
