"""
What a truncate does to a table that keeps what was.

Such a table is given all changes of a batch, and each truncate as a row in its place. Of a
history a truncate ends what is there then: rows that the batch itself began get a delete of
their key, at the truncate's position; all others end where the table was emptied first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import numpy as np
import pyarrow as pa

from headrace.changelog.change import Op
from headrace.changelog.position import Position
from headrace.changelog.schema import TableSchema
from headrace.pipeline.lake.net import net
from headrace.pipeline.lake.rows import emptied_time
from headrace.pipeline.parking import beyond
from headrace.pipeline.result import Place


@dataclass(frozen=True, order=True, slots=True)
class Emptying:
    """One truncate."""

    place: Place
    micros: int
    """When, in microseconds since 1970."""

    def told(self, epoch: int) -> tuple[int, str]:
        """Return it as `merge_history` takes it."""
        return self.micros, str(Position(epoch, *self.place))


def emptyings(rows: pa.Table, emptied: Position | None, now: datetime) -> tuple[Emptying, ...]:
    """Return the truncates among the rows; where there are none, the one that was `emptied`."""
    found = rows.take(pa.array(_truncates(rows)))
    if found.num_rows or emptied is None:
        commits, ordinals = found.column(1).to_pylist(), found.column(2).to_pylist()
        micros = found.column(3).cast(pa.int64()).to_pylist()
        places = zip(commits, ordinals, strict=True)
        return tuple(Emptying(place, at) for place, at in zip(places, micros, strict=True))
    time = emptied_time(rows, emptied) or now
    return (Emptying((emptied.commit, emptied.ordinal), round(time.timestamp() * 1_000_000)),)


def ended(
    rows: pa.Table, schema: TableSchema, key: Sequence[str], emptied: Sequence[Emptying]
) -> pa.Table:
    """Return the changes without truncates; each is a delete of the keys that it finds instead."""
    rows = rows.filter(pa.array(rows.column(0).to_numpy() != Op.TRUNCATE))
    pieces = []
    for each in emptied:
        after = beyond(rows, each.place)
        before = rows.slice(0, rows.num_rows - after.num_rows)
        left = net(before, schema, key)
        pieces += [before, _deleted(left.rows.filter(pa.array(~left.gone)), each)]
        rows = after
    return pa.concat_tables([*pieces, rows])


def since_emptied(rows: pa.Table) -> pa.Table:
    """Return the changes behind the last truncate among them."""
    found = _truncates(rows)
    return rows.slice(int(found[-1]) + 1) if len(found) else rows


def _truncates(rows: pa.Table) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.flatnonzero(rows.column(0).to_numpy() == Op.TRUNCATE)


def _deleted(rows: pa.Table, emptied: Emptying) -> pa.Table:
    values = (int(Op.DELETE), *emptied.place, emptied.micros)
    types = [field.type for field in rows.schema][: len(values)]
    told = [
        pa.array(np.full(rows.num_rows, each, np.int64)).cast(type)
        for each, type in zip(values, types, strict=True)
    ]
    return pa.Table.from_arrays([*told, *rows.columns[len(told) :]], schema=rows.schema)
