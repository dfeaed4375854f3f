"""
Which seeds have passed, and for which code: a long run that was interrupted goes on.

Kept in `tests/simulation/passed.json`, for the states of the code that were played last. Commit it
with the work that it belongs to: 200,000 seeds take longer than most people wait at once.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
PLACE = ROOT / "tests" / "simulation" / "passed.json"
KEPT = 2
"""States of the code that are remembered."""

FIRST = "tests.simulation.__main__"
ALSO = ("requirements.lock",)
"""What a story depends on: what this module imports, wherever that is imported, and these files."""


def state_of_the_code(root: Path = ROOT) -> str:
    """Return a digest of all that a story depends on, this interpreter too."""
    digest = hashlib.sha256(sys.version.encode())
    for file in (*modules_of_a_story(root), *(root / name for name in ALSO)):
        text = file.read_bytes()
        digest.update(f"{file.relative_to(root)} {len(text)}\n".encode())
        digest.update(text)
    return digest.hexdigest()


def modules_of_a_story(root: Path = ROOT) -> list[Path]:
    """
    Return the modules of ours that a story can run, so that a change of others leaves its result.

    Every import counts, also one within a function, but for those for types alone.
    """
    found: dict[str, Path] = {}
    waiting = [FIRST]
    while waiting:
        name = waiting.pop()
        if name in found or (path := _path(root, name)) is None:
            continue
        found[name] = path
        waiting += _imported(path)
        waiting += [name.rpartition(".")[0]]
    return sorted(found.values())


def _path(root: Path, name: str) -> Path | None:
    """Return where a module of ours is."""
    place = (root if name.startswith("tests") else root / "src").joinpath(*name.split("."))
    candidates = (place.with_suffix(".py"), place / "__init__.py")
    return next((each for each in candidates if name and each.is_file()), None)


def _imported(path: Path) -> Iterator[str]:
    waiting: list[ast.AST] = [ast.parse(path.read_text())]
    while waiting:
        match waiting.pop():
            case ast.If(test=ast.Name(id="TYPE_CHECKING")):
                pass  # never run
            case ast.ImportFrom(module=str(module), names=names):
                yield module
                yield from (f"{module}.{each.name}" for each in names)
            case ast.Import(names=names):
                yield from (each.name for each in names)
            case node:
                waiting += ast.iter_child_nodes(node)


class Ledger:
    """The seeds that have passed for one state of the code."""

    def __init__(self, place: Path, state: str) -> None:
        self._place = place
        self._state = state
        self._passed = {seed for part in self._read().get(state, ()) for seed in range(*part)}

    def missing(self, seeds: Iterable[int]) -> list[int]:
        """Return those that have not passed yet."""
        return [seed for seed in seeds if seed not in self._passed]

    def passed(self, seed: int) -> None:
        """Note one; it is kept with the next `save`."""
        self._passed.add(seed)

    def save(self) -> None:
        """Write what passed, beside what other runs have written meanwhile for other code."""
        states = self._read()
        states.pop(self._state, None)
        newest = list(states.items())[-(KEPT - 1) :]
        self._place.parent.mkdir(parents=True, exist_ok=True)
        part = self._place.with_suffix(f".{os.getpid()}")
        states = dict([*newest, (self._state, ranges(self._passed))])
        part.write_text(json.dumps(states) + "\n")
        part.replace(self._place)

    def _read(self) -> dict[str, list[list[int]]]:
        try:
            found: dict[str, list[list[int]]] = json.loads(self._place.read_text())
        except (FileNotFoundError, ValueError):
            return {}  # never written, or cut off: then all is played again
        return found


def ranges(seeds: Iterable[int]) -> list[list[int]]:
    """Return the numbers as ranges: the first of each, and the one after its last."""
    found: list[list[int]] = []
    for seed in sorted(seeds):
        if found and found[-1][1] == seed:
            found[-1][1] += 1
        else:
            found.append([seed, seed + 1])
    return found
