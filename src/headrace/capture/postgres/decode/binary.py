"""
Decodes columns of PostgreSQL's binary values, as a copy sends them, into columns of the log.

The result is the same as for the stream's texts of the same values (`decode/text.py`): a row has
one value, whichever way it came. A length that the type cannot have means that we misread the
copy, which is a `BadMessage`. A value of the right length that its column cannot hold becomes
null, as everywhere (R23f). Its exact text is PostgreSQL's if it has one, otherwise its bytes.

The binary form of `numeric` is a number in base 10,000. It begins with four words of 16 bits: the
number of digits, the power of 10,000 of the first digit, the sign, and the number of decimals to
show. The digits follow, without zeros at either end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.capture.postgres.decode.text import (
    CHUNK,
    Cells,
    Ints,
    Mask,
    Reader,
    as_utf8,
    parse_others,
    read,
    spread,
)
from headrace.changelog.values import (
    MAX_INT32,
    MAX_INT64,
    MICROS_PER_DAY,
    MIN_INT32,
    MIN_INT64,
    BeyondDate,
    BeyondTime,
    Unrepresentable,
    ValueType,
    exact_text,
    numeric_text,
)
from headrace.errors import BadMessage, BadSchema

# --- the binary form of numeric -------------------------------------------------------------------

_NEGATIVE: Final = 0x4000
_SPECIAL: Final = {0xC000: "NaN", 0xD000: "Infinity", 0xF000: "-Infinity"}
_MOST: Final = 32
"""Digits before the point, and after it, up to which texts are made for a chunk at once."""

_SHORT: Final = 18
"""Numbers with this many digits fit into 64 bits."""

_CHARACTERS: Final = (
    np.arange(10_000)[:, None] // np.array([1000, 100, 10, 1]) % 10 + ord("0")
).astype(np.uint8)
_LENGTHS: Final = np.maximum(1, np.ceil(np.log10(np.arange(10_000) + 1))).astype(np.int64)

Unsigned = npt.NDArray[np.uint64]


class _Numbers:
    """The parts of the numbers in a chunk of a column."""

    def __init__(self, words: Ints, starts: Ints) -> None:
        self._words, self._starts = words, starts
        self.count = words[starts]
        weight = words[starts + 1]
        self.weight = np.where(weight >= 0x8000, weight - 0x10000, weight)
        self.sign = words[starts + 2]
        self.scale = words[starts + 3]
        self.finite: Mask = (self.sign == 0) | (self.sign == _NEGATIVE)

    def digit(self, power: int) -> Ints:
        """Return each number's digit for that power of 10,000."""
        index = self.weight - power
        there = (index >= 0) & (index < self.count)
        found = self._words.take(self._starts + 4 + index, mode="clip")
        return np.where(there, found, 0)

    @property
    def last(self) -> Ints:
        """The power of 10,000 of the last digit."""
        return self.weight - self.count + 1


def _chunks(values: pa.Array) -> Iterator[tuple[slice, _Numbers]]:
    cells = Cells.of(values)
    if (cells.lengths % 2).any() or (cells.lengths < 8).any():
        raise BadMessage("Value has a length that its type cannot have", kind="numeric")
    words = cells.data.view(">u2").astype(np.int64)
    starts = cells.starts // 2
    if (cells.lengths != 8 + 2 * words[starts]).any():
        raise BadMessage("Length of a number does not match its digits", kind="numeric")
    # A digit above 9999 would be read as several digits.
    large = words > 9999
    if large.any():
        for head in range(4):
            large[starts + head] = False
    broken = np.searchsorted(starts + cells.lengths // 2, np.flatnonzero(large), "right")
    for begin in range(0, len(starts), CHUNK):
        numbers = _Numbers(words, starts[begin : begin + CHUNK])
        within = broken[(broken >= begin) & (broken < begin + CHUNK)]
        numbers.finite[within - begin] = False
        yield slice(begin, begin + CHUNK), numbers


def read_decimals(values: pa.Array, precision: int, scale: int) -> tuple[pa.Array, Mask]:
    """Return the numbers as decimals of that size, and which rows fit."""
    content = np.zeros((len(values), 2), np.uint64)
    good = np.zeros(len(values), np.bool_)
    top = (precision - scale + 3) // 4 - 1
    bottom = -((scale + 3) // 4)
    # The last digit may extend beyond the scale, the first one beyond the precision.
    beyond = 10 ** (-bottom * 4 - scale)
    limit = 10 ** ((precision - scale) % 4 or 4)
    for rows, numbers in _chunks(values):
        fine = numbers.finite & (numbers.weight <= top) & (numbers.last >= bottom)
        fine |= numbers.finite & (numbers.count == 0)
        low = high = np.zeros(len(fine), np.uint64)
        part = np.zeros(len(fine), np.int64)
        factor = 1
        for power in range(top, bottom - 1, -1):
            digit = numbers.digit(power)
            base = 10_000
            if power == top and top >= 0:
                fine &= digit < limit
            if power == bottom and beyond > 1:
                fine &= digit % beyond == 0
                digit, base = digit // beyond, base // beyond
            part, factor = part * base + digit, factor * base
            if precision > _SHORT and (factor >= 10**13 or power == bottom):
                high, low = _times_plus(high, low, factor, part.astype(np.uint64))
                part, factor = np.zeros_like(part), 1
        minus = numbers.sign == _NEGATIVE
        good[rows] = fine
        if precision <= _SHORT:
            # Numbers that do not fit have overflowed here, and are not `fine`.
            number = np.where(minus, -part, part)
            content[rows, 0] = number.view(np.uint64)
            content[rows, 1] = (number >> 63).view(np.uint64)
            continue
        content[rows, 0] = np.where(minus, ~low + np.uint64(1), low)
        content[rows, 1] = np.where(minus, ~high + (low == 0), high)
    shape = pa.decimal128(precision, scale)
    return pa.Array.from_buffers(shape, len(values), [None, pa.py_buffer(content)]), good


def _times_plus(
    high: Unsigned, low: Unsigned, factor: int, more: Unsigned
) -> tuple[Unsigned, Unsigned]:
    """Return 128 bits times `factor`, plus `more`."""
    half, bits = np.uint64(0xFFFFFFFF), np.uint64(32)
    one, two = low & half, low >> bits
    small, large = np.uint64(factor & 0xFFFFFFFF), np.uint64(factor >> 32)
    first, across, along = one * small, one * large, two * small
    middle = (first >> bits) + (across & half) + (along & half)
    carried = two * large + (across >> bits) + (along >> bits) + (middle >> bits)
    total = ((first & half) | (middle << bits)) + more
    return high * np.uint64(factor) + carried + (total < more), total


def read_texts(values: pa.Array) -> tuple[pa.Array, Mask]:
    """Return the numbers' canonical texts, and which rows have one."""
    good = np.zeros(len(values), np.bool_)
    texts = [_digit_texts(numbers, good[rows]) for rows, numbers in _chunks(values)]
    return pa.concat_arrays(texts) if texts else pa.array([], pa.utf8()), good


def _digit_texts(numbers: _Numbers, good: Mask) -> pa.Array:
    weight, scale = np.maximum(numbers.weight, 0), numbers.scale
    # The server never sends a first digit of zero; the length below would be wrong for it.
    first = numbers.digit(0)
    for power in range(1, _MOST // 4):
        np.copyto(first, numbers.digit(power), where=numbers.weight == power)
    good[:] = numbers.finite & (numbers.weight < _MOST // 4) & (scale <= _MOST)
    good &= (first > 0) | (numbers.weight <= 0) | (numbers.count == 0)
    if not good.any():
        return pa.array([""] * len(good), pa.utf8())
    whole = int(weight[good].max()) + 1
    decimals = -(-int(scale[good].max()) // 4)
    characters = np.empty((len(good), 2 + 4 * (whole + decimals)), np.uint8)
    keep = np.zeros(characters.shape, np.bool_)
    characters[:, 0] = ord("-")
    keep[:, 0] = numbers.sign == _NEGATIVE
    for power in range(whole - 1, -decimals - 1, -1):
        at = 1 + 4 * (whole - 1 - power) + (power < 0)
        characters[:, at : at + 4] = _CHARACTERS[np.minimum(numbers.digit(power), 9999)]
    length = np.where(numbers.count == 0, 1, 4 * weight + _LENGTHS[np.minimum(first, 9999)])
    columns = np.arange(4 * whole)
    keep[:, 1 : 1 + 4 * whole] = columns >= 4 * whole - length[:, None]
    characters[:, 1 + 4 * whole] = ord(".")
    keep[:, 1 + 4 * whole] = scale > 0
    keep[:, 2 + 4 * whole :] = np.arange(4 * decimals) < scale[:, None]
    keep[~good] = False
    offsets = np.zeros(len(good) + 1, np.int32)
    np.cumsum(keep.sum(axis=1), out=offsets[1:])
    data = pa.py_buffer(characters[keep])
    return pa.Array.from_buffers(pa.utf8(), len(good), [None, pa.py_buffer(offsets), data])


def parse_numeric(raw: bytes) -> Decimal | None:
    """Read one number exactly; None if it is not a number."""
    words = np.frombuffer(raw, ">u2").tolist()
    count, weight, sign, scale = words[:4]
    if sign in _SPECIAL:
        return Decimal(_SPECIAL[sign])
    digits = words[4:]
    if sign not in (0, _NEGATIVE) or scale > 0x3FFF or any(digit > 9999 for digit in digits):
        return None
    weight = weight - 0x10000 if weight >= 0x8000 else weight
    # As text: Python's integers would be slow with a hundred thousand digits.
    whole = "".join(f"{digit:04}" for digit in digits[: max(weight + 1, 0)])
    whole += "0000" * max(weight + 1 - count, 0)
    fraction = "0000" * max(-weight - 1, 0) if digits else ""
    fraction += "".join(f"{digit:04}" for digit in digits[max(weight + 1, 0) :])
    fraction = fraction[:scale].ljust(scale, "0")
    minus = "-" if sign == _NEGATIVE else ""
    return Decimal(f"{minus}{whole.lstrip('0') or '0'}{'.' if fraction else ''}{fraction}")


# --- columns from binary values -------------------------------------------------------------------

_DAYS_TO_2000: Final = 10_957
_MICROS_TO_2000: Final = _DAYS_TO_2000 * MICROS_PER_DAY
_MOST_OFFSET: Final = 16 * 3600
_OID: Final = np.dtype(">u4")
_TIMETZ: Final = np.dtype([("us", ">i8"), ("west", ">i4")])
_INTERVAL: Final = np.dtype([("us", ">i8"), ("days", ">i4"), ("months", ">i4")])


def binary_column(type: ValueType, values: pa.Array) -> tuple[pa.Array, Unrepresentable]:
    """
    Return a column of `type` from binary values, and the values that it cannot hold.

    `values` is binary, null for NULL, and may be a slice. Raises `BadMessage` for lengths
    that values of the type cannot have, and nothing else, whatever the bytes are.
    """
    if (reader := _READERS.get(type.kind)) is None and type.kind not in _FIXED:
        raise BadSchema("PostgreSQL has no values of this kind", kind=type.kind)
    return read(type, values, reader or _of_one_length, _exact)


def fixed_column(
    type: ValueType, size: int, buffer: bytes | bytearray, starts: Ints, here: Mask | None
) -> pa.Array | None:
    """
    Return a column of binary values that all have `size` bytes, read in place.

    They begin at `starts`, in the rows that are `here`, and are within `buffer`. None means
    that `binary_column` is needed: the type's values have another size, or the column cannot
    hold one of them.
    """
    if type.kind not in _FIXED or (shape := _shape(type.kind, size)).itemsize != size:
        return None
    offsets = starts if here is None else starts[here]
    each: npt.NDArray[Any] = np.ndarray((len(buffer) - size + 1,), shape, buffer, strides=(1,))
    array = _FIXED[type.kind][1](type, each[offsets])
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
        # Only the last years of PostgreSQL's range are beyond ours.
        micros = int.from_bytes(raw, signed=True) + _MICROS_TO_2000
        days, rest = divmod(micros, MICROS_PER_DAY)
        clock = str(BeyondTime(rest))
        clock = clock.rstrip("0") if "." in clock else clock
        return f"{BeyondDate(days)} {clock}{'+00' if type.kind == 'timestamptz' else ''}"
    return exact_text(raw)


def _shape(kind: str, size: int) -> np.dtype[Any]:
    """Return the numpy type for values of the kind; int64 is for two of PostgreSQL's types."""
    return _OID if kind == "int64" and size == _OID.itemsize else _FIXED[kind][0]


def _of_one_length(type: ValueType, values: pa.Array) -> pa.Array:
    cells = Cells.of(values)
    shape = _shape(type.kind, int(cells.lengths[0]) if len(values) else 0)
    if (cells.lengths != shape.itemsize).any():
        raise BadMessage(
            "Value has a length that its type cannot have",
            kind=type.kind,
            expected=shape.itemsize,
        )
    return _FIXED[type.kind][1](type, cells.data.view(shape))


def _some(content: npt.NDArray[Any], good: npt.NDArray[np.bool_], shape: pa.DataType) -> pa.Array:
    """Return numbers as a column; those that are not good become null."""
    array = pa.array(content, mask=None if good.all() else ~good)
    return array if array.type == shape else array.view(shape)


def _numbers(type: ValueType, content: npt.NDArray[Any]) -> pa.Array:
    return pa.array(content.astype(type.arrow.to_pandas_dtype()))


def _booleans(type: ValueType, content: npt.NDArray[Any]) -> pa.Array:
    return _some(content == 1, content <= 1, type.arrow)


def _decimals(type: ValueType, values: pa.Array) -> pa.Array:
    array, good = read_decimals(values, type.precision, type.scale)
    return parse_others(array, good, values, parse_numeric, type)


def _numerics(type: ValueType, values: pa.Array) -> pa.Array:
    def parse(raw: bytes) -> object:
        number = parse_numeric(raw)
        return None if number is None else numeric_text(number)

    array, good = read_texts(values)
    return parse_others(array, good, values, parse, type)


def _texts(type: ValueType, values: pa.Array) -> pa.Array:
    return as_utf8(values)


def _jsons(type: ValueType, values: pa.Array) -> pa.Array:
    # A jsonb begins with its version, a byte that no JSON text begins with.
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
    # Values that overflow here are not `good`, and become null.
    micros = np.where(infinite, raw, raw + _MICROS_TO_2000)
    return _some(micros, good, type.arrow)


def _times(type: ValueType, content: npt.NDArray[Any]) -> pa.Array:
    micros = content.astype(np.int64)
    return _some(micros, (micros >= 0) & (micros <= MICROS_PER_DAY), type.arrow)


def _timetzs(type: ValueType, content: npt.NDArray[Any]) -> pa.Array:
    micros, west = content["us"].astype(np.int64), content["west"].astype(np.int32)
    good = (micros >= 0) & (micros <= MICROS_PER_DAY)
    good &= (west > -_MOST_OFFSET) & (west < _MOST_OFFSET)
    # Binary values count west of UTC; PostgreSQL's texts, and we, count east.
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
"""Kinds whose values all have the same length, and how to build a column from them."""

_READERS: Final[Mapping[str, Reader]] = {
    "decimal": _decimals,
    "numeric": _numerics,
    "text": _texts,
    "json": _jsons,
    "bytes": _bytes,
}
