"""A target that cannot be opened puts its own pipeline in error, and nothing else."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence

import pytest

from headrace.changelog.position import Position
from headrace.changelog.schema import Column, TableSchema
from headrace.engine.engine import Engine
from headrace.errors import HeadraceError, TableTaken, TargetError
from headrace.pipeline.definition import Pipeline
from headrace.runtime import model
from headrace.tables import Row
from headrace.targets.memory import memory
from headrace.targets.row_target import RowTarget
from headrace.testing.target import ScriptedLoading, ScriptedTarget, TargetDisk
from tests.control.stepping import Stepping
from tests.support.shop import PATIENCE, Market, await_seen, await_that


class Away(ScriptedTarget):
    """A target that cannot be opened while `away` is set."""

    def __init__(self, error: Exception, disk: TargetDisk | None = None) -> None:
        super().__init__(disk)
        self.away = threading.Event()
        self.away.set()
        self.tries = 0
        self._error = error

    def open(self, tables: Mapping[str, TableSchema], at: Mapping[str, Position]) -> None:
        self.tries += 1
        if self.away.is_set():
            raise self._error
        super().open(tables, at)


class AwayRows(RowTarget):
    """Rows in a dictionary, whose `on_init` raises."""

    def on_init(self, table: str, columns: Sequence[Column]) -> None:
        raise KeyError("secret")

    def on_baseline_row(self, row: Row) -> None: ...
    def on_insert(self, row: Row) -> None: ...
    def on_update(self, row: Row, identity: Row) -> None: ...
    def on_delete(self, identity: Row) -> None: ...
    def on_truncate(self) -> None: ...


def error_of(engine: Engine, pipeline: str) -> HeadraceError:
    found = engine.pipeline_info(pipeline).error
    assert found is not None
    return found


@pytest.mark.meets("R8", "P7")
@pytest.mark.parametrize(
    "error", [TargetError("Not there"), ConnectionError("secret")], ids=["ours", "any"]
)
def test_a_target_that_cannot_be_opened_stops_no_other_pipeline_and_is_opened_later(
    market: Market, error: Exception
) -> None:
    target, orders = Away(error), memory()
    lame, sound = market.pipeline(target, name="lame"), market.pipeline(orders, name="sound")
    with market.engine(lame, sound) as engine:
        assert await_that(engine, lambda: engine.is_ready(pipeline="sound"))
        assert orders.count() == 10
        assert not engine.is_ready()
        info = engine.pipeline_info("lame")
        assert isinstance(info.error, TargetError)
        assert "secret" not in str(info.error)
        assert info.error_since is not None
        assert await_seen(lambda: target.tries > 2)
        assert engine.pipeline_info("lame").error_since == info.error_since
        assert engine.dead_letters() == ()
        target.away.clear()
        assert engine.await_ready(PATIENCE)
        assert engine.pipeline_info("lame").error is None
        assert engine.pipeline_info("lame").error_since is None
        assert len(target.rows("orders")) == 10


def test_a_hook_that_raises_at_the_start_is_the_trouble_of_its_pipeline(market: Market) -> None:
    lame, sound = market.pipeline(AwayRows(), name="lame"), market.pipeline(memory(), name="sound")
    with market.engine(lame, sound) as engine:
        assert await_that(engine, lambda: engine.is_ready(pipeline="sound"))
        assert error_of(engine, "lame").facts["hook"] == "on_init"


def test_resume_opens_it_at_once_also_after_an_error_that_is_not_retried(
    market: Market, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model, "FIRST_PAUSE", 20 * PATIENCE)
    monkeypatch.setattr(model, "LONGEST_PAUSE", 20 * PATIENCE)
    taken, away = Away(TableTaken("Somebody else's")), Away(TargetError("Not there"))
    lame, other = market.pipeline(taken, name="taken"), market.pipeline(away, name="away")
    with market.engine(lame, other) as engine:
        assert engine.pipeline_info("taken").state == "failed"
        assert engine.pipeline_info("away").state != "failed"
        for target in (taken, away):
            target.away.clear()
        engine.resume()
        assert await_that(engine, engine.is_ready)
        assert (taken.tries, away.tries) == (2, 2)
        assert len(taken.rows("orders")) == len(away.rows("orders")) == 10


@pytest.mark.meets("R8")
def test_the_source_keeps_what_a_target_that_is_not_open_has_not_got(market: Market) -> None:
    disk = TargetDisk()
    with market.engine(market.pipeline(ScriptedTarget(disk), name="kept")) as engine:
        assert engine.await_ready(PATIENCE)
        market.put("orders", 11)
        assert await_that(engine, lambda: (11,) in disk.tables["orders"].rows)
        assert market.source.wait_until_acknowledged(PATIENCE)
    stored = market.source.position
    reported = len(market.source.acknowledged)
    target, orders = Away(TargetError("Not there"), disk), memory()
    kept, shown = market.pipeline(target, name="kept"), market.pipeline(orders, name="shown")
    with market.engine(kept, shown) as engine:
        assert await_that(engine, lambda: engine.is_ready(pipeline="shown"))
        market.put("orders", 12)
        assert await_seen(lambda: orders.count() == 12)
        assert await_seen(lambda: target.tries > 2)
        assert not engine.is_ready(pipeline="kept")
        later = market.source.acknowledged[reported:]
        assert all(type(stored).parse(text) <= stored for text in later)
        target.away.clear()
        assert engine.await_ready(PATIENCE)
        assert await_seen(lambda: (12,) in disk.tables["orders"].rows)
        assert market.source.wait_until_acknowledged(PATIENCE)
    assert disk.duplicates() == []


def test_a_reload_that_was_asked_for_meanwhile_is_done_once_it_is_open(market: Market) -> None:
    target = Away(TargetError("Not there"))
    with market.engine(market.pipeline(target, name="lame")) as engine:
        assert not engine.reload("shop", "orders")
        target.away.clear()
        assert engine.reload("shop", "orders", timeout=PATIENCE)
        assert engine.await_ready(PATIENCE)


def test_a_paused_pipeline_opens_its_target_and_no_more(market: Market) -> None:
    target = ScriptedTarget()
    with market.engine(market.pipeline(target, name="lame")) as engine:
        assert engine.await_ready(PATIENCE)
        engine.pause()
    again = Away(TargetError("Not there"), target.disk)
    with market.engine(market.pipeline(again, name="lame")) as engine:
        assert engine.pipeline_info("lame").state == "paused"
        again.away.clear()
        assert await_seen(lambda: again.calls["open"] == 1)
        market.put("orders", 11)
        assert market.recorded(engine)
        assert again.calls["write"] == 0
        engine.resume()
        assert await_seen(lambda: len(again.rows("orders")) == 11)


class Forgetful(ScriptedTarget):
    """A target that cannot say at first whether its tables are as it left them."""

    def __init__(self, disk: TargetDisk) -> None:
        super().__init__(disk)
        self.fails = 2

    def lost(self, table: str) -> str | None:
        self.fails -= 1
        if self.fails >= 0:
            raise TargetError("Not now")
        return None


def test_a_target_that_fails_after_it_was_opened_is_closed_before_it_is_opened_again(
    market: Market,
) -> None:
    disk = TargetDisk()
    with market.engine(market.pipeline(ScriptedTarget(disk), name="kept")) as engine:
        assert engine.await_ready(PATIENCE)
    target = Forgetful(disk)
    with market.engine(market.pipeline(target, name="kept")) as engine:
        assert engine.await_ready(PATIENCE)
        assert (target.calls["open"], target.calls["close"]) == (3, 2)
    assert target.calls["close"] == 3


class Altered(ScriptedTarget):
    """A target whose table somebody else has written to, as it finds at its next start."""

    def lost(self, table: str) -> str | None:
        return "another writer" if self.calls["load"] == 0 else None


def test_a_table_that_is_not_as_it_was_left_is_loaded_again_with_a_notice_and_a_reason(
    market: Market,
) -> None:
    disk = TargetDisk()
    with market.engine(market.pipeline(ScriptedTarget(disk), name="kept")) as engine:
        assert engine.await_ready(PATIENCE)
        assert engine.source_info("shop").notices == ()
    target, reasons = Altered(disk), list[str]()
    load = target.load

    def noted(table: str, baseline: int) -> ScriptedLoading:
        reasons.append(engine.pipeline_info("kept").tables[0].reason)
        return load(table, baseline)

    target.load = noted  # type: ignore[method-assign]
    engine = market.engine(market.pipeline(target, name="kept"))
    with engine:
        assert engine.await_ready(PATIENCE)
        [notice] = engine.source_info("shop").notices
        assert notice.problem.code == "targets.loaded_again"
        assert notice.problem.message.endswith("it is not as it was left: another writer")
    assert reasons == ["not as it was left at the target: another writer"]


def test_a_load_that_a_restart_interrupted_has_a_reason(world: Stepping) -> None:
    target = ScriptedTarget()
    pipeline = Pipeline(world.source, "orders", target)
    world.put(1)
    run = world.run(pipeline)
    world.settle(run)
    run.ask_reload("orders", 1)
    run.step()
    assert run.members[0].load_reason == "a new copy was requested"
    run.close()
    again = world.run(pipeline)
    assert again.members[0].load_reason == "its load was not finished before the restart"
