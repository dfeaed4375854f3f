"""Killing the recorder, to see it come back."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.control.info import SourceInfo

KEY = "k"


class Kills:
    """Kills a source's recorder when asked, and says when another one records."""

    def __init__(self) -> None:
        self.healed: list[float | None] = []
        """For each kill, seconds until changes were recorded again; None until then."""

        self._killed: tuple[float, int] | None = None
        """When it was killed last, and how often it had been started again before."""

    def kill(self, source: SourceInfo, now: float) -> str | None:
        """Kill the recorder as nothing else does: at once, and without a word to it."""
        pid = source.recorder_pid
        # Between two recorders there is nobody to kill; and never ourselves.
        if pid is None or pid == os.getpid() or self._killed is not None:
            return None
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        self._killed = (now, source.restarts)
        self.healed.append(None)
        return f"recorder killed: process {pid}, SIGKILL"

    def look(self, source: SourceInfo, now: float) -> str | None:
        """Return what to tell when the recorder is back."""
        if self._killed is None:
            return None
        at, restarts = self._killed
        if source.restarts <= restarts or source.state != "streaming":
            return None
        self._killed = None
        self.healed[-1] = now - at
        return f"recorder is back after {now - at:.1f} s, on from the log's end"
