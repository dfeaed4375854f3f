"""
What may happen to a row between its source and its target: filters and transforms.

An expression is SQL text or a `pyspark.sql.Column`. A column without a fixed type (SQLite's
DECIMAL, BOOLEAN, DATETIME and the like) is a struct in Spark: `price.i` is its whole number,
`price.d` its real, `price.t` its text, `price.b` its bytes, each null unless the value is of
that kind; so a number of either kind is `coalesce(price.d, price.i)`. `equals` compares with
the value itself, `prefix` and `regex` with its text.

SQL is fastest, a function of Arrow batches fast, a function of rows simple and slow. All of
them must give the same result each time, because a batch may be run again.
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
    """The field has exactly this value; `None` asks for a null field."""

    field: str
    value: object


@dataclass(frozen=True, slots=True)
class Prefix:
    """The field is text that begins with this one, upper and lower case apart."""

    field: str
    text: str


@dataclass(frozen=True, slots=True)
class Regex:
    """The field is text in which this pattern, in Java's notation, is found anywhere."""

    field: str
    pattern: str


@dataclass(frozen=True, slots=True)
class Where:
    """The condition is true: neither false nor null."""

    condition: Expression


@dataclass(frozen=True, slots=True)
class Drop:
    """These columns are left out."""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Rename:
    """Columns get other names, all at once: two can be exchanged."""

    names: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Derive:
    """
    Columns computed from the row, added at the end or in place of one of the same name.

    The expressions of one `derive` all see the columns as they were before it.
    """

    columns: tuple[tuple[str, Expression], ...]


@dataclass(frozen=True, slots=True)
class Timestamp:
    """A column with the time at which the change was committed; null for a baseline's rows."""

    name: str
    of: str


@dataclass(frozen=True, slots=True)
class Mask:
    """Each character of these texts but the last few is replaced; null stays null."""

    fields: tuple[str, ...]
    keep: int
    with_: str


@dataclass(frozen=True, slots=True)
class Frame:
    """A whole DataFrame of the batch becomes another one, with a row for each of its rows."""

    make: FrameFunction


@dataclass(frozen=True, slots=True)
class Function:
    """A Python function over rows or Arrow batches: a filter, or with columns a transform."""

    call: Callable[..., Any] | str
    """The function, or where it is imported from on the executors: `package.module:name`."""

    columns: tuple[tuple[str, str], ...] | None
    """The columns it gives and their types in SQL; None for a filter."""

    reads: tuple[str, ...] | None
    """The columns it is shown; None for all."""

    batch: bool
    time_limit: float

    @property
    def name(self) -> str:
        """What messages call it."""
        if isinstance(self.call, str):
            return self.call
        return str(getattr(self.call, "__name__", type(self.call).__name__))


Filter: TypeAlias = Equals | Prefix | Regex | Where | Function
Transform: TypeAlias = Drop | Rename | Derive | Timestamp | Mask | Frame | Function


def equals(field: str, value: object) -> Filter:
    """Keep rows whose `field` has exactly this value; `None` keeps those without one."""
    return Equals(field, value)


def prefix(field: str, text: str) -> Filter:
    """Keep rows whose `field` begins with this text, upper and lower case apart."""
    return Prefix(field, text)


def regex(field: str, pattern: str) -> Filter:
    """Keep rows in whose `field` this pattern is found anywhere; the notation is Java's."""
    return Regex(field, pattern)


def where(condition: Expression) -> Filter:
    """Keep rows for which the condition is true; false and null both leave a row out."""
    return Where(condition)


def drop(*names: str) -> Transform:
    """Leave these columns out."""
    return Drop(names)


def rename(**names: str) -> Transform:
    """Give columns other names: `rename(cust="customer_id")`."""
    return Rename(tuple(names.items()))


def derive(**columns: Expression) -> Transform:
    """Compute columns from the row: `derive(total="qty * price")`."""
    return Derive(tuple(columns.items()))


def timestamp(name: str, of: str = "commit") -> Transform:
    """Add a column with the time of the change's commit; never the clock's (R23g)."""
    return Timestamp(name, of)


def mask(*fields: str, keep: int = 0, with_: str = "*") -> Transform:
    """Replace each character of these texts by `with_`, all but the last `keep` of them."""
    return Mask(fields, keep, with_)


def frame(make: FrameFunction) -> Transform:
    """
    Let a function make another DataFrame of the batch.

    For example `frame(lambda df: df.join(dim, "id", "left"))`. It is given the columns at that
    point, then `_op` (insert, update or delete), `_commit`, `_ordinal`, `_time` and `_change`,
    which is ours; a delete has the columns it had before. It keeps one row a change, the key,
    and every column that begins with an underscore. It is called anew for each batch, and what
    it gives may not depend on how changes are cut into batches. Temporary views of your
    session are not seen; frames and tables are.
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

    *Rows*: `call(row: dict)` returns true or false as a filter; as a transform a dict of
    which the declared columns are taken, or None to leave the row out. A row for which it
    raises, or gives another type, is a dead letter. *Batches* (`batch=True`):
    `call(pyarrow.RecordBatch)` returns a BooleanArray, or a RecordBatch with the declared
    columns, as long as what it was given. `columns` is `{"total": "double"}`, in SQL's types;
    `reads` names what it is shown. By the text "package.module:name" it is imported on the
    executors; given itself it is sent there. `time_limit` is in seconds for one Arrow batch.
    It must give the same result each time (R23g).
    """
    return Function(
        call,
        None if columns is None else tuple(columns.items()),
        None if reads is None else tuple(reads),
        batch,
        time_limit,
    )
