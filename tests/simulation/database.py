"""
The application's database, which really forgets what it may forget.

A memory source keeps its history for ever, and a wrong acknowledgement would do no harm.
This one drops what was acknowledged, so that the harm shows; and it keeps the truth aside
for the check: every change, and every table as of every commit. Each recorder has a
session of its own, as it would have a connection.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

from headrace.capture.source import (
    Lag,
    Problem,
    SourceNotice,
    SourcePosition,
    SourceSpec,
    SourceTraits,
)
from headrace.changelog.change import Change, Changes
from headrace.changelog.schema import TableName, TableSchema
from headrace.errors import SourceUnreachable
from headrace.testing.source import Key, MemoryCopy, MemoryPosition, MemorySource, Row, _Commit

TABLES = ("orders", "items", "stock")
COLUMNS = {"id": "int64", "kind": "text", "n": "int64", "note": "text"}

Rows = dict[Key, Row]
Told = tuple[TableName, Change]


class Violation(AssertionError):
    """Something is not as it must be."""


class Database(MemorySource):
    """One database with three tables."""

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__("shop", clock=clock)
        self.skew = 0.0
        """Seconds by which the wall clock of engines is wrong."""
        self.away = False
        self.lost_answers = 0
        """How many acknowledgements will take effect and fail nevertheless."""
        self.acknowledged_upto = MemoryPosition(0, 0)
        """The furthest of all acknowledgements: a recorder that should be dead may speak last."""
        self.floor = 0
        """Commits at or before it are gone."""
        self.injected_floor = 0
        """The part of it that nobody allowed."""
        self.gaps_given: set[str] = set()
        """Places that a session was sent to, because what lay before is gone."""
        self.lives = [1]
        self.truth: dict[int, list[list[Told]]] = {1: [[]]}
        """For every life, the changes of each commit, by its number; 0 has none."""
        self.states: dict[int, list[dict[TableName, Rows]]] = {1: []}
        """For every life, all tables after each commit."""
        self.rewritten = dict.fromkeys(TABLES, 0)
        """How often rows of a table may have changed without a change."""
        self.on_acknowledge: Callable[[MemoryPosition], None] = lambda at: None
        for table in TABLES:
            self.set_schema(table, COLUMNS, key=["id"])

    def begin(self) -> None:
        """Let history begin with the rows that are there."""
        self.states[self._generation] = [self._snapshot()]

    def at(self, life: int, commit: int, table: TableName) -> Rows:
        """Return a table as it was after a commit."""
        return self.states[life][commit][table]

    def replace(self, rows: Mapping[TableName, Rows], idle_commits: int) -> None:
        """Begin a new life with other rows, as from a backup; some commits touch none of them."""
        self.reset()
        for table in TABLES:
            self._rows[table] = {key: dict(row) for key, row in rows[table].items()}
        self.lives.append(self._generation)
        self.truth[self._generation] = [[]]
        self.floor = self.injected_floor = 0
        self.begin()
        for _ in range(idle_commits):
            self.heartbeat()

    def forget(self, upto: int, *, injected: bool = False) -> None:
        """Drop history up to a commit."""
        self.floor = max(self.floor, upto)
        if injected:
            self.injected_floor = self.floor
        for commit in self._history[: self.floor]:
            commit.changes = []

    def heal(self) -> None:
        """Take every fault away."""
        self.away = False
        self.lost_answers = 0
        self._errors.clear()

    def reachable(self) -> None:
        """Raise if it is not."""
        if self.away:
            raise SourceUnreachable("Source is away", source=self.name)

    def _commit(self, commit: _Commit) -> None:
        super()._commit(commit)
        told = [(schema.table, change) for schema, change in commit.changes]
        self.truth[self._generation].append(told)
        self.states[self._generation].append(self._snapshot())

    def _snapshot(self) -> dict[TableName, Rows]:
        return {table: dict(rows) for table, rows in self._rows.items()}

    def _raise(self, call: str) -> None:
        self.reachable()
        super()._raise(call)  # type: ignore[arg-type]


class Session:
    """A recorder's own connection to the database."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._at = MemoryPosition(1, 0)
        self._part = 0
        self._noted: dict[TableName, int] = {}
        self._maintained = False
        self.superseded = False
        """Whether another recorder is at work: what this one misses is no loss."""
        self.acknowledged: list[MemoryPosition] = []

    @property
    def name(self) -> str:
        return self._database.name

    @property
    def spec(self) -> SourceSpec:
        return self._database.spec

    @property
    def origin(self) -> str:
        return self._database.origin

    @property
    def traits(self) -> SourceTraits:
        return replace(self._database.traits, reports_notices=True, maintains=True)

    def claim(self) -> str:
        return "session"

    def recall(
        self, notes: Mapping[TableName, str], schemas: Mapping[TableName, TableSchema]
    ) -> None:
        # Beside those of its tables the log has notes of its own.
        self._noted = {table: int(notes[table]) for table in TABLES if table in notes}

    def synced(self, upto: str) -> None:
        """Take no part in what is synced: the acknowledgement tells."""

    def notices(self) -> Sequence[SourceNotice]:
        found = []
        for table, count in self._database.rewritten.items():
            if self._noted.get(table) != count:
                rebaseline_reason = "rewritten" if table in self._noted else ""
                found.append(SourceNotice(table, str(count), rebaseline_reason))
                self._noted[table] = count
        return found

    def maintain(self) -> float:
        self._database.reachable()
        self._maintained = True
        return 5.0

    def lineage(self) -> str | None:
        self._database.reachable()
        return self._database.lineage()

    def check(self, tables: Sequence[TableName]) -> Sequence[Problem]:
        self._database.reachable()
        return self._database.check(tables)

    def describe(self, tables: Sequence[TableName]) -> Mapping[TableName, TableSchema]:
        self._database.reachable()
        return self._database.describe(tables)

    def open(self, after: SourcePosition | str | None) -> SourcePosition:
        database = self._database
        self._maintained = False
        with self._mine():
            place = database.open(after)
            assert isinstance(place, MemoryPosition)
            if not self.traits.resumes:
                database.gaps_given.add(str(place))
            if place.commit < database.floor:
                allowed = place.commit < database.injected_floor
                if not allowed and not self.superseded:
                    raise Violation(f"forgotten, and not in the log: {place} to {database.floor}")
                place = MemoryPosition(place.generation, database.floor)
                if allowed:
                    database.gaps_given.add(str(place))
                database._at = place
        return place

    def read(self, most: int, wait: float) -> Changes | None:
        database = self._database
        if not self._maintained:
            raise Violation("read before it was maintained")
        with self._mine():
            if (
                self._at.generation == database.position.generation
                and self._at.commit < database.floor
            ):
                raise SourceUnreachable("History is gone", source=self.name)
            return database.read(most, wait)

    def wake(self) -> None:
        self._database.wake()

    def acknowledge(self, upto: str) -> None:
        database = self._database
        at = MemoryPosition.parse(upto)
        database.reachable()
        if at.generation != database.position.generation:
            raise SourceUnreachable("History was replaced", source=self.name)
        database.on_acknowledge(at)
        if self.acknowledged and at < self.acknowledged[-1]:
            raise Violation(f"acknowledged {at} after {self.acknowledged[-1]}")
        database.acknowledge(upto)
        self.acknowledged.append(at)
        database.acknowledged_upto = max(database.acknowledged_upto, at)
        database.forget(at.commit)
        if database.lost_answers:
            database.lost_answers -= 1
            raise SourceUnreachable("Answer was lost", source=self.name)

    def lag(self) -> Lag:
        with self._mine():
            return self._database.lag()

    def close(self) -> None:
        self._database.close()

    def baseline(self, table: TableName) -> MemoryCopy:
        return self._database.baseline(table)

    @contextmanager
    def _mine(self) -> Iterator[None]:
        """Lend the database this session's place for a call."""
        database = self._database
        kept = database._at, database._part
        database._at, database._part = self._at, self._part
        try:
            yield
        finally:
            self._at, self._part = database._at, database._part
            database._at, database._part = kept
