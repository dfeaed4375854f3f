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

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import pyarrow as pa
from pyspark.sql import functions as F
from pyspark.sql.types import BooleanType, DataType, StructType

from headrace.capture.source import SourceTraits
from headrace.changelog.schema import TableSchema
from headrace.errors import RowFailed
from headrace.pipeline.definition import Pipeline
from headrace.pipeline.failures import analysing, running
from headrace.pipeline.framing import compared, made_by
from headrace.pipeline.functions import must_load
from headrace.pipeline.lifting import lifted, same_columns
from headrace.pipeline.outputs import conditions, must_be_sent, reads, transformed
from headrace.pipeline.scan import Framed, Output, Scan, Shape
from headrace.pipeline.session import Prepared, Spark
from headrace.pipeline.shapes import segment_schema
from headrace.pipeline.stages import Stages

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.readwriter import DataFrameReader

Stage: TypeAlias = Prepared | Framed


@dataclass(frozen=True, slots=True)
class Recipe:
    """What makes a frame of segments, as the JVM holds it."""

    reader: DataFrameReader
    stages: tuple[Stage, ...]
    around: Prepared | None = None
    """What goes round a frame's function; None where there is none."""


class Plan:
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
        self._recipes: dict[tuple[Shape, int], Recipe] = {}
        self.output = _output_schema(schema, self._scan.outputs)
        # What only the whole shows is found here, and not by the first batch.
        with analysing("The pipeline"):
            whole = self._lifted(spark.empty(self._read_schema(Shape.MOVES)), Shape.MOVES)
            stages, around = self._prepared(Shape.MOVES)
            self._follow(whole, stages, around)
        must_load(spark, self._scan.calls)

    @property
    def filtered(self) -> bool:
        """Whether some rows may be left out."""
        return self._scan.leaves_out

    @property
    def reports_failures(self) -> bool:
        """Whether a frame's last column is `_failed`: what a user's function raised, as JSON."""
        return bool(self._scan.calls)

    @property
    def framed(self) -> bool:
        """Whether a user's function of a DataFrame is part of it; then rows are `checked`."""
        return self._scan.framed is not None

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

    def frame(self, session: SparkSession, paths: Sequence[str], shape: Shape) -> DataFrame:
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

    def checked(self, rows: pa.Table, shape: Shape) -> pa.Table:
        """
        Return what was collected of a frame, in the shape of every other plan's.

        Raises `BadFrame` where a user's function of a DataFrame lost rows or made more. It
        takes what `places` gives as well, where only that is asked.
        """
        framed = self._scan.framed
        if framed is None:
            return rows
        if shape is not Shape.BASELINE:
            return compared(rows, framed, (1, 2))
        last = rows.num_columns - 1
        return compared(rows, framed, (last,)).remove_column(last)

    def places(self, frame: DataFrame, shape: Shape) -> DataFrame:
        """Return of a framed plan's frame what `checked` looks at."""
        return frame.select(*(("0", "_place") if shape is Shape.BASELINE else ("0", "1", "2")))

    def without_receipts(self, frame: DataFrame, shape: Shape) -> DataFrame:
        """Return a frame of this plan in the shape of every other plan's, unchecked."""
        if not self.framed:
            return frame
        frame = frame.where("`0` is null or `0` >= 0")
        return frame.drop("_place") if shape is Shape.BASELINE else frame

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
        shape = Shape.BASELINE if baseline else Shape.MOVES
        frame = session.read.schema(self._read_schema(shape, all_columns=True)).parquet(*paths)
        frame = self._lifted(frame, shape)
        for each in Stages(self._scan, shape, self._tried).bad():
            assert not isinstance(each, Framed)
            frame = self._spark.select(frame, self._spark.prepared(each))
        chosen = ["_place"] if baseline else ["_commit", "_ordinal"]
        return frame.where("bad").select(*chosen)

    def conditions(
        self, session: SparkSession, paths: Sequence[str], shape: Shape
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

    def _tried(self, column: Column) -> Column:
        tried = self._spark.tried(column)
        assert tried is not None
        return tried

    def _prepared(self, shape: Shape) -> tuple[tuple[Stage, ...], Prepared | None]:
        if self._scan.as_text:
            return (self._spark.prepared(self._scan.bound(shape)),), None
        stages = Stages(self._scan, shape)
        prepared = tuple(
            each if isinstance(each, Framed) else self._spark.prepared(each)
            for each in stages.projections()
        )
        if not self.framed:
            return prepared, None
        first, last = stages.around
        types: list[DataType] = [each.type for each in self._scan.outputs]
        if shape is Shape.MOVES:
            named = {each.source: each.type for each in self._scan.outputs}
            types += [BooleanType(), *(named[key] for key in self._schema.key)]
        nulls = (F.lit(None).cast(each) for each in types)
        # By place, as a union goes; only what is asked for below has a name.
        tail = [f"{sql} as _failed" for sql in last[:1]] if self.reports_failures else []
        tail += [f"{sql} as _place" for sql in last[len(tail) :]]
        head = [f"{sql} as `{at}`" for at, sql in enumerate(first)]
        return prepared, self._spark.prepared([*head, *nulls, *tail])

    def _follow(
        self, frame: DataFrame, stages: Sequence[Stage], around: Prepared | None
    ) -> DataFrame:
        base = frame
        for stage, following in zip(stages, [*stages[1:], None], strict=True):
            if isinstance(stage, Framed):
                frame = made_by(stage.make, frame.where("_change is not null"), stage.place)
                continue
            if isinstance(following, Framed):
                base = frame
            frame = self._spark.select(frame, stage)
        if around is not None:
            return frame.union(self._passed(self._spark.select(base, around)))
        return self._passed(frame) if self.filtered or self.reports_failures else frame

    def _passed(self, frame: DataFrame) -> DataFrame:
        """Return the frame without rows that do not pass: they have no op, and did not fail."""
        failed = " or _failed is not null" if self.reports_failures else ""
        return frame.where(f"`0` is not null{failed}")

    def _lifted(self, frame: DataFrame, shape: Shape) -> DataFrame:
        """Return segments of an older schema in the columns that the plan is for."""
        if self._older is None:
            return frame
        images = ("before", "after") if shape.reads_before else ("after",)
        made = [f"{lifted(image, self._older, self._schema)} as {image}" for image in images]
        positions = [name for name in frame.columns if name not in ("before", "after")]
        return self._spark.select(frame, self._spark.prepared([*positions, *made]))

    def _read_schema(self, shape: Shape, *, all_columns: bool = False) -> StructType:
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
