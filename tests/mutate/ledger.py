"""What was caught already: of which code, by which test."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterable
from dataclasses import astuple
from pathlib import Path
from typing import TypedDict

from tests.mutate.mutation import SIMULATION, Mutation


class Caught(TypedDict):
    """A mutation that turned its test red."""

    digest: str
    seconds: float
    said: str


class Ledger:
    """
    A file with the mutations that were caught, so that a run goes on where one was stopped.

    An entry holds as long as our code, the mutation and the file of its test are what they were.
    What a test imports besides is not looked at: `--again` does. *Threads*: any.
    """

    def __init__(self, path: Path, root: Path) -> None:
        self._path = path
        self._root = root
        self._lock = threading.Lock()
        self._source = _of(sorted((root / "src").rglob("*.py")))
        self._kept: dict[str, Caught] = {}
        if path.exists():
            self._kept = json.loads(path.read_text())

    def find(self, mutation: Mutation) -> Caught | None:
        """Return how it was caught, if it was and nothing has changed since."""
        kept = self._kept.get(mutation.name)
        return kept if kept is not None and kept["digest"] == self._digest(mutation) else None

    def keep(self, mutation: Mutation, seconds: float, said: str) -> None:
        """Note that it was caught."""
        self._put(mutation, Caught(digest=self._digest(mutation), seconds=seconds, said=said))

    def drop(self, mutation: Mutation) -> None:
        """Forget it: it was not caught."""
        self._put(mutation, None)

    def _put(self, mutation: Mutation, caught: Caught | None) -> None:
        with self._lock:
            self._kept.pop(mutation.name, None)
            if caught is not None:
                self._kept[mutation.name] = caught
            self._path.parent.mkdir(parents=True, exist_ok=True)
            beside = self._path.with_suffix(".tmp")
            beside.write_text(json.dumps(self._kept, indent=1, sort_keys=True))
            beside.replace(self._path)

    def _digest(self, mutation: Mutation) -> str:
        files = [*files_of(self._root, mutation.test), *shared_by_tests(self._root)]
        parts = (self._source, repr(astuple(mutation)), _of(files))
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def files_of(root: Path, test: str) -> list[Path]:
    """Return the files that a test's address speaks of."""
    place = root / ("tests/simulation" if test == SIMULATION else test.partition("::")[0])
    return sorted(place.rglob("*.py")) if place.is_dir() else [place]


def shared_by_tests(root: Path) -> list[Path]:
    """Return what tests are built with: fixtures and helpers, wherever they stand."""
    found = (root / "tests").rglob("*.py")
    return sorted(path for path in found if not path.name.startswith("test_"))


def _of(files: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    for file in files:
        data = file.read_bytes()
        digest.update(f"{file} {len(data)} ".encode())
        digest.update(data)
    return digest.hexdigest()
