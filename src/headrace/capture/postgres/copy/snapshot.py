"""
The snapshot that a baseline is read under, kept alive for as long as it is needed.

A baseline is defined by F, S and H (R11). F is the log's end before the baseline; S is the
snapshot that its rows are read under; H is the end of the server's log after S was taken. Commits
up to F must all be in S, which is checked; commits after H cannot be; for commits between the two,
S itself says which it contains. A reader that applies every change after F has the exact table
from H on.

A snapshot may not yet see a commit that the log already has. The server streams a commit when it
is on disk, and makes it visible to other sessions a moment later; if the commit waits for a
synchronous standby, that can be hours later (R11, H2.5). So this module determines which
transactions a snapshot sees, and which sessions keep it from seeing the others.

An exported snapshot exists as long as the transaction that exported it, and the one of a new slot
only until the slot streams. So a separate connection imports it, exports it again, and then does
nothing but stay open: the holder (R14).

A new slot comes with a snapshot of its own, which is valid for every table that was published
before the slot was created. It is kept for a while, as long as copies start. Later copies take one
snapshot each, which is used only after it was checked against the commits read (H1 to H3).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import psycopg
from psycopg import pq

from headrace.capture.postgres.connection import BEGIN, connect, importing, readable, row, talking
from headrace.capture.postgres.options import PostgresOptions
from headrace.capture.postgres.position import parse_lsn
from headrace.capture.postgres.server.slot import CreatedSlot
from headrace.capture.postgres.stream.transactions import RecentCommits
from headrace.capture.source import NotYet
from headrace.changelog.history import TransactionSnapshot
from headrace.errors import NotPermitted, ServerRefused, SourceUnreachable
from headrace.storage import killpoints

__all__ = [
    "Connect",
    "HeldSnapshot",
    "InvisibleCommit",
    "TransactionSnapshot",
    "import_snapshot",
    "take_snapshot",
    "visible",
]


# --- which transactions a snapshot sees -----------------------------------------------------------

PREPARED = 0
"""Used as the id of a prepared transaction that is being committed: sessions do not show it."""


def visible(xid: int, snapshot: TransactionSnapshot) -> bool:
    """Whether `snapshot` sees the writes of the committed top-level transaction `xid`."""
    return snapshot.sees(xid)


@dataclass(frozen=True, slots=True)
class InvisibleCommit:
    """A transaction that has committed in the log but is not visible to other sessions yet."""

    xid: int
    """Its 64-bit id, or `PREPARED`."""

    pid: int | None = None
    """The session it runs in; None if that has ended, or we may not see it."""

    user: str | None = None
    seconds: float | None = None
    """How long its transaction has been running."""

    synchronous: bool = False
    """Whether it waits for a synchronous standby."""


def check_sight(other: psycopg.Connection[Any]) -> None:
    """Raise an error if the commits that are not visible yet cannot be determined."""
    with talking():
        recovering, synchronous, sees_all = row(
            other,
            "select pg_is_in_recovery(), current_setting('synchronous_standby_names') <> '',"
            " pg_has_role('pg_read_all_stats', 'usage')",
        )
    if recovering:
        # There pg_current_snapshot() leaves out the transactions that are running.
        raise ServerRefused(
            "A standby cannot provide a baseline while its changes are streamed",
            remedy="Capture from the primary, or start with an empty log.",
        )
    if synchronous and not sees_all:
        raise NotPermitted(
            "The user is not allowed to see which commits wait for a synchronous standby",
            remedy="Run GRANT pg_read_all_stats TO this user.",
        )


@dataclass(frozen=True, slots=True)
class ServerSession:
    """A session that writes, or that runs a statement."""

    pid: int
    started: str | None
    """When its statement started: with the pid, this identifies the statement."""

    user: str | None
    seconds: float | None
    xid: int | None
    """The lower 32 bits of its transaction; None if it commits a prepared one."""

    waits: bool
    """Whether its commit is on disk and waits for a standby."""


def sessions_of(other: psycopg.Connection[Any]) -> list[ServerSession]:
    """Return the sessions that write or run a statement, as far as we may see them."""
    with talking():
        found = other.execute(
            "select pid, query_start::text, usename::text,"
            " extract(epoch from clock_timestamp() - xact_start)::float8,"
            " backend_xid::text::bigint, coalesce(wait_event = 'SyncRep', false)"
            " from pg_stat_activity where backend_xid is not null or state = 'active'"
        ).fetchall()
    return [ServerSession(*row) for row in found]


def writing(other: psycopg.Connection[Any]) -> frozenset[int]:
    """
    Return the lower 32 bits of all running transactions, including prepared ones and savepoints.

    They are found by the locks on their own ids, which are released only when other sessions
    see them.
    """
    with talking():
        found = other.execute(
            "select transactionid::text::bigint from pg_locks"
            " where locktype = 'transactionid' and granted"
        ).fetchall()
    return frozenset(xid for (xid,) in found)


class PendingCommits:
    """
    The commits that a snapshot must see: those the log has, and those it may have.

    The latter are all that wait for a standby when the log's end has just been read. Later
    ones are not in the log up to there. So the set never grows, however many commits wait
    at any time.
    """

    def __init__(self, xids: Iterable[int], sessions: Iterable[ServerSession]) -> None:
        self._xids = frozenset(xids)
        self._waiting = {(one.pid, one.started): one for one in sessions if one.waits}

    def unseen(
        self,
        snapshot: TransactionSnapshot,
        sessions: Iterable[ServerSession],
        perhaps: Iterable[int] = (),
    ) -> tuple[InvisibleCommit, ...]:
        """
        Return the commits that `snapshot`, taken after `sessions` were read, does not see.

        `perhaps` are further commits, by their lower 32 bits.
        """
        xids = self._xids | {_widened(xid, snapshot.xmax) for xid in perhaps}
        awaited = {xid: InvisibleCommit(xid) for xid in xids if not snapshot.sees(xid)}
        at_work = {(one.pid, one.started): one for one in sessions}
        for one in at_work.values():
            xid = None if one.xid is None else _widened(one.xid, snapshot.xmax)
            if xid is not None and xid in awaited:
                awaited[xid] = _awaited(xid, one)
        for statement, one in self._waiting.items():
            if one.xid is None:
                # The server does not show its transaction, but both end with the statement.
                if statement in at_work:
                    awaited[PREPARED] = _awaited(PREPARED, one)
            elif not snapshot.sees(xid := _widened(one.xid, snapshot.xmax)):
                awaited[xid] = _awaited(xid, one)
        return tuple(awaited[xid] for xid in sorted(awaited))


def _awaited(xid: int, session: ServerSession) -> InvisibleCommit:
    return InvisibleCommit(xid, session.pid, session.user, session.seconds, session.waits)


def _widened(xid: int, near: int) -> int:
    """Return the number of 64 bits nearest to `near` that has these lower 32 bits."""
    return near + (xid - near + (1 << 31)) % (1 << 32) - (1 << 31)


# --- the holder of a snapshot ---------------------------------------------------------------------

FIRST_PAUSE = 0.005
LONGEST_PAUSE = 0.25
"""Pauses between two attempts, in seconds: most commits become visible in microseconds."""


NO_LIMITS = (
    "set idle_in_transaction_session_timeout = 0",
    "set statement_timeout = 0",
    "set idle_session_timeout = 0",
)

PAGE_BYTES = 8192
HEADER_BYTES = (24, 40)
"""The sizes of a page of the server's log, and of its header: a segment's first is longer."""


class Connect(Protocol):
    """
    Opens a connection with our settings, in autocommit mode.

    `host` and `port` select one of the servers that it could connect to.
    `partial(connection.connect, options)` is one, and can be sent to another process.
    """

    def __call__(
        self, *, host: str | None = None, port: int | None = None
    ) -> psycopg.Connection[Any]: ...


class HeldSnapshot:
    """
    A snapshot kept alive, with F and H of the baseline that is read under it.

    Readers import `id`, on the same server. After that they do not need the holder. It
    belongs to one thread, and `close` may follow any call.
    """

    def __init__(
        self,
        connection: psycopg.Connection[Any],
        connect: Connect,
        imported: str | None = None,
    ) -> None:
        """Take a new snapshot, or import the one exported as `imported`, and export it."""
        self.first = 0
        """F: every commit up to it is in the snapshot."""

        self.last = 0
        """H: no commit after it is in the snapshot."""

        self.readers = 0
        """The number of copies that read under it; it is kept while there are any."""

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
        """Whether the snapshot can still be imported, as far as is known without a query."""
        pgconn = self._connection.pgconn
        try:
            # If the server has ended the session, its message has not been read yet. That takes
            # two reads, one for the message and one for the end.
            for _ in range(4):
                if pgconn.status != pq.ConnStatus.OK or not readable(pgconn, 0):
                    break
                pgconn.consume_input()
                pgconn.is_busy()
        except psycopg.Error:
            return False
        return pgconn.transaction_status == pq.TransactionStatus.INTRANS

    def connect(self) -> psycopg.Connection[Any]:
        """Open another connection to the snapshot's server."""
        return self._connect(host=self.host, port=self.port)

    def close(self) -> None:
        """Release the snapshot. Never raises."""
        self._connection.close()

    def end_of_log(self, other: psycopg.Connection[Any]) -> int:
        """Return the current end of the server's log, as another connection sees it."""
        with talking():
            # The insert position, not the flushed one: an asynchronous commit is visible before
            # it is flushed.
            lsn, started = row(
                other,
                "select pg_current_wal_insert_lsn()::text, pg_postmaster_start_time()::text",
            )
        if started != self._started:
            raise SourceUnreachable(
                "Two connections reached different servers",
                host=self.host,
                remedy="Name one server in the connection string; the host name must not resolve"
                " to several servers.",
            )
        return record_end(parse_lsn(lsn))


def record_end(insert: int) -> int:
    """
    Return the end of the last record, given the start of the next one.

    At the start of a page, the next record starts after the page's header. The server does not
    report that position before there is another record, so on an idle server it would never
    be reached.
    """
    within = insert % PAGE_BYTES
    return insert - within if within in HEADER_BYTES else insert


def import_snapshot(connect: Connect, exported: str, at: int) -> HeldSnapshot:
    """
    Return the holder of the snapshot that a new slot exported, whose consistent point is `at` (H1).

    Until this returns, the connection that created the slot must not be used. `connect` must
    connect to the slot's server.
    """
    holder = HeldSnapshot(connect(), connect, exported)
    # The consistent point divides commits exactly: the snapshot sees those before it, no others.
    holder.first = holder.last = at
    return holder


def take_snapshot(
    connect: Connect,
    first: int,
    committed: Iterable[tuple[int, int]],
    *,
    unsure: float = 0.0,
    on_wait: Callable[[tuple[InvisibleCommit, ...]], object] = lambda _: None,
    pause: Callable[[float], object] = time.sleep,
    timeout: float | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> HeldSnapshot:
    """
    Return the holder of a new snapshot that sees every commit up to `first` (H2.3 to H2.6).

    `committed` are the latest commits of the log, as position and 64-bit top-level id. A
    commit is streamed before it is visible, and long before if the server waits for a
    standby: a commit that is in the log and not in the snapshot would be lost. If there is
    one, another snapshot is taken after a pause. `on_wait` is called each time with the
    commits that are waited for; it can also keep the caller's other connections alive, and
    raise an error to give up. After `timeout` seconds, `SourceUnreachable` is raised.

    For `unsure` more seconds the log may have commits, not visible yet, that are missing in
    `committed`, because a previous reader read them. Until then, every transaction that is
    running now may be one of them.
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
        pending: PendingCommits | None = None
        while True:
            holder = HeldSnapshot(connect(host=host, port=port), connect)
            try:
                if pending is None:
                    # Read a second time: at the first, a commit may not have been waiting yet.
                    look += sessions_of(other)
                    pending = PendingCommits(xids, look)
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
                    "Recorded commits did not become visible in time",
                    transactions=len(awaited),
                    synchronous=any(one.synchronous for one in awaited),
                    remedy="Check pg_stat_activity for sessions that wait for SyncRep;"
                    " a synchronous standby may be down.",
                )
            pause(rest)
            rest = min(2 * rest, LONGEST_PAUSE)
            look = sessions_of(other)


def _export(
    connection: psycopg.Connection[Any], imported: str | None
) -> tuple[str, TransactionSnapshot, str]:
    if not connection.autocommit:
        connection.autocommit = True
    for statement in NO_LIMITS:
        connection.execute(statement.encode())
    if connection.info.server_version >= 170000:
        connection.execute("set transaction_timeout = 0")
    if imported is None:
        connection.execute(BEGIN.encode())
    else:
        # Not prepared: two statements at once cannot be.
        connection.execute(importing(imported).encode(), prepare=False)
    exported, snapshot, started = row(
        connection,
        "select pg_export_snapshot(), pg_current_snapshot()::text,"
        " pg_postmaster_start_time()::text",
    )
    return exported, TransactionSnapshot.parse(snapshot), started


# --- the snapshots that tables are copied under ---------------------------------------------------

FIRST_COPY_SECONDS = 60.0
"""How long the slot's own snapshot is kept for a copy to start: it holds back vacuum."""

UNSURE_SECONDS = 1.0
"""
How long after a restart earlier commits may be invisible without our knowledge.

A commit becomes visible a few instructions of the server after it was sent. A commit that waits
for a standby is shown as waiting, and is waited for however long that takes (H2).
"""

_TRIES = 6
"""Attempts at a snapshot, within a quarter of a second, before changes are read again."""


class Snapshots:
    """Holds the slot's own snapshot, and takes others."""

    def __init__(self, options: PostgresOptions) -> None:
        self._options = options
        self._first: HeldSnapshot | None = None
        self._until = 0.0

    def keep(self, created: CreatedSlot) -> None:
        """Keep the slot's own snapshot, which ends with its connection's next command (R14)."""
        self._first = import_snapshot(
            partial(connect, self._options), created.snapshot, created.consistent
        )
        self._until = time.monotonic() + FIRST_COPY_SECONDS

    def first(self) -> HeldSnapshot | None:
        """Return the slot's snapshot, if it is still alive, and keep it longer."""
        if self._first is None or not self._first.alive:
            return None
        self._until = time.monotonic() + FIRST_COPY_SECONDS
        return self._first

    def kept_first(self) -> int | None:
        """Return F of copies under the slot's snapshot, as long as they may start (R27)."""
        self.tidy()  # also while nothing is read, because the log is full
        return self._first.first if self._first is not None else None

    def another(
        self, first: int, committed: RecentCommits, unsure: float, send_status: Callable[[], None]
    ) -> HeldSnapshot:
        """
        Take a snapshot that sees every commit up to `first`; raises `NotYet` after some attempts.

        `send_status` is called in between, to keep the stream alive.
        """
        tries = 0

        def on_wait(awaited: object) -> None:
            nonlocal tries
            tries += 1
            send_status()
            if tries >= _TRIES:
                raise NotYet("Recorded commits are not visible yet")

        holder = take_snapshot(
            partial(connect, self._options),
            first,
            committed.pairs(),
            unsure=unsure,
            on_wait=on_wait,
        )
        killpoints.reach(killpoints.SNAPSHOT_TAKEN)
        return holder

    def tidy(self) -> None:
        """Release the slot's snapshot once no more copies start under it."""
        if self._first is not None and not self._first.readers and time.monotonic() > self._until:
            self.close()

    def close(self) -> None:
        """Release the slot's snapshot; never raises."""
        if self._first is not None:
            with suppress(psycopg.Error, OSError):
                self._first.close()
            self._first = None
