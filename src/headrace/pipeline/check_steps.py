"""
Checks of filters and transforms that need no Spark: names, keys, empty texts, missing values.

Everything found is returned, so that all errors of a configuration are reported together.

A step that reads a column which a change may come without is refused before anything starts (R21):
without the value it cannot be decided whether a filter is true of the row, or what a transform
makes of it. Leaving the column out is not reading it, nor is renaming it. A column that goes to the
target as it is is not refused either: most changes have it, and the pipeline stops at the first
that does not (`targets.unknown_value`). Only Spark knows which columns an expression reads:
expressions are checked when Spark analyses them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf

from headrace.changelog.schema import TableSchema
from headrace.changelog.values import ValueType
from headrace.errors import (
    BadExpression,
    BadFunction,
    BadTransform,
    HeadraceError,
    UnknownColumn,
    UnsentColumn,
)
from headrace.pipeline.sql import TEXTS, condition, text_literal
from headrace.pipeline.steps import (
    Derive,
    Drop,
    Equals,
    Expression,
    Filter,
    Frame,
    Function,
    Mask,
    Prefix,
    Regex,
    Rename,
    Timestamp,
    Transform,
    Where,
)

# --- columns in sight -----------------------------------------------------------------------------

OURS = ("_op", "_commit", "_ordinal", "_time", "_change")
"""What a frame's function is given besides the columns in sight."""

_PATH = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")


def check_steps(
    filters: Sequence[Filter], transforms: Sequence[Transform], schema: TableSchema
) -> list[HeadraceError]:
    """Return everything that is wrong with these steps over such a table."""
    errors: list[HeadraceError] = []
    for number, filter_ in enumerate(filters, 1):
        errors += _check_filter(filter_, f"Filter {number}", schema)
    scope = Scope.of(schema)
    for number, transform in enumerate(transforms, 1):
        scope, found = scope.after(transform, f"Transform {number}")
        errors += found
    return errors


def scope_after(transforms: Sequence[Transform], schema: TableSchema) -> Scope:
    """Return the columns in sight after all of these transforms."""
    scope = Scope.of(schema)
    for transform in transforms:
        scope, _ = scope.after(transform, "")
    return scope


@dataclass(frozen=True, slots=True)
class Scope:
    """The columns in sight between two transforms, and which of them are the key's."""

    types: Mapping[str, ValueType | None]
    """Name and type, in order; None where only Spark can tell the type."""

    key: frozenset[str]
    framed: bool = False
    """Whether a `frame` came before."""

    known: bool = True
    """Whether these are all: what a `frame` makes shows only when Spark analyses it."""

    @classmethod
    def of(cls, schema: TableSchema) -> Scope:
        """The columns of the source."""
        types = {column.name: column.type for column in schema.columns}
        return cls(types, frozenset(schema.key))

    @property
    def names(self) -> tuple[str, ...]:
        """The columns' names, in order."""
        return tuple(self.types)

    def after(self, transform: Transform, place: str) -> tuple[Scope, list[HeadraceError]]:
        """Return what is in sight after a transform, and what is wrong with it."""
        match transform:
            case Drop(names):
                return self._after_drop(names, place)
            case Rename(names):
                return self._after_rename(dict(names), place)
            case Derive(columns):
                return self._after_derive(columns, place)
            case Timestamp(name, of):
                return self._after_timestamp(name, of, place)
            case Mask():
                return self._after_mask(transform, place)
            case Function():
                return self._after_function(transform, place)
            case Frame(make):
                return self._after_frame(make, place)
        kinds = "drop, rename, derive, timestamp, mask, frame and function"
        return self, [BadTransform(f"{place} is none of {kinds}")]

    def _after_drop(self, names: tuple[str, ...], place: str) -> tuple[Scope, list[HeadraceError]]:
        errors = self._known(names, place)
        if not names:
            errors.append(BadTransform(f"{place}, drop, names no column"))
        errors += [
            BadTransform(f"{place} drops the key column {name}", column=name)
            for name in names
            if name in self.key
        ]
        kept = {name: type_ for name, type_ in self.types.items() if name not in names}
        if not kept and self.known:
            errors.append(BadTransform(f"{place} drops every column"))
        return replace(self, types=kept), errors

    def _after_rename(self, names: dict[str, str], place: str) -> tuple[Scope, list[HeadraceError]]:
        errors = self._known(tuple(names), place)
        if not names:
            errors.append(BadTransform(f"{place}, rename, names no column"))
        renamed = tuple(names.get(name, name) for name in self.names)
        errors += [
            BadTransform(f"{place} gives several columns the name {name}", column=name)
            for name in dict.fromkeys(renamed)
            if renamed.count(name) > 1
        ]
        errors += [
            BadTransform(f"{place} gives {old} an empty name", column=old)
            for old, new in names.items()
            if not new
        ]
        types = dict(zip(renamed, self.types.values(), strict=True))
        key = frozenset(names.get(name, name) for name in self.key)
        return replace(self, types=types, key=key), errors

    def _after_derive(
        self, columns: tuple[tuple[str, Expression], ...], place: str
    ) -> tuple[Scope, list[HeadraceError]]:
        errors: list[HeadraceError] = []
        if not columns:
            errors.append(BadTransform(f"{place}, derive, names no column"))
        for name, expression in columns:
            errors += self._made([name], place)
            errors += _check_expression(expression, f"{place}, {name}")
        return self._with(name for name, _ in columns), errors

    def _after_timestamp(self, name: str, of: str, place: str) -> tuple[Scope, list[HeadraceError]]:
        errors = self._made([name], place)
        if of != "commit":
            errors.append(
                BadTransform(f"{place}, timestamp, knows no such time", remedy='Say of="commit".')
            )
        return self._with([name], ValueType("timestamptz")), errors

    def _after_mask(self, mask: Mask, place: str) -> tuple[Scope, list[HeadraceError]]:
        errors = self._known(mask.fields, place)
        if not mask.fields:
            errors.append(BadTransform(f"{place}, mask, names no column"))
        if not isinstance(mask.keep, int) or mask.keep < 0:
            errors.append(BadTransform(f"{place}, mask, keeps a number of characters from 0"))
        if not isinstance(mask.with_, str) or len(mask.with_) != 1:
            errors.append(BadTransform(f"{place}, mask, replaces by one character"))
        else:
            try:
                text_literal(mask.with_)
            except BadExpression as error:
                errors.append(BadTransform(f"{place}, mask: {error.message}"))
        for name in mask.fields:
            if name in self.key:
                errors.append(BadTransform(f"{place} masks the key column {name}", column=name))
            elif (type_ := self.types.get(name)) is not None and type_.kind not in TEXTS:
                errors.append(not_text(name, str(type_), place))
        return self._with(mask.fields, ValueType("text")), errors

    def _after_function(self, function: Function, place: str) -> tuple[Scope, list[HeadraceError]]:
        errors = _check_function(function, place)
        errors += self._known(function.reads or (), place)
        names = [name for name, _ in function.columns or ()]
        if not names:
            errors.append(
                BadFunction(
                    f"{place}, the function {function.name}, declares no columns",
                    remedy='Name what it gives: columns={"total": "double"}.',
                )
            )
        errors += self._made(names, place)
        errors += [
            BadFunction(f"{place}, {name}, has no type", remedy='Give one: {"total": "double"}.')
            for name, type_ in function.columns or ()
            if not isinstance(type_, str) or not type_.strip()
        ]
        if self.framed and not function.batch:
            errors.append(
                BadTransform(
                    f"{place}, a function of rows, stands after a frame",
                    remedy="It may leave rows out, so put it before the frame; or use batch=True.",
                )
            )
        return self._with(names), errors

    def _after_frame(self, make: object, place: str) -> tuple[Scope, list[HeadraceError]]:
        errors: list[HeadraceError] = []
        if not callable(make):
            errors.append(BadTransform(f"{place}, frame, takes a function of a DataFrame"))
        if self.framed:
            remedy = "Let one function do both."
            errors.append(BadTransform(f"{place} is a second frame", remedy=remedy))
        errors += [
            BadTransform(
                f"{place}, frame, cannot show the column {name}, whose name is ours",
                remedy=f"Give it another name first: rename({name}=…).",
                column=name,
            )
            for name in self.names
            if name in OURS
        ]
        # Of the columns behind it only the key's are certain.
        types = {name: type_ for name, type_ in self.types.items() if name in self.key}
        return replace(self, types=types, framed=True, known=False), errors

    def _with(self, names: Iterable[str], type_: ValueType | None = None) -> Scope:
        """Return the columns with these made: in place of their namesakes, or at the end."""
        return replace(self, types={**self.types, **dict.fromkeys(names, type_)})

    def _made(self, names: Iterable[str], place: str) -> list[HeadraceError]:
        """Return what is wrong with making columns of these names."""
        errors: list[HeadraceError] = []
        for name in names:
            if name in self.key:
                errors.append(BadTransform(f"{place} computes the key column {name}", column=name))
            if not name:
                errors.append(BadTransform(f"{place} gives a column an empty name"))
        return errors

    def _known(self, names: tuple[str, ...], place: str) -> list[HeadraceError]:
        if not self.known:
            return []
        return [unknown(name, self.names, place) for name in names if name not in self.names]


def unknown(name: str, names: Sequence[str], place: str) -> UnknownColumn:
    """Return the error for a name that is not in sight."""
    return UnknownColumn(
        f"{place} names the column {name}, and there is none; there are {', '.join(names)}",
        column=name,
    )


def not_text(name: str, type: str, place: str) -> BadTransform:
    """Return the error for masking a column that is not text."""
    return BadTransform(
        f"{place} masks the column {name}, which is {type} and not text",
        remedy=f"Make it text first: derive({name}=…), or drop it.",
        column=name,
    )


def _check_filter(filter_: Filter, place: str, schema: TableSchema) -> list[HeadraceError]:
    match filter_:
        case Equals(field) | Prefix(field) | Regex(field):
            if field not in schema.names:
                return [unknown(field, schema.names, place)]
            try:
                condition(filter_, "x", schema.column(field).type)
            except BadExpression as error:
                return [BadExpression(f"{place}: {error.message}", column=field)]
            return []
        case Where(expression):
            return _check_expression(expression, place)
        case Function():
            return _check_filter_function(filter_, place, schema)
    return [BadExpression(f"{place} is none of equals, prefix, regex, where and function")]


def _check_filter_function(
    function: Function, place: str, schema: TableSchema
) -> list[HeadraceError]:
    errors = _check_function(function, place)
    errors += [
        unknown(name, schema.names, place)
        for name in function.reads or ()
        if name not in schema.names
    ]
    if function.columns is not None:
        errors.append(
            BadFunction(
                f"{place}, the function {function.name}, declares columns",
                remedy="A filter gives true or false; what makes columns is a transform.",
            )
        )
    return errors


def _check_function(function: Function, place: str) -> list[HeadraceError]:
    """Return what is wrong with a function, whatever it is used for."""
    errors: list[HeadraceError] = []
    path = function.call
    if isinstance(path, str):
        if not _PATH.fullmatch(path):
            remedy = 'Give the function itself, or its place: "package.module:name".'
            errors.append(BadFunction(f"{place} names no function", remedy=remedy))
    elif not callable(path):
        errors.append(BadFunction(f"{place} is no function", type=type(path).__name__))
    reads = function.reads
    if reads is not None and (not reads or len(set(reads)) < len(reads)):
        told = "reads no column, or one twice"
        errors.append(BadFunction(f"{place}, the function {function.name}, {told}"))
    if not isinstance(function.time_limit, int | float) or not 0 < function.time_limit < inf:
        errors.append(BadFunction(f"{place}, the function {function.name}, has no time to run"))
    return errors


def _check_expression(expression: Expression, place: str) -> list[HeadraceError]:
    if isinstance(expression, str):
        return [] if expression.strip() else [BadExpression(f"{place} is empty")]
    # By name, so that checking a pipeline does not import Spark.
    if any(base.__name__ == "Column" for base in type(expression).__mro__):
        return []
    kind = type(expression).__name__
    return [BadExpression(f"{place} is neither SQL text nor a Column", type=kind)]


# --- steps that read a column which a change may come without (R21) -------------------------------


def check_unsent(
    filters: Sequence[Filter], transforms: Sequence[Transform], schema: TableSchema
) -> list[HeadraceError]:
    """Return the steps that read what may be missing, as far as that is known without Spark."""
    unsent = frozenset(column.name for column in schema.columns if column.may_be_unsent)
    return list(_found(filters, transforms, unsent, schema.table)) if unsent else []


def unsent_column(
    place: str, columns: Collection[str], table: str, *, surely: bool = True
) -> UnsentColumn:
    """Return the error for a step that reads these columns, or may do so for all that is known."""
    names = sorted(columns)
    told = f"column {names[0]}" if len(names) == 1 else f"columns {', '.join(names)}"
    return UnsentColumn(
        f"{place} {'reads' if surely else 'may read'} the {told}, and an update may come without",
        table=table,
        columns=names,
    )


def _found(
    filters: Sequence[Filter],
    transforms: Sequence[Transform],
    unsent: frozenset[str],
    table: str,
) -> Iterator[UnsentColumn]:
    for number, filter_ in enumerate(filters, 1):
        if hit := _read_by(filter_, unsent):
            yield unsent_column(f"Filter {number}", hit, table, surely=_told(filter_))
    # By the names that they have at that point, as long as nothing was made of them.
    for number, transform in enumerate(transforms, 1):
        if hit := _read_by(transform, unsent):
            yield unsent_column(f"Transform {number}", hit, table, surely=_told(transform))
        unsent = _after(transform, unsent)


def _read_by(step: Filter | Transform, unsent: frozenset[str]) -> frozenset[str]:
    match step:
        case Equals(field) | Prefix(field) | Regex(field):
            return unsent & {field}
        case Mask(fields):
            return unsent & set(fields)
        case Function():
            return unsent if step.reads is None else unsent & set(step.reads)
        case Frame():
            return unsent
    return frozenset()


def _told(step: Filter | Transform) -> bool:
    """Whether a step says which columns it reads."""
    return not isinstance(step, Frame) and (not isinstance(step, Function) or bool(step.reads))


def _after(transform: Transform, unsent: frozenset[str]) -> frozenset[str]:
    """Return which columns may be missing after a transform; what it made never is."""
    match transform:
        case Drop(names):
            return unsent - set(names)
        case Rename(names):
            others = dict(names)
            return frozenset(others.get(name, name) for name in unsent)
        case Derive(columns):
            return unsent - {name for name, _ in columns}
        case Timestamp(name):
            return unsent - {name}
        case Mask(fields):
            return unsent - set(fields)
        case Function():
            return unsent - {name for name, _ in transform.columns or ()}
        case Frame():
            return frozenset()
    return unsent
