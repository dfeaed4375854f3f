"""
The tables that a database has, and taking one of them in while others are read (H2).

The catalogue is asked without locks, as the watch does. A new table is published in a
transaction of its own that gives up quickly where it does not get its lock: the others'
changes wait for nothing, and it is tried again with the next look.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import psycopg

from headrace.capture.postgres import checks, publication, published
from headrace.capture.postgres.catalog import CatalogTable, find, look_up
from headrace.capture.postgres.connection import connect
from headrace.capture.postgres.names import quoted, written
from headrace.capture.postgres.options import Options
from headrace.errors import PublicationRefused

_TABLES = """
select n.nspname, c.relname
from pg_catalog.pg_class c join pg_catalog.pg_namespace n on n.oid = c.relnamespace
where c.relkind in ('r', 'p') and c.relpersistence = 'p' and not c.relispartition
  and c.oid >= 16384
  and n.nspname <> 'information_schema' and n.nspname not like 'pg\\_%'
  and not exists (select from pg_catalog.pg_depend d
                  where d.classid = 'pg_catalog.pg_class'::regclass and d.objid = c.oid
                    and d.deptype = 'e')
order by 1, 2
"""
# Not partitions: they come as part of the table above. Not tables of extensions: what these
# keep for themselves nobody means by a pattern.


def table_names(options: Options, connection: psycopg.Connection[Any] | None) -> list[str]:
    """Return the tables that hold the application's rows, as a person would write them."""
    if connection is None:
        with connect(options) as made:
            return table_names(options, made)
    found = connection.execute(_TABLES.encode()).fetchall()
    return [written(schema, table) for schema, table in found]


def unpublished(
    connection: psycopg.Connection[Any], options: Options, names: Sequence[str]
) -> list[PublicationRefused]:
    """Return which tables somebody else's publication lacks: it is not ours to alter."""
    present = published.read(connection, options.publication)
    if present is None or (options.create_publication and publication.is_ours(present, options)):
        return []
    found, _ = find(connection, names)
    sent = published.published(connection, options.publication)
    return [
        PublicationRefused(
            "Publication lacks the table",
            publication=options.publication,
            table=name,
            remedy=f"Run ALTER PUBLICATION {quoted(options.publication)}"
            f" ADD TABLE ONLY {quoted(table.namespace, table.table)};",
        )
        for name, table in found.items()
        if table.oid not in sent
    ]


def examined(
    connection: psycopg.Connection[Any],
    options: Options,
    name: str,
    captured: Mapping[str, CatalogTable],
) -> CatalogTable:
    """Return a table that can be captured beside those that are; raise what speaks against it."""
    for problem in checks.check(connection, options, [*captured, name]):
        # What else is found, say that slots are few, speaks of a start, and this is none.
        if name in (problem.facts.get("table"), problem.facts.get("other")):
            raise problem
    return look_up(connection, [name])[name]
