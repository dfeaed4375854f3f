"""
The engine: pipelines from Python objects, started, supervised and stopped.

```
 start: check everything ─▶ take the data directory ─▶ record (each source's recorder)
        ─▶ Spark ─▶ analyse the plans ─▶ a thread a pipeline
 stop:  pipelines ─▶ last acknowledgement ─▶ recorders ─▶ targets ─▶ Spark ─▶ the directory
```

Recorders start before Spark, because a JVM takes seconds and changes do not wait for it.
Everything that was begun is ended in reverse order, the last thing first.

`Engine` starts and stops, and has the verbs and questions of its users; its state is an
`EngineState`, which `status`, `reconfigure` and `replay` are given. `record` records without a
pipeline: the change log alone.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Literal

from headrace.capture.messages import Reset
from headrace.changelog.ranges import Moment
from headrace.changelog.schema import TableSchema
from headrace.deadletters.letter import DeadLetter
from headrace.engine import status
from headrace.engine.assembly import (
    maintain_logs,
    pipeline_run,
    prepare,
    recorder_of,
    source_run,
)
from headrace.engine.checks import checked_schemas, named
from headrace.engine.reconfigure import change_pipelines
from headrace.engine.replay import OnProgress, Replayed, replay_pipeline
from headrace.engine.state import DataDirectory, EngineOptions, EngineState
from headrace.errors import BadTransform, NotRunning, SourceRefused, UnknownTable
from headrace.extras import require
from headrace.observe.logs import log_into, logger
from headrace.pipeline.batch import Runner
from headrace.pipeline.definition import Pipeline
from headrace.runtime.copy_on_spark import share_copies
from headrace.runtime.info import LogInfo, LogOptions, PipelineInfo, SourceInfo
from headrace.runtime.lease import Lease, usable_folder
from headrace.runtime.pipeline_run import PipelineRun
from headrace.runtime.retention import end_care
from headrace.runtime.source_run import SourceRun
from headrace.runtime.spark import SparkOptions, SparkWatchdog, spark_runner, with_needs
from headrace.runtime.store import ProgressStore
from headrace.runtime.threads import Drivers
from headrace.storage.s3 import use_storage
from headrace.targets.target import Target

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headrace.capture.source import Recordable
    from headrace.pipeline.runner import Explanation
    from headrace.spark_session.session import SparkInfo

_STOP_SECONDS = 30.0
"""How long a recorder may take to flush its last changes before it is killed."""

_log = logger(__name__)


class Engine:
    """
    Runs pipelines. Synchronous, and safe to call from several threads.

    ```python
    with Engine(Pipeline(shop, "orders", orders), data="./headrace-data") as engine:
        engine.await_ready(timeout=60)
    ```

    `records` names sources and tables that are recorded whether or not a pipeline takes
    them; with no pipeline at all, Spark is not started. `log` says how long their logs are
    kept: `headrace.log(keep="24h", cap="10GB")`.
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
        log: LogOptions | None = None,
        recorder: Literal["process", "thread"] = "process",
        runner: Runner | None = None,
        on_step: Callable[[str], None] | None = None,
    ) -> None:
        taken = [(source, tuple(tables)) for source, tables in records]
        sources, names, self._misnamed = named(pipelines, [source for source, _ in taken])
        options = EngineOptions(
            data,
            session=spark,
            spark=SparkOptions(dict(spark_conf or {}), spark_ui, spark_events),
            log=log or LogOptions(),
            recorder=recorder,
            runner=runner,
            on_step=on_step or (lambda text: None),
        )
        self._state = EngineState(options, list(pipelines), names, sources, taken)

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
        Start everything; return when all plans stand and every pipeline is at work.

        Raises `InvalidConfiguration` with every error found, and leaves nothing running;
        `NotInstalled` for pipelines without Spark.
        """
        if self._state.running:
            return
        try:
            self._start()
        except BaseException:
            self._end()
            raise
        self._state.running = True

    def stop(self) -> None:
        """Stop everything in order; what was applied and recorded stays. May be called twice."""
        self._state.running = False
        # A change comes to its end first, or it would begin what is never ended.
        with self._state.changing:
            self._end()

    def _start(self) -> None:
        state = self._state
        self._check()
        self._open_directory()
        for source in state.sources.values():
            self._record(source)
        state.tables.ask_baselines(state.recordings)
        if state.pipelines:
            self._start_pipelines()
        # Last: what a pipeline needs is not known before it is open.
        maintain_logs(state)
        state.undo.append(partial(end_care, state.recordings))

    def _check(self) -> None:
        state, tables = self._state, self._state.tables
        if state.pipelines and state.options.runner is None:
            require("spark", "A pipeline")
        tables.schemas = checked_schemas(
            state.sources,
            {name: tables.named(name) for name in state.sources},
            state.pipelines,
            self._misnamed,
            {name: tables.selections(name) for name in state.sources},
        )

    def _open_directory(self) -> None:
        state = self._state
        path = usable_folder(state.options.data)
        lease = Lease(path, time.time)
        state.undo.append(lease.release)
        state.undo.append(log_into(path / "logs"))
        store = ProgressStore.at(path / "control.sqlite")
        state.undo.append(store.close)
        store.take_over()
        state.opened = DataDirectory(path, store, use_storage(path, state.options.log.storage))

    def _record(self, source: Recordable) -> None:
        state = self._state
        recording = state.recordings[source.name] = source_run(state, source)
        recording.start(recorder_of(state, recording))
        state.undo.append(partial(recording.stop, _STOP_SECONDS))
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
        prepare(state, state.runs)
        self._step("plans are analysed")
        # Each target is closed by an undo of its own: one that fails keeps no other open.
        state.undo.extend(run.close for run in state.runs)
        for run in state.runs:
            run.open()
        # All are open before the first one works, or anything is acknowledged: what a target
        # that is not open yet still needs is not known, and the source would be told to
        # forget it (invariant 1).
        drivers = state.drivers = Drivers(state.recordings, state.notify, state.acknowledge)
        state.undo.append(state.acknowledge)
        state.undo.append(drivers.stop)
        drivers.start(state.runs)
        for recording in state.recordings.values():
            recording.on_found()

    def _start_spark(self) -> Runner:
        state, directory = self._state, self._state.directory
        options = with_needs(state.options.spark, state.pipelines, directory.files)
        session = state.options.session
        runner = state.spark = spark_runner(directory.path, directory.files, session, options)
        state.undo.append(runner.stop)
        state.undo.append(SparkWatchdog(runner, self._spark_moved).stop)
        self._step("spark is up")
        return runner

    def _spark_moved(self) -> None:
        """Spark died, or runs again: no pipeline waits any longer for its next try."""
        self._state.nudge()
        self._state.notify()

    def _step(self, text: str) -> None:
        _log.info("started", step=text)
        self._state.options.on_step(text)

    def _end(self) -> None:
        """End what was begun, the last thing first; then raise the first error there was."""
        undo, first = self._state.undo, None
        try:
            while undo:
                call = undo.pop()
                try:
                    call()
                except Exception as error:  # noqa: BLE001 - the first is raised below
                    # Targets are the user's code and may raise anything. The rest must still be
                    # ended, or a recorder would outlive its engine.
                    first = first or error
        finally:
            self._state.readiness.ended()
        if first is not None:
            raise first

    # -- control --------------------------------------------------------------------------

    def pause(self, pipeline: str | None = None, *, source: str | None = None) -> None:
        """
        Let pipelines rest: one, all of a source, or all. A running job is cancelled.

        Recording goes on, and nothing is lost; a restart keeps to it, until `resume`.
        """
        state = self._state
        drivers, runs = state.running_drivers(), state.runs_of(pipeline, source)
        for run in runs:
            run.pause()
        for run in runs:
            drivers.rest(run)
        state.notify()

    def resume(self, pipeline: str | None = None, *, source: str | None = None) -> None:
        """
        Let pipelines go on that were paused, or that stopped on an error.

        Of a source, or of all, recorders that stopped for good are started again, too: after
        what they stopped on was mended, or they stop again.
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
        Take a new baseline of a table, and bring it to every target that has the table.

        Readers see the old rows, kept up to date, until the new ones take their place in
        one step. Returns whether that is done; waits for it up to `timeout` seconds, None
        for as long as it takes, but not where waiting is of no use (see `await_ready`).
        """
        state = self._state
        drivers, runs = state.running_drivers(), state.runs_of(None, source)
        done, hopeless = _ask_reload(table, runs, state.recordings[source], drivers)
        state.readiness.wait_for(lambda: done() or hopeless() or not state.running, timeout)
        return done()

    def reset_source(
        self, source: str, drop_publication: bool = False, *, timeout: float | None = 0
    ) -> bool:
        """
        Remove what is ours at a source, and begin anew there: all its tables are copied again.

        For PostgreSQL that is the slot, and the publication if asked; for SQLite the capture.
        Readers see the rows of before until the new ones take their place; until then nothing
        of the source is ready. A recorder that stopped for good is started again. Returns
        whether all is done; waits for it up to `timeout` seconds, as `reload` does.
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
        Wait until all that was committed before a marker is at every target of its source.

        A marker is a message in the source's own stream: for PostgreSQL
        `select pg_logical_emit_message(true, 'headrace', 'text')`, of 200 bytes at most. False
        when the time is over, or waiting is of no use (see `await_ready`).
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
    ) -> None:
        """
        Take pipelines in, and let others go; those that are in neither list go on untouched.

        One that is to be another is in both, under its name; one that does not run, and is
        only stored, can be let go of as well. Each of `sources`, and the source
        of an added pipeline, takes the place of the one of its name; its other pipelines go
        on. Raises `InvalidConfiguration` with everything that is wrong, and has then changed
        nothing. What fails later, a target that cannot be opened, is raised at the end: that
        pipeline is not there then.
        """
        change_pipelines(self._state, add, drop, sources)

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
        Bring a part of a pipeline's log to another target; the pipeline goes on meanwhile.

        `start` and `end` are positions, or times with an offset from UTC; both are included.
        Without `start` it begins with the baseline, without `end` it ends where the log does
        now. A target is any that takes rows, or `"memory"`, `"parquet:DIR"`, `"jsonl:FILE"`
        (`-` for stdout). Raises `PositionExpired` where the log does not reach back so far, and
        `ChangesMissing` where it has a gap in between.
        """
        return replay_pipeline(self._state, pipeline, target, start, end, on_progress)

    # -- readiness and status -------------------------------------------------------------

    def await_ready(self, timeout: float | None = None) -> bool:
        """
        Wait until every pipeline shows its tables and nothing is wrong.

        False when the time is over, or when waiting is of no use: a pipeline or a recorder
        stopped on an error that a person must mend, or the engine was stopped.
        """
        return self._state.readiness.wait(timeout)

    def is_ready(
        self, source: str | None = None, table: str | None = None, pipeline: str | None = None
    ) -> bool:
        """
        Return whether the pipelines asked for are ready, now.

        Readiness comes from what is observed and goes back to False (invariant 9): a
        failed job, a recorder that is down or a source out of reach all end it. So does a
        pause. What is only recorded is ready once its baseline is in the log.
        """
        return self._state.readiness.now(source, table, pipeline)

    def on_ready(self, call: Callable[[], None]) -> None:
        """Call `call` once, when the engine is ready next: at once if it is."""
        self._state.readiness.call(call)

    def pipelines(self) -> tuple[PipelineInfo, ...]:
        """Return every pipeline with state, counts and lag."""
        return status.pipelines(self._state)

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
        """Return what a source's log holds, how far back it goes, and for whom."""
        return status.log_info(self._state, source)

    def targets(self, source: str, table: str) -> tuple[Target, ...]:
        """Return the targets a table of a source is brought to."""
        return status.targets(self._state, source, table)

    def target(self, pipeline: str, type: str | None = None) -> Target:
        """Return a pipeline's target; with `type`, only if it is of that type."""
        return status.target(self._state, pipeline, type)

    def schema(self, table: str) -> TableSchema:
        """Return a captured table's schema, as the source describes it."""
        return status.schema(self._state, table)

    def spark_info(self) -> SparkInfo | None:
        """Return what Spark did so far, or None before it is up."""
        return status.spark_info(self._state)

    def dead_letters(
        self, pipeline: str | None = None, *, superseded: bool = False
    ) -> tuple[DeadLetter, ...]:
        """Return the changes that were set aside, pipeline by pipeline, in position order."""
        return tuple(
            letter
            for run in self._state.runs_of(pipeline, None)
            for letter in run.delivery.letters.all(superseded=superseded)
        )

    def explain(self, pipeline: str) -> Explanation:
        """Return how Spark ran a pipeline's last batch; print it to read it."""
        run, spark = self._state.run_of(pipeline), self._state.spark
        if spark is None:
            raise NotRunning("The engine runs without Spark", pipeline=pipeline)
        return spark.explain(run.prepared)


def _ask_reload(
    table: str, runs: Sequence[PipelineRun], recording: SourceRun, drivers: Drivers
) -> tuple[Callable[[], bool], Callable[[], bool]]:
    """
    Ask for a reload of a table; `runs` are its source's pipelines.

    Returns what tells whether it is done, and what tells whether waiting is of no use.
    """
    runs = [run for run in runs if table in run.tables]
    if not runs:
        raise UnknownTable("No pipeline has this table", table=table, source=recording.name)
    runs = [run for run in runs if run.pipeline.mode != "changes"]
    if not runs:
        raise BadTransform("A pipeline of mode changes takes no baseline", table=table)
    newest = recording.log.usable_baseline(table)
    for run in runs:
        # One number for all: they share the copy.
        run.ask_reload(table, newest.baseline if newest else 0)
        drivers.wake(run)

    def done() -> bool:
        return not any(run.reloading(table) for run in runs)

    def hopeless() -> bool:
        return recording.gave_up or any(run.failed or run.stopped for run in runs)

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

    It is started, and runs until its `stop`, or the end of the process. What is recorded
    is there for pipelines and readers of the log to come. Spark is not needed. `log` is as for
    `Engine`: how long it is kept, and where it lies.
    """
    names = [tables] if isinstance(tables, str) else list(tables)
    engine = Engine(data=data, records=[(source, names)], log=log)
    engine.start()
    return engine
