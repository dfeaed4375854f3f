"""How many changes a second each pipeline takes, over the last few seconds."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable

WINDOW_SECONDS = 5.0
_EVERY_SECONDS = 1.0


class Rates:
    """Counts looked at once a second, on a thread of its own, from `start` to `stop`."""

    def __init__(
        self,
        counts: Callable[[], Iterable[tuple[str, int]]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._counts = counts
        self._clock = clock
        self._lock = threading.Lock()
        self._seen: dict[str, deque[tuple[float, int]]] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="headrace-rates", daemon=True)

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def stop(self) -> None:
        """Look no more."""
        self._ended.set()
        self._thread.join()

    def look(self) -> dict[str, float | None]:
        """Look now; return the growth a second of each count, None where none is known yet."""
        now = self._clock()
        with self._lock:
            return {name: self._rate(name, count, now) for name, count in self._counts()}

    def _rate(self, name: str, count: int, now: float) -> float | None:
        seen = self._seen.setdefault(name, deque())
        if seen and count < seen[-1][1]:
            seen.clear()  # it was started anew
        seen.append((now, count))
        # One reading older than the window stays, so that there is a span to divide by.
        while len(seen) > 2 and seen[1][0] <= now - WINDOW_SECONDS:
            seen.popleft()
        began, before = seen[0]
        # Two looks in quick succession tell nothing.
        return (count - before) / (now - began) if now - began >= _EVERY_SECONDS / 2 else None

    def _run(self) -> None:
        while not self._ended.wait(_EVERY_SECONDS):
            self.look()
