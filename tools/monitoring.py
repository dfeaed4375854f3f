"""
What is made from the list of metrics: the table on the page about monitoring, and the dashboard.

A dashboard of Grafana is a thousand lines of JSON, of which only titles and expressions matter.
They are here; `make reference` writes the rest.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.engine.metrics import CATALOGUE, COMPAT_CATALOGUE
from headrace.observe.metrics import Metric

BEGIN, END = "<!-- metrics: made by `make reference` -->", "<!-- metrics: end -->"
"""Around what is made on a page that is otherwise written by hand."""

P = 'pipeline=~"$pipeline"'
S = 'source=~"$source"'


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel: what it shows, and by which expressions, each with its legend."""

    title: str
    about: str
    queries: Sequence[tuple[str, str]]
    unit: str = "short"
    kind: str = "timeseries"
    width: int = 8
    red_below: float | None = None
    """A stat of 0 or 1 that is red below this value."""


PANELS: dict[str, Sequence[Panel]] = {
    "Health": (
        Panel(
            "Live, ready, startup",
            "The three checks of headrace health; 1 is green.",
            [("headrace_health", "{{check}}")],
            kind="stat",
            width=6,
            red_below=1,
        ),
        Panel(
            "Pipelines ready",
            "1 if everything that was committed not long ago is applied.",
            [(f"headrace_pipeline_ready{{{P}}}", "{{pipeline}}")],
            kind="stat",
            width=6,
            red_below=1,
        ),
        Panel(
            "Sources connected",
            "1 while something was received within 20 s.",
            [(f"headrace_source_connected{{{S}}}", "{{source}}")],
            kind="stat",
            width=6,
            red_below=1,
        ),
        Panel(
            "Spark",
            "1 if Spark runs and answers.",
            [("headrace_spark_up", "Spark")],
            kind="stat",
            width=6,
            red_below=1,
        ),
        Panel(
            "State of pipelines",
            "The state that each pipeline is in.",
            [(f"headrace_pipeline_state{{{P}}} == 1", "{{pipeline}}: {{state}}")],
            width=12,
        ),
        Panel(
            "State of sources",
            "The state that each source is in.",
            [(f"headrace_source_state{{{S}}} == 1", "{{source}}: {{state}}")],
            width=12,
        ),
    ),
    "How current": (
        Panel(
            "Lag of pipelines",
            "Age of the oldest change that readers do not see; a gap where it is not known.",
            [(f"headrace_pipeline_lag_seconds{{{P}}}", "{{pipeline}}")],
            "s",
        ),
        Panel(
            "From commit to target, 95 %",
            "The oldest change of each batch.",
            [
                (
                    "histogram_quantile(0.95, sum by (pipeline, le)"
                    f" (rate(headrace_pipeline_change_latency_seconds_bucket{{{P}}}[5m])))",
                    "{{pipeline}}",
                )
            ],
            "s",
        ),
        Panel(
            "Everything read that was committed before",
            "How far reading is behind the source.",
            [(f"headrace_source_current_age_seconds{{{S}}}", "{{source}}")],
            "s",
        ),
        Panel(
            "Not read yet",
            "Bytes of the source's own log.",
            [(f"headrace_source_lag_bytes{{{S}}}", "{{source}}")],
            "bytes",
        ),
        Panel(
            "Silence of the server",
            "How long nothing was received.",
            [(f"headrace_source_silence_seconds{{{S}}}", "{{source}}")],
            "s",
        ),
        Panel(
            "Commits acknowledged and not",
            "How far the acknowledged position is from the end of the log, in commit numbers.",
            [
                (
                    f"headrace_source_end_commit{{{S}}}"
                    f" - headrace_source_acknowledged_commit{{{S}}}",
                    "{{source}}",
                )
            ],
        ),
    ),
    "Work": (
        Panel(
            "Changes delivered",
            "Changes per second.",
            [
                (
                    f"sum by (pipeline, action) (rate(headrace_pipeline_changes_total{{{P}}}[5m]))",
                    "{{pipeline}} {{action}}",
                )
            ],
            "cps",
        ),
        Panel(
            "Changes captured",
            "Changes per second.",
            [(f"rate(headrace_source_changes_total{{{S}}}[5m])", "{{source}}")],
            "cps",
        ),
        Panel(
            "Duration of batches, 95 %",
            "From reading the log to the end of the target's write.",
            [
                (
                    "histogram_quantile(0.95, sum by (pipeline, le)"
                    f" (rate(headrace_pipeline_batch_duration_seconds_bucket{{{P}}}[5m])))",
                    "{{pipeline}}",
                )
            ],
            "s",
        ),
        Panel(
            "Rows at targets",
            "Rows that readers see.",
            [(f"headrace_pipeline_rows{{{P}}}", "{{pipeline}} {{table}}")],
        ),
        Panel(
            "Batch in progress",
            "For how long it has been applied.",
            [(f"headrace_pipeline_batch_running_seconds{{{P}}}", "{{pipeline}}")],
            "s",
        ),
        Panel(
            "Copies in progress",
            "Rows copied so far.",
            [(f"headrace_source_copy_rows{{{S}}}", "{{source}} {{table}}")],
        ),
    ),
    "Trouble": (
        Panel(
            "Failed attempts",
            "In 5 minutes, retries included.",
            [(f"increase(headrace_pipeline_errors_total{{{P}}}[5m])", "{{pipeline}}")],
        ),
        Panel(
            "Dead letters",
            "Those that are not superseded.",
            [(f"headrace_pipeline_dead_letters{{{P}}}", "{{pipeline}}")],
        ),
        Panel(
            "Restarts",
            "Of recorders and of Spark, in an hour.",
            [
                (f"increase(headrace_source_recorder_restarts_total{{{S}}}[1h])", "{{source}}"),
                ("increase(headrace_spark_restarts_total[1h])", "Spark"),
            ],
        ),
        Panel(
            "Room at the source",
            "What the source retains for Headrace, of its limit.",
            [
                (
                    f"headrace_source_room_used_bytes{{{S}}}"
                    f" / headrace_source_room_limit_bytes{{{S}}}",
                    "{{source}}",
                )
            ],
            "percentunit",
        ),
        Panel(
            "Size of the log",
            "Of its limit: at 90 % reading stops.",
            [(f"headrace_log_bytes{{{S}}} / headrace_log_limit_bytes{{{S}}}", "{{source}}")],
            "percentunit",
        ),
        Panel(
            "Notices",
            "Missing changes, tables that are copied again, and so on, in an hour.",
            [(f"increase(headrace_source_notices_total{{{S}}}[1h])", "{{source}}")],
        ),
    ),
}
"""The panels of each row."""

_DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
_HEIGHT = 7
_COLUMNS = 24


def dashboard() -> str:
    """Return the dashboard for Grafana."""
    return json.dumps(_dashboard(), indent=2) + "\n"


def _dashboard() -> dict[str, Any]:
    return {
        "title": "Headrace",
        "uid": "headrace",
        "description": "An engine: health, how current it is, its work and its trouble.",
        "tags": ["headrace"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {
            "list": [
                {"name": "datasource", "type": "datasource", "query": "prometheus"},
                _variable("pipeline", "headrace_pipeline_ready"),
                _variable("source", "headrace_source_connected"),
            ]
        },
        "panels": list(_panels()),
    }


def _variable(label: str, metric: str) -> dict[str, Any]:
    query = f"label_values({metric}, {label})"
    return {
        "name": label,
        "type": "query",
        "datasource": _DATASOURCE,
        "definition": query,
        "query": {"query": query, "refId": label},
        "refresh": 2,
        "multi": True,
        "includeAll": True,
        "current": {"text": "All", "value": "$__all"},
    }


def _panels() -> Iterator[dict[str, Any]]:
    number, top = 0, 0
    for row, panels in PANELS.items():
        number += 1
        place = {"x": 0, "y": top, "w": _COLUMNS, "h": 1}
        yield {"id": number, "type": "row", "title": row, "collapsed": False, "gridPos": place}
        left, top = 0, top + 1
        for panel in panels:
            number += 1
            if left + panel.width > _COLUMNS:
                left, top = 0, top + _HEIGHT
            place = {"x": left, "y": top, "w": panel.width, "h": _HEIGHT}
            yield _panel(number, panel, place)
            left += panel.width
        top += _HEIGHT


def _panel(number: int, panel: Panel, place: dict[str, int]) -> dict[str, Any]:
    defaults: dict[str, Any] = {"unit": panel.unit, "min": 0}
    if panel.red_below is not None:
        steps = [{"color": "red", "value": None}, {"color": "green", "value": panel.red_below}]
        defaults["thresholds"] = {"mode": "absolute", "steps": steps}
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.about,
        "datasource": _DATASOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "targets": [
            {
                "refId": chr(ord("A") + at),
                "datasource": _DATASOURCE,
                "expr": expression,
                "legendFormat": legend,
            }
            for at, (expression, legend) in enumerate(panel.queries)
        ],
    }


def table() -> Iterator[str]:
    """Yield the lines of the table of all metrics."""
    yield from _rows(CATALOGUE)
    yield ""
    yield "With `--compat`, under the names of Laredo as well:"
    yield ""
    yield from _rows(COMPAT_CATALOGUE)


def _rows(metrics: Sequence[Metric]) -> Iterator[str]:
    yield "| metric | type | labels | meaning |"
    yield "|---|---|---|---|"
    for metric in metrics:
        labels = " ".join(f"`{label}`" for label in metric.labels)
        yield f"| `{metric.name}` | {metric.kind} | {labels} | {metric.help} |"


def with_table(page: str) -> str:
    """Return a page with the current table between its two marks."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n" + "\n".join(table()) + f"\n\n{END}{after}"
