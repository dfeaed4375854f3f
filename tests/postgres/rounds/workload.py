"""What the application of a round does: four writers, and the tables they write to."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from random import Random

import psycopg

from tests.rounds.source import Connection

KEYS: Mapping[str, tuple[str, ...]] = {
    "orders": ("id",),
    "lines": ("order_id", "line"),
    "docs": ("id",),
    "events": ("region", "id"),
    "late": ("id",),
}
"""The tables and their keys. `late` is not captured from the beginning."""

SCHEMA = (
    "create table orders (id bigint primary key, status text, total int, note text)",
    "create table lines (order_id int, line int, amount int, label text,"
    " primary key (order_id, line))",
    # Its large values are not sent again when something else changes: only under a full
    # identity are they known.
    "create table docs (id int primary key, body text, version int)",
    "alter table docs alter body set storage external",
    "alter table docs replica identity full",
    "create table events (region int, id int, kind text, primary key (region, id))"
    " partition by list (region)",
    "create table events_0 partition of events for values in (0)",
    "create table events_1 partition of events for values in (1)",
    # Its columns stand in another order than its parent's.
    "create table events_2 (kind text, id int not null, region int not null,"
    " primary key (region, id))",
    "alter table events attach partition events_2 for values in (2)",
    "create table late (id int primary key, value text)",
    "insert into orders select n, 'new', n, repeat('n', n % 60) from generate_series(1, 400) n",
    "insert into lines select n / 4, n % 4, n, 'l' || n from generate_series(1, 300) n",
    "insert into docs select n, repeat(md5(n::text), 200), 0 from generate_series(1, 12) n",
    "insert into events select n % 3, n, 'k' || n from generate_series(1, 300) n",
    "insert into late select n, 'v' || n from generate_series(1, 50) n",
)

PAUSE_SECONDS = 0.08
"""Between two transactions of a writer, at most."""


class Writer:
    """One session of the application; it begins anew when its connection is gone."""

    def __init__(self, number: int, seed: int, dsn: str) -> None:
        self.number = number
        self.done: Counter[str] = Counter()
        self._dice = Random(f"writer {seed} {number}")
        self._dsn = dsn
        self._ids = 1000 + number
        self._prepared = 0
        self._over = threading.Event()
        self.failure: str | None = None
        self._thread = threading.Thread(target=self._work, name=f"writer-{number}")

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        self._thread.join()

    def _work(self) -> None:
        while not self._over.is_set():
            try:
                with psycopg.connect(self._dsn, autocommit=True, connect_timeout=5) as connection:
                    self._session(connection)
            except psycopg.OperationalError:
                self._over.wait(0.05)  # the server is away, or ended the session
            except psycopg.Error as error:
                self.failure = f"writer {self.number}: {type(error).__name__}: {error}"
                return

    def _session(self, connection: Connection) -> None:
        # Who waits for the disk and who does not is decided by session, as applications do.
        mode = "off" if self.number % 2 else "on"
        connection.execute(f"set synchronous_commit = {mode}".encode())
        connection.execute("set lock_timeout = '2s'")
        resolve(connection, self._dice, f"w{self.number}_")
        while not self._over.wait(self._dice.uniform(0, PAUSE_SECONDS)):
            try:
                self._transaction(connection)
            except (
                psycopg.errors.DeadlockDetected,
                psycopg.errors.LockNotAvailable,
                psycopg.errors.IntegrityError,
                # Two rows moved the same way, or a partition's row moved away meanwhile.
                psycopg.errors.SerializationFailure,
            ):
                connection.execute("rollback")
                self.done["refused"] += 1
                resolve(connection, self._dice, f"w{self.number}_")

    def _transaction(self, connection: Connection) -> None:
        connection.execute("begin")
        for _ in range(self._dice.choice([1, 1, 2, 3, 6])):
            if self._dice.random() < 0.2:
                self._savepoint(connection)
            else:
                self._statement(connection)
        match self._dice.random():
            case chance if chance < 0.12:
                self._prepare(connection)
            case chance if chance < 0.2:
                connection.execute("rollback")
                self.done["rollback"] += 1
            case _:
                connection.execute("commit")
                self.done["commit"] += 1

    def _savepoint(self, connection: Connection) -> None:
        connection.execute("savepoint a")
        self._statement(connection)
        if self._dice.random() < 0.5:
            connection.execute("savepoint b")
            self._statement(connection)
            connection.execute(self._dice.choice([b"rollback to b", b"release b"]))
        kept = self._dice.random() < 0.5
        connection.execute(b"release a" if kept else b"rollback to a")
        self.done["released" if kept else "rolled back to"] += 1

    def _prepare(self, connection: Connection) -> None:
        self._prepared += 1
        name = f"w{self.number}_{self._prepared}"
        connection.execute(f"prepare transaction '{name}'".encode())
        self._over.wait(self._dice.choice([0, 0, 0.02, 0.3]))
        _end_prepared(connection, name, commit=self._dice.random() < 0.7)
        self.done["prepared"] += 1

    def _statement(self, connection: Connection) -> None:
        kind = self._dice.choices(list(_STATEMENTS), [share for share, _ in _STATEMENTS.values()])
        statement = _STATEMENTS[kind[0]][1](self._dice, self._id)
        connection.execute(statement.encode())
        self.done[kind[0]] += 1

    def _id(self) -> int:
        # Each writer has numbers of its own: no two wait for each other's inserts.
        self._ids += 4
        return self._ids


def _one(table: str) -> str:
    """A row of a table that another transaction does not hold: writers rarely wait."""
    keys = ", ".join(KEYS[table])
    return (
        f"({keys}) in (select {keys} from {table} order by random() limit 1 for update skip locked)"
    )


def _some(table: str, rows: int) -> str:
    return _one(table).replace("limit 1", f"limit {rows}")


Number = Callable[[], int]

_STATEMENTS: dict[str, tuple[float, Callable[[Random, Number], str]]] = {
    "insert": (
        20,
        lambda dice, new: f"insert into orders values ({new()}, 'new', {dice.randrange(99)}, 'x')",
    ),
    "insert line": (
        10,
        lambda dice, new: f"insert into lines values ({new()}, {dice.randrange(4)}, 1, 'new')",
    ),
    "insert event": (
        10,
        lambda dice, new: f"insert into events values ({dice.randrange(3)}, {new()}, 'new')",
    ),
    "insert late": (6, lambda dice, new: f"insert into late values ({new()}, 'new')"),
    "update": (
        20,
        lambda dice, new: (
            f"update orders set total = {dice.randrange(10**6)},"
            f" status = '{dice.choice(['paid', 'sent'])}' where {_some('orders', 3)}"
        ),
    ),
    "update late": (6, lambda dice, new: f"update late set value = '{new()}' where {_one('late')}"),
    "delete": (8, lambda dice, new: f"delete from orders where {_one('orders')}"),
    "delete line": (6, lambda dice, new: f"delete from lines where {_some('lines', 2)}"),
    "key": (6, lambda dice, new: f"update orders set id = {new()} where {_one('orders')}"),
    "key of line": (
        6,
        lambda dice, new: (
            f"update lines set line = line + 10, amount = {dice.randrange(99)}"
            f" where {_one('lines')}"
        ),
    ),
    "key of doc": (2, lambda dice, new: f"update docs set id = {new()} where {_one('docs')}"),
    "large": (
        4,
        lambda dice, new: (
            f"insert into docs values ({new()},"
            f" repeat(md5('{dice.random()}'), {dice.choice([80, 200, 2000])}), 0)"
        ),
    ),
    "large kept": (
        8,
        lambda dice, new: f"update docs set version = version + 1 where {_some('docs', 2)}",
    ),
    "large gone": (3, lambda dice, new: f"delete from docs where {_one('docs')}"),
    "move": (
        8,
        lambda dice, new: f"update events set region = (region + 1) % 3 where {_some('events', 2)}",
    ),
    "event gone": (4, lambda dice, new: f"delete from events where {_one('events')}"),
    # More than the server keeps in memory of a transaction: it is streamed before its end.
    "many": (
        1.2,
        lambda dice, new: (
            "insert into orders select"
            f" {new()} * 1000000::bigint + n, 'many', n, repeat('m', 200)"
            f" from generate_series(1, {dice.choice([150, 400])}) n"
        ),
    ),
    "many gone": (1.2, lambda dice, new: f"delete from orders where {_some('orders', 500)}"),
    "many changed": (
        0.8,
        lambda dice, new: f"update orders set note = repeat('c', 150) where {_some('orders', 300)}",
    ),
    "truncate": (
        0.5,
        lambda dice, new: f"truncate {dice.choice(['orders', 'lines', 'orders, lines', 'docs'])}",
    ),
    "truncate events": (0.2, lambda dice, new: "truncate events"),
}
"""What a writer does: how often, and the statement."""


def resolve(connection: Connection, dice: Random, prefix: str = "") -> None:
    """End what is prepared under names that begin so; whoever prepared it may be gone."""
    found = connection.execute(
        "select gid from pg_prepared_xacts where database = current_database()"
        " and starts_with(gid, %s)",
        [prefix],
    ).fetchall()
    for (name,) in found:
        _end_prepared(connection, name, commit=dice.random() < 0.5)


def _end_prepared(connection: Connection, name: str, *, commit: bool) -> None:
    connection.execute(f"{'commit' if commit else 'rollback'} prepared '{name}'".encode())


@contextmanager
def writing(seed: int, dsn: str, count: int = 4) -> Iterator[list[Writer]]:
    """Let writers write for as long as the block runs."""
    writers = [Writer(number, seed, dsn) for number in range(count)]
    for writer in writers:
        writer.start()
    try:
        yield writers
    finally:
        for writer in writers:
            writer.stop()
