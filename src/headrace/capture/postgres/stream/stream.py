"""
The stream of changes from a replication slot, as whole messages in one buffer.

`ReplicationStream` puts the parts together: it waits, answers the server, and gives out what
pgoutput sent. `KeepAlive` reports to the server while the reader is busy elsewhere, `Pace` says
when bytes are read, and `Status` what is reported to the server and when. How bytes are read from
the connection is in `stream/wire.py`.
"""

from __future__ import annotations

import contextlib
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

# --- reports to the server while no reader is there -----------------------------------------------

AWAY_SECONDS = 300.0
"""How long a reader may be away and still be spoken for."""

_LEAST_SECONDS = 0.01


class KeepAlive:
    """
    Calls `speak`, which returns in how many seconds it wants to be called again.

    The thread that reads the stream also writes the log, and a slow disk may delay it for longer
    than the server waits for an update. The server would end the connection, and all that was sent
    and not yet durable would be sent again, only for the disk to delay it again (R7). So a thread
    of its own sends the update that is due.

    Not for ever: a server that shuts down asks for a reply, and a reader that is away does not
    receive that. After `AWAY_SECONDS` we count as gone; the server ends the connection by its own
    time-out.
    """

    def __init__(self, speak: Callable[[], float]) -> None:
        self._speak = speak
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="headrace-keeper", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End; nothing is said once this has returned."""
        self._over.set()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _keep(self) -> None:
        wait = 0.0
        while not self._over.wait(max(_LEAST_SECONDS, wait)):
            wait = self._speak()


# --- how eagerly a stream is read -----------------------------------------------------------------

GULP_SECONDS = 0.020
"""How long a busy stream is left to gather."""

FULL_BYTES = 3 << 19
KEPT_SECONDS = 0.050
"""So much is given out at once, or what came in that time, while a stream is busy."""

ROOM = 3 << 20
"""How much the socket shall be able to hold meanwhile: at full speed, a multiple of a gulp."""

BUSY_WINDOW = 0.010
BUSY_BYTES = 64 << 10
"""So much in that time makes a stream busy; less than that in a gulp ends it."""

IDLE_SECONDS = 0.050


class Pace:
    """
    Says how long to rest before the next read.

    A walsender sends each message by itself. Over TCP a reader that takes each at once keeps the
    sender's processor busy with tiny packets; one that lets them gather for a moment gets the same
    in a few large reads, and the kernel joins what waits. That needs a large receive buffer:
    without it, the sender stands still while the reader rests. A stream with little traffic is
    read at once, so that a single commit never waits.

    What is given out together is decoded together, and that costs nearly the same for a hundred
    rows as for one. So a few gulps are kept until there is enough: here and not in the socket,
    which holds small messages with so much around them that it would soon be full.
    """

    def __init__(self, descriptor: int) -> None:
        self.busy = False
        self._gulps = _make_room(descriptor)
        self._last = 0.0
        self._given = 0.0
        self._since = 0.0
        self._bytes = 0

    def pause(self, now: float) -> float:
        """Return for how many seconds what comes should be left to gather; 0: read now."""
        return max(0.0, self._last + GULP_SECONDS - now) if self.busy else 0.0

    def enough(self, now: float) -> int:
        """Return how many bytes must have come before they are given out; 0: whatever came."""
        # The next look would be too late.
        kept = now - self._given + GULP_SECONDS <= KEPT_SECONDS
        return FULL_BYTES if self.busy and kept else 0

    def keep(self, now: float) -> None:
        """Take it that a read at `now` gave nothing, because there was not enough."""
        self._last = now

    def note(self, size: int, now: float) -> None:
        """Take it that a read at `now` gave `size` bytes."""
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
    """Make the socket's buffer large; return whether it is, which only TCP's can be."""
    with socket.socket(fileno=os.dup(descriptor)) as copy:
        if copy.family not in (socket.AF_INET, socket.AF_INET6):
            return False
        with suppress(OSError, AttributeError):
            # Asking to be woken for so much lets the kernel grow the buffer, which needs no
            # privilege and has no limit of its own as SO_RCVBUF does.
            copy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, ROOM)
            copy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)
        return copy.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) >= ROOM


# --- what is reported to the server, and when -----------------------------------------------------

SILENT_SECONDS = 10.0
"""The longest silence of ours, where the server's time-out does not ask for less."""

ACKNOWLEDGE_SECONDS = 1.0
ACKNOWLEDGE_BYTES = 16 << 20
"""An acknowledgement that moved is told after this time, or at once after this distance."""

ASKED_TIMES = 4
ASKED_SECONDS = 1.0
"""A server that asks so often in that time without news is shutting down (R7)."""

_EPOCH = 946_684_800_000_000  # 2000-01-01 in microseconds
_status = struct.Struct(">cQQQqB").pack


class Status:
    """
    Positions of one stream; does no I/O and reads no clock that could be given to it.

    A status update says what was received (`write`) and what is durable on our side (`flush` and
    `apply`). The second moves the slot, so it is only ever what was acknowledged (R4, R8). The
    server ends a connection that is silent for wal_sender_timeout, so updates are also sent when
    there is nothing new.

    A server that shuts down waits until everything is flushed, and a held-back acknowledgement
    would keep it waiting for ever. While it waits it asks for a reply again and again without
    anything new, and then the answer is flush = 0. That is no statement at all: the slot stays
    where it is, and the server is content with what was received (R7).
    """

    def __init__(self, at: int, timeout: float, now: float) -> None:
        self.end = at
        """The end of the server's log, as last told."""

        self.received = at
        self.acknowledged = 0
        """What is durable on our side; 0 says nothing about it."""

        self.confirmed = 0
        """The acknowledgement that the server was last told."""

        self.leaving = False
        """Whether the server is shutting down."""

        self.every = min(SILENT_SECONDS, timeout / 3) if timeout else SILENT_SECONDS
        """The longest silence of ours, in seconds."""

        self._asked: deque[float] = deque(maxlen=ASKED_TIMES)
        self._reply = False
        self._told = now

    @property
    def silent_until(self) -> float:
        """When the server has to hear from us at the latest, whatever there is to tell."""
        return self._told + self.every

    def moved(self, received: int, end: int) -> None:
        """Take it that the server sent something that ends at `received`, and its log at `end`."""
        self.received = max(self.received, received)
        if end > self.end:
            self.end = end
            self._asked.clear()
            self.leaving = False

    def asked(self, now: float) -> None:
        """Take it that the server wants a reply."""
        self._reply = True
        self._asked.append(now)
        if len(self._asked) == ASKED_TIMES and now - self._asked[0] < ASKED_SECONDS:
            self.leaving = True

    def acknowledge(self, lsn: int) -> None:
        """
        Take it that everything up to `lsn` is durable; this never falls.

        Nor may it be beyond what was received: the server would believe it, and skip what
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
        """When the next update is to be sent."""
        ahead = self.acknowledged - self.confirmed
        if self._reply or ahead > ACKNOWLEDGE_BYTES:
            return self._told
        return self._told + (min(self.every, ACKNOWLEDGE_SECONDS) if ahead > 0 else self.every)

    def update(self) -> tuple[bytes, int]:
        """Return an update, and the acknowledgement in it."""
        flush = 0 if self.leaving else self.acknowledged
        now = time.time_ns() // 1000 - _EPOCH
        return _status(b"r", self.received, flush, flush, now, 0), flush

    def told(self, flush: int, now: float, *, sent: bool) -> None:
        """Take it that an update was made; what is not `sent` has not been said yet."""
        self._told = now
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
    """It is not written to again, and may be longer than the last message."""

    starts: NDArray[np.int64]
    stops: NDArray[np.int64]
    end: int
    """How far the server's log is sent with these messages and those before."""


class ReplicationStream:
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
        self._waker = Waker()
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
        self._keeper = KeepAlive(self._speak)
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

    def receive(self, wait: float, most_bytes: int = MOST_BYTES) -> ReceivedMessages | None:
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

    def _sorted(self, messages: CopyMessages) -> ReceivedMessages | None:
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
        return ReceivedMessages(buffer, starts + _DATA_HEAD, stops, self._status.end)

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
