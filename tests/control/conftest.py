"""An engine at work, for tests that change it; a module of its own fixtures goes before."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.control.engine import Engine
from headrace.pipeline.definition import Pipeline
from headrace.targets.memory import IndexedMemory, memory
from tests.support.arrow_runner import ArrowRunner
from tests.support.shop import PATIENCE, Shop


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
def engine(shop: Shop, orders: IndexedMemory) -> Iterator[Engine]:
    pipeline = Pipeline(shop.source(), "orders", orders, name="orders")
    with Engine(pipeline, data=shop.data, runner=ArrowRunner()) as engine:
        assert engine.await_ready(PATIENCE)
        yield engine
