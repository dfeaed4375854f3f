"""What may happen to a server, while an engine follows it or is away: each case by itself."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest

from headrace.capture.postgres.copy import ranges
from headrace.capture.postgres.definition import postgres
from headrace.changelog.reader import LogReader
from headrace.embedded.postgres import PostgresServer
from headrace.engine.engine import Engine
from headrace.pipeline.definition import Pipeline
from headrace.storage import killpoints
from headrace.storage.disk import RealDisk
from headrace.storage.files import Files
from headrace.targets.memory import IndexedMemory, memory
from tests.postgres.servers import (
    Database,
    fresh_database,
    stops_by_itself,
    wait_until,
    without_timeout,
)
from tests.support.arrow_runner import ArrowRunner
from tests.support.file_target import FileTarget
from tests.support.patience import patience
from tests.support.shop import file_rows_at

PATIENCE = patience(90)


@dataclass
class Followed:
    """A database, and engines that follow some of its tables into memory and into a file."""

    database: Database
    folder: Path
    memory: IndexedMemory = field(default_factory=memory)

    def engine(self, *tables: str) -> Engine:
        """Return an engine of a new life: what was in memory is gone."""
        self.memory = memory()
        source = postgres(self.database.dsn, name="shop")
        file = FileTarget(self.folder / "target.db")
        return Engine(
            Pipeline(source, tables=tables, target=file, name="file"),
            Pipeline(source, tables=tables, target=self.memory, name="memory"),
            data=self.folder / "data",
            runner=ArrowRunner(),
            recorder="thread",
        )

    def truth(self, table: str) -> list[tuple[Any, ...]]:
        return sorted(self.database.rows(f"select id, value from {table}"))

    def in_memory(self, table: str) -> list[tuple[Any, ...]]:
        found = self.memory.table(table) if len(self.memory._views) > 1 else self.memory
        return sorted((row["id"], row["value"]) for row in found.all())

    def in_file(self, table: str) -> list[tuple[Any, ...]]:
        rows, _ = file_rows_at(self.folder / "target.db", table)
        return sorted((row["id"], row["value"]) for row in rows.values())

    def equal(self, table: str = "orders") -> bool:
        return self.truth(table) == self.in_memory(table) == self.in_file(table)

    def await_equal(self, *tables: str) -> None:
        for table in tables or ("orders",):
            wait_until(partial(self.equal, table), PATIENCE, what=f"{table} to be equal")

    def await_mark(self, engine: Engine, key: int) -> None:
        """Write a row last of all and wait until both targets have it, and then all."""
        self.database.execute("insert into orders values (%s, 'mark')", key)

        def there() -> bool:
            seen = [row[0] for row in self.in_memory("orders")]
            return key in seen and key in [row[0] for row in self.in_file("orders")]

        wait_until(there, PATIENCE, what="the mark to come")
        assert engine.await_ready(PATIENCE)
        assert self.in_memory("orders") == self.truth("orders")
        assert self.in_file("orders") == self.truth("orders")

    @property
    def log(self) -> LogReader:
        return LogReader.open(Files(RealDisk(), str(self.folder / "data")), "shop")

    def slot(self) -> str:
        return str(self.database.value("select slot_name from pg_replication_slots"))

    def confirmed(self) -> int:
        query = "select (confirmed_flush_lsn - '0/0')::int8 from pg_replication_slots"
        return int(self.database.value(query))


def with_orders(database: Database, folder: Path) -> Followed:
    database.execute("create table orders (id bigint primary key, value text)")
    database.execute("insert into orders select n, 'v' || n from generate_series(1, 60) n")
    return Followed(database, folder)


@pytest.fixture
def followed(database: Database, tmp_path: Path) -> Iterator[Followed]:
    yield with_orders(database, tmp_path)


@pytest.fixture
def alone(own_server: PostgresServer, tmp_path: Path) -> Iterator[Followed]:
    """The same on a server that the test may stop."""
    with fresh_database(own_server) as database:
        yield with_orders(database, tmp_path)
        own_server.start()  # a test that failed may have left it stopped


def at_points(monkeypatch: pytest.MonkeyPatch, call: Callable[[str], bool]) -> list[str]:
    """Call when the recorder's thread comes by a point, until it is done; the point it was at."""
    done: list[str] = []

    def reach(name: str) -> None:
        if not done and call(name):
            done.append(name)

    monkeypatch.setattr(killpoints, "reach", reach)
    return done


@pytest.mark.meets("R13", "H2", "PG-06")
@pytest.mark.parametrize("end", ["commit", "prepared"])
def test_a_table_is_whole_though_a_transaction_wrote_to_it_before_it_was_published(
    followed: Followed, end: str
) -> None:
    database = followed.database
    database.execute("create table late (id bigint primary key, value text)")
    with followed.engine("orders") as engine:
        assert engine.await_ready(PATIENCE)
    writer = database.connect()
    writer.execute("begin")
    writer.execute("insert into late values (1, 'before it was published')")
    with followed.engine("orders", "late") as engine:
        wait_until(
            lambda: database.rows("select 1 from pg_publication_tables where tablename = 'late'"),
            PATIENCE,
            what="the table to be published",
        )
        writer.execute("insert into late values (2, 'after it was published')")
        if end == "commit":
            writer.execute("commit")
        else:
            writer.execute("prepare transaction 'straddling'")
            writer.execute("commit prepared 'straddling'")
        assert engine.await_ready(PATIENCE)
        followed.await_equal("orders", "late")
        # The others went on as if nothing had happened.
        tables = {each.table: each.baseline for each in engine.pipeline_info("file").tables}
        assert tables == {"orders": 1, "late": 2}


@pytest.mark.meets("R13", "H2")
def test_a_new_table_waits_for_who_wrote_to_it_and_others_do_not(followed: Followed) -> None:
    database = followed.database
    database.execute("create table late (id bigint primary key, value text)")
    with followed.engine("orders") as engine:
        assert engine.await_ready(PATIENCE)
    writer = database.connect()
    writer.execute("begin")
    writer.execute("insert into late values (1, 'open')")
    with followed.engine("orders", "late") as engine:
        wait_until(
            lambda: database.rows("select 1 from pg_publication_tables where tablename = 'late'"),
            PATIENCE,
            what="the table to be published",
        )
        database.execute("insert into orders values (100, 'meanwhile')")
        wait_until(
            lambda: (100, "meanwhile") in followed.in_file("orders"), PATIENCE, what="the others"
        )
        states = {each.table: each.state for each in engine.pipeline_info("file").tables}
        assert states == {"orders": "live", "late": "waiting"}
        writer.execute("commit")
        assert engine.await_ready(PATIENCE)
        followed.await_equal("orders", "late")


@pytest.mark.meets("R16", "R23c")
def test_after_a_partition_was_dropped_a_reload_brings_the_table_as_it_is(
    followed: Followed,
) -> None:
    database = followed.database
    database.execute(
        "create table events (id bigint primary key, value text) partition by range (id)"
    )
    for number in range(3):
        database.execute(
            f"create table events_{number} partition of events"
            f" for values from ({number * 100}) to ({number * 100 + 100})"
        )
    database.execute("insert into events select n, 'v' || n from generate_series(0, 299) n")
    with followed.engine("orders", "events") as engine:
        assert engine.await_ready(PATIENCE)
        followed.await_equal("events")
        database.execute("drop table events_1")
        database.execute("update events set value = 'still followed' where id % 10 = 0")
        # Of a dropped partition the server sends nothing.
        wait_until(
            lambda: (200, "still followed") in followed.in_file("events"), PATIENCE, what="changes"
        )
        assert engine.reload("shop", "events", timeout=PATIENCE)
        followed.await_equal("events")
        database.execute("delete from events where id = 5")
        followed.await_equal("events", "orders")


@pytest.mark.meets("R16", "PG-05")
def test_a_table_that_is_rewritten_during_its_copy_is_copied_anew(
    followed: Followed, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = followed.database
    monkeypatch.setattr(ranges, "RANGE_BYTES", 8192)
    database.execute(
        "insert into orders select n, repeat('x', 400) from generate_series(100, 400) n"
    )
    database.execute("delete from orders where id between 110 and 200")
    other = database.connect()
    other.execute("set lock_timeout = '20ms'")
    chunks = 0

    def rewrite(point: str) -> bool:
        nonlocal chunks
        chunks += point == killpoints.BASELINE_CHUNK
        if chunks < 4:
            return False
        try:
            other.execute("vacuum full orders")
        except psycopg.errors.LockNotAvailable:
            return False  # its pages are being read
        return True

    done = at_points(monkeypatch, rewrite)
    with followed.engine("orders") as engine:
        assert engine.await_ready(PATIENCE)
        followed.await_equal()
        assert done == [killpoints.BASELINE_CHUNK]
        database.execute("insert into orders values (1000, 'after')")
        followed.await_equal()


@pytest.mark.crash
@pytest.mark.meets("R7", "R8")
def test_a_server_stops_at_once_though_a_pipeline_is_paused_and_nothing_is_lost(
    alone: Followed,
) -> None:
    server = alone.database.server
    without_timeout(alone.database)
    with alone.engine("orders") as engine:
        assert engine.await_ready(PATIENCE)
        engine.pause("file")
        alone.database.execute("insert into orders select n, 'p' from generate_series(100, 900) n")
        wait_until(lambda: len(alone.in_memory("orders")) == 861, PATIENCE, what="memory to follow")
        confirmed = alone.confirmed()
        assert stops_by_itself(server)
        server.start()
        # What the paused one has not taken, the server still has.
        assert alone.confirmed() <= confirmed
        alone.database.execute("update orders set value = 'q' where id > 890")
        engine.resume("file")
        alone.await_mark(engine, 1000)
        assert engine.pipeline_info("file").tables[0].baseline == 1


@pytest.mark.meets("R2", "R35", "H1", "PG-19", "H0")
@pytest.mark.parametrize("how", ["dropped", "advanced"])
def test_when_the_slot_lost_what_we_had_not_read_every_table_is_copied_anew(
    followed: Followed, how: str
) -> None:
    database = followed.database
    with followed.engine("orders") as engine:
        assert engine.await_ready(PATIENCE)
        database.execute("update orders set value = 'seen' where id = 1")
        followed.await_equal()
    before = followed.log
    database.execute("delete from orders where id <= 20")
    database.execute("insert into orders values (100, 'unseen')")
    if how == "dropped":
        database.execute(f"select pg_drop_replication_slot('{followed.slot()}')")
    else:
        database.execute(
            f"select pg_replication_slot_advance('{followed.slot()}', pg_current_wal_lsn())"
        )
        assert followed.confirmed() > before.end.commit
    database.execute("insert into orders values (101, 'later')")
    with followed.engine("orders") as engine:
        assert engine.await_ready(PATIENCE)
        followed.await_mark(engine, 1000)
        assert engine.pipeline_info("file").tables[0].baseline == 2
    after = followed.log
    assert after.gap is not None
    assert after.gap.reason == "gap"
    assert after.epoch == before.epoch


@pytest.mark.crash
@pytest.mark.meets("R1", "R2", "H1")
def test_a_server_that_was_restored_from_an_older_copy_begins_a_new_epoch(
    alone: Followed,
) -> None:
    database, server = alone.database, alone.database.server
    kept = server.folder / "kept"
    with alone.engine("orders") as engine:
        assert engine.await_ready(PATIENCE)
        server.stop()
        subprocess.run(["cp", "-a", server.data, kept], check=True)
        server.start()
        # Much more than the restored server writes before it is looked at.
        database.execute(
            "insert into orders select n, repeat('y', 500) from generate_series(100, 6000) n"
        )
        database.execute("delete from orders where id <= 10")
        alone.await_equal()
        assert alone.log.epoch == 1
        server.stop()
        shutil.rmtree(server.data)
        subprocess.run(["mv", kept, server.data], check=True)
        server.start()
        database.execute("insert into orders values (70, 'after the restore')")
        wait_until(lambda: alone.log.epoch == 2, PATIENCE, what="the new epoch")
        alone.await_equal()
        alone.await_mark(engine, 1000)
    found = alone.log
    assert found.gap is not None
    assert found.gap.reason == "lineage"


@pytest.mark.crash
@pytest.mark.meets("R8", "P7")
def test_an_engine_starts_while_the_server_is_down_and_shows_what_the_log_has(
    alone: Followed,
) -> None:
    database, server = alone.database, alone.database.server
    server.stop()
    with alone.engine("orders") as engine:
        # Why is known before the first attempt has failed, but only then is there another one.
        assert engine.source_info("shop").reason
        wait_until(
            lambda: engine.source_info("shop").state == "reconnecting",
            PATIENCE,
            what="the first attempt to fail",
        )
        assert engine.source_info("shop").reason
        assert not engine.is_ready()
        server.start()
        assert engine.await_ready(PATIENCE)
        alone.await_mark(engine, 1000)
    before = alone.in_memory("orders")
    server.stop()
    with alone.engine("orders") as engine:
        shown = alone.memory
        wait_until(lambda: shown.row_count("orders") == len(before), PATIENCE, what="the rows")
        assert alone.in_memory("orders") == before
        assert not engine.is_ready()
        server.start()
        database.execute("insert into orders values (1001, 'after')")
        assert engine.await_ready(PATIENCE)
        alone.await_mark(engine, 1002)


@pytest.mark.meets("R1", "H1", "H4")
@pytest.mark.parametrize("lost", ["log", ""])
def test_without_its_log_everything_begins_anew(followed: Followed, lost: str) -> None:
    database = followed.database
    with followed.engine("orders") as engine:
        assert engine.await_ready(PATIENCE)
        database.execute("update orders set value = 'seen' where id = 1")
        followed.await_equal()
    shutil.rmtree(followed.folder / "data" / lost)
    database.execute("delete from orders where id <= 20")
    database.execute("insert into orders values (100, 'unseen')")
    with followed.engine("orders") as engine:
        assert engine.await_ready(PATIENCE)
        followed.await_mark(engine, 1000)
        database.execute("update orders set value = 'on' where id = 30")
        followed.await_equal()
    assert len(database.rows("select 1 from pg_replication_slots")) == 1


@pytest.mark.crash
@pytest.mark.meets("R11", "H2")
@pytest.mark.parametrize("own_server", [{"autovacuum": "off"}], indirect=True)
def test_a_copy_does_not_hold_commits_that_the_server_lost_in_a_crash(
    alone: Followed, monkeypatch: pytest.MonkeyPatch
) -> None:
    database, server = alone.database, alone.database.server
    with alone.engine("orders") as engine:
        assert engine.await_ready(PATIENCE)
    hurried = database.connect()
    hurried.execute("set synchronous_commit = off")

    passed: list[str] = []
    with alone.engine("orders") as engine:
        assert engine.await_ready(PATIENCE)
        # Who would bring it to the disk a moment later is not given that moment.
        writer = database.value("select pid from pg_stat_activity where backend_type = 'walwriter'")
        os.kill(writer, signal.SIGSTOP)
        hurried.execute("insert into orders values (500, 'never on disk')")
        monkeypatch.setattr(killpoints, "reach", passed.append)
        engine.reload("shop", "orders")
        wait_until(lambda: killpoints.BASELINE_CHUNK in passed, PATIENCE, what="the copy")
        with suppress(AssertionError):
            wait_until(lambda: killpoints.BASELINE_FINISHED in passed, 3, what="what must not be")
        server.kill()
        server.start()
        assert database.rows("select 1 from orders where id = 500") == []
        alone.await_mark(engine, 1000)
        wait_until(lambda: engine.pipeline_info("file").tables[0].baseline > 1, PATIENCE)
        alone.await_mark(engine, 1001)
