"""
The status of an engine: readiness, states, counts and lag, as observed now.

`Engine` has the methods of `Knows`; they are in a class of their own because they change nothing.
`pipeline_info` puts together what is known of a pipeline at work, for people and programs.

`Readiness` tells whether pipelines are ready, as observed now, and wakes the callers that wait for
that. Readiness is never stored: it is read from the pipelines and recorders each time, so it goes
back to False with the first thing that is wrong (invariant 9). A waiting caller is woken by
`heard`, which everything that moves calls.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from headrace.changelog.reader import LogReader
from headrace.changelog.schema import TableSchema
from headrace.engine.tables import TakenTables
from headrace.errors import NotRunning, UnknownTable
from headrace.pipeline.definition import Pipeline
from headrace.runtime.info import CopyInfo, LogInfo, PipelineInfo, SourceInfo, TableInfo
from headrace.runtime.model import Member
from headrace.runtime.new_tables import takes
from headrace.runtime.pipeline_run import PipelineRun
from headrace.runtime.retention import LogRetention
from headrace.runtime.source_run import SourceRun
from headrace.targets.target import Target

if TYPE_CHECKING:
    from headrace.pipeline.runner import SparkRunner
    from headrace.spark_session.session import SparkInfo


# --- pipelines at work ----------------------------------------------------------------------------


def pipeline_info(
    run: PipelineRun, log: LogReader, copies: Sequence[CopyInfo] = ()
) -> PipelineInfo:
    """Return what is known of a pipeline now; `copies` are those of its source under way."""
    tables = tuple(_table_info(member, run.target, copies) for member in run.members)
    counts = [table.rows for table in tables]
    delivery = run.delivery
    return PipelineInfo(
        name=run.name,
        source=run.source,
        table=", ".join(run.tables),
        target=run.target.traits.type,
        state=str(run.state),
        tables=tables,
        rows=None if None in counts else sum(count or 0 for count in counts),
        changes=delivery.changes,
        batches=delivery.batches,
        jobs=delivery.jobs,
        position=run.reached,
        lag_seconds=_lag(run, log),
        dead_letters=delivery.letter_count,
        error=run.error or (None if run.ready else run.yielding.why),
        hops=delivery.hops.quantiles(),
        set_aside=run.yielding.why,
        left_out=run.growing.left_out,
    )


def _table_info(member: Member, target: Target, copies: Sequence[CopyInfo]) -> TableInfo:
    return TableInfo(
        table=member.table,
        state=str(member.state),
        position=member.reached,
        baseline=member.baseline,
        rows=target.row_count(member.table),
        copy=next((copy for copy in copies if copy.table == member.table), None),
    )


def _lag(run: PipelineRun, log: LogReader) -> float:
    """Return the age of the oldest change in the log that is not yet applied."""
    found = [
        log.oldest_after(member.table, member.reached) for member in run.members if member.following
    ]
    waiting = [since for since in found if since is not None]
    return max(0.0, time.time() - min(waiting) / 1_000_000) if waiting else 0.0


# --- readiness ------------------------------------------------------------------------------------


class Readiness:
    """
    Looks at what it was given, and keeps nothing but who waits. Safe to call from any thread.

    `recorded` are sources with the tables that are recorded without a pipeline; `spark_alive`
    and `at_work` say whether Spark is well and whether the engine has something running.
    """

    def __init__(
        self,
        runs: Sequence[PipelineRun],
        recordings: Mapping[str, SourceRun],
        recorded: Sequence[tuple[str, Sequence[str]]],
        spark_alive: Callable[[], bool],
        at_work: Callable[[], bool],
    ) -> None:
        self._runs = runs
        self._recordings = recordings
        self._recorded = recorded
        self._spark_alive = spark_alive
        self._at_work = at_work
        self._changed = threading.Condition()
        self._calls: list[Callable[[], None]] = []

    def now(
        self, source: str | None = None, table: str | None = None, pipeline: str | None = None
    ) -> bool:
        """Return whether the pipelines asked for are ready; False where there is none."""
        runs = [
            run
            for run in list(self._runs)
            if source in (None, run.source)
            and (table is None or table in run.tables)
            and pipeline in (None, run.name)
        ]
        recorded = [
            (self._recordings.get(each), name)
            for each, tables in self._recorded
            for name in tables
            if pipeline is None and source in (None, each) and table in (None, name)
        ]
        return (
            bool(runs or recorded)
            and (not runs or self._spark_alive())
            and all(run.ready and self._recorded_well(run.source) for run in runs)
            and all(recording is not None and recording.has(name) for recording, name in recorded)
        )

    def _recorded_well(self, source: str) -> bool:
        recording = self._recordings.get(source)
        return recording is not None and recording.ready

    def wait(self, timeout: float | None) -> bool:
        """Return whether all is ready, once it is, or waiting is of no use."""
        self.wait_for(lambda: self.now() or self._hopeless(), timeout)
        return self.now()

    def wait_for(self, done: Callable[[], bool], timeout: float | None) -> bool:
        """Look at `done` whenever something moves, until it is true or the time is over."""
        with self._changed:
            return self._changed.wait_for(done, timeout)

    def until(self, done: Callable[[], bool], source: str, timeout: float | None) -> bool:
        """Wait for something of a source, unless that is of no use; return whether it is so."""
        recording = self._recordings[source]
        runs = [run for run in list(self._runs) if run.source == source]

        def stuck() -> bool:
            # One that has stopped was let go of: it will bring nothing.
            failed = recording.gave_up or any(run.failed or run.stopped for run in runs)
            return failed or not self._at_work()

        self.wait_for(lambda: done() or stuck(), timeout)
        return done()

    def call(self, call: Callable[[], None]) -> None:
        """Call `call` once, when all is ready next: at once if it is."""
        with self._changed:
            if not self.now():
                self._calls.append(call)
                return
        call()

    def heard(self) -> None:
        """Something moved: look again."""
        calls: list[Callable[[], None]] = []
        with self._changed:
            if self.now():
                calls, self._calls = self._calls, []
            self._changed.notify_all()
        for call in calls:
            call()

    def ended(self) -> None:
        """Nothing runs any longer: nobody waits in vain."""
        with self._changed:
            self._changed.notify_all()

    def _hopeless(self) -> bool:
        return (
            not self._at_work()
            or any(run.failed for run in list(self._runs))
            or any(recording.gave_up for recording in list(self._recordings.values()))
        )


# --- what can be asked of an engine ---------------------------------------------------------------


class Knows:
    """What can be asked of an engine, from any thread."""

    _pipelines: list[Pipeline]
    _names: list[str]
    _runs: list[PipelineRun]
    _recordings: dict[str, SourceRun]
    _readiness: Readiness
    _taken: TakenTables
    _spark: SparkRunner | None

    def await_ready(self, timeout: float | None = None) -> bool:
        """
        Wait until every pipeline shows its tables and nothing is wrong.

        False when the time is over, or when waiting is of no use: a pipeline or a recorder
        stopped on an error that a person must mend, or the engine was stopped.
        """
        return self._readiness.wait(timeout)

    def is_ready(
        self, source: str | None = None, table: str | None = None, pipeline: str | None = None
    ) -> bool:
        """
        Return whether the pipelines asked for are ready, now.

        Readiness comes from what is observed and goes back to False (invariant 9): a
        failed job, a recorder that is down or a source out of reach all end it. So does a
        pause. What is only recorded is ready once its baseline is in the log.
        """
        return self._readiness.now(source, table, pipeline)

    def on_ready(self, call: Callable[[], None]) -> None:
        """Call `call` once, when the engine is ready next: at once if it is."""
        self._readiness.call(call)

    def pipelines(self) -> tuple[PipelineInfo, ...]:
        """Return every pipeline with state, counts and lag."""
        return tuple(self._info(run) for run in list(self._runs) if run.source in self._recordings)

    def pipeline_info(self, name: str) -> PipelineInfo:
        """Return one pipeline's info."""
        return self._info(self._find(name))

    def sources(self) -> tuple[SourceInfo, ...]:
        """Return every source with state, counts and lag."""
        return tuple(recording.info() for recording in list(self._recordings.values()))

    def source_info(self, name: str) -> SourceInfo:
        """Return one source's info."""
        if name not in self._recordings:
            raise NotRunning("No such source at work", source=name)
        return self._recordings[name].info()

    def log_info(self, source: str) -> LogInfo:
        """Return what a source's log holds, how far back it goes, and for whom."""
        recording = self._recordings.get(source)
        if recording is None or not isinstance(recording.care, LogRetention):
            raise NotRunning("No such source at work", source=source)
        return recording.care.info()

    def targets(self, source: str, table: str) -> tuple[Target, ...]:
        """Return the targets a table of a source is brought to."""
        return tuple(
            pipeline.target
            for pipeline in list(self._pipelines)
            if pipeline.source.name == source and takes(pipeline, table)
        )

    def target(self, pipeline: str, type: str | None = None) -> Target:
        """Return a pipeline's target; with `type`, only if it is of that type."""
        named = dict(zip(self._names, self._pipelines, strict=False))
        if pipeline not in named:
            raise NotRunning("No such pipeline", pipeline=pipeline)
        found = named[pipeline].target
        if type not in (None, found.traits.type):
            raise UnknownTable("The pipeline's target is of another type", type=found.traits.type)
        return found

    def schema(self, table: str) -> TableSchema:
        """Return a captured table's schema, as the source describes it."""
        for known, schema in list(self._taken.schemas.items()):
            if known.split("/", 1)[1] == table:
                return schema
        raise UnknownTable("No pipeline has this table, or the engine has not started", table=table)

    def spark_info(self) -> SparkInfo | None:
        """Return what Spark did so far, or None before it is up."""
        return self._spark.info() if self._spark is not None else None

    def _info(self, run: PipelineRun) -> PipelineInfo:
        recording = self._recordings[run.source]
        return pipeline_info(run, recording.log, recording.copies_under_way())

    def _find(self, name: str) -> PipelineRun:
        for run in list(self._runs):
            if run.name == name:
                return run
        if name in self._names:
            raise NotRunning("The engine has not started", pipeline=name)
        raise NotRunning("No such pipeline", pipeline=name)
