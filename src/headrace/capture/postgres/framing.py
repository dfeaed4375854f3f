"""
Where messages begin in what a socket gave.

Each message says how long it is, so that one finds the next by the one before it: a step of
Python for each, millions of times. Where transactions hold one change each, two messages of
every three are of known lengths, and are stepped over unseen; whether that was right is then
looked up for all of them at once, and what was not is gone through again, one by one.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from headrace.capture.postgres.pgoutput import BEGIN_SIZE, COMMIT_SIZE

HEAD: Final = 5
"""The kind of a message and its length."""

_AROUND: Final = HEAD + 25
"""What is around a message of pgoutput: this head, and that of the replication protocol."""

_COMMIT: Final = _AROUND + COMMIT_SIZE
_BEGIN: Final = _AROUND + BEGIN_SIZE
_BETWEEN: Final = _COMMIT + _BEGIN

FEW: Final = 48
MOST: Final = 8_192
"""Steps taken at once, in either way: few at first, more while it goes well."""

_length = struct.Struct(">I").unpack_from


def whole_messages(
    buffer: bytes | bytearray, fill: int, at: int = 0
) -> tuple[NDArray[np.int64], int]:
    """Return where the whole messages in `buffer[at:fill]` begin, and where the last one ends."""
    parts: list[NDArray[np.int64]] = []
    singly = FEW
    while True:
        heads, end = _one_by_one(buffer, fill, at, singly)
        parts.append(np.array(heads, np.int64))
        if len(heads) < singly:
            return np.concatenate(parts), end
        at = end
        sizes = [stop - start for start, stop in pairwise((*heads[-6:], end))]
        if (before := _before_a_change(sizes)) is None:
            singly = min(2 * singly, MOST)
            continue
        heads, at = _one_by_one(buffer, fill, at, before)
        parts.append(np.array(heads, np.int64))
        by_threes, right = FEW, True
        while right:
            found, at, right = _by_threes(buffer, fill, at, by_threes)
            parts.append(found)
            by_threes = min(4 * by_threes, MOST)
        singly = FEW


def _one_by_one(buffer: bytes | bytearray, fill: int, at: int, most: int) -> tuple[list[int], int]:
    heads: list[int] = []
    last = fill - HEAD
    for _ in range(most):
        if at > last:
            break
        following = at + 1 + _length(buffer, at + 1)[0]
        if following > fill:
            break
        heads.append(at)
        at = following
    return heads, at


def _before_a_change(sizes: Sequence[int]) -> int | None:
    """Return how many messages stand before the next change; None if they do not go by threes."""
    for before in range(3):
        begins, commits = sizes[(2 + before) % 3 :: 3], sizes[(1 + before) % 3 :: 3]
        if all(size == _BEGIN for size in begins) and all(size == _COMMIT for size in commits):
            return before
    return None


def _by_threes(
    buffer: bytes | bytearray, fill: int, at: int, most: int
) -> tuple[NDArray[np.int64], int, bool]:
    """
    Step from change to change, over a Commit and a Begin each time.

    Return where messages begin, where the last of them ends, and whether to go on like this.
    """
    places: list[int] = []
    last = fill - HEAD
    for _ in range(most):
        if at > last:
            break
        places.append(at)
        at += 1 + _BETWEEN + _length(buffer, at + 1)[0]
    changes = np.array(places, np.int64)
    ends = np.append(changes[1:], at)
    commits, begins = ends - _BETWEEN, ends - _BEGIN
    lengths: NDArray[np.uint32] = np.ndarray(fill - 3, ">u4", buffer, strides=(1,))
    # Beyond the first that is not whole nothing is true; places are only kept within bounds.
    right = ends <= fill
    within = np.minimum(commits, last), np.minimum(begins, last)
    right &= lengths[within[0] + 1] == _COMMIT - 1
    right &= lengths[within[1] + 1] == _BEGIN - 1
    count = len(changes) if right.all() else int(np.argmin(right))
    found = np.stack((changes[:count], commits[:count], begins[:count]), axis=1).ravel()
    end = int(ends[count - 1]) if count else int(changes[0]) if places else at
    return found, end, count == most
