"""Catalogues that change at random, while an engine reads, lags behind and is stopped."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.postgres.catalog_sequences import run
from tests.postgres.servers import Database
from tests.support.tiers import sweep

STEPS = 16


@pytest.mark.meets("R23b")
@pytest.mark.parametrize("seed", sweep(range(1, 13), 6))
def test_a_table_is_equal_or_its_source_has_failed_whatever_was_altered(
    database: Database, tmp_path: Path, seed: int
) -> None:
    run(database, tmp_path / "data", seed, STEPS)
