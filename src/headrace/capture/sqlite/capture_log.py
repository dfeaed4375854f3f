"""
The capture log as its readers see it: the readers, the position of each, and the next rows.

A reader remembers the last row that it has read. Whether the history continues after that row
depends on the database, and there are four cases: it continues; what follows was pruned, or a
table's triggers were missing for a while, so that changes are lost (a gap); the capture log was
emptied or comes from a copy, so that its numbers have no meaning any more (a new lineage); or this
is another capture (R1, R39, R40).

`CaptureLog` reads what follows: `cursor … max(seq)` in one short read transaction, which always
ends between two transactions of the application, because SQLite never shows a reader half of one
(R41). Engine and library both use it, and differ in what they do when the history is interrupted.
"""

from __future__ import annotations

import json
import math
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
    row_facts,
    writing,
)
from headrace.capture.sqlite.triggers import LOG, REPLANNED, STARTED

# --- reading the log ------------------------------------------------------------------------------

READ_BYTES = 16 << 20
READ_SECONDS = 0.1
READ_SECONDS_ROLLBACK = 0.004
"""The limits of one read transaction, with a WAL and without; more is read in parts (R42, R44)."""


class CaptureLog:
    """Reads rows after `at`, the last one taken; call all methods within a read transaction."""

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
        """Whether `at` is the end of a transaction of the application."""
        return self.at.seq >= self._end

    @property
    def end(self) -> int:
        """The last row of the group that is being read: the end of a transaction."""
        return self._end

    def goes_on(self) -> bool:
        """Whether the row at `at` still exists unchanged: otherwise reading cannot continue."""
        return compare(self._database, self.at, self._names) == "same"

    def read(self, most: int, width: int) -> list[Row]:
        """
        Return the next rows, [] if there are none; `advance` moves past them.

        A row consists of seq, ts, tbl, op and both images, each `width` columns wide.
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
        """Move past all rows up to this one."""
        self.at = CapturePosition.of(self.at.capture, last)


SAMPLED_ROWS = 8
"""The newest rows, whose sizes stand for all: counting every byte would read the whole log."""


def row_bytes(database: sqlite3.Connection, names: CaptureNames = OURS) -> float:
    """Return the approximate size of a row of the log, the average of the newest ones."""
    (last,) = database.execute(f"select max(seq) from {names.log}").fetchone()
    limits = ReadLimits(SAMPLED_ROWS, READ_BYTES, math.inf)
    query = f"select * from {names.log} where seq > ? order by seq desc"
    rows, _ = fetch(database, query, (int(last or 0) - SAMPLED_ROWS,), limits)
    return sum(map(_stored_bytes, rows)) / len(rows) if rows else 0.0


def _stored_bytes(row: Row) -> int:
    """Return about how many bytes SQLite stores for a row: a null has only its header."""
    values = (len(each) if isinstance(each, str | bytes) else 6 for each in row if each is not None)
    return len(row) + sum(values)


def compare(
    database: sqlite3.Connection, position: CapturePosition, names: CaptureNames = OURS
) -> Literal["same", "pruned", "reset"]:
    """Return whether the row that `position` names still exists unchanged (R40)."""
    row = database.execute(
        f"select ts, tbl, op from {names.log} where seq = ?", (position.seq,)
    ).fetchone()
    if row is not None:
        return "same" if row_facts(*row) == position.row_facts else "reset"
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


# --- readers --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ReaderRow:
    """One row of the table of readers."""

    name: str
    capture: str
    cursor: int
    """Rows after this one stay in the log."""

    tables: Mapping[str, object]
    """
    The tables that it reads. An engine has one row, with True for each table, or False for a table
    that it no longer reads. A reader of the library has a row for each table, with the `row_facts`
    of its cursor, or None.
    """


def reader_rows(database: sqlite3.Connection, names: CaptureNames = OURS) -> Iterator[ReaderRow]:
    """Iterate over the rows of all readers, by name."""
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


# --- where an engine continues --------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CaptureReader:
    """A reader of a capture log, and what it reads."""

    name: str
    tables: tuple[str, ...]
    plans: tuple[int, ...]
    """The plans of these tables, old and new ones."""

    removed_before: CapturePosition | None = None
    """A row before which rows were found to be missing: reading cannot continue from there."""


def resume(
    database: sqlite3.Connection,
    capture: str,
    wanted: CapturePosition | None,
    reader: CaptureReader,
) -> CapturePosition:
    """Return `wanted` if the history continues there, else another position; register it."""
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
            # The log was emptied or comes from a copy: its numbers have no meaning now.
            capture = triggers.renew(database)
            position = end_of(database, capture)
        elif lapsed:
            # A table was left out for a while, and this reader skipped its changes.
            triggers.mark(database, STARTED)
            position = end_of(database, capture)
        put_reader(database, ReaderRow(reader.name, capture, position.seq, now))
    return position


def _protects(row: ReaderRow, position: CapturePosition, tables: Mapping[str, object]) -> bool:
    """Whether a reader's row keeps what follows `position` from being removed."""
    return row.capture == position.capture and row.cursor <= position.seq and row.tables == tables


def _following(
    database: sqlite3.Connection,
    capture: str,
    wanted: CapturePosition | None,
    reader: CaptureReader,
) -> CapturePosition | None:
    """Return the position; None if the log needs a new uuid."""
    if wanted is None or wanted.capture != capture:
        return end_of(database, capture)
    match compare(database, wanted):
        case "same" if _is_interrupted(wanted, reader.removed_before):
            return end_of(database, capture)
        case "same":
            return _beyond_replans(database, wanted, reader)
        case "pruned":
            return end_of(database, capture)
        case "reset":
            return None


def _is_interrupted(position: CapturePosition, before: CapturePosition | None) -> bool:
    return before is not None and before.capture == position.capture and position.seq < before.seq


def _beyond_replans(
    database: sqlite3.Connection, position: CapturePosition, reader: CaptureReader
) -> CapturePosition:
    """Return `position`, or the last marker after it for changes that may be missing (R39)."""
    plans = ", ".join(map(str, reader.plans))
    row = database.execute(
        f"select seq, ts, tbl, op from {LOG} "
        f"where seq > ? and op = ? and tbl in ({plans}) order by seq desc limit 1",
        (position.seq, REPLANNED),
    ).fetchone()
    return position if row is None else CapturePosition.of(position.capture, row)
