"""
The binary form of `numeric`: a number in base 10,000.

Four words of 16 bits come first: how many digits there are, the power of 10,000 that the
first one stands for, the sign, and how many decimals are shown. The digits follow, without
zeros at either end.
"""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.capture.postgres.cells import CHUNK, Cells, Ints, Mask
from headrace.errors import BadMessage

_NEGATIVE: Final = 0x4000
_SPECIAL: Final = {0xC000: "NaN", 0xD000: "Infinity", 0xF000: "-Infinity"}
_MOST: Final = 32
"""Digits before the point, and after it, of numbers whose text is made for a chunk at once."""

_SHORT: Final = 18
"""Numbers of so many digits fit 64 bits."""

_CHARACTERS: Final = (
    np.arange(10_000)[:, None] // np.array([1000, 100, 10, 1]) % 10 + ord("0")
).astype(np.uint8)
_LENGTHS: Final = np.maximum(1, np.ceil(np.log10(np.arange(10_000) + 1))).astype(np.int64)

Unsigned = npt.NDArray[np.uint64]


class _Numbers:
    """A chunk of a column, taken apart."""

    def __init__(self, words: Ints, starts: Ints) -> None:
        self._words, self._starts = words, starts
        self.count = words[starts]
        weight = words[starts + 1]
        self.weight = np.where(weight >= 0x8000, weight - 0x10000, weight)
        self.sign = words[starts + 2]
        self.scale = words[starts + 3]
        self.finite: Mask = (self.sign == 0) | (self.sign == _NEGATIVE)

    def digit(self, power: int) -> Ints:
        """Return the digit for that power of 10,000, of each number."""
        place = self.weight - power
        there = (place >= 0) & (place < self.count)
        found = self._words.take(self._starts + 4 + place, mode="clip")
        return np.where(there, found, 0)

    @property
    def last(self) -> Ints:
        """The power that the last digit stands for."""
        return self.weight - self.count + 1


def _chunks(values: pa.Array) -> Iterator[tuple[slice, _Numbers]]:
    cells = Cells.of(values)
    if (cells.lengths % 2).any() or (cells.lengths < 8).any():
        raise BadMessage("A number has an impossible length", kind="numeric")
    words = cells.data.view(">u2").astype(np.int64)
    starts = cells.starts // 2
    if (cells.lengths != 8 + 2 * words[starts]).any():
        raise BadMessage("A number has another length than it says", kind="numeric")
    # A digit that is none would pass for several.
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
    """Return the numbers as decimals of that size, and which rows are."""
    content = np.zeros((len(values), 2), np.uint64)
    good = np.zeros(len(values), np.bool_)
    top = (precision - scale + 3) // 4 - 1
    bottom = -((scale + 3) // 4)
    # The last digit may reach beyond the scale, the first one beyond the precision.
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
            # What does not fit has overflown here, and is not fine.
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
    """Return the numbers' canonical texts, and which rows are."""
    good = np.zeros(len(values), np.bool_)
    texts = [_texts(numbers, good[rows]) for rows, numbers in _chunks(values)]
    return pa.concat_arrays(texts) if texts else pa.array([], pa.utf8()), good


def _texts(numbers: _Numbers, good: Mask) -> pa.Array:
    weight, scale = np.maximum(numbers.weight, 0), numbers.scale
    # A first digit of zero is not how it is sent; its length would not be that of the number.
    first = numbers.digit(0)
    for power in range(1, _MOST // 4):
        np.copyto(first, numbers.digit(power), where=numbers.weight == power)
    good[:] = numbers.finite & (numbers.weight < _MOST // 4) & (scale <= _MOST)
    good &= (first > 0) | (numbers.weight <= 0) | (numbers.count == 0)
    if not good.any():
        return pa.array([""] * len(good), pa.utf8())
    whole = int(weight[good].max()) + 1
    decimals = -(-int(scale[good].max()) // 4)
    letters = np.empty((len(good), 2 + 4 * (whole + decimals)), np.uint8)
    keep = np.zeros(letters.shape, np.bool_)
    letters[:, 0] = ord("-")
    keep[:, 0] = numbers.sign == _NEGATIVE
    for power in range(whole - 1, -decimals - 1, -1):
        at = 1 + 4 * (whole - 1 - power) + (power < 0)
        letters[:, at : at + 4] = _CHARACTERS[np.minimum(numbers.digit(power), 9999)]
    length = np.where(numbers.count == 0, 1, 4 * weight + _LENGTHS[np.minimum(first, 9999)])
    places = np.arange(4 * whole)
    keep[:, 1 : 1 + 4 * whole] = places >= 4 * whole - length[:, None]
    letters[:, 1 + 4 * whole] = ord(".")
    keep[:, 1 + 4 * whole] = scale > 0
    keep[:, 2 + 4 * whole :] = np.arange(4 * decimals) < scale[:, None]
    keep[~good] = False
    offsets = np.zeros(len(good) + 1, np.int32)
    np.cumsum(keep.sum(axis=1), out=offsets[1:])
    data = pa.py_buffer(letters[keep])
    return pa.Array.from_buffers(pa.utf8(), len(good), [None, pa.py_buffer(offsets), data])


def parse_numeric(raw: bytes) -> Decimal | None:
    """Read one number exactly; None where it is none."""
    words = np.frombuffer(raw, ">u2").tolist()
    count, weight, sign, scale = words[:4]
    if sign in _SPECIAL:
        return Decimal(_SPECIAL[sign])
    digits = words[4:]
    if sign not in (0, _NEGATIVE) or scale > 0x3FFF or any(digit > 9999 for digit in digits):
        return None
    weight = weight - 0x10000 if weight >= 0x8000 else weight
    # As text: Python's own numbers would be slow at a hundred thousand digits.
    whole = "".join(f"{digit:04}" for digit in digits[: max(weight + 1, 0)])
    whole += "0000" * max(weight + 1 - count, 0)
    fraction = "0000" * max(-weight - 1, 0) if digits else ""
    fraction += "".join(f"{digit:04}" for digit in digits[max(weight + 1, 0) :])
    fraction = fraction[:scale].ljust(scale, "0")
    minus = "-" if sign == _NEGATIVE else ""
    return Decimal(f"{minus}{whole.lstrip('0') or '0'}{'.' if fraction else ''}{fraction}")
