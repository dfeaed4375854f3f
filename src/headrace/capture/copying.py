"""A baseline on its way from its source into the log."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pyarrow as pa

from headrace.capture.source import Recordable
from headrace.changelog.log import BaselineWriter, LogWriter
from headrace.errors import StorageError


class Copying:
    """A baseline on its way into the log."""

    def __init__(self, table: str, source: Recordable, log: LogWriter) -> None:
        self.table = table
        self.rows = 0
        self.copy = source.baseline(table)
        self._batches: Iterator[pa.RecordBatch] = iter(self.copy)
        self._writer: BaselineWriter = log.baseline(self.copy.schema)

    def chunk(self) -> int | None:
        """Copy the next chunk and return the rows so far; None when there is no more."""
        for batch in self._batches:
            self.rows = self._writer.write(batch, self.copy.exact)
            return self.rows
        return None

    def finish(self) -> int:
        """Make the baseline visible, and return its entry."""
        copy = self.copy
        return self._writer.finish(copy.first, copy.last, copy.snapshot).entry

    def discard(self) -> None:
        """Throw away what was copied."""
        self.copy.close()
        # Files that no entry names are swept at the next start anyway.
        with contextlib.suppress(StorageError):
            self._writer.discard()
