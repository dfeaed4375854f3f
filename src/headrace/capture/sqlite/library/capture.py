"""
SQLite capture as a library: a handler is called with batches of changes, and nothing else runs.

What is put into the database is what the engine puts there (`triggers`), and a reader's place
beside it (`readers`). One run an instance, on the thread that calls it: `bootstrap` hands out
what is there and returns; `cdc` hands out what was logged, then waits for more until `close`;
`bootstrap_and_cdc` does one after the other, and no change in between is left out.

A batch is acknowledged when its handler returns. So after a death anywhere the next run begins
with the batch that was being handled, and every change comes at least once, with the same
position.
"""

from __future__ import annotations

import re
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from headrace.capture.sqlite import triggers
from headrace.capture.sqlite.database import OURS, CaptureNames, opened
from headrace.capture.sqlite.library.readers import ReaderCursors
from headrace.capture.sqlite.library.records import Handler, Interrupted
from headrace.capture.sqlite.library.run import CaptureRun, HandlerRaised, RunSettings
from headrace.capture.sqlite.tables import inspect, table_names
from headrace.capture.sqlite.watch import DEFAULT, Wake
from headrace.errors import BadName, RunTwice, SourceRefused, StillRunning

BATCH_SIZE = 256
READER = "default"

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")


@dataclass(frozen=True, slots=True)
class TornDown:
    """What a `teardown` found."""

    unread: int
    """Changes that this reader had not read, and that nobody will hand it now."""

    kept: tuple[str, ...]
    """Tables that stay captured, because somebody else reads them."""


class Capture:
    """
    Changes of a SQLite database, handed to `handler` in batches.

    `tables` names the tables, or is None: for `setup` every table of the application, one that
    cannot be captured being refused like one that was named; afterwards all that were set up.

    `handler` is called with a `Batch` at a time, in order, on the thread of the run; when it
    returns, the batch is acknowledged, and when it raises, the run ends with what it raised. If
    it has a method `stop`, that is called by `close`, for handlers that wait.

    `log_table` names the table that changes are logged in: each such log is on its own. `reader`
    names who reads: several read one log independently, each under its own name. `wake` says
    what ends a wait, by default a file watch and a look every 250 ms.

    Nothing is touched before a method is called. All methods may be called from any thread.
    """

    def __init__(
        self,
        path: str | Path,
        tables: Sequence[str] | None,
        handler: Handler,
        *,
        log_table: str = OURS.log_table,
        batch_size: int = BATCH_SIZE,
        reader: str = READER,
        wake: Wake = DEFAULT,
    ) -> None:
        if batch_size < 1:
            raise SourceRefused(
                "batch_size must be at least 1", batch_size=batch_size, remedy="Use 1 or more."
            )
        if _NAME.fullmatch(reader) is None:
            raise BadName("The name of the reader is not valid", name=reader)
        names = [tables] if isinstance(tables, str) else tables
        self._settings = RunSettings(
            # The folder the caller stands in may be another one by the time of a run.
            path=str(Path(path).expanduser().absolute()),
            names=CaptureNames.of(log_table),
            reader=reader,
            tables=None if names is None else tuple(dict.fromkeys(names)),
            batch_size=batch_size,
            wake=wake,
        )
        self._handler = handler
        # One that its owner may take again: `close` is called in signal handlers, too.
        self._lock = threading.RLock()
        self._began = False
        self._run: CaptureRun | None = None
        self._runner: int | None = None
        self._closing = False
        # Held during the run. Not an event, of which a signal handler may find its own thread
        # half-way in a wait, and then waits for ever.
        self._under_way = threading.Lock()

    def setup(self) -> tuple[str, ...]:
        """
        Make the log and the triggers where they are missing; return the tables.

        From here on every change of these tables is logged, and waits for this reader. What is
        in place already is left alone, so it may be called again; a table whose columns changed
        gets new triggers. After a `teardown` of some of its tables this reader has missed their
        changes in between: `cdc` raises `SchemaChanged` until `bootstrap_and_cdc` has copied them.
        `StillRunning` while a run is under way.
        """
        names = self._settings.names
        with self._at_rest(), opened(self._settings.path) as database:
            _refuse_other_log(database, names)
            tables = self._settings.tables
            tables = tuple(table_names(database)) if tables is None else tables
            if not tables:
                raise SourceRefused("No tables to capture", path=self._settings.path)
            triggers.install(database, [inspect(database, table) for table in tables], names)
            ReaderCursors(database, names, self._settings.reader).register(tables)
            return tables

    def teardown(self) -> TornDown:
        """
        Take out the triggers of these tables, and with the last reader the log.

        Other tables, and tables that somebody else reads from the same log, stay captured, and
        so does the log while a reader is left who may have changes to read in it. Tables may be
        named as they are now or as they were when they were set up; `TableRefused` where there is
        none such. A run in another process goes on without them. `StillRunning` while a run of
        this instance is under way.
        """
        settings = self._settings
        with self._at_rest(), opened(settings.path) as database:
            cursors = ReaderCursors(database, settings.names, settings.reader)
            unread, kept = cursors.take_out(settings.tables)
            return TornDown(unread, tuple(kept))

    def bootstrap(self) -> None:
        """
        Hand out all rows as they are now, and return.

        The first record of a table is BOOTSTRAP, without images; its rows follow as INSERT. No
        change is handed out or acknowledged. It needs no set-up, and writes nothing.
        """
        self._only_run(CaptureRun.bootstrap)

    def cdc(self) -> None:
        """
        Hand out every change since `setup` that was not acknowledged, until `close`.

        Where changes of a table may be missing, because its columns or its triggers changed,
        it hands out all that came before and raises `SchemaChanged`.
        """
        self._only_run(CaptureRun.cdc)

    def bootstrap_and_cdc(self) -> None:
        """
        Hand out all rows, then every change since each table's rows began to be read.

        Where changes of a table may be missing, it hands out the table's rows again, after
        another BOOTSTRAP record. It sets up again what changed, and nothing else.
        """
        self._only_run(CaptureRun.bootstrap_and_cdc)

    def close(self, *, timeout: float | None = None) -> bool:
        """
        End the run after the batch that is being handled, and wait for that.

        Returns whether it has ended; with `timeout` after so many seconds at the latest, and with
        0 at once. On the thread of the run, so from a handler or a signal handler there, it only
        asks. Another thread that the handler itself waits for must not wait for the handler: use
        `timeout=0` there. Without a run none will begin.
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
            # In this order: a signal handler that closes may be called between any two of these,
            # and must know this thread for the one it cannot wait for.
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
    """Refuse a table that has the log's name and is not one of ours."""
    found = database.execute(
        "select 1 from sqlite_master where name = ? collate nocase", (names.log_table,)
    ).fetchone()
    if found is not None and triggers.capture_id(database, names) is None and names != OURS:
        raise SourceRefused(
            "A table with this name exists and is not a capture log",
            log_table=names.log_table,
            remedy="Choose another name for the log table.",
        )
