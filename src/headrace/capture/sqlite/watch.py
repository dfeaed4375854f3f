"""
The detection of commits by other processes, and the waits of a capture that has read everything.

No notice of SQLite's own reaches another process, so this looks: `pragma data_version`
shows in a few microseconds whether another connection committed. It takes a read lock
for that, though, which outside WAL mode can get in a writer's way (R42). So a quiet
database is only watched from outside, by the file system's notices where there are any,
and by the files' times; the pragma is asked when these moved.

A notice comes when bytes are written, which is a moment before the commit is visible.
After one the pragma is therefore asked every millisecond for a while.

What ends the wait of a capture: `FileWatch` looks at the database's files and asks SQLite when
they moved; `PollInterval` reads every so often, whatever happened; `External` reads when the
application asks for it. `Combined` is any of several. A run begins with reading what is there,
whichever of these it has.
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
except ImportError:  # not on this system: the files' times are looked at instead
    inotify = None

FAST_SECONDS = 0.001
SLOW_SECONDS = 0.010
NOTIFIED_SECONDS = 0.040
"""How often a quiet database is looked at; less often where notices come as well."""

ALERT_SECONDS = 0.025
"""How long after a sign of life every millisecond is looked at: a commit's fsync lies within."""

DISTRUST_SECONDS = 1.0
"""The pragma is asked this often, whatever the files' times say: a clock may be coarse."""

_Stamp = tuple[tuple[int, int, int], ...]


class CommitWatch:
    """Waits for commits of others; `wake` ends a wait from any thread."""

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
            # Out of watches or instances is no reason to fail: the look at the files remains.
            with contextlib.suppress(OSError):
                self._notices = inotify.INotify(nonblocking=True)
                self._poll.register(self._notices.fileno(), select.POLLIN)

    def moved(self) -> bool:
        """Whether somebody committed since the last time this said so."""
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
        """Forget the last answer of `moved`: it could not be acted upon."""
        self._seen = -1

    @property
    def inode(self) -> int:
        """The file that stood at the path when it was last looked at; 0 where there was none."""
        return self._stamp[0][0] if self._stamp else 0

    def wait(self, seconds: float) -> None:
        """Wait until something may have happened, or somebody calls `wake`."""
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
        """Let go of all descriptors."""
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
        """Watch the files that stand there now: the -wal file comes and goes."""
        if self._notices is None or inotify is None:
            return
        for path, (inode, _, _) in zip(self._paths, stamp, strict=True):
            if inode and self._watched.get(path) != inode:
                with contextlib.suppress(OSError):
                    # Files, not their folder: other files in it may be very busy.
                    self._notices.add_watch(path, inotify.flags.MODIFY)
                    self._watched[path] = inode


# --- what ends a wait -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FileWatch:
    """Read when somebody committed: about a millisecond later."""


@dataclass(frozen=True, slots=True)
class PollInterval:
    """Read every so many seconds."""

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
                "Combined() is empty, so nothing would wake this capture",
                remedy="Pass at least one of FileWatch, Interval and External.",
            )
        self.wakes = wakes


Wake: TypeAlias = FileWatch | PollInterval | External | Combined

DEFAULT = Combined(FileWatch(), PollInterval(0.25))


class Waiter:
    """Waits for what a `Wake` names; `ring` ends a wait from any thread, and in signal handlers."""

    def __init__(self, wake: Wake, path: str, version: Callable[[], int]) -> None:
        parts = list(_parts(wake))
        watched = any(isinstance(part, FileWatch) for part in parts)
        self._watch = CommitWatch(path, version) if watched else None
        self._sleep: CommitWatch | Waker = self._watch or Waker()
        seconds = [part.seconds for part in parts if isinstance(part, PollInterval)]
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
        self._sleep.wait(seconds)

    def _notified(self) -> None:
        self._told = True
        self.ring()

    def ring(self) -> None:
        """End a running wait, or the next one."""
        self._sleep.wake()

    def close(self) -> None:
        """Let go of all descriptors."""
        for external in self._externals:
            external.leave(self._notified)
        self._sleep.close()


def _parts(wake: Wake) -> Iterator[FileWatch | PollInterval | External]:
    if isinstance(wake, Combined):
        for each in wake.wakes:
            yield from _parts(each)
    else:
        yield wake
