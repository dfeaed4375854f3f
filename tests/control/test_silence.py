"""A recorder that hangs: alive, and nothing is known of it."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import pytest

from headrace.changelog.position import Position
from headrace.errors import SourceUnreachable
from headrace.runtime import source_run
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
