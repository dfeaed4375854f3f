"""
How eagerly a stream is read.

A walsender sends each message by itself. Over TCP a reader that takes each at once keeps
the sender's processor busy with tiny packets; one that lets them gather for a moment gets
the same in a few large reads, and the kernel joins what waits. That needs a large receive
buffer: without, the sender stands still while the reader rests. A stream with little
traffic is read at once, so that a single commit never waits.

What is given out together is decoded together, and that costs nearly the same for a hundred
rows as for one. So a few gulps are kept until there is enough: here and not in the socket,
which holds small messages with so much around them that it would soon be full.
"""

from __future__ import annotations

import os
import socket
from contextlib import suppress

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
    """Says how long to rest before the next read."""

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
