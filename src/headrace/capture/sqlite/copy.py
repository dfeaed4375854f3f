"""
A table's rows, copied in chunks while the application continues to write (R43).

Chunks follow the key. Each is one short read transaction, so that no checkpoint is delayed for
long (R44), and the next one continues after the last key. Keys are compared as a whole, in the
order of the key's index.

Each chunk sees another snapshot, and a row whose key changes may be read twice or not at all. The
log corrects that: every change after F, the log's end before the first chunk, is applied to the
rows, and from H on, the log's end in the last chunk's own transaction, the result is exact. F and
H are up to the caller: an engine stores both, the library delivers every change after F.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence

from headrace.capture.sqlite.database import (
    ReadLimits,
    Row,
    fetch,
    has_wal,
    patiently,
    quoted,
    reading,
    speaking,
)
from headrace.capture.sqlite.tables import BUILT_IN, SourceTable, column_list, filter_text
from headrace.errors import TableRefused

CHUNK_ROWS = 20_000
CHUNK_BYTES = 16 << 20
CHUNK_SECONDS = 0.1
"""A read transaction delays the WAL's checkpoint, so none may come near 250 ms (R44)."""

CHUNK_SECONDS_ROLLBACK = 0.004
"""Without a WAL a reader blocks writers: slices below 5 ms (R42)."""


class Pages:
    """
    Iterates over all rows of a table, a chunk at a time, with the columns in the table's order.

    `begins` is called in the transaction of every chunk before it is read, `ends` in that of
    the last chunk after it was read. A chunk has at most `most` rows. `close` stops after the
    current chunk. While another connection holds the database's lock, `locked` is called before
    each new attempt; it may raise. With `after`, only rows after this key are read. If the table
    has a filter, chunks may be empty.
    """

    def __init__(
        self,
        database: sqlite3.Connection,
        path: str,
        table: SourceTable,
        begins: Callable[[], None],
        ends: Callable[[], None] = lambda: None,
        *,
        most: int | None = None,
        locked: Callable[[], None] | None = None,
        after: Sequence[object] | None = None,
    ) -> None:
        self._database = database
        self._path = path
        self._table = table
        self._begins = begins
        self._ends = ends
        self._most = CHUNK_ROWS if most is None else most
        self._locked = locked
        self._after = after
        with speaking(path):
            wal = patiently(lambda: has_wal(database), locked)
        self._seconds = CHUNK_SECONDS if wal else CHUNK_SECONDS_ROLLBACK
        self._closed = False
        self._terms = [quoted(name) for name in table.key]
        self._by_rowid = not has_order(table)
        if not self._by_rowid and not self._by_index():
            # A column may have another collation than the key's index. Then the index's
            # collation is requested, which finds every row but is slower.
            self._terms = [
                term if collation is None else f"{term} collate {quoted(collation)}"
                for term, collation in zip(self._terms, table.collations, strict=True)
            ]

    def __iter__(self) -> Iterator[list[Row]]:
        if self._by_rowid:
            # Its order is not that of the key: a copy that was cut short begins again.
            yield from self._in_order_of_rowid("1", last=True)
            return
        if self._after is None:
            yield from self._without_key()
        key = self._after
        done = False
        while not done and not self._closed:
            rows, done = self._chunk(*self.following(key), last=True)
            if rows:
                key = self._key_of(rows[-1])
                yield self._captured(rows)

    def close(self) -> None:
        """Stop after the current chunk."""
        self._closed = True

    def _chunk(self, sql: str, values: Sequence[object], *, last: bool) -> tuple[list[Row], bool]:
        """Read rows until a limit is reached; return them, and whether these were the last."""

        def read() -> tuple[list[Row], bool]:
            limits = ReadLimits(self._most, CHUNK_BYTES, time.monotonic() + self._seconds)
            with reading(self._database):
                self._begins()
                rows, done = fetch(self._database, sql, values, limits)
                if done and last:
                    self._ends()
            return rows, done

        with speaking(self._path):
            return patiently(read, self._locked)

    @property
    def _select(self) -> str:
        names = column_list([column.name for column in self._table.columns])
        if self._table.where:
            # In a column, and not in WHERE: a chunk with few such rows would take too long.
            names += f", {filter_text(self._table, f'+{quoted(self._table.name)}.')}"
        return f"select {names} from {quoted(self._table.name)}"

    def _captured(self, rows: list[Row]) -> list[Row]:
        """Return the rows that are captured, without the column that says so."""
        return [row[:-1] for row in rows if row[-1]] if self._table.where else rows

    def following(self, key: Sequence[object] | None) -> tuple[str, Sequence[object]]:
        """Return the query for the chunk after `key`, or for the first chunk."""
        terms = self._terms
        order = f"order by {', '.join(terms)} limit {self._most}"
        present = [f"{quoted(name)} is not null" for name in self._nullable_key]
        if key is not None:
            placeholders, key = _bound(key)
            present.append(f"({', '.join(terms)}) > ({', '.join(placeholders)})")
        where = f"where {' and '.join(present)} " if present else ""
        return f"{self._select} {where}{order}", key or ()

    def _by_index(self) -> bool:
        """Whether SQLite uses all columns of the key's index, and thus its order."""
        sql, values = self.following([None] * len(self._table.key))
        with speaking(self._path):
            steps = patiently(
                lambda: self._database.execute(f"explain query plan {sql}", values).fetchall(),
                self._locked,
            )
        return any(str(step[3]).count("?") == len(self._table.key) for step in steps)

    def _without_key(self) -> Iterator[list[Row]]:
        """Yield rows with a null in their key; SQLite allows any number, and the key skips them."""
        if not self._nullable_key:
            return
        absent = " or ".join(f"{quoted(name)} is null" for name in self._nullable_key)
        if self._table.rowid is None:
            raise TableRefused(
                "The table has rows without a key, and its columns have all names of the rowid",
                table=self._table.name,
                remedy="Declare the key NOT NULL, or rename one of rowid, _rowid_ and oid.",
            )
        yield from self._in_order_of_rowid(absent, last=False)

    def _in_order_of_rowid(self, condition: str, *, last: bool) -> Iterator[list[Row]]:
        rowid = quoted(str(self._table.rowid))
        after, beyond = -(2**63), ">="
        done = False
        while not done and not self._closed:
            rows, done = self._chunk(
                f"{self._select.replace('select', f'select {rowid},', 1)} where ({condition}) "
                f"and {rowid} {beyond} ? order by {rowid} limit {self._most}",
                (after,),
                last=last,
            )
            if rows:
                after, beyond = int(str(rows[-1][0])), ">"
                yield self._captured([row[1:] for row in rows])

    @property
    def _nullable_key(self) -> list[str]:
        return [column.name for column in self._table.columns if column.key and column.nullable]

    def _key_of(self, row: Sequence[object]) -> list[object]:
        names = [column.name for column in self._table.columns]
        return [row[names.index(name)] for name in self._table.key]


def has_order(table: SourceTable) -> bool:
    """Whether a table can be read in the order of its key."""
    # Only the application's connections have other collations than SQLite's own.
    return all(each in (None, *BUILT_IN) for each in table.collations)


def _bound(values: Sequence[object]) -> tuple[list[str], list[object]]:
    """Return a placeholder for each value, and the values to bind."""
    placeholders: list[str] = []
    bound: list[object] = []
    for value in values:
        if isinstance(value, str) and not value.isprintable() and _broken(value):
            # A text that is not UTF-8 can be passed to SQLite only as bytes.
            placeholders.append("cast(? as text)")
            bound.append(value.encode(errors="surrogateescape"))
        else:
            placeholders.append("?")
            bound.append(value)
    return placeholders, bound


def _broken(text: str) -> bool:
    return any("\ud800" <= character <= "\udfff" for character in text)
