"""
A SQLite database as a source.

Nothing runs inside the database but three triggers a table (`triggers`); everything else
is this reader, on its own connection. It reads `cursor … max(seq)` in one read
transaction, which always ends between two transactions of the application, because
SQLite shows no reader half of one: that is a read group, and whole groups make a flush
(R41). Where exactly one transaction ends within a group cannot be determined.

`findings` reports what a SQLite file has of us, and what waits in it. `sample` returns a few rows
of a table; the file is only read.
"""

from __future__ import annotations

import json
import math
import re
import shlex
import sqlite3
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from headrace.capture.baselines import checked_rate
from headrace.capture.registry import Finding, TableSample
from headrace.capture.source import Lag, Problem, SourcePosition, SourceSpec, SourceTraits
from headrace.capture.sqlite import triggers
from headrace.capture.sqlite.arrow_rows import batch_of, segment_of
from headrace.capture.sqlite.copy import SQLiteCopy
from headrace.capture.sqlite.database import (
    OURS,
    CapturePosition,
    ReadLimits,
    Row,
    busy,
    connect,
    fetch,
    folded,
    probe_writing,
    quoted,
    reading,
    speaking,
    witness,
    writing,
)
from headrace.capture.sqlite.resume import CaptureReader, compare, resume
from headrace.capture.sqlite.tables import (
    KINDS,
    SourceTable,
    column_list,
    inspect,
    table_names,
    table_schema,
)
from headrace.capture.sqlite.triggers import LOG, READERS, REPLANNED
from headrace.capture.sqlite.watch import CommitWatch
from headrace.changelog.change import Changes, TableChanges
from headrace.changelog.schema import TableName, TableSchema
from headrace.errors import BadName, HeadraceError, SourceRefused, SourceUnreachable, TableRefused

# --- findings -------------------------------------------------------------------------------------

_TRIGGERS = "select name, tbl_name from sqlite_schema where type = 'trigger'"


def findings(source: SQLiteSource, tables: Sequence[str], reader: str) -> list[Finding]:
    """Return which tables are captured that nobody asked for, and how much waits to be read."""
    database = connect(source.path)
    try:
        with speaking(source.path):
            found = []
            [(mode,)] = database.execute("pragma journal_mode").fetchall()
            if mode != "wal":
                found.append(
                    Finding(
                        "journal_mode",
                        f"{mode}: whoever writes waits while we read, and we for him",
                        "Run PRAGMA journal_mode = wal; it stays with the file.",
                    )
                )
            if triggers.capture_id(database) is None:
                return [*found, Finding("capture", "nothing of ours is in this file yet")]
            captured = {table for name, table in database.execute(_TRIGGERS) if OURS.owns(name)}
            taken = {folded(table) for table in tables}
            for table in sorted(table for table in captured if folded(table) not in taken):
                found.append(_untaken(database, source.path, table, reader))
            [(count,)] = database.execute(f"select count(*) from {quoted(triggers.LOG)}").fetchall()
            if count:
                found.append(Finding(triggers.LOG, f"{count:,} changes are kept in it"))
            return found
    finally:
        database.close()


def _untaken(database: sqlite3.Connection, path: str, table: str, engine: str) -> Finding:
    """Return what there is to do about a table that is captured, and not by this engine."""
    says = "is captured, and no pipeline takes it: its changes pile up"
    # By what works: a table stays captured as long as anybody reads it.
    readers = _readers(database, table)
    for reader in readers:
        if reader.startswith(triggers.LIBRARY):
            name = reader.removeprefix(triggers.LIBRARY).partition("/")[0]
            says = f"is captured for the reader {name}, and no pipeline takes it"
            return Finding(table, says, f"If {name} is gone: {_teardown(path, table, name)}")
    if others := [reader for reader in readers if reader != engine]:
        says = f"is captured for another engine, {others[0]}, and no pipeline takes it here"
        return Finding(table, says)
    if readers:
        first = "Start the engine once, so that it lets go of the table; then: "
        return Finding(table, says, f"{first}{_teardown(path, table)}")
    return Finding(table, says, _teardown(path, table))


def _readers(database: sqlite3.Connection, table: str) -> list[str]:
    """Return who reads a table, engines after others."""
    if not triggers.complete(database):
        return []
    rows = database.execute(f"select name, tables from {triggers.READERS} order by name").fetchall()
    found = [
        name
        for name, text in rows
        if any(
            folded(each) == folded(table) and reads is not False
            for each, reads in json.loads(text).items()
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
        if triggers.complete(database) and _others(database, reader):
            _lapse(database, reader)
        else:
            triggers.drop_log(database)


def _others(database: sqlite3.Connection, reader: str) -> bool:
    found = database.execute(f"select 1 from {READERS} where name <> ?", (reader,)).fetchone()
    return found is not None


def _lapse(database: sqlite3.Connection, reader: str) -> None:
    """Note that the reader left out all his tables."""
    (before,) = database.execute(
        f"select tables from {READERS} where name = ?", (reader,)
    ).fetchone() or ("{}",)
    left_out = json.dumps(dict.fromkeys(json.loads(before), False))
    (end,) = database.execute(f"select coalesce(max(seq), 0) from {LOG}").fetchone()
    database.execute(
        f"insert or replace into {READERS} values (?, ?, ?, ?)",
        (reader, triggers.capture_id(database), end, left_out),
    )


# --- samples --------------------------------------------------------------------------------------

MOST_BYTES = 64 << 20
"""About so much is read at most, where rows are many and large."""


def sample(source: SQLiteSource, table: str, most: int) -> TableSample:
    """Return the first rows, in the order that SQLite has them."""
    schema = source.describe([table])[table]
    database = connect(source.path)
    try:
        with speaking(source.path):
            # Not mode=ro: the last to close a file with a WAL takes the WAL away, and one who
            # may not write would leave it lying there.
            database.execute("pragma query_only = on")
            query = f"select {column_list(schema.names)} from {quoted(table)} limit ?"
            limits = ReadLimits(most, MOST_BYTES, math.inf)
            rows, _ = fetch(database, query, (most,), limits)
    finally:
        database.close()
    if not rows:
        return TableSample(schema, pa.RecordBatch.from_pylist([], schema=schema.arrow))
    return TableSample(schema, *batch_of(schema, rows))


# --- the source -----------------------------------------------------------------------------------

NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")

READ_BYTES = 16 << 20
READ_SECONDS = 0.1
READ_SECONDS_ROLLBACK = 0.004
"""One read transaction at most, with a WAL and without; more comes in parts (R42, R44)."""

PATIENCE_SECONDS = 5.0
"""How long a locked database is waited for before it counts as unreachable."""

_BUSY_MS = 100
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
        raise BadName("Not a usable name for a source", name=name)
    for column, kind in (columns or {}).items():
        if kind not in KINDS:
            raise SourceRefused(
                "Unknown type for a column",
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
        self._database: sqlite3.Connection | None = None
        self._watch: CommitWatch | None = None
        self._at = CapturePosition("0" * 32, 0)
        self._group_end = 0
        self._inode = 0
        self._slice = READ_SECONDS_ROLLBACK
        self._schema_version = -1
        self._busy_since: float | None = None
        self._was_open = False
        self._pruning: triggers.CursorPruner | None = None
        self._awake = False

    @property
    def origin(self) -> str:
        """The database by its real path: what a log remembers it by."""
        return f"sqlite:{Path(self.path).resolve()}"

    def lineage(self) -> str | None:
        """Return the lineage the database has now; None where it was never captured."""
        database = connect(self.path)
        try:
            with speaking(self.path):
                capture = triggers.capture_id(database)
        finally:
            database.close()
        return None if capture is None else f"sqlite/{capture}"

    def describe(self, tables: Sequence[TableName]) -> Mapping[TableName, TableSchema]:
        """Return the schemas, and remember these tables for `open`."""
        database = connect(self.path)
        try:
            with speaking(self.path), reading(database):
                found = {name: inspect(database, name) for name in dict.fromkeys(tables)}
                every = triggers.plans(database)
        finally:
            database.close()
        self._tables = found
        return {
            name: table_schema(table, triggers.fields_for(every, table), self._overrides)
            for name, table in found.items()
        }

    def tables(self) -> Sequence[TableName]:
        """Return the application's tables."""
        database = connect(self.path)
        try:
            with speaking(self.path):
                return table_names(database)
        finally:
            database.close()

    def add(self, table: TableName) -> None:
        """Leave it to `open`, which sets up what is missing in a few milliseconds."""

    def check(self, tables: Sequence[TableName]) -> Sequence[Problem]:
        """Return what keeps these tables from being captured exactly; changes nothing."""
        problems: list[Problem] = []
        try:
            database = connect(self.path)
        except HeadraceError as problem:
            return [problem]
        try:
            with speaking(self.path):
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
        finally:
            database.close()
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
                remedy="Correct the column in columns=, or leave it out.",
            )
            for column in self._overrides
            if column not in known
        ]

    def open(self, after: SourcePosition | str | None) -> SourcePosition:
        """Set up capture where it is missing, and find the place to read on from."""
        self.close()
        if not self._tables:
            raise SourceRefused("No table to capture", source=self.name)
        database = self._connect()
        self._database = database
        wanted = CapturePosition.parse(str(after)) if after is not None else None
        with speaking(self.path):
            capture = triggers.install(database, list(self._tables.values()))
            self._schemas = self._read_schemas(database)
            reader = CaptureReader(self._reader, tuple(self._tables), tuple(self._schemas))
            self._at = resume(database, capture, wanted, reader)
            capture = self._at.capture
            (mode,) = database.execute("pragma journal_mode").fetchone()
            self._slice = READ_SECONDS if mode == "wal" else READ_SECONDS_ROLLBACK
            if mode == "wal":
                # Losing the newest prune in a power cut costs nothing; an fsync under the
                # write lock would cost the application.
                database.execute("pragma synchronous = normal")
            database.execute(f"pragma busy_timeout = {_BUSY_MS}")
            self._schema_version = self._version(database, "schema_version")
        self._group_end = self._at.seq
        self._busy_since = None
        self._watch = CommitWatch(self.path, lambda: self._version(database, "data_version"))
        self._inode = 0
        self._pruning = triggers.CursorPruner(database, self._reader, capture)
        self._was_open = True
        return self._at

    def read(self, most: int, wait: float) -> Changes | None:
        """Return the next group, or a part of it, of the tables named last."""
        database, watch = self._opened()
        until = time.monotonic() + wait
        while True:
            with speaking(self.path):
                changes = self._try_to_read(database, watch, most)
                if changes is not None:
                    return changes
                if self._pruning is not None:
                    self._pruning.step()
            self._inode = self._inode or watch.inode
            if watch.inode != self._inode:
                raise SourceUnreachable("Database file was replaced", path=self.path)
            left = until - time.monotonic()
            if left <= 0 or self._awake:
                self._awake = False
                return None
            watch.wait(left)

    def wake(self) -> None:
        """End the wait of a running `read`, or of the next one."""
        self._awake = True
        if (watch := self._watch) is not None:
            watch.wake()

    def acknowledge(self, upto: str) -> None:
        """Let the log be pruned up to there, when it suits the application."""
        place = CapturePosition.parse(upto)
        if self._pruning is not None and place.capture == self._at.capture:
            self._pruning.allow(place.seq)

    def baseline(self, table: TableName) -> SQLiteCopy:
        """Begin to copy a table."""
        database, _ = self._opened()
        found = self._tables[table]
        schema = next(
            schema for number, schema in reversed(self._schemas.items()) if schema.table == table
        )
        return SQLiteCopy(
            database,
            self.path,
            found,
            schema,
            lambda: self._look_for_ddl(database),
            self.traits.copy_rows_per_s,
        )

    def lag(self) -> Lag:
        """Return how many logged changes wait to be read, and since when the oldest does."""
        database, _ = self._opened()
        try:
            with speaking(self.path):
                (end,) = database.execute(f"select max(seq) from {LOG}").fetchone()
                row = database.execute(
                    f"select {triggers.NOW} - ts from {LOG} where seq > ? order by seq limit 1",
                    (self._at.seq,),
                ).fetchone()
        except SourceUnreachable:
            return Lag()
        seconds = 0.0 if row is None else max(0, int(row[0])) / 1000
        return Lag(max(0, int(end or 0) - self._at.seq), seconds)

    def close(self) -> None:
        """Let go of the database."""
        if self._watch is not None:
            self._watch.close()
            self._watch = None
        if self._database is not None:
            self._database.close()
            self._database = None
        self._pruning = None

    def teardown(self, tables: Sequence[TableName] | None = None) -> None:
        """Take the triggers of these tables out of the database, or everything of ours."""
        database = connect(self.path)
        try:
            with speaking(self.path):
                triggers.teardown(database, tables)
        finally:
            database.close()

    def reset(self, after: str | None, *, drop_publication: bool) -> None:
        """Remove what is captured, or our place in it where others read it too."""
        self.close()
        database = connect(self.path)
        try:
            with speaking(self.path):
                forget(database, self._reader)
        finally:
            database.close()

    def _connect(self) -> sqlite3.Connection:
        try:
            return connect(self.path)
        except SourceRefused as error:
            if self._was_open and not Path(self.path).exists():
                # Somebody is about to put a restored file here: waiting helps after all.
                raise SourceUnreachable("Database is gone", path=self.path) from error
            raise

    def _opened(self) -> tuple[sqlite3.Connection, CommitWatch]:
        if self._database is None or self._watch is None:
            raise SourceUnreachable("Database is not open", path=self.path)
        return self._database, self._watch

    def _read_schemas(self, database: sqlite3.Connection) -> dict[int, TableSchema]:
        """Return the schema of each plan of our tables; of older ones as the plan has it."""
        schemas = {}
        for number, plan in triggers.plans(database).items():
            if (table := self._tables.get(plan.table)) is None:
                continue
            if list(plan.fingerprint) == table.fingerprint:
                schemas[number] = table_schema(table, plan.fields, self._overrides)
        return schemas

    def _try_to_read(
        self, database: sqlite3.Connection, watch: CommitWatch, most: int
    ) -> Changes | None:
        try:
            if self._group_end <= self._at.seq and not watch.moved():
                self._busy_since = None
                return None
            changes = self._read_group(database, most)
        except sqlite3.OperationalError as error:
            now = time.monotonic()
            self._busy_since = self._busy_since or now
            if not busy(error) or now - self._busy_since > PATIENCE_SECONDS:
                raise
            watch.again()
            return None
        self._busy_since = None
        return changes

    def _read_group(self, database: sqlite3.Connection, most: int) -> Changes | None:
        width = max(len(schema.columns) for schema in self._schemas.values())
        images = ", ".join(f"{side}{number}" for side in "ba" for number in range(width))
        limits = ReadLimits(most, READ_BYTES, time.monotonic() + self._slice)
        with reading(database):
            self._look_for_ddl(database)
            if compare(database, self._at) != "same":
                raise SourceUnreachable("Capture log was emptied or replaced", path=self.path)
            if self._group_end <= self._at.seq:
                (self._group_end,) = database.execute(f"select max(seq) from {LOG}").fetchone()
            if self._group_end <= self._at.seq:
                return None
            rows, _ = fetch(
                database,
                f"select seq, ts, tbl, op, {images} from {LOG} "
                f"where seq > ? and seq <= ? order by seq limit {most}",
                (self._at.seq, self._group_end),
                limits,
            )
        last = rows[-1]
        upto = CapturePosition(self._at.capture, int(str(last[0])), witness(*last[1:4]))
        changes = Changes(self._tables_of(rows, width), upto, ends=upto.seq >= self._group_end)
        self._at = upto
        return changes

    def _tables_of(self, rows: Sequence[Row], width: int) -> list[TableChanges]:
        parts: dict[object, list[Row]] = {}
        for row in rows:
            parts.setdefault(row[2], []).append(row)
        made = []
        for number, part in parts.items():
            if (schema := self._schemas.get(int(str(number)))) is None:
                continue
            if any(row[3] == REPLANNED for row in part):
                raise SourceUnreachable("Capture was set up anew", path=self.path)
            made.append(TableChanges(schema, segment_of(schema, part, width)))
        return made

    def _look_for_ddl(self, database: sqlite3.Connection) -> None:
        """Make sure that nothing changed what is captured, without anybody noticing (R39)."""
        version = self._version(database, "schema_version")
        if version == self._schema_version:
            return
        if not triggers.complete(database):
            raise SourceUnreachable("Capture tables are gone", path=self.path)
        every = triggers.plans(database)
        for name, known in self._tables.items():
            table = inspect(database, name)
            if table.fingerprint != known.fingerprint or triggers.amiss(database, [table]):
                raise TableRefused(
                    "Columns or capture triggers changed while the table was captured",
                    table=name,
                    remedy="Start again: the table is then copied anew.",
                )
            plan = triggers.latest(every, name)
            if plan is None or plan.id not in self._schemas:
                # Triggers were away and are back: their rows and their mark have a new number.
                raise SourceUnreachable("Capture was set up anew", path=self.path)
        self._schema_version = version

    @staticmethod
    def _version(database: sqlite3.Connection, pragma: str) -> int:
        return int(database.execute(f"pragma {pragma}").fetchone()[0])
