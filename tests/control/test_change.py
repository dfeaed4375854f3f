"""Pipelines taken into an engine at work, and out of it; also where that meets trouble."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal

import pytest

from headrace.capture.sqlite.source import sqlite
from headrace.changelog.position import Position
from headrace.changelog.schema import TableName, TableSchema
from headrace.engine import state
from headrace.engine.engine import Engine
from headrace.errors import ControlError, InvalidConfiguration, NotRunning, StorageError
from headrace.lake.formats import DELTA
from headrace.lake.target import table
from headrace.pipeline.definition import Pipeline
from headrace.pipeline.steps import equals
from headrace.targets.memory import IndexedMemory, memory
from tests.support.arrow_runner import ArrowRunner
from tests.support.file_target import FileTarget
from tests.support.shop import PATIENCE, Shop, await_seen

in_a_process = pytest.mark.parametrize(
    "engine", [pytest.param("process", marks=pytest.mark.process)], indirect=True
)
"""For what is said of the recorder's process; else it is not the point, and takes its time."""


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    """A shop with two tables that nobody takes yet, and that hold nothing."""
    made = Shop(tmp_path)
    made.app.execute("create table customers (id integer primary key, name text)")
    made.app.execute("create table carts (id integer primary key)")
    yield made
    made.close()


@pytest.fixture
def orders() -> IndexedMemory:
    return memory()


@pytest.fixture
def engine(request: pytest.FixtureRequest, shop: Shop, orders: IndexedMemory) -> Iterator[Engine]:
    """An engine whose recorder runs on a thread, unless a test asks for a process."""
    pipeline = Pipeline(shop.source(), "orders", orders, name="orders")
    recorder: Literal["process", "thread"] = getattr(request, "param", "thread")
    with Engine(pipeline, data=shop.data, runner=ArrowRunner(), recorder=recorder) as engine:
        assert engine.await_ready(PATIENCE)
        yield engine


def engine_of(
    shop: Shop,
    *pipelines: Pipeline,
    runner: ArrowRunner | None = None,
    recorder: Literal["process", "thread"] = "thread",
) -> Engine:
    return Engine(*pipelines, data=shop.data, runner=runner or ArrowRunner(), recorder=recorder)


@in_a_process
def test_a_pipeline_of_a_table_that_is_recorded_joins_without_another_copy(
    engine: Engine, shop: Shop, orders: IndexedMemory
) -> None:
    pid = engine.source_info("shop").recorder_pid
    paid = memory()
    engine.change([Pipeline(shop.source(), "orders", paid, name="paid")])
    assert engine.await_ready(PATIENCE)
    assert paid.count() == orders.count() == 10
    shop.insert(range(100, 103))
    assert await_seen(lambda: paid.count() == orders.count() == 13)
    assert engine.source_info("shop").recorder_pid == pid, "the recorder was not needed for that"
    found = shop.log().usable_baseline("orders")
    assert found is not None
    assert found.baseline == 1


def test_a_table_that_was_not_recorded_is_copied_and_followed_while_others_are_read(
    engine: Engine, shop: Shop, orders: IndexedMemory
) -> None:
    shop.app.execute("insert into customers values (1, 'a'), (2, 'b')")
    customers = memory()
    engine.change([Pipeline(shop.source(), "customers", customers, name="customers")])
    assert orders.count() == 10
    assert engine.await_ready(PATIENCE)
    shop.app.execute("insert into customers values (3, 'c')")
    shop.insert(range(100, 101))
    assert await_seen(lambda: (customers.count(), orders.count()) == (3, 11))


def test_one_that_goes_is_forgotten_and_begins_anew_when_it_comes_again(
    engine: Engine, shop: Shop, tmp_path: Path
) -> None:
    target = FileTarget(tmp_path / "target.db")
    kept = Pipeline(shop.source(), "orders", target, name="kept")
    engine.change([kept])
    assert engine.await_ready(PATIENCE)
    engine.change(drop=["kept"])
    assert [each.name for each in engine.pipelines()] == ["orders"]
    with pytest.raises(NotRunning):
        engine.pipeline_info("kept")
    shop.app.execute("delete from orders where id < 5")
    again = FileTarget(tmp_path / "target.db")
    engine.change([Pipeline(shop.source(), "orders", again, name="kept")])
    assert engine.await_ready(PATIENCE)
    left = len(shop.truth())
    assert await_seen(lambda: again.row_count("orders") == left)


def test_one_that_is_another_now_takes_the_place_of_the_one_of_its_name(
    engine: Engine, shop: Shop
) -> None:
    shop.insert(range(50, 53), status="open")
    paid = memory()
    engine.change(
        [
            Pipeline(
                shop.source(), "orders", paid, name="orders", filters=[equals("status", "open")]
            )
        ],
        drop=["orders"],
    )
    assert engine.await_ready(PATIENCE)
    assert engine.target("orders") is paid
    assert await_seen(lambda: paid.count() == 3)


def test_what_is_wrong_with_an_addition_is_told_and_nothing_has_changed(
    engine: Engine, shop: Shop, orders: IndexedMemory
) -> None:
    wrong = [
        Pipeline(shop.source(), "nothing", memory(), name="one"),
        Pipeline(shop.source(), "orders", memory(), name="orders"),
        Pipeline(sqlite(shop.path.parent / "gone.db", name="gone"), "t", memory(), name="two"),
    ]
    for each in wrong:
        with pytest.raises(InvalidConfiguration):
            engine.change([each])
    assert [each.name for each in engine.pipelines()] == ["orders"]
    assert [each.name for each in engine.sources()] == ["shop"]
    assert engine.is_ready()
    shop.insert(range(100, 101))
    assert await_seen(lambda: orders.count() == 11)


def test_sources_come_and_go_with_their_pipelines(
    engine: Engine, shop: Shop, tmp_path: Path
) -> None:
    (tmp_path / "other").mkdir()
    other = Shop(tmp_path / "other")
    rows = memory()
    engine.change([Pipeline(other.source("other"), "orders", rows, name="others")])
    assert engine.await_ready(PATIENCE)
    assert {each.name for each in engine.sources()} == {"shop", "other"}
    other.insert(range(100, 101))
    assert await_seen(lambda: rows.count() == 11)
    engine.change(drop=["others"])
    assert [each.name for each in engine.sources()] == ["shop"]
    other.close()


def test_an_engine_stops_in_order_after_changes(
    shop: Shop, orders: IndexedMemory, tmp_path: Path
) -> None:
    target = FileTarget(tmp_path / "target.db")
    first = Pipeline(shop.source(), "orders", orders, name="orders")
    with engine_of(shop, first) as engine:
        engine.change([Pipeline(shop.source(), "orders", target, name="kept")])
        assert engine.await_ready(PATIENCE)
        shop.insert(range(100, 110))
        assert await_seen(lambda: target.row_count("orders") == 20)
    with pytest.raises(NotRunning):
        engine.change(drop=["kept"])
    # What was taken in lives on as any other: it goes on where it stood.
    again = FileTarget(tmp_path / "target.db")
    shop.insert(range(110, 112))
    both = [Pipeline(shop.source(), "orders", again, name="kept")]
    with engine_of(shop, *both) as engine:
        assert engine.await_ready(PATIENCE)
        assert await_seen(lambda: again.row_count("orders") == 22)


@in_a_process
def test_a_source_that_is_read_otherwise_is_recorded_anew_and_its_pipelines_go_on(
    engine: Engine, shop: Shop, orders: IndexedMemory
) -> None:
    before = engine.source_info("shop").recorder_pid
    engine.change(sources=[sqlite(shop.path, name="shop", copy_rows_per_s=1e6)])
    shop.insert(range(100, 103))
    assert await_seen(lambda: orders.count() == 13)
    assert engine.await_ready(PATIENCE)
    assert engine.source_info("shop").recorder_pid != before
    found = shop.log().usable_baseline("orders")
    assert found is not None
    assert found.baseline == 1, "copied again"


# -- where it meets trouble: nothing is lost, and nothing stays half -------------------------


class Locked(FileTarget):
    """Cannot be opened, or closed, until somebody says so."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.away = True
        self.opening = threading.Event()
        self.go_on = threading.Event()
        self.go_on.set()

    def open(
        self, tables: Mapping[TableName, TableSchema], at: Mapping[TableName, Position]
    ) -> None:
        self.opening.set()
        self.go_on.wait(PATIENCE)
        if self.away:
            raise StorageError("The target is away")
        super().open(tables, at)


def test_a_target_that_cannot_be_opened_is_tried_again_as_at_a_start(
    engine: Engine, shop: Shop, orders: IndexedMemory, tmp_path: Path
) -> None:
    target = Locked(tmp_path / "target.db")
    engine.change([Pipeline(shop.source(), "orders", target, name="kept")])
    error = engine.pipeline_info("kept").error
    assert isinstance(error, StorageError)
    assert engine.is_ready(pipeline="orders")
    target.away = False
    assert engine.await_ready(PATIENCE)
    shop.insert(range(100, 102))
    assert await_seen(lambda: target.row_count("orders") == orders.count() == 12)


@pytest.mark.meets("R8")
def test_a_target_whose_open_hangs_holds_up_no_acknowledgement_and_no_other_pipeline(
    engine: Engine, shop: Shop, orders: IndexedMemory, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(state, "_OPEN_SECONDS", 0.05)
    target = Locked(tmp_path / "target.db")
    target.away = False
    target.go_on.clear()
    engine.change([Pipeline(shop.source(), "orders", target, name="kept")])
    shop.insert(range(100, 103))
    assert await_seen(lambda: orders.count() == 13)
    assert await_seen(lambda: shop.cursor() >= shop.captured())
    assert engine.is_ready(pipeline="orders")
    assert not engine.is_ready(pipeline="kept")
    target.go_on.set()
    assert engine.await_ready(PATIENCE)
    assert await_seen(lambda: target.row_count("orders") == 13)


def test_a_target_whose_close_hangs_holds_up_no_change_for_long(
    shop: Shop, orders: IndexedMemory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, go_on = FileTarget(tmp_path / "target.db"), threading.Event()
    source = shop.source()
    first = Pipeline(source, "orders", orders, name="orders")
    kept = Pipeline(source, "orders", target, name="kept")
    with Engine(
        first, kept, data=shop.data, runner=ArrowRunner(), recorder="thread", shutdown_timeout=0.6
    ) as engine:
        assert engine.await_ready(PATIENCE)
        monkeypatch.setattr(target, "close", go_on.wait)
        with pytest.raises(ControlError, match="target of pipeline kept did not answer in time"):
            engine.change(drop=["kept"])
        shop.insert(range(100, 103))
        assert await_seen(lambda: shop.cursor() >= shop.captured())
        # The same target object is not opened before that call returns.
        engine.change([kept])
        error = engine.pipeline_info("kept").error
        assert error is not None
        assert "has not returned" in error.message
        go_on.set()
        assert engine.await_ready(PATIENCE)


def test_a_target_that_cannot_be_closed_goes_all_the_same(
    engine: Engine, shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = FileTarget(tmp_path / "target.db")
    engine.change([Pipeline(shop.source(), "orders", target, name="kept")])
    assert engine.await_ready(PATIENCE)

    def close() -> None:
        raise StorageError("No way")

    monkeypatch.setattr(target, "close", close)
    with pytest.raises(StorageError):
        engine.change(drop=["kept"])
    assert [each.name for each in engine.pipelines()] == ["orders"]
    with pytest.raises(NotRunning):
        engine.change(drop=["kept"])


@pytest.mark.meets("R8")
def test_nothing_is_acknowledged_before_the_new_pipeline_is_open(
    shop: Shop, orders: IndexedMemory, tmp_path: Path
) -> None:
    target = Locked(tmp_path / "target.db")
    target.away = False
    source = shop.source()
    first = Pipeline(source, "orders", orders, name="orders")
    kept = Pipeline(source, "orders", target, name="kept")
    with engine_of(shop, first, kept) as engine:
        assert engine.await_ready(PATIENCE)
        engine.pause("kept")
        shop.insert(range(100, 110))
        assert await_seen(lambda: orders.count() == 20)
    before = shop.cursor()
    again = Locked(tmp_path / "target.db")
    again.away = False
    again.go_on.clear()
    with engine_of(shop, first) as engine:
        adding = threading.Thread(
            target=engine.change,
            args=([Pipeline(shop.source(), "orders", again, name="kept")],),
        )
        adding.start()
        assert again.opening.wait(PATIENCE)
        held = shop.cursor()
        engine._state.acknowledge()
        engine._state.notify()
        assert shop.cursor() == held
        again.go_on.set()
        adding.join(PATIENCE)
        engine.resume("kept")
        assert await_seen(lambda: again.row_count("orders") == 20)
    assert before <= held


def test_changes_alone_go_on_where_they_stood_with_other_steps(shop: Shop, tmp_path: Path) -> None:
    def changes(target: FileTarget) -> Pipeline:
        return Pipeline(shop.source(), "orders", target, name="kept", mode="changes")

    target = FileTarget(tmp_path / "target.db")
    with engine_of(shop, changes(target)) as engine:
        assert engine.await_ready(PATIENCE)
        shop.insert(range(100, 103))
        assert await_seen(lambda: target.row_count("orders") == 3)
        engine.pause("kept")
        shop.insert(range(200, 210))
        assert await_seen(lambda: shop.log().counts().rows == 13)
        again = FileTarget(tmp_path / "target.db")
        engine.change([changes(again)], drop=["kept"])
        assert engine.pipeline_info("kept").state == "paused"
        engine.resume("kept")
        assert await_seen(lambda: again.row_count("orders") == 13)


@pytest.mark.process
def test_a_stop_waits_for_a_change_and_leaves_no_recorder_behind(
    shop: Shop, orders: IndexedMemory, tmp_path: Path
) -> None:
    target = Locked(tmp_path / "target.db")
    target.away = False
    target.go_on.clear()
    first = Pipeline(shop.source(), "orders", orders, name="orders")
    engine = engine_of(shop, first, recorder="process")
    engine.start()
    (tmp_path / "other").mkdir()
    other = Shop(tmp_path / "other")
    kept = Pipeline(other.source("other"), "orders", target, name="kept")
    adding = threading.Thread(target=engine.change, args=([kept],))
    adding.start()
    assert target.opening.wait(PATIENCE)
    stopping = threading.Thread(target=engine.stop)
    stopping.start()
    target.go_on.set()
    adding.join(PATIENCE)
    stopping.join(PATIENCE)
    assert {each.state for each in engine.sources()} == {"closed"}
    with engine_of(shop, first) as again:
        assert again.await_ready(PATIENCE)
    other.close()


def test_a_second_pipeline_of_patterns_keeps_its_tables(shop: Shop, tmp_path: Path) -> None:
    first = Pipeline(shop.source(), target=memory(), tables=["ord*"], name="first")
    second = FileTarget(tmp_path / "target.db")
    with engine_of(shop, first) as engine:
        assert engine.await_ready(PATIENCE)
        engine.change([Pipeline(shop.source(), target=second, tables=["c*"], name="second")])
        assert engine.await_ready(PATIENCE)
        tables = [each.table for each in engine.pipeline_info("second").tables]
        assert tables == ["carts", "customers"]


def test_what_is_dropped_is_let_go_of_by_whoever_computed_it(engine: Engine, shop: Shop) -> None:
    runner = engine._state.runner
    assert isinstance(runner, ArrowRunner)
    engine.change([Pipeline(shop.source(), "customers", memory(), name="customers")])
    assert engine.await_ready(PATIENCE)
    engine.replay("customers", "memory")
    engine.change(drop=["customers"])
    assert runner.closed == ["customers.replay", "customers"]
    assert engine.await_ready(PATIENCE)


@pytest.mark.meets("R19")
def test_a_table_that_nobody_took_for_a_while_is_copied_again(engine: Engine, shop: Shop) -> None:
    def taken() -> IndexedMemory:
        target = memory()
        engine.change([Pipeline(shop.source(), "customers", target, name="customers")])
        assert engine.await_ready(PATIENCE)
        return target

    shop.app.execute("insert into customers values (1, 'a')")
    first = taken()
    assert await_seen(lambda: first.count() == 1)
    engine.change(drop=["customers"])
    shop.app.execute("delete from customers")
    shop.app.execute("insert into customers values (2, 'b'), (3, 'c')")
    again = taken()
    assert await_seen(lambda: {row["id"] for row in again.all()} == {2, 3})


class WithoutDelta:
    """A Spark that was started for targets that need nothing of it."""

    alive = True

    def __init__(self, *, own: bool) -> None:
        self.own = own

    def setting(self, name: str) -> str | None:
        return None


class RunnerOnSpark(ArrowRunner):
    """A runner that a target of tables takes for one on Spark."""

    def __init__(self, *, own: bool) -> None:
        super().__init__()
        self.spark = WithoutDelta(own=own)


@pytest.mark.meets("S16")
@pytest.mark.parametrize(
    ("own", "remedy"), [(True, "Restart the engine"), (False, "Start Spark with these settings")]
)
def test_a_target_that_this_spark_was_not_started_for_is_refused_with_what_to_do(
    shop: Shop, orders: IndexedMemory, own: bool, remedy: str
) -> None:
    first = Pipeline(shop.source(), "orders", orders, name="orders")
    lake = Pipeline(shop.source(), "customers", table("lake.customers"), name="lake")
    with engine_of(shop, first, runner=RunnerOnSpark(own=own)) as engine:
        assert engine.await_ready(PATIENCE)
        with pytest.raises(
            InvalidConfiguration, match="without the settings that delta needs"
        ) as caught:
            engine.change([lake])
        (error,) = caught.value.errors
        assert error.code == "pipeline.spark_failed"
        assert error.remedy.startswith(remedy)
        assert all(each in error.remedy for each in DELTA.settings.values())
        # Nothing has changed, and it can be asked for again.
        assert [each.name for each in engine.pipelines()] == ["orders"]
        assert engine.is_ready()
        with pytest.raises(InvalidConfiguration):
            engine.change([lake])
        shop.insert(range(100, 102))
        assert await_seen(lambda: orders.count() == 12)
