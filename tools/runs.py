"""The same tests on several versions of something, and one table at the end."""

from __future__ import annotations

import subprocess
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
_RAN_THROUGH = (0, 1)
"""How pytest ends where it ran all it was asked for: nothing failed, something did."""


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
    version: int | str, python: str, arguments: Sequence[str], environ: Mapping[str, str]
) -> Run:
    """Run pytest with this Python from the project's folder, and count."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        done = subprocess.run(
            [python, "-m", "pytest", "-q", f"--junit-xml={report}", *arguments],
            cwd=ROOT,
            env=dict(environ),
            check=False,
        )
        seconds = time.monotonic() - began
        run = (
            counted(version, report, seconds) if report.exists() else Run(version, seconds=seconds)
        )
    if done.returncode == 0 or (done.returncode in _RAN_THROUGH and run.failed):
        return run
    # Interrupted, or nothing was found to run: what did run proves little.
    return replace(run, problem=f"pytest ended with {done.returncode}")


def counted(version: int | str, report: Path, seconds: float) -> Run:
    """Read pytest's report."""
    suites = ElementTree.parse(report).getroot().iter("testsuite")
    sums = dict.fromkeys(("tests", "failures", "errors", "skipped"), 0)
    for suite in suites:
        for name in sums:
            sums[name] += int(suite.get(name, "0"))
    failed = sums["failures"] + sums["errors"]
    passed = max(0, sums["tests"] - failed - sums["skipped"])
    return Run(version, passed, failed, sums["skipped"], seconds)


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
