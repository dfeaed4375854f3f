"""A recorder that hangs: alive, and nothing is known of it."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import pytest

from headrace.capture.messages import Failed, Flushed, LagReport, StateReport
from headrace.changelog.position import Position
from headrace.errors import CopiedAgain, SourceUnreachable, StorageError
from headrace.runtime import source_run
from headrace.runtime.source_run import SourceRun
from headrace.targets.memory import memory
from headrace.targets.target import Batch
from headrace.testing.target import ScriptedTarget
from tests.support.shop import PATIENCE, Market, Shop, await_seen


@pytest.mark.meets("R8")
@pytest.mark.process
def test_a_recorder_that_says_nothing_is_not_shown_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = Shop(tmp_path)
    orders = memory()
    with shop.engine(shop.pipeline(orders), recorder="process") as engine:
        assert engine.await_ready(PATIENCE)
        pid = engine.source_info("shop").recorder_pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        # Only now: on a slow machine it might be silent by itself before.
        monkeypatch.setattr(source_run, "SILENT_SECONDS", 0.5)
        try:
            assert await_seen(lambda: engine.source_info("shop").state == "silent")
            info = engine.source_info("shop")
            assert info.lag_seconds is None
            assert "No report from the recorder" in info.reason
            assert not engine.is_ready()
        finally:
            os.kill(pid, signal.SIGCONT)
        monkeypatch.setattr(source_run, "SILENT_SECONDS", PATIENCE)
        shop.insert(range(100, 101))
        assert await_seen(lambda: orders.count() == 11)
        assert engine.await_ready(PATIENCE)
    shop.close()


class Held(ScriptedTarget):
    """A target whose writes wait until they are let go."""

    def __init__(self) -> None:
        super().__init__()
        self.goes = threading.Event()

    def write(self, batch: Batch) -> Position:
        self.goes.wait(PATIENCE)
        return super().write(batch)


def test_a_pipeline_that_does_not_apply_what_it_has_is_not_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    market = Market(tmp_path)
    target = Held()
    with market.engine(market.pipeline(target, name="orders")) as engine:
        assert engine.await_ready(PATIENCE)
        market.put("orders", 11)
        assert market.recorded(engine)
        # There is no error, and nothing says that the write will not end in a moment.
        monkeypatch.setattr(source_run, "SILENT_SECONDS", 2.0)
        try:
            assert await_seen(lambda: not engine.is_ready())
            assert await_seen(lambda: market.recorded(engine) and not engine.is_ready())
            assert engine.pipeline_info("orders").lag_seconds
        finally:
            target.goes.set()
            monkeypatch.setattr(source_run, "SILENT_SECONDS", PATIENCE)
        assert await_seen(lambda: len(target.rows("orders")) == 11)
        assert engine.await_ready(PATIENCE)


def test_the_lag_of_a_table_that_is_not_shown_yet_is_not_known(tmp_path: Path) -> None:
    market = Market(tmp_path)
    market.source.inject_error(SourceUnreachable("Away"), at="baseline", times=10_000)
    with market.engine(market.pipeline(memory(), name="orders")) as engine:
        assert await_seen(lambda: engine.pipeline_info("orders").state == "waiting")
        assert engine.pipeline_info("orders").lag_seconds is None


# -- what reports say, and when they are read -----------------------------------------------


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


def recorded(market: Market, clock: Clock, *, measures_lag: bool = True) -> SourceRun:
    """Return the run of a source without a recorder."""
    return SourceRun(
        "shop", "test", market.log(), lambda: None, time.time, clock, measures_lag=measures_lag
    )


def test_a_recorder_that_hangs_while_no_table_matches_is_silent(market: Market) -> None:
    clock = Clock()
    recording = recorded(market, clock)
    recording.on_report(StateReport("watching"))
    assert recording.ready
    clock.now += 19
    assert recording.state == "watching"
    clock.now += 2
    assert recording.state == "silent"
    assert not recording.ready
    assert recording.confirmed is None
    assert "No report from the recorder" in recording.info().reason
    recording.on_report(StateReport("watching"))
    assert recording.ready


def test_the_silence_of_a_stream_does_not_count_while_no_table_matches(market: Market) -> None:
    clock = Clock()
    recording = recorded(market, clock)
    recording.on_report(StateReport("streaming"))
    recording.on_report(LagReport(None, None, 0, silence=30.0, at=clock.now))
    assert recording.state == "silent"
    recording.on_report(StateReport("watching"))
    assert recording.state == "watching"


def test_the_lag_grows_while_no_report_arrives(market: Market) -> None:
    clock = Clock()
    recording = recorded(market, clock)
    recording.on_report(StateReport("streaming"))
    recording.on_report(LagReport(None, 0.25, 0, 0, age=0.5, silence=0.5, at=clock.now))
    clock.now += 1
    assert recording.info().lag_seconds == 0.25
    clock.now += 6
    assert recording.info().lag_seconds == 7.25


@pytest.mark.parametrize("measures_lag", [True, False])
def test_a_report_that_was_read_late_says_nothing_of_the_time_in_between(
    market: Market, measures_lag: bool
) -> None:
    clock = Clock()
    recording = recorded(market, clock, measures_lag=measures_lag)
    recording.on_report(StateReport("streaming"))
    report = LagReport(None, 0.0, 0, age=0.5, silence=0.5, at=clock.now)
    recording.on_report(report)
    assert recording.confirmed is not None
    clock.now += 60  # the thread that reads the reports, or the whole engine, was blocked
    late = LagReport(None, 0.0, 0, age=0.5, silence=0.5, at=clock.now - 40)
    recording.on_report(late)
    assert recording.confirmed is None
    assert recording.state == "silent"
    info = recording.info()
    assert (info.silence_seconds, info.lag_seconds) == (40.5, None)
    recording.on_report(LagReport(None, 0.0, 0, age=0.5, silence=0.5, at=clock.now - 1))
    assert recording.confirmed is not None
    assert recording.state == "streaming"


def test_nothing_is_confirmed_of_a_log_that_cannot_be_read(
    market: Market, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    recording = recorded(market, clock)
    recording.on_report(StateReport("streaming"))

    def refresh(upto: int) -> None:
        raise StorageError("Cannot be read")

    with monkeypatch.context() as patched:
        patched.setattr(recording.log, "refresh", refresh)
        recording.on_report(LagReport(None, 0.0, 0, age=0.0, at=clock.now))
        assert recording.state == "failed"
        assert recording.info().error_since is not None
    recording.on_report(Flushed(0))
    assert recording.state == "streaming"
    assert recording.info().error_since is None
    assert recording.confirmed is None, "the log was behind when that was measured"


def test_a_source_that_measures_no_lag_has_nothing_confirmed_unless_it_streams(
    market: Market,
) -> None:
    clock = Clock()
    recording = recorded(market, clock, measures_lag=False)
    for state in ("connecting", "reconnecting", "full"):
        recording.on_report(StateReport(state))
        recording.on_report(LagReport(None, 0.0, 0, at=clock.now))
        assert recording.confirmed is None
    recording.on_report(StateReport("streaming"))
    assert recording.confirmed is None
    recording.on_report(LagReport(None, 0.0, 0, at=clock.now))
    assert recording.confirmed is not None


def test_notices_that_come_together_are_all_kept_until_they_were_seen(market: Market) -> None:
    wall = Clock()
    recording = SourceRun("shop", "test", market.log(), lambda: None, wall)
    for number in range(300):
        recording.note(CopiedAgain(f"Table t{number} is copied again"))
    assert [each.number for each in recording.info().notices] == [*range(1, 301)]
    wall.now += 61
    recording.note(CopiedAgain("Table one is copied again"))
    assert [each.number for each in recording.info().notices] == [*range(202, 302)]


def test_an_error_is_over_once_the_source_waits_for_its_tables(market: Market) -> None:
    recording = recorded(market, Clock())
    recording.on_report(Failed.of(StorageError("Full"), stops=False))
    assert recording.error is not None
    recording.on_report(StateReport("watching"))
    assert recording.error is None
    assert recording.ready
