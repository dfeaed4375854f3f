"""Pipelines taken into an engine at work, and out of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.capture.sqlite.source import sqlite
from headrace.control.engine import Engine
from headrace.errors import InvalidConfiguration, NotRunning
from headrace.pipeline.definition import Pipeline
from headrace.pipeline.steps import equals
from headrace.targets.memory import IndexedMemory, memory
from tests.support.arrow_runner import ArrowRunner
from tests.support.file_target import FileTarget
from tests.support.shop import PATIENCE, Shop, await_seen


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
    with Engine(first, data=shop.data, runner=ArrowRunner()) as engine:
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
    with Engine(*both, data=shop.data, runner=ArrowRunner()) as engine:
        assert engine.await_ready(PATIENCE)
        assert await_seen(lambda: again.row_count("orders") == 22)


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
