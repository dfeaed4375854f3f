"""
One run of a capture: batches go to the handler, and places move on behind it.

Everything happens on the thread of the caller. Its connection reads in short transactions and
writes two things only: a place after a batch, and now and then the removal of what no reader needs
(`triggers.CursorPruner`). A lock that another connection holds delays these, and reading too, for
however long it is held; it stops nothing (R42).

`ChangeFollower` reads the capture log: which rows are next, and whether any may be missing. Each
read is one short transaction, `at … max(seq)`, as a source's (R41). It begins with a check whether
the row it goes on after is still the same one (R40), and whether the schema changed (R39). It
writes nothing.

`TableCopy` gives the rows of a table as batches, the first of which begins with the record that
says so. Rows are read in chunks, each of its own time, while the application goes on writing.
Changes from `first` on, put on top of the rows, make the table exact (R43).

Long because changes, copies and places share one connection, and each has its own waits for locks.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar
from uuid import uuid4

from headrace.capture.sqlite import triggers
from headrace.capture.sqlite.database import (
    LOCK_SECONDS,
    CaptureNames,
    CapturePosition,
    ReadLimits,
    Row,
    busy,
    connect,
    fetch,
    patiently,
    reading,
    speaking,
    witness,
    writing,
)
from headrace.capture.sqlite.library import readers
from headrace.capture.sqlite.library.records import (
    CaptureBatch,
    ChangeRows,
    Handler,
    Interrupted,
    TableColumns,
    TableRows,
)
from headrace.capture.sqlite.resume import compare, end_of
from headrace.capture.sqlite.tables import Chunks, Pages, SourceTable, inspect
from headrace.capture.sqlite.triggers import CursorPruner
from headrace.capture.sqlite.watch import Waiter, Wake
from headrace.errors import (
    CaptureError,
    SchemaChanged,
    SourceRefused,
    SourceUnreachable,
    TableRefused,
)

# --- reading the capture log ----------------------------------------------------------------------

READ_ROWS = 4096
"""Rows of the log in one read, unless batches are larger."""

READ_BYTES = 16 << 20
READ_SECONDS = 0.1
READ_SECONDS_ROLLBACK = 0.004
"""One read transaction at most, with a WAL and without (R42, R44)."""

ANEW = (
    "Run bootstrap_and_cdc (headrace sqlite cdc --bootstrap): it copies the table and goes on"
    " from there."
)


class BaselineNeeded(Exception):
    """Changes of tables may be missing after all that was read: what else is read is newer."""

    def __init__(self, problems: Mapping[str, CaptureError]) -> None:
        super().__init__(", ".join(problems))
        self.problems = problems
        """By table."""


class ChangeFollower:
    """Reads on after the places of some tables."""

    def __init__(
        self,
        database: sqlite3.Connection,
        names: CaptureNames,
        places: Mapping[str, CapturePosition],
        batch_size: int,
    ) -> None:
        capture = triggers.capture_id(database, names)
        assert capture is not None
        if triggers.elsewhere(database, names):
            raise SourceRefused(
                "Database file is another one than the log was made in: restored, or moved",
                log_table=names.log_table,
                remedy=ANEW,
            )
        for table, place in places.items():
            if place.capture != capture:
                raise _reset(table)
            if place.witness == readers.OWED:
                raise SchemaChanged(
                    "Changes of a table were not captured for this reader for a while",
                    table=table,
                    remedy=ANEW,
                )
        self._database = database
        self._names = names
        self._most = max(READ_ROWS, batch_size)
        self.tables = tuple(places)
        self.epoch = capture
        self.at = min(places.values(), key=lambda place: place.seq)
        """The last row that was read."""
        self._beyond = {table: place.seq for table, place in places.items()}
        (mode,) = database.execute("pragma journal_mode").fetchone()
        self._seconds = READ_SECONDS if mode == "wal" else READ_SECONDS_ROLLBACK
        self._version = -1
        self._owed: dict[str, CaptureError] = {}
        self._owed_from = 0
        self.shapes: dict[int, TableColumns] = {}
        self.width = 1
        self._end = self.at.seq

    @property
    def complete(self) -> bool:
        """Whether `at` is where a transaction ends."""
        return self.at.seq >= self._end

    def read(self) -> list[Row] | None:
        """
        Return the next changes of these tables, in order; None where the log has no more.

        Raises `BaselineNeeded` when all was read that came before changes which may be missing.
        """
        database = self._database
        with reading(database):
            self._look_at_schema()
            if compare(database, self.at, self._names) != "same":
                raise _reset(None)
            if self.complete:
                (self._end,) = database.execute(
                    f"select max(seq) from {self._names.log}"
                ).fetchone()
            if self._owed and self.at.seq >= self._owed_from:
                raise BaselineNeeded(self._owed)
            if self.complete:
                return None
            images = ", ".join(f"{side}{at}" for side in "ba" for at in range(self.width))
            rows, _ = fetch(
                database,
                f"select seq, ts, tbl, op, {images} from {self._names.log} "
                f"where seq > ? and seq <= ? order by seq limit {self._most}",
                (self.at.seq, self._end),
                ReadLimits(self._most, READ_BYTES, time.monotonic() + self._seconds),
            )
        return self._taken(rows)

    def moved(self, places: Mapping[str, CapturePosition]) -> None:
        """Take it that these tables were copied: their changes count from there on."""
        self._beyond |= {table: place.seq for table, place in places.items()}
        self._owed = {table: why for table, why in self._owed.items() if table not in places}
        self._version = -1

    def leave(self, tables: Sequence[str]) -> None:
        """Take it that somebody took these tables out: their changes are not read any more."""
        self.tables = tuple(table for table in self.tables if table not in tables)
        self._beyond = {table: self._beyond[table] for table in self.tables}
        self._owed = {table: why for table, why in self._owed.items() if table not in tables}
        self._version = -1

    def _taken(self, rows: Sequence[Row]) -> list[Row]:
        shapes, beyond = self.shapes, self._beyond
        taken = []
        for row in rows:
            shape = shapes.get(row[2])  # type: ignore[call-overload]
            if shape is None or row[0] <= beyond[shape.table]:  # type: ignore[operator]
                continue
            if row[3] == triggers.REPLANNED:
                # Read up to here and no further: the next read says why.
                self._owed[shape.table] = _missing(shape.table)
                self._owed_from = 0
                rows = rows[: rows.index(row)]
                break
            taken.append(row)
        if rows:
            last = rows[-1]
            self.at = CapturePosition(self.epoch, int(str(last[0])), witness(*last[1:4]))
        return taken

    def _look_at_schema(self) -> None:
        database = self._database
        version = int(database.execute("pragma schema_version").fetchone()[0])
        if version == self._version:
            return
        if not triggers.complete(database, self._names):
            raise SourceRefused("Capture log is gone", log_table=self._names.log_table, remedy=ANEW)
        plans = triggers.plans(database, self._names)
        self.shapes = {
            number: shape_of(plan) for number, plan in plans.items() if plan.table in self._beyond
        }
        self.width = max((len(shape.columns) for shape in self.shapes.values()), default=1)
        problems = not_captured(database, self._names, self.tables)
        if problems and not self._owed:
            # What was logged until now is right as far as it goes, and is handed out first.
            (end,) = database.execute(f"select max(seq) from {self._names.log}").fetchone()
            self._owed_from = int(end or 0)
        self._owed |= problems
        self._version = version


def shape_of(plan: triggers.CapturedColumns) -> TableColumns:
    """Return the columns of a plan."""
    return TableColumns(
        plan.table, tuple(plan.fields), tuple(declared for _, declared, _ in plan.fingerprint)
    )


def not_captured(
    database: sqlite3.Connection, names: CaptureNames, tables: Sequence[str]
) -> dict[str, CaptureError]:
    """Return why tables are not captured as they are now; {} where all are."""
    problems: dict[str, CaptureError] = {}
    for name in tables:
        try:
            if triggers.amiss(database, [inspect(database, name)], names):
                problems[name] = _missing(name)
        except TableRefused as refused:
            problems[name] = refused
    return problems


def _missing(table: str) -> SchemaChanged:
    return SchemaChanged(
        "Columns or capture triggers of a table changed, so that changes may be missing",
        table=table,
        remedy=ANEW,
    )


def _reset(table: str | None) -> SourceRefused:
    facts = {} if table is None else {"table": table}
    return SourceRefused(
        "Capture log was emptied, or pruned by somebody who reads under the same name",
        remedy=ANEW,
        **facts,
    )


# --- the rows of a table --------------------------------------------------------------------------

CHUNK_ROWS = 20_000
CHUNK_BYTES = 16 << 20
CHUNK_SECONDS = 0.1
CHUNK_SECONDS_ROLLBACK = 0.004
"""A read transaction holds back the WAL's checkpoint; without a WAL, writers (R42, R44)."""


class TableCopy:
    """Iterates over batches; `SchemaChanged` where the table is not the same any more."""

    def __init__(
        self,
        database: sqlite3.Connection,
        path: str,
        table: SourceTable,
        names: CaptureNames,
        batch_size: int,
        locked: Callable[[], None] | None = None,
    ) -> None:
        self._database = database
        self._table = table
        self._names = names
        self._size = batch_size
        mode, first, unchanged = patiently(self._beginning, locked)
        self.first = first
        """The place after which changes follow; None where none do."""
        seconds = CHUNK_SECONDS if mode == "wal" else CHUNK_SECONDS_ROLLBACK
        chunks = Chunks(CHUNK_ROWS, CHUNK_BYTES, seconds)
        self._pages = Pages(database, path, table, chunks, unchanged, lambda: None, locked)

    def _beginning(self) -> tuple[str, CapturePosition | None, _Unchanged]:
        database, names = self._database, self._names
        (mode,) = database.execute("pragma journal_mode").fetchone()
        with reading(database):
            capture = triggers.capture_id(database, names)
            # Without triggers nothing follows, and in a restored file numbers come again.
            captured = (
                capture is not None
                and not triggers.amiss(database, [self._table], names)
                and not triggers.elsewhere(database, names)
            )
            first = end_of(database, str(capture), names) if captured else None
            return mode, first, _Unchanged(database, self._table, names if captured else None)

    def __iter__(self) -> Iterator[CaptureBatch]:
        shape = TableColumns(
            self._table.name,
            tuple(column.name for column in self._table.columns),
            tuple(column.declared for column in self._table.columns),
        )
        at = None if self.first is None else f"{self.first.capture}/{self.first.seq}"
        # Where batches end depends on their size, on time and on what is written meanwhile: the
        # same number of another copy has other rows, and must not pass for this one.
        copy = f"{at}/{shape.table}/{uuid4().hex}"
        for number, (begins, rows) in enumerate(self._parts()):
            made = TableRows(rows, shape, begins, int(time.time() * 1000), at)
            yield CaptureBatch(made, id=None if at is None else f"{copy}/{number}")

    def _parts(self) -> Iterator[tuple[bool, Sequence[Row]]]:
        """Cut pages into batches; the record that says so takes a place in the first one."""
        begins = True
        for rows in self._pages:
            at = 0
            while at < len(rows):
                step = self._size - begins
                yield begins, rows[at : at + step]
                at += step
                begins = False
        if begins:
            yield True, []


class _Unchanged:
    """Raises when a table that is being copied has other columns now, or lost its triggers."""

    def __init__(
        self, database: sqlite3.Connection, table: SourceTable, names: CaptureNames | None
    ) -> None:
        self._database = database
        self._table = table
        self._names = names
        self._version = self._schema_version()

    def __call__(self) -> None:
        version = self._schema_version()
        if version == self._version:
            return
        now = inspect(self._database, self._table.name)
        if now.fingerprint != self._table.fingerprint or (
            self._names is not None
            and not_captured(self._database, self._names, [self._table.name])
        ):
            raise SchemaChanged(
                "A table changed while its rows were read",
                table=self._table.name,
                remedy="Start again: its rows come anew.",
            )
        self._version = version

    def _schema_version(self) -> int:
        return int(self._database.execute("pragma schema_version").fetchone()[0])


# --- the run --------------------------------------------------------------------------------------

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
class RunSettings:
    """What a run is to do."""

    path: str
    names: CaptureNames
    reader: str
    tables: tuple[str, ...] | None
    batch_size: int
    wake: Wake


class CaptureRun:
    """Reads on one connection, until it is done or `closing` says so."""

    def __init__(
        self, settings: RunSettings, handler: Handler, closing: Callable[[], bool]
    ) -> None:
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
        self._waiting = Waiter(settings.wake, self._path, self._data_version)
        self._stored: CapturePosition | None = None
        self._taken: CapturePosition | None = None
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

    def _copy(self, table: SourceTable) -> CapturePosition | None:
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
            places: dict[str, CapturePosition] = {}
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

    def _copied(self, table: str) -> CapturePosition | None:
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
            if not triggers.amiss(database, [found], names):
                return found
        with writing(database):
            # Looked at again: somebody may have taken it out before we got the lock.
            self._look_for_place(table)
            found = inspect(database, table)
            triggers.make(database, [found], names)
            return found

    def _settle(self, table: str, place: CapturePosition) -> None:
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
            capture = triggers.capture_id(database, names)
            if not (places := readers.places(database, names, reader)) or (
                all(place.capture == capture for place in places.values())
                and triggers.known(database, names)
                and not self._numbers_come_again()
            ):
                return
        with writing(database):
            # Looked at again: somebody else may have mended it before we got the lock.
            if not triggers.complete(database, names):
                return
            if self._numbers_come_again():
                triggers.renew(database, names)
            elif not triggers.known(database, names):
                triggers.remember(database, names)
            # Nobody removes what follows from here on, while rows are copied.
            readers.owe(database, names, reader)

    def _numbers_come_again(self) -> bool:
        """Whether the log was emptied, or the file restored, since places were stored in it."""
        database, names = self._database, self._names
        capture = triggers.capture_id(database, names)
        places = readers.places(database, names, self._settings.reader)
        return triggers.elsewhere(database, names) or any(
            place.capture == capture
            and place.witness != readers.OWED
            and compare(database, place, names) == "reset"
            for place in places.values()
        )

    def _follow(self, places: dict[str, CapturePosition], *, mend: bool) -> None:
        database, waiting = self._database, self._waiting
        size = self._settings.batch_size
        following = self._patient(partial(ChangeFollower, database, self._names, places, size))
        pruning = CursorPruner(database, "", following.epoch, self._names)
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
                except BaselineNeeded as owed:
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

    def _mend(self, table: str, problem: CaptureError | None, following: ChangeFollower) -> None:
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

    def _handle(self, batch: CaptureBatch) -> None:
        try:
            self._called(batch)
        except Interrupted:
            raise
        except Exception as error:
            raise HandlerRaised(error) from error

    def _passed(self, at: CapturePosition) -> None:
        """Note now and then that there were only changes of other tables: storing is a write."""
        now = time.monotonic()
        if now - self._passed_at >= OTHERS_SECONDS:
            self._taken, self._passed_at = at, now

    def _hand_out(self, rows: list[Row], following: ChangeFollower) -> None:
        size = self._settings.batch_size
        for at in range(0, len(rows), size):
            if self._closing():
                return
            part = rows[at : at + size]
            last = at + size >= len(rows)
            changes = ChangeRows(part, following.shapes, following.width, following.epoch)
            end = part[-1]
            batch = CaptureBatch(
                changes,
                complete=last and following.complete,
                id=f"{following.epoch}/{part[0][0]}-{end[0]}",
            )
            self._handle(batch)
            self._taken = (
                following.at
                if last
                else CapturePosition(following.epoch, int(str(end[0])), witness(*end[1:4]))
            )
            # In small steps: whatever is not stored comes again after a death.
            self._store(following)

    def _store(self, following: ChangeFollower, *, last: bool = False) -> None:
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
            if triggers.complete(self._database, self._names):
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

    def _known_places(self) -> dict[str, CapturePosition]:
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
