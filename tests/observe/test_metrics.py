"""Metrics as text for Prometheus, as JSON, and as instruments of OpenTelemetry."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from headrace import extras
from headrace.errors import NotInstalled
from headrace.observe.metrics import (
    Distribution,
    Histogram,
    Metric,
    MetricKind,
    Sample,
    json_fields,
    offer,
    prometheus_text,
)
from tests.support.promtext import families
from tests.support.tiers import examples


def gauge(*samples: tuple[tuple[str, ...], float], labels: tuple[str, ...] = ()) -> Metric:
    made = tuple(Sample(at, value) for at, value in samples)
    return Metric("headrace_pipeline_lag_seconds", MetricKind.GAUGE, "A lag.", labels, "", made)


def test_help_and_type_come_once_before_the_samples() -> None:
    metric = gauge((("a",), 1.0), (("b",), 0.25), labels=("pipeline",))
    assert prometheus_text([metric]).splitlines() == [
        "# HELP headrace_pipeline_lag_seconds A lag.",
        "# TYPE headrace_pipeline_lag_seconds gauge",
        'headrace_pipeline_lag_seconds{pipeline="a"} 1',
        'headrace_pipeline_lag_seconds{pipeline="b"} 0.25',
    ]


def test_a_metric_without_a_sample_is_left_out() -> None:
    assert prometheus_text([gauge()]) == ""


@examples(100)
@given(st.text(), st.text(), st.floats(allow_nan=False) | st.integers(-(2**53), 2**53))
def test_whatever_a_label_or_a_help_holds_is_read_back(label: str, help: str, value: float) -> None:
    metric = Metric("a_b", MetricKind.GAUGE, help, ("l",), "", (Sample((label,), value),))
    found = families(prometheus_text([metric]))["a_b"]
    assert (found.help, found.value(l=label)) == (help, value)


@examples(100)
@given(st.lists(st.floats(-1, 100)))
def test_a_histogram_counts_each_measurement_in_its_bucket(measured: list[float]) -> None:
    histogram = Histogram((0.1, 1.0, 10.0))
    for value in measured:
        histogram.observe(value)
    found = histogram.value()
    assert found.count == len(measured)
    assert found.sum == pytest.approx(sum(max(0.0, value) for value in measured))
    assert dict(found.cumulative()) == {
        bound: sum(value <= bound for value in measured) for bound in (0.1, 1.0, 10.0, math.inf)
    }


def test_a_histogram_is_cumulative_in_text_with_sum_and_count() -> None:
    value = Distribution((0.5, 2.0), (3, 0, 1), 7.25)
    sample = (Sample(("p",), value),)
    metric = Metric("a_seconds", MetricKind.HISTOGRAM, "A.", ("pipeline",), "seconds", sample)
    found = families(prometheus_text([metric]))["a_seconds"].samples
    named = {(name, dict(labels).get("le")): number for (name, labels), number in found.items()}
    assert named == {
        ("a_seconds_bucket", "0.5"): 3,
        ("a_seconds_bucket", "2"): 3,
        ("a_seconds_bucket", "+Inf"): 4,
        ("a_seconds_sum", None): 7.25,
        ("a_seconds_count", None): 4,
    }
    fields = json.loads(json.dumps(json_fields(metric), allow_nan=False))["samples"][0]
    assert fields["labels"] == {"pipeline": "p"}
    assert fields["buckets"][-1] == {"le": None, "count": 4}
    assert (fields["sum"], fields["count"]) == (7.25, 4)


# -- OpenTelemetry ----------------------------------------------------------------------


def exported(reader: InMemoryMetricReader) -> dict[str, dict[str, Any]]:
    """Return unit, kind and points of every instrument."""
    data = reader.get_metrics_data()
    return {
        metric.name: {
            "unit": metric.unit,
            "monotonic": getattr(metric.data, "is_monotonic", False),
            "points": {
                tuple((point.attributes or {}).values()): point.value  # type: ignore[union-attr]
                for point in metric.data.data_points
            },
        }
        for resource in (data.resource_metrics if data else ())
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }


class Read:
    """What an instrument reads, counted."""

    def __init__(self, metrics: Sequence[Metric]) -> None:
        self.metrics = metrics
        self.count = 0

    def __call__(self) -> Sequence[Metric]:
        self.count += 1
        return self.metrics


def test_opentelemetry_reads_the_same_values_under_names_with_dots() -> None:
    one = Metric("headrace_log_bytes", MetricKind.GAUGE, "A.", ("source",), "bytes")
    two = Metric("headrace_pipeline_errors_total", MetricKind.COUNTER, "B.", ("pipeline",))
    three = Metric(
        "headrace_pipeline_batch_duration_seconds",
        MetricKind.HISTOGRAM,
        "C.",
        ("pipeline",),
        "seconds",
    )
    samples: dict[str, float | Distribution] = {
        one.name: 7.0,
        two.name: 3,
        three.name: Distribution((1.0,), (2, 1), 4.5),
    }
    read = Read(
        [
            Metric(m.name, m.kind, m.help, m.labels, m.unit, (Sample(("x",), samples[m.name]),))
            for m in (one, two, three)
        ]
    )
    now = [0.0]
    reader = InMemoryMetricReader()
    offer(MeterProvider([reader]), [one, two, three], read, lambda: now[0])
    found = exported(reader)
    at = {("x",): 7.0}
    assert found["headrace.log.bytes"] == {"unit": "By", "monotonic": False, "points": at}
    assert found["headrace.pipeline.errors"]["monotonic"]
    assert found["headrace.pipeline.errors"]["points"] == {("x",): 3}
    duration = "headrace.pipeline.batch_duration_seconds"
    assert found[f"{duration}.count"]["points"] == {("x",): 3}
    assert found[f"{duration}.sum"]["points"] == {("x",): 4.5}
    assert found[f"{duration}.sum"]["unit"] == "s"
    assert read.count == 1, "one look at the engine for all instruments"
    now[0] += 1
    exported(reader)
    assert read.count == 2


def test_a_metric_without_a_sample_has_no_point() -> None:
    reader = InMemoryMetricReader()
    offer(MeterProvider([reader]), [gauge()], Read([gauge()]))
    assert all(not each["points"] for each in exported(reader).values())


def test_without_opentelemetry_the_error_names_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(extras.MODULES, "otel", ("no_such_module",))
    with pytest.raises(NotInstalled, match=r"opentelemetry|no_such_module") as caught:
        offer(MeterProvider(), [], list)
    assert "headrace-core[otel]" in caught.value.remedy
