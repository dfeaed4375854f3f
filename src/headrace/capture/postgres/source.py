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
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import psycopg
import pyarrow as pa

from headrace.capture.postgres import checks, publication, slots
from headrace.capture.postgres.catalog import CatalogTable, fingerprint, look_up, schema_of
from headrace.capture.postgres.connection import connect, speaking
from headrace.capture.postgres.copying import PostgresCopy, read_range
from headrace.capture.postgres.holder import Holder, import_snapshot, take_snapshot
from headrace.capture.postgres.late import LateCopy, NotYet
from headrace.capture.postgres.options import Options, address, default_slot, options_of
from headrace.capture.postgres.place import Place
from headrace.capture.postgres.planned import Part, PlannedCopy, plan_copy
from headrace.capture.postgres.publishing import Publishing
from headrace.capture.postgres.schemas import Schemas
from headrace.capture.postgres.spill import Spill, scratch_folder
from headrace.capture.postgres.start import Begin, Resume, decide
from headrace.capture.postgres.stream import Stream
from headrace.capture.postgres.transactions import Transactions
from headrace.capture.postgres.watch import Watch, same_shape
from headrace.capture.source import (
    Lag,
    News,
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
from headrace.storage import points

FIRST_COPY_SECONDS = 60.0
"""How long the slot's own snapshot is kept for a copy to begin: it holds back vacuum."""

UNSURE_SECONDS = 1.0
"""
After reading began anew, how long commits from before may be invisible without our knowing.

Between a commit's being sent and its being visible lie a few instructions of the server; where it
waits for a standby it says so, and is waited for however long that takes (H2).
"""

_TRIES = 6
"""So many attempts at a snapshot, in a quarter of a second, before changes have their turn."""


class PostgresSource:
    """Reads one PostgreSQL database; `describe` names the tables that `open` will capture."""

    def __init__(self, spec: SourceSpec, reader: str | None = None) -> None:
        self.spec = spec
        self.name = spec.name
        self._reader = reader or spec.name
        self.options: Options = options_of(spec.name, spec.options, self._reader)
        self.traits = SourceTraits(
            lineage="pg", resumes=not self._ephemeral, shares=True, tells=True
        )
        self._tables: dict[TableName, CatalogTable] = {}
        self._schemas: dict[TableName, TableSchema] = {}
        self._query: psycopg.Connection[Any] | None = None
        self._stream: Stream | None = None
        self._transactions: Transactions | None = None
        self._spill: Spill | None = None
        self._taking: Iterator[Changes] = iter(())
        self._at = Place("0", 0, 0, 0, 0)
        self._given = 0
        self._holder: Holder | None = None
        self._holder_until = 0.0
        self._publishing = Publishing(self.options)
        self._watch: Watch | None = None
        self._opened_at = 0.0
        self._resumed = False
        self._began = False
        self._claimed = False
        """Whether the log says that the slot is ours."""

        self._anew = False
        """Whether what the slot has cannot be read any more."""

        self._even_at = 0.0
        self._awake = False

    @property
    def origin(self) -> str:
        """The database by its address: what a log remembers it by."""
        parts = address(self.options.connection)
        return f"postgres:{parts['host']}:{parts['port']}/{parts['dbname']}"

    def lineage(self) -> str | None:
        """Return the lineage of the server and database that answer now."""
        with speaking(self.options), connect(self.options, replication=True) as connection:
            server = slots.identify(connection)
        return Place(server.system, server.database, 0, 0, 0).lineage

    def describe(self, tables: Sequence[TableName]) -> Mapping[TableName, TableSchema]:
        """Return the schemas, and remember these tables for `open`."""
        with speaking(self.options), connect(self.options) as connection:
            found = look_up(connection, list(dict.fromkeys(tables)))
        self._tables = found
        self._schemas = {
            name: schema_of(table, self._columns(name)) for name, table in found.items()
        }
        return dict(self._schemas)

    def check(self, tables: Sequence[TableName]) -> Sequence[Problem]:
        """Return what keeps these tables from being captured exactly; changes nothing."""
        try:
            with speaking(self.options), connect(self.options) as connection:
                return checks.check(connection, self.options, list(dict.fromkeys(tables)))
        except HeadraceError as problem:
            return [problem]

    def open(self, after: SourcePosition | str | None) -> SourcePosition:
        """Bring publication and slot in order, and find the place to read on from (H0, H1)."""
        self.close()
        if not self._tables:
            raise SourceRefused("No table to capture", source=self.name)
        wanted = None if after is None else Place.parse(str(after))
        with speaking(self.options):
            self._at = self._start(wanted)
        self._given = self._at.lsn
        self._even_at = self._opened_at = time.monotonic()
        self._began = True
        # Also where a standby took over: it has all that the log has, and history goes on (R2).
        return wanted if self._resumed and wanted is not None else self._at

    def claim(self) -> str:
        """Return the slot: a server keeps it, and what it needs, until somebody removes it."""
        return f"slot {self.options.slot}"

    def recall(self, notes: Mapping[TableName, str]) -> None:
        """Take what the log kept."""
        self._claimed = notes.get("") == self.claim()

    def news(self) -> Sequence[News]:
        """Tell of tables that are not published yet, or otherwise than they will be."""
        left_out = sorted(self._publishing.unfollowed)
        return [News(table, owed="left out", missing=True) for table in left_out]

    def read(self, most: int, wait: float) -> Changes | None:
        """Return the next commits, or a part of a large one, or how far the server came."""
        stream, transactions = self._opened()
        self._keep_order()
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
            try:
                received = stream.receive(left)
            except PublicationRefused as error:
                # It is there, and was not when something was written that is to be sent now.
                self._anew = True
                raise SourceUnreachable(error.message, source=self.name) from error
            if received is not None:
                self._taking = transactions.take(received.buffer, received.starts, received.stops)
            elif left <= 0:
                return self._moved(stream, transactions)

    def wake(self) -> None:
        """End the wait of a running `read`, or of the next one."""
        self._awake = True
        if (stream := self._stream) is not None:
            stream.wake()

    def acknowledge(self, upto: str) -> None:
        """Tell the server that everything up to there is safe."""
        place = Place.parse(upto)
        if self._stream is not None and place.lineage == self._at.lineage:
            self._stream.acknowledge(place.lsn)

    def baseline(self, table: TableName) -> LateCopy:
        """Begin to copy a table, as soon as that can be done exactly."""
        return LateCopy(self._schemas[table], partial(self._copy, table))

    def _copy(self, table: TableName) -> PostgresCopy:
        holder, own = self._snapshot(table)
        asked = self.options.tables.get(table)
        return PostgresCopy(
            holder,
            self._tables[table],
            self._schemas[table],
            where=asked.where if asked else "",
            owns_holder=own,
        )

    def plan(self, table: TableName) -> PlannedCopy | None:
        """Cut a baseline into ranges that any process can read; None: not worth it, or not yet."""
        try:
            holder, own = self._snapshot(table)
        except NotYet:
            return None
        asked = self.options.tables.get(table)
        with speaking(self.options):
            planned = plan_copy(
                holder, self._tables[table], self._schemas[table], asked.where if asked else "", own
            )
            if len(planned.parts) > 1:
                return planned
        planned.close()
        return None

    def read_part(
        self, part: bytes
    ) -> Iterator[tuple[TableSchema, pa.RecordBatch, pa.Array | None]]:
        """Read a range of a planned baseline; also in a process that knows nothing else."""
        found = Part.unpacked(part)
        reader = partial(connect, self.options, host=found.host, port=found.port)
        for rows, exact in read_range(reader, found.range, found.schema):
            yield found.schema, rows, exact

    def lag(self) -> Lag:
        """Return how far the server's log is ahead of what was read, in bytes and seconds."""
        stream = self._stream
        if stream is None:
            return Lag()
        behind = max(0, stream.end - self._given)
        now = time.monotonic()
        if not behind:
            self._even_at = now
        return Lag(bytes=behind, seconds=now - self._even_at)

    def close(self) -> None:
        """Let go of the server; what is ours there stays."""
        for each in (self._holder, self._stream, self._query):
            if each is not None:
                with suppress(psycopg.Error, OSError):
                    each.close()
        if self._spill is not None:
            self._spill.close()
        self._holder = self._stream = self._query = self._spill = None
        self._transactions = None
        self._taking = iter(())

    def teardown(self, data: str | os.PathLike[str] = "./headrace-data") -> None:
        """
        Remove what is ours from the server: the slot, and the publication.

        `data` is the data directory of the engine that read: names that were not given are
        made from it.
        """
        theirs = PostgresSource(self.spec, reader_of(self.name, data))
        options = theirs.options
        with speaking(options), connect(options) as connection:
            if slots.find(connection, options.slot) is not None:
                slots.release(connection, options.slot, theirs._application)
                slots.drop(connection, options.slot)
            publication.drop(connection, options)

    # -- steps ------------------------------------------------------------------------------

    @property
    def _ephemeral(self) -> bool:
        return self.options.slot_mode == "ephemeral"

    @property
    def _application(self) -> str:
        # The server cuts names off, and who looks for a dead reader must know where.
        return f"headrace {self.options.slot}"[:63]

    def _columns(self, table: TableName) -> Sequence[str] | None:
        asked = self.options.tables.get(table)
        return asked.columns if asked and asked.columns else None

    def _start(self, wanted: Place | None) -> Place:
        query = self._query = connect(self.options, application=self._application)
        slots.release(query, self.options.slot, self._application)
        replication = connect(self.options, replication=True, application=self._application)
        try:
            server = slots.identify(replication)
            moved = wanted is not None and wanted.timeline != server.timeline
            decision = decide(
                wanted,
                server,
                slots.find(query, self.options.slot),
                slots.timeline_history(replication, server.timeline) if moved else (),
                ephemeral=self._ephemeral,
                always_baseline=self._anew or (self.options.always_baseline and not self._began),
                # A name that we made up is nobody else's: we died before the log had a start.
                intended=self._claimed
                or self.options.slot == default_slot(self.name, self._reader),
            )
            match self._publishing.prepare(query, decision, self._tables):
                case Resume(at):
                    self._resumed = True
                case Begin() as begin:
                    at = self._begin(replication, server, begin)
            self._stream = Stream(
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
        self._transactions = Transactions(
            Schemas((table, self._schemas[name]) for name, table in self._tables.items()),
            self._spill,
            after=at.lsn,
            place=partial(_place, at),
            around=int(around),
        )
        self._watch = Watch(
            self.options,
            self._tables,
            self._schemas,
            lambda table: schema_of(table, self._columns(table.name)),
            time.monotonic,
        )
        return at

    def _begin(
        self,
        replication: psycopg.Connection[Any],
        server: slots.Identity,
        decision: Begin,
    ) -> Place:
        created = slots.create(
            replication,
            self.options.slot,
            temporary=self._ephemeral,
            failover=self.options.failover,
            timeout=self.options.create_slot_timeout,
        )
        points.reach(points.SLOT_CREATED)
        # Before anything else goes over that connection: the slot's snapshot ends with it (R14).
        self._holder = import_snapshot(
            partial(connect, self.options), created.snapshot, created.consistent
        )
        self._holder_until = time.monotonic() + FIRST_COPY_SECONDS
        self._anew = self._resumed = False
        return Place(
            server.system, server.database, decision.branch, server.timeline, created.consistent
        )

    def _next(self) -> Changes | None:
        try:
            changes = next(self._taking, None)
        except SchemaChanged as error:
            raise self._altered(error) from error
        if changes is not None and changes.ends:
            self._given = changes.upto.commit
        return changes

    def _altered(self, error: SchemaChanged) -> HeadraceError:
        """
        Say what a table's other columns mean.

        The tables may have been altered since they were described: then plans were made for
        columns that are gone, and a person has to start anew. Or they were altered before, and
        this is what was written earlier still: that cannot be decoded with the columns of
        today, so every table is copied instead.
        """
        with speaking(self.options), connect(self.options) as connection:
            now = look_up(connection, list(self._tables))
        for name, table in now.items():
            if fingerprint(table) != fingerprint(self._tables[name]) or not same_shape(
                schema_of(table, self._columns(name)), self._schemas[name]
            ):
                return error
        self._anew = True
        return SourceUnreachable(
            "A table was altered while nobody read", table=error.facts.get("table")
        )

    def _moved(self, stream: Stream, transactions: Transactions) -> Changes | None:
        """Return how far the server came without a change of ours, if it did (R34)."""
        if stream.end <= self._given or not transactions.idle:
            return None
        self._given = stream.end
        return Changes([], _place(self._at, stream.end))

    def _snapshot(self, table: TableName) -> tuple[Holder, bool]:
        """Return a snapshot to copy a table under, and whether it is for this copy alone."""
        stream, transactions = self._opened()
        self._keep_order()
        if (
            self._holder is not None
            and self._holder.alive
            and self._publishing.published_before(table)
        ):
            self._holder_until = time.monotonic() + FIRST_COPY_SECONDS
            return self._holder, False
        with speaking(self.options):
            assert self._query is not None
            self._publishing.check_writers(self._query, self._tables[table])
            tries = 0

            def on_wait(awaited: object) -> None:
                nonlocal tries
                tries += 1
                stream.beat()
                if tries >= _TRIES:
                    raise NotYet

            holder = take_snapshot(
                partial(connect, self.options),
                self._given,
                transactions.committed.pairs(),
                unsure=self._opened_at + UNSURE_SECONDS - time.monotonic(),
                on_wait=on_wait,
            )
        points.reach(points.SNAPSHOT_TAKEN)
        return holder, True

    def _keep_order(self) -> None:
        """Do what is due besides reading, and notice what the stream does not tell of."""
        if self._query is None or self._watch is None:
            return
        with speaking(self.options):
            self._publishing.settle(self._query, self._tables)
            self._watch.look(self._query)
        if self._holder is None or self._holder.readers:
            return
        if time.monotonic() > self._holder_until:
            self._holder.close()
            self._holder = None

    def _opened(self) -> tuple[Stream, Transactions]:
        if self._stream is None or self._transactions is None:
            raise SourceUnreachable("Database is not open", source=self.name)
        return self._stream, self._transactions


def _place(at: Place, lsn: int) -> Place:
    return Place(at.system, at.database, at.branch, at.timeline, lsn)
