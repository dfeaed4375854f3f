"""Several tables in one pipeline stay at one place of history."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from headrace.changelog.position import Position
from headrace.errors import StorageFull
from headrace.pipeline.definition import Pipeline
from headrace.runtime.pipeline_run import IDLE
from headrace.runtime.store import ProgressStore
from headrace.targets.memory import memory
from headrace.targets.target import BaselineId, Batch
from headrace.testing.target import ScriptedTarget, TargetDisk
from tests.control.stepping import Stepping
from tests.support.arrow_runner import ArrowRunner
from tests.support.file_target import FileTarget
from tests.support.shop import PATIENCE, Market, await_seen, await_that, file_rows_at

BOTH = ("orders", "items")


class Noting(ScriptedTarget):
    """Notes what it was given, and what was shown when."""

    def __init__(self, disk: TargetDisk | None = None) -> None:
        super().__init__(disk)
        self.written: list[Mapping[str, int]] = []
        self.loads: list[str] = []

    def load(self, table: str, baseline: BaselineId):  # type: ignore[no-untyped-def]
        self.loads.append(table)
        return super().load(table, baseline)

    def write(self, batch: Batch) -> Position:
        self.written.append({name: rows.num_rows for name, rows in batch.tables.items()})
        return super().write(batch)


@pytest.fixture
def market(tmp_path: Path) -> Market:
    return Market(tmp_path, BOTH)


@pytest.mark.meets("R23d", "R26a")
def test_a_commit_comes_to_the_target_with_all_its_tables(market: Market) -> None:
    target = Noting()
    with market.engine(market.pipeline(target, *BOTH, name="both")) as engine:
        assert engine.await_ready(PATIENCE)
        with market.source.transaction():
            market.put("orders", 11)
            market.put("items", 11)
            market.put("orders", 12)
        assert await_seen(lambda: bool(target.written))
        market.put("items", 12)
        assert await_seen(lambda: len(target.written) == 2)
        assert target.written == [{"orders": 2, "items": 1}, {"orders": 0, "items": 1}]
        assert target.position("orders") == target.position("items")
        assert await_that(engine, lambda: engine.pipeline_info("both").batches == 2)
        info = engine.pipeline_info("both")
    assert info.table == "orders, items"
    assert [table.table for table in info.tables] == list(BOTH)
    assert {table.state for table in info.tables} == {"live"}
    assert {table.position for table in info.tables} == {info.position}
    assert [table.rows for table in info.tables] == [12, 12]
    assert sorted(table.baseline for table in info.tables) == [1, 2]
    assert info.rows == 24
    assert info.changes == 4


@pytest.mark.meets("R11", "R12")
def test_no_table_is_shown_before_all_can_be() -> None:
    world = Stepping(BOTH)
    for table in BOTH:
        world.put(1, table=table)
    target = ScriptedTarget()
    run = world.run(Pipeline(world.source, tables=BOTH, target=target))
    world.take_baseline("orders")
    while run.step() != IDLE:
        assert target.shown == set()
    assert [member.state for member in run.members] == ["catching_up", "waiting"]
    assert run.state == "waiting"
    world.put(2)
    world.settle(run)
    assert target.shown == set(BOTH)
    assert run.ready
    assert len({member.reached for member in run.members}) == 1
    assert set(target.rows("orders")) == {(1,), (2,)}


class FailsOnce(ProgressStore):
    """Cannot note that the second of two tables is live, the first time."""

    noted = 0

    def settle(self, pipeline: str, table: str, *rest: Any) -> None:
        FailsOnce.noted += 1
        if FailsOnce.noted == 2:
            raise StorageFull("No room left", file="control.sqlite")
        super().settle(pipeline, table, *rest)


@pytest.mark.meets("R12", "R26a")
def test_no_table_goes_on_before_it_is_noted_that_all_are_shown() -> None:
    world = Stepping(BOTH)
    target = ScriptedTarget()
    run = world.run(Pipeline(world.source, tables=BOTH, target=target), kind=FailsOnce)
    for table in BOTH:
        world.put(1, table=table)
        world.take_baseline(table)
    FailsOnce.noted = 0
    while run.error is None:
        assert run.step() != IDLE
    assert FailsOnce.noted == 2
    assert target.shown == set(BOTH)
    world.put(2)
    run.step()
    assert [member.state for member in run.members] == ["live", "live"]
    world.settle(run)
    assert run.ready
    assert target.position("orders") == target.position("items")


def test_all_baselines_are_asked_for_before_the_first_is_loaded() -> None:
    world = Stepping(BOTH)
    world.take_baseline("orders")
    run = world.run(Pipeline(world.source, tables=BOTH, target=ScriptedTarget()))
    run.step()
    assert run.members[0].state == "catching_up"
    assert world.asked == ["items"]


@pytest.mark.meets("R12")
def test_a_table_that_joins_later_catches_up_alone_and_then_goes_along(tmp_path: Path) -> None:
    market = Market(tmp_path, BOTH)
    target = Noting()
    with market.engine(market.pipeline(target, "orders", name="both")) as engine:
        assert engine.await_ready(PATIENCE)
        market.put("orders", 11)
        assert await_seen(lambda: len(target.written) == 1)
    market.put("orders", 12)
    with market.engine(market.pipeline(target, *BOTH, name="both")) as engine:
        assert engine.await_ready(PATIENCE)
        with market.source.transaction():
            market.put("orders", 13)
            market.put("items", 13)
        assert await_seen(lambda: (13,) in target.rows("items"))
        assert len({table.position for table in engine.pipeline_info("both").tables}) == 1
        assert target.written[-1] == {"orders": 1, "items": 1}
    assert target.loads == ["orders", "items"]
    assert len(target.rows("orders")) == 13
    assert len(target.rows("items")) == 11
    assert target.disk.duplicates() == []
    assert {table: set(target.rows(table)) for table in BOTH} == {
        table: set(market.source.rows(table)) for table in BOTH
    }


@pytest.mark.meets("R12")
def test_a_table_that_joins_under_load_meets_the_others(tmp_path: Path) -> None:
    world = Stepping(BOTH)
    target = ScriptedTarget()
    world.put(1)
    first = world.run(Pipeline(world.source, tables=["orders"], target=target))
    world.settle(first)
    first.close()
    run = world.run(Pipeline(world.source, tables=BOTH, target=target))
    for number in range(2, 40):
        world.put(number, table=BOTH[number % 2])
        run.step()
        if world.asked:
            world.take_baseline("items")
            world.asked.clear()
    world.settle(run)
    assert run.ready
    assert len({member.reached for member in run.members}) == 1
    for table in BOTH:
        assert set(target.rows(table)) == set(world.source.rows(table))
    assert target.disk.duplicates() == []


@pytest.mark.meets("R23d")
def test_a_truncate_of_one_table_empties_that_one(market: Market, tmp_path: Path) -> None:
    both = memory()
    path = tmp_path / "target.db"
    engine = market.engine(
        market.pipeline(both, *BOTH, name="memory"),
        market.pipeline(FileTarget(path), *BOTH, name="file"),
    )
    with engine:
        assert engine.await_ready(PATIENCE)
        with market.source.transaction():
            market.put("orders", 11)
            market.source.emit_truncate("orders")
            market.put("orders", 12)
            market.put("items", 11)
        assert await_that(engine, lambda: both.table("items").count() == 11)
        assert [row["id"] for row in both.table("orders").all()] == [12]
        assert await_seen(lambda: len(file_rows_at(path, "items")[0]) == 11)
    assert set(file_rows_at(path, "orders")[0]) == {12}


@pytest.mark.meets("R30")
def test_a_failing_row_of_one_table_holds_no_other_back(market: Market) -> None:
    both = memory()
    runner = ArrowRunner(fails=lambda pipeline, row: "X" if row["status"] == "bad" else None)
    with market.engine(market.pipeline(both, *BOTH, name="both"), runner=runner) as engine:
        assert engine.await_ready(PATIENCE)
        with market.source.transaction():
            market.put("orders", 1, status="bad")
            market.put("items", 1, status="fine")
        market.put("items", 1, status="better")
        assert await_that(
            engine, lambda: dict(both.table("items").get(1) or {})["status"] == "better"
        )
        (letter,) = engine.dead_letters()
        assert (letter.table, letter.key) == ("orders", (1,))
        assert dict(both.table("orders").get(1) or {})["status"] == "paid"


@pytest.mark.meets("R12", "R26a")
def test_a_reload_of_one_table_of_a_stopped_pipeline_loads_all_of_them() -> None:
    world = Stepping(BOTH)
    target = ScriptedTarget()
    bad = ArrowRunner(world.disk, fails=lambda _, row: "BAD" if row["status"] == "bad" else None)
    pipeline = Pipeline(world.source, tables=BOTH, target=target, on_error="stop")
    run = world.run(pipeline, bad)
    world.settle(run)
    world.put(1, status="bad")
    world.put(1, table="items")
    world.settle(run)
    assert run.state == "failed"
    world.put(1, status="mended")
    run.ask_reload("orders", 1)
    run.step()
    # Had the other one gone on, readers would see two positions.
    assert not any(member.following for member in run.members)
    assert world.asked == ["orders"]
    before = target.position("items")
    while run.step() != IDLE:
        assert target.position("items") == before
    world.settle(run)
    assert run.ready
    assert target.position("orders") == target.position("items") != before
    assert {table: set(target.rows(table)) for table in BOTH} == {
        table: set(world.source.rows(table)) for table in BOTH
    }
