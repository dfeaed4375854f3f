"""The file of the store of TOAST values: opened, taken by one reader, and removed if damaged."""

from __future__ import annotations

import os
import secrets
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from headrace.errors import SourceUnreachable, StorageError, StorageFull
from headrace.storage.private import make_private_folder

FORMAT: Final = 1
BUSY_SECONDS: Final = 5.0
"""A reader before us may be at it for a moment."""

_TABLES = """
create table if not exists about (
  format integer not null, lineage text not null, "end" integer not null, owner text not null
);
create table if not exists tables (
  name text primary key, number integer not null, shape text not null, state text not null,
  first integer not null, last integer not null, cap integer not null
);
create table if not exists truncates (
  number integer not null, at integer not null, primary key (number, at)
) without rowid;
"""


class ToastFile:
    """
    One SQLite file, with one transaction at a time, which the first write begins.

    *Failure*: `StorageError`; a file that is damaged is removed, so that the next one begins
    anew. `SourceUnreachable` where another reader has taken it since.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._owner = secrets.token_hex(8)
        with self._guarded():
            try:
                self._connection = _opened(path)
            except sqlite3.DatabaseError as error:
                if not _damaged(error):
                    raise
                discard(path)
                self._connection = _opened(path)
            about = self._connection.execute('select lineage, "end" from about').fetchone()
        self.lineage: str = about[0] if about else ""
        self.end: int = about[1] if about else -1
        """Everything up to here is in it."""

    @property
    def busy(self) -> bool:
        """Whether something was written and not committed."""
        return self._connection.in_transaction

    @property
    def bytes(self) -> int:
        """What is in use of it."""
        count, free, size = (
            self.rows(f"pragma {name}")[0][0]
            for name in ("page_count", "freelist_count", "page_size")
        )
        return int((count - free) * size)

    def take(self, lineage: str, end: int) -> None:
        """Make it ours, from here on: whoever had it before cannot write any more."""
        with self._guarded():
            if not self.busy:
                self._connection.execute("begin immediate")
            self._connection.execute("delete from about")
            self._connection.execute(
                "insert into about values (?, ?, ?, ?)", (FORMAT, lineage, end, self._owner)
            )
        self.lineage, self.end = lineage, end

    def rows(self, statement: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """Return what a query finds."""
        with self._guarded():
            return self._connection.execute(statement, values).fetchall()

    def write(self, statement: str, values: Sequence[object] = ()) -> None:
        """Run a statement that changes something."""
        with self._guarded():
            self._begin()
            self._connection.execute(statement, values)

    def write_all(self, statement: str, rows: Iterator[Sequence[object]]) -> None:
        """Run a statement for each of the rows."""
        with self._guarded():
            self._begin()
            self._connection.executemany(statement, rows)

    def commit(self, end: int) -> None:
        """Keep what was written, synced, and that it is all there is up to `end`."""
        if end == self.end and not self.busy:
            return
        with self._guarded():
            # Where nothing was written but the end, a crash of the machine may take it back:
            # the store then seems to be behind the log, which is no more than a copy for nothing.
            light = not self.busy
            if light:
                self._connection.execute("pragma synchronous = normal")
            self._begin()
            self._connection.execute('update about set "end" = ?', (end,))
            self._connection.execute("commit")
            if light:
                self._connection.execute("pragma synchronous = full")
        self.end = end

    def close(self) -> None:
        """Let go of it, without what was not committed. Never raises."""
        with suppress(sqlite3.Error):
            self._connection.close()

    def _begin(self) -> None:
        if self.busy:
            return
        self._connection.execute("begin immediate")
        found = self._connection.execute("select owner from about").fetchone()
        if found is None or found[0] != self._owner:
            self._connection.execute("rollback")
            raise SourceUnreachable("Another reader has taken the store of TOAST values")

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            if _damaged(error):
                discard(self.path)
            name = getattr(error, "sqlite_errorname", "")
            kind = StorageFull if name == "SQLITE_FULL" else StorageError
            raise kind(
                "The store of TOAST values cannot be used", file=str(self.path), reason=name
            ) from error


def discard(path: Path) -> None:
    """Remove a store, if there is one."""
    for suffix in ("", "-wal", "-shm"):
        with suppress(OSError):
            path.with_name(path.name + suffix).unlink(missing_ok=True)


def _opened(path: Path) -> sqlite3.Connection:
    try:
        make_private_folder(path.parent)
        # It holds values of rows, so only its owner may read it, from its first byte on.
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else "failed"
        raise StorageError(
            "The store of TOAST values cannot be made", file=str(path), reason=reason
        ) from error
    connection = sqlite3.connect(path, BUSY_SECONDS, isolation_level=None, check_same_thread=False)
    try:
        for pragma in ("journal_mode = wal", "synchronous = full", "cache_size = -16000"):
            connection.execute(f"pragma {pragma}").fetchall()
        connection.executescript(_TABLES)
        found = connection.execute("select format from about").fetchone()
    except sqlite3.Error:
        connection.close()
        raise
    if found is None or found[0] == FORMAT:
        return connection
    connection.close()
    # Of another version of ours: scratch, and filled again.
    discard(path)
    return _opened(path)


def _damaged(error: sqlite3.Error) -> bool:
    name = getattr(error, "sqlite_errorname", "")
    return bool(name.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")))
