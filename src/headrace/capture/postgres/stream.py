"""
The stream of changes from a replication slot, as whole messages in one buffer.

What the server is told about us is in `status.py`, how bytes are got off the connection in
`wires.py` and `direct.py`, and when in `pace.py`. This puts them together: it waits,
answers the server, and gives out what pgoutput sent.
"""

from __future__ import annotations

import contextlib
import os
import select
import struct
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import psycopg
from numpy.typing import NDArray
from psycopg.pq.abc import PGconn

from headrace.capture.postgres.connection import translated
from headrace.capture.postgres.direct import SocketWire
from headrace.capture.postgres.keeper import AWAY_SECONDS, Keeper
from headrace.capture.postgres.pace import Pace
from headrace.capture.postgres.place import lsn_text
from headrace.capture.postgres.status import Status
from headrace.capture.postgres.wires import LibpqWire, Messages, StreamEnded, Wire, is_plain
from headrace.errors import (
    BadMessage,
    HeadraceError,
    PublicationRefused,
    ServerRefused,
    SlotRefused,
    SourceUnreachable,
)

MOST_BYTES = 16 << 20
BEGIN_SECONDS = 60.0

_DATA = ord("w")
_KEEPALIVE = ord("k")
_DATA_HEAD = 25
_KEEPALIVE_SIZE = 18
_number = struct.Struct(">Q").unpack_from


@dataclass(frozen=True, slots=True)
class Received:
    """Messages of pgoutput: each is `buffer[start:stop]` and begins with its kind."""

    buffer: bytes | bytearray
    """It is not written to again, and may be longer than the last message."""

    starts: NDArray[np.int64]
    stops: NDArray[np.int64]
    end: int
    """How far the server's log is sent with these messages and those before."""


class Stream:
    """
    Reads from a slot; owns the connection from then on, also when it cannot begin.

    One thread uses it; only `wake` may be called from others. While that thread is away, for a
    few minutes, the server still hears from us. Messages come in the order sent and each once.
    What talks to the server raises `SourceUnreachable` when the stream is over, after everything
    that came before has been given out.
    """

    def __init__(
        self,
        connection: psycopg.Connection[Any],
        slot: str,
        at: int,
        publication: str,
        *,
        streaming: bool = True,
        clock: Callable[[], float] = time.monotonic,
        direct: bool | None = None,
    ) -> None:
        """Start at `at`; `direct` demands or forbids to read from the socket itself."""
        self._slot = slot
        self._clock = clock
        self._begun = False
        self._here = clock()
        # Held while the connection or what is told over it is touched.
        self._speaks = threading.Lock()
        self._waker = _Waker()
        self._owned = contextlib.ExitStack()
        self._owned.callback(connection.close)
        self._owned.callback(self._waker.close)
        try:
            with self._speaking():
                self._status = Status(at, _server_timeout(connection.pgconn), clock())
                if direct is None:
                    direct = is_plain(connection.pgconn)
                kind = SocketWire if direct else LibpqWire
                self._wire: Wire = kind(connection.pgconn)
                self._owned.callback(self._wire.close)
                self._pace = Pace(self._wire.descriptor)
                self._wire.begin(start_command(slot, at, publication, streaming), BEGIN_SECONDS)
        except BaseException:
            self._owned.close()
            raise
        self._begun = True
        self._poll = select.poll()
        self._poll.register(self._wire.descriptor, select.POLLIN)
        self._poll.register(self._waker.descriptor, select.POLLIN)
        self._keeper = Keeper(self._speak)
        self._owned.callback(self._keeper.close)

    @property
    def end(self) -> int:
        """The end of the server's log, as last told."""
        return self._status.end

    @property
    def received(self) -> int:
        """How far it has been received."""
        return self._status.received

    @property
    def confirmed(self) -> int:
        """The acknowledgement that the server was last told; 0 before the first."""
        return self._status.confirmed

    def receive(self, wait: float, most_bytes: int = MOST_BYTES) -> Received | None:
        """
        Return messages as soon as there are any; None after `wait` seconds or a `wake`.

        Answers the server and sends status updates while it waits.
        """
        until = self._clock() + wait
        while True:
            now = self._clock()
            self._waker.rest(min(self._pace.pause(now), until - now))
            with self._speaks:
                enough = self._pace.enough(self._clock())
                with self._speaking():
                    messages = self._wire.read(most_bytes, enough)
                if messages is None and enough:
                    self._pace.keep(self._clock())
                else:
                    self._pace.note(int(messages.stops[-1]) if messages else 0, self._clock())
                received = self._sorted(messages) if messages else None
            self.beat()
            if received is not None:
                return received
            now = self._clock()
            if self._waker.woken() or now >= until:
                return None
            if enough:
                continue  # something is kept, perhaps: it must not wait for more
            self._poll.poll(max(0.0, min(until, self._status.due) - now) * 1000)

    def acknowledge(self, lsn: int) -> None:
        """
        Take it that everything up to `lsn` is durable; the server hears of it soon.

        Raises `BadPosition` for what was not received yet.
        """
        with self._speaks:
            self._status.acknowledge(lsn)
        self.beat()

    def beat(self) -> None:
        """Send a status update if one is due; to be called often, whatever else goes on."""
        self._here = self._clock()
        if self._here >= self._status.due:
            self._tell()

    def wake(self) -> None:
        """End a `receive` that waits, or the next one that would; from any thread."""
        self._waker.wake()

    def close(self) -> None:
        """Tell the last acknowledgement and end the connection; a second time does nothing."""
        if self._begun and self._status.acknowledged > self._status.confirmed:
            with contextlib.suppress(HeadraceError):
                self._tell()
        self._begun = False
        self._owned.close()

    def _sorted(self, messages: Messages) -> Received | None:
        """Return the changes among the messages; take in what the others say."""
        buffer, starts, stops = messages.buffer, messages.starts, messages.stops
        kinds = np.frombuffer(buffer, np.uint8)[np.minimum(starts, len(buffer) - 1)]
        data = kinds == _DATA
        least = np.where(data, _DATA_HEAD + 1, _KEEPALIVE_SIZE)
        wrong = (stops - starts < least) | ~(data | (kinds == _KEEPALIVE))
        if wrong.any():
            at = int(starts[np.argmax(wrong)])
            raise BadMessage("Not a message of the replication protocol", offset=at)
        if not data.all():
            for at in map(int, starts[~data]):
                (end,) = _number(buffer, at + 1)
                self._status.moved(end, end)
                if buffer[at + _KEEPALIVE_SIZE - 1]:
                    self._status.asked(self._clock())
            starts, stops = starts[data], stops[data]
        if not len(starts):
            return None
        # The last is not the furthest: a transaction that began early may follow a later commit.
        numbers: NDArray[np.uint64] = np.ndarray(len(buffer) - 7, ">u8", buffer, strides=(1,))
        received = int(numbers[starts + 1].max())
        self._status.moved(received, max(received, int(numbers[starts + 9].max())))
        return Received(buffer, starts + _DATA_HEAD, stops, self._status.end)

    def _tell(self) -> None:
        with self._speaks, self._speaking():
            self._send()

    def _send(self) -> None:
        update, flush = self._status.update()
        self._wire.send(update)
        sent = self._wire.flush()
        self._status.told(flush, self._clock(), sent=sent)

    def _speak(self) -> float:
        """Say that we live, for a reader who is away; return when to look again."""
        with self._speaks:
            now = self._clock()
            if now >= self._status.silent_until and now - self._here < AWAY_SECONDS:
                # Whoever reads next hears that the stream is over, and why.
                with contextlib.suppress(StreamEnded, psycopg.Error):
                    self._send()
            return max(0.0, self._status.silent_until - self._clock()) or self._status.every

    @contextlib.contextmanager
    def _speaking(self) -> Iterator[None]:
        try:
            yield
        except (StreamEnded, psycopg.Error) as error:
            raise self._meaning(error.sqlstate) from None

    def _meaning(self, sqlstate: str | None) -> HeadraceError:
        facts = {"slot": self._slot}
        match sqlstate:
            case "55000":
                # Found out again, and why, by who opens anew.
                return SourceUnreachable("The slot cannot be read any more", **facts)
            case "42704" if self._begun:
                return PublicationRefused("There is no such publication", **facts)
            case "42704":
                return SlotRefused("There is no such slot", **facts)
            case "22023":
                return ServerRefused("The server does not speak our protocol", **facts)
        meaning = translated(sqlstate, **facts)
        if self._begun and not isinstance(meaning, SourceUnreachable):
            # Whatever ends a stream that ran may be over when it is begun again.
            return SourceUnreachable("The server ended the stream", **facts, sqlstate=sqlstate)
        return meaning


class _Waker:
    """A descriptor that becomes readable from any thread."""

    def __init__(self) -> None:
        self.descriptor, self._writer = os.pipe()
        os.set_blocking(self.descriptor, False)
        os.set_blocking(self._writer, False)
        self._poll = select.poll()
        self._poll.register(self.descriptor, select.POLLIN)
        # A descriptor's number is given to somebody else as soon as it is closed.
        self._lock = threading.Lock()
        self._closed = False

    def wake(self) -> None:
        with self._lock, contextlib.suppress(BlockingIOError):
            if not self._closed:
                os.write(self._writer, b"w")

    def woken(self) -> bool:
        """Whether it was woken since the last time this was asked."""
        try:
            return bool(os.read(self.descriptor, 4096))
        except BlockingIOError:
            return False

    def rest(self, seconds: float) -> None:
        """Sleep, unless it is or was woken."""
        if seconds > 0:
            self._poll.poll(seconds * 1000)

    def close(self) -> None:
        with self._lock:
            if not self._closed:
                self._closed = True
                os.close(self.descriptor)
                os.close(self._writer)


def start_command(slot: str, at: int, publication: str, streaming: bool) -> bytes:
    """Return the command that starts the stream."""
    # A list of identifiers within a literal: quoted for both.
    names = publication.replace('"', '""').replace("'", "''")
    settings = f"publication_names '\"{names}\"', messages 'true', "
    # Version 2 is for transactions that are sent while they run; 14, our oldest, has it.
    settings += "proto_version '2', streaming 'on'" if streaming else "proto_version '1'"
    return f'START_REPLICATION SLOT "{slot}" LOGICAL {lsn_text(at)} ({settings})'.encode()


def _server_timeout(connection: PGconn) -> float:
    """Return after how many seconds the server ends a silent connection; 0: never."""
    result = connection.exec_(b"select setting from pg_settings where name = 'wal_sender_timeout'")
    if result.status != psycopg.pq.ExecStatus.TUPLES_OK:
        raise psycopg.errors.error_from_result(result)
    return int(result.get_value(0, 0) or b"0") / 1000
