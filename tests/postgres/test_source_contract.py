"""PostgreSQL as a source, against the contract of all sources."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import psycopg
import pytest

from headrace.capture.postgres.definition import postgres
from headrace.capture.postgres.position import parse_lsn
from headrace.capture.postgres.source import PostgresSource
from headrace.testing.contracts import TABLE, SourceContract, State, Step
from tests.postgres.servers import Database

SQL = {
    "insert": "insert into things (name, id) values (%(name)s, %(key)s)",
    "update": "update things set name = %(name)s where id = %(key)s",
    "delete": "delete from things where id = %(key)s and %(name)s::text is null",
}


class PostgresHarness:
    def __init__(self, database: Database, slot: str) -> None:
        self.dsn = database.dsn
        self.slot = slot
        self.app = database.connect()
        self.app.execute("create table things (id bigint primary key, name text)")
        # Without it an update has no image of what was before.
        self.app.execute("alter table things replica identity full")
        self._last = self._end()
        self.made: list[PostgresSource] = []

    def make(self) -> PostgresSource:
        source = postgres(self.dsn, name="shop", slot=self.slot)
        self.made.append(source)
        return source

    def commit(self, steps: Sequence[Step]) -> None:
        with self.app.transaction():
            for op, key, name in steps:
                self.app.execute(SQL[op], {"key": key, "name": name})
        self._last = self._end()

    def all_read(self, upto: int) -> bool:
        return upto >= self._last

    def truth(self) -> State:
        return dict(self.app.execute(f"select id, name from {TABLE}").fetchall())

    def _end(self) -> int:
        (lsn,) = _row(self.app, "select pg_current_wal_flush_lsn()::text")
        return parse_lsn(str(lsn))


def _row(connection: psycopg.Connection[tuple[object, ...]], query: str) -> tuple[object, ...]:
    found = connection.execute(query.encode()).fetchone()
    assert found is not None
    return found


class TestPostgres(SourceContract):
    splits_commits = False

    @pytest.fixture(autouse=True)
    def _made(self, database: Database) -> Iterator[None]:
        harness = PostgresHarness(database, "stateful")
        self.harness = harness
        yield
        for source in harness.made:
            source.close()
