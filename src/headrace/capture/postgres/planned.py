"""A baseline cut into ranges, each to be read by whoever gets it."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import dataclass

from headrace.capture.postgres.catalog import CatalogTable
from headrace.capture.postgres.holder import Holder
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
