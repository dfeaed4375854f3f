"""
All problems that prevent an exact capture of a server's tables, found before it starts.

Nothing is changed on the server and nothing is raised. Each problem is an error with its remedy:
the statement or the setting, and whether that needs a restart. What users should only know is a
note.

Publishing a table could make the application's own statements fail (R23a). PostgreSQL refuses
every UPDATE and DELETE of a published table that has no replica identity, or whose row filter or
column list does not fit the identity. It does so when the application writes, not when the table
is published. So this is checked beforehand, for the table and for each of its partitions, since
the server looks at the identity of the partition that is written to.

A row filter must be a valid expression, and use only columns of the replica identity. Only the
server can parse an expression of its own language. So it is asked to, without running anything: a
query with the filter is parsed and discarded. To find out whether the filter uses other columns, it
is applied to a row that has only those of the identity (R23a). What only CREATE PUBLICATION
rejects, such as user-defined functions, is left to that statement: then it fails, and no statement
of the application does.

The user's privileges are checked as well, and each problem has the statements that grant them.

Long because every check is next to the statements that remedy what it finds.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import psycopg
from psycopg import sql
from psycopg.pq import DiagnosticField, ExecStatus

from headrace.capture.postgres.connection import speaking
from headrace.capture.postgres.options import PostgresOptions, TableOptions, listed, quoted
from headrace.capture.postgres.server.catalog import CatalogTable, Leaf, find
from headrace.capture.postgres.server.facts import (
    Rights,
    Server,
    SettingNote,
    notes_on,
    read_rights,
    read_server,
)
from headrace.errors import (
    HeadraceError,
    NoIdentity,
    NoRoom,
    NotPermitted,
    PublicationRefused,
    ServerRefused,
    SourceUnreachable,
    TableRefused,
)

# --- replica identity, and column lists -----------------------------------------------------------

LISTS_SINCE = 150000
"""Since then there are column lists and row filters."""

GENERATED_SINCE = 180000
"""Since then generated columns can be published, and an unpublished one makes FULL unusable."""

_WOULD_FAIL = "would make your updates and deletes fail"
"""What publishing a table without a usable identity would do (R23a)."""

_MOST_STATEMENTS = 20


@dataclass(frozen=True, slots=True)
class PublicationScope:
    """Which columns, rows and operations of a table are published, and by which version."""

    options: TableOptions
    publish: Sequence[str]
    version: int
    generated: bool = False
    """Whether stored generated columns are published."""

    @property
    def changing(self) -> tuple[str, ...]:
        """The published operations that need an identity."""
        return tuple(each for each in ("update", "delete") if each in self.publish)


def identity_problems(table: CatalogTable, asked: PublicationScope) -> Iterator[HeadraceError]:
    """Yield problems with the replica identity of a table or of its partitions."""
    if not asked.changing:
        return
    if not table.key:
        lost = table.identity_columns is None
        yield NoIdentity(
            "The table has REPLICA IDENTITY FULL but no primary key to identify its rows"
            if lost
            else f"The table has no primary key or replica identity; publishing it {_WOULD_FAIL}",
            remedy=_statements([table], _give_identity),
        )
        return
    partitions = table.leaves if table.kind == "p" else ()
    without = [leaf for leaf in partitions if leaf.identity_columns == ()]
    if without:
        yield NoIdentity(
            "Partitions have no primary key or replica identity;"
            f" publishing the table {_WOULD_FAIL}",
            partitions=len(without),
            remedy=_statements(without, _give_identity),
        )
    # If the root has FULL, the server declares all old rows as whole, even if a partition sends
    # only its key: nulls would be mistaken for values.
    if table.identity == "f":
        partly = [leaf for leaf in partitions if leaf.identity != "f" and leaf not in without]
        if partly:
            yield NoIdentity(
                "The table has REPLICA IDENTITY FULL, but some of its partitions do not",
                partitions=len(partly),
                remedy=_statements(partly, _give_full),
            )
    elif other := [leaf for leaf in partitions if leaf not in without and not _covers(table, leaf)]:
        yield NoIdentity(
            "Some partitions have another replica identity than the table",
            partitions=len(other),
            remedy=_statements(other, lambda leaf: _give_same(table, leaf)),
        )


_SETTING = "set publication.create to {} (in Python: create_publication={})"


def generated_problems(table: CatalogTable, asked: PublicationScope) -> Iterator[HeadraceError]:
    """Yield problems with generated columns that belong to an identity and are not published."""
    unsent = {column.name for column in table.columns if column.generated}
    if asked.generated:
        unsent = {column.name for column in table.columns if column.virtual}
    unsent -= set(asked.options.columns)
    if not asked.changing or not unsent:
        return
    relations: list[CatalogTable | Leaf] = [table, *table.leaves]
    full = [each for each in relations if each.identity_columns is None]
    if full and asked.version >= GENERATED_SINCE:
        yield NoIdentity(
            "REPLICA IDENTITY FULL includes generated columns, which are not published;"
            f" publishing the table {_WOULD_FAIL}",
            columns=sorted(unsent),
            remedy=_statements(_distinct(full), _give_key),
        )
    if keyed := unsent & set(table.key):
        yield NoIdentity(
            "The key has generated columns, which are not published",
            columns=sorted(keyed),
            remedy="Set REPLICA IDENTITY USING INDEX with an index that has no generated columns.",
        )


def list_problems(table: CatalogTable, asked: PublicationScope) -> Iterator[HeadraceError]:
    """Yield problems with the column list."""
    columns = asked.options.columns
    if not columns:
        if all(column.generated for column in table.columns):
            yield TableRefused("The table has no columns to capture", remedy="Leave the table out.")
        return
    if asked.version < LISTS_SINCE:
        yield ServerRefused(
            "Column lists need PostgreSQL 15 or newer",
            remedy="Leave the column list out, or upgrade the server.",
        )
    there = {column.name: column for column in table.columns}
    if unknown := sorted(set(columns) - set(there)):
        yield TableRefused(
            "The table has no such columns",
            columns=unknown,
            remedy=f"Choose from {listed(there)}.",
        )
    if twice := sorted({name for name in columns if columns.count(name) > 1}):
        yield TableRefused(
            "Columns are listed more than once",
            columns=twice,
            remedy="List each column once.",
        )
    unsendable = [
        name
        for name in columns
        if name in there
        and there[name].generated
        and (there[name].virtual or asked.version < GENERATED_SINCE)
    ]
    if unsendable:
        yield TableRefused(
            "These generated columns cannot be published: stored ones need PostgreSQL 18,"
            " virtual ones are never sent",
            columns=unsendable,
            remedy=f"Leave {listed(unsendable)} out of the table's columns.",
        )
    yield from _uncovered(table, asked)


def identity_sets(table: CatalogTable) -> list[tuple[str, ...]]:
    """Return the identities whose columns a row filter must not exceed; FULL has all columns."""
    found = {each.identity_columns for each in (table, *table.leaves)}
    return sorted(columns for columns in found if columns)


def _uncovered(table: CatalogTable, asked: PublicationScope) -> Iterator[HeadraceError]:
    relations: list[CatalogTable | Leaf] = [table, *table.leaves]
    full = [each for each in relations if each.identity_columns is None]
    if asked.changing and full:
        yield NoIdentity(
            "The table has REPLICA IDENTITY FULL, which does not allow a column list;"
            f" publishing the table {_WOULD_FAIL}",
            remedy="Leave the column list out, or run: " + _statements(_distinct(full), _give_key),
        )
    # Without the key's columns no row can be identified, even if only inserts are published.
    needed = set(table.key)
    if asked.changing:
        needed |= {name for each in relations for name in each.identity_columns or ()}
    if missing := sorted(needed - set(asked.options.columns)):
        yield NoIdentity(
            "The column list leaves out columns of the replica identity",
            columns=missing,
            remedy=f"Add {listed(missing)} to the table's columns.",
        )


def _covers(table: CatalogTable, leaf: Leaf) -> bool:
    columns = leaf.identity_columns
    return columns is None or set(table.key) <= set(columns)


def _distinct(relations: Sequence[CatalogTable | Leaf]) -> list[CatalogTable | Leaf]:
    """Return each table once: one without partitions is its own leaf."""
    return list({relation.oid: relation for relation in relations}.values())


def _statements(relations: Collection[CatalogTable | Leaf], repair: Callable[..., str]) -> str:
    made = [repair(relation) for relation in list(relations)[:_MOST_STATEMENTS]]
    more = len(relations) - len(made)
    return " ".join(made) + (f" The same for {more} more." if more else "")


def _name(relation: CatalogTable | Leaf) -> str:
    return quoted(relation.namespace, relation.table)


def _alter(relation: CatalogTable | Leaf, action: str) -> str:
    return f"ALTER TABLE {quoted(relation.namespace, relation.table)} {action};"


def _index_identity(
    relation: CatalogTable | Leaf, key: Collection[str] | None = None
) -> str | None:
    """Return a replica identity by a usable index, over the columns of `key` if that is given."""
    for index in relation.indexes:
        if index.immediate and index.strict and (key is None or set(index.columns) == set(key)):
            return "DEFAULT" if index.primary else f"USING INDEX {quoted(index.name)}"
    return None


def _give_identity(relation: CatalogTable | Leaf) -> str:
    """Return the statement that gives a table a replica identity."""
    if relation.identity != "f" and relation.primary_key:
        usable = any(index.primary and index.immediate for index in relation.indexes)
        return _alter(relation, f"REPLICA IDENTITY {'DEFAULT' if usable else 'FULL'}")
    if chosen := _index_identity(relation):
        return _alter(relation, f"REPLICA IDENTITY {chosen}")
    default = ", REPLICA IDENTITY DEFAULT" if relation.identity in "ni" else ""
    return _alter(relation, f"ADD PRIMARY KEY (…){default}")


def _give_full(relation: CatalogTable | Leaf) -> str:
    return _alter(relation, "REPLICA IDENTITY FULL")


def _give_key(relation: CatalogTable | Leaf) -> str:
    """Return the statement that replaces FULL by a key."""
    if chosen := _index_identity(relation):
        return _alter(relation, f"REPLICA IDENTITY {chosen}")
    return _alter(relation, "ADD PRIMARY KEY (…), REPLICA IDENTITY DEFAULT")


def _give_same(table: CatalogTable, leaf: Leaf) -> str:
    chosen = _index_identity(leaf, table.key)
    return _alter(leaf, f"REPLICA IDENTITY {chosen or 'FULL'}")


# --- row filters ----------------------------------------------------------------------------------

_LOCK_TIMEOUT = "2s"
"""Parsing waits for a session that alters the table, and the application's writes wait for us."""

_LOCKED = "55P03"
_NO_COLUMN = frozenset(["42703", "42P01"])
"""Undefined column; undefined table, if the filter qualifies a column with schema and table."""


@dataclass(frozen=True, slots=True)
class _Objection:
    state: str
    reason: str


def filter_problems(
    connection: psycopg.Connection[Any], table: CatalogTable, asked: PublicationScope
) -> Iterator[HeadraceError]:
    """Yield problems with a table's row filter."""
    if not (where := asked.options.where):
        return
    if asked.version < LISTS_SINCE:
        yield ServerRefused(
            "Row filters need PostgreSQL 15 or newer",
            remedy="Leave the row filter out, or upgrade the server.",
        )
        return
    whole = sql.SQL("ONLY {}").format(sql.Identifier(table.namespace, table.table))
    if table.kind == "p":
        whole = sql.SQL("{}").format(sql.Identifier(table.namespace, table.table))
    if objection := _objection(connection, whole, where):
        yield _refused(objection)
        return
    if not asked.changing:
        return
    for columns in identity_sets(table):
        narrow = sql.SQL("(SELECT {} FROM {}) AS {}").format(
            sql.SQL(", ").join(map(sql.Identifier, columns)), whole, sql.Identifier(table.table)
        )
        if objection := _objection(connection, narrow, where):
            yield (
                NoIdentity(
                    "The row filter uses columns that are not in the replica identity;"
                    f" publishing the table {_WOULD_FAIL}",
                    identity=listed(columns),
                    remedy=f"Use only {listed(columns)} in the row filter, without the schema's"
                    " name, or give the table a REPLICA IDENTITY that includes the other columns.",
                )
                if objection.state in _NO_COLUMN
                else _refused(objection)
            )
            return


def _refused(objection: _Objection) -> HeadraceError:
    if objection.state == _LOCKED:
        return SourceUnreachable(
            "The table is locked, so its row filter could not be checked",
            remedy="Try again when the statement that alters the table has finished.",
        )
    return TableRefused(
        "The row filter is not a valid condition on this table",
        state=objection.state,
        reason=objection.reason,
        remedy="Write what would follow WHERE, using only columns of this table.",
    )


def _objection(
    connection: psycopg.Connection[Any], rows: sql.Composed, where: str
) -> _Objection | None:
    """Return the server's objection to the filter over these rows, if it has one."""
    # A text can close the parenthesis around it and open another one, or do so with a CASE, but
    # not both: a text that is valid in both queries is one expression.
    for shape in ("SELECT 1 FROM {} WHERE ({}\n)", "SELECT CASE WHEN {1}\n THEN 1 END FROM {0}"):
        query = sql.SQL(shape).format(rows, sql.SQL(where))
        if objection := _parse(connection, query.as_bytes(connection)):
            return objection
    return None


def _parse(connection: psycopg.Connection[Any], query: bytes) -> _Objection | None:
    """Have the server parse one statement; it is neither planned nor run."""
    with connection.transaction(force_rollback=True):
        connection.execute(f"SET LOCAL lock_timeout = '{_LOCK_TIMEOUT}'")
        result = connection.pgconn.prepare(b"", query)
        if result.status != ExecStatus.COMMAND_OK:
            state = result.error_field(DiagnosticField.SQLSTATE) or b"08006"
            reason = result.error_field(DiagnosticField.MESSAGE_PRIMARY) or b""
            return _Objection(state.decode(), reason.decode(errors="replace"))
        if connection.pgconn.describe_prepared(b"").nparams:
            return _Objection("42P02", "parameters are not allowed")
    return None


# --- the user's privileges ------------------------------------------------------------------------


def role_problems(server: Server, options: PostgresOptions) -> Iterator[HeadraceError]:
    """Yield privileges that the user lacks on the server or on the publication."""
    user = quoted(server.user)
    if not server.replicates:
        managed = "rds.logical_replication" in server.settings
        yield NotPermitted(
            "The user does not have the REPLICATION attribute",
            user=server.user,
            remedy=f"GRANT rds_replication TO {user};"
            if managed
            else f"ALTER ROLE {user} REPLICATION;",
        )
    if not options.create_publication or server.standby:
        if not options.create_publication and server.publication_owner is None:
            yield PublicationRefused(
                "The publication does not exist, and Headrace may not create it",
                publication=options.publication,
                remedy=f"CREATE PUBLICATION {quoted(options.publication)} FOR TABLE …"
                " WITH (publish_via_partition_root = true); or"
                f" {_SETTING.format('true', 'True')}.",
            )
        return
    if server.publication_owner is None and not server.creates:
        yield NotPermitted(
            "The user may not create publications in this database",
            user=server.user,
            remedy=f"GRANT CREATE ON DATABASE {quoted(server.database)} TO {user};",
        )
    elif server.publication_owner is not None and not server.owns_publication:
        yield NotPermitted(
            "The user does not own the publication, and so cannot alter it",
            user=server.user,
            publication=options.publication,
            remedy=f"ALTER PUBLICATION {quoted(options.publication)} OWNER TO {user};",
        )


def right_problems(
    table: CatalogTable, options: PostgresOptions, server: Server, rights: dict[int, Rights]
) -> Iterator[HeadraceError]:
    """Yield privileges that the user lacks on a table and its partitions."""
    found = [rights[each.oid] for each in relations(table) if each.oid in rights]
    user = quoted(server.user)
    if schemas := sorted({each.namespace for each in found if not each.enters}):
        yield NotPermitted(
            "The user has no USAGE privilege on the table's schema",
            user=server.user,
            remedy=f"GRANT USAGE ON SCHEMA {', '.join(map(quoted, schemas))} TO {user};",
        )
    if unread := [each for each in found if not each.reads]:
        # Partitions are copied one by one, and privileges on the table do not extend to them.
        names = ", ".join(quoted(each.namespace, each.table) for each in unread)
        what = "the table" if unread[0].oid == table.oid else "partitions of the table"
        yield NotPermitted(
            f"The user has no SELECT privilege on {what}",
            user=server.user,
            remedy=f"GRANT SELECT ON {names} TO {user};",
        )
    if hidden := [each for each in found if each.hides]:
        forced = [each for each in hidden if each.forced and each.owns]
        yield NotPermitted(
            "Row-level security would hide rows of the table from the copy",
            user=server.user,
            remedy=" ".join(
                f"ALTER TABLE {quoted(each.namespace, each.table)} NO FORCE ROW LEVEL SECURITY;"
                for each in forced
            )
            if len(forced) == len(hidden)
            else f"ALTER ROLE {user} BYPASSRLS;",
        )
    own = rights.get(table.oid)
    adds = options.create_publication and table.oid not in server.published
    if own is not None and adds and not own.owns:
        yield NotPermitted(
            "The user does not own the table, and so cannot add the table to a publication",
            user=server.user,
            owner=own.owner,
            remedy=f"GRANT {quoted(own.owner)} TO {user}; or let the owner create the publication,"
            f" and {_SETTING.format('false', 'False')}.",
        )


def relations(table: CatalogTable) -> list[CatalogTable | Leaf]:
    """Return the table and its partitions, each once."""
    return [table, *(leaf for leaf in table.leaves if leaf.oid != table.oid)]


# --- all checks together --------------------------------------------------------------------------

OLDEST, NEWEST = 14, 18
STANDBY_SINCE = 160000
FAILOVER_SINCE = 170000
_FIRST_USER_OID = 16384
"""Smaller oids belong to system tables, which cannot be published."""

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
    """The result of the checks."""

    problems: tuple[HeadraceError, ...]
    """All problems that must be fixed first."""

    notes: tuple[SettingNote, ...] = ()
    """What users should know."""

    server: Server | None = None
    """None: the server could not be queried."""


def check(
    connection: psycopg.Connection[Any],
    options: PostgresOptions,
    tables: Sequence[CatalogTable | str],
    *,
    generated: bool = False,
) -> list[HeadraceError]:
    """Return all problems that prevent the capture of these tables; see `examine`."""
    return list(examine(connection, options, tables, generated=generated).problems)


def examine(
    connection: psycopg.Connection[Any],
    options: PostgresOptions,
    tables: Sequence[CatalogTable | str],
    *,
    generated: bool = False,
) -> Report:
    """
    Check the server, the user's privileges and the tables.

    A table may be given by its name; if it does not exist, that is a problem like others.
    `generated`: stored generated columns are published, as PostgreSQL 18 can.
    If the connection breaks meanwhile, that is one more problem.
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
        f"PostgreSQL {version // 10000} is not supported (supported: {OLDEST} to {NEWEST})",
        version=version,
        remedy=f"Upgrade the server to PostgreSQL {OLDEST} or newer."
        if version // 10000 < OLDEST
        else "Upgrade Headrace to a release that supports this version of PostgreSQL.",
    )


def _setting_problems(server: Server, options: PostgresOptions) -> Iterator[HeadraceError]:
    if (level := server.settings["wal_level"]) != "logical":
        yield ServerRefused(
            f"wal_level is '{level}'; logical replication needs 'logical'",
            wal_level=level,
            remedy=_wal_level_remedy(server),
        )
    if server.standby and server.version < STANDBY_SINCE:
        yield ServerRefused(
            "The server is a standby; capturing from a standby needs PostgreSQL 16 or newer",
            version=server.version,
            remedy="Point the source at the primary.",
        )
    elif server.standby and options.create_publication:
        yield ServerRefused(
            "The server is a standby, where publications cannot be created or altered",
            publication=options.publication,
            remedy="Create the publication on the primary, and"
            f" {_SETTING.format('false', 'False')}:"
            f" CREATE PUBLICATION {quoted(options.publication)} FOR TABLE …"
            " WITH (publish_via_partition_root = true);",
        )
    if options.failover and server.version < FAILOVER_SINCE:
        yield ServerRefused(
            "Failover slots need PostgreSQL 17 or newer",
            version=server.version,
            remedy="Set failover to false, or upgrade the server.",
        )


def _wal_level_remedy(server: Server) -> str:
    managed = {"rds.logical_replication": "1", "cloudsql.logical_decoding": "on"}
    for setting, value in managed.items():
        if setting in server.settings:
            return f"Set {setting} to {value} in the instance's parameters, and restart it."
    return "ALTER SYSTEM SET wal_level = 'logical'; then restart the server."


def _room_problems(server: Server, options: PostgresOptions) -> Iterator[HeadraceError]:
    most = server.number("max_replication_slots") or 0
    # A temporary slot ends with its connection, so only a permanent slot is reused.
    reusable = server.own_slot and options.slot_mode == "stateful"
    if server.slots >= most and not reusable:
        yield NoRoom(
            f"All {server.slots} replication slots of the server are in use",
            slots=server.slots,
            unread=list(server.idle_slots),
            remedy=f"ALTER SYSTEM SET max_replication_slots = {server.slots + 4}; then restart"
            " the server; or drop an unused slot: SELECT pg_drop_replication_slot('…');",
        )
    most = server.number("max_wal_senders") or 0
    if server.senders - server.own_sender >= most:
        yield NoRoom(
            f"All {server.senders} WAL senders of the server are in use",
            senders=server.senders,
            remedy=f"ALTER SYSTEM SET max_wal_senders = {server.senders + 4}; then restart the"
            " server; or stop a replication client that is not needed.",
        )


def _table_problems(
    connection: psycopg.Connection[Any],
    table: CatalogTable,
    options: PostgresOptions,
    server: Server,
    rights: dict[int, Rights],
    generated: bool,
) -> Iterator[HeadraceError]:
    asked = PublicationScope(
        options.asked_of(table.name), options.publish, server.version, generated
    )
    checks = (
        right_problems(table, options, server, rights),
        identity_problems(table, asked),
        generated_problems(table, asked),
        list_problems(table, asked),
        filter_problems(connection, table, asked),
    )
    # If it cannot be captured at all, the other checks would only repeat that.
    for problem in [*_kind_problems(table)] or chain.from_iterable(checks):
        problem.facts = {"table": table.name, **problem.facts}
        yield problem


def kind_problem(table: CatalogTable) -> HeadraceError | None:
    """Return why a table cannot be captured at all, whatever is published; None: it can be."""
    problem = next(_kind_problems(table), None)
    if problem is not None:
        problem.facts = {"table": table.name, **problem.facts}
    return problem


def _kind_problems(table: CatalogTable) -> Iterator[HeadraceError]:
    if table.kind in _KINDS:
        yield TableRefused(
            f"{table.name} is {_KINDS[table.kind]}; its changes are not in the WAL",
            remedy="Name the tables that it reads instead."
            if table.kind in "vm"
            else "Leave it out.",
        )
        return
    if table.oid < _FIRST_USER_OID:
        yield TableRefused(f"{table.name} is a system table", remedy="Leave it out.")
        return
    if table.tree and table.kind != "p":
        yield TableRefused(
            "Other tables inherit from this table, and are published under their own names",
            children=len(table.tree),
            remedy="Name the inheriting tables instead, or make this a partitioned table.",
        )
    for persistence, what in (("u", "unlogged"), ("t", "temporary")):
        if found := [each for each in relations(table) if each.persistence == persistence]:
            yield TableRefused(
                f"The table is {what}: its changes are not in the WAL"
                if found[0].oid == table.oid
                else f"Partitions are {what}: their changes are not in the WAL",
                remedy=" ".join(_alter(each, "SET LOGGED") for each in found)
                if persistence == "u"
                else "Leave it out.",
            )
    if foreign := [leaf for leaf in table.leaves if leaf.kind == "f"]:
        yield TableRefused(
            "Partitions are foreign tables: their changes are not in the WAL",
            partitions=len(foreign),
            remedy=" ".join(_alter(table, f"DETACH PARTITION {_name(leaf)}") for leaf in foreign),
        )


def _overlaps(tables: Sequence[CatalogTable]) -> Iterator[HeadraceError]:
    for table in tables:
        if above := [each.name for each in tables if table.oid in each.tree and each.kind == "p"]:
            yield TableRefused(
                f"{table.name} is a partition of {above[0]}, which is captured, too",
                table=table.name,
                other=above[0],
                remedy="Name only one of the two, or use two sources with a publication each.",
            )
