"""
A copy that may have to wait before it can begin.

Transactions that wrote the table before it was published have to end first (R13), and commits
that the log has must have become visible (H2). Either may take hours, and changes are read by
the same thread: so what is not ready gives a batch without rows, and is asked again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator

import pyarrow as pa

from headrace.capture.postgres.copying import PostgresCopy
from headrace.capture.postgres.rows import empty
from headrace.capture.source import NotYet
from headrace.changelog.schema import TableSchema
from headrace.errors import SchemaChanged, SourceUnreachable

PAUSE_SECONDS = 0.1
"""Between two looks; changes are read no later than that."""


class LateCopy:
    """A baseline under way, or waiting: `begin` makes it, or raises `NotYet`."""

    def __init__(self, schema: TableSchema, begin: Callable[[], PostgresCopy]) -> None:
        self.schema = schema
        self.first = self.last = 0
        self.snapshot = ""
        self.expected: int | None = None
        self.waits = ""
        self.exact: pa.Array | None = None
        self._begin = begin
        self._copy: PostgresCopy | None = None
        self._batches = self._all()

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return self._batches

    def close(self) -> None:
        """Let go of its snapshot, if it has one; more than once, too."""
        self._batches.close()
        if self._copy is not None:
            self._copy.close()

    def _all(self) -> Generator[pa.RecordBatch, None, None]:
        try:
            yield from self._whole()
        except SchemaChanged as error:
            # Opened anew, the source knows the table as it is.
            raise altered(error) from error

    def _whole(self) -> Generator[pa.RecordBatch, None, None]:
        while self._copy is None:
            try:
                self._copy = self._begin()
            except NotYet as why:
                self.waits = str(why)
                yield empty(self.schema)
                time.sleep(PAUSE_SECONDS)
        self.waits = ""
        self.first, self.last = self._copy.first, self._copy.last
        self.snapshot = self._copy.snapshot
        self.expected = self._copy.expected
        for batch in self._copy:
            self.exact = self._copy.exact
            yield batch


def altered(error: SchemaChanged) -> SourceUnreachable:
    """Return what a table that is not as it was described means: reading begins anew."""
    return SourceUnreachable("A table was altered", table=error.facts.get("table"))
