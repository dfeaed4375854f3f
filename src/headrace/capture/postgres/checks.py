"""
Everything that keeps a server's tables from being captured exactly, found beforehand.

Nothing is changed on the server and nothing raised: each finding is an error with its
remedy, the statement or the setting, and whether that needs a restart. What only
deserves a look is a note.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg

from headrace.capture.postgres.catalog import CatalogTable, Leaf, find
from headrace.capture.postgres.connection import speaking
from headrace.capture.postgres.facts import Rights, Server, read_rights, read_server
from headrace.capture.postgres.filters import filter_problems
from headrace.capture.postgres.identity import (
    Asked,
    generated_problems,
    identity_problems,
    list_problems,
)
from headrace.capture.postgres.names import quoted
from headrace.capture.postgres.notes import Note, notes_on
from headrace.capture.postgres.options import Options
from headrace.capture.postgres.rights import relations, right_problems, role_problems
from headrace.errors import (
    HeadraceError,
    NoRoom,
    ServerRefused,
    TableRefused,
)

OLDEST, NEWEST = 14, 18
STANDBY_SINCE = 160000
FAILOVER_SINCE = 170000
_FIRST_USER_OID = 16384
"""Below are the server's own tables, which cannot be published."""

_KINDS = {
    "v": "a view",
    "m": "a materialised view",
    "f": "a foreign table",
    "S": "a sequence",
    "c": "a composite type",
    "i": "an index",
    "I": "an index",
    "t": "a TOAST table",
}


@dataclass(frozen=True, slots=True)
class Report:
    """What the checks found."""

    problems: tuple[HeadraceError, ...]
    """What must be mended first, all of it."""

    notes: tuple[Note, ...] = ()
    """What is worth knowing."""

    server: Server | None = None
    """None where the server could not be asked."""


def check(
    connection: psycopg.Connection[Any],
    options: Options,
    tables: Sequence[CatalogTable | str],
    *,
    generated: bool = False,
) -> list[HeadraceError]:
    """Return everything that keeps these tables from being captured; see `examine`."""
    return list(examine(connection, options, tables, generated=generated).problems)


def examine(
    connection: psycopg.Connection[Any],
    options: Options,
    tables: Sequence[CatalogTable | str],
    *,
    generated: bool = False,
) -> Report:
    """
    Look at the server, the rights on it and the tables.

    A table may be given by its name; one that is not there is a finding like others.
    `generated`: stored generated columns are published, as PostgreSQL 18 can.
    A connection that breaks on the way is one more finding.
    """
    version = connection.info.server_version
    if not OLDEST <= version // 10000 <= NEWEST:
        return Report((_wrong_version(version),))
    problems: list[HeadraceError] = []
    server: Server | None = None
    known: list[CatalogTable] = []
    try:
        with speaking(options):
            server = read_server(connection, options.slot, options.publication)
            problems += _setting_problems(server, options)
            problems += role_problems(server, options)
            problems += _room_problems(server, options)
            found, missing = find(connection, [each for each in tables if isinstance(each, str)])
            problems += missing
            known = [each for each in tables if not isinstance(each, str)] + [*found.values()]
            oids = sorted({each.oid for table in known for each in relations(table)})
            rights = read_rights(connection, oids)
            for table in known:
                problems += _table_problems(connection, table, options, server, rights, generated)
            problems += _overlaps(known)
    except HeadraceError as error:
        problems.append(error)
    notes = notes_on(server, options, known) if server else ()
    return Report(tuple(problems), tuple(notes), server)


def _wrong_version(version: int) -> HeadraceError:
    return ServerRefused(
        f"PostgreSQL {OLDEST} to {NEWEST} can be captured, and this is another version",
        version=version,
        remedy=f"Upgrade the server to PostgreSQL {OLDEST} or newer."
        if version // 10000 < OLDEST
        else "Upgrade Headrace to a release that knows this PostgreSQL.",
    )


def _setting_problems(server: Server, options: Options) -> Iterator[HeadraceError]:
    if (level := server.settings["wal_level"]) != "logical":
        yield ServerRefused(
            "The server does not write what logical replication needs",
            wal_level=level,
            remedy=_wal_level_remedy(server),
        )
    if server.standby and server.version < STANDBY_SINCE:
        yield ServerRefused(
            "The server is a standby, which can be captured from PostgreSQL 16 on",
            version=server.version,
            remedy="Point the source at the primary.",
        )
    elif server.standby and options.create_publication:
        yield ServerRefused(
            "The server is a standby, where no publication can be made or changed",
            publication=options.publication,
            remedy="Make the publication on the primary, and set create_publication to false:"
            f" CREATE PUBLICATION {quoted(options.publication)} FOR TABLE …"
            " WITH (publish_via_partition_root = true);",
        )
    if options.failover and server.version < FAILOVER_SINCE:
        yield ServerRefused(
            "Slots that survive a failover need PostgreSQL 17 or newer",
            version=server.version,
            remedy="Set failover to false, or upgrade the server.",
        )


def _wal_level_remedy(server: Server) -> str:
    managed = {"rds.logical_replication": "1", "cloudsql.logical_decoding": "on"}
    for setting, value in managed.items():
        if setting in server.settings:
            return f"Set {setting} to {value} in the instance's parameters, and restart it."
    return "ALTER SYSTEM SET wal_level = 'logical'; then restart the server."


def _room_problems(server: Server, options: Options) -> Iterator[HeadraceError]:
    most = server.number("max_replication_slots") or 0
    # A temporary slot goes with its connection, so only a lasting one is taken up again.
    reusable = server.own_slot and options.slot_mode == "stateful"
    if server.slots >= most and not reusable:
        yield NoRoom(
            "All replication slots are taken",
            slots=server.slots,
            unread=list(server.idle_slots),
            remedy=f"ALTER SYSTEM SET max_replication_slots = {server.slots + 4}; then restart"
            " the server; or drop a slot that nobody reads:"
            " SELECT pg_drop_replication_slot('…');",
        )
    most = server.number("max_wal_senders") or 0
    if server.senders - server.own_sender >= most:
        yield NoRoom(
            "All senders are taken",
            senders=server.senders,
            remedy=f"ALTER SYSTEM SET max_wal_senders = {server.senders + 4}; then restart the"
            " server; or end a replication client that is not needed.",
        )


def _table_problems(
    connection: psycopg.Connection[Any],
    table: CatalogTable,
    options: Options,
    server: Server,
    rights: dict[int, Rights],
    generated: bool,
) -> Iterator[HeadraceError]:
    refused = list(_kind_problems(table))
    yield from refused
    if refused:
        # What follows would only repeat that it is not a table to be captured.
        return
    asked = Asked(options.asked_of(table.name), options.publish, server.version, generated)
    yield from right_problems(table, options, server, rights)
    yield from identity_problems(table, asked)
    yield from generated_problems(table, asked)
    yield from list_problems(table, asked)
    yield from filter_problems(connection, table, asked)


def _kind_problems(table: CatalogTable) -> Iterator[HeadraceError]:
    if table.kind in _KINDS:
        yield TableRefused(
            f"It is {_KINDS[table.kind]}, of which no changes are logged",
            table=table.name,
            remedy="Name the tables behind it instead." if table.kind in "vm" else "Leave it out.",
        )
        return
    if table.oid < _FIRST_USER_OID:
        yield TableRefused(
            "It is a table of the server's own", table=table.name, remedy="Leave it out."
        )
        return
    if table.tree and table.kind != "p":
        yield TableRefused(
            "Other tables inherit from it, and their rows would come under their own names",
            table=table.name,
            children=len(table.tree),
            remedy="Name the tables that inherit instead, or make it a partitioned table.",
        )
    for persistence, what in (("u", "unlogged"), ("t", "temporary")):
        if found := [each for each in relations(table) if each.persistence == persistence]:
            yield TableRefused(
                f"It is {what}, so that its changes are not logged"
                if found[0].oid == table.oid
                else f"Partitions are {what}, so that their changes are not logged",
                table=table.name,
                remedy=" ".join(f"ALTER TABLE {_name(each)} SET LOGGED;" for each in found)
                if persistence == "u"
                else "Leave it out.",
            )
    if foreign := [leaf for leaf in table.leaves if leaf.kind == "f"]:
        yield TableRefused(
            "Partitions are foreign tables, of which no changes are logged",
            table=table.name,
            partitions=len(foreign),
            remedy=" ".join(
                f"ALTER TABLE {_name(table)} DETACH PARTITION {_name(leaf)};" for leaf in foreign
            ),
        )


def _overlaps(tables: Sequence[CatalogTable]) -> Iterator[HeadraceError]:
    for table in tables:
        if above := [each.name for each in tables if table.oid in each.tree and each.kind == "p"]:
            yield TableRefused(
                "It is a partition of another table that is captured, and comes as part of that",
                table=table.name,
                other=above[0],
                remedy="Name one of the two; or two sources, with a publication each.",
            )


def _name(relation: CatalogTable | Leaf) -> str:
    return quoted(relation.namespace, relation.table)
