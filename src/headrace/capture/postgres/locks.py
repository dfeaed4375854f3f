"""
Who has written to a table and is not done yet.

What a transaction wrote before its table was published is never sent. If it commits after
a copy was begun, its rows are in neither. So, after a publication was changed, whoever
writes at that moment is waited for (R13).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg.rows import class_row

from headrace.errors import SourceUnreachable

WRITING = ("RowExclusiveLock", "ShareRowExclusiveLock", "ExclusiveLock", "AccessExclusiveLock")
"""
Modes of those who may have written, or emptied the table, or rewrote it. Left out are
ShareUpdateExclusiveLock and ShareLock: VACUUM and CREATE INDEX hold them, for hours
perhaps, and who writes rows has RowExclusiveLock besides.
"""

EVERY = (*WRITING, "ShareUpdateExclusiveLock", "ShareLock")
"""Modes that keep a table from being published."""

POLL_SECONDS = (0.01, 0.5)
"""The first and the longest pause between two looks."""


@dataclass(frozen=True, slots=True)
class Locker:
    """A transaction that holds a lock."""

    transaction: str
    """The server's name for it, unique as long as the server runs."""

    pid: int | None
    """None: it is prepared, and no session has it."""

    user: str | None
    application: str | None
    age: float | None
    """Seconds since it began or was prepared; None where we may not know."""

    gid: str | None
    """The name it was prepared under."""


def lockers(
    connection: psycopg.Connection[Any], oids: Sequence[int], modes: Sequence[str] = WRITING
) -> list[Locker]:
    """Return who has one of these tables locked in one of `modes`, the longest open first."""
    # A prepared transaction has no pid in pg_locks. Its number stands only in the lock that it
    # holds on itself; those of its savepoints look the same, but are not in pg_prepared_xacts.
    query = """
        SELECT DISTINCT l.virtualtransaction AS transaction, l.pid,
               coalesce(a.usename, p.owner)::text AS user, a.application_name AS application,
               extract(epoch FROM clock_timestamp() - coalesce(a.xact_start, p.prepared))::float8
                   AS age,
               p.gid
        FROM pg_catalog.pg_locks l
        LEFT JOIN pg_catalog.pg_stat_activity a ON a.pid = l.pid
        LEFT JOIN (SELECT x.virtualtransaction, p.*
                   FROM pg_catalog.pg_prepared_xacts p
                   JOIN pg_catalog.pg_locks x
                     ON x.locktype = 'transactionid' AND x.transactionid = p.transaction
                    AND x.granted) p
               ON l.pid IS NULL AND p.virtualtransaction = l.virtualtransaction
        WHERE l.locktype = 'relation' AND l.granted AND l.mode = ANY(%s::text[])
          AND l.database = (SELECT oid FROM pg_catalog.pg_database
                            WHERE datname = current_database())
          AND l.relation = ANY(%s::oid[]) AND l.pid IS DISTINCT FROM pg_backend_pid()
        ORDER BY age DESC NULLS LAST
    """
    with connection.cursor(row_factory=class_row(Locker)) as cursor:
        return cursor.execute(query, (list(modes), list(oids))).fetchall()


class Writers:
    """Who has a table locked when they are first looked for: those that are to be waited for."""

    def __init__(self) -> None:
        self._first: frozenset[str] | None = None

    def left(self, connection: psycopg.Connection[Any], oids: Sequence[int]) -> list[Locker]:
        """Return those of them that have not ended. Who came later does not count."""
        found = lockers(connection, oids)
        if self._first is None:
            self._first = frozenset(locker.transaction for locker in found)
        return [locker for locker in found if locker.transaction in self._first]


def wait_for_lockers(
    connection: psycopg.Connection[Any],
    oids: Sequence[int],
    patience: float | None = None,
    on_wait: Callable[[Sequence[Locker], float], None] | None = None,
) -> None:
    """
    Return when all who hold such a lock now have ended, however they end.

    Those who come later are not waited for: what they write is published. Before every
    pause `on_wait` gets who is still there and the seconds so far; it may raise to give
    up. After `patience` seconds `SourceUnreachable` is raised.
    """
    started = time.monotonic()
    writers = Writers()
    pause, longest = POLL_SECONDS
    while left := writers.left(connection, oids):
        waited = time.monotonic() - started
        if patience is not None and waited >= patience:
            raise SourceUnreachable(
                "Transactions that write to the table do not end",
                pids=[found.pid for found in left if found.pid is not None],
                prepared=[found.gid for found in left if found.gid is not None],
                waited=round(waited, 1),
                remedy="Commit them or roll them back, prepared ones too.",
            )
        if on_wait is not None:
            on_wait(left, waited)
        time.sleep(pause)
        pause = min(pause * 2, longest)
