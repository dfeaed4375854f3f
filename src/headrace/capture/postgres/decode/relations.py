"""
The relations that the server has described, and the changes that refer to them.

A change names its table by a number; an earlier Relation message described the columns. A new
description is valid from its message on: the changes before it, in the same flush and perhaps in
the same transaction, have other columns than those after it.

For the tables that are captured, the decoder asks for layouts. A Relation message has the names
and types of the columns, and the catalogue has their permanent numbers. But the catalogue is
current, and the message is as of when the change was written: a table that was altered in between
appears first as it was, and later as it is (R23b). So several versions of each table are known:
the one that the log has, and those that the catalogue has had since.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from headrace.capture.postgres.decode.pgoutput import (
    RELATION,
    TRUNCATE,
    Layouts,
    Relation,
    RelationColumn,
    RelationLayout,
    read_relation,
    read_truncate,
)
from headrace.capture.postgres.decode.rows import (
    Flags,
    Ints,
    MessageBuffer,
    RelationVersion,
    Stamps,
    chunks,
    segment,
)
from headrace.capture.postgres.server.catalog import CatalogColumn, CatalogTable, value_type
from headrace.changelog.change import TableChanges
from headrace.changelog.schema import Column, TableSchema
from headrace.errors import SchemaChanged

# --- relations, and the decoder of their changes --------------------------------------------------


@dataclass(slots=True)
class Relations:
    """The known relations of the session, or of one stream in it."""

    versions: dict[int, RelationVersion] = field(default_factory=dict)
    _received: dict[int, int] = field(default_factory=dict)

    def differs(self, version: RelationVersion) -> bool:
        """Return whether this version differs from the known one."""
        return self.versions.get(version.relation.oid) != version

    def learn(self, version: RelationVersion, number: int) -> None:
        """Store a version; `number` orders it by when its message was received."""
        oid = version.relation.oid
        if self.differs(version):
            self.versions[oid] = version
        self._received[oid] = number

    def relearn(self, oid: int, decoder: Decoder) -> None:
        """Store a known relation again, with its current layout."""
        if (known := self.versions.get(oid)) is not None:
            # If it was altered since it was described, it will be described again.
            with suppress(SchemaChanged):
                self.versions[oid] = decoder.version(known.relation)

    def merge(self, other: Relations) -> None:
        """Store the versions of `other` whose messages were received later than ours."""
        for oid, version in other.versions.items():
            number = other._received[oid]
            if number > self._received.get(oid, -1):
                self.learn(version, number)


@dataclass(slots=True)
class _Group:
    """Changes of one version of a relation."""

    version: RelationVersion
    batches: list[pa.RecordBatch] = field(default_factory=list)


class Decoder:
    """Decodes messages into changes of tables."""

    def __init__(self, layouts: Layouts) -> None:
        self._layouts = layouts
        self._count = 0

    def count(self) -> int:
        """Return a number for a Relation message that has just been received."""
        self._count += 1
        return self._count

    def version(self, relation: Relation) -> RelationVersion:
        """Return the version of a relation that is valid from here on."""
        # The layout is requested each time: the same names and types may be new columns.
        return RelationVersion(relation, self._layouts.layout(relation))

    def decode(
        self,
        run: MessageBuffer,
        wanted: Flags,
        stamps: Stamps,
        known: Relations,
        announced: Iterator[tuple[Relation, int]] | None = None,
    ) -> list[TableChanges]:
        """
        Return the wanted changes by table, each in position order.

        `known` is updated by the Relation messages among them; `announced` has these messages,
        in the same order, if they were read before.
        """
        groups: list[_Group] = []
        begin = 0
        for index in np.flatnonzero(run.kinds == RELATION).tolist():
            if announced is not None:
                relation, number = next(announced)
            else:
                relation, number = read_relation(run.one(index)), self.count()
            version = self.version(relation)
            if known.differs(version):
                _span(groups, run, wanted, stamps, known, begin, index)
                begin = index
            known.learn(version, number)
        _span(groups, run, wanted, stamps, known, begin, len(run.kinds))
        return [
            TableChanges(group.version.schema, pa.Table.from_batches(group.batches))
            for group in groups
        ]


def _span(
    groups: list[_Group],
    run: MessageBuffer,
    wanted: Flags,
    stamps: Stamps,
    known: Relations,
    begin: int,
    end: int,
) -> None:
    """Decode the changes between two messages at which relations change."""
    rows = np.flatnonzero(wanted[begin:end]) + begin
    if not len(rows):
        return
    if (wrong := run.sizes()[rows] < run.lead + 4).any():
        run.wrong("Message is too short", wrong, run.stops[rows], rows)
    rows, oids = _tables(run, rows)
    # Mostly there is one table, and checking that is cheaper than sorting.
    alone = bool((oids == oids[0]).all())
    for oid in oids[:1].tolist() if alone else np.unique(oids).tolist():
        version = known.versions.get(oid)
        if version is None:
            run.wrong("Relation is unknown", oids == oid, run.starts[rows] + 1, rows)
        if version.layout is None:
            continue
        mine = rows if alone else rows[oids == oid]
        found = run.at(mine)
        group = next((group for group in groups if group.version is version), None)
        if group is None:
            group = _Group(version)
            groups.append(group)
        for chunk in chunks(found):
            group.batches.append(segment(version, found.at(chunk), stamps.at(mine[chunk])))


def _tables(run: MessageBuffer, rows: Ints) -> tuple[Ints, Ints]:
    """Return the table's oid of each change; a TRUNCATE is repeated for each of its tables."""
    oids = run.bytes.numbers(run.starts[rows] + run.lead, ">u4")
    truncates = np.flatnonzero(run.kinds[rows] == TRUNCATE)
    if not len(truncates):
        return rows, oids
    parts_rows, parts_oids = [np.delete(rows, truncates)], [np.delete(oids, truncates)]
    for at in truncates.tolist():
        named = read_truncate(run.one(int(rows[at])), streamed=run.lead > 1)
        parts_rows.append(np.full(len(named), rows[at]))
        parts_oids.append(np.array(named, np.int64))
    all_rows, all_oids = np.concatenate(parts_rows), np.concatenate(parts_oids)
    order = np.argsort(all_rows, kind="stable")
    return all_rows[order], all_oids[order]


# --- versions of the tables that are captured -----------------------------------------------------


class Schemas:
    """Layouts of the tables that are captured, by their oids."""

    def __init__(
        self,
        tables: Iterable[tuple[CatalogTable, TableSchema]],
        recorded: Mapping[str, TableSchema] | None = None,
        former: Collection[tuple[str, str]] = (),
        replaced: Collection[str] = (),
    ) -> None:
        """
        `recorded` are the tables' schemas in the log.

        `former` are names that a table had for a while: its name, and the other one. `replaced`
        are the tables whose name another table had before: their earlier changes are not theirs.
        """
        self._whole: Collection[str] = ()
        self._former = former
        self._replaced = set(replaced)
        self._tables: dict[int, CatalogTable] = {}
        self._versions: dict[int, list[TableSchema]] = {}
        """The known versions of each table, the newest first."""

        for table, schema in tables:
            known = (recorded or {}).get(table.name)
            self._versions[table.oid] = [] if known is None else [known]
            self.adopt(table, schema)

    def own_from_here(self, table: str) -> None:
        """Take every further change of a table as its own, whatever its name is then."""
        self._replaced.discard(table)

    def expect_whole(self, tables: Collection[str]) -> None:
        """Raise when a table is no longer sent with whole rows, before its first such change."""
        self._whole = tables

    def adopt(self, table: CatalogTable, schema: TableSchema) -> None:
        """Store a table's current schema; the earlier versions stay known."""
        self._tables[table.oid] = table
        versions = self._versions.setdefault(table.oid, [])
        if not versions or versions[0] != schema:
            versions.insert(0, schema)

    def layout(self, relation: Relation) -> RelationLayout | None:
        """
        Return the relation's layout; None if the table is not captured.

        Raises `SchemaChanged` if its columns cannot be identified.
        """
        table = self._tables.get(relation.oid)
        if table is None:
            return None
        if (relation.namespace, relation.table) != (table.namespace, table.table):
            now = f"{relation.namespace}.{relation.table}"
            if table.name in self._replaced:
                return None
            if (table.name, now) not in self._former:
                raise SchemaChanged(
                    "Table was renamed",
                    table=table.name,
                    now=now,
                    remedy="Use the new name in the configuration, and start again.",
                )
        else:
            self._replaced.discard(table.name)
        if table.name in self._whole and relation.identity != "f":
            raise SchemaChanged(
                "The table's replica identity was altered",
                table=table.name,
                identity=relation.identity,
            )
        for schema in self._versions[relation.oid]:
            if (indexes := _indexes(relation, schema, table.columns)) is not None:
                return RelationLayout(schema, indexes)
        between = _between(relation, self._versions[relation.oid], table)
        return RelationLayout(between, tuple(range(len(between.columns))))


def _indexes(
    relation: Relation, schema: TableSchema, now: Sequence[CatalogColumn]
) -> tuple[int, ...] | None:
    """Return the indexes of the relation's columns in a schema; None if they do not match."""
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
    Return the schema of a relation that is not a known version, but between two of them.

    Each of its columns must be a column of theirs. Columns are sent in the order of their
    numbers: if the order does not match, a name was given to another column in the meantime,
    and the columns cannot be identified.
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
            raise SchemaChanged(
                "Table was altered: a column cannot be identified",
                table=table.name,
                column=sent.name,
            )
        columns.append(found[0])
    names = {column.name for column in columns}
    if (key := _key(relation, versions[0])) is None or not set(key) <= names:
        raise SchemaChanged("The table's key was changed", table=table.name)
    return TableSchema(table.name, tuple(columns), key, whole_before=relation.identity == "f")


def _key(relation: Relation, schema: TableSchema) -> tuple[str, ...] | None:
    """Return the relation's key; None if it differs from the schema's."""
    if relation.identity == "f":
        # All columns are marked as key columns; only the catalogue knows which are (R23).
        return schema.key
    sent = {column.name for column in relation.columns if column.key}
    return schema.key if sent == set(schema.key) else None


def _same(sent: RelationColumn, kept: Column, now: Mapping[int, CatalogColumn]) -> bool:
    """Whether a column that was sent can be this one."""
    if (column := now.get(kept.field)) is not None:
        same = (sent.type, sent.modifier) == (column.own_type, column.own_modifier)
        declared = column.declared == kept.declared
        if same or declared:
            return same and declared
    # The catalogue does not have a column's earlier type, so only the kind is compared.
    return value_type(sent.type, sent.modifier) == kept.type
