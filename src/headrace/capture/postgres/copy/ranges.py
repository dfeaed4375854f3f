"""
A table cut into ranges of pages, each read separately.

All ranges are read under one snapshot, but a snapshot protects rows and not tables: VACUUM FULL
moves rows into other ranges, TRUNCATE and rewriting ALTERs leave nothing for an older snapshot to
see, and columns are always the current ones (R16). So a plan has the file that the table had *in
the snapshot*, and the columns that the log knows. After a range is read, its reader compares them
with the current ones.

The estimated number of rows, and the smaller pieces of a range if the copy rate is limited, are
based on the counts of the last VACUUM or ANALYZE. A range whose rate is limited is read piece by
piece, each in a transaction of its own. The pauses are between the transactions, so that no ALTER
TABLE of another session waits for our lock (R16).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

import psycopg
from psycopg import pq

from headrace.capture.baselines import piece_rows
from headrace.capture.postgres.connection import (
    Asking,
    asked,
    described,
    importing,
    speaking,
    talking,
)
from headrace.capture.postgres.copy.snapshot import HeldSnapshot
from headrace.capture.postgres.options import PostgresOptions, quoted
from headrace.capture.postgres.server.catalog import CatalogTable, Leaf, as_text, sends_binary
from headrace.changelog.schema import TableSchema
from headrace.errors import SchemaChanged, SourceUnreachable

# --- ranges, and the table they were planned for --------------------------------------------------

RANGE_BYTES = 32 << 20
"""Read in less than a second, so that an ALTER TABLE of another session does not wait longer."""

EVEN = 8
"""A table has a multiple of this many ranges of one size, so that parallel readers end together."""


@dataclass(frozen=True, slots=True)
class SelectedColumn:
    """A column of the select list."""

    name: str
    binary: bool
    """Whether it is sent in its type's binary format, otherwise as text."""

    @property
    def expression(self) -> str:
        """The expression in the select list."""
        name = quoted(self.name)
        return name if self.binary else as_text(name)


@dataclass(frozen=True, slots=True)
class Range:
    """Some pages of one table that holds rows; self-contained, to be sent to any process."""

    table: str
    """The table's name in the log."""

    oid: int
    namespace: str
    leaf: str
    """The table that holds the rows: a partition, or the table itself."""

    start: int
    """The first page."""

    stop: int | None
    """The page after the last; None: all that follow."""

    filenode: int
    fingerprint: str
    """A hash of the leaf's columns: number, name, type and modifier of each."""

    snapshot: str
    """The id under which the snapshot was exported."""

    columns: tuple[SelectedColumn, ...]
    """In the order of the log's schema."""

    where: str = ""
    """The publication's row filter (R18)."""

    pages: int = 1
    """The number of pages when it was planned."""

    rows_per_page: float | None = None
    """From the last VACUUM or ANALYZE; None if there was none yet."""

    @property
    def relation(self) -> str:
        """The leaf's name in SQL."""
        return quoted(self.namespace, self.leaf)

    @property
    def query(self) -> str:
        """The SELECT that returns its rows."""
        conditions = []
        if self.start:
            conditions.append(f"ctid >= '({self.start},0)'::pg_catalog.tid")
        if self.stop is not None:
            conditions.append(f"ctid < '({self.stop},0)'::pg_catalog.tid")
        if self.where:
            conditions.append(f"({self.where})")
        columns = ", ".join(column.expression for column in self.columns)
        where = f" where {' and '.join(conditions)}" if conditions else ""
        return f"select {columns} from only {self.relation}{where}"


def ranges(
    holder: HeldSnapshot, table: CatalogTable, schema: TableSchema, where: str = ""
) -> list[Range]:
    """Return the ranges of a table, waiting for the server; see `planned`."""
    with closing(holder.connect()) as connection:
        found = planned(connection, holder.id, table, schema, where)
        return [part for part in found if part is not None]


def planned(
    connection: psycopg.Connection[Any],
    snapshot: str,
    table: CatalogTable,
    schema: TableSchema,
    where: str = "",
) -> Iterator[Range | None]:
    """
    Yield the ranges of a table, leaf after leaf, and None while waiting for the server.

    `schema` holds the columns to read. Raises `SchemaChanged` if the table's columns are not
    those of `table`, and `SourceUnreachable` if its partitions are not, or if it was rewritten
    since the snapshot.
    """
    columns = _selected(table, schema)
    with talking(table=table.name):
        if table.kind == "p":
            yield from _check_leaves(connection, snapshot, table)
        for leaf in table.leaves:
            yield from _leaf(connection, snapshot, table, leaf, columns, where)


def shape_of(connection: psycopg.Connection[Any], relation: str) -> Asking[TableShape]:
    """Return the current columns of a table, independent of the transaction's snapshot."""
    result = yield from described(connection, f"select * from only {relation}")
    return TableShape.of(result)


@dataclass(frozen=True, slots=True)
class TableShape:
    """A table's oid, and number, name, base type and modifier of each of its columns."""

    oid: int
    columns: tuple[tuple[int, str, int, int], ...]

    @property
    def fingerprint(self) -> str:
        """The same hash as that of `catalog.fingerprint`."""
        return hashlib.sha256(repr(list(self.columns)).encode()).hexdigest()[:32]

    @classmethod
    def of(cls, result: pq.abc.PGresult) -> TableShape:
        """Read it from the description of a `select *`."""
        return cls(
            result.ftable(0) if result.nfields else 0,
            tuple(
                (
                    result.ftablecol(index),
                    (result.fname(index) or b"").decode(),
                    result.ftype(index),
                    result.fmod(index),
                )
                for index in range(result.nfields)
            ),
        )


def rewritten(table: str) -> SourceUnreachable:
    """Return the error for a table whose file is not the planned one: it is copied again."""
    return SourceUnreachable(
        "Table was rewritten during its copy",
        table=table,
        remedy="No action is needed: the copy starts again. If this happens repeatedly, check"
        " for scheduled VACUUM FULL, CLUSTER, TRUNCATE or ALTER TABLE commands.",
    )


def _selected(table: CatalogTable, schema: TableSchema) -> tuple[SelectedColumn, ...]:
    known = {column.name: column for column in table.columns}
    if gone := sorted(set(schema.names) - set(known)):
        raise SchemaChanged("Columns were dropped or renamed", table=table.name, columns=gone)
    return tuple(
        SelectedColumn(name, sends_binary(known[name].type, known[name].modifier))
        for name in schema.names
    )


def _check_leaves(
    connection: psycopg.Connection[Any], snapshot: str, table: CatalogTable
) -> Asking[None]:
    """Compare the known partitions with those that the snapshot sees below the table."""
    statement = f"""
        with recursive tree(oid) as (
            select {table.oid}::pg_catalog.oid
            union all
            select i.inhrelid from tree t join pg_catalog.pg_inherits i on i.inhparent = t.oid
            where not i.inhdetachpending
        )
        select c.oid from tree t join pg_catalog.pg_class c on c.oid = t.oid where c.relkind <> 'p'
        """
    *_, found, _ = yield from asked(connection, f"{importing(snapshot)}; {statement}; commit")
    if {int(oid or 0) for (oid,) in _rows(found)} != {leaf.oid for leaf in table.leaves}:
        raise SourceUnreachable(
            "Partitions were attached or detached during a copy",
            table=table.name,
            remedy="No action is needed: the copy starts again.",
        )


def _leaf(
    connection: psycopg.Connection[Any],
    snapshot: str,
    table: CatalogTable,
    leaf: Leaf,
    columns: tuple[SelectedColumn, ...],
    where: str,
) -> Iterator[Range | None]:
    # The catalogue's table is read as of the snapshot; its function returns the current value.
    statement = f"""
        select relfilenode, pg_catalog.pg_relation_filenode(oid),
               pg_catalog.pg_relation_size(oid), pg_catalog.pg_table_size(oid),
               pg_catalog.current_setting('block_size'),
               greatest(reltuples, 0)::pg_catalog.int8, relpages
        from pg_catalog.pg_class where oid = {leaf.oid}
        """
    *_, found = yield from asked(connection, f"{importing(snapshot)}; {statement}")
    rows = _rows(found)
    if not rows or None in rows[0]:
        raise rewritten(table.name)
    then, now, size, whole, page, counted, of_pages = (int(value or 0) for value in rows[0])
    if then != now:
        raise rewritten(table.name)
    relation = quoted(leaf.namespace, leaf.table)
    shape = yield from shape_of(connection, relation)
    yield from asked(connection, "commit")
    if shape.oid != leaf.oid:
        raise rewritten(table.name)
    _check_columns(shape, table)
    pages = -(-size // page)
    # A row's TOAST values are read with it, and make its page large.
    step = max(1, RANGE_BYTES * pages // max(whole, size, 1))
    if step < pages and len(table.leaves) == 1:
        count = -(-pages // (step * EVEN)) * EVEN
        step = -(-pages // count)
    starts = list(range(0, pages, step)) or [0]
    stops: list[int | None] = [*starts[1:], None]
    for start, stop in zip(starts, stops, strict=True):
        yield Range(
            table=table.name,
            oid=leaf.oid,
            namespace=leaf.namespace,
            leaf=leaf.table,
            start=start,
            stop=stop,
            filenode=now,
            fingerprint=shape.fingerprint,
            snapshot=snapshot,
            columns=columns,
            where=where,
            pages=(pages if stop is None else stop) - start,
            rows_per_page=counted / of_pages if counted and of_pages else None,
        )


def _check_columns(shape: TableShape, table: CatalogTable) -> None:
    """Compare a leaf's columns with the table's; a partition may have another order."""
    known = {(column.number, column.name, column.type, column.modifier) for column in table.columns}
    found = set(shape.columns)
    if shape.oid != table.oid:
        known = {(0, *facts) for _, *facts in known}  # type: ignore[misc]
        found = {(0, *facts) for _, *facts in found}  # type: ignore[misc]
    if known != found:
        different = sorted({name for _, name, *_ in known ^ found})
        raise SchemaChanged(
            "Columns differ from those the copy was planned with",
            table=table.name,
            columns=different,
        )


def _rows(result: pq.abc.PGresult) -> Sequence[tuple[bytes | None, ...]]:
    return [
        tuple(result.get_value(row, column) for column in range(result.nfields))
        for row in range(result.ntuples)
    ]


# --- estimated rows, and smaller pieces for slow copies -------------------------------------------

_MANY = 100.0
"""The number of rows assumed per page if there are no statistics."""


def expected_rows(
    connection: psycopg.Connection[Any] | None, options: PostgresOptions, table: CatalogTable
) -> int | None:
    """Return the number of rows of all leaves of a table; None if one has no statistics."""
    if connection is None or options.asked_of(table.name).where:
        return None  # there are no statistics of how many rows pass a filter
    with speaking(options):
        found = connection.execute(
            "select case when min(reltuples) >= 0 then sum(reltuples)::int8 end"
            " from pg_catalog.pg_class where oid = any(%s::oid[])",
            [[leaf.oid for leaf in table.leaves]],
        ).fetchone()
    return None if found is None else found[0]


def pieces(range_: Range, rows_per_s: float | None) -> Iterator[Range]:
    """Yield a range as it is, or, with a limit, in pieces of a fraction of a second."""
    if rows_per_s is None:
        yield range_
        return
    rows = piece_rows(rows_per_s, most=1 << 31)
    step = max(1, int(rows / max(range_.rows_per_page or _MANY, 1.0)))
    starts = range(range_.start, range_.start + max(1, range_.pages), step)
    for start in starts:
        last = start == starts[-1]
        yield replace(range_, start=start, stop=range_.stop if last else start + step)
