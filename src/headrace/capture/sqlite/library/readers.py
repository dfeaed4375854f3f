"""
Where the readers of `Capture` stand: in the database, a row a table.

The engine keeps its place in its own log; a library has no other place than the database
itself. A row a table, and not one a reader, so that a table can be set up later, taken out
alone, or be read by a process of its own, and nothing of the others is skipped or lost.

A row protects what follows its cursor from being removed, like the engine's rows beside it.
With the cursor stands a witness of the log row it names (R40). Instead of one there may be a
note that changes are missing before the cursor (`OWED`): then only a copy of the table leads
there. A reader that was taken out of a table gets such a row when it comes back.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from headrace.capture.sqlite import triggers
from headrace.capture.sqlite.database import CaptureNames, CapturePosition, writing
from headrace.capture.sqlite.resume import end_of
from headrace.capture.sqlite.tables import table_names

OWED = "owed"
"""Stands for the witness where the table has to be copied before its changes are read."""

_LEFT = "left/"
"""How the notes begin that a reader was taken out of a table."""


def places(
    database: sqlite3.Connection, names: CaptureNames, reader: str
) -> dict[str, CapturePosition]:
    """Return the place of `reader` in each table that was set up for it."""
    if not triggers.complete(database, names):
        return {}
    found = {}
    for name, capture, cursor, text in database.execute(
        f"select name, capture, cursor, tables from {names.readers} order by name"
    ):
        for table, witness in json.loads(text).items():
            if name == _name(reader, table):
                found[table] = CapturePosition(
                    capture, cursor, OWED if witness is None else witness
                )
    return found


def register(
    database: sqlite3.Connection, names: CaptureNames, reader: str, tables: Iterable[str]
) -> None:
    """
    Let `reader` begin at the log's end with those tables that it has no place in yet.

    Where it was taken out before, changes went by that it was not given: it owes a copy.
    """
    known = places(database, names, reader)
    new = [table for table in tables if table not in known]
    if not new:
        return
    with writing(database):
        capture = triggers.capture_id(database, names)
        assert capture is not None
        if triggers.elsewhere(database, names):
            # Numbers of the file it came from would come again.
            capture = triggers.renew(database, names)
        elif not triggers.known(database, names):
            triggers.remember(database, names)
        end = end_of(database, capture, names)
        for table in new:
            left = database.execute(
                f"delete from {names.meta} where name = ?", (_LEFT + _name(reader, table),)
            )
            place = replace(end, witness=OWED) if left.rowcount else end
            database.execute(
                f"insert or replace into {names.readers} values (?, ?, ?, ?)",
                (_name(reader, table), capture, place.seq, _noted(table, place)),
            )


def owe(database: sqlite3.Connection, names: CaptureNames, reader: str) -> None:
    """Let places in a log that is no more wait at the end of this one; within a transaction."""
    capture = triggers.capture_id(database, names)
    assert capture is not None
    end = replace(end_of(database, capture, names), witness=OWED)
    for table, place in places(database, names, reader).items():
        if place.capture != capture:
            settle(database, names, reader, table, end)


def settle(
    database: sqlite3.Connection, names: CaptureNames, reader: str, table: str, at: CapturePosition
) -> bool:
    """Set a place, wherever it was before; False where somebody took it out."""
    done = database.execute(
        f"update {names.readers} set capture = ?, cursor = ?, tables = ? where name = ?",
        (at.capture, at.seq, _noted(table, at), _name(reader, table)),
    )
    return done.rowcount > 0


def advance(
    database: sqlite3.Connection,
    names: CaptureNames,
    reader: str,
    tables: Sequence[str],
    to: CapturePosition,
) -> list[str]:
    """Move places forward, never back; return those that somebody took out, who stay out."""
    with writing(database):
        moved = database.executemany(
            f"update {names.readers} set cursor = ?, tables = ? "
            "where name = ? and capture = ? and cursor < ?",
            [
                (*(to.seq, _noted(table, to)), *(_name(reader, table), to.capture, to.seq))
                for table in tables
            ],
        )
        if moved.rowcount == len(tables):
            return []
        known = places(database, names, reader)
        return [table for table in tables if table not in known]


def take_out(
    database: sqlite3.Connection, names: CaptureNames, reader: str, tables: Sequence[str] | None
) -> tuple[int, list[str]]:
    """
    Take `tables` out for `reader`; return how many changes it had not read, and what stays.

    A table stays captured as long as somebody else reads it, and the log as long as anybody has
    a place in it. It is one transaction: a trigger without its log would make every write of the
    application fail (R42). `tables` None are all of this reader's. A table that is neither there
    nor captured raises `TableRefused`.
    """
    with writing(database):
        if tables is not None:
            tables = [triggers.captured_as(database, table, names) for table in tables]
        if not triggers.complete(database, names):
            # Somebody dropped a part of it, and triggers that are left make writes fail.
            triggers.take_out(database, tables, names)
            return 0, []
        known = places(database, names, reader)
        out = list(known if tables is None else dict.fromkeys(tables))
        leaves = {table: known[table] for table in out if table in known}
        unread = _unread(database, names, leaves)
        for table in leaves:
            name = _name(reader, table)
            database.execute(f"delete from {names.readers} where name = ?", (name,))
            database.execute(f"insert or replace into {names.meta} values (?, 1)", (_LEFT + name,))
        read = _read_by_anybody(database, names)
        stays = [table for table in out if table in read]
        triggers.take_out(database, [table for table in out if table not in read], names, read)
        return unread, stays


def tables_to_read(database: sqlite3.Connection, names: CaptureNames, reader: str) -> list[str]:
    """Return what `reader` reads where nobody says: its tables, or all there are."""
    return list(places(database, names, reader)) or table_names(database)


def _unread(
    database: sqlite3.Connection, names: CaptureNames, at: Mapping[str, CapturePosition]
) -> int:
    plans = triggers.plans(database, names)
    count = 0
    for table, place in at.items():
        own = ", ".join(str(number) for number, plan in plans.items() if plan.table == table)
        (found,) = database.execute(
            f"select count(*) from {names.log} where seq > ? and tbl in ({own}) and op < ?",
            (place.seq, triggers.REPLANNED),
        ).fetchone()
        count += int(found)
    return count


def _read_by_anybody(database: sqlite3.Connection, names: CaptureNames) -> set[str]:
    read = set()
    for (text,) in database.execute(f"select tables from {names.readers}"):
        read |= {table for table, reads in json.loads(text).items() if reads is not False}
    return read


def _name(reader: str, table: str) -> str:
    return f"{triggers.LIBRARY}{reader}/{table}"


def _noted(table: str, place: CapturePosition) -> str:
    return json.dumps({table: None if place.witness == OWED else place.witness})
