"""
One run of a capture: open, copy, follow, acknowledge, close.

Everything runs on the caller's thread, on one connection. It reads in short transactions, with the
same code as the engine's source (`copy.Pages`, `capture_log.CaptureLog`), and delivers what it
read in batches. It writes only two things: a cursor after a batch, and from time to time the
removal of rows that no reader needs (`CursorPruner`). A lock of another connection delays these,
and reading too, for as long as it is held; it is not an error (R42).

`CaptureRun` is the run. `ChangeFollower` returns the next changes of its tables, and detects
whether any may be missing.

A run that stores positions has the leases of its tables (`leases`). While it copies a table, it
stores how far it has come, so that a run after it can continue there; while it follows, it applies
the limits of other readers (`retention`).

Long because the steps of a run share its connection, its positions and its end.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from operator import itemgetter
from typing import Literal, TypeVar

from headrace.capture.sqlite import triggers
from headrace.capture.sqlite.capture_log import CaptureLog, CursorPruner, compare, end_of
from headrace.capture.sqlite.copy import Pages, has_order
from headrace.capture.sqlite.database import (
    LOCK_SECONDS,
    CaptureNames,
    CapturePosition,
    Row,
    SchemaWatch,
    busy,
    connect,
    has_wal,
    patiently,
    pragma,
    reading,
    relax_commits,
    set_lock_timeout,
    speaking,
    writing,
)
from headrace.capture.sqlite.library.dead_letters import DeadLetterFile
from headrace.capture.sqlite.library.leases import Leases, RunLock
from headrace.capture.sqlite.library.readers import (
    EXPIRED,
    NEEDS_COPY,
    CopyPoint,
    ReaderCursors,
    ReaderExpired,
    sweep_ephemeral,
)
from headrace.capture.sqlite.library.records import (
    CaptureBatch,
    ChangeRows,
    Handler,
    Interrupted,
    TableColumns,
    TableCopy,
)
from headrace.capture.sqlite.library.retention import advance_history, expire, position_at
from headrace.capture.sqlite.tables import SourceTable, capturable, check_filter, described, inspect
from headrace.capture.sqlite.watch import Waiter, Wake
from headrace.errors import (
    CaptureError,
    CaptureExpired,
    LeaseTaken,
    SchemaChanged,
    SourceRefused,
    SourceUnreachable,
    TableRefused,
)

READ_ROWS = 4096
"""Number of log rows in one read, unless batches are larger."""

WAIT_SECONDS = 1.0
"""The longest wait: after that there may be rows to remove."""

LATER_SECONDS = 0.1
"""Pause before another attempt to store a cursor, or to read a locked database."""

STORE_SECONDS = 0.05
"""
How often a cursor is stored while a run keeps up with the application: each time takes the write
lock, and an application that commits at this moment waits.
"""

OTHERS_SECONDS = 1.0
"""How often a cursor is stored that only moved past changes of other tables."""

BUSY_SECONDS = 0.02
COPY_BUSY_SECONDS = 0.25
"""How long one attempt waits for a lock, for changes and for copies; it cannot be interrupted."""

COPY_POINT_SECONDS = 1.0
"""How often is stored how far a bootstrap has come; rows since then are delivered again."""

LIMIT_SECONDS = 5.0
"""How often the limits of other readers are applied, and the history moves."""

STANDBY_SECONDS = 0.25
"""How often a run in standby tries to take over."""

_COPY_FIRST = (
    "Run bootstrap_and_cdc (headrace sqlite cdc --bootstrap): it copies the table and continues"
    " from there."
)

_T = TypeVar("_T")


class HandlerRaised(Exception):
    """Wraps an error of the handler, so that it is not mistaken for a read error."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error


class BaselineNeeded(Exception):
    """Changes of tables may be missing after what was read: they have to be copied again."""

    def __init__(self, problems: Mapping[str, CaptureError]) -> None:
        super().__init__(", ".join(problems))
        self.problems = problems
        """By table."""


class _TakenOut(Exception):
    """The table was removed for this reader, for example by another process."""


class _LogReset(Exception):
    """The row at the position is no longer in the log."""


@dataclass(frozen=True, slots=True)
class RunSettings:
    """The settings of a run."""

    path: str
    names: CaptureNames
    reader: str
    tables: tuple[str, ...] | None
    batch_size: int
    wake: Wake
    on_expired: Literal["fail", "copy"] = "fail"
    ephemeral: bool = False
    standby: bool = False
    dead_letters: str | None = None
    where: Mapping[str, str] = field(default_factory=dict)


class CaptureRun:
    """Reads on one connection, until it is done or `closing` returns True."""

    # -- open -------------------------------------------------------------------------------

    def __init__(
        self, settings: RunSettings, handler: Handler, closing: Callable[[], bool]
    ) -> None:
        self._settings = settings
        self._handler = handler
        self._closing = closing
        self._path = settings.path
        self._names = settings.names
        self._database = database = connect(settings.path)
        self._inode = os.stat(settings.path).st_ino  # noqa: PTH116 - as it is asked later
        with speaking(self._path):
            self._wal = has_wal(database)
            relax_commits(database)
            set_lock_timeout(database, COPY_BUSY_SECONDS)
        self._lock = RunLock(self._path)
        self._leases = Leases(database, settings.names, self._lock)
        self._cursors = ReaderCursors(database, settings.names, settings.reader, self._leases)
        self._dead_letters: DeadLetterFile | None = None
        self._source = {
            "connector": "sqlite",
            "database": self._path,
            "log_table": settings.names.log_table,
            "reader": settings.reader,
        }
        self._waiting = Waiter(settings.wake, self._path, lambda: pragma(database, "data_version"))
        self._handled: CapturePosition | None = None
        self._stored: CapturePosition | None = None
        self._store_at = 0.0
        self._locked_until = 0.0
        self._passed_at = 0.0
        self._limits_at = 0.0
        self._point_at = 0.0

    def _begin(self) -> dict[str, CapturePosition]:
        """Take the leases of this run's tables, and return their positions."""
        self._lock.take()
        self._patient(lambda: sweep_ephemeral(self._database, self._names, self._lock.alive))
        if self._settings.ephemeral:
            self._patient(self._set_up)
        while True:
            tables = list(self._patient(self._known_positions))
            self._leases.want(self._cursors.rows(tables))
            try:
                self._patient(self._leases.look)
                break
            except LeaseTaken:
                if not self._settings.standby:
                    raise
            if self._closing():
                raise Interrupted
            self._waiting.pause(STANDBY_SECONDS)
        # While the application writes, the first position that is stored takes them.
        with suppress(sqlite3.OperationalError), writing(self._database):
            self._leases.take()
        # Once more: a run that ended just now may have moved them.
        known = self._patient(self._known_positions)
        self._patient(partial(self._check_filters, tables))
        return {table: known[table] for table in tables if table in known}

    def _check_filters(self, tables: Sequence[str]) -> None:
        triggers.check_filters(self._database, tables, self._settings.where, self._names)

    def _set_up(self) -> None:
        database, names = self._database, self._names
        self._cursors.refuse_lasting()
        # In one transaction: triggers without a reader would stay after a kill.
        with writing(database):
            found, _ = capturable(database, self._settings.tables)
            triggers.make(database, found, names, where=self._settings.where)
            self._cursors.enrol([table.name for table in found], self._lock.run)

    # -- copy -------------------------------------------------------------------------------

    def bootstrap(self) -> None:
        """Deliver the rows of all tables."""
        with speaking(self._path):
            tables = self._settings.tables
            for table in self._patient(self._cursors.tables) if tables is None else tables:
                self._copy(self._patient(partial(described, self._database, table)))

    def _copy(
        self, table: SourceTable, point: CopyPoint | None = None, *, stores: bool = False
    ) -> CapturePosition | None:
        """
        Deliver the rows of a table; return the position after which its changes follow, if any.

        Rows are read in chunks, each with its own snapshot, while the application continues to
        write. Applying the changes after the position to the rows makes the table exact (R43).
        It continues at `point`, and `stores` how far it has come. Raises `SchemaChanged` if the
        table was altered meanwhile.
        """
        if where := self._settings.where.get(table.name):
            self._patient(partial(check_filter, self._database, table, where))
            table = replace(table, where=where)
        first = point.first if point else self._patient(partial(self._changes_after, table))
        verify = SchemaWatch(
            self._database, partial(self._look_at_copied, table, captured=first is not None)
        )
        copy = TableCopy(
            TableColumns.of(table.name, table.fingerprint),
            None if first is None else f"{first.capture}/{first.seq}",
            self._settings.batch_size,
            None if first is None else self._patient(partial(self._plan_of, table)),
            self._source,
            resumes=point is not None,
        )

        def begins() -> None:
            if self._closing():
                pages.close()  # with a filter there may be no batch for a long time
            verify()

        pages = Pages(
            *(self._database, self._path, table, begins, partial(self._read_all, copy, first)),
            locked=self._locked,
            after=point.key if point else None,
        )
        for batch in copy.batches(pages):
            if self._closing():
                return None
            self._handle(batch)
            if stores and first is not None and copy.plan is not None:
                self._store_point(table, copy.plan, first, batch)
        return first if copy.finished else None

    def _read_all(self, copy: TableCopy, first: CapturePosition | None) -> None:
        copy.finished = True
        if first is not None:
            # Of the snapshot in which the last row was read: from here on the table is exact.
            copy.end = f"{first.capture}/{end_of(self._database, '', self._names).seq}"

    def _plan_of(self, table: SourceTable) -> int | None:
        plan = triggers.latest(triggers.plans(self._database, self._names), table.name)
        return None if plan is None else plan.id

    def _store_point(
        self, table: SourceTable, plan: int, first: CapturePosition, batch: CaptureBatch
    ) -> None:
        """Store how far a copy has come, if that is due and the table can be continued."""
        now = time.monotonic()
        key = key_to_resume(table, batch)
        if key is None or now < self._point_at:
            return
        self._point_at = now + COPY_POINT_SECONDS
        point = CopyPoint(first, plan, key)
        try:
            with writing(self._database):
                self._cursors.check_lease([table.name])
                self._cursors.put_copy_point(table.name, point)
        except sqlite3.OperationalError as error:
            if not busy(error):
                raise

    def _point_to_resume(self, table: SourceTable) -> CopyPoint | None:
        """Return how far the last run has come with this table, if that can be continued."""
        with reading(self._database):
            point = self._cursors.copy_points().get(table.name)
            known = self._cursors.positions().get(table.name)
            usable = (
                point is not None
                and known is not None
                and known.seq <= point.first.seq  # else the log keeps nothing for it
                and point.key
                and len(point.key) == len(table.key)
                and point.plan == self._plan_of(table)
                and point.first.capture == triggers.capture_id(self._database, self._names)
                and not triggers.elsewhere(self._database, self._names)
                and compare(self._database, point.first, self._names) == "same"
            )
            return point if usable else None

    def _changes_after(self, table: SourceTable) -> CapturePosition | None:
        """Return the end of the log, if changes of this table are logged after it."""
        database, names = self._database, self._names
        with reading(database):
            capture = triggers.capture_id(database, names)
            # Without triggers nothing follows, and in a restored file numbers are used again.
            if (
                capture is None
                or triggers.amiss(database, [table], names)
                or triggers.elsewhere(database, names)
            ):
                return None
            return end_of(database, capture, names)

    def _look_at_copied(self, table: SourceTable, *, captured: bool) -> None:
        """Raise an error if a table that is being copied was altered, or lost its triggers."""
        if captured:
            changed = bool(triggers.changed(self._database, [table], self._names))
        else:
            changed = described(self._database, table.name).fingerprint != table.fingerprint
        if changed:
            raise SchemaChanged(
                "The table was altered while its rows were read",
                table=table.name,
                remedy="Start again; all rows of the table are then delivered again.",
            )

    def _handle(self, batch: CaptureBatch) -> None:
        if self._dead_letters is None and self._settings.dead_letters is not None:
            self._dead_letters = DeadLetterFile(
                self._settings.dead_letters, self._path, self._settings.reader
            )
        try:
            if self._dead_letters is None:
                self._handler(batch)
            else:
                self._dead_letters.deliver(batch, self._handler)
        except Interrupted:
            raise
        except Exception as error:
            raise HandlerRaised(error) from error

    # -- copy a table that is followed ------------------------------------------------------

    def bootstrap_and_cdc(self, *, resume: bool = False) -> None:
        """
        Deliver rows, then changes; if some may be missing, the table's rows again.

        With `resume`, only what an earlier run has not delivered yet.
        """
        with speaking(self._path):
            self._patient(partial(triggers.upgrade, self._database, self._names))
            self._begin()
            self._patient(self._cursors.repair)
            positions: dict[str, CapturePosition] = {}
            for table, known in self._patient(self._known_positions).items():
                if resume and self._is_copied(table, known):
                    positions[table] = known
                    continue
                try:
                    position = self._copy_captured(table, resume=resume)
                except _TakenOut:
                    continue
                if position is None:
                    return
                positions[table] = position
            if not positions:
                raise self._nothing_left()
            self._follow(positions, copies=True)

    def _is_copied(self, table: str, position: CapturePosition) -> bool:
        """Whether an earlier run has delivered all rows, and changes follow without a gap."""
        points = self._patient(self._cursors.copy_points)
        if table not in points or points[table].key:
            return False
        if position.row_facts in (NEEDS_COPY, EXPIRED):
            return False
        return not self._patient(
            lambda: triggers.amiss(self._database, [inspect(self._database, table)], self._names)
        )

    def _copy_captured(self, table: str, *, resume: bool = False) -> CapturePosition | None:
        """
        Copy a table, set its position to the start of the copy, and return the position.

        Returns None if the capture is being closed. Raises `_TakenOut` if this reader no longer
        has a position in the table: a table that was removed is not added again.
        """
        while not self._closing():
            self._look_at_file()  # in another file no changes would follow, and this would not end
            found = self._patient(partial(self._captured, table))
            point = self._patient(partial(self._point_to_resume, found)) if resume else None
            resume = False
            if point is None:
                self._patient(partial(self._forget_point, table))
            try:
                position = self._copy(found, point, stores=True)
            except SchemaChanged:
                continue  # its rows are delivered again, after another BOOTSTRAP record
            if position is not None:
                self._patient(partial(self._begin_at, table, position))
                return position
        return None

    def _captured(self, table: str) -> SourceTable:
        """Set up again what changed, and return the table as it is captured now."""
        database, names = self._database, self._names
        with reading(database):
            self._look_for_position(table)
            self._check_filters([table])
            found = inspect(database, table)
            if not triggers.amiss(database, [found], names):
                return found
        with writing(database):
            # Checked again: it may have been removed before we got the lock.
            self._look_for_position(table)
            found = inspect(database, table)
            triggers.make(database, [found], names)
            return found

    def _look_for_position(self, table: str) -> None:
        if table not in self._cursors.positions():
            raise _TakenOut

    def _forget_point(self, table: str) -> None:
        if table in self._cursors.copy_points():
            with writing(self._database):
                self._cursors.put_copy_point(table, None)

    def _begin_at(self, table: str, position: CapturePosition) -> None:
        with writing(self._database):
            if not self._cursors.settle(table, position):
                self._look_for_position(table)
                raise _expired_error(self._settings.reader, [table])
            plan = triggers.latest(triggers.plans(self._database, self._names), table)
            done = CopyPoint(position, 0 if plan is None else plan.id, ())
            self._cursors.put_copy_point(table, done)

    # -- follow -----------------------------------------------------------------------------

    def cdc(self, start: str | datetime | None = None) -> None:
        """
        Deliver changes until `closing` returns True; raise an error if some may be missing.

        With `start`, this reader's positions are first set to what it names.
        """
        with speaking(self._path):
            self._patient(partial(triggers.upgrade, self._database, self._names))
            positions = self._begin()
            if start is not None:
                at = self._patient(partial(position_at, self._database, self._names, start))
                positions = self._patient(partial(self._go_to, positions, at))
            self._follow(positions, copies=False)

    def _go_to(
        self, positions: Mapping[str, CapturePosition], at: CapturePosition
    ) -> dict[str, CapturePosition]:
        with writing(self._database):
            if compare(self._database, at, self._names) != "same":
                raise CaptureExpired(
                    "The capture log does not reach back to this position any more",
                    position=f"{at.capture}/{at.seq}",
                )
            for table, position in positions.items():
                if position.row_facts == NEEDS_COPY:
                    continue  # what it has missed is nowhere in the log
                self._cursors.settle(table, at, expired=True)
            known = self._known_positions()
            return {table: known[table] for table in positions if table in known}

    def _follow(self, positions: Mapping[str, CapturePosition], *, copies: bool) -> None:
        while not self._closing():
            if all(position.row_facts != EXPIRED for position in positions.values()):
                try:
                    self._follow_from(positions, copies=copies)
                except ReaderExpired:
                    pass
                else:
                    return
            expired = [
                table
                for table, position in self._patient(self._known_positions).items()
                if position.row_facts == EXPIRED and table in positions
            ]
            if not copies and self._settings.on_expired == "fail":
                raise _expired_error(self._settings.reader, expired)
            set_lock_timeout(self._database, COPY_BUSY_SECONDS)
            self._patient(self._cursors.repair)
            for table in expired:
                with suppress(_TakenOut):
                    self._copy_captured(table)
            now = self._patient(self._known_positions)
            positions = {table: now[table] for table in positions if table in now}

    def _follow_from(self, positions: Mapping[str, CapturePosition], *, copies: bool) -> None:
        database, waiting = self._database, self._waiting
        size = self._settings.batch_size
        following = self._patient(partial(ChangeFollower, database, self._names, positions, size))
        pruning = CursorPruner(database, "", following.epoch, self._names)
        self._stored = self._handled = following.log.at
        set_lock_timeout(database, BUSY_SECONDS)
        more = True
        try:
            while not self._closing():
                if not following.tables:
                    raise self._nothing_left()
                try:
                    more = more or waiting.due()
                    rows = following.read() if more else None
                except _LogReset:
                    self._look_whether_expired(following.tables)
                    raise _reset() from None
                except sqlite3.OperationalError as error:
                    if not busy(error):
                        raise
                    waiting.again()
                    waiting.wait(LATER_SECONDS)
                    continue
                except BaselineNeeded as needed:
                    self._store(following, last=True)
                    self._copy_again(needed.problems, following, copies=copies)
                    continue
                if rows:
                    self._hand_out(rows, following)
                elif rows is not None:
                    self._pass_over(following.log.at)
                self._store(following)
                pruning.allow(self._stored.seq)
                pruning.step()
                self._apply_limits(following, pruning)
                more = rows is not None
                if not more:
                    self._look_at_file()
                    pending = self._handled != self._stored
                    due = max(0.0, self._store_at - time.monotonic())
                    waiting.wait(due if pending else WAIT_SECONDS)
        finally:
            set_lock_timeout(database, LOCK_SECONDS)
            self._store(following, last=True)

    def _apply_limits(self, following: ChangeFollower, pruning: CursorPruner) -> None:
        """Let other readers expire that are above their limits, and move the history."""
        now = time.monotonic()
        if now < self._limits_at or self._stored is None:
            return
        self._limits_at = now + LIMIT_SECONDS
        database, names = self._database, self._names
        try:
            expire(database, names, self._cursors.rows(following.tables))
            history = advance_history(database, names, self._cursors, self._stored.seq)
        except sqlite3.OperationalError as error:
            if not busy(error) and triggers.complete(database, names):
                raise
        else:
            if history is not None:
                pruning.allow(history + 1)  # nothing was read, and there may be rows to remove

    def _look_whether_expired(self, tables: Sequence[str]) -> None:
        """
        Raise `ReaderExpired` if the log keeps nothing for this reader any more.

        Raises `LeaseLost` if that is so because another run reads for it.
        """
        known = self._patient(self._cursors.positions)
        self._patient(partial(self._check_lease, [table for table in tables if table in known]))
        if any(known[table].capture == EXPIRED for table in tables if table in known):
            raise ReaderExpired

    def _check_lease(self, tables: Sequence[str]) -> None:
        with writing(self._database):
            self._cursors.check_lease(tables)

    def _hand_out(self, rows: list[Row], following: ChangeFollower) -> None:
        size, log = self._settings.batch_size, following.log
        for at in range(0, len(rows), size):
            if self._closing():
                return
            part = rows[at : at + size]
            last = at + size >= len(rows)
            changes = ChangeRows(part, following.shapes, following.width, following.epoch, log.end)
            self._handle(
                CaptureBatch(
                    changes,
                    complete=last and log.complete,
                    id=f"{following.epoch}/{part[0][0]}-{part[-1][0]}",
                    source=self._source,
                )
            )
            self._handled = log.at if last else log.position(part[-1])
            if self._wal and not last:
                # In small steps: what is not stored is delivered again after a kill.
                self._store_at = min(self._store_at, self._locked_until)
            self._store(following)

    def _pass_over(self, at: CapturePosition) -> None:
        """Move past changes of other tables, but not often: storing the cursor is a write."""
        now = time.monotonic()
        if now - self._passed_at >= OTHERS_SECONDS:
            self._handled, self._passed_at = at, now

    def _copy_again(
        self, problems: Mapping[str, CaptureError], following: ChangeFollower, *, copies: bool
    ) -> None:
        """Copy tables again, or raise the problem; drop tables that were removed."""
        set_lock_timeout(self._database, COPY_BUSY_SECONDS)
        for table, problem in problems.items():
            try:
                self._patient(partial(self._look_for_position, table))
                if not copies:
                    raise problem from None
                position = self._copy_captured(table)
            except _TakenOut:
                following.leave([table])
                continue
            if position is not None:
                following.move(table, position)
        set_lock_timeout(self._database, BUSY_SECONDS)

    # -- acknowledge ------------------------------------------------------------------------

    def _store(self, following: ChangeFollower, *, last: bool = False) -> None:
        """Store the position of the handler, if that is due; with `last`, in any case."""
        if self._handled is None or self._handled == self._stored:
            return
        now = time.monotonic()
        if now < self._store_at and not last:
            return
        try:
            gone = self._cursors.advance(following.tables, self._handled)
        except ReaderExpired:
            if last:
                return
            raise
        except sqlite3.OperationalError as error:
            if busy(error):
                # A long write of the application: the next attempt stores the newest position.
                self._store_at = self._locked_until = now + LATER_SECONDS
                return
            if triggers.complete(self._database, self._names):
                raise
            gone = list(following.tables)  # the log itself was removed
        self._stored = self._handled
        if gone:
            following.leave(gone)
        # Without a WAL each of these is a sync that blocks every other connection.
        self._store_at = now + (STORE_SECONDS if self._wal else LATER_SECONDS)

    # -- close ------------------------------------------------------------------------------

    def ring(self) -> None:
        """End a wait, because `closing` may have changed; called from any thread."""
        self._waiting.ring()

    def close(self) -> None:
        """Close the connection and all descriptors; an ephemeral reader is removed."""
        try:
            if self._settings.ephemeral and self._lock.run:
                with speaking(self._path):
                    set_lock_timeout(self._database, LOCK_SECONDS)
                    self._remove_ephemeral()
        finally:
            if self._dead_letters is not None:
                self._dead_letters.close()
            self._waiting.close()
            self._database.close()
            self._lock.release()

    def _remove_ephemeral(self) -> None:
        # Without a lock on its file this run counts as ended, and its reader is removed.
        sweep_ephemeral(
            self._database,
            self._names,
            lambda run: run != self._lock.run and self._lock.alive(run),
        )

    # -- used by all of these ---------------------------------------------------------------

    def _patient(self, work: Callable[[], _T]) -> _T:
        return patiently(work, self._locked)

    def _locked(self) -> None:
        """Wait a moment while another connection writes; raise if the capture is being closed."""
        if self._closing():
            raise Interrupted
        self._waiting.pause(LATER_SECONDS)

    def _look_at_file(self) -> None:
        try:
            same = os.stat(self._path).st_ino == self._inode  # noqa: PTH116 - asked very often
        except OSError:
            same = False
        if not same:
            raise SourceUnreachable("The database file was replaced", path=self._path)

    def _known_positions(self) -> dict[str, CapturePosition]:
        """Return the positions of this run's tables; raise an error if one is not set up."""
        found = self._cursors.positions()
        wanted = list(found) if self._settings.tables is None else self._settings.tables
        missing = [table for table in wanted if table not in found]
        if missing or not wanted:
            raise self._not_set_up(
                "Capture is not set up for this reader", ", ".join(missing) or "none"
            )
        return {table: found[table] for table in wanted}

    def _nothing_left(self) -> SourceRefused:
        named = ", ".join(self._settings.tables or ()) or "all"
        return self._not_set_up("Another process removed this reader from its tables", named)

    def _not_set_up(self, why: str, tables: str) -> SourceRefused:
        return SourceRefused(
            why,
            log_table=self._names.log_table,
            reader=self._settings.reader,
            tables=tables,
            remedy="Call setup() first, or run headrace sqlite setup.",
        )


# --- changes of some tables -----------------------------------------------------------------------


class ChangeFollower:
    """Reads changes of some tables, each after its position; writes nothing."""

    def __init__(
        self,
        database: sqlite3.Connection,
        names: CaptureNames,
        positions: Mapping[str, CapturePosition],
        batch_size: int,
    ) -> None:
        capture = triggers.capture_id(database, names)
        assert capture is not None
        if triggers.elsewhere(database, names):
            raise SourceRefused(
                "The capture log was created in another file: this one was restored or moved",
                log_table=names.log_table,
                remedy=_COPY_FIRST,
            )
        for table, position in positions.items():
            if position.capture != capture:
                raise _reset(table=table)
            if position.row_facts == NEEDS_COPY:
                raise SchemaChanged(
                    "Changes of the table were not captured for this reader for some time",
                    table=table,
                    remedy=_COPY_FIRST,
                )
        self._database = database
        self._names = names
        self._most = max(READ_ROWS, batch_size)
        self._look = SchemaWatch(database, self._look_at_schema)
        self._after = {table: position.seq for table, position in positions.items()}
        self._problems: dict[str, CaptureError] = {}
        self._problems_from = 0
        self.epoch = capture
        self.log = CaptureLog(database, min(positions.values(), key=lambda at: at.seq), names)
        self.shapes: dict[int, TableColumns] = {}
        self._plans: Mapping[int, triggers.CapturedColumns] = {}
        self.width = 1

    @property
    def tables(self) -> tuple[str, ...]:
        """The tables whose changes are read."""
        return tuple(self._after)

    def read(self) -> list[Row] | None:
        """
        Return the next changes of these tables, in order; None if the log has no more.

        Raises `BaselineNeeded` after everything was read that precedes possibly missing changes.
        """
        with reading(self._database):
            self._look()
            if not self.log.goes_on():
                raise _LogReset
            if self._problems and self.log.at.seq >= self._problems_from:
                raise BaselineNeeded(dict(self._problems))
            rows = self.log.read(self._most, self.width, self._plans)
        if self.log.unclear:
            self._problems |= {
                self._plans[number].table: _missing(self._plans[number].table)
                for number in self.log.unclear
                if self._plans[number].table in self._after
            }
            self.log.unclear.clear()
        return self._take(rows) if rows else None

    def move(self, table: str, position: CapturePosition) -> None:
        """Read changes of a table after `position`, because it was copied."""
        self._after[table] = position.seq
        self._problems.pop(table, None)
        self._look.again()

    def leave(self, tables: Sequence[str]) -> None:
        """Stop reading changes of these tables, because they were removed."""
        for table in tables:
            self._after.pop(table, None)
            self._problems.pop(table, None)
        self._look.again()

    def _take(self, rows: list[Row]) -> list[Row]:
        """Return the changes of our tables among the next rows, and move past all of them."""
        shapes, after = self.shapes, self._after
        if (
            int(str(rows[0][0])) > max(after.values(), default=0)
            and shapes.keys() >= set(map(_plan, rows))
            and triggers.REPLANNED not in map(_op, rows)
        ):
            # The usual case, without a look at each row.
            self.log.advance()
            return rows
        taken = []
        every = rows
        for at, row in enumerate(rows):
            shape = shapes.get(row[2])  # type: ignore[call-overload]
            if shape is None or row[0] <= after[shape.table]:  # type: ignore[operator]
                continue
            if row[3] == triggers.REPLANNED:
                # Read up to here and no further: the next read raises the reason.
                self._problems[shape.table] = _missing(shape.table)
                self._problems_from = 0
                rows = rows[:at]
                break
            taken.append(row)
        if rows is every:
            self.log.advance()
        elif rows:
            self.log.advance(rows[-1])
        return taken

    def _look_at_schema(self) -> None:
        database, names = self._database, self._names
        if not triggers.complete(database, names):
            raise SourceRefused(
                "The capture log no longer exists", log_table=names.log_table, remedy=_COPY_FIRST
            )
        self._plans = triggers.plans(database, names)
        self.shapes = {
            number: TableColumns.of(plan.table, plan.fingerprint)
            for number, plan in self._plans.items()
            if plan.table in self._after
        }
        self.width = max((len(shape.columns) for shape in self.shapes.values()), default=1)
        problems: dict[str, CaptureError] = {}
        for table in self.tables:
            try:
                if triggers.amiss(database, [inspect(database, table)], names):
                    problems[table] = _missing(table)
            except TableRefused as refused:
                problems[table] = refused
        if problems and not self._problems:
            # What was logged until now is correct, and is delivered first.
            self._problems_from = end_of(database, self.epoch, names).seq
        self._problems |= problems


_plan, _op = itemgetter(2), itemgetter(3)
"""Of a row of the log."""


def _missing(table: str) -> SchemaChanged:
    return SchemaChanged(
        "The table's columns or capture triggers changed, so changes may be missing",
        table=table,
        remedy=_COPY_FIRST,
    )


def key_to_resume(table: SourceTable, batch: CaptureBatch) -> Sequence[object] | None:
    """
    Return the key of a batch's last row; None if a copy cannot be continued after it.

    Rows with a null in their key come first, and have an order of their own. So have rows whose
    key has a collation that only the application has. If VACUUM renumbers the rows of a table
    without a declared key, it gets another plan, and begins again (R43).
    """
    rows = batch.rows.rows
    if not rows or not has_order(table):
        return None
    names = [column.name for column in table.columns]
    key = [rows[-1][names.index(name)] for name in table.key]
    return None if None in key else key


def _expired_error(reader: str, tables: Sequence[str]) -> CaptureExpired:
    return CaptureExpired(
        "This reader had more unread changes, or older ones, than may be kept for it",
        reader=reader,
        tables=", ".join(tables),
    )


def _reset(**facts: str) -> SourceRefused:
    return SourceRefused(
        "The capture log was emptied, or pruned by another process with the same reader name",
        remedy=_COPY_FIRST,
        **facts,
    )
