"""
What all tests share.

Fixtures stand in modules of their own, named here once; what a test costs is said by its
markers, and what a run left out is said at its end.
"""

from __future__ import annotations

import signal

import pytest
from hypothesis import settings

import tests.support.tiers  # noqa: F401  registers the profile
from tests.support.patience import patience

pytest_plugins = ["tests.spark_session", "tests.invocations", "tests.support.worker"]

# A shell's background jobs have it ignored, and so would have every child that is interrupted here.
signal.signal(signal.SIGINT, signal.default_int_handler)

settings.load_profile("headrace")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what uses the shared Spark, and end what hangs later than any wait in it would."""
    longest = 2 * patience(300)
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.spark)
        if item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(longest))
