"""
What the index says, folded together: where the log stands, and what lies where.

Entries come in order and positions never fall, so everything is found by bisection over
lists that only grow. Positions are compared as text, which sorts as they do: a hundred
thousand entries are loaded without parsing one.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from heapq import merge
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple, TypeAlias

from headrace.changelog.entry import (
    AnyEntry,
    Baseline,
    File,
    Flush,
    Gap,
    Heartbeat,
    Note,
    Owed,
    Schema,
    SchemaColumn,
)
from headrace.changelog.position import ORIGIN, Position
from headrace.changelog.schema import Column, TableSchema
from headrace.changelog.values import ValueType
from headrace.changelog.window import Window
from headrace.errors import CorruptIndex

Step: TypeAlias = Flush | Gap | Heartbeat | Owed
"""An entry that moves the log's end."""


MARKERS_KEPT = 1_000
"""So many of the newest markers can be waited for."""


@dataclass(slots=True)
class Known:
    """What the log knows of one table."""

    table_id: int
    schemas: dict[int, TableSchema] = field(default_factory=dict)
    latest: int = 0
    current: int = 0
    """The newest that is not one from before, read late."""

    missing: Owed | None = None
    """The newest entry that says that changes are missing."""

    baseline: Baseline | None = None
    """The newest one after the last gap, or since one is owed; an older one is of no use (R1)."""

    windows: dict[int, Window] = field(default_factory=dict)
    """Of baselines by number, those that commits can lie in."""

    owed: Owed | None = None
    """The newest entry that says that rows changed without a change."""

    steps: list[int] = field(default_factory=list)
    """Which steps have files of this table."""

    files: list[tuple[File, ...]] = field(default_factory=list)
    """Those files, one tuple for each of `steps`."""


class Counts(NamedTuple):
    """What was captured so far, baselines apart."""

    rows: int = 0
    bytes: int = 0
    flushes: int = 0


class History:
    """The log as its entries tell it; grows by `take`."""

    def __init__(self) -> None:
        self.epoch = 0
        self.lineage: str | None = None
        self.origin = ""
        """What the source called itself when the log began, or last began anew."""
        self.first_origin = ""
        """The same when the log was made."""
        self._last = str(ORIGIN)
        self.source_position: str | None = None
        self.high_time = 0
        self.term = 0
        """The highest term of any writer so far."""
        self.baselines = 0
        self.counts = Counts()
        self.tables: dict[str, Known] = {}
        self.markers: dict[str, str] = {}
        """Where texts that somebody wrote at the source are, the newest of each."""
        self.notes: dict[str, str] = {}
        """What the source wants to be told again, by table; its own under the empty name."""
        self.steps: list[Step] = []
        self.lasts: list[str] = []
        """The position each step ends at, as text; never falls."""
        self.gaps: list[int] = []
        """Which steps are gaps."""

    @property
    def end(self) -> Position:
        """Where the newest step ends: everything up to here is in the log."""
        return Position.parse(self._last)

    def take(self, entry: AnyEntry) -> None:
        """Add the next entry."""
        self.term = max(self.term, entry.term)
        if isinstance(entry, Flush | Heartbeat):
            for text in entry.markers:
                # The newest one counts; only so many are remembered.
                self.markers.pop(text, None)
                self.markers[text] = entry.last
                if len(self.markers) > MARKERS_KEPT:
                    del self.markers[next(iter(self.markers))]
        match entry:
            case Flush():
                self._flush(entry)
            case Heartbeat():
                # Consecutive ones count as one (R34): idle days leave no trail in memory.
                if self.steps and isinstance(self.steps[-1], Heartbeat):
                    self.steps[-1], self.lasts[-1] = entry, entry.last
                else:
                    self._step(entry, entry.last)
                self._moved(entry.last, entry.source)
            case Gap():
                self._gap(entry)
            case Owed():
                self._step(entry, entry.at)
                self._moved(entry.at, entry.source)
                known = self.known(entry.table)
                known.baseline, known.owed = None, entry
                if entry.missing:
                    known.missing = entry
                # Numbers that were given to copies which came to nothing stay given.
                self.baselines = max(self.baselines, entry.baseline)
            case Note():
                self.notes[entry.table] = entry.text
            case Baseline():
                known = self.known(entry.table)
                known.baseline = entry
                if (window := Window.of(entry)) is not None:
                    known.windows[entry.baseline] = window
                self.baselines = max(self.baselines, entry.baseline)
            case Schema():
                known = self.tables.setdefault(entry.table, Known(entry.table_id))
                known.schemas[entry.schema_id] = as_schema(entry)
                known.latest = entry.schema_id
                if not entry.late:
                    known.current = entry.schema_id

    def known(self, table: str) -> Known:
        """Return what is known of `table`; a first look makes room for it."""
        return self.tables.setdefault(table, Known(len(self.tables) + 1))

    def after(self, position: Position) -> int:
        """Return the first step that ends beyond `position`."""
        return bisect_right(self.lasts, str(position))

    def next_gap(self, step: int) -> int:
        """Return the first gap at or after `step`, or the number of steps."""
        at = bisect_left(self.gaps, step)
        return self.gaps[at] if at < len(self.gaps) else len(self.steps)

    def files_within(
        self, tables: Sequence[str], start: int, stop: int
    ) -> Iterator[tuple[int, list[File]]]:
        """Yield each step from `start` to before `stop` that has files of these tables."""
        known = [self.tables[name] for name in tables if name in self.tables]
        runs = [_tail(each, bisect_left(each.steps, start)) for each in known]
        for step, found in groupby(merge(*runs, key=itemgetter(0)), key=itemgetter(0)):
            if step >= stop:
                return
            yield step, [file for _, files in found for file in files]

    def _flush(self, entry: Flush) -> None:
        step = len(self.steps)
        self._step(entry, entry.last)
        self._moved(entry.last, entry.source)
        self.high_time = entry.high_time
        rows = size = 0
        by_table: dict[str, list[File]] = defaultdict(list)
        for file in entry.files:
            by_table[file.table].append(file)
            rows += file.rows
            size += file.bytes
        for table, files in by_table.items():
            known = self.known(table)
            known.steps.append(step)
            known.files.append(tuple(files))
        counts = self.counts
        self.counts = Counts(counts.rows + rows, counts.bytes + size, counts.flushes + 1)

    def _gap(self, entry: Gap) -> None:
        self.origin = entry.origin
        if not self.steps:
            self.first_origin = entry.origin
        self.gaps.append(len(self.steps))
        self._step(entry, entry.at)
        self._moved(entry.at, entry.source)
        self.epoch, self.lineage = entry.epoch, entry.lineage
        for known in self.tables.values():
            known.baseline = None

    def _step(self, entry: Step, last: str) -> None:
        if self.lasts and last < self.lasts[-1]:
            raise CorruptIndex("Position of an index entry falls", entry=entry.entry, last=last)
        self.steps.append(entry)
        self.lasts.append(last)

    def _moved(self, last: str, source: str) -> None:
        self._last, self.source_position = last, source


def _tail(known: Known, at: int) -> Iterator[tuple[int, tuple[File, ...]]]:
    # By number: a slice would copy what may be a hundred thousand steps.
    while at < len(known.steps):
        yield known.steps[at], known.files[at]
        at += 1


def as_schema(entry: Schema) -> TableSchema:
    """Return the schema that an entry keeps."""
    columns = tuple(
        Column(
            name=column.name,
            type=ValueType.parse(column.type),
            field=column.field,
            nullable=column.nullable,
            declared=column.declared,
            missing=column.missing,
        )
        for column in entry.columns
    )
    return TableSchema(entry.table, columns, entry.key, entry.whole_before)


def as_columns(schema: TableSchema) -> tuple[SchemaColumn, ...]:
    """Return a schema's columns as an entry keeps them."""
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
