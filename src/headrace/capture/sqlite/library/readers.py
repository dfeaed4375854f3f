"""
The cursors of the readers of `Capture`: in the database, a row for each table.

The engine keeps its position in its own change log; the library has only the database itself. A
reader has one row for each table, so that a table can be set up later, removed alone, or be read
by a separate process, and no changes of other tables are skipped or lost.

A row protects what follows its cursor from being removed, as the engine's rows do. The cursor is
stored with facts about the log row it names (R40). Instead of these there may be a note that
changes are missing before the cursor (`NEEDS_COPY`): then the table has to be copied first. A
reader that was removed from a table gets such a row when it is set up again. A row that had more
unread changes than may be kept (`retention`) has the capture `EXPIRED`, which protects nothing.

What else has to be known of a row is noted in the table of facts, under a name that begins with
what it is about: how far a bootstrap has come (`CopyPoint`), who runs it (`leases`), and which run
it belongs to if it is ephemeral.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from headrace.capture.sqlite import triggers
from headrace.capture.sqlite.capture_log import (
    ReaderRow,
    compare,
    end_of,
    put_reader,
    reader_rows,
)
from headrace.capture.sqlite.database import (
    DELETE,
    CaptureNames,
    CapturePosition,
    reading,
    writing,
)
from headrace.capture.sqlite.library.leases import Leases, drop_lease, held_by
from headrace.capture.sqlite.library.records import pack_values, unpack_values
from headrace.capture.sqlite.tables import table_names
from headrace.errors import LeaseLost, SourceRefused

NEEDS_COPY = "needs copy"
"""Used instead of `row_facts` if the table has to be copied before its changes are read."""

EXPIRED = "expired"
"""
Used instead of `row_facts` if the reader's changes were more than may be kept; and instead of the
capture's uuid as long as nothing is kept.
"""

_LEFT = "left/"
"""The prefix of notes that a reader was removed from a table."""

_COPY = "copy/"
_EPHEMERAL = "ephemeral/"
_LIMITS = "limits/"


class ReaderExpired(Exception):
    """This reader had more unread changes than may be kept, while it was running."""


@dataclass(frozen=True, slots=True)
class CopyPoint:
    """How far the bootstrap of a table has come, for a run that continues it."""

    first: CapturePosition
    """Where it began: every change after it is delivered afterwards."""

    plan: int
    """The set of columns that it began with; if there is another one, it begins again."""

    key: Sequence[object]
    """The key of the last row that was delivered; empty once all were."""

    def text(self) -> str:
        """Return it as it is stored."""
        return json.dumps([str(self.first), self.plan, pack_values(self.key)])

    @classmethod
    def parse(cls, text: str) -> CopyPoint:
        """Read back what `text` wrote."""
        first, plan, key = json.loads(text)
        return cls(CapturePosition.parse(first), plan, unpack_values(key))


class ReaderCursors:
    """The positions of one reader in one log, on the caller's connection."""

    def __init__(
        self,
        database: sqlite3.Connection,
        names: CaptureNames,
        reader: str,
        leases: Leases | None = None,
    ) -> None:
        self._database = database
        self._names = names
        self._reader = reader
        self._leases = leases
        """Those of the run; without them, nothing can be advanced."""

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
        known = self.positions()
        if new := [table for table in tables if table not in known]:
            with writing(self._database):
                self.enrol(new)

    def enrol(self, tables: Iterable[str], run: str = "") -> None:
        """
        Do the work of `register`, within a transaction of the caller.

        With `run`, the reader is ephemeral: any process that finds this run ended removes it.
        """
        database, names = self._database, self._names
        capture = triggers.capture_id(database, names)
        assert capture is not None
        if triggers.elsewhere(database, names):
            # Numbers of the original file would be used again.
            capture = triggers.renew(database, names)
        elif not triggers.known(database, names):
            triggers.remember(database, names)
        end = end_of(database, capture, names)
        for table in tables:
            name = self._name(table)
            left = database.execute(
                f"delete from {names.meta} where name = ?", (_LEFT + name,)
            ).rowcount
            noted = _noted(table, replace(end, row_facts=NEEDS_COPY) if left else end)
            put_reader(database, ReaderRow(name, capture, end.seq, noted), names)
            self._forget(name)
            if run:
                triggers.put_fact(database, names, _EPHEMERAL + name, run)

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
                    # Until it is copied it stays expired: the copy may be interrupted.
                    expired = position.row_facts == EXPIRED
                    at = replace(end, row_facts=EXPIRED) if expired else end
                    self.settle(table, at, expired=True)

    def _numbers_come_again(self) -> bool:
        """Whether the log was emptied, or the file restored, since positions were stored."""
        database, names = self._database, self._names
        capture = triggers.capture_id(database, names)
        return triggers.elsewhere(database, names) or any(
            position.capture == capture
            and position.row_facts not in (NEEDS_COPY, EXPIRED)
            and compare(database, position, names) == "reset"
            for position in self.positions().values()
        )

    def settle(self, table: str, at: CapturePosition, *, expired: bool = False) -> bool:
        """
        Set a position, whatever it was before; False if the table was removed.

        One that has expired is only set with `expired`: until then the log keeps nothing for it.
        """
        self.check_lease([table])
        done = self._database.execute(
            f"update {self._names.readers} set capture = ?, cursor = ?, tables = ? "
            "where name = ? and (capture <> ? or ?)",
            (
                *(at.capture, at.seq, json.dumps(_noted(table, at))),
                *(self._name(table), EXPIRED, expired),
            ),
        )
        return done.rowcount > 0

    def advance(self, tables: Sequence[str], to: CapturePosition) -> list[str]:
        """
        Move positions forward, never back; return the tables that were removed.

        Raises `LeaseLost` if another run has taken over one of them, and `ReaderExpired` if the
        log keeps nothing for this reader any more.
        """
        assert self._leases is not None
        held = self._leases.held
        rows = {self._name(table): table for table in tables}
        with writing(self._database):
            if not held:
                self._leases.take()
            moved = self._database.executemany(
                f"update {self._names.readers} set cursor = ?, tables = ? "
                f"where name = ? and capture = ? and cursor < ? and {held_by(self._names)}",
                [
                    (
                        *(to.seq, json.dumps(_noted(table, to))),
                        *(name, to.capture, to.seq, name, held.get(name)),
                    )
                    for name, table in rows.items()
                ],
            )
            if moved.rowcount == len(tables):
                return []
            known = self.positions()
            self.check_lease([table for table in tables if table in known])
            if any(known[table].capture == EXPIRED for table in tables if table in known):
                raise ReaderExpired
            return [table for table in tables if table not in known]

    def check_lease(self, tables: Iterable[str]) -> None:
        """Raise `LeaseLost` if another run has taken over one of these; within a transaction."""
        rows = self.rows(tables)
        if self._leases is not None and not self._leases.held:
            self._leases.take()
        if self._leases is not None and (lost := self._leases.lost(list(rows))):
            raise LeaseLost(
                "Another process has taken over this reader",
                reader=self._reader,
                tables=", ".join(rows[name] for name in lost),
            )

    # -- how far a bootstrap has come -------------------------------------------------------

    def copy_points(self) -> dict[str, CopyPoint]:
        """Return how far the bootstrap of each table has come, if one began."""
        found = triggers.facts(self._database, self._names, _COPY)
        rows = {self._name(table): table for table in self.positions()}
        return {rows[name]: CopyPoint.parse(str(text)) for name, text in found if name in rows}

    def put_copy_point(self, table: str, point: CopyPoint | None) -> None:
        """Store how far a bootstrap has come, or forget it; within a transaction."""
        name = _COPY + self._name(table)
        if point is None:
            self._database.execute(f"delete from {self._names.meta} where name = ?", (name,))
        else:
            triggers.put_fact(self._database, self._names, name, point.text())

    # -- ephemeral readers ------------------------------------------------------------------

    def ephemeral(self) -> list[str]:
        """Return the names of all rows that belong to ephemeral readers."""
        return [name for name, _ in triggers.facts(self._database, self._names, _EPHEMERAL)]

    def refuse_lasting(self) -> None:
        """Raise an error if this reader exists and is not ephemeral."""
        marked = self.ephemeral()
        if any(self._name(table) not in marked for table in self.positions()):
            raise SourceRefused(
                "The reader exists and is not ephemeral",
                reader=self._reader,
                remedy="Use another reader name, or none, for an ephemeral capture.",
            )

    # -- what is kept for them --------------------------------------------------------------

    def rows(self, tables: Iterable[str]) -> dict[str, str]:
        """Return the names of the rows of these tables, each with its table."""
        return {self._name(table): table for table in tables}

    def put_limits(self, text: str) -> None:
        """Store what may be kept for this reader."""
        triggers.put_fact(self._database, self._names, _LIMITS + self._reader, text)

    def limits(self) -> str | None:
        """Return what `put_limits` stored."""
        found = dict(triggers.facts(self._database, self._names, _LIMITS))
        text = found.get(self._reader)
        return None if text is None else str(text)

    def put_history(self, capture: str, cursor: int | None) -> None:
        """Keep the log from `cursor` on although it was read; None: no longer."""
        name = f"{triggers.LIBRARY}{self._reader}"  # no table's row: those have another slash
        if cursor is None:
            self._database.execute(f"delete from {self._names.readers} where name = ?", (name,))
        else:
            put_reader(self._database, ReaderRow(name, capture, cursor, {}), self._names)

    def history(self) -> int | None:
        """Return the cursor that `put_history` stored."""
        name = f"{triggers.LIBRARY}{self._reader}"  # no table's row: those have another slash
        row = self._database.execute(
            f"select cursor from {self._names.readers} where name = ?", (name,)
        ).fetchone()
        return None if row is None else int(row[0])

    # -- removal ----------------------------------------------------------------------------

    def take_out(
        self, tables: Sequence[str] | None, *, traces: bool = True
    ) -> tuple[int, list[str]]:
        """
        Remove `tables`; return how many changes were not read, and which tables stay captured.

        A table stays captured as long as it has another reader, and the log stays as long as it
        has any reader. All of it is one transaction: a trigger without its log would make every
        write of the application fail (R42). If `tables` is None, all tables of this reader are
        removed, and everything if the log has an unknown format. A table that neither exists nor is
        captured raises `TableRefused`. Without `traces`, nothing is noted about tables that stay.
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
                self._forget(name)
                if traces:
                    triggers.put_fact(database, names, _LEFT + name, 1)
            if not self.positions():
                self.put_history("", None)
                database.execute(
                    f"delete from {names.meta} where name = ?", (_LIMITS + self._reader,)
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

    def _forget(self, name: str) -> None:
        """Remove what was noted about a row."""
        for prefix in (_COPY, _EPHEMERAL):
            self._database.execute(
                f"delete from {self._names.meta} where name = ?", (prefix + name,)
            )
        drop_lease(self._database, self._names, name)

    def _unread(self, at: Mapping[str, CapturePosition]) -> int:
        plans = triggers.plans(self._database, self._names)
        count = 0
        for table, position in at.items():
            own = ", ".join(str(number) for number, plan in plans.items() if plan.table == table)
            (found,) = self._database.execute(
                f"select count(*) from {self._names.log} "
                f"where seq > ? and tbl in ({own}) and op <= ?",
                (position.seq, DELETE),  # not markers, nor the first half of an update
            ).fetchone()
            count += int(found)
        return count

    def _name(self, table: str) -> str:
        return f"{triggers.LIBRARY}{self._reader}/{table}"


def _noted(table: str, position: CapturePosition) -> dict[str, str | None]:
    return {table: None if position.row_facts == NEEDS_COPY else position.row_facts}


# --- ephemeral readers that were killed -----------------------------------------------------------


def sweep_ephemeral(
    database: sqlite3.Connection, names: CaptureNames, alive: Callable[[str], bool]
) -> None:
    """Remove ephemeral readers whose runs have ended without doing it themselves."""
    ended: dict[str, list[str]] = {}
    for name, run in triggers.facts(database, names, _EPHEMERAL):
        if not alive(str(run)):
            reader, _, table = name.removeprefix(triggers.LIBRARY).partition("/")
            ended.setdefault(reader, []).append(table)
    for reader, tables in ended.items():
        ReaderCursors(database, names, reader).take_out(tables, traces=False)
