"""
Whether the server's history is the one that the log was recorded from (R2).

A server whose files were put back to an earlier state has the same identity and the same
timeline. While its log is shorter than ours that is noticed; but it writes on, and once it has
passed our end nothing in its numbers tells the two histories apart. What was written anew
below our end would never be read.

So the log keeps with each place the last commit before it: where its record began, its
transaction and its time. Before reading goes on, the server is asked to send from there
once more what it has not been told to forget: it must be that very commit, and up to the
log's end no other with changes of our tables. Files are put back while a server stands still,
so it is asked once after each of its starts.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any

import psycopg

from headrace.capture.postgres import pgoutput
from headrace.capture.postgres.place import Mark, Place
from headrace.capture.postgres.stream import Received, Stream
from headrace.errors import PublicationRefused, SlotRefused

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


def first_place(end: Place, confirmed: int) -> tuple[int, Mark | None]:
    """Return from where the server can be asked, and the commit it has to begin with."""
    if end.mark is not None and confirmed <= end.mark.start:
        return end.mark.start, end.mark
    return confirmed, None


def same_history(
    begin: Callable[[int], Stream],
    end: Place,
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
                    on_wait("what the server has")
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

    def take(self, received: Received) -> None:
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
