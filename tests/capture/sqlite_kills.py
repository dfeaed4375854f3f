"""
A round of kills: readers, writers, teardowns and ephemeral readers, each killed at any statement.

Runs in a process of its own, which forks one for every run and every writer, so that each costs
milliseconds. A process dies right before the statement with a number from the seed, which covers
every point between two statements of a bootstrap, an acknowledgement, the pruning and a removal.
Writers die within a transaction.

`python -m tests.capture.sqlite_kills FOLDER SEED` prints `{}`, or what was wrong.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sqlite3
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from headrace.capture.sqlite import Batch, Capture, Interval, capture_log
from headrace.capture.sqlite import database as database_module
from headrace.capture.sqlite.library import run as run_module

READERS = ("one", "two")
RUNS = 14
WRITERS = 6
LOCK_SECONDS = 30.0


class Round:
    """One database, with what was delivered from it to each reader."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.path = folder / "shop.db"
        self.folder = folder
        self.chance = random.Random(seed)
        self.kills = 0
        self.writers: list[int] = []
        self.runs: dict[int, str] = {}

    def play(self) -> dict[str, Any]:
        """Play it, and return what was wrong."""
        self._fork(self._begin)
        for _ in range(RUNS):
            for reader in READERS:
                if reader not in self.runs.values():
                    self._start(reader)
            while len(self.writers) < 2 and self.chance.random() < 0.8:
                self.writers.append(self._child(self._writer(self.chance.randrange(2**32))))
            self._await_run()
        while self.runs:
            self._await_run()
        for writer in self.writers:
            self._ended(os.waitpid(writer, 0)[1])
        wrong = {}
        for reader in READERS:
            self._fork(lambda: self._last_run(reader))  # noqa: B023 - it runs at once
            if found := self._judge(reader):
                wrong[reader] = found
        return wrong | self._tear_down()

    # -- processes --------------------------------------------------------------------------

    def _child(self, work: Callable[[], object]) -> int:
        if pid := os.fork():
            return pid
        code = 1
        try:
            work()
            code = 0
        except BaseException as error:  # noqa: BLE001 - shown by its parent
            print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        os._exit(code)

    def _fork(self, work: Callable[[], object]) -> None:
        """Do work in a process of its own; it has to end well."""
        self._ended(os.waitpid(self._child(work), 0)[1])

    def _ended(self, status: int) -> None:
        if os.WIFSIGNALED(status):
            assert os.WTERMSIG(status) == signal.SIGKILL
            self.kills += 1
        elif os.WEXITSTATUS(status):
            raise SystemExit("a process failed")

    def _await_run(self) -> None:
        while True:
            pid, status = os.wait()
            self._ended(status)
            if pid in self.writers:
                self.writers.remove(pid)
            else:
                del self.runs[pid]
                return

    # -- what they do -----------------------------------------------------------------------

    def _app(self) -> sqlite3.Connection:
        app = sqlite3.connect(self.path, isolation_level=None, timeout=LOCK_SECONDS)
        app.execute("pragma synchronous = off")
        return app

    def _begin(self) -> None:
        app = self._app()
        app.execute("pragma journal_mode = wal")
        app.execute("create table t (id integer primary key, v)")
        app.execute("create table u (a, b, v, primary key (a, b)) without rowid")
        app.executemany("insert into t values (?, 0)", [(at,) for at in range(60)])
        app.executemany("insert into u values (?, 'x', 0)", [(at,) for at in range(20)])
        app.close()
        for reader in READERS:
            Capture(self.path, ["t", "u"], print, reader=reader).setup()

    def _writer(self, seed: int) -> Callable[[], None]:
        def write() -> None:
            chance = random.Random(seed)
            app = self._app()
            last = chance.randrange(8, 25)
            for number in range(last + 1):
                app.execute("begin immediate")
                for _ in range(chance.randrange(1, 5)):
                    key = chance.randrange(80)
                    match chance.randrange(4):
                        case 0:
                            app.execute("insert or replace into t values (?, ?)", (key, seed))
                        case 1:
                            app.execute("update t set v = v + 1 where id = ?", (key,))
                        case 2:
                            app.execute("delete from t where id = ?", (key,))
                        case _:
                            values = (key % 30, "x", number)
                            app.execute("insert or replace into u values (?, ?, ?)", values)
                if number == last and chance.random() < 0.7:
                    os.kill(os.getpid(), signal.SIGKILL)
                app.execute("commit")

        return write

    def _start(self, reader: str) -> None:
        # Most die early, in the bootstrap, and some when they follow.
        at = int(self.chance.choice([40, 120, 400]) * self.chance.random()) + 1
        resume = self.chance.random() < 0.8
        self.runs[self._child(lambda: self._run(reader, at, resume=resume))] = reader

    def _run(self, reader: str, at: int, *, resume: bool) -> None:
        kill_at(at)
        self._capture(reader, self._writes(reader)).bootstrap_and_cdc(resume=resume)

    def _last_run(self, reader: str) -> None:
        """Read to the end: until a change comes that was made after everything else."""
        write = self._writes(reader)
        over = threading.Event()

        def mark() -> None:
            # Again and again: those made before a bootstrap begins are among its rows.
            app = self._app()
            app.execute("insert or ignore into t values (-1, 0)")
            while not over.wait(0.01):
                app.execute("update t set v = v + 1 where id = -1")
            app.close()

        def handle(batch: Batch) -> None:
            write(batch)
            if any(each.before and each.before.get("id") == -1 for each in batch):
                over.set()
                capture.close()

        capture = self._capture(reader, handle)
        marks = threading.Thread(target=mark)
        marks.start()
        try:
            capture.bootstrap_and_cdc(resume=True)
        finally:
            over.set()
            marks.join()

    def _capture(self, reader: str, handler: Callable[[Batch], object]) -> Capture:
        return Capture(self.path, None, handler, reader=reader, batch_size=7, wake=Interval(0.001))

    def _writes(self, reader: str) -> Callable[[Batch], None]:
        file = os.open(self.folder / f"{reader}.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

        def write(batch: Batch) -> None:
            # In one call, so that it is there as a whole when the process dies.
            os.write(file, batch.json_lines(envelope=True))

        return write

    # -- what must be true ------------------------------------------------------------------

    def _judge(self, reader: str) -> str:
        """Return what is wrong with what a reader was given."""
        state: dict[str, dict[str, object]] = {"t": {}, "u": {}}
        begun: dict[str, int] = {}
        numbers: set[int] = set()
        with (self.folder / f"{reader}.jsonl").open() as lines:
            for line in lines:
                record = json.loads(line)
                table = state[record["table"]]
                number = int(record["position"].partition("/")[2])
                match record["operation"]:
                    case "BOOTSTRAP":
                        table.clear()
                        begun[record["table"]] = number
                    case "BOOTSTRAP_END":
                        pass
                    case _ if record["bootstrap"] and number != begun.get(record["table"]):
                        return f"a row of another bootstrap of {record['table']}"
                    case _:
                        if not record["bootstrap"]:
                            numbers.add(number)
                        if record["before"] is not None:
                            table.pop(_key(record["table"], record["before"]), None)
                        if record["after"] is not None:
                            table[_key(record["table"], record["after"])] = record["after"]["v"]
        app = self._app()
        state["t"].pop("-1", None)
        for name in state:
            rows = app.execute(f"select * from {name} where {'id' if name == 't' else 'a'} >= 0")
            there = {
                _key(name, dict(zip("abv" if name == "u" else ("id", "v"), row, strict=True))): row[
                    -1
                ]
                for row in rows
            }
            if state[name] != there:
                odd = {
                    key
                    for key in {*state[name], *there}
                    if state[name].get(key, ()) != there.get(key, ())
                }
                return f"{name} differs at {sorted(odd)[:5]}"
        app.close()
        later = {number for number in numbers if number > max(begun.values())}
        missing = set(range(max(begun.values()) + 1, max(later, default=0) + 1)) - later
        return f"changes were not delivered: {sorted(missing)[:5]}" if missing else ""

    def _tear_down(self) -> dict[str, str]:
        """Tear both readers down, killed ever later; the application can always write."""
        for reader in READERS:
            at = 0
            before = -1
            while before != self.kills:
                before = self.kills
                at += self.chance.randrange(1, 6)
                self._fork(lambda: self._teardown(reader, at))  # noqa: B023 - it runs at once
                app = self._app()
                app.execute("insert or replace into t values (1, ?)", (at,))
                app.execute("delete from u where a = 1")
                app.close()
        self._ephemeral_runs()
        app = self._app()
        left = app.execute(
            "select name from sqlite_master where name glob '__headrace*'"
        ).fetchall()
        (sound,) = app.execute("pragma integrity_check").fetchone()
        app.close()
        files = [file.name for file in self.folder.glob("*.lock")]
        wrong = {"left": str(left)} if left else {}
        wrong |= {"files": str(files)} if files else {}
        return wrong | ({"integrity": sound} if sound != "ok" else {})

    def _ephemeral_runs(self) -> None:
        """Kill ephemeral readers ever later; the one that is left alone removes everything."""
        at = 0
        before = -1
        while before != self.kills:
            before = self.kills
            at += self.chance.randrange(1, 9)
            self._fork(lambda: self._ephemeral_run(at))  # noqa: B023 - it runs at once
            app = self._app()
            app.execute("insert or replace into t values (2, ?)", (at,))
            app.close()

    def _ephemeral_run(self, at: int) -> None:
        kill_at(at)
        capture = Capture(self.path, ["t"], lambda batch: capture.close(), ephemeral=True)
        capture.bootstrap_and_cdc()

    def _teardown(self, reader: str, at: int) -> None:
        kill_at(at)
        Capture(self.path, None, print, reader=reader).teardown()


def _key(table: str, row: dict[str, Any]) -> str:
    return str(row["id"]) if table == "t" else f"{row['a']} {row['b']}"


def kill_at(at: int) -> None:
    """Let this process die right before its statement with this number."""
    count = 0
    connect = database_module.connect

    def look(statement: str) -> None:
        nonlocal count
        count += 1
        if count == at:
            os.kill(os.getpid(), signal.SIGKILL)

    def watched(path: str, timeout: float = LOCK_SECONDS) -> sqlite3.Connection:
        connection = connect(path, timeout)
        connection.set_trace_callback(look)
        return connection

    database_module.connect = watched
    vars(run_module)["connect"] = watched


def main() -> None:
    """Play the round of a seed."""
    # All at once: what waits for its turn would never be reached.
    run_module.COPY_POINT_SECONDS = run_module.LIMIT_SECONDS = 0.0
    capture_log.REST_SECONDS = capture_log.STEP_SECONDS = capture_log.LONGEST_REST_SECONDS = 0.0
    from headrace.capture.sqlite import copy

    copy.CHUNK_ROWS = 11
    played = Round(Path(sys.argv[1]), int(sys.argv[2]))
    wrong = played.play()
    print(json.dumps({"wrong": wrong, "kills": played.kills}))


if __name__ == "__main__":
    main()
