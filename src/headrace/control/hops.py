"""
How long a change takes, hop by hop, from its commit at the source to its readers.

A ring of the last batches; each sample belongs to the oldest commit of its batch. Wall
clock times, because commit times come from another process.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

HOPS = ("captured", "flushed", "job", "applied", "total")
KEPT = 1_000


@dataclass(frozen=True, slots=True)
class Hop:
    """Quantiles of one hop, in milliseconds."""

    p50_ms: float
    p95_ms: float
    p99_ms: float


@dataclass(frozen=True, slots=True)
class Sample:
    """The moments of one batch, in seconds since 1970."""

    committed: float
    captured: float
    flushed: float
    computed: float
    applied: float


class Hops:
    """The last samples of a pipeline. Safe to call from several threads."""

    def __init__(self) -> None:
        self._samples: deque[Sample] = deque(maxlen=KEPT)
        self._lock = threading.Lock()

    def add(self, sample: Sample) -> None:
        """Remember a batch."""
        with self._lock:
            self._samples.append(sample)

    def quantiles(self) -> Mapping[str, Hop]:
        """Return the quantiles of every hop; empty before the first sample."""
        with self._lock:
            samples = list(self._samples)
        if not samples:
            return {}
        spans = {
            "captured": [s.captured - s.committed for s in samples],
            "flushed": [s.flushed - s.captured for s in samples],
            "job": [s.computed - s.flushed for s in samples],
            "applied": [s.applied - s.computed for s in samples],
            "total": [s.applied - s.committed for s in samples],
        }
        return {name: _quantiles(sorted(values)) for name, values in spans.items()}


def _quantiles(ordered: list[float]) -> Hop:
    def at(part: float) -> float:
        return round(1_000 * ordered[min(len(ordered) - 1, int(part * len(ordered)))], 3)

    return Hop(at(0.50), at(0.95), at(0.99))
