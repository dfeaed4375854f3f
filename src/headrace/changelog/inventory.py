"""
What a log holds, by its index: of each table its segments and its baseline, from when to when.

Of each table its first and its last segment are looked at and no other, so that this is quick:
it tells what should be there.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from headrace.changelog.entry import Baseline, File
from headrace.changelog.log import LogBatch, LogReader
from headrace.changelog.position import Position
from headrace.changelog.ranges import before, beginning
from headrace.errors import CorruptSegment, UnknownFormat

_NO_LIMIT = 1 << 40
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class BaselineInventory:
    """The baseline of a table that a pipeline would begin with."""

    number: int
    rows: int
    segments: int
    bytes: int
    first: Position
    """F: changes behind it are applied on top."""

    last: Position
    """H: from there on the result is exact."""


@dataclass(frozen=True, slots=True)
class TableInventory:
    """One table's changes in the log."""

    table: str
    segments: int
    changes: int
    bytes: int
    inserts: int
    updates: int
    deletes: int
    truncates: int
    first: Position | None
    last: Position | None
    """Of its first change and its last; None where there is none, or its segment is damaged."""

    since: datetime | None
    until: datetime | None
    """The earliest commit time in the first flush with changes of it, and the latest in all."""

    baseline: BaselineInventory | None


@dataclass(frozen=True, slots=True)
class GapPlace:
    """A place where history began anew: what happened before it at the source is not known."""

    at: Position
    reason: str


@dataclass(frozen=True, slots=True)
class LogInventory:
    """One source's log."""

    source: str
    origin: str
    lineage: str
    epoch: int
    entries: int
    """Entries of the index."""

    first: Position | None
    """The first position it can have a change at; None: it has not begun."""

    end: Position
    tables: tuple[TableInventory, ...]
    gaps: tuple[GapPlace, ...]
    """Without the one at its beginning."""


def inventory(log: LogReader, source: str) -> LogInventory:
    """Return what the index says of a log."""
    first = beginning(log)
    return LogInventory(
        source=source,
        origin=log.origin,
        lineage=log.lineage or "",
        epoch=log.epoch,
        entries=log.last_entry,
        first=first,
        end=log.end,
        tables=tuple(_table(log, table, first) for table in sorted(log.tables())),
        gaps=_gaps(log, first),
    )


def _gaps(log: LogReader, first: Position | None) -> tuple[GapPlace, ...]:
    found: list[GapPlace] = []
    at = None if first is None else before(first)
    while at is not None and (gap := log.gap_after(at)) is not None:
        at = Position.parse(gap.at)
        found.append(GapPlace(at, gap.reason))
    return tuple(found)


def _table(log: LogReader, table: str, first: Position | None) -> TableInventory:
    runs: list[LogBatch] = []
    at = None if first is None else before(first)
    while at is not None:
        # All of an epoch at once: a hundred thousand flushes one by one would take seconds.
        batch = log.next_batch(table, at, _NO_LIMIT, most_files=_NO_LIMIT)
        if batch is None:
            gap = log.gap_after(at)
            at = None if gap is None else Position.parse(gap.at)
            continue
        if batch.files:
            runs.append(batch)
        at = batch.last
    files = [file for run in runs for file in run.files]
    baseline = log.usable_baseline(table)
    return TableInventory(
        table=table,
        segments=len(files),
        changes=sum(file.rows for file in files),
        bytes=sum(file.bytes for file in files),
        inserts=sum(file.inserts for file in files),
        updates=sum(file.updates for file in files),
        deletes=sum(file.deletes for file in files),
        truncates=sum(file.truncates for file in files),
        first=_place(log, runs[0].epoch, files[0], 0) if runs else None,
        last=_place(log, runs[-1].epoch, files[-1], -1) if runs else None,
        since=_instant(min((run.begun for run in runs), default=None)),
        until=_instant(max((run.time for run in runs), default=None)),
        baseline=None if baseline is None else _baseline(baseline),
    )


def _place(log: LogReader, epoch: int, file: File, row: int) -> Position | None:
    try:
        rows = log.rows(file)
    except (CorruptSegment, UnknownFormat):
        return None
    return Position(epoch, rows["_commit"][row].as_py(), rows["_ordinal"][row].as_py())


def _baseline(baseline: Baseline) -> BaselineInventory:
    first, last = baseline.window
    return BaselineInventory(
        number=baseline.baseline,
        rows=baseline.rows,
        segments=len(baseline.files),
        bytes=sum(file.bytes for file in baseline.files),
        first=first,
        last=last,
    )


def _instant(micros: int | None) -> datetime | None:
    return None if micros is None else _EPOCH + timedelta(microseconds=micros)
