"""
Counts of what a pipeline has delivered, by table and operation, over all its runs.

The operations of changes come from the index of the log, so that counting reads no rows. The
control store writes the counts of a table in the transaction that stores its progress: they cost
no write of their own, and agree with the progress after a crash.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from headrace.changelog.entries import File


@dataclass(frozen=True, slots=True)
class OperationCounts:
    """
    What was delivered to a target, by operation, since the pipeline first ran.

    Changes and rows are counted as they are in the log: before filters, and with those that became
    dead letters.
    """

    inserts: int = 0
    updates: int = 0
    deletes: int = 0
    truncates: int = 0
    baseline_rows: int = 0
    errors: int = 0
    """Failed attempts, each of which ended a step of the pipeline."""

    dead_letters: int = 0
    """Dead letters that were stored, also those that are superseded now."""

    @property
    def changes(self) -> int:
        """All changes: inserts, updates, deletes and truncates."""
        return self.inserts + self.updates + self.deletes + self.truncates

    def __add__(self, other: OperationCounts) -> OperationCounts:
        return OperationCounts(
            self.inserts + other.inserts,
            self.updates + other.updates,
            self.deletes + other.deletes,
            self.truncates + other.truncates,
            self.baseline_rows + other.baseline_rows,
            self.errors + other.errors,
            self.dead_letters + other.dead_letters,
        )

    @classmethod
    def of_files(cls, files: Iterable[File]) -> OperationCounts:
        """Return the changes in files of the log, from the index; nothing is read."""
        inserts = updates = deletes = truncates = 0
        for file in files:
            inserts += file.inserts
            updates += file.updates
            deletes += file.deletes
            truncates += file.truncates
        return cls(inserts, updates, deletes, truncates)


NOTHING_COUNTED = OperationCounts()


class TableCounts(NamedTuple):
    """The counts of one table of a pipeline, as they are stored."""

    counts: OperationCounts
    since: float
    """When counting began, in seconds since 1970."""

    last_change: float | None
    """When changes were last applied, in seconds since 1970; None if none were."""


OF_NO_TABLE = ""
"""The counts of what concerns no single table of a pipeline, such as most errors."""


class Counters:
    """
    The counts of one pipeline, by table.

    *Threads*: any. *Durability*: in memory; the store takes what is not stored yet, and says when
    it was written.
    """

    def __init__(self, wall: Callable[[], float]) -> None:
        """`wall` returns seconds since 1970."""
        self._wall = wall
        self._lock = threading.Lock()
        self._tables: dict[str, TableCounts] = {}
        self._unstored: dict[str, TableCounts] = {}
        self._recalled = False

    def recall(self, stored: Mapping[str, TableCounts]) -> None:
        """Continue the stored counts of earlier runs; a second time it does nothing."""
        with self._lock:
            if self._recalled:
                return
            self._recalled = True
            before, self._tables = self._tables, dict(stored)
            for table, each in before.items():
                self._add(table, each.counts, each.since, each.last_change)
            self._add(OF_NO_TABLE, NOTHING_COUNTED, self._wall(), None)

    def add(self, table: str, counts: OperationCounts) -> None:
        """Count something that has taken effect."""
        now = self._wall()
        with self._lock:
            self._add(table, counts, now, now if counts.changes else None)

    def of(self, table: str) -> TableCounts:
        """Return the counts of one table."""
        found = self._tables.get(table)
        return TableCounts(NOTHING_COUNTED, self._wall(), None) if found is None else found

    def total(self) -> TableCounts:
        """Return the counts of the whole pipeline."""
        with self._lock:
            found = list(self._tables.values())
        return TableCounts(
            sum((each.counts for each in found), NOTHING_COUNTED),
            min((each.since for each in found), default=self._wall()),
            max((at for each in found if (at := each.last_change) is not None), default=None),
        )

    def unstored(self, tables: Sequence[str] | None = None) -> dict[str, TableCounts]:
        """Return what has to be stored with these tables, or with all, since it was last."""
        with self._lock:
            if tables is None:
                return dict(self._unstored)
            wanted = {*tables, OF_NO_TABLE}
            return {table: each for table, each in self._unstored.items() if table in wanted}

    def stored(self, written: Mapping[str, TableCounts]) -> None:
        """Note that these were stored."""
        with self._lock:
            for table, each in written.items():
                if self._unstored.get(table) is each:
                    del self._unstored[table]

    def _add(self, table: str, counts: OperationCounts, now: float, changed: float | None) -> None:
        known = self._tables.get(table)
        if known is None:
            new = TableCounts(counts, now, changed)
        elif counts is NOTHING_COUNTED:
            return
        else:
            last = known.last_change if changed is None else changed
            new = TableCounts(known.counts + counts, known.since, last)
        self._tables[table] = self._unstored[table] = new
