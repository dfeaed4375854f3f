"""
What no user would see on a good day: each of these turns red when our code is broken on purpose.

`make mutate` breaks the order of steps, or forgets one, and the result is still right as
long as nothing is killed in between. So these look at the steps themselves.
"""

from __future__ import annotations

import pyarrow as pa
import pytest

from headrace.changelog.position import Position
from headrace.deadletters.store import read_letters
from headrace.errors import Fenced
from headrace.pipeline.definition import Pipeline
from headrace.runtime.pipeline_run import IDLE
from headrace.storage.files import Files
from headrace.targets.target import Batch
from headrace.testing.target import ScriptedLoading, ScriptedTarget, TargetDisk
from tests.control.stepping import Stepping
from tests.support.arrow_runner import ArrowRunner, Row


def failing(world: Stepping) -> ArrowRunner:
    """Return a runner that cannot compute rows with the status `bad`."""

    def fails(pipeline: Pipeline, image: Row) -> str | None:
        return "BAD_ROW" if image["status"] == "bad" else None

    return ArrowRunner(world.disk, fails)


def kept(world: Stepping) -> list[tuple[int | None, str, object]]:
    """Return the letters on disk: baseline, kind and key of each."""
    found = read_letters(Files(world.disk, "/data"))
    return [(letter.baseline, letter.kind, letter.key[0]) for letter in found]


class Looking(ScriptedTarget):
    """A target that looks at the letters on disk whenever it is given a batch."""

    def __init__(self, world: Stepping) -> None:
        super().__init__()
        self._world = world
        self.found: list[int] = []

    def write(self, batch: Batch) -> Position:
        self.found.append(len(kept(self._world)))
        return super().write(batch)


@pytest.mark.meets("R30")
def test_a_letter_is_on_disk_before_the_target_has_anything_of_its_batch(world: Stepping) -> None:
    target = Looking(world)
    run = world.run(Pipeline(world.source, "orders", target), failing(world))
    world.settle(run)
    world.put(1, "bad")
    world.settle(run)
    assert target.found == [1]


@pytest.mark.meets("R30")
def test_a_row_with_a_letter_stays_as_it_was_whatever_comes_later(world: Stepping) -> None:
    target = ScriptedTarget()
    pipeline = Pipeline(world.source, "orders", target)
    run = world.run(pipeline, failing(world))
    world.put(1, "good")
    world.settle(run)
    for status in ("bad", "good again"):
        world.put(1, status)
        world.settle(run)
    assert target.rows("orders")[1,]["status"] == "good"
    assert kept(world) == [(None, "failed", 1), (None, "behind", 1)]
    # Another life finds the letters, and holds to them.
    run.close()
    run = world.run(pipeline, failing(world))
    world.put(1, "better")
    world.put(2, "good")
    world.settle(run)
    assert [row["status"] for row in target.rows("orders").values()] == ["good", "good"]
    assert [kind for _, kind, _ in kept(world)] == ["failed", "behind", "behind"]


@pytest.mark.meets("R30")
def test_a_row_that_fails_in_the_new_baseline_too_has_its_letter_after_the_reload(
    world: Stepping,
) -> None:
    target = ScriptedTarget()
    run = world.run(Pipeline(world.source, "orders", target), failing(world))
    world.settle(run)
    world.put(1, "bad")
    world.put(2, "good")
    world.settle(run)
    run.ask_reload("orders", run.members[0].baseline)
    world.settle(run)
    assert kept(world) == [(2, "failed", 1)]
    world.put(1, "good")
    world.settle(run)
    assert set(target.rows("orders")) == {(2,)}
    assert kept(world) == [(2, "failed", 1), (None, "behind", 1)]


@pytest.mark.meets("R12")
def test_a_reload_that_is_owed_is_not_done_with_the_baseline_there_was(world: Stepping) -> None:
    target = ScriptedTarget()
    pipeline = Pipeline(world.source, "orders", target)
    world.put(1)
    run = world.run(pipeline)
    world.settle(run)
    first = run.members[0].baseline
    run.ask_reload("orders", first)
    # It is stored that the reload is owed, and asked for; then the engine is no more.
    run.step()
    assert world.asked == ["orders"]
    world.asked.clear()
    run = world.run(pipeline)
    world.settle(run)
    assert run.ready
    assert run.members[0].baseline > first


@pytest.mark.meets("R31")
def test_an_engine_that_was_taken_over_shows_no_table_that_it_had_loaded(world: Stepping) -> None:
    disk = TargetDisk()
    world.put(1)
    old = world.run(Pipeline(world.source, "orders", ScriptedTarget(disk)))
    old.step()
    world.take_baseline()
    while old.members[0].load is None:
        old.step()
    target = ScriptedTarget(disk)
    new = world.run(Pipeline(world.source, "orders", target))
    world.put(2)
    world.settle(new)
    reached = target.position("orders")
    # Its rows are of before, and positions would not keep them out.
    with pytest.raises(Fenced):
        old.step()
    assert target.position("orders") == reached
    assert set(target.rows("orders")) == {(1,), (2,)}


@pytest.mark.meets("R11")
def test_a_reloaded_table_is_not_shown_before_the_log_has_all_that_its_copy_saw(
    world: Stepping,
) -> None:
    target = ScriptedTarget()
    for key in (1, 2, 3):
        world.put(key, "old")
    run = world.run(Pipeline(world.source, "orders", target))
    world.settle(run)
    run.ask_reload("orders", run.members[0].baseline)
    run.step()
    # The copy met a change half-way that the log does not have yet. A recorder waits for it
    # before it writes the entry; who reads the log does not rely on that.
    log = world.recorder._log
    assert log is not None
    schema = world.source.describe(["orders"])["orders"]
    world.source.emit_update("orders", {"id": 3, "status": "new"})
    writer = log.baseline(schema)
    rows = [{"id": 1, "status": "old"}, {"id": 2, "status": "old"}, {"id": 3, "status": "new"}]
    writer.write(pa.Table.from_pylist(rows, schema=schema.arrow))
    writer.finish(log.end.commit, log.end.commit + 1)
    world.log.refresh()
    found = world.log.usable_baseline("orders")
    assert found is not None
    assert found.window[1] > world.log.end
    while run.step() != IDLE:
        assert target.rows("orders")[3,]["status"] == "old"
    assert run.state == "reloading"
    world.flush()
    while run.step() != IDLE:
        pass
    assert run.state == "live"
    assert target.rows("orders")[3,]["status"] == "new"


@pytest.mark.meets("R12", "H4")
def test_a_table_is_noted_as_live_only_once_its_target_shows_it(
    world: Stepping, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored: list[tuple[str, int | None] | None] = []
    switch = ScriptedLoading.switch

    def looking(loading: ScriptedLoading, at: Position) -> None:
        stored.append(run.context.store.state("orders", "orders"))
        switch(loading, at)

    monkeypatch.setattr(ScriptedLoading, "switch", looking)
    world.put(1)
    target = ScriptedTarget()
    run = world.run(Pipeline(world.source, "orders", target))
    world.settle(run)
    # Whoever is killed here loads it anew; a table noted as live would go on without its rows.
    (before,) = stored
    assert before is None or before[0] not in ("live", "complete")
    after = run.context.store.state("orders", "orders")
    assert after is not None
    assert after[0] == "live"
