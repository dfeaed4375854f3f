"""
A few rows of a table, read without capturing it.

Nothing is set up at the source, and nothing stays there. The rows are in the very types that a
baseline gives, so that what is computed from them is what will be computed from a baseline.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from headrace.changelog.schema import TableName, TableSchema
from headrace.errors import SourceRefused

if TYPE_CHECKING:
    from headrace.capture.source import Recordable

_HOMES = {
    "postgres": "headrace.capture.postgres.sampling",
    "sqlite": "headrace.capture.sqlite.sampling",
}


@dataclass(frozen=True, slots=True)
class Sample:
    """Rows of one table as they are now; which ones is for the database to choose."""

    schema: TableSchema
    rows: pa.RecordBatch
    """In the shape of `schema.arrow`."""

    exact: pa.Array | None = None
    """Marks of values that their columns cannot hold, in the shape of a segment's `_exact`."""


def sample(source: Recordable, table: TableName, most: int) -> Sample:
    """
    Return at most so many rows of a table, of those that a baseline would hold.

    Raises what keeps the table from being described or read, and `SourceRefused` for a kind of
    source that has no such way.
    """
    home = _HOMES.get(source.spec.kind)
    if home is None:
        raise SourceRefused(
            "Rows of this kind of source cannot be looked at before it is captured",
            remedy="Start an engine: rows that cannot be computed become dead letters.",
            source=source.name,
            kind=source.spec.kind,
        )
    found: Sample = importlib.import_module(home).sample(source, table, most)
    return found
