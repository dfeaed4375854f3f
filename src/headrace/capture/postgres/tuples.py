"""
Where the values of rows are, found a column at a time.

A change holds one or two tuples, and a tuple is its columns one after the other, each with
its length in front. Nothing says where the third column of the thousandth row is, except
the two before it; but the third columns of sixteen thousand rows can be found together,
when one knows where their second ones end. So each step here is one numpy operation over
a whole chunk.

Nothing is believed. A length leads to an end, and an end must not lie beyond the message's:
that one comparison per column is what keeps any bytes from doing harm.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NoReturn, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from headrace.capture.postgres.pgoutput import DELETE, INSERT, TRUNCATE, bad

Ints: TypeAlias = NDArray[np.int64]
Flags: TypeAlias = NDArray[np.bool_]

_NEW, _KEY, _OLD = map(ord, "NKO")
_TEXT, _BINARY, _NULL, _UNCHANGED = map(ord, "tbnu")


class Bytes:
    """A buffer of messages, as bytes and as big-endian numbers at any place."""

    def __init__(self, buffer: bytes | bytearray | memoryview) -> None:
        self.raw = pa.py_buffer(buffer)
        self.each: NDArray[np.uint8] = np.frombuffer(buffer, np.uint8)
        self.size = len(self.each)
        self._views: dict[str, NDArray[Any]] = {}

    def view(self, shape: str) -> NDArray[Any]:
        """Return the numbers of that shape at every place where one can be read."""
        if (view := self._views.get(shape)) is None:
            size = np.dtype(shape).itemsize
            count = max(self.size - size + 1, 0)
            view = np.ndarray((count,), shape, buffer=self.raw, strides=(1,))
            self._views[shape] = view
        return view

    def numbers(self, places: Ints, shape: str) -> Ints:
        """Return the number at each place, clipped to where one can still be read."""
        view = self.view(shape)
        if not len(view):
            return np.zeros(len(places), np.int64)
        # Clipped, not checked: who reads a number compares where it leads.
        return view[np.minimum(places, len(view) - 1)].astype(np.int64)


@dataclass(frozen=True, slots=True)
class Messages:
    """Messages in their order, and where they are."""

    bytes: Bytes
    kinds: NDArray[np.uint8]
    starts: Ints
    stops: Ints
    lead: int = 1
    """Bytes before a message's content: 1, or 5 within a stream."""

    def at(self, rows: Any) -> Messages:
        """Return some of them."""
        return Messages(
            self.bytes, self.kinds[rows], self.starts[rows], self.stops[rows], self.lead
        )

    def one(self, index: int) -> memoryview:
        """Return the bytes of one."""
        start, stop = int(self.starts[index]), int(self.stops[index])
        return self.bytes.each[start:stop].data

    def sizes(self) -> Ints:
        """Return the length of each."""
        return self.stops - self.starts

    def wrong(
        self, message: str, where: Flags, places: Ints | None = None, which: Ints | None = None
    ) -> NoReturn:
        """
        Raise what is wrong with the first message in `where`.

        `places` are the bytes looked at, by default the first ones, and `which` the messages
        that both speak of, by default all.
        """
        first = int(np.argmax(where))
        row = first if which is None else int(which[first])
        offset = 0 if places is None else int(places[first] - self.starts[row])
        bad(message, int(self.kinds[row]), offset)


@dataclass(slots=True)
class Column:
    """Where the values of one column are, in the rows that have the tuple."""

    start: Ints
    length: Ints
    has: Flags | None = None
    """None: all rows have a value."""

    binary: bool = False
    unchanged: Flags | None = None


@dataclass(slots=True)
class Tuples:
    """One of the two tuples, of all rows that have it."""

    rows: Ints | None
    """Which rows; None: all."""

    end: Ints
    columns: list[Column] = field(default_factory=list)


def find(rows: Messages, count: int) -> tuple[Tuples | None, Tuples | None]:
    """Find the old and the new tuple of each row; None where no row has one."""
    kinds, each = rows.kinds, rows.bytes.each
    body = rows.starts + (rows.lead + 4)
    if (kinds == INSERT).all() and (found := _inserts(rows, body, count)) is not None:
        return None, found
    truncates = kinds == TRUNCATE
    short = (rows.stops - body < 3) & ~truncates
    if short.any():
        rows.wrong("Message ends too early", short, body)
    mark = each[body]
    fresh = mark == _NEW
    aged = (mark == _OLD) | (mark == _KEY)
    inserts, deletes = kinds == INSERT, kinds == DELETE
    strange = (inserts & ~fresh) | (deletes & ~aged) | ~(fresh | aged | truncates)
    if strange.any():
        rows.wrong("Tuple is of no known kind", strange, body)
    with_old = _which(aged & ~truncates)
    with_new = _which(~(deletes | truncates))
    place = body + 1
    old = None
    if with_old is None or len(with_old):
        old = _walk(rows, with_old, place, count)
        ends = _at(deletes, with_old)
        stops = _at(rows.stops, with_old)
        if (wrong := ends & (old.end != stops)).any():
            rows.wrong("Message goes on after its end", wrong, old.end, with_old)
        # An update has its new tuple behind the old one, with a mark and a count in front.
        if (wrong := ~ends & (old.end + 3 > stops)).any():
            rows.wrong("Message ends too early", wrong, old.end, with_old)
        follows = each[np.minimum(old.end, rows.bytes.size - 1)]
        if (wrong := ~ends & (follows != _NEW)).any():
            rows.wrong("Tuple is of no known kind", wrong, old.end, with_old)
        place = place.copy()
        place[slice(None) if with_old is None else with_old] = old.end + 1
    new = None
    if with_new is None or len(with_new):
        new = _walk(rows, with_new, place, count)
        if (wrong := new.end != _at(rows.stops, with_new)).any():
            rows.wrong("Message goes on after its end", wrong, new.end, with_new)
    return old, new


def _inserts(rows: Messages, body: Ints, count: int) -> Tuples | None:
    """Find the tuples of inserts, which have no other; None where something is wrong."""
    if (rows.stops - body).min() < 3 or (rows.bytes.each[body] != _NEW).any():
        return None
    found = _walk(rows, None, body + 1, count)
    return None if (found.end != rows.stops).any() else found


def _walk(rows: Messages, which: Ints | None, places: Ints, count: int) -> Tuples:
    """Find every value of those rows' tuples at `places`; all lie within their message."""
    place, stops = _at(places, which), _at(rows.stops, which)
    if (wrong := rows.bytes.numbers(place, ">u2") != count).any():
        rows.wrong("Tuple has other columns than its relation", wrong, place, which)
    found = stride(rows, which, place + 2, stops, count)
    return walk_with_care(rows, which, place + 2, stops, count) if found is None else found


def stride(
    rows: Messages, which: Ints | None, place: Ints, stops: Ints, count: int
) -> Tuples | None:
    """
    Find what `walk_with_care` finds, and look only at the end whether it was right.

    Lengths are taken as never negative, so that each step leads on. If the last one does not
    lead beyond the message, then none did. None: something is wrong, or unusual.
    """
    each, lengths = rows.bytes.each, rows.bytes.view(">u4")
    found = Tuples(which, place)
    try:
        for _ in range(count):
            kind = each[place]
            text = kind == _TEXT
            if text.all():
                length = lengths[place + 1].astype(np.int64)
                column = Column(place + 5, length)
            else:
                unchanged = kind == _UNCHANGED
                if not (text | unchanged | (kind == _NULL)).all():
                    return None
                # The last byte of all may be such a null, with no length behind it.
                places = np.where(text, place + 1, 0)
                length = np.where(text, lengths[places].astype(np.int64), 0)
                start = np.where(text, place + 5, place + 1)
                column = Column(
                    start, length, text, unchanged=unchanged if unchanged.any() else None
                )
            found.columns.append(column)
            place = column.start + length
    except IndexError:
        return None
    found.end = place
    return None if (place > stops).any() else found


def walk_with_care(
    rows: Messages, which: Ints | None, place: Ints, stops: Ints, count: int
) -> Tuples:
    """Find every value from `place` on, and check each step; raises what is wrong."""
    source, each = rows.bytes, rows.bytes.each
    found = Tuples(which, place)
    for _ in range(count):
        place = found.end
        if (wrong := place >= stops).any():
            rows.wrong("Tuple ends too early", wrong, place, which)
        kind = each[place]
        text = kind == _TEXT
        length = source.numbers(place + 1, ">i4")
        if text.all():
            column = Column(place + 5, length)
        else:
            binary = kind == _BINARY
            unchanged = kind == _UNCHANGED
            has = text | binary
            if (wrong := ~(has | unchanged | (kind == _NULL))).any():
                rows.wrong("Value is of no known kind", wrong, place, which)
            if binary.any() and text.any():
                rows.wrong("Column comes as text and as binary", binary, place, which)
            length = np.where(has, length, 0)
            start = np.where(has, place + 5, place + 1)
            column = Column(
                start, length, has, bool(binary.any()), unchanged if unchanged.any() else None
            )
        if length.min() < 0:
            rows.wrong("Length is negative", length < 0, place, which)
        found.columns.append(column)
        found.end = column.start + length
    return found


def fill(rows: Messages, old: Tuples | None, new: Tuples) -> list[tuple[int, Ints]]:
    """
    Let values that were not sent again be those of the old tuple, where it has them (R21).

    Return each column in which values stay unknown, and in which rows.
    """
    unsent = []
    count = len(rows.starts)
    numbers = np.arange(count) if new.rows is None else new.rows
    # For each row its index among the old tuples; -1: it has none.
    ranks = np.full(count, -1)
    if old is not None:
        ranks[slice(None) if old.rows is None else old.rows] = np.arange(len(old.end))
    whole = rows.bytes.each[rows.starts + (rows.lead + 4)] == _OLD
    for index, column in enumerate(new.columns):
        if column.unchanged is None or column.has is None:
            continue
        lacking = np.flatnonzero(column.unchanged)
        if old is not None:
            before = old.columns[index]
            lacking = lacking[ranks[numbers[lacking]] >= 0]
            rank = ranks[numbers[lacking]]
            known = np.ones(len(rank), np.bool_) if before.has is None else before.has[rank]
            if known.any():
                if column.binary != before.binary and column.has.any():
                    rows.wrong(
                        "Column comes as text and as binary",
                        column.unchanged,
                        column.start,
                        new.rows,
                    )
                column.binary = before.binary
            taken, rank = lacking[known], rank[known]
            column.start[taken] = before.start[rank]
            column.length[taken] = before.length[rank]
            column.has[taken] = True
            column.unchanged[taken] = False
            if before.has is not None:
                # A whole old row that has null there: null is what did not change.
                nothing = lacking[~known]
                rank = ranks[numbers[nothing]]
                null = whole[numbers[nothing]]
                if before.unchanged is not None:
                    null &= ~before.unchanged[rank]
                column.unchanged[nothing[null]] = False
        if column.unchanged.any():
            unsent.append((index, numbers[column.unchanged]))
    return unsent


def _which(flags: Flags) -> Ints | None:
    """Return the numbers of the rows flagged; None: all of them."""
    return None if flags.all() else np.flatnonzero(flags)


def _at(values: NDArray[Any], which: Ints | None) -> NDArray[Any]:
    return values if which is None else values[which]
