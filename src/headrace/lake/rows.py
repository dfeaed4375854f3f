"""
The rows of a commit, made from a batch with Arrow.

The input has the columns of a result, in this order: `_op _commit _ordinal _time`, then the table's
columns. The columns of a commit are named by index (see `sql`), so that nothing depends on the
user's names.

A MERGE may touch a row once, so that only the last change of each key in a batch counts: an upsert
or a delete. A history keeps more: the row of each key after each commit. Two keys are the same if a
MERGE considers them equal, and it compares what is stored in the table. If a column is stored as
text, the numbers 1.0 and 1.00 are two keys, and the source distinguishes them, too.

A table's columns depend on its mode: the current rows, every change, or all versions of each row.

With `append` and `history`, a table gets all changes of a batch, and each truncate as a row at its
position. In a history, a truncate ends all current rows: rows that the batch itself began get a
delete of their key, at the truncate's position; all others end at the first truncate.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from typing import Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.changelog.change import Op
from headrace.changelog.position import MAX_ORDINAL, Position
from headrace.changelog.schema import TableSchema
from headrace.deadletters.hold import beyond
from headrace.errors import BadTable, NoKey, NullKey, TableError
from headrace.lake.sql import ADDED, GONE, key, value
from headrace.pipeline.result import POSITIONS, RowReference
from headrace.spark_source.columns import position_texts
from headrace.targets.target import Batch, SchemaAnswer

# --- the net changes of a batch, by key -----------------------------------------------------------

_Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Net:
    """The last change of each key, in the order of their positions."""

    rows: pa.Table
    """With the columns of a result."""

    gone: npt.NDArray[np.bool_]
    """For each row, whether it is deleted; it then only has its key."""

    def __len__(self) -> int:
        return int(self.rows.num_rows)


@dataclass(frozen=True, slots=True)
class Versions:
    """The row of each key after each commit of a batch."""

    rows: pa.Table
    """With the columns of a result: one row for each key and commit, in the order of positions."""

    gone: npt.NDArray[np.bool_]
    opens: npt.NDArray[np.bool_]
    """Whether it is the key's first in the batch: it ends the table's current row of the key."""

    next: _Numbers
    """The index of the key's next row; -1 if it is the last."""


def fresh(rows: pa.Table, epoch: int, after: Position) -> pa.Table:
    """Return the rows of a batch after `after`: those up to there were taken before."""
    if not rows.num_rows or after.epoch < epoch:
        return rows
    if after.epoch > epoch:
        return rows.slice(0, 0)
    return beyond(rows, (after.commit, after.ordinal))


def net(rows: pa.Table, schema: TableSchema, key: Sequence[str]) -> Net:
    """Return the last change of each key; `NullKey` if a row has no key."""
    codes, count = _codes(rows, schema, key)
    last = np.zeros(count, np.int64)
    # If an index occurs twice, the later value stays.
    last[codes] = np.arange(len(codes))
    if count < rows.num_rows:
        rows = rows.take(pa.array(np.sort(last)))
    return Net(rows, _ops(rows) == Op.DELETE)


def versions(rows: pa.Table, schema: TableSchema, key: Sequence[str]) -> Versions:
    """Return the row of each key after each commit, without intermediate rows."""
    codes, _ = _codes(rows, schema, key)
    if rows.num_rows:
        commits = rows.column(1).to_numpy()
        # Stable: rows of the same key and commit stay in their order.
        order = np.lexsort((commits, codes))
        keys, of = codes[order], commits[order]
        ends = np.append((keys[1:] != keys[:-1]) | (of[1:] != of[:-1]), True)
        kept = np.sort(order[ends])
        rows, codes = rows.take(pa.array(kept)), codes[kept]
    order = np.argsort(codes, kind="stable")
    same = np.append(codes[order][1:] == codes[order][:-1], False)[: len(order)]
    following = np.full(len(codes), -1, np.int64)
    following[order[same]] = order[np.flatnonzero(same) + 1]
    opens = np.ones(len(codes), np.bool_)
    opens[following[following >= 0]] = False
    return Versions(rows, _ops(rows) == Op.DELETE, opens, following)


def bounds(rows: pa.Table, schema: TableSchema, key: Sequence[str]) -> dict[str, tuple[int, int]]:
    """Return the smallest and largest value of each integer key column (see `net`)."""
    found = {}
    for name in key:
        column = rows.column(_column_index(schema, name))
        if pa.types.is_integer(column.type) and rows.num_rows:
            ends = pc.min_max(column).as_py()
            found[name] = (ends["min"], ends["max"])
    return found


def _codes(rows: pa.Table, schema: TableSchema, key: Sequence[str]) -> tuple[_Numbers, int]:
    """Return for each row the number of its key, and the number of keys."""
    arrays = [rows.column(_column_index(schema, name)).combine_chunks() for name in key]
    if any(array.null_count for array in arrays):
        raise NullKey("A row has null in its key", table=schema.table)
    codes, count = np.zeros(rows.num_rows, np.int64), 1
    for leaf in [leaf for array in arrays for leaf in _leaves(array)]:
        encoded = leaf.dictionary_encode(null_encoding="encode")
        indices = encoded.indices.to_numpy().astype(np.int64)
        if count == 1:
            codes, count = indices, len(encoded.dictionary)
            continue
        both = codes * len(encoded.dictionary) + indices
        found, codes = np.unique(both, return_inverse=True)
        codes, count = codes.astype(np.int64), len(found)
    return codes, count if rows.num_rows else 0


def _leaves(array: pa.Array) -> Iterator[pa.Array]:
    """Yield the values by which a MERGE distinguishes keys."""
    if isinstance(array, pa.StructArray):
        for child in array.flatten():
            yield from _leaves(child)
    elif pa.types.is_floating(array.type):
        # For Spark, minus zero equals zero, and all NaN are equal.
        values = array.cast(pa.float64())
        values = pc.add(values, 0.0)
        yield pc.if_else(pc.is_nan(values), pa.scalar(float("nan")), values)
    elif pa.types.is_nested(array.type):
        yield pa.array([repr(value) for value in array.to_pylist()], pa.utf8())
    else:
        yield array


def _column_index(schema: TableSchema, name: str) -> int:
    return len(POSITIONS) + schema.names.index(name)


def _ops(rows: pa.Table) -> npt.NDArray[np.int8]:
    ops: npt.NDArray[np.int8] = rows.column(0).to_numpy()
    return ops


# --- the columns of a table, by mode --------------------------------------------------------------

Mode: TypeAlias = Literal["merge", "append", "history"]
MODES: tuple[Mode, ...] = get_args(Mode)

_TIME = pa.timestamp("us", "UTC")
CHANGE = (
    ("_change_type", pa.utf8()),
    ("_commit_version", pa.int64()),
    ("_commit_timestamp", _TIME),
    ("_position", pa.utf8()),
)
"""Our columns of a change, with Spark's names, as in `format("headrace")`."""

VALID = (
    ("_valid_from", _TIME),
    ("_valid_to", _TIME),
    ("_valid_from_position", pa.utf8()),
    ("_valid_to_position", pa.utf8()),
)
"""When a row of a history was valid; null if from before the first copy, or until now."""

_OURS = {"merge": (), "append": CHANGE, "history": VALID}


def columns_of(mode: Mode) -> frozenset[str]:
    """Return the names of our columns in a table of this mode."""
    return frozenset(name for name, _ in _OURS[mode])


@dataclass(frozen=True)
class LakeShape:
    """The columns and key of one lake table."""

    mode: Mode
    schema: TableSchema
    key: tuple[str, ...]

    @cached_property
    def columns(self) -> tuple[tuple[str, pa.DataType], ...]:
        """All columns in order: the row's, then ours."""
        own = [(column.name, plain(column.type.arrow)) for column in self.schema.columns]
        return (*own, *_OURS[self.mode])

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all columns, in order."""
        return tuple(name for name, _ in self.columns)

    def with_schema(self, schema: TableSchema) -> LakeShape:
        """Return the shape of the table with other columns, and their key."""
        return replace(self, schema=schema, key=schema.key)


def shaped(mode: Mode, schema: TableSchema, key: tuple[str, ...] | None) -> LakeShape:
    """Return the shape of a table; raise if the table does not support the mode or key."""
    if schema.key and key and set(key) != set(schema.key):
        raise TableError(
            f"The source table's key is ({', '.join(schema.key)}), not ({', '.join(key)})",
            remedy="Leave out key=.",
            table=schema.table,
        )
    if not schema.key and (key or mode != "append"):
        # Without a key at the source, a delete does not identify the deleted row, nor an update
        # the old one.
        raise NoKey(
            "The source table has no key, and key= cannot give it one"
            if key
            else "The source table has no key",
            remedy='Declare a primary key at the source, or use mode="append" without key=.',
            table=schema.table,
        )
    if unknown := [name for name in schema.key if name not in schema.names]:
        raise TableError(
            f"The key column {unknown[0]} is missing in the rows",
            remedy="Keep the key columns in the rows: do not drop them in a transform.",
            table=schema.table,
            column=unknown[0],
        )
    taken = [name for name, _ in _OURS[mode] if name in schema.names]
    if taken:
        raise BadTable(
            f"Headrace adds a column {taken[0]} in mode {mode}, and the table already has one",
            remedy=f'Rename it: transforms=[hr.rename({taken[0]}="…")].',
            table=schema.table,
        )
    return LakeShape(mode, schema, tuple(schema.key))


def answer(mode: Mode, old: TableSchema, new: TableSchema) -> SchemaAnswer:
    """
    Return what happens to a table when the source's columns change.

    With `merge`, a table is loaded again if existing rows may have a value that it does not. With
    `append` and `history` it cannot be loaded again: it gets the new columns, leaves dropped ones
    null, and refuses another type.
    """
    before = {column.name: column for column in old.columns}
    after = {column.name: column for column in new.columns}
    retyped = [
        name for name in before.keys() & after.keys() if before[name].type != after[name].type
    ]
    if mode != "merge":
        return "refuse" if retyped or (mode == "history" and old.key != new.key) else "continue"
    added = [after[name] for name in after.keys() - before.keys()]
    # For a column that a step computes, the values of older rows are not known.
    known = all(each.missing is None and not each.rewritten and each.declared for each in added)
    same = not retyped and not (before.keys() - after.keys()) and old.key == new.key
    return "continue" if same and known else "reload"


def plain(type: pa.DataType) -> pa.DataType:
    """Return the type that Spark returns: it has no binary of fixed size."""
    return pa.binary() if pa.types.is_fixed_size_binary(type) else type


# --- rows of a commit -----------------------------------------------------------------------------

_WORDS = {
    Op.INSERT: "insert",
    Op.UPDATE: "update_postimage",
    Op.DELETE: "delete",
    Op.TRUNCATE: "truncate",
}
_WIDTH = len(POSITIONS)
Columns = list[pa.Array | pa.ChunkedArray]


def source_names(shape: LakeShape) -> list[tuple[str, pa.DataType]]:
    """Return the columns of the rows for a commit of this shape."""
    columns = [(value(at), type) for at, (_, type) in enumerate(shape.columns)]
    if shape.mode == "merge":
        columns.append((GONE, pa.bool_()))
    if shape.mode == "history":
        types = dict(shape.columns)
        columns += [(key(at), types[name]) for at, name in enumerate(shape.key)]
        columns.append((ADDED, pa.bool_()))
    return columns


def own_columns(rows: pa.Table, shape: LakeShape, start: int = _WIDTH) -> Columns:
    """Return the table's columns of a result, or of a baseline with `start=0`."""
    count = len(shape.schema.columns)
    return [_plain(rows.column(at)) for at in range(start, start + count)]


def net_rows(net: Net, shape: LakeShape) -> pa.Table:
    """Return the rows for `merge_rows`."""
    return _table([*own_columns(net.rows, shape), pa.array(net.gone)], last=[GONE])


def upserts(net: Net, shape: LakeShape) -> pa.Table:
    """Return the rows of a table after a batch that truncated it first."""
    return _table(own_columns(net.rows.filter(pa.array(~net.gone)), shape))


def change_rows(rows: pa.Table, shape: LakeShape, epoch: int) -> pa.Table:
    """Return every change as a row; also truncates, if they are among the changes."""
    ops = rows.column(0).to_numpy()
    words = np.array([_WORDS[Op(op)] for op in range(len(Op))], object)
    own = own_columns(rows, shape)
    if (truncates := ops == Op.TRUNCATE).any():
        # A step may have computed values for them.
        gone = pa.array(truncates)
        own = [pc.if_else(gone, pa.scalar(None, each.type), each) for each in own]
    return _table(
        [
            *own,
            pa.array(words[ops], pa.utf8()),
            rows.column(1),
            rows.column(3),
            positions(rows, epoch),
        ]
    )


def appended_rows(
    rows: pa.Table, shape: LakeShape, epoch: int, emptied: Position | None, now: datetime
) -> pa.Table:
    """Return every change as a row, after a truncate row if `emptied` is not among them."""
    changes = change_rows(rows, shape, epoch)
    if emptied is None or bool((rows.column(0).to_numpy() == Op.TRUNCATE).any()):
        return changes
    first = emptied_row(shape, emptied, emptied_time(rows, emptied) or now)
    return pa.concat_tables([first, changes])


def emptied_row(shape: LakeShape, at: Position, time: datetime) -> pa.Table:
    """Return a truncate row: all rows before it are gone."""
    nulls = [pa.nulls(1, type) for _, type in shape.columns[: len(shape.schema.columns)]]
    values = [["truncate"], [at.commit], [time], [str(at)]]
    ours = shape.columns[len(nulls) :]
    return _table(
        [*nulls, *(pa.array(each, type) for each, (_, type) in zip(values, ours, strict=True))]
    )


def history_rows(
    found: Versions, shape: LakeShape, epoch: int, *, emptied: RowReference | None
) -> pa.Table:
    """
    Return the rows for `merge_history`: rows that end others, by their key, and new ones.

    `emptied` is the first truncate: every row that did not end before ends there.
    """
    rows, last = found.rows, found.next
    times, where = rows.column(3).combine_chunks(), positions(rows, epoch)
    following = pa.array(np.where(last < 0, 0, last), mask=last < 0)
    ends = [times.take(following), where.take(following)]
    own = own_columns(rows, shape)
    keys = [own[shape.schema.names.index(name)] for name in shape.key]
    new = pa.array(~found.gone)
    added = [*own, times, ends[0], where, ends[1], *(_nulls(each) for each in keys)]
    begun = _history(added, len(keys)).filter(new)
    opens = found.opens
    if emptied is not None:
        opens = opens & _before(rows, emptied)
    nothing = [_nulls(each) for each in own]
    ending = [*nothing, _nulls(times), times, _nulls(where), where, *keys]
    return pa.concat_tables(
        [_history(ending, len(keys), added=False).filter(pa.array(opens)), begun]
    )


def positions(rows: pa.Table, epoch: int) -> pa.Array:
    """Return each row's position as text, the same as `str(Position(…))`."""
    return position_texts(epoch, rows.column(1).to_numpy(), rows.column(2).to_numpy())


def emptied_time(rows: pa.Table, at: Position) -> datetime | None:
    """Return the time of a truncate, from a change of the same commit; None if there is none."""
    of_commit: npt.NDArray[np.bool_] = rows.column(1).to_numpy() == at.commit
    if not of_commit.any():
        return None
    time: datetime = rows.column(3)[int(np.flatnonzero(of_commit)[0])].as_py()
    return time


def first_of(batch: Batch, rows: pa.Table, emptied: Position | None) -> Position | None:
    """Return the position of a batch's first change or truncate of a table; None if it has none."""
    if not rows.num_rows:
        return emptied
    first = Position(batch.epoch, rows.column(1)[0].as_py(), rows.column(2)[0].as_py())
    return first if emptied is None else min(first, emptied)


def begins(first: Position | None, at: Position) -> tuple[Position, Position]:
    """
    Return the positions of a baseline among changes: of its truncate row, and of its rows.

    They lie before the commit of the first change after the baseline, or after the commit of `at`
    if there is none. No change has these positions, so that rows can be sorted by position alone.
    """
    commit = at.commit if first is None else max(first.commit - 1, 0)
    epoch = at.epoch if first is None else first.epoch
    return Position(epoch, commit, MAX_ORDINAL - 1), Position(epoch, commit, MAX_ORDINAL)


def _before(rows: pa.Table, at: RowReference) -> npt.NDArray[np.bool_]:
    commits, ordinals = rows.column(1).to_numpy(), rows.column(2).to_numpy()
    found: npt.NDArray[np.bool_] = (commits < at[0]) | ((commits == at[0]) & (ordinals < at[1]))
    return found


def _history(columns: Sequence[pa.Array], keys: int, *, added: bool = True) -> pa.Table:
    rows = len(columns[0])
    flag = pa.array(np.full(rows, added))
    return _table([*columns, flag], last=[*(key(at) for at in range(keys)), ADDED])


def _table(columns: Sequence[pa.Array | pa.ChunkedArray], last: Sequence[str] = ()) -> pa.Table:
    names = [*(value(at) for at in range(len(columns) - len(last))), *last]
    return pa.table(list(columns), names=names)


def _plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    type = plain(column.type)
    return column if type == column.type else pc.cast(column, type)


def _nulls(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    return pa.nulls(len(column), column.type)


# --- truncates in the modes append and history ----------------------------------------------------


@dataclass(frozen=True, order=True, slots=True)
class Truncation:
    """One truncate."""

    reference: RowReference
    micros: int
    """Its time, in microseconds since 1970."""

    def for_history(self, epoch: int) -> tuple[int, str]:
        """Return it as `merge_history` takes it."""
        return self.micros, str(Position(epoch, *self.reference))


def emptyings(rows: pa.Table, emptied: Position | None, now: datetime) -> tuple[Truncation, ...]:
    """Return the truncates among the rows; if there are none, the one at `emptied`."""
    found = rows.take(pa.array(_truncates(rows)))
    if found.num_rows or emptied is None:
        commits, ordinals = found.column(1).to_pylist(), found.column(2).to_pylist()
        micros = found.column(3).cast(pa.int64()).to_pylist()
        references = zip(commits, ordinals, strict=True)
        return tuple(Truncation(each, at) for each, at in zip(references, micros, strict=True))
    time = emptied_time(rows, emptied) or now
    return (Truncation((emptied.commit, emptied.ordinal), round(time.timestamp() * 1_000_000)),)


def ended(
    rows: pa.Table, schema: TableSchema, key: Sequence[str], emptied: Sequence[Truncation]
) -> pa.Table:
    """Return the changes, with each truncate replaced by deletes of the keys before it."""
    rows = rows.filter(pa.array(rows.column(0).to_numpy() != Op.TRUNCATE))
    pieces = []
    for each in emptied:
        after = beyond(rows, each.reference)
        before = rows.slice(0, rows.num_rows - after.num_rows)
        left = net(before, schema, key)
        pieces += [before, _deleted(left.rows.filter(pa.array(~left.gone)), each)]
        rows = after
    return pa.concat_tables([*pieces, rows])


def since_emptied(rows: pa.Table) -> pa.Table:
    """Return the changes after the last truncate among them."""
    found = _truncates(rows)
    return rows.slice(int(found[-1]) + 1) if len(found) else rows


def _truncates(rows: pa.Table) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.flatnonzero(rows.column(0).to_numpy() == Op.TRUNCATE)


def _deleted(rows: pa.Table, emptied: Truncation) -> pa.Table:
    values = (int(Op.DELETE), *emptied.reference, emptied.micros)
    types = [field.type for field in rows.schema][: len(values)]
    ours = [
        pa.array(np.full(rows.num_rows, each, np.int64)).cast(type)
        for each, type in zip(values, types, strict=True)
    ]
    return pa.Table.from_arrays([*ours, *rows.columns[len(ours) :]], schema=rows.schema)
