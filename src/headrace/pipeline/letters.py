"""
The dead letters of a pipeline, kept until a truncate or a reload makes them history (R30).

`dead-letters/<pipeline>/<number:012x>.letters` are only ever added, each created exclusively
and synced: a crash leaves a file absent or whole, and of two engines one loses the number.
Numbers have no gaps; a missing one in the middle is a lost file, and is named.

A letter is one, however often it is added: a batch whose outcome was lost is computed again,
and its letters come again. One that comes again after it was superseded counts again, so in a
batch with a truncate `add` comes first, then `clear`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from threading import RLock

from headrace.changelog.position import (
    MAX_COMMIT,
    MAX_EPOCH,
    MAX_ORDINAL,
    ORIGIN,
    Position,
)
from headrace.errors import AlreadyStored
from headrace.pipeline.ledger import Identity, Ledger, identity
from headrace.pipeline.letter import DeadLetter, NewLetter
from headrace.pipeline.letter_file import Cleared, Record, encode, page
from headrace.pipeline.letter_reading import file_name, last_number, read_chosen, records
from headrace.storage.files import Files

__all__ = ["FOLDER", "DeadLetter", "Letters", "NewLetter", "read_letters"]

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
            cleared = Cleared(
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

    def _create(self, record: Record) -> None:
        data = encode(record)
        self._doubtful = True
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
