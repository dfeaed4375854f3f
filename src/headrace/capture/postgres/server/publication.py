"""
The publication: which changes of which tables the server sends.

A publication that we created has a comment that says so, and is kept in line with the options.
Any other publication belongs to another user: it is read and never altered. It is altered in one
transaction, which gives up quickly if it does not get its locks, so that the application's
statements do not queue up.

What a transaction wrote before its table was published is never sent. If it commits after a copy
has begun, its rows are neither in the copy nor in the stream. So after a publication was altered,
we wait for the transactions that are writing to the table at that time (R13). They are found by
their locks.

Long because what a publication has is compared and altered by the same rules, for every version.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import psycopg
from psycopg.rows import class_row

from headrace.capture.postgres.options import PostgresOptions, TableOptions, listed, quoted, written
from headrace.capture.postgres.server.catalog import CatalogTable
from headrace.errors import (
    HeadraceError,
    NotPermitted,
    PublicationRefused,
    ServerRefused,
    SourceUnreachable,
)

__all__ = [
    "Alterations",
    "Locker",
    "PublicationResult",
    "PublishedColumns",
    "differences",
    "drop",
    "ensure",
    "lockers",
    "missing_changes",
    "oids_of",
    "published",
    "published_columns",
    "verify",
    "wait_for_lockers",
]


# --- transactions that have written to a table and are still open ---------------------------------

WRITING = ("RowExclusiveLock", "ShareRowExclusiveLock", "ExclusiveLock", "AccessExclusiveLock")
"""
Lock modes of transactions that may have written to the table, truncated or rewritten it.
ShareUpdateExclusiveLock and ShareLock are left out: VACUUM and CREATE INDEX hold them,
perhaps for hours, and a transaction that writes rows also has RowExclusiveLock.
"""

EVERY = (*WRITING, "ShareUpdateExclusiveLock", "ShareLock")
"""Lock modes that prevent a table from being published."""

POLL_SECONDS = (0.01, 0.5)
"""The first and the longest pause between two queries."""


@dataclass(frozen=True, slots=True)
class Locker:
    """A transaction that holds a lock."""

    transaction: str
    """Its virtual transaction id, unique as long as the server runs."""

    pid: int | None
    """None: it is prepared, and belongs to no session."""

    user: str | None
    application: str | None
    age: float | None
    """Seconds since it began or was prepared; None: we lack the privilege to see it."""

    gid: str | None
    """The name under which it was prepared."""


def lockers(
    connection: psycopg.Connection[Any], oids: Sequence[int], modes: Sequence[str] = WRITING
) -> list[Locker]:
    """Return the transactions with a lock on these tables in one of `modes`, the oldest first."""
    # A prepared transaction has no pid in pg_locks. Only the lock that it holds on itself has its
    # id; the locks of its savepoints look the same, but are not in pg_prepared_xacts.
    query = """
        SELECT DISTINCT l.virtualtransaction AS transaction, l.pid,
               coalesce(a.usename, p.owner)::text AS user, a.application_name AS application,
               extract(epoch FROM clock_timestamp() - coalesce(a.xact_start, p.prepared))::float8
                   AS age,
               p.gid
        FROM pg_catalog.pg_locks l
        LEFT JOIN pg_catalog.pg_stat_activity a ON a.pid = l.pid
        LEFT JOIN (SELECT x.virtualtransaction, p.*
                   FROM pg_catalog.pg_prepared_xacts p
                   JOIN pg_catalog.pg_locks x
                     ON x.locktype = 'transactionid' AND x.transactionid = p.transaction
                    AND x.granted) p
               ON l.pid IS NULL AND p.virtualtransaction = l.virtualtransaction
        WHERE l.locktype = 'relation' AND l.granted AND l.mode = ANY(%s::text[])
          AND l.database = (SELECT oid FROM pg_catalog.pg_database
                            WHERE datname = current_database())
          AND l.relation = ANY(%s::oid[]) AND l.pid IS DISTINCT FROM pg_backend_pid()
        ORDER BY age DESC NULLS LAST
    """
    with connection.cursor(row_factory=class_row(Locker)) as cursor:
        return cursor.execute(query, (list(modes), list(oids))).fetchall()


class Writers:
    """The transactions that have a table locked at the first query, and are to be waited for."""

    def __init__(self) -> None:
        self._first: frozenset[str] | None = None

    def left(self, connection: psycopg.Connection[Any], oids: Sequence[int]) -> list[Locker]:
        """Return those of them that have not ended; later ones do not count."""
        found = lockers(connection, oids)
        if self._first is None:
            self._first = frozenset(locker.transaction for locker in found)
        return [locker for locker in found if locker.transaction in self._first]


def wait_for_lockers(
    connection: psycopg.Connection[Any],
    oids: Sequence[int],
    patience: float | None = None,
    on_wait: Callable[[Sequence[Locker], float], None] | None = None,
) -> None:
    """
    Return when all transactions that hold such a lock now have ended, however they end.

    Later transactions are not waited for: what they write is published. Before every pause,
    `on_wait` is called with the open transactions and the seconds so far; it may raise to
    give up. After `patience` seconds `SourceUnreachable` is raised.
    """
    started = time.monotonic()
    writers = Writers()
    pause, longest = POLL_SECONDS
    while left := writers.left(connection, oids):
        waited = time.monotonic() - started
        if patience is not None and waited >= patience:
            raise SourceUnreachable(
                "Transactions that write to the table are still open",
                pids=[found.pid for found in left if found.pid is not None],
                prepared=[found.gid for found in left if found.gid is not None],
                waited=round(waited, 1),
                remedy="Commit them or roll them back, including prepared ones.",
            )
        if on_wait is not None:
            on_wait(left, waited)
        time.sleep(pause)
        pause = min(pause * 2, longest)


# --- a publication as the server has it -----------------------------------------------------------

FILTERS_SINCE = 150000
"""Since then there are row filters, column lists and publications of whole schemas."""

LOCK_MILLISECONDS = 100
"""How long reading a table's columns may wait for a session that alters it."""


@dataclass(frozen=True, slots=True)
class PublishedTable:
    """A table that a publication lists by name."""

    namespace: str
    table: str
    columns: tuple[str, ...]
    """Its column list; empty: it has none."""

    where: str
    """Its row filter as the server prints it; empty: it has none."""


@dataclass(frozen=True, slots=True)
class Publication:
    """A publication, with the tables that it lists by name; others are not included here."""

    name: str
    comment: str
    operations: frozenset[str]
    via_root: bool
    entries: Mapping[int, PublishedTable]
    """By the table's oid."""


@dataclass(frozen=True, slots=True)
class PublishedColumns:
    """The published columns and rows of a table, however it got into the publication."""

    columns: tuple[str, ...]
    where: str
    """Empty: all rows."""


def read(connection: psycopg.Connection[Any], name: str) -> Publication | None:
    """Return the publication with this name, if it exists."""
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


def published(connection: psycopg.Connection[Any], name: str) -> dict[int, PublishedColumns]:
    """Return what is published, by the table's oid; baselines read exactly this (R18)."""
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
    return {oid: PublishedColumns(tuple(columns), where) for oid, columns, where in found}


def published_columns(
    connection: psycopg.Connection[Any], publication: str, table: CatalogTable
) -> tuple[str, ...]:
    """Return a table's published columns; raises `PublicationRefused` if it is not published."""
    sent = published(connection, publication).get(table.oid)
    if sent is None:
        raise PublicationRefused(
            "The publication does not include the table", publication=publication, table=table.name
        )
    return sent.columns


def same_filter(
    connection: psycopg.Connection[Any], table: CatalogTable, asked: str, present: str
) -> bool:
    """Whether a filter as the user wrote it is the same as one that the server printed."""
    if not asked or not present:
        return asked == present
    return asked == present or _in_server_words(connection, table, asked) == present


def _in_server_words(connection: psycopg.Connection[Any], table: CatalogTable, where: str) -> str:
    # The server prints only expressions that it has stored. So the filter is stored: as a check
    # constraint of an empty temporary table with the same columns, which is rolled back.
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
        # Without the privilege to create temporary tables, only the texts can be compared.
        return where
    except (psycopg.ProgrammingError, psycopg.DataError) as error:
        raise unreadable(error, table=table.name) from None
    return "" if row is None else str(row[0])


def unreadable(error: psycopg.Error, **facts: object) -> PublicationRefused:
    """Return the error for a column list or filter that the server rejects."""
    # The server's text is left out, because it can contain the values in the filter.
    return PublicationRefused(
        "The server rejected a row filter or a column list",
        **facts,
        sqlstate=error.sqlstate,
        remedy="Check the names and types in where and columns of the tables. A row filter may use"
        " only the table's own columns and PostgreSQL's built-in functions and types.",
    )


def parenthesised(where: str) -> str:
    """Return a filter in parentheses, for use in a statement."""
    return f"({where}\n)"  # the filter may end in a comment


def needs_newer(connection: psycopg.Connection[Any]) -> ServerRefused | None:
    """Return the error if the server is too old for row filters and column lists."""
    version = connection.info.server_version
    if version >= FILTERS_SINCE:
        return None
    return ServerRefused(
        "Row filters and column lists need PostgreSQL 15 or newer",
        version=version // 10000,
        remedy="Leave out where and columns of the tables, or use a newer server.",
    )


def _entries(connection: psycopg.Connection[Any], publication: int) -> dict[int, PublishedTable]:
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
        oid: PublishedTable(namespace, table, tuple(columns), where)
        for oid, namespace, table, columns, where in found
    }


# --- keeping a publication in line with the options -----------------------------------------------

MARK = "headrace: "
"""How the comment of a publication of ours begins; the source's name and its slot follow."""

LOCK_SECONDS = (0.1, 0.2, 0.5, 1.0, 2.0)
"""
How long each attempt may wait for its locks. The last is longer than one second, after
which autovacuum is cancelled in favour of a session that waits for its lock.
"""

HARD_LOCK_SECONDS = 0.2
"""The same if writers queue up while we wait."""

_REPAIRED = {14: 140018, 15: 150013, 16: 160009, 17: 170005}
"""Since then, a running transaction no longer keeps an outdated view of a publication (R13)."""


@dataclass(frozen=True, slots=True)
class PublicationResult:
    """What was changed in a publication; tables by the names that the user gave them."""

    created: bool = False
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    """Tables of which other rows, columns or operations are sent now: they need a baseline."""

    unsent: tuple[str, ...] = ()
    """Operations that were requested, and that a publication of another user leaves out."""

    transaction: int | None = field(default=None, compare=False)
    """The transaction that altered it, as its rows in the catalog have it; None: there is none."""

    @property
    def baselines(self) -> tuple[str, ...]:
        """The tables that need a new baseline, after waiting for their lockers (R13)."""
        return self.added + self.changed


class Alterations:
    """Our own alterations of a publication: they are no reason to copy tables again."""

    def __init__(self) -> None:
        self._before: dict[str, str | None] = {}

    def add(self, transaction: int | None, before: str | None = None) -> None:
        """
        Remember a transaction; None: nothing was altered.

        `before` is the row of the catalog that it replaced. By default, the tables that it
        concerns are copied anyway, whatever was there.
        """
        if transaction is not None:
            self._before[str(transaction)] = before

    def explain(self, before: str, after: str) -> bool:
        """Whether they alone made this row of the catalog, an oid and an xmin, of that one."""
        made: str | None = after
        while made is not None and made != before:
            xmin = made.rpartition(".")[2]
            if xmin not in self._before:
                return False
            made = self._before[xmin]
        return True


@dataclass(frozen=True, slots=True)
class _Plan:
    statements: tuple[str, ...]
    outcome: PublicationResult
    locked: tuple[CatalogTable, ...] = ()
    """Tables that must be locked against writers first, on servers with the defect of R13."""


def ensure(
    connection: psycopg.Connection[Any],
    options: PostgresOptions,
    tables: Sequence[CatalogTable],
    on_wait: Callable[[], None] | None = None,
    waits: Sequence[float] = (),
) -> PublicationResult:
    """
    Bring the publication in line with the options, and return what was changed.

    The connection is in autocommit. A publication that is not ours is only verified, as is
    every one if `create_publication` is off. If the locks are not available, the attempts
    have the timeouts in `waits`, `on_wait` is called between them, and after the last
    `SourceUnreachable` is raised.
    """
    if not tables:
        raise PublicationRefused(
            "No tables to publish",
            publication=options.publication,
            remedy="Name at least one table to capture.",
        )
    _check_version(connection, options, tables)
    waits = waits or LOCK_SECONDS
    for attempt, seconds in enumerate(waits):
        if attempt:
            time.sleep(waits[attempt - 1])
            if on_wait is not None:
                on_wait()
        present = read(connection, options.publication)
        if not options.create_publication or (present and not is_ours(present, options)):
            return verify(connection, options, tables)
        try:
            plan = _plan(connection, options, tables, present)
            transaction = _apply(connection, options, plan, seconds)
        except (
            psycopg.errors.LockNotAvailable,
            psycopg.errors.DeadlockDetected,
            psycopg.errors.DuplicateObject,  # another session did the same just before us
        ):
            continue
        return replace(plan.outcome, transaction=transaction)
    raise _locked(connection, options, tables)


def missing_changes(
    connection: psycopg.Connection[Any], options: PostgresOptions, tables: Sequence[CatalogTable]
) -> PublicationResult:
    """Return what `ensure` would change now, without changing it."""
    present = read(connection, options.publication)
    if not options.create_publication or (present and not is_ours(present, options)):
        return verify(connection, options, tables)
    return _plan(connection, options, tables, present).outcome


def verify(
    connection: psycopg.Connection[Any], options: PostgresOptions, tables: Sequence[CatalogTable]
) -> PublicationResult:
    """Raise the first of the `differences`; if there are none, return the unsent operations."""
    if found := differences(connection, options, tables):
        raise found[0]
    present = read(connection, options.publication)
    sent = present.operations if present else frozenset()
    return PublicationResult(unsent=tuple(name for name in options.publish if name not in sent))


def differences(
    connection: psycopg.Connection[Any], options: PostgresOptions, tables: Sequence[CatalogTable]
) -> list[HeadraceError]:
    """
    Return how a publication differs from the options; it is not altered.

    It may have more tables. It may leave out truncates: the preflight checks warn of that.
    """
    name = options.publication
    present = read(connection, name)
    if present is None:
        statement = _creation(options, tables)
        return [_refused(options, "The publication does not exist", f"Run {statement};")]
    alter = f"ALTER PUBLICATION {quoted(name)}"
    found: list[HeadraceError] = []
    asked, sent = set(options.publish), present.operations
    if asked - sent - {"truncate"} or sent - asked:
        found.append(
            _refused(
                options,
                "The publication sends other operations than configured",
                f"Run {alter} SET (publish = '{', '.join(options.publish)}');"
                " or set publish to what it sends.",
                operations=sorted(sent),
            )
        )
    if not present.via_root and any(table.kind == "p" for table in tables):
        found.append(
            _refused(
                options,
                "The publication sends partitions under their own names",
                f"Run {alter} SET (publish_via_partition_root = true);",
            )
        )
        return found  # its columns and rows of partitioned tables cannot be compared like this
    everything = published(connection, name)
    missing = [table for table in tables if table.oid not in everything]
    if missing:
        clauses = ", ".join(_clause(table, _asked(options, table)) for table in missing)
        found.append(
            _refused(
                options,
                "The publication does not include all tables",
                f"Run {alter} ADD TABLE {clauses};",
                tables=[table.name for table in missing],
            )
        )
    for table in tables:
        if table.oid in everything:
            found += _table_differences(connection, options, table, everything[table.oid])
    return found


def drop(connection: psycopg.Connection[Any], options: PostgresOptions) -> bool:
    """Drop the publication if it is ours; False: it does not exist, or is not ours."""
    present = read(connection, options.publication)
    if present is None or not is_ours(present, options):
        return False
    connection.execute(f"DROP PUBLICATION IF EXISTS {quoted(present.name)}".encode())
    return True


def is_ours(publication: Publication, options: PostgresOptions) -> bool:
    """
    Whether we created it, for this source and this reader of it.

    Two readers of one database with the same source name have a slot each. Without this check,
    one would remove tables from the publication that the other captures.
    """
    mark = _mark(options)
    return publication.comment == mark or publication.comment.startswith(f"{mark};")


def _mark(options: PostgresOptions) -> str:
    return f"{MARK}{options.name}, slot {options.slot}"


def oids_of(table: CatalogTable) -> tuple[int, ...]:
    """Return the oids of the table and all its partitions, on which its lockers have locks."""
    below = table.tree if table.kind == "p" else frozenset[int]()
    return (table.oid, *sorted(below))


def _plan(
    connection: psycopg.Connection[Any],
    options: PostgresOptions,
    tables: Sequence[CatalogTable],
    present: Publication | None,
) -> _Plan:
    name = quoted(options.publication)
    if present is None:
        comment = f"{_mark(options)}; kept in step with the tables it captures"
        literal = "'" + comment.replace("'", "''") + "'"
        return _Plan(
            (_creation(options, tables), f"COMMENT ON PUBLICATION {name} IS {literal}"),
            PublicationResult(created=True, added=tuple(table.name for table in tables)),
        )
    settings = _settings(options, tables, present)
    wanted = {table.oid: table for table in tables}
    added = [table for table in tables if table.oid not in present.entries]
    altered = [
        table
        for table in tables
        if (entry := present.entries.get(table.oid)) is not None
        and not _as_asked(connection, table, _asked(options, table), entry)
    ]
    removed = [entry for oid, entry in present.entries.items() if oid not in wanted]
    # No statement alters how a table is published. It is dropped and added in one transaction,
    # so that no other session sees the publication without it.
    going = [quoted(entry.namespace, entry.table) for entry in removed]
    going += [quoted(table.namespace, table.table) for table in altered]
    coming = [_clause(table, _asked(options, table)) for table in (*altered, *added)]
    statements = []
    if settings:
        statements.append(f"ALTER PUBLICATION {name} SET ({', '.join(settings)})")
    if going:
        only = ", ".join(f"ONLY {table}" for table in going)
        statements.append(f"ALTER PUBLICATION {name} DROP TABLE {only}")
    if coming:
        statements.append(f"ALTER PUBLICATION {name} ADD TABLE {', '.join(coming)}")
    there = [table for table in tables if table.oid in present.entries]
    changed = there if settings else altered
    return _Plan(
        tuple(statements),
        PublicationResult(
            added=tuple(table.name for table in added),
            removed=tuple(written(entry.namespace, entry.table) for entry in removed),
            changed=tuple(table.name for table in changed),
        ),
        (*added, *changed) if _has_defect(connection) else (),
    )


def _apply(
    connection: psycopg.Connection[Any], options: PostgresOptions, plan: _Plan, seconds: float
) -> int | None:
    if not plan.statements:
        return None
    if plan.locked:
        seconds = min(seconds, HARD_LOCK_SECONDS)
    try:
        with connection.transaction():
            connection.execute(f"SET LOCAL lock_timeout = {round(seconds * 1000)}".encode())
            for table in sorted(plan.locked, key=lambda table: table.oid):
                name = quoted(table.namespace, table.table)
                connection.execute(f"LOCK TABLE {name} IN SHARE ROW EXCLUSIVE MODE".encode())
            for statement in plan.statements:
                connection.execute(statement.encode())
            return current_transaction(connection)
    except psycopg.errors.InsufficientPrivilege:
        # Without the comment: a publication that another user creates is not ours.
        shown = plan.statements[:1] if plan.outcome.created else plan.statements
        raise NotPermitted(
            "The user may not create or alter the publication",
            publication=options.publication,
            remedy=f"Run as the owner of the tables: {'; '.join(shown)};",
        ) from None
    except (psycopg.errors.UndefinedTable, psycopg.errors.DuplicateObject):
        raise
    except (psycopg.ProgrammingError, psycopg.DataError, psycopg.NotSupportedError) as error:
        raise unreadable(error, publication=options.publication) from None


def current_transaction(connection: psycopg.Connection[Any]) -> int:
    """Return the number of the open transaction, as the rows that it writes have it."""
    row = connection.execute("SELECT pg_current_xact_id()::xid::text::int8").fetchone()
    assert row is not None
    return int(row[0])


def _creation(options: PostgresOptions, tables: Sequence[CatalogTable]) -> str:
    clauses = ", ".join(_clause(table, _asked(options, table)) for table in tables)
    # Via the root even if no table is partitioned: if one is added later, the setting need not
    # change, which would affect the others.
    return (
        f"CREATE PUBLICATION {quoted(options.publication)} FOR TABLE {clauses}"
        f" WITH (publish = '{', '.join(options.publish)}', publish_via_partition_root = true)"
    )


def _settings(
    options: PostgresOptions, tables: Sequence[CatalogTable], present: Publication
) -> list[str]:
    settings = []
    if present.operations != set(options.publish):
        settings.append(f"publish = '{', '.join(options.publish)}'")
    if not present.via_root and any(table.kind == "p" for table in tables):
        settings.append("publish_via_partition_root = true")
    return settings


def _asked(options: PostgresOptions, table: CatalogTable) -> TableOptions:
    return options.tables.get(table.name, TableOptions())


def _clause(table: CatalogTable, asked: TableOptions) -> str:
    # ONLY: inheriting tables are separate tables here.
    columns = f" ({listed(asked.columns)})" if asked.columns else ""
    where = f" WHERE {parenthesised(asked.where)}" if asked.where else ""
    return f"ONLY {quoted(table.namespace, table.table)}{columns}{where}"


def _as_asked(
    connection: psycopg.Connection[Any],
    table: CatalogTable,
    asked: TableOptions,
    entry: PublishedTable,
) -> bool:
    return set(asked.columns) == set(entry.columns) and same_filter(
        connection, table, asked.where, entry.where
    )


def _table_differences(
    connection: psycopg.Connection[Any],
    options: PostgresOptions,
    table: CatalogTable,
    sent: PublishedColumns,
) -> list[HeadraceError]:
    asked = _asked(options, table)
    computed = {column.name for column in table.columns if column.generated}
    if asked.columns:
        same_columns = set(asked.columns) == set(sent.columns)
    else:
        every = {column.name for column in table.columns}
        same_columns = every - computed == set(sent.columns) - computed
    name = quoted(options.publication)
    remedy = (
        f"Run BEGIN; ALTER PUBLICATION {name} DROP TABLE"
        f" ONLY {quoted(table.namespace, table.table)};"
        f" ALTER PUBLICATION {name} ADD TABLE {_clause(table, asked)}; COMMIT;"
        " or set columns and where to what it has."
    )
    found: list[HeadraceError] = []
    if not same_columns:
        message = "The publication has another column list for the table"
        found.append(_refused(options, message, remedy, table=table.name))
    if not same_filter(connection, table, asked.where, sent.where):
        message = "The publication has another row filter for the table"
        found.append(_refused(options, message, remedy, table=table.name))
    return found


def _check_version(
    connection: psycopg.Connection[Any], options: PostgresOptions, tables: Sequence[CatalogTable]
) -> None:
    details = [_asked(options, table) for table in tables]
    if any(asked.columns or asked.where for asked in details) and (
        refusal := needs_newer(connection)
    ):
        raise refusal


def _has_defect(connection: psycopg.Connection[Any]) -> bool:
    version = connection.info.server_version
    return version < _REPAIRED.get(version // 10000, 0)


def _locked(
    connection: psycopg.Connection[Any], options: PostgresOptions, tables: Sequence[CatalogTable]
) -> SourceUnreachable:
    oids = [oid for table in tables for oid in oids_of(table)]
    holders = lockers(connection, oids, EVERY)
    return SourceUnreachable(
        "The tables could not be locked to publish them",
        publication=options.publication,
        pids=[found.pid for found in holders if found.pid is not None],
        prepared=[found.gid for found in holders if found.gid is not None],
        remedy="End the statements that alter or maintain the tables. Headrace tries again.",
    )


def _refused(
    options: PostgresOptions, message: str, remedy: str, **facts: object
) -> PublicationRefused:
    return PublicationRefused(message, publication=options.publication, **facts, remedy=remedy)
