"""What a server keeps for a slot, measured on a real one; and a slot that is never lost."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from headrace.capture.postgres.connection import connect
from headrace.capture.postgres.definition import postgres
from headrace.capture.postgres.options import WAL_BUDGET, PostgresOptions, options_of
from headrace.capture.postgres.server import wal_usage
from headrace.capture.postgres.server.wal_usage import MOST_SAMPLES, Meter, wal_folder
from headrace.capture.source import LEAST_LIMIT, Room
from headrace.embedded.postgres import PostgresServer
from headrace.engine.engine import Engine
from headrace.errors import SetAside, SourceRefused
from headrace.pipeline.definition import Pipeline
from headrace.targets.memory import memory
from headrace.testing.target import ScriptedTarget
from tests.postgres.servers import Database, fresh_database, wait_until
from tests.support.arrow_runner import ArrowRunner
from tests.support.clock import Clock
from tests.support.patience import patience

PATIENCE = patience()
MEGABYTE = 1 << 20


class Slot:
    """A slot of the server, that nobody reads from."""

    def __init__(self, database: Database, name: str = "room") -> None:
        self.database = database
        self.name = name
        database.value("select 1 from pg_create_logical_replication_slot(%s, 'pgoutput')", name)
        options: PostgresOptions = options_of("shop", {"connection": database.dsn}, "here")
        self.connection: psycopg.Connection[Any] = connect(options)

    def meter(self, budget: int | None = None, clock: Clock | None = None) -> Meter:
        return Meter(self.name, budget, clock or Clock())

    def measure(self, budget: int | None = None, read: int | None = None) -> Room:
        room = self.meter(budget).measure(self.connection, self.written if read is None else read)
        assert room is not None
        return room

    @property
    def written(self) -> int:
        return int(self.database.value("select (pg_current_wal_lsn() - '0/0')::int8"))


@pytest.fixture
def slot(database: Database) -> Iterator[Slot]:
    made = Slot(database)
    yield made
    made.connection.close()


def write(database: Database, megabytes: int) -> None:
    """Let the server's log grow by about so much, with nothing that anybody reads."""
    for _ in range(megabytes):
        database.execute("select pg_logical_emit_message(false, 'x', repeat('x', 1048576))")
    # A commit is written out at once, and with it what was before.
    database.execute("select pg_logical_emit_message(true, 'x', 'x')")


@pytest.mark.meets("R28", "R4")
def test_what_is_kept_grows_with_what_is_written(slot: Slot) -> None:
    before = slot.measure()
    write(slot.database, 4)
    after = slot.measure()
    assert 4 * MEGABYTE <= after.used - before.used < 5 * MEGABYTE
    assert after.unacknowledged <= after.used
    assert after.limit is None
    # All of it could go if what was read were acknowledged; nothing, if nothing was read.
    assert after.used - MEGABYTE < after.ours <= after.unacknowledged
    assert slot.measure(read=0).ours == 0


@pytest.mark.meets("R28")
def test_where_the_server_has_no_limit_the_budget_is_it(slot: Slot) -> None:
    assert slot.measure(budget=77).limit == 77


@pytest.mark.meets("R28")
@pytest.mark.parametrize("own_server", [{"max_slot_wal_keep_size": "64MB"}], indirect=True)
def test_the_limit_is_the_servers_where_it_has_one(own_server: PostgresServer) -> None:
    with fresh_database(own_server) as database:
        slot = Slot(database)
        first = slot.measure(budget=77)
        write(database, 8)
        second = slot.measure(budget=77)
        slot.connection.close()
    assert first.limit == second.limit
    assert first.limit is not None
    # Whole segments, and the one that is being written.
    assert 64 * MEGABYTE <= first.limit <= 96 * MEGABYTE


@pytest.mark.meets("R4", "R28")
def test_a_transaction_that_is_older_than_what_we_hold_is_named(slot: Slot) -> None:
    meter = Meter(slot.name, None, time.monotonic, every=0)

    def measure() -> Room:
        room = meter.measure(slot.connection, slot.written)
        assert room is not None
        return room

    measure()
    older = slot.database.connect(autocommit=False)
    older.execute("create table secret_plans (id int)")
    measure()
    write(slot.database, 20)
    room = measure()
    # However much we acknowledged, the server would keep it.
    assert room.oldest.startswith(f"transaction of pid {older.info.backend_pid}, ")
    assert "secret" not in room.oldest
    assert room.ours < MEGABYTE
    older.rollback()
    younger = slot.database.connect(autocommit=False)
    younger.execute("create table secret_plans (id int)")
    write(slot.database, 4)
    room = measure()
    assert room.oldest == ""
    assert room.ours > 19 * MEGABYTE
    younger.rollback()


@pytest.mark.meets("R4")
def test_a_prepared_transaction_has_no_session(slot: Slot) -> None:
    other = slot.database.connect()
    other.execute("begin; create table secret_plans (id int); prepare transaction 'secret'")
    write(slot.database, 20)
    clock = Clock()
    meter = slot.meter(clock=clock)
    meter._times, meter._ends = [clock.now], [0]
    room = meter.measure(slot.connection, slot.written)
    assert room is not None
    assert room.oldest.startswith("prepared transaction, ")
    assert "secret" not in room.oldest
    other.execute("rollback prepared 'secret'")


@pytest.mark.meets("R28")
def test_the_server_is_asked_now_and_then(slot: Slot) -> None:
    clock = Clock()
    meter = slot.meter(clock=clock)
    assert meter.measure(slot.connection, 0) is not None
    assert meter.measure(slot.connection, 0) is None
    clock.now += 5
    assert meter.measure(slot.connection, 0) is not None


@pytest.mark.meets("R28")
def test_what_cannot_be_measured_is_no_error(slot: Slot) -> None:
    assert Meter("nobodys", None, Clock()).measure(slot.connection, 0) is None
    slot.connection.close()
    assert slot.meter().measure(slot.connection, 0) is None


@pytest.mark.meets("R28")
def test_a_standby_is_measured_by_what_it_has_received(own_server: PostgresServer) -> None:
    database = Database(own_server, "followed")
    database.create()
    if own_server.version >= 16:
        Slot(database).connection.close()
    else:
        # Older ones have no slots for logical decoding while they follow.
        database.value("select pg_create_physical_replication_slot('room', true)")
    write(database, 4)
    for each in database._opened:
        each.close()
    own_server.stop()
    (own_server.data / "standby.signal").touch()
    own_server.start()
    options = options_of("shop", {"connection": database.dsn}, "here")
    with connect(options) as connection:
        assert connection.execute("select pg_is_in_recovery()").fetchone() == (True,)
        room = Meter("room", None, Clock()).measure(connection, 0)
    assert room is not None
    assert 4 * MEGABYTE <= room.used < 32 * MEGABYTE


def test_what_is_remembered_of_the_log_is_bounded() -> None:
    clock = Clock()
    meter = Meter("room", None, clock)
    for number in range(5 * MOST_SAMPLES):
        clock.now += 1
        meter._note(number)
    assert len(meter._times) == len(meter._ends) <= MOST_SAMPLES
    assert meter._written_at(0) <= meter._ends[0]
    assert meter._written_at(clock.now + 1) == 5 * MOST_SAMPLES - 1


def test_a_budget_that_holds_nothing_is_refused() -> None:
    with pytest.raises(SourceRefused):
        postgres("host=nowhere dbname=x", wal_budget=1)
    source = postgres("host=nowhere dbname=x", wal_budget=1 << 30)
    assert source.options.wal_budget == 1 << 30


@pytest.mark.meets("R28")
def test_a_budget_is_set_unless_none_is_wanted() -> None:
    assert postgres("host=nowhere dbname=x").options.wal_budget == WAL_BUDGET
    assert postgres("host=nowhere dbname=x", wal_budget=0).options.wal_budget is None


@pytest.mark.meets("R28")
def test_a_full_disk_of_a_server_on_this_machine_is_a_limit(
    slot: Slot, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Path] = []

    def nearly_full(path: Path) -> int:
        asked.append(path)
        return 100 * MEGABYTE

    monkeypatch.setattr(wal_usage, "free_bytes", nearly_full)
    room = slot.measure(budget=1 << 30)

    assert room.limit == room.used + 100 * MEGABYTE
    assert asked == [Path(slot.database.value("show data_directory"), "pg_wal")]
    assert slot.measure(budget=None).limit is None
    monkeypatch.setattr(wal_usage, "free_bytes", lambda path: 0)
    assert slot.measure(budget=1 << 30).limit == LEAST_LIMIT


def test_a_folder_of_the_same_name_that_is_another_servers_is_not_measured(
    slot: Slot, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = Path.read_text

    def later(path: Path) -> str:
        lines = read(path).splitlines()
        return "\n".join([*lines[:2], str(int(lines[2]) + 60), *lines[3:]])

    assert wal_folder(slot.connection) is not None
    monkeypatch.setattr(Path, "read_text", later)
    assert wal_folder(slot.connection) is None


@pytest.mark.meets("R28")
def test_the_server_is_asked_more_often_when_there_is_little_room(slot: Slot) -> None:
    clock = Clock()
    meter = slot.meter(1 << 30, clock)
    meter.measure(slot.connection, 0)
    assert meter.due == clock.now + wal_usage.EVERY_SECONDS

    meter = slot.meter(1, clock)
    meter.measure(slot.connection, 0)
    assert meter.due == clock.now + wal_usage.EVERY_SECONDS / wal_usage.HASTE


# -- a slot that is never lost ------------------------------------------------------------


@pytest.mark.ci
@pytest.mark.meets("R28", "R8")
@pytest.mark.parametrize("own_server", [{"max_slot_wal_keep_size": "128MB"}], indirect=True)
def test_a_paused_pipeline_does_not_cost_the_slot(
    own_server: PostgresServer, tmp_path: Path
) -> None:
    with fresh_database(own_server) as database:
        database.execute("create table orders (id bigint primary key, status text)")
        database.execute("insert into orders select n, 'paid' from generate_series(1, 50) n")
        kept, shown = ScriptedTarget(), memory()
        source = postgres(database.dsn, name="shop")
        engine = Engine(
            Pipeline(source, "orders", kept, name="kept"),
            Pipeline(source, "orders", shown, name="shown"),
            data=tmp_path / "data",
            runner=ArrowRunner(),
        )

        def slot(column: str) -> Any:
            return database.value(f"select {column} from pg_replication_slots")

        def fill(until: Any, most: int) -> None:
            """Write, with a checkpoint now and then, until something is so."""
            for written in range(0, most, 4):
                write(database, 4)
                assert slot("wal_status") in ("reserved", "extended")
                if written % 16 == 0:
                    # It removes what nobody holds; and it lists running transactions, without
                    # which a slot does not move.
                    database.execute("checkpoint")
                if until():
                    return

        def is_aside() -> bool:
            return engine.pipeline_info("kept").set_aside is not None

        with engine:
            assert engine.await_ready(PATIENCE)
            engine.pause("kept")
            database.execute("update orders set status = 'sent' where id <= 10")
            wait_until(
                lambda: len([r for r in shown.all() if r["status"] == "sent"]) == 10, PATIENCE
            )
            fill(lambda: slot("safe_wal_size") < 12 * MEGABYTE, 200)
            held = slot("restart_lsn")
            wait_until(is_aside, PATIENCE)
            assert isinstance(engine.pipeline_info("kept").error, SetAside)

            def moved() -> bool:
                database.execute("checkpoint")
                assert slot("wal_status") in ("reserved", "extended", "unreserved")
                return bool(slot("restart_lsn") != held and slot("safe_wal_size") > 64 * MEGABYTE)

            wait_until(moved, PATIENCE)
            assert not engine.is_ready(pipeline="kept")
            assert engine.is_ready(pipeline="shown")
            database.execute("update orders set status = 'lost' where id > 45")
            database.execute("delete from orders where id = 1")
            # As much again as the server may keep: nobody holds it any more.
            for _ in range(10):
                write(database, 16)
                wait_until(moved_on(database), PATIENCE)
            assert slot("wal_status") in ("reserved", "extended")
            room = engine.source_info("shop").room
            assert room is not None
            assert room.limit is not None
            engine.resume("kept")
            assert engine.await_ready(PATIENCE)
            truth = dict(database.rows("select id, status from orders"))

            def equal() -> bool:
                return {row["id"]: row["status"] for row in kept.rows("orders").values()} == truth

            wait_until(equal, PATIENCE)
            info = engine.pipeline_info("kept")
            assert (info.error, info.set_aside, info.state) == (None, None, "live")
            assert engine.source_info("shop").end.epoch == 1


def moved_on(database: Database) -> Any:
    """Return whether the slot has followed, given that the server lists what is running."""

    def moved() -> bool:
        database.execute("checkpoint")
        left = database.value("select safe_wal_size from pg_replication_slots")
        return bool(left > 64 * MEGABYTE)

    return moved
