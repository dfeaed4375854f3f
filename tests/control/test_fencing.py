"""An engine whose log another engine has taken brings nothing to targets any more."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

import headrace as hr
from headrace.capture.messages import Failed
from headrace.engine.engine import Engine
from headrace.errors import LostLog, SourceUnreachable, TargetError
from headrace.pipeline.batch import BatchFacts, LoadedRows, SegmentGroup
from headrace.pipeline.definition import Pipeline
from headrace.pipeline.result import JobResult
from headrace.runtime.lease import Fence
from headrace.runtime.store import ProgressStore
from headrace.storage import s3
from headrace.storage.objects import Objects
from headrace.storage.simulation import SimulatedBucket
from headrace.targets.target import Target
from headrace.testing.target import ScriptedTarget
from tests.changelog.log_making import SOURCE, begun, commits, files_on, opened
from tests.control.stepping import Stepping
from tests.support.arrow_runner import ArrowRunner
from tests.support.elsewhere import runner_elsewhere
from tests.support.shop import PATIENCE, Shop, await_seen, await_that

LOST = LostLog("Another writer took the next number", writer="w", term=1)


# -- what a recorder tells ----------------------------------------------------------------------


def fenced(engine: Engine) -> bool:
    (info,) = engine.pipelines()
    return info.state == "failed" and isinstance(info.error, LostLog)


@pytest.mark.meets("R31")
def test_a_pipeline_whose_recorder_lost_the_log_stops_until_the_engine_is_restarted(
    shop: Shop,
) -> None:
    target = ScriptedTarget()
    with shop.engine(shop.pipeline(target)) as engine:
        assert engine.await_ready(PATIENCE)
        engine._state.recordings["shop"].on_report(Failed.of(LOST, stops=True))
        assert await_that(engine, lambda: fenced(engine))
        (info,) = engine.pipelines()
        assert info.error is not None
        assert (info.error.message, info.error.remedy) == (LOST.message, LostLog.remedy)
        before = target.calls["write"]
        shop.insert(range(100, 110))
        # Also where a recorder works again: what came meanwhile may be the other's.
        engine.resume()
        assert await_that(engine, lambda: engine.source_info("shop").state == "streaming")
        assert await_that(engine, lambda: fenced(engine))
        assert target.calls["write"] == before
        assert not engine.is_ready()
    with shop.engine(shop.pipeline(target)) as engine:
        assert await_seen(lambda: {key for (key,) in target.rows("orders")} == set(shop.truth()))


def test_another_failure_of_a_recorder_stops_no_pipeline(shop: Shop) -> None:
    with shop.engine(shop.pipeline(ScriptedTarget())) as engine:
        assert engine.await_ready(PATIENCE)
        report = Failed.of(SourceUnreachable("No answer"), stops=True)
        engine._state.recordings["shop"].on_report(report)
        (info,) = engine.pipelines()
        assert (info.state, info.error) == ("live", None)
        engine._state.recordings["shop"].fence.look()


# -- while a job runs ---------------------------------------------------------------------------


class Slow(ArrowRunner):
    """Closes a fence while it computes."""

    fence: Fence | None = None

    def rows(
        self, pipeline: Pipeline, parts: Sequence[SegmentGroup], facts: BatchFacts
    ) -> JobResult:
        self._close()
        return super().rows(pipeline, parts, facts)

    def baseline(self, pipeline: Pipeline, part: SegmentGroup) -> Iterator[LoadedRows]:
        self._close()
        return super().baseline(pipeline, part)

    def _close(self) -> None:
        if self.fence is not None:
            self.fence.close(LOST)


@pytest.mark.meets("R31")
@pytest.mark.parametrize("transactional", [True, False])
@pytest.mark.parametrize("loads", [True, False])
def test_what_was_computed_meanwhile_is_not_written(transactional: bool, loads: bool) -> None:
    world, target = Stepping(), ScriptedTarget(transactional=transactional)
    world.put(1)
    runner = Slow(world.disk)
    run = world.run(Pipeline(world.source, "orders", target), runner)
    if not loads:
        world.settle(run)
    rows, wrote = target.rows("orders"), target.calls["write"]
    runner.fence = world.fence
    world.put(2)
    with pytest.raises(LostLog):
        world.settle(run)
    assert (target.rows("orders"), target.calls["write"]) == (rows, wrote)
    run.resume()
    with pytest.raises(LostLog):
        run.step()


# -- what the log itself tells ------------------------------------------------------------------


class Claimed(Fence):
    """What only a look into the log tells."""

    claimed = False

    def check(self, after: int) -> None:
        if self.claimed:
            raise LOST


@pytest.mark.meets("R31")
@pytest.mark.parametrize("transactional", [True, False])
@pytest.mark.parametrize("loads", [True, False])
def test_the_log_is_asked_before_every_effect_on_a_target(transactional: bool, loads: bool) -> None:
    world, target = Stepping(), ScriptedTarget(transactional=transactional)
    fence = world.fence = Claimed()
    world.put(1)
    run = world.run(Pipeline(world.source, "orders", target))
    if not loads:
        world.settle(run)
    rows, wrote = target.rows("orders"), target.calls["write"]
    fence.claimed = True
    world.put(2)
    with pytest.raises(LostLog):
        world.settle(run)
    assert (target.rows("orders"), target.calls["write"]) == (rows, wrote)
    assert ProgressStore(world.connection).intent("orders") is None


def elsewhere() -> Objects:
    return Objects(SimulatedBucket(), "bucket", "shop")


@pytest.mark.meets("R31")
def test_a_log_in_a_bucket_tells_that_a_later_writer_has_claimed_it() -> None:
    files = elsewhere()
    ours = begun(files)
    fence = Fence(SOURCE, files)
    fence.term = 1
    read = ours.last_entry
    for number in (1, 2):
        ours.append(commits(number))
        ours.flush()
    fence.check(read)  # beyond what was read is our own recorder's
    fence.check(ours.last_entry)
    opened(files, writer="two", term=2)
    for after in (read, ours.last_entry):
        with pytest.raises(LostLog, match="taken over this log"):
            fence.check(after)
    with pytest.raises(LostLog):
        fence.look()


def test_an_empty_log_in_a_bucket_is_nobody_s() -> None:
    fence = Fence(SOURCE, elsewhere())
    fence.check(0)


def test_of_a_log_on_a_disk_the_control_store_tells() -> None:
    files = files_on()
    log = begun(files)
    fence = Fence(SOURCE, files)
    opened(files, writer="two", term=2)
    fence.check(log.last_entry)


def engine_of(shop: Shop, target: Target, data: Path) -> Engine:
    return Engine(
        shop.pipeline(target, "paid"),
        data=data,
        log=hr.log(storage="s3://logs/shop"),
        runner=runner_elsewhere(),
        recorder="thread",
    )


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> SimulatedBucket:
    """The bucket that every place on S3 is."""
    made = SimulatedBucket()
    monkeypatch.setattr(s3, "s3_bucket", lambda name: made)
    return made


def keys(target: ScriptedTarget) -> set[object]:
    return {key for (key,) in target.rows("orders")}


@pytest.mark.meets("R31")
@pytest.mark.usefixtures("bucket")
def test_of_two_engines_on_a_bucket_the_earlier_one_s_pipelines_stop(
    shop: Shop, tmp_path: Path
) -> None:
    first, second = ScriptedTarget(), ScriptedTarget()
    with engine_of(shop, first, shop.data) as before:
        assert before.await_ready(PATIENCE)
        with engine_of(shop, second, tmp_path / "other") as after:
            assert after.await_ready(PATIENCE)
            shop.insert(range(100, 110))
            assert await_seen(lambda: keys(second) == set(shop.truth()))
            assert await_that(before, lambda: fenced(before))
            assert not fenced(after)
    assert not keys(first) & set(range(100, 110))


@pytest.mark.meets("R31")
@pytest.mark.usefixtures("bucket")
def test_an_engine_whose_recorder_says_nothing_finds_it_in_the_log_before_it_writes(
    shop: Shop, tmp_path: Path
) -> None:
    first, second = ScriptedTarget(), ScriptedTarget()
    with engine_of(shop, first, shop.data) as before:
        assert before.await_ready(PATIENCE)
        wrote = first.calls["write"]
        first.reject(TargetError("Not now"), 1000)
        shop.insert(range(50, 55))
        assert await_that(before, lambda: first.calls["write"] > wrote)
        recorder = before._state.recordings["shop"].recorder
        assert recorder is not None
        recorder.stop()
        with engine_of(shop, second, tmp_path / "other") as after:
            assert after.await_ready(PATIENCE)
            assert await_that(before, lambda: fenced(before))
            assert before.source_info("shop").error is None
    assert not keys(first) & set(range(50, 55))
