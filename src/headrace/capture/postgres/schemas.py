"""
The tables that are captured, as the stream's decoder asks for them.

A Relation message tells names and types of columns, and the catalogue tells their lasting
numbers. The catalogue is that of now, though, and the message is that of when the change was
written: a table that was altered in between is met as it was, and again as it is (R23b). So
several versions are known of each: what the log has, and what the catalogue said since.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from headrace.capture.postgres.catalog import CatalogColumn, CatalogTable
from headrace.capture.postgres.layout import Layout, Relation, RelationColumn
from headrace.capture.postgres.types import value_type
from headrace.changelog.schema import Column, TableSchema
from headrace.errors import SchemaChanged


class Schemas:
    """Layouts of the tables that are captured, by their oids."""

    def __init__(
        self,
        tables: Iterable[tuple[CatalogTable, TableSchema]],
        recorded: Mapping[str, TableSchema] | None = None,
    ) -> None:
        self._tables: dict[int, CatalogTable] = {}
        self._versions: dict[int, list[TableSchema]] = {}
        """Of each table the versions that are known, the newest first."""

        for table, schema in tables:
            known = (recorded or {}).get(table.name)
            self._versions[table.oid] = [] if known is None else [known]
            self.adopt(table, schema)

    def adopt(self, table: CatalogTable, schema: TableSchema) -> None:
        """Take a table as it is now; what was known before is still understood."""
        self._tables[table.oid] = table
        versions = self._versions.setdefault(table.oid, [])
        if not versions or versions[0] != schema:
            versions.insert(0, schema)

    def layout(self, relation: Relation) -> Layout | None:
        """
        Return how the relation's rows are kept; None where it is not one of ours.

        Raises `SchemaChanged` where it cannot be told which columns these are.
        """
        table = self._tables.get(relation.oid)
        if table is None:
            return None
        if (relation.namespace, relation.table) != (table.namespace, table.table):
            raise SchemaChanged(
                "Table was renamed",
                table=table.name,
                now=f"{relation.namespace}.{relation.table}",
                remedy="Name the table by its new name, and start again.",
            )
        for schema in self._versions[relation.oid]:
            if (places := _places(relation, schema, table.columns)) is not None:
                return Layout(schema, places)
        between = _between(relation, self._versions[relation.oid], table)
        return Layout(between, tuple(range(len(between.columns))))


def _places(
    relation: Relation, schema: TableSchema, now: Sequence[CatalogColumn]
) -> tuple[int, ...] | None:
    """Return where the relation's columns are in a schema, if it is of that very shape."""
    if {column.name for column in relation.columns} != set(schema.names):
        return None
    if _key(relation, schema) != schema.key or (relation.identity == "f") != schema.whole_before:
        return None
    types = {column.number: column for column in now}
    if not all(_same(sent, schema.column(sent.name), types) for sent in relation.columns):
        return None
    return tuple(schema.names.index(sent.name) for sent in relation.columns)


def _between(
    relation: Relation, versions: Sequence[TableSchema], table: CatalogTable
) -> TableSchema:
    """
    Return the schema of a relation that is neither of the versions known, but between two.

    Each of its columns is one of theirs. Columns are sent in the order of their numbers: where
    that does not fit, a name was given to another column meanwhile, and nobody can tell.
    """
    types = {column.number: column for column in table.columns}
    columns: list[Column] = []
    for sent in relation.columns:
        found = [
            column
            for schema in versions
            for column in schema.columns
            if column.name == sent.name and _same(sent, column, types)
        ]
        if not found or (columns and found[0].field <= columns[-1].field):
            raise SchemaChanged("Table was altered", table=table.name, column=sent.name)
        columns.append(found[0])
    names = {column.name for column in columns}
    if (key := _key(relation, versions[0])) is None or not set(key) <= names:
        raise SchemaChanged("Key of the table was changed", table=table.name)
    return TableSchema(table.name, tuple(columns), key, whole_before=relation.identity == "f")


def _key(relation: Relation, schema: TableSchema) -> tuple[str, ...] | None:
    """Return the key that the relation has; None where it is another than the schema's."""
    if relation.identity == "f":
        # Every column is said to be of the key; which are, only the catalogue knows (R23).
        return schema.key
    sent = {column.name for column in relation.columns if column.key}
    return schema.key if sent == set(schema.key) else None


def _same(sent: RelationColumn, kept: Column, now: Mapping[int, CatalogColumn]) -> bool:
    """Whether a column as it was sent may be this one."""
    if (column := now.get(kept.field)) is not None:
        same = (sent.type, sent.modifier) == (column.own_type, column.own_modifier)
        declared = column.declared == kept.declared
        if same or declared:
            return same and declared
    # Of a type that it had before nobody can be asked: its kind has to do.
    return value_type(sent.type, sent.modifier) == kept.type
