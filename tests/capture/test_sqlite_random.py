"""Random schemas and statements: what the log says makes the table, and nothing else changes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.capture.current_writer import run as run_currently
from tests.capture.sqlite_fuzz import FINE, Fuzz, Run, failure


@pytest.mark.slow
@pytest.mark.meets("R41", "R42")
@pytest.mark.parametrize("first", range(0, 120, 20))
def test_random_statements_make_the_table(first: int) -> None:
    for seed in range(first, first + 20):
        said = failure(seed)
        assert said in FINE, said


@pytest.mark.ci
@pytest.mark.slow
@pytest.mark.meets("R41", "R42")
@pytest.mark.parametrize("first", range(120, 560, 55))
def test_more_random_statements_make_the_table(first: int) -> None:
    for seed in range(first, first + 55):
        said = failure(seed)
        assert said in FINE, said


@pytest.mark.process
@pytest.mark.meets("R42")
def test_random_statements_of_a_current_library_make_the_table(tmp_path: Path) -> None:
    seeds = range(25)
    made = [Run(Fuzz(seed), tmp_path / f"{seed}.db", tmp_path / f"{seed}.plain") for seed in seeds]
    runs = [run for run in made if run.set_up()]
    outcomes = run_currently([job for run in runs for job in run.jobs()])
    for run, captured, plain in zip(runs, outcomes[::2], outcomes[1::2], strict=True):
        assert captured == plain
        run.finish()
