"""
The recorder: it reads a source and is the only writer of its log.

It is a step machine. Clock, source and log are arguments. A step executes the engine's commands,
reads what is available, and writes what is due. Nothing in it waits except the source's own
`read`, so a simulation can drive it through every interleaving (P2).

The path of a change is `_stream`: read, append, flush, report. Baselines, the maintenance of log
and source, heartbeats, new tables and lag are `_housekeeping`: it runs between two reads, a
piece at a time, and is entered only if something in it is due.

When a flush is due (R10): 5 ms after the first change while the engine is idle, which the engine
reports once for each batch it could take; otherwise 1 s after it; at a size limit; always at the
end of a commit. So a busy engine finds one file instead of a hundred. In a storage that charges
for each write, a flush is never as soon as 5 ms. A position that moved without a change enters the
index when `due` says so (R34).

After any failure, the index is the truth: on an error the recorder discards what it has in memory,
opens log and source again and continues after the last synced entry. Nothing was acknowledged
beyond that entry (invariant 1), so nothing is lost. Whether the source continues where the log
ends is decided at each opening by pure functions (`break_at`, `tables_to_rebaseline`).
`SyncedPositions` remembers the durable positions, both the log's and the source's.

Long because every step shares one state, and each error must leave all of it in the same way.
"""

from __future__ import annotations

import json
import math
import sys
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import cast

from headrace.capture.baselines import BaselineRequests
from headrace.capture.log_maintenance import HOLD_SECONDS, LogMaintenance
from headrace.capture.messages import (
    ENDLESS,
    Acknowledge,
    Command,
    CopyDone,
    CopyFailed,
    Failed,
    Flushed,
    FlushNow,
    FoundTable,
    LagReport,
    MaintainLog,
    Report,
    Reset,
    Retries,
    StateReport,
    StopRecorder,
    TablesDescribed,
    TakeBaseline,
    Warned,
)
from headrace.capture.source import (
    ExplainsBreaks,
    Maintains,
    Recordable,
    Releases,
    ReportsNotices,
    Resets,
    SourceNotice,
    Waits,
    rebaseline_phrase,
)
from headrace.capture.table_selection import TableSelection
from headrace.changelog.change import Changes
from headrace.changelog.position import Position, SourcePosition
from headrace.changelog.reader import LIMIT_BYTES, LIMIT_ROWS, LogWriter
from headrace.changelog.schema import TableName, TableSchema, keeps_rows
from headrace.errors import (
    CopiedAgain,
    CredentialsRefused,
    HeadraceError,
    HistoryLost,
    LostLog,
    OtherDatabase,
    RecorderFailed,
    Reopening,
    SourceRefused,
    SourceUnreachable,
    StorageError,
    TableLost,
    UnknownTable,
    with_facts,
)
from headrace.storage import killpoints

READ_ROWS = 20_000
"""Maximum for one read: limits stay responsive, and the source's transactions short (R44)."""

SOON_SECONDS = 0.005
LATE_SECONDS = 1.0
"""From the first change to its flush, while the engine is idle, and while it is busy (R10)."""

LAG_SECONDS = 1.0
FIRST_LAG_SECONDS = 0.1
"""Between two reports of the lag; the second until the log is known to have everything."""

FIRST_PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 30.0


class Recorder:
    """Records some tables of one source."""

    def __init__(
        self,
        source: Recordable,
        open_log: Callable[[], LogWriter],
        tables: Sequence[str],
        clock: Callable[[], float],
        selections: Sequence[Sequence[str]] = (),
        reconnect: Retries = ENDLESS,
    ) -> None:
        self.done = False
        self.on_report: Callable[[Report], object] | None = None
        """Called with reports that cannot wait for the end of a step, if it is set."""

        self.pressed: Callable[[], bool] = lambda: False
        """Returns whether a command has arrived that must not wait for sessions at the source."""

        self._source = source
        self._open_log = open_log
        self._selection = TableSelection(source, tables, selections, clock)
        self._clock = clock
        self._notifier = cast(ReportsNotices, source) if source.traits.reports_notices else None
        self._maintained = cast(Maintains, source) if source.traits.maintains else None
        if source.traits.waits:
            cast(Waits, source).on_wait = self._wait
        self._resetting: Reset | None = None
        self._reset_done = False
        """Whether a reset is why reading will not continue."""

        self._break_reported = False
        """Whether the log may forget that a break of its history has to be reported."""

        self._notices: list[SourceNotice] = []
        self._log: LogWriter | None = None
        self._connected = False
        self._state = ""
        self._reports: list[Report] = []
        self._retry_at = clock()
        self._reconnect = reconnect
        self._pause = self._first_pause = (
            FIRST_PAUSE_SECONDS if reconnect.first_pause is None else reconnect.first_pause
        )
        self._lost = 0
        """How often the source was lost or could not be opened, since it was read last."""
        self._credit = False
        self._first_pending: float | None = None
        self._unwritten = False
        """Whether writing to the log has failed, and nothing was written since."""

        self._moved: SourcePosition | None = None
        self._markers: tuple[str, ...] = ()
        """Markers read since the last write, if no change was read with them."""

        self._last_heartbeat = clock()
        self._last_lag = clock()
        self._all_read: float | None = None
        """When everything had been committed that is certain to have been read."""

        self._current: float | None = None
        """The same of what is certain to be in the log."""

        self._captured = 0
        self._copies = BaselineRequests(source, lambda report: self._reports.append(report), clock)
        self._maintenance = LogMaintenance(lambda report: self._reports.append(report), clock)
        self._housekeeping_at = clock()
        """When `_housekeeping` is due at the latest."""

        self._busy = False
        """Whether it is due after every read: work is in progress, or waits for a commit's end."""

        self._maintain_at = math.inf
        """When the source's `maintain` is due."""

        self._synced = SyncedPositions()
        self._asked: Position | None = None
        self._acknowledged = ""

    @property
    def rest(self) -> float:
        """How long the caller may wait for commands before the next step; 0 while reading."""
        if self._connected:
            return HOLD_SECONDS if self._maintenance.holding else 0.0
        return max(0.0, self._retry_at - self._clock())

    def step(self, commands: Sequence[Command], wait: float) -> list[Report]:
        """Execute `commands`, then read for up to `wait` seconds and write what is due."""
        self._reports = []
        if not self.done:
            try:
                self._advance(commands, wait)
            except SourceUnreachable as error:
                self._lost += not isinstance(error, Reopening)
                self._lose(self._reason(error), "reconnecting")
                if self._reconnect.exhausted(self._lost) and not self.done:
                    self._fail(error)
            except StorageError as error:
                self._lose_log(error)
            except CredentialsRefused as error:
                # They are read again at each attempt, and may have been replaced by then.
                self._reports.append(Failed.of(error, stops=False))
                self._lose(error.message, "failed")
            except HeadraceError as error:
                if self._selection.lost_one(self._recorded):
                    self._lose(self._reason(error), "reconnecting")
                else:
                    self._fail(error)
        return self._reports

    def _advance(self, commands: Sequence[Command], wait: float) -> None:
        if self._break_reported and self._log is not None:
            self._log.note("", _BREAK)
            self._break_reported = False
        for command in commands:
            self._obey(command)
        if self.done:
            return
        if self._connected and self._log is not None:
            self._stream(self._log, wait)
        elif self._clock() >= self._retry_at:
            self._connect()

    # --- the path of a change --------------------------------------------------------------

    def _stream(self, log: LogWriter, wait: float) -> None:
        """Read, append, flush, report; all other work is done between two reads."""
        if reads := log.size < self._maintenance.full_at or self._has_room(log):
            if self._clock() >= self._maintain_at:
                self._maintain_source(log)
            changes = self._source.read(READ_ROWS, self._patience(wait))
            if not self._unwritten:
                # Only now has it succeeded: a source may open and then fail to read.
                self._pause, self._lost = self._first_pause, 0
            if self._has_notices():
                # Before what was read: readers of the log must see the notices first.
                self._write_notices(log)
            if changes is not None:
                killpoints.reach(killpoints.CHANGES_READ)
                self._append(log, changes)
            if self._flush_due(log):
                self._flush(log)
        heartbeat = self._moved is not None and self._heartbeat_due(log)
        if heartbeat or self._busy or self._clock() >= self._housekeeping_at:
            self._housekeeping(log, reads=reads)

    def _patience(self, wait: float) -> float:
        """Return how long reading may wait: until the next thing that is due."""
        if self._reports:
            # Reports are delivered before the source waits for anything.
            return 0.0
        now = self._clock()
        until = min(now + wait, self._housekeeping_at)
        if self._first_pending is not None:
            until = min(until, self._flush_at(self._first_pending))
        if self._moved is not None:
            until = min(until, self._last_heartbeat + HEARTBEAT_SECONDS)
        return max(0.0, until - now)

    def _append(self, log: LogWriter, changes: Changes) -> None:
        if changes.tables or not log.pending_complete:
            if log.alters(changes) or not changes.ends:  # or its next part may
                self._flush(log)  # readers that follow column changes switch between two flushes
            log.append(replace(changes, markers=self._markers + changes.markers))
            self._moved, self._markers = None, ()
            if self._first_pending is None:
                self._first_pending = self._clock()
        elif changes.ends:
            self._moved = changes.upto
            self._markers += changes.markers

    def _flush_at(self, first: float) -> float:
        soon = SOON_SECONDS if self._log is None else max(SOON_SECONDS, self._log.segments.pace)
        return first + (soon if self._credit else LATE_SECONDS)

    def _flush_due(self, log: LogWriter, *, asked: bool = False) -> bool:
        if self._first_pending is None:
            return False
        return (
            (asked and not log.segments.pace)  # if each write has a price, collect more changes
            or log.pending_rows >= LIMIT_ROWS
            or log.pending_bytes >= LIMIT_BYTES
            or self._clock() >= self._flush_at(self._first_pending)
        )

    def _flush(self, log: LogWriter, *, lag: bool = True) -> None:
        """Write what is pending, if it ends with a commit, and report it."""
        if not log.pending_complete:
            return
        rows = log.pending_rows
        first = self._first_pending
        flushed = log.flush()
        self._first_pending = None
        if flushed is None:
            return
        self._credit = False
        self._captured += rows
        self._all_logged()
        self._note_written()
        self._remember(log)
        waited = 0.0 if first is None else self._clock() - first
        self._reports.append(Flushed(flushed.entry, waited))
        if lag and not self._source.traits.measures_lag:
            # A source that asks its database is asked every second, and not for every flush.
            self._report_lag()

    def _note_written(self) -> None:
        """Take note that the log could be written, or that there is nothing to write."""
        if self._unwritten and self._connected:
            self._unwritten = False
            self._move("streaming")

    def _remember(self, log: LogWriter) -> None:
        if log.source_position is None:
            return
        self._synced.add(log.end, log.source_position)
        if self._notifier is not None:
            self._notifier.synced(log.source_position)

    def _report_lag(self) -> None:
        lag = self._source.lag()
        now = self._last_lag = self._clock()
        if lag.age is not None:
            self._all_read = now - lag.age
        if self._first_pending is None:
            self._all_logged()
            if not (lag.changes or lag.bytes):
                self._note_written()
        age = None if self._current is None else now - self._current
        seconds = lag.seconds
        if self._first_pending is not None and self._source.traits.measures_lag:
            # What has been read can be old, and is not in the log.
            seconds = age
        self._reports.append(
            LagReport(
                lag.changes, seconds, self._captured, lag.bytes, lag.room, age, lag.silence, now
            )
        )

    def _all_logged(self) -> None:
        """Take note that the log has everything that was read."""
        if self._all_read is not None:
            self._current = self._all_read

    @property
    def _lag_at(self) -> float:
        """When to report the lag again."""
        soon = self._source.traits.measures_lag and not self._is_current
        return self._last_lag + (FIRST_LAG_SECONDS if soon else LAG_SECONDS)

    @property
    def _is_current(self) -> bool:
        """Whether at the last report the log had everything that was committed a moment before."""
        return self._current is not None and self._last_lag - self._current <= 2 * LAG_SECONDS

    # --- between two reads -----------------------------------------------------------------

    def _housekeeping(self, log: LogWriter, *, reads: bool) -> None:
        """Do a piece of each kind of work that is due, and note when it is due again."""
        self._copies.advance(log, lambda: self._flush(log))
        if self._heartbeat_due(log):
            self._write_heartbeat(log)
        self._maintenance.advance(log, self._copies.firsts)
        if reads and self._selection.due and log.pending_complete:
            self._add_new_tables(log)
        if self._clock() >= self._lag_at:
            if self._is_current and not log.segments.pace:
                # Else under a steady load there would always be something that is not in the log.
                self._flush(log, lag=False)
            self._report_lag()
        more = self._copies.active or self._maintenance.active
        self._busy = more or not log.pending_complete
        times = (self._lag_at, self._copies.due, self._maintenance.due)
        self._housekeeping_at = min(at for at in times if at is not None)

    def _has_room(self, log: LogWriter) -> bool:
        """
        Return whether to read: not while the log is full (R28).

        Lag is still reported then, which shows the source that its reader is alive.
        """
        maintenance, copies = self._maintenance, self._copies
        full = copies.held = maintenance.full(log)
        if full and self._state != "full":
            self._flush(log)
            self._move("full", f"The log is almost full: {log.size:,} of {maintenance.cap:,} bytes")
        elif not full and self._state == "full":
            self._move("streaming")
        copied = copies.required_end > log.end.commit
        return not full or (copied and maintenance.kept_for_copies(log, copies.firsts))

    def _heartbeat_due(self, log: LogWriter) -> bool:
        """Whether to move the log's end although no captured table changed (R34)."""
        if self._moved is None or self._first_pending is not None:
            return False
        return bool(self._markers) or due(
            log.end.commit,
            self._moved.commit,
            # A baseline counts once the log has passed its end, so do not let it wait for that.
            wanted=self._copies.required_end,
            waited=self._clock() - self._last_heartbeat,
            counts_bytes=self._source.traits.counts_bytes,
        )

    def _write_heartbeat(self, log: LogWriter) -> None:
        assert self._moved is not None
        written = log.heartbeat(self._moved, self._markers)
        self._moved, self._markers = None, ()
        self._last_heartbeat = self._clock()
        if written is not None:
            self._note_written()
            self._remember(log)
            self._reports.append(Flushed(written.entry))

    def _maintain_source(self, log: LogWriter) -> None:
        """Let the source do its maintenance, and write the notices about what it found."""
        assert self._maintained is not None
        self._maintain_at = self._clock() + self._maintained.maintain()
        if self._has_notices():
            self._write_notices(log)

    def _has_notices(self) -> bool:
        if self._notifier is not None:
            self._notices += self._notifier.notices()
        return bool(self._notices)

    def _write_notices(self, log: LogWriter) -> None:
        """Write the source's notices: what it reports in addition to changes."""
        if not log.pending_complete:
            self._write_early_notes(log)
            return
        self._flush(log)
        for each in _once(self._notices):
            # A pipeline that takes only changes has no baseline, and must learn of missing ones.
            known = each.missing and log.schema(each.table) is not None
            if each.rebaseline_reason and (known or log.has_baseline(each.table)):
                self._reports.append(
                    Flushed(
                        log.require_baseline(
                            each.table, each.rebaseline_reason, missing=each.missing
                        ).entry
                    )
                )
                self._remember(log)
                why = rebaseline_phrase(each.rebaseline_reason)
                self._warn(
                    CopiedAgain(
                        f"Table {each.table} is copied again: {why}",
                        table=each.table,
                        reason=each.rebaseline_reason,
                    )
                )
            if each.rebaseline_reason:
                self._copies.give_up(each.table)
            if each.note:
                log.note(each.note, each.table)
            if each.problem is not None:
                self._warn(each.problem)
        self._notices = []

    def _write_early_notes(self, log: LogWriter) -> None:
        """Write what must be in the log before the commit whose next part was read."""
        kept: list[SourceNotice] = []
        for each in self._notices:
            if each.early and not any(one.table == each.table for one in kept):
                log.note(each.note, each.table)
            else:
                kept.append(each)
        self._notices = kept

    def _warn(self, problem: HeadraceError) -> None:
        self._reports.append(Warned(Failed.of(problem, stops=False)))

    def _add_new_tables(self, log: LogWriter) -> None:
        """Capture new tables that match a pattern (H2)."""
        left_out = self._selection.report
        new = self._selection.look()
        for table in new:
            # If the log has rows of the table, they are from an earlier time. Written before the
            # table is captured: after a crash in between, nothing else would show it.
            self._notices.append(SourceNotice(table, rebaseline_reason="left out", missing=True))
            self._write_notices(log)
            if not self._selection.take(table):
                raise Reopening("Opening the source again for a new table", table=table)
            log.describe(self._selection.found)
            note_captured(log, self._selection.tables)
            if self._maintained is not None:
                self._maintain_at = self._clock()
        if new or self._selection.report != left_out:
            self._reports.append(self._selection.report)

    # --- commands of the engine ------------------------------------------------------------

    def _obey(self, command: Command) -> None:
        if not isinstance(command, FlushNow | Acknowledge):
            self._housekeeping_at = self._clock()
        match command:
            case FlushNow():
                self._credit = True
                if self._log is not None and self._flush_due(self._log, asked=True):
                    self._flush(self._log)
            case Acknowledge(position):
                self._asked = Position.parse(position)
                if self._connected and self._log is not None:
                    self._acknowledge(self._log)
            case TakeBaseline(table, shared):
                self._request_baseline(table, shared=shared)
            case CopyDone():
                self._copies.copied(command)
            case CopyFailed():
                self._copies.failed(command)
            case MaintainLog():
                self._maintenance.take(command)
            case Reset():
                self._resetting = command
                self._pause, self._lost = self._first_pause, 0
                self._lose("Reset was requested: all tables are copied again", "resetting")
            case StopRecorder():
                if self._log is not None:
                    self._flush(self._log, lag=False)
                self._move("closed")
                self._end()

    def _acknowledge(self, log: LogWriter) -> None:
        if self._asked is None:
            return
        if self._asked > log.end:
            # Invariant 1: the log is synced before the source discards anything.
            raise RecorderFailed(
                "Cannot acknowledge changes that are not yet synced",
                asked=self._asked,
                synced=log.end,
            )
        text = self._synced.upto(self._asked)
        if text and text != self._acknowledged:
            killpoints.reach(killpoints.BEFORE_ACKNOWLEDGE)
            self._source.acknowledge(text)
            self._acknowledged = text

    def _request_baseline(self, table: str, *, shared: bool) -> None:
        if table not in self._selection.tables:
            if table in self._selection.lost or self._selection.matches(table):
                return  # dropped, or cannot be captured any more: that was already reported
            error = UnknownTable("The table is not captured from this source", table=table)
            self._reports.append(Failed.of(error, stops=False))
            return
        self._copies.want(table, shared=shared)

    # --- opening log and source ------------------------------------------------------------

    def _connect(self) -> None:
        if self._state not in ("failed", "resetting", "watching"):
            self._move("reconnecting" if self._state else "connecting")
        # The log is opened before the source (R31), and stays open while the source is away.
        log = self._log = self._log or self._open_log()
        origin = self._source.origin
        if log.origin and log.origin != origin and not same_space(self._source, log.lineage):
            # Checked before anything is set up there: it may be another owner's database.
            raise OtherDatabase(
                "This is not the database that the log was recorded from", source=origin
            )
        if self._notifier is not None:
            known = ((table, log.schema(table)) for table in self._selection.tables)
            self._notifier.recall(log.notes, {name: each for name, each in known if each})
        if self._resetting is not None:
            # Before the checks: the reset may remove the cause of a problem.
            self._reset(self._resetting, log.source_position)
        lost = self._selection.lost.keys()
        described = self._selection.all(self._recorded)
        if described and self._state == "watching":
            self._move("reconnecting")  # before it is known that these tables are there again
        for table in sorted(self._selection.lost.keys() - lost):
            if not _left_out(log, table):  # otherwise an earlier recorder has reported it
                self._warn(_table_lost(table, self._selection.lost[table]))
        log.describe(described)
        self._copies.keep(described)
        self._reports.append(TablesDescribed(tuple(map(FoundTable.of, described.values()))))
        # Always: the engine may have heard of lost tables from an earlier recorder.
        self._reports.append(self._selection.report)
        if not described:
            # No table matches a pattern yet, or all tables are lost: there is nothing to open.
            if self._source.traits.releases:
                cast(Releases, self._source).release()
            if log.lineage is not None:
                note_captured(log, ())
            self._pause, self._lost = self._first_pause, 0
            self._move("watching")
            self._retry_at = self._selection.next_look
            return
        try:
            if self._notifier is not None and (claim := self._notifier.claim()):
                # Before it is created: after a crash in between it is known to be ours.
                log.note(claim)
            at = self._source.open(log.source_position)
            self._moved, self._markers = None, ()
            reason = break_at(log, at, self._source.traits.resumes)
            if reason is not None:
                self._copies.required_end = 0
                self._current = self._all_read = None
                if reason != "start":
                    # Before it begins: after a crash in between it is reported by the next process.
                    log.note(json.dumps([str(log.end), self._break_cause()]), _BREAK)
                    self._break_reported = False
                log.begin(at, reason, origin)
                killpoints.reach(killpoints.LOG_BEGUN)
            if (noted := log.notes.get(_BREAK)) and not self._break_reported:
                end, why = json.loads(noted)
                self._warn(_history_lost(end, why, log.end, described))
                self._break_reported = True
            self._reset_done = False
        except LostLog:
            # Perhaps to the last entry of an earlier recorder, while the log was empty and
            # could not be claimed: opening it again shows which one is newer (R31).
            self._log = None
            self._source.close()
            return
        self._notices = tables_to_rebaseline(log, described, begun=reason is not None)
        if self._has_notices():
            self._write_notices(log)
        note_captured(log, described)
        # This includes entries that an earlier recorder wrote but was killed before reporting.
        self._reports.append(Flushed(log.last_entry))
        self._connected = True
        self._synced.clear()
        self._remember(log)
        self._acknowledged = ""
        self._last_heartbeat = self._housekeeping_at = self._clock()
        self._last_lag = -math.inf
        self._maintain_at = math.inf if self._maintained is None else self._clock()
        if not self._unwritten:  # otherwise it has failed until something was written
            self._move("streaming")
        self._acknowledge(log)

    @property
    def _recorded(self) -> Collection[TableName]:
        """The named tables that the log knows: they were captured before."""
        if (log := self._log) is None:
            return ()
        return [name for name in self._selection.named if log.schema(name) is not None]

    def _reset(self, asked: Reset, after: str | None) -> None:
        if not self._source.traits.resets:
            raise SourceRefused("This kind of source cannot be reset", source=self._source.name)
        cast(Resets, self._source).reset(after, drop_publication=asked.drop_publication)
        self._resetting = None
        self._reset_done = True

    def _break_cause(self) -> str:
        """Return why the log does not continue after its end."""
        if self._reset_done:
            return "A reset was requested"
        if self._source.traits.explains_breaks and (
            why := cast(ExplainsBreaks, self._source).break_cause()
        ):
            return why
        return "The source does not continue where the log ends"

    def _wait(self, reason: str) -> None:
        """Report what the source waits for; the source calls this in the middle of a step."""
        if self.pressed():
            raise Reopening("The wait was ended by a command")
        self._move("waiting", reason)
        if self.on_report is not None:
            for report in self._reports:
                self.on_report(report)
            self._reports.clear()

    # --- errors, and the end ---------------------------------------------------------------

    def _lose(self, reason: str, state: str) -> None:
        """Close the source, and try again later."""
        self._copies.stop()
        self._connected = False
        self._source.close()
        if self._log is not None:
            try:
                # The source may be away for long, so write what was read from it. An incomplete
                # commit must be discarded, though, which only opening the log again does.
                if self._notices:
                    self._write_notices(self._log)
                self._flush(self._log, lag=False)
                if not self._log.pending_complete:
                    self._log = None
            except StorageError as second:
                self._lose_log(second)
                return
            except HeadraceError as second:
                self._fail(second)
                return
        self._first_pending = None
        self._all_read = None
        self._move(state, reason)
        self._retry_at = self._clock() + self._pause
        longest = self._reconnect.longest_pause
        longest = LONGEST_PAUSE_SECONDS if longest is None else longest
        self._pause = min(self._pause * 2, longest)

    def _lose_log(self, error: StorageError) -> None:
        """Stop appending; the log is opened again from its index and continues after it (R36)."""
        self._log = None
        self._unwritten = True
        self._reports.append(Failed.of(error, stops=False))
        self._lose(self._reason(error), "failed")

    def _fail(self, error: HeadraceError) -> None:
        """Stop for good: a retry does not help against this error."""
        self._reports.append(Failed.of(error, stops=True))
        self._move("failed", self._reason(error))
        self._end()

    def _end(self) -> None:
        self._copies.stop()
        self._connected = False
        self._log = None
        self._source.close()
        self.done = True

    def _reason(self, error: HeadraceError) -> str:
        """Return what is shown next to the state, with the names that the message leaves out."""
        return with_facts(error.message, error.facts, self._source.name)

    def _move(self, state: str, reason: str = "") -> None:
        if state != self._state or reason:
            self._state = state
            self._reports.append(StateReport(state, reason))


# --- positions that moved without a change --------------------------------------------------------

HEARTBEAT_SECONDS = 10.0
"""The shortest interval between heartbeats: idle days should leave few entries."""

HEARTBEAT_BYTES = 16 << 20
"""A heartbeat is due earlier if the source, which counts bytes, could discard this much."""


def due(end: int, moved: int, *, wanted: int, waited: float, counts_bytes: bool) -> bool:
    """
    Return whether to move the log's end from commit `end` to `moved`.

    `waited` is the number of seconds since it last moved. `wanted` is a commit that the log has
    to reach for a baseline; 0: none.
    """
    if end < wanted <= moved or waited >= HEARTBEAT_SECONDS:
        return True
    return counts_bytes and moved - end > HEARTBEAT_BYTES


# --- whether a source continues a log -------------------------------------------------------------

_CAPTURED = "captured/"
"""The name of the note with the captured tables; no table can have this name."""

_BREAK = "break/"
"""The name of the note with a break of the history that is not reported yet: where, and why."""


def same_space(source: Recordable, known: str | None) -> bool:
    """Whether a source at another address is the one that the log was recorded from."""
    now = source.lineage()
    # A lineage may have branched since: then it begins with the source's own.
    return now is not None and known is not None and f"{known}/".startswith(f"{now}/")


def tables_to_rebaseline(
    log: LogWriter, described: Mapping[TableName, TableSchema], *, begun: bool
) -> list[SourceNotice]:
    """
    Return a notice for each table whose rows in the log are no longer right.

    If a new history has `begun`, all tables need a new baseline anyway.
    """
    found = [
        SourceNotice(name, rebaseline_reason="columns")
        for name, now in described.items()
        if _outgrown(log, now)
    ]
    if not begun:
        lapsed = (name for name in described if _left_out(log, name))
        found += [SourceNotice(name, rebaseline_reason="left out", missing=True) for name in lapsed]
    return found


def _once(notices: Sequence[SourceNotice]) -> list[SourceNotice]:
    """Return notices without those that another one of the same table says as well, or better."""
    best = {(each.table, each.rebaseline_reason): each for each in notices if each.missing}
    return [
        each
        for each in notices
        if not each.rebaseline_reason
        or each.note
        or each.missing
        or (each.table, each.rebaseline_reason) not in best
    ]


def _outgrown(log: LogWriter, schema: TableSchema) -> bool:
    """Whether the table's rows in the log are no longer valid under this schema."""
    known = log.schema(schema.table) if log.has_baseline(schema.table) else None
    return known is not None and not keeps_rows(known, schema)


def _left_out(log: LogWriter, table: TableName) -> bool:
    """Whether the log has a table that was not captured in the previous run."""
    noted = log.notes.get(_CAPTURED)
    # None: the log is from a version that did not write this note.
    return noted is not None and table not in json.loads(noted) and log.schema(table) is not None


def _history_lost(end: str, why: str, begins: Position, tables: Iterable[TableName]) -> HistoryLost:
    """Return the notice that the log does not continue after its end."""
    names = sorted(tables)
    return HistoryLost(
        f"{why}. Changes between {end} and {begins} may be missing from the log, and every table is"
        f" copied again: {listed(names)}",
        end=end,
        begins=begins,
        tables=", ".join(names),
    )


def _table_lost(table: TableName, why: HeadraceError) -> TableLost:
    facts = {"table": table, **why.facts}
    return TableLost(
        f"Table {table} is not captured any more, and nothing more of it is delivered; all other"
        f" tables continue. {with_facts(why.message, facts, table)}",
        table=table,
        cause=why.code,
    )


MOST_NAMED = 20


def listed(names: Sequence[str]) -> str:
    """Return names for a message; if there are very many, the first of them."""
    more = len(names) - MOST_NAMED
    return ", ".join(names[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


def note_captured(log: LogWriter, tables: Iterable[TableName]) -> None:
    """Note which tables are captured from now on: changes of other tables are not in the log."""
    log.note(json.dumps(sorted(tables)), _CAPTURED)


def break_at(log: LogWriter, at: SourcePosition, resumes: bool) -> str | None:
    """Return why the history does not continue at `at`; None if it does (R1)."""
    if log.lineage is None:
        return "start"
    if at.lineage != log.lineage:
        return "lineage"
    # A source that cannot resume may reach the same position without the changes in between.
    return None if resumes and str(at) == log.source_position else "gap"


# --- durable positions ----------------------------------------------------------------------------

MOST_REMEMBERED = 20_000


class SyncedPositions:
    """Durable positions in order; only these are ever acknowledged."""

    def __init__(self) -> None:
        self._positions: deque[tuple[Position, str]] = deque()

    def add(self, end: Position, source: str) -> None:
        """Add the current end of the log, and the source's own position for it."""
        self._positions.append((end, source))
        if len(self._positions) > MOST_REMEMBERED:
            # Fewer positions are safe: the one acknowledged is still at or before the one asked.
            self._positions = deque(list(self._positions)[::2])

    def upto(self, asked: Position) -> str:
        """Return the source's position for the newest one at or before `asked`; empty: none."""
        text = ""
        positions = self._positions
        while positions and positions[0][0] <= asked:
            text = positions[0][1]
            if len(positions) == 1 or positions[1][0] > asked:
                break
            positions.popleft()
        return text

    def clear(self) -> None:
        """Forget all positions."""
        self._positions.clear()


if __name__ == "__main__":
    from headrace.capture.process import main

    sys.exit(main(sys.argv[1:]))
