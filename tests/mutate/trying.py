"""A mutation in a copy of our code, and the test that must turn red there."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path

from tests.mutate.mutation import SIMULATION, Mutation
from tests.support.patience import patience

ROOT = Path(__file__).parent.parent.parent
SOURCE = ROOT / "src"

IN_TEST = "not ci and not nightly and not cluster and not s3"
"""What `make test` runs, as markers."""

IN_CI = "not nightly and not s3"
"""What `.ci/run` runs."""

MOST_SECONDS = 300
"""A mutation that makes its test wait for ever is not caught: it must turn red."""

_RED = re.compile(r"^(FAILED |ERROR )|^seed \d+ fails: ")


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of a mutation."""

    mutation: Mutation
    caught: bool
    seconds: float
    said: str
    kept: bool = False
    """Whether it is of an earlier run."""


class Trying:
    """
    Tries mutations in a folder of its own. *Threads*: any; those with a JVM one at a time.

    Bytecode is kept in that folder, which is new, by the path of its source: each copy has a path
    of its own, so no mutated module can be mistaken for another, and all share what is not ours.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._jvm = threading.Semaphore(1)

    def try_(self, mutation: Mutation) -> Verdict:
        """Apply a mutation to a copy, and run its test."""
        with self._jvm if mutation.spark else nullcontext():
            began = time.monotonic()
            with tempfile.TemporaryDirectory(dir=self._folder) as folder:
                copy = Path(folder) / "src"
                shutil.copytree(SOURCE, copy, ignore=shutil.ignore_patterns("__pycache__"))
                for module, text in mutation.applied(copy / "headrace").items():
                    module.write_text(text)
                said = self._run(copy, _command(mutation, copy), tier=_tier(mutation))
            return Verdict(mutation, said.startswith("red"), time.monotonic() - began, said)

    def try_nothing(self, mutations: Sequence[Mutation]) -> str | None:
        """Run the tests of all with our code as it is; return what is wrong, or None."""
        seeds = max((each.seeds for each in mutations if each.test == SIMULATION), default=0)
        commands = []
        for tier, marks in (("test", IN_TEST), ("ci", IN_CI)):
            tests = {each.test for each in mutations if _tier(each) == tier} - {SIMULATION}
            if tests:
                commands.append((tier, _pytest(SOURCE, marks, sorted(tests))))
        if seeds:
            commands.append(("test", _simulation(seeds)))
        for tier, command in commands:
            said = self._run(SOURCE, command, tier=tier, most_seconds=4 * MOST_SECONDS)
            if said != "good":
                return said
        return None

    def _run(
        self, source: Path, command: Sequence[str], *, tier: str, most_seconds: float = MOST_SECONDS
    ) -> str:
        child = subprocess.Popen(
            [sys.executable, "-m", *command],
            cwd=ROOT,
            env=self._environment(source, tier),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            text, _ = child.communicate(timeout=patience(most_seconds))
        except subprocess.TimeoutExpired:
            return f"no end within {patience(most_seconds):.0f} s"
        finally:
            # Whatever it has started goes with it: a test that was cut short leaves recorders.
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.communicate()
        lines = [line for line in text.splitlines() if _RED.match(line)]
        # Red is a test that failed; anything else that ends badly proves nothing.
        match child.returncode:
            case 0:
                return "good"
            case 1 if lines:
                return f"red: {lines[0]}"
            case code:
                return f"broke with {code}: {text[-300:]}"

    def _environment(self, source: Path, tier: str) -> Mapping[str, str]:
        known = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
        return {
            **known,
            "PYTHONPATH": str(source),
            "PYTHONPYCACHEPREFIX": str(self._folder / "bytecode"),
            # What properties find in mutated code is nobody else's business.
            "HYPOTHESIS_STORAGE_DIRECTORY": str(self._folder / "hypothesis"),
            "TESTS_TIER": tier,
        }


def _tier(mutation: Mutation) -> str:
    return "ci" if mutation.reason else "test"


def _command(mutation: Mutation, source: Path) -> list[str]:
    if mutation.test == SIMULATION:
        return _simulation(mutation.seeds)
    return _pytest(source, IN_CI if mutation.reason else IN_TEST, [mutation.test])


def _simulation(seeds: int) -> list[str]:
    return ["tests.simulation", "--seeds", str(seeds), "--failures", "1"]


def _pytest(source: Path, marks: str, tests: Sequence[str]) -> list[str]:
    return [
        *("pytest", "-x", "-q", "-p", "no:cacheprovider", "-p", "no:randomly", "-m", marks),
        # Without the path of pyproject.toml, which would bring the whole code back, and without
        # its limit, by which a test that hangs would pass for one that turned red.
        *("-o", f"pythonpath={source} .", "-o", "timeout=0", *tests),
    ]
