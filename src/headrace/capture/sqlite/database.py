"""
A connection to the user's database, and what its errors mean to us.

The database belongs to the application. So a missing file is never created, the journal
mode is never changed, and no transaction of ours is longer than it must be (R42, R44).

Only the standard library's SQLite is used: two SQLite libraries in one process cancel
each other's file locks, because POSIX drops all locks of a file with the first close.
For the same reason nobody here opens the database file by other means.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

from headrace.errors import CaptureError, HeadraceError, SourceRefused, SourceUnreachable

LOCK_SECONDS = 5.0
"""How long set-up waits for the application to let go of the database."""

OLDEST = (3, 37, 0)
"""The first SQLite that tells views, virtual and strict tables apart by pragma."""


_T = TypeVar("_T")

_ASCII_LOWER = {code: code + 32 for code in range(ord("A"), ord("Z") + 1)}


def lenient(data: bytes) -> str:
    """Decode a TEXT value; SQLite never checks what an application stores there."""
    # Bytes that are no UTF-8 travel as lone surrogates, and get an exact text (R23f).
    return data.decode(errors="surrogateescape")


def quoted(name: str) -> str:
    """Return `name` as an identifier, whatever it holds."""
    return '"' + name.replace('"', '""') + '"'


def folded(name: str) -> str:
    """Return `name` as SQLite compares names: two that differ only in A to Z are one."""
    return name.translate(_ASCII_LOWER)


def connect(path: str, timeout: float = LOCK_SECONDS) -> sqlite3.Connection:
    """Open an existing database for reading and writing; never create one."""
    if sqlite3.sqlite_version_info < OLDEST:
        raise SourceRefused(
            "The SQLite library of this Python is too old",
            version=sqlite3.sqlite_version,
            remedy="Use a Python with SQLite 3.37 or later.",
        )
    if not Path(path).exists():
        raise SourceRefused("Database not found", path=path, remedy="Check the path.")
    if not Path(path).is_file():
        raise SourceRefused("Path is not a file", path=path, remedy="Give the database file.")
    if not os.access(path, os.R_OK):
        raise SourceRefused("Database may not be read", path=path)
    # A path may hold ? or %: only a quoted URI opens the file that was named.
    uri = f"file:{quote(path)}?mode=rw"
    with speaking(path):
        database = sqlite3.connect(
            uri, uri=True, timeout=timeout, isolation_level=None, check_same_thread=False
        )
        try:
            # The file is looked at here, so that a wrong one is told apart at once.
            database.execute("pragma schema_version").fetchone()
        except sqlite3.Error:
            database.close()
            raise
        return database


@contextmanager
def speaking(path: str) -> Iterator[None]:
    """Translate SQLite's errors; their text is left out, because it can hold values."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        raise _translated(error, path) from error


@contextmanager
def reading(database: sqlite3.Connection) -> Iterator[None]:
    """Run the block on one snapshot."""
    database.execute("begin")
    try:
        yield
    finally:
        if database.in_transaction:
            database.execute("rollback")


def probe_writing(database: sqlite3.Connection) -> None:
    """Make sure that something could be made here, and leave no trace of it."""
    database.execute("begin immediate")
    try:
        # The lock alone does not tell: of a read-only file SQLite takes it for reading.
        database.execute("create table __headrace_probe (x)")
    finally:
        database.execute("rollback")


@contextmanager
def writing(database: sqlite3.Connection) -> Iterator[None]:
    """Run the block in one transaction that holds the write lock from its beginning."""
    database.execute("begin immediate")
    try:
        yield
        database.execute("commit")
    finally:
        if database.in_transaction:
            database.execute("rollback")


def busy(error: sqlite3.Error) -> bool:
    """Whether somebody else holds the lock."""
    return _primary(error) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def patiently(work: Callable[[], _T], locked: Callable[[], None] | None) -> _T:
    """
    Do `work`, again and again while somebody else holds the lock.

    Between two attempts `locked` is called: it waits, or raises to give up. Without it the first
    attempt is the only one.
    """
    while True:
        try:
            return work()
        except sqlite3.OperationalError as error:
            if locked is None or not busy(error):
                raise
        locked()


def undecodable(error: sqlite3.Error) -> bool:
    """Whether a TEXT value was not UTF-8; Python raises this one without a code."""
    return isinstance(error, sqlite3.OperationalError) and str(error).startswith("Could not decode")


def _primary(error: sqlite3.Error) -> int | None:
    code: int | None = getattr(error, "sqlite_errorcode", None)
    return None if code is None else code & 0xFF


def _translated(error: sqlite3.DatabaseError, path: str) -> HeadraceError:
    name = getattr(error, "sqlite_errorname", type(error).__name__)
    match _primary(error):
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return SourceUnreachable("Database is locked", path=path)
        case sqlite3.SQLITE_NOTADB:
            return SourceRefused("Not a SQLite database", path=path, remedy="Check the path.")
        case sqlite3.SQLITE_CORRUPT:
            return SourceRefused(
                "Database is damaged",
                path=path,
                remedy="Restore it, or run pragma integrity_check.",
            )
        case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_PERM | sqlite3.SQLITE_AUTH:
            return SourceRefused(
                "Database is read-only, so that no capture triggers can be made",
                path=path,
                remedy="Allow this user to write to the file and to its folder.",
            )
        case sqlite3.SQLITE_CANTOPEN:
            return SourceRefused("Database cannot be opened", path=path)
        case sqlite3.SQLITE_IOERR | sqlite3.SQLITE_FULL | sqlite3.SQLITE_PROTOCOL:
            return SourceUnreachable("Database cannot be read or written", path=path, error=name)
        case sqlite3.SQLITE_ERROR | sqlite3.SQLITE_SCHEMA:
            # Our queries are right for the schema they were made for: somebody changed it.
            return SourceUnreachable("Tables changed while they were read", path=path)
    return CaptureError("Database answered with an error", path=path, error=name)
