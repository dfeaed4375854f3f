"""
How much of a test is run: a little all the time, all of it in the night.

The runner sets TESTS_TIER to `fast`, `test`, `ci` or `nightly`; pytest alone runs as `test`
does. A tier decides which tests are run by their markers (tests/conftest.py), and by this module
how many examples a property is given and how much of a sweep is walked.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, settings

Item = TypeVar("Item")

TIER = os.environ.get("TESTS_TIER", "test")
NIGHTLY = TIER == "nightly"

_SHARES = {"fast": 0.2, "test": 0.5, "ci": 0.5, "nightly": 10.0}
_FEWEST = 5


def examples(count: int, **others: Any) -> settings:
    """
    Return the settings of a property that deserves `count` examples.

    A tier gives it a share of them. There is no deadline: it would measure the machine.
    """
    return settings(max_examples=share(count), deadline=None, **others)


def share(count: int) -> int:
    """Return how many of `count` examples, seeds or rounds this tier runs."""
    return max(min(count, _FEWEST), round(count * _SHARES[TIER]))


def sweep(items: Iterable[Any], every: int) -> list[Any]:
    """Return parameters for a test: one of `every` is run always, the others in the night."""
    return [
        item if number % every == 0 else pytest.param(item, marks=pytest.mark.nightly)
        for number, item in enumerate(items)
    ]


def thinned(items: Sequence[Item], every: int) -> Sequence[Item]:
    """Return what a loop within a test walks: all items in the night, else one of `every`."""
    return items if NIGHTLY else items[::every]


# The complaint that making an example took long measures the machine too.
settings.register_profile(
    "headrace",
    max_examples=share(100),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
