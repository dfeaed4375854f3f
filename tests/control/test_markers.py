"""Markers that somebody writes at the source, to learn when all before has arrived."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.capture import recorder
from headrace.errors import NotRunning
from headrace.targets.memory import memory
from tests.support.shop import PATIENCE, Market

pytestmark = pytest.mark.meets("R3", "PG-24")


def test_a_marker_has_arrived_once_all_before_it_has(tmp_path: Path) -> None:
    market = Market(tmp_path, ["orders", "items"])
    orders, items = memory(), memory()
    pipelines = [market.pipeline(orders, "orders"), market.pipeline(items, "items")]
    with market.engine(*pipelines) as engine:
        assert engine.await_ready(PATIENCE)
        assert not engine.await_marker("shop", "deployed", timeout=0)
        market.put("orders", 1, "changed")
        market.put("items", 1, "changed")
        market.source.emit_marker("deployed")
        assert engine.await_marker("shop", "deployed", timeout=PATIENCE)
        for target in (orders, items):
            row = target.get(1)
            assert row is not None
            assert row["status"] == "changed"


def test_a_marker_alone_does_not_wait_for_a_change_or_a_heartbeat(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder, "HEARTBEAT_SECONDS", 100 * PATIENCE)
    market = Market(tmp_path)
    with market.engine(market.pipeline(memory())) as engine:
        assert engine.await_ready(PATIENCE)
        market.source.emit_marker("alone")
        assert engine.await_marker("shop", "alone", timeout=PATIENCE)


def test_a_pipeline_that_rests_has_not_got_it(tmp_path: Path) -> None:
    market = Market(tmp_path)
    with market.engine(market.pipeline(memory(), name="p")) as engine:
        assert engine.await_ready(PATIENCE)
        engine.pause("p")
        market.put("orders", 1, "changed")
        market.source.emit_marker("paused")
        assert market.recorded(engine)
        assert not engine.await_marker("shop", "paused", timeout=0.2)
        engine.resume("p")
        assert engine.await_marker("shop", "paused", timeout=PATIENCE)


def test_a_marker_is_known_over_lives_of_the_engine(tmp_path: Path) -> None:
    market = Market(tmp_path)
    with market.engine(market.pipeline(memory())) as engine:
        assert engine.await_ready(PATIENCE)
        market.source.emit_marker("before")
        assert engine.await_marker("shop", "before", timeout=PATIENCE)
    with market.engine(market.pipeline(memory())) as engine:
        assert engine.await_marker("shop", "before", timeout=PATIENCE)
    with pytest.raises(NotRunning):
        engine.await_marker("shop", "before")
