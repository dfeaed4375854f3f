"""What happened to a table: changes as readers see them, made when they are read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, overload

import numpy as np
import numpy.typing as npt

from headrace.changelog.position import Position
from headrace.tables.buffers import BITS, CHUNK
from headrace.tables.chunk import Chunk
from headrace.tables.row import Row
from headrace.tables.space import Numbers

_SLICE: Final = 1024
"""Changes turned into Python numbers at a time."""


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
    """The change's own; for rows that were there, or were loaded anew, the table's."""


class RowChanges(Sequence[TableChange]):
    """
    Changes from one version to the next, as row numbers.

    The writer makes no object a row: whoever reads the changes does, on his own thread.
    """

    __slots__ = ("_after", "_before", "_commits", "_key", "_new", "_old", "_ordinals", "_position")

    def __init__(
        self,
        key: Sequence[str],
        position: Position,
        *,
        old: Sequence[Chunk] = (),
        new: Sequence[Chunk] = (),
        before: Numbers,
        after: Numbers,
        at: tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]] | None = None,
    ) -> None:
        self._key = tuple(key)
        self._position = position
        self._old, self._new = old, new
        self._before, self._after = before, after
        """Row numbers in `old` and `new`, -1 for none; a truncate is -1 twice."""
        self._commits = None if at is None else at[0]
        self._ordinals = None if at is None else at[1]

    @classmethod
    def none(cls) -> RowChanges:
        """Return no changes."""
        return _NONE

    def after_truncate(self, at: Position) -> RowChanges:
        """Return these changes with a truncate before them."""
        none = np.array([-1], np.int32)
        commits = np.empty(0, np.int64) if self._commits is None else self._commits
        ordinals = np.empty(0, np.int64) if self._ordinals is None else self._ordinals
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
            ),
        )

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
        place = range(len(self))[at]
        return next(self._some(place, place + 1))

    def _some(self, start: int, stop: int) -> Iterator[TableChange]:
        before, after = self._before[start:stop].tolist(), self._after[start:stop].tolist()
        if self._commits is None or self._ordinals is None:
            positions: Iterator[Position] = iter([self._position] * len(before))
        else:
            positions = map(
                Position,
                [self._position.epoch] * len(before),
                self._commits[start:stop].tolist(),
                self._ordinals[start:stop].tolist(),
            )
        for old, new, position in zip(before, after, positions, strict=True):
            was = _row(self._old, old)
            now = _row(self._new, new)
            row = now or was
            key = tuple([row[name] for name in self._key]) if row is not None else ()
            yield TableChange(_OPS[was is not None, now is not None], key, was, now, position)


_OPS: Final = {
    (False, True): "insert",
    (True, True): "update",
    (True, False): "delete",
    (False, False): "truncate",
}

_NONE = RowChanges((), Position(0, 0), before=np.empty(0, np.int32), after=np.empty(0, np.int32))


def _row(chunks: Sequence[Chunk], number: int) -> Row | None:
    return None if number < 0 else Row(chunks[number >> BITS].values, number & (CHUNK - 1))
