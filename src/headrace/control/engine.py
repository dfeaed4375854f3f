"""
The engine: pipelines from Python objects, started, supervised and stopped.

```
 start: check everything ─▶ take the data directory ─▶ record (each source's recorder)
        ─▶ Spark ─▶ analyse the plans ─▶ a thread a pipeline
 stop:  pipelines ─▶ last acknowledgement ─▶ recorders ─▶ targets ─▶ Spark ─▶ the directory
```

Recorders start before Spark, because a JVM takes seconds and changes do not wait for it.
"""

from __future__ import annotations

import os
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Literal

from headrace.capture.supervisor import start_recorder
from headrace.changelog.log import LogReader
from headrace.changelog.schema import TableSchema
from headrace.control.gathering import gathered
from headrace.control.info import PipelineInfo, SourceInfo
from headrace.control.lease import Lease, usable_folder
from headrace.control.names import named
from headrace.control.recording import Recording
from headrace.control.run import IDLE, PipelineRun, Surroundings
from headrace.control.states import TableState
from headrace.control.store import Store
from headrace.errors import (
    ControlError,
    HeadraceError,
    NotRunning,
    UnknownTable,
)
from headrace.observe.logs import log_into, logger
from headrace.pipeline.batch import Runner
from headrace.pipeline.definition import Pipeline
from headrace.pipeline.runner import SparkRunner
from headrace.pipeline.session import Spark, SparkInfo, start_session
from headrace.storage.disk import RealDisk
from headrace.storage.files import Files

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headrace.capture.source import Recordable
    from headrace.targets.target import Target

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
    """

    def __init__(
        self,
        *pipelines: Pipeline,
        data: str | os.PathLike[str] = "./headrace-data",
        spark: SparkSession | None = None,
        spark_conf: Mapping[str, str] | None = None,
        recorder: Literal["process", "thread"] = "process",
        runner: Runner | None = None,
        on_step: Callable[[str], None] | None = None,
    ) -> None:
        self._pipelines = pipelines
        self._data = data
        self._session = spark
        self._spark_conf = dict(spark_conf or {})
        self._recorder = recorder
        self._runner = runner
        self._on_step = on_step or (lambda text: None)
        self._sources, self._names, self._misnamed = named(pipelines)
        self._recordings: dict[str, Recording] = {}
        self._runs: list[PipelineRun] = []
        self._threads: list[threading.Thread] = []
        self._undo: list[Callable[[], None]] = []
        self._stopping = threading.Event()
        self._changed = threading.Condition()
        self._ready_calls: list[Callable[[], None]] = []
        self._schemas: dict[str, TableSchema] = {}
        self._spark: Spark | None = None
        self._running = False

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
        self._stopping.clear()
        try:
            self._start()
        except BaseException:
            self._unwind()
            raise
        self._running = True

    def stop(self) -> None:
        """Stop everything in order; what was applied and recorded stays. May be called twice."""
        self._running = False
        self._unwind()

    def _start(self) -> None:
        self._check_everything()
        data = usable_folder(self._data)
        lease = Lease(data, time.time)
        self._undo.append(lease.release)
        self._undo.append(log_into(data / "logs"))
        store = Store.at(data / "control.sqlite")
        self._undo.append(store.close)
        term = store.take_over()
        files = Files(RealDisk(), str(data))
        for name, source in self._sources.items():
            self._record(name, source, files, term)
        runner = self._runner or self._start_spark(data)
        self._runs = [
            self._run(name, pipeline, runner, store)
            for name, pipeline in zip(self._names, self._pipelines, strict=True)
        ]
        with gathered() as errors:
            for run in self._runs:
                with errors:
                    run.prepare(self._schemas[f"{run.source}/{run.table}"])
        self._step("plans are analysed")
        # Each target is closed by an undo of its own: one that fails keeps no other open.
        self._undo.extend(run.close for run in self._runs)
        self._undo.append(self._stop_runs)
        for run in self._runs:
            run.open()
        # All are open before the first one works: what a target that is not open yet still
        # needs is not known, and the source would be told to forget it (invariant 1).
        for run in self._runs:
            thread = threading.Thread(target=self._drive, args=(run,), name=f"headrace {run.name}")
            self._threads.append(thread)
            thread.start()

    def _check_everything(self) -> None:
        """Raise all that is wrong with names, sources, tables and plans, together."""
        with gathered() as errors:
            errors.found += self._misnamed
            for name, source in self._sources.items():
                tables = self._tables_of(name)
                problems = list(source.check(tables))
                errors.found += problems
                # One bad table must not hide what is wrong with the pipelines of another.
                for some in [[table] for table in tables] if problems else [tables]:
                    try:
                        described = source.describe(some)
                    except HeadraceError as error:
                        if not problems:
                            errors.found.append(error)
                        continue
                    for table, schema in described.items():
                        self._schemas[f"{name}/{table}"] = schema
            for pipeline in self._pipelines:
                if known := self._schemas.get(f"{pipeline.source.name}/{pipeline.table}"):
                    errors.found += pipeline.check(known)

    def _record(self, name: str, source: Recordable, files: Files, term: int) -> None:
        log = LogReader.open(files, name)
        recording = Recording(name, source.spec.kind, log, self._heard, time.time)
        self._recordings[name] = recording
        self._undo.append(lambda: recording.stop(_STOP_SECONDS))
        recording.recorder = start_recorder(
            source,
            source.spec,
            self._tables_of(name),
            data=files.path(""),
            writer=uuid.uuid4().hex,
            term=term,
            on_report=recording.on_report,
            how=self._recorder,
        )
        self._step(f"recording {name}")

    def _start_spark(self, data: Path) -> Runner:
        if self._session is not None:
            spark = Spark.bring(self._session)
        else:
            spark = start_session(data, conf=self._spark_conf)
        self._spark = spark
        self._undo.append(spark.stop)
        self._step("spark is up")
        return SparkRunner(spark)

    def _run(self, name: str, pipeline: Pipeline, runner: Runner, store: Store) -> PipelineRun:
        recording = self._recordings[pipeline.source.name]
        around = Surroundings(
            log=recording.log,
            runner=runner,
            store=store,
            clock=time.monotonic,
            wall=time.time,
            ask_baseline=recording.ask_baseline,
            flush_times=recording.flush_times,
        )
        return PipelineRun(name, recording.name, pipeline, pipeline.source.traits, around)

    def _stop_runs(self) -> None:
        self._stopping.set()
        for recording in self._recordings.values():
            recording.log.interrupt()
        for thread in self._threads:
            thread.join()
        self._acknowledge()

    def _unwind(self) -> None:
        first: Exception | None = None
        while self._undo:
            undo = self._undo.pop()
            try:
                undo()
            except Exception as error:  # noqa: BLE001 - the first is raised below
                # Targets are the user's code and may raise anything. The rest must still be
                # let go of, or a recorder would outlive its engine.
                first = first or error
        self._threads.clear()
        with self._changed:
            self._changed.notify_all()
        if first is not None:
            raise first

    def _drive(self, run: PipelineRun) -> None:
        """Take one pipeline's steps; whatever ends them, nobody is told that all is well."""
        try:
            self._take_steps(run)
        except BaseException as error:
            run.fail(
                ControlError(
                    "Pipeline ended on an unexpected error",
                    pipeline=run.name,
                    error=type(error).__name__,
                )
            )
            self._heard()
            raise

    def _take_steps(self, run: PipelineRun) -> None:
        """Step until the engine stops; one that another engine fenced off only waits for that."""
        recording = self._recordings[run.source]
        while not self._stopping.is_set():
            seen = recording.log.last_entry
            before = run.state
            try:
                pause = run.step()
            except HeadraceError as error:
                run.fail(error)
                pause = IDLE
            if run.state != before or pause is not None:
                self._heard()
            if pause is None:
                continue
            self._acknowledge()
            if run.state != TableState.FAILED:
                recording.ask_flush()
            recording.log.wait(seen, None if pause == IDLE else pause, self._stopping.is_set)

    # -- what is known --------------------------------------------------------------------

    def await_ready(self, timeout: float | None = None) -> bool:
        """
        Wait until every pipeline shows its table and nothing is wrong.

        False when the time is over, or when waiting is of no use: a pipeline or a recorder
        stopped on an error that a person must mend, or the engine was stopped.
        """
        with self._changed:
            self._changed.wait_for(lambda: self.is_ready() or self._hopeless(), timeout)
            return self.is_ready()

    def is_ready(
        self, source: str | None = None, table: str | None = None, pipeline: str | None = None
    ) -> bool:
        """
        Return whether the pipelines asked for are ready, now.

        Readiness comes from what is observed and goes back to False (invariant 9): a
        failed job, a recorder that is down or a source out of reach all end it.
        """
        runs = [
            run
            for run in self._runs
            if source in (None, run.source)
            and table in (None, run.table)
            and pipeline in (None, run.name)
        ]
        return bool(runs) and all(run.ready and self._recordings[run.source].ready for run in runs)

    def on_ready(self, call: Callable[[], None]) -> None:
        """Call `call` once, when the engine is ready next: at once if it is."""
        with self._changed:
            if not self.is_ready():
                self._ready_calls.append(call)
                return
        call()

    def pipelines(self) -> tuple[PipelineInfo, ...]:
        """Return every pipeline with state, counts and lag."""
        return tuple(self._info(run) for run in self._runs)

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

    def targets(self, source: str, table: str) -> tuple[Target, ...]:
        """Return the targets a table of a source is brought to."""
        return tuple(
            pipeline.target
            for pipeline in self._pipelines
            if pipeline.source.name == source and pipeline.table == table
        )

    def target(self, pipeline: str, type: str | None = None) -> Target:
        """Return a pipeline's target; with `type`, only if it is of that type."""
        found = self._pipelines[self._index(pipeline)].target
        if type not in (None, found.traits.type):
            raise UnknownTable("The pipeline's target is of another type", type=found.traits.type)
        return found

    def schema(self, table: str) -> TableSchema:
        """Return a captured table's schema, as the source describes it."""
        for known, schema in self._schemas.items():
            if known.split("/", 1)[1] == table:
                return schema
        raise UnknownTable("No pipeline has this table, or the engine has not started", table=table)

    def spark_info(self) -> SparkInfo | None:
        """Return what Spark did so far, or None before it is up."""
        return self._spark.info() if self._spark is not None else None

    # -- inside ---------------------------------------------------------------------------

    def _hopeless(self) -> bool:
        return (
            not self._undo
            or any(run.state == TableState.FAILED for run in self._runs)
            or any(recording.gave_up for recording in self._recordings.values())
        )

    def _info(self, run: PipelineRun) -> PipelineInfo:
        log = self._recordings[run.source].log
        behind = log.oldest_after(run.table, run.reached)
        return PipelineInfo(
            name=run.name,
            source=run.source,
            table=run.table,
            target=run.target.traits.type,
            state=str(run.state),
            rows=run.target.row_count(run.table),
            changes=run.changes,
            batches=run.batches,
            jobs=run.jobs,
            position=run.reached,
            lag_seconds=0.0 if behind is None else max(0.0, time.time() - behind / 1_000_000),
            error=run.error,
            hops=run.hops.quantiles(),
        )

    def _heard(self) -> None:
        """Something moved: look at readiness again."""
        calls: list[Callable[[], None]] = []
        with self._changed:
            if self.is_ready():
                calls, self._ready_calls = self._ready_calls, []
            self._changed.notify_all()
        for call in calls:
            call()

    def _acknowledge(self) -> None:
        """Tell each source what it may forget."""
        for name, recording in self._recordings.items():
            recording.settle([run.watermark() for run in self._runs if run.source == name])

    def _tables_of(self, source: str) -> list[str]:
        return sorted({p.table for p in self._pipelines if p.source.name == source})

    def _index(self, name: str) -> int:
        if name not in self._names:
            raise NotRunning("No such pipeline", pipeline=name)
        return self._names.index(name)

    def _find(self, name: str) -> PipelineRun:
        index = self._index(name)
        if not self._runs:
            raise NotRunning("The engine has not started", pipeline=name)
        return self._runs[index]

    def _step(self, text: str) -> None:
        _log.info("started", step=text)
        self._on_step(text)
