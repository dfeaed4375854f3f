"""An engine starts, stops, starts again, and goes on where it stood."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest

from headrace.capture.sqlite.triggers import LOG
from headrace.changelog.position import ORIGIN, Position
from headrace.engine.engine import Engine
from headrace.errors import NotRunning, TargetError
from headrace.pipeline.definition import Pipeline
from headrace.runtime.spark import SparkOptions, with_needs
from headrace.storage.disk import RealDisk
from headrace.storage.files import Files
from headrace.targets.memory import memory
from headrace.targets.target import TargetContext
from headrace.testing.source import MemorySource
from headrace.testing.target import ScriptedTarget
from tests.support.arrow_runner import ArrowRunner
from tests.support.file_target import FileTarget
from tests.support.shop import PATIENCE, Shop, await_seen, await_that, file_rows_at
from tests.support.watched_target import WatchedTarget


def changes_in(shop: Shop) -> list[Position]:
    """Return the position of every change of the orders in the log."""
    log = shop.log()
    found = []
    after = ORIGIN
    while (batch := log.next_batch("orders", after, 10_000)) is not None:
        for file in batch.files:
            for row in log.rows(file).select(["_commit", "_ordinal"]).to_pylist():
                found.append(Position(batch.epoch, row["_commit"], row["_ordinal"]))
        after = batch.last
    return found


class ContextTarget(FileTarget):
    """A target of another package that needs the engine's Spark and data directory."""

    context: TargetContext | None = None

    def spark_needs(self) -> Mapping[str, str]:
        return {"spark.sql.extensions": "org.example.Ours"}

    def use(self, context: TargetContext) -> None:
        self.context = context


def test_a_target_is_given_its_context_by_what_it_can_do_alone(shop: Shop, tmp_path: Path) -> None:
    target = ContextTarget(tmp_path / "rows.db")
    pipeline = shop.pipeline(target, name="kept")
    files = Files(RealDisk(), str(shop.data))
    options = with_needs(SparkOptions({}, ui=False, events=False), [pipeline], files)
    assert options.conf["spark.sql.extensions"] == "org.example.Ours"
    with Engine(pipeline, data=shop.data, runner=ArrowRunner(), recorder="thread") as engine:
        assert engine.await_ready(PATIENCE)
        context = target.context
        assert context is not None
        assert context.pipeline == "kept"
        assert context.files.path("") == files.path("")
        assert context.lineage() == shop.log().lineage
        context.check()
        with pytest.raises(NotRunning, match="without Spark"):
            context.spark()


@pytest.mark.process
def test_an_engine_starts_gets_ready_and_leaves_nothing_behind(shop: Shop) -> None:
    orders = memory()
    steps: list[str] = []
    engine = Engine(
        shop.pipeline(orders), data=shop.data, runner=ArrowRunner(), on_step=steps.append
    )
    assert not engine.is_ready()
    with engine:
        assert engine.await_ready(PATIENCE)
        assert {row["id"]: dict(row) for row in orders.all()} == shop.truth()
        (source,) = engine.sources()
        assert source.state == "streaming"
        recorder = source.recorder_pid
        assert recorder is not None
        assert engine.is_ready(source="shop", table="orders", pipeline="orders")
        assert not engine.is_ready(pipeline="other")
        assert engine.target("orders") is orders
        assert engine.targets("shop", "orders") == (orders,)
        assert engine.schema("orders").key == ("id",)
        assert engine.spark_info() is None
    assert steps == ["recording shop", "pipelines compiled"]
    assert not engine.is_ready()
    assert engine.pipelines()[0].state == "stopped"
    assert engine.sources()[0].state == "closed"
    assert not Path(f"/proc/{recorder}").exists()


def test_an_engine_stops_twice_and_before_it_started(shop: Shop) -> None:
    engine = shop.engine(shop.pipeline(memory()))
    engine.stop()
    engine.start()
    engine.start()
    assert engine.await_ready(PATIENCE)
    engine.stop()
    engine.stop()
    assert not engine.is_ready()


def test_what_is_not_there_is_told_by_name(shop: Shop) -> None:
    engine = shop.engine(shop.pipeline(memory()))
    with pytest.raises(NotRunning):
        engine.pipeline_info("orders")
    with pytest.raises(NotRunning):
        engine.source_info("shop")
    with pytest.raises(NotRunning):
        engine.target("other")


def test_waiting_for_an_engine_ends_with_it(shop: Shop) -> None:
    target = ScriptedTarget()
    engine = shop.engine(shop.pipeline(target))
    assert not engine.await_ready(0.0)
    answers: list[bool] = []
    waiting = threading.Thread(target=lambda: answers.append(engine.await_ready(PATIENCE)))
    with engine:
        assert engine.await_ready(PATIENCE)
        target.reject(TargetError("Not today"), times=1_000)
        shop.insert(range(20, 25))
        assert await_that(engine, lambda: not engine.is_ready())
        waiting.start()
    waiting.join(PATIENCE)
    assert answers == [False]


@pytest.mark.meets("R12")
def test_the_same_engine_runs_twice_and_copies_the_table_once(shop: Shop) -> None:
    target = WatchedTarget(FileTarget(shop.data.parent / "target.db"))
    engine = shop.engine(shop.pipeline(target))
    calls: list[str] = []
    for keys in (range(20, 30), range(30, 40)):
        engine.on_ready(lambda: calls.append("ready"))
        with engine:
            assert engine.await_ready(PATIENCE)
            engine.on_ready(lambda: calls.append("at once"))
            shop.insert(keys)
            assert target.wait(shop.captured(), PATIENCE)
        # Written while nobody looks.
        shop.app.execute("update orders set status = 'sent' where id = ?", (keys[0],))
        shop.app.execute("delete from orders where id = ?", (keys[1],))
    with engine:
        assert engine.await_ready(PATIENCE)
        assert target.wait(shop.captured(), PATIENCE)
    rows, effects = file_rows_at(shop.data.parent / "target.db")
    assert rows == shop.truth()
    assert len({(effect.key, effect.position) for effect in effects}) == len(effects) == 24
    assert Counter(calls) == {"ready": 2, "at once": 2}
    baseline = shop.log().usable_baseline("orders")
    assert baseline is not None
    assert baseline.baseline == 1


@pytest.mark.meets("R8")
def test_two_pipelines_of_one_source_hold_back_its_acknowledgement(shop: Shop) -> None:
    source = shop.source()
    first, held = WatchedTarget(FileTarget(shop.data.parent / "target.db")), ScriptedTarget()
    engine = shop.engine(
        shop.pipeline_from(source, first, "first"), shop.pipeline_from(source, held, "held")
    )
    with engine:
        assert engine.await_ready(PATIENCE)
        before = engine.sources()[0].acknowledged
        held.hold()
        shop.insert(range(100, 110))
        assert first.wait(shop.captured(), PATIENCE)
        assert held.holding.wait(PATIENCE)
        assert engine.sources()[0].acknowledged == before
        held.release()
        end = shop.captured()
        assert await_that(engine, lambda: _acknowledged(engine) >= end)
    assert {key: row for (key,), row in held.rows("orders").items()} == shop.truth()
    assert file_rows_at(shop.data.parent / "target.db")[0] == shop.truth()


def _acknowledged(engine: Engine) -> int:
    position = engine.sources()[0].acknowledged
    return -1 if position is None else position.commit


@pytest.mark.meets("R8", "R42")
def test_what_is_acknowledged_is_forgotten_by_the_database(shop: Shop) -> None:
    with shop.engine(shop.pipeline(ScriptedTarget())) as engine:
        assert engine.await_ready(PATIENCE)
        shop.insert(range(100, 400))
        end = shop.captured()
        assert await_seen(lambda: shop.cursor() >= end)
        kept = shop.app.execute(f"select count(*) from {LOG}").fetchone()[0]
    assert kept < 300


@pytest.mark.meets("R9")
@pytest.mark.process
def test_a_thousand_updates_of_one_row_are_a_thousand_changes(shop: Shop) -> None:
    target = WatchedTarget(FileTarget(shop.data.parent / "target.db"))
    with shop.engine(shop.pipeline(target), recorder="process") as engine:
        assert engine.await_ready(PATIENCE)
        before = shop.captured()
        shop.app.execute("begin")
        for number in range(1_000):
            shop.app.execute("update orders set customer_id = ? where id = 1", (number,))
        shop.app.execute("commit")
        assert target.wait(shop.captured(), PATIENCE)
        assert engine.sources()[0].captured == 1_000
    positions = changes_in(shop)
    assert [position.commit for position in positions] == list(range(before + 1, before + 1_001))
    rows, effects = file_rows_at(shop.data.parent / "target.db")
    assert rows == shop.truth()
    assert len(effects) == 1_000


def test_what_was_read_is_in_the_log_when_the_engine_has_stopped(tmp_path: Path) -> None:
    source = MemorySource()
    source.set_schema("orders", {"id": "int64", "status": "text"}, key=["id"])
    target = ScriptedTarget()
    shop = Shop(tmp_path)
    engine = Engine(
        Pipeline(source, "orders", target),
        data=shop.data,
        runner=ArrowRunner(),
        recorder="thread",
    )
    with engine:
        assert engine.await_ready(PATIENCE)
        target.hold()
        source.emit_insert("orders", {"id": 1, "status": "new"})
        assert target.holding.wait(PATIENCE)
        # The engine is busy, so the recorder lets this one gather for a second.
        source.emit_insert("orders", {"id": 2, "status": "new"}, wait=True)
        releasing = threading.Timer(0.1, target.release)
        releasing.start()
    releasing.join()
    assert shop.log("test").end.commit == source.position.commit == 2
    shop.close()
