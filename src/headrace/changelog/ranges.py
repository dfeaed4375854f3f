"""
Reading a part of the log, from one position or time to another, and listing what a log holds.

A caller that asks for a part gets all of it or an error: a part that begins before the log does
is `PositionExpired`; a damaged segment is reported with its position, after everything before it
was returned; and a gap is returned as a gap, between the changes before and after it.

A time is converted to a position. Commit times are not an order (R37), so a part from a time
begins with the first change that was committed then or later, and a part up to a time ends with
the last change that was committed then or before. If a clock ran backwards, the part has more
changes, and never fewer.

The inventory describes the content of a log by its index: the segments, the baseline and the times
of each table. It reads only the first and the last segment of each table, so that it is fast: it
reports what should be there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from headrace.changelog.entries import Baseline, File, Gap
from headrace.changelog.position import MAX_COMMIT, MAX_ORDINAL, ORIGIN, Position
from headrace.changelog.reader import LogBatch, LogReader
from headrace.changelog.schema import TableSchema
from headrace.errors import BadPosition, CorruptSegment, PositionExpired, UnknownFormat

Moment: TypeAlias = Position | datetime
"""The beginning or end of a part; a time must have an offset from UTC."""

_BEFORE_ALL = Position(0, 0, 1)
"""Before every log's beginning, but not `ORIGIN`, which means the beginning itself."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICRO = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class Span:
    """A part of the log, both ends included; empty if `first` is after `last`."""

    first: Position
    last: Position

    def holds(self, position: Position) -> bool:
        """Whether it contains a position."""
        return self.first <= position <= self.last

    @property
    def after(self) -> Position:
        """The position before the first."""
        return before(self.first)


@dataclass(frozen=True, slots=True)
class ChangeSlice:
    """Changes of one table that were written with one schema, in position order."""

    epoch: int
    schema: TableSchema
    rows: pa.Table
    """With the columns of `schema.segment`; never empty."""

    file: File

    def position(self, row: int) -> Position:
        """Return the position of one of the rows."""
        commit, ordinal = self.rows.column("_commit")[row], self.rows.column("_ordinal")[row]
        return Position(self.epoch, commit.as_py(), ordinal.as_py())


def before(position: Position) -> Position:
    """Return the previous position; the very first one returns itself."""
    if position.ordinal:
        return Position(position.epoch, position.commit, position.ordinal - 1)
    if position.commit:
        return Position(position.epoch, position.commit - 1, MAX_ORDINAL)
    return Position(position.epoch - 1, MAX_COMMIT, MAX_ORDINAL) if position.epoch else position


def after(position: Position) -> Position:
    """Return the next position."""
    if position.ordinal < MAX_ORDINAL:
        return Position(position.epoch, position.commit, position.ordinal + 1)
    if position.commit < MAX_COMMIT:
        return Position(position.epoch, position.commit + 1)
    return Position(position.epoch + 1, 0)


def beginning(log: LogReader) -> Position | None:
    """Return the first position at which the log can have a change; None: it has not begun."""
    if (floor := log.floor) > ORIGIN:
        return after(floor)
    opening = log.gap_after(_BEFORE_ALL)
    return None if opening is None else after(Position.parse(opening.at))


def span(log: LogReader, tables: Sequence[str], start: Moment | None, end: Moment | None) -> Span:
    """
    Return the part between two moments, for these tables; None: from the beginning or to the end.

    Raises `UnknownTable`, and `PositionExpired` if the log does not reach back to `start`.
    """
    for table in tables:
        log.schema(table)
    opening = beginning(log)
    if opening is None:
        return Span(after(ORIGIN), ORIGIN)
    whole = Span(opening, log.end)
    match start:
        case None:
            first = whole.first
        case Position():
            if start < whole.first:
                raise PositionExpired(
                    "The log begins after this position",
                    asked=str(start),
                    begins=str(whole.first),
                )
            first = start
        case datetime():
            _refuse_pruned(log, _micros(start), start)
            first = _first_since(log, tables, whole, _micros(start))
    match end:
        case None:
            last = whole.last
        case Position():
            last = end
        case datetime():
            last = _last_until(log, tables, whole, _micros(end))
    return Span(first, last)


def changes(log: LogReader, table: str, part: Span) -> Iterator[ChangeSlice | Gap]:
    """
    Yield the changes of a table in a part of the log, in order, and the gaps between them.

    Raises `CorruptSegment` or `UnknownFormat` with the `position` from which on nothing can
    be read, after all before it was yielded.
    """
    for found in flushes(log, [table], part):
        if isinstance(found, Gap):
            yield found
            continue
        for file in found.files:
            rows = _within(_rows(log, file, max(found.first, part.first)), found.epoch, part)
            if rows.num_rows:
                yield ChangeSlice(found.epoch, log.schema(table, file.schema), rows, file)


def flushes(log: LogReader, tables: Sequence[str], part: Span) -> Iterator[LogBatch | Gap]:
    """
    Yield the flushes that may hold changes of these tables in a part, and the gaps in it.

    Only the index is read; the first and the last flush may extend beyond the part.
    """
    at = part.after
    while at < part.last:
        batch = log.next_batch(tables, at, most_rows=1)
        if batch is None:
            gap = log.gap_after(at)
            if gap is None or Position.parse(gap.at) > part.last:
                return
            yield gap
            at = Position.parse(gap.at)
            continue
        if batch.first > part.last:
            return
        if batch.files:
            yield batch
        at = batch.last


def missing(log: LogReader, table: str, part: Span) -> bool:
    """Whether changes of a table are missing in a part of the log without a gap."""
    return log.lacks(table, part.after) and not log.lacks(table, part.last)


def inside(rows: pa.Table, epoch: int, part: Span) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Return which of these changes are in a part."""
    commits = rows.column("_commit").to_numpy()
    ordinals = rows.column("_ordinal").to_numpy()
    kept = np.ones(rows.num_rows, np.bool_)
    for end, sign in ((part.first, 1), (part.last, -1)):
        if end.epoch != epoch:
            kept &= sign * (epoch - end.epoch) > 0
            continue
        beyond = sign * (commits - end.commit)
        kept &= (beyond > 0) | ((beyond == 0) & (sign * (ordinals - end.ordinal) >= 0))
    return kept


# --- times and rows -------------------------------------------------------------------------------


def _refuse_pruned(log: LogReader, since: int, start: datetime) -> None:
    """Raise `PositionExpired` if changes committed since then may have been pruned (R27)."""
    floor = log.floor
    if floor == ORIGIN:
        return
    oldest = log.next_batch(log.tables(), floor, most_rows=1)
    if oldest is None or not oldest.files or oldest.begun > since:
        raise PositionExpired(
            "The log does not reach back to this time",
            asked=start.isoformat(),
            begins=str(after(floor)),
        )


def _rows(log: LogReader, file: File, position: Position) -> pa.Table:
    try:
        return log.rows(file)
    except (CorruptSegment, UnknownFormat) as error:
        error.facts = {**error.facts, "table": file.table, "position": str(position)}
        raise


def _within(rows: pa.Table, epoch: int, part: Span) -> pa.Table:
    kept = inside(rows, epoch, part)
    return rows if kept.all() else rows.filter(pa.array(kept))


def _micros(moment: datetime) -> int:
    if moment.tzinfo is None:
        raise BadPosition(
            "A time must have an offset from UTC",
            remedy="Pass a datetime with a time zone, such as datetime.now(UTC).",
        )
    return (moment - _EPOCH) // _MICRO


def _first_since(log: LogReader, tables: Sequence[str], whole: Span, since: int) -> Position:
    for batch in flushes(log, tables, whole):
        if isinstance(batch, Gap) or batch.time < since:
            continue
        try:
            found = [
                position for file in batch.files if (position := _first(log, batch, file, since))
            ]
        except (CorruptSegment, UnknownFormat):
            return batch.first  # reading from there reports the damage
        if found:
            return min(found)
    return after(whole.last)


def _last_until(log: LogReader, tables: Sequence[str], whole: Span, until: int) -> Position:
    batches = [each for each in flushes(log, tables, whole) if not isinstance(each, Gap)]
    for batch in reversed(batches):
        if batch.begun > until:
            continue
        try:
            found = [
                position for file in batch.files if (position := _last(log, batch, file, until))
            ]
        except (CorruptSegment, UnknownFormat):
            return batch.last  # reading up to there reports the damage
        if found:
            return max(found)
    return before(whole.first)


def _first(log: LogReader, batch: LogBatch, file: File, since: int) -> Position | None:
    rows = log.rows(file)
    found = np.flatnonzero(_times(rows) >= since)
    return _position(rows, batch.epoch, int(found[0])) if len(found) else None


def _last(log: LogReader, batch: LogBatch, file: File, until: int) -> Position | None:
    rows = log.rows(file)
    found = np.flatnonzero(_times(rows) <= until)
    return _position(rows, batch.epoch, int(found[-1])) if len(found) else None


def _times(rows: pa.Table) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    times = rows.column("_time").cast(pa.int64()).to_numpy()
    return np.asarray(times, np.int64)


def _position(rows: pa.Table, epoch: int, at: int) -> Position:
    return Position(epoch, rows["_commit"][at].as_py(), rows["_ordinal"][at].as_py())


# --- what a log holds -----------------------------------------------------------------------------

_NO_LIMIT = 1 << 40


@dataclass(frozen=True, slots=True)
class BaselineInventory:
    """The baseline of a table with which a pipeline would begin."""

    number: int
    rows: int
    segments: int
    bytes: int
    first: Position
    """F: changes after it are applied on top."""

    last: Position
    """H: from here on the result is exact."""


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
    """Of its first and last change; None if there is none, or its segment is damaged."""

    since: datetime | None
    until: datetime | None
    """The earliest commit time in its first flush, and the latest in all its flushes."""

    baseline: BaselineInventory | None


@dataclass(frozen=True, slots=True)
class LogGap:
    """A position at which history restarted: what happened at the source before is unknown."""

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
    """The first position at which it can have a change; None: it has not begun."""

    end: Position
    tables: tuple[TableInventory, ...]
    gaps: tuple[LogGap, ...]
    """All gaps except the one at its beginning."""


def inventory(log: LogReader, source: str) -> LogInventory:
    """Return the content of a log by its index."""
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


def _gaps(log: LogReader, first: Position | None) -> tuple[LogGap, ...]:
    found: list[LogGap] = []
    at = None if first is None else before(first)
    while at is not None and (gap := log.gap_after(at)) is not None:
        at = Position.parse(gap.at)
        found.append(LogGap(at, gap.reason))
    return tuple(found)


def _table(log: LogReader, table: str, first: Position | None) -> TableInventory:
    runs: list[LogBatch] = []
    at = None if first is None else before(first)
    while at is not None:
        # A whole epoch at once: a hundred thousand flushes one by one would take seconds.
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
        first=_position_in_file(log, runs[0].epoch, files[0], 0) if runs else None,
        last=_position_in_file(log, runs[-1].epoch, files[-1], -1) if runs else None,
        since=_instant(min((run.begun for run in runs), default=None)),
        until=_instant(max((run.time for run in runs), default=None)),
        baseline=None if baseline is None else _baseline(baseline),
    )


def _position_in_file(log: LogReader, epoch: int, file: File, row: int) -> Position | None:
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
