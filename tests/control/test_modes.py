"""What a pipeline takes: a baseline and the changes after it, or one of the two alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.engine.engine import Engine
from headrace.errors import HeadraceError
from headrace.pipeline.definition import Pipeline
from headrace.targets.memory import memory
from headrace.testing.target import ScriptedTarget
from tests.support.arrow_runner import ArrowRunner
from tests.support.shop import PATIENCE, Market, Shop, await_seen, await_that


@pytest.mark.meets("R12", "R8")
def test_a_baseline_alone_is_complete_and_takes_no_changes(market: Market) -> None:
    copy, orders = ScriptedTarget(), memory()
    engine = market.engine(
        market.pipeline(copy, name="copy", mode="baseline"), market.pipeline(orders, name="orders")
    )
    with engine:
        assert engine.await_ready(PATIENCE)
        assert engine.pipeline_info("copy").state == "complete"
        market.put("orders", 11)
        assert await_that(engine, lambda: orders.count() == 11)
        assert len(copy.rows("orders")) == 10
        # It is durable and behind, and nobody waits for it.
        assert market.source.wait_until_acknowledged(PATIENCE)
        assert engine.pipeline_info("copy").lag_seconds == 0
        assert engine.is_ready(pipeline="copy")
    with engine:
        assert engine.await_ready(PATIENCE)
        assert engine.pipeline_info("copy").state == "complete"
    assert len(copy.rows("orders")) == 10
    assert copy.calls["load"] == 1
    assert copy.calls["write"] == 0


def test_a_complete_table_is_taken_anew_by_a_reload(market: Market) -> None:
    copy = ScriptedTarget()
    with market.engine(market.pipeline(copy, mode="baseline")) as engine:
        assert engine.await_ready(PATIENCE)
        market.put("orders", 11)
        assert market.recorded(engine)
        assert engine.reload("shop", "orders", timeout=PATIENCE)
        assert engine.pipeline_info("orders").state == "complete"
        assert engine.is_ready()
    assert len(copy.rows("orders")) == 11


def test_changes_alone_begin_where_the_pipeline_begins(market: Market) -> None:
    orders = memory()
    engine = market.engine(market.pipeline(orders, mode="changes"))
    with engine:
        assert engine.await_ready(PATIENCE)
        assert orders.count() == 0
        market.put("orders", 11)
        market.put("orders", 3, status="sent")
        assert await_that(engine, lambda: orders.count() == 2)
        assert engine.pipeline_info("orders").state == "live"
        assert engine.pipeline_info("orders").tables[0].baseline == 0
    assert market.log().usable_baseline("orders") is None
    market.put("orders", 12)
    # In memory again from the same place on, and not from where this engine begins.
    with engine:
        assert engine.await_ready(PATIENCE)
        assert await_that(engine, lambda: orders.count() == 3)
        assert {row["id"] for row in orders.all()} == {3, 11, 12}


@pytest.mark.process
def test_changes_alone_wait_for_the_log_to_begin(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    source = shop.source()
    # A recorder in a process of its own comes later than the first look at its log.
    orders = memory()
    engine = Engine(
        Pipeline(source, "orders", orders, mode="changes"),
        data=shop.data,
        runner=ArrowRunner(),
        recorder="process",
    )
    with engine:
        assert engine.await_ready(PATIENCE)
        shop.insert(range(20, 25))
        assert await_that(engine, lambda: orders.count() == 5)
    shop.close()


def test_changes_go_on_at_a_durable_target_where_they_stood(market: Market) -> None:
    target = ScriptedTarget()
    engine = market.engine(market.pipeline(target, mode="changes"))
    with engine:
        assert engine.await_ready(PATIENCE)
        market.put("orders", 11)
        assert await_seen(lambda: (11,) in target.rows("orders"))
    market.put("orders", 12)
    with engine:
        assert await_seen(lambda: (12,) in target.rows("orders"))
    assert set(target.rows("orders")) == {(11,), (12,)}
    assert target.disk.duplicates() == []


def _error(found: HeadraceError | None) -> str:
    return found.code if found is not None else ""


@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.meets("R1")
def test_changes_that_the_log_lost_stop_a_pipeline_that_takes_no_baseline(
    market: Market, durable: bool
) -> None:
    target = ScriptedTarget() if durable else memory()
    engine = market.engine(
        market.pipeline(target, mode="changes"), market.pipeline(memory(), name="other")
    )
    with engine:
        assert engine.await_ready(PATIENCE)
        market.put("orders", 11)
        assert await_seen(lambda: target.row_count("orders") == 1)
    market.put("orders", 12)
    market.source.reset()
    with engine:
        assert await_that(engine, lambda: engine.pipeline_info("orders").state == "failed")
        assert _error(engine.pipeline_info("orders").error) == "control.changes_missing"
        # The other one takes a new baseline.
        assert await_that(engine, lambda: engine.is_ready(pipeline="other"))
        engine.resume("orders")
        assert await_that(engine, lambda: engine.pipeline_info("orders").state == "failed")


@pytest.mark.meets("R1")
def test_changes_that_the_log_loses_while_they_are_taken_stop_the_pipeline(
    market: Market,
) -> None:
    with market.engine(market.pipeline(memory(), mode="changes")) as engine:
        assert engine.await_ready(PATIENCE)
        market.source.reset()
        assert await_that(engine, lambda: engine.pipeline_info("orders").state == "failed")
        assert _error(engine.pipeline_info("orders").error) == "control.changes_missing"


@pytest.mark.parametrize("later", ["baseline_then_changes", "baseline"])
def test_what_began_without_a_baseline_takes_one_in_another_mode(
    market: Market, later: str
) -> None:
    target = ScriptedTarget()
    with market.engine(market.pipeline(target, mode="changes")) as engine:
        assert engine.await_ready(PATIENCE)
        market.put("orders", 11)
        assert await_seen(lambda: len(target.rows("orders")) == 1)
    with market.engine(market.pipeline(target, mode=later)) as engine:
        assert engine.await_ready(PATIENCE)
    assert len(target.rows("orders")) == 11


def test_a_complete_table_follows_in_another_mode(market: Market) -> None:
    target = ScriptedTarget()
    with market.engine(market.pipeline(target, mode="baseline")) as engine:
        assert engine.await_ready(PATIENCE)
        market.put("orders", 11)
        assert market.recorded(engine)
    with market.engine(market.pipeline(target)) as engine:
        assert engine.await_ready(PATIENCE)
        assert await_seen(lambda: len(target.rows("orders")) == 11)
    with market.engine(market.pipeline(target, mode="baseline")) as engine:
        assert engine.await_ready(PATIENCE)
        assert engine.pipeline_info("orders").state == "complete"
        market.put("orders", 12)
        assert market.recorded(engine)
    assert len(target.rows("orders")) == 11
    assert target.calls["load"] == 1
    assert target.disk.duplicates() == []
