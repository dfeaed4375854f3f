"""
How a stream's messages are got off a connection.

There are two ways, with the same result. libpq's own, here, works with every kind of
encryption; the other (`direct.py`) is faster and needs a socket without any.
"""

from __future__ import annotations

import select
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import psycopg
from numpy.typing import NDArray
from psycopg import capabilities, pq
from psycopg.pq.abc import PGconn, PGresult


@dataclass(frozen=True, slots=True)
class Messages:
    """The contents of whole CopyData messages: of each, `buffer[start:stop]`."""

    buffer: bytes | bytearray
    starts: NDArray[np.int64]
    stops: NDArray[np.int64]

    @classmethod
    def joined(cls, contents: Sequence[bytes | memoryview]) -> Messages:
        """Return messages that lie each by itself, as one buffer."""
        lengths = np.fromiter(map(len, contents), np.int64, len(contents))
        stops = np.cumsum(lengths)
        return cls(b"".join(contents), stops - lengths, stops)

    def part(self, first: int, end: int | None = None) -> Messages:
        """Return some of them, over the same buffer."""
        return Messages(self.buffer, self.starts[first:end], self.stops[first:end])


class StreamEnded(Exception):
    """The stream is over: by an error of the server's, or because nobody is there any more."""

    def __init__(self, sqlstate: str | None = None) -> None:
        super().__init__(sqlstate)
        self.sqlstate = sqlstate


class Wire(Protocol):
    """
    A connection on which one command is run, whose messages go both ways.

    Used by one thread. Only `begin` waits; who wants to wait otherwise polls `descriptor`
    after a `read` that gave nothing. Messages come in order, each once, and what came
    before an end is given out before `StreamEnded` is raised.
    """

    descriptor: int

    def begin(self, command: bytes, seconds: float) -> None:
        """Send the command and wait until its stream has begun."""
        ...

    def read(self, most_bytes: int, enough: int = 0) -> Messages | None:
        """
        Return the whole messages that are there, up to about `most_bytes`, or a longer one.

        Where fewer than `enough` bytes are there they may be kept for the next time.
        """
        ...

    def send(self, content: bytes) -> None:
        """Send a message; what the socket does not take now is sent by `flush`."""
        ...

    def flush(self) -> bool:
        """Send what is left; return whether nothing is left any more."""
        ...

    def close(self) -> None:
        """Let go of the connection, which is not closed by this."""
        ...


def is_plain(connection: PGconn) -> bool:
    """Whether the socket carries the protocol itself, and nothing around it."""
    if connection.ssl_in_use:
        return False
    # Encryption by GSSAPI comes with its authentication. A libpq that cannot tell is not trusted.
    return capabilities.has_used_gssapi() and not connection.used_gssapi


class LibpqWire:
    """Messages by way of libpq, which is never left to wait: it would hold the GIL."""

    def __init__(self, connection: PGconn) -> None:
        self._connection = connection
        self._end: StreamEnded | None = None
        # Of an encrypted record a part may be left inside the library, where no poll sees it.
        # A record has 16 kB, and a call takes 8 or more: three without news leave nothing.
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

    def read(self, most_bytes: int, enough: int = 0) -> Messages | None:
        parts: list[memoryview] = []
        size = 0
        # First what libpq has, then what the socket has.
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
            # An error that the server told in time says more than that it is gone.
            self._end = self._end or lost
        if not parts:
            if self._end is not None:
                raise self._end
            return None
        return Messages.joined(parts)

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
    """Wait until something can be read; past `until` the stream counts as ended."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    if not poll.poll(max(0.0, until - time.monotonic()) * 1000):
        raise StreamEnded


def _sqlstate(result: PGresult | None) -> str | None:
    if result is None:
        return None
    found = result.error_field(pq.DiagnosticField.SQLSTATE)
    return None if found is None else found.decode()
