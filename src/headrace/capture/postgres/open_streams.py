"""
Transactions that the server streams while they still go on.

Several may be open, and parts of them come in any order, each part between a Stream Start
and a Stream Stop. Within a part every change names the sub-transaction it belongs to, and
only that: what a savepoint's rollback takes back is everything under that number (R6).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from headrace.capture.postgres import pgoutput
from headrace.capture.postgres.layout import Relation
from headrace.capture.postgres.pgoutput import bad
from headrace.capture.postgres.spill import Block, Spill
from headrace.capture.postgres.tuples import Flags, Ints, Messages


def flags(kinds: str) -> Flags:
    """Return for each byte whether it is one of these kinds of messages."""
    table = np.zeros(256, np.bool_)
    table[list(map(ord, kinds))] = True
    return table


_WITHIN = flags("IUDTRYOM")


def within(run: Messages) -> Messages:
    """Return the messages if all of them can stand within a transaction."""
    if (wrong := ~_WITHIN[run.kinds]).any():
        run.wrong("Message cannot stand within a transaction", wrong)
    return run


def block_of(run: Messages, subs: int | Ints) -> Block:
    """Return a copy of messages, and whose they are, that outlives their buffer."""
    if not len(run.kinds):
        nothing: NDArray[np.int64] = np.zeros(0, np.int64)
        return Block(b"", nothing, nothing, nothing)
    first = int(run.starts[0])
    data = run.bytes.each[first : int(run.stops[-1])].tobytes()
    numbers = np.full(len(run.kinds), subs) if isinstance(subs, int) else subs
    return Block(data, run.starts - first, run.stops - first, numbers)


@dataclass(slots=True)
class OpenStream:
    """A transaction that is streamed and has not ended."""

    aborted: set[int] = field(default_factory=set)
    relations: list[tuple[int, Relation, int]] = field(default_factory=list)
    """Its Relation messages: the (sub-)transaction, what they say, and their number."""

    def announced(self) -> Iterator[tuple[Relation, int]]:
        """Yield those that were not rolled back."""
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
        """Whether what comes next belongs to a stream."""
        return self._inside is not None

    def start(self, message: memoryview) -> None:
        """Read a Stream Start."""
        xid, first = pgoutput.read_stream_start(message)
        if first == (xid in self._open):
            # Its first part again, or a later one of which we never had the first.
            bad("Stream does not go on where it was", pgoutput.STREAM_START, 5)
        if first:
            self._open[xid] = OpenStream()
            self._spill.open(xid)
        self._inside = xid

    def stop(self, message: memoryview, kind: int) -> None:
        """Read the Stream Stop that must stand here."""
        if kind != pgoutput.STREAM_STOP:
            bad("Stream has not stopped", kind, 0)
        pgoutput.check_stream_stop(message)
        self._inside = None

    def keep(self, run: Messages, count: Callable[[], int]) -> None:
        """Keep messages until their transaction ends; `count` numbers Relation messages."""
        if self._inside is None or not len(run.kinds):
            return
        origins = within(run).kinds == pgoutput.ORIGIN
        if (wrong := (run.sizes() < 5) & ~origins).any():
            run.wrong("Message ends too early", wrong)
        subs = np.where(origins, self._inside, run.bytes.numbers(run.starts + 1, ">u4"))
        stream = self._open[self._inside]
        for index in np.flatnonzero(run.kinds == pgoutput.RELATION).tolist():
            relation = pgoutput.read_relation(run.one(index), streamed=True)
            stream.relations.append((int(subs[index]), relation, count()))
        self._spill.append(self._inside, block_of(run, subs))

    def abort(self, message: memoryview) -> None:
        """Read a Stream Abort; one of a stream we do not have takes nothing away."""
        top, sub = pgoutput.read_stream_abort(message)
        if top == sub:
            self._open.pop(top, None)
            self._spill.discard(top)
        elif top in self._open:
            # Exactly that one: what was nested in it is named by messages of its own (R6).
            self._open[top].aborted.add(sub)

    def ended(self, xid: int) -> OpenStream:
        """Return a stream whose commit has come, and forget it; the spill still has it."""
        stream = self._open.pop(xid, None)
        if stream is None:
            bad("Stream is not known", pgoutput.STREAM_COMMIT, 1)
        return stream
