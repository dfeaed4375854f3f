"""Which transactions have committed lately, by numbers that do not come round again."""

from __future__ import annotations

from collections import deque
from typing import Final

import numpy as np
from numpy.typing import NDArray

MOST: Final = 131_072
"""How many commits are remembered. A commit becomes visible soon after it was sent."""


class Committed:
    """
    The commits received last: where each ended, and its top-level transaction (R6).

    A snapshot for a baseline is good only if it sees all of them up to its beginning (H2.5).
    """

    def __init__(self, most: int = MOST) -> None:
        self._parts: deque[tuple[NDArray[np.int64], NDArray[np.int64]]] = deque()
        self._most = most
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, ends: NDArray[np.int64], xids: NDArray[np.int64]) -> None:
        """Remember commits, and forget the oldest where there are too many."""
        if not len(ends):
            return
        self._parts.append((ends, xids))
        self._count += len(ends)
        while self._count - len(self._parts[0][0]) >= self._most:
            self._count -= len(self._parts.popleft()[0])

    def upto(self, lsn: int) -> NDArray[np.int64]:
        """Return the transactions, as 64 bits, whose commits ended at or before `lsn`."""
        found = [xids[ends <= lsn] for ends, xids in self._parts]
        return np.concatenate([np.zeros(0, np.int64), *found])

    def pairs(self) -> list[tuple[int, int]]:
        """Return all of them as (end of the commit, transaction), in commit order."""
        return [
            pair
            for ends, xids in self._parts
            for pair in zip(ends.tolist(), xids.tolist(), strict=True)
        ]


def widened(xids: NDArray[np.int64], around: int) -> NDArray[np.int64]:
    """Return transaction numbers of 32 bits as the numbers of 64 nearest to `around` (R6)."""
    distance = (xids - around) & 0xFFFFFFFF
    distance[distance >= 1 << 31] -= 1 << 32
    wide = distance + around
    wide[wide < 0] += 1 << 32
    return wide
