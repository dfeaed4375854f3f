"""
Files of dead letters: their bytes.

A file is a line of JSON with the format's number and a checksum of all that follows, then the
record itself: letters, or the news that earlier letters are superseded. Letters bring their
tables' schemas along, and their rows as Arrow's own stream, so that a file can be read when
the log is gone, every value as exact as the log had it.

A file also says its number and its pipeline: one that was put in another's place is found out.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TypeAlias

import msgspec
import pyarrow as pa
import xxhash

from headrace.changelog.entry import Schema, SchemaColumn
from headrace.changelog.history import as_columns, as_schema
from headrace.changelog.schema import TableSchema
from headrace.errors import BadSchema, CorruptLetters, UnknownFormat
from headrace.pipeline.letter import Kind, NewLetter

FORMAT = 1
"""The number in every file; an unknown one is refused by name."""

_HEAD = re.compile(rb'\{"format":([0-9]{1,9})(?:,"check":"([0-9a-f]{16})")?[^\n]*\}\n')


class Stored(msgspec.Struct, frozen=True, array_like=True):
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


class Rows(msgspec.Struct, frozen=True, array_like=True):
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
    groups: tuple[Rows, ...]
    letters: tuple[Stored, ...]


class Cleared(msgspec.Struct, frozen=True, tag="cleared"):
    """Letters of earlier files are superseded."""

    number: int
    pipeline: str
    table: str
    upto: str
    reason: str
    keep_baseline: int | None
    at: int
    """When, in microseconds since 1970."""


Record: TypeAlias = Page | Cleared

_DECODER: msgspec.msgpack.Decoder[Record] = msgspec.msgpack.Decoder(Record)


def page(number: int, pipeline: str, letters: Sequence[NewLetter], parked: int) -> Page:
    """Return the record that keeps these letters."""
    groups: dict[TableSchema, tuple[int, list[pa.Table]]] = {}
    stored = []
    for letter in letters:
        group, rows = groups.setdefault(letter.schema, (len(groups), []))
        stored.append(
            Stored(
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
        Rows(schema.table, schema.key, as_columns(schema), _stream(schema, rows))
        for schema, (_, rows) in groups.items()
    )
    return Page(number, pipeline, made, tuple(stored))


def rows_of(group: Rows) -> pa.Table:
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
