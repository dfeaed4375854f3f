"""Tables that get other columns while pipelines follow them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from headrace.changelog.schema import Column
from headrace.errors import (
    ChangesMissing,
    ColumnsChanged,
    SourceUnreachable,
    StorageError,
    UnknownColumn,
)
from headrace.pipeline.definition import OnSchemaChange, Pipeline
from headrace.pipeline.steps import Filter, equals
from headrace.runtime.model import TableState
from headrace.runtime.pipeline_run import IDLE, PipelineRun
from headrace.tables import Row
from headrace.targets.memory import IndexedMemory, memory
from headrace.targets.row_target import RowTarget
from headrace.targets.target import SchemaAnswer, Target
from headrace.testing.target import ScriptedTarget
from tests.control.stepping import Stepping

pytestmark = pytest.mark.meets("R23b")


class World(Stepping):
    """Orders in a target, which is followed from a baseline of three."""

    def __init__(
        self,
        target: Target,
        policy: OnSchemaChange = "continue",
        filters: Sequence[Filter] = (),
    ) -> None:
        super().__init__()
        for key in (1, 2, 3):
            self.source.add_row("orders", {"id": key, "status": "old"})
        pipeline = Pipeline(self.source, "orders", target, on_schema_change=policy, filters=filters)
        self.live = self.run(pipeline)
        self.settle(self.live)
        self.copies = self.numbers

    @property
    def numbers(self) -> int:
        """The number of the newest baseline."""
        found = self.log.usable_baseline("orders")
        return found.baseline if found else 0

    def add(self, row: dict[str, object]) -> None:
        self.source.emit_insert("orders", row)
        self.flush()
        self.settle(self.live)

    def disconnect(self) -> None:
        """Let the recorder lose its source, and find it again; the pipeline has not looked."""
        self.source.inject_error(SourceUnreachable("gone"))
        self.recorder.step([], 0)
        self.recorder._retry_at = 0
        self.recorder.step([], 0)
        self.log.refresh()

    def reconnect(self) -> None:
        """The same, and then the pipeline goes on."""
        self.disconnect()
        self.settle(self.live)


def rows(target: IndexedMemory) -> dict[object, dict[str, object]]:
    return {row["id"]: dict(row) for row in target.all()}


def test_a_column_that_was_added_appears_without_another_copy() -> None:
    orders = memory()
    world = World(orders)
    world.source.add_column("orders", "note", "text")
    world.add({"id": 4, "status": "new", "note": "n"})
    assert rows(orders)[4] == {"id": 4, "status": "new", "note": "n"}
    assert rows(orders)[1] == {"id": 1, "status": "old", "note": None}
    assert world.numbers == world.copies
    assert world.live.ready


def test_older_rows_have_the_default_that_they_got_with_the_column() -> None:
    orders = memory()
    world = World(orders)
    world.source.add_column("orders", "paid", "int64", 7)
    world.add({"id": 4, "status": "new", "paid": 8})
    assert {key: row["paid"] for key, row in rows(orders).items()} == {1: 7, 2: 7, 3: 7, 4: 8}
    assert world.numbers == world.copies


def test_rows_that_were_rewritten_with_a_column_are_copied_again_and_other_tables_are_not() -> None:
    orders = memory()
    world = World(orders)
    world.source.add_column("orders", "drawn", "int64", 5, rewritten=True)
    world.reconnect()
    assert {row["drawn"] for row in rows(orders).values()} == {5}
    assert world.numbers == world.copies + 1
    assert world.log.rebaseline_required("orders") is not None
    assert world.log.gap is not None
    assert world.log.gap.reason == "start"


def test_a_column_with_another_name_keeps_its_values_and_one_that_is_gone_is_gone() -> None:
    orders = memory()
    world = World(orders)
    world.source.rename_column("orders", "status", "state")
    world.source.add_column("orders", "note", "text")
    world.source.drop_column("orders", "note")
    world.add({"id": 4, "state": "new"})
    assert rows(orders)[1] == {"id": 1, "state": "old"}
    assert rows(orders)[4] == {"id": 4, "state": "new"}
    assert world.numbers == world.copies


def test_readers_see_the_old_columns_until_the_new_ones_take_their_place() -> None:
    orders = memory()
    world = World(orders)
    world.source.add_column("orders", "note", "text")
    world.source.emit_insert("orders", {"id": 4, "status": "new", "note": "n"})
    world.flush()
    seen: set[tuple[str, ...]] = set()
    while not all("note" in row for row in rows(orders).values()):
        world.live.step()
        counted = rows(orders)
        assert len(counted) in (3, 4)
        seen.add(tuple(counted[1]))
    assert seen == {("id", "status"), ("id", "status", "note")}


def test_a_table_that_is_loaded_again_says_why_until_it_is_shown() -> None:
    world = World(memory())
    (member,) = [each for each in world.live.members if each.table == "orders"]
    world.source.add_column("orders", "note", "text")
    world.source.emit_insert("orders", {"id": 4, "status": "new", "note": "n"})
    world.flush()
    reasons = set()
    while world.live.step() != IDLE:
        reasons.add((member.state == TableState.LIVE, member.load_reason))
    assert (False, "its columns changed: note added") in reasons
    assert {why for shown, why in reasons if shown} <= {""}
    assert (member.state, member.load_reason) == (TableState.LIVE, "")


@pytest.mark.parametrize(
    ("happens", "why"),
    [
        ("rewritten rows", "its columns were altered"),
        ("another history", "the source was restored or replaced"),
        ("a request", "a new copy was requested"),
        ("a release", "released from its source"),
    ],
)
def test_every_cause_of_a_load_has_its_reason(happens: str, why: str) -> None:
    world = World(ScriptedTarget())
    (member,) = world.live.members
    match happens:
        case "rewritten rows":
            world.source.add_column("orders", "drawn", "int64", 5, rewritten=True)
            world.disconnect()
        case "another history":
            world.source.reset()
            world.disconnect()
        case "a request":
            world.live.ask_reload("orders", world.numbers)
        case "a release":
            world.live.release_source(source="shop")
    world.live.step()
    assert (member.state == TableState.LIVE, member.load_reason) == (False, why)
    world.settle(world.live)
    assert (member.state, member.load_reason) == (TableState.LIVE, "")


def test_who_listens_is_told_of_rows_with_other_columns() -> None:
    orders = memory()
    world = World(orders)
    changes = orders.changes()
    world.source.add_column("orders", "paid", "int64", 7)
    world.add({"id": 4, "status": "new", "paid": 8})
    told = [next(changes) for _ in range(4)]
    assert {change.after["id"]: change.after["paid"] for change in told if change.after} == {
        1: 7,
        2: 7,
        3: 7,
        4: 8,
    }


def stopped(run: PipelineRun) -> ColumnsChanged:
    assert run.failed
    assert isinstance(run.error, ColumnsChanged)
    return run.error


def test_a_pipeline_that_is_to_stop_says_what_changed_and_goes_on_when_it_is_resumed() -> None:
    orders = memory()
    world = World(orders, "stop")
    world.source.add_column("orders", "note", "text")
    world.add({"id": 4, "status": "new", "note": "n"})
    assert stopped(world.live).facts["changes"] == "note added"
    assert not world.live.ready
    assert len(rows(orders)) == 3
    world.live.resume()
    world.settle(world.live)
    assert rows(orders)[4] == {"id": 4, "status": "new", "note": "n"}


def test_a_pipeline_may_have_its_tables_copied_again() -> None:
    orders = memory()
    world = World(orders, "rebaseline")
    world.source.add_column("orders", "note", "text")
    world.add({"id": 4, "status": "new", "note": "n"})
    assert world.numbers == world.copies + 1
    assert rows(orders)[4] == {"id": 4, "status": "new", "note": "n"}


def test_a_filter_over_a_column_that_is_gone_stops_its_pipeline_by_name() -> None:
    orders = memory()
    world = World(orders, filters=[equals("status", "old")])
    assert len(rows(orders)) == 3
    world.source.drop_column("orders", "status")
    world.add({"id": 4})
    assert isinstance(world.live.error, UnknownColumn)
    assert world.live.failed
    assert len(rows(orders)) == 3


class Told(RowTarget):
    """Writes down what it is told."""

    def __init__(self, answer: SchemaAnswer) -> None:
        self.answer = answer
        self.told: list[str] = []
        self.seen: list[dict[str, object]] = []

    def on_schema_change(self, old: Sequence[Column], new: Sequence[Column]) -> SchemaAnswer:
        self.told.append(" ".join(column.name for column in new))
        return self.answer

    def on_baseline_row(self, row: Row) -> None:
        self.seen.append(dict(row))

    def on_insert(self, row: Row) -> None:
        self.seen.append(dict(row))

    def on_update(self, row: Row, identity: Row) -> None:
        raise AssertionError

    def on_delete(self, identity: Row) -> None:
        raise AssertionError

    def on_truncate(self) -> None:
        self.seen.clear()


@pytest.mark.parametrize(("answer", "loaded"), [("continue", 3), ("reload", 4)])
def test_a_target_may_go_on_or_ask_for_the_table_anew(answer: SchemaAnswer, loaded: int) -> None:
    target = Told(answer)
    world = World(target)
    world.source.add_column("orders", "note", "text")
    world.add({"id": 4, "status": "new", "note": "n"})
    assert target.told == ["id status note"]
    assert target.schema.names == ("id", "status", "note")
    assert len(target.seen) == 4
    assert target.seen[-1] == {"id": 4, "status": "new", "note": "n"}
    assert sum("note" in row for row in target.seen) == (1 if answer == "continue" else loaded)
    assert world.numbers == world.copies


def test_a_target_that_refuses_stops_its_pipeline() -> None:
    target = Told("refuse")
    world = World(target)
    world.source.add_column("orders", "note", "text")
    world.add({"id": 4, "status": "new", "note": "n"})
    assert "refuses" in stopped(world.live).message
    assert len(target.seen) == 3


def test_columns_that_go_back_to_what_they_were_are_followed() -> None:
    orders = memory()
    world = World(orders)
    world.source.rename_column("orders", "status", "state")
    world.add({"id": 4, "state": "new"})
    assert rows(orders)[4] == {"id": 4, "state": "new"}
    world.source.rename_column("orders", "state", "status")
    world.reconnect()
    world.add({"id": 5, "status": "newer"})
    assert rows(orders)[5] == {"id": 5, "status": "newer"}
    assert rows(orders)[1] == {"id": 1, "status": "old"}


def test_what_older_rows_have_is_remembered_when_the_source_has_forgotten_it() -> None:
    orders = memory()
    world = World(orders)
    world.source.add_column("orders", "paid", "int64", 7)
    world.add({"id": 4, "status": "new", "paid": 8})
    forgetting = world.source._schemas["orders"]
    bare = tuple(replace(column, missing=None) for column in forgetting.columns)
    world.source._schemas["orders"] = replace(forgetting, columns=bare)
    again = memory()
    world.live = world.run(Pipeline(world.source, "orders", again))
    world.settle(world.live)
    assert rows(again)[1]["paid"] == 7
    world.source.add_column("orders", "note", "text")
    world.add({"id": 5, "status": "new", "paid": 9, "note": "n"})
    assert {key: row["paid"] for key, row in rows(again).items()} == {1: 7, 2: 7, 3: 7, 4: 8, 5: 9}


def test_a_table_that_was_altered_before_the_pipeline_opened_is_followed() -> None:
    world = World(memory())
    late = memory()
    pipeline = Pipeline(world.source, "orders", late)
    described = world.source.describe(["orders"])
    world.source.add_column("orders", "paid", "int64", 7)
    world.add({"id": 4, "status": "new", "paid": 8})
    run = world.run(pipeline)
    run.prepare(described)
    run.open()
    world.settle(run)
    assert rows(late)[1] == {"id": 1, "status": "old", "paid": 7}


def test_a_reload_that_was_asked_for_is_owed_over_an_alteration() -> None:
    orders = memory()
    world = World(orders)
    world.live.ask_reload("orders", world.copies)
    world.live.step()
    world.source.add_column("orders", "note", "text")
    world.add({"id": 4, "status": "new", "note": "n"})
    assert world.numbers > world.copies
    assert rows(orders)[4]["note"] == "n"


def test_a_failing_store_does_not_make_an_alteration_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    orders = memory()
    world = World(orders)
    store = world.live.context.store
    kept = store.set_states

    def full(*arguments: object) -> None:
        monkeypatch.setattr(store, "set_states", kept)
        raise StorageError("No room")

    monkeypatch.setattr(store, "set_states", full)
    world.source.add_column("orders", "note", "text")
    world.add({"id": 4, "status": "new", "note": "n"})
    world.settle(world.live)
    assert rows(orders)[4] == {"id": 4, "status": "new", "note": "n"}


def test_a_listener_is_told_all_anew_when_the_key_is_another_one() -> None:
    orders = memory()
    world = World(orders)
    changes = orders.changes()
    schema = world.source._schemas["orders"]
    world.source._schemas["orders"] = replace(schema, key=("status",))
    world.source._rows["orders"] = {("old",): {"id": 1, "status": "old"}}
    world.reconnect()
    first = next(changes)
    assert first.op == "truncate"
    second = next(changes)
    assert (second.op, second.key) == ("insert", ("old",))
    assert dict(orders.get("old") or {}) == {"id": 1, "status": "old"}


@pytest.mark.meets("R1")
def test_who_takes_changes_alone_is_told_of_missing_ones_over_lives() -> None:
    world = Stepping()
    pipeline = Pipeline(world.source, "orders", memory(), mode="changes")
    run = world.run(pipeline)
    world.put(1)
    world.settle(run)
    log = world.recorder._log
    assert log is not None
    log.require_baseline("orders", "left out", missing=True)
    world.put(2)
    log.require_baseline("orders", "partitions")
    world.log.refresh()
    world.settle(run)
    assert isinstance(run.error, ChangesMissing)
    again = world.run(Pipeline(world.source, "orders", memory(), mode="changes"))
    world.settle(again)
    assert isinstance(again.error, ChangesMissing)
    assert not again.ready


class Kept(Told):
    """The same, in a place that outlives the engine."""

    def is_durable(self) -> bool:
        return True


def lives_on(world: World, target: Target, policy: OnSchemaChange = "continue") -> None:
    """Begin a new life of the engine, in which the recorder has read on by itself."""
    world.flush()
    world.live = world.run(Pipeline(world.source, "orders", target, on_schema_change=policy))
    world.settle(world.live)


@pytest.mark.parametrize("recorded", [True, False])
def test_a_durable_target_is_asked_about_columns_that_changed_while_no_engine_ran(
    recorded: bool,
) -> None:
    target = Kept("continue")
    world = World(target)
    world.live.close()
    world.source.add_column("orders", "note", "text")
    if recorded:
        world.source.emit_insert("orders", {"id": 4, "status": "new", "note": "n"})
    lives_on(world, target)
    world.add({"id": 5, "status": "new", "note": "m"})
    assert target.told == ["id status note"]
    assert target.seen[-1] == {"id": 5, "status": "new", "note": "m"}
    world.live.close()
    lives_on(world, target)
    assert target.told == ["id status note"], "asked again about what it knows"


def test_a_pipeline_that_is_to_stop_does_so_for_columns_that_changed_while_no_engine_ran() -> None:
    target = Kept("continue")
    world = World(target, "stop")
    world.live.close()
    world.source.add_column("orders", "note", "text")
    world.source.emit_insert("orders", {"id": 4, "status": "new", "note": "n"})
    lives_on(world, target, "stop")
    assert "note" in str(stopped(world.live).facts)
    world.live.resume()
    world.settle(world.live)
    assert target.seen[-1] == {"id": 4, "status": "new", "note": "n"}
    world.live.close()
    lives_on(world, target, "stop")
    assert not world.live.failed
