"""
A user's function, as a column of a plan.

It becomes one Arrow UDF, struct in and struct out (see `executor_calls`, which is what runs on
the executors). To Spark it is declared as not deterministic, although it is: Spark moves a
deterministic one about, and copies it into the filters it pushes down; then the function is
called twice for a row.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.errors import PySparkException
from pyspark.sql import functions as F
from pyspark.sql.functions import arrow_udf  # type: ignore[attr-defined]
from pyspark.sql.types import BooleanType, NullType, StringType, StructField, StructType

from headrace.errors import BadExpression, BadFunction
from headrace.pipeline.plan import executor_calls
from headrace.pipeline.plan.types import arrow_type
from headrace.pipeline.sql import quoted
from headrace.pipeline.steps import Function
from headrace.spark_session.errors import analysing, bad_function
from headrace.spark_session.jvm import quietly
from headrace.spark_session.session import Spark

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import DataType


# Executors may have no Headrace, so what runs there goes with the plan.
cloudpickle.register_pickle_by_value(executor_calls)  # type: ignore[no-untyped-call]


@dataclass(frozen=True, slots=True)
class CallableFunction:
    """A function that Spark can call."""

    function: Function
    made: Any
    """The UDF: a struct of `reads` → a struct of `c0`, `c1`, …, `pass`, `error`."""

    columns: tuple[tuple[str, DataType], ...]
    """What it declares, in Spark's types."""

    given: StructType
    """The columns it is shown."""

    @property
    def leaves_out(self) -> bool:
        """Whether it is a transform that may leave rows out."""
        return bool(self.columns) and not self.function.batch

    def over(self, guard: str) -> Column:
        """Return the result for the columns in sight; null, and not called, unless `guard`."""
        given = F.struct(*(F.col(quoted(name)).alias(name) for name in self.given.names))
        result: Column = self.made(F.when(F.expr(guard), given))
        return result


def called(spark: Spark, function: Function, place: str, in_sight: StructType) -> CallableFunction:
    """Return the function ready for a plan, or raise `BadFunction`."""
    columns = tuple(
        (name, _declared(spark, name, text, place)) for name, text in function.columns or ()
    )
    arrow = None
    if function.columns is not None:
        arrow = tuple((name, _arrow(type_, name, place)) for name, type_ in columns)
    result = [StructField(f"c{at}", type_) for at, (_, type_) in enumerate(columns)]
    result += [StructField("pass", BooleanType()), StructField("error", StringType())]
    wrapped = executor_calls.caller(
        function.name, _load(function, place), arrow, function.batch, float(function.time_limit)
    )
    made = arrow_udf(wrapped, StructType(result)).asNondeterministic()
    reads = in_sight.names if function.reads is None else function.reads
    return CallableFunction(function, made, columns, StructType([in_sight[name] for name in reads]))


def must_load(spark: Spark, functions: Sequence[CallableFunction]) -> None:
    """Raise `BadFunction` unless an executor can load each of them: one job, without rows."""
    if not functions:
        return
    columns = [each.made(F.lit(None).cast(each.given)) for each in functions]
    try:
        with quietly():
            spark.small.range(1).select(*columns).toArrow()
    except PySparkException as error:
        raise (bad_function(error) or _unknown(error)) from None


def _unknown(error: PySparkException) -> BadFunction:
    return BadFunction(
        "A function cannot be started on an executor",
        remedy="Check that executors have the same Python, PySpark and PyArrow as here.",
        condition=error.getCondition() or type(error).__name__,
    )


def _load(function: Function, place: str) -> Any:
    if isinstance(function.call, str):
        return executor_calls.imported(function.call)
    try:
        data = cloudpickle.dumps(function.call)  # type: ignore[no-untyped-call]
        return executor_calls.unpickled(data)
    except Exception as error:
        raise BadFunction(
            f"{place}, the function {function.name}, cannot be sent to executors",
            remedy="It may not hold a session, a lock, an open file; open them inside, or give"
            ' the function by its place: "package.module:name".',
            error=type(error).__name__,
        ) from error


def _declared(spark: Spark, name: str, text: str, place: str) -> DataType:
    """Return the type that SQL knows by this text."""
    found: DataType = NullType()
    with contextlib.suppress(BadExpression), analysing(f"{place}, {name}"):
        frame = spark.empty(StructType([StructField("x", StringType())]))
        # Within an array, so that the text can be nothing but a type.
        made = frame.select(F.expr(f"cast(null as array<{text}\n>)").alias("x"))
        found = made.schema["x"].dataType.elementType  # type: ignore[attr-defined]
    if isinstance(found, NullType):
        raise BadFunction(
            f"{place}, {name}, has no type that SQL knows", remedy='Such as "double".', type=text
        )
    return found


def _arrow(type: DataType, name: str, place: str) -> pa.DataType:
    try:
        return arrow_type(type)
    except PySparkException:
        found = type.simpleString()
        raise BadFunction(f"{place}, {name}, has a type without Arrow form", type=found) from None
