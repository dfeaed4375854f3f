"""
The columns and rows of a frame: the table's own columns, then ours, and a row or two for a change.

A frame has the columns that the table had when it was made. Segments that were written under
another schema are brought into its form where that changes no value: a column that is newer than a
change has what such rows have in it, a renamed column is recognised by its id. Whatever cannot be
brought into it this way is a change of schema, which is reported (R23b).

Changes become rows of a frame:

| change | `images=after` | `images=both` |
|---|---|---|
| insert | `insert` | `insert` |
| update | `update_postimage` | `update_preimage`, `update_postimage` |
| update of the key | `delete` of the old key, `insert` of the new | as above |
| delete | `delete`, with what is known of the row | `delete` |
| truncate | as `onTruncate` says | as `onTruncate` says |

A change of the key is two rows, because a reader that keeps one row a key would otherwise keep the
old one (R23).
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

# --- columns, and how a segment's fit them --------------------------------------------------------

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
"""What a frame tells of each row, behind the table's columns."""

UNSENT: Final = "_unsent"
EXACT: Final = "_exact"
MARKS: Final[Mapping[str, pa.DataType]] = {
    UNSENT: pa.list_(pa.utf8()),
    EXACT: pa.map_(pa.utf8(), pa.utf8()),
}
"""Behind those, on request: columns that were not sent, and texts of values that did not fit."""


@dataclass(frozen=True)
class FrameColumns:
    """What a DataFrame shows of a table."""

    schema: TableSchema
    schema_id: int
    shown: tuple[Column, ...]
    """The table's columns in it."""

    chosen: bool = False
    """Whether somebody chose them: then a column that is added later is not missed."""

    where: Predicate | None = field(default=None, repr=False)
    """Not shown: it has values in it."""

    marks: bool = False

    @cached_property
    def wanted(self) -> tuple[Column, ...]:
        """The columns that are read: those that are shown, and those that `where` looks at."""
        names = {column.name for column in self.shown}
        asked = () if self.where is None else columns_of(self.where)
        more = dict.fromkeys(name for name in asked if name not in names and name not in OURS)
        return (*self.shown, *(self.schema.column(name) for name in more))

    @property
    def pruned(self) -> bool:
        """Whether less than everything is read."""
        return self.where is not None or len(self.shown) < len(self.schema.columns)

    @cached_property
    def arrow(self) -> pa.Schema:
        """Its columns, as they are handed to Spark."""
        fields = [pa.field(column.name, edge(column.type.arrow)) for column in self.shown]
        fields += [pa.field(name, type) for name, type in self.ours.items()]
        return pa.schema(fields)

    @property
    def ours(self) -> Mapping[str, pa.DataType]:
        """Our columns in it."""
        return {**OURS, **MARKS} if self.marks else OURS


@dataclass(frozen=True, slots=True)
class Fit:
    """How a column of a frame is had from a segment."""

    column: Column
    """As the frame has it."""

    source: str | None
    """Its name in the segment; None: the segment does not have it."""

    field: int
    dropped: bool = False
    """Whether the segment has it no more; otherwise it does not have it yet."""


def frame_of(schema: TableSchema, schema_id: int, options: ReadOptions) -> FrameColumns:
    """Return the frame that was asked for; `UnknownColumn`, `BadExpression` or `BadSchema`."""
    shown = schema.columns
    if options.columns is not None:
        shown = tuple(_column(schema, name) for name in dict.fromkeys(options.columns))
    types = {column.name: column.type for column in schema.columns}
    where = None if options.where is None else parse_where(options.where, types)
    frame = FrameColumns(
        schema, schema_id, shown, options.columns is not None, where, options.marks
    )
    taken = [column.name for column in shown if column.name in frame.ours]
    if taken:
        raise BadSchema(
            "A column of the table has a name of ours",
            table=schema.table,
            columns=" ".join(taken),
            remedy="Choose the others with the option columns, or rename it at the source.",
        )
    return frame


def fits(frame: FrameColumns, schema: TableSchema, age: int, *, adapt: bool) -> tuple[Fit, ...]:
    """
    Return how each wanted column is had from segments of that schema.

    `age` is above 0 where it came before the frame's, below 0 where it came later: which columns
    there are does not tell, as the youngest one may have been dropped since, or not be there yet.
    `ColumnsChanged` where the table's columns changed in a way that somebody must know of;
    with `adapt`, only where a value cannot be brought into the frame's type.
    """
    if age == 0:
        return tuple(Fit(column, column.name, column.field) for column in frame.wanted)
    there = {column.field: column for column in schema.columns}
    changed = _beside(frame, schema, age)
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
            remedy="Load it and start the query again: a new load() has the columns as they are"
            " now. Or keep those that it has, where every value fits them:"
            " onSchemaChange=continue; or choose others with the option columns.",
        )
    return tuple(found)


_BOOLEANS: Final = {"t": "true", "f": "false"}
"""As PostgreSQL writes them."""


def filled(fit: Fit, count: int) -> pa.Array:
    """Return what rows from before a column have in it; null in one that was dropped."""
    text, shape = fit.column.missing, fit.column.type.arrow
    if text is None or fit.dropped:
        return pa.nulls(count, shape)
    if pa.types.is_boolean(shape):
        text = _BOOLEANS.get(text, text)
    try:
        return pa.repeat(pa.scalar(text).cast(shape), count)
    except pa.ArrowException as error:
        raise ColumnsChanged(
            "What older rows have in a column cannot be read",
            column=fit.column.name,
            remedy="Begin at a baseline or a later position, or leave the column out.",
        ) from error


def edge(shape: pa.DataType) -> pa.DataType:
    """Return Arrow's type as Spark takes it from a source: it knows no binary of fixed size."""
    if pa.types.is_fixed_size_binary(shape):
        return pa.binary()
    if pa.types.is_struct(shape):
        return pa.struct([pa.field(field.name, edge(field.type)) for field in shape])
    return shape


def _beside(frame: FrameColumns, schema: TableSchema, age: int) -> list[str]:
    """Return what changed that no wanted column tells."""
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
            remedy=f"Did you mean {near}?" if near else "Choose among those that are listed.",
        ) from None


# --- changes as rows ------------------------------------------------------------------------------

TYPES: Final = ("insert", "update_postimage", "delete", "update_preimage", "truncate")
"""Spark's own words, and one for a table that was emptied."""

_INSERT, _POST, _DELETE, _PRE, _TRUNCATE = range(5)
_CODES: Final = np.array([_INSERT, _POST, _DELETE, _TRUNCATE], np.int8)
"""By the number of an op."""

_PAIRS: Final = np.frombuffer("".join(f"{octet:02x}" for octet in range(256)).encode(), np.uint16)
"""By an octet: its two digits, side by side."""

_WIDTH: Final = len(str(Position(0, 0)))


@dataclass(frozen=True)
class ExpandedRows:
    """Rows of a frame, by the changes that they come from."""

    index: npt.NDArray[np.int64]
    """Which change each is of."""

    before: npt.NDArray[np.bool_]
    """Whether it is the row from before it."""

    codes: npt.NDArray[np.int8]
    """Its type, by place in `TYPES`."""

    def only(self, kept: npt.NDArray[np.bool_]) -> ExpandedRows:
        """Return those of them that are kept."""
        if kept.all():
            return self
        return ExpandedRows(self.index[kept], self.before[kept], self.codes[kept])

    @property
    def types(self) -> pa.Array:
        """Their types, as words."""
        return pa.array(TYPES).take(pa.array(self.codes))


def expanded(
    ops: npt.NDArray[np.int8],
    moved: npt.NDArray[np.bool_] | None,
    images: Literal["after", "both"],
    *,
    truncates: bool,
) -> ExpandedRows:
    """
    Return the rows that changes come to, in their order.

    `moved` says which updates changed the key; None: none did. Without `truncates` those are
    left out.
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
    """Return the values of these changes; without a copy where that is all of them."""
    whole = len(index) == len(values) and (len(index) == 0 or bool((np.diff(index) == 1).all()))
    return values if whole and (len(index) == 0 or index[0] == 0) else values.take(pa.array(index))


def places(epoch: int, commits: npt.NDArray[np.int64], ordinals: npt.NDArray[np.int32]) -> pa.Array:
    """Return positions as text, all at once."""
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
    # By place: a name with a dot in it would be taken for a path.
    return pc.struct_field(image, image.type.get_field_index(name))


def _differs(old: pa.Array, new: pa.Array) -> npt.NDArray[np.bool_]:
    if pa.types.is_struct(old.type):
        nulls = pc.xor(old.is_null(), new.is_null()).to_numpy(zero_copy_only=False)
        for at in range(old.type.num_fields):
            nulls = nulls | _differs(pc.struct_field(old, at), pc.struct_field(new, at))
        return np.asarray(nulls, np.bool_)
    found = pc.coalesce(pc.not_equal(old, new), pc.xor(old.is_null(), new.is_null()))
    return np.asarray(found.to_numpy(zero_copy_only=False), np.bool_)
