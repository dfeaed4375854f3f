"""Who keeps every change is given each in the columns of its time, however late it comes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from headrace.capture import recorder
from headrace.capture.messages import TakeBaseline
from headrace.changelog import writer
from headrace.changelog.position import Position
from headrace.changelog.schema import TableSchema
from headrace.errors import SourceUnreachable
from headrace.pipeline.definition import Pipeline
from headrace.runtime.pipeline_run import IDLE, PipelineRun
from headrace.targets.memory import memory
from headrace.targets.target import Batch, SchemaAnswer
from headrace.testing import ScriptedTarget
from tests.control.stepping import Stepping
from tests.control.test_schema_changes import Kept, Told, World, rows, stopped

pytestmark = pytest.mark.meets("R23b")

Row = Mapping[str, object]


def emit(world: Stepping, key: int, /, table: str = "orders", **more: object) -> dict[str, object]:
    """Commit a row, in a flush of its own."""
    row = {"id": key, **more}
    world.source.emit_insert(table, row)
    world.flush()
    return row


def dropped(world: Stepping) -> list[dict[str, object]]:
    """Let rows come with a column, and more rows after it was dropped."""
    found = [emit(world, key, status=f"s{key}") for key in (4, 5)]
    world.source.drop_column("orders", "status")
    return [*found, *(emit(world, key) for key in (6, 7))]


@pytest.mark.parametrize("kind", [Told, Kept])
def test_changes_have_the_values_of_a_column_that_was_dropped_since(kind: type[Told]) -> None:
    target = kind("continue")
    world = World(target)
    given = dropped(world)
    world.settle(world.live)
    assert target.seen[-4:] == given
    assert target.told == ["id"]
    assert world.live.ready


def test_who_keeps_one_state_has_the_newest_columns_at_once() -> None:
    orders = memory()
    world = World(orders)
    dropped(world)
    world.settle(world.live)
    assert rows(orders) == {key: {"id": key} for key in range(1, 8)}


def test_each_of_many_columns_has_its_turn() -> None:
    target = Told("continue")
    world = World(target)
    given = [emit(world, 4, status="s")]
    world.source.rename_column("orders", "status", "state")
    given += [emit(world, key, state="t") for key in (5, 6)]
    world.source.add_column("orders", "note", "text")
    given.append(emit(world, 7, state="u", note="n"))
    world.source.drop_column("orders", "state")
    world.source.drop_column("orders", "note")
    given.append(emit(world, 8))
    world.settle(world.live)
    assert target.seen[-5:] == given
    assert target.told == ["id state", "id state note", "id"]


def test_commits_that_were_read_together_are_told_in_their_own_columns() -> None:
    target = Told("continue")
    world = World(target)
    first, second = {"id": 4, "status": "s"}, {"id": 5}
    world.source.emit_insert("orders", first)
    world.source.drop_column("orders", "status")
    world.source.emit_insert("orders", second)
    for _ in range(2):
        world.recorder.step([], 0)  # both are read before anybody asks for a flush
    world.flush()
    world.settle(world.live)
    assert target.seen[-2:] == [first, second]


def test_a_column_that_is_dropped_behind_the_last_change_is_dropped() -> None:
    target = Told("continue")
    world = World(target)
    world.source.drop_column("orders", "status")
    world.take_baseline()
    world.settle(world.live)
    assert target.told == ["id"]
    assert world.live.ready


def test_a_new_life_goes_on_in_the_columns_that_the_last_one_was_at() -> None:
    target = Kept("continue")
    world = World(target)
    given = dropped(world)
    world.live.close()
    again = Kept("continue")
    live = world.run(Pipeline(world.source, "orders", again))
    world.settle(live)
    assert again.seen == given
    assert again.told == ["id"]


def test_a_pipeline_that_is_to_stop_takes_what_was_before_first() -> None:
    target = Told("continue")
    world = World(target, "stop")
    given = dropped(world)
    world.settle(world.live)
    assert "status" in str(stopped(world.live).facts)
    assert target.seen[-2:] == given[:2]
    world.live.resume()
    world.settle(world.live)
    assert target.seen[-4:] == given


@pytest.mark.parametrize("kind", [Told, Kept])
def test_a_reload_waits_until_the_columns_of_its_rows_have_their_turn(kind: type[Told]) -> None:
    target = kind("continue")
    world = World(target)
    world.live.ask_reload("orders", world.numbers)
    world.live.step()
    given = dropped(world)
    world.take_baseline()
    seen: list[Row] = []
    world.asked.clear()
    for _ in range(50):
        if world.live.step() == IDLE:
            break
        seen += [row for row in target.seen if row not in seen]
    assert world.live.ready
    assert all(row in seen for row in given)
    assert [row["id"] for row in target.seen] == [1, 2, 3, 4, 5, 6, 7]
    assert set(target.told) == {"id"}


class Writing(ScriptedTarget):
    """Writes down in which columns the rows of each table come."""

    def __init__(self, *, transactional: bool) -> None:
        super().__init__(transactional=transactional)
        self.traits = replace(self.traits, columns_in_turn=True)
        self.written: dict[str, list[dict[str, object]]] = {"orders": [], "items": []}

    def schema_changed(self, table: str, old: TableSchema, new: TableSchema) -> SchemaAnswer:
        self._schemas[table] = new
        return "continue"

    def write(self, batch: Batch) -> Position:
        for name, found in batch.tables.items():
            self.written[name] += self.rows_of(self._schemas[name], found)
        return super().write(batch)


@pytest.mark.parametrize("transactional", [True, False])
@pytest.mark.parametrize("crashes", [False, True])
def test_tables_of_one_target_have_their_turns_in_one_order(
    transactional: bool, crashes: bool
) -> None:
    target = Writing(transactional=transactional)
    world = Stepping(("orders", "items"))
    pipeline = Pipeline(world.source, tables=("orders", "items"), target=target)
    live = world.run(pipeline)
    world.settle(live)
    orders = [emit(world, 1, status="a")]
    items = [emit(world, 1, "items", status="a")]
    world.source.drop_column("items", "status")
    orders.append(emit(world, 2, status="b"))
    items.append(emit(world, 2, "items"))
    orders.append(emit(world, 3, status="c"))
    world.source.drop_column("orders", "status")
    orders.append(emit(world, 4))
    items.append(emit(world, 3, "items"))
    while live.step() != IDLE:
        if crashes:
            live = world.run(pipeline)
    assert target.written == {"orders": orders, "items": items}
    assert not target.disk.duplicates()
    assert live.reached == world.log.end


def copy_before_a_backlog(world: World, monkeypatch: pytest.MonkeyPatch) -> list[Row]:
    """Let a copy begin in other columns than changes are in that nobody has read yet."""
    given: list[Row] = [*({"id": key, "status": f"s{key}"} for key in (4, 5, 6)), {"id": 7}]
    for row in given:
        if "status" not in row:
            world.source.drop_column("orders", "status")
        world.source.emit_insert("orders", dict(row))
    monkeypatch.setattr(recorder, "READ_ROWS", 1)
    world.source.inject_error(SourceUnreachable("gone"))
    world.recorder.step([], 0)
    world.recorder._retry_at = 0
    world.recorder.step([], 0)
    world.recorder.step([TakeBaseline("orders")], 0)
    return given


def read_on(world: World, live: PipelineRun) -> None:
    """Let changes be read one by one, and delivered as they come."""
    for _ in range(10):
        world.settle(live)
        world.flush()
    world.settle(live)


@pytest.mark.parametrize("kind", [Told, Kept])
def test_a_copy_that_begins_before_older_changes_are_read_says_nothing_of_their_columns(
    kind: type[Told], monkeypatch: pytest.MonkeyPatch
) -> None:
    target = kind("continue")
    world = World(target)
    given = copy_before_a_backlog(world, monkeypatch)
    read_on(world, world.live)
    assert target.seen[-4:] == given


def test_one_that_is_built_again_follows_what_is_read_after_its_start_in_turn() -> None:
    world = World(Told("continue"))
    given: list[Row] = [{"id": 4, "status": "s4"}, {"id": 5}]
    world.source.emit_insert("orders", dict(given[0]))
    world.source.drop_column("orders", "status")
    target = Told("continue")
    live = world.run(Pipeline(world.source, "orders", target))
    world.settle(live)
    assert len(target.seen) == 3
    world.source.emit_insert("orders", dict(given[1]))
    for _ in range(2):
        world.flush()
        world.settle(live)
    assert target.seen[-2:] == given
    assert target.told == ["id"]


def test_a_commit_too_large_for_one_part_is_not_flushed_with_what_was_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    target = Writing(transactional=True)
    world = Stepping(("orders", "items"))
    live = world.run(Pipeline(world.source, tables=("orders", "items"), target=target))
    world.settle(live)
    monkeypatch.setattr(recorder, "READ_ROWS", 2)
    world.source.emit_insert("orders", {"id": 1, "status": "a"})
    world.source.drop_column("orders", "status")
    with world.source.transaction():
        for key in range(1, 4):
            world.source.emit_insert("items", {"id": key, "status": "i"})
        world.source.emit_insert("orders", {"id": 2})
    for _ in range(4):
        world.recorder.step([], 0)
    world.flush()
    world.settle(live)
    assert target.written["orders"] == [{"id": 1, "status": "a"}, {"id": 2}]


def test_what_a_large_commit_spilled_is_not_flushed_with_what_comes_in_other_columns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    target = Writing(transactional=True)
    world = Stepping(("orders", "items"))
    live = world.run(Pipeline(world.source, tables=("orders", "items"), target=target))
    world.settle(live)
    monkeypatch.setattr(recorder, "READ_ROWS", 2)
    monkeypatch.setattr(writer, "LIMIT_BYTES", 1)
    with world.source.transaction():
        for key in (1, 2):
            world.source.emit_insert("orders", {"id": key, "status": "a"})
        world.source.emit_insert("items", {"id": 1, "status": "i"})
    world.source.drop_column("orders", "status")
    world.source.emit_insert("orders", {"id": 3})
    for _ in range(4):
        world.recorder.step([], 0)
    world.flush()
    world.settle(live)
    assert target.written["orders"] == [
        {"id": 1, "status": "a"},
        {"id": 2, "status": "a"},
        {"id": 3},
    ]


@pytest.mark.parametrize("kind", [Told, Kept])
def test_a_load_does_not_begin_with_columns_that_only_a_copy_under_way_has(
    kind: type[Told], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(memory())
    given = copy_before_a_backlog(world, monkeypatch)
    target = kind("continue")
    live = world.run(Pipeline(world.source, "orders", target))
    read_on(world, live)
    assert target.seen[-4:] == given
    assert target.told == ["id"]


def test_one_of_one_state_that_began_before_its_table_was_known_is_told_of_no_change() -> None:
    world = Stepping()
    target = ScriptedTarget()
    live = world.run(Pipeline(world.source, "orders", target, mode="changes"))
    world.settle(live)
    live.close()
    emit(world, 4, status="s4")
    world.source.add_column("orders", "note", "text")
    again = ScriptedTarget(target.disk)
    live = world.run(
        Pipeline(world.source, "orders", again, mode="changes", on_schema_change="stop")
    )
    world.settle(live)
    assert live.error is None
    assert live.ready


@pytest.mark.parametrize("described", [True, False])
def test_one_that_began_before_its_table_was_known_takes_all_columns_in_turn(
    described: bool,
) -> None:
    world = Stepping()
    live = world.run(Pipeline(world.source, "orders", Kept("continue"), mode="changes"))
    world.settle(live)
    live.close()
    given = [emit(world, 4, status="s4")]
    world.source.drop_column("orders", "status")
    if not described:
        given.append(emit(world, 5))
    target = Kept("continue")
    live = world.run(Pipeline(world.source, "orders", target, mode="changes"))
    world.settle(live)
    if described:
        given.append(emit(world, 5))
        world.settle(live)
    assert target.seen == given


def test_a_table_that_waits_for_its_turn_does_not_keep_another_from_being_loaded() -> None:
    target = Writing(transactional=True)
    world = Stepping(("orders", "items"))
    live = world.run(Pipeline(world.source, tables=("orders", "items"), target=target))
    world.settle(live)
    for table in ("orders", "items"):
        live.ask_reload(table, 2)
    live.step()
    world.asked.clear()
    emit(world, 1, status="a")
    world.source.drop_column("orders", "status")
    emit(world, 2)
    for table in ("orders", "items"):
        world.take_baseline(table)
    loads = target.calls["load"]
    live.step()
    assert target.calls["load"] == loads + 1
    world.settle(live)
    assert live.ready
