"""
Reading the capture log for `Capture`: which rows are next, and whether any may be missing.

Each read is one short transaction, `at … max(seq)`, as a source's (R41). It begins with a look
whether the row it goes on after is still the same one (R40), and whether the schema changed
(R39). Nothing here writes.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Mapping, Sequence

from headrace.capture.sqlite import file_identity, readers, setup
from headrace.capture.sqlite.database import reading
from headrace.capture.sqlite.fetching import Reading, Row, fetch
from headrace.capture.sqlite.names import Names
from headrace.capture.sqlite.place import Place, witness
from headrace.capture.sqlite.records import Shape
from headrace.capture.sqlite.resume import compare
from headrace.capture.sqlite.tables import inspect
from headrace.errors import CaptureError, SchemaChanged, SourceRefused, TableRefused

READ_ROWS = 4096
"""Rows of the log in one read, unless batches are larger."""

READ_BYTES = 16 << 20
READ_SECONDS = 0.1
READ_SECONDS_ROLLBACK = 0.004
"""One read transaction at most, with a WAL and without (R42, R44)."""

ANEW = (
    "Run bootstrap_and_cdc (headrace sqlite cdc --bootstrap): it copies the table and goes on"
    " from there."
)


class Owed(Exception):
    """Changes of tables may be missing after all that was read: what else is read is newer."""

    def __init__(self, problems: Mapping[str, CaptureError]) -> None:
        super().__init__(", ".join(problems))
        self.problems = problems
        """By table."""


class Following:
    """Reads on after the places of some tables."""

    def __init__(
        self,
        database: sqlite3.Connection,
        names: Names,
        places: Mapping[str, Place],
        batch_size: int,
    ) -> None:
        capture = setup.capture_id(database, names)
        assert capture is not None
        if file_identity.elsewhere(database, names):
            raise SourceRefused(
                "Database file is another one than the log was made in: restored, or moved",
                log_table=names.log_table,
                remedy=ANEW,
            )
        for table, place in places.items():
            if place.capture != capture:
                raise _reset(table)
            if place.witness == readers.OWED:
                raise SchemaChanged(
                    "Changes of a table were not captured for this reader for a while",
                    table=table,
                    remedy=ANEW,
                )
        self._database = database
        self._names = names
        self._most = max(READ_ROWS, batch_size)
        self.tables = tuple(places)
        self.epoch = capture
        self.at = min(places.values(), key=lambda place: place.seq)
        """The last row that was read."""
        self._beyond = {table: place.seq for table, place in places.items()}
        (mode,) = database.execute("pragma journal_mode").fetchone()
        self._seconds = READ_SECONDS if mode == "wal" else READ_SECONDS_ROLLBACK
        self._version = -1
        self._owed: dict[str, CaptureError] = {}
        self._owed_from = 0
        self.shapes: dict[int, Shape] = {}
        self.width = 1
        self._end = self.at.seq

    @property
    def complete(self) -> bool:
        """Whether `at` is where a transaction ends."""
        return self.at.seq >= self._end

    def read(self) -> list[Row] | None:
        """
        Return the next changes of these tables, in order; None where the log has no more.

        Raises `Owed` when all was read that came before changes which may be missing.
        """
        database = self._database
        with reading(database):
            self._look_at_schema()
            if compare(database, self.at, self._names) != "same":
                raise _reset(None)
            if self.complete:
                (self._end,) = database.execute(
                    f"select max(seq) from {self._names.log}"
                ).fetchone()
            if self._owed and self.at.seq >= self._owed_from:
                raise Owed(self._owed)
            if self.complete:
                return None
            images = ", ".join(f"{side}{at}" for side in "ba" for at in range(self.width))
            rows, _ = fetch(
                database,
                f"select seq, ts, tbl, op, {images} from {self._names.log} "
                f"where seq > ? and seq <= ? order by seq limit {self._most}",
                (self.at.seq, self._end),
                Reading(self._most, READ_BYTES, time.monotonic() + self._seconds),
            )
        return self._taken(rows)

    def moved(self, places: Mapping[str, Place]) -> None:
        """Take it that these tables were copied: their changes count from there on."""
        self._beyond |= {table: place.seq for table, place in places.items()}
        self._owed = {table: why for table, why in self._owed.items() if table not in places}
        self._version = -1

    def leave(self, tables: Sequence[str]) -> None:
        """Take it that somebody took these tables out: their changes are not read any more."""
        self.tables = tuple(table for table in self.tables if table not in tables)
        self._beyond = {table: self._beyond[table] for table in self.tables}
        self._owed = {table: why for table, why in self._owed.items() if table not in tables}
        self._version = -1

    def _taken(self, rows: Sequence[Row]) -> list[Row]:
        shapes, beyond = self.shapes, self._beyond
        taken = []
        for row in rows:
            shape = shapes.get(row[2])  # type: ignore[call-overload]
            if shape is None or row[0] <= beyond[shape.table]:  # type: ignore[operator]
                continue
            if row[3] == setup.REPLANNED:
                # Read up to here and no further: the next read says why.
                self._owed[shape.table] = _missing(shape.table)
                self._owed_from = 0
                rows = rows[: rows.index(row)]
                break
            taken.append(row)
        if rows:
            last = rows[-1]
            self.at = Place(self.epoch, int(str(last[0])), witness(*last[1:4]))
        return taken

    def _look_at_schema(self) -> None:
        database = self._database
        version = int(database.execute("pragma schema_version").fetchone()[0])
        if version == self._version:
            return
        if not setup.complete(database, self._names):
            raise SourceRefused("Capture log is gone", log_table=self._names.log_table, remedy=ANEW)
        plans = setup.plans(database, self._names)
        self.shapes = {
            number: shape_of(plan) for number, plan in plans.items() if plan.table in self._beyond
        }
        self.width = max((len(shape.columns) for shape in self.shapes.values()), default=1)
        problems = not_captured(database, self._names, self.tables)
        if problems and not self._owed:
            # What was logged until now is right as far as it goes, and is handed out first.
            (end,) = database.execute(f"select max(seq) from {self._names.log}").fetchone()
            self._owed_from = int(end or 0)
        self._owed |= problems
        self._version = version


def shape_of(plan: setup.Plan) -> Shape:
    """Return the columns of a plan."""
    return Shape(
        plan.table, tuple(plan.fields), tuple(declared for _, declared, _ in plan.fingerprint)
    )


def not_captured(
    database: sqlite3.Connection, names: Names, tables: Sequence[str]
) -> dict[str, CaptureError]:
    """Return why tables are not captured as they are now; {} where all are."""
    problems: dict[str, CaptureError] = {}
    for name in tables:
        try:
            if setup.amiss(database, [inspect(database, name)], names):
                problems[name] = _missing(name)
        except TableRefused as refused:
            problems[name] = refused
    return problems


def _missing(table: str) -> SchemaChanged:
    return SchemaChanged(
        "Columns or capture triggers of a table changed, so that changes may be missing",
        table=table,
        remedy=ANEW,
    )


def _reset(table: str | None) -> SourceRefused:
    facts = {} if table is None else {"table": table}
    return SourceRefused(
        "Capture log was emptied, or pruned by somebody who reads under the same name",
        remedy=ANEW,
        **facts,
    )
