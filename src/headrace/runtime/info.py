"""
What an engine reports about itself, as frozen values of one moment, and the options of its logs.

`LogOptions` is the argument of `Engine(log=…)`: retention and size of the logs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from headrace.changelog.position import Position
from headrace.config.units import duration, size
from headrace.errors import HeadraceError, WrongValue
from headrace.observe.counters import NOTHING_COUNTED, Hop, OperationCounts
from headrace.observe.metrics import Distribution
from headrace.observe.source_state import SourceState
from headrace.storage.locations import bucket_of

if TYPE_CHECKING:
    from headrace.runtime.retention import Pin


# --- the rows of a target -------------------------------------------------------------------------

COUNT_SECONDS = 0.2
"""How long a status waits for a target to count its rows."""

_END_SECONDS = 2.0
"""How long a stop waits for it."""


class CountedRows(NamedTuple):
    """A count, and when it was asked for, by the monotonic clock."""

    rows: int | None
    at: float


class RowCounts:
    """
    The rows of one target, counted on threads: its code may hang, and a status must not.

    *Threads*: any.
    """

    def __init__(self, count: Callable[[str], int | None], clock: Callable[[], float]) -> None:
        """`clock` returns monotonic seconds."""
        self._count = count
        self._clock = clock
        self._lock = threading.Lock()
        self._last = threading.Event()
        self._last.set()
        self._running: set[threading.Event] = set()
        self._closed = False
        self._began = 0.0
        self._known: dict[str, CountedRows] = {}

    def start(self, tables: Sequence[str]) -> threading.Event:
        """Begin to count; return what is set at the end, at once if the last count hangs."""
        now = self._clock()
        with self._lock:
            # Not the result of a running count: it may be from before what the caller has seen.
            hangs = not self._last.is_set() and now - self._began > COUNT_SECONDS
            if hangs or self._closed:
                over = threading.Event()
                over.set()
                return over
            done = self._last = threading.Event()
            self._running.add(done)
            self._began = now
        work = partial(self._run, tuple(tables), now, done)
        threading.Thread(target=work, name="headrace-rows", daemon=True).start()
        return done

    def close(self) -> None:
        """Count no more, and wait for a running count: the target is closed next."""
        with self._lock:
            self._closed = True
            running = list(self._running)
        for done in running:
            done.wait(_END_SECONDS)

    def rows(self, table: str, since: float) -> tuple[int | None, float | None]:
        """
        Return the last count, and its age: 0 if it was asked for at `since` or later.

        The age is None if nothing was counted yet.
        """
        known = self._known.get(table)
        if known is None:
            return None, None
        return known.rows, 0.0 if known.at >= since else self._clock() - known.at

    def _run(self, tables: Sequence[str], at: float, done: threading.Event) -> None:
        for table in tables:
            if self._closed:
                break
            try:
                rows = self._count(table)
            except Exception:  # noqa: BLE001 - user code may raise anything: it is not known then
                rows = None
            with self._lock:
                if (known := self._known.get(table)) is None or known.at <= at:
                    self._known[table] = CountedRows(rows, at)
        done.set()
        with self._lock:
            self._running.discard(done)


# --- copies, tables, pipelines, logs and sources --------------------------------------------------


@dataclass(frozen=True, slots=True)
class CopyInfo:
    """A running copy of one table, as observed."""

    table: str
    rows: int
    """Rows copied so far."""

    expected: int | None
    """The source's estimate of the total; None if it has none."""

    seconds: float
    """Since it began."""

    rows_per_s: float
    """Over the last half minute."""

    left_seconds: float | None
    """Remaining, at that rate; None if unknown."""

    waits: str = ""
    """What it waits for before it can begin; empty if it does not wait."""


@dataclass(frozen=True, slots=True)
class TableInfo:
    """One table of a pipeline, as observed."""

    table: str
    state: str
    position: Position
    baseline: int
    """The number of the baseline that its rows began with; 0 for none."""

    rows: int | None
    """Rows that readers see now; None if the target cannot count them, or has no table yet."""

    copy: CopyInfo | None = None
    """The running copy of the table; None if there is none."""

    rows_age: float | None = 0.0
    """
    Seconds since the rows were counted; not 0 only if the target does not answer in time. None if
    they were never counted.
    """

    reason: str = ""
    """Why it is loaded again; empty if it is not."""

    counts: OperationCounts = NOTHING_COUNTED
    """What was delivered, by operation; kept over restarts."""

    last_change: float | None = None
    """When changes were last applied, in seconds since 1970; None if none were."""

    run_counts: OperationCounts = NOTHING_COUNTED
    """The same since this engine started the pipeline."""


@dataclass(frozen=True, slots=True)
class BatchInfo:
    """A batch that is being computed and written."""

    changes: int
    seconds: float
    """Since it began."""


@dataclass(frozen=True, slots=True)
class PipelineTimes:
    """How long a pipeline took for what, in seconds, since the engine started."""

    batches: Distribution
    """For each batch: from reading the log to the end of the target's write."""

    latencies: Distribution
    """For each batch: from the commit of its oldest change to the end of the target's write."""

    baselines: Distribution
    """For each baseline that was loaded into the target."""


@dataclass(frozen=True, slots=True)
class PipelineInfo:
    """One pipeline, as observed."""

    name: str
    source: str
    table: str
    """Its tables, with commas between."""

    target: str
    state: str
    """paused, failed or stopped; otherwise the state of the table that is least advanced."""

    tables: tuple[TableInfo, ...]
    rows: int | None
    """Rows that readers see now, of all tables; None if unknown."""

    changes: int
    """Changes taken from the log since the start."""

    batches: int
    jobs: int
    """Batches of a table, and pieces of baselines, that were computed by Spark jobs."""

    position: Position
    lag_seconds: float | None
    """
    Age of the oldest change in the log that is not yet applied; 0 when there is none.

    None while a table is not shown, because it is loaded or catches up.
    """

    dead_letters: int
    """Dead letters that are not superseded."""

    error: HeadraceError | None
    hops: Mapping[str, Hop]
    set_aside: HeadraceError | None = None
    """Why it was released from its source and needs a new baseline; None if it was not."""

    applying: BatchInfo | None = None
    """The batch in progress; None between two batches."""

    left_out: Mapping[str, HeadraceError] = field(default_factory=dict)
    """Tables that match its patterns and that it does not have, each with the reason."""

    error_since: float | None = None
    """When `error` began, in seconds since 1970; None without one."""

    opening_seconds: float | None = None
    """For how long its target has been being opened; None if it is not."""

    spark_down_seconds: float | None = None
    """For how long Spark has been dead, or has not answered; None if it runs."""

    releases: int = 0
    """How often it was released from its source since the engine started."""

    counts: OperationCounts = NOTHING_COUNTED
    """What was delivered, of all tables, by operation; kept over restarts."""

    counted_since: float | None = None
    """When counting began: the first start of the pipeline, in seconds since 1970."""

    last_change: float | None = None
    """When changes were last applied, in seconds since 1970; None if none were."""

    started: float | None = None
    """When it was started in this engine, in seconds since 1970."""

    run_counts: OperationCounts = NOTHING_COUNTED
    """The same since `started`; unlike `counts`, it never goes back after a crash."""

    times: PipelineTimes | None = None
    """None only where an info was made by hand."""

    direct: int = 0
    """Batches of a table that were computed without a Spark job; `jobs` counts the others."""

    abandoned: int = 0
    """Direct batches that were given up because a row took too long."""

    held_keys: int = 0
    """Keys that dead letters hold."""

    rows_given_up: Mapping[str, int] = field(default_factory=dict)
    """By table, rows that may differ from the source's, because dead letters were purged."""

    notices: tuple[HeadraceError, ...] = ()
    """What someone should know while it runs: many held keys, rows that may differ."""


@dataclass(frozen=True, slots=True)
class RoomInfo:
    """The data that a source retains for us, as last measured (R28)."""

    used: int
    """Bytes."""

    limit: int | None
    """The maximum it retains before our position is lost; None if there is no limit."""

    unacknowledged: int
    """Bytes after the acknowledged position; the source retains the rest for other reasons."""

    pinned_by: str
    """What it is retained for: a pipeline, `the log`, `the server`, or a transaction by its pid."""

    @property
    def percent(self) -> float | None:
        """How much of the limit is used; None without one."""
        return 100 * self.used / self.limit if self.limit else None


@dataclass(frozen=True, slots=True)
class LogInfo:
    """One source's log: what it contains, and what keeps it (R27)."""

    source: str
    floor: Position
    """Changes at or before it were pruned; the origin if none were."""

    end: Position
    entries: int
    """The number of the newest entry of its index."""

    flushes: int
    segments: int
    rows: int
    bytes: int
    """Of changes, without baselines."""

    baselines: int
    baseline_bytes: int
    oldest: float | None
    newest: float | None
    """When its first and last change were committed, in seconds since 1970; None if empty."""

    cap: int | None
    pins: tuple[Pin, ...]
    """What keeps it, and the owner; the lowest first."""

    @property
    def percent(self) -> float | None:
        """How much of the cap is used; None without one."""
        return 100 * (self.bytes + self.baseline_bytes) / self.cap if self.cap else None

    @property
    def pinned_by(self) -> str:
        """What keeps the oldest part of the log."""
        return f"{self.pins[0].kind} {self.pins[0].whose}" if self.pins else ""


@dataclass(frozen=True, slots=True)
class Notice:
    """Something that a source or its engine did by itself, and that the user should know."""

    number: int
    """Counts the notices of this source since the engine started, from 1."""

    at: float
    """When it was reported, in seconds since 1970."""

    problem: HeadraceError
    """What it is, with its code, facts and remedy; reading goes on."""


@dataclass(frozen=True, slots=True)
class SourceInfo:
    """One source and its recorder, as observed."""

    name: str
    kind: str
    state: str
    """
    connecting, waiting, streaming, full (the log has reached its cap), watching (no table
    matches yet), silent (nothing came from the recorder or the server for 20 s),
    reconnecting, resetting, failed or closed.
    """

    phase: SourceState
    """
    Its state in one of seven words that all sources have in common: connecting, connected,
    streaming, reconnecting, paused, error or closed. `state` says more exactly which.
    """

    since: float
    """Since when it is in this phase, in seconds since 1970."""

    ordering: str
    """The order of its changes: `total`, or `per_partition`."""

    source_position: str | None
    """The end of the log as the source's own text, such as an LSN; None for an empty log."""

    captured: int
    """Changes in the log since the engine started."""

    flushes: int
    bytes: int
    end: Position
    acknowledged: Position | None
    lag_changes: int | None
    lag_seconds: float | None
    lag_bytes: int | None
    """Bytes of the source's own log that were not read yet; None if it has no log."""

    current_seconds: float | None
    """
    How many seconds ago everything had been committed that is certain to be in the log.

    None: not known yet. With more than 20, the source is not ready.
    """

    silence_seconds: float | None
    """Seconds since anything was received from the server; None if the source has no stream."""

    recorder_pid: int | None
    restarts: int
    error: HeadraceError | None
    reason: str = ""
    """Why it is in that state: what it waits for, or what failed; may be empty."""

    copies: tuple[CopyInfo, ...] = ()
    """The running copies of tables."""

    room: RoomInfo | None = None
    """What the source retains for us; None if unknown."""

    left_out: Mapping[str, HeadraceError] = field(default_factory=dict)
    """Tables that match a pattern, or were recorded before, and cannot be; each with the reason."""

    notices: tuple[Notice, ...] = ()
    """The last notices, the newest last: lost history, tables that are copied again, and so on."""

    error_since: float | None = None
    """Since when it is not read, because it is away or failed; seconds since 1970."""

    newest: float | None = None
    """The latest commit time in the log, in seconds since 1970; None if it has no change."""

    started: float | None = None
    """When this engine began to record it, in seconds since 1970."""

    lineage: str | None = None
    """The history that positions of the current epoch belong to; None for an empty log."""

    acknowledged_position: str | None = None
    """`acknowledged` as the source's own text; None if it has none."""

    resumes: bool = True
    """Whether reading continues after a restart; otherwise every start is a gap."""

    resets: bool = False
    """Whether it can be reset."""


# --- how long a log is kept -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LogOptions:
    """Options for every log of an engine."""

    keep: float = 24 * 3600.0
    """Minimum time to keep a change after its commit, in seconds."""

    cap: int | None = None
    """
    Maximum size of a source's log in bytes; at 90 % of it, reading stops (R28).

    None: what the disk has space for. 0: no limit.
    """

    lease: float = 600.0
    """Seconds from dropping a file to deleting it."""

    keep_baselines: bool | None = None
    """
    Whether the newest baseline of each table stays usable (R19).

    None means: for tables of volatile targets. Without it, a pipeline that is added later, or
    rebuilt, needs a new copy. Tables that are only recorded always keep theirs.
    """

    compact: bool = True
    """Whether many small flushes are merged into one."""

    fold: bool = True
    """Whether changes are folded into the baseline, so that they need not be kept."""

    storage: str | None = None
    """Where logs and dead letters are stored, as `s3://bucket/prefix`; None: data directory."""


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
    Return options for logs: `Engine(…, log=hr.log(keep="24h", cap="10GB"))`.

    Amounts are numbers of seconds or bytes, or texts like `90s`, `24h`, `7d`, `500MB`, `10GiB`.
    `storage` is the location of the logs, if not the data directory: `s3://bucket/prefix`.
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
        raise WrongValue("keep, cap and lease must not be negative", given=amount)
    return float(amount)


def _bytes(amount: str | int) -> int:
    return size(amount) if isinstance(amount, str) else amount
