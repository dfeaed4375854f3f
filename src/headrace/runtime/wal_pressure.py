"""
The choice of the pipeline to release when a source runs out of space for retained data (R28), and
the limit of a single pipeline's lag (R29).

A source that retains too much for us drops our position, and then every pipeline needs a new
baseline. Before that happens, the pipeline with the lowest position is released (`SetAside`): only
this one needs a new baseline. All of this is computed from values, so that it can be tested and
simulated.

For a released pipeline (`PipelineRelease`) the source retains nothing, until its tables are exact
again. The release is stored first and takes effect at once, whatever the pipeline is doing: it is
meant for pipelines that hang, have failed or are paused. The pipeline's next step then resets its
tables. If the engine stops in between, the next run does that.

`LagWatch` compares a pipeline's lag with its limit. There is no queue for each pipeline: the lag is
what the log has after the pipeline's position. After a start, or a resume, a pipeline may catch up
first: what it lags behind then does not count until it is caught up.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.capture.source import Room
from headrace.changelog.position import Position
from headrace.changelog.reader import LogReader
from headrace.errors import SetAside
from headrace.pipeline.definition import LagLimit
from headrace.runtime.model import Watermark
from headrace.runtime.store import ProgressStore

# --- the choice -----------------------------------------------------------------------------------

WARN = 0.7
"""From this share of the limit on, a notice says what the source retains data for."""

CALM = 0.6
"""Below this share, the next crossing is another notice: amounts go up and down all the time."""

FULL = 0.9
"""From this share of the limit on, a pipeline is released."""

WORTH = 0.25
"""
The share of the retained data that must be ours.

A healthy pipeline has less than this in progress, and releasing it would gain nothing.
"""

LOG = "the log"
SERVER = "the server"
"""What the source retains data for, if not a pipeline; these are not names of pipelines."""


def is_tight(used: int, limit: int | None, *, before: bool) -> bool:
    """Whether enough is used for a notice; `before` is the last answer."""
    return limit is not None and used >= (CALM if before else WARN) * limit


def is_full(room: Room) -> bool:
    """Whether so much is retained that a pipeline has to be released."""
    return room.limit is not None and room.used >= FULL * room.limit


def to_release(room: Room, end: Position, watermarks: Mapping[str, Watermark]) -> str | None:
    """
    Return the pipeline to release now, None if there is none; `end` is the end of the log.

    It is the one with the lowest pin. There is none if a release would not help: it does not
    reduce what the log has not read yet, nor what the source retains for its own transactions.
    """
    return _lowest(end, watermarks) if is_full(room) and _is_ours(room) else None


def pinned_by(room: Room, end: Position, watermarks: Mapping[str, Watermark]) -> str:
    """Return what the source retains most of its data for: a pipeline's name, or another owner."""
    if _is_ours(room):
        return _lowest(end, watermarks) or LOG
    if room.oldest:
        return room.oldest
    return LOG if 2 * room.unacknowledged > room.used else SERVER


def _is_ours(room: Room) -> bool:
    return room.ours > 0 and room.ours >= WORTH * room.used


def _lowest(end: Position, watermarks: Mapping[str, Watermark]) -> str | None:
    """Return the pipeline with the lowest pin, if that is below the end of the log."""
    pins = {
        name: pin
        for name, mark in watermarks.items()
        if not mark.released and (pin := mark.upto(end)) < end
    }
    return min(pins, key=lambda name: (pins[name], name), default=None)


# --- the limit of a pipeline's lag ----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LagExcess:
    """How far a pipeline lags behind, beyond its limit."""

    measure: str
    """`bytes` or `changes` that wait, or the `age` of the oldest in seconds."""

    lag: float
    limit: float
    """Also counts what it lagged behind at its start."""

    @property
    def facts(self) -> dict[str, Any]:
        """The facts of an error about it."""
        return {"measure": self.measure, "lag": round(self.lag), "limit": round(self.limit)}


class LagWatch:
    """Compares a pipeline's lag with its limit. Safe to call from several threads."""

    def __init__(self, limit: LagLimit) -> None:
        self._limits = {
            "bytes": limit.max_bytes,
            "changes": limit.max_changes,
            "age": limit.max_age,
        }
        self._before: dict[str, float] = {}
        """What it still lags behind from before it began, by measure."""

    @property
    def limited(self) -> bool:
        """Whether there is a limit."""
        return any(limit is not None for limit in self._limits.values())

    def begin(self, log: LogReader, following: Sequence[tuple[str, Position]], now: float) -> None:
        """Let a pipeline at these positions catch up first: it was started, or resumed."""
        self._before = self._measured(log, following, now)

    def excess(
        self, log: LogReader, following: Sequence[tuple[str, Position]], now: float
    ) -> LagExcess | None:
        """
        Return by how much tables at these positions lag behind beyond the limit; None: not.

        `now` is in seconds since 1970.
        """
        before, found = self._before, None
        for measure, lag in self._measured(log, following, now).items():
            limit = self._limits[measure]
            assert limit is not None, "only what has a limit is measured"
            left = min(before.get(measure, 0), lag)
            left = before[measure] = left if left > limit else 0
            if lag > limit + left:
                found = found or LagExcess(measure, lag, limit + left)
        return found

    def _measured(
        self, log: LogReader, following: Sequence[tuple[str, Position]], now: float
    ) -> dict[str, float]:
        measured: dict[str, float] = {}
        if self._limits["bytes"] is not None or self._limits["changes"] is not None:
            waiting = [log.waiting_after(table, reached) for table, reached in following]
            measured["bytes"] = sum(size for _, size in waiting)
            measured["changes"] = sum(rows for rows, _ in waiting)
        if self._limits["age"] is not None:
            ages = [log.oldest_after(table, reached) for table, reached in following]
            oldest = min((age for age in ages if age is not None), default=None)
            measured["age"] = 0.0 if oldest is None else max(0.0, now - oldest / 1_000_000)
        return {name: lag for name, lag in measured.items() if self._limits[name] is not None}


# --- a released pipeline --------------------------------------------------------------------------


class PipelineRelease:
    """Whether one pipeline was released, and why. Safe to call from several threads."""

    def __init__(self, pipeline: str, store: ProgressStore) -> None:
        self.count = 0
        """How often it was released since the engine started."""

        self.why: SetAside | None = None
        self.reset_pending = False
        """Whether its tables have not been reset yet."""

        self._pipeline = pipeline
        self._store = store
        self._lock = threading.Lock()

    @property
    def lagged(self) -> bool:
        """Whether it was released because it lagged behind by more than its limit."""
        return self.why is not None and "lag" in self.why.facts

    def open(self) -> None:
        """Read what an earlier run stored."""
        found = self._store.release(self._pipeline)
        if found is not None:
            facts, taken = found
            self.why, self.reset_pending = self._error(facts), not taken

    def begin(self, facts: dict[str, object]) -> None:
        """Release the pipeline from now on."""
        with self._lock:
            self._store.note_release(self._pipeline, facts, taken=False)
            self.why, self.reset_pending = self._error(facts), True
            self.count += 1

    def taken(self) -> None:
        """Store that its tables were reset."""
        with self._lock:
            if self.reset_pending and self.why is not None:
                self._store.note_release(self._pipeline, self.why.facts, taken=True)
                self.reset_pending = False

    def end(self) -> None:
        """Store that its tables are exact again: the source retains data for it as before."""
        with self._lock:
            if self.why is not None and not self.reset_pending:
                self._store.forget_release(self._pipeline)
                self.why = None

    def _error(self, facts: dict[str, object]) -> SetAside:
        if "lag" in facts:
            return SetAside(
                f"Pipeline {self._pipeline} was released from its source, because it lagged behind"
                " by more than its limit: its tables are copied again",
                remedy="If it often lags behind that far, raise the limit in its section lag, or"
                " use the policy block, which keeps the changes.",
                **facts,
            )
        message = (
            f"Pipeline {self._pipeline} was released from its source, which was running out of"
            " space: its tables are copied again"
        )
        return SetAside(message, remedy=SetAside.remedy, **facts)
