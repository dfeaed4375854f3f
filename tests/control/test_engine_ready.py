"""Readiness follows what is observed, both ways (invariant 9)."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from headrace.changelog.position import Position
from headrace.errors import CorruptSegment, JobFailed, TargetError
from headrace.targets.memory import memory
from headrace.targets.target import Batch
from headrace.testing.target import ScriptedTarget
from tests.support.shop import PATIENCE, Shop, await_seen, await_that


@pytest.mark.meets("R31", "P2")
@pytest.mark.process
def test_a_killed_recorder_ends_readiness_until_its_successor_reads(shop: Shop) -> None:
    orders = memory()
    with shop.engine(shop.pipeline(orders), recorder="process") as engine:
        assert engine.await_ready(PATIENCE)
        first = engine.sources()[0].recorder_pid
        assert first is not None
        os.kill(first, signal.SIGKILL)
        assert await_that(engine, lambda: not engine.is_ready())
        again: list[bool] = []
        engine.on_ready(lambda: again.append(True))
        shop.insert(range(50, 60))
        assert engine.await_ready(PATIENCE)
        assert await_that(engine, lambda: again == [True])
        (source,) = engine.sources()
        assert source.restarts == 1
        assert source.recorder_pid not in (None, first)
        assert await_that(engine, lambda: orders.count() == 20)
    assert {row["id"]: dict(row) for row in orders.all()} == shop.truth()


def test_a_function_that_is_told_of_readiness_and_raises_is_nobody_elses_trouble(
    shop: Shop,
) -> None:
    orders, told = memory(), list[str]()
    engine = shop.engine(shop.pipeline(orders))

    def raises() -> None:
        told.append("raises")
        raise KeyError("not ours")

    engine.on_ready(raises)
    engine.on_ready(lambda: told.append("the next one"))
    with engine:
        assert engine.await_ready(PATIENCE)
        assert await_that(engine, lambda: told == ["raises", "the next one"])
        # Whichever thread called them: changes are read, delivered and reported as before.
        for count in (11, 12):
            shop.insert(range(count, count + 1))
            assert await_seen(lambda count=count: orders.count() == count)  # type: ignore[misc]
        assert await_that(engine, engine.is_ready)
    log = (shop.data / "logs" / "headrace.log").read_text()
    assert "function of on_ready raised" in log


@pytest.mark.parametrize("error", [TargetError("Not now"), JobFailed("No executor")])
def test_a_target_that_refuses_is_tried_again_until_it_heals(
    shop: Shop, error: TargetError | JobFailed
) -> None:
    target = ScriptedTarget()
    with shop.engine(shop.pipeline(target)) as engine:
        assert engine.await_ready(PATIENCE)
        target.reject(error, times=2)
        shop.insert(range(20, 25))
        assert await_that(engine, lambda: engine.pipelines()[0].error is error)
        assert not engine.is_ready()
        assert engine.pipelines()[0].state == "live"
        assert engine.await_ready(PATIENCE)
        assert engine.pipelines()[0].error is None
        assert target.calls["write"] == 3
    assert {key: row for (key,), row in target.rows("orders").items()} == shop.truth()


@pytest.mark.meets("R25")
def test_a_write_whose_answer_got_lost_has_its_effect_once(shop: Shop) -> None:
    target = ScriptedTarget()
    with shop.engine(shop.pipeline(target)) as engine:
        assert engine.await_ready(PATIENCE)
        target.fail_after_write(TargetError("The answer got lost"))
        shop.insert(range(20, 25))
        assert await_that(engine, lambda: target.calls["write"] == 2 and engine.is_ready())
    assert {key: row for (key,), row in target.rows("orders").items()} == shop.truth()
    assert target.disk.duplicates() == []


def test_an_error_that_time_does_not_mend_stops_the_pipeline_and_nothing_else(shop: Shop) -> None:
    source = shop.source()
    broken, whole = ScriptedTarget(), ScriptedTarget()
    engine = shop.engine(
        shop.pipeline_from(source, broken, "broken"), shop.pipeline_from(source, whole, "whole")
    )
    with engine:
        assert engine.await_ready(PATIENCE)
        broken.reject(CorruptSegment("Segment is shorter than recorded", file="x.parquet"))
        shop.insert(range(20, 25))
        assert await_that(engine, lambda: engine.pipeline_info("broken").state == "failed")
        assert await_that(engine, lambda: len(whole.rows("orders")) == 15)
        assert not engine.is_ready()
        assert engine.is_ready(pipeline="whole")
    # Mended by a person: what was done is not done again.
    with engine:
        assert engine.await_ready(PATIENCE)
        assert await_that(engine, lambda: len(broken.rows("orders")) == 15)
    assert broken.calls["load"] == 1
    assert broken.disk.duplicates() == []


class Careless(ScriptedTarget):
    """A target with a mistake in it."""

    def write(self, batch: Batch) -> Position:
        raise ZeroDivisionError

    def close(self) -> None:
        raise KeyError


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.process
def test_a_mistake_in_a_target_is_told_and_leaves_nothing_running(shop: Shop) -> None:
    source = shop.source()
    engine = shop.engine(
        shop.pipeline_from(source, Careless(), "careless"),
        shop.pipeline_from(source, memory(), "other"),
        recorder="process",
    )
    engine.start()
    assert engine.await_ready(PATIENCE)
    recorder = engine.sources()[0].recorder_pid
    shop.insert(range(20, 25))
    assert await_that(engine, lambda: engine.pipeline_info("careless").state == "failed")
    error = engine.pipeline_info("careless").error
    assert error is not None
    assert error.facts == {"pipeline": "careless", "error": "ZeroDivisionError"}
    assert not engine.is_ready()
    with pytest.raises(KeyError):
        engine.stop()
    assert not Path(f"/proc/{recorder}").exists()
