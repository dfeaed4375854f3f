"""
Retention of the log: pruning what no reader needs, and the leases of named readers (R27).

Pruning first writes an entry that says so, synced: from then on no reader begins there. The
files are deleted a lease later, so that every reader that was using them has finished, and with
them the oldest entries of the index, once two states stand for those.

A named reader reads a log on its own account, and has it kept while it does. It writes down
where it stands, for the length of a lease, and does so again before the lease ends. The log
keeps everything after that place. A lease that has expired holds nothing: the reader may find
its place still there, or gets `changelog.expired`, but never fewer rows.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass

import msgspec

from headrace.changelog.entries import FORMAT, Flush, Pruned
from headrace.changelog.position import Position
from headrace.changelog.reader import LogReader
from headrace.changelog.writer import LogWriter
from headrace.errors import BadPosition, ChangeLogError, PositionExpired
from headrace.storage.files import Files
from headrace.storage.killpoints import LOG_PRUNED, reach

# --- pruning --------------------------------------------------------------------------------------

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


class FileDeletion:
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


# --- named readers --------------------------------------------------------------------------------

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
_FORGOTTEN = 24 * 3600 * 1_000_000


class _Stored(msgspec.Struct, frozen=True):
    position: str
    until: int
    format: int = FORMAT
    baselines: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ReaderLease:
    """Where a named reader stands, and until when that counts."""

    name: str
    position: Position
    until: int
    """Microseconds since 1970."""

    baselines: tuple[int, ...] = ()
    """Those whose rows it has not read to the end."""


class NamedReader:
    """One reader's lease; *durable* on return of each call. For one thread."""

    def __init__(
        self, files: Files, source: str, name: str, seconds: float, clock: Callable[[], float]
    ) -> None:
        """`files` is the data directory, `seconds` the lease, `clock` tells seconds since 1970."""
        if NAME.fullmatch(name) is None:
            raise ChangeLogError(
                "A reader's name has letters, digits, dots, dashes and underscores", name=name
            )
        self._files = files.within(f"log/{source}/readers")
        self._source = source
        self._name = name
        self._seconds = seconds
        self._clock = clock

    def hold(self, at: Position, log: LogReader, baselines: Collection[int] = ()) -> None:
        """
        Have everything after `at` kept from now on, until the lease is over or the next call.

        So are these baselines, whether they are the newest or not.

        `PositionExpired` where it is not there any more.
        """
        until = int((self._clock() + self._seconds) * 1_000_000)
        stored = _Stored(str(at), until, baselines=tuple(sorted(baselines)))
        self._files.make_folder("")
        self._files.put(f"{self._name}.json", msgspec.json.encode(stored))
        # After it is written: whoever decided before that may have dropped it meanwhile.
        log.refresh()
        if at < log.floor:
            self.release()
            raise PositionExpired(
                "The log does not reach back so far",
                source=self._source,
                reader=self._name,
                asked=at,
                kept_after=log.floor,
            )

    def release(self) -> None:
        """Let go; a second time does nothing."""
        with suppress(FileNotFoundError):
            self._files.remove(f"{self._name}.json")


def leases(files: Files, source: str, now: float) -> list[ReaderLease]:
    """Return the leases that count now; those that are long over are removed."""
    inside = files.within(f"log/{source}/readers")
    time = int(now * 1_000_000)
    found = []
    for name in inside.list(""):
        if not name.endswith(".json"):
            continue
        try:
            stored = msgspec.json.decode(inside.read(name), type=_Stored)
            position = Position.parse(stored.position)
        except (FileNotFoundError, msgspec.DecodeError, BadPosition):
            continue  # released meanwhile; or nobody can say what it was
        if stored.until > time:
            found.append(
                ReaderLease(name.removesuffix(".json"), position, stored.until, stored.baselines)
            )
        elif stored.until + _FORGOTTEN < time:
            with suppress(FileNotFoundError):
                inside.remove(name)
    return found
