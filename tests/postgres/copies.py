"""What tests of copies share: tables looked up, holders that are closed, rows as values."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pyarrow as pa

from headrace.capture.postgres.connection import connect
from headrace.capture.postgres.copy.reader import PostgresCopy
from headrace.capture.postgres.copy.snapshot import Connect, HeldSnapshot, take_snapshot
from headrace.capture.postgres.options import PostgresOptions
from headrace.capture.postgres.server.catalog import CatalogTable, look_up, schema_of
from headrace.changelog.schema import TableSchema
from tests.postgres.servers import Database


def connecting(database: Database) -> Connect:
    return partial(connect, PostgresOptions("test", database.dsn))


@contextmanager
def holding(database: Database) -> Iterator[HeldSnapshot]:
    """A holder of a snapshot of this moment, closed at the end."""
    holder = take_snapshot(connecting(database), 0, [])
    try:
        yield holder
    finally:
        holder.close()


def known(database: Database, name: str) -> tuple[CatalogTable, TableSchema]:
    """The table as the catalogue has it now, and its schema in the log."""
    with database.connect() as connection:
        table = look_up(connection, [name])[name]
    return table, schema_of(table)


def copy_of(database: Database, name: str, where: str = "") -> PostgresCopy:
    """A copy with a snapshot of this moment; reading it to its end closes it."""
    table, schema = known(database, name)
    return PostgresCopy(take_snapshot(connecting(database), 0, []), table, schema, where=where)


def values(schema: TableSchema, batches: Iterable[pa.RecordBatch]) -> list[tuple[Any, ...]]:
    """The rows of batches, as values at the edge."""
    found: list[tuple[Any, ...]] = []
    for batch in batches:
        assert batch.schema.equals(schema.arrow)
        columns = [
            column.type.from_arrow(array)
            for column, array in zip(schema.columns, batch.columns, strict=True)
        ]
        found += zip(*columns, strict=True)
    return found


def copied(database: Database, name: str, where: str = "") -> list[tuple[Any, ...]]:
    """All rows of a table, read by a copy."""
    copy = copy_of(database, name, where)
    return values(copy.schema, copy)


def sessions(database: Database) -> int:
    """How many sessions of ours are on the database."""
    found: int = database.value(
        "select count(*) from pg_stat_activity"
        " where datname = current_database() and application_name like 'headrace%'"
    )
    return found
