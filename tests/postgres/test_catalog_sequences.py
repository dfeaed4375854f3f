"""Catalogues that change at random, while an engine reads, lags behind and is stopped."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.postgres.catalog_sequences import run
from tests.postgres.servers import Database
from tests.support.tiers import sweep

STEPS = 16


@pytest.mark.meets("R23b")
# Of the seeds that always run, one has our own publication and one a publication of the user's.
@pytest.mark.parametrize("seed", sweep((2, *range(5, 9), 1, 3, *range(9, 13), 4), 6))
def test_a_table_is_equal_or_red_with_its_name_whatever_was_altered(
    database: Database, tmp_path: Path, seed: int
) -> None:
    run(database, tmp_path / "data", seed, STEPS)
