"""What a publication holds, as the server has it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import psycopg

from headrace.capture.postgres.catalog import CatalogTable
from headrace.capture.postgres.names import quoted
from headrace.errors import PublicationRefused, ServerRefused

FILTERS_SINCE = 150000
"""Row filters, column lists and whole schemas."""

LOCK_MILLISECONDS = 100
"""How long a look at a table's columns may wait for somebody who alters it."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A table that a publication names."""

    namespace: str
    table: str
    columns: tuple[str, ...]
    """Its column list; empty: it has none."""

    where: str
    """Its row filter in the server's own words; empty: it has none."""


@dataclass(frozen=True, slots=True)
class Publication:
    """A publication, with the tables it names; those it holds otherwise are not here."""

    name: str
    comment: str
    operations: frozenset[str]
    via_root: bool
    entries: Mapping[int, Entry]
    """By the table's oid."""


@dataclass(frozen=True, slots=True)
class Published:
    """What is sent of a table, however it came into the publication."""

    columns: tuple[str, ...]
    where: str
    """Empty: all rows."""


def read(connection: psycopg.Connection[Any], name: str) -> Publication | None:
    """Return the publication of that name."""
    row = connection.execute(
        """
        SELECT p.oid::int8, coalesce(obj_description(p.oid, 'pg_publication'), ''),
               p.pubinsert, p.pubupdate, p.pubdelete, p.pubtruncate, p.pubviaroot
        FROM pg_catalog.pg_publication p WHERE p.pubname = %s
        """,
        (name,),
    ).fetchone()
    if row is None:
        return None
    oid, comment, inserts, updates, deletes, truncates, via_root = row
    flags = {"insert": inserts, "update": updates, "delete": deletes, "truncate": truncates}
    operations = frozenset(operation for operation, sent in flags.items() if sent)
    return Publication(name, comment, operations, via_root, _entries(connection, oid))


def published(connection: psycopg.Connection[Any], name: str) -> dict[int, Published]:
    """Return what is sent, by the table's oid; baselines read exactly this (R18)."""
    if connection.info.server_version >= FILTERS_SINCE:
        sent = "p.attnames::text[], coalesce(p.rowfilter, '')"
    else:
        sent = """
            ARRAY(SELECT a.attname::text FROM pg_catalog.pg_attribute a
                  WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
                    AND a.attgenerated = '' ORDER BY a.attnum), ''
        """
    query = f"""
        SELECT c.oid::int8, {sent}
        FROM pg_catalog.pg_publication_tables p
        JOIN pg_catalog.pg_namespace n ON n.nspname = p.schemaname
        JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = p.tablename
        WHERE p.pubname = %s
    """
    found = connection.execute(query.encode(), (name,)).fetchall()
    return {oid: Published(tuple(columns), where) for oid, columns, where in found}


def published_columns(
    connection: psycopg.Connection[Any], publication: str, table: CatalogTable
) -> tuple[str, ...]:
    """Return the columns that are sent of a table; raises `PublicationRefused` if it is not."""
    sent = published(connection, publication).get(table.oid)
    if sent is None:
        raise PublicationRefused(
            "Publication does not have the table", publication=publication, table=table.name
        )
    return sent.columns


def same_filter(
    connection: psycopg.Connection[Any], table: CatalogTable, asked: str, present: str
) -> bool:
    """Whether a filter as the user wrote it is the one that the server has in its own words."""
    if not asked or not present:
        return asked == present
    return asked == present or _in_server_words(connection, table, asked) == present


def _in_server_words(connection: psycopg.Connection[Any], table: CatalogTable, where: str) -> str:
    # The server shows only what it has stored. So it is stored: as a check of an empty table
    # with the same columns, which nobody but this transaction sees, and which goes with it.
    name = "headrace_row_filter"
    scratch = quoted("pg_temp", name)
    try:
        with connection.transaction(force_rollback=True):
            connection.execute(f"SET LOCAL lock_timeout = {LOCK_MILLISECONDS}".encode())
            connection.execute(
                f"CREATE TEMPORARY TABLE {quoted(name)}"
                f" (LIKE {quoted(table.namespace, table.table)})".encode()
            )
            connection.execute(
                f"ALTER TABLE {scratch} ADD CONSTRAINT {quoted(name)}"
                f" CHECK {parenthesised(where)}".encode()
            )
            row = connection.execute(
                """
                SELECT pg_get_expr(conbin, conrelid) FROM pg_catalog.pg_constraint
                WHERE conrelid = %s::regclass AND conname = %s
                """,
                (scratch, name),
            ).fetchone()
    except psycopg.errors.InsufficientPrivilege:
        # Without the right to make temporary tables only the very words can be compared.
        return where
    except (psycopg.ProgrammingError, psycopg.DataError) as error:
        raise unreadable(error, table=table.name) from None
    return "" if row is None else str(row[0])


def unreadable(error: psycopg.Error, **facts: object) -> PublicationRefused:
    """Return the refusal of a column list or filter that the server does not understand."""
    # The server's text is left out, because it can hold what the filter compares with.
    return PublicationRefused(
        "Server does not take a row filter or a list of columns",
        **facts,
        sqlstate=error.sqlstate,
        remedy="Check names and types in where and columns of the tables; a row filter may use"
        " only the table's own columns and what PostgreSQL itself brings along.",
    )


def parenthesised(where: str) -> str:
    """Return a filter as statements take it."""
    return f"({where}\n)"  # the filter may end in a comment


def needs_newer(connection: psycopg.Connection[Any]) -> ServerRefused | None:
    """Return the refusal of row filters and column lists by an older server."""
    version = connection.info.server_version
    if version >= FILTERS_SINCE:
        return None
    return ServerRefused(
        "Row filters and column lists need PostgreSQL 15",
        version=version // 10000,
        remedy="Leave where and columns of the tables out, or use a newer server.",
    )


def _entries(connection: psycopg.Connection[Any], publication: int) -> dict[int, Entry]:
    detail = "ARRAY[]::text[], ''"
    if connection.info.server_version >= FILTERS_SINCE:
        detail = """
            ARRAY(SELECT a.attname::text FROM pg_catalog.pg_attribute a
                  WHERE a.attrelid = c.oid AND a.attnum = ANY(r.prattrs) ORDER BY a.attnum),
            coalesce(pg_get_expr(r.prqual, r.prrelid), '')
        """
    query = f"""
        SELECT c.oid::int8, n.nspname::text, c.relname::text, {detail}
        FROM pg_catalog.pg_publication_rel r
        JOIN pg_catalog.pg_class c ON c.oid = r.prrelid
        JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
        WHERE r.prpubid = %s ORDER BY 2, 3
    """
    found = connection.execute(query.encode(), (publication,)).fetchall()
    return {
        oid: Entry(namespace, table, tuple(columns), where)
        for oid, namespace, table, columns, where in found
    }
