"""
A SQLite database as a source.

Nothing runs inside the database but three triggers a table (`triggers`); everything else
is this reader, on its own connection. What it reads of the log in one go (`capture_log`) ends
between two transactions of the application: that is a read group, and whole groups make a flush
(R41). Where exactly one transaction ends within a group cannot be determined.

`findings` reports what a SQLite file has of us, and what waits in it. `sample` returns a few rows
of a table; the file is only read.
"""

from __future__ import annotations

import math
import re
import shlex
import sqlite3
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pyarrow as pa

from headrace.capture.baselines import checked_rate
from headrace.capture.registry import Finding, TableSample
from headrace.capture.source import Lag, Problem, SourcePosition, SourceSpec, SourceTraits
from headrace.capture.sqlite import triggers
from headrace.capture.sqlite.arrow_rows import SQLiteCopy, batch_of, segment_of
from headrace.capture.sqlite.capture_log import (
    CaptureLog,
    CaptureReader,
    ReaderRow,
    end_of,
    put_reader,
    reader_rows,
    resume,
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
from headrace.capture.sqlite.triggers import LOG, REPLANNED
from headrace.capture.sqlite.watch import CommitWatch
from headrace.changelog.change import Changes, TableChanges
from headrace.changelog.schema import TableName, TableSchema
from headrace.errors import BadName, HeadraceError, SourceRefused, SourceUnreachable, TableRefused

# --- findings -------------------------------------------------------------------------------------

_TRIGGERS = "select name, tbl_name from sqlite_schema where type = 'trigger'"


def findings(source: SQLiteSource, tables: Sequence[str], reader: str) -> list[Finding]:
    """Return which tables are captured that nobody asked for, and how much waits to be read."""
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
    """Return what there is to do about a table that is captured, and not by this engine."""
    says = "is captured, but no pipeline reads it: its changes accumulate"
    # By what works: a table stays captured as long as anybody reads it.
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
    """Return who reads a table, engines after others."""
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


# --- forgetting a capture -------------------------------------------------------------------------


def forget(database: sqlite3.Connection, reader: str) -> None:
    """
    Let the reader called `reader` begin again when it opens the database next.

    If no other reader has the capture, triggers and log are removed, and the next capture has a
    name of its own, so that history begins again (R1). What was recorded of the tables' columns
    stays, because a column's number must never come to mean another one. If another reader has
    it, only this reader's place is removed; this reader alone finds a gap, as after tables that
    were left out for a while.

    It is one transaction: after a death in the middle nothing has happened. Writes of the
    application between this and the next opening are not captured, and are copied instead.
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
"""About so much is read at most, where rows are many and large."""


def sample(source: SQLiteSource, table: str, most: int) -> TableSample:
    """Return the first rows, in the order that SQLite has them."""
    schema = source.describe([table])[table]
    with opened(source.path) as database:
        # Not mode=ro: the last to close a file with a WAL takes the WAL away, and one who
        # may not write would leave it lying there.
        database.execute("pragma query_only = on")
        query = f"select {column_list(schema.names)} from {quoted(table)} limit ?"
        rows, _ = fetch(database, query, (most,), ReadLimits(most, MOST_BYTES, math.inf))
    if not rows:
        return TableSample(schema, pa.RecordBatch.from_pylist([], schema=schema.arrow))
    return TableSample(schema, *batch_of(schema, rows))


# --- the source -----------------------------------------------------------------------------------

NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")

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
) -> SQLiteSource:
    """
    Return the SQLite database at `path` as a source; it is not touched before a start.

    `name` is the source's id, by default made from the file's name. `columns` gives
    columns another type than their declared one: `{"at": "text"}` or `{"orders.at": "text"}`.
    With `copy_rows_per_s` copies of tables read no more rows a second, all together.
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
    # The folder the caller stands in may be another one by the time of a restart.
    where = str(Path(path).expanduser().absolute())
    options: dict[str, object] = {"path": where, "columns": dict(columns or {})}
    if copy_rows_per_s is not None:
        options["copy_rows_per_s"] = checked_rate(copy_rows_per_s)
    return SQLiteSource(SourceSpec("sqlite", name, options))


@dataclass(slots=True)
class _OpenDatabase:
    """What a source has between `open` and `close`."""

    database: sqlite3.Connection
    log: CaptureLog
    watch: CommitWatch
    pruning: triggers.CursorPruner
    verify: SchemaWatch
    inode: int = 0
    """The file as the first look at it found it."""


class SQLiteSource:
    """Reads one SQLite database; `describe` names the tables that `open` will capture."""

    traits = SourceTraits(lineage="sqlite", inserts_replace=True, lists=True, resets=True)

    def __init__(self, spec: SourceSpec, reader: str | None = None) -> None:
        options = spec.options
        self.spec = spec
        self.name = spec.name
        self.path = str(options["path"])
        if (rate := options.get("copy_rows_per_s")) is not None:
            self.traits = replace(self.traits, copy_rows_per_s=float(str(rate)))
        columns = options.get("columns") or {}
        self._overrides: dict[str, str] = dict(columns) if isinstance(columns, Mapping) else {}
        self._reader = reader or spec.name
        self._tables: dict[TableName, SourceTable] = {}
        self._schemas: dict[int, TableSchema] = {}
        self._now: _OpenDatabase | None = None
        self._busy_since: float | None = None
        self._was_open = False
        self._awake = False

    @property
    def origin(self) -> str:
        """The database by its real path: what a log remembers it by."""
        return f"sqlite:{Path(self.path).resolve()}"

    def lineage(self) -> str | None:
        """Return the lineage the database has now; None where it was never captured."""
        with opened(self.path) as database:
            capture = triggers.capture_id(database)
        return None if capture is None else f"sqlite/{capture}"

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
        """Leave it to `open`, which sets up what is missing in a few milliseconds."""

    def check(self, tables: Sequence[TableName]) -> Sequence[Problem]:
        """Return what keeps these tables from being captured exactly; changes nothing."""
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
            return []  # the column may be in a table that could not be looked at
        known = {column.name for table in tables for column in table.columns}
        known |= {f"{table.name}.{column.name}" for table in tables for column in table.columns}
        return [
            SourceRefused(
                "No captured table has this column",
                source=self.name,
                column=column,
                remedy="Correct the entry in columns, or remove it.",
            )
            for column in self._overrides
            if column not in known
        ]

    def open(self, after: SourcePosition | str | None) -> SourcePosition:
        """Set up capture where it is missing, and find the place to read on from."""
        self.close()
        if not self._tables:
            raise SourceRefused("No tables to capture", source=self.name)
        database = self._connect()
        try:
            with speaking(self.path):
                now = self._begin(database, after)
        except BaseException:
            database.close()
            raise
        self._now = now
        self._busy_since = None
        self._was_open = True
        return now.log.at

    def _begin(
        self, database: sqlite3.Connection, after: SourcePosition | str | None
    ) -> _OpenDatabase:
        wanted = CapturePosition.parse(str(after)) if after is not None else None
        capture = triggers.install(database, list(self._tables.values()))
        self._schemas = self._read_schemas(database)
        verify = SchemaWatch(database, partial(self._look_for_ddl, database))
        try:
            with reading(database):
                verify()
        except TableRefused as error:
            # Since `describe`: it has to be asked again.
            raise SourceUnreachable(
                "A table was altered while it was read", path=self.path
            ) from error
        reader = CaptureReader(self._reader, tuple(self._tables), tuple(self._schemas))
        at = resume(database, capture, wanted, reader)
        relax_commits(database)
        set_lock_timeout(database, _BUSY_SECONDS)
        return _OpenDatabase(
            database,
            CaptureLog(database, at),
            CommitWatch(self.path, lambda: pragma(database, "data_version")),
            triggers.CursorPruner(database, self._reader, at.capture),
            verify,
        )

    def read(self, most: int, wait: float) -> Changes | None:
        """Return the next group, or a part of it, of the tables named last."""
        now = self._opened()
        until = time.monotonic() + wait
        while True:
            with speaking(self.path):
                changes = self._try_to_read(now, most)
                if changes is not None:
                    return changes
                now.pruning.step()
            now.inode = now.inode or now.watch.inode
            if now.watch.inode != now.inode:
                raise SourceUnreachable("The database file was replaced", path=self.path)
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
        """Let the log be pruned up to there, when it suits the application."""
        place = CapturePosition.parse(upto)
        if self._now is not None and place.capture == self._now.log.at.capture:
            self._now.pruning.allow(place.seq)

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
        """Return how many logged changes wait to be read, and since when the oldest does."""
        now = self._opened()
        at = now.log.at.seq
        try:
            with speaking(self.path):
                (end,) = now.database.execute(f"select max(seq) from {LOG}").fetchone()
                row = now.database.execute(
                    f"select {triggers.NOW} - ts from {LOG} where seq > ? order by seq limit 1",
                    (at,),
                ).fetchone()
        except SourceUnreachable:
            return Lag()
        seconds = 0.0 if row is None else max(0, int(row[0])) / 1000
        return Lag(max(0, int(end or 0) - at), seconds)

    def close(self) -> None:
        """Let go of the database."""
        now, self._now = self._now, None
        if now is not None:
            now.watch.close()
            now.database.close()

    def teardown(self, tables: Sequence[TableName] | None = None) -> None:
        """Take the triggers of these tables out of the database, or everything of ours."""
        with opened(self.path) as database:
            triggers.teardown(database, tables)

    def reset(self, after: str | None, *, drop_publication: bool) -> None:
        """Remove what is captured, or our place in it where others read it too."""
        self.close()
        with opened(self.path) as database:
            forget(database, self._reader)

    def _connect(self) -> sqlite3.Connection:
        try:
            return connect(self.path)
        except SourceRefused as error:
            if self._was_open and not Path(self.path).exists():
                # Somebody is about to put a restored file here: waiting helps after all.
                raise SourceUnreachable(
                    "The database file no longer exists", path=self.path
                ) from error
            raise

    def _opened(self) -> _OpenDatabase:
        if self._now is None:
            raise SourceUnreachable("The database is not open", path=self.path)
        return self._now

    def _read_schemas(self, database: sqlite3.Connection) -> dict[int, TableSchema]:
        """Return the schema of each plan of our tables; of older ones as the plan has it."""
        schemas = {}
        for number, plan in triggers.plans(database).items():
            if (table := self._tables.get(plan.table)) is None:
                continue
            if list(plan.fingerprint) == table.fingerprint:
                schemas[number] = table_schema(table, plan.fields, self._overrides)
        return schemas

    def _try_to_read(self, now: _OpenDatabase, most: int) -> Changes | None:
        try:
            if now.log.complete and not now.watch.moved():
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
                raise SourceUnreachable("The capture log was emptied or replaced", path=self.path)
            rows = now.log.read(most, width)
        if not rows:
            return None
        tables = self._tables_of(rows, width)
        now.log.advance(rows[-1])
        return Changes(tables, now.log.at, ends=now.log.complete)

    def _tables_of(self, rows: Sequence[Row], width: int) -> list[TableChanges]:
        parts: dict[object, list[Row]] = {}
        for row in rows:
            parts.setdefault(row[2], []).append(row)
        made = []
        for number, part in parts.items():
            if (schema := self._schemas.get(int(str(number)))) is None:
                continue
            if any(row[3] == REPLANNED for row in part):
                raise SourceUnreachable("Capture was set up again", path=self.path)
            made.append(TableChanges(schema, segment_of(schema, part, width)))
        return made

    def _look_for_ddl(self, database: sqlite3.Connection) -> None:
        """Make sure that nothing changed what is captured, without anybody noticing (R39)."""
        if not triggers.complete(database):
            raise SourceUnreachable("The capture tables no longer exist", path=self.path)
        if changed := triggers.changed(database, self._tables.values()):
            raise TableRefused(
                "The columns or capture triggers changed while the table was captured",
                table=changed[0],
                remedy="Start again; the table is then copied again.",
            )
        every = triggers.plans(database)
        for name in self._tables:
            plan = triggers.latest(every, name)
            if plan is None or plan.id not in self._schemas:
                # Triggers were away and are back: their rows and their mark have a new number.
                raise SourceUnreachable("Capture was set up again", path=self.path)
