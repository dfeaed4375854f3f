"""What a SQLite file has of us, and what waits in it."""

from __future__ import annotations

import json
import shlex
import sqlite3
from collections.abc import Sequence
from typing import TYPE_CHECKING

from headrace.capture.findings import Finding
from headrace.capture.sqlite import setup
from headrace.capture.sqlite.database import connect, folded, quoted, speaking
from headrace.capture.sqlite.names import OURS

if TYPE_CHECKING:
    from headrace.capture.sqlite.source import SQLiteSource

_TRIGGERS = "select name, tbl_name from sqlite_schema where type = 'trigger'"


def findings(source: SQLiteSource, tables: Sequence[str], reader: str) -> list[Finding]:
    """Return which tables are captured that nobody asked for, and how much waits to be read."""
    database = connect(source.path)
    try:
        with speaking(source.path):
            found = []
            [(mode,)] = database.execute("pragma journal_mode").fetchall()
            if mode != "wal":
                found.append(
                    Finding(
                        "journal_mode",
                        f"{mode}: whoever writes waits while we read, and we for him",
                        "Run PRAGMA journal_mode = wal; it stays with the file.",
                    )
                )
            if setup.capture_id(database) is None:
                return [*found, Finding("capture", "nothing of ours is in this file yet")]
            captured = {table for name, table in database.execute(_TRIGGERS) if OURS.owns(name)}
            taken = {folded(table) for table in tables}
            for table in sorted(table for table in captured if folded(table) not in taken):
                found.append(_untaken(database, source.path, table, reader))
            [(count,)] = database.execute(f"select count(*) from {quoted(setup.LOG)}").fetchall()
            if count:
                found.append(Finding(setup.LOG, f"{count:,} changes are kept in it"))
            return found
    finally:
        database.close()


def _untaken(database: sqlite3.Connection, path: str, table: str, engine: str) -> Finding:
    """Return what there is to do about a table that is captured, and not by this engine."""
    says = "is captured, and no pipeline takes it: its changes pile up"
    # By what works: a table stays captured as long as anybody reads it.
    readers = _readers(database, table)
    for reader in readers:
        if reader.startswith(setup.LIBRARY):
            name = reader.removeprefix(setup.LIBRARY).partition("/")[0]
            says = f"is captured for the reader {name}, and no pipeline takes it"
            return Finding(table, says, f"If {name} is gone: {_teardown(path, table, name)}")
    if others := [reader for reader in readers if reader != engine]:
        says = f"is captured for another engine, {others[0]}, and no pipeline takes it here"
        return Finding(table, says)
    if readers:
        first = "Start the engine once, so that it lets go of the table; then: "
        return Finding(table, says, f"{first}{_teardown(path, table)}")
    return Finding(table, says, _teardown(path, table))


def _readers(database: sqlite3.Connection, table: str) -> list[str]:
    """Return who reads a table, engines after others."""
    if not setup.complete(database):
        return []
    rows = database.execute(f"select name, tables from {setup.READERS} order by name").fetchall()
    found = [
        name
        for name, text in rows
        if any(
            folded(each) == folded(table) and reads is not False
            for each, reads in json.loads(text).items()
        )
    ]
    return sorted(found, key=lambda name: (not name.startswith(setup.LIBRARY), name))


def _teardown(path: str, table: str, reader: str | None = None) -> str:
    words = ["headrace", "sqlite", "teardown", "--db", path, "--table", table]
    return shlex.join([*words, *([] if reader is None else ["--reader", reader])])
