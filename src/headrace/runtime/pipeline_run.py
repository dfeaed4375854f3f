"""
One pipeline at work, as a machine of small steps.

A step loads a baseline, brings a loaded table nearer to the present, takes the next batch
of the log through Spark to the target, or finds nothing to do. Time, log, runner, store
and target come in by argument and no thread is started here, so the whole of it runs
under simulation, where a seed decides every interleaving. The engine drives it from a
thread of its own.

`step` → `_follow` → `Delivery.deliver` is the path of a change, and most steps are nothing else.
What else there may be to do (requests, new tables, gaps, other columns, baselines to load) is
`_prepare`: it is looked at only when something was requested, a table is not live, or the log
has an entry that is not simply more changes.

Tables that follow the log go together: a batch holds all their changes up to one position
(R23d). A table that is loaded, or loaded again, catches up beside them, alone, and joins
them where they stand (R12, H3).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace

from headrace.capture.source import SourceTraits
from headrace.changelog.position import ORIGIN, Position
from headrace.changelog.schema import TableName, TableSchema
from headrace.errors import (
    AlreadyStored,
    ChangesMissing,
    Fenced,
    HeadraceError,
    JobCancelled,
    LostLog,
)
from headrace.pipeline.definition import Pipeline
from headrace.runtime.delivery import Delivery
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
from headrace.runtime.target_load import Loads
from headrace.runtime.wal_pressure import PipelineRelease
from headrace.targets.target import FindsItself, Target

MOST_ROWS = 400_000
"""A batch's limit: about what one job brings back within a 1 g heap without a pause."""

STORE_EVERY = 10.0
"""Seconds between stored progress of a volatile target, which is rebuilt anyway (R34)."""

IDLE = math.inf
"""Nothing to do until somebody gives a sign."""


class PipelineRun:
    """
    Brings tables of one source to one target. `step` is for one thread.

    `pause`, `resume`, `ask_reload`, `set_aside` and everything that only looks may be called
    from others.
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
        self.members: tuple[Member, ...] = ()
        self.error: HeadraceError | None = None
        self.failed = False
        self.paused = False
        self.stopped = False
        self.wishes = 0
        """Grows with everything that is asked from outside: reason to take a step."""
        self.prepared = prepared = context.runner.prepare(pipeline, traits)
        """What computes its batches."""
        self.delivery = Delivery(name, pipeline, prepared, context)
        self.yielding = PipelineRelease(name, context.store)
        self.growing = NewTables(pipeline, prepared)
        self._loads = Loads(name, pipeline, self.delivery, context, most_rows)
        self._evolving = SchemaChanges(
            name, pipeline, prepared, context, self._owe_all, self._loads.begin_again
        )
        self._most_rows = most_rows
        self._durable = self.target.traits.durable
        self._attempts = 0
        self._stuck = False
        """Whether the last step ended on what time does not mend."""
        self._stored_at = -math.inf
        self._quiet_at: tuple[int, int] | None = None
        """Requests and notices of the log as of which only following is left to do."""
        self._reloads: deque[tuple[TableName, int]] = deque()

    # -- the path of a change ---------------------------------------------------------

    def step(self) -> float | None:
        """
        Do one piece of work.

        Return None if there may be more at once, the seconds to pause after a failure,
        or `IDLE` when only a new index entry, or somebody's wish, can bring work.
        """
        if self.stopped:
            return IDLE
        # Before all else, also what somebody wishes: nothing but a new start helps.
        if self.context.fence.why is not None:
            self.context.fence.look()
        try:
            self._take_wishes()
            if self.failed or self.paused:
                return IDLE
            pause = self._work()
        except (Fenced, LostLog):
            raise
        except HeadraceError as error:
            if isinstance(error, JobCancelled) and self.paused:
                return IDLE  # as asked; the same batch comes again
            self.delivery.letters_stale |= isinstance(error, AlreadyStored)
            self.error, self._quiet_at = error, None
            self._attempts += 1
            verdict = decide(error, self._attempts)
            if isinstance(verdict, Again):
                return verdict.after
            # Not stored: once a person has mended it, a start goes on where this one stood.
            self.failed = self._stuck = True
            return IDLE
        self.error, self._stuck = None, False
        self._attempts = 0
        return pause

    def _work(self) -> float | None:
        if self._prepare():
            return None
        return None if self._follow() else IDLE

    def _follow(self) -> bool:
        """Take the next batch to the tables that follow the log, all of a commit together."""
        following = [member for member in self.members if member.following]
        if not following:
            return False
        if self.delivery.intends:
            # The next intent takes the place of the last one, whose batch must be noted first.
            self._store_progress(always=True)
        start = min(member.reached for member in following)
        taking = [member for member in following if member.reached == start]
        # One that begins further on is waited for, so that from there all go together.
        ahead = min((m.reached for m in following if m.reached > start), default=None)
        # And none goes beyond the columns that it is told in.
        turns = [until for m in taking if (until := m.columns_until) is not None]
        ahead = min([*turns, *([] if ahead is None else [ahead])], default=None)
        batch = self.delivery.next_batch(taking, start, ahead, self._most_rows)
        if batch is None:
            self._store_progress()
            return False
        log = self.context.log
        if self.pipeline.mode == "changes" and any(m.owes(log) for m in taking):
            self._quiet_at = None
            return True  # since this step began: it must not go past what is missing
        if not all(member.knows(log, batch.files_of(member.table)) for member in taking):
            self._quiet_at = None
            return True  # the same: values of columns that it does not know would be left out
        if batch.files:
            self.delivery.deliver(taking, start, batch)
        else:
            for member in taking:
                member.reached = batch.last  # R34: nothing of ours in it: no job and no write
        self._store_progress(always=self._durable and bool(batch.files))
        return True

    def _store_progress(self, *, always: bool = False) -> None:
        context = self.context
        due = context.clock() - self._stored_at >= STORE_EVERY
        moved = [m for m in self.members if m.following and m.reached > m.stored]
        if not moved or not (always or due):
            return
        for at in sorted({member.reached for member in moved}):
            together = [member for member in moved if member.reached == at]
            names = [member.table for member in together]
            stored = context.store.advance(self.name, names, context.log.lineage or "", at)
            for member in together:
                member.stored = stored
        self._stored_at = context.clock()

    # -- start and end ----------------------------------------------------------------

    def prepare(self, schemas: Mapping[TableName, TableSchema]) -> None:
        """Analyse the plan on Spark and check the target; raise what is wrong with either."""
        self._have(self.growing.prepared(schemas))

    def open(self) -> None:
        """Open the target where its stored progress says; volatile ones begin anew."""
        assert self.members or self.pipeline.patterns, "prepare comes first"
        store, changes = self.context.store, self.pipeline.mode == "changes"
        store.note_pipeline(self.name, self.source, durable=self._durable, changes=changes)
        self.paused = store.paused(self.name)
        self.yielding.open()
        for member in self.members:
            self._recall(member)
        self.growing.open(self.members)
        for member in self.members:
            self._resume_table(member)
        self.delivery.open()

    def close(self) -> None:
        """Store what is known and is owed, and close the target; nothing may follow."""
        if isinstance(self.error, JobCancelled):
            self.error = None  # by this very stop
        try:
            self._take_wishes()
            self._store_progress(always=True)
        finally:
            self.stopped = True
            self.prepared.close()
            self.growing.close()

    def _have(self, members: tuple[Member, ...]) -> None:
        self.members = self._loads.members = members
        self.tables = tuple(member.table for member in members)

    def _recall(self, member: Member) -> None:
        """Take up what is stored of a table's progress."""
        store = self.context.store
        member.schema_id, member.input = self.context.log.known_as(member.input)
        member.stored = store.reached(self.name, member.table)
        member.lineage = store.lineage(self.name, member.table)
        if self._durable:
            member.reached = member.stored
        self._evolving.recall(member)

    def _resume_table(self, member: Member) -> None:
        """Take up a table where it stood; what was half loaded is loaded again (H4)."""
        stored = self.context.store.state(self.name, member.table)
        if stored is None:
            return
        state, baseline = TableState(stored[0]), stored[1] or 0
        if state in (TableState.WAITING, TableState.RELOADING):
            # A reload that was asked for is owed, whatever became of the engine.
            member.newer_than = baseline
        # A durable target goes on where it stood, unless the log has a gap since (see step).
        if self._durable and state in (TableState.LIVE, TableState.RELOADING, TableState.COMPLETE):
            member.state = resumed(state, self.pipeline.mode, baseline)
            member.baseline = baseline
            if isinstance(self.target, FindsItself) and self.target.lost(member.table):
                # A reload that was asked for still is: no baseline of before will do.
                owed = baseline if state == TableState.RELOADING else 0
                self._put_back([(member, TableState.WAITING, owed)])

    # -- requests ---------------------------------------------------------------------

    def pause(self) -> None:
        """Do nothing from the next step on; stored, so that a restart keeps to it."""
        self.context.store.set_paused(self.name, True)
        self.paused = True

    def resume(self) -> None:
        """Go on after a pause, or try again after a failure."""
        self.context.store.set_paused(self.name, False)
        self.paused = False
        self._attempts = 0
        self.failed = False
        self.wishes += 1

    def nudge(self) -> None:
        """Ask for a step now, and not after the pause that a failure brought."""
        self.wishes += 1

    def ask_reload(self, table: TableName, newer_than: int) -> None:
        """Ask for a baseline beyond that number; the next step stores that it is owed."""
        self._reloads.append((table, newer_than))
        self.failed = False
        self.wishes += 1

    def set_aside(self, **facts: object) -> None:
        """
        Hold nothing at the source any more, from now on; stored, so that a restart keeps to it.

        Tables of a durable target then owe a baseline, and the next step puts them back, also
        of a pipeline that is paused or failed. It is over once all of them are exact again.
        """
        self.yielding.begin({"pipeline": self.name, **facts})
        self.wishes += 1

    def reloading(self, table: TableName) -> bool:
        """Whether a reload of the table is asked for, or not over yet."""
        return any(table == asked for asked, _ in list(self._reloads)) or any(
            member.state == TableState.RELOADING or not member.shown
            for member in self.members
            if member.table == table
        )

    def fail(self, error: HeadraceError) -> None:
        """Stop on an error from outside: another engine took over."""
        self.error = error
        self.failed = True

    # -- what is known ----------------------------------------------------------------

    @property
    def state(self) -> str:
        """The pipeline's state: its own, or that of the table that is least far."""
        if self.stopped and not self.failed:
            return PipelineState.STOPPED
        if self.failed:
            return PipelineState.FAILED
        if self.paused:
            return PipelineState.PAUSED
        order = list(TableState)
        return min((member.state for member in self.members), key=order.index, default="waiting")

    @property
    def ready(self) -> bool:
        """Whether readers see every table and nothing is known to be wrong (invariant 9)."""
        return (
            # A pattern may stand for tables to come: then there is nothing to show yet.
            bool(self.members or (self.pipeline.patterns and not self.growing.left_out))
            and self.error is None
            and not (self.failed or self.paused or self.stopped)
            and not (self._durable and self.yielding.why)
            and all(member.shown for member in self.members)
            # Found by the next step only; until then the rows are those of another history.
            and not any(
                member.behind_a_gap(self.context.log) or member.owes(self.context.log)
                for member in self.members
            )
        )

    @property
    def reached(self) -> Position:
        """The position that all tables at the target have reached."""
        return min((m.reached for m in self.members if m.shown), default=ORIGIN)

    def has(self, at: Position) -> bool:
        """Whether readers of every table that follows the log see all up to there."""
        following = self.pipeline.mode != "baseline"
        return all(
            member.shown and (not following or member.reached >= at) for member in self.members
        )

    def watermark(self) -> Watermark:
        """Return what this pipeline still needs the source to keep (R8)."""
        log, only = self.context.log, self.pipeline.mode == "changes"
        mark = watermark(self.members, log, durable=self._durable, changes_only=only)
        return replace(mark, set_aside=self.yielding.why is not None)

    # -- what comes before following the log ------------------------------------------

    def _prepare(self) -> bool:
        """
        Do everything that is not following the log; return whether that was this step's work.

        There is nothing to look at while all tables are live, nothing is requested, and the
        log has grown by changes alone.
        """
        looked_at = (self.wishes, self.context.log.notices)
        if looked_at == self._quiet_at:
            return False
        self._quiet_at = None
        self.delivery.reopen_letters()
        self._grow()
        self._mind_gaps()
        self._evolving.follow(self.members)
        if self._loads.load_one():
            return True
        # Before the others go on: under steady load they would never be met.
        if worked := self._loads.catch_up() | self._loads.join():
            self._follow()
        if all(member.state in (TableState.LIVE, TableState.COMPLETE) for member in self.members):
            self.yielding.end()
            # Columns that have their turn later are looked for in every step.
            if not worked and all(member.columns_until is None for member in self.members):
                self._quiet_at = looked_at
        return worked

    def _take_wishes(self) -> None:
        # First what is done already, so that a wish is not noted as fulfilled.
        if self._loads.switched:
            self._loads.note_switched()
        while self._reloads:
            table, newer_than = self._reloads[0]
            for member in self.members:
                if member.table == table:
                    self._owe(member, newer_than)
            self._reloads.popleft()
        if self.yielding.owing:
            self._give_way()

    def _owe(self, member: Member, number: int) -> None:
        """Note that only a baseline beyond that number will do."""
        if member.state == TableState.RELOADING and number <= member.newer_than:
            return  # the baseline that is waited for will do for this wish, too
        if self._stuck:
            self._owe_all(member, number)
            return
        # What cannot be kept up to date is loaded as if it were new; its rows are shown until then.
        state = TableState.RELOADING if member.following else TableState.WAITING
        self._put_back([(member, state, number)])

    def _owe_all(self, member: Member, number: int) -> None:
        """
        Load a table anew that cannot go on, from a baseline beyond that number.

        All tables are loaded then, or the others would go on and leave it behind.
        """
        others = [each for each in self.members if each.following and each is not member]
        self._put_back(
            [
                (member, TableState.WAITING, number),
                *((each, TableState.WAITING, _owed(each)) for each in others),
            ]
        )

    def _give_way(self) -> None:
        """Let go of the place where the tables stand, now that the source keeps nothing (R28)."""
        self._quiet_at = None
        # A volatile target is rebuilt from the log anyway; what is being loaded is from there.
        following = [each for each in self.members if each.following and self._durable]
        if following and self.pipeline.mode == "changes":
            self.yielding.taken()
            self.fail(self._cannot_yield(following[0]))
            return
        if following:
            self._put_back([(each, TableState.WAITING, _owed(each)) for each in following])
        self.yielding.taken()

    def _cannot_yield(self, member: Member) -> ChangesMissing:
        return ChangesMissing(
            "Set aside, and a pipeline of mode changes takes no baseline instead",
            pipeline=self.name,
            table=member.table,
        )

    def _put_back(self, moves: Sequence[tuple[Member, TableState, int]]) -> None:
        """Store that these tables wait for a baseline beyond a number, then let them."""
        self.context.store.set_states(
            self.name, {each.table: (state, newer) for each, state, newer in moves}
        )
        for each, state, newer in moves:
            self._loads.drop(each)
            each.state, each.newer_than = state, newer
        self._quiet_at = None
        if not any(other.following for other in self.members):
            self.delivery.forget_intent()

    def _grow(self) -> None:
        """Take in tables that a pattern stands for, as they come and go (H2)."""
        for gone in [member for member in self.members if self.growing.gone(member)]:
            self._loads.drop(gone)
            self._have(tuple(member for member in self.members if member is not gone))
        while (schema := self.growing.next) is not None:
            new = schema.table not in self.tables
            if new and (member := self.growing.planned(schema)) is not None:
                self._recall(member)
                if self.growing.add(member):
                    self._resume_table(member)
                    self._have((*self.members, member))
            self.growing.taken()

    def _mind_gaps(self) -> None:
        """Put back what cannot go on: changes are missing, or history was replaced (R1)."""
        log = self.context.log
        for member in self.members:
            if member.loads_from_before_a_gap(log):
                self._loads.begin_again(member)
            changes = self.pipeline.mode == "changes"
            if changes and self._durable and self.yielding.why and member.following:
                raise self._cannot_yield(member)
            if (owed := member.owes(log)) is not None:
                if changes:
                    raise self._loads.missing(member)
                # Kept up while it is copied again: what changed without a change is all it lacks.
                (self._owe_all if owed.missing else self._owe)(member, owed.baseline)
            if not member.behind_a_gap(log):
                continue
            if changes:
                raise self._loads.missing(member)
            self._loads.drop(member)
            self.delivery.forget_intent()
            self._loads.move(member, TableState.WAITING)


def _owed(member: Member) -> int:
    """Return the number that a baseline to load the table from must be beyond."""
    return member.newer_than if member.state == TableState.RELOADING else 0
