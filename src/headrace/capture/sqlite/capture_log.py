"""
The capture log as its readers see it: who reads, where each reads on from, and the next rows.

A reader remembers the last row it has. Whether history goes on after that row is
for the database to say, and there are four answers: it does; what follows was pruned, or
a table's triggers were away for a while, so that changes are missing (a gap); the capture
log was emptied or comes from a copy, so that its numbers mean nothing any more (a new
lineage); or this is another capture altogether (R1, R39, R40).

`CaptureLog` reads on from there: `cursor … max(seq)` in one short read transaction, which always
ends between two transactions of the application, because SQLite shows no reader half of one
(R41). Engine and library read by it alike, and differ in what they do where history breaks off.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from headrace.capture.sqlite import triggers
from headrace.capture.sqlite.database import (
    OURS,
    CaptureNames,
    CapturePosition,
    ReadLimits,
    Row,
    fetch,
    has_wal,
    reading,
    witness,
    writing,
)
from headrace.capture.sqlite.triggers import LOG, REPLANNED, STARTED

# --- reading on -----------------------------------------------------------------------------------

READ_BYTES = 16 << 20
READ_SECONDS = 0.1
READ_SECONDS_ROLLBACK = 0.004
"""One read transaction at most, with a WAL and without; more comes in parts (R42, R44)."""


class CaptureLog:
    """Rows after `at`, the last one that was taken; all methods within a read transaction."""

    def __init__(
        self, database: sqlite3.Connection, at: CapturePosition, names: CaptureNames = OURS
    ) -> None:
        self.at = at
        self._database = database
        self._names = names
        self._seconds = READ_SECONDS if has_wal(database) else READ_SECONDS_ROLLBACK
        self._end = at.seq

    @property
    def complete(self) -> bool:
        """Whether `at` is where a transaction of the application ends."""
        return self.at.seq >= self._end

    def goes_on(self) -> bool:
        """Whether the row at `at` is still there and the same: otherwise no row follows it."""
        return compare(self._database, self.at, self._names) == "same"

    def read(self, most: int, width: int) -> list[Row]:
        """
        Return the next rows, [] where there are none; `advance` takes them.

        A row is seq, ts, tbl, op and both images, each `width` columns wide.
        """
        if self.complete:
            (self._end,) = self._database.execute(
                f"select max(seq) from {self._names.log}"
            ).fetchone()
        if self.complete:
            return []
        images = ", ".join(f"{side}{number}" for side in "ba" for number in range(width))
        rows, _ = fetch(
            self._database,
            f"select seq, ts, tbl, op, {images} from {self._names.log} "
            f"where seq > ? and seq <= ? order by seq limit {most}",
            (self.at.seq, self._end),
            ReadLimits(most, READ_BYTES, time.monotonic() + self._seconds),
        )
        return rows

    def advance(self, last: Row) -> None:
        """Take all rows up to this one."""
        self.at = CapturePosition.of(self.at.capture, last)


def compare(
    database: sqlite3.Connection, position: CapturePosition, names: CaptureNames = OURS
) -> Literal["same", "pruned", "reset"]:
    """Say what became of the row that `position` names (R40)."""
    row = database.execute(
        f"select ts, tbl, op from {names.log} where seq = ?", (position.seq,)
    ).fetchone()
    if row is not None:
        return "same" if witness(*row) == position.witness else "reset"
    (first,) = database.execute(f"select min(seq) from {names.log}").fetchone()
    return "pruned" if first is not None and first > position.seq else "reset"


def end_of(
    database: sqlite3.Connection, capture: str, names: CaptureNames = OURS
) -> CapturePosition:
    """Return the last row of the log."""
    row = database.execute(
        f"select seq, ts, tbl, op from {names.log} order by seq desc limit 1"
    ).fetchone()
    return CapturePosition(capture, 0) if row is None else CapturePosition.of(capture, row)


# --- who reads ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ReaderRow:
    """One row of the table of readers."""

    name: str
    capture: str
    cursor: int
    """Rows after this one stay in the log."""

    tables: Mapping[str, object]
    """
    What it reads. An engine has one row: True, or False where it left a table out. A reader of
    the library has a row a table: the witness of its cursor, or None.
    """


def reader_rows(database: sqlite3.Connection, names: CaptureNames = OURS) -> Iterator[ReaderRow]:
    """Iterate over all who read, by name."""
    for name, capture, cursor, tables in database.execute(
        f"select name, capture, cursor, tables from {names.readers} order by name"
    ).fetchall():
        yield ReaderRow(name, capture, cursor, json.loads(tables))


def put_reader(database: sqlite3.Connection, row: ReaderRow, names: CaptureNames = OURS) -> None:
    """Register a reader, or replace its row; within a transaction."""
    database.execute(
        f"insert or replace into {names.readers} values (?, ?, ?, ?)",
        (row.name, row.capture, row.cursor, json.dumps(row.tables)),
    )


# --- where an engine reads on ---------------------------------------------------------------------


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
    """Return `wanted` if history goes on there, else a later or a new position; register it."""
    with reading(database):
        row = next((row for row in reader_rows(database) if row.name == reader.name), None)
        position = _following(database, capture, wanted, reader)
    before = {} if row is None else row.tables
    now = {**dict.fromkeys(before, False), **dict.fromkeys(reader.tables, True)}
    lapsed = any(before.get(name) is False for name in reader.tables)
    if position is not None and not lapsed and row is not None and _protects(row, position, now):
        return position
    with writing(database):
        if position is None:
            # The log was emptied or comes from a copy: its numbers mean nothing now.
            capture = triggers.renew(database)
            position = end_of(database, capture)
        elif lapsed:
            # A table was left out for a while, and this reader skipped its changes.
            triggers.mark(database, STARTED)
            position = end_of(database, capture)
        put_reader(database, ReaderRow(reader.name, capture, position.seq, now))
    return position


def _protects(row: ReaderRow, position: CapturePosition, tables: Mapping[str, object]) -> bool:
    """Whether a row among the readers keeps what follows `position` from being removed."""
    return row.capture == position.capture and row.cursor <= position.seq and row.tables == tables


def _following(
    database: sqlite3.Connection,
    capture: str,
    wanted: CapturePosition | None,
    reader: CaptureReader,
) -> CapturePosition | None:
    """Return the position; None where numbers have to begin again."""
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
    database: sqlite3.Connection, position: CapturePosition, reader: CaptureReader
) -> CapturePosition:
    """Return `position`, or the last mark after it that says: changes may be missing here (R39)."""
    plans = ", ".join(map(str, reader.plans))
    row = database.execute(
        f"select seq, ts, tbl, op from {LOG} "
        f"where seq > ? and op = ? and tbl in ({plans}) order by seq desc limit 1",
        (position.seq, REPLANNED),
    ).fetchone()
    return position if row is None else CapturePosition.of(position.capture, row)
