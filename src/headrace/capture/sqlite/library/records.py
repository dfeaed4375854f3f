"""
The records that a handler receives: batches of records, created on access, and their JSON.

A batch keeps the rows as SQLite returned them. Iterating creates the records; a handler that
only needs JSON gets it from the batch (`json_lines`), without creating any record.

JSON has five fields: table, timestamp, operation, before, after. Images are objects by column.
Numbers have all their digits, so that parsing returns exactly the same number; an infinite one is
`9e999` or `-9e999`, which every JSON parser reads as infinity or refuses, and none as another
number. A blob is upper-case hexadecimal text. Columns that are declared BLOB are left out by
default. Bytes in a text that are not UTF-8 become U+FFFD. Timestamps are RFC 3339 in UTC, with
three digits after the point or none, so they sort as text.

The envelope is another form, with more fields: position, key, commit group, schema, and where the
record comes from. Only in this form does a bootstrap have an end: an operation of its own,
BOOTSTRAP_END, which a consumer of the five fields would not know.

`pack_values` stores values exactly, for keys and images that have to outlive a process.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import starmap
from operator import itemgetter
from typing import Any, Literal, NamedTuple, TypeAlias, overload
from uuid import uuid4

import msgspec

from headrace.capture.sqlite.database import DELETE, INSERT, Row

# --- records and batches --------------------------------------------------------------------------

Operation: TypeAlias = Literal["INSERT", "UPDATE", "DELETE", "BOOTSTRAP"]
Image: TypeAlias = Mapping[str, int | float | str | bytes | None]

OPERATIONS: tuple[Operation, Operation, Operation] = ("INSERT", "UPDATE", "DELETE")
"""By their number in the log."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Record(NamedTuple):
    """A change of a row, or a row of a bootstrap; a tuple, because millions are created."""

    table: str
    timestamp: datetime
    """UTC, in milliseconds: the time of the statement; in a bootstrap, when the row was read."""

    operation: Operation
    before: Image | None
    """The old row, for UPDATE and DELETE; each value as SQLite stores it, blobs as bytes."""

    after: Image | None
    """The new row, for INSERT and UPDATE."""

    position: str | None
    """
    `epoch/seq`: a change has the same position every time it is delivered. Rows of a bootstrap
    have the position after which changes follow; None if nothing is set up, so that none follow.
    """


@dataclass(frozen=True, slots=True)
class TableColumns:
    """The columns of a table at one point in time."""

    table: str
    columns: tuple[str, ...]
    declared: tuple[str, ...]
    key: tuple[int, ...] = ()
    """The indexes of the key's columns, in the order of the key; the rowid if none is declared."""

    @classmethod
    def of(cls, table: str, fingerprint: Sequence[tuple[str, str, int]]) -> TableColumns:
        """Return the columns of a fingerprint: name, declared type and key of each column."""
        names, declared, numbers = zip(*fingerprint, strict=True)
        parts = sorted((number, at) for at, number in enumerate(numbers) if number)
        return cls(table, names, declared, tuple(at for _, at in parts))


@dataclass(frozen=True, slots=True)
class ChangeRows:
    """Rows of the log: seq, ts, tbl, op, and both images, each `width` columns wide."""

    rows: Sequence[Row]
    shapes: Mapping[int, TableColumns]
    width: int
    epoch: str
    group: int = 0
    """The last number of the commit group: its rows were committed before any later group's."""

    def __len__(self) -> int:
        return len(self.rows)

    def images(self, row: Row) -> Iterator[Sequence[object]]:
        """Yield the row before and after the change, as far as the operation has them."""
        count = len(self.shapes[row[2]].columns)  # type: ignore[index]
        if row[3] != INSERT:
            yield row[4 : 4 + count]
        if row[3] != DELETE:
            yield row[4 + self.width : 4 + self.width + count]

    def record(self, at: int) -> Record:
        """Create one record."""
        row = self.rows[at]
        seq, ts, number, op = row[:4]
        shape = self.shapes[number]  # type: ignore[index]
        first = 4 + self.width
        before = None if op == INSERT else dict(zip(shape.columns, row[4:], strict=False))
        after = None if op == DELETE else dict(zip(shape.columns, row[first:], strict=False))
        return Record(
            shape.table,
            moment(ts),  # type: ignore[arg-type]
            OPERATIONS[op],  # type: ignore[call-overload]
            before,  # type: ignore[arg-type]
            after,  # type: ignore[arg-type]
            f"{self.epoch}/{seq}" if self.epoch else None,
        )


@dataclass(frozen=True, slots=True)
class TableRows:
    """Rows of a bootstrap; the first part of a table begins with the record BOOTSTRAP."""

    rows: Sequence[Row]
    shape: TableColumns
    begins: bool
    ts: int
    position: str | None
    plan: int | None = None
    """The number of the set of columns; None if nothing is set up."""

    ends: bool = False
    """Whether these are the last rows of the table."""

    end: str | None = None
    """With `ends`, the position from which the table is exact: that of the log at the last row."""

    def __len__(self) -> int:
        return len(self.rows) + self.begins

    def record(self, at: int) -> Record:
        """Create one record."""
        if self.begins and at == 0:
            return Record(self.shape.table, moment(self.ts), "BOOTSTRAP", None, None, self.position)
        after = dict(zip(self.shape.columns, self.rows[at - self.begins], strict=True))
        return Record(
            self.shape.table,
            moment(self.ts),
            "INSERT",
            None,
            after,  # type: ignore[arg-type]
            self.position,
        )


class CaptureBatch(Sequence[Record]):
    """
    A sequence of records in order, which never changes: a handler may keep it.

    `complete` is whether it ends between two transactions of the application.

    `id` is its name. For changes it is the range of their numbers, `epoch/first-last`: another run
    begins after the last acknowledgement and may group changes in another way, so ranges may
    overlap, and only positions show which changes are already known. For rows of a bootstrap it is
    unique to this copy, and is never used again. It is None if no changes follow.

    `ends` is whether it has the last rows of a table in a bootstrap.
    """

    def __init__(
        self,
        rows: ChangeRows | TableRows,
        *,
        complete: bool = True,
        id: str | None = None,
        source: Mapping[str, str] | None = None,
    ) -> None:
        self.rows = rows
        """The rows themselves, for handlers that need no records."""
        self.complete = complete
        self.id = id
        self.source = source or {}
        """Where the records come from: the database, the log and the reader."""

    @property
    def ends(self) -> bool:
        """Whether these are the last rows of a table in a bootstrap."""
        return isinstance(self.rows, TableRows) and self.rows.ends

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Record]:
        return map(self.rows.record, range(len(self.rows)))

    @overload
    def __getitem__(self, at: int) -> Record: ...

    @overload
    def __getitem__(self, at: slice) -> Sequence[Record]: ...

    def __getitem__(self, at: int | slice) -> Record | Sequence[Record]:
        if isinstance(at, slice):
            return [self.rows.record(each) for each in range(*at.indices(len(self.rows)))]
        if not -len(self.rows) <= at < len(self.rows):
            raise IndexError(at)
        return self.rows.record(at % len(self.rows))

    def json_lines(
        self,
        *,
        blobs: bool = False,
        subsec: bool = True,
        positions: bool = False,
        envelope: bool = False,
    ) -> bytes:
        """Return the records as lines of JSON, in the format of the module's docstring."""
        form = RecordFormat(blobs=blobs, subsec=subsec, positions=positions, envelope=envelope)
        return form.lines(self)


@dataclass(slots=True)
class TableCopy:
    """A bootstrap of one table: what its batches have in common."""

    shape: TableColumns
    position: str | None
    size: int
    plan: int | None = None
    source: Mapping[str, str] = field(default_factory=dict)
    resumes: bool = False
    """Whether an earlier run has delivered BOOTSTRAP and the first rows."""

    finished: bool = False
    """Set by the reader of the rows, once the last one was read."""

    end: str | None = None

    def batches(self, pages: Iterable[Sequence[Row]]) -> Iterator[CaptureBatch]:
        """Yield the rows in batches; BOOTSTRAP is the first record of the first one."""
        # Where batches end depends on their size, on time and on what is written meanwhile: the
        # batch with the same number in another copy has other rows, and needs another id.
        copy = f"{self.position}/{self.shape.table}/{uuid4().hex}"
        for number, (begins, rows, ends) in enumerate(self._parts(pages)):
            made = TableRows(
                *(rows, self.shape, begins, int(time.time() * 1000), self.position, self.plan),
                ends=ends,
                end=self.end if ends else None,
            )
            name = None if self.position is None else f"{copy}/{number}"
            yield CaptureBatch(made, id=name, source=self.source)

    def _parts(self, pages: Iterable[Sequence[Row]]) -> Iterator[tuple[bool, Sequence[Row], bool]]:
        """Divide pages into batches; BOOTSTRAP counts as a record of the first one."""
        begins, ends = not self.resumes, False
        for rows in pages:
            at = 0
            while at < len(rows):
                step = self.size - begins
                ends = self.finished and at + step >= len(rows)
                yield begins, rows[at : at + step], ends
                at += step
                begins = False
        if self.finished and not ends:
            # An empty table, or one whose last page did not look like the last one.
            yield begins, [], True
        elif begins:
            yield True, [], False


Handler: TypeAlias = Callable[[CaptureBatch], object]
"""
Any callable that takes a batch; its result is ignored.

It may raise `RecordsRefused` with the indexes of records that it could not take, after it took all
others.
"""


class Interrupted(Exception):
    """Raised by a handler that gives up because the capture is being closed: not acknowledged."""


def moment(ts: int) -> datetime:
    """Return milliseconds since 1970 as a datetime."""
    return _EPOCH + timedelta(milliseconds=ts)


# --- records as JSON ------------------------------------------------------------------------------

_INFINITE = {math.inf: msgspec.Raw(b"9e999"), -math.inf: msgspec.Raw(b"-9e999")}


class _Line(msgspec.Struct, gc=False):
    table: str
    timestamp: str
    operation: str
    before: object
    after: object
    position: str | msgspec.UnsetType | None
    """Left out if it is unset."""


class _Envelope(msgspec.Struct, gc=False):
    table: str
    timestamp: str
    operation: str
    key: dict[str, object] | None
    before: object
    after: object
    position: str | None
    group: str | None
    group_ends: bool
    bootstrap: bool
    schema: int | None
    source: object


class RecordFormat:
    """How records are written; it caches what it knows about tables, so use one for all batches."""

    def __init__(
        self,
        *,
        blobs: bool = False,
        subsec: bool = True,
        positions: bool = False,
        envelope: bool = False,
    ) -> None:
        self._blobs = blobs
        self._subsec = subsec
        self._positions = positions
        self._envelope = envelope
        self._encoder = msgspec.json.Encoder()
        self._images: dict[TableColumns, _Imaging] = {}

    def lines(self, batch: CaptureBatch) -> bytes:
        """Return one line for each record."""
        return self._encoded(batch, self._encoder.encode_lines)

    def changes(self, batch: CaptureBatch) -> bytes:
        """Return one object with the list of records as `changes`."""
        return self._encoded(batch, lambda made: self._encoder.encode({"changes": made}))

    def stamp(self, ts: int) -> str:
        """Return milliseconds since 1970 as text."""
        second, rest = divmod(ts, 1000)
        return f"{_second(second)}.{rest:03d}Z" if self._subsec else f"{_second(second)}Z"

    def _encoded(self, batch: CaptureBatch, encode: Callable[[list[Any]], bytes]) -> bytes:
        try:
            return encode(self._made(batch, every=False))
        except UnicodeEncodeError:
            # A text that is not UTF-8: rare, so all values are checked only now.
            return encode(self._made(batch, every=True))

    def _made(self, batch: CaptureBatch, *, every: bool) -> list[Any]:
        rows = batch.rows
        if isinstance(rows, ChangeRows):
            lines = self._of_changes(rows, every=every)
            return self._in_envelopes(batch, rows, lines) if self._envelope else lines
        lines = self._of_table(rows, every=every)
        return self._copy_in_envelopes(batch, rows, lines) if self._envelope else lines

    def _in_envelopes(
        self, batch: CaptureBatch, changes: ChangeRows, lines: list[_Line]
    ) -> list[_Envelope]:
        source = msgspec.Raw(self._encoder.encode(batch.source))
        group = f"{changes.epoch}/{changes.group}"
        last = len(lines) - 1
        made = []
        for at, (row, line) in enumerate(zip(changes.rows, lines, strict=True)):
            shape = changes.shapes[row[2]]  # type: ignore[index]
            *_, image = changes.images(row)
            made.append(
                _Envelope(
                    *(line.table, line.timestamp, line.operation, _key(shape, image)),
                    *(line.before, line.after, f"{changes.epoch}/{row[0]}"),
                    *(group, batch.complete and at == last, False, row[2], source),  # type: ignore[arg-type]
                )
            )
        return made

    def _copy_in_envelopes(
        self, batch: CaptureBatch, rows: TableRows, lines: list[_Line]
    ) -> list[_Envelope]:
        source = msgspec.Raw(self._encoder.encode(batch.source))

        def made(line: _Line, key: dict[str, object] | None, position: str | None) -> _Envelope:
            return _Envelope(
                *(line.table, line.timestamp, line.operation, key, None, line.after, position),
                *(None, False, True, rows.plan, source),
            )

        begin = [made(line, None, rows.position) for line in lines[: rows.begins]]
        copied = [
            made(line, _key(rows.shape, row), rows.position)
            for line, row in zip(lines[rows.begins :], rows.rows, strict=True)
        ]
        if not rows.ends:
            return begin + copied
        end = _Line(*(rows.shape.table, self.stamp(rows.ts), "BOOTSTRAP_END", None, None, None))
        return [*begin, *copied, made(end, None, rows.end)]

    def _of_table(self, rows: TableRows, *, every: bool) -> list[_Line]:
        make, kept, pick = self._image(rows.shape)
        images = _plain_rows(rows.rows, kept, every=every)
        images = images if pick is None else list(map(pick, images))
        table, stamp = rows.shape.table, self.stamp(rows.ts)
        at = rows.position if self._positions else msgspec.UNSET
        made = [_Line(table, stamp, "INSERT", None, image, at) for image in starmap(make, images)]
        return [_Line(table, stamp, "BOOTSTRAP", None, None, at), *made] if rows.begins else made

    def _of_changes(self, rows: ChangeRows, *, every: bool) -> list[_Line]:
        shapes = {}
        wanted = set()
        for number, shape in rows.shapes.items():
            make, kept, pick = self._image(shape)
            shapes[number] = (shape.table, len(shape.columns), make, pick)
            wanted |= {side + at for side in (4, 4 + rows.width) for at in kept}
        first = 4 + rows.width
        stamp, placed = self.stamp, self._positions
        last_ts, last_stamp = None, ""
        made = []
        for row in _plain_rows(rows.rows, sorted(wanted), every=every):
            seq, ts, plan, op = row[:4]
            table, count, make, pick = shapes[plan]  # type: ignore[index]
            before: Any = None
            after: Any = None
            if op != INSERT:
                image = row[4 : 4 + count]
                before = make(*image) if pick is None else make(*pick(image))
            if op != DELETE:
                image = row[first : first + count]
                after = make(*image) if pick is None else make(*pick(image))
            if ts != last_ts:
                last_ts, last_stamp = ts, stamp(ts)  # type: ignore[arg-type]
            operation = OPERATIONS[op]  # type: ignore[call-overload]
            at = f"{rows.epoch}/{seq}" if placed else msgspec.UNSET
            made.append(_Line(table, last_stamp, operation, before, after, at))
        return made

    def _image(self, shape: TableColumns) -> _Imaging:
        """Return what builds an image from values, their indexes, and what selects them."""
        if (known := self._images.get(shape)) is not None:
            return known
        kept = [
            at
            for at, declared in enumerate(shape.declared)
            if self._blobs or "BLOB" not in declared.upper()
        ]
        # A column may have any name; a field of a struct may not.
        fields = {f"c{at}": shape.columns[at] for at in kept}
        made = (
            _imaging(fields),
            kept,
            None if len(kept) == len(shape.columns) else _picking(kept),
        )
        self._images[shape] = made
        return made


def _key(shape: TableColumns, image: Sequence[object]) -> dict[str, object] | None:
    """Return the key's columns with their values; None if the columns have no key."""
    return {shape.columns[at]: _plain(image[at]) for at in shape.key} or None


_Pick = Callable[[Sequence[object]], tuple[object, ...]]
_Imaging = tuple[Callable[..., object], Sequence[int], _Pick | None]


def _imaging(fields: dict[str, str]) -> Callable[..., object]:
    try:
        return msgspec.defstruct("Image", list(fields), rename=fields, gc=False)
    except ValueError:
        # A name with a quote or other special characters: these are written as a dict, slower.
        names = tuple(fields.values())
        return lambda *values: dict(zip(names, values, strict=True))


def _picking(kept: Sequence[int]) -> _Pick:
    if len(kept) < 2:
        return lambda row: tuple(row[at] for at in kept)
    return itemgetter(*kept)


def _plain_rows(rows: Sequence[Row], wanted: Sequence[int], *, every: bool) -> Sequence[Row]:
    """Return the rows, with blobs, infinities and bad text replaced by what JSON should have."""
    columns: list[Sequence[object]] = list(zip(*rows, strict=True))
    if not columns:
        return rows
    odd = wanted if every else [at for at in wanted if _odd(columns[at])]
    if not odd:
        return rows
    for at in odd:
        columns[at] = list(map(_plain, columns[at]))
    return list(zip(*columns, strict=True))


def _odd(column: Sequence[object]) -> bool:
    kinds = set(map(type, column))
    if bytes in kinds:
        return True
    if float not in kinds:
        return False
    # One infinite number makes the sum infinite or NaN. A sum of large numbers may be infinite,
    # too, which only costs time.
    numbers = column if len(kinds) == 1 else [v for v in column if v.__class__ is float]
    total = sum(numbers)  # type: ignore[arg-type]
    return not math.isfinite(total)


def _plain(value: object) -> object:
    if value.__class__ is bytes:
        return value.hex().upper()
    if value.__class__ is float:
        return _INFINITE.get(value, value)
    if value.__class__ is str:
        return value.encode(errors="surrogateescape").decode(errors="replace")
    return value


@lru_cache(maxsize=4096)
def _second(second: int) -> str:
    return datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%S")


# --- values as text -------------------------------------------------------------------------------


def pack_values(values: Sequence[object]) -> str:
    """Return values of SQLite as text, each bit of them."""
    return json.dumps([_packed(value) for value in values], separators=(",", ":"))


def unpack_values(text: str) -> list[object]:
    """Read back what `pack_values` wrote."""
    return [_unpacked(value) for value in json.loads(text)]


def _packed(value: object) -> object:
    if isinstance(value, float):
        return {"f": value.hex()}
    if isinstance(value, bytes):
        return {"b": value.hex()}
    return value  # JSON escapes lone surrogates, and has every digit of a number


def _unpacked(value: Any) -> object:
    match value:
        case {"f": text}:
            return float.fromhex(text)
        case {"b": text}:
            return bytes.fromhex(text)
    return value
