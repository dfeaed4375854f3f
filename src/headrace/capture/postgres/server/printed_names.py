"""
Names that the log has in values, and that may no longer be the names of what they stood for.

The text of an enum's value is its label, and that of a `regclass` the name of a table. A label that
is added alters no older row, so it is accepted without a copy. But it can be used, and then
renamed, before it is seen for the first time: between two looks at the catalog, while the recorder
lags, or while nothing reads. The stream then has a text that is no label any more.

So the values of such columns are compared with the names of the last look, as they arrive. A name
that was not there is noted in the log, before the changes that have it. The next look decides: it
is a new name, or it has been replaced, and the table has to be copied again.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.compute as pc

from headrace.capture.postgres.server.catalog import CatalogTable
from headrace.capture.source import SourceNotice
from headrace.changelog.change import Changes
from headrace.changelog.schema import TableName

_KEY = "names/"
"""The key of these notes in the log; the table's name follows."""

_ELEMENTS = """
with recursive inner_type as (
    select oid as type, oid as given, false as elements
    from unnest(%(types)s::oid[]) as c(oid)
    union all
    select case when t.typtype = 'd' then t.typbasetype else t.typelem end, i.given,
           i.elements or t.typtype <> 'd'
    from inner_type i
    join pg_catalog.pg_type t on t.oid = i.type
    where t.typtype = 'd' or t.typcategory = 'A' and t.typelem <> 0
)
select given::int8, type::int8, elements from inner_type where type = any(%(named)s::oid[])
"""

_ELEMENT = re.compile(r'"((?:[^"\\]|\\.)*)"|([^{},"]+)')
_NO_OBJECT = re.compile(r"-|\d+|pg_temp_\d+\..*", re.DOTALL)
"""Printed for no object, for one that is gone, and for temporary ones, which are not compared."""

_FIRST_USER_OID = 16384
"""Types with smaller oids print names of objects, others are enums."""


class PrintedNames:
    """The columns whose values are names, and names that were not known. For one thread."""

    def __init__(self) -> None:
        self._columns: dict[TableName, dict[int, tuple[int, bool]]] = {}
        """By the column's number: the type whose names it has, and whether in an array."""

        self._names: dict[int, set[str]] = {}
        """By the type's oid: the names of the last look."""

        self._examined: dict[int, set[str]] = {}
        """The same of names that came in values and need not be looked at again."""

        self._unknown: dict[TableName, dict[int, set[str]]] = {}
        self._covered: dict[TableName, int] = {}
        """Tables that are copied again once all up to this position was read."""

        self._notices: list[SourceNotice] = []

    def recall(self, notes: Mapping[TableName, str]) -> None:
        """Take over the log's notes."""
        self._columns, self._names, self._examined, self._covered = {}, {}, {}, {}
        self._notices = []
        self._unknown = {
            key.removeprefix(_KEY): {int(type): set(names) for type, names in json.loads(text)}
            for key, text in notes.items()
            if key.startswith(_KEY) and text != "[]"
        }

    def types(self, table: TableName) -> set[int]:
        """Return the types whose names are compared in the values of a table."""
        return {type for type, _ in self._columns.get(table, {}).values()}

    def look(
        self,
        connection: psycopg.Connection[Any],
        tables: Mapping[TableName, CatalogTable],
        names: Mapping[int, Iterable[str]],
        all_names: Callable[[int], Iterable[str]],
    ) -> set[TableName]:
        """
        Take the names of now; return the tables that have one which is no name any more.

        `names` are those that users can alter, by their type; `all_names` returns every one.
        """
        self._columns = _columns(connection, tables, list(names)) if names else {}
        outdated = set()
        for table, unknown in self._unknown.items():
            if any(not each <= set(all_names(type)) for type, each in unknown.items()):
                outdated.add(table)
            for type, each in unknown.items():
                # Also one that is no name: whatever it is, it costs one copy and not many.
                self._examined.setdefault(type, set()).update(each)
            self._notices.append(SourceNotice(f"{_KEY}{table}", note="[]"))
        self._unknown = {}
        self._names = {
            type: {*found, *self._examined.get(type, ())} for type, found in names.items()
        }
        return outdated & tables.keys()

    def cover(self, tables: Iterable[TableName], upto: int) -> None:
        """Ignore what these tables have up to a position: they are copied after that."""
        self._covered |= dict.fromkeys(tables, upto)

    def compare(self, changes: Changes) -> bool:
        """Compare new values with the known names; return whether there is a notice of it."""
        for each in changes.tables:
            table = each.schema.table
            columns = self._columns.get(table)
            if not columns or changes.upto.commit <= self._covered.get(table, 0):
                continue
            found: dict[int, set[str]] = defaultdict(set)
            for index, column in enumerate(each.schema.columns):
                if (named := columns.get(column.field)) is not None:
                    type, elements = named
                    names = set(_values(each.rows, index, elements)) - self._names[type]
                    found[type] |= {name for name in names if not _names_no_object(type, name)}
            unknown = self._unknown.get(table, {})
            new = {type: names - unknown.get(type, set()) for type, names in found.items()}
            if any(new.values()):
                for type, names in new.items():
                    self._unknown.setdefault(table, {}).setdefault(type, set()).update(names)
                note = [(type, sorted(names)) for type, names in self._unknown[table].items()]
                self._notices.append(SourceNotice(f"{_KEY}{table}", note=json.dumps(note)))
        return bool(self._notices)

    def notices(self) -> list[SourceNotice]:
        """Return what the log should record, each notice once."""
        found, self._notices = self._notices, []
        return found


def _columns(
    connection: psycopg.Connection[Any], tables: Mapping[TableName, CatalogTable], named: list[int]
) -> dict[TableName, dict[int, tuple[int, bool]]]:
    types = sorted({column.type for table in tables.values() for column in table.columns})
    rows = connection.execute(_ELEMENTS, {"types": types, "named": named}).fetchall()
    inner = {given: (type, elements) for given, type, elements in rows}
    return {
        name: {c.number: inner[c.type] for c in table.columns if c.type in inner}
        for name, table in tables.items()
    }


def _values(rows: pa.Table, index: int, elements: bool) -> Iterator[str]:
    """Yield the names among the new values of a column, most of them once."""
    for chunk in rows.column("after").chunks:
        for text in pc.unique(pc.struct_field(chunk, [index])).drop_null().to_pylist():
            if elements:
                yield from _elements(text)
            else:
                yield text


def _elements(text: str) -> Iterator[str]:
    """Yield the elements of an array in its text form."""
    if text.startswith("["):
        _, _, text = text.partition("=")
    for quoted, plain in _ELEMENT.findall(text):
        if plain != "NULL":
            yield plain or re.sub(r"\\(.)", r"\1", quoted)


def _names_no_object(type: int, name: str) -> bool:
    return type < _FIRST_USER_OID and _NO_OBJECT.fullmatch(name) is not None
