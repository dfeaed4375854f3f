"""A restart in the middle of a reload: the table goes on, and knows which baseline it is of."""

from __future__ import annotations

import pytest

from headrace.pipeline.definition import DeadLetters, Pipeline
from headrace.runtime.pipeline_run import IDLE, PipelineRun
from headrace.targets.memory import IndexedMemory, memory
from headrace.testing.target import ScriptedTarget, TargetDisk
from tests.control.stepping import Stepping
from tests.support.arrow_runner import ArrowRunner


def failing(pipeline: Pipeline, row: dict[str, object]) -> str | None:
    return "bad" if row["status"] == "bad" else None


class Life:
    """A durable target that outlives its runs."""

    def __init__(self, world: Stepping) -> None:
        self.world = world
        self.disk = TargetDisk()

    def run(self) -> PipelineRun:
        pipeline = Pipeline(
            self.world.source, "orders", ScriptedTarget(self.disk), on_error=DeadLetters()
        )
        return self.world.run(pipeline, ArrowRunner(self.world.disk, failing))

    @property
    def rows(self) -> dict[object, object]:
        kept = self.disk.tables["orders"].rows
        return {key: row["status"] for (key,), row in kept.items()}


@pytest.fixture
def life(world: Stepping) -> Life:
    world.source.add_row("orders", {"id": 1, "status": "bad"})
    world.source.add_row("orders", {"id": 2, "status": "new"})
    return Life(world)


def stepped(run: PipelineRun) -> None:
    while run.step() != IDLE:
        pass


@pytest.mark.meets("R12", "R30")
@pytest.mark.parametrize("restarts", [1, 2])
def test_a_table_that_awaits_its_reload_is_kept_up_to_date_after_a_restart(
    life: Life, restarts: int
) -> None:
    first = life.run()
    life.world.settle(first)
    assert life.rows == {2: "new"}
    # The log has no usable baseline at the time: any one will do.
    first.ask_reload("orders", 0)
    first.step()
    assert first.members[0].state == "reloading"
    first.close()
    for _ in range(restarts):
        again = life.run()
        assert again.members[0].state == "reloading"
        assert again.members[0].baseline == 1
        again.close()
    again = life.run()
    life.world.log.refresh()
    life.world.put(2, "paid")
    stepped(again)
    assert life.rows == {2: "paid"}
    assert again.state == "live", "the baseline in the log is above 0: it is the new one"


@pytest.mark.meets("R12", "R30")
def test_a_reload_lets_go_of_no_row_that_its_own_dead_letters_hold(
    life: Life, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = life.run()
    life.world.settle(first)
    assert first.delivery.dead_letter_count == 1
    # Retention has dropped that baseline, so the reload asks for one above 0 and waits for it.
    monkeypatch.setattr(type(life.world.log), "usable_baseline", lambda log, table: None)
    first.ask_reload("orders", 0)
    stepped(first)
    first.close()
    again = life.run()
    life.world.put(1, "good")
    life.world.put(2, "paid")
    stepped(again)
    assert again.state == "reloading"
    assert life.rows == {2: "paid"}
    assert again.delivery.dead_letter_count == 2
    again.close()
    third = life.run()
    life.world.put(1, "better")
    stepped(third)
    assert life.rows == {2: "paid"}
    monkeypatch.undo()
    life.world.take_baseline()
    stepped(third)
    assert third.state == "live"
    assert life.rows == {1: "better", 2: "paid"}
    assert third.delivery.dead_letter_count == 0


def test_a_reload_that_an_earlier_version_stored_goes_on_as_it_did_there(life: Life) -> None:
    first = life.run()
    life.world.settle(first)
    first.ask_reload("orders", 1)
    stepped(first)
    first.close()
    life.world.connection.execute("drop table reloads")
    again = life.run()
    assert (again.members[0].state, again.members[0].baseline) == ("reloading", 1)
    # And one that it began after ours: what we stored is not of this one.
    again.close()
    life.world.connection.execute("insert into reloads values ('orders', 'orders', 7, 7)")
    other = life.run()
    assert (other.members[0].state, other.members[0].baseline) == ("reloading", 1)


@pytest.mark.meets("R12")
@pytest.mark.parametrize("steps", range(5))
def test_a_table_in_memory_is_rebuilt_from_the_log_while_its_reload_is_awaited(
    world: Stepping, steps: int
) -> None:
    def run() -> tuple[PipelineRun, IndexedMemory]:
        target = memory()
        return world.run(Pipeline(world.source, "orders", target)), target

    world.source.add_row("orders", {"id": 1, "status": "new"})
    first, _ = run()
    world.settle(first)
    world.put(2)
    stepped(first)
    number = first.members[0].baseline
    first.ask_reload("orders", number)
    first.step()
    assert first.members[0].state == "reloading"
    # It may be killed in the middle of that, too.
    killed, _ = run()
    for _ in range(steps):
        killed.step()
    again, target = run()
    stepped(again)
    assert again.state == "reloading"
    assert again.members[0].load_reason == "a new copy was requested"
    world.put(3)
    stepped(again)
    assert {row["id"] for row in target.all()} == {1, 2, 3}
    assert again.members[0].baseline == number
    world.take_baseline()
    stepped(again)
    assert (again.state, target.count()) == ("live", 3)
    assert again.members[0].baseline > number
    # And that was it: nothing is owed any more.
    last, target = run()
    stepped(last)
    assert (last.state, target.count(), last.members[0].load_reason) == ("live", 3, "")
