"""
The one writer of a log: it appends changes, writes baselines, and guards against other writers.

Changes are collected in memory and become durable and visible together: segments first, each
synced, then one entry of the index, synced (R10, invariant 5). `flush` returns only then,
so a caller that acknowledges after it acknowledges what is on disk (invariant 1).

The rows of a baseline go to disk part by part, and no reader sees a part before the last: a
baseline exists only with the entry that names all its parts (H4). Until then it can be discarded,
or lost in a crash, and leaves only files that the next writer sweeps.

Two processes may believe they are the writer. Numbered entries decide (R31): a writer checks
whether it may take the log, and claims the next number as soon as it opens, before it sweeps
anything. So an earlier writer does not get its next number, and can never name a swept file.

Long because all that writes to a log shares the state that one failed write must stop (R36).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import pyarrow as pa

from headrace.changelog.change import Changes, Op, UnflushedChanges
from headrace.changelog.entries import (
    AnyEntry,
    Baseline,
    File,
    Flush,
    Gap,
    Heartbeat,
    Note,
    RebaselineRequired,
    Schema,
)
from headrace.changelog.history import History, as_columns
from headrace.changelog.index import LogIndex
from headrace.changelog.position import MAX_ORDINAL, ORIGIN, Position, SourcePosition
from headrace.changelog.schema import CAPTURED, TableSchema, inheriting
from headrace.changelog.segment import describe, segment_bytes
from headrace.errors import (
    AlreadyStored,
    BadPosition,
    BadSchema,
    ChangeLogError,
    HeadraceError,
    LostLog,
    OtherSource,
    PositionExpired,
    StorageError,
)
from headrace.storage.files import Files
from headrace.storage.killpoints import SEGMENT_WRITTEN, reach

# --- a baseline on its way into the log -----------------------------------------------------------

PART_BYTES = 32 << 20
"""About the size of a part: enough parts for Spark to distribute, and small in memory."""


class BaselineWriter:
    """Takes the rows of one table, with the columns of `schema.arrow`, in any order."""

    def __init__(
        self,
        log: LogWriter,
        schema: TableSchema,
        schema_id: int,
        number: int,
        stem: str,
        since: int,
    ) -> None:
        self.number = number
        self.stem = stem
        """The beginning of the names of its segments."""

        self.schema_id = schema_id
        self.time = log.stamp
        """When the copy began, in microseconds since 1970: the time of its rows."""
        self._log = log
        self._schema = schema
        self._since = since
        self._waiting: list[pa.Table] = []
        self._size = 0
        self._files: list[File] = []
        self.rows = 0

    def write(self, batch: pa.RecordBatch | pa.Table, exact: pa.Array | None = None) -> int:
        """
        Add rows and return how many there are so far.

        `exact` holds the exact texts of values that their columns cannot hold (R23f), as in
        a segment's `_exact`.
        """
        rows = as_baseline(self._schema, batch, exact, self.time)
        self._waiting.append(rows)
        # Only the rows count: a segment's other columns need hardly any space in the file.
        self._size += batch.nbytes
        self.rows += rows.num_rows
        if self._size >= PART_BYTES:
            self._store()
        return self.rows

    def adopt(self, files: Sequence[File]) -> None:
        """Add segments that other processes wrote: synced, with names of this baseline."""
        if strangers := [file.name for file in files if not file.name.startswith(f"{self.stem}-")]:
            raise ChangeLogError("Segment does not belong to this baseline", file=strangers[0])
        self._files += files
        self.rows += sum(file.rows for file in files)

    def finish(self, first: int, last: int, snapshot: str = "") -> Baseline:
        """
        Complete the baseline, durably.

        `first` is the source's last commit before the first row was read, `last` its last one
        when the last row was read (R43). `snapshot` says which commits in between the rows hold.
        `PositionExpired` if changes after `first` were pruned: it would be unusable (R19).
        """
        needed = Position(self._log.epoch, first, MAX_ORDINAL)
        if str(needed) < self._log.history.floor:
            raise PositionExpired(
                "Changes since the start of the baseline were pruned",
                table=self._schema.table,
                asked=needed,
                kept_after=self._log.history.floor,
            )
        if self._waiting:
            self._store()
        return self._log.finish(
            self._schema, self.number, (first, last), self.rows, self._files, self._since, snapshot
        )

    def discard(self) -> None:
        """Give it up, and remove its files."""
        self._log.drop(self._files)
        self._waiting, self._files, self._size = [], [], 0

    def _store(self) -> None:
        rows = pa.concat_tables(self._waiting)
        self._waiting, self._size = [], 0
        if rows.num_rows:
            stem = f"{self.stem}-{len(self._files) + 1}-1"
            self._files.append(self._log.store(stem, self._schema, self.schema_id, rows))


def as_baseline(
    schema: TableSchema,
    rows: pa.RecordBatch | pa.Table,
    exact: pa.Array | None = None,
    time: int | pa.ChunkedArray | None = None,
) -> pa.Table:
    """
    Return `rows` as a segment: each row an `after` image, without a position (R20).

    `time` is the time of all rows, in microseconds since 1970, or of each.
    """
    count = rows.num_rows
    children = [rows.column(name) for name in schema.names]
    if isinstance(rows, pa.Table):
        children = [child.combine_chunks() for child in children]
    if isinstance(time, int):
        time = pa.repeat(pa.scalar(time, schema.segment.field("_time").type), count)
    columns = {
        "_op": pa.repeat(pa.scalar(int(Op.INSERT), pa.int8()), count),
        "_time": time,
        "_exact": exact,
        "after": pa.StructArray.from_arrays(children, fields=list(schema.arrow)),
    }
    arrays = []
    for field in schema.segment:
        column = columns.get(field.name)
        arrays.append(pa.nulls(count, field.type) if column is None else column)
    return pa.Table.from_arrays(arrays, schema=schema.segment)


# --- checks before a writer takes a log -----------------------------------------------------------


def check_taker(history: History, origin: str, term: int, folder: str) -> None:
    """Raise `OtherSource` or `LostLog` if this writer must not take the log."""
    if kind(history.first_origin) not in ("", kind(origin)):
        raise OtherSource(
            "Log was recorded from another source",
            folder=folder,
            recorded=kind(history.first_origin),
            given=kind(origin),
        )
    if history.term > term:
        raise LostLog(
            "Another engine has taken over this log", folder=folder, term=term, later=history.term
        )


def sweep(segments: Files, history: History) -> None:
    """Remove segments that no entry ever named; recently dropped ones still have a lease."""
    leased = {name for _, names in history.retired for name in names}
    segments.remove_many(sorted(set(segments.list("")) - history.names() - leased))


def kind(origin: str) -> str:
    """Return the kind of source in an origin: the part before the colon."""
    return origin.partition(":")[0]


# --- the writer -----------------------------------------------------------------------------------

LIMIT_ROWS = 100_000
LIMIT_BYTES = 32 << 20
"""The most that a recorder collects before it flushes in any case (R10)."""


class LogWriter:
    """
    Appends to one source's log.

    *Order*: commits are appended in the order of their numbers, each after the log's end.
    *Durability*: `begin`, `flush`, `heartbeat` and a baseline's `finish` are durable on return;
    `append` keeps changes in memory. *Failure*: after any failed write the writer raises
    that same error from every method; open another one, which continues from what the index
    holds (R36). *Threads*: one.
    """

    def __init__(
        self, files: Files, source: str, writer: str, term: int, clock: Callable[[], float]
    ) -> None:
        self.segments = files.within(f"log/{source}/segments")
        self._entries = files.within(f"log/{source}/index")
        self.index = LogIndex(self._entries)
        self.history = History()
        """The content of the index; retention and compaction use it, too."""
        self._writer = writer
        self._term = term
        self._clock = clock
        self._broken: HeadraceError | None = None
        self._described: dict[str, TableSchema] = {}
        self._baselines = 0
        self._pending = UnflushedChanges(ORIGIN)

    @classmethod
    def open(
        cls,
        files: Files,
        *,
        source: str,
        origin: str,
        writer: str,
        term: int,
        clock: Callable[[], float],
        baselines: int = 0,
    ) -> LogWriter:
        """
        Take the log of `source` under the data directory `files`, at the end of its index.

        Raises `OtherSource` if it was recorded from another kind of source, and `LostLog` if a
        writer of a higher term has written to it. Baselines get numbers above `baselines`: if a
        log was lost, a pipeline must not take its baselines for those of the new log.
        """
        log = cls(files, source, writer, term, clock)
        while not log._take(origin, files.path(f"log/{source}")):
            log = cls(files, source, writer, term, clock)
        log._baselines = max(log._baselines, baselines)
        return log

    def _take(self, origin: str, folder: str) -> bool:
        """Read the index and claim the next number; False if another writer just took it."""
        self._entries.make_folder("")
        self.segments.make_folder("")
        history = self.history = self.index.history()
        self._baselines = history.baselines
        check_taker(history, origin, self._term, folder)
        if not history.epoch:
            return True  # Nothing was ever written, so there is nothing to claim or to sweep.
        # R31: first claim the number, then sweep. See the top of this module.
        try:
            self._write_heartbeat(self.end, self.source_position or "")
        except LostLog:
            # An earlier writer finished an entry after we had read the index. It may not be the
            # current writer; its term decides, not which one was quicker.
            return False
        self.index.write_missing_checkpoints()
        self._entries.sweep("")
        sweep(self.segments, history)
        return True

    @property
    def epoch(self) -> int:
        """The epoch that commits are written under; 0 before `begin`."""
        return self.history.epoch

    @property
    def lineage(self) -> str | None:
        """The history that commits of this epoch belong to; None before `begin`."""
        return self.history.lineage

    @property
    def origin(self) -> str:
        """The source's own name when this log began or last restarted; otherwise empty."""
        return self.history.origin

    @property
    def end(self) -> Position:
        """The position at which the newest durable entry ends."""
        return self.history.end

    @property
    def source_position(self) -> str | None:
        """The same in the source's own terms: where reading continues."""
        return self.history.source_position

    @property
    def last_entry(self) -> int:
        """The number of the newest durable entry."""
        return self.index.last

    @property
    def size(self) -> int:
        """Bytes of all files that the index names."""
        return self.history.size

    @property
    def stamp(self) -> int:
        """The time, in microseconds since 1970."""
        return int(self._clock() * 1_000_000)

    @property
    def pending_rows(self) -> int:
        """The number of changes that are not flushed yet."""
        return self._pending.rows

    @property
    def pending_bytes(self) -> int:
        """Their size in memory, as Arrow reports it."""
        return self._pending.bytes

    @property
    def pending_complete(self) -> bool:
        """Whether they end on a commit boundary, and may be flushed."""
        return self._pending.complete

    def alters(self, changes: Changes) -> bool:
        """Whether changes have other columns than pending changes of their tables."""
        return self._pending.alters(changes)

    def has_baseline(self, table: str) -> bool:
        """Whether there is a baseline of the table that changes can be applied to."""
        known = self.history.tables.get(table)
        return known is not None and known.baseline is not None

    def schema(self, table: str) -> TableSchema | None:
        """Return the newest known schema of the table; None if there is none."""
        known = self.history.tables.get(table)
        return None if known is None else known.schemas.get(known.current)

    def describe(self, schemas: Mapping[str, TableSchema]) -> None:
        """Set the tables' current schemas: changes with another known schema are read late."""
        self._described.update(schemas)

    @property
    def notes(self) -> Mapping[str, str]:
        """The texts kept for the source, by table; its own under the empty name."""
        return self.history.notes

    def begin(self, at: SourcePosition, reason: str, origin: str) -> Gap:
        """
        Record that history begins or restarts at `at`; every table then needs a baseline.

        A new epoch is opened for another lineage, and if the history of the same lineage was
        rewritten: `reason` says so, or `at` is before the log's end. A later position in the
        same lineage is a gap within the epoch (R1). Pending changes are flushed before.
        """
        self._usable()
        if self._pending.complete:
            self.flush()
        else:
            # For the log, a commit that was not read to its end has not happened.
            self.drop(self._pending.spilled)
        end = self.end
        if not self.epoch:
            epoch, reason = 1, "start"
        elif at.lineage != self.lineage or reason == "lineage" or at.commit < end.commit:
            epoch, reason = self.epoch + 1, "lineage"
        else:
            epoch, reason = self.epoch, "gap"
        gap = Gap(
            **self.head(epoch),
            lineage=at.lineage,
            source=str(at),
            at=str(max(end, Position(epoch, at.commit))),
            reason=reason,
            origin=origin,
        )
        self.enter(gap)
        return gap

    def require_baseline(
        self, table: str, reason: str, *, missing: bool = False
    ) -> RebaselineRequired:
        """
        Record that rows of one table changed without a change: it needs a new baseline.

        Pending changes must be flushed before. Baselines of the table that are being taken
        are not usable either.
        """
        self._usable()
        if self._pending.rows or self.source_position is None:
            raise ChangeLogError(
                "Pending changes must be flushed before a baseline is required", table=table
            )
        end = self.end
        required = RebaselineRequired(
            **self.head(),
            table=table,
            baseline=self._baselines,
            at=str(Position(end.epoch, end.commit, end.ordinal + 1)),
            source=self.source_position,
            reason=reason,
            missing=missing,
        )
        self.enter(required)
        return required

    def note(self, text: str, table: str = "") -> None:
        """Keep a text for the source; an unchanged text is not written again."""
        self._usable()
        if self.notes.get(table) != text:
            self.enter(
                Note(
                    **self.head(),
                    table=table,
                    text=text,
                )
            )

    def append(self, changes: Changes) -> None:
        """
        Collect changes in memory, until `flush`.

        Parts of one commit too large for memory go to disk as they come; they become visible
        with the flush that follows the last part (R9).
        """
        self._usable()
        self._begun(changes.upto)
        self._pending.add(changes)
        if not changes.ends and self._pending.bytes >= LIMIT_BYTES:
            with self._guarded():
                self._spill()

    def flush(self) -> Flush | None:
        """Make pending changes durable and visible; return the entry, None without changes."""
        self._usable()
        pending = self._pending
        if not pending.rows:
            return None
        if not pending.complete or pending.upto is None:
            raise ChangeLogError("Cannot flush an incomplete commit", pending=pending.rows)
        with self._guarded():
            self._spill()
            # Segments, names and bytes, before the entry that names them (invariant 5).
            self.segments.settle("")
            reach(SEGMENT_WRITTEN)
            flush = self._flushed(pending, pending.upto)
            self.enter(flush)
        return flush

    def _flushed(self, pending: UnflushedChanges, upto: SourcePosition) -> Flush:
        assert pending.first is not None
        assert pending.last is not None
        time = pending.time or self.stamp
        return Flush(
            **self.head(),
            first=str(pending.first),
            # The source may have read beyond the last change of captured tables; so the log has.
            last=str(max(pending.last, Position(self.epoch, upto.commit))),
            source=str(upto),
            begun=pending.begun or time,
            time=time,
            # R37: commit times are not monotonic; this one is. A time in the future counts as
            # now: otherwise everything after it would seem as recent, and be kept until then.
            high_time=min(max(time, self.history.high_time), self.stamp),
            files=tuple(pending.spilled),
            markers=tuple(pending.markers),
        )

    def heartbeat(self, at: SourcePosition, markers: tuple[str, ...] = ()) -> Heartbeat | None:
        """
        Record that the source has reached `at` without a change; None if that is known.

        Also None while changes are pending: everything before a heartbeat must be in the
        log (R34).
        """
        self._usable()
        self._begun(at)
        position = Position(self.epoch, at.commit)
        if self._pending.rows or not self._pending.complete:
            return None
        known = str(at) == self.source_position and not markers
        if position < Position(self.epoch, self.end.commit) or known:
            return None
        return self._write_heartbeat(max(position, self.end), str(at), markers)

    def baseline(self, schema: TableSchema) -> BaselineWriter:
        """Start a baseline of a table; it is usable once it is finished, and may be discarded."""
        self._usable()
        if not self.epoch:
            raise ChangeLogError("The log has no epoch yet", table=schema.table)
        with self._guarded():
            schema_id = self._schema_id(schema)
        self.number_baseline()
        table_id = self.history.known(schema.table).table_id
        stem = f"{self.index.last + 1:012x}-{table_id}-{schema_id}-b{self._baselines}"
        since = self.history.gap_count
        return BaselineWriter(self, schema, schema_id, self._baselines, stem, since)

    def number_baseline(self) -> int:
        """Return a number that no baseline has."""
        self._baselines += 1
        return self._baselines

    # --- also used by the writer of a baseline ------------------------------------------------

    def store(self, stem: str, schema: TableSchema, schema_id: int, rows: pa.Table) -> File:
        """Write rows as a segment whose name begins with `stem`; durable with the next entry."""
        self._usable()
        with self._guarded():
            data = segment_bytes(rows)
            for attempt in range(1, 1_000):
                name = f"{stem}{f'-{attempt}' if attempt > 1 else ''}.parquet"
                # Exclusive, although the index decides: an earlier writer that has not noticed
                # yet may be writing under the same number (R31).
                with suppress(AlreadyStored):
                    self.segments.create(name, data, settle=False)
                    return describe(name, schema.table, schema_id, schema, rows, data)
            raise AlreadyStored("No free name for a segment", file=self.segments.path(stem))

    def finish(
        self,
        schema: TableSchema,
        baseline: int,
        window: tuple[int, int],
        rows: int,
        files: Sequence[File],
        since: int,
        snapshot: str = "",
        copy: int = 0,
    ) -> Baseline:
        """Append the entry of a baseline, which was started when the log had `since` gaps."""
        self._usable()
        if self.history.gap_count != since:
            raise ChangeLogError("History restarted during a baseline", table=schema.table)
        entry = Baseline(
            **self.head(),
            table=schema.table,
            baseline=baseline,
            # F is the end of its commit, H the start: the rows hold all changes of commit F,
            # and commit H is complete wherever it appears.
            first=str(Position(self.epoch, window[0], MAX_ORDINAL)),
            last=str(Position(self.epoch, window[1])),
            rows=rows,
            files=tuple(files),
            snapshot=snapshot,
            copy=copy,
        )
        with self._guarded():
            self.segments.settle("")
            self.enter(entry)
        return entry

    def drop(self, files: Sequence[File]) -> None:
        """Remove segments that no entry names; one that stays is swept by the next writer."""
        if self._broken is not None:
            # An entry that names them may exist although writing it failed, for example when its
            # folder was synced. Only the next writer knows, after it has read the index (R36).
            return
        with suppress(StorageError):
            self.segments.remove_many([file.name for file in files])

    # --- steps ---------------------------------------------------------------------------------

    def _spill(self) -> None:
        """Write collected changes as segments; no entry names them yet."""
        for schema, rows in self._pending.take():
            schema_id = self._schema_id(schema)
            table_id = self.history.known(schema.table).table_id
            stem = f"{self.index.last + 1:012x}-{table_id}-{schema_id}"
            now = pa.repeat(pa.scalar(self.stamp, CAPTURED.type), rows.num_rows)
            rows = rows.append_column(CAPTURED, now)
            self._pending.spilled.append(self.store(stem, schema, schema_id, rows))

    def _schema_id(self, schema: TableSchema) -> int:
        """Return the id of a table's schema; the entry of a new one precedes its first use."""
        known = self.history.known(schema.table)
        if known.schemas.get(known.latest) != schema:
            if len({column.field for column in schema.columns}) < len(schema.columns):
                raise BadSchema("Two columns share a field id", table=schema.table)
            before = known.schemas.get(known.current)
            self.enter(
                Schema(
                    **self.head(),
                    table=schema.table,
                    table_id=known.table_id,
                    schema_id=known.latest + 1,
                    columns=as_columns(schema if before is None else inheriting(schema, before)),
                    key=schema.key,
                    whole_before=schema.whole_before,
                    late=schema in known.schemas.values()
                    and self._described.get(schema.table) != schema,
                )
            )
        return known.latest

    def _write_heartbeat(
        self, last: Position, source: str, markers: tuple[str, ...] = ()
    ) -> Heartbeat:
        heartbeat = Heartbeat(
            **self.head(),
            last=str(last),
            source=source,
            markers=markers,
        )
        self.enter(heartbeat)
        return heartbeat

    def head(self, epoch: int | None = None) -> dict[str, Any]:
        """Return the fields with which every entry begins."""
        return {
            "entry": self.index.last + 1,
            "writer": self._writer,
            "term": self._term,
            "epoch": self.epoch if epoch is None else epoch,
        }

    def enter(self, entry: AnyEntry) -> None:
        """Append an entry, durably."""
        self._usable()
        with self._guarded():
            self.index.append(entry)
            self.history.take(entry)
            if isinstance(entry, Flush | Gap | Heartbeat | RebaselineRequired):
                self._pending = UnflushedChanges(self.end)
            self.index.checkpoint(self.history)

    def _begun(self, at: SourcePosition) -> None:
        if at.lineage != self.lineage:
            raise BadPosition(
                "Position is not of the log's lineage", lineage=at.lineage, log=self.lineage
            )

    def _usable(self) -> None:
        if self._broken is not None:
            raise self._broken

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        """Make the writer unusable after a failure: what is on disk is unknown (R36)."""
        try:
            yield
        except HeadraceError as error:
            self._broken = error
            raise
        except BaseException:
            self._broken = ChangeLogError("Writing was interrupted")
            raise
