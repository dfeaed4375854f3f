"""What a round came to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

SHOWN = 10
"""What is wrong is told so often; of the rest, how much there is."""


class RoundFailed(Exception):
    """Something is wrong; the message says what."""


def judge(found: Sequence[str]) -> None:
    """Raise where something was found wrong."""
    if found:
        more = f" and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
        raise RoundFailed("; ".join(found[:SHOWN]) + more)


@dataclass(slots=True)
class Outcome:
    """What a round came to."""

    seed: int
    hits: Counter[str] = field(default_factory=Counter)
    missed: Counter[str] = field(default_factory=Counter)
    writes: Counter[str] = field(default_factory=Counter)
    versions: Counter[str] = field(default_factory=Counter)
    """Of all tables of a lake, by the operation that made them."""

    unsure: int = 0
    """Versions whose position lies beside a commit, so that two states would do."""

    error: str | None = None
    folder: str | None = None
    """Kept only where something was wrong."""

    seconds: float = 0.0

    def count(self, name: str, *, hit: bool) -> None:
        """Count a blow, or that it found nobody."""
        (self.hits if hit else self.missed)[name] += 1
