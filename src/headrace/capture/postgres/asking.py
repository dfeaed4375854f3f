"""
Statements that never keep a thread waiting inside the driver.

Rows of a baseline are read between changes, by the thread that must also tell the server that
it lives (R7). A statement can wait long, for a lock or for a busy server; so what asks here
is a generator, which gives None each time there is nothing yet.
"""

from __future__ import annotations

import re
import select
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias, TypeVar

import psycopg
from psycopg import pq

from headrace.capture.postgres.connection import translated
from headrace.capture.postgres.wires import StreamEnded
from headrace.errors import BadMessage, SourceUnreachable

PATIENCE_SECONDS = 0.1
"""How long an answer is waited for before others have their turn."""

BEGIN = "begin isolation level repeatable read read only"

T = TypeVar("T")
Asking: TypeAlias = Generator[None, None, T]
"""Gives None while the server has not answered, and at the end returns what it answered."""

_ID = re.compile(r"[0-9A-Fa-f-]+")


@contextmanager
def talking(**facts: str) -> Iterator[None]:
    """Translate the server's errors, with what is particular to a snapshot and its rows."""
    try:
        yield
    except (psycopg.Error, StreamEnded) as error:
        match error.sqlstate:
            case "42704" | "22023":
                # No such snapshot, or not one of this server's.
                found = SourceUnreachable("The snapshot is gone", remedy=None, **facts)
            case "42P01" | "3F000":
                # A partition may be dropped on any day; looked up again, the table tells.
                found = SourceUnreachable("Table was dropped during its copy", remedy=None, **facts)
            case sqlstate:
                raise translated(sqlstate, **facts) from None
        raise found from None


def importing(snapshot: str) -> str:
    """Return the statements that begin a transaction under an exported snapshot."""
    if _ID.fullmatch(snapshot) is None:
        raise BadMessage("Text is not the id of a snapshot", length=len(snapshot))
    return f"{BEGIN}; set transaction snapshot '{snapshot}'"


def row(connection: psycopg.Connection[Any], query: str) -> tuple[Any, ...]:
    """Return the only row of a query, waiting for it."""
    found = connection.execute(query.encode()).fetchone()
    if found is None:
        raise BadMessage("The server answered without a row")
    return tuple(found)


def asked(connection: psycopg.Connection[Any], statements: str) -> Asking[list[pq.abc.PGresult]]:
    """Run statements without parameters, and return their results; values are texts."""
    connection.pgconn.send_query(statements.encode())
    return (yield from results(connection))


def described(connection: psycopg.Connection[Any], query: str) -> Asking[pq.abc.PGresult]:
    """
    Return the columns that a query has, without running it.

    They are those of this moment, whatever snapshot the transaction has, and no right to
    read them is needed.
    """
    connection.pgconn.send_prepare(b"", query.encode())
    yield from results(connection)
    connection.pgconn.send_describe_prepared(b"")
    [result] = yield from results(connection)
    return result


def results(connection: psycopg.Connection[Any]) -> Asking[list[pq.abc.PGresult]]:
    """Take what the server answers to what was sent, or the beginning of a COPY."""
    pgconn = connection.pgconn
    taken: list[pq.abc.PGresult] = []
    failed: pq.abc.PGresult | None = None
    while True:
        yield from _ready(pgconn)
        if (result := pgconn.get_result()) is None:
            break
        if result.status == pq.ExecStatus.FATAL_ERROR:
            failed = result
        else:
            taken.append(result)
        if result.status == pq.ExecStatus.COPY_OUT:
            break
    if failed is not None:
        raise psycopg.errors.error_from_result(failed)
    return taken


def readable(pgconn: pq.abc.PGconn, seconds: float, *, writable: bool = False) -> bool:
    """Wait until something has come, or can be sent; other threads run meanwhile."""
    poll = select.poll()
    poll.register(pgconn.socket, select.POLLIN | (select.POLLOUT if writable else 0))
    return bool(poll.poll(seconds * 1000))


def _ready(pgconn: pq.abc.PGconn) -> Asking[None]:
    unsent = bool(pgconn.flush())
    while pgconn.is_busy():
        if readable(pgconn, PATIENCE_SECONDS, writable=unsent):
            pgconn.consume_input()
            unsent = bool(pgconn.flush())
        else:
            yield
