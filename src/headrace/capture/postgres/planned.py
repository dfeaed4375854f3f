"""A baseline cut into ranges, each to be read by whoever gets it."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from headrace.capture.postgres.catalog import CatalogTable
from headrace.capture.postgres.connection import connect
from headrace.capture.postgres.copying import Reader
from headrace.capture.postgres.holder import Holder
from headrace.capture.postgres.options import Options
from headrace.capture.postgres.ranges import Range, ranges
from headrace.changelog.schema import TableSchema


@dataclass(frozen=True, slots=True)
class Part:
    """A range, with all that a process needs to read it but the way to connect."""

    range: Range
    schema: TableSchema
    host: str
    port: int

    def packed(self) -> bytes:
        """Return it as bytes, for a process of the same version."""
        return pickle.dumps(self)

    @classmethod
    def unpacked(cls, data: bytes) -> Part:
        """Read what `packed` wrote. Only of our own: it goes from recorder to engine to task."""
        found: Part = pickle.loads(data)
        return found


class PartReader:
    """Reads parts, one after the other, on one connection as long as one server has them."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._reader: Reader | None = None
        self._address = ("", 0)

    def read(self, part: bytes) -> Iterator[tuple[TableSchema, pa.RecordBatch, pa.Array | None]]:
        """Give the rows of a part; `read_range` says when they count."""
        found = Part.unpacked(part)
        reader = self._reader
        if reader is None or not reader.usable or self._address != (found.host, found.port):
            self.close()
            reader = Reader(connect(self._options, host=found.host, port=found.port))
            self._reader, self._address = reader, (found.host, found.port)
        for batch in reader.read(found.range, found.schema, self._options.copy_rows_per_s):
            if batch is not None:
                yield found.schema, *batch

    def close(self) -> None:
        """Let go of the server; twice does no harm."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None


class PlannedCopy:
    """A baseline in parts; the snapshot lives until it is closed."""

    def __init__(
        self, holder: Holder, schema: TableSchema, parts: Sequence[bytes], owns_holder: bool
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
        """Let its snapshot go; twice does no harm."""
        if not self._closed:
            self._closed = True
            self._holder.readers -= 1
            if self._owns_holder:
                self._holder.close()


def plan_copy(
    holder: Holder, table: CatalogTable, schema: TableSchema, where: str, owns_holder: bool
) -> PlannedCopy:
    """Cut a table into ranges of about the same size."""
    try:
        found = ranges(holder, table, schema, where)
    except BaseException:
        if owns_holder:
            holder.close()
        raise
    parts = [Part(each, schema, holder.host, holder.port).packed() for each in found]
    return PlannedCopy(holder, schema, parts, owns_holder)
