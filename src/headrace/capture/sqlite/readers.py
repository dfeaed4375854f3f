"""
Where the readers of `Capture` stand: in the database, a row a table.

The engine keeps its place in its own log; a library has no other place than the database
itself. A row a table, and not one a reader, so that a table can be set up later, taken out
alone, or be read by a process of its own, and nothing of the others is skipped or lost.

A row protects what follows its cursor from being removed, like the engine's rows beside it.
With the cursor stands a witness of the log row it names (R40).
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Mapping

from headrace.capture.sqlite import setup
from headrace.capture.sqlite.database import writing
from headrace.capture.sqlite.names import Names
from headrace.capture.sqlite.place import Place
from headrace.capture.sqlite.resume import end_of
from headrace.capture.sqlite.tables import table_names

_KIND = "capture"
"""How names of these readers begin; a source's name holds no slash, so none is taken for one."""


def places(database: sqlite3.Connection, names: Names, reader: str) -> dict[str, Place]:
    """Return the place of `reader` in each table that was set up for it."""
    if not setup.complete(database, names):
        return {}
    found = {}
    for name, capture, cursor, text in database.execute(
        f"select name, capture, cursor, tables from {names.readers} order by name"
    ):
        for table, witness in json.loads(text).items():
            if name == _name(reader, table):
                found[table] = Place(capture, cursor, witness)
    return found


def register(
    database: sqlite3.Connection, names: Names, reader: str, tables: Iterable[str]
) -> None:
    """Let `reader` begin at the log's end with those tables that it has no place in yet."""
    known = places(database, names, reader)
    new = [table for table in tables if table not in known]
    if not new:
        return
    with writing(database):
        capture = setup.capture_id(database, names)
        assert capture is not None
        put(database, names, reader, dict.fromkeys(new, end_of(database, capture, names)))


def put(database: sqlite3.Connection, names: Names, reader: str, at: Mapping[str, Place]) -> None:
    """Set places, wherever they were before; within a transaction."""
    database.executemany(
        f"insert or replace into {names.readers} values (?, ?, ?, ?)",
        [
            (_name(reader, table), place.capture, place.seq, json.dumps({table: place.witness}))
            for table, place in at.items()
        ],
    )


def advance(
    database: sqlite3.Connection, names: Names, reader: str, tables: Iterable[str], to: Place
) -> None:
    """Move places forward, never back; those that somebody took out stay out."""
    with writing(database):
        database.executemany(
            f"update {names.readers} set cursor = ?, tables = ? "
            "where name = ? and capture = ? and cursor < ?",
            [
                (
                    *(to.seq, json.dumps({table: to.witness})),
                    *(_name(reader, table), to.capture, to.seq),
                )
                for table in tables
            ],
        )


def take_out(
    database: sqlite3.Connection, names: Names, reader: str, tables: Iterable[str]
) -> tuple[int, list[str]]:
    """
    Take `tables` out for `reader`; return how many changes it had not read, and what stays.

    A table stays captured as long as somebody else reads it. It is one transaction: a trigger
    without its log would make every write of the application fail (R42).
    """
    if not setup.complete(database, names):
        return 0, []
    with writing(database):
        known = places(database, names, reader)
        out = list(dict.fromkeys(tables))
        unread = _unread(database, names, {table: known[table] for table in out if table in known})
        database.executemany(
            f"delete from {names.readers} where name = ?",
            [(_name(reader, table),) for table in out],
        )
        read = _read_by_anybody(database, names)
        stays = [table for table in out if table in read]
        setup.take_out(database, [table for table in out if table not in read], names)
        return unread, stays


def tables_to_read(database: sqlite3.Connection, names: Names, reader: str) -> list[str]:
    """Return what `reader` reads where nobody says: its tables, or all there are."""
    return list(places(database, names, reader)) or table_names(database)


def _unread(database: sqlite3.Connection, names: Names, at: Mapping[str, Place]) -> int:
    plans = setup.plans(database, names)
    count = 0
    for table, place in at.items():
        own = ", ".join(str(number) for number, plan in plans.items() if plan.table == table)
        (found,) = database.execute(
            f"select count(*) from {names.log} where seq > ? and tbl in ({own}) and op < ?",
            (place.seq, setup.REPLANNED),
        ).fetchone()
        count += int(found)
    return count


def _read_by_anybody(database: sqlite3.Connection, names: Names) -> set[str]:
    read = set()
    for (text,) in database.execute(f"select tables from {names.readers}"):
        read |= {table for table, reads in json.loads(text).items() if reads is not False}
    return read


def _name(reader: str, table: str) -> str:
    return f"{_KIND}/{reader}/{table}"
