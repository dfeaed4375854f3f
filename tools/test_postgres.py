"""
The tests of PostgreSQL, once on every major, and one table at the end.

Each run sets HEADRACE_PG_VERSION, for which the tests fetch a server and keep it in the user's
cache. A major that cannot be had counts as failed: a table with a gap proves nothing.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from headrace.embedded.fetch import RELEASES, fetched
from headrace.errors import HeadraceError

ROOT = Path(__file__).resolve().parent.parent
TESTS = "tests/postgres"


@dataclass(frozen=True, slots=True)
class Run:
    """What came of the tests on one major."""

    version: int
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


def main(arguments: Sequence[str] | None = None) -> int:
    """Run them, print the table, and return 0 where every major is good."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").strip().splitlines()[0])
    parser.add_argument("--versions", default=" ".join(map(str, RELEASES)), help='such as "14 18"')
    parser.add_argument("pytest", nargs="*", help=f"passed on to pytest; {TESTS} if empty")
    asked = parser.parse_args(arguments)
    try:
        versions = [int(version) for version in asked.versions.replace(",", " ").split()]
    except ValueError:
        parser.error('--versions takes majors, such as "14 18"')
    runs = [run(version, asked.pytest or [TESTS]) for version in versions]
    print("\n" + table(runs))
    return 0 if runs and all(one.good for one in runs) else 1


def run(version: int, arguments: Sequence[str]) -> Run:
    """Run the tests on `version`."""
    print(f"\nPostgreSQL {version}", flush=True)
    try:
        fetched(version)
    except HeadraceError as error:
        print(f"{error.message}\n{error.remedy}", flush=True)
        return Run(version, problem="no server")
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", f"--junit-xml={report}", *arguments],
            cwd=ROOT,
            env={**os.environ, "HEADRACE_PG_VERSION": str(version)},
            check=False,
        )
        seconds = time.monotonic() - began
        if not report.exists():
            return Run(version, seconds=seconds, problem=f"pytest ended with {done.returncode}")
        return counted(version, report, seconds)


def counted(version: int, report: Path, seconds: float) -> Run:
    """Read pytest's report."""
    suites = ElementTree.parse(report).getroot().iter("testsuite")
    sums = dict.fromkeys(("tests", "failures", "errors", "skipped"), 0)
    for suite in suites:
        for name in sums:
            sums[name] += int(suite.get(name, "0"))
    failed = sums["failures"] + sums["errors"]
    passed = max(0, sums["tests"] - failed - sums["skipped"])
    return Run(version, passed, failed, sums["skipped"], seconds)


def table(runs: Sequence[Run]) -> str:
    """Return the closing table."""
    lines = ["PostgreSQL    passed  failed  skipped  seconds"]
    for one in runs:
        verdict = one.problem or ("" if one.good else "FAILED")
        lines.append(
            f"{one.version:<12}{one.passed:>8}{one.failed:>8}{one.skipped:>9}{one.seconds:>9.1f}"
            f"  {verdict}".rstrip()
        )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
