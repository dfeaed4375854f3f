"""`OAMService`: an engine's status, sources, tables and control, as messages."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration

from headrace.api.handlers import EmptyRequest, Verb
from headrace.api.status_messages import laredo_state, service_state
from headrace.engine.engine import Engine
from headrace.engine.health import PIPELINE_STATES
from headrace.engine.metrics import installed_version
from headrace.errors import (
    BadRequest,
    NotConfirmed,
    NotRunning,
    SourceRefused,
    SourceUnreachable,
    UnknownPipeline,
)
from headrace.observe.events import NullObserver
from headrace.targets.memory import memory
from headrace.testing.target import ScriptedTarget
from headrace.v1 import oam_pb2 as v1
from tests.interfaces.at_work import AtWork, at_work
from tests.interfaces.callers import Asking
from tests.support.arrow_runner import ArrowRunner
from tests.support.patience import patience
from tests.support.shop import PATIENCE, Market, await_seen

WAIT = Duration(seconds=int(patience()) + 1)


class Bench:
    """An engine with two pipelines: one that can be queried, and one that cannot."""

    def __init__(self, folder: Path) -> None:
        self.market = Market(folder, ("public.orders", "items"))
        self.orders = memory(indexes={"by_status": ["status"]}, lookup=["version", "id"])
        self.engine = Engine(
            self.market.pipeline(self.orders, "public.orders", "items", name="both"),
            self.market.pipeline(ScriptedTarget(), "items", name="items"),
            data=self.market.data,
            runner=ArrowRunner(),
            recorder="thread",
            observers=[NullObserver()],
        )


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    bench = Bench(tmp_path_factory.mktemp("oam"))
    with bench.engine as engine:
        assert engine.await_ready(PATIENCE)
        bench.market.put("public.orders", 11)
        bench.market.put("public.orders", 1, version=5)
        bench.market.source.emit_delete("public.orders", 2)
        assert await_seen(lambda: sum(b.changes for b in engine.recent_batches("both")) == 3)
        yield bench


@pytest.fixture(scope="module")
def ask(bench: Bench) -> Asking:
    return Asking(bench.engine, service="market")


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[AtWork]:
    with at_work(tmp_path) as found:
        yield found


def near(stamp: Any) -> bool:
    """Whether a time is of the last hour: it was filled, and in the right unit."""
    return bool(0 <= time.time() - stamp.ToMicroseconds() / 1e6 < 3_600)


# -- status -------------------------------------------------------------------------------


@pytest.mark.meets("OAM-01")
def test_the_status_has_the_engine_its_sources_and_its_pipelines(ask: Asking) -> None:
    assert await_seen(lambda: ask("GetStatus").ready)
    status = ask("GetStatus")
    assert status.state == v1.SERVICE_STATE_STREAMING
    assert near(status.started_at)
    assert near(status.last_change_at)
    assert status.last_change_at.ToMicroseconds() >= status.started_at.ToMicroseconds()
    assert not status.snapshot_status.enabled
    assert (status.service, status.pid, status.version) == (
        "market",
        os.getpid(),
        installed_version(),
    )
    assert (status.phase, status.step, status.ready) == ("running", "", True)
    assert not status.HasField("spark_down")
    assert [each.name for each in status.observers[:2]] == ["NullObserver", "events for clients"]
    assert status.observers[0].delivered > 0
    assert status.observers[0].dropped == 0
    assert [(each.name, each.ok) for each in status.health] == [
        ("live", True),
        ("ready", True),
        ("startup", True),
    ]
    assert [each.source_id for each in status.sources] == ["shop"]
    assert [each.pipeline_id for each in status.pipelines] == ["both", "items"]


@pytest.mark.meets("OAM-01")
def test_a_source_has_every_field_that_is_known_of_it(bench: Bench, ask: Asking) -> None:
    (source,) = ask("GetStatus").sources
    info = bench.engine.source_info("shop")
    assert (source.source_type, source.supports_resume, source.resets) == ("test", True, False)
    assert (source.ordering_guarantee, source.state) == ("total", "streaming")
    assert source.current_position == str(bench.market.source.position)
    assert source.phase == info.phase == "streaming"
    assert near(source.since)
    assert near(source.started_at)
    assert near(source.newest)
    assert source.end.position == str(info.end)
    assert source.end.lineage == bench.market.source.lineage()
    assert (source.captured, source.flushes) == (3, info.flushes)
    assert source.log_bytes == info.bytes > 0
    assert (source.recorder_pid, source.restarts) == (info.recorder_pid or 0, 0)
    assert source.source_details["captured"] == 3
    assert source.ready
    assert not source.HasField("error")
    assert not source.HasField("error_since")
    assert not source.HasField("retained")
    assert (list(source.copies), list(source.notices), dict(source.left_out)) == ([], [], {})
    assert source.reason == ""
    assert await_seen(lambda: ask("GetStatus").sources[0].HasField("rate_per_second"))
    assert await_seen(lambda: ask("GetStatus").sources[0].HasField("current"))
    assert await_seen(lambda: ask("GetStatus").sources[0].acked_position == "1:3")
    assert ask("GetStatus").sources[0].acknowledged.position > "0001"


@pytest.mark.meets("OAM-01")
def test_a_pipeline_has_every_field_that_is_known_of_it(bench: Bench, ask: Asking) -> None:
    both, items = ask("GetStatus").pipelines
    info = bench.engine.pipeline_info("both")
    assert (both.source_id, both.schema, both.table) == ("shop", "", "public.orders, items")
    assert (items.schema, items.table) == ("", "items")
    assert (both.target_type, both.queryable) == ("indexed-memory", True)
    assert (items.target_type, items.queryable) == ("scripted", False)
    assert (both.state, both.state_name) == (v1.PIPELINE_STATE_STREAMING, "streaming")
    assert both.row_count == both.rows == 20
    assert (both.inserts_applied, both.updates_applied) == (1, 1)
    assert (both.deletes_applied, both.truncates_applied) == (1, 0)
    assert (both.counts.inserts, both.counts.updates, both.counts.deletes) == (1, 1, 1)
    assert (both.counts.baseline_rows, both.counts.errors, both.counts.dead_letters) == (20, 0, 0)
    assert near(both.last_change_at)
    assert near(both.counted_since)
    assert near(both.started_at)
    assert (both.error_message, both.reason, both.condition) == ("", "", "")
    assert (both.buffer_depth, both.buffer_capacity) == (0, 400_000)
    assert (both.dead_letter_count, both.held_keys, both.releases) == (0, 0, 0)
    assert both.ready
    assert (both.position.position, both.position.lineage) == (str(info.position), "test/1")
    assert both.HasField("lag")
    assert (both.changes, both.batches) == (3, info.batches)
    assert (both.jobs, both.direct, both.abandoned) == (info.jobs, 0, 0)
    assert [hop.hop for hop in both.hops] == ["captured", "flushed", "job", "applied", "total"]
    assert all(0 <= hop.p50_ms <= hop.p95_ms <= hop.p99_ms for hop in both.hops)
    for absent in ("error", "error_since", "since", "set_aside", "opening", "applying"):
        assert not both.HasField(absent), absent
    assert (dict(both.rows_given_up), dict(both.left_out), list(both.notices)) == ({}, {}, [])
    assert await_seen(lambda: ask("GetStatus").pipelines[0].HasField("rate_per_second"))


@pytest.mark.meets("OAM-01")
def test_each_table_of_a_pipeline_has_its_own_counts_and_indexes(ask: Asking) -> None:
    both = ask("GetStatus").pipelines[0]
    found = {each.table: each for each in both.tables}
    orders, items = found["public.orders"], found["items"]
    assert (orders.state, orders.rows, items.rows) == ("live", 10, 10)
    assert (orders.baseline, orders.reason) == (1, "") or orders.baseline > 0
    assert (orders.counts.inserts, items.counts.inserts) == (1, 0)
    assert orders.position.position == both.position.position
    assert near(orders.last_change_at)
    assert not items.HasField("last_change_at")
    assert not orders.HasField("copy")
    assert not orders.HasField("rows_age")
    assert [(each.kind, each.name, list(each.fields)) for each in orders.indexes] == [
        ("key", "", ["id"]),
        ("lookup", "", ["version", "id"]),
        ("index", "by_status", ["status"]),
    ]


@pytest.mark.meets("OAM-02")
def test_a_table_has_its_pipelines_and_indexes(ask: Asking) -> None:
    found = ask("GetTableStatus", table="items")
    assert [each.pipeline_id for each in found.pipelines] == ["both", "items"]
    key, lookup, by_status = found.indexes
    assert (key.kind, key.unique, key.pipeline, key.table) == ("key", True, "both", "items")
    assert (lookup.unique, by_status.unique, by_status.entry_count) == (True, False, 10)
    for fields in ({"schema": "public", "table": "orders"}, {"table": "public.orders"}):
        (pipeline,) = ask("GetTableStatus", **fields).pipelines
        assert pipeline.pipeline_id == "both"
    with pytest.raises(UnknownPipeline, match=r"has a table orders, tables=\['items', 'public"):
        ask("GetTableStatus", table="orders")
    with pytest.raises(BadRequest, match="table is required"):
        ask("GetTableStatus")


@pytest.mark.meets("OAM-03")
def test_a_pipeline_has_its_recent_batches_with_time_size_and_way(ask: Asking) -> None:
    found = ask("GetPipelineStatus", pipeline_id="both")
    assert found.status.pipeline_id == "both"
    assert len(found.indexes) == 6
    assert sum(each.rows for each in found.batches) == 3
    for each in found.batches:
        assert near(each.time)
        assert each.way == "job"
        assert each.ms > 0
        assert each.latency_ms >= 0
    (last,) = ask("GetPipelineStatus", pipeline_id="both", batches=1).batches
    assert last == found.batches[-1]
    with pytest.raises(UnknownPipeline, match="no pipeline bot"):
        ask("GetPipelineStatus", pipeline_id="bot")
    with pytest.raises(BadRequest, match="pipeline_id is required"):
        ask("GetPipelineStatus")
    with pytest.raises(BadRequest, match="batches must not be negative"):
        ask("GetPipelineStatus", pipeline_id="both", batches=-1)


@pytest.mark.meets("OAM-03")
def test_a_batch_has_the_way_in_which_its_tables_were_computed(tmp_path: Path) -> None:
    class HalfDirect(ArrowRunner):
        def rows(self, pipeline: Any, parts: Any, facts: Any) -> Any:
            found = super().rows(pipeline, parts, facts)
            return replace(found, direct="status" in parts[0].now.names)

    market = Market(tmp_path, ("orders", "items"))
    market.source.rename_column("items", "status", "word")
    both = market.pipeline(memory(), "orders", "items", name="both")
    with market.engine(both, runner=HalfDirect()) as engine:
        assert engine.await_ready(PATIENCE)
        ways: list[str] = []
        for tables in (["orders"], ["items"], ["orders", "items"]):
            with market.source.transaction():
                for table in tables:
                    market.source.emit_delete(table, len(ways) + 1)
            assert await_seen(partial(_has_batches, engine, len(ways) + 1))
            (last,) = Asking(engine)("GetPipelineStatus", pipeline_id="both", batches=1).batches
            ways.append(last.way)
        assert ways == ["direct", "job", "both"]


def _has_batches(engine: Engine, count: int) -> bool:
    return len(engine.recent_batches("both")) == count


@pytest.mark.meets("OAM-06")
def test_sources_have_their_tables_and_pipelines(ask: Asking) -> None:
    (source,) = ask("GetSourceInfo", source_id="shop").sources
    assert source == ask("GetSourceInfo").sources[0] or source.source_id == "shop"
    assert list(source.tables) == ["items", "public.orders"]
    assert list(source.pipelines) == ["both", "items"]
    status = source.status
    assert (source.source_type, source.supports_resume) == ("test", True)
    assert source.ordering_guarantee == status.ordering_guarantee == "total"
    assert source.current_position == status.current_position
    assert source.acked_position == status.acked_position
    assert source.lag_bytes == status.lag_bytes
    assert source.details["name"] == "shop"
    assert source.HasField("lag_time") == status.HasField("lag_time")
    with pytest.raises(UnknownPipeline, match=r"no source shed, sources=\['shop'\]"):
        ask("GetSourceInfo", source_id="shed")


@pytest.mark.parametrize("state", PIPELINE_STATES)
def test_every_state_of_a_pipeline_has_a_word_of_laredo(state: str) -> None:
    assert laredo_state(state) != v1.PIPELINE_STATE_UNSPECIFIED


def test_a_pipeline_that_is_not_ready_is_in_error_or_waits_for_its_source() -> None:
    assert laredo_state("not_ready", error=True, away=True) == v1.PIPELINE_STATE_ERROR
    assert laredo_state("not_ready", away=True) == v1.PIPELINE_STATE_INITIALIZING
    assert laredo_state("not_ready") == v1.PIPELINE_STATE_STREAMING


@pytest.mark.parametrize(
    ("expected", "states"),
    [
        ("STREAMING", ["streaming", "complete"]),
        ("RELOADING", ["streaming", "reloading"]),
        ("BASELINING", ["reloading", "loading"]),
        ("STARTING", ["loading", "waiting"]),
        ("PAUSED", ["waiting", "paused"]),
        ("PAUSED", ["streaming", "stopped"]),
        ("ERROR", ["paused", "failed"]),
    ],
)
def test_the_state_of_the_engine_is_the_worst_of_its_pipelines(
    expected: str, states: list[str]
) -> None:
    shown = [v1.PipelineStatus(state=laredo_state(each), state_name=each) for each in states]
    found = service_state("running", [], shown)
    assert v1.ServiceState.Name(found) == f"SERVICE_STATE_{expected}"


def test_a_failed_source_is_an_error_of_the_engine_and_a_start_is_a_start() -> None:
    failed: Any = SimpleNamespace(state="failed")
    assert service_state("running", [failed], []) == v1.SERVICE_STATE_ERROR
    assert service_state("starting", [failed], []) == v1.SERVICE_STATE_STARTING


# -- readiness ----------------------------------------------------------------------------


@pytest.mark.meets("OAM-05")
def test_readiness_is_of_the_engine_a_source_a_table_or_a_pipeline(tmp_path: Path) -> None:
    market = Market(tmp_path, ("orders", "items"))
    pipelines = [market.pipeline(memory(), each, name=each) for each in ("orders", "items")]
    with market.engine(*pipelines) as engine:
        assert engine.await_ready(PATIENCE)
        ask = Asking(engine)
        for fields in ({}, {"source": "shop"}, {"table": "orders"}, {"pipeline_id": "items"}):
            assert ask("CheckReady", **fields).ready, fields
        engine.pause("orders")
        for fields in ({}, {"source": "shop"}, {"table": "orders"}, {"pipeline_id": "orders"}):
            found = ask("CheckReady", **fields)
            assert not found.ready, fields
            (reason,) = found.reasons
            assert (reason.part, reason.name, reason.code) == (
                "pipeline",
                "orders",
                "pipeline_paused",
            )
            assert list(found.not_ready_reasons) == [f"pipeline orders: {reason.message}"]
        assert ask("CheckReady", pipeline_id="items").ready
        assert ask("CheckReady", table="items", source="shop").ready
        ask.control.phase = "stopping"
        found = ask("CheckReady", pipeline_id="items")
        assert (found.ready, found.reasons[0].code) == (False, "not_confirmed")
        for fields in ({"source": "x"}, {"table": "x"}, {"pipeline_id": "x"}):
            with pytest.raises(UnknownPipeline):
                ask("CheckReady", **fields)


@pytest.mark.meets("OAM-01")
def test_a_source_that_is_away_is_shown_with_its_error(tmp_path: Path) -> None:
    market = Market(tmp_path)
    with market.engine(market.pipeline(memory(), name="orders")) as engine:
        assert engine.await_ready(PATIENCE)
        market.source.set_away(True)
        market.source.inject_error(SourceUnreachable("The server is away"))
        market.source.wake()
        ask = Asking(engine)
        assert await_seen(lambda: not ask("CheckReady", pipeline_id="orders").ready)
        (source,) = ask("GetStatus").sources
        assert (source.state, source.phase, source.ready) == ("reconnecting", "reconnecting", False)
        assert "is away" in source.reason
        assert near(source.error_since)
        pipeline = ask("GetPipelineStatus", pipeline_id="orders").status
        assert pipeline.state == v1.PIPELINE_STATE_INITIALIZING
        assert (pipeline.state_name, pipeline.ready) == ("not_ready", False)
        assert "is away" in pipeline.reason
        assert pipeline.condition == "source_reconnecting"
        assert near(pipeline.since)
        market.source.set_away(False)


def test_while_an_engine_starts_it_has_no_pipelines_and_says_so(bench: Bench) -> None:
    ask = Asking(bench.engine, phase="starting")
    ask.control.step = "opening targets"
    status = ask("GetStatus")
    assert (status.state, status.ready) == (v1.SERVICE_STATE_STARTING, False)
    assert (status.phase, status.step) == ("starting", "opening targets")
    assert list(status.pipelines) == []
    with pytest.raises(NotRunning, match="still starting"):
        ask("PauseSync")


# -- control ------------------------------------------------------------------------------


@pytest.mark.meets("OAM-09")
def test_pipelines_of_a_source_one_or_all_are_paused_and_resumed(shop: AtWork) -> None:
    ask = Asking(shop.engine)
    for fields in ({}, {"source_id": "shop"}, {"pipeline": "orders"}):
        paused = ask("PauseSync", **fields)
        assert paused.state == v1.SERVICE_STATE_PAUSED
        (pipeline,) = paused.pipelines
        assert (pipeline.pipeline_id, pipeline.state) == ("orders", v1.PIPELINE_STATE_PAUSED)
        resumed = ask("ResumeSync", **fields)
        assert [each.pipeline_id for each in resumed.pipelines] == ["orders"]
        assert resumed.pipelines[0].state != v1.PIPELINE_STATE_PAUSED
        assert resumed.state != v1.SERVICE_STATE_PAUSED
        assert list(resumed.sources) == []
        assert shop.engine.await_ready(PATIENCE)
    for name in ("PauseSync", "ResumeSync"):
        with pytest.raises(UnknownPipeline, match="no source shed"):
            ask(name, source_id="shed")
        with pytest.raises(UnknownPipeline, match="no pipeline order"):
            ask(name, pipeline="order")


@pytest.mark.meets("OAM-07")
@pytest.mark.meets("OAM-08")
def test_tables_are_reloaded_one_those_of_a_pipeline_or_all(shop: AtWork) -> None:
    ask = Asking(shop.engine)
    baseline = shop.engine.pipeline_info("orders").tables[0].baseline
    calls: tuple[tuple[str, dict[str, Any]], ...] = (
        ("ReloadTable", {"table": "orders"}),
        ("ReloadTable", {"table": "orders", "source_id": "shop"}),
        ("ReloadAll", {}),
        ("ReloadAll", {"source_id": "shop"}),
        ("ReloadAll", {"pipeline": "orders"}),
    )
    for name, fields in calls:
        found = ask(name, **fields, wait=WAIT)
        assert (found.accepted, found.message) == (True, "orders: copied again")
        (table,) = found.tables
        assert (table.source, table.table, table.done) == ("shop", "orders", True)
    assert shop.engine.pipeline_info("orders").tables[0].baseline >= baseline + len(calls)
    with pytest.raises(UnknownPipeline, match="has a table order"):
        ask("ReloadTable", table="order")
    with pytest.raises(UnknownPipeline, match="no source shed"):
        ask("ReloadTable", table="orders", source_id="shed")
    with pytest.raises(UnknownPipeline, match="no source shed"):
        ask("ReloadAll", source_id="shed")
    with pytest.raises(BadRequest, match="table is required"):
        ask("ReloadTable")


def test_a_table_that_two_sources_have_is_reloaded_only_of_one_that_is_named(
    tmp_path: Path,
) -> None:
    (tmp_path / "a").mkdir()
    first, second = Market(tmp_path), Market(tmp_path / "a")
    second.source.name = "shed"
    second.source.spec = type(second.source.spec)("test", "shed", {})
    engine = first.engine(
        first.pipeline(memory(), name="one"), second.pipeline(memory(), name="two")
    )
    with engine:
        assert engine.await_ready(PATIENCE)
        ask = Asking(engine)
        with pytest.raises(BadRequest, match=r"Several sources .*\['shed', 'shop'\]"):
            ask("ReloadTable", table="orders")
        (table,) = ask("ReloadTable", table="orders", source_id="shed").tables
        assert table.source == "shed"


@pytest.mark.meets("OAM-10")
def test_a_source_is_reset_only_if_that_is_confirmed(shop: AtWork) -> None:
    ask = Asking(shop.engine)
    with pytest.raises(NotConfirmed, match="confirm=true is required"):
        ask("ResetSource", source_id="shop")
    shown = ask("ResetSource", source_id="shop", dry_run=True)
    assert (shown.accepted, shown.done) == (False, False)
    assert shown.message == "1 table of shop would be copied again"
    assert (list(shown.tables), list(shown.pipelines)) == (["orders"], ["orders"])
    done = ask("ResetSource", source_id="shop", confirm=True, drop_publication=True, wait=WAIT)
    assert (done.accepted, done.done) == (True, True)
    assert done.details["asked"] is True
    with pytest.raises(UnknownPipeline, match="no source shed"):
        ask("ResetSource", source_id="shed", confirm=True)
    with pytest.raises(BadRequest, match="source_id is required"):
        ask("ResetSource", confirm=True)


def test_a_source_that_cannot_be_reset_is_refused(ask: Asking) -> None:
    with pytest.raises(SourceRefused, match="cannot be reset"):
        ask("ResetSource", source_id="shop", confirm=True)


# -- tables -------------------------------------------------------------------------------


@pytest.mark.meets("OAM-12")
def test_tables_are_listed_for_every_pipeline(ask: Asking) -> None:
    tables = ask("ListTables").tables
    assert [(each.pipeline, each.schema, each.table) for each in tables] == [
        ("both", "public", "orders"),
        ("both", "", "items"),
        ("items", "", "items"),
    ]
    orders, _, items = tables
    assert (orders.primary_key, orders.source_id, orders.source_type) == ("id", "shop", "test")
    assert (orders.target_type, orders.state, orders.rows) == ("indexed-memory", "live", 10)
    assert (orders.queryable, items.queryable) == (True, False)
    assert [each.kind for each in orders.indexes] == ["key", "lookup", "index"]
    assert [(each.name, each.type, each.key) for each in orders.columns] == [
        ("id", "int64", True),
        ("status", "text", False),
        ("version", "int64", False),
    ]
    assert (list(items.columns), list(items.indexes)) == ([], [])
    assert not orders.HasField("source_config")


@pytest.mark.meets("OAM-13")
def test_the_schema_of_a_table_is_that_of_its_source(ask: Asking) -> None:
    for fields in ({"schema": "public", "table": "orders"}, {"table": "public.orders"}):
        found = ask("GetTableSchema", **fields)
        assert found.source == "shop"
        key, status, _ = found.columns
        assert (key.ordinal_position, key.column_name) == (1, "id")
        assert (key.is_primary_key, key.primary_key_ordinal) == (True, 1)
        assert (status.is_primary_key, status.primary_key_ordinal) == (False, 0)
        assert (key.kind, status.kind, status.not_null) == ("int64", "text", False)
        assert status.data_type
    with pytest.raises(UnknownPipeline, match="has a table order"):
        ask("GetTableSchema", table="order")
    with pytest.raises(BadRequest, match="table is required"):
        ask("GetTableSchema", schema="public")


def test_the_schema_of_a_database_has_its_declared_types(shop: AtWork) -> None:
    columns = Asking(shop.engine)("GetTableSchema", table="orders").columns
    assert [(each.column_name, each.data_type) for each in columns[:3]] == [
        ("id", "INTEGER"),
        ("customer_id", "INTEGER"),
        ("status", "TEXT"),
    ]


# -- log, plan, configuration ---------------------------------------------------------------


def test_a_log_has_its_size_and_what_keeps_it(bench: Bench, ask: Asking) -> None:
    found, info = ask("GetLog", source_id="shop"), bench.engine.log_info("shop")
    assert (found.source_id, found.rows, found.flushes) == ("shop", 3, info.flushes)
    assert (found.entries, found.segments) == (info.entries, info.segments)
    assert (found.bytes, found.baselines) == (info.bytes, info.baselines)
    assert found.baseline_bytes == info.baseline_bytes > 0
    assert (found.floor.position, found.end.position) == (str(info.floor), str(info.end))
    assert found.end.lineage == "test/1"
    assert near(found.oldest)
    assert near(found.newest)
    assert found.HasField("cap") == (info.cap is not None)
    assert found.HasField("percent") == found.HasField("cap")
    assert [(pin.kind, pin.whose) for pin in found.pins] == [
        (pin.kind, pin.whose) for pin in info.pins
    ]
    with pytest.raises(UnknownPipeline, match="no source shed"):
        ask("GetLog", source_id="shed")


def test_a_plan_is_of_spark_and_refused_without_it(
    ask: Asking, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(NotRunning, match="without Spark"):
        ask("ExplainPipeline", pipeline_id="both")
    answer = {
        "pipeline": "both",
        "way": "direct",
        "jobs_only": "",
        "plan": "Project [id]",
        "jobs": 2,
        "tasks": 3,
        "last_job_ms": 1.5,
        "rows_in": 4,
        "rows_out": None,
        "bytes_in": 100,
        "text": "Pipeline both",
    }
    monkeypatch.setitem(ask.control.unary, "Explain", Verb(EmptyRequest, lambda _: dict(answer)))
    monkeypatch.setattr(Verb, "__call__", lambda verb, fields: verb.call(fields))
    found = ask("ExplainPipeline", pipeline_id="both")
    assert (found.way, found.jobs_only, found.plan) == ("direct", "", "Project [id]")
    assert (found.jobs, found.tasks, found.last_job_ms) == (2, 3, 1.5)
    assert (found.rows_in, found.bytes_in, found.text) == (4, 100, "Pipeline both")
    assert not found.HasField("rows_out")


def test_the_configuration_is_shown_with_where_each_value_comes_from(bench: Bench) -> None:
    ask = Asking(bench.engine)
    assert ask("GetConfiguration") == v1.GetConfigurationResponse()
    answer = {
        "config": "/etc/headrace.conf",
        "settings": [
            {"key": "sources.shop.type", "value": "test", "from": "headrace.conf:3"},
            {"key": "sources.shop.password", "value": "***", "from": "env PW"},
            {"key": "pipelines.both.target.indexes.a.fields[0]", "value": "id", "from": "x:1"},
            {"key": "log.cap", "value": None, "from": "default"},
            {"key": "log.keep_baselines", "value": True, "from": "default"},
        ],
    }
    ask.control.unary["Configuration"] = Verb(EmptyRequest, lambda _: answer)
    found = ask("GetConfiguration")
    assert list(found.files) == ["/etc/headrace.conf"]
    type_, password, _, cap, keep = found.settings
    assert (type_.key, type_.value.string_value, type_.origin, type_.default) == (
        "sources.shop.type",
        "test",
        "headrace.conf:3",
        False,
    )
    assert password.value.string_value == "***"
    assert (cap.origin, cap.default, cap.value.WhichOneof("kind")) == ("", True, "null_value")
    assert keep.value.bool_value
    orders = ask("ListTables").tables[0]
    assert dict(orders.source_config) == {"type": "test", "password": "***"}
    assert dict(orders.target_config) == {"indexes.a.fields[0]": "id"}
