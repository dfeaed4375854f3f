"""
Which commands and options the tests really ran.

Every command line that a test runs is seen where it starts: in this process, as a child, or
on a terminal. `tests/test_every_option.py` comes last in a whole run and asks what is missing.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Iterator, Sequence
from functools import wraps
from pathlib import Path
from typing import Any

import click
import pexpect
import pytest

JUDGE = "test_every_option.py"

CHILDREN = {
    "headrace": (),
    "tests.interfaces.at_work": (),
    "tests.interfaces.fake_engine": ("demo",),
}
"""Modules that are our command line when they are run, with the words they put before others."""

_seen: set[tuple[tuple[str, ...], str]] = set()
_left_out: list[pytest.Item] = []
_whole: list[bool] = []


def seen() -> frozenset[tuple[tuple[str, ...], str]]:
    """Return every (command, option) that was run; the option is empty for the command alone."""
    return frozenset(_seen)


def is_whole_run() -> bool:
    """Whether all tests of the project are part of this run, but for those on a cluster."""
    return any(_whole)


def used(root: click.Command, words: Sequence[str]) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield the commands and options that a command line uses."""
    command = root
    path: tuple[str, ...] = ("headrace",)
    yield path, ""
    for number, word in enumerate(words):
        if word == "--":
            return
        if isinstance(command, click.Group) and word in command.commands:
            command, path = command.commands[word], (*path, word)
            yield path, ""
        elif word.startswith("-") and not _is_value(command, words[:number]):
            name = word.partition("=")[0]
            for parameter in command.params:
                if name in (*parameter.opts, *parameter.secondary_opts):
                    yield path, parameter.opts[-1]


def _is_value(command: click.Command, before: Sequence[str]) -> bool:
    """Whether what follows is the value of the option before it, whatever it looks like."""
    last = before[-1] if before else ""
    return any(
        isinstance(each, click.Option) and not each.is_flag and last in each.opts
        for each in command.params
    )


def note(root: click.Command, words: Iterable[object]) -> None:
    """Keep in mind what a command line uses."""
    _seen.update(used(root, [str(word) for word in words]))


def note_child(command: object) -> None:
    """Keep in mind what a child uses, if it is our command line."""
    if isinstance(command, str) or not isinstance(command, Sequence):
        return
    ours = _ours([str(word) for word in command])
    if ours is not None:
        from headrace.interfaces.cli.main import headrace

        note(headrace, ours)


def _ours(words: Sequence[str]) -> Sequence[str] | None:
    """Return what follows our name in a command; None where it is not ours."""
    for number, word in enumerate(words[:-1]):
        if word == "-m" and words[number + 1] in CHILDREN:
            return [*CHILDREN[words[number + 1]], *words[number + 2 :]]
    return words[1:] if words and Path(words[0]).name == "headrace" else None


def pytest_configure(config: pytest.Config) -> None:
    """Look at every way in which a test can run a command line."""
    _watch(subprocess.Popen, "__init__", lambda arguments, named: note_child(_given(arguments)))
    _watch(
        pexpect.spawn,
        "__init__",
        lambda arguments, named: note_child([arguments[1], *_listed(arguments, named)]),
    )

    def in_process(arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        from headrace.interfaces.cli.main import headrace

        if arguments[0] is headrace:
            note(headrace, named.get("args") or arguments[1:2] or ())

    _watch(click.Command, "main", in_process)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Let the one who judges come last, whatever the order of the others is."""
    judges = [item for item in items if item.path.name == JUDGE]
    if not judges:
        return
    items[:] = [item for item in items if item not in judges] + judges
    there = {item.path for item in (*items, *_left_out)}
    missing = set((config.rootpath / "tests").rglob("test_*.py")) - there
    cut = [item for item in _left_out if item.get_closest_marker("cluster") is None]
    _whole.append(not missing and not cut)


def pytest_deselected(items: Sequence[pytest.Item]) -> None:
    _left_out.extend(items)


def _given(arguments: tuple[Any, ...]) -> object:
    return arguments[1] if len(arguments) > 1 else None


def _listed(arguments: tuple[Any, ...], named: dict[str, Any]) -> Sequence[object]:
    found = arguments[2] if len(arguments) > 2 else named.get("args", ())
    return found if isinstance(found, list | tuple) else ()


def _watch(kind: type, name: str, look: Any) -> None:
    original = getattr(kind, name)

    @wraps(original)
    def watched(*arguments: Any, **named: Any) -> Any:
        look(arguments, named)
        return original(*arguments, **named)

    setattr(kind, name, watched)
