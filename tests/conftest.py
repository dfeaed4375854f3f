"""
What all tests share.

Fixtures stand in modules of their own, named here once; what a test costs is said by its
markers, and what a run left out is said at its end.
"""

from __future__ import annotations

import importlib.util
import signal
from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import settings

import tests.support.tiers  # noqa: F401  registers the profile

_FIXTURES = ["tests.spark_session", "tests.invocations"]
pytest_plugins = [name for name in _FIXTURES if importlib.util.find_spec(name)]

_COSTS = {
    "spark": "they need a JVM",
    "crash": "they kill real processes",
    "server": "they need a PostgreSQL server",
    "cluster": "they start a Spark cluster: make test-cluster",
    "s3": "they start a server of S3: make test-s3",
}
_left_out: Counter[str] = Counter()

# A shell's background jobs have it ignored, and so would have every child that is interrupted here.
signal.signal(signal.SIGINT, signal.default_int_handler)

settings.load_profile("headrace")


def pytest_deselected(items: Sequence[pytest.Item]) -> None:
    for item in items:
        _left_out[next((cost for cost in _COSTS if item.get_closest_marker(cost)), "")] += 1


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for cost, reason in _COSTS.items():
        if count := _left_out[cost]:
            terminalreporter.write_line(f"not run: {count} marked {cost}, because {reason}")
