"""
How far reading is behind the server, measured at the server.

The stream cannot tell: while its connection is silent, the last position that was received stays
the same, whatever is committed. So once a second the end of the WAL is queried on the connection
for queries. Once everything up to a position has been read, everything has been read that was
committed when the position was queried. That moment is all that is claimed.

The position is the end of what the server has flushed, because that is how far it sends. On a
standby, it is the end of what was replayed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import psycopg

EVERY_SECONDS = 1.0
"""Between two queries."""

MOST_SAMPLES = 1_000
"""Maximum number of positions that were not reached yet; beyond it, every second one is dropped."""

_QUERY = """
    select ((case when pg_is_in_recovery() then pg_last_wal_replay_lsn()
                  else pg_current_wal_flush_lsn() end) - '0/0')::int8
"""


class LagMeter:
    """The end of one server's WAL, now and then, and how far it was read. For one thread."""

    def __init__(self, clock: Callable[[], float], every: float = EVERY_SECONDS) -> None:
        self.end = 0
        """The end of the WAL, as last queried."""

        self._clock = clock
        self._every = every
        self._due = clock()
        self._samples: deque[tuple[int, float, float]] = deque()
        """Each position that is not reached yet, and when it was first and last the end."""

        self._current: float | None = None
        self._delay = 0.0

    def look(self, connection: psycopg.Connection[Any]) -> None:
        """Query the end of the WAL, if it is time to."""
        now = self._clock()
        if now < self._due:
            return
        self._due = now + self._every
        found = connection.execute(_QUERY).fetchone()
        if found is None or found[0] is None:
            return
        self.end = int(found[0])
        since = now
        if self._samples and self._samples[-1][0] == self.end:
            _, since, _ = self._samples.pop()
        self._samples.append((self.end, since, now))
        if len(self._samples) > MOST_SAMPLES:
            self._samples = deque(list(self._samples)[::2])

    def reached(self, read: int) -> None:
        """Take note that everything up to `read` has been read."""
        while self._samples and self._samples[0][0] <= read:
            _, since, self._current = self._samples.popleft()
            self._delay = self._clock() - since

    @property
    def age(self) -> float | None:
        """How long ago everything was committed of which it is known that it was read."""
        return None if self._current is None else self._clock() - self._current

    @property
    def seconds(self) -> float | None:
        """How many seconds reading is behind; None before that is known."""
        if self._current is None:
            return None
        waited = self._clock() - self._samples[0][1] if self._samples else 0.0
        return max(self._delay, waited)
