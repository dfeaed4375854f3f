"""Apply each mutation to a copy of the source and run the test that must turn red."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.mutate.mutation import SIMULATION, Mutation
from tests.mutate.mutations import MUTATIONS

ROOT = Path(__file__).parent.parent.parent
SOURCE = ROOT / "src"

JOBS = 2
"""Mutations tried at a time: each is a process or two of its own."""

MOST_SECONDS = 120
"""A mutation that makes its test wait for ever is not caught: it must turn red."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of a mutation."""

    mutation: Mutation
    caught: bool
    seconds: float
    said: str


def main(arguments: Sequence[str]) -> int:
    """Run those whose name holds the words given, or all; 1 if one survives."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutate", description=__doc__)
    parser.add_argument("words", nargs="*", help="only mutations with these words in their name")
    words = parser.parse_args(arguments).words
    chosen = [each for each in MUTATIONS if all(word in each.name for word in words)]
    if not _test(SOURCE, Mutation("nothing", "", "", "", seeds=50)).startswith("good"):
        print("The simulation fails without a mutation: mend that first.")
        return 1
    verdicts = []
    with ThreadPoolExecutor(JOBS) as pool:
        for verdict in pool.map(tried, chosen):
            verdicts.append(verdict)
            print(_line(verdict), flush=True)
    survivors = [each for each in verdicts if not each.caught]
    print(f"{len(verdicts)} mutations, {len(survivors)} survived")
    return 1 if survivors else 0


def tried(mutation: Mutation) -> Verdict:
    """Apply a mutation in a folder of its own, and run its test."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="headrace-mutate-") as folder:
        copy = Path(folder) / "src"
        shutil.copytree(SOURCE, copy, ignore=shutil.ignore_patterns("__pycache__"))
        for module, text in mutation.applied(copy / "headrace").items():
            module.write_text(text)
        said = _test(copy, mutation)
    return Verdict(mutation, said.startswith("red"), time.monotonic() - began, said)


def _test(source: Path, mutation: Mutation) -> str:
    if mutation.test == SIMULATION:
        arguments = ["tests.simulation", "--seeds", str(mutation.seeds), "--failures", "1"]
    else:
        # Without the path of pyproject.toml, which would bring the whole code back.
        arguments = ["pytest", "-x", "-q", "-p", "no:cacheprovider", "-p", "no:randomly"]
        arguments += ["-o", f"pythonpath={source} .", mutation.test]
    try:
        done = subprocess.run(
            [sys.executable, "-m", *arguments],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(source), "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            text=True,
            check=False,
            timeout=MOST_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return f"no end within {MOST_SECONDS} s"
    lines = [line for line in done.stdout.splitlines() if " fails: " in line or "FAILED" in line]
    # Red is a test that failed; anything else that ends badly proves nothing.
    match done.returncode:
        case 0:
            return "good"
        case 1 if lines:
            return f"red: {lines[0]}"
        case code:
            return f"broke with {code}: {(done.stdout + done.stderr)[-300:]}"


def _line(verdict: Verdict) -> str:
    mutation = verdict.mutation
    caught = "caught  " if verdict.caught else "SURVIVED"
    return (
        f"{caught} {verdict.seconds:6.1f} s  {mutation.name:58} {mutation.test}\n"
        f"         {verdict.said[:160]}"
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
