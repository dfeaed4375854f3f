"""
How much WAL a server keeps for our slot, and how much it may keep (R28).

```
 restart ───────── confirmed ───────── read ───────── written
    │◀─ running        │◀─ not yet        │◀─ not yet      │
    │   transactions   │   acknowledged   │   read         │
    └──────────────────── used ─────────────────────────────┘
```

The server removes WAL only up to `restart`. That follows what we acknowledge, but never passes the
beginning of a transaction that is still open (R4): if such a transaction is older than what we hold
back, nothing that we do would free WAL.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg

from headrace.capture.postgres.server.slot import Older, waiting_for
from headrace.capture.source import Room
from headrace.storage.disk import free_bytes

EVERY_SECONDS = 5.0
"""Between two measurements: a third of the limit is not used up in that time."""

START_SECONDS = 10
"""The largest difference between two statements of when a server was started."""

HASTE = 5
"""Measurements are this many times as frequent above `TIGHT`."""

TIGHT = 0.6

SMALL_BYTES = 16 << 20
"""Usually one WAL segment: below that, the transactions that hold it are not queried."""

MOST_SAMPLES = 2_000
"""Maximum number of samples of the end of the WAL; beyond it, every second one is dropped."""

_QUERY = """
    select (w.at - '0/0')::int8, (s.restart_lsn - '0/0')::int8,
           (coalesce(s.confirmed_flush_lsn, s.restart_lsn) - '0/0')::int8, s.safe_wal_size
    from pg_catalog.pg_replication_slots s,
         (select case when pg_is_in_recovery()
                      then greatest(pg_last_wal_receive_lsn(), pg_last_wal_replay_lsn())
                      else pg_current_wal_lsn() end as at) w
    where s.slot_name = %s and s.restart_lsn is not null and s.wal_status <> 'lost'
"""


class Meter:
    """Measures the WAL of one slot, every few seconds. For one thread."""

    def __init__(
        self,
        slot: str,
        budget: int | None,
        clock: Callable[[], float],
        every: float = EVERY_SECONDS,
    ) -> None:
        """`budget` is the limit if the server has none."""
        self._slot = slot
        self._budget = budget
        self._clock = clock
        self._every = every
        self.due = clock()
        """When it is time to measure again."""

        self._times: list[float] = []
        self._ends: list[int] = []
        self._folder: Path | None = None
        """The server's WAL folder, if it is on this machine; None also before it was looked for."""

        self._looked_for: psycopg.Connection[Any] | None = None

    def measure(self, connection: psycopg.Connection[Any], read: int) -> Room | None:
        """
        Measure, if it is time to; `read` is the position that we have read up to.

        None: it is not time, or the server did not answer. That is no reason to stop: if
        something is wrong, reading the stream fails as well.
        """
        if self._clock() < self.due:
            return None
        self.due = self._clock() + self._every
        try:
            found = connection.execute(_QUERY, (self._slot,)).fetchone()
            if found is None:
                return None
            written, restart, confirmed, safe = found
            used = max(0, written - restart)
            limit = self._limit(connection, used, safe)
            if limit is not None and used >= TIGHT * limit:
                self.due = self._clock() + self._every / HASTE
            self._note(written)
            asks = used >= SMALL_BYTES or (limit is not None and 2 * used >= limit)
            older = waiting_for(connection) if asks else []
        except psycopg.Error:
            return None
        begun, name = written, ""
        if older and older[0].age is not None:
            begun = self._written_at(self._clock() - older[0].age)
            if 2 * (written - begun) >= used:
                name = _named(older[0])
        return Room(
            used=used,
            limit=limit,
            unacknowledged=max(0, written - confirmed),
            ours=max(0, min(read, begun) - confirmed),
            oldest=name,
        )

    def _limit(
        self, connection: psycopg.Connection[Any], used: int, safe: int | None
    ) -> int | None:
        """Return the lowest limit: the server's own or the budget, and the space on its disk."""
        limit = self._budget if safe is None else used + safe
        if limit is None:
            return None
        if connection is not self._looked_for:
            self._folder, self._looked_for = wal_folder(connection), connection
        free = None if self._folder is None else free_bytes(self._folder)
        return limit if free is None else min(limit, used + free)

    def _note(self, written: int) -> None:
        self._times.append(self._clock())
        self._ends.append(written)
        if len(self._times) > MOST_SAMPLES:
            self._times, self._ends = self._times[::2], self._ends[::2]

    def _written_at(self, when: float) -> int:
        """Return the end of the WAL at that time or a little later; the first sample if earlier."""
        # Later rather than earlier: no pipeline is released for WAL that a transaction is said to
        # hold, and a lost slot costs more than an unnecessary baseline.
        return self._ends[min(bisect_left(self._times, when), len(self._ends) - 1)]


_SERVER = """
    select s.setting, extract(epoch from pg_postmaster_start_time())::int8,
           pg_catalog.current_setting('port')
    from pg_catalog.pg_settings s
    where s.name = 'data_directory'
"""


def wal_folder(connection: psycopg.Connection[Any]) -> Path | None:
    """
    Return the WAL folder of a server on this machine, whose disk can be measured; None otherwise.

    Only certain users may see the path, and on another machine, or in a container, it can lead to
    another server's folder: the server's own file there has to name its start and its port.
    """
    if (found := connection.execute(_SERVER).fetchone()) is None:
        return None
    path, started, port = found
    try:
        _, _, begun, on_port, *_ = Path(path, "postmaster.pid").read_text().splitlines()
        # The server reads the clock for its file a moment before it does for the query.
        same = abs(int(begun) - started) <= START_SECONDS and on_port.strip() == port
    except (OSError, ValueError):
        return None
    return Path(path, "pg_wal") if same else None


def _named(older: Older) -> str:
    """Return a description without the transaction's statement, which may contain row values."""
    text = "prepared transaction" if older.pid is None else f"transaction of pid {older.pid}"
    return f"{text}, {older.age or 0:.0f} s old"
