"""
Named queries: the log keeps what one has not read yet, as long as it renews its lease (R27).

A reader name can be used by one frame of one query at a time. Two frames with one name would move
each other's position in the log, and the log would release changes that the slower one needs. Spark
gives a source neither the query's id nor its checkpoint, so nothing written down could distinguish
two queries. But Spark starts a separate process for every use of a frame in a query, which runs as
long as the query, and the kernel releases a file lock when its process ends, however it ends. So a
restarted query gets its name back at once, and another query is refused. The second use of a frame
in the same query is refused, too, as it would also move the position.

On a file system that has no locks, or does not share them between machines, no query is refused.
"""

from __future__ import annotations

import fcntl
import os
import socket
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from headrace.changelog.position import Position
from headrace.changelog.reader import LogReader
from headrace.changelog.retention import NamedReader, leases
from headrace.errors import ReaderTaken
from headrace.spark_source.offsets import Offset, ReadRequest, newest_baseline
from headrace.spark_source.options import wait_for
from headrace.storage.locations import elsewhere
from headrace.storage.permissions import not_written
from headrace.storage.s3 import opened

# --- the claim of a name --------------------------------------------------------------------------

FORMAT = 1


class _Holder(msgspec.Struct, frozen=True):
    """The process that holds the name, for the error message of the one that is refused."""

    pid: int
    host: str
    since: str
    format: int = FORMAT


class Claim:
    """A name held by this process until `release`, or until the process ends."""

    def __init__(self, data: str, source: str, name: str, wait: float) -> None:
        """
        Claim the name; `ReaderTaken` if another process holds it for all of `wait` seconds.

        The process of a query that was just stopped takes a moment to end.
        """
        path = Path(data, "log", source, "readers", f"{name}.lock")
        try:
            path.parent.mkdir(mode=0o700, exist_ok=True)
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise not_written(path, error) from error
        # An object that is dropped without `release` also releases the name.
        self._close = weakref.finalize(self, os.close, handle)
        if wait_for(lambda: _locked(handle), wait) is None:
            holder = _holder(handle)
            self._close()
            raise ReaderTaken(
                "The reader name is in use by another frame, of this query or another",
                source=source,
                reader=name,
                **({} if holder is None else {"held_by": holder}),
            )
        since = datetime.now(UTC).isoformat(timespec="seconds")
        mine = _Holder(os.getpid(), socket.gethostname(), since)
        with suppress(OSError):  # the lock decides; the holder's name is only for messages
            os.ftruncate(handle, 0)
            os.pwrite(handle, msgspec.json.encode(mine), 0)

    def release(self) -> None:
        """Release the name; idempotent. The file stays, because another process may wait for it."""
        self._close()


def _locked(handle: int) -> bool | None:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return None
    except OSError:
        return True  # no locks on this file system, so that queries cannot be distinguished
    return True


def _holder(handle: int) -> str | None:
    try:
        found = msgspec.json.decode(os.pread(handle, 4096, 0), type=_Holder)
    except msgspec.DecodeError:
        return None  # locked a moment ago, and not written yet
    return f"process {found.pid} on {found.host} since {found.since}"


# --- the lease ------------------------------------------------------------------------------------

_RENEWALS = 3
"""Renewals within the length of a lease, so that a late one is still in time."""


@dataclass(frozen=True, slots=True)
class Held:
    """What the log must keep for a query."""

    position: Position
    """All changes after this position."""

    baselines: frozenset[int] = frozenset()
    """These baselines, whether they are the newest or not."""


def needed(asked: ReadRequest, at: Offset) -> Held:
    """Return what a query needs that continues from an offset."""
    log = asked.log
    if at.waits:
        # A batch that began with a baseline may have to be read again, and it is not known here
        # which baseline that was. A future baseline may begin before the log's end.
        known = (newest_baseline(asked), *(log.baseline(asked.table, n) for n in log.superseded()))
        return Held(log.floor, frozenset(each.baseline for each in known if each is not None))
    if at.given is not None and at.baseline is not None:
        return Held(at.position, frozenset({at.baseline}))
    return Held(at.position)


class QueryLease:
    """The lease of one query, the only one with its name until `end`. For one thread."""

    def __init__(
        self,
        data: str,
        source: str,
        name: str,
        seconds: float,
        clock: Callable[[], float] = time.time,
        *,
        wait: float = 0.0,
        resumes: bool = False,
    ) -> None:
        """
        Claim the name; `ReaderTaken` if another query holds it for all of `wait` seconds.

        If the query `resumes`, everything that its previous run held stays held until `move`:
        only its checkpoint knows how far it was, and Spark passes that later.
        """
        # A bucket has no locks: the guide says that names must not be shared there.
        self._claim = None if elsewhere(data) else Claim(data, source, name, wait)
        self._named = NamedReader(opened(data), source, name, seconds, clock)
        self._every = seconds / _RENEWALS
        self._clock = clock
        self._held: Held | None = None
        for lease in leases(opened(data), source, clock()) if resumes else ():
            if lease.name == name:
                self._held = Held(lease.position, frozenset(lease.baselines))
        self._due = 0.0

    def keep(self, wanted: Held, log: LogReader) -> None:
        """Hold this in addition to what is held already; renew the lease when that is due."""
        held = self._held
        if held is None or held.position < log.floor:
            self._hold(wanted, log)
        elif wanted.position < held.position or not wanted.baselines <= held.baselines:
            lower = min(held.position, wanted.position)
            self._hold(Held(lower, held.baselines | wanted.baselines), log)
        elif self._clock() >= self._due:
            self._hold(held, log)

    def move(self, to: Held, log: LogReader) -> None:
        """Hold only this, and release everything else."""
        held = self._held
        if (
            held is None
            or to.position > held.position
            or (to.position == held.position and to.baselines != held.baselines)
        ):
            self._hold(to, log)

    def end(self) -> None:
        """Release the name; what is held stays held until the lease expires."""
        if self._claim is not None:
            self._claim.release()

    def _hold(self, wanted: Held, log: LogReader) -> None:
        self._named.hold(wanted.position, log, wanted.baselines)
        self._held, self._due = wanted, self._clock() + self._every
