"""
A reader's name belongs to one frame of one query at a time.

Two under one name would move each other's place in the log, and it would let go of what the
slower one needs. Spark tells a source neither the query's id nor its checkpoint, so nothing can
be written down that tells two queries apart. But it gives every use of a frame in a query a
process of its own that lives as long as the query does, and a lock of the kernel's goes with its
process however that ends. So a query that is started again has its name at once, and another one
is refused; and so is the second use of a frame in the same one, which would move its place too.

On a file system that has no locks, or does not share them among machines, nobody is refused.
"""

from __future__ import annotations

import fcntl
import os
import socket
import weakref
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from headrace.errors import ReaderTaken
from headrace.pipeline.reading.places import wait_for
from headrace.storage.private import not_written

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
