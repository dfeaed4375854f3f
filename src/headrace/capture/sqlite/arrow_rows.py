"""
Conversion of rows from SQLite to Arrow, column by column.

Baselines and changes use the same conversion, so a value has the same form in both.
`SQLiteCopy` is a baseline as the recorder reads it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from itertools import repeat

import pyarrow as pa
import pyarrow.compute as pc

from headrace.capture.baselines import piece_rows
from headrace.capture.sqlite import copy as table_copy
from headrace.capture.sqlite.capture_log import end_of
from headrace.capture.sqlite.database import Row, speaking
from headrace.capture.sqlite.tables import SourceTable
from headrace.changelog.change import Op
from headrace.changelog.schema import TableSchema

ExactTexts = dict[int, dict[int, str]]
"""Row number → field id → exact text."""


def batch_of(schema: TableSchema, rows: Sequence[Row]) -> tuple[pa.RecordBatch, pa.Array | None]:
    """Return rows as Arrow, and the exact texts of values that the types cannot hold."""
    texts: ExactTexts = {}
    arrays = _columns(schema, list(zip(*rows, strict=True)), texts, 1)
    batch = pa.RecordBatch.from_arrays(arrays, schema=schema.arrow)
    return batch, _exact(schema, len(rows), texts) if texts else None


def segment_of(schema: TableSchema, rows: Sequence[Row], width: int) -> pa.Table:
    """
    Return rows of the capture log as a segment.

    A row consists of seq, ts, tbl, op and both images. Each image has `width` columns, of which
    the table uses the first ones.
    """
    columns = list(zip(*rows, strict=True))
    seqs, times, _, ops = columns[:4]
    texts: ExactTexts = {}
    op = pa.array(ops, pa.int8())
    before = _image(schema, columns[4 : 4 + width], pc.equal(op, int(Op.INSERT)), texts, -1)
    after = _image(schema, columns[4 + width :], pc.equal(op, int(Op.DELETE)), texts, 1)
    types = {field.name: field.type for field in schema.segment}
    count = len(rows)
    micros = pc.multiply(pa.array(times, pa.int64()), 1000)
    return pa.Table.from_arrays(
        [
            op,
            pa.array(seqs, pa.int64()),
            # Each logged change is a commit of its own (R41).
            pa.array(repeat(0, count), pa.int32()),
            pa.nulls(count, types["_xid"]),
            micros.cast(types["_time"]),
            pa.nulls(count, types["_unsent"]),
            _exact(schema, count, texts),
            before,
            after,
        ],
        schema=schema.segment,
    )


def _image(
    schema: TableSchema,
    columns: Sequence[Sequence[object]],
    absent: pa.Array,
    texts: ExactTexts,
    side: int,
) -> pa.StructArray:
    if pc.all(absent).as_py():
        return pa.nulls(len(absent), pa.struct(list(schema.arrow)))
    arrays = _columns(schema, columns, texts, side)
    return pa.StructArray.from_arrays(arrays, fields=list(schema.arrow), mask=absent)


def _columns(
    schema: TableSchema, columns: Sequence[Sequence[object]], texts: ExactTexts, side: int
) -> list[pa.Array]:
    """Return the values as Arrow; exact texts of a before image get negative field ids."""
    arrays = []
    for column, values in zip(schema.columns, columns, strict=False):
        array, unrepresentable = column.type.to_arrow(values)
        for row, text in unrepresentable:
            texts.setdefault(row, {})[side * column.field] = text
        arrays.append(array)
    return arrays


def _exact(schema: TableSchema, count: int, texts: ExactTexts) -> pa.Array:
    kind = schema.segment.field("_exact").type
    if not texts:
        return pa.nulls(count, kind)
    return pa.array(
        [list(texts[row].items()) if row in texts else None for row in range(count)], kind
    )


class SQLiteCopy:
    """A baseline that is being copied (R43)."""

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
        self.waits = ""
        self.exact: pa.Array | None = None
        self._database = database
        with speaking(path):
            self.expected = self._counted(table.name)
            self.first = self.last = end_of(database, "").seq
        most = piece_rows(rows_per_s, table_copy.CHUNK_ROWS)
        self.pages = table_copy.Pages(database, path, table, verify, self._done, most=most)

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        for rows in self.pages:
            batch, self.exact = batch_of(self.schema, rows)
            yield batch

    def close(self) -> None:
        """Stop after the chunk that is being read."""
        self.pages.close()

    def _counted(self, table: str) -> int | None:
        """Return the count of the last ANALYZE; counting now would take as long as copying."""
        if not self._database.execute(
            "select 1 from sqlite_master where name = 'sqlite_stat1'"
        ).fetchone():
            return None
        found = self._database.execute(
            "select stat from sqlite_stat1 where tbl = ? and stat is not null", (table,)
        ).fetchone()
        first = str(found[0]).partition(" ")[0] if found else ""
        return int(first) if first.isdigit() else None

    def _done(self) -> None:
        # H belongs to the snapshot in which the end of the table was read.
        self.last = end_of(self._database, "").seq
