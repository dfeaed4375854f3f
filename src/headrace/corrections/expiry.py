"""
Rows that expire: which of them have, as of the expiry watermark of their pipeline.

A row is visible if its time is unknown or after the **watermark**, and not otherwise. The watermark
is a time that only moves forward. It is stored before it has any effect, and only a scan moves it,
between two batches. So what a target shows is decided by the rows of the source and by one number,
and never by the clock while a batch is computed: a batch that comes again has the same result, and
a table that is rebuilt, reloaded or replayed begins with the number it ended with.

An insert or an update whose row has expired is a delete; a baseline's row that has is left out. A
scan moves the watermark to the clock, finds the rows of the target that have expired since, and
deletes them: a run of deletes that stands between two commits, like every correction.

Times are microseconds since 1970. A column of text has times as in RFC 3339; without an offset,
they are UTC. Any other text never expires, nor does the first moment of the year 1, which programs
in Go write for no time.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.changelog.change import Op
from headrace.changelog.position import CHANGES_END, Position
from headrace.changelog.schema import BATCH_META, TableSchema

AGAIN_SECONDS = 1.0
"""When a scan is tried again that could not be done: between two attempts of a batch, say."""

_NEVER: Final = -62_135_596_800_000_000
"""The first moment of the year 1."""

_DAY: Final = 86_400_000_000
_MOST_DAYS: Final = 100_000_000
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_WHOLE: Final = (
    r"^(\d{3}[1-9]|\d\d[1-9]0|\d[1-9]00|[1-9]000)-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d{1,6})?"
    r"(Z|[+-]\d\d:\d\d)$"
)
"""Not in the year 0, which `_parse` does not know: what a text means must not depend on others."""

_TIME: Final = re.compile(r"\d{4}-\d\d-\d\d([Tt ]\d\d:\d\d(:\d\d(\.\d+)?)?([Zz]|[+-]\d\d:?\d\d)?)?")


@dataclass(frozen=True, slots=True)
class ExpiryWatermark:
    """Rows whose time in the column `field` is not after `upto` have expired."""

    field: str
    upto: int
    """Microseconds since 1970."""

    def columns(self, table: TableSchema) -> list[str]:
        """Return the columns of the target that a scan reads."""
        return list(dict.fromkeys([*table.key, self.field]))

    def expired(self, rows: pa.Table) -> pa.Table:
        """Return those of a target's rows that have expired."""
        return rows.filter(pa.array(self._mask(rows, 0)))

    def unexpired(self, rows: pa.Table) -> pa.Table:
        """Return rows of a baseline without those that have expired."""
        gone = self._mask(rows, 0)
        return rows.filter(pa.array(~gone)) if gone.any() else rows

    def applied(self, rows: pa.Table, output: TableSchema) -> pa.Table:
        """Return a batch's rows, with a delete for each row that has expired."""
        ops = rows.column(0).to_numpy()
        gone = ((ops == Op.INSERT) | (ops == Op.UPDATE)) & self._mask(rows, BATCH_META)
        if not gone.any():
            return rows
        mask = pa.array(gone)
        columns = list(rows.columns)
        columns[0] = pc.if_else(mask, pa.scalar(int(Op.DELETE), columns[0].type), columns[0])
        for index, column in enumerate(output.columns, BATCH_META):
            if column.name not in output.key:
                nothing = pa.scalar(None, columns[index].type)
                columns[index] = pc.if_else(mask, nothing, columns[index])
        return pa.Table.from_arrays(columns, schema=rows.schema)

    def _mask(self, rows: pa.Table, first: int) -> npt.NDArray[np.bool_]:
        """Return which rows have expired; their columns begin at `first`, after any of ours."""
        column = rows.column(rows.column_names.index(self.field, first))
        times = _times(column).fill_null(np.iinfo(np.int64).max).to_numpy()
        gone: npt.NDArray[np.bool_] = (times <= self.upto) & (times != _NEVER)
        return gone


class Expiry:
    """
    The expiry watermark of one pipeline, and when to scan. For the run's thread; `mark` for all.

    `store` makes a watermark durable, and raises if it may not be; `clock` is monotonic, and `wall`
    has the seconds since 1970.
    """

    def __init__(
        self,
        field: str,
        every: float,
        store: Callable[[int], None],
        clock: Callable[[], float],
        wall: Callable[[], float],
    ) -> None:
        self.mark = ExpiryWatermark(field, 0)
        """What the target shows is as of this watermark."""

        self._every = every
        self._store = store
        self._clock = clock
        self._wall = wall
        self._stored = 0
        """The watermark that is stored; a scan that has failed is repeated with at least that."""

        self._due_at = clock()

    def recall(self, upto: int) -> None:
        """Continue at the stored watermark of earlier runs."""
        self._stored = max(self._stored, upto)
        self.mark = replace(self.mark, upto=max(self.mark.upto, upto))

    @property
    def due_in(self) -> float:
        """Seconds until the next scan; 0 if it is time for one."""
        return max(0.0, self._due_at - self._clock())

    @property
    def ahead(self) -> float:
        """By how many seconds the watermark is ahead of the clock; 0 if it is not."""
        return max(0.0, self.mark.upto / 1_000_000 - self._wall())

    def put_off(self) -> None:
        """Try again soon: a scan cannot be done now."""
        self._due_at = self._clock() + min(AGAIN_SECONDS, self._every)

    def begin(self) -> ExpiryWatermark | None:
        """Store the watermark of a scan that begins now, and return it; None if it is none."""
        upto = max(int(self._wall() * 1_000_000), self._stored)
        if upto <= self.mark.upto:
            # The clock was set back: what has expired stays so.
            self._due_at = self._clock() + self._every
            return None
        # Before the first row is deleted: none of them may come back.
        self._store(upto)
        self._stored = upto
        return replace(self.mark, upto=upto)

    def done(self, mark: ExpiryWatermark) -> None:
        """Note that the target has no row that has expired by this watermark."""
        self.mark = mark
        self._due_at = self._clock() + self._every


def after(position: Position) -> Position:
    """Return where the deletes of a scan stand: right after what a table has reached."""
    return Position(position.epoch, position.commit, max(position.ordinal, CHANGES_END) + 1)


def deletes(found: pa.Table, at: Position, time: int, shape: pa.Schema) -> pa.Table:
    """Return the deletes of rows by their keys, at one position and time, shaped as a batch is."""
    count = found.num_rows
    meta = (int(Op.DELETE), at.commit, at.ordinal, time)
    keys = dict(zip(found.column_names, found.columns, strict=True))
    columns = [
        pa.repeat(pa.scalar(value, pa.int64()), count).cast(each.type)
        for value, each in zip(meta, shape, strict=False)
    ]
    columns += [
        keys[each.name] if each.name in keys else pa.nulls(count, each.type)
        for each in list(shape)[BATCH_META:]
    ]
    return pa.Table.from_arrays(columns, schema=shape)


def _times(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    """Return times as microseconds since 1970; null for what is none."""
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if isinstance(array, pa.ChunkedArray):  # it may have no chunk, or too many bytes for one
        array = pa.concat_arrays(array.chunks) if array.num_chunks else pa.nulls(0, array.type)
    if pa.types.is_timestamp(array.type):
        return array.cast(pa.timestamp("us", array.type.tz)).cast(pa.int64())
    if pa.types.is_date(array.type):
        days = array.cast(pa.date32()).cast(pa.int32()).cast(pa.int64())
        # A database has dates whose microseconds need more than 64 bits: infinity, for one.
        days = pc.max_element_wise(
            pc.min_element_wise(days, _MOST_DAYS, skip_nulls=False), -_MOST_DAYS, skip_nulls=False
        )
        return pc.multiply(days, _DAY)
    return _parsed(array.cast(pa.string()))


def _parsed(texts: pa.Array) -> pa.Array:
    """Return the times in a column of text, most of them at once."""
    whole = pc.match_substring_regex(texts, _WHOLE)
    if pc.all(whole.fill_null(True)).as_py():
        try:
            return texts.cast(pa.timestamp("us", "UTC")).cast(pa.int64())
        except pa.ArrowInvalid:
            pass  # one of them is on 30 February
    coded = texts.dictionary_encode()
    known = pa.array([_parse(text) for text in coded.dictionary.to_pylist()], pa.int64())
    return known.take(coded.indices)


def _parse(text: str | None) -> int | None:
    if text is None or _TIME.fullmatch(text) is None:
        return None
    try:
        time = datetime.fromisoformat(text.upper())
    except ValueError:
        return None
    span = (time if time.tzinfo is not None else time.replace(tzinfo=UTC)) - _EPOCH
    return (span.days * 86_400 + span.seconds) * 1_000_000 + span.microseconds
