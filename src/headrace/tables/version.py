"""
A table at one position: what every read looks at, and at nothing else (invariant 7).

A version is made once and never changes; the table's newest one is put in place by a single
assignment. A reader takes it once and works on it, however long that takes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.changelog.position import Position
from headrace.changelog.schema import TableSchema
from headrace.tables.columns import BITS, CHUNK, Chunk, Row
from headrace.tables.hash_index import IndexArrays, Numbers, Space, hash_of
from headrace.tables.keys import MASK, SPREAD, Codec, Hashes, whole

_WITHIN = CHUNK - 1

_FEW_KEYS = 100_000
"""Of so many integers, the next hundred are found in a millisecond."""


@dataclass(frozen=True, slots=True)
class IndexView:
    """An index as of one version."""

    codec: Codec
    entries: IndexArrays
    end: int
    """Entries there were."""

    moved: bool
    """Whether a key may have several of them."""


@dataclass(frozen=True, slots=True)
class TablePage:
    """Some rows of a version, and where the next ones begin."""

    rows: Numbers
    """Their numbers."""

    order: npt.NDArray[Any]
    """By what they are ordered: their hashes, or their keys."""

    more: bool
    """Whether other rows follow."""

    @property
    def after(self) -> int | None:
        """What `page` takes for the rows that follow; None if there are none."""
        return int(self.order[-1]) if self.more else None

    def first(self, count: int) -> TablePage:
        """Return the first rows of this page as a page; there are more of them."""
        return TablePage(self.rows[:count], self.order[:count], True)


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
        "schema",
        "space",
    )

    def __init__(
        self,
        schema: TableSchema,
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
        self.schema = schema
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
        chunks = self.chunks
        return [
            Row(chunks[number >> BITS].values, number & _WITHIN)
            for number in self.find_all(index, wanted)
        ]

    def find_all(self, index: int, wanted: tuple[object, ...]) -> list[int]:
        """Return the numbers of the rows that `lookup` returns."""
        view = self.indexes[index]
        codec, entries = view.codec, view.entries
        hash = hash_of(codec, wanted)
        if hash is None:
            return []
        entities, links = entries.entities_view, entries.links_view
        rows: list[int] = []
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
                rows.append(number)
        rows.reverse()
        return rows

    def row(self, number: int) -> Row:
        """Return a row by its number."""
        return Row(self.chunks[number >> BITS].values, number & _WITHIN)

    def find(self, keys: Sequence[Sequence[object]]) -> Numbers:
        """Return the numbers of the rows with these keys, -1 where there is none."""
        hashes = np.zeros(len(keys), np.uint64)
        known = np.ones(len(keys), np.bool_)
        for at, key in enumerate(keys):
            if (hash := self._hash(key)) is None:
                known[at] = False
            else:
                hashes[at] = hash
        entity = self.space.find(hashes)
        known &= (entity >= 0) & (entity < self.keys)
        rows = self._rows_of(entity, known)
        if not self._integer:
            # An equal hash is not yet an equal key.
            for at in np.flatnonzero(rows >= 0).tolist():
                row = self.row(int(rows[at]))
                if not self._codec.same([row[name] for name in self._names], keys[at]):
                    rows[at] = -1
        return rows

    def _hash(self, key: Sequence[object]) -> int | None:
        """Return the hash under which a key is stored; None if no row can have this key."""
        if self._integer:
            number = whole(key[0])
            return None if number is None or not -(2**63) <= number < 2**63 else number & MASK
        packed = self._codec.pack(key)
        if packed is None:
            return None
        alias = self.aliases.get(packed) if self.aliases else None
        return self._codec.hash(packed) if alias is None else alias

    def page(self, after: int | None, limit: int) -> TablePage:
        """
        Return up to `limit` rows that follow `after`; None for the first ones.

        The order is that of the hashes of the keys, which is the same in every version, whatever
        happens to the table meanwhile. So pages of different versions have each key that was
        there all the time exactly once. It costs by the page's size, not by the table's: a key is
        stored near the slot that the first bits of its hash lead to.
        """
        size = len(self._slots)
        stop = 0 if after is None else after >> self._shift
        chosen, hashes, found = [], [], 0
        while stop < size and found <= limit:
            start, stop = stop, min(size, stop + 2 * limit + 64)
            # Up to a slot that was empty: no key from before it is behind it.
            while stop < size and 0 <= self._slots[stop] < self.keys:
                stop += 1
            rows, order = self._in_slots(start, stop, after)
            chosen.append(rows)
            hashes.append(order)
            found += len(rows)
        page = TablePage(np.concatenate(chosen), np.concatenate(hashes), False)
        return page.first(limit) if found > limit else page

    @property
    def ordered(self) -> bool:
        """Whether `page_by_key` may be used, and costs little."""
        return self._integer and self.keys <= _FEW_KEYS

    def page_by_key(self, after: int | None, limit: int) -> TablePage:
        """
        Return up to `limit` rows whose key follows `after`, in the order of the keys.

        Only for a key of one integer, and as stable as `page`; but each page looks at all keys.
        """
        keys = self.space.hashes[: self.keys].astype(np.int64)
        chosen = np.arange(self.keys) if after is None else np.flatnonzero(keys > after)
        rows = self._rows_of(chosen, np.ones(len(chosen), np.bool_))
        there = rows >= 0
        rows, keys = rows[there], keys[chosen[there]]
        if len(keys) > limit:
            some = np.argpartition(keys, limit)[: limit + 1]
            rows, keys = rows[some], keys[some]
        order = np.argsort(keys)
        page = TablePage(rows[order], keys[order], False)
        return page.first(limit) if len(order) > limit else page

    def _in_slots(self, start: int, stop: int, after: int | None) -> tuple[Numbers, Hashes]:
        """Return the rows of all keys whose first slot is there, in the order of their hashes."""
        space = self.space
        entities = space.slots[start:stop]
        if stop == len(space.slots):
            # The search for a slot goes on at the beginning.
            first = 0
            while first < start and 0 <= self._slots[first] < self.keys:
                first += 1
            entities = np.concatenate([entities, space.slots[:first]])
        entities = entities[(entities >= 0) & (entities < self.keys)]
        spread = space.hashes[entities]
        if self._integer:
            spread = spread * np.uint64(SPREAD)
        slots = (spread >> np.uint64(self._shift)).astype(np.int64)
        here = (slots >= start) & (slots < stop)
        if after is not None:
            here &= spread > np.uint64(after)
        entities, spread = entities[here], spread[here]
        rows = self._rows_of(entities, np.ones(len(entities), np.bool_))
        alive = np.flatnonzero(rows >= 0)
        order = alive[np.argsort(spread[alive])]
        return rows[order], spread[order]

    def arrow(self, rows: Numbers) -> pa.Table:
        """Return rows by their numbers, as Arrow: all columns, in the order of `rows`."""
        if not len(rows):
            return self.schema.arrow.empty_table()
        columns = collect(self.chunks, rows, range(len(self.schema.columns)))
        return pa.Table.from_arrays(columns, schema=self.schema.arrow)

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
        rows = self._rows_of(np.arange(self.keys), np.ones(self.keys, np.bool_))
        here = np.flatnonzero(rows >= 0)
        return self.space.hashes[: self.keys][here], rows[here]

    def _rows_of(self, entities: npt.NDArray[Any], known: npt.NDArray[np.bool_]) -> Numbers:
        """Return the rows of some entities in this version, -1 for none; all at once."""
        space = self.space
        rows = np.where(known, space.heads[entities], np.int32(-1))
        while (later := np.flatnonzero(rows >= self.end)).size:
            rows[later] = space.prev[rows[later]]
        # Not `gone`: a row that is no longer alive died, which is enough here.
        return np.where((rows >= 0) & (space.died[rows] > self.number), rows, np.int32(-1))

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


def collect(
    chunks: Sequence[Chunk], rows: Numbers, column_indexes: Sequence[int]
) -> list[pa.Array]:
    """Return these columns of these rows, in the order of `rows`, of which there must be some."""
    order = np.argsort(rows, kind="stable")
    ranked = rows[order]
    pieces: list[list[pa.Array]] = []
    cuts = np.flatnonzero(np.diff(ranked >> BITS)) + 1
    for part in np.split(ranked, cuts):
        take = pa.array(part & _WITHIN)
        columns = chunks[int(part[0]) >> BITS].arrow(column_indexes)
        pieces.append([column.take(take) for column in columns])
    joined = [pa.concat_arrays(list(column)) for column in zip(*pieces, strict=True)]
    if bool((order[1:] > order[:-1]).all()):
        return joined
    back = np.empty(len(order), np.intp)
    back[order] = np.arange(len(order))
    return [array.take(pa.array(back)) for array in joined]
