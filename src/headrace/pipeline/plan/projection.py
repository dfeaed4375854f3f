"""
The projections that turn changes into rows for a target.

Both images decide whether a change passes. `ka` is true if there is a row after the change and all
filters are true for it; `kb` is the same for the row before:

| ka | kb | result |
|---|---|---|
| yes | yes | update (an insert stays one) |
| yes | no | insert: the row now passes the filters |
| no | yes | delete: the row no longer passes |
| no | no | nothing, or a delete if the target may still have a row with that key |

The last case happens with a source whose inserts replace silently (`inserts_replace`), or with an
update whose image before was not sent (R22). A truncate always passes.

Expressions that are text are bound to their image and become one projection over the files. If that
is not possible (a `Column`, a Python function, a frame), the images are brought into scope one
after the other: see `stages`. A derived column is computed only for rows that pass (`case when`),
so that a row that does not pass cannot fail the job.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, TypeAlias

from headrace.changelog.change import Op
from headrace.changelog.schema import CAPTURED, Column, TableSchema
from headrace.pipeline.plan.expressions import AnalysedExpression
from headrace.pipeline.plan.functions import CallableFunction
from headrace.pipeline.sql import condition, quoted
from headrace.pipeline.steps import (
    Derive,
    Drop,
    Equals,
    FrameFunction,
    Prefix,
    Regex,
    Rename,
    Timestamp,
)

if TYPE_CHECKING:
    from pyspark.sql import Column as SparkColumn
    from pyspark.sql.types import DataType


Projection: TypeAlias = "Sequence[str | SparkColumn]"


class ChangeImages(Enum):
    """How much of its changes a batch needs."""

    BASELINE = "baseline"
    """Only rows, without positions; those that do not pass are left out."""

    AFTER = "after"
    BOTH = "both"
    MOVES = "moves"
    """Both images, and the old key of a row whose key changed."""

    @property
    def reads_before(self) -> bool:
        """Whether the image before is read."""
        return self in (ChangeImages.BOTH, ChangeImages.MOVES)


@dataclass(frozen=True, slots=True)
class Output:
    """A column of the result: a column of the source, or a computed one."""

    column: Column
    type: DataType
    """Its type in Spark."""

    source: str | None = None
    """The source's column; None for a computed one."""

    derived: AnalysedExpression | None = None
    """The expression that computes it; None if something else does."""

    over: tuple[tuple[str, str], ...] | None = None
    """The names that it reads, with the source's columns; None if unknown."""

    time_of: str | None = None
    """Which time of the change it is, as in `Timestamp`; None for any other column."""


@dataclass(frozen=True, slots=True)
class FrameStep:
    """A user's function of a DataFrame, and the columns in scope before it."""

    make: FrameFunction
    label: str
    before: tuple[Output, ...]
    names: tuple[str, ...]
    """The columns after it, without ours."""


Condition: TypeAlias = Equals | Prefix | Regex | AnalysedExpression | CallableFunction
"""A filter, analysed by Spark if necessary."""

Step: TypeAlias = Drop | Rename | Derive | Timestamp | CallableFunction | FrameStep
"""A transform, analysed by Spark if necessary; a mask is an expression by now."""


@dataclass(frozen=True, slots=True)
class ChangeSql:
    """SQL for the parts of a change in a frame."""

    op: str
    commit: str
    ordinal: str
    time: str
    before: str
    after: str
    ka: str
    kb: str
    failed: str = "cast(null as string)"
    """The exception of a function, as JSON."""

    location: str = ""
    """File and row number of a baseline's row, which has no position."""

    result: str = ""
    """The result of a function, in one projection."""

    captured: str = ""
    """The time of capture, if a column needs it."""

    change: str = ""
    """All of these together, after a frame's function has passed them on."""

    bad: str = ""
    """Whether an expression raised; only in a search for failing rows."""

    @classmethod
    def avoiding(cls, taken: set[str]) -> ChangeSql:
        """Return names that differ from all of the user's columns."""
        prefix = "_h"
        while any(name.startswith(prefix) for name in taken):
            prefix += "_"
        return cls(*(f"{prefix}{part}" for part in cls.__dataclass_fields__))


CAPTURE_TIME = f"coalesce({CAPTURED.name}, _time)"
"""
When a change was captured.

A copied row has the time of its copy; a segment of an earlier version only that of the commit.
"""


@dataclass(frozen=True, slots=True)
class Scan:
    """A pipeline over one version of its table, as projections."""

    schema: TableSchema
    filters: tuple[Condition, ...]
    steps: tuple[Step, ...]
    outputs: tuple[Output, ...]
    inserts_replace: bool

    @property
    def as_text(self) -> bool:
        """Whether all expressions of the user can be bound to an image as text."""
        if self.calls or self.framed is not None:
            return False
        conditions = (each for each in self.filters if isinstance(each, AnalysedExpression))
        return all(each.bindings is not None for each in conditions) and all(
            each.over is not None for each in self.outputs if each.derived is not None
        )

    @property
    def calls(self) -> tuple[CallableFunction, ...]:
        """The functions, in order."""
        return tuple(
            each for each in (*self.filters, *self.steps) if isinstance(each, CallableFunction)
        )

    @property
    def framed(self) -> FrameStep | None:
        """The function of a DataFrame, if there is one."""
        return next((each for each in self.steps if isinstance(each, FrameStep)), None)

    @property
    def captured(self) -> bool:
        """Whether a column is the time of capture."""
        return any(isinstance(each, Timestamp) and each.of == "capture" for each in self.steps)

    @property
    def followed(self) -> tuple[Step, ...]:
        """The transforms that decide whether a row passes, and those before them."""
        last = max(
            (
                at
                for at, each in enumerate(self.steps, 1)
                if isinstance(each, CallableFunction) and each.leaves_out
            ),
            default=0,
        )
        return self.steps[:last]

    @property
    def leaves_out(self) -> bool:
        """Whether some rows may not pass."""
        return bool(self.filters or self.followed)

    # --- text: one projection ---------------------------------------------------------------

    def bound(self, shape: ChangeImages) -> Projection:
        """Return the one projection over segments; the result's columns are `0`, `1`, …"""
        ka = self._passes("after")
        kb = "false"
        if shape.reads_before:
            # R22: a filter cannot be evaluated for a key alone; the target may have the row.
            whole = self.schema.whole_before
            kb = self._passes("before") if whole else "(before is not null)"
        columns = []
        for each in self.outputs:
            if each.source is not None:
                columns.append(f"after.{quoted(each.source)}")
                continue
            made = CAPTURE_TIME if each.time_of == "capture" else "_time"
            if each.derived is not None:
                names = {name: f"after.{quoted(source)}" for name, source in each.over or ()}
                made = each.derived.over(names)
            columns.append(f"case when {ka} then {made} end")
        names_ = ChangeSql("_op", "_commit", "_ordinal", "_time", "before", "after", ka, kb)
        return self.result(shape, names_, columns)

    def _passes(self, image: str) -> str:
        """Return SQL that is true if the image exists and all filters are true for it."""
        if not self.filters:
            return f"({image} is not null)"
        names = {name: f"{image}.{quoted(name)}" for name in self.schema.names}
        # A case, because its branches are evaluated in order: nothing is computed for a missing
        # image, and a filter can rely on those before it. Null is not true (two-valued).
        branches = []
        for each in self.filters:
            if isinstance(each, Equals | Prefix | Regex):
                holds = condition(each, names[each.field], self.schema.column(each.field).type)
            else:
                assert isinstance(each, AnalysedExpression)
                holds = f"coalesce({each.over(names)}, false)"
            branches.append(f"when not {holds} then false")
        return f"(case when {image} is null then false {' '.join(branches)} else true end)"

    # --- the result -------------------------------------------------------------------------

    def result(self, shape: ChangeImages, names: ChangeSql, columns: Sequence[str]) -> list[str]:
        """Return the last projection: op, position, the row's columns, the old key."""
        keys = self.keys(shape, names)
        row = (
            keys[each.source] if each.source in keys and each.source else sql
            for each, sql in zip(self.outputs, columns, strict=True)
        )
        if shape is ChangeImages.BASELINE:
            chosen = [self.op(shape, names), *row]
        else:
            chosen = [self.op(shape, names), names.commit, names.ordinal, names.time, *row]
        if shape is ChangeImages.MOVES:
            chosen += [self.moved(names), *self.old_key(names)]
        placed = [f"{sql} as `{at}`" for at, sql in enumerate(chosen)]
        if self.calls:
            placed.append(f"{failure_with_location(names)} as _failed")
        return placed

    def op(self, shape: ChangeImages, names: ChangeSql) -> str:
        """Return SQL for the resulting op; null for a change that does not pass."""
        if shape is ChangeImages.BASELINE:
            return f"cast(case when {names.ka} then 0 end as tinyint)"
        if not self.leaves_out:
            return names.op
        insert, update, delete, truncate = (int(op) for op in Op)
        cases = [f"when {names.op} = {truncate} then {truncate}"]
        if shape.reads_before:
            # R22: an update without an image before may be either; targets treat both alike.
            comes = f"{names.op} = {insert} or (not {names.kb} and {names.before} is not null)"
            cases += [
                f"when {names.ka} then case when {comes} then {insert} else {update} end",
                f"when {names.kb} then {delete}",
            ]
        else:
            cases.append(f"when {names.ka} then {insert}")
        if self.inserts_replace:
            cases.append(f"when {names.after} is not null then {delete}")
        elif shape.reads_before:
            # Without an image before, it is not known whether the target has the row.
            cases.append(f"when {names.op} = {update} and {names.before} is null then {delete}")
        return f"cast(case {' '.join(cases)} end as tinyint)"

    def absent(self, shape: ChangeImages, names: ChangeSql) -> str:
        """Return SQL that is true if the result is about the row before."""
        absent = f"{names.after} is null"
        if shape is ChangeImages.MOVES and self.leaves_out and not self.inserts_replace:
            # A row that no longer passes when its key changes is deleted under its old key.
            absent += f" or (not {names.ka} and {names.kb})"
        return absent

    def keys(self, shape: ChangeImages, names: ChangeSql) -> dict[str, str]:
        """Return SQL for the key's columns, from the image that the result is about."""
        if not shape.reads_before:
            return {}
        absent = self.absent(shape, names)
        return {
            key: f"case when {absent} then {names.before}.{quoted(key)}"
            f" else {names.after}.{quoted(key)} end"
            for key in self.schema.key
        }

    def moved(self, names: ChangeSql) -> str:
        """Return SQL for whether the row existed under another key."""
        keys = [quoted(name) for name in self.schema.key]
        same = [f"{names.after}.{key} <=> {names.before}.{key}" for key in keys] or ["true"]
        # With silent replacement the target may have a row with the new key, even if this one left.
        stays = "true" if self.inserts_replace else names.ka
        return (
            f"(case when {names.after} is null or {names.before} is null then false"
            f" when not {names.kb} or not {stays} then false"
            f" else not ({' and '.join(same)}) end)"
        )

    def old_key(self, names: ChangeSql) -> Iterator[str]:
        """Yield SQL for the old values of the key's columns."""
        yield from (f"{names.before}.{quoted(key)}" for key in self.schema.key)


def failure_with_location(names: ChangeSql) -> str:
    """Return SQL for a failure; for a row of a baseline, with its file and row number."""
    if not names.location:
        return names.failed
    # File names are ours, digits and ASCII characters, so nothing needs escaping.
    return (
        f"concat(left({names.failed}, char_length({names.failed}) - 1),"
        f""" ', "place": "', {names.location}, '"}}')"""
    )
