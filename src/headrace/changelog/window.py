"""
The window of a baseline: which changes behind its F its rows hold already (R11).

A copy is taken under a snapshot, and between F and H lie commits that the snapshot saw and
commits that it did not. Where a target keeps one row a key, all of them are applied: what
is done twice comes to the same. Where it keeps every change, a commit that was seen must not
come again, and the snapshot itself says which those are.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.changelog.entry import Baseline
from headrace.changelog.position import Position
from headrace.errors import BadMessage

_SNAPSHOT = re.compile(r"([0-9]+):([0-9]+):((?:[0-9]+(?:,[0-9]+)*)?)")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Which transactions had ended at one moment, by their 64-bit top-level ids."""

    xmin: int
    """All before it have ended."""

    xmax: int
    """None from it on has ended, or even begun."""

    running: frozenset[int]
    """Those between the two that had not ended."""

    def sees(self, xid: int) -> bool:
        """
        Whether what this transaction wrote is visible, provided that it has committed.

        For the id of a sub-transaction the answer means nothing: they are not listed (R6).
        """
        return xid < self.xmin or (xid < self.xmax and xid not in self.running)

    def __str__(self) -> str:
        return f"{self.xmin}:{self.xmax}:{','.join(map(str, sorted(self.running)))}"

    @classmethod
    def parse(cls, text: str) -> Snapshot:
        """Read `pg_current_snapshot()` as PostgreSQL prints it, or what `str()` wrote."""
        if (match := _SNAPSHOT.fullmatch(text)) is None:
            raise BadMessage("Text is not a snapshot", length=len(text))
        running = frozenset(int(xid) for xid in match[3].split(",") if xid)
        return cls(int(match[1]), int(match[2]), running)


@dataclass(frozen=True, slots=True)
class Window:
    """F, H and S of a baseline whose rows hold some of the commits in (F, H]."""

    first: Position
    last: Position
    snapshot: Snapshot

    @classmethod
    def of(cls, baseline: Baseline) -> Window | None:
        """Return a baseline's window; None where no commit can lie in it, or S is not known."""
        first, last = baseline.window
        if not baseline.snapshot or first.commit >= last.commit:
            return None
        return cls(first, last, Snapshot.parse(baseline.snapshot))

    def overlaps(self, first: Position) -> bool:
        """Whether changes from `first` on can lie in it."""
        return self.first.epoch == first.epoch and first.commit <= self.last.commit

    def held(self, rows: pa.Table) -> npt.NDArray[np.bool_]:
        """Return which of these changes the baseline's rows hold; in the shape of a segment."""
        commits = rows["_commit"].to_numpy()
        xids = rows["_xid"].fill_null(self.snapshot.xmax).to_numpy()
        seen = xids < self.snapshot.xmax
        seen &= ~np.isin(xids, np.array(sorted(self.snapshot.running), np.int64))
        within = (commits > self.first.commit) & (commits <= self.last.commit)
        return np.asarray(within & (seen | (xids < self.snapshot.xmin)), np.bool_)
