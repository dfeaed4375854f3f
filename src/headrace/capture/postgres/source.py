"""
A PostgreSQL database as a source.

Only a publication and a slot are created in it. The server sends every change of the
published tables once its transaction has committed, or earlier if the transaction is large.
Here they are received, assembled into whole commits and decoded, column by column.

The start position is never left to the server, which would silently skip what it does not
have (R2). A table is copied under a snapshot whose position in the stream is known exactly:
that of the slot, or one that was checked against what was read (H1 to H3).

Long because it puts the parts of capture together, and answers for each what the recorder asks.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
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
from headrace.capture.postgres.server.catalog import CatalogTable, find, look_up
from headrace.capture.postgres.server.ddl_watch import (
    WATCH_SECONDS,
    DdlWatch,
    IdentityCheck,
    altered_table,
)
from headrace.capture.postgres.server.facts import described
from headrace.capture.postgres.server.partitions import PartitionedTables
from headrace.capture.postgres.server.start_position import (
    HistoryCheck,
    Reason,
    SourcePublication,
    cause,
    open_slot,
    refuse_unknown,
    release,
    remove,
    reset_slot,
)
from headrace.capture.postgres.server.wal_usage import LagMeter, Meter
from headrace.capture.postgres.stream.spill import Spill, scratch_folder
from headrace.capture.postgres.stream.stream import (
    ReceivedMessages,
    ReplicationStream,
    SilencePatience,
)
from headrace.capture.postgres.stream.transactions import Transactions
from headrace.capture.postgres.toast.unchanged_values import Toast
from headrace.capture.source import (
    Lag,
    NotYet,
    Problem,
    SourceNotice,
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
    Reopening,
    SchemaChanged,
    SourceRefused,
    SourceUnreachable,
    TableRefused,
)

ASK_SECONDS = 0.5
"""A server that is ahead of what it has sent is asked for a reply after this silence."""


class PostgresSource:
    """Reads one PostgreSQL database; `describe` sets the tables that `open` will capture."""

    def __init__(self, spec: SourceSpec, reader: str | None = None) -> None:
        self.spec = spec
        self.name = spec.name
        self._reader = reader or spec.name
        self.options: PostgresOptions = options_of(spec.name, spec.options, self._reader)
        self.traits = SourceTraits(
            lineage="pg",
            resumes=not self._ephemeral,
            shares=True,
            reports_notices=True,
            maintains=True,
            counts_bytes=True,
            resets=True,
            releases=True,
            waits=True,
            copy_rows_per_s=self.options.copy_rows_per_s,
            lists=True,
            keeps_snapshot=True,
            measures_lag=True,
            explains_breaks=True,
        )
        self._tables: dict[TableName, CatalogTable] = {}
        self._schemas: dict[TableName, TableSchema] = {}
        self._query: psycopg.Connection[Any] | None = None
        self._stream: ReplicationStream | None = None
        self._transactions: Transactions | None = None
        self._layouts = Schemas(())
        self._spill: Spill | None = None
        self._commits: Iterator[Changes] = iter(())
        """Received, but not returned by `read` yet."""

        self._at = LsnPosition("0", 0, 0, 0, 0)
        self._given = 0
        self._snapshots = Snapshots(self.options)
        self.kept_first = self._snapshots.kept_first
        self._parts = PartReader(self.options)
        self._publishing = SourcePublication(self.options)
        self._toast = Toast(self.options, self._reader)
        self._completes = False
        """Whether changes may lack values that the store has."""

        self._partitions = PartitionedTables(self.options, self._publishing.alterations)
        self._identities = IdentityCheck(self.options)
        self._watch: DdlWatch | None = None
        self._notices_from = 0.0
        """The position that `read` must have reached before there are any notices."""

        self._opened_at = 0.0
        self._resumed = False
        self._began = False
        self._recorded: dict[TableName, TableSchema] = {}
        self._former: set[tuple[TableName, str]] = set()
        """Names that tables had for a while, before they got theirs back."""

        self._altered_upto = 0
        """Up to here, the stream may have tables as they were before they were described."""

        self._claimed = False
        """Whether the log has recorded that the slot is ours."""

        self._start_over = ""
        """Why the changes in the slot can no longer be read; empty: they can."""

        self._broken = ""
        self._released = False
        """Whether we dropped the slot because no table could be captured."""

        self._meter = Meter(self.options.slot, self.options.wal_budget, time.monotonic)
        self._lag = LagMeter(self.options.slot, time.monotonic)
        self._asked_at = math.inf
        """When the server was last asked for a reply because it is ahead of what it has sent."""

        self._awake = False
        self._patience = SilencePatience()
        self._history = HistoryCheck()
        self.on_wait: Callable[[str], object] = lambda reason: None

    @property
    def origin(self) -> str:
        """The database's address, by which a log identifies it."""
        parts = address(self.options.connection)
        return f"postgres:{parts['host']}:{parts['port']}/{parts['dbname']}"

    def lineage(self) -> str | None:
        """Return the lineage of the server and database that the address leads to now."""
        with speaking(self.options), connect(self.options, replication=True) as connection:
            server = slot.identify(connection)
        return LsnPosition(server.system, server.database, 0, 0, 0).lineage

    def describe(self, tables: Sequence[TableName]) -> Mapping[TableName, TableSchema]:
        """Return the schemas, and set these tables as those that `open` captures."""
        with speaking(self.options), connect(self.options) as connection:
            found = look_up(connection, list(dict.fromkeys(tables)))
        self._tables = found
        self._schemas = {
            name: self._identities.described(table, self._schema(table), self._recorded.get(name))
            for name, table in found.items()
        }
        return dict(self._schemas)

    def check(self, tables: Sequence[TableName]) -> Sequence[Problem]:
        """Return all problems that prevent an exact capture of these tables; changes nothing."""
        try:
            with speaking(self.options), connect(self.options) as connection:
                names = list(dict.fromkeys(tables))
                found = preflight.check(connection, self.options, names)
                return [*found, *doctor.unpublished(connection, self.options, names)]
        except HeadraceError as problem:
            return [problem]

    def tables(self) -> Sequence[TableName]:
        """Return the application's tables; `check` finds out which of them can be captured."""
        with speaking(self.options):
            return doctor.table_names(self.options, self._query)

    def add(self, table: TableName) -> TableSchema:
        """Publish one more table; its changes arrive in the open stream (H2)."""
        _, transactions = self._opened()
        assert self._query is not None
        with speaking(self.options):
            found = doctor.examined(self._query, self.options, table, self._tables)
            schema = self._schema(found)
            self._publishing.widen(self._query, self._tables, found)
        self._tables[table], self._schemas[table] = found, schema
        if self._watch is not None:
            self._watch.due = 0.0  # so that it is noted before it is copied
        self._layouts.adopt(found, schema)
        transactions.relearn(found.oid)
        if not self._completes:
            self._toast.moved(transactions.position_at(self._given))
        self._toast.add(found, schema)
        self._completes = self._toast.active
        return schema

    def open(self, after: SourcePosition | str | None) -> SourcePosition:
        """Set up the publication and the slot, and return the start position (H0, H1)."""
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
        # Also after a standby took over: it has all that the log has, in the same history (R2).
        position = wanted if self._resumed and wanted is not None else self._at
        first = self._snapshots.first()
        self._toast.open(self._tables, self._schemas, position, first, self._query, self._resumed)
        self._completes = self._toast.active
        self._layouts.expect_whole(self._toast.whole)
        self._given = self._at.lsn
        self._notices_from = 0.0
        self._opened_at, self._asked_at = time.monotonic(), math.inf
        self._lag = LagMeter(self.options.slot, time.monotonic)
        self._began = True
        return position

    def break_cause(self) -> str:
        """Return why the last `open` did not continue where the log ends."""
        return self._broken

    def claim(self) -> str:
        """Return the slot: the server keeps it, and WAL for it, until it is dropped."""
        if not self._ours:
            # Before the log records the claim: from then on the slot would be dropped as ours.
            refuse_unknown(self.options)
        return self._claim

    def recall(
        self, notes: Mapping[TableName, str], schemas: Mapping[TableName, TableSchema]
    ) -> None:
        """Take over the notes and schemas that the log has."""
        self._claimed = notes.get("") == self._claim
        self._partitions.recall(notes)
        self._identities.recall(notes)
        self._recorded = dict(schemas)

    def notices(self) -> Sequence[SourceNotice]:
        """Return notices of tables whose publication will change, and of partitions."""
        if self._given < self._notices_from:
            return ()  # nearly always: `open` and `maintain` find what there is to report
        notices = (*self._identities.notices(), *self._partitions.notices(self._given))
        noticed = {each.table for each in notices if each.missing}
        left_out = sorted(self._publishing.unfollowed - noticed)
        found = [
            *(SourceNotice(each, rebaseline_reason="left out", missing=True) for each in left_out),
            *notices,
        ]
        self._notices_from = self._partitions.notices_from
        return self._toast.notices(found)

    def synced(self, upto: str) -> None:
        """Discard what was kept to read again up to `upto`."""
        if self._completes:
            self._toast.synced(LsnPosition.parse(upto).lsn)

    def read(self, most: int, wait: float) -> Changes | None:
        """Return the next commits, a part of a large one, or how far the server has come."""
        stream, transactions = self._opened()
        until = time.monotonic() + wait
        while True:
            stream.send_status()
            if self._given >= self._lag.awaited:
                self._lag.reached(self._given)
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
        Update the publication, and look for what the stream does not report (R23b, R23c).

        Raises if a table was altered. What the log must record of it is returned by `notices`.
        """
        if self._query is None or self._watch is None:
            return WATCH_SECONDS
        with speaking(self.options):
            self._publishing.settle(self._query, self._tables)
            try:
                self._suspect(self._watch.look(self._query, self._publishing.alterations))
            except SchemaChanged as error:
                raise altered(error) from error
            except TableRefused as error:
                raise _refused_now(error) from error
        self._snapshots.tidy()
        self._notices_from = 0.0
        return max(0.0, self._watch.due - time.monotonic())

    def _compare_names(self, table: TableName) -> None:
        """Look at the names in its values now; raise `NotYet` if its rows are not as noted."""
        assert self._query is not None
        assert self._watch is not None
        tables = self._identities.names.sharing(table)
        with speaking(self.options):
            try:
                found = self._watch.compare(self._query, tables, self._publishing.alterations)
            except SchemaChanged as error:
                raise altered(error) from error
            self._suspect(found)
        self._notices_from = 0.0
        if table in found:
            raise NotYet

    def wake(self) -> None:
        """End the wait of a running `read`, or of the next one."""
        self._awake = True
        if (stream := self._stream) is not None:
            stream.wake()

    def acknowledge(self, upto: str) -> None:
        """Confirm to the server that everything up to `upto` is durable."""
        position = LsnPosition.parse(upto)
        if self._stream is not None and position.lineage == self._at.lineage:
            self._stream.acknowledge(position.lsn)

    def baseline(self, table: TableName) -> LateCopy:
        """Return a copy of a table; it begins as soon as that can be done exactly."""
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
        """Split a baseline into ranges that any process can read; None: not worth it."""
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
        """Read a range of a planned baseline; also in a process where the source is not open."""
        return self._parts.read(part)

    def lag(self) -> Lag:
        """Return how far the end of the server's WAL is ahead of what was read."""
        stream, query = self._stream, self._query
        if stream is None or query is None:
            return Lag()
        stream.send_status()  # also while nothing is read, for lack of room (R7, R28)
        silence = stream.silence
        replied = stream.replied_at > self._asked_at and self._given >= stream.received
        with speaking(self.options):
            self._lag.look(query, replied=replied)
        self._lag.reached(self._given)
        if self._lag.end > stream.received and silence > ASK_SECONDS:
            self._asked_at = time.monotonic()
            stream.ask()
        return Lag(
            bytes=self._lag.unread(self._given),
            seconds=self._lag.seconds,
            age=self._lag.age,
            silence=silence,
            room=self._meter.measure(query, self._given),
        )

    def close(self) -> None:
        """Close all connections; the slot and the publication stay."""
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
        Remove the slot from the server, and the publication if it is ours.

        `data` is the data directory of the engine that captured: names that were not set are
        derived from it.
        """
        theirs = options_of(self.name, self.spec.options, reader_of(self.name, data))
        remove(theirs, drop_publication=True)

    def release(self) -> None:
        """Drop the slot and the publication if they are ours; `open` creates them again."""
        self.close()
        self._released |= release(self.options, ours=self._ours)

    def reset(self, after: str | None, *, drop_publication: bool) -> None:
        """Remove the slot, and the publication if requested: then `open` starts over."""
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
        """Whether the slot is ours if the log has no start: the process may have ended before."""
        # No other deployment has a slot with our default name.
        return self._claimed or self.options.slot == default_slot(self.name, self._reader)

    def _schema(self, table: CatalogTable) -> TableSchema:
        return described(table, self.options)

    def _start(self, wanted: LsnPosition | None) -> LsnPosition:
        self._partitions.begin(self._tables)
        opening = open_slot(
            self.options,
            self._tables,
            self._publishing,
            wanted,
            ours=self._ours,
            start_over=bool(self._start_over) or (self.options.always_baseline and not self._began),
            on_wait=self.on_wait,
            history_check=self._history,
            known=self._recorded,
        )
        query, at, replication = opening.query, opening.at, opening.replication
        self._query = query
        try:
            self._resumed = opening.created is None
            self._broken = ""
            if opening.reason is not None:
                self._broken = cause(opening.reason, self.options)
                if opening.reason is Reason.ALWAYS and self._start_over:
                    self._broken = self._start_over
                if opening.reason is Reason.ABSENT and self._released:
                    self._broken = "No table could be captured for a while, so no changes were kept"
            if opening.created is not None:
                # Before any other command on that connection: the command ends the snapshot (R14).
                self._snapshots.keep(opening.created)
                self._start_over, self._released = "", False
            ours, begun = self._publishing.alterations, not self._resumed
            found = self._identities.look(query, self._tables, ours, begun=begun)
            self._suspect(found)
            self._altered_upto = 0 if begun else record_end(slot.written(query))
            self._stream = ReplicationStream(
                replication,
                self.options.slot,
                at.lsn,
                self.options.publication,
                streaming=True,
                clock=time.monotonic,
                patience=self._patience,
            )
        except BaseException:
            replication.close()
            raise
        self._spill = Spill(scratch_folder(self._reader))
        (xid,) = query.execute("select pg_snapshot_xmax(pg_current_snapshot())::text").fetchone()  # type: ignore[misc]
        self._layouts = Schemas(
            ((table, self._schemas[name]) for name, table in self._tables.items()),
            self._recorded,
            self._former,
            self._identities.replaced(at.lsn),
        )
        self._transactions = Transactions(
            self._layouts,
            self._spill,
            after=at.lsn,
            position_at=at.moved_to,
            near_xid=int(xid),
        )
        self._watch = DdlWatch(
            self.options,
            self._tables,
            self._schemas,
            self._schema,
            time.monotonic,
            self._partitions,
            self._identities,
        )
        return at

    def _receive(self, stream: ReplicationStream, wait: float) -> ReceivedMessages | None:
        try:
            return stream.receive(wait)
        except PublicationRefused as error:
            # The publication exists, but did not when a change was written that is sent now.
            self._start_over = (
                f"The publication {self.options.publication} did not exist for a while"
            )
            unreachable = Reopening(error.message)
            unreachable.facts = {"source": self.name, **error.facts}
            raise unreachable from error

    def _next(self) -> Changes | None:
        try:
            changes = next(self._commits, None)
        except SchemaChanged as error:
            raise self._altered(error) from error
        if changes is not None:
            names = self._identities.names
            if names.columns and names.compare(changes):
                self._notices_from = 0.0
            if changes.ends:
                self._given = changes.upto.commit
        return changes

    def _altered(self, error: SchemaChanged) -> HeadraceError:
        """
        Return what to do about a change with unknown columns.

        The table may have been altered since it was described: then reading continues at the
        same position with its current columns. Or it was altered before, several times, and the
        change was written in between: its columns cannot be determined, so every table is copied.
        """
        name = str(error.facts.get("table"))
        if "identity" in error.facts:
            self._toast.store_anyway(name)
            return Reopening("The table's replica identity was altered", table=name)
        with speaking(self.options), connect(self.options) as connection:
            if "now" in error.facts:
                return self._renamed(connection, name, str(error.facts["now"]))
            try:
                other = altered_table(connection, self._tables, self._schemas, self._schema)
            except TableRefused as refused:
                return _refused_now(refused)
        if other is not None:
            return Reopening("The table was altered", table=other)
        self._start_over = f"Table {name} was altered several times while it was not read"
        return Reopening(
            "The table was altered several times while it was not read; all tables are copied"
            " again",
            table=name,
        )

    def _renamed(
        self, connection: psycopg.Connection[Any], name: TableName, now: str
    ) -> HeadraceError:
        """Return what to do about a change of a table under another name."""
        tables, _ = find(connection, [name])
        if name not in tables:
            return Reopening("The table has another name", table=name)
        if tables[name].oid != self._tables[name].oid:
            return Reopening("The table was replaced by another one with the same name", table=name)
        # It has its name again, and had the same rows all the time.
        self._former.add((name, now))
        return Reopening("The table had another name for a while", table=name)

    def _suspect(self, tables: Collection[TableName]) -> None:
        """Copy these tables only when all that was written before has been read."""
        if tables and self._query is not None:
            self._publishing.suspect(tables)
            self._altered_upto = record_end(slot.written(self._query))
            self._identities.names.cover(tables, self._altered_upto)

    def _moved(self, stream: ReplicationStream, transactions: Transactions) -> Changes | None:
        """Return how far the server has come without a change of our tables, if it has (R34)."""
        if stream.end <= self._given or not transactions.idle:
            return None
        self._given = stream.end
        upto = transactions.position_at(stream.end)
        if self._completes:
            self._toast.moved(upto)
        return Changes([], upto)

    def _snapshot(self, table: TableName) -> tuple[HeldSnapshot, bool]:
        """Return a snapshot to copy a table under, and whether it is only for this copy."""
        stream, transactions = self._opened()
        self.maintain()
        if self._given < max(self._altered_upto, self._partitions.floor(table)):
            # A change that was written before a column was added would, applied to the copied
            # rows, remove the values that they got with the column.
            raise NotYet
        self._layouts.own_from_here(table)
        before = self._publishing.published_before(table) and not self._partitions.moved(table)
        if before and (first := self._snapshots.first()):
            return first, False
        with speaking(self.options):
            assert self._query is not None
            if self._publishing.check_writers(self._query, self._tables[table]):
                self._altered_upto = record_end(slot.written(self._query))
                raise NotYet
            unsure = self._opened_at + UNSURE_SECONDS - time.monotonic()
            committed = transactions.committed
            own = self._snapshots.another(self._given, committed, unsure, stream.send_status)
        if self._watch is not None and self._identities.names.types(table):
            # After the snapshot: then its rows have no name that is newer than the noted ones.
            try:
                self._compare_names(table)
            except BaseException:
                own.close()
                raise
        return own, True

    def _opened(self) -> tuple[ReplicationStream, Transactions]:
        if self._stream is None or self._transactions is None:
            raise SourceUnreachable("The source is not open", source=self.name)
        return self._stream, self._transactions


def _refused_now(error: TableRefused) -> Reopening:
    # It may be away for a moment only: what it is when it is described again decides.
    return Reopening("A table can no longer be captured", table=error.facts.get("table"))
