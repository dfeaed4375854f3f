"""One round: writers write, an engine follows through a proxy, and its status is listened to."""

from __future__ import annotations

import json
import shutil
import sqlite3
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from psycopg.conninfo import conninfo_to_dict, make_conninfo

from headrace.capture.postgres.server.ddl_watch import WATCH_SECONDS
from headrace.embedded.postgres import PostgresServer
from tests.postgres.catalog_sequences import TABLES as DRAWN_TABLES
from tests.postgres.rounds.check import different, effects_wrong, keyed, log_wrong, of_file, truth
from tests.postgres.rounds.workload import KEYS, SCHEMA, resolve, writing
from tests.postgres.witness.catalog import Catalog
from tests.postgres.witness.faults import Faults
from tests.postgres.witness.plan import HOLDS_UP, UNSENT, Blow, planned
from tests.postgres.witness.report import GREEN, RED
from tests.postgres.witness.testimony import (
    ASIDE,
    FILE,
    MEMORY,
    PROMISE_SECONDS,
    STILL,
    Contents,
    Examiner,
    FileWriter,
    ServerWriter,
    digests,
)
from tests.rounds.killing import end_all
from tests.rounds.line import Line
from tests.rounds.outcome import Outcome, RoundFailed, judge
from tests.rounds.play import played
from tests.rounds.source import connected, journal_end, rows_of
from tests.support.mounting import small_disk
from tests.support.patience import patience, slowness
from tests.support.proxy import proxy_to

SETTINGS = {
    "max_prepared_transactions": "20",
    "logical_decoding_work_mem": "64kB",
    "wal_sender_timeout": "6s",
    "deadlock_timeout": "200ms",
    "log_min_messages": "warning",
}
MORE_SCHEMA = (
    "create table beats (id int primary key, n bigint)",
    "insert into beats values (1, 0)",
    "create type mood as enum ('good', 'bad')",
    "create table moods (id int primary key, mood mood)",
    "insert into moods select n, case n % 2 when 0 then 'good' else 'bad' end::mood"
    " from generate_series(1, 50) n",
    "create table left_hand (id int primary key, v text)",
    "create table right_hand (id int primary key, v text)",
    "insert into left_hand select n, 'left' from generate_series(1, 20) n",
    "insert into right_hand select n, 'right' from generate_series(1, 20) n",
)
MORE = ("beats", "moods", "left_hand", "right_hand")
"""Tables of this round, all with the key `id`."""

OTHERS = (*KEYS, *MORE)
TABLES = (*OTHERS, *DRAWN_TABLES)
RED_SECONDS = (PROMISE_SECONDS + WATCH_SECONDS + 15) * slowness()
"""Within this time what holds everything up must be seen."""

GREEN_SECONDS = patience(180)
RESTARTS = 3
"""So often an engine that gave up is started again, once what it refuses is undone."""

FAILED_SECONDS = 12.0 * slowness()
"""Who has been failed for so long does not try again."""

WRITERS = 2
"""Fewer than in the other rounds: it is the status that is examined, and it is to turn green."""

DISK, LOG_DISK = "700m", "900m"
"""Room for what the writers write and what is deleted only after a lease."""


class WatchedRound:
    """A plan at work."""

    def __init__(
        self,
        seed: int,
        blows: Sequence[Blow],
        writers: int,
        spark: bool,
        server: PostgresServer,
        folder: Path,
    ) -> None:
        self.outcome = Outcome(seed)
        self.line: Line | None = None
        self._seed = seed
        self._blows = blows
        self._writers = writers
        self._spark = spark
        self._server = server
        self._folder = folder
        self._dice = Random(f"witnessed {seed}")

    def run(self) -> None:
        with connected(self._server.dsn) as connection:
            for statement in (*SCHEMA, *MORE_SCHEMA):
                connection.execute(statement.encode())
        port = int(str(conninfo_to_dict(self._server.dsn)["port"]))
        data = self._folder / "data"
        with (
            small_disk(data, DISK),
            small_disk(data / "log", LOG_DISK),
            proxy_to(port) as self._proxy,
        ):
            data.chmod(0o700)  # a mount is for everybody
            (data / "log").chmod(0o700)
            try:
                self._play()
            except BaseException:
                self._tell_of_catalog()
                shutil.copytree(data, self._folder / "data-of-the-failure")
                raise
        judge(effects_wrong(self._folder / "target.db"))

    def _play(self) -> None:
        if self._spark:
            (self._folder / "spark").touch()
        ours = self._dice.random() < 0.5
        if not ours:
            (self._folder / "published").touch()
        self._catalog = Catalog(self._server, self._seed, OTHERS, ours=ours)
        self._contents = Contents()
        self._catalog.wrote = self._note_contents
        self._note_contents()
        self._server_writer = ServerWriter(self._server.dsn)
        self._file_writer = FileWriter(self._folder / "aside.db")
        counting = (self._server_writer, self._file_writer)
        beats = {
            FILE: self._server_writer.beats,
            MEMORY: self._server_writer.beats,
            ASIDE: self._file_writer.beats,
        }
        self._testimony = Examiner(self._folder / "status.jsonl", beats, self._contents)
        self._faults = Faults(
            self,
            self._server,
            self._proxy,
            self._folder,
            self._catalog,
            self._file_writer,
            self._seed,
        )
        for writer in counting:
            writer.start()
        try:
            self.start()
            with writing(self._seed, self._server.dsn, self._writers) as writers:
                self._until_green()
                for blow in self._blows:
                    self._suffer(blow)
                self._listen(PROMISE_SECONDS)
            for each in writers:
                self.outcome.writes += each.done
            judge([each.failure for each in writers if each.failure])
            for writer in counting:
                writer.stop()
            self._settle()
            judge(log_wrong(self._folder))
            assert self.line is not None
            self.line.stop()
            self.line = None
        finally:
            for writer in counting:
                writer.stop()
            self._catalog.close()
            end_all(self.line, self._folder.name)
            self.outcome.writes["look"] += self._testimony.looks
            self.outcome.writes["false green"] += len(self._testimony.false_greens)
            self.outcome.writes["beat"] += self._server_writer.number + self._file_writer.number
        # One of each kind says enough: the others are in the folder.
        kinds = {each.partition(": ")[2][:25]: each for each in self._testimony.false_greens}
        judge(list(kinds.values()))

    def start(self, armed: str | None = None) -> None:
        dsn = make_conninfo(self._server.dsn, port=self._proxy.port)
        arguments = [dsn, "--tables", *TABLES, *["--shared"] * bool(armed)]
        for last in (False, True):
            self.line = Line("tests.postgres.witness.child", self._folder, arguments, armed=armed)
            try:
                self.line.expect("started")
            except RoundFailed:
                # Where it dies at the armed point, or refuses what the catalog has now.
                if self.line.struck:
                    return
                if last or not self._catalog.wounded:
                    raise
                self._catalog.heal()
            else:
                return

    # --- listening --------------------------------------------------------------------------

    def _listen(
        self, seconds: float, until: Callable[[dict[str, Any]], bool] = lambda said: False
    ) -> bool:
        """Hear what is said for so long, or until it is as wanted; return whether it was."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            said = self._testimony.hear()
            if said is not None and until(said):
                return True
            time.sleep(0.05)
        return False

    def _until_green(self) -> None:
        """Listen until all is ready; what the engine gave up on is undone first."""
        end = time.monotonic() + GREEN_SECONDS
        if self._catalog.wounded:
            self._catalog.heal()
        for _ in range(RESTARTS):
            since = time.monotonic()

            def settled(said: dict[str, Any]) -> bool:
                nonlocal since
                if not _failed(said):
                    since = time.monotonic()
                return _green(said) or time.monotonic() - since > FAILED_SECONDS

            if not self._listen(end - time.monotonic(), settled):
                break
            if time.monotonic() - since <= FAILED_SECONDS:
                return
            self._restart()
        raise RoundFailed(f"not ready within {GREEN_SECONDS:.0f} s: {self._testimony.last}")

    def _restart(self) -> None:
        """Start again what gave up, and keep why."""
        self.outcome.writes["started again"] += 1
        with (self._folder / "gave-up.txt").open("a") as told:
            told.write(f"{json.dumps(self._testimony.last)}\n")
        assert self.line is not None
        self.line.stop()
        self.start()

    def _suffer(self, blow: Blow) -> None:
        self._listen(blow.after)
        began = time.monotonic()
        if blow.kind in UNSENT:
            self._testimony.unsent(time.time())
        with self._faults.at_work(blow.kind) as found:
            red = bool(found) and self._listen(blow.lasts, _red)
            if found and blow.kind in HOLDS_UP and not red:
                red = self._listen(RED_SECONDS, _red)
                if not red:
                    raise RoundFailed(f"{found}: ready all the time")
            seen = time.monotonic() - began
        ended = time.monotonic()
        if not red and self._listen(1.0, _red):
            red, seen = True, time.monotonic() - began
        self._until_green()
        self._listen(0.5)
        for name in found or [blow.kind]:
            self.outcome.count(name, hit=bool(found))
            if found and red:
                RED[name].append(seen)
                GREEN[name].append(time.monotonic() - ended)

    # --- the truth --------------------------------------------------------------------------

    def _note_contents(self) -> None:
        """Note what the tables have that only faults change; a server may be coming back."""
        began = time.time()
        still = [name for name in STILL if name not in DRAWN_TABLES]
        with connected(self._server.dsn) as connection:
            for table in still:
                self._contents.changed(table, began, digests(rows_of(connection, table)))
        for table, found in self._catalog.contents():
            self._contents.changed(table, began, found)

    def _tell_of_catalog(self) -> None:
        """Keep what was done to the catalog, and when the tables had what."""
        versions = [
            f"{each.began:.2f} to {each.ended:.2f} {table} {sorted(each.rows or ())}"
            for table, versions in self._contents.versions.items()
            for each in versions
        ]
        told = [*self._catalog.said, *versions, *self._testimony.false_greens]
        (self._folder / "catalog.txt").write_text("\n".join(told) + "\n")

    def _settle(self) -> None:
        """Let everything come to rest, and compare."""
        assert self.line is not None
        with connected(self._server.dsn) as connection:
            resolve(connection, self._dice)
            with connection.transaction():
                for table in MORE:
                    connection.execute(f"update {table} set id = id".encode())
                lsn = journal_end(connection)
            self.line.ask(f"settle {lsn}", "settled")
            in_memory = json.loads(self.line.ask("rows", "rows"))
            found = []
            for table in OTHERS:
                wanted = truth(connection, table)
                there = of_file(self._folder / "target.db", table)
                found.append(different(table, "file", wanted, there))
                found.append(different(table, "memory", wanted, keyed(table, in_memory[table])))
        in_file = _bodies(self._folder / "target.db")
        for table, right in self._catalog.contents():
            for target, rows in (("file", in_file), ("memory", in_memory)):
                if right is None or sorted(digests(rows.get(table, ()))) != sorted(right):
                    found.append(f"{table} in {target} differs")
        self._testimony.hear()
        judge([what for what in found if what])


def _bodies(path: Path) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    with closing(sqlite3.connect(path)) as database:
        for name, body in database.execute("select name, body from rows"):
            found.setdefault(name, []).append(json.loads(body))
    return found


def _green(said: dict[str, Any]) -> bool:
    return len(said["pipelines"]) == 3 and all(
        each["ready"] and each["own_state"] == "live" for each in said["pipelines"].values()
    )


def _red(said: dict[str, Any]) -> bool:
    return not all(each["ready"] for each in said["pipelines"].values())


def _failed(said: dict[str, Any]) -> bool:
    states = [each["state"] for each in (*said["pipelines"].values(), *said["sources"].values())]
    return "failed" in states


def play(
    seed: int,
    blows: Sequence[Blow] | None = None,
    *,
    writers: int = WRITERS,
    spark: bool = False,
) -> Outcome:
    """Play one round and return what came of it."""
    given = planned(seed, spark=spark) if blows is None else blows
    return played("headrace-witness", SETTINGS, partial(WatchedRound, seed, given, writers, spark))
