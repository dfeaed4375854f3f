"""
A PostgreSQL database as a source.

Nothing is installed in it but a publication and a slot. The server sends every change of
the published tables once its transaction has committed, or before, where a transaction is
large; here they are received, put together to whole commits and decoded, column by column.

Where reading begins is never left to the server, which would silently skip what it does
not have (R2). A copy of a table is taken under a snapshot whose place in the stream is
known exactly: that of the slot, or one that was checked against what was read (H1 to H3).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import psycopg
import pyarrow as pa

from headrace.capture.postgres.connection import connect, speaking
from headrace.capture.postgres.copy.plan import (
    LateCopy,
    PartReader,
    PlannedCopy,
    altered,
    plan_copy,
)
from headrace.capture.postgres.copy.ranges import expected_rows
from headrace.capture.postgres.copy.reader import PostgresCopy
from headrace.capture.postgres.copy.snapshot import (
    UNSURE_SECONDS,
    HeldSnapshot,
    Snapshots,
    record_end,
)
from headrace.capture.postgres.decode.relations import Schemas
from headrace.capture.postgres.options import PostgresOptions, address, default_slot, options_of
from headrace.capture.postgres.position import LsnPosition
from headrace.capture.postgres.server import doctor, preflight, slot
from headrace.capture.postgres.server.catalog import CatalogTable, look_up
from headrace.capture.postgres.server.ddl_watch import (
    WATCH_SECONDS,
    DdlWatch,
    IdentityCheck,
    altered_table,
)
from headrace.capture.postgres.server.facts import described
from headrace.capture.postgres.server.partitions import Trees
from headrace.capture.postgres.server.start_position import (
    SourcePublication,
    Witness,
    open_slot,
    refuse_unknown,
    remove,
    reset_slot,
)
from headrace.capture.postgres.server.wal_usage import Meter
from headrace.capture.postgres.stream.spill import Spill, scratch_folder
from headrace.capture.postgres.stream.stream import ReceivedMessages, ReplicationStream
from headrace.capture.postgres.stream.transactions import Transactions
from headrace.capture.postgres.toast.unchanged_values import Toast
from headrace.capture.source import (
    Lag,
    News,
    NotYet,
    Problem,
    SourcePosition,
    SourceSpec,
    SourceTraits,
    reader_of,
)
from headrace.changelog.change import Changes
from headrace.changelog.schema import TableName, TableSchema
from headrace.errors import (
    HeadraceError,
    PublicationRefused,
    SchemaChanged,
    SourceRefused,
    SourceUnreachable,
)


class PostgresSource:
    """Reads one PostgreSQL database; `describe` names the tables that `open` will capture."""

    def __init__(self, spec: SourceSpec, reader: str | None = None) -> None:
        self.spec = spec
        self.name = spec.name
        self._reader = reader or spec.name
        self.options: PostgresOptions = options_of(spec.name, spec.options, self._reader)
        self.traits = SourceTraits(
            lineage="pg",
            resumes=not self._ephemeral,
            shares=True,
            tells=True,
            maintains=True,
            counts_bytes=True,
            resets=True,
            waits=True,
            copy_rows_per_s=self.options.copy_rows_per_s,
            lists=True,
            keeps_snapshot=True,
        )
        self._tables: dict[TableName, CatalogTable] = {}
        self._schemas: dict[TableName, TableSchema] = {}
        self._query: psycopg.Connection[Any] | None = None
        self._stream: ReplicationStream | None = None
        self._transactions: Transactions | None = None
        self._layouts = Schemas(())
        self._spill: Spill | None = None
        self._commits: Iterator[Changes] = iter(())
        """Those received and not given yet."""

        self._at = LsnPosition("0", 0, 0, 0, 0)
        self._given = 0
        self._snapshots = Snapshots(self.options)
        self.kept_first = self._snapshots.kept_first
        self._parts = PartReader(self.options)
        self._publishing = SourcePublication(self.options)
        self._toast = Toast(self.options, self._reader)
        self._completes = False
        """Whether changes may lack values that the store has."""

        self._trees = Trees(self.options)
        self._standing = IdentityCheck(self.options)
        self._watch: DdlWatch | None = None
        self._news_from = 0.0
        """How far the stream must have come before there is anything to tell."""

        self._opened_at = 0.0
        self._resumed = False
        self._began = False
        self._recorded: dict[TableName, TableSchema] = {}
        self._altered_upto = 0
        """Up to here the stream may speak of tables as they were before they were described."""

        self._claimed = False
        """Whether the log says that the slot is ours."""

        self._anew = False
        """Whether what the slot has cannot be read any more."""

        self._meter = Meter(self.options.slot, self.options.wal_budget, time.monotonic)
        self._even_at = 0.0
        self._awake = False
        self._witness = Witness()
        self.on_wait: Callable[[str], object] = lambda reason: None

    @property
    def origin(self) -> str:
        """The database by its address: what a log remembers it by."""
        parts = address(self.options.connection)
        return f"postgres:{parts['host']}:{parts['port']}/{parts['dbname']}"

    def lineage(self) -> str | None:
        """Return the lineage of the server and database that answer now."""
        with speaking(self.options), connect(self.options, replication=True) as connection:
            server = slot.identify(connection)
        return LsnPosition(server.system, server.database, 0, 0, 0).lineage

    def describe(self, tables: Sequence[TableName]) -> Mapping[TableName, TableSchema]:
        """Return the schemas, and remember these tables for `open`."""
        with speaking(self.options), connect(self.options) as connection:
            found = look_up(connection, list(dict.fromkeys(tables)))
        self._tables = found
        self._schemas = {
            name: self._standing.described(table, self._schema(table), self._recorded.get(name))
            for name, table in found.items()
        }
        return dict(self._schemas)

    def check(self, tables: Sequence[TableName]) -> Sequence[Problem]:
        """Return what keeps these tables from being captured exactly; changes nothing."""
        try:
            with speaking(self.options), connect(self.options) as connection:
                names = list(dict.fromkeys(tables))
                found = preflight.check(connection, self.options, names)
                return [*found, *doctor.unpublished(connection, self.options, names)]
        except HeadraceError as problem:
            return [problem]

    def tables(self) -> Sequence[TableName]:
        """Return the application's tables; whether each can be captured is for `check`."""
        with speaking(self.options):
            return doctor.table_names(self.options, self._query)

    def add(self, table: TableName) -> TableSchema:
        """Publish one more table; its changes come in the stream that is open (H2)."""
        _, transactions = self._opened()
        assert self._query is not None
        with speaking(self.options):
            found = doctor.examined(self._query, self.options, table, self._tables)
            schema = self._schema(found)
            self._publishing.widen(self._query, self._tables, found)
        self._tables[table], self._schemas[table] = found, schema
        self._layouts.adopt(found, schema)
        transactions.relearn(found.oid)
        if not self._completes:
            self._toast.moved(transactions.place(self._given))
        self._toast.add(found, schema)
        self._completes = self._toast.active
        return schema

    def open(self, after: SourcePosition | str | None) -> SourcePosition:
        """Bring publication and slot in order, and find the place to read on from (H0, H1)."""
        self.close()
        if not self._tables:
            raise SourceRefused(
                "No tables to capture",
                source=self.name,
                remedy="Name at least one table of this source in a pipeline.",
            )
        wanted = None if after is None else LsnPosition.parse(str(after))
        with speaking(self.options):
            self._at = self._start(wanted)
        # Also where a standby took over: it has all that the log has, and history goes on (R2).
        place = wanted if self._resumed and wanted is not None else self._at
        first = self._snapshots.first()
        self._toast.open(self._tables, self._schemas, place, first, self._query, self._resumed)
        self._completes = self._toast.active
        self._given = self._at.lsn
        self._news_from = 0.0
        self._even_at = self._opened_at = time.monotonic()
        self._began = True
        return place

    def claim(self) -> str:
        """Return the slot: a server keeps it, and what it needs, until somebody removes it."""
        if not self._ours:
            # Before the log says that it is: from then on it would be dropped as ours.
            refuse_unknown(self.options)
        return self._claim

    def recall(
        self, notes: Mapping[TableName, str], schemas: Mapping[TableName, TableSchema]
    ) -> None:
        """Take what the log kept."""
        self._claimed = notes.get("") == self._claim
        self._trees.recall(notes)
        self._standing.recall(notes)
        self._recorded = dict(schemas)

    def news(self) -> Sequence[News]:
        """Tell of tables that are not published as they will be, and of partitions."""
        if self._given < self._news_from:
            return ()  # nearly always: what there is to tell is found by `open` and `maintain`
        left_out = sorted(self._publishing.unfollowed)
        told = (*self._standing.news(), *self._trees.news(self._given))
        found = [*(News(each, owed="left out", missing=True) for each in left_out), *told]
        self._news_from = self._trees.news_from
        return self._toast.news(found)

    def synced(self, upto: str) -> None:
        """Let go of what was kept to read up to there again."""
        if self._completes:
            self._toast.synced(LsnPosition.parse(upto).lsn)

    def read(self, most: int, wait: float) -> Changes | None:
        """Return the next commits, or a part of a large one, or how far the server came."""
        stream, transactions = self._opened()
        until = time.monotonic() + wait
        while True:
            stream.beat()
            if (changes := self._next()) is not None:
                return changes
            if (moved := self._moved(stream, transactions)) is not None:
                return moved
            left = until - time.monotonic()
            if left <= 0 or self._awake:
                self._awake = False
                left = 0.0
            if (messages := self._receive(stream, left)) is not None:
                commits = transactions.take(messages.buffer, messages.starts, messages.stops)
                self._commits = self._toast.completed(commits) if self._completes else commits
            elif left <= 0:
                return self._moved(stream, transactions)

    def maintain(self) -> float:
        """
        Bring the publication in line, and look for what the stream does not report (R23b, R23c).

        That a table was altered is raised; what the log has to know of it is news.
        """
        if self._query is None or self._watch is None:
            return WATCH_SECONDS
        with speaking(self.options):
            self._publishing.settle(self._query, self._tables)
            try:
                self._watch.look(self._query)
            except SchemaChanged as error:
                raise altered(error) from error
        self._snapshots.tidy()
        self._news_from = 0.0
        return max(0.0, self._watch.due - time.monotonic())

    def wake(self) -> None:
        """End the wait of a running `read`, or of the next one."""
        self._awake = True
        if (stream := self._stream) is not None:
            stream.wake()

    def acknowledge(self, upto: str) -> None:
        """Tell the server that everything up to there is safe."""
        place = LsnPosition.parse(upto)
        if self._stream is not None and place.lineage == self._at.lineage:
            self._stream.acknowledge(place.lsn)

    def baseline(self, table: TableName) -> LateCopy:
        """Begin to copy a table, as soon as that can be done exactly."""
        return LateCopy(self._schemas[table], partial(self._copy, table))

    def _copy(self, table: TableName) -> PostgresCopy:
        self._toast.wait(table)
        expected = expected_rows(self._query, self.options, self._tables[table])
        holder, own = self._snapshot(table)
        return PostgresCopy(
            holder,
            self._tables[table],
            self._schemas[table],
            where=self.options.asked_of(table).where,
            owns_holder=own,
            expected=expected,
            rows_per_s=self.options.copy_rows_per_s,
            passing=self._toast.fill(table, holder),
        )

    def plan(self, table: TableName) -> PlannedCopy | None:
        """Cut a baseline into ranges that any process can read; None: it is not worth it."""
        expected = expected_rows(self._query, self.options, self._tables[table])
        holder, own = self._snapshot(table)
        with speaking(self.options):
            if not self._toast.spares(table, holder, own, self._query):
                return None
            try:
                planned = plan_copy(
                    holder,
                    self._tables[table],
                    self._schemas[table],
                    self.options.asked_of(table).where,
                    own,
                )
            except SchemaChanged as error:
                raise altered(error) from error
            if len(planned.parts) > 1:
                planned.expected = expected
                return planned
        planned.close()
        return None

    def read_part(
        self, part: bytes
    ) -> Iterator[tuple[TableSchema, pa.RecordBatch, pa.Array | None]]:
        """Read a range of a planned baseline; also in a process that knows nothing else."""
        return self._parts.read(part)

    def lag(self) -> Lag:
        """Return how far the server's log is ahead of what was read, in bytes and seconds."""
        stream = self._stream
        if stream is None:
            return Lag()
        stream.beat()  # also while nothing is read, because there is no room (R7, R28)
        behind = max(0, stream.end - self._given)
        now = time.monotonic()
        if not behind:
            self._even_at = now
        room = None
        if self._query is not None and now >= self._meter.due:
            room = self._meter.measure(self._query, self._given)
        return Lag(bytes=behind, seconds=now - self._even_at, room=room)

    def close(self) -> None:
        """Let go of the server; what is ours there stays."""
        self._parts.close()
        self._toast.close()
        self._snapshots.close()
        for each in (self._stream, self._query):
            if each is not None:
                with suppress(psycopg.Error, OSError):
                    each.close()
        if self._spill is not None:
            self._spill.close()
        self._stream = self._query = self._spill = None
        self._transactions = None
        self._completes = False
        self._commits = iter(())

    def teardown(self, data: str | os.PathLike[str] = "./headrace-data") -> None:
        """
        Remove what is ours from the server: the slot, and the publication.

        `data` is the data directory of the engine that read: names that were not given are
        made from it.
        """
        theirs = options_of(self.name, self.spec.options, reader_of(self.name, data))
        remove(theirs, drop_publication=True)

    def reset(self, after: str | None, *, drop_publication: bool) -> None:
        """Remove the slot, and the publication if asked: then `open` begins anew."""
        self.close()
        reset_slot(self.options, after, ours=self._ours, drop_publication=drop_publication)

    # -- steps ------------------------------------------------------------------------------

    @property
    def _ephemeral(self) -> bool:
        return self.options.slot_mode == "ephemeral"

    @property
    def _claim(self) -> str:
        return f"slot {self.options.slot}"

    @property
    def _ours(self) -> bool:
        """Whether the slot is ours, should the log have no start: we died before it had one."""
        # A name that we made up is nobody else's.
        return self._claimed or self.options.slot == default_slot(self.name, self._reader)

    def _schema(self, table: CatalogTable) -> TableSchema:
        return described(table, self.options)

    def _start(self, wanted: LsnPosition | None) -> LsnPosition:
        self._trees.begin(self._tables)
        opening = open_slot(
            self.options,
            self._tables,
            self._publishing,
            wanted,
            ours=self._ours,
            anew=self._anew or (self.options.always_baseline and not self._began),
            on_wait=self.on_wait,
            witness=self._witness,
            known=self._recorded,
        )
        query, at, replication = opening.query, opening.at, opening.replication
        self._query = query
        try:
            self._resumed = opening.created is None
            if opening.created is not None:
                # Before anything else goes over that connection: its snapshot ends with it (R14).
                self._snapshots.keep(opening.created)
                self._anew = False
            self._altered_upto = record_end(slot.written(query)) if self._resumed else 0
            self._standing.look(query, self._tables)
            self._stream = ReplicationStream(
                replication,
                self.options.slot,
                at.lsn,
                self.options.publication,
                streaming=True,
                clock=time.monotonic,
            )
        except BaseException:
            replication.close()
            raise
        self._spill = Spill(scratch_folder(self._reader))
        (around,) = query.execute("select pg_snapshot_xmax(pg_current_snapshot())::text").fetchone()  # type: ignore[misc]
        self._layouts = Schemas(
            ((table, self._schemas[name]) for name, table in self._tables.items()), self._recorded
        )
        self._transactions = Transactions(
            self._layouts,
            self._spill,
            after=at.lsn,
            place=at.moved_to,
            around=int(around),
        )
        self._watch = DdlWatch(
            self.options,
            self._tables,
            self._schemas,
            self._schema,
            time.monotonic,
            self._trees,
            self._standing,
        )
        return at

    def _receive(self, stream: ReplicationStream, wait: float) -> ReceivedMessages | None:
        try:
            return stream.receive(wait)
        except PublicationRefused as error:
            # It is there, and was not when something was written that is to be sent now.
            self._anew = True
            raise SourceUnreachable(error.message, source=self.name) from error

    def _next(self) -> Changes | None:
        try:
            changes = next(self._commits, None)
        except SchemaChanged as error:
            raise self._altered(error) from error
        if changes is not None and changes.ends:
            self._given = changes.upto.commit
        return changes

    def _altered(self, error: SchemaChanged) -> HeadraceError:
        """
        Say what a table's other columns mean.

        It may have been altered since it was described: then reading goes on at the same place
        with what it is now. Or it was altered before, several times, and this is what was
        written in between: nobody can tell what its columns are, so every table is copied.
        """
        with speaking(self.options), connect(self.options) as connection:
            other = altered_table(connection, self._tables, self._schemas, self._schema)
        if other is not None:
            return SourceUnreachable("The table was altered", table=other)
        if "now" in error.facts:
            return error  # it has another name: a person has to say which table is meant
        self._anew = True
        return SourceUnreachable(
            "The table was altered several times while it was not read; all tables are copied"
            " again",
            table=error.facts.get("table"),
        )

    def _moved(self, stream: ReplicationStream, transactions: Transactions) -> Changes | None:
        """Return how far the server came without a change of ours, if it did (R34)."""
        if stream.end <= self._given or not transactions.idle:
            return None
        self._given = stream.end
        upto = transactions.place(stream.end)
        if self._completes:
            self._toast.moved(upto)
        return Changes([], upto)

    def _snapshot(self, table: TableName) -> tuple[HeldSnapshot, bool]:
        """Return a snapshot to copy a table under, and whether it is for this copy alone."""
        stream, transactions = self._opened()
        self.maintain()
        if self._given < max(self._altered_upto, self._trees.floor(table)):
            # Applied to its rows, what was written before a column was there would take from
            # them what they got with it.
            raise NotYet
        before = self._publishing.published_before(table) and not self._trees.moved(table)
        if before and (first := self._snapshots.first()):
            return first, False
        with speaking(self.options):
            assert self._query is not None
            self._publishing.check_writers(self._query, self._tables[table])
            unsure = self._opened_at + UNSURE_SECONDS - time.monotonic()
            committed = transactions.committed
            return self._snapshots.another(self._given, committed, unsure, stream.beat), True

    def _opened(self) -> tuple[ReplicationStream, Transactions]:
        if self._stream is None or self._transactions is None:
            raise SourceUnreachable("The source is not open", source=self.name)
        return self._stream, self._transactions
