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

Expressions given as text are bound to their image and make one projection over the files;
with a `Column` among them the images are brought into sight one after the other. A derived
column is computed only for rows that pass (`case when`), so that a row outside the filter
cannot fail the job.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, TypeAlias

from pyspark.sql import functions as F

from headrace.changelog.change import Op
from headrace.changelog.schema import Column, TableSchema
from headrace.pipeline.definition import Derive, Drop, Equals, Pipeline, Rename
from headrace.pipeline.expressions import Analysed, as_column
from headrace.pipeline.literals import equality, quoted

if TYPE_CHECKING:
    from pyspark.sql import Column as SparkColumn

Projection: TypeAlias = "Sequence[str | SparkColumn]"


class Shape(Enum):
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
        return self in (Shape.BOTH, Shape.MOVES)


@dataclass(frozen=True, slots=True)
class Output:
    """A column of the result: one of the source's, or a derived one."""

    column: Column
    source: str | None
    """The source's column it is; None for a derived one."""

    derived: Analysed | None = None
    over: tuple[tuple[str, str], ...] | None = None
    """The source's columns under the names the expression uses; None if some are derived."""


@dataclass(frozen=True, slots=True)
class Names:
    """SQL for the parts of a change, wherever they stand in a frame."""

    op: str
    commit: str
    ordinal: str
    time: str
    before: str
    after: str
    ka: str
    kb: str

    @classmethod
    def beside(cls, taken: set[str]) -> Names:
        """Return names that none of the user's columns has."""
        prefix = "_h"
        while any(name.startswith(prefix) for name in taken):
            prefix += "_"
        parts = ("op", "commit", "ordinal", "time", "before", "after", "ka", "kb")
        return cls(*(f"{prefix}{part}" for part in parts))


@dataclass(frozen=True, slots=True)
class Scan:
    """A pipeline over one version of its table, as projections."""

    pipeline: Pipeline
    schema: TableSchema
    filters: tuple[Equals | Analysed, ...]
    outputs: tuple[Output, ...]
    inserts_replace: bool

    @property
    def as_text(self) -> bool:
        """Whether everything the user wrote can be bound to an image as text."""
        conditions = (each for each in self.filters if isinstance(each, Analysed))
        return all(each.bindings is not None for each in conditions) and all(
            each.over is not None for each in self.outputs if each.derived is not None
        )

    def projections(self, shape: Shape) -> Iterator[Projection]:
        """Yield the projections over segments, in order; the result's columns are `0`, `1`, …"""
        if self.as_text:
            yield self._bound(shape)
        else:
            yield from self._staged(shape)

    # --- text: one projection ---------------------------------------------------------------

    def _bound(self, shape: Shape) -> Projection:
        ka = self._passes("after")
        kb = self._passes("before") if shape.reads_before else "false"
        columns = []
        for each in self.outputs:
            if each.derived is None or each.over is None:
                assert each.source is not None
                columns.append(f"after.{quoted(each.source)}")
            else:
                names = {name: f"after.{quoted(source)}" for name, source in each.over}
                columns.append(f"case when {ka} then {each.derived.over(names)} end")
        names_ = Names("_op", "_commit", "_ordinal", "_time", "before", "after", ka, kb)
        return self._result(shape, names_, columns)

    def _passes(self, image: str) -> str:
        """Return SQL that is true where the image is there and every filter is true of it."""
        if not self.filters:
            return f"({image} is not null)"
        names = {name: f"{image}.{quoted(name)}" for name in self.schema.names}
        # A case, because its branches are taken in order: nothing is computed of an absent
        # image, and a filter can rely on those before it. Null is not true (two-valued).
        branches = []
        for each in self.filters:
            if isinstance(each, Equals):
                type_ = self.schema.column(each.field).type
                holds = equality(names[each.field], type_, each.value)
            else:
                holds = f"coalesce({each.over(names)}, false)"
            branches.append(f"when not {holds} then false")
        return f"(case when {image} is null then false {' '.join(branches)} else true end)"

    # --- columns: one image after the other -------------------------------------------------

    def _staged(self, shape: Shape) -> Iterator[Projection]:
        names = Names.beside({*self.schema.names, *self._new_names()})
        parts = {
            names.op: "_op",
            names.commit: "_commit",
            names.ordinal: "_ordinal",
            names.time: "_time",
            names.after: "after",
        }
        if shape.reads_before:
            parts[names.before] = "before"
        if not self.filters:
            parts[names.ka] = "after is not null"
            parts[names.kb] = "before is not null" if shape.reads_before else "false"
        yield [*(f"{sql} as {name}" for name, sql in parts.items()), *self._image("after")]
        kept = list(parts)
        if self.filters:
            # What one projection computes of the image in sight, the next one passes on.
            image = names.before if shape.reads_before else names.after
            yield [*kept, self._passing(names.after, names.ka), *self._image(image)]
            kept.append(names.ka)
            if shape.reads_before:
                yield [*kept, self._passing(names.before, names.kb), *self._image(names.after)]
                kept.append(names.kb)
            else:
                names = replace(names, kb="false")
        yield from self._transformed(kept, names)
        yield self._result(shape, names, [quoted(each.column.name) for each in self.outputs])

    def _image(self, image: str) -> Iterator[str]:
        return (f"{image}.{quoted(name)} as {quoted(name)}" for name in self.schema.names)

    def _passing(self, image: str, name: str) -> SparkColumn:
        """Return the column `name`: whether the image whose columns are in sight passes."""
        holds = F.when(F.expr(f"{image} is null"), F.lit(False))
        for each in self.filters:
            if isinstance(each, Equals):
                type_ = self.schema.column(each.field).type
                true = F.expr(equality(quoted(each.field), type_, each.value))
            else:
                true = F.coalesce(as_column(each.expression), F.lit(False))
            holds = holds.when(~true, F.lit(False))
        return holds.otherwise(F.lit(True)).alias(name)

    def _transformed(self, kept: list[str], names: Names) -> Iterator[Projection]:
        """Yield a projection for each transform, over the columns in sight."""
        visible = list(self.schema.names)
        for transform in self.pipeline.transforms:
            made: dict[str, str | SparkColumn] = {name: quoted(name) for name in visible}
            match transform:
                case Drop(dropped):
                    made = {name: sql for name, sql in made.items() if name not in dropped}
                case Rename(renamed):
                    new = dict(renamed)
                    made = {
                        new.get(name, name): f"{sql} as {quoted(new.get(name, name))}"
                        for name, sql in made.items()
                    }
                case Derive(columns):
                    for name, expression in columns:
                        guarded = F.when(F.expr(names.ka), as_column(expression))
                        made[name] = guarded.alias(name)
            visible = list(made)
            yield [*kept, *made.values()]

    def _new_names(self) -> Iterator[str]:
        for transform in self.pipeline.transforms:
            match transform:
                case Rename(names):
                    yield from (new for _, new in names)
                case Derive(columns):
                    yield from (name for name, _ in columns)

    # --- the result -------------------------------------------------------------------------

    def _result(self, shape: Shape, names: Names, columns: Sequence[str]) -> list[str]:
        """Return the last projection: op, position, the row's columns, the old key."""
        row = self._keyed(shape, names, columns)
        if shape is Shape.BASELINE:
            chosen = [f"case when {names.ka} then 0 end", *row]
        else:
            chosen = [self._op(shape, names), names.commit, names.ordinal, names.time, *row]
        if shape is Shape.MOVES:
            chosen += self._old_key(names)
        return [f"{sql} as `{at}`" for at, sql in enumerate(chosen)]

    def _op(self, shape: Shape, names: Names) -> str:
        """Return SQL for what the change amounts to; null for one that does not pass."""
        if not self.filters:
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

    def _keyed(self, shape: Shape, names: Names, columns: Sequence[str]) -> Iterator[str]:
        """Yield the row's columns; the key's come from whichever image the row speaks of."""
        absent = f"{names.after} is null"
        if shape is Shape.MOVES and self.filters and not self.inserts_replace:
            # A row that leaves the filter as its key changes is gone under its old key.
            absent += f" or (not {names.ka} and {names.kb})"
        for each, sql in zip(self.outputs, columns, strict=True):
            if each.source in self.schema.key and each.source and shape.reads_before:
                key = quoted(each.source)
                yield f"case when {absent} then {names.before}.{key} else {names.after}.{key} end"
            else:
                yield sql

    def _old_key(self, names: Names) -> Iterator[str]:
        """Yield whether the row was there under another key, and that key."""
        keys = [quoted(name) for name in self.schema.key]
        same = [f"{names.after}.{key} <=> {names.before}.{key}" for key in keys] or ["true"]
        # With silent replacing a row of the new key may be there, too, even if this one left.
        stays = "true" if self.inserts_replace else names.ka
        yield (
            f"(case when {names.after} is null or {names.before} is null then false"
            f" when not {names.kb} or not {stays} then false"
            f" else not ({' and '.join(same)}) end)"
        )
        yield from (f"{names.before}.{key}" for key in keys)
