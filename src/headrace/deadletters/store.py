"""
The store of a pipeline's dead letters, kept until something ends them (R30).

A truncate or a reload supersedes dead letters up to a position (`clear`); a replay, an edit or a
purge ends them one by one (`resolve`, `purge`). What ended stays listed for a time, `keep`.

What the store writes are numbered records (`headrace.storage.records`), which are only added, never
changed: by default files `dead-letters/<pipeline>/<number:012x>.letters`, next to the log. Each is
created exclusively and synced: after a crash it is absent or whole, and if two engines write, only
one gets the number. A missing number is a lost file, and the error names it. Many small files
become one now and then: the new one has the content of all earlier ones, which are removed after
it is durable. `letter` describes the files.

A dead letter that is added several times is stored once: a batch whose outcome was lost is
computed again, with the same dead letters. If it ended in between, it counts again, because its
change did not reach the target. So in a batch with a truncate, `add` comes first, then `clear`.

A dead letter holds its keys until it ends; `ledger` has the rules. A purge gives changes up that no
target has: it releases their keys, although the rows are not those of the source, and counts these
rows until a reload or a truncate of the table makes them right.

Long because the store and where it may be are one contract.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from threading import RLock
from time import monotonic
from typing import ClassVar

import msgspec

from headrace.changelog.position import MAX_COMMIT, MAX_EPOCH, MAX_ORDINAL, ORIGIN, Position
from headrace.deadletters.ledger import (
    Count,
    DeadLetterSummary,
    Identity,
    Ledger,
    Purged,
    Selection,
    by_table,
    identity,
    limited,
)
from headrace.deadletters.letter import (
    FOLDER,
    ClearedDeadLetters,
    CompactedDeadLetters,
    DeadLetter,
    DeadLetterCheckpoint,
    Located,
    NewDeadLetter,
    Record,
    Resolution,
    ResolvedDeadLetters,
    compacted,
    decode,
    encode,
    history,
    in_files,
    page,
    read_chosen,
)
from headrace.errors import (
    AlreadyStored,
    CorruptLetters,
    DeadLettersElsewhere,
    StorageError,
    UnknownFormat,
)
from headrace.pipeline.definition import DeadLetters, OnError
from headrace.storage.files import Files
from headrace.storage.records import MemoryRecords, Records, RecordStorage
from headrace.storage.s3 import opened

__all__ = [
    "FOLDER",
    "DeadLetter",
    "DeadLetterStore",
    "NewDeadLetter",
    "Selection",
    "open_store",
    "read_letters",
]


# --- the store ------------------------------------------------------------------------------------

KEEP_SECONDS = 30 * 86_400.0
"""How long dead letters that ended stay listed."""

COMPACT_FILES = 64
"""Files that are merged at once; more if what is there already is much larger."""

_ALWAYS_FILES = 1_024
"""Files that are merged whatever is there."""

_GROWTH = 4
"""Up to this many times as much as the new files have is written again with them."""

MOST_COMPACTED = 50_000
"""Dead letters that one file may have: they are merged in memory."""

_DAY = 86_400_000_000

_COUNT_SECONDS = 0.05
"""How long a count waits for a write."""
_AGAIN_SECONDS = 1.0
_AGAIN = 5
"""How often dead letters are read again whose files were merged meanwhile."""

_LAST = Position(MAX_EPOCH, MAX_COMMIT, MAX_ORDINAL)


class DeadLetterStore:
    """
    The dead letters of one pipeline.

    *Durability*: what `add`, `clear`, `resolve` and `purge` wrote is durable when they return, if
    the records are. *Failure*: `StorageError` and `StorageFull`, after which they may be called
    again; `AlreadyStored` if another engine has written, and then this one must stop.
    *Threads*: any.
    """

    _hung_at: ClassVar[float] = -math.inf
    """When a count last waited for a write in vain."""

    def __init__(
        self,
        records: Records,
        pipeline: str,
        clock: Callable[[], float],
        *,
        keep: float = KEEP_SECONDS,
        compact_files: int = COMPACT_FILES,
    ) -> None:
        """
        Read the dead letters of `pipeline`.

        `clock` returns seconds since 1970. `keep` is how long, in seconds, those that ended stay
        listed. From `compact_files` files on, these are merged. Raises `CorruptLetters` or
        `UnknownFormat` with the file. Nothing is created before the first dead letter.
        """
        self._records = records
        self._pipeline = pipeline
        self._clock = clock
        self._keep = int(keep * 1_000_000)
        self._compact_files = compact_files
        self._lock = RLock()
        self._last = 0
        self._first = 0
        """The number of the compacted record that the history begins with; 0 if none does."""
        self._ledger = Ledger()
        self._compacted = 0
        """The dead letters in that record."""
        self._tried = 0
        """The newest file when it was last tried to merge them."""
        self._looked_at = 0
        """When it was last looked whether dead letters that ended are old enough to be removed."""
        self._figures = Figures()
        self.written = False
        """Whether there may be dead letters, superseded or not. If False, no key is held."""
        self._doubtful = False
        """Whether a write failed, so that its file may or may not exist."""
        self._load()

    @classmethod
    def open(
        cls,
        files: Files,
        pipeline: str,
        clock: Callable[[], float],
        *,
        keep: float = KEEP_SECONDS,
        compact_files: int = COMPACT_FILES,
    ) -> DeadLetterStore:
        """Return the dead letters of `pipeline` that are next to the log, in a data directory."""
        records = in_files(files, pipeline)
        return cls(records, pipeline, clock, keep=keep, compact_files=compact_files)

    # -- what is held ---------------------------------------------------------------------

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

    @property
    def records(self) -> Records:
        """What it is kept in; only to be read."""
        return self._records

    def keys(self, with_new: Sequence[NewDeadLetter] = ()) -> int:
        """Return the number of held keys of all tables, including those of `with_new`."""
        with self._sure():
            new = {(dead_letter.table, key) for dead_letter in with_new for key in dead_letter.keys}
            return self._ledger.key_count(new)

    # -- writing --------------------------------------------------------------------------

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
        nothing to supersede, nothing is written. Rows of purged dead letters up to `upto` are
        those of the source again.
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
            if self._ledger.concerned(cleared) or self._ledger.corrected(cleared):
                self._create(cleared)

    def drop(self) -> None:
        """Supersede all dead letters: the pipeline was dropped, and holds no keys."""
        with self._sure():
            for table in self._ledger.tables():
                self.clear(table, _LAST, "dropped")

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

    def resolve(
        self,
        entries: Iterable[DeadLetter | DeadLetterSummary],
        reason: Resolution,
        note: str = "",
    ) -> int:
        """
        End these dead letters; return how many of them had not ended before.

        Each is known by its identity; one that has ended, or is not known, is skipped. `note` says
        who did it and why. A key is released if no other dead letter has it: later changes that
        waited behind are dead letters still, and hold it, until they are resolved, too. All are
        ended at once, by one record.
        """
        with self._sure():
            found = self._ledger.entries(entries)
            if found:
                self._create(
                    ResolvedDeadLetters(
                        number=self._last + 1,
                        pipeline=self._pipeline,
                        entries=tuple(found),
                        reason=reason,
                        note=note.encode(errors="backslashreplace").decode(),
                        at=self._now(),
                    )
                )
            return len(found)

    def purge(self, selection: Selection, note: str = "") -> tuple[Purged, ...]:
        """
        Give up the changes of the selected dead letters, and of those that wait behind them.

        Their keys are released, and later changes reach the target again. Its rows may differ from
        the source's from then on; `purged_keys` counts them. Returns what was purged, by table.
        """
        with self._sure():
            found = self._ledger.selected(selection)
            self.resolve(found, "purged", note)
            return by_table(found)

    # -- reading --------------------------------------------------------------------------

    def all(
        self,
        table: str | None = None,
        *,
        superseded: bool = False,
        after: Position | None = None,
        limit: int | None = None,
        wanted: Callable[[DeadLetterSummary], bool] = lambda known: True,
    ) -> tuple[DeadLetter, ...]:
        """
        Return the dead letters by position; with `superseded` also those that ended.

        With `after`, only those of later positions. With `limit`, that number, and the rest of
        those at the last position: so the next ones are after it. With `wanted`, only those for
        which it is true; it may be called often, and reads nothing.
        """

        def chosen() -> list[Located]:
            found = filter(wanted, self._ledger.chosen(table, superseded=superseded))
            return [each.located for each in limited(found, after, limit)]

        return self._read(chosen)

    def number(
        self,
        table: str | None = None,
        *,
        superseded: bool = False,
        wanted: Callable[[DeadLetterSummary], bool] = lambda known: True,
    ) -> int:
        """Return how many `all` would return without a limit; reads nothing."""
        with self._sure():
            return sum(map(wanted, self._ledger.chosen(table, superseded=superseded)))

    def to_purge(self, selection: Selection) -> tuple[Purged, ...]:
        """Return what `purge` would end, by table."""
        with self._sure():
            return by_table(self._ledger.selected(selection))

    def counts(self) -> list[Count]:
        """Return how many dead letters have not ended, by table, kind and code."""
        with self._sure():
            return self._ledger.counts()

    def purged_keys(self) -> dict[str, int]:
        """
        Return, by table, how many rows may differ from the source's because of a purge.

        A reload of the table makes them right.
        """
        with self._sure():
            return self._ledger.purged_keys()

    @property
    def figures(self) -> Figures:
        """
        The numbers for a status.

        Reads nothing, and does not wait for a write, which may hang: then they are the last ones.
        """
        # Once for all pipelines: they have one disk, and a status counts each more than once.
        waits = monotonic() - DeadLetterStore._hung_at >= _AGAIN_SECONDS
        if self._lock.acquire(timeout=_COUNT_SECONDS if waits else 0):
            try:
                ledger = self._ledger
                count = len(ledger.chosen(None, superseded=False))
                self._figures = Figures(count, ledger.key_count(set()), ledger.purged_keys())
            finally:
                self._lock.release()
        else:
            DeadLetterStore._hung_at = monotonic()
        return self._figures

    @property
    def count(self) -> int:
        """The number of dead letters that have not ended; like `figures`, it waits for nothing."""
        return self.figures.count

    # --- inside ------------------------------------------------------------------------------

    @contextmanager
    def _sure(self) -> Iterator[None]:
        with self._lock:
            if self._doubtful:
                self._load()
            yield

    def _read(self, choose: Callable[[], list[Located]]) -> tuple[DeadLetter, ...]:
        while True:
            with self._sure():
                first, chosen = self._first, choose()
            # Outside the lock: files never change, and a run does not have to wait for a reader.
            try:
                return read_chosen(self._records, self._pipeline, chosen)
            except CorruptLetters:
                # They may have been merged meanwhile.
                if first == self._first:
                    raise

    def _load(self) -> None:
        if self._records.numbers():
            # A dead letter that counts as stored must be durable.
            self._records.settle()
        ledger, first, size = Ledger(), 0, 0
        found = history(self._records, self._pipeline)
        for record in found:
            ledger.take(record)
            if isinstance(record, CompactedDeadLetters):
                first, size = record.number, len(record.dead_letters)
        last = found[-1].number if found else 0
        self._ledger, self._last, self._doubtful = ledger, last, False
        self._first, self._compacted = first, size
        self.written = last > 0

    def _create(self, record: Record) -> None:
        data = encode(record)
        self._doubtful = self.written = True
        try:
            # Invariant 3: a dead letter is durable before progress passes its change.
            self._records.create(record.number, data)
        except AlreadyStored:
            # Do not load it and continue: another engine is running.
            self._doubtful = False
            raise
        self._ledger.take(record)
        self._last, self._doubtful = record.number, False
        # It can wait: what was to be written is durable.
        with suppress(StorageError):
            self.compact_if_due()

    def _now(self) -> int:
        return int(self._clock() * 1_000_000)

    # -- compaction -----------------------------------------------------------------------

    def compact_if_due(self) -> None:
        """Merge files if there are many, or if some that ended are old enough to be removed."""
        with self._sure():
            if self._compaction_due():
                self._tried = self._last
                self.compact()

    def _compaction_due(self) -> bool:
        files = self._last - max(self._first, self._tried)
        # The cost of writing everything again is a part of that of what is new.
        new = self._ledger.size - self._compacted
        if files >= _ALWAYS_FILES or (
            files >= self._compact_files and new * _GROWTH >= self._compacted
        ):
            return True
        if (now := self._now()) - self._looked_at < min(self._keep, _DAY):
            return False
        self._looked_at = now
        return len(self._ledger.kept(now - self._keep)) < self._ledger.size

    def compact(self) -> None:
        """
        Merge all files into one, without dead letters that ended longer than `keep` ago.

        At any instant all of it is there: the new file is durable before others are removed, and
        is created exclusively, so that it has everything that any engine has written.
        """
        with self._sure():
            now = self._now()
            kept = self._ledger.kept(now - self._keep)
            if not self._last or len(kept) > MOST_COMPACTED:
                return
            try:
                record = compacted(
                    self._records,
                    self._pipeline,
                    self._last + 1,
                    [each.located for each in kept],
                    self._ledger.purged,
                    now,
                )
            except CorruptLetters as error:
                if max(self._records.numbers(), default=0) > self._last:
                    raise AlreadyStored(
                        "Another engine has written", file=self._records.path(self._last + 1)
                    ) from error
                raise
            self._doubtful = True
            try:
                self._records.create(record.number, encode(record))
            except AlreadyStored:
                self._doubtful = False
                raise
            self._ledger.compact(msgspec.structs.replace(record, groups=()))
            self._last = self._first = record.number
            self._compacted, self._doubtful = len(kept), False
            self._remove_before(record.number)

    def _remove_before(self, first: int) -> None:
        """Remove what a compacted record has; number 1 becomes the checkpoint."""
        self._records.remove([each for each in self._records.numbers() if 1 < each < first])
        with suppress(FileNotFoundError):
            if isinstance(decode(self._records.read(1), 1, self._pipeline), DeadLetterCheckpoint):
                return
        self._records.remove([1])
        # Nothing reads below `first`, so it does not matter if a crash leaves number 1 away.
        with suppress(AlreadyStored):
            self._records.create(1, encode(DeadLetterCheckpoint(1, self._pipeline, first)))


@dataclass(frozen=True, slots=True)
class Figures:
    """The numbers of a store for a status."""

    count: int = 0
    """Dead letters that have not ended."""

    keys: int = 0
    """Keys that they hold."""

    purged_keys: Mapping[str, int] = field(default_factory=dict)
    """By table, rows that may differ from the source's because of a purge."""


# --- where a store is -----------------------------------------------------------------------------

_LOCATION_FILE = "store"
"""The file, in the pipeline's folder, that says where else its dead letters are."""


class _StoreLocation(msgspec.Struct, frozen=True):
    """Where the dead letters of a pipeline are, if not next to the log."""

    type: str
    location: str
    volatile: bool = False
    format: int = 1


def open_store(
    files: Files,
    pipeline: str,
    clock: Callable[[], float],
    on_error: OnError,
    records: Records | None = None,
) -> tuple[DeadLetterStore, Records]:
    """
    Return the dead letters of a pipeline as its options say where they are, and their records.

    `files` is where the log is; `records` are those of an earlier call, which a store in memory
    must get again. Where they are is noted there, for readers without the configuration. Raises
    `DeadLettersElsewhere` if an earlier store holds keys: they would be forgotten.
    """
    keep = on_error.keep_seconds if isinstance(on_error, DeadLetters) else KEEP_SECONDS
    if records is None:
        records = _records(files, pipeline, on_error)
    store = DeadLetterStore(records, pipeline, clock, keep=keep)
    with suppress(StorageError):  # it can wait
        store.compact_if_due()
    return store, records


def _records(files: Files, pipeline: str, on_error: OnError) -> Records:
    before = _noted(files, pipeline)
    here = in_files(files, pipeline)
    earlier = here if before is None else _readable(before, pipeline)
    if isinstance(on_error, DeadLetters):
        policy = on_error
    elif earlier is not None:
        return earlier  # there will be no new ones, but these hold their keys
    else:
        policy = DeadLetters()
    place = _location_of(policy)
    if place == before:
        return here if place is None else _made(policy, pipeline)
    if before is not None and not before.volatile and earlier is None:
        raise DeadLettersElsewhere(
            "The pipeline may have dead letters in another store",
            pipeline=pipeline,
            store=before.location,
            remedy="Use that store until they have ended. If it has none, remove the file"
            f" {files.path(f'{FOLDER}/{pipeline}/{_LOCATION_FILE}')}.",
        )
    held = [] if earlier is None else ledger_of(earlier, pipeline).chosen(None, superseded=False)
    if held:
        raise DeadLettersElsewhere(
            "The pipeline has dead letters in another store",
            pipeline=pipeline,
            store="local" if before is None else before.location,
            count=len(held),
        )
    name = f"{FOLDER}/{pipeline}/{_LOCATION_FILE}"
    if place is None:
        files.remove(name)
        return here
    found = _made(policy, pipeline)
    if isinstance(policy.store, str) and place.type == "s3":
        # Before it is noted: an unsafe storage must not be used.
        opened(policy.store).prove()
    files.make_folder(f"{FOLDER}/{pipeline}")
    files.put(name, msgspec.json.encode(place))
    return found


def _location_of(policy: DeadLetters) -> _StoreLocation | None:
    match policy.store:
        case "local":
            return None
        case "memory":
            return _StoreLocation("memory", "memory", volatile=True)
        case str(location):
            return _StoreLocation("s3", location)
        case storage:
            assert isinstance(storage, RecordStorage)
            return _StoreLocation(storage.type, storage.location, storage.volatile)


def _made(policy: DeadLetters, pipeline: str) -> Records:
    match policy.store:
        case "memory":
            return MemoryRecords()
        case str(location):
            return in_files(opened(location), pipeline)
        case storage:
            assert isinstance(storage, RecordStorage)
            return storage.records(pipeline)


def _noted(files: Files, pipeline: str) -> _StoreLocation | None:
    """Return where the dead letters of a pipeline were last; None for next to the log."""
    try:
        data = files.read(f"{FOLDER}/{pipeline}/{_LOCATION_FILE}")
    except FileNotFoundError:
        return None
    path = files.path(f"{FOLDER}/{pipeline}/{_LOCATION_FILE}")
    try:
        found = msgspec.json.decode(data, type=_StoreLocation)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CorruptLetters("The file cannot be read", file=path) from error
    if found.format != 1:
        raise UnknownFormat("The file has an unknown format", file=path, format=found.format)
    return found


def _readable(place: _StoreLocation, pipeline: str) -> Records | None:
    """Return records that can be read without the engine that writes them."""
    return in_files(opened(place.location), pipeline) if place.type == "s3" else None


def ledger_of(records: Records, pipeline: str) -> Ledger:
    """Return the ledger of a pipeline from its records."""
    ledger = Ledger()
    for record in history(records, pipeline):
        ledger.take(record)
    return ledger


def pipelines_elsewhere(files: Files) -> dict[str, str]:
    """Return pipelines whose dead letters only a running engine can read, by their store's type."""
    found = {name: _noted(files, name) for name in files.list(FOLDER)}
    return {
        name: place.type
        for name, place in found.items()
        if place is not None and _readable(place, name) is None
    }


def stores_in(files: Files, pipeline: str | None = None) -> Iterator[tuple[str, Records]]:
    """Yield the records of all pipelines, or of one, that can be read without an engine."""
    for name in files.list(FOLDER):
        if pipeline in (None, name):
            place = _noted(files, name)
            records = in_files(files, name) if place is None else _readable(place, name)
            if records is not None:
                yield name, records


def read_letters(
    files: Files, pipeline: str | None = None, *, superseded: bool = False
) -> tuple[DeadLetter, ...]:
    """
    Return the dead letters of all pipelines, or of one, in a data directory.

    They are ordered by pipeline, then by position. This needs no engine and does not disturb a
    running one: nothing is created, synced or removed. Those in memory, or in a store of another
    package, are not among them: see `pipelines_elsewhere`.
    """
    found: list[DeadLetter] = []
    for name, records in stores_in(files, pipeline):
        found += read_records(records, name, superseded=superseded)
    return tuple(found)


def read_records(
    records: Records,
    pipeline: str,
    table: str | None = None,
    *,
    superseded: bool = False,
    after: Position | None = None,
    limit: int | None = None,
) -> tuple[DeadLetter, ...]:
    """Return dead letters of a pipeline as `DeadLetterStore.all` does, from its records alone."""
    for left in reversed(range(_AGAIN)):
        newest = max(records.numbers(), default=0)
        known = ledger_of(records, pipeline).chosen(table, superseded=superseded)
        chosen = [each.located for each in limited(known, after, limit)]
        try:
            return read_chosen(records, pipeline, chosen)
        except CorruptLetters:
            # An engine may have merged the files meanwhile.
            if not left or newest == max(records.numbers(), default=0):
                raise
    raise AssertionError("the last attempt returns or raises")
