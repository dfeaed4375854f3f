"""
The rows of a COPY straight from the socket.

libpq hands out one row at a time, and that costs more than everything else that is done
with a row. So where nothing is encrypted the statement goes past libpq, from its first byte
to the server's word that it is ready for another; in between libpq believes that it is idle,
and afterwards it is right again.

Where a message ends is said in its head, so each leads to the next only. But all rows of a
copy begin alike, and places that look like a row's head can be found in all bytes at once.
Those that are one follow each other without a gap, from a place that is known to be one.
"""

from __future__ import annotations

import os
import select
import socket
import struct
import time
from collections.abc import Iterator
from time import monotonic

import numpy as np
from numpy.typing import NDArray
from psycopg.pq.abc import PGconn

from headrace.capture.postgres.asking import PATIENCE_SECONDS
from headrace.capture.postgres.direct import LONGEST, error_field
from headrace.capture.postgres.rows import TRAILER, header_size
from headrace.capture.postgres.wires import Messages, StreamEnded
from headrace.errors import BadMessage

GATHER_SECONDS = 0.0005
"""A pause in which rows come together: to wake for each few of them costs both sides more."""

FIRST_BYTES = 256 << 10
"""How much a buffer takes at first, and what is looked through at once."""

MOST_RUNS = 64
"""Above so many gaps in one piece, what looked like heads was of no help."""

_HEAD = 5
_COPY_DATA = ord("d")
_READY = ord("Z")
_SAYS_NOTHING = b"HcCNSA"
"""CopyOutResponse, CopyDone, CommandComplete, and what may come at any time."""

_length = struct.Struct(">I").unpack_from
_Places = NDArray[np.int64]


class CopySocket:
    """
    Copies, one after the other, on a connection that is not encrypted and idle in between.

    `rows` gives the rows of one as they come and None while there are none; `over` says whether
    the server is done with it. Two buffers take turns: when the next rows are there, those
    given before can still be read, and no longer.
    """

    def __init__(self, connection: PGconn, most_rows: int, most_bytes: int) -> None:
        """About `most_rows` or `most_bytes` are given at a time."""
        self.over = True
        self._connection = connection
        self._socket = socket.socket(fileno=os.dup(connection.socket))
        self._socket.setblocking(False)
        self._poll = select.poll()
        self._poll.register(self._socket, select.POLLIN)
        self._fields = 0
        self._most_rows = most_rows
        self._most_bytes = most_bytes
        self._buffer = bytearray(FIRST_BYTES)
        self._other = bytearray()
        self._fill = 0
        self._scanned = 0
        """Where the first message begins that is not whole yet."""

        self._heads: list[_Places] = []
        self._count = 0
        self._flows = self._begun = self._trailed = False

    def close(self) -> None:
        """Let go of the connection, which is not closed by this."""
        self._socket.close()

    def rows(self, statement: str, fields: int) -> Iterator[Messages | None]:
        """
        Run a COPY, whose rows have so many `fields`, to its end.

        `StreamEnded` where the server ends it otherwise; the connection is of no use then.
        """
        # Takes in what may have come by the way, so that nothing of it is left in libpq.
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
            raise BadMessage("A copy of rows ended without its trailer")
        if self._fill:
            # The beginning of something that libpq would have to know, a farewell say.
            self.over = False
            raise StreamEnded

    def _send(self, content: bytes) -> None:
        rest = memoryview(b"Q" + struct.pack(">I", len(content) + 4) + content)
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
        """Take what the socket has, or some of it; return how much."""
        if self._fill == len(self._buffer):
            self._move(bytearray(max(2 * self._fill, self._scanned + self._needed())), 0)
        try:
            with memoryview(self._buffer) as view:
                count = self._socket.recv_into(view[self._fill :])
        except BlockingIOError:
            return 0
        except OSError:
            count = 0
        if not count:
            raise StreamEnded
        self._fill += count
        self._flows = True
        return count

    def _rest(self, until: float) -> None:
        """Wait for more: a moment where it is on its way, else until it comes."""
        if self._flows:
            time.sleep(GATHER_SECONDS)
            if self._poll.poll(0):
                return
        self._poll.poll(max(0.0, until - monotonic()) * 1000)

    def _needed(self) -> int:
        """Return how long the message is that is not whole yet, as far as it tells."""
        if self._fill - self._scanned < _HEAD:
            return _HEAD
        length: int = _length(self._buffer, self._scanned + 1)[0]
        if not 4 <= length <= LONGEST:
            raise BadMessage("Length of a message is out of range", length=length)
        return 1 + length

    def _scan(self) -> None:
        """Find the messages that are whole by now."""
        # Piece by piece, so that what is made of one stays in the processor's cache.
        for start in range(self._scanned, self._fill, FIRST_BYTES):
            stop = min(start + FIRST_BYTES, self._fill)
            if stop - self._scanned < self._needed():
                continue  # a long one is not looked through again with every piece of it
            found, self._scanned = heads_of(self._buffer, self._scanned, stop, self._fields)
            if len(found):
                self._heads.append(found)
                self._count += len(found)

    @property
    def _ready(self) -> bool:
        """Whether the server has said all."""
        return bool(self._heads) and self._buffer[self._heads[-1][-1]] == _READY

    def _hand_out(self) -> Messages | None:
        """Return the rows among the messages found."""
        full = self._buffer
        heads = np.concatenate(self._heads) if self._heads else np.empty(0, np.int64)
        self._heads, self._count = [], 0
        if not len(heads):
            return None
        stops = np.append(heads[1:], self._scanned)
        rows = np.frombuffer(full, np.uint8)[heads] == _COPY_DATA
        for at in np.flatnonzero(~rows).tolist():
            self._aside(full, int(heads[at]), int(stops[at]))
        starts, stops = heads[rows] + _HEAD, stops[rows]
        if len(starts) and not self._begun:
            self._begun = True
            starts[0] += header_size(full[int(starts[0]) : int(stops[0])])
            # The header has a message of its own, or that of the first row.
            if starts[0] == stops[0]:
                starts, stops = starts[1:], stops[1:]
        if len(starts):
            if self._trailed:
                raise BadMessage("A copy of rows goes on after its trailer")
            if full[int(starts[-1]) : int(stops[-1])] == TRAILER:
                self._trailed = True
                starts, stops = starts[:-1], stops[:-1]
        return Messages(full, starts, stops) if len(starts) else None

    def _turn(self) -> None:
        """Go on in the other buffer; after a row that was very long, in a small one again."""
        size = len(self._buffer)
        if size > 2 * self._most_bytes:
            size = max(FIRST_BYTES, 2 * (self._fill - self._scanned))
        spare = self._other if len(self._other) == size else bytearray(size)
        self._move(spare, self._scanned)

    def _move(self, to: bytearray, start: int) -> None:
        """Go on in another buffer, with what has come from `start` on."""
        rest = self._fill - start
        with memoryview(self._buffer) as view:
            to[:rest] = view[start : self._fill]
        self._other, self._buffer = self._buffer, to
        self._fill, self._scanned = rest, self._scanned - start

    def _aside(self, buffer: bytearray, at: int, end: int) -> None:
        """Take a message that is no row."""
        kind = buffer[at]
        if kind == ord("E"):
            # What follows is only that the server is ready again.
            self.over = True
            raise StreamEnded(error_field(bytes(buffer[at + _HEAD : end]), b"C"))
        if kind == _READY:
            self.over = True
        elif kind not in _SAYS_NOTHING:
            raise BadMessage("Unknown kind of message", kind=kind, offset=at)


def heads_of(buffer: bytes | bytearray, start: int, fill: int, fields: int) -> tuple[_Places, int]:
    """
    Return where the whole messages between `start` and `fill` begin, and where the last ends.

    `start` is where one begins, and rows of so many `fields` are what most of them are.
    """
    alike = _alike(buffer, start, fill, fields)
    lengths: NDArray[np.uint32] = np.ndarray(
        (max(len(buffer) - 3, 0),), ">u4", buffer, strides=(1,)
    )
    following = alike + 1 + lengths[alike + 1].astype(np.int64)
    gaps = np.append(np.flatnonzero(following[:-1] != alike[1:]), len(alike) - 1)
    if not len(alike) or len(gaps) > MOST_RUNS:
        return _one_by_one(buffer, start, fill)
    found: list[_Places] = []
    at = start
    while at + _HEAD <= fill:
        index = int(np.searchsorted(alike, at))
        if index < len(alike) and alike[index] == at:
            last = int(gaps[np.searchsorted(gaps, index)])
            run, end = alike[index : last + 1], int(following[last])
            if end > fill:
                # Only the last one of a run can reach so far: the others end before it.
                run, end = run[:-1], int(run[-1])
            if not len(run):
                break
            _require_lengths(run, end)
            found.append(run)
        else:
            end = at + 1 + int(lengths[at + 1])
            if end > fill:
                break
            found.append(np.array([at]))
            _require_lengths(found[-1], end)
        at = end
    return (np.concatenate(found) if found else np.empty(0, np.int64)), at


def _alike(buffer: bytes | bytearray, start: int, fill: int, fields: int) -> _Places:
    """Return the places that look like heads of rows; some may be bytes within one."""
    each = np.frombuffer(buffer, np.uint8)[start:fill]
    # The kind, four bytes of length, two of the number of fields.
    looks = each[:-6] == _COPY_DATA
    looks &= each[6:] == fields & 0xFF
    looks &= each[5:-1] == fields >> 8
    found: _Places = np.flatnonzero(looks)
    # Rows are mostly shorter than 64 kB, and few other bytes have these two zeros there.
    found = found[(each[found + 1] == 0) & (each[found + 2] == 0)]
    return found + start


def _one_by_one(buffer: bytes | bytearray, start: int, fill: int) -> tuple[_Places, int]:
    """Find the messages by going from each to the next."""
    heads: list[int] = []
    at, last = start, fill - _HEAD
    while at <= last:
        following = at + 1 + _length(buffer, at + 1)[0]
        if following > fill:
            break
        heads.append(at)
        at = following
    found = np.array(heads, np.int64)
    _require_lengths(found, at)
    return found, at


def _require_lengths(heads: _Places, end: int) -> None:
    if len(heads) and int(np.diff(heads, append=end).min()) < _HEAD:
        raise BadMessage("Length of a message is out of range")
