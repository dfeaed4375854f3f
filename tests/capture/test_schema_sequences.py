"""SQLite files that change at random, while an engine reads, lags behind and is stopped."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.capture.schema_sequences import run
from tests.support.tiers import sweep

STEPS = 16


@pytest.mark.slow
@pytest.mark.meets("R39")
@pytest.mark.parametrize("seed", sweep(range(1, 19), 6))
def test_a_table_is_equal_or_its_pipeline_has_failed_whatever_was_altered(
    tmp_path: Path, seed: int
) -> None:
    run(tmp_path, seed, STEPS)
