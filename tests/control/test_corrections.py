"""Replayed and edited dead letters reach the target in order, and stay when it is rebuilt."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest

from headrace.changelog.change import Op, TableChanges
from headrace.changelog.position import Position
from headrace.changelog.schema import Column, TableSchema
from headrace.changelog.values import ValueType
from headrace.corrections.journal import Correction, Journal
from headrace.errors import CannotReplay, StorageError
from headrace.pipeline.definition import DeadLetters, Pipeline
from headrace.runtime.delivery import Delivery
from headrace.storage.disk import RealDisk
from headrace.storage.files import Files
from headrace.storage.records import FileRecords
from headrace.targets.memory import IndexedMemory, memory
from headrace.testing.target import ScriptedTarget
from tests.support.arrow_runner import ArrowRunner, Row
from tests.support.shop import PATIENCE, Market, await_that


class Runner(ArrowRunner):
    """Cannot compute rows with some statuses."""

    def __init__(self, *bad: str) -> None:
        self.bad = set(bad)
        super().__init__(fails=self._why)

    def _why(self, pipeline: Pipeline, row: Row) -> str | None:
        return "DIVIDE_BY_ZERO" if row["status"] in self.bad else None


def status(orders: IndexedMemory, key: int) -> object:
    row = orders.get(key)
    return None if row is None else row["status"]


def wait_for(market: Market, orders: IndexedMemory, key: int, value: object) -> bool:
    del market
    return orders.get(key) is not None and status(orders, key) == value


def statuses(orders: IndexedMemory) -> dict[object, object]:
    return {row["id"]: row["status"] for row in orders.all()}


@pytest.mark.meets("ACC-16", "ENG-49")
def test_a_replay_applies_a_row_s_dead_letters_in_order_and_releases_it(market: Market) -> None:
    orders, runner = memory(), Runner("bad")
    with market.engine(market.pipeline(orders), runner=runner) as engine:
        assert engine.await_ready(PATIENCE)
        market.put("orders", 2, status="bad")
        market.put("orders", 2, status="good")
        market.put("orders", 3, status="bad")
        market.put("orders", 4, status="sent")
        assert await_that(engine, lambda: status(orders, 4) == "sent")
        assert len(engine.dead_letters()) == 3
        runner.bad.clear()
        chosen = engine.dead_letters()[0]
        outcomes = engine.replay_dead_letters("orders", position=chosen.position, note="me")
        assert [(each.dead_letter.after or {})["status"] for each in outcomes] == ["bad", "good"]
        assert [each.outcome for each in outcomes] == ["applied", "applied"]
        assert status(orders, 2) == "good"
        assert status(orders, 3) == "paid", "only that row's dead letters were replayed"
        market.put("orders", 2, status="better")
        assert await_that(engine, lambda: status(orders, 2) == "better")
        every = engine.dead_letters(superseded=True)
        assert [each.superseded for each in every] == ["replayed", "replayed", None]
        assert every[0].note == "me"
        (rest,) = engine.replay_dead_letters("orders")
        assert rest.outcome == "applied"
        assert statuses(orders) == {key: row["status"] for key, row in market.truth().items()}
        assert engine.dead_letters() == ()


@pytest.mark.meets("ACC-16")
def test_what_fails_again_is_a_dead_letter_again_at_its_new_position(market: Market) -> None:
    orders, runner = memory(), Runner("bad")
    with market.engine(market.pipeline(orders), runner=runner) as engine:
        assert engine.await_ready(PATIENCE)
        market.put("orders", 2, status="bad")
        market.put("orders", 2, status="good")
        assert await_that(engine, lambda: len(engine.dead_letters()) == 2)
        before = engine.dead_letters()
        outcomes = engine.replay_dead_letters("orders")
        assert [each.outcome for each in outcomes] == ["failed", "waiting"]
        assert outcomes[0].code == "DIVIDE_BY_ZERO"
        after = engine.dead_letters()
        assert [each.position for each in after] == [each.position for each in outcomes]
        assert [each.after for each in after] == [each.after for each in before]
        assert [each.kind for each in after] == ["failed", "behind"]
        assert status(orders, 2) == "paid"
        market.put("orders", 2, status="better")
        assert await_that(engine, lambda: len(engine.dead_letters()) == 3)
        runner.bad.clear()
        assert {each.outcome for each in engine.replay_dead_letters("orders")} == {"applied"}
        assert status(orders, 2) == "better"


@pytest.mark.meets("ACC-16")
def test_an_edit_gives_the_row_other_values_and_stays_when_the_target_is_rebuilt(
    market: Market,
) -> None:
    orders, runner = memory(), Runner("bad")
    engine = market.engine(market.pipeline(orders), runner=runner)
    with engine:
        assert engine.await_ready(PATIENCE)
        market.put("orders", 2, status="bad", version=7)
        market.put("orders", 3, status="sent")
        assert await_that(engine, lambda: status(orders, 3) == "sent")
        (letter,) = engine.dead_letters()
        (outcome,) = engine.edit_dead_letter("orders", letter.position, {"status": "mended"})
        assert outcome.outcome == "applied"
        assert dict(orders.get(2) or {}) == {"id": 2, "status": "mended", "version": 7}
        assert [each.superseded for each in engine.dead_letters(superseded=True)] == ["edited"]
    for _ in range(2):
        with engine:
            assert engine.await_ready(PATIENCE)
            # The change before it fails again, and is no dead letter again.
            assert await_that(engine, lambda: status(orders, 2) == "mended")
            assert engine.dead_letters() == ()
    with engine:
        assert engine.await_ready(PATIENCE)
        market.put("orders", 2, status="newer", version=8)
        assert await_that(engine, lambda: status(orders, 2) == "newer")
    with engine:
        assert engine.await_ready(PATIENCE)
        assert await_that(engine, lambda: status(orders, 2) == "newer")
        assert statuses(orders) == {key: row["status"] for key, row in market.truth().items()}
        assert engine.dead_letters() == ()


@pytest.mark.meets("ACC-16")
def test_rows_of_one_copy_that_failed_are_told_apart_by_their_keys(market: Market) -> None:
    market.put("orders", 1, status="bad")
    market.put("orders", 2, status="bad")
    orders, runner = memory(), Runner("bad")
    with market.engine(market.pipeline(orders), runner=runner) as engine:
        assert engine.await_ready(PATIENCE)
        first, second = engine.dead_letters()
        assert first.position == second.position, "where the copy began"
        with pytest.raises(CannotReplay, match="Several dead letters match"):
            engine.edit_dead_letter("orders", first.position, {"status": "repaired"})
        with pytest.raises(CannotReplay, match="No such dead letter"):
            engine.replay_dead_letters("orders", key=[9])
        (outcome,) = engine.edit_dead_letter(
            "orders", first.position, {"status": "repaired"}, key=[2]
        )
        assert outcome.dead_letter.key == (2,)
        assert status(orders, 2) == "repaired"
        (purged,) = engine.purge_dead_letters("orders", key=[1])
        assert (purged.dead_letters, purged.keys) == (1, 1)
        assert engine.dead_letters() == ()


def test_a_row_is_edited_again_and_again_and_the_last_edit_counts(market: Market) -> None:
    orders, runner = memory(), Runner("bad", "worse")
    engine = market.engine(market.pipeline(orders), runner=runner)
    with engine:
        assert engine.await_ready(PATIENCE)
        market.put("orders", 2, status="bad")
        assert await_that(engine, lambda: len(engine.dead_letters()) == 1)
        at = engine.dead_letters()[0].position
        (outcome,) = engine.edit_dead_letter("orders", at, {"status": "worse"})
        assert outcome.outcome == "failed"
        (outcome,) = engine.edit_dead_letter("orders", outcome.position, {"status": "mended"})
        assert outcome.outcome == "applied"
    with engine:
        assert engine.await_ready(PATIENCE)
        assert await_that(engine, lambda: status(orders, 2) == "mended")
        assert engine.dead_letters() == ()


def test_a_reload_covers_an_edit_and_the_row_fails_again(market: Market) -> None:
    orders, runner = memory(), Runner("bad")
    engine = market.engine(market.pipeline(orders), runner=runner)
    with engine:
        assert engine.await_ready(PATIENCE)
        market.put("orders", 2, status="bad")
        assert await_that(engine, lambda: len(engine.dead_letters()) == 1)
        engine.edit_dead_letter("orders", engine.dead_letters()[0].position, {"status": "mended"})
        assert engine.reload("shop", "orders", timeout=PATIENCE)
        (letter,) = engine.dead_letters()
        assert letter.baseline is not None
        assert orders.get(2) is None
    with engine:
        assert engine.await_ready(PATIENCE)
        assert [each.position for each in engine.dead_letters()] == [letter.position]
        assert orders.get(2) is None
        (outcome,) = engine.edit_dead_letter("orders", letter.position, {"status": "again"})
        assert outcome.outcome == "applied"
        assert status(orders, 2) == "again"
    with engine:
        assert engine.await_ready(PATIENCE)
        assert await_that(engine, lambda: orders.get(2) is not None)
        assert status(orders, 2) == "again"
        assert engine.dead_letters() == ()


def test_a_durable_target_gets_each_correction_once(market: Market) -> None:
    target, runner = ScriptedTarget(), Runner("bad")
    engine = market.engine(market.pipeline(target), runner=runner)
    with engine:
        assert engine.await_ready(PATIENCE)
        market.put("orders", 2, status="bad")
        market.put("orders", 2, status="good")
        assert await_that(engine, lambda: len(engine.dead_letters()) == 2)
        runner.bad.clear()
        engine.replay_dead_letters("orders")
        assert target.rows("orders")[(2,)]["status"] == "good"
    with engine:
        assert engine.await_ready(PATIENCE)
        market.put("orders", 3, status="sent")
        assert await_that(engine, lambda: target.rows("orders")[(3,)]["status"] == "sent")
        assert market.source.wait_until_acknowledged(PATIENCE)
    assert target.disk.duplicates() == []
    assert target.rows("orders")[(2,)]["status"] == "good"


def test_a_dry_run_says_what_would_happen_and_changes_nothing(market: Market) -> None:
    orders, runner = memory(), Runner("bad")
    with market.engine(market.pipeline(orders), runner=runner) as engine:
        assert engine.await_ready(PATIENCE)
        market.put("orders", 2, status="bad")
        assert await_that(engine, lambda: len(engine.dead_letters()) == 1)
        (letter,) = engine.dead_letters()
        (outcome,) = engine.replay_dead_letters("orders", dry_run=True)
        assert (outcome.outcome, outcome.code) == ("failed", "DIVIDE_BY_ZERO")
        (outcome,) = engine.edit_dead_letter(
            "orders", letter.position, {"status": "mended"}, dry_run=True
        )
        assert outcome.outcome == "applied"
        assert engine.dead_letters() == (letter,)
        assert status(orders, 2) == "paid"


def test_an_edit_that_is_not_possible_is_refused_with_its_reason(market: Market) -> None:
    orders, runner = memory(), Runner("bad")
    with market.engine(market.pipeline(orders), runner=runner) as engine:
        assert engine.await_ready(PATIENCE)
        with pytest.raises(CannotReplay, match="No such dead letter"):
            engine.replay_dead_letters("orders")
        market.put("orders", 2, status="bad")
        assert await_that(engine, lambda: len(engine.dead_letters()) == 1)
        at = engine.dead_letters()[0].position
        with pytest.raises(CannotReplay, match="key column"):
            engine.edit_dead_letter("orders", at, {"id": 3})
        with pytest.raises(CannotReplay, match="no such column"):
            engine.edit_dead_letter("orders", at, {"colour": "red"})
        with pytest.raises(CannotReplay, match="does not fit"):
            engine.edit_dead_letter("orders", at, {"version": "one"})
        engine.pause("orders")
        with pytest.raises(CannotReplay, match="paused"):
            engine.replay_dead_letters("orders")
        engine.resume("orders")
        assert len(engine.dead_letters()) == 1


def test_a_replay_of_many_that_would_fail_again_does_not_stop_the_pipeline(
    market: Market,
) -> None:
    orders, runner = memory(), Runner("bad")
    few = DeadLetters(max_per_batch=2)
    with market.engine(market.pipeline(orders, on_error=few), runner=runner) as engine:
        assert engine.await_ready(PATIENCE)
        for key in (2, 3, 4):
            market.put("orders", key, status="bad")
            assert await_that(engine, lambda: len(engine.dead_letters()) == key - 1)  # noqa: B023
        letters = engine.dead_letters()
        for dry_run in (False, True):
            with pytest.raises(CannotReplay, match="Too many"):
                engine.replay_dead_letters("orders", dry_run=dry_run)
        assert engine.dead_letters() == letters
        (outcome,) = engine.replay_dead_letters("orders", position=letters[0].position)
        assert outcome.outcome == "failed"
        runner.bad.clear()
        outcomes = engine.replay_dead_letters("orders")
        assert [each.outcome for each in outcomes] == ["applied"] * 3
        assert engine.is_ready()


def test_a_correction_whose_dead_letters_were_not_resolved_is_completed(
    market: Market, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders, runner = memory(), Runner("bad")
    engine = market.engine(market.pipeline(orders), runner=runner)
    with engine:
        assert engine.await_ready(PATIENCE)
        market.put("orders", 2, status="bad")
        assert await_that(engine, lambda: len(engine.dead_letters()) == 1)
        at = engine.dead_letters()[0].position

        def dies(*_: object) -> None:
            raise StorageError("the disk is gone")

        with monkeypatch.context() as patch, pytest.raises(StorageError):
            patch.setattr(Delivery, "_resolve", dies)
            engine.edit_dead_letter("orders", at, {"status": "mended"})
    with engine:
        assert engine.await_ready(PATIENCE)
        assert await_that(engine, lambda: status(orders, 2) == "mended")
        assert engine.dead_letters() == ()


@pytest.mark.parametrize("durable", [False, True], ids=["memory", "durable"])
def test_a_pipeline_of_changes_alone_replays_its_dead_letters(
    market: Market, durable: bool
) -> None:
    orders, scripted, runner = memory(), ScriptedTarget(), Runner("bad")
    target = scripted if durable else orders

    def seen(key: int) -> object:
        if durable:
            return scripted.rows("orders").get((key,), {}).get("status")
        return status(orders, key)

    engine = market.engine(market.pipeline(target, mode="changes"), runner=runner)
    with engine:
        assert engine.await_ready(PATIENCE)
        market.put("orders", 2, status="bad")
        market.put("orders", 3, status="sent")
        assert await_that(engine, lambda: seen(3) == "sent")
        (letter,) = engine.dead_letters()
        (outcome,) = engine.edit_dead_letter("orders", letter.position, {"status": "mended"})
        assert (outcome.outcome, seen(2)) == ("applied", "mended")
    with engine:
        assert engine.await_ready(PATIENCE)
        assert await_that(engine, lambda: seen(2) == "mended")
        assert engine.dead_letters() == ()


def test_a_pipeline_in_mode_baseline_refuses_a_replay(market: Market) -> None:
    orders, runner = memory(), Runner("bad")
    market.put("orders", 2, status="bad")
    pipeline = market.pipeline(orders, mode="baseline")
    with market.engine(pipeline, runner=runner) as engine:
        assert engine.await_ready(PATIENCE)
        assert await_that(engine, lambda: len(engine.dead_letters()) == 1)
        with pytest.raises(CannotReplay, match="mode baseline"):
            engine.replay_dead_letters("orders")
        assert len(engine.dead_letters()) == 1


@pytest.mark.meets("R19", "R27")
def test_the_log_of_a_table_with_corrections_is_kept_from_where_progress_was_stored(
    market: Market,
) -> None:
    orders, runner = memory(), Runner("bad")

    def pinned() -> list[Position]:
        pins = engine.log_info("shop").pins
        return [each.position for each in pins if each.kind == "correction"]

    engine = market.engine(market.pipeline(orders), runner=runner)
    with engine:
        assert engine.await_ready(PATIENCE)
        market.put("orders", 2, status="bad")
        assert await_that(engine, lambda: len(engine.dead_letters()) == 1)
        at = engine.dead_letters()[0].position
        assert pinned() == []
        engine.edit_dead_letter("orders", at, {"status": "mended"})
        (pin,) = pinned()
        assert pin <= at
        market.put("orders", 3, status="sent")
        assert await_that(engine, lambda: status(orders, 3) == "sent")
    with engine:
        assert engine.await_ready(PATIENCE)
        assert await_that(engine, lambda: status(orders, 3) == "sent")
        assert pinned()[0].commit > at.commit, "the correction itself does not keep the log"


def test_files_of_corrections_are_removed_once_nothing_needs_them(tmp_path: Path) -> None:
    files = Files(RealDisk(), str(tmp_path))
    journal = Journal.open(files, "orders", lambda: 1.0)
    made = [add(journal, key, after=Position(1, key)) for key in range(1, 5)]
    journal.override("orders", {packed(1): Position(1, 10), packed(2): Position(1, 20)})
    rows = [change.rows for change in made[2].changes()]
    assert not journal.tidy(Position(1, 10)), "a table may begin at the commit of the change"
    assert journal.tidy(Position(1, 11))
    assert [each.number for each in journal.all()] == [2, 3, 4]
    again = Journal.open(files, "orders", lambda: 1.0)
    assert [each.number for each in again.all()] == [2, 3, 4]
    assert [each.ended for each in again.all()] == ["changed", None, None]
    assert [change.rows for change in again.all()[1].changes()] == rows
    assert again.tidy(Position(1, 30))
    assert [each.number for each in again.all()] == [3, 4], "nobody overrides these"
    left = sorted(path.name for path in (tmp_path / "corrections/orders").iterdir())
    assert left == [f"{number:012x}.correction" for number in (3, 4, 7)]
    new = add(again, 9, after=Position(1, 40))
    assert new.number == 8, "no number is given twice"


def test_a_correction_comes_once_and_only_while_it_counts(tmp_path: Path) -> None:
    journal = Journal.open(Files(RealDisk(), str(tmp_path)), "orders", lambda: 1.0)
    made = add(journal, 1, after=Position(1, 5))

    def found(after: Position, lineage: str = "test/1") -> Correction | None:
        return journal.next(lineage, ["orders"], after, None, None)

    assert found(Position(1, 5)) is made
    assert found(made.last) is None
    assert found(Position(1, 5), lineage="test/2") is None
    journal.override("orders", {}, emptied=Position(1, 6))
    assert found(Position(1, 5)) is made, "it is a part of the past"
    journal.cover("orders", 2, Position(1, 7))
    assert found(Position(1, 5)) is None


def test_the_corrections_of_a_pipeline_that_was_dropped_are_removed(tmp_path: Path) -> None:
    files = Files(RealDisk(), str(tmp_path))
    journal = Journal.open(files, "orders", lambda: 1.0)
    add(journal, 1, after=Position(1, 5))
    journal.drop()
    assert journal.all() == Journal.open(files, "orders", lambda: 1.0).all() == ()
    assert [path.stem for path in (tmp_path / "corrections/orders").iterdir()] == [f"{2:012x}"]


def test_files_that_a_checkpoint_has_replaced_do_not_count_if_they_are_still_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = Files(RealDisk(), str(tmp_path))
    journal = Journal.open(files, "orders", lambda: 1.0)
    for key in (1, 2):
        add(journal, key, after=Position(1, key))
    journal.override("orders", {packed(1): Position(1, 10)})

    def dies(*_: object) -> None:
        raise StorageError("the disk is gone")

    with monkeypatch.context() as patch, pytest.raises(StorageError):
        patch.setattr(FileRecords, "remove", dies)
        journal.tidy(Position(1, 11))
    again = Journal.open(files, "orders", lambda: 1.0)
    assert [each.number for each in again.all()] == [2]
    assert again.tidy(Position(1, 11))
    left = sorted(path.name for path in (tmp_path / "corrections/orders").iterdir())
    assert left == [f"{number:012x}.correction" for number in (2, 4)]


def test_what_a_correction_did_to_some_of_its_rows_is_moved_alone(tmp_path: Path) -> None:
    journal = Journal.open(Files(RealDisk(), str(tmp_path)), "orders", lambda: 1.0)
    first = Position(1, 5)
    keys = [packed(key) for key in (1, 2, 3)]
    changes = segment([(Op.INSERT, None, 1), (Op.UPDATE, 1, 2), (Op.UPDATE, 2, 3)])
    journal.add("edit", [changes], keys, first, settles=(), lineage="test/1", copy=1, note="")
    journal.override("orders", {packed(3): Position(1, 7)})
    moved = journal.move("orders", (1, Position(1, 8)), "test/1", Position(1, 9))
    assert moved is not None
    (part,) = moved.changes()
    found = part.rows.select(["_op", "before", "after"]).to_pylist()
    assert [each["_op"] for each in found] == [Op.DELETE, Op.DELETE]
    assert [each["before"]["id"] for each in found] == [1, 2]
    assert (moved.first.commit, [each.ended for each in journal.all()]) == (8, ["changed", None])
    journal.override("orders", {packed(1): Position(1, 9)})
    assert journal.move("orders", (1, Position(1, 8)), "test/1", Position(1, 9)) is None
    assert journal.move("orders", (1, Position(1, 20)), "test/1", Position(1, 19)) is None
    assert [each.ended for each in journal.all()] == ["changed", "reload"], "a row may have changed"


def packed(key: int) -> bytes:
    return b"\x01" + key.to_bytes(8, "little", signed=True)


def segment(changes: Sequence[tuple[Op, int | None, int | None]]) -> TableChanges:
    schema = TableSchema("orders", (Column("id", ValueType.parse("int64"), 1),), ("id",))
    rows = [
        {
            "_op": int(op),
            "before": None if before is None else {"id": before},
            "after": None if after is None else {"id": after},
        }
        for op, before, after in changes
    ]
    return TableChanges(schema, pa.Table.from_pylist(rows, schema=schema.segment))


def add(journal: Journal, key: int, after: Position) -> Correction:
    changes = segment([(Op.INSERT, None, key)])
    return journal.add(
        "edit", [changes], [packed(key)], after, settles=(), lineage="test/1", copy=1, note=""
    )
