"""
The replication slot, in which the server remembers how far we have read.

Slots are queried and dropped over an ordinary connection, and created over a replication
connection, which IDENTIFY_SYSTEM and TIMELINE_HISTORY need, too. All connections are open and in
autocommit. Server errors without a class of ours are left as psycopg's errors, for the caller to
translate.

Commands on a replication connection may take long. None blocks inside the driver: we wait for the
socket in short intervals while other threads run, so that a command which the server delays can be
watched, limited and cancelled.

A wait is reported with its reason. A new slot waits for every transaction that has an id,
including prepared ones (R17). A copy waits for those that wrote to its table before it was
published (R13). Either may take hours, and an operator can end it only by knowing the
transactions: their pid, user and application, and since when they are open. Their statements are
never reported: a query can contain anything.

Long because a slot, the command that creates it and the wait for that belong together.
"""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, Protocol

import psycopg
from psycopg import pq, sql
from psycopg.errors import error_from_result
from psycopg.rows import class_row

from headrace.capture.postgres.options import SLOT_NAME
from headrace.capture.postgres.position import parse_lsn
from headrace.errors import (
    NoRoom,
    NotPermitted,
    ServerRefused,
    SlotBusy,
    SlotRefused,
    SlotTimeout,
    SourceUnreachable,
)

# --- commands on a replication connection ---------------------------------------------------------

SLICE_SECONDS = 0.2
"""How often `on_wait` is called during a wait."""

CANCEL_SECONDS = 5.0
"""How long a server may take to cancel a command; a healthy one needs milliseconds."""


def answer(
    connection: psycopg.Connection[Any],
    command: str,
    timeout: float | None,
    on_wait: Callable[[float], None] | None = None,
) -> pq.abc.PGresult | None:
    """
    Send a command and return the server's answer, which may be an error; None: not in time.

    After None, and after an exception from `on_wait`, the command is still running.
    """
    connection.pgconn.send_query(command.encode())
    return _result(connection, timeout, on_wait)


def cancel(connection: psycopg.Connection[Any]) -> pq.abc.PGresult | None:
    """Cancel the running command and return its answer; None: there was none in time."""
    connection.cancel_safe(timeout=CANCEL_SECONDS)
    return _result(connection, CANCEL_SECONDS, None)


def _result(
    connection: psycopg.Connection[Any],
    timeout: float | None,
    on_wait: Callable[[float], None] | None,
) -> pq.abc.PGresult | None:
    pgconn = connection.pgconn
    started = time.monotonic()
    last: pq.abc.PGresult | None = None
    unsent = pgconn.flush()
    while True:
        while not pgconn.is_busy():
            result = pgconn.get_result()
            if result is None:
                return last
            last = result
        waited = time.monotonic() - started
        left = SLICE_SECONDS if timeout is None else min(SLICE_SECONDS, timeout - waited)
        if left <= 0:
            return None
        poll = select.poll()
        poll.register(pgconn.socket, select.POLLIN | (select.POLLOUT if unsent else 0))
        if poll.poll(left * 1000):
            pgconn.consume_input()
            unsent = pgconn.flush()
        elif on_wait is not None:
            on_wait(time.monotonic() - started)


# --- slots ----------------------------------------------------------------------------------------

PLUGIN = "pgoutput"
PREFIX = "headrace_"
"""How the default names of our slots begin."""

ANSWER_SECONDS = 30.0
"""How long a command that has nothing to wait for may take."""

RELEASE_SECONDS = 10.0
"""How long a terminated sender may take to end: it may be sending."""


class SlotState(StrEnum):
    """Whether a slot can be used, or why not (R35)."""

    USABLE = "usable"
    ABSENT = "absent"
    BUSY = "busy"
    """A process reads from it."""

    LOST = "lost"
    """The server removed WAL that was still needed (max_slot_wal_keep_size)."""

    CONFLICTING = "conflicting"
    """On a standby: its primary removed rows or lowered wal_level."""

    INVALIDATED = "invalidated"
    """The server invalidated it for another reason, for example because it was idle too long."""

    OTHER_PLUGIN = "other_plugin"
    OTHER_DATABASE = "other_database"


@dataclass(frozen=True, slots=True)
class Slot:
    """A row of pg_replication_slots; columns that the server does not have are None."""

    name: str
    plugin: str | None
    """None: a physical slot."""

    database: int | None
    database_name: str | None
    temporary: bool
    active: bool
    reader: int | None
    """The pid of the process that reads from it."""

    restart: int | None
    """The server keeps its WAL from here on."""

    confirmed: int | None
    """Up to here we have acknowledged everything."""

    wal_status: str | None
    safe_wal_size: int | None
    """Bytes that may still be written before it can be lost; None: there is no limit."""

    two_phase: bool
    conflicting: bool | None = None
    """PostgreSQL 16 and newer."""

    invalidation: str | None = None
    """The server's reason. PostgreSQL 17 and newer, like the following."""

    failover: bool | None = None
    synced: bool | None = None
    inactive_since: datetime | None = None


@dataclass(frozen=True, slots=True)
class Identity:
    """The server and database of a connection, and the end of the server's WAL."""

    system: str
    timeline: int
    flushed: int
    database: int
    """The database's oid."""


@dataclass(frozen=True, slots=True)
class Switch:
    """The end of a timeline: from `at` on, the server continued on another one."""

    timeline: int
    at: int


@dataclass(frozen=True, slots=True)
class CreatedSlot:
    """A new slot: it sends every commit after `consistent`, and the snapshot has those before."""

    consistent: int
    snapshot: str
    """Valid until the next command on the same connection."""


@dataclass(frozen=True, slots=True)
class Older:
    """A transaction that the creation of a slot may be waiting for (R17)."""

    pid: int | None
    """None: it is prepared, and belongs to no session."""

    user: str | None
    application: str | None
    database: str | None
    age: float | None
    """Seconds since it began or was prepared; None: we lack the privilege to see it."""

    query_age: float | None
    gid: str | None
    """The name under which it was prepared."""

    blocks: bool
    """Whether the server is waiting for this transaction now."""


def identify(connection: psycopg.Connection[Any]) -> Identity:
    """Return the server's identity and the database's oid, over a replication connection."""
    system, timeline, flushed = _row(connection, "IDENTIFY_SYSTEM")[:3]
    (database,) = _row(
        connection, "SELECT oid FROM pg_catalog.pg_database WHERE datname = current_database()"
    )
    return Identity(_text(system), int(timeline), parse_lsn(_text(flushed)), int(database))


def timeline_history(connection: psycopg.Connection[Any], timeline: int) -> tuple[Switch, ...]:
    """Return where the timelines before `timeline` ended, the first one first."""
    if timeline == 1:
        return ()  # the server has no history file for it, and would return an error
    content = _text(_row(connection, f"TIMELINE_HISTORY {timeline}")[1])
    switches = []
    for line in content.splitlines():
        parts = line.split("#", 1)[0].split()
        if len(parts) >= 2:
            switches.append(Switch(int(parts[0]), parse_lsn(parts[1])))
    return tuple(switches)


def find(connection: psycopg.Connection[Any], name: str) -> Slot | None:
    """Return the slot with this name, in any database."""
    found = _slots(connection, sql.SQL("s.slot_name = {}").format(sql.Literal(name)))
    return found[0] if found else None


def leftovers(connection: psycopg.Connection[Any], prefix: str = PREFIX) -> list[Slot]:
    """Return our permanent slots that are not in use: the server keeps WAL for each of them."""
    condition = sql.SQL(
        "starts_with(s.slot_name::text, {}) AND s.plugin = {} AND NOT s.active AND NOT s.temporary"
    )
    return _slots(connection, condition.format(sql.Literal(prefix), sql.Literal(PLUGIN)))


def state(slot: Slot | None, database: int) -> SlotState:
    """Return whether a reader of `database` can use the slot, or why not."""
    if slot is None:
        return SlotState.ABSENT
    if slot.plugin != PLUGIN:
        return SlotState.OTHER_PLUGIN
    if slot.database != database:
        return SlotState.OTHER_DATABASE
    # Newer servers report `lost` for a slot that they invalidated for any reason. PostgreSQL 16
    # also reports `conflicting` for each of these, without a reason; there, a slot without
    # restart_lsn is one whose WAL was removed.
    if slot.invalidation == "wal_removed" or (
        slot.invalidation is None
        and slot.wal_status == "lost"
        and (slot.restart is None or not slot.conflicting)
    ):
        return SlotState.LOST
    if slot.conflicting:
        return SlotState.CONFLICTING
    if slot.invalidation is not None:
        return SlotState.INVALIDATED
    return SlotState.BUSY if slot.active else SlotState.USABLE


def create(
    connection: psycopg.Connection[Any],
    name: str,
    *,
    temporary: bool = False,
    failover: bool = False,
    timeout: float | None = None,
    on_wait: Callable[[float], None] | None = None,
) -> CreatedSlot:
    """
    Create a slot over a replication connection, and return its consistent point and snapshot.

    The server waits until every transaction with an id has ended, including prepared ones
    (R17). Meanwhile `on_wait` is called a few times a second with the seconds so far. It may
    raise to give up. Then, as after `timeout` seconds, the command is cancelled and no slot
    remains; if it cannot be cancelled, the connection is closed.
    """
    command = _creation(connection, name, temporary=temporary, failover=failover)
    started = time.monotonic()
    try:
        result = answer(connection, command, timeout, on_wait)
    except BaseException:
        # The command may still be running on the server.
        _abandon(connection, name)
        raise
    if result is not None:
        return _created(result, name)
    _abandon(connection, name)
    raise SlotTimeout(
        "The slot could not be created in time: older transactions are still open",
        slot=name,
        waited=round(time.monotonic() - started, 1),
    )


def waiting_for(connection: psycopg.Connection[Any], sender: int | None = None) -> list[Older]:
    """
    Return the transactions that have an id, the oldest first.

    `sender` is the server's process for the replication connection that creates a slot; with
    it, the result also shows for which of them it is waiting now.
    """
    query = """
        SELECT r.pid, r.user, r.application, r.database, r.age::float8, r.query_age::float8, r.gid,
               coalesce(r.xid = (SELECT l.transactionid FROM pg_catalog.pg_locks l
                                 WHERE l.pid = %s AND l.locktype = 'transactionid'
                                   AND NOT l.granted LIMIT 1), false) AS blocks
        FROM (SELECT a.pid, a.usename::text AS user,
                     a.application_name AS application, a.datname::text AS database,
                     extract(epoch FROM clock_timestamp() - a.xact_start) AS age,
                     extract(epoch FROM clock_timestamp() - a.query_start) AS query_age,
                     NULL::text AS gid, a.backend_xid AS xid
              FROM pg_catalog.pg_stat_activity a
              WHERE a.backend_xid IS NOT NULL AND a.pid <> pg_backend_pid()
              UNION ALL
              SELECT NULL, p.owner::text, NULL, p.database::text,
                     extract(epoch FROM clock_timestamp() - p.prepared),
                     NULL, p.gid, p.transaction
              FROM pg_catalog.pg_prepared_xacts p) r
        ORDER BY r.age DESC NULLS LAST
    """
    with connection.cursor(row_factory=class_row(Older)) as cursor:
        return cursor.execute(query, (sender,)).fetchall()


def drop(connection: psycopg.Connection[Any], name: str) -> bool:
    """Drop the slot over an ordinary connection; False: there was none."""
    try:
        connection.execute("SELECT pg_catalog.pg_drop_replication_slot(%s)", (name,))
    except psycopg.errors.UndefinedObject:
        return False
    except psycopg.errors.ObjectInUse as error:
        found = find(connection, name)
        reader = None if found is None else found.reader
        user = "another process" if reader is None else f"process {reader}"
        raise SlotBusy(
            f"The slot cannot be dropped: it is in use by {user}",
            slot=name,
            pid=reader,
            remedy=f"Stop the client of {user}, or end the process on the server:"
            f" SELECT pg_terminate_backend({'…' if reader is None else reader}); then try again.",
        ) from error
    except psycopg.errors.InsufficientPrivilege as error:
        raise NotPermitted(
            "The user may not drop replication slots",
            slot=name,
            remedy=f"Run SELECT pg_drop_replication_slot('{name}') as a user with REPLICATION.",
        ) from error
    return True


def release(connection: psycopg.Connection[Any], name: str, application: str) -> bool:
    """
    Make sure that the slot is not in use; True: a stale sender of ours was terminated.

    A sender whose application_name begins with `application` serves a former connection of
    ours: only one process has the log, and that is this one (R31). For any other sender,
    `SlotBusy` is raised.
    """
    # One statement finds and terminates it, so that its pid cannot be reused in between.
    query = """
        SELECT pg_catalog.pg_terminate_backend(a.pid, %s)
        FROM pg_catalog.pg_replication_slots s
        JOIN pg_catalog.pg_stat_activity a ON a.pid = s.active_pid
        WHERE s.slot_name = %s AND starts_with(a.application_name, %s)
    """
    found = find(connection, name)
    if found is None or not found.active:
        return False
    try:
        ended = connection.execute(
            query, (int(RELEASE_SECONDS * 1000), name, application)
        ).fetchone()
    except psycopg.errors.InsufficientPrivilege as error:
        raise NotPermitted(
            f"The user may not terminate process {found.reader}, which still uses the slot",
            slot=name,
            pid=found.reader,
            remedy=f"Run SELECT pg_terminate_backend({found.reader}) as the user it belongs to.",
        ) from error
    found = find(connection, name)
    if found is not None and found.active:
        raise busy(found) if ended is None else _stale(found)
    return ended is not None


def busy(slot: Slot) -> SlotBusy:
    """Return the error for a slot that another process uses."""
    user = "another process" if slot.reader is None else f"process {slot.reader}"
    return SlotBusy(f"The slot is in use by {user}", slot=slot.name, pid=slot.reader)


def _stale(slot: Slot) -> SlotBusy:
    """Return the error for a slot that our own sender keeps, although it was told to end."""
    return SlotBusy(
        f"The slot is in use by process {slot.reader}, which serves an earlier connection of this"
        " source and does not end",
        slot=slot.name,
        pid=slot.reader,
        remedy=f"If process {slot.reader} of the server is suspended, resume it: it was asked to"
        " end. The source then continues by itself.",
    )


def name_or_drop(name: str) -> str:
    """Return the remedy for a slot that exists and is not known to be ours."""
    return (
        "Choose another slot name for this source. If the existing slot is no longer needed, run"
        f" SELECT pg_drop_replication_slot('{name}');"
    )


def _slots(connection: psycopg.Connection[Any], condition: sql.Composable) -> list[Slot]:
    version = connection.info.server_version
    since_16 = sql.SQL("s.conflicting," if version >= 160000 else "")
    since_17 = sql.SQL(
        "s.invalidation_reason AS invalidation, s.failover, s.synced, s.inactive_since,"
        if version >= 170000
        else ""
    )
    query = sql.SQL("""
        SELECT s.slot_name::text AS name, s.plugin::text AS plugin, s.datoid::int8 AS database,
               s.database::text AS database_name, s.temporary, s.active, s.active_pid AS reader,
               (s.restart_lsn - '0/0')::int8 AS restart,
               (s.confirmed_flush_lsn - '0/0')::int8 AS confirmed,
               s.wal_status, s.safe_wal_size, {} {} s.two_phase
        FROM pg_catalog.pg_replication_slots s WHERE {} ORDER BY s.slot_name
    """).format(since_16, since_17, condition)
    with connection.cursor(row_factory=class_row(Slot)) as cursor:
        return cursor.execute(query).fetchall()


def _creation(
    connection: psycopg.Connection[Any], name: str, *, temporary: bool, failover: bool
) -> str:
    if not SLOT_NAME.fullmatch(name):
        raise SlotRefused(
            "Invalid slot name",
            slot=name,
            remedy="Use only a-z, 0-9 and _, at most 63 characters.",
        )
    version = connection.info.server_version
    if failover and version < 170000:
        raise ServerRefused(
            "Failover slots need PostgreSQL 17 or newer",
            version=version // 10000,
            remedy="Set failover to false, or use a newer server.",
        )
    lifetime = " TEMPORARY" if temporary else ""
    options = "EXPORT_SNAPSHOT"
    if version >= 150000:
        # A temporary slot ends with its connection, and cannot fail over.
        options = f"(SNAPSHOT 'export'{', FAILOVER' if failover and not temporary else ''})"
    return f'CREATE_REPLICATION_SLOT "{name}"{lifetime} LOGICAL {PLUGIN} {options}'


def _created(result: pq.abc.PGresult, name: str) -> CreatedSlot:
    if result.status == pq.ExecStatus.TUPLES_OK:
        consistent, snapshot = result.get_value(0, 1), result.get_value(0, 2)
        return CreatedSlot(parse_lsn(_text(consistent)), _text(snapshot))
    error = error_from_result(result)
    match error:
        case psycopg.errors.DuplicateObject():
            raise SlotRefused(
                "A slot with this name already exists",
                slot=name,
                remedy=name_or_drop(name),
            ) from error
        case psycopg.errors.ConfigurationLimitExceeded():
            raise NoRoom("All replication slots of the server are in use", slot=name) from error
        case psycopg.errors.InsufficientPrivilege():
            raise NotPermitted(
                "The user may not create replication slots",
                slot=name,
                remedy="As a superuser, run ALTER ROLE … REPLICATION for the source's user.",
            ) from error
        case psycopg.errors.ObjectNotInPrerequisiteState():
            raise ServerRefused(
                "wal_level is not 'logical', which logical replication needs",
                remedy="Set wal_level = logical and restart the server.",
            ) from error
    raise error


def _abandon(connection: psycopg.Connection[Any], name: str) -> None:
    """Cancel the creation of a slot; afterwards there is no slot, or no connection."""
    try:
        last = cancel(connection)
        if last is not None and last.status == pq.ExecStatus.TUPLES_OK:
            # The slot was created just before the cancellation.
            answer(connection, f'DROP_REPLICATION_SLOT "{name}"', ANSWER_SECONDS)
    except psycopg.Error:
        last = None
    if last is None:
        connection.close()


def _row(connection: psycopg.Connection[Any], command: str) -> list[bytes]:
    """Return the row with which the server answers a replication command."""
    result = answer(connection, command, ANSWER_SECONDS)
    if result is None:
        connection.close()
        raise SourceUnreachable("The server did not answer in time", waited=ANSWER_SECONDS)
    if result.status != pq.ExecStatus.TUPLES_OK:
        raise error_from_result(result)
    return [result.get_value(0, column) or b"" for column in range(result.nfields)]


def _text(value: bytes | None) -> str:
    return (value or b"").decode()


WRITTEN = """
case when pg_is_in_recovery() then pg_last_wal_replay_lsn() else pg_current_wal_insert_lsn() end
- '0/0'::pg_lsn
"""
"""The end of the server's WAL; of a standby's, as far as queries see it."""


def written(connection: psycopg.Connection[Any]) -> int:
    """Return the end of the server's WAL, flushed or not."""
    found = connection.execute(f"select ({WRITTEN})::int8".encode()).fetchone()
    assert found is not None
    return int(found[0])


# --- descriptions of the transactions that are waited for -----------------------------------------

LOOK_SECONDS = 1.0
"""Between two queries of the transactions that are waited for, which cost the server a little."""


class Transaction(Protocol):
    """A transaction of another session: `Older` or `Locker`."""

    @property
    def pid(self) -> int | None: ...
    @property
    def user(self) -> str | None: ...
    @property
    def application(self) -> str | None: ...
    @property
    def age(self) -> float | None: ...
    @property
    def gid(self) -> str | None: ...


class Watcher:
    """
    Reports the transactions that the creation of a slot is waiting for.

    `query` is an ordinary connection of the same thread, `sender` the server's process for the
    connection that creates the slot. An exception from `report` ends the creation.
    """

    def __init__(
        self, query: psycopg.Connection[Any], sender: int, report: Callable[[str], object]
    ) -> None:
        self._query = query
        self._sender = sender
        self._report = report
        self._looked = 0.0
        self._text = ""

    def look(self, waited: float) -> None:
        """Report what is waited for; may be called at any rate, with the seconds so far."""
        if not self._text or waited - self._looked >= LOOK_SECONDS:
            self._looked = waited
            found = waiting_for(self._query, self._sender)
            # The server waits for one transaction after the other, and shows for which.
            blocking = [one for one in found if one.blocks]
            self._text = wait_reason("The new slot is waiting for", blocking or found)
        self._report(self._text)


def wait_reason(begins: str, transactions: Sequence[Transaction]) -> str:
    """Return `begins` with a description of the first transaction and the number of others."""
    if not transactions:
        return f"{begins} open transactions"
    first, others = transactions[0], len(transactions) - 1
    more = f", and {others} more" if others else ""
    return f"{begins} {_described(first)}{more}"


def _described(one: Transaction) -> str:
    text = f"pid {one.pid}" if one.pid is not None else f"the prepared transaction {one.gid!r}"
    if one.user is not None:
        text += f" of user {one.user}"
    if one.application:
        text += f" ({one.application})"
    if one.age is None:
        return text
    began = datetime.fromtimestamp(time.time(), UTC) - timedelta(seconds=one.age)
    return f"{text}, open for {_span(one.age)}, since {began:%Y-%m-%d %H:%M:%S} UTC"


def _span(seconds: float) -> str:
    """Return a duration in its largest unit, so that the text does not change all the time."""
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            return f"{int(seconds // size)} {unit}"
    return f"{int(seconds)} s"
