"""
Rows of a table as a copy under way will find them, looked up by their keys.

A change may leave out a value that the copy has not come to yet. The snapshot that the copy
is read under has it, and is asked for the row (R21).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import psycopg
import pyarrow as pa

from headrace.capture.postgres.asking import importing, talking
from headrace.capture.postgres.catalog import CatalogTable
from headrace.capture.postgres.holder import Holder
from headrace.capture.postgres.names import quoted
from headrace.capture.postgres.text import text_column
from headrace.capture.postgres.toast_cells import Cell, Shape, cells, joined
from headrace.changelog.schema import Column

MOST_KEYS = 1_000
"""Asked for at a time: the recorder's thread waits for the answer."""

LIMITS = "set local lock_timeout = '2s'; set local statement_timeout = '10s'"
"""So long may somebody's ALTER TABLE hold us up; then the copy, and what was read, begin anew."""


class Lookup:
    """Asks for rows under a holder's snapshot, over one connection of its own."""

    def __init__(self, holder: Holder, table: CatalogTable, where: str) -> None:
        self._holder = holder
        self._table = table
        self._where = where
        self._connection: psycopg.Connection[Any] | None = None

    def rows(
        self, shape: Shape, texts: Sequence[Sequence[str]]
    ) -> list[tuple[bytes, tuple[Cell, ...]]] | None:
        """
        Return key and values of the rows that the snapshot has of these keys.

        `texts` are the keys, column by column. None where they cannot be asked for. An error
        of the connection, and a table that is locked, are `SourceUnreachable`.
        """
        found: list[tuple[bytes, tuple[Cell, ...]]] = []
        with talking(table=self._table.name):
            try:
                for at in range(0, len(texts[0]), MOST_KEYS):
                    found += self._asked(shape, [column[at : at + MOST_KEYS] for column in texts])
            except (psycopg.errors.DataException, psycopg.errors.UndefinedFunction):
                # A text that is not its type's, or a type of an extension that is elsewhere.
                return None
        return found

    def close(self) -> None:
        """End its connection. Never raises."""
        if self._connection is not None:
            with suppress(psycopg.Error, OSError):
                self._connection.close()
            self._connection = None

    def _asked(
        self, shape: Shape, texts: Sequence[Sequence[str]]
    ) -> list[tuple[bytes, tuple[Cell, ...]]]:
        if self._connection is None:
            self._connection = self._holder.connect()
        connection = self._connection
        # Each time a transaction of its own: no lock on the table is held in between (R16).
        connection.execute(
            f"{importing(self._holder.id)}; set local row_security = off; {LIMITS};"
            " set local enable_hashjoin = off; set local enable_mergejoin = off".encode(),
            prepare=False,
        )
        try:
            # Raw: a filter may hold what would be a placeholder elsewhere.
            cursor = psycopg.RawCursor(connection)
            cursor.execute(self._query(shape).encode(), list(texts), prepare=False)
            result = cursor.pgresult
            assert result is not None
            columns = [
                _cells(column, [result.get_value(row, at) for row in range(result.ntuples)])
                for at, column in enumerate((*shape.key, *shape.columns))
            ]
        finally:
            if not connection.closed:
                connection.execute("rollback")
        many = len(shape.key)
        return [(joined(row[:many]), tuple(row[many:])) for row in zip(*columns, strict=True)]

    def _query(self, shape: Shape) -> str:
        table = self._table
        relation = quoted(table.namespace, table.table)
        # Tables that inherit are published under their own names; partitions are not.
        source = relation if table.kind == "p" else f"only {relation}"
        where = f" where ({self._where})" if self._where else ""
        chosen = ", ".join(f"r.{quoted(column.name)}" for column in (*shape.key, *shape.columns))
        wanted = ", ".join(f"w{at}" for at in range(len(shape.key)))
        # Written without its schema: of several arrays it is a construct, and no function.
        arrays = ", ".join(f"${at}::pg_catalog.text[]" for at in range(1, len(shape.key) + 1))
        matches = " and ".join(
            f"r.{quoted(column.name)} = w{at}::{column.declared}"
            for at, column in enumerate(shape.key)
        )
        return (
            f"select {chosen} from unnest({arrays}) as wanted({wanted})"
            f" join (select * from {source}{where}) as r on {matches}"
        )


def _cells(column: Column, values: Sequence[bytes | None]) -> list[Cell]:
    array, misfits = text_column(column.type, pa.array(values, pa.binary()))
    found: list[Cell] = list(cells(array))
    for row, text in misfits:
        found[row] = text
    return found
