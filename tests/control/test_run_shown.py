"""A table built again from the log is shown where its readers left it, not where it began."""

import sqlite3
import time

import pytest

from headrace.capture.messages import FlushNow, TakeBaseline
from headrace.capture.recorder import Recorder
from headrace.changelog.reader import LogReader, LogWriter
from headrace.pipeline.definition import Pipeline
from headrace.runtime.model import TableState
from headrace.runtime.pipeline_run import IDLE, PipelineRun
from headrace.runtime.run_context import RunContext
from headrace.runtime.store import ProgressStore
from headrace.storage.files import Files
from headrace.storage.simulation import SimulatedDisk
from headrace.targets.memory import IndexedMemory, memory
from headrace.testing import MemorySource
from tests.support.arrow_runner import ArrowRunner

FLUSHES = 150
"""More than fit one batch, so that there are moments in between."""


@pytest.mark.meets("R12", "R43")
def test_a_restart_shows_nothing_older_than_the_end_of_the_log() -> None:
    disk = SimulatedDisk()
    source = recorded(disk)
    target = memory()
    run = running(disk, source, target)
    shown = []
    while run.step() != IDLE:
        shown.append((run.state, target.row_count("orders")))
    catching_up = [rows for state, rows in shown if state == TableState.CATCHING_UP]
    assert len(catching_up) > 1, "it took one batch: nothing was proved"
    assert set(catching_up) == {None}
    assert run.ready
    assert target.count() == FLUSHES


def recorded(disk: SimulatedDisk) -> MemorySource:
    """Return a source whose log has an empty baseline and many flushes after it."""
    source = MemorySource("shop")
    source.set_schema("orders", {"id": "int64"}, ["id"])

    def open_log() -> LogWriter:
        return LogWriter.open(
            Files(disk, "/data"),
            source="shop",
            origin=source.origin,
            writer="w",
            term=1,
            clock=time.time,
        )

    recorder = Recorder(source, open_log, ["orders"], time.monotonic)
    recorder.step([], 0)
    recorder.step([TakeBaseline("orders")], 0)
    recorder.step([], 0)
    for number in range(FLUSHES):
        source.emit_insert("orders", {"id": number})
        recorder.step([], 0)
        recorder.step([FlushNow()], 0)
    return source


def running(disk: SimulatedDisk, source: MemorySource, target: IndexedMemory) -> PipelineRun:
    store = ProgressStore(
        sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    )
    store.take_over()
    pipeline = Pipeline(source, "orders", target)
    context = RunContext(
        log=LogReader.open(Files(disk, "/data"), "shop"),
        runner=ArrowRunner(disk),
        store=store,
        files=Files(disk, "/data"),
        clock=time.monotonic,
        wall=time.time,
        ask_baseline=lambda table, newer_than: None,
        flush_times=lambda entry: None,
    )
    run = PipelineRun("orders", "shop", pipeline, source.traits, context)
    run.prepare(source.describe(["orders"]))
    run.open()
    return run
