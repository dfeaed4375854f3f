"""
The rows of a table, as one thread writes them.

A store holds chunks of rows (`columns.py`), the space that finds them, and the indexes
(`hash_index.py`); how older versions stay readable is described there. A row is never changed:
an update writes a new one and marks the old one dead. When dead rows outnumber half of the
living, the writer copies the living into a new store, at some 0.3 µs a row: a steady load of
updates pays under one microsecond each, in pauses that grow with the table, and the memory of a
table is at most half as much again as that of its rows, and once more while it is copied.
Readers notice nothing.

Different keys with one hash are distinguished exactly. With 64 bits this does not happen in
practice, and "does not happen in practice" is no answer to a wrong row. Every write compares the
bytes of keys whose hashes are equal, with each other and with those stored. The first key to
come keeps the hash; another one gets a substitute that no key has, and the table remembers it by
the key's bytes: an *alias*. Readers look there first; it is empty unless a collision has
occurred, and a reader compares the key's values anyhow.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.changelog.change import Op
from headrace.changelog.position import Position
from headrace.changelog.schema import TableSchema
from headrace.errors import TableError
from headrace.tables.columns import BITS, CHUNK, Chunk
from headrace.tables.hash_index import ALIVE, LAST, HashIndex, Numbers, Space
from headrace.tables.keys import MASK, Codec, Hashes
from headrace.tables.version import IndexView, TableVersion, collect

# --- different keys with one hash -----------------------------------------------------------------


def settle(store: RowStore, arrays: Sequence[pa.Array]) -> Hashes:
    """Return a hash for the key of every row, equal only where the keys are; note new aliases."""
    codec = store.layout.key
    keys = store.keys_of(arrays)
    if codec.integer:
        numbers: Hashes = keys[0].cast(pa.int64()).to_numpy().view(np.uint64)
        return numbers
    packed = codec.pack_arrays(keys)
    natural = codec.hash_arrays(packed)
    hashes = _known_aliases(store, packed, natural) if store.aliases else natural
    if _differ_within(packed, hashes) or _differ(store, packed, hashes):
        return _resolve_collisions(store, packed.to_pylist(), natural)
    return hashes


def _known_aliases(store: RowStore, packed: pa.Array, natural: Hashes) -> Hashes:
    shared = [store.layout.key.hash(key) for key in store.aliases]
    hashes = natural.copy()
    for at in np.flatnonzero(np.isin(natural, np.array(shared, np.uint64))).tolist():
        hashes[at] = store.aliases.get(packed[at].as_py(), hashes[at])
    return hashes


def _differ_within(packed: pa.Array, hashes: Hashes) -> bool:
    """Whether two keys of the batch share a hash."""
    order = np.argsort(hashes, kind="stable")
    ranked = hashes[order]
    again = np.flatnonzero(ranked[1:] == ranked[:-1])
    if not again.size:
        return False
    one, other = packed.take(pa.array(order[again])), packed.take(pa.array(order[again + 1]))
    return not pc.all(pc.equal(one, other)).as_py()


def _differ(store: RowStore, packed: pa.Array, hashes: Hashes) -> bool:
    """Whether a key of the batch has the hash of another one that is stored."""
    entity = store.space.find(hashes)
    known = np.flatnonzero(entity >= 0)
    if not known.size:
        return False
    stored = store.key_bytes(store.space.heads[entity[known]])
    return not pc.all(pc.equal(stored, packed.take(pa.array(known)))).as_py()


def _resolve_collisions(store: RowStore, packed: list[bytes], natural: Hashes) -> Hashes:
    aliases = dict(store.aliases)
    owners: dict[int, bytes | None] = {}

    def owner(hash: int) -> bytes | None:
        if hash not in owners:
            entity = int(store.space.find(np.array([hash], np.uint64))[0])
            rows = store.space.heads[entity : entity + 1]
            owners[hash] = None if entity < 0 else store.key_bytes(rows)[0].as_py()
        return owners[hash]

    settled = np.empty_like(natural)
    for at, (key, own) in enumerate(zip(packed, natural.tolist(), strict=True)):
        hash = aliases.get(key, own)
        while owner(hash) not in (None, key):
            hash = (hash + 1) & MASK
        if hash != own:
            aliases[key] = hash
        owners[hash] = key
        settled[at] = hash
    # Readers of earlier versions keep the previous dict.
    store.aliases = aliases
    return settled


# --- the store ------------------------------------------------------------------------------------

_FEW = 4096
"""Dead rows that are not worth a copy of even the smallest table."""


@dataclass(frozen=True, slots=True)
class StoreLayout:
    """What a store holds, and by what it is found."""

    schema: TableSchema
    key: Codec
    indexes: tuple[Codec, ...]

    def column_indexes(self, codec: Codec) -> list[int]:
        """Return the indexes of the columns of `codec` in a row."""
        names = self.schema.names
        return [names.index(column.name) for column in codec.columns]


@dataclass(frozen=True, slots=True)
class BatchEffect:
    """What a batch did: rows by number, before and after, one pair a change that had an effect."""

    before: Numbers
    after: Numbers
    changes: npt.NDArray[np.intp]
    """Which rows of the batch these were, in its order."""


class RowStore:
    """All rows of one table since it was loaded, truncated or compacted."""

    def __init__(self, layout: StoreLayout) -> None:
        self.layout = layout
        self.chunks: list[Chunk] = []
        self.space = Space(integer=layout.key.integer, keys=1, rows=64)
        self.indexes = [HashIndex(codec) for codec in layout.indexes]
        self.aliases: dict[bytes, int] = {}
        """Hashes of keys whose own hash another key has (see `settle`)."""
        self.end = 0
        self.keys = 0
        self.number = 0
        self.count = 0
        self._dead = 0
        self._key_indexes = layout.column_indexes(layout.key)
        self._indexed_columns = [layout.column_indexes(codec) for codec in layout.indexes]

    @property
    def nbytes(self) -> int:
        """Bytes of rows, keys and indexes."""
        rows = sum(chunk.nbytes for chunk in self.chunks)
        return rows + self.space.nbytes + sum(index.nbytes for index in self.indexes)

    @property
    def worn_out(self) -> bool:
        """Whether to go on with a copy: too many dead rows, or numbers that come to an end."""
        return (
            self._dead > _FEW + self.count // 2
            or self.number >= LAST - 1
            or self.end >= LAST - 4 * CHUNK
        )

    def version(self, position: Position) -> TableVersion:
        """Return the present state, at `position`; it stays as it is."""
        return TableVersion(
            self.layout.schema,
            self.layout.key,
            self.space,
            self.chunks,
            self.aliases,
            [
                IndexView(codec, index.entries, index.count, index.moved)
                for codec, index in zip(self.layout.indexes, self.indexes, strict=True)
            ],
            end=self.end,
            keys=self.keys,
            number=self.number,
            count=self.count,
            position=position,
        )

    def write(
        self, ops: npt.NDArray[np.signedinteger[Any]], arrays: list[pa.Array], *, net: bool
    ) -> BatchEffect:
        """
        Apply changes in their order; `arrays` are the row's columns.

        With `net`, only the last change of each key is done: the states between are of no
        version, so no reader sees them. Without, each has its row, to be reported to listeners.
        """
        self.number += 1
        hashes = settle(self, arrays)
        chosen = np.arange(len(ops))
        order = _grouped(hashes)
        if order is not None and net:
            chosen = np.sort(order[_closes(hashes[order])])
            hashes, order = hashes[chosen], None
        puts = ops[chosen] != Op.DELETE
        if order is None:
            order, opens = np.arange(len(chosen)), np.ones(len(chosen), np.bool_)
        else:
            opens = np.roll(_closes(hashes[order]), 1)
        return self._write(arrays, hashes, chosen, puts, order, opens)

    def _write(
        self,
        arrays: list[pa.Array],
        hashes: Hashes,
        chosen: npt.NDArray[np.intp],
        puts: npt.NDArray[np.bool_],
        order: npt.NDArray[np.intp],
        opens: npt.NDArray[np.bool_],
    ) -> BatchEffect:
        # From here on: one group a key, its changes side by side in `order`.
        group = np.cumsum(opens) - 1
        values = hashes[order[opens]]
        entity = self.space.find(values)
        put = puts[order]
        # The last row that each key gets in this batch, by its index in `order`; -1 for none.
        final = np.full(len(values), -1, np.intp)
        final[group[put]] = np.flatnonzero(put)
        fresh = (entity < 0) & (final >= 0)
        old_keys = self.keys
        new_keys = old_keys + int(fresh.sum())
        row_count = int(puts.sum())
        numbers = self._append(arrays, chosen, puts, row_count, new_keys)
        space = self.space
        entity[fresh] = np.arange(old_keys, new_keys, dtype=np.int32)

        known = (entity >= 0) & ~fresh
        head = np.where(known, space.heads[entity], np.int32(-1))
        there = np.where(known & (space.died[head] == ALIVE), head, np.int32(-1))
        # What each change finds: the change before it in its group, or what was stored.
        after = np.full(len(order), -1, np.int32)
        after[put] = numbers[(np.cumsum(puts) - 1)[order[put]]]
        before = np.empty(len(order), np.int32)
        before[1:] = after[:-1]
        before[opens] = there
        effect = (before >= 0) | (after >= 0)

        # All rows of a batch become visible at once, so an earlier version goes past them all.
        space.prev[after[put]] = head[group[put]]
        space.died[numbers] = ALIVE
        space.died[before[before >= 0]] = self.number
        space.hashes[old_keys:new_keys] = values[fresh]
        gains = final >= 0
        # This order is the readers' safety: see `Space`.
        space.heads[entity[gains]] = after[final[gains]]
        closes = np.append(opens[1:], True)
        # A key that was gone stays so from the same version on.
        moves = gains | (there >= 0)
        space.gone[entity[moves]] = np.where(
            after[closes][moves] >= 0, np.int32(ALIVE), np.int32(self.number)
        )
        space.insert(values[fresh], entity[fresh])
        self.keys = new_keys
        self.count += int((after >= 0).sum()) - int((before >= 0).sum())
        self._dead += int((before >= 0).sum())
        if self.indexes and gains.any():
            self._index(arrays, chosen[order[final[gains]]], entity[gains], old_keys)

        at = order[effect]
        back = np.argsort(at, kind="stable")
        return BatchEffect(before[effect][back], after[effect][back], chosen[at[back]])

    def _index(
        self, arrays: list[pa.Array], chosen: npt.NDArray[np.intp], entity: Numbers, known: int
    ) -> None:
        take = None if _is_all(chosen, len(arrays[0])) else pa.array(chosen)
        for index, column_indexes in zip(self.indexes, self._indexed_columns, strict=True):
            columns = [
                arrays[at] if take is None else arrays[at].take(take) for at in column_indexes
            ]
            index.add(columns, entity, known)

    def _append(
        self,
        arrays: list[pa.Array],
        chosen: npt.NDArray[np.intp],
        puts: npt.NDArray[np.bool_],
        count: int,
        keys: int,
    ) -> Numbers:
        """Store the rows of all upserts, make room for their keys, return the rows' numbers."""
        kept = chosen if count == len(chosen) else chosen[puts]
        if not _is_all(kept, len(arrays[0])):
            take = pa.array(kept)
            arrays = [array.take(take) for array in arrays]
        numbers = np.empty(count, np.int32)
        start, end = 0, self.end
        while start < count:
            offset = end & (CHUNK - 1)
            if len(self.chunks) == end >> BITS:
                self.chunks.append(Chunk(self.layout.schema.columns))
            stop = min(count, start + CHUNK - offset)
            piece = [array.slice(start, stop - start) for array in arrays]
            if offset and not self.chunks[-1].fits(piece):
                # The rest of this chunk's numbers has no rows: `died` is 0 there.
                self.chunks[-1].seal()
                end += CHUNK - offset
                continue
            self.chunks[-1].append(piece, stop - start)
            numbers[start:stop] = np.arange(end, end + stop - start, dtype=np.int32)
            end += stop - start
            start = stop
        if end > LAST:
            raise TableError(
                f"The table has more than {LAST:,} versions of rows, the most that fit in memory",
                table=self.layout.schema.table,
                remedy="Use a lake table as the target, or filters that leave rows out.",
            )
        self.space = self.space.with_room(self.keys, keys, self.end, end)
        self.end = end
        return numbers

    def collect(self, rows: Numbers, column_indexes: Sequence[int]) -> list[pa.Array]:
        """Return these columns of these rows, in the order of `rows`."""
        return collect(self.chunks, rows, column_indexes)

    def key_bytes(self, rows: Numbers) -> pa.Array:
        """Return the canonical bytes of the keys of these rows."""
        return self.layout.key.pack_arrays(self.collect(rows, self._key_indexes))

    def keys_of(self, arrays: Sequence[pa.Array]) -> list[pa.Array]:
        """Return the key's columns of a batch."""
        return [arrays[at] for at in self._key_indexes]

    def compacted(self) -> RowStore:
        """Return a store of the living rows alone."""
        fresh = RowStore(self.layout)
        fresh.aliases = self.aliases
        fresh.number = 1
        hashes, rows = self.version(Position(0, 0)).by_hash()
        order = np.argsort(rows)
        rows = rows[order]
        every = range(len(self.layout.schema.columns))
        fresh.space = fresh.space.with_room(0, len(rows), 0, len(rows) + CHUNK)
        for part in np.split(rows, np.flatnonzero(np.diff(rows >> BITS)) + 1):
            if len(part):
                fresh._copy(self.collect(part, every), len(part))
        space, count = fresh.space, len(rows)
        space.hashes[:count] = hashes[order]
        space.insert(space.hashes[:count], np.arange(count, dtype=np.int32))
        fresh.keys = fresh.count = count
        return fresh

    def _copy(self, arrays: list[pa.Array], count: int) -> None:
        start = self.keys
        every = np.arange(count)
        numbers = self._append(arrays, every, np.ones(count, np.bool_), count, start + count)
        self.space.prev[numbers] = -1
        self.space.died[numbers] = ALIVE
        entities = np.arange(start, start + count, dtype=np.int32)
        self.space.heads[entities] = numbers
        self.space.gone[entities] = ALIVE
        self.keys = start + count
        if self.indexes:
            self._index(arrays, every, entities, start)


def _grouped(hashes: Hashes) -> npt.NDArray[np.intp] | None:
    """Return an order that brings equal hashes together; None if all differ."""
    # Rising keys, as most inserts have them, need no sorting to be seen to differ.
    if len(hashes) < 2 or bool((hashes[1:] > hashes[:-1]).all()):
        return None
    order = np.argsort(hashes, kind="stable")
    ranked = hashes[order]
    return order if bool((ranked[1:] == ranked[:-1]).any()) else None


def _closes(ranked: Hashes) -> npt.NDArray[np.bool_]:
    """Return which of these hashes, equal ones side by side, is the last of its kind."""
    closes = np.ones(len(ranked), np.bool_)
    closes[:-1] = ranked[1:] != ranked[:-1]
    return closes


def _is_all(chosen: npt.NDArray[np.intp], count: int) -> bool:
    return len(chosen) == count and (
        count == 0 or (chosen[0] == 0 and bool((chosen[1:] > chosen[:-1]).all()))
    )
