"""
What of a batch is set aside, and kept as dead letters (R30).

A change that cannot be computed is set aside with every later one of its row: by the keys
of both images, so that a row that changes its key takes its letters along. Only the
driver looks, and only when something failed or is held: then it reads the segments
itself, which is also how both images get into the letter as the log has them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from headrace.changelog.change import Op
from headrace.changelog.entry import File
from headrace.changelog.log import LogReader
from headrace.changelog.position import Position
from headrace.changelog.schema import TableSchema
from headrace.changelog.window import Window
from headrace.errors import TooManyFailed
from headrace.pipeline.definition import DeadLetters, Pipeline
from headrace.pipeline.letter import NewLetter
from headrace.pipeline.letters import Letters
from headrace.pipeline.parking import keys_of, set_aside
from headrace.pipeline.result import Failure, Place

Held = Mapping[bytes, Position]


@dataclass(frozen=True, slots=True)
class Aside:
    """Changes that a batch is computed without, and the letters that keep them."""

    places: frozenset[Place] = frozenset()
    letters: tuple[NewLetter, ...] = ()


@dataclass(slots=True)
class Segments:
    """One table's files of a batch, read when they are asked for, once."""

    log: LogReader
    epoch: int
    files: Sequence[File]
    window: Window | None = None
    """Changes that the target has with its baseline do not count as being in here (R11)."""

    every_change: bool = False
    """Whether the target keeps what a truncate empties: what of it fails has its letter, too."""

    _read: list[tuple[TableSchema, pa.Table]] = field(default_factory=list)
    _known: set[Place] = field(default_factory=set)

    def read(self) -> list[tuple[TableSchema, pa.Table]]:
        """Return each file's schema and its changes, both images included."""
        if not self._read:
            self._read = [
                (self.log.schema(file.table, file.schema), self._new(self.log.rows(file)))
                for file in self.files
            ]
        return self._read

    def known(self) -> frozenset[Place]:
        """Return the changes that the target has with its baseline."""
        if self.window is not None:
            self.read()
        return frozenset(self._known)

    def _new(self, rows: pa.Table) -> pa.Table:
        if self.window is None:
            return rows
        held = self.window.held(rows)
        known = rows.filter(pa.array(held))
        places = zip(known["_commit"].to_pylist(), known["_ordinal"].to_pylist(), strict=True)
        self._known.update(places)
        return rows.filter(pa.array(~held))

    def truncated(self) -> Place | None:
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

    def upto(self, position: Position) -> frozenset[Place]:
        """Return the changes at or before `position`."""
        found: set[Place] = set()
        for _, rows in self.read():
            commits, ordinals = rows["_commit"].to_pylist(), rows["_ordinal"].to_pylist()
            for place in zip(commits, ordinals, strict=True):
                if Position(self.epoch, *place) > position:
                    return frozenset(found)
                found.add(place)
        return frozenset(found)


def set_aside_in(
    segments: Segments, held: Held, failures: Collection[Failure], lineage: str
) -> Aside:
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
    places: set[Place] = set()
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
    return Aside(frozenset(places), tuple(letters))


def _last_truncate(rows: pa.Table) -> Place | None:
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
