"""Tables of a database that a pattern stands for, and those that come while streaming."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from headrace.capture import table_selection
from headrace.capture.postgres.definition import postgres
from headrace.capture.postgres.server import doctor
from headrace.capture.postgres.source import PostgresSource
from headrace.engine.engine import Engine
from headrace.errors import UnknownTable
from headrace.pipeline.definition import Pipeline
from headrace.targets.memory import IndexedMemory, memory
from tests.postgres.servers import Database, wait_until
from tests.support.arrow_runner import ArrowRunner
from tests.support.patience import patience

PATIENCE = patience()


class Town:
    """Tables of an id and a text, and an engine that follows them into memory by patterns."""

    def __init__(self, database: Database, data: Path) -> None:
        self.database = database
        self.data = data
        self.target = memory()
        self.create("orders", 20)
        self.create("audit_log", 5)

    def create(self, table: str, rows: int = 0, key: str = "primary key") -> None:
        self.database.execute(f"create table {table} (id bigint {key}, name text)")
        self.fill(table, 1, rows)

    def fill(self, table: str, first: int, last: int) -> None:
        self.database.execute(
            f"insert into {table} select n, 'row ' || n from generate_series(%s::int, %s::int) n",
            first,
            last,
        )

    def engine(
        self, *patterns: str, target: IndexedMemory | None = None, **options: object
    ) -> Engine:
        source: PostgresSource = postgres(self.database.dsn, name="town", **options)  # type: ignore[arg-type]
        self.target = target or memory()
        pipeline = Pipeline(source, tables=patterns, target=self.target, name="all")
        return Engine(pipeline, data=self.data, runner=ArrowRunner(), recorder="thread")

    def truth(self, table: str) -> dict[object, object]:
        return dict(self.database.rows(f"select id, name from {table}"))

    def equal(self, table: str) -> bool:
        return self.seen(table) == self.truth(table)

    def seen(self, table: str) -> dict[object, object]:
        try:
            return {row["id"]: row["name"] for row in self.target.table(table).all()}
        except UnknownTable:
            return {}

    def published(self) -> set[str]:
        return {
            name for (name,) in self.database.rows("select tablename from pg_publication_tables")
        }

    def sender(self) -> object:
        return self.database.value("select active_pid from pg_replication_slots")


@pytest.fixture
def town(database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Town]:
    monkeypatch.setattr(table_selection, "LOOK_SECONDS", 0.1)
    yield Town(database, tmp_path / "data")


@pytest.mark.meets("PG-09", "H2", "R13")
def test_a_table_that_is_made_while_streaming_comes_with_all_its_rows(town: Town) -> None:
    with town.engine("public.*", "!public.audit_*") as engine:
        assert engine.await_ready(PATIENCE)
        assert town.published() == {"orders"}
        sender = town.sender()
        town.create("items", 500)
        town.fill("orders", 21, 30)
        wait_until(partial(town.equal, "items"), PATIENCE)
        town.database.execute("update items set name = 'new' where id <= 10")
        town.database.execute("delete from items where id between 11 and 20")
        town.database.execute("update orders set name = 'new' where id = 1")
        for table in ("items", "orders"):
            wait_until(partial(town.equal, table), PATIENCE)
        wait_until(engine.is_ready, PATIENCE)
        assert town.published() == {"orders", "items"}
        # The stream never stopped, and of the others nothing was copied again.
        assert town.sender() == sender
        info = engine.pipeline_info("all")
        assert [(table.table, table.baseline) for table in info.tables] == [
            ("orders", 1),
            ("items", 2),
        ]
        assert info.left_out == {}
    target = memory()
    with town.engine("public.*", "!public.audit_*", target=target) as engine:
        assert engine.await_ready(PATIENCE)
        assert town.equal("items")
        assert {table.baseline for table in engine.pipeline_info("all").tables} == {1, 2}


@pytest.mark.meets("R13", "H2")
def test_what_is_written_before_it_is_published_and_committed_after_is_not_lost(
    town: Town,
) -> None:
    with town.engine("*") as engine:
        assert engine.await_ready(PATIENCE)
        with town.database.connect(autocommit=False) as writer:
            town.create("items", 5)
            writer.execute("insert into items values (100, 'before')")
            wait_until(lambda: "items" in town.published(), PATIENCE)
            writer.execute("insert into items values (101, 'after')")
            # Others go on meanwhile, and whoever writes to the table now is not waited for.
            town.fill("orders", 21, 30)
            town.fill("items", 6, 10)
            wait_until(partial(town.equal, "orders"), PATIENCE)
            assert town.seen("items") == {}
            writer.commit()
        wait_until(partial(town.equal, "items"), PATIENCE)
        assert {100, 101} <= town.seen("items").keys()


@pytest.mark.meets("R11", "R13", "H2")
def test_tables_made_and_written_to_all_the_time_end_exact(town: Town) -> None:
    over = threading.Event()

    def write(number: int) -> None:
        with town.database.connect(autocommit=False) as writer:
            turn = 0
            while not over.is_set():
                turn += 1
                table = f"t{number}"
                if turn == 3:
                    writer.execute(f"create table {table} (id bigint primary key, name text)")
                elif turn > 3:
                    key = turn % 50
                    writer.execute(
                        f"insert into {table} values (%s, %s) on conflict (id) do update"
                        " set name = excluded.name".encode(),
                        (key, f"{turn}"),
                    )
                    writer.execute(
                        f"delete from {table} where id = %s".encode(), ((turn * 7) % 50,)
                    )
                if turn % 3 == 0:
                    writer.commit()
                over.wait(0.002)
            writer.commit()

    with town.engine("*") as engine:
        assert engine.await_ready(PATIENCE)
        threads = [threading.Thread(target=write, args=(number,)) for number in range(3)]
        for thread in threads:
            thread.start()
        try:
            for number in range(3):
                wait_until(lambda number=number: town.seen(f"t{number}"), PATIENCE)  # type: ignore[misc]
        finally:
            over.set()
            for thread in threads:
                thread.join()
        for number in range(3):
            wait_until(partial(town.equal, f"t{number}"), PATIENCE)


@pytest.mark.meets("R23a", "PG-09")
def test_a_table_without_a_key_is_left_out_until_it_has_one(town: Town) -> None:
    town.create("keyless", 3, key="")
    with town.engine("public.*") as engine:
        assert engine.await_ready(PATIENCE)
        town.create("late_keyless", 3, key="")
        wait_until(lambda: "late_keyless" in engine.pipeline_info("all").left_out, PATIENCE)
        left_out = engine.source_info("town").left_out
        assert {error.code for error in left_out.values()} == {"capture.no_identity"}
        assert set(left_out) == {"keyless", "late_keyless"}
        assert town.published() == {"orders", "audit_log"}
        assert town.database.execute("update keyless set name = 'x'") == 3
        assert town.database.execute("update late_keyless set name = 'x'") == 3
        town.database.execute("alter table late_keyless add primary key (id)")
        wait_until(partial(town.equal, "late_keyless"), PATIENCE)
        wait_until(engine.is_ready, PATIENCE)
        assert set(engine.pipeline_info("all").left_out) == {"keyless"}
        assert "late_keyless" in town.published()


@pytest.mark.meets("H2")
def test_a_table_that_is_locked_is_published_later_and_the_others_go_on(town: Town) -> None:
    with town.engine("*") as engine:
        assert engine.await_ready(PATIENCE)
        with town.database.connect(autocommit=False) as busy:
            busy.execute("create table items (id bigint primary key, name text)")
            busy.commit()
            busy.execute("lock table items in share row exclusive mode")
            wait_until(lambda: "items" in engine.source_info("town").left_out, PATIENCE)
            town.fill("orders", 21, 30)
            wait_until(partial(town.equal, "orders"), PATIENCE)
            assert engine.is_ready(table="orders")
            assert "items" not in town.published()
            busy.execute("insert into items values (1, 'a')")
            busy.commit()
        wait_until(lambda: town.seen("items") == {1: "a"}, PATIENCE)


@pytest.mark.meets("PG-09", "H2")
def test_a_publication_of_somebody_else_is_not_altered(town: Town) -> None:
    town.database.execute("create publication theirs for table orders")
    with town.engine("*", publication="theirs", create_publication=False) as engine:
        assert engine.await_ready(PATIENCE)
        assert town.published() == {"orders"}
        assert engine.source_info("town").left_out["audit_log"].code == "capture.publication"
        town.create("items", 3)
        wait_until(lambda: "items" in engine.source_info("town").left_out, PATIENCE)
        town.database.execute("alter publication theirs add table items")
        wait_until(partial(town.equal, "items"), PATIENCE)


@pytest.mark.meets("H2")
@pytest.mark.parametrize("key", ["primary key", ""])
def test_a_table_that_was_sent_before_it_was_found_is_understood(
    town: Town, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_selection, "LOOK_SECONDS", 2.0)
    town.database.execute("create publication everything for all tables")
    with town.engine("*", publication="everything", create_publication=False) as engine:
        assert engine.await_ready(PATIENCE)
        town.create("items", 3, key)  # the server describes it to us, and it is not one of ours
        town.fill("orders", 21, 21)
        wait_until(partial(town.equal, "orders"), PATIENCE)
        if not key:
            town.database.execute("alter table items add primary key (id)")
        wait_until(partial(town.equal, "items"), PATIENCE)
        town.fill("items", 4, 6)
        wait_until(partial(town.equal, "items"), PATIENCE)


@pytest.mark.meets("H2")
def test_a_table_that_is_dropped_is_left_out_and_copied_if_it_comes_back(town: Town) -> None:
    with town.engine("*") as engine:
        assert engine.await_ready(PATIENCE)
        town.database.execute("drop table audit_log")
        wait_until(lambda: "audit_log" in engine.pipeline_info("all").left_out, PATIENCE)
        town.fill("orders", 21, 30)
        wait_until(partial(town.equal, "orders"), PATIENCE)
        wait_until(engine.is_ready, PATIENCE)
        assert len(town.seen("audit_log")) == 5
        assert {table.baseline for table in engine.pipeline_info("all").tables} == {1, 2}
        town.create("audit_log", 2)
        town.database.execute("update audit_log set name = 'again'")
        wait_until(partial(town.equal, "audit_log"), PATIENCE)
        town.fill("audit_log", 3, 4)
        wait_until(partial(town.equal, "audit_log"), PATIENCE)
        assert engine.pipeline_info("all").left_out == {}


@pytest.mark.meets("H1")
def test_an_empty_database_is_watched_until_the_first_table_comes(town: Town) -> None:
    town.database.execute("drop table orders, audit_log")
    with town.engine("*") as engine:
        assert engine.await_ready(PATIENCE)
        assert engine.source_info("town").state == "watching"
        assert town.database.rows("select 1 from pg_replication_slots") == []
        town.create("orders", 4)
        wait_until(partial(town.equal, "orders"), PATIENCE)
        wait_until(engine.is_ready, PATIENCE)


def test_only_tables_that_hold_rows_of_the_application_are_listed(database: Database) -> None:
    for statement in (
        "create schema sales",
        'create table "Odd Name" (id int)',
        "create table sales.orders (id int)",
        "create unlogged table quick (id int)",
        "create temporary table passing (id int)",
        "create view seen as select 1 as one",
        "create materialized view stored as select 1 as one",
        "create table parts (id int) partition by range (id)",
        "create table parts_1 partition of parts for values from (1) to (10)",
        "create table parts_2 partition of parts for values from (10) to (20)"
        " partition by range (id)",
    ):
        database.execute(statement)
    source = postgres(database.dsn, name="town")
    assert source.tables() == ['"Odd Name"', "parts", "sales.orders"]
    with database.connect() as connection:
        assert doctor.table_names(source.options, connection) == source.tables()
