"""What was committed, when, and what a status may say in the light of it."""

from __future__ import annotations

import json
import sqlite3
import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from zlib import crc32

import psycopg

from headrace.capture.postgres.server.ddl_watch import WATCH_SECONDS
from headrace.changelog.position import Position
from tests.postgres.catalog_sequences import TABLES as DRAWN_TABLES

PROMISE_SECONDS = 5.0
"""The promise that is tested: shorter than the product's, so that a round has many chances."""

BEAT_SECONDS = 0.05
SLACK_SECONDS = 0.5
"""Between the look at the status and that at the rows, and between a commit and its answer."""

FILE, MEMORY, ASIDE = "file", "memory", "aside"
PIPELINES = (FILE, MEMORY, ASIDE)
"""Two of PostgreSQL, and one of a file of SQLite in the same engine."""

STILL = ("moods", "left_hand", "right_hand", *DRAWN_TABLES)
"""Tables that change by faults alone, so that it is known at any time what is in them."""

LATEST_SECONDS = PROMISE_SECONDS + WATCH_SECONDS + SLACK_SECONDS
"""What changes without a message may be seen so late."""


def digests(rows: Iterable[Mapping[str, object]]) -> list[int]:
    """Return a number for each row, whatever the order of its columns."""
    return [
        crc32(
            json.dumps(
                sorted((name, str(value)) for name, value in row.items() if value is not None)
            ).encode()
        )
        for row in rows
    ]


@dataclass(frozen=True, slots=True)
class Version:
    """What a table had from some moment between two times on; None: it was not there."""

    began: float
    ended: float
    rows: frozenset[int] | None


class Contents:
    """What was in the tables that only faults change, from when on."""

    def __init__(self) -> None:
        self.versions: dict[str, list[Version]] = {name: [] for name in STILL}

    def changed(self, table: str, began: float, rows: Iterable[int] | None) -> None:
        """Note what a table has now, after a change that began then."""
        versions = self.versions[table]
        now = None if rows is None else frozenset(rows)
        if not versions or versions[-1].rows != now:
            versions.append(Version(began, time.time(), now))

    def wrong(self, seen: Mapping[str, Sequence[int]], at: float) -> list[str]:
        """Return the tables that were seen with rows that are older than is promised."""
        found = []
        for table, rows in seen.items():
            # Of changes that nobody told of, some rows may be there and others not yet: each is
            # as it was at some moment, and what was always there is there.
            possible = [
                each.rows or frozenset()
                for each in _possible(self.versions[table], at - LATEST_SECONDS)
            ]
            there = frozenset(rows)
            gone = self._gone_since(table, at)
            if gone or not frozenset.intersection(*possible) <= there <= frozenset.union(*possible):
                found.append(table)
        return found

    def _gone_since(self, table: str, at: float) -> bool:
        """Whether nobody may be ready with a table, because it is gone, and has long been."""
        return all(
            each.rows is None for each in _possible(self.versions[table], at - LATEST_SECONDS)
        )


def _possible(versions: Sequence[Version], before: float) -> Sequence[Version]:
    """Return the last version of a time, and all later ones."""
    last = bisect_right([each.ended for each in versions], before)
    return versions[max(0, last - 1) :]


@dataclass(frozen=True, slots=True)
class Beat:
    """A number, when its commit was answered, and between which ends of the journal it lies."""

    at: float
    number: int
    after: int = 0
    before: int = 0


@dataclass(slots=True)
class Beats:
    """Numbers that were committed, each once, and when."""

    _all: list[Beat] = field(default_factory=list)

    def add(self, beat: Beat) -> None:
        self._all.append(beat)

    def by(self, moment: float) -> Beat:
        """Return the newest whose commit was answered by then."""
        known = bisect_right(self._all, moment, key=lambda beat: beat.at)
        return self._all[known - 1] if known else Beat(0.0, 0)

    def within(self, commit: int) -> Beat:
        """Return the newest that certainly lies before a position in the journal."""
        known = bisect_right(self._all, commit, key=lambda beat: beat.before)
        return self._all[known - 1] if known else Beat(0.0, 0)


class Writer:
    """Counts in a table: each number is committed once, until it is told to stop."""

    def __init__(self) -> None:
        self.beats = Beats()
        self.number = 0
        self.over = threading.Event()
        self._thread = threading.Thread(target=self._work, name="beats")

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self.over.set()
        self._thread.join()

    def _work(self) -> None:
        while not self.over.is_set():
            with suppress(psycopg.Error, sqlite3.Error):
                self.count()
            # Whether the last was committed is not known.
            self.over.wait(BEAT_SECONDS)

    def count(self) -> None:
        """Count in one session, until it ends."""
        raise NotImplementedError


class ServerWriter(Writer):
    """Counts in the table `beats` of a server."""

    def __init__(self, dsn: str) -> None:
        super().__init__()
        self._dsn = dsn

    def count(self) -> None:
        end = "(pg_current_wal_insert_lsn() - '0/0')::int8"
        counted = f"update beats set n = %s where id = 1 returning {end}"
        with psycopg.connect(self._dsn, autocommit=True, connect_timeout=5) as connection:
            while not self.over.wait(BEAT_SECONDS):
                self.number += 1
                [(after,)] = connection.execute(counted.encode(), [self.number]).fetchall()
                at = time.time()
                [(before,)] = connection.execute(f"select {end}".encode()).fetchall()
                self.beats.add(Beat(at, self.number, after, before))


class FileWriter(Writer):
    """Counts in the table `marks` of a file of SQLite, which may be replaced meanwhile."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self.turn = threading.Lock()
        with closing(sqlite3.connect(path)) as database, database:
            database.execute("create table marks (id integer primary key, n integer)")
            database.execute("insert into marks values (1, 0)")

    def count(self) -> None:
        while not self.over.wait(BEAT_SECONDS):
            with self.turn, closing(sqlite3.connect(self.path, timeout=0.2)) as database:
                self.number += 1
                with database:
                    database.execute("update marks set n = ? where id = 1", [self.number])
                self.beats.add(Beat(time.time(), self.number))


class Examiner:
    """What the engine said, read as it is written."""

    def __init__(self, path: Path, beats: Mapping[str, Beats], contents: Contents) -> None:
        self.looks = 0
        self.last: dict[str, Any] | None = None
        self.false_greens: list[str] = []
        self._path = path
        self._beats = beats
        self._contents = contents
        self._read = 0
        self._positions: dict[tuple[int, str], str] = {}
        self._unsent: list[float] = []

    def unsent(self, at: float) -> None:
        """Note that the source may not have sent something that was committed about then."""
        self._unsent.append(at)

    def hear(self) -> dict[str, Any] | None:
        """Examine what was said since the last call, and return the last of it."""
        last = None
        for last in self._new():
            self.looks += 1
            self.examine(last)
            self.last = last
        return last

    def _new(self) -> Iterator[dict[str, Any]]:
        if not self._path.exists():
            return
        with self._path.open() as file:
            file.seek(self._read)
            while (line := file.readline()).endswith("\n"):
                self._read = file.tell()
                with suppress(json.JSONDecodeError):  # half a line, of an engine that was killed
                    yield json.loads(line)

    def examine(self, said: Mapping[str, Any]) -> None:
        """Compare one look with what is known."""
        at = said["at"]

        def note(wrong: str) -> None:
            pipelines = {
                name: {key: value for key, value in each.items() if key != "contents"}
                for name, each in said["pipelines"].items()
            }
            looked = json.dumps({**said, "pipelines": pipelines})
            self.false_greens.append(f"{at:.2f}: {wrong} ({looked})")

        for name, pipeline in said["pipelines"].items():
            self._pipeline(name, at, said["pid"], pipeline, note)
        source = said["sources"].get("shop")
        if source is not None and source["end"] is not None:
            self._source(at, source, note)

    def _pipeline(
        self, name: str, at: float, pid: int, said: Mapping[str, Any], note: Callable[[str], None]
    ) -> None:
        beats, shown = self._beats[name], said["beat"]
        promised = beats.by(at - PROMISE_SECONDS - SLACK_SECONDS)
        if said["ready"] and shown < promised.number:
            note(f"{name} is ready with beat {shown} and lacks {promised}")
        if said["ready"] and (wrong := self._contents.wrong(said["contents"], at)):
            note(f"{name} is ready with old rows of {wrong}")
        if said["state"] == "streaming" and not said["ready"]:
            note(f"{name} is streaming and not ready")
        if (lag := said["lag_seconds"]) is not None:
            behind = beats.by(at - lag - PROMISE_SECONDS - SLACK_SECONDS)
            if shown < behind.number:
                note(f"{name} is said to be {lag:.1f} s behind with beat {shown}, lacks {behind}")
        if said["own_state"] != "live":
            return
        if name == ASIDE:
            return
        position = said["position"]
        # What is in memory is built again by each engine.
        whose = (0 if name == FILE else pid, name)
        if position < (before := self._positions.get(whose, "")):
            note(f"{name} fell from {before} to {position}")
        self._positions[whose] = position
        commit = Position.parse(position).commit
        told = not any(abs(at - each) < 2 * LATEST_SECONDS for each in self._unsent)
        if told and shown < (inside := beats.within(commit)).number:
            note(f"{name} is said to be at {position} with beat {shown}, and lacks {inside}")
        if said["ready"] and commit < promised.after:
            note(f"{name} is ready at {position}, before {promised}")

    def _source(self, at: float, said: Mapping[str, Any], note: Callable[[str], None]) -> None:
        beats, end = self._beats[MEMORY], Position.parse(said["end"]).commit

        def missing(what: str, seconds: float) -> None:
            wanted = beats.by(at - seconds)
            if end < wanted.after:
                note(f"{what} = {said[what]}, and the log ends at {end}, without {wanted}")

        if (current := said["current_seconds"]) is not None:
            missing("current_seconds", current)
        # They are about what was read, which is in the log a little later: not while it catches up.
        if said["state"] != "streaming" or said.get("reason"):
            return
        if (lag := said["lag_seconds"]) is not None:
            missing("lag_seconds", lag + PROMISE_SECONDS + SLACK_SECONDS)
        if said["lag_bytes"] == 0:
            missing("lag_bytes", PROMISE_SECONDS + SLACK_SECONDS)
