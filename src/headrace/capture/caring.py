"""
A recorder's care for its log: pruning, compaction, folding, and what is done when it is full.

The engine says what nobody needs; the recorder alone writes (R31). It does a piece at a time
between two reads, and rests for longer than the piece took: whoever waits for a change waits
for one piece at most, and seldom.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from headrace.capture.wire import Failed, Flushed, Report, Tend, Warned
from headrace.changelog.log import LogWriter
from headrace.changelog.position import MAX_ORDINAL, Position
from headrace.changelog.pruning import Deleting, prune
from headrace.errors import ChangeLogError

FULL = 0.9
"""From this share of the cap on nothing is read (R28)."""

ROOM = 0.85
"""Below this share reading goes on."""

HOLD_SECONDS = 0.2
"""Between two looks at whether there is room again."""

SHARE = 10
"""A piece of work is followed by a rest so many times as long."""

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
