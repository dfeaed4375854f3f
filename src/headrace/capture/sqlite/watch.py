"""
Noticing that somebody committed.

No notice of SQLite's own reaches another process, so this looks: `pragma data_version`
tells in a few microseconds whether another connection committed. It takes a read lock
for that, though, which outside WAL mode can get in a writer's way (R42). So a quiet
database is only watched from outside, by the file system's notices where there are any,
and by the files' times; the pragma is asked when these moved.

A notice comes when bytes are written, which is a moment before the commit is visible.
After one the pragma is therefore asked every millisecond for a while.
"""

from __future__ import annotations

import contextlib
import os
import select
import time
from collections.abc import Callable
from importlib import import_module
from types import ModuleType

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


class Watch:
    """Waits for commits of others; `wake` ends a wait from any thread."""

    def __init__(self, path: str, version: Callable[[], int]) -> None:
        self._paths = (path, f"{path}-wal")
        self._version = version
        self._seen = -1
        self._alert_until = 0.0
        self._asked = 0.0
        self._stamp: _Stamp = ()
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._reader, False)
        os.set_blocking(self._writer, False)
        self._poll = select.poll()
        self._poll.register(self._reader, select.POLLIN)
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
            if ready == self._reader:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._reader, 4096)
            elif self._notices is not None:
                self._notices.read(timeout=0)
                self._alert_until = time.monotonic() + ALERT_SECONDS

    def wake(self) -> None:
        """End a running wait, or the next one; safe from any thread, also after `close`."""
        with contextlib.suppress(OSError):
            os.write(self._writer, b"w")

    def close(self) -> None:
        """Let go of all descriptors."""
        if self._notices is not None:
            self._notices.close()
            self._notices = None
        reader, writer, self._reader, self._writer = self._reader, self._writer, -1, -1
        for descriptor in (reader, writer):
            with contextlib.suppress(OSError):
                os.close(descriptor)

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
