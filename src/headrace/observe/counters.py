"""
Counts and events of what a pipeline delivers.

`Counters` has the counts by table and operation, over all runs of a pipeline. The operations of
changes come from the index of the log, so that counting reads no rows. The control store writes
the counts of a table in the transaction that stores its progress: they cost no write of their own,
and agree with the progress after a crash.

`Hops` measures how long a change takes, hop by hop, from its commit at the source to its
readers. It keeps the last batches; each sample is for the oldest commit of its batch. Times are of
the wall clock, because commit times come from another process.

`DeliveryReport` is what a run's delivery reports to: it counts, measures, and reports to observers.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from headrace.changelog.entries import Baseline, File
from headrace.changelog.position import Position
from headrace.observe.events import (
    BaselineRowsLoaded,
    ChangesApplied,
    ChangesReceived,
    DeadLettersWritten,
    Event,
    RowsExpired,
)
from headrace.observe.metrics import Distribution, Histogram


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

    expired: int = 0
    """Rows that were deleted from the target because they had expired."""

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
            self.expired + other.expired,
        )

    def __sub__(self, other: OperationCounts) -> OperationCounts:
        return OperationCounts(
            self.inserts - other.inserts,
            self.updates - other.updates,
            self.deletes - other.deletes,
            self.truncates - other.truncates,
            self.baseline_rows - other.baseline_rows,
            self.errors - other.errors,
            self.dead_letters - other.dead_letters,
            self.expired - other.expired,
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
        self._earlier: dict[str, OperationCounts] = {}
        """What was counted by earlier runs."""
        self._recalled = False

    def recall(self, stored: Mapping[str, TableCounts]) -> None:
        """Continue the stored counts of earlier runs; a second time it does nothing."""
        with self._lock:
            if self._recalled:
                return
            self._recalled = True
            before, self._tables = self._tables, dict(stored)
            self._earlier = {table: each.counts for table, each in stored.items()}
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

    def run_counts(self, table: str) -> OperationCounts:
        """Return what this run has counted of one table."""
        with self._lock:
            found, before = self._tables.get(table), self._earlier.get(table, NOTHING_COUNTED)
        return NOTHING_COUNTED if found is None else found.counts - before

    def run_total(self) -> OperationCounts:
        """Return what this run has counted of the whole pipeline."""
        before = sum(self._earlier.values(), NOTHING_COUNTED)
        return self.total().counts - before

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


# --- latency by hop -------------------------------------------------------------------------------

HOPS = ("captured", "flushed", "job", "applied", "total")
KEPT = 1_000

BATCH_BOUNDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
"""Seconds: the buckets of how long a batch takes, and of how old its changes are then."""

BASELINE_BOUNDS = (0.1, 0.5, 1, 5, 15, 60, 300, 900, 3_600, 14_400)
"""Seconds: the buckets of how long a baseline takes to load."""


@dataclass(frozen=True, slots=True)
class Hop:
    """Quantiles of one hop, in milliseconds."""

    p50_ms: float
    p95_ms: float
    p99_ms: float


@dataclass(frozen=True, slots=True)
class BatchTimes:
    """The moments of one batch, in seconds since 1970."""

    committed: float
    captured: float
    flushed: float
    computed: float
    applied: float
    changes: int = 0
    """Changes in the batch, before filters."""

    seconds: float = 0.0
    """From reading the log to the end of the target's write."""

    way: str = ""
    """How its tables were computed: `direct`, `job`, or `both`; empty if none had to be."""


class Hops:
    """The last samples of a pipeline. Safe to call from several threads."""

    def __init__(self) -> None:
        self._samples: deque[BatchTimes] = deque(maxlen=KEPT)
        self._lock = threading.Lock()
        self._totals = Histogram(BATCH_BOUNDS)

    def add(self, sample: BatchTimes) -> None:
        """Remember a batch."""
        self._totals.observe(sample.applied - sample.committed)
        with self._lock:
            self._samples.append(sample)

    def samples(self) -> tuple[BatchTimes, ...]:
        """Return the last batches, the newest last."""
        with self._lock:
            return tuple(self._samples)

    def totals(self) -> Distribution:
        """Return how old, in seconds, the oldest change of each batch was when it was applied."""
        return self._totals.value()

    def quantiles(self) -> Mapping[str, Hop]:
        """Return the quantiles of every hop; empty before the first sample."""
        with self._lock:
            samples = list(self._samples)
        if not samples:
            return {}
        spans = {
            "captured": [s.captured - s.committed for s in samples],
            "flushed": [s.flushed - s.captured for s in samples],
            "job": [s.computed - s.flushed for s in samples],
            "applied": [s.applied - s.computed for s in samples],
            "total": [s.applied - s.committed for s in samples],
        }
        return {name: _quantiles(sorted(values)) for name, values in spans.items()}


def _quantiles(ordered: list[float]) -> Hop:
    def at(part: float) -> float:
        return round(1_000 * ordered[min(len(ordered) - 1, int(part * len(ordered)))], 3)

    return Hop(at(0.50), at(0.95), at(0.99))


# --- what a delivery reports ----------------------------------------------------------------------

Received: TypeAlias = Sequence[ChangesReceived]
"""What a batch has, by table."""


class DeliveryReport:
    """Counts what one pipeline delivers, and reports it to observers. Only for the run's thread."""

    def __init__(
        self, pipeline: str, wall: Callable[[], float], emit: Callable[[Event], None]
    ) -> None:
        """`wall` returns seconds since 1970; `emit` passes an event to observers."""
        self.counters = Counters(wall)
        self.hops = Hops()
        self.batch_seconds = Histogram(BATCH_BOUNDS)
        self.baseline_seconds = Histogram(BASELINE_BOUNDS)
        self._pipeline = pipeline
        self._wall = wall
        self._emit = emit
        self._applied: list[ChangesApplied] = []
        """What the target has, and whose progress may not be stored yet."""

    def received(
        self,
        tables: Iterable[tuple[str, Sequence[File]]],
        first: Position,
        last: Position,
        *,
        catching_up: bool,
    ) -> Received:
        """Report that a batch was taken from the log; return what it has, by table."""
        now, found = self._wall(), []
        for table, files in tables:
            if files:
                of = OperationCounts.of_files(files)
                counts = (of.inserts, of.updates, of.deletes, of.truncates)
                event = ChangesReceived(
                    self._pipeline, table, *counts, first, last, catching_up, now
                )
                self._emit(event)
                found.append(event)
        return found

    def applied(self, received: Received, upto: Position) -> None:
        """Count what the target has taken; `stored` reports it."""
        now = self._wall()
        for each in received:
            counts = (each.inserts, each.updates, each.deletes, each.truncates)
            self.counters.add(each.table, OperationCounts(*counts))
            took = max(0.0, now - each.at)
            self._applied.append(
                ChangesApplied(
                    self._pipeline, each.table, *counts, upto, each.catching_up, took, now
                )
            )

    def stored(self) -> None:
        """Report what was applied, now that progress covers it."""
        applied, self._applied = self._applied, []
        for each in applied:
            self._emit(each)

    def caught_up(self, received: Received, upto: Position) -> None:
        """Count and report what a table has taken while it is loaded; no progress is stored."""
        waiting, self._applied = self._applied, []
        self.applied(received, upto)
        self.stored()
        self._applied = waiting

    def loaded(self, baseline: Baseline, rows: int) -> None:
        """Report how many rows of a baseline the target has taken so far."""
        number, now = baseline.baseline, self._wall()
        self._emit(BaselineRowsLoaded(self._pipeline, baseline.table, number, rows, now))

    def baseline(self, baseline: Baseline) -> None:
        """Count a baseline that the target has taken as a whole."""
        self.counters.add(baseline.table, OperationCounts(baseline_rows=baseline.rows))

    def dead_letters(self, tables: Iterable[str], new: int) -> None:
        """Count and report stored dead letters of tables, some of which may have been there."""
        given = Counter(tables)
        if len(given) > 1 and new < given.total():
            given = Counter({OF_NO_TABLE: new})  # it is not known which of them are new
        for table in given:
            if count := min(given[table], new):
                self.counters.add(table, OperationCounts(dead_letters=count))
                self._emit(DeadLettersWritten(self._pipeline, table, count, self._wall()))

    def expired(self, table: str, rows: int, position: Position) -> None:
        """Count and report rows that were deleted because they had expired."""
        self.counters.add(table, OperationCounts(expired=rows))
        self._emit(RowsExpired(self._pipeline, table, rows, position, self._wall()))

    def hop(
        self,
        committed: float,
        captured: float,
        flushed: float,
        computed: float,
        *,
        changes: int,
        seconds: float = 0.0,
        way: str = "",
    ) -> None:
        """Measure the hops of a batch that was applied just now."""
        times = (committed, captured, flushed, computed, self._wall())
        self.hops.add(BatchTimes(*times, changes, seconds, way))
