"""
A table at one position: what every read looks at, and at nothing else (invariant 7).

A version is made once and never changes; the table's newest one is put in place by a single
assignment. A reader takes it once and works on it, however long that takes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from headrace.changelog.position import Position
from headrace.tables.columns import BITS, CHUNK, Chunk, Row
from headrace.tables.hash_index import IndexArrays, Numbers, Space, hash_of
from headrace.tables.keys import MASK, SPREAD, Codec, Hashes, whole

_WITHIN = CHUNK - 1


@dataclass(frozen=True, slots=True)
class IndexView:
    """An index as of one version."""

    codec: Codec
    entries: IndexArrays
    end: int
    """Entries there were."""

    moved: bool
    """Whether a key may have several of them."""


class TableVersion:
    """One state of a table. `end`, `keys` and `number` tell it from later ones (see `Space`)."""

    __slots__ = (
        "_codec",
        "_died",
        "_hashes",
        "_heads",
        "_integer",
        "_mask",
        "_names",
        "_prev",
        "_shift",
        "_slots",
        "aliases",
        "chunks",
        "count",
        "end",
        "indexes",
        "keys",
        "number",
        "position",
        "space",
    )

    def __init__(
        self,
        codec: Codec,
        space: Space,
        chunks: Sequence[Chunk],
        aliases: Mapping[bytes, int],
        indexes: Sequence[IndexView],
        *,
        end: int,
        keys: int,
        number: int,
        count: int,
        position: Position,
    ) -> None:
        self._codec = codec
        self._integer = codec.integer
        self._names = codec.names
        self.space = space
        self.chunks = chunks
        self.aliases = aliases
        self.indexes = indexes
        self.end = end
        self.keys = keys
        self.number = number
        self.count = count
        self.position = position
        self._slots = space.slots_view
        self._hashes = space.hashes_view
        self._heads = space.heads_view
        self._prev = space.prev_view
        self._died = space.died_view
        self._shift = space.shift
        self._mask = space.mask

    def get(self, key: tuple[object, ...]) -> Row | None:
        """Return the row with this key, whose values must be as many as the key's columns."""
        integer = self._integer
        if integer:
            hash = key[0]
            if type(hash) is not int and (hash := whole(hash)) is None:
                return None
            slot = (hash * SPREAD & MASK) >> self._shift
        else:
            packed = self._codec.pack(key)
            if packed is None:
                return None
            hash = self.aliases.get(packed) if self.aliases else None
            if hash is None:
                hash = self._codec.hash(packed)
            slot = hash >> self._shift
        slots, hashes, keys = self._slots, self._hashes, self.keys
        while True:
            entity = slots[slot]
            if entity < 0 or entity >= keys:
                return None
            if hashes[entity + entity] == hash:
                break
            slot = (slot + 1) & self._mask
        # As `_row_of`, without the call.
        gone = self._heads[4 * entity + 3]
        number = self._heads[4 * entity + 2]
        if number >= self.end:
            number = self._earlier(number)
            if number < 0:
                return None
        elif gone <= self.number:
            return None
        values = self.chunks[number >> BITS].values
        at = number & _WITHIN
        if not integer:
            # An equal hash is not yet an equal key.
            names = self._names
            if len(names) == 2:
                one, other = names
                equal = values[one](at) == key[0] and values[other](at) == key[1]
            else:
                equal = tuple([values[name](at) for name in names]) == key
            if not equal and not self._codec.same([values[name](at) for name in names], key):
                return None
        return Row(values, at)

    def lookup(self, index: int, wanted: tuple[object, ...]) -> list[Row]:
        """Return the rows with these values in the columns of an index, oldest key first."""
        view = self.indexes[index]
        codec, entries = view.codec, view.entries
        hash = hash_of(codec, wanted)
        if hash is None:
            return []
        entities, links = entries.entities_view, entries.links_view
        rows: list[Row] = []
        seen: set[int] = set()
        entry = entries.first(hash)
        while entry >= 0:
            if entry >= view.end:
                # Of a later version: its key may have an entry of our time as well.
                entry = links[entry]
                continue
            number = self._row_of(entities[entry])
            entry = links[entry]
            if number < 0:
                continue
            if view.moved:
                if number in seen:
                    continue
                seen.add(number)
            values = self.chunks[number >> BITS].values
            at = number & _WITHIN
            found = tuple([values[name](at) for name in codec.names])
            if found == wanted or codec.same(found, wanted):
                rows.append(Row(values, at))
        rows.reverse()
        return rows

    def all(self) -> Iterator[Row]:
        """Yield every row, in the order of writing."""
        for start in range(0, self.end, CHUNK):
            values = self.chunks[start >> BITS].values
            alive = self.space.died[start : min(start + CHUNK, self.end)] > self.number
            for at in np.flatnonzero(alive).tolist():
                yield Row(values, at)

    def rows(self) -> Numbers:
        """Return the numbers of all rows, in the order of writing."""
        return np.flatnonzero(self.space.died[: self.end] > self.number).astype(np.int32)

    def by_hash(self) -> tuple[Hashes, Numbers]:
        """Return the hash and the row's number of every key."""
        space = self.space
        rows = space.heads[: self.keys].copy()
        while (later := np.flatnonzero(rows >= self.end)).size:
            rows[later] = space.prev[rows[later]]
        here = np.flatnonzero((rows >= 0) & (space.died[rows] > self.number))
        return space.hashes[: self.keys][here], rows[here]

    def _row_of(self, entity: int) -> int:
        """Return the row of an entity in this version, or -1."""
        # In this order: see `Space`.
        gone = self._heads[4 * entity + 3]
        number = self._heads[4 * entity + 2]
        if number >= self.end:
            return self._earlier(number)
        return number if gone > self.number else -1

    def _earlier(self, number: int) -> int:
        while number >= self.end:
            number = self._prev[number]
        return number if number >= 0 and self._died[number] > self.number else -1
