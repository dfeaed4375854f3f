"""
What ends the wait of a capture that has read everything.

`FileWatch` looks at the database's files and asks SQLite when they moved; `Interval` reads
every so often, whatever happened; `External` reads when somebody says so. `Combined` is any of
several. A run begins with reading what is there, whichever of these it has.
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from headrace.capture.sqlite.watch import Watch
from headrace.errors import SourceRefused


@dataclass(frozen=True, slots=True)
class FileWatch:
    """Read when somebody committed: about a millisecond later."""


@dataclass(frozen=True, slots=True)
class Interval:
    """Read every so many seconds."""

    seconds: float

    def __post_init__(self) -> None:
        if not self.seconds > 0:
            raise SourceRefused(
                "An interval must be longer than nothing",
                seconds=self.seconds,
                remedy="Give a number of seconds above 0.",
            )


class External:
    """
    Read when `notify` is called: from any thread, as often as one likes.

    Several captures may have the same one: a notice wakes them all.
    """

    def __init__(self) -> None:
        # One that its owner may take again: a signal handler may notify.
        self._lock = threading.RLock()
        self._listeners: tuple[Callable[[], None], ...] = ()

    def notify(self) -> None:
        """Let every capture read whose run has begun; one that begins reads by itself."""
        with self._lock:
            for told in self._listeners:
                told()

    def listen(self, told: Callable[[], None]) -> None:
        """Call `told` at every notice from now on."""
        with self._lock:
            self._listeners = (*self._listeners, told)

    def leave(self, told: Callable[[], None]) -> None:
        """Call `told` no more; when this returns, no call is under way."""
        with self._lock:
            self._listeners = tuple(each for each in self._listeners if each != told)


class Combined:
    """Read when any of these says so."""

    def __init__(self, *wakes: Wake) -> None:
        if not wakes:
            raise SourceRefused(
                "Nothing would ever wake this capture",
                remedy="Combine at least one of FileWatch, Interval and External.",
            )
        self.wakes = wakes


Wake: TypeAlias = FileWatch | Interval | External | Combined

DEFAULT = Combined(FileWatch(), Interval(0.25))


class Waiting:
    """Waits for what a `Wake` names; `ring` ends a wait from any thread, and in signal handlers."""

    def __init__(self, wake: Wake, path: str, version: Callable[[], int]) -> None:
        parts = list(_parts(wake))
        watched = any(isinstance(part, FileWatch) for part in parts)
        self._watch = Watch(path, version) if watched else None
        self._bell = None if watched else _Bell()
        seconds = [part.seconds for part in parts if isinstance(part, Interval)]
        self._every = min(seconds, default=None)
        self._next = 0.0
        self._externals = [part for part in parts if isinstance(part, External)]
        self._told = False
        self._again = True  # what is there when a run begins is read without being told
        for external in self._externals:
            external.listen(self._notified)

    def due(self) -> bool:
        """Whether to read now; it says so once."""
        # Every one of them is asked, so that one occasion is not two. A notice that comes while
        # the last one is forgotten is not lost: what it is about is read after this.
        told = self._told
        if told:
            self._told = False
        moved = self._watch is not None and self._watch.moved()
        again, self._again = self._again, False
        now = time.monotonic()
        passed = self._every is not None and now >= self._next
        if again or moved or passed or told:
            self._next = now + (self._every or 0.0)
            return True
        return False

    def again(self) -> None:
        """Let the next `due` be true: what the last one said could not be acted upon."""
        self._again = True
        if self._watch is not None:
            self._watch.again()

    def wait(self, most: float) -> None:
        """Wait until something may have happened, `ring` is called, or the seconds are over."""
        if self._every is not None:
            most = min(most, self._next - time.monotonic())
        self.pause(most)

    def pause(self, seconds: float) -> None:
        """Wait for a moment, about so long; `ring` ends it."""
        if self._watch is not None:
            self._watch.wait(seconds)
        elif self._bell is not None:
            self._bell.wait(seconds)

    def _notified(self) -> None:
        self._told = True
        self.ring()

    def ring(self) -> None:
        """End a running wait, or the next one."""
        if self._watch is not None:
            self._watch.wake()
        elif self._bell is not None:
            self._bell.ring()

    def close(self) -> None:
        """Let go of all descriptors."""
        for external in self._externals:
            external.leave(self._notified)
        if self._watch is not None:
            self._watch.close()
        elif self._bell is not None:
            self._bell.close()


class _Bell:
    """A pipe: unlike an event of `threading` it may be rung from a signal handler."""

    def __init__(self) -> None:
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._reader, False)
        os.set_blocking(self._writer, False)
        self._poll = select.poll()
        self._poll.register(self._reader, select.POLLIN)

    def ring(self) -> None:
        with contextlib.suppress(OSError):
            os.write(self._writer, b"w")

    def wait(self, seconds: float) -> None:
        if self._poll.poll(max(0.0, seconds) * 1000):
            with contextlib.suppress(BlockingIOError):
                os.read(self._reader, 4096)

    def close(self) -> None:
        reader, writer, self._reader, self._writer = self._reader, self._writer, -1, -1
        for descriptor in (reader, writer):
            os.close(descriptor)


def _parts(wake: Wake) -> Iterator[FileWatch | Interval | External]:
    if isinstance(wake, Combined):
        for each in wake.wakes:
            yield from _parts(each)
    else:
        yield wake
