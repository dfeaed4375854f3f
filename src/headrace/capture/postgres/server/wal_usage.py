"""
How much WAL a server keeps for our slot, how much it may keep (R28), and how much is not read.

```
 restart ───────── confirmed ───────── read ───────── written
    │◀─ running        │◀─ not yet        │◀─ not yet      │
    │   transactions   │   acknowledged   │   read         │
    └──────────────────── used ─────────────────────────────┘
```

The server removes WAL only up to `restart`. That follows what we acknowledge, but never passes the
beginning of a transaction that is still open (R4): if such a transaction is older than what we hold
back, nothing that we do would free WAL.

`LagMeter` measures how far reading is behind. The stream cannot tell: while its connection is
silent, the last position that was received stays the same, whatever is committed. So the end of the
WAL is queried on the connection for queries. Once everything up to a position has been read,
everything has been read that was committed when the position was queried. That moment is all that
is claimed. The position is the end of what the server has flushed, because that is how far it
sends; on a standby, the end of what was replayed. A commit with synchronous_commit = off is visible
before it is flushed, for up to three times wal_writer_delay: so the moment is earlier by that.

While a transaction is open, that end may lie within a record, at the end of a page, for as long as
nothing else is written. The server sends nothing of an incomplete record, and commits nothing with
it. So such an end counts as read once the sender waits for WAL and has replied twice in between.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg

from headrace.capture.postgres.server.slot import Older, waiting_for
from headrace.capture.source import LEAST_LIMIT, Room
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
        return limit if free is None else min(limit, max(used + free, LEAST_LIMIT))

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


# --- how far reading is behind --------------------------------------------------------------------

LAG_SECONDS = 1.0
"""Between two queries of the end of the WAL."""

MOST_UNREAD = 1_000
"""Maximum number of positions that were not reached yet; beyond it, every second one is dropped."""

_END = """
    select ((case when pg_is_in_recovery() then pg_last_wal_replay_lsn()
                  else pg_current_wal_flush_lsn() end) - '0/0')::int8,
           case when pg_is_in_recovery() then 0.0::float8
                else 3 * extract(epoch from current_setting('wal_writer_delay')::interval)::float8
           end
"""

_WAITS = """
    select lower(a.wait_event) = 'walsenderwaitforwal'
    from pg_catalog.pg_replication_slots s
    join pg_catalog.pg_stat_activity a on a.pid = s.active_pid
    where s.slot_name = %s
"""

PAGE_BYTES = 8192
REPLIES = 2
"""The first reply may have been sent before the sender noticed that there is more to send."""


class LagMeter:
    """The end of one server's WAL, now and then, and how far it was read. For one thread."""

    def __init__(self, slot: str, clock: Callable[[], float], every: float = LAG_SECONDS) -> None:
        self.end = 0
        """The end of the WAL, as last queried."""

        self.awaited = math.inf
        """`reached` has something to note from this position on, and need not be called before."""

        self._slot = slot
        self._clock = clock
        self._every = every
        self._due = clock()
        self._replies = 0
        """How often the sender has replied, and waited for WAL, since the end was first queried."""

        self._samples: deque[tuple[int, float, float]] = deque()
        """
        Each position that is not reached yet, when it was first the end, and when everything had
        been committed that is before it.
        """

        self._current: float | None = None
        self._delay = 0.0

    def look(self, connection: psycopg.Connection[Any], *, replied: bool) -> None:
        """
        Query the end of the WAL, if it is time to.

        `replied`: the server was asked for a reply after the last call, which was received, and
        everything else that was received has been read.
        """
        now = self._clock()
        if now < self._due:
            return
        self._due = now + self._every
        found = connection.execute(_END).fetchone()
        if found is None or found[0] is None:
            return
        before, self.end, since = self.end, int(found[0]), now
        committed = now - float(found[1])
        if self.end != before:
            self._replies = 0
        elif self._samples:
            _, since, _ = self._samples.pop()
            if replied and self.end % PAGE_BYTES == 0 and self._waits(connection):
                self._replies += 1
        self._samples.append((self.end, since, committed))
        if len(self._samples) > MOST_UNREAD:
            self._samples = deque(list(self._samples)[::2])
        self.awaited = self._samples[0][0]

    def unread(self, read: int) -> int:
        """Return how many bytes of the WAL are not read, if everything up to `read` is."""
        return 0 if self._replies >= REPLIES else max(0, self.end - read)

    def _waits(self, connection: psycopg.Connection[Any]) -> bool:
        """Whether the sender has sent everything, and waits for more WAL."""
        found = connection.execute(_WAITS, (self._slot,)).fetchone()
        return found is not None and bool(found[0])

    def reached(self, read: int) -> None:
        """Take note that everything up to `read` has been read."""
        if not self.unread(read):
            read = max(read, self.end)
        while self._samples and self._samples[0][0] <= read:
            _, since, self._current = self._samples.popleft()
            self._delay = self._clock() - since
        self.awaited = self._samples[0][0] if self._samples else math.inf

    @property
    def age(self) -> float | None:
        """How long ago everything was committed of which it is known that it was read."""
        return None if self._current is None else self._clock() - self._current

    @property
    def seconds(self) -> float | None:
        """How many seconds reading is behind; None before that is known."""
        if self._current is None:
            return None
        waited = self._clock() - self._samples[0][1] if self._samples else 0.0
        return max(self._delay, waited)
