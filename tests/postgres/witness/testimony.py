"""What was committed, when, and what a status may say in the light of it."""

from __future__ import annotations

import json
import threading
import time
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zlib import crc32

import psycopg

from headrace.capture.postgres.server.ddl_watch import WATCH_SECONDS

PROMISE_SECONDS = 5.0
"""The promise that is tested: shorter than the product's, so that a round has many chances."""

BEAT_SECONDS = 0.05
SLACK_SECONDS = 0.5
"""Between the look at the status and that at the rows, and between a commit and its answer."""

PIPELINES = ("memory", "file")
STILL = ("moods", "left_hand", "right_hand")
"""Tables that change by faults alone, so that it is known at any time what is in them."""


def digest(rows: Iterable[Mapping[str, object]]) -> int:
    """Return a number for what a table has, whatever the order of its rows."""
    return crc32("\n".join(sorted(json.dumps(dict(r), sort_keys=True) for r in rows)).encode())


@dataclass(frozen=True, slots=True)
class Version:
    """What a table had from some moment between two times on."""

    began: float
    ended: float
    digest: int


class Contents:
    """What was in the tables that only faults change, from when on."""

    def __init__(self) -> None:
        self._versions: dict[str, list[Version]] = {name: [] for name in STILL}

    def changed(self, table: str, began: float, rows: Iterable[Mapping[str, object]]) -> None:
        """Note what a table has now, after a change that began then."""
        self._versions[table].append(Version(began, time.time(), digest(rows)))

    def wrong(self, seen: Mapping[str, int], at: float) -> list[str]:
        """Return the tables that were seen with rows that are older than is promised."""
        before = at - PROMISE_SECONDS - WATCH_SECONDS - SLACK_SECONDS
        return [
            table
            for table, versions in self._versions.items()
            if seen.get(table) not in {each.digest for each in _possible(versions, before)}
        ]


def _possible(versions: Sequence[Version], before: float) -> Sequence[Version]:
    """Return the last version of a time, and all later ones."""
    last = bisect_right([each.ended for each in versions], before)
    return versions[max(0, last - 1) :]


class Beats:
    """A writer that counts: each number is committed once, and it is known when."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._committed: list[tuple[float, int]] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work, name="beats")
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        self._thread.join()

    def committed_by(self, moment: float) -> int:
        """Return the newest number whose commit was answered by then."""
        known = bisect_right(self._committed, (moment, 1 << 62))
        return self._committed[known - 1][1] if known else 0

    def _work(self) -> None:
        number = 0
        while not self._over.is_set():
            try:
                with psycopg.connect(self._dsn, autocommit=True, connect_timeout=5) as connection:
                    while not self._over.wait(BEAT_SECONDS):
                        number += 1
                        connection.execute("update beats set n = %s where id = 1", [number])
                        self._committed.append((time.time(), number))
            except psycopg.Error:
                self._over.wait(0.05)  # the server is away; whether it was committed is not known


class Testimony:
    """What the engine said, read as it is written."""

    def __init__(self, path: Path, beats: Beats, contents: Contents) -> None:
        self.looks = 0
        self.false_greens: list[str] = []
        self._path = path
        self._beats = beats
        self._contents = contents
        self._read = 0

    def hear(self) -> dict[str, Any] | None:
        """Examine what was said since the last call, and return the last of it."""
        last = None
        for last in self._new():
            self.looks += 1
            self._examine(last)
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

    def _examine(self, said: dict[str, Any]) -> None:
        wanted = self._beats.committed_by(said["at"] - PROMISE_SECONDS - SLACK_SECONDS)
        for name in PIPELINES:
            if said["ready"][name] and said[name] < wanted:
                self.false_greens.append(
                    f"{name} is ready at {said['at']:.2f} with beat {said[name]}, and {wanted}"
                    f" was committed {PROMISE_SECONDS:.0f} s before ({said})"
                )
        lag, at = said["lag_seconds"], said["at"]
        if said["ready"]["memory"] and (wrong := self._contents.wrong(said["contents"], at)):
            self.false_greens.append(
                f"memory is ready at {at:.2f} with old rows of {wrong} ({said})"
            )
        if said["state"] == "streaming" and lag is not None and all(said["ready"].values()):
            behind = self._beats.committed_by(at - lag - PROMISE_SECONDS - SLACK_SECONDS)
            if max(said[name] for name in PIPELINES) < behind:
                self.false_greens.append(f"a lag of {lag:.1f} s is said, and it is more ({said})")
