"""
Rows in append-only column buffers, and the readers of their values.

Tiny batches must not make tiny chunks, and a row that a reader may be using must not
move. Instead of collecting small Arrow chunks and merging them from time to time, as an LSM
tree does, a chunk has room for 65,536 rows from the start and is filled in place: the
memory beyond its last row is address space, not yet pages. What merging would cost is
never paid, a row's chunk is the upper half of its number, and what has been written
never changes. Buffers lie as Arrow has them, so a column is an Arrow array at no cost.

A buffer is replaced in two cases: text outgrows its bytes, or the first null of a column
arrives. A reader that still holds the old one reads the same rows there.

Values are read one row and one column at a time. `as_py` makes an Arrow scalar first and takes
microseconds for a zoned timestamp. A reader here is a function from the row's index in its chunk
to the value: it indexes a memoryview and decodes what it finds. Where nothing needs decoding and
nothing is null, it is the memoryview's own `__getitem__`, and no Python code runs at all.

Long because every kind of buffer is defined together with its readers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, KeysView, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, Final, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.changelog.schema import Column
from headrace.changelog.values import ValueType

# --- buffers --------------------------------------------------------------------------------------

BITS: Final = 16
CHUNK: Final = 1 << BITS
"""Rows of a chunk: text of a few GB still fits 32-bit offsets, and 1 M rows are 16 chunks."""

MOST_TEXT = 2**31 - 1
"""Bytes of a chunk's column: offsets into it are 32 bits, as Arrow's."""

Array = npt.NDArray[Any]

_DTYPES: Final = {1: np.int8, 2: np.int16, 4: np.int32, 8: np.int64}


class Buffer(Protocol):
    """The values of one column in one chunk, by the row's index in the chunk."""

    @property
    def nbytes(self) -> int:
        """Bytes in use."""
        ...

    def fits(self, array: pa.Array) -> bool:
        """Whether there is room for the bytes of these values."""
        ...

    def append(self, array: pa.Array, at: int) -> bool:
        """Write `array` from index `at` on; True if its readers have to be recreated."""
        ...

    def arrow(self, count: int) -> pa.Array:
        """Return the first `count` values; no copy where there is a single buffer."""
        ...

    def seal(self) -> bool:
        """Release unused memory; True if its readers have to be recreated."""
        ...


class Bits:
    """One bit a row."""

    __slots__ = ("data",)

    def __init__(self, fill: int) -> None:
        self.data: npt.NDArray[np.uint8] = np.full(CHUNK // 8, fill, np.uint8)

    def write(self, at: int, flags: npt.NDArray[np.bool_]) -> None:
        """Set the bits from `at` on; those before and after keep their value while we write."""
        first, lead = divmod(at, 8)
        stop = at + len(flags)
        last, tail = divmod(stop, 8)
        if lead:
            flags = np.concatenate([self._byte(first)[:lead], flags])
        if tail:
            flags = np.concatenate([flags, self._byte(last)[tail:]])
        self.data[first : first + len(flags) // 8] = np.packbits(flags, bitorder="little")

    def _byte(self, at: int) -> npt.NDArray[np.bool_]:
        return np.unpackbits(self.data[at : at + 1], bitorder="little").astype(np.bool_)


class Validity:
    """Which values are not null; nothing at all until the first null."""

    __slots__ = ("bits",)

    def __init__(self) -> None:
        self.bits: Bits | None = None

    def append(self, array: pa.Array, at: int) -> bool:
        if not array.null_count:
            return False
        fresh = self.bits is None
        if self.bits is None:
            self.bits = Bits(0xFF)
        self.bits.write(at, array.is_valid().to_numpy(zero_copy_only=False))
        return fresh

    @property
    def nbytes(self) -> int:
        return 0 if self.bits is None else self.bits.data.nbytes

    @property
    def arrow(self) -> pa.Buffer | None:
        return None if self.bits is None else pa.py_buffer(self.bits.data)


class FixedBuffer:
    """Values of one width: numbers, dates, instants, decimals, sixteen bytes of a UUID."""

    __slots__ = ("data", "filled", "step", "type", "validity")

    def __init__(self, type: pa.DataType) -> None:
        self.type = type
        width = type.bit_width // 8
        if pa.types.is_floating(type):
            dtype: Any = np.float32 if width == 4 else np.float64
        elif pa.types.is_decimal(type):
            dtype = np.int64
        else:
            dtype = np.uint8 if _is_bytes(type) else _DTYPES[width]
        self.step = width // np.dtype(dtype).itemsize
        """Elements of `data` that make one value."""
        self.data: Array = np.empty(CHUNK * self.step, dtype)
        self.filled = 0
        self.validity = Validity()

    @property
    def nbytes(self) -> int:
        return int(self.filled * self.step * self.data.itemsize) + self.validity.nbytes

    def fits(self, array: pa.Array) -> bool:
        return True

    def append(self, array: pa.Array, at: int) -> bool:
        step, count = self.step, len(array)
        self.data[at * step : (at + count) * step] = np.frombuffer(
            array.buffers()[1],
            self.data.dtype,
            count=count * step,
            offset=array.offset * step * self.data.itemsize,
        )
        self.filled = at + count
        return self.validity.append(array, at)

    def arrow(self, count: int) -> pa.Array:
        buffers = [self.validity.arrow, pa.py_buffer(self.data)]
        return pa.Array.from_buffers(self.type, count, buffers)

    def seal(self) -> bool:
        return False


class FlagBuffer:
    """Booleans."""

    __slots__ = ("bits", "validity")

    def __init__(self) -> None:
        self.bits = Bits(0)
        self.validity = Validity()

    @property
    def nbytes(self) -> int:
        return self.bits.data.nbytes + self.validity.nbytes

    def fits(self, array: pa.Array) -> bool:
        return True

    def append(self, array: pa.Array, at: int) -> bool:
        flags = array.fill_null(False) if array.null_count else array
        self.bits.write(at, flags.to_numpy(zero_copy_only=False))
        return self.validity.append(array, at)

    def arrow(self, count: int) -> pa.Array:
        buffers = [self.validity.arrow, pa.py_buffer(self.bits.data)]
        return pa.Array.from_buffers(pa.bool_(), count, buffers)

    def seal(self) -> bool:
        return False


class TextBuffer:
    """Values of any length: text and bytes."""

    __slots__ = ("data", "offsets", "type", "used", "validity")

    def __init__(self, type: pa.DataType) -> None:
        self.type = type
        self.offsets: npt.NDArray[np.int32] = np.empty(CHUNK + 1, np.int32)
        self.offsets[0] = 0
        self.data: npt.NDArray[np.uint8] = np.empty(1024, np.uint8)
        self.used = 0
        self.validity = Validity()

    @property
    def nbytes(self) -> int:
        return self.used + self.offsets.nbytes + self.validity.nbytes

    def fits(self, array: pa.Array) -> bool:
        return self.used + int(array.nbytes) <= MOST_TEXT

    def append(self, array: pa.Array, at: int) -> bool:
        count = len(array)
        _, ends, text = array.buffers()
        offsets = np.frombuffer(ends, np.int32, count=count + 1, offset=array.offset * 4)
        first, last = int(offsets[0]), int(offsets[-1])
        used = self.used + last - first
        fresh = used > len(self.data)
        if fresh:
            # Half as much again: the spare room is not touched, so it is not resident.
            room = np.empty(used * 3 // 2, np.uint8)
            room[: self.used] = self.data[: self.used]
            self.data = room
        if last > first:
            self.data[self.used : used] = np.frombuffer(
                text, np.uint8, count=last - first, offset=first
            )
        self.offsets[at + 1 : at + count + 1] = offsets[1:] + np.int32(self.used - first)
        self.used = used
        return self.validity.append(array, at) or fresh

    def arrow(self, count: int) -> pa.Array:
        buffers = [self.validity.arrow, pa.py_buffer(self.offsets), pa.py_buffer(self.data)]
        return pa.Array.from_buffers(self.type, count, buffers)

    def seal(self) -> bool:
        if len(self.data) <= self.used * 9 // 8:
            return False
        self.data = self.data[: self.used].copy()
        return True


class StructBuffer:
    """Values of several parts, each a column of its own: mixtures, intervals."""

    __slots__ = ("children", "type", "validity")

    def __init__(self, type: pa.DataType) -> None:
        self.type = type
        self.children = [buffer_of(type.field(at).type) for at in range(type.num_fields)]
        self.validity = Validity()

    @property
    def nbytes(self) -> int:
        return sum(child.nbytes for child in self.children) + self.validity.nbytes

    def fits(self, array: pa.Array) -> bool:
        return all(child.fits(array.field(n)) for n, child in enumerate(self.children))

    def append(self, array: pa.Array, at: int) -> bool:
        fresh = [child.append(array.field(n), at) for n, child in enumerate(self.children)]
        return self.validity.append(array, at) or any(fresh)

    def arrow(self, count: int) -> pa.Array:
        children = [child.arrow(count) for child in self.children]
        return pa.Array.from_buffers(self.type, count, [self.validity.arrow], children=children)

    def seal(self) -> bool:
        sealed = [child.seal() for child in self.children]
        return any(sealed)


class PieceBuffer:
    """
    All other types that a pipeline expression can produce: lists, maps, dictionaries.

    Kept as Arrow arrays, joined when there are too many.
    """

    __slots__ = ("pieces", "type")

    def __init__(self, type: pa.DataType) -> None:
        self.type = type
        self.pieces: tuple[tuple[int, pa.Array], ...] = ()
        """Each with the index of its first value; replaced as a whole."""

    @property
    def nbytes(self) -> int:
        return sum(piece.nbytes for _, piece in self.pieces)

    def fits(self, array: pa.Array) -> bool:
        return True

    def append(self, array: pa.Array, at: int) -> bool:
        # Copied: a slice of Spark's result would keep all of it alive.
        pieces = (*self.pieces, (at, pa.concat_arrays([array, array.slice(0, 0)])))
        self.pieces = ((0, self._joined(pieces)),) if len(pieces) > 16 else pieces
        return False

    def arrow(self, count: int) -> pa.Array:
        return self._joined(self.pieces).slice(0, count)

    def seal(self) -> bool:
        self.pieces = ((0, self._joined(self.pieces)),)
        return False

    def value(self, index: int) -> object:
        """Return one value as Arrow gives it."""
        for at, piece in reversed(self.pieces):
            if at <= index:
                return piece[index - at].as_py()
        raise IndexError(index)

    def _joined(self, pieces: tuple[tuple[int, pa.Array], ...]) -> pa.Array:
        if not pieces:
            return pa.array([], self.type)
        return pa.concat_arrays([piece for _, piece in pieces])


_INSTANTS = (pa.date32(), pa.timestamp("us"), pa.timestamp("us", "UTC"))
"""Those of our own kinds. Of other times and durations only Arrow knows what an integer means."""


def buffer_of(type: pa.DataType) -> Buffer:
    """Return an empty buffer for values of this type."""
    if pa.types.is_boolean(type):
        return FlagBuffer()
    if pa.types.is_string(type) or pa.types.is_binary(type):
        return TextBuffer(type)
    if pa.types.is_struct(type):
        return StructBuffer(type)
    if _is_bytes(type) or (
        (pa.types.is_primitive(type) or pa.types.is_decimal128(type))
        and not pa.types.is_float16(type)
        and not pa.types.is_unsigned_integer(type)
        and (type in _INSTANTS or not pa.types.is_temporal(type))
    ):
        return FixedBuffer(type)
    return PieceBuffer(type)


def _is_bytes(type: pa.DataType) -> bool:
    return bool(pa.types.is_fixed_size_binary(type)) and not pa.types.is_decimal(type)


# --- from a buffer to the value at the edge -------------------------------------------------------

Reader: TypeAlias = Callable[[int], Any]
"""The value of a column at an index of its chunk."""

_EPOCHS = {
    "timestamp": datetime(1970, 1, 1),
    "timestamptz": datetime(1970, 1, 1, tzinfo=UTC),
}
"""What instants are counted from; their own decoder checks bounds first, at twice the time."""

_INT64_DIGITS = 18
"""Decimals of up to this many digits fit the lower half of their sixteen bytes."""


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
    # Text is the only exact way: arithmetic rounds to the precision of the caller's context.
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


# --- a run of rows, column by column --------------------------------------------------------------


class Chunk:
    """
    Up to 65,536 rows.

    One thread appends; any number read the rows they know of. `values` is what they read
    through: it holds, at any moment, readers good for every row written before.
    """

    __slots__ = ("buffers", "columns", "count", "values")

    def __init__(self, columns: Sequence[Column]) -> None:
        self.columns = columns
        self.buffers = [buffer_of(column.type.arrow) for column in columns]
        self.values: dict[str, Reader] = {
            column.name: reader_of(buffer, column.type)
            for column, buffer in zip(columns, self.buffers, strict=True)
        }
        self.count = 0

    @property
    def nbytes(self) -> int:
        """Bytes in use."""
        return sum(buffer.nbytes for buffer in self.buffers)

    def fits(self, arrays: Sequence[pa.Array]) -> bool:
        """Whether there is room for the texts of these rows."""
        return all(buffer.fits(array) for buffer, array in zip(self.buffers, arrays, strict=True))

    def append(self, arrays: Sequence[pa.Array], count: int) -> None:
        """Append rows, one array per column, of the columns' own types."""
        for column, buffer, array in zip(self.columns, self.buffers, arrays, strict=True):
            if buffer.append(array, self.count):
                self.values[column.name] = reader_of(buffer, column.type)
        self.count += count
        if self.count == CHUNK:
            self.seal()

    def seal(self) -> None:
        """Mark the chunk as complete, and release unused memory."""
        for column, buffer in zip(self.columns, self.buffers, strict=True):
            if buffer.seal():
                self.values[column.name] = reader_of(buffer, column.type)

    def arrow(self, columns: Sequence[int]) -> list[pa.Array]:
        """Return these columns as Arrow arrays, without copying."""
        return [self.buffers[at].arrow(self.count) for at in columns]


# --- a row: an index in a chunk, decoded on access ------------------------------------------------


class Row(Mapping[str, object]):
    """
    The columns of one row, by name.

    A value is decoded on every access: to use a whole row more than once, make a copy with
    `dict(row)`. A row belongs to one version of its table and does not change. It keeps its
    chunk in memory. It equals every mapping with the same items.
    """

    __slots__ = ("_at", "_values")

    def __init__(self, values: Mapping[str, Reader], at: int) -> None:
        self._values = values
        self._at = at

    def __getitem__(self, name: str) -> object:
        return self._values[name](self._at)

    def keys(self) -> KeysView[str]:
        # The dict's own: with it, dict(row) is twice as fast.
        return self._values.keys()

    def get_string(self, name: str) -> str:
        """Return a text; empty where the column is absent, null or holds no text."""
        value = self.get(name)
        return value if isinstance(value, str) else ""

    def get_int(self, name: str) -> int:
        """Return a whole number; 0 where the column is absent, null or holds none."""
        value = self.get(name)
        return value if isinstance(value, int) and not isinstance(value, bool) else 0

    def without(self, *names: str) -> dict[str, object]:
        """Return a copy without these columns."""
        return {name: self[name] for name in self if name not in names}

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, name: object) -> bool:
        return name in self._values

    def __eq__(self, other: object) -> bool:
        return dict(self) == dict(other) if isinstance(other, Mapping) else NotImplemented

    def __repr__(self) -> str:
        return f"Row({dict(self)!r})"

    def __reduce__(self) -> tuple[type[dict[str, object]], tuple[dict[str, object]]]:
        # Pickled as its values, without the chunk.
        return dict, (dict(self),)
