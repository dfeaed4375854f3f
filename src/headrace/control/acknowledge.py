"""
How far the source may forget (R8, invariant 1).

Acknowledged = min(log synced, watermark of every pipeline). It is computed here and
nowhere else, from values alone, so that the formula can be tested and simulated.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from headrace.changelog.position import Position


@dataclass(frozen=True, slots=True)
class Watermark:
    """What one pipeline still needs the source to keep."""

    durable: bool
    """A volatile target is rebuilt from the log: it needs nothing of the source."""

    settled: Position
    """
    Up to here everything is durable at the target; where no change of the pipeline's
    tables follows, the end of the log.
    """

    loading_from: Position | None = None
    """The lowest F of its running baselines."""

    set_aside: bool = False

    def upto(self, log_end: Position) -> Position:
        """Return the position the source may forget for this pipeline."""
        bounds = [log_end]
        if self.durable:
            bounds.append(self.settled)
        if self.loading_from is not None:
            bounds.append(self.loading_from)
        return min(bounds)


def acknowledged(
    log_end: Position, watermarks: Iterable[Watermark], before: Position | None
) -> Position:
    """Return the position to acknowledge; never earlier than `before`."""
    needed = [mark.upto(log_end) for mark in watermarks if not mark.set_aside]
    upto = min([log_end, *needed])
    # A pipeline that joins late stands behind what was already told: that is not taken back.
    return upto if before is None else max(upto, before)
