"""
The journal of a pipeline's corrections.

A correction is a run of changes of one table that did not come from the source: dead letters that
are replayed, or a dead letter that was edited. It stands at a position after all changes of a
commit and before the next commit, and the pipeline delivers it there like changes of the log. It
is durable before it has any effect, and it is delivered again, at the same position, whenever the
pipeline reads that part of the log again: after a crash, or when a target is rebuilt.

A correction decides about a row until something newer does: a later change of the row, a truncate,
or a later correction. The journal notes which, and from which position on, for each key. When all
its keys are decided by something newer, or its rows are not wanted any more, it has ended:

| ended by | from then on |
|---|---|
| `changed` | something newer decides about all its rows; delivered only as a part of the past |
| `reload` | a copy that was begun after it has the table as the source has it; never delivered |
| `dropped` | its pipeline was dropped, or its engine was taken over from; never delivered |

A table that is loaded from folded rows begins at F, with the source's rows. Corrections before F
are not delivered then, so those that decided about a row at F are moved there (`move`): a new
correction has what they did to these rows.

The dead letters that a correction applies are resolved. But when the log before it is read again,
their changes may fail again: then their keys are held up to the correction, without dead letters,
so that the rows end as they did the first time.

Each record is a file with a number, created exclusively and synced, as dead letters are; the rows
are in it, as an Arrow stream, with the schema that they were captured with, and are read when they
are delivered. Now and then a checkpoint names the corrections that count, and other files are
removed: the journal is read from its newest checkpoint on.

Long because what is stored, what it means, and what may be removed are one contract.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import RLock
from typing import Literal, TypeAlias, TypeVar

import msgspec
import numpy as np
import pyarrow as pa
import xxhash

from headrace.changelog.change import Op, TableChanges
from headrace.changelog.entries import SchemaColumn
from headrace.changelog.history import as_columns, as_table
from headrace.changelog.position import (
    CHANGES_END,
    ORIGIN,
    Position,
    before_commit,
    before_corrections,
    in_log,
)
from headrace.changelog.schema import TableSchema
from headrace.deadletters.keys import packed_keys
from headrace.errors import AlreadyStored, CorruptJournal, UnknownFormat
from headrace.storage.files import Files
from headrace.storage.killpoints import CORRECTION_STORED, JOURNAL_CUT, reach
from headrace.storage.records import FileRecords, Records

FOLDER = "corrections"
"""Their folder in a data directory, with a folder for each pipeline."""

FORMAT = 1
_HEAD = b'{"format":%d,"check":"%s"}\n'

Kind: TypeAlias = Literal["replay", "edit", "move"]
Ending: TypeAlias = Literal["changed", "reload", "dropped"]

NOTES = 64
"""Records that only say what became of corrections, from which on a checkpoint replaces them."""

_SHARE = 4
"""A checkpoint names at most this many corrections for each file that it replaces."""

_AGAIN = 5
"""How often the journal is read again while another engine removes files."""


# --- records --------------------------------------------------------------------------------------


class SettledDeadLetter(msgspec.Struct, frozen=True, array_like=True):
    """A dead letter that a correction applies."""

    lineage: str
    position: str
    baseline: int | None
    keys: tuple[bytes, ...]


class CorrectionPart(msgspec.Struct, frozen=True, array_like=True):
    """Changes that were captured with one schema."""

    rows: int
    columns: tuple[SchemaColumn, ...]
    key: tuple[str, ...]
    whole_before: bool
    stream: bytes
    """The changes, as an Arrow stream in the shape of the schema's segment."""


class CorrectionRecord(msgspec.Struct, frozen=True, tag="correction", kw_only=True):
    """A correction as it is stored."""

    number: int
    pipeline: str
    kind: Kind
    table: str
    lineage: str
    first: str
    """The position of its first change; the others follow, one ordinal after the other."""

    copy: int
    """The number of the newest baseline of the table when it was made; a newer copy ends it."""

    keys: tuple[bytes, ...]
    """The old and new keys of its changes."""

    settles: tuple[SettledDeadLetter, ...]
    """The dead letters that it applies."""

    parts: tuple[CorrectionPart, ...]
    """Its changes, in their order."""

    note: str
    """Who made it, and why."""

    at: int
    """When, in microseconds since 1970."""


class EndedRecord(msgspec.Struct, frozen=True, tag="ended", kw_only=True):
    """Ends earlier corrections."""

    number: int
    pipeline: str
    corrections: tuple[int, ...]
    reason: Ending
    at: int


class OverriddenRecord(msgspec.Struct, frozen=True, tag="overridden", kw_only=True):
    """Says from which positions on later changes decide about rows of earlier corrections."""

    number: int
    pipeline: str
    table: str
    keys: tuple[tuple[bytes, str], ...]
    """Keys of changes, each with the position of the first."""

    emptied: str | None
    """The position of a truncate, which decides about all rows."""

    at: int


class KeptCorrection(msgspec.Struct, frozen=True, array_like=True):
    """A correction that still counts, and what became of it."""

    number: int
    ended: Ending | None
    changed: tuple[tuple[bytes, str], ...]
    """Keys, each with the position from which on something newer decides about its row."""


class CheckpointRecord(msgspec.Struct, frozen=True, tag="checkpoint", kw_only=True):
    """Names all corrections before it that count; everything else before it may be removed."""

    number: int
    pipeline: str
    kept: tuple[KeptCorrection, ...]
    at: int


_Record: TypeAlias = CorrectionRecord | EndedRecord | OverriddenRecord | CheckpointRecord
_DECODER: msgspec.msgpack.Decoder[_Record] = msgspec.msgpack.Decoder(_Record)


def encode(record: _Record) -> bytes:
    """Return the content of a record's file."""
    body = msgspec.msgpack.encode(record)
    return _HEAD % (FORMAT, xxhash.xxh3_64_hexdigest(body).encode()) + body


def decode(data: bytes, number: int, pipeline: str) -> _Record:
    """Read what `encode` wrote; raise `UnknownFormat`, or `CorruptJournal` for other bytes."""
    head, _, body = data.partition(b"\n")
    try:
        facts = msgspec.json.decode(head, type=dict[str, object])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CorruptJournal("The file of corrections cannot be read") from error
    if facts.get("format") != FORMAT:
        raise UnknownFormat(
            "The file of corrections has an unknown format", format=str(facts.get("format"))
        )
    if facts.get("check") != xxhash.xxh3_64_hexdigest(body):
        raise CorruptJournal("The file of corrections is damaged: its checksum is wrong")
    try:
        record = _DECODER.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CorruptJournal("The file of corrections cannot be read") from error
    if (record.number, record.pipeline) != (number, pipeline):
        raise CorruptJournal("The file of corrections has the name of another file")
    return record


# --- the journal ----------------------------------------------------------------------------------


@dataclass(slots=True)
class Correction:
    """One correction, as the pipeline knows it."""

    record: CorrectionRecord
    """Without its rows, if these are in a file."""

    first: Position
    last: Position
    read: Callable[[], CorrectionRecord]
    """Returns the record with its rows."""

    ended: Ending | None = None
    changed: dict[bytes, Position] = field(default_factory=dict)
    """From where on something newer decides about the rows of these keys."""

    _holds: dict[bytes, Position] | None = None

    @property
    def number(self) -> int:
        """Its number in the journal."""
        return self.record.number

    @property
    def table(self) -> str:
        return self.record.table

    @property
    def counts(self) -> bool:
        """Whether it is delivered when the log is read again."""
        return self.ended in (None, "changed")

    @property
    def holds(self) -> Mapping[bytes, Position]:
        """From where on keys are held up to it, if the log is read again."""
        if self._holds is None:
            self._holds = {}
            for settled in self.record.settles:
                begins = before_corrections(Position.parse(settled.position))
                for key in settled.keys:
                    self._holds[key] = min(begins, self._holds.get(key, begins))
        return self._holds

    def changes(self) -> Iterator[TableChanges]:
        """Yield its changes, in the shape of a segment, with the schema they were captured with."""
        for part in self.read().parts:
            schema = as_table(self.table, part.columns, part.key, part.whole_before)
            with pa.ipc.open_stream(part.stream) as reader:
                yield TableChanges(schema, reader.read_all())

    def covered_by(self, copy: int, first: Position) -> bool:
        """Whether rows copied from the source from `first` on replace it."""
        return copy > self.record.copy and first.commit >= self.first.commit

    def before(self, first: Position) -> bool:
        """Whether it is of an earlier commit than F, and so not delivered after it."""
        return (self.first.epoch, self.first.commit) < (first.epoch, first.commit)

    def decided_at(self, first: Position) -> frozenset[bytes]:
        """
        Return the keys about whose rows it decided at F.

        Not those of a correction that stands at the commit of F, which is delivered after F.
        """
        return frozenset(
            key
            for key in self.record.keys
            if (since := self.changed.get(key)) is None or before_commit(since) > in_log(first)
        )

    def override(self, key: bytes, since: Position) -> None:
        """Note that something newer decides about the row of a key."""
        self.changed[key] = min(since, self.changed.get(key, since))
        if self.counts:
            self.ended = "changed" if len(self.changed) == len(self.record.keys) else None

    def end(self, reason: Ending) -> None:
        """End it for good: it is never delivered again, and decides about nothing."""
        self.ended = reason
        if reason != "changed":
            self.record = msgspec.structs.replace(self.record, keys=(), settles=())
            self.changed, self._holds = {}, None


class Journal:
    """
    The corrections of one pipeline.

    *Durability*: what `add` and `end` wrote is durable when they return. *Failure*: `StorageError`
    and `StorageFull`, after which they may be called again; `AlreadyStored` if another engine has
    written, and then this one must stop. *Threads*: any.
    """

    def __init__(self, records: Records, pipeline: str, clock: Callable[[], float]) -> None:
        self._records = records
        self._pipeline = pipeline
        self._clock = clock
        self._lock = RLock()
        self._last = 0
        self._doubtful = False
        """Whether a write failed, so that its record may or may not exist."""
        self._known: dict[int, Correction] = {}
        self._ordered: tuple[Correction, ...] | None = None
        """The same by position; None if it must be sorted again."""
        self._files: set[int] = set()
        """The records that exist, or may exist."""
        self._cut = 0
        """The number of the newest checkpoint; 0 if there is none."""
        self._notes = 0
        """Records since then that are no corrections."""

    @classmethod
    def open(cls, files: Files, pipeline: str, clock: Callable[[], float]) -> Journal:
        """
        Return the corrections of `pipeline` in a data directory; nothing is created yet.

        `clock` returns seconds since 1970. Raises `CorruptJournal` or `UnknownFormat` by name.
        """
        records = FileRecords(files.within(f"{FOLDER}/{pipeline}"), "correction")
        journal = cls(records, pipeline, clock)
        journal._load()
        return journal

    def all(self) -> tuple[Correction, ...]:
        """Return every correction, by position."""
        with self._sure():
            if self._ordered is None:
                self._ordered = tuple(sorted(self._known.values(), key=lambda each: each.first))
            return self._ordered

    @property
    def written(self) -> bool:
        """Whether there is any record."""
        return bool(self._files)

    def fences(self) -> Iterator[Position]:
        """Yield the positions at which the log must not be merged across."""
        for each in self.all():
            if each.counts:
                yield each.first

    def concerns(self, table: str) -> bool:
        """Whether a correction of a table may have to be delivered again."""
        with self._lock:
            return any(each.table == table and each.counts for each in self._known.values())

    def next(
        self,
        lineage: str,
        tables: Collection[str],
        after: Position,
        upto: Position | None,
        loaded: tuple[int, Position] | None,
    ) -> Correction | None:
        """
        Return the first correction of these tables after `after` and not after `upto`.

        Only those of a log of this lineage: positions of others mean nothing in it.

        With `loaded`, the number and the F of a copy whose rows are being brought up to date, those
        that it covers are left out.
        """
        if not self._known:
            return None
        for each in self.all():
            if (
                each.table in tables
                and each.record.lineage == lineage
                and each.first > after
                and (upto is None or each.last <= upto)
                and each.counts
                and not (loaded is not None and each.covered_by(*loaded))
            ):
                return each
        return None

    def add(
        self,
        kind: Kind,
        changes: Sequence[TableChanges],
        keys: Collection[bytes],
        after: Position,
        *,
        settles: Sequence[SettledDeadLetter],
        lineage: str,
        copy: int,
        note: str,
    ) -> Correction:
        """
        Add a correction of one table right after `after`, the end of a commit; return it.

        From there on it decides about the rows of its keys, and earlier corrections do not.
        """
        with self._sure():
            ordinal = max(
                [
                    CHANGES_END,
                    *([after.ordinal] if after.ordinal > CHANGES_END else []),
                    *(
                        each.last.ordinal
                        for each in self._known.values()
                        if (each.last.epoch, each.last.commit) == (after.epoch, after.commit)
                    ),
                ]
            )
            first = Position(after.epoch, after.commit, ordinal + 1)
            table = changes[0].schema.table
            record = CorrectionRecord(
                number=self._last + 1,
                pipeline=self._pipeline,
                kind=kind,
                table=table,
                lineage=lineage,
                first=str(first),
                copy=copy,
                keys=tuple(keys),
                settles=tuple(settles),
                parts=parts_at(changes, first),
                note=note,
                at=self._now(),
            )
            self._create(record)
            reach(CORRECTION_STORED)
            return self._known[record.number]

    def held(
        self, table: str, at: Position, loaded: tuple[int, Position] | None = None
    ) -> dict[bytes, Position]:
        """
        Return the keys that corrections after `at` hold up to there, each with its beginning.

        `loaded` is as for `next`.
        """
        held: dict[bytes, Position] = {}
        if not self._known:
            return held
        for each in self.all():
            if (
                each.table != table
                or each.first <= at
                or not each.counts
                or (loaded is not None and each.covered_by(*loaded))
            ):
                continue
            for key, begins in each.holds.items():
                held[key] = min(begins, held.get(key, begins))
        return held

    def replaced(self, table: str, loaded: tuple[int, Position]) -> frozenset[bytes]:
        """
        Return the keys of rows that corrections at F decide about, right after they are loaded.

        If such a row cannot be computed, no dead letter is needed. `loaded` is as for `next`.
        """
        first = loaded[1]
        with self._lock:
            return frozenset(
                key
                for each in self._known.values()
                if each.table == table
                and each.counts
                and (each.first.epoch, each.first.commit) == (first.epoch, first.commit)
                and not each.covered_by(*loaded)
                for key in each.record.keys
            )

    def watched(self, table: str, first: Position, last: Position) -> frozenset[bytes]:
        """Return the keys of which it matters whether changes from `first` to `last` have them."""
        with self._lock:
            return frozenset(
                key
                for each in self._known.values()
                if each.table == table and each.counts and each.first < last
                for key in each.record.keys
                if key not in each.changed or each.changed[key] > first
            )

    def override(
        self, table: str, keys: Mapping[bytes, Position], emptied: Position | None = None
    ) -> None:
        """Note where changes first have these keys, and where the table was emptied."""
        with self._sure():
            record = OverriddenRecord(
                number=self._last + 1,
                pipeline=self._pipeline,
                table=table,
                keys=tuple((key, str(at)) for key, at in keys.items()),
                emptied=None if emptied is None else str(emptied),
                at=self._now(),
            )
            if any(True for _ in self._overridden(record)):
                self._create(record)

    def move(
        self, table: str, loaded: tuple[int, Position], lineage: str, known: Position
    ) -> Correction | None:
        """
        Move to F what rows that are loaded from there lack; return the correction, if any.

        `loaded` is as for `next`. `known` is how far it has been noted which changes decide about
        rows of corrections: if that is before F, a row may have changed since, and the source's
        counts.
        """
        copy, first = loaded
        with self._sure():
            lacking = [
                (each, keys)
                for each in self.all()
                if each.table == table
                and each.counts
                and each.record.lineage == lineage
                and each.before(first)
                and not each.covered_by(copy, first)
                and (keys := each.decided_at(first))
            ]
            if not lacking:
                return None
            if in_log(known) < in_log(first):
                self._end([each.number for each, _ in lacking], "reload")
                return None
            return self.add(
                "move",
                _of_each_schema(p for each, keys in lacking for p in net_changes(each, keys)),
                sorted({key for _, keys in lacking for key in keys}),
                self.begins(table, copy, first),
                settles=(),
                lineage=lineage,
                copy=max(each.record.copy for each, _ in lacking),
                note="",
            )

    def begins(self, table: str, copy: int, first: Position) -> Position:
        """
        Return where a table begins that is loaded from a copy that was made from `first` on.

        That is after the corrections of the same commit that it covers, and before all others.
        """
        lasts = [
            each.last
            for each in self.all()
            if each.table == table
            and each.covered_by(copy, first)
            and (each.first.epoch, each.first.commit) == (first.epoch, first.commit)
        ]
        return max([before_corrections(first), *lasts])

    def moved_upto(self, table: str, loaded: tuple[int, Position]) -> Position:
        """Return where the corrections end that were moved to F; `loaded` is as for `next`."""
        first = loaded[1]
        lasts = [
            each.last
            for each in self.all()
            if each.table == table
            and each.record.kind == "move"
            and each.counts
            and (each.first.epoch, each.first.commit) == (first.epoch, first.commit)
            and not each.covered_by(*loaded)
        ]
        return max(lasts, default=ORIGIN)

    def cover(self, table: str, copy: int, first: Position) -> None:
        """Note that the target shows a copy of the table that the source made from `first` on."""
        with self._sure():
            gone = [
                each.number
                for each in self._known.values()
                if each.table == table and each.counts and each.covered_by(copy, first)
            ]
            self._end(gone, "reload")

    def disown(self, table: str, epoch: int, lineage: str) -> None:
        """
        End the corrections of `table` if one of them is from a log that was lost.

        `epoch` and `lineage` are those of the present log.
        """
        with self._sure():
            mine = [each for each in self._known.values() if each.table == table and each.counts]
            if any(
                each.first.epoch > epoch
                or (each.first.epoch == epoch and each.record.lineage != lineage)
                for each in mine
            ):
                self._end([each.number for each in mine], "reload")

    def drop(self, numbers: Collection[int] | None = None) -> None:
        """End these corrections, which nobody delivered, or all: the pipeline was dropped."""
        with self._sure():
            if numbers is not None:
                self._end([n for n in numbers if self._known[n].ended != "dropped"], "dropped")
            elif self._known:
                self._keep({})
                self._remove()

    def tidy(self, floor: Position) -> bool:
        """
        Remove what nothing needs if the log begins at `floor`; return whether anything was.

        That is a correction before it if something newer decided about all its rows before it, and
        every record that only says what became of corrections.
        """
        with self._sure():
            kept = {n: each for n, each in self._known.items() if not _is_past(each, floor)}
            gone = len(self._known) - len(kept)
            due = self._notes >= NOTES or gone
            if due and _SHARE * (gone + self._notes) >= len(kept):
                self._keep(kept)
            return self._remove()

    # --- inside ------------------------------------------------------------------------------

    def _keep(self, kept: Mapping[int, Correction]) -> None:
        """Store which corrections count; what else there is does not from then on."""
        self._create(
            CheckpointRecord(
                number=self._last + 1,
                pipeline=self._pipeline,
                kept=tuple(
                    KeptCorrection(n, kept[n].ended, _texts(kept[n].changed)) for n in sorted(kept)
                ),
                at=self._now(),
            )
        )
        reach(JOURNAL_CUT)

    def _remove(self) -> bool:
        """Remove the files that a checkpoint has replaced; return whether there were any."""
        left = {n for n in self._files if n < self._cut and n not in self._known}
        self._records.remove(sorted(left))
        self._files -= left
        return bool(left)

    def _end(self, numbers: Sequence[int], reason: Ending) -> None:
        if numbers:
            self._create(
                EndedRecord(
                    number=self._last + 1,
                    pipeline=self._pipeline,
                    corrections=tuple(numbers),
                    reason=reason,
                    at=self._now(),
                )
            )

    @contextmanager
    def _sure(self) -> Iterator[None]:
        with self._lock:
            if self._doubtful:
                self._load()
            yield

    def _load(self) -> None:
        for left in reversed(range(_AGAIN)):
            numbers = self._records.numbers()
            try:
                self._load_from(numbers)
            except CorruptJournal:
                # Another engine may have removed files that a newer checkpoint replaces.
                if not left or max(self._records.numbers(), default=0) == max(numbers, default=0):
                    raise
            else:
                return

    def _load_from(self, numbers: Sequence[int]) -> None:
        if numbers:
            # What counts as stored must be durable; a killed process may not have got that far.
            self._records.settle()
        last = max(numbers, default=0)
        history: list[_Record] = []
        for number in range(last, 0, -1):
            history.append(record := _lean(self._read(number)))
            if isinstance(record, CheckpointRecord):
                break
        self._known, self._files, self._cut, self._notes = {}, set(numbers), 0, 0
        while history:
            self._take(history.pop())
        self._last, self._doubtful = last, False

    def _read(self, number: int) -> _Record:
        try:
            return decode(self._records.read(number), number, self._pipeline)
        except FileNotFoundError as error:
            raise CorruptJournal(
                "A file of corrections is missing", file=self._records.path(number)
            ) from error
        except (CorruptJournal, UnknownFormat) as error:
            error.facts = {"file": self._records.path(number), **error.facts}
            raise

    def _correction(self, number: int) -> CorrectionRecord:
        record = self._read(number)
        if not isinstance(record, CorrectionRecord):
            raise CorruptJournal(
                "A file of corrections has another content", file=self._records.path(number)
            )
        return record

    def _take(self, record: _Record) -> None:
        self._ordered = None
        self._files.add(record.number)
        match record:
            case CorrectionRecord():
                self._add(self._known_as(record))
            case EndedRecord():
                for number in record.corrections:
                    if record.reason == "dropped":
                        self._undo(self._known[number])
                    self._known[number].end(record.reason)
            case OverriddenRecord():
                for correction, key, since in list(self._overridden(record)):
                    correction.override(key, since)
            case CheckpointRecord():
                self._restart(record)
                return
        self._notes += not isinstance(record, CorrectionRecord)

    def _known_as(self, record: CorrectionRecord) -> Correction:
        """Return a record as a correction that reads its rows when they are needed."""
        number = record.number
        correction = as_correction(record)
        correction.record, correction.read = _lean(record), lambda: self._correction(number)
        return correction

    def _add(self, new: Correction) -> None:
        """Add a correction: it takes the rows of its keys over from those that it follows."""
        keys = frozenset(new.record.keys)
        for each in self._known.values():
            if each.table != new.table or not each.counts or each.first >= new.first:
                continue
            for key in keys.intersection(each.record.keys):
                since = each.changed.get(key)
                if since is not None and since < new.first:
                    continue
                if since is not None:  # it was moved to before what changed the row
                    new.override(key, since)
                each.override(key, new.first)
        self._known[new.number] = new

    def _undo(self, dropped: Correction) -> None:
        """Give the rows of a correction that nobody delivered back to those before it."""
        for each in self._known.values():
            for key in dropped.record.keys if each.table == dropped.table else ():
                if each.changed.get(key) == dropped.first:
                    del each.changed[key]
                    if each.counts:
                        each.ended = None
                    if key in dropped.changed:
                        each.override(key, dropped.changed[key])

    def _overridden(self, record: OverriddenRecord) -> Iterator[tuple[Correction, bytes, Position]]:
        """Yield for each correction which of its keys something newer decides about, and where."""
        at = {key: Position.parse(since) for key, since in record.keys}
        emptied = None if record.emptied is None else Position.parse(record.emptied)
        for each in self._known.values():
            if each.table != record.table or not each.counts:
                continue
            for key in each.record.keys:
                found = [since for since in (at.get(key), emptied) if since and since > each.first]
                if found and (key not in each.changed or min(found) < each.changed[key]):
                    yield each, key, min(found)

    def _restart(self, checkpoint: CheckpointRecord) -> None:
        """Know only what a checkpoint names."""
        before, self._known = self._known, {}
        for kept in checkpoint.kept:
            known = before.get(kept.number)
            if known is None:
                known = self._known_as(_lean(self._correction(kept.number)))
                known.changed = _positions(kept.changed)
                if kept.ended is not None:
                    known.end(kept.ended)
            self._known[kept.number] = known
        self._cut, self._notes = checkpoint.number, 0

    def _create(self, record: _Record) -> None:
        self._doubtful = True
        try:
            # A correction is durable before it has any effect, and the end of one before the
            # progress passes the change that ends it.
            self._records.create(record.number, encode(record))
        except AlreadyStored:
            self._doubtful = False  # another engine is running: do not load it and continue
            raise
        self._take(record)
        self._last, self._doubtful = record.number, False

    def _now(self) -> int:
        return int(self._clock() * 1_000_000)


def as_correction(record: CorrectionRecord) -> Correction:
    """Return a record as a correction that has not ended."""
    first = Position.parse(record.first)
    rows = sum(part.rows for part in record.parts)
    last = Position(first.epoch, first.commit, first.ordinal + rows - 1)
    return Correction(record, first, last, lambda: record)


_AnyRecord = TypeVar("_AnyRecord", bound=_Record)


def _lean(record: _AnyRecord) -> _AnyRecord:
    """Return a record without the rows of a correction."""
    if not isinstance(record, CorrectionRecord):
        return record
    parts = tuple(
        msgspec.structs.replace(part, columns=(), key=(), stream=b"") for part in record.parts
    )
    return msgspec.structs.replace(record, parts=parts)


def _texts(positions: Mapping[bytes, Position]) -> tuple[tuple[bytes, str], ...]:
    return tuple((key, str(at)) for key, at in positions.items())


def _positions(texts: Iterable[tuple[bytes, str]]) -> dict[bytes, Position]:
    return {key: Position.parse(at) for key, at in texts}


def _is_past(correction: Correction, floor: Position) -> bool:
    """
    Whether nothing needs a correction, because no table begins before `floor`.

    It, and what is newer than it of all its rows, is of earlier commits.
    """
    if correction.counts and len(correction.changed) < len(correction.record.keys):
        return False
    newest = max([correction.first, *correction.changed.values()])
    return (newest.epoch, newest.commit) < (floor.epoch, floor.commit)


# --- what a correction did to some rows -----------------------------------------------------------


def net_changes(correction: Correction, keys: Collection[bytes]) -> list[TableChanges]:
    """
    Return what a correction did to the rows of these keys: at most one change for each of them.

    A change that moved a row from one key to another, and decides about one of the two only, is
    returned as an insert or as a delete.
    """
    parts = list(correction.changes())
    last: dict[bytes, tuple[int, int]] = {}
    pairs = []
    for index, part in enumerate(parts):
        if not part.schema.key:
            return parts  # a change of such a row is that of another row
        packed = packed_keys(part.rows, part.schema)
        pairs.append(list(zip(packed.old.to_pylist(), packed.new.to_pylist(), strict=True)))
        for row, pair in enumerate(pairs[-1]):
            last.update(dict.fromkeys((key for key in pair if key in keys), (index, row)))
    found = []
    for index, part in enumerate(parts):
        rows = []
        for row, (old, new) in enumerate(pairs[index]):
            at = (index, row)
            sides = (old is not None and last.get(old) == at, last.get(new) == at)
            if any(sides):
                one = part.rows.slice(row, 1)
                rows.append(one if old in (None, new) or new is None else _side(one, *sides))
        if rows:
            found.append(TableChanges(part.schema, pa.concat_tables(rows)))
    return found


def _of_each_schema(parts: Iterable[TableChanges]) -> list[TableChanges]:
    """Return changes of different keys with one part for each schema."""
    found: dict[TableSchema, list[pa.Table]] = {}
    for part in parts:
        found.setdefault(part.schema, []).append(part.rows)
    return [TableChanges(schema, pa.concat_tables(rows)) for schema, rows in found.items()]


def _side(change: pa.Table, old: bool, new: bool) -> pa.Table:
    """Return what a change of the key did to the row of its old key, of its new key, or of both."""
    if old and new:
        return change
    columns: dict[str, object] = {"_op": int(Op.INSERT), "before": None}
    if old:
        columns = {"_op": int(Op.DELETE), "after": None, "_unsent": None}
    exact = [each for each in change["_exact"][0].as_py() or () if (each[0] < 0) == old]
    columns["_exact"] = exact or None
    schema = change.schema
    return pa.Table.from_arrays(
        [
            pa.array([columns[field.name]], field.type)
            if field.name in columns
            else change.column(field.name)
            for field in schema
        ],
        schema=schema,
    )


def parts_at(changes: Sequence[TableChanges], first: Position) -> tuple[CorrectionPart, ...]:
    """Return changes as parts of a correction that begins at `first`."""
    parts = []
    at = first
    for each in changes:
        rows = _positioned(each.rows, each.schema, at)
        schema = each.schema
        parts.append(
            CorrectionPart(
                rows.num_rows, as_columns(schema), schema.key, schema.whole_before, _stream(rows)
            )
        )
        at = Position(at.epoch, at.commit, at.ordinal + rows.num_rows)
    return tuple(parts)


def _positioned(rows: pa.Table, schema: TableSchema, first: Position) -> pa.Table:
    """Return changes at the positions from `first` on."""
    count = rows.num_rows
    ordinals = np.arange(first.ordinal, first.ordinal + count, dtype=np.int32)
    columns = {
        "_commit": pa.array(np.full(count, first.commit, np.int64)),
        "_ordinal": pa.array(ordinals),
    }
    return pa.Table.from_arrays(
        [columns.get(field.name, rows.column(field.name)) for field in schema.segment],
        schema=schema.segment,
    )


def _stream(rows: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows.combine_chunks())
    return bytes(sink.getvalue())
