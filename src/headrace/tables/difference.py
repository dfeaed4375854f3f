"""What a reload changed: the difference between two versions that share no rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.changelog.values import ValueType
from headrace.tables.change import RowChanges
from headrace.tables.space import Numbers
from headrace.tables.store import Store
from headrace.tables.version import Version

_AT_ONCE = 65_536
"""Rows compared at a time: both sides are gathered for it."""


def difference(old: tuple[Store, Version] | None, new: tuple[Store, Version]) -> RowChanges:
    """Return the changes that lead from `old`, or from nothing, to `new`: deletes first."""
    after_store, after = new
    key = [column.name for column in after_store.layout.key.columns]
    if old is None:
        return present(after, key)
    before_store, before = old
    if _key_kinds(before_store) != _key_kinds(after_store):
        # Nothing tells which row became which: all are gone, by a truncate, and all have come.
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


def _key_kinds(store: Store) -> list[tuple[str, ValueType]]:
    return [(column.name, column.type) for column in store.layout.key.columns]


def present(version: Version, key: list[str]) -> RowChanges:
    """Return every row of a version, as if it were inserted at the version's position."""
    rows = version.rows()
    absent = np.full(len(rows), -1, np.int32)
    return RowChanges(key, version.position, new=version.chunks, before=absent, after=rows)


def _matched(
    before_store: Store, before: Version, after_store: Store, after: Version
) -> tuple[Numbers, Numbers, Numbers, Numbers]:
    """Return rows only in the one, rows only in the other, and the pairs that share a key."""
    old_key, old_row = _keyed(before_store, before)
    new_key, new_row = _keyed(after_store, after)
    _, old_at, new_at = np.intersect1d(old_key, new_key, assume_unique=True, return_indices=True)
    gone = np.sort(np.delete(old_row, old_at))
    came = np.delete(new_row, new_at)
    return gone, came, old_row[old_at], new_row[new_at]


def _keyed(store: Store, version: Version) -> tuple[npt.NDArray[Any], Numbers]:
    """Return what tells keys apart, and the row of each."""
    hashes, rows = version.by_hash()
    if store.layout.key.integer or not len(rows):
        return hashes, rows
    # Aliases are each store's own, and one hash may be two keys: the bytes decide.
    keys = np.empty(len(rows), np.object_)
    keys[:] = store.key_bytes(rows).to_pylist()
    return keys, rows


def _changed(before: Store, old: Numbers, after: Store, new: Numbers) -> npt.NDArray[np.bool_]:
    if before.layout.schema.columns != after.layout.schema.columns:
        return np.ones(len(new), np.bool_)  # another row by its columns alone
    every = range(len(after.layout.schema.columns))
    changed = np.zeros(len(new), np.bool_)
    for start in range(0, len(new), _AT_ONCE):
        some = slice(start, start + _AT_ONCE)
        pairs = zip(before.gather(old[some], every), after.gather(new[some], every), strict=True)
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
