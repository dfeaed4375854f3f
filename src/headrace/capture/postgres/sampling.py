"""A few rows of a table on a PostgreSQL server, read in a transaction that may only read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psycopg

from headrace.capture.postgres.catalog import CatalogTable, look_up
from headrace.capture.postgres.connection import as_bytes, connect, speaking
from headrace.capture.postgres.names import quoted
from headrace.capture.postgres.options import TableOptions
from headrace.capture.postgres.ranges import Selected
from headrace.capture.postgres.rows import TRAILER, batch_of, empty, header_size
from headrace.capture.postgres.types import sends_binary
from headrace.capture.postgres.unsent import described
from headrace.capture.postgres.wires import Messages
from headrace.capture.sampling import Sample
from headrace.changelog.schema import TableSchema
from headrace.errors import BadMessage

if TYPE_CHECKING:
    from headrace.capture.postgres.source import PostgresSource


def sample(source: PostgresSource, table: str, most: int) -> Sample:
    """Return some of the rows that are published, with the columns that are, as a copy has them."""
    options = source.options
    asked = options.asked_of(table)
    with speaking(options), connect(options) as connection:
        connection.read_only = True
        with connection.transaction():
            found = look_up(connection, [table])[table]
            schema = described(found, options)
            columns = _selected(found, schema)
            rows = _copied(connection, _query(found, columns, asked, most))
    if not rows:
        return Sample(schema, empty(schema))
    binary = [column.binary for column in columns]
    return Sample(schema, *batch_of(schema, binary, Messages.joined(rows)))


def _selected(table: CatalogTable, schema: TableSchema) -> list[Selected]:
    known = {column.name: column for column in table.columns}
    return [
        Selected(name, sends_binary(known[name].type, known[name].modifier))
        for name in schema.names
    ]


def _query(table: CatalogTable, columns: list[Selected], asked: TableOptions, most: int) -> str:
    # Tables that inherit are tables of their own; partitions are not.
    only = "" if table.kind == "p" else "only "
    where = f" where ({asked.where})" if asked.where else ""
    listed = ", ".join(column.expression for column in columns)
    return f"select {listed} from {only}{quoted(table.namespace, table.table)}{where} limit {most}"


def _copied(connection: psycopg.Connection[Any], query: str) -> list[bytes | memoryview]:
    """Return the rows of a COPY, a message each."""
    if setting := as_bytes(connection):
        connection.execute(setting)
    statement = f"copy ({query}) to stdout (format binary)".encode()
    with connection.cursor() as cursor, cursor.copy(statement) as copy:
        first, *rest = (bytes(each) for each in copy)
    # The header is a message of its own, or stands before the first row or the trailer.
    messages: list[bytes | memoryview] = [first[header_size(first) :], *rest]
    if messages.pop() != TRAILER:
        raise BadMessage("A copy of rows ended without its trailer")
    return [each for each in messages if each]
