"""Replication slots on a real server, in every state that one can be brought into."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from headrace.capture.postgres.server import slot as slots
from headrace.capture.postgres.server.slot import SlotState
from headrace.embedded.postgres import PostgresServer
from headrace.errors import NoRoom, NotPermitted, ServerRefused, SlotBusy, SlotRefused
from tests.postgres.servers import Database, fresh_database, wait_until

NAME = "headrace_test_slots"


def replicating(database: Database, **parameters: Any) -> psycopg.Connection[Any]:
    return database.connect(replication="database", **parameters)


def made(database: Database, name: str = NAME, **parameters: Any) -> psycopg.Connection[Any]:
    """Make a slot and return the replication connection."""
    connection = replicating(database, **parameters)
    slots.create(connection, name)
    return connection


def stream(connection: psycopg.Connection[Any], name: str = NAME) -> None:
    """Begin to read from a slot: it is busy from now on."""
    connection.pgconn.send_query(
        f"START_REPLICATION SLOT {name} LOGICAL 0/0"
        " (proto_version '1', publication_names 'none')".encode()
    )
    result = connection.pgconn.get_result()
    assert result is not None
    assert result.status == psycopg.pq.ExecStatus.COPY_BOTH, result.error_message


def state_of(database: Database, name: str = NAME) -> SlotState:
    connection = database.connect()
    oid = database.value("select oid::int8 from pg_database where datname = current_database()")
    return slots.state(slots.find(connection, name), oid)


def test_a_new_slot_comes_with_a_snapshot_of_what_was_committed_before_it(
    database: Database,
) -> None:
    database.execute("create table t (id int primary key)")
    database.execute("insert into t values (1)")
    sender = replicating(database)
    created = slots.create(sender, NAME)
    database.execute("insert into t values (2)")

    with database.connect(autocommit=False) as reader:
        reader.execute("set transaction isolation level repeatable read, read only")
        reader.execute(f"set transaction snapshot '{created.snapshot}'".encode())
        assert reader.execute("select id from t").fetchall() == [(1,)]

    found = slots.find(database.connect(), NAME)
    assert found is not None
    assert found.confirmed == created.consistent
    assert found.restart is not None and found.restart <= created.consistent
    assert (found.plugin, found.database_name) == ("pgoutput", database.name)
    assert (found.temporary, found.active, found.two_phase) == (False, False, False)
    assert state_of(database) is SlotState.USABLE


def test_every_field_that_the_server_has_is_read(database: Database) -> None:
    made(database)
    found = slots.find(database.connect(), NAME)
    assert found is not None
    version = database.connect().info.server_version
    assert found.wal_status == "reserved"
    assert (found.conflicting is not None) == (version >= 160000)
    assert (found.failover is not None) == (version >= 170000)
    assert (found.inactive_since is not None) == (version >= 170000)


def test_a_temporary_slot_ends_with_its_connection(database: Database) -> None:
    sender = replicating(database)
    slots.create(sender, NAME, temporary=True, failover=False)
    assert state_of(database) is SlotState.BUSY
    sender.close()
    wait_until(lambda: state_of(database) is SlotState.ABSENT, what="the slot to go")


def test_a_failover_slot_needs_a_server_that_knows_them(database: Database) -> None:
    sender = replicating(database)
    if sender.info.server_version < 170000:
        with pytest.raises(ServerRefused, match="PostgreSQL 17"):
            slots.create(sender, NAME, failover=True)
        return
    slots.create(sender, NAME, failover=True)
    found = slots.find(database.connect(), NAME)
    assert found is not None and found.failover


@pytest.mark.parametrize("name", ["Shop", "shop-1", "", "a" * 64, 'x" LOGICAL'])
def test_a_name_that_no_slot_can_have_is_refused(database: Database, name: str) -> None:
    with pytest.raises(SlotRefused):
        slots.create(replicating(database), name)


def test_a_name_that_is_taken_is_refused_with_the_statement_that_frees_it(
    database: Database,
) -> None:
    sender = made(database)
    with pytest.raises(SlotRefused) as caught:
        slots.create(sender, NAME)
    assert f"pg_drop_replication_slot('{NAME}')" in caught.value.remedy
    assert slots.identify(sender).database  # the connection is as good as before


def test_a_user_without_the_right_is_told_what_to_run(database: Database) -> None:
    made(database)
    role = database.role("login")
    with pytest.raises(NotPermitted) as caught:
        slots.drop(database.connect(role), NAME)
    assert "REPLICATION" in caught.value.remedy


@pytest.mark.meets("R35")
def test_a_slot_that_somebody_reads_from_is_busy(database: Database) -> None:
    stream(made(database))
    assert state_of(database) is SlotState.BUSY
    with pytest.raises(SlotBusy):
        slots.drop(database.connect(), NAME)


@pytest.mark.meets("R35")
def test_a_slot_of_another_database_is_told_apart(database: Database) -> None:
    with fresh_database(database.server) as other:
        made(other)
        assert state_of(database) is SlotState.OTHER_DATABASE
        found = slots.find(database.connect(), NAME)
        assert found is not None and found.database_name == other.name


@pytest.mark.meets("R35")
def test_a_physical_slot_is_told_apart(database: Database) -> None:
    connection = database.connect()
    connection.execute("select pg_create_physical_replication_slot(%s)", [NAME])
    assert state_of(database) is SlotState.OTHER_PLUGIN
    assert slots.drop(connection, NAME)


@pytest.mark.meets("R35")
def test_a_slot_of_another_plugin_is_told_apart(database: Database) -> None:
    try:
        database.execute("select pg_create_logical_replication_slot(%s, 'test_decoding')", NAME)
    except psycopg.errors.UndefinedFile:
        pytest.skip("this server comes without test_decoding")
    assert state_of(database) is SlotState.OTHER_PLUGIN


@pytest.mark.meets("R35")
@pytest.mark.parametrize(
    "own_server",
    [{"max_slot_wal_keep_size": "1MB", "min_wal_size": "32MB", "max_wal_size": "32MB"}],
    indirect=True,
)
def test_a_slot_whose_log_was_removed_is_lost(own_server: PostgresServer) -> None:
    with fresh_database(own_server) as database:
        made(database).close()
        connection = database.connect()
        kept = slots.find(connection, NAME)
        assert kept is not None and kept.safe_wal_size is not None
        for _ in range(4):
            database.rows("select pg_switch_wal()")
            database.execute("create table x (); drop table x")
        database.execute("checkpoint")
        assert state_of(database) is SlotState.LOST


@pytest.mark.meets("R35")
def test_a_slot_that_was_idle_for_too_long_is_invalidated(own_server: PostgresServer) -> None:
    if own_server.version < 18:
        pytest.skip("idle_replication_slot_timeout came with PostgreSQL 18")
    own_server.settings["idle_replication_slot_timeout"] = "1s"
    own_server.restart()
    with fresh_database(own_server) as database:
        made(database).close()

        def looked_at() -> bool:
            database.execute("checkpoint")
            return state_of(database) is SlotState.INVALIDATED

        wait_until(looked_at, what="the server to give the slot up")
        found = slots.find(database.connect(), NAME)
        assert found is not None and found.invalidation == "idle_timeout"


@pytest.mark.meets("R35")
@pytest.mark.parametrize("own_server", [{"max_replication_slots": "1"}], indirect=True)
def test_a_server_without_a_slot_left_says_so(own_server: PostgresServer) -> None:
    with fresh_database(own_server) as database:
        sender = made(database)
        with pytest.raises(NoRoom):
            slots.create(sender, "headrace_second")


@pytest.mark.parametrize("own_server", [{"wal_level": "replica"}], indirect=True)
def test_a_server_that_does_not_log_enough_says_so(own_server: PostgresServer) -> None:
    with fresh_database(own_server) as database, pytest.raises(ServerRefused) as caught:
        slots.create(replicating(database), NAME)
    assert "wal_level = logical" in caught.value.remedy


def test_dropping_says_whether_there_was_one(database: Database) -> None:
    connection = database.connect()
    made(database)
    assert slots.drop(connection, NAME)
    assert not slots.drop(connection, NAME)


def test_a_slot_that_cannot_be_dropped_names_the_process_that_reads_from_it(
    database: Database,
) -> None:
    reader = made(database)
    stream(reader)
    with pytest.raises(SlotBusy) as caught:
        slots.drop(database.connect(), NAME)
    pid = reader.info.backend_pid
    assert caught.value.facts == {"slot": NAME, "pid": pid}
    assert f"process {pid}" in caught.value.message
    assert f"process {pid}" in caught.value.remedy


def test_slots_of_ours_that_nobody_reads_are_left_over(database: Database) -> None:
    made(database, "headrace_left_over")
    stream(made(database, "headrace_read"), "headrace_read")
    slots.create(replicating(database), "headrace_temporary", temporary=True)
    made(database, "others")
    found = slots.leftovers(database.connect())
    assert [slot.name for slot in found if slot.database_name == database.name] == [
        "headrace_left_over"
    ]


@pytest.mark.meets("R31")
def test_our_own_dead_reader_is_ended(database: Database) -> None:
    dead = made(database, application_name="headrace shop 1a2b")
    stream(dead)
    connection = database.connect()
    assert slots.release(connection, NAME, "headrace shop 1a2b")
    assert state_of(database) is SlotState.USABLE
    assert not slots.release(connection, NAME, "headrace shop 1a2b")
    assert not slots.release(connection, "headrace_not_there", "headrace")


@pytest.mark.meets("R31")
def test_a_reader_that_is_not_ours_is_left_alone(database: Database) -> None:
    theirs = made(database, application_name="other headrace shop")
    stream(theirs)
    with pytest.raises(SlotBusy) as caught:
        slots.release(database.connect(), NAME, "headrace shop")
    assert caught.value.facts["pid"] == theirs.info.backend_pid
    assert state_of(database) is SlotState.BUSY


@pytest.mark.meets("R31")
def test_a_reader_of_ours_that_we_may_not_end_is_named(database: Database) -> None:
    theirs = made(database, application_name="headrace shop")
    stream(theirs)
    with pytest.raises(NotPermitted) as caught:
        slots.release(database.connect(database.role("login replication")), NAME, "headrace shop")
    assert f"pg_terminate_backend({theirs.info.backend_pid})" in caught.value.remedy


@pytest.mark.meets("R2")
def test_the_server_says_who_it_is(database: Database) -> None:
    identity = slots.identify(replicating(database))
    system, timeline, oid = database.rows(
        "select s.system_identifier::text, c.timeline_id, d.oid::int8"
        " from pg_control_system() s, pg_control_checkpoint() c, pg_database d"
        " where d.datname = current_database()"
    )[0]
    assert (identity.system, identity.timeline, identity.database) == (system, timeline, oid)
    before = database.value("select (pg_current_wal_flush_lsn() - '0/0')::int8")
    assert 0 < identity.flushed <= before


@pytest.mark.meets("R2")
def test_the_end_of_a_timeline_is_read_from_a_server_that_was_promoted(
    own_server: PostgresServer,
) -> None:
    with fresh_database(own_server) as database:
        sender = replicating(database)
        before = slots.identify(sender)
        assert slots.timeline_history(sender, before.timeline) == ()
        sender.close()
        own_server.stop()
        (own_server.data / "recovery.signal").touch()
        own_server.settings["restore_command"] = "false"
        own_server.start()
        wait_until(lambda: not database.value("select pg_is_in_recovery()"), what="promotion")
        sender = replicating(database)
        after = slots.identify(sender)
        assert (after.system, after.database) == (before.system, before.database)
        assert after.timeline == before.timeline + 1
        [switch] = slots.timeline_history(sender, after.timeline)
        assert switch.timeline == before.timeline
        assert before.flushed <= switch.at <= after.flushed
