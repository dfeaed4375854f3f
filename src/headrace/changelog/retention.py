"""
Retention of the log: pruning what no reader needs, and the leases of named readers (R27).

Pruning first writes an entry, synced: from then on no reader begins in the pruned part. The
files are deleted a lease later, so that every reader that was using them has finished, and with
them the oldest entries of the index, once two states replace them.

A named reader reads a log independently of the engine, and keeps it from being pruned. It writes
its position for the length of a lease, and renews it before the lease ends. The log keeps
everything after that position. An expired lease holds nothing: the reader may find its position
still there, or gets `changelog.expired`, but never fewer rows.
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
"""Files deleted at a time: this takes about as long as a flush."""

MOST_OBJECTS = 200
MOST_ENTRIES = 20
"""The same in a bucket, where each needs a request: segments go together, entries one by one."""


def prune(
    log: LogWriter,
    upto: Position,
    baselines: Collection[int] = (),
    known_entry: int | None = None,
) -> Pruned | None:
    """
    Drop all flushes that end at or before `upto`, and these baselines.

    A baseline that is the newest of its table, and usable after that, stays. Baselines of
    entries later than `known_entry` keep every change after their F: they were not known when
    `upto` was decided. None if there is nothing to drop.
    """
    history = log.history
    if upto > history.end:
        raise ChangeLogError("Cannot prune beyond the end of the log", upto=upto, end=history.end)
    text = str(upto)
    for known in history.tables.values():
        usable = known.baseline
        if known_entry is not None and usable is not None and usable.entry > known_entry:
            text = min(text, usable.first)
    # The newest step stays, with all that end at the same position: it has the position from
    # which the source is read.
    lasts = history.lasts
    count = min(bisect_right(lasts, text), bisect_left(lasts, lasts[-1])) if lasts else 0
    # Without changes among them there is nothing to gain: an idle source leaves no entries (R34).
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
    """Deletes dropped files, a lease later. Belongs to one writer of a log."""

    def __init__(self, log: LogWriter) -> None:
        self._log = log
        # The age of states from before is unknown, so they count from now.
        self._states = dict.fromkeys(log.index.states, log.stamp)

    def delete(self, lease: float) -> bool:
        """Delete some of what is due; return whether there is more."""
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
    """The position of a named reader, and until when it is kept."""

    name: str
    position: Position
    until: int
    """Microseconds since 1970."""

    baselines: tuple[int, ...] = ()
    """The baselines that it has not read to the end."""


class NamedReader:
    """One reader's lease; *durable* on return of each call. For one thread."""

    def __init__(
        self, files: Files, source: str, name: str, seconds: float, clock: Callable[[], float]
    ) -> None:
        """`files` is the data directory, `seconds` the lease; `clock` returns Unix time."""
        if NAME.fullmatch(name) is None:
            raise ChangeLogError(
                "A reader's name must match [A-Za-z0-9][A-Za-z0-9_.-]* and have at most"
                " 100 characters",
                name=name,
            )
        self._files = files.within(f"log/{source}/readers")
        self._source = source
        self._name = name
        self._seconds = seconds
        self._clock = clock

    def hold(self, at: Position, log: LogReader, baselines: Collection[int] = ()) -> None:
        """
        Keep everything after `at` from now on, until the lease ends or the next call.

        These baselines are kept as well, whether they are the newest or not.

        Raises `PositionExpired` if `at` is not in the log any more.
        """
        until = int((self._clock() + self._seconds) * 1_000_000)
        stored = _Stored(str(at), until, baselines=tuple(sorted(baselines)))
        self._files.make_folder("")
        self._files.put(f"{self._name}.json", msgspec.json.encode(stored))
        # After it is written: a pruning decided before may have dropped it in the meantime.
        log.refresh()
        if at < log.floor:
            self.release()
            raise PositionExpired(
                "The log does not reach back to this position",
                source=self._source,
                reader=self._name,
                asked=at,
                kept_after=log.floor,
            )

    def release(self) -> None:
        """Give up the lease; safe to call again."""
        with suppress(FileNotFoundError):
            self._files.remove(f"{self._name}.json")


def leases(files: Files, source: str, now: float) -> list[ReaderLease]:
    """Return the current leases; remove those that expired long ago."""
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
            continue  # released in the meantime, or unreadable
        if stored.until > time:
            found.append(
                ReaderLease(name.removesuffix(".json"), position, stored.until, stored.baselines)
            )
        elif stored.until + _FORGOTTEN < time:
            with suppress(FileNotFoundError):
                inside.remove(name)
    return found
