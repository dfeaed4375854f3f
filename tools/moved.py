"""
Check that no test was lost while tests were renamed, merged and moved.

`tests/ids_before.txt.xz` lists every test there was at the beginning, and `tests/moved.tsv` says
what became of those that have gone: `old id <TAB> new id <TAB> reason`, or `dropped` in place of
the new id. An old id is one test, a function with all its parameters (without brackets), or a
file, whose tests then have the same names in another file. What was moved may be moved again: a
new id that has gone needs a line of its own.
"""

from __future__ import annotations

import argparse
import lzma
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BEFORE = ROOT / "tests" / "ids_before.txt.xz"
MOVED = ROOT / "tests" / "moved.tsv"
HEADER = "old id\tnew id or dropped\treason"
DROPPED = "dropped"


@dataclass(frozen=True, slots=True)
class Move:
    """What became of a test, of a function with all its parameters, or of a file of tests."""

    old: str
    new: str
    reason: str


def function(test: str) -> str:
    """Return a test's id without its parameters."""
    return test.partition("[")[0]


def file(test: str) -> str:
    """Return the file that a test stands in."""
    return test.partition("::")[0]


def listed(text: str) -> list[str]:
    """Return the ids in what `pytest --collect-only -q` prints."""
    return [line for line in text.splitlines() if line.startswith("tests/") and "::" in line]


def moves(text: str) -> list[Move]:
    """Return the lines of a table of moves; a line that has no three cells is refused."""
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        if line == HEADER or not line:
            continue
        cells = line.split("\t")
        if len(cells) != 3:
            raise SystemExit(f"line {number} has {len(cells)} cells in place of 3: {line}")
        found.append(Move(*cells))
    return found


def problems(before: Iterable[str], now: Iterable[str], moved: Sequence[Move]) -> Iterator[str]:
    """Yield what is lost, and what is wrong with the table; nothing, if all is accounted for."""
    accounts = _Accounts(now, moved)
    before = {*before}
    for test in sorted(before):
        if not accounts.holds(test):
            yield f"gone: {test}"
    known = {*before, *map(function, before), *map(file, before), *(move.new for move in moved)}
    files = {move.new for move in moved if "::" not in move.old}
    for move in dict.fromkeys(moved):
        if move.old not in known and file(move.old) not in files:
            yield f"there was no such test: {move.old}"
        elif move.new == DROPPED and not move.reason.strip():
            yield f"dropped without a reason: {move.old}"
        elif move.new != DROPPED and "::" in move.old and not accounts.holds(move.new):
            yield f"there is no such test: {move.new}, for {move.old}"


class _Accounts:
    def __init__(self, now: Iterable[str], moved: Sequence[Move]) -> None:
        tests = {*now}
        # A move may name a function, so that exists as well.
        self._there = tests | {*map(function, tests)}
        self._moves: dict[str, list[str]] = {}
        for move in moved:
            self._moves.setdefault(move.old, []).append(move.new)

    def holds(self, test: str, seen: frozenset[str] = frozenset()) -> bool:
        """Return whether a test exists, or all that it was moved to does."""
        if test in self._there:
            return True
        if test in seen:
            return False  # moved in a circle
        seen |= {test}
        for old in (test, function(test)):
            if new := self._moves.get(old):
                return all(each == DROPPED or self.holds(each, seen) for each in new)
        new = self._moves.get(file(test), [])
        rest = test.removeprefix(file(test))
        return bool(new) and all(each == DROPPED or self.holds(each + rest, seen) for each in new)


def collected() -> list[str]:
    """Return the ids of all tests there are now, whatever their tier."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", ""]
    done = subprocess.run(
        [*command, "-p", "no:randomly", "-p", "no:cacheprovider"],
        cwd=ROOT,
        env=os.environ | {"TESTS_TIER": "nightly"},
        capture_output=True,
        text=True,
    )
    tests = listed(done.stdout)
    if done.returncode != 0:
        ids = {*tests}
        said = "\n".join(line for line in done.stdout.split("\n") if line not in ids)
        raise SystemExit(f"The tests cannot be collected:{said}\n{done.stderr}")
    return tests


def read(path: Path) -> str:
    """Return what a file holds, unpacked."""
    return lzma.decompress(path.read_bytes()).decode() if path.suffix == ".xz" else path.read_text()


def main(arguments: Sequence[str] | None = None) -> int:
    """Say what is lost; 1 if anything is."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").strip().splitlines()[0])
    parser.add_argument("--before", type=Path, default=BEFORE, help="the old ids, one a line")
    parser.add_argument("--moved", type=Path, nargs="+", default=[MOVED], help="tables of moves")
    parser.add_argument("--now", type=Path, help="the ids there are now, in place of collecting")
    asked = parser.parse_args(arguments)
    before = listed(read(asked.before))
    now = listed(read(asked.now)) if asked.now else collected()
    moved = [move for path in asked.moved for move in moves(read(path))]
    found = [*problems(before, now, moved)]
    print("\n".join(found[:200]))
    print(f"{len(before)} tests before, {len(now)} now, {len(moved)} moves: {len(found)} problems")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
