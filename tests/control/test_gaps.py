"""The log loses changes, or is made anew: what cannot go on begins again, and nothing is mixed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from headrace.errors import ChangesMissing
from headrace.pipeline.definition import Pipeline
from headrace.runtime.pipeline_run import IDLE
from headrace.storage.files import Files
from headrace.targets.memory import IndexedMemory, memory
from headrace.testing.target import ScriptedTarget
from tests.control.stepping import Stepping
from tests.support.arrow_runner import ArrowRunner, Row
from tests.support.patience import patience
from tests.support.shop import Market


def replace_history(world: Stepping) -> None:
    """Begin a new life of the source, with a change that no log has."""
    world.source.emit_insert("orders", {"id": 77, "status": "unseen"})
    world.source.reset()
    for _ in range(3):
        world.recorder.step([], 0)
        world.recorder._retry_at = 0
    world.log.refresh()


@pytest.mark.meets("R1", "R12")
def test_a_gap_in_the_middle_of_a_step_shows_nothing_that_misses_changes() -> None:
    world = Stepping()
    world.put(1)
    world.take_baseline()
    target = memory()
    run = world.run(Pipeline(world.source, "orders", target))
    run.step()
    assert run.state == "catching_up"
    load_one = run._loads.load_one

    def overtaken() -> bool:
        replace_history(world)
        return load_one()

    run._loads.load_one = overtaken  # type: ignore[method-assign]
    run.step()
    assert target.row_count("orders") is None
    run._loads.load_one = load_one  # type: ignore[method-assign]
    world.settle(run)
    assert run.ready
    assert {row["id"] for row in target.all()} == {1, 77}


@pytest.mark.meets("R1", "R12")
def test_progress_that_is_stored_late_keeps_the_history_that_it_belongs_to() -> None:
    world = Stepping()
    pipeline = Pipeline(world.source, "orders", ScriptedTarget(), mode="changes")
    run = world.run(pipeline)
    world.put(1)
    world.settle(run)
    for _ in range(2):
        world.source.emit_marker("no rows")  # such a position is stored now and then
        world.flush()
        world.settle(run)
    followed = run.members[0].lineage
    assert run.members[0].reached > run.members[0].stored
    replace_history(world)
    assert world.log.lineage != followed
    world.settle(run)
    assert isinstance(run.error, ChangesMissing)
    run.close()
    # With the new one's name, it would go on in a log that has never had the changes between.
    assert run.context.store.lineage(run.name, "orders") == followed


@pytest.mark.meets("R1", "R12")
@pytest.mark.parametrize("durable", [False, True])
def test_a_gap_during_a_reload_means_a_baseline_after_it(durable: bool) -> None:
    world = Stepping()
    world.put(1)
    target = ScriptedTarget() if durable else memory()
    run = world.run(Pipeline(world.source, "orders", target))
    world.settle(run)
    newest = world.log.usable_baseline("orders")
    assert newest is not None
    run.ask_reload("orders", newest.baseline)
    while run.step() != IDLE:
        pass
    assert run.members[0].state == "reloading"
    world.take_baseline()
    run.step()
    assert run.members[0].load is not None
    replace_history(world)
    world.settle(run)
    assert run.ready
    assert not run.reloading("orders")
    assert target.row_count("orders") == 2


@pytest.mark.meets("R1", "R12")
def test_a_reload_owed_from_a_log_that_is_gone_takes_the_first_baseline_of_the_next() -> None:
    world = Stepping()
    world.put(1)
    target = memory()
    pipeline = Pipeline(world.source, "orders", target)
    for _ in range(4):
        world.take_baseline()
    run = world.run(pipeline)
    world.settle(run)
    run.ask_reload("orders", 4)
    run.close()
    # The log is moved away; control keeps what it knows.
    anew = Stepping()
    anew.connection = world.connection
    anew.put(1)
    run = anew.run(Pipeline(anew.source, "orders", target))
    anew.settle(run)
    assert run.ready
    assert run.members[0].baseline == 1


@pytest.mark.meets("R1", "R30")
@pytest.mark.parametrize("durable", [False, True])
def test_letters_of_a_log_that_is_gone_hold_nothing_in_the_next(durable: bool) -> None:
    def fails(pipeline: Pipeline, row: Row) -> str | None:
        return "X" if row["status"] == "bad" else None

    world = Stepping()
    target = ScriptedTarget() if durable else memory()
    run = world.run(Pipeline(world.source, "orders", target), ArrowRunner(world.disk, fails))
    world.settle(run)
    for key in range(1, 30):
        world.put(key)
    world.put(1, "bad")
    world.settle(run)
    assert run.delivery.dead_letter_count == 1
    run.close()
    # The database was made anew and its log moved away; its numbers are lower than before.
    anew = Stepping(life=2)
    anew.connection = world.connection
    old, new = (Files(each.disk, "/data/dead-letters/orders") for each in (world, anew))
    new.make_folder("")
    for name in old.list(""):
        new.create(name, old.read(name))
    run = anew.run(Pipeline(anew.source, "orders", target), ArrowRunner(anew.disk, fails))
    anew.settle(run)
    for key in range(1, 60):
        anew.put(key)
    anew.put(1, "good")
    anew.settle(run)
    assert run.ready
    assert run.delivery.dead_letter_count == 0
    assert target.row_count("orders") == 59
    last = target.get(1) if isinstance(target, IndexedMemory) else target.rows("orders")[(1,)]
    assert last is not None
    assert last["status"] == "good"


@pytest.mark.meets("R1", "R30")
def test_baselines_of_a_log_made_anew_have_numbers_that_nothing_old_has(tmp_path: Path) -> None:
    # A letter names its baseline by number: one of a lost log was taken for that of a reload
    # under way, and let go of a row that it held.
    market = Market(tmp_path)
    with market.engine(market.pipeline(memory())) as engine:
        assert engine.await_ready(patience())
        assert engine.reload("shop", "orders", timeout=patience())
        [table] = engine.pipelines()[0].tables
        assert table.baseline == 2
    shutil.rmtree(tmp_path / "data" / "log")
    with market.engine(market.pipeline(memory())) as engine:
        assert engine.await_ready(patience())
        [table] = engine.pipelines()[0].tables
        assert table.baseline == 3
