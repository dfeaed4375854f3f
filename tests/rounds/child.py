"""
The engine of a round, in a process that can be killed.

Says `started`, then answers commands, one on a line, until `stop`; that with `stopped`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from headrace.engine.engine import Engine
from headrace.errors import HeadraceError, InvalidConfiguration


class EngineProcess(Protocol):
    """An engine, and the answers to commands."""

    engine: Engine

    def answer(self, command: str, arguments: Sequence[str]) -> str:
        """Do as asked, and return what is said of it: one line."""
        ...


def main(begin: Callable[[Path, str, Sequence[str], bool], EngineProcess]) -> int:
    """Begin with a folder, a DSN, tables and whether work is shared; return the exit code."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("dsn")
    parser.add_argument("--tables", nargs="+")
    parser.add_argument("--shared", action="store_true", help="let executors do what they can")
    given = parser.parse_args()
    return serve(begin(given.folder, given.dsn, given.tables, given.shared))


def serve(process: EngineProcess, first: Callable[[], str] | None = None) -> int:
    """Say what is `first`, answer commands until `stop`, and return the exit code."""
    try:
        with process.engine:
            say("started")
            if first is not None:
                say(first())
            for line in sys.stdin:
                command, *arguments = line.split()
                if command == "stop":
                    break
                say(process.answer(command, arguments))
    except HeadraceError as error:
        # Those that were found together have the facts, for instance which table.
        found = error.errors if isinstance(error, InvalidConfiguration) else [error]
        say("error " + "; ".join(map(str, found)))
        return error.exit_code
    say("stopped")
    return 0


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
