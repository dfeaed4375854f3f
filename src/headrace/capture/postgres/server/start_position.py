"""
Where reading begins: the decision before every START_REPLICATION, and what it takes (R2).

A server never refuses a wrong place to start from. Below what was confirmed it silently moves
forward, above the end of its log it silently skips all that comes before. So the place is worked
out here, from what the log has and what the server says, and there are four outcomes: reading goes
on at the log's end; changes are gone (a gap); the server no longer has what the log holds (it was
rewound); or this is another database.

The publication is brought in line, with something to do before and after. *Before*: a table that
comes back into the publication may have a baseline in the log, of no use any more. The log must
record that first, because afterwards nothing would show it, should we die in between. *After*:
transactions that wrote the table before it was published have to end before it is copied (R13).

The server's history must be the one that the log was recorded from (R2). A server whose files were
put back to an earlier state has the same identity and the same timeline. While its log is shorter
than ours that is noticed; but it writes on, and once it has passed our end nothing in its numbers
distinguishes the two histories. What was newly written below our end would never be read. So the
log keeps with each place the last commit before it: where its record began, its transaction and
its time. Before reading goes on, the server is asked to send from there once more what it has not
been allowed to discard: it must be that very commit, and up to the log's end no other with changes
of our tables. Files are put back while a server stands still, so it is asked once after each of
its starts.

Opening leads from the log's end to a slot that the server sends from (H0, H1). What the server
says decides whether reading goes on or starts over (R2); where it starts over, the publication is
brought in order first and the slot is made after. That may have to wait for transactions of
others, for hours: the caller is given those that are waited for (R17).

Removing takes away what is ours at a server, the slot and the publication. The slot goes first.
Without its slot, reading starts over whatever else is there; a slot that outlived its publication
would be read on, and what was written meanwhile not be sent.

Long because the steps of a start are safe only in their order, and stand here in that order.
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
from headrace.capture.postgres.server.publication import Writers
from headrace.capture.postgres.server.slot import (
    Identity,
    Slot,
    SlotState,
    Switch,
    Watcher,
    state,
    whom,
)
from headrace.capture.postgres.stream.stream import ReceivedMessages, ReplicationStream
from headrace.capture.source import NotYet
from headrace.errors import (
    OtherDatabase,
    PublicationRefused,
    SlotRefused,
    SourceUnreachable,
)
from headrace.storage import killpoints

# --- the decision where reading begins ------------------------------------------------------------


class Reason(StrEnum):
    """Why every table is read anew; each a code that is shown and logged."""

    FIRST = "capture.first_start"
    EPHEMERAL = "capture.ephemeral"
    ALWAYS = "capture.always_baseline"
    GAP = "capture.gap"
    """The slot was moved on beyond the log's end: what lies between is gone."""

    REWOUND = "capture.rewound"
    """The log has commits that the server no longer has."""

    ABSENT = "capture.slot_absent"
    LOST = "capture.slot_lost"
    CONFLICTING = "capture.slot_conflicting"
    INVALIDATED = "capture.slot_invalidated"


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
    """A new slot is made and every table baselined (H1)."""

    reason: Reason
    branch: int
    """Of the places to come; one more than the log's where the server was rewound."""

    drop: bool
    """Whether the slot that is there has to go first."""


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
    Say how reading goes on after `after`, the log's end; None where the log has no start.

    `history` is that of the server's timeline; it is looked at only where the log's end is
    on another one. `intended`: the log says that the slot is one we were making when we
    died. `always_baseline` is for the first start of a process, not for its reconnects.
    `other`: the server was asked, and its history is not the log's, however long it is.

    Raises `OtherDatabase`, `SlotRefused` where the slot is somebody else's, and `SlotBusy`.
    """
    check_database(after, server)
    rewound = after is not None and (other or _rewound(after, server, history))
    branch = 0 if after is None else after.branch + rewound
    if ephemeral:
        # A slot of that name is not ours to drop: a temporary one ends with its reader.
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
    """Raise `OtherDatabase` where the log that ends at `after` is not of this one."""
    if after is not None and (after.system, after.database) != (server.system, server.database):
        raise OtherDatabase(
            "This is not the database that the log was recorded from",
            recorded=f"{after.system}/{after.database}",
            found=f"{server.system}/{server.database}",
        )


def _rewound(after: LsnPosition, server: Identity, history: Sequence[Switch]) -> bool:
    """Whether the log holds commits that the server does not have."""
    if after.lsn > server.flushed:
        return True
    if after.timeline == server.timeline:
        return False
    ends = {switch.timeline: switch.at for switch in history}
    # A timeline the server never was on shares at most its beginning with ours.
    return after.timeline not in ends or ends[after.timeline] < after.lsn


def refuse(slot: Slot | None, found: SlotState) -> None:
    """Raise where a slot is not ours to read or drop, or is being read."""
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
    """Return that there is a slot which nothing says is ours."""
    confirmed = None if slot.confirmed is None else lsn_text(slot.confirmed)
    return SlotRefused(
        "A slot with this name exists, but the log has no record of it",
        slot=slot.name,
        confirmed=confirmed,
        remedy=slots.name_or_drop(slot.name),
    )


# --- bringing the publication in line -------------------------------------------------------------

Connection = psycopg.Connection[Any]


class SourcePublication:
    """The publication of one source, over all its connections."""

    def __init__(self, options: PostgresOptions) -> None:
        self.unfollowed: set[str] = set()
        """Tables that are not published yet, or otherwise than they will be."""

        self._options = options
        self._behind = False
        self._known = False
        self._writers: dict[str, Writers] = {}
        """Tables that somebody may have written to before they were published."""

        self._later: set[str] = set()
        """Tables that were published after the slot was there: its own snapshot is too old."""

        self._tries: dict[str, int] = {}
        """How often a table could not be locked to be published."""

    def prepare(
        self, connection: Connection, decision: Resume | Begin, tables: Mapping[str, CatalogTable]
    ) -> Resume | Begin:
        """
        Say how reading begins, as far as the publication goes.

        Where all begins anew the old slot goes and the publication is made what it should be.
        Otherwise what is to be done is found, and done by `settle`.
        """
        wanted = list(tables.values())
        if isinstance(decision, Resume):
            ahead = publication.missing_changes(connection, self._options, wanted)
            if not ahead.created:
                self._behind = bool(ahead.added or ahead.removed or ahead.changed)
                self.unfollowed.update(ahead.baselines)
                # One before us may have published tables, and died before they were copied.
                for name in ahead.baselines if self._known else tables:
                    self._writers[name] = Writers()
                self._known = True
                return decision
            # It was away for a while, and what was written then cannot be had any more.
            decision = Begin(Reason.GAP, decision.at.branch, drop=True)
        if decision.drop:
            # First: a slot that outlived this would be read on as if nothing had happened.
            slot.drop(connection, self._options.slot)
        publication.ensure(connection, self._options, wanted)
        killpoints.reach(killpoints.PUBLICATION_ENSURED)
        self.unfollowed.clear()
        self._writers.clear()
        self._later.clear()
        self._behind, self._known = False, True
        return decision

    def settle(self, connection: Connection, tables: Mapping[str, CatalogTable]) -> None:
        """Bring the publication in line; whoever reads or copies has told the log before."""
        declared, self.unfollowed = self.unfollowed, set()
        if not self._behind:
            return
        done = publication.ensure(connection, self._options, list(tables.values()))
        killpoints.reach(killpoints.PUBLICATION_ENSURED)
        self._behind = False
        if more := set(done.baselines) - declared:
            self._declare(more)

    def _declare(self, more: set[str]) -> NoReturn:
        """Have the log told of tables that were published otherwise than anybody knew."""
        self.unfollowed = more
        self._writers.update((name, Writers()) for name in more)
        raise SourceUnreachable(
            "The publication was altered outside of Headrace",
            publication=self._options.publication,
        )

    def widen(
        self, connection: Connection, tables: Mapping[str, CatalogTable], new: CatalogTable
    ) -> None:
        """
        Publish one more table, at once; the log was told before, where it has the table.

        Raises `PublicationRefused` where that cannot be, or the table is locked: the longer it
        is, the longer the next attempt waits.
        """
        tries = self._tries.get(new.name, 0)
        seconds = publication.LOCK_SECONDS[min(tries, len(publication.LOCK_SECONDS) - 1)]
        # First: should the answer get lost, the next connection finds the table published.
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
        killpoints.reach(killpoints.PUBLICATION_ENSURED)
        self._tries.pop(new.name, None)
        if more := set(done.baselines) - {new.name}:
            self._declare(more)

    def published_before(self, table: str) -> bool:
        """Whether the table was published before anything that matters was written to it."""
        return table not in self._writers and table not in self._later

    def check_writers(self, connection: Connection, table: CatalogTable) -> None:
        """Raise `NotYet` while somebody goes on who wrote the table before it was published."""
        if (writers := self._writers.get(table.name)) is not None:
            if left := writers.left(connection, [table.oid, *table.tree]):
                raise NotYet(whom("The copy is waiting for", left))
            del self._writers[table.name]


# --- whether the server's history is that of the log ----------------------------------------------

ASK_SECONDS = 30.0
"""How long an answer is waited for: the server may have much to read before it can give one."""

LOOK_SECONDS = 0.5

_oid = struct.Struct(">I").unpack_from
_places = struct.Struct(">qqq").unpack_from
_CHANGES = frozenset(b"IUD")


class Witness:
    """Remembers which start of a server has the history of the log. For one thread."""

    def __init__(self) -> None:
        self._seen = ""
        self._now = ""

    def unsure(self, query: psycopg.Connection[Any]) -> bool:
        """Whether the server has started since its history was last found to be the log's."""
        found = query.execute("select pg_postmaster_start_time()::text").fetchone()
        self._now = str(found)
        return self._now != self._seen

    def believe(self) -> None:
        """Take it that the start that was just asked for has the log's history."""
        self._seen = self._now


def first_place(end: LsnPosition, confirmed: int) -> tuple[int, Mark | None]:
    """Return from where the server can be asked, and the commit it has to begin with."""
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
    Return whether the server has up to `end`, the log's, what the log has; None: not answered.

    `begin` starts a stream; it is closed again. `confirmed` is the slot's, `ours` are the oids of
    tables that the log has followed up to there. `on_wait` is called now and then.
    """
    if end.mark is None and confirmed < end.lsn:
        return None  # nothing was kept to compare with
    start, expected = first_place(end, confirmed)
    if start >= end.lsn:
        return True  # the slot itself knows of the log's end
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
        return None  # it is found out again, by who can mend it
    return reading.answer


class _Reading:
    """What was read so far; `answer` is None until it can be given."""

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
        """Take it that the server has sent everything up to `end`."""
        if self.answer is None and self._xid is None and end >= self._end:
            # It has come as far as the log without the commit that it should have begun with.
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
            self._commit(*_places(message, 2))

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


# --- from the log's end to a slot that sends ------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OpenedConnections:
    """Two connections to one server, and the place that reading begins at."""

    query: Connection
    replication: Connection
    at: LsnPosition
    created: slots.CreatedSlot | None
    """
    The new slot; None where reading goes on with the one there was.

    Nothing may go over the replication connection before its snapshot is held (R14).
    """


def application_of(options: PostgresOptions) -> str:
    """Return the name that sessions of the slot's reader have at the server."""
    # The server cuts names off, and who looks for a dead reader must know where.
    return f"headrace {options.slot}"[:63]


def open_slot(
    options: PostgresOptions,
    tables: Mapping[str, CatalogTable],
    publishing: SourcePublication,
    wanted: LsnPosition | None,
    *,
    ours: bool,
    anew: bool,
    on_wait: Callable[[str], object],
    witness: Witness,
    known: Collection[str],
) -> OpenedConnections:
    """
    Bring publication and slot in order, and find the place to read on from.

    `wanted` is the log's end; `ours`: the slot may be dropped where the log has no start;
    `anew`: what the slot has is not wanted. `on_wait` is told whom the new slot waits for.
    `known` are the tables that the log has followed so far.
    """
    application = application_of(options)
    query = connect(options, application=application)
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
                always_baseline=anew,
                intended=ours,
            )
            decision = decided(slot=slot)
            if isinstance(decision, Resume) and wanted and slot and witness.unsure(query):
                begin = partial(_peek, options, replication)
                followed = [table.oid for name, table in tables.items() if name in known]
                same = same_history(begin, wanted, slot.confirmed or 0, followed, on_wait)
                if same:
                    witness.believe()
                replication.close()
                slots.release(query, options.slot, application)
                replication = connect(options, replication=True, application=application)
                # Looked for again: meanwhile the server may have given it up.
                decision = decided(slot=slots.find(query, options.slot), other=same is False)
            match publishing.prepare(query, decision, tables):
                case Resume(at):
                    return OpenedConnections(query, replication, at, None)
                case Begin(branch=branch):
                    created = _create(options, query, replication, on_wait)
            at = LsnPosition(
                server.system, server.database, branch, server.timeline, created.consistent
            )
            return OpenedConnections(query, replication, at, created)
        except BaseException:
            replication.close()
            raise
    except BaseException:
        query.close()
        raise


def _peek(options: PostgresOptions, replication: Connection, at: int) -> ReplicationStream:
    """Start to read from the slot, without what has not been committed."""
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
    """Drop the slot, and the publication if it is ours; nothing where there is neither."""
    name = application_of(options)
    with speaking(options), connect(options) as connection:
        if options.slot_mode != "ephemeral" and slots.find(connection, options.slot) is not None:
            slots.release(connection, options.slot, name)
            slots.drop(connection, options.slot)
        killpoints.reach(killpoints.SLOT_DROPPED)
        if drop_publication:
            publication.drop(connection, options)
            killpoints.reach(killpoints.PUBLICATION_DROPPED)


def refuse_unknown(options: PostgresOptions) -> None:
    """Raise where there is a slot already, of the name that is to be given to ours."""
    if options.slot_mode == "ephemeral":
        return  # making one fails while there is another, and drops nothing
    with speaking(options), connect(options) as connection:
        if (slot := slots.find(connection, options.slot)) is not None:
            raise unknown(slot)


def reset_slot(
    options: PostgresOptions, after: str | None, *, ours: bool, drop_publication: bool
) -> None:
    """
    Remove the slot, and the publication if asked, so that reading begins anew.

    Raises where the slot is somebody else's, or this is not the server of the log that ends
    at `after`; then nothing is removed.
    """
    name = application_of(options)
    with speaking(options), connect(options) as connection:
        slots.release(connection, options.slot, name)
        slot = slots.find(connection, options.slot)
        with connect(options, replication=True, application=name) as replication:
            server = slots.identify(replication)
    check_database(None if after is None else LsnPosition.parse(after), server)
    if options.slot_mode != "ephemeral":  # of that one nothing is left, without its connection
        refuse(slot, slots.state(slot, server.database))
        if slot is not None and not ours:
            raise unknown(slot)
    remove(options, drop_publication=drop_publication)
