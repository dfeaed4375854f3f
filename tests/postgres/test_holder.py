"""A holder's snapshot sees every commit that the log has, and lives as long as it is needed."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest

from headrace.capture.postgres.connection import connect
from headrace.capture.postgres.copy.ranges import ranges
from headrace.capture.postgres.copy.reader import PostgresCopy, read_range
from headrace.capture.postgres.copy.snapshot import (
    InvisibleCommit,
    TransactionSnapshot,
    import_snapshot,
    record_end,
    take_snapshot,
    visible,
)
from headrace.capture.postgres.options import PostgresOptions
from headrace.capture.postgres.position import parse_lsn
from headrace.capture.postgres.server import slot
from headrace.errors import BadMessage, SourceUnreachable
from tests.postgres.copies import connecting, holding, known, sessions, values
from tests.postgres.servers import Database, wait_until


@pytest.mark.meets("R11")
def test_a_snapshot_sees_what_had_ended() -> None:
    snapshot = TransactionSnapshot.parse("739:742:739,741")

    assert [visible(xid, snapshot) for xid in range(738, 744)] == [
        True,
        False,
        True,
        False,
        False,
        False,
    ]


@pytest.mark.parametrize("text", ["1:1:", "5:9:5,7", "8589934592:8589934600:8589934599"])
def test_a_snapshot_is_written_as_it_was_read(text: str) -> None:
    assert str(TransactionSnapshot.parse(text)) == text


@pytest.mark.parametrize("text", ["", "1:2", "1:2:x", "1:2:3,", "-1:2:", "1:2:\n"])
def test_a_text_that_is_no_snapshot_is_refused(text: str) -> None:
    with pytest.raises(BadMessage):
        TransactionSnapshot.parse(text)


def _xid(connection: psycopg.Connection[Any]) -> int:
    found = connection.execute("select pg_current_xact_id()::text::bigint").fetchone()
    assert found is not None
    return int(found[0])


def _end(database: Database) -> int:
    return parse_lsn(database.value("select pg_current_wal_insert_lsn()::text"))


def test_a_snapshot_tells_running_transactions_from_ended_ones(database: Database) -> None:
    running, ended = database.connect(), database.connect()
    running.execute("begin")
    open_one = _xid(running)
    done = _xid(ended)
    with holding(database) as holder:
        late = _xid(ended)

        assert holder.snapshot.sees(done)
        assert not holder.snapshot.sees(open_one)
        assert not holder.snapshot.sees(late)


def test_the_end_of_the_window_is_read_after_the_snapshot(database: Database) -> None:
    before = _end(database)
    holder = take_snapshot(connecting(database), before, [])
    try:
        assert holder.first == before
        assert before <= holder.last <= _end(database)
    finally:
        holder.close()


@pytest.mark.meets("R11", "H2")
def test_a_snapshot_without_a_commit_that_the_log_has_is_taken_again(database: Database) -> None:
    # As after its commit was streamed, and before anybody sees it.
    writer = database.connect()
    writer.execute("begin")
    xid = _xid(writer)
    told: list[tuple[InvisibleCommit, ...]] = []

    def on_wait(awaited: tuple[InvisibleCommit, ...]) -> None:
        told.append(awaited)
        if len(told) == 3:
            writer.execute("commit")

    holder = take_snapshot(
        connecting(database), 100, [(90, 3), (100, xid), (101, 2**40)], on_wait=on_wait
    )
    try:
        assert holder.snapshot.sees(xid)
    finally:
        holder.close()

    assert len(told) == 3
    [awaited] = told[0]
    assert (awaited.xid, awaited.pid, awaited.user) == (xid, writer.info.backend_pid, "postgres")
    assert awaited.seconds is not None
    assert not awaited.synchronous


def test_commits_after_the_first_need_not_be_seen(database: Database) -> None:
    holder = take_snapshot(connecting(database), 100, [(101, 2**40)], timeout=0)
    holder.close()


def test_waiting_for_a_commit_can_be_limited(database: Database) -> None:
    pauses: list[float] = []
    times = iter(range(100))

    with pytest.raises(SourceUnreachable, match="did not become visible"):
        take_snapshot(
            connecting(database),
            100,
            [(100, 2**40)],
            timeout=4,
            pause=pauses.append,
            clock=lambda: float(next(times)),
        )

    assert len(pauses) == 3
    assert pauses == sorted(set(pauses))
    wait_until(lambda: sessions(database) == 0, what="sessions to end")


@pytest.mark.meets("R14", "H1")
def test_the_snapshot_of_a_new_slot_outlives_what_the_slot_does_next(database: Database) -> None:
    database.execute("create table t (id int primary key)")
    database.execute("insert into t values (1)")
    options = PostgresOptions("test", database.dsn)
    with connect(options, replication=True) as replication:
        created = slot.create(replication, "held_slot", temporary=True)
        holder = import_snapshot(partial(connect, options), created.snapshot, created.consistent)
        replication.execute("IDENTIFY_SYSTEM")
        database.execute("insert into t values (2)")

        with pytest.raises(SourceUnreachable, match="snapshot no longer exists"):
            import_snapshot(partial(connect, options), created.snapshot, created.consistent)
        copy = PostgresCopy(holder, *known(database, "t"))
        assert copy.first == copy.last == created.consistent
        assert values(copy.schema, copy) == [(1,)]


def test_a_holder_knows_when_its_session_was_ended(database: Database) -> None:
    with holding(database) as holder:
        assert holder.alive
        database.execute(
            "select pg_terminate_backend(pid, 5000) from pg_stat_activity"
            " where state = 'idle in transaction' and datname = current_database()"
        )
        wait_until(lambda: not holder.alive, what="the holder to notice")


def test_a_closed_holder_is_not_alive(database: Database) -> None:
    with holding(database) as holder:
        pass

    assert not holder.alive
    holder.close()


@pytest.mark.meets("R14")
def test_limits_on_idle_sessions_do_not_hold_for_a_holder(database: Database) -> None:
    for limit in ("idle_in_transaction_session_timeout", "statement_timeout"):
        database.execute(f"alter database {database.name} set {limit} = '20ms'")
    with holding(database) as holder:
        database.execute("select pg_sleep(0.2)")
        assert holder.alive
        with holder.connect() as reader:
            reader.execute("select pg_sleep(0.05)")


@pytest.mark.meets("R14", "R15")
def test_a_reader_that_has_begun_outlives_its_holder_and_others_are_refused(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.capture.postgres.copy.reader.BATCH_ROWS", 10)
    database.execute("create table t (id int primary key)")
    database.execute("insert into t select generate_series(1, 1000)")
    table, schema = known(database, "t")
    with holding(database) as holder:
        [part] = ranges(holder, table, schema)
        reader = read_range(holder.connect, part, schema)
        rows = next(reader)[0].num_rows
    wait_until(lambda: sessions(database) == 1, what="the holder's session to end")
    database.execute("delete from t")

    assert rows + sum(batch.num_rows for batch, _ in reader) == 1000
    with pytest.raises(SourceUnreachable, match="snapshot no longer exists"):
        list(read_range(holder.connect, part, schema))


@pytest.mark.meets("R14")
def test_a_snapshot_whose_session_is_ending_no_longer_exists(database: Database) -> None:
    database.execute("create table t (id int primary key)")
    table, schema = known(database, "t")
    with holding(database) as holder:
        [part] = ranges(holder, table, schema)
        exported = Path(database.value("show data_directory"), "pg_snapshots", holder.id)
        kept = exported.read_bytes()
    wait_until(lambda: sessions(database) == 0, what="the holder's session to end")
    # The server removes the file a moment after the transaction has ended.
    exported.write_bytes(kept)
    exported.chmod(0o644)

    with pytest.raises(SourceUnreachable, match="snapshot no longer exists"):
        list(read_range(holder.connect, part, schema))


@pytest.mark.parametrize(
    ("insert", "end"),
    [
        (0x2000018, 0x2000000),
        (0x2000028, 0x2000000),
        (0x2000030, 0x2000030),
        (0x20FF000, 0x20FF000),
    ],
)
def test_at_the_start_of_a_page_the_last_record_ends_before_its_header(
    insert: int, end: int
) -> None:
    assert record_end(insert) == end
