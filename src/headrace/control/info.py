"""What the engine tells about itself: frozen values, taken at one moment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headrace.changelog.position import Position
from headrace.control.hops import Hop
from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from headrace.control.pins import Pin


@dataclass(frozen=True, slots=True)
class CopyInfo:
    """The copy of one table under way, as observed."""

    table: str
    rows: int
    """Rows copied so far."""

    expected: int | None
    """About how many there are in all, as the source estimates; None where it cannot."""

    seconds: float
    """Since it began."""

    rows_per_s: float
    """Of late: over the last half minute."""

    left_seconds: float | None
    """At that rate; None where it cannot be told."""

    waits: str = ""
    """Whom it waits for before it can begin; empty: for nobody."""


@dataclass(frozen=True, slots=True)
class TableInfo:
    """One table of a pipeline, as observed."""

    table: str
    state: str
    position: Position
    baseline: int
    """The number of the baseline that its rows began with; 0 for none."""

    rows: int | None
    """Rows readers see now; None where the target cannot tell, or shows nothing yet."""

    copy: CopyInfo | None = None
    """The copy that is taken of it; None where none is under way."""


@dataclass(frozen=True, slots=True)
class PipelineInfo:
    """One pipeline, as observed."""

    name: str
    source: str
    table: str
    """Its tables, with commas between."""

    target: str
    state: str
    """paused, failed or stopped; otherwise that of the table that is least far."""

    tables: tuple[TableInfo, ...]
    rows: int | None
    """Rows readers see now, of all tables; None where that cannot be told."""

    changes: int
    """Changes taken from the log since the start."""

    batches: int
    jobs: int
    position: Position
    lag_seconds: float | None
    """Age of the oldest change in the log that is not yet applied; 0 when there is none."""

    dead_letters: int
    """Changes that are set aside, and not superseded."""

    error: HeadraceError | None
    hops: Mapping[str, Hop]
    set_aside: HeadraceError | None = None
    """Why it holds nothing at its source any more, and is owed a baseline; None: it does."""

    left_out: Mapping[str, HeadraceError] = field(default_factory=dict)
    """Tables that its patterns stand for and that it does not have, each with the reason."""


@dataclass(frozen=True, slots=True)
class RoomInfo:
    """What a source holds for us, as measured last (R28)."""

    used: int
    """Bytes."""

    limit: int | None
    """The most it may hold before we lose our place; None: nobody set a limit."""

    unacknowledged: int
    """Bytes since what was acknowledged last; the rest is held for what the source is at."""

    pinned_by: str
    """The pipeline that it is held for; or `the log`, `the server`, a transaction by its pid."""

    @property
    def percent(self) -> float | None:
        """How much of the limit is used; None without one."""
        return 100 * self.used / self.limit if self.limit else None


@dataclass(frozen=True, slots=True)
class LogInfo:
    """One source's log: what it holds, and for whom (R27)."""

    source: str
    floor: Position
    """Changes at or before it were pruned; the beginning: none were."""

    end: Position
    entries: int
    """The number of the newest entry of its index."""

    flushes: int
    segments: int
    rows: int
    bytes: int
    """Of changes: in so many files."""

    baselines: int
    baseline_bytes: int
    oldest: float | None
    newest: float | None
    """When its first and its last change were committed, in seconds since 1970; None: no change."""

    cap: int | None
    pins: tuple[Pin, ...]
    """What keeps it, and whose that is; the lowest first."""

    @property
    def percent(self) -> float | None:
        """How much of the cap is used; None without one."""
        return 100 * (self.bytes + self.baseline_bytes) / self.cap if self.cap else None

    @property
    def pinned_by(self) -> str:
        """Whom it is kept for, as far back as it goes."""
        return f"{self.pins[0].kind} {self.pins[0].whose}" if self.pins else ""


@dataclass(frozen=True, slots=True)
class SourceInfo:
    """One source and its recorder, as observed."""

    name: str
    kind: str
    state: str
    """
    connecting, waiting, streaming, full (its log is), watching (no table matches yet),
    reconnecting, resetting, failed or closed.
    """

    captured: int
    """Changes in the log since the engine started."""

    flushes: int
    bytes: int
    end: Position
    acknowledged: Position | None
    lag_changes: int | None
    lag_seconds: float | None
    lag_bytes: int | None
    """Bytes of the source's own log that were not read yet; None where it has none."""

    recorder_pid: int | None
    restarts: int
    error: HeadraceError | None
    reason: str = ""
    """Why it is in that state: whom it waits for, or what went wrong; empty: no reason given."""

    copies: tuple[CopyInfo, ...] = ()
    """The copies of tables that are under way."""

    room: RoomInfo | None = None
    """What the source holds for us; None where it cannot tell."""

    left_out: Mapping[str, HeadraceError] = field(default_factory=dict)
    """Tables that a pattern stands for and that are not recorded, each with the reason."""
