"""
Fetching rows within limits, as SQLite hands them out.

Text is decoded by SQLite's own binding as long as it is UTF-8; the first row that is not makes
the same query run once more with a decoder that takes anything.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Sequence
from dataclasses import dataclass

from headrace.capture.sqlite.database import lenient, undecodable

PART_ROWS = 64
"""How many rows are fetched between two looks at the limits, at most."""

LEAST_ROWS = 256
"""Of a query that takes long to begin: it would begin again for every single row."""

Row = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class Reading:
    """How much may be read in one go."""

    most: int
    bytes: int
    until: float
    """By the monotonic clock; a query whose first row comes later than that gets `LEAST_ROWS`."""


def fetch(
    database: sqlite3.Connection, sql: str, values: Sequence[object], limits: Reading
) -> tuple[list[Row], bool]:
    """Return rows up to one of the limits, at least one; with them, whether that was all."""
    try:
        return _fetch(database, sql, values, limits)
    except sqlite3.OperationalError as error:
        if not undecodable(error):
            raise
    database.text_factory = lenient
    try:
        return _fetch(database, sql, values, limits)
    finally:
        database.text_factory = str


def _fetch(
    database: sqlite3.Connection, sql: str, values: Sequence[object], limits: Reading
) -> tuple[list[Row], bool]:
    cursor = database.execute(sql, values)
    rows: list[Row] = []
    size = 0
    step = 1
    least = 0
    try:
        while True:
            part = cursor.fetchmany(step)
            rows += part
            if len(part) < step:
                return rows, len(rows) < limits.most
            weight = _size(part, len(rows) // PART_ROWS)
            size += weight
            late = time.monotonic() >= limits.until
            if late and len(rows) == 1:
                least = LEAST_ROWS
            if len(rows) >= limits.most or size >= limits.bytes or (late and len(rows) >= least):
                return rows, False
            # Rows may be of many megabytes: as many as may fit, if they are like the last ones.
            fitting = (limits.bytes - size) * len(part) // max(1, weight)
            step = max(1, min(4 * step, PART_ROWS - len(rows) % PART_ROWS, fitting))
    finally:
        cursor.close()


def _size(rows: Sequence[Row], turn: int) -> int:
    """
    Estimate the bytes of `rows`: weighing is dear.

    Few are weighed wholly, of many every sixteenth, other ones each turn.
    """
    every = 16 if len(rows) >= PART_ROWS else 1
    size = sum(
        len(value) if isinstance(value, str | bytes) else 8
        for row in rows[turn % every :: every]
        for value in row
    )
    return size * every
