"""
Changes to tables that the stream does not report, found by comparing the catalogue with notes.

A table that a user takes out of a publication of his own and puts back, or drops and creates
again, has lost changes, and nothing in the stream reports it. A table with another file may have
been rewritten with a column that was added (R23b), or by `ALTER … TYPE … USING`, which gives a
column other values even where its type stays. So what was seen is noted in the log: which table it
is, its file, how it is published. That is compared when reading begins, and now and then.

VACUUM FULL and CLUSTER make another file, too, and keep rows as they are; but they alter no
column. A table whose default is altered and which is then rewritten is copied once for nothing.

A table that is dropped, or replaced by another of its name, or taken out of the publication, sends
no more messages; a column that is added shows only with the next change, and a partition that is
emptied, dropped or attached not at all (R23b, R23c). So the catalogue is asked now and then,
without locks, and nothing waits for the answer.
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
from headrace.capture.postgres.server.partitions import Trees
from headrace.capture.source import News
from headrace.changelog.schema import TableName, TableSchema
from headrace.errors import SchemaChanged, SourceUnreachable

# --- identity, file and publication, compared with what was noted ---------------------------------

_KEY = "standing/"
"""What notes of this kind stand under, before the table's name."""

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
    """One table at one moment, and its text in the log."""

    oid: str
    published: str
    file: str
    stamps: Mapping[int, int]
    """By column; none in notes of before."""

    @property
    def place(self) -> tuple[str, str]:
        return self.oid, self.published

    def rewritten(self, now: _Seen) -> bool:
        """Whether a column was altered, and rows were written anew."""
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
    """Compares what was noted with what is. For one thread."""

    def __init__(self, options: PostgresOptions) -> None:
        self._options = options
        self._noted: dict[TableName, _Seen] = {}
        self._news: list[News] = []

    def recall(self, notes: Mapping[TableName, str]) -> None:
        """Take what the log kept."""
        self._noted = {}
        for key, text in notes.items():
            if key.startswith(_KEY) and (seen := _Seen.parse(text)) is not None:
                self._noted[key.removeprefix(_KEY)] = seen

    def described(
        self, table: CatalogTable, schema: TableSchema, recorded: TableSchema | None
    ) -> TableSchema:
        """Return the schema, saying which new columns older rows may have anything in."""
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
        """Compare, and have the log told of what there is now."""
        published: dict[int, int] = {}
        if not self._options.create_publication:
            # One of ours is compared by what we did to it ourselves.
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
            if noted is not None and noted.place != now.place and published:
                self._news.append(News(name, owed="left out", missing=True))
            elif noted is not None and noted.rewritten(now):
                self._news.append(News(name, owed="rewritten"))
            if noted != now:
                self._news.append(News(f"{_KEY}{name}", note=str(now)))
            self._noted[name] = now

    def news(self) -> list[News]:
        """Return what the log should know, once."""
        found, self._news = self._news, []
        return found


def _file(table: CatalogTable) -> str:
    if table.kind != "p":
        return str(table.leaves[0].filenode or 0)
    # Of partitions all together: which of them is another one, see `trees`.
    files = sorted(leaf.filenode or 0 for leaf in table.leaves)
    return f"p{zlib.crc32(repr(files).encode()):08x}"


# --- what happens to tables without a message in the stream ---------------------------------------

WATCH_SECONDS = 10.0
"""The longest that such a thing goes unnoticed."""


class DdlWatch:
    """Remembers what tables were, and compares."""

    def __init__(
        self,
        options: PostgresOptions,
        tables: MutableMapping[str, CatalogTable],
        schemas: Mapping[str, TableSchema],
        schema_of: Callable[[CatalogTable], TableSchema],
        clock: Callable[[], float],
        trees: Trees,
        standing: IdentityCheck,
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
        self.due = clock()
        """When it is time to compare again."""

    def look(self, connection: psycopg.Connection[Any]) -> None:
        """
        Compare, if it is time to.

        Raises `SchemaChanged` where a table's columns are others, `TableRefused` where one is
        gone, and `SourceUnreachable` where reading has to begin anew to go on as it should.
        """
        if self._clock() < self.due and not self._trees.unknown(self._tables.values()):
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
