"""
The cursors of the readers of `Capture`: in the database, a row a table.

The engine keeps its position in its own change log; the library has only the database itself. It
is a row a table, and not one a reader, so that a table can be set up later, taken out alone, or be
read by a process of its own, and nothing of the others is skipped or lost.

A row protects what follows its cursor from being removed, as the engine's rows do. The cursor
comes with a witness of the log row it names (R40). Instead of one there may be a note that changes
are missing before the cursor (`NEEDS_COPY`): then only a copy of the table leads there. A reader
that was taken out of a table gets such a row when it comes back.
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
"""Stands for the witness where the table has to be copied before its changes are read."""

_LEFT = "left/"
"""How the notes begin that a reader was taken out of a table."""


class ReaderCursors:
    """The positions of one reader in one log, on a connection of the caller's."""

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
                row.capture, row.cursor, NEEDS_COPY if witness is None else str(witness)
            )
            for row in reader_rows(self._database, self._names)
            for table, witness in row.tables.items()
            if row.name == self._name(table)
        }

    def tables(self) -> list[str]:
        """Return what is read by default: the tables of this reader, or all there are."""
        return list(self.positions()) or table_names(self._database)

    def register(self, tables: Iterable[str]) -> None:
        """
        Begin at the log's end with those tables that this reader has no position in yet.

        Where it was taken out before, it has missed changes and has to copy the table.
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
                # Numbers of the file it came from would come again.
                capture = triggers.renew(database, names)
            elif not triggers.known(database, names):
                triggers.remember(database, names)
            end = end_of(database, capture, names)
            for table in new:
                name = self._name(table)
                left = database.execute(
                    f"delete from {names.meta} where name = ?", (_LEFT + name,)
                ).rowcount
                noted = _noted(table, replace(end, witness=NEEDS_COPY) if left else end)
                put_reader(database, ReaderRow(name, capture, end.seq, noted), names)

    def repair(self) -> None:
        """
        Give a log whose rows were lost a new name, because its numbers come again (R40).

        Cursors of a log that is gone move to the end of this one, and their tables need a copy.
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
            # Looked at again: another process may have done it before we got the lock.
            if not triggers.complete(database, names):
                return
            if self._numbers_come_again():
                triggers.renew(database, names)
            elif not triggers.known(database, names):
                triggers.remember(database, names)
            capture = str(triggers.capture_id(database, names))
            # What follows from here on stays in the log while rows are copied.
            end = replace(end_of(database, capture, names), witness=NEEDS_COPY)
            for table, position in self.positions().items():
                if position.capture != capture:
                    self.settle(table, end)

    def _numbers_come_again(self) -> bool:
        """Whether the log was emptied, or the file restored, since positions were stored in it."""
        database, names = self._database, self._names
        capture = triggers.capture_id(database, names)
        return triggers.elsewhere(database, names) or any(
            position.capture == capture
            and position.witness != NEEDS_COPY
            and compare(database, position, names) == "reset"
            for position in self.positions().values()
        )

    def settle(self, table: str, at: CapturePosition) -> bool:
        """Set a position, wherever it was before; False where the table was taken out."""
        done = self._database.execute(
            f"update {self._names.readers} set capture = ?, cursor = ?, tables = ? where name = ?",
            (at.capture, at.seq, json.dumps(_noted(table, at)), self._name(table)),
        )
        return done.rowcount > 0

    def advance(self, tables: Sequence[str], to: CapturePosition) -> list[str]:
        """Move positions forward, never back; return those tables that were taken out."""
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
        Take `tables` out; return how many changes were not read, and which tables stay captured.

        A table stays captured as long as another reader has it, and the log as long as it has any
        reader. It is one transaction: a trigger without its log would make every write of the
        application fail (R42). `tables` None are all of this reader's. A table that is neither
        there nor captured raises `TableRefused`.
        """
        database, names = self._database, self._names
        with writing(database):
            if tables is not None:
                tables = [triggers.captured_as(database, table, names) for table in tables]
            if not triggers.complete(database, names):
                # A part of it was dropped, and triggers that are left make writes fail.
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
    return {table: None if position.witness == NEEDS_COPY else position.witness}
