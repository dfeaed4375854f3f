"""
One engine a data directory.

The lock file gives the friendly answer (who holds it, since when); the term in the
control store and the numbered entries of the log give the safety (R31). The lock is the
kernel's, so it goes with its process however that ends, and a stale file never blocks.
"""

from __future__ import annotations

import fcntl
import os
import socket
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from headrace.errors import BadDataDirectory, Locked

FORMAT = 1

_GLOB = "*?[]{}"
"""Spark takes a path with one of these for a pattern, and finds nothing (S6)."""


class Holder(msgspec.Struct, frozen=True):
    """Who holds the data directory, as the lock file says it."""

    pid: int
    host: str
    since: str
    format: int = FORMAT


class Lease:
    """The lock on a data directory, held until `release` or the end of the process."""

    def __init__(self, data: Path, now: Callable[[], float]) -> None:
        self._path = data / "lock"
        self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = self._holder()
            os.close(self._descriptor)
            raise _locked(data, holder) from None
        since = datetime.fromtimestamp(now(), UTC).isoformat(timespec="seconds")
        mine = Holder(os.getpid(), socket.gethostname(), since)
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, msgspec.json.encode(mine), 0)

    def release(self) -> None:
        """Let go; the file stays, empty."""
        os.ftruncate(self._descriptor, 0)
        os.close(self._descriptor)

    def _holder(self) -> Holder | None:
        try:
            return msgspec.json.decode(os.pread(self._descriptor, 4096, 0), type=Holder)
        except msgspec.DecodeError:
            return None  # taken this instant, and not yet signed


def usable_folder(data: str | os.PathLike[str]) -> Path:
    """Return `data` as an absolute folder that exists and that Spark can read."""
    path = Path(data).expanduser().absolute()
    if found := sorted(set(str(path)) & set(_GLOB)):
        raise BadDataDirectory(
            f"The data directory's path holds {' '.join(found)}, which Spark takes for a pattern",
            path=str(path),
        )
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise BadDataDirectory(
            "The data directory cannot be made", path=str(path), why=error.strerror
        ) from error
    if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
        raise BadDataDirectory("The data directory is not writable", path=str(path))
    return path


def _locked(data: Path, holder: Holder | None) -> Locked:
    if holder is None:
        return Locked(f"Another engine holds {data}", data=str(data))
    return Locked(
        f"Process {holder.pid} on {holder.host} holds {data} since {holder.since}",
        data=str(data),
        pid=holder.pid,
        host=holder.host,
        since=holder.since,
    )
