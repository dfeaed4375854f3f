"""An engine at work, for tests that change it; a module of its own fixtures goes before."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest

from headrace.capture import process, recorder
from headrace.capture.sqlite import triggers
from headrace.engine.engine import Engine
from headrace.pipeline.definition import Pipeline
from headrace.runtime import model
from headrace.storage.objects import Objects
from headrace.targets.memory import IndexedMemory, memory
from tests.support.arrow_runner import ArrowRunner
from tests.support.shop import PATIENCE, Shop


@pytest.fixture(autouse=True)
def brisk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let engines, and recorders on a thread, go without the rests that spare a machine."""
    monkeypatch.setattr(process, "WAIT_SECONDS", 0.05)
    monkeypatch.setattr(recorder, "LAG_SECONDS", 0.05)
    monkeypatch.setattr(recorder, "LATE_SECONDS", 0.05)
    monkeypatch.setattr(recorder, "FIRST_PAUSE_SECONDS", 0.02)
    monkeypatch.setattr(model, "FIRST_PAUSE", 0.02)
    monkeypatch.setattr(triggers, "REST_SECONDS", 0.05)
    monkeypatch.setattr(Objects, "pace", 0.01)


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    """A shop with two tables that nobody takes yet, and that hold nothing."""
    made = Shop(tmp_path)
    made.app.execute("create table customers (id integer primary key, name text)")
    made.app.execute("create table carts (id integer primary key)")
    yield made
    made.close()


@pytest.fixture
def orders() -> IndexedMemory:
    return memory()


@pytest.fixture
def engine(request: pytest.FixtureRequest, shop: Shop, orders: IndexedMemory) -> Iterator[Engine]:
    """An engine whose recorder runs on a thread, unless a test asks for a process."""
    pipeline = Pipeline(shop.source(), "orders", orders, name="orders")
    recorder: Literal["process", "thread"] = getattr(request, "param", "thread")
    with Engine(pipeline, data=shop.data, runner=ArrowRunner(), recorder=recorder) as engine:
        assert engine.await_ready(PATIENCE)
        yield engine
