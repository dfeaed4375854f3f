"""
Plans: from a pipeline's definition to DataFrames over segments.

A plan is made once for a pipeline and a version of its table: Spark analyses every expression,
whatever could differ from run to run is refused, and the projections are sent to the JVM. A batch
then takes three round trips to plan.

A batch knows from the index which changes it holds, so a plan reads no more than it must: without
filters an insert or update needs no before image, and an old key is read only where keys changed.

A plan is made for the newest schema of its table. Segments that were written before the table was
altered are lifted to it as they are read: columns are identified by their ids, so one that was
renamed is found, one that was dropped is left out, and one that did not exist yet has what the
source says older rows have in it (R23b).

The transforms are followed in order, and each is analysed over the columns that the ones before it
left in sight; the outcome is the columns of the result, each with where it comes from.

A plan lies in the JVM it was made in; `runner` makes it again where that died.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeAlias

import pyarrow as pa
from pyspark.sql import functions as F
from pyspark.sql.types import (
    BooleanType,
    DataType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from headrace.capture.source import SourceTraits
from headrace.changelog.schema import Column, TableSchema
from headrace.changelog.values import ValueType
from headrace.errors import BadExpression, RowFailed
from headrace.pipeline.check_steps import Scope, not_text, unsent_column
from headrace.pipeline.definition import Pipeline
from headrace.pipeline.plan.expressions import AnalysedExpression, analyse, must_be_boolean
from headrace.pipeline.plan.frames import columns_made, compared, made_by
from headrace.pipeline.plan.functions import CallableFunction, called, must_load
from headrace.pipeline.plan.projection import ChangeImages, Condition, FrameStep, Output, Scan, Step
from headrace.pipeline.plan.stages import Stages
from headrace.pipeline.plan.types import arrow_type, row_schema, segment_schema, spark_type
from headrace.pipeline.sql import masked, quoted, text_literal
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
from headrace.spark_session.errors import analysing, running
from headrace.spark_session.session import PreparedExpressions, Spark

if TYPE_CHECKING:
    from pyspark.sql import Column as SparkColumn
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.readwriter import DataFrameReader


# --- rows of an older schema in the columns of the newest -----------------------------------------


def same_columns(one: TableSchema, other: TableSchema) -> bool:
    """Whether rows of the one can be read as rows of the other without lifting them."""
    return [(c.field, c.name, c.type) for c in one.columns] == [
        (c.field, c.name, c.type) for c in other.columns
    ]


def lifted(image: str, old: TableSchema, new: TableSchema) -> str:
    """Return SQL for an image of the old schema as a struct of the new one; null stays null."""
    written = {column.field: column for column in old.columns}
    fields = ", ".join(
        f"{text_literal(column.name)}, {_value(image, written.get(column.field), column)}"
        for column in new.columns
    )
    return f"case when {image} is not null then named_struct({fields}) end"


def _value(image: str, old: Column | None, new: Column) -> str:
    type = spark_type(new.type.arrow).simpleString()
    if old is None:
        missing = "null" if new.missing is None else text_literal(new.missing)
        return f"cast({missing} as {type})"
    value = f"{image}.{quoted(old.name)}"
    return value if old.type.arrow == new.type.arrow else f"cast({value} as {type})"


# --- filters and transforms as Spark analysed them ------------------------------------------------


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
class VisibleColumns:
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
        """Go through one transform; raises what `PreparedPipeline.output` raises."""
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
        """Return the columns in sight, as `check_steps` checks them."""
        types = {each.column.name: each.column.type for each in self.outputs}
        key = frozenset(each.column.name for each in self._keys())
        return Scope(types, key, framed=any(isinstance(each, FrameStep) for each in self.steps))

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
        self.steps.append(FrameStep(make, place, tuple(self.outputs), tuple(made.names)))
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


def transformed(spark: Spark, pipeline: Pipeline, schema: TableSchema) -> VisibleColumns:
    """Follow all transforms of a pipeline."""
    made = VisibleColumns(spark, schema)
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
        if isinstance(each, AnalysedExpression):
            if each.names is None:
                return None
            found |= each.names
        elif isinstance(each, CallableFunction):
            found |= set(each.given.names)
        else:
            found.add(each.field)
    return found


def _renamed(output: Output, names: dict[str, str]) -> Output:
    name = output.column.name
    return replace(output, column=replace(output.column, name=names.get(name, name)))


# --- the plan of one pipeline ---------------------------------------------------------------------

Stage: TypeAlias = PreparedExpressions | FrameStep


@dataclass(frozen=True, slots=True)
class Recipe:
    """What makes a frame of segments, as the JVM holds it."""

    reader: DataFrameReader
    stages: tuple[Stage, ...]
    around: PreparedExpressions | None = None
    """What goes round a frame's function; None where there is none."""


class PipelinePlan:
    """A pipeline over one version of its table's schema."""

    def __init__(
        self,
        spark: Spark,
        pipeline: Pipeline,
        schema: TableSchema,
        traits: SourceTraits,
        written: TableSchema | None = None,
    ) -> None:
        """Analyse; the segments may be `written` with an older schema than the plan is for."""
        if errors := pipeline.check(schema):
            raise errors[0]
        self._spark = spark
        self._schema = schema
        self._older = None if written is None or same_columns(written, schema) else written
        filters = tuple(conditions(spark, pipeline, schema))
        must_be_sent(filters, schema)
        made = transformed(spark, pipeline, schema)
        self._read = frozenset(made.read)
        self._scan = Scan(
            schema, filters, tuple(made.steps), tuple(made.outputs), traits.inserts_replace
        )
        self.filtered = self._scan.leaves_out
        """Whether some rows may be left out."""
        self.reports_failures = bool(self._scan.calls)
        """Whether a frame's last column is `_failed`: what a user's function raised, as JSON."""
        self.framed = self._scan.framed is not None
        """Whether a user's function of a DataFrame is part of it; then rows are `checked`."""
        self._recipes: dict[tuple[ChangeImages, int], Recipe] = {}
        self.output = _output_schema(schema, self._scan.outputs)
        # What only the whole shows is found here, and not by the first batch.
        with analysing("The pipeline"):
            whole = self._lifted(
                spark.empty(self._read_schema(ChangeImages.MOVES)), ChangeImages.MOVES
            )
            stages, around = self._prepared(ChangeImages.MOVES)
            self._follow(whole, stages, around)
        must_load(spark, self._scan.calls)

    @property
    def fields(self) -> frozenset[int]:
        """The ids of the source's columns that the result depends on."""
        names = self._row_columns() | self._filter_columns()
        return frozenset(self._schema.column(name).field for name in names)

    @property
    def needs(self) -> frozenset[int]:
        """The ids of the source's columns that it looks at or hands on: all but those dropped."""
        names = {each.source for each in self._scan.outputs if each.source is not None}
        names |= self._read | self._filter_columns() | set(self._schema.key)
        return frozenset(self._schema.column(name).field for name in names)

    def frame(self, session: SparkSession, paths: Sequence[str], shape: ChangeImages) -> DataFrame:
        """
        Return the frame over these segments; its columns are by place, not by name.

        With `reports_failures` the last column is `_failed`: null, or JSON of `function`,
        `error` and `message`, and for a baseline `place` (file/row number). Rows that failed
        are there whatever the filters say, and may have no op. With `framed` it holds
        receipts besides, and for a baseline one more column: give what was collected to
        `checked`, or leave them out by `without_receipts`.
        """
        key = (shape, id(session))
        recipe = self._recipes.get(key)
        if recipe is None:
            reader = session.read.schema(self._read_schema(shape))
            recipe = self._recipes[key] = Recipe(reader, *self._prepared(shape))
        frame = self._lifted(recipe.reader.parquet(*paths), shape)
        return self._follow(frame, recipe.stages, recipe.around)

    def checked(self, rows: pa.Table, shape: ChangeImages) -> pa.Table:
        """
        Return what was collected of a frame, in the shape of every other plan's.

        Raises `BadFrame` where a user's function of a DataFrame lost rows or made more. It
        takes what `places` gives as well, where only that is asked.
        """
        if not self.framed:
            return rows
        framed = self._scan.framed
        assert framed is not None
        if shape is not ChangeImages.BASELINE:
            return compared(rows, framed, (1, 2))
        last = rows.num_columns - 1
        return compared(rows, framed, (last,)).remove_column(last)

    def places(self, frame: DataFrame, shape: ChangeImages) -> DataFrame:
        """Return of a framed plan's frame what `checked` looks at."""
        return frame.select(
            *(("0", "_place") if shape is ChangeImages.BASELINE else ("0", "1", "2"))
        )

    def without_receipts(self, frame: DataFrame, shape: ChangeImages) -> DataFrame:
        """Return a frame of this plan in the shape of every other plan's, unchecked."""
        if not self.framed:
            return frame
        frame = frame.where("`0` is null or `0` >= 0")
        return frame.drop("_place") if shape is ChangeImages.BASELINE else frame

    def probe(
        self, session: SparkSession, paths: Sequence[str], *, baseline: bool = False
    ) -> DataFrame | None:
        """
        Return `_commit` and `_ordinal` of the rows for which an expression raises; one job.

        Of a baseline it is `_place`, file/row number. None where it cannot be told: after a
        frame, or on Spark Connect.
        """
        if self.framed or self._spark.tried(F.lit(1)) is None:
            return None
        shape = ChangeImages.BASELINE if baseline else ChangeImages.MOVES
        frame = session.read.schema(self._read_schema(shape, all_columns=True)).parquet(*paths)
        frame = self._lifted(frame, shape)
        for each in Stages(self._scan, shape, self._tried).bad():
            assert not isinstance(each, FrameStep)
            frame = self._spark.select(frame, self._spark.prepared(each))
        chosen = ["_place"] if baseline else ["_commit", "_ordinal"]
        return frame.where("bad").select(*chosen)

    def conditions(
        self, session: SparkSession, paths: Sequence[str], shape: ChangeImages
    ) -> dict[tuple[int, int], str]:
        """
        Return what rows fail with, each alone, by commit and ordinal; without a job a row.

        Those that it cannot tell of are not in it: none are, where users' functions run.
        """
        found: dict[tuple[int, int], str] = {}
        if self.framed or self.reports_failures:
            return found
        reader = session.read.schema(self._read_schema(shape))
        stages, around = self._prepared(shape)
        for place, row in self._spark.one_by_one(reader.parquet(*paths)):
            try:
                with running():
                    self._spark.plan(self._follow(self._lifted(row, shape), stages, around))
            except RowFailed as error:
                found[place] = str(error.facts["condition"])
        return found

    def _tried(self, column: SparkColumn) -> SparkColumn:
        tried = self._spark.tried(column)
        assert tried is not None
        return tried

    def _prepared(
        self, shape: ChangeImages
    ) -> tuple[tuple[Stage, ...], PreparedExpressions | None]:
        if self._scan.as_text:
            return (self._spark.prepared(self._scan.bound(shape)),), None
        stages = Stages(self._scan, shape)
        prepared = tuple(
            each if isinstance(each, FrameStep) else self._spark.prepared(each)
            for each in stages.projections()
        )
        if not self.framed:
            return prepared, None
        first, last = stages.around
        types: list[DataType] = [each.type for each in self._scan.outputs]
        if shape is ChangeImages.MOVES:
            named = {each.source: each.type for each in self._scan.outputs}
            types += [BooleanType(), *(named[key] for key in self._schema.key)]
        nulls = (F.lit(None).cast(each) for each in types)
        # By place, as a union goes; only what is asked for below has a name.
        tail = [f"{sql} as _failed" for sql in last[:1]] if self.reports_failures else []
        tail += [f"{sql} as _place" for sql in last[len(tail) :]]
        head = [f"{sql} as `{at}`" for at, sql in enumerate(first)]
        return prepared, self._spark.prepared([*head, *nulls, *tail])

    def _follow(
        self, frame: DataFrame, stages: Sequence[Stage], around: PreparedExpressions | None
    ) -> DataFrame:
        base = frame
        for stage, following in zip(stages, [*stages[1:], None], strict=True):
            if isinstance(stage, FrameStep):
                frame = made_by(stage.make, frame.where("_change is not null"), stage.place)
                continue
            if isinstance(following, FrameStep):
                base = frame
            frame = self._spark.select(frame, stage)
        if around is not None:
            return frame.union(self._passed(self._spark.select(base, around)))
        return self._passed(frame) if self.filtered or self.reports_failures else frame

    def _passed(self, frame: DataFrame) -> DataFrame:
        """Return the frame without rows that do not pass: they have no op, and did not fail."""
        failed = " or _failed is not null" if self.reports_failures else ""
        return frame.where(f"`0` is not null{failed}")

    def _lifted(self, frame: DataFrame, shape: ChangeImages) -> DataFrame:
        """Return segments of an older schema in the columns that the plan is for."""
        if self._older is None:
            return frame
        images = ("before", "after") if shape.reads_before else ("after",)
        made = [f"{lifted(image, self._older, self._schema)} as {image}" for image in images]
        positions = [name for name in frame.columns if name not in ("before", "after")]
        return self._spark.select(frame, self._spark.prepared([*positions, *made]))

    def _read_schema(self, shape: ChangeImages, *, all_columns: bool = False) -> StructType:
        if self._older is not None:
            older = set(self._older.names)
            return segment_schema(self._older, older, older if shape.reads_before else None)
        if all_columns or not self._scan.as_text:
            # A `Column` does not tell what it reads; Spark's own pruning has to do.
            every = set(self._schema.names)
            return segment_schema(self._schema, every, every if shape.reads_before else None)
        filters = self._filter_columns()
        before = filters | set(self._schema.key) if shape.reads_before else None
        return segment_schema(self._schema, self._row_columns() | filters, before)

    def _row_columns(self) -> set[str]:
        """Return the source's columns that the row is made of."""
        found = set(self._schema.key)
        for each in self._scan.outputs:
            if each.source is not None:
                found.add(each.source)
            elif each.over is not None:
                found.update(source for _, source in each.over)
            elif not each.is_time:
                return set(self._schema.names)
        return found

    def _filter_columns(self) -> set[str]:
        found = reads(self._scan.filters)
        return set(self._schema.names) if found is None else found


def _output_schema(schema: TableSchema, outputs: Sequence[Output]) -> TableSchema:
    named = {each.source: each.column.name for each in outputs}
    columns = tuple(each.column for each in outputs)
    return TableSchema(schema.table, columns, tuple(named[name] for name in schema.key))
