"""Rows that expire, stepped by hand: a clock that only the test moves, and lives of an engine."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headrace.changelog.compaction import Fold, plan_fold
from headrace.changelog.position import CHANGES_END, Position
from headrace.changelog.values import BeyondDate, BeyondTimestamp, ValueType
from headrace.corrections.expiry import ExpiryWatermark
from headrace.deadletters.ledger import Selection
from headrace.engine.status import _notices
from headrace.errors import (
    CannotExpire,
    InvalidConfiguration,
    StorageError,
    UnknownColumn,
    WrongValue,
)
from headrace.observe.events import Event, RowsExpired
from headrace.pipeline.definition import TTL, Pipeline
from headrace.pipeline.steps import derive
from headrace.runtime.corrections import ReplayRequest
from headrace.runtime.pipeline_run import PipelineRun
from headrace.runtime.store import ProgressStore
from headrace.tables import RowChanges
from headrace.targets.memory import IndexedMemory, memory
from headrace.targets.target import Batch
from headrace.testing.target import ScriptedTarget
from tests.control.stepping import Stepping
from tests.control.test_configured import of, shop_plain
from tests.control.test_metrics import Scrape
from tests.support.arrow_runner import ArrowRunner
from tests.support.shop import PATIENCE, Market, await_seen

NOW = datetime(2026, 3, 1, tzinfo=UTC).timestamp()


def at(seconds: float) -> str:
    """Return a time so many seconds after the beginning, as text."""
    return datetime.fromtimestamp(NOW + seconds, UTC).isoformat()


class Expiring(Stepping):
    """Orders whose status is a time, after which they are gone."""

    tables: tuple[str, ...] = ("orders",)

    def __init__(self) -> None:
        super().__init__(self.tables)
        self.seconds = 0.0
        self.wall_behind = 0.0
        self.target: IndexedMemory = memory()

    def clock(self) -> float:
        return self.seconds

    def wall(self) -> float:
        return NOW + self.seconds - self.wall_behind

    def pipeline(self, scan: float = 10.0) -> Pipeline:
        self.target = memory()
        ttl = TTL("status", scan=scan)
        return Pipeline(self.source, "orders", self.target, name="orders", ttl=ttl)

    def live(self, scan: float = 10.0) -> PipelineRun:
        """Return a run whose table is shown, in a new life of the engine."""
        run = self.run(self.pipeline(scan))
        self.settle(run)
        return run

    def rest(self, run: PipelineRun, seconds: float = 0.0) -> None:
        """Let time pass, and let the run do what is to be done."""
        self.seconds += seconds
        self.settle(run)

    def fold(self) -> None:
        """Fold the log's changes into the baseline."""
        log = self.recorder._log
        assert log is not None
        plan = plan_fold(log, log.end, 0, anyhow=True)
        assert plan is not None
        folding = Fold(log, plan)
        while folding.advance() is None:
            pass
        self.log.refresh()

    @property
    def shown(self) -> Mapping[object, object]:
        return {row["id"]: row["status"] for row in self.target.all()}


class Two(Expiring):
    """The same with two tables."""

    tables = ("orders", "items")

    def pipeline(self, scan: float = 10.0) -> Pipeline:
        self.target = memory()
        ttl = TTL("status", scan=scan)
        return Pipeline(self.source, tables=self.tables, target=self.target, name="orders", ttl=ttl)


@pytest.fixture
def world() -> Expiring:
    return Expiring()


def test_a_row_is_deleted_once_its_time_has_passed(world: Expiring) -> None:
    run = world.live()
    heard = world.target.changes()
    world.put(1, at(25))
    world.put(2, at(1_000))
    world.put(3, "no time")
    world.rest(run)
    assert set(world.shown) == {1, 2, 3}
    world.rest(run, 10)
    world.rest(run, 10)
    assert set(world.shown) == {1, 2, 3}
    reached = run.reached
    world.rest(run, 10)
    assert set(world.shown) == {2, 3}
    (event,) = [each for each in world.events if isinstance(each, RowsExpired)]
    assert (event.pipeline, event.table, event.rows) == ("orders", "orders", 1)
    # After the commit that was reached, and before the next one.
    assert event.position == run.reached == world.target.position
    assert (reached.commit, CHANGES_END + 1) == (run.reached.commit, run.reached.ordinal)
    heard.end()
    told = [(change.op, change.key) for change in heard]
    assert told == [("insert", (1,)), ("insert", (2,)), ("insert", (3,)), ("delete", (1,))]
    assert run.delivery.counters.total().counts.expired == 1


def test_a_row_that_has_expired_is_not_shown_when_it_arrives(world: Expiring) -> None:
    world.put(1, at(-5))
    world.put(2, at(50))
    run = world.live()
    assert set(world.shown) == {2}
    world.put(3, at(-5))
    world.put(2, at(-1))
    world.rest(run)
    assert set(world.shown) == set()
    world.put(3, at(60))
    world.rest(run)
    assert set(world.shown) == {3}


def test_a_row_that_gets_a_later_time_stays(world: Expiring) -> None:
    run = world.live()
    world.put(1, at(5))
    world.rest(run)
    # It is in the log, and not at the target, when its old time passes.
    world.put(1, at(500))
    world.rest(run, 20)
    assert world.shown == {1: at(500)}
    world.rest(run, 20)
    assert world.shown == {1: at(500)}


def test_expired_rows_do_not_come_back_when_the_table_is_rebuilt_with_a_clock_set_back(
    world: Expiring,
) -> None:
    run = world.live()
    world.put(1, at(5))
    world.put(2, at(900))
    world.rest(run, 20)
    assert set(world.shown) == {2}
    world.wall_behind = 600
    again = world.live()
    assert set(world.shown) == {2}
    world.put(3, at(10))
    world.rest(again, 5)
    assert set(world.shown) == {2}


def test_expired_rows_do_not_come_back_by_a_reload(world: Expiring) -> None:
    run = world.live()
    world.put(1, at(5))
    world.put(2, at(25))
    world.rest(run, 10)
    assert set(world.shown) == {2}
    heard = world.target.changes()
    newest = world.log.usable_baseline("orders")
    run.ask_reload("orders", newest.baseline if newest else 0)
    # The copy is loaded before the time of one of its rows, and shown after it.
    while run.members[0].load is None:
        if run.step() is not None:
            world.take_baseline()
    world.rest(run, 20)
    assert run.members[0].baseline > (newest.baseline if newest else 0)
    assert set(world.shown) == set()
    heard.end()
    assert [(change.op, change.key) for change in heard] == [("delete", (2,))]


def test_what_has_expired_is_stored_before_a_row_is_deleted(world: Expiring) -> None:
    run = world.run(world.pipeline(), kind=FullStore)
    world.settle(run)
    world.put(1, at(5))
    world.rest(run)
    FullStore.full = True
    try:
        world.seconds += 20
        run.step()
        assert isinstance(run.error, StorageError)
        assert set(world.shown) == {1}
    finally:
        FullStore.full = False
    run.step()
    assert set(world.shown) == set()


class FullStore(ProgressStore):
    """A control store that may have no space for what has expired."""

    full = False

    def expire(self, pipeline: str, upto: int) -> None:
        if self.full:
            raise StorageError("control.sqlite could not be written")
        super().expire(pipeline, upto)


def test_a_scan_waits_for_a_correction_that_stands_where_it_would(world: Expiring) -> None:
    bad = {"bad"}
    runner = ArrowRunner(world.disk, lambda _, row: "BAD" if row["status"] in bad else None)
    run = world.run(world.pipeline(), runner)
    world.settle(run)
    world.put(1, at(5))
    world.put(2, "bad")
    world.rest(run)
    (letter,) = run.delivery.dead_letters.all()
    request = ReplayRequest(Selection(position=letter.position), {"status": "mended"})
    run.corrections.ask(request)
    run.requests += 1
    while not run.delivery.journal.all():
        run.step()
    world.rest(run, 20)
    assert request.answer.result(0)[0].outcome == "applied"
    assert world.shown == {1: at(5), 2: "mended"}
    world.rest(run, 1)
    assert world.shown == {2: "mended"}
    world.live()
    assert set(world.shown) == {2}


def test_a_clock_that_was_set_back_leads_to_a_notice(world: Expiring) -> None:
    run = world.live()
    world.rest(run, 20)
    assert list(_notices(run, run.delivery.dead_letter_figures)) == []
    world.wall_behind = 300
    (notice,) = _notices(run, run.delivery.dead_letter_figures)
    assert (notice.code, notice.facts["seconds"]) == ("pipeline.expired_ahead", 300)
    world.wall_behind = 0
    assert list(_notices(run, run.delivery.dead_letter_figures)) == []


def test_the_count_of_expired_rows_is_kept_over_restarts(world: Expiring) -> None:
    run = world.live()
    world.put(1, at(5))
    world.put(2, at(30))
    world.rest(run)
    world.rest(run, 20)
    run.close()
    again = world.live()
    world.rest(again, 20)
    assert again.delivery.counters.total().counts.expired == 2
    assert again.delivery.counters.run_total().expired == 1


def test_a_paused_pipeline_deletes_nothing_and_does_not_wake(world: Expiring) -> None:
    run = world.live()
    world.put(1, at(5))
    world.rest(run)
    run.pause()
    world.rest(run, 20)
    assert (set(world.shown), run.wakes_in) == ({1}, None)
    run.resume()
    world.rest(run)
    assert (set(world.shown), run.wakes_in) == (set(), 10)


def test_the_first_moment_of_the_year_1_and_other_text_are_no_times(world: Expiring) -> None:
    run = world.live()
    texts = ["0001-01-01T00:00:00Z", "", "soon", "2026-02-30T00:00:00Z", "12"]
    for key, text in enumerate(texts, 1):
        world.put(key, text)
    world.rest(run, 20)
    assert list(world.shown.values()) == texts
    gone = ["2025-01-01", "2025-01-01 10:00:00", "2025-01-01T10:00:00+05:00"]
    gone += ["2025-01-01T10:00:00.123456789Z", "2025-01-01t10:00:00z"]
    for key, text in enumerate(gone, 1):
        world.put(key, text)
    world.rest(run)
    assert set(world.shown) == set()


@pytest.mark.parametrize(
    ("kind", "gone", "stays"),
    [
        (
            "timestamptz",
            [datetime(2026, 2, 28, tzinfo=UTC), BeyondTimestamp(-(2**63), utc=True)],
            [datetime(2026, 3, 2, tzinfo=UTC), BeyondTimestamp(2**63 - 1, utc=True), None],
        ),
        ("timestamp", [datetime(2026, 3, 1)], [datetime(2026, 3, 1, 0, 0, 1), datetime(1, 1, 1)]),
        (
            "date",
            [date(2026, 3, 1), BeyondDate(-(2**31))],
            [date(2026, 3, 2), BeyondDate(2**31 - 1), date(1, 1, 1), None],
        ),
        ("text", [at(0), "2026-03-01"], [at(1), "2026-03-02T00:00:00", "infinity", None]),
    ],
)
def test_times_of_every_type_are_compared(kind: str, gone: list[Any], stays: list[Any]) -> None:
    mark = ExpiryWatermark("until", int(NOW * 1_000_000))
    array, unfit = ValueType(kind).to_arrow([*gone, *stays])
    assert not unfit
    rows = pa.table({"id": range(len(array)), "until": array})
    assert mark.expired(rows)["id"].to_pylist() == list(range(len(gone)))
    assert mark.unexpired(rows)["id"].to_pylist() == list(range(len(gone), len(array)))
    assert mark.expired(rows.slice(0, 0)).num_rows == 0


def test_a_pipeline_stops_if_the_column_of_its_ttl_is_dropped(world: Expiring) -> None:
    run = world.live()
    world.put(1, at(50))
    world.rest(run)
    world.source.set_schema("orders", {"id": "int64", "note": "text"}, ["id"])
    world.source.emit_insert("orders", {"id": 2, "note": ""})
    world.flush()
    while run.step() is None:
        pass
    assert isinstance(run.error, UnknownColumn)
    assert set(world.shown) == {1}


def test_rows_expire_while_a_table_is_loaded_again_because_its_columns_changed() -> None:
    world = Expiring()
    world.source.set_schema("orders", {"id": "int64", "status": "text", "more": "text"}, ["id"])
    run = world.live()
    world.put(1, at(15))
    world.put(2, at(500))
    world.rest(run)
    world.source.set_schema("orders", {"id": "int64", "status": "text"}, ["id"])
    world.put(3, at(500))
    while run.members[0].shown:
        run.step()
    # Readers still see the rows with the earlier columns.
    assert set(world.shown) == {1, 2}
    world.seconds += 20
    run.step()
    assert run.error is None
    assert 1 not in world.shown
    world.rest(run)
    assert (run.error, set(world.shown)) == (None, {2, 3})


def test_rows_of_several_tables_are_deleted_at_one_position() -> None:
    """A table without such a row stays with the others."""
    two = Two()
    for table in ("orders", "items"):
        two.put(1, at(5), table)
        two.put(2, at(500), table)
    run = two.live()
    two.put(3, at(5), "items")
    two.rest(run)
    two.rest(run, 20)
    shown = {table: {row["id"] for row in two.target.table(table).all()} for table in two.tables}
    assert shown == {"orders": {2}, "items": {2}}
    (position,) = {two.target.table(table).position for table in two.tables}
    assert position.ordinal > CHANGES_END
    counts = [each for each in two.events if isinstance(each, RowsExpired)]
    assert {(each.table, each.rows, each.position) for each in counts} == {
        ("orders", 1, position),
        ("items", 2, position),
    }


def test_rows_expire_again_after_a_batch_that_failed_was_replaced_by_a_reload(
    world: Expiring,
) -> None:
    bad = {"bad"}
    runner = ArrowRunner(world.disk, lambda _, row: "BAD" if row["status"] in bad else None)
    world.target = memory()
    ttl = TTL("status", scan=10)
    pipeline = Pipeline(
        world.source, "orders", world.target, name="orders", ttl=ttl, on_error="stop"
    )
    run = world.run(pipeline, runner)
    world.settle(run)
    world.put(1, at(15))
    world.rest(run)
    world.put(2, "bad")
    world.rest(run)
    assert run.failed
    # The row is corrected at the source, and no change follows the copy.
    bad.clear()
    world.put(2, "good")
    newest = world.log.usable_baseline("orders")
    run.ask_reload("orders", newest.baseline if newest else 0)
    world.rest(run)
    assert (run.ready, run.delivery.applying, set(world.shown)) == (True, None, {1, 2})
    world.rest(run, 20)
    assert set(world.shown) == {2}


def test_a_scan_that_failed_is_repeated_with_what_it_has_stored(world: Expiring) -> None:
    """Some of the rows may be deleted: they must not come back, although the clock was set back."""
    run = world.live()
    world.put(1, at(5))
    world.put(2, at(500))
    world.put(3, at(5_000))
    world.rest(run)
    write = world.target.write

    def fails(batch: Batch) -> Position:
        raise StorageError("The target could not be written")

    world.target.write = fails  # type: ignore[method-assign]
    world.seconds += 1_000
    run.step()
    assert isinstance(run.error, StorageError)
    world.target.write = write  # type: ignore[method-assign]
    world.wall_behind = 900
    world.rest(run)
    assert run.delivery.expiry is not None
    stored = run.context.store.expired_upto("orders")
    assert run.delivery.expiry.mark.upto == stored == int((NOW + 1_000) * 1_000_000)
    assert set(world.shown) == {3}


def test_the_position_of_a_table_does_not_go_back_by_a_reload(world: Expiring) -> None:
    world.target = memory()
    ttl = TTL("status", scan=10)
    pipeline = Pipeline(
        world.source, "orders", world.target, name="orders", ttl=ttl, mode="baseline"
    )
    world.put(1, at(15))
    world.put(2, at(500))
    run = world.run(pipeline)
    world.settle(run)
    world.rest(run, 20)
    assert set(world.shown) == {2}
    before, newest = world.target.position, run.members[0].baseline
    assert before.ordinal > CHANGES_END
    run.ask_reload("orders", newest)
    world.rest(run)
    assert (run.members[0].baseline > newest, set(world.shown)) == (True, {2})
    assert world.target.position >= before


def test_corrections_that_are_moved_to_where_rows_expired_are_delivered(world: Expiring) -> None:
    bad = {"bad"}
    runner = ArrowRunner(world.disk, lambda _, row: "BAD" if row["status"] in bad else None)
    run = world.run(world.pipeline(), runner)
    world.settle(run)
    own = run.members[0].baseline
    world.take_baseline()  # for another pipeline; a reload after it is enough
    world.put(2, "bad")
    world.put(3, "bad")
    world.rest(run)
    for letter in run.delivery.dead_letters.all():
        request = ReplayRequest(Selection(position=letter.position), {"status": "mended"})
        run.corrections.ask(request)
        run.requests += 1
        world.rest(run)
        assert request.answer.result(0)[0].outcome == "applied"
    world.put(4, at(15))
    world.rest(run, 11)
    assert world.shown == {2: "mended", 3: "mended", 4: at(15)}
    world.rest(run, 11)
    # The rows of two corrections are moved to F, and deletes stand at the first position there.
    assert run.reached.ordinal == CHANGES_END + 1
    world.fold()
    run.ask_reload("orders", own)
    world.rest(run)
    moved = run.delivery.journal.all()[-1]
    assert (moved.record.kind, moved.first, moved.last.ordinal) == (
        "move",
        Position(run.reached.epoch, run.reached.commit, CHANGES_END + 1),
        CHANGES_END + 2,
    )
    assert run.members[0].baseline > own
    assert world.shown == {2: "mended", 3: "mended"}


def test_what_a_text_means_does_not_depend_on_the_texts_beside_it() -> None:
    mark = ExpiryWatermark("until", int(NOW * 1_000_000))
    for beside in ([], ["soon"]):
        rows = pa.table({"until": ["0000-01-01T00:00:00Z", "0010-01-01T00:00:00Z", *beside]})
        assert mark.expired(rows)["until"].to_pylist() == ["0010-01-01T00:00:00Z"]


def test_a_scan_does_not_show_one_table_s_share_of_a_batch_that_failed() -> None:
    two = Two()
    for table in ("orders", "items"):
        two.put(1, at(15), table)
    run = two.live()
    items = two.target._tables["items"]

    def fails(*_: object, **__: object) -> RowChanges:
        raise WrongValue("The rows cannot be applied")

    items.apply = fails  # type: ignore[method-assign]
    for table in ("orders", "items"):
        two.source.emit_insert(table, {"id": 2, "status": at(500)})
    two.flush()
    two.rest(run)
    assert run.failed
    del items.apply
    # All tables are loaded again, once there are newer copies; until then readers see the rows.
    newest = two.log.usable_baseline("orders")
    run.ask_reload("orders", newest.baseline if newest else 0)
    two.seconds += 20
    run.step()
    assert not any(member.shown for member in run.members)
    shown = {table: {row["id"] for row in two.target.table(table).all()} for table in two.tables}
    assert all(2 not in rows for rows in shown.values()), shown
    two.rest(run)
    shown = {table: {row["id"] for row in two.target.table(table).all()} for table in two.tables}
    assert shown == {"orders": {2}, "items": {2}}


def test_what_cannot_expire_is_refused_by_name() -> None:
    world = Expiring()
    with pytest.raises(CannotExpire) as refused:
        Pipeline(world.source, "orders", ScriptedTarget(), ttl=TTL("status"))
    assert refused.value.facts["target"] == "scripted"
    with pytest.raises(UnknownColumn, match="until"):
        world.run(Pipeline(world.source, "orders", memory(), ttl=TTL("until")))
    with pytest.raises(CannotExpire) as refused:
        world.run(Pipeline(world.source, "orders", memory(), ttl=TTL("id")))
    assert refused.value.facts["column"] == "id"
    with pytest.raises(WrongValue):
        TTL("status", scan="10ms")
    with pytest.raises(WrongValue):
        TTL("")


@pytest.mark.slow
def test_an_engine_wakes_by_itself_and_counts_what_has_expired(market: Market) -> None:
    target, found = memory(), list[RowsExpired]()

    class Listener:
        def on_event(self, event: Event) -> None:
            if isinstance(event, RowsExpired):
                found.append(event)

    pipeline = market.pipeline(target, name="orders", ttl=TTL("status", scan=1))
    engine = market.engine(pipeline)
    engine.observe(Listener(), "listener")
    with engine:
        assert engine.await_ready(PATIENCE)
        assert target.count() == 10
        soon = datetime.now(UTC) + timedelta(seconds=0.5)
        market.put("orders", 3, soon.isoformat())
        market.put("orders", 4, (soon + timedelta(hours=1)).isoformat())
        # Nothing is written from here on: only the clock brings a scan.
        assert await_seen(lambda: target.get(3) is None)
        assert target.count() == 9
        assert await_seen(lambda: len(found) == 1)
        (info,) = engine.pipelines()
        assert (info.counts.expired, info.tables[0].counts.expired) == (1, 1)
        at = {"pipeline": "orders", "source": "shop", "table": "orders"}
        assert Scrape(engine)("rows_expired_total", **at) == 1
        theirs = Scrape(engine, compat=True)
        assert theirs.of("laredo_rows_expired_total", pipeline="orders") == 1
        assert theirs.of("laredo_pipeline_rows_expired_total", pipeline_id="orders") == 1
        replayed = memory()
        engine.replay("orders", replayed)
        assert {row["id"] for row in replayed.all()} == {row["id"] for row in target.all()}
    assert (found[0].table, found[0].rows) == ("orders", 1)
    with engine:
        assert engine.await_ready(PATIENCE)
        assert target.get(3) is None
        assert engine.pipelines()[0].counts.expired == 1


def test_a_configuration_says_when_rows_expire(tmp_path: Path) -> None:
    plain: dict[str, Any] = shop_plain(tmp_path)
    ours = plain["pipelines"]["paid"]
    ours["ttl"] = {"expression": "created_at + INTERVAL 7 DAYS", "field": "until", "scan": "30s"}
    (pipeline,) = of(plain).build().pipelines
    assert pipeline.ttl == TTL("until", "created_at + INTERVAL 7 DAYS", 30.0)
    assert pipeline.transforms[-1] == derive(until="created_at + INTERVAL 7 DAYS")
    ours["target"] = {"type": "table", "path": str(tmp_path / "lake"), "mode": "append"}
    with pytest.raises(InvalidConfiguration) as refused:
        of(plain).build()
    assert [error.code for error in refused.value.errors] == ["pipeline.cannot_expire"]
