"""A pipeline that gives way holds nothing at its source, and is exact again afterwards."""

from __future__ import annotations

import random

import pytest

from headrace.errors import ChangesMissing, CorruptSegment, TargetError
from headrace.pipeline.definition import Pipeline
from headrace.runtime.pipeline_run import IDLE, PipelineRun
from headrace.targets.memory import IndexedMemory, memory
from headrace.testing.target import Key, Row, ScriptedTarget
from tests.control.stepping import Stepping


def steps(run: PipelineRun) -> None:
    while run.step() != IDLE:
        pass


def following(world: Stepping, target: ScriptedTarget, **options: str) -> PipelineRun:
    """Return a run of a pipeline that follows the log, in a new life."""
    run = world.run(Pipeline(world.source, "orders", target, **options))  # type: ignore[arg-type]
    world.settle(run)
    return run


@pytest.mark.meets("R28", "R8")
def test_a_paused_pipeline_that_is_set_aside_holds_nothing_and_is_exact_after_resume() -> None:
    world = Stepping()
    world.put(1)
    target = ScriptedTarget()
    run = following(world, target)
    run.pause()
    for key in range(2, 6):
        world.put(key)
    steps(run)
    assert run.watermark().upto(world.log.end) < world.log.end
    run.release_source(used=9, limit=10)
    assert run.watermark().released, "at once, whatever it is doing"
    steps(run)
    assert (run.state, run.members[0].state) == ("paused", "waiting")
    assert not run.ready
    assert len(target.rows("orders")) == 1
    world.put(1, "paid")
    run.resume()
    world.settle(run)
    assert run.ready
    assert run.release.why is None
    assert not run.watermark().released
    assert target.rows("orders") == world.source.rows("orders")


@pytest.mark.meets("R28")
def test_it_is_not_ready_from_the_moment_it_is_set_aside() -> None:
    world = Stepping()
    run = following(world, ScriptedTarget())
    assert run.ready
    run.release_source()
    assert not run.ready
    world.settle(run)
    assert run.ready


@pytest.mark.meets("R28", "H4")
@pytest.mark.parametrize("taken", [False, True])
def test_a_pipeline_set_aside_stays_so_over_a_restart(taken: bool) -> None:
    world = Stepping()
    world.put(1)
    target = ScriptedTarget()
    run = following(world, target)
    run.pause()
    world.put(2)
    run.release_source(used=9, limit=10)
    if taken:
        steps(run)
    # Another life, as after a crash: nothing was closed.
    run = world.run(Pipeline(world.source, "orders", target))
    assert run.paused
    assert run.watermark().released
    assert run.release.why is not None
    assert run.release.why.facts == {"pipeline": "orders", "used": 9, "limit": 10}
    steps(run)
    assert run.members[0].state == "waiting"
    run.resume()
    world.settle(run)
    assert run.ready
    assert not run.watermark().released
    assert target.rows("orders") == world.source.rows("orders")
    run = world.run(Pipeline(world.source, "orders", target))
    assert run.release.why is None
    assert run.members[0].state == "live"


@pytest.mark.meets("R28")
def test_a_failed_pipeline_gives_way_and_begins_anew_once_it_is_resumed() -> None:
    world = Stepping()
    world.put(1)
    target = ScriptedTarget()
    run = following(world, target)
    target.reject(CorruptSegment("Segment is shorter than recorded", file="x.parquet"))
    world.put(2)
    steps(run)
    assert run.failed
    run.release_source()
    steps(run)
    assert run.failed
    assert run.members[0].state == "waiting"
    run.resume()
    world.settle(run)
    assert run.ready
    assert target.rows("orders") == world.source.rows("orders")


@pytest.mark.meets("R28")
def test_an_intent_does_not_outlive_the_place_it_was_meant_for() -> None:
    world = Stepping()
    world.put(1)
    target = ScriptedTarget(transactional=False)
    run = following(world, target)
    target.reject(TargetError("Not there"))
    world.put(2)
    run.step()
    assert run.context.store.intent("orders") is not None
    run.release_source()
    run.step()
    assert run.context.store.intent("orders") is None
    world.settle(run)
    assert run.ready
    assert target.rows("orders") == world.source.rows("orders")


@pytest.mark.meets("R28", "R12")
def test_a_reload_that_is_owed_is_still_owed() -> None:
    world = Stepping()
    world.put(1)
    run = following(world, ScriptedTarget())
    newest = world.log.usable_baseline("orders")
    assert newest is not None
    run.ask_reload("orders", newest.baseline)
    steps(run)
    run.release_source()
    world.asked.clear()
    steps(run)
    assert run.members[0].state == "waiting"
    assert world.asked == ["orders"], "the one that the log has will not do"
    world.settle(run)
    assert run.ready
    assert run.members[0].baseline > newest.baseline


@pytest.mark.meets("R28", "R8")
def test_what_is_being_loaded_goes_on_and_only_lets_go_of_the_source() -> None:
    world = Stepping()
    world.put(1)
    world.take_baseline()
    target = memory()
    run = world.run(Pipeline(world.source, "orders", target))
    run.step()
    assert run.state == "catching_up"
    world.put(2)
    assert run.watermark().upto(world.log.end) < world.log.end
    load = run.members[0].load
    run.release_source()
    run.step()
    assert run.watermark().released or run.ready
    assert load is not None
    world.settle(run)
    assert run.ready
    assert run.release.why is None
    assert {row["id"] for row in target.all()} == {1, 2}


@pytest.mark.meets("R28")
def test_a_pipeline_of_changes_alone_fails_by_name_and_stays_failed() -> None:
    world = Stepping()
    target = ScriptedTarget()
    run = following(world, target, mode="changes")
    world.put(1)
    steps(run)
    run.pause()
    world.put(2)
    run.release_source()
    steps(run)
    assert run.failed
    assert isinstance(run.error, ChangesMissing)
    assert run.error.facts == {"pipeline": "orders", "table": "orders"}
    assert run.watermark().released
    run.resume()
    steps(run)
    assert isinstance(run.error, ChangesMissing)
    run = world.run(Pipeline(world.source, "orders", target, mode="changes"))
    steps(run)
    assert isinstance(run.error, ChangesMissing)
    assert run.watermark().released
    assert len(target.rows("orders")) == 1
    # The remedy: another mode takes a baseline.
    run = following(world, target)
    assert run.ready
    assert target.rows("orders") == world.source.rows("orders")


def test_a_pipeline_of_changes_alone_that_is_set_aside_does_not_keep_the_engine_from_ending() -> (
    None
):
    world = Stepping()
    run = following(world, ScriptedTarget(), mode="changes")
    run.release_source()
    run.close()
    assert run.failed


@pytest.mark.meets("R28", "H4", "R12")
@pytest.mark.parametrize("seed", range(24))
def test_whatever_happens_around_it_the_target_ends_exact(seed: int) -> None:
    dice = random.Random(seed)
    world = Stepping(("orders", "items"))
    target = ScriptedTarget() if seed % 3 else memory()
    pipeline = Pipeline(world.source, target=target, tables=["orders", "items"], name="orders")
    run = world.run(pipeline)
    for number in range(60):
        match dice.randrange(9):
            case 0:
                lagged = {"measure": "changes", "lag": 9, "limit": 3}
                run.release_source(**dice.choice([{}, lagged]))
            case 8:
                run.halt(TargetError("Another pipeline failed"))
            case 1:
                run.pause()
            case 2:
                run.resume()
            case 3:
                run = world.run(pipeline)  # the last life ended as by a power cut
            case 4:
                world.take_baseline(dice.choice(["orders", "items"]))
            case 5:
                newest = world.log.usable_baseline("orders")
                run.ask_reload("orders", newest.baseline if newest else 0)
            case _:
                world.put(dice.randrange(9), str(number), dice.choice(["orders", "items"]))
        for _ in range(dice.randrange(6)):
            run.step()
        if isinstance(target, ScriptedTarget) and run.release.why is not None:
            assert not run.ready
    run.resume()
    world.settle(run)
    assert run.ready
    assert run.release.why is None
    for table in ("orders", "items"):
        assert _rows(target, table) == world.source.rows(table)


def _rows(target: ScriptedTarget | IndexedMemory, table: str) -> dict[Key, Row]:
    if isinstance(target, ScriptedTarget):
        return target.rows(table)
    return {(row["id"],): dict(row) for row in target.table(table).all()}
