"""
The publication: which changes of which tables the server sends.

One that we made carries a comment that says so, and is kept in step with what is asked
for. Any other belongs to somebody: it is looked at and never altered. Changes are made in
one transaction that gives up quickly where it does not get its locks, so that statements
of the application do not queue up behind it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg

from headrace.capture.postgres.catalog import CatalogTable
from headrace.capture.postgres.locks import EVERY, Locker, lockers, wait_for_lockers
from headrace.capture.postgres.names import listed, quoted, written
from headrace.capture.postgres.options import Options, TableOptions
from headrace.capture.postgres.published import (
    Entry,
    Publication,
    Published,
    needs_newer,
    parenthesised,
    published,
    published_columns,
    read,
    same_filter,
    unreadable,
)
from headrace.errors import (
    HeadraceError,
    NotPermitted,
    PublicationRefused,
    SourceUnreachable,
)

__all__ = [
    "Ensured",
    "Locker",
    "Published",
    "differences",
    "drop",
    "ensure",
    "lockers",
    "missing_changes",
    "named",
    "oids_of",
    "published",
    "published_columns",
    "verify",
    "wait_for_lockers",
]

MARK = "headrace: "
"""How the comment of a publication of ours begins; the source's name and its slot follow."""

LOCK_SECONDS = (0.1, 0.2, 0.5, 1.0, 2.0)
"""
How long each attempt may wait for its locks. The last is longer than the second after
which autovacuum makes way for whoever waits for it.
"""

HARD_LOCK_SECONDS = 0.2
"""The same where writers queue up behind us."""

_REPAIRED = {14: 140018, 15: 150013, 16: 160009, 17: 170005}
"""Since when a transaction under way does not keep an older view of a publication (R13)."""


@dataclass(frozen=True, slots=True)
class Ensured:
    """What became of a publication; tables by the names the user gave them."""

    created: bool = False
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    """Other rows, columns or operations of these are sent now: they need a baseline."""

    unsent: tuple[str, ...] = ()
    """Operations that were asked for, and that somebody else's publication leaves out."""

    @property
    def baselines(self) -> tuple[str, ...]:
        """The tables that need a new baseline, after a wait for their lockers (R13)."""
        return self.added + self.changed


@dataclass(frozen=True, slots=True)
class _Plan:
    statements: tuple[str, ...]
    outcome: Ensured
    locked: tuple[CatalogTable, ...] = ()
    """Tables that have to be free of writers first, on servers with the defect of R13."""


def ensure(
    connection: psycopg.Connection[Any],
    options: Options,
    tables: Sequence[CatalogTable],
    on_wait: Callable[[], None] | None = None,
    waits: Sequence[float] = (),
) -> Ensured:
    """
    Bring the publication in line with what is asked for, and say what was changed.

    The connection is in autocommit. Somebody else's publication, or any where the options
    say so, is only verified. Where locks cannot be had `SourceUnreachable` is raised
    after a few attempts, as long as `waits` says; `on_wait` is called between them.
    """
    if not tables:
        raise PublicationRefused(
            "There is no table to publish",
            publication=options.publication,
            remedy="Name the tables that are to be captured.",
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
            _apply(connection, options, plan, seconds)
        except (
            psycopg.errors.LockNotAvailable,
            psycopg.errors.DeadlockDetected,
            psycopg.errors.DuplicateObject,  # somebody did the same a moment before us
        ):
            continue
        return plan.outcome
    raise _locked(connection, options, tables)


def missing_changes(
    connection: psycopg.Connection[Any], options: Options, tables: Sequence[CatalogTable]
) -> Ensured:
    """Return what `ensure` would change now; nothing is changed."""
    present = read(connection, options.publication)
    if not options.create_publication or (present and not is_ours(present, options)):
        return verify(connection, options, tables)
    return _plan(connection, options, tables, present).outcome


def named(connection: psycopg.Connection[Any], options: Options) -> frozenset[int]:
    """Return the oids of the tables that the publication names; waits for no lock."""
    found = connection.execute(
        "SELECT r.prrelid::int8 FROM pg_catalog.pg_publication_rel r"
        " JOIN pg_catalog.pg_publication p ON p.oid = r.prpubid WHERE p.pubname = %s",
        (options.publication,),
    ).fetchall()
    return frozenset(oid for (oid,) in found)


def verify(
    connection: psycopg.Connection[Any], options: Options, tables: Sequence[CatalogTable]
) -> Ensured:
    """Raise the first of the `differences`; otherwise say which operations are not sent."""
    if found := differences(connection, options, tables):
        raise found[0]
    present = read(connection, options.publication)
    sent = present.operations if present else frozenset()
    return Ensured(unsent=tuple(name for name in options.publish if name not in sent))


def differences(
    connection: psycopg.Connection[Any], options: Options, tables: Sequence[CatalogTable]
) -> list[HeadraceError]:
    """
    Return in what a publication falls short of what is asked for; it is not altered.

    It may hold more tables. It may leave truncates out: that is for the checks to warn of.
    """
    name = options.publication
    present = read(connection, name)
    if present is None:
        statement = _creation(options, tables)
        return [_refused(options, "There is no such publication", f"Run {statement};")]
    alter = f"ALTER PUBLICATION {quoted(name)}"
    found: list[HeadraceError] = []
    asked, sent = set(options.publish), present.operations
    if asked - sent - {"truncate"} or sent - asked:
        found.append(
            _refused(
                options,
                "Publication sends other operations",
                f"Run {alter} SET (publish = '{', '.join(options.publish)}');"
                " or ask for what it has.",
                operations=sorted(sent),
            )
        )
    if not present.via_root and any(table.kind == "p" for table in tables):
        found.append(
            _refused(
                options,
                "Publication sends partitions under their own names",
                f"Run {alter} SET (publish_via_partition_root = true);",
            )
        )
        return found  # what it sends of a partitioned table cannot be compared like this
    everything = published(connection, name)
    missing = [table for table in tables if table.oid not in everything]
    if missing:
        clauses = ", ".join(_clause(table, _asked(options, table)) for table in missing)
        found.append(
            _refused(
                options,
                "Publication lacks tables",
                f"Run {alter} ADD TABLE {clauses};",
                tables=[table.name for table in missing],
            )
        )
    for table in tables:
        if table.oid in everything:
            found += _table_differences(connection, options, table, everything[table.oid])
    return found


def drop(connection: psycopg.Connection[Any], options: Options) -> bool:
    """Drop the publication if it is ours; False where it is not there or somebody else's."""
    present = read(connection, options.publication)
    if present is None or not is_ours(present, options):
        return False
    connection.execute(f"DROP PUBLICATION IF EXISTS {quoted(present.name)}".encode())
    return True


def is_ours(publication: Publication, options: Options) -> bool:
    """
    Whether we made it, for this source and this reader of it.

    Two that read one database under one name have a slot each: what the one does not capture
    would otherwise be taken from under the other.
    """
    mark = _mark(options)
    return publication.comment == mark or publication.comment.startswith(f"{mark};")


def _mark(options: Options) -> str:
    return f"{MARK}{options.name}, slot {options.slot}"


def oids_of(table: CatalogTable) -> tuple[int, ...]:
    """Return the table and all its partitions: where to look for its lockers."""
    below = table.tree if table.kind == "p" else frozenset[int]()
    return (table.oid, *sorted(below))


def _plan(
    connection: psycopg.Connection[Any],
    options: Options,
    tables: Sequence[CatalogTable],
    present: Publication | None,
) -> _Plan:
    name = quoted(options.publication)
    if present is None:
        comment = f"{_mark(options)}; kept in step with the tables it captures"
        literal = "'" + comment.replace("'", "''") + "'"
        return _Plan(
            (_creation(options, tables), f"COMMENT ON PUBLICATION {name} IS {literal}"),
            Ensured(created=True, added=tuple(table.name for table in tables)),
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
    # There is no statement that alters how a table is published: it goes and comes back,
    # and nobody sees it gone.
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
        Ensured(
            added=tuple(table.name for table in added),
            removed=tuple(written(entry.namespace, entry.table) for entry in removed),
            changed=tuple(table.name for table in changed),
        ),
        (*added, *changed) if _has_defect(connection) else (),
    )


def _apply(
    connection: psycopg.Connection[Any], options: Options, plan: _Plan, seconds: float
) -> None:
    if not plan.statements:
        return
    if plan.locked:
        seconds = min(seconds, HARD_LOCK_SECONDS)
    try:
        with connection.transaction():
            connection.execute(f"SET LOCAL lock_timeout = {round(seconds * 1000)}".encode())
            for table in sorted(plan.locked, key=lambda table: table.oid):
                place = quoted(table.namespace, table.table)
                connection.execute(f"LOCK TABLE {place} IN SHARE ROW EXCLUSIVE MODE".encode())
            for statement in plan.statements:
                connection.execute(statement.encode())
    except psycopg.errors.InsufficientPrivilege:
        # Without the comment: what another user makes is another user's.
        shown = plan.statements[:1] if plan.outcome.created else plan.statements
        raise NotPermitted(
            "User may not set up the publication",
            publication=options.publication,
            remedy=f"Run as the owner of the tables: {'; '.join(shown)};",
        ) from None
    except (psycopg.errors.UndefinedTable, psycopg.errors.DuplicateObject):
        raise
    except (psycopg.ProgrammingError, psycopg.DataError, psycopg.NotSupportedError) as error:
        raise unreadable(error, publication=options.publication) from None


def _creation(options: Options, tables: Sequence[CatalogTable]) -> str:
    clauses = ", ".join(_clause(table, _asked(options, table)) for table in tables)
    # Via the root also where no table is partitioned: if one is later, nothing changes for
    # the others.
    return (
        f"CREATE PUBLICATION {quoted(options.publication)} FOR TABLE {clauses}"
        f" WITH (publish = '{', '.join(options.publish)}', publish_via_partition_root = true)"
    )


def _settings(options: Options, tables: Sequence[CatalogTable], present: Publication) -> list[str]:
    settings = []
    if present.operations != set(options.publish):
        settings.append(f"publish = '{', '.join(options.publish)}'")
    if not present.via_root and any(table.kind == "p" for table in tables):
        settings.append("publish_via_partition_root = true")
    return settings


def _asked(options: Options, table: CatalogTable) -> TableOptions:
    return options.tables.get(table.name, TableOptions())


def _clause(table: CatalogTable, asked: TableOptions) -> str:
    # ONLY: tables that inherit from it are tables of their own here.
    columns = f" ({listed(asked.columns)})" if asked.columns else ""
    where = f" WHERE {parenthesised(asked.where)}" if asked.where else ""
    return f"ONLY {quoted(table.namespace, table.table)}{columns}{where}"


def _as_asked(
    connection: psycopg.Connection[Any], table: CatalogTable, asked: TableOptions, entry: Entry
) -> bool:
    return set(asked.columns) == set(entry.columns) and same_filter(
        connection, table, asked.where, entry.where
    )


def _table_differences(
    connection: psycopg.Connection[Any], options: Options, table: CatalogTable, sent: Published
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
        " or ask for what it has."
    )
    found: list[HeadraceError] = []
    if not same_columns:
        message = "Publication sends other columns of the table"
        found.append(_refused(options, message, remedy, table=table.name))
    if not same_filter(connection, table, asked.where, sent.where):
        message = "Publication sends other rows of the table"
        found.append(_refused(options, message, remedy, table=table.name))
    return found


def _check_version(
    connection: psycopg.Connection[Any], options: Options, tables: Sequence[CatalogTable]
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
    connection: psycopg.Connection[Any], options: Options, tables: Sequence[CatalogTable]
) -> SourceUnreachable:
    oids = [oid for table in tables for oid in oids_of(table)]
    holders = lockers(connection, oids, EVERY)
    return SourceUnreachable(
        "Tables could not be locked to publish them",
        publication=options.publication,
        pids=[found.pid for found in holders if found.pid is not None],
        prepared=[found.gid for found in holders if found.gid is not None],
        remedy="End what alters or maintains the tables; it is tried again.",
    )


def _refused(options: Options, message: str, remedy: str, **facts: object) -> PublicationRefused:
    return PublicationRefused(message, publication=options.publication, **facts, remedy=remedy)
