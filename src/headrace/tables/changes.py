"""
Changes of a table as readers see them, built on access.

What a reload changed is the difference between two versions that share no rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeAlias, overload

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.changelog.change import Op
from headrace.changelog.position import Position
from headrace.changelog.schema import TableSchema
from headrace.changelog.values import ValueType
from headrace.tables.columns import BITS, CHUNK, Chunk, Row
from headrace.tables.hash_index import Numbers
from headrace.tables.store import RowStore
from headrace.tables.version import TableVersion, collect

_SLICE: Final = 1024
"""Changes turned into Python numbers at a time."""

ChangeTimes: TypeAlias = tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]
"""Commits, ordinals, and microseconds since 1970, one of each a change."""

_NO_TIME: Final = -(2**63)
"""How numpy shows a null."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class TableChange:
    """One change of a table, as seen in that table: an upsert of a known key is an update."""

    op: str
    """`insert`, `update`, `delete` or `truncate`."""

    key: tuple[object, ...]
    """The key's values; empty for a truncate, which is of all rows."""

    before: Row | None
    after: Row | None
    position: Position
    """The position of the change; for present or reloaded rows, that of the table."""

    time: datetime | None = field(default=None, compare=False)
    """When it was committed at the source; None if unknown, and for present or reloaded rows."""


class RowChanges(Sequence[TableChange]):
    """
    Changes from one version to the next, as row numbers.

    The writer creates no object per row: that happens on access, on the reader's thread.
    """

    __slots__ = (
        "_after",
        "_before",
        "_commits",
        "_key",
        "_new",
        "_old",
        "_ordinals",
        "_times",
        "position",
    )

    def __init__(
        self,
        key: Sequence[str],
        position: Position,
        *,
        old: Sequence[Chunk] = (),
        new: Sequence[Chunk] = (),
        before: Numbers,
        after: Numbers,
        at: ChangeTimes | None = None,
    ) -> None:
        self._key = tuple(key)
        self.position = position
        self._old, self._new = old, new
        self._before, self._after = before, after
        """Row numbers in `old` and `new`, -1 for none; a truncate is -1 twice."""
        self._commits = None if at is None else at[0]
        self._ordinals = None if at is None else at[1]
        self._times = None if at is None else at[2]

    @classmethod
    def none(cls) -> RowChanges:
        """Return no changes."""
        return _NONE

    def after_truncate(self, at: Position) -> RowChanges:
        """Return these changes with a truncate before them."""
        none = np.array([-1], np.int32)
        commits = np.empty(0, np.int64) if self._commits is None else self._commits
        ordinals = np.empty(0, np.int64) if self._ordinals is None else self._ordinals
        times = np.empty(0, np.int64) if self._times is None else self._times
        return RowChanges(
            self._key,
            at,
            old=self._old,
            new=self._new,
            before=np.concatenate([none, self._before]),
            after=np.concatenate([none, self._after]),
            at=(
                np.concatenate([np.array([at.commit], np.int64), commits]),
                np.concatenate([np.array([at.ordinal], np.int64), ordinals]),
                np.concatenate([np.array([_NO_TIME], np.int64), times]),
            ),
        )

    @property
    def net(self) -> bool:
        """Whether these lead from one state to another, as after a reload, and are of no commit."""
        return self._commits is None

    @property
    def truncate(self) -> Position | None:
        """The position of a truncate, which is the first of these changes; None if it is not."""
        if not len(self) or self._before[0] >= 0 or self._after[0] >= 0:
            return None
        return self[0].position

    def arrow(self, schema: TableSchema, start: int = 0, stop: int | None = None) -> pa.Table:
        """
        Return some of these changes as Arrow, in the shape of a target's batch, truncates left out.

        A delete has the whole row that it removed. `schema` is that of the rows.
        """
        chosen = slice(start, stop)
        before, after = self._before[chosen], self._after[chosen]
        kept = (before >= 0) | (after >= 0)
        before, after = before[kept], after[kept]
        ops = np.where(after < 0, Op.DELETE, np.where(before < 0, Op.INSERT, Op.UPDATE))
        at = self.position
        columns: list[pa.Array] = [pa.array(ops.astype(np.int8))]
        if self._commits is None or self._ordinals is None or self._times is None:
            count = len(after)
            columns += [
                pa.array(np.full(count, at.commit, np.int64)),
                pa.array(np.full(count, at.ordinal, np.int32)),
                pa.nulls(count, pa.timestamp("us", "UTC")),
            ]
        else:
            times = self._times[chosen][kept].view("datetime64[us]")
            columns += [
                pa.array(self._commits[chosen][kept]),
                pa.array(self._ordinals[chosen][kept].astype(np.int32)),
                pa.array(times).cast(pa.timestamp("us", "UTC")),
            ]
        columns += self._rows(schema, before, after)
        meta = ("_op", "_commit", "_ordinal", "_time")
        fields = [pa.field(name, of.type) for name, of in zip(meta, columns, strict=False)]
        return pa.Table.from_arrays(columns, schema=pa.schema([*fields, *schema.arrow]))

    def _rows(self, schema: TableSchema, before: Numbers, after: Numbers) -> list[pa.Array]:
        """Return the columns of the rows after these changes; before them, if there are none."""
        every = range(len(schema.columns))
        new, old = np.flatnonzero(after >= 0), np.flatnonzero(after < 0)
        parts = [
            collect(chunks, rows, every)
            for chunks, rows in ((self._new, after[new]), (self._old, before[old]))
            if len(rows)
        ]
        if not parts:
            return [pa.array([], field.type) for field in schema.arrow]
        if len(parts) == 1:
            return parts[0]
        back = pa.array(np.argsort(np.concatenate([new, old])))
        return [pa.concat_arrays(list(each)).take(back) for each in zip(*parts, strict=True)]

    def __len__(self) -> int:
        return len(self._after)

    def __iter__(self) -> Iterator[TableChange]:
        for start in range(0, len(self), _SLICE):
            yield from self._some(start, start + _SLICE)

    @overload
    def __getitem__(self, at: int) -> TableChange: ...
    @overload
    def __getitem__(self, at: slice) -> list[TableChange]: ...
    def __getitem__(self, at: int | slice) -> TableChange | list[TableChange]:
        if isinstance(at, slice):
            start, stop, step = at.indices(len(self))
            return list(self._some(start, stop))[::step] if step > 0 else list(self)[at]
        index = range(len(self))[at]
        return next(self._some(index, index + 1))

    def _some(self, start: int, stop: int) -> Iterator[TableChange]:
        before, after = self._before[start:stop].tolist(), self._after[start:stop].tolist()
        times = [_NO_TIME] * len(before)
        if self._commits is None or self._ordinals is None or self._times is None:
            positions: Iterator[Position] = iter([self.position] * len(before))
        else:
            times = self._times[start:stop].tolist()
            positions = map(
                Position,
                [self.position.epoch] * len(before),
                self._commits[start:stop].tolist(),
                self._ordinals[start:stop].tolist(),
            )
        for old, new, position, time in zip(before, after, positions, times, strict=True):
            was = _row(self._old, old)
            now = _row(self._new, new)
            row = now or was
            key = tuple([row[name] for name in self._key]) if row is not None else ()
            op = _OPS[was is not None, now is not None]
            yield TableChange(op, key, was, now, position, _moment(time))


_OPS: Final = {
    (False, True): "insert",
    (True, True): "update",
    (True, False): "delete",
    (False, False): "truncate",
}


def _moment(micros: int) -> datetime | None:
    with suppress(OverflowError):
        return None if micros == _NO_TIME else _EPOCH + timedelta(microseconds=micros)
    return None


_NONE = RowChanges((), Position(0, 0), before=np.empty(0, np.int32), after=np.empty(0, np.int32))


def _row(chunks: Sequence[Chunk], number: int) -> Row | None:
    return None if number < 0 else Row(chunks[number >> BITS].values, number & (CHUNK - 1))


# --- what a reload changed ------------------------------------------------------------------------

_AT_ONCE = 65_536
"""Rows compared at a time: both sides are collected for it."""


def difference(
    old: tuple[RowStore, TableVersion] | None, new: tuple[RowStore, TableVersion]
) -> RowChanges:
    """Return the changes that lead from `old`, or from nothing, to `new`: deletes first."""
    after_store, after = new
    key = [column.name for column in after_store.layout.key.columns]
    if old is None:
        return present(after, key)
    before_store, before = old
    if _key_kinds(before_store) != _key_kinds(after_store):
        # Old and new rows cannot be matched: a truncate removes all, then all are inserted.
        rows = np.concatenate([np.array([-1], np.int32), after.rows()])
        absent = np.full(len(rows), -1, np.int32)
        return RowChanges(key, after.position, new=after.chunks, before=absent, after=rows)
    gone, came, kept_old, kept_new = _matched(before_store, before, after_store, after)
    changed = _changed(before_store, kept_old, after_store, kept_new)
    none_before, none_after = np.full(len(came), -1, np.int32), np.full(len(gone), -1, np.int32)
    later = np.concatenate([kept_new[changed], came])
    order = np.argsort(later, kind="stable")
    return RowChanges(
        key,
        after.position,
        old=before.chunks,
        new=after.chunks,
        before=np.concatenate([gone, np.concatenate([kept_old[changed], none_before])[order]]),
        after=np.concatenate([none_after, later[order]]),
    )


def _key_kinds(store: RowStore) -> list[tuple[str, ValueType]]:
    return [(column.name, column.type) for column in store.layout.key.columns]


def present(version: TableVersion, key: list[str]) -> RowChanges:
    """Return every row of a version, as if it were inserted at the version's position."""
    rows = version.rows()
    absent = np.full(len(rows), -1, np.int32)
    return RowChanges(key, version.position, new=version.chunks, before=absent, after=rows)


def _matched(
    before_store: RowStore, before: TableVersion, after_store: RowStore, after: TableVersion
) -> tuple[Numbers, Numbers, Numbers, Numbers]:
    """Return rows only in `before`, rows only in `after`, and the pairs that share a key."""
    old_key, old_row = _keyed(before_store, before)
    new_key, new_row = _keyed(after_store, after)
    _, old_at, new_at = np.intersect1d(old_key, new_key, assume_unique=True, return_indices=True)
    gone = np.sort(np.delete(old_row, old_at))
    came = np.delete(new_row, new_at)
    return gone, came, old_row[old_at], new_row[new_at]


def _keyed(store: RowStore, version: TableVersion) -> tuple[npt.NDArray[Any], Numbers]:
    """Return an identifier of every key, and the row of each."""
    hashes, rows = version.by_hash()
    if store.layout.key.integer or not len(rows):
        return hashes, rows
    # Aliases differ between stores, and two keys may share a hash: compare the bytes.
    keys = np.empty(len(rows), np.object_)
    keys[:] = store.key_bytes(rows).to_pylist()
    return keys, rows


def _changed(
    before: RowStore, old: Numbers, after: RowStore, new: Numbers
) -> npt.NDArray[np.bool_]:
    if before.layout.schema.columns != after.layout.schema.columns:
        return np.ones(len(new), np.bool_)  # the columns differ, and so does every row
    every = range(len(after.layout.schema.columns))
    changed = np.zeros(len(new), np.bool_)
    for start in range(0, len(new), _AT_ONCE):
        some = slice(start, start + _AT_ONCE)
        pairs = zip(before.collect(old[some], every), after.collect(new[some], every), strict=True)
        for one, other in pairs:
            changed[some] |= _differ(one, other)
    return changed


def _differ(one: pa.Array, other: pa.Array) -> npt.NDArray[np.bool_]:
    """Return where two columns differ; null is equal to null."""
    found: npt.NDArray[np.bool_]
    if pa.types.is_struct(one.type):
        found = pc.xor(one.is_null(), other.is_null()).to_numpy(zero_copy_only=False)
        for a, b in zip(one.flatten(), other.flatten(), strict=True):
            found = found | _differ(a, b)
        return found
    if pa.types.is_nested(one.type):
        pairs = zip(one.to_pylist(), other.to_pylist(), strict=True)
        return np.fromiter((a != b for a, b in pairs), np.bool_, len(one))
    unequal = pc.fill_null(pc.not_equal(one, other), False)
    found = pc.or_(unequal, pc.xor(one.is_null(), other.is_null())).to_numpy(zero_copy_only=False)
    return found
