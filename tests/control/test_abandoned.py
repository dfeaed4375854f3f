"""A pipeline whose step nobody waits for: it has no further effect, and no other run meets it."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from headrace.changelog.position import Position
from headrace.engine.engine import Engine
from headrace.errors import Fenced
from headrace.pipeline.definition import Pipeline
from headrace.targets.memory import memory
from headrace.targets.target import Batch
from headrace.testing.target import ScriptedTarget, TargetDisk
from tests.control.stepping import Stepping
from tests.support.arrow_runner import ArrowRunner
from tests.support.shop import PATIENCE, Market, await_seen


class HeldRunner(ArrowRunner):
    """A runner whose jobs of one pipeline wait until they are let go, whoever cancels them."""

    def __init__(self, *held: str) -> None:
        super().__init__()
        self.held = set(held)
        self.waits, self.goes = threading.Event(), threading.Event()

    def rows(self, pipeline: Pipeline, *args: Any) -> Any:
        if pipeline.name not in self.held:
            return super().rows(pipeline, *args)
        self.held.clear()  # only the first of the pipeline
        self.waits.set()
        self.goes.wait()
        return super().rows(pipeline, *args)


def brief(market: Market, *pipelines: Pipeline, runner: ArrowRunner | None = None) -> Engine:
    return Engine(
        *pipelines, data=market.data, runner=runner or ArrowRunner(), recorder="thread",
        shutdown_timeout=0.6,
    )  # fmt: skip


@pytest.mark.meets("R31")
def test_a_job_of_a_pipeline_that_was_replaced_meanwhile_writes_nothing(market: Market) -> None:
    disk, runner = TargetDisk(), HeldRunner()
    old, new = ScriptedTarget(disk), ScriptedTarget(disk)
    with brief(market, market.pipeline(old, name="orders"), runner=runner) as engine:
        assert engine.await_ready(PATIENCE)
        written = old.calls["write"]
        runner.held.add("orders")
        market.put("orders", 11)
        assert runner.waits.wait(PATIENCE)
        (thread,) = threads_of("orders")
        engine.change([market.pipeline(new, name="orders")], drop=["orders"])
        assert engine.await_ready(PATIENCE)
        stored = engine._state.directory.store.reached("orders", "orders")
        runner.goes.set()
        thread.join(PATIENCE)
        assert not thread.is_alive()
        assert old.calls["write"] == written
        assert engine._state.directory.store.reached("orders", "orders") == stored
        market.put("orders", 12)
        assert await_seen(lambda: (12,) in new.rows("orders"))


def test_a_run_that_was_abandoned_stores_nothing_under_the_name_of_its_replacement(
    world: Stepping,
) -> None:
    world.put(1)
    target = ScriptedTarget(transactional=False)
    run = world.run(Pipeline(world.source, "orders", target))
    world.settle(run)
    store, at = run.context.store, run.members[0].reached
    world.put(2)
    target.hold()
    errors = list[Fenced]()

    def step() -> None:
        try:
            run.step()
        except Fenced as error:
            errors.append(error)

    thread = threading.Thread(target=step)
    thread.start()
    assert target.holding.wait(PATIENCE)
    intent = store.intent("orders")
    assert intent is not None
    run.abandon()
    target.release()
    thread.join(PATIENCE)
    assert store.reached("orders", "orders") == at
    assert store.intent("orders") == intent, "the batch is delivered again"
    assert len(errors) == 1
    for write in (
        lambda: store.set_state("orders", "orders", "waiting", 0),
        lambda: store.advance("orders", ["orders"], "", Position(1, 1 << 40)),
        lambda: store.forget_intent("orders"),
        lambda: run.release_source(used=1),
    ):
        with pytest.raises(Fenced):
            write()


def test_a_baseline_goes_no_further_once_its_run_was_abandoned(
    world: Stepping, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.put(1)
    world.take_baseline()
    target = ScriptedTarget()
    run = world.run(Pipeline(world.source, "orders", target))
    load = target.load

    calls = list[str]()

    def abandoned(table: str, baseline: int) -> Any:
        found = load(table, baseline)
        for name in ("write", "switch", "discard"):
            monkeypatch.setattr(found, name, lambda *_, name=name: calls.append(name))
        run.abandon()
        return found

    monkeypatch.setattr(target, "load", abandoned)
    with pytest.raises(Fenced):
        while True:
            run.step()
    # Nor discarded: its replacement may load under the same name.
    assert calls == []


class Held(ScriptedTarget):
    """A target that notes whether two threads were inside it at once."""

    inside = 0
    met = False

    def write(self, batch: Batch) -> Position:
        self.inside += 1
        try:
            return super().write(batch)
        finally:
            self.inside -= 1

    def open(self, *args: Any) -> None:
        self.met |= self.inside > 0
        super().open(*args)


def test_a_target_is_not_opened_again_while_a_call_of_it_that_was_left_behind_runs(
    market: Market,
) -> None:
    target, sound = Held(), memory()
    pipelines = market.pipeline(target, name="lame"), market.pipeline(sound, name="sound")
    engine = brief(market, *pipelines)
    engine.start()
    assert engine.await_ready(PATIENCE)
    target.hold()
    market.put("orders", 11)
    assert target.holding.wait(PATIENCE)
    engine.stop()
    with brief(market, *pipelines) as again:
        assert await_seen(lambda: again.is_ready(pipeline="sound"))
        error = again.pipeline_info("lame").error
        assert error is not None
        assert "before its pipeline was stopped has not returned" in error.message
        target.release()
        assert again.await_ready(PATIENCE)
        assert not target.met
        assert (11,) in target.rows("orders")


class Breaking(ScriptedTarget):
    """A target whose held write ends with an error that is not ours."""

    def write(self, batch: Batch) -> Position:
        held = not self._free.is_set()
        found = super().write(batch)
        if held:
            raise RuntimeError("The connection is gone")
        return found


def test_an_error_of_a_step_that_was_left_behind_is_not_that_of_its_replacement(
    market: Market,
) -> None:
    old, new = Breaking(), ScriptedTarget()
    with brief(market, market.pipeline(old, name="orders")) as engine:
        assert engine.await_ready(PATIENCE)
        old.hold()
        market.put("orders", 11)
        assert old.holding.wait(PATIENCE)
        left = threads_of("orders")
        engine.change([market.pipeline(new, name="orders")], drop=["orders"])
        assert engine.await_ready(PATIENCE)
        old.release()
        for thread in left:
            thread.join(PATIENCE)
        engine.resume("orders")
        assert len(threads_of("orders")) == 1
        assert engine.await_ready(PATIENCE)


def threads_of(pipeline: str) -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name == f"headrace {pipeline}"]
