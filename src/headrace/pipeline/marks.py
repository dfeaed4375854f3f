"""
Values that stand only as exact text.

Where a typed column cannot hold a source's value it is null, and the text stands in the
mark `_exact` under the column's field id, negative for the before image (R23f). Passing the
null on would be a silent change (invariant 6), so a row whose result depends on such a
value fails. Found on the driver, in the segments that the index says have marks.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from headrace.changelog.schema import TableSchema
from headrace.errors import JobFailed, StorageError
from headrace.pipeline.result import OUTSIDE_TYPE, Failure
from headrace.pipeline.workspace import readable


def outside_type(
    paths: Sequence[str],
    schema: TableSchema,
    after: Collection[int],
    before: Collection[int],
    *,
    first: int | None = None,
) -> list[Failure]:
    """
    Return the rows with a mark on one of these fields of their images.

    For a baseline `first` is the number of the first segment, and places are numbers.
    """
    names = {column.field: column.name for column in schema.columns}
    found = []
    for number, path in enumerate(paths, first or 0):
        rows = _marked(path)
        for at, row in rows:
            fields = {field for field, _ in row["_exact"] if field in after}
            fields |= {-field for field, _ in row["_exact"] if -field in before}
            if fields:
                place = (row["_commit"], row["_ordinal"]) if first is None else (number, at)
                found.append(Failure(place, OUTSIDE_TYPE, {"column": names[min(fields)]}))
    return found


def _marked(path: str) -> list[tuple[int, dict[str, Any]]]:
    """Return the rows of a segment that have marks, with their numbers."""
    try:
        with pq.ParquetFile(readable(path)) as file:
            rows = file.read(columns=["_commit", "_ordinal", "_exact"])
    except (OSError, pa.ArrowException, StorageError) as error:
        raise JobFailed("A segment cannot be read", file=path) from error
    numbered = rows.append_column("at", pa.array(range(rows.num_rows), pa.int64()))
    marked = numbered.filter(numbered["_exact"].is_valid()).to_pylist()
    return [(row["at"], row) for row in marked]
