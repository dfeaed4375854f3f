"""A reload takes a table's rows anew, beside the old ones, and nobody sees it happen."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import pytest

from headrace.changelog.position import Position
from headrace.engine.engine import Engine
from headrace.errors import BadTransform, CorruptSegment, NotRunning, TargetError, UnknownTable
from headrace.pipeline.definition import Pipeline
from headrace.tables import Row
from headrace.targets.memory import memory
from headrace.testing.target import ScriptedLoading, ScriptedTarget
from tests.control.stepping import Stepping
from tests.support.arrow_runner import ArrowRunner
from tests.support.file_target import FileTarget
from tests.support.shop import PATIENCE, Market, await_seen, await_that, file_rows_at
from tests.support.tiers import NIGHTLY


def baseline_of(engine: Engine, table: str = "orders", pipeline: str = "orders") -> int:
    """Return the number of the baseline that a table's rows began with."""
    tables = engine.pipeline_info(pipeline).tables
    return next(info.baseline for info in tables if info.table == table)


@pytest.mark.meets("R12")
def test_readers_see_the_old_rows_kept_up_to_date_until_the_switch() -> None:
    world = Stepping()
    world.put(1)
    orders = memory()
    run = world.run(Pipeline(world.source, "orders", orders))
    world.settle(run)
    # A row that no change told of: only a new baseline can find it.
    world.source.add_row("orders", {"id": 99, "status": "new"})
    run.ask_reload("orders", 1)
    seen = []
    for number in range(2, 12):
        world.put(number)
        if number == 5:
            world.take_baseline()
        run.step()
        assert run.ready
        seen.append((orders.count(), orders.get(99) is not None))
        if not run.reloading("orders"):
            break
    counts = [count for count, _ in seen]
    assert counts == sorted(counts)
    assert [new for _, new in seen] == [False] * (len(seen) - 1) + [True]
    # All but the one step that brought the baseline in took a change to the old rows.
    assert counts[:3] == [2, 3, 4]
    world.settle(run)
    assert {row["id"] for row in orders.all()} == {key for (key,) in world.source.rows("orders")}
    assert run.members[0].baseline == 2


class HalfLoading(ScriptedLoading):
    """Raises as it is to be shown, as often as it is told, and tells whether it was let go of."""

    kept: ClassVar[list[HalfLoading]] = []
    failures: ClassVar[int] = 0

    def __init__(self, target: ScriptedTarget, table: str) -> None:
        super().__init__(target, table)
        self.kept.append(self)

    def switch(self, at: Position) -> None:
        if HalfLoading.failures:
            HalfLoading.failures -= 1
            raise TargetError("Nobody answers")
        super().switch(at)
        self.kept.remove(self)

    def discard(self) -> None:
        super().discard()
        self.kept.remove(self)
        raise TargetError("Nor does he here")  # which hides nothing and keeps nobody from it


def test_rows_of_a_load_that_could_not_be_shown_are_let_go_of(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(HalfLoading, "failures", 3)
    world = Stepping(("orders", "returns"))
    target = ScriptedTarget()
    monkeypatch.setattr(target, "load", lambda table, baseline: HalfLoading(target, table))
    run = world.run(
        Pipeline(world.source, target=target, tables=["orders", "returns"], name="both")
    )
    for _ in range(40):
        run.step()
    world.settle(run)
    assert run.ready
    assert HalfLoading.failures == 0
    assert HalfLoading.kept == []


def test_a_reload_without_a_time_is_only_asked_for(market: Market) -> None:
    orders = memory()
    with market.engine(market.pipeline(orders)) as engine:
        assert engine.await_ready(PATIENCE)
        market.source.add_row("orders", {"id": 99, "status": "paid", "version": 0})
        engine.pause()
        assert engine.reload("shop", "orders") is False
        engine.resume()
        assert await_that(engine, lambda: baseline_of(engine) == 2)
        assert orders.get(99) is not None
        assert engine.pipeline_info("orders").state == "live"
        assert {row["id"]: dict(row) for row in orders.all()} == market.truth()


@pytest.mark.meets("R12")
@pytest.mark.slow
def test_reloads_under_load_show_no_reader_an_empty_or_mixed_table(market: Market) -> None:
    reloads, enough = (50, 50) if NIGHTLY else (10, 10)
    orders = memory()
    source = market.source
    stop = threading.Event()
    wrong: list[object] = []
    looked = [0] * 4

    def write() -> None:
        version = 0
        while not stop.is_set():
            version += 1
            with source.transaction():
                for key in range(1, 11):
                    market.put("orders", key, version=version)
            source.wait_until_read()

    def read(number: int) -> None:
        newest = -1
        # A breath between two looks: four threads that never wait leave the others no turn.
        while not stop.wait(0.002):
            versions = [int(str(row["version"])) for row in orders.all()]
            if len(versions) != 10 or len(set(versions)) != 1 or versions[0] < newest:
                wrong.append((newest, versions))
                return
            if orders.count() != 10:
                wrong.append("count")
                return
            newest = versions[0]
            looked[number] += 1

    with market.engine(market.pipeline(orders)) as engine:
        assert engine.await_ready(PATIENCE)
        threads = [threading.Thread(target=read, args=(number,)) for number in range(4)]
        threads.append(threading.Thread(target=write))
        for thread in threads:
            thread.start()
        try:
            done = 0
            while not wrong and (done < reloads or min(looked) <= enough):
                assert engine.reload("shop", "orders", timeout=PATIENCE)
                done += 1
        finally:
            stop.set()
            for thread in threads:
                thread.join(PATIENCE)
        assert wrong == []
        assert min(looked) > enough
        assert baseline_of(engine) > reloads
        assert await_that(
            engine, lambda: {row["id"]: dict(row) for row in orders.all()} == market.truth()
        )


def test_who_listens_hears_the_difference_that_a_reload_makes(market: Market) -> None:
    orders = memory()
    heard: list[tuple[Row | None, Row | None]] = []
    with market.engine(market.pipeline(orders)) as engine:
        assert engine.await_ready(PATIENCE)
        orders.listen(lambda old, new: heard.append((old, new)))
        market.source.add_row("orders", {"id": 99, "status": "paid", "version": 0})
        market.source.add_row("orders", {"id": 1, "status": "sent", "version": 0})
        assert engine.reload("shop", "orders", timeout=PATIENCE)
        assert await_seen(lambda: len(heard) == 2)
    told = {new["id"]: (old["status"] if old else None, new["status"]) for old, new in heard if new}
    assert told == {1: ("paid", "sent"), 99: (None, "paid")}


def test_drift_in_a_durable_target_is_gone_after_a_reload(market: Market, tmp_path: Path) -> None:
    path = tmp_path / "target.db"
    with market.engine(market.pipeline(FileTarget(path))) as engine:
        assert engine.await_ready(PATIENCE)
        with sqlite3.connect(path) as drift:
            drift.execute("delete from rows where key = '[3]'")
            drift.execute("""update rows set body = '{"id": 4}' where key = '[4]'""")
            drift.execute("""insert into rows values ('orders', '[77]', '{"id": 77}')""")
        drift.close()
        assert file_rows_at(path)[0] != market.truth()
        market.put("orders", 11)
        assert engine.reload("shop", "orders", timeout=PATIENCE)
        market.put("orders", 12)
        assert await_seen(lambda: len(file_rows_at(path)[0]) == 12)
        # A row is there before anybody is told how far its pipeline has come.
        assert await_that(
            engine,
            lambda: engine.pipeline_info("orders").position == engine.source_info("shop").end,
        )
    rows, effects = file_rows_at(path)
    assert rows == market.truth()
    assert len(set(effects)) == len(effects)


def test_a_reload_asked_for_during_a_pause_comes_with_the_resume(market: Market) -> None:
    orders = memory()
    with market.engine(market.pipeline(orders)) as engine:
        assert engine.await_ready(PATIENCE)
        engine.pause()
        market.source.add_row("orders", {"id": 99, "status": "paid", "version": 0})
        assert engine.reload("shop", "orders", timeout=0.2) is False
        assert baseline_of(engine) == 1
        assert orders.count() == 10
        engine.resume()
        assert await_that(engine, lambda: baseline_of(engine) == 2 and orders.count() == 11)
        assert engine.await_ready(PATIENCE)


def test_reloads_asked_for_at_once_are_all_answered(market: Market) -> None:
    orders = memory()
    market.source.set_delay("baseline", 0.05)
    with market.engine(market.pipeline(orders)) as engine:
        assert engine.await_ready(PATIENCE)
        market.source.add_row("orders", {"id": 99, "status": "paid", "version": 0})
        answers: list[bool] = []
        threads = [
            threading.Thread(
                target=lambda: answers.append(engine.reload("shop", "orders", timeout=PATIENCE))
            )
            for _ in range(3)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)
        assert answers == [True] * 3
        assert orders.get(99) is not None
        assert 2 <= baseline_of(engine) <= 4


@pytest.mark.parametrize("kind", [memory, ScriptedTarget])
@pytest.mark.meets("R12")
def test_a_reload_that_a_stop_overtakes_is_done_after_the_next_start(
    market: Market, kind: Callable[[], ScriptedTarget]
) -> None:
    target = kind()
    engine = market.engine(market.pipeline(target))
    with engine:
        assert engine.await_ready(PATIENCE)
        market.source.set_delay("baseline", 0.5)
        market.source.add_row("orders", {"id": 99, "status": "paid", "version": 0})
        engine.reload("shop", "orders")
    market.source.set_delay("baseline", 0)
    with engine:
        assert await_that(engine, lambda: baseline_of(engine) > 1)
        assert engine.await_ready(PATIENCE)
        assert target.row_count("orders") == 11


def test_a_reload_of_one_table_leaves_the_others_alone(tmp_path: Path) -> None:
    market = Market(tmp_path, ["orders", "items"])
    target = ScriptedTarget()
    engine = market.engine(market.pipeline(target, "orders", "items", name="both"))
    with engine:
        assert engine.await_ready(PATIENCE)
        market.source.add_row("items", {"id": 99, "status": "paid", "version": 0})
        before = baseline_of(engine, "items", "both")
        untouched = baseline_of(engine, "orders", "both")
        assert engine.reload("shop", "items", timeout=PATIENCE)
        assert baseline_of(engine, "items", "both") > before
        assert baseline_of(engine, "orders", "both") == untouched
        assert target.calls["load"] == 3
        with market.source.transaction():
            market.put("orders", 11)
            market.put("items", 11)
        assert await_seen(lambda: (11,) in target.rows("items"))
        assert len({info.position for info in engine.pipeline_info("both").tables}) == 1
    assert len(target.rows("items")) == 12
    assert len(target.rows("orders")) == 11
    assert target.disk.duplicates() == []


def test_every_pipeline_that_has_the_table_reloads_it_from_one_copy(market: Market) -> None:
    first, second = memory(), ScriptedTarget()
    engine = market.engine(
        market.pipeline(first, name="first"), market.pipeline(second, name="second")
    )
    with engine:
        assert engine.await_ready(PATIENCE)
        market.source.add_row("orders", {"id": 99, "status": "paid", "version": 0})
        assert engine.reload("shop", "orders", timeout=PATIENCE)
        assert first.count() == len(second.rows("orders")) == 11
        assert baseline_of(engine, pipeline="first") == 2
        assert baseline_of(engine, pipeline="second") == 2


def test_what_cannot_be_reloaded_is_told(market: Market) -> None:
    engine = market.engine(market.pipeline(memory(), mode="changes"))
    with pytest.raises(NotRunning):
        engine.reload("shop", "orders")
    with engine:
        with pytest.raises(UnknownTable):
            engine.reload("shop", "nothing")
        with pytest.raises(NotRunning):
            engine.reload("nowhere", "orders")
        with pytest.raises(BadTransform):
            engine.reload("shop", "orders")


def test_a_reload_passes_over_pipelines_that_take_no_baseline(market: Market) -> None:
    orders, changes = memory(), memory()
    engine = market.engine(
        market.pipeline(orders), market.pipeline(changes, name="changes", mode="changes")
    )
    with engine:
        assert engine.await_ready(PATIENCE)
        assert engine.reload("shop", "orders", timeout=PATIENCE)
        assert engine.await_ready(PATIENCE)
        assert baseline_of(engine) == 2
        assert baseline_of(engine, pipeline="changes") == 0


def test_nobody_waits_for_a_reload_that_failed_for_good(market: Market) -> None:
    class Broken(ScriptedTarget):
        def load(self, table: str, baseline: int):  # type: ignore[no-untyped-def]
            if baseline > 1:
                raise CorruptSegment("Segment is shorter than recorded", file="x.parquet")
            return super().load(table, baseline)

    with market.engine(market.pipeline(Broken())) as engine:
        assert engine.await_ready(PATIENCE)
        assert engine.reload("shop", "orders", timeout=None) is False
        assert engine.pipeline_info("orders").state == "failed"


def test_waiting_for_a_reload_ends_with_the_engine(market: Market) -> None:
    engine = market.engine(market.pipeline(memory()))
    answers: list[bool] = []
    waiting = threading.Thread(
        target=lambda: answers.append(engine.reload("shop", "orders", timeout=None))
    )
    with engine:
        assert engine.await_ready(PATIENCE)
        engine.pause()
        waiting.start()
        assert await_seen(lambda: engine.pipeline_info("orders").tables[0].state == "reloading")
    waiting.join(PATIENCE)
    assert answers == [False]


def test_a_target_that_refuses_the_new_rows_once_gets_them_again(market: Market) -> None:
    class Refusing(ScriptedTarget):
        refusals = 0

        def load(self, table: str, baseline: int):  # type: ignore[no-untyped-def]
            if self.refusals:
                self.refusals -= 1
                raise TargetError("Not now")
            return super().load(table, baseline)

    target = Refusing()
    with market.engine(market.pipeline(target)) as engine:
        assert engine.await_ready(PATIENCE)
        target.refusals = 2
        market.source.add_row("orders", {"id": 99, "status": "paid", "version": 0})
        assert engine.reload("shop", "orders", timeout=PATIENCE)
        assert engine.await_ready(PATIENCE)
    assert len(target.rows("orders")) == 11


@pytest.mark.meets("R30")
def test_a_reload_supersedes_the_letters_that_it_covers(market: Market) -> None:
    failing = {11}
    runner = ArrowRunner(fails=lambda pipeline, row: "X" if row["id"] in failing else None)
    orders = memory()
    with market.engine(market.pipeline(orders), runner=runner) as engine:
        assert engine.await_ready(PATIENCE)
        market.put("orders", 11)
        market.put("orders", 12)
        assert await_that(engine, lambda: orders.count() == 11)
        assert [letter.key for letter in engine.dead_letters()] == [(11,)]
        failing.clear()
        assert engine.reload("shop", "orders", timeout=PATIENCE)
        assert orders.get(11) is not None
        assert engine.dead_letters() == ()
        assert engine.pipeline_info("orders").dead_letters == 0
        (letter,) = engine.dead_letters(superseded=True)
        assert letter.superseded == "reload"
        market.put("orders", 11, version=5)
        assert await_that(engine, lambda: dict(orders.get(11) or {})["version"] == 5)
