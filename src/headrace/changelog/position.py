"""
The position of a change in its source's history.

A commit number alone does not order changes: all changes of a transaction share it.
Nor does a pair: numbers start again when a database is restored, promoted or
recreated, and "forward only" would then discard every new change until the old number
is passed. So a position has three parts, and the first one, the epoch, is counted by
the log itself (R1). Each epoch has a lineage, a text that names the history its
commits belong to: `sqlite/<capture uuid>`, `pg/<system>/<database>`, `log/<uuid>`.

Every stage uses positions. Targets use them to recognise changes that they already have.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Protocol

from headrace.errors import BadPosition

_TEXT = re.compile(r"([0-9a-f]{4})-([0-9a-f]{16})-([0-9a-f]{8})")

MAX_EPOCH = 2**16 - 1
MAX_COMMIT = 2**63 - 1
MAX_ORDINAL = 2**31 - 1
"""Commits and ordinals are signed in Parquet and Spark, so half of the range is unused."""

CHANGES_END = 2**30
"""
Changes have lower ordinals than this; greater ones are for corrections.

A pipeline applies a correction after all changes of a commit, and before the next commit.
"""


@dataclass(frozen=True, order=True, slots=True)
class Position:
    """The position of a change: the epoch, the commit, and the change within the commit."""

    epoch: int
    """Counted by the log from 1; 0 is before every epoch."""

    commit: int
    """The commit as the source numbers it: an end LSN, a capture sequence."""

    ordinal: int = 0
    """The change within its commit, counted from 0."""

    def __post_init__(self) -> None:
        if not (
            0 <= self.epoch <= MAX_EPOCH
            and 0 <= self.commit <= MAX_COMMIT
            and 0 <= self.ordinal <= MAX_ORDINAL
        ):
            raise BadPosition(
                "Position is out of range",
                epoch=self.epoch,
                commit=self.commit,
                ordinal=self.ordinal,
            )

    def __str__(self) -> str:
        # Fixed width, so text sorts as positions do and a listing is in log order.
        return f"{self.epoch:04x}-{self.commit:016x}-{self.ordinal:08x}"

    @classmethod
    def parse(cls, text: str) -> Position:
        """Read back what `str()` wrote; anything else raises `BadPosition`."""
        # Not int(text, 16): it also takes signs, spaces, underscores and "0x".
        if (match := _TEXT.fullmatch(text)) is None:
            raise BadPosition("Text is not a position", text=text)
        return cls(int(match[1], 16), int(match[2], 16), int(match[3], 16))


ORIGIN = Position(0, 0, 0)
"""Before every change of every log: where a pipeline without progress begins."""


def before_corrections(position: Position) -> Position:
    """Return where a table begins that was loaded at F: before the corrections of this commit."""
    if position.ordinal < MAX_ORDINAL:
        return position
    return Position(position.epoch, position.commit, CHANGES_END)


def in_log(position: Position) -> Position:
    """Return a position as the log compares it: corrections are after all of their commit."""
    if position.ordinal < CHANGES_END:
        return position
    return Position(position.epoch, position.commit, MAX_ORDINAL)


def before_commit(position: Position) -> Position:
    """Return a position of the log from which everything after `position` is kept."""
    if position.ordinal < CHANGES_END:
        return position
    return Position(position.epoch, position.commit)


class SourcePosition(Protocol):
    """
    A position in the source's own terms: an LSN, epoch and sequence, a map of shards.

    Opaque outside its source; ordered within one lineage. The log keeps its text, so
    that resume, acknowledgement and replay use the source's own positions.
    """

    @property
    def lineage(self) -> str:
        """The history of this position; positions of two lineages cannot be compared."""
        ...

    @property
    def commit(self) -> int:
        """The number of the last commit at or before this position; 0 if there is none."""
        ...

    def __str__(self) -> str: ...
