"""
Changes as the rows of a frame.

| change | `images=after` | `images=both` |
|---|---|---|
| insert | `insert` | `insert` |
| update | `update_postimage` | `update_preimage`, `update_postimage` |
| update of the key | `delete` of the old key, `insert` of the new | as above |
| delete | `delete`, with what is known of the row | `delete` |
| truncate | as `onTruncate` says | as `onTruncate` says |

A change of the key is two rows, because who keeps one row a key would otherwise keep the old
one (R23).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.changelog.change import Op
from headrace.changelog.position import Position

TYPES: Final = ("insert", "update_postimage", "delete", "update_preimage", "truncate")
"""Spark's own words, and one for a table that was emptied."""

_INSERT, _POST, _DELETE, _PRE, _TRUNCATE = range(5)
_CODES: Final = np.array([_INSERT, _POST, _DELETE, _TRUNCATE], np.int8)
"""By the number of an op."""

_PAIRS: Final = np.frombuffer("".join(f"{octet:02x}" for octet in range(256)).encode(), np.uint16)
"""By an octet: its two digits, side by side."""

_WIDTH: Final = len(str(Position(0, 0)))


@dataclass(frozen=True)
class Expanded:
    """Rows of a frame, by the changes that they come from."""

    index: npt.NDArray[np.int64]
    """Which change each is of."""

    before: npt.NDArray[np.bool_]
    """Whether it is the row from before it."""

    codes: npt.NDArray[np.int8]
    """Its type, by place in `TYPES`."""

    def only(self, kept: npt.NDArray[np.bool_]) -> Expanded:
        """Return those of them that are kept."""
        if kept.all():
            return self
        return Expanded(self.index[kept], self.before[kept], self.codes[kept])

    @property
    def types(self) -> pa.Array:
        """Their types, as words."""
        return pa.array(TYPES).take(pa.array(self.codes))


def expanded(
    ops: npt.NDArray[np.int8],
    moved: npt.NDArray[np.bool_] | None,
    images: Literal["after", "both"],
    *,
    truncates: bool,
) -> Expanded:
    """
    Return the rows that changes come to, in their order.

    `moved` says which updates changed the key; None: none did. Without `truncates` those are
    left out.
    """
    updates = ops == Op.UPDATE
    pairs = updates if images == "both" else (updates & moved if moved is not None else None)
    codes, index = _CODES[ops], np.arange(len(ops), dtype=np.int64)
    before = ops == Op.DELETE
    if pairs is not None and pairs.any():
        counts = 1 + pairs.astype(np.int64)
        index = np.repeat(index, counts)
        first, second = np.zeros(len(index), np.bool_), np.zeros(len(index), np.bool_)
        ends = np.cumsum(counts)
        first[ends[pairs] - 2] = True
        second[ends[pairs] - 1] = True
        codes, before = codes[index], before[index] | first
        codes[first] = _PRE if images == "both" else _DELETE
        if images == "after":
            codes[second] = _INSERT
    found = Expanded(index, before, codes)
    return found if truncates else found.only(codes != _TRUNCATE)


def picked(rows: Expanded, after: pa.Array | None, before: pa.Array | None) -> pa.Array:
    """Return a column of the rows, from the columns of the two images."""
    if before is None or not rows.before.any():
        assert after is not None
        return taken(after, rows.index)
    if after is None or rows.before.all():
        return taken(before, rows.index)
    both = pa.concat_arrays([after, before])
    return both.take(pa.array(rows.index + len(after) * rows.before))


def taken(values: pa.Array, index: npt.NDArray[np.int64]) -> pa.Array:
    """Return the values of these changes; without a copy where that is all of them."""
    whole = len(index) == len(values) and (len(index) == 0 or bool((np.diff(index) == 1).all()))
    return values if whole and (len(index) == 0 or index[0] == 0) else values.take(pa.array(index))


def places(epoch: int, commits: npt.NDArray[np.int64], ordinals: npt.NDArray[np.int32]) -> pa.Array:
    """Return positions as text, all at once."""
    count = len(commits)
    text = np.empty((count, _WIDTH), np.uint8)
    text[:] = np.frombuffer(str(Position(epoch, 0)).encode(), np.uint8)
    for number, start, digits, kind in ((commits, 5, 16, ">u8"), (ordinals, 22, 8, ">u4")):
        octets = number.astype(kind).view(np.uint8)
        text[:, start : start + digits] = _PAIRS[octets].view(np.uint8).reshape(count, digits)
    offsets = np.arange(0, (count + 1) * _WIDTH, _WIDTH, dtype=np.int64)
    if offsets[-1] >= 2**31:
        raise OverflowError("more rows than one array of text can hold")
    return pa.Array.from_buffers(
        pa.utf8(), count, [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(text)]
    )


def moved_keys(before: pa.Array, after: pa.Array, names: tuple[str, ...]) -> npt.NDArray[np.bool_]:
    """Return which changes have a key before them that is not the key after them."""
    found = np.zeros(len(before), np.bool_)
    there = before.is_valid().to_numpy(zero_copy_only=False)
    there &= after.is_valid().to_numpy(zero_copy_only=False)
    for name in names:
        old, new = (child(each, name) for each in (before, after))
        found |= _differs(old, new)
    return np.asarray(found & there, np.bool_)


def child(image: pa.Array, name: str) -> pa.Array:
    """Return one column of an image; null where there is no image."""
    # By place: a name with a dot in it would be taken for a path.
    return pc.struct_field(image, image.type.get_field_index(name))


def _differs(old: pa.Array, new: pa.Array) -> npt.NDArray[np.bool_]:
    if pa.types.is_struct(old.type):
        nulls = pc.xor(old.is_null(), new.is_null()).to_numpy(zero_copy_only=False)
        for at in range(old.type.num_fields):
            nulls = nulls | _differs(pc.struct_field(old, at), pc.struct_field(new, at))
        return np.asarray(nulls, np.bool_)
    found = pc.coalesce(pc.not_equal(old, new), pc.xor(old.is_null(), new.is_null()))
    return np.asarray(found.to_numpy(zero_copy_only=False), np.bool_)
