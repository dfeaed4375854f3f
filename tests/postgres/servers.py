"""
Servers and databases for tests of PostgreSQL.

`HEADRACE_PG_VERSION` names the major a run is about; without it, it is the one that comes with
the development packages.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import psycopg
from psycopg import sql

from headrace.embedded.binaries import fetched
from headrace.embedded.postgres import PostgresServer
from tests.support.patience import patience

T = TypeVar("T")

TEST_SETTINGS = {"max_prepared_transactions": "10"}

_numbers = itertools.count(1)


def make_server(settings: Mapping[str, str] | None = None) -> PostgresServer:
    """Return a server of the major this run is about, not started yet."""
    asked = os.environ.get("HEADRACE_PG_VERSION")
    # Of the fetched trees even where the package has the major: they also have TLS and contrib.
    return PostgresServer(
        version=int(asked) if asked else None,
        binaries=fetched(int(asked)) if asked else None,
        settings={**TEST_SETTINGS, **(settings or {})},
    )


class Database:
    """A database that one test has for itself."""

    def __init__(self, server: PostgresServer, name: str) -> None:
        self.server = server
        self.name = name
        self._opened: list[psycopg.Connection[Any]] = []
        self._roles: list[str] = []
        self._own: psycopg.Connection[Any] | None = None
        self._own_of: int | None = None

    @property
    def dsn(self) -> str:
        return self.dsn_as("postgres")

    def dsn_as(self, user: str) -> str:
        return f"host=127.0.0.1 port={self.server.port} user={user} dbname={self.name}"

    def connect(self, user: str = "postgres", **parameters: Any) -> psycopg.Connection[Any]:
        """Open a connection (autocommit unless told otherwise) that is closed after the test."""
        parameters.setdefault("autocommit", True)
        connection = psycopg.connect(self.dsn_as(user), **parameters)
        self._opened.append(connection)
        return connection

    def execute(self, statement: str, *values: Any) -> int:
        """Run a statement in a transaction of its own; return how many rows it touched."""
        return self._connection().execute(statement.encode(), values or None).rowcount

    def rows(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        """Return all rows of a query."""
        return self._connection().execute(query.encode(), values or None).fetchall()

    def value(self, query: str, *values: Any) -> Any:
        """Return the one value of a query that gives one."""
        [(found,)] = self.rows(query, *values)
        return found

    def role(self, attributes: str = "login") -> str:
        """Make a role for this test, e.g. with "login replication"; return its name."""
        name = f"role_{os.getpid()}_{next(_numbers)}"
        self.execute(f"create role {name} {attributes}")
        self._roles.append(name)
        return name

    def create(self) -> None:
        with self._outside() as outside:
            outside.execute(
                sql.SQL("create database {} template template0").format(sql.Identifier(self.name))
            )

    def drop(self) -> None:
        """Remove it, with what holds on to it: clients, slots, prepared transactions, roles."""
        for (name,) in self.rows(
            "select gid from pg_prepared_xacts where database = current_database()"
        ):
            self.execute(f"rollback prepared '{name}'")
        for connection in self._opened:
            connection.close()
        with self._outside() as outside:
            wait_until(lambda: self._without_slots(outside), what="slots to be gone")
            name_of = sql.Identifier
            outside.execute(sql.SQL("drop database {} with (force)").format(name_of(self.name)))
            for role in self._roles:
                outside.execute(sql.SQL("drop role {}").format(name_of(role)))

    def _without_slots(self, outside: psycopg.Connection[Any]) -> bool:
        outside.execute(
            "select pg_terminate_backend(active_pid) from pg_replication_slots"
            " where database = %s and active_pid is not null",
            [self.name],
        )
        free = outside.execute(
            "select slot_name from pg_replication_slots where database = %s and not active"
            " and not temporary",
            [self.name],
        ).fetchall()
        for (slot,) in free:
            outside.execute("select pg_drop_replication_slot(%s)", [slot])
        left = outside.execute(
            "select count(*) from pg_replication_slots where database = %s", [self.name]
        ).fetchone()
        return left == (0,)

    def _connection(self) -> psycopg.Connection[Any]:
        # A server that was restarted has ended the one we had, and nobody has told it so.
        if self._own is None or self._own.closed or self._own_of != self.server.pid:
            self._own, self._own_of = self.connect(), self.server.pid
        return self._own

    @contextmanager
    def _outside(self) -> Iterator[psycopg.Connection[Any]]:
        with psycopg.connect(self.server.dsn, autocommit=True) as connection:
            yield connection


@contextmanager
def fresh_database(server: PostgresServer) -> Iterator[Database]:
    """Give a new, empty database on `server`, and drop it at the end."""
    database = Database(server, f"test_{os.getpid()}_{next(_numbers)}")
    database.create()
    try:
        yield database
    finally:
        database.drop()


def stops_by_itself(server: PostgresServer) -> bool:
    """Stop a server; False: it waited for somebody, and was killed in the end."""
    said = "database system is shut down"
    before = server.log.count(said)
    server.stop("fast")
    return server.log.count(said) > before


def without_timeout(database: Database) -> None:
    """Let the database's server wait for ever for a word of whoever reads from a slot."""
    database.execute("alter system set wal_sender_timeout = 0")
    database.execute("select pg_reload_conf()")


def wait_until(
    condition: Callable[[], T], seconds: float | None = None, *, what: str = "the condition"
) -> T:
    """Ask `condition` again and again until it gives something true, and return that."""
    seconds = patience() if seconds is None else seconds
    until = time.monotonic() + seconds
    while not (found := condition()):
        if time.monotonic() > until:
            raise AssertionError(f"waited {seconds:g} s in vain for {what}")
        time.sleep(0.01)
    return found
