"""A run of rows, column by column."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from headrace.changelog.schema import Column
from headrace.tables.buffers import CHUNK, buffer_of
from headrace.tables.reading import Reader, reader_of


class Chunk:
    """
    Up to 65,536 rows.

    One thread appends; any number read the rows they know of. `values` is what they read
    through: it holds, at any moment, readers good for every row written before.
    """

    __slots__ = ("buffers", "columns", "count", "values")

    def __init__(self, columns: Sequence[Column]) -> None:
        self.columns = columns
        self.buffers = [buffer_of(column.type.arrow) for column in columns]
        self.values: dict[str, Reader] = {
            column.name: reader_of(buffer, column.type)
            for column, buffer in zip(columns, self.buffers, strict=True)
        }
        self.count = 0

    @property
    def nbytes(self) -> int:
        """Bytes in use."""
        return sum(buffer.nbytes for buffer in self.buffers)

    def fits(self, arrays: Sequence[pa.Array]) -> bool:
        """Whether the texts of these rows have room beside those that are here."""
        return all(buffer.fits(array) for buffer, array in zip(self.buffers, arrays, strict=True))

    def append(self, arrays: Sequence[pa.Array], count: int) -> None:
        """Take rows, one array a column, of the columns' own types."""
        for column, buffer, array in zip(self.columns, self.buffers, arrays, strict=True):
            if buffer.append(array, self.count):
                self.values[column.name] = reader_of(buffer, column.type)
        self.count += count
        if self.count == CHUNK:
            self.seal()

    def seal(self) -> None:
        """Say that no row will follow."""
        for column, buffer in zip(self.columns, self.buffers, strict=True):
            if buffer.seal():
                self.values[column.name] = reader_of(buffer, column.type)

    def arrow(self, columns: Sequence[int]) -> list[pa.Array]:
        """Return these columns as Arrow arrays, without copying."""
        return [self.buffers[at].arrow(self.count) for at in columns]
