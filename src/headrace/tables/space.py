"""
Where the rows of each key are: open addressing in numpy arrays, for one writer and any
number of readers of older versions.

A key gets a number, its *entity*, for as long as the store lives; every state of it that
was ever stored is a *row*, numbered in the order of writing.

* `slots[place]`: the entity whose hash leads to this place, or -1.
* `hashes[entity]`: the key's hash.
* `heads[entity]`: its newest row.
* `gone[entity]`: the number of the version in which that row was deleted, or `ALIVE`.
* `prev[row]`: the entity's newest row of an earlier batch, or -1.
* `died[row]`: the number of the version in which the row was replaced or deleted; `ALIVE`
  until then, 0 where there is no row.

That is 32 bytes a row, with the slots at the usual load. The three of an entity lie side by
side: in a table larger than the processor's cache, a `get` takes as long as its misses.

A version is three numbers: how many rows and entities there were, and the version's own
number. All arrays are shared between versions, because everything written later can be told
from these numbers:

* a slot with an entity beyond the version's was empty then, and ends the search;
* a head beyond the version's rows leads by `prev` to the row of that time;
* a row that died in a later version was alive.

So nothing is copied when a batch of ten rows arrives, and no reader ever waits. Only when
an array is full, all are copied into larger ones: the writer goes on with those, and the
old ones stay as they are for whoever still reads them. (They must go together: a head in
a shared array could otherwise lead beyond a smaller `prev`.)

Single elements are written and read whole. The order of writing is: rows, `prev`, `died`,
then `heads`, then `gone`, then `slots`; a reader takes `gone` before `heads`. So who finds
an entity not gone because a key has come back finds its new head as well, goes to the
earlier row, and sees that this one was dead.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from headrace.tables.codec import SPREAD, Hashes

Numbers = npt.NDArray[np.int32]

ALIVE: Final = 2**31 - 1
LAST: Final = ALIVE - 1
"""The largest number of a row or a version; a store ends before (see `Store.worn_out`)."""

_SPREAD: Final = np.uint64(SPREAD)


class Space:
    """The arrays of one store, of one size."""

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
        Return a space for so many keys and rows in all: this one, or a larger copy.

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
        place = self._home(hashes)
        entity = self.slots[place]
        taken = entity >= 0
        hit = taken & (self.hashes[entity] == hashes)
        found = np.where(hit, entity, np.int32(-1))
        rest = np.flatnonzero(taken & ~hit)
        while rest.size:
            place[rest] = (place[rest] + 1) & self.mask
            entity = self.slots[place[rest]]
            taken = entity >= 0
            hit = taken & (self.hashes[entity] == hashes[rest])
            found[rest[hit]] = entity[hit]
            rest = rest[taken & ~hit]
        return found

    def insert(self, hashes: Hashes, entities: Numbers) -> None:
        """Give new entities a slot each; their hashes differ, and are in `hashes` already."""
        place = self._home(hashes)
        rest = np.arange(len(hashes))
        while rest.size:
            free = rest[self.slots[place[rest]] < 0]
            # Several may want one place: the last of them has it, the others go on.
            self.slots[place[free]] = entities[free]
            rest = rest[self.slots[place[rest]] != entities[rest]]
            place[rest] = (place[rest] + 1) & self.mask

    def _home(self, hashes: Hashes) -> npt.NDArray[np.int64]:
        spread = hashes * _SPREAD if self.integer else hashes
        return (spread >> np.uint64(self.shift)).astype(np.int64)


def bits_for(count: int) -> int:
    """Return the size of a slot array, as a power of two, for so many entries."""
    bits = 6
    while room_in(bits) < count:
        bits += 1
    return bits


def room_in(bits: int) -> int:
    """Return how many entries such a slot array takes: five of eight, or searches get long."""
    return (1 << bits) // 8 * 5
