"""
Whether a row filter is one, and looks at nothing but the identity.

Only the server can read an expression of its own language, so it is asked to, without
running anything: a query with the filter in it is parsed and thrown away. Which columns
the filter uses is found out by offering it a row that has no others (R23a).

What only CREATE PUBLICATION objects to, such as functions of the user's own, is left to
that statement. It fails by itself then, and nothing of the application's does.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql
from psycopg.pq import DiagnosticField, ExecStatus

from headrace.capture.postgres.catalog import CatalogTable
from headrace.capture.postgres.identity import LISTS_SINCE, Asked, identity_sets
from headrace.capture.postgres.names import listed
from headrace.errors import (
    HeadraceError,
    NoIdentity,
    ServerRefused,
    SourceUnreachable,
    TableRefused,
)

_LOCK_TIMEOUT = "2s"
"""Parsing waits for whoever is altering the table, and the application queues behind us."""

_LOCKED = "55P03"
_NO_COLUMN = frozenset(["42703", "42P01"])
"""Undefined column; undefined table, for a column that is named with schema and table."""


@dataclass(frozen=True, slots=True)
class _Objection:
    state: str
    reason: str


def filter_problems(
    connection: psycopg.Connection[Any], table: CatalogTable, asked: Asked
) -> Iterator[HeadraceError]:
    """Yield what is wrong with a table's row filter."""
    if not (where := asked.options.where):
        return
    if asked.version < LISTS_SINCE:
        yield ServerRefused(
            "Rows can be filtered on PostgreSQL 15 and newer only",
            table=table.name,
            remedy="Leave the row filter out, or upgrade the server.",
        )
        return
    whole = sql.SQL("ONLY {}").format(sql.Identifier(table.namespace, table.table))
    if table.kind == "p":
        whole = sql.SQL("{}").format(sql.Identifier(table.namespace, table.table))
    if objection := _objection(connection, whole, where):
        yield _refused(table, objection)
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
                    "Updates and deletes would fail once the table is published:"
                    " its row filter looks at columns outside the identity",
                    table=table.name,
                    identity=listed(columns),
                    remedy=f"Use only {listed(columns)} in the row filter, without the name of"
                    " the schema, or give the table a REPLICA IDENTITY that has the others.",
                )
                if objection.state in _NO_COLUMN
                else _refused(table, objection)
            )
            return


def _refused(table: CatalogTable, objection: _Objection) -> HeadraceError:
    if objection.state == _LOCKED:
        return SourceUnreachable(
            "The table is locked, so that its row filter could not be looked at",
            table=table.name,
            remedy="Try again when the statement that alters the table has ended.",
        )
    return TableRefused(
        "The row filter is not a condition on rows of the table",
        table=table.name,
        state=objection.state,
        reason=objection.reason,
        remedy="Write it as after WHERE, over columns of this table alone.",
    )


def _objection(
    connection: psycopg.Connection[Any], rows: sql.Composed, where: str
) -> _Objection | None:
    """Return what the server has against the filter over these rows."""
    # A text can close the parenthesis it stands in and open another, or a CASE, but not
    # both: what is right in both places is one expression.
    for shape in ("SELECT 1 FROM {} WHERE ({}\n)", "SELECT CASE WHEN {1}\n THEN 1 END FROM {0}"):
        query = sql.SQL(shape).format(rows, sql.SQL(where))
        if objection := _parse(connection, query.as_bytes(connection)):
            return objection
    return None


def _parse(connection: psycopg.Connection[Any], query: bytes) -> _Objection | None:
    """Let the server parse one statement. It is neither planned nor run."""
    with connection.transaction(force_rollback=True):
        connection.execute(f"SET LOCAL lock_timeout = '{_LOCK_TIMEOUT}'")
        result = connection.pgconn.prepare(b"", query)
        if result.status != ExecStatus.COMMAND_OK:
            state = result.error_field(DiagnosticField.SQLSTATE) or b"08006"
            reason = result.error_field(DiagnosticField.MESSAGE_PRIMARY) or b""
            return _Objection(state.decode(), reason.decode(errors="replace"))
        if connection.pgconn.describe_prepared(b"").nparams:
            return _Objection("42P02", "it has parameters")
    return None
