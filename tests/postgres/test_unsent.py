"""Values that an update does not send, where nobody keeps them: what a pipeline may not read."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from headrace.capture import table_selection
from headrace.capture.postgres.definition import postgres
from headrace.config.schema import node_of
from headrace.config.text import SourceLocation
from headrace.engine.engine import Engine
from headrace.engine.from_config import configured
from headrace.engine.preview import take_samples
from headrace.errors import InvalidConfiguration, UnsentColumn
from headrace.pipeline.definition import Pipeline
from headrace.pipeline.steps import Filter, drop, equals
from headrace.targets.memory import IndexedMemory, memory
from tests.postgres.servers import Database, wait_until
from tests.support.arrow_runner import ArrowRunner
from tests.support.patience import patience

pytestmark = pytest.mark.meets("R21")

PATIENCE = patience()
ON_NOTE = [equals("note", "x")]
TOLD = "Filter 1 reads the column note, which an update may leave out"


class Shop:
    """A table with a text that may be long, and pipelines of it."""

    def __init__(self, database: Database, data: Path) -> None:
        self.database = database
        self.data = data
        database.execute("create table orders (id bigint primary key, status text, note text)")
        database.execute("alter table orders alter note set storage external")
        database.execute("insert into orders values (1, 'paid', repeat('long', 5000))")

    def pipeline(
        self, target: IndexedMemory, tables: str = "orders", steps: Any = None, **options: Any
    ) -> Pipeline:
        source = postgres(self.database.dsn, name="shop", **options)
        return Pipeline(source, tables, target, name="orders", **(steps or {}))

    def engine(self, pipeline: Pipeline) -> Engine:
        return Engine(pipeline, data=self.data, runner=ArrowRunner(), recorder="thread")

    def sent(self, orders: IndexedMemory) -> bool:
        return [row["status"] for row in orders.all()] == ["sent"]

    def refused(self, filters: list[Filter], **options: Any) -> list[str]:
        """What a start says of these filters."""
        pipeline = self.pipeline(memory(), steps={"filters": filters}, **options)
        with pytest.raises(InvalidConfiguration) as caught, self.engine(pipeline):
            pass
        assert all(isinstance(error, UnsentColumn) for error in caught.value.errors)
        return [error.message for error in caught.value.errors]


@pytest.fixture
def shop(database: Database, tmp_path: Path) -> Iterator[Shop]:
    yield Shop(database, tmp_path / "data")


def test_with_the_store_off_a_filter_on_a_long_column_is_refused(shop: Shop) -> None:
    assert shop.refused(ON_NOTE, toast_store=False) == [TOLD]
    # Before anything is touched, here or at the server.
    slots = "select 1 from pg_replication_slots where database = current_database()"
    assert not shop.database.rows(f"{slots} union all select 1 from pg_publication")
    with pytest.raises(InvalidConfiguration) as caught:
        take_samples(shop.pipeline(memory(), steps={"filters": ON_NOTE}, toast_store=False), 5)
    assert [error.message for error in caught.value.errors] == [TOLD]


def test_a_configuration_is_told_so_at_the_step_without_spark(shop: Shop) -> None:
    plain: Any = {
        "data": str(shop.data),
        "sources": {
            "shop": {"type": "postgres", "connection": shop.database.dsn, "toast_store": False}
        },
        "pipelines": {
            "orders": {
                "source": "shop",
                "tables": ["orders"],
                "filters": [{"type": "field-prefix", "field": "note", "prefix": "x"}],
                "target": {"type": "indexed-memory"},
            }
        },
    }
    with pytest.raises(InvalidConfiguration) as caught:
        configured(node_of(plain, SourceLocation("headrace.conf", 7, 3))).check()
    assert [(error.code, error.message) for error in caught.value.errors] == [
        ("pipeline.unsent_column", f"headrace.conf:7:3: {TOLD}")
    ]
    plain["sources"]["shop"]["toast_store"] = True
    configured(node_of(plain, SourceLocation("headrace.conf", 7, 3))).check()


@pytest.mark.parametrize("way", ["store", "full", "inserts"])
def test_where_every_value_is_known_it_is_not_refused(shop: Shop, way: str) -> None:
    options: dict[str, Any] = {"toast_store": way == "store"}
    if way == "full":
        shop.database.execute("alter table orders replica identity full")
    if way == "inserts":
        options["publish"] = ["insert"]
    orders = memory()
    filters = [equals("note", "long" * 5000)]
    with shop.engine(shop.pipeline(orders, steps={"filters": filters}, **options)) as engine:
        assert engine.await_ready(PATIENCE)
        if way != "inserts":
            shop.database.execute("update orders set status = 'sent' where id = 1")
            wait_until(partial(shop.sent, orders), PATIENCE)
        assert orders.count() == 1


def test_a_column_that_is_dropped_may_be_missing(shop: Shop) -> None:
    orders = memory()
    steps = {"filters": [equals("id", 1)], "transforms": [drop("note")]}
    with shop.engine(shop.pipeline(orders, steps=steps, toast_store=False)) as engine:
        assert engine.await_ready(PATIENCE)
        shop.database.execute("update orders set status = 'sent' where id = 1")
        wait_until(partial(shop.sent, orders), PATIENCE)
        assert [dict(row) for row in orders.all()] == [{"id": 1, "status": "sent"}]
        info = engine.pipeline_info("orders")
        assert info.error is None


def test_a_column_that_is_not_published_is_not_missed(shop: Shop) -> None:
    if shop.database.connect().info.server_version < 150000:
        pytest.skip("columns are chosen on PostgreSQL 15 and newer")
    tables = {"orders": {"columns": ["id", "status"]}}
    described = postgres(shop.database.dsn, name="shop", toast_store=False, tables=tables).describe(
        ["orders"]
    )["orders"]
    assert [column.name for column in described.columns if column.may_be_unsent] == ["status"]


def test_a_table_of_a_pattern_is_left_out_and_the_pipeline_goes_on(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_selection, "LOOK_SECONDS", 0.1)
    shop.database.execute("create table notes (id bigint primary key, note char(2))")
    shop.database.execute("insert into notes values (7, 'x')")
    target = memory()
    steps = {"filters": [equals("note", "x ")]}
    pipeline = shop.pipeline(target, "public.*", steps, toast_store=False)
    with shop.engine(pipeline) as engine:
        assert engine.await_ready(PATIENCE)
        assert target.table("notes").count() == 1
        assert [table.table for table in engine.pipeline_info("orders").tables] == ["notes"]
        shop.database.execute("create table later (id bigint primary key, note text)")
        left_out = partial(engine.pipeline_info, "orders")
        wait_until(lambda: "later" in left_out().left_out, PATIENCE)
        assert set(left_out().left_out) == {"orders", "later"}


def test_only_columns_that_can_be_stored_elsewhere_are_said_to_be_missing(shop: Shop) -> None:
    shop.database.execute(
        "create table wide (id bigint primary key, country char(2), code varchar(5),"
        " name varchar(6), price numeric(12,2), exact numeric, plain text, pad text)"
    )
    shop.database.execute("alter table wide alter plain set storage plain")
    shop.database.execute("create table narrow (id bigint primary key, name varchar(20))")
    shop.database.execute("create table named (name text primary key, note text)")
    source = postgres(shop.database.dsn, name="shop", toast_store=False)
    tables = source.describe(["wide", "narrow", "named"])
    unsent = {
        name: [column.name for column in schema.columns if column.may_be_unsent]
        for name, schema in tables.items()
    }
    assert unsent == {"wide": ["name", "exact", "pad"], "narrow": [], "named": ["note"]}
