"""
What an engine reports about itself, as frozen values of one moment, and the options of its logs.

`Hops` measures how long a change takes, hop by hop, from its commit at the source to its
readers. It is a ring of the last batches; each sample belongs to the oldest commit of its batch.
Times are of the wall clock, because commit times come from another process.

`LogOptions` is what `Engine(log=…)` takes: how long a log is kept, and how much of it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headrace.changelog.position import Position
from headrace.config.units import duration, size
from headrace.errors import HeadraceError, WrongValue
from headrace.storage.locations import bucket_of

if TYPE_CHECKING:
    from headrace.runtime.retention import Pin


# --- latency by hop -------------------------------------------------------------------------------

HOPS = ("captured", "flushed", "job", "applied", "total")
KEPT = 1_000


@dataclass(frozen=True, slots=True)
class Hop:
    """Quantiles of one hop, in milliseconds."""

    p50_ms: float
    p95_ms: float
    p99_ms: float


@dataclass(frozen=True, slots=True)
class BatchTimes:
    """The moments of one batch, in seconds since 1970."""

    committed: float
    captured: float
    flushed: float
    computed: float
    applied: float


class Hops:
    """The last samples of a pipeline. Safe to call from several threads."""

    def __init__(self) -> None:
        self._samples: deque[BatchTimes] = deque(maxlen=KEPT)
        self._lock = threading.Lock()

    def add(self, sample: BatchTimes) -> None:
        """Remember a batch."""
        with self._lock:
            self._samples.append(sample)

    def quantiles(self) -> Mapping[str, Hop]:
        """Return the quantiles of every hop; empty before the first sample."""
        with self._lock:
            samples = list(self._samples)
        if not samples:
            return {}
        spans = {
            "captured": [s.captured - s.committed for s in samples],
            "flushed": [s.flushed - s.captured for s in samples],
            "job": [s.computed - s.flushed for s in samples],
            "applied": [s.applied - s.computed for s in samples],
            "total": [s.applied - s.committed for s in samples],
        }
        return {name: _quantiles(sorted(values)) for name, values in spans.items()}


def _quantiles(ordered: list[float]) -> Hop:
    def at(part: float) -> float:
        return round(1_000 * ordered[min(len(ordered) - 1, int(part * len(ordered)))], 3)

    return Hop(at(0.50), at(0.95), at(0.99))


# --- copies, tables, pipelines, logs and sources --------------------------------------------------


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


# --- how long a log is kept -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LogOptions:
    """What is asked of every log of an engine."""

    keep: float = 24 * 3600.0
    """Seconds that a change is kept after its commit, whoever needs it."""

    cap: int | None = None
    """The most bytes of a source's log; at 90 % of it nothing is read any more (R28)."""

    lease: float = 600.0
    """Seconds from a file being dropped to its being deleted."""

    keep_baselines: bool | None = None
    """
    Whether the newest baseline of each table stays usable (R19).

    None: of tables that a volatile target has. Without it a pipeline that is added later, or
    rebuilt, takes a new copy. What is only recorded keeps its own in any case.
    """

    compact: bool = True
    """Whether many small flushes become one."""

    fold: bool = True
    """Whether a baseline is brought up to date, so that the changes before need not be kept."""

    storage: str | None = None
    """Where logs and dead letters lie, as `s3://bucket/prefix`; None: in the data directory."""


def log(
    *,
    keep: str | float = "24h",
    cap: str | int | None = None,
    lease: str | float = "10m",
    keep_baselines: bool | None = None,
    compact: bool = True,
    fold: bool = True,
    storage: str | None = None,
) -> LogOptions:
    """
    Return how logs are to be kept: `Engine(…, log=hr.log(keep="24h", cap="10GB"))`.

    Amounts are numbers of seconds or bytes, or texts like `90s`, `24h`, `7d`, `500MB`, `10GiB`.
    `storage` is where they lie instead of in the data directory: `s3://bucket/prefix`.
    """
    if storage is not None:
        bucket_of(storage)
    return LogOptions(
        keep=_not_below_zero(duration(keep) if isinstance(keep, str) else keep),
        cap=None if cap is None else int(_not_below_zero(_bytes(cap))),
        lease=_not_below_zero(duration(lease) if isinstance(lease, str) else lease),
        keep_baselines=keep_baselines,
        compact=compact,
        fold=fold,
        storage=storage,
    )


def _not_below_zero(amount: float) -> float:
    if amount < 0:
        raise WrongValue("An amount of a log is below zero", given=amount)
    return float(amount)


def _bytes(amount: str | int) -> int:
    return size(amount) if isinstance(amount, str) else amount
