"""A primary that is lost, and the standby that takes its place (R35): two real servers."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from headrace.capture.postgres.definition import postgres
from headrace.capture.postgres.server import slot
from headrace.capture.postgres.server.preflight import examine
from headrace.capture.postgres.source import PostgresSource
from headrace.changelog.reader import LogReader
from headrace.embedded.binaries import fetched, server_account
from headrace.embedded.postgres import PostgresServer
from headrace.engine.engine import Engine
from headrace.pipeline.definition import Pipeline
from headrace.storage.disk import RealDisk
from headrace.storage.files import Files
from headrace.targets.memory import IndexedMemory, memory
from tests.postgres.servers import wait_until
from tests.support.arrow_runner import ArrowRunner
from tests.support.patience import patience

pytestmark = [pytest.mark.server, pytest.mark.ci]

PATIENCE = patience(90)
STANDBY = "standby"
"""The slot by which the standby follows."""

SLOT = "headrace_shop"


class Pair:
    """A primary, a standby that follows it, and engines that follow whichever is written to."""

    def __init__(self, major: int, folder: Path, stack: ExitStack, *, waits: bool) -> None:
        binaries = fetched(major)
        self.folder = folder
        self.memory: IndexedMemory = memory()
        self.primary = PostgresServer(version=major, binaries=binaries)
        self.standby = PostgresServer(version=major, binaries=binaries)
        for server in (self.primary, self.standby):
            stack.callback(server.close)
        self.primary.start()
        self.run(self.primary, "create table orders (id bigint primary key, note text)")
        self.run(self.primary, "insert into orders select n, 'old' from generate_series(1, 50) n")
        self.run(self.primary, f"select pg_create_physical_replication_slot('{STANDBY}', true)")
        self.primary.stop()
        self._double()
        if waits:
            self.primary.settings["synchronized_standby_slots"] = STANDBY
        self.primary.start()
        self.standby.settings |= {
            "primary_conninfo": f"{self.primary.dsn} application_name={STANDBY}",
            "primary_slot_name": STANDBY,
            "hot_standby_feedback": "on",
            "sync_replication_slots": "on",
            "wal_receiver_status_interval": "1s",
            "wal_retrieve_retry_interval": "100ms",
        }
        self.standby.start()
        self.written = self.primary

    @property
    def dsn(self) -> str:
        ports = f"{self.primary.port},{self.standby.port}"
        return (
            f"host=127.0.0.1,127.0.0.1 port={ports} user=postgres dbname=postgres"
            " target_session_attrs=read-write"
        )

    def source(self) -> PostgresSource:
        return postgres(self.dsn, name="shop", slot_name=SLOT, failover=True)

    def engine(self) -> Engine:
        """Return an engine of a new life: what was in memory is gone."""
        self.memory = memory()
        return Engine(
            Pipeline(self.source(), "orders", self.memory, name="orders"),
            data=self.folder / "data",
            runner=ArrowRunner(),
            recorder="thread",
        )

    def run(self, server: PostgresServer, statement: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(server.dsn, autocommit=True) as connection:
            found = connection.execute(statement.encode())
            return found.fetchall() if found.description else []

    def write(self, *keys: int) -> None:
        for key in keys:
            self.run(self.written, f"insert into orders values ({key}, 'new')")

    def equal(self) -> bool:
        truth = self.run(self.written, "select id, note from orders order by id")
        return truth == sorted((row["id"], row["note"]) for row in self.memory.all())

    def until_equal(self) -> None:
        wait_until(self.equal, PATIENCE, what="target to be as the source is")

    def until_baseline(self, engine: Engine, number: int) -> None:
        wait_until(
            lambda: engine.pipeline_info("orders").tables[0].baseline == number,
            PATIENCE,
            what=f"baseline {number}",
        )

    def until_synced(self) -> None:
        """Wait until the standby would go on with our slot, and has all that the primary has."""
        keys = iter(range(100_000, 200_000))

        def synced() -> bool:
            # A slot moves on with what is written; an idle server lets it stand for long.
            self.write(next(keys))
            self.run(self.primary, "select pg_log_standby_snapshot()")
            return bool(
                self.run(
                    self.standby,
                    f"select 1 from pg_replication_slots where slot_name = '{SLOT}'"
                    " and synced and not temporary and invalidation_reason is null",
                )
            )

        wait_until(synced, PATIENCE, what="the slot on the standby")

    def fail_over(self) -> None:
        """Lose the primary as by a power cut, and let the standby take over."""
        self.primary.kill()
        self.standby.start()
        self.run(self.standby, "select pg_promote()")
        self.written = self.standby

    def log(self) -> LogReader:
        return LogReader.open(Files(RealDisk(), str(self.folder / "data")), "shop")

    def _double(self) -> None:
        """Copy the stopped primary's folder, for a standby to begin with."""
        shutil.copytree(self.primary.data, self.standby.data)
        (self.standby.data / "standby.signal").touch()
        # Slots of a copied folder would keep log for ever.
        for folder in (self.standby.data / "pg_replslot").iterdir():
            shutil.rmtree(folder)
        self.standby.data.chmod(0o700)
        if (account := server_account()) is not None:
            for path in (self.standby.data, *self.standby.data.rglob("*")):
                account.own(path)


@pytest.fixture(params=[17, 18])
def major(request: pytest.FixtureRequest) -> int:
    found: int = request.param
    return found


@pytest.fixture
def safe(major: int, tmp_path: Path) -> Iterator[Pair]:
    """A pair of which the primary sends us nothing that the standby has not got."""
    with ExitStack() as stack:
        yield Pair(major, tmp_path, stack, waits=True)


@pytest.fixture
def hasty(major: int, tmp_path: Path) -> Iterator[Pair]:
    """A pair of which the primary does not wait for the standby."""
    with ExitStack() as stack:
        yield Pair(major, tmp_path, stack, waits=False)


@pytest.mark.meets("R35", "R2")
def test_capture_goes_on_at_the_promoted_standby_and_nothing_is_lost(safe: Pair) -> None:
    with safe.engine() as engine:
        assert engine.await_ready(PATIENCE)
        safe.until_synced()
        safe.until_equal()
        before = engine.source_info("shop").end
        safe.fail_over()
        safe.write(201, 202)
        safe.until_equal()
        assert engine.source_info("shop").end.epoch == before.epoch
        assert engine.pipeline_info("orders").tables[0].baseline == 1
        safe.run(safe.written, "update orders set note = 'changed' where id < 10")
        safe.run(safe.written, "delete from orders where id between 20 and 30")
        safe.until_equal()
    # And once more after it, on the new timeline.
    safe.write(203)
    with safe.engine() as engine:
        assert engine.await_ready(PATIENCE)
        safe.until_equal()
        assert engine.pipeline_info("orders").tables[0].baseline == 1


@pytest.mark.meets("R35", "R2")
def test_an_engine_that_was_away_during_the_failover_goes_on_as_well(safe: Pair) -> None:
    with safe.engine() as engine:
        assert engine.await_ready(PATIENCE)
        safe.until_synced()
        safe.until_equal()
    safe.write(150)
    # Nobody reads, so nobody waits for the standby: it has to have this before.
    written = safe.run(safe.primary, "select pg_current_wal_lsn()::text")[0][0]
    wait_until(
        lambda: (
            safe.run(safe.standby, f"select pg_last_wal_replay_lsn() >= '{written}'::pg_lsn")
            == [(True,)]
        ),
        PATIENCE,
    )
    with psycopg.connect(safe.standby.dsn) as connection:
        assert slot.written(connection) > 0  # a standby has no WAL of its own
    safe.fail_over()
    safe.write(201)
    with safe.engine() as engine:
        assert engine.await_ready(PATIENCE)
        safe.until_equal()
        assert engine.source_info("shop").end.epoch == 1
        assert engine.pipeline_info("orders").tables[0].baseline == 1


@pytest.mark.meets("R35")
def test_nothing_is_sent_to_us_that_the_standby_has_not_got(safe: Pair) -> None:
    with safe.engine() as engine:
        assert engine.await_ready(PATIENCE)
        safe.until_synced()
        safe.until_equal()
        safe.standby.stop("immediate")
        before = engine.source_info("shop").end
        safe.write(201)
        # The recorder lives and its source answers: its lag is told every second.
        with pytest.raises(AssertionError, match="in vain"):
            wait_until(safe.equal, 4)
        assert engine.source_info("shop").end == before
        safe.standby.start()
        safe.until_equal()


@pytest.mark.meets("R35", "R2", "R1")
@pytest.mark.parametrize("away", [False, True], ids=["at work", "away"])
def test_what_the_promoted_server_never_had_begins_a_new_epoch(hasty: Pair, away: bool) -> None:
    with hasty.engine() as engine:
        assert engine.await_ready(PATIENCE)
        hasty.until_synced()
        hasty.until_equal()
        before = engine.source_info("shop").end
        hasty.standby.stop()
        # Recorded, and then lost with the primary.
        hasty.write(201, 202)
        hasty.run(hasty.written, "update orders set note = 'lost' where id < 10")
        hasty.until_equal()
        if not away:
            hasty.fail_over()
            hasty.write(301)
            hasty.until_equal()
            after = engine.source_info("shop").end
            hasty.until_baseline(engine, 2)
    if away:
        hasty.fail_over()
        # So much that the log's end is a place that the new timeline has as well.
        hasty.run(
            hasty.written,
            "insert into orders select n, repeat('x', 500) from generate_series(300, 3000) n",
        )
        with hasty.engine() as engine:
            assert engine.await_ready(PATIENCE)
            hasty.until_equal()
            after = engine.source_info("shop").end
    assert after.epoch == before.epoch + 1
    assert not hasty.run(hasty.written, "select 1 from orders where id in (201, 202)")
    assert str(hasty.log().lineage).endswith("/1")


@pytest.mark.meets("R35")
def test_a_standby_without_our_slot_is_copied_from_and_nothing_is_lost(hasty: Pair) -> None:
    hasty.standby.settings["sync_replication_slots"] = "off"
    hasty.standby.restart()
    with hasty.engine() as engine:
        assert engine.await_ready(PATIENCE)
        hasty.write(201)
        hasty.until_equal()
        wait_until(
            lambda: hasty.run(hasty.standby, "select 1 from orders where id = 201"), PATIENCE
        )
        hasty.fail_over()
        hasty.write(301)
        hasty.until_equal()
        hasty.until_baseline(engine, 2)


@pytest.mark.meets("R35")
def test_the_checks_name_every_setting_that_a_failover_needs(safe: Pair) -> None:
    source = safe.source()

    def named() -> dict[str, str]:
        with closing(psycopg.connect(safe.primary.dsn, autocommit=True)) as connection:
            notes = examine(connection, source.options, ["orders"]).notes
        return {note.setting: note.remedy for note in notes}

    def settled() -> bool:
        # Feedback comes a second after the standby has connected.
        return "hot_standby_feedback" not in named()

    wait_until(settled, PATIENCE)
    assert "synchronized_standby_slots" not in named()
    assert "sync_replication_slots = on" in named()["sync_replication_slots"]
    safe.standby.stop()
    safe.standby.settings["hot_standby_feedback"] = "off"
    safe.standby.start()
    wait_until(lambda: "hot_standby_feedback" in named(), PATIENCE)
    safe.primary.settings["synchronized_standby_slots"] = ""
    safe.primary.restart()
    found = named()
    assert f"synchronized_standby_slots = '{STANDBY}'" in found["synchronized_standby_slots"]
