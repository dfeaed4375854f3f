"""A few rows of a table in a SQLite file, which is only read."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pyarrow as pa

from headrace.capture.sampling import Sample
from headrace.capture.sqlite.database import connect, quoted, speaking
from headrace.capture.sqlite.fetching import Reading, fetch
from headrace.capture.sqlite.rows import batch_of
from headrace.capture.sqlite.tables import column_list

if TYPE_CHECKING:
    from headrace.capture.sqlite.source import SQLiteSource

MOST_BYTES = 64 << 20
"""About so much is read at most, where rows are many and large."""


def sample(source: SQLiteSource, table: str, most: int) -> Sample:
    """Return the first rows, in the order that SQLite has them."""
    schema = source.describe([table])[table]
    database = connect(source.path)
    try:
        with speaking(source.path):
            # Not mode=ro: the last to close a file with a WAL takes the WAL away, and one who
            # may not write would leave it lying there.
            database.execute("pragma query_only = on")
            query = f"select {column_list(schema.names)} from {quoted(table)} limit ?"
            limits = Reading(most, MOST_BYTES, math.inf)
            rows, _ = fetch(database, query, (most,), limits)
    finally:
        database.close()
    if not rows:
        return Sample(schema, pa.RecordBatch.from_pylist([], schema=schema.arrow))
    return Sample(schema, *batch_of(schema, rows))
