"""
Hash tables of a store: the key space, which finds rows by key, and secondary indexes.

How versions share the arrays, and why no reader waits, is described at `Space`.

A secondary index leads from values to the entities that have, or once had, them. It keeps
entries (hash, entity), chained newest first by hash. It points at entities and not at rows, so
an update that leaves the indexed columns alone costs it nothing, and a row that is updated a
million times is one entry. An entry is never removed: the reader goes from the entity to its row
in the reader's version and compares the values, which also covers hash collisions. Stale entries
are dropped when the store is compacted. An index takes 24 bytes a row, or 16 if few values are
shared by many rows.

Hashes of an index are 32 bits: they only keep chains short.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.tables.keys import MASK, SPREAD, Codec, Hashes, whole

# --- where the rows of each key are ---------------------------------------------------------------

Numbers = npt.NDArray[np.int32]

ALIVE: Final = 2**31 - 1
LAST: Final = ALIVE - 1
"""The largest number of a row or a version; a store ends before (see `Store.worn_out`)."""

_SPREAD: Final = np.uint64(SPREAD)


class Space:
    """
    Where the rows of each key are: the arrays of one store, of one size.

    Open addressing in numpy arrays, for one writer and any number of readers of older versions.
    A key gets a number, its *entity*, for the lifetime of the store; every state of it that
    was ever stored is a *row*, numbered in the order of writing.

    * `slots[slot]`: the entity whose hash leads to this slot, or -1.
    * `hashes[entity]`: the key's hash.
    * `heads[entity]`: its newest row.
    * `gone[entity]`: the number of the version in which that row was deleted, or `ALIVE`.
    * `prev[row]`: the entity's newest row of an earlier batch, or -1.
    * `died[row]`: the number of the version in which the row was replaced or deleted; `ALIVE`
      until then, 0 where there is no row.

    That is 32 bytes a row, with the slots at the usual load. The three of an entity lie side by
    side: in a table larger than the processor's cache, a `get` takes as long as its misses.

    A version is three numbers: how many rows and entities there were, and the version's own
    number. All arrays are shared between versions, because everything written later can be
    recognised by these numbers:

    * a slot with an entity beyond the version's was empty then, and ends the search;
    * a head beyond the version's rows leads by `prev` to the row of that time;
    * a row that died in a later version was alive.

    So nothing is copied when a batch of ten rows arrives, and no reader ever waits. Only when
    an array is full, all are copied into larger ones: the writer goes on with those, and the
    old ones stay as they are for readers that still use them. (They must be replaced together: a
    head in a shared array could otherwise lead beyond a smaller `prev`.)

    Single elements are written and read whole. The order of writing is: rows, `prev`, `died`,
    then `heads`, then `gone`, then `slots`; a reader takes `gone` before `heads`. So a reader
    that finds an entity not gone because a key has come back finds its new head as well, goes to
    the earlier row, and sees that this one was dead.
    """

    __slots__ = (
        "bits",
        "died",
        "died_view",
        "gone",
        "hashes",
        "hashes_view",
        "heads",
        "heads_view",
        "integer",
        "mask",
        "prev",
        "prev_view",
        "shift",
        "slots",
        "slots_view",
    )

    def __init__(self, *, integer: bool, keys: int, rows: int) -> None:
        self.integer = integer
        self.bits = bits_for(keys)
        self.mask = (1 << self.bits) - 1
        self.shift = 64 - self.bits
        self.slots: Numbers = np.full(1 << self.bits, -1, np.int32)
        entities = np.empty((room_in(self.bits), 2), np.int64)
        halves = entities.view(np.int32)
        self.hashes: Hashes = entities[:, 0].view(np.uint64)
        self.heads: Numbers = halves[:, 2]
        self.gone: Numbers = halves[:, 3]
        self.prev: Numbers = np.empty(rows, np.int32)
        self.died: Numbers = np.zeros(rows, np.int32)
        # Indexing a memoryview takes 40 ns and gives an int; a numpy array takes twice that.
        self.slots_view = self.slots.data
        whole = entities.reshape(-1)
        self.hashes_view = whole.data if integer else whole.view(np.uint64).data
        """By twice the entity; signed for an integer key."""
        self.heads_view = halves.reshape(-1).data
        """By four times the entity and 2; `gone` is at 3."""
        self.prev_view = self.prev.data
        self.died_view = self.died.data

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays, whether in use or not."""
        arrays = (self.slots, self.hashes, self.heads, self.gone, self.prev, self.died)
        return sum(array.nbytes for array in arrays)

    def with_room(self, keys: int, end_keys: int, rows: int, end_rows: int) -> Space:
        """
        Return a space with room for that many keys and rows in all: this one, or a larger copy.

        `keys` and `rows` are those in use now.
        """
        if end_keys <= len(self.hashes) and end_rows <= len(self.prev):
            return self
        grown = Space(
            integer=self.integer,
            keys=max(end_keys, len(self.hashes)),
            rows=max(end_rows, len(self.prev) * 2) if end_rows > len(self.prev) else len(self.prev),
        )
        grown.hashes[:keys] = self.hashes[:keys]
        grown.heads[:keys] = self.heads[:keys]
        grown.gone[:keys] = self.gone[:keys]
        grown.prev[:rows] = self.prev[:rows]
        grown.died[:rows] = self.died[:rows]
        if grown.bits == self.bits:
            grown.slots[:] = self.slots
        else:
            grown.insert(grown.hashes[:keys], np.arange(keys, dtype=np.int32))
        return grown

    def find(self, hashes: Hashes) -> Numbers:
        """Return the entity of every hash, -1 where there is none."""
        slot = self._first_slot(hashes)
        entity = self.slots[slot]
        taken = entity >= 0
        hit = taken & (self.hashes[entity] == hashes)
        found = np.where(hit, entity, np.int32(-1))
        rest = np.flatnonzero(taken & ~hit)
        while rest.size:
            slot[rest] = (slot[rest] + 1) & self.mask
            entity = self.slots[slot[rest]]
            taken = entity >= 0
            hit = taken & (self.hashes[entity] == hashes[rest])
            found[rest[hit]] = entity[hit]
            rest = rest[taken & ~hit]
        return found

    def insert(self, hashes: Hashes, entities: Numbers) -> None:
        """Give new entities a slot each; their hashes differ, and are in `hashes` already."""
        slot = self._first_slot(hashes)
        rest = np.arange(len(hashes))
        while rest.size:
            free = rest[self.slots[slot[rest]] < 0]
            # Several may want one slot: the last one gets it, the others continue.
            self.slots[slot[free]] = entities[free]
            rest = rest[self.slots[slot[rest]] != entities[rest]]
            slot[rest] = (slot[rest] + 1) & self.mask

    def _first_slot(self, hashes: Hashes) -> npt.NDArray[np.int64]:
        spread = hashes * _SPREAD if self.integer else hashes
        return (spread >> np.uint64(self.shift)).astype(np.int64)


def bits_for(count: int) -> int:
    """Return the size of a slot array for `count` entries, as a power of two."""
    bits = 6
    while room_in(bits) < count:
        bits += 1
    return bits


def room_in(bits: int) -> int:
    """Return the capacity of a slot array: five eighths, or searches get long."""
    return (1 << bits) // 8 * 5


# --- secondary indexes ----------------------------------------------------------------------------

Short = npt.NDArray[np.uint32]

_NULLS: Final = 0x8525_7D8B
"""Odd, so that each combination of nulls has a hash of its own."""
_MASK32: Final = 0xFFFF_FFFF


class IndexArrays:
    """The arrays of one index, of one size; shared with readers as those of `Space`."""

    __slots__ = (
        "bits",
        "entities",
        "entities_view",
        "hashes",
        "hashes_view",
        "links",
        "links_view",
        "mask",
        "shift",
        "slots",
        "slots_view",
    )

    def __init__(self, *, distinct: int, room: int) -> None:
        self.bits = bits_for(distinct)
        self.mask = (1 << self.bits) - 1
        self.shift = 32 - self.bits
        self.slots: Numbers = np.full(1 << self.bits, -1, np.int32)
        self.hashes: Short = np.empty(room, np.uint32)
        self.entities: Numbers = np.empty(room, np.int32)
        self.links: Numbers = np.empty(room, np.int32)
        self.slots_view = self.slots.data
        self.hashes_view = self.hashes.data
        self.entities_view = self.entities.data
        self.links_view = self.links.data

    def first(self, hash: int) -> int:
        """Return the newest entry with this hash, or -1."""
        slots, hashes, mask = self.slots_view, self.hashes_view, self.mask
        slot = hash >> self.shift
        while (entry := slots[slot]) >= 0 and hashes[entry] != hash:
            slot = (slot + 1) & mask
        return entry

    def find_slots(self, hashes: Short) -> tuple[npt.NDArray[np.int64], Numbers]:
        """Return the slot of each hash, or the free slot for it, and the entry there."""
        slot = (hashes >> np.uint32(self.shift)).astype(np.int64)
        entry = self.slots[slot]
        rest = np.flatnonzero((entry >= 0) & (self.hashes[entry] != hashes))
        while rest.size:
            slot[rest] = (slot[rest] + 1) & self.mask
            entry[rest] = self.slots[slot[rest]]
            rest = rest[(entry[rest] >= 0) & (self.hashes[entry[rest]] != hashes[rest])]
        return slot, entry

    def insert(self, hashes: Short, entries: Numbers) -> None:
        """Give new hashes, all different, a slot each."""
        slot = (hashes >> np.uint32(self.shift)).astype(np.int64)
        rest = np.arange(len(hashes))
        while rest.size:
            free = rest[self.slots[slot[rest]] < 0]
            self.slots[slot[free]] = entries[free]
            rest = rest[self.slots[slot[rest]] != entries[rest]]
            slot[rest] = (slot[rest] + 1) & self.mask


class HashIndex:
    """One index: the writer's side, and how values become hashes."""

    __slots__ = ("_codec", "_distinct", "_last", "count", "entries", "moved")

    def __init__(self, codec: Codec) -> None:
        self._codec = codec
        self.count = 0
        self._distinct = 0
        self._last: Short = np.empty(64, np.uint32)
        """The hash of each entity's newest entry."""
        self.entries = IndexArrays(distinct=1, room=64)
        self.moved = False
        """Whether an entity has more than one entry, so that a lookup may see it twice."""

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays, whether in use or not."""
        entries = self.entries
        arrays = (entries.slots, entries.hashes, entries.entities, entries.links, self._last)
        return sum(array.nbytes for array in arrays)

    def add(self, arrays: Sequence[pa.Array], entities: Numbers, known: int) -> None:
        """Add the current values of these entities; those below `known` are not new."""
        hashes = self._hash_arrays(arrays)
        if len(entities) and (most := int(entities.max()) + 1) > len(self._last):
            grown = np.empty(max(most, len(self._last) * 2), np.uint32)
            grown[: len(self._last)] = self._last
            self._last = grown
        changed = (entities >= known) | (self._last[entities] != hashes)
        if not changed.all():
            entities, hashes = entities[changed], hashes[changed]
        if not len(entities):
            return
        self.moved = self.moved or bool((entities < known).any())
        self._last[entities] = hashes
        self._link(hashes, entities)

    def _link(self, hashes: Short, entities: Numbers) -> None:
        order = np.argsort(hashes, kind="stable")
        ranked = hashes[order]
        opens = np.ones(len(ranked), np.bool_)
        opens[1:] = ranked[1:] != ranked[:-1]
        self._make_room(len(ranked), int(opens.sum()))
        into = self.entries
        start = self.count
        self.count += len(ranked)
        into.hashes[start : self.count] = hashes
        into.entities[start : self.count] = entities
        numbers = (start + order).astype(np.int32)
        values = ranked[opens]
        slot, before = into.find_slots(values)
        link = np.empty(len(numbers), np.int32)
        link[1:] = numbers[:-1]
        link[opens] = before
        into.links[numbers] = link
        closes = np.append(opens[1:], True)
        newest = numbers[closes]
        # Readers find an entry by its slot, so the slot is written last.
        fresh = before < 0
        into.slots[slot[~fresh]] = newest[~fresh]
        into.insert(values[fresh], newest[fresh])
        self._distinct += int(fresh.sum())

    def _make_room(self, more: int, more_distinct: int) -> None:
        now = self.entries
        room, distinct = self.count + more, self._distinct + more_distinct
        if room <= len(now.links) and distinct <= room_in(now.bits):
            return
        grown = IndexArrays(
            distinct=distinct,
            room=max(room, len(now.links) * 2) if room > len(now.links) else len(now.links),
        )
        for name in ("hashes", "entities", "links"):
            getattr(grown, name)[: self.count] = getattr(now, name)[: self.count]
        heads = now.slots[now.slots >= 0]
        grown.insert(grown.hashes[heads], heads)
        self.entries = grown

    def hash(self, values: Sequence[object]) -> int | None:
        """Return the hash of these values, or None if no row can have them."""
        return hash_of(self._codec, values)

    def _hash_arrays(self, arrays: Sequence[pa.Array]) -> Short:
        codec = self._codec
        if codec.integer:
            filled = arrays[0].fill_null(0) if arrays[0].null_count else arrays[0]
            numbers = filled.cast(pa.int64()).to_numpy().view(np.uint64)
            short = (numbers * np.uint64(SPREAD)) >> np.uint64(32)
        else:
            short = codec.hash_arrays(codec.pack_arrays(arrays)) >> np.uint64(32)
        hashes: Short = short.astype(np.uint32)
        for at, array in enumerate(arrays):
            if array.null_count:
                nulls = array.is_null().to_numpy(zero_copy_only=False)
                hashes[nulls] ^= np.uint32(_NULLS << at & _MASK32)
        return hashes


def hash_of(codec: Codec, values: Sequence[object]) -> int | None:
    """Return the hash of these values in an index, or None if no row can have them."""
    if codec.integer:
        number = 0 if values[0] is None else whole(values[0])
        if number is None:
            return None
        hash = (number * SPREAD & MASK) >> 32
    else:
        packed = codec.pack(values)
        if packed is None:
            return None
        hash = codec.hash(packed) >> 32
    for at, value in enumerate(values):
        if value is None:
            hash ^= _NULLS << at & _MASK32
    return hash
