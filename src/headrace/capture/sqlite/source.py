"""
A SQLite database as a source.

Only the triggers of each table run inside the database (`triggers`); everything else is this
reader, on its own connection. Each read of the log (`capture_log`) ends between two transactions of
the application: that is a read group, and a flush consists of whole groups (R41). Where a
transaction ends within a group cannot be determined.

`findings` reports what we set up in a SQLite file, and how many changes it contains. `objects`
lists it, and `remove_objects` removes it. `sample` returns a few rows of a table; the file is only
read. `CaptureMeter` measures what the file keeps for its readers.

Long because reading, and what capture leaves in a file, know the same tables and readers.
"""

from __future__ import annotations

import math
import re
import shlex
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pyarrow as pa

from headrace.capture.baselines import checked_rate
from headrace.capture.registry import Finding, SourceObject, TableSample
from headrace.capture.source import (
    LEAST_LIMIT,
    Lag,
    Problem,
    Room,
    SourceNotice,
    SourcePosition,
    SourceSpec,
    SourceTraits,
)
from headrace.capture.sqlite import triggers
from headrace.capture.sqlite.arrow_rows import SQLiteCopy, batch_of, segment_of
from headrace.capture.sqlite.capture_log import (
    CaptureLog,
    CaptureReader,
    CursorPruner,
    ReaderRow,
    end_of,
    gaps,
    put_reader,
    reader_rows,
    resume,
    row_bytes,
)
from headrace.capture.sqlite.database import (
    OURS,
    CapturePosition,
    ReadLimits,
    Row,
    SchemaWatch,
    busy,
    connect,
    fetch,
    folded,
    opened,
    pragma,
    probe_writing,
    quoted,
    reading,
    relax_commits,
    set_lock_timeout,
    speaking,
    writing,
)
from headrace.capture.sqlite.tables import (
    KINDS,
    SourceTable,
    column_list,
    inspect,
    table_names,
    table_schema,
)
from headrace.capture.sqlite.trigger_sql import NOW
from headrace.capture.sqlite.triggers import LOG, REPLANNED
from headrace.capture.sqlite.watch import CommitWatch
from headrace.changelog.change import Changes, TableChanges
from headrace.changelog.schema import TableName, TableSchema
from headrace.errors import (
    BadName,
    HeadraceError,
    Reopening,
    SourceRefused,
    SourceUnreachable,
    TableRefused,
)
from headrace.storage.disk import free_bytes

# --- findings -------------------------------------------------------------------------------------

_TRIGGERS = "select name, tbl_name from sqlite_schema where type = 'trigger'"


def findings(source: SQLiteSource, tables: Sequence[str], reader: str) -> list[Finding]:
    """Return the captured tables that no pipeline reads, and the size of the capture log."""
    with opened(source.path) as database:
        found = []
        if (mode := pragma(database, "journal_mode")) != "wal":
            found.append(
                Finding(
                    "journal_mode",
                    f"{mode}: writers and readers block each other",
                    "Run PRAGMA journal_mode = wal once; the file keeps the setting.",
                )
            )
        if triggers.capture_id(database) is None:
            return [*found, Finding("capture", "not set up in this file yet")]
        captured = {table for name, table in database.execute(_TRIGGERS) if OURS.owns(name)}
        taken = {folded(table) for table in tables}
        for table in sorted(table for table in captured if folded(table) not in taken):
            found.append(_untaken(database, source.path, table, reader))
        [(count,)] = database.execute(f"select count(*) from {quoted(LOG)}").fetchall()
        if count:
            found.append(Finding(LOG, f"contains {count:,} changes"))
        return found


def _untaken(database: sqlite3.Connection, path: str, table: str, engine: str) -> Finding:
    """Return the finding about a captured table that no pipeline of this engine reads."""
    says = "is captured, but no pipeline reads it: its changes accumulate"
    # The remedy must work: a table stays captured as long as it has a reader.
    readers = _readers(database, table)
    for reader in readers:
        if reader.startswith(triggers.LIBRARY):
            name = reader.removeprefix(triggers.LIBRARY).partition("/")[0]
            says = f"is captured for the reader {name}, but no pipeline reads it"
            remedy = f"If {name} is no longer used, run: {_teardown(path, table, name)}"
            return Finding(table, says, remedy)
    if others := [reader for reader in readers if reader != engine]:
        says = f"is captured for another engine, {others[0]}; no pipeline of this one reads it"
        return Finding(table, says)
    if readers:
        first = "Start the engine once, so that it releases the table; then run: "
        return Finding(table, says, f"{first}{_teardown(path, table)}")
    return Finding(table, says, _teardown(path, table))


def _readers(database: sqlite3.Connection, table: str) -> list[str]:
    """Return the names of a table's readers, engines last."""
    if not triggers.complete(database):
        return []
    found = [
        row.name
        for row in reader_rows(database)
        if any(
            folded(each) == folded(table) and reads is not False
            for each, reads in row.tables.items()
        )
    ]
    return sorted(found, key=lambda name: (not name.startswith(triggers.LIBRARY), name))


def _teardown(path: str, table: str, reader: str | None = None) -> str:
    words = ["headrace", "sqlite", "teardown", "--db", path, "--table", table]
    return shlex.join([*words, *([] if reader is None else ["--reader", reader])])


# --- what capture created in the file, and its removal --------------------------------------------


def objects(source: SQLiteSource, reader: str, claim: str) -> list[SourceObject]:
    """Return the triggers and tables of the capture."""
    with opened(source.path) as database, reading(database):
        return list(_objects(database, reader))


def remove_objects(source: SQLiteSource, reader: str, claim: str) -> list[SourceObject]:
    """Remove our reader, the triggers that no other reader needs, and with the last one the log."""
    with opened(source.path) as database, writing(database):
        removed = [each for each in _objects(database, reader) if not each.kept]
        others = _other_readers(database, reader)
        if others is None:
            return []
        if not others:
            triggers.take_out(database)
            return removed
        database.execute(f"delete from {OURS.readers} where name = ?", (reader,))
        needed = {table for other in others for table in _read_by(other)}
        captured = {plan.table for plan in triggers.plans(database).values()}
        triggers.take_out(database, captured - needed, OURS, needed)
        return removed


def _objects(database: sqlite3.Connection, reader: str) -> Iterator[SourceObject]:
    others = _other_readers(database, reader)
    every = triggers.plans(database) if others else {}
    for name, on in database.execute(_TRIGGERS):
        if (number := OURS.plan_of(name)) is not None:
            table = every[number].table if number in every else on
            needed = others and [each for each in others if table in _read_by(each)]
            yield SourceObject("trigger", name, f"on {on}", _needed_by(database, needed))
        elif name == OURS.seal:
            yield SourceObject("trigger", name, f"on {on}", _needed_by(database, others))
    others_of_ours = ("meta", "tables", "readers", "stash", "rowids")
    for table in (OURS.log_table, *map(OURS.companion, others_of_ours)):
        if triggers.has_table(database, table):
            yield SourceObject("table", table, kept=_needed_by(database, others))


def _other_readers(database: sqlite3.Connection, reader: str) -> list[ReaderRow] | None:
    """Return the other readers; None if the capture's format is unknown, or it is damaged."""
    # The log may be missing: a reset removes it, and keeps the rest.
    kept = (OURS.companion("meta"), OURS.companion("tables"), OURS.companion("readers"))
    if not all(triggers.has_table(database, each) for each in kept):
        return None
    if not triggers.has_known_format(database):
        return None
    return [row for row in reader_rows(database) if row.name != reader]


def _read_by(reader: ReaderRow) -> set[str]:
    return {table for table, reads in reader.tables.items() if reads is not False}


def _needed_by(database: sqlite3.Connection, readers: Sequence[ReaderRow] | None) -> str:
    if readers is None:
        (path,) = database.execute(
            "select file from pragma_database_list where name = 'main'"
        ).fetchone()
        return (
            "Who reads it is not known: the capture is damaged, or of another version. To remove it"
            f" for every reader, run: headrace sqlite teardown --db {shlex.quote(path)}"
        )
    if not readers:
        return ""
    name = readers[0].name
    if name.startswith(triggers.LIBRARY):
        return f"headrace sqlite reads it, as reader {name.split('/')[1]}."
    source, _, data = name.partition("@")
    return (
        f"The engine of {data} reads it. If it no longer exists, run:"
        f" {shlex.join(['headrace', 'teardown', source, '--data', data])}"
    )


# --- forgetting a capture -------------------------------------------------------------------------


def forget(database: sqlite3.Connection, reader: str) -> None:
    """
    Let the reader called `reader` start over when it opens the database next.

    If the capture has no other reader, triggers and log are removed, and the next capture gets a
    new uuid, so that a new history begins (R1). The recorded columns of the tables stay, because
    a column's number must never be used for another column. If there is another reader, only this
    reader's position is removed: only this reader finds a gap, as it does after tables were left
    out for a while.

    All of it is one transaction: after a crash in the middle nothing has happened. Writes of the
    application between this and the next `open` are not captured, and are copied instead.
    """
    with writing(database):
        rows = list(reader_rows(database)) if triggers.complete(database) else []
        if all(row.name == reader for row in rows):
            triggers.drop_log(database)
            return
        before = next((row.tables for row in rows if row.name == reader), {})
        capture = str(triggers.capture_id(database))
        end = end_of(database, capture)
        put_reader(database, ReaderRow(reader, capture, end.seq, dict.fromkeys(before, False)))


# --- samples --------------------------------------------------------------------------------------

MOST_BYTES = 64 << 20
"""The approximate maximum to read, if there are many large rows."""


def sample(source: SQLiteSource, table: str, most: int) -> TableSample:
    """Return the first rows, in SQLite's own order."""
    schema = source.describe([table])[table]
    with opened(source.path) as database:
        # Not mode=ro: the last connection that closes a file removes its WAL, and one that may
        # not write would leave the WAL behind.
        database.execute("pragma query_only = on")
        query = f"select {column_list(schema.names)} from {quoted(table)} limit ?"
        rows, _ = fetch(database, query, (most,), ReadLimits(most, MOST_BYTES, math.inf))
    if not rows:
        return TableSample(schema, pa.RecordBatch.from_pylist([], schema=schema.arrow))
    return TableSample(schema, *batch_of(schema, rows))


# --- how large the log has become -----------------------------------------------------------------

MEASURE_SECONDS = 5.0
"""Between two measurements."""


class CaptureMeter:
    """Measures, every few seconds, how much the log holds for its readers (R28). For one thread."""

    def __init__(
        self,
        database: sqlite3.Connection,
        path: str,
        reader: str,
        capture: str,
        budget: int | None,
        clock: Callable[[], float],
    ) -> None:
        self._database = database
        self._path = path
        self._reader = reader
        self._capture = capture
        self._budget = budget
        self._clock = clock
        self._due = clock()
        self._ends: tuple[int, int] | None = None
        self._row_bytes = 0.0

    def measure(self, read: int, acknowledged: int) -> Room | None:
        """
        Measure, if it is time to; None if it is not.

        `read` and `acknowledged` are the last rows that this reader has read and no longer needs.
        """
        if self._clock() < self._due:
            return None
        self._due = self._clock() + MEASURE_SECONDS
        first, last = ends = triggers.log_ends(self._database)
        if self._ends != ends:
            self._ends, self._row_bytes = ends, row_bytes(self._database)
        # Cursors of another capture refer to other numbers, and hold nothing.
        rows = reader_rows(self._database)
        cursors = {row.name: row.cursor for row in rows if row.capture == self._capture}
        acknowledged = max(acknowledged, cursors.pop(self._reader, 0))
        lowest = min(cursors, key=lambda name: cursors[name], default="")
        used = self._bytes(first - 1, last)
        return Room(
            used=used,
            limit=self._limit(used),
            unacknowledged=self._bytes(acknowledged, last),
            ours=self._bytes(acknowledged, read),
            oldest=f"reader {lowest}" if lowest and cursors[lowest] < acknowledged else "",
        )

    def _limit(self, used: int) -> int | None:
        if self._budget is None:
            return None
        free = free_bytes(self._path)
        return self._budget if free is None else min(self._budget, max(used + free, LEAST_LIMIT))

    def _bytes(self, after: int, upto: int) -> int:
        return int(max(0, upto - after) * self._row_bytes)


# --- the source -----------------------------------------------------------------------------------

NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")

CAPTURE_BUDGET = 1 << 30
"""The default of `capture_budget`: about a day of a busy application."""

PATIENCE_SECONDS = 5.0
"""How long a locked database is waited for before it counts as unreachable."""

_BUSY_SECONDS = 0.1
"""How long one attempt to read waits for a lock: `wake` cannot end this wait."""


def sqlite(
    path: str | Path,
    *,
    name: str | None = None,
    columns: Mapping[str, str] | None = None,
    copy_rows_per_s: float | None = None,
    capture_budget: int = CAPTURE_BUDGET,
) -> SQLiteSource:
    """
    Return the SQLite database at `path` as a source; it is not touched before a start.

    `name` is the source's id, by default made from the file's name. `columns` sets types
    to use instead of the declared ones: `{"at": "text"}` or `{"orders.at": "text"}`.
    `copy_rows_per_s` is the maximum number of rows a second for copies, all tables together.
    `capture_budget` is how many bytes of changes the database may keep for pipelines that have
    not taken them: at 90 % the pipeline that holds them is released. 0: no limit.
    """
    if name is None:
        made = re.sub(r"[^a-z0-9._-]", "_", Path(path).stem.lower()).lstrip("._-")[:64]
        name = made or "sqlite"
    elif NAME.fullmatch(name) is None:
        raise BadName("The name of the source is not valid", name=name)
    for column, kind in (columns or {}).items():
        if kind not in KINDS:
            raise SourceRefused(
                "Unknown column type",
                source=name,
                column=column,
                type=kind,
                remedy=f"Use one of {', '.join(KINDS)}.",
            )
    # The current folder may be another one at the time of a restart.
    where = str(Path(path).expanduser().absolute())
    options: dict[str, object] = {"path": where, "columns": dict(columns or {})}
    if copy_rows_per_s is not None:
        options["copy_rows_per_s"] = checked_rate(copy_rows_per_s)
    if capture_budget != CAPTURE_BUDGET:
        options["capture_budget"] = capture_budget
    return SQLiteSource(SourceSpec("sqlite", name, options))


@dataclass(slots=True)
class _OpenDatabase:
    """The state of a source between `open` and `close`."""

    database: sqlite3.Connection
    log: CaptureLog
    watch: CommitWatch
    pruning: CursorPruner
    verify: SchemaWatch
    meter: CaptureMeter
    inode: int
    """The inode of the file before it was opened."""


class SQLiteSource:
    """Reads one SQLite database; `open` captures the tables of the last `describe`."""

    traits = SourceTraits(
        lineage="sqlite",
        inserts_replace=True,
        lists=True,
        resets=True,
        releases=True,
        reports_notices=True,
        measures_lag=True,
    )

    def __init__(self, spec: SourceSpec, reader: str | None = None) -> None:
        options = spec.options
        self.spec = spec
        self.name = spec.name
        self.path = str(options["path"])
        if (rate := options.get("copy_rows_per_s")) is not None:
            self.traits = replace(self.traits, copy_rows_per_s=float(str(rate)))
        self._budget = int(str(options.get("capture_budget", CAPTURE_BUDGET))) or None
        columns = options.get("columns") or {}
        self._overrides: dict[str, str] = dict(columns) if isinstance(columns, Mapping) else {}
        self._reader = reader or spec.name
        self._tables: dict[TableName, SourceTable] = {}
        self._schemas: dict[int, TableSchema] = {}
        self._now: _OpenDatabase | None = None
        self._busy_since: float | None = None
        self._was_open = False
        self._removed_before: CapturePosition | None = None
        self._awake = False
        self._plans: Mapping[int, triggers.CapturedColumns] = {}
        self._notes: Mapping[TableName, str] = {}
        self._recorded: Mapping[TableName, TableSchema] = {}
        self._notices: list[SourceNotice] = []
        self._reported: dict[TableName, int] = {}
        """The last row of each table before which missing changes were reported."""

    @property
    def origin(self) -> str:
        """The database by its real path, as the log identifies it."""
        return f"sqlite:{Path(self.path).resolve()}"

    def lineage(self) -> str | None:
        """Return the current lineage of the database; None if it was never captured."""
        with opened(self.path) as database:
            capture = triggers.capture_id(database)
        return None if capture is None else f"sqlite/{capture}"

    def claim(self) -> str:
        """Return "": what it creates is recognised by its names."""
        return ""

    def recall(
        self, notes: Mapping[TableName, str], schemas: Mapping[TableName, TableSchema]
    ) -> None:
        """Remember which gaps the log knows of, and which columns."""
        self._notes, self._recorded = dict(notes), dict(schemas)

    def synced(self, upto: str) -> None:
        """Do nothing: notices depend on the database alone."""

    def notices(self) -> Sequence[SourceNotice]:
        """Return the tables of which changes may be missing since the last call."""
        found, self._notices = self._notices, []
        return found

    def describe(self, tables: Sequence[TableName]) -> Mapping[TableName, TableSchema]:
        """Return the schemas, and remember these tables for `open`."""
        with opened(self.path) as database, reading(database):
            found = {name: inspect(database, name) for name in dict.fromkeys(tables)}
            every = triggers.plans(database)
        self._tables = found
        return {
            name: table_schema(table, triggers.fields_for(every, table), self._overrides)
            for name, table in found.items()
        }

    def tables(self) -> Sequence[TableName]:
        """Return the application's tables."""
        with opened(self.path) as database:
            return table_names(database)

    def add(self, table: TableName) -> None:
        """Return None: `open` sets up what is missing in a few milliseconds."""

    def check(self, tables: Sequence[TableName]) -> Sequence[Problem]:
        """Return every problem that keeps these tables from being captured; change nothing."""
        problems: list[Problem] = []
        try:
            with opened(self.path) as database:
                found = []
                for name in dict.fromkeys(tables):
                    try:
                        found.append(inspect(database, name))
                    except TableRefused as problem:
                        problems.append(problem)
                problems += self._unknown_overrides(found, len(problems))
                if triggers.amiss(database, found):
                    probe_writing(database)
        except HeadraceError as problem:
            problems.append(problem)
        return problems

    def _unknown_overrides(self, tables: Sequence[SourceTable], refused: int) -> list[Problem]:
        if refused:
            return []  # the column may be in a table that could not be inspected
        known = {column.name for table in tables for column in table.columns}
        known |= {f"{table.name}.{column.name}" for table in tables for column in table.columns}
        problems: list[Problem] = []
        for column in self._overrides:
            if column not in known:
                problem = SourceRefused(
                    "No captured table has this column",
                    source=self.name,
                    column=column,
                    remedy="Correct the entry in columns, or remove it.",
                )
                for table in tables:
                    if column.startswith(f"{table.name}."):  # then no other table has it, either
                        problem.facts["table"] = table.name
                problems.append(problem)
        return problems

    def open(self, after: SourcePosition | str | None) -> SourcePosition:
        """Set up capture if it is missing, and find the position to continue from."""
        self.close()
        if not self._tables:
            raise SourceRefused("No tables to capture", source=self.name)
        inode = self._inode()
        database = self._connect()
        try:
            with speaking(self.path):
                now = self._begin(database, inode, after)
        except BaseException:
            database.close()
            raise
        self._now = now
        self._busy_since = None
        self._was_open = True
        return now.log.at

    def _begin(
        self, database: sqlite3.Connection, inode: int, after: SourcePosition | str | None
    ) -> _OpenDatabase:
        wanted = CapturePosition.parse(str(after)) if after is not None else None
        capture = triggers.install(database, list(self._tables.values()))
        self._plans = triggers.plans(database)
        self._schemas = self._read_schemas()
        verify = SchemaWatch(database, partial(self._look_for_ddl, database))
        with reading(database):
            verify()  # a table may have changed after `describe`, which is then called again
        reader = CaptureReader(self._reader, tuple(self._tables), self._removed_before)
        at, left_out = resume(database, capture, wanted, reader)
        self._notices = [
            SourceNotice(table, rebaseline_reason="left out", missing=True) for table in left_out
        ]
        with reading(database):
            self._reported = gaps(database, at, self._tables, self._plans)
        self._notices += self._gap_notices(at.capture)
        relax_commits(database)
        set_lock_timeout(database, _BUSY_SECONDS)
        return _OpenDatabase(
            database,
            CaptureLog(database, at),
            CommitWatch(self.path, lambda: pragma(database, "data_version")),
            CursorPruner(database, self._reader, at.capture),
            verify,
            CaptureMeter(
                database, self.path, self._reader, at.capture, self._budget, time.monotonic
            ),
            inode,
        )

    def read(self, most: int, wait: float) -> Changes | None:
        """Return the next group of changes, or a part of it, of the tables described last."""
        now = self._opened()
        until = time.monotonic() + wait
        while True:
            with speaking(self.path):
                changes = self._try_to_read(now, most)
                if changes is not None:
                    return changes
                now.pruning.step()
            if self._inode() != now.inode:
                raise Reopening("The database file was replaced", path=self.path)
            left = until - time.monotonic()
            if left <= 0 or self._awake:
                self._awake = False
                return None
            now.watch.wait(left)

    def wake(self) -> None:
        """End the wait of a running `read`, or of the next one."""
        self._awake = True
        if (now := self._now) is not None:
            now.watch.wake()

    def acknowledge(self, upto: str) -> None:
        """Allow the log to be pruned up to `upto`, at moments when the application is idle."""
        position = CapturePosition.parse(upto)
        if self._now is not None and position.capture == self._now.log.at.capture:
            self._now.pruning.allow(position.seq)

    def baseline(self, table: TableName) -> SQLiteCopy:
        """Begin to copy a table."""
        now = self._opened()
        schema = next(
            schema for number, schema in reversed(self._schemas.items()) if schema.table == table
        )
        return SQLiteCopy(
            now.database,
            self.path,
            self._tables[table],
            schema,
            now.verify,
            self.traits.copy_rows_per_s,
        )

    def lag(self) -> Lag:
        """Return how many logged changes were not read yet, and the age of the oldest one."""
        now = self._opened()
        at = now.log.at.seq
        try:
            with speaking(self.path):
                with reading(now.database):
                    # Otherwise changes may be missing from the log, which the next read notices.
                    sound = now.verify.current and now.log.goes_on()
                    (end,) = now.database.execute(f"select max(seq) from {LOG}").fetchone()
                    row = now.database.execute(
                        f"select {NOW} - ts from {LOG} where seq > ? order by seq limit 1",
                        (at,),
                    ).fetchone()
                room = now.meter.measure(at, now.pruning.allowed)
        except SourceUnreachable:
            return Lag()
        seconds = 0.0 if row is None else int(row[0]) / 1000
        # A change from the future: the clock was set back, and nothing is known of its age.
        behind = None if seconds < 0 else seconds
        age = behind if sound and self._inode() == now.inode else None
        return Lag(max(0, int(end or 0) - at), behind, age=age, room=room)

    def close(self) -> None:
        """Close the database."""
        now, self._now = self._now, None
        if now is not None:
            now.watch.close()
            now.database.close()

    def teardown(self, tables: Sequence[TableName] | None = None) -> None:
        """Remove the triggers of these tables, or everything that capture has created."""
        with opened(self.path) as database:
            triggers.teardown(database, tables)

    def release(self) -> None:
        """Let the database keep no changes for us, until the next `open`."""
        self.close()
        with opened(self.path) as database:
            if triggers.complete(database) and any(
                row.name == self._reader and _read_by(row) for row in reader_rows(database)
            ):
                forget(database, self._reader)

    def reset(self, after: str | None, *, drop_publication: bool) -> None:
        """Remove the capture, or only our position in it if it has other readers."""
        self.close()
        with opened(self.path) as database:
            forget(database, self._reader)

    def _inode(self) -> int:
        """Return the inode of the file that is at the path now; 0 if there is none."""
        try:
            return Path(self.path).stat().st_ino
        except OSError:
            return 0

    def _connect(self) -> sqlite3.Connection:
        try:
            return connect(self.path)
        except SourceRefused as error:
            if self._was_open and not Path(self.path).exists():
                # A restored file may be about to appear here, so a retry can help.
                raise SourceUnreachable(
                    "The database file no longer exists", path=self.path
                ) from error
            raise

    def _opened(self) -> _OpenDatabase:
        if self._now is None:
            raise SourceUnreachable("The database is not open", path=self.path)
        return self._now

    def _gap_notices(self, capture: str) -> Iterator[SourceNotice]:
        """Yield a notice for each table with a gap that the change log does not know of yet."""
        for table, seq in self._reported.items():
            note = f"{capture}/{seq}"
            if self._notes.get(table) != note:
                known = self._recorded.get(table)
                now = {(column.name, column.declared) for column in self._tables[table].columns}
                before = {(each.name, each.declared) for each in known.columns} if known else now
                reason = "triggers" if before == now else "columns"
                yield SourceNotice(table, note, rebaseline_reason=reason, missing=True)

    def _read_schemas(self) -> dict[int, TableSchema]:
        """Return the schema for each plan that matches the current columns of our tables."""
        schemas = {}
        for number, plan in self._plans.items():
            if (table := self._tables.get(plan.table)) is None:
                continue
            if list(plan.fingerprint) == table.fingerprint:
                schemas[number] = table_schema(table, plan.fields, self._overrides)
        return schemas

    def _try_to_read(self, now: _OpenDatabase, most: int) -> Changes | None:
        try:
            if now.log.complete and not now.watch.moved() and not now.verify.due:
                self._busy_since = None
                return None
            changes = self._read_group(now, most)
        except sqlite3.OperationalError as error:
            since = time.monotonic()
            self._busy_since = self._busy_since or since
            if not busy(error) or since - self._busy_since > PATIENCE_SECONDS:
                raise
            now.watch.again()
            return None
        self._busy_since = None
        return changes

    def _read_group(self, now: _OpenDatabase, most: int) -> Changes | None:
        width = max(len(schema.columns) for schema in self._schemas.values())
        with reading(now.database):
            now.verify()
            if not now.log.goes_on():
                raise Reopening("The capture log was emptied or replaced", path=self.path)
            before = now.log.at
            rows = now.log.read(most, width, self._plans)
        if not rows and now.log.at == before:
            return None
        if now.log.missing:
            # No number is ever left out, and only rows that were read are pruned.
            self._removed_before = now.log.last
            raise Reopening("Rows of the capture log were removed", path=self.path)
        tables = self._tables_of(rows, width)
        for number in now.log.unclear:
            table = self._plans[number].table
            self._notices.append(SourceNotice(table, rebaseline_reason="order", missing=True))
        now.log.unclear.clear()
        now.log.advance()
        return Changes(tables, now.log.at, ends=now.log.complete)

    def _tables_of(self, rows: Sequence[Row], width: int) -> list[TableChanges]:
        parts: dict[object, list[Row]] = {}
        for row in rows:
            parts.setdefault(row[2], []).append(row)
        made = []
        for number, part in parts.items():
            if (schema := self._schemas.get(int(str(number)))) is None:
                continue
            if markers := [int(str(row[0])) for row in part if row[3] == REPLANNED]:
                if markers[-1] > self._reported.get(schema.table, 0):
                    raise Reopening("Capture was set up again", path=self.path)
                part = [row for row in part if row[3] != REPLANNED]
                if not part:
                    continue
            made.append(TableChanges(schema, segment_of(schema, part, width)))
        return made

    def _look_for_ddl(self, database: sqlite3.Connection) -> None:
        """Raise if columns or triggers of the captured tables were changed (R39)."""
        if not triggers.complete(database):
            raise Reopening("The capture tables no longer exist", path=self.path)
        try:
            changed = triggers.changed(database, self._tables.values())
        except TableRefused as error:
            # What it is when it is described again decides: a migration may be under way.
            raise Reopening(
                "A table can no longer be captured", table=error.facts["table"]
            ) from error
        if changed:
            # Described again, it is set up again.
            raise Reopening("The columns or capture triggers of a table changed", table=changed[0])
        self._plans = triggers.plans(database)
        for name in self._tables:
            plan = triggers.latest(self._plans, name)
            if plan is None or plan.id not in self._schemas:
                # Triggers were dropped and created again: their rows have a new plan number.
                raise Reopening("Capture was set up again", path=self.path)
