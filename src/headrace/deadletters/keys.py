"""
The key of a change, as bytes.

A dead letter holds back later changes with the same key. So the keys that it holds are stored
with it, and a change years and schemas later is compared with them. **These bytes are therefore a
format**: it may be extended, but never changed.

The bytes are the columns of the key, in the key's order, each with a tag:

| tag | content | for |
|---|---|---|
| 0 | nothing | null |
| 1 | 8 bytes, a signed integer | whole numbers, booleans, dates and times |
| 2 | 8 bytes, a double | floats: minus zero is zero, and there is one NaN |
| 3 | length and UTF-8 | text, json |
| 4 | length and bytes | bytes, text_bytes, uuid |
| 5 | length and `digits` e `exponent` | decimal, numeric: 1.0 is 1.00 |
| 6 | length and the exact text | a value that its column could not hold (R23f) |
| 7 | length and 8 bytes each | timetz, interval |
| 8 | length and Python's `repr` | types that only an expression makes, no source |

Integers are little-endian, lengths have 4 bytes. A variant is encoded as the value in it. A
number in a variant is encoded as a whole number if it is one, because SQLite compares them so.
Two keys have the same bytes if, and only if, a target takes them for the same row. A wider integer
or decimal type changes nothing.

If a table has no key, its whole row is the key.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.changelog.schema import Column, TableSchema
from headrace.changelog.values import Interval, OffsetTime, ValueType
from headrace.changelog.values_json import marked_rows
from headrace.errors import RowFailed
from headrace.tables.keys import canonical_floats, number_parts

Side: TypeAlias = Literal["before", "after"]
ExactTexts: TypeAlias = dict[int, dict[int, str]]
"""Exact texts by field id, then by row."""

_NULL, _WHOLE, _DOUBLE, _TEXT, _BYTES, _NUMBER, _EXACT, _PARTS, _OTHER = range(9)
_WHOLES: Final = frozenset(
    {"int16", "int32", "int64", "boolean", "time", "timestamp", "timestamptz"}
)
_TEXTS: Final = frozenset({"text", "json"})
_RAW: Final = frozenset({"bytes", "text_bytes", "uuid"})
_FLOATS: Final = frozenset({"float32", "float64"})


class Keys(NamedTuple):
    """The keys of some changes; null if a change has no such image."""

    old: pa.Array
    new: pa.Array


def key_columns(schema: TableSchema) -> tuple[Column, ...]:
    """Return the columns that identify a table's rows."""
    return tuple(schema.column(name) for name in schema.key) or schema.columns


def packed_keys(rows: pa.Table, schema: TableSchema) -> Keys:
    """Return the keys of changes in the shape of a segment, as bytes."""
    images = {side: rows.column(side).combine_chunks() for side in ("before", "after")}
    pieces: dict[Side, list[pa.Array]] = {"before": [], "after": []}
    texts = _exact_texts(rows)
    unsent = _unsent(rows)
    for column in key_columns(schema):
        index = schema.names.index(column.name)
        old, new = (
            _with_exact_texts(
                _packed(column.type, pc.struct_field(images[side], index)),
                texts.get(column.field if side == "after" else -column.field, {}),
            )
            for side in ("before", "after")
        )
        if missing := unsent.get(column.field):
            new = _filled(old, new, images["before"], missing, schema.table, column.name)
        pieces["before"].append(old)
        pieces["after"].append(new)
    return Keys(*(_joined(pieces[side], images[side]) for side in ("before", "after")))


def _joined(pieces: list[pa.Array], image: pa.Array) -> pa.Array:
    whole = pieces[0] if len(pieces) == 1 else pc.binary_join_element_wise(*pieces, b"")
    if image.null_count:
        whole = pc.if_else(image.is_valid(), whole, pa.scalar(None, pa.binary()))
    return whole


# --- exact texts and unsent values of a row ------------------------------------------------


def _exact_texts(rows: pa.Table) -> ExactTexts:
    """Return the exact texts of these changes; negative ids are for the image before."""
    found: ExactTexts = {}
    for row, texts in marked_rows(rows.column("_exact")):
        for field, text in texts:
            found.setdefault(field, {})[row] = text
    return found


def _unsent(rows: pa.Table) -> dict[int, list[int]]:
    """Return, by field id, the rows whose image after does not have that column's value."""
    found: dict[int, list[int]] = {}
    for row, fields in marked_rows(rows.column("_unsent")):
        for field in fields:
            found.setdefault(field, []).append(row)
    return found


def _with_exact_texts(packed: pa.Array, texts: Mapping[int, str]) -> pa.Array:
    """Replace nulls by the exact texts of values that the column could not hold."""
    if not texts:
        return packed
    rows = sorted(texts)
    exact = [_measured(_EXACT, texts[row].encode()) for row in rows]
    return pc.replace_with_mask(packed, _mask(len(packed), rows), pa.array(exact, pa.binary()))


def _filled(
    old: pa.Array, new: pa.Array, before: pa.Array, missing: list[int], table: str, column: str
) -> pa.Array:
    """Fill in values that were not sent, because they did not change, from the image before."""
    mask = _mask(len(new), missing)
    if pc.any(pc.and_(mask, before.is_null())).as_py():
        raise RowFailed(
            "The source did not send the key of a change, so later changes cannot be held",
            table=table,
            column=column,
            remedy="Reload the table, or make the source send whole rows (REPLICA IDENTITY FULL).",
        )
    return pc.replace_with_mask(new, mask, old.filter(mask))


def _mask(length: int, rows: list[int]) -> pa.Array:
    mask = np.zeros(length, np.bool_)
    mask[rows] = True
    return pa.array(mask)


# --- a column ----------------------------------------------------------------------------------


def _packed(type: ValueType, array: pa.Array) -> pa.Array:
    """Return a column's values as bytes; the usual types are converted a column at a time."""
    kind = type.kind
    if kind in _WHOLES:
        return _wholes(array)
    if kind == "date":
        # Arrow cannot cast a date to 64 bits directly.
        return _wholes(array.cast(pa.int32()))
    if kind in _FLOATS:
        return _doubles(array)
    if kind in _TEXTS:
        return _lengthened(_TEXT, array)
    if kind in _RAW:
        return _lengthened(_BYTES, array)
    if kind == "variant":
        return _variants(array)
    pack = _PACKERS.get(kind, _pack_other)
    values = type.from_arrow(array)
    return pa.array([b"\0" if value is None else pack(value) for value in values], pa.binary())


def _wholes(array: pa.Array) -> pa.Array:
    numbers = array.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
    return _or_null(array, _tagged(_WHOLE, numbers.astype("<i8")))


def _doubles(array: pa.Array) -> pa.Array:
    return _or_null(array, _tagged(_DOUBLE, canonical_floats(array).astype("<f8")))


def _lengthened(tag: int, array: pa.Array) -> pa.Array:
    raw = array.cast(pa.binary()).fill_null(b"")
    lengths = pc.binary_length(raw).to_numpy(zero_copy_only=False)
    heads = _tagged(tag, lengths.astype("<u4"))
    return _or_null(array, pc.binary_join_element_wise(heads, raw, b""))


def _variants(array: pa.Array) -> pa.Array:
    kinds = pc.struct_field(array, 0).fill_null(0)
    packed = pa.array([b"\0"] * len(array), pa.binary())
    ways: tuple[Callable[[pa.Array], pa.Array], ...] = (
        _wholes,
        _variant_floats,
        lambda texts: _lengthened(_TEXT, texts),
        lambda raw: _lengthened(_BYTES, raw),
    )
    for kind, way in enumerate(ways, 1):
        these = pc.equal(kinds, kind)
        if pc.any(these).as_py():
            chosen = pc.struct_field(array, kind).filter(these)
            packed = pc.replace_with_mask(packed, these, way(chosen))
    return packed


def _variant_floats(array: pa.Array) -> pa.Array:
    return pa.array([_pack_variant_float(value) for value in array.to_pylist()], pa.binary())


def _tagged(tag: int, numbers: npt.NDArray[Any]) -> pa.Array:
    """Return the tag and the bytes of each number."""
    width = numbers.dtype.itemsize
    cells = np.empty((len(numbers), 1 + width), np.uint8)
    cells[:, 0] = tag
    cells[:, 1:] = np.ascontiguousarray(numbers).view(np.uint8).reshape(-1, width)
    fixed = pa.Array.from_buffers(
        pa.binary(1 + width), len(numbers), [None, pa.py_buffer(cells.tobytes())]
    )
    return fixed.cast(pa.binary())


def _or_null(array: pa.Array, packed: pa.Array) -> pa.Array:
    return pc.if_else(array.is_valid(), packed, pa.scalar(b"\0")) if array.null_count else packed


# --- a value -------------------------------------------------------------------------------------


def _measured(tag: int, data: bytes) -> bytes:
    return struct.pack("<BI", tag, len(data)) + data


def _pack_variant_float(value: float) -> bytes:
    if math.isfinite(value) and value == int(value) and -(2**63) <= value < 2**63:
        return struct.pack("<Bq", _WHOLE, int(value))
    return struct.pack("<Bd", _DOUBLE, math.nan if value != value else value)


def _pack_number(value: object) -> bytes:
    assert isinstance(value, Decimal)
    if (parts := number_parts(value)) is None:
        return _measured(_NUMBER, ("NaN" if value.is_nan() else str(value)).encode())
    sign, digits, exponent = parts
    return _measured(_NUMBER, f"{sign}{digits}e{exponent}".encode())


def _pack_timetz(value: object) -> bytes:
    assert isinstance(value, OffsetTime)
    return _measured(_PARTS, struct.pack("<2q", value.micros, value.offset))


def _pack_interval(value: object) -> bytes:
    assert isinstance(value, Interval)
    return _measured(_PARTS, struct.pack("<3q", value.months, value.days, value.micros))


def _pack_other(value: object) -> bytes:
    return _measured(_OTHER, repr(value).encode(errors="backslashreplace"))


_PACKERS: Final[Mapping[str, Callable[[object], bytes]]] = {
    "decimal": _pack_number,
    "numeric": _pack_number,
    "timetz": _pack_timetz,
    "interval": _pack_interval,
}
