"""
The columns and rows of a frame: the table's own columns, then ours; one or two rows for a change.

A frame has the columns that the table had when the frame was loaded. Segments written under another
schema are converted to these columns if that changes no value: a column added after a change gets
the value that existing rows got, and a renamed column is recognised by its id. Any other difference
is reported as a change of schema (R23b).

Changes become rows of a frame:

| change | `images=after` | `images=both` |
|---|---|---|
| insert | `insert` | `insert` |
| update | `update_postimage` | `update_preimage`, `update_postimage` |
| update of the key | `delete` of the old key, `insert` of the new | as above |
| delete | `delete`, with the columns that the source sent | `delete` |
| truncate | as `onTruncate` says | as `onTruncate` says |

A change of the key is two rows, because a reader that keeps one row for each key would otherwise
keep the old one (R23).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.changelog.change import Op
from headrace.changelog.position import Position
from headrace.changelog.schema import Column, TableSchema
from headrace.config.schema import nearest
from headrace.errors import BadSchema, ColumnsChanged, UnknownColumn
from headrace.spark_source.options import ReadOptions
from headrace.spark_source.where import Predicate, columns_of, parse_where

# --- columns, and how those of a segment are mapped to them ---------------------------------------

CHANGE_TYPE: Final = "_change_type"
COMMIT_VERSION: Final = "_commit_version"
COMMIT_TIMESTAMP: Final = "_commit_timestamp"
POSITION: Final = "_position"

OURS: Final[Mapping[str, pa.DataType]] = {
    CHANGE_TYPE: pa.utf8(),
    COMMIT_VERSION: pa.int64(),
    COMMIT_TIMESTAMP: pa.timestamp("us", "UTC"),
    POSITION: pa.utf8(),
}
"""Our columns of each row, after the table's columns."""

UNSENT: Final = "_unsent"
EXACT: Final = "_exact"
MARKERS: Final[Mapping[str, pa.DataType]] = {
    UNSENT: pa.list_(pa.utf8()),
    EXACT: pa.map_(pa.utf8(), pa.utf8()),
}
"""More of our columns, with `marks=true`: unsent columns, and texts of unrepresentable values."""


@dataclass(frozen=True)
class FrameColumns:
    """The columns of a table that a DataFrame has, and its condition."""

    schema: TableSchema
    schema_id: int
    shown: tuple[Column, ...]
    """The table's columns in the frame."""

    chosen: bool = False
    """Whether the query chose them: then a column that is added later is not a change."""

    where: Predicate | None = field(default=None, repr=False)
    """Left out of `repr`, because it contains values."""

    markers: bool = False
    """Whether it has the columns of `marks=true`."""

    @cached_property
    def wanted(self) -> tuple[Column, ...]:
        """The columns to read: those of the frame, and those that `where` names."""
        names = {column.name for column in self.shown}
        asked = () if self.where is None else columns_of(self.where)
        more = dict.fromkeys(name for name in asked if name not in names and name not in OURS)
        return (*self.shown, *(self.schema.column(name) for name in more))

    @property
    def pruned(self) -> bool:
        """Whether less than the whole segment is read."""
        return self.where is not None or len(self.shown) < len(self.schema.columns)

    @cached_property
    def arrow(self) -> pa.Schema:
        """The frame's columns, as they are passed to Spark."""
        fields = [pa.field(column.name, edge(column.type.arrow)) for column in self.shown]
        fields += [pa.field(name, type) for name, type in self.ours.items()]
        return pa.schema(fields)

    @property
    def ours(self) -> Mapping[str, pa.DataType]:
        """Our columns in the frame."""
        return {**OURS, **MARKERS} if self.markers else OURS


@dataclass(frozen=True, slots=True)
class Fit:
    """How a column of a frame is read from a segment."""

    column: Column
    """The column in the frame."""

    source: str | None
    """Its name in the segment; None if the segment does not have it."""

    field: int
    dropped: bool = False
    """If the segment does not have it: whether it was dropped before, or is added later."""


def frame_of(schema: TableSchema, schema_id: int, options: ReadOptions) -> FrameColumns:
    """
    Return the frame that the options describe.

    Raises `UnknownColumn`, `BadExpression` or `BadSchema`.
    """
    shown = schema.columns
    if options.columns is not None:
        shown = tuple(_column(schema, name) for name in dict.fromkeys(options.columns))
    types = {column.name: column.type for column in schema.columns}
    where = None if options.where is None else parse_where(options.where, types)
    frame = FrameColumns(
        schema, schema_id, shown, options.columns is not None, where, options.markers
    )
    taken = [column.name for column in shown if column.name in frame.ours]
    if taken:
        raise BadSchema(
            "The table has a column with a name that Headrace adds itself",
            table=schema.table,
            columns=" ".join(taken),
            remedy="Select the other columns with the option columns, or rename it at the source.",
        )
    return frame


def fits(frame: FrameColumns, schema: TableSchema, age: int, *, adapt: bool) -> tuple[Fit, ...]:
    """
    Return how each wanted column is read from segments of that schema.

    `age` is positive if the schema is older than the frame's, and negative if it is newer. The
    columns alone do not show this: the newest one may have been dropped since, or not exist yet.
    Raises `ColumnsChanged` if the change of the table's columns affects the frame; with `adapt`,
    only if a value cannot be converted to the frame's type.
    """
    if age == 0:
        return tuple(Fit(column, column.name, column.field) for column in frame.wanted)
    there = {column.field: column for column in schema.columns}
    changed = _other_changes(frame, schema, age)
    found = []
    for column in frame.wanted:
        known = there.get(column.field)
        if known is None:
            if age < 0:
                changed.append(f"{column.name} dropped")
            found.append(Fit(column, None, column.field, dropped=age < 0))
            continue
        if known.type != column.type:
            changed.append(f"{column.name} retyped to {known.declared or known.type}")
            if not _widens(known.type.arrow, column.type.arrow):
                adapt = False
        elif known.name != column.name and age < 0:
            changed.append(f"{column.name} renamed to {known.name}")
        found.append(Fit(column, known.name, column.field))
    if changed and not adapt:
        raise ColumnsChanged(
            "The table's columns changed",
            table=schema.table,
            changed="; ".join(changed),
            remedy="Call load() again, which returns the new columns, and restart the query. Or"
            " keep the old columns with onSchemaChange=continue, if every value fits them, or"
            " select columns with the option columns.",
        )
    return tuple(found)


_BOOLEANS: Final = {"t": "true", "f": "false"}
"""From the text that PostgreSQL writes."""


def filled(fit: Fit, count: int) -> pa.Array:
    """Return the values of a column in rows older than it; null if it was dropped."""
    text, shape = fit.column.missing, fit.column.type.arrow
    if text is None or fit.dropped:
        return pa.nulls(count, shape)
    if pa.types.is_boolean(shape):
        text = _BOOLEANS.get(text, text)
    try:
        return pa.repeat(pa.scalar(text).cast(shape), count)
    except pa.ArrowException as error:
        raise ColumnsChanged(
            "The value that older rows have in a column cannot be read",
            column=fit.column.name,
            remedy="Start at a baseline or a later position, or leave the column out with the"
            " option columns.",
        ) from error


def edge(shape: pa.DataType) -> pa.DataType:
    """Return the Arrow type to pass to Spark, which does not know binary of fixed size."""
    if pa.types.is_fixed_size_binary(shape):
        return pa.binary()
    if pa.types.is_struct(shape):
        return pa.struct([pa.field(field.name, edge(field.type)) for field in shape])
    return shape


def _other_changes(frame: FrameColumns, schema: TableSchema, age: int) -> list[str]:
    """Return the changes that the wanted columns do not show: columns added, and the key."""
    found = []
    if not frame.chosen and age < 0:
        ours = {column.field for column in frame.schema.columns}
        found += [f"{column.name} added" for column in schema.columns if column.field not in ours]
    keys = [[each.column(name).field for name in each.key] for each in (frame.schema, schema)]
    if keys[0] != keys[1]:
        found.append("key")
    return found


_WIDER: Final = {
    pa.int16(): (pa.int32(), pa.int64()),
    pa.int32(): (pa.int64(),),
    pa.float32(): (pa.float64(),),
}


def _widens(old: pa.DataType, new: pa.DataType) -> bool:
    """Whether every value of one type is one of the other."""
    if pa.types.is_decimal(old) and pa.types.is_decimal(new):
        whole = new.precision - new.scale >= old.precision - old.scale
        return bool(whole and new.scale >= old.scale)
    return new == old or new in _WIDER.get(old, ())


def _column(schema: TableSchema, name: str) -> Column:
    try:
        return schema.column(name)
    except KeyError:
        near = nearest(name, schema.names)
        raise UnknownColumn(
            "The table has no such column",
            table=schema.table,
            column=name,
            columns=" ".join(schema.names),
            remedy=f"Did you mean {near}?" if near else "Use one of the listed columns.",
        ) from None


# --- changes as rows ------------------------------------------------------------------------------

TYPES: Final = ("insert", "update_postimage", "delete", "update_preimage", "truncate")
"""Spark's own names of change types, and `truncate`."""

_INSERT, _POST, _DELETE, _PRE, _TRUNCATE = range(5)
_CODES: Final = np.array([_INSERT, _POST, _DELETE, _TRUNCATE], np.int8)
"""By `Op`."""

_PAIRS: Final = np.frombuffer("".join(f"{octet:02x}" for octet in range(256)).encode(), np.uint16)
"""By byte: its two hexadecimal digits, as one number."""

_WIDTH: Final = len(str(Position(0, 0)))


@dataclass(frozen=True)
class ExpandedRows:
    """Rows of a frame, by the changes that they come from; an entry for each row."""

    index: npt.NDArray[np.int64]
    """The number of its change."""

    before: npt.NDArray[np.bool_]
    """Whether it is the row before the change."""

    codes: npt.NDArray[np.int8]
    """Its type, as an index into `TYPES`."""

    def only(self, kept: npt.NDArray[np.bool_]) -> ExpandedRows:
        """Return the rows for which `kept` is true."""
        if kept.all():
            return self
        return ExpandedRows(self.index[kept], self.before[kept], self.codes[kept])

    @property
    def types(self) -> pa.Array:
        """Their types, as text."""
        return pa.array(TYPES).take(pa.array(self.codes))


def expanded(
    ops: npt.NDArray[np.int8],
    moved: npt.NDArray[np.bool_] | None,
    images: Literal["after", "both"],
    *,
    truncates: bool,
) -> ExpandedRows:
    """
    Return the rows that changes become, in their order.

    `moved` says which updates changed the key; None means that none did. Without `truncates`,
    truncates are left out.
    """
    updates = ops == Op.UPDATE
    pairs = updates if images == "both" else (updates & moved if moved is not None else None)
    codes, index = _CODES[ops], np.arange(len(ops), dtype=np.int64)
    before = ops == Op.DELETE
    if pairs is not None and pairs.any():
        counts = 1 + pairs.astype(np.int64)
        index = np.repeat(index, counts)
        first, second = np.zeros(len(index), np.bool_), np.zeros(len(index), np.bool_)
        ends = np.cumsum(counts)
        first[ends[pairs] - 2] = True
        second[ends[pairs] - 1] = True
        codes, before = codes[index], before[index] | first
        codes[first] = _PRE if images == "both" else _DELETE
        if images == "after":
            codes[second] = _INSERT
    found = ExpandedRows(index, before, codes)
    return found if truncates else found.only(codes != _TRUNCATE)


def picked(rows: ExpandedRows, after: pa.Array | None, before: pa.Array | None) -> pa.Array:
    """Return a column of the rows, from the columns of the two images."""
    if before is None or not rows.before.any():
        assert after is not None
        return taken(after, rows.index)
    if after is None or rows.before.all():
        return taken(before, rows.index)
    both = pa.concat_arrays([after, before])
    return both.take(pa.array(rows.index + len(after) * rows.before))


def taken(values: pa.Array, index: npt.NDArray[np.int64]) -> pa.Array:
    """Return the values of these changes; without a copy if they are all of them."""
    whole = len(index) == len(values) and (len(index) == 0 or bool((np.diff(index) == 1).all()))
    return values if whole and (len(index) == 0 or index[0] == 0) else values.take(pa.array(index))


def position_texts(
    epoch: int, commits: npt.NDArray[np.int64], ordinals: npt.NDArray[np.int32]
) -> pa.Array:
    """Return positions as text, vectorized."""
    count = len(commits)
    text = np.empty((count, _WIDTH), np.uint8)
    text[:] = np.frombuffer(str(Position(epoch, 0)).encode(), np.uint8)
    for number, start, digits, kind in ((commits, 5, 16, ">u8"), (ordinals, 22, 8, ">u4")):
        octets = number.astype(kind).view(np.uint8)
        text[:, start : start + digits] = _PAIRS[octets].view(np.uint8).reshape(count, digits)
    offsets = np.arange(0, (count + 1) * _WIDTH, _WIDTH, dtype=np.int64)
    if offsets[-1] >= 2**31:
        raise OverflowError("more rows than one array of text can hold")
    return pa.Array.from_buffers(
        pa.utf8(), count, [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(text)]
    )


def moved_keys(before: pa.Array, after: pa.Array, names: tuple[str, ...]) -> npt.NDArray[np.bool_]:
    """Return which changes have a key before them that is not the key after them."""
    found = np.zeros(len(before), np.bool_)
    there = before.is_valid().to_numpy(zero_copy_only=False)
    there &= after.is_valid().to_numpy(zero_copy_only=False)
    for name in names:
        old, new = (child(each, name) for each in (before, after))
        found |= _differs(old, new)
    return np.asarray(found & there, np.bool_)


def child(image: pa.Array, name: str) -> pa.Array:
    """Return one column of an image; null where there is no image."""
    # By index: a name that contains a dot would be read as a path.
    return pc.struct_field(image, image.type.get_field_index(name))


def _differs(old: pa.Array, new: pa.Array) -> npt.NDArray[np.bool_]:
    if pa.types.is_struct(old.type):
        nulls = pc.xor(old.is_null(), new.is_null()).to_numpy(zero_copy_only=False)
        for at in range(old.type.num_fields):
            nulls = nulls | _differs(pc.struct_field(old, at), pc.struct_field(new, at))
        return np.asarray(nulls, np.bool_)
    found = pc.coalesce(pc.not_equal(old, new), pc.xor(old.is_null(), new.is_null()))
    return np.asarray(found.to_numpy(zero_copy_only=False), np.bool_)
