"""
Beginning anew with a database that was captured before.

Nobody else reads its capture: then triggers and log go, and the next capture has a name of its
own, so history begins anew (R1). What was written down of the tables' columns stays, because
a column's number must never come to mean another one. Somebody else does: then only this
reader's place goes; he alone finds a gap, as after tables that were left out for a while.
"""

from __future__ import annotations

import json
import sqlite3

from headrace.capture.sqlite import setup
from headrace.capture.sqlite.database import writing
from headrace.capture.sqlite.setup import LOG, READERS


def forget(database: sqlite3.Connection, reader: str) -> None:
    """
    Let the reader called `reader` begin anew when he opens the database next.

    It is one transaction: after a death in the middle nothing has happened. Writes of the
    application between this and the next opening are not captured, and are copied instead.
    """
    with writing(database):
        if setup.complete(database) and _others(database, reader):
            _lapse(database, reader)
        else:
            setup.drop_log(database)


def _others(database: sqlite3.Connection, reader: str) -> bool:
    found = database.execute(f"select 1 from {READERS} where name <> ?", (reader,)).fetchone()
    return found is not None


def _lapse(database: sqlite3.Connection, reader: str) -> None:
    """Note that the reader left out all his tables."""
    (before,) = database.execute(
        f"select tables from {READERS} where name = ?", (reader,)
    ).fetchone() or ("{}",)
    left_out = json.dumps(dict.fromkeys(json.loads(before), False))
    (end,) = database.execute(f"select coalesce(max(seq), 0) from {LOG}").fetchone()
    database.execute(
        f"insert or replace into {READERS} values (?, ?, ?, ?)",
        (reader, setup.capture_id(database), end, left_out),
    )
