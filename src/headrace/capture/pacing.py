"""
How fast a source's tables may be copied, where somebody set a limit.

Whoever copies is told when the next rows may be read, and decides itself what to do until
then: a task of Spark's sleeps, the recorder goes on with changes.
"""

from __future__ import annotations

from headrace.errors import SourceRefused

SLOWEST = 1
"""Rows a second: below that a copy would never end."""

PIECE_SECONDS = 0.25
"""Rows for about so long are read at once: little of a burst, and few transactions."""

_CREDIT_SECONDS = 0.1
"""Time that reading itself took, and that need not be rested for again."""


def checked_rate(rows_per_s: float | None) -> float | None:
    """Return a limit as it was given; one that nobody can mean raises `SourceRefused`."""
    if rows_per_s is not None and not rows_per_s >= SLOWEST:
        raise SourceRefused(
            "Too slow a copy",
            copy_rows_per_s=rows_per_s,
            remedy=f"Allow {SLOWEST} rows a second at least, or leave copy_rows_per_s out.",
        )
    return rows_per_s


class Pacing:
    """Says when the next rows may be read; all times are of one clock. None: no limit."""

    def __init__(self, rows_per_s: float | None, now: float = 0.0) -> None:
        self.rows_per_s = rows_per_s
        self.not_before = now
        """When the next rows may be read, if some were."""

    def took(self, rows: int, now: float) -> None:
        """Take it that so many rows were read by now."""
        if self.rows_per_s is not None and rows:
            self.not_before = max(self.not_before, now - _CREDIT_SECONDS) + rows / self.rows_per_s

    def rest(self, now: float) -> float:
        """Return for how many seconds nothing may be read."""
        return max(0.0, self.not_before - now)


def piece_rows(rows_per_s: float | None, most: int) -> int:
    """Return how many rows to read at once, `most` where there is no limit."""
    return most if rows_per_s is None else max(1, min(most, int(rows_per_s * PIECE_SECONDS)))
