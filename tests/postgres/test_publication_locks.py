"""Who has written to a table and is not done yet is waited for, whoever it is."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from headrace.capture.postgres.server.catalog import look_up
from headrace.capture.postgres.server.publication import Locker, lockers, oids_of, wait_for_lockers
from headrace.embedded.postgres import PostgresServer
from headrace.errors import SourceUnreachable
from tests.postgres.servers import Database, fresh_database
from tests.support.patience import patience


@pytest.fixture
def orders(database: Database) -> Database:
    database.execute("create table orders (id int primary key)")
    return database


def oids(database: Database, name: str = "orders") -> tuple[int, ...]:
    return oids_of(look_up(database.connect(), [name])[name])


@pytest.mark.meets("R13")
def test_who_writes_is_listed_and_who_reads_or_maintains_is_not(orders: Database) -> None:
    quiet = [
        "select from orders",
        "select from orders for update",
        "lock table orders in share update exclusive mode",
        "insert into other values (1)",
    ]
    orders.execute("create table other (id int)")
    writer = orders.connect(autocommit=False)
    writer.execute("insert into orders values (1)")
    others = [orders.connect(autocommit=False) for _ in quiet]
    for connection, statement in zip(others, quiet, strict=True):
        connection.execute(statement.encode())
    [found] = lockers(orders.connect(), oids(orders))
    assert (found.pid, found.user, found.gid) == (writer.info.backend_pid, "postgres", None)
    assert found.age is not None and found.age > 0
    writer.rollback()
    assert lockers(orders.connect(), oids(orders)) == []


@pytest.mark.meets("R13")
@pytest.mark.parametrize(
    "statement",
    [
        "delete from orders",
        "truncate orders",
        "alter table orders add more int",
        "lock table orders in exclusive mode",
        "savepoint s; insert into orders values (1); release s",
    ],
)
def test_every_way_to_write_is_seen(orders: Database, statement: str) -> None:
    wanted = oids(orders)
    writer = orders.connect(autocommit=False)
    writer.execute(statement.encode())
    assert [found.pid for found in lockers(orders.connect(), wanted)] == [writer.info.backend_pid]


PREPARE = """
begin; insert into orders values (1);
savepoint s; insert into orders values (2); release s; prepare transaction 'left'
"""


@pytest.mark.meets("R13")
def test_a_prepared_writer_is_listed_by_its_name(orders: Database) -> None:
    orders.execute(PREPARE)
    [found] = lockers(orders.connect(), oids(orders))
    assert (found.pid, found.gid, found.user) == (None, "left", "postgres")
    assert found.age is not None


@pytest.mark.meets("R13")
def test_a_prepared_writer_is_listed_also_after_a_restart(own_server: PostgresServer) -> None:
    with fresh_database(own_server) as database:
        database.execute("create table orders (id int primary key)")
        database.execute(PREPARE)
        own_server.restart()
        assert [found.gid for found in lockers(database.connect(), oids(database))] == ["left"]


@pytest.mark.meets("R13")
def test_a_writer_that_is_prepared_meanwhile_is_still_waited_for(orders: Database) -> None:
    writer = orders.connect()
    writer.execute("begin; insert into orders values (1)")
    seen: list[str | None] = []

    def on_wait(left: Sequence[Locker], seconds: float) -> None:
        seen.extend(one.gid for one in left)
        match len(seen):
            case 1:
                writer.execute("prepare transaction 'left'")
            case 2:
                writer.execute("commit prepared 'left'")

    wait_for_lockers(orders.connect(), oids(orders), patience=patience(), on_wait=on_wait)
    assert seen == [None, "left"]


@pytest.mark.meets("R13")
def test_a_writer_of_a_partition_is_a_writer_of_the_table(orders: Database) -> None:
    orders.execute("create table events (id int) partition by range (id)")
    orders.execute(
        "create table low partition of events for values from (0) to (9) partition by range (id)"
    )
    orders.execute("create table lowest partition of low for values from (0) to (5)")
    writer = orders.connect(autocommit=False)
    writer.execute("insert into lowest values (1)")
    assert len(oids(orders, "events")) == 3
    [found] = lockers(orders.connect(), oids(orders, "events"))
    assert found.pid == writer.info.backend_pid


def test_a_table_of_the_same_number_in_another_database_is_not_meant(orders: Database) -> None:
    writer = orders.connect(autocommit=False)
    writer.execute("insert into orders values (1)")
    elsewhere = orders.connect(dbname="postgres")
    assert lockers(elsewhere, oids(orders)) == []


@pytest.mark.meets("R13")
def test_those_who_write_now_are_waited_for_and_later_ones_are_not(orders: Database) -> None:
    wanted = oids(orders)
    first, later = orders.connect(autocommit=False), orders.connect(autocommit=False)
    first.execute("insert into orders values (1)")
    orders.execute("begin; insert into orders values (2); prepare transaction 'left'")
    seen: list[list[int | str | None]] = []

    def on_wait(left: Sequence[Locker], seconds: float) -> None:
        seen.append(sorted((one.gid or one.pid for one in left), key=str))
        match len(seen):
            case 1:
                later.execute("insert into orders values (3)")
                first.rollback()
            case 2:
                orders.execute("commit prepared 'left'")

    wait_for_lockers(orders.connect(), wanted, patience=patience(), on_wait=on_wait)
    assert seen == [[first.info.backend_pid, "left"], ["left"]]
    assert [one.pid for one in lockers(orders.connect(), wanted)] == [later.info.backend_pid]


def test_a_session_that_goes_on_with_its_next_transaction_is_not_waited_for(
    orders: Database,
) -> None:
    writer = orders.connect(autocommit=False)
    writer.execute("insert into orders values (1)")

    def on_wait(left: Sequence[Locker], seconds: float) -> None:
        writer.commit()
        writer.execute("insert into orders values (2)")

    wait_for_lockers(orders.connect(), oids(orders), patience=patience(), on_wait=on_wait)
    assert [one.pid for one in lockers(orders.connect(), oids(orders))] == [writer.info.backend_pid]


def test_patience_has_an_end_and_names_who_is_still_there(orders: Database) -> None:
    writer = orders.connect(autocommit=False)
    writer.execute("insert into orders values (1)")
    with pytest.raises(SourceUnreachable) as caught:
        wait_for_lockers(orders.connect(), oids(orders), patience=0.05)
    assert caught.value.facts["pids"] == [writer.info.backend_pid]
    assert caught.value.facts["prepared"] == []


def test_nobody_is_waited_for_where_nobody_writes(orders: Database) -> None:
    def on_wait(left: Sequence[Locker], seconds: float) -> None:
        raise AssertionError(left)

    wait_for_lockers(orders.connect(), oids(orders), patience=0, on_wait=on_wait)
