"""Who is not seen at first sight, and yet has the log kept for him."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

import headrace as hr
from headrace.capture.messages import MaintainLog, TakeBaseline
from headrace.changelog.position import Position
from headrace.changelog.retention import prune
from headrace.engine.engine import Engine
from headrace.errors import NotRunning
from headrace.pipeline.definition import Pipeline
from headrace.runtime import retention as care_module
from headrace.runtime.info import LogOptions
from headrace.runtime.model import TableState
from headrace.runtime.pipeline_run import PipelineRun
from headrace.runtime.retention import LogRetention, Pin, lowest, pipeline_pins
from headrace.runtime.store import ProgressStore
from headrace.storage.disk import free_bytes
from headrace.storage.files import Files
from headrace.targets.memory import memory
from headrace.testing.target import ScriptedTarget, TargetDisk
from tests.control.stepping import Stepping
from tests.control.test_frames import FrameRunner, Taking
from tests.support.arrow_runner import ArrowRunner
from tests.support.patience import patience
from tests.support.shop import Market, await_that

NOTHING = LogOptions(keep=0)


class Line:
    """Stands for the recording of a source: keeps what is sent to its recorder."""

    name = "shop"
    found = None

    def __init__(self, world: Stepping) -> None:
        self.log = world.log
        self.sent: list[MaintainLog] = []

    def send(self, order: MaintainLog) -> None:
        self.sent.append(order)


def retention_of(
    world: Stepping, *runs: PipelineRun, options: LogOptions = NOTHING
) -> tuple[LogRetention, Line]:
    line = Line(world)
    store = runs[0].context.store if runs else ProgressStore(world.connection)
    files = Files(world.disk, "/data")
    made = LogRetention(
        line,  # type: ignore[arg-type]
        lambda: runs,
        tuple,
        store,
        files,
        options,
        time.monotonic,
        time.time,
    )
    return made, line


def pins_of(
    world: Stepping, run: PipelineRun, options: LogOptions = NOTHING
) -> list[tuple[str, Position]]:
    found = pipeline_pins(run, run.context.store, world.log, options, found=True)
    return [(pin.kind, pin.position) for pin in found]


def let_go(world: Stepping, upto: Position) -> None:
    log = world.recorder._log
    assert log is not None
    prune(log, upto, (), world.log.last_entry)
    world.log.refresh()


# --- pipelines of changes alone ------------------------------------------------------------------


class Dies(ProgressStore):
    """Of which the engine dies right after it stored that a table catches up."""

    def set_state(self, pipeline: str, table: str, state: str, baseline: int | None) -> None:
        super().set_state(pipeline, table, state, baseline)
        if state == TableState.CATCHING_UP:
            raise KeyboardInterrupt


@pytest.mark.meets("R27")
def test_where_a_durable_pipeline_of_changes_began_is_kept_until_it_follows(
    world: Stepping,
) -> None:
    world.put(1)
    target = ScriptedTarget()
    pipeline = Pipeline(world.source, "orders", target, mode="changes")
    run = world.run(pipeline, kind=Dies)
    with pytest.raises(KeyboardInterrupt):
        while True:
            run.step()
    origin = run.context.store.origins("orders")["orders"]
    for key in range(2, 8):
        world.put(key)
    run = world.run(pipeline)
    assert pins_of(world, run) == [("origin", origin)]
    let_go(world, Position.parse(retention_of(world, run)[0].decide().prune))
    world.settle(run)
    assert run.error is None
    assert set(target.rows("orders")) == {(key,) for key in range(2, 8)}
    # Now it goes on from what it has stored, and never from there again.
    assert [kind for kind, _ in pins_of(world, run)] == ["progress"]


@pytest.mark.meets("R27")
def test_the_place_to_begin_at_is_held_before_it_is_stored(world: Stepping) -> None:
    world.put(1)
    run: PipelineRun

    class Prunes(ProgressStore):
        def origin(self, pipeline: str, table: str, now: Position) -> Position:
            # What is decided now does not go beyond what is stored next.
            assert pins_of(world, run) == [("loading", now)]
            return super().origin(pipeline, table, now)

    target = ScriptedTarget()
    run = world.run(Pipeline(world.source, "orders", target, mode="changes"), kind=Prunes)
    world.settle(run)
    assert run.error is None
    assert run.members[0].loads_from is None


# --- a run that moves meanwhile ------------------------------------------------------------------


@pytest.mark.meets("R27")
@pytest.mark.parametrize("nth", range(12))
def test_a_table_that_settles_while_it_is_looked_at_is_pinned_all_the_same(
    world: Stepping, nth: int
) -> None:
    for key in range(1, 4):
        world.put(key)
    run = world.run(Pipeline(world.source, "orders", ScriptedTarget()))
    run.step()
    world.take_baseline()
    while run.members[0].load is None:
        run.step()
    run._loads.catch_up()
    member, reads = run.members[0], [0]
    for key in range(4, 9):
        world.put(key)

    class Seen:
        def __getattr__(self, name: str) -> object:
            if reads[0] == nth:
                while member.load is not None:
                    run._loads.catch_up()
                    run._loads.join()
            reads[0] += 1
            return getattr(member, name)

    class WatchedRun:
        members = (Seen(),)

        def __getattr__(self, name: str) -> object:
            return getattr(run, name)

    found = pipeline_pins(
        WatchedRun(),  # type: ignore[arg-type]
        run.context.store,
        world.log,
        NOTHING,
        found=True,
    )
    assert reads[0] > nth
    assert member.state == TableState.LIVE
    needed = (member.reached.epoch, member.reached.commit)
    assert (lowest(found, world.log.end).epoch, lowest(found, world.log.end).commit) <= needed
    assert {pin.kind for pin in found} <= {"loading", "progress"}


# --- baselines -----------------------------------------------------------------------------------


@pytest.mark.meets("R19", "R27")
@pytest.mark.parametrize("keep", [None, False])
def test_the_baseline_that_a_reload_waits_for_is_kept_in_any_case(
    world: Stepping, keep: bool | None
) -> None:
    for key in range(1, 4):
        world.put(key)
    run = world.run(Pipeline(world.source, "orders", ScriptedTarget()))
    world.settle(run)
    run.ask_reload("orders", 1)
    run.step()
    world.take_baseline()
    for key in range(4, 9):
        world.put(key)
        run._follow()
    options = LogOptions(keep=0, keep_baselines=keep)
    usable = world.log.usable_baseline("orders")
    assert usable is not None
    assert ("baseline", usable.window[0]) in pins_of(world, run, options)
    world.settle(run)
    assert run.members[0].baseline == usable.baseline
    assert [kind for kind, _ in pins_of(world, run, options)] == ["progress"]


@pytest.mark.meets("R19", "R25")
def test_a_baseline_that_was_given_in_part_is_not_folded_before_it_is_given_whole(
    world: Stepping,
) -> None:
    world.put(1)
    target = Taking()
    pipeline = Pipeline(world.source, "orders", target)
    run = world.run(pipeline, FrameRunner(world.disk))
    run.step()
    world.take_baseline()
    target.failures = 1
    while not target.given:
        run.step()
    for key in range(2, 6):
        world.put(key)
    run = world.run(pipeline, FrameRunner(world.disk))
    usable = world.log.usable_baseline("orders")
    assert usable is not None
    assert ("loading", usable.window[0]) in pins_of(world, run)
    assert retention_of(world, run)[0].decide().fold == str(usable.window[0])
    world.settle(run)
    assert Position.parse(retention_of(world, run)[0].decide().fold) == world.log.end
    # It was the same baseline, so it came under the same ids.
    baselines = [batch.id for batch, _ in target.given if batch.baseline is not None]
    assert len(set(baselines)) == 1


# --- pipelines that are stored, and do not run ---------------------------------------------------


def stored(world: Stepping, pipeline: Pipeline) -> PipelineRun:
    """Return what is left of a pipeline that ran once, and has more to take since."""
    world.put(1)
    run = world.run(pipeline)
    world.settle(run)
    world.put(2)
    world.settle(run)
    run.close()
    for key in range(3, 8):
        world.put(key)
    return run


@pytest.mark.meets("R27")
def test_the_log_is_kept_for_a_pipeline_of_changes_that_does_not_run(
    world: Stepping,
) -> None:
    target = ScriptedTarget()
    pipeline = Pipeline(world.source, "orders", target, mode="changes")
    run = stored(world, pipeline)
    at = run.context.store.reached("orders", "orders")
    care, line = retention_of(world)
    assert care.pins()[0] == Pin("progress", "orders", at)
    care.look()
    let_go(world, Position.parse(line.sent[0].prune))
    run = world.run(pipeline)
    world.settle(run)
    assert run.error is None
    assert len(target.rows("orders")) == 6
    run.context.store.forget("orders")
    assert Position.parse(retention_of(world)[0].decide().prune) == world.log.end


@pytest.mark.meets("R27")
@pytest.mark.parametrize("durable", [True, False])
def test_one_that_can_be_loaded_anew_keeps_nothing_and_that_is_said_once(
    world: Stepping, durable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    saying = SimpleNamespace(warning=lambda text, **facts: told.append(text))
    monkeypatch.setattr(care_module, "_log", saying)
    monkeypatch.setattr(care_module, "LOOK_SECONDS", 0.0)
    target = ScriptedTarget() if durable else memory()
    stored(world, Pipeline(world.source, "orders", target))
    care, line = retention_of(world)
    care.look()
    care.look()
    assert Position.parse(line.sent[0].prune) == world.log.end
    assert told == [
        "log is pruned past a pipeline that does not run: it will be loaded again"
    ] * int(durable)


def engine(market: Market, *pipelines: Pipeline) -> Engine:
    log = hr.log(keep=0, lease=0)
    return Engine(*pipelines, data=market.data, runner=ArrowRunner(), recorder="thread", log=log)


@pytest.mark.meets("R27")
def test_a_pipeline_that_does_not_run_is_let_go_of_by_a_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(care_module, "LOOK_SECONDS", 0.02)
    market = Market(tmp_path)

    def other() -> Pipeline:
        return market.pipeline(memory(), name="other")

    away = Pipeline(
        market.source, "orders", ScriptedTarget(TargetDisk()), name="away", mode="changes"
    )
    with engine(market, away, other()) as running:
        assert running.await_ready(patience())
        market.put("orders", 1, version=1)
        assert market.recorded(running)
        assert await_that(running, lambda: running.pipeline_info("away").position > Position(1, 0))
    with engine(market, other()) as running:
        assert running.await_ready(patience())
        assert ("progress", "away") in {
            (pin.kind, pin.whose) for pin in running.log_info("shop").pins
        }
        told = market.data / "logs" / "headrace.log"
        assert await_that(running, lambda: "a pipeline that does not run" in told.read_text())
        running.change(drop=["away"])
        assert not any(pin.whose == "away" for pin in running.log_info("shop").pins)
        with pytest.raises(NotRunning):
            running.change(drop=["away"])
        assert running.await_ready(patience())


# --- what the recorder is told -------------------------------------------------------------------


@pytest.mark.meets("R27")
def test_what_was_heard_since_is_told_while_there_is_something_to_let_go_of(
    world: Stepping, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(care_module, "LOOK_SECONDS", 0.0)
    for key in range(1, 6):
        world.put(key)
    run = world.run(Pipeline(world.source, "orders", ScriptedTarget()))
    world.settle(run)
    care, line = retention_of(world, run)
    care.look()
    care.look()
    assert len(line.sent) <= 2  # superseded baselines are dropped at the second look
    count = len(line.sent)
    # A baseline that nobody needs came, and kept the log because nobody had heard of it.
    world.recorder.step([TakeBaseline("orders")], 0)
    while world.recorder._copies.pressing:
        world.recorder.step([], 0)
    world.log.refresh()
    before = line.sent[-1]
    care.look()
    assert line.sent[count:]
    assert line.sent[-1].known_entry == world.log.last_entry > before.known_entry
    assert line.sent[-1].prune == before.prune


# -- the limit of a log ---------------------------------------------------------------------


def limited(world: Stepping, options: LogOptions, free: list[int | None]) -> LogRetention:
    made, _ = retention_of(world, options=options)
    made._free = lambda: free[-1]
    return made


@pytest.mark.meets("R28")
def test_a_log_without_a_limit_may_grow_to_what_its_disk_has_space_for(world: Stepping) -> None:
    size = world.log.size
    free: list[int | None] = [1_000_000]
    made = limited(world, NOTHING, free)

    assert made.decide().cap == made.info().cap == size + 1_000_000
    # A little less at each look is the same limit: a new one would be a new order.
    free.append(999_000)
    assert made.cap() == size + 1_000_000
    free.append(500_000)
    assert made.cap() == size + 500_000
    free.append(None)
    assert made.cap() is None


@pytest.mark.meets("R28")
def test_a_limit_of_its_own_replaces_that_of_the_disk_and_0_is_none(world: Stepping) -> None:
    assert limited(world, LogOptions(cap=77), [5]).cap() == 77
    assert limited(world, LogOptions(cap=0), [5]).cap() is None


def test_the_space_of_a_disk_is_what_may_still_be_written(tmp_path: Path) -> None:
    found = free_bytes(tmp_path)
    assert found is not None
    assert 0 < found <= shutil.disk_usage(tmp_path).total
    assert free_bytes(tmp_path / "nothing") is None
