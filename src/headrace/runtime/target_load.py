"""
Baselines on their way into a target, beside the tables that readers see.

A table is loaded, catches up from F to where the pipeline's other tables stand, and is
shown there in one switch (R12, H3). Several that no reader sees yet are shown together.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from contextlib import suppress

from headrace.changelog.entries import Baseline
from headrace.changelog.position import Position
from headrace.errors import ChangesMissing, HeadraceError
from headrace.pipeline.definition import Pipeline
from headrace.runtime.delivery import Delivery
from headrace.runtime.model import Load, Member, TableState, may_move
from headrace.runtime.run_context import RunContext
from headrace.storage.killpoints import BASELINE_LOADED, TABLE_SWITCHED, reach


def is_newer(baseline: Baseline, than: int) -> bool:
    """
    Whether a baseline was copied after that one; folded ones are as old as their copy (R19).

    A lower number than was known is of a log made anew.
    """
    return not (baseline.copy or baseline.baseline) <= than <= baseline.baseline


class Loads:
    """What one pipeline loads. For the run's thread alone."""

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
        """Tables shown at the target, of which that is not noted yet."""
        self._name = name
        self._pipeline = pipeline
        self._delivery = delivery
        self._context = context
        self._most_rows = most_rows
        self._durable = pipeline.target.traits.durable
        self._goal: Position | None = None

    def load_one(self) -> bool:
        """Load a table whose baseline is there; ask for those that are missing."""
        log, changes = self._context.log, self._pipeline.mode == "changes"
        if changes and log.gap is None:
            return False  # the log has not begun: there is no place to begin at
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
                # One that follows goes on with its changes until these columns have their turn.
                found = found or (member, baseline)
        if found is not None and found[0].knows(log, found[1].files):
            # After all are asked for: they are copied while this one is loaded. Of one that was
            # altered since this step began the columns are followed first.
            self._load(*found)
        return found is not None

    def _load(self, member: Member, baseline: Baseline) -> None:
        number = baseline.baseline
        if member.state != TableState.RELOADING:
            self.move(member, TableState.LOADING, number)
        first, last = baseline.window
        member.loads_from, member.loads_number = first, number
        if self._delivery.takes_frames:
            # A stream of changes has no readers to hide from: it goes on from F at once.
            self._delivery.give_baseline(member, baseline, first)
            self._delivery.supersede_letters(member, first, number)
            self._settle(member, first, number)
            return
        loading = self._pipeline.target.load(member.table, number)
        try:
            self._delivery.load(member, baseline, first, loading)
        except BaseException:
            loading.discard()
            raise
        reach(BASELINE_LOADED)
        member.load = Load(number, first, last, loading, first)
        self._goal = None
        if member.state == TableState.LOADING:
            self.move(member, TableState.CATCHING_UP, number)

    def _begin_without_baseline(self, member: Member) -> None:
        """Begin with the changes that come from here on; or, rebuilt, that came since then."""
        log = self._context.log
        # Held before the place is chosen: who decided without knowing of it let go of no more
        # than there was then (R27).
        member.loads_from = log.end
        at = self._context.store.origin(self._name, member.table, log.end)
        # It began in another log, or this one has a gap since: then it cannot be rebuilt (R1).
        elsewhere = member.lineage not in (None, log.lineage) or not log.floor <= at <= log.end
        if elsewhere or log.gap_after(at) is not None or log.lacks(member.table, at):
            member.loads_from = None
            raise self.missing(member)
        self.move(member, TableState.LOADING, 0)
        if self._delivery.takes_frames:
            self._settle(member, at, 0)
            return
        member.loads_from = at
        member.load = Load(0, at, at, self._pipeline.target.load(member.table, 0), at)
        self._goal = None
        self.move(member, TableState.CATCHING_UP, 0)

    def catch_up(self) -> bool:
        """Bring what is loaded nearer to where it will be shown, a batch for each table."""
        goal = self._meeting_point()
        worked = False
        for member in self.members:
            load = member.load
            if goal is None or load is None or load.reached >= goal:
                continue
            worked = True
            batch = self._context.log.next_batch(
                member.table, load.reached, self._most_rows, upto=goal
            )
            if batch is None:
                load.reached = goal  # nothing of anybody lies between
            elif member.knows(self._context.log, batch.files):
                # Otherwise since this step began: its columns are followed first.
                self._delivery.catch_up(member, load, batch)
        return worked

    def _meeting_point(self) -> Position | None:
        """Return where loaded tables are to be shown; None while that cannot be said."""
        following = [member.reached for member in self.members if member.following]
        if following:
            return min(following)
        # None is shown yet: all will be together, from the largest H on (R11), and not before
        # the log's end as it is now: after a restart the log goes on far beyond H, and a
        # reader who has seen its end must not be shown the past.
        loads = [member.load for member in self.members if not member.shown]
        end = self._context.log.end
        if self._goal is None and loads and all(load and load.last <= end for load in loads):
            self._goal = end
        return self._goal

    def join(self) -> bool:
        """Show what has arrived at the meeting point."""
        goal = self._meeting_point()
        # Never behind where the target may be already: readers would be put back.
        if goal is None or goal < self._delivery.tried:
            return False
        arrived = [
            (member, member.load)
            for member in self.members
            if member.load is not None
            and member.load.may_be_shown(goal)
            # A gap that came since this step began lies before the goal.
            and not member.loads_from_before_a_gap(self._context.log)
        ]
        alone = not any(member.following for member in self.members)
        if alone and len(arrived) < sum(not member.shown for member in self.members):
            return False
        if arrived:
            self._switch(arrived, goal)
        return bool(arrived)

    def _switch(self, arrived: Sequence[tuple[Member, Load]], at: Position) -> None:
        # Positions keep an old engine's rows out of a target, but not its baseline, which
        # would put the table back to where it was (invariant 4).
        self._context.check()
        # Whatever fails from here on, these tables are loaded again: nothing is half shown.
        for member, _ in arrived:
            member.load = None
        waiting = deque(load.loading for _, load in arrived)
        try:
            # One right after another: readers of several tables see them at one position.
            while waiting:
                waiting[0].switch(at)
                waiting.popleft()
        except BaseException:
            # Each has a whole copy of its rows, and nobody else would remove it.
            for loading in waiting:
                with suppress(HeadraceError):
                    loading.discard()
            raise
        reach(TABLE_SWITCHED)
        self.switched.extend((member, load, at) for member, load in arrived)
        self.note_switched()

    def note_switched(self) -> None:
        """
        Note what is shown; where that fails, nothing else goes on before it is done.

        A table noted as shown would follow the log and leave the others behind.
        """
        while self.switched:
            member, load, at = self.switched[0]
            # Not before: the rows that were there need the letters that speak of them.
            self._delivery.supersede_letters(member, load.first, load.baseline)
            self._settle(member, at, load.baseline)
            self.switched.popleft()

    def _settle(self, member: Member, at: Position, baseline: int) -> None:
        """Note that the target's table is, or begins with, this baseline, at `at`."""
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

    def drop(self, member: Member) -> None:
        if member.load is not None:
            member.load.loading.discard()
            member.load = None
        member.loads_from, member.loads_number, self._goal = None, 0, None

    def begin_again(self, member: Member) -> None:
        """Let go of what is loaded, if anything is; it is wanted as before."""
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
            "The log lost changes that this pipeline had not taken",
            pipeline=self._name,
            table=member.table,
        )
