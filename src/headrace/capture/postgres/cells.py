"""
Columns of bytes as numpy sees them, and the two ways through a column.

Nearly all values of a column look alike and are read at once. Those that do not are read
one by one, each distinct one only once: an `infinity` in every other row is then no slower
than none. A reader gets a column without nulls and gives back null for what the column's
type cannot hold; what that was is found again here, by its place.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.changelog.values import Misfits, ValueType

Bytes: TypeAlias = npt.NDArray[np.uint8]
Ints: TypeAlias = npt.NDArray[np.int64]
Mask: TypeAlias = npt.NDArray[np.bool_]
Reader: TypeAlias = Callable[[ValueType, pa.Array], pa.Array]

CHUNK = 1 << 15
"""Rows that numpy works on at once: its many small steps then stay in the processor's cache."""


@dataclass(frozen=True, slots=True)
class Cells:
    """The bytes of a column without nulls, and where each value lies in them."""

    data: Bytes
    starts: Ints
    lengths: Ints

    @classmethod
    def of(cls, values: pa.Array) -> Cells:
        """Look at a binary column, which may be a slice of another."""
        places, data = _parts(values)
        if not len(places):
            return cls(data, np.empty(0, np.int64), np.empty(0, np.int64))
        starts = places[:-1].astype(np.int64) - int(places[0])
        return cls(data, starts, np.diff(places).astype(np.int64))

    def part(self, begin: int) -> Cells:
        """Return a chunk of the rows, from `begin` on."""
        rows = slice(begin, begin + CHUNK)
        return Cells(self.data, self.starts[rows], self.lengths[rows])

    def at(self, place: int | Ints) -> Bytes:
        """Return one byte of each value; some other byte where the value is shorter."""
        if not len(self.data):
            return np.zeros(len(self.starts), np.uint8)
        return self.data.take(self.starts + place, mode="clip")


def content(values: pa.Array) -> Bytes:
    """Return the bytes of a binary column, of all its values one after the other."""
    return _parts(values)[1]


def _parts(values: pa.Array) -> tuple[npt.NDArray[np.int32], Bytes]:
    """Return where values begin and end, none for no value, and the bytes of them all."""
    _, offsets, data = values.buffers()
    count = len(values)
    if count == 0 or offsets is None:
        return np.empty(0, np.int32), np.empty(0, np.uint8)
    places = np.frombuffer(offsets, np.int32, count + 1, 4 * values.offset)
    first, last = int(places[0]), int(places[-1])
    if data is None or last <= first:
        return places, np.empty(0, np.uint8)
    return places, np.frombuffer(data, np.uint8, last - first, first)


def read(
    type: ValueType, values: pa.Array, reader: Reader, exact: Callable[[ValueType, bytes], str]
) -> tuple[pa.Array, Misfits]:
    """Return the column as `reader` reads it, and what it could not hold, told by `exact`."""
    nulls = values.null_count
    dense = values.drop_null() if nulls else values
    array = reader(type, dense)
    misfits: Misfits = []
    places: npt.NDArray[Any] = np.arange(0)
    if nulls:
        valid = np.asarray(values.is_valid())
        places = np.flatnonzero(valid)
    if array.null_count:
        for row in np.flatnonzero(np.asarray(array.is_null())).tolist():
            place = int(places[row]) if nulls else row
            misfits.append((place, exact(type, dense[row].as_py())))
    return spread(array, valid) if nulls else array, misfits


def spread(array: pa.Array, here: Mask) -> pa.Array:
    """Return a column with its values where `here` is true, in their order, and else null."""
    return array.take(pa.array(np.cumsum(here) - 1, mask=~here))


def mend(
    quick: pa.Array,
    good: Mask,
    values: pa.Array,
    parse: Callable[[bytes], object],
    type: ValueType,
) -> pa.Array:
    """Return `quick`, but rows that are not good parsed one by one; None is a misfit."""
    if good.all():
        return quick
    bad = pa.array(~good)
    return pc.replace_with_mask(quick, bad, each(values.filter(bad), parse, type))


def each(values: pa.Array, parse: Callable[[bytes], object], type: ValueType) -> pa.Array:
    """Return the values parsed one by one, equal ones once."""
    distinct = values.dictionary_encode()
    parsed, _ = type.to_arrow([parse(raw) for raw in distinct.dictionary.to_pylist()])
    return parsed.take(distinct.indices)


def as_utf8(values: pa.Array) -> pa.Array:
    """Return a column of bytes as text; what is not UTF-8 is null."""
    try:
        return values.cast(pa.utf8())
    except pa.ArrowInvalid:
        pass
    dense = Cells.of(values)
    high = np.flatnonzero(dense.data >= 0x80)
    rows = np.unique(np.searchsorted(dense.starts + dense.lengths, high, side="right"))
    good = np.ones(len(values), np.bool_)
    for row in rows.tolist():
        good[row] = _is_utf8(values[row].as_py() or b"")
    return pc.if_else(pa.array(good), values, pa.scalar(None, pa.binary())).cast(pa.utf8())


def _is_utf8(raw: bytes) -> bool:
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True
