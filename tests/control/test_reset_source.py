"""A source is reset: what is ours there goes, and every table is copied again."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import pytest

from headrace.capture.messages import Reset
from headrace.capture.source import reader_of
from headrace.capture.sqlite.source import SQLiteSource
from headrace.capture.sqlite.triggers import LOG, META
from headrace.engine.engine import Engine
from headrace.errors import NotRunning, SourceRefused
from headrace.runtime.source_run import RequestedReset
from headrace.targets.memory import memory
from tests.support.shop import PATIENCE, Market, Shop, await_that


def capture_of(shop: Shop) -> str:
    found = shop.app.execute(f"select value from {META} where name = 'capture'").fetchone()
    return str(found[0])


@pytest.mark.meets("R1")
@pytest.mark.parametrize("recorder", ["thread", pytest.param("process", marks=pytest.mark.process)])
def test_a_reset_begins_a_new_epoch_and_brings_every_row_again(shop: Shop, recorder: str) -> None:
    orders = memory()
    with shop.engine(shop.pipeline(orders), recorder=recorder) as engine:  # type: ignore[arg-type]
        assert engine.await_ready(PATIENCE)
        before, capture = engine.source_info("shop").end, capture_of(shop)
        assert engine.reset_source("shop", timeout=PATIENCE)
        assert capture_of(shop) != capture
        assert engine.source_info("shop").end.epoch == before.epoch + 1
        assert engine.pipelines()[0].tables[0].baseline == 2
        shop.insert(range(100, 110))
        assert await_that(engine, lambda: orders.count() == 20)
    assert {row["id"]: dict(row) for row in orders.all()} == shop.truth()


def test_rows_are_shown_meanwhile_but_nothing_is_ready(shop: Shop) -> None:
    orders = memory()
    with shop.engine(shop.pipeline(orders)) as engine:
        assert engine.await_ready(PATIENCE)
        shop.app.execute("begin immediate")  # a reset has to write: it comes no further
        assert not engine.reset_source("shop")
        assert not engine.is_ready()
        assert not engine.is_ready(source="shop")
        assert orders.count() == 10
        assert await_that(engine, lambda: engine.source_info("shop").state != "streaming")
        assert engine.source_info("shop").reason
        shop.app.execute("commit")
        assert engine.await_ready(PATIENCE)
        assert engine.source_info("shop").reason == ""
    assert {row["id"]: dict(row) for row in orders.all()} == shop.truth()


def test_what_is_only_recorded_is_copied_again_too(shop: Shop) -> None:
    source = shop.source()
    with Engine(data=shop.data, records=[(source, ["orders"])], recorder="thread") as engine:
        assert engine.await_ready(PATIENCE)
        assert engine.reset_source("shop", timeout=PATIENCE)
        newest = shop.log().usable_baseline("orders")
        assert newest is not None
        assert newest.baseline == 2


@pytest.mark.meets("R1")
def test_another_reader_of_the_database_goes_on_unharmed(shop: Shop, tmp_path: Path) -> None:
    mine, theirs = memory(), memory()
    other = Engine(
        shop.pipeline(theirs),
        data=tmp_path / "other",
        runner=shop.engine()._state.options.runner,
        recorder="thread",
    )
    with other, shop.engine(shop.pipeline(mine)) as engine:
        assert engine.await_ready(PATIENCE)
        assert other.await_ready(PATIENCE)
        capture = capture_of(shop)
        assert engine.reset_source("shop", timeout=PATIENCE)
        assert capture_of(shop) == capture
        assert engine.pipelines()[0].tables[0].baseline == 2
        shop.insert(range(100, 105))
        assert await_that(engine, lambda: mine.count() == 15)
        assert await_that(other, lambda: theirs.count() == 15)
        assert other.pipelines()[0].tables[0].baseline == 1


def test_a_recorder_that_stopped_for_good_is_started_again(shop: Shop) -> None:
    orders = memory()
    with shop.engine(shop.pipeline(orders)) as engine:
        assert engine.await_ready(PATIENCE)
        shop.app.execute(f"update {META} set value = 99 where name = 'format'")
        shop.app.execute("create table other (id integer primary key)")  # makes it look again
        assert await_that(engine, lambda: engine.source_info("shop").error is not None)
        assert not engine.await_ready(PATIENCE)
        shop.app.execute(f"update {META} set value = 2 where name = 'format'")
        assert engine.reset_source("shop", timeout=PATIENCE)
        info = engine.source_info("shop")
        assert (info.state, info.error, info.restarts) == ("streaming", None, 1)
    assert {row["id"]: dict(row) for row in orders.all()} == shop.truth()


def test_a_reset_that_fails_is_told_and_can_be_asked_for_again(shop: Shop) -> None:
    with shop.engine(shop.pipeline(memory())) as engine:
        assert engine.await_ready(PATIENCE)
        shop.app.execute(f"update {META} set value = 99 where name = 'format'")
        assert not engine.reset_source("shop", timeout=PATIENCE)
        assert isinstance(engine.source_info("shop").error, SourceRefused)
        shop.app.execute(f"update {META} set value = 2 where name = 'format'")
        assert engine.reset_source("shop", timeout=PATIENCE)


@pytest.mark.meets("R31", "P2")
@pytest.mark.process
def test_a_recorder_killed_before_it_has_heard_does_it_in_its_next_life(shop: Shop) -> None:
    orders = memory()
    with shop.engine(shop.pipeline(orders), recorder="process") as engine:
        assert engine.await_ready(PATIENCE)
        capture, pid = capture_of(shop), engine.source_info("shop").recorder_pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        engine.reset_source("shop")
        os.kill(pid, signal.SIGKILL)
        assert not engine.is_ready()
        assert engine.await_ready(PATIENCE)
        assert capture_of(shop) != capture
        assert engine.source_info("shop").recorder_pid != pid
        assert engine.pipelines()[0].tables[0].baseline == 2
    assert {row["id"]: dict(row) for row in orders.all()} == shop.truth()


def test_writes_go_on_while_nothing_is_captured(shop: Shop) -> None:
    with shop.engine(shop.pipeline(memory())) as engine:
        assert engine.await_ready(PATIENCE)
    source = SQLiteSource(shop.source().spec, reader_of("shop", shop.data))
    source.reset(None, drop_publication=False)
    assert not shop.app.execute("select 1 from sqlite_master where name = ?", (LOG,)).fetchall()
    shop.insert(range(200, 210))
    orders = memory()
    with shop.engine(shop.pipeline(orders)) as engine:
        assert engine.await_ready(PATIENCE)
        assert engine.pipelines()[0].tables[0].baseline == 2
    assert {row["id"]: dict(row) for row in orders.all()} == shop.truth()


def test_sources_that_cannot_be_reset_say_so(tmp_path: Path) -> None:
    market = Market(tmp_path)
    engine = market.engine(market.pipeline(memory()))
    with pytest.raises(NotRunning):
        engine.reset_source("shop")
    with engine:
        assert engine.await_ready(PATIENCE)
        with pytest.raises(SourceRefused) as caught:
            engine.reset_source("shop")
        assert caught.value.remedy
        with pytest.raises(NotRunning):
            engine.reset_source("other")
        assert engine.is_ready()


def test_a_reset_is_owed_until_reading_began_anew() -> None:
    reset, asked = RequestedReset(), Reset(True)
    reset.moved("resetting")
    reset.moved("streaming")
    assert reset.give() is None
    reset.ask(asked)
    reset.moved("streaming")  # on its way before the recorder had heard
    assert reset.pending
    reset.moved("resetting")
    assert reset.give() == asked  # a new recorder: it knows nothing of what the last one did
    reset.moved("streaming")
    assert reset.pending
    reset.moved("resetting")
    reset.moved("waiting")
    reset.moved("streaming")
    assert not reset.pending


def test_a_recorder_that_stops_before_it_has_heard_has_not_failed_the_reset() -> None:
    reset = RequestedReset()
    reset.ask(Reset())
    assert reset.stopped()
    assert reset.pending
    reset.moved("resetting")
    assert not reset.stopped()
    assert not reset.pending


@pytest.mark.meets("R31")
def test_an_engine_that_stops_leaves_no_recorder_of_a_reset_behind(shop: Shop) -> None:
    engine = shop.engine(shop.pipeline(memory()))
    engine.start()
    assert engine.await_ready(PATIENCE)
    engine.reset_source("shop")
    engine.stop()
    names = [thread.name for thread in threading.enumerate()]
    assert not [name for name in names if name.startswith("headrace-recorder-")]
