"""
One run of a capture: batches go to the handler, and places move on behind it.

Everything happens on the thread of the caller. Its connection reads in short transactions and
writes two things only: a place after a batch, and now and then the removal of what nobody needs
(`prune.py`). A lock that somebody else holds delays these, and reading too, for however long it
is held; it stops nothing (R42).
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from headrace.capture.sqlite import file_identity, readers, setup
from headrace.capture.sqlite.database import (
    LOCK_SECONDS,
    busy,
    connect,
    patiently,
    reading,
    speaking,
    writing,
)
from headrace.capture.sqlite.fetching import Row
from headrace.capture.sqlite.following import Following, Owed
from headrace.capture.sqlite.names import Names
from headrace.capture.sqlite.place import Place, witness
from headrace.capture.sqlite.prune import Pruning
from headrace.capture.sqlite.records import Batch, ChangeRows, Handler, Interrupted
from headrace.capture.sqlite.resume import compare
from headrace.capture.sqlite.table_copy import TableCopy
from headrace.capture.sqlite.tables import SourceTable, inspect
from headrace.capture.sqlite.waking import Waiting, Wake
from headrace.errors import CaptureError, SchemaChanged, SourceRefused, SourceUnreachable

WAIT_SECONDS = 1.0
"""The longest wait: then there may be something to remove."""

LATER_SECONDS = 0.1
"""Until a place is stored that could not be, and until a locked database is read again."""

OTHERS_SECONDS = 1.0
"""How often a place is stored that moved only over changes of other tables."""

BUSY_SECONDS = 0.02
COPY_BUSY_SECONDS = 0.25
"""How long one attempt waits for a lock, among changes and in copies: nothing can end this wait."""

_T = TypeVar("_T")


class HandlerRaised(Exception):
    """The handler raised an error, which must not pass for one of reading."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error


class _TakenOut(Exception):
    """Somebody took the table out for this reader."""


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
            self._wait_for_locks(COPY_BUSY_SECONDS)
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
            for table in self._patient(self._tables):
                self._copy(self._patient(partial(inspect, self._database, table)))

    def _copy(self, table: SourceTable) -> Place | None:
        """Hand out the rows of a table; return from where on its changes follow, if any do."""
        copy = TableCopy(
            self._database,
            self._path,
            table,
            self._names,
            self._settings.batch_size,
            self._locked,
        )
        for batch in copy:
            if self._closing():
                break
            self._handle(batch)
        return None if self._closing() else copy.first

    # -- changes ----------------------------------------------------------------------------

    def cdc(self) -> None:
        """Hand out changes until somebody closes; stop where some may be missing."""
        with speaking(self._path):
            self._follow(self._patient(self._known_places), mend=False)

    def bootstrap_and_cdc(self) -> None:
        """Hand out rows, then changes; where some may be missing, the table's rows again."""
        with speaking(self._path):
            self._patient(self._mend_log)
            places: dict[str, Place] = {}
            for table in self._patient(self._known_places):
                try:
                    place = self._copied(table)
                except _TakenOut:
                    continue
                if place is None:
                    return
                places[table] = place
            if not places:
                raise self._nothing_left()
            self._follow(places, mend=True)

    def _copied(self, table: str) -> Place | None:
        """
        Copy a table that is captured as it is now, and begin with its changes there.

        None where the capture is being closed. `_TakenOut` where this reader has no place in it
        any more: what somebody took out is not put back.
        """
        while not self._closing():
            found = self._patient(partial(self._captured, table))
            try:
                place = self._copy(found)
            except SchemaChanged:
                continue  # its rows come again, after another record that says so
            if place is not None:
                self._patient(partial(self._settle, table, place))
                return place
        return None

    def _captured(self, table: str) -> SourceTable:
        """Set up again what changed, and return the table as it is captured then."""
        database, names = self._database, self._names
        with reading(database):
            self._look_for_place(table)
            found = inspect(database, table)
            if not setup.amiss(database, [found], names):
                return found
        with writing(database):
            # Looked at again: somebody may have taken it out before we got the lock.
            self._look_for_place(table)
            found = inspect(database, table)
            setup.make(database, [found], names)
            return found

    def _settle(self, table: str, place: Place) -> None:
        with writing(self._database):
            reader = self._settings.reader
            if not readers.settle(self._database, self._names, reader, table, place):
                raise _TakenOut

    def _look_for_place(self, table: str) -> None:
        if table not in readers.places(self._database, self._names, self._settings.reader):
            raise _TakenOut

    def _mend_log(self) -> None:
        """Give a log whose rows were lost a new name: its numbers come again (R40)."""
        database, names, reader = self._database, self._names, self._settings.reader
        with reading(database):
            capture = setup.capture_id(database, names)
            if not (places := readers.places(database, names, reader)) or (
                all(place.capture == capture for place in places.values())
                and file_identity.known(database, names)
                and not self._numbers_come_again()
            ):
                return
        with writing(database):
            # Looked at again: somebody else may have mended it before we got the lock.
            if not setup.complete(database, names):
                return
            if self._numbers_come_again():
                setup.renew(database, names)
            elif not file_identity.known(database, names):
                file_identity.remember(database, names)
            # Nobody removes what follows from here on, while rows are copied.
            readers.owe(database, names, reader)

    def _numbers_come_again(self) -> bool:
        """Whether the log was emptied, or the file restored, since places were stored in it."""
        database, names = self._database, self._names
        capture = setup.capture_id(database, names)
        places = readers.places(database, names, self._settings.reader)
        return file_identity.elsewhere(database, names) or any(
            place.capture == capture
            and place.witness != readers.OWED
            and compare(database, place, names) == "reset"
            for place in places.values()
        )

    def _follow(self, places: dict[str, Place], *, mend: bool) -> None:
        database, waiting = self._database, self._waiting
        size = self._settings.batch_size
        following = self._patient(partial(Following, database, self._names, places, size))
        pruning = Pruning(database, "", following.epoch, self._names)
        self._stored = self._taken = following.at
        self._wait_for_locks(BUSY_SECONDS)
        more = True
        try:
            while not self._closing():
                if not following.tables:
                    raise self._nothing_left()
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
                    self._wait_for_locks(COPY_BUSY_SECONDS)
                    for table, problem in list(owed.problems.items()):
                        self._mend(table, problem if not mend else None, following)
                    self._wait_for_locks(BUSY_SECONDS)
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

    def _mend(self, table: str, problem: CaptureError | None, following: Following) -> None:
        """Copy a table anew, or raise what is wrong with it; leave it where it was taken out."""
        try:
            self._patient(partial(self._look_for_place, table))
            if problem is not None:
                raise problem from None
            place = self._copied(table)
        except _TakenOut:
            following.leave([table])
        else:
            if place is not None:
                following.moved({table: place})

    def _handle(self, batch: Batch) -> None:
        try:
            self._called(batch)
        except Interrupted:
            raise
        except Exception as error:
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
            gone = readers.advance(
                self._database,
                self._names,
                self._settings.reader,
                following.tables,
                self._taken,
            )
        except sqlite3.OperationalError as error:
            if busy(error):
                # Somebody writes for long: what is handed out meanwhile is stored with the next.
                self._store_at = now + LATER_SECONDS
                return
            if setup.complete(self._database, self._names):
                raise
            gone = list(following.tables)  # with the log
        self._stored = self._taken
        if gone:
            following.leave(gone)
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
            raise self._not_set_up("Not set up for this reader", ", ".join(missing) or "none")
        return {table: found[table] for table in wanted}

    def _nothing_left(self) -> SourceRefused:
        named = ", ".join(self._settings.tables or ()) or "all"
        return self._not_set_up("Taken out for this reader, in another process", named)

    def _not_set_up(self, why: str, tables: str) -> SourceRefused:
        return SourceRefused(
            why,
            log_table=self._names.log_table,
            reader=self._settings.reader,
            tables=tables,
            remedy="Call setup() first, or run headrace sqlite setup.",
        )

    def _look_at_file(self) -> None:
        try:
            same = os.stat(self._path).st_ino == self._inode  # noqa: PTH116 - asked very often
        except OSError:
            same = False
        if not same:
            raise SourceUnreachable("Database file was replaced", path=self._path)

    def _patient(self, work: Callable[[], _T]) -> _T:
        return patiently(work, self._locked)

    def _locked(self) -> None:
        """Wait a moment, because somebody else writes, unless the capture is being closed."""
        if self._closing():
            raise Interrupted
        self._waiting.pause(LATER_SECONDS)

    def _wait_for_locks(self, seconds: float) -> None:
        self._database.execute(f"pragma busy_timeout = {int(seconds * 1000)}")

    def _data_version(self) -> int:
        return int(self._database.execute("pragma data_version").fetchone()[0])
