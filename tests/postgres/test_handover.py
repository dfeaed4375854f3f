"""Between the publication, the slot, the log and the copies: each step may be the last one."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.capture.messages import BaselineProgress, CopyDone, CopyPlanned, Failed, TakeBaseline
from headrace.capture.postgres.copy import snapshot
from headrace.capture.postgres.copy.snapshot import InvisibleCommit, take_snapshot
from headrace.capture.postgres.server import publication, slot
from headrace.capture.postgres.server.publication import Writers
from headrace.errors import SourceUnreachable
from tests.postgres.copies import connecting
from tests.postgres.recording import Recording
from tests.postgres.servers import Database
from tests.support.patience import patience


@pytest.fixture
def shop(database: Database, recording: Recording) -> Recording:
    database.execute("create table orders (id bigint primary key, note text)")
    database.execute("create table clients (id bigint primary key, name text)")
    database.execute("insert into orders values (1, 'a'); insert into clients values (1, 'a')")
    return recording


@pytest.mark.meets("R1", "R13", "H2")
def test_a_table_that_comes_back_is_copied_even_if_we_die_right_after_publishing_it(
    shop: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.live("orders", "clients")
    shop.streaming()
    shop.copy("orders")
    shop.copy("clients")
    shop.live("orders")
    shop.streaming()
    shop.database.execute("insert into clients values (2, 'unseen')")

    shop.live("orders", "clients")
    ensure = publication.ensure

    def killed(*arguments: object) -> object:
        ensure(*arguments)  # type: ignore[arg-type]
        raise SourceUnreachable("killed")

    monkeypatch.setattr(publication, "ensure", killed)
    shop.until(lambda: shop.recorder._connected)
    shop.reports += shop.recorder.step([], 0.05)
    monkeypatch.undo()

    shop.live("orders", "clients")
    shop.streaming()
    assert shop.baseline("clients") is None
    shop.copy("clients")
    [file] = shop.log.usable_baseline("clients").files  # type: ignore[union-attr]
    assert file.rows == 2


@pytest.mark.meets("R13", "H2")
def test_who_wrote_a_table_before_it_was_published_is_waited_for_while_changes_go_on(
    shop: Recording,
) -> None:
    shop.live("orders")
    shop.streaming()
    writer = shop.database.connect(autocommit=False)
    writer.execute("insert into clients values (2, 'before')")

    shop.live("orders", "clients")
    shop.streaming()
    shop.reports += shop.recorder.step([TakeBaseline("clients")], 0.05)
    shop.live("orders", "clients")  # who comes after knows nothing of the wait, and waits
    shop.streaming()
    shop.reports += shop.recorder.step([TakeBaseline("clients")], 0.05)
    shop.database.execute("insert into orders values (7, 'meanwhile')")
    shop.until(lambda: shop.log.counts().rows == 1)
    assert shop.baseline("clients") is None

    writer.commit()
    shop.until(lambda: shop.baseline("clients"))
    [file] = shop.log.usable_baseline("clients").files  # type: ignore[union-attr]
    assert file.rows == 2


@pytest.mark.meets("R2", "R35")
def test_a_publication_that_was_away_is_a_gap_and_reading_goes_on(shop: Recording) -> None:
    shop.follow("orders")
    shop.live("orders")
    shop.database.execute(f"drop publication {shop.source.options.publication}")
    shop.database.execute("insert into orders values (2, 'unsent')")
    shop.streaming()
    assert shop.baseline("orders") is None
    shop.copy("orders")
    shop.database.execute("insert into orders values (3, 'sent')")
    shop.until(lambda: shop.log.counts().rows == 1)


@pytest.mark.meets("R23b")
def test_a_column_that_was_added_while_nobody_read_makes_a_baseline_useless(
    shop: Recording,
) -> None:
    shop.live("orders", "clients")
    shop.streaming()
    shop.copy("orders")
    shop.database.execute("alter table orders add state double precision default random()")
    shop.live("orders", "clients")
    shop.streaming()
    assert shop.baseline("orders") is None


@pytest.mark.meets("R23b")
def test_what_the_stream_does_not_tell_of_is_noticed(
    shop: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.capture.postgres.server.ddl_watch.WATCH_SECONDS", 0.0)
    shop.follow("orders")
    shop.database.execute(f"alter publication {shop.source.options.publication} drop table orders")
    shop.until(lambda: shop.baseline("orders") is None)
    shop.streaming()
    shop.copy("orders")
    shop.database.execute("alter table orders rename to orders_before")
    shop.database.execute("create table orders (id bigint primary key, note text)")
    shop.until(lambda: shop.baseline("orders") is None)
    shop.streaming()
    shop.copy("orders")
    shop.database.execute("alter table orders add state double precision default random()")
    shop.until(lambda: shop.baseline("orders") is None)


@pytest.mark.meets("R23")
def test_another_key_under_the_same_kind_of_identity_is_noticed(shop: Recording) -> None:
    shop.database.execute("alter table orders add other bigint not null default 0")
    shop.database.execute("update orders set other = id")
    shop.live("orders")
    shop.streaming()
    shop.source._watch = None  # the stream alone has to tell
    shop.database.execute("alter table orders drop constraint orders_pkey, add primary key (other)")
    shop.database.execute("delete from orders where id = 1")
    shop.until(lambda: shop.log.counts().rows == 1)
    assert shop.log.schema("orders").key == ("other",)


@pytest.mark.meets("H1")
def test_a_slot_with_a_name_of_the_users_is_ours_when_we_made_it_a_moment_before(
    shop: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.live("orders", slot_name="mine")

    def broken(*arguments: object) -> None:
        raise SourceUnreachable("No more connections")

    monkeypatch.setattr(snapshot, "import_snapshot", broken)
    shop.until(lambda: shop.database.rows("select 1 from pg_replication_slots"))
    monkeypatch.undo()
    shop.streaming()
    assert not [report for report in shop.reports if isinstance(report, Failed)]


@pytest.mark.meets("R31")
def test_a_dead_reader_of_a_slot_with_a_long_name_is_ended(shop: Recording) -> None:
    shop.live("orders", slot_name="s" * 63)
    shop.streaming()
    dead = shop.source
    del shop.source
    try:
        shop.live("orders", slot_name="s" * 63)
        shop.streaming()
    finally:
        dead.close()


@pytest.mark.meets("R20", "H4")
def test_the_answer_to_a_plan_of_a_recorder_before_is_of_no_use(
    shop: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.capture.postgres.copy.ranges.RANGE_BYTES", 4096)
    shop.database.execute(
        "insert into orders select n, repeat('x', 900) from generate_series(2, 50) n"
    )
    plans = []
    for _ in range(2):
        shop.live("orders")
        shop.streaming()
        shop.reports.clear()
        shop.reports += shop.recorder.step([TakeBaseline("orders", shared=True)], 0.05)
        shop.until(lambda: [r for r in shop.reports if isinstance(r, CopyPlanned)])
        plans += [r for r in shop.reports if isinstance(r, CopyPlanned)]
    stale, fresh = plans
    assert stale.stem != fresh.stem
    shop.reports += shop.recorder.step([CopyDone("orders", stale.stem, ())], 0.05)
    assert shop.baseline("orders") is None
    assert not shop.recorder.done
    shop.reports += shop.recorder.step([CopyDone("orders", fresh.stem, ())], 0.05)
    shop.until(lambda: shop.baseline("orders") == 1)
    progress = [r for r in shop.reports if isinstance(r, BaselineProgress) and not r.waits]
    assert [r.done for r in progress] == [True]


@pytest.mark.meets("R23b")
def test_a_default_that_was_computed_and_taken_back_at_once_is_noticed(shop: Recording) -> None:
    run = shop.database.execute
    run("create table t (id bigint primary key); insert into t values (1)")
    shop.follow("t")
    shop.die()
    run("alter table t add column c uuid default gen_random_uuid()")
    run("alter table t alter c drop default")
    shop.live("t")
    shop.streaming()
    assert shop.baseline("t") is None


@pytest.mark.meets("R23b")
def test_what_older_rows_have_is_remembered_though_the_table_is_written_anew(
    shop: Recording,
) -> None:
    run = shop.database.execute
    run("create table t (id bigint primary key); insert into t values (1)")
    shop.follow("t")
    run("alter table t add column c int default 5")
    run("insert into t values (2)")
    shop.until(lambda: shop.log.counts().rows == 1)
    run("vacuum full t")
    run("alter table t add column d int")
    run("insert into t values (3)")
    shop.until(lambda: shop.log.counts().rows == 2)
    assert shop.log.schema("t").column("c").missing == "5"


@pytest.mark.meets("R1", "PG-10")
def test_a_table_that_was_out_of_somebodys_publication_is_copied_again(shop: Recording) -> None:
    run = shop.database.execute
    run("create table t (id bigint primary key); insert into t values (1)")
    run("create publication theirs for table t with (publish_via_partition_root = true)")
    theirs: dict[str, object] = {"publication": "theirs", "create_publication": False}
    shop.follow("t", **theirs)
    shop.die()
    run("alter publication theirs drop table t")
    run("insert into t values (2)")
    run("alter publication theirs add table t")
    shop.live("t", **theirs)
    shop.streaming()
    owed = shop.log.rebaseline_required("t")
    assert owed is not None
    assert owed.missing
    assert shop.baseline("t") is None


@pytest.mark.meets("R1")
def test_missing_changes_are_noted_also_where_there_is_no_baseline(shop: Recording) -> None:
    run = shop.database.execute
    run("create table a (id bigint primary key); create table b (id bigint primary key)")
    shop.live("a", "b")
    shop.streaming()
    run("insert into b values (1)")
    shop.until(lambda: shop.log.counts().rows == 1)
    shop.live("a")
    shop.streaming()
    run("insert into b values (2)")
    shop.live("a", "b")
    shop.streaming()
    owed = shop.log.rebaseline_required("b")
    assert owed is not None
    assert owed.missing
    assert shop.log.rebaseline_required("a") is None


def test_a_copy_begins_on_a_quiet_server_whose_log_was_just_switched(
    shop: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.database.execute("create table t (id bigint primary key); insert into t values (1)")
    shop.follow("t")
    shop.die()
    written = slot.written

    def switched(query: Any) -> int:
        query.execute("select pg_switch_wal()")
        return written(query)

    monkeypatch.setattr(slot, "written", switched)
    shop.live("t")
    shop.streaming()
    shop.copy("t")


@pytest.mark.meets("R19", "PG-09")
def test_a_table_left_out_of_a_life_is_copied_again_in_a_publication_of_ones_own(
    shop: Recording,
) -> None:
    run = shop.database.execute
    shop.die()
    run("create table ledger (id bigint primary key, n bigint)")
    run("create table others (id bigint primary key, n bigint)")
    run("insert into ledger values (1, 1)")
    run("create publication mine for table ledger, others")
    own = {"publication": "mine", "create_publication": False}
    data = shop.data / "own"
    owner = Recording(shop.database, data)
    try:
        owner.live("ledger", "others", **own)
        owner.copy("ledger")
        owner.live("others", **own)
        owner.streaming()
        run("delete from ledger")
        run("insert into others values (1, 1)")
        owner.until(lambda: owner.log.counts().rows == 1)
        owner.live("ledger", "others", **own)
        owner.until(lambda: owner.log.rebaseline_required("ledger") is not None)
        assert owner.baseline("ledger") is None
    finally:
        owner.die()


def test_who_comes_later_to_a_table_is_not_waited_for(database: Database) -> None:
    database.execute("create table orders (id int)")
    oid = database.value("select 'orders'::regclass::oid::int8")
    first, later = database.connect(autocommit=False), database.connect(autocommit=False)
    first.execute("insert into orders values (1)")
    connection, writers = database.connect(), Writers()
    assert [found.pid for found in writers.left(connection, [oid])] == [first.info.backend_pid]
    later.execute("insert into orders values (2)")
    first.commit()
    assert writers.left(connection, [oid]) == []


@pytest.mark.meets("R11", "H2")
def test_after_a_new_beginning_whoever_writes_may_be_a_commit_that_the_log_has(
    database: Database,
) -> None:
    writer = database.connect()
    writer.execute("begin")
    xid = int(writer.execute("select pg_current_xact_id()::text").fetchone()[0])  # type: ignore[index]
    told: list[tuple[InvisibleCommit, ...]] = []

    def on_wait(awaited: tuple[InvisibleCommit, ...]) -> None:
        told.append(awaited)
        if len(told) == 2:
            writer.execute("commit")

    holder = take_snapshot(connecting(database), 100, [], unsure=patience(), on_wait=on_wait)
    holder.close()
    assert holder.snapshot.sees(xid)
    assert [[one.xid for one in awaited] for awaited in told] == [[xid], [xid]]


def test_a_transaction_that_stays_open_is_not_waited_for_longer_than_that(
    database: Database,
) -> None:
    writer = database.connect()
    writer.execute("begin")
    writer.execute("select pg_current_xact_id()")
    times = iter(range(100))
    holder = take_snapshot(
        connecting(database), 100, [], unsure=3, pause=lambda _: None, clock=lambda: next(times)
    )
    holder.close()
    assert next(times) <= 6
