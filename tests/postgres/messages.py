"""Messages as PostgreSQL's pgoutput writes them, and how they lie in what is received."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headrace.capture.postgres.decode.pgoutput import Relation

EPOCH = 946_684_800_000_000


class Unchanged:
    """A value that was not sent again."""


UNCHANGED = Unchanged()


@dataclass(frozen=True, slots=True)
class Binary:
    """A value in its binary form."""

    data: bytes


Value = None | str | bytes | Binary | Unchanged
Row = Sequence[Value]


def begin(xid: int, *, final: int = 0, time: int = 0) -> bytes:
    return b"B" + struct.pack(">QqI", final, time - EPOCH, xid)


def commit(end: int, *, time: int = 0, start: int = 0) -> bytes:
    return b"C" + struct.pack(">BQQq", 0, start or max(end - 8, 0), end, time - EPOCH)


def _kind(kind: bytes, xid: int | None) -> bytes:
    return kind if xid is None else kind + struct.pack(">I", xid)


def relation(it: Relation, *, xid: int | None = None) -> bytes:
    namespace = "" if it.namespace == "pg_catalog" else it.namespace
    head = struct.pack(">I", it.oid) + _text(namespace) + _text(it.table) + it.identity.encode()
    columns = b"".join(
        struct.pack(">B", column.key)
        + _text(column.name)
        + struct.pack(">Ii", column.type, column.modifier)
        for column in it.columns
    )
    return _kind(b"R", xid) + head + struct.pack(">H", len(it.columns)) + columns


def _text(text: str) -> bytes:
    return text.encode() + b"\0"


def values(row: Row) -> bytes:
    """A tuple: how many columns, then each of them."""
    return struct.pack(">H", len(row)) + b"".join(map(_value, row))


def _value(value: Value) -> bytes:
    if value is None:
        return b"n"
    if isinstance(value, Unchanged):
        return b"u"
    if isinstance(value, Binary):
        return b"b" + struct.pack(">i", len(value.data)) + value.data
    data = value.encode() if isinstance(value, str) else value
    return b"t" + struct.pack(">i", len(data)) + data


def insert(oid: int, new: Row, *, xid: int | None = None) -> bytes:
    return _kind(b"I", xid) + struct.pack(">I", oid) + b"N" + values(new)


def update(
    oid: int, new: Row, *, key: Row | None = None, old: Row | None = None, xid: int | None = None
) -> bytes:
    before = (
        b"K" + values(key) if key is not None else b"O" + values(old) if old is not None else b""
    )
    return _kind(b"U", xid) + struct.pack(">I", oid) + before + b"N" + values(new)


def delete(
    oid: int, *, key: Row | None = None, old: Row | None = None, xid: int | None = None
) -> bytes:
    before = b"K" + values(key) if key is not None else b"O" + values(old or ())
    return _kind(b"D", xid) + struct.pack(">I", oid) + before


def truncate(oids: Sequence[int], *, flags: int = 0, xid: int | None = None) -> bytes:
    return _kind(b"T", xid) + struct.pack(f">IB{len(oids)}I", len(oids), flags, *oids)


def type_(oid: int, namespace: str, name: str, *, xid: int | None = None) -> bytes:
    return _kind(b"Y", xid) + struct.pack(">I", oid) + _text(namespace) + _text(name)


def origin(lsn: int, name: str) -> bytes:
    return b"O" + struct.pack(">Q", lsn) + _text(name)


def message(
    lsn: int, prefix: str, content: bytes, *, transactional: bool = True, xid: int | None = None
) -> bytes:
    head = struct.pack(">BQ", transactional, lsn) + _text(prefix)
    return _kind(b"M", xid) + head + struct.pack(">I", len(content)) + content


def stream_start(xid: int, *, first: bool) -> bytes:
    return b"S" + struct.pack(">IB", xid, first)


def stream_stop() -> bytes:
    return b"E"


def stream_commit(xid: int, end: int, *, time: int = 0) -> bytes:
    return b"c" + struct.pack(">IBQQq", xid, 0, max(end - 8, 0), end, time - EPOCH)


def stream_abort(top: int, sub: int) -> bytes:
    return b"A" + struct.pack(">II", top, sub)


@dataclass(frozen=True, slots=True)
class Received:
    """Messages in one buffer, with something between them as on the wire."""

    buffer: bytes
    starts: NDArray[np.int64]
    stops: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Wire:
    """Puts messages into buffers, with something in front of each."""

    gap: bytes = b"d\0\0\0\0w" + b"\xff" * 24

    def received(self, messages: Iterable[bytes]) -> Received:
        """Return the messages as they lie in a buffer."""
        found = list(messages)
        sizes = np.array([len(each) for each in found], np.int64)
        starts = np.cumsum(sizes + len(self.gap)) - sizes
        return Received(b"".join(self.gap + each for each in found), starts, starts + sizes)


WIRE = Wire()


def received(messages: Iterable[bytes]) -> Received:
    """Return messages as they lie in a buffer of the usual kind."""
    return WIRE.received(messages)


def plainly(buffer: bytes | bytearray, fill: int) -> tuple[list[int], int]:
    """Where messages begin, found as the protocol describes it."""
    heads, at = [], 0
    while at + 5 <= fill:
        end = at + 1 + int.from_bytes(buffer[at + 1 : at + 5])
        if end > fill:
            break
        heads.append(at)
        at = end
    return heads, at
