"""
Corrections, as the model knows them: when one was made, and which changes it must consist of.

That a correction was made, and where, is read from the pipeline's journal. What is in it is not
believed: every change must be the source's own, as its dead letter had it, but for the values that
an edit was asked for. What it does to the target is for the model to say.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from headrace.changelog.change import Change, Op
from headrace.changelog.position import CHANGES_END, Position
from headrace.changelog.schema import TableName
from headrace.corrections.journal import Correction
from tests.simulation.database import Database, Violation
from tests.simulation.model import Beginning

MENDED = "mended"
"""What an edit puts in the place of a bad note."""

Identity = tuple[Position, int | None]


class Made(NamedTuple):
    """A correction of a pipeline."""

    pipeline: int
    table: TableName
    log: int
    life: int
    first: Position
    copy: int
    changes: tuple[Change, ...]
    keys: frozenset[object]
    settles: frozenset[tuple[Position, int | None, object]]
    """Position, baseline, and for a baseline's row its key."""

    number: int

    holds: Mapping[object, tuple[int, int]]
    """By key, the commit and ordinal of the first of its dead letters that it applied."""

    moved: bool = False
    """Whether it has what earlier ones did, for a table that is loaded from rows after them."""

    def has(self, at: Position) -> bool:
        """Whether one of its changes is there."""
        place = (self.first.epoch, self.first.commit)
        index = at.ordinal - self.first.ordinal
        return (at.epoch, at.commit) == place and 0 <= index < len(self.changes)

    def covered_by(self, began: Beginning, copy: int) -> bool:
        """Whether rows that were copied later replace it."""
        return copy > self.copy and began.commit >= self.first.commit


class Corrections:
    """All corrections that were made, and the edits that were asked for."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._made: dict[tuple[int, int], Made] = {}
        self.edits: set[tuple[int, TableName, Position]] = set()
        """Pipeline, table and position of every dead letter that somebody wanted edited."""

    def all(self) -> list[Made]:
        return list(self._made.values())

    def of(self, pipeline: int, table: TableName, began: Beginning, copy: int) -> list[Made]:
        """Return those that a table with this beginning has, in order."""
        return sorted(
            (
                made
                for made in self._made.values()
                if (made.pipeline, made.table, made.life) == (pipeline, table, began.life)
                and made.first.epoch == began.epoch
                and (
                    made.first.commit == began.commit
                    if made.moved
                    else made.first.commit >= began.commit
                )
                and not made.covered_by(began, copy)
            ),
            key=lambda made: made.first,
        )

    def note(
        self,
        pipeline: int,
        correction: Correction,
        log: int,
        life: int,
        baselines: Mapping[tuple[int, TableName, int], Beginning],
    ) -> bool:
        """Take a correction of a journal; False if it is known already."""
        identity = (pipeline, correction.number)
        if identity in self._made:
            return False
        changes = [
            _change(row, correction.table)
            for part in correction.changes()
            for row in part.rows.to_pylist()
        ]
        if correction.record.kind == "move":
            self._check_moved(pipeline, correction, life, changes)
        settles = []
        wanted: list[Change] = []
        holds: dict[object, tuple[int, int]] = {}
        for letter in correction.record.settles:
            at = Position.parse(letter.position)
            found = self._origin(pipeline, correction.table, log, life, at, letter, baselines)
            wanted.append(found)
            side = found.after or found.before or {}
            begins = (at.commit, min(at.ordinal, CHANGES_END) if letter.baseline else at.ordinal)
            for each in (found.before, found.after):
                if each is not None:
                    holds[each["id"]] = min(begins, holds.get(each["id"], begins))
            settles.append((at, letter.baseline, side["id"] if letter.baseline else None))
        edited = correction.record.kind == "edit"
        moved = correction.record.kind == "move"
        sources = () if moved else zip(changes, wanted, settles, strict=True)
        for has, must, (at, _, _) in sources:
            same = (has.op, has.before, has.after) == (must.op, must.before, must.after)
            mended = must.after is not None and {**must.after, "note": MENDED} == has.after
            asked = edited and (pipeline, correction.table, at) in self.edits
            if not same and not (mended and asked and has.op == must.op):
                raise Violation(f"p{pipeline} has a correction with {has} for {must}")
        keys = {
            side["id"]
            for change in changes
            for side in (change.before, change.after)
            if side is not None
        }
        self._made[identity] = Made(
            pipeline,
            correction.table,
            log,
            life,
            correction.first,
            correction.record.copy,
            tuple(changes),
            frozenset(keys),
            frozenset(settles),
            correction.number,
            holds,
            moved,
        )
        return True

    def lost(self, pipeline: int, table: TableName, began: Beginning, copy: int) -> list[str]:
        """Return which rows a table that began with folded rows lacks: corrected before, as is."""
        mine = self.of(pipeline, table, began, copy)
        moved = {key for made in mine if made.first.commit == began.commit for key in made.keys}
        return [
            f"{made.first} decides about {key}"
            for made in self._made.values()
            if began.folded
            and (made.pipeline, made.table, made.life) == (pipeline, table, began.life)
            and made.log == began.log
            and made.first.epoch == began.epoch
            and made.first.commit < began.commit
            and not made.covered_by(began, copy)
            for key in made.keys - moved
            if self._decider(pipeline, table, made.life, key, began.commit) is made
        ]

    def _decider(
        self, pipeline: int, table: TableName, life: int, key: object, commit: int
    ) -> Made | None:
        """Return the correction that decides about a row as of a commit of the source."""
        found = max(
            (
                made
                for made in self._made.values()
                if (made.pipeline, made.table, made.life) == (pipeline, table, life)
                and made.first.commit < commit
                and key in made.keys
            ),
            key=lambda made: made.first,
            default=None,
        )
        if found is None:
            return None
        for number in range(found.first.commit + 1, commit + 1):
            for name, change in self._database.truth[life][number]:
                sides = [side["id"] for side in (change.before, change.after) if side is not None]
                if name == table and (change.op == Op.TRUNCATE or key in sides):
                    return None
        return found

    def _check_moved(
        self, pipeline: int, correction: Correction, life: int, changes: Sequence[Change]
    ) -> None:
        """Check that a correction has exactly what earlier ones did to its rows."""
        has = _rows_after(changes)
        for key, row in has.items():
            at = correction.first.commit
            made = self._decider(pipeline, correction.table, life, key, at)
            if made is None or _rows_after(made.changes)[key] != row:
                raise Violation(f"p{pipeline} has moved {row} of {key} to {at}, from {made}")

    def _origin(
        self,
        pipeline: int,
        table: TableName,
        log: int,
        life: int,
        at: Position,
        letter: Any,
        baselines: Mapping[tuple[int, TableName, int], Beginning],
    ) -> Change:
        """Return the change of a dead letter, as the source, or an earlier correction, has it."""
        if letter.baseline is not None:
            logs = range(log, -1, -1)  # it may be of a log that was lost
            known = (baselines.get((each, table, letter.baseline)) for each in logs)
            began = next(each for each in known if each is not None)
            (row,) = (row for row in began.rows if _packed(row["id"]) in letter.keys)
            return Change(Op.INSERT, at.commit, at.ordinal, 0, None, row)
        if at.ordinal > CHANGES_END:
            for made in self._made.values():
                index = at.ordinal - made.first.ordinal
                if (made.pipeline, made.table, made.life) == (pipeline, table, life) and (
                    (made.first.epoch, made.first.commit) == (at.epoch, at.commit)
                    and 0 <= index < len(made.changes)
                ):
                    return made.changes[index]
            raise Violation(f"p{pipeline} settles a dead letter at {at}, where nothing was")
        for name, change in self._database.truth[life][at.commit]:
            if name == table and change.ordinal == at.ordinal:
                return change
        raise Violation(f"p{pipeline} settles a dead letter at {at}, which the source never sent")


def _rows_after(changes: Sequence[Change]) -> dict[object, Mapping[str, object] | None]:
    """Return, for each key of these changes, the row that they leave."""
    rows: dict[object, Mapping[str, object] | None] = {}
    for change in changes:
        if change.before is not None:
            rows[change.before["id"]] = None
        if change.after is not None:
            rows[change.after["id"]] = change.after
    return rows


def _change(row: Mapping[str, Any], table: TableName) -> Change:
    del table
    return Change(Op(row["_op"]), row["_commit"], row["_ordinal"], 0, row["before"], row["after"])


def _packed(key: int) -> bytes:
    return b"\x01" + key.to_bytes(8, "little", signed=True)


def connected(letters: Sequence[Any], keys: frozenset[object]) -> list[Any]:
    """Return the dead letters that have one of these keys."""
    return [
        each
        for each in letters
        if any(dict(side)["id"] in keys for side in (each.before, each.after) if side is not None)
    ]
