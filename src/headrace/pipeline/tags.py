"""
Cancelling by tag, also what has not begun.

Spark ends the jobs that run under a tag at that moment, and no others: a job that is still
being planned, or the next one of the same block, would go on. So the request is made again
until the block that holds the tag has been left.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

_FIRST_SECONDS = 0.05
_MOST_SECONDS = 1.0


class Tags:
    """The tags whose blocks are open. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: dict[str, list[threading.Event]] = {}

    @contextlib.contextmanager
    def block(self, tag: str) -> Iterator[None]:
        """Hold the tag open."""
        left = threading.Event()
        with self._lock:
            self._open.setdefault(tag, []).append(left)
        try:
            yield
        finally:
            left.set()
            with self._lock:
                self._open[tag].remove(left)
                if not self._open[tag]:
                    del self._open[tag]

    def cancel(self, tag: str, end: Callable[[str], object]) -> None:
        """Call `end` with the tag, now and until the blocks that hold it open are left."""
        with self._lock:
            blocks = list(self._open.get(tag, ()))
        if blocks:
            thread = threading.Thread(
                target=_until_left, args=(blocks, tag, end), name=f"cancel {tag}", daemon=True
            )
            thread.start()


def _until_left(blocks: list[threading.Event], tag: str, end: Callable[[str], object]) -> None:
    wait = _FIRST_SECONDS
    for left in blocks:
        while not left.is_set():
            # A Spark that is gone has ended its jobs; whoever waits for them is told so.
            with contextlib.suppress(Exception):
                end(tag)
            left.wait(wait)
            wait = min(_MOST_SECONDS, wait * 1.5)
