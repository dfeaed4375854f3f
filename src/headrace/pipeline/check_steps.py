"""
Checks of filters and transforms that need no Spark: names, keys, empty texts, missing values.

All errors are returned, so that all errors of a configuration are reported together.

A step must not read a column that an update may leave out; it is refused before anything starts
(R21). Without the value, neither the result of a filter nor that of a transform is known. Dropping
or renaming the column does not count as reading it. A column that goes to the target unchanged is
not refused either: most changes have it, and the pipeline stops at the first one that does not
(`targets.unknown_value`). Only Spark knows which columns an expression reads, so expressions are
checked when Spark analyses them.
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

# --- columns in scope -----------------------------------------------------------------------------

TIMES = ("commit", "capture")
"""The times of a change that the log has."""

OURS = ("_op", "_commit", "_ordinal", "_time", "_change")
"""The columns that the function of a `frame` gets in addition to those in scope."""

_NAME_ONE = "Name a column, or remove the step."
_GIVE_NAME = "Give every column a name."
_KEEP_KEY = "Leave it out of this step: a key column can be renamed, but not changed or dropped."
_PATH = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")


def check_steps(
    filters: Sequence[Filter], transforms: Sequence[Transform], schema: TableSchema
) -> list[HeadraceError]:
    """Return all errors of these steps for this table."""
    errors: list[HeadraceError] = []
    for number, filter_ in enumerate(filters, 1):
        errors += _check_filter(filter_, f"Filter {number}", schema)
    scope = Scope.of(schema)
    for number, transform in enumerate(transforms, 1):
        scope, found = scope.after(transform, f"Transform {number}")
        errors += found
    return errors


def scope_after(transforms: Sequence[Transform], schema: TableSchema) -> Scope:
    """Return the columns in scope after all of these transforms."""
    scope = Scope.of(schema)
    for transform in transforms:
        scope, _ = scope.after(transform, "")
    return scope


@dataclass(frozen=True, slots=True)
class Scope:
    """The columns in scope between two transforms, and which of them are the key."""

    types: Mapping[str, ValueType | None]
    """Name and type, in order; None if only Spark knows the type."""

    key: frozenset[str]
    framed: bool = False
    """Whether a `frame` came before."""

    known: bool = True
    """Whether these are all columns; those that a `frame` adds are only known to Spark."""

    @classmethod
    def of(cls, schema: TableSchema) -> Scope:
        """The columns of the source."""
        types = {column.name: column.type for column in schema.columns}
        return cls(types, frozenset(schema.key))

    @property
    def names(self) -> tuple[str, ...]:
        """The columns' names, in order."""
        return tuple(self.types)

    def after(self, transform: Transform, label: str) -> tuple[Scope, list[HeadraceError]]:
        """Return the scope after a transform, and the errors of the transform."""
        match transform:
            case Drop(names):
                return self._after_drop(names, label)
            case Rename(names):
                return self._after_rename(dict(names), label)
            case Derive(columns):
                return self._after_derive(columns, label)
            case Timestamp(name, of):
                return self._after_timestamp(name, of, label)
            case Mask():
                return self._after_mask(transform, label)
            case Function():
                return self._after_function(transform, label)
            case Frame(make):
                return self._after_frame(make, label)
        kinds = "drop, rename, derive, timestamp, mask, frame or function"
        return self, [BadTransform(f"{label} is not a transform", remedy=f"Use {kinds}.")]

    def _after_drop(self, names: tuple[str, ...], label: str) -> tuple[Scope, list[HeadraceError]]:
        errors = self._known(names, label)
        if not names:
            errors.append(
                BadTransform(f"{label}, drop, needs at least one column", remedy=_NAME_ONE)
            )
        errors += [
            BadTransform(f"{label} drops the key column {name}", column=name, remedy=_KEEP_KEY)
            for name in names
            if name in self.key
        ]
        kept = {name: type_ for name, type_ in self.types.items() if name not in names}
        if not kept and self.known:
            errors.append(
                BadTransform(f"{label} drops all columns", remedy="Keep at least one column.")
            )
        return replace(self, types=kept), errors

    def _after_rename(self, names: dict[str, str], label: str) -> tuple[Scope, list[HeadraceError]]:
        errors = self._known(tuple(names), label)
        if not names:
            errors.append(
                BadTransform(f"{label}, rename, needs at least one column", remedy=_NAME_ONE)
            )
        renamed = tuple(names.get(name, name) for name in self.names)
        errors += [
            BadTransform(
                f"{label} gives several columns the name {name}",
                column=name,
                remedy="Give every column a unique name, or drop one of them before.",
            )
            for name in dict.fromkeys(renamed)
            if renamed.count(name) > 1
        ]
        errors += [
            BadTransform(
                f"{label} gives the column {old} an empty name", column=old, remedy=_GIVE_NAME
            )
            for old, new in names.items()
            if not new
        ]
        types = dict(zip(renamed, self.types.values(), strict=True))
        key = frozenset(names.get(name, name) for name in self.key)
        return replace(self, types=types, key=key), errors

    def _after_derive(
        self, columns: tuple[tuple[str, Expression], ...], label: str
    ) -> tuple[Scope, list[HeadraceError]]:
        errors: list[HeadraceError] = []
        if not columns:
            errors.append(
                BadTransform(f"{label}, derive, needs at least one column", remedy=_NAME_ONE)
            )
        for name, expression in columns:
            errors += self._made([name], label)
            errors += _check_expression(expression, f"{label}, {name}")
        return self._with(name for name, _ in columns), errors

    def _after_timestamp(self, name: str, of: str, label: str) -> tuple[Scope, list[HeadraceError]]:
        errors = self._made([name], label)
        if of not in TIMES:
            errors.append(
                BadTransform(
                    f'{label}, timestamp: of must be "commit" or "capture"',
                    given=of,
                    remedy='Write of="commit" for the time of the commit, or of="capture" for the'
                    " time at which the change was written to the log. The time at which it is"
                    " applied would differ when a batch is computed again.",
                )
            )
        return self._with([name], ValueType("timestamptz")), errors

    def _after_mask(self, mask: Mask, label: str) -> tuple[Scope, list[HeadraceError]]:
        errors = self._known(mask.fields, label)
        if not mask.fields:
            errors.append(
                BadTransform(f"{label}, mask, needs at least one column", remedy=_NAME_ONE)
            )
        if not isinstance(mask.keep, int) or mask.keep < 0:
            errors.append(
                BadTransform(
                    f"{label}, mask: keep must be a whole number, 0 or more",
                    remedy="Use for example keep=4.",
                )
            )
        if not isinstance(mask.with_, str) or len(mask.with_) != 1:
            errors.append(
                BadTransform(
                    f"{label}, mask: with_ must be one character",
                    remedy='Use for example with_="*".',
                )
            )
        else:
            try:
                text_literal(mask.with_)
            except BadExpression as error:
                errors.append(
                    BadTransform(
                        f"{label}, mask: {error.message}", remedy='Use for example with_="*".'
                    )
                )
        for name in mask.fields:
            if name in self.key:
                errors.append(
                    BadTransform(
                        f"{label} masks the key column {name}", column=name, remedy=_KEEP_KEY
                    )
                )
            elif (type_ := self.types.get(name)) is not None and type_.kind not in TEXTS:
                errors.append(not_text(name, str(type_), label))
        return self._with(mask.fields, ValueType("text")), errors

    def _after_function(self, function: Function, label: str) -> tuple[Scope, list[HeadraceError]]:
        errors = _check_function(function, label)
        errors += self._known(function.reads or (), label)
        names = [name for name, _ in function.columns or ()]
        if not names:
            errors.append(
                BadFunction(
                    f"{label}, the function {function.name}, declares no columns",
                    remedy='Declare the columns that it returns: columns={"total": "double"}.',
                )
            )
        errors += self._made(names, label)
        errors += [
            BadFunction(
                f"{label}: the column {name} has no type", remedy='Add one: {"total": "double"}.'
            )
            for name, type_ in function.columns or ()
            if not isinstance(type_, str) or not type_.strip()
        ]
        if self.framed and not function.batch:
            errors.append(
                BadTransform(
                    f"{label}, a function of rows, comes after a frame",
                    remedy="It may leave out rows, so put it before the frame, or use batch=True.",
                )
            )
        return self._with(names), errors

    def _after_frame(self, make: object, label: str) -> tuple[Scope, list[HeadraceError]]:
        errors: list[HeadraceError] = []
        if not callable(make):
            errors.append(
                BadTransform(
                    f"{label}, frame, needs a function that takes a DataFrame",
                    remedy="Pass a function: hr.frame(lambda df: …).",
                )
            )
        if self.framed:
            remedy = "Combine the two functions into one."
            errors.append(
                BadTransform(f"{label} is a second frame; only one is allowed", remedy=remedy)
            )
        errors += [
            BadTransform(
                f"{label}, frame: the column name {name} is used by Headrace itself",
                remedy=f"Rename the column before the frame: rename({name}=…).",
                column=name,
            )
            for name in self.names
            if name in OURS
        ]
        # After it, only the columns of the key are certain.
        types = {name: type_ for name, type_ in self.types.items() if name in self.key}
        return replace(self, types=types, framed=True, known=False), errors

    def _with(self, names: Iterable[str], type_: ValueType | None = None) -> Scope:
        """Return the scope with these columns, replaced or added at the end."""
        return replace(self, types={**self.types, **dict.fromkeys(names, type_)})

    def _made(self, names: Iterable[str], label: str) -> list[HeadraceError]:
        """Return the errors of computing columns with these names."""
        errors: list[HeadraceError] = []
        for name in names:
            if name in self.key:
                errors.append(
                    BadTransform(
                        f"{label} computes the key column {name}", column=name, remedy=_KEEP_KEY
                    )
                )
            if not name:
                errors.append(
                    BadTransform(f"{label} gives a column an empty name", remedy=_GIVE_NAME)
                )
        return errors

    def _known(self, names: tuple[str, ...], label: str) -> list[HeadraceError]:
        if not self.known:
            return []
        return [unknown(name, self.names, label) for name in names if name not in self.names]


def unknown(name: str, names: Sequence[str], label: str) -> UnknownColumn:
    """Return the error for a name that is not in scope."""
    return UnknownColumn(
        f"{label} names the column {name}, which does not exist; columns: {', '.join(names)}",
        column=name,
    )


def not_text(name: str, type: str, label: str) -> BadTransform:
    """Return the error for masking a column that is not text."""
    return BadTransform(
        f"{label} masks the column {name}, which has the type {type} and is not text",
        remedy=f"Convert it to text before, with derive({name}=…), or drop it.",
        column=name,
    )


def _check_filter(filter_: Filter, label: str, schema: TableSchema) -> list[HeadraceError]:
    match filter_:
        case Equals(field) | Prefix(field) | Regex(field):
            if field not in schema.names:
                return [unknown(field, schema.names, label)]
            try:
                condition(filter_, "x", schema.column(field).type)
            except BadExpression as error:
                return [BadExpression(f"{label}: {error.message}", column=field)]
            return []
        case Where(expression):
            return _check_expression(expression, label)
        case Function():
            return _check_filter_function(filter_, label, schema)
    return [BadExpression(f"{label} must be an equals, prefix, regex, where or function")]


def _check_filter_function(
    function: Function, label: str, schema: TableSchema
) -> list[HeadraceError]:
    errors = _check_function(function, label)
    errors += [
        unknown(name, schema.names, label)
        for name in function.reads or ()
        if name not in schema.names
    ]
    if function.columns is not None:
        errors.append(
            BadFunction(
                f"{label}, the function {function.name}, declares columns",
                remedy="A filter returns true or false. To add columns, use it as a transform.",
            )
        )
    return errors


def _check_function(function: Function, label: str) -> list[HeadraceError]:
    """Return the errors of a function, as a filter or as a transform."""
    errors: list[HeadraceError] = []
    path = function.call
    if isinstance(path, str):
        if not _PATH.fullmatch(path):
            remedy = 'Pass the function itself, or its path: "package.module:name".'
            errors.append(BadFunction(f"{label} has no path of a function", remedy=remedy))
    elif not callable(path):
        errors.append(BadFunction(f"{label} is not a function", type=type(path).__name__))
    reads = function.reads
    if reads is not None and (not reads or len(set(reads)) < len(reads)):
        problem = "reads no column, or the same column twice"
        errors.append(BadFunction(f"{label}, the function {function.name}, {problem}"))
    if not isinstance(function.time_limit, int | float) or not 0 < function.time_limit < inf:
        problem = "must have a time_limit of more than 0 seconds"
        errors.append(BadFunction(f"{label}, the function {function.name}, {problem}"))
    return errors


def _check_expression(expression: Expression, label: str) -> list[HeadraceError]:
    if isinstance(expression, str):
        return [] if expression.strip() else [BadExpression(f"{label} is empty")]
    # By name, so that checking a pipeline does not import Spark.
    if any(base.__name__ == "Column" for base in type(expression).__mro__):
        return []
    kind = type(expression).__name__
    return [BadExpression(f"{label} must be SQL text or a Column", type=kind)]


# --- steps that read a column which an update may leave out (R21) ---------------------------------


def check_unsent(
    filters: Sequence[Filter], transforms: Sequence[Transform], schema: TableSchema
) -> list[HeadraceError]:
    """Return errors for steps that read such columns, as far as is known without Spark."""
    unsent = frozenset(column.name for column in schema.columns if column.may_be_unsent)
    return list(_found(filters, transforms, unsent, schema.table)) if unsent else []


def unsent_column(
    label: str, columns: Collection[str], table: str, *, surely: bool = True
) -> UnsentColumn:
    """Return the error for a step that reads these columns, or may read them."""
    names = sorted(columns)
    listed = f"column {names[0]}" if len(names) == 1 else f"columns {', '.join(names)}"
    return UnsentColumn(
        f"{label} {'reads' if surely else 'may read'} the {listed}, which an update may leave out",
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
            yield unsent_column(f"Filter {number}", hit, table, surely=_declares_reads(filter_))
    # By the names that the columns have at that point, until they are replaced.
    for number, transform in enumerate(transforms, 1):
        if hit := _read_by(transform, unsent):
            yield unsent_column(
                f"Transform {number}", hit, table, surely=_declares_reads(transform)
            )
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


def _declares_reads(step: Filter | Transform) -> bool:
    """Return whether a step declares the columns that it reads."""
    return not isinstance(step, Frame) and (not isinstance(step, Function) or bool(step.reads))


def _after(transform: Transform, unsent: frozenset[str]) -> frozenset[str]:
    """Return the columns that may be missing after a transform; computed ones never are."""
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
