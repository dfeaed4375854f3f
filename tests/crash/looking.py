"""Gathering what the check looks at: the source by SQL, the log, the letters, the target."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headrace.changelog.entries import Baseline, File
from headrace.changelog.index import LogIndex
from headrace.changelog.position import ORIGIN, Position
from headrace.changelog.reader import LogReader
from headrace.deadletters.store import read_letters
from tests.crash.check import Effect, Letter, Row, Seen, TableSeen
from tests.crash.frames import read_frames
from tests.crash.model import Image, Kept, Logged, Start, expected
from tests.crash.place import Place
from tests.crash.queue_target import apply, read_lines
from tests.support.shop import PATIENCE, await_seen

COLUMNS = ("id", "customer_id", "status", "card")


@dataclass(slots=True)
class Held:
    """What a target holds and did."""

    rows: dict[str, dict[object, Row]] = field(default_factory=dict)
    effects: list[Effect] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    """What can already be said of it."""


def look(place: Place, held: Held) -> Seen:
    """Gather what is true, what the target has and what the log says."""
    # The acknowledgement first: the log may go on, and only gets longer.
    captured, acknowledged, kept = place.account()
    log = place.log()
    changes = _changes(log, place.plan.tables)
    baselines = baseline_numbers(place)
    assert log.gap is not None
    tables = {
        name: TableSeen(
            truth={**place.truth(name)},
            rows=held.rows.get(name, {}),
            expected=expected(
                _start(place, log, name, baselines[name]),
                [change for change in changes if change.table == name],
                fails=place.plan.fails,
            ),
            letters=_letters(place, name),
        )
        for name in place.plan.tables
    }
    return Seen(
        tables=tables,
        effects=held.effects,
        changes=changes,
        diary=place.diary(len(changes)),
        begins=Position.parse(log.gap.at).commit,
        captured=captured,
        acknowledged=acknowledged,
        kept=kept,
        synced=log.end.commit,
        strays=_strays(place),
        code=place.code,
    )


def too_early(place: Place) -> list[str]:
    """Judge a place whose processes were just killed: what may the database have forgotten?"""
    acknowledged = place.acknowledged()
    synced = place.log().end.commit
    if acknowledged > synced:
        return [f"acknowledged {acknowledged}, synced only {synced}"]
    return []


def baseline_numbers(place: Place) -> dict[str, int]:
    """Return the number of the baseline that each table began with."""
    found = place.stored('select "table", baseline from states where pipeline = ?')
    return {str(name): int(str(number)) for name, number in found}


# --- the log and the letters -------------------------------------------------------------


def _start(place: Place, log: LogReader, table: str, number: int) -> Start:
    # Not the newest: one that nobody waited for any more may have come after it.
    (entry,) = [
        entry
        for entry in LogIndex(place.files.within("log/shop/index")).load()
        if isinstance(entry, Baseline) and (entry.table, entry.baseline) == (table, number)
    ]
    rows = [_image(row["after"]) for file in entry.files for row in log.rows(file).to_pylist()]
    return Start(number, entry.window[0], [row for row in rows if row is not None])


def _changes(log: LogReader, tables: Sequence[str]) -> list[Logged]:
    found = [
        Logged(
            file.table,
            Position(epoch, row["_commit"], row["_ordinal"]),
            row["_op"],
            _image(row["before"]),
            _image(row["after"]),
        )
        for epoch, file in _files(log, tables)
        for row in log.rows(file).to_pylist()
    ]
    # Each table has files of its own in a flush; within one they must rise by themselves.
    for name in tables:
        own = [change.position for change in found if change.table == name]
        assert own == sorted(own), f"the log's changes of {name} are not in order"
    return sorted(found, key=lambda change: change.position)


def _files(log: LogReader, tables: Sequence[str]) -> list[tuple[int, File]]:
    found = []
    after = ORIGIN
    while (batch := log.next_batch(tables, after, 10_000)) is not None:
        found += [(batch.epoch, file) for file in batch.files]
        after = batch.last
    return found


def _image(row: Mapping[str, object] | None) -> Image | None:
    return None if row is None else tuple(row[name] for name in COLUMNS)


def _strays(place: Place) -> list[str]:
    # A recorder that merges flushes just now has written a segment and not yet its entry.
    return sorted(lasting(lambda: _unnamed(place), PATIENCE))


def lasting(look: Callable[[], set[str]], seconds: float) -> set[str]:
    """Return what every look sees; as soon as nothing is left, that is it."""
    left = look()

    def gone() -> bool:
        left.intersection_update(look() if left else ())
        return not left

    await_seen(gone, seconds)
    return left


def _unnamed(place: Place) -> set[str]:
    named = {file.name for _, file in _files(place.log(), place.plan.tables)}
    # Dropped, and deleted a lease later: a reader does not remember these.
    dropped = LogIndex(place.files.within("log/shop/index")).history().retired
    named |= {name for _, names in dropped for name in names}
    there = place.files.list("log/shop/segments")
    return {name for name in there if name not in named and "-b" not in name}


def _letters(place: Place, table: str) -> list[Letter]:
    return [
        Letter(
            Kept(
                letter.position,
                letter.baseline,
                _image(letter.before),
                _image(letter.after),
            ),
            letter.kind,
            letter.code,
        )
        for letter in read_letters(place.files)
        if letter.table == table
    ]


# --- targets -----------------------------------------------------------------------------


def of_file(path: Path) -> Held:
    """Return what a `FileTarget` holds and did."""
    found = Held()
    database = sqlite3.connect(path)
    try:
        for name, body in database.execute("select name, body from rows"):
            found.rows.setdefault(name, {}).update(_by_id([json.loads(body)]))
        found.effects = [
            Effect(*row)
            for row in database.execute("select name, key, position from effects order by rowid")
        ]
    finally:
        database.close()
    return found


def of_memory(told: str) -> Held:
    """Return the same of a table in memory, as its process told it."""
    found = json.loads(told)
    return Held(
        {"orders": _by_id(found["rows"])},
        [Effect("orders", json.dumps(key), position) for key, position in found["effects"]],
    )


def of_queue(path: Path) -> Held:
    """Return what a reader of the queue has who leaves out ids that were there before."""
    found = Held()
    sent: dict[str, Any] = {}
    newest = ""
    last = str(ORIGIN)
    rows: dict[str, dict[int, dict[str, Any]]] = {}
    for line in read_lines(path):
        if "id" not in line:
            rows[line["table"]] = {row["id"]: row for row in line["rows"]}
            continue
        if line["id"] in sent:
            if sent[line["id"]] != line:
                found.wrong.append(f"batch {line['id']} came again with another content")
            if line["id"] != newest:
                found.wrong.append(f"batch {line['id']} came again after {newest}")
            continue
        if line["first"] <= last:
            found.wrong.append(f"batch {line['id']} begins before the end of the last, {last}")
        sent[line["id"]] = line
        newest, last = line["id"], line["last"]
        for name, changes in line["rows"].items():
            apply(rows.setdefault(name, {}), changes)
            found.effects += _effects(name, changes)
    found.rows = {name: _by_id(list(each.values())) for name, each in rows.items()}
    return found


def _effects(table: str, changes: Sequence[dict[str, Any]]) -> list[Effect]:
    return [Effect(table, json.dumps([each["row"]["id"]]), each["at"]) for each in changes]


def of_frames(folder: Path) -> Held:
    """Return what the files of a function hold that is given frames."""
    found = Held()
    tables: dict[str, _Given] = {}
    for given in read_frames(folder):
        about, table = given.about, given.about["table"]
        number = about["baseline"]
        if table not in tables or number not in (None, tables[table].baseline):
            # With a new baseline all begins anew: changes since it began are given again.
            tables[table] = _Given(number)
        found.wrong += tables[table].take(given.id, about)
    for table, each in tables.items():
        found.rows[table] = _by_id(list(each.rows.values()))
        found.effects += [Effect(table, *what) for what in each.effects]
    return found


@dataclass(slots=True)
class _Given:
    """What a function was given of one table, from a baseline on."""

    baseline: int | None
    rows: dict[int, dict[str, Any]] = field(default_factory=dict)
    effects: list[tuple[str, str]] = field(default_factory=list)
    last: str = ""
    seen: dict[str, Any] = field(default_factory=dict)

    def take(self, name: str, about: dict[str, Any]) -> list[str]:
        if name in self.seen:
            same = self.seen[name] == about
            return [] if same else [f"frame {name} came again with another content"]
        self.seen[name] = about
        plain = [{k: v for k, v in row.items() if k[0] != "_"} for row in about["rows"]]
        if about["baseline"] is not None:
            self.rows.update({row["id"]: row for row in plain})
            return []
        overlaps = about["first"] <= self.last
        self.last = about["last"]
        for row, whole in zip(plain, about["rows"], strict=True):
            self.effects.append((json.dumps([row["id"]]), whole["_position"]))
            self.rows.pop(row["id"], None)
            if whole["_op"] != "delete":
                self.rows[row["id"]] = row
        return [f"frame {name} begins before the end of the last"] if overlaps else []


def _by_id(rows: Sequence[dict[str, Any]]) -> dict[object, Row]:
    """Return rows by key, without what only Spark computes of them."""
    for row in rows:
        if "share" in row:
            # Rows of the bad customer have none, and are letters.
            share = row.pop("share")
            assert share == int(100 / (row["customer_id"] - 5)), f"row {row['id']} has {share}"
    return {row["id"]: row for row in rows}
