"""
Changes of a table as a segment of the log, made of values that were found in messages.

The values of a column lie scattered in the bytes received. A binary array is laid over these
bytes as they are, whose elements are by turns a value and the gap up to the next one; every
second element is taken, and that is the column, in one step for a whole chunk.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from headrace.capture.postgres.binary import binary_column
from headrace.capture.postgres.layout import Layout, Relation
from headrace.capture.postgres.pgoutput import DELETE, INSERT, TRUNCATE, UPDATE
from headrace.capture.postgres.text import text_column
from headrace.capture.postgres.tuples import Column, Flags, Ints, Messages, Tuples, fill, find
from headrace.changelog.change import Op
from headrace.changelog.schema import META, TableSchema
from headrace.changelog.values import Misfits

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
class Version:
    """A relation from one Relation message to the next that says something else."""

    relation: Relation
    layout: Layout | None
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


def chunks(rows: Messages) -> list[slice]:
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


def segment(version: Version, rows: Messages, stamps: Stamps) -> pa.RecordBatch:
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
    layout: Layout,
    rows: Messages,
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


def _passes(kind: str, column: Column) -> bool:
    """Whether a column may be gathered with others: its bytes are read and let go."""
    # A value that was not sent again may be the old tuple's, and stands before all the others.
    return kind not in _LASTING and column.unchanged is None


class _Gather:
    """Makes binary columns of values that lie scattered in a buffer."""

    def __init__(self, rows: Messages, tuples: Tuples) -> None:
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

    def column(self, column: Column) -> pa.Array:
        """Return the column's values, one for each row of the chunk; null where it has none."""
        (values,) = self._gathered([column])
        return values

    def columns(self, columns: Sequence[Column]) -> Iterator[pa.Array]:
        """
        Give the same of each, in their order; several lie in one buffer.

        In each row a value must stand behind the one of the column before.
        """
        for at in range(0, len(columns), TOGETHER):
            yield from self._gathered(columns[at : at + TOGETHER])

    def _gathered(self, columns: Sequence[Column]) -> list[pa.Array]:
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

    def _missing(self, columns: Sequence[Column]) -> Flags | None:
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
