"""A table of a server that cannot be captured any more, while its source reads the others."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psycopg
import pytest

from headrace.capture.postgres.definition import postgres
from headrace.engine.engine import Engine
from headrace.pipeline.definition import Pipeline
from headrace.targets.memory import IndexedMemory, memory
from tests.postgres.servers import Database, wait_until
from tests.support.arrow_runner import ArrowRunner
from tests.support.patience import patience

PATIENCE = patience()
TABLES = ("orders", "clients", "items")

pytestmark = pytest.mark.usefixtures("looks_often")


@pytest.fixture
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.capture.postgres.server.ddl_watch.WATCH_SECONDS", 0.1)
    monkeypatch.setattr("headrace.capture.table_selection.LOOK_SECONDS", 0.1)


@dataclass
class LostTables:
    """A pipeline into memory for each of some tables."""

    database: Database
    data: Path
    targets: dict[str, IndexedMemory] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in TABLES:
            self.database.execute(f"create table {name} (id bigint primary key, note text)")
            self.database.execute(f"insert into {name} values (1, '{name}'), (2, '{name}')")

    @contextmanager
    def engine(self, *tables: str) -> Iterator[Engine]:
        """Follow the tables until all are ready, and be ready again in the end."""
        source = postgres(self.database.dsn, name="shop")
        self.targets = {name: memory() for name in tables}
        pipelines = [Pipeline(source, name, each, name=name) for name, each in self.targets.items()]
        with Engine(*pipelines, data=self.data, runner=ArrowRunner(), recorder="thread") as engine:
            assert engine.await_ready(PATIENCE)
            yield engine
            wait_until(lambda: engine.is_ready() and all(map(self.equal, tables)), PATIENCE)
            assert engine.source_info("shop").left_out == {}
            assert engine.source_info("shop").restarts == 0

    def equal(self, table: str) -> bool:
        truth = dict(self.database.rows(f"select id, note from {table}"))
        return {row["id"]: row["note"] for row in self.targets[table].all()} == truth

    def confirmed(self) -> int:
        query = "select (confirmed_flush_lsn - '0/0')::int8 from pg_replication_slots"
        return int(self.database.value(f"{query} where database = current_database()"))

    def slots(self) -> int:
        query = "select count(*) from pg_replication_slots where database = current_database()"
        return int(self.database.value(query))

    def updates(self, table: str) -> bool:
        """Whether the application can update the table."""
        try:
            self.database.execute(f"update {table} set note = note || '!' where id = 1")
        except psycopg.errors.ObjectNotInPrerequisiteState:
            return False
        return True


@pytest.fixture
def shop(database: Database, tmp_path: Path) -> LostTables:
    return LostTables(database, tmp_path / "data")


def lost(engine: Engine, table: str = "orders") -> str:
    """Wait until a table is lost; return the code of the reason."""
    wait_until(lambda: engine.pipeline_info(table).state == "failed", PATIENCE)
    error = engine.pipeline_info(table).error
    assert error is not None
    assert error.facts["table"] == table
    return error.code


LOSSES = [
    pytest.param(
        "alter table orders rename to gone",
        "alter table gone rename to orders",
        id="renamed",
    ),
    pytest.param(
        "drop table orders",
        "create table orders (id bigint primary key, note text)",
        id="dropped",
        marks=pytest.mark.ci,
    ),
    pytest.param(
        "create table heir () inherits (orders)",
        "drop table heir",
        id="inherited",
        marks=pytest.mark.ci,
    ),
    pytest.param(
        "alter table orders replica identity nothing",
        "alter table orders replica identity default",
        id="without identity",
        marks=pytest.mark.ci,
    ),
]


@pytest.mark.slow
@pytest.mark.meets("R23a")
@pytest.mark.parametrize("away, back", LOSSES)
def test_a_table_that_is_lost_is_alone_and_is_copied_when_it_is_back(
    shop: LostTables, away: str, back: str
) -> None:
    run = shop.database.execute
    with shop.engine(*TABLES) as engine:
        run(away)
        assert lost(engine).startswith("capture.")
        notices = engine.source_info("shop").notices
        assert [n.problem.facts["table"] for n in notices if n.problem.code == "capture.table_lost"]
        for table in ("clients", "items"):
            wait_until(lambda name=table: engine.is_ready(pipeline=name), PATIENCE)  # type: ignore[misc]
        run("insert into clients values (3, 'while it is lost')")
        end = int(shop.database.value("select (pg_current_wal_flush_lsn() - '0/0')::int8"))
        wait_until(lambda: shop.confirmed() >= end, PATIENCE, what="the slot to advance")
        assert shop.equal("clients")
        assert engine.pipeline_info("orders").state == "failed"
        run(back)
        run("insert into orders values (7, 'when it is back')")


@pytest.mark.slow
@pytest.mark.meets("R23a")
def test_a_table_without_identity_is_taken_out_of_our_publication_so_that_it_can_be_updated(
    shop: LostTables,
) -> None:
    run = shop.database.execute
    with shop.engine("orders", "clients") as engine:
        run("alter table orders replica identity nothing")
        wait_until(lambda: shop.updates("orders"), PATIENCE, what="an update to be accepted")
        assert lost(engine) == "capture.no_identity"
        published = shop.database.rows("select tablename from pg_publication_tables")
        assert published == [("clients",)]
        run("alter table orders replica identity default")


@pytest.mark.slow
@pytest.mark.meets("R28")
def test_a_source_whose_tables_are_all_lost_keeps_nothing_on_the_server(shop: LostTables) -> None:
    run = shop.database.execute
    with shop.engine("orders", "clients") as engine:
        assert shop.slots() == 1
        run("drop table clients; alter table orders replica identity nothing")
        wait_until(lambda: shop.slots() == 0, PATIENCE, what="the slot to be dropped")
        wait_until(lambda: shop.updates("orders"), PATIENCE, what="an update to be accepted")
        wait_until(lambda: engine.source_info("shop").state == "watching", PATIENCE)
        assert {lost(engine, "orders"), lost(engine, "clients")} == {
            "capture.no_identity",
            "capture.unsupported_table",
        }
        run("create table clients (id bigint primary key, note text)")
        run("insert into clients values (9, 'new')")
        run("alter table orders replica identity default")
    found = [n.problem for n in engine.source_info("shop").notices]
    [gap] = [problem for problem in found if problem.code == "capture.history_lost"]
    assert gap.message.startswith("No table could be captured for a while")
