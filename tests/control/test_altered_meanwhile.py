"""Columns that a table gets while a step is being taken: none of their values is left out."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from headrace.runtime.delivery import Delivery
from headrace.runtime.target_load import Loads
from tests.control.test_schema_changes import Kept, Told, World, stopped

pytestmark = pytest.mark.meets("R23b")

ROW = {"id": 4, "status": "new", "note": "n"}


def alter(world: World) -> None:
    """Let a row come in a column that nobody knows."""
    world.source.add_column("orders", "note", "text")
    world.source.emit_insert("orders", ROW)
    world.flush()


def once(worker: Loads | Delivery, step: str, before: Callable[[], None]) -> None:
    """Let something happen just before the next time that a piece of work is done."""
    own = getattr(worker, step)

    def done(*given: object) -> object:
        setattr(worker, step, own)
        before()
        return own(*given)

    setattr(worker, step, done)


@pytest.mark.parametrize("kind", [Told, Kept])
def test_a_batch_that_has_columns_nobody_has_followed_waits_for_them(kind: type[Told]) -> None:
    target = kind("continue")
    world = World(target)
    once(world.live.delivery, "next_batch", lambda: alter(world))
    world.settle(world.live)
    assert target.told == ["id status note"]
    assert target.seen[-1] == ROW
    assert len(target.seen) == 4, "and it goes on without another copy"


def test_a_pipeline_that_is_to_stop_takes_nothing_in_columns_that_came_meanwhile() -> None:
    target = Told("continue")
    world = World(target, "stop")
    once(world.live.delivery, "next_batch", lambda: alter(world))
    world.settle(world.live)
    assert "note" in str(stopped(world.live).facts)
    assert len(target.seen) == 3
    world.live.resume()
    world.settle(world.live)
    assert target.seen[-1] == ROW


@pytest.mark.parametrize("step", ["load_one", "catch_up", "join"])
def test_what_is_being_loaded_gets_the_columns_that_came_meanwhile(step: str) -> None:
    target = Kept("continue")
    world = World(target)
    world.live.ask_reload("orders", world.numbers)
    world.live.step()
    assert world.asked == ["orders"]

    def altered_and_copied() -> None:
        alter(world)
        if step == "load_one":
            world.take_baseline()

    if step != "load_one":
        world.take_baseline()
        world.live.step()
    world.asked.clear()
    once(world.live._loads, step, altered_and_copied)
    world.settle(world.live)
    assert world.live.ready
    assert ROW in target.seen
    assert target.seen.count(ROW) == 1
    assert target.told == ["id status note"]
