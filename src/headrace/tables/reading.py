"""
From a buffer to the value at the edge, one row and one column at a time.

`as_py` makes an Arrow scalar first and takes microseconds for a zoned timestamp. A reader
here is a function from the row's place in its chunk to the value: it indexes a memoryview
and decodes what it finds. Where nothing needs decoding and nothing is null, it is the
memoryview's own `__getitem__`, and no Python code runs at all.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, TypeAlias

import pyarrow as pa

from headrace.changelog.values import ValueType
from headrace.tables.buffers import (
    Buffer,
    FixedBuffer,
    FlagBuffer,
    PieceBuffer,
    StructBuffer,
    TextBuffer,
    Validity,
)

Reader: TypeAlias = Callable[[int], Any]
"""The value of a column at a place of its chunk."""

_EPOCHS = {
    "timestamp": datetime(1970, 1, 1),
    "timestamptz": datetime(1970, 1, 1, tzinfo=UTC),
}
"""What instants are counted from; their own decoder checks bounds first, at twice the time."""

_INT64_DIGITS = 18
"""Decimals of up to so many digits fit the lower half of their sixteen bytes."""


def reader_of(buffer: Buffer, type: ValueType) -> Reader:
    """Return the reader of a column of this type; good for every row written so far."""
    if isinstance(buffer, PieceBuffer):
        return buffer.value
    if isinstance(buffer, StructBuffer) and type.kind == "variant":
        return _with_nulls(buffer.validity, _variants(buffer))
    if isinstance(buffer, FixedBuffer) and type.kind == "decimal":
        return _with_nulls(buffer.validity, _decimals(buffer, type))
    if isinstance(buffer, FixedBuffer) and type.kind in _EPOCHS:
        return _with_nulls(buffer.validity, _instants(buffer, type))
    read, validity = _stored(buffer)
    return _with_nulls(validity, _decoded(read, type.decoder()))


def _stored(buffer: Buffer) -> tuple[Reader, Validity]:
    match buffer:
        case TextBuffer():
            read = _text(buffer) if pa.types.is_string(buffer.type) else _bytes(buffer)
            return read, buffer.validity
        case FlagBuffer():
            return _flags(buffer), buffer.validity
        case FixedBuffer():
            return _fixed(buffer), buffer.validity
        case StructBuffer():
            return _parts(buffer), buffer.validity
    raise TypeError(buffer)


def _decoded(read: Reader, decode: Callable[[object], object] | None) -> Reader:
    if decode is None:
        return read

    def decoded(at: int) -> object:
        return decode(read(at))

    return decoded


def _with_nulls(validity: Validity, read: Reader) -> Reader:
    if validity.bits is None:
        return read
    bits = validity.bits.data.data

    def nullable(at: int) -> object:
        return read(at) if bits[at >> 3] >> (at & 7) & 1 else None

    return nullable


def _fixed(buffer: FixedBuffer) -> Reader:
    values = buffer.data.data
    if buffer.step == 1:
        return values.__getitem__
    step = buffer.step

    def wide(at: int) -> bytes:
        return bytes(values[at * step : at * step + step])

    return wide


def _decimals(buffer: FixedBuffer, type: ValueType) -> Reader:
    words = buffer.data.data
    # Text is the one exact way in: arithmetic rounds to the digits of somebody's context.
    exponent = f"E-{type.scale}"
    if type.precision <= _INT64_DIGITS:

        def narrow(at: int) -> Decimal:
            return Decimal(f"{words[at + at]}{exponent}")

        return narrow

    def wide(at: int) -> Decimal:
        unscaled = (words[at + at + 1] << 64) | (words[at + at] & 0xFFFF_FFFF_FFFF_FFFF)
        return Decimal(f"{unscaled}{exponent}")

    return wide


def _instants(buffer: FixedBuffer, type: ValueType) -> Reader:
    micros, epoch, decode = buffer.data.data, _EPOCHS[type.kind], type.decoder()

    def instant(at: int) -> object:
        try:
            return epoch + timedelta(0, 0, micros[at])
        except OverflowError:
            # Infinity, or a year that Python does not have.
            return decode(micros[at]) if decode else None

    return instant


def _flags(buffer: FlagBuffer) -> Reader:
    bits = buffer.bits.data.data

    def flag(at: int) -> bool:
        return bits[at >> 3] >> (at & 7) & 1 == 1

    return flag


def _text(buffer: TextBuffer) -> Reader:
    offsets, data = buffer.offsets.data, buffer.data.data

    def text(at: int) -> str:
        return str(data[offsets[at] : offsets[at + 1]], "utf-8")

    return text


def _bytes(buffer: TextBuffer) -> Reader:
    offsets, data = buffer.offsets.data, buffer.data.data

    def some_bytes(at: int) -> bytes:
        return bytes(data[offsets[at] : offsets[at + 1]])

    return some_bytes


def _plain(buffer: Buffer, type: Any) -> Reader:
    return reader_of(buffer, ValueType.of_arrow(type))


def _parts(buffer: StructBuffer) -> Reader:
    fields = [buffer.type.field(n) for n in range(buffer.type.num_fields)]
    readers = [
        (field.name, _plain(child, field.type))
        for field, child in zip(fields, buffer.children, strict=True)
    ]

    def parts(at: int) -> dict[str, object]:
        return {name: read(at) for name, read in readers}

    return parts


def _variants(buffer: StructBuffer) -> Reader:
    kind, *values = (
        _plain(child, buffer.type.field(n).type) for n, child in enumerate(buffer.children)
    )

    def variant(at: int) -> object:
        # Its kinds are counted from 1, in the order of the parts that hold them.
        return values[kind(at) - 1](at)

    return variant
