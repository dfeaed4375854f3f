"""A seed that nobody chose: each commit brings another, the same one for all who check it out."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.simulation.ledger import state_of_the_code

ROOT = Path(__file__).parents[2]


def chosen_by_the_commit() -> int:
    """Return the seed, or the first of the seeds, that belong to what is checked out."""
    told = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    state = told.stdout.strip() or state_of_the_code()
    return 1_000_000 + int(state[:10], 16) % 1_000_000_000
