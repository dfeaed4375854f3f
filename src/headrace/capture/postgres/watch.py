"""
What happens to tables without a message in the stream (R23b, R23c).

A table that is dropped, or replaced by another of its name, or taken out of the publication,
is simply not heard of any more; a column that is added shows only with the next change, and a
partition that is emptied, dropped or attached not at all. So the catalogue is asked now and then.
It is asked without locks, and nobody waits for the answer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping
from typing import Any

import psycopg

from headrace.capture.postgres import publication
from headrace.capture.postgres.catalog import CatalogTable, fingerprint, look_up
from headrace.capture.postgres.options import Options
from headrace.capture.postgres.standing import Standing
from headrace.capture.postgres.trees import Trees
from headrace.changelog.schema import TableSchema
from headrace.errors import SchemaChanged, SourceUnreachable

WATCH_SECONDS = 10.0
"""The longest that such a thing goes unnoticed."""


class Watch:
    """Remembers what tables were, and compares."""

    def __init__(
        self,
        options: Options,
        tables: MutableMapping[str, CatalogTable],
        schemas: Mapping[str, TableSchema],
        schema_of: Callable[[CatalogTable], TableSchema],
        clock: Callable[[], float],
        trees: Trees,
        standing: Standing,
    ) -> None:
        """`tables` are brought up to date where nothing but their partitions is another."""
        self._options = options
        self._tables = tables
        self._schemas = schemas
        self._schema_of = schema_of
        self._clock = clock
        self._trees = trees
        self._standing = standing
        self._named: frozenset[int] | None = None
        self._due = clock()

    def look(self, connection: psycopg.Connection[Any]) -> None:
        """
        Compare, if it is time to.

        Raises `SchemaChanged` where a table's columns are others, `TableRefused` where one is
        gone, and `SourceUnreachable` where reading has to begin anew to go on as it should.
        """
        if self._clock() < self._due and not self._trees.unknown(self._tables.values()):
            return
        self._due = self._clock() + WATCH_SECONDS
        now = look_up(connection, list(self._tables))
        for name, table in now.items():
            if not same_shape(self._schema_of(table), self._schemas[name]):
                raise SchemaChanged("Columns or the key were altered", table=name)
            if table.oid != self._tables[name].oid:
                raise SourceUnreachable("Table was replaced by another of its name", table=name)
        named = publication.named(connection, self._options)
        if self._named is not None and (gone := self._named - named):
            lost = [name for name, table in now.items() if table.oid in gone]
            raise SourceUnreachable(
                "Tables were taken out of the publication",
                publication=self._options.publication,
                tables=lost,
            )
        self._named = named
        self._tables.update(now)
        self._trees.look(connection, now)
        self._standing.look(connection, now)


def altered_table(
    connection: psycopg.Connection[Any],
    tables: Mapping[str, CatalogTable],
    schemas: Mapping[str, TableSchema],
    schema_of: Callable[[CatalogTable], TableSchema],
) -> str | None:
    """Return a table that is not as it was described; None where all are."""
    for name, table in look_up(connection, list(tables)).items():
        same = fingerprint(table) == fingerprint(tables[name])
        if not same or not same_shape(schema_of(table), schemas[name]):
            return name
    return None


def same_shape(one: TableSchema, other: TableSchema) -> bool:
    """Whether rows of the one are rows of the other: columns by number, name and type, and key."""
    return one.key == other.key and [
        (column.field, column.name, column.type, column.declared) for column in one.columns
    ] == [(column.field, column.name, column.type, column.declared) for column in other.columns]
