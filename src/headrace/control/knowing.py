"""
What an engine knows of itself: readiness, states, counts and lag, as observed now.

`Engine` has these methods; they stand apart because they change nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from headrace.changelog.schema import TableSchema
from headrace.control.care import Care
from headrace.control.growing import takes
from headrace.control.info import LogInfo, PipelineInfo, SourceInfo
from headrace.control.overview import pipeline_info
from headrace.control.readiness import Readiness
from headrace.control.recording import Recording
from headrace.control.run import PipelineRun
from headrace.control.taken import TakenTables
from headrace.errors import NotRunning, UnknownTable
from headrace.pipeline.definition import Pipeline

if TYPE_CHECKING:
    from headrace.pipeline.runner import SparkRunner
    from headrace.pipeline.session import SparkInfo
    from headrace.targets.target import Target


class Knows:
    """What can be asked of an engine, from any thread."""

    _pipelines: list[Pipeline]
    _names: list[str]
    _runs: list[PipelineRun]
    _recordings: dict[str, Recording]
    _readiness: Readiness
    _taken: TakenTables
    _spark: SparkRunner | None

    def await_ready(self, timeout: float | None = None) -> bool:
        """
        Wait until every pipeline shows its tables and nothing is wrong.

        False when the time is over, or when waiting is of no use: a pipeline or a recorder
        stopped on an error that a person must mend, or the engine was stopped.
        """
        return self._readiness.wait(timeout)

    def is_ready(
        self, source: str | None = None, table: str | None = None, pipeline: str | None = None
    ) -> bool:
        """
        Return whether the pipelines asked for are ready, now.

        Readiness comes from what is observed and goes back to False (invariant 9): a
        failed job, a recorder that is down or a source out of reach all end it. So does a
        pause. What is only recorded is ready once its baseline is in the log.
        """
        return self._readiness.now(source, table, pipeline)

    def on_ready(self, call: Callable[[], None]) -> None:
        """Call `call` once, when the engine is ready next: at once if it is."""
        self._readiness.call(call)

    def pipelines(self) -> tuple[PipelineInfo, ...]:
        """Return every pipeline with state, counts and lag."""
        return tuple(self._info(run) for run in list(self._runs) if run.source in self._recordings)

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

    def log_info(self, source: str) -> LogInfo:
        """Return what a source's log holds, how far back it goes, and for whom."""
        recording = self._recordings.get(source)
        if recording is None or not isinstance(recording.care, Care):
            raise NotRunning("No such source at work", source=source)
        return recording.care.info()

    def targets(self, source: str, table: str) -> tuple[Target, ...]:
        """Return the targets a table of a source is brought to."""
        return tuple(
            pipeline.target
            for pipeline in list(self._pipelines)
            if pipeline.source.name == source and takes(pipeline, table)
        )

    def target(self, pipeline: str, type: str | None = None) -> Target:
        """Return a pipeline's target; with `type`, only if it is of that type."""
        named = dict(zip(self._names, self._pipelines, strict=False))
        if pipeline not in named:
            raise NotRunning("No such pipeline", pipeline=pipeline)
        found = named[pipeline].target
        if type not in (None, found.traits.type):
            raise UnknownTable("The pipeline's target is of another type", type=found.traits.type)
        return found

    def schema(self, table: str) -> TableSchema:
        """Return a captured table's schema, as the source describes it."""
        for known, schema in list(self._taken.schemas.items()):
            if known.split("/", 1)[1] == table:
                return schema
        raise UnknownTable("No pipeline has this table, or the engine has not started", table=table)

    def spark_info(self) -> SparkInfo | None:
        """Return what Spark did so far, or None before it is up."""
        return self._spark.info() if self._spark is not None else None

    def _info(self, run: PipelineRun) -> PipelineInfo:
        recording = self._recordings[run.source]
        return pipeline_info(run, recording.log, recording.copies_under_way())

    def _find(self, name: str) -> PipelineRun:
        for run in list(self._runs):
            if run.name == name:
                return run
        if name in self._names:
            raise NotRunning("The engine has not started", pipeline=name)
        raise NotRunning("No such pipeline", pipeline=name)
