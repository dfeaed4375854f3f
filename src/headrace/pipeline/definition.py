"""
What a pipeline is: a table of a source, a target, and what happens between.

All filters apply first, to the table's columns as the source has them; a row passes when
every one of them is true of it. Then the transforms apply, in order. Both are Spark: an
expression is SQL text or a `pyspark.sql.Column`. They are checked here as far as that
goes without Spark, all errors together.

A column without a fixed type (SQLite's DECIMAL, BOOLEAN, DATETIME and the like) is a
struct in Spark: `price.i` is its whole number, `price.d` its real, `price.t` its text,
`price.b` its bytes, each null unless the value is of that kind; so a number of either
kind is `coalesce(price.d, price.i)`. `equals` compares with the value itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from headrace.changelog.schema import TableSchema
from headrace.errors import BadExpression, BadTransform, HeadraceError, UnknownColumn
from headrace.pipeline.literals import equality

if TYPE_CHECKING:
    from pyspark.sql import Column

    from headrace.capture.source import Recordable
    from headrace.targets.target import Target

Expression: TypeAlias = "str | Column"
"""Spark SQL over the columns at that point, as text or as a column."""


@dataclass(frozen=True, slots=True)
class Equals:
    """The field has exactly this value; `None` asks for a null field."""

    field: str
    value: object


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


Filter: TypeAlias = Equals | Where
Transform: TypeAlias = Drop | Rename | Derive


def equals(field: str, value: object) -> Filter:
    """Keep rows whose `field` has exactly this value; `None` keeps those without one."""
    return Equals(field, value)


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


@dataclass(frozen=True, eq=False, init=False)
class Pipeline:
    """A table of a source, kept in a target, filtered and transformed on the way."""

    source: Recordable
    table: str
    target: Target
    name: str | None
    """The pipeline's id; None leaves it to the engine, which takes the table's name."""

    filters: tuple[Filter, ...]
    transforms: tuple[Transform, ...]

    def __init__(
        self,
        source: Recordable,
        table: str | None = None,
        target: Target | None = None,
        *,
        tables: Sequence[str] | None = None,
        name: str | None = None,
        filters: Sequence[Filter] = (),
        transforms: Sequence[Transform] = (),
    ) -> None:
        named = [*([] if table is None else [table]), *(tables or ())]
        if len(named) != 1:
            raise BadTransform(
                "A pipeline takes one table",
                remedy="Make a pipeline for each table; they can share a source.",
                tables=len(named),
            )
        if target is None:
            raise BadTransform("A pipeline needs a target", remedy="Give one: memory().")
        # Frozen, so set the way a frozen dataclass sets its own.
        for field, value in {
            "source": source,
            "table": named[0],
            "target": target,
            "name": name,
            "filters": tuple(filters),
            "transforms": tuple(transforms),
        }.items():
            object.__setattr__(self, field, value)

    def check(self, schema: TableSchema) -> list[HeadraceError]:
        """Return everything that is wrong with this pipeline over such a table, without Spark."""
        errors: list[HeadraceError] = []
        for number, filter_ in enumerate(self.filters, 1):
            errors += _check_filter(filter_, f"Filter {number}", schema)
        scope = Scope.of(schema)
        for number, transform in enumerate(self.transforms, 1):
            scope, found = scope.after(transform, f"Transform {number}")
            errors += found
        return errors


@dataclass(frozen=True, slots=True)
class Scope:
    """The names in sight between two transforms, and which of them are the key's."""

    names: tuple[str, ...]
    key: frozenset[str]

    @classmethod
    def of(cls, schema: TableSchema) -> Scope:
        """The columns of the source."""
        return cls(schema.names, frozenset(schema.key))

    def after(self, transform: Transform, place: str) -> tuple[Scope, list[HeadraceError]]:
        """Return the names after a transform, and what is wrong with it."""
        match transform:
            case Drop(names):
                return self._after_drop(names, place)
            case Rename(names):
                return self._after_rename(dict(names), place)
            case Derive(columns):
                return self._after_derive(columns, place)
        return self, [BadTransform(f"{place} is none of drop, rename and derive")]

    def _after_drop(self, names: tuple[str, ...], place: str) -> tuple[Scope, list[HeadraceError]]:
        errors = self._known(names, place)
        if not names:
            errors.append(BadTransform(f"{place}, drop, names no column"))
        errors += [
            BadTransform(f"{place} drops the key column {name}", column=name)
            for name in names
            if name in self.key
        ]
        kept = tuple(name for name in self.names if name not in names)
        if not kept:
            errors.append(BadTransform(f"{place} drops every column"))
        return Scope(kept, self.key), errors

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
        return Scope(renamed, frozenset(names.get(name, name) for name in self.key)), errors

    def _after_derive(
        self, columns: tuple[tuple[str, Expression], ...], place: str
    ) -> tuple[Scope, list[HeadraceError]]:
        errors: list[HeadraceError] = []
        if not columns:
            errors.append(BadTransform(f"{place}, derive, names no column"))
        for name, expression in columns:
            if name in self.key:
                errors.append(BadTransform(f"{place} computes the key column {name}", column=name))
            if not name:
                errors.append(BadTransform(f"{place} gives a column an empty name"))
            errors += _check_expression(expression, f"{place}, {name}")
        new = tuple(name for name, _ in columns if name not in self.names)
        return Scope(self.names + new, self.key), errors

    def _known(self, names: tuple[str, ...], place: str) -> list[HeadraceError]:
        return [unknown(name, self.names, place) for name in names if name not in self.names]


def unknown(name: str, names: Sequence[str], place: str) -> UnknownColumn:
    """Return the error for a name that is not in sight."""
    return UnknownColumn(
        f"{place} names the column {name}, and there is none; there are {', '.join(names)}",
        column=name,
    )


def _check_filter(filter_: Filter, place: str, schema: TableSchema) -> list[HeadraceError]:
    match filter_:
        case Equals(field, value):
            if field not in schema.names:
                return [unknown(field, schema.names, place)]
            try:
                equality("x", schema.column(field).type, value)
            except BadExpression as error:
                return [BadExpression(f"{place}: {error.message}", column=field)]
            return []
        case Where(condition):
            return _check_expression(condition, place)
    return [BadExpression(f"{place} is neither equals nor where")]


def _check_expression(expression: Expression, place: str) -> list[HeadraceError]:
    if isinstance(expression, str):
        return [] if expression.strip() else [BadExpression(f"{place} is empty")]
    # By name, so that checking a pipeline does not import Spark.
    if any(base.__name__ == "Column" for base in type(expression).__mro__):
        return []
    kind = type(expression).__name__
    return [BadExpression(f"{place} is neither SQL text nor a Column", type=kind)]
