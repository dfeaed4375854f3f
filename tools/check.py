"""What CI runs: the linter, the type checker and the tests of the tier `ci`, side by side."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.support.patience import slowness

ROOT = Path(__file__).resolve().parent.parent

LINE = (
    ("ruff check", ("ruff", "check", ".")),
    ("ruff format", ("ruff", "format", "--check", ".")),
    ("mypy", ("mypy",)),
)
TESTS = ("tools.run_tests", "ci")


def main() -> int:
    """Run them all to their end; return 0 if all are good."""
    slowness()  # measured before anything runs beside it; the runner takes it from there
    beside = [(name, _start(words)) for name, words in LINE]
    code = subprocess.run([sys.executable, "-m", *TESTS], cwd=ROOT, check=False).returncode
    print("\n".join(lines()))
    for name, process in beside:
        said, _ = process.communicate()
        if process.returncode:
            print(f"{name} found something:\n{said}")
        code = code or process.returncode
    return code


def lines() -> list[str]:
    """Return how much source and how many tests there are, and what came since the last release."""
    since = _git("describe", "--tags", "--abbrev=0", "--match", "v*")
    return [_lines_of(folder, since) for folder in ("src", "tests")]


def _lines_of(folder: str, since: str) -> str:
    total = code = docs = 0
    for path in (ROOT / folder).rglob("*.py"):
        text = path.read_text()
        inside = documented(text)
        total += text.count("\n")
        docs += len(inside)
        rows = enumerate(text.splitlines(), 1)
        code += sum(bool(row.strip()) and n not in inside for n, row in rows)
    blank = total - code - docs
    said = f"{folder}: {total:,} lines ({code:,} code, {docs:,} docstrings, {blank:,} blank)"
    if not since:
        return f"{said}; there is no release to compare with"
    changed = _git("diff", "--numstat", since, "--", folder).splitlines()
    added, removed = (sum(int(row.split()[i]) for row in changed if row[0] != "-") for i in (0, 1))
    return f"{said}; {added - removed:+,} since {since}"


def documented(text: str) -> set[int]:
    """Return the numbers of the lines that belong to a docstring."""
    return {
        number
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
        for number in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }


def _git(*words: str) -> str:
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip()


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
