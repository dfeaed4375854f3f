"""A baseline cut into ranges that any process may read, and a copy that may have to wait."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from headrace.capture.postgres.connection import connect
from headrace.capture.postgres.copy.ranges import Range, ranges
from headrace.capture.postgres.copy.reader import CopyReader, PostgresCopy, empty
from headrace.capture.postgres.copy.snapshot import HeldSnapshot
from headrace.capture.postgres.options import PostgresOptions
from headrace.capture.postgres.server.catalog import CatalogTable
from headrace.capture.source import NotYet
from headrace.changelog.schema import TableSchema
from headrace.errors import Reopening, SchemaChanged

# --- a copy that may have to wait before it can start ---------------------------------------------


class LateCopy:
    """
    A baseline that is running or waiting: `begin` starts it, or raises `NotYet`.

    Transactions that wrote to the table before it was published have to end first (R13), and
    commits that the log has must have become visible (H2). Either may take hours, and the same
    thread reads changes: so a copy that is not ready yields a batch without rows, and `begin` is
    called again later.
    """

    def __init__(self, schema: TableSchema, begin: Callable[[], PostgresCopy]) -> None:
        self.schema = schema
        self.first = self.last = 0
        self.snapshot = ""
        self.expected: int | None = None
        self.waits = ""
        self.exact: pa.Array | None = None
        self._begin = begin
        self._copy: PostgresCopy | None = None
        self._batches = self._all()

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return self._batches

    def close(self) -> None:
        """Release its snapshot, if it has one; safe to call again."""
        self._batches.close()
        if self._copy is not None:
            self._copy.close()

    def _all(self) -> Generator[pa.RecordBatch, None, None]:
        try:
            yield from self._whole()
        except SchemaChanged as error:
            # When the source is opened again, it reads the table's current columns.
            raise altered(error) from error

    def _whole(self) -> Generator[pa.RecordBatch, None, None]:
        while self._copy is None:
            try:
                self._copy = self._begin()
            except NotYet as why:
                self.waits = str(why)
                yield empty(self.schema)
        self.waits = ""
        self.first, self.last = self._copy.first, self._copy.last
        self.snapshot = self._copy.snapshot
        self.expected = self._copy.expected
        for batch in self._copy:
            self.exact = self._copy.exact
            yield batch


def altered(error: SchemaChanged) -> Reopening:
    """Return the error for a table with other columns than expected: reading starts again."""
    return Reopening("A table was altered", table=error.facts.get("table"))


# --- a copy in parts that any process can read ----------------------------------------------------


@dataclass(frozen=True, slots=True)
class CopyPart:
    """A range, with all that a process needs to read it, except how to connect."""

    range: Range
    schema: TableSchema
    host: str
    port: int

    def packed(self) -> bytes:
        """Return it as bytes, for a process of the same version."""
        return pickle.dumps(self)

    @classmethod
    def unpacked(cls, data: bytes) -> CopyPart:
        """Read the bytes of `packed`. Only our own: they go from recorder to engine to task."""
        found: CopyPart = pickle.loads(data)
        return found


class PartReader:
    """Reads parts, one after the other, on one connection while they are on one server."""

    def __init__(self, options: PostgresOptions) -> None:
        self._options = options
        self._reader: CopyReader | None = None
        self._address = ("", 0)

    def read(self, part: bytes) -> Iterator[tuple[TableSchema, pa.RecordBatch, pa.Array | None]]:
        """Yield the rows of a part; `read_range` explains when they are valid."""
        found = CopyPart.unpacked(part)
        reader = self._reader
        if reader is None or not reader.usable or self._address != (found.host, found.port):
            self.close()
            reader = CopyReader(connect(self._options, host=found.host, port=found.port))
            self._reader, self._address = reader, (found.host, found.port)
        for batch in reader.read(found.range, found.schema, self._options.copy_rows_per_s):
            if batch is not None:
                yield found.schema, *batch

    def close(self) -> None:
        """Close the connection; safe to call again."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None


class PlannedCopy:
    """A baseline in parts; the snapshot is held until it is closed."""

    def __init__(
        self, holder: HeldSnapshot, schema: TableSchema, parts: Sequence[bytes], owns_holder: bool
    ) -> None:
        self.expected: int | None = None
        self.schema = schema
        self.first = holder.first
        self.last = holder.last
        self.snapshot = str(holder.snapshot)
        self.parts = parts
        self._holder = holder
        self._owns_holder = owns_holder
        self._closed = False
        holder.readers += 1

    @property
    def alive(self) -> bool:
        """Whether its snapshot can still be imported."""
        return not self._closed and self._holder.alive

    def close(self) -> None:
        """Release its snapshot; safe to call again."""
        if not self._closed:
            self._closed = True
            self._holder.readers -= 1
            if self._owns_holder:
                self._holder.close()


def plan_copy(
    holder: HeldSnapshot, table: CatalogTable, schema: TableSchema, where: str, owns_holder: bool
) -> PlannedCopy:
    """Cut a table into ranges of about the same size."""
    try:
        found = ranges(holder, table, schema, where)
    except BaseException:
        if owns_holder:
            holder.close()
        raise
    parts = [CopyPart(each, schema, holder.host, holder.port).packed() for each in found]
    return PlannedCopy(holder, schema, parts, owns_holder)
