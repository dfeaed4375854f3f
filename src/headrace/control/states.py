"""
The states of a table in a pipeline, and the moves between them (R12).

```
 waiting ──▶ loading ──▶ catching_up ──▶ live ◀──▶ reloading
    ▲           │             │           │ │          │
    └───────────┴─────────────┴───────────┼─┼──────────┘   a gap or a new epoch
                                          │ └──▶ complete  (mode "baseline")
```

A state is stored before it takes effect, so that a crash at any instant finds either the
old one or the new one, never a table that claims more than it has. `paused`, `failed` and
`stopped` are of a whole pipeline and lie over the states of its tables, which stay as
they are beneath.
"""

from __future__ import annotations

from enum import StrEnum


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
