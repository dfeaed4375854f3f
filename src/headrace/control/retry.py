"""
What to do about an error of a pipeline: one table, and its default is to stop.

Only errors that time can mend are tried again. A row that cannot be computed, a corrupt
file or a refused expression would fail the same way for ever, and a person must look.
"""

from __future__ import annotations

from dataclasses import dataclass

from headrace.errors import HeadraceError, JobFailed, StorageError, TargetError, UnknownValue

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
