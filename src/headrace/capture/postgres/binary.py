"""
Columns of PostgreSQL's binary values, as a copy sends them, as columns of the log.

What comes out is what the stream's texts of the same values come out as (`text.py`): a row
has one value, whichever way it came. A value whose length its type cannot have means that
we misread the copy, which is a `BadMessage`; one that fits its length but not its column is
a misfit, as everywhere (R23f). Its exact text is PostgreSQL's where it has one, else its bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.capture.postgres.cells import Cells, Ints, Mask, Reader, as_utf8, mend, read, spread
from headrace.capture.postgres.digits import parse_numeric, read_decimals, read_texts
from headrace.changelog.beyond import (
    MAX_INT32,
    MAX_INT64,
    MICROS_PER_DAY,
    MIN_INT32,
    MIN_INT64,
    BeyondDate,
    BeyondTime,
)
from headrace.changelog.exact import exact_text, numeric_text
from headrace.changelog.values import Misfits, ValueType
from headrace.errors import BadMessage, BadSchema

_DAYS_TO_2000: Final = 10_957
_MICROS_TO_2000: Final = _DAYS_TO_2000 * MICROS_PER_DAY
_MOST_OFFSET: Final = 16 * 3600
_OID: Final = np.dtype(">u4")
_TIMETZ: Final = np.dtype([("us", ">i8"), ("west", ">i4")])
_INTERVAL: Final = np.dtype([("us", ">i8"), ("days", ">i4"), ("months", ">i4")])


def binary_column(type: ValueType, values: pa.Array) -> tuple[pa.Array, Misfits]:
    """
    Return a column of `type`, and the misfits, of values in binary form.

    `values` is binary, null for NULL, and may be a slice. Raises `BadMessage` for lengths
    that values of the type cannot have, and nothing else whatever the bytes are.
    """
    if (reader := _READERS.get(type.kind)) is None and type.kind not in _FIXED:
        raise BadSchema("PostgreSQL has no such kind of value", kind=type.kind)
    return read(type, values, reader or _of_one_length, _exact)


def fixed_column(
    type: ValueType, size: int, buffer: bytes | bytearray, starts: Ints, here: Mask | None
) -> pa.Array | None:
    """
    Return a column of values in binary form that all have `size` bytes, read where they lie.

    They begin at `starts`, where they are `here`, and lie within `buffer`. None means that
    it takes `binary_column`: the type's values are longer or shorter, or one of them is a
    misfit.
    """
    if type.kind not in _FIXED or (shape := _shape(type.kind, size)).itemsize != size:
        return None
    places = starts if here is None else starts[here]
    each: npt.NDArray[Any] = np.ndarray((len(buffer) - size + 1,), shape, buffer, strides=(1,))
    array = _FIXED[type.kind][1](type, each[places])
    if array.null_count:
        return None
    return array if here is None else spread(array, here)


def _exact(type: ValueType, raw: bytes) -> str:
    if type.kind in ("text", "json"):
        text = raw.removeprefix(b"\x01") if type.kind == "json" else raw
        return exact_text(text.decode(errors="surrogateescape"))
    if type.kind in ("decimal", "numeric"):
        number = parse_numeric(raw)
        return exact_text(raw) if number is None else exact_text(number)
    if type.kind in ("timestamp", "timestamptz"):
        # Only the last years that PostgreSQL knows are beyond ours.
        micros = int.from_bytes(raw, signed=True) + _MICROS_TO_2000
        days, rest = divmod(micros, MICROS_PER_DAY)
        clock = str(BeyondTime(rest))
        clock = clock.rstrip("0") if "." in clock else clock
        return f"{BeyondDate(days)} {clock}{'+00' if type.kind == 'timestamptz' else ''}"
    return exact_text(raw)


def _shape(kind: str, size: int) -> np.dtype[Any]:
    """Return how numpy sees a value of the kind; one column may be of two types of a server's."""
    return _OID if kind == "int64" and size == _OID.itemsize else _FIXED[kind][0]


def _of_one_length(type: ValueType, values: pa.Array) -> pa.Array:
    cells = Cells.of(values)
    shape = _shape(type.kind, int(cells.lengths[0]) if len(values) else 0)
    if (cells.lengths != shape.itemsize).any():
        raise BadMessage(
            "A value has an impossible length", kind=type.kind, expected=shape.itemsize
        )
    return _FIXED[type.kind][1](type, cells.data.view(shape))


def _some(content: npt.NDArray[Any], good: npt.NDArray[np.bool_], shape: pa.DataType) -> pa.Array:
    """Return numbers as a column, null where they are not good."""
    array = pa.array(content, mask=None if good.all() else ~good)
    return array if array.type == shape else array.view(shape)


def _numbers(type: ValueType, content: npt.NDArray[Any]) -> pa.Array:
    return pa.array(content.astype(type.arrow.to_pandas_dtype()))


def _booleans(type: ValueType, content: npt.NDArray[Any]) -> pa.Array:
    return _some(content == 1, content <= 1, type.arrow)


def _decimals(type: ValueType, values: pa.Array) -> pa.Array:
    array, good = read_decimals(values, type.precision, type.scale)
    return mend(array, good, values, parse_numeric, type)


def _numerics(type: ValueType, values: pa.Array) -> pa.Array:
    def parse(raw: bytes) -> object:
        number = parse_numeric(raw)
        return None if number is None else numeric_text(number)

    array, good = read_texts(values)
    return mend(array, good, values, parse, type)


def _texts(type: ValueType, values: pa.Array) -> pa.Array:
    return as_utf8(values)


def _jsons(type: ValueType, values: pa.Array) -> pa.Array:
    # A jsonb has its version in front, a byte that no JSON text begins with.
    cells = Cells.of(values)
    versioned = (cells.at(0) == 1) & (cells.lengths > 0)
    if not versioned.any():
        return as_utf8(values)
    keep = np.ones(len(cells.data), np.bool_)
    keep[cells.starts[versioned]] = False
    offsets = np.zeros(len(values) + 1, np.int32)
    np.cumsum(cells.lengths - versioned, out=offsets[1:])
    content = [None, pa.py_buffer(offsets), pa.py_buffer(cells.data[keep])]
    return as_utf8(pa.Array.from_buffers(pa.binary(), len(values), content))


def _bytes(type: ValueType, values: pa.Array) -> pa.Array:
    return values


def _uuids(type: ValueType, content: npt.NDArray[Any]) -> pa.Array:
    return pa.Array.from_buffers(type.arrow, len(content), [None, pa.py_buffer(content)])


def _dates(type: ValueType, content: npt.NDArray[Any]) -> pa.Array:
    raw = content.astype(np.int64)
    infinite = (raw == MIN_INT32) | (raw == MAX_INT32)
    days = np.where(infinite, raw, raw + _DAYS_TO_2000)
    good = infinite | (days < MAX_INT32)
    return _some(days.astype(np.int32), good, type.arrow)


def _timestamps(type: ValueType, content: npt.NDArray[Any]) -> pa.Array:
    raw = content.astype(np.int64)
    infinite = (raw == MIN_INT64) | (raw == MAX_INT64)
    good = infinite | (raw < MAX_INT64 - _MICROS_TO_2000)
    # What overflows here is not good, and null.
    micros = np.where(infinite, raw, raw + _MICROS_TO_2000)
    return _some(micros, good, type.arrow)


def _times(type: ValueType, content: npt.NDArray[Any]) -> pa.Array:
    micros = content.astype(np.int64)
    return _some(micros, (micros >= 0) & (micros <= MICROS_PER_DAY), type.arrow)


def _timetzs(type: ValueType, content: npt.NDArray[Any]) -> pa.Array:
    micros, west = content["us"].astype(np.int64), content["west"].astype(np.int32)
    good = (micros >= 0) & (micros <= MICROS_PER_DAY)
    good &= (west > -_MOST_OFFSET) & (west < _MOST_OFFSET)
    # PostgreSQL counts west of UTC, its texts and we count east.
    children = [pa.array(micros), pa.array(np.where(good, -west, 0).astype(np.int32))]
    return pa.StructArray.from_arrays(children, fields=list(type.arrow), mask=pa.array(~good))


def _intervals(type: ValueType, content: npt.NDArray[Any]) -> pa.Array:
    children = [
        pa.array(content["months"].astype(np.int32)),
        pa.array(content["days"].astype(np.int32)),
        pa.array(content["us"].astype(np.int64)),
    ]
    return pa.StructArray.from_arrays(children, fields=list(type.arrow))


_Make: TypeAlias = Callable[[ValueType, npt.NDArray[Any]], pa.Array]

_FIXED: Final[Mapping[str, tuple[np.dtype[Any], _Make]]] = {
    "int16": (np.dtype(">i2"), _numbers),
    "int32": (np.dtype(">i4"), _numbers),
    "int64": (np.dtype(">i8"), _numbers),
    "float32": (np.dtype(">f4"), _numbers),
    "float64": (np.dtype(">f8"), _numbers),
    "boolean": (np.dtype("u1"), _booleans),
    "uuid": (np.dtype("V16"), _uuids),
    "date": (np.dtype(">i4"), _dates),
    "timestamp": (np.dtype(">i8"), _timestamps),
    "timestamptz": (np.dtype(">i8"), _timestamps),
    "time": (np.dtype(">i8"), _times),
    "timetz": (_TIMETZ, _timetzs),
    "interval": (_INTERVAL, _intervals),
}
"""Kinds whose values all have the same length, and how a column is made of them."""

_READERS: Final[Mapping[str, Reader]] = {
    "decimal": _decimals,
    "numeric": _numerics,
    "text": _texts,
    "json": _jsons,
    "bytes": _bytes,
}
