"""
Sees to it that a source keeps our place: looks at its room whenever it was measured (R28).

One pipeline at a time gives way, and the source has time to show what that brought before
the next one does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from headrace.capture.source import Room
from headrace.control.acknowledge import Watermark
from headrace.control.recording import Recording
from headrace.control.room import is_full, pinned_by, to_set_aside
from headrace.control.run import PipelineRun
from headrace.errors import HeadraceError
from headrace.observe.logs import logger

PATIENCE = 1
"""Measurements not acted upon after one gave way: they may have been made before it had effect."""

_log = logger(__name__)


class Guard:
    """Guards one source. Called on the recorder's reader thread, once a measurement."""

    def __init__(
        self,
        recording: Recording,
        runs: Sequence[PipelineRun],
        wake: Callable[[PipelineRun], None],
        acknowledge: Callable[[], None],
    ) -> None:
        """`runs` are those of this source."""
        self._recording = recording
        self._runs = {run.name: run for run in runs}
        self._wake = wake
        self._acknowledge = acknowledge
        self._patience = 0
        self._warned = False

    def pins(self) -> Mapping[str, Watermark]:
        """Return what each pipeline still needs the source to keep."""
        return {name: run.watermark() for name, run in self._runs.items()}

    def look(self, room: Room) -> None:
        """Take a new measurement."""
        marks, end = self.pins(), self._recording.log.end
        self._warn(room, pinned_by(room, end, marks))
        name = None if self._patience else to_set_aside(room, end, marks)
        self._patience = max(0, self._patience - 1)
        if name is None:
            # Pipelines do this whenever they are idle; all of them may hang, one of them aside.
            self._acknowledge()
            return
        facts = {"source": self._recording.name, "used": room.used, "limit": room.limit}
        try:
            self._runs[name].set_aside(**facts)
            self._acknowledge()
        except HeadraceError as error:
            # Not raised: it would end the thread that listens to the recorder. The next
            # measurement tries again.
            _log.error("pipeline cannot be set aside", pipeline=name, code=error.code)
            return
        self._patience = PATIENCE
        self._wake(self._runs[name])
        _log.warning("pipeline set aside", pipeline=name, **facts)

    def _warn(self, room: Room, held_by: str) -> None:
        if is_full(room) and not self._warned:
            _log.warning(
                "source runs out of room",
                source=self._recording.name,
                used=room.used,
                limit=room.limit,
                pinned_by=held_by,
            )
        self._warned = is_full(room)
