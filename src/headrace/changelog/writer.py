"""
The one writer of a log: it appends changes, writes baselines, and guards against other writers.

Changes gather in memory and become durable and visible together: segments first, each
synced, then one entry of the index, synced (R10, invariant 5). `flush` returns only then,
so a caller that acknowledges after it acknowledges what is on disk (invariant 1).

The rows of a baseline go to disk part by part, and no reader sees one before the last: the entry
that names all parts is what makes a baseline (H4). Until then it can be discarded, or forgotten
in a crash, without a trace but files that the next writer sweeps.

Two processes may believe they are the writer. Numbered entries decide (R31): a writer checks
whether it may take the log, and claims the next number as soon as it opens, before it sweeps
anything, so that one from before loses its next number and can never name a file that was swept.

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
from headrace.changelog.schema import TableSchema, inheriting
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
"""About the size of a part: enough for Spark to share out, small in memory."""


class BaselineWriter:
    """Takes the rows of one table, in the shape of `schema.arrow`, in any order."""

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
        """How the names of its segments begin."""

        self.schema_id = schema_id
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

        `exact` holds the marks of values that their columns could not hold (R23f), in
        the shape of a segment's `_exact`.
        """
        rows = as_baseline(self._schema, batch, exact)
        self._waiting.append(rows)
        # Of the rows alone: what every segment has besides is next to nothing in the file.
        self._size += batch.nbytes
        self.rows += rows.num_rows
        if self._size >= PART_BYTES:
            self._store()
        return self.rows

    def adopt(self, files: Sequence[File]) -> None:
        """Take segments that somebody else wrote: synced, and under names of this baseline."""
        if strangers := [file.name for file in files if not file.name.startswith(f"{self.stem}-")]:
            raise ChangeLogError("Not a segment of this baseline", file=strangers[0])
        self._files += files
        self.rows += sum(file.rows for file in files)

    def finish(self, first: int, last: int, snapshot: str = "") -> Baseline:
        """
        Make it a baseline, durably.

        `first` is the source's last commit before the first row was read, `last` the last one
        when the last row was (R43). `snapshot` tells which commits in between the rows hold.
        `PositionExpired` where changes after `first` were pruned: nobody could use it (R19).
        """
        needed = Position(self._log.epoch, first, MAX_ORDINAL)
        if str(needed) < self._log.history.floor:
            raise PositionExpired(
                "Changes since a baseline was begun were pruned",
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
        """Give it up, and remove what was written."""
        self._log.drop(self._files)
        self._waiting, self._files, self._size = [], [], 0

    def _store(self) -> None:
        rows = pa.concat_tables(self._waiting)
        self._waiting, self._size = [], 0
        if rows.num_rows:
            stem = f"{self.stem}-{len(self._files) + 1}-1"
            self._files.append(self._log.store(stem, self._schema, self.schema_id, rows))


def as_baseline(
    schema: TableSchema, rows: pa.RecordBatch | pa.Table, exact: pa.Array | None = None
) -> pa.Table:
    """Return `rows` in the shape of a segment: each an `after` image, without a position (R20)."""
    count = rows.num_rows
    children = [rows.column(name) for name in schema.names]
    if isinstance(rows, pa.Table):
        children = [child.combine_chunks() for child in children]
    columns = {
        "_op": pa.repeat(pa.scalar(int(Op.INSERT), pa.int8()), count),
        "_exact": exact,
        "after": pa.StructArray.from_arrays(children, fields=list(schema.arrow)),
    }
    arrays = []
    for field in schema.segment:
        column = columns.get(field.name)
        arrays.append(pa.nulls(count, field.type) if column is None else column)
    return pa.Table.from_arrays(arrays, schema=schema.segment)


# --- checks before a log is taken -----------------------------------------------------------------


def check_taker(history: History, origin: str, term: int, folder: str) -> None:
    """Raise `OtherSource` or `LostLog` where a log is not to be taken by this writer."""
    if kind(history.first_origin) not in ("", kind(origin)):
        raise OtherSource(
            "Log was recorded from another source",
            folder=folder,
            recorded=kind(history.first_origin),
            given=kind(origin),
        )
    if history.term > term:
        raise LostLog(
            "A later writer has taken this log", folder=folder, term=term, later=history.term
        )


def sweep(segments: Files, history: History) -> None:
    """Remove segments that no entry ever named; those that were dropped of late have a lease."""
    leased = {name for _, names in history.retired for name in names}
    segments.remove_many(sorted(set(segments.list("")) - history.names() - leased))


def kind(origin: str) -> str:
    """Return the kind of source in an origin: what stands before the colon."""
    return origin.partition(":")[0]


# --- the writer -----------------------------------------------------------------------------------

LIMIT_ROWS = 100_000
LIMIT_BYTES = 32 << 20
"""What a recorder lets gather before it flushes, whoever asks (R10)."""


class LogWriter:
    """
    Appends to one source's log.

    *Order*: commits are appended in the order of their numbers, each beyond the log's end.
    *Durability*: `begin`, `flush`, `heartbeat` and a baseline's `finish` are durable on return;
    `append` keeps changes in memory. *Failure*: after any failed write the writer raises
    that same error from every method; open another one, which goes on from what the index
    holds (R36). *Threads*: one.
    """

    def __init__(
        self, files: Files, source: str, writer: str, term: int, clock: Callable[[], float]
    ) -> None:
        self.segments = files.within(f"log/{source}/segments")
        self._entries = files.within(f"log/{source}/index")
        self.index = LogIndex(self._entries)
        self.history = History()
        """All that the index says; for who takes care of the log, too."""
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
        Take the log of `source` under the data directory `files`, where the index says it stands.

        Raises `OtherSource` if it was recorded from another kind of source, and `LostLog` if a
        writer of a higher term has been here. Baselines get numbers beyond `baselines`: one who
        outlived a log that was lost must not take those of another for his own.
        """
        log = cls(files, source, writer, term, clock)
        while not log._take(origin, files.path(f"log/{source}")):
            log = cls(files, source, writer, term, clock)
        log._baselines = max(log._baselines, baselines)
        return log

    def _take(self, origin: str, folder: str) -> bool:
        """Read the index and claim the next number; False where somebody else just took it."""
        self._entries.make_folder("")
        self.segments.make_folder("")
        history = self.history = self.index.history()
        self._baselines = history.baselines
        check_taker(history, origin, self._term, folder)
        if not history.epoch:
            return True  # Nothing was ever written, so there is nothing to claim or to sweep.
        # R31: first the number, then the broom. See the top of this module.
        try:
            self._beat(self.end, self.source_position or "")
        except LostLog:
            # A writer from before us finished an entry after we had looked. It may not be
            # the last one; its term decides, not who was quicker.
            return False
        self.index.mend()
        self._entries.sweep("")
        sweep(self.segments, history)
        return True

    @property
    def epoch(self) -> int:
        """The epoch that commits are written under; 0 before `begin`."""
        return self.history.epoch

    @property
    def lineage(self) -> str | None:
        """The space that commits of this epoch live in; None before `begin`."""
        return self.history.lineage

    @property
    def origin(self) -> str:
        """What the source called itself when this log began, or last began anew; else empty."""
        return self.history.origin

    @property
    def end(self) -> Position:
        """The position that the newest durable entry ends at."""
        return self.history.end

    @property
    def source_position(self) -> str | None:
        """The same in the source's own words: where reading goes on."""
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
        """Changes gathered and not flushed."""
        return self._pending.rows

    @property
    def pending_bytes(self) -> int:
        """Their size in memory, as Arrow counts it."""
        return self._pending.bytes

    @property
    def pending_complete(self) -> bool:
        """Whether they end on a commit boundary, and may be flushed."""
        return self._pending.complete

    def alters(self, changes: Changes) -> bool:
        """Whether changes are in other columns than those of their tables that are pending."""
        return self._pending.alters(changes)

    def has_baseline(self, table: str) -> bool:
        """Whether there is a baseline of the table that changes can be applied to."""
        known = self.history.tables.get(table)
        return known is not None and known.baseline is not None

    def schema(self, table: str) -> TableSchema | None:
        """Return the newest schema that is known of the table; None where there is none."""
        known = self.history.tables.get(table)
        return None if known is None else known.schemas.get(known.current)

    def describe(self, schemas: Mapping[str, TableSchema]) -> None:
        """Hear what tables look like now: another schema that was known before is read late."""
        self._described.update(schemas)

    @property
    def notes(self) -> Mapping[str, str]:
        """What the source wants to be told again, by table; its own under the empty name."""
        return self.history.notes

    def begin(self, at: SourcePosition, reason: str, origin: str) -> Gap:
        """
        Record that history begins, or begins anew, at `at`; every table then needs a baseline.

        An epoch is opened for another lineage, and where history of the same one was
        rewritten: `reason` says so, or `at` lies before the log's end. A later place in the
        same lineage is a gap within the epoch (R1). What is pending is flushed before.
        """
        self._usable()
        if self._pending.complete:
            self.flush()
        else:
            # A commit that was not read to its end has not happened, as far as the log knows.
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

    def owe(self, table: str, reason: str, *, missing: bool = False) -> RebaselineRequired:
        """
        Record that rows of one table changed without a change: it needs a new baseline.

        What is pending must be flushed before. Baselines of the table that are being taken
        are of no use either.
        """
        self._usable()
        if self._pending.rows or self.source_position is None:
            raise ChangeLogError("Cannot owe a baseline within a flush", table=table)
        end = self.end
        owed = RebaselineRequired(
            **self.head(),
            table=table,
            baseline=self._baselines,
            at=str(Position(end.epoch, end.commit, end.ordinal + 1)),
            source=self.source_position,
            reason=reason,
            missing=missing,
        )
        self.enter(owed)
        return owed

    def note(self, text: str, table: str = "") -> None:
        """Keep what the source wants to be told again; what is kept already is not written."""
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
        Gather changes in memory, until `flush`.

        Parts of one commit too large for memory go to disk as they come; nobody sees them
        before the flush that follows the last (R9).
        """
        self._usable()
        self._begun(changes.upto)
        self._pending.add(changes)
        if not changes.ends and self._pending.bytes >= LIMIT_BYTES:
            with self._guarded():
                self._spill()

    def flush(self) -> Flush | None:
        """Make what is pending durable and visible, and return its entry; None without changes."""
        self._usable()
        pending = self._pending
        if not pending.rows:
            return None
        if not pending.complete or pending.upto is None:
            raise ChangeLogError("Cannot flush within a commit", pending=pending.rows)
        with self._guarded():
            self._spill()
            # Segments before the entry that names them, names and bytes (invariant 5).
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
            # The source may have read past the last change of our tables; so has the log.
            last=str(max(pending.last, Position(self.epoch, upto.commit))),
            source=str(upto),
            begun=pending.begun or time,
            time=time,
            # R37: commit times are not monotonic; this one is, and one from the future counts
            # as of now: everything after it would seem as young, and be kept until then.
            high_time=min(max(time, self.history.high_time), self.stamp),
            files=tuple(pending.spilled),
            markers=tuple(pending.markers),
        )

    def heartbeat(self, at: SourcePosition, markers: tuple[str, ...] = ()) -> Heartbeat | None:
        """
        Record that the source has come to `at` without a change; None where that is known.

        Also None while changes are pending: everything before a heartbeat must be in the
        log (R34).
        """
        self._usable()
        self._begun(at)
        place = Position(self.epoch, at.commit)
        if self._pending.rows or not self._pending.complete:
            return None
        known = str(at) == self.source_position and not markers
        if place < Position(self.epoch, self.end.commit) or known:
            return None
        return self._beat(max(place, self.end), str(at), markers)

    def baseline(self, schema: TableSchema) -> BaselineWriter:
        """Begin a baseline of a table; it counts once it is finished, and may be discarded."""
        self._usable()
        if not self.epoch:
            raise ChangeLogError("Log has not begun", table=schema.table)
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

    # --- what a baseline's writer uses, too --------------------------------------------------

    def store(self, stem: str, schema: TableSchema, schema_id: int, rows: pa.Table) -> File:
        """Write rows as a segment whose name begins with `stem`; durable with the next entry."""
        self._usable()
        with self._guarded():
            data = segment_bytes(rows)
            for attempt in range(1, 1_000):
                name = f"{stem}{f'-{attempt}' if attempt > 1 else ''}.parquet"
                # Exclusive, although the index decides: an older writer that has not
                # noticed yet may be writing under the same number (R31).
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
        """Append the entry of a baseline, which was begun when the log had `since` gaps."""
        self._usable()
        if self.history.gap_count != since:
            raise ChangeLogError("History began anew during a baseline", table=schema.table)
        entry = Baseline(
            **self.head(),
            table=schema.table,
            baseline=baseline,
            # F ends with its commit, H is reached with it: the rows hold all changes of
            # commit F, and commit H is whole wherever it appears.
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
            # An entry that names them may exist, although writing it failed: its folder's
            # sync, say. Only the next writer knows, who reads the index first (R36).
            return
        with suppress(StorageError):
            self.segments.remove_many([file.name for file in files])

    # --- steps ---------------------------------------------------------------------------------

    def _spill(self) -> None:
        """Write what is gathered as segments; no entry names them yet."""
        for schema, rows in self._pending.take():
            schema_id = self._schema_id(schema)
            table_id = self.history.known(schema.table).table_id
            stem = f"{self.index.last + 1:012x}-{table_id}-{schema_id}"
            self._pending.spilled.append(self.store(stem, schema, schema_id, rows))

    def _schema_id(self, schema: TableSchema) -> int:
        """Return the id of a table's schema; a new one gets its entry, before what uses it."""
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

    def _beat(self, last: Position, source: str, markers: tuple[str, ...] = ()) -> Heartbeat:
        beat = Heartbeat(
            **self.head(),
            last=str(last),
            source=source,
            markers=markers,
        )
        self.enter(beat)
        return beat

    def head(self, epoch: int | None = None) -> dict[str, Any]:
        """Return what every entry begins with."""
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
            raise BadPosition("Position of another lineage", lineage=at.lineage, log=self.lineage)

    def _usable(self) -> None:
        if self._broken is not None:
            raise self._broken

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        """Let nothing go on after a failure in here: what is on disk is in doubt (R36)."""
        try:
            yield
        except HeadraceError as error:
            self._broken = error
            raise
        except BaseException:
            self._broken = ChangeLogError("Writing was interrupted")
            raise
