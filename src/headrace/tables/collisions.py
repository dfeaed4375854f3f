"""
Different keys with one hash, told apart exactly.

With 64 bits this does not happen in practice, and "does not happen in practice" is no
answer to a wrong row. Every write compares the bytes of keys whose hashes are equal, with
each other and with those stored. The first key to come keeps the hash; another one
gets a substitute that no key has, and the table remembers it by the key's bytes: an *alias*.
Readers look there first; it is empty unless somebody has met a collision, and a reader
compares the key's values anyhow.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.tables.codec import MASK, Hashes

if TYPE_CHECKING:
    from headrace.tables.store import Store


def settle(store: Store, arrays: Sequence[pa.Array]) -> Hashes:
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
        return _told_apart(store, packed.to_pylist(), natural)
    return hashes


def _known_aliases(store: Store, packed: pa.Array, natural: Hashes) -> Hashes:
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


def _differ(store: Store, packed: pa.Array, hashes: Hashes) -> bool:
    """Whether a key of the batch has the hash of another one that is stored."""
    entity = store.space.find(hashes)
    known = np.flatnonzero(entity >= 0)
    if not known.size:
        return False
    stored = store.key_bytes(store.space.heads[entity[known]])
    return not pc.all(pc.equal(stored, packed.take(pa.array(known)))).as_py()


def _told_apart(store: Store, packed: list[bytes], natural: Hashes) -> Hashes:
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
    # Readers of earlier versions hold the dict that was.
    store.aliases = aliases
    return settled
