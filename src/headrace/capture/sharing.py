"""
Baselines that somebody else reads: the recorder plans them, and Spark's tasks copy the rows.

The recorder holds the snapshot they are read under, and has the last word: the rows exist
once it has written the entry that names their segments. Whatever happens to it or to Spark
before leaves nothing but files that the next writer sweeps (H4, R20).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headrace.capture.source import Planned
from headrace.capture.wire import CopyPlanned
from headrace.changelog.entry import File
from headrace.changelog.log import BaselineWriter, LogWriter


class Shared:
    """One baseline that is being copied elsewhere."""

    def __init__(self, table: str, planned: Planned, log: LogWriter) -> None:
        self.table = table
        self.planned = planned
        self.writer: BaselineWriter = log.baseline(planned.schema)

    @property
    def number(self) -> int:
        """The baseline's number: an answer that speaks of another one is of no use."""
        return self.writer.number

    def report(self) -> CopyPlanned:
        """Return what those who copy need to know."""
        return CopyPlanned(
            table=self.table,
            baseline=self.number,
            stem=self.writer.stem,
            schema=self.writer.schema_id,
            parts=tuple(self.planned.parts),
        )

    def finish(self, files: Sequence[File]) -> int:
        """Make what was copied the baseline, and return its entry."""
        self.writer.adopt(files)
        entry = self.writer.finish(self.planned.first, self.planned.last).entry
        self.planned.close()
        return entry


class Sharing:
    """The baselines that others copy now, by table."""

    def __init__(self) -> None:
        self._copies: dict[str, Shared] = {}

    @property
    def copies(self) -> Mapping[str, Shared]:
        """Those under way."""
        return self._copies

    def begin(self, shared: Shared) -> None:
        """Take one more; an earlier one of the same table is given up."""
        self.drop(shared.table)
        self._copies[shared.table] = shared

    def take(self, table: str, number: int) -> Shared | None:
        """Return the copy that an answer speaks of, once; None where there is none any more."""
        shared = self._copies.get(table)
        if shared is None or shared.number != number:
            return None
        return self._copies.pop(table)

    def lost(self) -> list[str]:
        """Give up those whose snapshot is gone, and return their tables."""
        gone = [table for table, shared in self._copies.items() if not shared.planned.alive]
        for table in gone:
            self.drop(table)
        return gone

    def drop(self, table: str) -> None:
        """Let go of a copy; its files are swept at the next start."""
        if (shared := self._copies.pop(table, None)) is not None:
            shared.planned.close()

    def clear(self) -> list[str]:
        """Let go of all, and return their tables."""
        tables = list(self._copies)
        for table in tables:
            self.drop(table)
        return tables
