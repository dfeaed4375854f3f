"""
What our own files say, for the tests that judge them: each is read and parsed once.

A tree is not kept, only what rules are about: the trees of all modules would be half a million
objects, which every later collection of garbage would walk through.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
SRC = ROOT / "src" / "headrace"


@dataclass(frozen=True, slots=True)
class Import:
    """A name that is imported, wherever that stands; `name` is None for whole modules."""

    module: str
    name: str | None
    for_types: bool
    """It stands under `if TYPE_CHECKING`, and is never run."""


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a name, or of an attribute of whatever it is."""

    name: str
    is_attribute: bool
    line: int
    begins: str | None
    """How its first argument begins, where that is written out."""
    ends: str | None
    """How its first argument ends, where that is written out."""


@dataclass(frozen=True, slots=True)
class Module:
    """What is known of a module."""

    imports: tuple[Import, ...]
    attributes: frozenset[str]
    calls: tuple[Call, ...]
    classes: tuple[tuple[str, frozenset[str]], ...]
    """Each class, and the names it is derived from."""


def all_of(offenders: Mapping[str, object] | Iterable[str]) -> str:
    """Return a line for each offender: pytest itself would show the first of them only."""
    if isinstance(offenders, Mapping):
        offenders = (f"{who}: {what}" for who, what in offenders.items())
    return "\n".join(["", *sorted(offenders)])


@cache
def text(path: Path) -> str:
    """Return what a file holds."""
    return path.read_text()


@cache
def name(path: Path) -> str:
    """Return a file's path in the project."""
    return path.relative_to(ROOT).as_posix()


@cache
def modules(folder: Path) -> tuple[Path, ...]:
    """Return the modules in a folder and beneath it, without those generated from proto/."""
    found = (path.relative_to(folder) for path in folder.rglob("*.py"))
    return tuple(sorted(folder / path for path in found if "v1" not in path.parts))


@cache
def parsed(path: Path) -> Module:
    """Return what a module imports, uses, calls and declares."""
    nodes = [*ast.walk(ast.parse(text(path)))]
    for_types = {
        id(inner)
        for node in nodes
        if isinstance(node, ast.If) and _is_for_types(node.test)
        for statement in node.body
        for inner in ast.walk(statement)
    }
    imports: list[Import] = []
    attributes: set[str] = set()
    calls: list[Call] = []
    classes: list[tuple[str, frozenset[str]]] = []
    for node in nodes:
        match node:
            case ast.ImportFrom(module=str(module)):
                imports += [Import(module, each.name, id(node) in for_types) for each in node.names]
            case ast.Import():
                imports += [Import(each.name, None, id(node) in for_types) for each in node.names]
            case ast.Attribute():
                attributes.add(node.attr)
            case ast.Call(func=ast.Name(id=called)):
                calls.append(Call(called, False, node.lineno, *_ends(node)))
            case ast.Call(func=ast.Attribute(attr=called)):
                calls.append(Call(called, True, node.lineno, None, None))
            case ast.ClassDef():
                bases = (base.id for base in node.bases if isinstance(base, ast.Name))
                classes.append((node.name, frozenset(bases)))
    return Module(tuple(imports), frozenset(attributes), tuple(calls), tuple(classes))


def _is_for_types(test: ast.expr) -> bool:
    return isinstance(test, ast.Name) and test.id == "TYPE_CHECKING"


def _ends(call: ast.Call) -> tuple[str | None, str | None]:
    """Return the first and the last text of what a call is given first."""
    if not call.args:
        return None, None
    given = call.args[0]
    parts = given.values if isinstance(given, ast.JoinedStr) else [given]
    texts = [part.value if isinstance(part, ast.Constant) else None for part in parts] or [None]
    first, last = texts[0], texts[-1]
    return first if isinstance(first, str) else None, last if isinstance(last, str) else None
