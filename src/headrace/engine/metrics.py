"""
The metrics of an engine: the list of all of them, and how each is computed from the status.

Labels are names from the configuration (`pipeline`, `source`, `table`, `observer`) and words of
fixed sets (`state`, `check`, `action`), so their number is bounded. Positions, keys and the texts
of errors are never labels. A value that is not known has no sample: a lag that cannot be measured
is absent, not 0.

`compat_metrics` computes the names that Laredo's dashboards and alerts use from the same samples.
Some of those are gauges named as counters; they are given as their readers expect them, and ours
next to them are right.

Long because it is the list of all metrics, each with its name, its meaning and where it comes from.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import metadata
from typing import TYPE_CHECKING

from headrace.engine import status
from headrace.engine.health import (
    CHECKS,
    PIPELINE_STATES,
    SOURCE_STATES,
    Health,
    HealthObserver,
    TimedCall,
    pipeline_state,
    visible_lag,
)
from headrace.extras import DISTRIBUTION
from headrace.observe.metrics import Distribution, Metric, MetricKind, Sample
from headrace.runtime.model import TableState
from headrace.runtime.retention import LogRetention

if TYPE_CHECKING:
    from headrace.engine.state import EngineState
    from headrace.observe.dispatch import ObserverInfo
    from headrace.runtime.info import PipelineInfo, SourceInfo

COLLECT_SECONDS = 0.9
"""How long it may take to read the status: a scrape is answered within a second."""


# --- what they are computed from ------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PipelineLook:
    """A pipeline at the moment of a scrape."""

    info: PipelineInfo
    source: SourceInfo | None
    ready: bool
    now: float


@dataclass(frozen=True, slots=True)
class SourceLook:
    """A source at the moment of a scrape."""

    info: SourceInfo
    log_bytes: int | None
    log_limit: int | None


@dataclass(frozen=True, slots=True)
class EngineLook:
    """An engine at the moment of a scrape."""

    health: Health
    answers: bool = True
    """False if its status did not come in time: then there are no pipelines and sources here."""

    started_at: float | None = None
    uses_spark: bool = False
    spark_down_seconds: float | None = None
    spark_restarts: int = 0
    pipelines: Sequence[PipelineLook] = ()
    sources: Sequence[SourceLook] = ()
    observers: Sequence[ObserverInfo] = ()


Values = Iterable[tuple[tuple[str, ...], float | Distribution | None]]
"""Labels and value of each sample; those without a value are left out."""


@dataclass(frozen=True, slots=True)
class _Definition:
    metric: Metric
    read: Callable[[EngineLook], Values] = field(repr=False)

    def at(self, look: EngineLook) -> Metric:
        found = ((labels, value) for labels, value in self.read(look) if value is not None)
        return replace(self.metric, samples=tuple(Sample(*each) for each in found))


def _one(read: Callable[[EngineLook], float | None]) -> Callable[[EngineLook], Values]:
    return lambda look: [((), read(look))]


def _each_pipeline(
    read: Callable[[PipelineLook], float | Distribution | None],
) -> Callable[[EngineLook], Values]:
    return lambda look: [((p.info.name, p.info.source), read(p)) for p in look.pipelines]


def _each_source(read: Callable[[SourceLook], float | None]) -> Callable[[EngineLook], Values]:
    return lambda look: [((source.info.name,), read(source)) for source in look.sources]


def _each_observer(read: Callable[[ObserverInfo], float]) -> Callable[[EngineLook], Values]:
    def values(look: EngineLook) -> Values:
        sums: Counter[str] = Counter()
        for each in look.observers:  # several may have one name
            sums[each.name] += int(read(each))
        return [((name,), count) for name, count in sums.items()]

    return values


def _gauge(
    name: str,
    help: str,
    labels: tuple[str, ...],
    read: Callable[[EngineLook], Values],
    unit: str = "",
) -> _Definition:
    return _Definition(Metric(f"headrace_{name}", MetricKind.GAUGE, help, labels, unit), read)


def _counter(
    name: str,
    help: str,
    labels: tuple[str, ...],
    read: Callable[[EngineLook], Values],
    unit: str = "",
) -> _Definition:
    return _Definition(Metric(f"headrace_{name}", MetricKind.COUNTER, help, labels, unit), read)


def _histogram(
    name: str, help: str, read: Callable[[PipelineInfo], Distribution | None]
) -> _Definition:
    metric = Metric(f"headrace_{name}", MetricKind.HISTOGRAM, help, _PIPELINE, "seconds")
    return _Definition(metric, _each_pipeline(lambda look: read(look.info)))


# --- values that take more than a field -----------------------------------------------------------


@cache
def installed_version() -> str:
    """Return the version of Headrace that is installed."""
    # Read from a file: not in each scrape.
    try:
        return metadata.version(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return "unknown"


def _version(_look: EngineLook) -> Values:
    return [((installed_version(),), 1)]


def _healthy(look: EngineLook) -> Values:
    return [((check,), getattr(look.health, check).ok) for check in CHECKS]


def _states(look: EngineLook) -> Values:
    for each in look.pipelines:
        shown = pipeline_state(each.info, each.source, ready=each.ready, now=each.now).state
        for state in PIPELINE_STATES:
            yield (each.info.name, each.info.source, state), state == shown


def _rows(look: EngineLook) -> Values:
    for each in look.pipelines:
        for table in each.info.tables:
            yield (each.info.name, each.info.source, table.table), table.rows


_ACTIONS = {
    "insert": "inserts",
    "update": "updates",
    "delete": "deletes",
    "truncate": "truncates",
}
"""The operations of changes, and the field that counts each."""


def _changes(look: EngineLook) -> Values:
    for each in look.pipelines:
        for table in each.info.tables:
            for action, counted in _ACTIONS.items():
                labels = (each.info.name, each.info.source, table.table, action)
                yield labels, getattr(table.run_counts, counted)


def _baseline_rows(look: EngineLook) -> Values:
    for each in look.pipelines:
        for table in each.info.tables:
            labels = (each.info.name, each.info.source, table.table)
            yield labels, table.run_counts.baseline_rows


def _expired_rows(look: EngineLook) -> Values:
    for each in look.pipelines:
        for table in each.info.tables:
            labels = (each.info.name, each.info.source, table.table)
            yield labels, table.run_counts.expired


def _rows_given_up(look: EngineLook) -> Values:
    for each in look.pipelines:
        for table, count in each.info.rows_given_up.items():
            yield (each.info.name, each.info.source, table), count


def _table_states(look: EngineLook) -> Values:
    for each in look.pipelines:
        count = Counter(table.state for table in each.info.tables)
        for state in TableState:
            yield (each.info.name, each.info.source, str(state)), count[str(state)]


def _source_states(look: EngineLook) -> Values:
    for each in look.sources:
        for state in SOURCE_STATES:
            yield (each.info.name, state), state == each.info.state


def _connected(look: SourceLook) -> bool:
    return look.info.state in ("streaming", "watching", "full")


def _copied_rows(look: EngineLook) -> Values:
    for each in look.sources:
        for copy in each.info.copies:
            yield (each.info.name, copy.table), copy.rows


def _expected_rows(look: EngineLook) -> Values:
    for each in look.sources:
        for copy in each.info.copies:
            yield (each.info.name, copy.table), copy.expected


# --- the list -------------------------------------------------------------------------------------

_PIPELINE = ("pipeline", "source")
_SOURCE = ("source",)

_DEFINITIONS = (
    _gauge("build_info", "Always 1; the version of Headrace.", ("version",), _version),
    _gauge("up", "1 if the engine's status answers in time.", (), _one(lambda e: e.answers)),
    _gauge("health", "1 if a check of headrace health is green.", ("check",), _healthy),
    _gauge(
        "start_time_seconds",
        "When the engine was started, in seconds since 1970.",
        (),
        _one(lambda e: e.started_at),
        "seconds",
    ),
    _gauge(
        "spark_up",
        "1 if Spark runs and answers; absent without Spark.",
        (),
        _one(lambda e: e.spark_down_seconds is None if e.uses_spark else None),
    ),
    _gauge(
        "spark_down_seconds",
        "How long Spark has been dead, or has not answered.",
        (),
        _one(lambda e: (e.spark_down_seconds or 0.0) if e.uses_spark else None),
        "seconds",
    ),
    _counter(
        "spark_restarts_total",
        "How often Spark was started again.",
        (),
        _one(lambda e: e.spark_restarts if e.uses_spark else None),
    ),
    _counter(
        "observer_events_total",
        "Events that an observer got.",
        ("observer",),
        _each_observer(lambda o: o.delivered),
    ),
    _counter(
        "observer_events_dropped_total",
        "Events that an observer did not get, because observers were too slow.",
        ("observer",),
        _each_observer(lambda o: o.dropped),
    ),
    _counter(
        "observer_errors_total",
        "How often an observer raised.",
        ("observer",),
        _each_observer(lambda o: o.errors),
    ),
    # -- pipelines --
    _gauge(
        "pipeline_state",
        "1 for the state that the pipeline is in, 0 for all others.",
        (*_PIPELINE, "state"),
        _states,
    ),
    _gauge(
        "pipeline_ready",
        "1 if everything that was committed not long ago is applied.",
        _PIPELINE,
        _each_pipeline(lambda p: p.ready),
    ),
    _gauge(
        "pipeline_error",
        "1 if the pipeline has an error, also while it is retried.",
        _PIPELINE,
        _each_pipeline(lambda p: p.info.error is not None),
    ),
    _gauge(
        "pipeline_lag_seconds",
        "Age of the oldest change that readers do not see; absent while it is not known.",
        _PIPELINE,
        _each_pipeline(lambda p: visible_lag(p.info, p.source)),
        "seconds",
    ),
    _gauge(
        "pipeline_rows",
        "Rows that readers see; absent if the target cannot count them.",
        (*_PIPELINE, "table"),
        _rows,
    ),
    _gauge(
        "pipeline_tables",
        "Tables of the pipeline in each state.",
        (*_PIPELINE, "state"),
        _table_states,
    ),
    _gauge(
        "pipeline_tables_left_out",
        "Tables that match its patterns and cannot be captured.",
        _PIPELINE,
        _each_pipeline(lambda p: len(p.info.left_out)),
    ),
    _counter(
        "pipeline_changes_total",
        "Changes delivered to the target, as they are in the log: before filters.",
        (*_PIPELINE, "table", "action"),
        _changes,
    ),
    _counter(
        "pipeline_batches_total",
        "Batches written to the target.",
        _PIPELINE,
        _each_pipeline(lambda p: p.info.batches),
    ),
    _counter(
        "pipeline_jobs_total",
        "Spark jobs for batches and baselines.",
        _PIPELINE,
        _each_pipeline(lambda p: p.info.jobs),
    ),
    _counter(
        "pipeline_direct_batches_total",
        "Batches of a table that were computed without a Spark job.",
        _PIPELINE,
        _each_pipeline(lambda p: p.info.direct),
    ),
    _counter(
        "pipeline_abandoned_batches_total",
        "Batches without a Spark job that were given up because a row took too long.",
        _PIPELINE,
        _each_pipeline(lambda p: p.info.abandoned),
    ),
    _counter(
        "pipeline_releases_total",
        "How often the pipeline was released from its source, which had no more room.",
        _PIPELINE,
        _each_pipeline(lambda p: p.info.releases),
    ),
    _counter(
        "pipeline_errors_total",
        "Attempts that failed, retries included.",
        _PIPELINE,
        _each_pipeline(lambda p: p.info.run_counts.errors),
    ),
    _gauge(
        "pipeline_dead_letters",
        "Dead letters that are not superseded.",
        _PIPELINE,
        _each_pipeline(lambda p: p.info.dead_letters),
    ),
    _counter(
        "pipeline_dead_letters_stored_total",
        "Dead letters that were stored, also those that are superseded now.",
        _PIPELINE,
        _each_pipeline(lambda p: p.info.run_counts.dead_letters),
    ),
    _counter(
        "rows_expired_total",
        "Rows that were deleted from the target because they had expired.",
        (*_PIPELINE, "table"),
        _expired_rows,
    ),
    _gauge(
        "pipeline_held_keys",
        "Keys that dead letters hold: later changes of these rows wait.",
        _PIPELINE,
        _each_pipeline(lambda p: p.info.held_keys),
    ),
    _gauge(
        "pipeline_rows_given_up",
        "Rows that may differ from those of the source, because dead letters were purged.",
        (*_PIPELINE, "table"),
        _rows_given_up,
    ),
    _gauge(
        "pipeline_notices",
        "Notices of the pipeline that hold now.",
        _PIPELINE,
        _each_pipeline(lambda p: len(p.info.notices)),
    ),
    _gauge(
        "pipeline_last_change_timestamp_seconds",
        "When changes were last applied, in seconds since 1970.",
        _PIPELINE,
        _each_pipeline(lambda p: p.info.last_change),
        "seconds",
    ),
    _gauge(
        "pipeline_batch_running_seconds",
        "For how long the batch in progress has been applied; 0 between two batches.",
        _PIPELINE,
        _each_pipeline(lambda p: 0.0 if p.info.applying is None else p.info.applying.seconds),
        "seconds",
    ),
    _histogram(
        "pipeline_batch_duration_seconds",
        "How long batches took, from reading the log to the end of the target's write.",
        lambda p: None if p.times is None else p.times.batches,
    ),
    _histogram(
        "pipeline_change_latency_seconds",
        "From the commit of a batch's oldest change to the end of the target's write.",
        lambda p: None if p.times is None else p.times.latencies,
    ),
    _counter(
        "pipeline_baseline_rows_total",
        "Rows of baselines that were loaded into the target.",
        (*_PIPELINE, "table"),
        _baseline_rows,
    ),
    _histogram(
        "pipeline_baseline_duration_seconds",
        "From the beginning of a load to the moment when readers see the table.",
        lambda p: None if p.times is None else p.times.baselines,
    ),
    # -- sources --
    _gauge(
        "source_state",
        "1 for the state that the source is in, 0 for all others.",
        (*_SOURCE, "state"),
        _source_states,
    ),
    _gauge(
        "source_connected",
        "1 while the source is connected and something was received from it within 20 s.",
        _SOURCE,
        _each_source(_connected),
    ),
    _gauge(
        "source_error",
        "1 while the source is not read, because it is away or failed.",
        _SOURCE,
        _each_source(lambda s: s.info.error is not None or s.info.error_since is not None),
    ),
    _gauge(
        "source_lag_bytes",
        "Bytes of the source's own log that were not read yet.",
        _SOURCE,
        _each_source(lambda s: s.info.lag_bytes),
        "bytes",
    ),
    _gauge(
        "source_lag_seconds",
        "Age of the oldest change that was not read yet.",
        _SOURCE,
        _each_source(lambda s: s.info.lag_seconds),
        "seconds",
    ),
    _gauge(
        "source_lag_changes",
        "Changes that were not read yet, if the source can count them.",
        _SOURCE,
        _each_source(lambda s: s.info.lag_changes),
    ),
    _gauge(
        "source_current_age_seconds",
        "How long ago everything had been committed that is certain to be in the log.",
        _SOURCE,
        _each_source(lambda s: s.info.current_seconds),
        "seconds",
    ),
    _gauge(
        "source_silence_seconds",
        "How long nothing was received from the server; absent without a stream.",
        _SOURCE,
        _each_source(lambda s: s.info.silence_seconds),
        "seconds",
    ),
    _counter(
        "source_changes_total",
        "Changes written to the log.",
        _SOURCE,
        _each_source(lambda s: s.info.captured),
    ),
    _counter(
        "source_flushes_total",
        "Flushes of changes to the log, since the log began.",
        _SOURCE,
        _each_source(lambda s: s.info.flushes),
    ),
    _counter(
        "source_captured_bytes_total",
        "Bytes of changes written to the log, since the log began.",
        _SOURCE,
        _each_source(lambda s: s.info.bytes),
        "bytes",
    ),
    _gauge(
        "source_end_commit",
        "The commit number that the log has reached: for PostgreSQL, an LSN.",
        _SOURCE,
        _each_source(lambda s: s.info.end.commit),
    ),
    _gauge(
        "source_acknowledged_commit",
        "The commit number up to which the source may discard changes.",
        _SOURCE,
        _each_source(lambda s: None if (at := s.info.acknowledged) is None else at.commit),
    ),
    _gauge(
        "source_room_used_bytes",
        "What the source retains for Headrace: for PostgreSQL, WAL held by the slot.",
        _SOURCE,
        _each_source(lambda s: None if s.info.room is None else s.info.room.used),
        "bytes",
    ),
    _gauge(
        "source_room_limit_bytes",
        "The most that it retains; absent without a limit.",
        _SOURCE,
        _each_source(lambda s: None if s.info.room is None else s.info.room.limit),
        "bytes",
    ),
    _gauge(
        "source_room_unacknowledged_bytes",
        "The part of it that is not acknowledged; the rest is retained for other reasons.",
        _SOURCE,
        _each_source(lambda s: None if s.info.room is None else s.info.room.unacknowledged),
        "bytes",
    ),
    _counter(
        "source_recorder_restarts_total",
        "How often the recorder was started again.",
        _SOURCE,
        _each_source(lambda s: s.info.restarts),
    ),
    _counter(
        "source_notices_total",
        "Notices of the source: missing changes, tables that are copied again, and so on.",
        _SOURCE,
        _each_source(lambda s: s.info.notices[-1].number if s.info.notices else 0),
    ),
    _gauge(
        "source_tables_left_out",
        "Tables that should be captured and cannot be.",
        _SOURCE,
        _each_source(lambda s: len(s.info.left_out)),
    ),
    _gauge(
        "source_copies",
        "Copies of tables in progress.",
        _SOURCE,
        _each_source(lambda s: len(s.info.copies)),
    ),
    _gauge(
        "source_copy_rows",
        "Rows copied so far, of each copy in progress.",
        (*_SOURCE, "table"),
        _copied_rows,
    ),
    _gauge(
        "source_copy_expected_rows",
        "The source's estimate of the rows of a table that is being copied.",
        (*_SOURCE, "table"),
        _expected_rows,
    ),
    _gauge(
        "log_bytes",
        "The size of the source's log: changes and baselines.",
        _SOURCE,
        _each_source(lambda s: s.log_bytes),
        "bytes",
    ),
    _gauge(
        "log_limit_bytes",
        "The most that the log may have: reading stops at 90 %; absent without a limit.",
        _SOURCE,
        _each_source(lambda s: s.log_limit),
        "bytes",
    ),
    _gauge(
        "log_newest_change_timestamp_seconds",
        "The latest commit time in the log, in seconds since 1970.",
        _SOURCE,
        _each_source(lambda s: s.info.newest),
        "seconds",
    ),
)

CATALOGUE: tuple[Metric, ...] = tuple(each.metric for each in _DEFINITIONS)
"""Every metric under our own names, without samples."""


# --- Laredo's names -------------------------------------------------------------------------------

_LAREDO_STATES = {
    **dict.fromkeys(("waiting", "loading", "catching_up"), 1.0),
    **dict.fromkeys(("streaming", "reloading", "complete"), 2.0),
    "paused": 3.0,
    **dict.fromkeys(("failed", "not_ready"), 4.0),
    "stopped": 5.0,
}
"""Baselining, streaming, paused, error and stopped; initializing (0) has no counterpart."""


@dataclass(frozen=True, slots=True)
class _Compat:
    name: str
    kind: MetricKind
    labels: Mapping[str, str]
    """Their label and ours; samples that differ in others of ours are added up."""

    of: str
    """The metric of ours, without its prefix."""

    weights: Mapping[str, float] | None = None
    """By state: what a sample of it counts."""

    only: str | None = None
    """The one action whose samples count."""


_G, _C, _H = MetricKind.GAUGE, MetricKind.COUNTER, MetricKind.HISTOGRAM
_ACTION = {"pipeline": "pipeline", "action": "action"}
_P, _PID, _SRC = {"pipeline": "pipeline"}, {"pipeline_id": "pipeline"}, {"source": "source"}

_COMPAT = (
    _Compat("laredo_pipeline_state", _G, _P, "pipeline_state", _LAREDO_STATES),
    _Compat("laredo_source_lag_bytes", _G, _SRC, "source_lag_bytes"),
    _Compat("laredo_source_lag_seconds", _G, _SRC, "source_lag_seconds"),
    _Compat("laredo_baseline_rows_total", _G, _P, "pipeline_baseline_rows_total"),
    _Compat("laredo_baseline_rows_loaded_total", _C, _P, "pipeline_baseline_rows_total"),
    _Compat("laredo_baseline_duration_seconds", _H, _P, "pipeline_baseline_duration_seconds"),
    _Compat("laredo_change_apply_duration_seconds", _H, _P, "pipeline_batch_duration_seconds"),
    _Compat("laredo_change_errors_total", _C, _P, "pipeline_errors_total"),
    _Compat("laredo_changes_received_total", _C, _ACTION, "pipeline_changes_total"),
    _Compat("laredo_changes_applied_total", _C, _ACTION, "pipeline_changes_total"),
    _Compat("laredo_dead_letters_total", _C, _P, "pipeline_dead_letters_stored_total"),
    _Compat("laredo_rows_expired_total", _C, _P, "rows_expired_total"),
    _Compat("laredo_pipeline_rows_expired_total", _C, _PID, "rows_expired_total"),
    _Compat("laredo_pipeline_row_count", _G, {**_PID, "table": "table"}, "pipeline_rows"),
    _Compat("laredo_pipeline_errors_total", _C, _PID, "pipeline_errors_total"),
    _Compat("laredo_pipeline_dead_letters_total", _C, _PID, "pipeline_dead_letters_stored_total"),
    *(
        _Compat(f"laredo_pipeline_{counted}_total", _C, _PID, "pipeline_changes_total", only=action)
        for action, counted in _ACTIONS.items()
    ),
    _Compat("laredo_source_connected", _G, {"source_id": "source"}, "source_connected"),
)


def compat_metrics(metrics: Iterable[Metric]) -> Iterator[Metric]:
    """Yield the same samples under the names and labels that Laredo has for them."""
    ours = {metric.name.removeprefix("headrace_"): metric for metric in metrics}
    for each in _COMPAT:
        of = ours[each.of]
        at = [of.labels.index(label) for label in each.labels.values()]
        sums: dict[tuple[str, ...], float | Distribution] = defaultdict(float)
        for sample in of.samples:
            labels = tuple(sample.labels[place] for place in at)
            if isinstance(sample.value, Distribution):
                sums[labels] = sample.value
                continue
            if each.only not in (None, _label(of, sample, "action")):
                continue
            weights = each.weights
            weight = 1.0 if weights is None else weights[_label(of, sample, "state")]
            before = sums[labels]
            assert not isinstance(before, Distribution), "a metric has values of one kind"
            sums[labels] = before + weight * sample.value
        yield Metric(
            each.name,
            each.kind,
            f"For dashboards of Laredo; see {of.name}.",
            tuple(each.labels),
            of.unit,
            tuple(Sample(labels, value) for labels, value in sums.items()),
        )


def _label(metric: Metric, sample: Sample, label: str) -> str:
    return dict(zip(metric.labels, sample.labels, strict=True)).get(label, "")


COMPAT_CATALOGUE: tuple[Metric, ...] = tuple(compat_metrics(CATALOGUE))
"""Every metric under Laredo's names, without samples."""


# --- collecting -----------------------------------------------------------------------------------


class MetricsCollector:
    """Computes the metrics of an engine. *Threads*: any."""

    def __init__(self, state: EngineState, health: HealthObserver) -> None:
        self._state = state
        self._health = health
        self._look = TimedCall(self._look_now)

    def metrics(self, *, compat: bool = False) -> tuple[Metric, ...]:
        """
        Return all metrics, within a second; with `compat`, also under Laredo's names.

        If the status does not answer in time, `headrace_up` is 0, and pipelines and sources have
        no samples.
        """
        look = self._look.result(COLLECT_SECONDS)
        if look is None:
            look = EngineLook(self._health.unanswered(), answers=False)
        found = tuple(each.at(look) for each in _DEFINITIONS)
        return (*found, *compat_metrics(found)) if compat else found

    def _look_now(self) -> EngineLook:
        state = self._state
        health = self._health.observe()
        sources = {info.name: info for info in status.sources(state)}
        # Until the start is over, targets may not be open, and must not be read.
        infos = status.pipelines(state) if state.running else ()
        watchdog, now = state.watchdog, time.time()
        return EngineLook(
            health,
            started_at=state.started_at,
            uses_spark=watchdog is not None,
            spark_down_seconds=None if watchdog is None else watchdog.down_seconds,
            spark_restarts=0 if watchdog is None else watchdog.restarts,
            pipelines=[
                PipelineLook(
                    info,
                    sources.get(info.source),
                    health.ready.ok or state.readiness.now(pipeline=info.name),
                    now,
                )
                for info in infos
            ],
            sources=[_source_look(state, info) for info in sources.values()],
            observers=state.events.infos(),
        )


def _source_look(state: EngineState, info: SourceInfo) -> SourceLook:
    recording = state.recordings.get(info.name)
    if recording is None:
        return SourceLook(info, None, None)  # dropped since
    kept = recording.retention
    limit = kept.last_cap if isinstance(kept, LogRetention) else None
    return SourceLook(info, recording.log.size, limit)
