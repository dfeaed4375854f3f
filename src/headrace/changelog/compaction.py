"""
Many small flushes become one that holds the same changes, in fewer and larger files (R27).

Nothing is lost and nothing moves: every change keeps its place and its bytes' meaning. The
new files are synced, then one entry puts them in the place of the old ones; those go a lease
later. Killed at any step, the log is as before or as after.

Only steps that nobody stands within are merged: a batch is a run of whole flushes (R10), and
what was taken once would come again. Sizes grow by doubling at least, so that a change is
written anew a few times in its life and not a few hundred times.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import groupby

import pyarrow as pa

from headrace.changelog.entry import Compacted, File, Flush, Heartbeat
from headrace.changelog.history import Step
from headrace.changelog.position import Position
from headrace.changelog.segment import read_segments
from headrace.changelog.writer import LogWriter
from headrace.storage.points import SEGMENT_WRITTEN, reach

MOST_ROWS = 100_000
MOST_BYTES = 16 << 20
"""Of the flush that comes of it: what is held in memory, and what a reader takes at once."""

MOST_FILES = 128
"""Read in one piece of work: some fifty milliseconds."""

LEAST_FLUSHES = 16
"""Fewer are not worth an entry."""

_NO_FENCE = "~"
"""Behind every position."""

_LOOKED_AT = 4_096
"""Steps that one look goes through."""


class Compaction:
    """Looks for flushes to merge, from the oldest on, and merges them. Of one writer."""

    def __init__(self, log: LogWriter) -> None:
        self._log = log
        self._from = ""
        """Where the next look begins: nothing before it is worth merging now."""

    def advance(self, upto: Position, fences: Sequence[str]) -> Compacted | None:
        """
        Merge one run of flushes that end at or before `upto`, if one is worth it.

        No run reaches over a place in `fences`, which are in order. A segment that cannot be
        read raises `CorruptSegment`, and is left alone from then on.
        """
        steps = self._run(str(upto), fences)
        return None if steps is None else self._merge(steps)

    def begin_anew(self) -> None:
        """Look from the oldest step on again."""
        self._from = ""

    def _run(self, upto: str, fences: Sequence[str]) -> list[Step] | None:
        history = self._log.history
        at = bisect_right(history.lasts, self._from)
        stop = min(bisect_right(history.lasts, upto), at + _LOOKED_AT)
        while at < stop:
            run, ended = self._collect(at, stop, fences)
            sizes = [_bytes(step) for step in run] or [0]
            flushes = sum(isinstance(step, Flush) for step in run)
            # Two of a size make one twice as large: what was merged waits for its like.
            if flushes >= LEAST_FLUSHES and 2 * max(sizes) <= sum(sizes):
                return run
            at += sizes.index(max(sizes)) + 1
            if ended < stop:
                self._from = history.lasts[at - 1]  # what comes later makes it no better
        return None

    def _collect(self, at: int, stop: int, fences: Sequence[str]) -> tuple[list[Step], int]:
        """Return the steps from one on that may become one flush, and where that ended."""
        history = self._log.history
        run: list[Step] = []
        rows = size = files = 0
        schemas: dict[str, int] = {}
        # Somebody may begin there: a flush may end at or before it, or begin behind it.
        found = bisect_left(fences, history.lasts[at])
        fence = fences[found] if found < len(fences) else _NO_FENCE
        while at < stop:
            step = history.steps[at]
            if not isinstance(step, Flush | Heartbeat) or (run and step.epoch != run[0].epoch):
                break
            if run and history.lasts[at] > fence:
                break
            if isinstance(step, Flush):
                rows += sum(file.rows for file in step.files)
                size += _bytes(step)
                files += len(step.files)
                if run and (rows > MOST_ROWS or size > MOST_BYTES or files > MOST_FILES):
                    break
                # Who takes other columns in their turn takes them between two flushes.
                if run and any(schemas.get(f.table, f.schema) != f.schema for f in step.files):
                    break
                schemas.update((file.table, file.schema) for file in step.files)
            run.append(step)
            at += 1
        while run and isinstance(run[-1], Heartbeat):
            run.pop()
        return run, at

    def _merge(self, steps: list[Step]) -> Compacted:
        log = self._log
        flushes = [step for step in steps if isinstance(step, Flush)]
        by_table: dict[str, list[File]] = {}
        for flush in flushes:
            for file in flush.files:
                by_table.setdefault(file.table, []).append(file)
        # Should one of them not be readable, the next look begins behind it.
        self._from = flushes[-1].last
        made: list[File] = []
        try:
            for table, files in by_table.items():
                for schema, run in groupby(files, key=lambda file: file.schema):
                    made.append(self._one(table, schema, list(run)))
        except BaseException:
            log.drop(made)
            raise
        log.segments.settle("")
        reach(SEGMENT_WRITTEN)
        entry = Compacted(
            **log.head(flushes[-1].epoch),
            since=steps[0].entry,
            upto=steps[-1].entry,
            first=flushes[0].first,
            last=flushes[-1].last,
            source=flushes[-1].source,
            begun=min(flush.begun for flush in flushes),
            time=max(flush.time for flush in flushes),
            high_time=flushes[-1].high_time,
            files=tuple(made),
            at=log.stamp,
        )
        log.enter(entry)
        return entry

    def _one(self, table: str, schema_id: int, files: list[File]) -> File:
        log = self._log
        known = log.history.tables[table]
        schema = known.schemas[schema_id]
        rows = pa.concat_tables(read_segments(log.segments, files, schema))
        stem = f"{log.last_entry + 1:012x}-{known.table_id}-{schema_id}-c"
        return log.store(stem, schema, schema_id, rows)


def _bytes(step: Step) -> int:
    return sum(file.bytes for file in step.files) if isinstance(step, Flush) else 0
