"""
The cursors of the readers of `Capture`: in the database, a row for each table.

The engine keeps its position in its own change log; the library has only the database itself. A
reader has one row for each table, so that a table can be set up later, removed alone, or be read
by a separate process, and no changes of other tables are skipped or lost.

A row protects what follows its cursor from being removed, as the engine's rows do. The cursor is
stored with facts about the log row it names (R40). Instead of these there may be a note that
changes are missing before the cursor (`NEEDS_COPY`): then the table has to be copied first. A
reader that was removed from a table gets such a row when it is set up again.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from headrace.capture.sqlite import triggers
from headrace.capture.sqlite.capture_log import (
    ReaderRow,
    compare,
    end_of,
    put_reader,
    reader_rows,
)
from headrace.capture.sqlite.database import CaptureNames, CapturePosition, reading, writing
from headrace.capture.sqlite.tables import table_names

NEEDS_COPY = "needs copy"
"""Used instead of `row_facts` if the table has to be copied before its changes are read."""

_LEFT = "left/"
"""The prefix of notes that a reader was removed from a table."""


class ReaderCursors:
    """The positions of one reader in one log, on the caller's connection."""

    def __init__(self, database: sqlite3.Connection, names: CaptureNames, reader: str) -> None:
        self._database = database
        self._names = names
        self._reader = reader

    def positions(self) -> dict[str, CapturePosition]:
        """Return the position in each table that was set up for this reader."""
        if not triggers.complete(self._database, self._names):
            return {}
        return {
            table: CapturePosition(
                row.capture, row.cursor, NEEDS_COPY if row_facts is None else str(row_facts)
            )
            for row in reader_rows(self._database, self._names)
            for table, row_facts in row.tables.items()
            if row.name == self._name(table)
        }

    def tables(self) -> list[str]:
        """Return the tables that are read by default: those of this reader, or all tables."""
        return list(self.positions()) or table_names(self._database)

    def register(self, tables: Iterable[str]) -> None:
        """
        Begin at the log's end for the tables in which this reader has no position yet.

        If it was removed from a table before, it has missed changes and has to copy the table.
        """
        database, names = self._database, self._names
        known = self.positions()
        new = [table for table in tables if table not in known]
        if not new:
            return
        with writing(database):
            capture = triggers.capture_id(database, names)
            assert capture is not None
            if triggers.elsewhere(database, names):
                # Numbers of the original file would be used again.
                capture = triggers.renew(database, names)
            elif not triggers.known(database, names):
                triggers.remember(database, names)
            end = end_of(database, capture, names)
            for table in new:
                name = self._name(table)
                left = database.execute(
                    f"delete from {names.meta} where name = ?", (_LEFT + name,)
                ).rowcount
                noted = _noted(table, replace(end, row_facts=NEEDS_COPY) if left else end)
                put_reader(database, ReaderRow(name, capture, end.seq, noted), names)

    def repair(self) -> None:
        """
        Give a log whose rows were lost a new uuid, because its numbers are used again (R40).

        Cursors in a log that no longer exists move to the end of this one, and their tables need
        a copy.
        """
        database, names = self._database, self._names
        with reading(database):
            capture = triggers.capture_id(database, names)
            if not (positions := self.positions()) or (
                all(position.capture == capture for position in positions.values())
                and triggers.known(database, names)
                and not self._numbers_come_again()
            ):
                return
        with writing(database):
            # Checked again: another process may have done it before we got the lock.
            if not triggers.complete(database, names):
                return
            if self._numbers_come_again():
                triggers.renew(database, names)
            elif not triggers.known(database, names):
                triggers.remember(database, names)
            capture = str(triggers.capture_id(database, names))
            # Changes after this stay in the log while rows are copied.
            end = replace(end_of(database, capture, names), row_facts=NEEDS_COPY)
            for table, position in self.positions().items():
                if position.capture != capture:
                    self.settle(table, end)

    def _numbers_come_again(self) -> bool:
        """Whether the log was emptied, or the file restored, since positions were stored."""
        database, names = self._database, self._names
        capture = triggers.capture_id(database, names)
        return triggers.elsewhere(database, names) or any(
            position.capture == capture
            and position.row_facts != NEEDS_COPY
            and compare(database, position, names) == "reset"
            for position in self.positions().values()
        )

    def settle(self, table: str, at: CapturePosition) -> bool:
        """Set a position, whatever it was before; False if the table was removed."""
        done = self._database.execute(
            f"update {self._names.readers} set capture = ?, cursor = ?, tables = ? where name = ?",
            (at.capture, at.seq, json.dumps(_noted(table, at)), self._name(table)),
        )
        return done.rowcount > 0

    def advance(self, tables: Sequence[str], to: CapturePosition) -> list[str]:
        """Move positions forward, never back; return the tables that were removed."""
        with writing(self._database):
            moved = self._database.executemany(
                f"update {self._names.readers} set cursor = ?, tables = ? "
                "where name = ? and capture = ? and cursor < ?",
                [
                    (
                        *(to.seq, json.dumps(_noted(table, to))),
                        *(self._name(table), to.capture, to.seq),
                    )
                    for table in tables
                ],
            )
            if moved.rowcount == len(tables):
                return []
            known = self.positions()
            return [table for table in tables if table not in known]

    def take_out(self, tables: Sequence[str] | None) -> tuple[int, list[str]]:
        """
        Remove `tables`; return how many changes were not read, and which tables stay captured.

        A table stays captured as long as it has another reader, and the log stays as long as it
        has any reader. All of it is one transaction: a trigger without its log would make every
        write of the application fail (R42). If `tables` is None, all tables of this reader are
        removed, and everything if the log has an unknown format. A table that neither exists nor is
        captured raises `TableRefused`.
        """
        database, names = self._database, self._names
        with writing(database):
            if tables is None and not triggers.has_known_format(database, names):
                # The readers and tables of another version cannot be told apart.
                triggers.take_out(database, None, names)
                return 0, []
            if tables is not None:
                tables = [triggers.captured_as(database, table, names) for table in tables]
            if not triggers.complete(database, names):
                # Some of our tables were dropped, and the remaining triggers make writes fail.
                triggers.take_out(database, tables, names)
                return 0, []
            known = self.positions()
            out = list(known if tables is None else dict.fromkeys(tables))
            leaves = {table: known[table] for table in out if table in known}
            unread = self._unread(leaves)
            for table in leaves:
                name = self._name(table)
                database.execute(f"delete from {names.readers} where name = ?", (name,))
                database.execute(
                    f"insert or replace into {names.meta} values (?, 1)", (_LEFT + name,)
                )
            read = {
                table
                for row in reader_rows(database, names)
                for table, reads in row.tables.items()
                if reads is not False
            }
            stays = [table for table in out if table in read]
            triggers.take_out(database, [table for table in out if table not in read], names, read)
            return unread, stays

    def _unread(self, at: Mapping[str, CapturePosition]) -> int:
        plans = triggers.plans(self._database, self._names)
        count = 0
        for table, position in at.items():
            own = ", ".join(str(number) for number, plan in plans.items() if plan.table == table)
            (found,) = self._database.execute(
                f"select count(*) from {self._names.log} "
                f"where seq > ? and tbl in ({own}) and op < ?",
                (position.seq, triggers.REPLANNED),
            ).fetchone()
            count += int(found)
        return count

    def _name(self, table: str) -> str:
        return f"{triggers.LIBRARY}{self._reader}/{table}"


def _noted(table: str, position: CapturePosition) -> dict[str, str | None]:
    return {table: None if position.row_facts == NEEDS_COPY else position.row_facts}
