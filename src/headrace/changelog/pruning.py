"""
Letting go of what nobody needs any more (R27).

First an entry says so, synced: from then on nobody begins there. The files go a lease later,
so that whoever was reading them has come to an end, and the oldest entries of the index with
them, once two states stand for them.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection

from headrace.changelog.entry import Flush, Pruned
from headrace.changelog.position import Position
from headrace.changelog.writer import LogWriter
from headrace.errors import ChangeLogError
from headrace.storage.points import LOG_PRUNED, reach

MOST_FILES = 1_000
"""Deleted in one go: about what takes as long as a flush."""

MOST_OBJECTS = 200
MOST_ENTRIES = 20
"""The same in a bucket, where each is a request: of those that go together, and one by one."""


def prune(
    log: LogWriter,
    upto: Position,
    baselines: Collection[int] = (),
    heard: int | None = None,
) -> Pruned | None:
    """
    Drop all whole flushes that end at or before `upto`, and these baselines.

    One that is the newest of its table, and usable after that, stays. Those that a later entry
    than `heard` made keep every change after their F: whoever decided did not know of them.
    None where there is nothing to drop.
    """
    history = log.history
    if upto > history.end:
        raise ChangeLogError("Cannot prune what is still to come", upto=upto, end=history.end)
    text = str(upto)
    for known in history.tables.values():
        usable = known.baseline
        if heard is not None and usable is not None and usable.entry > heard:
            text = min(text, usable.first)
    # The newest step stays, with all that end where it does: it says where the source is read on.
    lasts = history.lasts
    count = min(bisect_right(lasts, text), bisect_left(lasts, lasts[-1])) if lasts else 0
    # Without changes among them there is nothing to gain: idle days leave no entries (R34).
    some = any(isinstance(step, Flush) for step in history.steps[:count])
    last = lasts[count - 1] if some else ""
    dropped = tuple(
        number
        for known in history.tables.values()
        for number, baseline in known.baselines.items()
        if number in baselines and (baseline is not known.baseline or baseline.first < last)
    )
    if not last and not dropped:
        return None
    pruned = Pruned(**log.head(), upto=last, time=log.stamp, baselines=dropped)
    log.enter(pruned)
    reach(LOG_PRUNED)
    return pruned


class Deleting:
    """Deletes what the index dropped, a lease later. Belongs to one writer of a log."""

    def __init__(self, log: LogWriter) -> None:
        self._log = log
        # A state that was there before: nobody knows for how long.
        self._states = dict.fromkeys(log.index.states, log.stamp)

    def delete(self, lease: float) -> bool:
        """Delete what is due, a part of it at a time; return whether there is more."""
        log = self._log
        most = MOST_FILES if log.segments.local else MOST_OBJECTS
        due = log.stamp - int(lease * 1_000_000)
        retired = log.history.retired
        left, gone = list(retired), list[str]()
        while left and left[0][0] <= due and most > 0:
            time, names = left[0]
            gone += names[:most]
            if names[most:]:
                left[0] = (time, names[most:])
            else:
                del left[0]
            most -= len(names)
        log.segments.remove_many(gone)
        retired[:] = left
        for number in log.index.states:
            self._states.setdefault(number, log.stamp)
        old = [each for each in log.index.states[:-1] if self._states[each] <= due]
        if not log.segments.local:
            most = min(most, MOST_ENTRIES)
        more = log.index.forget(old[-1], most) if old and most > 0 else 0
        return bool(more or (retired and retired[0][0] <= due))
