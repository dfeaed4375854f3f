"""
The projections that turn changes into rows for a target.

A change passes by both its images. `ka` says that there is a row after it and every filter
is true of it, `kb` the same of the row before:

| ka | kb | result |
|---|---|---|
| yes | yes | update (an insert stays one) |
| yes | no | insert: the row comes into the filter |
| no | yes | delete: the row leaves it |
| no | no | nothing, or a delete where the target may hold a row of that key all the same |

The last case is a source whose inserts replace silently (`inserts_replace`), or an update
whose before image the source did not send (R22). A truncate passes as it is.

Expressions given as text are bound to their image and make one projection over the files.
Where that cannot be (a `Column`, a Python function, a frame) the images are brought into
sight one after the other: see `stages`. A derived column is computed only for rows that pass
(`case when`), so that a row outside the filter cannot fail the job.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, TypeAlias

from headrace.changelog.change import Op
from headrace.changelog.schema import Column, TableSchema
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
    """How much of a change a batch needs."""

    BASELINE = "baseline"
    """Rows alone: those that do not pass are left out, and there are no positions."""

    AFTER = "after"
    BOTH = "both"
    MOVES = "moves"
    """Both images, and the old key of a row whose key changed."""

    @property
    def reads_before(self) -> bool:
        """Whether the before image is looked at."""
        return self in (ChangeImages.BOTH, ChangeImages.MOVES)


@dataclass(frozen=True, slots=True)
class Output:
    """A column of the result: one of the source's, or one that was made."""

    column: Column
    type: DataType
    """Its type in Spark."""

    source: str | None = None
    """The source's column it is; None for one that was made."""

    derived: AnalysedExpression | None = None
    """The expression it is made by; None where it is made otherwise."""

    over: tuple[tuple[str, str], ...] | None = None
    """What it is made of: names, and which of the source's columns they are; None if unknown."""

    is_time: bool = False
    """Whether it is the time of the commit."""


@dataclass(frozen=True, slots=True)
class FrameStep:
    """A user's function of a DataFrame, and what was in sight before it."""

    make: FrameFunction
    place: str
    before: tuple[Output, ...]
    names: tuple[str, ...]
    """The columns after it, without ours."""


Condition: TypeAlias = Equals | Prefix | Regex | AnalysedExpression | CallableFunction
"""A filter, as far as Spark has to say something on it."""

Step: TypeAlias = Drop | Rename | Derive | Timestamp | CallableFunction | FrameStep
"""A transform, likewise; a mask is an expression by now."""


@dataclass(frozen=True, slots=True)
class ChangeSql:
    """SQL for the parts of a change, wherever they stand in a frame."""

    op: str
    commit: str
    ordinal: str
    time: str
    before: str
    after: str
    ka: str
    kb: str
    failed: str = "cast(null as string)"
    """What a function raised, as JSON."""

    place: str = ""
    """File and row number of a baseline's row, which has no position."""

    result: str = ""
    """What a function gave, for a moment."""

    change: str = ""
    """All of this together, where a frame's function has passed it on."""

    bad: str = ""
    """Whether an expression raised; only where that is looked for."""

    @classmethod
    def beside(cls, taken: set[str]) -> ChangeSql:
        """Return names that none of the user's columns has."""
        prefix = "_h"
        while any(name.startswith(prefix) for name in taken):
            prefix += "_"
        return cls(*(f"{prefix}{part}" for part in cls.__dataclass_fields__))


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
        """Whether everything the user wrote can be bound to an image as text."""
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
            # R22: of a key alone no filter can be asked; the target may hold the row.
            whole = self.schema.whole_before
            kb = self._passes("before") if whole else "(before is not null)"
        columns = []
        for each in self.outputs:
            if each.source is not None:
                columns.append(f"after.{quoted(each.source)}")
                continue
            made = "_time"
            if each.derived is not None:
                names = {name: f"after.{quoted(source)}" for name, source in each.over or ()}
                made = each.derived.over(names)
            columns.append(f"case when {ka} then {made} end")
        names_ = ChangeSql("_op", "_commit", "_ordinal", "_time", "before", "after", ka, kb)
        return self.result(shape, names_, columns)

    def _passes(self, image: str) -> str:
        """Return SQL that is true where the image is there and every filter is true of it."""
        if not self.filters:
            return f"({image} is not null)"
        names = {name: f"{image}.{quoted(name)}" for name in self.schema.names}
        # A case, because its branches are taken in order: nothing is computed of an absent
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
            placed.append(f"{told_with_place(names)} as _failed")
        return placed

    def op(self, shape: ChangeImages, names: ChangeSql) -> str:
        """Return SQL for what the change amounts to; null for one that does not pass."""
        if shape is ChangeImages.BASELINE:
            return f"cast(case when {names.ka} then 0 end as tinyint)"
        if not self.leaves_out:
            return names.op
        insert, update, delete, truncate = (int(op) for op in Op)
        cases = [f"when {names.op} = {truncate} then {truncate}"]
        if shape.reads_before:
            # R22: an update without a before image may be either; a target takes both alike.
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
            # Without a before image nobody knows whether the target holds the row.
            cases.append(f"when {names.op} = {update} and {names.before} is null then {delete}")
        return f"cast(case {' '.join(cases)} end as tinyint)"

    def absent(self, shape: ChangeImages, names: ChangeSql) -> str:
        """Return SQL that is true where the result speaks of the row before."""
        absent = f"{names.after} is null"
        if shape is ChangeImages.MOVES and self.leaves_out and not self.inserts_replace:
            # A row that leaves the filter as its key changes is gone under its old key.
            absent += f" or (not {names.ka} and {names.kb})"
        return absent

    def keys(self, shape: ChangeImages, names: ChangeSql) -> dict[str, str]:
        """Return SQL for the key's columns, from whichever image the row speaks of."""
        if not shape.reads_before:
            return {}
        absent = self.absent(shape, names)
        return {
            key: f"case when {absent} then {names.before}.{quoted(key)}"
            f" else {names.after}.{quoted(key)} end"
            for key in self.schema.key
        }

    def moved(self, names: ChangeSql) -> str:
        """Return SQL for whether the row was there under another key."""
        keys = [quoted(name) for name in self.schema.key]
        same = [f"{names.after}.{key} <=> {names.before}.{key}" for key in keys] or ["true"]
        # With silent replacing a row of the new key may be there, too, even if this one left.
        stays = "true" if self.inserts_replace else names.ka
        return (
            f"(case when {names.after} is null or {names.before} is null then false"
            f" when not {names.kb} or not {stays} then false"
            f" else not ({' and '.join(same)}) end)"
        )

    def old_key(self, names: ChangeSql) -> Iterator[str]:
        """Yield SQL for the key's columns as they were."""
        yield from (f"{names.before}.{quoted(key)}" for key in self.schema.key)


def told_with_place(names: ChangeSql) -> str:
    """Return SQL for a failure; with the place of a baseline's row, which has no position."""
    if not names.place:
        return names.failed
    # File names are ours, digits and letters, so nothing in them needs escaping.
    return (
        f"concat(left({names.failed}, char_length({names.failed}) - 1),"
        f""" ', "place": "', {names.place}, '"}}')"""
    )
