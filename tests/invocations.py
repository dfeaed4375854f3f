"""
Which commands and options the tests really ran.

Every command line that a test runs is seen where it starts: in this process, as a child, or
on a terminal. A run of all tests is several processes. Each of them writes what it saw into the
folder that TESTS_SEEN_DIR names, and the runner asks at the end what is missing:
`python -m tests.invocations FOLDER`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from functools import wraps
from pathlib import Path
from typing import Any

import click
import pexpect
import pytest

FOLDER = "TESTS_SEEN_DIR"

Use = tuple[tuple[str, ...], str]
"""A command and one of its options; the option is empty for the command alone."""

CHILDREN = {
    "headrace": (),
    "tests.interfaces.at_work": (),
    "tests.interfaces.demo_engine": ("demo",),
}
"""Modules that are our command line when they are run, with the words they put before others."""

_seen: set[Use] = set()


def offered() -> set[Use]:
    """Return every command, and every command with each of its options."""
    from tools.cli_reference import commands, options

    return {
        (path, name)
        for path, command in commands()
        for name in ("", *(option.opts[-1] for option in options(command)))
    }


def seen() -> frozenset[Use]:
    """Return every command and option that this process ran."""
    return frozenset(_seen)


def keep(folder: Path) -> None:
    """Write what this process saw into a file of its own."""
    folder.mkdir(parents=True, exist_ok=True)
    handle, _ = tempfile.mkstemp(suffix=".jsonl", dir=folder)
    with os.fdopen(handle, "w") as file:
        file.writelines(f"{json.dumps(each)}\n" for each in sorted(_seen))


def gathered(folder: Path) -> set[Use]:
    """Return what all processes of a run saw."""
    return {
        (tuple(path), option)
        for file in folder.glob("*.jsonl")
        for path, option in map(json.loads, file.read_text().splitlines())
    }


def judge(folder: Path) -> int:
    """Say what no test of a run has run; return the exit code: 1 where there is anything."""
    wanted = offered()
    missing = sorted(wanted - gathered(folder))
    for path, option in missing:
        print(f"no test ran: {' '.join((*path, option)).rstrip()}")
    if not missing:
        bare = sum(not option for _, option in wanted)
        told = f"{bare} commands, {len(wanted) - bare} options"
        print(f"every command and option was run: {told}")
    return bool(missing)


def used(root: click.Command, words: Sequence[str]) -> Iterator[Use]:
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
        from headrace.cli.main import headrace

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
        from headrace.cli.main import headrace

        if arguments[0] is headrace:
            note(headrace, named.get("args") or arguments[1:2] or ())

    _watch(click.Command, "main", in_process)


def pytest_sessionfinish() -> None:
    if folder := os.environ.get(FOLDER):
        keep(Path(folder))


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


if __name__ == "__main__":
    sys.exit(judge(Path(sys.argv[1])))
