"""Gathers what the demo shows from a running engine, as a `Snapshot`."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.errors import NotRunning
from headrace.interfaces.cli.demo.next_steps import letter_commands
from headrace.interfaces.cli.demo.parts import DemoEngine
from headrace.interfaces.cli.demo.snapshot import (
    HOPS,
    HeldRow,
    HopTimes,
    LastBatch,
    Rate,
    Snapshot,
    SparkNow,
)
from headrace.interfaces.cli.demo.watch import Watch

if TYPE_CHECKING:
    from headrace.control.info import PipelineInfo, SourceInfo
    from headrace.pipeline.letter import DeadLetter

SPARK_SECONDS = 1.0


class Gathering:
    """What is known of the flow, asked for as often as it is worth it."""

    def __init__(self, engine: DemoEngine, watch: Watch, data: Path, *, killable: bool) -> None:
        self._engine = engine
        self._watch = watch
        self._data = data
        self._killable = killable
        self._captured, self._applied = Rate(), Rate()
        self._spark: SparkNow | None = None
        self._spark_due = 0.0
        self._letters: tuple[DeadLetter, ...] = ()

    def snapshot(
        self, phase: str, now: float, left: float | None, *, started: bool, visible: bool
    ) -> Snapshot:
        """Return the flow at this moment; raises what a source or pipeline stopped on."""
        snapshot = Snapshot(phase, now, left, killable=self._killable)
        for source in self.sources():
            _raise_failure(source)
            snapshot = replace(
                snapshot,
                source=source.name,
                kind=source.kind,
                source_state=source.state,
                source_reason=source.reason,
                restarts=source.restarts,
                captured=source.captured,
                captured_rate=self._captured.at(now, source.captured),
                flushes=source.flushes,
                log_bytes=source.bytes,
                copies=source.copies,
            )
        for pipeline in self.pipelines():
            _raise_failure(pipeline)
            snapshot = replace(
                snapshot,
                table=pipeline.table,
                state=pipeline.state,
                applied=pipeline.changes,
                applied_rate=self._applied.at(now, pipeline.changes),
                rows=pipeline.rows,
                position=str(pipeline.position),
                hops=_hops(pipeline),
                letters=self._held(pipeline),
            )
        return replace(
            snapshot,
            spark=self._spark_now(now) if started else None,
            changes=self._watch.last(),
            lookup=self._watch.lookup() if visible else None,
        )

    def sources(self) -> tuple[SourceInfo, ...]:
        """Return the sources, none before there are any."""
        with suppress(NotRunning):
            return self._engine.sources()
        return ()

    def pipelines(self) -> tuple[PipelineInfo, ...]:
        """Return the pipelines, none before there are any."""
        with suppress(NotRunning):
            return self._engine.pipelines()
        return ()

    def ask_spark_again(self) -> None:
        """Let the next snapshot have Spark's newest counts."""
        self._spark_due = 0.0

    def letters(self) -> tuple[DeadLetter, ...]:
        """Return the dead letters there are now."""
        return self._engine.dead_letters()

    def last_batch(self, *, whole: bool) -> LastBatch | None:
        """Return what Spark did last, with the whole explanation on request."""
        with suppress(NotRunning):
            for pipeline in self.pipelines():
                told = self._engine.explain(pipeline.name)
                plan = self._spark.plan if self._spark else ""
                text = str(told) if whole else None
                return LastBatch(told.rows_in, told.rows_out, told.last_job_ms, plan, text)
        return None

    def _spark_now(self, now: float) -> SparkNow | None:
        # Spark answers in another process: asked seldom, it does not slow what it is asked about.
        if now >= self._spark_due:
            self._spark_due = now + SPARK_SECONDS
            if told := self._engine.spark_info():
                self._spark = SparkNow(
                    told.version, told.jobs, told.tasks, told.last_job_ms, told.plan, told.ui
                )
        return self._spark

    def _held(self, pipeline: PipelineInfo) -> tuple[HeldRow, ...]:
        # Letters are read from files: only when there are others than a moment ago.
        if pipeline.dead_letters != len(self._letters):
            self._letters = self._engine.dead_letters()
        if not self._letters:
            return ()
        from headrace.pipeline.letter import behind

        first: dict[tuple[object, ...], DeadLetter] = {}
        for letter in self._letters:
            first.setdefault(letter.key, letter)
        return tuple(
            HeldRow(
                pipeline=letter.pipeline,
                table=letter.table,
                key=", ".join(str(part) for part in letter.key),
                code=letter.code,
                position=str(letter.position),
                behind=len(behind(letter, self._letters)),
                commands=letter_commands(self._data, str(letter.position)),
            )
            for letter in first.values()
        )


def _raise_failure(info: SourceInfo | PipelineInfo) -> None:
    if info.state == "failed" and info.error is not None:
        raise info.error


def _hops(pipeline: PipelineInfo) -> tuple[HopTimes, ...]:
    return tuple(
        HopTimes(name, pipeline.hops[name].p50_ms, pipeline.hops[name].p95_ms)
        for name in HOPS
        if name in pipeline.hops
    )
