"""
The rows of a table as batches, the first of which begins with the record that says so.

Rows are read in chunks, each of its own time, while the application goes on writing. Changes from
`first` on, put on top of the rows, make the table exact (R43).
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from uuid import uuid4

from headrace.capture.sqlite import file_identity, setup
from headrace.capture.sqlite.database import patiently, reading
from headrace.capture.sqlite.fetching import Row
from headrace.capture.sqlite.following import not_captured
from headrace.capture.sqlite.names import Names
from headrace.capture.sqlite.paging import Chunks, Pages
from headrace.capture.sqlite.place import Place
from headrace.capture.sqlite.records import Batch, Shape, TableRows
from headrace.capture.sqlite.resume import end_of
from headrace.capture.sqlite.tables import SourceTable, inspect
from headrace.errors import SchemaChanged

CHUNK_ROWS = 20_000
CHUNK_BYTES = 16 << 20
CHUNK_SECONDS = 0.1
CHUNK_SECONDS_ROLLBACK = 0.004
"""A read transaction holds back the WAL's checkpoint; without a WAL, writers (R42, R44)."""


class TableCopy:
    """Iterates over batches; `SchemaChanged` where the table is not the same any more."""

    def __init__(
        self,
        database: sqlite3.Connection,
        path: str,
        table: SourceTable,
        names: Names,
        batch_size: int,
        locked: Callable[[], None] | None = None,
    ) -> None:
        self._database = database
        self._table = table
        self._names = names
        self._size = batch_size
        mode, first, unchanged = patiently(self._beginning, locked)
        self.first = first
        """The place after which changes follow; None where none do."""
        seconds = CHUNK_SECONDS if mode == "wal" else CHUNK_SECONDS_ROLLBACK
        chunks = Chunks(CHUNK_ROWS, CHUNK_BYTES, seconds)
        self._pages = Pages(database, path, table, chunks, unchanged, lambda: None, locked)

    def _beginning(self) -> tuple[str, Place | None, _Unchanged]:
        database, names = self._database, self._names
        (mode,) = database.execute("pragma journal_mode").fetchone()
        with reading(database):
            capture = setup.capture_id(database, names)
            # Without triggers nothing follows, and in a restored file numbers come again.
            captured = (
                capture is not None
                and not setup.amiss(database, [self._table], names)
                and not file_identity.elsewhere(database, names)
            )
            first = end_of(database, str(capture), names) if captured else None
            return mode, first, _Unchanged(database, self._table, names if captured else None)

    def __iter__(self) -> Iterator[Batch]:
        shape = Shape(
            self._table.name,
            tuple(column.name for column in self._table.columns),
            tuple(column.declared for column in self._table.columns),
        )
        at = None if self.first is None else f"{self.first.capture}/{self.first.seq}"
        # Where batches end depends on their size, on time and on what is written meanwhile: the
        # same number of another copy has other rows, and must not pass for this one.
        copy = f"{at}/{shape.table}/{uuid4().hex}"
        for number, (begins, rows) in enumerate(self._parts()):
            made = TableRows(rows, shape, begins, int(time.time() * 1000), at)
            yield Batch(made, id=None if at is None else f"{copy}/{number}")

    def _parts(self) -> Iterator[tuple[bool, Sequence[Row]]]:
        """Cut pages into batches; the record that says so takes a place in the first one."""
        begins = True
        for rows in self._pages:
            at = 0
            while at < len(rows):
                step = self._size - begins
                yield begins, rows[at : at + step]
                at += step
                begins = False
        if begins:
            yield True, []


class _Unchanged:
    """Raises when a table that is being copied has other columns now, or lost its triggers."""

    def __init__(
        self, database: sqlite3.Connection, table: SourceTable, names: Names | None
    ) -> None:
        self._database = database
        self._table = table
        self._names = names
        self._version = self._schema_version()

    def __call__(self) -> None:
        version = self._schema_version()
        if version == self._version:
            return
        now = inspect(self._database, self._table.name)
        if now.fingerprint != self._table.fingerprint or (
            self._names is not None
            and not_captured(self._database, self._names, [self._table.name])
        ):
            raise SchemaChanged(
                "A table changed while its rows were read",
                table=self._table.name,
                remedy="Start again: its rows come anew.",
            )
        self._version = version

    def _schema_version(self) -> int:
        return int(self._database.execute("pragma schema_version").fetchone()[0])
