"""
The baselines that a recorder was asked for: waiting, being copied, finished.

The recorder copies one at a time, a chunk between two reads of changes (R43); those that the
engine copies on Spark run in parallel. Either way a baseline counts once the log has passed its
end.

`CopyRate` limits how fast a source's tables are copied, if a limit is set. It returns when the
next rows may be read, and the caller decides what to do until then: a Spark task sleeps, the
recorder continues with changes.

Baselines that Spark's tasks copy are planned by the recorder (`SharedBaseline`). It holds the
snapshot under which they are read, and has the last word: the rows exist once it has written the
entry that names their segments. A failure of the recorder or of Spark before that leaves only
files that the next writer removes (H4, R20).

The parts of a planned baseline are copied from the source into segments in any process, one by
one. A part's segments are written under names that no other attempt uses, and synced. They count
once the recorder names them in the index; those of an attempt that failed, or of a second attempt,
are removed (R20, S4).
"""

from __future__ import annotations

import contextlib
import time
import uuid
from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import cast

import pyarrow as pa

from headrace.capture.messages import (
    BaselineProgress,
    CopyDone,
    CopyFailed,
    CopyPlanned,
    Failed,
    Flushed,
    Report,
    Warned,
)
from headrace.capture.registry import build
from headrace.capture.source import (
    KeepsSnapshot,
    NotYet,
    PlannedBaseline,
    Recordable,
    Shares,
    SourceSpec,
)
from headrace.changelog.entries import File
from headrace.changelog.reader import BaselineWriter, LogWriter
from headrace.changelog.schema import TableSchema
from headrace.changelog.segment import describe, segment_bytes
from headrace.changelog.writer import PART_BYTES, as_baseline
from headrace.errors import PositionExpired, SourceRefused, StorageError
from headrace.storage import killpoints
from headrace.storage.s3 import opened

# --- a baseline that the recorder copies ----------------------------------------------------------


class BaselineCopy:
    """A baseline that the recorder copies into the log."""

    def __init__(self, table: str, source: Recordable, log: LogWriter) -> None:
        self.table = table
        self.rows = 0
        self.copy = source.baseline(table)
        self._batches: Iterator[pa.RecordBatch] = iter(self.copy)
        self._log = log
        self._made: BaselineWriter | None = None

    @property
    def _writer(self) -> BaselineWriter:
        # Not before there are rows: while the copy waits, changes with other columns are read, and
        # the newest schema of the log has to be that of the rows.
        self._made = self._made or self._log.baseline(self.copy.schema)
        return self._made

    def chunk(self) -> int | None:
        """Copy the next chunk and return the number of rows so far; None at the end."""
        for batch in self._batches:
            if batch.num_rows:
                self.rows = self._writer.write(batch, self.copy.exact)
            return self.rows
        return None

    def finish(self) -> int:
        """Make the baseline visible, and return its entry."""
        copy = self.copy
        return self._writer.finish(copy.first, copy.last, copy.snapshot).entry

    def discard(self) -> None:
        """Discard what was copied."""
        self.copy.close()
        # Files that no entry names are removed at the next start anyway.
        with contextlib.suppress(StorageError):
            if self._made is not None:
                self._made.discard()


# --- the rate of copies ---------------------------------------------------------------------------

SLOWEST = 1
"""Rows a second: below that a copy would never end."""

PIECE_SECONDS = 0.25
"""Rows for about this long are read at once: small bursts, and few transactions."""

_CREDIT_SECONDS = 0.1
"""Time that reading itself took, and that is subtracted from the pause."""


def checked_rate(rows_per_s: float | None) -> float | None:
    """Return the limit unchanged; one below `SLOWEST` raises `SourceRefused`."""
    if rows_per_s is not None and not rows_per_s >= SLOWEST:
        raise SourceRefused(
            f"copy_rows_per_s must be at least {SLOWEST}",
            copy_rows_per_s=rows_per_s,
            remedy="Set a higher rate, or remove copy_rows_per_s to copy without a limit.",
        )
    return rows_per_s


class CopyRate:
    """Computes when the next rows may be read, with all times of one clock; None: no limit."""

    def __init__(self, rows_per_s: float | None, now: float = 0.0) -> None:
        self.rows_per_s = rows_per_s
        self.not_before = now
        """When the next rows may be read."""

    def took(self, rows: int, now: float) -> None:
        """Count `rows` that were read until now."""
        if self.rows_per_s is not None and rows:
            self.not_before = max(self.not_before, now - _CREDIT_SECONDS) + rows / self.rows_per_s

    def rest(self, now: float) -> float:
        """Return for how many seconds nothing may be read."""
        return max(0.0, self.not_before - now)


def piece_rows(rows_per_s: float | None, most: int) -> int:
    """Return how many rows to read at once: `most` if there is no limit."""
    return most if rows_per_s is None else max(1, min(most, int(rows_per_s * PIECE_SECONDS)))


# --- baselines that Spark copies ------------------------------------------------------------------


class SharedBaseline:
    """One baseline that Spark copies."""

    def __init__(self, table: str, planned: PlannedBaseline, log: LogWriter) -> None:
        self.table = table
        self.planned = planned
        self.writer: BaselineWriter = log.baseline(planned.schema)
        self.files: Sequence[File] | None = None
        """The segments with its rows, once it is copied."""

    @property
    def stem(self) -> str:
        """
        The prefix of its segments' names, by which results of other copies are recognised.

        Not the baseline's number, which is assigned again if a recorder dies before it is used.
        """
        return self.writer.stem

    def report(self) -> CopyPlanned:
        """Return the plan as a report to the engine."""
        return CopyPlanned(
            table=self.table,
            stem=self.stem,
            schema=self.writer.schema_id,
            parts=tuple(self.planned.parts),
            expected=self.planned.expected,
            time=self.writer.time,
        )

    def finish(self) -> int:
        """Make the copied rows the baseline, and return its entry."""
        self.writer.adopt(self.files or ())
        planned = self.planned
        entry = self.writer.finish(planned.first, planned.last, planned.snapshot).entry
        planned.close()
        return entry


class SharedBaselines:
    """The baselines that Spark copies now, by table."""

    def __init__(self) -> None:
        self._copies: dict[str, SharedBaseline] = {}

    @property
    def copies(self) -> Mapping[str, SharedBaseline]:
        """The copies in progress."""
        return self._copies

    def begin(self, shared: SharedBaseline) -> None:
        """Add a copy; an earlier one of the same table is discarded."""
        self.drop(shared.table)
        self._copies[shared.table] = shared

    def take(self, table: str, stem: str) -> SharedBaseline | None:
        """Remove and return the copy with this stem; None if it is no longer in progress."""
        shared = self._copies.get(table)
        if shared is None or shared.stem != stem:
            return None
        return self._copies.pop(table)

    def copied(self, table: str, stem: str, files: Sequence[File]) -> None:
        """Set the files of a copy, if it is still in progress."""
        shared = self._copies.get(table)
        if shared is not None and shared.stem == stem:
            shared.files = files

    @property
    def busy(self) -> bool:
        """Whether Spark is copying rows."""
        return any(shared.files is None for shared in self._copies.values())

    def done(self) -> list[SharedBaseline]:
        """Return the copies whose rows are all copied."""
        return [shared for shared in self._copies.values() if shared.files is not None]

    def finish(self, shared: SharedBaseline) -> int:
        """Make a completed copy the baseline, and return its entry."""
        entry = shared.finish()
        del self._copies[shared.table]
        return entry

    def lost(self) -> list[str]:
        """Discard incomplete copies whose snapshot was lost, and return their tables."""
        gone = [
            table
            for table, shared in self._copies.items()
            if shared.files is None and not shared.planned.alive
        ]
        for table in gone:
            self.drop(table)
        return gone

    def drop(self, table: str) -> None:
        """Discard a copy; its files are removed at the next start."""
        if (shared := self._copies.pop(table, None)) is not None:
            shared.planned.close()

    def clear(self) -> list[str]:
        """Discard all copies, and return their tables."""
        tables = list(self._copies)
        for table in tables:
            self.drop(table)
        return tables


# --- requested baselines --------------------------------------------------------------------------

TRY_AGAIN_SECONDS = 0.1
"""Pause after a baseline could not begin: what it waits for may take an instant, or hours."""


class BaselineRequests:
    """Used only on the recorder's thread. `report` is called with reports for the engine."""

    def __init__(
        self, source: Recordable, report: Callable[[Report], None], clock: Callable[[], float]
    ) -> None:
        self.required_end = 0
        """The commit that the log has to reach before the copied rows count."""

        self._source = source
        self._report = report
        self._wanted: deque[str] = deque()
        self._to_share: set[str] = set()
        """The wanted tables that the engine will copy."""

        self._copying: BaselineCopy | None = None
        self._sharing = SharedBaselines()
        self._copy_reported = False
        """Whether the engine has reported a completed copy since the last `advance`."""

        self._waits = False
        self._clock = clock
        self._try_again = 0.0
        """When baselines that could not begin are tried again."""

        self._pacing = CopyRate(source.traits.copy_rows_per_s)
        self.held = False
        """Whether none may begin now, because the log is full; those in progress continue (R28)."""

    @property
    def active(self) -> bool:
        """Whether any is in progress or waits: then `advance` must be called after every read."""
        return bool(self._wanted or self._copying is not None or self._sharing.copies)

    @property
    def pressing(self) -> bool:
        """Whether there is something to do at once: a chunk to copy, or a copy to finish."""
        return self._copy_reported or (self._at_work and not self._resting)

    @property
    def due(self) -> float | None:
        """When the next chunk may be copied; None: that does not depend on the time."""
        return self._not_before if self._at_work and not self._held_back else None

    @property
    def firsts(self) -> list[int]:
        """F of the copies in progress, and of those that will begin; 0 if it is not known yet."""
        firsts = [shared.planned.first for shared in self._sharing.copies.values()]
        if self._copying is not None:
            firsts.append(self._copying.copy.first)
        if self._source.traits.keeps_snapshot:
            kept = cast(KeepsSnapshot, self._source).kept_first()
            firsts += [] if kept is None else [kept]
        return firsts

    @property
    def _not_before(self) -> float:
        return max(self._pacing.not_before, self._try_again)

    @property
    def _at_work(self) -> bool:
        begins = bool(self._wanted) and not self.held
        return (begins or self._copying is not None) and not self._waits

    @property
    def _resting(self) -> bool:
        return self._held_back or self._clock() < self._not_before

    @property
    def _held_back(self) -> bool:
        """Whether copies on Spark use all that the rate limit allows."""
        return self._pacing.rows_per_s is not None and self._sharing.busy

    def want(self, table: str, *, shared: bool) -> None:
        """Request a baseline of a table, unless one is in progress."""
        under_way = self._copying is not None and self._copying.table == table
        if not under_way and table not in self._wanted and table not in self._sharing.copies:
            self._wanted.append(table)
            (self._to_share.add if shared else self._to_share.discard)(table)

    def keep(self, tables: Container[str]) -> None:
        """Drop the requests for other tables: they are not captured any more."""
        self._wanted = deque(table for table in self._wanted if table in tables)

    def copied(self, done: CopyDone) -> None:
        """Take the result of a copy by the engine."""
        self._sharing.copied(done.table, done.stem, done.files)
        # Pressing only once: if the log has not reached its end yet, the next changes decide.
        self._copy_reported = True

    def failed(self, report: CopyFailed) -> None:
        """Plan a copy that the engine could not make again, or copy the table here."""
        if (failed := self._sharing.take(report.table, report.stem)) is not None:
            failed.planned.close()
            self.want(report.table, shared=report.shared)

    def advance(self, log: LogWriter, flush: Callable[[], None]) -> None:
        """Do the next piece of work, if there is any; `flush` writes what is pending."""
        self._copy_reported = False
        for table in self._sharing.lost():
            self.want(table, shared=True)
        for done in self._sharing.done():
            if self._passed(log, flush, done.planned.last):
                killpoints.reach(killpoints.BASELINE_COPIED)
                self._finish(done.table, partial(self._sharing.finish, done), done.writer)
        if self.held and self._copying is not None and not self._copying.copy.first:
            # It waits for other sessions, and nothing could be pruned until it begins.
            self._stop_here()
        if self._copying is None:
            if not self._wanted or self.held or self._clock() < self._try_again:
                return
            table = self._wanted.popleft()
            if self._share(log, table):
                return
            self._copying = BaselineCopy(table, self._source, log)
        if self._resting:
            return
        copying = self._copying
        before = copying.rows
        if (rows := copying.chunk()) is not None:
            self._waits = False
            self._pacing.took(rows - before, self._clock())
            killpoints.reach(killpoints.BASELINE_CHUNK)
            copy = copying.copy
            self._report(
                BaselineProgress(copying.table, rows, expected=copy.expected, waits=copy.waits)
            )
            if copy.waits and not rows:
                # It may wait for hours, or for changes that are still to be read: those come first.
                self._try_again = self._clock() + TRY_AGAIN_SECONDS
                if self._wanted:
                    self._stop_here()
                    self._wanted.rotate(-1)
            return
        self._waits = not self._passed(log, flush, copying.copy.last)
        if self._waits:
            return
        killpoints.reach(killpoints.BASELINE_COPIED)
        self._finish(copying.table, copying.finish, copying)
        if self._copying is copying:
            self._copying = None

    def give_up(self, table: str) -> None:
        """Start the copy of a table again, because what was copied so far is not usable."""
        if table in self._sharing.copies:
            self._sharing.drop(table)
            self.want(table, shared=True)
        elif self._copying is not None and self._copying.table == table:
            self._stop_here()

    def stop(self) -> None:
        """Stop all copies: they belong to one connection, and are requested again."""
        self._stop_here()
        # Their snapshots end with the source's connections.
        for table in self._sharing.clear():
            self.want(table, shared=True)

    def _stop_here(self) -> None:
        self._waits = False
        if self._copying is not None:
            self._wanted.appendleft(self._copying.table)
            self._copying.discard()
            self._copying = None

    def _passed(self, log: LogWriter, flush: Callable[[], None], last: int) -> bool:
        """
        Return whether the log has reached the end of a copied baseline.

        Until then its rows may contain commits that a standby, once promoted, never had. Once the
        log has reached that position, this is noticed (R2).
        """
        if log.end.commit < last:
            flush()
        passed = log.end.commit >= last
        if not passed:
            self.required_end = max(self.required_end, last)
        return passed

    def _share(self, log: LogWriter, table: str) -> bool:
        """Let the engine copy a table, if the source supports it and the table is large enough."""
        if table not in self._to_share or not self._source.traits.shares:
            return False
        self._to_share.discard(table)
        try:
            planned = cast(Shares, self._source).plan(table)
        except NotYet as why:
            # Other tables come first, and changes in any case.
            self.want(table, shared=True)
            self._try_again = self._clock() + TRY_AGAIN_SECONDS
            self._report(BaselineProgress(table, 0, waits=str(why)))
            return True
        if planned is None:
            return False
        shared = SharedBaseline(table, planned, log)
        self._sharing.begin(shared)
        killpoints.reach(killpoints.COPY_PLANNED)
        self._report(shared.report())
        return True

    def _finish(
        self, table: str, finish: Callable[[], int], copied: BaselineCopy | BaselineWriter
    ) -> None:
        try:
            entry = finish()
        except PositionExpired as error:
            # Not usable: changes that it needs were pruned meanwhile. It is copied again.
            self._report(Warned(Failed.of(error, stops=False)))
            self.give_up(table)
            return
        killpoints.reach(killpoints.BASELINE_FINISHED)
        self._report(Flushed(entry))
        self._report(BaselineProgress(table, copied.rows, done=True))


# --- the parts of a planned baseline --------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Order:
    """What to copy, and where to; sent to other processes unchanged."""

    source: str
    kind: str
    options: Mapping[str, object]
    table: str
    folder: str
    """The location of the log's segments."""

    stem: str
    schema: int
    """The number of the table's schema in the log."""

    parts: Sequence[bytes]
    time: int
    """When the copy began, in microseconds since 1970: the time of its rows."""

    at_once: int = 1
    """How many parts are read at the same time, and share the rate limit."""

    def __repr__(self) -> str:
        # The options may contain a connection string: they are never printed.
        return f"Order({self.source!r}, {self.table!r}, {self.stem!r}, {len(self.parts)} parts)"


def copy_parts(order: Order, numbers: Iterable[int]) -> Iterator[File]:
    """Copy parts one after the other, and yield the index's description of each segment."""
    source = build(SourceSpec(order.kind, order.source, order.options), "")
    with closing(source):
        for number in numbers:
            yield from _copy_part(order, source, number)


def _copy_part(order: Order, source: Recordable, number: int) -> Iterator[File]:
    limit = source.traits.copy_rows_per_s
    # The time starts now: with many small parts, none may count time that another one took.
    pacing = CopyRate(None if limit is None else limit / order.at_once, time.monotonic())
    files = opened(order.folder)
    attempt = uuid.uuid4().hex[:12]
    segments = _segments(cast(Shares, source), order.parts[number], order.time, pacing)
    for count, (schema, rows) in enumerate(segments):
        data = segment_bytes(rows)
        name = f"{order.stem}-{number + 1}-{attempt}-{count}.parquet"
        files.create(name, data, settle=False)
        yield describe(name, order.table, order.schema, schema, rows, data)


def _segments(
    source: Shares, part: bytes, time_: int, pacing: CopyRate
) -> Iterator[tuple[TableSchema, pa.Table]]:
    """Yield a part's rows in the shape of segments, each of about `PART_BYTES`."""
    waiting: list[pa.Table] = []
    size = 0
    for schema, rows, exact in source.read_part(part):
        if rows.num_rows:
            waiting.append(as_baseline(schema, rows, exact, time_))
            # Only the rows are counted: a segment's other columns take almost no space in a file.
            size += rows.nbytes
        pacing.took(rows.num_rows, time.monotonic())
        time.sleep(pacing.rest(time.monotonic()))
        if size >= PART_BYTES:
            yield schema, pa.concat_tables(waiting)
            waiting, size = [], 0
    if waiting:
        yield schema, pa.concat_tables(waiting)
