"""
Who runs a capture: one process at a time for each reader and table.

A run holds a lock on an empty file beside the database until it ends. The operating system drops
the lock when the process ends, however it ends, so a file without a lock means that the run is
over, on any file system that is safe for SQLite. The database has a lease for each reader and
table: a term, and the name of the run's file. To take it over, the old run must have ended, and
the new one counts the term up in one transaction. Every position is stored only together with a
look at the lease, so a run that lost it, because its file was removed by hand, stores nothing more.

The file is never the database itself: closing that one would drop SQLite's own locks. A process
that was forked from a running one shares its lock until it ends or starts another program.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import sqlite3
from collections.abc import Mapping, Sequence
from glob import escape
from pathlib import Path
from uuid import uuid4

from headrace.capture.sqlite import triggers
from headrace.capture.sqlite.database import CaptureNames
from headrace.errors import LeaseTaken, SourceRefused

# --- whether a run is still there -----------------------------------------------------------------


class RunLock:
    """The lock of one run, on an empty file beside the database."""

    def __init__(self, path: str) -> None:
        self._path = os.path.realpath(path)
        self.run = ""
        """The name of the run; empty before `take`."""

        self._file = -1

    def take(self) -> None:
        """Create the file and lock it; files of runs that were killed are removed."""
        self.sweep()
        mode = os.stat(self._path).st_mode & 0o666  # noqa: PTH116 - of one file
        while True:
            run = uuid4().hex[:16]
            try:
                file = os.open(self._file_of(run), os.O_CREAT | os.O_EXCL | os.O_RDWR, mode)
            except OSError as error:
                raise SourceRefused(
                    "The lock file of a run cannot be created next to the database",
                    path=self._path,
                    error=errno.errorcode.get(error.errno or 0, "OSError"),
                    remedy="Allow this user to write to the folder of the database.",
                ) from error
            fcntl.flock(file, fcntl.LOCK_EX)
            # Another run may have removed it before it was locked.
            if _is_at(file, self._file_of(run)):
                self.run, self._file = run, file
                return
            os.close(file)

    def alive(self, run: str) -> bool:
        """Whether the run with this name has not ended."""
        return bool(run) and (run == self.run or not _released(self._file_of(run)))

    def sweep(self) -> None:
        """Remove the files of runs that were killed."""
        path = Path(self._file_of(""))
        for file in path.parent.glob(f"{escape(path.stem)}*{path.suffix}"):
            _released(str(file))

    def release(self) -> None:
        """Remove the file and drop the lock."""
        if self._file >= 0:
            with contextlib.suppress(OSError):
                Path(self._file_of(self.run)).unlink()
            os.close(self._file)
            self._file, self.run = -1, ""

    def _file_of(self, run: str) -> str:
        return f"{self._path}-headrace-{run}.lock"


def _released(path: str) -> bool:
    """Return whether nobody holds the lock, and then remove the file."""
    try:
        file = os.open(path, os.O_RDWR)
    except FileNotFoundError:
        return True
    except OSError:
        return False  # of another user: it can only be assumed that it runs
    try:
        # Shared: two processes that look at once must not take each other for the owner.
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return False
    else:
        if _is_at(file, path):
            with contextlib.suppress(OSError):
                Path(path).unlink()
        return True
    finally:
        os.close(file)


def _is_at(file: int, path: str) -> bool:
    try:
        return os.path.samestat(os.fstat(file), os.stat(path))  # noqa: PTH116 - of one file
    except OSError:
        return False


# --- leases in the database -----------------------------------------------------------------------

_LEASE = "lease/"


class Leases:
    """The leases of one run, by the names of the rows in the table of readers."""

    def __init__(self, database: sqlite3.Connection, names: CaptureNames, lock: RunLock) -> None:
        self._database = database
        self._names = names
        self._lock = lock
        self._wanted: Mapping[str, str] = {}
        self.held: dict[str, str] = {}
        """What the database has to say for each row as long as this run holds its lease."""

    def want(self, rows: Mapping[str, str]) -> None:
        """Note the rows whose leases are taken, each with its table."""
        self._wanted = rows

    def look(self) -> dict[str, str]:
        """Return the texts of all leases; raise `LeaseTaken` if another run has one of ours."""
        found = lease_texts(self._database, self._names)
        taken = [
            table
            for row, table in self._wanted.items()
            if (run := found.get(row, "").partition("/")[2]) != self._lock.run
            and self._lock.alive(run)
        ]
        if taken:
            raise LeaseTaken(
                "Another process reads these tables under this reader name",
                tables=", ".join(taken),
            )
        return found

    def take(self) -> None:
        """Take the leases, or raise `LeaseTaken`; within a transaction that writes."""
        found = self.look()
        taken = {}
        for row in self._wanted:
            term = int(found.get(row, "0").partition("/")[0]) + 1
            taken[row] = f"{term}/{self._lock.run}"
            triggers.put_fact(self._database, self._names, _LEASE + row, taken[row])
        self.held.update(taken)

    def lost(self, rows: Sequence[str]) -> list[str]:
        """Return which of these rows another run has taken over."""
        found = lease_texts(self._database, self._names)
        return [row for row in rows if row in found and found[row] != self.held.get(row)]


def lease_texts(database: sqlite3.Connection, names: CaptureNames) -> dict[str, str]:
    """Return the text of each lease, `term/run`, by the row that it is for."""
    return {row: str(text) for row, text in triggers.facts(database, names, _LEASE)}


def held_by(names: CaptureNames) -> str:
    """Return a condition on a row of the table of readers: its lease is as in the parameter."""
    return f"exists (select 1 from {names.meta} m where m.name = '{_LEASE}' || ? and m.value = ?)"


def drop_lease(database: sqlite3.Connection, names: CaptureNames, row: str) -> None:
    """Forget the lease of a row that is removed; within a transaction."""
    database.execute(f"delete from {names.meta} where name = ?", (_LEASE + row,))
