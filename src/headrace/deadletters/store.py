"""
The store of a pipeline's dead letters, kept until a truncate or a reload supersedes them (R30).

Files `dead-letters/<pipeline>/<number:012x>.letters` are only added, never changed. Each is
created exclusively and synced: after a crash a file is absent or whole, and if two engines write,
only one gets the number. Numbers have no gaps. A missing number is a lost file, and the error
names it.

A dead letter that is added several times is stored once: a batch whose outcome was lost is
computed again, with the same dead letters. If it was superseded in between, it counts again. So
in a batch with a truncate, `add` comes first, then `clear`.

`Ledger` is the content of all files: which dead letters exist, and which keys they hold. A `failed`
one holds its keys. A `behind` one holds its keys as long as another one blocks it. A reload covers
everything that failed up to its beginning (F). Then the dead letters that these blocked are free,
even if their positions are later: they were written for the old table while the new one was
loaded, and the new one has their changes.

The ledger is queried once a batch. So the usual answer is cached by key, not by dead letter:
there are few held keys, but a row that changes a thousand times a second adds a thousand dead
letters a second.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass
from threading import RLock
from time import monotonic
from typing import ClassVar, TypeAlias

from headrace.changelog.position import MAX_COMMIT, MAX_EPOCH, MAX_ORDINAL, ORIGIN, Position
from headrace.deadletters.letter import (
    ClearedDeadLetters,
    DeadLetter,
    Kind,
    NewDeadLetter,
    Record,
    StoredDeadLetter,
    encode,
    file_name,
    last_number,
    page,
    read_chosen,
    records,
)
from headrace.errors import AlreadyStored
from headrace.storage.files import Files

__all__ = [
    "FOLDER",
    "DeadLetter",
    "DeadLetterStore",
    "NewDeadLetter",
    "read_letters",
]


# --- the ledger -----------------------------------------------------------------------------------

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
    position: Position
    baseline: int | None
    kind: Kind
    keys: tuple[bytes, ...]
    superseded: str | None = None


class Ledger:
    """The dead letters of one pipeline, from its files in order."""

    def __init__(self) -> None:
        self._known: dict[Identity, DeadLetterSummary] = {}
        self._held: dict[str, Held] = defaultdict(dict)

    def take(self, record: Record) -> None:
        """Add the record of the next file."""
        if isinstance(record, ClearedDeadLetters):
            for known in self.concerned(record):
                known.superseded = record.reason
            self._held[record.table] = _held(self._of(record.table))
            return
        for index, dead_letter in enumerate(record.dead_letters):
            known = DeadLetterSummary(
                number=record.number,
                index=index,
                table=dead_letter.table,
                position=Position.parse(dead_letter.position),
                baseline=dead_letter.baseline,
                kind=dead_letter.kind,
                keys=dead_letter.keys,
            )
            self._known[identity(dead_letter)] = known
            _hold(self._held[dead_letter.table], known)

    def wants(self, dead_letter: NewDeadLetter) -> bool:
        """
        Return whether a dead letter must be stored.

        A superseded one that is added again must be: its change did not reach the target. So
        must one that was blocked by another and now failed itself: from then on it holds its
        keys independently.
        """
        known = self._known.get(identity(dead_letter))
        if known is None or known.superseded is not None:
            return True
        return dead_letter.kind == "failed" and known.kind == "behind"

    def concerned(self, cleared: ClearedDeadLetters) -> list[DeadLetterSummary]:
        """Return the dead letters that this supersedes, and those that nothing then blocks."""
        upto = Position.parse(cleared.upto)
        gone: list[DeadLetterSummary] = []
        stay: list[DeadLetterSummary] = []
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
        """Return whether a dead letter belongs to a history that this log does not have."""
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
            if table in (None, known.table) and (superseded or known.superseded is None)
        ]

    def _of(self, table: str) -> list[DeadLetterSummary]:
        return self.chosen(table, superseded=False)


def identity(dead_letter: NewDeadLetter | StoredDeadLetter) -> Identity:
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


def _counting(
    dead_letters: Iterable[DeadLetterSummary], since: Position, baseline: int | None
) -> Iterator[DeadLetterSummary]:
    """Yield the dead letters that count for a table loaded from `baseline` at `since`."""
    held: set[bytes] = set()
    # Rows of a baseline come before the changes that follow it.
    for known in sorted(dead_letters, key=lambda each: (each.position, each.baseline is None)):
        if known.baseline is not None:
            # Compare F, too: a log that was recreated numbers its baselines from 1 again.
            counts = baseline is None or (known.baseline, known.position) == (baseline, since)
        else:
            failed = known.kind == "failed"
            counts = known.position > since and (failed or not held.isdisjoint(known.keys))
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


# --- the store ------------------------------------------------------------------------------------

FOLDER = "dead-letters"
"""Their folder in a data directory, with a folder for each pipeline."""


_COUNT_SECONDS = 0.05
"""How long a count waits for a write."""
_AGAIN_SECONDS = 1.0

_LAST = Position(MAX_EPOCH, MAX_COMMIT, MAX_ORDINAL)


class DeadLetterStore:
    """
    The dead letters of one pipeline.

    *Durability*: what `add` and `clear` wrote is durable when they return. *Failure*:
    `StorageError` and `StorageFull`, after which they may be called again; `AlreadyStored`
    if another engine has written, and then this one must stop. *Threads*: any.
    """

    _hung_at: ClassVar[float] = -math.inf
    """When a count last waited for a write in vain."""

    def __init__(self, files: Files, pipeline: str, clock: Callable[[], float]) -> None:
        self._files = files.within(f"{FOLDER}/{pipeline}")
        self._pipeline = pipeline
        self._clock = clock
        self._lock = RLock()
        self._last = 0
        self._ledger = Ledger()
        self._counted = 0
        self.written = False
        """Whether there may be dead letters, superseded or not. If False, no key is held."""
        self._doubtful = False
        """Whether a write failed, so that its file may or may not exist."""

    @classmethod
    def open(cls, files: Files, pipeline: str, clock: Callable[[], float]) -> DeadLetterStore:
        """
        Return the dead letters of `pipeline` in a data directory.

        `clock` returns seconds since 1970. Raises `CorruptLetters` or `UnknownFormat` with the
        file. Nothing is created before the first dead letter.
        """
        dead_letters = cls(files, pipeline, clock)
        dead_letters._load()
        return dead_letters

    def held(
        self,
        table: str,
        *,
        since: Position = ORIGIN,
        baseline: int | None = None,
        newest: int | None = None,
    ) -> dict[bytes, Position]:
        """
        Return the held keys of `table`, each with the position from which it is held.

        For a table that was loaded from `baseline`, which begins at `since`: dead letters of
        changes up to `since` do not count, nor those of rows of other baselines, nor those
        blocked only by these. Without `baseline` those of all baselines count, up to number
        `newest`: later baselines belong to a table that is being loaded in parallel.
        """
        with self._sure():
            return self._ledger.held(table, since, baseline, newest)

    def not_emptied(self, dead_letters: Sequence[NewDeadLetter]) -> list[NewDeadLetter]:
        """
        Return the dead letters without those that a truncate superseded.

        For a table that is loaded again and has yet to reach that truncate: they would hold
        keys of the live table, which has passed it.
        """
        with self._sure():
            return [
                dead_letter for dead_letter in dead_letters if not self._ledger.emptied(dead_letter)
            ]

    def add(self, dead_letters: Sequence[NewDeadLetter]) -> int:
        """Store these dead letters; return how many of them are new."""
        with self._sure():
            new: dict[Identity, NewDeadLetter] = {}
            for dead_letter in dead_letters:
                if self._ledger.wants(dead_letter) and (
                    dead_letter.kind == "failed" or identity(dead_letter) not in new
                ):
                    new[identity(dead_letter)] = dead_letter
            if new:
                self._create(page(self._last + 1, self._pipeline, [*new.values()], self._now()))
            return len(new)

    def clear(
        self, table: str, upto: Position, reason: str, *, keep_baseline: int | None = None
    ) -> None:
        """
        Supersede the dead letters of `table` up to and including `upto`; release their keys.

        This includes dead letters that only these block, whatever their position. `reason` is
        `truncate` or `reload`. Dead letters of rows of `keep_baseline` stay. If there is
        nothing to supersede, nothing is written.
        """
        with self._sure():
            cleared = ClearedDeadLetters(
                number=self._last + 1,
                pipeline=self._pipeline,
                table=table,
                upto=str(upto),
                reason=reason,
                keep_baseline=keep_baseline,
                at=self._now(),
            )
            if self._ledger.concerned(cleared):
                self._create(cleared)

    def disown(self, table: str, epoch: int, lineage: str) -> None:
        """
        Supersede the dead letters of `table` if one of them is from a log that was lost.

        `epoch` and `lineage` are those of the present log. Positions of the two logs cannot be
        compared. So this is called before the table is loaded again; rows that fail again get
        new dead letters.
        """
        with self._sure():
            if self._ledger.foreign(table, epoch, lineage):
                self.clear(table, _LAST, "reload")

    def all(self, table: str | None = None, *, superseded: bool = False) -> tuple[DeadLetter, ...]:
        """Return the dead letters by position; with `superseded` also the superseded ones."""
        with self._sure():
            chosen = [
                (known.number, known.index, known.superseded)
                for known in self._ledger.chosen(table, superseded=superseded)
            ]
        # Outside the lock: files never change, and a run does not have to wait for a reader.
        return read_chosen(self._files, self._pipeline, chosen)

    @property
    def count(self) -> int:
        """
        The number of dead letters that are not superseded.

        Reads nothing, and does not wait for a write, which may hang: then it is the last number.
        """
        # Once for all pipelines: they have one disk, and a status counts each more than once.
        waits = monotonic() - DeadLetterStore._hung_at >= _AGAIN_SECONDS
        if self._lock.acquire(timeout=_COUNT_SECONDS if waits else 0):
            try:
                self._counted = len(self._ledger.chosen(None, superseded=False))
            finally:
                self._lock.release()
        else:
            DeadLetterStore._hung_at = monotonic()
        return self._counted

    def keys(self, with_new: Sequence[NewDeadLetter] = ()) -> int:
        """Return the number of held keys of all tables, including those of `with_new`."""
        with self._sure():
            new = {(dead_letter.table, key) for dead_letter in with_new for key in dead_letter.keys}
            return self._ledger.key_count(new)

    # --- inside ------------------------------------------------------------------------------

    @contextmanager
    def _sure(self) -> Iterator[None]:
        with self._lock:
            if self._doubtful:
                self._load()
            yield

    def _load(self) -> None:
        last = last_number(self._files)
        if last:
            # A process that was killed before it synced the folder leaves names that are not
            # durable. A dead letter that counts as stored must be durable.
            self._files.settle("")
            self._files.sweep("")
        ledger = Ledger()
        for record in records(self._files, self._pipeline, last):
            ledger.take(record)
        self._ledger, self._last, self._doubtful = ledger, last, False
        self.written = last > 0

    def _create(self, record: Record) -> None:
        data = encode(record)
        self._doubtful = self.written = True
        try:
            self._files.make_folder("")
            # Invariant 3: a dead letter is durable before progress passes its change.
            self._files.create(file_name(record.number), data)
        except AlreadyStored:
            # Do not load it and continue: another engine is running.
            self._doubtful = False
            raise
        self._ledger.take(record)
        self._last, self._doubtful = record.number, False

    def _now(self) -> int:
        return int(self._clock() * 1_000_000)


def read_letters(
    files: Files, pipeline: str | None = None, *, superseded: bool = False
) -> tuple[DeadLetter, ...]:
    """
    Return the dead letters of all pipelines, or of one, in a data directory.

    They are ordered by pipeline, then by position. This needs no engine and does not disturb a
    running one: nothing is created, synced or removed.
    """
    found: list[DeadLetter] = []
    for name in files.list(FOLDER):
        if pipeline in (None, name):
            inside = files.within(f"{FOLDER}/{name}")
            ledger = Ledger()
            for record in records(inside, name, last_number(inside)):
                ledger.take(record)
            chosen = [
                (known.number, known.index, known.superseded)
                for known in ledger.chosen(None, superseded=superseded)
            ]
            found += read_chosen(inside, name, chosen)
    return tuple(found)
