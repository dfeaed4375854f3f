"""
Reading a slice: the rows of a frame that one segment holds.

This runs on the executors, which open the log's files themselves. A segment that is needed as a
whole is read at once, and checked against the checksum in the index. If `columns` or `where` select
a part, only the needed bytes are read, and each page is checked against its own checksum. If no row
of a segment passes, only the columns in the condition are read.

Some values are null in their column and have a marker: the source did not send the value because it
did not change (R21), or the column cannot hold it and the marker has its exact text (R23f). Passing
on such a null would silently change the value, so it is an error if the query reads the column;
unless the query has `marks=true`, which returns null and the marker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from headrace.changelog.entries import File
from headrace.changelog.history import BaselineWindow
from headrace.changelog.position import Position
from headrace.changelog.ranges import Span, inside
from headrace.changelog.reader import LogReader, segment_path
from headrace.changelog.schema import META, TableSchema
from headrace.changelog.segment import checksum
from headrace.errors import BadValue, CorruptSegment, PositionExpired, UnknownValue
from headrace.pipeline.failed_rows import readable
from headrace.spark_source.columns import (
    EXACT,
    MARKERS,
    TYPES,
    UNSENT,
    ExpandedRows,
    Fit,
    FrameColumns,
    child,
    expanded,
    filled,
    moved_keys,
    picked,
    position_texts,
    taken,
)
from headrace.spark_source.where import Predicate, columns_of, passing
from headrace.storage.locations import elsewhere
from headrace.storage.s3 import opened as storage_at

# --- values that are null and have a marker -------------------------------------------------------


@dataclass(frozen=True)
class Markers:
    """The markers of the changes in a segment, by the change's number; most have none."""

    unsent: dict[int, list[int]]
    exact: dict[int, list[tuple[int, str]]]

    @classmethod
    def of(cls, unsent: pa.Array | None, exact: pa.Array | None) -> Markers | None:
        """Return the markers in the two columns of a segment; None if there are none."""
        found = cls(_listed(unsent), _listed(exact))
        return found if found.unsent or found.exact else None

    def columns(self, rows: ExpandedRows, fits: Sequence[Fit]) -> dict[str, pa.Array]:
        """Return the two columns of a frame with the markers of these columns."""
        unsent: list[list[str] | None] = [None] * len(rows.index)
        exact: list[list[tuple[str, str]] | None] = [None] * len(rows.index)
        names = {fit.field: fit.column.name for fit in fits}
        for at, index, sign in self._rows(rows):
            if sign > 0 and (left := [names[f] for f in self.unsent.get(index, ()) if f in names]):
                unsent[at] = left
            texts = ((sign * field, text) for field, text in self.exact.get(index, ()))
            exact[at] = [(names[f], text) for f, text in texts if f in names] or None
        return {
            UNSENT: pa.array(unsent, MARKERS[UNSENT]),
            EXACT: pa.array(exact, MARKERS[EXACT]),
        }

    def _rows(self, rows: ExpandedRows) -> list[tuple[int, int, int]]:
        """Return the rows that may have markers: row number, change number, and which image."""
        marked = np.array(sorted({*self.unsent, *self.exact}), np.int64)
        found = np.flatnonzero(np.isin(rows.index, marked))
        return [(int(at), int(rows.index[at]), -1 if rows.before[at] else 1) for at in found]

    def first(self, rows: ExpandedRows, fits: Sequence[Fit]) -> tuple[int, Fit, bool] | None:
        """Return the first row with a marker on these columns; True if the value was not sent."""
        by_field = {fit.field: fit for fit in fits}
        for at, index, sign in self._rows(rows):
            if sign > 0:
                for field in self.unsent.get(index, ()):
                    if field in by_field:
                        return at, by_field[field], True
            for field, _ in self.exact.get(index, ()):
                if sign * field in by_field:
                    return at, by_field[sign * field], False
        return None


def refuse_marked(
    markers: Markers,
    rows: ExpandedRows,
    fits: Sequence[Fit],
    ours: dict[str, pa.Array],
    *,
    decides: bool = False,
) -> None:
    """
    Raise `UnknownValue` or `BadValue` if one of these rows has a marker on these columns.

    `decides`: the columns are those of `where`.
    """
    found = markers.first(rows, fits)
    if found is None:
        return
    at, fit, unsent = found
    facts = {"column": fit.column.name, "position": ours["_position"][at].as_py()}
    otherwise = (
        "Or use marks=true, which returns null and names the column in _unsent or _exact; or leave"
        " the column out with the option columns."
    )
    if decides:
        otherwise = (
            "Or leave the column out of the option where, and filter after load(): .where(…)."
        )
    if unsent:
        raise UnknownValue(
            "The source did not send this value, because it did not change",
            **facts,
            remedy=f"Run ALTER TABLE … REPLICA IDENTITY FULL for the table. {otherwise}",
        )
    raise BadValue(
        "The column's type cannot hold this value",
        **facts,
        remedy=f"Declare the column with a wider type at the source. {otherwise}",
    )


def _listed(column: pa.Array | None) -> dict[int, Any]:
    if column is None or column.null_count == len(column):
        return {}
    return {at: markers for at, markers in enumerate(column.to_pylist()) if markers}


# --- an open segment ------------------------------------------------------------------------------

_META: Final = {field.name: field for field in META}


class Segment:
    """An open segment, `raw`, whose columns are read on request."""

    def __init__(
        self,
        raw: Any,
        file: File,
        schema: TableSchema,
        *,
        whole: bool,
    ) -> None:
        self._schema = schema
        try:
            if whole:
                data = _verified(raw, file)
                raw.close()
                raw = pa.BufferReader(data)
            else:
                _same_size(raw, file)
            self._file = pq.ParquetFile(raw, page_checksum_verification=not whole, pre_buffer=False)
        except BaseException:
            raw.close()
            raise
        self._raw = raw

    def __enter__(self) -> Segment:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        self._raw.close()

    def read(
        self, meta: Sequence[str] = (), after: Sequence[str] = (), before: Sequence[str] = ()
    ) -> dict[str, pa.Array]:
        """Return these columns; `after` and `before` have the requested fields."""
        paths = [*meta, *(f"after.{name}" for name in after), *(f"before.{n}" for n in before)]
        if not paths:
            return {}
        rows = self._file.read(columns=paths, use_threads=False)
        found = {}
        for name in rows.column_names:
            column = rows.column(name).combine_chunks()
            found[name] = column.cast(self._shape(name, column.type))
        return found

    def _shape(self, name: str, stored: pa.DataType) -> pa.DataType:
        if name in _META:
            return _META[name].type
        return pa.struct([self._schema.arrow.field(field.name) for field in stored])


def _verified(raw: Any, file: File) -> pa.Buffer:
    """Return all bytes of a segment; `CorruptSegment` if they are not those that were written."""
    _same_size(raw, file)
    data = pa.py_buffer(raw.read())
    if checksum(data) != file.checksum:
        raise CorruptSegment("The segment's checksum is wrong")
    return data


def _same_size(raw: Any, file: File) -> None:
    if raw.size() != file.bytes:
        raise CorruptSegment("The segment's size is wrong", size=raw.size(), was=file.bytes)


# --- slices ---------------------------------------------------------------------------------------

BATCH_ROWS: Final = 65_536
"""Maximum rows of a record batch for Spark."""

_AT_ONCE: Final = 16
"""How many segments are fetched from a bucket in parallel."""

_MERGED: Final = "Run the query again: the segment was merged, and its rows are in another one."
_PRUNED: Final = (
    "Set the option reader: the log then keeps what the query has not read. What was pruned cannot"
    " be read any more."
)
_ALWAYS: Final = ("_op", "_commit", "_ordinal", "_time")


@dataclass(frozen=True, slots=True)
class Slice:
    """A part of one segment."""

    file: File
    schema: TableSchema
    """The schema that the segment was written with."""

    fits: tuple[Fit, ...]
    epoch: int
    part: Span
    """The range of changes; for a baseline's segment, the position of its rows (F)."""

    whole: bool = False
    """Whether all changes of the segment lie in that range."""

    baseline: tuple[int, int] | None = None
    """For a baseline's segment: the range of row numbers, without the last."""

    window: BaselineWindow | None = None
    """The window of the query's baseline: changes that its rows contain are left out (R11)."""


@dataclass(frozen=True)
class Task:
    """What all slices of a query have in common."""

    data: str
    """The log's storage: a path or a location in a bucket."""

    source: str
    frame: FrameColumns
    images: Literal["after", "both"] = "after"
    truncates: bool = False
    """Whether a truncate becomes a row."""


def read_slices(task: Task, slices: Sequence[Slice]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of slices, one slice after the other, in the log's order."""
    if not elsewhere(task.data):
        for each in slices:
            yield from read_slice(task, each)
        return
    # Many small requests that mostly wait. Together they fetch no more than a partition's bytes.
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        fetched = [threads.submit(_opened, _path(task, each)) for each in slices]
        for each, future in zip(slices, fetched, strict=True):
            yield from read_slice(task, each, partial(_taken, future))


def read_slice(
    task: Task, slice: Slice, opened: Callable[[str], Any] | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield a slice's rows with the schema `frame.arrow`, in the log's order."""
    try:
        raw = (opened or _opened)(_path(task, slice))
        with Segment(raw, slice.file, slice.schema, whole=not task.frame.pruned) as file:
            rows = _rows(task, slice, file)
    except (CorruptSegment, pa.ArrowException, OSError) as error:
        raise _failure(task, slice, error) from error
    if rows is not None:
        yield from rows.to_batches(max_chunksize=BATCH_ROWS)


def _path(task: Task, slice: Slice) -> str:
    return segment_path(storage_at(task.data), task.source, slice.file)


def _opened(path: str) -> pa.NativeFile:
    found = readable(path)
    return pa.OSFile(found) if isinstance(found, str) else found


def _taken(future: Future[pa.NativeFile], _: str) -> pa.NativeFile:
    return future.result()


def _rows(task: Task, slice: Slice, file: Segment) -> pa.Table | None:
    if slice.baseline is not None:
        return _of_baseline(task, slice, file)
    frame, about = task.frame, slice.file
    # By the index: a segment without deletes, key changes or preimages needs no old rows.
    pairs = task.images == "both" and about.updates > 0
    looks_before = pairs or about.deletes > 0 or about.key_changes > 0
    keys = slice.schema.key if about.key_changes and task.images == "after" else ()
    asked = set() if frame.where is None else set(columns_of(frame.where))
    first = [fit for fit in slice.fits if fit.column.name in asked]
    rest = [fit for fit in slice.fits if fit.column.name not in asked]
    if frame.where is None:
        first, rest = rest, []
    names = [fit.source for fit in first if fit.source is not None]
    read = file.read(
        [
            *_ALWAYS,
            *(["_xid"] if slice.window is not None else []),
            *(["_unsent"] if about.unsent else []),
            *(["_exact"] if about.marked else []),
        ],
        list(dict.fromkeys([*names, *keys])),
        list(dict.fromkeys([*names, *keys])) if looks_before else (),
    )
    ops = read["_op"].to_numpy()
    moved = moved_keys(read["before"], read["after"], keys) if keys else None
    rows = expanded(ops, moved, task.images, truncates=task.truncates)
    kept = _kept(slice, read)
    if kept is not None:
        rows = rows.only(kept[rows.index])
    if pairs:
        _refuse_lost_images(slice, read, rows, file)
    markers = Markers.of(read.get("_unsent"), read.get("_exact"))
    have = {fit.column.name: _column(fit, rows, read, looks_before) for fit in first}
    ours = _ours(slice, read, rows)
    if frame.where is not None:
        passes = _passing(frame.where, rows, markers, first, have, ours)
        if not passes.any():
            return None
        mask = pa.array(passes)
        rows = rows.only(passes)
        have = {name: values.filter(mask) for name, values in have.items()}
        ours = {name: values.filter(mask) for name, values in ours.items()}
        more = [fit.source for fit in rest if fit.source is not None]
        read |= file.read((), more, more if looks_before else ())
        have |= {fit.column.name: _column(fit, rows, read, looks_before) for fit in rest}
    if not len(rows.index):
        return None
    if markers is not None:
        ours |= _marker_columns(frame, markers, rows, slice.fits, ours)
    return _shaped(frame, have, ours, len(rows.index))


def _of_baseline(task: Task, slice: Slice, file: Segment) -> pa.Table | None:
    frame, about = task.frame, slice.file
    assert slice.baseline is not None
    start, stop = slice.baseline
    names = [fit.source for fit in slice.fits if fit.source is not None]
    meta = [*(["_unsent"] if about.unsent else []), *(["_exact"] if about.marked else [])]
    read = file.read(["_op", *meta], names)
    count = min(stop, about.rows) - start
    read = {name: values.slice(start, count) for name, values in read.items()}
    index = np.arange(count, dtype=np.int64)
    rows = ExpandedRows(index, np.zeros(count, np.bool_), np.zeros(count, np.int8))
    at = slice.part.first
    ours = {
        "_change_type": rows.types,
        "_commit_version": pa.repeat(pa.scalar(at.commit, pa.int64()), count),
        # The source does not say when rows of a baseline were written.
        "_commit_timestamp": pa.nulls(count, pa.timestamp("us", "UTC")),
        "_position": pa.repeat(pa.scalar(str(at)), count),
    }
    have = {fit.column.name: _column(fit, rows, read, False) for fit in slice.fits}
    markers = Markers.of(read.get("_unsent"), read.get("_exact"))
    if frame.where is not None:
        asked = set(columns_of(frame.where))
        first = [fit for fit in slice.fits if fit.column.name in asked]
        passes = _passing(frame.where, rows, markers, first, have, ours)
        mask = pa.array(passes)
        rows = rows.only(passes)
        have = {name: values.filter(mask) for name, values in have.items()}
        ours = {name: values.filter(mask) for name, values in ours.items()}
    if not len(rows.index):
        return None
    if markers is not None:
        ours |= _marker_columns(frame, markers, rows, slice.fits, ours)
    return _shaped(frame, have, ours, len(rows.index))


def _passing(
    where: Predicate,
    rows: ExpandedRows,
    markers: Markers | None,
    asked: Sequence[Fit],
    have: dict[str, pa.Array],
    ours: dict[str, pa.Array],
) -> npt.NDArray[np.bool_]:
    """Return which rows pass; `asked` are the columns of `where`, whose values must be known."""
    if markers is not None:
        # With `marks=true` too: a row that is left out could not show its markers.
        refuse_marked(markers, rows, asked, ours, decides=True)
    passes = passing(where, lambda name: have[name] if name in have else ours[name])
    # A truncate has no values that could pass, and concerns all rows.
    return np.asarray(passes | (rows.codes == TYPES.index("truncate")), np.bool_)


def _marker_columns(
    frame: FrameColumns,
    markers: Markers,
    rows: ExpandedRows,
    fits: Sequence[Fit],
    ours: dict[str, pa.Array],
) -> dict[str, pa.Array]:
    """Return the columns with the markers, if the query wants them; else raise at the first."""
    shown = [fit for fit in fits if fit.column in frame.shown]
    if frame.markers:
        return markers.columns(rows, shown)
    refuse_marked(markers, rows, shown, ours)
    return {}


def _kept(slice: Slice, read: dict[str, pa.Array]) -> Any:
    """Return which changes lie in the slice and not in the query's baseline; None for all."""
    if slice.whole and slice.window is None:
        return None
    names = ["_commit", "_ordinal", *(["_xid"] if slice.window is not None else [])]
    table = pa.table({name: read[name] for name in names})
    kept = inside(table, slice.epoch, slice.part)
    return kept if slice.window is None else kept & ~slice.window.held(table)


def _column(
    fit: Fit, rows: ExpandedRows, read: dict[str, pa.Array], looks_before: bool
) -> pa.Array:
    if fit.source is None:
        made = filled(fit, len(rows.index))
        # A truncate has no row. All other rows are older than the column.
        there = pa.array(rows.codes != TYPES.index("truncate"))
        return pc.if_else(there, made, pa.scalar(None, made.type))
    after = child(read["after"], fit.source)
    before = child(read["before"], fit.source) if looks_before else None
    found, shape = picked(rows, after, before), fit.column.type.arrow
    # In the frame's type, which may be wider: literals of `where` have that type.
    return found if found.type == shape else found.cast(shape)


def _ours(slice: Slice, read: dict[str, pa.Array], rows: ExpandedRows) -> dict[str, pa.Array]:
    commits, ordinals = (read[name].to_numpy() for name in ("_commit", "_ordinal"))
    commits, ordinals = commits[rows.index], ordinals[rows.index]
    return {
        "_change_type": rows.types,
        "_commit_version": pa.array(commits),
        "_commit_timestamp": taken(read["_time"], rows.index),
        "_position": position_texts(slice.epoch, commits, ordinals),
    }


def _refuse_lost_images(
    slice: Slice, read: dict[str, pa.Array], rows: ExpandedRows, file: Segment
) -> None:
    """Raise if an update has no old row: its preimage would be null in all columns."""
    image = read.get("before")
    if image is None:
        image = file.read((), (), [slice.schema.names[0]])["before"]
    lost = rows.before & ~image.is_valid().to_numpy(zero_copy_only=False)[rows.index]
    lost &= rows.codes == TYPES.index("update_preimage")
    if lost.any():
        at = rows.index[int(np.flatnonzero(lost)[0])]
        position = Position(slice.epoch, read["_commit"][at].as_py(), read["_ordinal"][at].as_py())
        raise UnknownValue(
            "The source did not send the row before this update, which images=both needs",
            table=slice.file.table,
            position=str(position),
            remedy="Use images=after.",
        )


def _shaped(
    frame: FrameColumns, have: dict[str, pa.Array], ours: dict[str, pa.Array], count: int
) -> pa.Table:
    arrays = []
    for field in frame.arrow:
        values = ours.get(field.name) if field.name in frame.ours else have[field.name]
        if values is None:  # marker columns of a segment without markers
            values = pa.nulls(count, field.type)
        arrays.append(values if values.type == field.type else values.cast(field.type))
    return pa.Table.from_arrays(arrays, schema=frame.arrow)


def _failure(task: Task, slice: Slice, error: Exception) -> Exception:
    """Return the error for a segment that could not be read, by what the index says of it now."""
    log = LogReader.open(storage_at(task.data), task.source)
    try:
        log.verify(slice.file)
    except (CorruptSegment, PositionExpired) as found:
        if isinstance(found, PositionExpired):
            merged = slice.baseline is None and slice.part.first > log.floor
            found.remedy = _MERGED if merged else _PRUNED
        facts = {"table": slice.file.table, "position": str(slice.part.first)}
        found.facts = {**found.facts, **facts}
        return found
    return error  # the segment's bytes are right, so the cause is elsewhere
