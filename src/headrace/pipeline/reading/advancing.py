"""
Where a batch of a stream ends, decided from the log's index alone: it is asked all the time.
"""

from __future__ import annotations

from headrace.changelog.log import LogBatch
from headrace.changelog.position import Position
from headrace.changelog.ranges import Span, after, before, flushes
from headrace.pipeline.reading.offsets import Offset
from headrace.pipeline.reading.refusing import (
    has_trouble,
    refuse_gap,
    refuse_unseen,
    trouble_within,
    unseen_after,
)
from headrace.pipeline.reading.starting import (
    Asked,
    baseline_of,
    check_offset,
    exact_from,
    newest_baseline,
)

_NO_LIMIT = 1 << 40


def next_offset(
    asked: Asked, start: Offset, most_rows: int | None, upto: Position | None = None
) -> Offset:
    """
    Return where the batch after `start` ends: `start` itself where there is nothing.

    It ends with a flush, so that no transaction is ever parted, and holds `most_rows` at most
    unless one flush alone has more. A change that somebody must decide on is the end of a
    batch before it, and an error in the one that would begin with it.
    """
    check_offset(asked, start)
    if start.in_baseline:
        return _next_of_baseline(asked, start, most_rows)
    unseen = unseen_after(asked, start.position)
    if unseen is None or (upto is not None and upto < unseen):
        return _next_of_changes(asked, start, most_rows, upto)
    found = _next_of_changes(asked, start, most_rows, before(unseen))
    if found == start:
        refuse_unseen(asked, Span(after(start.position), unseen))
    return found


def _next_of_changes(
    asked: Asked, start: Offset, most_rows: int | None, upto: Position | None
) -> Offset:
    log, at = asked.log, start.position
    while upto is None or at < upto:
        batch = log.next_batch(asked.table, at, most_rows or _NO_LIMIT, most_files=_NO_LIMIT)
        if batch is None:
            gap = log.gap_after(at)
            if gap is None or (upto is not None and Position.parse(gap.at) > upto):
                break
            refuse_gap(asked, gap)
            at = Position.parse(gap.at)
            continue
        last = batch.last if upto is None else min(batch.last, upto)
        if batch.files and _has(asked, at, last):
            return _beyond(asked, start, _ends_before_trouble(asked, at, batch, last))
        at = last
    return start


def idle_offset(asked: Asked, start: Offset, upto: Position | None = None) -> Offset:
    """
    Return where a query stands that has nothing to do: at the log's end, past other tables.

    Or at `upto`, where it is to end there.

    It moves seldom, as a batch without rows costs Spark a job (R34); but it must, since what
    it stands behind is let go of one day.
    """
    stops = asked.options.on_gap == "fail" and asked.log.gap_after(start.position) is not None
    end = asked.log.end if upto is None else min(asked.log.end, upto)
    if start.in_baseline or stops or end <= start.position:
        return start
    return _beyond(asked, start, end)


def _has(asked: Asked, at: Position, last: Position) -> bool:
    return asked.log.changed_between(asked.table, at, last)


def _beyond(asked: Asked, start: Offset, position: Position) -> Offset:
    """Return an offset at a position; with the baseline that is not exact there yet."""
    exact = exact_from(asked, start)
    kept = start.baseline if exact is not None and position < exact else None
    return Offset(position, kept, None, asked.log.lineage or "")


def _next_of_baseline(asked: Asked, start: Offset, most_rows: int | None) -> Offset:
    lineage = asked.log.lineage or ""
    if start.waits:
        found = newest_baseline(asked)
        if found is None:
            return start
        start = Offset(found.window[0], found.baseline, 0, lineage)
    else:
        assert start.baseline is not None
        found = baseline_of(asked, start.baseline)
    given = (start.given or 0) + (most_rows or found.rows)
    if given < found.rows:
        return Offset(start.position, found.baseline, given, lineage)
    # It names the baseline still: whoever reads this batch again reads the same rows.
    return Offset(start.position, found.baseline, None, lineage)


def _ends_before_trouble(asked: Asked, at: Position, batch: LogBatch, last: Position) -> Position:
    """Return where a batch ends that has nothing in it that somebody must decide on."""
    if not any(has_trouble(asked, file) for file in batch.files):
        return last
    end, part = at, Span(after(at), last)
    for found in flushes(asked.log, [asked.table], part):
        assert isinstance(found, LogBatch)
        for file in found.files:
            error = trouble_within(asked, file, found, part)
            if error is not None and end == at:
                raise error
            if error is not None:
                return end
        end = min(found.last, last)
    return end
