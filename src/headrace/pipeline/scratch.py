"""
Copies of segments with some of their rows.

A row that is set aside must not be computed, and a condition on its position would not keep
Spark from it: Spark is free in the order of conditions. So Spark reads a copy without the
row, in the segment's own form; copies are made of the segments concerned only, and live as
long as the job that reads them.
"""

from __future__ import annotations

import contextlib
import itertools
import secrets
import tempfile
import weakref
from collections.abc import Collection, Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from headrace.changelog.segment import segment_bytes
from headrace.errors import JobFailed, StorageError
from headrace.pipeline.result import Place
from headrace.pipeline.workspace import Workspace, readable

_ORDINAL_BITS = 31


class Scratch:
    """A folder for copies, emptied at the start; a temporary one where none is given."""

    def __init__(self, folder: Workspace | None = None) -> None:
        self._folder = folder
        # Digits first: what begins with an underscore or a dot is read as empty (S15).
        self._numbers = itertools.count()
        # Where another machine's engine has taken over, the old one must not read its copies.
        self._own = secrets.token_hex(4)
        if folder is not None:
            # Not all that is there: others keep folders of their own in it.
            folder.remove_many(folder.names())

    @contextlib.contextmanager
    def copies(self) -> Iterator[Copies]:
        """Make copies meanwhile; all of them are removed at the end. From any thread."""
        made: list[str] = []
        try:
            yield Copies(self, made)
        finally:
            # What cannot be removed now is at the next start.
            with contextlib.suppress(StorageError):
                self.folder.remove_many(made)

    @property
    def folder(self) -> Workspace:
        """Where copies go."""
        folder = self._folder
        if folder is None:
            folder = self._folder = Workspace(tempfile.mkdtemp(prefix="headrace-scratch-"))
            weakref.finalize(self, folder.clear)
        return folder

    def next_name(self) -> str:
        """Return a name that no other copy has."""
        return f"{next(self._numbers):012x}-{self._own}.parquet"


class Copies:
    """Makes copies that live together."""

    def __init__(self, scratch: Scratch, made: list[str]) -> None:
        self._scratch = scratch
        self._made = made

    def without(self, paths: Sequence[str], places: Collection[Place]) -> list[str]:
        """Return the segments without these rows: copies of those that hold some."""
        found = []
        for path in paths:
            there = _among(_positions(path), places)
            found.append(
                self._written(_read(path).filter(pa.array(~there))) if any(there) else path
            )
        return found

    def only(self, paths: Sequence[str], places: Collection[Place]) -> list[str]:
        """Return segments of these rows alone; none of those that hold no such row."""
        found = []
        for path in paths:
            there = _among(_positions(path), places)
            if any(there):
                found.append(self._written(_read(path).filter(pa.array(there))))
        return found

    def numbered(self, paths: Sequence[str], first: int) -> list[str]:
        """Return copies whose positions are segment and row number, the segments from `first`."""
        found = []
        for number, path in enumerate(paths, first):
            rows = _read(path)
            for name, values in (
                ("_commit", np.full(rows.num_rows, number, np.int64)),
                ("_ordinal", np.arange(rows.num_rows, dtype=np.int32)),
            ):
                rows = rows.set_column(rows.schema.get_field_index(name), name, pa.array(values))
            found.append(self._written(rows))
        return found

    def _written(self, rows: pa.Table) -> str:
        folder, name = self._scratch.folder, self._scratch.next_name()
        self._made.append(name)
        with folder.writing(name) as file:
            file.write(segment_bytes(rows))
        return folder.path(name)


def places_in(paths: Sequence[str]) -> list[Place]:
    """Return where the rows of these segments stand, in order."""
    found: list[Place] = []
    for path in paths:
        commits, ordinals = _positions(path)
        found += zip(commits.tolist(), ordinals.tolist(), strict=True)
    return sorted(found)


def _positions(path: str) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    rows = _read(path, ["_commit", "_ordinal"])
    commits, ordinals = (column.to_numpy().astype(np.int64) for column in rows.columns)
    return commits, ordinals


def _read(path: str, columns: list[str] | None = None) -> pa.Table:
    try:
        with pq.ParquetFile(readable(path)) as file:
            return file.read(columns)
    except (OSError, pa.ArrowException, StorageError) as error:
        # As Spark's own failure to read it would be: the file's, and no row's.
        raise JobFailed("A segment cannot be read", file=path) from error


def _among(
    rows: tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]], places: Collection[Place]
) -> npt.NDArray[np.bool_]:
    """Return which of the rows stand at one of these places."""
    commits, ordinals = rows
    if not places or not len(commits):
        return np.zeros(len(commits), np.bool_)
    wanted = np.array(list(places), np.int64)
    # Commits use all 63 bits; as numbers among the wanted ones they leave room for ordinals.
    known, codes = np.unique(wanted[:, 0], return_inverse=True)
    at = np.minimum(np.searchsorted(known, commits), len(known) - 1)
    keys = (at << _ORDINAL_BITS) | ordinals
    there = np.isin(keys, (codes << _ORDINAL_BITS) | wanted[:, 1])
    return np.asarray(there & (known[at] == commits), np.bool_)
