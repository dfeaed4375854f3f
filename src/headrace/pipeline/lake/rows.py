"""
The rows of a commit, as Arrow makes them of a batch.

Columns are named by place (see `statements`), so that nothing depends on the user's names.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.changelog.change import Op
from headrace.changelog.position import MAX_ORDINAL, Position
from headrace.pipeline.lake.net import Net, Versions
from headrace.pipeline.lake.shape import Shape, plain
from headrace.pipeline.lake.statements import ADDED, GONE, key, value
from headrace.pipeline.reading.rows import places
from headrace.pipeline.result import POSITIONS, Place
from headrace.targets.target import Batch

_WORDS = {
    Op.INSERT: "insert",
    Op.UPDATE: "update_postimage",
    Op.DELETE: "delete",
    Op.TRUNCATE: "truncate",
}
_WIDTH = len(POSITIONS)
Columns = list[pa.Array | pa.ChunkedArray]


def source_names(shape: Shape) -> list[tuple[str, pa.DataType]]:
    """Return the columns of the rows that a commit of this shape takes."""
    columns = [(value(at), type) for at, (_, type) in enumerate(shape.columns)]
    if shape.mode == "merge":
        columns.append((GONE, pa.bool_()))
    if shape.mode == "history":
        types = dict(shape.columns)
        columns += [(key(at), types[name]) for at, name in enumerate(shape.key)]
        columns.append((ADDED, pa.bool_()))
    return columns


def own_columns(rows: pa.Table, shape: Shape, start: int = _WIDTH) -> Columns:
    """Return the row's columns of a result, or with `start=0` of a baseline."""
    count = len(shape.schema.columns)
    return [_plain(rows.column(at)) for at in range(start, start + count)]


def net_rows(net: Net, shape: Shape) -> pa.Table:
    """Return what `merge_rows` takes."""
    return _table([*own_columns(net.rows, shape), pa.array(net.gone)], last=[GONE])


def upserts(net: Net, shape: Shape) -> pa.Table:
    """Return the rows that are there after a batch that emptied the table first."""
    return _table(own_columns(net.rows.filter(pa.array(~net.gone)), shape))


def change_rows(rows: pa.Table, shape: Shape, epoch: int) -> pa.Table:
    """Return every change as a row; a truncate is one, too, where it is among them."""
    ops = rows.column(0).to_numpy()
    words = np.array([_WORDS[Op(op)] for op in range(len(Op))], object)
    own = own_columns(rows, shape)
    if (truncates := ops == Op.TRUNCATE).any():
        # A step may give a value to any row.
        gone = pa.array(truncates)
        own = [pc.if_else(gone, pa.scalar(None, each.type), each) for each in own]
    return _table(
        [
            *own,
            pa.array(words[ops], pa.utf8()),
            rows.column(1),
            rows.column(3),
            positions(rows, epoch),
        ]
    )


def told_rows(
    rows: pa.Table, shape: Shape, epoch: int, emptied: Position | None, now: datetime
) -> pa.Table:
    """Return every change as a row, and that the table was emptied, if no row says so."""
    told = change_rows(rows, shape, epoch)
    if emptied is None or bool((rows.column(0).to_numpy() == Op.TRUNCATE).any()):
        return told
    first = emptied_row(shape, emptied, emptied_time(rows, emptied) or now)
    return pa.concat_tables([first, told])


def emptied_row(shape: Shape, at: Position, time: datetime) -> pa.Table:
    """Return a row that says that all rows before it are gone."""
    nulls = [pa.nulls(1, type) for _, type in shape.columns[: len(shape.schema.columns)]]
    told = [["truncate"], [at.commit], [time], [str(at)]]
    ours = shape.columns[len(nulls) :]
    return _table(
        [*nulls, *(pa.array(each, type) for each, (_, type) in zip(told, ours, strict=True))]
    )


def history_rows(found: Versions, shape: Shape, epoch: int, *, emptied: Place | None) -> pa.Table:
    """
    Return what `merge_history` takes: rows that end others, by their key, and new ones.

    `emptied` is where the table was emptied first: all that did not end before ends there.
    """
    rows, last = found.rows, found.next
    times, where = rows.column(3).combine_chunks(), positions(rows, epoch)
    following = pa.array(np.where(last < 0, 0, last), mask=last < 0)
    ends = [times.take(following), where.take(following)]
    own = own_columns(rows, shape)
    keys = [own[shape.schema.names.index(name)] for name in shape.key]
    new = pa.array(~found.gone)
    added = [*own, times, ends[0], where, ends[1], *(_nulls(each) for each in keys)]
    begun = _history(added, len(keys)).filter(new)
    opens = found.opens
    if emptied is not None:
        opens = opens & _before(rows, emptied)
    nothing = [_nulls(each) for each in own]
    ending = [*nothing, _nulls(times), times, _nulls(where), where, *keys]
    return pa.concat_tables(
        [_history(ending, len(keys), added=False).filter(pa.array(opens)), begun]
    )


def positions(rows: pa.Table, epoch: int) -> pa.Array:
    """Return the text of each row's position, as `str(Position(…))` gives it."""
    return places(epoch, rows.column(1).to_numpy(), rows.column(2).to_numpy())


def emptied_time(rows: pa.Table, at: Position) -> datetime | None:
    """Return when a table was emptied, if a change of the same commit tells; None: it does not."""
    of_commit: npt.NDArray[np.bool_] = rows.column(1).to_numpy() == at.commit
    if not of_commit.any():
        return None
    time: datetime = rows.column(3)[int(np.flatnonzero(of_commit)[0])].as_py()
    return time


def first_of(batch: Batch, rows: pa.Table, emptied: Position | None) -> Position | None:
    """Return where the first thing is that a batch tells of a table; None: it tells nothing."""
    if not rows.num_rows:
        return emptied
    first = Position(batch.epoch, rows.column(1)[0].as_py(), rows.column(2)[0].as_py())
    return first if emptied is None else min(first, emptied)


def begins(first: Position | None, at: Position) -> tuple[Position, Position]:
    """
    Return where a baseline is told among changes: that all before is gone, and then its rows.

    Before the commit of the first change that follows it, or, where none does, behind that of
    `at`: two positions that no change has, so that sorting by them alone gives the right order.
    """
    commit = at.commit if first is None else max(first.commit - 1, 0)
    epoch = at.epoch if first is None else first.epoch
    return Position(epoch, commit, MAX_ORDINAL - 1), Position(epoch, commit, MAX_ORDINAL)


def _before(rows: pa.Table, place: Place) -> npt.NDArray[np.bool_]:
    commits, ordinals = rows.column(1).to_numpy(), rows.column(2).to_numpy()
    found: npt.NDArray[np.bool_] = (commits < place[0]) | (
        (commits == place[0]) & (ordinals < place[1])
    )
    return found


def _history(columns: Sequence[pa.Array], keys: int, *, added: bool = True) -> pa.Table:
    rows = len(columns[0])
    flag = pa.array(np.full(rows, added))
    return _table([*columns, flag], last=[*(key(at) for at in range(keys)), ADDED])


def _table(columns: Sequence[pa.Array | pa.ChunkedArray], last: Sequence[str] = ()) -> pa.Table:
    names = [*(value(at) for at in range(len(columns) - len(last))), *last]
    return pa.table(list(columns), names=names)


def _plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    type = plain(column.type)
    return column if type == column.type else pc.cast(column, type)


def _nulls(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    return pa.nulls(len(column), column.type)
