"""
Alterations of tables that the stream does not report, found by comparing the catalog with notes.

If a user removes a table from a publication of their own and adds it again, or drops it and
creates it again, changes are lost, and nothing in the stream reports it. A table with a new file
may have been rewritten with an added column (R23b), or by `ALTER … TYPE … USING`, which changes the
values of a column even if its type stays. So the log has notes of what was seen: the table's oid,
its file, how it is published. They are compared when reading begins, and every few seconds.

VACUUM FULL and CLUSTER create a new file, too, and leave the rows as they are; but they alter no
column. If a default is altered and then the table is rewritten, the table is copied without need.

A table that is dropped, replaced by another one with the same name, or removed from the
publication sends no more messages. An added column appears only with the next change, and a
partition that is truncated, dropped or attached not at all (R23b, R23c). So the catalog is queried
every few seconds, without locks, and nothing waits for the answer.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass, replace
from typing import Any

import psycopg

from headrace.capture.postgres.options import PostgresOptions
from headrace.capture.postgres.server import publication
from headrace.capture.postgres.server.catalog import CatalogTable, fingerprint, look_up
from headrace.capture.postgres.server.partitions import PartitionedTables
from headrace.capture.source import SourceNotice
from headrace.changelog.schema import TableName, TableSchema
from headrace.errors import SchemaChanged, SourceUnreachable

# --- identity, file and publication, compared with the notes --------------------------------------

_KEY = "standing/"
"""The key of these notes in the log; the table's name follows."""

_PUBLISHED = """
select c.oid::int8,
       coalesce(r.oid, n.oid, p.oid)::int8
from unnest(%(tables)s::oid[]) as c(oid)
join pg_catalog.pg_class k on k.oid = c.oid
left join pg_catalog.pg_publication p on p.pubname = %(name)s
left join pg_catalog.pg_publication_rel r on r.prpubid = p.oid and r.prrelid = c.oid
left join {namespaces} n on n.pnpubid = p.oid and n.pnnspid = k.relnamespace
"""
_NAMESPACES = "pg_catalog.pg_publication_namespace"
_NONE = "(select null::oid as oid, null::oid as pnpubid, null::oid as pnnspid) "


@dataclass(frozen=True, slots=True)
class _Seen:
    """A table as it was seen once, and its text in the log."""

    oid: str
    published: str
    file: str
    stamps: Mapping[int, int]
    """By column; older notes have none."""

    @property
    def membership(self) -> tuple[str, str]:
        return self.oid, self.published

    def rewritten(self, now: _Seen) -> bool:
        """Whether a column was altered and the rows were rewritten."""
        return self.file != now.file and any(
            now.stamps.get(number, stamp) != stamp for number, stamp in self.stamps.items()
        )

    def __str__(self) -> str:
        stamps = ",".join(f"{number}:{stamp}" for number, stamp in self.stamps.items())
        return f"{self.oid} {self.published} {self.file} {stamps}"

    @classmethod
    def parse(cls, text: str) -> _Seen | None:
        oid, published, file, stamps, *_ = [*text.split(" "), "", "", ""]
        pairs = (pair.split(":") for pair in stamps.split(",") if pair)
        found = {int(number): int(stamp) for number, stamp in pairs}
        return cls(oid, published, file, found) if file else None


class IdentityCheck:
    """Compares tables with the notes of them in the log. For one thread."""

    def __init__(self, options: PostgresOptions) -> None:
        self._options = options
        self._noted: dict[TableName, _Seen] = {}
        self._notices: list[SourceNotice] = []

    def recall(self, notes: Mapping[TableName, str]) -> None:
        """Take over the notes that the log has."""
        self._noted = {}
        for key, text in notes.items():
            if key.startswith(_KEY) and (seen := _Seen.parse(text)) is not None:
                self._noted[key.removeprefix(_KEY)] = seen

    def described(
        self, table: CatalogTable, schema: TableSchema, recorded: TableSchema | None
    ) -> TableSchema:
        """Return the schema, with the new columns marked in which older rows may have any value."""
        noted = self._noted.get(table.name)
        if noted is None or recorded is None or noted.file == _file(table):
            return schema
        known = {column.field for column in recorded.columns}
        columns = (
            column
            if column.field in known or column.missing is not None
            else replace(column, rewritten=True)
            for column in schema.columns
        )
        return replace(schema, columns=tuple(columns))

    def look(
        self, connection: psycopg.Connection[Any], tables: Mapping[TableName, CatalogTable]
    ) -> None:
        """Compare, and leave notices for the log of what has changed."""
        published: dict[int, int] = {}
        if not self._options.create_publication:
            # For a publication of ours we know the changes, because we make them.
            namespaces = _NAMESPACES if connection.info.server_version >= 150000 else _NONE
            rows = connection.execute(
                _PUBLISHED.format(namespaces=namespaces),
                {"tables": [t.oid for t in tables.values()], "name": self._options.publication},
            ).fetchall()
            published = {oid: member or 0 for oid, member in rows}
        for name, table in tables.items():
            now = _Seen(
                str(table.oid),
                str(published.get(table.oid, 0)),
                _file(table),
                {column.number: column.stamp for column in table.columns},
            )
            noted = self._noted.get(name)
            if noted is not None and noted.membership != now.membership and published:
                self._notices.append(SourceNotice(name, rebaseline_reason="left out", missing=True))
            elif noted is not None and noted.rewritten(now):
                self._notices.append(SourceNotice(name, rebaseline_reason="rewritten"))
            if noted != now:
                self._notices.append(SourceNotice(f"{_KEY}{name}", note=str(now)))
            self._noted[name] = now

    def notices(self) -> list[SourceNotice]:
        """Return what the log should record, each notice once."""
        found, self._notices = self._notices, []
        return found


def _file(table: CatalogTable) -> str:
    if table.kind != "p":
        return str(table.leaves[0].filenode or 0)
    # One value for all partitions: `partitions.py` finds out which of them changed.
    files = sorted(leaf.filenode or 0 for leaf in table.leaves)
    return f"p{zlib.crc32(repr(files).encode()):08x}"


# --- alterations without a message in the stream --------------------------------------------------

WATCH_SECONDS = 10.0
"""The longest time until such an alteration is noticed."""


class DdlWatch:
    """Remembers the tables as they were described, and compares them with the catalog."""

    def __init__(
        self,
        options: PostgresOptions,
        tables: MutableMapping[str, CatalogTable],
        schemas: Mapping[str, TableSchema],
        schema_of: Callable[[CatalogTable], TableSchema],
        clock: Callable[[], float],
        partitions: PartitionedTables,
        identities: IdentityCheck,
    ) -> None:
        """`tables` is updated when only the partitions of a table have changed."""
        self._options = options
        self._tables = tables
        self._schemas = schemas
        self._schema_of = schema_of
        self._clock = clock
        self._partitions = partitions
        self._identities = identities
        self._named: frozenset[int] | None = None
        self.due = clock()
        """When it is time to compare again."""

    def look(self, connection: psycopg.Connection[Any]) -> None:
        """
        Compare, if it is time to.

        Raises `SchemaChanged` if a table's columns have changed, `TableRefused` if a table no
        longer exists, and `SourceUnreachable` if the source has to be opened again.
        """
        if self._clock() < self.due and not self._partitions.unknown(self._tables.values()):
            return
        self.due = self._clock() + WATCH_SECONDS
        now = look_up(connection, list(self._tables))
        for name, table in now.items():
            if not same_shape(self._schema_of(table), self._schemas[name]):
                raise SchemaChanged("The table's columns or its key were altered", table=name)
            if table.oid != self._tables[name].oid:
                raise SourceUnreachable(
                    "The table was replaced by another one with the same name", table=name
                )
        named = publication.named(connection, self._options)
        if self._named is not None and (gone := self._named - named):
            lost = [name for name, table in now.items() if table.oid in gone]
            raise SourceUnreachable(
                "Tables were removed from the publication",
                publication=self._options.publication,
                tables=lost,
            )
        self._named = named
        self._tables.update(now)
        self._partitions.look(connection, now)
        self._identities.look(connection, now)


def altered_table(
    connection: psycopg.Connection[Any],
    tables: Mapping[str, CatalogTable],
    schemas: Mapping[str, TableSchema],
    schema_of: Callable[[CatalogTable], TableSchema],
) -> str | None:
    """Return a table that was altered since it was described; None if there is none."""
    for name, table in look_up(connection, list(tables)).items():
        same = fingerprint(table) == fingerprint(tables[name])
        if not same or not same_shape(schema_of(table), schemas[name]):
            return name
    return None


def same_shape(one: TableSchema, other: TableSchema) -> bool:
    """Whether both have the same key and columns, by number, name and type."""
    return one.key == other.key and [
        (column.field, column.name, column.type, column.declared) for column in one.columns
    ] == [(column.field, column.name, column.type, column.declared) for column in other.columns]
