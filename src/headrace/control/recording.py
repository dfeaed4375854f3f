"""
One source at work: its recorder, its log as the engine reads it, and what was heard last.

The recorder alone writes; the engine reads what it wrote. What crosses between them is
small: "I am idle", "a baseline is owed", "this far is acknowledged" one way, "entry n is
there" the other. A report is only a hint to look at the log, so one that is lost with its
recorder costs nothing: the next recorder's first report makes the engine look again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from headrace.capture.supervisor import RunningRecorder
from headrace.capture.wire import (
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
    StateReport,
    TakeBaseline,
)
from headrace.changelog.log import LogReader
from headrace.changelog.position import Position
from headrace.control.acknowledge import Watermark, acknowledged
from headrace.control.copies import Copies
from headrace.control.info import SourceInfo
from headrace.errors import HeadraceError
from headrace.observe.logs import logger

_TIMES_KEPT = 4_096
"""Flush times remembered for the hops: more entries than a slow job can gather."""

_log = logger(__name__)


class Recording:
    """A source's recorder and log. Safe to call from several threads."""

    def __init__(
        self,
        name: str,
        kind: str,
        log: LogReader,
        on_change: Callable[[], None],
        wall: Callable[[], float],
    ) -> None:
        self.name = name
        self.kind = kind
        self.log = log
        self._state = "connecting"
        self._error: HeadraceError | None = None
        self._unread: HeadraceError | None = None
        """Why the newest entry that was reported could not be read."""
        self._reported = 0
        self.acknowledged: Position | None = None
        self.recorder: RunningRecorder | None = None
        self.copies: Copies | None = None
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

        self.copying: dict[str, int] = {}
        """Rows copied so far, for each table whose baseline is being taken."""

    @property
    def state(self) -> str:
        """What the recorder is at; failed as well while its log cannot be read here."""
        return self._state if self._unread is None else "failed"

    @property
    def error(self) -> HeadraceError | None:
        """What is wrong, with the recorder or with reading its log."""
        return self._unread or self._error

    @property
    def ready(self) -> bool:
        """Whether changes come in, and nothing is known to be wrong (invariant 9)."""
        return self.state == "streaming" and self.error is None

    def has(self, table: str) -> bool:
        """Whether the log holds the table from a baseline on, and changes come in."""
        return self.ready and self.log.usable_baseline(table) is not None

    def stop(self, timeout: float) -> None:
        """Let the recorder flush what it has and end."""
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
        self._send(TakeBaseline(table, shared=self.copies is not None))

    def ask_flush(self) -> None:
        """Say that somebody is idle: what gathers is worth a flush (S14)."""
        with self._lock:
            if self._credit_given:
                return
            self._credit_given = True
        self._send(FlushNow())

    def settle(self, watermarks: Sequence[Watermark]) -> None:
        """Let the source forget what nobody needs any more (R8, invariant 1)."""
        with self._lock:
            end = self.log.end
            upto = acknowledged(end, watermarks, self.acknowledged)
            if upto == self.acknowledged:
                return
            assert upto <= end, "acknowledged beyond what the log has synced"
            self.acknowledged = upto
        self._send(Acknowledge(str(upto)))

    def flush_times(self, entry: int) -> tuple[float, float] | None:
        """Return when the first change of an entry was read, and when it was flushed."""
        return self._times.get(entry)

    def info(self) -> SourceInfo:
        """Return what is known now."""
        counts = self.log.counts()
        recorder = self.recorder
        return SourceInfo(
            name=self.name,
            kind=self.kind,
            state=self.state,
            captured=counts.rows - self._captured_before,
            flushes=counts.flushes,
            bytes=counts.bytes,
            end=self.log.end,
            acknowledged=self.acknowledged,
            lag_changes=self._lag.changes,
            lag_seconds=self._lag.seconds,
            lag_bytes=self._lag.bytes,
            recorder_pid=recorder.pid if recorder else None,
            restarts=recorder.restarts if recorder else 0,
            error=self.error,
        )

    def on_report(self, report: Report) -> None:
        """Take in what the recorder says; called on the recorder's reader thread."""
        match report:
            case Flushed():
                self._flushed(report)
            case LagReport():
                self._lag = report
            case StateReport():
                self._moved(report)
            case BaselineProgress():
                self.copying[report.table] = report.rows
                if report.done:
                    self.copying.pop(report.table, None)
                    with self._lock:
                        self._owed.pop(report.table, None)
            case CopyPlanned():
                if self.copies is not None:
                    self.copies.take(report)
                else:
                    self._send(CopyFailed(report.table, report.stem, shared=False))
            case Failed():
                self._error = report.error()
                self._state = "failed"
                self.gave_up = report.stops
                _log.error("recorder failed", source=self.name, code=report.code)
        self._follow()
        self._on_change()

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
        _log.info("source moved", source=self.name, state=report.state, reason=report.reason)
        self._state = report.state
        if report.state != "streaming":
            return
        self._error = None
        with self._lock:
            # A new recorder knows nothing of what the last one was asked. That one may have
            # finished a baseline and not lived to say so: the log tells.
            self._owed = {
                name: number for name, number in self._owed.items() if not self._taken(name, number)
            }
            owed, credit, upto = sorted(self._owed), self._credit_given, self.acknowledged
        for table in owed:
            self._send(TakeBaseline(table, shared=self.copies is not None))
        if credit:
            self._send(FlushNow())
        if upto is not None:
            self._send(Acknowledge(str(upto)))

    def _taken(self, table: str, newer_than: int) -> bool:
        baseline = self.log.usable_baseline(table)
        return baseline is not None and baseline.baseline > newer_than

    def copied(self, table: str, rows: int, expected: int) -> None:
        """Note how far a copy has come that is made outside the recorder."""
        self.copying[table] = rows
        self._on_change()

    def send(self, command: Command) -> None:
        """Tell the recorder something; forgotten where there is none."""
        self._send(command)

    def _send(self, command: Command) -> None:
        if self.recorder is not None:
            self.recorder.send(command)
