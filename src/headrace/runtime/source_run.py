"""
One running source: its recorder, its log as the engine reads it, and the last report.

Only the recorder writes; the engine reads what it wrote. The messages between them are small: "I am
idle", "a baseline is required", "acknowledged up to here" one way, "entry n is written" the other.
A report is only a hint to look at the log, so a report that is lost with its recorder does not
matter: the first report of the next recorder makes the engine look again.

`Progress` has the rows, rate and remaining time of running copies. The rows so far are reported now
and then, by the recorder or after each Spark job. The rate is that of the last half minute up to
now, so that a stalled copy is visible.

`RequestedReset` stores a reset of the source from the request until reading has started again. The
call returns at once, and the recorder may be down, or die during the reset: so the request is kept
here, given to every recorder that starts, and cleared when one has done it. If a recorder dies in
between, the next one repeats the reset, which costs one more copy.

Long because every report changes what the engine knows of a source, and the status tells all of it.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Protocol

from headrace.capture.messages import (
    Acknowledge,
    BaselineProgress,
    Command,
    CopyFailed,
    CopyPlanned,
    Failed,
    Flushed,
    FlushNow,
    LagReport,
    Report,
    Reset,
    StateReport,
    TablesDescribed,
    TablesFound,
    TakeBaseline,
    Warned,
)
from headrace.capture.process import RunningRecorder
from headrace.capture.source import Room
from headrace.changelog.position import Position
from headrace.changelog.reader import LogReader
from headrace.changelog.schema import TableSchema
from headrace.errors import HeadraceError, LostLog, RecorderFailed, with_facts
from headrace.observe.events import (
    AckAdvanced,
    Event,
    LagUpdated,
    SourceConnected,
    SourceDisconnected,
    SourceStateChanged,
)
from headrace.observe.logs import logger
from headrace.observe.source_state import SourceMove, SourceState, SourceStateMachine
from headrace.runtime.copy_on_spark import SparkCopies
from headrace.runtime.info import CopyInfo, Notice, RoomInfo, SourceInfo
from headrace.runtime.lease import Fence
from headrace.runtime.model import Watermark, acknowledged
from headrace.runtime.wal_pressure import pinned_by

# --- the progress of copies -----------------------------------------------------------------------

WINDOW_SECONDS = 30.0


@dataclass(slots=True)
class _Copy:
    began: float
    expected: int | None = None
    waits: str = ""
    samples: deque[tuple[float, int]] = field(default_factory=deque)
    """Times and row counts; the first is at the beginning of the window, or before."""


class Progress:
    """The running copies. Safe to call from several threads; `clock` returns seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._copies: dict[str, _Copy] = {}

    def update(self, table: str, rows: int, expected: int | None, waits: str = "") -> None:
        """Note the number of copied rows, of about `expected`; a lower number is a new copy."""
        now = self._clock()
        with self._lock:
            copy = self._copies.get(table)
            if copy is None or (copy.samples and rows < copy.samples[-1][1]):
                copy = self._copies[table] = _Copy(now)
            copy.expected, copy.waits = expected, waits
            if rows == 0:
                # It may have waited before: that time does not count for the rate.
                copy.samples.clear()
            copy.samples.append((now, rows))
            while len(copy.samples) > 2 and copy.samples[1][0] <= now - WINDOW_SECONDS:
                copy.samples.popleft()

    def done(self, table: str) -> None:
        """Remove a table whose copy is finished."""
        with self._lock:
            self._copies.pop(table, None)

    def clear(self) -> None:
        """Remove all copies: they were abandoned."""
        with self._lock:
            self._copies.clear()

    def copies(self) -> tuple[CopyInfo, ...]:
        """Return the running copies, by table."""
        now = self._clock()
        with self._lock:
            return tuple(_info(table, copy, now) for table, copy in sorted(self._copies.items()))


def _info(table: str, copy: _Copy, now: float) -> CopyInfo:
    since, before = copy.samples[0]
    rows = copy.samples[-1][1]
    rate = (rows - before) / (now - since) if now > since else 0.0
    # More than expected: the source's estimate is out of date.
    expected = copy.expected if copy.expected is not None and copy.expected >= rows else None
    return CopyInfo(
        table=table,
        rows=rows,
        expected=expected,
        seconds=now - copy.began,
        rows_per_s=rate,
        left_seconds=(expected - rows) / rate if expected is not None and rate > 0 else None,
        waits=copy.waits,
    )


# --- a requested reset -------------------------------------------------------------------


class RequestedReset:
    """A reset that was requested. Callers hold their own lock."""

    def __init__(self) -> None:
        self._asked: Reset | None = None
        self._begun = False

    @property
    def pending(self) -> bool:
        """Whether one was requested, and reading has not started again since."""
        return self._asked is not None

    def ask(self, reset: Reset) -> None:
        """Store a request."""
        self._asked, self._begun = reset, False

    def give(self) -> Reset | None:
        """Return what a recorder that starts now has to do first."""
        self._begun = False
        return self._asked

    def moved(self, state: str) -> None:
        """Note a new state of the recorder."""
        if state == "resetting":
            self._begun = self._asked is not None
        elif state == "streaming" and self._begun:
            # The gap is in the log: it was reported before this state.
            self._asked, self._begun = None, False

    def stopped(self) -> bool:
        """Note that the recorder stopped permanently; return whether it never began the reset."""
        not_begun = self._asked is not None and not self._begun
        if not not_begun:
            self._asked, self._begun = None, False
        return not_begun


# --- the running source ---------------------------------------------------------------------------

_TIMES_KEPT = 4_096
"""Number of flush times kept for the hops: more entries than come during a slow job."""

_END_SECONDS = 10.0
"""How long a recorder that stopped permanently may take to exit."""

SILENT_SECONDS = 20.0
"""
The longest time without news with which a source counts as ready.

A recorder reports every second, later only after a very large flush; a silent stream is asked for
a reply after 5 s; and what is committed at an unimpaired source is in the log a second later.
"""

_LATE_SECONDS = 2.0
"""After this time a report of the lag, which comes every second, is late."""

_LAGS_SECONDS = 1.0
"""Between two comparisons of the lags of pipelines with their limits."""

_NOTICES_KEPT = 100
_NOTICE_SECONDS = 60.0
"""How many are kept at least, and how long all: hundreds of tables may be copied again at once."""

_CONFIRMED_SECONDS = 1.0
"""Between two moments that are remembered."""

_CONNECTED = (SourceState.CONNECTED, SourceState.STREAMING, SourceState.PAUSED)
"""States in which the recorder is connected to the source."""

_log = logger(__name__)


def _lag_reason(current: float | None, unread: int | None) -> str:
    """Return why a source that streams is not ready."""
    if current is None:
        return "Reading what was committed before"
    size = f", {unread:,} bytes are not read" if unread else ""
    return f"Reading is {current:.0f} s behind the source{size}"


class WalGuard(Protocol):
    """Prevents the source from dropping our position (R28)."""

    def pins(self) -> Mapping[str, Watermark]:
        """Return what each pipeline still needs the source to keep."""
        ...

    def look(self, room: Room) -> None:
        """Check a new measurement; called on the recorder's reader thread, never raises."""
        ...

    def look_at_lags(self) -> None:
        """Compare the lag of each pipeline with its limit; called once a second."""
        ...


class LogRetentionPolicy(Protocol):
    """Decides what may be removed from the log (R27)."""

    look_at: float
    """When it is time to decide again, by the source's clock."""

    def look(self) -> None:
        """Decide again if it is time to; never raises."""
        ...

    def forget(self) -> None:
        """Send the whole order again, because there is a new recorder."""
        ...


class SourceRun:
    """A source's recorder and log. Safe to call from several threads."""

    def __init__(
        self,
        name: str,
        kind: str,
        log: LogReader,
        on_change: Callable[[], None],
        wall: Callable[[], float],
        clock: Callable[[], float] = time.monotonic,
        *,
        measures_lag: bool = False,
        ordering: str = "total",
        resumes: bool = True,
        resets: bool = False,
        emit: Callable[[Event], None] = lambda event: None,
    ) -> None:
        """
        `measures_lag`, `ordering`, `resumes` and `resets` are traits of the source. Without the
        first, what was read counts as everything. `emit` passes events to observers.
        """
        self.name = name
        self.kind = kind
        self.log = log
        self._state = "connecting"
        """Whether the last event of the connection was that it is connected."""
        self._emit = emit
        self._reason = ""
        self.machine = SourceStateMachine(name, wall)
        """Where its state changes."""

        self.machine.on_move = self._report_move

        self._observing = threading.Lock()
        self._has_read = False
        """Whether something was read since it was opened last, if only that there is nothing."""

        self._ordering, self._resumes, self._resets = ordering, resumes, resets
        self._error: HeadraceError | None = None
        self._lost_at: float | None = None
        """Since when the source is not read, because of an error."""
        self._unread: HeadraceError | None = None
        """Why the newest reported entry could not be read."""
        self._unread_at: float | None = None
        self._reported = 0
        self.acknowledged: Position | None = None
        self.recorder: RunningRecorder | None = None
        self._start: Callable[[], RunningRecorder] | None = None
        self._starting = threading.Lock()
        self._reset = RequestedReset()
        self.copies: SparkCopies | None = None
        """Copies baselines instead of the recorder; None if the recorder does."""

        self._on_change = on_change
        self._wall = wall
        self._lock = threading.Lock()
        self._requested: dict[str, int] = {}
        self._credit_given = False
        self._times: dict[int, tuple[float, float]] = {}
        self._lag = LagReport(changes=None, seconds=None, captured=0)
        self._notices: tuple[Notice, ...] = ()
        self._measures_lag = measures_lag
        self._confirmed: tuple[tuple[float, Position], ...] = ()
        """Moments, and ends of the log up to which it has all that was committed by then."""

        self._captured_before = log.counts().rows
        self.gave_up = False
        """Whether the recorder stopped permanently: it has to be started again."""

        self.fence = Fence(name)
        """Closed once another writer has the log."""

        self.on_lost: Callable[[], None] = lambda: None
        """Called when the fence was closed, on the recorder's reader thread."""

        self._clock = clock
        self._started = wall()
        self._reported_at = self._lag_at = clock()
        self._progress = Progress(clock)
        self.guard: WalGuard | None = None
        """Prevents the source from dropping our position; None while no pipeline runs."""
        self.retention: LogRetentionPolicy | None = None
        """Decides what may be removed from the log; None while not all pipelines are open."""
        self._lags_at = clock()
        """When the lags of pipelines are compared with their limits again."""
        self._room: Room | None = None
        self.tight = False
        """Whether a notice said that the source runs out of room; for the guard, which changes."""

        self.described: Mapping[str, TableSchema] | None = None
        """All recorded tables; None before the first connection."""

        self.on_described: Callable[[], None] = lambda: None
        """Called when `described` was set first, on the recorder's reader thread."""

        self.found: Mapping[str, TableSchema] | None = None
        """Recorded tables that match a pattern; None before the recorder reported them."""

        self.left_out: Mapping[str, HeadraceError] = {}
        """Tables that match a pattern and cannot be recorded, each with the reason."""

        self.lost: Mapping[str, HeadraceError] = {}
        """Named tables that were recorded before and cannot be any more, each with the reason."""

        self.on_found: Callable[[], None] = lambda: None
        """Called when one of these may have changed, on the recorder's reader thread."""

    @property
    def state(self) -> str:
        """The state of the recorder; also `failed` while its log cannot be read here."""
        if self._unread is not None:
            return "failed"
        return "silent" if self._silent else self._state

    def _observe(self, why: str = "") -> None:
        """
        Move the state to what is known now: the only call of `SourceStateMachine.move`.

        `why` is the reason, if it is known better than by what was reported last.
        """
        with self._observing:  # or an older observation would come after a newer one
            to, reason = self._observed()
            if to != self.machine.state:
                self.machine.move(to, why or reason)

    def _report_move(self, move: SourceMove) -> None:
        """Report a move to observers."""
        self._emit(
            SourceStateChanged(self.name, str(move.before), str(move.after), move.reason, move.at)
        )
        before, after = move.before in _CONNECTED, move.after in _CONNECTED
        if after and not before:
            self._emit(SourceConnected(self.name, self.kind, move.at))
        elif before and not after:
            self._emit(SourceDisconnected(self.name, move.reason, move.at))

    def _observed(self) -> tuple[SourceState, str]:
        silent = self._silent
        if self._state == "closed" and self._start is None:
            return SourceState.CLOSED, ""
        if self.gave_up:
            return SourceState.ERROR, self._reason
        if (why := self._unread) is not None:
            return SourceState.RECONNECTING, with_facts(why.message, why.facts, self.name)
        if silent:
            return SourceState.RECONNECTING, silent
        return self._state_of_recorder(), self._reason

    def _state_of_recorder(self) -> SourceState:
        match self._state:
            case "streaming":
                return SourceState.STREAMING if self._has_read else SourceState.CONNECTED
            case "watching":
                return SourceState.CONNECTED
            case "full":
                return SourceState.PAUSED
            case "reconnecting" | "failed":
                return SourceState.RECONNECTING
        # It is being opened: for the first time, or again after it was lost.
        lost = self.machine.state == SourceState.RECONNECTING
        return SourceState.RECONNECTING if lost else SourceState.CONNECTING

    @property
    def _silent(self) -> str:
        """Why nothing is known although the last state was good; empty if that is not so."""
        if self._state not in ("streaming", "watching"):
            return ""
        # A killed recorder is noticed at once; one that hangs or is suspended just does not report.
        passed = self._clock() - self._reported_at
        if passed > SILENT_SECONDS:
            return f"No report from the recorder for {passed:.0f} s"
        silence = self._silence if self._state == "streaming" else None
        if silence is not None and silence > SILENT_SECONDS:
            since = datetime.fromtimestamp(self._wall() - silence, UTC)
            return f"Nothing was received from the server since {since:%H:%M:%S} UTC"
        return ""

    @property
    def _silence(self) -> float | None:
        """Seconds since anything was received from the server."""
        measured = self._lag.silence
        return None if measured is None else measured + self._clock() - self._lag_at

    @property
    def unreported_seconds(self) -> float:
        """Seconds since a recorder that reads has reported; 0 while it connects or is away."""
        reading = self._state in ("streaming", "watching")
        return self._clock() - self._reported_at if reading else 0.0

    @property
    def recorder_ended(self) -> bool:
        """Whether the thread of its recorder ended, and neither it nor the engine has stopped."""
        recorder = self.recorder
        if recorder is None or self.gave_up or self._start is None or self._starting.locked():
            return False
        return not recorder.alive

    @property
    def confirmed(self) -> Position | None:
        """
        The end of the log with everything that was committed at some moment not long ago.

        What is applied up to there is ready (invariant 9). None: there is no such moment.
        """
        if self.state == "watching":
            return self.log.end  # no table matches, so there is nothing to read
        since = self._clock() - SILENT_SECONDS
        return next((end for at, end in self._confirmed if at >= since), None)

    @property
    def error(self) -> HeadraceError | None:
        """The error of the recorder, or of reading its log."""
        return self._unread or self._error

    @property
    def ready(self) -> bool:
        """Whether changes are being read, and there is no error (invariant 9)."""
        at_work = self.state in ("streaming", "watching")
        return at_work and self.error is None and not self._reset.pending

    def has(self, table: str) -> bool:
        """Whether the log has a baseline of the table, and changes are being read."""
        known = self.ready and self.confirmed is not None and table not in self.lost
        return known and self.log.usable_baseline(table) is not None

    def expect_away(self, error: HeadraceError) -> None:
        """Take note that it could not be reached before: the first attempt may take long."""
        self._reason = with_facts(error.message, error.facts, self.name)
        self._lost_at = self._wall()

    def start(self, start: Callable[[], RunningRecorder]) -> None:
        """Start recording; `start` is kept to replace the recorder later."""
        with self._starting:
            if self._state == "closed":
                return
            self._start = start
            self.recorder = start()
        self._observe()
        # A recorder on a thread may have run before it was known here: requests that were sent
        # meanwhile are lost.
        self._ask_again()

    def reset(self, reset: Reset) -> None:
        """Remove our objects from the source and start over, also after a permanent stop."""
        with self._lock:
            self._reset.ask(reset)
            gone = self.gave_up
        if gone:
            self._restart()
        else:
            self.send(reset)

    def pending_reset(self) -> Reset | None:
        """Return what a recorder that starts now has to do first."""
        with self._lock:
            return self._reset.give()

    def resume(self) -> None:
        """Restart a recorder that stopped permanently; a running one is left alone."""
        self._restart(at_work=False)

    def _restart(self, *, at_work: bool = True) -> None:
        """Replace a recorder that stopped permanently, or, with `at_work`, a running one."""
        with self._starting:
            old, start = self.recorder, self._start
            if old is None or start is None or not (at_work or self.gave_up):
                return  # the engine has stopped, or another thread was faster
            old.stop(_END_SECONDS)
            self._error, self._state = None, "connecting"
            self.gave_up = self._has_read = False
            self._observe("its recorder is replaced")
            try:
                self.recorder = start()
            except BaseException:
                # Nothing is recorded now: a reset, or another change, starts a recorder again.
                self._state, self.gave_up = "failed", True
                self._error = RecorderFailed("The recorder could not be started", source=self.name)
                self._observe(self._error.message)
                raise
            self.recorder.restarts = old.restarts + 1
            self._ask_again()

    def replace(self, start: Callable[[], RunningRecorder], takes: Callable[[str], bool]) -> None:
        """Replace the recorder by one for other tables; `takes` says whether it has a table."""
        with self._starting:
            if self._start is None:
                return  # the engine has stopped
            self._start = start
        with self._lock:
            # For other tables it would only report that there is no such table.
            self._requested = {table: n for table, n in self._requested.items() if takes(table)}
        self.found, self.left_out, self.lost = None, {}, {}
        self._restart()

    def stop(self, timeout: float) -> None:
        """Let the recorder flush its changes and exit."""
        with self._starting:
            self._start, self._state = None, "closed"
        if self.recorder is not None:
            self.recorder.stop(timeout)
        self._state = "closed"
        self._observe()

    def ask_baseline(self, table: str, newer_than: int = 0) -> None:
        """
        Request a baseline of `table` with a number higher than `newer_than`.

        Sent once, and again to every new recorder.
        """
        with self._lock:
            if self._requested.get(table, -1) >= newer_than:
                return
            self._requested[table] = newer_than
        self.send(TakeBaseline(table, shared=self.copies is not None))

    def ask_flush(self) -> None:
        """Report an idle pipeline: collected changes should be flushed (S14)."""
        with self._lock:
            if self._credit_given:
                return
            self._credit_given = True
        self.send(FlushNow())

    def settle(self, watermarks: Sequence[Watermark]) -> None:
        """Acknowledge to the source what no pipeline needs any more (R8, invariant 1)."""
        with self._lock:
            end = self.log.end
            upto = acknowledged(end, watermarks, self.acknowledged)
            if upto == self.acknowledged:
                return
            assert upto <= end, "acknowledged beyond what the log has synced"
            self.acknowledged = upto
        self.send(Acknowledge(str(upto)))
        self._emit(AckAdvanced(self.name, upto, self._wall()))

    def flush_times(self, entry: int) -> tuple[float, float] | None:
        """Return when the first change of an entry was read, and when it was flushed."""
        return self._times.get(entry)

    def info(self) -> SourceInfo:
        """Return the current info."""
        self._observe()  # a recorder that hangs reports nothing, not even that
        machine, end = self.machine, self.log.end
        counts = self.log.counts()
        recorder = self.recorder
        lag, reason = self._lag, self._reason
        current = self._clock() - self._confirmed[-1][0] if self._confirmed else None
        if (since := self._clock() - self._lag_at) > SILENT_SECONDS:
            # Other reports may arrive while nothing is measured.
            lag = LagReport(None, None, lag.captured)
        seconds = lag.seconds
        if seconds is not None and since > _LATE_SECONDS:
            seconds += since  # nothing is known of the time since the last report
        if silent := self._silent:
            reason = silent
        elif self._state == "streaming" and not reason and self.confirmed is None:
            reason = _lag_reason(current, lag.bytes)
        return SourceInfo(
            name=self.name,
            kind=self.kind,
            state=self.state,
            phase=machine.state,
            since=machine.since,
            ordering=self._ordering,
            source_position=self.log.source_position_at(end),
            captured=counts.rows - self._captured_before,
            flushes=counts.flushes,
            bytes=counts.bytes,
            end=end,
            acknowledged=self.acknowledged,
            lag_changes=lag.changes,
            lag_seconds=seconds,
            lag_bytes=lag.bytes,
            current_seconds=current,
            silence_seconds=self._silence,
            recorder_pid=recorder.pid if recorder else None,
            restarts=recorder.restarts if recorder else 0,
            error=self.error,
            reason=reason,
            copies=self.copies_under_way(),
            room=self._room_info(),
            left_out={**self.left_out, **self.lost},
            notices=self._notices,
            error_since=self._unread_at or self._lost_at,
            newest=None if (newest := self.log.newest) is None else newest / 1_000_000,
            started=self._started,
            lineage=self.log.lineage,
            acknowledged_position=None
            if (acknowledged := self.acknowledged) is None
            else self.log.source_position_at(acknowledged),
            resumes=self._resumes,
            resets=self._resets,
        )

    def _room_info(self) -> RoomInfo | None:
        if (room := self._room) is None:
            return None
        guard = self.guard
        pins = guard.pins() if guard is not None else {}
        return RoomInfo(
            used=room.used,
            limit=room.limit,
            unacknowledged=room.unacknowledged,
            pinned_by=pinned_by(room, self.log.end, pins),
        )

    def copies_under_way(self) -> tuple[CopyInfo, ...]:
        """Return the running copies of tables, by the recorder or by Spark."""
        return self._progress.copies()

    def on_report(self, report: Report) -> None:
        """Handle a report of the recorder; called on the recorder's reader thread."""
        # A report may have waited for this thread, or for the engine: not when it was measured.
        now = self._clock()
        measured = report.at if isinstance(report, LagReport) else None
        self._reported_at = max(self._reported_at, now if measured is None else measured)
        match report:
            case Flushed():
                self._flushed(report)
            case LagReport():
                self._measured(report, now if measured is None else measured)
                self._has_read |= self._state == "streaming"
                self._room = report.room or self._room
            case StateReport():
                self._moved(report)
            case BaselineProgress():
                self._progress.update(report.table, report.rows, report.expected, report.waits)
                if report.done:
                    self._progress.done(report.table)
                    with self._lock:
                        self._requested.pop(report.table, None)
            case CopyPlanned():
                if self.copies is not None:
                    self.copies.take(report)
                else:
                    self.send(CopyFailed(report.table, report.stem, shared=False))
            case Warned(problem):
                self.note(problem.error())
            case TablesDescribed(tables):
                first = self.described is None
                self.described = {each.table: each.schema for each in tables}
                if first:
                    self.on_described()
            case TablesFound():
                self._tables_found(report)
            case Failed():
                self._failed(report)
        self._follow()
        self._observe()
        if isinstance(report, LagReport):
            self._confirm(report)
        if (retention := self.retention) is not None and now >= retention.look_at:
            retention.look()
        if (guard := self.guard) is not None:
            if isinstance(report, LagReport) and report.room:
                guard.look(report.room)
            if now >= self._lags_at:
                self._lags_at = now + _LAGS_SECONDS
                guard.look_at_lags()
        self._on_change()

    def note(self, problem: HeadraceError) -> None:
        """Report something that happened by itself: in the status, and in the log file."""
        _log.warning("source warning", source=self.name, problem=str(problem))
        with self._lock:
            number, now = self._notices[-1].number + 1 if self._notices else 1, self._wall()
            kept = [n for n in self._notices if n.at > now - _NOTICE_SECONDS]
            kept = kept if len(kept) >= _NOTICES_KEPT else [*self._notices[1 - _NOTICES_KEPT :]]
            self._notices = (*kept, Notice(number, now, problem))

    def _measured(self, report: LagReport, at: float) -> None:
        before, self._lag, self._lag_at = self._lag, report, at
        lag = (report.changes, report.bytes, report.seconds)
        if lag != (before.changes, before.bytes, before.seconds):
            self._emit(LagUpdated(self.name, *lag, self._wall()))

    def _confirm(self, report: LagReport) -> None:
        """Remember what the log has everything of, if the report says so."""
        at, age = self._lag_at, report.age
        if not self._measures_lag:
            age = 0.0 if self._state == "streaming" else None
        if age is None or self._unread is not None:
            return  # nothing is known of the source, or of the log
        at -= age
        if self._confirmed and at - self._confirmed[-1][0] < _CONFIRMED_SECONDS:
            return
        known = [each for each in self._confirmed if each[0] >= self._lag_at - SILENT_SECONDS]
        self._confirmed = (*known, (at, self.log.end))

    def _tables_found(self, report: TablesFound) -> None:
        before, out_before, lost_before = self.found or {}, self.left_out, self.lost
        self.found = {found.table: found.schema for found in report.tables}
        self.left_out = {table: failed.error() for table, failed in report.left_out.items()}
        self.lost = {table: failed.error() for table, failed in report.lost.items()}
        for table in self.found.keys() - before.keys():
            _log.info("table found", source=self.name, table=table)
        for table in self.left_out.keys() - out_before.keys():
            error = self.left_out[table]
            _log.warning(
                "table left out",
                source=self.name,
                table=table,
                code=error.code,
                problem=str(error),
            )
        with self._lock:
            # A table that comes back is requested again: earlier requests were lost.
            for table in before.keys() ^ self.found.keys():
                self._requested.pop(table, None)
            again = [t for t in lost_before if t not in self.lost and t in self._requested]
        for table in again:
            # A recorder drops requests for a table that is lost.
            self.send(TakeBaseline(table, shared=self.copies is not None))
        self.on_found()

    def _failed(self, report: Failed) -> None:
        _log.error(
            "recorder failed", source=self.name, code=report.code, problem=str(report.error())
        )
        with self._lock:
            self._error = report.error()
            reason = with_facts(report.message, report.facts, self.name)
            self._state, self._reason = "failed", reason
            self._lost_at = self._lost_at or self._wall()
            reset_not_begun = report.stops and self._reset.stopped()
            self.gave_up = report.stops
        if isinstance(self._error, LostLog):
            # The other engine delivers newer changes to the targets than we would.
            self.fence.close(self._error)
            self.on_lost()
        if reset_not_begun:
            self._restart()

    def _flushed(self, report: Flushed) -> None:
        with self._lock:
            self._credit_given = False
            now = self._wall()
            self._times[report.entry] = (now - report.buffered_seconds, now)
            while len(self._times) > _TIMES_KEPT:
                self._times.pop(next(iter(self._times)))
            self._reported = max(self._reported, report.entry)

    def _follow(self) -> None:
        """Read the log as far as reported; after an error, every report tries again."""
        try:
            # Never further: an entry can be visible before it is durable.
            self.log.refresh(self._reported)
        except HeadraceError as error:
            # Not raised: it would silently end the thread that reads from the recorder
            # (invariant 9). The recorder reports every second.
            if self._unread is None:
                _log.error(
                    "log cannot be read", source=self.name, code=error.code, problem=str(error)
                )
            self._unread = error
            self._unread_at = self._unread_at or self._wall()
        else:
            self._unread = self._unread_at = None

    def _moved(self, report: StateReport) -> None:
        if report.state != "waiting" or self._state != "waiting":
            # What it waits for is reported repeatedly, with its age.
            _log.info(
                "source changed state", source=self.name, state=report.state, reason=report.reason
            )
        with self._lock:
            self._has_read &= report.state in ("streaming", "full")
            self._state = report.state
            if report.state != "connecting":  # a first attempt: why it was lost before still holds
                self._reason = report.reason
            if report.state in ("reconnecting", "failed"):
                self._lost_at = self._lost_at or self._wall()
            elif report.state in ("streaming", "watching"):
                self._lost_at = None
            self._reset.moved(report.state)
        if report.state != "streaming":
            # Running copies are abandoned with their connection.
            self._progress.clear()
        if report.state in ("streaming", "watching"):
            self._error = None
        if report.state != "streaming":
            return
        if (retention := self.retention) is not None:
            retention.forget()
        self._ask_again()

    def _ask_again(self) -> None:
        """Send all open requests again: the recorder may not have received them."""
        with self._lock:
            # A new recorder does not know the requests to the previous one. That one may have
            # finished a baseline and died before it reported it: the log has it then.
            self._requested = {
                name: number
                for name, number in self._requested.items()
                if not self._taken(name, number)
            }
            tables, credit, upto = sorted(self._requested), self._credit_given, self.acknowledged
        for table in tables:
            self.send(TakeBaseline(table, shared=self.copies is not None))
        if credit:
            self.send(FlushNow())
        if upto is not None:
            self.send(Acknowledge(str(upto)))

    def _taken(self, table: str, newer_than: int) -> bool:
        baseline = self.log.usable_baseline(table)
        return baseline is not None and (baseline.copy or baseline.baseline) > newer_than

    def copied(self, table: str, rows: int, expected: int | None) -> None:
        """Note the progress of a copy that is made outside the recorder."""
        if self._state == "streaming":
            self._progress.update(table, rows, expected)
        self._on_change()

    def send(self, command: Command) -> None:
        """Send a command to the recorder; dropped if there is none."""
        if self.recorder is not None:
            self.recorder.send(command)
