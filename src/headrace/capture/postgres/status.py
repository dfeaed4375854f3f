"""
What the server is told about us, and when.

A status update says what was received (`write`) and what is durable on our side (`flush`
and `apply`). The second moves the slot, so it is only ever what was acknowledged (R4, R8).
The server ends a connection that is silent for wal_sender_timeout, so updates also go out
when there is nothing to tell.

A server that shuts down waits until everything is flushed, and a held-back acknowledgement
would keep it waiting for ever. While it waits it asks for a reply again and again without
anything new, and then the answer is flush = 0. That is no statement at all: the slot stays
where it is, and the server is content with what was received (R7).
"""

from __future__ import annotations

import struct
import time
from collections import deque

from headrace.capture.postgres.place import lsn_text
from headrace.errors import BadPosition

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
    """Positions of one stream; does no I/O and reads no clock that could be given to it."""

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
