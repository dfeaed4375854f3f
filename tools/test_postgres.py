"""
The tests of PostgreSQL, once on every major, and one table at the end.

Each run sets HEADRACE_PG_VERSION, for which the tests fetch a server and keep it in the user's
cache. A major that cannot be had counts as failed: a table with a gap proves nothing.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from headrace.embedded.binaries import RELEASES, fetched
from headrace.errors import HeadraceError
from tools.runs import Run, closing_table, tested

TESTS = "tests/postgres"
MARKED = "not spark"
"""Those left to the night too; Spark sees nothing of a server's version."""


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
    environ = {**os.environ, "HEADRACE_PG_VERSION": str(version)}
    return tested(version, sys.executable, MARKED, arguments, environ)


def table(runs: Sequence[Run]) -> str:
    """Return the closing table."""
    return closing_table("PostgreSQL", runs)


if __name__ == "__main__":
    sys.exit(main())
