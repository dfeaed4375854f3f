"""
A user's function of a DataFrame, and the check of its result.

It must return one row for each row that it gets. The plan does not show whether it does: whether a
join loses rows depends on the rows. So every change that goes into the function also bypasses it as
a receipt, and the two are compared after they are collected.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import PySparkException
from pyspark.sql import types as t

from headrace.changelog.change import Op
from headrace.errors import BadFrame, HeadraceError
from headrace.pipeline.check_steps import OURS
from headrace.pipeline.plan.expressions import must_repeat
from headrace.pipeline.plan.projection import FrameStep
from headrace.pipeline.plan.stages import OTHER_KEY, RECEIPT
from headrace.pipeline.steps import FrameFunction
from headrace.spark_session.errors import bad_expression
from headrace.spark_session.jvm import quietly
from headrace.spark_session.session import Spark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


_KEPT = "It must return one row for each change"


def made_by(make: FrameFunction, given: DataFrame, label: str) -> DataFrame:
    """Return the function's result for a frame; an exception becomes `BadFrame`."""
    try:
        with quietly():
            made = make(given)
    except HeadraceError:
        raise
    except PySparkException as error:
        raise BadFrame(bad_expression(label, error).message, error=type(error).__name__) from None
    except Exception as error:
        raise BadFrame(
            f"{label}, frame: the function raised an exception",
            remedy="Fix the function. Its exception is the cause of this error.",
            error=type(error).__name__,
        ) from error
    # By name: a frame of Spark Connect has another class.
    if not any(base.__name__ == "DataFrame" for base in type(made).__mro__):
        kind = type(made).__name__
        raise BadFrame(f"{label}, frame, must return a DataFrame, not {kind}", type=kind)
    return made


def columns_made(
    spark: Spark,
    make: FrameFunction,
    in_scope: t.StructType,
    key: Mapping[str, t.DataType],
    label: str,
) -> t.StructType:
    """Return the columns of the function's result, without ours, or raise `BadFrame`."""
    given = t.StructType([*in_scope, *_ours(key)])
    made = made_by(make, spark.empty(given), label)
    try:
        with quietly():
            found = made.schema
            must_repeat(spark, made, label)
    except PySparkException as error:
        raise BadFrame(bad_expression(label, error).message) from None
    if twice := [name for name, count in Counter(found.names).items() if count > 1]:
        raise BadFrame(
            f"{label}, frame: the function returned several columns with the name {twice[0]}",
            remedy='Join by name, df.join(dim, "id", "left"), or drop one of them.',
            column=twice[0],
        )
    for field in (*_ours(key), *(t.StructField(name, type_) for name, type_ in key.items())):
        if field.name not in found.names:
            what = "column" if field.name in OURS else "key column"
            raise BadFrame(f"{label}, frame, lost the {what} {field.name}", column=field.name)
        if (type_ := found[field.name].dataType) != field.dataType:
            raise BadFrame(
                f"{label}, frame: the function gave the column {field.name} another type",
                column=field.name,
                type=type_.simpleString(),
            )
    return t.StructType([field for field in found if field.name not in OURS])


def compared(rows: pa.Table, framed: FrameStep, by: Sequence[int]) -> pa.Table:
    """
    Return the rows without receipts, or raise `BadFrame` if rows and receipts do not match.

    The first column is the op; the columns at the indexes `by` identify a change.
    """
    ops = rows.column(0)
    if pc.any(pc.equal(ops, OTHER_KEY)).as_py():
        raise BadFrame(
            f"{framed.label}, frame: the function changed the key of rows",
            remedy="Do not change the columns of the key.",
            rows=pc.sum(pc.equal(ops, OTHER_KEY)).as_py(),
        )
    receipt = pc.fill_null(pc.equal(ops, RECEIPT), False)
    given = rows.filter(receipt)
    rows = rows.filter(pc.invert(receipt))
    # A row without op is a failure; neither it nor a truncate was passed to the function.
    back = rows.filter(pc.fill_null(pc.not_equal(rows.column(0), int(Op.TRUNCATE)), False))
    before, after = (_sorted([each.column(at) for at in by]) for each in (given, back))
    if all(np.array_equal(a, b) for a, b in zip(before, after, strict=True)):
        return rows
    wanted = Counter(zip(*(each.tolist() for each in before), strict=True))
    found = Counter(zip(*(each.tolist() for each in after), strict=True))
    lost, more = (wanted - found).total(), (found - wanted).total()
    problems = [f"lost {lost} rows"] if lost else []
    problems += [f"returned {more} rows more than once, or added them"] if more else []
    raise BadFrame(
        f"{framed.label}, frame: the function {' and '.join(problems)}. {_KEPT}",
        given=given.num_rows,
        lost=lost,
        more=more,
    )


def _sorted(columns: list[pa.ChunkedArray]) -> list[np.ndarray]:
    arrays = [each.to_numpy() for each in columns]
    order = np.lexsort(arrays)
    return [each[order] for each in arrays]


def _ours(key: Mapping[str, t.DataType]) -> list[t.StructField]:
    """Return our own columns, as the function gets them when it is checked."""
    change = [
        t.StructField("op", t.ByteType()),
        t.StructField("commit", t.LongType()),
        t.StructField("ordinal", t.IntegerType()),
        t.StructField("time", t.TimestampType()),
    ]
    change += [t.StructField(f"key{at}", type_) for at, type_ in enumerate(key.values())]
    return [
        t.StructField("_op", t.StringType()),
        t.StructField("_commit", t.LongType()),
        t.StructField("_ordinal", t.IntegerType()),
        t.StructField("_time", t.TimestampType()),
        t.StructField("_change", t.StructType(change)),
    ]
