"""Where commits wait for a standby, they are streamed long before anybody sees them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from threading import Event, Thread

import pytest

from headrace.capture.postgres.connection import connect
from headrace.capture.postgres.copy.snapshot import PREPARED, InvisibleCommit, take_snapshot
from headrace.capture.postgres.options import PostgresOptions
from headrace.embedded.postgres import PostgresServer
from headrace.errors import NotPermitted
from tests.postgres.copies import connecting
from tests.postgres.servers import Database, fresh_database, wait_until


@pytest.fixture
def waiting(own_server: PostgresServer) -> Iterator[Database]:
    """A database whose synchronous commits wait for a standby that is not there."""
    with fresh_database(own_server) as database:
        database.execute(f"alter database {database.name} set synchronous_commit = local")
        database.execute("set synchronous_commit = local")
        database.execute("create table t (id int primary key)")
        database.execute("create table probes ()")
        _set(database)
        try:
            yield database
        finally:
            _release(database)


def _set(database: Database) -> None:
    database.execute("alter system set synchronous_standby_names = 'nobody'")
    database.execute("select pg_reload_conf()")
    # Sessions know the setting before the process does that makes commits wait: the proof is one.
    probe = database.connect()
    probe.execute("set synchronous_commit = on")
    waited = Event()

    def commit() -> None:
        while not waited.is_set():
            probe.execute("insert into probes default values")

    thread = Thread(target=commit)
    thread.start()
    wait_until(lambda: _waits(database), what="the setting to arrive")
    waited.set()
    database.execute("select pg_cancel_backend(%s)", probe.info.backend_pid)
    thread.join()


def _release(database: Database) -> None:
    database.execute("alter system reset synchronous_standby_names")
    database.execute("select pg_reload_conf()")


def _waits(database: Database) -> bool:
    return bool(database.rows("select from pg_stat_activity where wait_event = 'SyncRep'"))


def _begin(database: Database, *statements: str) -> Thread:
    """Run statements on a thread, of which the last one waits for a standby."""
    connection = database.connect()

    def run() -> None:
        for statement in statements:
            connection.execute(statement.encode())

    thread = Thread(target=run)
    thread.start()
    wait_until(lambda: _waits(database), what="the commit to wait")
    return thread


@pytest.mark.meets("R11", "H2")
@pytest.mark.parametrize("prepared", [False, True])
def test_a_commit_that_waits_for_a_standby_is_waited_for(waiting: Database, prepared: bool) -> None:
    if prepared:
        waiting.execute("begin")
        waiting.execute("insert into t values (1)")
        waiting.execute("prepare transaction 'it'")
        statements = ["set synchronous_commit = on", "commit prepared 'it'"]
    else:
        statements = ["set synchronous_commit = on", "insert into t values (1)"]
    thread = _begin(waiting, *statements)
    told: list[tuple[InvisibleCommit, ...]] = []

    def on_wait(awaited: tuple[InvisibleCommit, ...]) -> None:
        told.append(awaited)
        if len(told) == 2:
            _release(waiting)
            thread.join()

    holder = take_snapshot(connecting(waiting), 100, [], on_wait=on_wait)
    try:
        with holder.connect() as reader:
            reader.execute("begin isolation level repeatable read")
            reader.execute(f"set transaction snapshot '{holder.id}'".encode())
            assert reader.execute("select id from public.t").fetchall() == [(1,)]
    finally:
        holder.close()
        _release(waiting)
        thread.join()

    [awaited] = told[0]
    assert awaited.synchronous
    assert awaited.pid is not None
    assert (awaited.xid == PREPARED) == prepared


@pytest.mark.meets("H2")
def test_commits_that_began_to_wait_later_are_not_waited_for(waiting: Database) -> None:
    threads = [_begin(waiting, "set synchronous_commit = on", "insert into t values (1)")]
    told: list[tuple[InvisibleCommit, ...]] = []

    def on_wait(awaited: tuple[InvisibleCommit, ...]) -> None:
        told.append(awaited)
        if len(told) == 1:
            _release(waiting)
            threads[0].join()
            _set(waiting)
            threads.append(
                _begin(waiting, "set synchronous_commit = on", "insert into t values (2)")
            )

    holder = take_snapshot(connecting(waiting), 100, [], on_wait=on_wait)
    holder.close()
    _release(waiting)
    threads[1].join()

    assert len(told) == 1


@pytest.mark.meets("H2")
def test_a_user_who_cannot_see_waits_is_told_the_grant(waiting: Database) -> None:
    role = waiting.role("login")
    unseeing = partial(connect, PostgresOptions("test", waiting.dsn_as(role)))

    with pytest.raises(NotPermitted) as caught:
        take_snapshot(unseeing, 100, [])

    assert "pg_read_all_stats" in caught.value.remedy
    waiting.execute(f"grant pg_read_all_stats to {role}")
    take_snapshot(unseeing, 100, []).close()
