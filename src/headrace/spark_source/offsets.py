"""
How far a query is: what Spark keeps in its checkpoint, where reading begins, and where it may end.

An offset is a position: everything at or before it was delivered. While a baseline is delivered,
the offset also has its number and the number of its rows that were delivered. As long as changes
may lie in the baseline's window (R11), it keeps the number. It has the lineage, so that a
checkpoint of a log that is gone is not mistaken for one of the log that replaced it (R1). Spark
keeps where each batch ends, but not where the first one begins; so the first end has that, too.

Where reading begins and ends, and whether the log still has what follows a position, are functions
of a `LogReader`, without Spark.

Some positions need a decision by the user before a stream or a part can continue: a truncate, a
change of columns, an update whose old row the source does not send, a gap, and rows that changed
without a recorded change. Each ends with an error that names the option to decide it with.

Where a batch of a stream ends is decided from the log's index alone, because Spark asks for it
continuously.
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
    """A position in the log, and in a baseline."""

    position: Position
    baseline: int | None = None
    """The baseline that the query began with; 0 for the newest, as soon as there is one."""

    given: int | None = None
    """How many of its rows were delivered; None for all."""

    lineage: str = ""
    since: Position | None = None
    """Where the query began. Only the end of its first batch has it; Spark does not keep it."""

    @property
    def waits(self) -> bool:
        """Whether it is still open which baseline the query begins with."""
        return self.baseline == 0

    @property
    def in_baseline(self) -> bool:
        """Whether rows of a baseline still have to be delivered."""
        return self.waits or self.given is not None

    def as_json(self) -> dict[str, Any]:
        """Return the JSON value that Spark keeps."""
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
        """Parse what `as_json` returned; anything else is `BadPosition`."""
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
                "The checkpoint contains an offset of another data source",
                remedy="Set checkpointLocation to a folder that only this query uses.",
            ) from error


NEWEST_BASELINE = Offset(ORIGIN, baseline=0)
"""Before the newest baseline, which may not exist yet."""


# --- where reading begins and ends ----------------------------------------------------------------


@dataclass(frozen=True)
class ReadRequest:
    """A log, and what a query reads from it."""

    log: LogReader
    options: ReadOptions
    frame: FrameColumns

    @property
    def table(self) -> str:
        """The table that is read."""
        return self.options.table

    def fits(self, file: File) -> tuple[Fit, ...]:
        """Return how the frame's columns are read from a segment; or raise `ColumnsChanged`."""
        mine, its = (self.log.rank(self.table, n) for n in (self.frame.schema_id, file.schema))
        schema = self.log.schema(self.table, file.schema)
        adapt = self.options.on_schema_change == "continue"
        return fits(self.frame, schema, mine - its, adapt=adapt)


def first_offset(log: LogReader, options: ReadOptions) -> Offset:
    """Return where a query begins; `PositionExpired` if the log does not reach back that far."""
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
    """Return where a part of the log ends, at most the log's end."""
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
    """Return the log's end, or the start of the query if that is later."""
    match options.start:
        case Position() as start:
            return max(log.end, before(start))
        case int() as version if log.epoch <= 1:
            return max(log.end, before(Position(1, version)))
    return log.end


def _of_version(log: LogReader, side: str, version: int, ordinal: int) -> Position:
    if log.epoch > 1:
        # Numbers start again with each epoch (R1), so that a number alone is ambiguous.
        meant = ", ".join(str(Position(n, version, ordinal)) for n in range(1, log.epoch + 1))
        raise WrongValue(
            f"Commit {version} is ambiguous: the source was restored or replaced, and its commit"
            " numbers started again",
            option=f"{side}Version",
            remedy=f"Use the option {side}Position with one of: {meant}.",
        )
    return Position(1, version, ordinal)


def newest_baseline(asked: ReadRequest) -> Baseline | None:
    """Return the baseline that a query begins with, if there is one."""
    return asked.log.usable_baseline(asked.table)


def baseline_of(asked: ReadRequest, number: int) -> Baseline:
    """Return a baseline whose rows are still to be delivered; `PositionExpired` if it is gone."""
    found = asked.log.baseline(asked.table, number)
    if found is None or found.window[0] < asked.log.floor:
        raise PositionExpired(
            "The log no longer has the baseline that this query began with",
            table=asked.table,
            baseline=number,
            remedy="Restart the query with a new checkpoint. It begins with a newer baseline.",
        )
    return found


def window_of(asked: ReadRequest, start: Offset) -> BaselineWindow | None:
    """Return the commits whose changes a delivered baseline may contain already; None if none."""
    if not start.baseline:
        return None
    return asked.log.window(asked.table, start.baseline)


def exact_from(asked: ReadRequest, at: Offset) -> Position | None:
    """Return H of the baseline of an offset: from there on the result is exact (R11)."""
    if not at.baseline:
        return None
    found, window = asked.log.baseline(asked.table, at.baseline), window_of(asked, at)
    if found is not None:
        return found.window[1]
    return None if window is None else window.last


def check_end(asked: ReadRequest, end: Offset) -> None:
    """
    Raise if a batch ends after the log's end: what lies between would never be delivered.

    Commits are compared: all changes of the commit at which a baseline begins come after it.
    """
    log, at = asked.log, end.position
    # A copy may have begun at a commit that is not in the log yet.
    begins = log.baseline(asked.table, end.baseline) if end.baseline else None
    if begins is not None and at <= begins.window[0]:
        return
    if not end.waits and (at.epoch, at.commit) > (log.end.epoch, log.end.commit):
        raise ChangesMissing(
            "The log ends before the position in the checkpoint",
            table=asked.table,
            position=str(at),
            ends=str(log.end),
            remedy="Restart the query when the log is complete. If its data directory was restored"
            " from a backup, use a new checkpoint.",
        )


def check_offset(asked: ReadRequest, at: Offset) -> None:
    """Raise if the log does not have what follows an offset."""
    log = asked.log
    if at.position.epoch > log.epoch > 0 or not _same_history(log, at):
        raise OtherSource(
            "The checkpoint belongs to another log",
            position=str(at.position),
            remedy="The log was recreated: restart the query with a new checkpoint.",
        )
    begins = beginning(log)
    if begins is not None and not at.waits and at.position < log.floor:
        raise PositionExpired(
            "The log no longer has changes from this position on",
            table=asked.table,
            asked=str(after(at.position)),
            earliest=str(begins),
            remedy="Restart the query with a new checkpoint and startingPosition=baseline or"
            " earliest. To make the log keep changes until they are read, set the option reader.",
        )


def _same_history(log: LogReader, at: Offset) -> bool:
    """Whether the log has the lineage of an offset; true if that is not known."""
    epoch = at.position.epoch
    if not epoch or at.lineage in ("", log.lineage):
        return True
    # An offset has the lineage that the log had at that time, which may be of a later epoch.
    gap = log.gap_after(before(Position(epoch, 0)))
    if epoch != log.epoch and (gap is None or gap.epoch != epoch):
        return True  # the log no longer has the start of that epoch
    while gap is not None and gap.lineage != at.lineage:
        gap = log.gap_after(Position.parse(gap.at))
    return gap is not None


# --- what needs a decision by the user ------------------------------------------------------------

_POSITION_COLUMNS: Final = ("_commit", "_ordinal")


def has_trouble(asked: ReadRequest, file: File) -> bool:
    """Whether a segment needs a decision by the user before it is read, by the index alone."""
    return any(True for _ in _troubles(asked, file))


def trouble_within(
    asked: ReadRequest, file: File, flush: LogBatch, part: Span
) -> HeadraceError | None:
    """Return the error for what needs a decision in a part, with its first position; or None."""
    found = list(_troubles(asked, file))
    if not found:
        return None
    rows = asked.log.rows(file)
    kept, ops = inside(rows, flush.epoch, part), rows["_op"].to_numpy()
    for op, error in found:
        at = np.flatnonzero(kept if op is None else kept & (ops == op))
        if len(at):
            commit, ordinal = (rows[name][int(at[0])].as_py() for name in _POSITION_COLUMNS)
            error.facts = {**error.facts, "position": str(Position(flush.epoch, commit, ordinal))}
            return error
    return None


def _troubles(asked: ReadRequest, file: File) -> Iterator[tuple[Op | None, HeadraceError]]:
    """Yield each error with the kind of change that causes it; None if any change does."""
    options = asked.options
    if file.truncates and options.on_truncate == "fail":
        yield (
            Op.TRUNCATE,
            Truncated(
                "The table was truncated at the source",
                table=asked.table,
                remedy="Continue with onTruncate=row, which returns a row of type truncate, or with"
                " onTruncate=ignore.",
            ),
        )
    whole_before = asked.log.schema(asked.table, file.schema).whole_before
    if file.updates and options.images == "both" and not whole_before:
        yield (
            Op.UPDATE,
            UnknownValue(
                "images=both needs the row before each update, and the source does not send it",
                table=asked.table,
                remedy="Run ALTER TABLE … REPLICA IDENTITY FULL for the table, or use"
                " images=after.",
            ),
        )
    try:
        asked.fits(file)
    except ColumnsChanged as error:
        yield None, error


_AFTER_GAP: Final = (
    "Restart the query with a new checkpoint and startingPosition=baseline: it begins with the"
    " next baseline. Or continue without the missing changes: onGap=continue."
)


def readable(asked: ReadRequest, file: File) -> bool:
    """Whether a segment can be converted to the frame; if not, it has no row in the part."""
    try:
        asked.fits(file)
    except ColumnsChanged:
        return False
    return True


def refuse_gap(asked: ReadRequest, gap: Gap) -> None:
    """Raise at a gap of the history, unless the query has `onGap=continue`."""
    if asked.options.on_gap == "fail":
        raise ChangesMissing(
            "The log has a gap: changes before this position were not recorded",
            table=asked.table,
            position=gap.at,
            reason=gap.reason,
            remedy=_AFTER_GAP,
        )


def unseen_after(asked: ReadRequest, at: Position) -> Position | None:
    """Return where rows changed without a recorded change, unless the query ignores gaps."""
    if asked.options.on_gap != "fail":
        return None
    unseen = asked.log.rebaseline_after(asked.table, at)
    return None if unseen is None else Position.parse(unseen.at)


def refuse_unseen(asked: ReadRequest, part: Span) -> None:
    """Raise if rows changed in a part without a recorded change, and without a gap."""
    if asked.options.on_gap != "fail":
        return
    unseen = asked.log.rebaseline_after(asked.table, part.after)
    if unseen is not None and part.holds(Position.parse(unseen.at)):
        raise ChangesMissing(
            "Rows of the table changed, and the changes were not recorded",
            table=asked.table,
            position=unseen.at,
            reason=unseen.reason,
            remedy=_AFTER_GAP,
        )


# --- where a batch of a stream ends ---------------------------------------------------------------

_NO_LIMIT = 1 << 40


def next_offset(
    asked: ReadRequest, start: Offset, most_rows: int | None, upto: Position | None = None
) -> Offset:
    """
    Return where the batch after `start` ends: `start` itself if there is nothing new.

    It ends with a flush, so that no transaction is ever split, and has at most `most_rows`
    unless a single flush has more. A batch ends before a change that needs a decision by the
    user, and the batch that would begin with that change is an error.
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
    Return the new offset of a query without rows to read: the log's end, past other tables.

    Or `upto`, if the query is to end there.

    It moves rarely, as a batch without rows costs Spark a job (R34). But it must move, since the
    log will prune what follows the old offset.
    """
    stops = asked.options.on_gap == "fail" and asked.log.gap_after(start.position) is not None
    end = asked.log.end if upto is None else min(asked.log.end, upto)
    if start.in_baseline or stops or end <= start.position:
        return start
    return _beyond(asked, start, end)


def _has(asked: ReadRequest, at: Position, last: Position) -> bool:
    return asked.log.changed_between(asked.table, at, last)


def _beyond(asked: ReadRequest, start: Offset, position: Position) -> Offset:
    """Return an offset at a position; with the baseline, if that is not exact there yet."""
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
    # It still has the baseline's number, so that a repeated batch has the same rows.
    return Offset(start.position, found.baseline, None, lineage)


def _ends_before_trouble(
    asked: ReadRequest, at: Position, batch: LogBatch, last: Position
) -> Position:
    """Return where a batch ends so that it has no change that needs a decision by the user."""
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
