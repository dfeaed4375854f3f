"""
The lock on a data directory, and the fence of an engine whose log was taken over.

One engine uses a data directory. The lock file is for the error message (which process holds it,
since when); the term in the control store and the numbered entries of the log are for safety (R31).
The lock is the kernel's, so it is released when its process ends for any reason, and a stale file
never blocks.

`Fence` says whether an engine may still deliver a source's changes to targets. The term in the
control store separates two runs of an engine in one data directory. If the log is in a bucket,
another engine has another data directory and another term, and only the log itself, which both
write to, shows that it was taken over (R31). Rows of the engine that lost the log must not reach
any target: its baselines would reset tables that the other engine has advanced.
"""

from __future__ import annotations

import fcntl
import os
import shlex
import socket
import stat
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from headrace.errors import BadDataDirectory, HeadraceError, Locked, LostLog

if TYPE_CHECKING:
    from headrace.storage.files import Files

# --- the fence ------------------------------------------------------------------------------------


class Fence:
    """The fence of one source. Once closed, it stays closed until the engine is restarted."""

    def __init__(self, source: str = "", files: Files | None = None) -> None:
        """`files` is the data directory; without it, only the recorder can close the fence."""
        self._source = source
        # On a disk, one data directory has one log, and the control store has the term.
        self._files = None if files is None or files.local else files
        self.why: HeadraceError | None = None
        """The error that closed it; None while it is open."""
        self.term = 0
        """The term that our recorder writes with."""

    def close(self, why: HeadraceError) -> None:
        """Close the fence: the log was taken over by another writer."""
        self.why = self.why or why

    def look(self) -> None:
        """Raise `LostLog` if another writer is known to have the log."""
        if (why := self.why) is not None:
            raise LostLog(why.message, remedy=why.remedy, **why.facts)

    def check(self, after: int) -> None:
        """Like `look`, but also read a log in a bucket; `after` is our newest entry."""
        # Imported here: the demo's writer takes a lease, and needs neither log nor Arrow.
        from headrace.changelog.reader import overtaken

        self.look()
        files, term = self._files, self.term
        if files is not None and overtaken(files, self._source, after, term):
            self.close(
                LostLog("Another engine has taken over this log", source=self._source, term=term)
            )
            self.look()


# --- the lock -------------------------------------------------------------------------------------

FORMAT = 1

_GLOB = "*?[]{}"
"""Spark reads a path with one of these as a pattern, and finds nothing (S6)."""


_WRITTEN = (
    *("lock", "run", "control.sqlite", "control.sqlite-wal", "control.sqlite-shm", "storage"),
    *("log", "dead-letters", "replays", "scratch", "differences", "tables", "logs"),
    *("spark-events", "spark-warehouse"),
)
"""What an engine writes in its data directory. The disk, or a server, may have more there."""


class LeaseHolder(msgspec.Struct, frozen=True):
    """The process that holds the data directory, as written in the lock file."""

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
        mine = LeaseHolder(os.getpid(), socket.gethostname(), since)
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, msgspec.json.encode(mine), 0)

    def release(self) -> None:
        """Release the lock; the file stays, empty."""
        os.ftruncate(self._descriptor, 0)
        os.close(self._descriptor)

    def _holder(self) -> LeaseHolder | None:
        try:
            return msgspec.json.decode(os.pread(self._descriptor, 4096, 0), type=LeaseHolder)
        except msgspec.DecodeError:
            return None  # locked a moment ago, and not written yet


def usable_folder(data: str | os.PathLike[str]) -> Path:
    """Return `data` as an absolute folder that exists and that Spark can read."""
    path = Path(data).expanduser().absolute()
    if found := sorted(set(str(path)) & set(_GLOB)):
        raise BadDataDirectory(
            f"The path of the data directory contains {' '.join(found)}, which Spark treats as a"
            " pattern",
            path=str(path),
        )
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise BadDataDirectory(
            "The data directory could not be created", path=str(path), why=error.strerror
        ) from error
    if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
        raise BadDataDirectory("The data directory is not writable", path=str(path))
    _check_owner(path)
    return path


def _check_owner(folder: Path) -> None:
    """Refuse a folder in which another user could place links for us to write through."""
    owner, mode, named = folder.stat().st_uid, folder.stat().st_mode, shlex.quote(str(folder))
    remedy = (
        "Run the engine as the owner of the folder, or change the owner:"
        f" chown -R {os.geteuid()} {named}"
    )
    if owner != os.geteuid():
        raise BadDataDirectory(
            "The data directory belongs to another user", path=str(folder), remedy=remedy
        )
    if mode & stat.S_IWOTH:
        raise BadDataDirectory(
            "Every user can write to the data directory",
            path=str(folder),
            remedy=f"Restrict access: chmod 700 {named}",
        )
    # Others may have been able to write here before.
    for entry in map(folder.joinpath, _WRITTEN):
        if os.path.lexists(entry) and entry.lstat().st_uid != os.geteuid():
            raise BadDataDirectory(
                "A file in the data directory belongs to another user",
                path=str(entry),
                remedy=remedy,
            )


def _locked(data: Path, holder: LeaseHolder | None) -> Locked:
    if holder is None:
        return Locked(f"Another engine is using {data}", data=str(data))
    return Locked(
        f"Process {holder.pid} on {holder.host} has been using {data} since {holder.since}",
        data=str(data),
        pid=holder.pid,
        host=holder.host,
        since=holder.since,
    )
