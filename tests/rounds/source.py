"""The server of a round, as an application sees it."""

from __future__ import annotations

import time
from typing import Any

import psycopg

from tests.support.patience import patience

COMING_SECONDS = patience()
"""Until a server that was killed must be back."""

Connection = psycopg.Connection[Any]
Row = dict[str, Any]


def connected(dsn: str, seconds: float = COMING_SECONDS) -> Connection:
    """Connect to a server that may just be coming back."""
    until = time.monotonic() + seconds
    while True:
        try:
            return psycopg.connect(dsn, autocommit=True, connect_timeout=10)
        except psycopg.OperationalError:
            if time.monotonic() > until:
                raise
            time.sleep(0.05)


def rows_of(connection: Connection, table: str) -> list[Row]:
    """Return what a table has now."""
    cursor = connection.execute(f"select * from {table}".encode())
    names = [column.name for column in cursor.description or ()]
    return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


def journal_end(connection: Connection) -> int:
    """Return how far the server's journal reaches now."""
    (end,) = connection.execute(
        "select (pg_current_wal_insert_lsn() - '0/0')::int8"
    ).fetchone() or (0,)
    return int(end)
