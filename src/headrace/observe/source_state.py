"""
The states of a source, and the one place where they change.

```
 connecting ──▶ connected ◀──▶ streaming ◀──▶ paused
     ▲  │            │  ▲          │             │
     │  │            ▼  │          ▼             │
     │  └──────▶ reconnecting ◀────┴─────────────┘
     │                 │
     └──── error ◀─────┘          every state but closed may also end in error, or in closed
```

A source is `streaming` only after something was read since it connected, and only until nothing is
known of it any more. In `error` it is not tried again: a resume leads back to `connecting`.

What a recorder does is reported in more words (`waiting`, `full`, `watching`, …). `SourceRun` says
which of these states that is, and `SourceStateMachine` gets there by allowed moves alone: a source
that was lost and is read again was `connected` in between. It reports every move, in order, to
`on_move`.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum


class SourceState(StrEnum):
    """The state of a source."""

    CONNECTING = "connecting"
    """It has not been reached since its recorder was started."""

    CONNECTED = "connected"
    """It was opened, and nothing was read yet; or no table can be captured at the moment."""

    STREAMING = "streaming"
    """Changes are read as they are committed."""

    RECONNECTING = "reconnecting"
    """It was lost, or nothing is heard of it, or the log cannot be used: it is tried again."""

    PAUSED = "paused"
    """It is connected, and nothing is read, because the log has reached its cap."""

    ERROR = "error"
    """It is not tried any more, until it is resumed."""

    CLOSED = "closed"
    """The engine has stopped, or does not use it any more."""


_ANY_END = frozenset({SourceState.ERROR, SourceState.CLOSED})

SOURCE_MOVES: dict[SourceState, frozenset[SourceState]] = {
    SourceState.CONNECTING: _ANY_END | {SourceState.CONNECTED, SourceState.RECONNECTING},
    SourceState.CONNECTED: _ANY_END
    | {
        SourceState.STREAMING,
        SourceState.PAUSED,
        SourceState.RECONNECTING,
        SourceState.CONNECTING,
    },
    SourceState.STREAMING: _ANY_END
    | {
        SourceState.CONNECTED,
        SourceState.PAUSED,
        SourceState.RECONNECTING,
        SourceState.CONNECTING,
    },
    SourceState.RECONNECTING: _ANY_END | {SourceState.CONNECTED, SourceState.CONNECTING},
    SourceState.PAUSED: _ANY_END
    | {
        SourceState.STREAMING,
        SourceState.CONNECTED,
        SourceState.RECONNECTING,
        SourceState.CONNECTING,
    },
    SourceState.ERROR: frozenset({SourceState.CONNECTING, SourceState.CLOSED}),
    SourceState.CLOSED: frozenset(),
}
"""All allowed moves."""


@dataclass(frozen=True, slots=True)
class SourceMove:
    """One move of a source's state."""

    source: str
    before: SourceState
    after: SourceState
    reason: str
    """Why; may be empty."""

    at: float
    """Seconds since 1970."""


class SourceStateMachine:
    """The state of one source. Safe to call from several threads."""

    def __init__(self, source: str, wall: Callable[[], float]) -> None:
        self.state = SourceState.CONNECTING
        self.since = wall()
        """Since when it is in this state, in seconds since 1970."""

        self.on_move: Callable[[SourceMove], None] = lambda move: None
        """Called with every move, in order; must neither block nor call back."""

        self._source = source
        self._wall = wall
        self._lock = threading.Lock()

    def move(self, to: SourceState, reason: str) -> None:
        """Get to a state, by allowed moves; nothing leads out of `closed`."""
        with self._lock:
            for state in moves_between(self.state, to):
                before, self.state, self.since = self.state, state, self._wall()
                self.on_move(SourceMove(self._source, before, state, reason, self.since))


def moves_between(start: SourceState, end: SourceState) -> list[SourceState]:
    """Return the states of the shortest allowed way, without `start`; empty if there is none."""
    ways: deque[list[SourceState]] = deque([[start]])
    seen = {start}
    while ways:
        way = ways.popleft()
        if way[-1] == end:
            return way[1:]
        for state in SourceState:
            if state in SOURCE_MOVES[way[-1]] and state not in seen:
                seen.add(state)
                ways.append([*way, state])
    return []
