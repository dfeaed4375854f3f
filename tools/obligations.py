"""
Which rules are proved, and by which tests.

A test that proves a rule cites it: `@pytest.mark.meets("R31")`. The page made here turns
that round, and a test fails when a rule that is said to be upheld has nobody who proves it.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

UPHELD = (
    *("R1", "R8", "R10", "R12", "R22", "R23", "R23d", "R23f", "R23g", "R24", "R25", "R30", "R31"),
    *("R34", "R36", "R37", "R41", "R43", "S1", "S2", "S3", "S4", "S5", "S6", "S7", "S8", "S10"),
    *("S11", "S12", "S13", "S14", "S15", "S16", "S17"),
)
"""What this stage must prove; later stages add theirs."""

_ABOUT = """\
# Rules and their proofs

<!-- Made from the tests by `make reference`; cite a rule there with `@pytest.mark.meets`. -->

The rules themselves are in [rules](../rules.md). A citing test is meant to fail when what it
cites is removed; `make mutate` tries that for the ones that matter most.

| rule | proved by |
|---|---|\
"""


def proofs() -> dict[str, list[str]]:
    """Return for each cited rule the tests that cite it, as `file: name`."""
    found: dict[str, list[str]] = defaultdict(list)
    places = [*(ROOT / "tests").rglob("*.py"), *(ROOT / "src/headrace/testing").glob("*.py")]
    for path in sorted(places):
        tree = ast.parse(path.read_text())
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                for rule in _cited(node):
                    found[rule].append(f"{path.relative_to(ROOT)}: {node.name}")
    return found


def page() -> Iterator[str]:
    """Yield the lines of the page."""
    yield _ABOUT
    for rule, tests in sorted(proofs().items(), key=lambda item: _order(item[0])):
        shown = "<br>".join(f"`{test}`" for test in tests)
        yield f"| {rule} | {shown} |"


def _cited(node: ast.FunctionDef | ast.ClassDef) -> Iterator[str]:
    for mark in node.decorator_list:
        call = mark.func if isinstance(mark, ast.Call) else None
        if isinstance(mark, ast.Call) and isinstance(call, ast.Attribute) and call.attr == "meets":
            yield from (str(arg.value) for arg in mark.args if isinstance(arg, ast.Constant))


def _order(rule: str) -> tuple[str, int, str]:
    digits = "".join(letter for letter in rule if letter.isdigit())
    return rule[:1], int(digits or 0), rule
