"""
Decides which changes of a batch are parked, that is, kept as dead letters (R30).

A change that cannot be computed becomes a dead letter, and so does every later change with the
same key: a later change of the same row, applied without the first, would leave a row that the
source never had. The keys of both images count. So if a change alters the key of a held row, both
keys are held from then on. A truncate ends every hold before it (R23d).

`changes_to_park` does no I/O: it takes the rows of a batch and returns a list of rows.
`parked_in` applies it to the segments of a batch. It runs only on the driver, and only if
something failed or is held. It then reads the segments itself, so both images get into the dead
letter exactly as the log has them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.changelog.change import Op
from headrace.changelog.entries import File
from headrace.changelog.history import BaselineWindow
from headrace.changelog.position import Position
from headrace.changelog.ranges import Span, inside
from headrace.changelog.reader import SegmentReader
from headrace.changelog.schema import TableSchema
from headrace.deadletters.keys import packed_keys
from headrace.deadletters.letter import Kind, NewDeadLetter
from headrace.deadletters.store import DeadLetterStore
from headrace.errors import TooManyFailed
from headrace.pipeline.definition import DeadLetters, Pipeline
from headrace.pipeline.result import Failure, RowReference

# --- changes to park among rows -------------------------------------------------------------------

_ROUNDS = 4
"""Rounds of key changes that are followed by whole columns; after that, row by row."""


@dataclass(frozen=True, slots=True)
class ParkedChange:
    """A change that the target does not get."""

    reference: RowReference
    kind: Kind
    failure: Failure | None
    """Why it failed; None for a change that is blocked by another."""

    row: int
    """The index of the row."""

    keys: tuple[bytes, ...]
    """Its old and its new key, once if they are equal; empty for a truncate."""


def changes_to_park(
    rows: pa.Table,
    schema: TableSchema,
    epoch: int,
    held: Mapping[bytes, Position],
    failures: Mapping[RowReference, Failure],
) -> list[ParkedChange]:
    """
    Return the changes to park, in their order.

    `rows` are changes of one table and schema, in the shape of a segment and in position
    order. A key in `held` is held from its position on: changes before it pass. Failures of
    rows that are not in `rows` are ignored. Raises `RowFailed` if the key of a change is not
    known, because then it is not known which key to hold.
    """
    if not rows.num_rows or not (held or failures):
        return []
    commits, ordinals = _positions(rows)
    failed = {}
    for reference, failure in failures.items():
        at = _first_from(commits, ordinals, *reference)
        if at < len(commits) and (commits[at], ordinals[at]) == reference:
            failed[at] = failure
    old, new, known = _codes(rows, schema)
    starts = _starts(known, held, epoch, commits, ordinals)
    parked = []
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
            parked.append(
                ParkedChange(
                    reference=(int(commits[row]), int(ordinals[row])),
                    kind="failed" if row in failed else "behind",
                    failure=failed.get(row),
                    row=row,
                    keys=tuple(known[code].as_py() for code in own),
                )
            )
    return parked


def keys_of(row: pa.Table, schema: TableSchema) -> tuple[bytes, ...]:
    """Return the old and the new key of a change, once if equal; for a baseline's row, its key."""
    keys = packed_keys(row, schema)
    return tuple(key for key in dict.fromkeys((keys.old[0].as_py(), keys.new[0].as_py())) if key)


def without(rows: pa.Table, references: Collection[RowReference]) -> pa.Table:
    """
    Return the rows without those at `references`.

    Works for rows of a segment and of a result: commit and ordinal are the second and the
    third column of both. They are not read by name, because a user's column may have it.
    """
    if not references or not rows.num_rows:
        return rows
    commits, ordinals = _positions(rows)
    likely = np.isin(commits, [commit for commit, _ in references])
    likely &= np.isin(ordinals, [ordinal for _, ordinal in references])
    wanted = frozenset(references)
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


def beyond(rows: pa.Table, reference: RowReference) -> pa.Table:
    """Return the rows after `reference`, of a segment or of a result like `without`."""
    commits, ordinals = _positions(rows)
    commit, ordinal = reference
    return rows.filter(pa.array((commits > commit) | ((commits == commit) & (ordinals > ordinal))))


# --- inside --------------------------------------------------------------------------------


def _positions(rows: pa.Table) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    commits, ordinals = rows.column(1).to_numpy(), rows.column(2).to_numpy()
    return commits, ordinals.astype(np.int64)


def _first_from(
    commits: npt.NDArray[np.int64], ordinals: npt.NDArray[np.int64], commit: int, ordinal: int
) -> int:
    """Return the index of the first row at or after a position, or the number of rows."""
    first = int(np.searchsorted(commits, commit, "left"))
    end = int(np.searchsorted(commits, commit, "right"))
    return first + int(np.searchsorted(ordinals[first:end], ordinal, "left"))


def _codes(
    rows: pa.Table, schema: TableSchema
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], pa.Array]:
    """Return a code for each old and new key (-1: no key), and the keys by their code."""
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
    """Return, for each held key in the batch, the first row from which it is held."""
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
    Return the rows that may have to be parked, and the truncates, in order.

    Finds the rows of the given keys, then the keys of those rows, and so on until nothing is
    added.
    """
    chosen = ops == Op.TRUNCATE
    chosen[list(failed)] = True
    wanted = np.zeros(int(max(old.max(), new.max())) + 2, np.bool_)
    wanted[list(held)] = True
    for _ in range(_ROUNDS):
        before = int(chosen.sum())
        wanted[old[chosen]] = True
        wanted[new[chosen]] = True
        wanted[-1] = False  # no key: the code -1 is the last index
        chosen |= wanted[old] | wanted[new]
        if int(chosen.sum()) == before:
            return np.flatnonzero(chosen).tolist()
    return list(range(len(ops)))


# --- changes to park in segments, and their dead letters ------------------------------------------

Held = Mapping[bytes, Position]


@dataclass(frozen=True, slots=True)
class HeldChanges:
    """Changes that are left out of a batch, and the dead letters that keep them."""

    references: frozenset[RowReference] = frozenset()
    dead_letters: tuple[NewDeadLetter, ...] = ()


@dataclass(slots=True)
class Segments:
    """The files of one table in a batch; read on first use, and only once."""

    log: SegmentReader
    epoch: int
    files: Sequence[File]
    window: BaselineWindow | None = None
    """Changes that the target already has with its baseline are not part of this (R11)."""

    every_change: bool = False
    """Whether the target keeps rows after a truncate; then failed ones get dead letters, too."""

    part: Span | None = None
    """Only changes in this part count as being in here; None for all of them."""

    _read: list[tuple[TableSchema, pa.Table]] = field(default_factory=list)
    _known: set[RowReference] = field(default_factory=set)

    def read(self) -> list[tuple[TableSchema, pa.Table]]:
        """Return the schema and the changes of each file, with both images."""
        if not self._read:
            self._read = [
                (self.log.schema(file.table, file.schema), self._new(self.log.rows(file)))
                for file in self.files
            ]
        return self._read

    def known(self) -> frozenset[RowReference]:
        """Return the changes that do not count: in the target's baseline, or outside the part."""
        if self.window is not None or self.part is not None:
            self.read()
        return frozenset(self._known)

    def _new(self, rows: pa.Table) -> pa.Table:
        if self.window is None and self.part is None:
            return rows
        held = np.zeros(rows.num_rows, np.bool_)
        if self.window is not None:
            held |= self.window.held(rows)
        if self.part is not None:
            held |= ~inside(rows, self.epoch, self.part)
        known = rows.filter(pa.array(held))
        references = zip(known["_commit"].to_pylist(), known["_ordinal"].to_pylist(), strict=True)
        self._known.update(references)
        return rows.filter(pa.array(~held))

    def truncated(self) -> RowReference | None:
        """Return the last truncate of the table in this batch (R23d)."""
        found = None
        if not any(file.truncates for file in self.files):
            return None
        for _, rows in self.read():
            found = _last_truncate(rows) or found
        return found

    def truncated_at(self) -> Position | None:
        """Return the position of the last truncate."""
        reference = self.truncated()
        return None if reference is None else Position(self.epoch, *reference)

    def upto(self, position: Position) -> frozenset[RowReference]:
        """Return the changes at or before `position`."""
        found: set[RowReference] = set()
        for _, rows in self.read():
            commits, ordinals = rows["_commit"].to_pylist(), rows["_ordinal"].to_pylist()
            for reference in zip(commits, ordinals, strict=True):
                if Position(self.epoch, *reference) > position:
                    return frozenset(found)
                found.add(reference)
        return frozenset(found)


def parked_in(
    segments: Segments, held: Held, failures: Collection[Failure], lineage: str
) -> HeldChanges:
    """Return the changes to park: failed ones, held ones, and later ones of the same keys."""
    keys = dict(held)
    failed = {failure.reference: failure for failure in failures}
    emptied = None if segments.every_change else segments.truncated()
    if emptied is not None:
        # The truncate removed all rows before it, and so ends their holds (R23d). A row of a
        # baseline is held from F on, which may be after the truncate.
        end = Position(segments.epoch, *emptied)
        keys = {key: since for key, since in keys.items() if since > end}
        failed = {
            reference: failure for reference, failure in failed.items() if reference > emptied
        }
    references: set[RowReference] = set()
    dead_letters = []
    for schema, rows in segments.read():
        found = changes_to_park(rows, schema, segments.epoch, keys, failed)
        last = _last_truncate(rows)
        if last is not None:
            end = Position(segments.epoch, *last)
            keys = {key: since for key, since in keys.items() if since > end}
        for one in found:
            if emptied is not None and one.reference <= emptied:
                continue
            position = Position(segments.epoch, *one.reference)
            for key in one.keys if last is None or one.reference > last else ():
                # A dead letter that was stored earlier may have a later position for this key.
                keys[key] = min(position, keys.get(key, position))
            references.add(one.reference)
            dead_letters.append(
                NewDeadLetter(
                    table=schema.table,
                    lineage=lineage,
                    position=position,
                    baseline=None,
                    kind=one.kind,
                    code=one.failure.code if one.failure else "",
                    facts=one.failure.facts if one.failure else {},
                    keys=one.keys,
                    schema=schema,
                    row=rows.slice(one.row, 1),
                )
            )
    return HeldChanges(frozenset(references), tuple(dead_letters))


def _last_truncate(rows: pa.Table) -> RowReference | None:
    found = np.flatnonzero(rows["_op"].to_numpy() == Op.TRUNCATE)
    if not len(found):
        return None
    at = int(found[-1])
    return rows["_commit"][at].as_py(), rows["_ordinal"][at].as_py()


def baseline_dead_letters(
    log: SegmentReader,
    files: Sequence[File],
    failures: Collection[Failure],
    number: int,
    first: Position,
) -> tuple[NewDeadLetter, ...]:
    """Return the dead letters of a baseline's rows: referenced by (file, row), position F."""
    dead_letters = []
    for failure in failures:
        file = files[failure.reference[0]]
        schema = log.schema(file.table, file.schema)
        row = log.rows(file).slice(failure.reference[1], 1)
        dead_letters.append(
            NewDeadLetter(
                table=file.table,
                lineage=log.lineage or "",
                position=first,
                baseline=number,
                kind="failed",
                code=failure.code,
                facts=failure.facts,
                keys=keys_of(row, schema),
                schema=schema,
                row=row,
            )
        )
    return tuple(dead_letters)


def keep(
    store: DeadLetterStore, new: Sequence[NewDeadLetter], pipeline: Pipeline, name: str
) -> int:
    """
    Store the dead letters durably; return how many are new.

    Raise if more keys would be held than allowed.
    """
    if not new:
        return 0
    limit = pipeline.on_error.max_keys if isinstance(pipeline.on_error, DeadLetters) else 0
    found = store.keys(with_new=new)
    if found > limit:
        raise TooManyFailed(
            f"Dead letters hold {found} rows; the limit is {limit}",
            pipeline=name,
            keys=found,
            limit=limit,
        )
    return store.add(new)
