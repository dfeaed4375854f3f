"""
A table's rows, copied in chunks while the application goes on writing (R43).

Chunks follow the key. Each is one short read transaction, so no chunk sees what another
saw, and a row whose key changes may be met twice or not at all. That is mended by the
log: every change after F, the log's end before the first chunk, is applied on top, and
from H on, the log's end in the last chunk's own transaction, the result is exact.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa

from headrace.capture.pacing import piece_rows
from headrace.capture.sqlite.database import quoted, reading, speaking
from headrace.capture.sqlite.rows import Reading, Row, batch_of, fetch
from headrace.capture.sqlite.setup import LOG
from headrace.capture.sqlite.tables import SourceTable, column_list
from headrace.changelog.schema import TableSchema

CHUNK_ROWS = 20_000
CHUNK_BYTES = 16 << 20
CHUNK_SECONDS = 0.1
"""A read transaction holds back the WAL's checkpoint, so none may come near 250 ms (R44)."""

CHUNK_SECONDS_ROLLBACK = 0.004
"""Without a WAL a reader keeps writers out: slices below 5 ms (R42)."""


class SQLiteCopy:
    """A baseline under way."""

    def __init__(
        self,
        database: sqlite3.Connection,
        path: str,
        table: SourceTable,
        schema: TableSchema,
        verify: Callable[[], None],
        rows_per_s: float | None = None,
    ) -> None:
        self._rows = piece_rows(rows_per_s, CHUNK_ROWS)
        self.schema = schema
        self.snapshot = ""
        self.expected = self._counted(database, path, table.name)
        self.waits = ""
        self.exact: pa.Array | None = None
        self._database = database
        self._path = path
        self._table = table
        self._verify = verify
        self._closed = False
        with speaking(path):
            (mode,) = database.execute("pragma journal_mode").fetchone()
            self.first = self._end()
        self.last = self.first
        self._terms = [quoted(name) for name in table.key]
        if not self._by_index():
            # A column may compare otherwise than the key's index does. Then the index's way
            # is asked for, which finds every row and is slower.
            self._terms = [
                term if collation is None else f"{term} collate {collation}"
                for term, collation in zip(self._terms, table.collations, strict=True)
            ]
        self._seconds = CHUNK_SECONDS if mode == "wal" else CHUNK_SECONDS_ROLLBACK

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        yield from self._without_key()
        place: Sequence[object] | None = None
        done = False
        while not done and not self._closed:
            rows, done = self._chunk(*self._following(place))
            if rows:
                place = self._key_of(rows[-1])
                yield self._batch(rows)

    def close(self) -> None:
        """Stop after the chunk that is being read."""
        self._closed = True

    @staticmethod
    def _counted(database: sqlite3.Connection, path: str, table: str) -> int | None:
        """Return what the last ANALYZE counted; counting now would take as long as copying."""
        with speaking(path):
            if not database.execute(
                "select 1 from sqlite_master where name = 'sqlite_stat1'"
            ).fetchone():
                return None
            found = database.execute(
                "select stat from sqlite_stat1 where tbl = ? and stat is not null", (table,)
            ).fetchone()
        first = str(found[0]).partition(" ")[0] if found else ""
        return int(first) if first.isdigit() else None

    def _batch(self, rows: Sequence[Row]) -> pa.RecordBatch:
        batch, self.exact = batch_of(self.schema, rows)
        return batch

    def _chunk(self, sql: str, values: Sequence[object]) -> tuple[list[Row], bool]:
        """Read rows until a limit is reached; with them, whether these were the last."""
        limits = Reading(self._rows, CHUNK_BYTES, time.monotonic() + self._seconds)
        with speaking(self._path), reading(self._database):
            self._verify()
            rows, done = fetch(self._database, sql, values, limits)
            if done:
                # H belongs to the snapshot that saw the end of the table.
                self.last = self._end()
        return rows, done

    def _end(self) -> int:
        return int(self._database.execute(f"select coalesce(max(seq), 0) from {LOG}").fetchone()[0])

    @property
    def _select(self) -> str:
        names = column_list([column.name for column in self._table.columns])
        return f"select {names} from {quoted(self._table.name)}"

    def _following(self, place: Sequence[object] | None) -> tuple[str, Sequence[object]]:
        terms = self._terms
        order = f"order by {', '.join(terms)} limit {self._rows}"
        present = [f"{quoted(name)} is not null" for name in self._nullable_key]
        if place is not None:
            marks, place = _bound(place)
            present.append(f"({', '.join(terms)}) > ({', '.join(marks)})")
        where = f"where {' and '.join(present)} " if present else ""
        return f"{self._select} {where}{order}", place or ()

    def _by_index(self) -> bool:
        """Whether SQLite follows the key's index over all its columns, and thus its order."""
        sql, values = self._following([None] * len(self._table.key))
        with speaking(self._path):
            steps = self._database.execute(f"explain query plan {sql}", values).fetchall()
        return any(str(step[3]).count("?") == len(self._table.key) for step in steps)

    def _without_key(self) -> Iterator[pa.RecordBatch]:
        """Rows with a null in their key, which SQLite allows any number of; no order finds them."""
        if not self._nullable_key:
            return
        absent = " or ".join(f"{quoted(name)} is null" for name in self._nullable_key)
        # A column may have the rowid's name, and then means itself.
        taken = {column.name.lower() for column in self._table.columns}
        rowid = next(name for name in ("_rowid_", "rowid", "oid") if name not in taken)
        after = -(2**63)
        done = False
        while not done and not self._closed:
            rows, done = self._chunk(
                f"{self._select.replace('select', f'select {rowid},', 1)} "
                f"where ({absent}) and {rowid} > ? order by {rowid} limit {self._rows}",
                (after,),
            )
            if rows:
                after = int(str(rows[-1][0]))
                yield self._batch([row[1:] for row in rows])

    @property
    def _nullable_key(self) -> list[str]:
        return [column.name for column in self._table.columns if column.key and column.nullable]

    def _key_of(self, row: Sequence[object]) -> list[object]:
        names = [column.name for column in self._table.columns]
        return [row[names.index(name)] for name in self._table.key]


def _bound(values: Sequence[object]) -> tuple[list[str], list[object]]:
    """Return a place for each value and what to bind there."""
    marks: list[str] = []
    bound: list[object] = []
    for value in values:
        if isinstance(value, str) and not value.isprintable() and _broken(value):
            # A text that is not UTF-8 can be given back to SQLite only as bytes.
            marks.append("cast(? as text)")
            bound.append(value.encode(errors="surrogateescape"))
        else:
            marks.append("?")
            bound.append(value)
    return marks, bound


def _broken(text: str) -> bool:
    return any("\ud800" <= letter <= "\udfff" for letter in text)
