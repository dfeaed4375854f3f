"""
Alterations of tables that the stream does not report, found by comparing the catalog with notes.

If a user removes a table from a publication and adds it again, or drops it and creates it again,
changes are lost, and nothing in the stream reports it. If two tables are renamed into each other,
each has the other's rows. A table with a new file may have been rewritten with an added column
(R23b), or by `ALTER … TYPE … USING`, which changes the values of a column even if its type stays.
A value of an enum can be renamed: then old rows have another text than before. So the log has
notes of what was seen: the table's oid, its file, how it is published, and the texts that its
types print. They are compared when reading begins, and every ten seconds.

What a publication was between two looks cannot be read. But every alteration writes a row of the
catalog: dropped and added again, the row has another oid, and altered in place, it has another
xmin, the number of the transaction that wrote it. Both stay when the row is frozen. If one differs
from the note, and the transaction was not ours, changes may be missing. Transaction numbers wrap
around: an alteration exactly 2^32 transactions after the last one would not be noticed.

VACUUM FULL and CLUSTER create a new file, too, and leave the rows as they are. They alter no
column, except that older rows get the value of a column that was added with a constant default:
its row of the catalog is written again, but not that of its default, as it is by `ALTER … TYPE`.
So the table is copied without need only if that default was dropped before, or another one altered.

The text of an enum's value is its label, and that of a `regclass` the name of a table. A label that
is added alters no older row, so it is accepted without a copy. But it can be used, and then
renamed, before it is seen for the first time: between two looks, while the recorder lags, or while
nothing reads. So the values of such columns are compared with the names of the last look as they
arrive. A name that was not there is noted before the changes that have it. The next look decides:
it is a new name, or it has been replaced, and the table has to be copied again.

A table that is dropped, replaced by another one with the same name, or removed from the
publication sends no more messages. An added column appears only with the next change, and a
partition that is truncated, dropped or attached not at all (R23b, R23c). So the catalog is queried
every ten seconds, without locks. The thread that reads changes waits for the answer.

All that can change without a message, and what notices it, is listed in
docs/internals/silent-changes.md.

Long because all of it is found by one look at the catalog, and decided against the same notes.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import psycopg
import pyarrow as pa
import pyarrow.compute as pc

from headrace.capture.postgres.copy.snapshot import record_end
from headrace.capture.postgres.options import PostgresOptions
from headrace.capture.postgres.server import preflight, publication, slot
from headrace.capture.postgres.server.catalog import (
    CatalogColumn,
    CatalogTable,
    fingerprint,
    look_up,
)
from headrace.capture.postgres.server.partitions import PartitionedTables
from headrace.capture.postgres.server.publication import Alterations
from headrace.capture.source import SourceNotice
from headrace.changelog.change import Changes
from headrace.changelog.schema import TableName, TableSchema
from headrace.errors import HeadraceError, Reopening, SchemaChanged

# --- what the values of a table's types look like -------------------------------------------------

_FIRST_USER_OID = 16384
"""Objects of the server itself have smaller oids, and are not altered."""

_NAMED: Final[Mapping[int, str]] = {
    24: "select oid, oid::regproc::text from pg_proc",
    2202: "select oid, oid::regprocedure::text from pg_proc",
    2203: "select oid, oid::regoper::text from pg_operator",
    2204: "select oid, oid::regoperator::text from pg_operator",
    2205: "select oid, oid::regclass::text from pg_class where relpersistence <> 't'"
    " and relnamespace <> 'pg_toast'::regnamespace",
    2206: "select oid, oid::regtype::text from pg_type where typnamespace not in"
    " (select oid from pg_namespace where nspname like 'pg\\_t%')",
    3734: "select oid, oid::regconfig::text from pg_ts_config",
    3769: "select oid, oid::regdictionary::text from pg_ts_dict",
    4089: "select oid, oid::regnamespace::text from pg_namespace where nspname not like 'pg\\_t%'",
    4096: "select oid, oid::regrole::text from pg_roles",
    4191: "select oid, oid::regcollation::text from pg_collation",
    1033: "select oid, oid::regrole::text from pg_roles",
}
"""Types whose values are names of other objects: the names, by the type's oid."""

_ACLITEM = 1033
"""Its values contain names, so they cannot be compared with them."""

_TYPES = """
with recursive used as (
    select a.attrelid as relation, a.atttypid as type
    from unnest(%(tables)s::oid[]) as c(oid)
    join pg_catalog.pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
    join pg_catalog.pg_type t on t.oid = a.atttypid
    where t.oid >= %(first)s::oid or %(named)s::oid[] && array[t.oid, t.typelem]
    union
    select u.relation, below.type
    from used u
    join pg_catalog.pg_type t on t.oid = u.type
    cross join lateral (
        select t.typbasetype as type where t.typtype = 'd'
        union all
        select t.typelem where t.typtype = 'b' and t.typelem <> 0
        union all
        select r.rngsubtype from pg_catalog.pg_range r where t.oid in (r.rngtypid, r.rngmultitypid)
        union all
        select a.atttypid from pg_catalog.pg_attribute a
        where t.typtype = 'c' and a.attrelid = t.typrelid and a.attnum > 0 and not a.attisdropped
    ) below
)
select u.relation::int8, u.type::int8, t.typtype = 'e' as enum, parts.numbers, parts.texts
from used u
join pg_catalog.pg_type t on t.oid = u.type
cross join lateral (
    select array[x.oid::int8] as numbers, array[x.extversion] as texts
    from pg_catalog.pg_depend d
    join pg_catalog.pg_extension x on x.oid = d.refobjid
    where t.typtype in ('b', 'r') and d.classid = 'pg_catalog.pg_type'::regclass and d.objid = t.oid
      and d.refclassid = 'pg_catalog.pg_extension'::regclass and d.deptype = 'e'
    union all
    select pg_catalog.array_agg(e.oid::int8 order by e.oid) as numbers,
           pg_catalog.array_agg(e.enumlabel::text order by e.oid) as texts
    from pg_catalog.pg_enum e where t.typtype = 'e' and e.enumtypid = t.oid
    union all
    select pg_catalog.array_agg(a.attnum::int8 order by a.attnum),
           pg_catalog.array_agg(a.atttypid || '.' || a.atttypmod order by a.attnum)
    from pg_catalog.pg_attribute a
    where t.typtype = 'c' and a.attrelid = t.typrelid and a.attnum > 0 and not a.attisdropped
) parts
where parts.numbers is not null or t.oid = any(%(named)s::oid[])
"""

Items = Sequence[tuple[int, str]]


@dataclass(frozen=True, slots=True)
class _TypeText:
    """
    What the values of a type look like: labels of an enum, attributes, names of objects, or the
    version of the extension that prints them.
    """

    upto: int
    """The newest label or object; later ones alter no older row. -1: every item counts."""

    digest: str

    @classmethod
    def of(cls, items: Items, upto: int) -> _TypeText:
        counted = [item for item in items if upto < 0 or item[0] <= upto]
        return cls(upto, hashlib.sha256(repr(counted).encode()).hexdigest()[:16])


@dataclass(frozen=True, slots=True)
class _TypeItems:
    items: Items
    grows: bool
    """Whether new items alter no older row."""

    def text(self, upto: int | None = None) -> _TypeText:
        if not self.grows:
            return _TypeText.of(self.items, -1)
        newest = max((number for number, _ in self.items), default=0)
        return _TypeText.of(self.items, newest if upto is None else upto)

    def altered(self, noted: _TypeText, before: _TypeItems | None) -> bool:
        """Whether values have another text now. `before` are the items of the note, if known."""
        if before is None or not self.grows or self.items == before.items:
            return self.text(noted.upto).digest != noted.digest
        # An item can have a smaller oid than others, and be seen later than these: it is created
        # by a transaction that takes long, or oids have begun anew.
        return not set(before.items) <= set(self.items)


def _types_of(
    connection: psycopg.Connection[Any], tables: Iterable[CatalogTable]
) -> dict[int, dict[int, _TypeItems]]:
    """Return by the table's and the type's oid what the text of the table's values depends on."""
    values = {
        "tables": [table.oid for table in tables],
        "first": _FIRST_USER_OID,
        "named": list(_NAMED),
    }
    named: dict[int, _TypeItems] = {}
    found: dict[int, dict[int, _TypeItems]] = {}
    for relation, type, enum, numbers, texts in connection.execute(_TYPES, values).fetchall():
        if type in _NAMED:
            if type not in named:
                query = f"select oid::int8, name from ({_NAMED[type]}) as objects(oid, name)"
                query += f" where oid >= {_FIRST_USER_OID} order by oid"
                named[type] = _TypeItems(connection.execute(query.encode()).fetchall(), True)
            found.setdefault(relation, {})[type] = named[type]
        else:
            items = list(zip(numbers, texts, strict=True))
            found.setdefault(relation, {})[type] = _TypeItems(items, enum)
    return found


# --- names in values ------------------------------------------------------------------------------

_NAMES_KEY = "names/"
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
_NO_OBJECT = re.compile(r"-|\d+|pg_(toast|(toast_)?temp_\d+)(\..*)?", re.DOTALL)
"""
Printed for no object, for one that is gone, and for temporary ones and TOAST tables, which are not
compared.
"""


@dataclass(frozen=True, slots=True)
class NamesColumn:
    """A column whose values are names."""

    declared: str
    type: int
    """The oid of the type that has the names."""

    elements: bool
    """Whether its values are arrays of them."""


class PrintedNames:
    """Compares the names in values with those of the last look. For one thread."""

    def __init__(self) -> None:
        self.columns: dict[TableName, dict[int, NamesColumn]] = {}
        """The columns whose values are compared, by table and number; other tables are left out."""

        self._names: dict[int, set[str]] = {}
        """By the type's oid: the names of the last look."""

        self._examined: dict[int, set[str]] = {}
        """The same of names in values that cannot be altered: those of the server's own objects."""

        self._unknown: dict[TableName, dict[int, set[str]]] = {}
        self._covered: dict[TableName, int] = {}
        """Tables that are copied again once all up to this position was read."""

        self._notices: list[SourceNotice] = []

    def recall(self, notes: Mapping[TableName, str]) -> None:
        """Take over the log's notes."""
        self.columns, self._names, self._examined, self._covered = {}, {}, {}, {}
        self._notices = []
        self._unknown = {
            key.removeprefix(_NAMES_KEY): {
                int(type): set(names) for type, names in json.loads(text)
            }
            for key, text in notes.items()
            if key.startswith(_NAMES_KEY) and text != "[]"
        }

    def types(self, table: TableName) -> set[int]:
        """Return the types whose names are compared in the values of a table."""
        return {column.type for column in self.columns.get(table, {}).values()}

    def sharing(self, table: TableName) -> list[TableName]:
        """Return the tables with a type in common with this one, itself included."""
        types = self.types(table)
        return [other for other in self.columns if types & self.types(other)]

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
        columns = _columns(connection, tables, list(names)) if names else {}
        self.columns = {
            table: each for table, each in self.columns.items() if table not in tables
        } | columns
        outdated = set()
        for table in self._unknown.keys() & tables.keys():
            for type, each in self._unknown.pop(table).items():
                there = set(all_names(type))
                if each - there:
                    outdated.add(table)
                self._examined.setdefault(type, set()).update(
                    each & there - set(names.get(type, ()))
                )
            self._notices.append(SourceNotice(f"{_NAMES_KEY}{table}", note="[]"))
        for type, found in names.items():
            self._names[type] = {*found, *self._examined.get(type, ())}
        return outdated

    def cover(self, tables: Iterable[TableName], upto: int) -> None:
        """Ignore what these tables have up to a position: they are copied after that."""
        self._covered |= dict.fromkeys(tables, upto)

    def compare(self, changes: Changes) -> bool:
        """Compare new values with the known names; return whether there is a notice of it."""
        for each in changes.tables:
            table = each.schema.table
            columns = self.columns.get(table)
            if not columns or changes.upto.commit <= self._covered.get(table, 0):
                continue
            found: dict[int, set[str]] = defaultdict(set)
            for index, column in enumerate(each.schema.columns):
                if (named := columns.get(column.field)) is None:
                    continue
                # An older row may have the column with another type: that is a copy anyway.
                if column.type.kind == "text" and column.declared == named.declared:
                    type = named.type
                    names = set(_values(each.rows, index, named.elements)) - self._names[type]
                    found[type] |= {name for name in names if not _names_no_object(type, name)}
            unknown = self._unknown.get(table, {})
            new = {type: names - unknown.get(type, set()) for type, names in found.items()}
            if any(new.values()):
                for type, names in new.items():
                    self._unknown.setdefault(table, {}).setdefault(type, set()).update(names)
                note = [(type, sorted(names)) for type, names in self._unknown[table].items()]
                key = f"{_NAMES_KEY}{table}"
                self._notices.append(SourceNotice(key, note=json.dumps(note), early=True))
        return bool(self._notices)

    def notices(self) -> list[SourceNotice]:
        """Return what the log should record, each notice once."""
        found, self._notices = self._notices, []
        return found


def _columns(
    connection: psycopg.Connection[Any], tables: Mapping[TableName, CatalogTable], named: list[int]
) -> dict[TableName, dict[int, NamesColumn]]:
    types = sorted({column.type for table in tables.values() for column in table.columns})
    rows = connection.execute(_ELEMENTS, {"types": types, "named": named}).fetchall()
    inner = {given: (type, elements) for given, type, elements in rows}
    found = {
        name: {
            c.number: NamesColumn(c.declared, *inner[c.type])
            for c in table.columns
            if c.type in inner
        }
        for name, table in tables.items()
    }
    return {name: columns for name, columns in found.items() if columns}


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


# --- identity, file, publication and types, compared with the notes -------------------------------

_KEY = "standing/"
"""The key of these notes in the log; the table's name follows."""

_PUBLISHED = """
select c.oid::int8,
       pg_catalog.concat(r.oid, '.', r.xmin), pg_catalog.concat(n.oid, '.', n.xmin, '.', d.xmin),
       pg_catalog.concat(p.oid, '.', p.xmin)
from unnest(%(tables)s::oid[]) as c(oid)
join pg_catalog.pg_class k on k.oid = c.oid
left join pg_catalog.pg_publication p on p.pubname = %(name)s
left join pg_catalog.pg_publication_rel r on r.prpubid = p.oid and r.prrelid = c.oid
left join {namespaces} n on n.pnpubid = p.oid and n.pnnspid = k.relnamespace
left join pg_catalog.pg_depend d
  on n.oid is not null and d.classid = 'pg_catalog.pg_class'::regclass and d.objid = c.oid
 and d.objsubid = 0 and d.refclassid = 'pg_catalog.pg_namespace'::regclass
"""
# A table that was moved to another schema and back has another row in pg_depend.
_NAMESPACES = "pg_catalog.pg_publication_namespace"
_NONE = "(select null::oid as oid, null::xid as xmin, null::oid as pnpubid, null::oid as pnnspid) "


@dataclass(frozen=True, slots=True)
class _Stamp:
    """What changes when a column is altered."""

    xmin: str
    constant: str = ""
    """The row of its default, if older rows have a constant instead of a value; else empty."""

    default: str = field(default="", compare=False)
    """The row of its default; not in notes."""

    def altered(self, now: _Stamp) -> bool:
        """Whether the column was altered, and older rows did not only get their constant."""
        filled = self.constant and not now.constant and self.constant == now.default
        return self.xmin != now.xmin and not filled

    @classmethod
    def of(cls, column: CatalogColumn) -> _Stamp:
        default = column.default or ""
        return cls(str(column.stamp), default if column.missing is not None else "", default)

    def __str__(self) -> str:
        return f"{self.xmin}:{self.constant}" if self.constant else self.xmin


@dataclass(frozen=True, slots=True)
class _Seen:
    """A table as it was seen once, and its text in the log."""

    oid: str
    published: str
    """
    The rows of the catalog by which it is published: its own, its schema's, the publication's.
    Each is an oid and an xmin. Older notes have one oid, or 0.
    """

    file: str
    stamps: Mapping[int, _Stamp]
    """By column; older notes have none."""

    types: Mapping[int, _TypeText]
    """By the type's oid; older notes have none."""

    replaced: int = 0
    """Up to this position, the stream may have changes from before the table had its name."""

    def altered(
        self,
        now: _Seen,
        items: Mapping[int, _TypeItems],
        before: Mapping[int, _TypeItems],
        ours: Alterations,
    ) -> str:
        """
        Return why the rows in the log are no longer right; empty: they are.

        `items` are those of its types now, and `before` when it was noted, if that is known.
        """
        if self.oid != now.oid:
            return REPLACED
        if self._published_otherwise(now, ours):
            return PUBLISHED
        if _new_file(self.file, now.file) and any(
            stamp.altered(now.stamps.get(number, stamp)) for number, stamp in self.stamps.items()
        ):
            return "rewritten"  # a column was altered, too
        if now.published.startswith("./") and _new_file(self.file, now.file, partitions=False):
            return UNLOGGED
        for type, text in self.types.items():
            if type in items and items[type].altered(text, before.get(type)):
                return TYPE
        return ""

    def _published_otherwise(self, now: _Seen, ours: Alterations) -> bool:
        before, after = self.published.split("/"), now.published.split("/")
        if len(before) != len(after):
            first = next((oid for each in after if (oid := each.partition(".")[0])), "0")
            return self.published not in ("0", first)
        return any(
            one != other and not ours.explain(one, other)
            for one, other in zip(before, after, strict=True)
        )

    def __str__(self) -> str:
        stamps = ",".join(f"{number}:{stamp}" for number, stamp in self.stamps.items())
        types = ",".join(f"{oid}:{one.upto}:{one.digest}" for oid, one in self.types.items())
        return f"{self.oid} {self.published} {self.file} {stamps} {types} {self.replaced}"

    @classmethod
    def parse(cls, text: str) -> _Seen | None:
        oid, published, file, stamps, types, upto, *_ = [*text.split(" "), *[""] * 5]
        pairs = (pair.split(":") for pair in stamps.split(",") if pair)
        found = {int(number): _Stamp(*stamp) for number, *stamp in pairs}
        texts = (each.split(":") for each in types.split(",") if each)
        shown = {int(type): _TypeText(int(upto), digest) for type, upto, digest in texts}
        return cls(oid, published, file, found, shown, int(upto or 0)) if file else None


REPLACED = "replaced"
PUBLISHED = "publication"
TYPE = "type"
UNLOGGED = "unlogged"
"""
It has a new file, and the publication does not list it: so PostgreSQL does not refuse SET UNLOGGED,
and after SET LOGGED nothing else is different.
"""


class IdentityCheck:
    """Compares tables with the notes of them in the log. For one thread."""

    def __init__(self, options: PostgresOptions) -> None:
        self.unverified = False
        """Whether the publication was altered since it was last found to be as it must be."""

        self.names = PrintedNames()

        self._options = options
        self._noted: dict[TableName, _Seen] = {}
        self._items: dict[TableName, Mapping[int, _TypeItems]] = {}
        """Of the types of the noted tables, if they were noted since the last `recall`."""

        self._notices: list[SourceNotice] = []

    def recall(self, notes: Mapping[TableName, str]) -> None:
        """Take over the log's notes; notices that were not recorded are found again."""
        self._noted, self._items = {}, {}
        self._notices = []
        for key, text in notes.items():
            if key.startswith(_KEY) and (seen := _Seen.parse(text)) is not None:
                self._noted[key.removeprefix(_KEY)] = seen
        self.names.recall(notes)

    def replaced(self, position: int) -> set[TableName]:
        """Return the tables whose name may belong to another table in changes after a position."""
        return {name for name, seen in self._noted.items() if seen.replaced > position}

    def described(
        self, table: CatalogTable, schema: TableSchema, recorded: TableSchema | None
    ) -> TableSchema:
        """Return the schema, with the new columns marked in which older rows may have any value."""
        noted = self._noted.get(table.name)
        if noted is None or recorded is None or not _new_file(noted.file, _file(table)):
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
        self,
        connection: psycopg.Connection[Any],
        tables: Mapping[TableName, CatalogTable],
        ours: Alterations,
        *,
        begun: bool = False,
    ) -> set[TableName]:
        """
        Compare, and leave notices for the log; return the tables whose rows are no longer right.

        `ours` are our own alterations of the publication. If a new history has `begun`, all tables
        are copied, and there is nothing to compare with.
        """
        namespaces = _NAMESPACES if connection.info.server_version >= 150000 else _NONE
        rows = connection.execute(
            _PUBLISHED.format(namespaces=namespaces),
            {"tables": [t.oid for t in tables.values()], "name": self._options.publication},
        ).fetchall()
        published = {oid: "/".join(members) for oid, *members in rows}
        types = _types_of(connection, tables.values())
        outdated = self._names_outdated(connection, tables, types)
        found: set[TableName] = set()
        written: int | None = None
        for name, table in tables.items():
            compared = self.names.types(name)
            items = {
                type: each if type in compared else replace(each, grows=False)
                for type, each in types.get(table.oid, {}).items()
            }
            now = _Seen(
                str(table.oid),
                published.get(table.oid, "./../."),
                _file(table),
                {column.number: _Stamp.of(column) for column in table.columns},
                {type: each.text() for type, each in sorted(items.items())},
            )
            noted = None if begun else self._noted.get(name)
            before = self._items.get(name, {})
            reason = "" if noted is None else noted.altered(now, items, before, ours)
            if reason == REPLACED:
                # After the tables were looked up: so it is after all that was written before.
                written = record_end(slot.written(connection)) if written is None else written
                now = replace(now, replaced=written)
            elif noted is not None:
                now = replace(now, replaced=noted.replaced)
            if not (reason or begun) and name in outdated:
                reason = TYPE
            if reason:
                missing = reason in (REPLACED, PUBLISHED, UNLOGGED)
                self._notices.append(SourceNotice(name, rebaseline_reason=reason, missing=missing))
                found.add(name)
            self.unverified |= noted is None or reason == PUBLISHED
            if noted != now:
                self._notices.append(SourceNotice(f"{_KEY}{name}", note=str(now)))
            self._noted[name], self._items[name] = now, items
        return found

    def _names_outdated(
        self,
        connection: psycopg.Connection[Any],
        tables: Mapping[TableName, CatalogTable],
        types: Mapping[int, Mapping[int, _TypeItems]],
    ) -> set[TableName]:
        """Return the tables that the log has a name of which is no name any more."""
        names = {
            type: [text for _, text in each.items]
            for found in types.values()
            for type, each in found.items()
            if each.grows and type != _ACLITEM
        }

        def all_names(type: int) -> list[str]:
            if type not in _NAMED:
                return names.get(type, [])
            query = f"select name from ({_NAMED[type]}) as objects(oid, name)"
            return [name for (name,) in connection.execute(query.encode()).fetchall()]

        return self.names.look(connection, tables, names, all_names)

    def notices(self) -> list[SourceNotice]:
        """Return what the log should record, each notice once."""
        found, self._notices = [*self._notices, *self.names.notices()], []
        return found


def _file(table: CatalogTable) -> str:
    if table.kind != "p":
        return str(table.leaves[0].filenode or 0)
    return "p" + ",".join(f"{leaf.oid:x}:{leaf.filenode or 0:x}" for leaf in table.leaves)


def _new_file(before: str, now: str, *, partitions: bool = True) -> bool:
    """Whether a table has another file, or a partition that it had; `partitions.py` has others."""
    if "p" in (before, now) or (not partitions and before.startswith("p")):
        return False  # it had no partition, or has none
    if ":" not in before or ":" not in now:
        return before != now  # older notes have one value for all partitions
    known = dict(each.split(":") for each in before[1:].split(","))
    files = (each.split(":") for each in now[1:].split(","))
    return any(known.get(oid, file) != file for oid, file in files)


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
        self.due = clock()
        """When it is time to compare again."""

    def look(self, connection: psycopg.Connection[Any], ours: Alterations) -> set[TableName]:
        """
        Compare, if it is time to; return the tables whose rows in the log are no longer right.

        Raises `SchemaChanged` if a table's columns have changed, `TableRefused` if a table no
        longer exists or cannot be captured any more, and `Reopening` if the source has
        to be opened again.
        """
        if self._clock() < self.due and not self._partitions.unknown(self._tables.values()):
            return set()
        self.due = self._clock() + WATCH_SECONDS
        return self.compare(connection, list(self._tables), ours)

    def compare(
        self, connection: psycopg.Connection[Any], tables: Sequence[TableName], ours: Alterations
    ) -> set[TableName]:
        """Compare these tables now, as `look` does with all of them."""
        now = look_up(connection, tables)
        for name, table in now.items():
            if not same_shape(self._schema_of(table), self._schemas[name]):
                raise SchemaChanged("The table's columns or its key were altered", table=name)
            if table.oid != self._tables[name].oid:
                raise Reopening(
                    "The table was replaced by another one with the same name", table=name
                )
            if problem := preflight.kind_problem(table):
                raise problem
        found = self._identities.look(connection, now, ours)
        if self._identities.unverified:
            # After it was noted: what is altered from here on is found by the next look.
            self._verify(connection, now)
            self._identities.unverified = False
        self._tables.update(now)
        self._partitions.look(connection, now)
        return found

    def _verify(
        self, connection: psycopg.Connection[Any], tables: Mapping[TableName, CatalogTable]
    ) -> None:
        """Raise unless the publication sends what it must: then the source is opened again."""
        facts: dict[str, Any] = {"publication": self._options.publication}
        try:
            ahead = publication.missing_changes(connection, self._options, list(tables.values()))
            if not ahead.created and not ahead.baselines:
                return
            facts["tables"] = ahead.baselines
        except (HeadraceError, psycopg.errors.InternalError_):
            # Or a table was altered or dropped in between. When the source is opened again, it
            # compares the publication with the tables as they are then.
            pass
        raise Reopening("The publication was altered outside of Headrace", **facts)


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
