"""
The rows of a commit, as Arrow makes them of a batch.

Rows come in the shape of a result, by place: `_op _commit _ordinal _time`, then the columns. The
columns of a commit are named by place (see `sql`), so that nothing depends on the user's names.

A MERGE may touch a row once, so of all changes of a key within a batch only the last counts: an
upsert, or a delete. A history keeps more: of each key the row that each commit left behind. Two
keys are the same where a MERGE takes them for the same, and it compares what lies in the table: the
numbers 1.0 and 1.00 of a column that is stored as text are two, and the source distinguishes them,
too.

A table's columns depend on what it is to show: the rows, every change, or every row that ever was.

A table that shows changes or a history is given all changes of a batch, and each truncate as a row
in its place. In a history a truncate ends what is there then: rows that the batch itself began get
a delete of their key, at the truncate's position; all others end where the table was emptied first.
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
    """In the shape of a result."""

    gone: npt.NDArray[np.bool_]
    """Of each row whether it is deleted; it then has its key alone."""

    def __len__(self) -> int:
        return int(self.rows.num_rows)


@dataclass(frozen=True, slots=True)
class Versions:
    """What each commit of a batch made of each key."""

    rows: pa.Table
    """In the shape of a result: one row a key and commit, in the order of positions."""

    gone: npt.NDArray[np.bool_]
    opens: npt.NDArray[np.bool_]
    """Whether it is the key's first in the batch: it ends what the table has of the key."""

    next: _Numbers
    """Which row is the key's next; -1: none, it is the last."""


def fresh(rows: pa.Table, epoch: int, after: Position) -> pa.Table:
    """Return the rows of a batch that are behind `after`: those up to there were taken before."""
    if not rows.num_rows or after.epoch < epoch:
        return rows
    if after.epoch > epoch:
        return rows.slice(0, 0)
    return beyond(rows, (after.commit, after.ordinal))


def net(rows: pa.Table, schema: TableSchema, key: Sequence[str]) -> Net:
    """Return the last change of each key; `NullKey` where a row has none."""
    codes, count = _codes(rows, schema, key)
    last = np.zeros(count, np.int64)
    # Where an index stands twice, the later value stays.
    last[codes] = np.arange(len(codes))
    if count < rows.num_rows:
        rows = rows.take(pa.array(np.sort(last)))
    return Net(rows, _ops(rows) == Op.DELETE)


def versions(rows: pa.Table, schema: TableSchema, key: Sequence[str]) -> Versions:
    """Return what each commit left of each key; what it only passed through is left out."""
    codes, _ = _codes(rows, schema, key)
    if rows.num_rows:
        commits = rows.column(1).to_numpy()
        # Stable: within a key and a commit the rows stay in their order.
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
    """Return the smallest and largest value of each key column of whole numbers (see `net`)."""
    found = {}
    for name in key:
        column = rows.column(_place(schema, name))
        if pa.types.is_integer(column.type) and rows.num_rows:
            ends = pc.min_max(column).as_py()
            found[name] = (ends["min"], ends["max"])
    return found


def _codes(rows: pa.Table, schema: TableSchema, key: Sequence[str]) -> tuple[_Numbers, int]:
    """Return for each row the number of its key, and how many keys there are."""
    arrays = [rows.column(_place(schema, name)).combine_chunks() for name in key]
    if any(array.null_count for array in arrays):
        raise NullKey("A row has no value in its key", table=schema.table)
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
    """Yield the values by which a MERGE tells one key from another."""
    if isinstance(array, pa.StructArray):
        for child in array.flatten():
            yield from _leaves(child)
    elif pa.types.is_floating(array.type):
        # To Spark minus zero is zero, and one NaN is as good as another.
        values = array.cast(pa.float64())
        values = pc.add(values, 0.0)
        yield pc.if_else(pc.is_nan(values), pa.scalar(float("nan")), values)
    elif pa.types.is_nested(array.type):
        yield pa.array([repr(value) for value in array.to_pylist()], pa.utf8())
    else:
        yield array


def _place(schema: TableSchema, name: str) -> int:
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
"""What a change is told by; the words are Spark's own, as `format("headrace")` has them."""

VALID = (
    ("_valid_from", _TIME),
    ("_valid_to", _TIME),
    ("_valid_from_position", pa.utf8()),
    ("_valid_to_position", pa.utf8()),
)
"""From when to when a row of a history was the source's; null: from before, or until now."""

_OURS = {"merge": (), "append": CHANGE, "history": VALID}


def columns_of(mode: Mode) -> frozenset[str]:
    """Return the names of our columns in a table of this mode."""
    return frozenset(name for name, _ in _OURS[mode])


@dataclass(frozen=True)
class LakeShape:
    """What one table looks like in the lake."""

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
        """Return the shape of the table with other columns, and with the key that is theirs."""
        return replace(self, schema=schema, key=schema.key)


def shaped(mode: Mode, schema: TableSchema, key: tuple[str, ...] | None) -> LakeShape:
    """Return the shape of a table; raise what keeps it from being kept so."""
    if schema.key and key and set(key) != set(schema.key):
        raise TableError("Table has a key of its own", remedy="Leave key= out.", table=schema.table)
    if not schema.key and (key or mode != "append"):
        # Without a key at the source a delete does not say which row is gone, nor an update
        # which one was there before.
        raise NoKey(
            "Table has no key, and a lake's table cannot be given one by key="
            if key
            else "Table has no key",
            remedy='Declare a primary key at the source, or use mode="append" without key=.',
            table=schema.table,
        )
    if unknown := [name for name in schema.key if name not in schema.names]:
        raise TableError(
            "The key names no column",
            remedy="Leave the columns of the key in the rows.",
            table=schema.table,
            column=unknown[0],
        )
    taken = [name for name, _ in _OURS[mode] if name in schema.names]
    if taken:
        raise BadTable(
            f"The column {taken[0]} has a name that a table of mode {mode} gives to one of ours",
            remedy=f'Give it another: transforms=[hr.rename({taken[0]}="…")].',
            table=schema.table,
        )
    return LakeShape(mode, schema, tuple(schema.key))


def answer(mode: Mode, old: TableSchema, new: TableSchema) -> SchemaAnswer:
    """
    Return what becomes of a table whose rows have other columns from now on.

    A table that shows the rows as they are is loaded anew wherever older rows may have a value
    that it does not. One that keeps what was cannot be: it takes more columns, leaves those
    that are gone empty, and refuses another type.
    """
    before = {column.name: column for column in old.columns}
    after = {column.name: column for column in new.columns}
    retyped = [
        name for name in before.keys() & after.keys() if before[name].type != after[name].type
    ]
    if mode != "merge":
        return "refuse" if retyped or (mode == "history" and old.key != new.key) else "continue"
    added = [after[name] for name in after.keys() - before.keys()]
    # A column that a step computes says nothing of what older rows have in it.
    known = all(each.missing is None and not each.rewritten and each.declared for each in added)
    same = not retyped and not (before.keys() - after.keys()) and old.key == new.key
    return "continue" if same and known else "reload"


def plain(type: pa.DataType) -> pa.DataType:
    """Return the type that Spark gives back: it has no binary of a fixed size."""
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
    """Return the columns of the rows that a commit of this shape takes."""
    columns = [(value(at), type) for at, (_, type) in enumerate(shape.columns)]
    if shape.mode == "merge":
        columns.append((GONE, pa.bool_()))
    if shape.mode == "history":
        types = dict(shape.columns)
        columns += [(key(at), types[name]) for at, name in enumerate(shape.key)]
        columns.append((ADDED, pa.bool_()))
    return columns


def own_columns(rows: pa.Table, shape: LakeShape, start: int = _WIDTH) -> Columns:
    """Return the row's columns of a result, or with `start=0` of a baseline."""
    count = len(shape.schema.columns)
    return [_plain(rows.column(at)) for at in range(start, start + count)]


def net_rows(net: Net, shape: LakeShape) -> pa.Table:
    """Return what `merge_rows` takes."""
    return _table([*own_columns(net.rows, shape), pa.array(net.gone)], last=[GONE])


def upserts(net: Net, shape: LakeShape) -> pa.Table:
    """Return the rows that are there after a batch that emptied the table first."""
    return _table(own_columns(net.rows.filter(pa.array(~net.gone)), shape))


def change_rows(rows: pa.Table, shape: LakeShape, epoch: int) -> pa.Table:
    """Return every change as a row; a truncate is one, too, where it is among them."""
    ops = rows.column(0).to_numpy()
    words = np.array([_WORDS[Op(op)] for op in range(len(Op))], object)
    own = own_columns(rows, shape)
    if (truncates := ops == Op.TRUNCATE).any():
        # A step may give a value to any row.
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


def told_rows(
    rows: pa.Table, shape: LakeShape, epoch: int, emptied: Position | None, now: datetime
) -> pa.Table:
    """Return every change as a row, and that the table was emptied, if no row says so."""
    told = change_rows(rows, shape, epoch)
    if emptied is None or bool((rows.column(0).to_numpy() == Op.TRUNCATE).any()):
        return told
    first = emptied_row(shape, emptied, emptied_time(rows, emptied) or now)
    return pa.concat_tables([first, told])


def emptied_row(shape: LakeShape, at: Position, time: datetime) -> pa.Table:
    """Return a row that says that all rows before it are gone."""
    nulls = [pa.nulls(1, type) for _, type in shape.columns[: len(shape.schema.columns)]]
    told = [["truncate"], [at.commit], [time], [str(at)]]
    ours = shape.columns[len(nulls) :]
    return _table(
        [*nulls, *(pa.array(each, type) for each, (_, type) in zip(told, ours, strict=True))]
    )


def history_rows(
    found: Versions, shape: LakeShape, epoch: int, *, emptied: RowReference | None
) -> pa.Table:
    """
    Return what `merge_history` takes: rows that end others, by their key, and new ones.

    `emptied` is where the table was emptied first: all that did not end before ends there.
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
    """Return the text of each row's position, as `str(Position(…))` gives it."""
    return position_texts(epoch, rows.column(1).to_numpy(), rows.column(2).to_numpy())


def emptied_time(rows: pa.Table, at: Position) -> datetime | None:
    """Return when a table was emptied, if a change of the same commit tells; None: it does not."""
    of_commit: npt.NDArray[np.bool_] = rows.column(1).to_numpy() == at.commit
    if not of_commit.any():
        return None
    time: datetime = rows.column(3)[int(np.flatnonzero(of_commit)[0])].as_py()
    return time


def first_of(batch: Batch, rows: pa.Table, emptied: Position | None) -> Position | None:
    """Return where the first thing is that a batch tells of a table; None: it tells nothing."""
    if not rows.num_rows:
        return emptied
    first = Position(batch.epoch, rows.column(1)[0].as_py(), rows.column(2)[0].as_py())
    return first if emptied is None else min(first, emptied)


def begins(first: Position | None, at: Position) -> tuple[Position, Position]:
    """
    Return where a baseline is told among changes: that all before is gone, and then its rows.

    Before the commit of the first change that follows it, or, where none does, behind that of
    `at`: two positions that no change has, so that sorting by them alone gives the right order.
    """
    commit = at.commit if first is None else max(first.commit - 1, 0)
    epoch = at.epoch if first is None else first.epoch
    return Position(epoch, commit, MAX_ORDINAL - 1), Position(epoch, commit, MAX_ORDINAL)


def _before(rows: pa.Table, place: RowReference) -> npt.NDArray[np.bool_]:
    commits, ordinals = rows.column(1).to_numpy(), rows.column(2).to_numpy()
    found: npt.NDArray[np.bool_] = (commits < place[0]) | (
        (commits == place[0]) & (ordinals < place[1])
    )
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


# --- truncates of a table that keeps changes or a history -----------------------------------------


@dataclass(frozen=True, order=True, slots=True)
class Truncation:
    """One truncate."""

    place: RowReference
    micros: int
    """When, in microseconds since 1970."""

    def told(self, epoch: int) -> tuple[int, str]:
        """Return it as `merge_history` takes it."""
        return self.micros, str(Position(epoch, *self.place))


def emptyings(rows: pa.Table, emptied: Position | None, now: datetime) -> tuple[Truncation, ...]:
    """Return the truncates among the rows; where there are none, the one that was `emptied`."""
    found = rows.take(pa.array(_truncates(rows)))
    if found.num_rows or emptied is None:
        commits, ordinals = found.column(1).to_pylist(), found.column(2).to_pylist()
        micros = found.column(3).cast(pa.int64()).to_pylist()
        places = zip(commits, ordinals, strict=True)
        return tuple(Truncation(place, at) for place, at in zip(places, micros, strict=True))
    time = emptied_time(rows, emptied) or now
    return (Truncation((emptied.commit, emptied.ordinal), round(time.timestamp() * 1_000_000)),)


def ended(
    rows: pa.Table, schema: TableSchema, key: Sequence[str], emptied: Sequence[Truncation]
) -> pa.Table:
    """Return the changes without truncates; each is a delete of the keys that it finds instead."""
    rows = rows.filter(pa.array(rows.column(0).to_numpy() != Op.TRUNCATE))
    pieces = []
    for each in emptied:
        after = beyond(rows, each.place)
        before = rows.slice(0, rows.num_rows - after.num_rows)
        left = net(before, schema, key)
        pieces += [before, _deleted(left.rows.filter(pa.array(~left.gone)), each)]
        rows = after
    return pa.concat_tables([*pieces, rows])


def since_emptied(rows: pa.Table) -> pa.Table:
    """Return the changes behind the last truncate among them."""
    found = _truncates(rows)
    return rows.slice(int(found[-1]) + 1) if len(found) else rows


def _truncates(rows: pa.Table) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.flatnonzero(rows.column(0).to_numpy() == Op.TRUNCATE)


def _deleted(rows: pa.Table, emptied: Truncation) -> pa.Table:
    values = (int(Op.DELETE), *emptied.place, emptied.micros)
    types = [field.type for field in rows.schema][: len(values)]
    told = [
        pa.array(np.full(rows.num_rows, each, np.int64)).cast(type)
        for each, type in zip(values, types, strict=True)
    ]
    return pa.Table.from_arrays([*told, *rows.columns[len(told) :]], schema=rows.schema)
