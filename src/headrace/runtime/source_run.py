"""
One source at work: its recorder, its log as the engine reads it, and what was reported last.

The recorder alone writes; the engine reads what it wrote. What crosses between them is
small: "I am idle", "a baseline is required", "this far is acknowledged" one way, "entry n is
there" the other. A report is only a hint to look at the log, so one that is lost with its
recorder costs nothing: the next recorder's first report makes the engine look again.

`Progress` holds how far the copies of the source's tables have come, how fast they go, and how
long they take. The rows so far are reported now and then, by the recorder or after each of Spark's
jobs. The rate is that of the last half minute up to now, so that a copy that stands still shows
as such.

`OwedReset` holds a reset of the source from the request until reading has begun again. The caller
is answered at once, and the recorder may be away, or die on the way: so the request is kept here,
given to every recorder that starts, and forgotten when one has done it. A recorder that dies
between the two does it again, which costs another copy and no more.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
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
    TablesFound,
    TakeBaseline,
    Warned,
)
from headrace.capture.process import RunningRecorder
from headrace.capture.source import Room
from headrace.changelog.position import Position
from headrace.changelog.reader import LogReader
from headrace.changelog.schema import TableSchema
from headrace.errors import HeadraceError, LostLog, RecorderFailed
from headrace.observe.logs import logger
from headrace.runtime.copy_on_spark import SparkCopies
from headrace.runtime.info import CopyInfo, RoomInfo, SourceInfo
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
    told: deque[tuple[float, int]] = field(default_factory=deque)
    """When how many rows were copied; the first is at the window's beginning, or before."""


class Progress:
    """The copies under way. Safe to call from several threads; `clock` gives seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._copies: dict[str, _Copy] = {}

    def told(self, table: str, rows: int, expected: int | None, waits: str = "") -> None:
        """Take it that so many rows are copied, of about `expected`; fewer: it began anew."""
        now = self._clock()
        with self._lock:
            copy = self._copies.get(table)
            if copy is None or (copy.told and rows < copy.told[-1][1]):
                copy = self._copies[table] = _Copy(now)
            copy.expected, copy.waits = expected, waits
            if rows == 0:
                # It may have waited for others: no rate is to be had from that.
                copy.told.clear()
            copy.told.append((now, rows))
            while len(copy.told) > 2 and copy.told[1][0] <= now - WINDOW_SECONDS:
                copy.told.popleft()

    def done(self, table: str) -> None:
        """Forget a table: its copy is finished."""
        with self._lock:
            self._copies.pop(table, None)

    def clear(self) -> None:
        """Forget all: what was under way is given up."""
        with self._lock:
            self._copies.clear()

    def copies(self) -> tuple[CopyInfo, ...]:
        """Return what is known now, by table."""
        now = self._clock()
        with self._lock:
            return tuple(_info(table, copy, now) for table, copy in sorted(self._copies.items()))


def _info(table: str, copy: _Copy, now: float) -> CopyInfo:
    since, before = copy.told[0]
    rows = copy.told[-1][1]
    rate = (rows - before) / (now - since) if now > since else 0.0
    # More than were expected: the source's estimate is an old one, and of no use.
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


# --- a reset that was asked for -------------------------------------------------------------------


class OwedReset:
    """For callers that hold their own lock."""

    def __init__(self) -> None:
        self._asked: Reset | None = None
        self._begun = False

    @property
    def owed(self) -> bool:
        """Whether one was asked for, and reading has not begun anew since."""
        return self._asked is not None

    def ask(self, reset: Reset) -> None:
        """Note what was asked for."""
        self._asked, self._begun = reset, False

    def give(self) -> Reset | None:
        """Return what a recorder that starts now has to do first."""
        self._begun = False
        return self._asked

    def moved(self, state: str) -> None:
        """Take it that the recorder came to that state."""
        if state == "resetting":
            self._begun = self._asked is not None
        elif state == "streaming" and self._begun:
            # The log has its gap: that was told before this state.
            self._asked, self._begun = None, False

    def stopped(self) -> bool:
        """The recorder stopped for good; return whether it did so before it had heard of this."""
        unheard = self._asked is not None and not self._begun
        if not unheard:
            self._asked, self._begun = None, False
        return unheard


# --- the source at work ---------------------------------------------------------------------------

_TIMES_KEPT = 4_096
"""Flush times remembered for the hops: more entries than a slow job can gather."""

_END_SECONDS = 10.0
"""How long a recorder that stopped for good may take to be gone."""

SILENT_SECONDS = 20.0
"""A recorder speaks every second, and after a very large flush; then nothing is known of it."""

_log = logger(__name__)


class WalGuard(Protocol):
    """Sees to it that the source keeps our place (R28)."""

    def pins(self) -> Mapping[str, Watermark]:
        """Return what each pipeline still needs the source to keep."""
        ...

    def look(self, room: Room) -> None:
        """Take a new measurement; called on the recorder's reader thread, and never raises."""
        ...


class LogRetentionPolicy(Protocol):
    """Decides what the log may let go of (R27)."""

    look_at: float
    """When it is time to decide again, by the source's clock."""

    def look(self) -> None:
        """Decide anew, if it is time to; never raises."""
        ...

    def forget(self) -> None:
        """Say it all again: there is a new recorder."""
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
    ) -> None:
        self.name = name
        self.kind = kind
        self.log = log
        self._state = "connecting"
        self._reason = ""
        self._error: HeadraceError | None = None
        self._unread: HeadraceError | None = None
        """Why the newest entry that was reported could not be read."""
        self._reported = 0
        self.acknowledged: Position | None = None
        self.recorder: RunningRecorder | None = None
        self._start: Callable[[], RunningRecorder] | None = None
        self._starting = threading.Lock()
        self._reset = OwedReset()
        self.copies: SparkCopies | None = None
        """Who copies baselines in the recorder's place; None: it does so itself."""

        self._on_change = on_change
        self._wall = wall
        self._lock = threading.Lock()
        self._owed: dict[str, int] = {}
        self._credit_given = False
        self._times: dict[int, tuple[float, float]] = {}
        self._lag = LagReport(changes=None, seconds=None, captured=0)
        self._captured_before = log.counts().rows
        self.gave_up = False
        """Whether the recorder stopped for good, and nothing but a new start helps."""

        self.fence = Fence(name)
        """What is closed once another writer has the log."""

        self.on_lost: Callable[[], None] = lambda: None
        """Called when the fence was closed, on the recorder's reader thread."""

        self._clock = clock
        self._heard_at = clock()
        self._progress = Progress(clock)
        self.guard: WalGuard | None = None
        """Who sees to it that the source keeps our place; None while no pipeline is at work."""
        self.care: LogRetentionPolicy | None = None
        """Who decides what the log may let go of; None while not all pipelines are open."""
        self._room: Room | None = None
        self.found: Mapping[str, TableSchema] | None = None
        """The tables recorded because a pattern stands for them; None before that was said."""

        self.left_out: Mapping[str, HeadraceError] = {}
        """Tables that a pattern stands for and that cannot be recorded, each with the reason."""

        self.on_found: Callable[[], None] = lambda: None
        """Called when the two may be others, on the recorder's reader thread."""

    @property
    def state(self) -> str:
        """What the recorder is at; failed as well while its log cannot be read here."""
        if self._unread is not None:
            return "failed"
        return "silent" if self._silent else self._state

    @property
    def _silent(self) -> bool:
        """Whether it reads changes, as far as is known, and has not said so for long."""
        # One that is killed is noticed at once; one that hangs, or is suspended, says nothing.
        return self._state == "streaming" and self._clock() - self._heard_at > SILENT_SECONDS

    @property
    def error(self) -> HeadraceError | None:
        """What is wrong, with the recorder or with reading its log."""
        return self._unread or self._error

    @property
    def ready(self) -> bool:
        """Whether changes come in, and nothing is known to be wrong (invariant 9)."""
        at_work = self.state in ("streaming", "watching")
        return at_work and self.error is None and not self._reset.owed

    def has(self, table: str) -> bool:
        """Whether the log holds the table from a baseline on, and changes come in."""
        return self.ready and self.log.usable_baseline(table) is not None

    def start(self, start: Callable[[], RunningRecorder]) -> None:
        """Begin to record; `start` is kept, for a recorder to take the place of this one."""
        with self._starting:
            if self._state == "closed":
                return
            self._start = start
            self.recorder = start()
        # One in a thread may have been at work before it was known here: nobody heard what it
        # was asked for meanwhile.
        self._ask_again()

    def reset(self, reset: Reset) -> None:
        """Remove what is ours at the source and read anew, also after a stop for good."""
        with self._lock:
            self._reset.ask(reset)
            gone = self.gave_up
        if gone:
            self._start_anew()
        else:
            self.send(reset)

    def owed_reset(self) -> Reset | None:
        """Return what a recorder that starts now has to do first."""
        with self._lock:
            return self._reset.give()

    def resume(self) -> None:
        """Start a recorder again that stopped for good; one that is at work is left alone."""
        self._start_anew(at_work=False)

    def _start_anew(self, *, at_work: bool = True) -> None:
        """Put a recorder in the place of one that stopped for good, or of one `at_work`."""
        with self._starting:
            old, start = self.recorder, self._start
            if old is None or start is None or not (at_work or self.gave_up):
                return  # the engine has ended, or somebody was here before
            old.stop(_END_SECONDS)
            self._error, self._state = None, "connecting"
            self.gave_up = False
            try:
                self.recorder = start()
            except BaseException:
                # Nothing records: a reset, or another change, starts one again.
                self._state, self.gave_up = "failed", True
                self._error = RecorderFailed("Recorder could not be started", source=self.name)
                raise
            self.recorder.restarts = old.restarts + 1
            self._ask_again()

    def replace(self, start: Callable[[], RunningRecorder], takes: Callable[[str], bool]) -> None:
        """Put a recorder in the place of this one, which knows of the tables that `takes` tells."""
        with self._starting:
            if self._start is None:
                return  # the engine has ended
            self._start = start
        with self._lock:
            # Of what it does not take it would only say that there is no such table.
            self._owed = {table: n for table, n in self._owed.items() if takes(table)}
        self.found, self.left_out = None, {}
        self._start_anew()

    def stop(self, timeout: float) -> None:
        """Let the recorder flush what it has and end."""
        with self._starting:
            self._start, self._state = None, "closed"
        if self.recorder is not None:
            self.recorder.stop(timeout)
        self._state = "closed"

    def ask_baseline(self, table: str, newer_than: int = 0) -> None:
        """
        Owe `table` a baseline of a higher number than that one.

        Asked once, and again of every new recorder.
        """
        with self._lock:
            if self._owed.get(table, -1) >= newer_than:
                return
            self._owed[table] = newer_than
        self.send(TakeBaseline(table, shared=self.copies is not None))

    def ask_flush(self) -> None:
        """Say that somebody is idle: what gathers is worth a flush (S14)."""
        with self._lock:
            if self._credit_given:
                return
            self._credit_given = True
        self.send(FlushNow())

    def settle(self, watermarks: Sequence[Watermark]) -> None:
        """Let the source forget what nobody needs any more (R8, invariant 1)."""
        with self._lock:
            end = self.log.end
            upto = acknowledged(end, watermarks, self.acknowledged)
            if upto == self.acknowledged:
                return
            assert upto <= end, "acknowledged beyond what the log has synced"
            self.acknowledged = upto
        self.send(Acknowledge(str(upto)))

    def flush_times(self, entry: int) -> tuple[float, float] | None:
        """Return when the first change of an entry was read, and when it was flushed."""
        return self._times.get(entry)

    def info(self) -> SourceInfo:
        """Return what is known now."""
        counts = self.log.counts()
        recorder = self.recorder
        lag, reason = self._lag, self._reason
        if self._silent:
            lag = LagReport(changes=None, seconds=None, captured=lag.captured)
            reason = f"Its recorder has said nothing for {self._clock() - self._heard_at:.0f} s"
        return SourceInfo(
            name=self.name,
            kind=self.kind,
            state=self.state,
            captured=counts.rows - self._captured_before,
            flushes=counts.flushes,
            bytes=counts.bytes,
            end=self.log.end,
            acknowledged=self.acknowledged,
            lag_changes=lag.changes,
            lag_seconds=lag.seconds,
            lag_bytes=lag.bytes,
            recorder_pid=recorder.pid if recorder else None,
            restarts=recorder.restarts if recorder else 0,
            error=self.error,
            reason=reason,
            copies=self.copies_under_way(),
            room=self._room_info(),
            left_out=dict(self.left_out),
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
        """Return how far the copies of tables are, whoever makes them."""
        return self._progress.copies()

    def on_report(self, report: Report) -> None:
        """Take in what the recorder says; called on the recorder's reader thread."""
        self._heard_at = self._clock()
        match report:
            case Flushed():
                self._flushed(report)
            case LagReport():
                self._lag = report
                self._room = report.room or self._room
            case StateReport():
                self._moved(report)
            case BaselineProgress():
                self._progress.told(report.table, report.rows, report.expected, report.waits)
                if report.done:
                    self._progress.done(report.table)
                    with self._lock:
                        self._owed.pop(report.table, None)
            case CopyPlanned():
                if self.copies is not None:
                    self.copies.take(report)
                else:
                    self.send(CopyFailed(report.table, report.stem, shared=False))
            case Warned(problem):
                _log.warning("source warns", source=self.name, problem=str(problem.error()))
            case TablesFound():
                self._tables_found(report)
            case Failed():
                self._failed(report)
        self._follow()
        if (care := self.care) is not None and self._heard_at >= care.look_at:
            care.look()
        if isinstance(report, LagReport) and report.room and (guard := self.guard) is not None:
            guard.look(report.room)
        self._on_change()

    def _tables_found(self, report: TablesFound) -> None:
        before, out_before = self.found or {}, self.left_out
        self.found = {found.table: found.schema for found in report.tables}
        self.left_out = {table: failed.error() for table, failed in report.left_out.items()}
        for table in self.found.keys() - before.keys():
            _log.info("table found", source=self.name, table=table)
        for table in self.left_out.keys() - out_before.keys():
            code = self.left_out[table].code
            _log.warning("table left out", source=self.name, table=table, code=code)
        with self._lock:
            # One that comes back is asked for again: nobody heard what was asked meanwhile.
            for table in before.keys() ^ self.found.keys():
                self._owed.pop(table, None)
        self.on_found()

    def _failed(self, report: Failed) -> None:
        _log.error("recorder failed", source=self.name, code=report.code)
        with self._lock:
            self._error = report.error()
            self._state, self._reason = "failed", report.message
            unheard = report.stops and self._reset.stopped()
            self.gave_up = report.stops
        if isinstance(self._error, LostLog):
            # What the other engine brings to the targets is later than what we would.
            self.fence.close(self._error)
            self.on_lost()
        if unheard:
            self._start_anew()

    def _flushed(self, report: Flushed) -> None:
        with self._lock:
            self._credit_given = False
            now = self._wall()
            self._times[report.entry] = (now - report.gathered, now)
            while len(self._times) > _TIMES_KEPT:
                self._times.pop(next(iter(self._times)))
            self._reported = max(self._reported, report.entry)

    def _follow(self) -> None:
        """Read the log as far as was reported; where that fails, every report tries again."""
        try:
            # Never beyond: an entry can be seen before it is durable.
            self.log.refresh(self._reported)
        except HeadraceError as error:
            # Not raised: it would end the thread that listens to the recorder, and with it
            # everything, in silence (invariant 9). The recorder speaks every second.
            if self._unread is None:
                _log.error("log cannot be read", source=self.name, code=error.code)
            self._unread = error
        else:
            self._unread = None

    def _moved(self, report: StateReport) -> None:
        if report.state != "waiting" or self._state != "waiting":
            # Whom it waits for is said again and again, with his age.
            _log.info("source moved", source=self.name, state=report.state, reason=report.reason)
        with self._lock:
            self._state, self._reason = report.state, report.reason
            self._reset.moved(report.state)
        if report.state != "streaming":
            # What was copied so far is given up with the connection it came by.
            self._progress.clear()
            return
        self._error = None
        if (care := self.care) is not None:
            care.forget()
        self._ask_again()

    def _ask_again(self) -> None:
        """Say all that the recorder is asked for, of which it may have heard nothing."""
        with self._lock:
            # A new recorder knows nothing of what the last one was asked. That one may have
            # finished a baseline and not lived to say so: the log tells.
            self._owed = {
                name: number for name, number in self._owed.items() if not self._taken(name, number)
            }
            owed, credit, upto = sorted(self._owed), self._credit_given, self.acknowledged
        for table in owed:
            self.send(TakeBaseline(table, shared=self.copies is not None))
        if credit:
            self.send(FlushNow())
        if upto is not None:
            self.send(Acknowledge(str(upto)))

    def _taken(self, table: str, newer_than: int) -> bool:
        baseline = self.log.usable_baseline(table)
        return baseline is not None and (baseline.copy or baseline.baseline) > newer_than

    def copied(self, table: str, rows: int, expected: int | None) -> None:
        """Note how far a copy has come that is made outside the recorder."""
        if self._state == "streaming":
            self._progress.told(table, rows, expected)
        self._on_change()

    def send(self, command: Command) -> None:
        """Tell the recorder something; forgotten where there is none."""
        if self.recorder is not None:
            self.recorder.send(command)
