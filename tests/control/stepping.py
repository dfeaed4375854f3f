"""A source, its recorder and runs of pipelines over one simulated disk, each moved by hand."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Sequence

from headrace.capture.messages import FlushNow, TakeBaseline
from headrace.capture.recorder import Recorder
from headrace.changelog.reader import LogReader, LogWriter
from headrace.observe.events import Event
from headrace.pipeline.batch import Runner
from headrace.pipeline.definition import Pipeline
from headrace.runtime.lease import Fence
from headrace.runtime.pipeline_run import IDLE, PipelineRun
from headrace.runtime.run_context import RunContext
from headrace.runtime.store import ProgressStore
from headrace.storage.files import Files
from headrace.storage.simulation import SimulatedDisk
from headrace.testing import MemorySource
from tests.support.arrow_runner import ArrowRunner


class Stepping:
    """What a data directory holds outlives the runs: each new one is a new life of the engine."""

    def __init__(self, tables: Sequence[str] = ("orders",), *, life: int = 1) -> None:
        self.disk = SimulatedDisk()
        self.source = MemorySource("shop")
        self.source.set_supports_resume(True)
        for _ in range(1, life):
            self.source.reset()
        for table in tables:
            self.source.set_schema(table, {"id": "int64", "status": "text"}, ["id"])
        self.connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        self.recorder = Recorder(self.source, self._open_log, tables, time.monotonic)
        self.recorder.step([], 0)
        self.log = self.read_log()
        self.asked: list[str] = []
        self.events: list[Event] = []
        self.emit: Callable[[Event], None] = self.events.append
        self.fence = Fence()

    def clock(self) -> float:
        """Return monotonic seconds, for the runs."""
        return time.monotonic()

    def wall(self) -> float:
        """Return the seconds since 1970, for the runs."""
        return time.time()

    def read_log(self) -> LogReader:
        return LogReader.open(Files(self.disk, "/data"), "shop")

    def put(self, key: int, status: str = "new", table: str = "orders") -> None:
        """Insert a row, or give it new values: a commit, and a flush, of its own."""
        row = {"id": key, "status": status}
        if (key,) in self.source.rows(table):
            self.source.emit_update(table, row)
        else:
            self.source.emit_insert(table, row)
        self.flush()

    def flush(self) -> None:
        """Record all that was emitted, as one flush."""
        self.recorder.step([], 0)
        self.recorder.step([FlushNow()], 0)
        self.log.refresh()

    def take_baseline(self, table: str = "orders") -> None:
        self.recorder.step([TakeBaseline(table)], 0)
        before = self.log.usable_baseline(table)
        while self.log.usable_baseline(table) in (None, before):
            self.recorder.step([], 0)
            self.log.refresh()

    def run(
        self,
        pipeline: Pipeline,
        runner: Runner | None = None,
        kind: type[ProgressStore] = ProgressStore,
    ) -> PipelineRun:
        """Return the pipeline's run, in a new life of the engine."""
        store = kind(self.connection)
        store.take_over()
        self.log = self.read_log()
        context = RunContext(
            log=self.log,
            runner=runner or ArrowRunner(self.disk),
            store=store,
            files=Files(self.disk, "/data"),
            clock=self.clock,
            wall=self.wall,
            ask_baseline=lambda table, newer_than: self.asked.append(table),
            flush_times=lambda entry: None,
            emit=lambda event: self.emit(event),
            fence=self.fence,
        )
        run = PipelineRun("orders", "shop", pipeline, self.source.traits, context)
        run.prepare(self.source.describe(list(pipeline.tables)))
        run.open()
        return run

    def settle(self, run: PipelineRun) -> None:
        """Step until there is nothing to do; baselines that are asked for are taken."""
        while True:
            while run.step() != IDLE:
                pass
            if not self.asked or run.failed:
                return
            for table in dict.fromkeys(self.asked):
                self.take_baseline(table)
            self.asked.clear()

    def _open_log(self) -> LogWriter:
        return LogWriter.open(
            Files(self.disk, "/data"),
            source="shop",
            origin=self.source.origin,
            writer="w",
            term=1,
            clock=time.time,
        )
