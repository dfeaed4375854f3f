"""Ends of processes: looked for, killed, and gone in the end."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

from tests.rounds import processes
from tests.rounds.line import END_SECONDS, Line
from tests.rounds.outcome import RoundFailed

_PAUSE = 0.005


def kill(pid: int) -> bool:
    """Kill a process; False where it is gone already."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def until(look: Callable[[], object], seconds: float) -> bool:
    """Look again and again until there is something; False where there never was."""
    end = time.monotonic() + seconds
    while not (found := look()) and time.monotonic() < end:
        time.sleep(_PAUSE)
    return bool(found)


def nobody_left(mark: str) -> None:
    """Raise where processes of a round outlive its engine."""
    if left := processes.gone(mark, END_SECONDS):
        raise RoundFailed(f"processes are left: {left}")


def end_all(line: Line | None, mark: str) -> None:
    """Kill what a round has left, however it ended."""
    if line is not None:
        line.kill()
    for pid in processes.marked(mark):
        kill(pid)
