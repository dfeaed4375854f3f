"""
Reading a log: the next batch after a position, baselines, and waiting for new entries.

A reader follows the index by reading the next number; it never lists a folder after it was
opened. Everything it returns comes from memory.

`LogHolds` records which parts of the log are being read in this process, and for what, so that
they are not pruned meanwhile (R27). `overtaken` returns whether a later writer has taken a log,
by its current index, not as it was last read.

Long because everything that is read of a log goes through one lock.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Condition, Lock
from typing import Protocol

import pyarrow as pa

from headrace.changelog.entries import Baseline, File, Flush, Gap, Heartbeat, RebaselineRequired
from headrace.changelog.history import (
    BaselineWindow,
    Counts,
    History,
    LogTable,
    Turn,
    any_later,
    begins,
    identify,
    in_turn,
    in_use,
    newest,
    tail,
)
from headrace.changelog.index import LogIndex
from headrace.changelog.position import ORIGIN, Position
from headrace.changelog.schema import TableSchema
from headrace.changelog.segment import read_segment, verify
from headrace.changelog.writer import LIMIT_BYTES, LIMIT_ROWS, BaselineWriter, LogWriter
from headrace.errors import CorruptSegment, PositionExpired, UnknownTable
from headrace.storage.files import Files

__all__ = [
    "LIMIT_BYTES",
    "LIMIT_ROWS",
    "BaselineWriter",
    "Counts",
    "LogBatch",
    "LogReader",
    "LogWriter",
    "segment_path",
]


# --- parts that are kept while they are read ------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Hold:
    """Keeps everything after a position, and these baselines."""

    whose: str
    position: Position
    baselines: frozenset[int]


class LogHolds:
    """The holds of one log. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: list[Hold] = []

    @contextmanager
    def hold(
        self, whose: str, position: Position, baselines: Collection[int] = ()
    ) -> Iterator[None]:
        """Keep a part of the log within the context; what was pruned before is not restored."""
        held = Hold(whose, position, frozenset(baselines))
        with self._lock:
            self._held.append(held)
        try:
            yield
        finally:
            with self._lock:
                self._held.remove(held)

    def all(self) -> list[Hold]:
        """Return the current holds."""
        with self._lock:
            return list(self._held)


# --- the reader -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LogBatch:
    """A run of complete flushes, with the files of some tables."""

    tables: tuple[str, ...]
    epoch: int
    first: Position
    last: Position
    files: tuple[File, ...]
    """In position order; empty if the run only moves the position."""

    rows: int
    entries: tuple[int, int]
    """The first and the last entry of the run."""

    begun: int
    """The commit time of the first change of these tables' flushes; 0 for heartbeats only."""

    time: int
    """The latest commit time in it; 0 for heartbeats only."""

    corrects: bool = False
    """Whether its changes are a correction of the pipeline, and not in the log."""

    def files_of(self, table: str) -> tuple[File, ...]:
        """Return one table's files, in position order."""
        return tuple(file for file in self.files if file.table == table)

    @property
    def has_updates(self) -> bool:
        """Whether any file holds an update."""
        return any(file.updates for file in self.files)

    @property
    def has_deletes(self) -> bool:
        """Whether any file holds a delete."""
        return any(file.deletes for file in self.files)

    @property
    def has_truncates(self) -> bool:
        """Whether any file holds a truncate."""
        return any(file.truncates for file in self.files)

    @property
    def has_key_changes(self) -> bool:
        """Whether any update changes its row's key."""
        return any(file.key_changes for file in self.files)


@dataclass(frozen=True, slots=True)
class Extent:
    """What a log holds, in numbers."""

    flushes: int
    segments: int
    """Files of changes."""

    rows: int
    bytes: int
    """Rows and bytes of changes."""

    baselines: int
    baseline_bytes: int
    oldest: int | None
    newest: int | None
    """Commit times of the first and the last change, in microseconds since 1970; None: none."""


class SegmentReader(Protocol):
    """Reads the segments of batches: a log, or a log with a pipeline's corrections."""

    @property
    def lineage(self) -> str | None:
        """The lineage of the current epoch."""
        ...

    def schema(self, table: str, schema_id: int | None = None) -> TableSchema:
        """Return a table's newest schema, or the one with that id; `UnknownTable` if none."""
        ...

    def path(self, file: File) -> str:
        """Return a segment's full path, for Spark."""
        ...

    def rows(self, file: File) -> pa.Table:
        """Return a segment's rows, verified, with the schema it was written with."""
        ...

    def verify(self, file: File) -> None:
        """Check a segment's bytes; raises as `rows` does."""
        ...

    def window(self, table: str, baseline: int) -> BaselineWindow | None:
        """Return the window of a baseline: commits after F that its rows hold; None: none."""
        ...


class LogReader:
    """
    Follows one source's log.

    *Threads*: any number, also for one reader. *Freshness*: results are as of the last
    `refresh`; the engine calls it when its recorder reports a flush.
    """

    def __init__(self, files: Files, source: str) -> None:
        self._files = files
        self._source = source
        self._index = LogIndex(files.within(f"log/{source}/index"))
        self._segments = files.within(f"log/{source}/segments")
        self._history = History()
        self._reading = Lock()
        """One thread at a time reads files; the others can use the history meanwhile."""
        self._changed = Condition()
        """Guards the history, and notifies of new entries."""
        self._interrupts = 0
        self.holds = LogHolds()
        """The parts that are read in addition to pipelines that follow the log."""
        self._last_entry = 0
        self.notices = 0
        """Counts the entries that are more than changes or heartbeats: a schema, a gap."""

    @classmethod
    def open(cls, files: Files, source: str) -> LogReader:
        """Read the index of `source` under the data directory `files`; it may be empty yet."""
        reader = cls(files, source)
        reader._history = reader._index.history()
        reader._history.retired.clear()  # only the writer deletes files
        reader._last_entry = reader._index.last
        return reader

    def refresh(self, upto: int | None = None) -> int:
        """
        Read the new entries, wake the threads that wait for them, and return their number.

        With `upto`, the number of an entry that its writer reported, nothing beyond it is
        read: an entry is visible a moment before it is durable, and what is acknowledged
        must be durable (invariant 1). A missing entry at or before it is `CorruptIndex`.
        """
        with self._reading:
            before = self._last_entry
            try:
                # One by one: entries before a damaged one are taken, although it raises an error.
                for entry in self._index.refresh(upto):
                    with self._changed:
                        self._history.take(entry)
                        self._history.retired.clear()
                        self._last_entry = entry.entry
                        if not isinstance(entry, Flush | Heartbeat):
                            self.notices += 1
                        self._changed.notify_all()
            except PositionExpired:
                self._reload(upto)
            return self._last_entry - before

    def _reload(self, upto: int | None) -> None:
        """Load the history again, after entries were deleted before they were read."""
        index = LogIndex(self._files.within(f"log/{self._source}/index"))
        history = index.history(upto)
        history.retired.clear()
        with self._changed:
            self._index, self._history, self._last_entry = index, history, index.last
            self.notices += 1
            self._changed.notify_all()

    def wait(
        self, beyond: int, timeout: float | None, unless: Callable[[], bool] = lambda: False
    ) -> bool:
        """
        Wait until an entry beyond number `beyond` was read; False on timeout or `interrupt`.

        To end all waiting, make `unless` true before the interrupt: an interrupt just before
        the wait begins would otherwise be missed.
        """
        with self._changed:
            before = self._interrupts
            self._changed.wait_for(
                lambda: self._last_entry > beyond or self._interrupts != before or unless(),
                timeout,
            )
            return self._last_entry > beyond

    @property
    def term(self) -> int:
        """The highest term of any writer so far."""
        return self._history.term

    def interrupt(self) -> None:
        """End every current wait."""
        with self._changed:
            self._interrupts += 1
            self._changed.notify_all()

    @property
    def last_entry(self) -> int:
        """The number of the newest entry read; 0 if there is none."""
        return self._last_entry

    @property
    def end(self) -> Position:
        """The position at which the log ends."""
        with self._changed:
            return self._history.end

    @property
    def epoch(self) -> int:
        """The current epoch; 0 before the log has begun."""
        return self._history.epoch

    @property
    def lineage(self) -> str | None:
        """The lineage of the current epoch."""
        return self._history.lineage

    @property
    def origin(self) -> str:
        """The source's own name when the log began or last restarted."""
        return self._history.origin

    @property
    def notes(self) -> Mapping[str, str]:
        """The source's own notes, by table; under the empty name, what it claimed at the source."""
        return self._history.notes

    @property
    def gap(self) -> Gap | None:
        """The newest gap: where history began or restarted; None before the log has begun."""
        with self._changed:
            return self._history.gap

    @property
    def floor(self) -> Position:
        """Changes at or before it are not in the log any more; `ORIGIN`: all are."""
        return Position.parse(self._history.floor)

    def counts(self) -> Counts:
        """Return what was captured so far, without baselines."""
        with self._changed:
            return self._history.counts

    def tables(self) -> tuple[str, ...]:
        """Return the tables that have a schema in the log."""
        with self._changed:
            return tuple(self._history.tables)

    def schema(self, table: str, schema_id: int | None = None) -> TableSchema:
        """Return a table's newest schema, or the one with that id; `UnknownTable` if none."""
        with self._changed:
            known = self._known(table)
            found = known.schemas.get(known.latest if schema_id is None else schema_id)
        if found is not None:
            return found
        raise UnknownTable("The log has no such table", table=table, source=self._source)

    def rank(self, table: str, schema_id: int) -> int:
        """Return the id that orders a schema: a late one has that of the earlier schema."""
        with self._changed:
            return self._history.tables[table].rank(schema_id)

    def marker(self, text: str) -> Position | None:
        """Return the position of the newest marker with this text; None if there is none."""
        with self._changed:
            found = self._history.markers.get(text)
            return None if found is None else Position.parse(found)

    def columns(self, table: str, since: int) -> Turn:
        """Return the id of a table's newest schema; `since` if there is none after it."""
        with self._changed:
            return newest(self._known(table), since)

    def columns_in_turn(self, table: str, since: int, after: Position | None = None) -> Turn:
        """Return the schema of the changes right after `after`; None: of a load's first rows."""
        with self._changed:
            known = self._known(table)
            if after is None:
                return in_use(known, since)
            return in_turn(self._history, known, since, str(after))

    def has_later_columns(self, table: str, files: Iterable[File], since: int) -> bool:
        """Whether some of these files of a table have a later schema than `since`."""
        with self._changed:
            return any_later(self._known(table), files, since)

    def known_as(self, schema: TableSchema) -> tuple[int, TableSchema]:
        """Return the id of a schema in this log, and the schema as the log has it."""
        with self._changed:
            return identify(self._known(schema.table), schema)

    def lacks(self, table: str, after: Position) -> bool:
        """Whether changes of a table after `after` are missing without a gap."""
        with self._changed:
            missing = self._known(table).missing
            return missing is not None and after < Position.parse(missing.at)

    def usable_baseline(self, table: str) -> Baseline | None:
        """Return the newest baseline of the current epoch, after its last gap."""
        with self._changed:
            return self._known(table).baseline

    def baseline(self, table: str, number: int) -> Baseline | None:
        """Return a baseline that was not dropped, whether it is the newest or not."""
        with self._changed:
            return self._known(table).baselines.get(number)

    def superseded(self) -> set[int]:
        """Return the baselines that no load starts with any more."""
        with self._changed:
            return {
                number
                for known in self._history.tables.values()
                for number, baseline in known.baselines.items()
                if baseline is not known.baseline
            }

    def window(self, table: str, baseline: int) -> BaselineWindow | None:
        """Return the window of a baseline: commits after F that its rows hold; None: none."""
        with self._changed:
            return self._known(table).windows.get(baseline)

    def rebaseline_required(self, table: str) -> RebaselineRequired | None:
        """Return the newest entry that requires a new baseline of only this table."""
        with self._changed:
            return self._known(table).rebaseline_required

    def rebaseline_after(self, table: str, position: Position) -> RebaselineRequired | None:
        """Return the first such entry after a position that was not pruned."""
        with self._changed:
            entries = self._known(table).rebaselines
            return next((each for each in entries if each.at > str(position)), None)

    def gap_after(self, position: Position) -> Gap | None:
        """
        Return the first gap after `position`: a reader there cannot continue.

        The log's own beginning is not a gap for a reader without progress.
        """
        with self._changed:
            return self._history.next_gap(position)

    def next_batch(
        self,
        tables: str | Sequence[str],
        after: Position,
        most_rows: int,
        upto: Position | None = None,
        most_files: int = 64,
    ) -> LogBatch | None:
        """
        Return the complete flushes that follow `after`, up to the limits; None if there are none.

        A single flush above the limits is returned alone (R10). The run ends before a gap, and
        with `upto` at or before it. Flushes without files of these tables only move `last`.
        A flush that begins before `after` and ends after it is returned complete. Raises
        `PositionExpired` if changes after `after` were pruned: never fewer than there were (R27).
        """
        names = (tables,) if isinstance(tables, str) else tuple(tables)
        with self._changed:
            history = self._history
            if str(after) < history.floor:
                raise PositionExpired(
                    "The log does not reach back to this position",
                    source=self._source,
                    asked=after,
                    kept_after=history.floor,
                )
            start = history.after(after)
            if start == 0 and after == ORIGIN:
                start = 1  # A reader without progress begins after the entry that opened the log.
            gap = history.next_gap(after)
            stop = len(history.steps) if gap is None else history.step_of(gap)
            if upto is not None:
                stop = min(stop, history.after(upto))
            if start >= stop:
                return None
            files: list[File] = []
            rows = 0
            begun = time = 0
            end = history.lasts[stop - 1]
            for flush, more in history.pieces_within(names, str(after), end):
                count = sum(file.rows for file in more)
                if files and (rows + count > most_rows or len(files) + len(more) > most_files):
                    stop = history.step_of(flush)
                    break
                files += more
                rows += count
                begun = begun or flush.begun
                time = max(time, flush.time)
            opening, closing = history.steps[start], history.steps[stop - 1]
            return LogBatch(
                tables=names,
                epoch=closing.epoch,
                first=Position.parse(begins(opening)),
                last=Position.parse(history.lasts[stop - 1]),
                files=tuple(files),
                rows=rows,
                entries=(opening.entry, closing.entry),
                begun=begun,
                time=time,
            )

    def oldest_after(self, table: str, position: Position) -> int | None:
        """Return the commit time of the first flush with files of this table after `position`."""
        with self._changed:
            found = next(tail(self._known(table), str(position)), None)
            return None if found is None else found.flush.begun

    def waiting_after(self, table: str, position: Position) -> tuple[int, int]:
        """Return how many changes of this table follow `position`, and their bytes in the log."""
        with self._changed:
            pieces = tail(self._known(table), str(position))
            files = [(file.rows, file.bytes) for piece in pieces for file in piece.files]
        return sum(rows for rows, _ in files), sum(size for _, size in files)

    def changed_between(self, table: str, after: Position, upto: Position) -> bool:
        """Return whether a flush with files of this table overlaps (after, upto]."""
        with self._changed:
            found = next(tail(self._known(table), str(after)), None)
            return found is not None and found.flush.first <= str(upto)

    def source_position_at(self, at: Position) -> str | None:
        """Return the source's position of the newest entry that ends at or before `at`."""
        with self._changed:
            step = self._history.after(at)
            return self._history.steps[step - 1].source if step else None

    def older_than(self, time: int) -> Position:
        """Return the position up to which all commits are before `time`; `ORIGIN`: none are."""
        with self._changed:
            last = str(ORIGIN)
            for step, ends in zip(self._history.steps, self._history.lasts, strict=True):
                if isinstance(step, Flush) and step.high_time >= time:
                    break
                last = ends
            return Position.parse(last)

    @property
    def newest(self) -> int | None:
        """The latest commit time in the log, in microseconds since 1970; None if it has none."""
        return self._history.high_time or None

    @property
    def size(self) -> int:
        """Bytes of all files that the index names."""
        return self._history.size

    def extent(self) -> Extent:
        """Return what the log holds, in numbers."""
        with self._changed:
            history = self._history
            flushes = [step for step in history.steps if isinstance(step, Flush)]
            files = [file for flush in flushes for file in flush.files]
            size = sum(file.bytes for file in files)
            return Extent(
                flushes=len(flushes),
                segments=len(files),
                rows=sum(file.rows for file in files),
                bytes=size,
                baselines=sum(len(known.baselines) for known in history.tables.values()),
                baseline_bytes=history.size - size,
                oldest=flushes[0].begun if flushes else None,
                newest=flushes[-1].high_time if flushes else None,
            )

    def folder(self, name: str) -> Files:
        """Return a folder next to the segments, which those who read them can read, too."""
        return self._files.within(f"log/{self._source}/{name}")

    def path(self, file: File) -> str:
        """Return a segment's full path, for Spark."""
        return self._segments.path(file.name)

    def rows(self, file: File) -> pa.Table:
        """
        Return a segment's rows, verified, with the schema it was written with.

        `CorruptSegment` names the file; `PositionExpired` if it was dropped and deleted since.
        """
        try:
            return read_segment(self._segments, file, self.schema(file.table, file.schema))
        except CorruptSegment as error:
            raise self._gone(file) or error from None

    def verify(self, file: File) -> None:
        """Check a segment's bytes; raises as `rows` does."""
        try:
            verify(self._segments, file)
        except CorruptSegment as error:
            raise self._gone(file) or error from None

    def _known(self, table: str) -> LogTable:
        """Return a table as the log knows it; an empty one if it does not have it."""
        return self._history.tables.get(table) or LogTable(0)

    def _gone(self, file: File) -> PositionExpired | None:
        """Return the error if a file was dropped, by the current index, which is read again."""
        if file.name in LogReader.open(self._files, self._source)._history.names():
            return None
        return PositionExpired(
            "The segment was pruned and deleted",
            source=self._source,
            file=self._segments.path(file.name),
        )


def segment_path(files: Files, source: str, file: File) -> str:
    """Return a segment's full path under the data directory `files`."""
    return files.path(f"log/{source}/segments/{file.name}")


def overtaken(files: Files, source: str, after: int, term: int) -> bool:
    """
    Return whether an entry after `after` has a higher term than `term`.

    A writer claims the next number as soon as it opens a log, so this is known before its first
    change. It costs two requests if there is no such entry; `files` is the data directory.
    """
    index = LogIndex(files.within(f"log/{source}/index"))
    index.last = after
    try:
        return any(entry.term > term for entry in index.refresh())
    except PositionExpired:
        # The entries since were deleted: only a state has their terms now.
        return LogIndex(files.within(f"log/{source}/index")).history().term > term
