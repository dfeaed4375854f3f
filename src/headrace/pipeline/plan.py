"""
From a pipeline's definition to frames over segments.

A plan is made once for a pipeline and a version of its table: Spark analyses every
expression, what could differ from run to run is refused, and the projections are sent to
the JVM. A batch then takes three round trips to plan.

A batch knows from the index which changes it holds, so a plan reads no more than it must:
without filters an insert or update needs no before image, and an old key is asked for
only where keys changed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import StructField, StructType

from headrace.capture.source import SourceTraits
from headrace.changelog.schema import Column, TableSchema
from headrace.changelog.values import ValueType
from headrace.errors import BadExpression
from headrace.pipeline.definition import Derive, Drop, Equals, Pipeline, Rename, Where
from headrace.pipeline.expressions import Analysed, analyse, must_be_boolean
from headrace.pipeline.failures import analysing
from headrace.pipeline.scan import Output, Scan, Shape
from headrace.pipeline.session import Prepared, Spark
from headrace.pipeline.shapes import row_schema, segment_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.readwriter import DataFrameReader


@dataclass(frozen=True, slots=True)
class Recipe:
    """What makes a frame of segments, as the JVM holds it."""

    reader: DataFrameReader
    projections: tuple[Prepared, ...]


class Plan:
    """A pipeline over one version of its table's schema."""

    def __init__(
        self, spark: Spark, pipeline: Pipeline, schema: TableSchema, traits: SourceTraits
    ) -> None:
        if errors := pipeline.check(schema):
            raise errors[0]
        self._spark = spark
        self._schema = schema
        self._scan = Scan(
            pipeline,
            schema,
            tuple(_filters(spark, pipeline, schema)),
            tuple(_outputs(spark, pipeline, schema)),
            traits.inserts_replace,
        )
        self._recipes: dict[tuple[Shape, int], Recipe] = {}
        self.output = _output_schema(schema, self._scan.outputs)
        # What only the whole shows is found here, and not by the first batch.
        with analysing("The pipeline"):
            whole = spark.empty(self._read_schema(Shape.MOVES))
            self._follow(whole, self._prepared(Shape.MOVES))

    @property
    def filtered(self) -> bool:
        """Whether some rows may be left out."""
        return bool(self._scan.filters)

    @property
    def fields(self) -> frozenset[int]:
        """The ids of the source's columns that the result depends on."""
        names = self._row_columns() | self._filter_columns()
        return frozenset(self._schema.column(name).field for name in names)

    def frame(self, session: SparkSession, paths: Sequence[str], shape: Shape) -> DataFrame:
        """Return the frame over these segments; its columns are by place, not by name."""
        key = (shape, id(session))
        recipe = self._recipes.get(key)
        if recipe is None:
            reader = session.read.schema(self._read_schema(shape))
            recipe = self._recipes[key] = Recipe(reader, self._prepared(shape))
        return self._follow(recipe.reader.parquet(*paths), recipe.projections)

    def _prepared(self, shape: Shape) -> tuple[Prepared, ...]:
        return tuple(self._spark.prepared(each) for each in self._scan.projections(shape))

    def _follow(self, frame: DataFrame, projections: tuple[Prepared, ...]) -> DataFrame:
        for projection in projections:
            frame = self._spark.select(frame, projection)
        # A row that does not pass has no op, and only filters make such rows.
        return frame.where("`0` is not null") if self.filtered else frame

    def _read_schema(self, shape: Shape) -> StructType:
        if not self._scan.as_text:
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
            elif each.over is None:
                return set(self._schema.names)
            else:
                found.update(source for _, source in each.over)
        return found

    def _filter_columns(self) -> set[str]:
        found: set[str] = set()
        for each in self._scan.filters:
            names = {each.field} if isinstance(each, Equals) else each.names
            if names is None:
                return set(self._schema.names)
            found |= names
        return found


def _filters(spark: Spark, pipeline: Pipeline, schema: TableSchema) -> Iterator[Equals | Analysed]:
    frame = spark.empty(row_schema(schema))
    for number, each in enumerate(pipeline.filters, 1):
        if isinstance(each, Where):
            place = f"Filter {number}"
            yield must_be_boolean(analyse(spark, frame, each.condition, place), place)
        else:
            yield each


def _outputs(spark: Spark, pipeline: Pipeline, schema: TableSchema) -> list[Output]:
    """Return the columns of the result, analysing each derived one where it stands."""
    outputs = [Output(column, column.name) for column in schema.columns]
    field = max(column.field for column in schema.columns)
    for number, transform in enumerate(pipeline.transforms, 1):
        match transform:
            case Drop(names):
                outputs = [each for each in outputs if each.column.name not in names]
            case Rename(names):
                outputs = [_renamed(each, dict(names)) for each in outputs]
            case Derive(columns):
                frame = spark.empty(_in_sight(outputs, schema))
                made = []
                for name, expression in columns:
                    place = f"Transform {number}, {name}"
                    found = analyse(spark, frame, expression, place)
                    # Derived columns are numbered behind the source's own.
                    field += 1
                    column = Column(name, _value_type(found, place), field)
                    made.append(Output(column, None, found, _sources(found, outputs)))
                outputs = _placed(outputs, made)
    return outputs


def _output_schema(schema: TableSchema, outputs: Sequence[Output]) -> TableSchema:
    named = {each.source: each.column.name for each in outputs}
    columns = tuple(each.column for each in outputs)
    return TableSchema(schema.table, columns, tuple(named[name] for name in schema.key))


def _renamed(output: Output, names: dict[str, str]) -> Output:
    name = output.column.name
    return replace(output, column=replace(output.column, name=names.get(name, name)))


def _placed(outputs: list[Output], made: list[Output]) -> list[Output]:
    """Return the columns with derived ones in place of their namesakes, or at the end."""
    new = {each.column.name: each for each in made}
    placed = [new.pop(each.column.name, each) for each in outputs]
    return [*placed, *new.values()]


def _sources(found: Analysed, outputs: list[Output]) -> tuple[tuple[str, str], ...] | None:
    """Return which source column each name is that the expression uses."""
    if found.names is None:
        return None
    named = {each.column.name: each.source for each in outputs}
    sources = []
    for name in sorted(found.names):
        source = named[name]
        if source is None:
            return None
        sources.append((name, source))
    return tuple(sources)


def _value_type(found: Analysed, place: str) -> ValueType:
    """Return the log's type for what an expression gives."""
    if found.type.typeName() == "void":
        raise BadExpression(f"{place} is always null; give it a type: cast(null as int)")
    with analysing(place):
        return ValueType.of_arrow(to_arrow_type(found.type, timezone="UTC"))


def _in_sight(outputs: list[Output], schema: TableSchema) -> StructType:
    types = {field.name: field.dataType for field in row_schema(schema)}
    return StructType(
        [
            StructField(
                each.column.name,
                types[each.source or ""] if each.derived is None else each.derived.type,
            )
            for each in outputs
        ]
    )
