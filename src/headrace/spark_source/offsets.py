"""
How far a query is: what Spark keeps in its checkpoint, where reading begins, and where it may end.

An offset is a position: everything at or before it was given. While a baseline is given it also
says which one, and how many of its rows; and as long as changes may lie in a baseline's window
(R11), which one that was. It carries the lineage, so that a checkpoint of a log that is gone is
distinguished from one of the log that took its place (R1). Spark keeps where each batch ends, but
not where the first one begins; the first end says that too.

Where reading begins and ends, and whether the log still has what follows a place, are functions of
a `LogReader`, without Spark.

Some places need a decision of the user's before a stream or a part goes on: a truncate, columns
that changed, rows from before an update that the source does not send, a gap, and rows that changed
without a change. Each is refused with an error that names the option that decides.

Where a batch of a stream ends is decided from the log's index alone, because it is asked all the
time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import numpy as np

from headrace.changelog.change import Op
from headrace.changelog.entries import Baseline, File, Gap
from headrace.changelog.history import BaselineWindow
from headrace.changelog.position import MAX_ORDINAL, ORIGIN, Position
from headrace.changelog.ranges import Span, after, before, beginning, flushes, inside, span
from headrace.changelog.reader import LogBatch, LogReader
from headrace.errors import (
    BadPosition,
    ChangesMissing,
    ColumnsChanged,
    HeadraceError,
    OtherSource,
    PositionExpired,
    Truncated,
    UnknownValue,
    WrongValue,
)
from headrace.spark_source.columns import Fit, FrameColumns, fits
from headrace.spark_source.options import ReadOptions

# --- offsets --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Offset:
    """A place in the log, and in a baseline."""

    position: Position
    baseline: int | None = None
    """The baseline that the query began with; 0: the newest, once there is one."""

    given: int | None = None
    """How many of its rows were given; None: all."""

    lineage: str = ""
    since: Position | None = None
    """Where the query began, in the offset that its first batch ends at: nobody else keeps it."""

    @property
    def waits(self) -> bool:
        """Whether it is not decided yet which baseline it begins with."""
        return self.baseline == 0

    @property
    def in_baseline(self) -> bool:
        """Whether rows of a baseline are still to come."""
        return self.waits or self.given is not None

    def as_json(self) -> dict[str, Any]:
        """Return what Spark keeps."""
        found: dict[str, Any] = {"position": str(self.position)}
        if self.baseline is not None:
            found["baseline"] = self.baseline
        if self.given is not None:
            found["given"] = self.given
        if self.lineage:
            found["lineage"] = self.lineage
        if self.since is not None:
            found["since"] = str(self.since)
        return found

    @classmethod
    def parse(cls, kept: Mapping[str, Any]) -> Offset:
        """Read back what `as_json` gave; anything else is `BadPosition`."""
        try:
            baseline, given, since = (kept.get(name) for name in ("baseline", "given", "since"))
            return cls(
                Position.parse(str(kept["position"])),
                None if baseline is None else int(baseline),
                None if given is None else int(given),
                str(kept.get("lineage", "")),
                None if since is None else Position.parse(str(since)),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise BadPosition(
                "The checkpoint holds an offset of another source",
                remedy="Give the query a checkpoint folder of its own.",
            ) from error


NEWEST_BASELINE = Offset(ORIGIN, baseline=0)
"""Before the newest baseline, whichever that will be."""


# --- where reading begins and ends ----------------------------------------------------------------


@dataclass(frozen=True)
class ReadRequest:
    """A log, and what is wanted of it."""

    log: LogReader
    options: ReadOptions
    frame: FrameColumns

    @property
    def table(self) -> str:
        """The table that is read."""
        return self.options.table

    def fits(self, file: File) -> tuple[Fit, ...]:
        """Return how the frame's columns are had from a segment; or `ColumnsChanged`."""
        mine, its = (self.log.rank(self.table, n) for n in (self.frame.schema_id, file.schema))
        schema = self.log.schema(self.table, file.schema)
        adapt = self.options.on_schema_change == "continue"
        return fits(self.frame, schema, mine - its, adapt=adapt)


def first_offset(log: LogReader, options: ReadOptions) -> Offset:
    """Return where a query begins; `PositionExpired` where the log does not reach back so far."""
    lineage = log.lineage or ""
    match options.start:
        case "baseline":
            return NEWEST_BASELINE
        case "latest":
            return Offset(log.end, lineage=lineage)
        case "earliest":
            begins = beginning(log)
            return Offset(ORIGIN if begins is None else before(begins), lineage=lineage)
        case int() as version:
            start: Position | datetime = _of_version(log, "starting", version, 0)
        case Position() | datetime():
            start = options.start
    return Offset(before(span(log, [options.table], start, None).first), lineage=lineage)


def last_position(log: LogReader, options: ReadOptions) -> Position:
    """Return where a part ends, which is not beyond the log's end."""
    end: Position | datetime | None
    match options.end:
        case None:
            return log.end
        case int() as version:
            end = _of_version(log, "ending", version, MAX_ORDINAL)
        case Position() | datetime():
            end = options.end
    return min(log.end, span(log, [options.table], None, end).last)


def least_end(log: LogReader, options: ReadOptions) -> Position:
    """Return the log's end, or where a query begins that begins behind it."""
    match options.start:
        case Position() as start:
            return max(log.end, before(start))
        case int() as version if log.epoch <= 1:
            return max(log.end, before(Position(1, version)))
    return log.end


def _of_version(log: LogReader, side: str, version: int, ordinal: int) -> Position:
    if log.epoch > 1:
        # Numbers begin anew with an epoch (R1): one alone does not say which commit it is.
        meant = ", ".join(str(Position(n, version, ordinal)) for n in range(1, log.epoch + 1))
        raise WrongValue(
            "The source was restored or replaced, so that commits are numbered twice",
            option=f"{side}Version",
            remedy=f"Give the option {side}Position, one of: {meant}.",
        )
    return Position(1, version, ordinal)


def newest_baseline(asked: ReadRequest) -> Baseline | None:
    """Return the baseline that a query begins with, if there is one."""
    return asked.log.usable_baseline(asked.table)


def baseline_of(asked: ReadRequest, number: int) -> Baseline:
    """Return a baseline whose rows are still to be given; `PositionExpired` where it is gone."""
    found = asked.log.baseline(asked.table, number)
    if found is None or found.window[0] < asked.log.floor:
        raise PositionExpired(
            "The baseline that this query began with is not there any more",
            table=asked.table,
            baseline=number,
            remedy="Begin anew with a new checkpoint: there is, or will be, a newer baseline.",
        )
    return found


def window_of(asked: ReadRequest, start: Offset) -> BaselineWindow | None:
    """Return in which commits a baseline that was given is ahead; None: in none."""
    if not start.baseline:
        return None
    return asked.log.window(asked.table, start.baseline)


def exact_from(asked: ReadRequest, at: Offset) -> Position | None:
    """Return H of the baseline that an offset names: from there on the result is exact (R11)."""
    if not at.baseline:
        return None
    found, window = asked.log.baseline(asked.table, at.baseline), window_of(asked, at)
    if found is not None:
        return found.window[1]
    return None if window is None else window.last


def check_end(asked: ReadRequest, end: Offset) -> None:
    """
    Raise where a batch ends behind the log's end: what lies between would never be given.

    By commits: where a baseline begins, all changes of its commit are behind it.
    """
    log, at = asked.log, end.position
    # A copy may have been begun at a commit that is still on its way into the log.
    begins = log.baseline(asked.table, end.baseline) if end.baseline else None
    if begins is not None and at <= begins.window[0]:
        return
    if not end.waits and (at.epoch, at.commit) > (log.end.epoch, log.end.commit):
        raise ChangesMissing(
            "The log ends before the batch that is to be read",
            table=asked.table,
            position=str(at),
            ends=str(log.end),
            remedy="Start the query again when the log is whole; where its data directory was"
            " restored from a copy, begin with a new checkpoint.",
        )


def check_offset(asked: ReadRequest, at: Offset) -> None:
    """Raise where the log does not have what follows an offset."""
    log = asked.log
    if at.position.epoch > log.epoch > 0 or not _same_history(log, at):
        raise OtherSource(
            "The checkpoint belongs to another log",
            position=str(at.position),
            remedy="The log was made anew: begin with a new checkpoint.",
        )
    begins = beginning(log)
    if begins is not None and not at.waits and at.position < log.floor:
        raise PositionExpired(
            "The log does not reach back so far",
            table=asked.table,
            asked=str(after(at.position)),
            earliest=str(begins),
            remedy="Begin anew with a new checkpoint, at a baseline or at earliest. To have"
            " changes kept until they are read, give the query a name: the option reader.",
        )


def _same_history(log: LogReader, at: Offset) -> bool:
    """Whether the log has the lineage that an offset was made under; true where nobody knows."""
    epoch = at.position.epoch
    if not epoch or at.lineage in ("", log.lineage):
        return True
    # An offset has the lineage that the log had then, which may be of a later epoch than its own.
    gap = log.gap_after(before(Position(epoch, 0)))
    if epoch != log.epoch and (gap is None or gap.epoch != epoch):
        return True  # where its own began is not in the log any more
    while gap is not None and gap.lineage != at.lineage:
        gap = log.gap_after(Position.parse(gap.at))
    return gap is not None


# --- what needs a decision of the user's ----------------------------------------------------------

_PLACE: Final = ("_commit", "_ordinal")


def has_trouble(asked: ReadRequest, file: File) -> bool:
    """Whether somebody must decide on something before a segment is read, by the index alone."""
    return any(True for _ in _troubles(asked, file))


def trouble_within(
    asked: ReadRequest, file: File, flush: LogBatch, part: Span
) -> HeadraceError | None:
    """Return what somebody must decide on in a part, with the first place of it in a segment."""
    found = list(_troubles(asked, file))
    if not found:
        return None
    rows = asked.log.rows(file)
    kept, ops = inside(rows, flush.epoch, part), rows["_op"].to_numpy()
    for op, error in found:
        places = np.flatnonzero(kept if op is None else kept & (ops == op))
        if len(places):
            commit, ordinal = (rows[name][int(places[0])].as_py() for name in _PLACE)
            error.facts = {**error.facts, "position": str(Position(flush.epoch, commit, ordinal))}
            return error
    return None


def _troubles(asked: ReadRequest, file: File) -> Iterator[tuple[Op | None, HeadraceError]]:
    """Yield each with the changes that it is about; None: about all."""
    options = asked.options
    if file.truncates and options.on_truncate == "fail":
        yield (
            Op.TRUNCATE,
            Truncated(
                "The table was emptied at the source",
                table=asked.table,
                remedy="Go on with onTruncate=row, which gives a row of the type truncate, or"
                " onTruncate=ignore.",
            ),
        )
    whole_before = asked.log.schema(asked.table, file.schema).whole_before
    if file.updates and options.images == "both" and not whole_before:
        yield (
            Op.UPDATE,
            UnknownValue(
                "The source does not send rows as they were before an update",
                table=asked.table,
                remedy="Run ALTER TABLE … REPLICA IDENTITY FULL for the table, or use"
                " images=after.",
            ),
        )
    try:
        asked.fits(file)
    except ColumnsChanged as error:
        yield None, error


def readable(asked: ReadRequest, file: File) -> bool:
    """Whether a segment can be brought into the frame; one that cannot has no row in the part."""
    try:
        asked.fits(file)
    except ColumnsChanged:
        return False
    return True


def refuse_gap(asked: ReadRequest, gap: Gap) -> None:
    """Raise at a place where history begins anew, unless that was agreed to."""
    if asked.options.on_gap == "fail":
        raise ChangesMissing(
            "History begins anew here: what happened just before at the source is not known",
            table=asked.table,
            position=gap.at,
            reason=gap.reason,
            remedy="Begin anew from the baseline that follows, with a new checkpoint and"
            " startingPosition=baseline; or go on without what is missing: onGap=continue.",
        )


def unseen_after(asked: ReadRequest, at: Position) -> Position | None:
    """Return where rows changed without a change, if somebody must be told of that."""
    if asked.options.on_gap != "fail":
        return None
    owed = asked.log.owed_after(asked.table, at)
    return None if owed is None else Position.parse(owed.at)


def refuse_unseen(asked: ReadRequest, part: Span) -> None:
    """Raise where rows changed without a change, and no gap says so."""
    if asked.options.on_gap != "fail":
        return
    owed = asked.log.owed_after(asked.table, part.after)
    if owed is not None and part.holds(Position.parse(owed.at)):
        raise ChangesMissing(
            "Rows of the table changed without a change",
            table=asked.table,
            position=owed.at,
            reason=owed.reason,
            remedy="Begin anew from the baseline that follows, with a new checkpoint and"
            " startingPosition=baseline; or go on without what is missing: onGap=continue.",
        )


# --- where a batch of a stream ends ---------------------------------------------------------------

_NO_LIMIT = 1 << 40


def next_offset(
    asked: ReadRequest, start: Offset, most_rows: int | None, upto: Position | None = None
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
    asked: ReadRequest, start: Offset, most_rows: int | None, upto: Position | None
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


def idle_offset(asked: ReadRequest, start: Offset, upto: Position | None = None) -> Offset:
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


def _has(asked: ReadRequest, at: Position, last: Position) -> bool:
    return asked.log.changed_between(asked.table, at, last)


def _beyond(asked: ReadRequest, start: Offset, position: Position) -> Offset:
    """Return an offset at a position; with the baseline that is not exact there yet."""
    exact = exact_from(asked, start)
    kept = start.baseline if exact is not None and position < exact else None
    return Offset(position, kept, None, asked.log.lineage or "")


def _next_of_baseline(asked: ReadRequest, start: Offset, most_rows: int | None) -> Offset:
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


def _ends_before_trouble(
    asked: ReadRequest, at: Position, batch: LogBatch, last: Position
) -> Position:
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
