"""
The stream of changes from a replication slot, as complete messages in one buffer.

`ReplicationStream` puts the parts together: it waits, answers the server, and returns the messages
of pgoutput. `KeepAlive` sends status updates while the reading thread is busy elsewhere, `Pace`
decides when to read bytes, and `Status` decides what to report to the server and when.
`stream/wire.py` reads the bytes from the connection.

Long because when to read, when to answer and when to give up depend on the same few times.
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import psycopg
from numpy.typing import NDArray
from psycopg.pq.abc import PGconn

from headrace.capture.postgres.connection import translated
from headrace.capture.postgres.position import lsn_text
from headrace.capture.postgres.stream.wire import (
    CopyMessages,
    LibpqWire,
    SocketWire,
    StreamEnded,
    Wire,
    is_plain,
)
from headrace.capture.waker import Waker
from headrace.errors import (
    BadMessage,
    BadPosition,
    HeadraceError,
    PublicationRefused,
    ServerRefused,
    SlotRefused,
    SourceUnreachable,
)

# --- status updates while the reading thread is busy ----------------------------------------------

AWAY_SECONDS = 300.0
"""How long updates are sent for a reading thread that does not call this module."""

_LEAST_SECONDS = 0.01


class KeepAlive:
    """
    Calls `send` on a thread of its own; it returns the seconds until the next call.

    The thread that reads the stream also writes the log, and a slow disk may delay it for longer
    than the server waits for an update. The server would close the connection, and everything that
    was sent and is not yet durable would be sent again, only for the disk to delay it again (R7).
    So this thread sends the update that is due.

    It does not do so for ever: a server that shuts down asks for a reply, and a reader that is
    busy does not receive the request. After `AWAY_SECONDS` no more updates are sent, and the
    server closes the connection by its own timeout.
    """

    def __init__(self, send: Callable[[], float]) -> None:
        self._send = send
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="headrace-keepalive", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop; `send` is not called any more once this has returned."""
        self._over.set()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _keep(self) -> None:
        wait = 0.0
        while not self._over.wait(max(_LEAST_SECONDS, wait)):
            wait = self._send()


# --- how eagerly a stream is read -----------------------------------------------------------------

GULP_SECONDS = 0.020
"""How long bytes of a busy stream accumulate before they are read."""

FULL_BYTES = 3 << 19
KEPT_SECONDS = 0.050
"""A busy stream returns messages once it has this many bytes, or after this time."""

ROOM = 3 << 20
"""The receive buffer that the socket should have: at full speed, several times a gulp."""

BUSY_WINDOW = 0.010
BUSY_BYTES = 64 << 10
"""This many bytes in this time make a stream busy; a lower rate in a gulp makes it idle again."""

IDLE_SECONDS = 0.050


class Pace:
    """
    Decides how long to wait before the next read.

    A walsender sends each message by itself. Over TCP, a reader that takes each message at once
    keeps the sender's processor busy with tiny packets. A reader that waits for a moment gets the
    same bytes in a few large reads, and the kernel coalesces what is waiting. That needs a large
    receive buffer: without it, the sender blocks while the reader waits. A stream with little
    traffic is read at once, so that a single commit never waits.

    Messages that are returned together are decoded together, and that costs nearly the same for a
    hundred rows as for one. So a few gulps are collected until there is enough: here and not in
    the socket, whose overhead for each small message would soon fill its buffer.
    """

    def __init__(self, descriptor: int) -> None:
        self.busy = False
        self._gulps = _make_room(descriptor)
        self._last = 0.0
        self._given = 0.0
        self._since = 0.0
        self._bytes = 0

    def pause(self, now: float) -> float:
        """Return how many seconds to wait before the next read; 0: read now."""
        return max(0.0, self._last + GULP_SECONDS - now) if self.busy else 0.0

    def enough(self, now: float) -> int:
        """Return how many bytes must be there before they are returned; 0: any number."""
        # If not `kept`, the next read would be too late.
        kept = now - self._given + GULP_SECONDS <= KEPT_SECONDS
        return FULL_BYTES if self.busy and kept else 0

    def keep(self, now: float) -> None:
        """Record that a read at `now` returned nothing, because there was not enough."""
        self._last = now

    def note(self, size: int, now: float) -> None:
        """Record that a read at `now` returned `size` bytes."""
        passed = min(now - self._given, KEPT_SECONDS)
        self._given = now
        if self.busy:
            self.busy = size * GULP_SECONDS >= BUSY_BYTES * max(GULP_SECONDS, passed)
            self._since, self._bytes = now, 0
        elif self._gulps:
            if now - self._last > IDLE_SECONDS:
                self._since, self._bytes = now, 0
            self._bytes += size
            passed = now - self._since
            if passed >= BUSY_WINDOW:
                self.busy = self._bytes * BUSY_WINDOW >= BUSY_BYTES * passed
                self._since, self._bytes = now, 0
        self._last = now


def _make_room(descriptor: int) -> bool:
    """Enlarge the socket's receive buffer; return whether it is large, which needs TCP."""
    with socket.socket(fileno=os.dup(descriptor)) as copy:
        if copy.family not in (socket.AF_INET, socket.AF_INET6):
            return False
        with suppress(OSError, AttributeError):
            # A high low-water mark makes the kernel grow the buffer. That needs no privilege,
            # and is not limited as SO_RCVBUF is.
            copy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, ROOM)
            copy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)
        return copy.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) >= ROOM


# --- status updates: what they report, and when ---------------------------------------------------

SILENT_SECONDS = 10.0
"""The longest time without an update, if the server's timeout does not require less."""

ACKNOWLEDGE_SECONDS = 1.0
ACKNOWLEDGE_BYTES = 16 << 20
"""A new acknowledgement is sent after this time, or at once if it advanced by this many bytes."""

ASK_SECONDS = 5.0
"""After this silence of the server, at most, it is asked for a reply."""

ANSWER_SECONDS = 5.0
"""The least time that it has for the reply."""

TIMEOUT_SECONDS = 60.0
"""The silence that is allowed if the server has no timeout: PostgreSQL's default."""

LONGEST_TIMEOUT_SECONDS = 300.0
"""A longer timeout of the server is shortened for our session."""

ASKED_TIMES = 4
ASKED_SECONDS = 1.0
"""A server that asks this often in this time without sending anything is shutting down (R7)."""

_EPOCH = 946_684_800_000_000  # 2000-01-01 in microseconds
_status = struct.Struct(">cQQQqB").pack


@dataclass(slots=True)
class SilencePatience:
    """
    How much longer than usual a silent server is waited for, over all connections of one source.

    Before PostgreSQL 16, a server is silent while it decodes a large transaction of which nothing
    is published, and a connection that is given up only makes it begin again. So after each one
    that was, the next is given twice the time, until the server has come further.
    """

    seconds: float = 0.0
    """How long a server may be silent; 0: as long as usual."""

    end: int = 0
    """How far the server had come at most when it was given up."""

    def give_up(self, end: int, waited: float) -> None:
        """Note that a connection was given up after so many seconds of silence."""
        self.seconds = min(2 * waited, LONGEST_TIMEOUT_SECONDS)
        self.end = max(self.end, end)

    def moved(self, end: int) -> None:
        """Note how far the server has come."""
        if end > self.end:
            self.seconds = 0.0


class Status:
    """
    The positions of one stream; does no I/O, and gets the time as an argument.

    A status update reports what was received (`write`) and what is durable on our side (`flush`
    and `apply`). The second moves the slot, so it is never beyond what was acknowledged (R4, R8).
    The server closes a connection that is silent for wal_sender_timeout, so updates are also sent
    when there is nothing new.

    A server that shuts down waits until everything is flushed, and an acknowledgement that is
    held back would keep it waiting for ever. While it waits, it asks for a reply again and again
    without sending anything, and then the answer is flush = 0. That reports nothing: the slot
    stays where it is, and the server is satisfied with what was received (R7).

    A connection on which nothing arrives any more looks like a server with nothing to send. So a
    server that is silent is asked for a reply. It replies at once, or, while it decodes a large
    transaction, after half of its timeout; after three quarters the connection is given up, or
    later if that has happened before (`SilencePatience`).
    """

    def __init__(
        self, at: int, timeout: float, now: float, patience: SilencePatience | None = None
    ) -> None:
        self.end = at
        """The end of the server's log, as last received."""

        self.received = at
        self.acknowledged = 0
        """What is durable on our side; 0: nothing is reported."""

        self.confirmed = 0
        """The last acknowledgement that was sent to the server."""

        self.leaving = False
        """Whether the server is shutting down."""

        self.every = min(SILENT_SECONDS, timeout / 3) if timeout else SILENT_SECONDS
        """The longest time without an update, in seconds."""

        self.received_at = now
        """When anything was last received from the server, complete or not."""

        self.ask_after = min(ASK_SECONDS, timeout / 2) if timeout else ASK_SECONDS
        """After how many seconds of silence the server is asked for a reply."""

        longest = 0.75 * (timeout or TIMEOUT_SECONDS)
        self._answer = max(ANSWER_SECONDS, longest - self.ask_after)
        self._patience = patience or SilencePatience()
        self._unanswered: float | None = None
        """When the server was first asked for a reply without having sent anything since."""

        self._asks_at = now + self.ask_after
        self._asked: deque[float] = deque(maxlen=ASKED_TIMES)
        self._reply = False
        self._sent_at = now

    def note_received(self, now: float) -> None:
        """Record that something was received."""
        self.received_at = now
        self._unanswered = None
        self._asks_at = now + self.ask_after

    def ask(self, now: float) -> None:
        """Ask the server for a reply with the next update, which is due now."""
        self._asks_at = min(self._asks_at, now)

    def lost(self, now: float) -> bool:
        """Whether the server should have replied by now."""
        if self._unanswered is None:
            return False
        return now - self._unanswered >= max(self._answer, self._patience.seconds - self.ask_after)

    def give_up(self, now: float) -> None:
        """Record that the connection is given up because the server is silent."""
        self._patience.give_up(self.end, now - self.received_at)

    @property
    def silent_until(self) -> float:
        """The time of the next update at the latest, even if there is nothing new."""
        return self._sent_at + self.every

    def moved(self, received: int, end: int) -> None:
        """Record a message of the server that ends at `received`, and the end of its log."""
        self.received = max(self.received, received)
        self._patience.moved(end)
        if end > self.end:
            self.end = end
            self._asked.clear()
            self.leaving = False

    def asked(self, now: float) -> None:
        """Record that the server asked for a reply."""
        self._reply = True
        self._asked.append(now)
        if len(self._asked) == ASKED_TIMES and now - self._asked[0] < ASKED_SECONDS:
            self.leaving = True

    def acknowledge(self, lsn: int) -> None:
        """
        Record that everything up to `lsn` is durable; this never decreases.

        It must not be beyond what was received: the server would believe it, and skip what
        it has not sent yet (R2).
        """
        if lsn > self.received:
            raise BadPosition(
                "Acknowledgement is beyond what was received",
                lsn=lsn_text(lsn),
                received=lsn_text(self.received),
            )
        self.acknowledged = max(self.acknowledged, lsn)

    @property
    def due(self) -> float:
        """The time at which to send the next update."""
        ahead = self.acknowledged - self.confirmed
        if self._reply or ahead > ACKNOWLEDGE_BYTES:
            return self._sent_at
        wait = min(self.every, ACKNOWLEDGE_SECONDS) if ahead > 0 else self.every
        return min(self._sent_at + wait, self._asks_at)

    def update(self, now: float) -> tuple[bytes, int]:
        """Return a status update, and the acknowledgement in it."""
        flush = 0 if self.leaving else self.acknowledged
        at = time.time_ns() // 1000 - _EPOCH
        return _status(b"r", self.received, flush, flush, at, now >= self._asks_at), flush

    def note_sent(self, flush: int, now: float, *, sent: bool) -> None:
        """Record that an update was made; unless it was `sent`, it confirms nothing."""
        if now >= self._asks_at:
            self._asks_at = now + self.ask_after
            if self._unanswered is None:
                self._unanswered = now
        self._sent_at = now
        self._reply = False
        if sent:
            self.confirmed = max(self.confirmed, flush)


# --- the stream -----------------------------------------------------------------------------------

MOST_BYTES = 16 << 20
BEGIN_SECONDS = 60.0

_DATA = ord("w")
_KEEPALIVE = ord("k")
_DATA_HEAD = 25
_KEEPALIVE_SIZE = 18
_number = struct.Struct(">Q").unpack_from


@dataclass(frozen=True, slots=True)
class ReceivedMessages:
    """Messages of pgoutput: each is `buffer[start:stop]` and begins with its kind."""

    buffer: bytes | bytearray
    """Never written to again; may be longer than the messages."""

    starts: NDArray[np.int64]
    stops: NDArray[np.int64]
    end: int
    """The position in the server's log up to which everything has been sent."""


class ReplicationStream:
    """
    Reads from a slot. It owns the connection, and closes it even if the stream cannot start.

    One thread uses it; only `wake` may be called from others. While that thread is busy elsewhere,
    for up to a few minutes, the server still gets status updates. Messages come in the order in
    which they were sent, each once. Methods that talk to the server raise `SourceUnreachable` when
    the stream has ended, after everything received before has been returned.
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
        patience: SilencePatience | None = None,
    ) -> None:
        """Start at `at`; `direct` forces or forbids reading from the socket without libpq."""
        self.replied_at = -math.inf
        """When it was last received up to where the server has sent everything."""

        self._slot = slot
        self._publication = publication
        self._clock = clock
        self._begun = False
        self._last_used = clock()
        # Held while the connection or the status is used.
        self._lock = threading.Lock()
        self._waker = Waker()
        self._owned = contextlib.ExitStack()
        self._owned.callback(connection.close)
        self._owned.callback(self._waker.close)
        try:
            with self._errors_translated():
                self._status = Status(at, _server_timeout(connection.pgconn), clock(), patience)
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
        self._keep_alive = KeepAlive(self._send_overdue)
        self._owned.callback(self._keep_alive.close)

    @property
    def end(self) -> int:
        """The end of the server's log, as last received."""
        return self._status.end

    @property
    def received(self) -> int:
        """The position up to which the stream has been received."""
        return self._status.received

    @property
    def silence(self) -> float:
        """How many seconds ago anything was last received from the server."""
        with self._lock:
            self._listen()
            return self._clock() - self._status.received_at

    def ask(self) -> None:
        """Ask the server for a reply, with the position up to which it has sent everything."""
        with self._lock:
            self._status.ask(self._clock())
        self.send_status()

    @property
    def confirmed(self) -> int:
        """The last acknowledgement that was sent to the server; 0 before the first."""
        return self._status.confirmed

    def receive(self, wait: float, most_bytes: int = MOST_BYTES) -> ReceivedMessages | None:
        """
        Return messages as soon as there are any; None after `wait` seconds or a `wake`.

        Answers the server and sends status updates while it waits. Raises `SourceUnreachable` if
        the server is silent, and does not reply when it is asked to.
        """
        until = self._clock() + wait
        while True:
            now = self._clock()
            self._waker.rest(min(self._pace.pause(now), until - now))
            with self._lock:
                self._listen()
                enough = self._pace.enough(self._clock())
                with self._errors_translated():
                    messages = self._wire.read(most_bytes, enough)
                if messages is None and enough:
                    self._pace.keep(self._clock())
                else:
                    self._pace.note(int(messages.stops[-1]) if messages else 0, self._clock())
                received = self._sorted(messages) if messages else None
            self.send_status()
            if received is not None:
                return received
            now = self._clock()
            if self._status.lost(now):
                self._status.give_up(now)
                raise self._silent(now - self._status.received_at)
            if self._waker.woken() or now >= until:
                return None
            if enough:
                continue  # the wire may hold messages back: they must not wait for more bytes
            self._poll.poll(max(0.0, min(until, self._status.due) - now) * 1000)

    def acknowledge(self, lsn: int) -> None:
        """
        Record that everything up to `lsn` is durable; the server is notified soon.

        Raises `BadPosition` if `lsn` is beyond what was received.
        """
        with self._lock:
            self._status.acknowledge(lsn)
        self.send_status()

    def send_status(self) -> None:
        """Send a status update if one is due; call this often, also while nothing is read."""
        self._last_used = self._clock()
        if self._last_used >= self._status.due:
            self._send_status()

    def wake(self) -> None:
        """End the `receive` that is waiting, or the next one that would wait; from any thread."""
        self._waker.wake()

    def close(self) -> None:
        """Send the last acknowledgement and close the connection; safe to call again."""
        if self._begun and self._status.acknowledged > self._status.confirmed:
            with contextlib.suppress(HeadraceError):
                self._send_status()
        self._begun = False
        self._owned.close()

    def _listen(self) -> None:
        """Note whether anything has arrived, also if it is only a part of a message."""
        if any(descriptor == self._wire.descriptor for descriptor, _ in self._poll.poll(0)):
            self._status.note_received(self._clock())

    def _silent(self, seconds: float) -> SourceUnreachable:
        since = datetime.now(UTC) - timedelta(seconds=seconds)
        return SourceUnreachable(
            f"Nothing was received on the replication connection since {since:%H:%M:%S} UTC,"
            " although the server was asked for a reply",
            slot=self._slot,
            seconds=round(seconds),
        )

    def _sorted(self, messages: CopyMessages) -> ReceivedMessages | None:
        """Return the messages of pgoutput; apply the keepalives between them to the status."""
        buffer, starts, stops = messages.buffer, messages.starts, messages.stops
        kinds = np.frombuffer(buffer, np.uint8)[np.minimum(starts, len(buffer) - 1)]
        data = kinds == _DATA
        least = np.where(data, _DATA_HEAD + 1, _KEEPALIVE_SIZE)
        wrong = (stops - starts < least) | ~(data | (kinds == _KEEPALIVE))
        if wrong.any():
            at = int(starts[np.argmax(wrong)])
            raise BadMessage("Malformed message in the replication stream", offset=at)
        if not data.all():
            for at in map(int, starts[~data]):
                (end,) = _number(buffer, at + 1)
                self._status.moved(end, end)
                if buffer[at + _KEEPALIVE_SIZE - 1]:
                    self._status.asked(self._clock())
            # Not when it arrives: what was sent before it is read before it.
            self.replied_at = self._clock()
            starts, stops = starts[data], stops[data]
        if not len(starts):
            return None
        # The maximum, not the last: a transaction with lower LSNs may commit, and follow, later.
        numbers: NDArray[np.uint64] = np.ndarray(len(buffer) - 7, ">u8", buffer, strides=(1,))
        received = int(numbers[starts + 1].max())
        self._status.moved(received, max(received, int(numbers[starts + 9].max())))
        return ReceivedMessages(buffer, starts + _DATA_HEAD, stops, self._status.end)

    def _send_status(self) -> None:
        with self._lock, self._errors_translated():
            self._send()

    def _send(self) -> None:
        update, flush = self._status.update(self._clock())
        self._wire.send(update)
        sent = self._wire.flush()
        self._status.note_sent(flush, self._clock(), sent=sent)

    def _send_overdue(self) -> float:
        """Send an overdue update for a busy reading thread; return the seconds to the next call."""
        with self._lock:
            now = self._clock()
            if now >= self._status.silent_until and now - self._last_used < AWAY_SECONDS:
                # The next `receive` raises it.
                with contextlib.suppress(StreamEnded, psycopg.Error):
                    self._send()
            return max(0.0, self._status.silent_until - self._clock()) or self._status.every

    @contextlib.contextmanager
    def _errors_translated(self) -> Iterator[None]:
        try:
            yield
        except (StreamEnded, psycopg.Error) as error:
            raise self._meaning(error.sqlstate) from None

    def _meaning(self, sqlstate: str | None) -> HeadraceError:
        facts = {"slot": self._slot}
        match sqlstate:
            case "55000":
                # Opening the source again finds out why.
                return SourceUnreachable(
                    "The server no longer allows reading from the slot", **facts
                )
            case "42704" if self._begun:
                return PublicationRefused(
                    "The publication does not exist", publication=self._publication, **facts
                )
            case "42704":
                return SlotRefused("The replication slot does not exist", **facts)
            case "22023":
                return ServerRefused(
                    "The server does not support the options of START_REPLICATION", **facts
                )
        meaning = translated(sqlstate, **facts)
        if self._begun and not isinstance(meaning, SourceUnreachable):
            # Any error that ends a running stream may be gone when it is started again.
            return SourceUnreachable("The server ended the stream", **facts, sqlstate=sqlstate)
        return meaning


def start_command(slot: str, at: int, publication: str, streaming: bool) -> bytes:
    """Return the command that starts the stream."""
    # A list of identifiers inside a literal: quoted for both.
    names = publication.replace('"', '""').replace("'", "''")
    settings = f"publication_names '\"{names}\"', messages 'true', "
    # Version 2 streams transactions that are still running; PostgreSQL 14, our oldest, has it.
    settings += "proto_version '2', streaming 'on'" if streaming else "proto_version '1'"
    return f'START_REPLICATION SLOT "{slot}" LOGICAL {lsn_text(at)} ({settings})'.encode()


def _server_timeout(connection: PGconn) -> float:
    """Return after how many seconds the server closes a silent connection; 0: never."""
    result = connection.exec_(b"select setting from pg_settings where name = 'wal_sender_timeout'")
    if result.status != psycopg.pq.ExecStatus.TUPLES_OK:
        raise psycopg.errors.error_from_result(result)
    timeout = int(result.get_value(0, 0) or b"0") / 1000
    if timeout <= LONGEST_TIMEOUT_SECONDS:
        return timeout
    # Half of it is how long a busy server may leave a request for a reply unanswered.
    setting = f"set wal_sender_timeout = '{LONGEST_TIMEOUT_SECONDS:.0f}s'"
    if (result := connection.exec_(setting.encode())).status != psycopg.pq.ExecStatus.COMMAND_OK:
        raise psycopg.errors.error_from_result(result)
    return LONGEST_TIMEOUT_SECONDS
