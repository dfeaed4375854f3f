"""Tables that a pattern stands for: those there are, those that come, and those that go."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from headrace.capture import table_selection
from headrace.changelog.schema import TableName, TableSchema
from headrace.engine.engine import Engine
from headrace.errors import BadTransform, InvalidConfiguration, UnknownTable
from headrace.pipeline.definition import Pipeline
from headrace.pipeline.steps import equals
from headrace.runtime.pipeline_run import IDLE, PipelineRun
from headrace.runtime.source_run import SourceRun
from headrace.targets.memory import IndexedMemory, memory
from headrace.testing.source import MemorySource
from headrace.testing.target import ScriptedTarget, TargetDisk
from tests.control.stepping import Stepping
from tests.support.arrow_runner import ArrowRunner
from tests.support.shop import PATIENCE, Market, Shop, await_seen, await_that

COLUMNS = {"id": "int64", "status": "text", "version": "int64"}


@pytest.fixture(autouse=True)
def look_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_selection, "LOOK_SECONDS", 0.05)


@pytest.fixture
def market(tmp_path: Path) -> Market:
    return Market(tmp_path, ("orders", "audit_log"))


def create(market: Market, table: str, rows: int = 10, **columns: str) -> None:
    market.source.set_schema(table, columns or COLUMNS, key=["id"])
    for key in range(1, rows + 1):
        market.source.add_row(table, {"id": key, "status": "paid", "version": 0})


def seen(target: IndexedMemory, table: str) -> dict[object, dict[str, object]]:
    try:
        return {row["id"]: dict(row) for row in target.table(table).all()}
    except UnknownTable:
        return {}


def equal(market: Market, target: IndexedMemory, table: str) -> bool:
    return seen(target, table) == market.truth(table)


@pytest.mark.meets("R12", "H2")
def test_a_table_that_comes_is_copied_and_followed_beside_the_others(market: Market) -> None:
    target = memory()
    pipeline = market.pipeline(target, "*", "!audit_*", name="all")
    with market.engine(pipeline) as engine:
        assert engine.await_ready(PATIENCE)
        assert [table.table for table in engine.pipeline_info("all").tables] == ["orders"]
        create(market, "items")
        market.put("items", 11)
        market.put("orders", 11)
        assert await_seen(lambda: equal(market, target, "items"))
        market.put("items", 3, version=7)
        market.source.emit_delete("items", 4)
        market.put("orders", 12)
        for table in ("items", "orders"):
            assert await_seen(lambda table=table: equal(market, target, table))  # type: ignore[misc]
        assert await_that(engine, lambda: engine.is_ready(table="items"))
        info = engine.pipeline_info("all")
        assert [(table.table, table.state) for table in info.tables] == [
            ("orders", "live"),
            ("items", "live"),
        ]
        assert info.tables[0].baseline == 1
        assert info.left_out == {}
        assert engine.schema("items").key == ("id",)
        assert engine.targets("shop", "items") == (target,)
        assert engine.targets("shop", "audit_log") == ()
    assert market.log().usable_baseline("audit_log") is None


@pytest.mark.meets("R12")
def test_after_a_restart_it_is_one_of_those_that_match(market: Market) -> None:
    disk = TargetDisk()
    before: set[int] = set()
    for life in (1, 2):
        target = ScriptedTarget(disk)
        with market.engine(market.pipeline(target, "*", name="all")) as engine:
            assert engine.await_ready(PATIENCE)
            if life == 1:
                create(market, "items")
                assert await_seen(lambda target=target: "items" in target.shown)  # type: ignore[misc]
            market.put("items", 20 + life)
            assert await_seen(lambda: len(disk.tables["items"].rows) == len(market.truth("items")))
            tables = engine.pipeline_info("all").tables
            assert {table.table for table in tables} == {"orders", "audit_log", "items"}
            # A copy may take several attempts, each with a number of its own.
            numbers = {table.baseline for table in tables}
            assert len(numbers) == 3
            assert 0 not in numbers
            assert life == 1 or numbers == before, "copied again"
            before = numbers
    assert disk.duplicates() == []
    assert target.calls["load"] == 0


@pytest.mark.meets("H2")
def test_a_pattern_that_nothing_matches_waits_for_the_first_table(tmp_path: Path) -> None:
    market, target = Market(tmp_path, ()), memory()
    with market.engine(market.pipeline(target, "orders_*")) as engine:
        assert engine.await_ready(PATIENCE)
        assert engine.source_info("shop").state == "watching"
        assert engine.pipelines()[0].name == "shop"
        assert engine.pipelines()[0].state == "waiting"
        create(market, "orders_1")
        assert await_seen(lambda: equal(market, target, "orders_1"))
        assert await_that(engine, lambda: engine.is_ready(table="orders_1"))
        assert engine.source_info("shop").state == "streaming"


def test_exact_names_and_patterns_of_several_pipelines_share_a_table(market: Market) -> None:
    one, all_, rest = memory(), memory(), memory()
    create(market, "items")
    pipelines = [
        market.pipeline(one, "orders", name="one"),
        market.pipeline(all_, "*", "!audit_*", name="all"),
        market.pipeline(rest, "audit_*", "items", name="rest"),
    ]
    with market.engine(*pipelines) as engine:
        assert engine.await_ready(PATIENCE)
        names = {i.name: {t.table for t in i.tables} for i in engine.pipelines()}
        assert names == {
            "one": {"orders"},
            "all": {"orders", "items"},
            "rest": {"items", "audit_log"},
        }
        create(market, "audit_more")
        assert await_seen(lambda: equal(market, rest, "audit_more"))
        assert "audit_more" not in [t.table for t in engine.pipeline_info("all").tables]


def test_a_table_that_does_not_fit_the_steps_is_left_out_and_named(market: Market) -> None:
    target = memory()
    pipeline = market.pipeline(target, "*", name="all", filters=[equals("status", "paid")])
    create(market, "odd", 0, id="int64")
    with market.engine(pipeline) as engine:
        assert engine.await_ready(PATIENCE)
        assert engine.pipeline_info("all").left_out["odd"].code == "pipeline.unknown_column"
        create(market, "odder", 0, id="int64")
        create(market, "items")
        assert await_seen(lambda: equal(market, target, "items"))
        assert await_that(engine, engine.is_ready)
        assert set(engine.pipeline_info("all").left_out) == {"odd", "odder"}


def test_a_pipeline_none_of_whose_tables_fit_is_not_ready(market: Market) -> None:
    pipeline = market.pipeline(memory(), "*", name="all", filters=[equals("paid", True)])
    with market.engine(pipeline) as engine:
        assert await_that(engine, lambda: engine.source_info("shop").state == "streaming")
        assert not engine.is_ready()
        assert set(engine.pipeline_info("all").left_out) == {"orders", "audit_log"}


class Fixed:
    """Takes the tables it is opened with, and no more."""

    def __init__(self) -> None:
        self.inner = ScriptedTarget()
        for name in ("check", "open", "load", "write", "row_count", "close"):
            setattr(self, name, getattr(self.inner, name))
        self.traits = self.inner.traits


def test_a_target_that_takes_no_more_tables_goes_on_with_those_it_has(market: Market) -> None:
    target = Fixed()
    with market.engine(market.pipeline(target, "*", name="all")) as engine:  # type: ignore[arg-type]
        assert engine.await_ready(PATIENCE)
        create(market, "items")
        assert await_that(engine, lambda: "items" in engine.pipeline_info("all").left_out)
        market.put("orders", 11)
        assert await_seen(lambda: (11,) in target.inner.rows("orders"))
        assert engine.is_ready()


@pytest.mark.meets("R23a")
def test_sqlite_tables_that_cannot_be_captured_are_left_out_and_named(shop: Shop) -> None:
    shop.app.execute("create table keyless (rowid, _rowid_, oid)")
    target = memory()
    pipeline = Pipeline(shop.source(), tables=["*"], target=target, name="all")
    with shop.engine(pipeline) as engine:
        assert engine.await_ready(PATIENCE)
        assert set(engine.pipeline_info("all").left_out) == {"keyless"}
        assert set(engine.source_info("shop").left_out) == {"keyless"}
        shop.app.execute("create table items (id integer primary key, name text)")
        shop.app.execute("insert into items values (1, 'a'), (2, 'b')")
        assert await_seen(lambda: len(seen(target, "items")) == 2)
        shop.app.execute("insert into items values (3, 'c')")
        shop.insert(range(100, 102))
        assert await_seen(lambda: len(seen(target, "items")) == 3)
        assert await_seen(lambda: 101 in seen(target, "orders"))
        shop.app.execute("insert into keyless values (1, 2, 3)")
        assert engine.source_info("shop").error is None
        assert engine.pipeline_info("all").tables[0].baseline == 1


@pytest.mark.process
def test_a_recorder_in_a_process_of_its_own_tells_what_it_found(shop: Shop) -> None:
    shop.app.execute("create table keyless (rowid, _rowid_, oid)")
    shop.app.execute("create table items (id integer primary key, price decimal(10, 2))")
    source = shop.source()
    pipeline = Pipeline(source, tables=["*"], target=memory(), name="all")
    with shop.engine(pipeline, recorder="process") as engine:
        assert engine.await_ready(PATIENCE)
        assert engine._state.recordings["shop"].found == source.describe(["items", "orders"])
        error = engine.source_info("shop").left_out["keyless"]
        assert error.code == "capture.unsupported_table"
        assert "primary key" in error.remedy


def test_a_table_that_is_dropped_is_left_out_and_its_rows_stay(shop: Shop) -> None:
    shop.app.execute("create table items (id integer primary key, name text)")
    shop.app.execute("insert into items values (1, 'a')")
    target = memory()
    pipeline = Pipeline(shop.source(), tables=["*"], target=target, name="all")
    with shop.engine(pipeline) as engine:
        assert engine.await_ready(PATIENCE)
        shop.app.execute("drop table items")
        assert await_that(engine, lambda: "items" in engine.pipeline_info("all").left_out)
        shop.insert(range(100, 102))
        assert await_seen(lambda: 101 in seen(target, "orders"))
        assert await_that(engine, engine.is_ready)
        assert len(seen(target, "items")) == 1
        shop.app.execute("create table items (id integer primary key, name text)")
        shop.app.execute("insert into items values (7, 'new')")
        assert await_seen(lambda: list(seen(target, "items")) == [7])
        assert await_that(engine, engine.is_ready)
        assert engine.pipeline_info("all").left_out == {}


def test_what_is_only_recorded_may_be_a_pattern(market: Market) -> None:
    engine = Engine(
        data=market.data, records=[(market.source, ["*", "!audit_*"])], recorder="thread"
    )
    with engine:
        assert await_that(engine, lambda: engine.is_ready(table="orders"))
        create(market, "items")
        assert await_that(engine, lambda: engine.is_ready(table="items"))
        assert not engine.is_ready(table="audit_log")
    assert market.log().usable_baseline("items") is not None


class Unlisted(MemorySource):
    """Cannot say which tables it has."""

    def __init__(self) -> None:
        super().__init__("shop")
        self.traits = type(self.traits)(lineage="test")


def test_a_pattern_needs_a_source_that_lists_its_tables(tmp_path: Path) -> None:
    engine = Engine(
        Pipeline(Unlisted(), tables=["*"], target=memory()), data=tmp_path, runner=ArrowRunner()
    )
    with pytest.raises(InvalidConfiguration, match="list its tables"):
        engine.start()


def test_there_must_be_something_to_take_tables_away_from(market: Market) -> None:
    with pytest.raises(BadTransform, match="none includes any"):
        market.pipeline(memory(), "orders", "!audit_*")


def test_no_table_counts_as_gone_before_the_recorder_has_looked(market: Market) -> None:
    with market.engine(market.pipeline(memory(), "*", name="all")) as engine:
        assert engine.await_ready(PATIENCE)
        silent = SourceRun("shop", "test", market.log(), lambda: None, time.time)
        woken: list[PipelineRun] = []
        engine._state.tables.grow(silent, woken.append)
        assert woken == []
        assert engine.is_ready()


def schema(table: TableName, world: Stepping) -> TableSchema:
    return world.source.describe([table])[table]


@pytest.mark.meets("R12", "R23d")
def test_step_by_step_a_new_table_joins_where_the_others_stand() -> None:
    world = Stepping(("orders",))
    world.put(1)
    target = ScriptedTarget()
    run = world.run(Pipeline(world.source, "orders", target, tables=["*"]))
    world.settle(run)
    assert run.ready
    world.source.set_schema("items", {"id": "int64", "status": "text"}, ["id"])
    world.recorder = type(world.recorder)(
        world.source, world._open_log, ["orders", "items"], world.recorder._clock
    )
    world.recorder.step([], 0)
    world.put(1, table="items")
    known = {name: schema(name, world) for name in ("orders", "items")}
    assert run.new_tables.update(known, {}, run.tables)
    assert run.step() != IDLE or world.asked == ["items"]
    assert [member.state for member in run.members] == ["live", "waiting"]
    assert not run.ready
    world.put(2)
    world.settle(run)
    assert run.ready
    assert len({member.reached for member in run.members}) == 1
    assert set(target.rows("items")) == {(1,)}
    assert set(target.rows("orders")) == {(1,), (2,)}
    assert not run.new_tables.update(known, {}, run.tables)
    # Gone before it could be loaded: nobody waits for it.
    run.ask_reload("items", 99)
    del known["items"]
    assert run.new_tables.update(known, {}, run.tables)
    run.step()
    assert run.ready
