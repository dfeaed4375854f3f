"""What a SQLite file has of us, and what waits in it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from headrace.capture.findings import Finding
from headrace.capture.sqlite import setup
from headrace.capture.sqlite.database import connect, quoted, speaking
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
            for table in sorted(captured - set(tables)):
                found.append(
                    Finding(
                        table,
                        "is captured, and no pipeline takes it: its changes pile up",
                        f"headrace sqlite teardown --db {source.path} --table {table}",
                    )
                )
            [(count,)] = database.execute(f"select count(*) from {quoted(setup.LOG)}").fetchall()
            if count:
                found.append(Finding(setup.LOG, f"{count:,} changes are kept in it"))
            return found
    finally:
        database.close()
