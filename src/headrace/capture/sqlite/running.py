"""
One run of a capture: batches go to the handler, and places move on behind it.

Everything happens on the thread of the caller. Its connection reads in short transactions and
writes two things only: a place after a batch, and now and then the removal of what nobody needs
(`prune.py`). A lock that somebody else holds delays both, and stops nothing (R42).
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable
from dataclasses import dataclass

from headrace.capture.sqlite import readers, setup
from headrace.capture.sqlite.database import (
    LOCK_SECONDS,
    busy,
    connect,
    speaking,
    writing,
)
from headrace.capture.sqlite.fetching import Row
from headrace.capture.sqlite.following import Following, Owed
from headrace.capture.sqlite.names import Names
from headrace.capture.sqlite.place import Place, witness
from headrace.capture.sqlite.prune import Pruning
from headrace.capture.sqlite.records import Batch, ChangeRows, Handler
from headrace.capture.sqlite.resume import compare
from headrace.capture.sqlite.table_copy import TableCopy
from headrace.capture.sqlite.tables import SourceTable, inspect
from headrace.capture.sqlite.waking import Waiting, Wake
from headrace.errors import SchemaChanged, SourceRefused, SourceUnreachable

WAIT_SECONDS = 1.0
"""The longest wait: then there may be something to remove."""

LATER_SECONDS = 0.1
"""Until a place is stored that could not be, and until a locked database is read again."""

OTHERS_SECONDS = 1.0
"""How often a place is stored that moved only over changes of other tables."""

BUSY_SECONDS = 0.02
"""How long one attempt waits for a lock: nothing can end this wait."""


class HandlerRaised(Exception):
    """The handler raised an error of SQLite: of a database of its own, and none of ours."""

    def __init__(self, error: sqlite3.Error) -> None:
        super().__init__()
        self.error = error


@dataclass(frozen=True, slots=True)
class Settings:
    """What a run is to do."""

    path: str
    names: Names
    reader: str
    tables: tuple[str, ...] | None
    batch_size: int
    wake: Wake


class Run:
    """Reads on one connection, until it is done or `closing` says so."""

    def __init__(self, settings: Settings, handler: Handler, closing: Callable[[], bool]) -> None:
        self._settings = settings
        self._called = handler
        self._closing = closing
        self._path = settings.path
        self._names = settings.names
        self._database = connect(settings.path)
        self._inode = os.stat(settings.path).st_ino  # noqa: PTH116 - as it is asked later
        with speaking(self._path):
            (mode,) = self._database.execute("pragma journal_mode").fetchone()
            self._wal = mode == "wal"
            if self._wal:
                # Losing the newest place in a power cut means a batch twice; an fsync under
                # the write lock would cost the application.
                self._database.execute("pragma synchronous = normal")
        self._waiting = Waiting(settings.wake, self._path, self._data_version)
        self._stored: Place | None = None
        self._taken: Place | None = None
        self._store_at = 0.0
        self._passed_at = 0.0

    def ring(self) -> None:
        """End a wait, because `closing` may have changed; from any thread."""
        self._waiting.ring()

    def close(self) -> None:
        """Let go of everything."""
        self._waiting.close()
        self._database.close()

    # -- rows that are there ----------------------------------------------------------------

    def bootstrap(self) -> None:
        """Hand out the rows of all tables."""
        with speaking(self._path):
            for table in self._tables():
                self._copy(inspect(self._database, table))

    def _copy(self, table: SourceTable) -> Place | None:
        """Hand out the rows of a table; return from where on its changes follow, if any do."""
        copy = TableCopy(self._database, self._path, table, self._names, self._settings.batch_size)
        for batch in copy:
            if self._closing():
                break
            self._handle(batch)
        return None if self._closing() else copy.first

    # -- changes ----------------------------------------------------------------------------

    def cdc(self) -> None:
        """Hand out changes until somebody closes; stop where some may be missing."""
        with speaking(self._path):
            self._follow(self._known_places(), mend=False)

    def bootstrap_and_cdc(self) -> None:
        """Hand out rows, then changes; where some may be missing, the table's rows again."""
        with speaking(self._path):
            self._mend_log()
            places: dict[str, Place] = {}
            for table in self._known_places():
                if (place := self._copied(table)) is None:
                    return
                places[table] = place
            self._follow(places, mend=True)

    def _copied(self, table: str) -> Place | None:
        """Copy a table that is captured as it is now, and begin with its changes there."""
        while not self._closing():
            found = inspect(self._database, table)
            setup.install(self._database, [found], self._names)
            try:
                place = self._copy(found)
            except SchemaChanged:
                continue  # its rows come again, after another record that says so
            if place is not None:
                with writing(self._database):
                    readers.put(self._database, self._names, self._settings.reader, {table: place})
                return place
        return None

    def _mend_log(self) -> None:
        """Give a log whose rows were lost a new name: its numbers come again (R40)."""
        with writing(self._database):
            capture = setup.capture_id(self._database, self._names)
            places = readers.places(self._database, self._names, self._settings.reader)
            if any(
                place.capture == capture and compare(self._database, place, self._names) == "reset"
                for place in places.values()
            ):
                setup.renew(self._database, self._names)

    def _follow(self, places: dict[str, Place], *, mend: bool) -> None:
        database, waiting = self._database, self._waiting
        size = self._settings.batch_size
        following = Following(database, self._names, places, size)
        pruning = Pruning(database, "", following.epoch, self._names)
        self._stored = self._taken = following.at
        self._wait_for_locks(BUSY_SECONDS)
        more = True
        try:
            while not self._closing():
                try:
                    more = more or waiting.due()
                    rows = following.read() if more else None
                except sqlite3.OperationalError as error:
                    if not busy(error):
                        raise
                    waiting.again()
                    waiting.wait(LATER_SECONDS)
                    continue
                except Owed as owed:
                    self._store(following, last=True)
                    if not mend:
                        raise next(iter(owed.problems.values())) from None
                    self._wait_for_locks(LOCK_SECONDS)
                    again = {table: self._copied(table) for table in owed.problems}
                    self._wait_for_locks(BUSY_SECONDS)
                    following.moved({table: at for table, at in again.items() if at is not None})
                    continue
                if rows:
                    self._hand_out(rows, following)
                elif rows is not None:
                    self._passed(following.at)
                self._store(following)
                if self._stored is not None:
                    pruning.allow(self._stored.seq)
                pruning.step()
                more = rows is not None
                if not more:
                    self._look_at_file()
                    pending = self._taken != self._stored
                    waiting.wait(LATER_SECONDS if pending else WAIT_SECONDS)
        finally:
            self._wait_for_locks(LOCK_SECONDS)
            self._store(following, last=True)

    def _handle(self, batch: Batch) -> None:
        try:
            self._called(batch)
        except sqlite3.Error as error:
            raise HandlerRaised(error) from error

    def _passed(self, at: Place) -> None:
        """Note now and then that there were only changes of other tables: storing is a write."""
        now = time.monotonic()
        if now - self._passed_at >= OTHERS_SECONDS:
            self._taken, self._passed_at = at, now

    def _hand_out(self, rows: list[Row], following: Following) -> None:
        size = self._settings.batch_size
        for at in range(0, len(rows), size):
            if self._closing():
                return
            part = rows[at : at + size]
            last = at + size >= len(rows)
            changes = ChangeRows(part, following.shapes, following.width, following.epoch)
            end = part[-1]
            batch = Batch(
                changes,
                complete=last and following.complete,
                id=f"{following.epoch}/{part[0][0]}-{end[0]}",
            )
            self._handle(batch)
            self._taken = (
                following.at
                if last
                else Place(following.epoch, int(str(end[0])), witness(*end[1:4]))
            )
            # In small steps: whatever is not stored comes again after a death.
            self._store(following)

    def _store(self, following: Following, *, last: bool = False) -> None:
        """Store how far the handler is, if it is time; `last` is the last chance."""
        if self._taken is None or self._taken == self._stored:
            return
        now = time.monotonic()
        if now < self._store_at and not last:
            return
        try:
            readers.advance(
                self._database,
                self._names,
                self._settings.reader,
                following.tables,
                self._taken,
            )
        except sqlite3.OperationalError as error:
            if not busy(error):
                raise
            # Somebody writes for long: what is handed out meanwhile is stored with the next.
            self._store_at = now + LATER_SECONDS
            return
        self._stored = self._taken
        # Without a WAL each of these is a sync that keeps everybody out.
        self._store_at = 0.0 if self._wal else now + LATER_SECONDS

    # -- what there is to read --------------------------------------------------------------

    def _tables(self) -> list[str]:
        if self._settings.tables is not None:
            return list(self._settings.tables)
        return readers.tables_to_read(self._database, self._names, self._settings.reader)

    def _known_places(self) -> dict[str, Place]:
        """Return the places of this run's tables; whatever was not set up raises."""
        found = readers.places(self._database, self._names, self._settings.reader)
        wanted = list(found) if self._settings.tables is None else self._settings.tables
        missing = [table for table in wanted if table not in found]
        if missing or not wanted:
            raise SourceRefused(
                "Not set up for this reader",
                log_table=self._names.log_table,
                reader=self._settings.reader,
                tables=", ".join(missing) or "none",
                remedy="Call setup() first, or run headrace sqlite setup.",
            )
        return {table: found[table] for table in wanted}

    def _look_at_file(self) -> None:
        try:
            same = os.stat(self._path).st_ino == self._inode  # noqa: PTH116 - asked very often
        except OSError:
            same = False
        if not same:
            raise SourceUnreachable("Database file was replaced", path=self._path)

    def _wait_for_locks(self, seconds: float) -> None:
        self._database.execute(f"pragma busy_timeout = {int(seconds * 1000)}")

    def _data_version(self) -> int:
        return int(self._database.execute("pragma data_version").fetchone()[0])
