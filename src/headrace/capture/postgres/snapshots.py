"""
The snapshots that tables are copied under.

The slot brings one of its own, right for every table that was published before it was made: it
is kept for a while, as long as copies begin. Later copies take one each, which is checked
against what was read before it counts (H1 to H3).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial

import psycopg

from headrace.capture.postgres.committed import Committed
from headrace.capture.postgres.connection import connect
from headrace.capture.postgres.holder import Holder, import_snapshot, take_snapshot
from headrace.capture.postgres.options import Options
from headrace.capture.postgres.slots import Created
from headrace.capture.source import NotYet
from headrace.storage import points

FIRST_COPY_SECONDS = 60.0
"""How long the slot's own snapshot is kept for a copy to begin: it holds back vacuum."""

UNSURE_SECONDS = 1.0
"""
After reading began anew, how long commits from before may be invisible without our knowing.

Between a commit's being sent and its being visible lie a few instructions of the server; where it
waits for a standby it says so, and is waited for however long that takes (H2).
"""

_TRIES = 6
"""So many attempts at a snapshot, in a quarter of a second, before changes have their turn."""


class Snapshots:
    """Holds the slot's snapshot, and takes others."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._first: Holder | None = None
        self._until = 0.0

    def keep(self, created: Created) -> None:
        """Keep the slot's own snapshot, which ends with the next command there (R14)."""
        self._first = import_snapshot(
            partial(connect, self._options), created.snapshot, created.consistent
        )
        self._until = time.monotonic() + FIRST_COPY_SECONDS

    def first(self) -> Holder | None:
        """Return the slot's snapshot, if it can still be read under, and keep it longer."""
        if self._first is None or not self._first.alive:
            return None
        self._until = time.monotonic() + FIRST_COPY_SECONDS
        return self._first

    def kept_first(self) -> int | None:
        """Return F of copies under the slot's snapshot, for as long as they may begin (R27)."""
        self.tidy()  # also while nothing is read, because the log is full
        return self._first.first if self._first is not None else None

    def another(
        self, first: int, committed: Committed, unsure: float, beat: Callable[[], None]
    ) -> Holder:
        """
        Take a snapshot that has every commit up to `first`; raises `NotYet` after some tries.

        `beat` is called in between, so that the stream lives.
        """
        tries = 0

        def on_wait(awaited: object) -> None:
            nonlocal tries
            tries += 1
            beat()
            if tries >= _TRIES:
                raise NotYet("Commits that were recorded are not visible yet")

        holder = take_snapshot(
            partial(connect, self._options),
            first,
            committed.pairs(),
            unsure=unsure,
            on_wait=on_wait,
        )
        points.reach(points.SNAPSHOT_TAKEN)
        return holder

    def tidy(self) -> None:
        """Let go of the slot's snapshot once nobody begins to copy under it any more."""
        if self._first is not None and not self._first.readers and time.monotonic() > self._until:
            self.close()

    def close(self) -> None:
        """Let go of the slot's snapshot; never raises."""
        if self._first is not None:
            with suppress(psycopg.Error, OSError):
                self._first.close()
            self._first = None
