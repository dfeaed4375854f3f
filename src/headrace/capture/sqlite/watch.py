"""
The detection of commits by other processes, and the waits of a capture that has read everything.

SQLite does not notify other processes, so this polls: `pragma data_version` shows in a few
microseconds whether another connection has committed. It takes a read lock, though, which can
block a writer outside WAL mode (R42). So an idle database is only watched from outside, by the
file system's notifications if there are any, and by the files' timestamps; the pragma is run when
these have changed.

A notification arrives when bytes are written, a moment before the commit is visible. After one,
the pragma is therefore run every millisecond for a while.

What ends the wait of a capture: `FileWatch` watches the database's files and queries SQLite when
they have changed; `PollInterval` reads at a fixed interval; `External` reads when the application
asks for it. `Combined` is any of several. A run always begins by reading what is available.
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType
from typing import TypeAlias

from headrace.capture.waker import Waker
from headrace.errors import SourceRefused

# --- noticing a commit ----------------------------------------------------------------------------

inotify: ModuleType | None
try:
    inotify = import_module("inotify_simple")
except ImportError:  # not on this system: the files' timestamps are polled instead
    inotify = None

FAST_SECONDS = 0.001
SLOW_SECONDS = 0.010
NOTIFIED_SECONDS = 0.040
"""Intervals for polling an idle database; longer if notifications arrive as well."""

ALERT_SECONDS = 0.025
"""How long to poll every millisecond after any activity: long enough for a commit's fsync."""

DISTRUST_SECONDS = 1.0
"""The pragma is run at least this often, in case the files' timestamps are too coarse."""

_Stamp = tuple[tuple[int, int, int], ...]


class CommitWatch:
    """Waits for commits of other connections; `wake` ends a wait from any thread."""

    def __init__(self, path: str, version: Callable[[], int]) -> None:
        self._paths = (path, f"{path}-wal")
        self._version = version
        self._seen = -1
        self._alert_until = 0.0
        self._asked = 0.0
        self._stamp: _Stamp = ()
        self._waker = Waker()
        self._poll = select.poll()
        self._poll.register(self._waker.descriptor, select.POLLIN)
        self._notices = None
        self._watched: dict[str, int] = {}
        if inotify is not None:
            # If the system has no inotify instances left, the files are still polled.
            with contextlib.suppress(OSError):
                self._notices = inotify.INotify(nonblocking=True)
                self._poll.register(self._notices.fileno(), select.POLLIN)

    def moved(self) -> bool:
        """Whether another connection has committed since this last returned True."""
        now = time.monotonic()
        stamp = self._stamp_now()
        if stamp != self._stamp:
            self._stamp = stamp
            self._alert_until = now + ALERT_SECONDS
            self._follow(stamp)
        elif now > self._alert_until and now - self._asked < DISTRUST_SECONDS and self._seen >= 0:
            return False
        self._asked = now
        version = self._version()
        if version == self._seen:
            return False
        self._seen = version
        self._alert_until = now + ALERT_SECONDS
        return True

    def again(self) -> None:
        """Forget the last result of `moved`, because it could not be acted on."""
        self._seen = -1

    def wait(self, seconds: float) -> None:
        """Wait until something may have happened, or `wake` is called."""
        alert = time.monotonic() < self._alert_until
        quiet = NOTIFIED_SECONDS if self._watched else SLOW_SECONDS
        step = FAST_SECONDS if alert else quiet
        for ready, _ in self._poll.poll(max(0.0, min(seconds, step)) * 1000):
            if ready == self._waker.descriptor:
                self._waker.woken()
            elif self._notices is not None:
                self._notices.read(timeout=0)
                self._alert_until = time.monotonic() + ALERT_SECONDS

    def wake(self) -> None:
        """End a running wait, or the next one; safe from any thread, also after `close`."""
        self._waker.wake()

    def close(self) -> None:
        """Close all descriptors."""
        if self._notices is not None:
            self._notices.close()
            self._notices = None
        self._waker.close()

    def _stamp_now(self) -> _Stamp:
        found = []
        for path in self._paths:
            try:
                stat = os.stat(path)  # noqa: PTH116 - asked very often
            except OSError:
                found.append((0, 0, 0))
            else:
                found.append((stat.st_ino, stat.st_mtime_ns, stat.st_size))
        return tuple(found)

    def _follow(self, stamp: _Stamp) -> None:
        """Watch the files that exist now: the -wal file is created and removed at times."""
        if self._notices is None or inotify is None:
            return
        for path, (inode, _, _) in zip(self._paths, stamp, strict=True):
            if inode and self._watched.get(path) != inode:
                with contextlib.suppress(OSError):
                    # The files and not their folder: other files in it may change often.
                    self._notices.add_watch(path, inotify.flags.MODIFY)
                    self._watched[path] = inode


# --- what ends a wait -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FileWatch:
    """Read after another connection has committed, about a millisecond later."""


@dataclass(frozen=True, slots=True)
class PollInterval:
    """Read at a fixed interval."""

    seconds: float

    def __post_init__(self) -> None:
        if not self.seconds > 0:
            raise SourceRefused(
                "The interval must be longer than 0 seconds",
                seconds=self.seconds,
                remedy="Use a number of seconds above 0.",
            )


class External:
    """
    Read when `notify` is called, from any thread and any number of times.

    Several captures may share one: `notify` wakes them all.
    """

    def __init__(self) -> None:
        # Reentrant: a signal handler may call `notify`.
        self._lock = threading.RLock()
        self._listeners: tuple[Callable[[], None], ...] = ()

    def notify(self) -> None:
        """Let every running capture read; one that starts later reads by itself."""
        with self._lock:
            for listener in self._listeners:
                listener()

    def listen(self, listener: Callable[[], None]) -> None:
        """Call `listener` at every `notify` from now on."""
        with self._lock:
            self._listeners = (*self._listeners, listener)

    def leave(self, listener: Callable[[], None]) -> None:
        """Stop calling `listener`; when this returns, no call of it is running."""
        with self._lock:
            self._listeners = tuple(each for each in self._listeners if each != listener)


class Combined:
    """Read when any of its parts would."""

    def __init__(self, *wakes: Wake) -> None:
        if not wakes:
            raise SourceRefused(
                "Combined() is empty, so nothing would wake this capture",
                remedy="Pass at least one of FileWatch, Interval and External.",
            )
        self.wakes = wakes


Wake: TypeAlias = FileWatch | PollInterval | External | Combined

DEFAULT = Combined(FileWatch(), PollInterval(0.25))


class Waiter:
    """Waits as a `Wake` says; any thread or signal handler can end a wait with `ring`."""

    def __init__(self, wake: Wake, path: str, version: Callable[[], int]) -> None:
        parts = list(_parts(wake))
        watched = any(isinstance(part, FileWatch) for part in parts)
        self._watch = CommitWatch(path, version) if watched else None
        self._sleep: CommitWatch | Waker = self._watch or Waker()
        seconds = [part.seconds for part in parts if isinstance(part, PollInterval)]
        self._every = min(seconds, default=None)
        self._next = 0.0
        self._externals = [part for part in parts if isinstance(part, External)]
        self._notified = False
        self._again = True  # a run begins by reading what is available
        for external in self._externals:
            external.listen(self._on_notify)

    def due(self) -> bool:
        """Whether to read now; true once for each occasion."""
        # All of them are checked, so that one commit does not count twice. A `notify` while the
        # flag is cleared is not lost: what it is about is read after this.
        notified = self._notified
        if notified:
            self._notified = False
        moved = self._watch is not None and self._watch.moved()
        again, self._again = self._again, False
        now = time.monotonic()
        passed = self._every is not None and now >= self._next
        if again or moved or passed or notified:
            self._next = now + (self._every or 0.0)
            return True
        return False

    def again(self) -> None:
        """Let the next `due` return True, because the last one could not be acted on."""
        self._again = True
        if self._watch is not None:
            self._watch.again()

    def wait(self, most: float) -> None:
        """Wait until something may have happened, `ring` is called, or `most` seconds pass."""
        if self._every is not None:
            most = min(most, self._next - time.monotonic())
        self.pause(most)

    def pause(self, seconds: float) -> None:
        """Wait for about this long; `ring` ends the wait."""
        self._sleep.wait(seconds)

    def _on_notify(self) -> None:
        self._notified = True
        self.ring()

    def ring(self) -> None:
        """End a running wait, or the next one."""
        self._sleep.wake()

    def close(self) -> None:
        """Close all descriptors."""
        for external in self._externals:
            external.leave(self._on_notify)
        self._sleep.close()


def _parts(wake: Wake) -> Iterator[FileWatch | PollInterval | External]:
    if isinstance(wake, Combined):
        for each in wake.wakes:
            yield from _parts(each)
    else:
        yield wake
