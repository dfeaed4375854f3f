"""
The ledger of a pipeline's dead letters: which there are, which keys they hold, and what ended.

It is the content of all files of a store, without rows, from their records in order. A `failed` one
holds its keys. A `behind` one holds its keys as long as another one blocks it, or until it is
resolved itself. A reload covers everything that failed up to its beginning (F). Then the dead
letters that these blocked are free, even if their positions are later: they were written for the
old table while the new one was loaded, and the new one has their changes.

A purge gives changes up that no target has: it releases their keys, although the rows are not those
of the source. So the ledger also keeps which rows these are (`purged_keys`), until a reload or a
truncate of the table makes them right, or the same change becomes a dead letter again.

It is queried once a batch. So the usual answer is cached by key, not by dead letter: there are few
held keys, but a row that changes a thousand times a second adds a thousand dead letters a second.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from datetime import datetime
from typing import TypeAlias

from headrace.changelog.position import ORIGIN, Position, before_corrections
from headrace.deadletters.letter import (
    ClearedDeadLetters,
    CompactedDeadLetters,
    DeadLetter,
    DeadLetterCheckpoint,
    DeadLetterReference,
    EndedDeadLetter,
    Kind,
    Located,
    NewDeadLetter,
    Page,
    Record,
    ResolvedDeadLetters,
    StoredDeadLetter,
)

Identity: TypeAlias = tuple[str, str, str, int, bytes]
"""
Table, lineage, position; for a row of a baseline also the baseline's number and the key.

The table is part of it because a truncate of several tables has one position (R23d).
"""

Held: TypeAlias = dict[bytes, Position]


@dataclass(slots=True)
class DeadLetterSummary:
    """A dead letter as kept in memory; its row stays on disk."""

    number: int
    index: int
    """The newest file that contains it, and its index there."""

    table: str
    lineage: str
    position: Position
    baseline: int | None
    kind: Kind
    code: str
    keys: tuple[bytes, ...]
    parked: int
    """In microseconds since 1970."""

    ended: EndedDeadLetter | None = None

    @property
    def superseded(self) -> str | None:
        """What ended it; None while it holds its keys."""
        return self.ended.reason if self.ended else None

    @property
    def located(self) -> Located:
        """Where its row is."""
        return Located(self.number, self.index, self.position, self.ended)

    @property
    def reference(self) -> DeadLetterReference:
        """What a record refers to it by."""
        position = str(self.position)
        return DeadLetterReference(self.table, self.lineage, position, self.baseline, self.keys)


@dataclass(frozen=True, slots=True)
class Count:
    """How many dead letters a table has, by kind and code."""

    table: str
    kind: Kind
    code: str
    """Empty for those that are blocked by another."""

    count: int


@dataclass(frozen=True, slots=True)
class Selection:
    """Which dead letters are meant, of those that have not ended: all conditions hold."""

    table: str | None = None
    code: str | None = None
    before: Position | datetime | None = None
    """Of changes before a position, or parked before a time."""

    position: Position | None = None
    keys: Set[bytes] | None = None
    """Of rows with one of these keys: rows of one copy have the same position."""

    def names(self, known: DeadLetterSummary) -> bool:
        """Return whether a dead letter is meant itself, and not only because it waits."""
        match self.before:
            case Position():
                early = known.position < self.before
            case datetime():
                early = known.parked < self.before.timestamp() * 1_000_000
            case None:
                early = True
        return (
            early
            and self.table in (None, known.table)
            and self.code in (None, known.code)
            and self.position in (None, known.position)
            and (self.keys is None or not self.keys.isdisjoint(known.keys))
        )


@dataclass(frozen=True, slots=True)
class Purged:
    """What a purge ends, or would end, of one table."""

    table: str
    dead_letters: int
    keys: int
    """The keys of these dead letters: rows that may differ from the source's afterwards."""


class Ledger:
    """The dead letters of one pipeline, from its files in order."""

    def __init__(self) -> None:
        self._known: dict[Identity, DeadLetterSummary] = {}
        self._held: dict[str, Held] = defaultdict(dict)
        self._purged: dict[Identity, DeadLetterReference] = {}

    def take(self, record: Record) -> None:
        """Add the record of the next file."""
        match record:
            case ClearedDeadLetters():
                self._clear(record)
            case ResolvedDeadLetters():
                self._resolve(record)
            case CompactedDeadLetters():
                self._add(record, record.ended)
                self._purged = {identity(each): each for each in record.purged}
            case Page():
                self._add(record, [None] * len(record.dead_letters))
            case DeadLetterCheckpoint():
                raise AssertionError("a checkpoint is not a part of the history")

    def _add(
        self, record: Page | CompactedDeadLetters, ended: Sequence[EndedDeadLetter | None]
    ) -> None:
        for index, (dead_letter, how) in enumerate(zip(record.dead_letters, ended, strict=True)):
            known = DeadLetterSummary(
                number=record.number,
                index=index,
                table=dead_letter.table,
                lineage=dead_letter.lineage,
                position=Position.parse(dead_letter.position),
                baseline=dead_letter.baseline,
                kind=dead_letter.kind,
                code=dead_letter.code,
                keys=dead_letter.keys,
                parked=dead_letter.parked,
                ended=how,
            )
            self._known[identity(dead_letter)] = known
            if how is None:
                self._purged.pop(identity(dead_letter), None)
                _hold(self._held[dead_letter.table], known)

    def _clear(self, cleared: ClearedDeadLetters) -> None:
        for known in self.concerned(cleared):
            known.ended = EndedDeadLetter(cleared.reason, "", cleared.at)
        self._held[cleared.table] = _held(self._of(cleared.table))
        for each in self.corrected(cleared):
            del self._purged[identity(each)]

    def _resolve(self, resolved: ResolvedDeadLetters) -> None:
        for entry in resolved.entries:
            known = self._known.get(identity(entry))
            if known is not None and known.ended is None:
                known.ended = EndedDeadLetter(resolved.reason, resolved.note, resolved.at)
                if resolved.reason == "purged":
                    self._purged[identity(entry)] = entry
        for table in {entry.table for entry in resolved.entries}:
            self._held[table] = _held(self._of(table))

    def wants(self, dead_letter: NewDeadLetter) -> bool:
        """
        Return whether a dead letter must be stored.

        A superseded one that is added again must be: its change did not reach the target. So
        must one that was blocked by another and now failed itself: from then on it holds its
        keys independently.
        """
        known = self._known.get(identity(dead_letter))
        if known is None or known.ended is not None:
            return True
        return dead_letter.kind == "failed" and known.kind == "behind"

    def concerned(self, cleared: ClearedDeadLetters) -> list[DeadLetterSummary]:
        """Return the dead letters that this supersedes, and those that nothing then blocks."""
        upto = Position.parse(cleared.upto)
        gone: list[DeadLetterSummary] = []
        stay: list[DeadLetterSummary] = []
        for known in self._of(cleared.table):
            covered = _covers(cleared, upto, known.position, known.baseline)
            (gone if covered else stay).append(known)
        # After a reload also if it covers nothing itself: what blocked them may have been resolved.
        if gone or (stay and cleared.reason == "reload"):
            counting = {id(known) for known in _counting(stay, ORIGIN, None)}
            gone += [known for known in stay if id(known) not in counting]
        return gone

    def corrected(self, cleared: ClearedDeadLetters) -> list[DeadLetterReference]:
        """Return the purged ones whose rows this makes those of the source again."""
        upto = Position.parse(cleared.upto)
        return [
            each
            for each in self._purged.values()
            if each.table == cleared.table
            and _covers(cleared, upto, Position.parse(each.position), each.baseline)
        ]

    def foreign(self, table: str, epoch: int, lineage: str) -> bool:
        """Return whether a dead letter belongs to a history that this log does not have."""
        return any(
            name == table
            and known.ended is None
            and (
                known.position.epoch > epoch or (known.position.epoch == epoch and named != lineage)
            )
            for (name, named, *_), known in self._known.items()
        )

    def held(
        self, table: str, since: Position, baseline: int | None, newest: int | None = None
    ) -> Held:
        """Return the held keys of a table loaded from `baseline`, each with its position."""
        if since == ORIGIN and baseline is None and newest is None:
            return dict(self._held.get(table, {}))
        dead_letters = self._of(table)
        if newest is not None:
            dead_letters = [each for each in dead_letters if (each.baseline or 0) <= newest]
        return _held(_counting(dead_letters, since, baseline))

    def emptied(self, dead_letter: NewDeadLetter) -> bool:
        """Return whether a truncate superseded this dead letter."""
        known = self._known.get(identity(dead_letter))
        return known is not None and known.superseded == "truncate"

    def key_count(self, others: Set[tuple[str, bytes]]) -> int:
        """Return the number of held keys (table and key), including `others`."""
        new = sum(key not in self._held.get(table, {}) for table, key in others)
        return new + sum(map(len, self._held.values()))

    def chosen(self, table: str | None, *, superseded: bool) -> list[DeadLetterSummary]:
        """Return the dead letters of a table or of all tables, in any order."""
        return [
            known
            for known in self._known.values()
            if table in (None, known.table) and (superseded or known.ended is None)
        ]

    def selected(self, selection: Selection) -> list[DeadLetterSummary]:
        """Return the dead letters that a selection names, and those that wait behind them."""
        found: list[DeadLetterSummary] = []
        blocked: dict[str, set[bytes]] = defaultdict(set)
        for known in sorted(self.chosen(selection.table, superseded=False), key=_order):
            keys = blocked[known.table]
            if selection.names(known) or not keys.isdisjoint(known.keys):
                keys.update(known.keys)
                found.append(known)
        return found

    def tables(self) -> list[str]:
        """Return the tables that have dead letters which have not ended, or rows given up."""
        found = {known.table for known in self.chosen(None, superseded=False)}
        return sorted(found | {each.table for each in self._purged.values()})

    def entries(
        self, dead_letters: Iterable[DeadLetter | DeadLetterSummary]
    ) -> list[DeadLetterReference]:
        """Return references to those of them that have not ended."""
        found = (self._known.get(identity(each)) for each in dead_letters)
        return [known.reference for known in found if known is not None and known.ended is None]

    def counts(self) -> list[Count]:
        """Return how many dead letters have not ended, by table, kind and code."""
        found = Counter(
            (known.table, known.kind, known.code) for known in self.chosen(None, superseded=False)
        )
        return [Count(*what, count) for what, count in sorted(found.items())]

    def purged_keys(self) -> dict[str, int]:
        """Return, by table, how many rows may differ because their dead letters were purged."""
        keys: dict[str, set[bytes]] = defaultdict(set)
        for each in self._purged.values():
            keys[each.table].update(each.keys)
        return {table: len(found) for table, found in sorted(keys.items())}

    def kept(self, since: int) -> list[DeadLetterSummary]:
        """Return the dead letters that have not ended, and those that ended after `since`."""
        return [
            known
            for known in self._known.values()
            if known.ended is None or known.ended.at >= since
        ]

    @property
    def size(self) -> int:
        """The number of dead letters, whether or not they have ended."""
        return len(self._known)

    @property
    def purged(self) -> Iterable[DeadLetterReference]:
        """The purged ones whose rows may still differ."""
        return self._purged.values()

    def compact(self, record: CompactedDeadLetters) -> None:
        """Replace the whole content by a record that has it."""
        self._known.clear()
        self._held.clear()
        self.take(record)

    def _of(self, table: str) -> list[DeadLetterSummary]:
        return self.chosen(table, superseded=False)


def identity(
    dead_letter: NewDeadLetter
    | StoredDeadLetter
    | DeadLetter
    | DeadLetterSummary
    | DeadLetterReference,
) -> Identity:
    """Return what identifies a dead letter."""
    position = str(dead_letter.position)
    if dead_letter.baseline is None:
        return dead_letter.table, dead_letter.lineage, position, 0, b""
    return (
        dead_letter.table,
        dead_letter.lineage,
        position,
        dead_letter.baseline,
        b"".join(dead_letter.keys),
    )


def _order(known: DeadLetterSummary) -> tuple[Position, bool, str, tuple[bytes, ...]]:
    """Return the order of dead letters: rows of a baseline before the changes that follow it."""
    return known.position, known.baseline is None, known.table, known.keys


def _covers(
    cleared: ClearedDeadLetters, upto: Position, position: Position, baseline: int | None
) -> bool:
    """Return whether a truncate or a reload ends a dead letter at this position."""
    own = baseline is not None and baseline == cleared.keep_baseline and _same(position, upto)
    if baseline is not None:
        position = before_corrections(position)
    return position <= before_corrections(upto) and not own


def _same(one: Position, other: Position) -> bool:
    """Return whether two baselines begin at the same commit."""
    return (one.epoch, one.commit) == (other.epoch, other.commit)


def _counting(
    dead_letters: Iterable[DeadLetterSummary], since: Position, baseline: int | None
) -> Iterator[DeadLetterSummary]:
    """Yield the dead letters that count for a table loaded from `baseline` at `since`."""
    held: set[bytes] = set()
    for known in sorted(dead_letters, key=_order):
        if known.baseline is not None:
            # Compare F, too: a log that was recreated numbers its baselines from 1 again.
            own = known.baseline == baseline and _same(known.position, since)
            counts = baseline is None or own
        else:
            failed = known.kind == "failed"
            later = known.position > before_corrections(since)
            counts = later and (failed or not held.isdisjoint(known.keys))
        if counts:
            held.update(known.keys)
            yield known


def _held(dead_letters: Iterable[DeadLetterSummary]) -> Held:
    held: Held = {}
    for known in dead_letters:
        _hold(held, known)
    return held


def _hold(held: Held, known: DeadLetterSummary) -> None:
    for key in known.keys:
        held[key] = min(known.position, held.get(key, known.position))


def by_table(found: Iterable[DeadLetterSummary]) -> tuple[Purged, ...]:
    """Return how many dead letters these are, and of how many keys."""
    counts: Counter[str] = Counter()
    keys: dict[str, set[bytes]] = defaultdict(set)
    for each in found:
        counts[each.table] += 1
        keys[each.table].update(each.keys)
    return tuple(Purged(table, n, len(keys[table])) for table, n in sorted(counts.items()))


def limited(
    found: Iterable[DeadLetterSummary], after: Position | None, limit: int | None
) -> list[DeadLetterSummary]:
    """Return the first ones after a position, and all of the last position that is returned."""
    ordered = sorted((each for each in found if after is None or each.position > after), key=_order)
    if limit is None or len(ordered) <= limit:
        return ordered
    if not limit:
        return []
    end = limit
    while end < len(ordered) and ordered[end].position == ordered[limit - 1].position:
        end += 1
    return ordered[:end]
