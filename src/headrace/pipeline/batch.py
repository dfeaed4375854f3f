"""
What the engine asks of whoever runs its batches.

The engine knows only this page, so that a simulation can run thousands of batches without
a JVM: here is nothing of Spark.
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


Behind: TypeAlias = Callable[[Sequence[Failure]], frozenset[RowReference]]
"""Tells which changes must be set aside with these: they, and what follows them by key (R30)."""


@dataclass(frozen=True, slots=True)
class SegmentGroup:
    """Segments of one schema, as absolute paths."""

    schema: TableSchema
    paths: tuple[str, ...]
    row_counts: tuple[int, ...] = ()
    """Rows of each segment; needed for a baseline only, to cut it into jobs."""

    marked: int = 0
    """Rows with a value that its column could not hold, and whose text stands in `_exact`."""

    newest: TableSchema | None = None
    """The table's schema as the pipeline knows it, where it was altered since; see `plan`."""

    sizes: tuple[int, ...] = ()
    """Bytes of each segment, as far as they are known: for people alone."""

    @property
    def now(self) -> TableSchema:
        """The schema that the rows are brought to."""
        if self.newest is None:
            return self.schema
        # Lifting brings columns, but no image that was not sent (R22).
        return replace(self.newest, whole_before=self.schema.whole_before)


@dataclass(frozen=True, slots=True)
class BatchFacts:
    """What the index knows of a batch before it is read."""

    first: Position
    last: Position
    rows: int
    updates: int = 0
    deletes: int = 0
    truncates: int = 0
    key_changes: int = 0
    marked: int = 0
    """As in its parts; either will do."""

    without: frozenset[RowReference] = frozenset()
    """Changes that are set aside: the result is as if the batch did not hold them."""

    every_change: bool = False
    """As of `TargetTraits`: truncates are rows, and what was before them stays."""

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
    """Computes what targets are given, of several pipelines at a time."""

    def prepare(
        self, pipeline: Pipeline, traits: SourceTraits, name: str | None = None
    ) -> PreparedPipeline:
        """
        Return what runs a pipeline, to be closed at the end; nothing is analysed yet.

        Its jobs have its `name`, and are cancelled by themselves: a pipeline that was prepared
        twice is two here.
        """
        ...


class PreparedPipeline(Protocol):
    """
    One pipeline's batches, computed.

    *Order*: rows come in position order. *Duplicates*: a batch given again gives the same
    result (R23g). *Threads*: one at a time; `cancel` from any. *Empty batch*: not asked for;
    a batch without segments needs no run. *Errors*: a row that cannot be computed is a
    `Failure` in the result, and the others are there; `TooManyFailed` beyond the pipeline's
    `on_error`, `RowFailed` where that is to stop; `JobFailed` for what may be tried again,
    `JobCancelled` after a `cancel`.
    """

    def output(self, schema: TableSchema) -> TableSchema:
        """
        Analyse the pipeline over such a table, and return what its rows will look like.

        Called once for each table of a pipeline before anything else. Raises `UnknownColumn`,
        `UnsentColumn`, `BadExpression`, `BadTransform`, `BadFunction`, `BadFrame`.
        """
        ...

    def needs(self, schema: TableSchema) -> frozenset[int]:
        """Return the ids of the table's columns without which a change cannot be computed."""
        ...

    def rows(self, parts: Sequence[SegmentGroup], facts: BatchFacts) -> JobResult:
        """
        Return the rows of one table's batch: `_op _commit _ordinal _time`, then the columns.

        Parts are in the order of their schemas' versions; the result looks as the last one
        does, or as all do that name a `newest`.
        """
        ...

    def baseline(self, part: SegmentGroup) -> Iterator[LoadedRows]:
        """Yield the rows of a baseline's segments, in the shape of the result, in any order."""
        ...

    def cancel(self) -> None:
        """End the job that this pipeline has running, if any; what it computed is forgotten."""
        ...

    def close(self) -> None:
        """Release what was analysed; nothing may follow."""
        ...


@runtime_checkable
class GivesFrames(Protocol):
    """
    What a pipeline prepared on Spark can do besides: hand a batch over as a DataFrame.

    The frame has the row's columns, then `_op` (text), `_position` (text), `_commit`,
    `_ordinal` and `_time`; a key change is two rows of one position, and a truncate is a row
    of nulls. `take` may be called again, with a frame without the rows that failed; what it
    raises, unless a row is to blame, is raised here.
    """

    def give(
        self,
        parts: Sequence[SegmentGroup],
        facts: BatchFacts,
        behind: Behind,
        take: Callable[[DataFrame], None],
    ) -> tuple[Failure, ...]:
        """Let `take` have a batch of one table; return the rows that could not be computed."""
        ...

    def give_baseline(
        self, part: SegmentGroup, take: Callable[[DataFrame, int], None]
    ) -> tuple[Failure, ...]:
        """
        Let `take` have a baseline's rows in numbered pieces: as inserts, without positions.

        A part without segments is one piece without rows.
        """
        ...
