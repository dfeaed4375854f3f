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

import hashlib
import os
import re
import tempfile
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
from psycopg.conninfo import conninfo_to_dict

from headrace.capture.postgres import checks, publication, slots
from headrace.capture.postgres.catalog import CatalogTable, fingerprint, look_up, schema_of
from headrace.capture.postgres.connection import connect, speaking
from headrace.capture.postgres.copying import PostgresCopy, read_range
from headrace.capture.postgres.holder import Holder, import_snapshot, take_snapshot
from headrace.capture.postgres.locks import wait_for_lockers
from headrace.capture.postgres.options import Options, default_slot, options_of
from headrace.capture.postgres.place import Place
from headrace.capture.postgres.planned import Part, PlannedCopy, plan_copy
from headrace.capture.postgres.schemas import Schemas
from headrace.capture.postgres.spill import Spill
from headrace.capture.postgres.start import Begin, Resume, decide
from headrace.capture.postgres.stream import Stream
from headrace.capture.postgres.transactions import Transactions
from headrace.capture.source import Lag, Problem, SourcePosition, SourceSpec, SourceTraits
from headrace.changelog.change import Changes
from headrace.changelog.schema import TableName, TableSchema
from headrace.errors import (
    BadName,
    HeadraceError,
    SchemaChanged,
    SourceRefused,
    SourceUnreachable,
)

NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
MODES = ("stateful", "ephemeral")

FIRST_COPY_SECONDS = 60.0
"""How long the slot's own snapshot is kept for a copy to begin: it holds back vacuum."""


def postgres(
    connection: str,
    *,
    name: str | None = None,
    slot: str = "stateful",
    slot_name: str | None = None,
    publication: str | None = None,
    create_publication: bool = True,
    tables: Mapping[str, Mapping[str, object]] | None = None,
    publish: Sequence[str] = (),
    always_baseline: bool = False,
    failover: bool = False,
    create_slot_timeout: float | None = None,
    password_ref: str = "",
    before_connect: str = "",
) -> PostgresSource:
    """
    Return the PostgreSQL database that `connection` leads to; nothing is touched before a start.

    `slot` is `stateful` (a named slot; reading goes on where it ended) or `ephemeral` (a
    temporary one; every start copies the tables anew). `tables` may give columns and a row
    filter for a table: `{"orders": {"columns": ["id", "total"], "where": "total > 0"}}`.
    """
    if slot not in MODES:
        raise SourceRefused(
            "Unknown kind of slot", slot=slot, remedy=f"Use one of {', '.join(MODES)}."
        )
    if name is None:
        made = re.sub(r"[^a-z0-9._-]", "_", _address(connection)["dbname"].lower())
        name = made.lstrip("._-")[:64] or "postgres"
    elif NAME.fullmatch(name) is None:
        raise BadName("Not a usable name for a source", name=name)
    given: dict[str, object] = {
        "connection": connection,
        "slot": slot,
        "slot_name": slot_name,
        "publication": publication,
        "create_publication": create_publication,
        "tables": {table: dict(each) for table, each in (tables or {}).items()},
        "publish": list(publish),
        "always_baseline": always_baseline,
        "failover": failover,
        "create_slot_timeout": create_slot_timeout,
        "password_ref": password_ref,
        "before_connect": before_connect,
    }
    options = {key: value for key, value in given.items() if value not in (None, "", [], {})}
    return PostgresSource(SourceSpec("postgres", name, options))


class PostgresSource:
    """Reads one PostgreSQL database; `describe` names the tables that `open` will capture."""

    def __init__(self, spec: SourceSpec, reader: str | None = None) -> None:
        self.spec = spec
        self.name = spec.name
        self._reader = reader or spec.name
        self.options: Options = options_of(spec.name, spec.options, self._reader)
        self.traits = SourceTraits(lineage="pg", resumes=not self._ephemeral, shares=True)
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
        self._unsettled: set[TableName] = set()
        self._began = False
        self._anew = False
        """Whether what the slot has cannot be read any more."""

        self._even_at = 0.0
        self._awake = False

    @property
    def origin(self) -> str:
        """The database by its address: what a log remembers it by."""
        parts = _address(self.options.connection)
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
        self._even_at = time.monotonic()
        self._began = True
        return self._at

    def unfollowed(self) -> Collection[TableName]:
        """Return the tables that were published only now, or otherwise than before."""
        return frozenset(self._unsettled)

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
            self._let_snapshot_go()
            left = until - time.monotonic()
            if left <= 0 or self._awake:
                self._awake = False
                left = 0.0
            received = stream.receive(left)
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

    def baseline(self, table: TableName) -> PostgresCopy:
        """Begin to copy a table under a snapshot whose place in the stream is known."""
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
        """Cut a baseline into ranges that any process can read; None where one is enough."""
        holder, own = self._snapshot(table)
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
            self._spill.clear()
        self._holder = self._stream = self._query = self._spill = None
        self._transactions = None
        self._taking = iter(())

    def teardown(self) -> None:
        """Remove what is ours from the server: the slot, and the publication."""
        with speaking(self.options), connect(self.options) as connection:
            if slots.find(connection, self.options.slot) is not None:
                slots.release(connection, self.options.slot, self._application)
                slots.drop(connection, self.options.slot)
            publication.drop(connection, self.options)

    # -- steps ------------------------------------------------------------------------------

    @property
    def _ephemeral(self) -> bool:
        return self.options.slot_mode == "ephemeral"

    @property
    def _application(self) -> str:
        return f"headrace {self.options.slot}"

    def _columns(self, table: TableName) -> Sequence[str] | None:
        asked = self.options.tables.get(table)
        return asked.columns if asked and asked.columns else None

    def _start(self, wanted: Place | None) -> Place:
        query = self._query = connect(self.options, application=self._application)
        ensured = publication.ensure(query, self.options, list(self._tables.values()))
        self._unsettled = {*ensured.added, *ensured.changed} if wanted is not None else set()
        slots.release(query, self.options.slot, self._application)
        replication = connect(self.options, replication=True, application=self._application)
        try:
            server = slots.identify(replication)
            history = slots.timeline_history(replication, server.timeline)
            decision = decide(
                wanted,
                server,
                slots.find(query, self.options.slot),
                history,
                ephemeral=self._ephemeral,
                always_baseline=self._anew or (self.options.always_baseline and not self._began),
                # A name that we made up is nobody else's: we died before the log had a start.
                intended=self.options.slot == default_slot(self.name, self._reader),
            )
            match decision:
                case Resume(at):
                    pass
                case Begin():
                    at = self._begin(query, replication, server, decision)
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
        self._spill = Spill(self._scratch())
        (around,) = query.execute("select pg_snapshot_xmax(pg_current_snapshot())::text").fetchone()  # type: ignore[misc]
        self._transactions = Transactions(
            Schemas((table, self._schemas[name]) for name, table in self._tables.items()),
            self._spill,
            after=at.lsn,
            place=partial(_place, at),
            around=int(around),
        )
        return at

    def _scratch(self) -> Path:
        """Return a folder for open transactions, the same after a crash, so that none is left."""
        mark = hashlib.sha256(self._reader.encode()).hexdigest()[:12]
        folder = Path(tempfile.gettempdir()) / f"headrace-spill-{os.getuid()}-{mark}"
        folder.mkdir(mode=0o700, exist_ok=True)
        return folder

    def _begin(
        self,
        query: psycopg.Connection[Any],
        replication: psycopg.Connection[Any],
        server: slots.Identity,
        decision: Begin,
    ) -> Place:
        if decision.drop:
            slots.drop(query, self.options.slot)
        created = slots.create(
            replication,
            self.options.slot,
            temporary=self._ephemeral,
            failover=self.options.failover,
            timeout=self.options.create_slot_timeout,
        )
        # Before anything else goes over that connection: the slot's snapshot ends with it (R14).
        self._holder = import_snapshot(
            partial(connect, self.options), created.snapshot, created.consistent
        )
        self._holder_until = time.monotonic() + FIRST_COPY_SECONDS
        self._unsettled = set()
        self._anew = False
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
        if any(fingerprint(now[name]) != fingerprint(self._tables[name]) for name in now):
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
        if self._holder is not None and self._holder.alive and table not in self._unsettled:
            self._holder_until = time.monotonic() + FIRST_COPY_SECONDS
            return self._holder, False
        with speaking(self.options):
            self._wait_for_writers(table, stream)
            holder = take_snapshot(
                partial(connect, self.options),
                self._given,
                transactions.committed.pairs(),
                on_wait=lambda awaited: stream.beat(),
            )
        return holder, True

    def _wait_for_writers(self, table: TableName, stream: Stream) -> None:
        """Wait for transactions that wrote the table before it was published (R13)."""
        if table not in self._unsettled:
            return
        assert self._query is not None
        found = self._tables[table]
        wait_for_lockers(
            self._query, [found.oid, *found.tree], on_wait=lambda lockers, waited: stream.beat()
        )
        self._unsettled.discard(table)

    def _let_snapshot_go(self) -> None:
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


def _address(connection: str) -> dict[str, str]:
    """Return host, port and database of a connection string, and nothing else of it."""
    try:
        given = conninfo_to_dict(connection)
    except psycopg.Error:
        raise SourceRefused(
            "The connection string cannot be read",
            remedy="Write it as host=… dbname=… user=…, or as postgresql://user@host/database.",
        ) from None
    return {
        "host": str(given.get("host") or given.get("hostaddr") or "local"),
        "port": str(given.get("port") or 5432),
        "dbname": str(given.get("dbname") or given.get("user") or "postgres"),
    }
