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
        self.files: Sequence[File] | None = None
        """The segments that hold its rows, once it is copied."""

    @property
    def stem(self) -> str:
        """
        How its segments' names begin: an answer that speaks of another copy is of no use.

        Not the baseline's number, which a recorder that died before it was used gives again.
        """
        return self.writer.stem

    def report(self) -> CopyPlanned:
        """Return what those who copy need to know."""
        return CopyPlanned(
            table=self.table,
            stem=self.stem,
            schema=self.writer.schema_id,
            parts=tuple(self.planned.parts),
            expected=self.planned.expected,
        )

    def finish(self) -> int:
        """Make what was copied the baseline, and return its entry."""
        self.writer.adopt(self.files or ())
        planned = self.planned
        entry = self.writer.finish(planned.first, planned.last, planned.snapshot).entry
        planned.close()
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

    def take(self, table: str, stem: str) -> Shared | None:
        """Return the copy that an answer speaks of, once; None where there is none any more."""
        shared = self._copies.get(table)
        if shared is None or shared.stem != stem:
            return None
        return self._copies.pop(table)

    def copied(self, table: str, stem: str, files: Sequence[File]) -> None:
        """Note what a copy that is still wanted consists of."""
        shared = self._copies.get(table)
        if shared is not None and shared.stem == stem:
            shared.files = files

    @property
    def busy(self) -> bool:
        """Whether rows are being copied elsewhere."""
        return any(shared.files is None for shared in self._copies.values())

    def done(self) -> list[Shared]:
        """Return those that are copied."""
        return [shared for shared in self._copies.values() if shared.files is not None]

    def finish(self, shared: Shared) -> int:
        """Make one that is copied the baseline, and return its entry."""
        entry = shared.finish()
        del self._copies[shared.table]
        return entry

    def lost(self) -> list[str]:
        """Give up those whose snapshot is gone before they are copied, and return their tables."""
        gone = [
            table
            for table, shared in self._copies.items()
            if shared.files is None and not shared.planned.alive
        ]
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
