"""
The rows of a table by their key, a chunk at a time.

Each chunk is one short read transaction, so that no checkpoint is held back for long (R44), and
the next one goes on after the last key. Keys are compared as a whole, in the order of the index
that the key has.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from headrace.capture.sqlite.database import patiently, quoted, reading, speaking
from headrace.capture.sqlite.fetching import Reading, Row, fetch
from headrace.capture.sqlite.tables import SourceTable, column_list


@dataclass(frozen=True, slots=True)
class Chunks:
    """How much one read transaction may take."""

    rows: int
    bytes: int
    seconds: float


class Pages:
    """
    Iterates over all rows of a table, a chunk at a time, each in the table's order of columns.

    `begins` is called in the transaction of every chunk before it is read, `ends` in that of
    the last one after it was. `close` stops after the chunk that is being read. While somebody
    else holds the database's lock, `locked` is called before each new attempt; it may raise.
    """

    def __init__(
        self,
        database: sqlite3.Connection,
        path: str,
        table: SourceTable,
        chunks: Chunks,
        begins: Callable[[], None],
        ends: Callable[[], None],
        locked: Callable[[], None] | None = None,
    ) -> None:
        self._database = database
        self._path = path
        self._table = table
        self._chunks = chunks
        self._begins = begins
        self._ends = ends
        self._locked = locked
        self._closed = False
        self._terms = [quoted(name) for name in table.key]
        if not self._by_index():
            # A column may compare otherwise than the key's index does. Then the index's way
            # is asked for, which finds every row and is slower.
            self._terms = [
                term if collation is None else f"{term} collate {collation}"
                for term, collation in zip(self._terms, table.collations, strict=True)
            ]

    def __iter__(self) -> Iterator[list[Row]]:
        yield from self._without_key()
        place: Sequence[object] | None = None
        done = False
        while not done and not self._closed:
            rows, done = self._chunk(*self.following(place), last=True)
            if rows:
                place = self._key_of(rows[-1])
                yield rows

    def close(self) -> None:
        """Stop after the chunk that is being read."""
        self._closed = True

    def _chunk(self, sql: str, values: Sequence[object], *, last: bool) -> tuple[list[Row], bool]:
        """Read rows until a limit is reached; with them, whether these were the last."""
        chunks = self._chunks

        def read() -> tuple[list[Row], bool]:
            limits = Reading(chunks.rows, chunks.bytes, time.monotonic() + chunks.seconds)
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
        return f"select {names} from {quoted(self._table.name)}"

    def following(self, place: Sequence[object] | None) -> tuple[str, Sequence[object]]:
        """Return the query for the chunk after a key, or for the first one."""
        terms = self._terms
        order = f"order by {', '.join(terms)} limit {self._chunks.rows}"
        present = [f"{quoted(name)} is not null" for name in self._nullable_key]
        if place is not None:
            marks, place = _bound(place)
            present.append(f"({', '.join(terms)}) > ({', '.join(marks)})")
        where = f"where {' and '.join(present)} " if present else ""
        return f"{self._select} {where}{order}", place or ()

    def _by_index(self) -> bool:
        """Whether SQLite follows the key's index over all its columns, and thus its order."""
        sql, values = self.following([None] * len(self._table.key))
        with speaking(self._path):
            steps = patiently(
                lambda: self._database.execute(f"explain query plan {sql}", values).fetchall(),
                self._locked,
            )
        return any(str(step[3]).count("?") == len(self._table.key) for step in steps)

    def _without_key(self) -> Iterator[list[Row]]:
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
                f"where ({absent}) and {rowid} > ? order by {rowid} limit {self._chunks.rows}",
                (after,),
                last=False,
            )
            if rows:
                after = int(str(rows[-1][0]))
                yield [row[1:] for row in rows]

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
