"""
A recorder's own process, followed by its reports: when it was up, and when all was durable.

The clock starts when the process reports that it is up. Connecting, checking and describing
are in; the start of a Python interpreter is not.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

import pyarrow as pa

from bench.processes import cpu_seconds
from headrace.capture.messages import (
    BaselineProgress,
    CopyPlanned,
    Failed,
    Flushed,
    FlushNow,
    Report,
    Started,
    StateReport,
    TakeBaseline,
)
from headrace.capture.postgres.definition import postgres
from headrace.capture.postgres.source import PostgresSource
from headrace.capture.process import start_recorder
from headrace.changelog.reader import LogReader
from headrace.engine.engine import Engine
from headrace.runtime.copy_on_spark import CopiesParts, SparkCopies
from headrace.storage.disk import RealDisk
from headrace.storage.files import Files

ASKS_SECONDS = 0.1
"""How often it is asked to flush what it has, as an engine does that waits for work."""

PATIENCE = 600.0
NAME = "bench"


def source_of(dsn: str) -> PostgresSource:
    """Return the bench's source; where its data lies tells its slot from those of others."""
    return postgres(dsn, name=NAME)


class Recorded:
    """A recorder of one table, at work; a context manager that stops it."""

    def __init__(
        self,
        dsn: str,
        table: str,
        data: Path,
        *,
        expected: int = 0,
        runner: CopiesParts | None = None,
    ) -> None:
        """Record into `data`; `expected` is how many changes make it complete."""
        data.mkdir(exist_ok=True)
        files = Files(RealDisk(), str(data))
        self.log = LogReader.open(files, NAME)
        self.table = table
        self.expected = expected
        self.planned = 0
        """Into how many parts the last baseline was cut for Spark; 0: into none."""

        self._began = self._ended = 0.0
        self._cpu_began = self._cpu_ended = 0.0
        self._pid = 0
        self._failed: Failed | None = None
        self._streaming = threading.Event()
        self._complete = threading.Event()
        self._copied = threading.Event()
        source = source_of(dsn)
        self._copies: SparkCopies | None = None
        if runner is not None:
            folder = files.path(f"log/{NAME}/segments")
            self._copies = SparkCopies(
                source.spec, folder, runner, lambda command: self.recorder.send(command), _nobody
            )
        self.recorder = start_recorder(
            source,
            source.spec,
            [table],
            data=str(data),
            writer=uuid.uuid4().hex,
            # A later recorder of the same log counts as one more.
            term=self.log.last_entry + 1,
            on_report=self._heard,
        )

    def __enter__(self) -> Recorded:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._copies is not None:
            self._copies.stop()
        self.recorder.stop()

    @property
    def pid(self) -> int:
        """The recorder's process."""
        return self._pid

    @property
    def seconds(self) -> float:
        """From being up to all changes being durable."""
        return self._ended - self._began

    @property
    def cpu(self) -> float:
        """The recorder's CPU seconds in that time."""
        return self._cpu_ended - self._cpu_began

    def await_streaming(self) -> None:
        """Wait until it reads."""
        self._await(self._streaming)

    def await_complete(self, asks: float = ASKS_SECONDS) -> None:
        """Wait until everything expected is durable, asking for flushes as an engine would."""
        until = time.monotonic() + PATIENCE
        while not self._complete.wait(asks):
            assert time.monotonic() < until, f"{self.log.counts().rows} of {self.expected} rows"
            self.recorder.send(FlushNow())
        self._check()

    def complete(self) -> bool:
        """Whether everything expected is durable."""
        self._check()
        return self._complete.is_set()

    def copy(self) -> float:
        """Take a baseline, on Spark where there is a runner; return the seconds it took."""
        self._copied.clear()
        self.planned = 0
        began = time.perf_counter()
        self.recorder.send(TakeBaseline(self.table, shared=self._copies is not None))
        self._await(self._copied)
        return time.perf_counter() - began

    def changes(self) -> Iterator[pa.Table]:
        """Give the log's changes after its baseline, segment by segment."""
        baseline = self.log.usable_baseline(self.table)
        assert baseline is not None
        at = baseline.window[0]
        while (batch := self.log.next_batch(self.table, at, 1 << 40)) is not None:
            yield from map(self.log.rows, batch.files)
            at = batch.last

    def baseline(self) -> Iterator[pa.Table]:
        """Give the rows of the newest baseline, segment by segment."""
        baseline = self.log.usable_baseline(self.table)
        assert baseline is not None
        yield from map(self.log.rows, baseline.files)

    def _await(self, event: threading.Event) -> None:
        assert event.wait(PATIENCE), "the recorder did not come so far"
        self._check()

    def _check(self) -> None:
        assert self._failed is None, self._failed

    def _heard(self, report: Report) -> None:
        match report:
            case Started(pid):
                self._pid = pid
                self._cpu_began = cpu_seconds([pid])
                self._began = time.perf_counter()
            case StateReport("streaming"):
                self._streaming.set()
            case Flushed(entry):
                self.log.refresh(entry)
                if 0 < self.expected <= self.log.counts().rows and not self._complete.is_set():
                    self._ended = time.perf_counter()
                    self._cpu_ended = cpu_seconds([self._pid])
                    self._complete.set()
            case BaselineProgress(done=True):
                self._copied.set()
            case CopyPlanned() if self._copies is not None:
                self.planned = len(report.parts)
                self._copies.take(report)
            case Failed():
                self._failed = report
                for event in (self._streaming, self._complete, self._copied):
                    event.set()


def prepare(dsn: str, table: str, data: Path) -> None:
    """Begin a log, with a slot on the server and a baseline of what there is, and leave it."""
    engine = Engine(data=data, records=[(source_of(dsn), [table])])
    with engine:
        assert engine.await_ready(PATIENCE), engine.source_info(NAME)


def _nobody(table: str, rows: int, expected: int | None) -> None:
    """Hear of progress, and do nothing."""
