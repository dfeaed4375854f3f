"""A wait that can be ended from another thread or from a signal handler."""

from __future__ import annotations

import contextlib
import os
import select
import threading


class Waker:
    """
    A descriptor that becomes readable when it is woken.

    It is a pipe: unlike a `threading.Event`, it can be polled together with other descriptors.
    *Threads*: `wake` may be called from any thread, in a signal handler, and after `close`.
    """

    def __init__(self) -> None:
        self.descriptor, self._writer = os.pipe()
        os.set_blocking(self.descriptor, False)
        os.set_blocking(self._writer, False)
        self._poll = select.poll()
        self._poll.register(self.descriptor, select.POLLIN)
        # The number of a descriptor is reused as soon as it is closed. Reentrant: a signal handler
        # may call `wake` while the thread that it interrupts is in `wake`, too.
        self._lock = threading.RLock()
        self._closed = False

    def wake(self) -> None:
        """End a running wait, or the next one."""
        with self._lock, contextlib.suppress(OSError):
            if not self._closed:
                os.write(self._writer, b"w")

    def woken(self) -> bool:
        """Whether `wake` was called since the last call of this method."""
        try:
            return not self._closed and bool(os.read(self.descriptor, 4096))
        except BlockingIOError:
            return False

    def rest(self, seconds: float) -> None:
        """Sleep until `wake` is called, or not at all if it was; `woken` is still true then."""
        if seconds > 0:
            self._poll.poll(seconds * 1000)

    def wait(self, seconds: float) -> None:
        """Sleep until `wake` is called, or not at all if it was; then `woken` is false again."""
        self.rest(seconds)
        self.woken()

    def close(self) -> None:
        """Close the descriptor; may be called again."""
        with self._lock:
            if not self._closed:
                self._closed = True
                os.close(self.descriptor)
                os.close(self._writer)
