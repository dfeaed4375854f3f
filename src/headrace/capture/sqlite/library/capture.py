"""
SQLite capture as a library: a handler is called with batches of changes, and nothing else runs.

It creates the same tables and triggers in the database as the engine (`triggers`), and stores the
reader's positions there (`readers`). An instance has one run, on the thread that calls it:
`bootstrap` delivers all rows and returns; `cdc` delivers what was logged, then waits for more until
`close`; `bootstrap_and_cdc` does one after the other, and skips no change in between.

A batch is acknowledged when its handler returns. So if the process is killed at any point, the
next run begins with the batch that was being handled, and every change is delivered at least once,
with the same position.

One process at a time runs a reader for a table (`leases`). What the log keeps for a reader is
limited (`retention`). Records that a handler refuses can be stored, and delivered again later
(`dead_letters`).
"""

from __future__ import annotations

import re
import sqlite3
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Literal
from uuid import uuid4

from headrace.capture.sqlite import triggers
from headrace.capture.sqlite.database import OURS, CaptureNames, opened, writing
from headrace.capture.sqlite.library.dead_letters import DeadLetterFile, DeadRecord
from headrace.capture.sqlite.library.leases import Leases, RunLock
from headrace.capture.sqlite.library.readers import ReaderCursors, sweep_ephemeral
from headrace.capture.sqlite.library.records import Handler, Interrupted
from headrace.capture.sqlite.library.retention import (
    ReaderStatus,
    Retention,
    expire,
    reader_statuses,
    remove_read,
    set_retention,
)
from headrace.capture.sqlite.library.run import CaptureRun, HandlerRaised, RunSettings
from headrace.capture.sqlite.tables import capturable
from headrace.capture.sqlite.watch import DEFAULT, Wake
from headrace.errors import BadName, RunTwice, SourceRefused, StillRunning, TableRefused

BATCH_SIZE = 256
READER = "default"

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")


@dataclass(frozen=True, slots=True)
class TornDown:
    """The result of a `teardown`."""

    unread: int
    """Number of changes that this reader had not read, and that it will not receive now."""

    kept: tuple[str, ...]
    """Tables that stay captured, because another reader reads them."""


@dataclass(frozen=True, slots=True)
class SetUp:
    """The result of a `setup`."""

    tables: tuple[str, ...]
    """The tables whose changes are logged from now on."""

    refused: Mapping[str, TableRefused]
    """Why other tables are not captured, if no tables were named."""


class Capture:
    """
    Delivers the changes of a SQLite database to `handler`, in batches.

    `tables` names the tables. If it is None, `setup` takes every table of the application that can
    be captured, and returns why others cannot; the other methods take all tables that were set up
    for this reader.

    `handler` is called with one `Batch` at a time, in order, on the thread of the run. When it
    returns, the batch is acknowledged; when it raises, the run ends with that exception. If it
    has a method `stop`, `close` calls it, for handlers that wait.

    `log_table` is the name of the table in which changes are logged; logs are independent of each
    other. `reader` is the name of this reader: several readers read one log independently. `wake`
    defines when to look for changes, by default after a commit and every 250 ms.

    `retention` is what the log may keep for this reader; `setup` stores it. If that was not enough,
    `on_expired` decides what `cdc` does: `fail` raises `CaptureExpired`, `copy` delivers all rows
    of the table again. With `standby`, a run waits while another process runs the same reader; the
    default is to raise `LeaseTaken`. An `ephemeral` capture needs no `setup`, and removes what it
    has created at the end of its run; its reader has a name of its own by default. `dead_letters`
    is the path of a file for records that the handler refuses by raising `RecordsRefused`.

    `where` has a condition for each table of which only some rows are captured. The triggers
    evaluate it, so that other changes cost almost nothing. A row that begins to fulfil it is an
    INSERT, and one that no longer does is a DELETE. It needs a `log_table` of its own, all of whose
    readers have the same conditions.

    The database is not opened before a method is called. All methods may be called from any
    thread.
    """

    def __init__(
        self,
        path: str | Path,
        tables: Sequence[str] | None,
        handler: Handler,
        *,
        log_table: str = OURS.log_table,
        batch_size: int = BATCH_SIZE,
        reader: str | None = None,
        wake: Wake = DEFAULT,
        retention: Retention | None = None,
        on_expired: Literal["fail", "copy"] = "fail",
        ephemeral: bool = False,
        standby: bool = False,
        dead_letters: str | Path | None = None,
        where: Mapping[str, str] | None = None,
    ) -> None:
        if where and CaptureNames.of(log_table) == OURS:
            raise SourceRefused(
                "A filter needs a capture log of its own",
                log_table=log_table,
                remedy="Set log_table= to another name: engines read the default log, and need"
                " every change.",
            )
        if empty := [table for table, each in (where or {}).items() if not each.strip()]:
            raise SourceRefused(
                "A filter is empty",
                tables=", ".join(empty),
                remedy="Leave the table out of where to capture all of its rows.",
            )
        unknown = [] if tables is None else sorted(set(where or ()).difference(tables))
        if unknown:
            raise SourceRefused(
                "A filter is for a table that is not captured",
                tables=", ".join(unknown),
                remedy="Name the table in tables, exactly as in the database.",
            )
        if batch_size < 1:
            raise SourceRefused(
                "batch_size must be at least 1", batch_size=batch_size, remedy="Use 1 or more."
            )
        if on_expired not in ("fail", "copy"):
            raise SourceRefused(
                "on_expired is not valid", on_expired=on_expired, remedy="Use fail or copy."
            )
        if reader is None:
            reader = f"ephemeral-{uuid4().hex[:12]}" if ephemeral else READER
        if _NAME.fullmatch(reader) is None:
            raise BadName("The name of the reader is not valid", name=reader)
        names = [tables] if isinstance(tables, str) else tables
        self._settings = RunSettings(
            # The current folder may be another one at the time of the run.
            path=str(Path(path).expanduser().absolute()),
            names=CaptureNames.of(log_table),
            reader=reader,
            tables=None if names is None else tuple(dict.fromkeys(names)),
            batch_size=batch_size,
            wake=wake,
            on_expired=on_expired,
            ephemeral=ephemeral,
            standby=standby,
            dead_letters=None
            if dead_letters is None
            else str(Path(dead_letters).expanduser().absolute()),
            where=dict(where or {}),
        )
        self._retention = retention
        self._handler = handler
        # Reentrant: `close` is called in signal handlers, too.
        self._lock = threading.RLock()
        self._began = False
        self._run: CaptureRun | None = None
        self._runner: int | None = None
        self._closing = False
        # Held during the run. Not an event: a signal handler that interrupts its own thread in
        # the middle of a wait would wait for ever.
        self._under_way = threading.Lock()

    def setup(self) -> SetUp:
        """
        Create the log and the triggers if they are missing; return the tables.

        A named table that cannot be captured raises `TableRefused`, and nothing is set up.

        From then on every change of these tables is logged, and is kept for this reader. What is
        already set up is not changed, so this may be called again; a table whose columns changed
        gets new triggers. If this reader was removed from a table by `teardown`, it has missed the
        changes in between: `cdc` raises `SchemaChanged` until `bootstrap_and_cdc` has copied the
        table. Raises `StillRunning` during a run.
        """
        names = self._settings.names
        if self._settings.ephemeral:
            raise SourceRefused(
                "An ephemeral capture is set up by its run", remedy="Call cdc without setup."
            )
        with self._at_rest(), opened(self._settings.path) as database:
            _refuse_other_log(database, names)
            found, refused = capturable(database, self._settings.tables)
            tables = tuple(table.name for table in found)
            self._check_tables_of_filters(tables)
            triggers.install(database, found, names, self._settings.where)
            cursors = ReaderCursors(database, names, self._settings.reader)
            cursors.register(tables)
            if self._retention is not None:
                with writing(database):
                    set_retention(cursors, self._retention)
            self._clean_up(database)
            return SetUp(tables, refused)

    def _check_tables_of_filters(self, tables: Sequence[str]) -> None:
        if missing := sorted(set(self._settings.where).difference(tables)):
            raise SourceRefused(
                "A filter is for a table that is not captured", tables=", ".join(missing)
            )

    def _clean_up(self, database: sqlite3.Connection) -> None:
        """Remove what runs that were killed have left, and apply the limits of readers."""
        lock, names = RunLock(self._settings.path), self._settings.names
        lock.sweep()
        sweep_ephemeral(database, names, lock.alive)
        expire(database, names)

    def teardown(self) -> TornDown:
        """
        Remove the triggers of these tables, and with the last reader the log.

        Other tables, and tables that have another reader in the same log, stay captured, and the
        log stays as long as it has a reader. A renamed table can be given under either name;
        raises `TableRefused` if there is no such table. If this instance names no tables, a log in
        an unknown format is removed as a whole. A run in another process continues
        without these tables. Raises `StillRunning` during a run of this instance.
        """
        settings = self._settings
        with self._at_rest(), opened(settings.path) as database:
            cursors = ReaderCursors(database, settings.names, settings.reader)
            if triggers.has_known_format(database, settings.names):
                self._clean_up(database)
            unread, kept = cursors.take_out(settings.tables)
            return TornDown(unread, tuple(kept))

    def readers(self) -> list[ReaderStatus]:
        """Return all readers of this log with their tables, and what is kept for them."""
        with opened(self._settings.path) as database:
            return reader_statuses(
                database, self._settings.names, RunLock(self._settings.path).alive
            )

    def prune(self) -> int:
        """
        Apply the limits of all readers, and remove what none of them needs; return how many rows.

        Runs do this as well. If no reader may be running for a long time, call it regularly.
        """
        names = self._settings.names
        with opened(self._settings.path) as database:
            if not triggers.complete(database, names):
                return 0
            self._clean_up(database)
            return remove_read(database, names) if triggers.complete(database, names) else 0

    def bootstrap(self) -> None:
        """
        Deliver all rows as they are now, and return.

        The first record of a table is BOOTSTRAP, without images; its rows follow as INSERT. No
        change is delivered or acknowledged. This needs no `setup`, and writes nothing.
        """
        self._only_run(CaptureRun.bootstrap)

    def cdc(self, *, from_position: str | None = None, from_time: datetime | None = None) -> None:
        """
        Deliver every change since `setup` that was not acknowledged, until `close`.

        With `from_position`, begin after this position (`record.position`, or `earliest`), and with
        `from_time`, with the first change at this time or later. Changes that were acknowledged
        before are delivered again, and a run after this one continues where this one stops. Raises
        `CaptureExpired` with the earliest position if the log does not reach back so far.

        If changes of a table may be missing, because its columns or triggers changed, this
        delivers all earlier changes and then raises `SchemaChanged`.
        """
        if from_position is not None and from_time is not None:
            raise SourceRefused(
                "Both from_position and from_time are given", remedy="Use one of them."
            )
        start = from_position if from_time is None else from_time
        self._only_run(partial(CaptureRun.cdc, start=start))

    def bootstrap_and_cdc(self, *, resume: bool = False) -> None:
        """
        Deliver all rows, then every change made since each table began to be read.

        With `resume`, a bootstrap that an earlier run of this reader did not finish continues after
        the rows that were acknowledged, without another BOOTSTRAP record, and tables whose rows
        were all delivered have only their changes delivered. Use it if the handler keeps what it
        has received.

        If changes of a table may be missing, this delivers the table's rows again, after
        another BOOTSTRAP record. Only what changed is set up again.
        """
        self._only_run(partial(CaptureRun.bootstrap_and_cdc, resume=resume))

    # -- dead letters -----------------------------------------------------------------------

    def dead_records(self) -> list[DeadRecord]:
        """Return the records that this reader's handler refused, and those waiting for them."""
        with closing(self._dead_letter_file()) as file:
            return list(file)

    def redeliver(self) -> int:
        """
        Deliver stored records to the handler again, in order, and remove what it takes.

        Returns how many it took. What it refuses again stays, with everything that waits for it.
        Raises `LeaseTaken` while this reader runs in another process.
        """
        with self._dead_letters_leased() as file:
            return file.redeliver(self._handler)

    def purge(self, ids: Sequence[int] | None = None) -> int:
        """Remove stored records, by default all of this reader, undelivered; return how many."""
        with self._dead_letters_leased() as file:
            return file.purge(ids)

    def _dead_letter_file(self) -> DeadLetterFile:
        settings = self._settings
        if settings.dead_letters is None:
            raise SourceRefused(
                "This capture has no file of dead letters", remedy="Set dead_letters=."
            )
        return DeadLetterFile(settings.dead_letters, settings.path, settings.reader, create=False)

    @contextmanager
    def _dead_letters_leased(self) -> Iterator[DeadLetterFile]:
        settings = self._settings
        lock = RunLock(settings.path)
        with self._at_rest(), opened(settings.path) as database:
            file = self._dead_letter_file()
            try:
                lock.take()
                cursors = ReaderCursors(database, settings.names, settings.reader)
                leases = Leases(database, settings.names, lock)
                leases.want(cursors.rows(cursors.positions()))
                if triggers.complete(database, settings.names):
                    with writing(database):
                        leases.take()
                yield file
            finally:
                file.close()
                lock.release()

    # -- the end ----------------------------------------------------------------------------

    def close(self, *, timeout: float | None = None) -> bool:
        """
        End the run after the current batch, and wait until it has ended.

        Returns whether it has ended; with `timeout`, after that many seconds at the latest, with
        0 at once. On the thread of the run, in the handler or in a signal handler, it only requests
        the end and does not wait. If the handler waits for another thread, that thread must not
        wait for the handler: use `timeout=0` there. If there was no run yet, none can begin.
        """
        with self._lock:
            self._closing = True
            self._began = True
            run, runner = self._run, self._runner
            if run is not None:
                run.ring()
        if runner is not None and callable(stop := getattr(self._handler, "stop", None)):
            stop()
        if runner == threading.get_ident():
            return False
        if not self._under_way.acquire(timeout=-1 if timeout is None else max(0.0, timeout)):
            return False
        self._under_way.release()
        return True

    def __enter__(self) -> Capture:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _only_run(self, work: Callable[[CaptureRun], None]) -> None:
        with self._lock:
            if self._runner is not None:
                raise StillRunning("This capture is running")
            if self._began:
                why = "This capture was closed" if self._closing else "This capture has already run"
                raise RunTwice(why)
            # In this order: a signal handler may call `close` between any two of these lines, and
            # must recognise this thread as the one it cannot wait for.
            self._runner = threading.get_ident()
            self._under_way.acquire()
            self._began = True
        try:
            run = CaptureRun(self._settings, self._handler, lambda: self._closing)
            with self._lock:
                self._run = run
            try:
                work(run)
            except HandlerRaised as raised:
                raise raised.error from raised.error.__cause__
            except Interrupted:
                if not self._closing:
                    raise
            finally:
                with self._lock:
                    self._run = None
                run.close()
        finally:
            with self._lock:
                self._under_way.release()
                self._runner = None

    @contextmanager
    def _at_rest(self) -> Iterator[None]:
        with self._lock:
            if self._runner is not None:
                raise StillRunning("This capture is running")
            yield


def _refuse_other_log(database: sqlite3.Connection, names: CaptureNames) -> None:
    """Raise an error if a table has the log's name and is not a capture log."""
    found = database.execute(
        "select 1 from sqlite_master where name = ? collate nocase", (names.log_table,)
    ).fetchone()
    if found is not None and triggers.capture_id(database, names) is None and names != OURS:
        raise SourceRefused(
            "A table with this name exists and is not a capture log",
            log_table=names.log_table,
            remedy="Choose another name for the log table.",
        )
