"""
Baselines that are loaded into a target while readers still see the previous tables.

A table is loaded, catches up from F to the position of the pipeline's other tables, and is
shown there in one switch (R12, H3). Tables that no reader sees yet are shown together.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

from headrace.changelog.entries import Baseline
from headrace.changelog.position import Position, before_commit, before_corrections, in_log
from headrace.errors import ChangesMissing, HeadraceError
from headrace.observe.events import BaselineCompleted, BaselineStarted
from headrace.pipeline.definition import Pipeline
from headrace.runtime.delivery import Delivery
from headrace.runtime.model import Load, Member, TableState, may_move
from headrace.runtime.run_context import RunContext
from headrace.storage.killpoints import BASELINE_LOADED, TABLE_SWITCHED, reach
from headrace.targets.target import Loading


def is_newer(baseline: Baseline, than: int) -> bool:
    """
    Whether a baseline was copied after number `than`; a folded one is as old as its copy (R19).

    A number lower than `than` is from a recreated log.
    """
    return not (baseline.copy or baseline.baseline) <= than <= baseline.baseline


class _Begun(NamedTuple):
    """A baseline that a load was begun with, and when, by the monotonic clock."""

    baseline: Baseline
    at: float


class Loads:
    """The loads of one pipeline. Only for the run's thread."""

    def __init__(
        self,
        name: str,
        pipeline: Pipeline,
        delivery: Delivery,
        context: RunContext,
        most_rows: int,
    ) -> None:
        self.members: tuple[Member, ...] = ()
        self.switched: deque[tuple[Member, Load, Position]] = deque()
        """Tables that the target shows, and whose new state is not stored yet."""
        self._name = name
        self._pipeline = pipeline
        self._delivery = delivery
        self._context = context
        self._most_rows = most_rows
        self._durable = pipeline.target.traits.durable
        self._goal: Position | None = None
        self._began: dict[str, _Begun] = {}
        """By table, the last baseline that was begun."""

    def load_one(self) -> bool:
        """Load a table whose baseline is in the log; request missing baselines."""
        log, changes = self._context.log, self._pipeline.mode == "changes"
        if changes and log.gap is None:
            return False  # the log is empty: there is no position to begin at
        found: tuple[Member, Baseline] | None = None
        for member in self.members:
            if not member.wants_load:
                continue
            if changes:
                self._begin_without_baseline(member)
                return True
            baseline = log.usable_baseline(member.table)
            if baseline is None or not is_newer(baseline, member.newer_than):
                self._context.ask_baseline(member.table, member.newer_than)
            elif not member.following or member.knows(log, baseline.files):
                # A live table continues with its changes until these columns have their turn.
                found = found or (member, baseline)
        if found is not None and found[0].knows(log, found[1].files):
            # After all requests: the others are copied while this one is loaded. If it was
            # altered since this step began, its columns are followed first.
            self._load(*found)
        return found is not None

    def _load(self, member: Member, baseline: Baseline) -> None:
        number = baseline.baseline
        if member.state != TableState.RELOADING:
            self.move(member, TableState.LOADING, number)
        first, last = baseline.window
        member.loads_from, member.loads_number = first, number
        self._began[member.table] = _Begun(baseline, self._context.clock())
        self._context.emit(BaselineStarted(self._name, member.table, number, self._context.wall()))
        if member.reload_after and is_newer(baseline, member.reload_after):
            member.reload_after = 0
        if self._delivery.takes_frames:
            # A function receives a stream without readers of a table: it continues from F at once.
            self._delivery.give_baseline(member, baseline, first)
            self._delivery.supersede_dead_letters(member, first, number)
            self._settle(member, before_corrections(first), number)
            return
        self._context.check_run()
        loading = self._pipeline.target.load(member.table, number)
        try:
            self._delivery.load(member, baseline, first, loading)
        except BaseException:
            self._discard(loading)
            raise
        reach(BASELINE_LOADED)
        member.load = Load(number, first, last, loading, before_corrections(first))
        self._goal = None
        if member.state == TableState.LOADING:
            self.move(member, TableState.CATCHING_UP, number)

    def _begin_without_baseline(self, member: Member) -> None:
        """Begin with changes from now on; or since the origin, if the target is rebuilt."""
        log = self._context.log
        # Pinned before the position is chosen: a retention decision that does not know of it
        # removes at most what was in the log by then (R27).
        member.loads_from = log.end
        at = self._context.store.origin(self._name, member.table, log.end)
        # If it began in another log, or this log has a gap since, it cannot be rebuilt (R1).
        elsewhere = member.lineage not in (None, log.lineage) or not log.floor <= at <= log.end
        if elsewhere or log.gap_after(at) is not None or log.lacks(member.table, at):
            member.loads_from = None
            raise self.missing(member)
        self.move(member, TableState.LOADING, 0)
        if self._delivery.takes_frames:
            self._settle(member, at, 0)
            return
        member.loads_from = at
        self._context.check_run()
        member.load = Load(0, at, at, self._pipeline.target.load(member.table, 0), at)
        self._goal = None
        self.move(member, TableState.CATCHING_UP, 0)

    def catch_up(self) -> bool:
        """Apply a batch of changes to each loaded table that is not at the meeting point."""
        goal = self._meeting_point()
        worked = False
        for member in self.members:
            load = member.load
            if goal is None or load is None:
                continue
            end = self._delivery.meets_at(member, load, goal)
            if load.reached >= end:
                continue
            worked = True
            batch = self._delivery.log.next_batch(
                member.table,
                load.reached,
                self._most_rows,
                upto=end,
                loaded=self._delivery.copy_of(member.table, load),
            )
            if batch is None:
                load.reached = end  # there are no changes in between
            elif batch.corrects or member.knows(self._context.log, batch.files):
                # If not, it was altered since this step began: its columns are followed first.
                self._delivery.catch_up(member, load, batch)
        return worked

    def _meeting_point(self) -> Position | None:
        """Return the position at which loaded tables will be shown; None if not known yet."""
        following = [member.reached for member in self.members if member.following]
        if following:
            return min(following)
        # No table is shown yet: all are shown together, at or after the largest H (R11) and not
        # before the current end of the log. After a restart the log extends far beyond H, and
        # readers that have seen its end must not see an earlier state.
        loads = [member.load for member in self.members if not member.shown]
        end = self._delivery.log.end([member.table for member in self.members])
        # Nor before rows that expired since, which were deleted after the log's last commit.
        at = [m.reached for m in self.members if m.lineage == self._context.log.lineage]
        end = max([end, *(each for each in at if in_log(end) >= before_commit(each))])
        if self._goal is None and loads and all(load and load.last <= end for load in loads):
            self._goal = end
        return self._goal

    def join(self) -> bool:
        """Show the tables that have reached the meeting point."""
        goal = self._meeting_point()
        # Never before the position that the target may have: readers would see an earlier state.
        if goal is None or goal < self._delivery.tried:
            return False
        arrived = [
            (member, load, at)
            for member in self.members
            if (load := member.load) is not None
            and load.may_be_shown(at := self._delivery.meets_at(member, load, goal))
            # A gap that was found since this step began is before the goal.
            and not member.loads_from_before_a_gap(self._context.log)
        ]
        alone = not any(member.following for member in self.members)
        if alone and len(arrived) < sum(not member.shown for member in self.members):
            return False
        if arrived:
            self._switch(arrived)
        return bool(arrived)

    def _switch(self, arrived: Sequence[tuple[Member, Load, Position]]) -> None:
        # Positions keep the rows of a superseded engine out of a target, but not its baseline,
        # which would set the table back (invariant 4).
        self._context.check()
        # If anything fails from here on, these tables are loaded again: none is half shown.
        for member, _, _ in arrived:
            member.load = None
        waiting = deque((load.loading, at) for _, load, at in arrived)
        try:
            for member, load, at in arrived:
                self._context.check_run()
                self._delivery.expire_loaded(member, load, at)
            # One right after another: readers of several tables see them at one position.
            while waiting:
                self._context.check_run()
                loading, at = waiting[0]
                loading.switch(at)
                waiting.popleft()
        except BaseException:
            # Each has a full copy of its rows, which nothing else would remove.
            for loading, _ in waiting:
                with suppress(HeadraceError):
                    self._discard(loading)
            raise
        reach(TABLE_SWITCHED)
        self.switched.extend(arrived)
        self.note_switched()

    def note_switched(self) -> None:
        """
        Store which tables are shown; if that fails, nothing else is done before it succeeds.

        A table that is stored as shown would follow the log and leave the others behind.
        """
        while self.switched:
            member, load, at = self.switched[0]
            # Not earlier: until the switch, the previous rows need their dead letters.
            self._delivery.supersede_dead_letters(member, load.first, load.baseline)
            self._settle(member, at, load.baseline)
            self.switched.popleft()

    def _settle(self, member: Member, at: Position, baseline: int) -> None:
        """Store that the target's table has this baseline, at position `at`."""
        state = TableState.COMPLETE if self._pipeline.mode == "baseline" else TableState.LIVE
        store, lineage = self._context.store, self._context.log.lineage
        if self._durable:
            store.settle(self._name, member.table, lineage or "", at, state, baseline)
            member.stored = at
        else:
            store.set_state(self._name, member.table, state, baseline)
        member.reached, member.lineage = at, lineage
        member.baseline, member.state = baseline, state
        member.loads_from, member.loads_number, self._goal = None, 0, None
        member.load_reason = ""
        self._report_completed(member)

    def _report_completed(self, member: Member) -> None:
        begun = self._began.pop(member.table, None)
        if begun is None or begun.baseline.baseline != member.baseline:
            return
        number, rows = member.baseline, begun.baseline.rows
        seconds, now = self._context.clock() - begun.at, self._context.wall()
        self._delivery.report.baseline_seconds.observe(seconds)
        self._context.emit(BaselineCompleted(self._name, member.table, number, rows, seconds, now))

    def _discard(self, loading: Loading) -> None:
        # Not after the run was abandoned: its replacement may be loading under the same name.
        if not self._context.abandoned.is_set():
            loading.discard()

    def drop(self, member: Member) -> None:
        if member.load is not None:
            self._discard(member.load.loading)
            member.load = None
        member.loads_from, member.loads_number, self._goal = None, 0, None

    def begin_again(self, member: Member) -> None:
        """Discard the current load, if there is one; the table still has to be loaded."""
        if member.load is not None:
            self.drop(member)
            if member.state == TableState.CATCHING_UP:
                self.move(member, TableState.WAITING)

    def move(self, member: Member, new: TableState, baseline: int | None = None) -> None:
        if new == member.state:
            return
        assert may_move(member.state, new), f"{member.state} → {new}"
        self._context.store.set_state(self._name, member.table, new, baseline)
        member.state = new

    def missing(self, member: Member) -> ChangesMissing:
        return ChangesMissing(
            "The log has lost changes that this pipeline has not processed",
            pipeline=self._name,
            table=member.table,
        )
