"""
The store of a pipeline's dead letters, kept until a truncate or a reload supersedes them (R30).

`dead-letters/<pipeline>/<number:012x>.letters` are only ever added, each created exclusively
and synced: a crash leaves a file absent or whole, and of two engines one loses the number.
Numbers have no gaps; a missing one in the middle is a lost file, and is named.

A letter is one, however often it is added: a batch whose outcome was lost is computed again,
and its letters come again. One that comes again after it was superseded counts again, so in a
batch with a truncate `add` comes first, then `clear`.

`Ledger` is what the files amount to: which letters there are, and what they hold. A letter that
failed holds its keys. One that is behind holds its own as long as it is behind something: a
reload covers what failed up to its beginning (F), and then the letters behind that are no longer
behind anything, although their positions may be later. They were written while the table was
loaded, on account of the old table; the new one has their changes.

The ledger is asked once a batch, so the usual answer is kept by keys, of which there are few, and
not by letters: a row that changes a thousand times a second has a thousand letters a second
behind its first.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass
from threading import RLock
from typing import TypeAlias

from headrace.changelog.position import MAX_COMMIT, MAX_EPOCH, MAX_ORDINAL, ORIGIN, Position
from headrace.deadletters.letter import (
    ClearedLetters,
    DeadLetter,
    Kind,
    NewLetter,
    Record,
    StoredLetter,
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
    "Letters",
    "NewLetter",
    "read_letters",
]


# --- the ledger -----------------------------------------------------------------------------------

Identity: TypeAlias = tuple[str, str, str, int, bytes]
"""
Table, lineage, position; for a baseline's row also the baseline's number and the key.

The table, because one truncate has the same position in all its tables (R23d).
"""

Held: TypeAlias = dict[bytes, Position]


@dataclass(slots=True)
class LetterSummary:
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
        self._known: dict[Identity, LetterSummary] = {}
        self._held: dict[str, Held] = defaultdict(dict)

    def take(self, record: Record) -> None:
        """Add what the next file says."""
        if isinstance(record, ClearedLetters):
            for known in self.concerned(record):
                known.superseded = record.reason
            self._held[record.table] = _held(self._of(record.table))
            return
        for index, letter in enumerate(record.letters):
            known = LetterSummary(
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

    def concerned(self, cleared: ClearedLetters) -> list[LetterSummary]:
        """Return the letters that this supersedes, those that are then behind nothing too."""
        upto = Position.parse(cleared.upto)
        gone: list[LetterSummary] = []
        stay: list[LetterSummary] = []
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

    def chosen(self, table: str | None, *, superseded: bool) -> list[LetterSummary]:
        """Return the letters of a table or of all, in any order."""
        return [
            known
            for known in self._known.values()
            if table in (None, known.table) and (superseded or known.superseded is None)
        ]

    def _of(self, table: str) -> list[LetterSummary]:
        return self.chosen(table, superseded=False)


def identity(letter: NewLetter | StoredLetter) -> Identity:
    """Return what makes two letters one."""
    position = str(letter.position)
    if letter.baseline is None:
        return letter.table, letter.lineage, position, 0, b""
    return letter.table, letter.lineage, position, letter.baseline, b"".join(letter.keys)


def _counting(
    letters: Iterable[LetterSummary], since: Position, baseline: int | None
) -> Iterator[LetterSummary]:
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


def _held(letters: Iterable[LetterSummary]) -> Held:
    held: Held = {}
    for known in letters:
        _hold(held, known)
    return held


def _hold(held: Held, known: LetterSummary) -> None:
    for key in known.keys:
        held[key] = min(known.position, held.get(key, known.position))


# --- the store ------------------------------------------------------------------------------------

FOLDER = "dead-letters"
"""Where they lie in a data directory: a folder for each pipeline."""


_LAST = Position(MAX_EPOCH, MAX_COMMIT, MAX_ORDINAL)


class Letters:
    """
    One pipeline's letters.

    *Durability*: what `add` and `clear` did is durable when they return. *Failure*:
    `StorageError` and `StorageFull`, after which they may be called again; `AlreadyStored`
    where another engine has written, and then this one must stop. *Threads*: any.
    """

    def __init__(self, files: Files, pipeline: str, clock: Callable[[], float]) -> None:
        self._files = files.within(f"{FOLDER}/{pipeline}")
        self._pipeline = pipeline
        self._clock = clock
        self._lock = RLock()
        self._last = 0
        self._ledger = Ledger()
        self.written = False
        """Whether there may be letters, superseded or not; without any nothing is held."""
        self._doubtful = False
        """A write did not end well, and only the disk knows whether its file is there."""

    @classmethod
    def open(cls, files: Files, pipeline: str, clock: Callable[[], float]) -> Letters:
        """
        Return the letters of `pipeline` under a data directory.

        `clock` gives seconds since 1970. Raises `CorruptLetters` or `UnknownFormat` with the
        file. Nothing is created before there is a letter.
        """
        letters = cls(files, pipeline, clock)
        letters._load()
        return letters

    def held(
        self,
        table: str,
        *,
        since: Position = ORIGIN,
        baseline: int | None = None,
        newest: int | None = None,
    ) -> dict[bytes, Position]:
        """
        Return the keys of `table` that are held, each with the position it is held from.

        For a table that was loaded from `baseline`, which begins at `since`: letters of
        changes up to there do not count, nor do those of other baselines' rows, nor what is
        behind these alone. Without `baseline` those of every baseline do, up to the one of
        number `newest`: later ones are of a table that is loaded beside this one.
        """
        with self._sure():
            return self._ledger.held(table, since, baseline, newest)

    def not_emptied(self, letters: Sequence[NewLetter]) -> list[NewLetter]:
        """
        Return the letters but those that a truncate made history.

        For a table that is loaded again, and will come by that truncate: they would hold keys
        of the one that has passed it.
        """
        with self._sure():
            return [letter for letter in letters if not self._ledger.emptied(letter)]

    def add(self, letters: Sequence[NewLetter]) -> int:
        """Keep these letters; return how many of them were not there already."""
        with self._sure():
            new: dict[Identity, NewLetter] = {}
            for letter in letters:
                if self._ledger.wants(letter) and (
                    letter.kind == "failed" or identity(letter) not in new
                ):
                    new[identity(letter)] = letter
            if new:
                self._create(page(self._last + 1, self._pipeline, [*new.values()], self._now()))
            return len(new)

    def clear(
        self, table: str, upto: Position, reason: str, *, keep_baseline: int | None = None
    ) -> None:
        """
        Supersede the letters of `table` up to and with `upto`, and so release their keys.

        With them go the letters that were behind them alone, wherever they stand. `reason` is
        `truncate` or `reload`. Letters of rows of `keep_baseline` stay. Nothing is written
        where no letter is concerned.
        """
        with self._sure():
            cleared = ClearedLetters(
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
        Supersede the letters of `table`, if any speaks of a log that was lost.

        The present one is in this epoch, of this lineage. Positions of the two do not compare:
        who loads the table anew asks for this first, and what fails again comes again.
        """
        with self._sure():
            if self._ledger.foreign(table, epoch, lineage):
                self.clear(table, _LAST, "reload")

    def all(self, table: str | None = None, *, superseded: bool = False) -> tuple[DeadLetter, ...]:
        """Return the letters by position; with `superseded` those as well that are history."""
        with self._sure():
            chosen = [
                (known.number, known.index, known.superseded)
                for known in self._ledger.chosen(table, superseded=superseded)
            ]
        # Outside the lock: files are never changed, and a run need not wait for a reader.
        return read_chosen(self._files, self._pipeline, chosen)

    @property
    def count(self) -> int:
        """How many letters there are that are not superseded."""
        with self._sure():
            return len(self._ledger.chosen(None, superseded=False))

    def keys(self, with_new: Sequence[NewLetter] = ()) -> int:
        """Return how many keys are held now, over all tables; or would be `with_new` letters."""
        with self._sure():
            new = {(letter.table, key) for letter in with_new for key in letter.keys}
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
            # A process killed before it synced the folder has left names that are not
            # durable. A letter that is "already there" must be.
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
            # Invariant 3: a letter is durable before progress passes its change.
            self._files.create(file_name(record.number), data)
        except AlreadyStored:
            # Not to be read and gone on from: another engine is at work.
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
    Return the letters of all pipelines, or of one, in a data directory; by position in each.

    Needs no engine and disturbs none: nothing is created, synced or removed.
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
