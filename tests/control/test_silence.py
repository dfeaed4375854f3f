"""A recorder that hangs: alive, and nothing is known of it."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from headrace.runtime import source_run
from headrace.targets.memory import memory
from tests.support.shop import PATIENCE, Shop, await_seen


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
