"""
What a server reports of itself, its settings and our rights, and what follows from that.

Two queries read it, and change nothing.

A change may come without some columns, where no store keeps what the server does not send (R21).
An update does not send a value that is kept out of its row and did not change. It comes all the
same where the old row is sent whole, or where the store of TOAST values has it. With the store
off, steps of a pipeline must not read such a column; what the store has to give up over its cap is
not known before, and stops a pipeline when it comes to that.

Notes are what is worth knowing of a server that can be captured: nothing in them keeps us from
capturing it.
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

# --- the server, its settings and our rights ------------------------------------------------------

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


# --- columns that a change may come without -------------------------------------------------------

_CHARACTERS = (1042, 1043)
"""char and varchar; their modifier is the number of characters and 4 more."""

_MOST_CHARACTERS = 5
_MOST_DIGITS = 28
"""So many take 24 bytes at most, and no value of so few is ever kept elsewhere."""


def described(table: CatalogTable, options: PostgresOptions) -> TableSchema:
    """Return a table's schema as the log has it, with what its changes may come without."""
    schema = schema_of(table, options.asked_of(table.name).columns or None)
    if not (lacking := unsent_columns(table, options)):
        return schema
    columns = (
        replace(column, may_be_unsent=True) if column.name in lacking else column
        for column in schema.columns
    )
    return replace(schema, columns=tuple(columns))


def unsent_columns(table: CatalogTable, options: PostgresOptions) -> tuple[str, ...]:
    """Return the columns that an update may come without, and nobody here can complete."""
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
        # The server sends what it has of a key with the old row, however it is stored.
        if column.toastable
        and column.name not in table.key
        and (not asked or column.name in asked)
        and not _short(column)
    )


def _short(column: CatalogColumn) -> bool:
    """Whether no value of the column is long enough to be kept elsewhere."""
    if column.type in _CHARACTERS:
        return 4 <= column.modifier <= 4 + _MOST_CHARACTERS
    kind = value_type(column.type, column.modifier).arrow
    return bool(pa.types.is_decimal(kind) and kind.precision <= _MOST_DIGITS)


# --- notes on settings ----------------------------------------------------------------------------

SHORT_SENDER_TIMEOUT_MS = 10_000
"""Below this a busy second of ours can already cost the connection (R7)."""

_TIMEOUTS = (
    "statement_timeout",
    "idle_in_transaction_session_timeout",
    "idle_session_timeout",
    "transaction_timeout",
)


@dataclass(frozen=True, slots=True)
class SettingNote:
    """A setting that has a consequence."""

    setting: str
    value: str
    message: str
    remedy: str = ""
    """Empty where it is information only."""


def notes_on(
    server: Server, options: PostgresOptions, tables: Sequence[CatalogTable] = ()
) -> Iterator[SettingNote]:
    """Yield what somebody who runs this source should have read once."""
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
    """Which tables may have updates without some of their values, and nobody keeps these (R21)."""
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
    """How much WAL the server keeps for a slot, and for how long."""
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
    """What may end our connections."""
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
            # We ask for 0 when we connect; something between us and the server lost it.
            yield SettingNote(
                setting,
                f"{value}ms",
                "Headrace connects with 0, but the server has another value, so long copies may"
                " be cut off: is there a pooler in between?",
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
    """R35, as far as a primary can see: what the standby is set to, it does not tell."""
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
            set_it.format(",".join(set(named) - set(missing))),
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
