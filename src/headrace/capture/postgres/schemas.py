"""
The tables that are captured, as the stream's decoder asks for them.

A Relation message tells names and types of columns, and the catalogue, read when reading
began, tells their lasting numbers. Where the two do not agree the table was altered since:
what the decoder would make of its rows could not be trusted, so it is told (R23b).
"""

from __future__ import annotations

from collections.abc import Iterable

from headrace.capture.postgres.catalog import CatalogTable
from headrace.capture.postgres.layout import Layout, Relation
from headrace.changelog.schema import TableSchema
from headrace.errors import SchemaChanged


class Schemas:
    """Layouts of the tables that are captured, by their oids."""

    def __init__(self, tables: Iterable[tuple[CatalogTable, TableSchema]]) -> None:
        self._tables = {table.oid: (table, schema) for table, schema in tables}

    def layout(self, relation: Relation) -> Layout | None:
        """Return how the relation's rows are kept; None where it is not one of ours."""
        found = self._tables.get(relation.oid)
        if found is None:
            return None
        table, schema = found
        if (relation.namespace, relation.table) != (table.namespace, table.table):
            raise SchemaChanged(
                "Table was renamed",
                table=table.name,
                now=f"{relation.namespace}.{relation.table}",
                remedy="Name the table by its new name, and start again.",
            )
        if relation.identity != table.identity:
            raise SchemaChanged("Replica identity was changed", table=table.name)
        keys = {column.name for column in relation.columns if column.key}
        if table.identity_columns is not None and keys != set(table.identity_columns):
            # The letter is the same, but deletes carry other columns: none would find its row.
            raise SchemaChanged("Key of the table was changed", table=table.name)
        sent = {column.name: column for column in relation.columns}
        for column in table.columns:
            known = column.name in schema.names
            if known and column.name not in sent:
                raise SchemaChanged("Column was dropped", table=table.name, column=column.name)
            now = sent.get(column.name)
            if known and now and (now.type, now.modifier) != (column.own_type, column.own_modifier):
                raise SchemaChanged(
                    "Type of a column was changed", table=table.name, column=column.name
                )
        places = []
        for name in sent:
            if name not in schema.names:
                raise SchemaChanged("Column was added", table=table.name, column=name)
            places.append(schema.names.index(name))
        return Layout(schema, tuple(places))
