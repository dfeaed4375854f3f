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

PART_ROWS = 256
"""How many rows are fetched between two looks at the limits."""

Row = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class Reading:
    """How much may be read in one go."""

    most: int
    bytes: int
    until: float
    """By the monotonic clock."""


def fetch(
    database: sqlite3.Connection, sql: str, values: Sequence[object], limits: Reading
) -> tuple[list[Row], bool]:
    """Return rows up to one of the limits, at least one part; with them, whether that was all."""
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
    try:
        while True:
            part = cursor.fetchmany(PART_ROWS)
            rows += part
            if len(part) < PART_ROWS:
                return rows, len(rows) < limits.most
            size += _size(part, len(rows) // PART_ROWS)
            if len(rows) >= limits.most or size >= limits.bytes or time.monotonic() >= limits.until:
                return rows, False
    finally:
        cursor.close()


def _size(rows: Sequence[Row], turn: int) -> int:
    """Estimate the bytes of `rows` from every sixteenth, other ones each turn: weighing is dear."""
    sample = rows[turn % 16 :: 16]
    size = sum(
        len(value) if isinstance(value, str | bytes) else 8 for row in sample for value in row
    )
    return size * 16
