"""
The selection of the changes of a batch that are parked, and kept as dead letters (R30).

A change that cannot be computed is a letter, and so is everything that follows it by key: a
later change of the same row, applied without the first, would leave a row that the source
never had. The keys of both images count, so that a row that changes its key takes its letters
along: from there on both keys are held. A truncate ends every hold before it (R23d).

`set_aside` neither reads nor writes; a batch of rows goes in, and a list of rows comes out.
`set_aside_in` is that over a batch's segments. Only the driver looks, and only when something
failed or is held: then it reads the segments itself, which is also how both images get into the
letter as the log has them.
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
from headrace.changelog.reader import LogReader
from headrace.changelog.schema import TableSchema
from headrace.deadletters.keys import packed_keys
from headrace.deadletters.letter import Kind, NewLetter
from headrace.deadletters.store import Letters
from headrace.errors import TooManyFailed
from headrace.pipeline.definition import DeadLetters, Pipeline
from headrace.pipeline.result import Failure, RowReference

# --- changes to park among rows -------------------------------------------------------------------

_ROUNDS = 4
"""Key changes followed by whole columns before each row is looked at instead."""


@dataclass(frozen=True, slots=True)
class ParkedChange:
    """A change that the target is not given."""

    place: RowReference
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
    failures: Mapping[RowReference, Failure],
) -> list[ParkedChange]:
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
                ParkedChange(
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


def without(rows: pa.Table, places: Collection[RowReference]) -> pa.Table:
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


def beyond(rows: pa.Table, place: RowReference) -> pa.Table:
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


# --- changes to park in segments, and their letters -----------------------------------------------

Held = Mapping[bytes, Position]


@dataclass(frozen=True, slots=True)
class HeldChanges:
    """Changes that a batch is computed without, and the letters that keep them."""

    places: frozenset[RowReference] = frozenset()
    letters: tuple[NewLetter, ...] = ()


@dataclass(slots=True)
class Segments:
    """One table's files of a batch, read when they are asked for, once."""

    log: LogReader
    epoch: int
    files: Sequence[File]
    window: BaselineWindow | None = None
    """Changes that the target has with its baseline do not count as being in here (R11)."""

    every_change: bool = False
    """Whether the target keeps what a truncate empties: what of it fails has its letter, too."""

    part: Span | None = None
    """Only changes in this part count as being in here; None for all of them."""

    _read: list[tuple[TableSchema, pa.Table]] = field(default_factory=list)
    _known: set[RowReference] = field(default_factory=set)

    def read(self) -> list[tuple[TableSchema, pa.Table]]:
        """Return each file's schema and its changes, both images included."""
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
        places = zip(known["_commit"].to_pylist(), known["_ordinal"].to_pylist(), strict=True)
        self._known.update(places)
        return rows.filter(pa.array(~held))

    def truncated(self) -> RowReference | None:
        """Return where the table was last emptied in this batch (R23d)."""
        found = None
        if not any(file.truncates for file in self.files):
            return None
        for _, rows in self.read():
            found = _last_truncate(rows) or found
        return found

    def truncated_at(self) -> Position | None:
        """Return the same as a position."""
        place = self.truncated()
        return None if place is None else Position(self.epoch, *place)

    def upto(self, position: Position) -> frozenset[RowReference]:
        """Return the changes at or before `position`."""
        found: set[RowReference] = set()
        for _, rows in self.read():
            commits, ordinals = rows["_commit"].to_pylist(), rows["_ordinal"].to_pylist()
            for place in zip(commits, ordinals, strict=True):
                if Position(self.epoch, *place) > position:
                    return frozenset(found)
                found.add(place)
        return frozenset(found)


def set_aside_in(
    segments: Segments, held: Held, failures: Collection[Failure], lineage: str
) -> HeldChanges:
    """Return what must be set aside: what failed, what is held, and what follows either."""
    keys = dict(held)
    failed = {failure.place: failure for failure in failures}
    emptied = None if segments.every_change else segments.truncated()
    if emptied is not None:
        # All rows up to there are gone, and with them what was held (R23d). A row of a baseline
        # is held from F on, which may lie behind it.
        end = Position(segments.epoch, *emptied)
        keys = {key: since for key, since in keys.items() if since > end}
        failed = {place: failure for place, failure in failed.items() if place > emptied}
    places: set[RowReference] = set()
    letters = []
    for schema, rows in segments.read():
        found = set_aside(rows, schema, segments.epoch, keys, failed)
        last = _last_truncate(rows)
        if last is not None:
            end = Position(segments.epoch, *last)
            keys = {key: since for key, since in keys.items() if since > end}
        for one in found:
            if emptied is not None and one.place <= emptied:
                continue
            position = Position(segments.epoch, *one.place)
            for key in one.keys if last is None or one.place > last else ():
                # A letter that was stored before may be a later one of this key.
                keys[key] = min(position, keys.get(key, position))
            places.add(one.place)
            letters.append(
                NewLetter(
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
    return HeldChanges(frozenset(places), tuple(letters))


def _last_truncate(rows: pa.Table) -> RowReference | None:
    found = np.flatnonzero(rows["_op"].to_numpy() == Op.TRUNCATE)
    if not len(found):
        return None
    at = int(found[-1])
    return rows["_commit"][at].as_py(), rows["_ordinal"][at].as_py()


def baseline_letters(
    log: LogReader,
    files: Sequence[File],
    failures: Collection[Failure],
    number: int,
    first: Position,
) -> tuple[NewLetter, ...]:
    """Return the letters of a baseline's rows; their places are (file, row), their position F."""
    letters = []
    for failure in failures:
        file = files[failure.place[0]]
        schema = log.schema(file.table, file.schema)
        row = log.rows(file).slice(failure.place[1], 1)
        letters.append(
            NewLetter(
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
    return tuple(letters)


def keep(letters: Letters, new: Sequence[NewLetter], pipeline: Pipeline, name: str) -> None:
    """Make the letters durable, unless they would hold more keys than is allowed."""
    if not new:
        return
    limit = pipeline.on_error.max_keys if isinstance(pipeline.on_error, DeadLetters) else 0
    found = letters.keys(with_new=new)
    if found > limit:
        raise TooManyFailed(
            f"{found} rows are held by dead letters, and {limit} are allowed",
            pipeline=name,
            keys=found,
            limit=limit,
        )
    letters.add(new)
