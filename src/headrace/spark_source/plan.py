"""
The changes between two positions of the log, as slices of its segments.

A query for a part of the log gets all of it or an error (R27): before the earliest position that is
kept, at a gap, at a truncate and at a change of columns. Each error names the option to continue.

Some segments need not be opened at all. The index has the kinds of changes in each segment, and the
range of their positions and times. If `where` cannot be true for any such change, the segment is
not read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from headrace.changelog.entries import Baseline, File, Gap
from headrace.changelog.history import BaselineWindow
from headrace.changelog.ranges import Span, after, flushes
from headrace.changelog.reader import LogBatch
from headrace.spark_source.offsets import (
    Offset,
    ReadRequest,
    baseline_of,
    check_end,
    check_offset,
    readable,
    refuse_gap,
    refuse_unseen,
    trouble_within,
    window_of,
)
from headrace.spark_source.slices import Slice
from headrace.spark_source.where import And, Compare, In, Not, Or, Predicate

# --- segments that need not be opened -------------------------------------------------------------

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class SegmentStatistics:
    """What the index says about a segment's rows."""

    ranges: Mapping[str, tuple[Any, Any]]
    """The lowest and the highest value of a column, inclusive."""

    types: frozenset[str]
    """The change types that occur in it."""

    @classmethod
    def of(cls, flush: LogBatch, file: File, *, both: bool) -> SegmentStatistics:
        """Return the statistics of one segment of a flush."""
        kinds = {
            "insert": file.inserts or file.key_changes,
            "update_postimage": file.updates,
            "update_preimage": file.updates if both else 0,
            "delete": file.deletes or file.key_changes,
            "truncate": file.truncates,
        }
        times = (_EPOCH + timedelta(microseconds=each) for each in (flush.begun, flush.time))
        return cls(
            {
                "_commit_version": (flush.first.commit, flush.last.commit),
                "_position": (str(flush.first), str(flush.last)),
                "_commit_timestamp": (next(times), next(times)),
            },
            frozenset(kind for kind, count in kinds.items() if count),
        )


def may_pass(predicate: Predicate, known: SegmentStatistics) -> bool:
    """Whether a row of such a segment may pass; true if the statistics do not exclude it."""
    match predicate:
        case And(parts):
            return all(may_pass(part, known) for part in parts)
        case Or(parts):
            return any(may_pass(part, known) for part in parts)
        case In(name, values):
            return any(_may(Compare(name, "=", value), known) for value in values)
        case Compare():
            return _may(predicate, known)
        case Not():
            return _may_not(predicate.of, known)
        case _:
            return True


def _may(compare: Compare, known: SegmentStatistics) -> bool:
    name, op, value = compare.column, compare.op, compare.value
    if name == "_change_type":
        if op in ("=", "<=>"):
            return value in known.types
        return op != "<>" or bool(known.types - {value})
    if name not in known.ranges:
        return True
    low, high = known.ranges[name]
    match op:
        case "=" | "<=>":
            return bool(low <= value <= high)
        case "<":
            return bool(low < value)
        case "<=":
            return bool(low <= value)
        case ">":
            return bool(high > value)
        case ">=":
            return bool(high >= value)
    return True


def _may_not(predicate: Predicate, known: SegmentStatistics) -> bool:
    if isinstance(predicate, In) and predicate.column == "_change_type":
        return bool(known.types - set(predicate.values))
    return True


# --- slices, and tasks of them --------------------------------------------------------------------

PARTITION_BYTES = 32 << 20
"""About how much one task reads: enough to be worth a task, and small in memory."""

LEAST_BYTES = 256 << 10
"""The size that a small segment counts as: opening it costs as much as reading this much."""


def between(asked: ReadRequest, start: Offset, end: Offset) -> list[Slice]:
    """Return the slices with everything after `start`, up to `end`, in the log's order."""
    check_offset(asked, start)
    check_end(asked, end)
    found: list[Slice] = []
    if start.in_baseline:
        if end.waits:
            return []
        number = start.baseline or end.baseline or 0
        baseline = baseline_of(asked, number)
        stop = baseline.rows if end.given is None else end.given
        found += _of_baseline(asked, baseline, start.given or 0, stop)
        start = Offset(baseline.window[0], number, None, start.lineage)
        if end.given is not None:
            return found
    part = Span(after(start.position), end.position)
    return [*found, *_changes(asked, part, window_of(asked, start))]


def _of_baseline(asked: ReadRequest, baseline: Baseline, start: int, stop: int) -> Iterator[Slice]:
    begins = 0
    first, _ = baseline.window
    for file in baseline.files:
        ends = begins + file.rows
        if begins < stop and start < ends:
            rows = (max(start, begins) - begins, min(stop, ends) - begins)
            yield _slice(asked, file, first.epoch, Span(first, first), baseline=rows)
        begins = ends


def _changes(asked: ReadRequest, part: Span, window: BaselineWindow | None) -> Iterator[Slice]:
    log = asked.log
    refuse_unseen(asked, part)
    for found in flushes(log, [asked.table], part):
        if isinstance(found, Gap):
            refuse_gap(asked, found)
            continue
        for file in found.files:
            if (error := trouble_within(asked, file, found, part)) is not None:
                raise error
            if not _may_pass(asked, found, file) or not readable(asked, file):
                continue
            yield _slice(
                asked,
                file,
                found.epoch,
                Span(max(part.first, found.first), min(part.last, found.last)),
                whole=part.holds(found.first) and part.holds(found.last),
                window=window if window is not None and window.overlaps(found.first) else None,
            )


def _slice(
    asked: ReadRequest,
    file: File,
    epoch: int,
    part: Span,
    *,
    whole: bool = False,
    baseline: tuple[int, int] | None = None,
    window: BaselineWindow | None = None,
) -> Slice:
    schema = asked.log.schema(asked.table, file.schema)
    return Slice(file, schema, asked.fits(file), epoch, part, whole, baseline, window)


def _may_pass(asked: ReadRequest, flush: LogBatch, file: File) -> bool:
    where = asked.frame.where
    if where is None or (file.truncates and asked.options.on_truncate == "row"):
        return True
    return may_pass(where, SegmentStatistics.of(flush, file, both=asked.options.images == "both"))


def grouped(slices: Sequence[Slice], most_bytes: int = PARTITION_BYTES) -> list[list[Slice]]:
    """Return slices as tasks: neighbours together, up to about `most_bytes`."""
    groups: list[list[Slice]] = []
    size = 0
    for each in slices:
        weight = max(each.file.bytes, LEAST_BYTES)
        if not groups or size + weight > most_bytes:
            groups.append([])
            size = 0
        groups[-1].append(each)
        size += weight
    return groups
