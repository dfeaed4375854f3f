"""
A scan in stages: one image after the other in scope, under the columns' own names.

Each projection passes on what is known about a change (`kept`) and the columns in scope. The image
before comes first. It passes through the filters, and through the transforms up to the last one
that may leave out rows (R22: if a function leaves out only the new image, the result is a delete).
Then the image after passes through all of them.

The result of a function is computed in a separate projection, because Spark calls the function for
every row that it gets. By then it is known whether a row is to be computed; if not, the function
gets null.

With `tried` nothing raises: an expression that would raise marks its row as bad instead, with the
step and the column, as JSON.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

from pyspark.sql import functions as F

from headrace.changelog.change import Op
from headrace.pipeline.plan.expressions import AnalysedExpression, as_column
from headrace.pipeline.plan.functions import CallableFunction
from headrace.pipeline.plan.projection import (
    CAPTURE_TIME,
    ChangeImages,
    ChangeSql,
    Condition,
    FrameStep,
    Projection,
    Scan,
    Step,
    failure_with_location,
)
from headrace.pipeline.sql import condition, quoted, text_literal
from headrace.pipeline.steps import Derive, Drop, Equals, Prefix, Regex, Rename, Timestamp

if TYPE_CHECKING:
    from pyspark.sql import Column


Tried: TypeAlias = "Callable[[Column], Column]"
Made: TypeAlias = "dict[str, str | Column]"

RECEIPT = -1
"""Instead of an op: the change was passed to a frame's function, and must come back."""

OTHER_KEY = -2
"""Instead of an op: the frame's function changed the key of the row."""


class Stages:
    """The projections of a scan, in order, with a `FrameStep` where its function is called."""

    def __init__(self, scan: Scan, shape: ChangeImages, tried: Tried | None = None) -> None:
        self._scan = scan
        self._shape = shape
        self._tried = tried
        names = ChangeSql.avoiding({*scan.schema.names, *_new_names(scan.steps)})
        if not shape.reads_before:
            names = replace(names, kb="false")
        if shape is not ChangeImages.BASELINE or not (scan.calls or scan.framed or tried):
            names = replace(names, location="")
        self._names = names
        self._kept: list[str] = []
        self._seen: list[str] = []
        self.bypass: tuple[list[str], list[str]] = ([], [])
        """
        The projection that bypasses a frame's function, over the columns before it: the result's
        first and last columns. A row without op and failure is dropped.
        """

    def projections(self) -> Iterator[Projection | FrameStep]:
        """Yield the stages over segments; the result's columns are `0`, `1`, …"""
        yield from self._rows()
        names = self._names
        columns = [quoted(each.column.name) for each in self._scan.outputs]
        if self._scan.framed is not None:
            yield self._framed_result(columns)
        else:
            yield self._scan.result(self._shape, names, columns)

    def bad(self) -> Iterator[Projection | FrameStep]:
        """Yield the stages of a search: the position or location, and `bad`, of every row."""
        names = self._names
        yield from self._rows()
        location = [f"{names.location} as _place"] if names.location else []
        yield [
            f"{names.commit} as _commit", f"{names.ordinal} as _ordinal",
            *location, f"{names.bad} as bad",
        ]  # fmt: skip

    def _rows(self) -> Iterator[Projection | FrameStep]:
        names, scan, before = self._names, self._scan, self._shape.reads_before
        # R22: a filter cannot be evaluated for a key alone; the target may have the row.
        before = before and scan.schema.whole_before
        yield self._first("before" if before else "after")
        if before:
            yield from self._filtered(names.kb)
            yield from self._transformed(scan.followed, names.kb)
            yield self._stage(seen=self._image(names.after))
        yield from self._filtered(names.ka)
        yield from self._transformed(scan.steps, names.ka)

    def _first(self, image: str) -> Projection:
        names = self._names
        parts = {
            names.op: "_op",
            names.commit: "_commit",
            names.ordinal: "_ordinal",
            names.time: "_time",
            names.after: "after",
            names.ka: "after is not null",
        }
        if self._shape.reads_before:
            parts |= {names.before: "before", names.kb: "before is not null"}
        if self._scan.captured:
            parts[names.captured] = CAPTURE_TIME
        if self._scan.calls:
            parts[names.failed] = "cast(null as string)"
        if names.location:
            parts[names.location] = "concat(_metadata.file_name, '/', _metadata.row_index)"
        if self._tried is not None:
            parts[names.bad] = "cast(null as string)"
        self._kept = list(parts)
        made = [f"{sql} as {name}" for name, sql in parts.items()]
        seen = self._image(image)
        self._seen = list(seen)
        return [*made, *seen.values()]

    def _image(self, image: str) -> Made:
        names = self._scan.schema.names
        return {name: f"{image}.{quoted(name)} as {quoted(name)}" for name in names}

    def _stage(
        self,
        kept: Mapping[str, str | Column] | None = None,
        seen: Made | None = None,
        *more: Column,
    ) -> Projection:
        """Return a projection that replaces `kept` and `seen`, and passes on everything else."""
        if seen is None:
            seen = {name: quoted(name) for name in self._seen}
        self._seen = list(seen)
        passed: list[str | Column] = []
        for name in self._kept:
            now = (kept or {}).get(name, name)
            passed.append(f"{now} as {name}" if isinstance(now, str) else now.alias(name))
        return [*passed, *seen.values(), *more]

    # --- filters ----------------------------------------------------------------------------

    def _filtered(self, passing: str) -> Iterator[Projection]:
        """Yield the projections that decide whether the image in scope passes the filters."""
        group: list[Condition] = []
        for each in self._scan.filters:
            if isinstance(each, CallableFunction):
                yield from self._all_true(group, passing)
                group = []
                yield from self._called(each, passing, {})
            else:
                group.append(each)
        yield from self._all_true(group, passing)

    def _all_true(self, group: Sequence[Condition], passing: str) -> Iterator[Projection]:
        if not group:
            return
        # In order, so that a filter can rely on those before it.
        holds = F.when(F.expr(f"not {passing}"), F.lit(False))
        for each in group:
            if isinstance(each, Equals | Prefix | Regex):
                type_ = self._scan.schema.column(each.field).type
                true = F.expr(condition(each, quoted(each.field), type_))
            else:
                assert isinstance(each, AnalysedExpression)
                true = F.coalesce(as_column(each.expression), F.lit(False))
            holds = holds.when(~true, F.lit(False))
        holds = holds.otherwise(F.lit(True))
        if self._tried is None:
            yield self._stage({passing: holds})
            return
        yield self._stage(None, None, *self._tries([holds]))
        now = f"coalesce({self._names.result}0.v, false)"
        yield self._stage({passing: now, **self._now_bad([{"step": "filters"}])})

    # --- transforms -------------------------------------------------------------------------

    def _transformed(self, steps: Sequence[Step], passing: str) -> Iterator[Projection | FrameStep]:
        """Yield one or two projections for each transform, over the columns in scope."""
        for number, step in enumerate(steps, 1):
            seen: Made = {name: quoted(name) for name in self._seen}
            match step:
                case Drop(names):
                    yield self._stage(
                        seen={name: sql for name, sql in seen.items() if name not in names}
                    )
                case Rename(renamed):
                    new = {name: dict(renamed).get(name, name) for name in seen}
                    yield self._stage(
                        seen={new[name]: f"{seen[name]} as {quoted(new[name])}" for name in seen}
                    )
                case Derive(columns):
                    yield from self._derived(f"transform {number}", columns, passing, seen)
                case Timestamp(name, of):
                    time = self._names.captured if of == "capture" else self._names.time
                    made = f"case when {passing} then {time} end as {quoted(name)}"
                    yield self._stage(seen={**seen, name: made})
                case CallableFunction():
                    yield from self._called(step, passing, seen)
                case FrameStep():
                    yield from self._framed(step)
                    passing = self._names.ka

    def _derived(
        self,
        label: str,
        columns: Sequence[tuple[str, str | Column]],
        passing: str,
        seen: Made,
    ) -> Iterator[Projection]:
        guarded = {
            name: F.when(F.expr(passing), as_column(expression)) for name, expression in columns
        }
        if self._tried is None:
            yield self._stage(
                seen={**seen, **{name: made.alias(name) for name, made in guarded.items()}}
            )
            return
        yield self._stage(None, None, *self._tries(guarded.values()))
        for at, name in enumerate(guarded):
            seen[name] = f"{self._names.result}{at}.v as {quoted(name)}"
        causes = [{"step": label, "column": name} for name in guarded]
        yield self._stage(self._now_bad(causes), seen)

    def _tries(self, columns: Iterable[Column]) -> Iterator[Column]:
        """Yield the value of each column in a struct, which is null if the expression raised."""
        assert self._tried is not None
        for at, each in enumerate(columns):
            yield self._tried(F.struct(each.alias("v"))).alias(f"{self._names.result}{at}")

    def _now_bad(self, causes: Sequence[Mapping[str, str]]) -> dict[str, str]:
        """Note the cause if one of the expressions just tried has raised, and none before."""
        names = self._names
        raised = " ".join(
            f"when {names.result}{at} is null then {text_literal(json.dumps(cause))}"
            for at, cause in enumerate(causes)
        )
        return {names.bad: f"coalesce({names.bad}, case {raised} end)"}

    def _called(self, step: CallableFunction, passing: str, seen: Made) -> Iterator[Projection]:
        """Yield the call of a function, and the projection of its result."""
        names = self._names
        result = names.result
        guard = f"{passing} and {names.failed} is null"
        yield self._stage(None, None, step.over(guard).alias(result))
        now = {
            names.failed: f"coalesce({names.failed}, {result}.error)",
            passing: f"({passing} and coalesce({result}.pass, false))",
        }
        now = {name: sql for name, sql in now.items() if name in self._kept}
        made: Made = {
            name: f"{result}.c{at} as {quoted(name)}" for at, (name, _) in enumerate(step.columns)
        }
        yield self._stage(now, {**seen, **made} if seen else None)

    # --- frames -----------------------------------------------------------------------------

    def _framed(self, step: FrameStep) -> Iterator[Projection | FrameStep]:
        """Yield the input of the function, the function, and the projection of its result."""
        scan, shape, names = self._scan, self._shape, self._names
        op, truncate = scan.op(shape, names), int(Op.TRUNCATE)
        failed = f"{names.failed} is not null" if scan.calls else "false"
        bypass = f"{failed} or {op} is null or {op} = {truncate}"
        keys = scan.keys(shape, names)
        parts = {
            "op": op,
            "commit": names.commit,
            "ordinal": names.ordinal,
            "time": names.time,
            "place": names.location or "cast(null as string)",
            "moved": scan.moved(names) if shape is ChangeImages.MOVES else "false",
        }
        if scan.captured:
            parts["captured"] = names.captured
        for at, key in enumerate(scan.schema.key):
            parts[f"key{at}"] = keys.get(key, f"{names.after}.{quoted(key)}")
            if shape is ChangeImages.MOVES:
                parts[f"old{at}"] = f"{names.before}.{quoted(key)}"
        fields = ", ".join(f"'{name}', {sql}" for name, sql in parts.items())
        words = " ".join(f"when {int(op)} then '{op.name.lower()}'" for op in Op)
        self.bypass = (
            [
                f"cast(case when {failed} or {op} is null then null"
                f" when {op} = {truncate} then {truncate} else {RECEIPT} end as tinyint)",
                *(
                    []
                    if shape is ChangeImages.BASELINE
                    else [names.commit, names.ordinal, names.time]
                ),
            ],
            [
                *([failure_with_location(names)] if scan.calls else []),
                *([names.location] if names.location else []),
            ],
        )
        yield [
            *self._shown(step, op, keys),
            f"case {op} {words} end as _op",
            f"{names.commit} as _commit",
            f"{names.ordinal} as _ordinal",
            f"{names.time} as _time",
            f"case when not ({bypass}) then named_struct({fields}) end as _change",
        ]
        yield step
        self._names = replace(
            names,
            op=f"{names.change}.op",
            commit=f"{names.change}.commit",
            ordinal=f"{names.change}.ordinal",
            time=f"{names.change}.time",
            captured=f"{names.change}.captured",
            ka=f"({names.change}.op <> {int(Op.DELETE)})",
            location=names.location and f"{names.change}.place",
        )
        self._kept = [names.change, *([names.failed] if scan.calls else [])]
        self._seen = list(step.names)
        fine = [f"cast(null as string) as {names.failed}"] if scan.calls else []
        yield [f"_change as {names.change}", *fine, *map(quoted, step.names)]

    def _shown(self, step: FrameStep, op: str, keys: Mapping[str, str]) -> Iterator[str]:
        """Yield the columns in scope; for a delete, those of the row before it."""
        names = self._names
        gone = f"{names.after} is null or ({op} = {int(Op.DELETE)} and {names.before} is not null)"
        for each in step.before:
            name = quoted(each.column.name)
            if each.source is None or not self._shape.reads_before:
                yield name
            elif each.source in keys:
                yield f"{keys[each.source]} as {name}"
            else:
                before = f"{names.before}.{quoted(each.source)}"
                yield f"case when {gone} then {before} else {name} end as {name}"

    def _framed_result(self, columns: Sequence[str]) -> Projection:
        """Return the last projection after a frame; our own columns come from `_change`."""
        scan, shape, names = self._scan, self._shape, self._names
        change = names.change
        at_key = {key: f"{change}.key{at}" for at, key in enumerate(scan.schema.key)}
        row, same = [], ["true"]
        for each, sql in zip(scan.outputs, columns, strict=True):
            if each.source in at_key and each.source is not None:
                same.append(f"{sql} <=> {at_key[each.source]}")
                row.append(at_key[each.source])
            else:
                row.append(sql)
        kept = " and ".join(same)
        chosen = [f"cast(case when {kept} then {names.op} else {OTHER_KEY} end as tinyint)"]
        if shape is not ChangeImages.BASELINE:
            chosen += [names.commit, names.ordinal, names.time]
        chosen += row
        if shape is ChangeImages.MOVES:
            chosen += [f"{change}.moved", *(f"{change}.old{at}" for at in range(len(at_key)))]
        placed = [f"{sql} as `{at}`" for at, sql in enumerate(chosen)]
        if scan.calls:
            placed.append(f"{failure_with_location(names)} as _failed")
        if names.location:
            placed.append(f"{names.location} as _place")
        return placed


def _new_names(steps: Sequence[Step]) -> Iterator[str]:
    for step in steps:
        match step:
            case Rename(names):
                yield from (new for _, new in names)
            case Derive(columns):
                yield from (name for name, _ in columns)
            case Timestamp(name):
                yield name
            case CallableFunction():
                yield from (name for name, _ in step.columns)
            case FrameStep():
                yield from step.names
