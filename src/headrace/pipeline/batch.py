"""
The protocol between the engine and the runner that computes its batches.

The engine knows only this module. It does not import Spark, so that a simulation can run thousands
of batches without a JVM.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol, TypeAlias, runtime_checkable

import pyarrow as pa

from headrace.capture.source import SourceTraits
from headrace.changelog.entries import File
from headrace.changelog.position import Position
from headrace.changelog.schema import TableSchema
from headrace.pipeline.definition import Pipeline
from headrace.pipeline.result import Failure, JobResult, RowReference

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


BlockedRows: TypeAlias = Callable[[Sequence[Failure]], frozenset[RowReference]]
"""Returns the changes to park for these failures: they, and later ones of their keys (R30)."""


@dataclass(frozen=True, slots=True)
class SegmentGroup:
    """Segments of one schema, as absolute paths."""

    schema: TableSchema
    paths: tuple[str, ...]
    row_counts: tuple[int, ...] = ()
    """Rows of each segment; only needed to split a baseline into jobs."""

    marked: int = 0
    """Number of rows with a value that its column could not hold; its text is in `_exact`."""

    newest: TableSchema | None = None
    """The current schema of the table, if it was altered since; see `plan`."""

    sizes: tuple[int, ...] = ()
    """Bytes of each segment, if known; only for display."""

    @property
    def now(self) -> TableSchema:
        """The schema that the rows are converted to."""
        if self.newest is None:
            return self.schema
        # A schema upgrade adds columns, but not an image that was not sent (R22).
        return replace(self.newest, whole_before=self.schema.whole_before)


@dataclass(frozen=True, slots=True)
class BatchFacts:
    """What the index knows about a batch before it is read."""

    first: Position
    last: Position
    rows: int
    updates: int = 0
    deletes: int = 0
    truncates: int = 0
    key_changes: int = 0
    marked: int = 0
    """As in `SegmentGroup`; setting it in one of the two is enough."""

    without: frozenset[RowReference] = frozenset()
    """Parked changes: the result is as if the batch did not contain them."""

    every_change: bool = False
    """As in `TargetTraits`: truncates are rows, and the rows before them stay."""

    @classmethod
    def of(
        cls, files: Iterable[File], first: Position, last: Position, *, every_change: bool = False
    ) -> BatchFacts:
        """Return the facts of a batch of these segments."""
        listed = list(files)
        return cls(
            first,
            last,
            rows=sum(file.rows for file in listed),
            updates=sum(file.updates for file in listed),
            deletes=sum(file.deletes for file in listed),
            truncates=sum(file.truncates for file in listed),
            key_changes=sum(file.key_changes for file in listed),
            marked=sum(file.marked for file in listed),
            every_change=every_change,
        )


@dataclass(frozen=True, slots=True)
class LoadedRows:
    """Some rows of a baseline, in the shape of the result."""

    rows: pa.Table
    failures: tuple[Failure, ...] = ()


class Runner(Protocol):
    """Computes the batches of several pipelines at a time."""

    def prepare(
        self, pipeline: Pipeline, traits: SourceTraits, name: str | None = None
    ) -> PreparedPipeline:
        """
        Return an object that runs a pipeline; close it at the end. Nothing is analysed yet.

        Its jobs have the pipeline's `name` and can be cancelled separately: a pipeline that is
        prepared twice counts as two.
        """
        ...


class PreparedPipeline(Protocol):
    """
    Computes the batches of one pipeline.

    *Order*: rows come in position order. *Duplicates*: the same batch always gives the same
    result (R23g). *Threads*: one at a time; `cancel` from any. *Empty batch*: not called for
    a batch without segments. *Errors*: a row that cannot be computed is a `Failure` in the
    result, next to the other rows; `TooManyFailed` beyond the limits of the pipeline's
    `on_error`, `RowFailed` if it is `stop`; `JobFailed` for a batch that may be tried again,
    `JobCancelled` after a `cancel`.
    """

    def output(self, schema: TableSchema) -> TableSchema:
        """
        Analyse the pipeline for this table, and return the schema of the resulting rows.

        Called once for each table of a pipeline, before anything else. Raises `UnknownColumn`,
        `UnsentColumn`, `BadExpression`, `BadTransform`, `BadFunction`, `BadFrame`.
        """
        ...

    def needs(self, schema: TableSchema) -> frozenset[int]:
        """Return the ids of the columns that are needed to compute a change."""
        ...

    def rows(self, parts: Sequence[SegmentGroup], facts: BatchFacts) -> JobResult:
        """
        Return the rows of one table's batch: `_op _commit _ordinal _time`, then the columns.

        Parts are in the order of their schemas' versions. The result has the schema of the last
        part, or `newest` if the parts have one.
        """
        ...

    def baseline(self, part: SegmentGroup) -> Iterator[LoadedRows]:
        """Yield the rows of a baseline's segments, in the shape of the result, in any order."""
        ...

    def cancel(self) -> None:
        """Cancel the running job of this pipeline, if any, and drop its result."""
        ...

    def close(self) -> None:
        """Release the plans; this is the last call."""
        ...


@runtime_checkable
class GivesFrames(Protocol):
    """
    An additional ability of a pipeline prepared on Spark: passing a batch as a DataFrame.

    The frame has the row's columns, then `_op` (text), `_position` (text), `_commit`,
    `_ordinal` and `_time`. A key change is two rows with one position, and a truncate is a row
    of nulls. `take` may be called again, with a frame without the rows that failed, or that it
    refused by raising `RowsRefused`; before that, `blocked` is called with all of them. These
    count as failures. Raises `TargetError` if it refuses a row that is not in the frame,
    `RowRefused` or `TooManyFailed` beyond the limits of the pipeline's `on_error`. Other errors
    that `take` raises are raised here.
    """

    def give(
        self,
        parts: Sequence[SegmentGroup],
        facts: BatchFacts,
        blocked: BlockedRows,
        take: Callable[[DataFrame], None],
    ) -> tuple[Failure, ...]:
        """Call `take` with a batch of one table; return the rows that could not be computed."""
        ...

    def give_baseline(
        self,
        part: SegmentGroup,
        take: Callable[[DataFrame, int], None],
        blocked: BlockedRows | None = None,
    ) -> tuple[Failure, ...]:
        """
        Call `take` with a baseline's rows in numbered pieces: as inserts, without positions.

        A part without segments is one piece without rows.
        """
        ...
