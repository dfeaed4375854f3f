"""
The recorder's maintenance of its log: pruning, compaction, folding, and the steps when it is full.

The engine says what is not needed; the recorder alone writes (R31). It does a piece at a time
between two reads, and rests for longer than the piece took: a reader that waits for a change
waits for one piece at most, and seldom.
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
"""From this share of the cap on nothing is read (R28)."""

ROOM = 0.85
"""Below this share reading goes on."""

CAP_SHARE = 0.1
"""So much of the cap is worth a fold, if it is kept for a baseline alone."""

HOLD_SECONDS = 0.2
"""Between two looks at whether there is room again."""

SHARE = 10
"""A piece of work is followed by a rest so many times as long."""

LOOK_SECONDS = 1.0
"""After nothing was found to do."""

ANEW_SECONDS = 60.0
"""Between two looks at all of the log: flushes that were merged may be merged again."""

FOLD_SECONDS = 10.0
"""Between two looks at whether a baseline is worth being folded."""

REFUSED_SECONDS = 60.0
"""After a piece of work failed on the disk: a flush may fit where a larger file does not."""

DELETE_SECONDS = 1.0
"""Between two looks at what can be deleted, or pruned now that a copy is finished."""


class LogMaintenance:
    """For the recorder's thread alone. `tell` takes what the engine should know."""

    def __init__(self, tell: Callable[[Report], None], clock: Callable[[], float]) -> None:
        self._tell = tell
        self._clock = clock
        self._order: MaintainLog | None = None
        self._meant_for: LogWriter | None = None
        self._pruned: MaintainLog | None = None
        """The order that was obeyed last as far as pruning goes: each is obeyed once."""

        self._cut_short: MaintainLog | None = None
        """One that could be obeyed in part, because of a copy: it is tried again."""

        self._prune_at = 0.0
        self._deleting: tuple[LogWriter, FileDeletion] | None = None
        self._delete_at = 0.0
        self.active = False
        """Whether more files can be deleted at once: then `advance` is to be called soon."""

        self._working_on: LogWriter | None = None
        self._compaction: Compaction | None = None
        self._folding: Fold | None = None
        self._not_folded: set[int] = set()
        """Baselines that cannot be folded exactly, or not be read."""

        self._work_at = self._anew_at = self._fold_at = 0.0
        self._busy = False
        self.holding = False
        """Whether nothing is read, because the log is full."""

        self.full_at = math.inf
        """With fewer bytes the log is not full: `full` need not be asked."""

    @property
    def due(self) -> float | None:
        """When there is more to do of what is under way; None: nothing is."""
        return self._work_at if self._busy else None

    def take(self, order: MaintainLog) -> None:
        """Hear what the engine has decided."""
        self._order, self._meant_for = order, None
        self.full_at = 0.0

    def full(self, log: LogWriter) -> bool:
        """Return whether the log has no room for more, now."""
        cap = self._order.cap if self._order is not None else None
        share = ROOM if self.holding else FULL
        # Half a commit is read to its end: it cannot be flushed before.
        self.holding = cap is not None and log.pending_complete and log.size >= share * cap
        self.full_at = 0.0 if self.holding else math.inf if cap is None else FULL * cap
        return self.holding

    def kept_for_copies(self, log: LogWriter, firsts: Sequence[int]) -> bool:
        """
        Return whether copies keep the log, and nobody else but the baselines of before.

        Until the log has come to their end there is no room, so it is read up to there.
        """
        needed = self._order.needed if self._order is not None else ""
        return bool(needed and firsts) and Position.parse(needed) >= _after(log, min(firsts))

    def advance(self, log: LogWriter, firsts: Sequence[int]) -> None:
        """Do the next piece of work, if one is due; `firsts` are F of copies that are needed."""
        order = self._order
        if order is None or not log.epoch:
            return
        if self._meant_for is None:
            self._meant_for = log
        if self._meant_for is not log:
            return  # opened anew, perhaps made anew: what was decided speaks of the one before
        again = self._cut_short is order and self._clock() < self._prune_at
        if self._pruned is not order and log.pending_complete and not again:
            whole = self._prune(log, order, firsts)
            self._pruned, self._cut_short = (order, None) if whole else (None, order)
            self._prune_at = self._clock() + DELETE_SECONDS
        self._delete(log, order)
        # While a commit is read in parts the next entry must be its flush.
        if self._clock() >= self._work_at and log.pending_complete:
            begun = self._clock()
            # Should the disk refuse, recording comes first for a while.
            self._work_at = begun + REFUSED_SECONDS
            self._busy = False
            self._busy = self._work(log, order)
            rest = SHARE * (self._clock() - begun) if self._busy else LOOK_SECONDS
            self._work_at = self._clock() + rest

    def _work(self, log: LogWriter, order: MaintainLog) -> bool:
        """Do a piece of what takes long; return whether there was anything to do."""
        if self._working_on is not log:
            # Another writer: what was under way belongs to the one before.
            self._working_on, self._compaction, self._folding = log, Compaction(log), None
            self._anew_at = self._clock() + ANEW_SECONDS
        # What a fold reads must not be merged under its hands.
        if self._folding is None and order.compact and self._compact(order, log.end):
            return True
        return self._fold(log, order)

    def _compact(self, order: MaintainLog, end: Position) -> bool:
        assert self._compaction is not None
        if self._clock() >= self._anew_at:
            self._compaction.begin_anew()
            self._anew_at = self._clock() + ANEW_SECONDS
        try:
            merged = self._compaction.advance(min(Position.parse(order.settled), end), order.fences)
        except (CorruptSegment, UnknownFormat) as error:
            # Whoever needs it gets the same error; it is nothing that recording ends for.
            self._warn(error)
            self._anew_at = math.inf
            return True
        if merged is not None:
            self._tell(Flushed(merged.entry))
        return merged is not None

    def _fold(self, log: LogWriter, order: MaintainLog) -> bool:
        """Bring a baseline nearer to the present, a piece of it."""
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
            self._tell(Flushed(baseline.entry))
        return True

    def _prune(self, log: LogWriter, order: MaintainLog, firsts: Sequence[int]) -> bool:
        """Prune as told, as far as copies allow; return whether that was all."""
        asked = min(Position.parse(order.prune), log.end)
        upto = min([asked, *(_after(log, first) for first in firsts)])
        if (pruned := prune(log, upto, order.drop, order.heard)) is not None:
            self._tell(Flushed(pruned.entry))
        return upto == asked

    def _delete(self, log: LogWriter, order: MaintainLog) -> None:
        if self._clock() < self._delete_at:
            return
        if self._deleting is None or self._deleting[0] is not log:
            self._deleting = (log, FileDeletion(log))
        self.active = self._deleting[1].delete(order.lease)
        self._delete_at = self._clock() + (0.0 if self.active else DELETE_SECONDS)

    def _warn(self, error: ChangeLogError) -> None:
        self._tell(Warned(Failed.of(error, stops=False)))


def _after(log: LogWriter, first: int) -> Position:
    """Return the place that a copy with this F needs all after."""
    return Position(log.epoch, first, MAX_ORDINAL)
