"""How long a test waits for what must come: longer on a machine that is slow or busy."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from functools import cache

USUAL = 0.025
"""Seconds in which an interpreter starts on the machine that limits were chosen on."""

LEAST = 60.0


def patience(seconds: float = LEAST) -> float:
    """
    Return the limit of a wait: `seconds` on a quiet machine, never less than a minute.

    It ends a test that would hang. Nothing may be concluded from its being reached late or soon:
    a promise of speed is measured in `bench/`.
    """
    return max(LEAST, seconds) * slowness()


@cache
def slowness() -> float:
    """Return how many times slower than usual this machine is now; at least 1."""
    known = os.environ.get("TESTS_SLOWNESS")
    if known is None:
        known = str(max(1.0, min(_start() for _ in range(3)) / USUAL))
        os.environ["TESTS_SLOWNESS"] = known  # children need not measure again
    return float(known)


def _start() -> float:
    began = time.perf_counter()
    subprocess.run([sys.executable, "-S", "-c", "pass"], check=True)
    return time.perf_counter() - began
