"""
Large batches and baselines whose rows do not come here: executors prepare them (R24, S4).

The target is given the frame and makes parts of it by tasks; what it commits then are those
that receipts name. A row that cannot be computed is found and left out as for any other target.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from headrace.changelog.log import LogBatch
from headrace.changelog.position import Position
from headrace.control.aside import Aside, Held, Segments
from headrace.control.giving import Giving
from headrace.control.member import Member
from headrace.pipeline.batch import GivesFrames, Part, Runner
from headrace.pipeline.definition import Pipeline
from headrace.pipeline.foreach import FrameBatch
from headrace.pipeline.lake.target import StagesFrames, StagesRows
from headrace.pipeline.result import Failure
from headrace.targets.target import Loading

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class StagedBatches:
    """Lets the target of one pipeline stage frames. For the run's thread alone."""

    def __init__(
        self, name: str, pipeline: Pipeline, target: StagesFrames, runner: GivesFrames
    ) -> None:
        self._target = target
        self._giving = Giving(name, pipeline, self, runner)
        self._loading: StagesRows | None = None
        self._emptied: Position | None = None
        self._staged: object = None

    def wants(self, rows: int) -> bool:
        """Whether so many rows are too many for the driver."""
        return rows >= self._target.staged_from

    def changes(
        self, member: Member, batch: LogBatch, parts: Sequence[Part], segments: Segments, held: Held
    ) -> tuple[object, Position | None, Aside]:
        """Stage one table's share of a batch; return it, its last truncate, what was set aside."""
        self._loading, self._emptied, self._staged = None, segments.truncated_at(), None
        aside = self._giving.changes(member, batch, parts, segments, held)
        return self._staged, self._emptied, aside

    def baseline(
        self,
        table: str,
        number: int,
        first: Position,
        parts: Sequence[Part],
        loading: StagesRows,
    ) -> list[Failure]:
        """Stage a baseline's rows; return those that cannot be computed."""
        self._loading = loading
        return self._giving.baseline(table, number, first, parts)

    def write_frame(self, frame: DataFrame, batch: FrameBatch) -> None:
        """Take a frame; the same again, without rows that failed, takes its place."""
        if self._loading is not None:
            self._loading.stage(frame, batch.piece or 0)
        else:
            self._staged = self._target.stage(batch.table, frame, batch.first.epoch, self._emptied)


def staged_batches(name: str, pipeline: Pipeline, runner: Runner) -> StagedBatches | None:
    """Return what stages for a pipeline; None where its target, or the runner, cannot."""
    if isinstance(pipeline.target, StagesFrames) and isinstance(runner, GivesFrames):
        return StagedBatches(name, pipeline, pipeline.target, runner)
    return None


def stages(loading: Loading) -> StagesRows | None:
    """Return the loading as one that frames can be staged for; None where they cannot."""
    return loading if isinstance(loading, StagesRows) else None
