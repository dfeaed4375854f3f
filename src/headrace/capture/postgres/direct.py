"""
A stream's messages straight from the socket.

libpq hands out one message at a time, and on a busy stream that costs more than decoding
does. So where nothing is encrypted libpq connects and authenticates, and from then on is
asked only to close. Its buffer is empty at that moment, because a server that has answered
everything sends nothing by itself; should it hold something after all, the answer to our
command does not begin where one must, and that is an error.
"""

from __future__ import annotations

import os
import socket
import struct
import time

import numpy as np
from psycopg.pq.abc import PGconn

from headrace.capture.postgres.framing import HEAD, whole_messages
from headrace.capture.postgres.wires import Messages, StreamEnded, wait_for
from headrace.errors import BadMessage

SMALL = 64 << 10
"""What is no longer than this is copied out of the buffer; otherwise the buffer goes with it."""

LONGEST = (1 << 30) + 1024
"""PostgreSQL makes no message longer than a gigabyte."""

_COPY_DATA = ord("d")
_BY_THE_WAY = b"NSA"  # NoticeResponse, ParameterStatus, NotificationResponse
_THE_END = b"cCZ"  # CopyDone, CommandComplete, ReadyForQuery
_length = struct.Struct(">I").unpack_from
_head = struct.Struct(">cI").pack


class SocketWire:
    """Messages straight from the socket of a connection that is idle and not encrypted."""

    def __init__(self, connection: PGconn) -> None:
        # Takes in what may have come by the way, so that nothing of it is left in libpq.
        connection.is_busy()
        self._socket = socket.socket(fileno=os.dup(connection.socket))
        self._socket.setblocking(False)
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
            end = self._needed()
            if end > self._fill:
                if self._end is not None:
                    raise self._end
                wait_for(self.descriptor, until)
                continue
            kind = self._buffer[0]
            if kind != ord("W"):
                self._aside(0, end)
            self._keep_from(end)
            if self._end is not None:
                raise self._end
            if kind == ord("W"):
                return

    def read(self, most_bytes: int, enough: int = 0) -> Messages | None:
        if self._end is None:
            self._receive(most_bytes)
        if self._end is None and self._fill < min(enough, most_bytes):
            return None
        starts, end = whole_messages(self._buffer, self._fill)
        found = None
        if len(starts):
            stops = np.append(starts[1:], end)
            if (stops - starts).min() < HEAD:
                raise BadMessage("Length of a message is out of range")
            ours = np.frombuffer(self._buffer, np.uint8)[starts] == _COPY_DATA
            for at in np.flatnonzero(~ours):
                self._aside(int(starts[at]), int(stops[at]))
            found = (starts[ours] + HEAD, stops[ours])
        if found is None or not len(found[0]):
            self._keep_from(end)
            if self._end is not None:
                raise self._end
            return None
        return Messages(self._hand_out(end), *found)

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
        self._out += _head(kind, len(content) + 4) + content
        self.flush()

    def _receive(self, most_bytes: int) -> None:
        """Fill the buffer with what the socket has, up to about `most_bytes`."""
        limit = max(most_bytes, self._needed())
        while True:
            if self._fill == len(self._buffer):
                if self._fill >= limit:
                    return
                self._resize(min(limit, 4 * self._fill))
            room = len(self._buffer) - self._fill
            try:
                with memoryview(self._buffer) as view:
                    count = self._socket.recv_into(view[self._fill :])
            except BlockingIOError:
                return
            except OSError:
                count = 0
            if count == 0:
                self._end = StreamEnded()
                return
            self._fill += count
            if count < room:
                return

    def _needed(self) -> int:
        """Return how long the message is that the buffer begins with, as far as it tells."""
        if self._fill < HEAD:
            return HEAD
        length: int = _length(self._buffer, 1)[0]
        if not 4 <= length <= LONGEST:
            raise BadMessage("Length of a message is out of range", length=length)
        return 1 + length

    def _aside(self, at: int, end: int) -> None:
        """Take a message that is not of the stream."""
        kind = self._buffer[at]
        if kind == ord("E"):
            self._end = StreamEnded(error_field(bytes(self._buffer[at + HEAD : end]), b"C"))
        elif kind in _THE_END:
            self._end = self._end or StreamEnded()
        elif kind not in _BY_THE_WAY:
            raise BadMessage("Unknown kind of message", kind=kind, offset=at)

    def _hand_out(self, end: int) -> bytes | bytearray:
        """Return the buffer up to `end`; it is not written to again."""
        if end <= SMALL:
            with memoryview(self._buffer) as view:
                copied = bytes(view[:end])
            self._keep_from(end)
            return copied
        full, rest = self._buffer, self._fill - end
        # The next one is probably as long. Memory that is not touched costs nothing.
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
