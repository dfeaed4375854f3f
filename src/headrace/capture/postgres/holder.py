"""
The snapshot that a baseline is read under, kept alive for as long as it takes.

A baseline has three marks (R11). F is the log's end before it; S is the snapshot its rows are
read under; H is where the server's log ended after S was taken. Commits up to F must all be
in S, and that is checked; commits after H cannot be; between the two, S itself says which
are. Whoever applies every change after F has the exact table from H on.

An exported snapshot lives as long as the transaction that exported it, and the one a new slot
exports only until the slot streams. So a connection of its own takes it up, exports it
again, and then does nothing but live: the holder (R14).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import closing
from typing import Any, Protocol

import psycopg
from psycopg import pq

from headrace.capture.postgres.asking import BEGIN, importing, readable, row, talking
from headrace.capture.postgres.place import parse_lsn
from headrace.capture.postgres.visibility import (
    Awaited,
    Pending,
    check_sight,
    sessions_of,
    visible,
    writing,
)
from headrace.changelog.window import Snapshot
from headrace.errors import SourceUnreachable

FIRST_PAUSE = 0.005
LONGEST_PAUSE = 0.25
"""Between two attempts at a snapshot, in seconds: most commits become visible in microseconds."""

__all__ = [
    "Awaited",
    "Connect",
    "Holder",
    "Snapshot",
    "import_snapshot",
    "take_snapshot",
    "visible",
]

NO_LIMITS = (
    "set idle_in_transaction_session_timeout = 0",
    "set statement_timeout = 0",
    "set idle_session_timeout = 0",
)

PAGE_BYTES = 8192
HEADER_BYTES = (24, 40)
"""Of a page of the server's log, and the header at its start: a segment's first is longer."""


class Connect(Protocol):
    """
    Opens a connection with our settings, in autocommit mode.

    `host` and `port` name one server among those it may choose from.
    `partial(connection.connect, options)` is one, and can be sent to another process.
    """

    def __call__(
        self, *, host: str | None = None, port: int | None = None
    ) -> psycopg.Connection[Any]: ...


class Holder:
    """
    A snapshot kept alive, with the marks of the baseline that is read under it.

    Readers import `id`, on the same server. Once they have, they outlive the holder. It
    belongs to one thread, and `close` may follow any call.
    """

    def __init__(
        self,
        connection: psycopg.Connection[Any],
        connect: Connect,
        imported: str | None = None,
    ) -> None:
        """Take a snapshot on a new connection, or the one exported as `imported`, and export it."""
        self.first = 0
        """F: every commit up to it is in the snapshot."""

        self.last = 0
        """H: no commit after it is in the snapshot."""

        self.readers = 0
        """How many copies are under way under it: with any, it is to be kept."""

        self._connection = connection
        self._connect = connect
        self.host = connection.info.host
        self.port = connection.info.port
        try:
            with talking():
                self.id, self.snapshot, self._started = _export(connection, imported)
        except BaseException:
            connection.close()
            raise

    @property
    def alive(self) -> bool:
        """Whether the snapshot can still be imported, as far as is known without asking."""
        pgconn = self._connection.pgconn
        try:
            # A server that ended the session has said so, but nobody has listened since. It says
            # it in two reads, a message and the end.
            for _ in range(4):
                if pgconn.status != pq.ConnStatus.OK or not readable(pgconn, 0):
                    break
                pgconn.consume_input()
                pgconn.is_busy()
        except psycopg.Error:
            return False
        return pgconn.transaction_status == pq.TransactionStatus.INTRANS

    def connect(self) -> psycopg.Connection[Any]:
        """Open another connection to the server the snapshot is on."""
        return self._connect(host=self.host, port=self.port)

    def close(self) -> None:
        """Let the snapshot go. Never raises."""
        self._connection.close()

    def end_of_log(self, other: psycopg.Connection[Any]) -> int:
        """Return where the server's log ends now, as another connection sees it."""
        with talking():
            # What is inserted, not what is flushed: an asynchronous commit is visible before.
            lsn, started = row(
                other,
                "select pg_current_wal_insert_lsn()::text, pg_postmaster_start_time()::text",
            )
        if started != self._started:
            raise SourceUnreachable(
                "Two connections reached different servers",
                host=self.host,
                remedy="Name one server in the connection string; a name must not lead to several.",
            )
        return record_end(parse_lsn(lsn))


def record_end(insert: int) -> int:
    """
    Return the end of the last record, given where the next one will begin.

    At the start of a page that is behind the page's header; the server never says that it has
    come so far, before there is another record, and a quiet one would be waited for in vain.
    """
    within = insert % PAGE_BYTES
    return insert - within if within in HEADER_BYTES else insert


def import_snapshot(connect: Connect, exported: str, at: int) -> Holder:
    """
    Return the holder of the snapshot that a new slot exported, whose consistent point is `at` (H1).

    Until this returns, nothing else may go over the connection the slot was made on. The
    slot's server must be the one that `connect` leads to.
    """
    holder = Holder(connect(), connect, exported)
    # The slot's point divides commits exactly: those before it are seen, no others.
    holder.first = holder.last = at
    return holder


def take_snapshot(
    connect: Connect,
    first: int,
    committed: Iterable[tuple[int, int]],
    *,
    unsure: float = 0.0,
    on_wait: Callable[[tuple[Awaited, ...]], object] = lambda _: None,
    pause: Callable[[float], object] = time.sleep,
    timeout: float | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Holder:
    """
    Return the holder of a new snapshot that sees every commit up to `first` (H2.3 to H2.6).

    `committed` are the latest commits of the log, as position and 64-bit top-level id. A
    commit is streamed before it is visible, and long before where the server waits for a
    standby: one that the log has and the snapshot has not would be lost. Then another
    snapshot is taken after a pause, and `on_wait` is told for whom each time; it is also the
    caller's chance to keep its other connections alive, and to give up by raising. After
    `timeout` seconds in vain it is `SourceUnreachable`.

    For `unsure` more seconds the log may have commits, not visible yet, that `committed` does
    not know of, because somebody else read them. Until then whoever is writing now may be one.
    """
    xids = {xid for lsn, xid in committed if lsn <= first}
    until = None if timeout is None else clock() + timeout
    sure_at = clock() + unsure if unsure > 0 else None
    perhaps: frozenset[int] = frozenset()
    rest = FIRST_PAUSE
    with closing(connect()) as other:
        host, port = other.info.host, other.info.port
        check_sight(other)
        look = sessions_of(other)
        if sure_at is not None:
            perhaps = writing(other)
        pending: Pending | None = None
        while True:
            holder = Holder(connect(host=host, port=port), connect)
            try:
                if pending is None:
                    # Looked up twice: before, a commit may not have begun to wait.
                    look += sessions_of(other)
                    pending = Pending(xids, look)
                if sure_at is not None and clock() >= sure_at:
                    perhaps = frozenset()
                awaited = pending.unseen(holder.snapshot, look, perhaps)
                if not awaited:
                    holder.first = first
                    holder.last = holder.end_of_log(other)
                    return holder
            except BaseException:
                holder.close()
                raise
            holder.close()
            on_wait(awaited)
            if until is not None and clock() >= until:
                raise SourceUnreachable(
                    "Commits that were recorded did not become visible in time",
                    transactions=len(awaited),
                    synchronous=any(one.synchronous for one in awaited),
                    remedy="Look for sessions that wait for SyncRep in pg_stat_activity;"
                    " a synchronous standby may be away.",
                )
            pause(rest)
            rest = min(2 * rest, LONGEST_PAUSE)
            look = sessions_of(other)


def _export(connection: psycopg.Connection[Any], imported: str | None) -> tuple[str, Snapshot, str]:
    if not connection.autocommit:
        connection.autocommit = True
    for statement in NO_LIMITS:
        connection.execute(statement.encode())
    if connection.info.server_version >= 170000:
        connection.execute("set transaction_timeout = 0")
    if imported is None:
        connection.execute(BEGIN.encode())
    else:
        # Never prepared, which two statements at once cannot be.
        connection.execute(importing(imported).encode(), prepare=False)
    exported, snapshot, started = row(
        connection,
        "select pg_export_snapshot(), pg_current_snapshot()::text,"
        " pg_postmaster_start_time()::text",
    )
    return exported, Snapshot.parse(snapshot), started
