"""
The engine: pipelines from Python objects, started, supervised and stopped.

```
 start: check everything ─▶ take the data directory ─▶ record (each source's recorder)
        ─▶ Spark ─▶ analyse the plans ─▶ a thread a pipeline
 stop:  pipelines ─▶ last acknowledgement ─▶ recorders ─▶ targets ─▶ Spark ─▶ the directory
```

Recorders start before Spark, because a JVM takes seconds and changes do not wait for it.
Everything that was begun is ended in reverse order, the last thing first (`unwind`).

A reload of a table is a baseline newer than the last one, for every pipeline that has the table
(`ask_reload`). `record` records without a pipeline: the change log alone.
"""

from __future__ import annotations

import os
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Literal

from headrace.capture.messages import Reset
from headrace.capture.process import RunningRecorder, start_recorder
from headrace.changelog.reader import LogReader
from headrace.deadletters.letter import DeadLetter
from headrace.engine.checks import checked_schemas, gathered, named
from headrace.engine.reconfigure import Home, Reconfiguration
from headrace.engine.replay import Replays
from headrace.engine.status import Knows, Readiness
from headrace.engine.tables import TakenTables
from headrace.errors import BadTransform, NotRunning, SourceRefused, UnknownTable
from headrace.observe.logs import log_into, logger
from headrace.pipeline.batch import Runner
from headrace.pipeline.definition import Pipeline
from headrace.runtime.copy_on_spark import share_copies
from headrace.runtime.delivery import Surroundings
from headrace.runtime.info import LogOptions
from headrace.runtime.lease import Fence, Lease, usable_folder
from headrace.runtime.pipeline_run import PipelineRun
from headrace.runtime.retention import care_for, end_care
from headrace.runtime.source_run import SourceRun
from headrace.runtime.spark import SparkOptions, SparkWatchdog, lend, spark_runner, with_needs
from headrace.runtime.store import ProgressStore
from headrace.runtime.threads import Drivers
from headrace.storage.s3 import use_storage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headrace.capture.source import Recordable
    from headrace.pipeline.runner import Explanation, SparkRunner


# --- reloading a table ----------------------------------------------------------------------------


def ask_reload(
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


# --- ending what was begun ------------------------------------------------------------------------


def unwind(undo: list[Callable[[], None]]) -> None:
    """Call and remove all of `undo`, the last one first; then raise the first error there was."""
    first: Exception | None = None
    while undo:
        call = undo.pop()
        try:
            call()
        except Exception as error:  # noqa: BLE001 - the first is raised below
            # Targets are the user's code and may raise anything. The rest must still be
            # let go of, or a recorder would outlive its engine.
            first = first or error
    if first is not None:
        raise first


# --- the engine -----------------------------------------------------------------------------------

_STOP_SECONDS = 30.0
"""How long a recorder may take to flush its last changes before it is killed."""

_log = logger(__name__)


class Engine(Knows, Reconfiguration, Replays):
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
        self._pipelines = list(pipelines)
        self._data = data
        self._records = [(source, tuple(tables)) for source, tables in records]
        self._session = spark
        self._spark_options = SparkOptions(dict(spark_conf or {}), spark_ui, spark_events)
        self._log_options = log or LogOptions()
        self._recorder = recorder
        self._runner = runner
        self._on_step = on_step or (lambda text: None)
        self._sources, self._names, self._misnamed = named(
            pipelines, [source for source, _ in self._records]
        )
        self._recordings: dict[str, SourceRun] = {}
        self._runs: list[PipelineRun] = []
        self._drivers: Drivers | None = None
        self._undo: list[Callable[[], None]] = []
        self._home: Home | None = None
        self._taken = TakenTables(self._pipelines, self._records, self._runs)
        self._changing = threading.RLock()
        self._holding = False
        self._spark: SparkRunner | None = None
        self._running = False
        self._readiness = Readiness(
            self._runs,
            self._recordings,
            self._taken.recorded,
            spark_alive=lambda: self._spark is None or self._spark.alive,
            at_work=lambda: bool(self._undo),
        )

    # -- life ---------------------------------------------------------------------------

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

        Raises `InvalidConfiguration` with every error found, and leaves nothing running.
        """
        if self._running:
            return
        try:
            self._start()
        except BaseException:
            self._unwind()
            raise
        self._running = True

    def stop(self) -> None:
        """Stop everything in order; what was applied and recorded stays. May be called twice."""
        self._running = False
        # What is being changed comes to its end first, or it would begin what nobody ends.
        with self._changing:
            self._unwind()

    def _start(self) -> None:
        taken = self._taken
        taken.schemas = checked_schemas(
            self._sources,
            {name: taken.named(name) for name in self._sources},
            self._pipelines,
            self._misnamed,
            {name: taken.selections(name) for name in self._sources},
        )
        data = usable_folder(self._data)
        lease = Lease(data, time.time)
        self._undo.append(lease.release)
        self._undo.append(log_into(data / "logs"))
        store = ProgressStore.at(data / "control.sqlite")
        self._undo.append(store.close)
        store.take_over()
        home = self._home = Home(data, store, use_storage(data, self._log_options.storage))
        for name, source in self._sources.items():
            self._undo.append(self._record(name, source, home))
        self._taken.ask_baselines(self._recordings)
        if self._pipelines:
            self._start_pipelines(home)
        # Last: what a pipeline needs is not known before it is open.
        self._tend(home)
        self._undo.append(partial(end_care, self._recordings))

    def _start_pipelines(self, home: Home) -> None:
        home.runner = runner = self._runner or self._start_spark(home)
        for copies in share_copies(self._recordings, self._sources, runner, home.files):
            self._undo.append(copies.stop)
        self._runs[:] = [
            self._run(name, pipeline, home, self._recordings[pipeline.source.name])
            for name, pipeline in zip(self._names, self._pipelines, strict=True)
        ]
        with gathered() as errors:
            for run in self._runs:
                with errors:
                    run.prepare(self._taken.schemas_for(run))
        self._step("plans are analysed")
        # Each target is closed by an undo of its own: one that fails keeps no other open.
        self._undo.extend(run.close for run in self._runs)
        for run in self._runs:
            run.open()
        # All are open before the first one works, or anything is acknowledged: what a target
        # that is not open yet still needs is not known, and the source would be told to
        # forget it (invariant 1).
        drivers = self._drivers = Drivers(self._recordings, runner, self._heard, self._acknowledge)
        self._undo.append(self._acknowledge)
        self._undo.append(drivers.stop)
        drivers.start(self._runs)
        for recording in self._recordings.values():
            recording.on_found()

    def _record(self, name: str, source: Recordable, home: Home) -> Callable[[], None]:
        """Begin to record a source; return what ends it."""
        recording = self._recordings[name] = self._log_of(source, home)
        recording.start(self._recorder_of(recording, source, home))
        self._step(f"recording {name}")
        return partial(recording.stop, _STOP_SECONDS)

    def _log_of(self, source: Recordable, home: Home) -> SourceRun:
        """Open the log of a source that nobody records yet."""
        log = LogReader.open(home.files, source.name)
        # Before it is recorded: a log in a bucket outlives the store, which is on this machine.
        home.store.outrank(log.term)
        recording = SourceRun(source.name, source.spec.kind, log, self._heard, time.time)
        recording.on_found = partial(self._taken.grow, recording, self._wake)
        recording.fence = Fence(source.name, home.files)
        recording.on_lost = partial(self._nudge, source.name)
        return recording

    def _recorder_of(
        self, recording: SourceRun, source: Recordable, home: Home
    ) -> Callable[[], RunningRecorder]:
        """Return what starts the recorder of a source, of the tables that are taken now."""
        # Not the store's later on: another source's log may have raised that since.
        recording.fence.term = home.store.term
        return partial(
            start_recorder,
            source,
            source.spec,
            self._taken.named(source.name),
            data=str(home.data),
            storage=home.files.path(""),
            writer=uuid.uuid4().hex,
            term=home.store.term,
            on_report=recording.on_report,
            how=self._recorder,
            owed=recording.owed_reset,
            selections=self._taken.selections(source.name),
            baselines=home.store.highest_baseline(),
        )

    def _tend(self, home: Home) -> None:
        """Care for every log that nobody cares for yet (R27)."""
        args = (self._recordings, self._runs, self._taken.only_recorded, home.store, home.files)
        care_for(*args, self._log_options, (time.monotonic, time.time))

    def _start_spark(self, home: Home) -> Runner:
        options = with_needs(self._spark_options, self._pipelines, home.files)
        runner = self._spark = spark_runner(home.data, home.files, self._session, options)
        self._undo.append(runner.stop)
        self._undo.append(SparkWatchdog(runner, self._spark_moved).stop)
        self._step("spark is up")
        return runner

    def _spark_moved(self) -> None:
        """Spark died, or runs again: nobody waits any longer for his next try."""
        self._nudge()
        self._heard()

    def _nudge(self, source: str | None = None) -> None:
        """Let all pipelines, or those of a source, take a step now."""
        for run in list(self._runs):
            if source in (None, run.source):
                run.nudge()
                self._wake(run)

    def _run(self, name: str, pipeline: Pipeline, home: Home, recording: SourceRun) -> PipelineRun:
        assert home.runner is not None
        around = Surroundings(
            log=recording.log,
            runner=home.runner,
            store=home.store,
            files=home.files,
            clock=time.monotonic,
            wall=time.time,
            ask_baseline=recording.ask_baseline,
            flush_times=recording.flush_times,
            fence=recording.fence,
        )
        lend(name, pipeline.target, around)
        return PipelineRun(name, recording.name, pipeline, pipeline.source.traits, around)

    def _unwind(self) -> None:
        try:
            unwind(self._undo)
        finally:
            self._readiness.ended()

    # -- control --------------------------------------------------------------------------

    def pause(self, pipeline: str | None = None, *, source: str | None = None) -> None:
        """
        Let pipelines rest: one, all of a source, or all. A running job is cancelled.

        Recording goes on, and nothing is lost; a restart keeps to it, until `resume`.
        """
        drivers, runs = self._at_work(), self._chosen(pipeline, source)
        for run in runs:
            run.pause()
        for run in runs:
            drivers.rest(run)
        self._heard()

    def resume(self, pipeline: str | None = None, *, source: str | None = None) -> None:
        """
        Let pipelines go on that were paused, or that stopped on an error.

        Of a source, or of all, recorders that stopped for good are started again, too: after
        what they stopped on was mended, or they stop again.
        """
        runs = self._chosen(pipeline, source)
        if not self._running:
            raise NotRunning("The engine has not started")
        for name, recording in list(self._recordings.items()):
            if pipeline is None and source in (None, name):
                recording.resume()
        for run in runs:
            run.resume()
            self._wake(run)
        self._heard()

    def reload(self, source: str, table: str, *, timeout: float | None = 0) -> bool:
        """
        Take a new baseline of a table, and bring it to every target that has the table.

        Readers see the old rows, kept up to date, until the new ones take their place in
        one step. Returns whether that is done; waits for it up to `timeout` seconds, None
        for as long as it takes, but not where waiting is of no use (see `await_ready`).
        """
        drivers = self._at_work()
        runs = self._chosen(None, source)
        done, hopeless = ask_reload(table, runs, self._recordings[source], drivers)
        self._readiness.wait_for(lambda: done() or hopeless() or not self._running, timeout)
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
        recording = self._recording(source)
        if not self._sources[source].traits.resets:
            raise SourceRefused("This kind of source cannot be reset", source=source)
        recording.reset(Reset(drop_publication))
        self._heard()
        return self._readiness.until(lambda: self.is_ready(source), source, timeout)

    def await_marker(self, source: str, text: str, timeout: float | None = None) -> bool:
        """
        Wait until all that was committed before a marker is at every target of its source.

        A marker is a message in the source's own stream: for PostgreSQL
        `select pg_logical_emit_message(true, 'headrace', 'text')`, of 200 bytes at most. False
        when the time is over, or waiting is of no use (see `await_ready`).
        """
        recording, runs = self._recording(source), self._chosen(None, source)

        def arrived() -> bool:
            at = recording.log.marker(text)
            return at is not None and all(run.has(at) for run in runs)

        return self._readiness.until(arrived, source, timeout)

    def dead_letters(
        self, pipeline: str | None = None, *, superseded: bool = False
    ) -> tuple[DeadLetter, ...]:
        """Return the changes that were set aside, pipeline by pipeline, in position order."""
        return tuple(
            letter
            for run in self._chosen(pipeline, None)
            for letter in run.delivery.letters.all(superseded=superseded)
        )

    def explain(self, pipeline: str) -> Explanation:
        """Return how Spark ran a pipeline's last batch; print it to read it."""
        run = self._find(pipeline)
        if self._spark is None:
            raise NotRunning("The engine runs without Spark", pipeline=pipeline)
        return self._spark.explain(run.pipeline)

    # -- inside ---------------------------------------------------------------------------

    def _heard(self) -> None:
        """Something moved: look at readiness again."""
        self._readiness.heard()
        self._taken.ask_baselines(self._recordings)
        # Sources that a pipeline takes are acknowledged by its thread, once it is at work:
        # what it needs is not known before (invariant 1).
        taken = {pipeline.source.name for pipeline in list(self._pipelines)}
        for name, recording in list(self._recordings.items()):
            if name not in taken and not self._holding:
                recording.settle([])

    def _acknowledge(self) -> None:
        """Tell each source what it may forget."""
        # Once: what comes and goes meanwhile is known to nobody, or still needs something.
        runs, recordings = tuple(self._runs), list(self._recordings.items())
        if self._holding:
            return
        for name, recording in recordings:
            recording.settle([run.watermark() for run in runs if run.source == name])

    def _wake(self, run: PipelineRun) -> None:
        if self._drivers is not None:
            self._drivers.wake(run)

    def _recording(self, source: str) -> SourceRun:
        self._chosen(None, source)
        if not self._running or source not in self._recordings:
            raise NotRunning("The engine has not started", source=source)
        return self._recordings[source]

    def _chosen(self, pipeline: str | None, source: str | None) -> list[PipelineRun]:
        if pipeline is not None:
            return [self._find(pipeline)]
        if source is not None and source not in self._sources:
            raise NotRunning("No such source", source=source)
        return [run for run in self._runs if source in (None, run.source)]

    def _at_work(self) -> Drivers:
        if not self._running or self._drivers is None:
            raise NotRunning("The engine has not started, or has no pipeline")
        return self._drivers

    def _step(self, text: str) -> None:
        _log.info("started", step=text)
        self._on_step(text)


# --- recording without a pipeline -----------------------------------------------------------------


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
