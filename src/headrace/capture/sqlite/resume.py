"""
Finding the place to read on from.

A log of ours remembers the last row it has. Whether history goes on after that row is
for the database to say, and there are four answers: it does; what follows was pruned, or
a table's triggers were away for a while, so that changes are missing (a gap); the capture
log was emptied or comes from a copy, so that its numbers mean nothing any more (a new
lineage); or this is another capture altogether (R1, R39, R40).
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from headrace.capture.sqlite import triggers
from headrace.capture.sqlite.database import (
    OURS,
    CaptureNames,
    CapturePosition,
    reading,
    witness,
    writing,
)
from headrace.capture.sqlite.triggers import LOG, READERS, REPLANNED, STARTED


@dataclass(frozen=True, slots=True)
class CaptureReader:
    """One who reads a capture log, and what."""

    name: str
    tables: tuple[str, ...]
    plans: tuple[int, ...]
    """The plans of these tables, old and new."""


def resume(
    database: sqlite3.Connection,
    capture: str,
    wanted: CapturePosition | None,
    reader: CaptureReader,
) -> CapturePosition:
    """Return `wanted` if history goes on there, otherwise a later or a new place; register it."""
    with reading(database):
        before = _tables_before(database, reader)
        place = _following(database, capture, wanted, reader)
    now = {**dict.fromkeys(before, False), **dict.fromkeys(reader.tables, True)}
    lapsed = any(before.get(name) is False for name in reader.tables)
    if place is not None and not lapsed and _registered(database, place, reader, now):
        return place
    with writing(database):
        if place is None:
            # The log was emptied or comes from a copy: its numbers mean nothing now.
            capture = triggers.renew(database)
            place = end_of(database, capture)
        elif lapsed:
            # A table was left out for a while, and this reader skipped its changes.
            triggers.mark(database, STARTED)
            place = end_of(database, capture)
        database.execute(
            f"insert or replace into {READERS} values (?, ?, ?, ?)",
            (reader.name, capture, place.seq, json.dumps(now)),
        )
    return place


def compare(
    database: sqlite3.Connection, place: CapturePosition, names: CaptureNames = OURS
) -> Literal["same", "pruned", "reset"]:
    """Say what became of the row that `place` names (R40)."""
    row = database.execute(
        f"select ts, tbl, op from {names.log} where seq = ?", (place.seq,)
    ).fetchone()
    if row is not None:
        return "same" if witness(*row) == place.witness else "reset"
    (first,) = database.execute(f"select min(seq) from {names.log}").fetchone()
    return "pruned" if first is not None and first > place.seq else "reset"


def _following(
    database: sqlite3.Connection,
    capture: str,
    wanted: CapturePosition | None,
    reader: CaptureReader,
) -> CapturePosition | None:
    """Return the place; None where numbers have to begin anew."""
    if wanted is None or wanted.capture != capture:
        return end_of(database, capture)
    match compare(database, wanted):
        case "same":
            return _beyond_replans(database, wanted, reader)
        case "pruned":
            return end_of(database, capture)
        case "reset":
            return None


def _beyond_replans(
    database: sqlite3.Connection, place: CapturePosition, reader: CaptureReader
) -> CapturePosition:
    """Return `place`, or the last mark after it that says: changes may be missing here (R39)."""
    plans = ", ".join(map(str, reader.plans))
    row = database.execute(
        f"select seq, ts, tbl, op from {LOG} "
        f"where seq > ? and op = ? and tbl in ({plans}) order by seq desc limit 1",
        (place.seq, REPLANNED),
    ).fetchone()
    return place if row is None else CapturePosition(place.capture, row[0], witness(*row[1:]))


def end_of(
    database: sqlite3.Connection, capture: str, names: CaptureNames = OURS
) -> CapturePosition:
    """Return the last row of the log."""
    row = database.execute(
        f"select seq, ts, tbl, op from {names.log} order by seq desc limit 1"
    ).fetchone()
    return (
        CapturePosition(capture, 0)
        if row is None
        else CapturePosition(capture, row[0], witness(*row[1:]))
    )


def _tables_before(database: sqlite3.Connection, reader: CaptureReader) -> dict[str, bool]:
    """Return every table this reader ever read, and whether it did so last time."""
    row = database.execute(
        f"select tables from {READERS} where name = ?", (reader.name,)
    ).fetchone()
    return {} if row is None else json.loads(row[0])


def _registered(
    database: sqlite3.Connection,
    place: CapturePosition,
    reader: CaptureReader,
    tables: Mapping[str, bool],
) -> bool:
    """Whether our row among the readers protects what follows `place` already."""
    row = database.execute(
        f"select capture, cursor, tables from {READERS} where name = ?", (reader.name,)
    ).fetchone()
    return (
        row is not None
        and row[0] == place.capture
        and row[1] <= place.seq
        and json.loads(row[2]) == dict(tables)
    )
