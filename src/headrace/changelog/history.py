"""
The state of a log as its index describes it: where the log ends, and which files hold what.

`History` folds the entries together. Entries come in order and positions never decrease, so
everything is found by bisection. Positions are compared as text, which sorts in the same order: a
hundred thousand entries are loaded without parsing one. Pruned steps are removed at the front
(R27) and compacted ones become one step, so that it does not grow with every flush forever.

The window of a baseline says which changes after its F its rows already hold (R11). A copy is
taken under a snapshot, and between F and H there are commits that the snapshot saw and commits
that it did not. A target that keeps one row per key gets all of them: applying one twice has the
same result. A target that keeps every change must not get a commit that was seen, and the snapshot
itself says which those are.

A schema applies from the first flush with changes that have it. A reader of a table's current
state takes the newest schema at once. A reader that keeps or forwards past states takes each in
turn; otherwise the values of a column that was dropped later would be missing before that.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import merge
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.changelog.entries import (
    AnyEntry,
    Baseline,
    Compacted,
    File,
    Flush,
    Gap,
    Heartbeat,
    Note,
    Pruned,
    RebaselineRequired,
    Schema,
    SchemaColumn,
    State,
)
from headrace.changelog.position import ORIGIN, Position
from headrace.changelog.schema import Column, TableSchema
from headrace.changelog.values import ValueType
from headrace.errors import BadMessage, CorruptIndex

# --- the window of a baseline ---------------------------------------------------------------------

_SNAPSHOT = re.compile(r"([0-9]+):([0-9]+):((?:[0-9]+(?:,[0-9]+)*)?)")


@dataclass(frozen=True, slots=True)
class TransactionSnapshot:
    """Which transactions had ended at one moment, by their 64-bit top-level ids."""

    xmin: int
    """All transactions before it had ended."""

    xmax: int
    """No transaction from it on had ended, or even begun."""

    running: frozenset[int]
    """The transactions between the two that had not ended."""

    def sees(self, xid: int) -> bool:
        """
        Whether the writes of this transaction are visible, provided that it has committed.

        For the id of a sub-transaction the result is meaningless: they are not listed (R6).
        """
        return xid < self.xmin or (xid < self.xmax and xid not in self.running)

    def __str__(self) -> str:
        return f"{self.xmin}:{self.xmax}:{','.join(map(str, sorted(self.running)))}"

    @classmethod
    def parse(cls, text: str) -> TransactionSnapshot:
        """Read `pg_current_snapshot()` as PostgreSQL prints it, or what `str()` wrote."""
        if (match := _SNAPSHOT.fullmatch(text)) is None:
            raise BadMessage("Text is not a snapshot", length=len(text))
        running = frozenset(int(xid) for xid in match[3].split(",") if xid)
        return cls(int(match[1]), int(match[2]), running)


@dataclass(frozen=True, slots=True)
class BaselineWindow:
    """F, H and S of a baseline whose rows hold some of the commits in (F, H]."""

    first: Position
    last: Position
    snapshot: TransactionSnapshot

    @classmethod
    def of(cls, baseline: Baseline) -> BaselineWindow | None:
        """Return a baseline's window; None if no commit can be in it, or S is unknown."""
        first, last = baseline.window
        if not baseline.snapshot or first.commit >= last.commit:
            return None
        return cls(first, last, TransactionSnapshot.parse(baseline.snapshot))

    def overlaps(self, first: Position) -> bool:
        """Whether changes from `first` on can be in it."""
        return self.first.epoch == first.epoch and first.commit <= self.last.commit

    def held(self, rows: pa.Table) -> npt.NDArray[np.bool_]:
        """Return which of a segment's changes the baseline's rows already hold."""
        commits = rows["_commit"].to_numpy()
        xids = rows["_xid"].fill_null(self.snapshot.xmax).to_numpy()
        seen = xids < self.snapshot.xmax
        seen &= ~np.isin(xids, np.array(sorted(self.snapshot.running), np.int64))
        within = (commits > self.first.commit) & (commits <= self.last.commit)
        return np.asarray(within & (seen | (xids < self.snapshot.xmin)), np.bool_)


# --- the sum of the entries -----------------------------------------------------------------------

Step: TypeAlias = Flush | Gap | Heartbeat | RebaselineRequired
"""An entry that moves the log's end."""

MARKERS_KEPT = 1_000
"""How many of the newest markers can be waited for."""


class TableFlush(NamedTuple):
    """One table's share of a flush."""

    last: str
    """The position at which the flush ends, as text."""

    flush: Flush
    files: tuple[File, ...]


@dataclass(slots=True)
class LogTable:
    """One table, as the log knows it."""

    table_id: int
    schemas: dict[int, TableSchema] = field(default_factory=dict)
    latest: int = 0
    current: int = 0
    """The newest schema that is not late."""

    late: set[int] = field(default_factory=set)
    """Earlier schemas, of changes that were read late."""

    missing: RebaselineRequired | None = None
    """The newest entry that reports missing changes."""

    baseline: Baseline | None = None
    """The newest one after the last gap or required baseline; older ones are unusable (R1)."""

    windows: dict[int, BaselineWindow] = field(default_factory=dict)
    """The windows of baselines, by number, if commits can be in them."""

    rebaseline_required: RebaselineRequired | None = None
    """The newest entry that requires a new baseline: rows changed without a change."""

    rebaselines: list[RebaselineRequired] = field(default_factory=list)
    """All such entries among the steps, in order."""

    baselines: dict[int, Baseline] = field(default_factory=dict)
    """The baselines that were not dropped, usable or not, by number."""

    pieces: list[TableFlush] = field(default_factory=list)
    """The flushes with files of this table, in order."""

    @property
    def files(self) -> list[tuple[File, ...]]:
        """The files of its changes, one tuple per flush."""
        return [piece.files for piece in self.pieces]

    def rank(self, schema_id: int) -> int:
        """Return the id that orders a schema among the others, late or not."""
        if schema_id not in self.late:
            return schema_id
        same = (
            number
            for number, schema in self.schemas.items()
            if number < schema_id and number not in self.late and schema == self.schemas[schema_id]
        )
        return max(same, default=schema_id)


class Counts(NamedTuple):
    """What was captured so far, without baselines."""

    rows: int = 0
    bytes: int = 0
    flushes: int = 0


class History:
    """The log as its entries describe it; `take` adds an entry."""

    def __init__(self) -> None:
        self.epoch = 0
        self.lineage: str | None = None
        self.origin = ""
        """The source's own name when the log began or last restarted."""
        self.first_origin = ""
        """The same when the log was created."""
        self._last = str(ORIGIN)
        self.source_position: str | None = None
        self.high_time = 0
        self.term = 0
        """The highest term of any writer so far."""
        self.baselines = 0
        self.counts = Counts()
        self.tables: dict[str, LogTable] = {}
        self.markers: dict[str, str] = {}
        """The positions of texts written at the source, the newest of each."""
        self.notes: dict[str, str] = {}
        """The texts kept for the source, by table; its own under the empty name."""
        self.steps: list[Step] = []
        self.lasts: list[str] = []
        """The position at which each step ends, as text; never decreases."""
        self.gaps: list[Gap] = []
        """The gaps among the steps."""
        self.gap: Gap | None = None
        """The newest gap, which may have been pruned since."""
        self.gap_count = 0
        self.floor = str(ORIGIN)
        """Everything that ends at or before it was dropped; `ORIGIN`: nothing was."""
        self.size = 0
        """Bytes of all named files, of changes and of baselines."""
        self.retired: list[tuple[int, tuple[str, ...]]] = []
        """Dropped files, with the time; removed from here when they are deleted, a lease later."""

    @property
    def end(self) -> Position:
        """The end of the newest step: everything up to here is in the log."""
        return Position.parse(self._last)

    def take(self, entry: AnyEntry) -> None:
        """Add the next entry."""
        self.term = max(self.term, entry.term)
        if isinstance(entry, Flush | Heartbeat):
            for text in entry.markers:
                # Only the newest position of a text, and a limited number of texts, are kept.
                self.markers.pop(text, None)
                self.markers[text] = entry.last
                if len(self.markers) > MARKERS_KEPT:
                    del self.markers[next(iter(self.markers))]
        match entry:
            case Flush():
                self._flush(entry)
            case Heartbeat():
                # Consecutive heartbeats count as one (R34): an idle source needs no memory.
                if self.steps and isinstance(self.steps[-1], Heartbeat):
                    self.steps[-1], self.lasts[-1] = entry, entry.last
                else:
                    self._step(entry, entry.last)
                self.stand_at(entry.last, entry.source)
            case Gap():
                self._gap(entry)
            case RebaselineRequired():
                self._step(entry, entry.at)
                self.stand_at(entry.at, entry.source)
                known = self.known(entry.table)
                known.baseline, known.rebaseline_required = None, entry
                known.rebaselines.append(entry)
                if entry.missing:
                    known.missing = entry
                # Numbers of copies that were given up are not used again.
                self.baselines = max(self.baselines, entry.baseline)
            case Note():
                self.notes[entry.table] = entry.text
            case Baseline():
                known = self.known(entry.table)
                before = self._names_of_baselines(known)
                known.baselines[entry.baseline] = entry
                if entry.first >= self.floor:  # else changes after its F are gone (R19)
                    known.baseline = entry
                self.size += sum(f.bytes for f in entry.files if f.name not in before)
                if (window := BaselineWindow.of(entry)) is not None:
                    known.windows[entry.baseline] = window
                self.baselines = max(self.baselines, entry.baseline)
            case Schema():
                known = self.tables.setdefault(entry.table, LogTable(entry.table_id))
                known.schemas[entry.schema_id] = as_schema(entry)
                known.latest = entry.schema_id
                if entry.late:
                    known.late.add(entry.schema_id)
                else:
                    known.current = entry.schema_id
            case Pruned():
                self._prune(entry)
            case Compacted():
                self._compact(entry)
            case State():
                raise CorruptIndex("Index entry is a state", entry=entry.entry)

    def known(self, table: str) -> LogTable:
        """Return the entry for `table`; create it if it is new."""
        return self.tables.setdefault(table, LogTable(len(self.tables) + 1))

    def after(self, position: Position) -> int:
        """Return the index of the first step that ends after `position`."""
        return bisect_right(self.lasts, str(position))

    def next_gap(self, position: Position) -> Gap | None:
        """
        Return the first gap after a position.

        The log's own beginning is not a gap for a reader without progress.
        """
        begins = position == ORIGIN
        at = bisect_right(self.gaps, str(position), key=attrgetter("at"))
        if begins and at < len(self.gaps) and self.gaps[at].reason == "start":
            at += 1
        if at < len(self.gaps):
            return self.gaps[at]
        # A pruned gap still separates a position before it from everything after it.
        gap = self.gap
        if gap is None or gap.at <= str(position) or (begins and gap.reason == "start"):
            return None
        return gap

    def step_of(self, entry: Flush | Gap) -> int:
        """Return the index of an entry's step; the number of steps for a pruned gap."""
        # No two flushes end at one position, but a gap may be where a flush ends.
        at = bisect_left(self.lasts, entry.last if isinstance(entry, Flush) else entry.at)
        while at < len(self.steps) and self.steps[at] is not entry:
            at += 1
        return at

    def pieces_within(
        self, tables: Sequence[str], after: str, upto: str
    ) -> Iterator[tuple[Flush, list[File]]]:
        """Yield each flush with files of these tables that ends in (after, upto], and the files."""
        known = [self.tables[name] for name in tables if name in self.tables]
        runs = [tail(each, after) for each in known]
        for last, found in groupby(merge(*runs, key=_last), key=_last):
            if last > upto:
                return
            pieces = list(found)
            yield pieces[0].flush, [file for piece in pieces for file in piece.files]

    def names(self) -> set[str]:
        """Return the names of all files of the log."""
        found = {file.name for step in self.steps if isinstance(step, Flush) for file in step.files}
        for known in self.tables.values():
            found |= self._names_of_baselines(known)
        return found

    def _flush(self, entry: Flush) -> None:
        self._step(entry, entry.last)
        self.stand_at(entry.last, entry.source)
        self.high_time = entry.high_time
        rows = sum(file.rows for file in entry.files)
        size = sum(file.bytes for file in entry.files)
        for table, piece in pieces_of(entry):
            self.known(table).pieces.append(piece)
        self.size += size
        counts = self.counts
        self.counts = Counts(counts.rows + rows, counts.bytes + size, counts.flushes + 1)

    def _gap(self, entry: Gap) -> None:
        self.origin = entry.origin
        if self.gap is None:
            self.first_origin = entry.origin
        self.gaps.append(entry)
        self.gap, self.gap_count = entry, self.gap_count + 1
        self._step(entry, entry.at)
        self.stand_at(entry.at, entry.source)
        self.epoch, self.lineage = entry.epoch, entry.lineage
        for known in self.tables.values():
            known.baseline = None

    def _prune(self, entry: Pruned) -> None:
        upto = entry.upto
        count = bisect_right(self.lasts, upto)
        gone = [
            file for step in self.steps[:count] if isinstance(step, Flush) for file in step.files
        ]
        del self.steps[:count], self.lasts[:count]
        self.floor = max(self.floor, upto)
        self.gaps = [gap for gap in self.gaps if gap.at > upto]
        for known in self.tables.values():
            del known.pieces[: bisect_right(known.pieces, upto, key=_last)]
            known.rebaselines = [each for each in known.rebaselines if each.at > upto]
            dropped = [known.baselines.pop(n) for n in entry.baselines if n in known.baselines]
            kept = self._names_of_baselines(known)
            gone += {
                file.name: file
                for baseline in dropped
                for file in baseline.files
                if file.name not in kept  # a folded baseline shares files with the previous one
            }.values()
            usable = known.baseline
            if usable is not None and (usable in dropped or usable.first < self.floor):
                known.baseline = None  # R19: changes after its F are gone
            known.windows = {
                number: window
                for number, window in known.windows.items()
                if str(window.last) >= self.floor or number in known.baselines
            }
        self._retire(entry.time, gone)

    def _compact(self, entry: Compacted) -> None:
        first, last = (
            bisect_left(self.steps, number, key=attrgetter("entry"))
            for number in (entry.since, entry.upto)
        )
        steps = self.steps[first : last + 1]
        flush = entry.flush
        ends = (self.lasts[last : last + 1], [each.entry for each in (*steps[:1], *steps[-1:])])
        if ends != ([flush.last], [entry.since, entry.upto]):
            raise CorruptIndex("Compacted steps are not in the index", entry=entry.entry)
        before = self.lasts[first - 1] if first else ""
        self.steps[first : last + 1], self.lasts[first : last + 1] = [flush], [flush.last]
        gone = [file for step in steps if isinstance(step, Flush) for file in step.files]
        made = dict(pieces_of(flush))
        for table in {file.table for file in gone}:
            pieces = self.known(table).pieces
            start, stop = (bisect_right(pieces, end, key=_last) for end in (before, flush.last))
            pieces[start:stop] = [made[table]] if table in made else []
        self.size += sum(file.bytes for file in flush.files)
        self._retire(entry.at, gone)

    def _retire(self, time: int, files: Sequence[File]) -> None:
        self.size -= sum(file.bytes for file in files)
        if files:
            self.retired.append((time, tuple(file.name for file in files)))

    def _names_of_baselines(self, known: LogTable) -> set[str]:
        return {file.name for each in known.baselines.values() for file in each.files}

    def _step(self, entry: Step, last: str) -> None:
        if self.lasts and last < self.lasts[-1]:
            raise CorruptIndex("Position of an index entry decreases", entry=entry.entry, last=last)
        self.steps.append(entry)
        self.lasts.append(last)

    def stand_at(self, last: str, source: str | None) -> None:
        """Set the end of the log."""
        self._last, self.source_position = last, source


_last = attrgetter("last")


def tail(known: LogTable, after: str) -> Iterator[TableFlush]:
    """Yield the flushes with files of a table that end after a position."""
    # By index: a slice would copy perhaps a hundred thousand pieces.
    at = bisect_right(known.pieces, after, key=_last)
    while at < len(known.pieces):
        yield known.pieces[at]
        at += 1


def begins(step: Step) -> str:
    """Return the position at which a step begins."""
    match step:
        case Flush():
            return step.first
        case Heartbeat():
            return step.last
        case Gap() | RebaselineRequired():
            return step.at


def pieces_of(flush: Flush) -> Iterator[tuple[str, TableFlush]]:
    """Yield each table of a flush with its share."""
    by_table: dict[str, list[File]] = defaultdict(list)
    for file in flush.files:
        by_table[file.table].append(file)
    for table, files in by_table.items():
        yield table, TableFlush(flush.last, flush, tuple(files))


def as_schema(entry: Schema) -> TableSchema:
    """Return the schema in an entry."""
    return as_table(entry.table, entry.columns, entry.key, entry.whole_before)


def as_table(
    table: str, columns: Sequence[SchemaColumn], key: tuple[str, ...], whole_before: bool
) -> TableSchema:
    """Return a schema from its columns as they are in the index."""
    found = tuple(
        Column(
            name=column.name,
            type=ValueType.parse(column.type),
            field=column.field,
            nullable=column.nullable,
            declared=column.declared,
            missing=column.missing,
        )
        for column in columns
    )
    return TableSchema(table, found, key, whole_before)


def as_columns(schema: TableSchema) -> tuple[SchemaColumn, ...]:
    """Return a schema's columns as they are in an entry."""
    return tuple(
        SchemaColumn(
            name=column.name,
            type=str(column.type),
            field=column.field,
            nullable=column.nullable,
            declared=column.declared,
            missing=column.missing,
        )
        for column in schema.columns
    )


# --- the schema in which changes are delivered ----------------------------------------------------

_LOOKED_AT = 64
"""Flushes that are searched for the next schema: a batch has no more; a backlog may have many."""


class Turn(NamedTuple):
    """The schema of the changes after a position."""

    schema: int
    """The id of the schema."""

    until: str | None = None
    """The last position before changes with a later schema; None: there are none yet."""


def newest(known: LogTable, since: int) -> Turn:
    """Return the newest schema; all changes, however old, can be delivered in it."""
    # A late schema does not count.
    return Turn(max(since, known.current))


def in_use(known: LogTable, since: int) -> Turn:
    """Return the newest schema of any file, of changes or of a usable baseline."""
    if known.current <= since:
        return Turn(since)
    loaded = known.baseline.files if known.baseline else ()
    schemas = {file.schema for files in (*known.files, loaded) for file in files}
    return Turn(max((since, *(min(known.current, known.rank(each)) for each in schemas))))


def in_turn(history: History, known: LogTable, since: int, after: str) -> Turn:
    """
    Return the schema of the changes right after `after`, if the reader has that of id `since`.

    A flush with changes in several schemas is delivered in the latest of them.
    """
    if known.current <= since:
        return Turn(since)
    schema, looked_at = since, 0
    for piece in tail(known, after):
        latest = min(known.current, max(known.rank(file.schema) for file in piece.files))
        if looked_at == _LOOKED_AT or (looked_at and latest > schema):
            return Turn(schema, history.lasts[history.step_of(piece.flush) - 1])
        schema, looked_at = max(schema, latest), looked_at + 1
    return Turn(schema if looked_at else _passed(known, since, after))


def _passed(known: LogTable, since: int, after: str) -> int:
    """
    Return the latest schema that no earlier change can follow: of baselines before `after`.

    The entry of a schema alone does not count: it is written when a copy starts, and earlier
    changes may still have to be read.
    """
    ranks = (
        min(known.current, known.rank(file.schema))
        for baseline in known.baselines.values()
        if baseline.last <= after
        for file in baseline.files
    )
    return max((since, *ranks))


def any_later(known: LogTable, files: Iterable[File], since: int) -> bool:
    """Whether one of these files has a later schema than that of id `since`."""
    if known.current <= since:
        return False
    return any(min(known.current, known.rank(file.schema)) > since for file in files)


def identify(known: LogTable, schema: TableSchema) -> tuple[int, TableSchema]:
    """
    Return the id of a schema in this log, and the schema as the log has it.

    A schema that the log does not have is newer than all that it has.
    """
    for number in sorted(known.schemas, reverse=True):
        if known.schemas[number] == schema and number <= known.current:
            return number, known.schemas[number]
    return known.current, schema
