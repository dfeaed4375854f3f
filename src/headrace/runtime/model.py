"""
The model of a pipeline's tables: progress, states, acknowledgement, and what an error leads to.

How far the source may forget (R8, invariant 1): acknowledged = min(log synced, watermark of every
pipeline). This is computed in `acknowledged` and nowhere else, from values alone, so that the
formula can be tested and simulated.

The states of a table in a pipeline, and the moves between them (R12):

```
 waiting ──▶ loading ──▶ catching_up ──▶ live ◀──▶ reloading
    ▲           │             │           │ │          │
    └───────────┴─────────────┴───────────┼─┼──────────┘   a gap or a new epoch
                                          │ └──▶ complete  (mode "baseline")
```

A state is stored before it takes effect, so that a crash at any instant finds either the
old one or the new one, never a table that claims more than it has. `paused`, `failed` and
`stopped` are states of a whole pipeline and lie over those of its tables, which stay as
they are beneath.

`Member` is one table of a pipeline: where it stands, and what is being loaded beside it.

`decide` says what to do about an error of a pipeline, from one list; its default is to stop. Only
errors that pass with time are tried again. A row that cannot be computed, a corrupt file or a
refused expression would fail the same way forever, and a person must look.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

import pyarrow as pa

from headrace.changelog.entries import File, RebaselineRequired
from headrace.changelog.position import ORIGIN, Position
from headrace.changelog.reader import LogReader
from headrace.changelog.schema import TableSchema
from headrace.errors import HeadraceError, JobFailed, StorageError, TargetError, UnknownValue
from headrace.pipeline.result import result_schema
from headrace.targets.target import Loading

# --- how far the source may forget ----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Watermark:
    """What one pipeline still needs the source to keep."""

    durable: bool
    """A volatile target is rebuilt from the log: it needs nothing of the source."""

    settled: Position
    """
    Up to here everything is durable at the target; where no change of the pipeline's
    tables follows, the end of the log.
    """

    loading_from: Position | None = None
    """The lowest F of its running baselines."""

    set_aside: bool = False

    def upto(self, log_end: Position) -> Position:
        """Return the position the source may forget for this pipeline."""
        bounds = [log_end]
        if self.durable:
            bounds.append(self.settled)
        if self.loading_from is not None:
            bounds.append(self.loading_from)
        return min(bounds)


def acknowledged(
    log_end: Position, watermarks: Iterable[Watermark], before: Position | None
) -> Position:
    """Return the position to acknowledge; never earlier than `before`."""
    needed = [mark.upto(log_end) for mark in watermarks if not mark.set_aside]
    upto = min([log_end, *needed])
    # A pipeline that joins late stands behind what was already told: that is not taken back.
    return upto if before is None else max(upto, before)


# --- the states of a table ------------------------------------------------------------------------


class TableState(StrEnum):
    """Where a table of a pipeline stands, the least far first; set by its run alone."""

    WAITING = "waiting"
    """No usable baseline is in the log; one was asked for."""

    LOADING = "loading"
    """A baseline is being brought to the target, beside what readers see."""

    CATCHING_UP = "catching_up"
    """The baseline is loaded; changes are applied to it until H is passed, then it is shown."""

    RELOADING = "reloading"
    """As live; beside it a newer baseline is waited for, loaded and brought up to date."""

    LIVE = "live"
    """Readers see the table, and changes are applied as they come."""

    COMPLETE = "complete"
    """Readers see the table as it was at its baseline; that was all that was asked for."""


class PipelineState(StrEnum):
    """What lies over the states of a pipeline's tables."""

    PAUSED = "paused"
    FAILED = "failed"
    """Stopped on an error that time does not mend; the error says what does."""

    STOPPED = "stopped"
    """The engine was stopped."""


MOVES: dict[TableState, frozenset[TableState]] = {
    TableState.WAITING: frozenset({TableState.LOADING}),
    TableState.LOADING: frozenset(
        {TableState.CATCHING_UP, TableState.LIVE, TableState.COMPLETE, TableState.WAITING}
    ),
    TableState.CATCHING_UP: frozenset(
        {TableState.LIVE, TableState.COMPLETE, TableState.LOADING, TableState.WAITING}
    ),
    TableState.LIVE: frozenset({TableState.RELOADING, TableState.WAITING}),
    TableState.RELOADING: frozenset({TableState.LIVE, TableState.WAITING}),
    TableState.COMPLETE: frozenset({TableState.WAITING}),
}
"""Every move there is."""

FOLLOWING = frozenset({TableState.LIVE, TableState.RELOADING})
"""The table takes part in the pipeline's batches."""

WANTING = frozenset(
    {TableState.WAITING, TableState.LOADING, TableState.CATCHING_UP, TableState.RELOADING}
)
"""The table is loaded from a baseline, unless that stands in the target already."""

SHOWN = FOLLOWING | {TableState.COMPLETE}
"""Readers see the table, and it is exact."""


def may_move(old: TableState, new: TableState) -> bool:
    """Return whether `old` may become `new`."""
    return new in MOVES[old]


def resumed(state: TableState, mode: str, baseline: int) -> TableState:
    """Return what the stored state of a shown table means in a mode; it may have had another."""
    if mode != "changes" and not baseline:
        return TableState.WAITING  # it began without one
    if mode == "baseline":
        return TableState.WAITING if state == TableState.RELOADING else TableState.COMPLETE
    return TableState.LIVE if state == TableState.COMPLETE else state


# --- a table of a pipeline ------------------------------------------------------------------------


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

    def owes(self, log: LogReader) -> RebaselineRequired | None:
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


# --- what an error leads to -----------------------------------------------------------------------

FIRST_PAUSE = 0.2
LONGEST_PAUSE = 30.0
"""Long enough not to burn a core on a broken cluster, short enough to be noticed healed."""

_MOST_DOUBLINGS = 10
"""Enough for the longest pause; an outage of hours must not make a number that has no float."""

_TRIED_AGAIN: tuple[type[HeadraceError], ...] = (JobFailed, StorageError, TargetError)


@dataclass(frozen=True, slots=True)
class Again:
    """Try the same batch again after a pause."""

    after: float


@dataclass(frozen=True, slots=True)
class Stop:
    """Stop the pipeline and show the error with its remedy."""


def decide(error: HeadraceError, attempts: int) -> Again | Stop:
    """Return what to do after `attempts` failures in a row, the last being `error`."""
    if isinstance(error, _TRIED_AGAIN) and not isinstance(error, UnknownValue):
        return Again(min(FIRST_PAUSE * 2 ** min(attempts - 1, _MOST_DOUBLINGS), LONGEST_PAUSE))
    return Stop()
