"""
How a long-running command is ended: by a key, Ctrl-C, SIGTERM or SIGHUP.

`run`, `top`, `watch`, `sqlite` and `demo` all use `EndOnRequest`. Signals and keys wake one
`wait`, on the main thread, so nothing polls for them. `q` and signals request the end; other keys
are kept until the command asks for them. After the first request the command ends in an orderly
way. A second Ctrl-C ends it at once: it raises `KeyboardInterrupt`.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def interrupt() -> None:
    """Interrupt a command that blocks outside `wait`: use it as `on_end`."""
    raise KeyboardInterrupt


class EndOnRequest:
    """
    Listens for signals and, on a terminal, for keys; restores both on exit.

    `on_end` is called in the signal handler, once, for a command that does not `wait`.
    """

    def __init__(self, *, keys: bool = False, on_end: Callable[[], object] = lambda: None) -> None:
        self.asked = False
        """Whether the end was requested."""

        self._on_end = on_end
        self._pressed: set[str] = set()
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
            # One key at a time, and no echo, which would disturb the view; Ctrl-C still works.
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
        """Wait for `seconds`, or until a key is pressed; return whether to end."""
        until = time.monotonic() + seconds
        while not self.asked and not self._pressed:
            left = until - time.monotonic()
            if left <= 0:
                break
            watched = [self._awake] if self._keys is None else [self._awake, self._keys]
            ready = select.select(watched, [], [], left)[0]
            if self._keys in ready:
                self._read_key()
        return self.asked

    def pressed(self, key: str) -> bool:
        """Return whether the key was pressed since the last call."""
        found = key in self._pressed
        # All keys are cleared: one without a meaning must not keep `wait` from waiting.
        self._pressed.clear()
        return found

    def _read_key(self) -> None:
        assert self._keys is not None
        try:
            read = os.read(self._keys, 64)
        except OSError:
            read = b""
        if not read:
            # The terminal is gone; a descriptor at its end would be ready forever.
            self._keys = None
        elif not read.startswith(b"\x1b"):  # Arrows and the like are several bytes long.
            typed = read.decode(errors="replace").lower()
            self.asked = self.asked or "q" in typed
            self._pressed.update(typed)

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        if self.asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        if self.asked:
            return
        self.asked = True
        os.write(self._wake, b"!")
        self._on_end()
