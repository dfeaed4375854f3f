"""One round: writers write, an engine follows through a proxy, and its status is listened to."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from random import Random

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from headrace.capture.postgres.server.ddl_watch import WATCH_SECONDS
from headrace.embedded.postgres import PostgresServer
from tests.postgres.rounds.check import different, effects_wrong, keyed, log_wrong, of_file, truth
from tests.postgres.rounds.nemesis import Nemesis
from tests.postgres.rounds.plan import Act
from tests.postgres.rounds.workload import KEYS, SCHEMA, resolve, writing
from tests.postgres.witness.plan import CHANGES, HOLDS_UP, Blow, Fault, planned
from tests.postgres.witness.report import GREEN, RED
from tests.postgres.witness.testimony import (
    PROMISE_SECONDS,
    STILL,
    Beats,
    Contents,
    Testimony,
)
from tests.rounds import processes
from tests.rounds.killing import end_all
from tests.rounds.line import Line
from tests.rounds.outcome import Outcome, RoundFailed, judge
from tests.rounds.play import played
from tests.rounds.source import connected, journal_end, rows_of
from tests.support.mounting import small_disk
from tests.support.patience import patience, slowness
from tests.support.proxy import Carried, proxy_to

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

for _table in MORE:
    KEYS.setdefault(_table, ("id",))

TABLES = tuple(KEYS)
RED_SECONDS = (PROMISE_SECONDS + 15) * slowness()
"""Within this time what holds everything up must be seen."""

GREEN_SECONDS = patience(180)
DISK = "1500m"
"""Room for what the writers write and what is deleted only after a lease."""


class WatchedRound:
    """A plan at work."""

    def __init__(self, seed: int, server: PostgresServer, folder: Path) -> None:
        self.outcome = Outcome(seed)
        self._seed = seed
        self._server = server
        self._folder = folder
        self._nemesis = Nemesis(server, folder.name)
        self._dice = Random(f"witnessed {seed}")
        self._line: Line | None = None
        self._changes = 0

    def run(self) -> None:
        with connected(self._server.dsn) as connection:
            for statement in (*SCHEMA, *MORE_SCHEMA):
                connection.execute(statement.encode())
        port = int(str(conninfo_to_dict(self._server.dsn)["port"]))
        data = self._folder / "data"
        with small_disk(data, DISK), proxy_to(port) as self._proxy:
            data.chmod(0o700)  # a mount is for everybody
            try:
                self._play()
            except BaseException:
                shutil.copytree(data, self._folder / "data-of-the-failure")
                raise
        judge(effects_wrong(self._folder / "target.db"))

    def _play(self) -> None:
        self._beats = Beats(self._server.dsn)
        self._contents = Contents()
        self._note_contents(time.time())
        self._testimony = Testimony(self._folder / "status.jsonl", self._beats, self._contents)
        try:
            self._start()
            with writing(self._seed, self._server.dsn) as writers:
                self._until_green()
                for blow in planned(self._seed):
                    self._suffer(blow)
                self._listen(PROMISE_SECONDS)
            for writer in writers:
                self.outcome.writes += writer.done
            judge([writer.failure for writer in writers if writer.failure])
            self._settle()
            judge(log_wrong(self._folder))
            assert self._line is not None
            self._line.stop()
            self._line = None
        finally:
            self._beats.stop()
            end_all(self._line, self._folder.name)
            self.outcome.writes["look"] += self._testimony.looks
            self.outcome.writes["false green"] += len(self._testimony.false_greens)
        judge(self._testimony.false_greens)

    def _start(self) -> None:
        dsn = make_conninfo(self._server.dsn, port=self._proxy.port)
        self._line = Line("tests.postgres.witness.child", self._folder, [dsn, "--tables", *TABLES])
        self._line.expect("started")

    # --- listening --------------------------------------------------------------------------

    def _listen(self, seconds: float, until: Callable[[bool], bool] = lambda green: False) -> bool:
        """Hear what is said for so long, or until it is as wanted; return whether it was."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            said = self._testimony.hear()
            if said is not None and until(all(said["ready"].values())):
                return True
            time.sleep(0.05)
        return False

    def _until_green(self) -> None:
        if not self._listen(GREEN_SECONDS, lambda green: green):
            raise RoundFailed(f"not ready within {GREEN_SECONDS:.0f} s: {self._testimony.hear()}")

    # --- faults -----------------------------------------------------------------------------

    def _suffer(self, blow: Blow) -> None:
        self._listen(blow.after)
        began = time.monotonic()
        with self._at_work(blow.fault) as hit:
            red = False
            if hit:
                red = self._listen(blow.lasts, lambda green: not green)
                if blow.fault in HOLDS_UP and not red:
                    red = self._listen(RED_SECONDS, lambda green: not green)
                    if not red:
                        raise RoundFailed(f"{blow.fault}: ready all the time")
            if red:
                RED[blow.fault].append(time.monotonic() - began)
        self.outcome.count(blow.fault, hit=hit)
        ended = time.monotonic()
        self._until_green()
        if hit:
            GREEN[blow.fault].append(time.monotonic() - ended)
        if blow.fault in CHANGES:
            # What is promised is promised for this long after the change, and not before.
            self._listen(PROMISE_SECONDS + WATCH_SECONDS + 1)

    @contextmanager
    def _at_work(self, fault: Fault) -> Iterator[bool]:
        """A fault for as long as the block runs; whether it hit anybody."""
        match fault:
            case Fault.TO_US | Fault.TO_SERVER | Fault.STREAM | Fault.QUERIES | Fault.ALL:
                yield self._silence(fault)
            case Fault.SENDER_SUSPENDED:
                with self._suspended(self._sender()) as hit:
                    yield hit
            case Fault.RECORDER_SUSPENDED:
                found = processes.recorders(self._folder.name)
                with self._suspended(found[0] if found else None) as hit:
                    yield hit
            case Fault.RECORDER_KILLED:
                yield self._nemesis.act(Act.RECORDER)
            case Fault.SERVER_KILLED:
                yield self._nemesis.act(Act.SERVER_KILLED)
            case Fault.SERVER_STOPPED:
                yield self._nemesis.act(Act.SERVER_STOPPED)
            case Fault.ENGINE_KILLED:
                assert self._line is not None
                self._line.kill()
                self._start()
                yield True
            case Fault.DISK_FULL:
                with self._full_disk():
                    yield True
            case _:
                yield self._changed(fault)

    def _silence(self, fault: Fault) -> bool:
        def every(each: Carried) -> bool:
            return True

        def queries(each: Carried) -> bool:
            return not each.replicates

        ways = {
            Fault.TO_US: ("to_client",),
            Fault.TO_SERVER: ("to_server",),
        }.get(fault, ("to_client", "to_server"))
        who = {Fault.ALL: every, Fault.QUERIES: queries}.get(fault)
        lost = self._proxy.lose(*ways) if who is None else self._proxy.lose(*ways, of=who)
        return lost > 0

    def _sender(self) -> int | None:
        with connected(self._server.dsn) as connection:
            row = connection.execute(
                "select active_pid from pg_replication_slots where active_pid is not null"
            ).fetchone()
        return None if row is None else int(row[0])

    @contextmanager
    def _suspended(self, pid: int | None) -> Iterator[bool]:
        if pid is None:
            yield False
            return
        os.kill(pid, signal.SIGSTOP)
        try:
            yield True
        finally:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    @contextmanager
    def _full_disk(self) -> Iterator[None]:
        filler = self._folder / "data" / "filler"
        with suppress(OSError), filler.open("wb") as file:
            while True:
                file.write(b"x" * (1 << 16))
                file.flush()
        try:
            yield
        finally:
            filler.unlink()

    def _note_contents(self, began: float) -> None:
        with connected(self._server.dsn) as connection:
            for table in STILL:
                self._contents.changed(table, began, rows_of(connection, table))

    def _changed(self, fault: Fault) -> bool:
        """Change the catalog, and put it back where that is part of the fault."""
        self._changes += 1
        began = time.time()
        with connected(self._server.dsn) as connection:
            if fault == Fault.SLOT_DROPPED:
                return self._nemesis.act(Act.SLOT_DROPPED)
            for statement in self._statements(fault, connection):
                # A writer may hold a table for a moment.
                for _ in range(50):
                    try:
                        connection.execute(statement.encode())
                        break
                    except psycopg.errors.LockNotAvailable:
                        time.sleep(0.05)
        self._note_contents(began)
        return True

    def _statements(self, fault: Fault, connection: psycopg.Connection[object]) -> list[str]:
        number = self._changes
        row = connection.execute("select pubname from pg_publication").fetchone()
        name = "" if row is None else f'"{row[0]}"'  # type: ignore[index]
        everything = "insert, update, delete, truncate"
        return {
            Fault.TABLE_LEFT_OUT: [
                f"alter publication {name} drop table moods",
                "update moods set mood = 'bad' where id <= 10",
                f"alter publication {name} add table moods",
            ],
            Fault.INSERTS_ONLY: [
                f"alter publication {name} set (publish = 'insert')",
                "update moods set mood = 'good' where id > 40",
                f"alter publication {name} set (publish = '{everything}')",
            ],
            Fault.TABLES_SWAPPED: [
                "begin; alter table left_hand rename to aside; alter table right_hand rename to"
                " left_hand; alter table aside rename to right_hand; commit",
                f"update left_hand set v = 'changed {number}' where id <= 5",
            ],
            Fault.LABEL_RENAMED: [
                "do $$ begin if exists (select from pg_enum where enumlabel = 'good') then alter"
                " type mood rename value 'good' to 'fine'; alter type mood rename value 'fine' to"
                f" 'good'; end if; end $$; alter type mood add value 'm{number}';",
                f"update moods set mood = 'm{number}' where id between 20 and 30",
                f"alter type mood rename value 'm{number}' to 'n{number}'",
            ],
            Fault.COLUMN_ADDED: [
                f"alter table left_hand add column c{number} int default {number}",
                "update left_hand set v = v || '.' where id = 1",
            ],
            Fault.PARTITION_GONE: ["truncate events_1"],
        }[fault]

    # --- the check --------------------------------------------------------------------------

    def _settle(self) -> None:
        """Let everything come to rest, and compare."""
        assert self._line is not None
        self._beats.stop()
        with connected(self._server.dsn) as connection:
            resolve(connection, self._dice)
            with connection.transaction():
                for table in MORE:
                    connection.execute(f"update {table} set id = id".encode())
                lsn = journal_end(connection)
            self._line.ask(f"settle {lsn}", "settled")
            in_memory = json.loads(self._line.ask("rows", "rows"))
            found = []
            for table in TABLES:
                wanted = truth(connection, table)
                there = of_file(self._folder / "target.db", table)
                found.append(different(table, "file", wanted, there))
                found.append(different(table, "memory", wanted, keyed(table, in_memory[table])))
        self._testimony.hear()
        judge([what for what in found if what])


def play(seed: int) -> Outcome:
    """Play one round and return what came of it."""
    return played("headrace-witness", SETTINGS, partial(WatchedRound, seed))
