"""
Finds the changes of a table in messages, a column at a time, and builds segments of the log.

A change holds one or two tuples, and a tuple is its columns one after the other, each with its
length in front. The third column of a row can be found only from the two before it; but the third
columns of sixteen thousand rows can be found together, once the ends of their second columns are
known. So each step here is one numpy operation over a whole chunk.

No length is trusted. A length leads to an offset, which must not be beyond the end of the message:
this one comparison per column makes any input safe.

The values of a column are scattered in the bytes received. A binary array is laid over these bytes
as they are; its elements alternate between a value and the gap up to the next one. Taking every
second element gives the column, in one step for a whole chunk.
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
from headrace.changelog.values import Unrepresentable

# --- finding the values of rows -------------------------------------------------------------------

Ints: TypeAlias = NDArray[np.int64]
Flags: TypeAlias = NDArray[np.bool_]

_NEW, _KEY, _OLD = map(ord, "NKO")
_TEXT, _BINARY, _NULL, _UNCHANGED = map(ord, "tbnu")


class Bytes:
    """A buffer of messages, as bytes and as big-endian numbers at any offset."""

    def __init__(self, buffer: bytes | bytearray | memoryview) -> None:
        self.raw = pa.py_buffer(buffer)
        self.each: NDArray[np.uint8] = np.frombuffer(buffer, np.uint8)
        self.size = len(self.each)
        self._views: dict[str, NDArray[Any]] = {}

    def view(self, shape: str) -> NDArray[Any]:
        """Return the numbers of that type at every offset where one can be read."""
        if (view := self._views.get(shape)) is None:
            size = np.dtype(shape).itemsize
            count = max(self.size - size + 1, 0)
            view = np.ndarray((count,), shape, buffer=self.raw, strides=(1,))
            self._views[shape] = view
        return view

    def numbers(self, offsets: Ints, shape: str) -> Ints:
        """Return the number at each offset, clipped to the last offset with a number."""
        view = self.view(shape)
        if not len(view):
            return np.zeros(len(offsets), np.int64)
        # Clipped, not checked: the callers check the offset that a number leads to.
        return view[np.minimum(offsets, len(view) - 1)].astype(np.int64)


@dataclass(frozen=True, slots=True)
class MessageBuffer:
    """Messages in order, with their kinds and offsets."""

    bytes: Bytes
    kinds: NDArray[np.uint8]
    starts: Ints
    stops: Ints
    lead: int = 1
    """Bytes before a message's content: 1, or 5 within a stream."""

    def at(self, rows: Any) -> MessageBuffer:
        """Return some of the messages."""
        return MessageBuffer(
            self.bytes, self.kinds[rows], self.starts[rows], self.stops[rows], self.lead
        )

    def one(self, index: int) -> memoryview:
        """Return the bytes of one message."""
        start, stop = int(self.starts[index]), int(self.stops[index])
        return self.bytes.each[start:stop].data

    def sizes(self) -> Ints:
        """Return the length of each message."""
        return self.stops - self.starts

    def wrong(
        self, message: str, where: Flags, offsets: Ints | None = None, which: Ints | None = None
    ) -> NoReturn:
        """
        Raise `BadMessage` for the first message that `where` flags.

        `offsets` are those of the bytes at fault, by default the first ones. `which` are the
        messages that both arrays refer to, by default all.
        """
        first = int(np.argmax(where))
        row = first if which is None else int(which[first])
        offset = 0 if offsets is None else int(offsets[first] - self.starts[row])
        bad(message, int(self.kinds[row]), offset)


@dataclass(slots=True)
class ColumnValues:
    """The offsets of one column's values, in the rows that have the tuple."""

    start: Ints
    length: Ints
    has: Flags | None = None
    """None: all rows have a value."""

    binary: bool = False
    unchanged: Flags | None = None


@dataclass(slots=True)
class Tuples:
    """The old or the new tuples of all rows that have one."""

    rows: Ints | None
    """The rows that have one; None: all."""

    end: Ints
    columns: list[ColumnValues] = field(default_factory=list)


def find(rows: MessageBuffer, count: int) -> tuple[Tuples | None, Tuples | None]:
    """Find the old and the new tuples of the rows; None if no row has one."""
    body = rows.starts + (rows.lead + 4)
    if (rows.kinds == INSERT).all() and (found := _inserts(rows, body, count)) is not None:
        return None, found
    return _any(rows, body, count)


def _any(rows: MessageBuffer, body: Ints, count: int) -> tuple[Tuples | None, Tuples | None]:
    """Find the tuples of changes of any kind, and check them; raises `BadMessage`."""
    kinds, each = rows.kinds, rows.bytes.each
    truncates = kinds == TRUNCATE
    short = (rows.stops - body < 3) & ~truncates
    if short.any():
        rows.wrong("Message is too short", short, body)
    mark = each[body]
    fresh = mark == _NEW
    aged = (mark == _OLD) | (mark == _KEY)
    inserts, deletes = kinds == INSERT, kinds == DELETE
    strange = (inserts & ~fresh) | (deletes & ~aged) | ~(fresh | aged | truncates)
    if strange.any():
        rows.wrong("Unknown kind of tuple", strange, body)
    with_old = _which(aged & ~truncates)
    with_new = _which(~(deletes | truncates))
    offset = body + 1
    old = None
    if with_old is None or len(with_old):
        old = _walk(rows, with_old, offset, count)
        ends = _at(deletes, with_old)
        stops = _at(rows.stops, with_old)
        if (wrong := ends & (old.end != stops)).any():
            rows.wrong("Message is longer than its tuple", wrong, old.end, with_old)
        # The new tuple of an update follows the old one, with its kind and a count in front.
        if (wrong := ~ends & (old.end + 3 > stops)).any():
            rows.wrong("Message is too short", wrong, old.end, with_old)
        follows = each[np.minimum(old.end, rows.bytes.size - 1)]
        if (wrong := ~ends & (follows != _NEW)).any():
            rows.wrong("Unknown kind of tuple", wrong, old.end, with_old)
        offset = offset.copy()
        offset[slice(None) if with_old is None else with_old] = old.end + 1
    new = None
    if with_new is None or len(with_new):
        new = _walk(rows, with_new, offset, count)
        if (wrong := new.end != _at(rows.stops, with_new)).any():
            rows.wrong("Message is longer than its tuple", wrong, new.end, with_new)
    return old, new


def _inserts(rows: MessageBuffer, body: Ints, count: int) -> Tuples | None:
    """Find the tuples of inserts, which have only a new one; None if something is wrong."""
    if (rows.stops - body).min() < 3 or (rows.bytes.each[body] != _NEW).any():
        return None
    found = _walk(rows, None, body + 1, count)
    return None if (found.end != rows.stops).any() else found


def _walk(rows: MessageBuffer, which: Ints | None, offsets: Ints, count: int) -> Tuples:
    """Find all values of the tuples that begin at `offsets`; all are within their messages."""
    offset, stops = _at(offsets, which), _at(rows.stops, which)
    if (wrong := rows.bytes.numbers(offset, ">u2") != count).any():
        rows.wrong("Tuple and relation differ in their number of columns", wrong, offset, which)
    found = stride(rows, which, offset + 2, stops, count)
    return walk_checked(rows, which, offset + 2, stops, count) if found is None else found


def stride(
    rows: MessageBuffer, which: Ints | None, offset: Ints, stops: Ints, count: int
) -> Tuples | None:
    """
    Find the same as `walk_checked`, but check only at the end.

    Lengths are read as unsigned, so that each step leads forward. If the last one does not
    lead beyond the message, none did. None: something is wrong, or unusual.
    """
    each, lengths = rows.bytes.each, rows.bytes.view(">u4")
    found = Tuples(which, offset)
    try:
        for _ in range(count):
            kind = each[offset]
            text = kind == _TEXT
            if text.all():
                length = lengths[offset + 1].astype(np.int64)
                column = ColumnValues(offset + 5, length)
            else:
                unchanged = kind == _UNCHANGED
                if not (text | unchanged | (kind == _NULL)).all():
                    return None
                # The last byte of the buffer may be a null, which no length follows.
                offsets = np.where(text, offset + 1, 0)
                length = np.where(text, lengths[offsets].astype(np.int64), 0)
                start = np.where(text, offset + 5, offset + 1)
                column = ColumnValues(
                    start, length, text, unchanged=unchanged if unchanged.any() else None
                )
            found.columns.append(column)
            offset = column.start + length
    except IndexError:
        return None
    found.end = offset
    return None if (offset > stops).any() else found


def walk_checked(
    rows: MessageBuffer, which: Ints | None, offset: Ints, stops: Ints, count: int
) -> Tuples:
    """Find all values from `offset` on, and check each step; raises `BadMessage`."""
    source, each = rows.bytes, rows.bytes.each
    found = Tuples(which, offset)
    for _ in range(count):
        offset = found.end
        if (wrong := offset >= stops).any():
            rows.wrong("Tuple is too short", wrong, offset, which)
        kind = each[offset]
        text = kind == _TEXT
        length = source.numbers(offset + 1, ">i4")
        if text.all():
            column = ColumnValues(offset + 5, length)
        else:
            binary = kind == _BINARY
            unchanged = kind == _UNCHANGED
            has = text | binary
            if (wrong := ~(has | unchanged | (kind == _NULL))).any():
                rows.wrong("Unknown kind of value", wrong, offset, which)
            if binary.any() and text.any():
                rows.wrong("Column has both text and binary values", binary, offset, which)
            length = np.where(has, length, 0)
            start = np.where(has, offset + 5, offset + 1)
            column = ColumnValues(
                start, length, has, bool(binary.any()), unchanged if unchanged.any() else None
            )
        if length.min() < 0:
            rows.wrong("Value has a negative length", length < 0, offset, which)
        found.columns.append(column)
        found.end = column.start + length
    return found


def fill(rows: MessageBuffer, old: Tuples | None, new: Tuples) -> list[tuple[int, Ints]]:
    """
    Fill values that were not sent again from the old tuple, if it has them (R21).

    Return each column in which values remain unknown, with the rows.
    """
    unsent = []
    count = len(rows.starts)
    numbers = np.arange(count) if new.rows is None else new.rows
    # The index of each row's old tuple; -1: it has none.
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
                        "Column has both text and binary values",
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
                # The old row is complete and has null there: the unchanged value is null.
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
    """Return the indexes of the flagged rows; None: all of them."""
    return None if flags.all() else np.flatnonzero(flags)


def _at(values: NDArray[Any], which: Ints | None) -> NDArray[Any]:
    return values if which is None else values[which]


# --- building a segment from the values -----------------------------------------------------------

CHUNK_ROWS: Final = 16_384
"""Rows read together: few enough for the cache, many enough to amortize the cost of Python."""

CHUNK_BYTES: Final = 64 << 20
"""Arrow's offsets have 32 bits; a chunk comes near that limit only if a single row does."""

_MOST_BYTES: Final = 2**31 - 1

TOGETHER: Final = 16
"""Columns collected at once, which saves steps; more would only take memory."""

_LASTING: Final = frozenset({"text", "json", "bytes", "numeric"})
"""
Kinds whose columns may keep the collected bytes as their buffer.

They are not collected together with other columns: the other columns' bytes would stay, too.
"""

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
    """A relation from one Relation message to the next that differs."""

    relation: Relation
    layout: RelationLayout | None
    """None: the table is not captured; its changes are counted and skipped."""

    @property
    def schema(self) -> TableSchema:
        """The table's schema; only for a version that has a layout."""
        assert self.layout is not None
        return self.layout.schema


@dataclass(frozen=True, slots=True)
class Stamps:
    """Commit, ordinal, transaction and time of each message; used for changes only."""

    commit: Ints
    ordinal: Ints
    xid: Ints
    time: Ints

    def at(self, rows: Any) -> Stamps:
        """Return the stamps of some messages."""
        return Stamps(self.commit[rows], self.ordinal[rows], self.xid[rows], self.time[rows])


def chunks(rows: MessageBuffer) -> list[slice]:
    """Return slices that cut rows into chunks, small in rows and in bytes."""
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
    """Return a chunk of a relation's changes as a batch of its table's segment."""
    layout = version.layout
    assert layout is not None
    schema = layout.schema
    if rows.stops[-1] - rows.starts[0] > _MOST_BYTES:
        rows.wrong("Message is too large", np.ones(1, np.bool_))
    old, new = find(rows, len(version.relation.columns))
    exact_texts: dict[int, list[tuple[int, str]]] = {}
    unsent: list[tuple[int, Ints]] = []
    if new is not None and any(column.unchanged is not None for column in new.columns):
        for index, which in fill(rows, old, new):
            if (at := layout.indexes[index]) is not None:
                unsent.append((schema.columns[at].field, which))
    before = _image(layout, rows, old, exact_texts, -1)
    after = _image(layout, rows, new, exact_texts, 1)
    count = len(rows.starts)
    return pa.RecordBatch.from_arrays(
        [
            pa.array(_OPS[rows.kinds]),
            pa.array(stamps.commit),
            pa.array(stamps.ordinal.astype(np.int32)),
            pa.array(stamps.xid),
            pa.array(stamps.time).view(_TYPES["_time"]),
            _lists(_TYPES["_unsent"], count, unsent),
            _exact(_TYPES["_exact"], count, exact_texts),
            before,
            after,
        ],
        schema=schema.segment,
    )


def _image(
    layout: RelationLayout,
    rows: MessageBuffer,
    tuples: Tuples | None,
    exact_texts: dict[int, list[tuple[int, str]]],
    sign: int,
) -> pa.Array:
    """Return one image of each row as a struct; null if a row has no such tuple."""
    schema, count = layout.schema, len(rows.starts)
    if tuples is None:
        return pa.nulls(count, layout.image)
    collector = _Collector(rows, tuples)
    children: list[pa.Array | None] = [None] * len(schema.columns)
    asked = [
        (at, schema.columns[at], column)
        for at, column in zip(layout.indexes, tuples.columns, strict=True)
        if at is not None
    ]
    few = [column for _, kept, column in asked if _passes(kept.type.kind, column)]
    together = collector.columns(few)
    for at, kept, column in asked:
        convert = binary_column if column.binary else text_column
        passes = _passes(kept.type.kind, column)
        unrepresentable: Unrepresentable
        values = next(together) if passes else collector.column(column)
        children[at], unrepresentable = convert(kept.type, values)
        for row, text in unrepresentable:
            exact_texts.setdefault(row, []).append((sign * kept.field, text))
    arrays = [
        pa.nulls(count, column.type.arrow) if child is None else child
        for child, column in zip(children, schema.columns, strict=True)
    ]
    absent = None if collector.absent is None else pa.array(collector.absent)
    return pa.StructArray.from_arrays(arrays, fields=layout.fields, mask=absent)


def _passes(kind: str, column: ColumnValues) -> bool:
    """Whether a column may be collected with others: its bytes are read and released."""
    # A value that was not sent again may be the old tuple's, which is before all the others.
    return kind not in _LASTING and column.unchanged is None


class _Collector:
    """Builds binary columns from values that are scattered in a buffer."""

    def __init__(self, rows: MessageBuffer, tuples: Tuples) -> None:
        self._which = tuples.rows
        self._base = int(rows.starts[0])
        self._raw = rows.bytes.raw.slice(self._base, int(rows.stops[-1]) - self._base)
        self._count = len(rows.starts)
        self._ranks: NDArray[np.int32]
        """The index of each row's tuple."""

        self.absent: Flags | None = None
        if tuples.rows is None:
            self._ranks = np.arange(self._count, dtype=np.int32)
        else:
            self._ranks = np.zeros(self._count, np.int32)
            self._ranks[tuples.rows] = np.arange(len(tuples.rows), dtype=np.int32)
            self.absent = np.ones(self._count, np.bool_)
            self.absent[tuples.rows] = False

    def column(self, column: ColumnValues) -> pa.Array:
        """Return the column's values, one for each row of the chunk; null if it has none."""
        (values,) = self._collected([column])
        return values

    def columns(self, columns: Sequence[ColumnValues]) -> Iterator[pa.Array]:
        """
        Yield the same for each column, in order; several share one buffer.

        In each row, a value must follow the value of the previous column.
        """
        for at in range(0, len(columns), TOGETHER):
            yield from self._collected(columns[at : at + TOGETHER])

    def _collected(self, columns: Sequence[ColumnValues]) -> list[pa.Array]:
        width, tuples = 2 * len(columns), len(columns[0].start)
        # Rows are in order in the buffer, and values in order within a row, so these offsets
        # increase, as Arrow requires.
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
        indices = self._ranks * np.int32(width)
        if len(columns) == 1:
            return [scattered.take(pa.array(indices, mask=self._missing(columns)))]
        indices = (indices + np.arange(0, width, 2, dtype=np.int32)[:, None]).ravel()
        taken = scattered.take(pa.array(indices, mask=self._missing(columns)))
        count = self._count
        return [taken.slice(at * count, count) for at in range(len(columns))]

    def _missing(self, columns: Sequence[ColumnValues]) -> Flags | None:
        """Return a mask of the missing values, column after column; None: none is missing."""
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
    """Return for each row the list of numbers whose part contains the row; null if none does."""
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


def _exact(
    type: pa.DataType, count: int, exact_texts: dict[int, list[tuple[int, str]]]
) -> pa.Array:
    if not exact_texts:
        return pa.nulls(count, type)
    return pa.array([exact_texts.get(row) for row in range(count)], type)
