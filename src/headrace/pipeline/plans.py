"""
The plans of all pipelines, on the Spark that runs now.

A plan lies in the JVM it was made in. Where that died, every batch fails with `SparkGone`
until somebody revives it: then another Spark is taken, and plans are made anew from their
pipelines when they are next asked for. A `Column` cannot be made anew: it was the user who
made it.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, is_dataclass

from headrace.capture.source import SourceTraits
from headrace.changelog.schema import TableSchema
from headrace.errors import BadFrame, SparkGone
from headrace.pipeline.definition import Pipeline
from headrace.pipeline.plan import Plan
from headrace.pipeline.session import Spark


@dataclass(frozen=True, slots=True)
class _Known:
    """A pipeline that was prepared."""

    pipeline: Pipeline
    """Kept, so that its id cannot pass to another one."""

    traits: SourceTraits
    spark: Spark
    """The one it was first prepared on, where its columns live."""

    tag: str


class Plans:
    """Safe to use from several threads; a pipeline from one at a time."""

    def __init__(self, spark: Spark, renew: Callable[[], Spark] | None) -> None:
        self._spark = spark
        self._renew = renew
        self._lock = threading.Lock()
        self._known: dict[int, _Known] = {}
        self._plans: dict[tuple[int, int, TableSchema, TableSchema], Plan] = {}

    @property
    def spark(self) -> Spark:
        """The one in use, dead or alive."""
        return self._spark

    @contextlib.contextmanager
    def alive(self, pipeline: Pipeline) -> Iterator[Spark]:
        """Work with a Spark that runs; whatever goes wrong as it dies is `SparkGone`."""
        spark = self._spark
        if not spark.alive:
            # Not revived here: that takes seconds, in which nobody would be told.
            raise SparkGone("Spark's JVM is dead", pipeline=name_of(pipeline))
        try:
            yield spark
        except SparkGone:
            raise
        except Exception as error:
            if spark.alive:
                raise
            raise SparkGone(
                "Spark's JVM died", error=type(error).__name__, pipeline=name_of(pipeline)
            ) from None

    def know(self, pipeline: Pipeline, traits: SourceTraits) -> None:
        """Take note of a pipeline; again is as once."""
        with self._lock:
            if id(pipeline) not in self._known:
                tag = self._new_tag(pipeline)
                self._known[id(pipeline)] = _Known(pipeline, traits, self._spark, tag)

    def of(
        self,
        spark: Spark,
        pipeline: Pipeline,
        schema: TableSchema,
        written: TableSchema | None = None,
    ) -> Plan:
        """
        Return the plan of a known pipeline over such a table, making it where it is new.

        It reads segments that were `written` with that schema, where it is another one.
        """
        known = self._known[id(pipeline)]
        key = (id(spark), id(pipeline), schema, written or schema)
        if key not in self._plans:
            if known.spark is not spark and _holds_columns(pipeline):
                raise _died_with_it("a column", pipeline)
            try:
                self._plans[key] = Plan(spark, pipeline, schema, known.traits, written)
            except BadFrame:
                if known.spark is spark:
                    raise
                raise _died_with_it("what a function of frames uses", pipeline) from None
        return self._plans[key]

    def forget(self, pipeline: Pipeline) -> None:
        """Let go of a pipeline, its plans and its target."""
        with self._lock:
            if (known := self._known.get(id(pipeline))) is not None and known.pipeline is pipeline:
                del self._known[id(pipeline)]
                # In place: other pipelines are planned meanwhile.
                for key in [key for key in list(self._plans) if key[1] == id(pipeline)]:
                    self._plans.pop(key, None)

    def tag(self, pipeline: Pipeline) -> str:
        """Return what the jobs of a known pipeline are marked with."""
        return self._known[id(pipeline)].tag

    def cancel(self, pipeline: Pipeline) -> None:
        """End the pipeline's jobs. One that is not known has none, nor has a dead Spark."""
        known, spark = self._known.get(id(pipeline)), self._spark
        if known is not None and spark.alive:
            spark.cancel(known.tag)

    def revive(self) -> bool:
        """Take another Spark in place of a dead one; return whether one runs now."""
        with self._lock:
            if not self._spark.alive and self._renew is not None:
                self._spark = self._renew()
                self._plans.clear()
            return self._spark.alive

    def _new_tag(self, pipeline: Pipeline) -> str:
        """Return a tag that no other pipeline has; Spark allows no comma in it."""
        taken = {known.tag for known in self._known.values()}
        tag = stem = f"headrace-{name_of(pipeline)}".replace(",", "_")
        number = 1
        while tag in taken:
            number += 1
            tag = f"{stem}-{number}"
        return tag


def name_of(pipeline: Pipeline) -> str:
    """Return what a pipeline is called in errors and job descriptions."""
    return pipeline.name or (*pipeline.tables, *pipeline.patterns)[0]


def _died_with_it(what: str, pipeline: Pipeline) -> SparkGone:
    return SparkGone(
        f"Spark's JVM died, and with it {what} that this pipeline was given",
        remedy="Give the expression as SQL text, which outlives a JVM; or make the pipeline anew"
        " and restart the engine.",
        pipeline=name_of(pipeline),
    )


def _holds_columns(step: object) -> bool:
    """Whether something of a JVM is among a pipeline's steps, at any depth."""
    from pyspark.sql import Column

    if isinstance(step, Pipeline):
        return _holds_columns((step.filters, step.transforms))
    if isinstance(step, tuple):
        return any(_holds_columns(each) for each in step)
    if is_dataclass(step) and not isinstance(step, type):
        return any(_holds_columns(getattr(step, field.name)) for field in fields(step))
    return isinstance(step, Column)
