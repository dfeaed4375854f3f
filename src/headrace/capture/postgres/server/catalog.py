"""
The tables to capture as the server's catalog describes them, and the types of their columns.

Three queries, sent together and answered from one snapshot, return everything for all tables. They
lock no table: we must not wait for a session that is altering a table, and no session may wait for
us.

A column has one of the log's types, and a copy requests it in one of two formats. The stream sends
the text of every value. A copy sends the binary format if it means the same with less work, and
the text if the binary format means something else or is particular to the type: `"char"`, `xml`,
`money`, arrays, enums and all types of extensions.

A cast to text does not give that text. `inet '10.0.0.1'::text` ends in `/32`, `true::text` is not
`t`, `char(5)` loses its blanks, and any user may create a cast. `concat` calls the type's output
function, as the stream does, so that both have the same text for a value (R18).

The key of a table follows from its replica identity, because a delete sends only the columns of
the replica identity (R23).
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Final

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import namedtuple_row

from headrace.capture.postgres.options import parse_name, written
from headrace.changelog.schema import Column, TableSchema
from headrace.changelog.values import ValueType
from headrace.errors import NoIdentity, SchemaChanged, TableRefused

# --- the queries, which take no lock on any table -------------------------------------------------

_TREE = """
with recursive wanted as (
    select c.*, n.nspname, w.ordinal
    from unnest(%(schemas)s::text[], %(tables)s::text[]) with ordinality as w(schema, name, ordinal)
    join pg_catalog.pg_namespace n on n.nspname = w.schema
    join pg_catalog.pg_class c on c.relnamespace = n.oid and c.relname = w.name
), tree as (
    select ordinal, oid, 0 as level from wanted
    union
    select t.ordinal, i.inhrelid, t.level + 1 from tree t
    join pg_catalog.pg_inherits i on i.inhparent = t.oid and not i.inhdetachpending
)"""
# pg_partition_tree() would wait for every lock on a partition, and would take locks of its own.

RELATIONS = f"""{_TREE}
select t.ordinal::int, min(t.level) as level, c.oid::int8, n.nspname as namespace,
       c.relname as table, c.relkind::text as kind, c.relpersistence::text as persistence,
       c.relreplident::text as identity, c.relispartition as partition,
       nullif(pg_catalog.pg_relation_filenode(c.oid), 0)::int8 as filenode,
       greatest(c.relpages, 0) as pages, c.reltoastrelid <> 0 as toasted
from tree t
join pg_catalog.pg_class c on c.oid = t.oid
join pg_catalog.pg_namespace n on n.oid = c.relnamespace
group by t.ordinal, c.oid, n.nspname, c.relname, c.relkind, c.relpersistence, c.relreplident,
         c.relispartition, c.relpages, c.reltoastrelid
order by c.oid
"""

COLUMNS = f"""{_TREE}, based as (
    select w.ordinal, a.attnum, a.atttypid as type, a.atttypmod as modifier, 0 as depth
    from wanted w join pg_catalog.pg_attribute a on a.attrelid = w.oid
    where a.attnum > 0 and not a.attisdropped
    union all
    select b.ordinal, b.attnum, t.typbasetype, t.typtypmod, b.depth + 1
    from based b join pg_catalog.pg_type t on t.oid = b.type and t.typtype = 'd'
), base as (
    select distinct on (ordinal, attnum) ordinal, attnum, type, modifier
    from based order by ordinal, attnum, depth desc
)
select w.ordinal::int, a.attnum::int as number, a.attname as name, b.type::int8, b.modifier,
       a.atttypid::int8 as own_type, a.atttypmod as own_modifier,
       pg_catalog.format_type(a.atttypid, a.atttypmod) as declared,
       not a.attnotnull as nullable, a.attgenerated::text as generated,
       a.attstorage <> 'p' and a.attlen = -1 as toastable,
       case when a.atthasmissing then (a.attmissingval::text::text[])[1] end as missing,
       a.atthasdef or a.attidentity <> '' as defaulted, a.xmin::text::int8 as stamp,
       d.oid || '.' || d.xmin as default
from wanted w
join pg_catalog.pg_attribute a on a.attrelid = w.oid
left join pg_catalog.pg_attrdef d on d.adrelid = a.attrelid and d.adnum = a.attnum
join base b on b.ordinal = w.ordinal and b.attnum = a.attnum
order by w.ordinal, a.attnum
"""

INDEXES = f"""{_TREE}
select i.indrelid::int8 as relation, c.relname as name, i.indisprimary as primary,
       i.indisreplident as identity, i.indimmediate as immediate,
       pg_catalog.array_agg(a.attname::text order by k.ordinal) as columns,
       pg_catalog.bool_and(a.attnotnull) as strict
from (select distinct oid from tree) t
join pg_catalog.pg_index i on i.indrelid = t.oid
join pg_catalog.pg_class c on c.oid = i.indexrelid
-- Columns that an index only INCLUDEs come after its key.
cross join lateral unnest(i.indkey::int2[]) with ordinality as k(number, ordinal)
join pg_catalog.pg_attribute a on a.attrelid = i.indrelid and a.attnum = k.number
where i.indisunique and i.indislive and i.indpred is null and i.indexprs is null
  and (i.indisvalid or i.indisprimary) and k.ordinal <= i.indnkeyatts
group by i.indrelid, i.indexrelid, c.relname, i.indisprimary, i.indisreplident, i.indimmediate
order by i.indisprimary desc, pg_catalog.count(*), c.relname
"""

ELSEWHERE = """
select n.nspname, c.relname
from pg_catalog.pg_class c join pg_catalog.pg_namespace n on n.oid = c.relnamespace
where c.relkind in ('r', 'p') and pg_catalog.lower(c.relname) = any(%s::text[])
  and n.nspname not in ('pg_catalog', 'information_schema', 'pg_toast')
order by 1, 2
"""


# --- types of columns, and how a copy requests them -----------------------------------------------

NUMERIC: Final = 1700
_TEXT: Final = ValueType("text")
_NUMERIC: Final = ValueType("numeric")

_TYPES: Final[Mapping[int, ValueType]] = {
    16: ValueType("boolean"),
    17: ValueType("bytes"),
    20: ValueType("int64"),
    21: ValueType("int16"),
    23: ValueType("int32"),
    26: ValueType("int64"),  # oid: 32 bits without a sign
    114: ValueType("json"),
    700: ValueType("float32"),
    701: ValueType("float64"),
    1082: ValueType("date"),
    1083: ValueType("time"),
    1114: ValueType("timestamp"),
    1184: ValueType("timestamptz"),
    1186: ValueType("interval"),
    1266: ValueType("timetz"),
    2950: ValueType("uuid"),
    3802: ValueType("json"),  # jsonb
}
"""By the type's oid, which is the same on every server. All other types are text."""

_PLAIN_TEXT: Final = frozenset({19, 25, 1042, 1043})
"""name, text, bpchar, varchar: their binary format is their text."""


def value_type(oid: int, modifier: int) -> ValueType:
    """Return the log's type for a column of this base type (of a domain: the type below it)."""
    if oid != NUMERIC:
        return _TYPES.get(oid, _TEXT)
    if modifier < 4:
        return _NUMERIC
    precision = (modifier - 4) >> 16 & 0xFFFF
    # Eleven bits with a sign: since PostgreSQL 15 a scale may be negative, or exceed the precision.
    scale = ((modifier - 4 & 0x7FF) ^ 0x400) - 0x400
    if 1 <= precision <= 38 and 0 <= scale <= precision:
        return ValueType("decimal", precision, scale)
    return _NUMERIC


def sends_binary(oid: int, modifier: int) -> bool:
    """Return whether `binary_column` reads the type's binary format; otherwise use `as_text`."""
    return oid == NUMERIC or oid in _TYPES or oid in _PLAIN_TEXT


def as_text(expression: str) -> str:
    """Return SQL for the text of `expression` as the stream would send it; NULL stays NULL."""
    # Not IS NOT NULL: a row of nulls is not null, yet fails that test.
    return f"case when {expression} is distinct from null then pg_catalog.concat({expression}) end"


# --- tables as the catalog describes them ---------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CatalogColumn:
    """A column of a table. Its number is never used for another column."""

    number: int
    name: str
    type: int
    """The oid of its type; of a domain, the oid of the type below it."""

    modifier: int
    """The type's modifier; of a domain, that of the innermost domain. -1: none."""

    own_type: int
    """The oid of its type as the stream has it: for a domain, the domain's own."""

    own_modifier: int
    declared: str
    """The type as it was declared, for messages."""

    nullable: bool
    generated: bool
    """Computed from other columns: not published before PostgreSQL 18."""

    virtual: bool
    """Computed when it is read: not published at all."""

    identity_key: bool
    """Whether its old values are sent, because it belongs to the replica identity."""

    toastable: bool
    """Whether an update may leave its value unsent (R21)."""

    missing: str | None
    """The value of rows that are older than the column, as text; None: null (R23b)."""

    defaulted: bool
    """Whether inserts that leave it out give it a value: older rows may have got one, too."""

    stamp: int = dataclasses.field(default=0, compare=False)
    """Changes whenever the column was altered, even if only its default was."""

    default: str | None = dataclasses.field(default=None, compare=False)
    """Changes whenever its default or its type was altered; None: it has no default."""


@dataclass(frozen=True, slots=True)
class UniqueIndex:
    """An index that may identify rows: unique and valid, over columns, without a predicate."""

    name: str
    columns: tuple[str, ...]
    primary: bool
    identity: bool
    """Chosen by REPLICA IDENTITY USING INDEX."""

    immediate: bool
    """Not deferrable: the server does not accept a deferrable constraint as an identity."""

    strict: bool
    """All of its columns are NOT NULL."""


class _Identified:
    """Properties that follow from a table's replica identity and its indexes."""

    __slots__ = ()

    identity: str
    indexes: tuple[UniqueIndex, ...]

    @property
    def primary_key(self) -> tuple[str, ...]:
        return next((index.columns for index in self.indexes if index.primary), ())

    @property
    def identity_columns(self) -> tuple[str, ...] | None:
        """The columns whose old values are sent; None: all of them, as under FULL."""
        return _identity_columns(self.identity, self.indexes)


@dataclass(frozen=True, slots=True)
class Leaf(_Identified):
    """A table that contains rows: a partition, or a table that is not partitioned."""

    oid: int
    namespace: str
    table: str
    filenode: int | None
    """Changes when the table is rewritten (R16); None: it has no file of its own."""

    pages: int
    """As counted by the last VACUUM or ANALYZE: an estimate, 0 before the first."""

    kind: str
    persistence: str
    identity: str
    indexes: tuple[UniqueIndex, ...]
    toasted: bool = dataclasses.field(default=True, compare=False)
    """Whether it has a TOAST table: its rows may be too long for a page."""


@dataclass(frozen=True, slots=True)
class CatalogTable(_Identified):
    """A table to capture, and the tables that contain its rows."""

    name: str
    """As the user wrote it; also its name in the log."""

    oid: int
    namespace: str
    table: str
    kind: str
    """`pg_class.relkind`: r a table, p a partitioned table; the checks refuse others."""

    persistence: str
    identity: str
    """`pg_class.relreplident`: d, n, f or i."""

    columns: tuple[CatalogColumn, ...]
    """In the order of their numbers."""

    indexes: tuple[UniqueIndex, ...]
    leaves: tuple[Leaf, ...]
    """Its partitions, in the order of their oids; the table itself if it is not partitioned."""

    tree: frozenset[int]
    """The oids of all tables below it: partitions of every level, or inheriting tables."""

    partition: bool
    """Whether it is a partition itself."""

    @property
    def key(self) -> tuple[str, ...]:
        """The columns that identify its rows; empty: there are none (R23)."""
        columns = self.identity_columns
        return self.primary_key if columns is None else columns


def look_up(connection: psycopg.Connection[Any], names: Sequence[str]) -> dict[str, CatalogTable]:
    """Return every table by its given name; raises `TableRefused` if one does not exist."""
    tables, problems = find(connection, names)
    if problems:
        raise problems[0]
    return tables


def find(
    connection: psycopg.Connection[Any], names: Sequence[str]
) -> tuple[dict[str, CatalogTable], list[TableRefused]]:
    """Return the tables that exist, and an error for each of the others."""
    problems: list[TableRefused] = []
    wanted: dict[tuple[str, str], str] = {}
    for name in dict.fromkeys(names):
        try:
            parts = parse_name(name)
        except TableRefused as error:
            problems.append(error)
            continue
        if (other := wanted.setdefault(parts, name)) != name:
            problems.append(
                TableRefused(
                    "The table is listed under two names",
                    table=name,
                    other=other,
                    remedy="Use the same name everywhere.",
                )
            )
    if not wanted:
        return {}, problems
    found = _read(connection, wanted)
    missing = {parts: name for parts, name in wanted.items() if name not in found}
    if missing:
        problems += _missing(connection, missing)
    return {name: found[name] for name in wanted.values() if name in found}, problems


def schema_of(table: CatalogTable, published: Sequence[str] | None = None) -> TableSchema:
    """
    Return the table's schema in the log.

    `published` names the columns that the server sends; by default, all columns that are not
    generated. Raises `SchemaChanged` if one of them does not exist (any more), and
    `NoIdentity` if the key is not among them.
    """
    if published is None:
        kept = [column for column in table.columns if not column.generated]
    else:
        kept = [column for column in table.columns if column.name in published]
        if gone := set(published) - {column.name for column in kept}:
            raise SchemaChanged(
                "Published columns do not exist", table=table.name, columns=sorted(gone)
            )
    if unsent := set(table.key) - {column.name for column in kept}:
        raise NoIdentity("Key columns are not published", table=table.name, columns=sorted(unsent))
    return TableSchema(
        table.name,
        tuple(_column(column) for column in kept),
        table.key,
        whole_before=table.identity == "f",
    )


_CAST = frozenset(
    (
        *("boolean", "int16", "int32", "int64", "float32", "float64", "decimal"),
        *("text", "json", "date", "timestamp", "timestamptz"),
    )
)
"""Types whose values Spark reads from PostgreSQL's text exactly as PostgreSQL does."""


def _column(column: CatalogColumn) -> Column:
    type = value_type(column.type, column.modifier)
    missing = column.missing
    # Not infinite numbers and years before 1: only PostgreSQL reads them in this form.
    if missing is not None and type.kind not in ("text", "json"):
        plain = type.kind in _CAST and not ("inf" in missing.lower() or "BC" in missing)
        missing = missing if plain else None
    return Column(
        column.name,
        type,
        column.number,
        column.nullable,
        column.declared,
        missing=missing,
        rewritten=missing is None and (column.defaulted or column.missing is not None),
    )


def fingerprint(table: CatalogTable) -> str:
    """Return a text that changes whenever a column changes (R16)."""
    facts = [(column.number, column.name, column.type, column.modifier) for column in table.columns]
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:32]


def _read(
    connection: psycopg.Connection[Any], wanted: dict[tuple[str, str], str]
) -> dict[str, CatalogTable]:
    values = {
        "schemas": [schema for schema, _ in wanted],
        "tables": [table for _, table in wanted],
    }
    idle = connection.info.transaction_status == TransactionStatus.IDLE
    cursors: list[psycopg.Cursor[Any]] = [
        connection.cursor(row_factory=namedtuple_row) for _ in range(3)
    ]
    with ExitStack() as stack:
        stack.enter_context(connection.pipeline())
        if idle:
            # One snapshot for all three. A transaction that is already open has its own.
            stack.enter_context(connection.transaction())
            connection.execute("set transaction isolation level repeatable read, read only")
        for cursor, query in zip(cursors, (RELATIONS, COLUMNS, INDEXES), strict=True):
            cursor.execute(query, values)
    relations, columns, indexes = (cursor.fetchall() for cursor in cursors)
    by_relation: dict[int, list[UniqueIndex]] = defaultdict(list)
    for row in indexes:
        by_relation[row.relation].append(
            UniqueIndex(
                row.name, tuple(row.columns), row.primary, row.identity, row.immediate, row.strict
            )
        )
    families: dict[int, list[Any]] = defaultdict(list)
    for row in relations:
        families[row.ordinal].append(row)
    own: dict[int, list[Any]] = defaultdict(list)
    for row in columns:
        own[row.ordinal].append(row)
    return {
        name: _table(name, families[number], own[number], by_relation)
        for number, name in enumerate(wanted.values(), 1)
        if number in families
    }


def _table(
    name: str, family: list[Any], columns: list[Any], indexes: dict[int, list[UniqueIndex]]
) -> CatalogTable:
    root = next(row for row in family if row.level == 0)
    identity = _identity_columns(root.identity, indexes[root.oid])
    return CatalogTable(
        name=name,
        oid=root.oid,
        namespace=root.namespace,
        table=root.table,
        kind=root.kind,
        persistence=root.persistence,
        identity=root.identity,
        columns=tuple(
            CatalogColumn(
                number=row.number,
                name=row.name,
                type=row.type,
                modifier=row.modifier,
                own_type=row.own_type,
                own_modifier=row.own_modifier,
                declared=row.declared,
                nullable=row.nullable,
                generated=row.generated != "",
                virtual=row.generated == "v",
                identity_key=identity is None or row.name in identity,
                toastable=row.toastable,
                missing=row.missing,
                defaulted=row.defaulted,
                stamp=row.stamp,
                default=row.default,
            )
            for row in columns
        ),
        indexes=tuple(indexes[root.oid]),
        leaves=tuple(
            Leaf(
                oid=row.oid,
                namespace=row.namespace,
                table=row.table,
                filenode=row.filenode,
                pages=row.pages,
                kind=row.kind,
                persistence=row.persistence,
                identity=row.identity,
                indexes=tuple(indexes[row.oid]),
                toasted=row.toasted,
            )
            # Inheriting tables that are not partitions are published under their own names.
            for row in (family if root.kind == "p" else [root])
            if row.kind != "p"
        ),
        tree=frozenset(row.oid for row in family if row.level),
        partition=root.partition,
    )


def _identity_columns(identity: str, indexes: Iterable[UniqueIndex]) -> tuple[str, ...] | None:
    if identity == "f":
        return None
    for index in indexes:
        chosen = {"d": index.primary, "i": index.identity}.get(identity, False)
        if chosen and index.immediate:
            return index.columns
    return ()


def _missing(
    connection: psycopg.Connection[Any], wanted: dict[tuple[str, str], str]
) -> list[TableRefused]:
    """Return an error for each of these tables, with tables of a similar name."""
    names = sorted({table.lower() for _, table in wanted})
    others: dict[str, list[str]] = defaultdict(list)
    for schema, table in connection.execute(ELSEWHERE, [names]).fetchall():
        others[table.lower()].append(written(schema, table))
    problems = []
    for (_, table), name in wanted.items():
        near = others[table.lower()]
        remedy = f"Did you mean {' or '.join(near[:3])}?" if near else "Check the name."
        problems.append(TableRefused("The table does not exist", table=name, remedy=remedy))
    return problems
