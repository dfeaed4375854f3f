"""What a pipeline has delivered is counted by table and operation, and kept over restarts."""

from __future__ import annotations

import sqlite3
from dataclasses import asdict

import pytest

import headrace as hr
from headrace.api.messages import pipeline_fields, source_fields
from headrace.changelog.entries import File
from headrace.errors import Fenced, RefusedRow, RowsRefused, StorageError, TargetError
from headrace.observe.counters import OF_NO_TABLE, Counters, OperationCounts, TableCounts
from headrace.pipeline.definition import DeadLetters
from headrace.runtime.pipeline_run import PipelineRun
from headrace.runtime.store import ProgressStore
from headrace.targets.memory import memory
from headrace.targets.target import Target
from headrace.testing.target import ScriptedTarget, TargetDisk
from tests.control.stepping import Stepping
from tests.support.clock import Clock
from tests.support.shop import PATIENCE, Market, await_that


def counts(run: PipelineRun, table: str = "orders") -> OperationCounts:
    return run.delivery.counters.of(table).counts


def over(world: Stepping, target: Target) -> PipelineRun:
    return world.run(hr.Pipeline(world.source, "orders", target))


def some_changes(world: Stepping) -> None:
    """Insert two rows, update one, delete one."""
    world.put(1)
    world.put(2)
    world.put(1, "paid")
    world.source.emit_delete("orders", 2)
    world.flush()


def test_changes_are_counted_by_operation_and_baseline_rows_apart(world: Stepping) -> None:
    world.put(7)
    run = over(world, ScriptedTarget())
    world.settle(run)
    assert counts(run) == OperationCounts(baseline_rows=1)
    some_changes(world)
    world.source.emit_truncate("orders")
    world.flush()
    world.settle(run)
    assert counts(run) == OperationCounts(2, 1, 1, 1, baseline_rows=1)
    assert counts(run).changes == 5


def test_changes_that_a_filter_leaves_out_are_counted_as_the_log_has_them(world: Stepping) -> None:
    pipeline = hr.Pipeline(
        world.source, "orders", ScriptedTarget(), filters=[hr.equals("status", "paid")]
    )
    run = world.run(pipeline)
    world.settle(run)
    some_changes(world)
    world.settle(run)
    assert counts(run) == OperationCounts(2, 1, 1)


@pytest.mark.parametrize("ends", ["stops", "dies"])
def test_a_durable_target_continues_its_counts_exactly(world: Stepping, ends: str) -> None:
    disk = TargetDisk()
    run = over(world, ScriptedTarget(disk))
    world.settle(run)
    some_changes(world)
    world.settle(run)
    before = run.delivery.counters.of("orders")
    if ends == "stops":
        run.close()
    again = over(world, ScriptedTarget(disk))
    assert again.delivery.counters.of("orders") == before
    world.put(3)
    world.settle(again)
    assert counts(again) == before.counts + OperationCounts(inserts=1)
    assert again.delivery.counters.of("orders").since == before.since


def test_a_batch_that_was_written_but_not_stored_is_counted_once(world: Stepping) -> None:
    class Fails(ProgressStore):
        broken = False

        def advance(self, *given: object) -> hr.Position:
            if Fails.broken:
                raise StorageError("the disk is away")
            return super().advance(*given)  # type: ignore[arg-type]

    disk = TargetDisk()
    pipeline = hr.Pipeline(world.source, "orders", ScriptedTarget(disk))
    run = world.run(pipeline, kind=Fails)
    world.settle(run)
    world.put(1)
    Fails.broken = True
    assert run.step() not in (None, 0)
    assert (1,) in ScriptedTarget(disk).rows("orders")
    # It dies here: its batch comes again, to the target and to the counts.
    again = over(world, ScriptedTarget(disk))
    assert counts(again).inserts == 0
    world.settle(again)
    assert counts(again).inserts == 1


def test_a_volatile_target_counts_what_it_is_rebuilt_from_again(world: Stepping) -> None:
    run = over(world, memory())
    world.settle(run)
    some_changes(world)
    world.settle(run)
    before = counts(run)
    assert before.changes == 4
    run.close()
    again = over(world, memory())
    assert counts(again) == before
    world.settle(again)
    assert counts(again).changes == 8


def test_a_failed_attempt_is_counted_and_kept_when_the_run_is_closed(world: Stepping) -> None:
    disk = TargetDisk()
    target = ScriptedTarget(disk)
    run = over(world, target)
    world.settle(run)
    target.reject(TargetError("not now"), times=2)
    target.reject(TargetError("not now", table="orders"))
    world.put(1)
    for _ in range(3):
        run.step()
    assert run.delivery.counters.of(OF_NO_TABLE).counts.errors == 2
    assert counts(run).errors == 1
    assert run.delivery.counters.total().counts.errors == 3
    run.close()
    assert over(world, ScriptedTarget(disk)).delivery.counters.total().counts.errors == 3


def test_dead_letters_are_counted_when_they_are_stored_also_if_the_batch_comes_again(
    world: Stepping,
) -> None:
    class Refuses(ScriptedTarget):
        def write(self, batch):  # type: ignore[no-untyped-def]
            bad = [
                RefusedRow("orders", at, "409", {})
                for at, key in enumerate(batch.tables["orders"].column("id").to_pylist())
                if key == 66
            ]
            if bad:
                raise RowsRefused.of(bad)
            return super().write(batch)

    target = Refuses()
    pipeline = hr.Pipeline(world.source, "orders", target, on_error=DeadLetters())
    run = world.run(pipeline)
    world.settle(run)
    target.reject(TargetError("the reply is lost"))
    world.put(66)
    world.settle(run)
    assert counts(run).dead_letters == 1
    assert counts(run).inserts == 1


def test_counts_are_written_with_the_progress_of_their_table_and_by_nothing_else(
    world: Stepping,
) -> None:
    statements: list[str] = []
    run = over(world, ScriptedTarget())
    world.settle(run)
    world.connection.set_trace_callback(statements.append)
    world.put(1)
    world.settle(run)
    begun = [each for each in statements if each.startswith("begin")]
    written = [each for each in statements if "into counters" in each]
    assert len(begun) == 1
    assert len(written) == 1


def test_dead_letters_of_several_tables_are_counted_by_table() -> None:
    world = Stepping(("orders", "customers"))

    class Refuses(ScriptedTarget):
        def write(self, batch):  # type: ignore[no-untyped-def]
            bad = [
                RefusedRow(table, at, "409", {})
                for table, rows in batch.tables.items()
                for at, key in enumerate(rows.column("id").to_pylist())
                if key == 66
            ]
            if bad:
                raise RowsRefused.of(bad)
            return super().write(batch)

    pipeline = hr.Pipeline(
        world.source, target=Refuses(), tables=["orders", "customers"], on_error=DeadLetters()
    )
    run = world.run(pipeline)
    world.settle(run)
    world.put(66, table="orders")
    world.put(66, table="customers")
    world.settle(run)
    assert [counts(run, each).dead_letters for each in ("orders", "customers")] == [1, 1]
    assert run.delivery.counters.total().counts.dead_letters == 2


def test_stored_counts_are_added_once_however_often_they_are_read() -> None:
    counters = Counters(Clock(5.0))
    counters.add("orders", OperationCounts(inserts=1))
    stored = {"orders": TableCounts(OperationCounts(inserts=2), 3.0, 4.0)}
    counters.recall(stored)
    counters.recall(stored)
    assert counters.of("orders") == TableCounts(OperationCounts(inserts=3), 3.0, 5.0)
    assert counters.total().since == 3.0


def test_counts_of_a_table_are_not_stored_with_the_progress_of_another() -> None:
    connection = sqlite3.connect(":memory:", isolation_level=None)
    store = ProgressStore(connection)
    store.take_over()
    counters = Counters(Clock(5.0))
    store.count_with(counters)
    counters.add("orders", OperationCounts(inserts=2))
    counters.add("customers", OperationCounts(deletes=1))
    store.advance("p", ["orders"], "test/1", hr.Position(1, 1))
    assert store.counts("p") == {"orders": TableCounts(OperationCounts(inserts=2), 5.0, 5.0)}
    store.store_counts("p")
    assert store.counts("p")["customers"].counts == OperationCounts(deletes=1)
    assert counters.unstored() == {}


def test_counts_that_could_not_be_stored_are_stored_later() -> None:
    connection = sqlite3.connect(":memory:", isolation_level=None)
    store = ProgressStore(connection)
    store.take_over()
    counters = Counters(Clock(5.0))
    store.count_with(counters)
    counters.add("orders", OperationCounts(inserts=2))
    connection.execute("update about set term = 2")
    with pytest.raises(Fenced):
        store.advance("p", ["orders"], "test/1", hr.Position(1, 1))
    assert store.counts("p") == {}
    connection.execute("update about set term = 1")
    store.store_counts("p")
    assert store.counts("p")["orders"].counts == OperationCounts(inserts=2)


def test_counts_of_a_dropped_pipeline_are_deleted() -> None:
    store = ProgressStore(sqlite3.connect(":memory:", isolation_level=None))
    store.take_over()
    counters = Counters(Clock(5.0))
    store.count_with(counters)
    counters.add("orders", OperationCounts(inserts=2))
    store.store_counts("p")
    store.forget("p")
    assert store.counts("p") == {}


def test_the_counts_of_files_are_those_of_the_index() -> None:
    files = [
        File("a", "t", 1, 9, 1, "", inserts=3, updates=2, deletes=1, truncates=1),
        File("b", "t", 1, 9, 1, "", inserts=1, deletes=4),
    ]
    assert OperationCounts.of_files(files) == OperationCounts(4, 2, 5, 1)


def test_the_status_has_counts_times_and_totals(market: Market) -> None:
    with market.engine(market.pipeline(memory())) as engine:
        assert engine.await_ready(PATIENCE)
        info = engine.pipelines()[0]
        assert info.counts == info.tables[0].counts == OperationCounts(baseline_rows=10)
        assert info.last_change is None
        market.put("orders", 1, "void")
        at = market.source.position
        assert await_that(engine, lambda: engine.pipelines()[0].counts.updates == 1)
        info, source = engine.pipelines()[0], engine.source_info("shop")
        assert info.position.commit == at.commit
        assert info.started is not None
        assert info.counted_since is not None
        assert info.last_change is not None
        assert info.started <= info.counted_since <= info.last_change
        assert info.tables[0].last_change == info.last_change
        assert source.started is not None
        assert source.started <= info.started
        shown = pipeline_fields(info, source, ready=True, rate=None)
        assert shown["counts"] == shown["tables"][0]["counts"] == asdict(info.counts)
        assert shown["counts"]["updates"] == 1
        for name in ("last_change", "counted_since", "started"):
            assert shown[name] == round(getattr(info, name), 3)
        assert shown["tables"][0]["last_change"] == shown["last_change"]
        assert source_fields(source)["started"] == round(source.started, 3)
