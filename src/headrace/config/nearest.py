"""The known word that somebody most likely meant."""

from __future__ import annotations

import re
from collections.abc import Iterable


def nearest(word: str, known: Iterable[str]) -> str | None:
    """Return the one of `known` that is hardly different from `word`; None where none is."""
    ranked = sorted((_distance(word.lower(), each.lower()), each) for each in known)
    if ranked and ranked[0][0] <= max(1, len(word) // 3):
        return ranked[0][1]
    # `equals` for `field-equals`, `slot` for `slot_mode`: a part was left out, or added.
    parts = set(_parts(word))
    related = [
        each for _, each in ranked if parts <= set(_parts(each)) or set(_parts(each)) <= parts
    ]
    return related[0] if related else None


def _parts(word: str) -> list[str]:
    return [part for part in re.split(r"[^a-z0-9]+", word.lower()) if part]


def _distance(a: str, b: str) -> int:
    """Return how many letters to add, remove, replace, or exchange with their neighbour."""
    before: list[int] = []
    row = list(range(len(b) + 1))
    for i, left in enumerate(a, 1):
        older, before, row = before, row, [i]
        for j, right in enumerate(b, 1):
            cost = min(before[j] + 1, row[-1] + 1, before[j - 1] + (left != right))
            if i > 1 and j > 1 and left == b[j - 2] and a[i - 2] == right:
                cost = min(cost, older[j - 2] + 1)
            row.append(cost)
    return row[-1]
