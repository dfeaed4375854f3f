"""
The snapshot that a baseline is read under, kept alive for as long as it takes.

A baseline has three marks (R11). F is the log's end before it; S is the snapshot its rows are read
under; H is where the server's log ended after S was taken. Commits up to F must all be in S, and
that is checked; commits after H cannot be; between the two, S itself says which are. A reader that
applies every change after F has the exact table from H on.

A snapshot may not yet see what the log has already. The server streams a commit when it is on
disk, and shows it to other sessions a moment later; where the commit waits for a synchronous
standby, that moment can be hours (R11, H2.5). So it is determined which transactions a snapshot
sees, and which sessions keep it from seeing the others.

An exported snapshot lives as long as the transaction that exported it, and the one a new slot
exports only until the slot streams. So a connection of its own imports it, exports it again, and
then does nothing but stay open: the holder (R14).

The slot brings a snapshot of its own, right for every table that was published before the slot was
made: it is kept for a while, as long as copies begin. Later copies take one each, which counts
only after it was checked against what was read (H1 to H3).
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
"""Stands for the id of a prepared transaction that is being committed: sessions do not show it."""


def visible(xid: int, snapshot: TransactionSnapshot) -> bool:
    """Whether `snapshot` sees what the top-level transaction `xid`, once committed, wrote."""
    return snapshot.sees(xid)


@dataclass(frozen=True, slots=True)
class InvisibleCommit:
    """A transaction that has committed in the log but is not visible to anyone yet."""

    xid: int
    """Its 64-bit id, or `PREPARED`."""

    pid: int | None = None
    """The session it runs in; None where that was over, or is not ours to see."""

    user: str | None = None
    seconds: float | None = None
    """Since its transaction began."""

    synchronous: bool = False
    """Whether it waits for a synchronous standby."""


def check_sight(other: psycopg.Connection[Any]) -> None:
    """Refuse where it could not be told which commits are not visible yet."""
    with talking():
        recovering, synchronous, sees_all = row(
            other,
            "select pg_is_in_recovery(), current_setting('synchronous_standby_names') <> '',"
            " pg_has_role('pg_read_all_stats', 'usage')",
        )
    if recovering:
        # There pg_current_snapshot() leaves out the transactions that are running.
        raise ServerRefused(
            "A standby cannot give a baseline beside a running stream",
            remedy="Capture from the primary, or start with an empty log.",
        )
    if synchronous and not sees_all:
        raise NotPermitted(
            "The user cannot see which commits wait for a synchronous standby",
            remedy="Run GRANT pg_read_all_stats TO this user.",
        )


@dataclass(frozen=True, slots=True)
class ServerSession:
    """A session that writes, or that is at work."""

    pid: int
    started: str | None
    """When its statement began: with the pid, what tells it from all other statements."""

    user: str | None
    seconds: float | None
    xid: int | None
    """The lower 32 bits of its transaction; None where it commits a prepared one."""

    waits: bool
    """Whether its commit is on disk, and waits for a standby."""


def sessions_of(other: psycopg.Connection[Any]) -> list[ServerSession]:
    """Return the sessions that write or are at work, as far as we may see them."""
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
    Return the lower 32 bits of all transactions under way, prepared ones and savepoints too.

    By the locks that they hold on themselves: these are let go of only when others see them.
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

    Of the latter are all that wait for a standby when the log's end has just been read. Later
    ones are not in the log up to there. So what is waited for never grows, however
    many commits wait at any time.
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
        Return those that `snapshot`, taken after the look at `sessions`, does not see.

        `perhaps` are more of them, by their lower 32 bits.
        """
        xids = self._xids | {_widened(xid, snapshot.xmax) for xid in perhaps}
        awaited = {xid: InvisibleCommit(xid) for xid in xids if not snapshot.sees(xid)}
        at_work = {(one.pid, one.started): one for one in sessions}
        for one in at_work.values():
            xid = None if one.xid is None else _widened(one.xid, snapshot.xmax)
            if xid is not None and xid in awaited:
                awaited[xid] = _awaited(xid, one)
        for place, one in self._waiting.items():
            if one.xid is None:
                # Whose transaction it is stands nowhere, but when it is done, its statement is.
                if place in at_work:
                    awaited[PREPARED] = _awaited(PREPARED, one)
            elif not snapshot.sees(xid := _widened(one.xid, snapshot.xmax)):
                awaited[xid] = _awaited(xid, one)
        return tuple(awaited[xid] for xid in sorted(awaited))


def _awaited(xid: int, session: ServerSession) -> InvisibleCommit:
    return InvisibleCommit(xid, session.pid, session.user, session.seconds, session.waits)


def _widened(xid: int, around: int) -> int:
    """Return the number of 64 bits nearest to `around` that ends in these 32."""
    return around + (xid - around + (1 << 31)) % (1 << 32) - (1 << 31)


# --- the holder of a snapshot ---------------------------------------------------------------------

FIRST_PAUSE = 0.005
LONGEST_PAUSE = 0.25
"""Between two attempts at a snapshot, in seconds: most commits become visible in microseconds."""


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


class HeldSnapshot:
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


def import_snapshot(connect: Connect, exported: str, at: int) -> HeldSnapshot:
    """
    Return the holder of the snapshot that a new slot exported, whose consistent point is `at` (H1).

    Until this returns, nothing else may go over the connection the slot was made on. The
    slot's server must be the one that `connect` leads to.
    """
    holder = HeldSnapshot(connect(), connect, exported)
    # The slot's point divides commits exactly: those before it are seen, no others.
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
        pending: PendingCommits | None = None
        while True:
            holder = HeldSnapshot(connect(host=host, port=port), connect)
            try:
                if pending is None:
                    # Looked up twice: before, a commit may not have begun to wait.
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
                    "Commits that were recorded did not become visible in time",
                    transactions=len(awaited),
                    synchronous=any(one.synchronous for one in awaited),
                    remedy="Look for sessions that wait for SyncRep in pg_stat_activity;"
                    " a synchronous standby may be away.",
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
        # Never prepared, which two statements at once cannot be.
        connection.execute(importing(imported).encode(), prepare=False)
    exported, snapshot, started = row(
        connection,
        "select pg_export_snapshot(), pg_current_snapshot()::text,"
        " pg_postmaster_start_time()::text",
    )
    return exported, TransactionSnapshot.parse(snapshot), started


# --- the snapshots that tables are copied under ---------------------------------------------------

FIRST_COPY_SECONDS = 60.0
"""How long the slot's own snapshot is kept for a copy to begin: it holds back vacuum."""

UNSURE_SECONDS = 1.0
"""
After reading began anew, how long commits from before may be invisible without our knowing.

Between a commit's being sent and its being visible lie a few instructions of the server; where it
waits for a standby it says so, and is waited for however long that takes (H2).
"""

_TRIES = 6
"""So many attempts at a snapshot, in a quarter of a second, before changes have their turn."""


class Snapshots:
    """Holds the slot's snapshot, and takes others."""

    def __init__(self, options: PostgresOptions) -> None:
        self._options = options
        self._first: HeldSnapshot | None = None
        self._until = 0.0

    def keep(self, created: CreatedSlot) -> None:
        """Keep the slot's own snapshot, which ends with the next command there (R14)."""
        self._first = import_snapshot(
            partial(connect, self._options), created.snapshot, created.consistent
        )
        self._until = time.monotonic() + FIRST_COPY_SECONDS

    def first(self) -> HeldSnapshot | None:
        """Return the slot's snapshot, if it can still be read under, and keep it longer."""
        if self._first is None or not self._first.alive:
            return None
        self._until = time.monotonic() + FIRST_COPY_SECONDS
        return self._first

    def kept_first(self) -> int | None:
        """Return F of copies under the slot's snapshot, for as long as they may begin (R27)."""
        self.tidy()  # also while nothing is read, because the log is full
        return self._first.first if self._first is not None else None

    def another(
        self, first: int, committed: RecentCommits, unsure: float, beat: Callable[[], None]
    ) -> HeldSnapshot:
        """
        Take a snapshot that has every commit up to `first`; raises `NotYet` after some tries.

        `beat` is called in between, so that the stream lives.
        """
        tries = 0

        def on_wait(awaited: object) -> None:
            nonlocal tries
            tries += 1
            beat()
            if tries >= _TRIES:
                raise NotYet("Commits that were recorded are not visible yet")

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
        """Let go of the slot's snapshot once nobody begins to copy under it any more."""
        if self._first is not None and not self._first.readers and time.monotonic() > self._until:
            self.close()

    def close(self) -> None:
        """Let go of the slot's snapshot; never raises."""
        if self._first is not None:
            with suppress(psycopg.Error, OSError):
                self._first.close()
            self._first = None
