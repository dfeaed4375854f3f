"""The metrics of an engine say what it did, and what it does now."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from headrace.engine import metrics
from headrace.engine.engine import Engine
from headrace.engine.health import CHECKS, PIPELINE_STATES, SOURCE_STATES
from headrace.engine.metrics import CATALOGUE, COMPAT_CATALOGUE
from headrace.errors import NoKey, SourceUnreachable, TargetError
from headrace.observe.events import Event
from headrace.observe.metrics import MetricKind, instrument_name, prometheus_text
from headrace.pipeline.definition import DeadLetters
from headrace.runtime import spark as spark_module
from headrace.runtime.model import TableState
from headrace.runtime.spark import SparkWatchdog
from headrace.targets.memory import memory
from headrace.testing.target import ScriptedTarget, TargetDisk
from tests.support.arrow_runner import ArrowRunner
from tests.support.promtext import Family, families
from tests.support.shop import PATIENCE, Market, await_seen


@pytest.fixture
def market(tmp_path: Path) -> Market:
    return Market(tmp_path)


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a slow machine a look may take a while, and does not hang."""
    monkeypatch.setattr(metrics, "COLLECT_SECONDS", PATIENCE)


class Scrape:
    """What Prometheus would read now."""

    def __init__(self, engine: Engine, *, compat: bool = False) -> None:
        self.families = families(prometheus_text(engine.metrics(compat=compat)))

    def __call__(self, name: str, **labels: str) -> float | None:
        """Return a sample of ours; None if there is none."""
        return self.of(f"headrace_{name}", **labels)

    def of(self, name: str, **labels: str) -> float | None:
        family = self.families.get(name)
        return None if family is None else family.value(**labels)

    def count(self, name: str, **labels: str) -> float:
        """Return how often a histogram was measured."""
        family = self.families[f"headrace_{name}"]
        key = (f"headrace_{name}_count", frozenset(labels.items()))
        return family.samples[key]

    def state(self, family: str) -> str:
        """Return the one state that has a 1."""
        found = [
            dict(labels)["state"]
            for (_, labels), value in self.families[f"headrace_{family}"].samples.items()
            if value
        ]
        assert len(found) == 1
        return found[0]


AT = {"pipeline": "orders", "source": "shop"}


def changes(scrape: Scrape) -> dict[str, float | None]:
    """Return the changes that were delivered, by action."""
    of = {"table": "orders", **AT}
    actions = ("insert", "update", "delete", "truncate")
    return {action: scrape("pipeline_changes_total", action=action, **of) for action in actions}


@pytest.mark.meets("ACC-15")
def test_the_work_of_a_pipeline_is_counted(market: Market) -> None:
    runner = ArrowRunner(fails=lambda pipeline, row: "bad" if row["id"] == 12 else None)
    pipeline = market.pipeline(memory(), name="orders", on_error=DeadLetters())
    with market.engine(pipeline, runner=runner) as engine:
        assert engine.await_ready(PATIENCE)
        before = Scrape(engine)
        assert before("pipeline_rows", table="orders", **AT) == 10
        assert before("pipeline_baseline_rows_total", table="orders", **AT) == 10
        assert before.count("pipeline_baseline_duration_seconds", **AT) == 1
        assert changes(before) == {"insert": 0, "update": 0, "delete": 0, "truncate": 0}
        market.put("orders", 11)
        market.put("orders", 12)
        market.put("orders", 1, version=1)
        market.source.emit_delete("orders", 2)
        assert await_seen(lambda: Scrape(engine)("pipeline_dead_letters", **AT) == 1)
        counted = {"insert": 2, "update": 1, "delete": 1, "truncate": 0}
        assert await_seen(lambda: changes(Scrape(engine)) == counted)
        after = Scrape(engine)
        assert after("pipeline_dead_letters_stored_total", **AT) == 1
        assert (after("pipeline_last_change_timestamp_seconds", **AT) or 0) > 0
        batches = after("pipeline_batches_total", **AT)
        assert batches
        assert after.count("pipeline_batch_duration_seconds", **AT) == batches
        assert after.count("pipeline_change_latency_seconds", **AT) == batches
        assert after("pipeline_rows", table="orders", **AT) == 10
        assert after("source_changes_total", source="shop") == 4
        assert after("source_flushes_total", source="shop") == engine.source_info("shop").flushes
        assert after("source_end_commit", source="shop") == market.source.position.commit
        assert after("log_bytes", source="shop")


def inserted(engine: Engine) -> bool:
    return changes(Scrape(engine))["insert"] == 1


def test_counters_begin_at_0_with_each_start_and_what_was_counted_before_is_kept(
    tmp_path: Path,
) -> None:
    """If a counter went back by a little after a crash, its rate would be that of all it has."""
    market, disk = Market(tmp_path), TargetDisk()
    for number in (11, 12):
        with market.engine(market.pipeline(ScriptedTarget(disk), name="orders")) as engine:
            assert engine.await_ready(PATIENCE)
            assert changes(Scrape(engine))["insert"] == 0
            market.put("orders", number)
            assert await_seen(partial(inserted, engine))
            assert engine.pipeline_info("orders").counts.inserts == number - 10


def test_failed_attempts_are_counted_and_an_error_is_gone_with_its_cause(market: Market) -> None:
    target = ScriptedTarget()
    with market.engine(market.pipeline(target, name="orders")) as engine:
        assert engine.await_ready(PATIENCE)
        assert Scrape(engine)("pipeline_errors_total", **AT) == 0
        target.reject(TargetError("Away", target="scripted"))
        target.reject(NoKey("No key any more", table="orders"))
        market.put("orders", 11)

        def failed() -> bool:
            engine._state.nudge()
            return Scrape(engine).state("pipeline_state") == "failed"

        assert await_seen(failed)
        red = Scrape(engine)
        assert red("pipeline_errors_total", **AT) == 2
        assert (red("pipeline_error", **AT), red("pipeline_ready", **AT)) == (1, 0)
        assert red("health", check="ready") == 0
        assert red("health", check="live") == 1
        engine.resume("orders")
        assert await_seen(lambda: Scrape(engine)("pipeline_ready", **AT) == 1)
        green = Scrape(engine)
        assert green.state("pipeline_state") == "streaming"
        assert green("pipeline_error", **AT) == 0
        assert green("pipeline_errors_total", **AT) == 2, "what happened is not forgotten"


def test_states_go_where_the_engine_goes(market: Market) -> None:
    with market.engine(market.pipeline(memory(), name="orders")) as engine:
        assert engine.await_ready(PATIENCE)
        assert Scrape(engine).state("source_state") == "streaming"
        engine.pause("orders")
        assert await_seen(lambda: Scrape(engine).state("pipeline_state") == "paused")
        engine.resume("orders")
        assert await_seen(lambda: Scrape(engine).state("pipeline_state") == "streaming")


def test_a_lag_that_is_not_known_is_absent_and_not_zero(market: Market) -> None:
    with market.engine(market.pipeline(memory(), name="orders")) as engine:
        assert engine.await_ready(PATIENCE)
        assert await_seen(lambda: Scrape(engine)("pipeline_lag_seconds", **AT) is not None)
        market.source.set_away(True)
        market.source.inject_error(SourceUnreachable("The server is away"))
        market.source.wake()
        assert await_seen(lambda: Scrape(engine)("source_connected", source="shop") == 0)
        away = Scrape(engine)
        assert away("pipeline_lag_seconds", **AT) is None
        assert away("pipeline_ready", **AT) == 0
        assert away("source_error", source="shop") == 1
        market.source.set_away(False)


def test_labels_are_names_of_the_configuration_and_words_of_fixed_sets(market: Market) -> None:
    target = ScriptedTarget()
    with market.engine(market.pipeline(target, name="orders")) as engine:
        assert engine.await_ready(PATIENCE)
        target.reject(NoKey("No key any more", table="orders"))
        market.put("orders", 4711, status="secret")
        assert await_seen(lambda: Scrape(engine).state("pipeline_state") == "failed")
        allowed = {
            "pipeline": {"orders"},
            "source": {"shop"},
            "table": {"orders"},
            "state": {*PIPELINE_STATES, *SOURCE_STATES, *map(str, TableState)},
            "check": set(CHECKS),
            "action": {"insert", "update", "delete", "truncate"},
        }
        text = prometheus_text(engine.metrics(compat=True))
        allowed["pipeline_id"], allowed["source_id"] = allowed["pipeline"], allowed["source"]
        for name, family in families(text).items():
            for _, labels in family.samples:
                for label, value in labels:
                    if label not in ("le", "version"):
                        assert value in allowed[label], name
        assert '"4711' not in text  # as a label; digits of a number may be these
        assert "secret" not in text
        assert "No key any more" not in text


class Mortal:
    """Spark that dies, and can be started again."""

    def __init__(self) -> None:
        self.runs, self.can_start = True, False

    @property
    def alive(self) -> bool:
        return self.runs

    def revive(self) -> bool:
        self.runs = self.can_start
        return self.runs


def test_spark_is_absent_if_it_is_not_used_and_its_death_is_counted(
    market: Market, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark_module, "_LOOK_SECONDS", 0.01)
    with market.engine(market.pipeline(memory(), name="orders")) as engine:
        assert engine.await_ready(PATIENCE)
        assert Scrape(engine)("spark_up") is None
        spark = Mortal()
        watchdog = engine._state.watchdog = SparkWatchdog(spark, engine._state.notify)
        assert Scrape(engine)("spark_up") == 1
        assert Scrape(engine)("spark_restarts_total") == 0
        spark.runs = False
        assert await_seen(lambda: Scrape(engine)("spark_up") == 0)
        assert (Scrape(engine)("spark_down_seconds") or 0) > 0
        assert Scrape(engine).state("pipeline_state") == "not_ready"
        spark.can_start = True
        assert await_seen(lambda: Scrape(engine)("spark_up") == 1)
        assert Scrape(engine)("spark_restarts_total") == 1
        watchdog.stop()


@pytest.fixture
def hung(market: Market, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    """An engine of which nothing can be read."""
    free = threading.Event()
    with market.engine(market.pipeline(memory(), name="orders")) as engine:
        assert engine.await_ready(PATIENCE)
        with monkeypatch.context() as patched:
            patched.setattr(metrics, "COLLECT_SECONDS", 0.05)
            patched.setattr(engine._state.recordings["shop"], "info", lambda: free.wait() and None)
            yield engine
        free.set()


def test_an_engine_that_hangs_is_down_in_its_metrics_and_not_waited_for(hung: Engine) -> None:
    found = Scrape(hung)
    assert (found("up"), found("health", check="ready")) == (0, 0)
    assert "headrace_pipeline_ready" not in found.families, "of before"


def test_before_the_start_is_over_nothing_is_claimed_of_pipelines(market: Market) -> None:
    engine = market.engine(market.pipeline(memory(), name="orders"))
    found = Scrape(engine)
    assert found("up") == 1
    assert [found("health", check=check) for check in CHECKS] == [0, 0, 0]
    assert "headrace_pipeline_state" not in found.families


# -- names ------------------------------------------------------------------------------

LAREDO = """
    laredo_pipeline_state laredo_source_lag_bytes laredo_source_lag_seconds
    laredo_baseline_rows_total laredo_baseline_rows_loaded_total laredo_baseline_duration_seconds
    laredo_change_apply_duration_seconds laredo_change_errors_total laredo_dead_letters_total
    laredo_pipeline_row_count laredo_pipeline_errors_total laredo_pipeline_dead_letters_total
    laredo_source_connected laredo_changes_received_total laredo_changes_applied_total
    laredo_pipeline_inserts_total laredo_pipeline_updates_total laredo_pipeline_deletes_total
    laredo_pipeline_truncates_total laredo_rows_expired_total laredo_pipeline_rows_expired_total
"""


OTHERS = ("table", "state", "check", "action", "observer", "version")


def test_every_metric_keeps_the_rules_of_prometheus() -> None:
    names = [metric.name for metric in CATALOGUE]
    assert len(set(names)) == len(names)
    for metric in CATALOGUE:
        assert re.fullmatch(r"headrace_[a-z]+(_[a-z]+)*", metric.name)
        assert metric.name.endswith("_total") == (metric.kind == MetricKind.COUNTER), metric.name
        unit = metric.name.removesuffix("_total").rpartition("_")[2]
        assert metric.unit == (unit if unit in ("seconds", "bytes") else ""), metric.name
        assert set(metric.labels) <= {"pipeline", "source", *OTHERS}
        assert metric.help.endswith("."), metric.name
    instruments = [instrument_name(name) for name in names]
    assert len(set(instruments)) == len(instruments)


def test_the_names_of_laredo_are_those_and_no_others() -> None:
    assert sorted(metric.name for metric in COMPAT_CATALOGUE) == sorted(LAREDO.split())


@pytest.mark.meets("ACC-15")
def test_laredos_names_have_the_same_values_with_its_labels(market: Market) -> None:
    two = Market(market.data.parent / "two", ["orders", "items"])
    pipeline = two.pipeline(memory(), "orders", "items", name="orders")
    with two.engine(pipeline) as engine:
        assert engine.await_ready(PATIENCE)
        found = Scrape(engine, compat=True)
        assert found.of("laredo_pipeline_state", pipeline="orders") == 2
        assert found.of("laredo_pipeline_row_count", pipeline_id="orders", table="items") == 10
        assert found.of("laredo_baseline_rows_loaded_total", pipeline="orders") == 20
        assert found.of("laredo_source_connected", source_id="shop") == 1
        assert "laredo_pipeline_state" not in Scrape(engine).families
        two.put("items", 11)
        two.put("orders", 12)

        def both(name: str, **labels: str) -> bool:
            return Scrape(engine, compat=True).of(name, **labels) == 2

        assert await_seen(lambda: both("laredo_pipeline_inserts_total", pipeline_id="orders"))
        assert both("laredo_changes_applied_total", pipeline="orders", action="insert")
        found = Scrape(engine, compat=True)
        assert found.of("laredo_pipeline_updates_total", pipeline_id="orders") == 0
        engine.pause("orders")
        assert await_seen(
            lambda: Scrape(engine, compat=True).of("laredo_pipeline_state", pipeline="orders") == 3
        )


def test_events_of_observers_are_counted_by_their_name(market: Market) -> None:
    class Refusing:
        def on_event(self, event: Event) -> None:
            raise ValueError("no")

    with market.engine(market.pipeline(memory(), name="orders")) as engine:
        assert engine.await_ready(PATIENCE)
        engine.observe(Refusing(), "mine")
        engine.pause()
        assert await_seen(
            lambda: (Scrape(engine)("observer_errors_total", observer="mine") or 0) > 0
        )
        found = Scrape(engine)
        assert found("observer_events_dropped_total", observer="mine") == 0


@pytest.mark.meets("ACC-15")
def test_opentelemetry_reads_an_engine(market: Market) -> None:
    reader = InMemoryMetricReader()
    with market.engine(market.pipeline(memory(), name="orders")) as engine:
        assert engine.await_ready(PATIENCE)
        engine.export_metrics(MeterProvider([reader]))
        data = reader.get_metrics_data()
        assert data is not None
        found = {
            metric.name: {
                tuple((point.attributes or {}).items()): point.value  # type: ignore[union-attr]
                for point in metric.data.data_points
            }
            for resource in data.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }
        at = (("pipeline", "orders"), ("source", "shop"))
        assert found["headrace.pipeline.rows"] == {(*at, ("table", "orders")): 10}
        assert found["headrace.pipeline.ready"] == {at: 1}
        assert {each for each in found if not each.startswith("headrace.")} == set()


def test_a_family_is_one_kind_everywhere(market: Market) -> None:
    """The catalogue, which documents and dashboards are checked against, is what is exported."""
    with market.engine(market.pipeline(memory(), name="orders")) as engine:
        assert engine.await_ready(PATIENCE)
        exported: dict[str, Family] = Scrape(engine, compat=True).families
        known = {metric.name: metric for metric in (*CATALOGUE, *COMPAT_CATALOGUE)}
        assert exported.keys() <= known.keys()
        for name, family in exported.items():
            assert (family.kind, family.help) == (str(known[name].kind), known[name].help)
            for _, labels in family.samples:
                assert {label for label, _ in labels} - {"le"} == set(known[name].labels)
