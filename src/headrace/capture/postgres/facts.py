"""What a server says of itself, its settings and our rights: two queries, nothing changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg.rows import class_row

SETTINGS = (
    "wal_level",
    "max_replication_slots",
    "max_wal_senders",
    "wal_sender_timeout",
    "max_slot_wal_keep_size",
    "idle_replication_slot_timeout",
    "synchronized_standby_slots",
    "hot_standby_feedback",
    "idle_in_transaction_session_timeout",
    "idle_session_timeout",
    "statement_timeout",
    "transaction_timeout",
    "rds.logical_replication",
    "cloudsql.logical_decoding",
)
"""Those a server does not know are not among what it answers."""

REPLICATING_ROLES = ("rds_replication",)
"""Managed services where membership stands for the attribute REPLICATION."""

_REPAIRED = {14: 140018, 15: 150013, 16: 160009, 17: 170005}
"""Since when a running transaction cannot spoil what a sender knows of publications (R13)."""


def old_publication_cache(version: int) -> bool:
    """Whether tables must be locked while they are added to a publication (R13)."""
    return version < _REPAIRED.get(version // 10000, 0)


@dataclass(frozen=True, slots=True)
class Server:
    """A server, as one of its databases and users sees it."""

    version: int
    """As `server_version_num`: 180004 is 18.4."""

    settings: Mapping[str, str]
    standby: bool
    user: str
    database: str
    replicates: bool
    """Whether the user may open a replication connection."""

    creates: bool
    """Whether the user may create publications here."""

    slots: int
    idle_slots: Sequence[str]
    """Names of slots that nobody reads from, ours left out."""

    own_slot: bool
    senders: int
    own_sender: bool
    publication_owner: str | None
    """Who owns the publication; None: it is not there."""

    owns_publication: bool
    published: Sequence[int]
    """Oids of the tables that are in it already."""

    standby_slots: Sequence[str]
    """Names of physical slots, by which standbys follow."""

    feedback_slots: Sequence[str]
    """Those of them whose standby sends hot_standby_feedback."""

    @property
    def old_publication_cache(self) -> bool:
        return old_publication_cache(self.version)

    def number(self, setting: str) -> int | None:
        """Return a setting that is a number; None where the server does not have it."""
        value = self.settings.get(setting)
        return None if value is None else int(value)


@dataclass(frozen=True, slots=True)
class Rights:
    """What the user may do with one table or partition."""

    oid: int
    namespace: str
    table: str
    owner: str
    owns: bool
    enters: bool
    """Whether the user may use its schema."""

    reads: bool
    """SELECT on the whole table: rights on columns do not reach ctid, by which it is copied."""

    hides: bool
    """Whether row security would keep rows from the user."""

    forced: bool


_SERVER = """
select pg_catalog.current_setting('server_version_num')::int as version,
  (select pg_catalog.jsonb_object_agg(name, setting) from pg_catalog.pg_settings
   where name = any(%(settings)s::text[])) as settings,
  pg_catalog.pg_is_in_recovery() as standby,
  r.rolname::text as "user", pg_catalog.current_database()::text as database,
  r.rolsuper or r.rolreplication or exists (
    select from pg_catalog.pg_roles g where g.rolname = any(%(roles)s::text[])
    and pg_catalog.pg_has_role(r.oid, g.oid, 'member')) as replicates,
  pg_catalog.has_database_privilege(pg_catalog.current_database(), 'create') as creates,
  (select pg_catalog.count(*) from pg_catalog.pg_replication_slots) as slots,
  array(select slot_name::text from pg_catalog.pg_replication_slots
        where not active and slot_name <> %(slot)s order by 1) as idle_slots,
  exists (select from pg_catalog.pg_replication_slots where slot_name = %(slot)s) as own_slot,
  (select pg_catalog.count(*) from pg_catalog.pg_stat_replication) as senders,
  exists (select from pg_catalog.pg_replication_slots s
          join pg_catalog.pg_stat_replication a on a.pid = s.active_pid
          where s.slot_name = %(slot)s) as own_sender,
  pg_catalog.pg_get_userbyid(p.pubowner)::text as publication_owner,
  coalesce(pg_catalog.pg_has_role(p.pubowner, 'usage'), false) as owns_publication,
  array(select prrelid::int8 from pg_catalog.pg_publication_rel
        where prpubid = p.oid) as published,
  array(select slot_name::text from pg_catalog.pg_replication_slots
        where slot_type = 'physical' order by 1) as standby_slots,
  array(select slot_name::text from pg_catalog.pg_replication_slots
        where slot_type = 'physical' and xmin is not null order by 1) as feedback_slots
from pg_catalog.pg_roles r
left join pg_catalog.pg_publication p on p.pubname = %(publication)s
where r.rolname = current_user
"""

_RIGHTS = """
select c.oid::int8 as oid, n.nspname::text as namespace, c.relname::text as "table",
  pg_catalog.pg_get_userbyid(c.relowner)::text as owner,
  pg_catalog.pg_has_role(c.relowner, 'usage') as owns,
  pg_catalog.has_schema_privilege(n.oid, 'usage') as enters,
  pg_catalog.has_table_privilege(c.oid, 'select') as reads,
  pg_catalog.row_security_active(c.oid) as hides, c.relforcerowsecurity as forced
from pg_catalog.pg_class c join pg_catalog.pg_namespace n on n.oid = c.relnamespace
where c.oid = any(%s::oid[])
"""


def read_server(connection: psycopg.Connection[Any], slot: str, publication: str) -> Server:
    """Ask the server for all that the checks need, in one query."""
    with connection.cursor(row_factory=class_row(Server)) as cursor:
        cursor.execute(
            _SERVER,
            {
                "settings": list(SETTINGS),
                "roles": list(REPLICATING_ROLES),
                "slot": slot,
                "publication": publication,
            },
        )
        [server] = cursor.fetchall()
        return server


def read_rights(connection: psycopg.Connection[Any], oids: Sequence[int]) -> dict[int, Rights]:
    """Return what the user may do with each of these tables; one that is gone is left out."""
    with connection.cursor(row_factory=class_row(Rights)) as cursor:
        cursor.execute(_RIGHTS, [list(oids)])
        return {found.oid: found for found in cursor.fetchall()}
