"""
The messages of PostgreSQL's output plugin pgoutput, read one at a time, and layouts of rows.

Changes are far too many for that and are read by the column (`decode/rows.py`). This module has
the rest: the kinds of messages, and readers of the rare ones. Inside the stream of an unfinished
transaction, most messages have a transaction's number between their kind and their content.

The bytes come from a network. Whatever they are, reading them returns a value or raises
`BadMessage`, which gives the offset of the problem in the message.

A layout maps the rows of a relation, as the server describes it, to a table of the log. The
server sends a Relation message before the first change of a table, and again whenever its columns
may have changed. The message has the names of the columns, but not their permanent numbers, so
the catalogue is queried as well; a layout is built from both.
"""

from __future__ import annotations

import builtins
import struct
from dataclasses import dataclass
from functools import cached_property
from typing import Final, NamedTuple, NoReturn, Protocol

import pyarrow as pa

from headrace.changelog.schema import TableSchema
from headrace.errors import BadMessage

# --- layouts: from a relation's rows to a table of the log ----------------------------------------


@dataclass(frozen=True, slots=True)
class RelationColumn:
    """A column as a Relation message describes it."""

    name: str
    type: int
    """The oid of its type; of a domain, the domain's own oid."""

    modifier: int
    key: bool
    """Whether it belongs to the replica identity; under FULL all do (R23)."""


@dataclass(frozen=True, slots=True)
class Relation:
    """A Relation message."""

    oid: int
    namespace: str
    table: str
    identity: str
    """As in `pg_class.relreplident`: d, n, f or i."""

    columns: tuple[RelationColumn, ...]


@dataclass(frozen=True)
class RelationLayout:
    """Maps each value of a relation's rows to a column of the log."""

    schema: TableSchema
    indexes: tuple[int | None, ...]
    """For each column of the relation, its index in `schema.columns`; None: not recorded."""

    @cached_property
    def image(self) -> pa.StructType:
        """The type of a row, before or after a change, in the table's segments."""
        return self.schema.segment.field("after").type

    @cached_property
    def fields(self) -> list[pa.Field]:
        """The fields of a row."""
        return list(self.image)


class Layouts(Protocol):
    """The layouts of the tables that are captured."""

    def layout(self, relation: Relation) -> RelationLayout | None:
        """
        Return the relation's layout; None if the table is not captured.

        Raises `SchemaChanged` if its columns cannot be matched with those that the log has.
        """
        ...


# --- messages, one at a time ----------------------------------------------------------------------

BEGIN, COMMIT, INSERT, UPDATE, DELETE, TRUNCATE = map(ord, "BCIUDT")
RELATION, TYPE, ORIGIN, MESSAGE = map(ord, "RYOM")

MARKER_PREFIX: Final = "headrace"
MARKER_BYTES: Final = 200
"""A logical message with this prefix and at most this many bytes is a marker."""
STREAM_START, STREAM_STOP, STREAM_COMMIT, STREAM_ABORT = map(ord, "SEcA")

BEGIN_SIZE: Final = 21
"""Kind, start of the commit record, time, transaction."""

COMMIT_SIZE: Final = 26
"""Kind, flags, start and end of the commit record, time."""

EPOCH: Final = 946_684_800_000_000
"""PostgreSQL counts microseconds from 2000, we from 1970."""

LAST_TIME: Final = 2**62
"""A commit time beyond this, in either direction, is invalid: adding the epoch would overflow."""

_INT16, _INT32, _INT64 = struct.Struct(">H"), struct.Struct(">i"), struct.Struct(">q")


@dataclass(frozen=True, slots=True)
class Commit:
    """The end of a transaction, streamed or not."""

    xid: int
    """The top-level transaction, as 32 bits."""

    end: int
    """The end of the commit record: the transaction's position (R3)."""

    time: int
    """In microseconds since 1970."""

    start: int = 0
    """Where the commit record begins."""


def bad(message: str, kind: int, offset: int) -> NoReturn:
    """Raise `BadMessage` for a message of that kind, `offset` bytes from its start."""
    name = chr(kind) if 32 < kind < 127 else f"0x{kind:02x}"
    raise BadMessage(message, kind=name, offset=offset)


class LogicalMessage(NamedTuple):
    """A message that an application wrote into the server's log."""

    lsn: int | None
    """Its position in the log; None if it is part of a transaction."""

    prefix: str
    content: bytes

    @property
    def marker(self) -> str:
        """The marker's text; empty if it is not a marker, or too long."""
        if self.prefix != MARKER_PREFIX or len(self.content) > MARKER_BYTES:
            return ""
        return self.content.decode(errors="replace")


class _Cursor:
    """Reads a message step by step, and never beyond its end."""

    def __init__(self, message: bytes | bytearray | memoryview, kind: int) -> None:
        self._bytes = bytes(message)
        self.at = 1
        if not self._bytes or self._bytes[0] != kind:
            bad("Message is not of the expected kind", kind, 0)

    def wrong(self, message: str) -> NoReturn:
        bad(message, self._bytes[0], self.at)

    def _number(self, shape: struct.Struct) -> int:
        if self.at + shape.size > len(self._bytes):
            self.wrong("Message is too short")
        (value,) = shape.unpack_from(self._bytes, self.at)
        self.at += shape.size
        return int(value)

    def byte(self) -> int:
        self.skip(1)
        return self._bytes[self.at - 1]

    def count(self) -> int:
        return self._number(_INT16)

    def integer(self) -> int:
        return self._number(_INT32)

    def oid(self) -> int:
        return self._number(_INT32) & 0xFFFFFFFF

    def long(self) -> int:
        return self._number(_INT64)

    def text(self) -> str:
        end = self._bytes.find(b"\0", self.at)
        if end < 0:
            self.wrong("Text is not terminated")
        try:
            text = self._bytes[self.at : end].decode()
        except UnicodeDecodeError:
            self.wrong("Name is not UTF-8")
        self.at = end + 1
        return text

    def bytes(self, size: int) -> builtins.bytes:
        self.skip(size)
        return self._bytes[self.at - size : self.at]

    def skip(self, size: int) -> None:
        if size < 0 or self.at + size > len(self._bytes):
            self.wrong("Message is too short")
        self.at += size

    def end(self) -> None:
        if self.at != len(self._bytes):
            self.wrong("Message is longer than its content")


def read_relation(message: bytes | bytearray | memoryview, *, streamed: bool = False) -> Relation:
    """Return the description of a table in a Relation message."""
    cursor = _Cursor(message, RELATION)
    cursor.skip(4 if streamed else 0)
    oid = cursor.oid()
    # The server leaves out the name of its own namespace.
    namespace = cursor.text() or "pg_catalog"
    table = cursor.text()
    identity = chr(cursor.byte())
    if identity not in "dnfi":
        cursor.wrong("Unknown replica identity")
    columns = []
    for _ in range(cursor.count()):
        key = bool(cursor.byte() & 1)
        name = cursor.text()
        columns.append(RelationColumn(name, cursor.oid(), cursor.integer(), key))
    cursor.end()
    return Relation(oid, namespace, table, identity, tuple(columns))


def read_truncate(
    message: bytes | bytearray | memoryview, *, streamed: bool = False
) -> tuple[int, ...]:
    """Return the oids of the tables that were truncated together, each once."""
    cursor = _Cursor(message, TRUNCATE)
    cursor.skip(4 if streamed else 0)
    count = cursor.integer()
    cursor.byte()  # CASCADE, RESTART IDENTITY: the server has done both.
    if count < 0 or count * 4 != len(message) - cursor.at:
        cursor.wrong("Message length does not match its number of tables")
    return tuple(dict.fromkeys(cursor.oid() for _ in range(count)))


def read_message(
    message: bytes | bytearray | memoryview, *, streamed: bool = False
) -> LogicalMessage:
    """Return a message that was written into the server's log by `pg_logical_emit_message`."""
    cursor = _Cursor(message, MESSAGE)
    cursor.skip(4 if streamed else 0)
    transactional = cursor.byte() & 1
    lsn = cursor.long()
    prefix = cursor.text()
    content = cursor.bytes(cursor.integer())
    cursor.end()
    if lsn < 0:
        cursor.wrong("LSN is out of range")
    return LogicalMessage(None if transactional else lsn, prefix, content)


def check_type(message: bytes | bytearray | memoryview, *, streamed: bool = False) -> None:
    """Read a Type message; the catalogue has the same information."""
    cursor = _Cursor(message, TYPE)
    cursor.skip(8 if streamed else 4)
    cursor.text()
    cursor.text()
    cursor.end()


def check_origin(message: bytes | bytearray | memoryview) -> None:
    """Read an Origin message; the origin of a change is not used."""
    cursor = _Cursor(message, ORIGIN)
    cursor.skip(8)
    cursor.text()
    cursor.end()


def read_stream_start(message: bytes | bytearray | memoryview) -> tuple[int, bool]:
    """Return the transaction whose messages follow, and whether they are its first."""
    cursor = _Cursor(message, STREAM_START)
    xid, first = cursor.oid(), cursor.byte()
    cursor.end()
    return xid, first == 1


def check_stream_stop(message: bytes | bytearray | memoryview) -> None:
    """Read a Stream Stop, which has no content."""
    _Cursor(message, STREAM_STOP).end()


def read_stream_commit(message: bytes | bytearray | memoryview) -> Commit:
    """Return the commit of a streamed transaction."""
    cursor = _Cursor(message, STREAM_COMMIT)
    xid = cursor.oid()
    cursor.skip(1)
    start, end, time = cursor.long(), cursor.long(), cursor.long()
    cursor.end()
    if end <= 0:
        cursor.wrong("LSN is out of range")
    if abs(time) > LAST_TIME:
        cursor.wrong("Commit time is out of range")
    return Commit(xid, end, time + EPOCH, start)


def read_stream_abort(message: bytes | bytearray | memoryview) -> tuple[int, int]:
    """Return the top-level transaction, and the one rolled back: the same, or one inside it."""
    cursor = _Cursor(message, STREAM_ABORT)
    top, sub = cursor.oid(), cursor.oid()
    if len(message) != cursor.at:
        # LSN and time of the abort, from protocol version 4 on.
        cursor.skip(16)
    cursor.end()
    return top, sub
