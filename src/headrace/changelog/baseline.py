"""
A baseline on its way into the log.

Its rows go to disk part by part, and nobody sees one before the last: the entry that names
all parts is what makes a baseline (H4). Until then it can be discarded, or forgotten in a
crash, without a trace but files that the next writer sweeps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from headrace.changelog.change import Op
from headrace.changelog.entry import Baseline, File
from headrace.changelog.position import MAX_ORDINAL, Position
from headrace.changelog.schema import TableSchema
from headrace.errors import ChangeLogError, PositionExpired

if TYPE_CHECKING:
    from headrace.changelog.writer import LogWriter

PART_BYTES = 32 << 20
"""About the size of a part: enough for Spark to share out, small in memory."""


class BaselineWriter:
    """Takes the rows of one table, in the shape of `schema.arrow`, in any order."""

    def __init__(
        self,
        log: LogWriter,
        schema: TableSchema,
        schema_id: int,
        number: int,
        stem: str,
        since: int,
    ) -> None:
        self.number = number
        self.stem = stem
        """How the names of its segments begin."""

        self.schema_id = schema_id
        self._log = log
        self._schema = schema
        self._since = since
        self._waiting: list[pa.Table] = []
        self._size = 0
        self._files: list[File] = []
        self.rows = 0

    def write(self, batch: pa.RecordBatch | pa.Table, exact: pa.Array | None = None) -> int:
        """
        Add rows and return how many there are so far.

        `exact` holds the marks of values that their columns could not hold (R23f), in
        the shape of a segment's `_exact`.
        """
        rows = as_baseline(self._schema, batch, exact)
        self._waiting.append(rows)
        # Of the rows alone: what every segment has besides is next to nothing in the file.
        self._size += batch.nbytes
        self.rows += rows.num_rows
        if self._size >= PART_BYTES:
            self._store()
        return self.rows

    def adopt(self, files: Sequence[File]) -> None:
        """Take segments that somebody else wrote: synced, and under names of this baseline."""
        if strangers := [file.name for file in files if not file.name.startswith(f"{self.stem}-")]:
            raise ChangeLogError("Not a segment of this baseline", file=strangers[0])
        self._files += files
        self.rows += sum(file.rows for file in files)

    def finish(self, first: int, last: int, snapshot: str = "") -> Baseline:
        """
        Make it a baseline, durably.

        `first` is the source's last commit before the first row was read, `last` the last one
        when the last row was (R43). `snapshot` tells which commits in between the rows hold.
        `PositionExpired` where changes after `first` were pruned: nobody could use it (R19).
        """
        needed = Position(self._log.epoch, first, MAX_ORDINAL)
        if str(needed) < self._log.history.floor:
            raise PositionExpired(
                "Changes since a baseline was begun were pruned",
                table=self._schema.table,
                asked=needed,
                kept_after=self._log.history.floor,
            )
        if self._waiting:
            self._store()
        return self._log.finish(
            self._schema, self.number, (first, last), self.rows, self._files, self._since, snapshot
        )

    def discard(self) -> None:
        """Give it up, and remove what was written."""
        self._log.drop(self._files)
        self._waiting, self._files, self._size = [], [], 0

    def _store(self) -> None:
        rows = pa.concat_tables(self._waiting)
        self._waiting, self._size = [], 0
        if rows.num_rows:
            stem = f"{self.stem}-{len(self._files) + 1}-1"
            self._files.append(self._log.store(stem, self._schema, self.schema_id, rows))


def as_baseline(
    schema: TableSchema, rows: pa.RecordBatch | pa.Table, exact: pa.Array | None = None
) -> pa.Table:
    """Return `rows` in the shape of a segment: each an `after` image, without a position (R20)."""
    count = rows.num_rows
    children = [rows.column(name) for name in schema.names]
    if isinstance(rows, pa.Table):
        children = [child.combine_chunks() for child in children]
    columns = {
        "_op": pa.repeat(pa.scalar(int(Op.INSERT), pa.int8()), count),
        "_exact": exact,
        "after": pa.StructArray.from_arrays(children, fields=list(schema.arrow)),
    }
    arrays = []
    for field in schema.segment:
        column = columns.get(field.name)
        arrays.append(pa.nulls(count, field.type) if column is None else column)
    return pa.Table.from_arrays(arrays, schema=schema.segment)
