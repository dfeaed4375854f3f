"""How long the command line takes to say what it can do: people wait for that."""

from __future__ import annotations

import subprocess
import sys
import time

from bench.harness import Result, Rounds, at_most


def run(*, quick: bool) -> list[Result]:
    """Start it several times, in turns with a Python that does nothing."""
    rounds = Rounds()
    for _ in range(3 if quick else 11):
        rounds.floor.append(_milliseconds("-c", "pass"))
        rounds.ours.append(_milliseconds("-m", "headrace", "--help"))
    return [rounds.result("cli.help_ms", "ms", at_most(300), "python -c pass")]


def _milliseconds(*arguments: str) -> float:
    began = time.perf_counter()
    subprocess.run([sys.executable, *arguments], check=True, capture_output=True)
    return 1000 * (time.perf_counter() - began)
