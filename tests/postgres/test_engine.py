"""From a PostgreSQL table to an indexed one in memory, by the recorder's own process."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Literal

import pytest

from headrace.capture.postgres.definition import postgres
from headrace.capture.postgres.source import PostgresSource
from headrace.engine.engine import Engine
from headrace.pipeline.definition import Pipeline
from headrace.targets.memory import IndexedMemory, memory
from tests.postgres.servers import Database, wait_until
from tests.support.arrow_runner import ArrowRunner
from tests.support.patience import patience

PATIENCE = patience()


class Shop:
    """A table of orders, and engines that follow it into memory."""

    def __init__(self, database: Database, data: Path) -> None:
        self.database = database
        self.data = data
        self.sources: list[PostgresSource] = []
        database.execute(
            "create table orders (id bigint primary key, status text not null, total numeric(12,2),"
            " note text, at timestamptz not null default now())"
        )
        database.execute(
            "insert into orders select n, 'paid', n * 1.5, repeat('x', n)"
            " from generate_series(1, 50) n"
        )

    def source(self, **options: object) -> PostgresSource:
        source = postgres(self.database.dsn, name="shop", **options)  # type: ignore[arg-type]
        self.sources.append(source)
        return source

    def engine(
        self,
        orders: IndexedMemory,
        *,
        how: Literal["process", "thread"] = "thread",
        **options: object,
    ) -> Engine:
        return Engine(
            Pipeline(self.source(**options), "orders", orders, name="orders"),
            data=self.data,
            runner=ArrowRunner(),
            recorder=how,
        )

    def truth(self) -> dict[int, tuple[object, ...]]:
        rows = self.database.rows("select id, status, total, note, at from orders")
        return {row[0]: row for row in rows}

    def equal(self, orders: IndexedMemory) -> bool:
        return self.seen(orders) == self.truth()

    def seen(self, orders: IndexedMemory) -> dict[int, tuple[object, ...]]:
        names = ("id", "status", "total", "note", "at")
        return {int(str(row["id"])): tuple(row[name] for name in names) for row in orders.all()}


@pytest.fixture
def shop(database: Database, tmp_path: Path) -> Iterator[Shop]:
    yield Shop(database, tmp_path / "data")


@pytest.mark.meets("PG-04", "PG-05", "PG-12", "H1")
def test_a_table_and_all_that_happens_to_it_are_there(shop: Shop) -> None:
    orders = memory()
    with shop.engine(orders, how="process") as engine:
        assert engine.await_ready(PATIENCE)
        assert shop.seen(orders) == shop.truth()
        shop.database.execute("update orders set status = 'sent', total = null where id <= 10")
        shop.database.execute("delete from orders where id between 11 and 20")
        shop.database.execute("update orders set id = id + 1000 where id > 40")
        shop.database.execute("insert into orders values (99, 'new', 0.01, null)")
        wait_until(partial(shop.equal, orders), PATIENCE)
        shop.database.execute("truncate orders")
        shop.database.execute("insert into orders values (1, 'again', 1, 'x')")
        wait_until(partial(shop.equal, orders), PATIENCE)
        info = engine.source_info("shop")
        assert info.state == "streaming"
        assert info.restarts == 0


@pytest.mark.meets("R3", "PG-24")
def test_a_marker_written_at_the_server_tells_when_all_before_it_has_arrived(shop: Shop) -> None:
    orders = memory()
    with shop.engine(orders) as engine:
        assert engine.await_ready(PATIENCE)
        shop.database.execute("update orders set status = 'marked' where id = 7")
        shop.database.execute("select pg_logical_emit_message(true, 'headrace', 'within')")
        assert engine.await_marker("shop", "within", PATIENCE)
        row = orders.get(7)
        assert row is not None
        assert row["status"] == "marked"
        shop.database.execute("select pg_logical_emit_message(false, 'headrace', 'alone')")
        shop.database.execute("select pg_logical_emit_message(true, 'somebody', 'else')")
        assert engine.await_marker("shop", "alone", PATIENCE)
        assert not engine.await_marker("shop", "else", 0)


@pytest.mark.meets("PG-04", "R2", "R8", "H0")
def test_what_happens_between_two_lives_is_not_lost(shop: Shop) -> None:
    with shop.engine(memory()) as engine:
        assert engine.await_ready(PATIENCE)
        baselines = engine.source_info("shop").end
    shop.database.execute("update orders set status = 'sent' where id = 7")
    shop.database.execute("delete from orders where id = 8")
    orders = memory()
    with shop.engine(orders, how="process") as engine:
        assert engine.await_ready(PATIENCE)
        wait_until(partial(shop.equal, orders), PATIENCE)
        assert engine.source_info("shop").end.epoch == baselines.epoch
        assert engine.pipeline_info("orders").tables[0].baseline == 1


@pytest.mark.meets("PG-03", "PG-18")
def test_an_ephemeral_source_copies_at_each_start_and_leaves_no_slot(shop: Shop) -> None:
    last = 0
    for start in (1, 2):
        orders = memory()
        with shop.engine(orders, slot="ephemeral") as engine:
            assert engine.await_ready(PATIENCE)
            shop.database.execute(f"insert into orders values ({start + 500}, 'new', 1, 'x')")
            wait_until(partial(shop.equal, orders), PATIENCE)
            # Every reconnect is a gap as well, and a busy machine may bring one.
            baseline = engine.pipeline_info("orders").tables[0].baseline
            assert baseline is not None
            assert baseline > last
            last = baseline
        wait_until(lambda: shop.database.rows("select 1 from pg_replication_slots") == [])


@pytest.mark.meets("PG-17")
def test_a_reader_whose_connection_is_cut_comes_back(shop: Shop) -> None:
    orders = memory()
    with shop.engine(orders, how="process") as engine:
        assert engine.await_ready(PATIENCE)
        for key in (101, 102, 103):
            shop.database.execute(
                "select pg_terminate_backend(active_pid) from pg_replication_slots where active"
            )
            shop.database.execute(f"insert into orders values ({key}, 'new', 1, 'x')")
            wait_until(partial(shop.equal, orders), PATIENCE)
        assert engine.pipeline_info("orders").tables[0].baseline == 1
        assert engine.source_info("shop").restarts == 0


@pytest.mark.meets("R7", "R8", "PG-21")
def test_the_server_may_forget_what_was_recorded(shop: Shop) -> None:
    with shop.engine(memory()) as engine:
        assert engine.await_ready(PATIENCE)
        before = shop.database.value("select confirmed_flush_lsn from pg_replication_slots")
        shop.database.execute("update orders set note = 'y'")

        def moved() -> bool:
            now = shop.database.value("select confirmed_flush_lsn from pg_replication_slots")
            return bool(now != before)

        wait_until(moved, PATIENCE)


@pytest.mark.meets("PG-06", "H3", "R11")
def test_a_reload_while_writers_write_ends_exact(shop: Shop) -> None:
    orders = memory()
    with shop.engine(orders) as engine:
        assert engine.await_ready(PATIENCE)
        for turn in range(5):
            shop.database.execute("update orders set total = total + 1 where id %% 5 = %s", turn)
            assert engine.reload("shop", "orders", timeout=PATIENCE)
            wait_until(partial(shop.equal, orders), PATIENCE)
        assert engine.pipeline_info("orders").tables[0].baseline == 6


@pytest.mark.meets("PG-14", "R21")
def test_a_large_value_that_was_not_sent_and_is_not_kept_never_becomes_null(shop: Shop) -> None:
    shop.database.execute("alter table orders alter note set storage external")
    shop.database.execute("update orders set note = repeat('long', 5000) where id = 1")
    orders = memory()
    with shop.engine(orders, toast_store=False) as engine:
        assert engine.await_ready(PATIENCE)
        shop.database.execute("update orders set status = 'sent' where id = 1")
        wait_until(lambda: engine.pipeline_info("orders").state == "failed", PATIENCE)
        error = engine.pipeline_info("orders").error
        assert error is not None
        assert error.code == "targets.unknown_value"
        assert orders.get(1)["note"] == "long" * 5000  # type: ignore[index]


@pytest.mark.meets("PG-13", "R21", "R23")
def test_under_a_full_identity_a_large_value_is_known(shop: Shop) -> None:
    shop.database.execute("alter table orders alter note set storage external")
    shop.database.execute("alter table orders replica identity full")
    shop.database.execute("update orders set note = repeat('long', 5000) where id = 1")
    orders = memory()
    with shop.engine(orders) as engine:
        assert engine.await_ready(PATIENCE)
        shop.database.execute("update orders set status = 'sent' where id = 1")
        shop.database.execute("update orders set id = 1001 where id = 1")
        wait_until(partial(shop.equal, orders), PATIENCE)
        assert orders.get(1001)["note"] == "long" * 5000  # type: ignore[index]


def test_a_table_without_a_key_can_be_given_one_where_nothing_but_inserts_is_published(
    shop: Shop,
) -> None:
    shop.database.execute("create table visits (at bigint not null, page text)")
    shop.database.execute("insert into visits select n, 'p' || n from generate_series(1, 5) n")
    source = shop.source(publish=["insert"])
    visits = memory(key=["at"])
    pipeline = Pipeline(source, "visits", visits, name="visits")
    with Engine(pipeline, data=shop.data, runner=ArrowRunner(), recorder="thread") as engine:
        assert engine.await_ready(PATIENCE)
        shop.database.execute("insert into visits values (6, 'p6')")
        # Not sent, as was asked for: nothing that would have to say which row it is of.
        shop.database.execute("delete from visits where at = 1")
        shop.database.execute("insert into visits values (7, 'p7')")
        wait_until(lambda: visits.get(7) is not None)
        assert sorted(int(str(row["at"])) for row in visits.all()) == [1, 2, 3, 4, 5, 6, 7]
        assert engine.is_ready()
