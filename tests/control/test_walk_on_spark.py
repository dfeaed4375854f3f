"""The path of one change, traced, and the page that describes it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from headrace.spark_session.session import Spark
from tools.walk import Function, Walk, walk

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reading.md"

MOST_MODULES = 61
MOST_LINES = 4_460
"""
What one change may pass through: 35 modules and 2,500 lines are the goal, so lower these.

Docstrings count. Two modules and some 160 lines are for a status that is true: when something was
last received, up to where everything is known to be in the log, whether Spark answers, and that no
run has an effect after another one has taken over. Nine modules and some 530 lines are for batches
without a Spark job, counts and events, corrections and rows that expire.
"""


@pytest.mark.spark
@pytest.mark.server
def test_the_page_to_read_names_every_module_that_a_change_passes(
    spark: Spark, tmp_path: Path
) -> None:
    found = walk(tmp_path / "data", spark.session)
    named = set(re.findall(r"`(headrace\.[\w.]+)`", PAGE.read_text()))
    assert [module for module in found.modules if module not in named] == []
    assert len(found.modules) <= MOST_MODULES, str(found)
    assert found.lines <= MOST_LINES, str(found)


def test_lines_of_a_function_within_another_count_once() -> None:
    outer, inner = Function("a", 1, 10, "outer"), Function("a", 3, 5, "inner")
    other = Function("b", 3, 5, "other")
    found = Walk((outer, inner, other))
    assert (found.modules, found.lines) == (("a", "b"), 13)
    assert "2 modules, 3 functions, 13 lines" in str(found)
