"""
When the demo is asked to end: `q`, Ctrl-C, or a polite signal.

All of them wake one `wait`, on the main thread, so nothing polls for keys. The first
request ends the demo in order, with its comparison; a second Ctrl-C is meant seriously
and raises `KeyboardInterrupt`.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from types import FrameType, TracebackType
from typing import Any, Protocol

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Ending(Protocol):
    """Tells whether somebody asked for the end."""

    @property
    def asked(self) -> bool: ...

    def wait(self, seconds: float) -> bool:
        """Return whether the end was asked for, at once or within `seconds`."""
        ...


class EndOnRequest:
    """Listens for signals and, on a terminal, for `q`; puts everything back when left."""

    def __init__(self, *, keys: bool) -> None:
        self.asked = False
        self._keys = sys.stdin.fileno() if keys else None
        self._terminal: list[Any] | None = None
        self._handlers: dict[int, Any] = {}
        self._awake, self._wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def __enter__(self) -> EndOnRequest:
        for number in SIGNALS:
            self._handlers[number] = signal.signal(number, self._on_signal)
        if self._keys is not None:
            import termios
            import tty

            self._terminal = termios.tcgetattr(self._keys)
            # One key at a time and no echo, which would tear the picture; Ctrl-C still works.
            tty.setcbreak(self._keys)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._keys is not None and self._terminal is not None:
            import termios

            termios.tcsetattr(self._keys, termios.TCSADRAIN, self._terminal)
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        os.close(self._awake)
        os.close(self._wake)

    def wait(self, seconds: float) -> bool:
        """Return whether the end was asked for, at once or within `seconds`."""
        until = time.monotonic() + seconds
        while not self.asked:
            left = until - time.monotonic()
            if left <= 0:
                break
            watched = [self._awake] if self._keys is None else [self._awake, self._keys]
            ready = select.select(watched, [], [], left)[0]
            if self._keys in ready:
                self._read_key()
        return self.asked

    def _read_key(self) -> None:
        assert self._keys is not None
        pressed = os.read(self._keys, 64)
        if not pressed:
            # The terminal went away; a descriptor at its end would be ready for ever.
            self._keys = None
        elif pressed.lower().startswith(b"q"):
            self.asked = True

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        if self.asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.asked = True
        os.write(self._wake, b"!")
