"""The check at the end of a round: nothing lost, nothing twice, nothing backwards."""

from __future__ import annotations

import json
import sqlite3
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from headrace.changelog.entries import Flush
from headrace.changelog.index import LogIndex
from headrace.changelog.position import Position
from headrace.changelog.reader import LogReader
from headrace.storage.disk import RealDisk
from headrace.storage.files import Files
from tests.postgres.rounds.workload import KEYS
from tests.rounds.source import Connection, Row, rows_of

Key = tuple[object, ...]
Rows = dict[Key, Row]
SOURCE = "shop"


def truth(connection: Connection, table: str) -> Rows:
    """Return what the source has now."""
    return keyed(table, rows_of(connection, table))


def keyed(table: str, rows: Sequence[Row]) -> Rows:
    """Return rows by their key, which is `id` where it is not named."""
    return {tuple(row[name] for name in KEYS.get(table, ("id",))): row for row in rows}


def of_file(path: Path, table: str) -> Rows:
    """Return what the durable target has."""
    with sqlite3.connect(path) as database:
        found = database.execute("select body from rows where name = ?", (table,)).fetchall()
    database.close()
    return keyed(table, [json.loads(body) for (body,) in found])


def different(table: str, target: str, wanted: Mapping[Key, Any], there: Mapping[Key, Any]) -> str:
    """Say in what a target differs, without saying it of every row; empty where it does not."""
    missing = sorted(wanted.keys() - there.keys())
    extra = sorted(there.keys() - wanted.keys())
    other = sorted(key for key in wanted.keys() & there.keys() if wanted[key] != there[key])
    if not (missing or extra or other):
        return ""
    return (
        f"{table} in {target}: {len(missing)} missing {missing[:5]}, {len(extra)} too many"
        f" {extra[:5]}, {len(other)} wrong {other[:5]}"
    )


def effects_wrong(path: Path) -> list[str]:
    """Judge what the durable target ever did: each change once, in order."""
    with sqlite3.connect(path) as database:
        effects = database.execute(
            "select name, key, position from effects order by rowid"
        ).fetchall()
    database.close()
    found = [
        f"effect on {name} {key} at {position} happened {times} times"
        for (name, key, position), times in Counter(effects).items()
        if times > 1
    ]
    for table in {name: None for name, _, _ in effects}:
        own = [position for name, _, position in effects if name == table]
        if any(a > b for a, b in pairwise(own)):
            found.append(f"{table}: effects are not in order of position")
    return found


def files_of(folder: Path) -> Files:
    return Files(RealDisk(), str(folder / "data"))


def log_wrong(folder: Path) -> list[str]:
    """Judge the log: in every table positions grow, so that no change is there twice."""
    files = files_of(folder)
    log = LogReader.open(files, SOURCE)
    last: dict[str, Position] = {}
    found = []
    for entry in LogIndex(files.within(f"log/{SOURCE}/index")).load():
        if not isinstance(entry, Flush):
            continue
        for file in entry.files:
            rows = log.rows(file).select(["_commit", "_ordinal"]).to_pylist()
            for row in rows:
                at = Position(entry.epoch, row["_commit"], row["_ordinal"])
                if (before := last.get(file.table)) is not None and at <= before:
                    found.append(f"{file.table}: {at} follows {before} in entry {entry.entry}")
                last[file.table] = at
    return found


def too_early(folder: Path, connection: Connection) -> list[str]:
    """Judge a round whose engine is gone: what may the server have forgotten?"""
    log = LogReader.open(files_of(folder), SOURCE)
    if log.gap is None:
        return []  # the slot may be older than the log
    confirmed = connection.execute(
        "select (confirmed_flush_lsn - '0/0')::int8 from pg_replication_slots"
    ).fetchall()
    return [
        f"acknowledged {at}, synced only {log.end.commit}"
        for (at,) in confirmed
        if at > log.end.commit
    ]


class Watch:
    """Looks at the durable target's positions all the time: they never fall."""

    def __init__(self, path: Path) -> None:
        self.wrong: list[str] = []
        self.looks = 0
        self._path = path
        self._last: dict[str, str] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work, name="watch")
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        self._thread.join()

    def _work(self) -> None:
        while not self._over.wait(0.05):
            if not self._path.exists():
                continue
            database = sqlite3.connect(self._path, timeout=5)
            try:
                found = database.execute("select name, position from about").fetchall()
            except sqlite3.OperationalError:
                continue  # locked, or not set up yet
            finally:
                database.close()
            self.looks += 1
            for name, position in found:
                if position < self._last.get(name, ""):
                    self.wrong.append(f"{name} fell from {self._last[name]} to {position}")
                self._last[name] = position
