"""What a server's settings bring, and what was left on it by an engine that is gone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import psycopg

from headrace.capture.findings import Finding
from headrace.capture.postgres import checks, slots
from headrace.capture.postgres.connection import connect, speaking
from headrace.capture.postgres.options import Options, options_of
from headrace.capture.postgres.publication import MARK

if TYPE_CHECKING:
    from headrace.capture.postgres.source import PostgresSource

_PUBLICATIONS = """
select p.pubname from pg_catalog.pg_publication p
where starts_with(pg_catalog.obj_description(p.oid, 'pg_publication'), %s)
  and p.pubname <> %s
  and not exists (select from pg_catalog.pg_replication_slots s
                  where p.pubname in (s.slot_name::text, s.slot_name::text || '_pub'))
order by 1
"""


def findings(source: PostgresSource, tables: Sequence[str], reader: str) -> list[Finding]:
    """Return settings with a consequence, and slots and publications that nobody uses."""
    options = options_of(source.name, source.spec.options, reader)
    with connect(options) as connection, speaking(options):
        report = checks.examine(connection, options, tables)
        noted = (
            Finding(note.setting, f"{note.value or '(empty)'}: {note.message}", note.remedy)
            for note in report.notes
        )
        return [*noted, *_left(connection, options)]


def _left(connection: psycopg.Connection[Any], options: Options) -> Iterator[Finding]:
    end = slots.written(connection)
    for slot in slots.leftovers(connection):
        if slot.name == options.slot:
            continue
        held = max(0, end - slot.restart) if slot.restart is not None else 0
        yield Finding(
            slot.name,
            f"a slot of ours that nobody reads, in {slot.database_name}: the server keeps"
            f" {held / 1e6:,.1f} MB of its log for it",
            f"If no engine needs it: select pg_drop_replication_slot('{slot.name}');",
        )
    for (name,) in connection.execute(_PUBLICATIONS, (MARK, options.publication)).fetchall():
        quoted = '"' + name.replace('"', '""') + '"'
        yield Finding(
            name,
            "a publication of ours without a slot",
            f"If no engine needs it: drop publication {quoted};",
        )
