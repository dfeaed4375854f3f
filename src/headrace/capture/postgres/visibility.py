"""
Which transactions a snapshot sees, and who keeps it from seeing what the log has already.

The server streams a commit when it is on disk, and shows it to other sessions a moment later;
where it waits for a synchronous standby, that moment can be hours (R11, H2.5).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import psycopg

from headrace.capture.postgres.asking import row, talking
from headrace.changelog.window import Snapshot
from headrace.errors import NotPermitted, ServerRefused

PREPARED = 0
"""Stands for the id of a prepared transaction that is being committed: sessions do not show it."""


def visible(xid: int, snapshot: Snapshot) -> bool:
    """Whether `snapshot` sees what the top-level transaction `xid`, once committed, wrote."""
    return snapshot.sees(xid)


@dataclass(frozen=True, slots=True)
class Awaited:
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
class Session:
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


def sessions_of(other: psycopg.Connection[Any]) -> list[Session]:
    """Return the sessions that write or are at work, as far as we may see them."""
    with talking():
        found = other.execute(
            "select pid, query_start::text, usename::text,"
            " extract(epoch from clock_timestamp() - xact_start)::float8,"
            " backend_xid::text::bigint, coalesce(wait_event = 'SyncRep', false)"
            " from pg_stat_activity where backend_xid is not null or state = 'active'"
        ).fetchall()
    return [Session(*row) for row in found]


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


class Pending:
    """
    The commits that a snapshot must see: those the log has, and those it may have.

    Of the latter are all that wait for a standby when the log's end has just been read. Later
    ones are not in the log up to there. So what is waited for never grows, however
    many commits wait at any time.
    """

    def __init__(self, xids: Iterable[int], sessions: Iterable[Session]) -> None:
        self._xids = frozenset(xids)
        self._waiting = {(one.pid, one.started): one for one in sessions if one.waits}

    def unseen(
        self, snapshot: Snapshot, sessions: Iterable[Session], perhaps: Iterable[int] = ()
    ) -> tuple[Awaited, ...]:
        """
        Return those that `snapshot`, taken after the look at `sessions`, does not see.

        `perhaps` are more of them, by their lower 32 bits.
        """
        xids = self._xids | {_widened(xid, snapshot.xmax) for xid in perhaps}
        awaited = {xid: Awaited(xid) for xid in xids if not snapshot.sees(xid)}
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


def _awaited(xid: int, session: Session) -> Awaited:
    return Awaited(xid, session.pid, session.user, session.seconds, session.waits)


def _widened(xid: int, around: int) -> int:
    """Return the number of 64 bits nearest to `around` that ends in these 32."""
    return around + (xid - around + (1 << 31)) % (1 << 32) - (1 << 31)
