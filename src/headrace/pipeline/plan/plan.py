"""
Plans: from a pipeline's definition to DataFrames over segments.

A plan is made once for a pipeline and a version of its table: Spark analyses every expression, what
is not deterministic is refused, and the projections are sent to the JVM. A batch then takes three
round trips to plan.

The index knows which changes a batch contains, so a plan reads no more than necessary: without
filters an insert or update needs no image before, and an old key is read only if keys changed.

A plan is made for the newest schema of its table. Segments that were written before the table was
altered are upgraded to it as they are read. Columns are identified by their ids: a renamed column
is found, a dropped one is left out, and a new one has the value that the source defines for older
rows (R23b).

The transforms are analysed in order, each over the columns that are in scope after the previous
one. The result is the list of output columns, each with its origin.

A plan exists in the JVM in which it was made; `runner` makes it again if that died.

Long because the frame of a batch, the search for its failing rows and their direct evaluation are
all of one plan.
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
from headrace.spark_session.direct import Evaluator
from headrace.spark_session.errors import analysing, running
from headrace.spark_session.session import PreparedExpressions, Spark

if TYPE_CHECKING:
    from pyspark.sql import Column as SparkColumn
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.readwriter import DataFrameReader


# --- rows of an older schema in the columns of the newest -----------------------------------------


def same_columns(one: TableSchema, other: TableSchema) -> bool:
    """Return whether rows of one schema can be read with the other without an upgrade."""
    return [(c.field, c.name, c.type) for c in one.columns] == [
        (c.field, c.name, c.type) for c in other.columns
    ]


def upgraded(image: str, old: TableSchema, new: TableSchema) -> str:
    """Return SQL that converts an image of the old schema to the new one; null stays null."""
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


# --- filters and transforms, analysed by Spark ----------------------------------------------------


def conditions(spark: Spark, pipeline: Pipeline, schema: TableSchema) -> Iterator[Condition]:
    """Yield the analysed filters; raise `BadExpression` or `BadFunction`."""
    rows = row_schema(schema)
    for number, each in enumerate(pipeline.filters, 1):
        label = f"Filter {number}"
        match each:
            case Where(condition):
                found = analyse(spark, spark.empty(rows), condition, label)
                yield must_be_boolean(found, label)
            case Function():
                yield called(spark, each, label, rows)
            case Regex(_, pattern):
                with analysing(label):
                    # Spark parses a pattern only when it is used; it would fail on a row.
                    spark.small.sql(f"select '' rlike {text_literal(pattern)}").collect()
                yield each
            case _:
                yield each


def must_be_sent(filters: Iterable[Condition], schema: TableSchema) -> None:
    """Raise `UnsentColumn` for a filter that may read a column that may be missing (R21)."""
    unsent = {column.name for column in schema.columns if column.may_be_unsent}
    for number, each in enumerate(filters, 1):
        names = reads([each])
        if hit := unsent if names is None else unsent & names:
            raise unsent_column(f"Filter {number}", hit, schema.table, surely=names is not None)


@dataclass
class VisibleColumns:
    """The columns in scope, from transform to transform."""

    spark: Spark
    schema: TableSchema
    outputs: list[Output] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    read: set[str] = field(default_factory=set)
    """The source's columns that some step reads, even if its result is dropped later."""

    _field: int = 0

    def __post_init__(self) -> None:
        self.outputs = [
            Output(column, field.dataType, column.name)
            for column, field in zip(self.schema.columns, row_schema(self.schema), strict=True)
        ]
        # Computed columns get ids after those of the source's columns.
        self._field = max(column.field for column in self.schema.columns)

    def follow(self, transform: Transform, label: str) -> None:
        """Apply one transform; raises what `PreparedPipeline.output` raises."""
        match transform:
            case Drop(names):
                self.outputs = [each for each in self.outputs if each.column.name not in names]
                self.steps.append(transform)
            case Rename(names):
                self.outputs = [_renamed(each, dict(names)) for each in self.outputs]
                self.steps.append(transform)
            case Derive(columns):
                self._derive(columns, label)
            case Mask(fields, keep, with_):
                for each in self.outputs:
                    if each.column.name in fields and not isinstance(each.type, StringType):
                        raise not_text(each.column.name, each.type.simpleString(), label)
                self._derive([(name, masked(quoted(name), keep, with_)) for name in fields], label)
            case Timestamp(name, of):
                made = self._new(name, TimestampType(), label)
                self._put([replace(made, time_of=of)])
                self.steps.append(transform)
            case Function():
                self._call(transform, label)
            case Frame(make):
                self._frame(make, label)

    def scope(self) -> Scope:
        """Return the columns in scope, for the checks in `check_steps`."""
        types = {each.column.name: each.column.type for each in self.outputs}
        key = frozenset(each.column.name for each in self._keys())
        return Scope(types, key, framed=any(isinstance(each, FrameStep) for each in self.steps))

    def _derive(self, columns: Sequence[tuple[str, Expression]], label: str) -> None:
        frame = self.spark.empty(self._in_scope())
        made = []
        for name, expression in columns:
            found = analyse(self.spark, frame, expression, f"{label}, {name}")
            self._look_at(found.names, f"{label}, {name}")
            column = self._new(name, found.type, f"{label}, {name}")
            over = None if found.names is None else self._sources(found.names)
            made.append(replace(column, derived=found, over=over))
        self._put(made)
        self.steps.append(Derive(tuple(columns)))

    def _call(self, function: Function, label: str) -> None:
        found = called(self.spark, function, label, self._in_scope())
        self._look_at(found.given.names, label)
        over = self._sources(found.given.names)
        self._put(
            [
                replace(self._new(name, type_, f"{label}, {name}"), over=over)
                for name, type_ in found.columns
            ]
        )
        self.steps.append(found)

    def _frame(self, make: FrameFunction, label: str) -> None:
        self._look_at(None, label)
        key = {each.column.name: each.type for each in self._keys()}
        made = columns_made(self.spark, make, self._in_scope(), key, label)
        before = {each.column.name: each for each in self.outputs}
        outputs = []
        for field_ in made:
            same = before.get(field_.name)
            if field_.name in key and same is not None:
                outputs.append(same)
            elif same is not None and same.type == field_.dataType:
                # A column with the same name and type counts as the same column.
                outputs.append(Output(same.column, same.type))
            else:
                outputs.append(self._new(field_.name, field_.dataType, f"{label}, {field_.name}"))
        self.steps.append(FrameStep(make, label, tuple(self.outputs), tuple(made.names)))
        self.outputs = outputs

    def _look_at(self, names: Iterable[str] | None, label: str) -> None:
        """Note what a step reads (None: all in scope); raise if that may be missing (R21)."""
        wanted = None if names is None else set(names)
        seen = {
            each.column.name: self.schema.column(each.source)
            for each in self.outputs
            if each.source is not None and (wanted is None or each.column.name in wanted)
        }
        if unsent := [name for name, column in seen.items() if column.may_be_unsent]:
            raise unsent_column(label, unsent, self.schema.table, surely=wanted is not None)
        self.read.update(column.name for column in seen.values())

    def _keys(self) -> list[Output]:
        """Return the key's columns, in the key's order."""
        named = {each.source: each for each in self.outputs}
        return [named[name] for name in self.schema.key]

    def _new(self, name: str, type: DataType, label: str) -> Output:
        self._field += 1
        return Output(Column(name, value_type(type, label), self._field), type)

    def _put(self, made: Iterable[Output]) -> None:
        """Replace columns of the same name, and add the others at the end."""
        new = {each.column.name: each for each in made}
        placed = [new.pop(each.column.name, each) for each in self.outputs]
        self.outputs = [*placed, *new.values()]

    def _sources(self, names: Iterable[str]) -> tuple[tuple[str, str], ...] | None:
        """Return the source column of each of these names; None if one is computed."""
        named = {each.column.name: each.source for each in self.outputs}
        sources = []
        for name in sorted(names):
            source = named[name]
            if source is None:
                return None
            sources.append((name, source))
        return tuple(sources)

    def _in_scope(self) -> StructType:
        return StructType([StructField(each.column.name, each.type) for each in self.outputs])


def transformed(spark: Spark, pipeline: Pipeline, schema: TableSchema) -> VisibleColumns:
    """Apply all transforms of a pipeline."""
    made = VisibleColumns(spark, schema)
    framed = False
    for number, transform in enumerate(pipeline.transforms, 1):
        label = f"Transform {number}"
        if framed:
            # The columns after a frame are known only now.
            _, errors = made.scope().after(transform, label)
            if errors:
                raise errors[0]
        made.follow(transform, label)
        framed = framed or isinstance(transform, Frame)
    return made


def value_type(type: DataType, label: str) -> ValueType:
    """Return the log's type for a Spark type."""
    if type.typeName() == "void":
        raise BadExpression(
            f"{label} is always null and has no type; write for example cast(null as int)"
        )
    with analysing(label):
        return ValueType.of_arrow(arrow_type(type))


def reads(filters: Iterable[Condition]) -> set[str] | None:
    """Return the source's columns that the filters read; None if that is not known."""
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
    """The prepared parts, in the JVM, from which a frame over segments is made."""

    reader: DataFrameReader
    stages: tuple[Stage, ...]
    bypass: PreparedExpressions | None = None
    """The projection that bypasses a frame's function; None if there is no frame."""


class PipelinePlan:
    """The plan of a pipeline for one version of its table's schema."""

    def __init__(
        self,
        spark: Spark,
        pipeline: Pipeline,
        schema: TableSchema,
        traits: SourceTraits,
        written: TableSchema | None = None,
    ) -> None:
        """Analyse the steps; segments may be `written` with an older schema than the plan's."""
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
        """Whether rows may be left out."""
        self.reports_failures = bool(self._scan.calls)
        """Whether a frame's last column is `_failed`: the exception of a function, as JSON."""
        self.framed = self._scan.framed is not None
        """Whether it has a user's function of a DataFrame; then rows are `checked`."""
        self._recipes: dict[tuple[ChangeImages, int], Recipe] = {}
        self._evaluators: dict[ChangeImages | None, Evaluator | None] = {}
        """What computes small batches, by shape; under None, what finds their failing rows."""
        self.output = _output_schema(schema, self._scan.outputs)
        # Errors that only the whole plan shows are found here, not in the first batch.
        with analysing("The pipeline"):
            whole = self._upgraded(
                spark.empty(self._read_schema(ChangeImages.MOVES)), ChangeImages.MOVES
            )
            stages, bypass = self._prepared(ChangeImages.MOVES)
            self._follow(whole, stages, bypass)
        must_load(spark, self._scan.calls)

    @property
    def fields(self) -> frozenset[int]:
        """The ids of the source's columns that the result depends on."""
        names = self._row_columns() | self._filter_columns()
        return frozenset(self._schema.column(name).field for name in names)

    @property
    def needs(self) -> frozenset[int]:
        """The ids of the source's columns that it reads or passes on: all except dropped ones."""
        names = {each.source for each in self._scan.outputs if each.source is not None}
        names |= self._read | self._filter_columns() | set(self._schema.key)
        return frozenset(self._schema.column(name).field for name in names)

    def frame(self, session: SparkSession, paths: Sequence[str], shape: ChangeImages) -> DataFrame:
        """
        Return the frame over these segments; its columns are identified by index, not by name.

        With `reports_failures` the last column is `_failed`: null, or JSON with `function`,
        `error` and `message`, and for a baseline `place` (file/row number). Rows that failed
        are included whatever the filters say, and may have no op. With `framed` it also has
        receipts, and for a baseline one more column: pass the collected rows to `checked`, or
        remove the receipts with `without_receipts`.
        """
        key = (shape, id(session))
        recipe = self._recipes.get(key)
        if recipe is None:
            reader = session.read.schema(self._read_schema(shape))
            recipe = self._recipes[key] = Recipe(reader, *self._prepared(shape))
        frame = self._upgraded(recipe.reader.parquet(*paths), shape)
        return self._follow(frame, recipe.stages, recipe.bypass)

    def checked(self, rows: pa.Table, shape: ChangeImages) -> pa.Table:
        """
        Return the collected rows of a frame without receipts, as from every other plan.

        Raises `BadFrame` if a user's function of a DataFrame lost or added rows. The rows of
        `row_references` are enough for the check.
        """
        if not self.framed:
            return rows
        framed = self._scan.framed
        assert framed is not None
        if shape is not ChangeImages.BASELINE:
            return compared(rows, framed, (1, 2))
        last = rows.num_columns - 1
        return compared(rows, framed, (last,)).remove_column(last)

    def row_references(self, frame: DataFrame, shape: ChangeImages) -> DataFrame:
        """Return the columns of a framed plan's frame that `checked` needs."""
        return frame.select(
            *(("0", "_place") if shape is ChangeImages.BASELINE else ("0", "1", "2"))
        )

    def without_receipts(self, frame: DataFrame, shape: ChangeImages) -> DataFrame:
        """Return a frame of this plan without receipts, as from every other plan, unchecked."""
        if not self.framed:
            return frame
        frame = frame.where("`0` is null or `0` >= 0")
        return frame.drop("_place") if shape is ChangeImages.BASELINE else frame

    def probe(
        self, session: SparkSession, paths: Sequence[str], *, baseline: bool = False
    ) -> DataFrame | None:
        """
        Return `_commit` and `_ordinal` of the rows for which an expression raises; one job.

        For a baseline, return `_place` (file/row number). `bad`, the last column, is the first
        such expression, as JSON with `step` and, for a transform, `column`. None if that is not
        possible: after a frame, or with Spark Connect.
        """
        if self.framed or self._spark.tried(F.lit(1)) is None:
            return None
        shape = ChangeImages.BASELINE if baseline else ChangeImages.MOVES
        frame = session.read.schema(self._read_schema(shape, all_columns=True)).parquet(*paths)
        return self._bad(frame, shape)

    def evaluator(self, shape: ChangeImages) -> Evaluator | None:
        """Return what computes small batches as `frame` would, without a job; None if jobs must."""
        if self._spark.direct is None or self.framed or self.reports_failures:
            return None
        if self._needs_evaluator(shape):
            schema = self._read_schema(shape)
            source = self._spark.direct.source(schema)
            frame = self._follow(self._upgraded(source, shape), *self._prepared(shape))
            self._evaluators[shape] = self._spark.direct.evaluator(frame, schema)
        return self._evaluators[shape]

    def probe_evaluator(self) -> Evaluator | None:
        """Return what computes small batches as `probe` would; None as for `evaluator`."""
        if self._spark.direct is None or self.framed or self.reports_failures:
            return None
        if self._needs_evaluator(None):
            schema = self._read_schema(ChangeImages.MOVES, all_columns=True)
            frame = self._bad(self._spark.direct.source(schema), ChangeImages.MOVES)
            self._evaluators[None] = self._spark.direct.evaluator(frame, schema)
        return self._evaluators[None]

    def cancel(self) -> None:
        """End a direct call that is waited for; from any thread."""
        for evaluator in list(self._evaluators.values()):
            if evaluator is not None:
                evaluator.cancel()

    def close(self) -> None:
        """Release the evaluators."""
        for evaluator in self._evaluators.values():
            if evaluator is not None:
                evaluator.close()
        self._evaluators.clear()

    def conditions(
        self, session: SparkSession, paths: Sequence[str], shape: ChangeImages
    ) -> dict[tuple[int, int], str]:
        """
        Return the condition with which each row fails alone, without a job for each row.

        Keys are commit and ordinal. Rows whose condition is not known are missing; with users'
        functions that is all of them.
        """
        found: dict[tuple[int, int], str] = {}
        if self.framed or self.reports_failures:
            return found
        reader = session.read.schema(self._read_schema(shape))
        stages, bypass = self._prepared(shape)
        for reference, row in self._spark.one_by_one(reader.parquet(*paths)):
            try:
                with running():
                    self._spark.plan(self._follow(self._upgraded(row, shape), stages, bypass))
            except RowFailed as error:
                found[reference] = str(error.facts["condition"])
        return found

    def _needs_evaluator(self, shape: ChangeImages | None) -> bool:
        if shape not in self._evaluators:
            return True
        found = self._evaluators[shape]
        return found is not None and not found.usable

    def _bad(self, frame: DataFrame, shape: ChangeImages) -> DataFrame:
        """Return the search for rows that raise, over segments; see `probe`."""
        frame = self._upgraded(frame, shape)
        for each in Stages(self._scan, shape, self._tried).bad():
            assert not isinstance(each, FrameStep)
            frame = self._spark.select(frame, self._spark.prepared(each))
        chosen = ["_place"] if shape is ChangeImages.BASELINE else ["_commit", "_ordinal"]
        return frame.where("bad is not null").select(*chosen, "bad")

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
        first, last = stages.bypass
        types: list[DataType] = [each.type for each in self._scan.outputs]
        if shape is ChangeImages.MOVES:
            named = {each.source: each.type for each in self._scan.outputs}
            types += [BooleanType(), *(named[key] for key in self._schema.key)]
        nulls = (F.lit(None).cast(each) for each in types)
        # By index, as in a union; only columns that are used below have a name.
        tail = [f"{sql} as _failed" for sql in last[:1]] if self.reports_failures else []
        tail += [f"{sql} as _place" for sql in last[len(tail) :]]
        head = [f"{sql} as `{at}`" for at, sql in enumerate(first)]
        return prepared, self._spark.prepared([*head, *nulls, *tail])

    def _follow(
        self, frame: DataFrame, stages: Sequence[Stage], bypass: PreparedExpressions | None
    ) -> DataFrame:
        base = frame
        for stage, following in zip(stages, [*stages[1:], None], strict=True):
            if isinstance(stage, FrameStep):
                frame = made_by(stage.make, frame.where("_change is not null"), stage.label)
                continue
            if isinstance(following, FrameStep):
                base = frame
            frame = self._spark.select(frame, stage)
        if bypass is not None:
            return frame.union(self._passed(self._spark.select(base, bypass)))
        return self._passed(frame) if self.filtered or self.reports_failures else frame

    def _passed(self, frame: DataFrame) -> DataFrame:
        """Return the frame without rows that do not pass: those without op that did not fail."""
        failed = " or _failed is not null" if self.reports_failures else ""
        return frame.where(f"`0` is not null{failed}")

    def _upgraded(self, frame: DataFrame, shape: ChangeImages) -> DataFrame:
        """Return segments of an older schema with the columns of the plan's schema."""
        if self._older is None:
            return frame
        images = ("before", "after") if shape.reads_before else ("after",)
        made = [f"{upgraded(image, self._older, self._schema)} as {image}" for image in images]
        positions = [name for name in frame.columns if name not in ("before", "after")]
        return self._spark.select(frame, self._spark.prepared([*positions, *made]))

    def _read_schema(self, shape: ChangeImages, *, all_columns: bool = False) -> StructType:
        captured = self._scan.captured
        if self._older is not None:
            older = set(self._older.names)
            before_ = older if shape.reads_before else None
            return segment_schema(self._older, older, before_, captured=captured)
        if all_columns or not self._scan.as_text:
            # A `Column` does not show what it reads, so rely on Spark's own pruning.
            every = set(self._schema.names)
            before_ = every if shape.reads_before else None
            return segment_schema(self._schema, every, before_, captured=captured)
        filters = self._filter_columns()
        before = filters | set(self._schema.key) if shape.reads_before else None
        after = self._row_columns() | filters
        return segment_schema(self._schema, after, before, captured=captured)

    def _row_columns(self) -> set[str]:
        """Return the source's columns from which the row is computed."""
        found = set(self._schema.key)
        for each in self._scan.outputs:
            if each.source is not None:
                found.add(each.source)
            elif each.over is not None:
                found.update(source for _, source in each.over)
            elif each.time_of is None:
                return set(self._schema.names)
        return found

    def _filter_columns(self) -> set[str]:
        found = reads(self._scan.filters)
        return set(self._schema.names) if found is None else found


def _output_schema(schema: TableSchema, outputs: Sequence[Output]) -> TableSchema:
    named = {each.source: each.column.name for each in outputs}
    columns = tuple(each.column for each in outputs)
    return TableSchema(schema.table, columns, tuple(named[name] for name in schema.key))
