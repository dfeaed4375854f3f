"""
How many rows a table has, about, and ranges cut smaller where copies may not go fast.

Both go by what the last VACUUM or ANALYZE counted. Where a range is read slowly on purpose it
is read piece by piece, each in a transaction of its own: the pauses are between them, so that
nobody's ALTER TABLE waits behind a lock of ours (R16).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import psycopg

from headrace.capture.pacing import piece_rows
from headrace.capture.postgres.catalog import CatalogTable
from headrace.capture.postgres.connection import speaking
from headrace.capture.postgres.options import Options
from headrace.capture.postgres.ranges import Range

_MANY = 100.0
"""Rows that a page may have where nobody counted them."""


def expected_rows(
    connection: psycopg.Connection[Any] | None, options: Options, table: CatalogTable
) -> int | None:
    """Return how many rows the leaves of a table have in all; None where not all were counted."""
    if connection is None or options.asked_of(table.name).where:
        return None  # nobody counted how many rows a filter lets through
    with speaking(options):
        found = connection.execute(
            "select case when min(reltuples) >= 0 then sum(reltuples)::int8 end"
            " from pg_catalog.pg_class where oid = any(%s::oid[])",
            [[leaf.oid for leaf in table.leaves]],
        ).fetchone()
    return None if found is None else found[0]


def pieces(range_: Range, rows_per_s: float | None) -> Iterator[Range]:
    """Give a range as it is, or in pieces of a fraction of a second where there is a limit."""
    if rows_per_s is None:
        yield range_
        return
    rows = piece_rows(rows_per_s, most=1 << 31)
    step = max(1, int(rows / max(range_.rows_per_page or _MANY, 1.0)))
    starts = range(range_.start, range_.start + max(1, range_.pages), step)
    for start in starts:
        last = start == starts[-1]
        yield replace(range_, start=start, stop=range_.stop if last else start + step)
