"""Whether a figure that was looked at again and again grows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

SURE = 1.645
"""Standard errors below the estimate that a slope is above with 95 % certainty."""


@dataclass(frozen=True, slots=True)
class Slope:
    """How much a figure grows in a minute."""

    estimate: float
    lower: float
    """With 95 % certainty it grows at least this fast."""


def slope(minutes: Sequence[float], values: Sequence[float]) -> Slope:
    """Return the slope of a line through the points, by least squares."""
    count = len(minutes)
    mean_x, mean_y = sum(minutes) / count, sum(values) / count
    spread = sum((x - mean_x) ** 2 for x in minutes)
    if count < 3 or spread == 0:
        return Slope(0.0, -math.inf)
    pairs = list(zip(minutes, values, strict=True))
    estimate = sum((x - mean_x) * (y - mean_y) for x, y in pairs) / spread
    rest = sum((y - mean_y - estimate * (x - mean_x)) ** 2 for x, y in pairs)
    error = math.sqrt(rest / (count - 2) / spread)
    return Slope(estimate, estimate - SURE * error)


def settled(values: Sequence[float]) -> Sequence[float]:
    """Return the last two thirds: what comes before is warming up."""
    return values[len(values) // 3 :]
