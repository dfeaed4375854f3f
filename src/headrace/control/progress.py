"""
How far the copies of a source's tables have come, how fast they go, and how long they take.

What is told are rows so far, now and then, by the recorder or after each of Spark's jobs.
The rate is that of the last half minute up to now, so a copy that stands still is seen to.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from headrace.control.info import CopyInfo

WINDOW_SECONDS = 30.0


@dataclass(slots=True)
class _Copy:
    began: float
    expected: int | None = None
    waits: str = ""
    told: deque[tuple[float, int]] = field(default_factory=deque)
    """When how many rows were copied; the first is at the window's beginning, or before."""


class Progress:
    """The copies under way. Safe to call from several threads; `clock` gives seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._copies: dict[str, _Copy] = {}

    def told(self, table: str, rows: int, expected: int | None, waits: str = "") -> None:
        """Take it that so many rows are copied, of about `expected`; fewer: it began anew."""
        now = self._clock()
        with self._lock:
            copy = self._copies.get(table)
            if copy is None or (copy.told and rows < copy.told[-1][1]):
                copy = self._copies[table] = _Copy(now)
            copy.expected, copy.waits = expected, waits
            if rows == 0:
                # It may have waited for others: no rate is to be had from that.
                copy.told.clear()
            copy.told.append((now, rows))
            while len(copy.told) > 2 and copy.told[1][0] <= now - WINDOW_SECONDS:
                copy.told.popleft()

    def done(self, table: str) -> None:
        """Forget a table: its copy is finished."""
        with self._lock:
            self._copies.pop(table, None)

    def clear(self) -> None:
        """Forget all: what was under way is given up."""
        with self._lock:
            self._copies.clear()

    def copies(self) -> tuple[CopyInfo, ...]:
        """Return what is known now, by table."""
        now = self._clock()
        with self._lock:
            return tuple(_info(table, copy, now) for table, copy in sorted(self._copies.items()))


def _info(table: str, copy: _Copy, now: float) -> CopyInfo:
    since, before = copy.told[0]
    rows = copy.told[-1][1]
    rate = (rows - before) / (now - since) if now > since else 0.0
    # More than were expected: the source's estimate is an old one, and of no use.
    expected = copy.expected if copy.expected is not None and copy.expected >= rows else None
    return CopyInfo(
        table=table,
        rows=rows,
        expected=expected,
        seconds=now - copy.began,
        rows_per_s=rate,
        left_seconds=(expected - rows) / rate if expected is not None and rate > 0 else None,
        waits=copy.waits,
    )
