"""One table of a pipeline: where it stands, and what is being loaded beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from headrace.changelog.entry import File, Owed
from headrace.changelog.log import LogReader
from headrace.changelog.position import ORIGIN, Position
from headrace.changelog.schema import TableSchema
from headrace.control.acknowledge import Watermark
from headrace.control.states import FOLLOWING, SHOWN, WANTING, TableState
from headrace.pipeline.result import result_schema
from headrace.targets.target import Loading


@dataclass(slots=True)
class Load:
    """A baseline in the target, beside the live table, on its way to the present."""

    baseline: int
    first: Position
    """F: its rows hold everything up to here."""

    last: Position
    """H: from here on they are exact (R11)."""

    loading: Loading
    reached: Position
    """How far the changes since F have been applied to it."""

    def may_be_shown(self, goal: Position) -> bool:
        """Whether it has come to `goal`, not begun beyond it, and is exact there."""
        # Invariant 7: before H a table is a mixture that never existed.
        # By commit: F stands behind all of a commit, a batch's end on its last change.
        at = (self.reached.epoch, self.reached.commit) == (goal.epoch, goal.commit)
        return at and goal >= self.last


@dataclass(slots=True)
class Member:
    """A table's progress within its pipeline (R12). Used by the run's thread alone."""

    table: str
    input: TableSchema
    """The table's columns, as far as this pipeline has followed them."""

    output: TableSchema
    state: TableState = TableState.WAITING
    reached: Position = ORIGIN
    """Everything up to here is at the target; of a loading one, see `load`."""

    lineage: str | None = None
    baseline: int = 0
    """The number of the baseline that its rows began with."""

    newer_than: int = 0
    """Only a baseline of a higher number will do: somebody asked for a new one."""

    load: Load | None = None
    loads_from: Position | None = None
    """F of what is being loaded, from the first row until it is the table."""

    loads_number: int = 0
    """The number of the baseline that is being loaded; 0: none is."""

    stored: Position = ORIGIN
    schema_id: int = 0
    """The log's schema that this pipeline has followed its columns to."""

    columns_until: Position | None = None
    """How far changes were in these columns, when it last looked; None: as far as there were."""

    @property
    def following(self) -> bool:
        """Whether it takes part in the pipeline's batches."""
        return self.state in FOLLOWING

    @property
    def shown(self) -> bool:
        """Whether readers see it, exactly."""
        return self.state in SHOWN

    @property
    def wants_load(self) -> bool:
        """Whether a baseline is to be brought to the target before anything else."""
        return self.load is None and self.state in WANTING

    @property
    def nothing(self) -> pa.Table:
        """A batch's rows of this table, where it has none: it only moves the position."""
        return result_schema(self.output).empty_table()

    def knows(self, log: LogReader, files: Sequence[File]) -> bool:
        """Whether these files have only columns that this pipeline has followed."""
        return not log.has_later_columns(self.table, files, self.schema_id)

    def behind_a_gap(self, log: LogReader) -> bool:
        """Whether what the target holds cannot go on with what the log has."""
        # A log that was made anew counts its epochs from 1 again: the lineage tells, or an
        # epoch this log never had. With either, positions do not compare.
        if log.gap is None or not self.following:
            return False
        elsewhere = self.lineage not in (None, log.lineage) or self.reached.epoch > log.epoch
        # What was pruned while it did not run is missing as well (R27).
        return elsewhere or self.reached < max(log.floor, Position.parse(log.gap.at))

    def owes(self, log: LogReader) -> Owed | None:
        """Return why its rows, or its changes, are not what the source's are; None: they are."""
        owed = log.owed(self.table) if self.following else None
        if owed is None:
            return None
        if self.baseline:
            return owed if self.baseline <= owed.baseline else None
        # It takes changes alone, and rows that changed without one are none of its business.
        return owed if log.lacks(self.table, self.reached) else None

    def loads_from_before_a_gap(self, log: LogReader) -> bool:
        """Whether what is being loaded cannot be brought to the present any more."""
        if log.gap is None or self.load is None:
            return False
        owed = log.owed(self.table)
        if owed is not None and 0 < self.load.baseline <= owed.baseline:
            return True
        return self.load.first < Position.parse(log.gap.at) or self.load.reached < log.floor


def watermark(
    members: Sequence[Member], log: LogReader, *, durable: bool, changes_only: bool
) -> Watermark:
    """Return what a pipeline with these tables still needs the source to keep (R8)."""
    end = log.end  # once: it moves, and what came since is not settled
    unsettled = [
        member.reached
        for member in members
        if member.following and log.changed_between(member.table, member.reached, end)
    ]
    if changes_only and any(member.wants_load for member in members):
        unsettled.append(ORIGIN)  # no baseline will bring what came since it first began
    # What follows is nothing of ours, or lies before a baseline that is owed.
    settled = min(unsettled, default=end)
    firsts = [first for member in members if (first := member.loads_from) is not None]
    return Watermark(durable, settled, min(firsts, default=None))
