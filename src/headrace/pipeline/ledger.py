"""
What the files of a pipeline's letters amount to: which letters there are, and what they hold.

A letter that failed holds its keys. One that is behind holds its own as long as it is behind
something: a reload covers what failed up to its beginning (F), and then the letters behind
that are not behind anything any more, although their positions may be later. They came to be
while the table was loaded, on account of the old one; the new one has their changes.

Asked once a batch, so the usual answer is kept by keys, of which there are few, and not by
letters: a row that changes a thousand times a second has a thousand letters a second behind
its first.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass
from typing import TypeAlias

from headrace.changelog.position import ORIGIN, Position
from headrace.pipeline.letter import Kind, NewLetter
from headrace.pipeline.letter_file import Cleared, Record, Stored

Identity: TypeAlias = tuple[str, str, str, int, bytes]
"""
Table, lineage, position; for a baseline's row also the baseline's number and the key.

The table, because one truncate has the same position in all its tables (R23d).
"""

Held: TypeAlias = dict[bytes, Position]


@dataclass(slots=True)
class Known:
    """What is remembered of a letter; its row stays on disk."""

    number: int
    index: int
    """The newest file that holds it, and its place there."""

    table: str
    position: Position
    baseline: int | None
    kind: Kind
    keys: tuple[bytes, ...]
    superseded: str | None = None


class Ledger:
    """The letters of one pipeline, as its files tell of them, in order."""

    def __init__(self) -> None:
        self._known: dict[Identity, Known] = {}
        self._held: dict[str, Held] = defaultdict(dict)

    def take(self, record: Record) -> None:
        """Add what the next file says."""
        if isinstance(record, Cleared):
            for known in self.concerned(record):
                known.superseded = record.reason
            self._held[record.table] = _held(self._of(record.table))
            return
        for index, letter in enumerate(record.letters):
            known = Known(
                number=record.number,
                index=index,
                table=letter.table,
                position=Position.parse(letter.position),
                baseline=letter.baseline,
                kind=letter.kind,
                keys=letter.keys,
            )
            self._known[identity(letter)] = known
            _hold(self._held[letter.table], known)

    def wants(self, letter: NewLetter) -> bool:
        """
        Whether a letter says something new.

        One that was superseded and comes again counts again: whoever adds it has not given
        its change to the target. So does one that was behind another and now failed itself:
        it holds its keys on its own account.
        """
        known = self._known.get(identity(letter))
        if known is None or known.superseded is not None:
            return True
        return letter.kind == "failed" and known.kind == "behind"

    def concerned(self, cleared: Cleared) -> list[Known]:
        """Return the letters that this supersedes, those that are then behind nothing too."""
        upto = Position.parse(cleared.upto)
        gone: list[Known] = []
        stay: list[Known] = []
        for known in self._of(cleared.table):
            kept = known.baseline is not None and (
                (known.baseline, known.position) == (cleared.keep_baseline, upto)
            )
            covered = known.position <= upto and not kept
            (gone if covered else stay).append(known)
        if gone:
            counting = {id(known) for known in _counting(stay, ORIGIN, None)}
            gone += [known for known in stay if id(known) not in counting]
        return gone

    def foreign(self, table: str, epoch: int, lineage: str) -> bool:
        """Whether a letter speaks of a history that a log in this epoch does not have."""
        return any(
            name == table
            and known.superseded is None
            and (
                known.position.epoch > epoch or (known.position.epoch == epoch and named != lineage)
            )
            for (name, named, *_), known in self._known.items()
        )

    def held(
        self, table: str, since: Position, baseline: int | None, newest: int | None = None
    ) -> Held:
        """Return the held keys of a table that was loaded from `baseline`, and since when."""
        if since == ORIGIN and baseline is None and newest is None:
            return dict(self._held.get(table, {}))
        letters = self._of(table)
        if newest is not None:
            letters = [each for each in letters if (each.baseline or 0) <= newest]
        return _held(_counting(letters, since, baseline))

    def emptied(self, letter: NewLetter) -> bool:
        """Whether a truncate made this letter history."""
        known = self._known.get(identity(letter))
        return known is not None and known.superseded == "truncate"

    def key_count(self, others: Set[tuple[str, bytes]]) -> int:
        """Return how many keys are held, each with its table; `others` counted in."""
        new = sum(key not in self._held.get(table, {}) for table, key in others)
        return new + sum(map(len, self._held.values()))

    def chosen(self, table: str | None, *, superseded: bool) -> list[Known]:
        """Return the letters of a table or of all, in any order."""
        return [
            known
            for known in self._known.values()
            if table in (None, known.table) and (superseded or known.superseded is None)
        ]

    def _of(self, table: str) -> list[Known]:
        return self.chosen(table, superseded=False)


def identity(letter: NewLetter | Stored) -> Identity:
    """Return what makes two letters one."""
    position = str(letter.position)
    if letter.baseline is None:
        return letter.table, letter.lineage, position, 0, b""
    return letter.table, letter.lineage, position, letter.baseline, b"".join(letter.keys)


def _counting(letters: Iterable[Known], since: Position, baseline: int | None) -> Iterator[Known]:
    """Yield the letters that count for a table that was loaded from `baseline` at `since`."""
    held: set[bytes] = set()
    # Rows of a baseline come before the changes on top of them.
    for known in sorted(letters, key=lambda each: (each.position, each.baseline is None)):
        if known.baseline is not None:
            # With F: a log that was made anew counts its baselines from 1 again.
            counts = baseline is None or (known.baseline, known.position) == (baseline, since)
        else:
            failed = known.kind == "failed"
            counts = known.position > since and (failed or not held.isdisjoint(known.keys))
        if counts:
            held.update(known.keys)
            yield known


def _held(letters: Iterable[Known]) -> Held:
    held: Held = {}
    for known in letters:
        _hold(held, known)
    return held


def _hold(held: Held, known: Known) -> None:
    for key in known.keys:
        held[key] = min(known.position, held.get(key, known.position))
