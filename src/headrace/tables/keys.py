"""
Keys and index values as canonical bytes, and their hashes.

Two values that a database considers equal have equal bytes here, whether they come from an
Arrow column or from a call of `get`: 1, 1.0 and Decimal("1.00") are one number, and
minus zero is zero. A value that no row of the column can have, such as text for a number,
has no bytes, and nothing is found.

The hash of a key is XXH64 over its bytes; a single integer key is its own hash, exact and
free (S13). Arrow has no kernel for it, so it costs a Python call a row, about 0.2 µs.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from functools import partial
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from headrace.changelog.schema import Column
from headrace.changelog.values import PHYSICAL, Unfit, ValueType

Hash64: TypeAlias = Callable[[bytes], int]
"""Bytes to 64 bits, unsigned; replaced by tests that need collisions."""

Hashes: TypeAlias = npt.NDArray[np.uint64]

INTEGERS: Final = frozenset({"int16", "int32", "int64"})
_TEXTS: Final = frozenset({"text", "json", "bytes", "text_bytes"})
_INSTANTS: Final = frozenset({"date", "timestamp", "timestamptz", "time"})

SPREAD: Final = 0x9E37_79B9_7F4A_7C15
"""2^64 divided by the golden ratio: it spreads runs of integers over the upper bits."""
MASK: Final = 0xFFFF_FFFF_FFFF_FFFF

_LONG = struct.Struct("<q").pack
_DOUBLE = struct.Struct("<d").pack
_LENGTH = struct.Struct("<I").pack
_QUICK: Final[Mapping[str, Callable[[Any], bytes | None]]] = {
    "text": str.encode,
    **dict.fromkeys(INTEGERS, _LONG),
}
_INT64 = range(-(2**63), 2**63)
_DIGITS = 38
"""Of the widest decimal."""


def whole(value: object) -> int | None:
    """Return the integer that `value` equals, or None."""
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float | Decimal):
        return int(value) if math.isfinite(value) and value == int(value) else None
    try:
        return int(value.__index__())  # type: ignore[attr-defined]
    except (AttributeError, TypeError):
        return None


class Codec:
    """Canonical bytes over some columns, in their order."""

    __slots__ = ("_packers", "_parts", "_quick", "columns", "hash", "integer", "names", "pack")

    def __init__(self, columns: Sequence[Column], hash64: Hash64 = xxhash.xxh64_intdigest) -> None:
        self.columns = tuple(columns)
        self.names = tuple(column.name for column in columns)
        self.integer = len(columns) == 1 and columns[0].type.kind in INTEGERS
        """A single integer: its own hash."""
        self.hash = hash64
        """From packed values to their hash."""
        # Lengths keep ("a", "bc") from being ("ab", "c"); the last text needs none.
        open_ended = [at for at, column in enumerate(columns) if not _width(column.type)]
        self._parts = [
            KeyColumn(column.type, measured=at in open_ended[:-1])
            for at, column in enumerate(columns)
        ]
        self._packers = [(part.pack, part.empty) for part in self._parts]
        self._quick = [part.quick for part in self._parts]
        self.pack: Callable[[Sequence[Any]], bytes | None] = (
            self._pack_two if len(columns) == 2 else self._pack_all
        )
        """From values to their bytes, nulls as empty ones; None if no row can have them."""

    def _pack_two(self, values: Sequence[Any]) -> bytes | None:
        # Most such keys are two columns of text or integers, and these take no Python call.
        one, other = self._quick
        try:
            return one(values[0]) + other(values[1])  # type: ignore[operator]
        except (TypeError, UnicodeEncodeError, struct.error):
            return self._pack_all(values)

    def _pack_all(self, values: Sequence[Any]) -> bytes | None:
        packed = b""
        for value, (pack, empty) in zip(values, self._packers, strict=True):
            piece = empty if value is None else pack(value)
            if piece is None:
                return None
            packed += piece
        return packed

    def pack_arrays(self, arrays: Sequence[pa.Array]) -> pa.Array:
        """Return the bytes of every row."""
        pieces = [part.array(array) for part, array in zip(self._parts, arrays, strict=True)]
        return pieces[0] if len(pieces) == 1 else pc.binary_join_element_wise(*pieces, b"")

    def hash_arrays(self, packed: pa.Array) -> Hashes:
        """Return the hash of every row's bytes."""
        return np.fromiter(map(self.hash, packed.to_pylist()), np.uint64, len(packed))

    def same(self, one: Sequence[object], other: Sequence[object]) -> bool:
        """Whether these are the same values, nulls equal to nulls."""
        return all(
            a == b or (a is not None and b is not None and part.pack(a) == part.pack(b) is not None)
            for part, a, b in zip(self._parts, one, other, strict=True)
        )


class KeyColumn:
    """One column's share of the bytes."""

    __slots__ = ("_measured", "_one", "_type", "_width", "empty", "pack", "quick")

    def __init__(self, type: ValueType, *, measured: bool) -> None:
        self._type = type
        self._width = _width(type)
        self._measured = measured
        self._one = _packer(type)
        self.pack = partial(_measure, self._one) if measured else self._one
        """From a value, not null, to its bytes; None if no row can have it."""
        self.empty = _LENGTH(0) if measured else bytes(self._width)
        self.quick = self.pack if measured else _QUICK.get(type.kind, self.pack)
        """A faster `pack`; if it raises or returns None, `pack` decides."""

    def array(self, array: pa.Array) -> pa.Array:
        packed = self._array(array)
        if packed.null_count:
            packed = packed.fill_null(bytes(self._width))
        if self._measured:
            lengths = _fixed_bytes(pc.binary_length(packed), 4)
            packed = pc.binary_join_element_wise(lengths, packed, b"")
        return packed

    def _array(self, array: pa.Array) -> pa.Array:
        kind = self._type.kind
        if kind in INTEGERS or kind == "time":
            return _fixed_bytes(array.cast(pa.int64()), 8)
        if kind in ("timestamp", "timestamptz"):
            return _fixed_bytes(array, 8)
        if kind in ("date", "boolean"):
            return _fixed_bytes(array.cast(pa.int32()).cast(pa.int64()), 8)
        if kind in ("float32", "float64"):
            return _fixed_bytes(pa.array(canonical_floats(array)), 8)
        if kind in ("decimal", "uuid"):
            return _fixed_bytes(array, 16)
        if kind in _TEXTS:
            return array.cast(pa.binary())
        pieces = [
            None if value is None else self._one(value) for value in self._type.from_arrow(array)
        ]
        return pa.array(pieces, pa.binary())


def _width(type: ValueType) -> int:
    """Return the bytes of a value, 0 where they differ."""
    if type.kind in INTEGERS | _INSTANTS | {"boolean", "float32", "float64"}:
        return 8
    return 16 if type.kind in ("decimal", "uuid") else 0


def _fixed_bytes(array: pa.Array, width: int) -> pa.Array:
    validity, data = array.buffers()
    fixed = pa.Array.from_buffers(
        pa.binary(width), len(array), [validity, data], offset=array.offset
    )
    return fixed.cast(pa.binary())


def canonical_floats(array: pa.Array) -> npt.NDArray[np.float64]:
    """Return floats of which those that are equal have equal bytes; 0 for null."""
    # Adding zero makes minus zero plus zero; one NaN stands for all of them.
    filled = array.cast(pa.float64()).fill_null(0.0)
    values: npt.NDArray[np.float64] = filled.to_numpy(zero_copy_only=False) + 0.0
    values[np.isnan(values)] = np.nan
    return values


def _packer(type: ValueType) -> Callable[[Any], bytes | None]:
    """Return the function from a value at the edge to its bytes, or None if it has none here."""
    kind = type.kind
    if kind in INTEGERS or kind == "boolean":
        return _pack_integer
    if kind in ("float32", "float64"):
        return _pack_float
    if kind == "decimal":
        return partial(_pack_decimal, type.scale)
    if kind in ("text", "json"):
        return _pack_text
    if kind == "numeric":
        return _pack_numeric
    if kind == "variant":
        return _pack_variant
    if kind in PHYSICAL:
        return partial(_pack_physical, PHYSICAL[kind])
    # What an expression made: the same value has the same text, and reading verifies.
    return lambda value: repr(value).encode()


def _measure(pack: Callable[[object], bytes | None], value: object) -> bytes | None:
    piece = pack(value)
    return None if piece is None else _LENGTH(len(piece)) + piece


def _pack_integer(value: object) -> bytes | None:
    number = value if type(value) is int else whole(value)
    try:
        return None if number is None else _LONG(number)
    except struct.error:
        return None


def _pack_float(value: object) -> bytes | None:
    if not isinstance(value, int | float | Decimal):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    if number != number:
        return _DOUBLE(math.nan)
    return _DOUBLE(number + 0.0) if number == value else None


def _pack_decimal(scale: int, value: object) -> bytes | None:
    found = number_parts(value)
    if found is None:
        return None
    sign, digits, exponent = found
    exponent += scale
    if exponent < 0 or len(digits) + exponent > _DIGITS:
        return None
    return int(f"{sign}{digits}{'0' * exponent}").to_bytes(16, "little", signed=True)


def _pack_numeric(value: object) -> bytes | None:
    found = number_parts(value)
    if found is not None:
        sign, digits, exponent = found
        return f"{sign}{digits}e{exponent}".encode()
    # NaN and the infinities are values of a numeric.
    return str(float(value)).encode() if isinstance(value, float | Decimal) else None


def number_parts(value: object) -> tuple[str, str, int] | None:
    """Return sign, digits without zeros at the end, and exponent; exact in any context."""
    if not isinstance(value, int | float | Decimal):
        return None
    decimal = Decimal(value)
    if not decimal.is_finite():
        return None
    negative, digits, exponent = decimal.as_tuple()
    assert isinstance(exponent, int)
    text = "".join(map(str, digits)).rstrip("0")
    if not text:
        return "", "0", 0
    return "-" if negative else "", text, exponent + len(digits) - len(text)


def _pack_text(value: object) -> bytes | None:
    if isinstance(value, str):
        try:
            return value.encode()
        except UnicodeEncodeError:
            pass  # A lone surrogate: no database has that.
    return None


def _pack_variant(value: object) -> bytes | None:
    # A number's kind does not matter to SQLite's own comparison, and so not to its keys.
    if (number := whole(value)) is not None:
        return b"\1" + _LONG(number) if number in _INT64 else _pack_variant_float(value)
    if isinstance(value, float | Decimal):
        return _pack_variant_float(value)
    if isinstance(value, str):
        text = _pack_text(value)
        return None if text is None else b"\3" + text
    return b"\4" + bytes(value) if isinstance(value, bytes | bytearray | memoryview) else None


def _pack_variant_float(value: object) -> bytes | None:
    number = _pack_float(value)
    return None if number is None else b"\2" + number


def _pack_physical(physical: Callable[[object], object], value: object) -> bytes | None:
    try:
        stored = physical(value)
    except Unfit:
        return None
    if isinstance(stored, int):
        return _LONG(stored)
    if isinstance(stored, bytes):
        return stored
    assert isinstance(stored, dict)
    return b"".join(_LONG(part) for part in stored.values())
