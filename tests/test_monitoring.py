"""The dashboard, the alerts and the pages about monitoring name only what the code exports."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

import pytest
import yaml

from headrace.engine.health import CHECKS, CONDITIONS, PIPELINE_STATES, SOURCE_STATES
from headrace.engine.metrics import CATALOGUE, COMPAT_CATALOGUE
from headrace.errors import HeadraceError, all_errors
from headrace.observe.metrics import Metric, MetricKind
from tests.support.promql import Expression, Selector
from tests.support.sources import ROOT, all_of, text

OPERATE = ROOT / "examples" / "operate"
DASHBOARD = OPERATE / "grafana" / "headrace.json"
RULES = OPERATE / "prometheus" / "headrace.rules.yml"
MONITOR = ROOT / "docs" / "monitor.md"
TROUBLESHOOT = ROOT / "docs" / "guides" / "troubleshoot.md"

METRICS = {metric.name: metric for metric in CATALOGUE}
OF_OTHERS = {"node_textfile_mtime_seconds": ("file",)}
"""Metrics of the node exporter, with the labels that are used."""

WORDS = {
    "state": {*PIPELINE_STATES, *SOURCE_STATES, "live"},
    "check": {*CHECKS},
}

ALERTS = """
    HeadraceDown HeadraceMetricsOld HeadraceNotLive HeadraceNotReady HeadracePipelineFailed
    HeadracePipelineErrors HeadraceLag HeadraceBatchHangs HeadraceSourceSilent HeadraceSourceAway
    HeadraceSourceBehind HeadraceSourceRoomLow HeadraceSourceRoomFull HeadraceLogFilling
    HeadraceLogFull HeadraceDeadLetters HeadraceRowsGivenUp HeadraceTableLeftOut HeadraceSparkDown
    HeadraceSparkRestarts HeadraceRecorderRestarts HeadraceNotice
"""


class Query(NamedTuple):
    """An expression of the dashboard, and its legend."""

    panel: str
    expression: str
    legend: str


@cache
def queries() -> list[Query]:
    return [
        Query(panel["title"], target["expr"], target["legendFormat"])
        for panel in json.loads(text(DASHBOARD))["panels"]
        for target in panel.get("targets", ())
    ]


@cache
def alerts() -> dict[str, dict[str, Any]]:
    [group] = yaml.safe_load(text(RULES))["groups"]
    found = {rule["alert"]: rule for rule in group["rules"]}
    assert len(found) == len(group["rules"]), "an alert twice"
    return found


def exported(selector: Selector) -> tuple[tuple[str, ...], Metric | None]:
    """Return the labels that the metric of a selector has, and the metric if it is ours."""
    if selector.metric in OF_OTHERS:
        return OF_OTHERS[selector.metric], None
    for suffix in ("", "_bucket", "_sum", "_count"):
        metric = METRICS.get(selector.metric.removesuffix(suffix))
        if (
            metric
            and selector.metric.endswith(suffix)
            and (metric.kind == MetricKind.HISTOGRAM) == bool(suffix)
        ):
            return (*metric.labels, *(["le"] if suffix == "_bucket" else [])), metric
    raise KeyError(selector.metric)


def mistakes(expression: str, shown: str) -> Iterator[str]:
    """Yield what is wrong with an expression, or with labels that are shown of its result."""
    parsed = Expression(expression)
    labels: set[str] = set()
    assert parsed.selectors
    for selector in parsed.selectors:
        try:
            has, metric = exported(selector)
        except KeyError:
            yield f"there is no metric {selector.metric}"
            continue
        labels |= set(has)
        for label, value in selector.matchers.items():
            if label not in has:
                yield f"{selector.metric} has no label {label}"
            elif metric and label in WORDS and value not in WORDS[label]:
                yield f"{label} is never {value}"
        if metric and metric.kind == MetricKind.COUNTER and not selector.ranged:
            yield f"the value of {selector.metric} begins again with each start: use its rate"
    for label in re.findall(r"\{\{ ?(?:\$labels\.)?(\w+) ?\}\}", shown):
        if label not in (parsed.grouped or labels):
            yield f"no label {label} is left"


def test_the_dashboard_asks_for_what_there_is() -> None:
    assert len(queries()) >= 20
    wrong = {each.panel: [*mistakes(each.expression, each.legend)] for each in queries()}
    assert {panel: found for panel, found in wrong.items() if found} == {}


def test_the_panels_of_the_dashboard_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    panels = json.loads(text(DASHBOARD))["panels"]
    for panel in panels:
        at = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert not cells & taken, panel["title"]
        assert all(x < 24 for x, _ in cells), panel["title"]
        taken |= cells
    assert len({panel["id"] for panel in panels}) == len(panels)


def test_the_variables_of_the_dashboard_are_labels() -> None:
    variables = json.loads(text(DASHBOARD))["templating"]["list"]
    used = set(re.findall(r"\$\{?(\w+)", text(DASHBOARD))) - {"__all"}
    assert used == {each["name"] for each in variables}
    for each in variables:
        if each["type"] == "query":
            found = re.fullmatch(r"label_values\((\w+), (\w+)\)", each["definition"])
            assert found
            assert found[2] in METRICS[found[1]].labels


def test_alerts_ask_for_what_there_is() -> None:
    wrong = {
        name: found
        for name, rule in alerts().items()
        if (found := [*mistakes(rule["expr"], rule["annotations"]["summary"])])
    }
    assert wrong == {}


def test_there_is_an_alert_for_each_kind_of_trouble_and_it_is_on_the_page() -> None:
    assert sorted(alerts()) == sorted(ALERTS.split())
    page = text(MONITOR)
    assert [name for name in alerts() if f"`{name}`" not in page] == []


def test_an_alert_says_how_bad_it_is_and_what_to_read() -> None:
    headings = re.findall(r"^##+ (.+)$", text(TROUBLESHOOT), re.M)
    anchors = {re.sub(r"[^\w\- ]", "", each.lower()).replace(" ", "-") for each in headings}
    for name, rule in alerts().items():
        assert rule["labels"]["severity"] in ("info", "warning", "critical"), name
        assert re.fullmatch(r"\d+m", rule.get("for", "0m")), name
        page, _, anchor = rule["annotations"]["runbook"].partition("#")
        assert (page, anchor in anchors) == ("docs/guides/troubleshoot.md", True), name


@pytest.mark.parametrize(
    "expression",
    [
        "headrace_up ==",
        "rate(headrace_pipeline_errors_total)",
        'headrace_up{check="live"',
        "headrace_up{check=live}",
        "rate(headrace_up[5])",
        "headrace_up)",
        "sum by pipeline (headrace_up)",
    ],
)
def test_an_expression_with_a_typing_error_is_found(expression: str) -> None:
    with pytest.raises(ValueError, match=r"expected|unexpected|range|duration|text|operator"):
        Expression(expression)


@pytest.mark.parametrize(
    ("expression", "shown"),
    [
        ("headrace_pipeline_lags_seconds > 1", ""),
        ('headrace_pipeline_lag_seconds{table="x"}', ""),
        ('headrace_pipeline_state{state="broken"} == 1', ""),
        ("headrace_pipeline_errors_total > 1", ""),
        ("headrace_pipeline_batch_duration_seconds > 1", ""),
        ("headrace_source_connected == 0", "{{ $labels.pipeline }}"),
        ("sum by (le) (rate(headrace_pipeline_batch_duration_seconds_bucket[5m]))", "{{pipeline}}"),
    ],
)
def test_an_expression_that_asks_for_what_is_not_there_is_found(
    expression: str, shown: str
) -> None:
    assert [*mistakes(expression, shown)]


# -- pages ------------------------------------------------------------------------------


def test_every_metric_is_on_the_page() -> None:
    page = text(MONITOR)
    missing = [m.name for m in (*CATALOGUE, *COMPAT_CATALOGUE) if f"| `{m.name}` |" not in page]
    assert missing == [], "run: make reference"


NOT_SHOWN = {
    "of configurations": {"config."},
    "of commands and their programs": {
        *("control.bad_data_directory", "control.bad_name", "control.bad_request"),
        *("control.locked", "control.no_answer", "control.no_engine", "control.not_installed"),
        *("control.not_running", "control.outdated", "control.unknown_pipeline"),
        "pipeline.cannot_replay",
    },
    "of the library for SQLite": {
        *("capture.expired", "capture.lease_lost", "capture.lease_taken"),
        *("capture.records_refused", "capture.run_twice", "capture.running"),
    },
    "of readers of tables and logs": {
        *("tables.fell_behind", "tables.not_unique", "tables.unknown_index"),
        *("changelog.bad_position", "changelog.reader_taken", "pipeline.truncated"),
    },
    "of the start of Spark, which ends the start": {
        *("pipeline.bad_cluster", "pipeline.cannot_pack", "pipeline.no_java"),
        "pipeline.spark_failed",
    },
    "of callers on the network": {
        *("control.bad_address", "control.insecure_address", "control.not_trusted"),
        *(
            "control.unreachable",
            "control.forbidden",
            "control.not_available",
            "control.not_confirmed",
        ),
        *("serving.failed", "serving.limit_reached", "serving.request_timeout"),
        *("serving.unauthenticated", "tables.too_many_rows"),
    },
    "a bug": {HeadraceError.code},
}
"""Codes that a status does not show, with the reason."""


def test_every_code_that_a_status_can_show_is_on_the_page_about_trouble() -> None:
    never = tuple(code for codes in NOT_SHOWN.values() for code in codes)
    page = text(TROUBLESHOOT).split("## Errors in the status")[1].split("\n## ")[0]
    shown = [
        error.code
        for error in all_errors()
        if error.code != "" and not error.code.startswith(never)
    ]
    missing = [code for code in shown if f"`{code}`" not in page]
    assert missing == [], all_of(missing)
    strange = set(re.findall(r"^\| `(\w+\.\w+)`", page, re.M)) - set(shown)
    assert strange == set(), "codes that are not there, or never shown"


def test_every_condition_and_every_state_is_on_the_page_about_trouble() -> None:
    page = text(TROUBLESHOOT)
    assert [code for code in CONDITIONS if f"`{code}`" not in page] == []
    states = {state.replace("_", " ") for state in PIPELINE_STATES} - {"streaming"}
    assert [state for state in states if f"`{state}`" not in page] == []
    sources = set(SOURCE_STATES) - {"streaming", "closed"}
    assert [s for s in sources if f"source … is {s}" not in page and s != "failed"] == []


NAMES = ROOT / "docs" / "reference" / "names.md"

OF_LAREDO = """
    pipeline_state pipeline_buffer_depth pipeline_buffer_capacity source_lag_bytes
    source_lag_seconds baseline_rows_total validation_target_row_count changes_received_total
    changes_applied_total change_errors_total dead_letters_total rows_expired_total
    snapshots_total source_rebaseline_total validation_runs_total baseline_rows_loaded_total
    change_apply_duration_seconds baseline_duration_seconds snapshot_duration_seconds
    pipeline_row_count pipeline_inserts_total pipeline_updates_total pipeline_deletes_total
    pipeline_truncates_total pipeline_errors_total pipeline_dead_letters_total
    pipeline_rows_expired_total source_connected fanout_connected_clients fanout_journal_entries
    fanout_journal_oldest_age_seconds fanout_snapshots_total fanout_max_clients
    snapshots_created_total snapshots_failed_total snapshots_restored_total
"""
"""The metrics that Laredo exports, or has in its documentation."""


@pytest.mark.meets("ACC-15")
def test_every_metric_of_laredo_is_among_the_names_with_ours_or_a_reason() -> None:
    section = text(NAMES).split("\n## Metrics and health\n")[1].split("\n## ")[0]
    rows = {
        name: here
        for there, here in re.findall(r"^\| (`laredo_[^|]+) \| ([^|]+) \|", section, re.M)
        for name in re.findall(r"`(\w+)`", there)
    }
    assert sorted(rows) == sorted(f"laredo_{name}" for name in OF_LAREDO.split())
    ours = {name: found[1] for name, here in rows.items() if (found := re.match(r"`(\w+)`", here))}
    assert set(ours.values()) <= METRICS.keys()
    assert all(re.match(r"(later|none): \S", rows[name]) for name in rows.keys() - ours.keys())
    compat = {metric.name: metric.help.partition("; see ")[2][:-1] for metric in COMPAT_CATALOGUE}
    assert {name: ours.get(name) for name in compat} == compat
