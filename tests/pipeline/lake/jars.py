"""
The jars of Delta, fetched once by their coordinates into the user's cache, outside the tree.

Spark does it itself when it starts with `spark.jars.packages`; here only whether that can be
tried is looked at, so that a version without Delta is skipped by name.
"""

from __future__ import annotations

import pytest

from headrace.errors import BadTable
from headrace.pipeline.lake.formats import DELTA, needs


def need_delta() -> None:
    """Skip the test where there is no Delta for the Spark that is installed."""
    try:
        needs(DELTA)
    except BadTable as error:
        pytest.skip(str(error))
