"""
Commits, built from the messages of the stream.

The server sends a transaction when it has ended, from Begin to Commit in one piece, or, if it is
large, in streams while it is still running. Thousands of the first kind arrive together and are
read together: numpy finds their boundaries and the ordinals of their changes. The second kind
waits in the spill until it commits, and so does a transaction that is larger than what is received
at once: its position is known only at its end.

Several streamed transactions may be open, and their parts come in any order, each part between a
Stream Start and a Stream Stop. Within a part every change names the sub-transaction it belongs to,
and only that: the rollback of a savepoint removes everything under that number (R6).

What is rolled back never happened: ordinals count what survived, in the order received, and they
count the changes of all tables, captured or not (R5).

Transactions that committed recently are remembered by numbers that do not wrap around.

Long because both ways of sending a transaction, whole and in streams, share the same state.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from headrace.capture.postgres.decode import pgoutput
from headrace.capture.postgres.decode.pgoutput import Commit, Layouts, Relation, bad
from headrace.capture.postgres.decode.relations import Decoder, Relations
from headrace.capture.postgres.decode.rows import Bytes, Flags, Ints, MessageBuffer, Stamps
from headrace.capture.postgres.position import LsnPosition, Mark
from headrace.capture.postgres.stream.spill import PART_MESSAGES, Block, Spill
from headrace.changelog.change import Changes, TableChanges
from headrace.changelog.position import MAX_ORDINAL
from headrace.errors import CaptureError

# --- transactions that committed recently ---------------------------------------------------------

MOST: Final = 131_072
"""How many commits are remembered. A commit becomes visible soon after it was sent."""


class RecentCommits:
    """
    The commits received last: the LSN at which each ended, and its top-level transaction (R6).

    A snapshot for a baseline is usable only if it sees all of them up to its start (H2.5).
    """

    def __init__(self, most: int = MOST) -> None:
        self._parts: deque[tuple[NDArray[np.int64], NDArray[np.int64]]] = deque()
        self._most = most
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, ends: NDArray[np.int64], xids: NDArray[np.int64]) -> None:
        """Remember commits, and forget the oldest if there are too many."""
        if not len(ends):
            return
        self._parts.append((ends, xids))
        self._count += len(ends)
        while self._count - len(self._parts[0][0]) >= self._most:
            self._count -= len(self._parts.popleft()[0])

    def upto(self, lsn: int) -> NDArray[np.int64]:
        """Return the transactions, as 64 bits, whose commits ended at or before `lsn`."""
        found = [xids[ends <= lsn] for ends, xids in self._parts]
        return np.concatenate([np.zeros(0, np.int64), *found])

    def pairs(self) -> list[tuple[int, int]]:
        """Return all of them as (end of the commit, transaction), in commit order."""
        return [
            pair
            for ends, xids in self._parts
            for pair in zip(ends.tolist(), xids.tolist(), strict=True)
        ]


def widened(xids: NDArray[np.int64], near: int) -> NDArray[np.int64]:
    """Return transaction numbers of 32 bits as the 64-bit numbers nearest to `near` (R6)."""
    distance = (xids - near) & 0xFFFFFFFF
    distance[distance >= 1 << 31] -= 1 << 32
    wide = distance + near
    wide[wide < 0] += 1 << 32
    return wide


# --- transactions that are streamed while they are running ----------------------------------------


def flags(kinds: str) -> Flags:
    """Return a table that says for each byte whether it is one of these kinds of messages."""
    table = np.zeros(256, np.bool_)
    table[list(map(ord, kinds))] = True
    return table


_WITHIN = flags("IUDTRYOM")


def within(run: MessageBuffer) -> MessageBuffer:
    """Return the messages if all of them are allowed inside a transaction."""
    if (wrong := ~_WITHIN[run.kinds]).any():
        run.wrong("Message is not allowed inside a transaction", wrong)
    return run


def block_of(run: MessageBuffer, subs: int | Ints) -> Block:
    """Return a copy of messages and their (sub-)transactions that outlives their buffer."""
    if not len(run.kinds):
        nothing: NDArray[np.int64] = np.zeros(0, np.int64)
        return Block(b"", nothing, nothing, nothing)
    first = int(run.starts[0])
    data = run.bytes.each[first : int(run.stops[-1])].tobytes()
    numbers = np.full(len(run.kinds), subs) if isinstance(subs, int) else subs
    return Block(data, run.starts - first, run.stops - first, numbers)


@dataclass(slots=True)
class OpenStream:
    """A streamed transaction that has not ended."""

    aborted: set[int] = field(default_factory=set)
    relations: list[tuple[int, Relation, int]] = field(default_factory=list)
    """Its Relation messages: the (sub-)transaction, the relation, and the message's number."""

    def announced(self) -> Iterator[tuple[Relation, int]]:
        """Yield the relations that were not rolled back."""
        return ((r, number) for sub, r, number in self.relations if sub not in self.aborted)


class OpenStreams:
    """The streamed transactions of one connection; their messages wait in the spill."""

    def __init__(self, spill: Spill) -> None:
        self._spill = spill
        self._open: dict[int, OpenStream] = {}
        self._inside: int | None = None

    def __len__(self) -> int:
        return len(self._open)

    @property
    def inside(self) -> bool:
        """Whether the next message belongs to a stream."""
        return self._inside is not None

    def start(self, message: memoryview) -> None:
        """Read a Stream Start."""
        xid, first = pgoutput.read_stream_start(message)
        if first == (xid in self._open):
            # A second first part, or a later part without a first.
            bad("Stream part is out of order", pgoutput.STREAM_START, 5)
        if first:
            self._open[xid] = OpenStream()
            self._spill.open(xid)
        self._inside = xid

    def stop(self, message: memoryview, kind: int) -> None:
        """Read the Stream Stop that is required here."""
        if kind != pgoutput.STREAM_STOP:
            bad("Message is not allowed before Stream Stop", kind, 0)
        pgoutput.check_stream_stop(message)
        self._inside = None

    def keep(self, run: MessageBuffer, count: Callable[[], int]) -> None:
        """Keep messages until their transaction ends; `count` numbers the Relation messages."""
        if self._inside is None or not len(run.kinds):
            return
        origins = within(run).kinds == pgoutput.ORIGIN
        if (wrong := (run.sizes() < 5) & ~origins).any():
            run.wrong("Message is too short", wrong)
        subs = np.where(origins, self._inside, run.bytes.numbers(run.starts + 1, ">u4"))
        stream = self._open[self._inside]
        for index in np.flatnonzero(run.kinds == pgoutput.RELATION).tolist():
            relation = pgoutput.read_relation(run.one(index), streamed=True)
            stream.relations.append((int(subs[index]), relation, count()))
        self._spill.append(self._inside, block_of(run, subs))

    def abort(self, message: memoryview) -> None:
        """Read a Stream Abort; for an unknown stream it does nothing."""
        top, sub = pgoutput.read_stream_abort(message)
        if top == sub:
            self._open.pop(top, None)
            self._spill.discard(top)
        elif top in self._open:
            # Only this one: sub-transactions nested in it have messages of their own (R6).
            self._open[top].aborted.add(sub)

    def ended(self, xid: int) -> OpenStream:
        """Remove and return a stream that has committed; its messages stay in the spill."""
        stream = self._open.pop(xid, None)
        if stream is None:
            bad("Commit of an unknown stream", pgoutput.STREAM_COMMIT, 1)
        return stream


# --- from messages to commits ---------------------------------------------------------------------

PIECE_MESSAGES: Final = 65_536
"""About how many messages of complete commits become one `Changes`."""

TAIL_BYTES: Final = 256 << 10
"""The beginning of a transaction up to this size is put in front of what is received next."""

_WHOLE: Final = -1
"""The spill's key for the transaction that is received in one piece."""


_CHANGES = flags("IUDT")
_CONTROL = flags("SEcA")
_KNOWN = flags("BCIUDTRYOMSEcA")


class Transactions:
    """
    Builds commits from the messages of one connection.

    *Order*: changes come in the order of their commits, none at or before `after`, however
    often the server sends it (R2). *Failure*: `BadMessage` for malformed messages. After
    this or any other error the object is unusable: the stream must be started again, with a
    new object (R6). *Threads*: one.
    """

    def __init__(
        self,
        layouts: Layouts,
        spill: Spill,
        *,
        after: int,
        position_at: Callable[[int], LsnPosition],
        near_xid: int,
    ) -> None:
        """`near_xid` is a recent transaction number of 64 bits, for widening."""
        self._mark = position_at(after).mark
        spill.clear()
        self._spill = spill
        self._position_at = position_at
        self._after = after
        self._position = after
        self._ended = 0
        self._near_xid = near_xid
        self._decoder = Decoder(layouts)
        self._session = Relations()
        self._streams = OpenStreams(spill)
        self._tail: Block | None = None
        self._whole: int | None = None
        self._taking = False
        self._markers: list[str] = []
        self.committed = RecentCommits()
        self.dropped = 0
        """Commits that were received although the log already has them."""

    @property
    def idle(self) -> bool:
        """Whether no transaction is partly received; streamed ones do not count (R4)."""
        return self._tail is None and self._whole is None

    @property
    def position(self) -> int:
        """The LSN up to which everything was returned."""
        return self._position

    @property
    def streams(self) -> int:
        """How many streamed transactions are open."""
        return len(self._streams)

    def position_at(self, lsn: int) -> LsnPosition:
        """Return the position at `lsn`, with the last commit before it; all before was returned."""
        return replace(self._position_at(lsn), mark=self._mark)

    def relearn(self, oid: int) -> None:
        """Ask for a relation's layout again: its table may be captured by now."""
        # The server may have described it before it was captured, and does not do so again.
        self._session.relearn(oid, self._decoder)

    def take(
        self, buffer: bytes | bytearray | memoryview, starts: Ints, stops: Ints
    ) -> Iterator[Changes]:
        """
        Yield the commits that end in these messages; the rest is kept for later.

        `starts` are the offsets of the messages' first bytes, `stops` those after their last.
        Many small commits come at a time. A commit too large for that comes in parts (R9): all
        but the last have `ends=False`, and the position before the commit.
        The iterator must be exhausted before the next call; then the buffer is free again.
        """
        if self._taking:
            raise CaptureError("The previous messages have not been read to their end")
        self._taking = True
        return self._take(buffer, starts, stops)

    def _take(
        self, buffer: bytes | bytearray | memoryview, starts: Ints, stops: Ints
    ) -> Iterator[Changes]:
        run = self._received(buffer, starts, stops)
        at = 0
        for control in np.flatnonzero(_CONTROL[run.kinds]).tolist():
            if self._streams.inside:
                self._streams.keep(run.at(slice(at, control)), self._decoder.count)
                self._streams.stop(run.one(control), int(run.kinds[control]))
            else:
                yield from self._outside(run.at(slice(at, control)))
                if not self.idle:
                    bad("Transaction has not ended", int(run.kinds[control]), 0)
                yield from self._control(run, control)
            at = control + 1
        rest = run.at(slice(at, None))
        if self._streams.inside:
            self._streams.keep(rest, self._decoder.count)
        else:
            yield from self._outside(rest)
        self._taking = False

    def _received(
        self, buffer: bytes | bytearray | memoryview, starts: Ints, stops: Ints
    ) -> MessageBuffer:
        """Return the messages to read, with those that were left over in front."""
        starts, stops = np.asarray(starts, np.int64), np.asarray(stops, np.int64)
        if len(starts) and (starts[0] < 0 or stops[-1] > len(buffer)):
            bad("Message is outside of what was received", 0, 0)
        if (starts >= stops).any() or (starts[1:] < stops[:-1]).any():
            bad("Messages overlap, or one is empty", 0, 0)
        if (tail := self._tail) is not None:
            self._tail = None
            # Only the part with messages: a buffer from a socket may be much longer.
            with memoryview(buffer) as view:
                used = int(stops[-1]) if len(stops) else 0
                buffer = b"".join((tail.data, view[:used]))
            starts = np.concatenate((tail.starts, starts + len(tail.data)))
            stops = np.concatenate((tail.stops, stops + len(tail.data)))
        source = Bytes(buffer)
        run = MessageBuffer(source, source.each[starts], starts, stops)
        if (wrong := ~_KNOWN[run.kinds]).any():
            run.wrong("Unknown kind of message", wrong)
        return run

    # --- transactions in one piece ---------------------------------------------------------

    def _outside(self, run: MessageBuffer) -> Iterator[Changes]:
        """Read messages outside of streams."""
        if self._whole is not None:
            at = yield from self._rest(run, self._whole)
            run = run.at(slice(at, None))
        ends = np.flatnonzero(run.kinds == pgoutput.COMMIT)
        last = int(ends[-1]) + 1 if len(ends) else 0
        begins = np.flatnonzero(run.kinds[last:] == pgoutput.BEGIN)
        complete = last + int(begins[0]) if len(begins) else len(run.kinds)
        at = 0
        kinds = run.kinds[:complete]
        simple = 0 < complete <= PIECE_MESSAGES and not (kinds == pgoutput.RELATION).any()
        for until in (complete,) if simple else _cuts(kinds, ends):
            yield from self._piece(run.at(slice(at, until)))
            at = until
        if complete < len(run.kinds):
            self._hold(run.at(slice(complete, None)))

    def _rest(self, run: MessageBuffer, xid: int) -> Generator[Changes, None, int]:
        """Continue a transaction whose beginning is in the spill; return the index of its end."""
        ends = np.flatnonzero(run.kinds == pgoutput.COMMIT)
        end = int(ends[0]) if len(ends) else len(run.kinds)
        self._spill.append(_WHOLE, block_of(within(run.at(slice(0, end))), xid))
        if len(ends):
            _, commits, times = self._bounds(run.at(slice(0, 0)), run.at(slice(end, end + 1)))
            start = int(run.bytes.numbers(run.starts[end : end + 1] + 2, ">i8")[0])
            commit = Commit(xid, int(commits[0]), int(times[0]), start)
            yield from self._finish(_WHOLE, commit, self._session, None)
            self._whole = None
        return end + 1

    def _hold(self, run: MessageBuffer) -> None:
        """Keep the beginning of a transaction until more of it is received."""
        xid = self._begun(run.at(slice(0, 1)))[0].item()
        rest = within(run.at(slice(1, None)))
        block = block_of(run, xid)
        if block.size <= TAIL_BYTES:
            self._tail = block
            return
        self._whole = xid
        self._spill.open(_WHOLE)
        self._spill.append(_WHOLE, block_of(rest, xid))

    def _begun(self, begins: MessageBuffer) -> Ints:
        """Return the numbers of the transactions that begin here."""
        if (wrong := begins.sizes() != pgoutput.BEGIN_SIZE).any():
            begins.wrong("Begin has a wrong length", wrong)
        return begins.bytes.numbers(begins.starts + 17, ">u4")

    def _bounds(self, begins: MessageBuffer, commits: MessageBuffer) -> tuple[Ints, Ints, Ints]:
        """Return the transactions that begin here, and the ends and times of the commits."""
        xids = self._begun(begins)
        if (wrong := commits.sizes() != pgoutput.COMMIT_SIZE).any():
            commits.wrong("Commit has a wrong length", wrong)
        starts = commits.starts
        ends = commits.bytes.numbers(starts + 10, ">i8")
        times = commits.bytes.numbers(starts + 18, ">i8")
        if not len(ends):
            return xids, ends, times
        if ends[0] <= self._ended or (ends[1:] <= ends[:-1]).any():
            # Also an end beyond 63 bits, which is read as a negative number.
            wrong = np.diff(ends, prepend=self._ended) <= 0
            commits.wrong("Commit does not end after the previous commit", wrong, starts + 10)
        if times.max() > pgoutput.LAST_TIME or times.min() < -pgoutput.LAST_TIME:
            wrong = (times > pgoutput.LAST_TIME) | (times < -pgoutput.LAST_TIME)
            commits.wrong("Commit time is out of range", wrong, starts + 18)
        first = np.searchsorted(ends, self._after, "right")
        self._end(int(ends[first]) if first < len(ends) else None)
        self._ended = int(ends[-1])
        return xids, ends, times + pgoutput.EPOCH

    def _end(self, first: int | None) -> None:
        """Check that the first commit that the log does not have is after all that it has."""
        if first is not None and first <= self._position:
            bad("Commit does not end after the position that was read", pgoutput.COMMIT, 10)

    def _piece(self, run: MessageBuffer) -> Iterator[Changes]:
        """Read complete commits, and the messages between them."""
        found = self._each_one(run)
        tables, moved = self._any(run) if found is None else (found, 0)
        upto = max(moved, self._ended, self._position)
        if upto > self._position:
            self._position = upto
            yield Changes(tables, self.position_at(upto), markers=self._marked())

    def _each_one(self, run: MessageBuffer) -> list[TableChanges] | None:
        """
        Read commits of one change each; return None if there are others among them.

        With one change each, the messages alternate: Begin, change, Commit. Nothing has to be
        counted.
        """
        kinds = run.kinds
        if not len(kinds) or len(kinds) % 3 or (kinds[0::3] != pgoutput.BEGIN).any():
            return None
        if (kinds[2::3] != pgoutput.COMMIT).any() or not _CHANGES[kinds[1::3]].all():
            return None
        begins, changes, commits = (run.at(slice(at, None, 3)) for at in range(3))
        xids, ends, times = self._bounds(begins, commits)
        wide, kept = self._ended_with(xids, ends, times, commits)
        stamps = Stamps(ends, np.zeros(len(ends), np.int64), wide, times)
        return self._decoder.decode(changes, kept, stamps, self._session)

    def _any(self, run: MessageBuffer) -> tuple[list[TableChanges], int]:
        """Read commits of any kind; also return the last LSN of messages outside of them."""
        kinds = run.kinds
        begins, commits = kinds == pgoutput.BEGIN, kinds == pgoutput.COMMIT
        number = np.cumsum(begins)
        depth = number - (np.cumsum(commits) - commits)
        free = (depth == 0) & (kinds == pgoutput.MESSAGE)
        if (wrong := (depth != 1) & ~free).any():
            run.wrong("Message is outside of a transaction, or begins a second one", wrong)
        if np.count_nonzero(begins) != np.count_nonzero(commits):
            # A second one begins inside the first, with a Relation message: it was cut off here.
            bad("Transaction has not ended", pgoutput.BEGIN, 0)
        last = run.at(commits)
        xids, ends, times = self._bounds(run.at(begins), last)
        which = number - 1
        beyond = np.append(ends > self._after, False)[which]
        moved = self._others(run, free, beyond)
        wide, kept = self._ended_with(xids, ends, times, last)
        if not len(ends):
            return [], moved
        changes = _CHANGES[kinds]
        counted = np.cumsum(changes)
        ordinal = counted - 1 - counted[begins][which]
        stamps = Stamps(ends[which], ordinal, wide[which], times[which])
        wanted = changes & kept[which]
        return self._decoder.decode(run, wanted, stamps, self._session), moved

    def _ended_with(
        self, xids: Ints, ends: Ints, times: Ints, commits: MessageBuffer
    ) -> tuple[Ints, Flags]:
        """Remember commits; return their transactions, and which of them are new to the log."""
        wide = self._widened(xids)
        self.committed.add(ends, wide)
        kept = ends > self._after
        if len(ends):
            start = int(commits.bytes.numbers(commits.starts[-1:] + 2, ">i8")[0])
            self._mark = Mark(start, int(xids[-1]), int(times[-1]))
            self.dropped += len(ends) - int(np.count_nonzero(kept))
        return wide, kept

    def _others(self, run: MessageBuffer, free: Flags, beyond: Flags) -> int:
        """
        Read the messages that change nothing; return the LSN to which they move the position.

        `beyond` marks the messages of transactions that the log does not have.
        """
        moved = 0
        streamed = run.lead > 1
        rare = (
            (run.kinds == pgoutput.MESSAGE)
            | (run.kinds == pgoutput.ORIGIN)
            | (run.kinds == pgoutput.TYPE)
        )
        for index in np.flatnonzero(rare).tolist():
            kind = run.kinds[index]
            if kind == pgoutput.MESSAGE:
                found = pgoutput.read_message(run.one(index), streamed=streamed)
                if free[index] and found.lsn is None:
                    bad("Transactional message is outside of a transaction", int(kind), 0)
                if free[index] and found.lsn is not None:
                    moved = max(moved, found.lsn)
                new = beyond[index] if found.lsn is None else found.lsn > self._position
                if new and found.marker:
                    self._markers.append(found.marker)
            elif kind == pgoutput.TYPE:
                pgoutput.check_type(run.one(index), streamed=streamed)
            else:
                pgoutput.check_origin(run.one(index))
        return moved

    def _marked(self) -> tuple[str, ...]:
        found, self._markers = tuple(self._markers), []
        return found

    def _widened(self, xids: Ints) -> Ints:
        wide = widened(xids, self._near_xid)
        # A connection may last for more than half the range of 32 bits.
        self._near_xid = int(wide.max(initial=self._near_xid))
        return wide

    # --- transactions in streams -----------------------------------------------------------

    def _control(self, run: MessageBuffer, index: int) -> Iterator[Changes]:
        message, kind = run.one(index), int(run.kinds[index])
        if kind == pgoutput.STREAM_START:
            self._streams.start(message)
        elif kind == pgoutput.STREAM_ABORT:
            self._streams.abort(message)
        elif kind == pgoutput.STREAM_COMMIT:
            yield from self._commit(pgoutput.read_stream_commit(message))
        else:
            bad("Stream has not started", kind, 0)

    def _commit(self, commit: Commit) -> Iterator[Changes]:
        stream = self._streams.ended(commit.xid)
        if commit.end <= self._ended:
            bad("Commit does not end after the previous commit", pgoutput.STREAM_COMMIT, 14)
        self._end(commit.end if commit.end > self._after else None)
        self._ended = commit.end
        # Relations of a stream are private to it until it commits. Then they are valid for the
        # whole session, because the server does not send them again.
        own = Relations()
        yield from self._finish(commit.xid, commit, own, stream)
        self._session.merge(own)

    def _finish(
        self, key: int, commit: Commit, known: Relations, stream: OpenStream | None
    ) -> Iterator[Changes]:
        """Read the messages in the spill of a transaction that has just ended."""
        announced = None if stream is None else stream.announced()
        xid = int(self._widened(np.array([commit.xid], np.int64))[0])
        self.committed.add(np.array([commit.end]), np.array([xid]))
        kept = commit.end > self._after
        self.dropped += not kept
        ordinal = 0
        for run, last in self._parts(key, stream):
            free = np.zeros(len(run.kinds), np.bool_)
            self._others(run, free, np.full(len(run.kinds), kept))
            changes = _CHANGES[run.kinds]
            ordinals = np.cumsum(changes) + (ordinal - 1)
            ordinal += int(np.count_nonzero(changes))
            if ordinal > MAX_ORDINAL:
                bad(f"Transaction has more than {MAX_ORDINAL} changes", pgoutput.COMMIT, 0)
            count = len(run.kinds)
            stamps = Stamps(
                np.full(count, commit.end),
                ordinals,
                np.full(count, xid),
                np.full(count, commit.time),
            )
            tables = self._decoder.decode(run, changes & kept, stamps, known, announced)
            if tables and not last:
                yield Changes(tables, self.position_at(self._position), ends=False)
        self._spill.discard(key)
        self._mark = Mark(commit.start, commit.xid, commit.time)
        if kept:
            self._position = commit.end
            yield Changes(tables, self.position_at(commit.end), markers=self._marked())

    def _parts(self, key: int, stream: OpenStream | None) -> Iterator[tuple[MessageBuffer, bool]]:
        """Yield a transaction's surviving messages in parts, each with whether it is the last."""
        aborted = np.array(sorted(stream.aborted) if stream else [], np.int64)
        for block, last in self._spill.blocks(key):
            source = Bytes(block.data)
            kinds = source.each[block.starts]
            lead = 1 if stream is None else 5
            run = MessageBuffer(source, kinds, block.starts, block.stops, lead)
            if len(aborted):
                run = run.at(~np.isin(block.subs, aborted))
            count = len(run.kinds)
            for at in range(0, max(count, 1), PART_MESSAGES):
                part = run.at(slice(at, at + PART_MESSAGES))
                yield part, last and at + PART_MESSAGES >= count


def _cuts(kinds: NDArray[np.uint8], ends: Ints) -> Iterator[int]:
    """
    Yield the indexes at which to cut complete commits, which end at `ends`, into pieces.

    A transaction with a Relation message begins a piece: perhaps its table cannot be captured
    any more, and what was committed before must not be lost with it.
    """
    begins = np.flatnonzero(kinds == pgoutput.BEGIN)
    described = np.searchsorted(begins, np.flatnonzero(kinds == pgoutput.RELATION)) - 1
    special = begins[np.unique(described[described >= 0])]
    at = 0
    while at < len(kinds):
        index = int(np.searchsorted(ends, at + PIECE_MESSAGES))
        # Messages after the last commit go with it.
        until = int(ends[index]) + 1 if index < len(ends) - 1 else len(kinds)
        following = int(np.searchsorted(special, at, "right"))
        if following < len(special):
            until = min(until, int(special[following]))
        yield until
        at = until
