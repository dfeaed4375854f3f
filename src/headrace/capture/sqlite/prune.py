"""
Forgetting what every reader has.

Each reader keeps its cursor in the database. What lies strictly below the lowest one is
removed, never the newest row, and only in small steps at moments when the write lock is
free: the application must not notice (R42). Nothing here may disturb the reader, so a
lock that is taken, or any other refusal, only means "later".
"""

from __future__ import annotations

import sqlite3
import time

from headrace.capture.sqlite.database import writing
from headrace.capture.sqlite.names import OURS, Names

STEP_ROWS = 500
STEP_SECONDS = 0.05
"""Between two steps while there is more to remove: at most 10,000 rows a second."""

REST_SECONDS = 1.0
LONGEST_REST_SECONDS = 30.0


class Pruning:
    """Moves one reader's cursor and removes what nobody needs."""

    def __init__(
        self, database: sqlite3.Connection, reader: str, capture: str, names: Names = OURS
    ) -> None:
        self._database = database
        self._names = names
        self._reader = reader
        self._capture = capture
        self._allowed = 0
        self._done = 0
        self._more = False
        self._due = 0.0
        self._rest = REST_SECONDS

    def allow(self, upto: int) -> None:
        """Take it that this reader needs nothing at or before `upto` any more."""
        self._allowed = max(self._allowed, upto)

    def step(self) -> None:
        """Do a little, if it is time and nobody else writes."""
        now = time.monotonic()
        if now < self._due or (self._allowed <= self._done and not self._more):
            return
        allowed = self._allowed
        (patience,) = self._database.execute("pragma busy_timeout").fetchone()
        self._database.execute("pragma busy_timeout = 0")
        try:
            self._more = self._remove(allowed)
        except sqlite3.OperationalError:
            self._due = now + self._rest
            self._rest = min(self._rest * 2, LONGEST_REST_SECONDS)
        else:
            self._done = allowed
            self._rest = REST_SECONDS
            self._due = now + (STEP_SECONDS if self._more else REST_SECONDS)
        finally:
            self._database.execute(f"pragma busy_timeout = {int(patience)}")

    def _remove(self, allowed: int) -> bool:
        log, readers = self._names.log, self._names.readers
        with writing(self._database):
            self._database.execute(
                f"update {readers} set cursor = max(cursor, ?) where name = ? and capture = ?",
                (allowed, self._reader, self._capture),
            )
            # Another capture's cursors count other numbers: those readers begin anew anyway.
            (lowest,) = self._database.execute(
                f"select min(cursor) from {readers} where capture = ?", (self._capture,)
            ).fetchone()
            # Two queries: asked for both at once, SQLite reads the whole table.
            (first,) = self._database.execute(f"select min(seq) from {log}").fetchone()
            (last,) = self._database.execute(f"select max(seq) from {log}").fetchone()
            if first is None or lowest is None:
                return False
            # Strictly below the cursor: the row at it is its witness (R40).
            end = min(lowest, last)
            stop = min(end, first + STEP_ROWS)
            self._database.execute(f"delete from {log} where seq < ?", (stop,))
            return bool(stop < end)
