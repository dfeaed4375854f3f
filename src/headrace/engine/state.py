"""
The state of an engine, shared by start, reconfiguration, status and stop.

`EngineState` holds the sources and pipelines that were asked for, what runs for them, and how to
stop it. It starts and stops nothing itself: `engine` and `reconfigure` do.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from headrace.capture.messages import ENDLESS, Retries
from headrace.engine.status import Readiness
from headrace.engine.tables import TakenTables
from headrace.errors import HeadraceError, NotRunning, StoppedWithAnother
from headrace.observe.dispatch import Dispatcher
from headrace.observe.logs import logger
from headrace.pipeline.batch import Runner
from headrace.pipeline.definition import Pipeline
from headrace.runtime.info import LogOptions
from headrace.runtime.pipeline_run import PipelineRun
from headrace.runtime.source_run import SourceRun
from headrace.runtime.spark import SparkOptions, SparkWatchdog
from headrace.runtime.store import ProgressStore
from headrace.runtime.threads import Drivers, StopLimits
from headrace.storage.files import Files

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headrace.capture.source import Recordable
    from headrace.pipeline.runner import SparkRunner


_OPEN_SECONDS = 30.0
"""How long a start, or a change, waits for targets that are being opened."""

_OF_LIMIT = 0.75
"""Of the time that a step may take: the rest is for what follows when something hangs."""


_log = logger(__name__)


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """The options of an engine, besides sources and pipelines."""

    data: str | os.PathLike[str]
    session: SparkSession | None
    """The user's session; None if the engine starts its own."""

    spark: SparkOptions
    log: LogOptions
    recorder: Literal["process", "thread"]
    runner: Runner | None
    """Computes batches instead of Spark; None for Spark."""

    on_step: Callable[[str], None]
    shutdown_timeout: float = 30.0
    """Seconds."""

    retry: Retries = ENDLESS
    """Of pipelines."""

    reconnect: Retries = ENDLESS
    """Of sources that have none of their own in `EngineState.reconnects`."""


@dataclass(frozen=True, slots=True)
class DataDirectory:
    """An open data directory."""

    path: Path
    store: ProgressStore
    files: Files
    """Logs and dead letters, which executors read: in the directory or in a bucket."""


class EngineState:
    """
    The sources and pipelines of an engine, and what runs for them.

    *Threads*: code that starts or stops a part of it holds `changing`. Lists and mappings are
    changed in place and never replaced, because other threads refer to them; iterate over a copy.
    """

    def __init__(
        self,
        options: EngineOptions,
        pipelines: list[Pipeline],
        names: list[str],
        sources: dict[str, Recordable],
        records: list[tuple[Recordable, tuple[str, ...]]],
    ) -> None:
        self.options = options
        self.pipelines = pipelines
        self.names = names
        """The names of `pipelines`, in their order."""

        self.sources = sources
        self.reconnects: dict[str, Retries] = {}
        """Of sources, by name."""

        self.records = records
        """Sources with the tables that are recorded whether or not a pipeline takes them."""

        self.recordings: dict[str, SourceRun] = {}
        self.runs: list[PipelineRun] = []
        self.tables = TakenTables(pipelines, records, self.runs)
        self.opened: DataDirectory | None = None
        self.runner: Runner | None = None
        """None while there is no pipeline."""

        self.spark: SparkRunner | None = None
        self.watchdog: SparkWatchdog | None = None
        """Checks that Spark; None without one."""

        self.drivers: Drivers | None = None
        self.running = False
        self.started_at: float | None = None
        """When it was last started, in seconds since 1970."""
        self.cancelled = False
        """Whether a start on another thread has to end."""
        self.changing = threading.RLock()
        self.holding = False
        """Whether nothing may be acknowledged: it is not known yet what all pipelines need."""

        self.events = Dispatcher()
        self.undo: list[Callable[[], None]] = []
        """Calls that stop what was started; called in reverse order."""

        self.stop_limits = StopLimits(options.shutdown_timeout)
        """How long the parts may take to stop; begun again when a stop begins."""

        self.readiness = Readiness(self)

    @property
    def at_work(self) -> bool:
        """Whether anything runs: already during a start, and until the end of a stop."""
        return bool(self.undo)

    @property
    def spark_alive(self) -> bool:
        """False if batches need Spark and it is dead, or does not answer; never waits for it."""
        return self.spark_down_seconds is None

    @property
    def spark_down_seconds(self) -> float | None:
        """How long Spark has been dead, or has not answered; None if it runs, or is not used."""
        return None if self.watchdog is None else self.watchdog.down_seconds

    # -- progress -------------------------------------------------------------------------

    def notify(self) -> None:
        """Check readiness again, because something changed."""
        self.readiness.notify()
        self.tables.ask_baselines(self.recordings)
        # A source of a pipeline is acknowledged by the pipeline's thread once that runs:
        # what the pipeline needs is not known before (invariant 1).
        taken = {pipeline.source.name for pipeline in list(self.pipelines)}
        for name, recording in list(self.recordings.items()):
            if name not in taken and not self.holding:
                recording.settle([])

    def acknowledge(self) -> None:
        """Acknowledge to each source what all of its pipelines have settled."""
        # Read once: a pipeline that is added meanwhile is not known yet, or still needs something.
        runs, recordings = tuple(self.runs), list(self.recordings.items())
        if self.holding:
            return
        for name, recording in recordings:
            recording.settle([run.watermark() for run in runs if run.source == name])

    def stop_others(self, name: str, error: HeadraceError) -> None:
        """Stop the other pipelines that a failed one stops; capture continues."""
        failed = next((run for run in list(self.runs) if run.name == name), None)
        if failed is None or (policy := failed.pipeline.on_failure) == "isolate":
            return
        for run in list(self.runs):
            if run is not failed and (policy == "stop_all" or run.source == failed.source):
                run.halt(
                    StoppedWithAnother(
                        f"Pipeline {name} failed, whose on_failure is {policy}",
                        pipeline=run.name,
                        failed=name,
                        cause=error.code,
                    )
                )
                self.wake(run)

    def wake(self, run: PipelineRun) -> None:
        """Wake the thread of a pipeline, if it has one yet."""
        if self.drivers is not None:
            self.drivers.wake(run)

    def nudge(self, source: str | None = None) -> None:
        """Make all pipelines, or those of a source, take a step now."""
        for run in list(self.runs):
            if source in (None, run.source):
                run.nudge()
                self.wake(run)

    def stop_drivers(self, drivers: Drivers) -> None:
        """End the threads of all pipelines, as part of a stop; those that hang are left behind."""
        drivers.stop(min(self.options.shutdown_timeout / 3, _OF_LIMIT * self.stop_limits.next))

    def stop_recorder(self, recording: SourceRun) -> None:
        """Stop a recorder, as the last part of a stop; one that hangs is killed in time."""
        recording.stop(_OF_LIMIT * self.stop_limits.next)

    def stop_events(self) -> None:
        """End the thread of the observers, as part of a stop; one that hangs is left behind."""
        self.events.stop(_OF_LIMIT * self.stop_limits.next)

    def await_opened(self, runs: Sequence[PipelineRun]) -> None:
        """Wait until targets are open, or could not be opened once; they may take longer."""

        def tried() -> bool:
            gone = self.cancelled or not self.at_work
            return gone or all(run.was_tried or run.stopped for run in runs)

        self.readiness.wait_for(tried, _OPEN_SECONDS)
        for run in runs:
            if not run.was_tried:
                _log.warning("target is not open yet", pipeline=run.name)

    def reconnect_of(self, source: str) -> Retries:
        """Return how a source is tried again."""
        return self.reconnects.get(source, self.options.reconnect)

    # -- parts, by name -------------------------------------------------------------------

    @property
    def directory(self) -> DataDirectory:
        """The data directory, once the engine was started."""
        assert self.opened is not None, "an engine opens its directory before anything runs"
        return self.opened

    def run_of(self, pipeline: str) -> PipelineRun:
        for run in list(self.runs):
            if run.name == pipeline:
                return run
        if pipeline in self.names:
            raise NotRunning("The engine has not started", pipeline=pipeline)
        raise NotRunning("No such pipeline", pipeline=pipeline)

    def runs_of(self, pipeline: str | None, source: str | None) -> list[PipelineRun]:
        """Return the run of one pipeline, those of a source, or all."""
        if pipeline is not None:
            return [self.run_of(pipeline)]
        if source is not None and source not in self.sources:
            raise NotRunning("No such source", source=source)
        return [run for run in self.runs if source in (None, run.source)]

    def recording_of(self, source: str) -> SourceRun:
        if source not in self.sources:
            raise NotRunning("No such source", source=source)
        if not self.running or source not in self.recordings:
            raise NotRunning("The engine has not started", source=source)
        return self.recordings[source]

    def running_drivers(self) -> Drivers:
        if not self.running or self.drivers is None:
            raise NotRunning("The engine is not started, or has no pipelines")
        return self.drivers
