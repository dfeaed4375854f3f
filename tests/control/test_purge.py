"""Dead letters are purged while an engine runs, and its status does not hide what that means."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from headrace.api.messages import pipeline_fields
from headrace.deadletters import store
from headrace.deadletters.ledger import Purged
from headrace.deadletters.store import read_letters
from headrace.engine.engine import Engine
from headrace.errors import BadTransform, DeadLettersElsewhere, NotRunning, UnsafeStorage
from headrace.pipeline.definition import DeadLetters, Pipeline
from headrace.storage.disk import RealDisk
from headrace.storage.files import Files
from headrace.storage.objects import Objects
from headrace.storage.simulation import SimulatedBucket
from headrace.targets.memory import IndexedMemory, memory
from headrace.testing.target import ScriptedTarget
from tests.control.stepping import Stepping
from tests.support.arrow_runner import ArrowRunner, Row
from tests.support.shop import PATIENCE, Market, await_that


def fails(pipeline: Pipeline, row: Row) -> str | None:
    return "DIVIDE_BY_ZERO" if row["status"] == "bad" else None


def status(orders: IndexedMemory, key: int) -> object:
    row = orders.get(key)
    return None if row is None else row["status"]


def codes(engine: Engine) -> list[str]:
    return [each.code for each in engine.pipeline_info("orders").notices]


@pytest.mark.meets("R30", "TYP-32", "ACC-16")
def test_a_purge_releases_the_row_and_the_status_says_that_it_may_differ_until_a_reload(
    market: Market,
) -> None:
    orders = memory()
    with market.engine(market.pipeline(orders), runner=ArrowRunner(fails=fails)) as engine:
        assert engine.await_ready(PATIENCE)
        market.put("orders", 2, status="bad")
        market.put("orders", 2, status="good")
        market.put("orders", 3, status="bad")
        assert await_that(engine, lambda: len(engine.dead_letters()) == 3)
        assert codes(engine) == []
        position = engine.dead_letters()[0].position
        found = engine.purge_dead_letters("orders", position=position, note="Ada: known")
        assert found == (Purged("orders", 2, 1),)
        assert {each.note for each in engine.dead_letters(superseded=True)} == {"Ada: known", ""}
        # Both changes are given up: the row is as it was before them, and this must be seen.
        assert status(orders, 2) == "paid"
        info = engine.pipeline_info("orders")
        assert (info.dead_letters, info.held_keys, info.rows_given_up) == (1, 1, {"orders": 1})
        (notice,) = info.notices
        assert (notice.code, notice.facts["rows"]) == ("pipeline.rows_given_up", 1)
        assert "headrace reload orders --table orders" in notice.remedy
        shown = pipeline_fields(info, None, ready=True, rate=None)
        assert shown["rows_given_up"] == {"orders": 1}
        assert [each["code"] for each in shown["notices"]] == ["pipeline.rows_given_up"]
        # The next change of the row reaches the target, and others wait still.
        market.put("orders", 2, status="sent")
        market.put("orders", 3, status="sent")
        assert await_that(engine, lambda: status(orders, 2) == "sent")
        assert await_that(engine, lambda: len(engine.dead_letters()) == 2)
        assert status(orders, 3) == "paid"
        assert engine.reload("shop", "orders", timeout=PATIENCE)
        assert await_that(engine, lambda: status(orders, 3) == "sent")
        info = engine.pipeline_info("orders")
        assert (info.dead_letters, info.rows_given_up, info.notices) == (0, {}, ())


def test_conditions_of_a_purge_all_hold(market: Market) -> None:
    with market.engine(market.pipeline(memory()), runner=ArrowRunner(fails=fails)) as engine:
        assert engine.await_ready(PATIENCE)
        market.put("orders", 2, status="bad")
        assert await_that(engine, lambda: len(engine.dead_letters()) == 1)
        ago = datetime.now(UTC) - timedelta(hours=1)
        for condition in ({"table": "others"}, {"code": "OTHER"}, {"before": ago}):
            assert engine.purge_dead_letters("orders", **condition) == ()
        assert engine.purge_dead_letters("orders", table="orders", code="DIVIDE_BY_ZERO")
        with pytest.raises(NotRunning):
            engine.purge_dead_letters("nobody")


@pytest.mark.meets("R30")
def test_a_purged_change_that_a_rebuilt_target_meets_again_waits_again(market: Market) -> None:
    # It is not in the new rows either, so it must not count as given up and done.
    engine = market.engine(market.pipeline(memory()), runner=ArrowRunner(fails=fails))
    with engine:
        assert engine.await_ready(PATIENCE)
        market.put("orders", 2, status="bad")
        assert await_that(engine, lambda: len(engine.dead_letters()) == 1)
        engine.purge_dead_letters("orders")
        assert codes(engine) == ["pipeline.rows_given_up"]
    with engine:
        assert engine.await_ready(PATIENCE)
        assert len(engine.dead_letters()) == 1
        assert codes(engine) == []


@pytest.mark.meets("R30")
def test_what_was_purged_stays_so_at_a_durable_target_and_is_still_shown(market: Market) -> None:
    target = ScriptedTarget()
    engine = market.engine(market.pipeline(target), runner=ArrowRunner(fails=fails))
    with engine:
        assert engine.await_ready(PATIENCE)
        market.put("orders", 2, status="bad")
        assert market.source.wait_until_acknowledged(PATIENCE)
        assert await_that(engine, lambda: len(engine.dead_letters()) == 1)
        engine.purge_dead_letters("orders")
    with engine:
        assert engine.await_ready(PATIENCE)
        market.put("orders", 2, status="good")
        assert await_that(engine, lambda: target.rows("orders")[(2,)]["status"] == "good")
        assert engine.dead_letters() == ()
        assert codes(engine) == ["pipeline.rows_given_up"]


def test_many_held_keys_are_a_notice_before_the_pipeline_stops(market: Market) -> None:
    policy = DeadLetters(max_keys=5, warn_keys=2)
    pipeline = market.pipeline(memory(), on_error=policy)
    with market.engine(pipeline, runner=ArrowRunner(fails=fails)) as engine:
        assert engine.await_ready(PATIENCE)
        market.put("orders", 2, status="bad")
        assert await_that(engine, lambda: len(engine.dead_letters()) == 1)
        assert codes(engine) == []
        market.put("orders", 3, status="bad")
        assert await_that(engine, lambda: len(engine.dead_letters()) == 2)
        (notice,) = engine.pipeline_info("orders").notices
        assert (notice.code, notice.facts["keys"]) == ("pipeline.keys_held", 2)
        assert notice.facts["limit"] == 5
        assert engine.is_ready()
    assert DeadLetters().warns_from == 800
    assert DeadLetters(max_keys=1).warns_from == 1


# --- where the store is ---------------------------------------------------------------------------


@pytest.mark.meets("ENG-49")
def test_dead_letters_in_memory_leave_nothing_on_disk_and_outlive_the_batches(
    market: Market,
) -> None:
    pipeline = market.pipeline(memory(), on_error=DeadLetters(store="memory"))
    engine = market.engine(pipeline, runner=ArrowRunner(fails=fails))
    for _ in range(2):
        with engine:
            assert engine.await_ready(PATIENCE)
            market.put("orders", 2, status="bad")
            market.put("orders", 2, status="good")
            assert await_that(engine, lambda: len(engine.dead_letters()) >= 2)
            # The target is loaded again at a start, and finds again what fails.
            assert engine.dead_letters()[0].kind == "failed"
        names = [path.name for path in (market.data / "dead-letters").rglob("*") if path.is_file()]
        assert names == ["store"]


@pytest.mark.meets("R30", "ENG-49")
def test_dead_letters_in_memory_are_refused_for_a_durable_target(market: Market) -> None:
    with pytest.raises(BadTransform, match="lost at a restart"):
        market.pipeline(ScriptedTarget(), on_error=DeadLetters(store="memory"))


@pytest.mark.meets("ENG-49")
def test_dead_letters_in_a_bucket_of_their_own_are_found_by_the_next_engine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bucket = SimulatedBucket()
    monkeypatch.setattr(store, "opened", lambda place: Objects(bucket, "shop", "a"))
    world = Stepping()
    target = ScriptedTarget()
    policy = DeadLetters(store="s3://shop/a")
    pipeline = Pipeline(world.source, "orders", target, on_error=policy)
    runner = ArrowRunner(world.disk, fails=fails)
    run = world.run(pipeline, runner)
    world.settle(run)
    world.put(1, "bad")
    world.settle(run)
    assert list(bucket.objects) == ["a/dead-letters/orders/000000000001.letters"]
    run = world.run(pipeline, runner)
    world.put(1, "good")
    world.settle(run)
    assert len(run.delivery.dead_letters.all()) == 2
    assert (1,) not in target.rows("orders")
    # Found without the configuration, too.
    assert read_letters(Files(world.disk, "/data")) == run.delivery.dead_letters.all()
    # Another store would not know what it holds.
    other = Pipeline(world.source, "orders", target)
    with pytest.raises(DeadLettersElsewhere):
        world.run(other, runner)


@pytest.mark.meets("ENG-49")
def test_a_bucket_that_is_not_safe_for_two_writers_is_refused_before_it_is_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Careless(SimulatedBucket):
        """Ignores conditions, as some storages do."""

        def store(self, key: str, data: object, *, new: bool) -> None:
            super().store(key, data, new=False)

    bucket = Careless()
    monkeypatch.setattr(store, "opened", lambda place: Objects(bucket, "shop", ""))
    world = Stepping()
    policy = DeadLetters(store="s3://shop")
    pipeline = Pipeline(world.source, "orders", ScriptedTarget(), on_error=policy)
    with pytest.raises(UnsafeStorage):
        world.run(pipeline)
    assert world.disk.list("/data/dead-letters") == []


def test_no_dead_letter_is_written_where_the_log_is_if_they_have_a_place(market: Market) -> None:
    files = Files(RealDisk(), str(market.data))
    pipeline = market.pipeline(memory(), on_error=DeadLetters(store="memory"))
    with market.engine(pipeline, runner=ArrowRunner(fails=fails)) as engine:
        assert engine.await_ready(PATIENCE)
        market.put("orders", 2, status="bad")
        assert await_that(engine, lambda: len(engine.dead_letters()) == 1)
        assert read_letters(files) == ()
