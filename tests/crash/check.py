"""
The one check, after every round: nothing lost, nothing twice, nothing too early.

`look` gathers what is there, `wrong` judges it; so the judge itself can be tested.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from tests.crash.model import Expected, Image, Kept, Logged

Row = Mapping[str, object]
Rows = Mapping[object, Row]


@dataclass(frozen=True, slots=True)
class Effect:
    """Something a target did."""

    table: str
    key: str
    position: str


@dataclass(frozen=True, slots=True)
class Letter:
    """A dead letter that counts, as it was read back."""

    kept: Kept
    kind: str
    code: str


@dataclass(frozen=True, slots=True)
class TableSeen:
    """One table: what is true, what must be at the target, and what is there."""

    truth: Rows
    """By SQL, of the source as it is now."""

    rows: Rows
    expected: Expected
    letters: Sequence[Letter] = ()


@dataclass(frozen=True, slots=True)
class Seen:
    """All that the check looks at."""

    tables: Mapping[str, TableSeen]
    effects: Sequence[Effect]
    changes: Sequence[Logged]
    diary: Sequence[tuple[str, int, Image | None, Image | None]]
    """The application's account of as many changes as the log has."""

    begins: int
    """The number after which the log begins."""

    captured: int
    acknowledged: int
    kept: int
    """Captured changes above the acknowledged one that the database still has."""

    synced: int
    strays: Sequence[str] = ()
    """Segments that no entry of the index names."""

    code: str = ""
    """What letters of rows that failed must say."""


def wrong(seen: Seen) -> list[str]:
    """Return everything that is not as it must be, as sentences."""
    found = []
    for name, table in seen.tables.items():
        found += [f"{name}: {what}" for what in _table_wrong(table, seen.code)]
    effects = Counter(seen.effects)
    found += [
        f"effect on {effect.table} {effect.key} at {effect.position} happened {n} times"
        for effect, n in effects.items()
        if n > 1
    ]
    for name in seen.tables:
        own = [effect.position for effect in seen.effects if effect.table == name]
        if any(a > b for a, b in pairwise(own)):
            found.append(f"{name}: effects are not in order of position")
    found += _log_wrong(seen)
    if seen.acknowledged > seen.synced:
        found.append(f"acknowledged {seen.acknowledged}, synced only {seen.synced}")
    if seen.captured - seen.acknowledged > seen.kept:
        found.append("the database forgot changes that were not acknowledged")
    found += [f"no entry names {name}" for name in seen.strays]
    return found


def _table_wrong(table: TableSeen, code: str) -> list[str]:
    held = table.expected.held
    # First against the source itself, whatever the model says.
    truth = {key: row for key, row in table.truth.items() if key not in held}
    free = {key: row for key, row in table.rows.items() if key not in held}
    found = _rows_wrong(truth, free)
    stuck = {key: row for key, row in table.rows.items() if key in held}
    as_it_was = {key: row for key, row in table.expected.rows.items() if key in held}
    found += [f"held {what}" for what in _rows_wrong(as_it_was, stuck)]
    return found + _letters_wrong(table, code)


def _rows_wrong(truth: Rows, rows: Rows) -> list[str]:
    found = [f"row {key} is missing" for key in truth.keys() - rows.keys()]
    found += [f"row {key} should not be there" for key in rows.keys() - truth.keys()]
    found += [
        f"row {key} is {dict(rows[key])}, not {dict(truth[key])}"
        for key in truth.keys() & rows.keys()
        if rows[key] != truth[key]
    ]
    return sorted(found)


def _letters_wrong(table: TableSeen, code: str) -> list[str]:
    wanted = table.expected.letters
    there = Counter(letter.kept for letter in table.letters)
    found = [f"letter of {_named(kept)} is missing" for kept in wanted if kept not in there]
    found += [f"letter of {_named(kept)} should not be" for kept in there if kept not in wanted]
    found += [f"letter of {_named(kept)} is there {n} times" for kept, n in there.items() if n > 1]
    for letter in table.letters:
        if wanted.get(letter.kept) and letter.kind != "failed":
            found.append(f"letter of {_named(letter.kept)} is {letter.kind}, and it failed")
        if (letter.code == code) != (letter.kind == "failed"):
            found.append(f"letter of {_named(letter.kept)} is {letter.kind} with {letter.code!r}")
    return found


def _named(kept: Kept) -> str:
    image = kept.after or kept.before or (None,)
    where = "" if kept.baseline is None else f" in baseline {kept.baseline}"
    return f"key {image[0]} at {kept.position}{where}"


def _log_wrong(seen: Seen) -> list[str]:
    found = []
    if any(a.position >= b.position for a, b in pairwise(seen.changes)):
        found.append("positions in the log do not increase")
    numbers = Counter(change.position.commit for change in seen.changes)
    wanted = range(seen.begins + 1, seen.captured + 1)
    found += [f"change {n} is not in the log" for n in wanted if not numbers[n]]
    found += [
        f"change {n} is in the log {times} times" for n, times in numbers.items() if times > 1
    ]
    if [(c.table, c.op, c.before, c.after) for c in seen.changes] != list(seen.diary):
        found.append("the log's changes are not those of the application")
    return found
