"""
The store of TOAST values, which changes do not send again, by table and key (R21).

It is a cache that a baseline fills again, but its values must be exact, also when changes are read
a second time after a crash. So it keeps versions, each with its commit, for as long as reading
could restart before them. On `resume` everything after the log's end is removed, so that changes
that are read again find the values of that time. Of the changes that are read at once, only the
last version of each key is kept, because the log never ends between them.

Values are kept as bytes that represent a column's value exactly. A cell is the bytes of a value as
Arrow holds it, None for null, or a text if the column cannot hold the value and the log keeps its
exact text instead (R23f). A key is the cells of its columns, one after the other, each with its
kind and length in front: two keys have the same bytes if, and only if, they have the same values.

The store's file is opened and owned by one reader, and removed if it is damaged.

Long because the format of a value, the file and its statements have to agree byte for byte.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import sqlite3
import struct
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.capture.postgres.decode.rows import Flags
from headrace.capture.postgres.decode.text import text_column
from headrace.capture.postgres.server.catalog import CatalogTable
from headrace.changelog.schema import Column, TableSchema
from headrace.changelog.values import ValueType
from headrace.errors import SourceUnreachable, StorageError, StorageFull
from headrace.storage.permissions import make_private_folder

# --- values as the store keeps them ---------------------------------------------------------------

UNKNOWN: Final = 0
"""Used as a cell whose value is unknown."""

Cell: TypeAlias = bytes | str | int | None
"""A value, the exact text of one that does not fit, `UNKNOWN`, or null."""

ExactTexts: TypeAlias = Mapping[int, Mapping[int, str]]
"""Exact texts by row and field; those of a before image have negative fields."""

_HEAD = struct.Struct("<BI")
_PLAIN = re.compile(r"(text|character|bytea|json|xml|numeric)\b(?!.*\[)")
"""Types that need no more space than their text; an array of numbers may need much more."""


@dataclass(frozen=True)
class StoredColumns:
    """The stored columns of a table: its key, and those that may be left out of an update."""

    key: tuple[Column, ...]
    columns: tuple[Column, ...]

    @classmethod
    def of(cls, table: CatalogTable, schema: TableSchema) -> StoredColumns | None:
        """Return the columns whose values an update may leave out; None: there are none (R21)."""
        if not schema.key:
            return None
        toasted = {column.number for column in table.columns if column.toastable}
        columns = tuple(
            column
            for column in schema.columns
            # The server sends the values of a key with the old row, however they are stored.
            if column.field in toasted and column.name not in schema.key and _kept(column)
        )
        key = tuple(schema.column(name) for name in schema.key)
        return cls(key, columns) if columns else None

    @cached_property
    def missing(self) -> tuple[Cell, ...]:
        """For each column, the value of the rows that are older than the column."""
        return tuple(_missing(column) for column in self.columns)


def cells(array: pa.Array) -> list[bytes | None]:
    """Return the bytes of each value."""
    kind = array.type
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        found: list[bytes | None] = array.view(pa.binary()).to_pylist()
        return found
    if pa.types.is_struct(kind):
        children = [cells(array.field(index)) for index in range(kind.num_fields)]
        valid = array.is_valid().to_pylist()
        return [
            joined(row) if here else None
            for row, here in zip(zip(*children, strict=True), valid, strict=True)
        ]
    if pa.types.is_boolean(kind):
        array = array.cast(pa.uint8())
    return _fixed(array).to_pylist() if len(array) else []


def array_of(column: Column, values: Iterable[Cell]) -> pa.Array:
    """Return cells of a stored column as Arrow; exact texts become null."""
    kind = column.type.arrow
    plain = [value if isinstance(value, bytes) else None for value in values]
    if pa.types.is_decimal(kind):
        width = kind.bit_width // 8
        raw = pa.array(plain, pa.binary(width))
        return pa.Array.from_buffers(kind, len(raw), raw.buffers(), raw.null_count)
    return pa.array(plain, pa.binary()).view(kind)


def marked(array: pa.Array, field: int, exact_texts: ExactTexts) -> list[Cell]:
    """Return the cells of a column, with the exact texts of values that it cannot hold."""
    found: list[Cell] = list(cells(array))
    for row, texts in exact_texts.items():
        if (text := texts.get(field)) is not None:
            found[row] = text
    return found


def keys_of(
    shape: StoredColumns,
    names: Mapping[int, str],
    image: pa.StructArray,
    exact_texts: ExactTexts,
    sign: int,
) -> list[bytes]:
    """Return the key of each row of an image; `names` are the columns' names by field."""
    columns = [
        marked(image.field(names[column.field]), sign * column.field, exact_texts)
        for column in shape.key
    ]
    return [joined(row) for row in zip(*columns, strict=True)]


def texts_of(
    shape: StoredColumns,
    names: Mapping[int, str],
    image: pa.StructArray,
    exact_texts: ExactTexts,
    sign: int,
) -> list[list[str]]:
    """Return for each column of the key its values as texts that the server can read."""
    found = []
    for column in shape.key:
        values = column.type.from_arrow(image.field(names[column.field]))
        texts = [_text(value) for value in values]
        for row, exact in exact_texts.items():
            texts[row] = exact.get(sign * column.field, texts[row])
        found.append(texts)
    return found


def heavy(
    columns: Sequence[Column], image: pa.StructArray, exact_texts: ExactTexts, most: int
) -> Flags:
    """
    Return which rows may be larger than `most` bytes on a page of the server.

    Only such a row has TOAST values, which are left out if they did not change.
    """
    total = np.full(len(image), 24, np.int64)
    for index, column in enumerate(columns):
        total += 24
        array = image.field(index)
        if pa.types.is_string(array.type) or pa.types.is_binary(array.type):
            lengths = pc.fill_null(pc.binary_length(array), 0).to_numpy(zero_copy_only=False)
            total += lengths.astype(np.int64) * (1 if _PLAIN.match(column.declared) else 16)
    found: Flags = total > most
    found[list(exact_texts)] = True
    return found


OUTSIDE_BYTES = 24
"""No value of at most this many bytes is ever moved to TOAST: a pointer to it is as long."""


def long(columns: Sequence[Column], image: pa.StructArray, exact_texts: ExactTexts) -> Flags:
    """
    Return which rows have a value that may be in TOAST, whatever their size is now.

    A value stays in TOAST when the rest of its row shrinks.
    """
    found: Flags = np.zeros(len(image), np.bool_)
    for column in columns:
        array = image.field(column.name)
        if pa.types.is_string(array.type) or pa.types.is_binary(array.type):
            lengths = pc.fill_null(pc.binary_length(array), 0).to_numpy(zero_copy_only=False)
            factor = 1 if _PLAIN.match(column.declared) else 16
            found |= lengths.astype(np.int64) * factor > OUTSIDE_BYTES
        elif pa.types.is_decimal(array.type) and array.type.precision > 28:
            found |= array.is_valid().to_numpy(zero_copy_only=False)
    found[list(exact_texts)] = True
    return found


def exact_texts_of(exact: pa.Array | None) -> dict[int, dict[int, str]]:
    """Return the exact texts of a batch by row and field."""
    if exact is None or exact.null_count == len(exact):
        return {}
    rows = np.flatnonzero(exact.is_valid().to_numpy(zero_copy_only=False)).tolist()
    return {row: dict(exact[row].as_py()) for row in rows}


def sizes(row: Sequence[Cell]) -> int:
    """Return about how many bytes these cells need."""
    return sum(len(cell) for cell in row if isinstance(cell, bytes | str))


def _kept(column: Column) -> bool:
    kind = column.type.arrow
    return bool(pa.types.is_string(kind) or pa.types.is_binary(kind) or pa.types.is_decimal(kind))


def _missing(column: Column) -> Cell:
    if column.rewritten:
        return UNKNOWN
    if column.missing is None:
        return None
    array, unrepresentable = text_column(column.type, pa.array([column.missing.encode()]))
    return unrepresentable[0][1] if unrepresentable else cells(array)[0]


def _fixed(array: pa.Array) -> pa.Array:
    """Return an array of fixed width as bytes; `view` does not support all types."""
    width = array.type.bit_width // 8
    validity, values = array.buffers()
    return pa.Array.from_buffers(
        pa.binary(width), len(array), [validity, values], offset=array.offset
    )


def joined(row: Sequence[Cell]) -> bytes:
    """Return the cells of a key as one byte string."""
    if len(row) == 1 and isinstance(row[0], bytes):
        # By far the most common; no other key begins with this byte.
        return b"\x00" + row[0]
    parts = []
    for cell in row:
        if isinstance(cell, str):
            cell, kind = cell.encode(), 2
        else:
            kind = 3 if cell is None else 1
        data = cell if isinstance(cell, bytes) else b""
        parts += [_HEAD.pack(kind, len(data)), data]
    return b"".join(parts)


def _text(value: object) -> str:
    return f"\\x{value.hex()}" if isinstance(value, bytes) else str(value)


# --- the store's file -----------------------------------------------------------------------------

FORMAT: Final = 1
BUSY_SECONDS: Final = 5.0
"""The previous reader may still use the file for a moment."""

_TABLES = """
create table if not exists about (
  format integer not null, lineage text not null, "end" integer not null, owner text not null
);
create table if not exists tables (
  name text primary key, number integer not null, shape text not null, state text not null,
  first integer not null, last integer not null, cap integer not null
);
create table if not exists truncates (
  number integer not null, at integer not null, primary key (number, at)
) without rowid;
"""


class ToastFile:
    """
    One SQLite file, with one transaction at a time, which the first write begins.

    *Failure*: `StorageError`; a damaged file is removed, so that the next one is created again.
    `SourceUnreachable` if another reader has taken it since.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._owner = secrets.token_hex(8)
        with self._guarded():
            try:
                self._connection = _opened(path)
            except sqlite3.DatabaseError as error:
                if not _damaged(error):
                    raise
                discard(path)
                self._connection = _opened(path)
            about = self._connection.execute('select lineage, "end" from about').fetchone()
        self.lineage: str = about[0] if about else ""
        self.end: int = about[1] if about else -1
        """The position up to which the store is complete."""

    @property
    def busy(self) -> bool:
        """Whether there are uncommitted writes."""
        return self._connection.in_transaction

    @property
    def bytes(self) -> int:
        """The bytes in use."""
        count, free, size = (
            self.rows(f"pragma {name}")[0][0]
            for name in ("page_count", "freelist_count", "page_size")
        )
        return int((count - free) * size)

    def take(self, lineage: str, end: int) -> None:
        """Take ownership of the file: its previous owner cannot write any more."""
        with self._guarded():
            if not self.busy:
                self._connection.execute("begin immediate")
            self._connection.execute("delete from about")
            self._connection.execute(
                "insert into about values (?, ?, ?, ?)", (FORMAT, lineage, end, self._owner)
            )
        self.lineage, self.end = lineage, end

    def rows(self, statement: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """Return the rows of a query."""
        with self._guarded():
            return self._connection.execute(statement, values).fetchall()

    def write(self, statement: str, values: Sequence[object] = ()) -> None:
        """Run a statement that changes something."""
        with self._guarded():
            self._begin()
            self._connection.execute(statement, values)

    def write_all(self, statement: str, rows: Iterator[Sequence[object]]) -> None:
        """Run a statement for each of the rows."""
        with self._guarded():
            self._begin()
            self._connection.executemany(statement, rows)

    def commit(self, end: int) -> None:
        """Commit and sync what was written, and record that the store is complete up to `end`."""
        if end == self.end and not self.busy:
            return
        with self._guarded():
            # If only the end was written, a crash of the machine may lose it. The store then
            # seems older than the log, which costs no more than an unnecessary copy.
            light = not self.busy
            if light:
                self._connection.execute("pragma synchronous = normal")
            self._begin()
            self._connection.execute('update about set "end" = ?', (end,))
            self._connection.execute("commit")
            if light:
                self._connection.execute("pragma synchronous = full")
        self.end = end

    def close(self) -> None:
        """Close the file, without uncommitted writes. Never raises."""
        with suppress(sqlite3.Error):
            self._connection.close()

    def _begin(self) -> None:
        if self.busy:
            return
        self._connection.execute("begin immediate")
        found = self._connection.execute("select owner from about").fetchone()
        if found is None or found[0] != self._owner:
            self._connection.execute("rollback")
            raise SourceUnreachable(
                "Another reader has taken over the store of TOAST values", file=str(self.path)
            )

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            if _damaged(error):
                discard(self.path)
            name = getattr(error, "sqlite_errorname", "")
            kind = StorageFull if name == "SQLITE_FULL" else StorageError
            raise kind(
                "The store of TOAST values cannot be read or written",
                file=str(self.path),
                reason=name,
            ) from error


def discard(path: Path) -> None:
    """Remove a store, if it exists."""
    for suffix in ("", "-wal", "-shm"):
        with suppress(OSError):
            path.with_name(path.name + suffix).unlink(missing_ok=True)


def _opened(path: Path) -> sqlite3.Connection:
    try:
        make_private_folder(path.parent)
        # It contains row values, so only its owner may read it, from its first byte on.
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else "failed"
        raise StorageError(
            "The store of TOAST values cannot be created", file=str(path), reason=reason
        ) from error
    connection = sqlite3.connect(path, BUSY_SECONDS, isolation_level=None, check_same_thread=False)
    try:
        for pragma in ("journal_mode = wal", "synchronous = full", "cache_size = -16000"):
            connection.execute(f"pragma {pragma}").fetchall()
        connection.executescript(_TABLES)
        found = connection.execute("select format from about").fetchone()
    except sqlite3.Error:
        connection.close()
        raise
    if found is None or found[0] == FORMAT:
        return connection
    connection.close()
    # Written by another version of Headrace: it is only a cache, and is filled again.
    discard(path)
    return _opened(path)


def _damaged(error: sqlite3.Error) -> bool:
    name = getattr(error, "sqlite_errorname", "")
    return bool(name.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")))


# --- versions of values ---------------------------------------------------------------------------

State: TypeAlias = Literal["filling", "full", "over"]
Row: TypeAlias = tuple[Cell, ...]


@dataclass(frozen=True, slots=True)
class RowVersion:
    """The row of a key from one commit on."""

    at: int
    row: Row | None
    """None: the row is deleted."""


@dataclass(slots=True)
class _Table:
    number: int
    shape: StoredColumns
    state: State
    first: int
    last: int
    truncated: int = 0
    """The newest truncate: older versions are deleted."""

    sql: dict[str, str] = field(default_factory=dict)


class ToastStore:
    """
    Versions of values, by table and key.

    *Order*: commits are written in their order. *Durability*: what was written before `commit`
    returned is durable. *Duplicates*: a version that is written again replaces itself.
    *Failure*: see `ToastFile`. *Threads*: one.
    """

    def __init__(self, path: Path, cap: int) -> None:
        self._file = ToastFile(path)
        self._cap = cap
        self._superseded: deque[tuple[int, str, list[tuple[bytes, int, bool]]]] = deque()
        """Keys whose older versions can be removed once the log has reached a commit."""

        self._tables: dict[str, _Table] = {}
        for name, number, shape, state, first, last, allowed in self._file.rows(
            "select name, number, shape, state, first, last, cap from tables"
        ):
            if state == "over" and allowed < cap:
                state = "filling"  # the cap was raised: try again
            self._tables[name] = _Table(number, _parsed(shape), state, first, last)
            self._find_truncate(self._tables[name])

    # --- tables ----------------------------------------------------------------------------

    def resume(self, lineage: str, at: int, shapes: Mapping[str, StoredColumns]) -> None:
        """
        Take over the store, go back to `at`, the log's end, and keep what is complete there.

        A table that is not among `states` afterwards has no data.
        """
        usable = self._file.lineage == lineage and self._file.end >= at
        self._file.take(lineage, at)
        for name, table in list(self._tables.items()):
            shape = shapes.get(name)
            if not usable or shape is None or not self._fits(table, shape, at):
                self.forget(name)
            elif table.state == "full":
                self._file.write(f"delete from t{table.number} where at > ?", (at,))
                self._file.write(
                    "delete from truncates where number = ? and at > ?", (table.number, at)
                )
                self._find_truncate(table)
                self.tidy(name, at)
                self._note(name)
        self.commit(at)

    @property
    def states(self) -> dict[str, State]:
        """The state of each table."""
        return {name: table.state for name, table in self._tables.items()}

    def begin(self, name: str, shape: StoredColumns, first: int, last: int) -> None:
        """Recreate a table, to be filled as of F from a snapshot that sees nothing after H."""
        self.forget(name)
        [(highest,)] = self._file.rows("select coalesce(max(number), 0) from tables")
        columns = "".join(f", f{column.field}" for column in shape.columns)
        self._file.write(
            f"create table t{highest + 1} (key blob not null, at integer not null,"
            f" gone integer not null{columns}, primary key (key, at))"
        )
        self._tables[name] = _Table(highest + 1, shape, "filling", first, last)
        self._note(name)

    def finish(self, name: str) -> None:
        """Record durably that all rows of the snapshot are stored."""
        self._tables[name].state = "full"
        self._note(name)
        self.commit(self._file.end)

    def forget(self, name: str) -> None:
        """Remove a table and its data."""
        if (table := self._tables.pop(name, None)) is not None:
            self._file.write(f"drop table if exists t{table.number}")
            self._file.write("delete from truncates where number = ?", (table.number,))
            self._file.write("delete from tables where name = ?", (name,))

    # --- values ----------------------------------------------------------------------------

    def newest(self, name: str, key: bytes) -> RowVersion | None:
        """Return a key's newest version; None if there is none since the last truncate."""
        table = self._tables[name]
        found = self._file.rows(_sql(table, "newest"), (key, table.truncated))
        return RowVersion(found[0][0], None if found[0][1] else found[0][2:]) if found else None

    def at(self, name: str, key: bytes, commit: int) -> Row | None:
        """Return a key's row in the version of exactly that commit; None: there is none."""
        found = self._file.rows(_sql(self._tables[name], "at"), (key, commit))
        return found[0][2:] if found and not found[0][1] else None

    def truncated(self, name: str) -> int:
        """Return the commit of the table's last known truncate; 0: none."""
        return self._tables[name].truncated

    def put(self, name: str, rows: Iterable[tuple[bytes, Row]]) -> None:
        """Store rows of the snapshot that the table is filled from."""
        table = self._tables[name]
        self._file.write_all(
            _sql(table, "write"), ((key, table.first, False, *row) for key, row in rows)
        )

    def write(self, name: str, versions: Mapping[bytes, RowVersion]) -> None:
        """Store the new versions of keys."""
        if not versions:
            return
        table = self._tables[name]
        nothing = (None,) * len(table.shape.columns)
        self._file.write_all(
            _sql(table, "write"),
            (
                (key, version.at, version.row is None, *(version.row or nothing))
                for key, version in versions.items()
            ),
        )
        latest = max(version.at for version in versions.values())
        touched = [(key, version.at, version.row is None) for key, version in versions.items()]
        self._superseded.append((latest, name, touched))

    def truncate(self, name: str, at: int) -> None:
        """Record a truncate: all earlier versions are deleted."""
        table = self._tables[name]
        # Also versions of the same commit; those that are written later come after the truncate.
        self._file.write(f"delete from t{table.number} where at = ?", (at,))
        self._file.write("insert or replace into truncates values (?, ?)", (table.number, at))
        table.truncated = max(table.truncated, at)

    def commit(self, end: int) -> None:
        """Make what was written durable, and record that the store is complete up to `end`."""
        self._file.commit(end)

    # --- space -----------------------------------------------------------------------------

    @property
    def bytes(self) -> int:
        """The bytes in use in the file."""
        return self._file.bytes

    def shrink(self) -> list[str]:
        """Drop the largest tables until the rest is below the cap; return their names."""
        given_up: list[str] = []
        while self.bytes > self._cap:
            held = [name for name, table in self._tables.items() if table.state != "over"]
            if not held:
                break
            name = max(held, key=self._weight)
            table = self._tables[name]
            self.forget(name)
            self._tables[name] = _Table(table.number, table.shape, "over", 0, 0)
            self._note(name)
            given_up.append(name)
        return given_up

    def prune(self, synced: int, besides: Collection[str] = ()) -> None:
        """Remove versions that reading cannot go back to, except in some tables."""
        while self._superseded and self._superseded[0][0] <= synced:
            _, name, keys = self._superseded.popleft()
            table = self._tables.get(name)
            if table is not None and table.state == "full" and name not in besides:
                # The version of a deleted row need not be kept either.
                self._file.write_all(
                    f"delete from t{table.number} where key = ? and at < ?",
                    ((key, at + gone) for key, at, gone in keys),
                )
        for name, table in self._tables.items():
            if 0 < table.truncated <= synced and name not in besides:
                self.tidy(name, synced)

    def tidy(self, name: str, synced: int) -> None:
        """Remove all versions of a table that reading cannot go back to."""
        table = self._tables[name]
        number = table.number
        [(emptied,)] = self._file.rows(
            "select coalesce(max(at), 0) from truncates where number = ? and at <= ?",
            (number, synced),
        )
        self._file.write(f"delete from t{number} where at < ?", (emptied,))
        self._file.write("delete from truncates where number = ? and at <= ?", (number, emptied))
        self._find_truncate(table)
        self._file.write(
            f"delete from t{number} where at < (select max(at) from t{number} later"
            f" where later.key = t{number}.key and later.at <= ?)",
            (synced,),
        )
        self._file.write(f"delete from t{number} where gone and at <= ?", (synced,))

    def close(self) -> None:
        """Close the file, without uncommitted writes. Never raises."""
        self._file.close()

    # --- steps -----------------------------------------------------------------------------

    def _fits(self, table: _Table, shape: StoredColumns, at: int) -> bool:
        """Whether the stored data of a table is complete at `at`."""
        if table.state == "over":
            return True
        # Rows of its snapshot may be from any time up to H, and before H only the snapshot says
        # from which.
        if table.state != "full" or table.last > at:
            return False
        known = {column.field: column.type for column in table.shape.columns}
        added = [column for column in shape.columns if column.field not in known]
        if (
            _fields(table.shape.key) != _fields(shape.key)
            or any(known.get(column.field, column.type) != column.type for column in shape.columns)
            or any(column.rewritten for column in added)
        ):
            return False
        missing = dict(zip(shape.columns, shape.missing, strict=True))
        for column in added:
            literal = _literal(missing[column])
            self._file.write(
                f"alter table t{table.number} add column f{column.field} default {literal}"
            )
        table.shape = shape
        return True

    def _find_truncate(self, table: _Table) -> None:
        [(table.truncated,)] = self._file.rows(
            "select coalesce(max(at), 0) from truncates where number = ?", (table.number,)
        )

    def _note(self, name: str) -> None:
        table = self._tables[name]
        shape = json.dumps([_fields(table.shape.key), _fields(table.shape.columns)])
        self._file.write(
            "insert or replace into tables values (?, ?, ?, ?, ?, ?, ?)",
            (name, table.number, shape, table.state, table.first, table.last, self._cap),
        )

    def _weight(self, name: str) -> int:
        table = self._tables[name]
        lengths = "".join(f" + coalesce(length(f{c.field}), 0)" for c in table.shape.columns)
        [(found,)] = self._file.rows(
            f"select coalesce(sum(length(key){lengths}), 0) from t{table.number}"
        )
        return int(found)


def _sql(table: _Table, kind: str) -> str:
    """Return a statement, built once, so that SQLite's cache recognizes it."""
    if not table.sql:
        columns = ["at", "gone", *(f"f{column.field}" for column in table.shape.columns)]
        chosen = f"select {', '.join(columns)} from t{table.number} where key = ?"
        values = ", ".join("?" * (len(columns) + 1))
        table.sql["newest"] = f"{chosen} and at >= ? order by at desc limit 1"
        table.sql["at"] = f"{chosen} and at = ?"
        table.sql["write"] = (
            f"insert or replace into t{table.number} (key, {', '.join(columns)}) values ({values})"
        )
    return table.sql[kind]


def _fields(columns: Iterable[Column]) -> list[tuple[int, str]]:
    return [(column.field, str(column.type)) for column in columns]


def _parsed(text: str) -> StoredColumns:
    key, columns = (
        tuple(Column(f"f{number}", ValueType.parse(kind), number) for number, kind in part)
        for part in json.loads(text)
    )
    return StoredColumns(key, columns)


def _literal(cell: Cell) -> str:
    if isinstance(cell, bytes):
        return f"x'{cell.hex()}'"
    if isinstance(cell, str):
        return "'" + cell.replace("'", "''") + "'"
    return "null"
