"""
A recorder's care for its log: pruning, compaction, folding, and what is done when it is full.

The engine says what nobody needs; the recorder alone writes (R31). It does a piece at a time
between two reads, and rests for longer than the piece took: whoever waits for a change waits
for one piece at most, and seldom.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from headrace.capture.wire import Failed, Flushed, Report, Tend, Warned
from headrace.changelog.compaction import Compaction
from headrace.changelog.log import LogWriter
from headrace.changelog.position import MAX_ORDINAL, Position
from headrace.changelog.pruning import Deleting, prune
from headrace.errors import ChangeLogError, CorruptSegment, UnknownFormat

FULL = 0.9
"""From this share of the cap on nothing is read (R28)."""

ROOM = 0.85
"""Below this share reading goes on."""

HOLD_SECONDS = 0.2
"""Between two looks at whether there is room again."""

SHARE = 10
"""A piece of work is followed by a rest so many times as long."""

LOOK_SECONDS = 1.0
"""After nothing was found to do."""

ANEW_SECONDS = 60.0
"""Between two looks at all of the log: flushes that were merged may be merged again."""

DELETE_SECONDS = 1.0
"""Between two looks at what can be deleted."""


class Caring:
    """For the recorder's thread alone. `tell` takes what the engine should know."""

    def __init__(self, tell: Callable[[Report], None], clock: Callable[[], float]) -> None:
        self._tell = tell
        self._clock = clock
        self._order: Tend | None = None
        self._pruned: Tend | None = None
        """The order that was obeyed last as far as pruning goes: each is obeyed once."""

        self._deleting: tuple[LogWriter, Deleting] | None = None
        self._delete_at = 0.0
        self._compaction: tuple[LogWriter, Compaction] | None = None
        self._work_at = self._anew_at = 0.0
        self.holding = False
        """Whether nothing is read, because the log is full."""

    def take(self, order: Tend) -> None:
        """Hear what the engine has decided."""
        self._order = order

    def full(self, log: LogWriter) -> bool:
        """Return whether the log has no room for more, now."""
        cap = self._order.cap if self._order is not None else None
        share = ROOM if self.holding else FULL
        # Half a commit is read to its end: it cannot be flushed before.
        self.holding = cap is not None and log.pending_complete and log.size >= share * cap
        return self.holding

    def advance(self, log: LogWriter, firsts: Sequence[int]) -> None:
        """Do the next piece of work, if one is due; `firsts` are F of the copies under way."""
        order = self._order
        if order is None or not log.epoch:
            return
        if self._pruned is not order and log.pending_complete:
            self._pruned = order
            self._prune(log, order, firsts)
        self._delete(log, order)
        # While a commit is read in parts the next entry must be its flush.
        if self._clock() >= self._work_at and log.pending_complete:
            begun = self._clock()
            if self._work(log, order):
                self._work_at = self._clock() + SHARE * (self._clock() - begun)
            else:
                self._work_at = self._clock() + LOOK_SECONDS

    def _work(self, log: LogWriter, order: Tend) -> bool:
        """Do a piece of what takes long; return whether there was anything to do."""
        if self._compaction is None or self._compaction[0] is not log:
            self._compaction = (log, Compaction(log))
            self._anew_at = self._clock() + ANEW_SECONDS
        compaction = self._compaction[1]
        if self._clock() >= self._anew_at:
            compaction.begin_anew()
            self._anew_at = self._clock() + ANEW_SECONDS
        try:
            merged = order.compact and compaction.advance(
                min(Position.parse(order.settled), log.end), order.fences
            )
        except (CorruptSegment, UnknownFormat) as error:
            # Whoever needs it gets the same error; it is nothing that recording ends for.
            self._warn(error)
            self._anew_at = math.inf
            return True
        if merged:
            self._tell(Flushed(merged.entry))
        return bool(merged)

    def _prune(self, log: LogWriter, order: Tend, firsts: Sequence[int]) -> None:
        pins = [Position(log.epoch, first, MAX_ORDINAL) for first in firsts]
        upto = min([Position.parse(order.prune), log.end, *pins])
        if (pruned := prune(log, upto, order.in_use, order.heard)) is not None:
            self._tell(Flushed(pruned.entry))

    def _delete(self, log: LogWriter, order: Tend) -> None:
        if self._clock() < self._delete_at:
            return
        if self._deleting is None or self._deleting[0] is not log:
            self._deleting = (log, Deleting(log))
        more = self._deleting[1].delete(order.lease)
        self._delete_at = self._clock() + (0.0 if more else DELETE_SECONDS)

    def _warn(self, error: ChangeLogError) -> None:
        self._tell(Warned(Failed.of(error, stops=False)))
