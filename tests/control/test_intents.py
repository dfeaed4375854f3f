"""A batch that may have had effects comes again as it was, before anything else does."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from headrace.changelog.position import Position
from headrace.errors import StorageError, TargetError
from headrace.pipeline.definition import Pipeline
from headrace.runtime.pipeline_run import IDLE, PipelineRun
from headrace.runtime.store import ProgressStore
from headrace.targets.memory import memory
from headrace.testing.target import ScriptedTarget
from tests.control.stepping import Stepping


class Forgetful(ProgressStore):
    """A store that cannot note progress: the engine dies before it does."""

    def advance(self, pipeline: str, tables: Sequence[str], lineage: str, to: Position) -> Position:
        raise StorageError("Disk is gone")


def loaded(world: Stepping, target: ScriptedTarget) -> Pipeline:
    """Return a pipeline whose table is live, in an engine that has stopped since."""
    pipeline = Pipeline(world.source, "orders", target)
    world.put(1)
    run = world.run(pipeline)
    world.settle(run)
    assert run.ready
    run.close()
    return pipeline


@pytest.mark.meets("R25", "S3")
def test_a_batch_whose_progress_was_lost_comes_again_with_its_id_and_content(
    world: Stepping,
) -> None:
    target = ScriptedTarget(transactional=False)
    pipeline = loaded(world, target)
    world.put(2)
    world.put(3)
    dying = world.run(pipeline, kind=Forgetful)
    while dying.error is None:
        dying.step()
    (sent,) = target.disk.batches
    # Much has come since: cut as usual, the batch would be another one.
    for key in range(4, 9):
        world.put(key)
    run = world.run(pipeline)
    world.settle(run)
    again, *others = target.disk.batches[1:]
    assert again == sent
    assert len(others) == 1
    assert others[0][1].commit == sent[2].commit + 1
    assert others[0][2].commit == world.source.position.commit
    assert run.ready


@pytest.mark.meets("R25")
def test_a_write_whose_answer_got_lost_is_repeated_as_it_was(world: Stepping) -> None:
    target = ScriptedTarget(transactional=False)
    run = world.run(loaded(world, target))
    target.fail_after_write(TargetError("The answer got lost"), times=2)
    world.put(2)
    for key in (3, 4):
        assert run.step() not in (None, IDLE)
        world.put(key)
    world.settle(run)
    first, second, third, last = target.disk.batches
    assert first == second == third
    assert last[1].commit == first[2].commit + 1
    assert last[2].commit == world.source.position.commit
    assert set(target.rows("orders")) == {(1,), (2,), (3,), (4,)}


@pytest.mark.meets("R25")
def test_an_intent_is_done_with_its_progress(world: Stepping) -> None:
    target = ScriptedTarget(transactional=False)
    run = world.run(loaded(world, target))
    world.put(2)
    world.settle(run)
    store = ProgressStore(world.connection)
    assert store.intent("orders") is None
    assert store.reached("orders", "orders").commit == world.source.position.commit


@pytest.mark.meets("R25")
def test_an_intent_outlives_a_reload_of_the_table(world: Stepping) -> None:
    target = ScriptedTarget(transactional=False)
    pipeline = loaded(world, target)
    world.put(2)
    dying = world.run(pipeline, kind=Forgetful)
    while dying.error is None:
        dying.step()
    (sent,) = target.disk.batches
    run = world.run(pipeline)
    ask_reload(world, run)
    world.put(3)
    world.settle(run)
    assert not run.reloading("orders")
    assert target.disk.batches[1] == sent
    assert set(target.rows("orders")) == {(1,), (2,), (3,)}


@pytest.mark.meets("R25", "R1")
def test_an_intent_is_forgotten_with_the_history_it_spoke_of(world: Stepping) -> None:
    target = ScriptedTarget(transactional=False)
    pipeline = loaded(world, target)
    world.put(2)
    dying = world.run(pipeline, kind=Forgetful)
    while dying.error is None:
        dying.step()
    world.source.reset()
    for _ in range(3):
        world.recorder.step([], 0)
        world.recorder._retry_at = 0
    run = world.run(pipeline)
    world.settle(run)
    assert run.ready
    assert ProgressStore(world.connection).intent("orders") is None
    assert len(target.disk.batches) == 1
    assert set(target.rows("orders")) == {(1,), (2,)}


def test_targets_that_take_positions_need_no_intents(world: Stepping) -> None:
    for target in (ScriptedTarget(), memory()):
        run = world.run(Pipeline(world.source, "orders", target))
        assert not run.delivery.intends


def ask_reload(world: Stepping, run: PipelineRun) -> None:
    newest = world.log.usable_baseline("orders")
    assert newest is not None
    run.ask_reload("orders", newest.baseline)
