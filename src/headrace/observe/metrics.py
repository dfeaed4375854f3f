"""
Metrics as values: what is measured, and how monitoring systems read it.

A `Metric` is a family of samples at one moment: name, kind, help, unit, labels. `engine/metrics.py`
has the list of all of them and computes them from an engine's status. Here are the values, the
`Histogram` that a running pipeline keeps, and the two ways out:

* `prometheus_text` renders them in Prometheus' text format, version 0.0.4;
* `offer` registers them as observable instruments with a meter provider of OpenTelemetry. That one
  needs the extra `otel`; nothing else here needs more than Python.

The rules of both hold for every metric: the base units are seconds and bytes, a counter's name ends
in `_total`, and a label has few values, all known from the configuration.
"""

from __future__ import annotations

import math
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from headrace.extras import require

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation


# --- values ---------------------------------------------------------------------------------------


class MetricKind(StrEnum):
    """How the samples of a metric develop."""

    GAUGE = "gauge"
    """A value that may go up and down."""

    COUNTER = "counter"
    """A count that only grows, and begins at 0 when the engine starts."""

    HISTOGRAM = "histogram"
    """How often something was measured, by its size."""


@dataclass(frozen=True, slots=True)
class Distribution:
    """What a histogram has measured so far."""

    bounds: tuple[float, ...]
    """The upper bound of each bucket, the lowest first; a last one for all above is implied."""

    counts: tuple[int, ...]
    """Measurements in each bucket: one more than there are bounds."""

    sum: float

    @property
    def count(self) -> int:
        """Return how many there were."""
        return sum(self.counts)

    def cumulative(self) -> Iterator[tuple[float, int]]:
        """Yield each bound, infinity last, with the count of all measurements up to it."""
        yield from zip((*self.bounds, math.inf), accumulate(self.counts), strict=True)


class Histogram:
    """Counts measurements by size. Safe to call from several threads."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0
        self._lock = threading.Lock()

    def observe(self, value: float) -> None:
        """Count a measurement; a negative one, by clocks that differ, counts as 0."""
        value = max(0.0, value)
        with self._lock:
            self._counts[bisect_left(self._bounds, value)] += 1
            self._sum += value

    def value(self) -> Distribution:
        """Return what was measured so far."""
        with self._lock:
            return Distribution(self._bounds, tuple(self._counts), self._sum)


@dataclass(frozen=True, slots=True)
class Sample:
    """One value of a metric."""

    labels: tuple[str, ...]
    """The values of its labels, in the order of the metric's."""

    value: float | Distribution
    """A distribution if the metric is a histogram."""


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric, and its samples at one moment."""

    name: str
    kind: MetricKind
    help: str
    """What it means, in a sentence."""

    labels: tuple[str, ...] = ()
    unit: str = ""
    """`seconds` or `bytes`; empty for counts and for 0 or 1."""

    samples: tuple[Sample, ...] = ()


# --- Prometheus -----------------------------------------------------------------------------------


def prometheus_text(metrics: Iterable[Metric]) -> str:
    """Return metrics in the text format of Prometheus; those without samples are left out."""
    return "".join(f"{line}\n" for metric in metrics if metric.samples for line in _lines(metric))


def _lines(metric: Metric) -> Iterator[str]:
    yield f"# HELP {metric.name} {_escaped(metric.help)}"
    yield f"# TYPE {metric.name} {metric.kind}"
    for sample in metric.samples:
        labels = dict(zip(metric.labels, sample.labels, strict=True))
        if isinstance(sample.value, Distribution):
            for bound, count in sample.value.cumulative():
                yield _line(f"{metric.name}_bucket", {**labels, "le": _number(bound)}, count)
            yield _line(f"{metric.name}_sum", labels, sample.value.sum)
            yield _line(f"{metric.name}_count", labels, sample.value.count)
        else:
            yield _line(metric.name, labels, sample.value)


def _line(name: str, labels: Mapping[str, str], value: float) -> str:
    shown = ",".join(f'{label}="{_escaped(of, quote=True)}"' for label, of in labels.items())
    return f"{name}{{{shown}}} {_number(value)}" if labels else f"{name} {_number(value)}"


def _escaped(text: str, *, quote: bool = False) -> str:
    text = text.replace("\\", "\\\\").replace("\n", "\\n")
    return text.replace('"', '\\"') if quote else text


def _number(value: float) -> str:
    if math.isinf(value) or math.isnan(value):
        return {math.inf: "+Inf", -math.inf: "-Inf"}.get(value, "NaN")
    return str(int(value)) if value == int(value) else repr(float(value))


def json_fields(metric: Metric) -> dict[str, Any]:
    """Return a metric as plain values for JSON."""
    samples = []
    for sample in metric.samples:
        value = sample.value
        fields: dict[str, Any] = {"labels": dict(zip(metric.labels, sample.labels, strict=True))}
        if isinstance(value, Distribution):
            # JSON has no infinity: the last bucket's bound is null.
            fields["buckets"] = [
                {"le": None if math.isinf(bound) else bound, "count": count}
                for bound, count in value.cumulative()
            ]
            fields |= {"sum": value.sum, "count": value.count}
        else:
            fields["value"] = value
        samples.append(fields)
    return {
        "name": metric.name,
        "type": str(metric.kind),
        "help": metric.help,
        "unit": metric.unit,
        "samples": samples,
    }


# --- OpenTelemetry --------------------------------------------------------------------------------

_SHARED_SECONDS = 0.5
"""For how long a look at the engine serves all instruments: a reader asks each of them in turn."""

_UNITS = {"seconds": "s", "bytes": "By", "": "1"}
"""The units as OpenTelemetry writes them."""


def instrument_name(metric: str) -> str:
    """Return the name of an instrument: `headrace.pipeline.lag_seconds`, dots for the parts."""
    return metric.removesuffix("_total").replace("_", ".", 2)


def offer(
    provider: MeterProvider,
    catalogue: Iterable[Metric],
    read: Callable[[], Iterable[Metric]],
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """
    Register an observable instrument for each metric of the catalogue; `read` returns them all.

    OpenTelemetry has no observable histograms: one is offered as two counters, the number of its
    measurements (`.count`) and their sum (`.sum`).
    """
    require("otel", "Metrics for OpenTelemetry")
    meter = provider.get_meter("headrace")
    recent = _Recent(read, clock)
    for metric in catalogue:
        name, unit = instrument_name(metric.name), _UNITS[metric.unit]
        match metric.kind:
            case MetricKind.GAUGE:
                callbacks = [_observer(recent, metric.name, _plain)]
                meter.create_observable_gauge(name, callbacks, unit, metric.help)
            case MetricKind.COUNTER:
                callbacks = [_observer(recent, metric.name, _plain)]
                meter.create_observable_counter(name, callbacks, unit, metric.help)
            case MetricKind.HISTOGRAM:
                callbacks = [_observer(recent, metric.name, _count)]
                meter.create_observable_counter(f"{name}.count", callbacks, "1", metric.help)
                callbacks = [_observer(recent, metric.name, _sum)]
                meter.create_observable_counter(f"{name}.sum", callbacks, unit, metric.help)


class _Recent:
    """The metrics as last read, by name; read again after a moment."""

    def __init__(self, read: Callable[[], Iterable[Metric]], clock: Callable[[], float]) -> None:
        self._read = read
        self._clock = clock
        self._lock = threading.Lock()
        self._known: dict[str, Metric] = {}
        self._at = -math.inf

    def metric(self, name: str) -> Metric | None:
        with self._lock:
            if self._clock() - self._at >= _SHARED_SECONDS:
                self._known = {metric.name: metric for metric in self._read()}
                self._at = self._clock()
            return self._known.get(name)


def _observer(
    recent: _Recent, name: str, number: Callable[[float | Distribution], float]
) -> Callable[[CallbackOptions], Iterable[Observation]]:
    from opentelemetry.metrics import Observation

    def observe(_options: CallbackOptions) -> Iterable[Observation]:
        if (metric := recent.metric(name)) is None:
            return
        for sample in metric.samples:
            attributes = dict(zip(metric.labels, sample.labels, strict=True))
            yield Observation(number(sample.value), attributes)

    return observe


def _plain(value: float | Distribution) -> float:
    assert not isinstance(value, Distribution), "only a histogram has distributions"
    return value


def _count(value: float | Distribution) -> float:
    assert isinstance(value, Distribution), "a histogram has distributions"
    return value.count


def _sum(value: float | Distribution) -> float:
    assert isinstance(value, Distribution), "a histogram has distributions"
    return value.sum
