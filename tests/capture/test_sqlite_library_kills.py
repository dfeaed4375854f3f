"""Readers, writers and teardowns that are killed at any statement: nothing is lost."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.patience import patience

ROOT = Path(__file__).parents[2]

SEEDS = [
    1,
    *(pytest.param(seed, marks=pytest.mark.ci) for seed in (2, 3)),
    *(pytest.param(seed, marks=pytest.mark.nightly) for seed in range(4, 64)),
]


STEP_SEEDS = [
    pytest.param(1, marks=pytest.mark.ci),
    *(pytest.param(seed, marks=pytest.mark.nightly) for seed in range(2, 12)),
]


@pytest.mark.crash
@pytest.mark.process
@pytest.mark.meets("R39", "R42")
@pytest.mark.parametrize("seed", STEP_SEEDS)
def test_a_step_that_is_killed_is_made_or_not_and_the_application_writes_on(
    tmp_path: Path, seed: int
) -> None:
    steps = played("sqlite_step_kills", tmp_path, seed)
    assert {step: wrong for step, (_, wrong) in steps.items()} == dict.fromkeys(steps, "")
    assert all(kills > 1 for kills, _ in steps.values())


@pytest.mark.crash
@pytest.mark.process
@pytest.mark.meets("P2", "R40", "R42", "R43")
@pytest.mark.parametrize("seed", SEEDS)
def test_two_readers_have_every_change_whoever_was_killed(tmp_path: Path, seed: int) -> None:
    outcome = played("sqlite_kills", tmp_path, seed)
    assert outcome["wrong"] == {}
    assert outcome["kills"] > 10


def played(module: str, folder: Path, seed: int) -> dict[str, Any]:
    """Run a module in a process of its own; return what it prints."""
    done = subprocess.run(
        [sys.executable, "-m", f"tests.capture.{module}", str(folder), str(seed)],
        capture_output=True,
        text=True,
        check=False,
        timeout=patience(300),
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"},
    )
    assert done.returncode == 0, done.stderr
    outcome: dict[str, Any] = json.loads(done.stdout)
    return outcome
