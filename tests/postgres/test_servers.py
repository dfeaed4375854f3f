"""What the fixtures promise to the other tests here."""

from __future__ import annotations

import os
from contextlib import ExitStack

import psycopg
import pytest

from headrace.embedded.postgres import PostgresServer
from tests.postgres.servers import Database, fresh_database, wait_until


def names(server: PostgresServer, query: str) -> set[str]:
    with psycopg.connect(server.dsn) as connection:
        return {name for (name,) in connection.execute(query.encode())}


def test_the_server_is_of_the_major_that_was_asked_for(server: PostgresServer) -> None:
    with psycopg.connect(server.dsn) as connection:
        found = connection.info.server_version // 10_000
    assert found == server.version == int(os.environ.get("HEADRACE_PG_VERSION", found))


def test_a_database_is_empty_and_its_own(database: Database) -> None:
    assert database.value("select current_database()") == database.name
    assert database.rows("select 1 from pg_stat_user_tables") == []
    assert database.execute("create table things (id int primary key)") == -1
    assert database.execute("insert into things values (%s), (%s)", 1, 2) == 2
    assert database.rows("select id from things order by id") == [(1,), (2,)]


def test_a_dropped_database_takes_everything_of_it_along(server: PostgresServer) -> None:
    with fresh_database(server) as database:
        database.execute("create table things (id int)")
        database.execute("create publication everything for all tables")
        role = database.role("login replication")
        database.execute(f"grant select on things to {role}")
        idle = database.connect(role)
        writing = database.connect(autocommit=False)
        writing.execute("insert into things values (1)")
        prepared = database.connect()
        prepared.execute("begin; insert into things values (2); prepare transaction 'half'")
    assert idle.closed
    assert writing.closed
    assert database.name not in names(server, "select datname from pg_database")
    assert role not in names(server, "select rolname from pg_roles")
    assert names(server, "select gid from pg_prepared_xacts") == set()


def test_a_slot_somebody_reads_from_goes_with_its_database(server: PostgresServer) -> None:
    with ExitStack() as after, fresh_database(server) as database:
        database.execute("create publication everything for all tables")
        reader = psycopg.connect(database.dsn, replication="database", autocommit=True)
        after.callback(reader.close)  # later than the database goes
        slot = f"of_{database.name}"
        reader.execute(f"CREATE_REPLICATION_SLOT {slot} LOGICAL pgoutput".encode())
        start = f"START_REPLICATION SLOT {slot} LOGICAL 0/0"
        options = "(proto_version '1', publication_names 'everything')"
        # Straight to libpq: the answer is no result but the beginning of a copy both ways.
        reader.pgconn.exec_(f"{start} {options}".encode())
        active = "select active from pg_replication_slots where slot_name = %s"
        assert database.value(active, slot) is True
    assert slot not in names(server, "select slot_name from pg_replication_slots")


@pytest.mark.parametrize("own_server", [{"wal_level": "replica"}], indirect=True)
def test_a_server_of_its_own_has_settings_and_restarts(own_server: PostgresServer) -> None:
    with fresh_database(own_server) as database:
        assert database.value("show wal_level") == "replica"
        own_server.restart()
        assert database.value("show wal_level") == "replica"


def test_waiting_returns_what_came_and_says_what_did_not() -> None:
    answers = iter([0, 0, 7])
    assert wait_until(lambda: next(answers)) == 7
    with pytest.raises(AssertionError, match=r"waited 0\.02 s in vain for rain"):
        wait_until(lambda: None, 0.02, what="rain")
