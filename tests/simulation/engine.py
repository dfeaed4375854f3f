"""
An engine and its recorder, without threads: every step is somebody else's decision.

The parts are the product's own. What is played here is what lies between them: the line
from engine to recorder and back, on which things take time and can get lost, the
supervisor that starts a recorder again, and the loop that drives a pipeline.
"""

from __future__ import annotations

import math
import sqlite3
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random

from headrace.capture.messages import Command, Failed, Report, Started, StateReport, StopRecorder
from headrace.capture.process import Inbox
from headrace.capture.recorder import FIRST_PAUSE_SECONDS, Recorder
from headrace.changelog.position import Position
from headrace.changelog.reader import LogReader, LogWriter
from headrace.errors import HeadraceError, JobCancelled, StorageError
from headrace.pipeline.batch import BatchFacts, SegmentGroup
from headrace.pipeline.definition import Pipeline
from headrace.pipeline.result import JobResult
from headrace.runtime.info import LogOptions
from headrace.runtime.pipeline_run import IDLE, PipelineRun
from headrace.runtime.retention import LogRetention
from headrace.runtime.run_context import RunContext
from headrace.runtime.source_run import SourceRun
from headrace.runtime.store import Intent, ProgressStore
from headrace.storage.files import Files
from headrace.storage.simulation import SimulatedDisk
from tests.simulation.database import TABLES, Database, Session
from tests.support.arrow_runner import ArrowRunner, Row, segment_rows

Fails = Callable[[Pipeline, Row], str | None]

ROOT = "/data"
WALL = 1_800_000_000.0


class ShakyStore(ProgressStore):
    """A control store whose writes can fail, before they are done or after."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.faults: deque[str] = deque()
        super().__init__(connection)

    def advance(self, pipeline: str, tables: Sequence[str], lineage: str, to: Position) -> Position:
        done = self._fault()
        stored = super().advance(pipeline, tables, lineage, to)
        self._lose(done)
        return stored

    def settle(
        self, pipeline: str, table: str, lineage: str, at: Position, state: str, baseline: int
    ) -> None:
        done = self._fault()
        super().settle(pipeline, table, lineage, at, state, baseline)
        self._lose(done)

    def origin(self, pipeline: str, table: str, now: Position) -> Position:
        done = self._fault()
        found = super().origin(pipeline, table, now)
        self._lose(done)
        return found

    def intend(self, pipeline: str, intent: Intent) -> None:
        done = self._fault()
        super().intend(pipeline, intent)
        self._lose(done)

    def forget_intent(self, pipeline: str) -> None:
        done = self._fault()
        super().forget_intent(pipeline)
        self._lose(done)

    def expire(self, pipeline: str, upto: int) -> None:
        done = self._fault()
        super().expire(pipeline, upto)
        self._lose(done)

    def set_paused(self, pipeline: str, paused: bool) -> None:
        done = self._fault()
        super().set_paused(pipeline, paused)
        self._lose(done)

    def set_states(
        self,
        pipeline: str,
        states: Mapping[str, tuple[str, int | None]],
        reloads: Mapping[str, tuple[int, int]] | None = None,
    ) -> None:
        done = self._fault()
        super().set_states(pipeline, states, reloads)
        self._lose(done)

    def _fault(self) -> bool:
        fault = self.faults.popleft() if self.faults else "none"
        if fault == "before":
            raise StorageError("control.sqlite could not be written")
        return fault == "after"

    def _lose(self, done: bool) -> None:
        if done:
            raise StorageError("control.sqlite may have been written")


class Segments:
    """Segments that were read before: they never change, and are looked at often."""

    def __init__(self) -> None:
        self._known: dict[bytes, list[Row]] = {}

    def rows(self, data: bytes) -> list[Row]:
        """Return a segment's changes."""
        if data not in self._known:
            self._known[data] = segment_rows(data)
        return self._known[data]


class RememberingRunner(ArrowRunner):
    """A runner that reads a segment once."""

    def __init__(self, disk: SimulatedDisk, segments: Segments, fails: Fails) -> None:
        super().__init__(disk, fails)
        self._segments = segments

    def rows(
        self, pipeline: Pipeline, parts: Sequence[SegmentGroup], facts: BatchFacts
    ) -> JobResult:
        before = len(self.cancelled)
        result = super().rows(pipeline, parts, facts)
        if pipeline in self.cancelled[before:]:
            raise JobCancelled("Job was cancelled")
        return result

    def _segment(self, data: bytes) -> list[Row]:
        return self._segments.rows(data)


class RecorderLife:
    """One recorder process: what it was sent and has not read yet, and what it does with it."""

    def __init__(
        self,
        database: Database,
        files: Files,
        term: int,
        clock: Callable[[], float],
        baselines: int,
    ) -> None:
        self.session = Session(database)
        self.alive = True
        self.inbox = Inbox()
        self.in_flight: deque[Command] = deque()

        def open_log() -> LogWriter:
            return LogWriter.open(
                files,
                source=database.name,
                origin=database.origin,
                writer=f"w{term}",
                term=term,
                clock=lambda: WALL + clock(),
                baselines=baselines,
            )

        self.recorder = Recorder(self.session, open_log, TABLES, clock)

    def deliver(self, count: int) -> None:
        """Let the first commands arrive."""
        for _ in range(min(count, len(self.in_flight))):
            self.inbox.put(self.in_flight.popleft())

    def step(self) -> list[Report]:
        """Take one step with what has arrived."""
        return self.recorder.step(self.inbox.take(0), 0)


@dataclass(slots=True)
class Driven:
    """A pipeline and the thread that would drive it."""

    run: PipelineRun
    pause: float | None = None
    seen: int = 0
    heeded: int = 0
    due: float = 0.0
    stopped_by_us: bool = False
    """Whether an error was injected that a person must look at."""


class Engine:
    """One life of an engine, from its start to its end, whatever that is."""

    def __init__(
        self,
        database: Database,
        disk: SimulatedDisk,
        connection: sqlite3.Connection,
        pipelines: Sequence[Pipeline],
        clock: Callable[[], float],
        segments: Segments,
        fails: Fails,
        most_rows: int,
        care: LogOptions | None,
    ) -> None:
        self._most_rows = most_rows
        self._database = database
        self._clock = clock
        self.files = Files(disk, ROOT)
        self.store = ShakyStore(connection)
        self.term = self.store.take_over()
        self._highest = self.store.highest_baseline()
        self.reports: deque[Report] = deque()
        self.recorder: RecorderLife | None = None
        self.recorder_failed: Failed | None = None
        self.restarts = 0
        self.superseded = False
        self._spawn_at = clock()
        self.log = LogReader.open(self.files, database.name)
        self.recording = SourceRun(
            database.name, "test", self.log, lambda: None, lambda: WALL + clock(), clock
        )
        self.recording.recorder = self
        self.spawn()
        self.runner = RememberingRunner(disk, segments, fails)
        self.driven = [
            Driven(self._run(f"p{number}", pipeline, self.runner))
            for number, pipeline in enumerate(pipelines)
        ]
        schemas = database.describe(TABLES)
        for driven in self.driven:
            driven.run.prepare({name: schemas[name] for name in driven.run.pipeline.tables})
        for driven in self.driven:
            driven.run.open()
        if care is not None:
            runs = [driven.run for driven in self.driven]
            wall = lambda: WALL + clock()  # noqa: E731
            self.recording.retention = LogRetention(
                self.recording, lambda: runs, tuple, self.store, self.files, care, clock, wall
            )

    def _run(self, name: str, pipeline: Pipeline, runner: ArrowRunner) -> PipelineRun:
        context = RunContext(
            log=self.log,
            runner=runner,
            store=self.store,
            files=self.files,
            clock=self._clock,
            wall=lambda: WALL + self._clock() + self._database.skew,
            ask_baseline=self.recording.ask_baseline,
            flush_times=self.recording.flush_times,
        )
        database = self._database
        return PipelineRun(name, database.name, pipeline, database.traits, context, self._most_rows)

    def supersede(self) -> None:
        """Another engine takes over, and this one does not know."""
        self.superseded = True
        if self.recorder is not None:
            self.recorder.session.superseded = True

    # --- the recorder, as its supervisor sees it ---------------------------------------------

    @property
    def pid(self) -> int | None:
        return 1 if self.alive else None

    @property
    def alive(self) -> bool:
        return self.recorder is not None and self.recorder.alive

    def start(self) -> None: ...

    def stop(self, timeout: float = 10.0) -> None: ...

    def send(self, command: Command) -> None:
        """Put a command on the line; without a recorder nobody hears it."""
        if self.recorder is not None and self.recorder.alive:
            self.recorder.in_flight.append(command)

    @property
    def may_spawn(self) -> bool:
        """Whether a recorder is missing and its time has come."""
        return (
            self.recorder is None
            and self.recorder_failed is None
            and self._clock() >= self._spawn_at
            and not any(isinstance(report, Failed) and report.stops for report in self.reports)
        )

    def spawn(self) -> None:
        """Start a recorder."""
        self.recorder = RecorderLife(
            self._database, self.files, self.term, self._clock, self._highest
        )
        self.recorder.session.superseded = self.superseded
        self.reports.append(Started(1))

    def step_recorder(self) -> None:
        """Let the recorder take a step, and send what it has to say."""
        life = self.recorder
        if life is None:
            return
        reports = life.step()
        if life.alive:
            self.reports.extend(reports)
            if life.recorder.done:
                self.lose_recorder(None)

    def lose_recorder(self, dice: Random | None) -> None:
        """Notice that the recorder is gone; what it had not sent yet is lost, by the dice."""
        if self.recorder is None:
            return
        self.recorder.alive = False
        self.recorder = None
        if dice is not None:
            for _ in range(dice.randint(0, len(self.reports))):
                self.reports.pop()
        self.reports.append(StateReport("reconnecting", "Recorder ended"))
        self._spawn_at = self._clock() + FIRST_PAUSE_SECONDS
        self.restarts += 1

    def hear(self, count: int) -> None:
        """Let the first reports arrive."""
        while count and self.reports:
            count -= 1
            report = self.reports.popleft()
            if isinstance(report, Failed) and report.stops:
                self.recorder_failed = report
            self.recording.on_report(report)

    # --- the pipelines, as their threads drive them ---------------------------------------------

    def runnable(self) -> list[Driven]:
        """Return the pipelines that something wakes now."""
        return [
            driven
            for driven in self.driven
            if driven.pause is None
            or self.log.last_entry > driven.seen
            or driven.run.requests > driven.heeded
            or self._clock() >= driven.due
            or (driven.pause == IDLE and driven.run.wakes_in == 0)
        ]

    def drive(self, driven: Driven) -> None:
        """Do what the engine's loop does once."""
        run = driven.run
        driven.seen, driven.heeded = self.log.last_entry, run.requests
        try:
            driven.pause = run.step()
        except HeadraceError as error:
            run.fail(error)
            driven.pause = IDLE
        if driven.pause is None:
            return
        driven.due = math.inf if driven.pause == IDLE else self._clock() + driven.pause
        self.settle()
        if not (run.failed or run.paused):
            self.recording.ask_flush()

    def settle(self) -> None:
        """Tell the source what it may forget."""
        self.recording.settle([driven.run.watermark() for driven in self.driven])

    def pause(self, driven: Driven) -> None:
        """Do what the engine does to pause a pipeline: a job that runs is cancelled."""
        driven.run.pause()
        driven.run.prepared.cancel()

    def reload(self, table: str) -> list[Driven]:
        """Ask every pipeline that has the table to load it anew; return those."""
        asked = [
            driven
            for driven in self.driven
            if table in driven.run.tables and driven.run.pipeline.mode != "changes"
        ]
        newest = self.log.usable_baseline(table)
        for driven in asked:
            driven.run.ask_reload(table, newest.baseline if newest else 0)
        return asked

    def is_ready(self, driven: Driven) -> bool:
        """Return what the engine would say of this pipeline."""
        return driven.run.ready and self.recording.state == "streaming"

    def close(self) -> None:
        """End the pipelines in order."""
        self.settle()
        for driven in self.driven:
            driven.run.close()

    def close_recorder(self, recorder: RecorderLife) -> None:
        """Let the recorder flush what it has, and end."""
        recorder.deliver(len(recorder.in_flight))
        recorder.inbox.put(StopRecorder())
        recorder.step()
        recorder.alive = False
