"""
What the engine asks of whoever runs its batches.

The engine knows only this page, so that a simulation can run thousands of batches without
a JVM: here is nothing of Spark.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from headrace.capture.source import SourceTraits
from headrace.changelog.entry import File
from headrace.changelog.position import Position
from headrace.changelog.schema import TableSchema
from headrace.pipeline.definition import Pipeline
from headrace.pipeline.result import Result


@dataclass(frozen=True, slots=True)
class Part:
    """Segments of one schema, as absolute paths."""

    schema: TableSchema
    paths: tuple[str, ...]
    row_counts: tuple[int, ...] = ()
    """Rows of each segment; needed for a baseline only, to cut it into jobs."""

    marked: int = 0
    """Rows with a value that its column could not hold, and whose text stands in `_exact`."""


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

    @classmethod
    def of(cls, files: Iterable[File], first: Position, last: Position) -> BatchFacts:
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
        )


class Runner(Protocol):
    """
    Computes what a target is given.

    *Order*: rows come in position order. *Duplicates*: a batch given again gives the same
    result (R23g). *Threads*: several pipelines at a time, each from one thread. *Empty
    batch*: not asked for; a batch without segments needs no run. *Errors*: `RowFailed` for a
    row that cannot be computed, `JobFailed` for what may be tried again.
    """

    def prepare(self, pipeline: Pipeline, schema: TableSchema, traits: SourceTraits) -> TableSchema:
        """
        Analyse the pipeline over such a table, and return what its rows will look like.

        Called once for a pipeline before anything else. Raises `UnknownColumn`,
        `BadExpression`, `BadTransform`.
        """
        ...

    def rows(self, pipeline: Pipeline, parts: Sequence[Part], facts: BatchFacts) -> Result:
        """
        Return a batch's rows: `_op _commit _ordinal _time`, then the columns of the result.

        Parts are in the order of their schemas' versions; the result looks as the last one
        does.
        """
        ...

    def baseline(self, pipeline: Pipeline, part: Part) -> Iterator[pa.Table]:
        """Yield the rows of a baseline's segments, in the shape of the result, in any order."""
        ...
