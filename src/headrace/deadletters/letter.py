"""
A dead letter: a complete change that the target did not get (R30). Its file, and how it is read.

A dead letter has a reason, and both images of the change as the log had them, with every value
exact. Its kind is `failed` if the change could not be computed, and `behind` if it is a later
change with the key of a failed one.

A file is a line of JSON with the format's number and a checksum of the rest, then the record. Dead
letters are stored with the schemas of their tables, and with their rows as an Arrow stream. So a
file can be read after the log is gone, and every value is as exact as in the log. A file also
contains its number and its pipeline, so that a file under the name of another one is detected.

| record | what it says | format |
|---|---|---|
| `letters` | dead letters that were stored together | 1 |
| `cleared` | a truncate or a reload superseded a table's dead letters up to a position | 1 |
| `resolved` | these dead letters were replayed, edited or purged | 2 |
| `compacted` | everything that all earlier files say | 2 |
| `checkpoint` | stands as number 1 for files that were removed: a `compacted` has them | 2 |

`history` reads backwards from the newest file to the newest `compacted` one, or to number 1. There
no number is missing, so a lost file is detected. A version that only knows format 1 begins at
number 1, and refuses the `checkpoint` by its format.

Reading dead letters creates, syncs and removes nothing. It does not disturb the engine that writes
them: if files vanish because it compacts them, they are read again.

Long because a dead letter, its bytes, and how its files are read and merged are one format.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import groupby
from typing import Any, Final, Literal, TypeAlias

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from headrace.changelog.change import Op
from headrace.changelog.entries import Schema, SchemaColumn
from headrace.changelog.history import as_columns, as_schema
from headrace.changelog.position import Position
from headrace.changelog.schema import TableSchema
from headrace.changelog.values import ValueType, from_exact
from headrace.deadletters.keys import key_columns
from headrace.errors import BadSchema, CorruptLetters, UnknownFormat
from headrace.storage.files import Files
from headrace.storage.records import FileRecords, Records

# --- the dead letter ------------------------------------------------------------------------------

Kind: TypeAlias = Literal["failed", "behind"]
Image: TypeAlias = Mapping[str, object]

BASELINE: Final = "baseline"
"""The `op` of a row of a baseline."""


@dataclass(frozen=True, slots=True)
class NewDeadLetter:
    """A dead letter before it is stored."""

    table: str
    lineage: str
    position: Position
    """The position of the change; for a row of a baseline, where the baseline begins (F)."""

    baseline: int | None
    """The number of the row's baseline; None for a change."""

    kind: Kind
    code: str
    """The code of the failure; empty for a change that is blocked by another."""

    facts: Mapping[str, str]
    keys: tuple[bytes, ...]
    """Its old and its new key, as `packed_keys` returns them; both are held."""

    schema: TableSchema
    row: pa.Table
    """The one change, in the shape of `schema.segment`."""


@dataclass(frozen=True, slots=True, eq=False)
class StoredChange:
    """A change of a dead letter: one row among others of its file."""

    schema: TableSchema
    among: pa.Table
    """Changes in the shape of the schema's segment."""

    row: int

    @property
    def rows(self) -> pa.Table:
        """The change alone."""
        return self.among.slice(self.row, 1)


def rows_of_changes(changes: Sequence[StoredChange]) -> pa.Table:
    """Return the rows of changes that have one schema, in this order."""
    pieces = []
    for _, run in groupby(changes, key=lambda each: id(each.among)):
        found = list(run)
        pieces.append(found[0].among.take([each.row for each in found]))
    return pa.concat_tables(pieces)


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A stored dead letter. Its values have the types of the value table, and are not rounded."""

    pipeline: str
    table: str
    lineage: str
    position: Position
    """The position of the change; for a row of a baseline, where the baseline begins (F)."""

    baseline: int | None
    """The number of the row's baseline; None for a change."""

    op: str
    """`insert`, `update`, `delete` or `truncate`; `baseline` for a baseline's row."""

    kind: Kind
    code: str
    """Spark's error condition, `FUNCTION_FAILED` or `VALUE_OUTSIDE_TYPE`; empty if blocked."""

    facts: Mapping[str, str]
    key: tuple[object, ...]
    """The key of the row after the change; for a delete, before it."""

    before: Image | None
    after: Image | None
    """The row, without the columns whose values the source did not send."""

    time: datetime | None
    """Time of the commit, UTC; None for a row of a baseline."""

    parked: datetime
    """When it was parked, UTC."""

    superseded: str | None
    """
    None while it holds its keys; otherwise what ended it: `truncate`, `reload`, `dropped` with its
    pipeline, or by request: `replayed`, `edited` or `purged`.
    """

    keys: tuple[bytes, ...] = field(default=(), repr=False)
    """The keys that it holds, as bytes."""

    ended: datetime | None = None
    """When it ended, UTC; None while it holds its keys."""

    note: str = ""
    """Who ended it by request, and why."""

    change: StoredChange | None = field(default=None, repr=False, compare=False)
    """The one change, as it was captured; None for one that was not read from a store."""


@dataclass(frozen=True, slots=True)
class Content:
    """The content of a row of a segment, as values."""

    op: str
    key: tuple[object, ...]
    before: Image | None
    after: Image | None
    time: datetime | None


def contents(rows: pa.Table, schema: TableSchema) -> Iterator[Content]:
    """Yield the content of each change, as exact values."""
    before, after = (_images(rows, schema, side) for side in ("before", "after"))
    instants = ValueType("timestamptz").from_arrow(rows.column("_time"))
    columns = [column.name for column in key_columns(schema)]
    for op, old, new, instant in zip(
        rows.column("_op").to_pylist(), before, after, instants, strict=True
    ):
        found = {**(old or {}), **(new or {})}
        yield Content(
            op=Op(op).name.lower(),
            key=tuple(found.get(name) for name in columns) if found else (),
            before=old,
            after=new,
            time=instant if isinstance(instant, datetime) else None,
        )


def waiting_changes(
    dead_letter: DeadLetter, dead_letters: Iterable[DeadLetter]
) -> list[DeadLetter]:
    """Return the dead letters blocked by `dead_letter`; all are in position order."""
    keys = set(dead_letter.keys)
    found = []
    for other in dead_letters:
        if (other.pipeline, other.table) != (dead_letter.pipeline, dead_letter.table):
            continue
        if other.position <= dead_letter.position or other.superseded != dead_letter.superseded:
            continue
        if keys.intersection(other.keys):
            keys.update(other.keys)
            found.append(other)
    return found


def _images(rows: pa.Table, schema: TableSchema, side: str) -> list[dict[str, object] | None]:
    image = rows.column(side)
    present = image.is_valid().to_pylist()
    # By index: a name with a dot would be taken for a path.
    columns = [
        column.type.from_arrow(pc.struct_field(image, index))
        for index, column in enumerate(schema.columns)
    ]
    fields = {
        column.field if side == "after" else -column.field: column.name for column in schema.columns
    }
    images: list[dict[str, object] | None] = []
    for at, (exact, unsent) in enumerate(
        zip(rows.column("_exact").to_pylist(), rows.column("_unsent").to_pylist(), strict=True)
    ):
        if not present[at]:
            images.append(None)
            continue
        values: dict[str, Any] = {
            name: column[at] for name, column in zip(schema.names, columns, strict=True)
        }
        for number, text in exact or ():
            if number in fields:
                values[fields[number]] = from_exact(text)
        for number in unsent or ():
            if number in fields:
                del values[fields[number]]
        images.append(values)
    return images


# --- the bytes of a file --------------------------------------------------------------------------

FORMAT = 2
"""The newest format. The number is in every file, and a file with a greater one is refused."""

_HEAD = re.compile(rb'\{"format":([0-9]{1,9})(?:,"check":"([0-9a-f]{16})")?[^\n]*\}\n')


class StoredDeadLetter(msgspec.Struct, frozen=True, array_like=True):
    """One dead letter, without its row."""

    table: str
    lineage: str
    position: str
    baseline: int | None
    kind: Kind
    code: str
    facts: dict[str, str]
    keys: tuple[bytes, ...]
    parked: int
    """When it was parked, in microseconds since 1970."""

    group: int
    row: int
    """The group of rows in the file, and the row in that group."""


class DeadLetterRows(msgspec.Struct, frozen=True, array_like=True):
    """The rows of the dead letters of one table and schema."""

    table: str
    key: tuple[str, ...]
    columns: tuple[SchemaColumn, ...]
    stream: bytes
    """An Arrow stream, in the shape of the schema's segment."""

    @property
    def schema(self) -> TableSchema:
        """The schema that the rows were captured with."""
        # An entry of the index has more fields; none of them concerns the columns.
        return as_schema(
            Schema(
                entry=0,
                writer="",
                term=0,
                epoch=0,
                table=self.table,
                table_id=0,
                schema_id=0,
                columns=self.columns,
                key=self.key,
            )
        )


class Page(msgspec.Struct, frozen=True, tag="letters"):
    """Dead letters that were stored together."""

    number: int
    pipeline: str
    groups: tuple[DeadLetterRows, ...]
    dead_letters: tuple[StoredDeadLetter, ...] = msgspec.field(name="letters")


class ClearedDeadLetters(msgspec.Struct, frozen=True, tag="cleared"):
    """Supersedes dead letters of earlier files."""

    number: int
    pipeline: str
    table: str
    upto: str
    reason: str
    keep_baseline: int | None
    at: int
    """When, in microseconds since 1970."""


Resolution: TypeAlias = Literal["replayed", "edited", "purged"]
"""How dead letters end by request."""


class DeadLetterReference(msgspec.Struct, frozen=True, array_like=True):
    """What identifies a dead letter of earlier files, and its keys."""

    table: str
    lineage: str
    position: str
    baseline: int | None
    keys: tuple[bytes, ...]


class ResolvedDeadLetters(msgspec.Struct, frozen=True, tag="resolved"):
    """Ends dead letters of earlier files one by one."""

    number: int
    pipeline: str
    entries: tuple[DeadLetterReference, ...]
    reason: Resolution
    note: str
    """Who did it, and why."""

    at: int
    """When, in microseconds since 1970."""


class EndedDeadLetter(msgspec.Struct, frozen=True, array_like=True):
    """How a dead letter of a compacted file ended."""

    reason: str
    note: str
    at: int


class CompactedDeadLetters(msgspec.Struct, frozen=True, tag="compacted"):
    """The content of all earlier files, without what ended long ago."""

    number: int
    pipeline: str
    groups: tuple[DeadLetterRows, ...]
    dead_letters: tuple[StoredDeadLetter, ...] = msgspec.field(name="letters")
    ended: tuple[EndedDeadLetter | None, ...]
    """One for each dead letter; None for one that holds its keys."""

    purged: tuple[DeadLetterReference, ...]
    """Purged ones whose rows may still differ from the source's."""

    at: int
    """When, in microseconds since 1970."""


class DeadLetterCheckpoint(msgspec.Struct, frozen=True, tag="checkpoint"):
    """Says in file 1 that earlier files were removed, and which file has their content."""

    number: int
    pipeline: str
    first: int
    """The first compacted file; a later one may have replaced it."""


Record: TypeAlias = (
    Page | ClearedDeadLetters | ResolvedDeadLetters | CompactedDeadLetters | DeadLetterCheckpoint
)

_OF_FORMAT_1 = (Page, ClearedDeadLetters)

_DECODER: msgspec.msgpack.Decoder[Record] = msgspec.msgpack.Decoder(Record)


def page(number: int, pipeline: str, dead_letters: Sequence[NewDeadLetter], parked: int) -> Page:
    """Return the record that stores these dead letters."""
    groups: dict[TableSchema, tuple[int, list[pa.Table]]] = {}
    stored = []
    for dead_letter in dead_letters:
        group, rows = groups.setdefault(dead_letter.schema, (len(groups), []))
        stored.append(
            StoredDeadLetter(
                table=dead_letter.table,
                lineage=dead_letter.lineage,
                position=str(dead_letter.position),
                baseline=dead_letter.baseline,
                kind=dead_letter.kind,
                code=dead_letter.code,
                facts={_plain(name): _plain(text) for name, text in dead_letter.facts.items()},
                keys=dead_letter.keys,
                parked=parked,
                group=group,
                row=len(rows),
            )
        )
        rows.append(dead_letter.row)
    made = tuple(
        DeadLetterRows(schema.table, schema.key, as_columns(schema), _stream(schema, rows))
        for schema, (_, rows) in groups.items()
    )
    return Page(number, pipeline, made, tuple(stored))


def rows_of(group: DeadLetterRows) -> pa.Table:
    """Return the rows of a group, in the shape of its schema's segment."""
    with pa.ipc.open_stream(group.stream) as reader:
        return reader.read_all()


def encode(record: Record) -> bytes:
    """Return the content of the record's file."""
    body = msgspec.msgpack.encode(record)
    # Not always the newest: a version that knows only the first one goes on with files of it.
    form = 1 if isinstance(record, _OF_FORMAT_1) else 2
    return b'{"format":%d,"check":"%s"}\n%s' % (form, _check(body), body)


def decode(data: bytes, number: int, pipeline: str) -> Record:
    """Read what `encode` wrote; raise `UnknownFormat`, or `CorruptLetters` for other bytes."""
    head = _HEAD.match(data)
    if head is None:
        raise CorruptLetters("The file of dead letters cannot be read")
    if not 1 <= int(head[1]) <= FORMAT:
        raise UnknownFormat("The file of dead letters has an unknown format", format=int(head[1]))
    body = data[head.end() :]
    if head[2] != _check(body):
        raise CorruptLetters("The file of dead letters is damaged: its checksum is wrong")
    try:
        record = _DECODER.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CorruptLetters("The file of dead letters cannot be read") from error
    if (record.number, record.pipeline) != (number, pipeline):
        raise CorruptLetters(
            "The file of dead letters has the name of another file",
            number=record.number,
            pipeline=record.pipeline,
        )
    return record


def read_groups(record: Page | CompactedDeadLetters) -> list[tuple[pa.Table, TableSchema]]:
    """Return the rows and schemas of a page's dead letters; may raise `CorruptLetters`."""
    try:
        return [(rows_of(group), group.schema) for group in record.groups]
    except (pa.ArrowException, BadSchema, OSError, ValueError) as error:
        raise CorruptLetters("The rows in the file of dead letters cannot be read") from error


def _stream(schema: TableSchema, rows: Sequence[pa.Table]) -> bytes:
    whole = pa.concat_tables(rows).cast(schema.segment).combine_chunks()
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, whole.schema) as writer:
        writer.write_table(whole)
    return bytes(sink.getvalue())


def _plain(text: str) -> str:
    """Return a text that can be encoded: a lone surrogate in a message must not stop a run."""
    return text.encode(errors="backslashreplace").decode()


def _check(body: bytes) -> bytes:
    return xxhash.xxh3_64_hexdigest(body).encode()


# --- reading records ------------------------------------------------------------------------------

FOLDER = "dead-letters"
"""The folder of dead letters, with a folder for each pipeline."""

_ENDING = "letters"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_AGAIN = 5
"""How often files are read again that vanished meanwhile."""


def in_files(files: Files, pipeline: str) -> FileRecords:
    """Return the records of a pipeline in a data directory, or in a bucket."""
    return FileRecords(files.within(f"{FOLDER}/{pipeline}"), _ENDING)


def read_record(records: Records, pipeline: str, number: int) -> Record:
    """Return one record; raise `CorruptLetters` if it is missing or damaged."""
    with _named(records, number):
        try:
            data = records.read(number)
        except FileNotFoundError as error:
            raise CorruptLetters("A file of dead letters is missing") from error
        return decode(data, number, pipeline)


def history(records: Records, pipeline: str) -> list[Record]:
    """
    Return the records that count, in order and without rows; the first may be a compacted one.

    Raises `CorruptLetters` if one is missing: numbers have no gaps from the compacted one on.
    """
    for _ in range(_AGAIN):
        last = max(records.numbers(), default=0)
        try:
            return _history(records, pipeline, last)
        except CorruptLetters:
            if last == max(records.numbers(), default=0):
                raise
            # An engine has compacted the files meanwhile.
    return _history(records, pipeline, max(records.numbers(), default=0))


def _history(records: Records, pipeline: str, last: int) -> list[Record]:
    found: list[Record] = []
    # By number, not from a listing: a listing may miss files that are created meanwhile.
    for number in range(last, 0, -1):
        record = read_record(records, pipeline, number)
        if isinstance(record, DeadLetterCheckpoint):
            with _named(records, record.first):
                raise CorruptLetters("A file of dead letters is missing")
        if isinstance(record, Page | CompactedDeadLetters):
            found.append(msgspec.structs.replace(record, groups=()))
        else:
            found.append(record)
        if isinstance(record, CompactedDeadLetters):
            break
    found.reverse()
    return found


@dataclass(frozen=True, slots=True)
class Located:
    """Where a dead letter is stored, and how it ended."""

    number: int
    index: int
    position: Position
    ended: EndedDeadLetter | None


def read_chosen(
    records: Records, pipeline: str, chosen: Iterable[Located]
) -> tuple[DeadLetter, ...]:
    """Return the dead letters at these places, in order."""
    by_number: dict[int, list[Located]] = {}
    for each in chosen:
        by_number.setdefault(each.number, []).append(each)
    found: list[DeadLetter] = []
    for number, wanted in by_number.items():
        record = _page(records, pipeline, number)
        with _named(records, number):
            found += _opened(record, wanted)
    # Rows of a baseline come before the changes that follow it.
    found.sort(key=lambda each: (each.position, each.baseline is None, each.table, each.keys))
    return tuple(found)


def _page(records: Records, pipeline: str, number: int) -> Page | CompactedDeadLetters:
    """Return a record that has dead letters."""
    record = read_record(records, pipeline, number)
    if not isinstance(record, Page | CompactedDeadLetters):
        # Number 1 was replaced by a checkpoint.
        with _named(records, number):
            raise CorruptLetters("A file of dead letters is missing")
    return record


def _opened(record: Page | CompactedDeadLetters, wanted: Sequence[Located]) -> Iterator[DeadLetter]:
    groups = read_groups(record)
    every = [list(contents(rows, schema)) for rows, schema in groups]
    for each in wanted:
        dead_letter = record.dead_letters[each.index]
        content = every[dead_letter.group][dead_letter.row]
        rows, schema = groups[dead_letter.group]
        yield DeadLetter(
            pipeline=record.pipeline,
            table=dead_letter.table,
            lineage=dead_letter.lineage,
            position=each.position,
            baseline=dead_letter.baseline,
            op=content.op if dead_letter.baseline is None else BASELINE,
            kind=dead_letter.kind,
            code=dead_letter.code,
            facts=dead_letter.facts,
            key=content.key,
            before=content.before,
            after=content.after,
            time=content.time,
            parked=instant(dead_letter.parked),
            superseded=each.ended.reason if each.ended else None,
            keys=dead_letter.keys,
            ended=instant(each.ended.at) if each.ended else None,
            note=each.ended.note if each.ended else "",
            change=StoredChange(schema, rows, dead_letter.row),
        )


def instant(micros: int) -> datetime:
    """Return a time that is stored in microseconds since 1970."""
    return _EPOCH + timedelta(microseconds=micros)


@contextmanager
def _named(records: Records, number: int) -> Iterator[None]:
    """Add the file's path to the facts of an error."""
    try:
        yield
    except (CorruptLetters, UnknownFormat) as error:
        error.facts = {"file": records.path(number), **error.facts}
        raise


# --- compaction ---------------------------------------------------------------------------------


def compacted(
    records: Records,
    pipeline: str,
    number: int,
    chosen: Iterable[Located],
    purged: Iterable[DeadLetterReference],
    now: int,
) -> CompactedDeadLetters:
    """Return a record with the dead letters at these places, and nothing else of their files."""
    by_number: dict[int, list[Located]] = {}
    for each in chosen:
        by_number.setdefault(each.number, []).append(each)
    groups: dict[TableSchema, tuple[int, list[pa.Table]]] = {}
    counts: dict[int, int] = defaultdict(int)
    stored: list[StoredDeadLetter] = []
    ended: list[EndedDeadLetter | None] = []
    for source, wanted in sorted(by_number.items()):
        record = _page(records, pipeline, source)
        with _named(records, source):
            read = read_groups(record)
        of_group: dict[int, list[Located]] = {}
        for each in sorted(wanted, key=lambda one: one.index):
            of_group.setdefault(record.dead_letters[each.index].group, []).append(each)
        for old, located in of_group.items():
            rows, schema = read[old]
            group, tables = groups.setdefault(schema, (len(groups), []))
            tables.append(rows.take([record.dead_letters[one.index].row for one in located]))
            for each in located:
                dead_letter = record.dead_letters[each.index]
                stored.append(msgspec.structs.replace(dead_letter, group=group, row=counts[group]))
                ended.append(each.ended)
                counts[group] += 1
    made = tuple(
        DeadLetterRows(schema.table, schema.key, as_columns(schema), _stream(schema, tables))
        for schema, (_, tables) in groups.items()
    )
    return CompactedDeadLetters(
        number, pipeline, made, tuple(stored), tuple(ended), tuple(purged), now
    )
