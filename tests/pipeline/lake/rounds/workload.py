"""
What the application of a round does, and what the source had after each of its commits.

In `accounts` money moves and is never more or less; of a `tx` in `entries` all rows are there,
with one revision, or none. Two writers interleave their transactions. They commit one at a time,
so that it is known which rows there were at every position.
"""

from __future__ import annotations

import json
import threading
import zlib
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from random import Random
from typing import Any

import psycopg

from tests.rounds.source import Connection, Row, connected, journal_end, rows_of

TABLES = ("accounts", "entries")
ACCOUNTS, MONEY = 40, 100
FEWEST, MOST_ENTRIES = 10, 300
DEFAULT = 3
"""What older rows have in some columns that are added."""

PAUSE_SECONDS = 0.12
"""Between two transactions of a writer, at most."""

SCHEMA = (
    "create table accounts (id bigint primary key, owner text, money bigint)",
    "create table entries (tx bigint, n int, size int, revision int, note text,"
    " primary key (tx, n))",
    f"insert into accounts select n, 'owner ' || n, {MONEY} from generate_series(1, {ACCOUNTS}) n",
    "insert into entries select t, n, 3, 0, 'first' from generate_series(1, 20) t,"
    " generate_series(1, 3) n",
)


@dataclass(frozen=True, slots=True)
class State:
    """What the source had once a commit was there."""

    begun: int
    """The end of the server's journal before the commit."""

    ended: int
    """The same after it; the commit's own end is mostly this, and never beyond."""

    rows: dict[str, bytes]

    def of(self, table: str) -> list[Row]:
        found: list[Row] = json.loads(zlib.decompress(self.rows[table]))
        return found


class Diary:
    """All states of the source, in the order of its commits."""

    def __init__(self, dsn: str) -> None:
        self.turn = threading.RLock()
        """Who holds it is the only one that writes to the server's journal."""
        self.states: list[State] = []
        self._connection = _unprepared(dsn)
        self._look(0, journal_end(self._connection))

    def commit(self, connection: Connection) -> None:
        """Commit what a writer has open, and look at what is there then."""
        begun = journal_end(self._connection)
        connection.execute("commit")
        self._look(begun, journal_end(self._connection))

    def close(self) -> None:
        self._connection.close()

    def at(self, commit: int) -> list[State]:
        """Return the state at a position; two where it cannot be told which."""
        # Beyond the last that surely is not in it.
        beyond = bisect_left(self.states, commit, key=lambda state: state.begun)
        found = self.states[max(0, beyond - 1) : beyond]
        if found and found[0].ended > commit and beyond > 1:
            # Something else of the server's was written beside this commit.
            found = self.states[beyond - 2 : beyond]
        return found

    def _look(self, begun: int, ended: int) -> None:
        rows = {table: rows_of(self._connection, table) for table in TABLES}
        packed = {name: zlib.compress(json.dumps(each).encode(), 1) for name, each in rows.items()}
        self.states.append(State(begun, ended, packed))


def _unprepared(dsn: str) -> Connection:
    """Connect so that a statement may be run again when its table has other columns."""
    connection = connected(dsn)
    connection.prepare_threshold = None
    return connection


class Writer:
    """One session of the application."""

    def __init__(self, number: int, seed: int, dsn: str, diary: Diary) -> None:
        self.done: Counter[str] = Counter()
        self.failure: str | None = None
        self.alters = threading.Event()
        """Set: the next transaction adds a column, and rows with a value in it."""
        self._dice = Random(f"writer {seed} {number}")
        self._dsn = dsn
        self._diary = diary
        self._ids = 1000 + number
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work, name=f"writer-{number}")
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        self._thread.join()

    def _work(self) -> None:
        try:
            with _unprepared(self._dsn) as connection:
                self._connection = connection
                # Who waits would wait for somebody who waits for the turn.
                connection.execute("set lock_timeout = '20ms'")
                while not self._over.wait(self._dice.uniform(0, PAUSE_SECONDS)):
                    self._transaction()
        except psycopg.Error as error:
            self.failure = f"{self._thread.name}: {type(error).__name__}: {error}"

    def _transaction(self) -> None:
        kinds = self._dice.choices(list(_STEPS), [share for share, _ in _STEPS.values()], k=4)
        kinds = kinds[: self._dice.choice([1, 1, 2, 4])]
        if alters := self.alters.is_set():
            kinds.insert(0, "column")
        # Who locks a whole table locks out the diary, too, and keeps the turn to the end.
        alone = self._diary.turn if _LOCKING & set(kinds) else nullcontext()
        with alone:
            if self._steps(kinds) and alters:
                self.alters.clear()

    def _steps(self, kinds: Sequence[str]) -> bool:
        connection = self._connection
        try:
            with self._diary.turn:
                connection.execute("begin")
            for kind in kinds:
                with self._diary.turn:
                    _STEPS[kind][1](self)
                # Others come between, so that transactions lie within each other.
                self._over.wait(self._dice.choice([0, 0, 0.01]))
        except (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected):
            connection.execute("rollback")
            self.done["refused"] += 1
            return False
        with self._diary.turn:
            if self._dice.random() < 0.08:
                connection.execute("rollback")
                self.done["rollback"] += 1
                return False
            self._diary.commit(connection)
        self.done.update(["commit", *kinds])
        return True

    # --- steps ----------------------------------------------------------------------------

    def _new(self) -> int:
        # Each writer has numbers of its own.
        self._ids += 2
        return self._ids

    def _run(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        cursor = self._connection.execute(statement.encode(), values or None)
        return cursor.fetchall() if cursor.description else []

    def _accounts(self) -> list[int]:
        return [id for (id,) in self._run("select id from accounts order by id")]

    def _two(self) -> tuple[int, int]:
        one, other = self._dice.sample(self._accounts(), 2)
        return one, other

    def _give(self, id: int, money: int) -> None:
        self._run("update accounts set money = money + %s where id = %s", money, id)

    def move(self) -> None:
        one, other = self._two()
        self._give(one, -7)
        self._give(other, 7)

    def rename(self) -> None:
        some = self._dice.sample(self._accounts(), 3)
        self._run("update accounts set owner = %s where id = any(%s)", f"o{self._new()}", some)

    def split(self) -> None:
        one, _ = self._two()
        self._give(one, -1)
        self._run("insert into accounts (id, owner, money) values (%s, 'split', 1)", self._new())

    def join(self) -> None:
        one, other = self._two()
        found = self._run("delete from accounts where id = %s returning money", one)
        self._give(other, found[0][0])
        if len(self._accounts()) < FEWEST:
            for _ in range(FEWEST):
                self.split()

    def change_key(self) -> None:
        one, _ = self._two()
        self._run("update accounts set id = %s where id = %s", self._new(), one)

    def swap_keys(self) -> None:
        """Let two rows have each other's key: one of them passes by a third."""
        one, other = self._two()
        for old, new in ((one, -1), (other, one), (-1, other)):
            self._run("update accounts set id = %s where id = %s", new, old)

    def refill(self) -> None:
        """Empty the table, and fill it within the same transaction."""
        self._run("lock table accounts in access exclusive mode")
        rows = self._run("select id, owner, money from accounts")
        moneys = [money for _, _, money in rows]
        self._dice.shuffle(moneys)
        self._run("truncate accounts")
        for (id, owner, _), money in zip(rows, moneys, strict=True):
            self._run(
                "insert into accounts (id, owner, money) values (%s, %s, %s)", id, owner, money
            )

    def add(self) -> None:
        ((there,),) = self._run("select count(*) from entries")
        size = self._dice.choice([1, 2, 5, 40])
        if there > MOST_ENTRIES:
            self._run("delete from entries where tx in (select tx from entries limit 100)")
        self._run(
            "insert into entries (tx, n, size, revision, note)"
            " select %s, n, %s, 0, 'new' from generate_series(1, %s) n",
            *(self._new(), size, size),
        )

    def _some(self) -> list[int]:
        found = [tx for (tx,) in self._run("select distinct tx from entries order by tx")]
        return self._dice.sample(found, min(2, len(found)))

    def revise(self) -> None:
        self._run("update entries set revision = revision + 1 where tx = any(%s)", self._some())

    def drop(self) -> None:
        self._run("delete from entries where tx = any(%s)", self._some())

    def renumber(self) -> None:
        for tx in self._some():
            self._run("update entries set tx = %s where tx = %s", self._new(), tx)

    def empty(self) -> None:
        self._run("truncate entries")
        self.add()

    def column(self) -> None:
        """Add a column, with a value in older rows or without, or drop one that was added."""
        table = self._dice.choice(TABLES)
        added = self._added(table)
        wanted = self.alters.is_set()
        if len(added) > 2 and not wanted:
            self._run(f"alter table {table} drop column {added[0]}")
            return
        default = "" if wanted else self._dice.choice(["", f" default {DEFAULT}"])
        name = f"more_{self._new()}"
        self._run(f"alter table {table} add column {name} int{default}")
        self.fill()
        # Of a table's columns the server tells with its next row.
        self.move()
        self.add()

    def fill(self) -> None:
        for table, key in (("accounts", "id"), ("entries", "tx")):
            for name in self._added(table):
                self._run(f"update {table} set {name} = {self._new()} where {key} %% %s = 0", 3)

    def _added(self, table: str) -> list[str]:
        return [
            name
            for (name,) in self._run(
                "select column_name from information_schema.columns"
                " where table_name = %s and column_name like 'more%%' order by ordinal_position",
                table,
            )
        ]


_STEPS: dict[str, tuple[float, Callable[[Writer], None]]] = {
    "move": (20, Writer.move),
    "rename": (8, Writer.rename),
    "split": (10, Writer.split),
    "join": (10, Writer.join),
    "key": (8, Writer.change_key),
    "swap": (4, Writer.swap_keys),
    "refill": (0.04, Writer.refill),
    "add": (16, Writer.add),
    "revise": (14, Writer.revise),
    "drop": (5, Writer.drop),
    "renumber": (8, Writer.renumber),
    "empty": (0.04, Writer.empty),
    "fill": (2, Writer.fill),
    "column": (0.05, Writer.column),
}
"""What a writer does: how often, and the step."""

_LOCKING = {"refill", "empty", "column"}
"""Steps that let nobody else read the table until their transaction ends."""


@contextmanager
def writing(seed: int, dsn: str, diary: Diary) -> Iterator[list[Writer]]:
    """Let writers write for as long as the block runs."""
    writers = [Writer(number, seed, dsn, diary) for number in range(2)]
    try:
        yield writers
    finally:
        for writer in writers:
            writer.stop()
