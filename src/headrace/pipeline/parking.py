"""
Which changes of a batch are set aside (R30).

A change that cannot be computed is a letter, and so is everything that follows it by key: a
later change of the same row, applied without the first, would leave a row that the source
never had. A change of the key carries the hold along: from there on both keys are held. A
truncate ends every hold before it (R23d).

Nothing here reads or writes; a batch of rows goes in, and a list of rows comes out.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.changelog.change import Op
from headrace.changelog.position import Position
from headrace.changelog.schema import TableSchema
from headrace.pipeline.keys import packed_keys
from headrace.pipeline.letter import Kind
from headrace.pipeline.result import Failure, Place

_ROUNDS = 4
"""Key changes followed by whole columns before each row is looked at instead."""


@dataclass(frozen=True, slots=True)
class Aside:
    """A change that the target is not given."""

    place: Place
    kind: Kind
    failure: Failure | None
    """Why it failed; None for one that is behind another."""

    row: int
    """Which of the rows it is."""

    keys: tuple[bytes, ...]
    """Its old key and its new one, each once; none for a truncate."""


def set_aside(
    rows: pa.Table,
    schema: TableSchema,
    epoch: int,
    held: Mapping[bytes, Position],
    failures: Mapping[Place, Failure],
) -> list[Aside]:
    """
    Return the changes to set aside, in their order.

    `rows` are changes of one table and schema, in the shape of a segment and in position
    order. A key in `held` is held from its position on: changes before it pass. Failures of
    other rows than these are not looked at. Raises `RowFailed` where a change's key cannot
    be told, since then nobody knows what is to be held.
    """
    if not rows.num_rows or not (held or failures):
        return []
    commits, ordinals = _positions(rows)
    failed = {}
    for place, failure in failures.items():
        at = _first_from(commits, ordinals, *place)
        if at < len(commits) and (commits[at], ordinals[at]) == place:
            failed[at] = failure
    old, new, known = _codes(rows, schema)
    starts = _starts(known, held, epoch, commits, ordinals)
    asides = []
    follow: set[int] = set()
    ops = rows.column("_op").to_numpy()
    for row in _concerned(old, new, ops, set(starts), set(failed)):
        if ops[row] == Op.TRUNCATE:
            starts = {code: start for code, start in starts.items() if start > row}
            follow.clear()
        own = [code for code in dict.fromkeys((int(old[row]), int(new[row]))) if code >= 0]
        held_now = any(code in follow or starts.get(code, row + 1) <= row for code in own)
        if row in failed or held_now:
            follow.update(own)
            asides.append(
                Aside(
                    place=(int(commits[row]), int(ordinals[row])),
                    kind="failed" if row in failed else "behind",
                    failure=failed.get(row),
                    row=row,
                    keys=tuple(known[code].as_py() for code in own),
                )
            )
    return asides


def keys_of(row: pa.Table, schema: TableSchema) -> tuple[bytes, ...]:
    """Return the old key and the new one of one change, each once; of a baseline's row its key."""
    keys = packed_keys(row, schema)
    return tuple(key for key in dict.fromkeys((keys.old[0].as_py(), keys.new[0].as_py())) if key)


def without(rows: pa.Table, places: Collection[Place]) -> pa.Table:
    """
    Return the rows but those at `places`.

    For a segment's rows and a result's alike: commit and ordinal are the second and the
    third column of both, and by name they may be a user's.
    """
    if not places or not rows.num_rows:
        return rows
    commits, ordinals = _positions(rows)
    likely = np.isin(commits, [commit for commit, _ in places])
    likely &= np.isin(ordinals, [ordinal for _, ordinal in places])
    wanted = frozenset(places)
    gone = [
        row
        for row in np.flatnonzero(likely).tolist()
        if (int(commits[row]), int(ordinals[row])) in wanted
    ]
    if not gone:
        return rows
    kept = np.ones(rows.num_rows, np.bool_)
    kept[gone] = False
    return rows.filter(pa.array(kept))


def beyond(rows: pa.Table, place: Place) -> pa.Table:
    """Return the rows after `place`; of a segment or of a result, as `without` does."""
    commits, ordinals = _positions(rows)
    commit, ordinal = place
    return rows.filter(pa.array((commits > commit) | ((commits == commit) & (ordinals > ordinal))))


# --- inside --------------------------------------------------------------------------------


def _positions(rows: pa.Table) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    commits, ordinals = rows.column(1).to_numpy(), rows.column(2).to_numpy()
    return commits, ordinals.astype(np.int64)


def _first_from(
    commits: npt.NDArray[np.int64], ordinals: npt.NDArray[np.int64], commit: int, ordinal: int
) -> int:
    """Return the first row at or after a position; their number where there is none."""
    first = int(np.searchsorted(commits, commit, "left"))
    end = int(np.searchsorted(commits, commit, "right"))
    return first + int(np.searchsorted(ordinals[first:end], ordinal, "left"))


def _codes(
    rows: pa.Table, schema: TableSchema
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], pa.Array]:
    """Return a small number for each old and new key, -1 for none, and the keys by number."""
    keys = packed_keys(rows, schema)
    encoded = pc.dictionary_encode(pa.chunked_array([keys.old, keys.new])).combine_chunks()
    codes = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
    return codes[: len(rows)], codes[len(rows) :], encoded.dictionary


def _starts(
    known: pa.Array,
    held: Mapping[bytes, Position],
    epoch: int,
    commits: npt.NDArray[np.int64],
    ordinals: npt.NDArray[np.int64],
) -> dict[int, int]:
    """Return for each held key of the batch the first row from which it is held."""
    starts = {}
    found = pc.index_in(pa.array(list(held), pa.binary()), value_set=known)
    for since, code in zip(held.values(), found.to_pylist(), strict=True):
        if code is None:
            continue
        if since.epoch < epoch:
            starts[code] = 0
        elif since.epoch == epoch:
            starts[code] = _first_from(commits, ordinals, since.commit, since.ordinal)
    return starts


def _concerned(
    old: npt.NDArray[np.int64],
    new: npt.NDArray[np.int64],
    ops: npt.NDArray[np.int8],
    held: set[int],
    failed: set[int],
) -> list[int]:
    """
    Return the rows that may have to be set aside, the truncates too, in order.

    Rows by the keys in question, the keys of those rows, and again until there are no more.
    """
    chosen = ops == Op.TRUNCATE
    chosen[list(failed)] = True
    wanted = np.zeros(int(max(old.max(), new.max())) + 2, np.bool_)
    wanted[list(held)] = True
    for _ in range(_ROUNDS):
        before = int(chosen.sum())
        wanted[old[chosen]] = True
        wanted[new[chosen]] = True
        wanted[-1] = False  # a key that is not there: -1 is the last one
        chosen |= wanted[old] | wanted[new]
        if int(chosen.sum()) == before:
            return np.flatnonzero(chosen).tolist()
    return list(range(len(ops)))
