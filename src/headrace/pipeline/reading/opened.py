"""
An open segment, of which columns are read as they are asked for.

One that is read as a whole is held to the checksum in the index. Of one that is read in part
only those bytes are read that are wanted, and each page is held to its own checksum.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from headrace.changelog.entry import File
from headrace.changelog.schema import META, TableSchema
from headrace.changelog.segment import checksum
from headrace.errors import CorruptSegment

_META: Final = {field.name: field for field in META}


class Segment:
    """An open segment, `raw`, of which columns are read as they are asked for."""

    def __init__(
        self,
        raw: Any,
        file: File,
        schema: TableSchema,
        *,
        whole: bool,
    ) -> None:
        self._schema = schema
        try:
            if whole:
                data = _verified(raw, file)
                raw.close()
                raw = pa.BufferReader(data)
            else:
                _same_size(raw, file)
            self._file = pq.ParquetFile(raw, page_checksum_verification=not whole, pre_buffer=False)
        except BaseException:
            raw.close()
            raise
        self._raw = raw

    def __enter__(self) -> Segment:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        self._raw.close()

    def read(
        self, meta: Sequence[str] = (), after: Sequence[str] = (), before: Sequence[str] = ()
    ) -> dict[str, pa.Array]:
        """Return these columns; `after` and `before` with the fields that were asked for."""
        paths = [*meta, *(f"after.{name}" for name in after), *(f"before.{n}" for n in before)]
        if not paths:
            return {}
        rows = self._file.read(columns=paths, use_threads=False)
        found = {}
        for name in rows.column_names:
            column = rows.column(name).combine_chunks()
            found[name] = column.cast(self._shape(name, column.type))
        return found

    def _shape(self, name: str, stored: pa.DataType) -> pa.DataType:
        if name in _META:
            return _META[name].type
        return pa.struct([self._schema.arrow.field(field.name) for field in stored])


def _verified(raw: Any, file: File) -> pa.Buffer:
    """Return all bytes of a segment, which are those that were written."""
    _same_size(raw, file)
    data = pa.py_buffer(raw.read())
    if checksum(data) != file.checksum:
        raise CorruptSegment("Segment has other bytes than were written")
    return data


def _same_size(raw: Any, file: File) -> None:
    if raw.size() != file.bytes:
        raise CorruptSegment("Segment has another size", size=raw.size(), was=file.bytes)
