"""
A user's function, as a column of a plan.

It becomes one Arrow UDF with a struct as argument and result (see `executor_calls`, which runs on
the executors). It is declared to Spark as not deterministic, although it is: Spark moves a
deterministic UDF, and copies it into filters that it pushes down. Then the function would be called
twice for a row.
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


# Headrace may not be installed on executors, so this code is sent with the plan.
cloudpickle.register_pickle_by_value(executor_calls)  # type: ignore[no-untyped-call]


@dataclass(frozen=True, slots=True)
class CallableFunction:
    """A function that Spark can call."""

    function: Function
    made: Any
    """The UDF: a struct of `reads` → a struct of `c0`, `c1`, …, `pass`, `error`."""

    columns: tuple[tuple[str, DataType], ...]
    """The columns that it declares, with Spark's types."""

    given: StructType
    """The columns that it gets."""

    @property
    def leaves_out(self) -> bool:
        """Whether it is a transform that may leave out rows."""
        return bool(self.columns) and not self.function.batch

    def over(self, guard: str) -> Column:
        """Return the result for the columns in scope; null, and not called, unless `guard`."""
        given = F.struct(*(F.col(quoted(name)).alias(name) for name in self.given.names))
        result: Column = self.made(F.when(F.expr(guard), given))
        return result


def called(spark: Spark, function: Function, label: str, in_scope: StructType) -> CallableFunction:
    """Return the function prepared for a plan, or raise `BadFunction`."""
    columns = tuple(
        (name, _declared(spark, name, text, label)) for name, text in function.columns or ()
    )
    arrow = None
    if function.columns is not None:
        arrow = tuple((name, _arrow(type_, name, label)) for name, type_ in columns)
    result = [StructField(f"c{at}", type_) for at, (_, type_) in enumerate(columns)]
    result += [StructField("pass", BooleanType()), StructField("error", StringType())]
    wrapped = executor_calls.caller(
        function.name, _load(function, label), arrow, function.batch, float(function.time_limit)
    )
    made = arrow_udf(wrapped, StructType(result)).asNondeterministic()
    reads = in_scope.names if function.reads is None else function.reads
    return CallableFunction(function, made, columns, StructType([in_scope[name] for name in reads]))


def must_load(spark: Spark, functions: Sequence[CallableFunction]) -> None:
    """Raise `BadFunction` if an executor cannot load one of them; runs one job without rows."""
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
        remedy="Check that executors have the same Python, PySpark and PyArrow as the driver.",
        condition=error.getCondition() or type(error).__name__,
    )


def _load(function: Function, label: str) -> Any:
    if isinstance(function.call, str):
        return executor_calls.imported(function.call)
    try:
        data = cloudpickle.dumps(function.call)  # type: ignore[no-untyped-call]
        return executor_calls.unpickled(data)
    except Exception as error:
        raise BadFunction(
            f"{label}, the function {function.name}, cannot be sent to executors",
            remedy="It must not refer to a session, a lock or an open file. Open them inside the"
            ' function, or name the function by its path: "package.module:name".',
            error=type(error).__name__,
        ) from error


def _declared(spark: Spark, name: str, text: str, label: str) -> DataType:
    """Return the SQL type with this name."""
    found: DataType = NullType()
    with contextlib.suppress(BadExpression), analysing(f"{label}, {name}"):
        frame = spark.empty(StructType([StructField("x", StringType())]))
        # Inside an array, so that the text can only be a type.
        made = frame.select(F.expr(f"cast(null as array<{text}\n>)").alias("x"))
        found = made.schema["x"].dataType.elementType  # type: ignore[attr-defined]
    if isinstance(found, NullType):
        raise BadFunction(
            f"{label}: the type of the column {name} is not a SQL type",
            remedy='Use a type such as "double".',
            type=text,
        )
    return found


def _arrow(type: DataType, name: str, label: str) -> pa.DataType:
    try:
        return arrow_type(type)
    except PySparkException:
        found = type.simpleString()
        raise BadFunction(
            f"{label}: the type of the column {name} has no Arrow type", type=found
        ) from None
