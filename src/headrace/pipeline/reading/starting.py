"""
Where reading begins and ends, and whether the log still has what lies behind a place.

Functions of a `LogReader`, without Spark.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from headrace.changelog.entry import Baseline, File
from headrace.changelog.log import LogReader
from headrace.changelog.position import MAX_ORDINAL, ORIGIN, Position
from headrace.changelog.ranges import after, before, beginning, span
from headrace.changelog.window import Window
from headrace.errors import ChangesMissing, OtherSource, PositionExpired, WrongValue
from headrace.pipeline.reading.columns import Fit, Frame, fits
from headrace.pipeline.reading.offsets import NEWEST_BASELINE, Offset
from headrace.pipeline.reading.options import Options


@dataclass(frozen=True)
class Asked:
    """A log, and what is wanted of it."""

    log: LogReader
    options: Options
    frame: Frame

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


def first_offset(log: LogReader, options: Options) -> Offset:
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


def last_position(log: LogReader, options: Options) -> Position:
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


def least_end(log: LogReader, options: Options) -> Position:
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


def newest_baseline(asked: Asked) -> Baseline | None:
    """Return the baseline that a query begins with, if there is one."""
    return asked.log.usable_baseline(asked.table)


def baseline_of(asked: Asked, number: int) -> Baseline:
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


def window_of(asked: Asked, start: Offset) -> Window | None:
    """Return in which commits a baseline that was given is ahead; None: in none."""
    if not start.baseline:
        return None
    return asked.log.window(asked.table, start.baseline)


def exact_from(asked: Asked, at: Offset) -> Position | None:
    """Return H of the baseline that an offset names: from there on the result is exact (R11)."""
    if not at.baseline:
        return None
    found, window = asked.log.baseline(asked.table, at.baseline), window_of(asked, at)
    if found is not None:
        return found.window[1]
    return None if window is None else window.last


def check_end(asked: Asked, end: Offset) -> None:
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


def check_offset(asked: Asked, at: Offset) -> None:
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
