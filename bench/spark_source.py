"""
The change log as a source of Spark's own: rows a second of `format("headrace")`.

The floor is Spark's own scan of the same Parquet files, which knows nothing of images,
positions or checksums. Both read all columns and throw the rows away.
"""

from __future__ import annotations

import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from bench.harness import Result, Rounds, ratio_at_least
from headrace.changelog.change import Changes, Op, TableChanges
from headrace.changelog.reader import LogWriter
from headrace.changelog.schema import Column, TableSchema
from headrace.changelog.values import ValueType
from headrace.pipeline.plan.types import segment_schema
from headrace.spark_session.session import start_session
from headrace.storage.disk import RealDisk
from headrace.storage.files import Files
from tests.changelog.log_making import At, begun

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SEGMENT_ROWS = 100_000
"""As much as a flush holds at most."""

TABLE = TableSchema(
    "orders",
    (
        Column("id", ValueType("int64"), 1),
        Column("customer_id", ValueType("int64"), 2),
        Column("status", ValueType("text"), 3),
        Column("total", ValueType("decimal", 12, 2), 4),
        Column("weight", ValueType("float64"), 5),
        Column("note", ValueType("text"), 6),
        Column("paid", ValueType("boolean"), 7),
        Column("at", ValueType("timestamptz"), 8),
    ),
    ("id",),
)


def run(*, quick: bool) -> list[Result]:
    """Measure a whole scan, and one of two columns."""
    segments = 4 if quick else 20
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        log = begun(Files(RealDisk(), f"{folder}/data"))
        for number in range(segments):
            _flush(log, number * SEGMENT_ROWS)
        spark = start_session(Path(folder) / "spark")
        try:
            session = spark.session
            paths = sorted(str(p) for p in Path(folder).glob("data/log/*/segments/*.parquet"))
            names = set(TABLE.names)

            def ours(columns: str | None) -> DataFrame:
                asked = session.read.format("headrace").option("log", f"{folder}/data")
                asked = asked.option("table", "orders")
                return (asked if columns is None else asked.option("columns", columns)).load()

            def floor(wanted: set[str]) -> DataFrame:
                shape = segment_schema(TABLE, wanted, None)
                return session.read.schema(shape).parquet(*paths)

            count, rounds = segments * SEGMENT_ROWS, 2 if quick else 5
            return [
                _measured("spark_source.rows_per_s", ours(None), floor(names), count, rounds),
                _measured(
                    "spark_source.two_columns.rows_per_s",
                    ours("id,total"),
                    floor({"id", "total"}),
                    count,
                    rounds,
                ),
            ]
        finally:
            spark.stop()


def _measured(name: str, ours: DataFrame, floor: DataFrame, count: int, rounds: int) -> Result:
    times = Rounds()
    for number in range(rounds + 1):
        for frame, kept in ((floor, times.floor), (ours, times.ours)):
            began = time.perf_counter()
            frame.write.format("noop").mode("overwrite").save()
            if number:  # the first one compiles, and starts Python
                kept.append(count / (time.perf_counter() - began))
    found = times.result(name, "rows/s", ratio_at_least(0.25), "Spark's own scan of the files")
    return replace(found, note=f"{count:,} inserts of 8 columns in segments of {SEGMENT_ROWS:,}")


def _flush(log: LogWriter, first: int) -> None:
    """Append a segment of inserts, made by columns."""
    numbers = np.arange(first + 1, first + SEGMENT_ROWS + 1, dtype=np.int64)
    texts = pa.array([f"n{number}" for number in numbers.tolist()])
    values = {
        "id": pa.array(numbers),
        "customer_id": pa.array(numbers % 997),
        "status": pa.array(["paid", "open"]).take(pa.array(numbers % 2)),
        "total": pa.array(numbers).cast(pa.decimal128(19, 0)).cast(pa.decimal128(12, 2)),
        "weight": pa.array(numbers / 7),
        "note": texts,
        "paid": pa.array(numbers % 2 == 0),
        "at": pa.array(numbers).cast(pa.timestamp("us", "UTC")),
    }
    image = pa.StructArray.from_arrays(
        [values[name] for name in TABLE.names], fields=list(TABLE.arrow)
    )
    columns = {
        "_op": pa.array(np.full(SEGMENT_ROWS, int(Op.INSERT), np.int8)),
        "_commit": pa.array(numbers),
        "_ordinal": pa.array(np.zeros(SEGMENT_ROWS, np.int32)),
        "_time": pa.array(numbers).cast(pa.timestamp("us", "UTC")),
        "after": image,
    }
    arrays = [
        columns.get(field.name, pa.nulls(SEGMENT_ROWS, field.type)) for field in TABLE.segment
    ]
    rows = pa.Table.from_arrays(arrays, schema=TABLE.segment)
    log.append(Changes([TableChanges(TABLE, rows)], At(int(numbers[-1]))))
    log.flush()
