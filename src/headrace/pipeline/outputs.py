"""
What a pipeline's filters and transforms come to, once Spark has looked at them.

The transforms are followed in order, and each is analysed over the columns that the ones
before it left in sight; what comes out is the columns of the result, each with where it
comes from.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from pyspark.sql.types import DataType, StringType, StructField, StructType, TimestampType

from headrace.changelog.schema import Column, TableSchema
from headrace.changelog.values import ValueType
from headrace.errors import BadExpression
from headrace.pipeline.arrow_types import arrow_type
from headrace.pipeline.definition import Pipeline
from headrace.pipeline.expressions import Analysed, analyse, must_be_boolean
from headrace.pipeline.failures import analysing
from headrace.pipeline.framing import columns_made
from headrace.pipeline.functions import Called, called
from headrace.pipeline.literals import masked, quoted, text_literal
from headrace.pipeline.scan import Condition, Framed, Output, Step
from headrace.pipeline.scope import Scope, not_text
from headrace.pipeline.session import Spark
from headrace.pipeline.shapes import row_schema
from headrace.pipeline.steps import (
    Derive,
    Drop,
    Expression,
    Frame,
    FrameFunction,
    Function,
    Mask,
    Regex,
    Rename,
    Timestamp,
    Transform,
    Where,
)
from headrace.pipeline.unsent import unsent_column


def conditions(spark: Spark, pipeline: Pipeline, schema: TableSchema) -> Iterator[Condition]:
    """Yield the filters, analysed; raises `BadExpression`, `BadFunction`."""
    rows = row_schema(schema)
    for number, each in enumerate(pipeline.filters, 1):
        place = f"Filter {number}"
        match each:
            case Where(condition):
                found = analyse(spark, spark.empty(rows), condition, place)
                yield must_be_boolean(found, place)
            case Function():
                yield called(spark, each, place, rows)
            case Regex(_, pattern):
                with analysing(place):
                    # Only when it is used does Spark look at a pattern; then a row would be blamed.
                    spark.small.sql(f"select '' rlike {text_literal(pattern)}").collect()
                yield each
            case _:
                yield each


def must_be_sent(filters: Iterable[Condition], schema: TableSchema) -> None:
    """Raise `UnsentColumn` for a filter that may read what a change may come without (R21)."""
    unsent = {column.name for column in schema.columns if column.may_be_unsent}
    for number, each in enumerate(filters, 1):
        names = reads([each])
        if hit := unsent if names is None else unsent & names:
            raise unsent_column(f"Filter {number}", hit, schema.table, surely=names is not None)


@dataclass
class Transformed:
    """The columns in sight, followed through the transforms."""

    spark: Spark
    schema: TableSchema
    outputs: list[Output] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    read: set[str] = field(default_factory=set)
    """The source's columns that some step looks at, whatever becomes of what it makes."""

    _field: int = 0

    def __post_init__(self) -> None:
        self.outputs = [
            Output(column, field.dataType, column.name)
            for column, field in zip(self.schema.columns, row_schema(self.schema), strict=True)
        ]
        # Columns that are made are numbered behind the source's own.
        self._field = max(column.field for column in self.schema.columns)

    def follow(self, transform: Transform, place: str) -> None:
        """Go through one transform; raises what `Runner.prepare` raises."""
        match transform:
            case Drop(names):
                self.outputs = [each for each in self.outputs if each.column.name not in names]
                self.steps.append(transform)
            case Rename(names):
                self.outputs = [_renamed(each, dict(names)) for each in self.outputs]
                self.steps.append(transform)
            case Derive(columns):
                self._derive(columns, place)
            case Mask(fields, keep, with_):
                for each in self.outputs:
                    if each.column.name in fields and not isinstance(each.type, StringType):
                        raise not_text(each.column.name, each.type.simpleString(), place)
                self._derive([(name, masked(quoted(name), keep, with_)) for name in fields], place)
            case Timestamp(name):
                made = self._new(name, TimestampType(), place)
                self._place([replace(made, is_time=True)])
                self.steps.append(transform)
            case Function():
                self._call(transform, place)
            case Frame(make):
                self._frame(make, place)

    def scope(self) -> Scope:
        """Return the columns in sight, as `scope` checks them."""
        types = {each.column.name: each.column.type for each in self.outputs}
        key = frozenset(each.column.name for each in self._keys())
        return Scope(types, key, framed=any(isinstance(each, Framed) for each in self.steps))

    def _derive(self, columns: Sequence[tuple[str, Expression]], place: str) -> None:
        frame = self.spark.empty(self._in_sight())
        made = []
        for name, expression in columns:
            found = analyse(self.spark, frame, expression, f"{place}, {name}")
            self._look_at(found.names, f"{place}, {name}")
            column = self._new(name, found.type, f"{place}, {name}")
            over = None if found.names is None else self._sources(found.names)
            made.append(replace(column, derived=found, over=over))
        self._place(made)
        self.steps.append(Derive(tuple(columns)))

    def _call(self, function: Function, place: str) -> None:
        found = called(self.spark, function, place, self._in_sight())
        self._look_at(found.given.names, place)
        over = self._sources(found.given.names)
        self._place(
            [
                replace(self._new(name, type_, f"{place}, {name}"), over=over)
                for name, type_ in found.columns
            ]
        )
        self.steps.append(found)

    def _frame(self, make: FrameFunction, place: str) -> None:
        self._look_at(None, place)
        key = {each.column.name: each.type for each in self._keys()}
        made = columns_made(self.spark, make, self._in_sight(), key, place)
        before = {each.column.name: each for each in self.outputs}
        outputs = []
        for field_ in made:
            same = before.get(field_.name)
            if field_.name in key and same is not None:
                outputs.append(same)
            elif same is not None and same.type == field_.dataType:
                # Of the same name and type it is the same column, whatever was made of it.
                outputs.append(Output(same.column, same.type))
            else:
                outputs.append(self._new(field_.name, field_.dataType, f"{place}, {field_.name}"))
        self.steps.append(Framed(make, place, tuple(self.outputs), tuple(made.names)))
        self.outputs = outputs

    def _look_at(self, names: Iterable[str] | None, place: str) -> None:
        """Note what a step reads, None for all in sight; raise where that may be unsent (R21)."""
        wanted = None if names is None else set(names)
        seen = {
            each.column.name: self.schema.column(each.source)
            for each in self.outputs
            if each.source is not None and (wanted is None or each.column.name in wanted)
        }
        if unsent := [name for name, column in seen.items() if column.may_be_unsent]:
            raise unsent_column(place, unsent, self.schema.table, surely=wanted is not None)
        self.read.update(column.name for column in seen.values())

    def _keys(self) -> list[Output]:
        """Return the key's columns, in the key's order."""
        named = {each.source: each for each in self.outputs}
        return [named[name] for name in self.schema.key]

    def _new(self, name: str, type: DataType, place: str) -> Output:
        self._field += 1
        return Output(Column(name, value_type(type, place), self._field), type)

    def _place(self, made: Iterable[Output]) -> None:
        """Put columns in place of their namesakes, or at the end."""
        new = {each.column.name: each for each in made}
        placed = [new.pop(each.column.name, each) for each in self.outputs]
        self.outputs = [*placed, *new.values()]

    def _sources(self, names: Iterable[str]) -> tuple[tuple[str, str], ...] | None:
        """Return which source column each of these names is; None if one was made."""
        named = {each.column.name: each.source for each in self.outputs}
        sources = []
        for name in sorted(names):
            source = named[name]
            if source is None:
                return None
            sources.append((name, source))
        return tuple(sources)

    def _in_sight(self) -> StructType:
        return StructType([StructField(each.column.name, each.type) for each in self.outputs])


def transformed(spark: Spark, pipeline: Pipeline, schema: TableSchema) -> Transformed:
    """Follow all transforms of a pipeline."""
    made = Transformed(spark, schema)
    framed = False
    for number, transform in enumerate(pipeline.transforms, 1):
        place = f"Transform {number}"
        if framed:
            # What a frame left in sight is known only now.
            _, errors = made.scope().after(transform, place)
            if errors:
                raise errors[0]
        made.follow(transform, place)
        framed = framed or isinstance(transform, Frame)
    return made


def value_type(type: DataType, place: str) -> ValueType:
    """Return the log's type for what Spark makes."""
    if type.typeName() == "void":
        raise BadExpression(f"{place} is always null; give it a type: cast(null as int)")
    with analysing(place):
        return ValueType.of_arrow(arrow_type(type))


def reads(filters: Iterable[Condition]) -> set[str] | None:
    """Return the source's columns that the filters look at; None where that is not known."""
    found: set[str] = set()
    for each in filters:
        if isinstance(each, Analysed):
            if each.names is None:
                return None
            found |= each.names
        elif isinstance(each, Called):
            found |= set(each.given.names)
        else:
            found.add(each.field)
    return found


def _renamed(output: Output, names: dict[str, str]) -> Output:
    name = output.column.name
    return replace(output, column=replace(output.column, name=names.get(name, name)))
