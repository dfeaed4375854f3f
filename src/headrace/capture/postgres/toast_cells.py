"""
Values as the store of TOAST values keeps them: bytes that say exactly what a column has.

A cell is the bytes of a value as Arrow holds it, None for null, and a text where the value
does not fit its column and the log keeps its exact text instead (R23f). A key is the cells of
its columns, one after the other, each with its kind and length in front: two keys are the
same bytes if, and only if, they are the same values.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.capture.postgres.catalog import CatalogTable
from headrace.capture.postgres.text import text_column
from headrace.capture.postgres.tuples import Flags
from headrace.changelog.schema import Column, TableSchema

UNKNOWN: Final = 0
"""Stands in the place of a cell that nobody can tell."""

Cell: TypeAlias = bytes | str | int | None
"""A value, the exact text of one that does not fit, `UNKNOWN`, or null."""

Marks: TypeAlias = Mapping[int, Mapping[int, str]]
"""Exact texts by row and field; of a before image under negative fields."""

_HEAD = struct.Struct("<BI")
_PLAIN = re.compile(r"(text|character|bytea|json|xml|numeric)\b(?!.*\[)")
"""Types that take no more room than their text; an array of numbers, say, may take much more."""


@dataclass(frozen=True)
class Shape:
    """What is kept of a table: the columns of its key, and those that may come unsent."""

    key: tuple[Column, ...]
    columns: tuple[Column, ...]

    @classmethod
    def of(cls, table: CatalogTable, schema: TableSchema) -> Shape | None:
        """Return what has to be kept of a table; None where the server always tells (R21)."""
        if all(each.identity == "f" for each in (table, *table.leaves)) or not schema.key:
            return None
        toasted = {column.number for column in table.columns if column.toastable}
        columns = tuple(
            column
            for column in schema.columns
            # The server sends what it has of a key with the old row, however it is stored.
            if column.field in toasted and column.name not in schema.key and _kept(column)
        )
        key = tuple(schema.column(name) for name in schema.key)
        return cls(key, columns) if columns else None

    @cached_property
    def missing(self) -> tuple[Cell, ...]:
        """For each column what rows have in it that are older than the column."""
        return tuple(_missing(column) for column in self.columns)


def cells(array: pa.Array) -> list[bytes | None]:
    """Return the bytes of each value."""
    kind = array.type
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        found: list[bytes | None] = array.view(pa.binary()).to_pylist()
        return found
    if pa.types.is_struct(kind):
        children = [cells(array.field(index)) for index in range(kind.num_fields)]
        valid = array.is_valid().to_pylist()
        return [
            joined(row) if here else None
            for row, here in zip(zip(*children, strict=True), valid, strict=True)
        ]
    if pa.types.is_boolean(kind):
        array = array.cast(pa.uint8())
    return _fixed(array).to_pylist() if len(array) else []


def array_of(column: Column, values: Iterable[Cell]) -> pa.Array:
    """Return cells of a kept column as Arrow; texts of values that do not fit are null."""
    kind = column.type.arrow
    plain = [value if isinstance(value, bytes) else None for value in values]
    if pa.types.is_decimal(kind):
        width = kind.bit_width // 8
        raw = pa.array(plain, pa.binary(width))
        return pa.Array.from_buffers(kind, len(raw), raw.buffers(), raw.null_count)
    return pa.array(plain, pa.binary()).view(kind)


def marked(array: pa.Array, field: int, marks: Marks) -> list[Cell]:
    """Return the cells of a column, with the exact texts of what it could not hold."""
    found: list[Cell] = list(cells(array))
    for row, texts in marks.items():
        if (text := texts.get(field)) is not None:
            found[row] = text
    return found


def keys_of(
    shape: Shape, names: Mapping[int, str], image: pa.StructArray, marks: Marks, sign: int
) -> list[bytes]:
    """Return the key of each row of an image; `names` are the columns' by their fields."""
    columns = [
        marked(image.field(names[column.field]), sign * column.field, marks) for column in shape.key
    ]
    return [joined(row) for row in zip(*columns, strict=True)]


def texts_of(
    shape: Shape, names: Mapping[int, str], image: pa.StructArray, marks: Marks, sign: int
) -> list[list[str]]:
    """Return for each column of the key its values as texts that the server reads."""
    found = []
    for column in shape.key:
        values = column.type.from_arrow(image.field(names[column.field]))
        texts = [_text(value) for value in values]
        for row, exact in marks.items():
            texts[row] = exact.get(sign * column.field, texts[row])
        found.append(texts)
    return found


def heavy(columns: Sequence[Column], image: pa.StructArray, marks: Marks, most: int) -> Flags:
    """
    Return which rows may be larger than `most` bytes on a page of the server's.

    Only of such a row is anything kept elsewhere, and left out when it did not change.
    """
    total = np.full(len(image), 24, np.int64)
    for index, column in enumerate(columns):
        total += 24
        array = image.field(index)
        if pa.types.is_string(array.type) or pa.types.is_binary(array.type):
            lengths = pc.fill_null(pc.binary_length(array), 0).to_numpy(zero_copy_only=False)
            total += lengths.astype(np.int64) * (1 if _PLAIN.match(column.declared) else 16)
    found: Flags = total > most
    found[list(marks)] = True
    return found


OUTSIDE_BYTES = 24
"""No value of so few bytes is ever kept elsewhere: what points to it would take as many."""


def long(columns: Sequence[Column], image: pa.StructArray, marks: Marks) -> Flags:
    """
    Return which rows have a value that may be kept elsewhere, whatever their size is now.

    It stays there when the rest of its row shrinks.
    """
    found: Flags = np.zeros(len(image), np.bool_)
    for column in columns:
        array = image.field(column.name)
        if pa.types.is_string(array.type) or pa.types.is_binary(array.type):
            lengths = pc.fill_null(pc.binary_length(array), 0).to_numpy(zero_copy_only=False)
            factor = 1 if _PLAIN.match(column.declared) else 16
            found |= lengths.astype(np.int64) * factor > OUTSIDE_BYTES
        elif pa.types.is_decimal(array.type) and array.type.precision > 28:
            found |= array.is_valid().to_numpy(zero_copy_only=False)
    found[list(marks)] = True
    return found


def marks_of(exact: pa.Array | None) -> dict[int, dict[int, str]]:
    """Return the exact texts of a batch by row and field."""
    if exact is None or exact.null_count == len(exact):
        return {}
    rows = np.flatnonzero(exact.is_valid().to_numpy(zero_copy_only=False)).tolist()
    return {row: dict(exact[row].as_py()) for row in rows}


def sizes(row: Sequence[Cell]) -> int:
    """Return about how many bytes these cells take."""
    return sum(len(cell) for cell in row if isinstance(cell, bytes | str))


def _kept(column: Column) -> bool:
    kind = column.type.arrow
    return bool(pa.types.is_string(kind) or pa.types.is_binary(kind) or pa.types.is_decimal(kind))


def _missing(column: Column) -> Cell:
    if column.rewritten:
        return UNKNOWN
    if column.missing is None:
        return None
    array, misfits = text_column(column.type, pa.array([column.missing.encode()]))
    return misfits[0][1] if misfits else cells(array)[0]


def _fixed(array: pa.Array) -> pa.Array:
    """Return an array of fixed width as bytes; `view` does not know all of them."""
    width = array.type.bit_width // 8
    validity, values = array.buffers()
    return pa.Array.from_buffers(
        pa.binary(width), len(array), [validity, values], offset=array.offset
    )


def joined(row: Sequence[Cell]) -> bytes:
    """Return the cells of a key as one."""
    if len(row) == 1 and isinstance(row[0], bytes):
        # By far the commonest; no other key begins with this byte.
        return b"\x00" + row[0]
    parts = []
    for cell in row:
        if isinstance(cell, str):
            cell, kind = cell.encode(), 2
        else:
            kind = 3 if cell is None else 1
        data = cell if isinstance(cell, bytes) else b""
        parts += [_HEAD.pack(kind, len(data)), data]
    return b"".join(parts)


def _text(value: object) -> str:
    return f"\\x{value.hex()}" if isinstance(value, bytes) else str(value)
