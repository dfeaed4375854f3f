"""
The choice of the pipeline that gives way when a source runs out of room for what it holds (R28).

A source that holds too much for us drops our place, and then every pipeline requires a baseline.
Before it comes to that, the pipeline that holds it back most is released (`SetAside`): it alone
requires one. All of this is computed from values, so that it can be tested and simulated.

A released pipeline (`PipelineRelease`) holds nothing at its source any more, until it is exact
again. The release is stored first, and from then on nothing is kept for the pipeline, whatever it
is doing: one that hangs, failed or is paused is exactly the one that this is for. Its own next step
then puts its tables back. An engine that ends in between leaves that to its next life.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping

from headrace.capture.source import Room
from headrace.changelog.position import Position
from headrace.errors import SetAside
from headrace.runtime.model import Watermark
from headrace.runtime.store import ProgressStore

# --- the choice -----------------------------------------------------------------------------------

FULL = 0.8
"""From this share of the limit on, somebody gives way."""

WORTH = 0.25
"""
The share of what is held that has to be ours.

Less is under way in any pipeline that works as it should, and letting go of it gains nothing.
"""

LOG = "the log"
SERVER = "the server"
"""What holds the source back, where no pipeline does; these are no names of pipelines."""


def is_full(room: Room) -> bool:
    """Whether so much is held that somebody has to give way."""
    return room.limit is not None and room.used >= FULL * room.limit


def to_release(room: Room, end: Position, marks: Mapping[str, Watermark]) -> str | None:
    """
    Return the pipeline that is to give way now, if one is; `end` is the end of the log.

    It is the one with the lowest pin, and nobody where it would not help: what the log has
    not taken yet, and what the source keeps for transactions of its own, is not made less
    by a pipeline that gives way.
    """
    return _lowest(end, marks) if is_full(room) and _is_ours(room) else None


def pinned_by(room: Room, end: Position, marks: Mapping[str, Watermark]) -> str:
    """Return what the source holds the greater part for: a pipeline's name, or who else."""
    if _is_ours(room):
        return _lowest(end, marks) or LOG
    if room.oldest:
        return room.oldest
    return LOG if 2 * room.unacknowledged > room.used else SERVER


def _is_ours(room: Room) -> bool:
    return room.ours > 0 and room.ours >= WORTH * room.used


def _lowest(end: Position, marks: Mapping[str, Watermark]) -> str | None:
    """Return whose pin is the lowest, if it is below what could be acknowledged without."""
    pins = {
        name: pin
        for name, mark in marks.items()
        if not mark.set_aside and (pin := mark.upto(end)) < end
    }
    return min(pins, key=lambda name: (pins[name], name), default=None)


# --- a released pipeline --------------------------------------------------------------------------


class PipelineRelease:
    """Whether one pipeline was set aside, and why. Safe to call from several threads."""

    def __init__(self, pipeline: str, store: ProgressStore) -> None:
        self.why: SetAside | None = None
        self.owing = False
        """Whether its tables have not been put back yet."""

        self._pipeline = pipeline
        self._store = store
        self._lock = threading.Lock()

    def open(self) -> None:
        """Find what a life before this one left."""
        found = self._store.set_aside(self._pipeline)
        if found is not None:
            facts, taken = found
            self.why, self.owing = self._error(facts), not taken

    def begin(self, facts: dict[str, object]) -> None:
        """Set it aside, from now on."""
        with self._lock:
            self._store.note_set_aside(self._pipeline, facts, taken=False)
            self.why, self.owing = self._error(facts), True

    def taken(self) -> None:
        """Note that its tables were put back."""
        with self._lock:
            if self.owing and self.why is not None:
                self._store.note_set_aside(self._pipeline, self.why.facts, taken=True)
                self.owing = False

    def end(self) -> None:
        """Note that it is exact again, and holds the source back as others do."""
        with self._lock:
            if self.why is not None and not self.owing:
                self._store.forget_set_aside(self._pipeline)
                self.why = None

    def _error(self, facts: dict[str, object]) -> SetAside:
        message = "Set aside, so that the source has room and keeps our place"
        return SetAside(message, remedy=SetAside.remedy, **facts)
