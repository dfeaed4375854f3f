"""
One running pipeline, as a machine of small steps.

A step loads a baseline, applies a batch to a loaded table that catches up, delivers the next batch
of the log through Spark to the target, or finds nothing to do. Time, log, runner, store and target
are arguments, and no thread is started here, so all of it runs in the simulation, where a seed
decides every interleaving. The engine calls `step` from a thread of its own.

`step` → `_follow` → `Delivery.deliver` is the path of a change, and most steps do nothing else.
All other work (requests, new tables, gaps, changed columns, baselines to load) is in `_prepare`,
which only looks for it if something was requested, a table is not live, or the log has an entry
other than more changes.

Live tables advance together: a batch has all their changes up to one position (R23d). A table that
is loaded catches up separately, and joins them at their position (R12, H3).

Long because every kind of work is a part of the one step, and requests may come between any two.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import ClassVar

from headrace.capture.source import SourceTraits, rebaseline_phrase
from headrace.changelog.position import ORIGIN, Position, before_corrections
from headrace.changelog.schema import TableName, TableSchema
from headrace.errors import (
    AlreadyStored,
    CannotReplay,
    ChangesMissing,
    Fenced,
    HeadraceError,
    JobCancelled,
    LoadedAgain,
    LostLog,
    NotRunning,
    TargetError,
)
from headrace.observe.counters import OF_NO_TABLE, OperationCounts
from headrace.observe.events import (
    AttemptFailed,
    PipelineStateChanged,
    PolicyTriggered,
    RebaselineTriggered,
)
from headrace.pipeline.definition import Pipeline
from headrace.runtime.corrections import Corrections, ReplayOutcome, ReplayRequest
from headrace.runtime.delivery import Delivery
from headrace.runtime.info import RowCounts
from headrace.runtime.model import (
    Again,
    Member,
    PipelineState,
    TableState,
    Watermark,
    decide,
    resumed,
    watermark,
)
from headrace.runtime.new_tables import NewTables
from headrace.runtime.run_context import RunContext
from headrace.runtime.schema_changes import SchemaChanges
from headrace.runtime.target_load import Loads, is_newer
from headrace.runtime.wal_pressure import LagExcess, LagWatch, PipelineRelease
from headrace.targets.target import FindsItself, Target

MOST_ROWS = 400_000
"""The limit of a batch: about what one job returns with a heap of 1 GB, without a pause."""

STORE_EVERY = 10.0
"""Seconds between stored progress of a volatile target, which is rebuilt anyway (R34)."""

_REQUESTED = "a new copy was requested"
_INTERRUPTED = "its load was not finished before the restart"

IDLE = math.inf
"""Nothing to do until the thread is woken."""


class _Stay:
    """Whether a run is inside its target, which it may still be after it was abandoned."""

    _left: ClassVar[dict[int, _Stay]] = {}
    """By target, who was left inside; another engine of this process may be given the target."""
    _lock: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self, target: Target) -> None:
        self._target = target
        self._inside = False

    def __enter__(self) -> None:
        self._inside = True

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._inside = False
            if self._left.get(id(self._target)) is self:
                del self._left[id(self._target)]

    def leave(self) -> None:
        """Note that this run is no longer waited for."""
        with self._lock:
            if self._inside:
                self._left[id(self._target)] = self

    def check(self) -> None:
        """Raise `TargetError` if another run was left inside the same target object."""
        if self._left.get(id(self._target), self) is not self:
            raise TargetError(
                "A call of this target from before its pipeline was stopped has not returned",
                remedy="The pipeline begins when that call returns. If it never does, restart the"
                " process.",
                target=self._target.traits.type,
            )


class PipelineRun:
    """
    Delivers tables of one source to one target. `step` is for one thread.

    `pause`, `resume`, `ask_reload`, `release_source` and everything that only reads may be called
    from other threads.
    """

    def __init__(
        self,
        name: str,
        source: str,
        pipeline: Pipeline,
        traits: SourceTraits,
        context: RunContext,
        most_rows: int = MOST_ROWS,
    ) -> None:
        self.name = name
        self.source = source
        self.pipeline = pipeline
        self.context = context
        self.tables = pipeline.tables
        self.target: Target = pipeline.target
        self.kind = self.target.traits.type
        self.row_counts = RowCounts(self.target.row_count, context.clock)
        self.started = context.wall()
        self.members: tuple[Member, ...] = ()
        self._error: HeadraceError | None = None
        self._halt: HeadraceError | None = None
        """Why it must not take another step although nothing of its own has failed."""
        self.error_since: float | None = None
        """When `error` began, in seconds since 1970; a retry that fails again does not move it."""
        self.lost: Mapping[TableName, HeadraceError] = {}
        """Tables that cannot be captured any more, each with the reason; the others continue."""
        self.lost_since: float | None = None
        """When there were lost tables first, in seconds since 1970."""
        self.recalled = False
        """Whether the stored progress is known; not before the tables are, see `RunContext`."""
        self._opens_since: float | None = None
        self.opened = False
        """Whether the target is open; until then every step tries to open it."""
        self._failed = False
        self.paused = False
        self.stopped = False
        self.requests = 0
        """Counts requests from other threads: each is a reason to take a step."""
        self.prepared = prepared = context.runner.prepare(pipeline, traits)
        """Computes its batches."""
        self.delivery = Delivery(name, pipeline, prepared, context)
        self.release = PipelineRelease(name, context.store)
        self.lag_watch = LagWatch(pipeline.lag)
        self.new_tables = NewTables(pipeline, prepared)
        self._loads = Loads(name, pipeline, self.delivery, context, most_rows)
        self._schema_changes = SchemaChanges(
            name, pipeline, prepared, context, self._rebaseline_all, self._loads.begin_again
        )
        self._most_rows = most_rows
        self._durable = self.target.traits.durable
        self._planned = False
        self._attempts = 0
        self._stuck = False
        """Whether the last step ended on an error that a retry does not fix."""
        self._stored_at = -math.inf
        self._quiet_at: tuple[int, int] | None = None
        """Requests and notices of the log as of the last check that found nothing else to do."""
        self._reloads: deque[tuple[TableName, int]] = deque()
        self._stay = _Stay(self.target)
        self._reported = ""
        """The last state that was reported."""
        self._reporting = threading.Lock()
        self.corrections = Corrections(name, self.delivery, pipeline.mode)

    # -- the path of a change ---------------------------------------------------------

    def step(self) -> float | None:
        """
        Do one piece of work.

        Return None if there may be more to do, the seconds to pause after a failure, or
        `IDLE` if only a new index entry or a request can bring work.
        """
        if self.stopped:
            return IDLE
        try:
            with self._stay:
                return self._step()
        finally:
            self._report_state()

    def _step(self) -> float | None:
        # First of all, even before requests: after this, only a restart helps.
        if self.context.fence.why is not None:
            self.context.fence.look()
        try:
            self._take_requests()
            # A paused pipeline has an open target: its rows can be read.
            if self.failed or (self.paused and self.opened):
                return IDLE
            pause = self._work()
        except (Fenced, LostLog):
            raise
        except HeadraceError as error:
            if isinstance(error, JobCancelled) and self.paused:
                return IDLE  # as requested; the same batch is computed again
            self.delivery.dead_letters_stale |= isinstance(error, AlreadyStored)
            self._note_error(error)
            self._quiet_at = None
            self._attempts += 1
            verdict = decide(error, self._attempts, self.context.retries)
            if isinstance(verdict, Again):
                self._report_failure(error, verdict.after)
                return verdict.after
            # Not stored: once the cause is fixed, a restart continues at the same position.
            self._failed = self._stuck = True
            self.context.on_failure(self.name, error)
            self._report_failure(error, None)
            self.corrections.refuse(error)
            return IDLE
        self._error, self._stuck = None, False
        self._attempts = 0
        return pause

    def _work(self) -> float | None:
        if not self.opened:
            return self._begin()
        self._expire()
        if self._prepare():
            return None
        return None if self._follow() else IDLE

    def _follow(self) -> bool:
        """Deliver the next batch to the live tables, all of a commit together."""
        following = [member for member in self.members if member.following]
        if not following:
            return False
        if self.delivery.intends:
            # The next intent replaces the last one, whose batch must be stored as done first.
            self._store_progress(always=True)
        start = min(member.reached for member in following)
        taking = [member for member in following if member.reached == start]
        # Stop at a table that is further ahead, so that all continue together from there.
        ahead = min((m.reached for m in following if m.reached > start), default=None)
        # And do not go past the columns that the table is delivered in.
        turns = [until for m in taking if (until := m.columns_until) is not None]
        ahead = min([*turns, *([] if ahead is None else [ahead])], default=None)
        batch = self.delivery.next_batch(taking, start, ahead, self._most_rows)
        if batch is None:
            self.delivery.nothing_waits()
            self._store_progress()
            return False
        log = self.context.log
        if self.pipeline.mode == "changes" and any(m.rebaseline_required(log) for m in taking):
            self._quiet_at = None
            return True  # found since this step began: the batch must not go past missing changes
        known = (member.knows(log, batch.files_of(member.table)) for member in taking)
        if not (batch.corrects or all(known)):
            self._quiet_at = None
            return True  # the same: values of unknown columns would be lost
        if batch.files:
            self.delivery.deliver(taking, start, batch)
        else:
            for member in taking:
                member.reached = batch.last  # R34: no changes of these tables: no job and no write
        self._store_progress(always=self._durable and bool(batch.files))
        self.delivery.check()
        return True

    def _expire(self) -> None:
        """Delete the rows that have expired, if it is time to look for them."""
        expiry = self.delivery.expiry
        if expiry is None or expiry.due_in:
            return
        if all(self.delivery.may_insert(member) for member in self.members if member.shown):
            self.delivery.expire(self.members)
        else:
            expiry.put_off()

    @property
    def wakes_in(self) -> float | None:
        """Seconds until there is work that no entry of the log brings; None: never."""
        expiry = self.delivery.expiry
        if expiry is None or self.paused or self.failed or not self.opened:
            return None
        return expiry.due_in

    def _store_progress(self, *, always: bool = False) -> None:
        context = self.context
        due = context.clock() - self._stored_at >= STORE_EVERY
        moved = [m for m in self.members if m.following and m.reached > m.stored]
        if not moved or not (always or due):
            if not self._durable:
                self.delivery.report.stored()
            return
        # Of the history that a table has followed. The log may be of another one already.
        for at, lineage in sorted({(each.reached, self._lineage_of(each)) for each in moved}):
            together = [m for m in moved if (m.reached, self._lineage_of(m)) == (at, lineage)]
            names = [member.table for member in together]
            stored = context.store.advance(self.name, names, lineage, at)
            for member in together:
                member.stored = stored
        self._stored_at = context.clock()
        self.delivery.report.stored()

    def _lineage_of(self, member: Member) -> str:
        return member.lineage or self.context.log.lineage or ""

    # -- start and end ----------------------------------------------------------------

    def prepare(self, schemas: Mapping[TableName, TableSchema]) -> None:
        """Compile the plan on Spark and check the target; raise the errors of either."""
        self._have(self.new_tables.prepared(schemas))
        self._planned = True

    def open(self) -> None:
        """Open the target at its stored progress; raise its error."""
        assert self._planned, "prepare comes first"
        self.recall()
        self._open_target()

    def _begin(self) -> float | None:
        """Open the target once the tables are known; raise its error."""
        if not self.recalled:
            if not self._planned:
                if (schemas := self.context.schemas()) is None:
                    return IDLE
                self.prepare(schemas)
            self.recall()
        self._open_target()
        return None

    @property
    def was_tried(self) -> bool:
        """Whether the target was opened, or failed to open once, or waits for the source."""
        return self.opened or not self.recalled or self.error is not None or self.failed

    def recall(self) -> None:
        """
        Read the stored progress, if the tables are known; a volatile target has none.

        From here on `watermark` holds the source at what is stored, also while the target cannot
        be opened (invariant 1): steps try to open it, as they retry a batch.
        """
        if not self._planned:
            return
        store, changes = self.context.store, self.pipeline.mode == "changes"
        store.note_pipeline(self.name, self.source, durable=self._durable, changes=changes)
        self.paused = store.paused(self.name)
        self.release.open()
        for member in self.members:
            self._recall(member)
            self._resume_table(member)
        self.delivery.recall()
        self.lag_watch.begin(self.context.log, self._following, self.context.wall())
        self.recalled = True
        self._report_state()

    def _open_target(self) -> None:
        self._stay.check()
        self.context.check_run()
        self._opens_since = self.context.clock()
        try:
            self.delivery.open()
            self.new_tables.open(self.members)
            try:
                for member in self.members:
                    self._find(member)
            except BaseException:
                with suppress(Exception):
                    self.new_tables.close()  # the next step opens it again
                raise
        finally:
            self._opens_since = None
        self.opened = True

    @property
    def opening_seconds(self) -> float | None:
        """For how long its target has been being opened; None if it is not."""
        since = self._opens_since
        return None if since is None else self.context.clock() - since

    def close(self) -> None:
        """
        Store progress and open requests, and close the target; nothing may follow.

        After a step that was abandoned nothing is stored, and the target, which is at work, is not
        closed: the batch has to be delivered again.
        """
        if self.abandoned:
            self.stopped = True
            self._report_state()
            return
        if isinstance(self._error, JobCancelled):
            self._error = None  # caused by this stop
        try:
            self._take_requests()
            self._store_progress(always=True)
            self.context.store.store_counts(self.name)
        finally:
            self.stopped = True
            self.corrections.refuse(NotRunning("The pipeline was stopped", pipeline=self.name))
            self.row_counts.close()
            try:
                with self._stay:
                    self.new_tables.close()
            finally:
                self.prepared.close()
                self._report_state()

    @property
    def abandoned(self) -> bool:
        """Whether the engine did not wait for the end of the step that was running."""
        return self.context.abandoned.is_set()

    def abandon(self) -> None:
        """
        Do not wait for the current step any more: it must have no further effect.

        Until it ends, no other run can open the same target object.
        """
        self.context.abandoned.set()
        self._stay.leave()

    def _have(self, members: tuple[Member, ...]) -> None:
        self.members = self._loads.members = members
        self.tables = tuple(member.table for member in members)

    def _recall(self, member: Member) -> None:
        """Read the stored progress of a table."""
        store = self.context.store
        member.schema_id, member.input = self.context.log.known_as(member.input)
        member.stored = store.reached(self.name, member.table)
        member.lineage = store.lineage(self.name, member.table)
        if self._durable:
            member.reached = before_corrections(member.stored)
        self._schema_changes.recall(member)

    def _resume_table(self, member: Member) -> None:
        """Resume a table at its stored state; an interrupted load is repeated (H4)."""
        stored = self.context.store.state(self.name, member.table)
        if stored is None:
            return
        state, baseline = TableState(stored[0]), stored[1] or 0
        if state in (TableState.WAITING, TableState.RELOADING):
            # A requested reload is still required, even after a restart.
            member.newer_than = baseline
        if state == TableState.RELOADING:
            # Its rows are of another baseline: their dead letters still hold changes.
            baseline = self.context.store.reloaded(self.name, member.table, baseline) or baseline
        if self._durable and state not in (TableState.LIVE, TableState.COMPLETE):
            # Why it was begun is not stored.
            member.load_reason = self._reload_reason(member)
        # A durable target continues at its position, unless the log has a gap since (see step).
        if self._durable and state in (TableState.LIVE, TableState.RELOADING, TableState.COMPLETE):
            member.state = resumed(state, self.pipeline.mode, baseline)
            member.baseline = baseline
        if not self._durable and state != TableState.WAITING:
            self._resume_from_log(member)

    def _resume_from_log(self, member: Member) -> None:
        """Rebuild a volatile table that awaits a reload from the log first, as it was before."""
        usable = self.context.log.usable_baseline(member.table)
        after = self.context.store.reload_after(self.name, member.table)
        if usable is not None and not is_newer(usable, after):
            member.newer_than, member.reload_after = 0, after

    def _reload_reason(self, member: Member) -> str:
        required = self.context.log.rebaseline_required(member.table)
        return _INTERRUPTED if required is None else rebaseline_phrase(required.reason)

    def _find(self, member: Member) -> None:
        """Load a table again that the target does not have any more as it was written."""
        if not (self._durable and member.shown and isinstance(self.target, FindsItself)):
            return
        if why := self.target.lost(member.table):
            member.load_reason = f"not as it was left at the target: {why}"
            self.context.note(
                LoadedAgain(
                    f"Table {member.table} of pipeline {self.name} is loaded again, because at its"
                    f" target it is not as it was left: {why}",
                    pipeline=self.name,
                    table=member.table,
                )
            )
            # A requested reload still is: an earlier baseline is not enough.
            self._reset([(member, TableState.WAITING, _newer_than(member))])

    # -- requests ---------------------------------------------------------------------

    def pause(self) -> None:
        """Do nothing from the next step on; stored, so that it survives a restart."""
        self.context.store.set_paused(self.name, True)
        self.paused = True
        self._report_state()

    def resume(self) -> None:
        """Continue after a pause, or retry after a failure."""
        self.context.store.set_paused(self.name, False)
        self.paused = False
        self._recover()
        self._report_state()

    def nudge(self) -> None:
        """Request a step now, without waiting for the pause after a failure."""
        self.requests += 1

    def ask_reload(self, table: TableName, newer_than: int) -> None:
        """Request a baseline with a higher number; the next step stores that it is required."""
        self._reloads.append((table, newer_than))
        self._recover()

    def _recover(self) -> None:
        """Leave the failed state: try as often again, and catch up before the lag counts."""
        self._attempts = 0
        self._failed, self._halt = False, None
        self.lag_watch.begin(self.context.log, self._following, self.context.wall())
        self.requests += 1

    def replay(
        self, request: ReplayRequest, wake: Callable[[], None], timeout: float
    ) -> tuple[ReplayOutcome, ...]:
        """Have dead letters applied by the run's thread, and return what became of each."""
        if self.paused or self.failed or not self.opened or self.stopped:
            raise CannotReplay(
                f"The pipeline is {self.state}",
                pipeline=self.name,
                remedy="Resume it first: headrace resume PIPELINE.",
            )
        self.corrections.ask(request)
        self.requests += 1
        wake()
        try:
            return request.answer.result(timeout)
        except TimeoutError:
            begun = not request.answer.cancel()
            raise CannotReplay(
                "The dead letters were not applied in time",
                pipeline=self.name,
                seconds=timeout,
                remedy="They will be applied as soon as the pipeline goes on."
                if begun
                else "See what the pipeline waits for: headrace status.",
            ) from None

    def release_source(self, **facts: object) -> None:
        """
        Release the pipeline from its source from now on; stored, so that it survives a restart.

        Tables of a durable target then need a new baseline, and the next step resets them, even
        if the pipeline is paused or failed. The release ends once all tables are exact again.
        """
        self.release.begin({"pipeline": self.name, **facts})
        self.requests += 1

    def reloading(self, table: TableName) -> bool:
        """Whether a reload of the table was requested, or is not finished yet."""
        return any(table == asked for asked, _ in list(self._reloads)) or any(
            member.state == TableState.RELOADING or not member.shown
            for member in self.members
            if member.table == table
        )

    def fail(self, error: HeadraceError) -> None:
        """Stop on an error from outside, such as another engine that has taken over."""
        again = self._failed
        self._note_error(error)
        self._failed = True
        self.context.on_failure(self.name, error)
        if not again:
            self._report_policy(self.pipeline.on_failure, error)
        self._report_state()

    def halt(self, error: HeadraceError, policy: str = "") -> None:
        """
        Stop after the current batch, for a reason outside of this run, until it is resumed.

        `policy` is the one of this pipeline that asks for it; empty for that of another pipeline.
        Not stored, like a failure: a restart continues.
        """
        if not self.failed:
            if self.error is None:
                self.error_since = self.context.wall()
            self._halt = error
            self.requests += 1
            if policy:
                self._report_policy(policy, error)
            self._report_state()

    def lag_excess(self) -> LagExcess | None:
        """Return how far it lags beyond its limit; None if it does not, or has no limit."""
        if self.stopped or not self.recalled or not self.lag_watch.limited:
            return None
        return self.lag_watch.excess(self.context.log, self._following, self.context.wall())

    @property
    def _following(self) -> list[tuple[TableName, Position]]:
        """The tables that follow the log, and what they have reached."""
        return [(each.table, each.reached) for each in self.members if each.following]

    def lose(self, tables: Mapping[TableName, HeadraceError]) -> None:
        """Note which named tables cannot be captured any more; empty: all of them can be again."""
        self.lost_since = (self.lost_since or self.context.wall()) if tables else None
        self.lost = tables
        self._report_state()

    def _note_error(self, error: HeadraceError) -> None:
        if self.error is None:
            self.error_since = self.context.wall()
        self._error = error
        if not isinstance(error, JobCancelled):  # requested, by a pause or a stop
            of = error.facts.get("table")
            table = str(of) if of in self.tables else OF_NO_TABLE
            self.delivery.counters.add(table, OperationCounts(errors=1))

    def _report_state(self) -> None:
        """Report the state to observers if it is another one; called after each change."""
        with self._reporting:  # requests come from other threads
            if (new := str(self.state)) == self._reported:
                return
            old, self._reported = self._reported, new
            error = self.error if new == PipelineState.FAILED else None
            error = error or next(iter(self.lost.values()), None)
            now = self.context.wall()
            self.context.emit(PipelineStateChanged(self.name, old, new, error, now))

    def _report_failure(self, error: HeadraceError, pause: float | None) -> None:
        emit, now = self.context.emit, self.context.wall()
        emit(AttemptFailed(self.name, error, self._attempts, pause, now))
        if pause is None:
            self._report_policy(self.pipeline.on_failure, error)

    def _report_policy(self, policy: str, error: HeadraceError | None) -> None:
        self.context.emit(PolicyTriggered(self.name, policy, error, self.context.wall()))

    def _report_rebaseline(self, member: Member) -> None:
        emit, now = self.context.emit, self.context.wall()
        emit(RebaselineTriggered(self.name, self.source, member.table, member.load_reason, now))

    # -- status -----------------------------------------------------------------------

    @property
    def failed(self) -> bool:
        """Whether it stopped on an error, until it is resumed."""
        return self._failed or self._halt is not None

    @property
    def error(self) -> HeadraceError | None:
        """Why it has failed, or what the last step ended on, which is tried again."""
        return self._error if self._failed else self._halt or self._error

    @property
    def state(self) -> str:
        """The pipeline's own state, or that of the table that is least advanced."""
        if self.stopped and not self.failed:
            return PipelineState.STOPPED
        if self.failed or (self.lost and not self.paused):
            return PipelineState.FAILED
        if self.paused:
            return PipelineState.PAUSED
        order = list(TableState)
        return min((member.state for member in self.members), key=order.index, default="waiting")

    @property
    def ready(self) -> bool:
        """Whether readers see every table and there is no error (invariant 9)."""
        return (
            # A pattern may match no table yet: then there is nothing to show.
            bool(self.members or (self.pipeline.patterns and not self.new_tables.left_out))
            and not (self.pipeline.patterns and self.new_tables.next is not None)
            and self.opened
            and self.error is None
            and not (self.failed or self.paused or self.stopped or self.lost)
            and not (self.release.why and (self._durable or self.release.lagged))
            and all(member.shown for member in self.members)
            # The next step will find it; until then the rows are of another history.
            and not any(
                member.cut_off_by_gap(self.context.log)
                or member.rebaseline_required(self.context.log)
                for member in self.members
            )
        )

    @property
    def reached(self) -> Position:
        """The position that all tables at the target have reached."""
        return min((m.reached for m in self.members if m.shown), default=ORIGIN)

    def has(self, at: Position) -> bool:
        """Whether readers of every table see everything up to there."""
        following = self.pipeline.mode != "baseline"
        return self.opened and all(
            member.shown and (not following or member.reached >= at) for member in self.members
        )

    def applied(self, upto: Position) -> bool:
        """Whether every change of its tables up to there is applied; a load counts by itself."""
        log = self.context.log
        return not any(
            member.following and log.changed_between(member.table, member.reached, upto)
            for member in self.members
        )

    def watermark(self) -> Watermark:
        """Return what this pipeline still needs the source to keep (R8)."""
        if not self.recalled:
            return Watermark(self._durable, ORIGIN)  # what it needs is not known yet
        log, only = self.context.log, self.pipeline.mode == "changes"
        mark = watermark(self.members, log, durable=self._durable, changes_only=only)
        return replace(mark, released=self.release.why is not None)

    # -- other work before following the log ------------------------------------------

    def _prepare(self) -> bool:
        """
        Do everything except following the log; return whether that was this step's work.

        There is nothing to check while all tables are live, nothing is requested, and the log
        has only grown by changes.
        """
        looked_at = (self.requests, self.context.log.notices)
        if looked_at == self._quiet_at:
            return False
        self._quiet_at = None
        self._update_tables()
        self._check_gaps()
        self._reload_again()
        self._schema_changes.follow(self.members)
        if self._loads.load_one():
            return True
        if self.corrections.carry_out(self.members):
            return True
        # Before the live tables advance: under steady load the loaded ones would never meet them.
        if worked := self._loads.catch_up() | self._loads.join():
            self._follow()
        if all(member.state in (TableState.LIVE, TableState.COMPLETE) for member in self.members):
            self.release.end()
            # Columns that have their turn later are checked in every step.
            in_turn = all(member.columns_until is None for member in self.members)
            if not worked and in_turn and not self.corrections.pending:
                self._quiet_at = looked_at
        return worked

    def _take_requests(self) -> None:
        if not self.recalled:
            return
        if self.opened:
            # Before anything is written to them: another engine may have done so.
            self.delivery.reopen_dead_letters()
            self.delivery.finish_corrections()
            self.delivery.tidy_corrections()
        # First store finished switches, so that they do not count as the requested reload.
        if self._loads.switched:
            self._loads.note_switched()
        while self._reloads:
            table, newer_than = self._reloads[0]
            for member in self.members:
                if member.table == table:
                    member.load_reason = _REQUESTED
                    self._rebaseline(member, newer_than)
            self._reloads.popleft()
        if self.release.reset_pending:
            self._release()

    def _rebaseline(self, member: Member, number: int) -> None:
        """Require a baseline with a higher number."""
        if member.state == TableState.RELOADING and number <= member.newer_than:
            return  # the awaited baseline satisfies this request, too
        if self._stuck:
            self._rebaseline_all(member, number)
            return
        # A table that cannot follow is loaded like a new one; its rows are shown until then.
        state = TableState.RELOADING if member.following else TableState.WAITING
        self._reset([(member, state, number)])

    def _rebaseline_all(self, member: Member, number: int) -> None:
        """
        Load a table that cannot continue from a baseline with a higher number.

        All tables are loaded then, or the others would continue and leave it behind.
        """
        others = [each for each in self.members if each.following and each is not member]
        for each in others:
            each.load_reason = f"loaded again with {member.table}"
        self._reset(
            [
                (member, TableState.WAITING, number),
                *((each, TableState.WAITING, _newer_than(each)) for each in others),
            ]
        )

    def _release(self) -> None:
        """Reset the tables, because the source no longer retains their changes (R28)."""
        self._quiet_at = None
        # A volatile target is rebuilt from the log anyway, and loads are from the log. But one
        # that lagged behind must not read all of it again.
        lagged = self.release.lagged
        following = [each for each in self.members if each.following and (self._durable or lagged)]
        if following and self.pipeline.mode == "changes":
            self.release.taken()
            self.fail(self._cannot_release(following[0]))
            return
        for each in following:
            each.load_reason = "released from its source"
        if following:
            numbers = [self._newest(each) if lagged else _newer_than(each) for each in following]
            self._reset(
                [(each, TableState.WAITING, n) for each, n in zip(following, numbers, strict=True)]
            )
        self.release.taken()
        self._report_policy("release", self.release.why)

    def _newest(self, member: Member) -> int:
        """Return the number of the newest baseline that the log has, or that is awaited."""
        newest = self.context.log.usable_baseline(member.table)
        return max(_newer_than(member), newest.baseline if newest else 0)

    def _cannot_release(self, member: Member) -> ChangesMissing:
        return ChangesMissing(
            "The pipeline was released from its source, and mode changes cannot load a baseline",
            pipeline=self.name,
            table=member.table,
        )

    def _reset(self, moves: Sequence[tuple[Member, TableState, int]]) -> None:
        """Store that these tables wait for a baseline above a number, then set their state."""
        self.context.store.set_states(
            self.name,
            {each.table: (state, newer) for each, state, newer in moves},
            {
                each.table: (newer, each.baseline)
                for each, state, newer in moves
                if state == TableState.RELOADING
            },
        )
        for each, state, newer in moves:
            self._loads.drop(each)
            each.state, each.newer_than, each.reload_after = state, newer, 0
            self._report_rebaseline(each)
        self._quiet_at = None
        if not any(other.following for other in self.members):
            self.delivery.forget_intent()

    def _update_tables(self) -> None:
        """Add and remove tables that match a pattern, as they come and go (H2)."""
        for gone in [member for member in self.members if self.new_tables.gone(member)]:
            self._loads.drop(gone)
            self._have(tuple(member for member in self.members if member is not gone))
        while (schema := self.new_tables.next) is not None:
            new = schema.table not in self.tables
            if new and (member := self.new_tables.planned(schema)) is not None:
                self._recall(member)
                self.context.check_run()
                if self.new_tables.add(member):
                    self._resume_table(member)
                    self._find(member)
                    self._have((*self.members, member))
            self.new_tables.taken()

    def _reload_again(self) -> None:
        """Request again what was requested before a restart, once the table is as it was then."""
        for member in self.members:
            if member.reload_after and member.following:
                member.load_reason = _REQUESTED
                self._rebaseline(member, member.reload_after)

    def _check_gaps(self) -> None:
        """Reset tables that cannot continue: changes are missing, or history was replaced (R1)."""
        log = self.context.log
        for member in self.members:
            if member.loads_from_before_a_gap(log):
                self._loads.begin_again(member)
            changes = self.pipeline.mode == "changes"
            if changes and self._durable and self.release.why and member.following:
                raise self._cannot_release(member)
            if (required := member.rebaseline_required(log)) is not None:
                if changes:
                    raise self._loads.missing(member)
                member.load_reason = rebaseline_phrase(required.reason)
                # It follows the log while it is copied again: it only lacks unrecorded changes.
                (self._rebaseline_all if required.missing else self._rebaseline)(
                    member, required.baseline
                )
            if not member.cut_off_by_gap(log):
                continue
            if changes:
                raise self._loads.missing(member)
            self._loads.drop(member)
            self.delivery.forget_intent()
            member.load_reason = rebaseline_phrase("" if log.gap is None else log.gap.reason)
            self._loads.move(member, TableState.WAITING)
            self._report_rebaseline(member)


def _newer_than(member: Member) -> int:
    """Return the number that the table's next baseline must exceed."""
    return member.newer_than if member.state == TableState.RELOADING else 0
