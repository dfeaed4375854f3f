"""The same tests on several versions of something, and one table at the end."""

from __future__ import annotations

import json
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TIER = "ci"
"""Decides how many examples are drawn; the marks decide which tests are run."""


@dataclass(frozen=True, slots=True)
class Run:
    """What came of the tests on one version."""

    version: int | str
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    seconds: float = 0.0
    problem: str = ""
    """Why there is no result; empty where there is one."""

    @property
    def good(self) -> bool:
        """Whether tests ran, and none failed."""
        return not self.problem and self.failed == 0 and self.passed > 0


def tested(
    version: int | str,
    python: str,
    marked: str,
    arguments: Sequence[str],
    environ: Mapping[str, str],
) -> Run:
    """Run the tests with these marks with this Python, several at a time, and count."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "counts.json"
        words = ["--marked", marked, "--report", str(report), *arguments]
        done = subprocess.run(
            [python, "-m", "tools.run_tests", TIER, *words],
            cwd=ROOT,
            env=dict(environ),
            check=False,
        )
        seconds = time.monotonic() - began
        if not report.exists():
            return Run(version, seconds=seconds, problem=f"the tests ended with {done.returncode}")
        run = counted(version, report, seconds)
    if done.returncode and not run.failed:
        return replace(run, problem=f"the tests ended with {done.returncode}")
    return run


def counted(version: int | str, report: Path, seconds: float) -> Run:
    """Read the counts of a run; what was wrong with the run as such counts as failed."""
    counts = json.loads(report.read_text())
    return Run(version, counts["passed"], counts["failed"], counts["skipped"], seconds)


def closing_table(of: str, runs: Sequence[Run]) -> str:
    """Return the table with a line for every run, headed by what there are versions of."""
    lines = [f"{of:<12}  passed  failed  skipped  seconds"]
    for one in runs:
        verdict = one.problem or ("" if one.good else "FAILED")
        lines.append(
            f"{one.version:<12}{one.passed:>8}{one.failed:>8}{one.skipped:>9}{one.seconds:>9.1f}"
            f"  {verdict}".rstrip()
        )
    return "\n".join(lines)
