"""
How a table stands, as the log last heard of it: which one it is, its file, how it is published.

A table that somebody takes out of a publication of his own and puts back, or drops and makes
anew, has lost changes, and nothing in the stream tells. A table with another file may have been
rewritten with a column that was added (R23b), or by `ALTER … TYPE … USING`, which gives a column
other values even where its type stays. So what was seen is noted in the log, and compared when
reading begins, and now and then.

VACUUM FULL and CLUSTER make another file, too, and keep rows as they are; but they alter no
column. Whoever alters a default and rewrites the table has it copied once for nothing.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import psycopg

from headrace.capture.postgres.catalog import CatalogTable
from headrace.capture.postgres.options import Options
from headrace.capture.source import News
from headrace.changelog.schema import TableName, TableSchema

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


class Standing:
    """Compares what was noted with what is. For one thread."""

    def __init__(self, options: Options) -> None:
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
