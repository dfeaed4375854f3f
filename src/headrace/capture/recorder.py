"""
The recorder: from a source into its log, of which it is the only writer.

It is a step machine. Time, source and log come in by argument; a step obeys what the
engine asked, reads what there is, and writes what is due. Nothing in it waits except
the source's own `read`, so a simulation can drive it through every interleaving (P2).

The path of a change is `_stream`: read, append, flush, report. Baselines, the maintenance of log
and source, heartbeats, new tables and lag are `_housekeeping`: it is done between two reads, a
piece at a time, and not entered before something in it is due.

When a flush is due (R10): 5 ms after the first change while the engine is idle, which it
says once for each batch it could take; otherwise 1 s after it; at a size limit; always
at the end of a commit. So a busy engine finds one file where there would be a hundred. In a
storage that is paid by the write, it is never as soon as 5 ms. A position that moved without a
change enters the index by `due` (R34).

Whatever goes wrong on the way, what the index names is the truth: on any error the recorder forgets
what it held, opens log and source again and reads on after the last synced entry. Nothing was
acknowledged beyond that (invariant 1), so nothing is lost. Whether what the source has now
continues where the log ends is decided at each opening by pure functions (`break_at`, `owed`).
`SyncedPositions` remembers the places that are durable, as positions of the log and as the source
writes them.

Long because every step shares one state, and each error must leave all of it in the same way.
"""

from __future__ import annotations

import json
import math
import sys
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import cast

from headrace.capture.baselines import BaselineRequests
from headrace.capture.log_maintenance import HOLD_SECONDS, LogMaintenance
from headrace.capture.messages import (
    Acknowledge,
    Command,
    CopyDone,
    CopyFailed,
    Failed,
    Flushed,
    FlushNow,
    LagReport,
    MaintainLog,
    Report,
    Reset,
    StateReport,
    StopRecorder,
    TakeBaseline,
    Warned,
)
from headrace.capture.source import Maintains, News, Recordable, Resets, Tells, Waits
from headrace.capture.table_selection import TableSelection
from headrace.changelog.change import Changes
from headrace.changelog.position import Position, SourcePosition
from headrace.changelog.reader import LIMIT_BYTES, LIMIT_ROWS, LogWriter
from headrace.changelog.schema import TableName, TableSchema, keeps_rows
from headrace.errors import (
    HeadraceError,
    LostLog,
    OtherDatabase,
    RecorderFailed,
    SourceRefused,
    SourceUnreachable,
    StorageError,
    UnknownTable,
)
from headrace.storage import killpoints

READ_ROWS = 20_000
"""Asked for in one read: limits stay responsive, and the source's transactions short (R44)."""

SOON_SECONDS = 0.005
LATE_SECONDS = 1.0
"""From the first change to its flush, while the engine is idle, and while it is busy (R10)."""

LAG_SECONDS = 1.0
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
    ) -> None:
        self.done = False
        self.tell: Callable[[Report], object] | None = None
        """Takes at once what cannot wait for the end of a step; None: nobody listens."""

        self.pressed: Callable[[], bool] = lambda: False
        """Says whether a command has come that must not wait for others at the source."""

        self._source = source
        self._open_log = open_log
        self._selection = TableSelection(source, tables, selections, clock)
        self._clock = clock
        self._teller = cast(Tells, source) if source.traits.tells else None
        self._maintained = cast(Maintains, source) if source.traits.maintains else None
        if source.traits.waits:
            cast(Waits, source).on_wait = self._wait
        self._resetting: Reset | None = None
        self._news: list[News] = []
        self._log: LogWriter | None = None
        self._connected = False
        self._state = ""
        self._reports: list[Report] = []
        self._retry_at = clock()
        self._pause = FIRST_PAUSE_SECONDS
        self._credit = False
        self._first_pending: float | None = None
        self._moved: SourcePosition | None = None
        self._markers: tuple[str, ...] = ()
        """Those that came with nothing else since."""

        self._last_heartbeat = clock()
        self._last_lag = clock()
        self._captured = 0
        self._copies = BaselineRequests(source, lambda report: self._reports.append(report), clock)
        self._maintenance = LogMaintenance(lambda report: self._reports.append(report), clock)
        self._housekeeping_at = clock()
        """When `_housekeeping` is due at the latest."""

        self._busy = False
        """Whether it is due after every read: something goes on, or waits for a commit's end."""

        self._maintain_at = math.inf
        """When the source is due to be maintained."""

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
        """Obey `commands`, then read for up to `wait` seconds and write what is due."""
        self._reports = []
        if not self.done:
            try:
                self._advance(commands, wait)
            except SourceUnreachable as error:
                self._lose(error.message, "reconnecting")
            except StorageError as error:
                self._lose_log(error)
            except HeadraceError as error:
                if self._selection.lost_one():
                    self._lose(error.message, "reconnecting")
                else:
                    self._fail(error)
        return self._reports

    def _advance(self, commands: Sequence[Command], wait: float) -> None:
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
        """Read, append, flush, report; what else is due is done between two reads."""
        if reads := log.size < self._maintenance.full_at or self._has_room(log):
            if self._clock() >= self._maintain_at:
                self._maintain_source(log)
            changes = self._source.read(READ_ROWS, self._patience(wait))
            # Only now is it a success: a source may open and then not read.
            self._pause = FIRST_PAUSE_SECONDS
            if self._has_notices():
                # Before what was read: whoever reads the log learns it first.
                self._write_notices(log)
            if changes is not None:
                killpoints.reach(killpoints.CHANGES_READ)
                self._append(log, changes)
            if self._flush_due(log):
                self._flush(log)
        beats = self._moved is not None and self._heartbeat_due(log)
        if beats or self._busy or self._clock() >= self._housekeeping_at:
            self._housekeeping(log, reads=reads)

    def _patience(self, wait: float) -> float:
        """How long reading may wait: until the next thing that is due."""
        if self._reports:
            # What there is to tell is told before anything is waited for.
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
                self._flush(log)  # who takes columns in their turn does so between two flushes
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
            (asked and not log.segments.pace)  # where writes are paid for, changes gather
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
        self._remember(log)
        gathered = 0.0 if first is None else self._clock() - first
        self._reports.append(Flushed(flushed.entry, gathered))
        if lag:
            self._report_lag()

    def _remember(self, log: LogWriter) -> None:
        if log.source_position is None:
            return
        self._synced.add(log.end, log.source_position)
        if self._teller is not None:
            self._teller.synced(log.source_position)

    def _report_lag(self) -> None:
        lag = self._source.lag()
        self._last_lag = self._clock()
        self._reports.append(
            LagReport(lag.changes, lag.seconds, self._captured, lag.bytes, lag.room)
        )

    # --- between two reads -----------------------------------------------------------------

    def _housekeeping(self, log: LogWriter, *, reads: bool) -> None:
        """Do a piece of all that is due besides reading, and note when it is due again."""
        self._copies.advance(log, lambda: self._flush(log))
        if self._heartbeat_due(log):
            self._write_heartbeat(log)
        self._maintenance.advance(log, self._copies.firsts)
        if reads and self._selection.due and log.pending_complete:
            self._add_new_tables(log)
        if self._clock() - self._last_lag >= LAG_SECONDS:
            self._report_lag()
        more = self._copies.active or self._maintenance.active
        self._busy = more or not log.pending_complete
        times = (self._last_lag + LAG_SECONDS, self._copies.due, self._maintenance.due)
        self._housekeeping_at = min(at for at in times if at is not None)

    def _has_room(self, log: LogWriter) -> bool:
        """
        Whether to read: not while the log is full (R28).

        Lag is still reported then, by which the source learns that its reader is there.
        """
        maintenance, copies = self._maintenance, self._copies
        full = copies.held = maintenance.full(log)
        if full and self._state != "full":
            self._flush(log)
            self._move("full", f"The log is almost full: {log.size} bytes")
        elif not full and self._state == "full":
            self._move("streaming")
        copied = copies.owed_end > log.end.commit
        return not full or (copied and maintenance.kept_for_copies(log, copies.firsts))

    def _heartbeat_due(self, log: LogWriter) -> bool:
        """Whether the log's end is to follow a source in which nothing of ours changes (R34)."""
        if self._moved is None or self._first_pending is not None:
            return False
        return bool(self._markers) or due(
            log.end.commit,
            self._moved.commit,
            # A baseline counts once the log has passed its end: nobody waits for that.
            wanted=self._copies.owed_end,
            waited=self._clock() - self._last_heartbeat,
            counts_bytes=self._source.traits.counts_bytes,
        )

    def _write_heartbeat(self, log: LogWriter) -> None:
        assert self._moved is not None
        beat = log.heartbeat(self._moved, self._markers)
        self._moved, self._markers = None, ()
        self._last_heartbeat = self._clock()
        if beat is not None:
            self._remember(log)
            self._reports.append(Flushed(beat.entry))

    def _maintain_source(self, log: LogWriter) -> None:
        """Let the source do what it has to besides reading, and write what it found."""
        assert self._maintained is not None
        self._maintain_at = self._clock() + self._maintained.maintain()
        if self._has_notices():
            self._write_notices(log)

    def _has_notices(self) -> bool:
        if self._teller is not None:
            self._news += self._teller.news()
        return bool(self._news)

    def _write_notices(self, log: LogWriter) -> None:
        """Write what the source has to say besides its changes."""
        if not log.pending_complete:
            return
        self._flush(log)
        for each in self._news:
            # Who takes changes alone has no baseline, and must learn of those that are missing.
            known = each.missing and log.schema(each.table) is not None
            if each.owed and (known or log.has_baseline(each.table)):
                self._reports.append(
                    Flushed(log.owe(each.table, each.owed, missing=each.missing).entry)
                )
                self._remember(log)
            if each.owed:
                self._copies.give_up(each.table)
            if each.note:
                log.note(each.note, each.table)
            if each.problem is not None:
                self._reports.append(Warned(Failed.of(each.problem, stops=False)))
        self._news = []

    def _add_new_tables(self, log: LogWriter) -> None:
        """Take in tables that came since, and that a pattern stands for (H2)."""
        left_out = dict(self._selection.left_out)
        new = self._selection.look()
        for table in new:
            # If the log has rows of it, they are of an earlier time. Said before it is
            # captured: afterwards nothing would tell, should we die in between.
            self._news.append(News(table, owed="left out", missing=True))
            self._write_notices(log)
            if not self._selection.take(table):
                raise SourceUnreachable("Opening the source again for a new table", table=table)
            log.describe(self._selection.found)
            note_captured(log, self._selection.tables)
            if self._maintained is not None:
                self._maintain_at = self._clock()
        if new or self._selection.left_out.keys() != left_out.keys():
            self._report_found()

    def _report_found(self) -> None:
        if self._selection.patterns:
            self._reports.append(self._selection.report)

    # --- what the engine asks for ----------------------------------------------------------

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
                self._pause = FIRST_PAUSE_SECONDS
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
            # Invariant 1: the log is synced before the source forgets.
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
            if self._selection.matches(table):
                return  # it is gone, or cannot be captured any more: that was said
            error = UnknownTable("The table is not captured from this source", table=table)
            self._reports.append(Failed.of(error, stops=False))
            return
        self._copies.want(table, shared=shared)

    # --- opening log and source ------------------------------------------------------------

    def _connect(self) -> None:
        if self._state not in ("failed", "resetting"):
            self._move("reconnecting" if self._state else "connecting")
        # The log is taken before the source (R31), and kept while the source is away.
        log = self._log = self._log or self._open_log()
        origin = self._source.origin
        if log.origin and log.origin != origin and not same_space(self._source, log.lineage):
            # Asked before anything is set up there: it may be somebody else's database.
            raise OtherDatabase(
                "This is not the database that the log was recorded from", source=origin
            )
        if self._teller is not None:
            known = ((table, log.schema(table)) for table in self._selection.tables)
            self._teller.recall(log.notes, {name: each for name, each in known if each})
        if self._resetting is not None:
            # Before it is checked: what is in the way may be what is removed.
            self._reset(self._resetting, log.source_position)
        described = self._selection.all()
        log.describe(described)
        self._copies.keep(described)
        self._report_found()
        if not described:
            # A pattern that nothing matches yet: there is nothing to open.
            self._move("watching")
            self._retry_at = self._selection.next_look
            return
        try:
            if self._teller is not None:
                # Before it is made: after a death in between it is known to be ours.
                log.note(self._teller.claim())
            at = self._source.open(log.source_position)
            self._moved, self._markers = None, ()
            reason = break_at(log, at, self._source.traits.resumes)
            if reason is not None:
                self._copies.owed_end = 0
                log.begin(at, reason, origin)
                killpoints.reach(killpoints.LOG_BEGUN)
        except LostLog:
            # Perhaps to the last entry of a recorder before us, while the log was empty
            # and could not be claimed: opening it anew tells who is the later one (R31).
            self._log = None
            self._source.close()
            return
        self._news = owed(log, described, begun=reason is not None)
        if self._has_notices():
            self._write_notices(log)
        note_captured(log, described)
        # Also what a recorder before this one made durable and did not live to tell.
        self._reports.append(Flushed(log.last_entry))
        self._connected = True
        self._synced.clear()
        self._remember(log)
        self._acknowledged = ""
        self._last_heartbeat = self._housekeeping_at = self._clock()
        self._maintain_at = math.inf if self._maintained is None else self._clock()
        self._move("streaming")
        self._acknowledge(log)

    def _reset(self, asked: Reset, after: str | None) -> None:
        if not self._source.traits.resets:
            raise SourceRefused("This kind of source cannot be reset", source=self._source.name)
        cast(Resets, self._source).reset(after, drop_publication=asked.drop_publication)
        self._resetting = None

    def _wait(self, reason: str) -> None:
        """Tell whom the source waits for; it calls this in the middle of a step."""
        if self.pressed():
            raise SourceUnreachable("The wait was ended by a command")
        self._move("waiting", reason)
        if self.tell is not None:
            for report in self._reports:
                self.tell(report)
            self._reports.clear()

    # --- errors, and the end ---------------------------------------------------------------

    def _lose(self, reason: str, state: str) -> None:
        """Let go of the source, and come back later."""
        self._copies.stop()
        self._connected = False
        self._source.close()
        if self._log is not None:
            try:
                # The source may be away for long: what it gave need not wait for it. Half a
                # commit must go, though, and only a log opened anew has none.
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
        self._move(state, reason)
        self._retry_at = self._clock() + self._pause
        self._pause = min(self._pause * 2, LONGEST_PAUSE_SECONDS)

    def _lose_log(self, error: StorageError) -> None:
        """Stop appending; the log is opened anew from its index, and read on after it (R36)."""
        self._log = None
        self._reports.append(Failed.of(error, stops=False))
        self._lose(error.message, "failed")

    def _fail(self, error: HeadraceError) -> None:
        """Stop for good: waiting does not mend this one."""
        self._reports.append(Failed.of(error, stops=True))
        self._move("failed", error.message)
        self._end()

    def _end(self) -> None:
        self._copies.stop()
        self._connected = False
        self._log = None
        self._source.close()
        self.done = True

    def _move(self, state: str, reason: str = "") -> None:
        if state != self._state or reason:
            self._state = state
            self._reports.append(StateReport(state, reason))


# --- positions that moved without a change --------------------------------------------------------

HEARTBEAT_SECONDS = 10.0
"""So often at most: idle days shall leave few entries."""

HEARTBEAT_BYTES = 16 << 20
"""Unless the source, whose commits are numbered by bytes, could let go of so much at once."""


def due(end: int, moved: int, *, wanted: int, waited: float, counts_bytes: bool) -> bool:
    """
    Whether the log's end is to follow from commit `end` to `moved`, `waited` seconds after it did.

    `wanted` is a commit that somebody waits for the log to come to; 0: nobody does.
    """
    if end < wanted <= moved or waited >= HEARTBEAT_SECONDS:
        return True
    return counts_bytes and moved - end > HEARTBEAT_BYTES


# --- whether a source continues a log -------------------------------------------------------------

_CAPTURED = "captured/"
"""What the note stands under, where no table's own can."""


def same_space(source: Recordable, known: str | None) -> bool:
    """Whether a source at another address is the one that the log was recorded from."""
    now = source.lineage()
    # A lineage may have branched since: then it begins as the source's own does.
    return now is not None and known is not None and f"{known}/".startswith(f"{now}/")


def owed(log: LogWriter, described: Mapping[TableName, TableSchema], *, begun: bool) -> list[News]:
    """
    Return which tables the log's rows are not right of any more.

    Where history has `begun` anew, that is said of all of them already.
    """
    found = [News(name, owed="columns") for name, now in described.items() if _outgrown(log, now)]
    if not begun:
        lapsed = (name for name in described if _left_out(log, name))
        found += [News(name, owed="left out", missing=True) for name in lapsed]
    return found


def _outgrown(log: LogWriter, schema: TableSchema) -> bool:
    """Whether the rows that the log has of a table are not what it holds under this schema."""
    known = log.schema(schema.table) if log.has_baseline(schema.table) else None
    return known is not None and not keeps_rows(known, schema)


def _left_out(log: LogWriter, table: TableName) -> bool:
    """Whether the log knows a table that was not captured last time."""
    noted = log.notes.get(_CAPTURED)
    # None: a log from before this was noted.
    return noted is not None and table not in json.loads(noted) and log.schema(table) is not None


def note_captured(log: LogWriter, tables: Iterable[TableName]) -> None:
    """Keep which tables are captured from now on; what changes in others the log does not have."""
    log.note(json.dumps(sorted(tables)), _CAPTURED)


def break_at(log: LogWriter, at: SourcePosition, resumes: bool) -> str | None:
    """Return why history does not simply go on at `at`; None when it does (R1)."""
    if log.lineage is None:
        return "start"
    if at.lineage != log.lineage:
        return "lineage"
    # A source that cannot resume may come to the same place without what lies between.
    return None if resumes and str(at) == log.source_position else "gap"


# --- durable places -------------------------------------------------------------------------------

MOST_REMEMBERED = 20_000


class SyncedPositions:
    """Places in order; what is acknowledged is always one of them."""

    def __init__(self) -> None:
        self._places: deque[tuple[Position, str]] = deque()

    def add(self, end: Position, source: str) -> None:
        """Note where the log ends now, and what the source calls that."""
        self._places.append((end, source))
        if len(self._places) > MOST_REMEMBERED:
            # Coarser is safe: what is acknowledged is always at or before what was asked.
            self._places = deque(list(self._places)[::2])

    def upto(self, asked: Position) -> str:
        """Return the newest place at or before `asked`, in the source's words; empty: none."""
        text = ""
        places = self._places
        while places and places[0][0] <= asked:
            text = places[0][1]
            if len(places) == 1 or places[1][0] > asked:
                break
            places.popleft()
        return text

    def clear(self) -> None:
        """Forget all."""
        self._places.clear()


if __name__ == "__main__":
    from headrace.capture.process import main

    sys.exit(main(sys.argv[1:]))
