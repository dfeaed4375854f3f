"""
The server, the table and the backlogs that capture from PostgreSQL is measured with.

Rows have eight columns and take about 295 bytes on the wire, as those the design's limits
were measured with. They are made by the server itself, from their key alone, so that what
arrives can be compared with sums that SQL makes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.compute as pc

from headrace.embedded.postgres import PostgresServer

TRANSPORTS = ("tcp", "unix")

COLUMNS = (
    "id int8 primary key, name text, note text, amount numeric(12,2), active bool,"
    " created timestamptz, score float8, n int4"
)
_ROW = (
    "i, 'customer no. ' || lpad(i::text, 7, '0') || ', second floor of the northern district',"
    " md5(i::text) || md5((-i)::text) || md5((i * 31)::text),"
    " (i * 7919 % 1000000)::numeric / 100, i % 3 = 0,"
    " timestamptz '2026-01-01 00:00:00.123456+00' + i * interval '1 second',"
    " i / 7.0::float8, (i % 1000)::int4"
)
_SINCE = 1_767_225_600_000_000
"""2026 in microseconds: sums of times are taken from here, else they would not fit 64 bits."""

_SETTINGS = {
    "max_replication_slots": "60",
    "max_wal_senders": "60",
    "shared_buffers": "256MB",
    # Nothing of the server's own housekeeping shall fall into one drain and not the next.
    "max_wal_size": "64GB",
    "checkpoint_timeout": "1h",
    "autovacuum": "off",
    "synchronous_commit": "on",
}


@dataclass(frozen=True, slots=True)
class Sums:
    """What must be the same in the database and wherever its rows arrive."""

    rows: int
    ids: int
    amounts: Decimal
    numbers: int
    active: int


@dataclass(frozen=True, slots=True)
class Details:
    """More of the same: what is compared where the rows lie in columns."""

    sums: Sums
    letters: int
    micros: int
    scores: int


class Server:
    """A server for the bench, and statements on it."""

    def __init__(self, server: PostgresServer, transport: str) -> None:
        self.server = server
        self.transport = transport
        host = str(server.folder) if transport == "unix" else "127.0.0.1"
        self.dsn = f"host={host} port={server.port} user=postgres dbname=postgres"
        self._connection: psycopg.Connection[Any] = psycopg.connect(self.dsn, autocommit=True)

    @property
    def pid(self) -> int:
        """The server's first process."""
        assert self.server.pid is not None, "the server is gone"
        return self.server.pid

    def execute(self, statement: str) -> None:
        """Run a statement, or a block that commits by itself."""
        self._connection.execute(statement.encode())

    def value(self, query: str) -> Any:
        """Return the one value of a query."""
        row = self._connection.execute(query.encode()).fetchone()
        assert row is not None, query
        return row[0]

    def create(self, table: str) -> None:
        """Make an empty table, in the place of one that may be there."""
        self.execute(f"drop table if exists {table}")
        self.execute(f"create table {table} ({COLUMNS})")

    def fill(self, table: str, rows: int, each: int) -> None:
        """Insert `rows` rows in transactions of `each`."""
        if each == 1:
            insert = f"insert into {table} select {_ROW} from (values (b::int8)) of(i)"
        else:
            # The last transaction is the smaller one where it does not come out even.
            upto = f"least(b + {each - 1}, {rows})"
            insert = f"insert into {table} select {_ROW} from generate_series(b::int8, {upto}) i"
        self.execute(
            f"do $$ begin for b in 1..{rows} by {each} loop {insert}; commit; end loop; end $$"
        )

    def end(self) -> str:
        """Return where the server's log ends now, and write something behind it."""
        found: str = self.value("select pg_current_wal_insert_lsn()::text")
        # Whoever reads up to there must not have to wait for a word that it was reached.
        self.execute("select pg_logical_emit_message(true, 'headrace-bench', 'the end')")
        return found

    def truth(self, table: str) -> Details:
        """Return the sums as SQL makes them."""
        row = self._connection.execute(
            "select count(*), sum(id), sum(amount), sum(n), count(*) filter (where active),"
            " sum(length(name) + length(note)),"
            f" sum((extract(epoch from created) * 1000000)::int8 - {_SINCE}),"
            f" sum(floor(score)::int8) from {table}".encode()
        ).fetchone()
        assert row is not None
        rows, ids, amounts, numbers, active, letters, micros, scores = row
        sums = Sums(rows, int(ids), amounts, int(numbers), active)
        return Details(sums, int(letters), int(micros), int(scores))

    def drop_slots(self) -> None:
        """Remove every slot that nobody reads from."""
        self.execute(
            "select pg_drop_replication_slot(slot_name) from pg_replication_slots where not active"
        )

    def close(self) -> None:
        """End the connection."""
        self._connection.close()


@contextmanager
def running_server(transport: str = "tcp") -> Iterator[Server]:
    """Give a server that listens on loopback and on a unix socket."""
    made = PostgresServer(settings=_SETTINGS)
    made.settings["unix_socket_directories"] = str(made.folder)
    with made:
        server = Server(made, transport)
        try:
            yield server
        finally:
            server.close()


def sums_of_rows(rows: Iterable[Mapping[str, Any]]) -> Sums:
    """Return the sums of rows as a table in memory gives them."""
    count = ids = numbers = active = 0
    amounts = Decimal(0)
    for row in rows:
        count += 1
        ids += row["id"]
        amounts += row["amount"]
        numbers += row["n"]
        active += row["active"]
    return Sums(count, ids, amounts, numbers, active)


def sums_of_columns(tables: Iterable[pa.Table]) -> Details:
    """Return the sums of rows in columns named as the table's are."""
    count = ids = numbers = active = letters = micros = scores = 0
    amounts = Decimal(0)
    for table in tables:
        count += table.num_rows
        ids += _sum(table["id"])
        amounts += pc.sum(table["amount"]).as_py() or 0
        numbers += _sum(table["n"])
        active += _sum(table["active"])
        letters += _sum(pc.utf8_length(table["name"])) + _sum(pc.utf8_length(table["note"]))
        created = table["created"].cast(pa.timestamp("us", "UTC")).cast(pa.int64())
        micros += _sum(pc.subtract(created, _SINCE))
        scores += _sum(pc.floor(table["score"]).cast(pa.int64()))
    return Details(Sums(count, ids, amounts, numbers, active), letters, micros, scores)


def after_images(segment: pa.Table) -> pa.Table:
    """Return the rows that a segment's changes leave behind, in columns of their own."""
    after = segment["after"]
    names = [after.type.field(at).name for at in range(after.type.num_fields)]
    return pa.table({name: pc.struct_field(after, name) for name in names})


def _sum(column: pa.ChunkedArray) -> int:
    return int(pc.sum(column).as_py() or 0)
