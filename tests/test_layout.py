"""
How the source is laid out: a module is one concept, and found where its name says.

The rules and their reasons are in CONTRIBUTING.md. A list of exceptions gives the reason of each,
and an exception that is not needed any more fails too.
"""

from __future__ import annotations

import ast
import re
from collections import Counter, defaultdict
from functools import cache
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "headrace"

MOST_MODULES = 272
LONG, TOO_LONG = 600, 1_000
SMALL = 120
MOST_IN_A_PACKAGE = 18
MOST_IMPORTS = 20

LONG_BECAUSE = "Long because"
"""Begins the sentence of a docstring that says why a module is longer than others."""

TWO_CONCEPTS = {
    "errors": "the whole error tree, drawn in one place",
}
"""Modules above a thousand lines."""

_VERB = "a verb of the command line, in a module of its own like every verb"
_LIGHT = "loaded by commands that must start without Arrow and Spark; its neighbours load them"

SMALL_WITH_ONE_IMPORTER = {
    "capture.postgres.copy.plan": "a copy in parts or one that waits, next to those who read it",
    "capture.sqlite.arrow_rows": "Arrow, which the library, with the same neighbours, does without",
    "capture.sqlite.definition": _LIGHT,
    "corrections.overlay": "what a pipeline reads, next to the journal that it reads from",
    "cli.cluster": _VERB,
    "cli.config": _VERB,
    "cli.demo.command": _VERB,
    "cli.health": _VERB,
    "cli.teardown": _VERB,
    "cli.token": _VERB,
    "config.load": "what a configuration is put together from, in its order",
    "pipeline.baseline_copy": "imported by Spark's tasks, which need nothing else of the runner",
    "pipeline.plan.frames": "user functions of a DataFrame, next to those of rows",
    "runtime.schema_changes": "one of the steps of a pipeline, each in its module",
    "spark_session.executor_probe": "pickled by value for executors without Headrace",
}
"""Modules that could stand in the one that imports them, and why they do not."""

IMPORTS_MANY = {
    "__init__": "the public names, for type checkers; at run time each is loaded when it is used",
    "capture.postgres.source": "a source puts its parts together",
    "cli.main": "the root command has every verb",
    "engine.engine": "the engine puts everything together",
    "engine.replay": "log, plan, jobs, dead letters, rows that expire and target meet here, too",
    "runtime.delivery": "log, jobs, dead letters, corrections, intents and target meet here",
}
"""Modules that import more than twenty of ours, and why."""

ONE_A_COMMAND = {"cli"}
"""Packages with as many modules as there are commands."""

PARTICIPLE = re.compile(r"(ing|ed|told|taken|known|shown|given|lent|kept|held)$")
GERUND = re.compile(r"[a-z]ing$")
NAMED_BY_A_GERUND = {
    "Anything": "a pronoun",
    "EffectiveSetting": "a setting is a noun of the trade",
    "Finding": "a finding is what an examination finds",
    "SparkSetting": "a setting is a noun of the trade",
    **dict.fromkeys(
        (
            *("Loading", "MemoryLoading", "ParquetLoading", "RowLoading", "ScriptedLoading"),
            "TableLoading",
        ),
        "the documented protocol of a target's baseline, and what implements it",
    ),
}
"""Classes that end as a gerund does, and why."""


@cache
def modules() -> dict[str, Path]:
    """Return the modules by name, `capture.postgres.source`; packages have no name of their own."""
    return {
        ".".join(path.relative_to(PACKAGE).with_suffix("").parts): path
        for path in sorted(PACKAGE.rglob("*.py"))
        if path.name != "__init__.py" and not path.name.endswith("_pb2.py")  # generated
    }


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def lines(path: Path) -> int:
    return len(path.read_text().splitlines())


@cache
def code_lines(path: Path) -> int:
    """Return how many lines are neither blank nor comment nor docstring."""
    text = path.read_text().splitlines()
    without = {n for n, line in enumerate(text, 1) if not line.strip() or line.strip()[0] == "#"}
    for node in ast.walk(tree(path)):
        match node:
            case ast.Expr(value=ast.Constant(value=str())):
                without.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(text) - len(without)


@cache
def imports() -> dict[str, set[str]]:
    """Return for each module which of ours it imports, wherever the import stands."""
    known = modules()
    found: dict[str, set[str]] = {}
    for path in PACKAGE.rglob("*.py"):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        here = ".".join(parts)
        found[here] = set()
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("headrace"):
                above = (node.module or "").removeprefix("headrace").lstrip(".")
                for alias in node.names:
                    full = f"{above}.{alias.name}".lstrip(".")
                    found[here] |= {
                        each for each in (full, above) if each in known and each != here
                    }
    return found


def test_there_are_not_more_modules_than_a_reader_can_hold() -> None:
    assert len(modules()) <= MOST_MODULES


def test_a_long_module_says_why() -> None:
    silent = [
        name
        for name, path in modules().items()
        if lines(path) > LONG and LONG_BECAUSE not in (ast.get_docstring(tree(path)) or "")
    ]
    assert silent == [], f"write a sentence that begins with {LONG_BECAUSE!r} into its docstring"


def test_only_a_long_module_says_why() -> None:
    short = [
        name
        for name, path in modules().items()
        if lines(path) <= LONG and LONG_BECAUSE in (ast.get_docstring(tree(path)) or "")
    ]
    assert short == []


def test_a_module_of_a_thousand_lines_is_two_concepts() -> None:
    longer = {name for name, path in modules().items() if lines(path) > TOO_LONG}
    assert longer == set(TWO_CONCEPTS)


def test_a_small_module_with_one_importer_stands_in_that_importer() -> None:
    importers: dict[str, set[str]] = defaultdict(set)
    for name, imported in imports().items():
        for each in imported:
            importers[each].add(name)
    small = {
        name
        for name, path in modules().items()
        if code_lines(path) < SMALL and len(importers[name]) == 1
    }
    assert small == set(SMALL_WITH_ONE_IMPORTER)
    assert len(SMALL_WITH_ONE_IMPORTER) <= 15


def test_a_package_can_be_looked_over() -> None:
    sizes = Counter(
        path.parent
        for path in PACKAGE.rglob("*")
        if (path.suffix == ".py" and path.name != "__init__.py")
        or (path.is_dir() and (path / "__init__.py").exists())
    )
    names = {folder.relative_to(PACKAGE).as_posix(): size for folder, size in sizes.items()}
    names.pop(".", None)  # the packages themselves
    crowded = {name for name, size in names.items() if size > MOST_IN_A_PACKAGE}
    assert crowded - ONE_A_COMMAND == set()


def test_a_module_imports_few_of_ours() -> None:
    many = {name for name, imported in imports().items() if len(imported) > MOST_IMPORTS}
    assert many == set(IMPORTS_MANY)


def test_no_two_public_classes_have_one_name() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for name, path in modules().items():
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(name)
    assert {each: where for each, where in places.items() if len(where) > 1} == {}


def test_a_module_is_named_by_a_noun() -> None:
    last = {name: name.rpartition(".")[2] for name in modules()}
    assert [n for n, word in last.items() if PARTICIPLE.search(word)] == []


def test_a_class_is_named_by_a_noun() -> None:
    names = {
        node.name
        for name, path in modules().items()
        if name != "errors"  # an error's name says what is the matter
        for node in ast.walk(tree(path))
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    }
    assert {name for name in names if GERUND.search(name)} == set(NAMED_BY_A_GERUND)


def test_a_module_begins_with_one_docstring() -> None:
    assert [name for name, path in modules().items() if not ast.get_docstring(tree(path))] == []
