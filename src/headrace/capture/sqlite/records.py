"""
What a handler is given: batches of records, made as they are asked for.

A batch keeps the rows as SQLite handed them out. Records are made by iterating; a handler that
only wants JSON takes it from the batch (`json_lines`), and no record is ever made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Literal, NamedTuple, Protocol, TypeAlias, overload

from headrace.capture.sqlite.fetching import Row
from headrace.capture.sqlite.names import DELETE, INSERT

Operation: TypeAlias = Literal["INSERT", "UPDATE", "DELETE", "BOOTSTRAP"]
Image: TypeAlias = Mapping[str, int | float | str | bytes | None]

OPERATIONS: tuple[Operation, Operation, Operation] = ("INSERT", "UPDATE", "DELETE")
"""By the number that the log has for them."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Record(NamedTuple):
    """A change of a row, or a row that was there; a tuple, because millions of them are made."""

    table: str
    timestamp: datetime
    """UTC, to the millisecond: of the statement; of a row that was there, when it was read."""

    operation: Operation
    before: Image | None
    """The row as it was, of UPDATE and DELETE; each value as SQLite holds it, blobs as bytes."""

    after: Image | None
    """The row as it is, of INSERT and UPDATE."""

    position: str | None
    """
    `epoch/seq`: the same change has the same one however often it comes. Rows of a bootstrap
    have the place from which on changes follow; None where none do: nothing is set up.
    """


@dataclass(frozen=True, slots=True)
class Shape:
    """The columns of a table at one time."""

    table: str
    columns: tuple[str, ...]
    declared: tuple[str, ...]


class Rows(Protocol):
    """Rows of one kind, from which records are made."""

    def __len__(self) -> int: ...

    def record(self, at: int) -> Record: ...


@dataclass(frozen=True, slots=True)
class ChangeRows:
    """Rows of the log: seq, ts, tbl, op, and both images, each `width` columns wide."""

    rows: Sequence[Row]
    shapes: Mapping[int, Shape]
    width: int
    epoch: str

    def __len__(self) -> int:
        return len(self.rows)

    def record(self, at: int) -> Record:
        """Make one record."""
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
            f"{self.epoch}/{seq}",
        )


@dataclass(frozen=True, slots=True)
class TableRows:
    """Rows of a table as they were met, after the record that says so if it is the beginning."""

    rows: Sequence[Row]
    shape: Shape
    begins: bool
    ts: int
    position: str | None

    def __len__(self) -> int:
        return len(self.rows) + self.begins

    def record(self, at: int) -> Record:
        """Make one record."""
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


class Batch(Sequence[Record]):
    """
    Records in their order, whole and never changed: a handler may keep it.

    `complete` says whether it ends between two transactions of the application.

    `id` names it. Of changes it is the range of their numbers, `epoch/first-last`: another run
    begins where the last one was acknowledged and cuts as it likes, so ranges may overlap, and
    only positions tell what is known already. Of rows that were there it belongs to this one
    copy, and never comes again. None where no changes follow.
    """

    def __init__(
        self, rows: ChangeRows | TableRows, *, complete: bool = True, id: str | None = None
    ) -> None:
        self.rows = rows
        """The rows themselves, for who can do without records."""
        self.complete = complete
        self.id = id

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
        self, *, blobs: bool = False, subsec: bool = True, positions: bool = False
    ) -> bytes:
        """Return the records as JSON, a line each; see `rendering` for the form."""
        # Here and not above: who wants no JSON needs no msgspec.
        from headrace.capture.sqlite.rendering import Form

        return Form(blobs=blobs, subsec=subsec, positions=positions).lines(self)


Handler: TypeAlias = Callable[[Batch], object]
"""Whatever can be called with a batch; what it returns does not matter."""


class Interrupted(Exception):
    """What a handler raises that gives up because the capture is being closed: not taken."""


def moment(ts: int) -> datetime:
    """Return milliseconds since 1970 as a time."""
    return _EPOCH + timedelta(milliseconds=ts)
