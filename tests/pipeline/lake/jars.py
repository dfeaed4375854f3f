"""
The jars of a format, fetched once by their coordinates into the user's cache, outside the tree.

Spark does it itself when it starts with `spark.jars.packages`; here only whether that can be
tried is looked at, so that a version without the format is skipped by name.
"""

from __future__ import annotations

import pytest

from headrace.errors import BadTable
from headrace.lake.formats import FORMATS, needs


def need_format(name: str) -> None:
    """Skip the test where there is no such format for the Spark that is installed."""
    try:
        needs(FORMATS[name])
    except BadTable as error:
        pytest.skip(str(error))


def need_delta() -> None:
    """Skip the test where there is no Delta."""
    need_format("delta")
