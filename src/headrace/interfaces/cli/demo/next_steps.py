"""Commands to try after the demo, as they can be pasted where it was called."""

from __future__ import annotations

import json
import shlex
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path

from headrace.interfaces.cli.demo.shop import DEFAULT, Shop
from headrace.interfaces.cli.demo.snapshot import Command, HeldRow


def next_steps(
    shop: Shop, source: str, table: str, letters: Iterable[HeldRow] = ()
) -> tuple[Command, ...]:
    """Return the commands: see a dead letter, write and read changes, go on, ask the shop."""
    python = as_typed(Path(sys.executable))
    folder = as_typed(shop.folder)
    # Not the log's own files: which of them count is known to its index alone, for flushes are
    # merged, and the files of before stay for a while.
    changes = f"{folder}/changes.parquet"
    write = ("log", "read", source, table, "--data", folder, "--format", "parquet")
    read = (
        "import headrace as hr; "
        f"changes = hr.spark().read.parquet({_literal(changes)}); "
        'changes.groupBy("op").count().show()'
    )
    ask_shop = shop.asking(folder, "select status, count(*) from orders group by status")
    kind = () if shop.kind == DEFAULT else ("--source", shop.kind)
    return (
        *(Command("look at the dead letter", each.commands[0]) for each in list(letters)[:1]),
        Command(
            "write the change log to a Parquet file",
            # Pasted a second time, it writes the file anew.
            _line(*program(), *write, "--output", changes, "--force"),
        ),
        Command("read that file with PySpark", _line(python, "-c", read)),
        Command(
            "go on where this one stopped",
            _line(*program(), "demo", *kind, "--data", folder),
        ),
        Command("ask the shop itself", _line(python, "-c", ask_shop)),
    )


def letter_commands(data: Path, position: str) -> tuple[str, ...]:
    """Return what shows the dead letter at a position, and what lists all of them."""
    letters, folder = (*program(), "dead-letters"), as_typed(data)
    return (
        _line(*letters, "show", position, "--data", folder),
        _line(*letters, "list", "--data", folder),
    )


def program() -> tuple[str, ...]:
    """Return how this Headrace is called: by its name, where the shell finds it by that."""
    script = Path(sys.executable).with_name("headrace")
    if not script.exists():
        return (as_typed(Path(sys.executable)), "-m", "headrace")
    found = shutil.which("headrace")
    same = found is not None and Path(found).absolute() == script.absolute()
    return ("headrace",) if same else (as_typed(script),)


def as_typed(path: Path) -> str:
    """Return the path as someone in the present folder would type it."""
    here = Path.cwd()
    path = path.absolute()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)


def _literal(text: str) -> str:
    # Double quotes, so that the shell's single ones around the program stay readable.
    return json.dumps(text, ensure_ascii=False)


def _line(*words: str) -> str:
    return shlex.join(words)
