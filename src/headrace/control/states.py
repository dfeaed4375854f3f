"""
The states of a table in a pipeline, and the moves between them (R12).

```
 waiting ──▶ loading ──▶ catching_up ──▶ live
    ▲           │             │           │
    └───────────┴─────────────┴───────────┘   a gap or a new epoch: a baseline is owed
 any ──▶ failed (a person must look)      any ──▶ stopped
```

A state is stored before it takes effect, so that a crash at any instant finds either the
old one or the new one, never a table that claims more than it has.
"""

from __future__ import annotations

from enum import StrEnum


class TableState(StrEnum):
    """Where a table of a pipeline stands; set by its run, and by nobody else."""

    WAITING = "waiting"
    """No usable baseline is in the log; one was asked for."""

    LOADING = "loading"
    """A baseline is being brought to the target, beside what readers see."""

    CATCHING_UP = "catching_up"
    """The baseline is loaded; changes are applied until H is passed, then it is shown."""

    LIVE = "live"
    """Readers see the table, and changes are applied as they come."""

    FAILED = "failed"
    """Stopped on an error that time does not mend; the error says what does."""

    STOPPED = "stopped"
    """The engine was stopped."""


MOVES: dict[TableState, frozenset[TableState]] = {
    TableState.WAITING: frozenset({TableState.LOADING, TableState.CATCHING_UP, TableState.LIVE}),
    TableState.LOADING: frozenset({TableState.CATCHING_UP, TableState.WAITING}),
    TableState.CATCHING_UP: frozenset({TableState.LIVE, TableState.WAITING}),
    TableState.LIVE: frozenset({TableState.WAITING}),
    TableState.FAILED: frozenset(),
    TableState.STOPPED: frozenset(),
}
"""Every move but those to `failed` and `stopped`, which any state may make."""


def may_move(old: TableState, new: TableState) -> bool:
    """Return whether `old` may become `new`."""
    return new in MOVES[old] or new in (TableState.FAILED, TableState.STOPPED)
