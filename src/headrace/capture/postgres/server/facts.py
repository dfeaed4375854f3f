"""
A server's version and settings, the user's privileges, and what follows from them.

Two queries read them, and change nothing.

A change may lack some columns, unless a store keeps what the server does not send (R21). An update
does not send a value that is stored out of line (TOAST) and did not change. The value is known
nevertheless if the old row is sent whole, or if the store of TOAST values has it. With the store
off, steps of a pipeline must not read such a column. Which values the store discards when it is
full is not known beforehand; a pipeline that needs one stops at that change.

Notes are what users should know of a server that can be captured: nothing in them prevents
capture.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import psycopg
import pyarrow as pa
from psycopg.rows import class_row

from headrace.capture.postgres.options import PostgresOptions
from headrace.capture.postgres.server.catalog import (
    CatalogColumn,
    CatalogTable,
    schema_of,
    value_type,
)
from headrace.changelog.schema import TableSchema

# --- the server, its settings and the user's privileges -------------------------------------------

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
"""A server returns only those that it knows."""

REPLICATING_ROLES = ("rds_replication",)
"""Roles of managed services that permit replication to their members."""

_REPAIRED = {14: 140018, 15: 150013, 16: 160009, 17: 170005}
"""Since then, a running transaction cannot keep a sender's view of a publication outdated (R13)."""


def old_publication_cache(version: int) -> bool:
    """Whether tables must be locked while they are added to a publication (R13)."""
    return version < _REPAIRED.get(version // 10000, 0)


@dataclass(frozen=True, slots=True)
class Server:
    """A server, as seen from one of its databases, by one user."""

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
    """Names of the slots that are not in use, without ours."""

    own_slot: bool
    senders: int
    own_sender: bool
    publication_owner: str | None
    """The publication's owner; None: it does not exist."""

    owns_publication: bool
    published: Sequence[int]
    """Oids of the tables that it already has."""

    standby_slots: Sequence[str]
    """Names of the physical slots, which standbys use."""

    feedback_slots: Sequence[str]
    """Those of them whose standby sends hot_standby_feedback."""

    @property
    def old_publication_cache(self) -> bool:
        return old_publication_cache(self.version)

    def number(self, setting: str) -> int | None:
        """Return a setting that is a number; None if the server does not have it."""
        value = self.settings.get(setting)
        return None if value is None else int(value)


@dataclass(frozen=True, slots=True)
class Rights:
    """The user's privileges on one table or partition."""

    oid: int
    namespace: str
    table: str
    owner: str
    owns: bool
    enters: bool
    """Whether the user may use its schema."""

    reads: bool
    """SELECT on the whole table: the copy uses ctid, which column privileges do not include."""

    hides: bool
    """Whether row security would hide rows from the user."""

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
    """Return all that the checks need to know of the server, by one query."""
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
    """Return the user's privileges on these tables; those that no longer exist are left out."""
    with connection.cursor(row_factory=class_row(Rights)) as cursor:
        cursor.execute(_RIGHTS, [list(oids)])
        return {found.oid: found for found in cursor.fetchall()}


# --- columns that a change may lack ---------------------------------------------------------------

_CHARACTERS = (1042, 1043)
"""char and varchar; their modifier is the number of characters plus 4."""

_MOST_CHARACTERS = 5
_MOST_DIGITS = 28
"""These take at most 24 bytes, and no value of that size is ever stored out of line."""


def described(table: CatalogTable, options: PostgresOptions) -> TableSchema:
    """Return a table's schema in the log, with the columns marked that its changes may lack."""
    schema = schema_of(table, options.asked_of(table.name).columns or None)
    if not (lacking := unsent_columns(table, options)):
        return schema
    columns = (
        replace(column, may_be_unsent=True) if column.name in lacking else column
        for column in schema.columns
    )
    return replace(schema, columns=tuple(columns))


def unsent_columns(table: CatalogTable, options: PostgresOptions) -> tuple[str, ...]:
    """Return the columns that an update may lack and that no store completes."""
    if options.toast_store or "update" not in options.publish:
        return ()
    if all(each.identity == "f" for each in (table, *table.leaves)):
        return ()
    if table.leaves and not any(leaf.toasted for leaf in table.leaves):
        return ()
    asked = options.asked_of(table.name).columns
    return tuple(
        column.name
        for column in table.columns
        # The server sends key values with the old row, however they are stored.
        if column.toastable
        and column.name not in table.key
        and (not asked or column.name in asked)
        and not _short(column)
    )


def _short(column: CatalogColumn) -> bool:
    """Whether no value of the column is long enough to be stored out of line."""
    if column.type in _CHARACTERS:
        return 4 <= column.modifier <= 4 + _MOST_CHARACTERS
    kind = value_type(column.type, column.modifier).arrow
    return bool(pa.types.is_decimal(kind) and kind.precision <= _MOST_DIGITS)


# --- notes on settings ----------------------------------------------------------------------------

SHORT_SENDER_TIMEOUT_MS = 10_000
"""Below this, a second in which we are busy can already cost the connection (R7)."""

_TIMEOUTS = (
    "statement_timeout",
    "idle_in_transaction_session_timeout",
    "idle_session_timeout",
    "transaction_timeout",
)


@dataclass(frozen=True, slots=True)
class SettingNote:
    """A setting with a consequence that users should know."""

    setting: str
    value: str
    message: str
    remedy: str = ""
    """Empty: for information only."""


def notes_on(
    server: Server, options: PostgresOptions, tables: Sequence[CatalogTable] = ()
) -> Iterator[SettingNote]:
    """Yield what the operator of this source should know."""
    yield from _unsent(tables, options)
    yield from _keeping(server)
    yield from _ending(server)
    if server.old_publication_cache:
        yield SettingNote(
            "server_version_num",
            str(server.version),
            "Adding a table to the publication locks it against writes for a moment: on this"
            " release, a running transaction could otherwise prevent its changes from being sent",
            "Upgrade to the newest minor release.",
        )
    if "truncate" not in options.publish:
        yield SettingNote(
            "publish",
            ",".join(options.publish),
            "TRUNCATE is not published: truncated tables keep their rows in the targets",
            "Add truncate to publish.",
        )
    if server.standby:
        yield from _standby(server)
    elif options.failover and "synchronized_standby_slots" in server.settings:
        yield from _failover(server)


def _unsent(tables: Sequence[CatalogTable], options: PostgresOptions) -> Iterator[SettingNote]:
    """Tables with updates that may lack values, which are not kept either (R21)."""
    for table in tables:
        if columns := unsent_columns(table, options):
            yield SettingNote(
                "toast_store",
                "off",
                f"An update of {table.name} does not send large values that it leaves unchanged,"
                f" and pipelines that need them stop; columns: {', '.join(columns)}",
                "Turn toast_store on, or run ALTER TABLE … REPLICA IDENTITY FULL.",
            )


def _keeping(server: Server) -> Iterator[SettingNote]:
    """How much WAL the server keeps for the slot, and for how long."""
    keep = server.settings["max_slot_wal_keep_size"]
    yield SettingNote(
        "max_slot_wal_keep_size",
        keep,
        "The server keeps WAL for the slot without a limit: its disk fills up if the slot is not"
        " read for long"
        if keep == "-1"
        else "The server invalidates the slot when it holds back more than this many MB of WAL",
    )
    idle = server.settings.get("idle_replication_slot_timeout", "0")
    if idle != "0":
        yield SettingNote(
            "idle_replication_slot_timeout",
            idle,
            "The server invalidates the slot when it was not read for this long",
            "ALTER SYSTEM SET idle_replication_slot_timeout = 0; SELECT pg_reload_conf();",
        )


def _ending(server: Server) -> Iterator[SettingNote]:
    """Timeouts that may end our connections."""
    timeout = server.number("wal_sender_timeout") or 0
    if timeout == 0:
        yield SettingNote(
            "wal_sender_timeout",
            "0",
            "If a connection breaks without being closed, its WAL sender keeps the slot in use"
            " until it is terminated",
            "ALTER SYSTEM SET wal_sender_timeout = '60s'; SELECT pg_reload_conf();",
        )
    elif timeout < SHORT_SENDER_TIMEOUT_MS:
        yield SettingNote(
            "wal_sender_timeout",
            f"{timeout}ms",
            "The server closes the replication connection after a short pause",
            "ALTER SYSTEM SET wal_sender_timeout = '60s'; SELECT pg_reload_conf();",
        )
    for setting in _TIMEOUTS:
        value = server.settings.get(setting, "0")
        if value != "0":
            # We set 0 when we connect; something between us and the server dropped the setting.
            yield SettingNote(
                setting,
                f"{value}ms",
                "Headrace connects with 0, but the server has another value, which may cut off long"
                " copies: is there a pooler in between?",
                "Connect to the server directly.",
            )


def _standby(server: Server) -> Iterator[SettingNote]:
    if server.settings["hot_standby_feedback"] != "on":
        yield SettingNote(
            "hot_standby_feedback",
            server.settings["hot_standby_feedback"],
            "The primary may remove rows that the slot on this standby needs, which invalidates"
            " the slot",
            "ALTER SYSTEM SET hot_standby_feedback = on; SELECT pg_reload_conf();",
        )


def _failover(server: Server) -> Iterator[SettingNote]:
    """R35, as far as it can be seen on a primary, which does not know the standby's settings."""
    value = server.settings["synchronized_standby_slots"]
    named = [name.strip().strip('"') for name in value.split(",") if name.strip()]
    set_it = "ALTER SYSTEM SET synchronized_standby_slots = '{}'; SELECT pg_reload_conf();"
    if not named:
        yield SettingNote(
            "synchronized_standby_slots",
            "",
            "Headrace may receive commits that no standby has: after a failover, all tables are"
            " copied again",
            set_it.format(",".join(server.standby_slots) or "…"),
        )
    elif missing := [name for name in named if name not in server.standby_slots]:
        yield SettingNote(
            "synchronized_standby_slots",
            value,
            f"The server sends no changes until these slots exist: {', '.join(missing)}",
            set_it.format(",".join(name for name in named if name not in missing)),
        )
    followed = named or server.standby_slots
    silent = [name for name in followed if name not in server.feedback_slots]
    if silent or not followed:
        yield SettingNote(
            "hot_standby_feedback",
            ", ".join(silent) or "no standby",
            "No standby sends hot_standby_feedback, which a synchronised slot needs",
            "On the standby: ALTER SYSTEM SET hot_standby_feedback = on; ALTER SYSTEM SET"
            " sync_replication_slots = on; SELECT pg_reload_conf(); its primary_slot_name and"
            " a dbname in primary_conninfo must be set too.",
        )
    else:
        yield SettingNote(
            "sync_replication_slots",
            "not visible here",
            "Only the standby knows whether it synchronises the slot",
            "On the standby: ALTER SYSTEM SET sync_replication_slots = on;"
            " SELECT pg_reload_conf();",
        )
