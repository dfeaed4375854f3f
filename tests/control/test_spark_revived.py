"""A Spark that died is restarted, whatever goes wrong, and only while it is needed."""

from __future__ import annotations

import errno
import threading
from typing import Any

import pytest

from headrace.engine import engine
from headrace.errors import SparkFailed
from headrace.pipeline.runner import SparkRunner
from headrace.runtime import spark
from headrace.runtime.spark import SparkWatchdog
from headrace.spark_session import jvm
from headrace.targets.memory import memory
from tests.support.arrow_runner import ArrowRunner
from tests.support.shop import PATIENCE, Market, await_seen


class Dead:
    """A Spark that died; it comes back with the third attempt."""

    def __init__(self) -> None:
        self.attempts = 0

    @property
    def alive(self) -> bool:
        return self.attempts >= 3

    def revive(self) -> bool:
        self.attempts += 1
        if not self.alive:
            raise OSError(errno.ENOSPC, "No space left on device")
        return True


def test_spark_is_restarted_although_attempts_fail_with_any_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(spark, "_LOOK_SECONDS", 0.005)
    dead = Dead()
    watchdog = SparkWatchdog(dead, lambda: None)
    assert await_seen(lambda: dead.attempts == 3 and watchdog.down_seconds is None)
    watchdog.stop()


def test_a_spark_that_was_restarted_runs_although_the_next_check_is_far_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(spark, "_LOOK_SECONDS", 0.005)
    now, dead = [0.0], Dead()
    watchdog = SparkWatchdog(dead, lambda: None, lambda: now[0])
    assert await_seen(lambda: dead.attempts == 3 and watchdog.down_seconds is None)
    watchdog.stop()
    # After many attempts the pause until the next check is as long as that.
    now[0] += spark._LONGEST_SECONDS
    assert watchdog.down_seconds is None


def test_spark_is_watched_although_whoever_is_told_of_it_raises(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(spark, "_LOOK_SECONDS", 0.005)
    dead = Dead()

    def raises() -> None:
        raise KeyError("a callback of the user's")

    watchdog = SparkWatchdog(dead, raises)
    assert await_seen(lambda: dead.attempts == 3 and watchdog.down_seconds is None)
    dead.attempts = 0
    assert await_seen(lambda: dead.attempts == 3 and watchdog.down_seconds is None)
    watchdog.stop()


def test_a_full_disk_is_named_when_spark_cannot_start(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(folder: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(folder))

    monkeypatch.setattr(jvm, "make_private_folder", full)
    with pytest.raises(SparkFailed, match="No space left on device"):
        jvm._start(tmp_path, {}, {}, ui=False, events=False)


def test_a_start_says_that_spark_is_starting_before_it_starts(
    market: Market, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = list[str]()

    class Started(ArrowRunner):
        alive = True

        def __init__(self, *given: object) -> None:
            super().__init__()
            steps.append("… takes long")

        def revive(self) -> bool:
            return True

        def stop(self) -> None: ...

    monkeypatch.setattr(engine, "spark_runner", Started)
    made = engine.Engine(
        market.pipeline(memory()), data=market.data, recorder="thread", on_step=steps.append
    )
    with made:
        assert made.await_ready(PATIENCE)
    assert steps[:4] == ["recording shop", "starting Spark", "… takes long", "Spark is ready"]


class Session:
    """A Spark session: alive, or not."""

    def __init__(self, *, alive: bool) -> None:
        self.alive = alive
        self.stops = 0

    def stop(self) -> None:
        self.stops += 1


def test_a_stop_during_a_restart_waits_for_nothing_and_leaves_no_spark_behind() -> None:
    begun, goes = threading.Event(), threading.Event()
    old, new = Session(alive=False), Session(alive=True)

    def renew() -> Any:
        begun.set()
        goes.wait(PATIENCE)
        return new

    runner = SparkRunner(old, renew=renew)  # type: ignore[arg-type]
    found = list[bool]()
    reviving = threading.Thread(target=lambda: found.append(runner.revive()))
    reviving.start()
    assert begun.wait(PATIENCE)

    def end() -> None:
        runner.release("tag")
        runner.stop()

    ended = threading.Thread(target=end, daemon=True)
    ended.start()
    ended.join(PATIENCE)
    assert not ended.is_alive(), "pipelines need the lock to end"
    goes.set()
    reviving.join(PATIENCE)
    assert (found, old.stops, new.stops) == ([False], 1, 1)
    assert runner.revive() is False
    assert new.stops == 1
