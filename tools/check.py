"""What CI runs: the linter, the type checker and the tests of the tier `ci`, side by side."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

LINE = (
    ("ruff check", ("ruff", "check", ".")),
    ("ruff format", ("ruff", "format", "--check", ".")),
    ("mypy", ("mypy",)),
)
TESTS = ("tools.run_tests", "ci")


def main() -> int:
    """Run them all to their end; return 0 if all are good."""
    beside = [(name, _start(words)) for name, words in LINE]
    code = subprocess.run([sys.executable, "-m", *TESTS], cwd=ROOT, check=False).returncode
    for name, process in beside:
        said, _ = process.communicate()
        if process.returncode:
            print(f"{name} found something:\n{said}")
        code = code or process.returncode
    return code


def _start(words: Sequence[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", *words],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


if __name__ == "__main__":
    sys.exit(main())
