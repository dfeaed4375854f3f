"""
What a target must hold, and which letters there must be: the source's history replayed.

Plain dictionaries, one change after another, from the baseline that the target shows. It
knows nothing of batches, of files or of positions that are held; only R30: a change that
cannot be computed is a letter, and so is every later one of its keys.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace.changelog.change import Change, Op
from headrace.changelog.position import MAX_ORDINAL, ORIGIN, Position
from headrace.changelog.schema import TableName
from tests.simulation.database import Database
from tests.simulation.plan import Flow

if TYPE_CHECKING:
    from tests.simulation.corrections import Made

Row = Mapping[str, Any]


class Letter(NamedTuple):
    """A change that the target is not given, or a baseline's row."""

    commit: int
    ordinal: int
    baseline: int | None
    op: str
    key: object
    before: tuple[tuple[str, object], ...] | None
    after: tuple[tuple[str, object], ...] | None


@dataclass(frozen=True, slots=True)
class Beginning:
    """What a table at a target began with: a baseline, or nothing."""

    log: int
    """How many logs were lost before."""

    epoch: int
    life: int
    commit: int
    """F: the changes that follow are applied on top."""

    ordinal: int
    baseline: int
    """Its number, 0 for none."""

    rows: tuple[Row, ...] = field(compare=False)
    last: int = field(default=0, compare=False)
    """H: the commit at which its rows are exact."""

    folded: bool = field(default=False, compare=False)
    """Whether it was folded from another one, and changes."""


@dataclass(slots=True)
class Replay:
    """A table of a pipeline from its beginning on; goes forward only."""

    flow: Flow
    table: TableName
    began: Beginning
    database: Database
    made: Callable[[], Sequence[Made]] = lambda: ()
    """The corrections of this table, in order."""

    upto: int = 0
    corrected: Position = ORIGIN
    """The last correction that was applied."""

    rows: dict[object, Row] = field(default_factory=dict)
    """Of the source, as far as they were given to the target."""

    letters: list[Letter] = field(default_factory=list)
    ever: set[Letter] = field(default_factory=set)
    """Also those that a truncate made history."""

    truncated: int = 0
    """The commit of the last truncate."""

    corrected_keys: set[object] = field(default_factory=set)
    """Keys whose rows are as a correction left them, which may be other than the source's."""

    left: list[str] = field(default_factory=list)
    """Letters of its rows that a correction did not apply, which would be a mistake."""

    held: set[object] = field(default_factory=set)
    failed: set[Letter] = field(default_factory=set)
    doubtful: set[object] = field(default_factory=set)
    """
    Keys held since before H. The copy may have met such a row as it was after the change that
    failed: then that is shown, or what was before, and nobody can tell which.
    """

    def __post_init__(self) -> None:
        self.upto = self.began.commit
        for row in self.began.rows:
            key = row["id"]
            if self.flow.breaks_on(row):
                began = self.began
                letter = Letter(
                    began.commit, began.ordinal, began.baseline, "baseline", key, None, image(row)
                )
                self.held.add(key)
                self.failed.add(letter)
                self._note(letter)
            else:
                self.rows[key] = row

    def go(self, commit: int, ordinal: int = MAX_ORDINAL) -> Replay:
        """Apply every change up to a commit, and the corrections up to an ordinal after it."""
        truth = self.database.truth[self.began.life]
        while self.upto < commit:
            self._correct(MAX_ORDINAL)
            self.upto += 1
            for table, change in truth[self.upto]:
                if table == self.table:
                    self._apply(change)
        self._correct(ordinal)
        return self

    def _correct(self, ordinal: int) -> None:
        """Apply the corrections after the commit that was reached, up to an ordinal."""
        for each in self.made():
            first = each.first
            if first.commit != self.upto or first.ordinal > ordinal or first <= self.corrected:
                continue
            self.corrected = first
            self._settle(each)

    def _settle(self, made: Made) -> None:
        """Apply a correction: the letters of its rows are no more."""
        mine = [each for each in self.letters if not _keys(each).isdisjoint(made.keys)]
        settled = {(position, baseline, key) for position, baseline, key in made.settles}
        for each in mine:
            at = Position(made.first.epoch, each.commit, each.ordinal)
            key = each.key if each.baseline is not None else None
            # Where a change is in a baseline that was loaded instead, its row fails: in a folded
            # one, or in a newer copy that was in the log already, and that does not cover it.
            others = self.began.folded or self.began.baseline not in {b for _, b, _ in settled}
            elsewhere = each.baseline is not None and others
            # And where a correction was moved, its change may fail there.
            elsewhere |= any(other.moved and other.has(at) for other in self.made())
            if (at, each.baseline, key) not in settled and not elsewhere:
                self.left.append(f"{made.first} leaves {each}")
            self.letters.remove(each)
        self.held -= made.keys
        self.doubtful -= made.keys
        for change in made.changes:
            self._apply(change)
        self.corrected_keys |= made.keys - self.held

    def shown(self, upto: int = 0) -> dict[object, dict[str, object]]:
        """Return what readers must see, as of a watermark."""
        return self.flow.expected(self.rows, upto)

    def agrees(self, found: Mapping[object, object], upto: int = 0) -> bool:
        """Whether that is what readers must see; of doubtful rows either will do."""
        wanted = self.shown(upto)
        keys = (found.keys() | wanted.keys()) - self.doubtful
        return all(found.get(key) == wanted.get(key) for key in keys)

    def _apply(self, change: Change) -> None:
        if change.op == Op.TRUNCATE:
            self.rows.clear()
            self.held.clear()
            self.doubtful.clear()
            self.corrected_keys.clear()
            self.letters.clear()
            self.truncated = self.upto
            return
        keys = {side["id"] for side in (change.before, change.after) if side is not None}
        breaks = change.after is not None and self.flow.breaks_on(change.after)
        if breaks or not keys.isdisjoint(self.held):
            self.held |= keys
            if self.upto <= self.began.last:
                self.doubtful |= keys
            key = (change.after or change.before or {})["id"]
            letter = Letter(
                change.commit,
                change.ordinal,
                None,
                change.op.name.lower(),
                key,
                image(change.before),
                image(change.after),
            )
            if breaks:
                self.failed.add(letter)
            self._note(letter)
            return
        if self._is_corrected(change, keys):
            return
        self.corrected_keys -= keys
        if change.before is not None:
            self.rows.pop(change.before["id"], None)
        if change.after is not None:
            self.rows[change.after["id"]] = change.after

    def _is_corrected(self, change: Change, keys: set[object]) -> bool:
        """Whether a row was held here, by what a later correction has applied since."""
        at = (change.commit, change.ordinal)
        return any(
            (made.first.commit, made.first.ordinal) > at and made.holds.get(key, at) < at
            for made in self.made()
            for key in keys & made.holds.keys()
        )

    def _note(self, letter: Letter) -> None:
        self.letters.append(letter)
        self.ever.add(letter)


class Replays:
    """Replays of one pipeline's tables, kept to go on with."""

    def __init__(
        self, database: Database, made: Callable[[int, TableName, Beginning], Sequence[Made]]
    ) -> None:
        self._database = database
        self._made = made
        self._kept: dict[tuple[int, TableName, Beginning], Replay] = {}

    def at(
        self,
        number: int,
        flow: Flow,
        table: TableName,
        began: Beginning,
        commit: int,
        ordinal: int = MAX_ORDINAL,
    ) -> Replay:
        """Return a pipeline's table as it must be after a commit and its corrections."""
        kept = self._kept.get((number, table, began))
        if kept is None or kept.upto > commit or self._beyond(kept, commit, ordinal):
            kept = self.new(number, flow, table, began)
            self._kept[number, table, began] = kept
        return kept.go(commit, ordinal)

    def new(self, number: int, flow: Flow, table: TableName, began: Beginning) -> Replay:
        """Return a table of a pipeline at its beginning."""
        made = partial(self._made, number, table, began)
        return Replay(flow, table, began, self._database, made)

    @staticmethod
    def _beyond(kept: Replay, commit: int, ordinal: int) -> bool:
        """Whether a replay has gone on without a correction that it must have, or beyond."""
        known = kept.made()
        last = max((each.first for each in known if each.first <= kept.corrected), default=None)
        if kept.corrected.commit and last != kept.corrected:
            return True  # it was of a table that was copied again since
        late = any(kept.corrected < each.first and each.first.commit < kept.upto for each in known)
        return late or (kept.corrected.commit == commit and kept.corrected.ordinal > ordinal)

    def of(self, number: int, table: TableName) -> list[Replay]:
        """Return every beginning that a table was looked at from."""
        return [
            replay
            for (pipeline, name, _), replay in self._kept.items()
            if (pipeline, name) == (number, table)
        ]


Begin = Callable[[TableName, int], Beginning]
"""Tells what a baseline of a table holds."""


def _keys(letter: Letter) -> set[object]:
    sides = (letter.before, letter.after)
    return {letter.key} | {dict(side)["id"] for side in sides if side is not None}


def image(row: Row | None) -> tuple[tuple[str, object], ...] | None:
    """Return an image that compares by value."""
    return None if row is None else tuple(sorted(row.items()))
