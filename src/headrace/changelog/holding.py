"""Who reads a part of the log in this process, and has it kept meanwhile (R27)."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from headrace.changelog.position import Position


@dataclass(frozen=True, slots=True)
class Hold:
    """Everything after a position, and these baselines."""

    whose: str
    position: Position
    baselines: frozenset[int]


class Holds:
    """Those of one log. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: list[Hold] = []

    @contextmanager
    def hold(
        self, whose: str, position: Position, baselines: Collection[int] = ()
    ) -> Iterator[None]:
        """Have it kept until this is left; what was pruned before is not brought back."""
        held = Hold(whose, position, frozenset(baselines))
        with self._lock:
            self._held.append(held)
        try:
            yield
        finally:
            with self._lock:
                self._held.remove(held)

    def all(self) -> list[Hold]:
        """Return what is held now."""
        with self._lock:
            return list(self._held)
