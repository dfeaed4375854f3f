"""Rows that cannot be computed are set aside with what follows them; all others go on."""

from __future__ import annotations

import pytest

from headrace.pipeline.definition import DeadLetters, Pipeline
from headrace.targets.memory import IndexedMemory, memory
from headrace.testing.target import ScriptedTarget
from tests.control.stepping import Stepping
from tests.support.arrow_runner import ArrowRunner, Row
from tests.support.shop import PATIENCE, Market, await_seen, await_that


def fails(pipeline: Pipeline, row: Row) -> str | None:
    return "DIVIDE_BY_ZERO" if row["status"] == "bad" else None


def status(orders: IndexedMemory, key: int) -> object:
    row = orders.get(key)
    return None if row is None else row["status"]


@pytest.mark.meets("R30", "S2")
def test_a_batch_goes_on_without_the_row_that_failed(market: Market) -> None:
    orders = memory()
    with market.engine(market.pipeline(orders), runner=ArrowRunner(fails=fails)) as engine:
        assert engine.await_ready(PATIENCE)
        with market.source.transaction():
            market.put("orders", 1, status="sent")
            market.put("orders", 2, status="bad")
            market.put("orders", 3, status="sent")
        failed_at = market.source.position.commit
        assert await_that(engine, lambda: status(orders, 3) == "sent")
        assert status(orders, 1) == "sent"
        assert status(orders, 2) == "paid"
        assert engine.is_ready()
        info = engine.pipeline_info("orders")
        assert info.dead_letters == 1
        assert info.error is None
        (letter,) = engine.dead_letters()
        assert engine.dead_letters("orders") == (letter,)
    assert letter.pipeline == letter.table == "orders"
    assert (letter.position.commit, letter.position.ordinal) == (failed_at, 1)
    assert (letter.op, letter.kind, letter.code) == ("update", "failed", "DIVIDE_BY_ZERO")
    assert letter.key == (2,)
    assert letter.before == {"id": 2, "status": "paid", "version": 0}
    assert letter.after == {"id": 2, "status": "bad", "version": 0}
    assert letter.lineage == "test/1"
    assert letter.baseline is None
    assert letter.superseded is None


@pytest.mark.meets("R30")
def test_later_changes_of_the_row_are_parked_behind_it_in_order(market: Market) -> None:
    orders = memory()
    with market.engine(market.pipeline(orders), runner=ArrowRunner(fails=fails)) as engine:
        assert engine.await_ready(PATIENCE)
        market.put("orders", 2, status="bad")
        market.put("orders", 2, status="good")
        assert await_that(engine, lambda: len(engine.dead_letters()) == 2)
        market.put("orders", 2, status="better")
        market.source.emit_delete("orders", 2)
        market.put("orders", 4, status="sent")
        assert await_that(engine, lambda: status(orders, 4) == "sent")
        letters = engine.dead_letters()
        assert [(each.kind, each.op) for each in letters] == [
            ("failed", "update"),
            ("behind", "update"),
            ("behind", "update"),
            ("behind", "delete"),
        ]
        assert [each.position for each in letters] == sorted(each.position for each in letters)
        assert {each.key for each in letters} == {(2,)}
        assert status(orders, 2) == "paid"


@pytest.mark.meets("R30", "R8")
def test_progress_and_acknowledgement_pass_what_is_set_aside(market: Market) -> None:
    target = ScriptedTarget()
    engine = market.engine(market.pipeline(target), runner=ArrowRunner(fails=fails))
    with engine:
        assert engine.await_ready(PATIENCE)
        market.put("orders", 2, status="bad")
        assert market.source.wait_until_acknowledged(PATIENCE)
        assert engine.pipeline_info("orders").position.commit == market.source.position.commit
    with engine:
        assert engine.await_ready(PATIENCE)
        market.put("orders", 2, status="good")
        assert await_that(engine, lambda: len(engine.dead_letters()) == 2)
    assert target.rows("orders")[(2,)]["status"] == "paid"
    assert target.disk.duplicates() == []


@pytest.mark.meets("R30")
def test_a_table_built_again_has_the_same_letters_once(market: Market) -> None:
    orders = memory()
    engine = market.engine(market.pipeline(orders), runner=ArrowRunner(fails=fails))
    with engine:
        assert engine.await_ready(PATIENCE)
        market.put("orders", 2, status="bad")
        market.put("orders", 2, status="good")
        market.put("orders", 3, status="sent")
        assert await_that(engine, lambda: status(orders, 3) == "sent")
        before = engine.dead_letters()
    for _ in range(2):
        with engine:
            assert engine.await_ready(PATIENCE)
            assert engine.dead_letters() == before
            assert engine.dead_letters(superseded=True) == before
            assert (status(orders, 2), status(orders, 3)) == ("paid", "sent")


@pytest.mark.meets("R30")
def test_a_row_of_the_baseline_that_fails_holds_its_key(market: Market) -> None:
    market.source.add_row("orders", {"id": 50, "status": "bad", "version": 0})
    orders = memory()
    engine = market.engine(market.pipeline(orders), runner=ArrowRunner(fails=fails))
    with engine:
        assert engine.await_ready(PATIENCE)
        assert orders.count() == 10
        market.put("orders", 50, status="good")
        market.put("orders", 3, status="sent")
        assert await_that(engine, lambda: status(orders, 3) == "sent")
        assert orders.get(50) is None
        first, second = engine.dead_letters()
        assert (first.op, first.baseline, first.key) == ("baseline", 1, (50,))
        assert first.before is None
        assert (second.op, second.kind) == ("update", "behind")
    with engine:
        assert engine.await_ready(PATIENCE)
        assert engine.dead_letters() == (first, second)
        assert orders.get(50) is None


@pytest.mark.meets("R30", "R23")
def test_a_change_of_the_key_takes_the_hold_along(market: Market) -> None:
    orders = memory()
    with market.engine(market.pipeline(orders), runner=ArrowRunner(fails=fails)) as engine:
        assert engine.await_ready(PATIENCE)
        market.put("orders", 2, status="bad")
        market.source.emit_update("orders", {"id": 20, "status": "good", "version": 0}, key=[2])
        market.put("orders", 20, status="better")
        market.put("orders", 4, status="sent")
        assert await_that(engine, lambda: status(orders, 4) == "sent")
        assert [letter.key for letter in engine.dead_letters()] == [(2,), (20,), (20,)]
        assert status(orders, 2) == "paid"
        assert orders.get(20) is None


@pytest.mark.meets("R30", "R23d")
def test_a_truncate_lets_go_of_what_was_held(market: Market) -> None:
    orders = memory()
    with market.engine(market.pipeline(orders), runner=ArrowRunner(fails=fails)) as engine:
        assert engine.await_ready(PATIENCE)
        market.put("orders", 2, status="bad")
        assert await_that(engine, lambda: len(engine.dead_letters()) == 1)
        market.source.emit_truncate("orders")
        market.put("orders", 2, status="good")
        assert await_that(engine, lambda: orders.count() == 1)
        assert status(orders, 2) == "good"
        assert engine.dead_letters() == ()
        (letter,) = engine.dead_letters(superseded=True)
        assert letter.superseded == "truncate"


@pytest.mark.meets("R30", "R23d")
@pytest.mark.slow
def test_a_truncate_lets_go_of_it_in_a_table_that_is_built_again() -> None:
    world = Stepping()
    orders = memory()
    pipeline = Pipeline(world.source, "orders", orders)
    world.put(1)
    run = world.run(pipeline, ArrowRunner(world.disk, fails))
    world.settle(run)
    world.put(2, "bad")
    # More flushes between the two than one batch of the rebuilding holds.
    for key in range(100, 170):
        world.put(key)
        world.settle(run)
    world.source.emit_truncate("orders")
    world.flush()
    for key in range(200, 270):
        world.put(key)
    world.put(2, "good")
    world.settle(run)
    assert orders.count() == 71
    assert run.delivery.dead_letter_count == 0
    run.close()
    run = world.run(pipeline, ArrowRunner(world.disk, fails))
    world.settle(run)
    assert run.ready
    assert orders.count() == 71
    assert status(orders, 2) == "good"
    assert run.delivery.dead_letter_count == 0


@pytest.mark.meets("R30")
def test_more_failures_in_a_batch_than_allowed_stop_the_pipeline(market: Market) -> None:
    orders = memory()
    pipeline = market.pipeline(orders, on_error=DeadLetters(max_per_batch=2))
    with market.engine(pipeline, runner=ArrowRunner(fails=fails)) as engine:
        assert engine.await_ready(PATIENCE)
        with market.source.transaction():
            for key in (1, 2, 3):
                market.put("orders", key, status="bad")
        assert await_that(engine, lambda: engine.pipeline_info("orders").state == "failed")
        error = engine.pipeline_info("orders").error
        assert error is not None
        assert error.code == "pipeline.too_many_failed"
        assert engine.dead_letters() == ()
        assert orders.count() == 10


@pytest.mark.meets("R12", "R30")
@pytest.mark.parametrize("durable", [False, True])
def test_a_reload_rescues_a_pipeline_that_stopped_on_rows_mended_at_the_source(
    market: Market, durable: bool
) -> None:
    scripted, orders = ScriptedTarget(), memory()
    pipeline = market.pipeline(
        scripted if durable else orders, on_error=DeadLetters(max_per_batch=2)
    )
    with market.engine(pipeline, runner=ArrowRunner(fails=fails)) as engine:
        assert engine.await_ready(PATIENCE)
        with market.source.transaction():
            for key in (1, 2, 3):
                market.put("orders", key, status="bad")
        assert await_that(engine, lambda: engine.pipeline_info("orders").state == "failed")
        for key in (1, 2, 3):
            market.put("orders", key, status="mended")
        assert engine.reload(market.source.name, "orders", timeout=PATIENCE)
        assert engine.await_ready(PATIENCE)
        market.put("orders", 4, status="sent")

        def shown() -> list[object]:
            if durable:
                rows = scripted.rows("orders")
                return [rows[(key,)]["status"] for key in (1, 2, 3, 4)]
            return [status(orders, key) for key in (1, 2, 3, 4)]

        assert await_seen(lambda: shown() == ["mended", "mended", "mended", "sent"])
        assert engine.dead_letters() == ()


@pytest.mark.meets("R30")
def test_more_held_rows_than_allowed_stop_the_pipeline(market: Market) -> None:
    target = ScriptedTarget()
    pipeline = market.pipeline(target, on_error=DeadLetters(max_keys=2))
    with market.engine(pipeline, runner=ArrowRunner(fails=fails)) as engine:
        assert engine.await_ready(PATIENCE)
        for key in (1, 2):
            market.put("orders", key, status="bad")
            market.put("orders", key, status="good")
        assert await_that(engine, lambda: len(engine.dead_letters()) == 4)
        assert engine.is_ready()
        market.put("orders", 3, status="bad")
        assert await_that(engine, lambda: engine.pipeline_info("orders").state == "failed")
        error = engine.pipeline_info("orders").error
        assert error is not None
        assert error.code == "pipeline.too_many_failed"
        assert len(engine.dead_letters()) == 4


@pytest.mark.meets("R30")
def test_a_pipeline_that_is_to_stop_at_a_failing_row_does(market: Market) -> None:
    fixed: list[bool] = []

    def until_fixed(pipeline: Pipeline, row: Row) -> str | None:
        return None if fixed else fails(pipeline, row)

    target = ScriptedTarget()
    pipeline = market.pipeline(target, on_error="stop")
    with market.engine(pipeline, runner=ArrowRunner(fails=until_fixed)) as engine:
        assert engine.await_ready(PATIENCE)
        market.put("orders", 1, status="bad")
        assert await_that(engine, lambda: engine.pipeline_info("orders").state == "failed")
        error = engine.pipeline_info("orders").error
        assert error is not None
        assert error.code == "pipeline.row_failed"
        assert engine.dead_letters() == ()
        fixed.append(True)
        engine.resume()
        assert engine.await_ready(PATIENCE)
        assert await_seen(lambda: target.rows("orders")[(1,)]["status"] == "bad")


@pytest.mark.meets("R30")
def test_letters_are_kept_apart_by_pipeline(market: Market) -> None:
    first, second = memory(), memory()

    def only_first(pipeline: Pipeline, row: Row) -> str | None:
        return fails(pipeline, row) if pipeline.name == "first" else None

    engine = market.engine(
        market.pipeline(first, name="first"),
        market.pipeline(second, name="second"),
        runner=ArrowRunner(fails=only_first),
    )
    with engine:
        assert engine.await_ready(PATIENCE)
        market.put("orders", 1, status="bad")
        assert await_that(engine, lambda: status(second, 1) == "bad")
        assert await_that(engine, lambda: len(engine.dead_letters()) == 1)
        assert len(engine.dead_letters("first")) == 1
        assert engine.dead_letters("second") == ()
        assert status(first, 1) == "paid"
