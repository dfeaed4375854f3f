"""
The runs of sources and pipelines, built for an engine that starts or is reconfigured.

A run receives everything that it needs from the engine here. Nothing is started: the caller does
that, in the right order.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from headrace.capture.process import RunningRecorder, start_recorder
from headrace.changelog.reader import LogReader
from headrace.changelog.schema import TableSchema
from headrace.engine.checks import collected_errors
from headrace.engine.state import EngineState
from headrace.pipeline.definition import Pipeline
from headrace.runtime.lease import Fence
from headrace.runtime.pipeline_run import PipelineRun
from headrace.runtime.retention import start_retention
from headrace.runtime.run_context import RunContext
from headrace.runtime.source_run import SourceRun
from headrace.runtime.spark import give_context
from headrace.storage.s3 import opened

if TYPE_CHECKING:
    from headrace.capture.source import Recordable


def logged_tables(
    data: str | os.PathLike[str], storage: str | None, source: str
) -> Mapping[str, TableSchema]:
    """Return the tables in the log of a source, as an earlier engine left it; changes nothing."""
    return schemas_in(LogReader.open(opened(data if storage is None else storage), source))


def schemas_in(log: LogReader) -> Mapping[str, TableSchema]:
    """Return the tables that a log knows, with their newest columns."""
    return {table: log.schema(table) for table in log.tables()}


def source_run(state: EngineState, source: Recordable) -> SourceRun:
    """Return the run of a source, with its log open; its recorder is not started."""
    name, directory = source.name, state.directory
    log = LogReader.open(directory.files, name)
    # Before recording: a log in a bucket outlives the store, which is on this machine.
    directory.store.outrank(log.term)
    recording = SourceRun(
        name,
        source.spec.kind,
        log,
        state.notify,
        time.time,
        measures_lag=source.traits.measures_lag,
        ordering=source.traits.ordering,
        resumes=source.traits.resumes,
        resets=source.traits.resets,
        emit=state.events.emit,
    )
    recording.on_found = partial(state.tables.grow, recording, state.wake)
    recording.fence = Fence(name, directory.files)
    recording.on_lost = recording.on_described = partial(state.nudge, name)
    return recording


def recorder_of(state: EngineState, recording: SourceRun) -> Callable[[], RunningRecorder]:
    """Return a function that starts the recorder of a source, for its current tables."""
    source, directory, tables = state.sources[recording.name], state.directory, state.tables
    # Not the store's term at a later time: another source's log may have raised it since.
    recording.fence.term = directory.store.term
    return partial(
        start_recorder,
        source,
        source.spec,
        tables.named(source.name),
        data=str(directory.path),
        storage=directory.files.path(""),
        writer=uuid.uuid4().hex,
        term=directory.store.term,
        on_report=recording.on_report,
        how=state.options.recorder,
        pending_reset=recording.pending_reset,
        selections=tables.selections(source.name),
        baselines=directory.store.highest_baseline(),
        reconnect=state.reconnect_of(source.name),
    )


def pipeline_run(
    state: EngineState, name: str, pipeline: Pipeline, recording: SourceRun
) -> PipelineRun:
    """Return the run of a pipeline on the log of its source, not yet prepared or open."""
    assert state.runner is not None, "the runner is created before pipelines"
    context = RunContext(
        log=recording.log,
        runner=state.runner,
        store=state.directory.store,
        files=state.directory.files,
        clock=time.monotonic,
        wall=time.time,
        ask_baseline=recording.ask_baseline,
        flush_times=recording.flush_times,
        retries=pipeline.retry or state.options.retry,
        schemas=partial(state.tables.schemas_for, pipeline, recording),
        fence=recording.fence,
        note=recording.note,
        on_failure=state.stop_others,
        emit=state.events.emit,
    )
    give_context(name, pipeline.target, context)
    return PipelineRun(name, recording.name, pipeline, pipeline.source.traits, context)


def prepare(runs: Iterable[PipelineRun]) -> None:
    """Compile the plans of pipelines whose tables are known; raise all errors together."""
    with collected_errors() as errors:
        for run in runs:
            with errors:
                if (schemas := run.context.schemas()) is not None:
                    run.prepare(schemas)


def maintain_logs(state: EngineState) -> None:
    """Start retention for every log that does not have it yet (R27)."""
    start_retention(
        state.recordings,
        state.runs,
        state.tables.only_recorded,
        state.directory.store,
        state.directory.files,
        state.options.log,
        (time.monotonic, time.time),
    )
