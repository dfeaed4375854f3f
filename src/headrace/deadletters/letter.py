"""
A dead letter: a change that the target was not given, whole (R30); its file, and reading it.

It holds both images as the log had them, with every value exact, so that it can be read when
the log is long gone; and a reason. `failed` are the changes that could not be computed,
`behind` those that follow one by key.

A file is a line of JSON with the format's number and a checksum of all that follows, then the
record itself: letters, or the statement that earlier letters are superseded. Letters bring their
tables' schemas along, and their rows as Arrow's own stream, so that a file can be read when
the log is gone, every value as exact as the log had it. A file also states its number and its
pipeline: one that was put in another's place is detected.

Reading letters from their folder creates, syncs and removes nothing: a reader does not disturb
the engine that writes them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
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

# --- the letter -----------------------------------------------------------------------------------

Kind: TypeAlias = Literal["failed", "behind"]
Image: TypeAlias = Mapping[str, object]

BASELINE: Final = "baseline"
"""The `op` of a baseline's row."""


@dataclass(frozen=True, slots=True)
class NewLetter:
    """A letter as a run gives it."""

    table: str
    lineage: str
    position: Position
    """Of a change; of a baseline's row, where the baseline begins (F)."""

    baseline: int | None
    """The number of the baseline whose row it is; None for a change."""

    kind: Kind
    code: str
    """Of the failure; empty for a change that is behind another."""

    facts: Mapping[str, str]
    keys: tuple[bytes, ...]
    """Its old key and its new one, as `packed_keys` makes them: both are held."""

    schema: TableSchema
    row: pa.Table
    """The change alone, in the shape of `schema.segment`."""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A letter as it is read: its values are those of the value table, none of them rounded."""

    pipeline: str
    table: str
    lineage: str
    position: Position
    """Of a change; of a baseline's row, where the baseline begins (F)."""

    baseline: int | None
    """The number of the baseline whose row it is; None for a change."""

    op: str
    """`insert`, `update`, `delete` or `truncate`; `baseline` for a baseline's row."""

    kind: Kind
    code: str
    """Spark's condition, `FUNCTION_FAILED` or `VALUE_OUTSIDE_TYPE`; empty for those behind."""

    facts: Mapping[str, str]
    key: tuple[object, ...]
    """Of the row as it is after the change, or before, where it is gone."""

    before: Image | None
    after: Image | None
    """The row; a column whose value the source did not send is not in it."""

    time: datetime | None
    """When it was committed, UTC; not known of a baseline's row."""

    parked: datetime
    """When it was set aside, UTC."""

    superseded: str | None
    """None while it holds its keys; `truncate` or `reload` once that made it history."""

    keys: tuple[bytes, ...] = field(default=(), repr=False)
    """The keys that it holds, as bytes."""


@dataclass(frozen=True, slots=True)
class Content:
    """What a row in the shape of a segment says, as values."""

    op: str
    key: tuple[object, ...]
    before: Image | None
    after: Image | None
    time: datetime | None


def contents(rows: pa.Table, schema: TableSchema) -> Iterator[Content]:
    """Yield what each of these changes says, as exact values."""
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


def behind(letter: DeadLetter, letters: Iterable[DeadLetter]) -> list[DeadLetter]:
    """Return the letters that are held back by `letter`; `letters` are in position order."""
    keys = set(letter.keys)
    found = []
    for other in letters:
        if (other.pipeline, other.table) != (letter.pipeline, letter.table):
            continue
        if other.position <= letter.position or other.superseded != letter.superseded:
            continue
        if keys.intersection(other.keys):
            keys.update(other.keys)
            found.append(other)
    return found


def _images(rows: pa.Table, schema: TableSchema, side: str) -> list[dict[str, object] | None]:
    image = rows.column(side)
    present = image.is_valid().to_pylist()
    # By place: a name with a dot in it would be taken for a path.
    columns = [
        column.type.from_arrow(pc.struct_field(image, place))
        for place, column in enumerate(schema.columns)
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

FORMAT = 1
"""The number in every file; an unknown one is refused by name."""

_HEAD = re.compile(rb'\{"format":([0-9]{1,9})(?:,"check":"([0-9a-f]{16})")?[^\n]*\}\n')


class StoredLetter(msgspec.Struct, frozen=True, array_like=True):
    """One letter, without its row."""

    table: str
    lineage: str
    position: str
    baseline: int | None
    kind: Kind
    code: str
    facts: dict[str, str]
    keys: tuple[bytes, ...]
    parked: int
    """When it was set aside, in microseconds since 1970."""

    group: int
    row: int
    """Which of the file's groups of rows, and which row of it."""


class LetterRows(msgspec.Struct, frozen=True, array_like=True):
    """The rows of the letters of one table and schema."""

    table: str
    key: tuple[str, ...]
    columns: tuple[SchemaColumn, ...]
    stream: bytes
    """Arrow's stream, in the shape of the schema's segment."""

    @property
    def schema(self) -> TableSchema:
        """The schema they were captured with."""
        # An entry of the index has more to say; none of that concerns its columns.
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
    """Letters that became durable together."""

    number: int
    pipeline: str
    groups: tuple[LetterRows, ...]
    letters: tuple[StoredLetter, ...]


class ClearedLetters(msgspec.Struct, frozen=True, tag="cleared"):
    """Letters of earlier files are superseded."""

    number: int
    pipeline: str
    table: str
    upto: str
    reason: str
    keep_baseline: int | None
    at: int
    """When, in microseconds since 1970."""


Record: TypeAlias = Page | ClearedLetters

_DECODER: msgspec.msgpack.Decoder[Record] = msgspec.msgpack.Decoder(Record)


def page(number: int, pipeline: str, letters: Sequence[NewLetter], parked: int) -> Page:
    """Return the record that keeps these letters."""
    groups: dict[TableSchema, tuple[int, list[pa.Table]]] = {}
    stored = []
    for letter in letters:
        group, rows = groups.setdefault(letter.schema, (len(groups), []))
        stored.append(
            StoredLetter(
                table=letter.table,
                lineage=letter.lineage,
                position=str(letter.position),
                baseline=letter.baseline,
                kind=letter.kind,
                code=letter.code,
                facts={_plain(name): _plain(text) for name, text in letter.facts.items()},
                keys=letter.keys,
                parked=parked,
                group=group,
                row=len(rows),
            )
        )
        rows.append(letter.row)
    made = tuple(
        LetterRows(schema.table, schema.key, as_columns(schema), _stream(schema, rows))
        for schema, (_, rows) in groups.items()
    )
    return Page(number, pipeline, made, tuple(stored))


def rows_of(group: LetterRows) -> pa.Table:
    """Return a group's rows, in the shape of its schema's segment."""
    with pa.ipc.open_stream(group.stream) as reader:
        return reader.read_all()


def encode(record: Record) -> bytes:
    """Return the record as the bytes of its file."""
    body = msgspec.msgpack.encode(record)
    return b'{"format":%d,"check":"%s"}\n%s' % (FORMAT, _check(body), body)


def decode(data: bytes, number: int, pipeline: str) -> Record:
    """Read what `encode` wrote: `UnknownFormat`, or `CorruptLetters` on anything else."""
    head = _HEAD.match(data)
    if head is None:
        raise CorruptLetters("File of dead letters cannot be read")
    if int(head[1]) != FORMAT:
        raise UnknownFormat("Dead letters in an unknown format", format=int(head[1]))
    body = data[head.end() :]
    if head[2] != _check(body):
        raise CorruptLetters("File of dead letters has other bytes than were written")
    try:
        record = _DECODER.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CorruptLetters("File of dead letters cannot be read") from error
    if (record.number, record.pipeline) != (number, pipeline):
        raise CorruptLetters(
            "File of dead letters is another's", number=record.number, pipeline=record.pipeline
        )
    return record


def read_groups(record: Page) -> list[tuple[pa.Table, TableSchema]]:
    """Return the rows and schemas that a page's letters speak of; `CorruptLetters`."""
    try:
        return [(rows_of(group), group.schema) for group in record.groups]
    except (pa.ArrowException, BadSchema, OSError, ValueError) as error:
        raise CorruptLetters("Rows of dead letters cannot be read") from error


def _stream(schema: TableSchema, rows: Sequence[pa.Table]) -> bytes:
    whole = pa.concat_tables(rows).cast(schema.segment).combine_chunks()
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, whole.schema) as writer:
        writer.write_table(whole)
    return bytes(sink.getvalue())


def _plain(text: str) -> str:
    """Return a text that can be stored: half a surrogate pair in a message must not stop a run."""
    return text.encode(errors="backslashreplace").decode()


def _check(body: bytes) -> bytes:
    return xxhash.xxh3_64_hexdigest(body).encode()


# --- reading files from their folder --------------------------------------------------------------

_NAME = re.compile(r"([0-9a-f]{12})\.letters")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def file_name(number: int) -> str:
    """Return the name of a file by its number."""
    return f"{number:012x}.letters"


def last_number(files: Files) -> int:
    """Return the number of the newest file; 0 where there is none."""
    found = (_NAME.fullmatch(name) for name in files.list(""))
    return max((int(match[1], 16) for match in found if match), default=0)


def records(files: Files, pipeline: str, last: int) -> Iterator[Record]:
    """Yield what each file up to `last` says: `CorruptLetters` where one is missing."""
    # By number, not as listed: a listing taken while files appear may miss one of them.
    for number in range(1, last + 1):
        yield _record(files, pipeline, number)


def read_chosen(
    files: Files, pipeline: str, chosen: Iterable[tuple[int, int, str | None]]
) -> tuple[DeadLetter, ...]:
    """Return the letters at these places (file, index), each with what superseded it."""
    by_number: dict[int, dict[int, str | None]] = {}
    for number, index, superseded in chosen:
        by_number.setdefault(number, {})[index] = superseded
    found: list[DeadLetter] = []
    for number, indexes in by_number.items():
        record = _record(files, pipeline, number)
        assert isinstance(record, Page)
        with _named(files, number):
            found += _opened(record, indexes)
    # Rows of a baseline come before the changes on top of them.
    found.sort(key=lambda each: (each.position, each.baseline is None, each.table, each.keys))
    return tuple(found)


def _opened(record: Page, indexes: Mapping[int, str | None]) -> Iterator[DeadLetter]:
    groups = [list(contents(rows, schema)) for rows, schema in read_groups(record)]
    for index, superseded in indexes.items():
        letter = record.letters[index]
        content = groups[letter.group][letter.row]
        yield DeadLetter(
            pipeline=record.pipeline,
            table=letter.table,
            lineage=letter.lineage,
            position=Position.parse(letter.position),
            baseline=letter.baseline,
            op=content.op if letter.baseline is None else BASELINE,
            kind=letter.kind,
            code=letter.code,
            facts=letter.facts,
            key=content.key,
            before=content.before,
            after=content.after,
            time=content.time,
            parked=_EPOCH + timedelta(microseconds=letter.parked),
            superseded=superseded,
            keys=letter.keys,
        )


def _record(files: Files, pipeline: str, number: int) -> Record:
    with _named(files, number):
        try:
            data = files.read(file_name(number))
        except FileNotFoundError as error:
            raise CorruptLetters("File of dead letters is missing") from error
        return decode(data, number, pipeline)


@contextmanager
def _named(files: Files, number: int) -> Iterator[None]:
    """Let an error about a file say which it is."""
    try:
        yield
    except (CorruptLetters, UnknownFormat) as error:
        error.facts = {"file": files.path(file_name(number)), **error.facts}
        raise
