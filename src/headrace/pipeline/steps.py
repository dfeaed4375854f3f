"""
Filters and transforms: the steps of a row between its source and its target.

An expression is SQL text or a `pyspark.sql.Column`. A column without a fixed type (SQLite's
DECIMAL, BOOLEAN, DATETIME and the like) is a struct in Spark: `price.i` is its whole number,
`price.d` its real, `price.t` its text, `price.b` its bytes, each null unless the value is of
that kind; so a number of either kind is `coalesce(price.d, price.i)`. `equals` compares with
the value itself, `prefix` and `regex` with its text.

SQL is fastest, a function of Arrow batches is fast, a function of rows is simple and slow. All of
them must be deterministic, because a batch may be computed again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


Expression: TypeAlias = "str | Column"
"""Spark SQL over the columns at that point, as text or as a column."""

FrameFunction: TypeAlias = "Callable[[DataFrame], DataFrame]"


@dataclass(frozen=True, slots=True)
class Equals:
    """The field has exactly this value; `None` means null."""

    field: str
    value: object


@dataclass(frozen=True, slots=True)
class Prefix:
    """The field is text that begins with this text; case matters."""

    field: str
    text: str


@dataclass(frozen=True, slots=True)
class Regex:
    """The field is text that contains a match of this pattern, in Java's syntax."""

    field: str
    pattern: str


@dataclass(frozen=True, slots=True)
class Where:
    """The condition is true: neither false nor null."""

    condition: Expression


@dataclass(frozen=True, slots=True)
class Drop:
    """Drops these columns."""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Rename:
    """Renames columns, all at once: two can be swapped."""

    names: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Derive:
    """
    Computes columns from the row; they are added at the end, or replace one of the same name.

    All expressions of one `derive` see the columns as they were before it.
    """

    columns: tuple[tuple[str, Expression], ...]


@dataclass(frozen=True, slots=True)
class Timestamp:
    """Adds a time of the change that the log has; for a copied row, that of the copy."""

    name: str
    of: str
    """`commit` or `capture`."""


@dataclass(frozen=True, slots=True)
class Mask:
    """Replaces the characters of these texts, except the last few; null stays null."""

    fields: tuple[str, ...]
    keep: int
    with_: str


@dataclass(frozen=True, slots=True)
class Frame:
    """Converts the DataFrame of a batch to another one, with one row for each row."""

    make: FrameFunction


@dataclass(frozen=True, slots=True)
class Function:
    """A Python function over rows or Arrow batches: a filter, or with columns a transform."""

    call: Callable[..., Any] | str
    """The function, or its path for an import on the executors: `package.module:name`."""

    columns: tuple[tuple[str, str], ...] | None
    """The columns that it returns, with their SQL types; None for a filter."""

    reads: tuple[str, ...] | None
    """The columns that it gets; None for all."""

    batch: bool
    time_limit: float

    @property
    def name(self) -> str:
        """Its name in messages."""
        if isinstance(self.call, str):
            return self.call
        return str(getattr(self.call, "__name__", type(self.call).__name__))


Filter: TypeAlias = Equals | Prefix | Regex | Where | Function
Transform: TypeAlias = Drop | Rename | Derive | Timestamp | Mask | Frame | Function


def equals(field: str, value: object) -> Filter:
    """Keep rows whose `field` has exactly this value; `None` means null."""
    return Equals(field, value)


def prefix(field: str, text: str) -> Filter:
    """Keep rows whose `field` begins with this text; case matters."""
    return Prefix(field, text)


def regex(field: str, pattern: str) -> Filter:
    """Keep rows whose `field` contains a match of this pattern, in Java's syntax."""
    return Regex(field, pattern)


def where(condition: Expression) -> Filter:
    """Keep rows for which the condition is true, not false or null."""
    return Where(condition)


def drop(*names: str) -> Transform:
    """Drop these columns."""
    return Drop(names)


def rename(**names: str) -> Transform:
    """Rename columns: `rename(cust="customer_id")`."""
    return Rename(tuple(names.items()))


def derive(**columns: Expression) -> Transform:
    """Compute columns from the row: `derive(total="qty * price")`."""
    return Derive(tuple(columns.items()))


def timestamp(name: str, of: str = "commit") -> Transform:
    """
    Add a column with a time of the change that the log has, never the current time (R23g).

    `of="commit"` is the time of the commit, `of="capture"` the time at which the change was
    written to the log. Both are the same when a batch is computed again. Rows of a baseline were
    committed at an unknown time: they have the time at which their copy began.
    """
    return Timestamp(name, of)


def mask(*fields: str, keep: int = 0, with_: str = "*") -> Transform:
    """Replace all characters of these texts by `with_`, except the last `keep`."""
    return Mask(fields, keep, with_)


def frame(make: FrameFunction) -> Transform:
    """
    Apply a function to the DataFrame of the batch.

    For example `frame(lambda df: df.join(dim, "id", "left"))`. The function gets the columns at
    that point, then `_op` (insert, update or delete), `_commit`, `_ordinal`, `_time` and
    `_change`, which Headrace uses; a delete has the row's values before it. The function must
    return one row for each change, and keep the key and every column that begins with an
    underscore. It is called for each batch, and its result must not depend on how changes are
    split into batches. Temporary views of your session are not visible; frames and tables are.
    """
    return Frame(make)


def function(
    call: Callable[..., Any] | str,
    *,
    columns: Mapping[str, str] | None = None,
    reads: Sequence[str] | None = None,
    batch: bool = False,
    time_limit: float = 60.0,
) -> Function:
    """
    Run a Python function: as a filter, or with `columns` as a transform.

    *Rows*: as a filter, `call(row: dict)` returns true or false; as a transform, a dict with
    the declared columns, or None to leave the row out. A row for which it raises, or returns
    another type, becomes a dead letter. *Batches* (`batch=True`): `call(pyarrow.RecordBatch)`
    returns a BooleanArray, or a RecordBatch with the declared columns, of the same length.
    `columns` are the names and SQL types, `{"total": "double"}`; `reads` are the columns that
    it gets. If `call` is the text "package.module:name", it is imported on the executors; if it
    is a function, it is sent there. `time_limit` is in seconds for one Arrow batch. The
    function must be deterministic (R23g).
    """
    return Function(
        call,
        None if columns is None else tuple(columns.items()),
        None if reads is None else tuple(reads),
        batch,
        time_limit,
    )
