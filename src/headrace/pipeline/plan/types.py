"""
The columns of a segment as Spark reads them, and the Arrow types of Spark's types.

The schema is always passed and never inferred (S5): inference opens a file, and Parquet's types do
not define the meaning of a zoned timestamp as ours do. It contains only the columns that a plan
needs, so the reader skips the rest of both images.

The Arrow type for a Spark type is the same with every version of PySpark.
"""

from __future__ import annotations

import inspect
from collections.abc import Container
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import types as t
from pyspark.sql.pandas.types import from_arrow_type, to_arrow_type

from headrace.changelog.schema import CAPTURED, TableSchema

if TYPE_CHECKING:
    from pyspark.sql.types import DataType


# In 4.1 an instant is in UTC by default; from 4.2 on the time zone must be passed.
_IN_UTC: dict[str, Any] = (
    {"timezone": "UTC"} if "timezone" in inspect.signature(to_arrow_type).parameters else {}
)


def arrow_type(type: DataType) -> pa.DataType:
    """Return the Arrow type, with instants in UTC; raise PySpark's error if there is none."""
    return to_arrow_type(type, **_IN_UTC)


_SIMPLE: dict[pa.DataType, t.DataType] = {
    pa.int8(): t.ByteType(),
    pa.int16(): t.ShortType(),
    pa.int32(): t.IntegerType(),
    pa.int64(): t.LongType(),
    pa.float32(): t.FloatType(),
    pa.float64(): t.DoubleType(),
    pa.bool_(): t.BooleanType(),
    pa.utf8(): t.StringType(),
    pa.binary(): t.BinaryType(),
    pa.date32(): t.DateType(),
    pa.timestamp("us"): t.TimestampNTZType(),
    pa.timestamp("us", "UTC"): t.TimestampType(),
}


def spark_type(type: pa.DataType) -> t.DataType:
    """Return Spark's type for a column of a segment (S6)."""
    if (simple := _SIMPLE.get(type)) is not None:
        return simple
    if pa.types.is_decimal(type):
        return t.DecimalType(type.precision, type.scale)
    if pa.types.is_fixed_size_binary(type):
        return t.BinaryType()
    if pa.types.is_struct(type):
        return t.StructType([t.StructField(field.name, spark_type(field.type)) for field in type])
    return from_arrow_type(type, prefer_timestamp_ntz=True)


def row_schema(schema: TableSchema) -> t.StructType:
    """Return the table's columns, as expressions see them."""
    return t.StructType(
        [t.StructField(column.name, spark_type(column.type.arrow)) for column in schema.columns]
    )


def segment_schema(
    schema: TableSchema,
    after: Container[str],
    before: Container[str] | None,
    *,
    captured: bool = False,
) -> t.StructType:
    """
    Return a segment's columns: positions, and these columns of the images.

    `before` is None if a plan does not read that image. An image of which no column is needed
    keeps one, because a struct without fields cannot be null. `captured` adds the time of capture.
    """
    fields = [
        t.StructField("_op", t.ByteType()),
        t.StructField("_commit", t.LongType()),
        t.StructField("_ordinal", t.IntegerType()),
        t.StructField("_time", t.TimestampType()),
    ]
    if captured:
        fields.append(t.StructField(CAPTURED.name, t.TimestampType()))
    whole = row_schema(schema)
    for name, wanted in (("before", before), ("after", after)):
        if wanted is not None:
            image = [field for field in whole if field.name in wanted] or [whole[0]]
            fields.append(t.StructField(name, t.StructType(image)))
    return t.StructType(fields)
