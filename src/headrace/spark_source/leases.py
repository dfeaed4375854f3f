"""
Named queries: the log keeps what one has not read yet, as long as it renews its lease (R27).

A reader's name belongs to one frame of one query at a time. Two under one name would move each
other's place in the log, and it would release what the slower one needs. Spark tells a source
neither the query's id nor its checkpoint, so nothing can be written down that distinguishes two
queries. But it gives every use of a frame in a query a process of its own that lives as long as the
query does, and a lock of the kernel's goes with its process however that ends. So a query that is
started again has its name at once, and another one is refused; and so is the second use of a frame
in the same query, which would move its place too.

On a file system that has no locks, or does not share them among machines, no query is refused.
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
    """Who has the name, for the one who is refused."""

    pid: int
    host: str
    since: str
    format: int = FORMAT


class Claim:
    """A name that is ours, until `release` or the end of the process."""

    def __init__(self, data: str, source: str, name: str, wait: float) -> None:
        """
        Take it; `ReaderTaken` where it is another's for all of `wait` seconds.

        A query that was just stopped needs a moment until its process is gone.
        """
        path = Path(data, "log", source, "readers", f"{name}.lock")
        try:
            path.parent.mkdir(mode=0o700, exist_ok=True)
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise not_written(path, error) from error
        # Whoever is forgotten without a word lets go as well.
        self._close = weakref.finalize(self, os.close, handle)
        if wait_for(lambda: _locked(handle), wait) is None:
            holder = _holder(handle)
            self._close()
            raise ReaderTaken(
                "Another frame is read under this name, by this query or another",
                source=source,
                reader=name,
                **({} if holder is None else {"held_by": holder}),
            )
        since = datetime.now(UTC).isoformat(timespec="seconds")
        mine = _Holder(os.getpid(), socket.gethostname(), since)
        with suppress(OSError):  # the lock is what counts, not who is named in it
            os.ftruncate(handle, 0)
            os.pwrite(handle, msgspec.json.encode(mine), 0)

    def release(self) -> None:
        """Let go; a second time does nothing. The file stays: somebody may wait for it."""
        self._close()


def _locked(handle: int) -> bool | None:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return None
    except OSError:
        return True  # there are no locks here, and so nobody can be told apart
    return True


def _holder(handle: int) -> str | None:
    try:
        found = msgspec.json.decode(os.pread(handle, 4096, 0), type=_Holder)
    except msgspec.DecodeError:
        return None  # taken this instant, and not yet signed
    return f"process {found.pid} on {found.host} since {found.since}"


# --- the lease ------------------------------------------------------------------------------------

_RENEWALS = 3
"""In the length of a lease, so that one that comes late is early enough."""


@dataclass(frozen=True, slots=True)
class Held:
    """What a query needs."""

    position: Position
    """Everything after it."""

    baselines: frozenset[int] = frozenset()
    """These, whether they are the newest or not."""


def needed(asked: ReadRequest, at: Offset) -> Held:
    """Return what a query needs that goes on from an offset."""
    log = asked.log
    if at.waits:
        # Which baseline a batch began with, that may have to be read again, is not known here;
        # and one that is still to come may begin before the log's end.
        known = (newest_baseline(asked), *(log.baseline(asked.table, n) for n in log.superseded()))
        return Held(log.floor, frozenset(each.baseline for each in known if each is not None))
    if at.given is not None and at.baseline is not None:
        return Held(at.position, frozenset({at.baseline}))
    return Held(at.position)


class LeaseKeeper:
    """The lease of one query, which is the only one of its name until `end`. For one thread."""

    def __init__(
        self,
        data: str,
        source: str,
        name: str,
        seconds: float,
        clock: Callable[[], float] = time.time,
        *,
        wait: float = 0.0,
        goes_on: bool = False,
    ) -> None:
        """
        `ReaderTaken` where another query has the name for all of `wait` seconds.

        What an earlier life of a query that `goes_on` held is held until it is moved: where
        that one stood is known by its checkpoint alone, which is told later.
        """
        # A bucket has no locks: there the guide asks for names that are not shared.
        self._claim = None if elsewhere(data) else Claim(data, source, name, wait)
        self._named = NamedReader(opened(data), source, name, seconds, clock)
        self._every = seconds / _RENEWALS
        self._clock = clock
        self._held: Held | None = None
        for lease in leases(opened(data), source, clock()) if goes_on else ():
            if lease.name == name:
                self._held = Held(lease.position, frozenset(lease.baselines))
        self._due = 0.0

    def keep(self, wanted: Held, log: LogReader) -> None:
        """Have that kept, besides what is held already."""
        held = self._held
        if held is None or held.position < log.floor:
            self._hold(wanted, log)
        elif wanted.position < held.position or not wanted.baselines <= held.baselines:
            lower = min(held.position, wanted.position)
            self._hold(Held(lower, held.baselines | wanted.baselines), log)
        elif self._clock() >= self._due:
            self._hold(held, log)

    def move(self, to: Held, log: LogReader) -> None:
        """Let go of everything else."""
        held = self._held
        if (
            held is None
            or to.position > held.position
            or (to.position == held.position and to.baselines != held.baselines)
        ):
            self._hold(to, log)

    def end(self) -> None:
        """Let others have the name; what is held is held until the lease is over."""
        if self._claim is not None:
            self._claim.release()

    def _hold(self, wanted: Held, log: LogReader) -> None:
        self._named.hold(wanted.position, log, wanted.baselines)
        self._held, self._due = wanted, self._clock() + self._every
