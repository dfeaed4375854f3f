"""What a recorder remembers of places that are durable, in both languages: log's and source's."""

from __future__ import annotations

from collections import deque

from headrace.changelog.position import Position

MOST_REMEMBERED = 20_000


class Synced:
    """Places in order; what is acknowledged is always one of them."""

    def __init__(self) -> None:
        self._places: deque[tuple[Position, str]] = deque()

    def add(self, end: Position, source: str) -> None:
        """Note where the log ends now, and what the source calls that."""
        self._places.append((end, source))
        if len(self._places) > MOST_REMEMBERED:
            # Coarser is safe: what is acknowledged is always at or before what was asked.
            self._places = deque(list(self._places)[::2])

    def upto(self, asked: Position) -> str:
        """Return the newest place at or before `asked`, in the source's words; empty: none."""
        text = ""
        places = self._places
        while places and places[0][0] <= asked:
            text = places[0][1]
            if len(places) == 1 or places[1][0] > asked:
                break
            places.popleft()
        return text

    def clear(self) -> None:
        """Forget all."""
        self._places.clear()
