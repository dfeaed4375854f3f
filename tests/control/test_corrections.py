"""Replayed and edited dead letters reach the target in order, and stay when it is rebuilt."""

from __future__ import annotations

import pytest

from headrace.changelog.position import Position
from headrace.errors import CannotReplay, StorageError
from headrace.pipeline.definition import DeadLetters, Pipeline
from headrace.runtime.delivery import Delivery
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


@pytest.mark.meets("R19", "R27")
def test_an_edit_keeps_the_log_from_being_folded_until_the_row_changes(market: Market) -> None:
    orders, runner = memory(), Runner("bad")

    def pinned() -> list[Position]:
        pins = engine.log_info("shop").pins
        return [each.position for each in pins if each.kind == "correction"]

    with market.engine(market.pipeline(orders), runner=runner) as engine:
        assert engine.await_ready(PATIENCE)
        market.put("orders", 2, status="bad")
        assert await_that(engine, lambda: len(engine.dead_letters()) == 1)
        at = engine.dead_letters()[0].position
        assert pinned() == []
        engine.edit_dead_letter("orders", at, {"status": "mended"})
        assert [each.commit for each in pinned()] == [at.commit]
        market.put("orders", 3, status="sent")
        assert await_that(engine, lambda: status(orders, 3) == "sent")
        assert [each.commit for each in pinned()] == [at.commit], "another row changed"
        market.put("orders", 2, status="newer")
        assert await_that(engine, lambda: status(orders, 2) == "newer")
        assert pinned() == []
