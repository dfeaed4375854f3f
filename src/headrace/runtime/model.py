"""
The model of a pipeline's tables: progress, states, acknowledgement, and reactions to errors.

What the source may discard (R8, invariant 1): acknowledged = min(log synced, watermark of every
pipeline). This is computed in `acknowledged` and nowhere else, only from values, so that the
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
`stopped` are states of a whole pipeline; the states of its tables stay as they are meanwhile.

`Member` is one table of a pipeline: its position, and the baseline that is being loaded for it.

`decide` says what to do after an error of a pipeline, from one list; the default is to stop. Only
errors that may be temporary are retried. A row that cannot be computed, a corrupt file or an
invalid expression would fail the same way forever, and a person must look.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

import pyarrow as pa

from headrace.capture.messages import ENDLESS, Retries
from headrace.changelog.entries import File, RebaselineRequired
from headrace.changelog.position import CHANGES_END, ORIGIN, Position, in_log
from headrace.changelog.reader import LogReader
from headrace.changelog.schema import TableSchema
from headrace.errors import (
    HeadraceError,
    JobFailed,
    RowRefused,
    StorageError,
    TargetError,
    UnknownValue,
)
from headrace.pipeline.result import result_schema
from headrace.targets.target import Loading

# --- what the source may discard ------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Watermark:
    """What one pipeline still needs the source to keep."""

    durable: bool
    """A volatile target is rebuilt from the log: it needs nothing from the source."""

    settled: Position
    """
    Up to here everything is durable at the target; the end of the log if no change of the
    pipeline's tables follows.
    """

    loading_from: Position | None = None
    """The lowest F of the baselines that are being loaded."""

    released: bool = False
    """Whether the pipeline was released from its source (R28)."""

    def upto(self, log_end: Position) -> Position:
        """Return the position up to which the source may discard changes for this pipeline."""
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
    needed = [mark.upto(log_end) for mark in watermarks if not mark.released]
    upto = min([log_end, *needed])
    # A new pipeline may be behind what was already acknowledged: that cannot be undone.
    return upto if before is None else max(upto, before)


# --- the states of a table ------------------------------------------------------------------------


class TableState(StrEnum):
    """The state of a table in a pipeline, the least advanced first; only set by its run."""

    WAITING = "waiting"
    """No usable baseline is in the log; one was requested."""

    LOADING = "loading"
    """A baseline is being loaded into the target; readers do not see it yet."""

    CATCHING_UP = "catching_up"
    """The baseline is loaded; changes are applied until H is passed, then readers see it."""

    RELOADING = "reloading"
    """As live; meanwhile a newer baseline is awaited, loaded and brought up to date."""

    LIVE = "live"
    """Readers see the table, and changes are applied as they arrive."""

    COMPLETE = "complete"
    """Readers see the table as of its baseline; mode `baseline` requires no more."""


class PipelineState(StrEnum):
    """States of a whole pipeline, which take precedence over those of its tables."""

    PAUSED = "paused"
    FAILED = "failed"
    """Stopped on an error that a retry does not fix; the error says what does."""

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
"""All allowed changes of state."""

FOLLOWING = frozenset({TableState.LIVE, TableState.RELOADING})
"""The table takes part in the pipeline's batches."""

WANTING = frozenset(
    {TableState.WAITING, TableState.LOADING, TableState.CATCHING_UP, TableState.RELOADING}
)
"""The table has to be loaded from a baseline, unless it is in the target already."""

SHOWN = FOLLOWING | {TableState.COMPLETE}
"""Readers see the table, and it is exact."""


def may_move(old: TableState, new: TableState) -> bool:
    """Return whether `old` may become `new`."""
    return new in MOVES[old]


def resumed(state: TableState, mode: str, baseline: int) -> TableState:
    """Return the state to resume with in a mode; the stored state may be from another mode."""
    if mode != "changes" and not baseline:
        return TableState.WAITING  # it began without one
    if mode == "baseline":
        return TableState.WAITING if state == TableState.RELOADING else TableState.COMPLETE
    return TableState.LIVE if state == TableState.COMPLETE else state


# --- a table of a pipeline ------------------------------------------------------------------------


@dataclass(slots=True)
class Load:
    """A baseline that is loaded into the target and catches up, while the live table continues."""

    baseline: int
    first: Position
    """F: its rows contain everything up to here."""

    last: Position
    """H: from here on they are exact (R11)."""

    loading: Loading
    reached: Position
    """The position up to which changes since F have been applied."""

    def may_be_shown(self, goal: Position) -> bool:
        """Whether it has reached `goal`, did not begin after it, and is exact there."""
        # Invariant 7: before H a table is a mixture that never existed.
        # By commit: F is after a whole commit, the end of a batch at its last change.
        at = (self.reached.epoch, self.reached.commit) == (goal.epoch, goal.commit)
        # Corrections follow all changes of their commit: the last one of these is not enough.
        return at and goal >= self.last and (goal.ordinal <= CHANGES_END or self.reached >= goal)


@dataclass(slots=True)
class Member:
    """A table's progress within its pipeline (R12). Only used by the run's thread."""

    table: str
    input: TableSchema
    """The table's columns, as this pipeline knows them."""

    output: TableSchema
    state: TableState = TableState.WAITING
    reached: Position = ORIGIN
    """Everything up to here is at the target; for a table that is loaded, see `load`."""

    lineage: str | None = None
    baseline: int = 0
    """The number of the baseline that its rows began with."""

    newer_than: int = 0
    """The baseline must have a higher number, because a new one was requested."""

    reload_after: int = 0
    """
    For a table that is rebuilt from the log first: a reload was requested before the restart, and
    needs a baseline with a higher number. 0: none.
    """

    load: Load | None = None
    loads_from: Position | None = None
    """F of the baseline that is being loaded, until the switch."""

    loads_number: int = 0
    """The number of the baseline that is being loaded; 0 for none."""

    load_reason: str = ""
    """Why a table that readers have seen is loaded again; empty once it is shown."""

    stored: Position = ORIGIN
    schema_id: int = 0
    """The number of that schema in the log."""

    columns_until: Position | None = None
    """The last position with these columns, as of the last check; None for the log's end."""

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
        """Whether a baseline has to be loaded before anything else."""
        return self.load is None and self.state in WANTING

    @property
    def nothing(self) -> pa.Table:
        """An empty batch of this table: it only advances the position."""
        return result_schema(self.output).empty_table()

    def knows(self, log: LogReader, files: Sequence[File]) -> bool:
        """Whether these files only have columns that this pipeline knows."""
        return not log.has_later_columns(self.table, files, self.schema_id)

    def cut_off_by_gap(self, log: LogReader) -> bool:
        """Whether the target's rows cannot be continued with the changes in the log."""
        # A recreated log counts its epochs from 1 again: it has another lineage, or never had
        # the epoch. In both cases positions cannot be compared.
        if log.gap is None or not self.following:
            return False
        elsewhere = self.lineage not in (None, log.lineage) or self.reached.epoch > log.epoch
        # Changes that were pruned while it did not run are missing, too (R27).
        return elsewhere or in_log(self.reached) < max(log.floor, Position.parse(log.gap.at))

    def rebaseline_required(self, log: LogReader) -> RebaselineRequired | None:
        """Return why the table needs a new baseline or lacks changes; None if it does not."""
        required = log.rebaseline_required(self.table) if self.following else None
        if required is None:
            return None
        if self.baseline:
            return required if self.baseline <= required.baseline else None
        # In mode `changes`, rows that changed without a change record do not matter.
        return required if log.lacks(self.table, self.reached) else None

    def loads_from_before_a_gap(self, log: LogReader) -> bool:
        """Whether the baseline that is being loaded can no longer catch up."""
        if log.gap is None or self.load is None:
            return False
        required = log.rebaseline_required(self.table)
        if required is not None and 0 < self.load.baseline <= required.baseline:
            return True
        begun_before = self.load.first < Position.parse(log.gap.at)
        return begun_before or in_log(self.load.reached) < log.floor


def watermark(
    members: Sequence[Member], log: LogReader, *, durable: bool, changes_only: bool
) -> Watermark:
    """Return what a pipeline with these tables still needs the source to keep (R8)."""
    end = log.end  # read once: it moves, and later changes are not settled
    unsettled = [
        member.reached
        for member in members
        if member.following and log.changed_between(member.table, member.reached, end)
    ]
    if changes_only and any(member.wants_load for member in members):
        unsettled.append(ORIGIN)  # no baseline can replace the changes since its origin
    # Later changes are of other tables, or before a baseline that is still required.
    settled = min(unsettled, default=end)
    firsts = [first for member in members if (first := member.loads_from) is not None]
    return Watermark(durable, settled, min(firsts, default=None))


# --- reactions to errors --------------------------------------------------------------------------

FIRST_PAUSE = 0.2
LONGEST_PAUSE = 30.0
"""Long enough not to use a whole core on a broken cluster, short enough to recover soon."""

_MOST_DOUBLINGS = 10
"""Enough for the longest pause; without it, hours of outage would overflow a float."""

_TRIED_AGAIN: tuple[type[HeadraceError], ...] = (JobFailed, StorageError, TargetError)
_HOPELESS: tuple[type[HeadraceError], ...] = (RowRefused, UnknownValue)
"""Targets' errors that would come again."""


@dataclass(frozen=True, slots=True)
class Again:
    """Retry the same batch after a pause."""

    after: float


@dataclass(frozen=True, slots=True)
class Stop:
    """Stop the pipeline and report the error with its remedy."""


def decide(error: HeadraceError, attempts: int, retries: Retries = ENDLESS) -> Again | Stop:
    """Return what to do after `attempts` failures in a row, the last being `error`."""
    temporary = isinstance(error, _TRIED_AGAIN) and not isinstance(error, _HOPELESS)
    if not temporary or retries.exhausted(attempts):
        return Stop()
    first, longest = retries.first_pause, retries.longest_pause
    pause = (FIRST_PAUSE if first is None else first) * 2 ** min(attempts - 1, _MOST_DOUBLINGS)
    return Again(min(pause, LONGEST_PAUSE if longest is None else longest))
