"""
Set-up, upgrade, new triggers, an alteration and pruning, each killed at any statement.

Each is tried again and again, and dies right before a later statement each time, until it ends by
itself. In between the application writes, which must always succeed. In the end the changes make
the table, or it is still known that changes are missing.

`python -m tests.capture.sqlite_step_kills FOLDER SEED` prints how often each was killed, and what
was wrong.
"""

from __future__ import annotations

import json
import os
import random
import sqlite3
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

from headrace.capture.sqlite import Batch, Capture, alter, capture_log
from headrace.errors import SchemaChanged
from tests.capture.sqlite_kills import LOCK_SECONDS, kill_at

FORMAT_1 = Path(__file__).with_name("sqlite_format_1.sql")

MARK = -1
"""The row that is written last."""

Rows = dict[object, dict[str, object]]


def connect(path: Path) -> sqlite3.Connection:
    """Return a connection of the application."""
    app = sqlite3.connect(path, isolation_level=None, timeout=LOCK_SECONDS)
    app.execute("pragma journal_mode = wal")
    app.execute("pragma synchronous = off")
    return app


def create(path: Path, *statements: str) -> None:
    """Create a table that needs every kind of trigger, and one without a key."""
    with closing(connect(path)) as app:
        app.execute("create table t (id integer primary key, v unique)")
        app.execute("create table u (v)")
        for statement in statements:
            app.execute(statement)


def set_up(path: Path, reader: str = "default") -> None:
    """Set all tables up for a reader."""
    Capture(path, None, print, reader=reader).setup()


def rows_of(path: Path) -> Rows:
    """Return the rows of the table."""
    with closing(connect(path)) as app:
        app.row_factory = sqlite3.Row
        return {row["id"]: dict(row) for row in app.execute("select * from t where id <> -1")}


def read(path: Path, rows: Rows, reader: str = "default") -> Rows:
    """Apply all changes to `rows`."""
    with closing(connect(path)) as app:
        app.execute("insert into t (id) values (?)", (MARK,))

    def handle(batch: Batch) -> None:
        for record in batch:
            if record.table == "t" and record.before:
                rows.pop(record.before["id"], None)
            if record.table == "t" and record.after:
                rows[record.after["id"]] = dict(record.after)
        if MARK in rows:
            capture.close()

    capture = Capture(path, None, handle, reader=reader)
    capture.cdc()
    del rows[MARK]
    return rows


class Step:
    """Something that is killed: what precedes it, and what must be true afterwards."""

    def begin(self, path: Path) -> None:
        create(path)
        set_up(path)

    def work(self, path: Path) -> None:
        raise NotImplementedError

    def attempted(self, path: Path, rows: Rows) -> None:
        """Look at the file after an attempt; `rows` are those before it."""

    def wrong(self, path: Path) -> str:
        """Return what is wrong in the end."""
        made, there = read(path, {}), rows_of(path)
        return "" if made == there else f"{made} instead of {there}"


class SetsUp(Step):
    """All triggers are there or none, and a reader has every change since it is known."""

    def __init__(self) -> None:
        self._rows: Rows | None = None
        self._counts: set[int] = set()

    def begin(self, path: Path) -> None:
        create(path, "insert into t values (1, 1), (2, 2)")

    def work(self, path: Path) -> None:
        set_up(path)

    def attempted(self, path: Path, rows: Rows) -> None:
        with closing(connect(path)) as app:
            ours = app.execute(
                "select count(*) from sqlite_master where name like '\\_\\_%' escape '\\'"
            ).fetchone()[0]
            known = ours and app.execute("select count(*) from __headrace_readers").fetchone()[0]
        self._counts.add(ours)
        if known and self._rows is None:
            self._rows = rows

    def wrong(self, path: Path) -> str:
        if len(self._counts) > 2:
            return f"a part of what is created was there: {sorted(self._counts)}"
        made, there = read(path, self._rows or {}), rows_of(path)
        return "" if made == there else f"{made} instead of {there}"


class Upgrades(Step):
    """A log of format 1 has all changes, and so has the upgraded one."""

    def begin(self, path: Path) -> None:
        with closing(connect(path)) as app:
            app.executescript(FORMAT_1.read_text())

    def work(self, path: Path) -> None:
        set_up(path)


class CreatesTriggersAgain(Step):
    """That a change was missed stays known."""

    def begin(self, path: Path) -> None:
        super().begin(path)
        with closing(connect(path)) as app:
            app.execute("insert into t values (1, 1)")
            app.execute("drop trigger __headrace_1_update")
            app.execute("update t set v = 2")

    def work(self, path: Path) -> None:
        set_up(path)

    def wrong(self, path: Path) -> str:
        try:
            read(path, {})
        except SchemaChanged:
            return ""
        return "a missing change was not noticed"


class Alters(Step):
    """No change is missed while a column is replaced by another one."""

    def work(self, path: Path) -> None:
        with closing(connect(path)) as app:
            columns = [row[1] for row in app.execute("pragma table_info(t)")]
        if "w" not in columns:
            alter(path, "alter table t add column w", "alter table t rename v to x")

    def wrong(self, path: Path) -> str:
        made = {
            key: {"id": row["id"], "x": row.get("x", row.get("v")), "w": row.get("w")}
            for key, row in read(path, {}).items()
        }
        there = rows_of(path)
        return "" if made == there else f"{made} instead of {there}"


class Prunes(Step):
    """A reader has read all changes; another one still needs some of them."""

    def begin(self, path: Path) -> None:
        super().begin(path)
        set_up(path, "other")
        with closing(connect(path)) as app:
            app.executemany("insert into u values (?)", [(at,) for at in range(60)])
        for reader in ("default", "other"):
            read(path, {}, reader)
            with closing(connect(path)) as app:
                app.execute("delete from t")

    def work(self, path: Path) -> None:
        Capture(path, None, print).prune()

    def wrong(self, path: Path) -> str:
        for reader in ("default", "other"):
            with closing(connect(path)) as app:
                app.execute("delete from t where id = ?", (MARK,))
            made, there = read(path, {}, reader), rows_of(path)
            if made != there:
                return f"{reader}: {made} instead of {there}"
        return ""


STEPS: Sequence[Callable[[], Step]] = (SetsUp, Upgrades, CreatesTriggersAgain, Alters, Prunes)


def play(path: Path, step: Step, chance: random.Random) -> tuple[int, str]:
    """Kill a step at ever later statements; return how often, and what was wrong."""
    step.begin(path)
    kills = at = 0
    while True:
        at += chance.randrange(1, 8)
        before = rows_of(path)
        if pid := os.fork():
            status = os.waitpid(pid, 0)[1]
        else:
            code = 1
            try:
                kill_at(at)
                step.work(path)
                code = 0
            except BaseException:  # noqa: BLE001 - shown here, in a process of its own
                traceback.print_exc()
            os._exit(code)
        if os.WIFEXITED(status) and os.WEXITSTATUS(status):
            return kills, "an attempt failed"
        step.attempted(path, before)
        with closing(connect(path)) as app:
            columns = [row[1] for row in app.execute("pragma table_info(t)")]
            for _ in range(2):
                values = chance.randrange(9), chance.randrange(9)
                app.execute(f"insert or replace into t (id, {columns[1]}) values (?, ?)", values)
            app.execute("delete from t where id = ?", (chance.randrange(9),))
        if not os.WIFSIGNALED(status):
            return kills, step.wrong(path)
        kills += 1


def main() -> None:
    """Play every step of a seed."""
    capture_log.REST_SECONDS = capture_log.STEP_SECONDS = capture_log.LONGEST_REST_SECONDS = 0.0
    folder, chance = Path(sys.argv[1]), random.Random(int(sys.argv[2]))
    print(
        json.dumps({each.__name__: play(folder / each.__name__, each(), chance) for each in STEPS})
    )


if __name__ == "__main__":
    main()
