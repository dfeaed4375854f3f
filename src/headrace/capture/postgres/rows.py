"""
Rows of a COPY in binary format, taken apart column by column.

A row is the number of its fields, and for each its length and its bytes; -1 is a null. Many
rows lie in one buffer and are walked together: one step finds a field of all of them.
Nothing is believed. A length that leads out of its row is a `BadMessage`.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.capture.postgres.binary import binary_column
from headrace.capture.postgres.text import text_column
from headrace.changelog.schema import TableSchema
from headrace.errors import BadMessage

SIGNATURE = b"PGCOPY\n\xff\r\n\x00"
TRAILER = b"\xff\xff"
_LAYOUT = struct.Struct(">Ii")
_CRITICAL = 0xFFFF_0000
"""Flags that say that rows are not as we know them."""

Offsets = npt.NDArray[np.int64]


def without_header(message: bytes | memoryview) -> memoryview:
    """Return what follows the header of a COPY, which the first message begins with."""
    start = len(SIGNATURE)
    if bytes(message[:start]) != SIGNATURE or len(message) < start + _LAYOUT.size:
        raise BadMessage("A copy of rows does not begin with its signature", length=len(message))
    flags, extension = _LAYOUT.unpack_from(message, start)
    start += _LAYOUT.size
    if flags & _CRITICAL or not 0 <= extension <= len(message) - start:
        raise BadMessage("The header of a copy is of an unknown kind", flags=flags)
    return memoryview(message)[start + extension :]


def batch_of(
    schema: TableSchema, binary: Sequence[bool], rows: Sequence[bytes | memoryview]
) -> tuple[pa.RecordBatch, pa.Array | None]:
    """
    Return rows as Arrow, and the marks of values that their columns cannot hold (R23f).

    `binary` says for each column whether its values are in the type's binary format, or are
    texts as PostgreSQL prints them.
    """
    marks: dict[int, dict[int, str]] = {}
    arrays = []
    fields = fields_of(rows, len(schema.columns))
    for column, values, sent in zip(schema.columns, fields, binary, strict=True):
        decode = binary_column if sent else text_column
        array, misfits = decode(column.type, values)
        for index, text in misfits:
            marks.setdefault(index, {})[column.field] = text
        arrays.append(array)
    batch = pa.RecordBatch.from_arrays(arrays, schema=schema.arrow)
    return batch, _exact(schema, len(rows), marks) if marks else None


def empty(schema: TableSchema) -> pa.RecordBatch:
    """Return a batch without rows."""
    return pa.RecordBatch.from_pylist([], schema=schema.arrow)


def fields_of(rows: Sequence[bytes | memoryview], count: int) -> list[pa.Array]:
    """Return the fields of rows that have `count` each: an array of bytes a column."""
    buffer = b"".join(rows)
    if len(buffer) > np.iinfo(np.int32).max:
        raise BadMessage("Rows are larger than a server can send", length=len(buffer))
    stops = np.cumsum(np.fromiter(map(len, rows), np.int64, len(rows)))
    position = np.concatenate([[0], stops[:-1]]) if len(rows) else stops
    _require(position + 2 <= stops, position)
    _require(_view(buffer, ">i2")[position] == count, position)
    lengths = _view(buffer, ">i4")
    raw = pa.py_buffer(buffer)
    position = position + 2
    columns = []
    for _ in range(count):
        _require(position + 4 <= stops, position)
        length = lengths[position].astype(np.int64)
        start = position + 4
        here = length >= 0
        full = bool(here.all())
        if not full:
            _require(length >= -1, position)
            length = np.where(here, length, 0)
        position = start + length
        _require(position <= stops, start)
        columns.append(_gather(raw, start, position, None if full else here))
    _require(position == stops, position)
    return columns


def _view(buffer: bytes, kind: str) -> npt.NDArray[np.signedinteger]:
    """Return the numbers that begin at each byte, aligned or not."""
    size = max(len(buffer) - np.dtype(kind).itemsize + 1, 0)
    return np.ndarray((size,), kind, buffer, strides=(1,))


def _gather(
    raw: pa.Buffer, start: Offsets, stop: Offsets, here: npt.NDArray[np.bool_] | None
) -> pa.Array:
    """
    Return the bytes between `start` and `stop` as an array, null where they are not `here`.

    Values and the gaps between them, by turns, are an array over the buffer as it is; of
    that every other one is taken. No value is touched by Python.
    """
    count = len(start)
    offsets = np.empty(2 * count + 1, np.int32)
    offsets[0:-1:2] = start
    offsets[1::2] = stop
    offsets[-1] = stop[-1] if count else 0
    both = pa.Array.from_buffers(pa.binary(), 2 * count, [None, pa.py_buffer(offsets), raw])
    values = np.arange(0, 2 * count, 2, dtype=np.int32)
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
