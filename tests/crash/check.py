"""
The one check, after every round: nothing lost, nothing twice, nothing too early.

`look` gathers what is there, `wrong` judges it; so the judge itself can be tested.
"""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from headrace.changelog.log import LogReader
from headrace.changelog.position import ORIGIN, Position
from tests.crash.place import Place

Row = Mapping[str, object]
Rows = Mapping[int, Row]

COLUMNS = ("id", "customer_id", "status", "card")


@dataclass(frozen=True, slots=True)
class Effect:
    """Something a target did."""

    op: str
    key: str
    position: str


@dataclass(frozen=True, slots=True)
class Logged:
    """A change as our log has it."""

    position: Position
    op: int
    before: object
    after: object


@dataclass(frozen=True, slots=True)
class Seen:
    """All that the check looks at."""

    truth: Rows
    rows: Rows
    effects: Sequence[Effect]
    changes: Sequence[Logged]
    diary: Sequence[tuple[int, object, object]]
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


def wrong(seen: Seen) -> list[str]:
    """Return everything that is not as it must be, as sentences."""
    found = _rows_wrong(seen.truth, seen.rows)
    effects = Counter((effect.key, effect.position) for effect in seen.effects)
    found += [
        f"effect on {k} at {at} happened {n} times" for (k, at), n in effects.items() if n > 1
    ]
    if any(a.position > b.position for a, b in pairwise(seen.effects)):
        found.append("effects are not in order of position")
    found += _log_wrong(seen)
    if seen.acknowledged > seen.synced:
        found.append(f"acknowledged {seen.acknowledged}, synced only {seen.synced}")
    if seen.captured - seen.acknowledged > seen.kept:
        found.append("the database forgot changes that were not acknowledged")
    found += [f"no entry names {name}" for name in seen.strays]
    return found


def _rows_wrong(truth: Rows, rows: Rows) -> list[str]:
    found = [f"row {key} is missing" for key in sorted(truth.keys() - rows.keys())]
    found += [f"row {key} should not be there" for key in sorted(rows.keys() - truth.keys())]
    found += [
        f"row {key} is {dict(rows[key])}, not {dict(truth[key])}"
        for key in sorted(truth.keys() & rows.keys())
        if rows[key] != truth[key]
    ]
    return found


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
    if [(c.op, c.before, c.after) for c in seen.changes] != list(seen.diary):
        found.append("the log's changes are not those of the application")
    return found


def look(place: Place, rows: Rows, effects: Sequence[Effect]) -> Seen:
    """Gather what is true, what the target has and what the log says."""
    # The acknowledgement first: the log may go on, and only gets longer.
    acknowledged = place.acknowledged()
    captured = place.captured()
    kept = place.kept(acknowledged)
    log = place.log()
    changes = list(_changes(log))
    assert log.gap is not None
    return Seen(
        truth=place.truth(),
        rows=rows,
        effects=effects,
        changes=changes,
        diary=place.diary(len(changes)),
        begins=Position.parse(log.gap.at).commit,
        captured=captured,
        acknowledged=acknowledged,
        kept=kept,
        synced=log.end.commit,
        strays=_strays(place, log),
    )


def _changes(log: LogReader) -> list[Logged]:
    found: list[Logged] = []
    after = ORIGIN
    while (batch := log.next_batch("orders", after, 10_000)) is not None:
        for file in batch.files:
            for row in log.rows(file).to_pylist():
                at = Position(batch.epoch, row["_commit"], row["_ordinal"])
                images = [_image(row["before"]), _image(row["after"])]
                found.append(Logged(at, row["_op"], *images))
        after = batch.last
    return found


def _image(row: Row | None) -> object:
    return None if row is None else [row[name] for name in COLUMNS]


def _strays(place: Place, log: LogReader) -> list[str]:
    named: set[str] = set()
    after = ORIGIN
    while (batch := log.next_batch("orders", after, 10_000)) is not None:
        named.update(file.name for file in batch.files)
        after = batch.last
    there = place.files.list("log/shop/segments")
    return [name for name in there if name not in named and "-b" not in name]


def file_rows_at(path: Path) -> tuple[Rows, list[Effect]]:
    """Return what a `FileTarget` holds and did."""
    database = sqlite3.connect(path)
    try:
        rows = [json.loads(body) for (body,) in database.execute("select body from rows")]
        effects = [
            Effect(str(op), key, position)
            for op, key, position in database.execute(
                "select op, key, position from effects order by rowid"
            )
        ]
    finally:
        database.close()
    return {row["id"]: row for row in rows}, effects


def memory_rows(told: str) -> tuple[Rows, list[Effect]]:
    """Return the same of a table in memory, as its process told it."""
    found = json.loads(told)
    effects = [Effect(op, json.dumps(key), position) for op, key, _, position in found["effects"]]
    return {row["id"]: row for row in found["rows"]}, effects


def too_early(place: Place) -> list[str]:
    """Judge a place whose processes were just killed: what may the database have forgotten?"""
    acknowledged = place.acknowledged()
    synced = place.log().end.commit
    if acknowledged > synced:
        return [f"acknowledged {acknowledged}, synced only {synced}"]
    return []
