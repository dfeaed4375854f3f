"""An engine whose target finds that its table is not what was left there."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.errors import Fenced
from headrace.pipeline.definition import Pipeline
from headrace.runtime.store import ProgressStore
from headrace.testing.target import ScriptedLoading, ScriptedTarget, TargetDisk
from tests.control.stepping import Stepping
from tests.support.shop import PATIENCE, Shop, await_seen


class Finding(ScriptedTarget):
    """Finds what it is told to find."""

    why: str | None = None
    loaded: tuple[int, ...] = ()

    def load(self, table: str, baseline: int) -> ScriptedLoading:
        self.loaded += (baseline,)
        return super().load(table, baseline)

    def lost(self, table: str) -> str | None:
        return self.why


@pytest.mark.meets("R1")
@pytest.mark.parametrize("why", [None, "somebody put it back"])
def test_a_table_that_is_not_what_was_left_there_is_loaded_anew(
    tmp_path: Path, why: str | None
) -> None:
    shop = Shop(tmp_path)
    disk = TargetDisk()
    with shop.engine(shop.pipeline(Finding(disk))) as engine:
        assert engine.await_ready(PATIENCE)
    if why is not None:
        disk.tables["orders"].rows.clear()
    shop.insert(range(100, 110))
    again = Finding(disk)
    again.why = why
    with shop.engine(shop.pipeline(again)):
        assert await_seen(lambda: {key for (key,) in again.rows("orders")} == set(shop.truth()))
    assert again.calls["load"] == (0 if why is None else 1)


@pytest.mark.meets("R1")
@pytest.mark.parametrize("why", [None, "somebody put it back"])
def test_a_reload_that_was_asked_for_is_owed_where_the_table_is_lost_as_well(
    why: str | None,
) -> None:
    world, target = Stepping(), Finding()
    pipeline = Pipeline(world.source, "orders", target)
    world.put(1)
    run = world.run(pipeline)
    world.settle(run)
    (first,) = target.loaded
    run.ask_reload("orders", first)
    run.close()
    target.why = why
    again = world.run(pipeline)
    target.why = None
    world.settle(again)
    assert again.ready
    assert [number > first for number in target.loaded] == [False, True]


@pytest.mark.meets("R24")
def test_an_engine_that_was_taken_over_from_writes_no_more() -> None:
    world, target = Stepping(), ScriptedTarget()
    world.put(1)
    run = world.run(Pipeline(world.source, "orders", target))
    world.settle(run)
    before = target.calls["write"]
    world.put(2)
    ProgressStore(world.connection).take_over()
    with pytest.raises(Fenced):
        run.step()
    assert target.calls["write"] == before
