"""
The recorder's maintenance of its log: pruning, compaction, folding, and the steps when it is full.

The engine decides what is no longer needed; only the recorder writes (R31). It does one piece at a
time between two reads, and then pauses for longer than the piece took: a change is delayed by one
piece at most, and seldom.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from headrace.capture.messages import Failed, Flushed, MaintainLog, Report, Warned
from headrace.changelog.compaction import CannotFold, Compaction, Fold, plan_fold
from headrace.changelog.position import MAX_ORDINAL, Position
from headrace.changelog.reader import LogWriter
from headrace.changelog.retention import FileDeletion, prune
from headrace.errors import ChangeLogError, CorruptSegment, UnknownFormat

FULL = 0.9
"""Above this share of the cap, nothing is read (R28)."""

ROOM = 0.85
"""Below this share, reading continues."""

CAP_SHARE = 0.1
"""A fold is worth it if this share of the cap is kept only for a baseline."""

HOLD_SECONDS = 0.2
"""Interval between two checks whether there is room again."""

SHARE = 10
"""A piece of work is followed by a pause this many times as long."""

LOOK_SECONDS = 1.0
"""Pause if there was nothing to do."""

RECHECK_SECONDS = 60.0
"""Interval between two passes over the whole log: merged flushes may be merged again."""

FOLD_SECONDS = 10.0
"""Interval between two checks whether a baseline is worth a fold."""

REFUSED_SECONDS = 60.0
"""Pause after a disk error during maintenance: a flush may fit where a larger file does not."""

DELETE_SECONDS = 1.0
"""Interval between two checks for files to delete, or to prune after a copy has finished."""


class LogMaintenance:
    """Used only on the recorder's thread. `report` is called with reports for the engine."""

    def __init__(self, report: Callable[[Report], None], clock: Callable[[], float]) -> None:
        self._report = report
        self._clock = clock
        self._order: MaintainLog | None = None
        self._meant_for: LogWriter | None = None
        self._pruned: MaintainLog | None = None
        """The last order for which pruning is done: it is done once for each order."""

        self._cut_short: MaintainLog | None = None
        """An order whose pruning could be done only in part, because of a copy: it is retried."""

        self._prune_at = 0.0
        self._deleting: tuple[LogWriter, FileDeletion] | None = None
        self._delete_at = 0.0
        self.active = False
        """Whether more files can be deleted now: then `advance` should be called again soon."""

        self._working_on: LogWriter | None = None
        self._compaction: Compaction | None = None
        self._folding: Fold | None = None
        self._not_folded: set[int] = set()
        """Baselines that cannot be folded exactly, or cannot be read."""

        self._work_at = self._recheck_at = self._fold_at = 0.0
        self._busy = False
        self.holding = False
        """Whether nothing is read, because the log is full."""

        self.full_at = math.inf
        """With fewer bytes than this the log is not full, and `full` need not be called."""

    @property
    def cap(self) -> int:
        """The maximum size of the log, as ordered; 0: there is none."""
        return (self._order.cap or 0) if self._order is not None else 0

    @property
    def due(self) -> float | None:
        """When the next piece of the work in progress is due; None: there is none."""
        return self._work_at if self._busy else None

    def take(self, order: MaintainLog) -> None:
        """Take the engine's latest order."""
        self._order, self._meant_for = order, None
        self.full_at = 0.0

    def full(self, log: LogWriter) -> bool:
        """Return whether the log has no room for more now."""
        cap = self._order.cap if self._order is not None else None
        share = ROOM if self.holding else FULL
        # An incomplete commit is read to its end: it cannot be flushed before.
        self.holding = cap is not None and log.pending_complete and log.size >= share * cap
        self.full_at = 0.0 if self.holding else math.inf if cap is None else FULL * cap
        return self.holding

    def kept_for_copies(self, log: LogWriter, firsts: Sequence[int]) -> bool:
        """
        Return whether only copies in progress and earlier baselines keep the log from shrinking.

        There is no room until the log has reached the end of the copies, so it is read up to there.
        """
        needed = self._order.needed if self._order is not None else ""
        return bool(needed and firsts) and Position.parse(needed) >= _after(log, min(firsts))

    def advance(self, log: LogWriter, firsts: Sequence[int]) -> None:
        """Do the next piece of work, if one is due; `firsts` are the F of the required copies."""
        order = self._order
        if order is None or not log.epoch:
            return
        if self._meant_for is None:
            self._meant_for = log
        if self._meant_for is not log:
            return  # opened again, perhaps recreated: the order was for the previous log
        again = self._cut_short is order and self._clock() < self._prune_at
        if self._pruned is not order and log.pending_complete and not again:
            whole = self._prune(log, order, firsts)
            self._pruned, self._cut_short = (order, None) if whole else (None, order)
            self._prune_at = self._clock() + DELETE_SECONDS
        self._delete(log, order)
        # While a commit is read in parts, the next entry must be its flush.
        if self._clock() >= self._work_at and log.pending_complete:
            begun = self._clock()
            # If the disk fails, recording comes first for a while.
            self._work_at = begun + REFUSED_SECONDS
            self._busy = False
            self._busy = self._work(log, order)
            rest = SHARE * (self._clock() - begun) if self._busy else LOOK_SECONDS
            self._work_at = self._clock() + rest

    def _work(self, log: LogWriter, order: MaintainLog) -> bool:
        """Do a piece of the longer work; return whether there was anything to do."""
        if self._working_on is not log:
            # Another writer: the work in progress belongs to the previous one.
            self._working_on, self._compaction, self._folding = log, Compaction(log), None
            self._recheck_at = self._clock() + RECHECK_SECONDS
        # Files that a fold is reading must not be merged.
        if self._folding is None and order.compact and self._compact(order, log.end):
            return True
        return self._fold(log, order)

    def _compact(self, order: MaintainLog, end: Position) -> bool:
        assert self._compaction is not None
        if self._clock() >= self._recheck_at:
            self._compaction.restart()
            self._recheck_at = self._clock() + RECHECK_SECONDS
        try:
            merged = self._compaction.advance(min(Position.parse(order.settled), end), order.fences)
        except (CorruptSegment, UnknownFormat) as error:
            # A reader of this segment gets the same error; recording need not stop for it.
            self._warn(error)
            self._recheck_at = math.inf
            return True
        if merged is not None:
            self._report(Flushed(merged.entry))
        return merged is not None

    def _fold(self, log: LogWriter, order: MaintainLog) -> bool:
        """Do a piece of a fold, which moves a baseline closer to the end of the log."""
        if self._folding is None:
            if not order.fold or self._clock() < self._fold_at:
                return False
            self._fold_at = self._clock() + FOLD_SECONDS
            least = None if order.cap is None else int(order.cap * CAP_SHARE)
            upto = min(Position.parse(order.fold), log.end)
            plan = plan_fold(log, upto, least, anyhow=self.holding)
            if plan is None or plan.old.baseline in self._not_folded:
                return False
            self._folding = Fold(log, plan)
        folding = self._folding
        try:
            baseline = folding.advance()
        except (CannotFold, CorruptSegment, UnknownFormat) as error:
            self._folding = None
            folding.discard()
            if not folding.outdated:
                self._not_folded.add(folding.old)
                self._warn(
                    ChangeLogError(
                        "A baseline cannot be folded, so the log after it is kept",
                        table=folding.table,
                        why=str(error),
                        remedy="Reload the table from time to time, or do not keep baselines.",
                    )
                )
            return True
        if baseline is not None:
            self._folding = None
            self._report(Flushed(baseline.entry))
        return True

    def _prune(self, log: LogWriter, order: MaintainLog, firsts: Sequence[int]) -> bool:
        """Prune as ordered, as far as copies allow; return whether all of it was done."""
        asked = min(Position.parse(order.prune), log.end)
        upto = min([asked, *(_after(log, first) for first in firsts)])
        if (pruned := prune(log, upto, order.drop, order.known_entry)) is not None:
            self._report(Flushed(pruned.entry))
        return upto == asked

    def _delete(self, log: LogWriter, order: MaintainLog) -> None:
        if self._clock() < self._delete_at:
            return
        if self._deleting is None or self._deleting[0] is not log:
            self._deleting = (log, FileDeletion(log))
        self.active = self._deleting[1].delete(order.lease)
        self._delete_at = self._clock() + (0.0 if self.active else DELETE_SECONDS)

    def _warn(self, error: ChangeLogError) -> None:
        self._report(Warned(Failed.of(error, stops=False)))


def _after(log: LogWriter, first: int) -> Position:
    """Return the position after which a copy with this F needs everything."""
    return Position(log.epoch, first, MAX_ORDINAL)
