"""
Records that a handler refused: stored in a file of their own, while the run continues (R30).

A handler that raises `RecordsRefused` has taken all other records of the batch. Those it names are
stored with the reason before the batch is acknowledged, and so are all later changes of the same
keys, in this batch and in later ones: what waits for a refused change must not overtake it. Both
keys of a change count if it changes the key.

`redeliver` gives them to the handler in their order, and what it takes is removed. A bootstrap of a
table removes them as well, because it delivers every row as it is now.

The file is a SQLite database that belongs to us; several readers and databases may share it. Values
are stored exactly. It is written only by the run that has the lease of the reader.
"""

from __future__ import annotations

import json
import os
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from headrace.capture.sqlite.database import DELETE, INSERT, Row, speaking, writing
from headrace.capture.sqlite.library.records import (
    CaptureBatch,
    ChangeRows,
    Record,
    TableColumns,
    TableRows,
    pack_values,
    unpack_values,
)
from headrace.errors import RecordsRefused, SourceRefused

FORMAT = 1

MOST_KEYS = 1_000
"""How many keys may wait: with more, something is wrong with all records, and the run ends."""

_TABLE = """
create table if not exists dead_letters (
    id integer primary key autoincrement, origin text, reader text, tbl text, epoch text,
    seq integer, ts integer, op integer, kind text, reason text, keys text, columns text,
    before text, after text, stored integer, is_row integer,
    unique (origin, reader, tbl, epoch, seq, keys, is_row)
)
"""

_Key = tuple[str, str]
"""A table, and the key's values as text."""


@dataclass(frozen=True, slots=True)
class DeadRecord:
    """A stored record."""

    id: int
    reader: str
    kind: Literal["refused", "waiting"]
    """Whether the handler refused it, or it waits for one of the same key."""

    reason: str
    stored_ms: int
    batch: CaptureBatch
    """A batch with the record alone."""

    @property
    def record(self) -> Record:
        """The record as the handler received it."""
        return self.batch[0]


class DeadLetterFile:
    """The stored records of one reader of one database."""

    def __init__(self, path: str, origin: str, reader: str, *, create: bool = True) -> None:
        if not create and not Path(path).exists():
            raise SourceRefused(
                "The file of dead letters does not exist", path=path, remedy="Check the path."
            )
        self._path = path
        self._origin = os.path.realpath(origin)
        self._reader = reader
        with speaking(path):
            self._file = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
            self._file.execute("pragma synchronous = full")
            self._check_format()
            self._file.execute(_TABLE)
        self._keys: set[_Key] = set()
        self._load()

    def _check_format(self) -> None:
        (found,) = self._file.execute("pragma user_version").fetchone()
        if found == 0:
            self._file.execute(f"pragma user_version = {FORMAT}")
        elif found != FORMAT:
            raise SourceRefused(
                "The file of dead letters has an unknown format",
                path=self._path,
                format=found,
                remedy="Use the version of Headrace that wrote it, or another file.",
            )

    def _load(self) -> None:
        self._keys = {
            (table, key)
            for table, keys in self._file.execute(
                "select tbl, keys from dead_letters where origin = ? and reader = ?", self._owner
            )
            for key in json.loads(keys)
        }

    @property
    def _owner(self) -> tuple[str, str]:
        return self._origin, self._reader

    # -- in a run ---------------------------------------------------------------------------

    def deliver(self, batch: CaptureBatch, handler: Callable[[CaptureBatch], object]) -> None:
        """Give a batch to the handler without the records that have to wait, and store those."""
        if isinstance(batch.rows, TableRows) and batch.rows.begins:
            self._supersede(batch.rows.shape.table)
        waiting = self._waiting(batch)
        if not waiting:
            rest = batch
        else:
            rest = _part(batch, [at for at in range(len(batch)) if at not in waiting])
        try:
            if len(rest) or rest.ends or not waiting:
                handler(rest)
        except RecordsRefused as refused:
            self._store_refused(rest, refused)
        # After what was refused just now: of one key, that came first.
        self._store((batch, at, "waiting", "") for at in sorted(waiting))

    def _waiting(self, batch: CaptureBatch) -> set[int]:
        if not self._keys:
            return set()
        held = set(self._keys)
        found = set()
        for at in range(len(batch)):
            if not held.isdisjoint(keys := _keys(batch, at)):
                found.add(at)
                held.update(keys)  # it may change the key: then later ones of both have to wait
        return found

    def _store_refused(self, batch: CaptureBatch, refused: RecordsRefused) -> None:
        indexes = refused_indexes(batch, refused)
        keys = {key for at in indexes for key in _keys(batch, at)}
        if not keys or len(self._keys | keys) > MOST_KEYS:
            raise refused
        found = []
        for at in range(min(indexes), len(batch)):
            if at in indexes:
                found.append((batch, at, "refused", _reason(refused)))
            elif not keys.isdisjoint(own := _keys(batch, at)):
                # The handler has taken it already, and takes it again after the other.
                found.append((batch, at, "waiting", ""))
                keys.update(own)
        self._store(found)

    def _store(self, found: Iterable[tuple[CaptureBatch, int, str, str]]) -> None:
        made = [_stored(batch, at, kind, reason) for batch, at, kind, reason in found]
        if not made:
            return
        with speaking(self._path), writing(self._file):
            self._file.executemany(
                "insert or ignore into dead_letters values"
                " (null, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                [(*self._owner, *each) for each in made],
            )
        self._load()

    def _supersede(self, table: str) -> None:
        if any(each == table for each, _ in self._keys):
            with speaking(self._path), writing(self._file):
                self._file.execute(
                    "delete from dead_letters where origin = ? and reader = ? and tbl = ?",
                    (*self._owner, table),
                )
            self._load()

    # -- afterwards -------------------------------------------------------------------------

    def __iter__(self) -> Iterator[DeadRecord]:
        with speaking(self._path):
            rows = self._file.execute(
                "select id, reader, kind, reason, stored, tbl, epoch, seq, ts, op, columns,"
                " before, after from dead_letters where origin = ? and reader = ? order by id",
                self._owner,
            ).fetchall()
        for id, reader, kind, reason, stored, *rest in rows:
            yield DeadRecord(id, reader, kind, reason, stored, self._batch(*rest))

    def redeliver(self, handler: Callable[[CaptureBatch], object]) -> int:
        """Give the records to the handler one by one, in order; return how many it took."""
        taken = 0
        refused: set[_Key] = set()
        for each in list(self):
            keys = set(_keys(each.batch, 0))
            if keys & refused:
                refused |= keys
                continue
            try:
                handler(each.batch)
            except RecordsRefused as error:
                refused |= keys
                self._set_reason(each.id, _reason(error))
                continue
            self.purge([each.id])
            taken += 1
        return taken

    def _set_reason(self, id: int, reason: str) -> None:
        with speaking(self._path):
            self._file.execute(
                "update dead_letters set kind = 'refused', reason = ? where id = ?", (reason, id)
            )

    def purge(self, ids: Sequence[int] | None = None) -> int:
        """Remove records, by default all; return how many."""
        with speaking(self._path), writing(self._file):
            if ids is None:
                done = self._file.execute(
                    "delete from dead_letters where origin = ? and reader = ?", self._owner
                )
            else:
                done = self._file.executemany(
                    "delete from dead_letters where origin = ? and reader = ? and id = ?",
                    [(*self._owner, id) for id in ids],
                )
        self._load()
        return done.rowcount

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _batch(
        self, table: str, epoch: str, seq: int, ts: int, op: int, columns: str, *images: str | None
    ) -> CaptureBatch:
        names, declared, key, number, group = json.loads(columns)
        shape = TableColumns(table, tuple(names), tuple(declared), tuple(key))
        before, after = (
            [None] * len(names) if image is None else unpack_values(image) for image in images
        )
        row: Row = (seq, ts, number, op, *before, *after)
        rows = ChangeRows([row], {number: shape}, len(names), epoch, group)
        name = f"{epoch}/{seq}-{seq}" if epoch else None
        source = {"connector": "sqlite", "database": self._origin, "reader": self._reader}
        return CaptureBatch(rows, id=name, source=source)


def refused_indexes(batch: CaptureBatch, refused: RecordsRefused) -> set[int]:
    """Return the indexes of the refused records; raise `refused` if they are not valid."""
    records = refused.facts.get("records")
    if not isinstance(records, list | tuple | set | frozenset):
        raise refused
    first = batch.rows.begins if isinstance(batch.rows, TableRows) else 0
    found = {at for at in records if isinstance(at, int) and first <= at < len(batch)}
    if len(found) < len(records):
        raise refused  # BOOTSTRAP cannot be stored, and other numbers are no records
    return found


def _reason(refused: RecordsRefused) -> str:
    return f"{refused.message}: {refused.detail}" if refused.detail else refused.message


# --- rows of a batch ------------------------------------------------------------------------------


def _part(batch: CaptureBatch, kept: Sequence[int]) -> CaptureBatch:
    rows = batch.rows
    if isinstance(rows, TableRows):
        picked = [rows.rows[at - rows.begins] for at in kept if at >= rows.begins]
        return CaptureBatch(
            replace(rows, rows=picked), complete=batch.complete, id=batch.id, source=batch.source
        )
    return CaptureBatch(
        replace(rows, rows=[rows.rows[at] for at in kept]),
        complete=batch.complete,
        id=batch.id,
        source=batch.source,
    )


def _keys(batch: CaptureBatch, at: int) -> list[_Key]:
    """Return the keys of a record; none for BOOTSTRAP."""
    rows = batch.rows
    if isinstance(rows, TableRows):
        if at < rows.begins:
            return []
        return [_key(rows.shape, rows.rows[at - rows.begins])]
    row = rows.rows[at]
    shape = rows.shapes[row[2]]  # type: ignore[index]
    return list(dict.fromkeys(_key(shape, image) for image in rows.images(row)))


def _key(shape: TableColumns, image: Sequence[object]) -> _Key:
    return shape.table, pack_values([_as_key(image[at]) for at in shape.key])


def _as_key(value: object) -> object:
    """Return a value as a part of a key: 1 and 1.0 are one key, also to SQLite."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _stored(batch: CaptureBatch, at: int, kind: str, reason: str) -> tuple[object, ...]:
    rows = batch.rows
    now = int(time.time() * 1000)
    keys = json.dumps([key for _, key in _keys(batch, at)])
    if isinstance(rows, TableRows):
        row = rows.rows[at - rows.begins]
        epoch, _, seq = (rows.position or "/0").rpartition("/")
        columns = _columns(rows.shape, rows.plan or 0, int(seq))
        return (
            *(rows.shape.table, epoch, int(seq), rows.ts, INSERT, kind, reason, keys, columns),
            *(None, pack_values(row), now, 1),
        )
    change = rows.rows[at]
    number, ts, plan, op = change[:4]
    shape = rows.shapes[plan]  # type: ignore[index]
    images = [pack_values(image) for image in rows.images(change)]
    before = None if op == INSERT else images[0]
    after = None if op == DELETE else images[-1]
    columns = _columns(shape, int(str(plan)), rows.group)
    return (
        *(shape.table, rows.epoch, number, ts, op, kind, reason, keys, columns),
        *(before, after, now, 0),
    )


def _columns(shape: TableColumns, plan: int, group: int) -> str:
    return json.dumps([shape.columns, shape.declared, shape.key, plan, group])
