"""
Compaction of the log: merging small flushes, and folding changes into a baseline (R27, R19).

Merging turns many small flushes into one with the same changes, in fewer and larger files (R27).
Nothing is lost and nothing moves: every change keeps its position, its times and the meaning of
its bytes.
The new files are synced, then one entry replaces the old files with them; the old files are
deleted a lease later. If the process is killed at any step, the log is as before or as after.

Only steps with no reader's position between them are merged: a batch is a run of complete flushes
(R10), and changes that a reader already has would be delivered to it again. Sizes at least double
with every merge, so that a change is rewritten a few times and not a few hundred times.

Folding builds a new baseline from an old one and the changes since, so that those changes can be
pruned (R19). The last change of each key wins; a delete, the old key of a key change and a
truncate remove rows. Rows that no change touched stay where they are: a file without any changed
row is named again, and not written again. Each row keeps the schema it was written with, as rows
of changes do, so that a change of columns needs no conversion here.

If the result would not be exact, nothing is folded and the reason is reported: a table without a
key, a key of a kind with several forms of one value, a value that the source did not send, a key
with changed columns. Memory holds the changes of one fold, which are limited.
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
from headrace.changelog.schema import CAPTURED, TableSchema
from headrace.changelog.segment import read_several, read_stored
from headrace.changelog.writer import LogWriter, as_baseline
from headrace.storage.killpoints import BASELINE_CHUNK, SEGMENT_WRITTEN, reach

# --- merging flushes ------------------------------------------------------------------------------

MOST_ROWS = 100_000
MOST_BYTES = 16 << 20
"""The size of a merged flush: it is held in memory, and a reader takes it at once."""

MOST_FILES = 128
"""Files read in one piece of work: about fifty milliseconds."""

LEAST_FLUSHES = 16
"""Fewer are not worth an entry."""

_NO_FENCE = "~"
"""After every position."""

_LOOKED_AT = 4_096
"""Steps examined in one search."""


class Compaction:
    """Searches for flushes to merge, from the oldest on, and merges them. For one writer."""

    def __init__(self, log: LogWriter) -> None:
        self._log = log
        self._from = ""
        """Where the next search begins: nothing before it is worth merging now."""

    def advance(self, upto: Position, fences: Sequence[str]) -> Compacted | None:
        """
        Merge one run of flushes that end at or before `upto`, if one is worth it.

        No run extends across a position in `fences`, which are in order. A segment that cannot
        be read raises `CorruptSegment`, and is skipped from then on.
        """
        steps = self._run(str(upto), fences)
        return None if steps is None else self._merge(steps)

    def restart(self) -> None:
        """Start the search at the oldest step again."""
        self._from = ""

    def _run(self, upto: str, fences: Sequence[str]) -> list[Step] | None:
        history = self._log.history
        at = bisect_right(history.lasts, self._from)
        stop = min(bisect_right(history.lasts, upto), at + _LOOKED_AT)
        while at < stop:
            run, ended = self._collect(at, stop, fences)
            sizes = [_bytes(step) for step in run] or [0]
            flushes = sum(isinstance(step, Flush) for step in run)
            # Two of a size make one twice as large: a merged flush waits for others of its size.
            if flushes >= LEAST_FLUSHES and 2 * max(sizes) <= sum(sizes):
                return run
            at += sizes.index(max(sizes)) + 1
            if ended < stop:
                self._from = history.lasts[at - 1]  # later steps cannot change this
        return None

    def _collect(self, at: int, stop: int, fences: Sequence[str]) -> tuple[list[Step], int]:
        """Return the steps from `at` on that may become one flush, and the index after them."""
        history = self._log.history
        run: list[Step] = []
        rows = size = files = 0
        schemas: dict[str, int] = {}
        # A reader may begin at a fence: a flush must end at or before it, or begin after it.
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
                # A reader that takes schemas in turn changes them between two flushes.
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
        # If one of them cannot be read, the next search begins after it.
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
        rows = pa.concat_tables(read_several(log.segments, files, schema))
        stem = f"{log.last_entry + 1:012x}-{known.table_id}-{schema_id}-c"
        return log.store(stem, schema, schema_id, rows)


def _bytes(step: Step) -> int:
    return sum(file.bytes for file in step.files) if isinstance(step, Flush) else 0


# --- folding changes into a baseline --------------------------------------------------------------

FOLD_MOST_ROWS = 400_000
FOLD_MOST_BYTES = 64 << 20
"""The size of the changes in one fold, which are held in memory."""

PIECE_BYTES = 4 << 20
FOLD_MOST_FILES = 64
"""The amount read in one piece of work: about fifty milliseconds."""

LEAST_BYTES = 64 << 20
"""A fold is worth it once a baseline alone keeps this many bytes of the log from being pruned."""

SHARE = 2
"""They must also be at least this fraction (1/n) of the baseline, which is rewritten."""

_KEYS = frozenset(
    {"int16", "int32", "int64", "boolean", "decimal", "text", "bytes", "text_bytes", "uuid"}
    | {"date", "timestamp", "timestamptz", "time"}
)
"""Kinds whose equal values have equal bytes."""


class CannotFold(Exception):
    """A baseline cannot be folded exactly; the text is the reason."""


@dataclass(frozen=True, slots=True)
class FoldPlan:
    """A planned fold: a table's baseline, advanced to the end of a step."""

    table: str
    old: Baseline
    upto: Position
    pieces: tuple[tuple[File, ...], ...]
    """The files of the table's changes in between, flush by flush."""


def plan_fold(
    log: LogWriter, upto: Position, least: int | None = None, *, anyhow: bool = False
) -> FoldPlan | None:
    """
    Return the fold that releases most of the log, if one is worth it; `upto` limits it.

    `least` is how many bytes of the log must be kept only for it; `anyhow`: one byte is enough.

    The table with the oldest baseline is folded: the log is kept for it.
    The first flush is taken complete, however large: the fold checks its size.
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
    """A running fold. Belongs to one writer; `advance` does one piece of work at a time."""

    def __init__(self, log: LogWriter, plan: FoldPlan) -> None:
        self.table = plan.table
        self._log = log
        self._plan = plan
        self._known: LogTable = log.history.tables[plan.table]
        self._since = log.history.gap_count
        self._number = log.number_baseline()
        self._last: dict[bytes, tuple[int, int] | None] = {}
        """The last change of each key: its segment and row; None: it was deleted."""

        self._emptied = False
        self._read: list[tuple[int, pa.Table]] = []
        self._files: list[File] = []
        """The files of the new baseline; those written for it have its number in their names."""

        self._made: list[File] = []
        self._work = self._fold()

    def advance(self) -> Baseline | None:
        """
        Do the next piece of work; return the baseline once it is durable, otherwise None.

        Raises `CannotFold` if it cannot be done exactly, or is outdated; then call `discard`.
        """
        if self.outdated:
            raise CannotFold("another baseline was written in the meantime")
        return next(self._work)

    def discard(self) -> None:
        """Give it up, and remove its files."""
        self._log.drop(self._made)
        self._made = []

    @property
    def old(self) -> int:
        """The number of the baseline that is folded."""
        return self._plan.old.baseline

    @property
    def outdated(self) -> bool:
        """Whether another baseline has replaced the one that is folded."""
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
        """Raise `CannotFold` if the index shows that the result would not be exact."""
        schemas = self._known.schemas
        files = [*self._plan.old.files, *(file for files in self._plan.pieces for file in files)]
        keys = set()
        for file in files if self._plan.pieces else ():
            schema = schemas[file.schema]
            keys.add(tuple((schema.column(n).field, schema.column(n).type) for n in schema.key))
            if file.unsent:
                raise CannotFold("the source did not send all values")
        changes = [file for files in self._plan.pieces for file in files]
        rows, size = sum(file.rows for file in changes), sum(file.bytes for file in changes)
        if rows > FOLD_MOST_ROWS or size > FOLD_MOST_BYTES:
            raise CannotFold("a single flush has more changes than a fold may hold in memory")
        if len(keys) > 1:
            raise CannotFold("the columns of the key have changed")
        for key in keys:
            if not key or any(kind.kind not in _KEYS for _, kind in key):
                raise CannotFold("the table has no key whose equal values have equal bytes")

    def _take(self, file: File) -> None:
        """Record the changes of one segment."""
        schema = self._known.schemas[file.schema]
        rows = read_stored(self._log.segments, file, schema)
        if rows["_commit"][0].as_py() <= self._plan.old.window[0].commit:
            # The flush begins before F, and the baseline's rows hold the changes up to F.
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
                last[_complete_key(old)] = None
            if op != Op.DELETE:
                last[_complete_key(new)] = (number, at)

    def _keep(self, file: File) -> None:
        """Keep the unchanged rows of one of the old baseline's files."""
        if not self._last:
            self._files.append(file)
            return
        schema = self._known.schemas[file.schema]
        rows = read_stored(self._log.segments, file, schema)
        keys = _keys(rows["after"], schema)
        same = [_complete_key(key) not in self._last for key in keys]
        if all(same):
            self._files.append(file)
        elif any(same):
            self._store(file.schema, schema, rows.filter(pa.array(same)))

    def _write_all(self) -> Iterator[None]:
        """Write the changed rows, each with the schema of its last change."""
        rows_by_segment: dict[int, list[int]] = {}
        for at in self._last.values():
            if at is not None:
                rows_by_segment.setdefault(at[0], []).append(at[1])
        by_schema: dict[int, list[pa.Table]] = {}
        for number, found in rows_by_segment.items():
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
        # Files of one schema together: row references count files in this order.
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
    """Return the rows after changes, with the columns of a baseline."""
    after = rows["after"].combine_chunks()
    if isinstance(after, pa.ChunkedArray):
        after = pa.concat_arrays(after.chunks)
    images = pa.Table.from_arrays(after.flatten(), schema=schema.arrow)
    exact = None
    if rows["_exact"].null_count < rows.num_rows:
        # Texts of the before image have negative numbers, and are dropped with it.
        kept = [
            [(field, text) for field, text in texts or () if field > 0] or None
            for texts in rows["_exact"].to_pylist()
        ]
        exact = pa.array(kept, rows["_exact"].type)
    made = as_baseline(schema, images, exact, rows["_time"])
    return made.append_column(CAPTURED, rows[CAPTURED.name])


def _keys(image: pa.ChunkedArray, schema: TableSchema) -> list[bytes | None]:
    """Return the key of each row as bytes, equal for equal keys; None if it has no image."""
    parts = []
    for name in schema.key:
        # By index: a name with a dot would be read as a path.
        values = pc.struct_field(image, schema.names.index(name))
        parts.append(_as_bytes(values))
    whole = parts[0] if len(parts) == 1 else pc.binary_join_element_wise(*map(_framed, parts), b"")
    keys: list[bytes | None] = whole.to_pylist()
    return keys


def _framed(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Put the length before each value, so that two different keys never have the same bytes."""
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


def _complete_key(key: bytes | None) -> bytes:
    if key is None:
        raise CannotFold("a row does not have its complete key")
    return key
