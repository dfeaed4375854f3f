"""The loop around a recorder: the same in a process of its own and on a thread."""

from __future__ import annotations

import queue
from collections.abc import Callable

from headrace.capture.recorder import Recorder
from headrace.capture.wire import Acknowledge, Command, FlushNow, Report, Reset, Stop, Tend

WAIT_SECONDS = 1.0
"""How long one step may wait for changes; commands end the wait early."""


class Inbox:
    """Commands on their way to a recorder; put by any thread, and by signal handlers."""

    def __init__(self) -> None:
        # Unlike other queues, this one may be put to from within its own `get`.
        self._queue: queue.SimpleQueue[Command | None] = queue.SimpleQueue()
        self.closed = False
        self._pressing = False

    @property
    def pressing(self) -> bool:
        """Whether something is in here that must not wait for others at the source."""
        return self._pressing or self.closed

    def put(self, command: Command) -> None:
        """Add a command."""
        self._queue.put(command)
        # After it: set before, a `take` in between would unset it and leave the command.
        if isinstance(command, Stop | Reset):
            self._pressing = True

    def close(self) -> None:
        """Nobody is left to command or to report to: the loop ends at once."""
        self.closed = True
        self._queue.put(None)

    def take(self, seconds: float) -> list[Command]:
        """Return what has come, after waiting up to `seconds` for the first."""
        taken: list[Command | None] = []
        self._pressing = False
        try:
            taken.append(self._queue.get(timeout=seconds) if seconds > 0 else None)
            while True:
                taken.append(self._queue.get_nowait())
        except queue.Empty:
            pass
        return _latest([command for command in taken if command is not None])


def _latest(commands: list[Command]) -> list[Command]:
    """Leave out what a later command of the same kind says again."""
    seen: set[type] = set()
    kept = []
    for command in reversed(commands):
        if isinstance(command, FlushNow | Acknowledge | Tend):
            if type(command) in seen:
                continue
            seen.add(type(command))
        kept.append(command)
    return kept[::-1]


def run(recorder: Recorder, inbox: Inbox, report: Callable[[Report], object]) -> None:
    """Step until the recorder is done or nobody is left."""
    recorder.tell, recorder.pressed = report, lambda: inbox.pressing
    while not recorder.done and not inbox.closed:
        for said in recorder.step(inbox.take(recorder.rest), WAIT_SECONDS):
            report(said)
