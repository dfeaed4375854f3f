"""Readers, writers and teardowns that are killed at any statement: nothing is lost."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.patience import patience

ROOT = Path(__file__).parents[2]

SEEDS = [
    1,
    *(pytest.param(seed, marks=pytest.mark.ci) for seed in (2, 3)),
    *(pytest.param(seed, marks=pytest.mark.nightly) for seed in range(4, 64)),
]


@pytest.mark.crash
@pytest.mark.process
@pytest.mark.meets("P2", "R40", "R42", "R43")
@pytest.mark.parametrize("seed", SEEDS)
def test_two_readers_have_every_change_whoever_was_killed(tmp_path: Path, seed: int) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.capture.sqlite_kills", str(tmp_path), str(seed)],
        capture_output=True,
        text=True,
        check=False,
        timeout=patience(300),
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"},
    )
    assert done.returncode == 0, done.stderr
    outcome = json.loads(done.stdout)
    assert outcome["wrong"] == {}, done.stderr
    assert outcome["kills"] > 10
