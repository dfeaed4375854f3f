"""
What users can find out about a database: its tables, settings, leftovers, and sample rows.

The tables are listed, and one of them can be added while others are read (H2). The catalog is
queried without locks, as in `ddl_watch.py`. A new table is published in a transaction of its own,
which gives up quickly if it does not get its lock: changes of other tables do not wait for it, and
the next look at the catalog tries again.

Findings are settings with consequences, and what an engine left on the server when it was removed.
Objects are the slot and the publication of one engine, which `headrace teardown` removes.
Sample rows of a table are read in a read-only transaction.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import psycopg

from headrace.capture.postgres.connection import as_bytes, connect, speaking
from headrace.capture.postgres.copy.ranges import SelectedColumn
from headrace.capture.postgres.copy.reader import TRAILER, batch_of, empty, header_size
from headrace.capture.postgres.options import (
    PostgresOptions,
    TableOptions,
    default_slot,
    options_of,
    quoted,
    written,
)
from headrace.capture.postgres.server import preflight, publication
from headrace.capture.postgres.server import publication as published
from headrace.capture.postgres.server import slot as slots
from headrace.capture.postgres.server.catalog import CatalogTable, find, look_up, sends_binary
from headrace.capture.postgres.server.facts import described
from headrace.capture.postgres.server.publication import MARK
from headrace.capture.postgres.stream.wire import CopyMessages
from headrace.capture.registry import Finding, SourceObject, TableSample
from headrace.changelog.schema import TableSchema
from headrace.errors import BadMessage, PublicationRefused

if TYPE_CHECKING:
    from headrace.capture.postgres.source import PostgresSource


# --- tables that can be captured ------------------------------------------------------------------

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
# Without partitions: they are captured as part of their table. Without tables of extensions: a
# pattern for the application's tables does not mean them.


def table_names(options: PostgresOptions, connection: psycopg.Connection[Any] | None) -> list[str]:
    """Return the application's tables, by their shortest names."""
    if connection is None:
        with connect(options) as made:
            return table_names(options, made)
    found = connection.execute(_TABLES.encode()).fetchall()
    return [written(schema, table) for schema, table in found]


def unpublished(
    connection: psycopg.Connection[Any], options: PostgresOptions, names: Sequence[str]
) -> list[PublicationRefused]:
    """Return the tables that a publication lacks which is not ours, and so is never altered."""
    present = published.read(connection, options.publication)
    if present is None or (options.create_publication and publication.is_ours(present, options)):
        return []
    found, _ = find(connection, names)
    sent = published.published(connection, options.publication)
    return [
        PublicationRefused(
            "The publication does not include the table",
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
    options: PostgresOptions,
    name: str,
    captured: Mapping[str, CatalogTable],
) -> CatalogTable:
    """Return one more table to capture; raises if a problem prevents that."""
    for problem in preflight.check(connection, options, [*captured, name]):
        # Other problems, such as a lack of slots, only matter for a start.
        if name in (problem.facts.get("table"), problem.facts.get("other")):
            raise problem
    return look_up(connection, [name])[name]


# --- settings with consequences, and leftovers ----------------------------------------------------

_SLOT = "replication slot"
_PUBLICATION = "publication"

_PUBLICATIONS = """
select p.pubname from pg_catalog.pg_publication p
where starts_with(pg_catalog.obj_description(p.oid, 'pg_publication'), %s)
  and p.pubname <> %s
  and not exists (select from pg_catalog.pg_replication_slots s
                  where p.pubname in (s.slot_name::text, s.slot_name::text || '_pub'))
order by 1
"""


def findings(source: PostgresSource, tables: Sequence[str], reader: str) -> list[Finding]:
    """Return settings with consequences, and unused slots and publications."""
    options = options_of(source.name, source.spec.options, reader)
    with connect(options) as connection, speaking(options):
        report = preflight.examine(connection, options, tables)
        noted = (
            Finding(note.setting, f"{note.value or '(empty)'}: {note.message}", note.remedy)
            for note in report.notes
        )
        left = (Finding(each.name, each.says, each.kept) for each in _left(connection, options))
        return [*noted, *left]


def _left(connection: psycopg.Connection[Any], options: PostgresOptions) -> Iterator[SourceObject]:
    """Yield what no engine reads, as far as the server knows; it may be of one that is stopped."""
    end = slots.written(connection)
    for slot in slots.leftovers(connection):
        if slot.name == options.slot:
            continue
        yield SourceObject(
            _SLOT,
            slot.name,
            f"unused Headrace slot in database {slot.database_name}: {_held(slot, end)}",
            f"If no engine needs it, run: select pg_drop_replication_slot('{slot.name}');",
        )
    for (name,) in connection.execute(_PUBLICATIONS, (MARK, options.publication)).fetchall():
        quoted = '"' + name.replace('"', '""') + '"'
        yield SourceObject(
            _PUBLICATION,
            name,
            "Headrace publication without a slot",
            f"If no engine needs it, run: drop publication {quoted};",
        )


# --- the slot and the publication, and their removal ----------------------------------------------


def objects(source: PostgresSource, reader: str, claim: str) -> list[SourceObject]:
    """Return our slot and publication, and what other engines left in this server."""
    options = options_of(source.name, source.spec.options, reader)
    with connect(options) as connection, speaking(options):
        own = _objects(connection, options, reader, claim)
        return [*own, *_left(connection, options)]


def remove_objects(source: PostgresSource, reader: str, claim: str) -> list[SourceObject]:
    """Drop our slot and publication; `SlotBusy` if a process reads from the slot."""
    options = options_of(source.name, source.spec.options, reader)
    with connect(options) as connection, speaking(options):
        removed = []
        for each in _objects(connection, options, reader, claim):
            if each.kept:
                continue
            if each.kind == _PUBLICATION:
                publication.drop(connection, options)
            else:
                slots.drop(connection, each.name)
            removed.append(each)
        return removed


def _objects(
    connection: psycopg.Connection[Any], options: PostgresOptions, reader: str, claim: str
) -> Iterator[SourceObject]:
    present = published.read(connection, options.publication)
    ours = present is not None and publication.is_ours(present, options)
    slot = slots.find(connection, options.slot)
    if slot is not None and options.slot_mode != "ephemeral":
        # No other deployment has a slot with our default name.
        ours_by_name = slot.name == default_slot(options.name, reader)
        kept = ""
        if slot.plugin != slots.PLUGIN or slot.database_name != connection.info.dbname:
            kept = f"It is of plugin {slot.plugin} in database {slot.database_name}."
        elif not (ours or ours_by_name or claim == f"slot {slot.name}"):
            drop = f"select pg_drop_replication_slot('{slot.name}');"
            kept = f"It is not known to be ours. If nothing needs it, run: {drop}"
        says = _held(slot, slots.written(connection))
        if slot.active:
            says += f"; process {slot.reader} reads from it"
        yield SourceObject(_SLOT, slot.name, says, kept)
    if present is not None:
        kept = "" if ours else "It was not created by Headrace for this source."
        yield SourceObject(_PUBLICATION, present.name, kept=kept)


def _held(slot: slots.Slot, end: int) -> str:
    held = max(0, end - slot.restart) if slot.restart is not None else 0
    return f"the server keeps {held / 1e6:,.1f} MB of WAL for it"


# --- a few rows of a table ------------------------------------------------------------------------


def sample(source: PostgresSource, table: str, most: int) -> TableSample:
    """Return some of the published rows, with the published columns, as in a copy."""
    options = source.options
    asked = options.asked_of(table)
    with speaking(options), connect(options) as connection:
        connection.read_only = True
        with connection.transaction():
            found = look_up(connection, [table])[table]
            schema = described(found, options)
            columns = _selected(found, schema)
            rows = _copied(connection, _query(found, columns, asked, most))
    if not rows:
        return TableSample(schema, empty(schema))
    binary = [column.binary for column in columns]
    return TableSample(schema, *batch_of(schema, binary, CopyMessages.joined(rows)))


def _selected(table: CatalogTable, schema: TableSchema) -> list[SelectedColumn]:
    known = {column.name: column for column in table.columns}
    return [
        SelectedColumn(name, sends_binary(known[name].type, known[name].modifier))
        for name in schema.names
    ]


def _query(
    table: CatalogTable, columns: list[SelectedColumn], asked: TableOptions, most: int
) -> str:
    # Inheriting tables are separate tables; partitions are not.
    only = "" if table.kind == "p" else "only "
    where = f" where ({asked.where})" if asked.where else ""
    listed = ", ".join(column.expression for column in columns)
    return f"select {listed} from {only}{quoted(table.namespace, table.table)}{where} limit {most}"


def _copied(connection: psycopg.Connection[Any], query: str) -> list[bytes | memoryview]:
    """Return the rows of a COPY, one message for each."""
    if setting := as_bytes(connection):
        connection.execute(setting)
    statement = f"copy ({query}) to stdout (format binary)".encode()
    with connection.cursor() as cursor, cursor.copy(statement) as copy:
        first, *rest = (bytes(each) for each in copy)
    # The header is a message of its own, or is put before the first row or the trailer.
    messages: list[bytes | memoryview] = [first[header_size(first) :], *rest]
    if messages.pop() != TRAILER:
        raise BadMessage("COPY ended without its trailer")
    return [each for each in messages if each]
