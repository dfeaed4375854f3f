"""
The engine: pipelines from Python objects, started, supervised and stopped.

```
 start: check everything ─▶ take the data directory ─▶ record (each source's recorder)
        ─▶ Spark ─▶ analyse the plans ─▶ a thread a pipeline
 stop:  pipelines ─▶ last acknowledgement ─▶ recorders ─▶ targets ─▶ Spark ─▶ the directory
```

Recorders start before Spark, because a JVM takes seconds to start and changes do not wait for it.
Everything that was started is stopped in reverse order.

`Engine` starts and stops, and has the public methods; its state is an `EngineState`, which is
passed to `status`, `reconfigure` and `replay`. `record` runs without a pipeline: it only writes the
change log.

Long because every public method of an engine is here, with its documentation.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import suppress
from datetime import datetime
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Literal

from headrace.capture.messages import ENDLESS, Reset, Retries
from headrace.changelog.position import Position
from headrace.changelog.ranges import Moment
from headrace.changelog.schema import TableSchema
from headrace.config.units import duration
from headrace.deadletters.ledger import Purged, Selection
from headrace.deadletters.letter import DeadLetter
from headrace.deadletters.store import DeadLetterStore
from headrace.engine import status
from headrace.engine.assembly import (
    logged_tables,
    maintain_logs,
    pipeline_run,
    prepare,
    recorder_of,
    source_run,
)
from headrace.engine.checks import checked_schemas, named
from headrace.engine.health import Health, HealthObserver
from headrace.engine.metrics import CATALOGUE, MetricsCollector
from headrace.engine.reconfigure import change_pipelines
from headrace.engine.replay import OnProgress, Replayed, replay_pipeline
from headrace.engine.state import DataDirectory, EngineOptions, EngineState
from headrace.errors import (
    BadTransform,
    ControlError,
    NotRunning,
    SourceRefused,
    UnknownTable,
    WrongValue,
)
from headrace.extras import require
from headrace.observe.dispatch import ObserverHandle, ObserverInfo
from headrace.observe.events import Observer
from headrace.observe.logs import log_into, logger
from headrace.observe.metrics import Metric, offer
from headrace.pipeline.batch import Runner
from headrace.pipeline.definition import Pipeline
from headrace.runtime.copy_on_spark import share_copies
from headrace.runtime.corrections import ReplayOutcome, ReplayRequest
from headrace.runtime.info import LogInfo, LogOptions, PipelineInfo, SourceInfo
from headrace.runtime.lease import Lease, usable_folder
from headrace.runtime.pipeline_run import PipelineRun
from headrace.runtime.retention import stop_retention
from headrace.runtime.source_run import SourceRun
from headrace.runtime.spark import SparkOptions, SparkWatchdog, spark_runner, with_needs
from headrace.runtime.store import ProgressStore
from headrace.runtime.threads import Drivers, StopLimits, call_within
from headrace.storage.s3 import use_storage
from headrace.targets.target import Target

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
    from pyspark.sql import SparkSession

    from headrace.capture.source import Recordable
    from headrace.observe.counters import BatchTimes
    from headrace.pipeline.runner import Explanation
    from headrace.spark_session.session import SparkInfo

_log = logger(__name__)


class Engine:
    """
    Runs pipelines. Synchronous, and safe to call from several threads.

    ```python
    with Engine(Pipeline(shop, "orders", orders), data="./headrace-data") as engine:
        engine.await_ready(timeout=60)
    ```

    `records` lists sources and tables to record even if no pipeline uses them. Without any
    pipeline, Spark is not started. `log` sets the retention of the change logs:
    `headrace.log(keep="24h", cap="10GB")`. `shutdown_timeout` limits `stop`, in seconds or as
    `30s`. `small_batches="job"` computes every batch by a Spark job; by default, a small one whose
    plan allows it is computed without. `retry` says how failed pipelines are tried again, unless
    they have their own, and `reconnect` lost sources, all or by name:
    `headrace.Retries(max_attempts=10)`. `observers` take its events, as those of `observe` do.
    """

    def __init__(
        self,
        *pipelines: Pipeline,
        data: str | os.PathLike[str] = "./headrace-data",
        records: Sequence[tuple[Recordable, Sequence[str]]] = (),
        spark: SparkSession | None = None,
        spark_conf: Mapping[str, str] | None = None,
        spark_ui: bool = False,
        spark_events: bool = False,
        small_batches: Literal["direct", "job"] = "direct",
        log: LogOptions | None = None,
        recorder: Literal["process", "thread"] = "process",
        runner: Runner | None = None,
        on_step: Callable[[str], None] | None = None,
        shutdown_timeout: str | float = 30.0,
        retry: Retries | None = None,
        reconnect: Retries | Mapping[str, Retries] | None = None,
        observers: Sequence[Observer] = (),
    ) -> None:
        taken = [(source, tuple(tables)) for source, tables in records]
        sources, names, self._misnamed = named(pipelines, [source for source, _ in taken])
        options = EngineOptions(
            data,
            session=spark,
            spark=SparkOptions(dict(spark_conf or {}), spark_ui, spark_events, _way(small_batches)),
            log=log or LogOptions(),
            recorder=recorder,
            runner=runner,
            on_step=on_step or (lambda text: None),
            shutdown_timeout=_seconds(shutdown_timeout),
            retry=retry or ENDLESS,
            reconnect=reconnect if isinstance(reconnect, Retries) else ENDLESS,
        )
        state = self._state = EngineState(options, list(pipelines), names, sources, taken)
        if reconnect is not None and not isinstance(reconnect, Retries):
            self._state.reconnects.update(_known(reconnect, sources))
        for observer in observers:
            self.observe(observer)
        self._health = HealthObserver(
            state, lambda: (status.sources(state), status.pipelines(state, count=False))
        )
        self._metrics = MetricsCollector(state, self._health)

    # -- start and stop -------------------------------------------------------------------

    def __enter__(self) -> Engine:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def start(self) -> None:
        """
        Start everything; return when all plans are compiled and every pipeline is running.

        A target that cannot be opened puts its own pipeline in error, and is tried again. The
        pipelines of a source that cannot be reached serve what its log has, if it has something,
        and are not ready.
        Raises `InvalidConfiguration` with every error found, and leaves nothing running.
        Raises `NotInstalled` if there are pipelines and Spark is not installed.
        """
        if self._state.running:
            return
        try:
            self._start()
        except BaseException:
            self._end(StopLimits(self._state.options.shutdown_timeout))
            raise
        self._state.started_at = time.time()
        self._state.running = True

    @property
    def data(self) -> Path:
        """The data directory, absolute."""
        return Path(self._state.options.data).expanduser().absolute()

    def cancel_start(self) -> None:
        """End a start that runs on another thread; at its next step it raises `NotRunning`."""
        self._state.cancelled = True
        self._state.readiness.ended()

    def stop(self) -> None:
        """
        Stop everything in order; applied and recorded changes are kept. May be called twice.

        Returns within `shutdown_timeout`. What does not end by then, such as a target's write that
        hangs, is named in the log file, and left behind on a daemon thread: its batch is delivered
        again after the next start.
        """
        state = self._state
        state.running = False
        limits = StopLimits(state.options.shutdown_timeout)
        # A running `change` finishes first, or it would start parts that are never stopped.
        held = state.changing.acquire(timeout=limits.next)
        try:
            self._end(limits)
        finally:
            if held:
                state.changing.release()

    def _start(self) -> None:
        state = self._state
        self._check()
        self._open_directory()
        for name, error in state.tables.away.items():
            self._step(f"source {name} is away: {error.message}")
        for source in state.sources.values():
            self._record(source)
        state.tables.ask_baselines(state.recordings)
        if state.pipelines:
            self._start_pipelines()
        # Last: what a pipeline needs is only known once it is open.
        maintain_logs(state)
        state.undo.append(partial(stop_retention, state.recordings))

    def _check(self) -> None:
        state, tables = self._state, self._state.tables
        tables.away.clear()
        if state.pipelines and state.options.runner is None:
            require("spark", "A pipeline")
        tables.schemas = checked_schemas(
            state.sources,
            {name: tables.named(name) for name in state.sources},
            state.pipelines,
            self._misnamed,
            {name: tables.selections(name) for name in state.sources},
            tables.away,
            logged=partial(logged_tables, state.options.data, state.options.log.storage),
        )

    def _open_directory(self) -> None:
        state = self._state
        path = usable_folder(state.options.data)
        lease = Lease(path, time.time)
        state.undo.append(lease.release)
        state.undo.append(log_into(path / "logs"))
        # Stopped after everything that emits events, and before the log file is closed.
        state.events.start()
        state.undo.append(state.stop_events)
        store = ProgressStore.at(path / "control.sqlite")
        state.undo.append(store.close)
        store.take_over()
        state.opened = DataDirectory(path, store, use_storage(path, state.options.log.storage))

    def _record(self, source: Recordable) -> None:
        state = self._state
        recording = state.recordings[source.name] = source_run(state, source)
        if (away := state.tables.away.get(source.name)) is not None:
            recording.expect_away(away)
        recording.start(recorder_of(state, recording))
        # A recorder that does not flush in time is killed, which loses nothing.
        state.undo.append(partial(state.stop_recorder, recording))
        self._step(f"recording {source.name}")

    def _start_pipelines(self) -> None:
        state = self._state
        runner = state.runner = state.options.runner or self._start_spark()
        files = state.directory.files
        for copies in share_copies(state.recordings, state.sources, runner, files):
            state.undo.append(copies.stop)
        state.runs[:] = [
            pipeline_run(state, name, pipeline, state.recordings[pipeline.source.name])
            for name, pipeline in zip(state.names, state.pipelines, strict=True)
        ]
        prepare(state.runs)
        self._step("pipelines compiled")
        # Each target is closed by a call of its own: an error in one does not keep another open.
        state.undo.extend(run.close for run in state.runs)
        # All progress is known before the first one runs and before anything is acknowledged, or
        # the source would discard what a target still needs (invariant 1). The targets are opened
        # by the pipelines' own threads: one that cannot be opened keeps nothing else from running.
        for run in state.runs:
            run.recall()
        drivers = state.drivers = Drivers(
            state.recordings,
            state.notify,
            state.acknowledge,
            patience=state.options.shutdown_timeout / 3,
            abandon=lambda run: self._abandon(f"pipeline {run.name}"),
        )
        state.undo.append(state.acknowledge)
        state.undo.append(partial(state.stop_drivers, drivers))
        drivers.start(state.runs)
        state.await_opened(state.runs)
        self._check_cancelled()
        for recording in state.recordings.values():
            recording.on_found()

    def _start_spark(self) -> Runner:
        state, directory = self._state, self._state.directory
        # Not `_step`: it has not started yet, and takes longest.
        self._check_cancelled()
        state.options.on_step("starting Spark")
        options = with_needs(state.options.spark, state.pipelines, directory.files)
        session = state.options.session
        runner = state.spark = spark_runner(directory.path, directory.files, session, options)
        state.undo.append(runner.stop)
        watchdog = state.watchdog = SparkWatchdog(runner, self._spark_moved)
        state.undo.append(watchdog.stop)
        self._step("Spark is ready")
        return runner

    def _spark_moved(self) -> None:
        """Make all pipelines try again now, because Spark died or was restarted."""
        self._state.nudge()
        self._state.notify()

    def _check_cancelled(self) -> None:
        if self._state.cancelled:
            raise NotRunning("The start was cancelled")

    def _step(self, text: str) -> None:
        self._check_cancelled()
        _log.info("started", step=text)
        self._state.options.on_step(text)

    def _end(self, limits: StopLimits) -> None:
        """Stop what was started, in reverse order; then raise the first error."""
        undo, first = self._state.undo, None
        self._state.stop_limits = limits
        try:
            while undo:
                call = undo.pop()
                try:
                    if call_within(limits.next, call):
                        continue
                    if isinstance(run := getattr(call, "__self__", None), PipelineRun):
                        run.abandon()
                    self._abandon(_part(call))
                except Exception as error:  # noqa: BLE001 - the first is raised below
                    # Targets are user code and may raise anything. The rest must still be
                    # stopped, or a recorder would outlive its engine.
                    first = first or error
        finally:
            self._state.cancelled = False
            self._state.readiness.ended()
        if first is not None:
            raise first

    def _abandon(self, part: str) -> None:
        # Not on this thread: what hangs may be the disk of the log file.
        limits = self._state.stop_limits
        written = call_within(
            limits.for_a_line, lambda: _log.error("stop did not wait any longer", left=part)
        )
        limits.log_hangs = not written
        with suppress(Exception):  # whatever cannot be shown, everything else must be stopped
            self._state.options.on_step(f"{part} did not stop in time and was left behind")

    # -- control --------------------------------------------------------------------------

    def pause(self, pipeline: str | None = None, *, source: str | None = None) -> None:
        """
        Pause pipelines: one, all of a source, or all. A running job is cancelled.

        Capture continues and nothing is lost. A paused pipeline stays paused after a restart,
        until `resume`. Raises `ControlError` if a pipeline is paused and its batch does not end
        in time, because a call of its target hangs: it may still have effects.
        """
        state = self._state
        drivers, runs = state.running_drivers(), state.runs_of(pipeline, source)
        for run in runs:
            run.pause()
        busy = drivers.rest(runs)
        state.notify()
        if busy:
            names = ", ".join(run.name for run in busy)
            raise ControlError(
                f"Paused, but the current batch of {names} does not end",
                remedy="A call of its target hangs, or Spark does. Nothing follows that batch"
                " before the pipeline is resumed.",
                pipelines=names,
            )

    def resume(self, pipeline: str | None = None, *, source: str | None = None) -> None:
        """
        Resume pipelines that were paused, or that stopped on an error.

        For a source, or for all, recorders that stopped permanently are also restarted. Fix
        the cause first, or they stop again.
        """
        state = self._state
        runs = state.runs_of(pipeline, source)
        if not state.running:
            raise NotRunning("The engine has not started")
        for name, recording in list(state.recordings.items()):
            if pipeline is None and source in (None, name):
                recording.resume()
        for run in runs:
            run.resume()
            state.wake(run)
        state.notify()

    def reload(self, source: str, table: str, *, timeout: float | None = 0) -> bool:
        """
        Take a new baseline of a table, and load it into every target that has the table.

        Readers see the old rows, kept up to date, until the new ones replace them in one
        step. A copy of the table that is already being made counts as the new baseline.
        Returns whether that is done; waits for it up to `timeout` seconds, or without
        limit if None, but not if waiting cannot help (see `await_ready`).
        """
        state = self._state
        drivers, runs = state.running_drivers(), state.runs_of(None, source)
        done, hopeless = _ask_reload(table, runs, state.recordings[source], drivers)
        state.readiness.wait_for(lambda: done() or hopeless() or not state.running, timeout)
        return done()

    def reload_all(
        self, source: str | None = None, *, timeout: float | None = 0
    ) -> Mapping[tuple[str, str], bool]:
        """
        Reload all tables of a source, or of all sources, that pipelines load.

        Returns for each source and table whether that is done; waits as `reload` does, until all
        are done, or those that are not cannot be helped by waiting.
        """
        state = self._state
        drivers, runs = state.running_drivers(), state.runs_of(None, source)
        loads = [run for run in runs if run.pipeline.mode != "changes"]
        tables = sorted({(run.source, table) for run in loads for table in run.tables})
        if not tables:
            raise UnknownTable("No pipeline loads tables", source=source or "any")
        asked = {
            (of, table): _ask_reload(
                table, [run for run in runs if run.source == of], state.recordings[of], drivers
            )
            for of, table in tables
        }

        def over() -> bool:
            return not state.running or all(
                done() or hopeless() for done, hopeless in asked.values()
            )

        state.readiness.wait_for(over, timeout)
        return {each: done() for each, (done, _) in asked.items()}

    def reset_source(
        self, source: str, drop_publication: bool = False, *, timeout: float | None = 0
    ) -> bool:
        """
        Remove our objects from a source and start over: all its tables are copied again.

        For PostgreSQL these are the slot, and the publication if requested; for SQLite, the
        triggers and their table. Readers see the old rows until the new ones replace them;
        until then the source is not ready. A recorder that stopped permanently is restarted.
        Returns whether all is done; waits for it up to `timeout` seconds, as `reload` does.
        """
        state = self._state
        recording = state.recording_of(source)
        if not state.sources[source].traits.resets:
            raise SourceRefused("This kind of source cannot be reset", source=source)
        recording.reset(Reset(drop_publication))
        state.notify()
        return state.readiness.until(lambda: self.is_ready(source), source, timeout)

    def await_marker(self, source: str, text: str, timeout: float | None = None) -> bool:
        """
        Wait until every target of a source has all changes committed before a marker.

        A marker is a message in the source's own stream: for PostgreSQL
        `select pg_logical_emit_message(true, 'headrace', 'text')`, of at most 200 bytes.
        Returns False after the timeout, or if waiting cannot help (see `await_ready`).
        """
        state = self._state
        recording, runs = state.recording_of(source), state.runs_of(None, source)

        def arrived() -> bool:
            at = recording.log.marker(text)
            return at is not None and all(run.has(at) for run in runs)

        return state.readiness.until(arrived, source, timeout)

    def change(
        self,
        add: Sequence[Pipeline] = (),
        drop: Sequence[str] = (),
        sources: Sequence[Recordable] = (),
        reconnect: Mapping[str, Retries] | None = None,
    ) -> None:
        """
        Add and drop pipelines; all others continue unchanged.

        To replace a pipeline, put it into both lists, under its name. A pipeline that is
        stored but does not run can also be dropped. Each of `sources`, and the source of an
        added pipeline, replaces the source of the same name; other pipelines of that source
        continue. `reconnect` replaces how sources are tried again, by name.
        Raises `InvalidConfiguration` with every error, and then nothing has changed. A later
        error, such as a target that cannot be closed, is raised at the end. A target that cannot
        be opened puts its pipeline in error, and is tried again, as at a start.
        """
        change_pipelines(self._state, add, drop, sources, reconnect or {})

    def replay(
        self,
        pipeline: str,
        target: Target | str,
        *,
        start: Moment | None = None,
        end: Moment | None = None,
        on_progress: OnProgress = lambda progress: None,
    ) -> Replayed:
        """
        Replay part of a pipeline's log into another target, while the pipeline continues.

        `start` and `end` are positions, or times with an offset from UTC; both are included.
        Without `start`, it begins with the baseline; without `end`, it ends at the current end
        of the log. The target is any that takes rows, or `"memory"`, `"parquet:DIR"`,
        `"jsonl:FILE"` (`-` for stdout). Raises `PositionExpired` if the log does not go back
        that far, and `ChangesMissing` if it has a gap in between.
        """
        return replay_pipeline(self._state, pipeline, target, start, end, on_progress)

    # -- readiness and status -------------------------------------------------------------

    def await_ready(self, timeout: float | None = None) -> bool:
        """
        Wait until every pipeline is ready.

        Returns False after the timeout, or if waiting cannot help: a pipeline or a recorder
        stopped on an error that a person must fix, or the engine was stopped.
        """
        return self._state.readiness.wait(timeout)

    def is_ready(
        self, source: str | None = None, table: str | None = None, pipeline: str | None = None
    ) -> bool:
        """
        Return whether the given pipelines are ready now.

        Readiness is observed and can go back to False (invariant 9): after a failed job, while
        a recorder is down or a source cannot be reached, and during a pause. A table that is
        only recorded is ready once its baseline is in the log.
        """
        return self._state.readiness.now(source, table, pipeline)

    def on_ready(self, call: Callable[[], None]) -> None:
        """
        Call `call` once, when the engine is ready: immediately if it is.

        Later, it is called on a thread of the engine, and what it raises is only logged.
        """
        self._state.readiness.call(call)

    def observe(self, observer: Observer, name: str = "") -> ObserverHandle:
        """
        Pass every event to `observer` from now on, also after a restart of the engine.

        `remove` of the returned handle ends that. `name`, by default the class, is for the log
        file and `observers`. See `headrace.observe.events.Observer` for what an observer gets.
        """
        return self._state.events.observe(observer, name)

    def observers(self) -> tuple[ObserverInfo, ...]:
        """Return every observer with the number of events that it got and missed."""
        return self._state.events.infos()

    def health(self) -> Health:
        """
        Return whether the engine is live, ready and started, with the reasons if it is not.

        Computed each time, within a second, whatever hangs.
        """
        return self._health.look()

    def metrics(self, *, compat: bool = False) -> tuple[Metric, ...]:
        """
        Return the metrics of everything, as of now; with `compat`, also under Laredo's names.

        `headrace.observe.metrics.prometheus_text` renders them for Prometheus. Computed within a
        second: if something hangs, `headrace_up` is 0 and most metrics have no samples.
        """
        return self._metrics.metrics(compat=compat)

    def export_metrics(self, provider: MeterProvider) -> None:
        """
        Register the metrics with a meter provider of OpenTelemetry, which reads them from then on.

        Needs the extra `otel`. Call it once for each provider; it refers to the engine.
        """
        offer(provider, CATALOGUE, self.metrics)

    @property
    def started_at(self) -> float | None:
        """When the engine was started, in seconds since 1970; None before."""
        return self._state.started_at

    def pipelines(self, *, count: bool = True) -> tuple[PipelineInfo, ...]:
        """
        Return every pipeline with state, counts and lag.

        Without `count`, rows of targets are not counted again: their numbers are the last ones.
        """
        return status.pipelines(self._state, count=count)

    def pipeline_info(self, name: str) -> PipelineInfo:
        """Return one pipeline's info."""
        return status.pipeline_info(self._state, name)

    def sources(self) -> tuple[SourceInfo, ...]:
        """Return every source with state, counts and lag."""
        return status.sources(self._state)

    def source_info(self, name: str) -> SourceInfo:
        """Return one source's info."""
        return status.source_info(self._state, name)

    def log_info(self, source: str) -> LogInfo:
        """Return what a source's log contains, how far back it goes, and what keeps it."""
        return status.log_info(self._state, source)

    def targets(self, source: str, table: str) -> tuple[Target, ...]:
        """Return the targets that a table of a source is delivered to."""
        return status.targets(self._state, source, table)

    def target(self, pipeline: str, type: str | None = None) -> Target:
        """Return a pipeline's target; with `type`, only if it is of that type."""
        return status.target(self._state, pipeline, type)

    def readable_targets(self) -> tuple[status.ReadableTarget, ...]:
        """Return the open targets whose tables can be read in this process."""
        return tuple(status.readable_targets(self._state))

    def schema(self, table: str) -> TableSchema:
        """Return a captured table's schema, as the source describes it."""
        return status.schema(self._state, table)

    def schemas(self) -> Mapping[tuple[str, str], TableSchema]:
        """Return the schema of every captured table, by source and table."""
        return status.schemas(self._state)

    def spark_info(self) -> SparkInfo | None:
        """Return what Spark has done so far, or None before it is ready."""
        return status.spark_info(self._state)

    def spark_down_seconds(self) -> float | None:
        """Return for how long Spark has been dead, or has not answered; None if it runs."""
        return self._state.spark_down_seconds

    def dead_letters(
        self, pipeline: str | None = None, *, superseded: bool = False
    ) -> tuple[DeadLetter, ...]:
        """
        Return the dead letters, pipeline by pipeline, in position order.

        With `superseded`, also those that ended less than `DeadLetters.keep` ago.
        """
        return tuple(
            dead_letter
            for run in self._state.runs_of(pipeline, None)
            for dead_letter in run.delivery.dead_letters.all(superseded=superseded)
        )

    def purge_dead_letters(
        self,
        pipeline: str,
        *,
        table: str | None = None,
        code: str | None = None,
        before: Position | datetime | None = None,
        position: Position | None = None,
        key: Sequence[object] | None = None,
        note: str = "",
    ) -> tuple[Purged, ...]:
        """
        Give up changes that became dead letters; return how many were purged, by table.

        All conditions must hold: of a table, with a code, of changes before a position or parked
        before a time, at a position, of the row with a key. Later changes of the same rows that
        wait behind them are purged, too. Their keys are released, and later changes reach the
        target again, but its rows may differ from the source's:
        `pipeline_info(pipeline).rows_given_up` counts them, until `reload` copies the table again.
        `note` says who did it and why, and stays with them.
        """
        keys = self._keys_of(pipeline, table, key)
        selection = Selection(table, code, before, position, keys)
        purged = self.dead_letter_store(pipeline).purge(selection, note)
        for each in purged:
            _log.info(
                "dead letters purged",
                pipeline=pipeline,
                table=each.table,
                count=each.dead_letters,
                note=note,
            )
        self._state.notify()
        return purged

    def replay_dead_letters(
        self,
        pipeline: str,
        *,
        table: str | None = None,
        code: str | None = None,
        before: Position | datetime | None = None,
        position: Position | None = None,
        key: Sequence[object] | None = None,
        note: str = "",
        dry_run: bool = False,
        timeout: float = 60.0,
    ) -> tuple[ReplayOutcome, ...]:
        """
        Apply dead letters to the target, and return what became of each.

        The conditions are those of `purge_dead_letters`. Each is applied together with all dead
        letters of the same row, in their order, at the position that the table has reached; later
        changes of the row then reach the target again. What fails again is a dead letter again,
        at its new position. With `dry_run` nothing changes, and the outcomes are what would
        happen. The pipeline must be running. Raises `CannotReplay` with the reason if it cannot be
        done, or not within `timeout` seconds.
        """
        keys = self._keys_of(pipeline, table, key)
        selection = Selection(table, code, before, position, keys)
        return self._replay(pipeline, ReplayRequest(selection, None, note, dry_run), timeout)

    def edit_dead_letter(
        self,
        pipeline: str,
        position: Position,
        values: Mapping[str, object],
        *,
        table: str | None = None,
        key: Sequence[object] | None = None,
        note: str = "",
        dry_run: bool = False,
        timeout: float = 60.0,
    ) -> tuple[ReplayOutcome, ...]:
        """
        Apply a dead letter with other values in its row; return what became of it.

        `values` has the new values by column, of the table as it was captured; key columns cannot
        be edited. Rows of one copy that failed have the same position: `key` names the row, as in
        `DeadLetter.key`. The rest is as for `replay_dead_letters`. The target's row then differs
        from the source's, until the row changes at the source, or the table is copied again.
        """
        selection = Selection(table, None, None, position, self._keys_of(pipeline, table, key))
        request = ReplayRequest(selection, dict(values), note, dry_run)
        return self._replay(pipeline, request, timeout)

    def _keys_of(
        self, pipeline: str, table: str | None, key: Sequence[object] | None
    ) -> Set[bytes] | None:
        """Return the key of a row as dead letters hold it; empty if they hold no such key."""
        if key is None:
            return None
        found = self.dead_letter_store(pipeline).all(table)
        return {held for each in found if each.key == tuple(key) for held in each.keys}

    def _replay(
        self, pipeline: str, request: ReplayRequest, timeout: float
    ) -> tuple[ReplayOutcome, ...]:
        run = self._state.run_of(pipeline)
        if not self._state.running:
            raise NotRunning("The engine has not started")
        outcomes = run.replay(request, partial(self._state.wake, run), timeout)
        if not request.dry_run:
            _log.info(
                "dead letters edited" if request.edits else "dead letters replayed",
                pipeline=pipeline,
                count=len(outcomes),
                applied=sum(each.outcome == "applied" for each in outcomes),
                note=request.note,
            )
            self._state.notify()
        return outcomes

    def dead_letter_store(self, pipeline: str) -> DeadLetterStore:
        """Return the store of a pipeline's dead letters: counts, pages, what a purge would end."""
        return self._state.run_of(pipeline).delivery.dead_letters

    def recent_batches(self, pipeline: str) -> tuple[BatchTimes, ...]:
        """Return the times of a pipeline's last batches, at most 1,000, the newest last."""
        return self._state.run_of(pipeline).delivery.hops.samples()

    def explain(self, pipeline: str) -> Explanation:
        """Return how Spark ran a pipeline's last batch; print the result to read it."""
        run, spark = self._state.run_of(pipeline), self._state.spark
        if spark is None:
            raise NotRunning("The engine runs without Spark", pipeline=pipeline)
        return spark.explain(run.prepared)


def _way(given: Literal["direct", "job"]) -> Literal["direct", "job"]:
    if given not in ("direct", "job"):
        raise WrongValue("small_batches must be direct or job", given=given)
    return given


def _seconds(given: str | float) -> float:
    found = duration(given) if isinstance(given, str) else float(given)
    if found <= 0:
        raise WrongValue("shutdown_timeout must be greater than 0", given=given)
    return found


def _known(
    reconnect: Mapping[str, Retries], sources: Mapping[str, object]
) -> Mapping[str, Retries]:
    if unknown := [name for name in reconnect if name not in sources]:
        raise WrongValue(
            "The engine does not have this source, which reconnect names", source=unknown[0]
        )
    return reconnect


_PARTS = {
    ("EngineState", "acknowledge"): "the last acknowledgement",
    ("EngineState", "stop_drivers"): "the threads of the pipelines",
    ("EngineState", "stop_events"): "the thread of the observers",
    ("Lease", ""): "the lock of the data directory",
    ("NoneType", "stop_retention"): "the retention of the logs",
    ("NoneType", ""): "the log file",
    ("ProgressStore", ""): "the control store (control.sqlite)",
    ("SparkCopies", ""): "copies by Spark tasks",
    ("SparkRunner", ""): "Spark",
    ("SparkWatchdog", ""): "the check whether Spark is alive",
}
"""What a call that stops something belongs to, by the class and name of the method."""


def _part(call: Callable[[], None]) -> str:
    """Return what a call that stops something belongs to, for people."""
    of = getattr(getattr(call, "func", call), "__self__", None)
    if isinstance(of, PipelineRun):
        return f"the target of pipeline {of.name}"
    for each in getattr(call, "args", ()):
        if isinstance(each, SourceRun):
            return f"source {each.name}"
    name = getattr(getattr(call, "func", call), "__name__", "")
    return _PARTS.get((type(of).__name__, name)) or _PARTS.get((type(of).__name__, ""), "a part")


def _ask_reload(
    table: str, runs: Sequence[PipelineRun], recording: SourceRun, drivers: Drivers
) -> tuple[Callable[[], bool], Callable[[], bool]]:
    """
    Request a reload of a table; `runs` are its source's pipelines.

    Returns two functions: whether it is done, and whether waiting cannot help.
    """
    runs = [run for run in runs if table in run.tables]
    if not runs:
        raise UnknownTable("No pipeline has this table", table=table, source=recording.name)
    runs = [run for run in runs if run.pipeline.mode != "changes"]
    if not runs:
        raise BadTransform(
            "Pipelines in mode changes do not load baselines",
            table=table,
            remedy="Reload tables of pipelines in another mode. To load these once, add a pipeline"
            " in mode baseline_then_changes, or use headrace replay.",
        )
    newest = recording.log.usable_baseline(table)
    for run in runs:
        # The same number for all: they share the copy.
        run.ask_reload(table, newest.baseline if newest else 0)
        drivers.wake(run)

    def done() -> bool:
        return not any(run.reloading(table) for run in runs)

    def hopeless() -> bool:
        return recording.gave_up or any(
            run.failed or run.stopped or run.paused or table in run.lost for run in runs
        )

    return done, hopeless


def record(
    source: Recordable,
    tables: str | Sequence[str],
    *,
    data: str | os.PathLike[str] = "./headrace-data",
    log: LogOptions | None = None,
) -> Engine:
    """
    Record tables of a source into the change log, and nothing else; return the engine.

    The engine is started, and runs until `stop` or the end of the process. Pipelines and other
    readers can use the log later. Spark is not needed. `log` is as for `Engine`: retention and
    storage.
    """
    names = [tables] if isinstance(tables, str) else list(tables)
    engine = Engine(data=data, records=[(source, names)], log=log)
    engine.start()
    return engine
