"""
Which rules are proved, and by which tests.

A test that proves a rule cites it: `@pytest.mark.meets("R31")`. The page made here turns
that round, and a test fails when a rule that is said to be upheld has nobody who proves it.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
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

The rules themselves are in [rules](rules.md). A test that cites a rule must fail when the behaviour
is removed; `make mutate` tries that for the most important ones.

| rule | proved by |
|---|---|\
"""

AFTERWARDS = frozenset({"nightly", "s3"})
"""Markers of tests that are not run for every commit, but in the night."""


@dataclass(frozen=True, slots=True)
class Proof:
    """A test that cites a rule."""

    rule: str
    test: str
    """As `file: name`."""
    marks: frozenset[str]
    """The names of its markers: its own, those of its class and of its module."""


@cache
def proofs() -> tuple[Proof, ...]:
    """Return the tests that cite a rule, file by file."""
    places = [*(ROOT / "tests").rglob("*.py"), *(ROOT / "src/headrace/testing").glob("*.py")]
    return tuple(
        Proof(rule, f"{path.relative_to(ROOT)}: {name}", marks)
        for path in sorted(places)
        for rule, name, marks in citing(path.read_text())
    )


def citing(text: str) -> Iterator[tuple[str, str, frozenset[str]]]:
    """Yield each rule that the text of a module cites, who cites it, and its markers."""
    if "meets(" in text:
        yield from _Module(ast.parse(text)).citing()


def page() -> Iterator[str]:
    """Yield the lines of the page."""
    yield _ABOUT
    found: dict[str, list[str]] = defaultdict(list)
    for proof in proofs():
        found[proof.rule].append(proof.test)
    for rule, tests in sorted(found.items(), key=lambda item: _order(item[0])):
        shown = "<br>".join(f"`{test}`" for test in tests)
        yield f"| {rule} | {shown} |"


class _Module:
    def __init__(self, tree: ast.Module) -> None:
        self._body = tree.body
        # A marker that several tests share may have a name.
        self._named = {
            target.id: node.value
            for node in tree.body
            if isinstance(node, ast.Assign)
            for target in node.targets
            if isinstance(target, ast.Name)
        }

    def citing(self) -> Iterator[tuple[str, str, frozenset[str]]]:
        return self._citing(self._body, self._assigned(self._body))

    def _citing(
        self, body: Sequence[ast.stmt], around: frozenset[str]
    ) -> Iterator[tuple[str, str, frozenset[str]]]:
        for node in body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                own = [*self._marks(node.decorator_list)]
                marks = around | {mark for mark, _ in own} | self._assigned(node.body)
                for mark, arguments in own:
                    if mark == "meets":
                        yield from ((rule, node.name, marks) for rule in arguments)
                if isinstance(node, ast.ClassDef):
                    yield from self._citing(node.body, marks)

    def _assigned(self, body: Sequence[ast.stmt]) -> frozenset[str]:
        """Return the names of the markers in `pytestmark = …`."""
        found: list[ast.expr] = []
        for node in body:
            match node:
                case ast.Assign(targets=[ast.Name(id="pytestmark")], value=value):
                    found += value.elts if isinstance(value, ast.List | ast.Tuple) else [value]
        return frozenset(mark for mark, _ in self._marks(found))

    def _marks(self, expressions: Sequence[ast.expr]) -> Iterator[tuple[str, list[str]]]:
        """Yield the markers among some expressions, and what each is given."""
        for each in expressions:
            meant = self._named.get(each.id) if isinstance(each, ast.Name) else each
            match meant:
                case ast.Attribute(value=ast.Attribute(attr="mark"), attr=mark):
                    yield mark, []
                case ast.Call(func=ast.Attribute(value=ast.Attribute(attr="mark"), attr=mark)):
                    given = (a.value for a in meant.args if isinstance(a, ast.Constant))
                    yield mark, [str(value) for value in given]


def _order(rule: str) -> tuple[str, int, str]:
    digits = "".join(letter for letter in rule if letter.isdigit())
    return rule[:1], int(digits or 0), rule
