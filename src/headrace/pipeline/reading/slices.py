"""
Reading a slice: the rows of a frame that one segment holds.

This runs on the executors, which open the log's files themselves. A segment that is read as a
whole is read at once. Of one that is read in part, by `columns` or `where`, only what is wanted
is; and of one in which no row passes, nothing but the columns that decide that.
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

from headrace.changelog.entry import File
from headrace.changelog.log import LogReader, segment_path
from headrace.changelog.position import Position
from headrace.changelog.ranges import Span, inside
from headrace.changelog.schema import TableSchema
from headrace.changelog.window import Window
from headrace.errors import CorruptSegment, PositionExpired, UnknownValue
from headrace.pipeline.reading.columns import Fit, Frame, filled
from headrace.pipeline.reading.marked import Marks, refuse_marked
from headrace.pipeline.reading.matching import passing
from headrace.pipeline.reading.opened import Segment
from headrace.pipeline.reading.predicates import Predicate, columns_of
from headrace.pipeline.reading.rows import (
    TYPES,
    Expanded,
    child,
    expanded,
    moved_keys,
    picked,
    places,
    taken,
)
from headrace.pipeline.workspace import readable
from headrace.storage.opening import opened as storage_at
from headrace.storage.places import elsewhere

BATCH_ROWS: Final = 65_536
"""Of a record batch that Spark is given."""

_AT_ONCE: Final = 16
"""Segments that are fetched at a time from a bucket."""

_MERGED: Final = "Run it again: its rows are in another segment, which took its place."
_PRUNED: Final = "Read under a name, and what is read is kept: the option reader."
_ALWAYS: Final = ("_op", "_commit", "_ordinal", "_time")


@dataclass(frozen=True, slots=True)
class Slice:
    """A part of one segment."""

    file: File
    schema: TableSchema
    """The one it was written with."""

    fits: tuple[Fit, ...]
    epoch: int
    part: Span
    """Which changes of it; of a baseline's segment, where its rows stand (F)."""

    whole: bool = False
    """Whether all of them lie in that part."""

    baseline: tuple[int, int] | None = None
    """Of a baseline's segment, the numbers of its first row and of the one behind its last."""

    window: Window | None = None
    """Of a baseline that was given before: changes that its rows hold are left out (R11)."""


@dataclass(frozen=True)
class Task:
    """What is the same for all slices of a query."""

    data: str
    """The log's storage: a path, or a bucket's."""

    source: str
    frame: Frame
    images: Literal["after", "both"] = "after"
    truncates: bool = False
    """Whether a truncate is a row."""


def read_slices(task: Task, slices: Sequence[Slice]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of some slices, one after the other, in the log's order."""
    if not elsewhere(task.data):
        for each in slices:
            yield from read_slice(task, each)
        return
    # Many small requests, each of which mostly waits; together they are a partition's bytes.
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        fetched = [threads.submit(_opened, _path(task, each)) for each in slices]
        for each, future in zip(slices, fetched, strict=True):
            yield from read_slice(task, each, partial(_taken, future))


def read_slice(
    task: Task, slice: Slice, opened: Callable[[str], Any] | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield a slice's rows in the shape of `frame.arrow`, in the log's order."""
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
    # What the index says of it: where it has no deletes, nothing from before is looked at.
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
    marks = Marks.of(read.get("_unsent"), read.get("_exact"))
    have = {fit.column.name: _column(fit, rows, read, looks_before) for fit in first}
    ours = _ours(slice, read, rows)
    if frame.where is not None:
        passes = _passing(frame.where, rows, marks, first, have, ours)
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
    if marks is not None:
        ours |= _told(frame, marks, rows, slice.fits, ours)
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
    rows = Expanded(index, np.zeros(count, np.bool_), np.zeros(count, np.int8))
    at = slice.part.first
    ours = {
        "_change_type": rows.types,
        "_commit_version": pa.repeat(pa.scalar(at.commit, pa.int64()), count),
        # Nobody knows when a row was last written that was there before.
        "_commit_timestamp": pa.nulls(count, pa.timestamp("us", "UTC")),
        "_position": pa.repeat(pa.scalar(str(at)), count),
    }
    have = {fit.column.name: _column(fit, rows, read, False) for fit in slice.fits}
    marks = Marks.of(read.get("_unsent"), read.get("_exact"))
    if frame.where is not None:
        asked = set(columns_of(frame.where))
        first = [fit for fit in slice.fits if fit.column.name in asked]
        passes = _passing(frame.where, rows, marks, first, have, ours)
        mask = pa.array(passes)
        rows = rows.only(passes)
        have = {name: values.filter(mask) for name, values in have.items()}
        ours = {name: values.filter(mask) for name, values in ours.items()}
    if not len(rows.index):
        return None
    if marks is not None:
        ours |= _told(frame, marks, rows, slice.fits, ours)
    return _shaped(frame, have, ours, len(rows.index))


def _passing(
    where: Predicate,
    rows: Expanded,
    marks: Marks | None,
    asked: Sequence[Fit],
    have: dict[str, pa.Array],
    ours: dict[str, pa.Array],
) -> npt.NDArray[np.bool_]:
    """Return which rows are wanted; `asked` are the columns of `where`, which must be known."""
    if marks is not None:
        # Whether they are told of beside the rows or not: nobody is told of a row that is left out.
        refuse_marked(marks, rows, asked, ours, decides=True)
    passes = passing(where, lambda name: have[name] if name in have else ours[name])
    # A truncate has no row that could pass, and is of all rows.
    return np.asarray(passes | (rows.codes == TYPES.index("truncate")), np.bool_)


def _told(
    frame: Frame, marks: Marks, rows: Expanded, fits: Sequence[Fit], ours: dict[str, pa.Array]
) -> dict[str, pa.Array]:
    """Return the columns that tell of marks, if they were asked for; else raise at the first."""
    shown = [fit for fit in fits if fit.column in frame.shown]
    if frame.marks:
        return marks.columns(rows, shown)
    refuse_marked(marks, rows, shown, ours)
    return {}


def _kept(slice: Slice, read: dict[str, pa.Array]) -> Any:
    """Return which changes lie in the part, and not in a baseline that was given; None: all."""
    if slice.whole and slice.window is None:
        return None
    names = ["_commit", "_ordinal", *(["_xid"] if slice.window is not None else [])]
    table = pa.table({name: read[name] for name in names})
    kept = inside(table, slice.epoch, slice.part)
    return kept if slice.window is None else kept & ~slice.window.held(table)


def _column(fit: Fit, rows: Expanded, read: dict[str, pa.Array], looks_before: bool) -> pa.Array:
    if fit.source is None:
        made = filled(fit, len(rows.index))
        # A truncate has no row; whatever else there is was in the table before the column.
        there = pa.array(rows.codes != TYPES.index("truncate"))
        return pc.if_else(there, made, pa.scalar(None, made.type))
    after = child(read["after"], fit.source)
    before = child(read["before"], fit.source) if looks_before else None
    found, shape = picked(rows, after, before), fit.column.type.arrow
    # In the frame's type, which may be wider: literals are in that.
    return found if found.type == shape else found.cast(shape)


def _ours(slice: Slice, read: dict[str, pa.Array], rows: Expanded) -> dict[str, pa.Array]:
    commits, ordinals = (read[name].to_numpy() for name in ("_commit", "_ordinal"))
    commits, ordinals = commits[rows.index], ordinals[rows.index]
    return {
        "_change_type": rows.types,
        "_commit_version": pa.array(commits),
        "_commit_timestamp": taken(read["_time"], rows.index),
        "_position": places(slice.epoch, commits, ordinals),
    }


def _refuse_lost_images(
    slice: Slice, read: dict[str, pa.Array], rows: Expanded, file: Segment
) -> None:
    """Raise where an update has no row from before it: its preimage would be all null."""
    image = read.get("before")
    if image is None:
        image = file.read((), (), [slice.schema.names[0]])["before"]
    lost = rows.before & ~image.is_valid().to_numpy(zero_copy_only=False)[rows.index]
    lost &= rows.codes == TYPES.index("update_preimage")
    if lost.any():
        at = rows.index[int(np.flatnonzero(lost)[0])]
        position = Position(slice.epoch, read["_commit"][at].as_py(), read["_ordinal"][at].as_py())
        raise UnknownValue(
            "An update without the row as it was before",
            table=slice.file.table,
            position=str(position),
            remedy="Use images=after.",
        )


def _shaped(
    frame: Frame, have: dict[str, pa.Array], ours: dict[str, pa.Array], count: int
) -> pa.Table:
    arrays = []
    for field in frame.arrow:
        values = ours.get(field.name) if field.name in frame.ours else have[field.name]
        if values is None:  # marks, of a segment that has none
            values = pa.nulls(count, field.type)
        arrays.append(values if values.type == field.type else values.cast(field.type))
    return pa.Table.from_arrays(arrays, schema=frame.arrow)


def _failure(task: Task, slice: Slice, error: Exception) -> Exception:
    """Return what became of a segment, by what the index says of it now."""
    log = LogReader.open(storage_at(task.data), task.source)
    try:
        log.verify(slice.file)
    except (CorruptSegment, PositionExpired) as found:
        if isinstance(found, PositionExpired):
            merged = slice.baseline is None and slice.part.first > log.floor
            found.remedy = _MERGED if merged else _PRUNED
        place = {"table": slice.file.table, "position": str(slice.part.first)}
        found.facts = {**found.facts, **place}
        return found
    return error  # its bytes are right: it is not the segment's fault
