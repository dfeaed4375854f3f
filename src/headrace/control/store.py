"""
What the engine must still know after a crash: its term, progress and states.

One SQLite file (`control.sqlite`), written with full synchronisation. Every write checks
the term in its own transaction (R31): an engine that was declared dead and comes back to
life finds a newer term and is fenced off, instead of writing old news over new.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from headrace.changelog.position import ORIGIN, Position
from headrace.errors import Fenced, StorageError, StorageFull, UnknownFormat

FORMAT = 1

_TABLES = """
create table if not exists about (format integer not null, term integer not null);
create table if not exists progress (
  pipeline text not null, "table" text not null, lineage text not null,
  epoch integer not null, "commit" integer not null, ordinal integer not null,
  primary key (pipeline, "table")
) without rowid;
create table if not exists states (
  pipeline text not null, "table" text not null, state text not null, baseline integer,
  primary key (pipeline, "table")
) without rowid;
"""


class Store:
    """Progress and states, per pipeline and table. Safe to call from several threads."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        with self._guarded():
            connection.executescript(_TABLES)
            if (row := connection.execute("select format, term from about").fetchone()) is None:
                connection.execute("insert into about values (?, 0)", (FORMAT,))
                row = (FORMAT, 0)
        if row[0] != FORMAT:
            raise UnknownFormat("control.sqlite is in an unknown format", format=row[0])
        self.term = 0
        """0 until `take_over`; nothing can be written before."""

    @classmethod
    def at(cls, path: Path) -> Store:
        """Open or create the file at `path`."""
        try:
            connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
            path.chmod(0o600)
            connection.execute("pragma journal_mode = wal")
            connection.execute("pragma synchronous = full")
            return cls(connection)
        except sqlite3.Error as error:
            raise StorageError(
                "Control state cannot be opened", path=str(path), why=str(error)
            ) from error

    def take_over(self) -> int:
        """Raise the term and make it ours: every older engine is fenced from here on."""
        with self._guarded(), self._transaction():
            self._connection.execute("update about set term = term + 1")
            (self.term,) = self._connection.execute("select term from about").fetchone()
        return self.term

    def reached(self, pipeline: str, table: str) -> Position:
        """Return the position up to which all is durable, or `ORIGIN`."""
        with self._guarded():
            row = self._connection.execute(
                'select epoch, "commit", ordinal from progress where pipeline = ? and "table" = ?',
                (pipeline, table),
            ).fetchone()
        return Position(*row) if row else ORIGIN

    def lineage(self, pipeline: str, table: str) -> str | None:
        """Return the lineage that position is of, None where there is none."""
        with self._guarded():
            row = self._connection.execute(
                'select lineage from progress where pipeline = ? and "table" = ?',
                (pipeline, table),
            ).fetchone()
        return str(row[0]) if row else None

    def begin(self, pipeline: str, table: str, lineage: str, at: Position) -> None:
        """Record that a baseline replaced what was there: progress begins anew at its F."""
        with self._guarded(), self._transaction():
            self._check_term()
            self._connection.execute(
                "insert or replace into progress values (?, ?, ?, ?, ?, ?)",
                (pipeline, table, lineage, at.epoch, at.commit, at.ordinal),
            )

    def advance(self, pipeline: str, table: str, lineage: str, to: Position) -> Position:
        """Record that all up to `to` is durable; return what is now stored (invariant 2)."""
        with self._guarded(), self._transaction():
            self._check_term()
            # Forward only: a batch whose outcome was lost can simply be sent again.
            self._connection.execute(
                "insert into progress values (?, ?, ?, ?, ?, ?) on conflict do update set"
                ' lineage = excluded.lineage, epoch = excluded.epoch, "commit" ='
                ' excluded."commit", ordinal = excluded.ordinal where (excluded.epoch,'
                ' excluded."commit", excluded.ordinal) > (epoch, "commit", ordinal)',
                (pipeline, table, lineage, to.epoch, to.commit, to.ordinal),
            )
        return self.reached(pipeline, table)

    def state(self, pipeline: str, table: str) -> tuple[str, int | None] | None:
        """Return the stored state and the baseline it speaks of."""
        with self._guarded():
            row = self._connection.execute(
                'select state, baseline from states where pipeline = ? and "table" = ?',
                (pipeline, table),
            ).fetchone()
        return (row[0], row[1]) if row else None

    def set_state(self, pipeline: str, table: str, state: str, baseline: int | None) -> None:
        """Store a state before it takes effect (R12)."""
        with self._guarded(), self._transaction():
            self._check_term()
            self._connection.execute(
                "insert into states values (?, ?, ?, ?) on conflict do update set"
                " state = excluded.state, baseline = excluded.baseline",
                (pipeline, table, state, baseline),
            )

    def check(self) -> None:
        """Raise `Fenced` if another engine took over."""
        with self._guarded():
            self._check_term()

    def close(self) -> None:
        """Close the file; nothing may follow."""
        with self._lock:
            self._connection.close()

    def _check_term(self) -> None:
        (term,) = self._connection.execute("select term from about").fetchone()
        if term != self.term:
            raise Fenced("Another engine took over", term=self.term, newer=term)

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._connection.execute("begin immediate")
        try:
            yield
        except BaseException:
            self._connection.execute("rollback")
            raise
        self._connection.execute("commit")

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        with self._lock:
            try:
                yield
            except sqlite3.Error as error:
                full = getattr(error, "sqlite_errorname", "") == "SQLITE_FULL"
                kind = StorageFull if full else StorageError
                raise kind("Control state cannot be written", why=str(error)) from error
