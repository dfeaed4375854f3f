"""
Reads the messages of a stream from a connection: by libpq, or directly from the socket.

Both ways have the same result. `LibpqWire` works with every kind of encryption; `SocketWire` is
faster and needs an unencrypted socket. libpq returns one message at a time, and on a busy stream
that costs more than decoding does. So without encryption, libpq connects and authenticates, and is
used after that only to close the connection. Its buffer is empty at that moment, because a server
that has answered everything sends nothing by itself. If libpq holds bytes nevertheless, the
response to our command does not start where it must, and that is an error.

Each message begins with its length, so a message can be found only from the one before it: a step
of Python for each, millions of times. If transactions hold one change each, two of every three
messages have known lengths and are skipped without a look. Whether that was right is then checked
for all of them at once, and the ones for which it was wrong are read again, one by one.
"""

from __future__ import annotations

import os
import select
import socket
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, Protocol

import numpy as np
import psycopg
from numpy.typing import NDArray
from psycopg import capabilities, pq
from psycopg.pq.abc import PGconn, PGresult

from headrace.capture.postgres.decode.pgoutput import BEGIN_SIZE, COMMIT_SIZE
from headrace.errors import BadMessage

# --- where messages begin in the bytes of a socket ------------------------------------------------

HEAD: Final = 5
"""The bytes of a message's kind and length."""

_OVERHEAD: Final = HEAD + 25
"""The overhead of a message of pgoutput: this head, and that of the replication protocol."""

_COMMIT: Final = _OVERHEAD + COMMIT_SIZE
_BEGIN: Final = _OVERHEAD + BEGIN_SIZE
_BETWEEN: Final = _COMMIT + _BEGIN

FEW: Final = 48
MOST: Final = 8_192
"""Steps taken at once, in either way: few at first, more while they succeed."""

_length = struct.Struct(">I").unpack_from


def whole_messages(
    buffer: bytes | bytearray, fill: int, at: int = 0
) -> tuple[NDArray[np.int64], int]:
    """Return where the complete messages in `buffer[at:fill]` begin, and where the last ends."""
    parts: list[NDArray[np.int64]] = []
    singly = FEW
    while True:
        heads, end = _one_by_one(buffer, fill, at, singly)
        parts.append(np.array(heads, np.int64))
        if len(heads) < singly:
            return np.concatenate(parts), end
        at = end
        sizes = [stop - start for start, stop in pairwise((*heads[-6:], end))]
        if (before := _before_a_change(sizes)) is None:
            singly = min(2 * singly, MOST)
            continue
        heads, at = _one_by_one(buffer, fill, at, before)
        parts.append(np.array(heads, np.int64))
        by_threes, right = FEW, True
        while right:
            found, at, right = _by_threes(buffer, fill, at, by_threes)
            parts.append(found)
            by_threes = min(4 * by_threes, MOST)
        singly = FEW


def _one_by_one(buffer: bytes | bytearray, fill: int, at: int, most: int) -> tuple[list[int], int]:
    heads: list[int] = []
    last = fill - HEAD
    for _ in range(most):
        if at > last:
            break
        following = at + 1 + _length(buffer, at + 1)[0]
        if following > fill:
            break
        heads.append(at)
        at = following
    return heads, at


def _before_a_change(sizes: Sequence[int]) -> int | None:
    """Return how many messages come before the next change; None if they do not go by threes."""
    for before in range(3):
        begins, commits = sizes[(2 + before) % 3 :: 3], sizes[(1 + before) % 3 :: 3]
        if all(size == _BEGIN for size in begins) and all(size == _COMMIT for size in commits):
            return before
    return None


def _by_threes(
    buffer: bytes | bytearray, fill: int, at: int, most: int
) -> tuple[NDArray[np.int64], int, bool]:
    """
    Step from change to change, over a Commit and a Begin each time.

    Return where messages begin, where the last of them ends, and whether to go on like this.
    """
    offsets: list[int] = []
    last = fill - HEAD
    for _ in range(most):
        if at > last:
            break
        offsets.append(at)
        at += 1 + _BETWEEN + _length(buffer, at + 1)[0]
    changes = np.array(offsets, np.int64)
    ends = np.append(changes[1:], at)
    commits, begins = ends - _BETWEEN, ends - _BEGIN
    lengths: NDArray[np.uint32] = np.ndarray(fill - 3, ">u4", buffer, strides=(1,))
    # After the first incomplete message nothing is right; offsets are only kept within bounds.
    right = ends <= fill
    within = np.minimum(commits, last), np.minimum(begins, last)
    right &= lengths[within[0] + 1] == _COMMIT - 1
    right &= lengths[within[1] + 1] == _BEGIN - 1
    count = len(changes) if right.all() else int(np.argmin(right))
    found = np.stack((changes[:count], commits[:count], begins[:count]), axis=1).ravel()
    end = int(ends[count - 1]) if count else int(changes[0]) if offsets else at
    return found, end, count == most


# --- messages from libpq --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CopyMessages:
    """The contents of complete CopyData messages: each is `buffer[start:stop]`."""

    buffer: bytes | bytearray
    starts: NDArray[np.int64]
    stops: NDArray[np.int64]

    @classmethod
    def joined(cls, contents: Sequence[bytes | memoryview]) -> CopyMessages:
        """Join separate messages into one buffer."""
        lengths = np.fromiter(map(len, contents), np.int64, len(contents))
        stops = np.cumsum(lengths)
        return cls(b"".join(contents), stops - lengths, stops)

    def part(self, first: int, end: int | None = None) -> CopyMessages:
        """Return some of the messages, over the same buffer."""
        return CopyMessages(self.buffer, self.starts[first:end], self.stops[first:end])


class StreamEnded(Exception):
    """The stream has ended: by an error of the server, or because the connection is lost."""

    def __init__(self, sqlstate: str | None = None) -> None:
        super().__init__(sqlstate)
        self.sqlstate = sqlstate


class Wire(Protocol):
    """
    A connection that runs one command, with messages in both directions.

    Used by one thread. Only `begin` waits; to wait for messages, poll `descriptor` after a
    `read` that returned nothing. Messages come in order, each once, and those received
    before the end are returned before `StreamEnded` is raised.
    """

    descriptor: int

    def begin(self, command: bytes, seconds: float) -> None:
        """Send the command and wait until its stream has started."""
        ...

    def read(self, most_bytes: int, enough: int = 0) -> CopyMessages | None:
        """
        Return the complete messages received, up to about `most_bytes`, or one that is longer.

        If fewer than `enough` bytes were received, they may be kept for the next call.
        """
        ...

    def send(self, content: bytes) -> None:
        """Send a message; what the socket does not accept now is sent by `flush`."""
        ...

    def flush(self) -> bool:
        """Send what is left; return whether everything is sent."""
        ...

    def close(self) -> None:
        """Release the connection without closing it."""
        ...


def is_plain(connection: PGconn) -> bool:
    """Whether the socket carries the plain protocol, without encryption."""
    if connection.ssl_in_use:
        return False
    # Encryption by GSSAPI comes with its authentication. A libpq that cannot report it counts as
    # encrypted.
    return capabilities.has_used_gssapi() and not connection.used_gssapi


class LibpqWire:
    """Messages from libpq, which is never allowed to wait: it would hold the GIL."""

    def __init__(self, connection: PGconn) -> None:
        self._connection = connection
        self._end: StreamEnded | None = None
        # Part of an encrypted record may be left inside the TLS library, where no poll sees it.
        # A record has 16 kB, and a call reads 8 or more: three calls without data leave nothing.
        self._looks = 1 if is_plain(connection) else 3
        self.descriptor = connection.socket

    def begin(self, command: bytes, seconds: float) -> None:
        until = time.monotonic() + seconds
        connection = self._connection
        try:
            connection.nonblocking = 1
            connection.send_query(command)
            while connection.flush() or connection.is_busy():
                wait_for(self.descriptor, until)
                connection.consume_input()
            result = connection.get_result()
        except psycopg.Error:
            raise StreamEnded from None
        if result is None or result.status != pq.ExecStatus.COPY_BOTH:
            raise StreamEnded(_sqlstate(result))

    def read(self, most_bytes: int, enough: int = 0) -> CopyMessages | None:
        parts: list[memoryview] = []
        size = 0
        # First what libpq has buffered, then what the socket has.
        size += self._drain(parts, most_bytes)
        looks = self._looks
        while looks and size < most_bytes and self._end is None:
            lost = None
            try:
                self._connection.consume_input()
            except psycopg.Error:
                lost = StreamEnded()
            more = self._drain(parts, most_bytes - size)
            size += more
            looks = self._looks if more else looks - 1
            # An error that the server reported says more than a lost connection.
            self._end = self._end or lost
        if not parts:
            if self._end is not None:
                raise self._end
            return None
        return CopyMessages.joined(parts)

    def send(self, content: bytes) -> None:
        try:
            self._connection.put_copy_data(content)
        except psycopg.Error:
            raise StreamEnded from None
        self.flush()

    def flush(self) -> bool:
        try:
            return self._connection.flush() == 0
        except psycopg.Error:
            raise StreamEnded from None

    def close(self) -> None:
        pass

    def _drain(self, parts: list[memoryview], most_bytes: int) -> int:
        """Move messages that libpq has to `parts`; return their size."""
        size = 0
        get = self._connection.get_copy_data
        try:
            while size < most_bytes and self._end is None:
                count, part = get(1)
                if count > 0:
                    parts.append(part)
                    size += count
                elif count == 0:
                    break
                else:
                    self._end = StreamEnded(self._final())
        except psycopg.Error:
            self._end = StreamEnded()
        return size

    def _final(self) -> str | None:
        if self._connection.is_busy():
            return None
        return _sqlstate(self._connection.get_result())


def wait_for(descriptor: int, until: float) -> None:
    """Wait until something can be read; raise `StreamEnded` at `until`."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    if not poll.poll(max(0.0, until - time.monotonic()) * 1000):
        raise StreamEnded


def _sqlstate(result: PGresult | None) -> str | None:
    if result is None:
        return None
    found = result.error_field(pq.DiagnosticField.SQLSTATE)
    return None if found is None else found.decode()


# --- messages directly from the socket ------------------------------------------------------------

SMALL = 64 << 10
"""Messages up to this size are copied out of the buffer; for more, the buffer is handed over."""

LONGEST = (1 << 30) + 1024
"""PostgreSQL sends no message longer than a gigabyte."""

_COPY_DATA = ord("d")
_ASYNCHRONOUS = b"NSA"  # NoticeResponse, ParameterStatus, NotificationResponse
_FINAL = b"cCZ"  # CopyDone, CommandComplete, ReadyForQuery
_head = struct.Struct(">cI").pack


def open_socket(connection: PGconn) -> socket.socket:
    """Return the socket of a connection that is idle and not encrypted, for use without libpq."""
    # Makes libpq process what may have arrived in between, so that its buffer is empty.
    connection.is_busy()
    found = socket.socket(fileno=os.dup(connection.socket))
    found.setblocking(False)
    return found


def message(kind: bytes, content: bytes) -> bytes:
    """Return a message with its head."""
    return _head(kind, len(content) + 4) + content


def receive(source: socket.socket, buffer: bytearray, fill: int) -> int | None:
    """Fill a buffer from `fill` on; return the bytes received; None: none yet, 0: the end."""
    try:
        with memoryview(buffer) as view:
            return source.recv_into(view[fill:])
    except BlockingIOError:
        return None
    except OSError:
        return 0


def message_size(buffer: bytes | bytearray, at: int, fill: int) -> int:
    """Return the length of the message at `at`, or of its head if that is incomplete."""
    if fill - at < HEAD:
        return HEAD
    length: int = _length(buffer, at + 1)[0]
    if not 4 <= length <= LONGEST:
        raise BadMessage("Message length is out of range", length=length)
    return 1 + length


def require_lengths(starts: NDArray[np.int64], end: int) -> None:
    """Raise `BadMessage` if one of the messages that begin here is shorter than its head."""
    if len(starts) and int(np.diff(starts, append=end).min()) < HEAD:
        raise BadMessage("Message is shorter than its head")


class SocketWire:
    """Messages directly from the socket of a connection that is idle and not encrypted."""

    def __init__(self, connection: PGconn) -> None:
        self._socket = open_socket(connection)
        self._buffer = bytearray(2 * SMALL)
        self._fill = 0
        self._out = bytearray()
        self._end: StreamEnded | None = None
        self.descriptor = self._socket.fileno()

    def begin(self, command: bytes, seconds: float) -> None:
        until = time.monotonic() + seconds
        self._put(b"Q", command + b"\0")
        while True:
            self._receive(SMALL)
            end = message_size(self._buffer, 0, self._fill)
            if end > self._fill:
                if self._end is not None:
                    raise self._end
                wait_for(self.descriptor, until)
                continue
            kind = self._buffer[0]
            if kind != ord("W"):
                self._handle_other(0, end)
            self._keep_from(end)
            if self._end is not None:
                raise self._end
            if kind == ord("W"):
                return

    def read(self, most_bytes: int, enough: int = 0) -> CopyMessages | None:
        if self._end is None:
            self._receive(most_bytes)
        if self._end is None and self._fill < min(enough, most_bytes):
            return None
        starts, end = whole_messages(self._buffer, self._fill)
        found = None
        if len(starts):
            stops = np.append(starts[1:], end)
            require_lengths(starts, end)
            ours = np.frombuffer(self._buffer, np.uint8)[starts] == _COPY_DATA
            for at in np.flatnonzero(~ours):
                self._handle_other(int(starts[at]), int(stops[at]))
            found = (starts[ours] + HEAD, stops[ours])
        if found is None or not len(found[0]):
            self._keep_from(end)
            if self._end is not None:
                raise self._end
            return None
        return CopyMessages(self._hand_out(end), *found)

    def send(self, content: bytes) -> None:
        self._put(b"d", content)

    def flush(self) -> bool:
        try:
            while self._out:
                del self._out[: self._socket.send(self._out)]
        except BlockingIOError:
            return False
        except OSError:
            raise StreamEnded from None
        return True

    def close(self) -> None:
        self._socket.close()

    def _put(self, kind: bytes, content: bytes) -> None:
        self._out += message(kind, content)
        self.flush()

    def _receive(self, most_bytes: int) -> None:
        """Fill the buffer with what the socket has, up to about `most_bytes`."""
        limit = max(most_bytes, message_size(self._buffer, 0, self._fill))
        while True:
            if self._fill == len(self._buffer):
                if self._fill >= limit:
                    return
                self._resize(min(limit, 4 * self._fill))
            room = len(self._buffer) - self._fill
            count = receive(self._socket, self._buffer, self._fill)
            if count is None:
                return
            if count == 0:
                self._end = StreamEnded()
                return
            self._fill += count
            if count < room:
                return

    def _handle_other(self, at: int, end: int) -> None:
        """Handle a message that does not belong to the stream."""
        kind = self._buffer[at]
        if kind == ord("E"):
            self._end = StreamEnded(error_field(bytes(self._buffer[at + HEAD : end]), b"C"))
        elif kind in _FINAL:
            self._end = self._end or StreamEnded()
        elif kind not in _ASYNCHRONOUS:
            raise BadMessage("Unknown kind of message", kind=kind, offset=at)

    def _hand_out(self, end: int) -> bytes | bytearray:
        """Return the buffer up to `end`; it is not written to again."""
        if end <= SMALL:
            with memoryview(self._buffer) as view:
                copied = bytes(view[:end])
            self._keep_from(end)
            return copied
        full, rest = self._buffer, self._fill - end
        # The next message is probably as long. Memory that is not touched costs nothing.
        self._buffer = bytearray(max(2 * SMALL, self._fill + self._fill // 2))
        self._buffer[:rest] = full[end : self._fill]
        self._fill = rest
        return full

    def _resize(self, size: int) -> None:
        larger = bytearray(size)
        larger[: self._fill] = self._buffer
        self._buffer = larger

    def _keep_from(self, end: int) -> None:
        rest = self._fill - end
        if end and rest:
            self._buffer[:rest] = self._buffer[end : self._fill]
        self._fill = rest


def error_field(content: bytes, name: bytes) -> str | None:
    """Return a field of an ErrorResponse."""
    for field in content.split(b"\0"):
        if field[:1] == name:
            return field[1:].decode("ascii", "replace")
    return None
