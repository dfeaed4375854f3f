"""
Which file a capture log was made in.

A file that comes back from a copy brings its log and every reader's place with it, so that
nothing in it tells that it went back: positions would come again with other changes (R40). Only
the file itself is another one. So the log remembers the file system and the inode it stands in.

A copy that is written over the very same file has the same inode, and is not noticed.
"""

from __future__ import annotations

import os
import sqlite3

from headrace.capture.sqlite.names import Names

_NAME = "file"


def remember(database: sqlite3.Connection, names: Names) -> None:
    """Take it that the log belongs to this file; within a transaction."""
    if (identity := _identity(database)) is not None:
        database.execute(f"insert or replace into {names.meta} values (?, ?)", (_NAME, identity))


def known(database: sqlite3.Connection, names: Names) -> bool:
    """Whether the log says which file it was made in; older ones do not."""
    return _remembered(database, names) is not None


def elsewhere(database: sqlite3.Connection, names: Names) -> bool:
    """Whether the log was made in another file than this one."""
    identity, remembered = _identity(database), _remembered(database, names)
    return None not in (identity, remembered) and identity != remembered


def _remembered(database: sqlite3.Connection, names: Names) -> str | None:
    row = database.execute(f"select value from {names.meta} where name = ?", (_NAME,)).fetchone()
    return None if row is None else str(row[0])


def _identity(database: sqlite3.Connection) -> str | None:
    (path,) = database.execute(
        "select file from pragma_database_list where name = 'main'"
    ).fetchone()
    try:
        # Not the device's number, which may be another one after a restart of the machine.
        return f"{os.statvfs(path).f_fsid}/{os.stat(path).st_ino}"  # noqa: PTH116 - of one file
    except OSError:
        return None  # whoever reads notices that it is gone
