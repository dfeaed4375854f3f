"""
The status of an engine: readiness, states, counts, lag and targets, as observed now.

Everything here reads the state that it is given and changes nothing. Safe to call from any thread.

Ready means: it was seen, for a moment within the last `SILENT_SECONDS`, that everything that was
committed then is applied.

`Readiness` computes whether pipelines are ready, and wakes callers that wait for it. It is never
stored: it is computed from the pipelines and recorders each time, so it goes back to False with the
first problem (invariant 9). A waiting caller is woken by `notify`, which is called after every
change of state.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, cast

from headrace.changelog.reader import LogReader
from headrace.changelog.schema import TableSchema
from headrace.deadletters.store import Figures
from headrace.errors import (
    ExpiredAhead,
    HeadraceError,
    KeysHeld,
    NotRunning,
    RowsGivenUp,
    UnknownTable,
)
from headrace.observe.logs import logger
from headrace.pipeline.definition import DeadLetters
from headrace.runtime.info import (
    COUNT_SECONDS,
    BatchInfo,
    CopyInfo,
    LogInfo,
    PipelineInfo,
    PipelineTimes,
    SourceInfo,
    TableInfo,
)
from headrace.runtime.model import Member, TableState
from headrace.runtime.new_tables import takes
from headrace.runtime.pipeline_run import PipelineRun
from headrace.runtime.retention import LogRetention
from headrace.targets.target import Readable, Target

if TYPE_CHECKING:
    from headrace.engine.state import EngineState
    from headrace.spark_session.session import SparkInfo


_log = logger(__name__)

AHEAD_SECONDS = 60.0
"""Clocks differ by less: from here on, rows that have expired too early are worth a notice."""

# --- readiness ------------------------------------------------------------------------------------


class Readiness:
    """Computes readiness each time; stores only the waiting callers. For any thread."""

    def __init__(self, state: EngineState) -> None:
        self._state = state
        self._changed = threading.Condition()
        self._calls: list[Callable[[], None]] = []

    def now(
        self, source: str | None = None, table: str | None = None, pipeline: str | None = None
    ) -> bool:
        """Return whether the given pipelines are ready; False if there are none."""
        runs = [
            run
            for run in list(self._state.runs)
            if source in (None, run.source)
            and (table is None or table in run.tables)
            and pipeline in (None, run.name)
        ]
        recorded = [
            (self._state.recordings.get(each), name)
            for each, tables in self._state.tables.recorded
            for name in tables
            if pipeline is None and source in (None, each) and table in (None, name)
        ]
        return (
            bool(runs or recorded)
            and (not runs or self._state.spark_alive)
            and all(run.ready and self._current(run) for run in runs)
            and all(recording is not None and recording.has(name) for recording, name in recorded)
        )

    def _current(self, run: PipelineRun) -> bool:
        """Whether all is applied that was committed at some moment not long ago."""
        recording = self._state.recordings.get(run.source)
        if recording is None or not recording.ready:
            return False
        end = recording.confirmed
        return end is not None and run.applied(end)

    def wait(self, timeout: float | None) -> bool:
        """Wait until all is ready or waiting cannot help; return whether all is ready."""
        self.wait_for(lambda: self.now() or self._hopeless(), timeout)
        return self.now()

    def wait_for(self, done: Callable[[], bool], timeout: float | None) -> bool:
        """Check `done` after every change of state, until it is true or the timeout is over."""
        with self._changed:
            return self._changed.wait_for(done, timeout)

    def until(self, done: Callable[[], bool], source: str, timeout: float | None) -> bool:
        """Wait for a condition unless waiting cannot help; return whether it is true."""
        recording = self._state.recordings[source]
        runs = [run for run in list(self._state.runs) if run.source == source]

        def stuck() -> bool:
            # A run that is stopped was dropped, and will deliver nothing.
            failed = recording.gave_up or any(r.failed or r.stopped or r.lost for r in runs)
            return failed or not self._state.at_work

        self.wait_for(lambda: done() or stuck(), timeout)
        return done()

    def call(self, call: Callable[[], None]) -> None:
        """Call `call` once, when all is ready: immediately if it is."""
        with self._changed:
            if not self.now():
                self._calls.append(call)
                return
        call()

    def notify(self) -> None:
        """Check again, because something changed."""
        calls: list[Callable[[], None]] = []
        with self._changed:
            if self.now():
                calls, self._calls = self._calls, []
            self._changed.notify_all()
        for call in calls:
            try:
                call()
            except Exception as error:  # noqa: BLE001 - the user's own code, on a thread of ours
                _log.failed("function of on_ready raised", error)

    def ended(self) -> None:
        """Wake all waiting callers, because the engine has stopped."""
        with self._changed:
            self._changed.notify_all()

    def _hopeless(self) -> bool:
        return (
            not self._state.at_work
            or any(run.failed or run.lost for run in list(self._state.runs))
            or any(recording.gave_up for recording in list(self._state.recordings.values()))
        )


# --- states and counts ----------------------------------------------------------------------------


def pipelines(state: EngineState, *, count: bool = True) -> tuple[PipelineInfo, ...]:
    """
    Return the info of every pipeline; never waits long, whatever a target does.

    Without `count`, with the rows as they were counted last.
    """
    runs = [run for run in list(state.runs) if run.source in state.recordings]
    return _infos(state, runs, count=count)


def pipeline_info(state: EngineState, name: str) -> PipelineInfo:
    """Return the info of one pipeline."""
    return _infos(state, [state.run_of(name)])[0]


def sources(state: EngineState) -> tuple[SourceInfo, ...]:
    """Return the info of every source."""
    return tuple(recording.info() for recording in list(state.recordings.values()))


def source_info(state: EngineState, name: str) -> SourceInfo:
    """Return the info of one source."""
    if name not in state.recordings:
        raise NotRunning("The engine has no source of this name", source=name)
    return state.recordings[name].info()


def log_info(state: EngineState, source: str) -> LogInfo:
    """Return what a source's log contains, how far back it goes, and what keeps it."""
    recording = state.recordings.get(source)
    if recording is None or not isinstance(recording.retention, LogRetention):
        raise NotRunning("The engine has no source of this name", source=source)
    return recording.retention.info()


def targets(state: EngineState, source: str, table: str) -> tuple[Target, ...]:
    """Return the targets that a table of a source is delivered to."""
    return tuple(
        pipeline.target
        for pipeline in list(state.pipelines)
        if pipeline.source.name == source and takes(pipeline, table)
    )


def target(state: EngineState, pipeline: str, type: str | None) -> Target:
    """Return a pipeline's target; with `type`, only if it is of that type."""
    named = dict(zip(state.names, state.pipelines, strict=False))
    if pipeline not in named:
        raise NotRunning("No such pipeline", pipeline=pipeline)
    found = named[pipeline].target
    if type not in (None, found.traits.type):
        raise UnknownTable("The pipeline's target has another type", type=found.traits.type)
    return found


def schemas(state: EngineState) -> dict[tuple[str, str], TableSchema]:
    """Return the schema of every captured table, by source and table."""
    found: dict[tuple[str, str], TableSchema] = {}
    for known, each in list(state.tables.schemas.items()):
        source, _, table = known.partition("/")
        found[source, table] = each
    return found


@dataclass(frozen=True, slots=True)
class ReadableTarget:
    """The target of a pipeline, whose tables can be read in this process."""

    pipeline: str
    source: str
    target: Readable
    members: tuple[Member, ...]

    def lineage(self, table: str) -> str:
        """Return the lineage of the positions of a table; empty before there is one."""
        return next((each.lineage or "" for each in self.members if each.table == table), "")


def readable_targets(state: EngineState) -> Iterator[ReadableTarget]:
    """
    Yield the open targets that can be read in this process, in the order of their pipelines.

    Cheap: it is called for every lookup of a client.
    """
    for run in list(state.runs):
        if run.opened and _is_readable(type(run.target)):
            yield ReadableTarget(run.name, run.source, cast(Readable, run.target), run.members)


@cache
def _is_readable(kind: type) -> bool:
    # Not by the protocol: that would collect the names of all tables each time.
    return hasattr(kind, "tables") and callable(getattr(kind, "table", None))


def schema(state: EngineState, table: str) -> TableSchema:
    """Return a captured table's schema, as its source describes it."""
    for known, found in list(state.tables.schemas.items()):
        if known.split("/", 1)[1] == table:
            return found
    raise UnknownTable("No pipeline has this table, or the engine has not started", table=table)


def spark_info(state: EngineState) -> SparkInfo | None:
    """Return what Spark has done so far; None before it is ready."""
    return state.spark.info() if state.spark is not None else None


def _infos(
    state: EngineState, runs: Sequence[PipelineRun], *, count: bool = True
) -> tuple[PipelineInfo, ...]:
    """Return the current infos; the rows of all targets are counted at the same time."""
    since = time.monotonic()
    counts = [run.row_counts.start(run.tables) for run in runs if count and run.opened]
    for done in counts:
        done.wait(max(0.0, since + COUNT_SECONDS - time.monotonic()))
    return tuple(_info(state, run, since) for run in runs)


def _info(state: EngineState, run: PipelineRun, since: float) -> PipelineInfo:
    """Return the info of a pipeline, with its rows as counted `since`, or before."""
    recording = state.recordings[run.source]
    copies = recording.copies_under_way()
    tables = tuple(_table_info(member, run, copies, since) for member in run.members)
    counts = [table.rows for table in tables]
    delivery = run.delivery
    counted = delivery.counters.total()
    figures = delivery.dead_letter_figures
    error = run.error or next(iter(run.lost.values()), None)
    return PipelineInfo(
        name=run.name,
        source=run.source,
        table=", ".join(run.tables),
        target=run.kind,
        state=str(run.state),
        tables=tables,
        rows=None if None in counts else sum(count or 0 for count in counts),
        changes=delivery.changes,
        batches=delivery.batches,
        jobs=delivery.jobs,
        position=run.reached,
        lag_seconds=_lag(run, recording.log),
        dead_letters=figures.count,
        error=error or (None if run.ready else run.release.why),
        hops=delivery.hops.quantiles(),
        set_aside=run.release.why,
        applying=_applying(run),
        left_out=run.new_tables.left_out,
        error_since=None if error is None else run.error_since if run.error else run.lost_since,
        opening_seconds=run.opening_seconds,
        spark_down_seconds=state.spark_down_seconds,
        releases=run.release.count,
        counts=counted.counts,
        counted_since=counted.since,
        last_change=counted.last_change,
        started=run.started,
        run_counts=delivery.counters.run_total(),
        times=PipelineTimes(
            delivery.report.batch_seconds.value(),
            delivery.hops.totals(),
            delivery.report.baseline_seconds.value(),
        ),
        direct=delivery.direct,
        abandoned=delivery.abandoned,
        held_keys=figures.keys,
        rows_given_up=figures.purged_keys,
        notices=tuple(_notices(run, figures)),
    )


def _notices(run: PipelineRun, figures: Figures) -> Iterator[HeadraceError]:
    """Yield what someone should know about a pipeline that runs."""
    policy = run.pipeline.on_error
    if isinstance(policy, DeadLetters) and figures.keys >= policy.warns_from > 0:
        yield KeysHeld(
            "Dead letters hold many rows",
            pipeline=run.name,
            keys=figures.keys,
            limit=policy.max_keys,
        )
    expiry = run.delivery.expiry
    if expiry is not None and (ahead := expiry.ahead) >= AHEAD_SECONDS:
        yield ExpiredAhead(
            f"Rows have expired up to a time that the clock reaches in {ahead:,.0f} s",
            pipeline=run.name,
            seconds=round(ahead),
        )
    for table, rows in figures.purged_keys.items():
        yield RowsGivenUp(
            "Rows may differ from those of the source, because their dead letters were purged",
            remedy=f"Copy the table again: headrace reload {run.name} --table {table}.",
            pipeline=run.name,
            table=table,
            rows=rows,
        )


def _table_info(
    member: Member, run: PipelineRun, copies: Sequence[CopyInfo], since: float
) -> TableInfo:
    rows, age = run.row_counts.rows(member.table, since)
    counted = run.delivery.counters.of(member.table)
    return TableInfo(
        table=member.table,
        state=str(member.state),
        position=member.reached,
        baseline=member.baseline,
        rows=rows,
        rows_age=age,
        copy=next((copy for copy in copies if copy.table == member.table), None),
        reason="" if member.state in (TableState.LIVE, TableState.COMPLETE) else member.load_reason,
        counts=counted.counts,
        last_change=counted.last_change,
        run_counts=run.delivery.counters.run_counts(member.table),
    )


def _applying(run: PipelineRun) -> BatchInfo | None:
    found = run.delivery.applying
    if found is None or run.error is not None or run.failed or run.paused or run.stopped:
        return None
    changes, since = found
    return BatchInfo(changes, max(0.0, time.time() - since))


def _lag(run: PipelineRun, log: LogReader) -> float | None:
    """Return the age of the oldest change in the log that is not yet applied; None: not known."""
    if not all(member.shown for member in run.members):
        return None
    found = [
        log.oldest_after(member.table, member.reached) for member in run.members if member.following
    ]
    waiting = [since for since in found if since is not None]
    return max(0.0, time.time() - min(waiting) / 1_000_000) if waiting else 0.0
