"""
The start position: the decision before every START_REPLICATION, and its preparations (R2).

A server never refuses a wrong start position. If it is before the confirmed position, the server
silently moves forward; if it is after the end of its WAL, the server silently skips everything up
to it. So the position is determined here, from our log and from the server's state, with four
outcomes: reading continues at the log's end; changes are missing (a gap); the server no longer has
what the log has (it was rewound); or this is another database.

The publication is altered, with steps before and after. *Before*: a table that is added to the
publication again may have a baseline in the log that is no longer valid. The log must record that
first, because nothing would show it afterwards if the process ended in between. *After*:
transactions that wrote to the table before it was published must end before it is copied (R13).

The server's history must be the one that the log was recorded from (R2). A server whose files were
restored to an earlier state has the same identity and the same timeline. While its WAL is shorter
than our log, that is detected. But it writes more, and once it has passed our end, its positions no
longer distinguish the two histories. What was newly written before our end would never be read. So
the log has, with each position, the last commit before it: where its record began, its transaction
and its time. Before reading continues, the server sends once more from there, which it must still
be able to do. It must begin with exactly that commit, and up to the log's end send no other commit
with changes of our tables. Files are restored while a server is stopped, so this is checked once
after each start of the server.

`open_slot` leads from the log's end to a slot that the server sends from (H0, H1). The server's
state decides whether reading continues or starts over (R2). If it starts over, first the
publication is set up and then the slot is created. That may have to wait for transactions of other
sessions, for hours: they are reported to the caller (R17).

`remove` drops what is ours on a server, the slot and the publication. The slot is dropped first.
Without its slot, reading starts over, whatever else exists. A slot without its publication would
be read further, and what was written meanwhile would not be sent.

Long because the steps of a start are safe only in their order, and are here in that order.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from typing import Any, NoReturn

import psycopg

from headrace.capture.postgres.connection import connect, speaking
from headrace.capture.postgres.decode import pgoutput
from headrace.capture.postgres.options import PostgresOptions
from headrace.capture.postgres.position import LsnPosition, Mark, lsn_text
from headrace.capture.postgres.server import publication, slot
from headrace.capture.postgres.server import slot as slots
from headrace.capture.postgres.server.catalog import CatalogTable
from headrace.capture.postgres.server.publication import Alterations, Writers
from headrace.capture.postgres.server.slot import (
    Identity,
    Slot,
    SlotState,
    Switch,
    Watcher,
    state,
    wait_reason,
)
from headrace.capture.postgres.stream.stream import ReceivedMessages, ReplicationStream
from headrace.capture.source import NotYet
from headrace.errors import (
    OtherDatabase,
    PublicationRefused,
    Reopening,
    SlotRefused,
    SourceUnreachable,
)
from headrace.storage import killpoints

# --- the decision on the start position -----------------------------------------------------------


class Reason(StrEnum):
    """Why every table is copied again; each is a code that is shown and logged."""

    FIRST = "capture.first_start"
    EPHEMERAL = "capture.ephemeral"
    ALWAYS = "capture.always_baseline"
    GAP = "capture.gap"
    """The slot was advanced beyond the log's end: the changes between are lost."""

    UNPUBLISHED = "capture.publication_absent"
    """The publication was missing for a while: the changes of that time are lost."""

    REWOUND = "capture.rewound"
    """The log has commits that the server no longer has."""

    ABSENT = "capture.slot_absent"
    LOST = "capture.slot_lost"
    CONFLICTING = "capture.slot_conflicting"
    INVALIDATED = "capture.slot_invalidated"


_CAUSES = {
    Reason.EPHEMERAL: "The replication slot {slot} was temporary, and ended with its connection",
    Reason.ALWAYS: "The source is set to copy every table at each start",
    Reason.GAP: "The replication slot {slot} was moved forward beyond the end of the log",
    Reason.UNPUBLISHED: "The publication {publication} did not exist for a while",
    Reason.REWOUND: "The server was restored to an earlier state, or another one took its place:"
    " it no longer has the last commits in the log",
    Reason.ABSENT: "The replication slot {slot} does not exist any more: it was dropped",
    Reason.LOST: "The replication slot {slot} was lost: the server removed WAL that was not read"
    " yet, because it was more than max_slot_wal_keep_size",
    Reason.CONFLICTING: "The replication slot {slot} was invalidated on the standby",
    Reason.INVALIDATED: "The replication slot {slot} was invalidated by the server",
}


def cause(reason: Reason, options: PostgresOptions) -> str:
    """Return why reading does not continue where the log ends; empty at a first start."""
    text = _CAUSES.get(reason, "")
    return text.format(slot=options.slot, publication=options.publication)


_GONE = {
    SlotState.ABSENT: Reason.ABSENT,
    SlotState.LOST: Reason.LOST,
    SlotState.CONFLICTING: Reason.CONFLICTING,
    SlotState.INVALIDATED: Reason.INVALIDATED,
}


@dataclass(frozen=True, slots=True)
class Resume:
    """The slot has everything after `at`: the log's end, on the server's timeline."""

    at: LsnPosition


@dataclass(frozen=True, slots=True)
class Begin:
    """A new slot is created and every table is copied (H1)."""

    reason: Reason
    branch: int
    """Of the following positions; one more than the log's if the server was rewound."""

    drop: bool
    """Whether the existing slot has to be dropped first."""


def decide(
    after: LsnPosition | None,
    server: Identity,
    slot: Slot | None,
    history: Sequence[Switch] = (),
    *,
    ephemeral: bool = False,
    always_baseline: bool = False,
    intended: bool = False,
    other: bool = False,
) -> Resume | Begin:
    """
    Decide how reading continues after `after`, the log's end; None: the log has no start.

    `history` is that of the server's timeline; it is used only if the log's end is on another
    timeline. `intended`: according to the log, we were creating the slot when the process
    ended. `always_baseline` is for the first start of a process, not for its reconnects.
    `other`: the check found that the server's history is not the log's, however long it is.

    Raises `OtherDatabase`, `SlotRefused` if the slot is not ours, and `SlotBusy`.
    """
    check_database(after, server)
    rewound = after is not None and (other or _rewound(after, server, history))
    branch = 0 if after is None else after.branch + rewound
    if ephemeral:
        # A slot with this name is not ours: a temporary one ends with its connection.
        reason = Reason.FIRST if after is None else Reason.EPHEMERAL
        return Begin(Reason.REWOUND if rewound else reason, branch, drop=False)
    found = state(slot, server.database)
    refuse(slot, found)
    drop = slot is not None
    if after is None:
        if slot is not None and not intended:
            raise unknown(slot)
        return Begin(Reason.FIRST, branch, drop)
    if rewound:
        return Begin(Reason.REWOUND, branch, drop)
    if slot is None or found in _GONE:
        return Begin(_GONE[found], branch, drop)
    if slot.confirmed is None or slot.confirmed > after.lsn:
        return Begin(Reason.GAP, branch, drop)
    if always_baseline:
        return Begin(Reason.ALWAYS, branch, drop)
    return Resume(replace(after, timeline=server.timeline))


def check_database(after: LsnPosition | None, server: Identity) -> None:
    """Raise `OtherDatabase` if the log that ends at `after` is of another database."""
    if after is not None and (after.system, after.database) != (server.system, server.database):
        raise OtherDatabase(
            "This is not the database that the log was recorded from",
            recorded=f"{after.system}/{after.database}",
            found=f"{server.system}/{server.database}",
        )


def _rewound(after: LsnPosition, server: Identity, history: Sequence[Switch]) -> bool:
    """Whether the log has commits that the server does not have."""
    if after.lsn > server.flushed:
        return True
    if after.timeline == server.timeline:
        return False
    ends = {switch.timeline: switch.at for switch in history}
    # If the server was never on this timeline, the histories share at most their beginning.
    return after.timeline not in ends or ends[after.timeline] < after.lsn


def refuse(slot: Slot | None, found: SlotState) -> None:
    """Raise if a slot is in use, or not ours to read or drop."""
    if slot is None:
        return
    match found:
        case SlotState.OTHER_PLUGIN:
            raise SlotRefused(
                "The slot has another output plugin than pgoutput",
                slot=slot.name,
                plugin=slot.plugin or "physical",
            )
        case SlotState.OTHER_DATABASE:
            raise SlotRefused(
                "The slot belongs to another database", slot=slot.name, database=slot.database_name
            )
        case SlotState.BUSY:
            raise slots.busy(slot)


def unknown(slot: Slot) -> SlotRefused:
    """Return the error for an existing slot of which there is no record that it is ours."""
    confirmed = None if slot.confirmed is None else lsn_text(slot.confirmed)
    return SlotRefused(
        "A slot with this name exists, but the log has no record of it",
        slot=slot.name,
        confirmed=confirmed,
        remedy=slots.name_or_drop(slot.name),
    )


# --- keeping the publication in line --------------------------------------------------------------

Connection = psycopg.Connection[Any]


class SourcePublication:
    """The publication of one source, over all its connections."""

    def __init__(self, options: PostgresOptions) -> None:
        self.unfollowed: set[str] = set()
        """Tables that are not published yet, or with other columns or rows than they will be."""

        self.alterations = Alterations()
        """What we altered ourselves."""

        self._options = options
        self._outdated = False
        self._known = False
        self._writers: dict[str, Writers] = {}
        """Tables that a transaction may have written to before they were published."""

        self._later: set[str] = set()
        """Tables that were published after the slot was created: its own snapshot is too old."""

        self._tries: dict[str, int] = {}
        """How often a table could not be locked to be published."""

    def prepare(
        self, connection: Connection, decision: Resume | Begin, tables: Mapping[str, CatalogTable]
    ) -> Resume | Begin:
        """
        Return the decision, with the publication taken into account.

        If reading starts over, the old slot is dropped and the publication is set up.
        Otherwise this only finds out what has to be altered; `settle` does it.
        """
        wanted = list(tables.values())
        if isinstance(decision, Resume):
            ahead = publication.missing_changes(connection, self._options, wanted)
            if not ahead.created:
                self._outdated = bool(ahead.added or ahead.removed or ahead.changed)
                self.unfollowed.update(ahead.baselines)
                # An earlier process may have published tables and ended before it copied them.
                for name in ahead.baselines if self._known else tables:
                    self._writers[name] = Writers()
                self._known = True
                return decision
            # The publication was missing for a while, and changes of that time are not sent.
            decision = Begin(Reason.UNPUBLISHED, decision.at.branch, drop=True)
        if decision.drop:
            # First: a slot that still existed after this would be read further as if valid.
            slot.drop(connection, self._options.slot)
        done = publication.ensure(connection, self._options, wanted)
        self.alterations.add(done.transaction)
        killpoints.reach(killpoints.PUBLICATION_ENSURED)
        self.unfollowed.clear()
        self._writers.clear()
        self._later.clear()
        self._outdated, self._known = False, True
        return decision

    def settle(self, connection: Connection, tables: Mapping[str, CatalogTable]) -> None:
        """Alter the publication; the log must have recorded the affected tables before."""
        declared, self.unfollowed = self.unfollowed, set()
        if not self._outdated:
            return
        done = publication.ensure(connection, self._options, list(tables.values()))
        self.alterations.add(done.transaction)
        killpoints.reach(killpoints.PUBLICATION_ENSURED)
        self._outdated = False
        if more := set(done.baselines) - declared:
            self._declare(more)

    def _declare(self, more: set[str]) -> NoReturn:
        """Make the log record tables whose publication was changed by another session."""
        self.unfollowed = more
        self._writers.update((name, Writers()) for name in more)
        raise Reopening(
            "The publication was altered outside of Headrace",
            publication=self._options.publication,
        )

    def widen(
        self, connection: Connection, tables: Mapping[str, CatalogTable], new: CatalogTable
    ) -> None:
        """
        Publish one more table at once; if the log has the table, it has recorded that before.

        Raises `PublicationRefused` if that is impossible or the table is locked: with each
        attempt, the next one waits longer for the lock.
        """
        tries = self._tries.get(new.name, 0)
        seconds = publication.LOCK_SECONDS[min(tries, len(publication.LOCK_SECONDS) - 1)]
        # First: if the answer is lost, the next connection finds the table published.
        self._writers[new.name] = Writers()
        self._later.add(new.name)
        try:
            wanted = [*tables.values(), new]
            done = publication.ensure(connection, self._options, wanted, waits=(seconds,))
        except SourceUnreachable as error:
            if connection.closed:
                raise
            self._tries[new.name] = tries + 1
            raise PublicationRefused(error.message, remedy=error.remedy, **error.facts) from error
        self.alterations.add(done.transaction)
        killpoints.reach(killpoints.PUBLICATION_ENSURED)
        self._tries.pop(new.name, None)
        if more := set(done.baselines) - {new.name}:
            self._declare(more)

    def published_before(self, table: str) -> bool:
        """Whether the table was published before the slot, with no earlier writers left."""
        return table not in self._writers and table not in self._later

    def suspect(self, tables: Collection[str]) -> None:
        """
        Wait for the writers of these tables before they are copied.

        Such a transaction may have written while the publication was another one, or a type.
        """
        self._writers.update((name, Writers()) for name in tables)
        self._later.update(tables)

    def check_writers(self, connection: Connection, table: CatalogTable) -> bool:
        """
        Raise `NotYet` while a transaction is open that wrote to the table before.

        Return whether any may have ended since the last call: what they wrote has to be read
        before the table is copied.
        """
        if (writers := self._writers.get(table.name)) is None:
            return False
        if left := writers.left(connection, [table.oid, *table.tree]):
            raise NotYet(wait_reason("The copy is waiting for", left))
        del self._writers[table.name]
        return True


# --- whether the server's history is that of the log ----------------------------------------------

ASK_SECONDS = 30.0
"""How long to wait for the answer: the server may have to read much WAL first."""

LOOK_SECONDS = 0.5

_oid = struct.Struct(">I").unpack_from
_commit_fields = struct.Struct(">qqq").unpack_from
_CHANGES = frozenset(b"IUD")


class HistoryCheck:
    """Remembers for which start of the server its history was found to be the log's. One thread."""

    def __init__(self) -> None:
        self._seen = ""
        self._now = ""

    def required(self, query: psycopg.Connection[Any]) -> bool:
        """Whether the server has started since its history was last found to be the log's."""
        found = query.execute("select pg_postmaster_start_time()::text").fetchone()
        self._now = str(found)
        return self._now != self._seen

    def passed(self) -> None:
        """Remember that the history was found to be the log's, for the current start."""
        self._seen = self._now


def check_start(end: LsnPosition, confirmed: int) -> tuple[int, Mark | None]:
    """Return the position from where the server can send, and the commit it must begin with."""
    if end.mark is not None and confirmed <= end.mark.start:
        return end.mark.start, end.mark
    return confirmed, None


def same_history(
    begin: Callable[[int], ReplicationStream],
    end: LsnPosition,
    confirmed: int,
    ours: Collection[int],
    on_wait: Callable[[str], object],
) -> bool | None:
    """
    Return whether the server has the log's commits up to the log's end; None: unknown.

    `begin` starts a stream, which is closed again. `end` is the log's end, `confirmed` the slot's
    confirmed position, `ours` are the oids of the tables that the log has followed up to there.
    `on_wait` is called during the wait.
    """
    if end.mark is None and confirmed < end.lsn:
        return None  # there is nothing to compare with
    start, expected = check_start(end, confirmed)
    if start >= end.lsn:
        return True  # the slot has confirmed the log's end
    reading = _Reading(end.lsn, expected, ours)
    until = time.monotonic() + ASK_SECONDS
    try:
        stream = begin(start)
        try:
            while reading.answer is None and time.monotonic() < until:
                if (received := stream.receive(LOOK_SECONDS)) is not None:
                    reading.take(received)
                else:
                    on_wait("Comparing the server's history with the log")
                reading.reached(stream.end)
        finally:
            stream.close()
    except (SlotRefused, PublicationRefused):
        return None  # the following steps find the same problem, and handle it
    return reading.answer


class _Reading:
    """What was read so far; `answer` is None until it is known."""

    def __init__(self, end: int, expected: Mark | None, ours: Collection[int]) -> None:
        self.answer: bool | None = None
        self._end = end
        self._expected = expected
        self._ours = frozenset(ours)
        self._xid: int | None = None
        self._touched = False

    def take(self, received: ReceivedMessages) -> None:
        for start, stop in zip(received.starts.tolist(), received.stops.tolist(), strict=True):
            if self.answer is None:
                self._message(bytes(received.buffer[start:stop]))

    def reached(self, end: int) -> None:
        """Take note that the server has sent everything up to `end`."""
        if self.answer is None and self._xid is None and end >= self._end:
            # It has reached the log's end without the commit that it should have begun with.
            self.answer = self._expected is None

    def _message(self, message: bytes) -> None:
        kind = message[0]
        if kind == pgoutput.BEGIN:
            (self._xid,) = _oid(message, 17)
            self._touched = False
        elif kind in _CHANGES:
            self._touched |= _oid(message, 1)[0] in self._ours
        elif kind == pgoutput.TRUNCATE:
            named: Sequence[int] = pgoutput.read_truncate(message, streamed=False)
            self._touched |= not self._ours.isdisjoint(named)
        elif kind == pgoutput.COMMIT:
            self._commit(*_commit_fields(message, 2))

    def _commit(self, start: int, end: int, at: int) -> None:
        found = Mark(start, self._xid or 0, at + pgoutput.EPOCH)
        self._xid = None
        if end > self._end:
            self.answer = self._expected is None
        elif self._expected is not None:
            if start >= self._expected.start:
                self.answer = None if found == self._expected else False
                self._expected = None
        elif self._touched:
            self.answer = False


# --- from the log's end to a slot to read from ----------------------------------------------------


@dataclass(frozen=True, slots=True)
class OpenedConnections:
    """Two connections to one server, and the start position."""

    query: Connection
    replication: Connection
    at: LsnPosition
    created: slots.CreatedSlot | None
    """
    The new slot; None: reading continues with the existing one.

    No command may be sent on the replication connection before its snapshot is held (R14).
    """

    reason: Reason | None = None
    """Why reading does not continue with the existing slot."""


def application_of(options: PostgresOptions) -> str:
    """Return the application_name of the sessions that belong to the slot."""
    # The server truncates names, and the search for a stale sender must use the same text.
    return f"headrace {options.slot}"[:63]


def open_slot(
    options: PostgresOptions,
    tables: Mapping[str, CatalogTable],
    publishing: SourcePublication,
    wanted: LsnPosition | None,
    *,
    ours: bool,
    start_over: bool,
    on_wait: Callable[[str], object],
    history_check: HistoryCheck,
    known: Collection[str],
) -> OpenedConnections:
    """
    Set up the publication and the slot, and determine the start position.

    `wanted` is the log's end. `ours`: the slot may be dropped if the log has no start.
    `start_over`: the changes in the slot are not used. `on_wait` gets a text with the
    transactions that the new slot is waiting for. `known` are the tables that the log has
    followed so far.
    """
    application = application_of(options)
    query = connect(options, application=application, timed=True)
    try:
        slots.release(query, options.slot, application)
        replication = connect(options, replication=True, application=application)
        try:
            server = slots.identify(replication)
            moved = wanted is not None and wanted.timeline != server.timeline
            slot = slots.find(query, options.slot)
            decided = partial(
                decide,
                wanted,
                server,
                history=slots.timeline_history(replication, server.timeline) if moved else (),
                ephemeral=options.slot_mode == "ephemeral",
                always_baseline=start_over,
                intended=ours,
            )
            decision = decided(slot=slot)
            if isinstance(decision, Resume) and wanted and slot and history_check.required(query):
                begin = partial(_peek, options, replication)
                followed = [table.oid for name, table in tables.items() if name in known]
                same = same_history(begin, wanted, slot.confirmed or 0, followed, on_wait)
                if same:
                    history_check.passed()
                replication.close()
                slots.release(query, options.slot, application)
                replication = connect(options, replication=True, application=application)
                # The slot is queried again: the server may have invalidated it meanwhile.
                decision = decided(slot=slots.find(query, options.slot), other=same is False)
            match publishing.prepare(query, decision, tables):
                case Resume(at):
                    return OpenedConnections(query, replication, at, None)
                case Begin(branch=branch, reason=reason):
                    created = _create(options, query, replication, on_wait)
            at = LsnPosition(
                server.system, server.database, branch, server.timeline, created.consistent
            )
            return OpenedConnections(query, replication, at, created, reason)
        except BaseException:
            replication.close()
            raise
    except BaseException:
        query.close()
        raise


def _peek(options: PostgresOptions, replication: Connection, at: int) -> ReplicationStream:
    """Start a stream from the slot that has only committed transactions."""
    return ReplicationStream(replication, options.slot, at, options.publication, streaming=False)


def _create(
    options: PostgresOptions,
    query: Connection,
    replication: Connection,
    on_wait: Callable[[str], object],
) -> slots.CreatedSlot:
    created = slots.create(
        replication,
        options.slot,
        temporary=options.slot_mode == "ephemeral",
        failover=options.failover,
        timeout=options.create_slot_timeout,
        on_wait=Watcher(query, replication.info.backend_pid, on_wait).look,
    )
    killpoints.reach(killpoints.SLOT_CREATED)
    return created


# --- removing the slot and the publication --------------------------------------------------------


def remove(options: PostgresOptions, *, drop_publication: bool) -> None:
    """Drop the slot, and the publication if it is ours; either may be missing."""
    name = application_of(options)
    with speaking(options), connect(options) as connection:
        if options.slot_mode != "ephemeral" and slots.find(connection, options.slot) is not None:
            slots.release(connection, options.slot, name)
            slots.drop(connection, options.slot)
        killpoints.reach(killpoints.SLOT_DROPPED)
        if drop_publication:
            publication.drop(connection, options)
            killpoints.reach(killpoints.PUBLICATION_DROPPED)


def release(options: PostgresOptions, *, ours: bool) -> bool:
    """
    Drop the slot if it is `ours`, and then the publication: the server keeps no WAL for us.

    Nor does it refuse any more to update a published table that has no replica identity.
    Return whether there was such a slot. The next `open_slot` creates both.
    """
    with speaking(options), connect(options) as connection:
        # A temporary one ended with its connection.
        found = None if options.slot_mode == "ephemeral" else slots.find(connection, options.slot)
        if found is not None:
            own = found.plugin == slots.PLUGIN and found.database_name == connection.info.dbname
            if not (own and ours):
                return False
            slots.release(connection, options.slot, application_of(options))
            slots.drop(connection, options.slot)
        if options.create_publication:
            publication.drop(connection, options)
    return found is not None


def refuse_unknown(options: PostgresOptions) -> None:
    """Raise if a slot with the name that ours is to have exists already."""
    if options.slot_mode == "ephemeral":
        return  # its creation fails if another slot has the name, and drops nothing
    with speaking(options), connect(options) as connection:
        if (slot := slots.find(connection, options.slot)) is not None:
            raise unknown(slot)


def reset_slot(
    options: PostgresOptions, after: str | None, *, ours: bool, drop_publication: bool
) -> None:
    """
    Remove the slot, and the publication if requested, so that reading starts over.

    Raises if the slot is not ours, or if the log that ends at `after` is of another server;
    then nothing is removed.
    """
    name = application_of(options)
    with speaking(options), connect(options) as connection:
        slots.release(connection, options.slot, name)
        slot = slots.find(connection, options.slot)
        with connect(options, replication=True, application=name) as replication:
            server = slots.identify(replication)
    check_database(None if after is None else LsnPosition.parse(after), server)
    if options.slot_mode != "ephemeral":  # that one ended with its connection
        refuse(slot, slots.state(slot, server.database))
        if slot is not None and not ours:
            raise unknown(slot)
    remove(options, drop_publication=drop_publication)
