"""
Changes of a table, found in messages a column at a time and made a segment of the log.

A change holds one or two tuples, and a tuple is its columns one after the other, each with its
length in front. Nothing says where the third column of the thousandth row is, except the two
before it; but the third columns of sixteen thousand rows can be found together, when one knows
where their second ones end. So each step here is one numpy operation over a whole chunk.

No length is trusted. A length leads to an end, and an end must not lie beyond the message's: that
one comparison per column is what keeps any bytes from doing harm.

The values of a column lie scattered in the bytes received. A binary array is laid over these bytes
as they are, whose elements are by turns a value and the gap up to the next one; every second
element is taken, and that is the column, in one step for a whole chunk.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from headrace.capture.postgres.decode.binary import binary_column
from headrace.capture.postgres.decode.pgoutput import (
    DELETE,
    INSERT,
    TRUNCATE,
    UPDATE,
    Relation,
    RelationLayout,
    bad,
)
from headrace.capture.postgres.decode.text import text_column
from headrace.changelog.change import Op
from headrace.changelog.schema import META, TableSchema
from headrace.changelog.values import Misfits

# --- where the values of rows are -----------------------------------------------------------------

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
class MessageBuffer:
    """Messages in their order, and where they are."""

    bytes: Bytes
    kinds: NDArray[np.uint8]
    starts: Ints
    stops: Ints
    lead: int = 1
    """Bytes before a message's content: 1, or 5 within a stream."""

    def at(self, rows: Any) -> MessageBuffer:
        """Return some of them."""
        return MessageBuffer(
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
class ColumnValues:
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
    columns: list[ColumnValues] = field(default_factory=list)


def find(rows: MessageBuffer, count: int) -> tuple[Tuples | None, Tuples | None]:
    """Find the old and the new tuple of each row; None where no row has one."""
    body = rows.starts + (rows.lead + 4)
    if (rows.kinds == INSERT).all() and (found := _inserts(rows, body, count)) is not None:
        return None, found
    return _any(rows, body, count)


def _any(rows: MessageBuffer, body: Ints, count: int) -> tuple[Tuples | None, Tuples | None]:
    """Find the tuples of changes of any kind, and check them; raises what is wrong."""
    kinds, each = rows.kinds, rows.bytes.each
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


def _inserts(rows: MessageBuffer, body: Ints, count: int) -> Tuples | None:
    """Find the tuples of inserts, which have no other; None where something is wrong."""
    if (rows.stops - body).min() < 3 or (rows.bytes.each[body] != _NEW).any():
        return None
    found = _walk(rows, None, body + 1, count)
    return None if (found.end != rows.stops).any() else found


def _walk(rows: MessageBuffer, which: Ints | None, places: Ints, count: int) -> Tuples:
    """Find every value of those rows' tuples at `places`; all lie within their message."""
    place, stops = _at(places, which), _at(rows.stops, which)
    if (wrong := rows.bytes.numbers(place, ">u2") != count).any():
        rows.wrong("Tuple has other columns than its relation", wrong, place, which)
    found = stride(rows, which, place + 2, stops, count)
    return walk_with_care(rows, which, place + 2, stops, count) if found is None else found


def stride(
    rows: MessageBuffer, which: Ints | None, place: Ints, stops: Ints, count: int
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
                column = ColumnValues(place + 5, length)
            else:
                unchanged = kind == _UNCHANGED
                if not (text | unchanged | (kind == _NULL)).all():
                    return None
                # The last byte of all may be such a null, with no length behind it.
                places = np.where(text, place + 1, 0)
                length = np.where(text, lengths[places].astype(np.int64), 0)
                start = np.where(text, place + 5, place + 1)
                column = ColumnValues(
                    start, length, text, unchanged=unchanged if unchanged.any() else None
                )
            found.columns.append(column)
            place = column.start + length
    except IndexError:
        return None
    found.end = place
    return None if (place > stops).any() else found


def walk_with_care(
    rows: MessageBuffer, which: Ints | None, place: Ints, stops: Ints, count: int
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
            column = ColumnValues(place + 5, length)
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
            column = ColumnValues(
                start, length, has, bool(binary.any()), unchanged if unchanged.any() else None
            )
        if length.min() < 0:
            rows.wrong("Length is negative", length < 0, place, which)
        found.columns.append(column)
        found.end = column.start + length
    return found


def fill(rows: MessageBuffer, old: Tuples | None, new: Tuples) -> list[tuple[int, Ints]]:
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


# --- from values found to a segment of the log ----------------------------------------------------

CHUNK_ROWS: Final = 16_384
"""Rows read together: few enough for the cache, many enough that Python does not count."""

CHUNK_BYTES: Final = 64 << 20
"""Arrow counts 32 bits of bytes in an array; no chunk comes near, unless one row does."""

_MOST_BYTES: Final = 2**31 - 1

TOGETHER: Final = 16
"""Columns gathered at once, where that saves steps: with more it would only take memory."""

_LASTING: Final = frozenset({"text", "json", "bytes", "numeric"})
"""Kinds whose values may stay in the bytes that were gathered: others' must not stay with them."""

_TYPES: Final = {field.name: field.type for field in META}

_OPS = np.zeros(256, np.int8)
for _kind, _op in (
    (INSERT, Op.INSERT),
    (UPDATE, Op.UPDATE),
    (DELETE, Op.DELETE),
    (TRUNCATE, Op.TRUNCATE),
):
    _OPS[_kind] = _op


@dataclass(frozen=True)
class RelationVersion:
    """A relation from one Relation message to the next that says something else."""

    relation: Relation
    layout: RelationLayout | None
    """None: not a table of ours; its changes are counted and skipped."""

    @property
    def schema(self) -> TableSchema:
        """The table's schema; of a version that has a layout."""
        assert self.layout is not None
        return self.layout.schema


@dataclass(frozen=True, slots=True)
class Stamps:
    """What each message of a run carries besides its content; of use for changes only."""

    commit: Ints
    ordinal: Ints
    xid: Ints
    time: Ints

    def at(self, rows: Any) -> Stamps:
        """Return those of some messages."""
        return Stamps(self.commit[rows], self.ordinal[rows], self.xid[rows], self.time[rows])


def chunks(rows: MessageBuffer) -> list[slice]:
    """Return how to cut rows so that each chunk is small in rows and in bytes."""
    cuts = []
    begin, count = 0, len(rows.starts)
    while begin < count:
        limit = int(rows.starts[begin]) + CHUNK_BYTES
        fits = int(np.searchsorted(rows.stops, limit, "right"))
        end = min(begin + CHUNK_ROWS, max(fits, begin + 1), count)
        cuts.append(slice(begin, end))
        begin = end
    return cuts


def segment(version: RelationVersion, rows: MessageBuffer, stamps: Stamps) -> pa.RecordBatch:
    """Return a chunk of a relation's changes in the shape of its table's segment."""
    layout = version.layout
    assert layout is not None
    schema = layout.schema
    if rows.stops[-1] - rows.starts[0] > _MOST_BYTES:
        rows.wrong("Message is too large", np.ones(1, np.bool_))
    old, new = find(rows, len(version.relation.columns))
    marks: dict[int, list[tuple[int, str]]] = {}
    unsent: list[tuple[int, Ints]] = []
    if new is not None and any(column.unchanged is not None for column in new.columns):
        for index, which in fill(rows, old, new):
            if (place := layout.places[index]) is not None:
                unsent.append((schema.columns[place].field, which))
    before = _image(layout, rows, old, marks, -1)
    after = _image(layout, rows, new, marks, 1)
    count = len(rows.starts)
    return pa.RecordBatch.from_arrays(
        [
            pa.array(_OPS[rows.kinds]),
            pa.array(stamps.commit),
            pa.array(stamps.ordinal.astype(np.int32)),
            pa.array(stamps.xid),
            pa.array(stamps.time).view(_TYPES["_time"]),
            _lists(_TYPES["_unsent"], count, unsent),
            _exact(_TYPES["_exact"], count, marks),
            before,
            after,
        ],
        schema=schema.segment,
    )


def _image(
    layout: RelationLayout,
    rows: MessageBuffer,
    tuples: Tuples | None,
    marks: dict[int, list[tuple[int, str]]],
    sign: int,
) -> pa.Array:
    """Return one image of each row as a struct, null where a row has no such tuple."""
    schema, count = layout.schema, len(rows.starts)
    if tuples is None:
        return pa.nulls(count, layout.image)
    gather = _Gather(rows, tuples)
    children: list[pa.Array | None] = [None] * len(schema.columns)
    asked = [
        (place, schema.columns[place], column)
        for place, column in zip(layout.places, tuples.columns, strict=True)
        if place is not None
    ]
    few = [column for _, kept, column in asked if _passes(kept.type.kind, column)]
    together = gather.columns(few)
    for place, kept, column in asked:
        convert = binary_column if column.binary else text_column
        passes = _passes(kept.type.kind, column)
        misfits: Misfits
        values = next(together) if passes else gather.column(column)
        children[place], misfits = convert(kept.type, values)
        for row, text in misfits:
            marks.setdefault(row, []).append((sign * kept.field, text))
    arrays = [
        pa.nulls(count, column.type.arrow) if child is None else child
        for child, column in zip(children, schema.columns, strict=True)
    ]
    absent = None if gather.absent is None else pa.array(gather.absent)
    return pa.StructArray.from_arrays(arrays, fields=layout.fields, mask=absent)


def _passes(kind: str, column: ColumnValues) -> bool:
    """Whether a column may be gathered with others: its bytes are read and let go."""
    # A value that was not sent again may be the old tuple's, and stands before all the others.
    return kind not in _LASTING and column.unchanged is None


class _Gather:
    """Makes binary columns of values that lie scattered in a buffer."""

    def __init__(self, rows: MessageBuffer, tuples: Tuples) -> None:
        self._which = tuples.rows
        self._base = int(rows.starts[0])
        self._raw = rows.bytes.raw.slice(self._base, int(rows.stops[-1]) - self._base)
        self._count = len(rows.starts)
        self._ranks: NDArray[np.int32]
        """For each row the number of its tuple."""

        self.absent: Flags | None = None
        if tuples.rows is None:
            self._ranks = np.arange(self._count, dtype=np.int32)
        else:
            self._ranks = np.zeros(self._count, np.int32)
            self._ranks[tuples.rows] = np.arange(len(tuples.rows), dtype=np.int32)
            self.absent = np.ones(self._count, np.bool_)
            self.absent[tuples.rows] = False

    def column(self, column: ColumnValues) -> pa.Array:
        """Return the column's values, one for each row of the chunk; null where it has none."""
        (values,) = self._gathered([column])
        return values

    def columns(self, columns: Sequence[ColumnValues]) -> Iterator[pa.Array]:
        """
        Give the same of each, in their order; several lie in one buffer.

        In each row a value must stand behind the one of the column before.
        """
        for at in range(0, len(columns), TOGETHER):
            yield from self._gathered(columns[at : at + TOGETHER])

    def _gathered(self, columns: Sequence[ColumnValues]) -> list[pa.Array]:
        width, tuples = 2 * len(columns), len(columns[0].start)
        # Rows stand in the buffer in their order, and values in theirs; that is what makes these
        # offsets rise, as an array's must.
        offsets = np.empty(width * tuples + 1, np.int32)
        table = offsets[:-1].reshape(tuples, width)
        for at, column in enumerate(columns):
            first = column.start - self._base
            table[:, 2 * at] = first
            table[:, 2 * at + 1] = first + column.length
        offsets[-1] = offsets[-2]
        scattered = pa.Array.from_buffers(
            pa.binary(), width * tuples, [None, pa.py_buffer(offsets), self._raw]
        )
        places = self._ranks * np.int32(width)
        if len(columns) == 1:
            return [scattered.take(pa.array(places, mask=self._missing(columns)))]
        places = (places + np.arange(0, width, 2, dtype=np.int32)[:, None]).ravel()
        taken = scattered.take(pa.array(places, mask=self._missing(columns)))
        count = self._count
        return [taken.slice(at * count, count) for at in range(len(columns))]

    def _missing(self, columns: Sequence[ColumnValues]) -> Flags | None:
        """Return which values of the columns, one after the other, there are not."""
        if self.absent is None and all(column.has is None for column in columns):
            return None
        missing = np.zeros((len(columns), self._count), np.bool_)
        for row, column in zip(missing, columns, strict=True):
            if self.absent is not None:
                row[:] = self.absent
            if column.has is not None:
                row[slice(None) if self._which is None else self._which] = ~column.has
        return missing.ravel()


def _lists(type: pa.DataType, count: int, parts: Sequence[tuple[int, Ints]]) -> pa.Array:
    """Return for each row the list of the numbers whose part names it; null where none does."""
    if not parts:
        return pa.nulls(count, type)
    owners = np.concatenate([rows for _, rows in parts])
    values = np.concatenate([np.full(len(rows), number, np.int32) for number, rows in parts])
    sizes = np.bincount(owners, minlength=count)
    offsets = np.zeros(count + 1, np.int32)
    np.cumsum(sizes, out=offsets[1:])
    ordered = values[np.argsort(owners, kind="stable")]
    return pa.ListArray.from_arrays(
        pa.array(offsets), pa.array(ordered), type=type, mask=pa.array(sizes == 0)
    )


def _exact(type: pa.DataType, count: int, marks: dict[int, list[tuple[int, str]]]) -> pa.Array:
    if not marks:
        return pa.nulls(count, type)
    return pa.array([marks.get(row) for row in range(count)], type)
