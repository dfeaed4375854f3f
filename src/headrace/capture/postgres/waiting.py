"""
Commands on a replication connection, which may take long.

Nothing here blocks inside the driver: the socket is waited for in short slices, with
other threads running meanwhile, so that a command that the server keeps waiting can be
watched, limited and called off.
"""

from __future__ import annotations

import select
import time
from collections.abc import Callable
from typing import Any

import psycopg
from psycopg import pq

SLICE_SECONDS = 0.2
"""How often somebody who waits is heard."""

CANCEL_SECONDS = 5.0
"""How long a server may take to act on a request to stop; a healthy one needs milliseconds."""


def answer(
    connection: psycopg.Connection[Any],
    command: str,
    timeout: float | None,
    on_wait: Callable[[float], None] | None = None,
) -> pq.abc.PGresult | None:
    """
    Send a command and return the server's answer, an error too; None: not in time.

    After None, and after whatever `on_wait` raised, the command is still under way.
    """
    connection.pgconn.send_query(command.encode())
    return _result(connection, timeout, on_wait)


def cancel(connection: psycopg.Connection[Any]) -> pq.abc.PGresult | None:
    """Call off the command under way and return its answer; None where there came none."""
    connection.cancel_safe(timeout=CANCEL_SECONDS)
    return _result(connection, CANCEL_SECONDS, None)


def _result(
    connection: psycopg.Connection[Any],
    timeout: float | None,
    on_wait: Callable[[float], None] | None,
) -> pq.abc.PGresult | None:
    pgconn = connection.pgconn
    started = time.monotonic()
    last: pq.abc.PGresult | None = None
    unsent = pgconn.flush()
    while True:
        while not pgconn.is_busy():
            result = pgconn.get_result()
            if result is None:
                return last
            last = result
        waited = time.monotonic() - started
        left = SLICE_SECONDS if timeout is None else min(SLICE_SECONDS, timeout - waited)
        if left <= 0:
            return None
        poll = select.poll()
        poll.register(pgconn.socket, select.POLLIN | (select.POLLOUT if unsent else 0))
        if poll.poll(left * 1000):
            pgconn.consume_input()
            unsent = pgconn.flush()
        elif on_wait is not None:
            on_wait(time.monotonic() - started)
