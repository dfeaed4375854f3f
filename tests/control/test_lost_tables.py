"""A table that was captured and cannot be any more stops its own pipelines, and no others."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headrace.capture import recorder, table_selection
from headrace.capture.sqlite.source import sqlite
from headrace.capture.sqlite.triggers import LOG
from headrace.engine.engine import Engine
from headrace.errors import InvalidConfiguration
from headrace.pipeline.definition import Pipeline
from headrace.pipeline.steps import drop
from headrace.targets.memory import IndexedMemory, memory
from tests.support.shop import PATIENCE, Market, Shop, await_seen, await_that


@pytest.fixture(autouse=True)
def looks_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_selection, "LOOK_SECONDS", 0.05)
    monkeypatch.setattr(recorder, "FIRST_PAUSE_SECONDS", 0.01)


@pytest.fixture
def shop(shop: Shop) -> Iterator[Shop]:
    """A shop with a second table."""
    shop.app.execute("create table items (id integer primary key, name text)")
    shop.app.execute("insert into items values (1, 'a')")
    yield shop


class Pair:
    """A pipeline for each of two tables, in memory."""

    def __init__(self, shop: Shop) -> None:
        self.shop = shop
        self.orders, self.items = memory(), memory()
        source = shop.source()
        self.pipelines = (
            Pipeline(source, "orders", self.orders, name="orders"),
            Pipeline(source, "items", self.items, name="items"),
        )

    def engine(self) -> Engine:
        return self.shop.engine(*self.pipelines)

    def follows(self, key: int) -> bool:
        """Whether a new order arrives."""
        self.shop.insert(range(key, key + 1))
        return await_seen(lambda: self.orders.get(key) is not None)

    def same_items(self) -> bool:
        """Whether the items are as in the database, with all their columns."""
        cursor = self.shop.app.execute("select * from items")
        names = [each[0] for each in cursor.description]
        rows = [dict(zip(names, row, strict=True)) for row in cursor]
        found = [dict(self.items.get(row["id"]) or {}) for row in rows]
        return found == rows and self.items.count() == len(rows)


def lost(engine: Engine, pipeline: str = "items") -> bool:
    """Wait until the table of a pipeline is lost."""
    return await_that(engine, lambda: engine.pipeline_info(pipeline).state == "failed")


def noticed(engine: Engine) -> list[str]:
    return [notice.problem.code for notice in engine.source_info("shop").notices]


def keys(target: IndexedMemory) -> list[object]:
    return sorted(row["id"] for row in target.all())  # type: ignore[type-var]


@pytest.mark.parametrize(
    ("away", "back"),
    [
        ("drop table items", "create table items (id integer primary key, name text)"),
        ("alter table items rename to others", "alter table others rename to items"),
    ],
)
def test_a_table_that_is_gone_stops_its_pipeline_alone_and_is_copied_when_it_is_back(
    shop: Shop, away: str, back: str
) -> None:
    pair = Pair(shop)
    with pair.engine() as engine:
        assert engine.await_ready(PATIENCE)
        shop.app.execute(away)
        assert await_that(engine, lambda: engine.pipeline_info("items").state == "failed")
        info = engine.pipeline_info("items")
        assert info.error is not None
        assert info.error_since is not None
        assert info.error.facts["table"] == "items"
        assert "items" in engine.source_info("shop").left_out
        assert not engine.is_ready(pipeline="items")
        assert not engine.await_ready(PATIENCE)  # at once: waiting does not help
        assert not engine.reload("shop", "items", timeout=None)  # the same
        # The others go on, and are ready.
        assert pair.follows(100)
        assert await_that(engine, lambda: engine.is_ready(pipeline="orders"))
        assert engine.source_info("shop").state == "streaming"
        lost = [n for n in engine.source_info("shop").notices if n.problem.code.endswith("lost")]
        assert [notice.problem.facts["table"] for notice in lost] == ["items"]

        shop.app.execute(back)
        shop.app.execute("insert into items values (7, 'new')")
        expected = [key for (key,) in shop.app.execute("select id from items order by 1")]
        assert await_that(engine, lambda: engine.is_ready() and keys(pair.items) == expected)
        assert engine.pipeline_info("items").error is None
        assert engine.source_info("shop").left_out == {}
        shop.app.execute("insert into items values (8, 'newer')")
        assert await_seen(lambda: pair.items.get(8) is not None)
        assert pair.follows(101)


def test_after_a_restart_a_table_that_is_gone_still_stops_its_pipeline_alone(shop: Shop) -> None:
    with (pair := Pair(shop)).engine() as engine:
        assert engine.await_ready(PATIENCE)
    shop.app.execute("drop table items")
    shop.insert(range(50, 51))
    with (pair := Pair(shop)).engine() as engine:
        assert await_that(engine, lambda: engine.is_ready(pipeline="orders"))
        assert pair.orders.get(50) is not None
        assert await_that(engine, lambda: engine.pipeline_info("items").state == "failed")
        assert not engine.is_ready()
        assert pair.follows(100)
        shop.app.execute("create table items (id integer primary key, name text)")
        assert await_that(engine, engine.is_ready)
        assert keys(pair.items) == []


def test_a_table_that_was_never_captured_is_an_error_of_the_configuration(shop: Shop) -> None:
    pair = Pair(shop)
    source = shop.source()
    with shop.engine(Pipeline(source, "orders", pair.orders, name="orders")) as engine:
        assert engine.await_ready(PATIENCE)
    shop.app.execute("drop table items")
    with pytest.raises(InvalidConfiguration, match="Table not found") as caught:
        Pair(shop).engine().start()
    assert [error.facts["table"] for error in caught.value.errors] == ["items"]


def test_what_is_only_recorded_is_not_ready_while_it_is_gone(shop: Shop) -> None:
    engine = Engine(
        data=shop.data, records=[(shop.source(), ["items", "orders"])], recorder="thread"
    )
    with engine:
        assert await_that(engine, engine.is_ready)
        shop.app.execute("drop table items")
        assert await_that(engine, lambda: not engine.is_ready(table="items"))
        assert await_that(engine, lambda: engine.is_ready(table="orders"))
        shop.app.execute("create table items (id integer primary key, name text)")
        assert await_that(engine, engine.is_ready)


def test_all_tables_of_a_source_can_be_gone_and_come_back(shop: Shop) -> None:
    target = memory()
    with shop.engine(Pipeline(shop.source(), "items", target, name="items")) as engine:
        assert engine.await_ready(PATIENCE)
        shop.app.execute("drop table items")
        assert await_that(engine, lambda: engine.pipeline_info("items").state == "failed")
        shop.app.execute("create table items (id integer primary key, name text)")
        shop.app.execute("insert into items values (9, 'i')")
        assert await_that(engine, lambda: engine.is_ready() and keys(target) == [9])


def test_a_pipeline_of_several_tables_goes_on_with_the_others(shop: Shop) -> None:
    target = memory()
    with shop.engine(Pipeline(shop.source(), tables=["orders", "items"], target=target)) as engine:
        assert engine.await_ready(PATIENCE)
        shop.app.execute("drop table items")
        [name] = [each.name for each in engine.pipelines()]
        assert await_that(engine, lambda: engine.pipeline_info(name).state == "failed")
        shop.insert(range(60, 61))
        assert await_seen(lambda: target.table("orders").get(60) is not None)
        assert not engine.is_ready()


def test_a_column_added_in_sqlite_costs_no_pipeline_a_change(shop: Shop) -> None:
    pair = Pair(shop)
    with pair.engine() as engine:
        assert engine.await_ready(PATIENCE)
        for number in range(3):
            shop.app.execute("begin")
            shop.app.execute(f"insert into items values (1{number}{', null' * number}, 'before')")
            shop.app.execute(f"alter table items add column c{number} text default 'd'")
            shop.app.execute("commit")
            shop.app.execute(
                f"insert into items (id, name, c{number}) values (2{number}, 'a', 'x')"
            )
            shop.app.execute("update items set name = name || '!'")
            assert pair.follows(100 + number)
            assert await_that(engine, lambda: engine.is_ready() and pair.same_items())
            assert engine.source_info("shop").error is None


def test_lost_tables_of_a_source_in_memory_are_named_one_by_one(
    market: Market, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("items", "clients"):
        market.source.set_schema(name, {"id": "int64", "status": "text"}, key=["id"])
    targets = {name: memory() for name in ("orders", "items", "clients")}
    pipelines = [market.pipeline(each, name, name=name) for name, each in targets.items()]
    with market.engine(*pipelines) as engine:
        assert engine.await_ready(PATIENCE)
        schemas = {name: market.source._schemas.pop(name) for name in ("items", "clients")}
        market.source.set_away(True)  # so that the source is opened again
        assert await_that(engine, lambda: engine.source_info("shop").state == "reconnecting")
        market.source.set_away(False)
        for name in schemas:
            assert await_that(engine, lambda n=name: engine.pipeline_info(n).state == "failed")  # type: ignore[misc]
        market.put("orders", 60)
        assert await_seen(lambda: targets["orders"].get(60) is not None)
        market.source._schemas["items"] = schemas["items"]
        assert await_that(engine, lambda: engine.is_ready(pipeline="items"))
        assert set(engine.source_info("shop").left_out) == {"clients"}
        assert engine.pipeline_info("clients").state == "failed"


@pytest.mark.parametrize("stopped", [False, True], ids=["running", "stopped"])
@pytest.mark.parametrize(
    "statements",
    [
        ["alter table items add column c text default 'd'"],
        ["alter table items rename column name to title"],
        [
            "create table n (id integer primary key, name text)",
            "insert into n select id, name || '!' from items",
            "drop table items",
            "alter table n rename to items",
        ],
    ],
    ids=["column added", "column renamed", "rebuilt"],
)
def test_an_altered_table_is_copied_again_by_itself_with_a_notice(
    shop: Shop, statements: list[str], stopped: bool
) -> None:
    engine = (pair := Pair(shop)).engine()
    with engine:
        assert engine.await_ready(PATIENCE)
        if stopped:
            engine.stop()
        for statement in statements:
            shop.app.execute(statement)
        shop.app.execute("insert into items (id) values (5)")
        if stopped:
            engine = (pair := Pair(shop)).engine()
            engine.start()
        with engine:
            assert await_that(engine, lambda: engine.is_ready() and pair.same_items())
            assert noticed(engine) == ["capture.copied_again"]
            assert engine.source_info("shop").left_out == {}


def test_a_table_that_is_back_without_a_column_stops_only_the_pipelines_that_use_it(
    shop: Shop,
) -> None:
    pair = Pair(shop)
    source = pair.pipelines[0].source
    uses = Pipeline(source, "items", memory(), name="uses", transforms=[drop("name")])
    with shop.engine(*pair.pipelines, uses) as engine:
        assert engine.await_ready(PATIENCE)
        shop.app.execute("drop table items")
        assert lost(engine)
        shop.app.execute("create table items (id integer primary key, other text)")
        shop.app.execute("insert into items values (3, 'x')")
        assert await_that(engine, lambda: engine.is_ready(pipeline="items") and pair.same_items())
        assert pair.follows(100)
        assert await_that(engine, lambda: engine.is_ready(pipeline="orders"))
        info = engine.pipeline_info("uses")
        assert (info.state, info.error and info.error.code) == ("failed", "pipeline.unknown_column")
        assert not engine.is_ready()


@pytest.mark.parametrize("stopped", [False, True], ids=["running", "stopped"])
@pytest.mark.parametrize("alone", [False, True], ids=["with another", "alone"])
def test_a_row_that_was_replaced_while_its_table_was_lost_is_removed(
    shop: Shop, alone: bool, stopped: bool
) -> None:
    def made() -> tuple[Pair, Engine]:
        pair = Pair(shop)
        return pair, shop.engine(*pair.pipelines[1 if alone else 0 :])

    pair, engine = made()
    with engine:
        assert engine.await_ready(PATIENCE)
        shop.app.execute("insert into items values (2, 'b')")
        shop.app.execute("begin")
        shop.app.execute("create unique index names on items (name)")
        shop.app.execute(
            "create trigger mine before delete on items begin delete from items where id = 0; end"
        )
        shop.app.execute("commit")
        assert lost(engine)
        if stopped:
            engine.stop()
        shop.app.execute("insert or replace into items values (3, 'b')")  # no trigger sees row 2
        if stopped:
            pair, engine = made()
            engine.start()
        with engine:
            assert lost(engine)
            shop.app.execute("drop trigger mine")
            assert await_that(engine, lambda: engine.is_ready() and pair.same_items())
            assert keys(pair.items) == [1, 3]


def test_a_table_that_is_back_when_a_new_recorder_looks_is_not_lost_any_more(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = Pair(shop)
    with pair.engine() as engine:
        assert engine.await_ready(PATIENCE)
        monkeypatch.setattr(table_selection, "LOOK_SECONDS", 10 * PATIENCE)
        shop.app.execute("drop table items")
        assert lost(engine)
        shop.app.execute("create table items (id integer primary key, name text)")
        assert pair.follows(100)
        assert lost(engine)  # nobody has looked
        engine._state.recordings["shop"]._restart()
        assert await_that(engine, lambda: engine.is_ready() and pair.same_items())


def test_a_lost_table_is_reported_once_also_if_the_recorder_is_started_again(shop: Shop) -> None:
    with (pair := Pair(shop)).engine() as engine:
        assert engine.await_ready(PATIENCE)
        shop.app.execute("drop table items")
        assert lost(engine)
        for key in (100, 101):
            engine._state.recordings["shop"]._restart()
            assert pair.follows(key)
            assert lost(engine)
        assert noticed(engine).count("capture.table_lost") == 1


@pytest.mark.parametrize("gap", [False, True], ids=["", "gap"])
def test_a_lost_table_keeps_no_changes_of_the_others_at_the_source(shop: Shop, gap: bool) -> None:
    pair = Pair(shop)
    with pair.engine() as engine:
        assert engine.await_ready(PATIENCE)
        shop.app.execute("drop table items")
        assert lost(engine)
        if gap:  # then items should be copied again, which cannot be done
            shop.app.execute("alter table orders rename column card to number")
            assert await_that(engine, lambda: "capture.copied_again" in noticed(engine))
        assert pair.follows(100)
        newest = shop.captured()
        assert pair.follows(101)
        assert await_seen(lambda: shop.cursor() > newest)
        shop.app.execute("create table items (id integer primary key, name text)")
        shop.app.execute("insert into items values (3, 'x')")
        assert await_that(engine, lambda: engine.is_ready() and pair.same_items())


def test_a_database_whose_only_table_is_lost_keeps_no_changes(shop: Shop) -> None:
    pair = Pair(shop)
    with shop.engine(pair.pipelines[1]) as engine:
        assert engine.await_ready(PATIENCE)
        shop.app.execute("alter table items rename to others")  # its triggers go with it
        assert lost(engine)
        shop.app.execute("insert into others values (2, 'unseen')")
        left = [name for (name,) in shop.app.execute("select name from sqlite_master")]
        assert LOG not in left
        assert not any(name.endswith("_insert") for name in left)
        shop.app.execute("alter table others rename to items")
        assert await_that(engine, lambda: engine.is_ready() and pair.same_items())


def test_a_type_for_a_column_that_is_gone_is_a_problem_of_its_table_only(shop: Shop) -> None:
    pair = Pair(shop)
    source = sqlite(shop.path, name="shop", columns={"items.name": "variant"})
    of_items = Pipeline(source, "items", pair.items, name="items")
    of_orders = Pipeline(source, "orders", pair.orders, name="orders")
    with shop.engine(of_items, of_orders) as engine:
        assert engine.await_ready(PATIENCE)
        shop.app.execute("alter table items rename column name to title")
        assert lost(engine)
        assert pair.follows(100)
        error = engine.pipeline_info("items").error
        assert error is not None
        assert error.facts["column"] == "items.name"
        shop.app.execute("alter table items rename column title to name")
        assert await_that(engine, lambda: engine.is_ready() and pair.same_items())
