"""Who ends processes of a round: those of the server, and the recorder."""

from __future__ import annotations

import time
from collections.abc import Callable

import psycopg

from headrace.embedded.postgres import PostgresServer
from tests.postgres.rounds.plan import Act
from tests.rounds import processes
from tests.rounds.killing import kill, until
from tests.rounds.source import connected
from tests.support.patience import slowness

LOOK_SECONDS = 5.0 * slowness()
"""How long somebody is looked for who is to be ended."""

_SENDER = "select active_pid from pg_replication_slots where active_pid is not null"
_HOLDER = (
    "select pid from pg_stat_activity where application_name like 'headrace%'"
    " and state = 'idle in transaction' and query like '%pg_export_snapshot%'"
)


class Nemesis:
    """Acts on one server and on the processes that bear one mark."""

    def __init__(self, server: PostgresServer, mark: str) -> None:
        self._server = server
        self._mark = mark

    def act(self, act: Act) -> bool:
        """Do it; False where nobody was there to do it to. The server is up afterwards."""
        match act:
            case Act.RECORDER:
                return self._found(self._recorder, kill)
            case Act.SENDER_ENDED:
                return self._found(lambda: self._session(_SENDER), self._terminate)
            case Act.SENDER_KILLED:
                return self._found(lambda: self._session(_SENDER), kill)
            case Act.HOLDER_ENDED:
                return self._found(lambda: self._session(_HOLDER), self._terminate)
            case Act.HOLDER_KILLED:
                return self._found(lambda: self._session(_HOLDER), kill)
            case Act.SERVER_KILLED:
                self._server.kill()
                self._server.start()
            case Act.SERVER_STOPPED:
                self._server.stop("fast")
                self._server.start()
            case Act.SLOT_DROPPED:
                self._drop_slot()
        return True

    def _found(self, look: Callable[[], int | None], strike: Callable[[int], bool]) -> bool:
        if not until(lambda: (pid := look()) is not None and strike(pid), LOOK_SECONDS):
            return False
        # A session that is killed takes the whole server down for a moment.
        connected(self._server.dsn).close()
        return True

    def _recorder(self) -> int | None:
        return next(iter(processes.recorders(self._mark)), None)

    def _session(self, query: str) -> int | None:
        with connected(self._server.dsn) as connection:
            row = connection.execute(query.encode()).fetchone()
        return None if row is None else int(row[0])

    def _terminate(self, pid: int) -> bool:
        with connected(self._server.dsn) as connection:
            row = connection.execute("select pg_terminate_backend(%s)", [pid]).fetchone()
        return row == (True,)

    def _drop_slot(self) -> None:
        with connected(self._server.dsn) as connection:
            end = time.monotonic() + LOOK_SECONDS
            while True:
                try:
                    connection.execute(
                        "select pg_drop_replication_slot(slot_name) from pg_replication_slots"
                    )
                except psycopg.errors.ObjectInUse:
                    # Whoever read from it was killed, and its sender has not noticed.
                    if time.monotonic() > end:
                        raise
                    connection.execute(f"select pg_terminate_backend(pid) from ({_SENDER}) s(pid)")
                else:
                    return
