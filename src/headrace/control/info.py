"""What the engine tells about itself: frozen values, taken at one moment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from headrace.changelog.position import Position
from headrace.control.hops import Hop
from headrace.errors import HeadraceError


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


@dataclass(frozen=True, slots=True)
class SourceInfo:
    """One source and its recorder, as observed."""

    name: str
    kind: str
    state: str
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
