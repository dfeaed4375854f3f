"""
The runs of sources and pipelines, put together for an engine that starts or changes.

A run is given everything it needs of the engine here, and nothing is started: that is for the
caller, who knows in which order.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING

from headrace.capture.process import RunningRecorder, start_recorder
from headrace.changelog.reader import LogReader
from headrace.engine.checks import gathered
from headrace.engine.state import EngineState
from headrace.pipeline.definition import Pipeline
from headrace.runtime.lease import Fence
from headrace.runtime.pipeline_run import PipelineRun
from headrace.runtime.retention import care_for
from headrace.runtime.run_context import RunContext
from headrace.runtime.source_run import SourceRun
from headrace.runtime.spark import give_context

if TYPE_CHECKING:
    from headrace.capture.source import Recordable


def source_run(state: EngineState, source: Recordable) -> SourceRun:
    """Return the run of a source, with its log open; its recorder is not started."""
    name, directory = source.name, state.directory
    log = LogReader.open(directory.files, name)
    # Before it is recorded: a log in a bucket outlives the store, which is on this machine.
    directory.store.outrank(log.term)
    recording = SourceRun(name, source.spec.kind, log, state.notify, time.time)
    recording.on_found = partial(state.tables.grow, recording, state.wake)
    recording.fence = Fence(name, directory.files)
    recording.on_lost = partial(state.nudge, name)
    return recording


def recorder_of(state: EngineState, recording: SourceRun) -> Callable[[], RunningRecorder]:
    """Return what starts the recorder of a source, for the tables that are taken now."""
    source, directory, tables = state.sources[recording.name], state.directory, state.tables
    # Not the store's later on: another source's log may have raised that since.
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
        owed=recording.owed_reset,
        selections=tables.selections(source.name),
        baselines=directory.store.highest_baseline(),
    )


def pipeline_run(
    state: EngineState, name: str, pipeline: Pipeline, recording: SourceRun
) -> PipelineRun:
    """Return the run of a pipeline on the log of its source; neither prepared nor open."""
    assert state.runner is not None, "a pipeline is run after its runner is there"
    context = RunContext(
        log=recording.log,
        runner=state.runner,
        store=state.directory.store,
        files=state.directory.files,
        clock=time.monotonic,
        wall=time.time,
        ask_baseline=recording.ask_baseline,
        flush_times=recording.flush_times,
        fence=recording.fence,
    )
    give_context(name, pipeline.target, context)
    return PipelineRun(name, recording.name, pipeline, pipeline.source.traits, context)


def prepare(state: EngineState, runs: Iterable[PipelineRun]) -> None:
    """Analyse the plans of pipelines; raise everything that is wrong with them together."""
    with gathered() as errors:
        for run in runs:
            with errors:
                run.prepare(state.tables.schemas_for(run))


def maintain_logs(state: EngineState) -> None:
    """Begin the retention of every log that has none yet (R27)."""
    care_for(
        state.recordings,
        state.runs,
        state.tables.only_recorded,
        state.directory.store,
        state.directory.files,
        state.options.log,
        (time.monotonic, time.time),
    )
