"""
What a batch comes to, key by key.

A MERGE may touch a row once, so of all changes of a key within a batch only the last counts: an
upsert, or a delete. A history keeps more: of each key the row that each commit left behind.
Keys are one where a MERGE takes them for one, which compares what lies in the table: the numbers
1.0 and 1.00 of a column that is held as text are two, and so the source tells them, too.
Rows come in the shape of a result, by place: `_op _commit _ordinal _time`, then the columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.changelog.change import Op
from headrace.changelog.position import Position
from headrace.changelog.schema import TableSchema
from headrace.errors import NullKey
from headrace.pipeline.parking import beyond
from headrace.pipeline.result import POSITIONS

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
