"""
Rows of a COPY in binary format, taken apart column by column.

A row is the number of its fields, and for each its length and its bytes; -1 is a null. Many
rows lie in one buffer and are walked together: one step finds a field of all of them.
Nothing is believed. A length that leads out of its row is a `BadMessage`.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.capture.postgres.binary import binary_column, fixed_column
from headrace.capture.postgres.text import text_column
from headrace.capture.postgres.wires import Messages
from headrace.changelog.schema import TableSchema
from headrace.errors import BadMessage

SIGNATURE = b"PGCOPY\n\xff\r\n\x00"
TRAILER = b"\xff\xff"
_LAYOUT = struct.Struct(">Ii")
_CRITICAL = 0xFFFF_0000
"""Flags that say that rows are not as we know them."""

Offsets = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Field:
    """Where the values of one column are."""

    start: Offsets
    stop: Offsets
    here: npt.NDArray[np.bool_] | None
    """Which rows have a value; None: all."""

    size: int | None
    """The bytes that each value has, where all have the same; None: unknown."""


def header_size(message: bytes | bytearray | memoryview) -> int:
    """Return how long the header of a COPY is, which the first message begins with."""
    start = len(SIGNATURE)
    if bytes(message[:start]) != SIGNATURE or len(message) < start + _LAYOUT.size:
        raise BadMessage("A copy of rows does not begin with its signature", length=len(message))
    flags, extension = _LAYOUT.unpack_from(message, start)
    start += _LAYOUT.size
    if flags & _CRITICAL or not 0 <= extension <= len(message) - start:
        raise BadMessage("The header of a copy is of an unknown kind", flags=flags)
    return start + int(extension)


def batch_of(
    schema: TableSchema, binary: Sequence[bool], rows: Messages
) -> tuple[pa.RecordBatch, pa.Array | None]:
    """
    Return rows as Arrow, and the marks of values that their columns cannot hold (R23f).

    `binary` says for each column whether its values are in the type's binary format, or are
    texts as PostgreSQL prints them. Nothing returned refers to the rows' buffer.
    """
    marks: dict[int, dict[int, str]] = {}
    arrays = []
    raw = pa.py_buffer(rows.buffer)
    fields = find_fields(rows, len(schema.columns))
    for column, field, sent in zip(schema.columns, fields, binary, strict=True):
        array = None
        if sent and field.size is not None:
            array = fixed_column(column.type, field.size, rows.buffer, field.start, field.here)
        if array is None:
            decode = binary_column if sent else text_column
            array, misfits = decode(column.type, _gather(raw, field))
            for index, text in misfits:
                marks.setdefault(index, {})[column.field] = text
        arrays.append(array)
    batch = pa.RecordBatch.from_arrays(arrays, schema=schema.arrow)
    return batch, _exact(schema, len(rows.starts), marks) if marks else None


def empty(schema: TableSchema) -> pa.RecordBatch:
    """Return a batch without rows."""
    return pa.RecordBatch.from_pylist([], schema=schema.arrow)


def fields_of(rows: Messages, count: int) -> list[pa.Array]:
    """Return the fields of rows that have `count` each: an array of bytes a column."""
    raw = pa.py_buffer(rows.buffer)
    return [_gather(raw, field) for field in find_fields(rows, count)]


def find_fields(rows: Messages, count: int) -> list[Field]:
    """
    Find the fields of rows that have `count` each; all lie within their row.

    Lengths only lead onwards. So a row whose last field ends where the row does has none that
    ends elsewhere, and that is looked at once, when all are found and none is read.
    """
    starts, stops = rows.starts, rows.stops
    if len(stops) and stops[-1] > np.iinfo(np.int32).max:
        raise BadMessage("Rows are larger than a server can send", length=int(stops[-1]))
    _require(starts + 2 <= stops, starts)
    _require(_view(rows.buffer, ">i2")[starts] == count, starts)
    lengths = _view(rows.buffer, ">i4")
    place = starts + 2
    found = []
    for _ in range(count):
        try:
            length = lengths[place].astype(np.int32)
        except IndexError:
            # Only a row that is malformed leads out of the buffer.
            _require(place + 4 <= stops, place)
            raise
        found.append(field := _field(place, length))
        place = field.stop
    _require(place == stops, place)
    return found


def _field(place: Offsets, length: npt.NDArray[np.int32]) -> Field:
    """Return what the lengths at `place` tell of the bytes behind them."""
    start = place + 4
    least, most = (int(length.min()), int(length.max())) if len(length) else (0, 0)
    if least == most >= 0:
        return Field(start, start + most, None, most)
    if least >= 0:
        return Field(start, start + length, None, None)
    _require(length >= -1, place)
    here = length >= 0
    present = length[here]
    size = most if len(present) and int(present.min()) == most else None
    return Field(start, start + np.maximum(length, 0), here, size)


def _view(buffer: bytes | bytearray, kind: str) -> npt.NDArray[np.signedinteger]:
    """Return the numbers that begin at each byte, aligned or not."""
    size = max(len(buffer) - np.dtype(kind).itemsize + 1, 0)
    return np.ndarray((size,), kind, buffer, strides=(1,))


def _gather(raw: pa.Buffer, field: Field) -> pa.Array:
    """
    Return the bytes of a field's values as an array, null where there are none.

    Values and the gaps between them, by turns, are an array over the buffer as it is; of
    that every other one is taken. No value is touched by Python.
    """
    count = len(field.start)
    offsets = np.empty(2 * count + 1, np.int32)
    offsets[0:-1:2] = field.start
    offsets[1::2] = field.stop
    offsets[-1] = field.stop[-1] if count else 0
    both = pa.Array.from_buffers(pa.binary(), 2 * count, [None, pa.py_buffer(offsets), raw])
    values = np.arange(0, 2 * count, 2, dtype=np.int32)
    here = field.here
    return both.take(pa.array(values) if here is None else pa.array(values, mask=~here))


def _require(sound: npt.NDArray[np.bool_], position: Offsets) -> None:
    if not sound.all():
        wrong = int(np.argmin(sound))
        raise BadMessage("A copied row is malformed", offset=int(position[wrong]), row=wrong)


def _exact(schema: TableSchema, count: int, marks: dict[int, dict[int, str]]) -> pa.Array:
    kind = schema.segment.field("_exact").type
    return pa.array(
        [list(marks[row].items()) if row in marks else None for row in range(count)], kind
    )
