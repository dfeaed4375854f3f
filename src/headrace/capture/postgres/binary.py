"""
Columns of PostgreSQL's binary values, as a copy sends them, as columns of the log.

What comes out is what the stream's texts of the same values come out as (`text.py`): a row
has one value, whichever way it came. A value whose length its type cannot have means that
we misread the copy, which is a `BadMessage`; one that fits its length but not its column is
a misfit, as everywhere (R23f). Its exact text is PostgreSQL's where it has one, else its bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.capture.postgres.cells import Cells, Reader, as_utf8, mend, read
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
_NUMBERS: Final = {
    "int16": ">i2",
    "int32": ">i4",
    "int64": ">i8",
    "float32": ">f4",
    "float64": ">f8",
}
_TIMETZ: Final = np.dtype([("us", ">i8"), ("west", ">i4")])
_INTERVAL: Final = np.dtype([("us", ">i8"), ("days", ">i4"), ("months", ">i4")])


def binary_column(type: ValueType, values: pa.Array) -> tuple[pa.Array, Misfits]:
    """
    Return a column of `type`, and the misfits, of values in binary form.

    `values` is binary, null for NULL, and may be a slice. Raises `BadMessage` for lengths
    that values of the type cannot have, and nothing else whatever the bytes are.
    """
    if (reader := _READERS.get(type.kind)) is None:
        raise BadSchema("PostgreSQL has no such kind of value", kind=type.kind)
    return read(type, values, reader, _exact)


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


def _fixed(kind: str, values: pa.Array, shape: str | np.dtype[Any]) -> npt.NDArray[Any]:
    """Return the values as numpy sees them, all of one length."""
    dtype: np.dtype[Any] = np.dtype(shape)
    cells = Cells.of(values)
    if (cells.lengths != dtype.itemsize).any():
        raise BadMessage("A value has an impossible length", kind=kind, expected=dtype.itemsize)
    return cells.data.view(dtype)


def _some(content: npt.NDArray[Any], good: npt.NDArray[np.bool_], shape: pa.DataType) -> pa.Array:
    """Return numbers as a column, null where they are not good."""
    array = pa.array(content, mask=None if good.all() else ~good)
    return array if array.type == shape else array.view(shape)


def _numbers(type: ValueType, values: pa.Array) -> pa.Array:
    shape = _NUMBERS[type.kind]
    if type.kind == "int64" and len(values) and Cells.of(values).lengths[0] == 4:
        shape = ">u4"  # an oid
    return pa.array(_fixed(type.kind, values, shape).astype(type.arrow.to_pandas_dtype()))


def _booleans(type: ValueType, values: pa.Array) -> pa.Array:
    content = _fixed(type.kind, values, "u1")
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


def _uuids(type: ValueType, values: pa.Array) -> pa.Array:
    content = _fixed(type.kind, values, "V16")
    return pa.Array.from_buffers(type.arrow, len(values), [None, pa.py_buffer(content)])


def _dates(type: ValueType, values: pa.Array) -> pa.Array:
    raw = _fixed(type.kind, values, ">i4").astype(np.int64)
    infinite = (raw == MIN_INT32) | (raw == MAX_INT32)
    days = np.where(infinite, raw, raw + _DAYS_TO_2000)
    good = infinite | (days < MAX_INT32)
    return _some(days.astype(np.int32), good, type.arrow)


def _timestamps(type: ValueType, values: pa.Array) -> pa.Array:
    raw = _fixed(type.kind, values, ">i8").astype(np.int64)
    infinite = (raw == MIN_INT64) | (raw == MAX_INT64)
    good = infinite | (raw < MAX_INT64 - _MICROS_TO_2000)
    # What overflows here is not good, and null.
    micros = np.where(infinite, raw, raw + _MICROS_TO_2000)
    return _some(micros, good, type.arrow)


def _times(type: ValueType, values: pa.Array) -> pa.Array:
    micros = _fixed(type.kind, values, ">i8").astype(np.int64)
    return _some(micros, (micros >= 0) & (micros <= MICROS_PER_DAY), type.arrow)


def _timetzs(type: ValueType, values: pa.Array) -> pa.Array:
    content = _fixed(type.kind, values, _TIMETZ)
    micros, west = content["us"].astype(np.int64), content["west"].astype(np.int32)
    good = (micros >= 0) & (micros <= MICROS_PER_DAY)
    good &= (west > -_MOST_OFFSET) & (west < _MOST_OFFSET)
    # PostgreSQL counts west of UTC, its texts and we count east.
    children = [pa.array(micros), pa.array(np.where(good, -west, 0).astype(np.int32))]
    return pa.StructArray.from_arrays(children, fields=list(type.arrow), mask=pa.array(~good))


def _intervals(type: ValueType, values: pa.Array) -> pa.Array:
    content = _fixed(type.kind, values, _INTERVAL)
    children = [
        pa.array(content["months"].astype(np.int32)),
        pa.array(content["days"].astype(np.int32)),
        pa.array(content["us"].astype(np.int64)),
    ]
    return pa.StructArray.from_arrays(children, fields=list(type.arrow))


_READERS: Final[Mapping[str, Reader]] = {
    **dict.fromkeys(_NUMBERS, _numbers),
    "boolean": _booleans,
    "decimal": _decimals,
    "numeric": _numerics,
    "text": _texts,
    "json": _jsons,
    "bytes": _bytes,
    "uuid": _uuids,
    "date": _dates,
    "timestamp": _timestamps,
    "timestamptz": _timestamps,
    "time": _times,
    "timetz": _timetzs,
    "interval": _intervals,
}
