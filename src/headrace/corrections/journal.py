"""
The journal of a pipeline's corrections.

A correction is a run of changes of one table that did not come from the source: dead letters that
are replayed, or a dead letter that was edited. It stands at a position after all changes of a
commit and before the next commit, and the pipeline delivers it there like changes of the log. It
is durable before it has any effect, and it is delivered again, at the same position, whenever the
pipeline reads that part of the log again: after a crash, or when a target is rebuilt.

A correction ends when something newer decides about its row:

| ended by | from then on |
|---|---|
| `changed` | a later change of the key or a truncate; delivered again only as a part of the past |
| `reload` | a copy that was begun after it has the table as the source has it; never delivered |
| `dropped` | its pipeline was dropped, or its engine was taken over from; never delivered |

Until then it is *active*: the row at the target is as the correction says. An active correction
keeps a volatile target's baseline from being folded past it, because the folded rows would be the
source's alone.

The dead letters that a correction applies are resolved. But when the log before it is read again,
their changes may fail again: then their keys are held up to the correction, without dead letters,
so that the rows end as they did the first time.

Each record is a file with a number, created exclusively and synced, as dead letters are; the rows
are in it, as an Arrow stream, with the schema that they were captured with.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from threading import RLock
from typing import Literal, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa
import xxhash

from headrace.changelog.change import TableChanges
from headrace.changelog.entries import SchemaColumn
from headrace.changelog.history import as_columns, as_table
from headrace.changelog.position import CHANGES_END, Position, before_corrections
from headrace.changelog.schema import TableSchema
from headrace.errors import AlreadyStored, CorruptJournal, UnknownFormat
from headrace.storage.files import Files
from headrace.storage.killpoints import CORRECTION_STORED, reach
from headrace.storage.records import FileRecords, Records

FOLDER = "corrections"
"""Their folder in a data directory, with a folder for each pipeline."""

FORMAT = 1
_HEAD = b'{"format":%d,"check":"%s"}\n'

Kind: TypeAlias = Literal["replay", "edit"]
Ending: TypeAlias = Literal["changed", "reload", "dropped"]


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


_Record: TypeAlias = CorrectionRecord | EndedRecord
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
    first: Position
    last: Position
    ended: Ending | None = None

    @property
    def number(self) -> int:
        """Its number in the journal."""
        return self.record.number

    @property
    def table(self) -> str:
        return self.record.table

    def changes(self) -> Iterator[TableChanges]:
        """Yield its changes, in the shape of a segment, with the schema they were captured with."""
        for part in self.record.parts:
            schema = as_table(self.table, part.columns, part.key, part.whole_before)
            with pa.ipc.open_stream(part.stream) as reader:
                yield TableChanges(schema, reader.read_all())

    def covered_by(self, copy: int, first: Position) -> bool:
        """Whether rows copied from the source from `first` on replace it."""
        return copy > self.record.copy and first.commit >= self.first.commit


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
            return tuple(sorted(self._known.values(), key=lambda each: each.first))

    def fences(self) -> Iterator[Position]:
        """Yield the positions at which the log must not be merged across."""
        for each in self.all():
            if each.ended in (None, "changed"):
                yield each.first

    def oldest_active(self) -> Position | None:
        """Return the position of the first correction that decides about a row of a target."""
        return min((each.first for each in self.all() if each.ended is None), default=None)

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
                and each.ended in (None, "changed")
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

        Earlier corrections of the same keys end: this one decides about their rows.
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
            before = self._concerned(table, frozenset(keys))
            self._create(record)
            reach(CORRECTION_STORED)
            if before:
                self._end(before, "changed")
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
                or each.ended not in (None, "changed")
                or (loaded is not None and each.covered_by(*loaded))
            ):
                continue
            for settled in each.record.settles:
                begins = before_corrections(Position.parse(settled.position))
                for key in settled.keys:
                    held[key] = min(begins, held.get(key, begins))
        return held

    def end(self, table: str, keys: Collection[bytes] | None) -> None:
        """Note that later changes have these keys, or with None that the table was emptied."""
        with self._sure():
            self._end(self._concerned(table, keys), "changed")

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

    def cover(self, table: str, copy: int, first: Position) -> None:
        """Note that the target shows a copy of the table that the source made from `first` on."""
        with self._sure():
            gone = [
                each.number
                for each in self._known.values()
                if each.table == table
                and each.ended in (None, "changed")
                and each.covered_by(copy, first)
            ]
            self._end(gone, "reload")

    def disown(self, table: str, epoch: int, lineage: str) -> None:
        """
        End the corrections of `table` if one of them is from a log that was lost.

        `epoch` and `lineage` are those of the present log.
        """
        with self._sure():
            mine = [
                each
                for each in self._known.values()
                if each.table == table and each.ended in (None, "changed")
            ]
            if any(
                each.first.epoch > epoch
                or (each.first.epoch == epoch and each.record.lineage != lineage)
                for each in mine
            ):
                self._end([each.number for each in mine], "reload")

    def drop(self, numbers: Collection[int] | None = None) -> None:
        """End these corrections, which nobody delivered, or all: the pipeline was dropped."""
        with self._sure():
            chosen = self._known if numbers is None else numbers
            self._end([n for n in chosen if self._known[n].ended != "dropped"], "dropped")

    def active_keys(self, table: str) -> frozenset[bytes]:
        """Return the keys of a table's active corrections."""
        with self._lock:
            return frozenset(
                key
                for each in self._known.values()
                if each.table == table and each.ended is None
                for key in each.record.keys
            )

    # --- inside ------------------------------------------------------------------------------

    def _concerned(self, table: str, keys: Collection[bytes] | None) -> list[int]:
        return [
            each.number
            for each in self._known.values()
            if each.table == table
            and each.ended is None
            and (keys is None or any(key in keys for key in each.record.keys))
        ]

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
        numbers = self._records.numbers()
        if numbers:
            # What counts as stored must be durable; a killed process may not have got that far.
            self._records.settle()
        self._known = {}
        for number in range(1, max(numbers, default=0) + 1):
            self._take(self._read(number))
        self._last, self._doubtful = max(numbers, default=0), False

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

    def _take(self, record: _Record) -> None:
        if isinstance(record, EndedRecord):
            for number in record.corrections:
                self._known[number].ended = record.reason
            return
        self._known[record.number] = as_correction(record)

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
    return Correction(record, first, Position(first.epoch, first.commit, first.ordinal + rows - 1))


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
