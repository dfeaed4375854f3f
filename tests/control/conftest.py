"""A shop, a market and a world of steps; a module that needs another has a fixture of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.capture import process, recorder
from headrace.capture.sqlite import capture_log
from headrace.runtime import model
from headrace.storage.objects import Objects
from tests.control.stepping import Stepping
from tests.support.shop import Market, Shop


@pytest.fixture(autouse=True)
def brisk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let engines, and recorders on a thread, go without the rests that spare a machine."""
    monkeypatch.setattr(process, "WAIT_SECONDS", 0.05)
    monkeypatch.setattr(recorder, "LAG_SECONDS", 0.05)
    monkeypatch.setattr(recorder, "LATE_SECONDS", 0.05)
    monkeypatch.setattr(recorder, "FIRST_PAUSE_SECONDS", 0.02)
    monkeypatch.setattr(model, "FIRST_PAUSE", 0.02)
    monkeypatch.setattr(capture_log, "REST_SECONDS", 0.05)
    monkeypatch.setattr(Objects, "pace", 0.01)


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    made = Shop(tmp_path)
    yield made
    made.close()


@pytest.fixture
def market(tmp_path: Path) -> Market:
    return Market(tmp_path)


@pytest.fixture
def world() -> Stepping:
    return Stepping()
