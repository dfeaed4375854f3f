"""
A table's rows, copied in chunks while the application goes on writing (R43).

Chunks follow the key. Each is one short read transaction, so no chunk sees what another
saw, and a row whose key changes may be met twice or not at all. The log corrects
that: every change after F, the log's end before the first chunk, is applied on top, and
from H on, the log's end in the last chunk's own transaction, the result is exact.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator

import pyarrow as pa

from headrace.capture.baselines import piece_rows
from headrace.capture.sqlite.arrow_rows import batch_of
from headrace.capture.sqlite.database import speaking
from headrace.capture.sqlite.tables import Chunks, Pages, SourceTable
from headrace.capture.sqlite.triggers import LOG
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
        self.schema = schema
        self.snapshot = ""
        self.expected = self._counted(database, path, table.name)
        self.waits = ""
        self.exact: pa.Array | None = None
        self._database = database
        with speaking(path):
            (mode,) = database.execute("pragma journal_mode").fetchone()
            self.first = self._end()
        self.last = self.first
        seconds = CHUNK_SECONDS if mode == "wal" else CHUNK_SECONDS_ROLLBACK
        chunks = Chunks(piece_rows(rows_per_s, CHUNK_ROWS), CHUNK_BYTES, seconds)
        self.pages = Pages(database, path, table, chunks, verify, self._done)

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        for rows in self.pages:
            batch, self.exact = batch_of(self.schema, rows)
            yield batch

    def close(self) -> None:
        """Stop after the chunk that is being read."""
        self.pages.close()

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

    def _done(self) -> None:
        # H belongs to the snapshot that saw the end of the table.
        self.last = self._end()

    def _end(self) -> int:
        return int(self._database.execute(f"select coalesce(max(seq), 0) from {LOG}").fetchone()[0])
