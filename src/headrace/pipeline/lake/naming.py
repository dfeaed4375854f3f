"""
Where a table of a lake is: by its name in a catalog, by its folder, or both.

`{table}` and `{schema}` in either stand for the source's table, so that one target takes
several: `lake.{table}` makes `lake.orders` of `public.orders`.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

from headrace.changelog.schema import TableName
from headrace.errors import BadTable
from headrace.pipeline.literals import quoted

_PLAIN = re.compile(r"[^\W\d]\w*|\{(table|schema)\}|[\w{}-]+")
_MOST_PARTS = 3
SESSION_CATALOG = "spark_catalog"


@dataclass(frozen=True, slots=True)
class Where:
    """One table: its parts of a name, its folder, or both."""

    parts: tuple[str, ...]
    """Catalog, schema and table, as far as they are given; none: it has a folder alone."""

    path: str | None

    @property
    def name(self) -> str:
        """The name as SQL takes it; empty where it has none."""
        return ".".join(quoted(part) for part in self.parts)

    @property
    def shown(self) -> str:
        """What it is called for people."""
        return ".".join(self.parts) or str(self.path)

    @property
    def in_session_catalog(self) -> bool:
        """Whether the name is one of Spark's own catalog, which may forget it."""
        return len(self.parts) < _MOST_PARTS or self.parts[0] == SESSION_CATALOG

    @property
    def schema(self) -> str:
        """The schema of the name, `default` where none is given."""
        return self.parts[-2] if len(self.parts) > 1 else "default"


def check_name(name: str | None, path: str | None) -> None:
    """Raise `BadTable` where this names no table."""
    if name is None and path is None:
        raise BadTable("A table needs a name or a path")
    if name is not None:
        parts = name.split(".")
        if len(parts) > _MOST_PARTS or not all(_PLAIN.fullmatch(part) for part in parts):
            raise BadTable(
                "This is no name of a table",
                remedy="Write table, schema.table or catalog.schema.table; for a folder, path=.",
                name=name,
            )


def places(name: str | None, path: str | None, tables: Collection[TableName]) -> dict[str, Where]:
    """Return where each of the source's tables goes; `BadTable` where two would go to one."""
    found: dict[TableName, Where] = {}
    taken: dict[object, TableName] = {}
    for table in tables:
        where = Where(tuple(_filled(name, table).split(".")) if name else (), _path(path, table))
        # No catalog of Spark's tells names apart by case alone.
        folded = tuple(part.casefold() for part in where.parts)
        for place in [each for each in (folded, where.path) if each]:
            if (other := taken.setdefault(place, table)) != table:
                raise BadTable(
                    "Two tables would become one",
                    remedy="Write {table}, or {schema} and {table}, where their names are to stand:"
                    ' hr.table("lake.{table}"). Where they differ by case alone, give each a'
                    " pipeline and a name of its own.",
                    table=where.shown,
                    of=sorted([other, table]),
                )
        found[table] = where
    return found


def _path(path: str | None, table: TableName) -> str | None:
    return None if path is None else _filled(path, table)


def _filled(pattern: str, table: TableName) -> str:
    schema, _, name = table.rpartition(".")
    # A name of the source may hold a dot itself; here dots part schema from table.
    return pattern.replace("{table}", name).replace("{schema}", schema or "main")
