"""
Compaction of the log: merging small flushes, and folding changes into a baseline (R27, R19).

Merging turns many small flushes into one that holds the same changes, in fewer and larger files
(R27). Nothing is lost and nothing moves: every change keeps its position and the meaning of its
bytes. The new files are synced, then one entry puts them in the place of the old ones; those are
deleted a lease later. Killed at any step, the log is as before or as after.

Only steps that no reader stands within are merged: a batch is a run of whole flushes (R10), and
changes that a reader took once would be delivered to it again. Sizes at least double with every
merge, so that a change is rewritten a few times in its life and not a few hundred times.

Folding makes a new baseline from an old one and the changes since, so that those changes can be
pruned (R19). By key the last change wins; a delete, the old key of a key change and a truncate
remove rows. Rows that no change touched stay where they are: a file without any changed row is
named again, and not written again. Each row keeps the schema it was written with, as rows of
changes do, so that a change of columns needs no conversion here.

What would not be exact is not folded, and the reason is reported: a table without a key, a key
of a kind that has several forms for one value, a value that the source did not send, a key that
changed its columns. Memory holds the changes of one fold, which are cut off at a limit.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import pyarrow as pa
import pyarrow.compute as pc

from headrace.changelog.change import Op
from headrace.changelog.entries import Baseline, Compacted, File, Flush, Heartbeat
from headrace.changelog.history import LogTable, Step
from headrace.changelog.position import Position
from headrace.changelog.schema import TableSchema
from headrace.changelog.segment import read_segment, read_segments
from headrace.changelog.writer import LogWriter, as_baseline
from headrace.storage.killpoints import BASELINE_CHUNK, SEGMENT_WRITTEN, reach

# --- merging flushes ------------------------------------------------------------------------------

MOST_ROWS = 100_000
MOST_BYTES = 16 << 20
"""Of the flush that comes of it: what is held in memory, and what a reader takes at once."""

MOST_FILES = 128
"""Read in one piece of work: some fifty milliseconds."""

LEAST_FLUSHES = 16
"""Fewer are not worth an entry."""

_NO_FENCE = "~"
"""Behind every position."""

_LOOKED_AT = 4_096
"""Steps that one look goes through."""


class Compaction:
    """Looks for flushes to merge, from the oldest on, and merges them. Of one writer."""

    def __init__(self, log: LogWriter) -> None:
        self._log = log
        self._from = ""
        """Where the next look begins: nothing before it is worth merging now."""

    def advance(self, upto: Position, fences: Sequence[str]) -> Compacted | None:
        """
        Merge one run of flushes that end at or before `upto`, if one is worth it.

        No run reaches over a place in `fences`, which are in order. A segment that cannot be
        read raises `CorruptSegment`, and is left alone from then on.
        """
        steps = self._run(str(upto), fences)
        return None if steps is None else self._merge(steps)

    def begin_anew(self) -> None:
        """Look from the oldest step on again."""
        self._from = ""

    def _run(self, upto: str, fences: Sequence[str]) -> list[Step] | None:
        history = self._log.history
        at = bisect_right(history.lasts, self._from)
        stop = min(bisect_right(history.lasts, upto), at + _LOOKED_AT)
        while at < stop:
            run, ended = self._collect(at, stop, fences)
            sizes = [_bytes(step) for step in run] or [0]
            flushes = sum(isinstance(step, Flush) for step in run)
            # Two of a size make one twice as large: what was merged waits for its like.
            if flushes >= LEAST_FLUSHES and 2 * max(sizes) <= sum(sizes):
                return run
            at += sizes.index(max(sizes)) + 1
            if ended < stop:
                self._from = history.lasts[at - 1]  # what comes later makes it no better
        return None

    def _collect(self, at: int, stop: int, fences: Sequence[str]) -> tuple[list[Step], int]:
        """Return the steps from one on that may become one flush, and where that ended."""
        history = self._log.history
        run: list[Step] = []
        rows = size = files = 0
        schemas: dict[str, int] = {}
        # Somebody may begin there: a flush may end at or before it, or begin behind it.
        found = bisect_left(fences, history.lasts[at])
        fence = fences[found] if found < len(fences) else _NO_FENCE
        while at < stop:
            step = history.steps[at]
            if not isinstance(step, Flush | Heartbeat) or (run and step.epoch != run[0].epoch):
                break
            if run and history.lasts[at] > fence:
                break
            if isinstance(step, Flush):
                rows += sum(file.rows for file in step.files)
                size += _bytes(step)
                files += len(step.files)
                if run and (rows > MOST_ROWS or size > MOST_BYTES or files > MOST_FILES):
                    break
                # Who takes other columns in their turn takes them between two flushes.
                if run and any(schemas.get(f.table, f.schema) != f.schema for f in step.files):
                    break
                schemas.update((file.table, file.schema) for file in step.files)
            run.append(step)
            at += 1
        while run and isinstance(run[-1], Heartbeat):
            run.pop()
        return run, at

    def _merge(self, steps: list[Step]) -> Compacted:
        log = self._log
        flushes = [step for step in steps if isinstance(step, Flush)]
        by_table: dict[str, list[File]] = {}
        for flush in flushes:
            for file in flush.files:
                by_table.setdefault(file.table, []).append(file)
        # Should one of them not be readable, the next look begins behind it.
        self._from = flushes[-1].last
        made: list[File] = []
        try:
            for table, files in by_table.items():
                for schema, run in groupby(files, key=lambda file: file.schema):
                    made.append(self._one(table, schema, list(run)))
        except BaseException:
            log.drop(made)
            raise
        log.segments.settle("")
        reach(SEGMENT_WRITTEN)
        entry = Compacted(
            **log.head(flushes[-1].epoch),
            since=steps[0].entry,
            upto=steps[-1].entry,
            first=flushes[0].first,
            last=flushes[-1].last,
            source=flushes[-1].source,
            begun=min(flush.begun for flush in flushes),
            time=max(flush.time for flush in flushes),
            high_time=flushes[-1].high_time,
            files=tuple(made),
            at=log.stamp,
        )
        log.enter(entry)
        return entry

    def _one(self, table: str, schema_id: int, files: list[File]) -> File:
        log = self._log
        known = log.history.tables[table]
        schema = known.schemas[schema_id]
        rows = pa.concat_tables(read_segments(log.segments, files, schema))
        stem = f"{log.last_entry + 1:012x}-{known.table_id}-{schema_id}-c"
        return log.store(stem, schema, schema_id, rows)


def _bytes(step: Step) -> int:
    return sum(file.bytes for file in step.files) if isinstance(step, Flush) else 0


# --- folding changes into a baseline --------------------------------------------------------------

FOLD_MOST_ROWS = 400_000
FOLD_MOST_BYTES = 64 << 20
"""Of the changes that one fold takes: what is held in memory."""

PIECE_BYTES = 4 << 20
FOLD_MOST_FILES = 64
"""Read in one piece of work: some fifty milliseconds."""

LEAST_BYTES = 64 << 20
"""A log that is kept for a baseline alone may have so much before it is worth a fold."""

SHARE = 2
"""And at least one part in so many of the baseline that is written anew."""

_KEYS = frozenset(
    {"int16", "int32", "int64", "boolean", "decimal", "text", "bytes", "text_bytes", "uuid"}
    | {"date", "timestamp", "timestamptz", "time"}
)
"""Kinds of which equal values have equal bytes."""


class CannotFold(Exception):
    """A baseline cannot be folded exactly; its text says why."""


@dataclass(frozen=True, slots=True)
class FoldPlan:
    """A fold to be: a table's baseline, brought to the end of a step."""

    table: str
    old: Baseline
    upto: Position
    pieces: tuple[tuple[File, ...], ...]
    """The files of its changes in between, flush by flush."""


def plan_fold(
    log: LogWriter, upto: Position, least: int | None = None, *, anyhow: bool = False
) -> FoldPlan | None:
    """
    Return the fold that lets go of most, if one is worth it; `upto` bounds it.

    `least` is how many bytes of the log have to be kept for it; `anyhow`: a single one will do.

    The table with the oldest baseline has its turn: it is the one that the log is kept for.
    The first flush is taken whole, however large: whether it can be folded is found then.
    """
    history = log.history
    usable = [known.baseline for known in history.tables.values() if known.baseline is not None]
    old = min(usable, key=lambda each: each.first, default=None)
    end = bisect_right(history.lasts, str(upto))
    start = bisect_right(history.lasts, old.first) if old is not None else end
    if old is None or start >= end:
        return None
    steps = history.steps[start:end]
    held = sum(f.bytes for step in steps if isinstance(step, Flush) for f in step.files)
    pieces: list[tuple[File, ...]] = []
    rows = size = 0
    for flush, files in history.pieces_within([old.table], old.first, history.lasts[end - 1]):
        rows += sum(file.rows for file in files)
        size += sum(file.bytes for file in files)
        if pieces and (rows > FOLD_MOST_ROWS or size > FOLD_MOST_BYTES):
            end = history.step_of(flush)
            break
        pieces.append(tuple(files))
    rewritten = sum(file.bytes for file in old.files) if pieces else 0
    least = LEAST_BYTES if least is None else min(least, LEAST_BYTES)
    if held < (1 if anyhow else max(least, rewritten // SHARE)):
        return None
    at = Position.parse(history.lasts[end - 1])
    first, last = old.window
    if (at.epoch, at.commit) <= (first.epoch, first.commit) or at.commit < last.commit:
        return None
    return FoldPlan(old.table, old, at, tuple(pieces))


class Fold:
    """One fold under way. Belongs to one writer; `advance` does a piece at a time."""

    def __init__(self, log: LogWriter, plan: FoldPlan) -> None:
        self.table = plan.table
        self._log = log
        self._plan = plan
        self._known: LogTable = log.history.tables[plan.table]
        self._since = log.history.gap_count
        self._number = log.number_baseline()
        self._last: dict[bytes, tuple[int, int] | None] = {}
        """By key, where its last change is: which segment and row; None: it was deleted."""

        self._emptied = False
        self._read: list[tuple[int, pa.Table]] = []
        self._files: list[File] = []
        """Those that it will have; the ones that were made for it have its number in them."""

        self._made: list[File] = []
        self._work = self._fold()

    def advance(self) -> Baseline | None:
        """
        Do the next piece of work; the baseline once it is durable, else None.

        `CannotFold` where it cannot be done exactly, or came to nothing meanwhile; then
        `discard`.
        """
        if self.outdated:
            raise CannotFold("another baseline came meanwhile")
        return next(self._work)

    def discard(self) -> None:
        """Give it up, and remove what was written."""
        self._log.drop(self._made)
        self._made = []

    @property
    def old(self) -> int:
        """The number of the baseline that is folded."""
        return self._plan.old.baseline

    @property
    def outdated(self) -> bool:
        """Whether another baseline took the place of the one that is folded."""
        history = self._log.history
        return self._known.baseline is not self._plan.old or history.gap_count != self._since

    def _fold(self) -> Iterator[Baseline | None]:
        self._check()
        size = 0
        for files in self._plan.pieces:
            for file in files:
                self._take(file)
                size += PIECE_BYTES // FOLD_MOST_FILES + file.bytes
                if size >= PIECE_BYTES:
                    size = 0
                    yield None
        for file in self._plan.old.files if not self._emptied else ():
            self._keep(file)
            yield None
        yield from self._write_all()
        self._read, self._last = [], {}
        yield self._finish()

    def _check(self) -> None:
        """Raise where the index alone tells that it would not be exact."""
        schemas = self._known.schemas
        files = [*self._plan.old.files, *(file for files in self._plan.pieces for file in files)]
        keys = set()
        for file in files if self._plan.pieces else ():
            schema = schemas[file.schema]
            keys.add(tuple((schema.column(n).field, schema.column(n).type) for n in schema.key))
            if file.unsent:
                raise CannotFold("a value was not sent by the source")
        changes = [file for files in self._plan.pieces for file in files]
        rows, size = sum(file.rows for file in changes), sum(file.bytes for file in changes)
        if rows > FOLD_MOST_ROWS or size > FOLD_MOST_BYTES:
            raise CannotFold("a single flush has more changes than a fold may hold in memory")
        if len(keys) > 1:
            raise CannotFold("the key is of other columns than it was")
        for key in keys:
            if not key or any(kind.kind not in _KEYS for _, kind in key):
                raise CannotFold("the table has no key that rows can be told apart by")

    def _take(self, file: File) -> None:
        """Note the changes of one segment."""
        schema = self._known.schemas[file.schema]
        rows = read_segment(self._log.segments, file, schema)
        if rows["_commit"][0].as_py() <= self._plan.old.window[0].commit:
            # A flush reaches over F, and the baseline's rows hold what lies before.
            rows = rows.filter(pc.greater(rows["_commit"], self._plan.old.window[0].commit))
        number = len(self._read)
        self._read.append((file.schema, rows))
        last = self._last
        before, after = (_keys(rows[side], schema) for side in ("before", "after"))
        for at, op in enumerate(rows["_op"].to_pylist()):
            old, new = before[at], after[at]
            if op == Op.TRUNCATE:
                last.clear()
                self._emptied = True
                continue
            if op == Op.DELETE or (old is not None and old != new):
                last[_told(old)] = None
            if op != Op.DELETE:
                last[_told(new)] = (number, at)

    def _keep(self, file: File) -> None:
        """Keep the rows of one of the old baseline's files that nothing changed."""
        if not self._last:
            self._files.append(file)
            return
        schema = self._known.schemas[file.schema]
        rows = read_segment(self._log.segments, file, schema)
        keys = _keys(rows["after"], schema)
        same = [_told(key) not in self._last for key in keys]
        if all(same):
            self._files.append(file)
        elif any(same):
            self._store(file.schema, schema, rows.filter(pa.array(same)))

    def _write_all(self) -> Iterator[None]:
        """Write the rows that changes led to, each with the schema of its last change."""
        places: dict[int, list[int]] = {}
        for at in self._last.values():
            if at is not None:
                places.setdefault(at[0], []).append(at[1])
        by_schema: dict[int, list[pa.Table]] = {}
        for number, found in places.items():
            schema_id, rows = self._read[number]
            by_schema.setdefault(schema_id, []).append(rows.take(sorted(found)))
        self._read = []
        for schema_id, parts in by_schema.items():
            schema = self._known.schemas[schema_id]
            self._store(schema_id, schema, _as_rows(schema, pa.concat_tables(parts)))
            yield None

    def _store(self, schema_id: int, schema: TableSchema, rows: pa.Table) -> None:
        part = len(self._made) + 1
        table_id = self._known.table_id
        stem = f"{self._log.last_entry + 1:012x}-{table_id}-{schema_id}-b{self._number}-{part}-1"
        self._made.append(self._log.store(stem, schema, schema_id, rows))
        self._files.append(self._made[-1])
        reach(BASELINE_CHUNK)

    def _finish(self) -> Baseline:
        old, at = self._plan.old, self._plan.upto.commit
        # Of one schema together: who looks for a row of it counts files so.
        files = sorted(self._files, key=lambda file: file.schema)
        return self._log.finish(
            self._known.schemas[self._known.current],
            self._number,
            (at, at),
            sum(file.rows for file in files),
            files,
            self._since,
            copy=old.copy or old.baseline,
        )


def _as_rows(schema: TableSchema, rows: pa.Table) -> pa.Table:
    """Return the rows that changes led to, in the shape of a baseline's."""
    after = rows["after"].combine_chunks()
    if isinstance(after, pa.ChunkedArray):
        after = pa.concat_arrays(after.chunks)
    images = pa.Table.from_arrays(after.flatten(), schema=schema.arrow)
    exact = None
    if rows["_exact"].null_count < rows.num_rows:
        # Those of the before image go by negative numbers, and are gone with it.
        kept = [
            [(field, text) for field, text in marks or () if field > 0] or None
            for marks in rows["_exact"].to_pylist()
        ]
        exact = pa.array(kept, rows["_exact"].type)
    return as_baseline(schema, images, exact)


def _keys(image: pa.ChunkedArray, schema: TableSchema) -> list[bytes | None]:
    """Return the key of each row as bytes, equal for equal keys; None where it has no image."""
    parts = []
    for name in schema.key:
        # By place: a name with a dot in it would be taken for a path.
        values = pc.struct_field(image, schema.names.index(name))
        parts.append(_as_bytes(values))
    whole = parts[0] if len(parts) == 1 else pc.binary_join_element_wise(*map(_framed, parts), b"")
    keys: list[bytes | None] = whole.to_pylist()
    return keys


def _framed(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Put the length before each value, so that two keys never read the same."""
    sizes = pc.cast(pc.cast(pc.binary_length(values), pa.string()), pa.binary())
    return pc.binary_join_element_wise(sizes, values, b":")


def _as_bytes(values: pa.ChunkedArray) -> pa.ChunkedArray:
    kind = values.type
    if pa.types.is_timestamp(kind) or pa.types.is_boolean(kind):
        values = values.cast(pa.int64())
    elif pa.types.is_date32(kind):
        values = values.cast(pa.int32())
    if pa.types.is_binary(kind) or pa.types.is_fixed_size_binary(kind):
        return values.cast(pa.binary())
    return values.cast(pa.string()).cast(pa.binary())


def _told(key: bytes | None) -> bytes:
    if key is None:
        raise CannotFold("a row has no whole key")
    return key
